//! A finished packet as the views and the output forms see it: typed, and with what only the user
//! side knows (wall-clock time, device name).

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use net_latency_common::{
    AF_INET6, COMM_LEN, Direction, FLAG_AMBIGUOUS, FLAG_COALESCED, FLAG_CONTROL, FLAG_DROPPED, FLAG_GRO,
    FLAG_RETRANS, FLAG_RTO, FLAG_ZERO_WINDOW, Held, IPPROTO_TCP, IPPROTO_UDP, PART_CPU, PART_DRIVER,
    PART_FINISHED, PART_NET, PART_QDISC, PacketRecord, STAMP_APP, STAMP_DRV, STAMP_IP, STAMP_TRANSPORT,
    STAMPS, Served, Unknown, part,
};
use syscall_numbers::native::sys_call_name;

pub use net_latency_common::PARTS;

/// Number of columns of a line: the ways between neighbouring stages.
pub(crate) const COLUMNS: usize = STAMPS - 1;

/// Flags that the kernel side sets, by name, and what they say. The names are part of the interface.
const FLAG_NAMES: [(u16, &str, &str); 8] = [
    (FLAG_CONTROL, "control", "No payload: SYN, FIN, RST, pure ACK or probe."),
    (FLAG_RETRANS, "retrans", "TCP sent these bytes again."),
    (FLAG_GRO, "gro", "GRO had merged several segments."),
    (FLAG_COALESCED, "coalesced", "Was appended to another segment's buffer before it was read."),
    (
        FLAG_AMBIGUOUS,
        "ambiguous",
        "Another copy of the segment came while it waited, or may have come and been evicted: no stamp is known to be its own.",
    ),
    (
        FLAG_ZERO_WINDOW,
        "zero-window",
        "With --stages fine: the peer's window was 0 at a time between the write call and the ACK.",
    ),
    (FLAG_RTO, "rto", "With --stages fine: the retransmission timer sent it, or bytes of it, again."),
    (FLAG_DROPPED, "dropped", "With --stages fine: the device's queue dropped it."),
];

/// The flag of a packet with a stage that is unknown.
const PARTIAL: &str = "partial";

/// All flags by name, and what they say.
pub(crate) const FLAGS: [(&str, &str); FLAG_NAMES.len() + 1] = {
    let mut names = [(PARTIAL, "A packet with payload of which a stage is unknown."); FLAG_NAMES.len() + 1];
    let mut place = 0;
    while place < FLAG_NAMES.len() {
        names[place] = (FLAG_NAMES[place].1, FLAG_NAMES[place].2);
        place += 1;
    }
    names
};

/// Why TCP held bytes back, as in JSON. The names are part of the interface.
#[must_use]
pub(crate) const fn held_name(held: Held) -> &'static str {
    match held {
        Held::ReceiveWindow => "rwnd",
        Held::CongestionWindow => "cwnd",
        Held::Nagle => "nagle",
        Held::Cork => "cork",
        Held::Pacing => "pacing",
        Held::SmallQueue => "tsq",
        Held::SendBuffer => "sndbuf",
    }
}

/// What that is.
#[cfg(test)]
pub(crate) const fn held_meaning(held: Held) -> &'static str {
    match held {
        Held::ReceiveWindow => "The peer's window had no room.",
        Held::CongestionWindow => "The congestion window was in use.",
        Held::Nagle => "Nagle's algorithm: they fill no segment, and an ACK is missing.",
        Held::Cork => "TCP_CORK: they fill no segment.",
        Held::Pacing => "The rate at which the socket may send: SO_MAX_PACING_RATE, or BBR.",
        Held::SmallQueue => "Enough of the socket waits in the device's queue.",
        Held::SendBuffer => "The write call waited for room in the send buffer.",
    }
}

/// The reason of that name.
pub(crate) fn held_named(name: &str) -> Option<Held> {
    Held::ALL.into_iter().find(|held| held_name(*held) == name)
}

/// What carries a packet's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Protocol {
    /// Its name, as in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }

    /// By its number in IP's header, as the kernel side has it.
    #[must_use]
    pub const fn of(number: u8) -> Self {
        if number == IPPROTO_UDP { Self::Udp } else { Self::Tcp }
    }

    /// That number.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => IPPROTO_TCP,
            Self::Udp => IPPROTO_UDP,
        }
    }
}

