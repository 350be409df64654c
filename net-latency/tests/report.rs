//! `net-latency report` from outside: files of all kinds, what it says of bad ones, and its exit codes.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use flate2::{Compression, write::GzEncoder};
use net_latency::inside::Format;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use serde_json::Value;
use tempfile::TempDir;

mod logs;

const MINUTE_NS: u64 = 60_000_000_000;
const PACKETS: u64 = 3_000;

fn tool() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_net-latency"));
    command.arg("report");
    command
}

fn run(arguments: &[&str]) -> Output {
    tool().args(arguments).output().expect("the tool starts")
}

/// The tool's only line on standard error, and nothing on standard output.
fn refused(arguments: &[&str], code: i32) -> String {
    let output = run(arguments);
    let said = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    assert_eq!(said.lines().count(), 1, "{said}");
    said
}

fn object(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn log(format: Format) -> Vec<u8> {
    let mut log = Vec::new();
    logs::write(PACKETS, MINUTE_NS, format, &mut log).expect("memory can be written");
    log
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text).expect("memory can be written");
    encoder.finish().expect("memory can be written")
}

fn zstd(text: &[u8]) -> Vec<u8> {
    compress_to_vec(text, CompressionLevel::Fastest)
}

fn put(directory: &TempDir, name: &str, bytes: &[u8]) -> String {
    let path = directory.path().join(name);
    fs::write(&path, bytes).expect("written");
    path.into_os_string().into_string().expect("UTF-8")
}

#[test]
fn packets_go_into_another_form_and_back() {
    let directory = TempDir::new().expect("temporary directory");
    let json = log(Format::Json);
    let original = put(&directory, "original", &json);
    let [csv, back, some] = ["csv", "back", "some"].map(|name| put(&directory, name, b"what was there"));
    for (from, format, to) in [(&original, "csv", &csv), (&csv, "json", &back)] {
        let output = run(&[from, "--format", format, "-o", to]);
        assert!(
            output.status.success() && output.stdout.is_empty() && output.stderr.is_empty(),
            "{output:?}"
        );
    }
    assert_eq!(fs::read(&back).expect("written"), json);
    let output = run(&[&original, "--direction", "in", "--format", "json", "-o", &some]);
    assert!(output.status.success(), "{output:?}");
    let some = fs::read_to_string(&some).expect("written");
    let whole = String::from_utf8(json).expect("UTF-8");
    let expected: Vec<_> = whole.lines().filter(|line| line.contains("\"dir\":\"in\"")).collect();
    assert_eq!(some.lines().collect::<Vec<_>>(), expected);
    let said = refused(&[&original, "--format", "csv", "-o", &original], 2);
    assert!(said.contains("one of the logs"), "{said}");
    let said = refused(&[&original, "--format", "csv"], 2);
    assert!(said.contains("add -o FILE"), "{said}");
}

#[test]
fn one_log_in_many_pieces_and_forms_is_the_same_report() {
    let directory = TempDir::new().expect("temporary directory");
    let json = log(Format::Json);
    let csv = log(Format::Csv);
    let mut whole = object(&run(&["--format", "json", &put(&directory, "whole", &json)]));
    assert_eq!(whole["packets"], PACKETS);
    let as_csv = object(&run(&["--format", "json", &put(&directory, "whole.csv", &csv)]));
    assert_eq!(as_csv, whole);

    let lines: Vec<&[u8]> = json.split_inclusive(|byte| *byte == b'\n').collect();
    let rows: Vec<&[u8]> = csv.split_inclusive(|byte| *byte == b'\n').collect();
    let (one, two) = (lines[..1_000].concat(), lines[1_000..2_000].concat());
    let three = [rows[0], &rows[2_001..].concat()].concat();
    // Names say nothing, and rotation brings any order.
    let pieces = [
        put(&directory, "packets", &three),
        put(&directory, "packets.1", &zstd(&two)),
        put(&directory, "packets.2.gz", &gzip(&one)),
    ];
    let mut pieces = object(&run(&["--format", "json", &pieces[0], &pieces[1], &pieces[2]]));
    assert_eq!(pieces["files"], 3);
    pieces["files"] = 1.into();
    // Several logs come in any order, in which no verdict can be told.
    assert!(whole["diagnosis"].take().is_object() && pieces["diagnosis"].is_null());
    // An exchange that is in two logs is in none.
    for report in [&mut pieces, &mut whole] {
        for table in ["connections", "processes"] {
            let rows = report[table]["top"].as_array_mut().expect("rows");
            rows.iter_mut().for_each(|row| row["tcp"] = Value::Null);
        }
    }
    assert_eq!(pieces, whole);
}

