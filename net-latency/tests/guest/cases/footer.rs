//! The footer for programs, against the lines of the same run.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::Case;
use crate::{
    lines::{Dir, Line, Proto, stages},
    net::{Path, Version, counter},
    peers::{Pair, Peer},
    tool::{Backend, Launch, Scratch, Sink},
};

pub(crate) const CASES: &[Case] = &[
    ("footer_json_agrees_with_the_lines", agrees_with_the_lines),
    ("footer_json_of_intervals", of_intervals),
    ("footer_json_of_hist", of_hist),
    ("footer_json_of_hist_intervals", of_hist_intervals),
    ("calls_footer_json", of_calls),
];

/// A field that has to be a count.
fn count(footer: &Value, field: &str) -> Result<u64> {
    footer[field].as_u64().with_context(|| format!("{field} is no count in {footer}"))
}

/// Fails unless every packet is in one place, and every unknown time has a reason.
fn expect_sums(footer: &Value) -> Result<()> {
    let sum = |fields: &[&str]| fields.iter().map(|field| count(footer, field)).sum::<Result<u64>>();
    let came = sum(&["seen", "from_before", "counted_twice"])?;
    let places = [
        "shown",
        "outside",
        "inconsistent",
        "filtered",
        "lost",
        "dropped",
        "duplicates",
        "waiting",
        "in_flight",
    ];
    ensure!(came == sum(&places)?, "{came} are not all: {footer}");
    let reasons = |of: &Value| -> Result<u64> {
        let reasons = of["unknown_stages"].as_object().context("no reasons")?;
        Ok(reasons.values().filter_map(Value::as_u64).sum())
    };
    let stages = footer["stages"].as_array().context("no stages")?;
    for stage in stages {
        ensure!(count(stage, "unknown")? == reasons(stage)?, "unknown without a reason: {stage}");
    }
    let unknown = stages.iter().map(|stage| count(stage, "unknown")).sum::<Result<u64>>()?;
    ensure!(unknown == reasons(footer)?, "{unknown} unknown: {footer}");
    Ok(())
}

/// Fails unless the stages' figures are those of the lines.
fn expect_stages(footer: &Value, lines: &[Line]) -> Result<()> {
    let rows = footer["stages"].as_array().context("no stages")?;
    let mut expected = 0;
    for (dir, proto) in
        [(Dir::In, Proto::Tcp), (Dir::Out, Proto::Tcp), (Dir::In, Proto::Udp), (Dir::Out, Proto::Udp)]
    {
        let lines: Vec<_> = lines.iter().filter(|line| (line.dir, line.proto) == (dir, proto)).collect();
        if lines.is_empty() {
            continue;
        }
        for (column, stage) in stages(dir, proto).into_iter().chain(["total_ns"]).enumerate() {
            expected += 1;
            let row = rows.iter().find(|row| {
                row["dir"] == dir.to_string()
                    && row["stage"] == stage
                    && row["proto"] == if proto == Proto::Tcp { "tcp" } else { "udp" }
            });
            let row = row.with_context(|| format!("no {dir} {stage}"))?;
            // Times of packets that are sent again count as unknown.
            let of = |line: &&&Line| if column < 3 { line.stages[column] } else { line.total };
            let mut times: Vec<_> =
                lines.iter().filter(|line| !line.is("retrans")).filter_map(|line| of(&line)).collect();
            times.sort_unstable();
            let unknown = lines.len() - times.len();
            ensure!(
                count(row, "count")? == times.len() as u64 && count(row, "unknown")? == unknown as u64,
                "{} known and {unknown} unknown in the lines, but {row}",
                times.len()
            );
            ensure!(
                row["min_ns"].as_u64() == times.first().copied()
                    && row["max_ns"].as_u64() == times.last().copied(),
                "{:?} to {:?} in the lines, but {row}",
                times.first(),
                times.last()
            );
            for (field, per_mille) in [("p50_ns", 500), ("p90_ns", 900), ("p99_ns", 990), ("p999_ns", 999)] {
                let exact = times.get((times.len() * per_mille).div_ceil(1000).max(1) - 1);
                let is_right = match (row[field].as_u64(), exact) {
                    (Some(shown), Some(&exact)) => shown.abs_diff(exact) <= exact / 64 + 1,
                    (None, None) => true,
                    _ => false,
                };
                ensure!(is_right, "{exact:?} is {field} of the lines, but {row}");
            }
        }
    }
    ensure!(rows.len() == expected, "{} stages, not {expected}", rows.len());
    Ok(())
}

