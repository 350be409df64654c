//! What a summary needs to know of a packet.

use std::net::SocketAddr;

use net_latency_common::{Direction, FLAG_RETRANS, Unknown};

use crate::packet::event::{COLUMNS, Event, PARTS, Protocol};

/// A finished packet as plain values, wherever they come from: an [`Event`], or a line that was read back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// When it was finished, in ns since 1970, UTC.
    pub wall_ns: Option<i64>,
    /// Which way it went.
    pub direction: Direction,
    /// What carried its data.
    pub protocol: Protocol,
    /// It carried no data: what such a packet lacks, it never had.
    pub is_control: bool,
    /// TCP had sent its bytes before.
    pub is_retransmission: bool,
    /// Times of its columns in display order, in ns.
    pub stages: [Option<u64>; COLUMNS],
    /// Time from its first to its last stage, in ns.
    pub total: Option<u64>,
    /// Why those of its columns, and behind them its total, are unknown that are; `None` where nobody has said.
    pub reasons: [Option<Unknown>; COLUMNS + 1],
    /// The parts of its last column, in ns, where fine stages were asked for.
    pub parts: Option<[Option<u64>; PARTS]>,
    /// Why they are unknown, if they are.
    pub parts_reason: Option<Unknown>,
    /// Whose it is.
    pub pid: Option<u32>,
    /// The task's name, any bytes.
    pub comm: Option<&'a [u8]>,
    /// Source and destination.
    pub ends: Option<[SocketAddr; 2]>,
}

impl<'a> Packet<'a> {
    /// What there is to sum up of an event, without whose it is and its ends: the rest takes longer than all of this.
    /// Every hook was attached at `start`, in ns of `CLOCK_MONOTONIC`.
    #[inline]
    pub(super) fn times_of(event: &Event<'a>, start: u64) -> Self {
        Self {
            wall_ns: Some(event.wall_ns()),
            direction: event.direction(),
            protocol: event.protocol(),
            is_control: event.is_control(),
            is_retransmission: event.record().flags & FLAG_RETRANS != 0,
            stages: event.stages(),
            total: event.total_ns(),
            reasons: event.unknown(start),
            parts: event.parts(),
            parts_reason: event.parts_unknown(start),
            pid: None,
            comm: None,
            ends: None,
        }
    }

    /// By which it is one of the slowest: its total or, where that is unknown, its longest stage. One with neither
    /// can't be compared.
    #[inline]
    pub(super) fn rank(&self) -> Option<u64> {
        self.total.or_else(|| self.stages.into_iter().flatten().max())
    }
}

impl<'a> Packet<'a> {
    /// All of an event; `start` as in [`Self::times_of`].
    #[must_use]
    pub fn of(event: &Event<'a>, start: u64) -> Self {
        let record = event.record();
        Self {
            pid: event.pid(),
            comm: event.comm(),
            ends: Some([
                SocketAddr::new(event.saddr(), record.sport),
                SocketAddr::new(event.daddr(), record.dport),
            ]),
            ..Self::times_of(event, start)
        }
    }
}