/// A version of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpVersion {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// When the packet was finished: its latest known stamp, in ns of `CLOCK_MONOTONIC`; 0 if it has none.
#[must_use]
#[inline]
pub fn completion_ns(record: &PacketRecord) -> u64 {
    let [a, b, c, d] = record.stamps;
    a.max(b).max(c.max(d))
}

/// When the line of a packet with these parts was complete: an outgoing one's with fine stages is later than the packet is with
/// its device.
#[must_use]
#[inline]
pub(crate) fn finished_ns(record: &PacketRecord, parts: Option<&[u64; PARTS]>) -> u64 {
    line_ns(completion_ns(record), record, parts)
}

/// When the line of a packet that was finished then was complete.
#[must_use]
#[inline]
pub(crate) fn line_ns(completion_ns: u64, record: &PacketRecord, parts: Option<&[u64; PARTS]>) -> u64 {
    match parts {
        Some(parts) if record.direction != Direction::In as u8 => {
            completion_ns.max(part(parts[PART_FINISHED]).unwrap_or(0))
        }
        _ => completion_ns,
    }
}

/// The stages in the order in which a packet crosses them: indices of its stamps.
const IN_ORDER: [usize; STAMPS] = [STAMP_DRV, STAMP_IP, STAMP_TRANSPORT, STAMP_APP];
/// See [`IN_ORDER`].
const OUT_ORDER: [usize; STAMPS] = [STAMP_APP, STAMP_TRANSPORT, STAMP_IP, STAMP_DRV];

/// The stamps in the order in which the packet crosses the stages.
#[inline]
pub(crate) fn in_display_order(record: &PacketRecord) -> [u64; STAMPS] {
    // Each of the two by itself, which takes no table.
    if record.direction == Direction::In as u8 {
        IN_ORDER.map(|stage| record.stamps[stage])
    } else {
        OUT_ORDER.map(|stage| record.stamps[stage])
    }
}

/// Stamps in the order in which a packet crosses the stages, as its record has them.
pub(crate) fn from_display_order(direction: Direction, crossed: [u64; STAMPS]) -> [u64; STAMPS] {
    let order = match direction {
        Direction::In => IN_ORDER,
        Direction::Out => OUT_ORDER,
    };
    let mut stamps = [0; STAMPS];
    for (stage, stamp) in order.into_iter().zip(crossed) {
        stamps[stage] = stamp;
    }
    stamps
}

/// Time from one stamp to a later one, if both are known. A later stage stamped before an earlier one can't be this
/// packet's: unknown, not a number.
#[inline]
fn between(from: u64, to: u64) -> Option<u64> {
    if from == 0 || to == 0 { None } else { to.checked_sub(from) }
}

/// Whether the packet of this record took so long, in total or in one stage. Apart from [`Event::is_slow`], so that stages are made only
/// for a caller that asks.
#[inline(never)]
pub(crate) fn is_slow(record: &PacketRecord, parts: Option<&[u64; PARTS]>, least: Duration) -> bool {
    Event::new(record, 0, None).with_parts(parts).is_slow(least)
}

/// Which way the packet of this record went.
#[inline]
pub(crate) fn direction_of(record: &PacketRecord) -> Direction {
    if record.direction == Direction::In as u8 { Direction::In } else { Direction::Out }
}

/// What only the user side knows of a packet, beside its time. Unknown is `None`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Found<'a> {
    /// The name of its device, as the kernel has it (any bytes).
    pub ifname: Option<&'a [u8]>,
    /// The process' number in its own PID namespace.
    pub ns_pid: Option<u32>,
    /// The name of its network namespace.
    pub netns_name: Option<&'a [u8]>,
    /// The short id of the process's container.
    pub container: Option<&'a [u8]>,
}

/// A finished packet. Cheap to copy; borrows the record from the ring buffer.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    record: &'a PacketRecord,
    wall_ns: i64,
    ifname: Option<&'a [u8]>,
    ns_pid: Option<u32>,
    netns_name: Option<&'a [u8]>,
    container: Option<&'a [u8]>,
    /// In display order. Every view asks for them, and some twice.
    stages: [Option<u64>; COLUMNS],
    total: Option<u64>,
    parts: Option<&'a [u64; PARTS]>,
    served: Option<&'a Served>,
    /// The name of the system call, where that is not by its number.
    call: Option<&'a [u8]>,
    /// A line of a log may lack it.
    has_seq: bool,
}