#[test]
fn standard_input_may_be_packed_too() {
    for packed in [log(Format::Json), gzip(&log(Format::Csv)), zstd(&log(Format::Json))] {
        let mut child = tool()
            .args(["--format", "json", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the tool starts");
        // The report comes when all is read, so that neither waits for the other.
        child.stdin.take().expect("piped").write_all(&packed).expect("the tool reads");
        assert_eq!(object(&child.wait_with_output().expect("the tool ends"))["packets"], PACKETS);
    }
}

#[test]
fn what_cannot_be_read_is_named_and_nothing_is_written() {
    let directory = TempDir::new().expect("temporary directory");
    let good = put(&directory, "good", &log(Format::Json));
    let text = put(&directory, "text", &log(Format::Text));
    let binary = put(&directory, "binary", &[0, 159, 146, 150]);
    let page = directory.path().join("page.html");
    fs::write(&page, "old").expect("written");
    let page = page.to_str().expect("UTF-8");

    let missing = refused(&[&good, "/nonexistent/log", "--html", page], 2);
    assert!(missing.contains("cannot read /nonexistent/log: No such file"), "{missing}");
    let folder = refused(&[directory.path().to_str().expect("UTF-8"), "--html", page], 2);
    assert!(folder.contains("is a directory; name the logs in it"), "{folder}");
    let said = refused(&[&good, &text, "--html", page], 2);
    assert!(said.contains("text is in text format") && said.contains("--format json"), "{said}");
    let said = refused(&[&good, &binary, "--html", page], 2);
    assert!(said.contains("binary is not a log of net-latency: its line 1"), "{said}");
    let said = refused(&[&good, &good], 2);
    assert!(said.contains("good is named twice"), "{said}");
    let said = refused(&[&good, "--html", &good], 2);
    assert!(said.contains("it is one of the logs"), "{said}");
    let said = refused(&[&good, "--html", "/nonexistent/page.html"], 2);
    assert!(said.contains("cannot write the page to /nonexistent/page.html"), "{said}");
    assert_eq!(fs::read_to_string(page).expect("there"), "old");

    let nothing = run(&[]);
    assert_eq!(nothing.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&nothing.stderr).contains("<FILE>..."), "{nothing:?}");
}

#[test]
fn a_damaged_log_is_reported_as_far_as_it_goes() {
    let directory = TempDir::new().expect("temporary directory");
    let packed = gzip(&log(Format::Json));
    let damaged = put(&directory, "damaged.gz", &packed[..packed.len() / 2]);
    let output = run(&["--format", "json", &damaged]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot read to the end: ") && said.contains("damaged.gz"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let packets = report["packets"].as_u64().expect("a number");
    assert!((1_000..2_000).contains(&packets), "{packets}");
    assert_eq!(report["damaged_files"].as_array().expect("an array").len(), 1);
}

#[test]
fn skipped_lines_are_told_by_file_and_line() {
    let directory = TempDir::new().expect("temporary directory");
    let json = log(Format::Json);
    let good = put(&directory, "good", &json);
    let bad = put(&directory, "bad", &[&json[..], b"\x1b[2Jgarbage\n{\"ts\":\n", &json[..100]].concat());
    let output = run(&[&good, &bad]);
    assert!(output.status.success() && output.stderr.is_empty());
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let place =
        format!("  2 lines were skipped\n  the first of them: line {} of {bad} is neither", PACKETS + 1);
    assert!(text.contains(&place), "{text}");
    assert!(text.contains("1 log ends in the middle of a line, which is not counted"), "{text}");
}

#[test]
fn the_page_goes_where_it_is_told() {
    let directory = TempDir::new().expect("temporary directory");
    let good = put(&directory, "good", &log(Format::Json));
    let page = directory.path().join("page.html");
    let output = run(&[&good, "--html", page.to_str().expect("UTF-8")]);
    assert!(output.status.success() && output.stdout.starts_with(b"3000 packets in 1 log\n"));
    let written = fs::read(&page).expect("a page");
    assert!(written.starts_with(b"<!DOCTYPE html>") && written.ends_with(b"</html>\n"));
    assert_eq!(fs::metadata(&page).expect("there").permissions().mode() & 0o777, 0o640);
    assert_eq!(names(directory.path()), ["good", "page.html"]);

    let output = run(&[&good, "--html", "-"]);
    assert!(output.status.success() && output.stdout == written);
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("a directory");
    let mut names: Vec<_> = entries.map(|entry| entry.expect("listed").file_name()).collect();
    names.sort();
    names.into_iter().map(|name| name.into_string().expect("UTF-8")).collect()
}

#[test]
fn a_reader_who_has_gone_is_no_failure_and_a_full_disk_is_one() {
    let directory = TempDir::new().expect("temporary directory");
    let good = put(&directory, "good", &log(Format::Json));
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    let mut child = tool().args([&good, "--html", "-"]).stdout(writer).spawn().expect("the tool starts");
    reader.read_exact(&mut [0; 10]).expect("the page begins");
    drop(reader);
    assert!(child.wait().expect("the tool ends").success());

    let full = File::options().write(true).open("/dev/full").expect("a device");
    let output = tool().arg(&good).stdout(full).output().expect("the tool starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("cannot write to standard output: No space left"), "{said}");
}

#[test]
fn names_that_are_longer_than_any_are_not_kept() {
    let directory = TempDir::new().expect("temporary directory");
    let head = "{\"ts\":\"2022-03-02T16:01:36Z\",\"dir\":\"in\",\"proto\":\"tcp\",\"total_ns\":7";
    let lines: String = ["comm", "ifname"]
        .map(|name| format!("{head},\"pid\":2,\"{name}\":\"{}\"}}\n", "x".repeat(60_000)))
        .concat();
    // As long as one of the kernel's can be in this form.
    let longest = "\\\\x01".repeat(15);
    let good = format!("{head},\"pid\":1,\"comm\":\"{longest}\"}}\n");
    let log = put(&directory, "log", (good + &lines).as_bytes());
    let output = run(&[&log, "--format", "json"]);
    assert!(output.status.success(), "{output:?}");
    assert!(output.stdout.len() < 20_000, "{} bytes", output.stdout.len());
    let text = String::from_utf8(run(&[&log]).stdout).expect("UTF-8");
    assert!(text.contains("2 lines were skipped") && text.contains("line 2 of"), "{text}");
    assert!(text.contains("has a name that is too long"), "{text}");
}

#[test]
fn filters_and_rows_are_as_asked_for() {
    let directory = TempDir::new().expect("temporary directory");
    let good = put(&directory, "good", &log(Format::Json));
    let arguments =
        ["--format", "json", "--top", "2", "--comm", "ng*x", "--port", "80", "--direction", "in", &good];
    let report = object(&run(&arguments));
    let rows = report["processes"]["top"].as_array().expect("an array");
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0]["comm"], "nginx");
    assert_eq!(report["connections"]["top"].as_array().expect("an array").len(), 2);
    assert_eq!(report["slowest"].as_array().expect("an array").len(), 2);
    let stages = report["stages"].as_array().expect("an array");
    assert!(stages.iter().all(|stage| stage["dir"] == "in"), "{stages:?}");
    let sum = report["packets"].as_u64().expect("a number") + report["filtered"].as_u64().expect("a number");
    assert_eq!(sum, PACKETS);
}

/// A link that is in the way of nothing: what it leads to is written.
#[test]
fn a_link_to_the_page_stays_one() {
    let directory = TempDir::new().expect("temporary directory");
    let good = put(&directory, "good", &log(Format::Json));
    let (page, link): (PathBuf, PathBuf) = (directory.path().join("page"), directory.path().join("link"));
    fs::write(&page, "old").expect("written");
    std::os::unix::fs::symlink(&page, &link).expect("linked");
    assert!(run(&[&good, "-q", "--html", link.to_str().expect("UTF-8")]).status.success());
    assert!(link.is_symlink());
    assert!(fs::read(&page).expect("a page").starts_with(b"<!DOCTYPE html>"));
}
