//! `net-latency export`: counts times in the kernel, and keeps metrics of them for a scraper ([`kept`]); [`slow`] writes lines besides,
//! and [`connections`] has connections besides.

mod connections;
mod kept;
mod slow;

use std::{
    convert::Infallible,
    time::{Duration, Instant, SystemTime},
};

use anyhow::Context as _;
use bytes::Bytes;
use net_latency_common::Counter;
use tokio::time::{MissedTickBehavior, interval};

use self::{connections::Followed, kept::Kept, slow::Slow};
use super::{Alarm, hist};
use crate::{
    accounting::{Ledger, Losses, object::View},
    clock::cpu_of_thread,
    error::Failure,
    export::{
        families::{Figures, Hook},
        form::Form,
        groups::Groups,
        listener::Listener,
        names::Names,
        process,
        server::{Asked, Scrape, Server, gzipped, hosts},
    },
    message::tell,
    request::{ExportBy, ExportConfig, Listen},
    run::{
        beats::{Beat, Beats},
        ends::{Selected, Signals},
        pace::{self, TICK},
        privileges::{self, Later},
        tracer::Tracer,
    },
};

/// How often losses and names are looked at. A pod that comes is named within 5 s.
const LOOK: Duration = Duration::from_secs(2);
/// How old the counts may become without a scrape: processes that have gone make room.
const OLDEST: Duration = Duration::from_secs(30);

/// Counts, and answers scrapers, until something ends the run.
///
/// # Errors
/// [`Failure::CannotTrace`] before anything is attached; a usage failure if this machine has no such address; a failure
/// while running if something else listens there, or reading fails.
pub(crate) fn run(config: &ExportConfig) -> Result<(), Failure> {
    pace::block_on(export(config))
}

async fn export(config: &ExportConfig) -> Result<(), Failure> {
    let start =
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).context("the clock is before 1970")?;
    let mut signals = Signals::listen().context("cannot listen for signals")?;
    let mut selected = Selected::hold(&config.filter, false)?;
    let names = Names::new(config.by);
    if matches!(config.by, ExportBy::Cgroup | ExportBy::Pod) && !names.has_hierarchy() {
        return Err(Failure::cannot_trace(
            "cannot name cgroups: no cgroup2 file system is mounted",
            "mount one at /sys/fs/cgroup",
        ));
    }
    let slow = config.slow.as_ref().map(Slow::open).transpose()?;
    let listener = Listener::open(&config.listen)?;
    let metrics = match listener.address() {
        Listen::Port(address) => format!("http://{address}/metrics"),
        socket @ Listen::Unix(_) => socket.to_string(),
    };
    // It answers that it is alive while hooks are being attached, which takes a while.
    // Its thread reads nothing but what scrapers send.
    let server = Server::start(listener, hosts(&config.host_names), Asked::Metrics, || {
        privileges::give_up_in_this_thread(&Later::default(), || true).map(drop)
    })?;
    let tracer = Tracer::start_counting(&config.filter, config.backend, config.histograms(), config.quiet)?;
    let mut followed = config.connections.then(|| Followed::start(config)).transpose()?;
    selected.are_there()?;
    let socket = match &config.listen {
        Listen::Port(_) => None,
        Listen::Unix(path) => Some(path.as_path()),
    };
    let later = Later {
        answers: true,
        socket,
        reads_names: true,
        runs_program: config.connections,
        ..Later::default()
    };
    privileges::give_up(&later, || tracer.losses().is_ok())?;
    followed.as_mut().map_or(Ok(()), |followed| followed.tracing.begin())?;
    server.set_ready(true);
    if !config.quiet {
        let by = tracer.mechanism().name();
        tell(format_args!("tracing by {by}; metrics at {metrics}; Ctrl-C ends it"));
    }
    let hooks =
        tracer.hooks().iter().map(|&[stage, mechanism, name]| Hook { stage, mechanism, name }).collect();
    let alarm = Alarm::new("packets lost just now: more --buckets, or a filter, helps", config.quiet);
    let mut export = Export {
        config,
        tracer,
        started: Instant::now(),
        start_seconds: start.as_secs_f64(),
        hooks,
        names,
        groups: Groups::new(config.series, room(config)),
        refused: 0,
        ledger: Ledger::default(),
        kept: Kept::new(Instant::now()),
        alarm,
        slow,
        followed,
    };
    let outcome = export.answer(server, &mut signals, &mut selected).await;
    let told = export.finish();
    outcome.and(told)
}

/// How many counts the kernel side's table has room for, where they are in one.
fn room(config: &ExportConfig) -> usize {
    if config.by == ExportBy::None { usize::MAX } else { config.buckets as usize }
}

struct Export<'a> {
    config: &'a ExportConfig,
    tracer: Tracer,
    started: Instant,
    start_seconds: f64,
    hooks: Vec<Hook>,
    names: Names,
    groups: Groups,
    /// Packets that had found no room for a count by the last tick.
    refused: u64,
    /// The ledger of the run so far, whose counts never fall.
    ledger: Ledger,
    /// By its form and whether it is packed.
    kept: Kept<(Form, bool)>,
    alarm: Alarm,
    /// Writes lines of slow packets, if requested.
    slow: Option<Slow>,
    /// Connections, if requested.
    followed: Option<Followed>,
}

