//! A delay in the sender's queue discipline: after `drv` on the way out, before `drv` on the way in.

use std::{collections::HashMap, time::Duration};

use anyhow::{Context as _, Result, ensure};

use super::{Check, Scenario, Theme};
use crate::{
    lines::Line,
    net::{Path, Version},
    oracle::{self, expect_bytes, median},
    peers::Pair,
    tool::Outcome,
};

pub(crate) const THEME: Theme = Theme {
    name: "netem",
    arguments: &[],
    scenarios: &[
        Scenario { name: "delay_v4", play: || delay(Version::V4) },
        Scenario { name: "delay_v6", play: || delay(Version::V6) },
        Scenario { name: "bulk_v4", play: || bulk(Version::V4) },
        Scenario { name: "bulk_v6", play: || bulk(Version::V6) },
    ],
};

/// Longer than a busy machine usually takes the emulated CPU away.
const DELAY: Duration = Duration::from_millis(40);
/// The mapping of monotonic stamps to wall-clock time may shift a little between two lines.
const CLOCK_ERROR: Duration = Duration::from_micros(100);

/// The delay shows between the line of the way out and the line of the way in, and in neither.
fn delay(version: Version) -> Result<Check> {
    let path = Path::veth(version)?;
    path.delay(DELAY)?;
    let mut pair = Pair::connect(&path)?;
    let rounds = 30;
    pair.converse(rounds, 200)?;
    Ok(Box::new(move |evidence| {
        let outcome = evidence.outcome;
        let conversation = oracle::Conversation::check(outcome, &evidence.lines, &pair)?;
        conversation.expect_rounds(outcome, rounds as usize, 200)?;
        for lines in [&conversation.requests_out, &conversation.replies_out] {
            for stage in 0..3 {
                expect_undelayed(outcome, lines, stage)?;
            }
        }
        // The client's read waits for the reply, the reply does not wait for the client.
        for lines in [&conversation.requests_in, &conversation.replies_in] {
            for stage in 0..3 {
                expect_undelayed(outcome, lines, stage)?;
            }
        }
        let sent: HashMap<_, _> = conversation.requests_out.iter().map(|line| (line.seq, line)).collect();
        for taken in &conversation.requests_in {
            let sent = *sent.get(&taken.seq).with_context(|| format!("no line out for {}", taken.raw))?;
            let born =
                taken.ts.timestamp_nanos_opt().context("ts")? - i64::try_from(taken.total.context("total")?)?;
            let between = born - sent.ts.timestamp_nanos_opt().context("ts")?;
            let least = i64::try_from((DELAY - CLOCK_ERROR).as_nanos())?;
            ensure!(
                between >= least,
                outcome.fault(format_args!("only {between} ns between out and in"), [sent, taken])
            );
        }
        Ok(())
    }))
}

fn expect_undelayed(outcome: &Outcome, lines: &[Line], stage: usize) -> Result<()> {
    let delay = u64::try_from(DELAY.as_nanos())?;
    let typical = median(lines, stage);
    ensure!(
        typical < delay / 4,
        outcome.fault(format_args!("median of stage {stage} is {typical} ns"), lines)
    );
    // A single packet may be held up anywhere, with the whole emulated machine.
    let delayed = lines.iter().filter(|line| line.stages[stage].is_some_and(|value| value >= delay));
    ensure!(
        delayed.clone().count() <= lines.len() / 10,
        outcome.fault(format_args!("the delay shows in stage {stage}"), delayed)
    );
    Ok(())
}

/// Segments that an arriving acknowledgement lets go are their writer's.
pub(super) fn bulk(version: Version) -> Result<Check> {
    const BYTES: u64 = 2 * 1024 * 1024;

    let path = Path::veth(version)?;
    path.delay(DELAY)?;
    let mut pair = Pair::connect(&path)?;
    pair.client.ask("send-buffer 4194304")?;
    pair.server.tell(&format!("read {BYTES} 65536 0"))?;
    pair.client.ask(&format!("write {BYTES}"))?;
    pair.server.answer()?;
    Ok(Box::new(move |evidence| {
        let outcome = evidence.outcome;
        let conversation = oracle::Conversation::check(outcome, &evidence.lines, &pair)?;
        for (what, lines) in
            [("requests out", &conversation.requests_out), ("requests in", &conversation.requests_in)]
        {
            expect_bytes(outcome, what, lines, BYTES)?;
        }
        let lines = &conversation.requests_out;
        let delay = u64::try_from(DELAY.as_nanos())?;
        let waited = lines.iter().any(|line| line.stages[0].is_some_and(|wait| wait >= delay));
        ensure!(waited, outcome.fault("app-tcp does not show the wait for an acknowledgement", lines));
        Ok(())
    }))
}
