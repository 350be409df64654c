//! Why TCP held bytes back, with `--stages fine`: each reason is made, and told of what waited for it, and of nothing else.

use std::{thread::sleep, time::Duration};

use anyhow::{Result, ensure};

use super::{Check, Evidence, Scenario, Theme, transmit};
use crate::{
    lines::Line,
    net::{Path, Version},
    oracle::Conversation,
    peers::Pair,
};

pub(crate) const THEME: Theme = Theme {
    name: "held",
    arguments: &["--stages", "fine"],
    scenarios: &[
        Scenario { name: "by_nothing", play: by_nothing },
        Scenario { name: "by_nagle", play: by_nagle },
        Scenario { name: "by_cork", play: by_cork },
        Scenario { name: "by_the_congestion_window", play: by_congestion },
        Scenario { name: "by_the_peers_window", play: by_the_peer },
        Scenario { name: "by_pacing", play: by_pacing },
        Scenario { name: "by_the_devices_queue", play: by_the_queue },
        Scenario { name: "by_the_send_buffer", play: by_the_buffer },
    ],
};

/// What an ACK takes. More than a busy machine usually takes the emulated CPU away for.
const DELAY: Duration = Duration::from_millis(100);
/// What has waited as long as this has waited for that.
const LONG_NS: u64 = 50_000_000;
const ROUNDS: usize = 10;
const LEN: u32 = 200;

/// The last packets are acknowledged a little later (`TCP_DELACK_MAX` is 200 ms), and have their lines then.
fn settle() {
    sleep(Duration::from_millis(300));
}

/// What the client sent for the first time.
fn sent(evidence: &Evidence<'_>, pair: &Pair) -> Result<Vec<Line>> {
    let conversation = Conversation::check(evidence.outcome, &evidence.lines, pair)?;
    Ok(conversation.requests_out.into_iter().filter(|line| !line.is("retrans")).collect())
}

/// That N lines at least waited long for this reason, and no line for another one. Of some of them it may be unknown; by kprobe,
/// whose programs the kernel skips at times and which take long, of most.
fn expect(evidence: &Evidence<'_>, lines: &[Line], reason: &str, least: usize) -> Result<()> {
    let is_by_kprobe = evidence.outcome.is_by_kprobe();
    let least = if is_by_kprobe { 1 } else { least };
    let long = lines.iter().filter(|line| line.stages[0].is_some_and(|time| time >= LONG_NS));
    let (its, others): (Vec<_>, Vec<_>) = long.partition(|line| line.held.as_deref() == Some(reason));
    let (unknown, others): (Vec<_>, Vec<_>) = others.into_iter().partition(|line| line.held.is_none());
    ensure!(
        unknown.len() <= its.len() || is_by_kprobe,
        evidence.outcome.fault(format_args!("{} of those that waited don't say why", unknown.len()), unknown)
    );
    // Calls that the kernel skipped leave the reason of the one before them.
    let most = evidence.outcome.allowance().most(lines.len().try_into()?);
    ensure!(
        u64::try_from(others.len())? <= most,
        evidence.outcome.fault(format_args!("{} of those that waited say otherwise", others.len()), others)
    );
    ensure!(
        its.len() >= least,
        evidence.outcome.fault(format_args!("{} waited for {reason}, not {least}", its.len()), lines)
    );
    Ok(())
}

/// Requests and answers, each of which goes at once.
fn by_nothing() -> Result<Check> {
    let mut pair = Pair::connect(&Path::veth(Version::V4)?)?;
    pair.converse(ROUNDS.try_into()?, LEN)?;
    settle();
    Ok(Box::new(move |evidence| {
        let lines = sent(evidence, &pair)?;
        let wrong: Vec<_> = lines.iter().filter(|line| line.held.is_some()).collect();
        ensure!(wrong.is_empty(), evidence.outcome.fault("nothing held these back", wrong));
        Ok(())
    }))
}

/// Of two small writes the second waits for the ACK of the first.
fn by_nagle() -> Result<Check> {
    let path = Path::veth(Version::V4)?;
    let mut pair = Pair::connect(&path)?;
    path.delay_answers(DELAY)?;
    pair.client.ask("delay-small yes")?;
    for _ in 0..ROUNDS {
        pair.client.ask(&format!("write-each 2 {LEN}"))?;
        pair.server.ask(&format!("read {} 65536 0", 2 * LEN))?;
        pair.client.ask("acked")?;
    }
    settle();
    Ok(Box::new(move |evidence| {
        let lines = sent(evidence, &pair)?;
        expect(evidence, &lines, "nagle", ROUNDS - 1)?;
        let first: Vec<_> = lines.iter().step_by(2).filter(|line| line.held.is_some()).collect();
        ensure!(first.is_empty(), evidence.outcome.fault("the first ones had nothing to wait for", first));
        Ok(())
    }))
}

