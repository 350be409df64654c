//! Single packets, followed through the kernel: follows as many as were requested, and shows each when it has ended.
//!
//! [`assemble`] puts the kernel side's rows together to a [`model`]'s journey, [`text`], [`json`] and [`perfetto`] write
//! it, [`summary`] adds up several, and this module runs it all.

mod assemble;
mod footer;
mod json;
mod model;
mod perfetto;
mod summary;
#[cfg(test)]
mod tests;
mod text;
mod typical;

use std::{
    io,
    ops::ControlFlow,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use rustix::termios::tcgetwinsize;

use self::{
    assemble::{Assembler, End, Wanted},
    footer::Footer,
    model::Journey,
    perfetto::Events,
    summary::Summary,
    typical::{Sample, Typical},
};
use crate::{
    accounting::object::{Head, Kind, View},
    clock::{Clock, monotonic_ns},
    error::Failure,
    kernel::{self, prerequisites},
    message::{say, tell},
    output::Sink,
    probes::journey::{self, Following, Request},
    request::{FooterFormat, JourneyConfig, JourneyFormat, Pick},
    run::{
        beats::{Beat, Beats},
        ends::{Selected, Signals},
        names::tell_unmatched,
        notice::Notice,
        pace::{self, BATCH, End as RunEnd, PATIENCE, TICK},
        privileges::{self, Later},
    },
};

/// Columns where there is no terminal.
const COLUMNS: usize = 132;

/// Follows packets until something ends the run.
///
/// # Errors
/// [`Failure::CannotTrace`] before anything is followed; a runtime failure if reading or writing fails.
pub(crate) fn run(config: &JourneyConfig) -> Result<(), Failure> {
    pace::block_on(follow(config))
}

async fn follow(config: &JourneyConfig) -> Result<(), Failure> {
    // What can fail without touching the kernel comes first.
    let is_perfetto = config.format == JourneyFormat::Perfetto;
    let header = if is_perfetto { perfetto::HEADER } else { b"" };
    let mut sink = Sink::open(config.output.as_deref(), header)?;
    let mut signals = Signals::listen().context("cannot listen for signals")?;
    let mut selected = Selected::hold(&config.filter, false)?;
    prerequisites::check()?;
    let btf = kernel::read_btf()?;
    let filter = &config.filter;
    let is_exact = config.pick == Pick::Any
        && filter.slower.is_none()
        && filter.interfaces.is_empty()
        && filter.pids.is_empty()
        && filter.comms.is_empty()
        && filter.cgroups.is_empty();
    let request = Request {
        filter,
        functions: &config.functions,
        backend: config.tracing.backend,
        buffer_bytes: config.tracing.buffer_bytes,
        // Each that begins is one of those.
        exactly: is_exact.then(|| u32::try_from(config.count.get()).unwrap_or(u32::MAX)),
    };
    let started = Instant::now();
    tell_unmatched(filter, config.quiet);
    let notice = Notice::new("attaching …", config.quiet);
    let mut following = journey::attach(&btf, &request, |done, all| {
        notice.change(|| format!("attaching to {done} of {all} functions …"));
    })?;
    drop((notice, btf));
    selected.are_there()?;
    following.arm(true)?;
    if is_perfetto {
        // A file of trace events can't be gone on with.
        sink.begin_anew().or_else(|error| RunEnd::of(error).map(drop))?;
    } else {
        sink.begin();
    }
    following.watch();
    // The file of a journey is opened once.
    privileges::give_up(&Later { reads_names: true, ..Later::default() }, || following.tallies().is_ok())?;
    if !config.quiet {
        say_ready(&following, started.elapsed());
    }
    let mut run = Run {
        config,
        sink,
        following,
        assembler: Assembler::new(Wanted::new(filter, config.pick)),
        events: Events::default(),
        summary: Summary::default(),
        sample: (config.pick == Pick::Typical).then(Sample::default),
        typical: None,
        shown: 0,
        others: 0,
        unwatched: 0,
        begun: Instant::now(),
    };
    let outcome = run.until_ended(&mut signals, &mut selected).await;
    let finished = run.finish(&outcome);
    let notice = Notice::new(format!("detaching from {} functions …", run.following.traced), config.quiet);
    drop(run);
    drop(notice);
    outcome.map(drop).and(finished)
}

fn say_ready(following: &Following, elapsed: Duration) {
    let by = if following.uses_fentry { "fentry and kprobe" } else { "kprobe" };
    let mut text =
        format!("tracing {} functions by {by}, attached in {:.1} s", following.traced, elapsed.as_secs_f64());
    if let Some(first) = following.refused.first() {
        let count = following.refused.len();
        text += &format!("; {count} can't be traced ({first}{})", if count > 1 { ", …" } else { "" });
    }
    if following.skipped > 0 {
        text += &format!("; {} skipped, since attaching took too long", following.skipped);
    }
    tell(format_args!("{text}; Ctrl-C ends it"));
}

struct Run<'a> {
    config: &'a JourneyConfig,
    sink: Sink,
    following: Following,
    assembler: Assembler,
    events: Events,
    summary: Summary,
    /// Packets to choose from.
    sample: Option<Sample>,
    /// From how many those shown were chosen, and the median of these.
    typical: Option<(u64, u64)>,
    shown: u64,
    others: u64,
    unwatched: u64,
    /// When everything was attached.
    begun: Instant,
}

