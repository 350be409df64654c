//! Tracing from its start to its end, for every view: prerequisites, attaching, the valid span, detaching.

use std::{
    collections::HashMap,
    fs,
    ops::RangeInclusive,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use net_latency_common::{COMM_LEN, CellKey, ConnectionKey, Counter};
use rustix::param::page_size;

use crate::{
    accounting::{Balance, Census, Cost, Drops, Footer, Ledger, LeftOut, Losses},
    clock::{LazyClock, cpu_of_process, monotonic_ns},
    error::Failure,
    kernel::{self, prerequisites},
    message::say,
    probes::{
        attach::{self, Probes, Request},
        filters,
        histograms::Counts,
        plan::{Choice, Plan, Scope},
        table::Mechanism,
    },
    request::{Backend, FooterFormat, Histograms, PacketFilter, Stages, TracingConfig},
    run::{kernel_log::KernelLog, names::tell_unmatched, notice::Notice},
    source::ring::{Capture, Live, Names},
};

/// Bytes of the ring buffer for slow packets of those that are counted: 1,638 in the time between two reads.
const SLOW_BUFFER_BYTES: u32 = 256 << 10;
/// No completion is out of this.
static ALWAYS: RangeInclusive<u64> = 0..=u64::MAX;

/// The attached kernel side and what it has to say. Dropping it detaches everything.
pub(crate) struct Tracer {
    /// None once detached.
    probes: Option<Probes>,
    mechanism: Mechanism,
    /// What is hooked: stage, mechanism, and name of the function or tracepoint.
    hooks: Vec<[&'static str; 3]>,
    /// No notice is shown when something takes long.
    is_quiet: bool,
    /// Where finished packets come from, also after detaching.
    pub capture: Capture,
    /// Counts of times, if they were requested, also after detaching.
    counts: Option<Counts>,
    /// The kernel side's log, if it was requested and not taken yet.
    log: Option<KernelLog>,
    /// Completions, in ns of `CLOCK_MONOTONIC`, that are valid: while every hook was attached.
    pub span: RangeInclusive<u64>,
    /// When nothing was attached yet, in ns of that clock: no stamp is older.
    since: u64,
    /// Whether records that are refused are told.
    is_debugging: bool,
    /// Where packets were when that began.
    start: Census,
    /// Records that had been thrown away by then: of packets finished before.
    early: u64,
    /// Where packets were when it ended.
    end: Option<Census>,
    /// Completions until then, in ns of `CLOCK_MONOTONIC`, are in the ledger.
    pub counted_until: u64,
    /// Whose sockets dropped packets before that.
    early_drops: Drops,
    /// When all was attached, and the CPU time of this process then.
    attached: (Instant, Duration),
    /// What it has cost since, but for memory.
    cost: Cost,
}

impl Tracer {
    /// Checks this kernel and attaches to it, with a log of the kernel side if `is_debugging`. On failure nothing stays
    /// attached. Unless `is_quiet`, a terminal is told when attaching or detaching takes long.
    ///
    /// # Errors
    /// [`Failure::CannotTrace`] with the remedy.
    pub(crate) fn start(
        filter: &PacketFilter,
        tracing: &TracingConfig,
        is_debugging: bool,
        is_quiet: bool,
    ) -> Result<Self, Failure> {
        let log_level = if is_debugging { aya_log::Level::Debug as u8 } else { 0 };
        let request = Request { log_level, ..request(filter, tracing) };
        Self::begin(&request, tracing.backend, is_quiet, false)
    }

    /// Like [`Self::start`], for who doesn't mind in which order packets come.
    ///
    /// # Errors
    /// [`Failure::CannotTrace`] with the remedy.
    pub(crate) fn start_as_written(
        filter: &PacketFilter,
        tracing: &TracingConfig,
        is_quiet: bool,
    ) -> Result<Self, Failure> {
        Self::begin(&request(filter, tracing), tracing.backend, is_quiet, true)
    }

    /// Like [`Self::start`], with counts of times instead of records, which only those packets have that `histograms` says.
    ///
    /// # Errors
    /// [`Failure::CannotTrace`] with the remedy.
    pub(crate) fn start_counting(
        filter: &PacketFilter,
        backend: Backend,
        histograms: Histograms,
        is_quiet: bool,
    ) -> Result<Self, Failure> {
        let buffer_bytes = match histograms.slower {
            Some(_) => SLOW_BUFFER_BYTES,
            None => u32::try_from(page_size()).context("pages of this size can't be")?,
        };
        let request = Request {
            filter: filter.clone(),
            buffer_bytes,
            histograms: Some(histograms),
            fine: histograms.stages == Stages::Fine,
            ..Request::default()
        };
        Self::begin(&request, backend, is_quiet, false)
    }

    fn begin(request: &Request, backend: Backend, is_quiet: bool, as_written: bool) -> Result<Self, Failure> {
        prerequisites::check()?;
        tell_unmatched(&request.filter, is_quiet);
        let plan =
            Plan::new(&kernel::read_btf()?, Scope { fine: request.fine, ..Scope::of(&request.filter) })?;
        let notice = Notice::new(format!("attaching {} programs …", plan.choices.len()), is_quiet);
        let since = monotonic_ns();
        let (mut probes, mut ebpf) = attach::attach(&plan, backend, request)?;
        let hooks = hooks(&plan, probes.mechanism());
        drop((notice, plan));
        let slower = request.fine.then(|| filters::slower_ns(request.filter.slower));
        let mut capture = Capture::take(&mut ebpf, slower, as_written)?;
        let mut counts = request.histograms.map(|_| Counts::take(&mut ebpf)).transpose()?;
        let log = (request.log_level > 0).then(|| KernelLog::open(&mut ebpf)).transpose()?;
        probes.release(ebpf);
        // Attaching took a while, in which packets met some of the hooks only.
        let mut early = 0;
        while capture.read()?.is_some() {
            early += 1;
        }
        let span = monotonic_ns()..=u64::MAX;
        if let Some(counts) = &mut counts {
            counts.set_span(&span)?;
        }
        let start = capture.census_at_rest()?;
        let early_drops = capture.drops()?;
        Ok(Self {
            mechanism: probes.mechanism(),
            hooks,
            is_quiet,
            probes: Some(probes),
            capture,
            counts,
            log,
            span,
            since,
            // A test should say what it has found.
            is_debugging: request.log_level > 0 || cfg!(debug_assertions),
            start,
            early,
            end: None,
            counted_until: u64::MAX,
            early_drops,
            attached: (Instant::now(), cpu_of_process()),
            cost: Cost::default(),
        })
    }

    /// The packets that were finished while every hook was attached, by this clock, with names where `names` are given.
    /// `left_out` counts the others.
    pub(crate) fn records<'a>(
        &'a mut self,
        clock: &'a LazyClock,
        names: Option<&'a mut Names>,
        left_out: &'a mut LeftOut,
    ) -> Live<'a> {
        let Self { capture, span, since, is_debugging, counted_until, counts, .. } = self;
        // The kernel side gives a record only to what it counts.
        let span = if counts.is_some() { &ALWAYS } else { span };
        Live {
            capture,
            span,
            since: *since,
            counted_until: *counted_until,
            left_out,
            is_debugging: *is_debugging,
            clock,
            names,
        }
    }

    /// Packets finished from now on are not valid.
    pub(crate) fn close(&mut self) {
        self.span = *self.span.start()..=monotonic_ns();
    }

    /// How the functions are hooked.
    #[must_use]
    pub(crate) fn mechanism(&self) -> Mechanism {
        self.mechanism
    }

    /// What is hooked: stage, mechanism, and name of the function or tracepoint.
    #[must_use]
    pub(crate) fn hooks(&self) -> &[[&'static str; 3]] {
        &self.hooks
    }

    /// Takes the kernel side's log, if it has one.
    pub(crate) fn take_log(&mut self) -> Option<KernelLog> {
        self.log.take()
    }

    /// What the kernel side has counted since everything was attached.
    ///
    /// # Errors
    /// If the kernel refuses to show it.
    pub(crate) fn losses(&self) -> Result<Losses, Failure> {
        let counters = self.capture.counters()?.since(&self.start.after);
        Ok(Losses { counters, drops: self.capture.drops()?.since(&self.early_drops), ..Losses::default() })
    }

    /// All that has been counted of times so far.
    ///
    /// # Errors
    /// If they were not wanted, or the kernel refuses to show them.
    pub(crate) fn times(&self) -> Result<Vec<(CellKey, u64)>, Failure> {
        Ok(self.counts.as_ref().context("no times are counted")?.read()?)
    }

    /// Takes the counts of a group that has gone, or has no packets for a while, from the kernel side; whether they were still these.
    ///
    /// # Errors
    /// If times are not counted, or the kernel refuses to.
    pub(crate) fn forget_times(&mut self, counts: &[(CellKey, u64)]) -> Result<bool, Failure> {
        Ok(self.counts.as_mut().context("no times are counted")?.forget(counts)?)
    }

    /// The name of a process that has counts, by its group, where one is known.
    #[must_use]
    pub(crate) fn process_name(&self, group: [u64; 2]) -> Option<[u8; COMM_LEN]> {
        self.counts.as_ref()?.name(group)
    }

    /// The connections that have counts, and the addresses of IPv6 ones, by their numbers.
    ///
    /// # Errors
    /// If times are not counted, or the kernel refuses to show them.
    pub(crate) fn connections(&self) -> Result<HashMap<u64, ConnectionKey>, Failure> {
        Ok(self.counts.as_ref().context("no times are counted")?.connections()?)
    }

    /// Where all packets are now, and the losses: `shown` so far, and `left_out` of the shown ones.
    ///
    /// # Errors
    /// If the kernel refuses to show it.
    pub(crate) fn state(&self, shown: u64, left_out: LeftOut) -> Result<State, Failure> {
        let census = self.capture.census()?;
        // The kernel side sorts out itself what it doesn't send.
        let outside = self.early + left_out.outside + census.before.get(Counter::Outside);
        let ledger = Ledger::new(&census, shown, LeftOut { outside, ..left_out }, 0).while_running();
        let losses = Losses { missed_probes: self.missed(), ..self.losses()? };
        Ok(State { at: Instant::now(), ledger, losses })
    }

    /// How often the kernel has skipped one of the programs so far, where it counts that.
    #[must_use]
    pub(crate) fn missed(&self) -> Option<u64> {
        self.probes.as_ref().and_then(Probes::missed)
    }

    /// Detaches everything and returns the losses until then, skipped calls included where the kernel counts them. Packets finished by now
    /// met all hooks; those finished while they are detached are not valid.
    ///
    /// # Errors
    /// If the kernel refuses to show its counters.
    pub(crate) fn detach(&mut self) -> Result<Losses, Failure> {
        self.span = *self.span.start()..=monotonic_ns().min(*self.span.end());
        // Detaching takes a while, which is not part of the time that the views call the run's.
        let (attached, own_before) = self.attached;
        self.cost.elapsed = attached.elapsed();
        self.cost.own = cpu_of_process().saturating_sub(own_before);
        if let Some(counts) = &mut self.counts {
            counts.set_span(&self.span)?;
        }
        let losses = self.losses()?;
        let end = self.capture.census_at_rest()?;
        self.counted_until = end.at_ns;
        self.end = Some(end);
        let missed_probes = self.missed();
        self.cost.programs = self.probes.as_ref().and_then(Probes::time);
        let notice = Notice::new(format!("detaching {} hooks …", self.hooks.len()), self.is_quiet);
        drop(self.probes.take());
        drop(notice);
        self.capture.finish()?;
        Ok(Losses { missed_probes, ..losses })
    }

    /// What it has cost while all was attached, once it has ended.
    ///
    /// # Errors
    /// If /proc does not show this process' memory.
    pub(crate) fn cost(&self) -> Result<Cost, Failure> {
        Ok(Cost { resident_bytes: resident_bytes()?, ..self.cost })
    }

    /// Says on standard error what closes a run, with its cost, unless no footer was wanted.
    ///
    /// # Errors
    /// As of [`Self::cost`].
    pub(crate) fn say_footer(&self, form: FooterFormat, footer: Footer<'_>) -> Result<(), Failure> {
        if form != FooterFormat::None {
            let cost = self.cost()?;
            let balance = Balance { cost: Some(&cost), ..footer.balance };
            say(|out| Footer { balance, ..footer }.write(form, out));
        }
        Ok(())
    }

    /// Where the packets of the run are so far, of which N are shown. While they move, one may look as if it had been
    /// evicted.
    ///
    /// # Errors
    /// If the kernel refuses to show its counters.
    pub(crate) fn ledger_so_far(&self, shown: u64) -> Result<Ledger, Failure> {
        Ok(Ledger::of_run(&self.start, &self.capture.census()?, self.early, shown, LeftOut::default(), 0))
    }

    /// Where the packets of the whole run are, once it has ended: those `shown`, those `left_out` of what was shown (finished by
    /// [`Self::counted_until`]), and those `unwritten`. Packets that met some of the hooks only, while they were being attached or
    /// detached, are not part of it: they would look dropped.
    ///
    /// # Errors
    /// If it has not ended.
    pub(crate) fn ledger(&self, shown: u64, left_out: LeftOut, unwritten: u64) -> Result<Ledger, Failure> {
        let end = self.end.as_ref().context("still attached")?;
        Ok(Ledger::of_run(&self.start, end, self.early, shown, left_out, unwritten))
    }
}

/// Records of these packets.
fn request(filter: &PacketFilter, tracing: &TracingConfig) -> Request {
    Request {
        filter: filter.clone(),
        buffer_bytes: tracing.buffer_bytes,
        fine: tracing.stages == Stages::Fine,
        ..Request::default()
    }
}

/// What the plan hooks by that mechanism: stage, mechanism, and name of the function or tracepoint.
fn hooks(plan: &Plan, mechanism: Mechanism) -> Vec<[&'static str; 3]> {
    let of = |choice: &Choice| {
        let kind = choice.program(mechanism).kind();
        let stage = choice.hook.stage.name();
        choice.targets(mechanism).iter().map(|&target| [stage, kind, target]).collect::<Vec<_>>()
    };
    plan.choices.iter().flat_map(of).collect()
}

/// Where packets are at one moment of a run: an interval begins and ends with one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct State {
    at: Instant,
    ledger: Ledger,
    losses: Losses,
}

impl State {
    /// What happened between `earlier` and this, and how long that took.
    #[must_use]
    pub(crate) fn since(&self, earlier: &Self) -> (Duration, Ledger, Losses) {
        (self.at - earlier.at, self.ledger.since(&earlier.ledger), self.losses.since(&earlier.losses))
    }
}

/// Memory that this process has of its own.
fn resident_bytes() -> anyhow::Result<u64> {
    let pages = fs::read_to_string("/proc/self/statm").context("reading this process' memory")?;
    let pages = pages.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    Ok(pages.context("/proc/self/statm reads otherwise")? * page_size() as u64)
}
