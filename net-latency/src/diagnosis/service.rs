//! A process and the port that it serves, or whose service it uses.

use std::net::IpAddr;

use net_latency_common::{COMM_LEN, Direction, DroppingSockets, is_client};

use super::{answers::Answers, awaited::Unanswered, did::Did, opening::Opened, side::Side};
use crate::{
    accounting::{Ends, Leader},
    packet::event::{Event, Protocol},
};

/// Answers of which their parts have to be known.
pub(super) const LEAST_ANSWERS: u64 = 10;
/// Minimum samples per stage.
pub(super) const LEAST_PACKETS: u64 = 20;

/// Whose packets are a service's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Processes {
    Unknown,
    /// By its PID.
    One(u32),
    /// More than have a place each, of one name.
    Several,
}

impl Processes {
    /// The id of the one process.
    pub(super) fn pid(self) -> Option<u32> {
        match self {
            Self::One(pid) => Some(pid),
            Self::Unknown | Self::Several => None,
        }
    }
}

/// The packets of one process that one of its ports serves, or that it exchanges with that port of others.
#[derive(Clone, Debug)]
pub(super) struct Service {
    /// 0 if unknown. Of several that of the first.
    pub(super) pid: u32,
    pub(super) is_of_several: bool,
    /// The owner of its process.
    pub(super) owner: u64,
    pub(super) port: u16,
    pub(super) protocol: Protocol,
    /// Any bytes, ended by 0.
    pub(super) name: [u8; COMM_LEN],
    /// Incoming and outgoing.
    pub(super) sides: [Side; 2],
    /// Those that it gives, or as a client gets.
    pub(super) answers: Answers,
    /// What it did for those that it gives.
    pub(super) did: Did,
    /// The connections that it opened as a client.
    pub(super) opened: Opened,
    /// What it waited for in vain.
    pub(super) unanswered: Unanswered,
    /// The other end of most of its packets: that service of this machine, or another host.
    pub(super) peer: Leader<Option<usize>, { u32::MAX }>,
    /// The device on which its last packet went out, and whether that name is known.
    pub(super) device: Option<([u8; COMM_LEN], usize)>,
    /// The other end of its last packet.
    pub(super) remote: IpAddr,
    /// Whether that is the one with the service's port.
    pub(super) is_client: bool,
    /// Inode number of its network namespace.
    pub(super) netns: u32,
    /// The name of that, where it has one.
    pub(super) netns_name: Option<Box<[u8]>>,
    pub(super) is_contained: bool,
    /// Whether that is another one than ours, as far as is known.
    pub(super) is_elsewhere: bool,
    /// When its first packet was complete, ns since 1970.
    pub(super) met_ns: i64,
}

impl Service {
    /// Whose first packet that is, and whose port; of that owner. `ephemeral` is as [`is_client`] takes it.
    pub(super) fn new(
        event: &Event<'_>,
        ends: &Ends,
        port: u16,
        owner: u64,
        ephemeral: u32,
        own_netns: Option<u32>,
    ) -> Self {
        Self {
            pid: event.record().pid,
            is_of_several: false,
            owner,
            port,
            protocol: event.protocol(),
            name: [0; COMM_LEN],
            sides: [Side::default(), Side::default()],
            answers: Answers::default(),
            did: Did::default(),
            opened: Opened::default(),
            unanswered: Unanswered::default(),
            peer: Leader::default(),
            device: None,
            remote: ends.remote.ip(),
            is_client: is_client(ends.local.port(), ends.remote.port(), ephemeral),
            netns: ends.netns,
            netns_name: event.netns_name().map(Into::into),
            is_contained: event.container().is_some(),
            is_elsewhere: own_netns.is_some_and(|own| own != ends.netns),
            met_ns: event.wall_ns(),
        }
    }

    pub(super) fn side(&self, direction: Direction) -> &Side {
        &self.sides[direction as usize]
    }

    /// Whether the parts of its answers tell what makes it slow.
    pub(super) fn is_judged_by_answers(&self) -> bool {
        self.answers.count() >= LEAST_ANSWERS && self.answers.unknown * 3 <= self.answers.count()
    }

    /// Whether there is enough of it for a verdict.
    pub(super) fn is_judged(&self) -> bool {
        self.is_judged_by_answers() || self.sides.iter().any(|side| side.packets >= LEAST_PACKETS)
    }

    /// Whether these are its sockets.
    pub(super) fn has(&self, sockets: DroppingSockets) -> bool {
        let own = DroppingSockets {
            netns: self.netns,
            port: self.port,
            protocol: self.protocol.number(),
            is_client: u8::from(self.is_client),
        };
        own == sockets && self.is_used()
    }

    /// Whether it is who listens there.
    pub(super) fn listens(&self, netns: u32, port: u16) -> bool {
        (self.netns, self.port, self.protocol, self.is_client) == (netns, port, Protocol::Tcp, false)
            && self.is_used()
    }

    pub(super) fn processes(&self) -> Processes {
        match self.pid {
            0 => Processes::Unknown,
            _ if self.is_of_several => Processes::Several,
            pid => Processes::One(pid),
        }
    }

    /// Whether it is of the same process, or of processes of the same name.
    pub(super) fn is_of_same(&self, other: &Self) -> bool {
        self.pid > 0
            && (self.pid == other.pid || self.is_of_several && other.is_of_several && self.name == other.name)
    }

    /// Whether it serves the same port under the same name.
    pub(super) fn serves_as(&self, other: &Self) -> bool {
        let of = |service: &Self| (service.port, service.protocol, service.netns, service.name);
        of(self) == of(other)
    }

    /// The place of the service of this machine that has the other end for most of its packets.
    pub(super) fn peer(&self) -> Option<usize> {
        self.peer.by(1).flatten()
    }

    /// Packets of both directions.
    pub(super) fn packets(&self) -> u64 {
        self.sides.iter().map(|side| side.packets + side.resent).sum()
    }

    /// Whether it has packets. One that has become a part of another's has none.
    pub(super) fn is_used(&self) -> bool {
        self.packets() > 0
    }

    pub(super) fn name(&self) -> Option<&[u8]> {
        let name = self.name.split(|byte| *byte == 0).next()?;
        (!name.is_empty()).then_some(name)
    }

    pub(super) fn device(&self) -> Option<&[u8]> {
        self.device.as_ref().map(|(name, len)| &name[..*len])
    }
}