impl Run<'_> {
    /// Shows journeys as they end; breaks when the output has no reader any more.
    async fn until_ended(
        &mut self,
        signals: &mut Signals,
        selected: &mut Selected,
    ) -> Result<ControlFlow<()>, Failure> {
        let mut beats = Beats::new(Some((signals, selected)), self.config.duration, None, TICK)?;
        loop {
            if beats.next().await? == Beat::Over {
                return Ok(ControlFlow::Continue(()));
            }
            if self.sink.reader_gone() {
                return Ok(ControlFlow::Break(()));
            }
            self.drain(false)?;
            match self.sink.flush(PATIENCE) {
                Ok(is_written) if is_written && self.is_enough() => return Ok(ControlFlow::Continue(())),
                Ok(_) => {}
                Err(error) => return RunEnd::of(error).map(|_| ControlFlow::Break(())),
            }
        }
    }

    /// Reads what has come, and writes the journeys that have ended, or all.
    fn drain(&mut self, are_all: bool) -> Result<(), Failure> {
        let Self { following, assembler, .. } = self;
        following.read(BATCH, |record| assembler.take(&record))?;
        for (id, end) in self.assembler.ended(monotonic_ns(), are_all, &self.following.names) {
            match end {
                End::Shown(journey) => self.take(*journey)?,
                End::Other => self.others += 1,
                End::Unwatched => self.unwatched += 1,
            }
            self.following.end(id)?;
        }
        Ok(())
    }

    /// Shows a journey, or keeps it to choose from; no more are begun once there are enough.
    fn take(&mut self, journey: Journey) -> Result<(), Failure> {
        if self.is_enough() {
            return Ok(());
        }
        match &mut self.sample {
            None => self.show(&journey),
            Some(sample) => {
                if sample.add(journey) {
                    self.choose();
                }
            }
        }
        if self.is_enough() {
            self.following.arm(false)?;
        }
        Ok(())
    }

    /// Whether nothing more will be shown.
    fn is_enough(&self) -> bool {
        self.typical.is_some() || self.shown >= self.config.count.get()
    }

    /// Shows those of the sample that are typical.
    fn choose(&mut self) {
        let sample = self.sample.take();
        let Some(Typical { of, p50_ns, journeys }) = sample.and_then(|it| it.choose(self.config.count.get()))
        else {
            return;
        };
        self.typical = Some((of, p50_ns));
        journeys.iter().for_each(|journey| self.show(journey));
    }

    fn show(&mut self, journey: &Journey) {
        self.write(journey);
        self.summary.add(journey);
        self.shown += 1;
    }

    fn write(&mut self, journey: &Journey) {
        let columns = match tcgetwinsize(io::stdout()) {
            Ok(size) if self.sink.is_terminal() && size.ws_col > 0 => size.ws_col.into(),
            _ => COLUMNS,
        };
        let (clock, zone, out) = (Clock::sample(), self.config.zone, self.sink.buffer());
        match self.config.format {
            JourneyFormat::Text => text::write(journey, clock, zone, columns, out),
            JourneyFormat::Json => json::write(journey, clock, zone, out),
            JourneyFormat::Perfetto => self.events.write(journey, out),
        }
    }

    /// Shows unfinished journeys, if the output has a reader, and says what is not shown.
    fn finish(&mut self, outcome: &Result<ControlFlow<()>, Failure>) -> Result<(), Failure> {
        self.following.arm(false)?;
        let mut written = Ok(());
        if matches!(outcome, Ok(ControlFlow::Continue(()))) {
            self.drain(true)?;
            self.choose();
            if self.config.format == JourneyFormat::Perfetto {
                self.events.finish(self.sink.buffer());
            }
            written = pace::flush_last(&mut self.sink).map(drop);
        }
        if self.config.footer != FooterFormat::None {
            let (begun, lost) = self.following.tallies()?;
            let footer = Footer {
                head: Head::new(Kind::End, View::Journey, self.begun.elapsed()),
                shown: self.shown,
                typical_of: self.typical.map(|(of, _)| of),
                typical_p50_ns: self.typical.map(|(_, p50_ns)| p50_ns),
                followed: begun,
                filtered: self.others,
                given_up: self.unwatched,
                lost,
                rows_of_others: self.assembler.foreign,
                rows_beyond: self.assembler.beyond,
                skipped_calls: self.following.missed(),
                stages: self.summary.objects(),
            };
            let why = match (self.config.pick, self.config.filter.slower) {
                (Pick::Drops, _) => "not dropped, or excluded by another filter",
                (_, Some(_)) => "faster than --slower, or excluded by another filter",
                (_, None) => "followed and then excluded by a filter",
            };
            say(|out| footer.write(self.config.footer, &self.summary, why, out));
        }
        written
    }
}
