//! What connections show beside the times of their packets, against what the kernel and the peers say themselves.

use std::{fs, time::Duration};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::Case;
use crate::{
    net::{Path, Version},
    oracle::Conversation,
    peers::{CLIENT, Pair, SERVER},
    process::{PATIENCE, until},
    tool::{self, Backend, Launch, Outcome, Scratch},
};

pub(crate) const CASES: &[Case] = &[
    ("connections_have_the_kernels_round_trip_time", round_trips),
    ("connections_have_the_kernels_retransmissions", retransmissions),
    ("connections_have_the_peers_service_and_response_times", exchanges),
    ("connections_have_the_way_between_both_ends", transits),
];

/// A port that the kernel gives to no client: it tells who serves.
const PORT: u16 = 7100;

/// Shorter than Linux's own 200 ms, and longer than an ACK is delayed.
const RTO_MS: u32 = 60;

fn connect(path: &Path) -> Result<Pair> {
    let mut pair = Pair::prepare(path, CLIENT, SERVER)?;
    pair.server.ask(&format!("listen {} {PORT}", pair.far.ip()))?;
    pair.far.set_port(PORT);
    pair.open(path)?;
    Ok(pair)
}

fn launch(backend: Backend) -> Launch {
    Launch::new(backend).args(&["--port", &PORT.to_string()])
}

/// The time that a line has is what TCP says just before it is sent.
fn round_trips(backend: Backend) -> Result<()> {
    const DELAY: Duration = Duration::from_millis(50);
    let path = Path::veth(Version::V4)?;
    path.delay(DELAY)?;
    let mut pair = connect(&path)?;
    let tool = launch(backend).start()?;
    let mut said = Vec::new();
    for _ in 0..5 {
        pair.converse(2, 100)?;
        // Nothing is on its way that could change it.
        pair.client.ask("acked")?;
        said.push(pair.client.ask("round-trip")? * 1_000);
        pair.client.ask("write 300")?;
        pair.server.ask("read 300 300 0")?;
        pair.client.ask("acked")?;
    }
    let outcome = tool.stop()?;
    let conversation = Conversation::check(&outcome, &outcome.lines()?, &pair)?;
    let lines: Vec<_> = conversation.requests_out.iter().filter(|line| line.len == 300).collect();
    let fault = |what: String| outcome.fault(what, lines.iter().copied());
    let missing = outcome.allowance().most(conversation.requests_out.len().try_into()?);
    let short = (said.len() - lines.len().min(said.len())) as u64;
    ensure!(short <= missing, fault(format!("{short} of {} have no line", said.len())));
    for line in &lines {
        let rtt = line.rtt.with_context(|| format!("no round-trip time: {}", line.raw))?;
        // TCP says whole microseconds.
        let is_said = said.iter().any(|said| rtt.abs_diff(*said) <= 1_000);
        ensure!(is_said, fault(format!("{rtt} ns, but TCP says {said:?}")));
        ensure!(rtt >= u64::try_from(DELAY.as_nanos())?, fault(format!("{rtt} ns is less than the delay")));
    }
    Ok(())
}

fn count(object: &Value, field: &str) -> Result<u64> {
    object[field].as_u64().with_context(|| format!("{field} is no count in {object}"))
}

/// What `report` says of each end of each connection.
fn report(outcome: &Outcome) -> Result<Vec<Value>> {
    let log = Scratch::new("log");
    fs::write(log.path(), outcome.text()?)?;
    let path = log.path().to_str().context("a path of ours")?;
    let said = tool::run(None, &["report", "--format", "json", path])?;
    let report: Value = serde_json::from_str(&said.stdout).with_context(|| said.stderr)?;
    report["connections"]["top"].as_array().cloned().context("no connections")
}

