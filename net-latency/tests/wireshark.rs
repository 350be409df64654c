//! pcapng in Wireshark's own eyes: tshark finds each packet, its stream, direction, device and comment, and has nothing to say of it.
//!
//! Without tshark these tests are ignored, and say so; where NET_LATENCY_TEST_TSHARK is `required`, as `cargo xtask test` sets it after
//! having installed it, they fail.

use std::{
    collections::{HashMap, HashSet},
    env, fs,
    path::Path,
    process::{Command, ExitCode},
};

use chrono::DateTime;
use libtest_mimic::{Arguments, Failed, Trial};
use net_latency::inside::Format;
use serde_json::Value;

mod logs;

const PACKETS: u64 = 10_000;
const SPAN_NS: u64 = 60_000_000_000;
/// The fields to read of each packet.
const FIELDS: [&str; 16] = [
    "frame.time_epoch",
    "frame.len",
    "ip.src",
    "ip.dst",
    "ipv6.src",
    "ipv6.dst",
    "tcp.srcport",
    "tcp.dstport",
    "udp.srcport",
    "udp.dstport",
    "tcp.seq_raw",
    "tcp.len",
    "tcp.stream",
    "frame.packet_flags_direction",
    "frame.interface_name",
    "frame.comment",
];

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let is_there = Command::new("tshark").arg("--version").output().is_ok_and(|found| found.status.success());
    let required = env::var_os("NET_LATENCY_TEST_TSHARK").is_some_and(|value| value == "required");
    if !is_there {
        eprintln!("wireshark: no tshark in PATH");
        eprintln!("wireshark: {}", if required { "its tests fail" } else { "its tests are ignored" });
    }
    let trial = Trial::test("what_json_says_tshark_finds", what_json_says_tshark_finds)
        .with_kind("tshark")
        .with_ignored_flag(!is_there && !required);
    libtest_mimic::run(&arguments, vec![trial]).exit_code()
}

fn tool(arguments: &[&str]) -> Result<(), Failed> {
    let output = Command::new(env!("CARGO_BIN_EXE_net-latency")).args(arguments).output()?;
    match output.status.success() && output.stderr.is_empty() {
        true => Ok(()),
        false => Err(format!("{arguments:?}: {}", String::from_utf8_lossy(&output.stderr)).into()),
    }
}

/// What tshark prints, a line each, and nothing on standard error.
fn tshark(file: &Path, arguments: &[&str]) -> Result<Vec<String>, Failed> {
    let output = Command::new("tshark")
        .args(["-n", "-r"])
        .arg(file)
        .args(arguments)
        .env("LC_ALL", "C.UTF-8")
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    let said: Vec<_> = said.lines().filter(|line| !line.starts_with("Running as user")).collect();
    if !output.status.success() || !said.is_empty() {
        return Err(format!("tshark {arguments:?}: {said:?}").into());
    }
    Ok(String::from_utf8(output.stdout)?.lines().map(str::to_owned).collect())
}