/// An address of a record of that family.
#[inline(always)]
pub(crate) fn address(bytes: &[u8; 16], family: u8) -> IpAddr {
    if u32::from(family) == AF_INET6 {
        IpAddr::V6(Ipv6Addr::from(*bytes))
    } else {
        let [a, b, c, d, ..] = *bytes;
        IpAddr::V4(Ipv4Addr::new(a, b, c, d))
    }
}

impl<'a> Event<'a> {
    /// `wall_ns` is [`completion_ns`] mapped to ns since 1970 in UTC; `ifname` is the name of the
    /// record's device, as the kernel has it (any bytes).
    #[must_use]
    #[inline]
    pub fn new(record: &'a PacketRecord, wall_ns: i64, ifname: Option<&'a [u8]>) -> Self {
        let [first, second, third, last] = in_display_order(record);
        Self {
            record,
            wall_ns,
            ifname,
            ns_pid: None,
            netns_name: None,
            container: None,
            stages: [between(first, second), between(second, third), between(third, last)],
            total: between(first, last),
            parts: None,
            served: None,
            call: None,
            has_seq: true,
        }
    }

    /// [`Self::new`] where all stamps are known, and each is at least as late as that of the stage before it.
    #[inline]
    pub(crate) fn in_order(record: &'a PacketRecord, wall_ns: i64, ifname: Option<&'a [u8]>) -> Self {
        let [first, second, third, last] = in_display_order(record);
        debug_assert!(first != 0 && [first, second, third, last].is_sorted());
        Self {
            record,
            wall_ns,
            ifname,
            ns_pid: None,
            netns_name: None,
            container: None,
            stages: [(first, second), (second, third), (third, last)]
                .map(|(from, to)| Some(to.wrapping_sub(from))),
            total: Some(last.wrapping_sub(first)),
            parts: None,
            served: None,
            call: None,
            has_seq: true,
        }
    }

    /// With its parts, in ns, as [`net_latency_common::FineRecord`] has them.
    #[must_use]
    pub fn with_parts(mut self, parts: Option<&'a [u64; PARTS]>) -> Self {
        self.parts = parts;
        self
    }

    /// Adds the work that was done for it, if it is an answer's first packet.
    #[must_use]
    pub fn with_served(mut self, served: Option<&'a Served>) -> Self {
        self.served = served;
        self
    }

    /// Adds the name of the system call in which that thread was, whatever its number.
    #[must_use]
    pub(crate) fn with_call(mut self, call: Option<&'a [u8]>) -> Self {
        self.call = call;
        self
    }

    /// With the process' number in its own PID namespace.
    #[must_use]
    pub fn with_ns_pid(mut self, ns_pid: Option<u32>) -> Self {
        self.ns_pid = ns_pid;
        self
    }

    /// With the name of its network namespace, and the short id of the process's container.
    #[must_use]
    pub fn with_place(mut self, netns_name: Option<&'a [u8]>, container: Option<&'a [u8]>) -> Self {
        (self.netns_name, self.container) = (netns_name, container);
        self
    }

    /// Whether its sequence number is known.
    #[must_use]
    pub(crate) fn with_seq(mut self, has_seq: bool) -> Self {
        self.has_seq = has_seq;
        self
    }

