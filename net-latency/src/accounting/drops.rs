//! Whose sockets drop what they get.

use std::{cmp::Reverse, io};

use net_latency_common::DroppingSockets;
use serde::Serialize;

use crate::packet::event::Protocol;

/// Most that are told apart.
const MOST: usize = 16;

/// The sockets that dropped most, with how many packets: of those that the kernel side had room for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops {
    /// The most first, and none behind the last.
    known: [(DroppingSockets, u64); MOST],
    /// There were more than these.
    has_more: bool,
}

/// A dropping socket as JSON has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DroppedAt {
    proto: &'static str,
    port: u16,
    end: &'static str,
    netns: u32,
    packets: u64,
}

impl Drops {
    /// None.
    #[cfg(test)]
    pub(super) const NONE: Self = Self {
        known: [(DroppingSockets { netns: 0, port: 0, protocol: 0, is_client: 0 }, 0); MOST],
        has_more: false,
    };

    /// From all counts.
    #[must_use]
    pub fn new(counts: impl IntoIterator<Item = (DroppingSockets, u64)>) -> Self {
        let mut counts: Vec<_> = counts.into_iter().filter(|(_, count)| *count > 0).collect();
        // The same order each time.
        let order = |&(DroppingSockets { netns, port, protocol, is_client }, count): &_| {
            (Reverse(count), protocol, port, is_client, netns)
        };
        counts.sort_unstable_by_key(order);
        let mut drops = Self { has_more: counts.len() > MOST, ..Self::default() };
        drops.known.iter_mut().zip(counts).for_each(|(place, count)| *place = count);
        drops
    }

    /// The sockets, those that dropped most first, with how many packets.
    pub fn iter(&self) -> impl Iterator<Item = (DroppingSockets, u64)> + '_ {
        self.known.iter().copied().take_while(|(_, count)| *count > 0)
    }

    /// The drops between `earlier` and this, by sockets for which both are known.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let counts = self.iter().filter_map(|(sockets, now)| {
            let before = earlier.iter().find(|(known, _)| *known == sockets).map(|(_, count)| count);
            // A socket that was not listed may have dropped some then.
            let before = before.or((!earlier.has_more).then_some(0))?;
            Some((sockets, now.saturating_sub(before)))
        });
        Self { has_more: self.has_more, ..Self::new(counts) }
    }

    /// Writes those that dropped most, in words.
    ///
    /// # Errors
    /// When `out` can't be written.
    pub fn write(&self, out: &mut impl io::Write) -> io::Result<()> {
        /// Most that people read.
        const NAMED: usize = 3;
        for (sockets, count) in self.iter().take(NAMED) {
            let whose = if sockets.is_client == 0 { "" } else { "clients of " };
            let protocol = Protocol::of(sockets.protocol).name();
            writeln!(out, "    {count} by {whose}{protocol} port {}", sockets.port)?;
        }
        Ok(())
    }

    /// As JSON has them.
    pub fn as_json(&self) -> Vec<DroppedAt> {
        let entry = |(sockets, packets): (DroppingSockets, u64)| DroppedAt {
            proto: Protocol::of(sockets.protocol).name(),
            port: sockets.port,
            end: if sockets.is_client == 0 { "server" } else { "client" },
            netns: sockets.netns,
            packets,
        };
        self.iter().map(entry).collect()
    }
}

#[cfg(test)]
mod tests {
    use net_latency_common::{IPPROTO_TCP, IPPROTO_UDP};

    use super::*;

    fn sockets(port: u16) -> DroppingSockets {
        DroppingSockets { netns: 5, port, protocol: IPPROTO_TCP, is_client: 0 }
    }

    #[test]
    fn those_that_dropped_most_come_first() {
        let drops = Drops::new((1..=100).map(|port| (sockets(port), u64::from(port % 50))));
        let ports: Vec<_> = drops.iter().map(|(sockets, count)| (sockets.port, count)).collect();
        assert_eq!((ports[..3].to_vec(), ports.len()), (vec![(49, 49), (99, 49), (48, 48)], MOST));
        assert_eq!(Drops::new([(sockets(1), 0)]).iter().count(), 0);
    }

    #[test]
    fn what_came_since_is_known_of_those_who_were_known() {
        let few = Drops::new([(sockets(1), 5), (sockets(2), 7)]);
        let later = Drops::new([(sockets(1), 6), (sockets(2), 7), (sockets(3), 2)]);
        let since: Vec<_> = later.since(&few).iter().collect();
        assert_eq!(since, [(sockets(3), 2), (sockets(1), 1)]);
        // It is unknown how many the third had then.
        let many = Drops::new((10..100).map(|port| (sockets(port), 90)).chain([(sockets(1), 100)]));
        let since: Vec<_> = Drops::new([(sockets(1), 102), (sockets(3), 95)]).since(&many).iter().collect();
        assert_eq!(since, [(sockets(1), 2)]);
    }

    #[test]
    fn the_first_are_named() {
        let client = DroppingSockets { protocol: IPPROTO_UDP, is_client: 1, ..sockets(53) };
        let many = [sockets(80), sockets(81), sockets(82)].into_iter().zip(1..).chain([(client, 9)]);
        let mut out = Vec::new();
        Drops::new(many).write(&mut out).expect("memory can be written");
        insta::assert_snapshot!(String::from_utf8(out).expect("text"), @r"
            9 by clients of udp port 53
            3 by tcp port 82
            2 by tcp port 81
        ");
    }

    #[test]
    fn json_says_whose_end_it_is() {
        let client = DroppingSockets { protocol: IPPROTO_UDP, is_client: 1, ..sockets(53) };
        let json = serde_json::to_string(&Drops::new([(client, 3), (sockets(80), 2)]).as_json());
        assert_eq!(
            json.expect("it can be written"),
            r#"[{"proto":"udp","port":53,"end":"client","netns":5,"packets":3},{"proto":"tcp","port":80,"end":"server","netns":5,"packets":2}]"#
        );
    }
}