/// Two pairs, of which one is wanted, datagrams, and unread bytes.
fn agrees_with_the_lines(backend: Backend) -> Result<()> {
    const ROUNDS: u32 = 200;
    const WAITING: u32 = 3;
    let path = Path::private_loopback(Version::V4)?;
    let mut pair = Pair::connect(&path)?;
    let mut other = Pair::connect(&path)?;
    let near = pair.client.ask("udp bind 127.0.0.1")?;
    pair.server.ask("udp bind 127.0.0.1")?;
    let ports = [pair.far.port().to_string(), near.to_string()];
    let arguments = ["--port", &ports[0], "--port", &ports[1]];
    let tool = Launch::new(backend).args(&arguments).start()?;
    pair.converse(ROUNDS, 300)?;
    other.converse(ROUNDS, 300)?;
    for _ in 0..WAITING {
        pair.client.ask("write 100")?;
    }
    pair.server.ask(&format!("udp send-to 127.0.0.1:{near} 30 80"))?;
    pair.client.ask("udp receive 30")?;
    // On a machine that stands still for a while, TCP sends segments again that are only late.
    let resent = path.near(|| counter("snmp", "Tcp", "RetransSegs"))?;
    let outcome = tool.stop()?;
    let lines = outcome.lines()?;
    let footer = outcome.footer()?;
    let check = || -> Result<()> {
        ensure!(footer["kind"] == "end" && footer["view"] == "stream", "not a stream's footer: {footer}");
        expect_sums(&footer)?;
        expect_stages(&footer, &lines)?;
        ensure!(count(&footer, "shown")? == lines.len() as u64, "{} lines: {footer}", lines.len());
        let wanted = u64::from(ROUNDS * 4 + WAITING * 2 + 30 * 2);
        let all = wanted + u64::from(ROUNDS * 4);
        let waiting = u64::from(WAITING);
        // Each is seen at both ends.
        let most = outcome.allowance().most(all) + 2 * resent;
        for (field, expected) in
            [("seen", all), ("shown", wanted - waiting), ("filtered", all - wanted), ("waiting", waiting)]
        {
            let found = count(&footer, field)?;
            ensure!(found.abs_diff(expected) <= most, "{found} {field}, not {expected} (within {most})");
        }
        ensure!(count(&footer, "lost")? + count(&footer, "from_before")? == 0, "nothing is lost");
        let first_sends = lines.iter().filter(|line| !line.is("retrans"));
        let longest = first_sends.filter_map(|line| line.total).max();
        ensure!(footer["slowest"][0]["total_ns"].as_u64() == longest, "{longest:?} is the slowest");
        ensure!(count(&footer["cost"], "own_cpu_ns")? > 0, "it cost something");
        Ok(())
    };
    check().map_err(|error| outcome.fault(format_args!("{error:#}"), []))
}

fn of_intervals(backend: Backend) -> Result<()> {
    add_up(Launch::new(backend))
}

fn of_hist_intervals(backend: Backend) -> Result<()> {
    add_up(Launch::new(backend).view("hist").sink(Sink::Redirected(Scratch::new("hist"))))
}

