//! What is known of the packets before on a connection. A table of a fixed size, in which those that were used last stay.

use std::{
    hash::{BuildHasher as _, RandomState},
    net::SocketAddr,
};

use crate::packet::event::{Event, Protocol, local_and_remote};

/// Sets of connections that compete for places.
const SETS: usize = 1_024;
/// Places of a set.
const WAYS: usize = 4;
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
}

/// A connection, or the packets between two UDP ends.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    ends: Ends,
    used: u64,
    halves: [Half; 2],
}

impl Connection {
    /// The half that is `ends`' own, and the other one.
    pub(super) fn halves(&mut self, ends: &Ends) -> (&mut Half, &mut Half) {
        let [first, second] = &mut self.halves;
        if ends.local == self.ends.local { (first, second) } else { (second, first) }
    }
}

/// As many connections as have a place.
#[derive(Clone, Debug)]
pub(super) struct Connections {
    hasher: RandomState,
    places: Vec<Option<Connection>>,
    /// Grows with each packet.
    clock: u64,
}

impl Connections {
    pub(super) fn new() -> Self {
        Self { hasher: RandomState::new(), places: vec![None; SETS * WAYS], clock: 0 }
    }

    /// The connection between these ends. Where its set is full, the one that was not used for longest makes way, after `settle`
    /// has seen its halves.
    pub(super) fn find(&mut self, ends: &Ends, settle: impl FnMut(&mut Half)) -> &mut Connection {
        self.clock += 1;
        let ordered = ends.ordered();
        let set = self.hasher.hash_one(ordered) as usize % SETS * WAYS;
        let places = &mut self.places[set..set + WAYS];
        let known = places.iter().position(|place| place.as_ref().is_some_and(|known| known.ends == ordered));
        // An empty place was never used.
        let oldest = || (0..WAYS).min_by_key(|way| places[*way].as_ref().map_or(0, |known| known.used));
        let way = known.or_else(oldest).unwrap_or(0);
        let place = &mut places[way];
        if known.is_none()
            && let Some(old) = place.take()
        {
            let mut old = old;
            old.halves.iter_mut().for_each(settle);
        }
        let connection =
            place.get_or_insert_with(|| Connection { ends: ordered, used: 0, halves: [Half::default(); 2] });
        connection.used = self.clock;
        connection
    }

    /// Each half of each.
    pub(super) fn each(&mut self, visit: impl FnMut(&mut Half)) {
        let halves = self.places.iter_mut().flatten().flat_map(|connection| &mut connection.halves);
        halves.for_each(visit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(local: u16, remote: u16) -> Ends {
        let at = |port| SocketAddr::from(([10, 0, 0, 1], port));
        Ends { local: at(local), remote: at(remote), protocol: Protocol::Tcp, netns: 0 }
    }

    #[test]
    fn both_ends_have_a_half_of_one_connection() {
        let mut connections = Connections::new();
        let here = ends(80, 40_000);
        let there = Ends { local: here.remote, remote: here.local, ..here };
        for (ends, service) in [(here, 1), (there, 2)] {
            connections.find(&ends, |_| panic!("there is room")).halves(&ends).0.service = Some(service);
        }
        let connection = connections.find(&here, |_| panic!("it is known"));
        let (own, other) = connection.halves(&here);
        assert_eq!((own.service, other.service), (Some(1), Some(2)));
    }

    #[test]
    fn what_was_not_used_for_longest_makes_way_and_is_settled() {
        let mut connections = Connections::new();
        let mut settled = 0;
        for port in 1..=60_000 {
            let ends = ends(80, port);
            let connection = connections.find(&ends, |_| settled += 1);
            connection.halves(&ends).0.service = Some(usize::from(port));
        }
        assert_eq!(connections.places.len(), SETS * WAYS);
        let left = connections.places.iter().flatten().count();
        assert_eq!(settled, 2 * (60_000 - left));
        // The last one is still there.
        let last = ends(80, 60_000);
        let (own, _) = connections.find(&last, |_| panic!("it is known")).halves(&last);
        assert_eq!(own.service, Some(60_000));
    }
}
