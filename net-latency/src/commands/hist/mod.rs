//! Distributions of times, which the kernel side counts itself: no packet comes to the user side.
//!
//! [`model`] puts the counts together, [`group`] finds names, [`text`] and [`json`] write a
//! [`page`], and this module runs it all.

mod group;
mod json;
mod model;
mod page;
#[cfg(test)]
mod tests;
mod text;

use std::{
    future::pending,
    io::{self, Write as _},
    iter::empty,
    ops::ControlFlow,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use net_latency_common::Direction;
use tokio::time::{MissedTickBehavior, interval_at};

use self::{
    group::Names,
    model::{Counts, Id, groups, packets, reasons, since, stages},
    page::Page,
};
use super::Alarm;
use crate::{
    accounting::{
        Balance, Losses,
        object::{Kind, Object, View},
    },
    clock::{Clock, Zone, monotonic_ns},
    error::Failure,
    message::{say, tell},
    output::write_json,
    request::{FooterFormat, HistConfig, ReportFormat},
    run::pace,
    run::{
        ends::{Processes, Signals},
        tracer::Tracer,
    },
};

/// How often stderr is told of losses.
const LOOK: Duration = Duration::from_secs(1);

/// Counts, and prints what was counted, until something ends the run.
///
/// # Errors
/// [`Failure::CannotTrace`] before anything is attached; a runtime failure if reading or writing fails.
pub fn run(config: &HistConfig) -> Result<(), Failure> {
    pace::block_on(hist(config))
}

async fn hist(config: &HistConfig) -> Result<(), Failure> {
    let mut signals = Signals::listen().context("cannot listen for signals")?;
    let mut processes = Processes::watch(&config.filter.pids)?;
    let tracer = Tracer::start_counting(&config.filter, config.backend, config.histograms, config.quiet)?;
    if !config.quiet {
        tell(format_args!("tracing by {}; Ctrl-C ends it", tracer.mechanism().name()));
    }
    let alarm = Alarm::new("packets lost just now: more --buckets, or a filter, helps", config.quiet);
    let mut hist = Hist { config, tracer, started: Instant::now(), alarm };
    let outcome = hist.count(&mut signals, &mut processes).await;
    let printed = hist.finish(matches!(outcome, Ok(ControlFlow::Continue(()))));
    outcome.map(drop).and(printed)
}

/// Says on standard error what a view that only counts has counted, and what not, once all is detached.
pub(super) fn say_figures(
    tracer: &Tracer,
    view: View,
    counts: &Counts,
    losses: &mut Losses,
    elapsed: Duration,
    footer: FooterFormat,
) -> Result<(), Failure> {
    if footer == FooterFormat::None {
        return Ok(());
    }
    let packets = by_direction(counts);
    let ledger = tracer.ledger(packets.iter().sum(), 0, 0)?;
    losses.evicted_in = ledger.evicted;
    let cost = tracer.cost()?;
    let balance = Balance { packets, elapsed, losses, ledger: &ledger, cost: Some(&cost) };
    match footer {
        FooterFormat::Json => tell_json(Kind::End, view, counts, &balance),
        _ => say(|out| {
            balance.write_counts(out)?;
            reasons(&groups(counts, usize::MAX)).write(out)?;
            balance.write_places(out)
        }),
    }
    Ok(())
}

/// Tells standard error the figures of what was counted, for programs.
fn tell_json(kind: Kind, view: View, counts: &Counts, balance: &Balance<'_>) {
    let stages = stages(&groups(counts, 0));
    // No packet of these views has a time of day.
    let object = Object::new(kind, view, balance, stages, empty(), Zone::UTC);
    say(|out| {
        write_json(&object, out);
        Ok(())
    });
}

struct Hist<'a> {
    config: &'a HistConfig,
    tracer: Tracer,
    started: Instant,
    alarm: Alarm,
}

