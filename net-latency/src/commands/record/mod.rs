//! `net-latency record`: keeps the last minutes in memory ([`ring`](crate::recording::ring)), and writes them to a file when
//! something happens ([`dumps`]).

mod dumps;

use std::{
    env,
    fmt::Display,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use chrono::Local;
use hyper::StatusCode;
use net_latency_common::MAX_CONNECTIONS;
use rustix::system::uname;
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::dumps::{Dumps, Refused, Written};
use super::{Alarm, connections::line::outcome};
use crate::{
    accounting::{Balance, Footer, LeftOut, Losses, Summary, object::View},
    clock::{Clock, LazyClock, monotonic_ns},
    error::Failure,
    export::{
        listener::Listener,
        server::{Asked, Dump, Server, hosts},
    },
    message::{counted, tell},
    packet::event::is_slow,
    probes::connections::Told,
    recording::{file::Head, ring::Ring},
    request::{Listen, RecordConfig},
    run::{
        beats::{Beat, Beats},
        connections::{Also, Tracing},
        ends::{self, Selected, Signals},
        pace::{self, BATCH, TICK},
        privileges::{self, Later},
        tracer::Tracer,
    },
    source::{RecordSource as _, ring::Names},
};

/// A block is complete after this time, however few packets it has: older ones go block by block.
const BLOCK_TIME: Duration = Duration::from_secs(5);
/// When it is said how long the memory will last.
const ESTIMATE: Duration = Duration::from_secs(10);
/// What the process takes besides packets and the kernel's ring buffer, at most, as measured: code, names, sums.
const BESIDES: usize = 24 << 20;

/// Records until something ends the run.
///
/// # Errors
/// [`Failure::CannotTrace`] before anything is attached; a usage failure if there is no such directory or address; a failure
/// while running if reading fails.
pub(crate) fn run(config: &RecordConfig) -> Result<(), Failure> {
    pace::block_on(record(config))
}

async fn record(config: &RecordConfig) -> Result<(), Failure> {
    let mut signals = Signals::listen().context("cannot listen for signals")?;
    // From now on it ends nothing.
    let asked = signal(SignalKind::user_defined1()).context("cannot listen for signals")?;
    let dumps = Dumps::open(&config.directory, config.every, config.keep)?;
    let server = config.listen.as_ref().map(|listen| serve(listen, config)).transpose()?;
    let mut selected = Selected::hold(&config.filter, false)?;
    let tracer = Tracer::start_as_written(&config.filter, &config.tracing, config.quiet)?;
    let backend = config.tracing.backend;
    let start =
        || Tracing::start_beside(&config.filter, backend, MAX_CONNECTIONS, Also::default(), config.quiet);
    let mut connections = config.triggers.failed.map(|_| start()).transpose()?;
    selected.are_there()?;
    let socket = match &config.listen {
        Some(Listen::Unix(path)) => Some(path.as_path()),
        _ => None,
    };
    let name = Dumps::name_in(&config.directory);
    let later = Later {
        files: Some(&name),
        answers: server.is_some(),
        socket,
        reads_names: true,
        ..Later::default()
    };
    let head = Head {
        host: uname().nodename().to_string_lossy().into_owned(),
        kernel: uname().release().to_string_lossy().into_owned(),
        arguments: env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned()).collect(),
        ..Head::new()
    };
    privileges::give_up(&later, || tracer.losses().is_ok())?;
    connections.as_mut().map_or(Ok(()), Tracing::begin)?;
    server.iter().for_each(|(server, _)| server.set_ready(true));
    if !config.quiet {
        let at = server.as_ref().map(|(_, address)| format!("; POST {address}/dump writes a file"));
        let most = config.memory + config.tracing.buffer_bytes as usize + BESIDES;
        tell(format_args!(
            "tracing by {}; keeping the last {} in {} MiB (resident: up to {} MiB), files go to {}; SIGUSR1 writes \
             one{}; Ctrl-C ends it",
            tracer.mechanism().name(),
            seconds(config.last),
            config.memory >> 20,
            most.div_ceil(1 << 20),
            config.directory.display(),
            at.unwrap_or_default(),
        ));
    }
    let mut recorder = Recorder {
        config,
        tracer,
        connections,
        failed: 0,
        names: Names::default(),
        ring: Ring::new(config.memory, config.last),
        dumps,
        head,
        packets: [0; 2],
        left_out: LeftOut::default(),
        begun: Instant::now(),
        drops: 0,
        reason: None,
        asking: Vec::new(),
        files: Files::default(),
        told_refused: 0,
        alarm: Alarm::new("packets lost just now: a larger --buffer, or a filter, helps", config.quiet),
    };
    let outcome = recorder.trace(&mut signals, asked, server.map(|(server, _)| server), &mut selected).await;
    let told = recorder.finish().await;
    outcome.and(told)
}

