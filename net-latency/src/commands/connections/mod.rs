//! TCP connections: a line for each when it ends, or fails to begin, and at the end for those that are open.
//!
//! [`fields`] declares a line, [`line`] makes it from what the kernel side tells, [`text`] writes it for people, [`totals`] sums up,
//! and this module runs it all.

pub(super) mod fields;
pub(super) mod line;
mod replay;
#[cfg(test)]
mod tests;
mod text;
mod totals;

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use net_latency_common::{CONNECTION_OPEN, ConnectionRecord, MAX_CONNECTIONS};
use tokio::signal::unix::Signal;

use self::{
    fields::Line,
    totals::{Footer, Totals},
};
use crate::{
    clock::{Clock, TimeStyle, TimeText, Zone},
    error::Failure,
    kernel::prerequisites,
    message::{say, tell},
    output::Sink,
    probes::connections::{Told, Which},
    request::{ConnectionsConfig, ConnectionsInput, FooterFormat, LineFormat, TracingConfig},
    run::{
        beats::{Beat, Beats},
        connections::{Also, Tracing},
        ends::{self, Selected, Signals},
        names::tell_unmatched,
        notice::Notice,
        pace::{self, BATCH, End, Ended, Every, LAST_PATIENCE, PATIENCE, TICK},
        privileges::{self, Later},
    },
    source::ring::Names,
};

/// Shows connections until something ends the run, or those of logs.
///
/// # Errors
/// [`Failure::CannotTrace`] before anything is attached, a runtime failure if reading or writing fails.
pub(crate) fn run(config: &ConnectionsConfig) -> Result<(), Failure> {
    match &config.input {
        ConnectionsInput::Kernel(tracing) => pace::block_on(trace(config, tracing)),
        ConnectionsInput::Logs(logs) => replay::run(config, logs),
    }
}

async fn trace(config: &ConnectionsConfig, tracing: &TracingConfig) -> Result<(), Failure> {
    // What can fail without touching the kernel comes first.
    let mut signals = Signals::listen().context("cannot listen for signals")?;
    let mut hangup = signals.take_hangup(config.output.is_some()).context("cannot listen for signals")?;
    let mut sink = Sink::open(config.output.as_deref(), header(config.format))?;
    let mut selected = Selected::hold(&config.filter, false)?;
    prerequisites::check()?;
    tell_unmatched(&config.filter, config.quiet);
    let mut kernel = Tracing::start(
        &config.filter,
        tracing.backend,
        tracing.buffer_bytes,
        MAX_CONNECTIONS,
        Also { first_bytes: true, ..Also::default() },
        config.quiet,
    )?;
    selected.are_there()?;
    sink.begin();
    let names = Names::default();
    let later = Later { output: sink.reopened(), reads_names: true, runs_program: true, ..Later::default() };
    privileges::give_up(&later, || kernel.counters().is_ok())?;
    kernel.begin()?;
    if !config.quiet {
        tell(format_args!("tracing connections by {}; Ctrl-C ends it", kernel.mechanism().name()));
    }
    let mut run = Run {
        config,
        form: Form::new(config.format, config.verbose, config.zone),
        sink,
        kernel,
        names,
        totals: Totals::default(),
        is_end: false,
        shown_open: HashSet::new(),
        shown: 0,
        filtered: 0,
    };
    let started = Instant::now();
    let mut outcome = run.follow(&mut signals, &mut hangup, &mut selected).await;
    let elapsed = started.elapsed();
    let mut unwritten = 0;
    if let Ok(End::Done) = outcome {
        match run.finish() {
            Ok(left) => unwritten = left,
            Err(end) => outcome = end,
        }
    }
    if config.footer != FooterFormat::None {
        let footer = Footer {
            totals: &run.totals,
            elapsed: Some(elapsed),
            shown: run.shown - unwritten,
            filtered: run.filtered,
            counters: run.kernel.counters()?,
            unwritten,
            skipped: run.kernel.missed(),
        };
        say(|out| footer.write(config.footer, out));
    }
    let notice = Notice::new("detaching …".to_owned(), config.quiet);
    drop(run.kernel);
    drop(notice);
    outcome.map(drop)
}

/// The line that begins a file, newline included; empty where a file needs none.
fn header(format: LineFormat) -> &'static [u8] {
    use std::sync::LazyLock;

    static CSV: LazyLock<String> = LazyLock::new(|| fields::NAMES.join(",") + "\n");
    match format {
        LineFormat::Text => text::HEADER.as_bytes(),
        LineFormat::Json => b"",
        LineFormat::Csv => CSV.as_bytes(),
    }
}

/// How lines are written.
struct Form {
    format: LineFormat,
    is_verbose: bool,
    time: TimeText,
}

impl Form {
    fn new(format: LineFormat, is_verbose: bool, zone: Zone) -> Self {
        let style = match format {
            LineFormat::Text => TimeStyle::Calendar,
            LineFormat::Json | LineFormat::Csv => TimeStyle::Rfc3339,
        };
        Self { format, is_verbose, time: TimeText::new(zone, style) }
    }

