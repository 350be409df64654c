//! How long segments take from one end of a connection to the other where this host has both: from the sender's device to the
//! receiver's driver. On loopback and veth that is the wait for the softirq; behind a bridge, a tunnel or a netem queue all of that.
//!
//! A segment's two lines are put together by their addresses, ports and first sequence number. Where bytes were sent again, or may have
//! been, the time of neither copy is taken.

use std::{
    collections::VecDeque,
    net::{IpAddr, SocketAddr},
};

use net_latency_common::{Direction, PART_NET};
use rustc_hash::FxHashSet;

use super::{Packet, Places};

/// Most addresses of this host that are kept.
const ADDRESSES: usize = 1_024;
/// Most segments of one direction of a connection that wait for the receiver's line: those that wait longest make way.
const SENT: usize = 64;
/// Most that wait for the sender's.
const CAME: usize = 16;

/// A segment with data, as one end has it.
#[derive(Clone, Copy, Debug)]
pub struct Passage {
    direction: Direction,
    /// Sender and receiver.
    ends: [SocketAddr; 2],
    first: u32,
    /// Behind the last byte.
    end: u32,
    /// When it left its device's queue (without fine stages, when it got there), or came to its driver, in ns since 1970. `None` where
    /// that is unknown.
    at_ns: Option<i64>,
}

impl Passage {
    /// Of a segment of `len` bytes; `is_again`: sent again.
    #[must_use]
    pub fn of(packet: &Packet<'_>, seq: Option<u32>, len: u32, is_again: bool) -> Option<Self> {
        let (ends, first) = packet.ends.zip(seq)?;
        let at_ns = match (packet.direction, packet.parts) {
            (Direction::In, _) => packet.begun_ns(),
            (Direction::Out, _) if is_again => None,
            (Direction::Out, None) => packet.wall_ns,
            // What was not acknowledged by itself may have been sent again.
            (Direction::Out, Some(parts)) => {
                packet.wall_ns.zip(parts[PART_NET]).and_then(|(ns, net)| ns.checked_sub_unsigned(net))
            }
        };
        Some(Self { direction: packet.direction, ends, first, end: first.wrapping_add(len), at_ns })
    }
}

/// Segments of one direction of a connection that wait for their other line.
#[derive(Clone, Debug)]
struct Way<K> {
    sent: VecDeque<(u32, i64)>,
    came: VecDeque<(u32, i64, K)>,
    /// Behind the last byte that was sent.
    sent_until: Option<u32>,
    /// Bytes before this one are not looked at.
    void_until: Option<u32>,
}

impl<K> Default for Way<K> {
    fn default() -> Self {
        Self { sent: VecDeque::new(), came: VecDeque::new(), sent_until: None, void_until: None }
    }
}

/// Whether a sequence number is before another.
fn is_before(number: u32, other: u32) -> bool {
    (number.wrapping_sub(other) as i32) < 0
}

fn later(known: Option<u32>, number: u32) -> Option<u32> {
    known.filter(|known| !is_before(*known, number)).or(Some(number))
}

impl<K: Copy> Way<K> {
    fn see(&mut self, passage: &Passage, receiver: K) -> Option<(K, u64)> {
        let Passage { direction, first, end, at_ns, .. } = *passage;
        if direction == Direction::Out {
            self.sent_until = later(self.sent_until, end);
            if at_ns.is_none() {
                self.void_until = self.sent_until;
                self.sent.clear();
                self.came.clear();
            }
        }
        let at_ns = at_ns?;
        if self.void_until.is_some_and(|until| is_before(first, until)) {
            return None;
        }
        let (receiver, left_ns, came_ns) = match direction {
            Direction::In => {
                let Some(place) = self.sent.iter().position(|(seq, _)| *seq == first) else {
                    if self.came.len() == CAME {
                        self.came.pop_front();
                    }
                    self.came.push_back((first, at_ns, receiver));
                    return None;
                };
                // Those before it became a part of others.
                let (_, left_ns) = self.sent.drain(..=place).next_back()?;
                (receiver, left_ns, at_ns)
            }
            Direction::Out => {
                let Some(place) = self.came.iter().position(|(seq, ..)| *seq == first) else {
                    if self.sent.len() == SENT {
                        self.sent.pop_front();
                    }
                    self.sent.push_back((first, at_ns));
                    return None;
                };
                let (_, came_ns, receiver) = self.came.remove(place)?;
                (receiver, at_ns, came_ns)
            }
        };
        Some((receiver, u64::try_from(came_ns - left_ns).ok()?))
    }
}