/// Starts to answer requests for a file; returns the server, and where it listens.
fn serve(listen: &Listen, config: &RecordConfig) -> Result<(Server<Dump>, String), Failure> {
    let listener = Listener::open(listen)?;
    let address = match listener.address() {
        Listen::Port(address) => format!("http://{address}"),
        socket @ Listen::Unix(_) => socket.to_string(),
    };
    let server = Server::start(listener, hosts(&config.host_names), Asked::Dumps, || {
        privileges::give_up_in_this_thread(&Later::default(), || true).map(drop)
    })?;
    Ok((server, address))
}

/// A time in the largest unit that it fills.
fn seconds(time: Duration) -> String {
    match time.as_secs() {
        0 => format!("{} ms", time.as_millis()),
        seconds @ 1..120 => format!("{seconds} s"),
        seconds @ 120..7_200 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3_600),
    }
}

/// What became of the files that there was a reason for.
#[derive(Clone, Copy, Debug, Default)]
struct Files {
    written: u64,
    failed: u64,
    /// Skipped: one was being written, or had just been.
    near: u64,
    /// Skipped: no packet had come.
    empty: u64,
}

struct Recorder<'a> {
    config: &'a RecordConfig,
    tracer: Tracer,
    /// Beside them, where those that fail are a trigger.
    connections: Option<Tracing>,
    /// Those that have failed since the last look.
    failed: u64,
    names: Names,
    ring: Ring,
    dumps: Dumps,
    head: Head,
    /// Packets that have come in and gone out.
    packets: [u64; 2],
    left_out: LeftOut,
    begun: Instant,
    /// Packets that the kernel had dropped a second ago.
    drops: u64,
    /// What a file is to be written for.
    reason: Option<String>,
    /// Requests that wait for the file that is being written.
    asking: Vec<Dump>,
    files: Files,
    /// N packets that found no room were told.
    told_refused: u64,
    alarm: Alarm,
}

