//! Full speed: everything is shown or counted as lost.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;

use super::Case;
use crate::{
    lines::{Dir, Line},
    net::{Path, Version, counter},
    oracle::by_bytes,
    peers::Pair,
    tool::{Backend, Launch},
};

pub(crate) const CASES: &[Case] = &[("full_speed", full_speed), ("lossy", lossy), ("overload", overload)];

fn full_speed(backend: Backend) -> Result<()> {
    const ROUNDS: u32 = 5_000;
    /// A request and a reply, each out and in: three times as many as the buffer has room for.
    const PACKETS: u64 = ROUNDS as u64 * 4;

    let tool = Launch::new(backend).args(&["--buffer", "1M"]).start()?;
    let mut pair = Pair::connect(&Path::loopback(Version::V4)?)?;
    pair.set_patience(Duration::from_secs(900));
    pair.converse(ROUNDS, 200)?;
    let outcome = tool.stop()?;
    let lines = outcome.lines()?;
    let shown = lines.iter().filter(|line| pair.owns(line) && line.len > 0 && !line.is("retrans")).count();
    let (shown, lost) = (u64::try_from(shown)?, outcome.lost()?);
    println!("{backend}::full_speed: {shown} of {PACKETS} packets shown, {lost} counted as lost");
    outcome.expect_all("packets shown or lost", shown + lost, PACKETS, &[])
}

/// Bytes through a link that loses some, and which of them have a line: docs/accuracy.md has what came of it on each kernel.
fn lossy(backend: Backend) -> Result<()> {
    const LEN: u64 = 4_000_000;

    let tool = Launch::new(backend).start()?;
    let path = Path::veth(Version::V4)?.with_shortest_timeout(60)?;
    path.lose_some(3)?;
    let mut pair = Pair::connect(&path)?;
    pair.set_patience(Duration::from_secs(300));
    pair.server.tell(&format!("read {LEN} 65536 0"))?;
    pair.client.ask(&format!("write {LEN}"))?;
    pair.server.answer()?;
    let outcome = tool.stop()?;
    let lines: Vec<_> = outcome
        .lines()?
        .into_iter()
        .filter(|line| line.dir == Dir::In && pair.is_request(line) && line.len > 0)
        .collect();
    for pair in by_bytes(&lines).windows(2) {
        let is_behind = pair[1].seq.wrapping_sub(pair[0].seq) >= pair[0].len;
        ensure!(is_behind, outcome.fault("the same bytes in two lines", pair.iter().copied()));
    }
    let shown: u64 = lines.iter().map(|line| u64::from(line.len)).sum();
    let (unseen, skipped) = (outcome.figure("losses.packet_unseen")?, outcome.skipped_calls());
    let missing = LEN.checked_sub(shown).context("more than was sent")?;
    println!(
        "{backend}::lossy: {missing} of {LEN} bytes have no line; packets not seen {unseen} times, calls skipped: {skipped:?}"
    );
    ensure!((missing == 0) == (unseen == 0), outcome.fault("what is missing is not counted", []));
    // Of a segment that was not seen, up to 64 KiB of what TCP had joined with it are missing.
    ensure!(missing <= LEN / 10, outcome.fault(format_args!("{missing} bytes have no line"), []));
    Ok(())
}

/// A reader that is held up gets a sample that reaches over all of the time, and everything again as soon as it keeps up.
fn overload(backend: Backend) -> Result<()> {
    const ROUNDS: u32 = 2000;
    const PACKETS: u64 = ROUNDS as u64 * 4;
    /// Records that the buffer has room for. Until one packet in 16 has looked it fills faster, of which a smaller one
    /// would be full.
    const ROOM: usize = (128 << 10) / 144;

    let tool = Launch::new(backend).args(&["--buffer", "128K"]).start()?;
    let path = Path::loopback(Version::V4)?;
    // What the socket had no room for comes again, and is one more packet that goes out.
    let resent = || counter("snmp", "Tcp", "RetransSegs");
    let before = resent()?;
    let mut held_up = Pair::connect(&path)?;
    tool.signal(Signal::SIGSTOP)?;
    held_up.converse(ROUNDS, 200)?;
    tool.signal(Signal::SIGCONT)?;
    // What waited is taken then. All that follows has room, whenever the tool comes for it.
    tool.expect_written(ROOM * 3 / 4)?;
    let mut after = Pair::connect(&path)?;
    after.converse(80, 200)?;
    let outcome = tool.stop()?;

    let lines = outcome.lines()?;
    let of = |pair: &Pair| lines.iter().filter(|line| pair.owns(line) && line.len > 0).collect::<Vec<_>>();
    let (sample, all) = (of(&held_up), of(&after));
    let skipped = outcome.figure("losses.skipped_at_random")?;
    println!("{backend}::overload: {} of {PACKETS} in the sample", sample.len());
    let (found, again) = (sample.len() as u64 + skipped, resent()? - before);
    ensure!(
        found <= PACKETS + again,
        outcome.fault(format_args!("{found} packets shown or skipped, {again} sent again"), [])
    );
    outcome.expect_all("packets shown or skipped", found.min(PACKETS), PACKETS, [])?;
    ensure!(outcome.lost()? == skipped, outcome.fault("something else was lost", []));
    ensure!(sample.len() > ROOM * 3 / 4 && sample.len() < ROOM, outcome.fault("the buffer was not used", []));
    // Without a sample all of them would be the first ones, an eighth. After each 14 the share is halved, so that about
    // 28 are of the last three quarters, and 14 of these of the last half.
    let start = |line: &Line| sample.iter().find(|first| first.sport == line.sport).map(|first| first.seq);
    let offset = |line: &Line| start(line).map(|start| line.seq.wrapping_sub(start));
    let after = |bytes: u32| sample.iter().filter(|line| offset(line) > Some(bytes)).count();
    let (late, latest) = (after(ROUNDS * 200 / 4), after(ROUNDS * 200 / 2));
    ensure!(
        late >= 3 && latest >= 1,
        outcome.fault(format_args!("{late} lines of the last three quarters, {latest} of the last half"), [])
    );
    outcome.expect_all("lines once the reader keeps up", all.len() as u64, 80 * 4, [])
}