/// Connections of which this host may have both ends. `K` says who receives.
#[derive(Clone, Debug)]
pub struct Transits<K> {
    own: FxHashSet<IpAddr>,
    ways: Places<[SocketAddr; 2], Way<K>>,
}

impl<K: Copy> Transits<K> {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self { own: FxHashSet::default(), ways: Places::new() }
    }

    /// Takes one end's line of a segment; `receiver` counts if that is the receiver's. Once both are known: who received it, and how
    /// long it took, in ns.
    pub fn see(&mut self, passage: &Passage, receiver: K) -> Option<(K, u64)> {
        let [from, to] = passage.ends;
        let own = if passage.direction == Direction::In { to } else { from };
        if self.own.len() < ADDRESSES {
            self.own.insert(own.ip());
        }
        let is_here = |end: SocketAddr| self.own.contains(&end.ip());
        // Nearly all connections of a server have their other end elsewhere.
        if !(is_here(from) && is_here(to)) {
            return None;
        }
        self.ways.find(&passage.ends, |_, _| {}).see(passage, receiver)
    }
}

impl<K: Copy> Default for Transits<K> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [u64; 0] = [];
    const ENDS: [([u8; 4], u16); 2] = [([10, 0, 0, 1], 40_000), ([10, 0, 0, 2], 443)];

    fn passage(direction: Direction, first: u32, at_ns: Option<i64>) -> Passage {
        let end = first.wrapping_add(100);
        Passage { direction, ends: ENDS.map(SocketAddr::from), first, end, at_ns }
    }

    fn left(first: u32, at_ns: i64) -> Passage {
        passage(Direction::Out, first, Some(at_ns))
    }

    fn came(first: u32, at_ns: i64) -> Passage {
        passage(Direction::In, first, Some(at_ns))
    }

    fn again(first: u32) -> Passage {
        passage(Direction::Out, first, None)
    }

    /// What is told by a host that is known to have both addresses.
    fn told(passages: &[Passage]) -> Vec<u64> {
        let mut transits = Transits::new();
        for address in ENDS {
            transits.own.insert(SocketAddr::from(address).ip());
        }
        passages.iter().filter_map(|passage| transits.see(passage, ())).map(|((), ns)| ns).collect()
    }

    #[test]
    fn both_lines_make_a_time_whichever_comes_first() {
        assert_eq!(told(&[left(0, 10), left(100, 20), came(0, 15), came(100, 50)]), [5, 30]);
        // With fine stages the sender's is complete with its ACK.
        assert_eq!(told(&[came(0, 15), came(100, 50), left(0, 10), left(100, 20)]), [5, 30]);
        assert_eq!(
            told(&[left(u32::MAX - 49, 10), left(50, 20), came(u32::MAX - 49, 12), came(50, 24)]),
            [2, 4]
        );
    }

    #[test]
    fn what_another_line_became_a_part_of_has_none() {
        // The second was read with the first.
        assert_eq!(told(&[left(0, 10), left(100, 20), left(200, 30), came(0, 15), came(200, 37)]), [5, 7]);
        assert_eq!(told(&[left(0, 10), came(100, 5)]), NONE);
        // Clocks of one host go on: another packet's.
        assert_eq!(told(&[left(0, 10), came(0, 9)]), NONE);
    }

    #[test]
    fn what_was_sent_again_has_none() {
        assert_eq!(told(&[left(0, 10), left(100, 20), again(0), came(0, 500), came(100, 501)]), NONE);
        // That may have come as the first copy or as the second.
        assert_eq!(told(&[came(0, 500), again(0), left(0, 10)]), NONE);
        assert_eq!(told(&[left(0, 10), again(0), came(0, 500), left(100, 600), came(100, 610)]), [10]);
    }

    #[test]
    fn connections_to_other_hosts_take_no_place() {
        let mut transits = Transits::new();
        assert_eq!(transits.see(&left(0, 10), ()), None);
        assert_eq!(transits.ways.iter_mut().count(), 0);
        // The receiver's line shows that both are here; the first segment's time was not kept.
        assert_eq!(transits.see(&came(0, 15), ()), None);
        assert_eq!(transits.see(&left(100, 20), ()), None);
        assert_eq!(transits.see(&came(100, 29), ()), Some(((), 9)));
    }

    #[test]
    fn so_many_wait() {
        let first = (0..200).map(|number| left(number * 100, i64::from(number)));
        let then = (0..200).map(|number| came(number * 100, 1_000 + i64::from(number)));
        let all: Vec<_> = first.chain(then).collect();
        assert_eq!(told(&all), [1_000; SENT]);
    }
}
