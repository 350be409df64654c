//! What splits the time in a socket, with `--stages fine`: traffic of other themes, whose lines show here in which part a pause is.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context as _, Result, ensure};

use super::{Check, Evidence, Scenario, Theme, io, readers, udp};
use crate::{
    lines::{CPU, Dir, GAP, Line, WAIT},
    net::{Path, Version, counter},
    oracle::{self, expect_bytes},
    peers::Pair,
};

pub(crate) const THEME: Theme = Theme {
    name: "fine",
    arguments: &["--stages", "fine"],
    scenarios: &[
        Scenario { name: "reader_sleeps", play: || pause(readers::slow_reader()?, WAIT, 49) },
        Scenario { name: "reader_needs_a_cpu", play: || pause(readers::held_up_reader()?, CPU, 49) },
        Scenario { name: "reader_sleeps_then_reads", play: || pause(io::taken("read")?, WAIT, 99) },
        Scenario { name: "reader_sleeps_then_splices", play: || pause(io::taken("splice")?, WAIT, 99) },
        Scenario { name: "reader_sleeps_then_maps", play: || pause(io::taken("zerocopy")?, WAIT, 99) },
        Scenario { name: "reader_sleeps_then_submits", play: || pause(io::taken("ring")?, WAIT, 99) },
        Scenario { name: "reader_waits_for_all", play: || known(io::taken_while_waiting()?) },
        Scenario { name: "reader_of_datagrams_sleeps", play: || pause(udp::slow_reader()?, WAIT, 99) },
        Scenario { name: "reader_of_datagrams_needs_a_cpu", play: || pause(udp::held_up_reader()?, CPU, 49) },
        Scenario { name: "bytes_are_missing", play: || known(missing()?) },
    ],
};

/// The mapping of monotonic stamps to wall-clock time may shift a little between two lines.
const CLOCK_ERROR_NS: u64 = 200_000;

/// Received packets of which something must be said.
fn received<'a>(evidence: &'a Evidence<'_>) -> Vec<&'a Line> {
    evidence.lines.iter().filter(|line| line.dir == Dir::In && line.stages[2].is_some()).collect()
}

/// The parts of all packets are known, but for calls that the kernel skipped, and for bytes taken together with a segment that came twice:
/// it is unknown when that one came, and so how long those behind it were held up. (That they add up is checked wherever a line is read.)
fn expect_known(evidence: &Evidence<'_>) -> Result<()> {
    let lines = received(evidence);
    let came_twice: BTreeSet<_> =
        evidence.lines.iter().filter(|line| line.is("ambiguous")).map(|line| line.ts).collect();
    let is_unknown = |line: &&Line| line.fine.is_none() && !came_twice.contains(&line.ts);
    let unknown: Vec<_> = lines.iter().copied().filter(is_unknown).collect();
    let most = evidence.outcome.allowance().most(lines.len().try_into()?);
    ensure!(!lines.is_empty(), "nothing was received");
    ensure!(
        u64::try_from(unknown.len())? <= most,
        evidence.outcome.fault(format_args!("{} of {} unknown", unknown.len(), lines.len()), unknown)
    );
    Ok(())
}

/// Segments that come late, and a reader who waits for them: those behind them can't be read.
fn missing() -> Result<Check> {
    /// Of N packets each: more would wait for the ACKs of those that are late, and overtake none.
    const BURSTS: u32 = 20;
    const BURST: u32 = 8;
    const COUNT: u32 = BURSTS * BURST;
    const LEN: u32 = 100;
    let path = Path::veth(Version::V4)?.without_guesses()?;
    let mut pair = Pair::connect(&path)?;
    path.reorder(Duration::from_millis(30))?;
    pair.server.tell(&format!("read {} 4096 0", COUNT * LEN))?;
    for _ in 0..BURSTS {
        for _ in 0..BURST {
            pair.client.ask(&format!("write {LEN}"))?;
        }
        pair.client.ask("acked")?;
    }
    pair.server.answer()?;
    let queued = path.far(|| counter("netstat", "TcpExt", "TCPOFOQueue"))?;
    ensure!(queued > 0, "nothing came out of order, so this shows nothing");
    Ok(Box::new(move |evidence| {
        let conversation = oracle::Conversation::check(evidence.outcome, &evidence.lines, &pair)?;
        let requests = &conversation.requests_in;
        expect_bytes(evidence.outcome, "requests in", requests, (COUNT * LEN).into())?;
        // When TCP got each is known by its line: it could be read when all before it were there too.
        let mut complete = i64::MIN;
        let mut late = 0;
        for line in requests {
            let (Some(parts), Some(waited)) = (line.fine, line.stages[2]) else { continue };
            let came = line.ts.timestamp_nanos_opt().context("ts")? - i64::try_from(waited)?;
            complete = complete.max(came);
            let gap = u64::try_from(complete - came)?;
            ensure!(
                parts[GAP].abs_diff(gap) <= CLOCK_ERROR_NS,
                evidence.outcome.fault(format_args!("a gap of {gap} ns before it"), [line])
            );
            late += u32::from(gap > 10 * CLOCK_ERROR_NS);
        }
        ensure!(
            late > 0,
            evidence.outcome.fault("no byte was missing for long, so this shows nothing", requests)
        );
        Ok(())
    }))
}

/// What `check` checks, and that the parts are known.
fn known(check: Check) -> Result<Check> {
    Ok(Box::new(move |evidence| {
        check(evidence)?;
        expect_known(evidence)
    }))
}

/// What [`known`] checks, and that each packet that waited for `ms` in its socket did so in this part, and typically in no other. A busy
/// machine has pauses of its own, which may be as long, of any part.
fn pause(check: Check, part: usize, ms: u64) -> Result<Check> {
    let least = ms * 1_000_000;
    Ok(Box::new(move |evidence| {
        check(evidence)?;
        expect_known(evidence)?;
        let lines = received(evidence).into_iter().filter(|line| line.stages[2] >= Some(least));
        let paused: Vec<_> = lines.filter_map(|line| Some((line, line.fine?))).collect();
        for (line, parts) in &paused {
            ensure!(
                parts[part] >= least || parts[part] * 3 >= parts.iter().sum::<u64>() * 2,
                evidence.outcome.fault(format_args!("part {part} of {parts:?} is not the pause"), [*line])
            );
        }
        ensure!(!paused.is_empty(), "no packet waited for {ms} ms");
        let typical = |part: usize| {
            let mut times: Vec<_> = paused.iter().map(|(_, parts)| parts[part]).collect();
            times.sort_unstable();
            times[times.len() / 2]
        };
        let lines = paused.iter().map(|(line, _)| *line);
        let others = (0..paused[0].1.len()).filter(|other| *other != part);
        for other in others {
            let (time, its) = (typical(other), typical(part));
            ensure!(
                time < its / 2,
                evidence.outcome.fault(
                    format_args!("part {other} typically has {time} ns, this one {its}"),
                    lines.clone()
                )
            );
        }
        Ok(())
    }))
}
