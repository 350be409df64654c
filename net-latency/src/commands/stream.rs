//! The stream of lines, one per finished packet: attaches, reads until told to stop, detaches, and says
//! what was seen and what was lost.

use std::{
    env,
    io::Write as _,
    os::unix::process::ExitStatusExt as _,
    process::{ExitCode, ExitStatus},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use tokio::signal::unix::Signal;

use super::Alarm;
use crate::{
    accounting::{
        Balance, Footer, Ledger, LeftOut, Losses, Summary,
        object::{Kind, Object, View},
    },
    clock::{Clock, LazyClock},
    error::Failure,
    message::{say, tell},
    output::{self, Options, Sink, Writer, colour_wanted, write_footer},
    request::{Format, PacketFilter, StreamConfig},
    run::{
        beats::{Beat, Beats},
        command::{self, Forwarded, Running, Stopped},
        ends::{self, Selected, Signals},
        kernel_log::KernelLog,
        pace::{self, BATCH, End, Ended, Every, LAST_PATIENCE, PATIENCE, TICK},
        privileges::{self, Later},
        tracer::Tracer,
    },
    source::{RecordSource as _, ring::Names},
};

/// Runs the stream to its end.
///
/// # Errors
/// [`Failure::CannotTrace`] before anything is attached; a runtime failure if reading or writing fails.
pub(crate) fn run(config: &StreamConfig) -> Result<ExitCode, Failure> {
    pace::block_on(stream(config))
}

async fn stream(config: &StreamConfig) -> Result<ExitCode, Failure> {
    // What can fail without touching the kernel comes first, and the signals come before the output, so that a log rotation does not end
    // the run. The command is made before they are listened to: it must end by them.
    let stopped = config.command.as_deref().map(Stopped::new).transpose()?;
    let forwarded = stopped.as_ref().map(|_| Forwarded::listen(config.output.is_some())).transpose();
    let forwarded = forwarded.context("cannot listen for signals")?;
    let mut signals = Signals::listen().context("cannot listen for signals")?;
    // SIGHUP tells that our file has been renamed by log rotation.
    let hangup = signals.take_hangup(config.output.is_some()).context("cannot listen for signals")?;
    let mut sink =
        Sink::open(config.output.as_deref(), output::header(config.format, config.tracing.stages))?;
    if config.format == Format::Pcapng {
        sink = sink.for_blocks()?;
    }
    let mut selected = Selected::hold(&config.filter, false)?;
    let filter = PacketFilter { followed: stopped.as_ref().map(Stopped::pid), ..config.filter.clone() };
    let mut tracer = Tracer::start(&filter, &config.tracing, config.debug, config.quiet)?;
    selected.are_there()?;
    sink.begin();
    let log = tracer.take_log();
    let later = Later {
        output: sink.reopened(),
        has_command: stopped.is_some(),
        reads_names: true,
        ..Later::default()
    };
    let names = output::shows_names(config.format, config.verbose).then(Names::default);
    let given = privileges::give_up(&later, || tracer.losses().is_ok())?;
    if config.debug {
        tell(given);
    }
    if !config.quiet {
        tell(format_args!("tracing by {}; Ctrl-C ends it", tracer.mechanism().name()));
    }

    let start = *tracer.span.start();
    let mut stream = Stream {
        options: config,
        writer: Writer::new(
            config.format,
            &Options {
                zone: config.zone,
                details: config.verbose,
                colour: colour_wanted(
                    sink.is_terminal(),
                    env::var_os("NO_COLOR").as_deref(),
                    env::var_os("TERM").as_deref(),
                ),
            },
        ),
        sink,
        tracer,
        log,
        names,
        summary: Summary::since(start),
        recent: config.interval.map(|_| Summary::since(start)),
        left_out: LeftOut::default(),
        alarm: Alarm::new("lines lost just now: a larger --buffer, or a filter, helps", config.quiet),
    };
    stream.writer.begin(stream.sink.buffer());
    let started = Instant::now();
    let mut command = None;
    if let (Some(stopped), Some(forwarded)) = (stopped, forwarded) {
        if let Some(signal) = forwarded.came() {
            // A command that is to end need not begin.
            return Ok(ExitCode::from(command::code(ExitStatus::from_raw(signal.as_raw()))));
        }
        command = Some(stopped.begin(forwarded)?);
    }
    let mut status = None;
    let mut ends = Ends { signals: &mut signals, hangup, selected: &mut selected, command: &mut command };
    let mut outcome = stream.trace(&mut ends, &mut status).await;

    let elapsed = started.elapsed();
    let mut losses = stream.tracer.detach()?;
    let mut untaken = Untaken::default();
    if let Ok(End::Done) = outcome {
        match stream.finish() {
            Ok(left) => untaken = left,
            Err(end) => outcome = end,
        }
    }
    // After `--count` lines, or when the output is closed, unwanted records may be left.
    let Tracer { capture, counted_until, .. } = &mut stream.tracer;
    while let Some(completion_ns) = capture.read()?.map(|record| record.finished_ns()) {
        stream.left_out.outside += u64::from(completion_ns <= *counted_until);
    }
    let shown = stream.summary.packets() - untaken.lines;
    let ledger = stream.tracer.ledger(shown, stream.left_out, untaken.lines + untaken.records)?;
    losses.unwritten = untaken.lines + untaken.records;
    losses.evicted_in = ledger.evicted;
    let packets = stream.summary.by_direction();
    let balance = Balance { packets, elapsed, losses: &losses, ledger: &ledger, cost: None };
    let footer = Footer { balance, summary: &stream.summary, view: View::Stream, zone: config.zone };
    stream.tracer.say_footer(config.footer, footer)?;
    // What ends the trace earlier does not end the command, and we end with it.
    if command.is_some() && status.is_none() {
        status = Some(command::ended(&mut command).await?);
    }
    outcome?;
    Ok(ExitCode::from(status.map_or(0, command::code)))
}

/// What ends a run from outside.
struct Ends<'a> {
    signals: &'a mut Signals,
    /// Log rotation requests that the output is opened anew.
    hangup: Option<Signal>,
    selected: &'a mut Selected,
    command: &'a mut Option<Running>,
}