    /// The record as the kernel side wrote it, for the fields that need no interpretation.
    #[must_use]
    pub fn record(&self) -> &'a PacketRecord {
        self.record
    }

    /// Completion in ns since 1970, UTC.
    #[must_use]
    pub fn wall_ns(&self) -> i64 {
        self.wall_ns
    }

    /// When it crossed the last of its stages, in ns since 1970, UTC. With fine stages the line of an outgoing one is complete later: when
    /// its ACK is taken in, which may have waited for the task that had the socket. A log's line tells when the ACK came alone.
    #[must_use]
    pub(crate) fn last_stage_ns(&self) -> Option<i64> {
        let behind = match (self.parts, self.direction()) {
            (Some(parts), Direction::Out) => {
                let last = if self.protocol() == Protocol::Tcp { PART_NET } else { PART_DRIVER };
                let known = part(parts[PART_QDISC]).ok()?.saturating_add(part(parts[last]).ok()?);
                part(parts[PART_FINISHED]).map_or(known, |at| at.saturating_sub(self.completion_ns()))
            }
            _ => 0,
        };
        self.wall_ns.checked_sub_unsigned(behind)
    }

    /// Completion in ns of `CLOCK_MONOTONIC`.
    #[must_use]
    pub fn completion_ns(&self) -> u64 {
        completion_ns(self.record)
    }

    /// Name of the device, where known.
    #[must_use]
    pub fn ifname(&self) -> Option<&'a [u8]> {
        self.ifname.filter(|name| !name.is_empty())
    }

    /// Which way the packet went.
    #[must_use]
    pub fn direction(&self) -> Direction {
        direction_of(self.record)
    }

    /// What carries the packet's data.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        Protocol::of(self.record.protocol)
    }

    /// The version of IP, 4 or 6.
    #[must_use]
    pub fn ip_version(&self) -> u8 {
        if u32::from(self.record.family) == AF_INET6 { 6 } else { 4 }
    }

    /// Port of its source, whatever its direction.
    #[must_use]
    pub fn sport(&self) -> u16 {
        self.record.sport
    }

    /// Port of its destination, whatever its direction.
    #[must_use]
    pub fn dport(&self) -> u16 {
        self.record.dport
    }

    /// TCP sequence number of the first payload byte.
    #[must_use]
    pub fn seq(&self) -> Option<u32> {
        (self.protocol() == Protocol::Tcp && self.has_seq).then_some(self.record.seq)
    }

    /// For a retransmission: how long before it these bytes were first sent, in ns.
    #[must_use]
    pub fn first_send_age_ns(&self) -> Option<u64> {
        let first =
            (self.direction() == Direction::Out && self.record.other != 0).then_some(self.record.other)?;
        let now = self.record.stamps[STAMP_TRANSPORT];
        (now != 0).then(|| now.checked_sub(first))?
    }

    /// For a received packet that entered the stack more than once: from its last entry to IP, in ns.
    #[must_use]
    pub fn last_drv_ip_ns(&self) -> Option<u64> {
        let last =
            (self.direction() == Direction::In && self.record.other != 0).then_some(self.record.other)?;
        let ip = self.record.stamps[STAMP_IP];
        (ip != 0).then(|| ip.checked_sub(last))?
    }

    /// Time in ns that column `column` (0, 1, 2 in display order) took; `None` if one of its two stages
    /// is unknown, or if the stamps contradict each other.
    #[must_use]
    pub fn stage(&self, column: usize) -> Option<u64> {
        *self.stages.get(column)?
    }

    /// All columns in display order, in ns.
    #[must_use]
    pub fn stages(&self) -> [Option<u64>; COLUMNS] {
        self.stages
    }

    /// Time in ns from the first to the last stage; `None` unless both are known.
    #[must_use]
    pub fn total_ns(&self) -> Option<u64> {
        self.total
    }

    /// Whether it took so long, in total or in one stage.
    #[must_use]
    pub fn is_slow(&self, least: Duration) -> bool {
        let parts = self.parts().into_iter().flatten();
        let mut times = self.stages().into_iter().chain([self.total_ns()]).chain(parts).flatten();
        times.any(|ns| u128::from(ns) >= least.as_nanos())
    }

    /// Whether its parts were requested.
    #[must_use]
    pub fn has_parts(&self) -> bool {
        self.parts.is_some()
    }

    /// Its parts as the record has them.
    #[must_use]
    pub(crate) fn raw_parts(&self) -> Option<&'a [u64; PARTS]> {
        self.parts
    }

    /// Likewise, the work that was done for it.
    #[must_use]
    pub(crate) fn raw_served(&self) -> Option<&'a Served> {
        self.served
    }

    /// Its parts, in ns, `None` where unknown; nothing unless requested.
    /// [`split`](crate::packet::stages::split) says which it has.
    #[must_use]
    #[inline]
    pub fn parts(&self) -> Option<[Option<u64>; PARTS]> {
        let mut times = self.parts?.map(|value| part(value).ok());
        if self.direction() == Direction::Out {
            // That is no time of a stage.
            times[PART_FINISHED] = None;
        }
        Some(times)
    }

    /// Why TCP held its bytes back for half of the first column or more; `None` where it didn't, or the reason is unknown.
    #[must_use]
    pub fn held(&self) -> Option<Held> {
        Held::of(self.record.held.into())
    }

    /// The smoothed round-trip time of its connection when TCP sent it, ns, as `ss -ti` shows it; `None` of others, and before the
    /// first ACK.
    #[must_use]
    pub fn rtt_ns(&self) -> Option<u64> {
        let rtt = self.record.rtt_or_holder;
        // Eighths of a microsecond.
        (self.direction() == Direction::Out && rtt != 0).then_some(u64::from(rtt) * 125)
    }

    /// The process that had the CPU for most of the time in which this packet's reader waited for it; `None` of others, and if the CPU was
    /// idle or the holder is unknown.
    #[must_use]
    pub fn cpu_held_by(&self) -> Option<u32> {
        let has_waited = self.direction() == Direction::In
            && self.parts.is_some_and(|parts| part(parts[PART_CPU]).is_ok_and(|ns| ns > 0));
        Some(self.record.rtt_or_holder).filter(|pid| has_waited && *pid != 0)
    }

    /// For an answer's first packet: what the thread that wrote it has done since it read the request, or why that is unknown. `None` for
    /// others.
    #[must_use]
    pub fn served(&self) -> Option<Result<&'a Served, Unknown>> {
        let served = self.served.filter(|served| served.all != 0 && self.direction() == Direction::Out)?;
        Some(part(served.all).map(|_| served))
    }

    fn known_served(&self) -> Option<&'a Served> {
        self.served()?.ok()
    }

    /// How long that took, ns.
    #[must_use]
    pub fn service_ns(&self) -> Option<u64> {
        self.known_served().map(|served| served.all)
    }

    /// The part of that on a CPU, ns, interrupts included.
    #[must_use]
    pub fn service_cpu_ns(&self) -> Option<u64> {
        self.known_served()?.on_cpu()
    }

    /// The part of that in which it waited for a CPU, ns.
    #[must_use]
    pub fn service_wait_ns(&self) -> Option<u64> {
        self.known_served().map(|served| served.waited)
    }

    /// The part of that in which it was asleep, ns.
    #[must_use]
    pub fn service_sleep_ns(&self) -> Option<u64> {
        self.known_served().map(|served| served.asleep)
    }

    /// The system call in which it slept for half of that time or more. `None` too for one that is newer than this build.
    #[must_use]
    pub fn service_syscall(&self) -> Option<&'a [u8]> {
        let number = self.known_served()?.call.checked_sub(1);
        self.call.or_else(|| sys_call_name(number?.try_into().ok()?).map(str::as_bytes))
    }

    /// How many segments the peer had said by then to have got twice, on a connection of TCP that has sent something again: the lower
    /// bits of a number that only grows.
    #[must_use]
    pub fn dsacks(&self) -> Option<u16> {
        self.record.dsacks.checked_sub(1)
    }

    /// Why those of its parts are unknown that are; `start` as in [`Self::unknown`].
    #[must_use]
    #[inline]
    pub fn parts_unknown(&self, start: u64) -> [Option<Unknown>; PARTS] {
        match self.parts {
            Some(parts) if !self.is_control() && parts.iter().any(|value| part(*value).is_err()) => {
                self.reasons_of(parts, start)
            }
            _ => [None; PARTS],
        }
    }

    #[cold]
    fn reasons_of(&self, parts: &[u64; PARTS], start: u64) -> [Option<Unknown>; PARTS] {
        let reasons = parts.map(|value| part(value).err());
        if self.direction() == Direction::Out {
            return reasons;
        }
        // They split its last stage.
        let [.., last, _] = self.unknown(start);
        let is_ambiguous = self.record.flags & FLAG_AMBIGUOUS != 0;
        let why = last.or(is_ambiguous.then_some(Unknown::Ambiguous));
        reasons.map(|reason| reason.map(|reason| why.unwrap_or(reason)))
    }

    /// Why those columns, and behind them the total, are unknown that are, if every hook was attached at `start`, in ns
    /// of `CLOCK_MONOTONIC`. A control packet never had what it lacks.
    #[must_use]
    #[inline]
    pub fn unknown(&self, start: u64) -> [Option<Unknown>; COLUMNS + 1] {
        if self.is_control() || !self.stages.contains(&None) && self.total.is_some() {
            return [None; COLUMNS + 1];
        }
        self.reasons(start)
    }

    #[cold]
    fn reasons(&self, start: u64) -> [Option<Unknown>; COLUMNS + 1] {
        let stamps = in_display_order(self.record);
        let why = |from, to| Unknown::of(self.direction(), self.record.flags, stamps, from, to, start);
        std::array::from_fn(|row| match row {
            COLUMNS => self.total.is_none().then(|| why(0, COLUMNS)),
            column => self.stages[column].is_none().then(|| why(column, column + 1)),
        })
    }

    /// Process id in the innermost PID namespace that the process is in, where known.
    #[must_use]
    pub fn ns_pid(&self) -> Option<u32> {
        self.ns_pid
    }

    /// Name of the network namespace, where known: any bytes.
    #[must_use]
    pub fn netns_name(&self) -> Option<&'a [u8]> {
        self.netns_name
    }

    /// Short id of the container that the process is in; `None` on the host.
    #[must_use]
    pub fn container(&self) -> Option<&'a [u8]> {
        self.container
    }

    /// Name of the thread, where known. Threads choose theirs: it may hold any bytes.
    #[must_use]
    pub fn comm(&self) -> Option<&'a [u8]> {
        until_nul(&self.record.comm)
    }

    /// Name of the process, which is that of its first thread, where known. A log may lack it that has the thread's.
    #[must_use]
    pub fn process(&self) -> Option<&'a [u8]> {
        until_nul(&self.record.process)
    }

    /// Source address of the packet, whatever its direction.
    #[must_use]
    pub fn saddr(&self) -> IpAddr {
        self.address(&self.record.saddr)
    }

    /// Destination address of the packet, whatever its direction.
    #[must_use]
    pub fn daddr(&self) -> IpAddr {
        self.address(&self.record.daddr)
    }

    /// [`Self::ends`]; `None` where a log's line lacks one.
    #[must_use]
    pub(crate) fn known_ends(&self) -> Option<[SocketAddr; 2]> {
        let is_known = |end: &SocketAddr| end.port() != 0 || !end.ip().is_unspecified();
        Some(self.ends()).filter(|ends| ends.iter().any(is_known))
    }

    /// Source and destination of the packet, whatever its direction.
    #[must_use]
    pub fn ends(&self) -> [SocketAddr; 2] {
        [SocketAddr::new(self.saddr(), self.record.sport), SocketAddr::new(self.daddr(), self.record.dport)]
    }

    fn address(&self, bytes: &[u8; 16]) -> IpAddr {
        address(bytes, self.record.family)
    }

    /// The packet carries no application data.
    #[must_use]
    pub fn is_control(&self) -> bool {
        self.record.flags & FLAG_CONTROL != 0
    }

    /// TCP had sent its bytes before.
    #[must_use]
    pub fn is_retransmission(&self) -> bool {
        self.record.flags & FLAG_RETRANS != 0
    }

    /// The packet carries application data, and a column of it is unknown. (A control packet never
    /// reaches the application, so what it lacks says nothing.)
    #[must_use]
    pub fn is_partial(&self) -> bool {
        !self.is_control() && self.stages().contains(&None)
    }

    /// Adds one for each of its flags, by their places in [`FLAGS`].
    pub(crate) fn count_flags(&self, counts: &mut [u64; FLAGS.len()]) {
        let [kernels @ .., partial] = counts;
        for ((bit, ..), count) in FLAG_NAMES.iter().zip(kernels) {
            *count += u64::from(self.record.flags & bit != 0);
        }
        *partial += u64::from(self.is_partial());
    }

    /// Names of the packet's flags.
    pub fn flags(&self) -> impl Iterator<Item = &'static str> + use<> {
        let partial = self.is_partial().then_some(PARTIAL);
        flag_names(self.record.flags).chain(partial)
    }
}

