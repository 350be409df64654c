//! Tracing connections, for the view of them and for what has them beside packets.

use std::collections::BTreeMap;

use net_latency_common::{ConnectionCounter, ConnectionCounters, DropPlace};

use super::notice::Notice;
use crate::{
    diagnosis::Dropped,
    error::Failure,
    kernel::{self, symbols::Opened},
    message::{counted, tell},
    packet::event::Protocol,
    probes::{
        attach::{self, Probes, Request},
        connections::{Connections, Which},
        plan::{Plan, Scope},
        table::Mechanism,
    },
    request::{Backend, PacketFilter},
};

/// Bytes of the ring buffer beside packets: 5,600 connections that end in the time between two reads.
const BESIDE_BYTES: u32 = 1 << 20;
/// Most connections at a time for views that people watch, and that see only those that begin meanwhile: the table takes 1 MiB.
const MOST_WATCHED: u32 = 8_192;
/// Sockets that are asked about before what they say is read.
const ASKED_AT_ONCE: usize = 1024;

/// What is told of connections beside their ends.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Also {
    /// When their first bytes came and were written.
    pub(crate) first_bytes: bool,
    /// A record of each client's when it is established.
    pub(crate) established: bool,
    /// Where the kernel drops packets.
    pub(crate) drops: bool,
}

/// The attached kernel side of connections. Dropping it detaches everything.
pub(crate) struct Tracing {
    probes: Probes,
    /// Where records come from.
    pub(crate) capture: Connections,
    /// The kernel's names of reasons for drops, by number.
    reasons: BTreeMap<u32, String>,
    /// Where functions are looked up that dropped packets, opened while this process may.
    symbols: Option<Opened>,
    /// The counts before [`Self::begin`].
    before: ConnectionCounters,
    /// Those lost by the last warning, of which there is none if it is quiet.
    lost: u64,
    is_quiet: bool,
}

/// What has begun beside packets. Where this kernel can't, that is said: `what` is not known then.
pub(crate) fn or_say<T>(begun: Result<Option<T>, Failure>, what: &str) -> Option<T> {
    begun.inspect_err(|failure| tell(format_args!("{what}: {failure}"))).ok().flatten()
}

impl Tracing {
    /// Attaches to this kernel, whose prerequisites were checked, and follows `most` connections at a time. On failure nothing stays attached.
    ///
    /// # Errors
    /// [`Failure::CannotTrace`] with the remedy.
    pub(crate) fn start(
        filter: &PacketFilter,
        backend: Backend,
        buffer_bytes: u32,
        most: u32,
        also: Also,
        is_quiet: bool,
    ) -> Result<Self, Failure> {
        let scope = Scope {
            connections: true,
            first_bytes: also.first_bytes,
            drops: also.drops,
            ..Scope::of(filter)
        };
        let plan = Plan::new(&kernel::read_btf()?, scope)?;
        let notice = Notice::new(format!("attaching {} programs …", plan.choices.len()), is_quiet);
        let request = Request {
            filter: filter.clone(),
            buffer_bytes,
            connections: Some(most),
            tell_established: also.established,
            ..Request::default()
        };
        let (mut probes, mut ebpf) = attach::attach(&plan, backend, &request)?;
        drop(notice);
        let reasons = plan.drop_reasons;
        let symbols = if also.drops { Opened::new().ok() } else { None };
        let capture = Connections::take(&mut ebpf)?;
        probes.release(ebpf);
        Ok(Self {
            probes,
            capture,
            reasons,
            symbols,
            before: ConnectionCounters::default(),
            lost: 0,
            is_quiet,
        })
    }

    /// [`Self::start`] beside packets that are traced. The part of their filter that is of packets alone does not count.
    ///
    /// # Errors
    /// As of [`Self::start`].
    pub(crate) fn start_beside(
        filter: &PacketFilter,
        backend: Backend,
        most: u32,
        also: Also,
        is_quiet: bool,
    ) -> Result<Self, Failure> {
        let filter =
            PacketFilter { protocol: None, slower: None, sample: None, control: false, ..filter.clone() };
        Self::start(&filter, backend, BESIDE_BYTES, most, also, is_quiet)
    }