/// A small write waits for the end of TCP_CORK.
fn by_cork() -> Result<Check> {
    let mut pair = Pair::connect(&Path::veth(Version::V6)?.patient()?)?;
    for _ in 0..ROUNDS {
        pair.client.ask("cork yes")?;
        pair.client.ask(&format!("write {LEN}"))?;
        sleep(DELAY);
        pair.client.ask("cork no")?;
        pair.server.ask(&format!("read {LEN} 65536 0"))?;
    }
    settle();
    Ok(Box::new(move |evidence| {
        let lines = sent(evidence, &pair)?;
        expect(evidence, &lines, "cork", ROUNDS - 1)
    }))
}

/// More than may be on its way at first, on a long way.
fn by_congestion() -> Result<Check> {
    const LEN: u64 = 60_000;
    let path = Path::veth(Version::V4)?;
    let mut pair = Pair::connect(&path)?;
    path.delay_answers(DELAY)?;
    pair.client.ask("send-buffer 1048576")?;
    transmit::transfer(&mut pair, LEN)?;
    settle();
    Ok(Box::new(move |evidence| {
        let lines = sent(evidence, &pair)?;
        expect(evidence, &lines, "cwnd", 2)?;
        let first = lines.first().filter(|line| line.held.is_some());
        ensure!(first.is_none(), evidence.outcome.fault("the first one had nothing to wait for", first));
        Ok(())
    }))
}

/// More than the peer takes before it reads.
fn by_the_peer() -> Result<Check> {
    let (_path, pair) = transmit::through_a_closed_window()?;
    settle();
    Ok(Box::new(move |evidence| {
        let lines = sent(evidence, &pair)?;
        expect(evidence, &lines, "rwnd", 5)
    }))
}

/// More than the socket's rate lets go in that time.
fn by_pacing() -> Result<Check> {
    const LEN: u64 = 600_000;
    const RATE: u32 = 400_000;
    let mut pair = Pair::connect(&Path::veth(Version::V4)?.with_growing_window()?)?;
    // Else the first window, of ten segments, would hold back what a busy machine acknowledges late.
    widen(&mut pair)?;
    pair.client.ask(&format!("pacing-rate {RATE}"))?;
    pair.client.ask("send-buffer 1048576")?;
    transmit::transfer(&mut pair, LEN)?;
    settle();
    Ok(Box::new(move |evidence| {
        let lines = behind(sent(evidence, &pair)?);
        expect(evidence, &lines, "pacing", 5)
    }))
}

/// Bytes that make both windows larger than a super-segment.
const WIDE: u64 = 2_000_000;

fn widen(pair: &mut Pair) -> Result<()> {
    transmit::transfer(pair, WIDE)
}

/// Packets sent behind those.
fn behind(lines: Vec<Line>) -> Vec<Line> {
    let mut sum = 0;
    let is_before = |line: &Line| {
        sum += u64::from(line.len);
        sum <= WIDE
    };
    lines.into_iter().skip_while(is_before).collect()
}

/// More than TCP leaves in a device's queue.
fn by_the_queue() -> Result<Check> {
    const LEN: u64 = 600_000;
    // Linux 7.3 may leave a megabyte there.
    const QUEUED: u32 = 65_536;
    const RATE: u32 = 400_000;
    let path = Path::veth(Version::V4)?.with_growing_window()?;
    let mut pair = Pair::connect(&path)?;
    widen(&mut pair)?;
    path.limit_queued(QUEUED)?;
    path.limit(RATE, 10_000)?;
    pair.client.ask("send-buffer 2097152")?;
    transmit::transfer(&mut pair, LEN)?;
    settle();
    Ok(Box::new(move |evidence| {
        let lines = behind(sent(evidence, &pair)?);
        expect(evidence, &lines, "tsq", 5)
    }))
}

/// More than the send buffer holds, on a long way.
fn by_the_buffer() -> Result<Check> {
    // Of which the buffer takes a super-segment at a time.
    const LEN: u64 = 300_000;
    let path = Path::veth(Version::V4)?.with_growing_window()?;
    let mut pair = Pair::connect(&path)?;
    widen(&mut pair)?;
    path.delay_answers(DELAY)?;
    pair.client.ask("send-buffer 4096")?;
    transmit::transfer(&mut pair, LEN)?;
    settle();
    Ok(Box::new(move |evidence| {
        let lines = behind(sent(evidence, &pair)?);
        expect(evidence, &lines, "sndbuf", 3)
    }))
}