impl Export<'_> {
    /// Answers scrapers until something ends the run.
    async fn answer(
        &mut self,
        mut server: Server<Scrape>,
        signals: &mut Signals,
        selected: &mut Selected,
    ) -> Result<(), Failure> {
        let period = if self.slow.is_some() || self.followed.is_some() { TICK } else { LOOK };
        let mut beats = Beats::new(Some((signals, selected)), self.config.duration, None, period)?;
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                biased;
                _ = looks.tick() => {
                    self.names.refresh();
                    self.slow.iter_mut().for_each(Slow::refresh);
                    let losses = self.tracer.losses()?;
                    self.alarm.look(&losses);
                    self.followed.as_mut().map_or(Ok(()), |followed| followed.tracing.warn())?;
                    let (now, before) = (Instant::now(), self.refused);
                    self.refused = losses.counters.get(Counter::HistogramFull);
                    let is_crowded = self.groups.is_crowded() || self.refused > before;
                    if self.kept.is_older(OLDEST, now) || is_crowded && self.kept.is_due(now) {
                        self.look()?;
                    }
                }
                beat = beats.next() => {
                    if beat? == Beat::Over {
                        return Ok(());
                    }
                    self.followed.as_mut().map_or(Ok(()), Followed::read)?;
                    if let Self { slow: Some(slow), tracer, .. } = self {
                        slow.read(tracer, Duration::ZERO)?;
                    }
                }
                scrape = server.asks.recv() => {
                    let Scrape { form, is_packed, answer } = scrape.context("the thread that answers scrapers has ended")?;
                    // The scraper may have gone.
                    let _ = answer.send(self.metrics(form, is_packed)?);
                }
            }
        }
    }

    /// Reads the kernel side's counts.
    fn look(&mut self) -> Result<(), Failure> {
        let before = cpu_of_thread();
        let counts = self.tracer.times()?;
        let Self { groups, names, tracer, .. } = self;
        groups.look(&counts, names, Instant::now(), |idle| tracer.forget_times(idle))?;
        let now = self.tracer.ledger_so_far(self.groups.all().all_packets())?;
        let Ledger { shown, filtered, lost, dropped, .. } = &mut self.ledger;
        *shown = now.shown;
        // While packets move, one may look as if it had been evicted.
        for (place, now) in [(filtered, now.filtered), (lost, now.lost), (dropped, now.dropped)] {
            *place = now.max(*place);
        }
        self.followed.as_mut().map_or(Ok(()), Followed::look)?;
        self.kept.looked(Instant::now(), cpu_of_thread() - before);
        Ok(())
    }

    /// The metrics in that form.
    fn metrics(&mut self, form: Form, is_packed: bool) -> Result<Bytes, Failure> {
        if self.kept.is_due(Instant::now()) {
            self.look()?;
        }
        self.kept_or_made(form, is_packed)
    }

    fn kept_or_made(&mut self, form: Form, is_packed: bool) -> Result<Bytes, Failure> {
        if let Some(made) = self.kept.made(&(form, is_packed)) {
            return Ok(made);
        }
        let plain = if is_packed { Some(self.kept_or_made(form, false)?) } else { None };
        let before = cpu_of_thread();
        let made = plain.map_or_else(|| self.make(form), |plain| Ok(gzipped(&plain)))?;
        self.kept.keep((form, is_packed), made.clone(), Instant::now(), cpu_of_thread() - before);
        Ok(made)
    }

    fn make(&self, form: Form) -> Result<Bytes, Failure> {
        let figures = Figures {
            by: self.config.by,
            groups: &self.groups,
            ledger: self.ledger,
            losses: &self.losses()?,
            skipped: self.tracer.missed(),
            hooks: &self.hooks,
            slow_lines: self.slow.as_ref().map(Slow::written),
        };
        let mut families = figures.families();
        if let Some(followed) = &self.followed {
            families.extend(followed.families()?);
        }
        families.extend(process::families(self.start_seconds)?);
        Ok(Bytes::from(form.encode(&families)))
    }

    /// The losses so far.
    fn losses(&self) -> Result<Losses, Failure> {
        let mut losses = self.tracer.losses()?;
        self.slow.iter().for_each(|slow| slow.note(&mut losses));
        Ok(losses)
    }

    /// Detaches, and says what was counted and what was lost.
    fn finish(&mut self) -> Result<(), Failure> {
        let elapsed = self.started.elapsed();
        let mut losses = self.tracer.detach()?;
        if let Some(slow) = &mut self.slow {
            slow.finish(&mut self.tracer)?;
            slow.note(&mut losses);
        }
        let counts = self.tracer.times()?;
        let Self { groups, names, .. } = self;
        let Ok(()) = groups.look::<Infallible>(&counts, names, Instant::now(), |_| Ok(false));
        let counts = self.groups.all().counts();
        hist::say_figures(&self.tracer, View::Export, &counts, &mut losses, elapsed, self.config.footer)
    }
}
