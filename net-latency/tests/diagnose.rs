//! `net-latency diagnose --replay` from outside: its verdict on a log, and its exit codes.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use net_latency::inside::{Event, Format, Options, PARTS, Writer, Zone};
use net_latency_common::{AF_INET, Direction, IPPROTO_TCP, PacketRecord};
use serde_json::Value;

const START_NS: i64 = 1_646_236_896_000_000_000;
const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// Packets that two servers received, of which the second reads 20 ms late. Without the parts it is not known why.
fn log(directory: &Path, has_parts: bool) -> PathBuf {
    let options = Options { zone: Zone::UTC, details: false, colour: false };
    let mut writer = Writer::new(Format::Json, &options);
    let mut lines = Vec::new();
    for number in 0..200 {
        for (pid, name, port, wait) in [(7, b"fast", 80, 10 * US), (8, b"slow", 81, 20 * MS)] {
            let at = (number + 1) * 50 * MS;
            let app = at + 30 * US + wait + 70 * US;
            let mut process = [0; 16];
            process[..name.len()].copy_from_slice(name);
            let record = PacketRecord {
                stamps: [at, at + 20 * US, at + 30 * US, app],
                saddr: [10; 16],
                daddr: [11; 16],
                comm: process,
                process,
                pid,
                tid: pid,
                len: 100,
                sport: 40_000,
                dport: port,
                segs: 1,
                direction: Direction::In as u8,
                protocol: IPPROTO_TCP,
                family: AF_INET as u8,
                ..PacketRecord::default()
            };
            let parts: [u64; PARTS] = [0, wait, 50 * US, 20 * US];
            let event = Event::new(&record, START_NS + i64::try_from(app).expect("small"), Some(b"eth0"));
            writer.write(&event.with_parts(has_parts.then_some(&parts)), &mut lines);
        }
    }
    let path = directory.join(if has_parts { "fine.json" } else { "basic.json" });
    fs::write(&path, lines).expect("written");
    path
}

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_net-latency"));
    command.arg("diagnose").args(arguments).stdin(Stdio::null()).output().expect("the tool starts")
}

#[test]
fn a_log_s_late_reader_is_named() {
    let directory = tempfile::tempdir().expect("temporary directory");
    for (has_parts, cause, stage) in [(true, "reader-late", "wait"), (false, "socket-wait", "tcp-app")] {
        let path = log(directory.path(), has_parts);
        let path = path.to_str().expect("UTF-8");
        let output = run(&["--replay", path, "--format", "json", "-q"]);
        assert_eq!(output.status.code(), Some(0));
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        let verdict: Value = serde_json::from_slice(&output.stdout).expect("one object");
        let findings = verdict["findings"].as_array().expect("a list");
        assert_eq!(findings.len(), 1, "{verdict}");
        let finding = &findings[0];
        assert_eq!((&finding["pid"], &finding["port"]), (&8.into(), &81.into()), "{verdict}");
        assert_eq!((&finding["cause"], &finding["stage"]), (&cause.into(), &stage.into()), "{verdict}");
        assert_eq!(verdict["normal"][0]["process"], "fast");

        let output = run(&["--replay", path]);
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        assert!(
            text.starts_with("slow, PID 8, tcp port 81, in: ")
                && text.contains("\n400 packets in, 0 out, 2 services in "),
            "{text}"
        );
        assert!(text.contains("1. slow, PID 8, tcp port 81, in: "), "{text}");
        let said = String::from_utf8(output.stderr).expect("UTF-8");
        assert!(said.contains("400 lines read: 400 judged, 0 filtered"), "{said}");
    }
    // A filter, and a threshold above all that there is.
    let path = log(directory.path(), true);
    let path = path.to_str().expect("UTF-8");
    for (arguments, packets) in [(["--pid", "7"], 200), (["--threshold", "30ms"], 400)] {
        let output = run(&[&["--replay", path, "--format", "json", "-q"][..], &arguments].concat());
        let verdict: Value = serde_json::from_slice(&output.stdout).expect("one object");
        assert_eq!(
            (&verdict["findings"], &verdict["seen"]["packets_in"]),
            (&Value::Array(vec![]), &packets.into())
        );
    }
}

#[test]
fn what_is_no_log_is_a_usage_error_and_what_is_damaged_a_failure() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let other = directory.path().join("other");
    fs::write(&other, "hello\n").expect("written");
    for path in ["/nonexistent", other.to_str().expect("UTF-8")] {
        let output = run(&["--replay", path]);
        let said = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(output.stdout.is_empty() && said.lines().count() == 1, "{said}");
    }
    // Cut off in the middle: what came before is judged all the same.
    let whole = fs::read(log(directory.path(), true)).expect("written");
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, &whole).expect("memory");
    let packed = packed.finish().expect("memory");
    let torn = directory.path().join("torn.gz");
    fs::write(&torn, &packed[..packed.len() - 20]).expect("written");
    let output = run(&["--replay", torn.to_str().expect("UTF-8")]);
    let said = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("the verdict lacks what follows"), "{said}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("slow, PID 8"));
}