impl Recorder<'_> {
    /// Reads and keeps until something ends the run.
    async fn trace(
        &mut self,
        signals: &mut Signals,
        mut asked: Signal,
        mut server: Option<Server<Dump>>,
        selected: &mut Selected,
    ) -> Result<(), Failure> {
        let ring = Some(self.tracer.capture.descriptor());
        let mut beats = Beats::new(Some((signals, selected)), self.config.duration, ring, TICK)?;
        let mut block = pace::ticks(BLOCK_TIME.min(self.config.last));
        let estimate = tokio::time::sleep(ESTIMATE);
        tokio::pin!(estimate);
        let mut is_estimated = self.config.quiet;
        loop {
            let mut ask = None;
            tokio::select! {
                biased;
                () = ends::next(Some(&mut asked)) => self.reason = Some("signal".to_owned()),
                dump = next_ask(server.as_mut()) => ask = Some(dump),
                written = self.dumps.written() => self.tell_written(written),
                () = &mut estimate, if !is_estimated => {
                    is_estimated = true;
                    self.tell_estimate();
                }
                _ = block.tick() => self.ring.turn(true),
                beat = beats.next() => match beat? {
                    Beat::Over => return Ok(()),
                    Beat::Filled => {}
                    Beat::Tick { is_second } => {
                        self.count_failed()?;
                        if is_second {
                            self.look()?;
                        }
                    }
                },
            }
            self.drain()?;
            if let Some(ask) = ask {
                self.answer(ask)?;
            } else if let Some(reason) = self.reason.take() {
                self.dump(reason)?;
            }
        }
    }

    /// Once a second: names, losses, drops, connections that failed.
    fn look(&mut self) -> Result<(), Failure> {
        self.names.refresh();
        self.ring.packer.forget_names();
        let losses = self.tracer.losses()?;
        self.alarm.look(&losses);
        let before = std::mem::replace(&mut self.drops, dropped(&losses));
        if let Some(least) = self.config.triggers.drops {
            let new = self.drops.saturating_sub(before);
            if new >= least {
                self.reason = Some(format!("drops={new}/s"));
            }
        }
        let failed = std::mem::take(&mut self.failed);
        if self.config.triggers.failed.is_some_and(|least| failed >= least) {
            self.reason = Some(format!("failed={failed}/s"));
        }
        self.connections.as_mut().map_or(Ok(()), Tracing::warn)?;
        let refused = self.ring.refused();
        if refused > self.told_refused && !self.config.quiet {
            let new = refused - self.told_refused;
            tell(format_args!(
                "{} not kept just now: the recording that is being written uses the memory",
                counted(new, "packet")
            ));
        }
        self.told_refused = refused;
        Ok(())
    }

    /// Counts the connections that have failed.
    fn count_failed(&mut self) -> Result<(), Failure> {
        let Some(tracing) = &mut self.connections else { return Ok(()) };
        while let Some(told) = tracing.capture.oldest()? {
            if let Told::Connection(record) = told
                && outcome(&record).0.is_failure()
            {
                self.failed += 1;
            }
        }
        Ok(())
    }

    /// Keeps the packets that wait, a batch at most; whether there were as many.
    fn drain(&mut self) -> Result<bool, Failure> {
        let Self { tracer, names, ring, packets, left_out, config, reason, .. } = self;
        let clock = LazyClock::new(Clock::sample);
        ring.packer.set_clock(*clock);
        let mut records = tracer.records(&clock, None, left_out);
        for _ in 0..BATCH {
            let next = records.next(|event| {
                let record = event.record();
                ring.packer.pack(record, event.raw_parts(), event.raw_served(), || {
                    names.find(record, event.wall_ns())
                });
                packets[event.direction() as usize] += 1;
                if let Some(least) = config.triggers.slower
                    && is_slow(record, event.raw_parts(), least)
                {
                    *reason = Some(format!("slower={least:?}"));
                }
            })?;
            if next.is_none() {
                return Ok(false);
            }
            ring.turn(false);
        }
        Ok(true)
    }

    /// A file was requested by HTTP.
    fn answer(&mut self, ask: Dump) -> Result<(), Failure> {
        let refusal = match self.dumps.check() {
            Ok(()) => {
                self.asking.push(ask);
                return self.dump("http".to_owned());
            }
            // It has nearly all that this one would have.
            Err(Refused::Busy) => {
                self.asking.push(ask);
                return Ok(());
            }
            Err(Refused::Early) => {
                self.files.near += 1;
                let every = seconds(self.config.every);
                (StatusCode::TOO_MANY_REQUESTS, format!("a file was written less than {every} ago"))
            }
            Err(Refused::Empty) => (StatusCode::CONFLICT, NOTHING.to_owned()),
        };
        // Who asked may have gone.
        let _ = ask.send(refusal);
        Ok(())
    }

    /// Begins a file, unless one is being written, or was just written.
    fn dump(&mut self, reason: String) -> Result<(), Failure> {
        let begun = self.dumps.check().and_then(|()| {
            self.ring.turn(true);
            let blocks = self.ring.held();
            if blocks.is_empty() { Err(Refused::Empty) } else { Ok(blocks) }
        });
        let blocks = match begun {
            Ok(blocks) => blocks,
            Err(refused) => {
                if refused == Refused::Empty {
                    self.files.empty += 1;
                    self.tell_asking(StatusCode::CONFLICT, NOTHING);
                } else {
                    self.files.near += 1;
                }
                return Ok(());
            }
        };
        let monotonic_ns = monotonic_ns();
        let head = Head {
            reason,
            wall_ns: Clock::sample().to_utc_ns(monotonic_ns),
            monotonic_ns,
            offset_s: Local::now().offset().local_minus_utc(),
            lost: self.tracer.losses()?.lines() + self.ring.refused(),
            ..self.head.clone()
        };
        if let Err(failure) = self.dumps.begin(head, blocks) {
            self.tell_failed(&failure);
        }
        Ok(())
    }

    fn tell_written(&mut self, written: Written) {
        match written {
            Ok(dumped) => {
                self.files.written += 1;
                let name = self.dumps.shown(dumped.name.as_ref());
                let words = format!(
                    "{name}: {}, {} KiB, written in {} ms",
                    counted(dumped.packets, "packet"),
                    dumped.bytes.div_ceil(1 << 10),
                    dumped.time.as_millis()
                );
                if !self.config.quiet {
                    tell(&words);
                }
                self.tell_asking(StatusCode::OK, &words);
                if let Err(why) = self.dumps.tidy() {
                    tell(why);
                }
            }
            Err(error) => {
                let failure = self.dumps.failed(error);
                self.tell_failed(&failure);
            }
        }
    }

    /// Tells stderr, even a quiet one, that there is no file.
    fn tell_failed(&mut self, why: &dyn Display) {
        self.files.failed += 1;
        let words = format!("{why}; recording goes on");
        tell(&words);
        self.tell_asking(StatusCode::INSUFFICIENT_STORAGE, &words);
    }

    /// Answers all waiting requests.
    fn tell_asking(&mut self, status: StatusCode, words: &str) {
        for ask in self.asking.drain(..) {
            // Who asked may have gone.
            let _ = ask.send((status, words.to_owned()));
        }
    }

    /// How long the memory lasts, by what has come so far.
    fn tell_estimate(&self) {
        let (bytes, packets) = self.ring.size();
        let rate = packets as f64 / self.begun.elapsed().as_secs_f64();
        let Some(each) = self.ring.bytes_per_packet().filter(|_| rate > 0.0) else {
            return tell("no packets in the first 10 s: how long the memory lasts is not known yet");
        };
        let lasts = self.config.memory.saturating_sub(self.ring.packer.size()) as f64 / (rate * each);
        let lasts = Duration::from_secs_f64(lasts.min(1e9));
        let is_enough = if lasts < self.config.last {
            ", less than --last: more --memory, a filter or --sample helps"
        } else {
            ""
        };
        tell(format_args!(
            "{rate:.0} packets a second, {each:.1} bytes each, {} MiB so far: the memory lasts {} at this rate{is_enough}",
            bytes.div_ceil(1 << 20),
            seconds(lasts),
        ));
    }

    /// Detaches, waits for a file that is being written, and says what was kept and what was lost.
    async fn finish(&mut self) -> Result<(), Failure> {
        let elapsed = self.begun.elapsed();
        let mut losses = self.tracer.detach()?;
        while self.drain()? {}
        if self.dumps.check() == Err(Refused::Busy) {
            let written = self.dumps.written().await;
            self.tell_written(written);
        }
        losses.not_kept = self.ring.refused();
        let kept = self.packets.iter().sum::<u64>() - losses.not_kept;
        let ledger = self.tracer.ledger(kept, self.left_out, losses.not_kept)?;
        losses.evicted_in = ledger.evicted;
        if !self.config.quiet {
            let Files { written, failed, near, empty } = self.files;
            tell(format_args!(
                "recordings: {written} written, {failed} failed, {near} skipped (one was being written, or the last began \
                 less than {} before), {empty} skipped (no packets yet)",
                seconds(self.config.every)
            ));
        }
        let balance =
            Balance { packets: self.packets, elapsed, losses: &losses, ledger: &ledger, cost: None };
        // A file tells about single packets.
        let summary = &Summary::default();
        let footer = Footer { balance, summary, view: View::Record, zone: self.config.zone };
        self.tracer.say_footer(self.config.footer, footer)
    }
}

const NOTHING: &str = "there is nothing to write: no packets yet";

/// The next request; never comes without a server.
async fn next_ask(server: Option<&mut Server<Dump>>) -> Dump {
    let ask = match server {
        Some(server) => server.asks.recv().await,
        None => None,
    };
    match ask {
        Some(ask) => ask,
        None => std::future::pending().await,
    }
}

/// Packets that the kernel has dropped.
fn dropped(losses: &Losses) -> u64 {
    losses.drops.iter().map(|(_, count)| count).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_in_their_unit() {
        let told = [250, 1_000, 119_999, 300_000, 7_200_000].map(|ms| seconds(Duration::from_millis(ms)));
        assert_eq!(told, ["250 ms", "1 s", "119 s", "5 min", "2 h"]);
    }
}