    /// Attaches beside packets, as [`Self::start_beside`], and begins, unless their filter asks for what connections don't have.
    ///
    /// # Errors
    /// As of [`Self::start_beside`].
    pub(crate) fn begin_beside(
        filter: &PacketFilter,
        backend: Backend,
        also: Also,
        is_quiet: bool,
    ) -> Result<Option<Self>, Failure> {
        let is_udp = filter.protocol == Some(Protocol::Udp);
        if !filter.interfaces.is_empty() || filter.direction.is_some() || is_udp {
            return Ok(None);
        }
        let mut tracing = Self::start_beside(filter, backend, MOST_WATCHED, also, is_quiet)?;
        tracing.begin()?;
        Ok(Some(tracing))
    }

    /// Passes over connections that met some of the hooks only, while others were being attached.
    ///
    /// # Errors
    /// If the kernel refuses to show what is counted.
    pub(crate) fn begin(&mut self) -> Result<(), Failure> {
        while self.capture.oldest()?.is_some() {}
        self.before = self.capture.counters()?;
        Ok(())
    }

    /// How the functions are hooked.
    pub(crate) fn mechanism(&self) -> Mechanism {
        self.probes.mechanism()
    }

    /// How often the kernel skipped a program, where it counts that.
    pub(crate) fn missed(&self) -> Option<u64> {
        self.probes.missed()
    }

    /// The losses since [`Self::begin`].
    ///
    /// # Errors
    /// If the kernel refuses to show it.
    pub(crate) fn counters(&self) -> Result<ConnectionCounters, Failure> {
        let mut counters = self.capture.counters()?;
        counters.iter_mut().zip(self.before).for_each(|(count, before)| *count -= before);
        Ok(counters)
    }

    /// Tells standard error of connections without a line, or without a beginning, if there are new ones.
    ///
    /// # Errors
    /// If the kernel refuses to show it.
    pub(crate) fn warn(&mut self) -> Result<(), Failure> {
        let lost = lost(&self.counters()?);
        let new = lost - std::mem::replace(&mut self.lost, lost);
        if new > 0 && !self.is_quiet {
            tell(format_args!("{} lost just now: a filter helps", counted(new, "connection")));
        }
        Ok(())
    }

    /// What the kernel has dropped, and where.
    pub(crate) fn drops(&self) -> Vec<Dropped> {
        let named = |(place, count): (DropPlace, u64)| Dropped {
            protocol: Protocol::of(place.protocol),
            port: place.port,
            count,
            function: self.symbols.as_ref().and_then(|symbols| symbols.function_at(place.location)),
            reason: self.reasons.get(&place.reason).cloned(),
        };
        let is_known = |(place, count): &(DropPlace, u64)| *count > 0 && *place != DropPlace::default();
        self.capture.drops().into_iter().filter(is_known).map(named).collect()
    }

    /// The sockets in one of the kernel side's tables, in parts whose records fit its buffer together.
    pub(crate) fn sockets(&self, which: Which) -> Vec<Vec<u64>> {
        self.capture.sockets(which).chunks(ASKED_AT_ONCE).map(<[u64]>::to_vec).collect()
    }

    /// Has the kernel side write records of these, as far as they are still in its table.
    ///
    /// # Errors
    /// If the kernel refuses to run the program that does.
    pub(crate) fn ask(&self, sockets: &[u64]) -> Result<(), Failure> {
        Ok(sockets.iter().try_for_each(|&socket| self.capture.ask(socket))?)
    }
}

/// Connections without a line, or without a beginning.
pub(crate) const fn lost(counters: &ConnectionCounters) -> u64 {
    counters[ConnectionCounter::RingFull as usize] + counters[ConnectionCounter::TableFull as usize]
}
