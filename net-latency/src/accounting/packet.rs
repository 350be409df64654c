//! What a summary needs to know of a packet.

use std::{net::SocketAddr, ops::Range};

use net_latency_common::{Direction, PART_DRIVER, PART_NET, PART_QDISC, Unknown};

use crate::packet::event::{COLUMNS, Event, PARTS, Protocol};

/// An ACK that comes after such a time may be one that the peer's timer sent, ns: Linux waits 40 ms at least, less the tick in
/// which the timer was set, and 200 ms at most; others in between. More than half a round trip comes on top.
pub(crate) const DELAYED_ACK_NS: Range<u64> = 35_000_000..300_000_000;

/// A finished packet as plain values, wherever they come from: an [`Event`], or a line that was read back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// When it was finished, in ns since 1970, UTC.
    pub wall_ns: Option<i64>,
    /// When it crossed the last of the basic stages, likewise.
    pub last_stage_ns: Option<i64>,
    /// Which way it went.
    pub direction: Direction,
    /// What carried its data.
    pub protocol: Protocol,
    /// It carried no data: what such a packet lacks, it never had.
    pub is_control: bool,
    /// Times of its columns in display order, in ns.
    pub stages: [Option<u64>; COLUMNS],
    /// Time from its first to its last stage, in ns.
    pub total: Option<u64>,
    /// Why those of its columns, and behind them its total, are unknown that are; `None` where no reason is given.
    pub reasons: [Option<Unknown>; COLUMNS + 1],
    /// Its parts, in ns, with fine stages.
    pub parts: Option<[Option<u64>; PARTS]>,
    /// Why those of them are unknown that are; `None` where no reason is given.
    pub parts_reasons: [Option<Unknown>; PARTS],
    /// Whether its ACK may have waited for the peer's timer.
    pub may_wait_for_ack: bool,
    /// Its process.
    pub pid: Option<u32>,
    /// The thread's name, any bytes.
    pub comm: Option<&'a [u8]>,
    /// Its process' name, any bytes.
    pub process: Option<&'a [u8]>,
    /// Source and destination.
    pub ends: Option<[SocketAddr; 2]>,
}

impl<'a> Packet<'a> {
    /// The figures of an event to sum up, without its owner and its ends: the rest takes longer than all of this. Every hook was attached
    /// at `start`, in ns of `CLOCK_MONOTONIC`.
    #[inline]
    pub(super) fn times_of(event: &Event<'a>, start: u64) -> Self {
        Self::with_reasons(event, event.unknown(start), event.parts_unknown(start))
    }

    /// [`Self::times_of`], with the reasons of unknown times.
    #[inline]
    fn with_reasons(
        event: &Event<'a>,
        reasons: [Option<Unknown>; COLUMNS + 1],
        parts_reasons: [Option<Unknown>; PARTS],
    ) -> Self {
        let packet = Self {
            wall_ns: Some(event.wall_ns()),
            last_stage_ns: event.last_stage_ns(),
            direction: event.direction(),
            protocol: event.protocol(),
            is_control: event.is_control(),
            stages: event.stages(),
            total: event.total_ns(),
            reasons,
            parts: event.parts(),
            parts_reasons,
            may_wait_for_ack: may_wait_for_ack(event),
            pid: None,
            comm: None,
            process: None,
            ends: None,
        };
        if event.is_retransmission() { packet.sent_again() } else { packet }
    }

    /// The packet as one of bytes that TCP had sent before: its times are in no sum, since its first one says when TCP sent it again and
    /// not how long the host took.
    #[must_use]
    pub fn sent_again(self) -> Self {
        let again = (!self.is_control).then_some(Unknown::SentBefore);
        Self {
            stages: [None; COLUMNS],
            total: None,
            reasons: [again; COLUMNS + 1],
            parts: self.parts.map(|_| [None; PARTS]),
            parts_reasons: [again; PARTS],
            ..self
        }
    }

    /// When it arrived at its driver, or was written, ns since 1970.
    #[must_use]
    pub fn begun_ns(&self) -> Option<i64> {
        self.last_stage_ns?.checked_sub_unsigned(self.total?)
    }

    /// When its device's queue let an outgoing one go, ns since 1970.
    #[must_use]
    pub(crate) fn left_queue_ns(&self) -> Option<i64> {
        let qdisc = self.parts.map_or(Some(0), |parts| parts[PART_QDISC]);
        self.last_stage_ns?.checked_add_unsigned(qdisc?)
    }

    /// When its ACK came, ns since 1970.
    #[must_use]
    pub(crate) fn acked_ns(&self) -> Option<i64> {
        self.left_queue_ns()?.checked_add_unsigned(self.parts?[PART_NET]?)
    }

    /// The name by which people know its owner: the process' or, in a log that lacks it, the thread's.
    #[must_use]
    pub fn name(&self) -> Option<&'a [u8]> {
        self.process.or(self.comm)
    }

    /// Its rank among the slowest: the time of all its stages or, where that is unknown, its longest one. One with neither can't be
    /// compared.
    ///
    /// A time that may be the peer's timer says nothing about it.
    #[inline]
    pub(super) fn rank(&self) -> Option<u64> {
        if let Some([qdisc, driver, net, _]) = self.parts.filter(|_| self.may_wait_for_ack)
            && net.is_some_and(|net| DELAYED_ACK_NS.contains(&net))
        {
            return Some(whole(self.total?, self.direction, Some(&[qdisc, driver, None, None])));
        }
        self.whole().or_else(|| self.stages.into_iter().flatten().max())
    }

    /// The time of all its stages: its total and, for an outgoing one with fine stages, the known stages behind it.
    #[inline]
    pub(super) fn whole(&self) -> Option<u64> {
        Some(whole(self.total?, self.direction, self.parts.as_ref()))
    }
}

/// Whether the peer may keep the ACK back until its timer sends it: it acknowledges every second segment at once.
#[inline]
fn may_wait_for_ack(event: &Event<'_>) -> bool {
    let is_even = event.segs() > 1 && event.segs().is_multiple_of(2);
    event.direction() == Direction::Out && event.protocol() == Protocol::Tcp && !is_even
}

/// See [`Packet::whole`].
#[inline]
pub(super) fn whole(total: u64, direction: Direction, parts: Option<&[Option<u64>; PARTS]>) -> u64 {
    let following = match parts {
        Some(parts) if direction == Direction::Out => {
            // The driver's call is where the way through the network begins.
            let [qdisc, driver, net] =
                [PART_QDISC, PART_DRIVER, PART_NET].map(|part| parts[part].unwrap_or(0));
            qdisc.saturating_add(driver.max(net))
        }
        _ => 0,
    };
    total.saturating_add(following)
}

impl<'a> Packet<'a> {
    /// All of an event; `start` as in [`Self::times_of`].
    #[must_use]
    pub fn of(event: &Event<'a>, start: u64) -> Self {
        Self {
            pid: event.pid(),
            comm: event.comm(),
            process: event.process(),
            ends: Some(event.ends()),
            ..Self::times_of(event, start)
        }
    }

    /// All of an event that was read back from a log, which doesn't say why times are unknown.
    #[must_use]
    pub fn of_log(event: &Event<'a>) -> Self {
        Self {
            pid: event.pid(),
            comm: event.comm(),
            process: event.process(),
            ends: event.known_ends(),
            ..Self::with_reasons(event, [None; COLUMNS + 1], [None; PARTS])
        }
    }
}
