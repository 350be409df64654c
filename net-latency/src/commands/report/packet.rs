//! A packet as a log tells it.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use net_latency_common::Direction;

use super::time::{Time, TimeReader};
use crate::accounting as summary;
use crate::packet::event::{COLUMNS, Protocol};
use crate::packet::stages::{STAGES, crossed};

/// Flags that the report counts.
pub(super) const FLAG_NAMES: [&str; 6] = ["control", "retrans", "gro", "coalesced", "ambiguous", "partial"];

/// The flags of a packet by their place in [`FLAG_NAMES`], those that this version doesn't know left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Flags(u8);

impl Flags {
    pub(super) const CONTROL: Self = Self(1);
    pub(super) const RETRANS: Self = Self(1 << 1);

    pub(super) fn add(&mut self, name: &str) {
        if let Some(place) = FLAG_NAMES.iter().position(|known| *known == name) {
            self.0 |= 1 << place;
        }
    }

    /// How often each flag was set, one more packet included.
    pub(super) fn count(self, counts: &mut [u64; FLAG_NAMES.len()]) {
        for (place, count) in counts.iter_mut().enumerate() {
            *count += u64::from(self.0 >> place & 1);
        }
    }

    pub(super) fn contains(self, flag: Self) -> bool {
        self.0 & flag.0 != 0
    }
}

/// What a line says, in the types that the report reckons with. Unknown is `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Packet<'a> {
    pub(super) time: Time,
    pub(super) direction: Direction,
    pub(super) protocol: Protocol,
    pub(super) pid: Option<u32>,
    pub(super) tid: Option<u32>,
    pub(super) comm: Option<Cow<'a, str>>,
    /// Source and destination.
    pub(super) ends: Option<[SocketAddr; 2]>,
    pub(super) netns: Option<u32>,
    /// Payload bytes.
    pub(super) len: u32,
    /// In the order in which a packet crosses them.
    pub(super) stages: [Option<u64>; COLUMNS],
    pub(super) total_ns: Option<u64>,
    pub(super) flags: Flags,
}

impl Packet<'_> {
    /// The packet as a summary takes it.
    pub(super) fn plain(&self) -> summary::Packet<'_> {
        summary::Packet {
            wall_ns: Some(self.time.wall_ns),
            direction: self.direction,
            protocol: self.protocol,
            is_control: self.flags.contains(Flags::CONTROL),
            is_retransmission: self.flags.contains(Flags::RETRANS),
            stages: self.stages,
            total: self.total_ns,
            reasons: [None; COLUMNS + 1],
            pid: self.pid,
            comm: self.comm.as_deref().map(str::as_bytes),
            ends: self.ends,
        }
    }
}

/// The fields of a line that the report uses, as both forms give them. Only what a packet can't do without is
/// asked for, so that a log from which fields were removed can still be read.
#[derive(Debug, Default)]
pub(super) struct Fields<'a> {
    pub(super) ts: Option<Cow<'a, str>>,
    pub(super) direction: Option<Direction>,
    pub(super) protocol: Option<Protocol>,
    pub(super) pid: Option<u32>,
    pub(super) tid: Option<u32>,
    pub(super) comm: Option<Cow<'a, str>>,
    pub(super) saddr: Option<IpAddr>,
    pub(super) sport: Option<u16>,
    pub(super) daddr: Option<IpAddr>,
    pub(super) dport: Option<u16>,
    pub(super) len: Option<u32>,
    /// By their places in [`STAGES`]; a line has those of its own direction and protocol.
    pub(super) times: [Option<u64>; STAGES.len()],
    pub(super) total_ns: Option<u64>,
    pub(super) netns: Option<u32>,
    pub(super) flags: Flags,
}

impl<'a> Fields<'a> {
    /// `None` if time, direction or protocol are missing.
    pub(super) fn into_packet(self, times: &mut TimeReader) -> Option<Packet<'a>> {
        let (direction, protocol) = (self.direction?, self.protocol?);
        let source = self.saddr.zip(self.sport);
        let destination = self.daddr.zip(self.dport);
        Some(Packet {
            time: times.read(&self.ts?)?,
            direction,
            protocol,
            pid: self.pid,
            tid: self.tid,
            comm: self.comm,
            ends: source.zip(destination).map(|(source, destination)| [source.into(), destination.into()]),
            netns: self.netns,
            len: self.len.unwrap_or(0),
            stages: crossed(direction, protocol).map(|place| self.times[place]),
            total_ns: self.total_ns,
            flags: self.flags,
        })
    }
}
