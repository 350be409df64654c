//! Lines carry the time of their event, whatever happens to the system's clock, and come in its order.

use std::{
    fs,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use chrono::{DateTime, TimeDelta, Utc};
use nix::sys::signal::Signal;
use rustix::time::{ClockId, clock_gettime, clock_settime};

use super::{Case, reopened::Logs};
use crate::{
    allowance::Allowance,
    lines::Line,
    net::{Path, Version},
    oracle::{self, expect_stream},
    peers::Pair,
    process::{PATIENCE, until},
    tool::{Backend, Launch, Outcome},
};

pub(crate) const CASES: &[Case] =
    &[("clock_step", step), ("clock_set_back", back), ("clock_slew", slew), ("order_of_completion", order)];

const ROUNDS: usize = 50;
const LEN: u32 = 200;
const STEP_SECONDS: i64 = 3600;
/// The tool reads its records every 40 ms, or as soon as an emulated machine lets it.
const MANY_READS: Duration = Duration::from_secs(2);

/// A system clock that is N seconds ahead. Put right when dropped.
struct Changed(i64);

impl Changed {
    fn by(seconds: i64) -> Result<Self> {
        step_clock(seconds)?;
        Ok(Self(seconds))
    }
}

impl Drop for Changed {
    fn drop(&mut self) {
        if let Err(error) = step_clock(-self.0) {
            eprintln!("the clock stays {} s ahead: {error:#}", self.0);
        }
    }
}

fn step_clock(seconds: i64) -> Result<()> {
    let mut time = clock_gettime(ClockId::Realtime);
    time.tv_sec += seconds;
    clock_settime(ClockId::Realtime, time).context("setting the clock")
}

/// Waits until the tool has `written` N lines. It reads the clock whenever it reads its records, so that those are out
/// then that came before a step: all of them, or, where some may be missing, all that come within a time in which it reads its
/// records many times.
fn expect_written(written: impl Fn() -> Result<usize>, backend: Backend, lines: usize) -> Result<()> {
    let missing = usize::try_from(Allowance::of(backend, None).most(lines.try_into()?))?;
    until(PATIENCE, || Ok(written()? >= lines - missing)).context("lines that are never written")?;
    let deadline = Instant::now() + MANY_READS;
    while missing > 0 && written()? < lines && Instant::now() < deadline {
        sleep(MANY_READS / 20);
    }
    Ok(())
}

/// The clock is set ahead and back again: packets that were finished before keep the time of then.
fn step(backend: Backend) -> Result<()> {
    let tool = Launch::new(backend).start()?;
    let mut pair = Pair::connect(&Path::loopback(Version::V4)?)?;
    let mut talk = |times: usize| -> Result<(DateTime<Utc>, DateTime<Utc>)> {
        let start = Utc::now();
        pair.converse(ROUNDS.try_into()?, LEN)?;
        let span = (start, Utc::now());
        expect_written(|| tool.written(), backend, times * 4 * ROUNDS)?;
        Ok(span)
    };
    let before = talk(1)?;
    let ahead = Changed::by(STEP_SECONDS)?;
    let within = talk(2)?;
    drop(ahead);
    let after = talk(3)?;
    let outcome = tool.stop()?;
    ensure!(within.0 - before.1 > TimeDelta::seconds(STEP_SECONDS), "the clock was not set");

    expect_within(&outcome, &pair, &[before, within, after])
}

/// All lines of as many conversations, in their order, none of them outside of the times of its own.
fn expect_within(outcome: &Outcome, pair: &Pair, spans: &[(DateTime<Utc>, DateTime<Utc>)]) -> Result<()> {
    let lines = outcome.lines()?;
    let own: Vec<_> = lines.into_iter().filter(|line| pair.owns(line) && !line.is("control")).collect();
    let each = 4 * u64::try_from(ROUNDS)?;
    outcome.expect_all("lines", own.len().try_into()?, each * spans.len() as u64, &own)?;
    let mut rest = own.as_slice();
    for (start, end) in spans {
        let is_within = |line: &Line| line.ts >= *start - MAPPING && line.ts <= *end + MAPPING;
        let count = rest.iter().take_while(|line| is_within(line)).count();
        let (lines, later) = rest.split_at(count);
        outcome.expect_all(
            format_args!("lines between {start} and {end}"),
            count.try_into()?,
            each,
            lines.iter().chain(later),
        )?;
        rest = later;
    }
    ensure!(rest.is_empty(), outcome.fault("at another time than it happened", rest));
    Ok(())
}

/// The clock is set back by an hour: intervals go on, a file is begun anew at SIGHUP, and the run ends in its time.
fn back(backend: Backend) -> Result<()> {
    const DURATION: Duration = Duration::from_secs(8);
    /// What a busy machine adds.
    const LATE: Duration = Duration::from_secs(10);
    let logs = Logs::new()?;
    let arguments = ["--duration", "8s", "--interval", "500ms"];
    let mut tool = logs.launch(backend).args(&arguments).start()?;
    let begun = Instant::now();
    let mut pair = Pair::connect(&Path::loopback(Version::V4)?)?;
    let talk = |pair: &mut Pair| -> Result<(DateTime<Utc>, DateTime<Utc>)> {
        let start = Utc::now();
        pair.converse(ROUNDS.try_into()?, LEN)?;
        Ok((start, Utc::now()))
    };
    let before = talk(&mut pair)?;
    let written = || Ok(fs::read_to_string(logs.file()).map_or(0, |file| file.lines().count()));
    expect_written(written, backend, 4 * ROUNDS)?;
    let behind = Changed::by(-STEP_SECONDS)?;
    let within = talk(&mut pair)?;
    tool.expect_more_reports(3).context("no intervals after the clock was set back")?;
    fs::rename(logs.file(), logs.numbered(1))?;
    tool.signal(Signal::SIGHUP)?;
    until(PATIENCE, || Ok(logs.file().exists())).context("no new file after the clock was set back")?;
    let mut outcome = tool.wait()?;
    let lasted = begun.elapsed();
    drop(behind);
    outcome.expect_code(0)?;
    ensure!(before.0 - within.1 > TimeDelta::seconds(STEP_SECONDS / 2), "the clock was not set");
    ensure!(
        lasted < DURATION + LATE && lasted + LATE / 5 > DURATION,
        outcome.fault(format_args!("it lasted {lasted:?}"), [])
    );
    outcome.data = logs.files()?.concat().into_bytes();
    expect_within(&outcome, &pair, &[before, within])
}

/// What the sample may be wrong by that maps a line's time to the wall clock.
const MAPPING: TimeDelta = TimeDelta::microseconds(100);

/// The clock goes faster for a while, as NTP makes it: so does the clock of the stamps.
fn slew(backend: Backend) -> Result<()> {
    let tool = Launch::new(backend).start()?;
    let mut pair = Pair::connect(&Path::loopback(Version::V4)?)?;
    let mut spans = Vec::new();
    for (ticks, times) in [(FASTER, 1), (USUAL, 2)] {
        set_tick(ticks)?;
        let start = Utc::now();
        let talk = pair.converse(ROUNDS.try_into()?, LEN);
        spans.push((start, Utc::now()));
        let written = talk.and_then(|()| expect_written(|| tool.written(), backend, times * 4 * ROUNDS));
        set_tick(USUAL)?;
        written?;
    }
    let outcome = tool.stop()?;
    for conversation in oracle::check(&outcome, &[&pair])? {
        for lines in [&conversation.requests_out, &conversation.requests_in] {
            expect_stream(&outcome, "requests", lines, 2 * ROUNDS, LEN)?;
            for (number, line) in conversation.requests_numbered(lines, LEN) {
                let (start, end) = spans[number / ROUNDS];
                ensure!(
                    line.ts >= start - MAPPING && line.ts <= end + MAPPING,
                    outcome.fault(format_args!("not between {start} and {end}"), [line])
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
