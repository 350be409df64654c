//! What is known of the packets before on a connection. A table of a fixed size, in which those that were used last stay.

use std::net::SocketAddr;

use crate::{
    accounting::{Places, tcp::Dsacks},
    packet::event::{Event, Protocol, local_and_remote},
};

/// Between an ACK and the packet that carried it, ns: TCP takes the ACK some microseconds after it has the packet, and an emulated
/// or busy machine some hundreds.
const WITH_NS: u64 = 500_000;

/// Between whom a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ends {
    /// This machine's end.
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    protocol: Protocol,
    /// Of loopback, which each namespace has; else 0, since the ends of a connection may be in two.
    netns: u32,
}

impl Ends {
    pub(super) fn of(event: &Event<'_>) -> Self {
        let (local, remote) = local_and_remote(event.direction(), event.ends());
        let netns = if local.ip().is_loopback() { event.record().netns } else { 0 };
        Self { local, remote, protocol: event.protocol(), netns }
    }

    /// The same for both ends.
    fn ordered(self) -> Self {
        if self.local <= self.remote { self } else { Self { local: self.remote, remote: self.local, ..self } }
    }
}

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
    /// Whose it is.
    pub(super) service: Option<usize>,
    pub(super) pending: Option<Pending>,
    pub(super) exchange: Exchange,
    /// Packets sent since the last was received.
    pub(super) row: u32,
    pub(super) dsacks: Dsacks,
}

/// As many connections as have a place.
#[derive(Clone, Debug, Default)]
pub(super) struct Connections(Places<Ends, [Half; 2]>);

impl Connections {
    /// The two halves of the connection between these ends: the one that is `ends`' own, and the other one. Where there is no place, the
    /// one that was not used for longest makes way, after `settle` has seen its halves.
    pub(super) fn find(&mut self, ends: &Ends, settle: impl FnMut(&mut Half)) -> (&mut Half, &mut Half) {
        let ordered = ends.ordered();
        let settle = |_: &Ends, old: &mut [Half; 2]| old.iter_mut().for_each(settle);
        let [first, second] = self.0.find(&ordered, settle);
        if ends.local == ordered.local { (first, second) } else { (second, first) }
    }

    /// Each half of each.
    pub(super) fn each(&mut self, visit: impl FnMut(&mut Half)) {
        self.0.iter_mut().flat_map(|(_, halves)| halves).for_each(visit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_have_a_half_of_one_connection() {
        let mut connections = Connections::default();
        let at = |port| SocketAddr::from(([10, 0, 0, 1], port));
        let here = Ends { local: at(80), remote: at(40_000), protocol: Protocol::Tcp, netns: 0 };
        let there = Ends { local: here.remote, remote: here.local, ..here };
        for (ends, service) in [(here, 1), (there, 2)] {
            connections.find(&ends, |_| panic!("there is room")).0.service = Some(service);
        }
        let (own, other) = connections.find(&here, |_| panic!("it is known"));
        assert_eq!((own.service, other.service), (Some(1), Some(2)));
    }
}
