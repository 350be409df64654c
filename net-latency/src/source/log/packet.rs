//! A packet as a log tells it.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use net_latency_common::{Direction, Held};

use super::time::{Time, TimeReader};
use crate::accounting::{self as summary, exchanges::Turn, tcp::Segment, transit::Passage};
use crate::packet::event::{COLUMNS, PARTS, Protocol, flag_named};
use crate::packet::stages::{FINE_STAGES, STAGES, crossed, split};

/// Flags that the report counts.
pub(crate) const FLAG_NAMES: [&str; 9] =
    ["control", "retrans", "gro", "coalesced", "ambiguous", "zero-window", "rto", "dropped", "partial"];

/// The flags of a packet by their place in [`FLAG_NAMES`], those that this version doesn't know left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags(u16);

impl Flags {
    pub(crate) const CONTROL: Self = Self(1);
    pub(crate) const RETRANS: Self = Self(1 << 1);
    pub(crate) const ZERO_WINDOW: Self = Self(1 << 5);

    pub(crate) fn add(&mut self, name: &str) {
        if let Some(place) = FLAG_NAMES.iter().position(|known| *known == name) {
            self.0 |= 1 << place;
        }
    }

    /// How often each flag was set, one more packet included.
    pub(crate) fn count(self, counts: &mut [u64; FLAG_NAMES.len()]) {
        for (place, count) in counts.iter_mut().enumerate() {
            *count += u64::from(self.0 >> place & 1);
        }
    }

    /// Those that the kernel side sets, as it does.
    pub(super) fn of_kernel(self) -> u16 {
        let names = FLAG_NAMES.iter().enumerate().filter(|(place, _)| self.0 >> place & 1 == 1);
        names.filter_map(|(_, name)| flag_named(name)).fold(0, |flags, flag| flags | flag)
    }

    pub(crate) fn contains(self, flag: Self) -> bool {
        self.0 & flag.0 != 0
    }
}

/// What a line says and nothing else decides, of a packet and of the fields of its line alike. Unknown is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Values<'a> {
    pub(crate) pid: Option<u32>,
    pub(crate) tid: Option<u32>,
    pub(crate) comm: Option<Cow<'a, str>>,
    /// `None` in a log of a version that didn't write it, too.
    pub(crate) process: Option<Cow<'a, str>>,
    pub(crate) netns: Option<u32>,
    pub(crate) total_ns: Option<u64>,
    pub(crate) flags: Flags,
    pub(crate) seq: Option<u32>,
    pub(crate) segs: Option<u16>,
    pub(crate) ifname: Option<Cow<'a, str>>,
    pub(crate) mark: Option<u32>,
    pub(crate) cpu: Option<u16>,
    pub(crate) first_send_age_ns: Option<u64>,
    pub(crate) last_drv_ip_ns: Option<u64>,
    pub(crate) ns_pid: Option<u32>,
    pub(crate) held: Option<Held>,
    pub(crate) cpu_held_by: Option<u32>,
    pub(crate) rtt_ns: Option<u64>,
    pub(crate) dsacks: Option<u16>,
    pub(crate) netns_name: Option<Cow<'a, str>>,
    pub(crate) container: Option<Cow<'a, str>>,
}

/// What a line says, in the types that views reckon with. Unknown is `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Packet<'a> {
    pub(crate) time: Time,
    pub(crate) direction: Direction,
    pub(crate) protocol: Protocol,
    /// Source and destination.
    pub(crate) ends: Option<[SocketAddr; 2]>,
    /// Payload bytes.
    pub(crate) len: u32,
    /// In the order in which a packet crosses them.
    pub(crate) stages: [Option<u64>; COLUMNS],
    /// The parts, of a log that has fine stages.
    pub(crate) parts: Option<[Option<u64>; PARTS]>,
    pub(crate) values: Values<'a>,
}

impl Packet<'_> {
    /// What it says about its connection; `None` if it has no data, or is none of TCP. `plain` is itself.
    pub(crate) fn segment(&self, plain: &summary::Packet<'_>) -> Option<Segment> {
        let Values { flags, seq, segs, rtt_ns, dsacks, .. } = self.values;
        if self.protocol != Protocol::Tcp || flags.contains(Flags::CONTROL) {
            return None;
        }
        let is_again = flags.contains(Flags::RETRANS);
        let turn = || Turn::of(plain, seq, self.len);
        Some(Segment {
            turn: (!is_again).then(turn),
            direction: self.direction,
            segs: segs.unwrap_or(1),
            rtt_ns,
            dsacks,
            met_zero_window: self.parts.map(|_| flags.contains(Flags::ZERO_WINDOW)),
            passage: Passage::of(plain, seq, self.len, is_again),
        })
    }

    /// The packet as a summary takes it.
    pub(crate) fn plain(&self) -> summary::Packet<'_> {
        let packet = summary::Packet {
            wall_ns: Some(self.time.wall_ns),
            direction: self.direction,
            protocol: self.protocol,
            is_control: self.values.flags.contains(Flags::CONTROL),
            stages: self.stages,
            total: self.values.total_ns,
            reasons: [None; COLUMNS + 1],
            parts: self.parts,
            parts_reasons: [None; PARTS],
            pid: self.values.pid,
            comm: self.values.comm.as_deref().map(str::as_bytes),
            process: self.values.process.as_deref().map(str::as_bytes),
            ends: self.ends,
        };
        if self.values.flags.contains(Flags::RETRANS) { packet.sent_again() } else { packet }
    }
}

/// The fields of a line, as both forms give them. Only what a packet can't do without is
/// asked for, so that a log from which fields were removed can still be read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Fields<'a> {
    pub(crate) ts: Option<Cow<'a, str>>,
    pub(crate) direction: Option<Direction>,
    pub(crate) protocol: Option<Protocol>,
    pub(crate) saddr: Option<IpAddr>,
    pub(crate) sport: Option<u16>,
    pub(crate) daddr: Option<IpAddr>,
    pub(crate) dport: Option<u16>,
    pub(crate) len: Option<u32>,
    /// By their places in [`STAGES`]; a line has those of its own direction and protocol.
    pub(crate) times: [Option<u64>; STAGES.len()],
    /// By their places in [`FINE_STAGES`]. Each that a line has is there, known or not.
    pub(crate) fine: Option<[Option<u64>; FINE_STAGES.len()]>,
    pub(crate) values: Values<'a>,
}

impl<'a> Fields<'a> {
    /// `None` if time, direction or protocol are missing.
    #[inline(always)]
    pub(crate) fn into_packet(self, times: &mut TimeReader) -> Option<Packet<'a>> {
        let (direction, protocol) = (self.direction?, self.protocol?);
        let source = self.saddr.zip(self.sport);
        let destination = self.daddr.zip(self.dport);
        let stages = crossed(direction, protocol).map(|place| self.times[place]);
        Some(Packet {
            time: times.read(&self.ts?)?,
            direction,
            protocol,
            ends: source.zip(destination).map(|(source, destination)| [source.into(), destination.into()]),
            len: self.len.unwrap_or(0),
            stages,
            parts: self.fine.map(|fine| match (direction, stages) {
                // Of what is not known there are no parts.
                (Direction::In, [.., None]) => [None; PARTS],
                _ => split(direction, protocol).map(|place| fine[place?]),
            }),
            values: self.values,
        })
    }
}
