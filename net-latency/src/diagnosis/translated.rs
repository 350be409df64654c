//! Connections of which this machine has both ends, and something in between translates addresses, as for the services of a cluster: each
//! end shows another address of the server. What stays is the client's port, mostly, and the sequence numbers, by which the ends are put
//! together.

use std::net::SocketAddr;

use net_latency_common::Direction;

use crate::accounting::{Ends, Leader, Places, exchanges::Role};

/// How many segments two ends have to share: nobody else guesses two numbers of 32 bits.
const PROOF: u32 = 2;
/// By how many more they lead at most: a later user of these ports has another partner.
const MOST_PROOF: u32 = 16;

/// A segment, by what both ends show of it: the client's port, whether it goes to the server, and its first sequence number.
type Segment = (u16, bool, u32);

/// Ends that may have a partner with other addresses. Its size is bounded.
#[derive(Clone, Debug, Default)]
pub(super) struct Translated {
    /// The end that a segment was seen at first.
    seen: Places<Segment, Option<(Ends, Role)>>,
    partners: Places<Ends, Leader<Ends, MOST_PROOF>>,
    /// The addresses by which clients in a network namespace ask a server of this machine.
    apparent: Places<(u32, SocketAddr), bool>,
}

impl Translated {
    /// An end had a segment that begins with this number.
    pub(super) fn see(&mut self, ends: &Ends, role: Role, direction: Direction, seq: u32) {
        let client = if role == Role::Client { ends.local } else { ends.remote };
        let is_request = (direction == Direction::Out) == (role == Role::Client);
        let owner = (ends.netns.into(), 0);
        let seen = self.seen.find(&(client.port(), is_request, seq), owner, |_, _| ());
        let Some((other, _)) = seen.take_if(|(_, other)| *other != role) else {
            *seen = Some((*ends, role));
            return;
        };
        for (one, another) in [(*ends, other), (other, *ends)] {
            self.partners.find(&one, owner, |_, _| ()).vote(another);
        }
        let client = if role == Role::Client { *ends } else { other };
        *self.apparent.find(&(client.netns, client.remote), owner, |_, _| ()) = true;
    }

    /// The other end, if both have proven it.
    pub(super) fn partner(&self, ends: &Ends) -> Option<Ends> {
        let of = |ends: &Ends| self.partners.get(ends)?.by(PROOF);
        of(ends).filter(|other| of(other) == Some(*ends))
    }

    /// Whether a client's connections to that address have led to this machine.
    pub(super) fn is_apparent(&self, ends: &Ends) -> bool {
        self.apparent.get(&(ends.netns, ends.remote)).is_some_and(|is_so| *is_so)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::event::Protocol;

    fn ends(netns: u32, local: ([u8; 4], u16), remote: ([u8; 4], u16)) -> Ends {
        Ends { protocol: Protocol::Tcp, netns, local: local.into(), remote: remote.into() }
    }

    const CLIENT: ([u8; 4], u16) = ([10, 0, 0, 1], 40_000);
    const APPARENT: ([u8; 4], u16) = ([10, 99, 0, 1], 80);
    const REAL: ([u8; 4], u16) = ([10, 0, 1, 2], 8_080);

    #[test]
    fn two_numbers_of_both_ends_make_partners() {
        let (client, server) = (ends(1, CLIENT, APPARENT), ends(2, REAL, CLIENT));
        let mut translated = Translated::default();
        translated.see(&client, Role::Client, Direction::Out, 100);
        // Another end that has the same number by chance, or a copy of the segment.
        translated.see(&client, Role::Client, Direction::Out, 100);
        assert!(!translated.is_apparent(&client));
        translated.see(&server, Role::Server, Direction::In, 100);
        assert_eq!((translated.partner(&client), translated.is_apparent(&client)), (None, true));
        // The answer, whose number is in both directions, and whose lines come in the other order.
        translated.see(&server, Role::Server, Direction::Out, 100);
        translated.see(&client, Role::Client, Direction::In, 100);
        assert_eq!((translated.partner(&client), translated.partner(&server)), (Some(server), Some(client)));
        // Of another port nothing is proven.
        let other = Ends { local: ([10, 0, 0, 1], 40_001).into(), ..client };
        translated.see(&other, Role::Client, Direction::Out, 300);
        translated.see(&server, Role::Server, Direction::In, 300);
        assert_eq!(translated.partner(&other), None);
        assert!(!translated.is_apparent(&server));
    }

    #[test]
    fn a_later_user_of_the_ports_has_another_partner() {
        let (client, server) = (ends(1, CLIENT, APPARENT), ends(2, REAL, CLIENT));
        let later = Ends { netns: 3, ..server };
        let mut translated = Translated::default();
        for (number, end) in [(0, server), (100, later)] {
            for seq in number..number + 40 {
                translated.see(&client, Role::Client, Direction::Out, seq);
                translated.see(&end, Role::Server, Direction::In, seq);
            }
        }
        assert_eq!((translated.partner(&client), translated.partner(&server)), (Some(later), None));
    }
}
