//! The recipes of docs/after-the-incident.md, by the programs that they are for: what these find in a log is what it holds.
//!
//! Where NET_LATENCY_TEST_PYTHON is no directory with duckdb and python, which has pandas, these tests are ignored, and say so; `cargo
//! xtask test` installs both.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use libtest_mimic::{Arguments, Failed, Trial};
use net_latency::inside::Format;
use serde_json::Value;

mod logs;

const PACKETS: u64 = 30_000;
const SPAN_NS: u64 = 60_000_000_000;
/// What the recipes call the log.
const LOG: &str = "packets.json";
const PAGE: &str = include_str!("../../docs/after-the-incident.md");

/// By process and direction: packets, and the 99th percentile and the maximum of their times in ms.
type Found = BTreeMap<[String; 2], [f64; 3]>;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let programs = env::var_os("NET_LATENCY_TEST_PYTHON").map(PathBuf::from);
    if programs.is_none() {
        eprintln!(
            "recipes: NET_LATENCY_TEST_PYTHON does not say where duckdb and pandas are; the tests are ignored"
        );
    }
    let trial = |name, run: fn(&Path, &Path) -> Result<String, Failed>| {
        let programs = programs.clone();
        let is_left_out = programs.is_none();
        Trial::test(name, move || check(|directory| run(&programs.unwrap_or_default(), directory)))
            .with_ignored_flag(is_left_out)
    };
    let trials =
        vec![trial("duckdb_finds_what_is_there", duckdb), trial("pandas_finds_what_is_there", pandas)];
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// The block of the page in that language.
fn recipe(language: &str) -> Result<&'static str, Failed> {
    let (_, rest) = PAGE.split_once(&format!("```{language}\n")).ok_or("the page has no such recipe")?;
    Ok(rest.split_once("```").ok_or("it has no end")?.0)
}

fn run(program: &Path, arguments: &[&str], directory: &Path) -> Result<String, Failed> {
    let output = Command::new(program).args(arguments).current_dir(directory).output()?;
    if !output.status.success() || !output.stderr.is_empty() {
        return Err(format!("{}: {}", program.display(), String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

fn duckdb(programs: &Path, directory: &Path) -> Result<String, Failed> {
    run(&programs.join("duckdb"), &["-csv", "-c", recipe("sql")?], directory)
}

fn pandas(programs: &Path, directory: &Path) -> Result<String, Failed> {
    let program = format!("{}\ntable.to_csv('table.csv')\n", recipe("python")?);
    run(&programs.join("python"), &["-c", &program], directory)?;
    Ok(fs::read_to_string(directory.join("table.csv"))?)
}

fn check(find: impl FnOnce(&Path) -> Result<String, Failed>) -> Result<(), Failed> {
    let directory = tempfile::TempDir::new()?;
    let mut lines = Vec::new();
    logs::write(PACKETS, SPAN_NS, Format::Json, &mut lines)?;
    fs::write(directory.path().join(LOG), &lines)?;
    let table = find(directory.path())?;
    let mut found = Found::new();
    for row in csv::Reader::from_reader(table.as_bytes()).deserialize() {
        let (process, dir, packets, p99, max): (String, String, f64, f64, f64) = row?;
        found.insert([process, dir], [packets, p99, max]);
    }
    let expected = expected(&lines)?;
    assert!(expected.len() > 8, "{expected:?}");
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (key, expected) in &expected {
        for (found, expected) in found[key].iter().zip(expected) {
            assert!((found - expected).abs() < 1e-6 * expected, "{key:?}: {found}, not {expected}");
        }
    }
    Ok(())
}

/// What the recipes should find, from the lines.
fn expected(lines: &[u8]) -> Result<Found, Failed> {
    let mut times = BTreeMap::<[String; 2], (u32, Vec<u64>)>::new();
    for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let packet: Value = serde_json::from_slice(line)?;
        let text = |name: &str| packet[name].as_str().unwrap_or_default().to_owned();
        let (packets, times) = times.entry([text("process"), text("dir")]).or_default();
        *packets += 1;
        if let Some(ns) = packet["total_ns"].as_u64() {
            times.push(ns);
        }
    }
    let of = |(packets, mut times): (u32, Vec<u64>)| {
        times.sort_unstable();
        let time = |place: usize| times[place.min(times.len() - 1)] as f64;
        // As both programs have it: on the line between the two nearest.
        let place = (times.len() - 1) as f64 * 0.99;
        let (below, part) = (place as usize, place.fract());
        let p99 = time(below) + part * (time(below + 1) - time(below));
        [f64::from(packets), p99 / 1e6, time(times.len() - 1) / 1e6]
    };
    Ok(times.into_iter().map(|(key, counted)| (key, of(counted))).collect())
}
