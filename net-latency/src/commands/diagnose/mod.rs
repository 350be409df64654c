//! Says what makes each service slow: runs a trace or reads logs, and writes the verdict.

mod queues;

use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::{task::yield_now, time::sleep};

use self::queues::Queues;
use super::{Alarm, write_replayed};
use crate::{
    accounting::{Balance, Footer, LeftOut, Losses, Packet, Summary, object::View, tcp::Connections},
    clock::{Clock, LazyClock, monotonic_ns},
    diagnosis::{Model, Sensors, json, judge, text},
    error::Failure,
    kernel::{
        cpus::Sample,
        netns, owners, ports,
        tasks::{Allowed, Process},
    },
    message::{say, tell},
    output::Sink,
    request::{
        DiagnoseConfig, DiagnoseInput, FooterFormat, ReplayConfig, ReportFormat, Speed, TracingConfig,
    },
    run::{
        beats::{Beat, Beats},
        connections::or_say,
        ends::{Selected, Signals},
        pace::{self, BATCH, Every, TICK},
        privileges::{self, Later},
        tracer::Tracer,
    },
    source::{RecordSource as _, log::replay::Replay, ring::Names},
};

/// Between two looks at how busy the CPUs are.
const LOOK: Duration = Duration::from_millis(200);
/// Between two looks at a log of which nothing more was read yet.
const PAUSE: Duration = Duration::from_millis(1);

/// Collects, and says what it is.
///
/// # Errors
/// [`Failure::CannotTrace`] before anything is attached; a usage failure if it is no log; a runtime failure if reading or writing fails.
pub(crate) fn run(config: &DiagnoseConfig) -> Result<(), Failure> {
    pace::block_on(async {
        match &config.input {
            DiagnoseInput::Kernel { tracing, duration } => trace(config, tracing, *duration).await,
            DiagnoseInput::Logs(files) => {
                let files = files.clone();
                replay(config, ReplayConfig { files, speed: Speed::Max }).await
            }
        }
    })
}

fn new_model(config: &DiagnoseConfig) -> Model {
    Model::new(config.threshold, ports::ephemeral())
}

/// Figures of connections, for a summary that has room for them.
fn connections(config: &DiagnoseConfig) -> Option<Connections> {
    (config.footer == FooterFormat::Json).then(|| Connections::new(Some(ports::ephemeral_word())))
}

/// Judges what this kernel does for so long.
async fn trace(config: &DiagnoseConfig, tracing: &TracingConfig, duration: Duration) -> Result<(), Failure> {
    let mut signals = Signals::listen().context("cannot listen for signals")?;
    let mut selected = Selected::hold(&config.filter, false)?;
    let mut sink = Sink::open(None, b"")?;
    // Before packets count, as it ends after that, so that neither takes part of their time.
    let queues = Queues::start(config, tracing);
    let tracer = Tracer::start(&config.filter, tracing, false, config.quiet)?;
    let queues = or_say(queues, "accept queues, handshakes and drops are not looked at");
    selected.are_there()?;
    sink.begin();
    let names = Names::default();
    let later = Later { reads_names: true, runs_program: queues.is_some(), ..Later::default() };
    privileges::give_up(&later, || tracer.losses().is_ok())?;
    if !config.quiet {
        tell(format_args!(
            "tracing by {} for {duration:?}; Ctrl-C ends it earlier, with the verdict",
            tracer.mechanism().name()
        ));
    }
    let sensors = Sensors::start(monotonic_ns());
    let mut live = Live {
        model: new_model(config).with_owners(owners::of).with_netns(netns::own()),
        began: sensors.mark(),
        sensors,
        summary: Summary::since(*tracer.span.start()).with_connections(connections(config)),
        tracer,
        queues,
        names,
        left_out: LeftOut::default(),
        alarm: Alarm::new("packets lost just now: a larger --buffer, or a filter, helps", config.quiet),
    };
    let started = Instant::now();
    live.collect(&mut signals, &mut selected, &sink, duration).await?;
    let elapsed = started.elapsed();
    let losses = live.finish()?;
    // Slow services come before all other figures.
    let written = write(config, &live.model, Some(&losses), &mut sink);
    live.sum_up(config, elapsed, &losses)?;
    written
}

struct Live {
    model: Model,
    /// What this machine says of its CPUs, and what it had said at the beginning.
    sensors: Sensors,
    began: Sample,
    summary: Summary,
    tracer: Tracer,
    /// Accept queues and handshakes, where they can be told.
    queues: Option<Queues>,
    names: Names,
    /// Records that don't count.
    left_out: LeftOut,
    alarm: Alarm,
}

/// Takes what the kernel side of connections has told so far.
fn read_queues(queues: &mut Option<Queues>, model: &mut Model, clock: &LazyClock) -> Result<(), Failure> {
    let Some(queues) = queues else { return Ok(()) };
    queues.read(|record| model.established(record, **clock))
}

