//! The figures that close a run, or an interval of it, against the lines of that run.

use std::{thread::sleep, time::Duration};

use anyhow::{Context as _, Result, ensure};
use regex_lite::Regex;

use super::Case;
use crate::{
    lines::{Dir, Line},
    net::{Path, Version},
    peers::{Pair, Peer},
    tool::{Backend, Launch, Outcome, is_report},
};

pub(crate) const CASES: &[Case] = &[
    ("footer_has_the_lines_figures", has_the_lines_figures),
    ("footer_names_the_slowest", names_the_slowest),
    ("footer_of_intervals", of_intervals),
    ("footer_has_the_cost", has_the_cost),
];

/// A row of the table.
#[derive(Debug, PartialEq)]
struct Row {
    dir: Dir,
    stage: String,
    count: usize,
    /// min, p50, p90, p99, p99.9, max
    times: [u64; 6],
}

/// The text that begins with the line that holds `words`, up to the next report: what follows is indented.
fn report<'a>(outcome: &'a Outcome, words: &str) -> Result<Vec<&'a str>> {
    let start = outcome.stderr.iter().position(|line| line.contains(words));
    let start = start.ok_or_else(|| outcome.fault(format_args!("no report with {words:?}"), []))?;
    let rest = outcome.stderr[start + 1..].iter().take_while(|line| line.starts_with("  "));
    Ok(outcome.stderr[start..=start].iter().chain(rest).map(String::as_str).collect())
}

fn rows(report: &[&str]) -> Result<Vec<Row>> {
    let form = Regex::new(r"^  (in |out|   ) ([a-z-]+) +(\d+)((?: +[0-9.]+ (?:ns|us|ms|s)){6})$")?;
    let time = Regex::new(r"([0-9.]+) (ns|us|ms|s)\b")?;
    let mut rows: Vec<Row> = Vec::new();
    for parts in report.iter().filter_map(|line| form.captures(line)) {
        let dir = match &parts[1] {
            "in " => Dir::In,
            "out" => Dir::Out,
            _ => rows.last().context("a row of no direction")?.dir,
        };
        let mut times = [0; 6];
        for (time, parts) in times.iter_mut().zip(time.captures_iter(&parts[4])) {
            let unit = match &parts[2] {
                "ns" => 1.0,
                "us" => 1e3,
                "ms" => 1e6,
                _ => 1e9,
            };
            *time = (parts[1].parse::<f64>()? * unit) as u64;
        }
        rows.push(Row { dir, stage: parts[2].to_owned(), count: parts[3].parse()?, times });
    }
    Ok(rows)
}

/// What `lines` say about a row, to three digits.
fn expect_row(row: &Row, lines: &[Line], column: usize) -> Result<()> {
    let mut times: Vec<_> = lines
        .iter()
        .filter(|line| line.dir == row.dir && !line.is("retrans"))
        .filter_map(|line| line.stages.get(column).copied().unwrap_or(line.total))
        .collect();
    times.sort_unstable();
    ensure!(times.len() == row.count, "{} lines, but {row:?}", times.len());
    let quantile = |per_mille: usize| times[(times.len() * per_mille).div_ceil(1000).max(1) - 1];
    let expected = [0, 500, 900, 990, 999, 1000].map(quantile);
    for (shown, exact) in row.times.into_iter().zip(expected) {
        // A histogram of two digits, and a text of three.
        ensure!(shown.abs_diff(exact) <= exact / 64 + 1, "{exact}, but {row:?}");
    }
    Ok(())
}