impl Hist<'_> {
    /// Prints the intervals until something ends the run; breaks when nobody reads them any more.
    async fn count(
        &mut self,
        signals: &mut Signals,
        processes: &mut Processes,
    ) -> Result<ControlFlow<()>, Failure> {
        let over = pace::over(self.config.duration);
        tokio::pin!(over);
        let every = |period| {
            let mut every = interval_at(tokio::time::Instant::now() + period, period);
            every.set_missed_tick_behavior(MissedTickBehavior::Skip);
            every
        };
        let mut pages = self.config.interval.map(every);
        let mut looks = every(LOOK);
        let mut earlier = Counts::new();
        let mut from = *self.tracer.span.start();
        let mut state = self.tracer.state(0, 0)?;
        loop {
            let page = async {
                match &mut pages {
                    Some(pages) => drop(pages.tick().await),
                    None => pending().await,
                }
            };
            tokio::select! {
                biased;
                () = signals.any() => return Ok(ControlFlow::Continue(())),
                () = &mut over => return Ok(ControlFlow::Continue(())),
                ended = processes.all_ended() => return ended.map(ControlFlow::Continue),
                () = page => {
                    let now = self.tracer.times()?;
                    let to = monotonic_ns();
                    let counts = since(&now, &earlier);
                    if self.print(&counts, from, to, false)?.is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                    if self.config.footer == FooterFormat::Json {
                        let reached = self.tracer.state(by_direction(&now).iter().sum(), 0)?;
                        let (elapsed, ledger, losses) = reached.since(&state);
                        let packets = by_direction(&counts);
                        let balance = Balance { packets, elapsed, losses: &losses, ledger: &ledger, cost: None };
                        tell_json(Kind::Interval, View::Hist, &counts, &balance);
                        state = reached;
                    }
                    (earlier, from) = (now, to);
                }
                _ = looks.tick() => self.alarm.look(&self.tracer.losses()?),
            }
        }
    }

    /// Detaches, prints the whole run if somebody reads it, and says what is not in it.
    fn finish(&mut self, is_read: bool) -> Result<(), Failure> {
        let elapsed = self.started.elapsed();
        let mut losses = self.tracer.detach()?;
        let counts = self.tracer.times()?;
        let printed = if is_read {
            let (from, to) = (*self.tracer.span.start(), *self.tracer.span.end());
            self.print(&counts, from, to, true).map(drop)
        } else {
            Ok(())
        };
        say_figures(&self.tracer, View::Hist, &counts, &mut losses, elapsed, self.config.footer)?;
        printed
    }

    /// Prints what was counted between two times; breaks if nobody reads it.
    fn print(&self, counts: &Counts, from: u64, to: u64, is_whole: bool) -> Result<ControlFlow<()>, Failure> {
        let by = self.config.histograms.by;
        let process = |pid| self.tracer.process_name(pid);
        let mut names = Names::new(by, &process);
        let clock = Clock::sample();
        let named = groups(counts, self.config.top).into_iter().map(|group| {
            let id: Id = group.id;
            (group, names.identity(id))
        });
        let page = Page {
            from_ns: clock.to_utc_ns(from),
            to_ns: clock.to_utc_ns(to),
            zone: self.config.zone,
            histogram: self.config.histogram,
            is_whole,
            by,
            groups: named.collect(),
        };
        let mut out = Vec::new();
        match self.config.format {
            ReportFormat::Text => text::write(&page, &mut out),
            ReportFormat::Json => json::write(&page, &mut out),
        }
        let mut stdout = io::stdout().lock();
        match stdout.write_all(&out).and_then(|()| stdout.flush()) {
            Ok(()) => Ok(ControlFlow::Continue(())),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ControlFlow::Break(())),
            Err(error) => Err(anyhow::Error::new(error).context("cannot write to standard output").into()),
        }
    }
}

/// Packets that came in, and those that went out.
fn by_direction(counts: &Counts) -> [u64; 2] {
    let all = groups(counts, usize::MAX);
    [Direction::In, Direction::Out].map(|direction| packets(&all, direction))
}