impl Live {
    /// Takes packets until something ends the run.
    async fn collect(
        &mut self,
        signals: &mut Signals,
        selected: &mut Selected,
        sink: &Sink,
        duration: Duration,
    ) -> Result<(), Failure> {
        let ring = Some(self.tracer.capture.descriptor());
        let mut beats = Beats::new(Some((signals, selected)), Some(duration), ring, TICK)?;
        let mut looks = Every::new(Some(LOOK));
        loop {
            let beat = tokio::select! {
                biased;
                beat = beats.next() => beat?,
                () = looks.next() => {
                    self.sensors.look_at_cpus(self.summary.packets());
                    continue;
                }
            };
            match beat {
                Beat::Over => return Ok(()),
                Beat::Filled => {}
                Beat::Tick { is_second } => {
                    if is_second {
                        self.names.refresh();
                        self.model.ask(Process::of, Allowed::of);
                        self.sensors.look(self.model.processes(), monotonic_ns());
                        self.alarm.look(&self.tracer.losses()?);
                    }
                    if sink.reader_gone() {
                        return Ok(());
                    }
                }
            }
            self.drain(BATCH)?;
        }
    }

    /// Takes the packets that wait, N at most.
    fn drain(&mut self, most: usize) -> Result<(), Failure> {
        let clock = LazyClock::new(Clock::sample);
        let Self { model, summary, tracer, queues, names, left_out, .. } = self;
        read_queues(queues, model, &clock)?;
        for _ in 0..most {
            let next = tracer.records(&clock, Some(&mut *names), left_out).next(|event| {
                // A handshake was told before what followed it was complete.
                let read = read_queues(queues, model, &clock);
                model.record(event);
                summary.record_event(event);
                read
            })?;
            match next {
                Some(read) => read?,
                None => break,
            }
        }
        Ok(())
    }

    /// Detaches, and takes the rest.
    fn finish(&mut self) -> Result<Losses, Failure> {
        self.sensors.look_at_cpus(self.summary.packets());
        self.sensors.look(self.model.processes(), monotonic_ns());
        let mut machine = self.sensors.since(&self.began);
        let mut losses = self.tracer.detach()?;
        self.drain(usize::MAX)?;
        match self.queues.take() {
            Some(queues) => {
                let (listening, is_whole, drops) = queues.finish()?;
                self.model.set_listening(listening);
                self.model.set_drops(drops);
                if !is_whole {
                    machine.miss("accept queues and handshakes of some connections (there were too many)");
                }
            }
            None => machine.miss("accept queues, handshakes and drops (they were not traced)"),
        }
        self.model.set_machine(machine);
        self.model.ask(Process::of, Allowed::of);
        self.model.finish();
        self.summary.finish();
        losses.evicted_in = self.tracer.ledger(self.summary.packets(), self.left_out, 0)?.evicted;
        Ok(losses)
    }

    /// Says what was traced and what was lost.
    fn sum_up(&self, config: &DiagnoseConfig, elapsed: Duration, losses: &Losses) -> Result<(), Failure> {
        let packets = self.summary.by_direction();
        let ledger = self.tracer.ledger(self.summary.packets(), self.left_out, 0)?;
        let balance = Balance { packets, elapsed, losses, ledger: &ledger, cost: None };
        let footer = Footer { balance, summary: &self.summary, view: View::Diagnose, zone: config.zone };
        self.tracer.say_footer(config.footer, footer)
    }
}

/// Judges recorded packets.
async fn replay(config: &DiagnoseConfig, logs: ReplayConfig) -> Result<(), Failure> {
    let mut signals = Signals::listen().context("cannot listen for signals")?;
    let mut sink = Sink::open(None, b"")?;
    let mut replay = Replay::open(&logs, &config.filter)?;
    sink.begin();
    privileges::give_up(&Later { reads_names: true, ..Later::default() }, || true)?;
    let mut model = new_model(config);
    let mut summary = Summary::default();
    while !replay.is_over() {
        let mut is_behind = true;
        for _ in 0..BATCH {
            let next = replay.next(|event| {
                model.record(event);
                summary.record(&Packet::of_log(event));
            })?;
            if next.is_none() {
                is_behind = false;
                break;
            }
        }
        tokio::select! {
            biased;
            // The packets read so far are judged.
            () = signals.any() => break,
            () = sleep(PAUSE), if !is_behind && !replay.is_over() => {}
            () = yield_now(), if is_behind || replay.is_over() => {}
        }
    }
    model.finish();
    let written = write(config, &model, None, &mut sink);
    if config.footer != FooterFormat::None {
        say(|out| write_replayed(&replay, &summary, None, ["judged", "read"], config.zone, out));
    }
    let whole = replay.tally().map_or(Ok(()), |tally| tally.check_whole("verdict"));
    written.and(whole)
}

/// Writes the verdict, as far as its reader takes it.
fn write(
    config: &DiagnoseConfig,
    model: &Model,
    losses: Option<&Losses>,
    sink: &mut Sink,
) -> Result<(), Failure> {
    let verdict = judge(model, losses);
    let out = sink.buffer();
    match config.format {
        ReportFormat::Text => text::write(&verdict, config.is_all, out),
        ReportFormat::Json => json::write(&verdict, out),
    }
    pace::flush_last(sink).map(drop)
}
