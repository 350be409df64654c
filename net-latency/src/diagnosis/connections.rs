//! The state of connections after the packets before. A table of a fixed size, in which the most recently used stay.

use net_latency_common::Direction;

use super::{answers::Turns, awaited::Awaited, datagrams::Datagrams, translated::Translated};
use crate::{
    accounting::{
        Ends, Packet, Places,
        exchanges::Role,
        tcp::Dsacks,
        transit::{Passage, Transits},
    },
    packet::event::{Event, Protocol},
};

/// Between an ACK and the packet that carried it, ns: TCP takes the ACK some microseconds after it has the packet, and an emulated
/// or busy machine some hundreds.
const WITH_NS: u64 = 500_000;

/// A packet that was sent and whose ACK, if it has one, has come. What follows tells what that ACK's time is worth.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    /// From the end of the driver's call until the ACK, ns; of UDP, and without fine stages, nothing.
    pub(super) net_ns: Option<u64>,
    /// When the ACK came, ns since 1970; or when it left.
    pub(super) acked_ns: i64,
    /// It was as large as packets are.
    pub(super) is_full: bool,
    /// It was several segments, and each was one of two: the receiver acknowledges each second one at once, the last of these too.
    pub(super) is_even: bool,
}

impl Pending {
    /// Whether that ACK came with what came to TCP then, or just before it.
    pub(super) fn is_acked_with(&self, came_ns: i64) -> bool {
        self.net_ns.is_some() && self.acked_ns.abs_diff(came_ns) <= WITH_NS
    }
}

/// How far a server is with a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Exchange {
    /// It has none, or has answered it.
    #[default]
    Answered,
    /// It read the last packet of one then, ns since 1970.
    Asked(i64),
}

/// One end of a connection, if it is on this machine.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Half {
    /// The service of that end.
    pub(super) service: Option<usize>,
    pub(super) pending: Option<Pending>,
    pub(super) exchange: Exchange,
    pub(super) turns: Turns,
    pub(super) awaited: Awaited,
    /// Packets sent since the last was received.
    pub(super) row: u32,
    pub(super) dsacks: Dsacks,
}

/// Where the other end of a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Other {
    /// Another host.
    Elsewhere,
    /// It has an address of this host, and nothing is proven.
    Unknown,
    /// That service.
    Here(usize),
}

/// As many ends of connections as have a place.
#[derive(Clone, Debug, Default)]
pub(super) struct Connections {
    halves: Places<Ends, Half>,
    transits: Transits<()>,
    translated: Translated,
    datagrams: Datagrams,
}

impl Connections {
    /// The state of that end, which is that service's, of that owner. Where there is no place, another one makes way, after `settle` has
    /// seen it.
    pub(super) fn find(
        &mut self,
        ends: &Ends,
        owner: u64,
        service: usize,
        mut settle: impl FnMut(&mut Half),
    ) -> &mut Half {
        self.halves.find(ends, (owner, service as u64), |_, old| settle(old))
    }

    /// How often an end had a packet that had made way.
    pub(super) fn came_back(&self) -> u64 {
        self.halves.came_back()
    }

    /// Where the other end is: a service of this machine if it is in the same network namespace, or if it is in another one or has another
    /// address for it, and this packet and those before prove it.
    pub(super) fn other(&mut self, ends: &Ends, role: Option<Role>, event: &Event<'_>) -> Other {
        let Self { halves, transits, translated, datagrams } = self;
        let service = |other: &Ends| halves.get(other)?.service;
        if let Some(near) = service(&ends.opposite(ends.netns)) {
            return Other::Here(near);
        }
        let may_have_both = transits.may_have_both(ends);
        if may_have_both && let Some(passage) = Passage::of(event, &Packet::of_log(event)) {
            transits.see(&passage, ());
        }
        let mut partner = match event.protocol() {
            Protocol::Tcp => transits.partner(ends),
            Protocol::Udp => {
                match (role, event.direction()) {
                    (Some(Role::Client), Direction::Out) => datagrams.sent(ends),
                    (Some(Role::Server), Direction::In) => datagrams.read(ends),
                    _ => {}
                }
                datagrams.partner(ends)
            }
        };
        if partner.is_none()
            && let Some(seq) = event.seq()
            && let Some(role) = role.filter(|role| *role == Role::Client || may_have_both)
        {
            translated.see(ends, role, event.direction(), seq);
            partner = translated.partner(ends);
        }
        let elsewhere =
            if may_have_both || translated.is_apparent(ends) { Other::Unknown } else { Other::Elsewhere };
        partner.and_then(|other| service(&other)).map_or(elsewhere, Other::Here)
    }

    /// The state of that end, if it is known.
    pub(super) fn get_mut(&mut self, ends: &Ends) -> Option<&mut Half> {
        self.halves.get_mut(ends)
    }

    /// The other end of the connection, if it is known to be on this machine.
    pub(super) fn partner(&self, ends: &Ends) -> Option<Ends> {
        let near = ends.opposite(ends.netns);
        if self.halves.get(&near).is_some() {
            return Some(near);
        }
        match ends.protocol {
            Protocol::Udp => self.datagrams.partner(ends),
            _ => self.transits.partner(ends).or_else(|| self.translated.partner(ends)),
        }
    }

    /// A client has a datagram, for which it has waited from and until then, ns since 1970.
    pub(super) fn answered(&mut self, client: &Ends, waited: (i64, i64)) {
        let Self { halves, datagrams, .. } = self;
        datagrams
            .answered(client, |server| halves.get(server).is_some_and(|half| half.turns.had_request(waited)));
    }

    /// Each half of each, with its end.
    pub(super) fn each_end(&mut self, mut visit: impl FnMut(&Ends, &mut Half)) {
        self.halves.iter_mut().for_each(|(ends, half)| visit(ends, half));
    }

    /// Each half of each.
    pub(super) fn each(&mut self, visit: impl FnMut(&mut Half)) {
        self.halves.iter_mut().map(|(_, half)| half).for_each(visit);
    }
}