/// Some are lost, and some are late, so that TCP sends again what had come.
fn retransmissions(backend: Backend) -> Result<()> {
    const LATE: Duration = Duration::from_millis(300);
    let path = Path::veth(Version::V4)?.with_shortest_timeout(RTO_MS)?;
    let mut pair = connect(&path)?;
    let tool = launch(backend).start()?;
    pair.converse(5, 100)?;
    path.lose()?;
    pair.client.ask("write 200")?;
    until(PATIENCE, || Ok(pair.client.ask("retransmissions")? >= 2))?;
    path.deliver()?;
    pair.server.ask("read 200 200 0")?;
    pair.client.ask("acked")?;
    path.delay_answers(LATE)?;
    pair.client.ask("write 200")?;
    pair.server.ask("read 200 200 0")?;
    until(PATIENCE, || Ok(pair.client.ask("needless")? >= 1))?;
    pair.client.ask("acked")?;
    let before = pair.client.ask("needless")?;
    // The line of this tells how many there were before; those of its own retransmissions may tell of more.
    pair.client.ask("write 100")?;
    pair.server.ask("read 100 100 0")?;
    pair.client.ask("acked")?;
    let needless = before..=pair.client.ask("needless")?;
    let again = pair.client.ask("retransmissions")? + pair.server.ask("retransmissions")?;
    let outcome = tool.stop()?;
    let rows = report(&outcome)?;
    let check = || -> Result<()> {
        let most = outcome.allowance().most(outcome.lines()?.len().try_into()?);
        let sum = |field| rows.iter().map(|row| count(&row["tcp"], field)).sum::<Result<u64>>();
        let shown = sum("segments_sent_again")?;
        ensure!(shown.abs_diff(again) <= most, "{shown} sent again, but TCP says {again}");
        let shown = sum("sent_needlessly")?;
        let is_said = needless.start().saturating_sub(most) <= shown && shown <= *needless.end();
        ensure!(is_said, "{shown} needlessly, but TCP says {needless:?}");
        Ok(())
    };
    check().map_err(|error| outcome.fault(format_args!("{error:#}: {rows:?}"), []))
}

/// Between the ends of the peers' calls, and their beginnings.
fn exchanges(backend: Backend) -> Result<()> {
    const ROUNDS: u32 = 8;
    const PAUSE_MS: u64 = 20;
    let path = Path::private_loopback(Version::V4)?;
    let mut pair = connect(&path)?;
    let tool = launch(backend).start()?;
    pair.server.tell(&format!("serve-timed {ROUNDS} 200 {PAUSE_MS}"))?;
    pair.client.ask(&format!("request-timed {ROUNDS} 200"))?;
    pair.server.answer()?;
    let outcome = tool.stop()?;
    let rows = report(&outcome)?;
    let mut bound = |peer: &str, name: &str| {
        let peer = if peer == "client" { &mut pair.client } else { &mut pair.server };
        peer.ask(&format!("bound {name}"))
    };
    let mut expected = Vec::new();
    let ends = [("service", "server", pair.far), ("response", "client", pair.near)];
    for (field, outer, local) in ends {
        let local = local.to_string();
        let row = rows.iter().find(|row| row["local"] == local.as_str()).context("no row")?;
        for (end, which) in [("min_ns", "shortest"), ("max_ns", "longest")] {
            let least = bound("server", &format!("{which}-inner"))?;
            expected.push((field, end, row, least..=bound(outer, &format!("{which}-outer"))?));
        }
    }
    let check = || -> Result<()> {
        for (field, end, row, expected) in expected {
            let object = &row["tcp"][field];
            ensure!(count(object, "count")? == u64::from(ROUNDS), "not all exchanges of {field}");
            let shown = count(object, end)?;
            ensure!(expected.contains(&shown), "{field}: {end} is {shown}, but the peers say {expected:?}");
        }
        Ok(())
    };
    check().map_err(|error| outcome.fault(format_args!("{error:#}: {rows:?}"), []))
}

/// Requests are held up behind the sender's queue, answers are not.
fn transits(backend: Backend) -> Result<()> {
    const ROUNDS: u32 = 10;
    const DELAY: Duration = Duration::from_millis(20);
    /// What a busy machine adds in each of `ROUNDS`.
    const NOISE: Duration = Duration::from_millis(15);
    let path = Path::veth(Version::V4)?;
    path.delay(DELAY)?;
    let mut pair = connect(&path)?;
    let tool = launch(backend).start()?;
    pair.converse(ROUNDS, 200)?;
    let outcome = tool.stop()?;
    let rows = report(&outcome)?;
    let [delay, noise] = [DELAY, NOISE].map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    let check = || -> Result<()> {
        for (local, expected) in [(pair.far, delay..=delay + noise), (pair.near, 1..=noise)] {
            let local = local.to_string();
            let row = rows.iter().find(|row| row["local"] == local.as_str()).context("no row")?;
            let transit = &row["tcp"]["transit"];
            // Until the first has been read, it is unknown that its receiver is here.
            let known = count(transit, "count")?;
            ensure!(known >= u64::from(ROUNDS) - 1, "{known} of {ROUNDS} packets of {local}");
            let shortest = count(transit, "min_ns")?;
            ensure!(expected.contains(&shortest), "to {local}: {shortest} is not in {expected:?}");
        }
        Ok(())
    };
    check().map_err(|error| outcome.fault(format_args!("{error:#}: {rows:?}"), []))
}
