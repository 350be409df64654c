//! Readers that make their packets wait: where the time goes, and what keeps its line meanwhile.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::{super::harness::coalesced, Check, Scenario, Theme};
use crate::{
    lines::{Dir, Line, Proto, stages},
    net::{
        Path,
        Version::{self, V4, V6},
    },
    oracle::{self, expect_bytes, expect_sum, median},
    peers::{CLIENT, Pair, Peer, SERVER},
};

pub(crate) const THEME: Theme = Theme {
    name: "readers",
    arguments: &[],
    scenarios: &[
        Scenario { name: "slow_reader", play: slow_reader },
        Scenario { name: "held_up_reader", play: held_up_reader },
        Scenario { name: "coalesced_loopback_v4", play: || coalesced_segments(Path::private_loopback(V4)?) },
        Scenario { name: "coalesced_loopback_v6", play: || coalesced_segments(Path::private_loopback(V6)?) },
        Scenario { name: "coalesced_veth_v4", play: || coalesced_segments(Path::veth(V4)?) },
        Scenario { name: "coalesced_veth_v6", play: || coalesced_segments(Path::veth(V6)?) },
        Scenario { name: "small_window_v4", play: || small_window(V4) },
        Scenario { name: "small_window_v6", play: || small_window(V6) },
    ],
};

/// The reader sleeps 50 ms; the clocks of the sleep and of the stamps may differ a little.
const SLEPT_NS: u64 = 49_900_000;

/// The wait of a sleeping reader is tcp-app's and no other stage's.
pub(super) fn slow_reader() -> Result<Check> {
    let path = Path::loopback(V4)?;
    let mut pair = Pair::connect(&path)?;
    let rounds = 40;
    // The reader starts to sleep once it is told to, which must not be before the message is there.
    for _ in 0..rounds {
        pair.client.ask("write 200")?;
        pair.server.ask("read 200 200 50")?;
    }
    Ok(Box::new(move |evidence| {
        let outcome = evidence.outcome;
        let conversation = oracle::Conversation::check(outcome, &evidence.lines, &pair)?;
        let lines = &conversation.requests_in;
        oracle::expect_stream(outcome, "requests in", lines, rounds, 200)?;
        let early = lines.iter().filter(|line| line.stages[2].is_some_and(|wait| wait < SLEPT_NS));
        ensure!(early.clone().next().is_none(), outcome.fault("tcp-app does not show the sleep", early));
        let wait = median(lines, 2);
        for stage in [0, 1] {
            let other = median(lines, stage);
            let name = stages(Dir::In, Proto::Tcp)[stage];
            ensure!(
                other < wait / 10,
                outcome.fault(format_args!("median {name} of {other} has the wait"), lines)
            );
        }
        Ok(())
    }))
}

/// A reader that waits for its CPU takes its bytes late, which is tcp-app's and no other stage's.
pub(super) fn held_up_reader() -> Result<Check> {
    const ROUNDS: usize = 5;
    /// How long the other one keeps the CPU, once the bytes are there.
    const AFTER: Duration = Duration::from_millis(50);

    let path = Path::loopback(V4)?;
    let mut pair = Pair::connect(&path)?;
    let mut hog = Peer::spawn(b"nl-hog")?;
    pair.client.ask("pin 0")?;
    pair.server.ask("pin 1")?;
    for _ in 0..ROUNDS {
        let write = || pair.client.ask("write 200").map(drop);
        pair.server.held_up("read 200 200 0", Duration::from_millis(100), (&mut hog, AFTER), write)?;
    }
    Ok(Box::new(move |evidence| {
        let outcome = evidence.outcome;
        let conversation = oracle::Conversation::check(outcome, &evidence.lines, &pair)?;
        let lines = &conversation.requests_in;
        oracle::expect_stream(outcome, "requests in", lines, ROUNDS, 200)?;
        let held_up = u64::try_from(AFTER.as_nanos())?;
        for (stage, is_its) in [(0, false), (1, false), (2, true)] {
            let typical = median(lines, stage);
            ensure!(
                (typical >= held_up) == is_its,
                outcome.fault(format_args!("median of stage {stage} is {typical} ns"), lines)
            );
        }
        // A task of the kernel's may come between now and then.
        let is_hogs = |line: &&Line| line.is_fine && line.cpu_held_by == Some(hog.pid());
        let by_hog = lines.iter().filter(is_hogs).count();
        ensure!(
            !lines[0].is_fine || by_hog * 2 > ROUNDS,
            outcome.fault(format_args!("{by_hog} waited for PID {}", hog.pid()), lines)
        );
        Ok(())
    }))
}

/// Writes of less than a segment each.
const WRITES: u32 = 300;

/// A segment that is appended to another one's buffer keeps its line.
fn coalesced_segments(path: Path) -> Result<Check> {
    let mut pair = Pair::connect(&path)?;
    let written = pair.client.ask(&format!("write-small {WRITES}"))?;
    let segments = pair.client.ask("data-segments-out")?;
    ensure!(path.far(coalesced)? > 0, "nothing was coalesced, so this shows nothing");
    pair.server.ask(&format!("read {written} 65536 0"))?;
    Ok(Box::new(move |evidence| {
        let outcome = evidence.outcome;
        let conversation = oracle::Conversation::check(outcome, &evidence.lines, &pair)?;
        let (sent, taken) = (&conversation.requests_out, &conversation.requests_in);
        let again = conversation.retransmissions.iter().filter(|line| line.dir == Dir::Out);
        let unread = segments - oracle::segments(again);
        expect_sum(outcome, "segments out", sent, |line| line.segs, unread)?;
        expect_sum(outcome, "packets in", taken, |_| 1, unread)?;
        for (what, lines) in [("requests out", sent), ("requests in", taken)] {
            expect_bytes(outcome, what, lines, written)?;
        }
        Ok(())
    }))
}

/// What TCP sends later, when the window opens or a timer fires, is still its writer's.
fn small_window(version: Version) -> Result<Check> {
    const BYTES: u64 = 256 * 1024;
    const PAUSE: Duration = Duration::from_millis(20);

    let path = Path::loopback(version)?;
    let mut pair = Pair::prepare(&path, CLIENT, SERVER)?;
    pair.server.ask("receive-buffer 4096")?;
    pair.open(&path)?;
    pair.client.ask("send-buffer 1048576")?;
    // All is handed over before the first byte is read: hardly anything leaves within the call.
    pair.client.ask(&format!("write {BYTES}"))?;
    pair.server.ask(&format!("read {BYTES} 4096 {}", PAUSE.as_millis()))?;
    Ok(Box::new(move |evidence| {
        let outcome = evidence.outcome;
        let conversation = oracle::Conversation::check(outcome, &evidence.lines, &pair)?;
        let lines = &conversation.requests_out;
        ensure!(
            lines.len() > 10,
            outcome.fault("the window did not limit anything, so this shows nothing", lines)
        );
        expect_bytes(outcome, "requests out", lines, BYTES)?;
        let pause = u64::try_from(PAUSE.as_nanos())?;
        let waited = lines.iter().any(|line| line.stages[0].is_some_and(|wait| wait >= pause));
        ensure!(waited, outcome.fault("app-tcp does not show the wait for the window", lines));
        Ok(())
    }))
}