/// How far the records that waited were written.
enum Drained {
    /// There are as many lines as were requested.
    Enough,
    /// To the last.
    All,
    /// A batch of them, or what the reader of the output takes.
    Some,
}

/// What the reader of the output did not take at the end.
#[derive(Default)]
struct Untaken {
    /// Lines that were written into our buffer.
    lines: u64,
    /// Records that never became a line.
    records: u64,
}

struct Stream<'a> {
    options: &'a StreamConfig,
    writer: Writer,
    sink: Sink,
    tracer: Tracer,
    log: Option<KernelLog>,
    /// Only if the lines show them.
    names: Option<Names>,
    summary: Summary,
    /// The summary since the last report, if there are reports.
    recent: Option<Summary>,
    /// Records that are not shown.
    left_out: LeftOut,
    alarm: Alarm,
}

impl Stream<'_> {
    /// Reads and writes until something ends the run.
    async fn trace(&mut self, ends: &mut Ends<'_>, status: &mut Option<ExitStatus>) -> Ended {
        let ring = Some(self.tracer.capture.descriptor());
        // A command gets the signals, and decides.
        let enders = ends.command.is_none().then_some((&mut *ends.signals, &mut *ends.selected));
        let mut beats = Beats::new(enders, self.options.duration, ring, TICK)?;
        let mut reports = Every::new(self.options.interval);
        let mut state = self.tracer.state(self.summary.packets(), self.left_out)?;
        loop {
            let mut is_due = false;
            tokio::select! {
                biased;
                () = ends::next(ends.hangup.as_mut()) => {
                    if let Err(ended) = self.reopen() {
                        return ended;
                    }
                }
                ended = command::ended(ends.command) => {
                    *status = Some(ended?);
                    return Ok(End::Done);
                }
                () = reports.next() => is_due = true,
                beat = beats.next() => match beat? {
                    Beat::Over => return Ok(End::Done),
                    Beat::Filled => {}
                    Beat::Tick { is_second } => {
                        if let Some(log) = &mut self.log {
                            log.read();
                        }
                        if is_second {
                            if let Some(names) = &mut self.names {
                                names.refresh();
                            }
                            self.alarm.look(&self.tracer.losses()?);
                        }
                        if self.sink.reader_gone() {
                            return Ok(End::Closed);
                        }
                    }
                },
            }
            match self.drain(PATIENCE) {
                Ok(Drained::Enough) => return Ok(End::Done),
                Ok(Drained::All | Drained::Some) => {}
                Err(ended) => return ended,
            }
            if is_due {
                let now = self.tracer.state(self.summary.packets(), self.left_out)?;
                self.report(&now.since(&state));
                state = now;
            }
        }
    }

    /// Writes the lines of the records that wait, a batch at most.
    fn drain(&mut self, patience: Duration) -> Result<Drained, Ended> {
        let clock = LazyClock::new(Clock::sample);
        let mut left = BATCH;
        loop {
            let wanted = match self.options.count {
                Some(count) => count.get().saturating_sub(self.summary.packets()),
                None => u64::MAX,
            };
            let most = left.min(usize::try_from(wanted).unwrap_or(usize::MAX));
            let taken = self.fill(&clock, most).map_err(Err)?;
            let is_through = taken < most && self.sink.has_room();
            left -= taken;
            let is_written = pace::flush(&mut self.sink, patience)?;
            if taken as u64 == wanted {
                return Ok(Drained::Enough);
            }
            // If it is not written, its reader is slow. Records wait in the ring buffer, which counts what it can't hold.
            if is_through || left == 0 || !is_written {
                return Ok(if is_through && is_written { Drained::All } else { Drained::Some });
            }
        }
    }

    /// Puts the lines of the records that wait into the output's buffer, N at most and as long as there is room; says how
    /// many.
    fn fill(&mut self, clock: &LazyClock, most: usize) -> Result<usize, Failure> {
        let Self { writer, sink, tracer, names, summary, recent, left_out, .. } = self;
        let mut records = tracer.records(clock, names.as_mut(), left_out);
        for taken in 0..most {
            if !sink.has_room() {
                return Ok(taken);
            }
            let next = records.next(|event| {
                writer.write(event, sink.buffer());
                summary.record_event(event);
                if let Some(recent) = recent {
                    recent.record_event(event);
                }
            })?;
            if next.is_none() {
                return Ok(taken);
            }
        }
        Ok(most)
    }

    fn reopen(&mut self) -> Result<(), Ended> {
        pace::reopen(&mut self.sink)?;
        self.writer.begin(self.sink.buffer());
        Ok(())
    }

    /// After everything is detached: the remaining lines.
    fn finish(&mut self) -> Result<Untaken, Ended> {
        if let Some(log) = &mut self.log {
            log.finish();
        }
        loop {
            match self.drain(LAST_PATIENCE)? {
                Drained::Enough | Drained::All => return Ok(Untaken::default()),
                Drained::Some if self.sink.is_stalled() => break,
                Drained::Some => {}
            }
        }
        let lines = self.sink.waiting_lines();
        let mut records = 0;
        let Tracer { capture, span, counted_until, .. } = &mut self.tracer;
        while let Some(completion_ns) =
            capture.read().map_err(|error| Err(error.into()))?.map(|record| record.finished_ns())
        {
            let is_shown = span.contains(&completion_ns);
            records += u64::from(is_shown);
            self.left_out.outside += u64::from(!is_shown && completion_ns <= *counted_until);
        }
        Ok(Untaken { lines, records })
    }

    /// Tells stderr about the packets since the last report: where they are, and how long they took.
    fn report(&mut self, (elapsed, ledger, losses): &(Duration, Ledger, Losses)) {
        let Some(recent) = &mut self.recent else { return };
        let zone = self.options.zone;
        let object = || {
            let packets = recent.by_direction();
            let balance = Balance { packets, elapsed: *elapsed, losses, ledger, cost: None };
            Object::of_summary(Kind::Interval, View::Stream, &balance, recent, zone)
        };
        let text = |out: &mut Vec<u8>| {
            write!(out, "net-latency: ")?;
            ledger.write(out)?;
            recent.write(zone, out)
        };
        say(|out| write_footer(self.options.footer, out, text, object));
        recent.clear();
    }
}