/// This machine's end of a packet that goes that way, and the other one, by its source and destination.
#[must_use]
pub(crate) fn local_and_remote(
    direction: Direction,
    [source, destination]: [SocketAddr; 2],
) -> (SocketAddr, SocketAddr) {
    match direction {
        Direction::In => (destination, source),
        Direction::Out => (source, destination),
    }
}

/// A name up to its NUL, if it has any bytes.
fn until_nul(name: &[u8; COMM_LEN]) -> Option<&[u8]> {
    const LOW: u128 = u128::from_ne_bytes([0x01; COMM_LEN]);
    const HIGH: u128 = LOW << 7;
    // The lowest bit set is the high one of the first byte that is 0; of a name without such a byte none is set.
    let word = u128::from_le_bytes(*name);
    let end = (word.wrapping_sub(LOW) & !word & HIGH).trailing_zeros() as usize / 8;
    (end > 0).then(|| &name[..end])
}

/// Names of the flags that the kernel side has set.
pub(crate) fn flag_names(flags: u16) -> impl Iterator<Item = &'static str> {
    FLAG_NAMES.into_iter().filter(move |(bit, ..)| flags & bit != 0).map(|(_, name, _)| name)
}

/// The flag of this name, if the kernel side sets it.
pub(crate) fn flag_named(name: &str) -> Option<u16> {
    FLAG_NAMES.into_iter().find(|(_, known, _)| *known == name).map(|(bit, ..)| bit)
}

