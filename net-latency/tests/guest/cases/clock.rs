//! Lines carry the time of their event, whatever happens to the system's clock, and come in its order.

use std::{thread::sleep, time::Duration};

use anyhow::{Context as _, Result, ensure};
use chrono::{DateTime, TimeDelta, Utc};
use rustix::time::{ClockId, clock_gettime, clock_settime};

use super::Case;
use crate::{
    lines::Line,
    net::{Path, Version},
    oracle::{self, expect_stream},
    peers::Pair,
    tool::{Backend, Launch},
};

pub(crate) const CASES: &[Case] =
    &[("clock_step", step), ("clock_slew", slew), ("order_of_completion", order)];

const ROUNDS: usize = 50;
const LEN: u32 = 200;
const STEP_SECONDS: i64 = 3600;
/// The tool reads the clock whenever it reads its records, every 50 ms; so those are out that came before a step.
const DRAINED: Duration = Duration::from_millis(300);

/// A system clock that is ahead. Put back when dropped.
struct Ahead;

impl Ahead {
    fn step() -> Result<Self> {
        step_clock(STEP_SECONDS)?;
        Ok(Self)
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        if let Err(error) = step_clock(-STEP_SECONDS) {
            eprintln!("the clock stays ahead: {error:#}");
        }
    }
}

fn step_clock(seconds: i64) -> Result<()> {
    let mut time = clock_gettime(ClockId::Realtime);
    time.tv_sec += seconds;
    clock_settime(ClockId::Realtime, time).context("setting the clock")
}

/// Somebody sets the clock ahead and back again: what was finished before has the time that it was then.
fn step(backend: Backend) -> Result<()> {
    let tool = Launch::new(backend).start()?;
    let mut pair = Pair::connect(&Path::loopback(Version::V4)?)?;
    let mut talk = || -> Result<(DateTime<Utc>, DateTime<Utc>)> {
        let start = Utc::now();
        pair.converse(ROUNDS.try_into()?, LEN)?;
        let span = (start, Utc::now());
        sleep(DRAINED);
        Ok(span)
    };
    let before = talk()?;
    let ahead = Ahead::step()?;
    let within = talk()?;
    drop(ahead);
    let after = talk()?;
    let outcome = tool.stop()?;
    ensure!(within.0 - before.1 > TimeDelta::seconds(STEP_SECONDS), "the clock was not set");

    let lines = outcome.lines()?;
    let own: Vec<_> = lines.into_iter().filter(|line| pair.owns(line) && !line.is("control")).collect();
    ensure!(own.len() == 12 * ROUNDS, outcome.fault(format_args!("{} lines", own.len()), &own));
    for (lines, (start, end)) in own.chunks(4 * ROUNDS).zip([before, within, after]) {
        let wrong = lines.iter().filter(|line| line.ts < start - MAPPING || line.ts > end + MAPPING);
        ensure!(
            wrong.clone().next().is_none(),
            outcome.fault(format_args!("not between {start} and {end}"), wrong)
        );
    }
    Ok(())
}

/// What the sample may be wrong by that maps a line's time to the wall clock.
const MAPPING: TimeDelta = TimeDelta::microseconds(100);

/// The clock goes faster for a while, as NTP makes it: so does the clock of the stamps.
fn slew(backend: Backend) -> Result<()> {
    let tool = Launch::new(backend).start()?;
    let mut pair = Pair::connect(&Path::loopback(Version::V4)?)?;
    let mut spans = Vec::new();
    for ticks in [FASTER, USUAL] {
        set_tick(ticks)?;
        let start = Utc::now();
        let talk = pair.converse(ROUNDS.try_into()?, LEN);
        spans.push((start, Utc::now()));
        sleep(DRAINED);
        set_tick(USUAL)?;
        talk?;
    }
    let outcome = tool.stop()?;
    for conversation in oracle::check(&outcome, &[&pair])? {
        for lines in [&conversation.requests_out, &conversation.requests_in] {
            expect_stream(&outcome, "requests", lines, 2 * ROUNDS, LEN)?;
            for (lines, (start, end)) in lines.chunks(ROUNDS).zip(&spans) {
                let wrong =
                    lines.iter().filter(|line| line.ts < *start - MAPPING || line.ts > *end + MAPPING);
                ensure!(
                    wrong.clone().next().is_none(),
                    outcome.fault(format_args!("not between {start} and {end}"), wrong)
                );
            }
        }
    }
    Ok(())
}

/// Microseconds that the clock goes for every 10 ms that pass (`USER_HZ` is 100).
const USUAL: libc::c_long = 10_000;
const FASTER: libc::c_long = 11_000;

fn set_tick(tick: libc::c_long) -> Result<()> {
    // SAFETY: all fields are numbers, for which zero is a value.
    let mut change: libc::timex = unsafe { std::mem::zeroed() };
    change.modes = libc::ADJ_TICK;
    change.tick = tick;
    // SAFETY: the argument is a whole struct.
    let state = unsafe { libc::adjtimex(&raw mut change) };
    ensure!(state >= 0, "adjtimex: {}", std::io::Error::last_os_error());
    Ok(())
}

/// Two busy pairs on two CPUs. A line's place is taken a moment after its last stamp, and in that moment another CPU,
/// or a softirq on this one, can finish a packet; so some few lines may come before their time, by that moment.
fn order(backend: Backend) -> Result<()> {
    const BUSY_ROUNDS: u32 = 1500;
    /// One line in this many.
    const RARE: usize = 200;
    /// Some turns of the emulated CPUs, which take the host's one by one.
    const MOMENT: TimeDelta = TimeDelta::milliseconds(1000);

    let tool = Launch::new(backend).start()?;
    let path = Path::loopback(Version::V4)?;
    let mut pairs = [Pair::connect(&path)?, Pair::connect(&path)?];
    for pair in &mut pairs {
        pair.begin(BUSY_ROUNDS, LEN)?;
    }
    for pair in &pairs {
        pair.finish()?;
    }
    let outcome = tool.stop()?;
    let lines = outcome.lines()?;
    let inversions: Vec<_> = lines.windows(2).filter(|pair| pair[1].ts < pair[0].ts).collect();
    let worst = inversions.iter().map(|pair| pair[0].ts - pair[1].ts).max().unwrap_or_default();
    println!(
        "{} lines, {} of them finished before their predecessor, by {worst} at most",
        lines.len(),
        inversions.len()
    );
    let concerned: Vec<&Line> = inversions.iter().take(2).copied().flatten().collect();
    ensure!(
        inversions.len() * RARE <= lines.len() && worst <= MOMENT,
        outcome.fault("not in the order of completion", concerned)
    );
    Ok(())
}