fn has_the_lines_figures(backend: Backend) -> Result<()> {
    const ROUNDS: usize = 400;
    let path = Path::loopback(Version::V6)?;
    let mut pair = Pair::prepare(&path, crate::peers::CLIENT, crate::peers::SERVER)?;
    let tool = Launch::new(backend).text_footer().args(&["--port", &pair.far.port().to_string()]).start()?;
    pair.open(&path)?;
    pair.converse(ROUNDS.try_into()?, 200)?;
    let outcome = tool.stop()?;
    let lines = outcome.lines()?;
    let report = report(&outcome, " lost")?;
    let rows = rows(&report).map_err(|error| outcome.fault(error, []))?;
    let stages: Vec<_> = rows.iter().map(|row| (row.dir, row.stage.as_str())).collect();
    let in_order = ["drv-ip", "ip-tcp", "tcp-app", "total"].map(|stage| (Dir::In, stage)).into_iter();
    let expected: Vec<_> =
        in_order.chain(["app-tcp", "tcp-ip", "ip-drv", "total"].map(|stage| (Dir::Out, stage))).collect();
    ensure!(stages == expected, outcome.fault(format_args!("rows {stages:?}"), []));
    for (index, row) in rows.iter().enumerate() {
        let all = u64::try_from(ROUNDS * 2)?;
        outcome.expect_all(format_args!("packets in {row:?}"), row.count.try_into()?, all, [])?;
        expect_row(row, &lines, index % 4).map_err(|error| outcome.fault(error, []))?;
    }
    // Of the slowest each is one of the lines.
    let mut totals: Vec<_> = lines.iter().filter_map(|line| line.total).collect();
    totals.sort_unstable();
    let slowest = report.iter().filter(|line| line.contains(", PID ")).count();
    ensure!(slowest == 5, outcome.fault(format_args!("{slowest} of the slowest"), []));
    let too_wide = report.iter().filter(|line| !line.contains(" packets seen")).find(|line| line.len() > 80);
    ensure!(too_wide.is_none(), outcome.fault(format_args!("wider than 80: {too_wide:?}"), []));
    Ok(())
}

/// What the tool costs itself is always told; what its programs cost only with --debug, since measuring
/// that costs as well.
fn has_the_cost(backend: Backend) -> Result<()> {
    let form = Regex::new(
        r"^  cost: (\d+\.\d) % of a CPU, (\d+) MiB(?:; in the kernel (\d+\.\d) %, (\d+) ns a packet)?$",
    )?;
    for (arguments, is_measured) in [(&[][..], false), (&["--debug"][..], true)] {
        let mut pair = Pair::connect(&Path::loopback(Version::V4)?)?;
        let tool = Launch::new(backend).text_footer().args(arguments).start()?;
        pair.converse(200, 200)?;
        // Shorter runs have times in place of shares.
        sleep(Duration::from_secs(1));
        let outcome = tool.stop()?;
        let parts = outcome.stderr.iter().find_map(|line| form.captures(line));
        let parts = parts.ok_or_else(|| outcome.fault("no cost", []))?;
        let number = |part| parts.get(part).map(|part| part.as_str().parse::<f64>()).transpose();
        let [own, mebibytes, share, per_packet] = [number(1)?, number(2)?, number(3)?, number(4)?];
        ensure!(own > Some(0.0) && own <= Some(200.0), outcome.fault("not a share of two CPUs", []));
        ensure!(mebibytes > Some(1.0) && mebibytes <= Some(32.0), outcome.fault("not its memory", []));
        ensure!(per_packet.is_some() == is_measured, outcome.fault("measured, or not", []));
        if is_measured {
            // A stage's stamp alone takes tens of ns, and a packet has four stages.
            ensure!(share > Some(0.0) && per_packet > Some(100.0), outcome.fault("too cheap", []));
        }
    }
    Ok(())
}