#[cfg(test)]
pub(crate) mod fixtures {
    //! Records that the tests of the output forms share.

    use net_latency_common::{AF_INET, AF_INET6, Direction, IPPROTO_TCP, IPPROTO_UDP, PacketRecord};

    /// 2022-03-02 16:01:36.123456789 UTC in ns.
    pub(crate) const WALL_NS: i64 = 1_646_236_896_123_456_789;

    pub(crate) fn comm(name: &[u8]) -> [u8; 16] {
        let mut comm = [0; 16];
        comm[..name.len()].copy_from_slice(name);
        comm
    }

    fn v4(a: [u8; 4]) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&a);
        bytes
    }

    /// The first line of the contract: 23 us, 34 us, 189 us, each with a rest below 1 us.
    pub(crate) fn incoming() -> PacketRecord {
        PacketRecord {
            stamps: [1_000_000, 1_023_999, 1_058_000, 1_247_500],
            saddr: v4([192, 0, 2, 7]),
            daddr: v4([198, 51, 100, 20]),
            comm: comm(b"Socket Thread"),
            process: comm(b"firefox"),
            pid: 19550,
            tid: 19561,
            len: 1448,
            seq: 4_000_000_123,
            ifindex: 2,
            netns: 4_026_531_840,
            sport: 443,
            dport: 51324,
            segs: 1,
            cpu: 3,
            direction: Direction::In as u8,
            protocol: IPPROTO_TCP,
            family: AF_INET as u8,
            ..PacketRecord::default()
        }
    }

    /// The second line of the contract: 3 us, 7 us, 2 us.
    pub(crate) fn outgoing() -> PacketRecord {
        let incoming = incoming();
        PacketRecord {
            stamps: [1_012_000, 1_010_000, 1_003_000, 1_000_000],
            saddr: incoming.daddr,
            daddr: incoming.saddr,
            sport: incoming.dport,
            dport: incoming.sport,
            direction: Direction::Out as u8,
            ..incoming
        }
    }

    /// `record` as a datagram.
    pub(crate) fn udp(record: PacketRecord) -> PacketRecord {
        PacketRecord { protocol: IPPROTO_UDP, seq: 0, ..record }
    }

    /// `record` between two IPv6 hosts.
    pub(crate) fn v6(record: PacketRecord) -> PacketRecord {
        let address = |last| [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
        PacketRecord { saddr: address(1), daddr: address(2), family: AF_INET6 as u8, ..record }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(record: &PacketRecord) -> Event<'_> {
        Event::new(record, fixtures::WALL_NS, None)
    }

    #[test]
    fn one_slow_stage_is_enough() {
        let record = fixtures::incoming();
        let event = event(&record);
        assert!(
            event.is_slow(Duration::from_nanos(247_500)) && !event.is_slow(Duration::from_nanos(247_501))
        );
        let unknown = [net_latency_common::unknown_part(Unknown::NoStamp); PARTS];
        assert!(!event.with_parts(Some(&unknown)).is_slow(Duration::from_secs(1)));
        let slow = [1, 2_000_000, 3, 4];
        assert!(event.with_parts(Some(&slow)).is_slow(Duration::from_millis(2)));
    }

    #[test]
    fn columns_follow_the_packet() {
        let record = fixtures::incoming();
        assert_eq!(event(&record).stages(), [Some(23_999), Some(34_001), Some(189_500)]);
        let record = fixtures::outgoing();
        assert_eq!(event(&record).stages(), [Some(3_000), Some(7_000), Some(2_000)]);
    }

    #[test]
    fn an_unknown_stamp_makes_its_neighbours_unknown_and_nothing_else() {
        let mut record = fixtures::incoming();
        record.stamps[STAMP_IP] = 0;
        assert_eq!(event(&record).stages(), [None, None, Some(189_500)]);
        assert_eq!(event(&record).total_ns(), Some(247_500));
        record.stamps[STAMP_DRV] = 0;
        assert_eq!(event(&record).total_ns(), None);
        assert_eq!(event(&record).flags().collect::<Vec<_>>(), ["partial"]);
    }

    #[test]
    fn stamps_out_of_order_give_no_number() {
        let mut record = fixtures::incoming();
        record.stamps[STAMP_IP] = record.stamps[STAMP_DRV] - 1;
        assert_eq!(event(&record).stage(0), None);
        assert!(event(&record).is_partial());
        let reasons = [Some(Unknown::Contradictory), None, None, None];
        assert_eq!(event(&record).unknown(0), reasons);
        record.stamps[STAMP_IP] = 0;
        let reasons = [Some(Unknown::NoStamp), Some(Unknown::NoStamp), None, None];
        assert_eq!(event(&record).unknown(0), reasons);
    }

    #[test]
    fn the_other_stamp_means_what_the_direction_says() {
        let mut record = fixtures::outgoing();
        assert_eq!((event(&record).first_send_age_ns(), event(&record).last_drv_ip_ns()), (None, None));
        record.other = record.stamps[STAMP_TRANSPORT] - 700;
        assert_eq!((event(&record).first_send_age_ns(), event(&record).last_drv_ip_ns()), (Some(700), None));
        let mut record = fixtures::incoming();
        record.other = record.stamps[STAMP_IP] - 300;
        assert_eq!((event(&record).first_send_age_ns(), event(&record).last_drv_ip_ns()), (None, Some(300)));
    }

    #[test]
    fn the_columns_end_with_the_last() {
        assert_eq!(event(&fixtures::incoming()).stage(COLUMNS), None);
    }

    #[test]
    fn completion_is_the_latest_stamp() {
        assert_eq!(event(&fixtures::incoming()).completion_ns(), 1_247_500);
        assert_eq!(event(&fixtures::outgoing()).completion_ns(), 1_012_000);
    }

    #[test]
    fn control_packets_are_never_partial() {
        let mut record = fixtures::incoming();
        record.stamps[STAMP_APP] = 0;
        record.flags = FLAG_CONTROL | FLAG_RETRANS;
        assert_eq!(event(&record).flags().collect::<Vec<_>>(), ["control", "retrans"]);
    }

    #[test]
    fn zero_ids_and_empty_names_are_unknown() {
        let mut record = fixtures::incoming();
        record.pid = 0;
        record.tid = 0;
        (record.comm, record.process) = ([0; 16], [0; 16]);
        let event = Event::new(&record, 0, Some(b""));
        assert_eq!((event.pid(), event.tid(), event.comm(), event.ifname()), (None, None, None, None));
        assert_eq!(event.process(), None);
    }

    #[test]
    fn names_end_at_their_nul_or_at_the_end_of_the_field() {
        let mut record = fixtures::incoming();
        assert_eq!(event(&record).comm(), Some(&b"Socket Thread"[..]));
        assert_eq!(event(&record).process(), Some(&b"firefox"[..]));
        record.comm = [b'x'; 16];
        assert_eq!(event(&record).comm(), Some(&[b'x'; 16][..]));
    }

    #[test]
    fn addresses_follow_the_family() {
        let record = fixtures::incoming();
        assert_eq!(event(&record).saddr().to_string(), "192.0.2.7");
        let record = fixtures::v6(record);
        assert_eq!(event(&record).daddr().to_string(), "2001:db8::2");
    }
}