    fn write(&mut self, line: &Line, out: &mut Vec<u8>) {
        match self.format {
            LineFormat::Text => text::write(line, self.is_verbose, &mut self.time, out),
            LineFormat::Json => line.write_json(&mut self.time, out),
            LineFormat::Csv => line.write_csv(&mut self.time, out),
        }
    }
}

/// Whether the options for lines leave this one.
fn is_wanted(config: &ConnectionsConfig, line: &Line) -> bool {
    let is_slow = |least: Duration| {
        let times = [line.handshake_ns, line.accept_ns];
        times.into_iter().flatten().any(|ns| u128::from(ns) >= least.as_nanos())
    };
    (!config.failed || line.state.is_failure()) && config.slower.is_none_or(is_slow)
}

/// What tells connections apart.
type Identity = ([u8; 16], u16, [u8; 16], u16, u32, u64);

fn identity(record: &ConnectionRecord) -> Identity {
    let ConnectionRecord { local, local_port, remote, remote_port, netns, established_ns, .. } = *record;
    (local, local_port, remote, remote_port, netns, established_ns)
}

struct Run<'a> {
    config: &'a ConnectionsConfig,
    form: Form,
    sink: Sink,
    kernel: Tracing,
    names: Names,
    totals: Totals,
    /// Open connections are asked about for the last time, at the end.
    is_end: bool,
    /// Those that were shown then, and may have ended since.
    shown_open: HashSet<Identity>,
    shown: u64,
    filtered: u64,
}

impl Run<'_> {
    /// Reads and writes until something ends the run.
    async fn follow(
        &mut self,
        signals: &mut Signals,
        hangup: &mut Option<Signal>,
        selected: &mut Selected,
    ) -> Ended {
        let ring = Some(self.kernel.capture.descriptor());
        let mut beats = Beats::new(Some((signals, selected)), self.config.duration, ring, TICK)?;
        let mut looks = Every::new(self.config.interval);
        loop {
            let mut is_due = false;
            tokio::select! {
                biased;
                () = ends::next(hangup.as_mut()) => {
                    if let Err(ended) = pace::reopen(&mut self.sink) {
                        return ended;
                    }
                }
                () = looks.next() => is_due = true,
                beat = beats.next() => match beat? {
                    Beat::Over => return Ok(End::Done),
                    Beat::Filled => {}
                    Beat::Tick { is_second } => {
                        if is_second {
                            self.names.refresh();
                            self.kernel.warn()?;
                        }
                        if self.sink.reader_gone() {
                            return Ok(End::Closed);
                        }
                    }
                },
            }
            let read = if is_due { self.look(PATIENCE) } else { self.read(PATIENCE) };
            match read {
                Ok(_) if self.is_enough() => return Ok(End::Done),
                Ok(_) => {}
                Err(ended) => return ended,
            }
        }
    }

    /// Whether as many were shown as were requested.
    fn is_enough(&self) -> bool {
        self.config.count.is_some_and(|count| self.shown >= count.get())
    }

    /// Shows open connections, and the state of queues.
    fn look(&mut self, patience: Duration) -> Result<bool, Ended> {
        self.read(patience)?;
        self.totals.forget_open();
        for which in [Which::Listeners, Which::Connections] {
            for sockets in self.kernel.sockets(which) {
                self.kernel.ask(&sockets).map_err(Err)?;
                self.read(patience)?;
            }
        }
        self.read(patience)
    }

    /// Reads a batch of records and writes their lines; whether it got through. The error is how the run ends.
    fn read(&mut self, patience: Duration) -> Result<bool, Ended> {
        let clock = Clock::sample();
        for _ in 0..BATCH {
            // While its reader is slow, records wait in the ring buffer, which counts what it can't hold.
            if !self.sink.has_room() && !pace::flush(&mut self.sink, patience)? {
                return Ok(false);
            }
            match self.kernel.capture.oldest() {
                Ok(Some(told)) => self.take(&told, clock),
                Ok(None) => return pace::flush(&mut self.sink, patience),
                Err(error) => return Err(Err(error.into())),
            }
        }
        pace::flush(&mut self.sink, patience)?;
        Ok(false)
    }

    fn take(&mut self, told: &Told, clock: Clock) {
        let record = match told {
            Told::Connection(record) => record,
            Told::Listener(record) => return self.totals.listener(record),
        };
        if self.is_enough() {
            return;
        }
        let is_open = record.flags & CONNECTION_OPEN != 0;
        if self.is_end {
            if is_open {
                self.shown_open.insert(identity(record));
            } else if self.shown_open.contains(&identity(record)) {
                // It has ended since it was shown as open, which was the end of this run.
                return;
            }
        }
        let line = line::line(record, clock, &mut self.names);
        if !is_open || self.is_end {
            self.totals.add(&line);
        }
        if is_wanted(self.config, &line) {
            self.shown += 1;
            self.form.write(&line, self.sink.buffer());
        } else {
            self.filtered += 1;
        }
    }

    /// The rest, and open connections. Returns the lines that were not read.
    fn finish(&mut self) -> Result<u64, Ended> {
        while !self.read(LAST_PATIENCE)? && !self.sink.is_stalled() {}
        if !self.sink.is_stalled() {
            self.is_end = true;
            self.look(LAST_PATIENCE)?;
        }
        Ok(self.sink.waiting_lines())
    }
}