/// A reader that comes late makes the slowest packet, and the footer says who that was and what it means.
fn names_the_slowest(backend: Backend) -> Result<()> {
    const LATE: Duration = Duration::from_millis(400);
    let path = Path::loopback(Version::V4)?;
    let mut pair = Pair::connect(&path)?;
    let mut idle = Peer::spawn(b"nl-idle")?;
    let tool = Launch::new(backend).text_footer().args(&["--port", &pair.far.port().to_string()]).start()?;
    pair.client.ask("write 200")?;
    sleep(LATE);
    pair.server.ask("read 200 200 0")?;
    pair.converse(20, 200)?;
    idle.end()?;
    let outcome = tool.stop()?;
    let report = report(&outcome, " lost")?;
    let at = report.iter().position(|line| *line == "  slowest:");
    let at = at.ok_or_else(|| outcome.fault("no slowest packets", []))?;
    let form = Regex::new(
        r"^  \w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d in  +([\d.]+) (ms|s)  tcp-app (\d+) %  nl-server, PID (\d+)$",
    )?;
    let parts = form.captures(report[at + 1]);
    let parts = parts.ok_or_else(|| outcome.fault("the slowest is not the late reader's", []))?;
    let total = parts[1].parse::<f64>()? * if &parts[2] == "ms" { 1.0 } else { 1000.0 };
    ensure!((400.0..4000.0).contains(&total), outcome.fault(format_args!("{total} ms"), []));
    ensure!(parts[3].parse::<u32>()? > 95, outcome.fault("the wait is not most of its time", []));
    ensure!(parts[4].parse::<u32>()? == pair.server.pid(), outcome.fault("another PID", []));
    let ends = format!("      {} > {}", pair.near, pair.far);
    ensure!(report[at + 2] == ends, outcome.fault(format_args!("not {ends:?}"), []));
    let hint = report.iter().any(|line| line.starts_with("  tcp-app: its bytes waited in the socket"));
    ensure!(hint, outcome.fault("no word on what that means", []));
    Ok(())
}

/// Each interval shows its own packets only, the footer all of them.
fn of_intervals(backend: Backend) -> Result<()> {
    const TIMES: [u32; 3] = [100, 200, 50];
    let path = Path::loopback(Version::V4)?;
    let mut pair = Pair::connect(&path)?;
    let port = pair.far.port().to_string();
    let mut tool =
        Launch::new(backend).text_footer().args(&["--port", &port, "--interval", "300ms"]).start()?;
    for rounds in TIMES {
        pair.converse(rounds, 100)?;
        // The first of these may have begun before, the next is without a packet.
        tool.expect_more_reports(2)?;
    }
    let outcome = tool.stop()?;
    let mut counts = Vec::new();
    let mut sum = 0;
    for (index, line) in outcome.stderr.iter().enumerate() {
        if !is_report(line) {
            continue;
        }
        let report: Vec<_> = [line.as_str()]
            .into_iter()
            .chain(
                outcome.stderr[index + 1..]
                    .iter()
                    .map(String::as_str)
                    .take_while(|line| line.starts_with("  ")),
            )
            .collect();
        let shown = Regex::new(r" = (\d+) shown")?.captures(line);
        let shown: usize = shown.context("a ledger")?[1].parse()?;
        let rows = rows(&report)?;
        let in_rows: usize = rows.iter().filter(|row| row.stage == "total").map(|row| row.count).sum();
        ensure!(in_rows == shown, outcome.fault(format_args!("{in_rows} in the rows of {line:?}"), []));
        ensure!(
            shown > 0 || report.len() == 1,
            outcome.fault("times or packets of an interval in which there were none", [])
        );
        counts.push(shown);
        sum += shown;
    }
    let all: u32 = TIMES.iter().map(|rounds| rounds * 4).sum();
    outcome.expect_all(format_args!("packets in {counts:?}"), sum.try_into()?, all.into(), [])?;
    ensure!(counts.contains(&0), outcome.fault("no interval without a packet, so this shows little", []));
    let rows = rows(&report(&outcome, " lost")?)?;
    let whole: usize = rows.iter().filter(|row| row.stage == "total").map(|row| row.count).sum();
    ensure!(whole == sum, outcome.fault(format_args!("{whole} packets in the footer, not {sum}"), []));
    Ok(())
}