fn what_json_says_tshark_finds() -> Result<(), Failed> {
    let directory = tempfile::TempDir::new()?;
    let path = |name: &str| directory.path().join(name);
    let (log, json, pcapng) = (path("log"), path("json"), path("pcapng"));
    let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let mut lines = Vec::new();
    logs::write(PACKETS, SPAN_NS, Format::Csv, &mut lines)?;
    fs::write(&log, lines)?;
    for (format, out) in [("json", &json), ("pcapng", &pcapng)] {
        tool(&["report", &text(&log), "--format", format, "-o", &text(out)])?;
    }

    let mut arguments = vec!["-T", "fields", "-E", "separator=|"];
    arguments.extend(FIELDS.iter().flat_map(|field| ["-e", *field]));
    let found = tshark(&pcapng, &arguments)?;
    let packets: Vec<Value> =
        fs::read_to_string(&json)?.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    if packets.len() as u64 != PACKETS || found.len() != packets.len() {
        return Err(format!("{} packets of {}", found.len(), packets.len()).into());
    }
    let mut streams: HashMap<String, HashSet<String>> = HashMap::new();
    for (packet, line) in packets.iter().zip(&found) {
        let values: Vec<&str> = line.split('|').collect();
        let value = |name: &str| values[FIELDS.iter().position(|field| *field == name).expect("asked for")];
        let text = |name: &str| match &packet[name] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let is_tcp = packet["proto"] == "tcp";
        let (ip, transport) =
            (if packet["ipver"] == 4 { "ip" } else { "ipv6" }, if is_tcp { "tcp" } else { "udp" });
        for (field, name) in [
            (format!("{ip}.src"), "saddr"),
            (format!("{ip}.dst"), "daddr"),
            (format!("{transport}.srcport"), "sport"),
            (format!("{transport}.dstport"), "dport"),
            ("frame.interface_name".to_owned(), "ifname"),
        ] {
            assert_eq!(value(&field), text(name), "{field} of {packet}");
        }
        let headers = if packet["ipver"] == 4 { 20 } else { 40 } + if is_tcp { 20 } else { 8 };
        let len = packet["len"].as_u64().expect("a number");
        assert_eq!(value("frame.len"), (headers + len).to_string(), "{packet}");
        if is_tcp {
            assert_eq!(value("tcp.seq_raw"), text("seq"));
            assert_eq!(value("tcp.len"), text("len"));
            let mut ends = [("saddr", "sport"), ("daddr", "dport")]
                .map(|(address, port)| format!("{} {}", text(address), text(port)));
            ends.sort();
            streams.entry(ends.join(" ")).or_default().insert(value("tcp.stream").to_owned());
        }
        let direction = if packet["dir"] == "in" { "0x00000001" } else { "0x00000002" };
        assert_eq!(
            value("frame.packet_flags_direction").trim_start_matches("0x0000000"),
            direction.trim_start_matches("0x0000000")
        );
        let ts = DateTime::parse_from_rfc3339(&text("ts"))?;
        let time = format!("{}.{:09}", ts.timestamp(), ts.timestamp_subsec_nanos());
        assert_eq!(value("frame.time_epoch"), time, "{packet}");
        // As fields, tshark doubles what it takes for the beginning of an escape.
        assert_eq!(value("frame.comment").replace(r"\\", r"\"), comment(packet), "{packet}");
    }
    // Each connection is one stream, and each stream one connection.
    let numbers: HashSet<_> = streams.values().flatten().collect();
    assert!(streams.values().all(|numbers| numbers.len() == 1), "{streams:?}");
    assert_eq!(numbers.len(), streams.len());

    // Nothing is malformed. (Numbers of bytes are made up in this log, so that it looks as if segments were missing.)
    let malformed = tshark(&pcapng, &["-Y", "_ws.malformed || _ws.expert.severity == error"])?;
    assert_eq!(malformed, Vec::<String>::new());
    Ok(())
}

/// What the comment of that packet has to be.
fn comment(packet: &Value) -> String {
    let transport = packet["proto"].as_str().expect("a name");
    let way = match packet["dir"] == "in" {
        true => ["drv", "ip", transport, "app"],
        false => ["app", transport, "ip", "drv"],
    };
    let stages = way.windows(2).map(|ends| {
        let time = packet[format!("{}_{}_ns", ends[0], ends[1])].as_u64();
        let time = time.map_or("-".to_owned(), |ns| format!("{} us", ns / 1000));
        format!("{}-{} {time}", ends[0], ends[1])
    });
    let stages = stages.collect::<Vec<_>>().join(", ");
    let process = packet["process"].as_str().expect("a name").replace('\x1b', r"\x1b");
    let flags: Vec<_> = packet["flags"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let flags = if flags.is_empty() { String::new() } else { format!("; {}", flags.join(", ")) };
    format!("{stages}; {process}, PID {}{flags}", packet["pid"])
}
