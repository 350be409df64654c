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
    collections::HashMap,
    iter::empty,
    ops::{ControlFlow, RangeInclusive},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use net_latency_common::{Counter, Direction, GroupBy};

use self::{
    group::Names,
    model::{Counts, Id, groups, packets, reasons, since, stages},
    page::Page,
};
use super::Alarm;
use crate::{
    accounting::{
        Balance, LeftOut, Losses,
        object::{Kind, Object, View},
    },
    clock::{Clock, Zone, monotonic_ns},
    error::Failure,
    kernel::devices::Devices,
    message::{say, tell},
    output::{Sink, write_json},
    request::{FooterFormat, HistConfig, ReportFormat},
    run::{
        beats::{Beat, Beats},
        ends::{Selected, Signals},
        pace::{self, Every, PATIENCE},
        privileges::{self, Later},
        tracer::Tracer,
    },
};

/// How often stderr is told of losses.
const LOOK: Duration = Duration::from_secs(1);

/// Counts, and prints the counts, until something ends the run.
///
/// # Errors
/// [`Failure::CannotTrace`] before anything is attached; a runtime failure if reading or writing fails.
pub(crate) fn run(config: &HistConfig) -> Result<(), Failure> {
    pace::block_on(hist(config))
}

async fn hist(config: &HistConfig) -> Result<(), Failure> {
    let mut signals = Signals::listen().context("cannot listen for signals")?;
    let mut selected = Selected::hold(&config.filter, false)?;
    let mut sink = Sink::open(None, b"")?;
    let tracer = Tracer::start_counting(&config.filter, config.backend, config.histograms, config.quiet)?;
    selected.are_there()?;
    let alarm = Alarm::new("packets lost just now: more --buckets, or a filter, helps", config.quiet);
    sink.begin();
    let devices = (config.histograms.by == GroupBy::Interface).then(Devices::default);
    privileges::give_up(&Later { reads_names: true, ..Later::default() }, || tracer.losses().is_ok())?;
    if !config.quiet {
        tell(format_args!("tracing by {}; Ctrl-C ends it", tracer.mechanism().name()));
    }
    let mut hist = Hist { config, sink, tracer, devices, started: Instant::now(), alarm };
    let outcome = hist.count(&mut signals, &mut selected).await;
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
    let ledger = tracer.ledger(packets.iter().sum(), LeftOut::default(), 0)?;
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

/// Writes the figures of the counts to standard error, for programs.
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
    sink: Sink,
    tracer: Tracer,
    devices: Option<Devices>,
    started: Instant,
    alarm: Alarm,
}

impl Hist<'_> {
    /// Prints the intervals until something ends the run; breaks when the output has no reader any more.
    async fn count(
        &mut self,
        signals: &mut Signals,
        selected: &mut Selected,
    ) -> Result<ControlFlow<()>, Failure> {
        let mut beats = Beats::new(Some((signals, selected)), self.config.duration, None, LOOK)?;
        let mut pages = Every::new(self.config.interval);
        let mut earlier = Counts::new();
        let mut from = *self.tracer.span.start();
        let mut state = self.tracer.state(0, LeftOut::default())?;
        let mut uncounted = 0;
        loop {
            tokio::select! {
                biased;
                // Where the reader has not taken the last one, the next covers this time too.
                () = pages.next() => {
                    if self.sink.waiting_lines() == 0 {
                        let now = self.tracer.times()?;
                        let to = monotonic_ns();
                        let counts = since(&now, &earlier);
                        let refused = self.tracer.losses()?.counters.get(Counter::HistogramFull);
                        self.print(&counts, refused - uncounted, from..=to, false)?;
                        uncounted = refused;
                        if self.config.footer == FooterFormat::Json {
                            let shown = by_direction(&now).iter().sum();
                            let reached = self.tracer.state(shown, LeftOut::default())?;
                            let (elapsed, ledger, losses) = reached.since(&state);
                            let packets = by_direction(&counts);
                            let balance =
                                Balance { packets, elapsed, losses: &losses, ledger: &ledger, cost: None };
                            tell_json(Kind::Interval, View::Hist, &counts, &balance);
                            state = reached;
                        }
                        (earlier, from) = (now, to);
                    }
                }
                beat = beats.next() => match beat? {
                    Beat::Over => return Ok(ControlFlow::Continue(())),
                    Beat::Filled | Beat::Tick { .. } => self.alarm.look(&self.tracer.losses()?),
                },
            }
            if self.sink.reader_gone() {
                return Ok(ControlFlow::Break(()));
            }
            if let Err(error) = self.sink.flush(PATIENCE) {
                return pace::End::of(error).map(|_| ControlFlow::Break(()));
            }
        }
    }

    /// Detaches, prints the whole run if the output has a reader, and says what is not in it.
    fn finish(&mut self, is_read: bool) -> Result<(), Failure> {
        let elapsed = self.started.elapsed();
        let mut losses = self.tracer.detach()?;
        let counts = self.tracer.times()?;
        let printed = if is_read {
            let refused = losses.counters.get(Counter::HistogramFull);
            let printed = self.print(&counts, refused, self.tracer.span.clone(), true);
            printed.and_then(|()| pace::flush_last(&mut self.sink).map(drop))
        } else {
            Ok(())
        };
        say_figures(&self.tracer, View::Hist, &counts, &mut losses, elapsed, self.config.footer)?;
        printed
    }

    /// Prints the counts between two times, into the sink's buffer.
    fn print(
        &mut self,
        counts: &Counts,
        uncounted: u64,
        span: RangeInclusive<u64>,
        is_whole: bool,
    ) -> Result<(), Failure> {
        let by = self.config.histograms.by;
        let process = |group| self.tracer.process_name(group);
        let connections = if by == GroupBy::Connection { self.tracer.connections()? } else { HashMap::new() };
        self.devices.iter_mut().for_each(Devices::refresh);
        let groups = groups(counts, self.config.top);
        let ids: Vec<Id> = groups.iter().map(|group| group.id).collect();
        let mut names = Names::new(by, &ids, &process, self.devices.as_mut(), connections);
        let clock = Clock::sample();
        let named = groups.into_iter().map(|group| {
            let id = group.id;
            (group, names.identity(id))
        });
        let page = Page {
            from_ns: clock.to_utc_ns(*span.start()),
            to_ns: clock.to_utc_ns(*span.end()),
            uncounted,
            zone: self.config.zone,
            histogram: self.config.histogram,
            is_whole,
            by,
            groups: named.collect(),
        };
        let out = self.sink.buffer();
        match self.config.format {
            ReportFormat::Text => text::write(&page, out),
            ReportFormat::Json => json::write(&page, out),
        }
        Ok(())
    }
}

/// Packets that came in, and those that went out.
fn by_direction(counts: &Counts) -> [u64; 2] {
    let all = groups(counts, usize::MAX);
    [Direction::In, Direction::Out].map(|direction| packets(&all, direction))
}