/// The intervals' figures make up the whole run's.
fn add_up(launch: Launch) -> Result<()> {
    const ROUNDS: u32 = 100;
    let path = Path::loopback(Version::V6)?;
    let mut pair = Pair::connect(&path)?;
    let port = pair.far.port().to_string();
    let mut tool = launch.args(&["--port", &port, "--interval", "200ms"]).start()?;
    for _ in 0..3 {
        pair.converse(ROUNDS, 100)?;
        // The first of these may have begun before.
        tool.expect_more_reports(2)?;
    }
    let outcome = tool.stop()?;
    let objects = outcome.footers()?;
    let check = || -> Result<()> {
        let (end, intervals) = objects.split_last().context("no object")?;
        ensure!(end["kind"] == "end" && intervals.len() >= 3, "{} intervals", intervals.len());
        let mut shown = 0;
        for interval in intervals {
            ensure!(interval["kind"] == "interval", "not an interval's: {interval}");
            expect_sums(interval)?;
            shown += count(interval, "shown")?;
        }
        expect_sums(end)?;
        let all = u64::from(ROUNDS) * 3 * 4;
        let whole = count(end, "shown")?;
        ensure!(shown == whole, "{shown} in the intervals and {whole} at the end");
        outcome.expect_all("packets shown", shown, all, [])
    };
    check().map_err(|error| outcome.fault(format_args!("{error:#}"), []))
}

/// The kernel side's counts are those of the page.
fn of_hist(backend: Backend) -> Result<()> {
    const ROUNDS: u32 = 100;
    let path = Path::loopback(Version::V4)?;
    let mut pair = Pair::connect(&path)?;
    let sink = Sink::Redirected(Scratch::new("hist"));
    let arguments = ["--port", &pair.far.port().to_string()];
    let tool = Launch::new(backend).view("hist").args(&arguments).sink(sink).start()?;
    pair.converse(ROUNDS, 100)?;
    let outcome = tool.stop()?;
    let footer = outcome.footer()?;
    let check = || -> Result<()> {
        ensure!(footer["view"] == "hist", "not hist's: {footer}");
        expect_sums(&footer)?;
        let page: Value = serde_json::from_str(outcome.text()?.trim()).context("one page")?;
        ensure!(page["packets"] == footer["shown"], "{} on the page: {footer}", page["packets"]);
        let (rows, stages) = (page["histograms"].as_array(), footer["stages"].as_array());
        let (rows, stages) = (rows.context("no rows")?, stages.context("no stages")?);
        ensure!(rows.len() == stages.len() && stages.len() == 8, "{} stages", stages.len());
        for (row, stage) in rows.iter().zip(stages) {
            for field in ["dir", "proto", "stage", "count", "unknown", "p50_ns", "p999_ns", "max_ns"] {
                ensure!(row[field] == stage[field], "{field} of {row} is not that of {stage}");
            }
        }
        Ok(())
    };
    check().map_err(|error| outcome.fault(format_args!("{error:#}"), []))
}

/// Calls have the same frame, and a row for each function that was called.
fn of_calls(backend: Backend) -> Result<()> {
    let mut peer = Peer::spawn(b"nl-calls")?;
    // Few functions: Linux 6.12 with PREEMPT_RT takes more than a second to let go of each.
    let arguments = ["--pid", &peer.pid().to_string(), "__sys_bind", "__sys_socket"];
    let tool = Launch::new(backend).view("calls").args(&arguments).start()?;
    peer.ask("udp bind 127.0.0.1")?;
    let outcome = tool.stop()?;
    let footer = outcome.footer()?;
    let check = || -> Result<()> {
        ensure!(footer["view"] == "calls" && footer["kind"] == "end", "not the end of calls: {footer}");
        let functions = footer["functions"].as_array().context("no functions")?;
        let calls = functions.iter().map(|function| count(function, "count")).sum::<Result<u64>>()?;
        ensure!(calls > 0 && calls == count(&footer, "calls")?, "{calls} calls of functions");
        ensure!(count(&footer, "lost")? == 0, "calls are lost");
        Ok(())
    };
    check().map_err(|error| outcome.fault(format_args!("{error:#}"), []))
}
