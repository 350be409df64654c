//! How long segments take from one end of a connection to the other where this host has both: from the sender's device to the
//! receiver's driver. On loopback and veth that is the wait for the softirq; behind a bridge, a tunnel or a netem queue all of that.
//!
//! A segment's two lines are put together by their addresses, ports and first sequence number. Where bytes were sent again, or may have
//! been, the time of neither copy is taken.
//!
//! Several network namespaces may have the same addresses and ports, by chance or because an impostor wants to be taken for the other end.
//! So two ends are partners only if they are in one namespace, or have shown the same numbers more often than others have.

use std::{
    collections::VecDeque,
    net::{IpAddr, SocketAddr},
};

use net_latency_common::Direction;

use super::{Ends, Packet, Places, leader::Leader};
use crate::packet::event::Event;

/// Most segments of one direction of a connection that wait for the receiver's line: those that wait longest make way.
const SENT: usize = 64;
/// Most that wait for the sender's.
const CAME: usize = 16;
/// Most namespaces of each end: one that has no partner makes way first.
const ALIKE: usize = 8;
/// How many segments more than another end two have to share, to be partners: two numbers may be the same by chance, or by an impostor's
/// try.
const PROOF: u32 = 2;
/// By how many more they lead at most: a later user of these addresses has another partner.
const MOST_PROOF: u32 = 16;

/// A segment with data, as one end has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passage {
    direction: Direction,
    ends: Ends,
    first: u32,
    /// Behind the last byte.
    end: u32,
    /// When it left its device's queue (without fine stages, when it got there), or came to its driver, in ns since 1970. `None` where
    /// that is unknown, and of one that was sent again.
    at_ns: Option<i64>,
}

impl Passage {
    /// The passage of an event that is that packet. `None` if it is no segment, or a log's line lacks its addresses.
    #[must_use]
    pub(crate) fn of(event: &Event<'_>, packet: &Packet<'_>) -> Option<Self> {
        let (ends, first) = Ends::known(event).zip(event.seq())?;
        let at_ns = match packet.direction {
            Direction::In => packet.begun_ns(),
            Direction::Out if event.is_retransmission() => None,
            // A segment without an ACK of its own, which may have been sent again, has no such time.
            Direction::Out => packet.left_queue_ns(),
        };
        Some(Self { direction: packet.direction, ends, first, end: first.wrapping_add(event.len()), at_ns })
    }
}

/// A segment that waits for its other line: its number, when it was there, and its owner.
type Waiting<K> = (u32, Option<i64>, K);

/// One end of a connection, in one of the namespaces that have its addresses.
#[derive(Clone, Debug)]
struct End<K> {
    netns: u32,
    /// Whether its address is the first of both.
    is_first: bool,
    used: u64,
    /// The namespace of those that had the same numbers.
    partner: Leader<u32, MOST_PROOF>,
    sent: VecDeque<Waiting<()>>,
    came: VecDeque<Waiting<K>>,
    /// Behind the last byte that was sent.
    sent_until: Option<u32>,
    /// Bytes before this one that were sent have no times.
    void_until: Option<u32>,
}

/// Whether a sequence number is before another.
fn is_before(number: u32, other: u32) -> bool {
    (number.wrapping_sub(other) as i32) < 0
}

fn later(known: Option<u32>, number: u32) -> Option<u32> {
    known.filter(|known| !is_before(*known, number)).or(Some(number))
}

fn place_of<K>(waiting: &VecDeque<Waiting<K>>, number: u32) -> Option<usize> {
    waiting.iter().position(|(first, ..)| *first == number)
}

/// Adds it; whether another one made way, for which no other line came.
fn wait<K>(waiting: &mut VecDeque<Waiting<K>>, most: usize, new: Waiting<K>) -> bool {
    let is_full = waiting.len() == most;
    if is_full {
        waiting.pop_front();
    }
    waiting.push_back(new);
    is_full
}

impl<K> End<K> {
    /// Whether it has the other line of that segment, which went that way.
    fn has_other(&self, direction: Direction, first: u32) -> bool {
        match direction {
            Direction::In => place_of(&self.sent, first).is_some(),
            Direction::Out => place_of(&self.came, first).is_some(),
        }
    }
}

/// The ends that have the same two addresses and ports.
#[derive(Clone, Debug)]
struct Alike<K> {
    ends: Vec<End<K>>,
    clock: u64,
}

impl<K> Default for Alike<K> {
    fn default() -> Self {
        Self { ends: Vec::new(), clock: 0 }
    }
}

impl<K: Copy> Alike<K> {
    fn place(&self, netns: u32, is_first: bool) -> Option<usize> {
        self.ends.iter().position(|end| end.netns == netns && end.is_first == is_first)
    }

    /// The place of that end, new if it has none.
    fn place_or_new(&mut self, netns: u32, is_first: bool) -> usize {
        self.clock += 1;
        let used = self.clock;
        if let Some(place) = self.place(netns, is_first) {
            self.ends[place].used = used;
            return place;
        }
        let new = End {
            netns,
            is_first,
            used,
            partner: Leader::default(),
            sent: VecDeque::new(),
            came: VecDeque::new(),
            sent_until: None,
            void_until: None,
        };
        let same = || self.ends.iter().enumerate().filter(|(_, end)| end.is_first == is_first);
        let last = same().min_by_key(|(_, end)| (end.partner.by(PROOF).is_some(), end.used));
        match last {
            Some((place, _)) if same().count() >= ALIKE => {
                self.ends[place] = new;
                place
            }
            _ => {
                self.ends.push(new);
                self.ends.len() - 1
            }
        }
    }

    /// The end that has the other line of a segment of the end at `own`: the one in the same namespace, or its partner, else the only one.
    fn other(&self, own: usize, passage: &Passage) -> Option<usize> {
        let Ends { netns, local, remote, .. } = passage.ends;
        let is_first = self.ends[own].is_first != (local != remote);
        let has_it = |place: &usize| {
            let end = &self.ends[*place];
            end.is_first == is_first && end.has_other(passage.direction, passage.first)
        };
        let mut all = (0..self.ends.len()).filter(has_it);
        let known = |netns| all.clone().find(|place| self.ends[*place].netns == netns);
        let partner = self.ends[own].partner.by(1);
        known(netns).or_else(|| known(partner?)).or_else(|| {
            let only = all.next()?;
            all.next().is_none().then_some(only)
        })
    }

    fn see(&mut self, passage: &Passage, receiver: K) -> Option<(K, u64)> {
        let Passage { direction, ends, first, end, at_ns } = *passage;
        let own = self.place_or_new(ends.netns, ends.pair().1);
        if direction == Direction::Out {
            let sender = &mut self.ends[own];
            sender.sent_until = later(sender.sent_until, end);
            if at_ns.is_none() {
                sender.void_until = sender.sent_until;
            }
        }
        let Some(other) = self.other(own, passage) else {
            let End { sent, came, partner, .. } = &mut self.ends[own];
            let is_in_vain = match direction {
                Direction::In => wait(came, CAME, (first, at_ns, receiver)),
                Direction::Out => wait(sent, SENT, (first, at_ns, ())),
            };
            if is_in_vain {
                partner.abstain();
            }
            return None;
        };
        let (sender, left_ns, came_ns, receiver) = match direction {
            Direction::In => {
                let sent = &mut self.ends[other].sent;
                // Those before it became a part of others.
                let (_, left_ns, ()) = sent.drain(..=place_of(sent, first)?).next_back()?;
                (other, left_ns, at_ns, receiver)
            }
            Direction::Out => {
                let came = &mut self.ends[other].came;
                let (_, came_ns, receiver) = came.remove(place_of(came, first)?)?;
                (own, at_ns, came_ns, receiver)
            }
        };
        for (one, another) in [(own, other), (other, own)] {
            let netns = self.ends[another].netns;
            self.ends[one].partner.vote(netns);
        }
        let is_void = self.ends[sender].void_until.is_some_and(|until| is_before(first, until));
        if is_void || !self.are_partners(own, other, 1) {
            return None;
        }
        Some((receiver, u64::try_from(came_ns? - left_ns?).ok()?))
    }

    /// Whether both have shown the same numbers N times more often than others.
    fn are_partners(&self, one: usize, other: usize, least: u32) -> bool {
        let [one, other] = [one, other].map(|place| &self.ends[place]);
        one.partner.by(least) == Some(other.netns) && other.partner.by(least) == Some(one.netns)
    }
}

/// Connections of which this host may have both ends. `K` says who receives.
#[derive(Clone, Debug)]
pub(crate) struct Transits<K> {
    /// Addresses of this host.
    own: Places<IpAddr, ()>,
    connections: Places<[SocketAddr; 2], Alike<K>>,
}

impl<K: Copy> Transits<K> {
    /// Takes one end's line of a segment; `receiver` counts if that is the receiver's. Once both are known: the receiver, and how long it
    /// took, in ns.
    pub(crate) fn see(&mut self, passage: &Passage, receiver: K) -> Option<(K, u64)> {
        if !self.may_have_both(&passage.ends) {
            return None;
        }
        let owner = (passage.ends.netns.into(), 0);
        self.connections.find(&passage.ends.pair().0, owner, |_, _| {}).see(passage, receiver)
    }

    /// Whether the other end has an address of this host too, as far as its addresses were seen. Nearly all connections of a server have
    /// their other end elsewhere.
    pub(crate) fn may_have_both(&mut self, ends: &Ends) -> bool {
        let Ends { netns, local, remote, .. } = ends;
        self.own.find(&local.ip(), ((*netns).into(), 0), |_, ()| {});
        self.own.get(&remote.ip()).is_some()
    }

    /// The other end of this one, if it is on this host in another namespace, which both have proven.
    #[must_use]
    pub(crate) fn partner(&self, ends: &Ends) -> Option<Ends> {
        let (addresses, is_first) = ends.pair();
        let alike = self.connections.get(&addresses)?;
        let own = alike.place(ends.netns, is_first)?;
        let netns = alike.ends[own].partner.by(PROOF)?;
        let other = alike.place(netns, !is_first)?;
        alike.are_partners(own, other, PROOF).then(|| ends.opposite(netns))
    }
}

/// None yet.
impl<K: Copy> Default for Transits<K> {
    fn default() -> Self {
        Self { own: Places::new(), connections: Places::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::event::{Protocol, local_and_remote};

    const NONE: [u64; 0] = [];
    const ENDS: [([u8; 4], u16); 2] = [([10, 0, 0, 1], 40_000), ([10, 0, 0, 2], 443)];

    fn passage(direction: Direction, first: u32, at_ns: Option<i64>) -> Passage {
        let [from, to] = ENDS.map(SocketAddr::from);
        let (local, remote) = local_and_remote(direction, [from, to]);
        let ends = Ends { protocol: Protocol::Tcp, netns: 1, local, remote };
        Passage { direction, ends, first, end: first.wrapping_add(100), at_ns }
    }

    /// The passage in another namespace.
    fn within(netns: u32, passage: Passage) -> Passage {
        Passage { ends: Ends { netns, ..passage.ends }, ..passage }
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

    /// None yet, of a host that is known to have both addresses.
    fn of_host<K: Copy>() -> Transits<K> {
        let mut transits = Transits::default();
        for address in ENDS {
            transits.own.find(&SocketAddr::from(address).ip(), (1, 0), |_, ()| {});
        }
        transits
    }

    /// What that host tells.
    fn told(passages: &[Passage]) -> Vec<u64> {
        let mut transits = of_host();
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
        let mut transits = Transits::default();
        assert_eq!(transits.see(&left(0, 10), ()), None);
        assert_eq!(transits.connections.iter_mut().count(), 0);
        // The receiver's line shows that both are here; the first segment's time was not kept.
        assert_eq!(transits.see(&came(0, 15), ()), None);
        assert_eq!(transits.see(&left(100, 20), ()), None);
        assert_eq!(transits.see(&came(100, 29), ()), Some(((), 9)));
    }

    /// Both lines of a segment that goes from the sender's namespace to the receiver's.
    fn passes([from, to]: [u32; 2], first: u32, at_ns: i64) -> [Passage; 2] {
        [within(from, left(first, at_ns)), within(to, came(first, at_ns + 5))]
    }

    /// In which namespace that host takes the sender's other end to be, and the receiver's, in these namespaces.
    fn partners(transits: &Transits<()>, namespaces: [u32; 2]) -> [Option<u32>; 2] {
        let [sender, receiver] = passes(namespaces, 0, 0);
        [sender, receiver].map(|passage| Some(transits.partner(&passage.ends)?.netns))
    }

    #[test]
    fn ends_in_two_namespaces_are_partners_once_two_of_their_numbers_were_the_same() {
        let mut transits = of_host();
        for (first, wanted) in [(0, None), (100, Some(())), (200, Some(()))] {
            let told: Vec<_> =
                passes([1, 2], first, 10).iter().filter_map(|passage| transits.see(passage, ())).collect();
            assert_eq!(told, [((), 5)]);
            assert_eq!(partners(&transits, [1, 2]), wanted.map_or([None; 2], |()| [Some(2), Some(1)]));
        }
    }

    #[test]
    fn others_with_the_same_addresses_come_between_nobody() {
        let mut transits = of_host();
        let mut told = [0; 2];
        for round in 0..100u32 {
            // The second pair has numbers of its own, and sends all again.
            let at_ns = i64::from(round) * 100;
            let [mine, others] =
                [passes([1, 2], round * 100, at_ns), passes([3, 4], 7 + round * 100, at_ns + 1)];
            let again = within(3, again(7 + round * 100));
            let all = [mine[0], others[0], again, others[1], mine[1]];
            all.iter().filter_map(|passage| Some((passage.ends.netns, transits.see(passage, ())?))).for_each(
                |(netns, ((), ns))| {
                    assert_eq!(ns, 5);
                    told[netns as usize / 3] += 1;
                },
            );
        }
        assert_eq!(told, [100, 0]);
        assert_eq!(partners(&transits, [1, 2]), [Some(2), Some(1)]);
        assert_eq!(partners(&transits, [3, 4]), [Some(4), Some(3)]);
    }

    #[test]
    fn who_guesses_a_number_now_and_then_is_no_partner() {
        let mut transits = of_host();
        for round in 0..1_000u32 {
            transits.see(&within(1, left(round * 100, 10)), ());
            // Its real other end is on another host.
            let guess = if round % 200 == 0 { round * 100 } else { round * 100 + 50 };
            transits.see(&within(4, came(guess, 15)), ());
            assert_eq!(partners(&transits, [1, 4]), [None; 2], "{round}");
        }
        // It has one there, and goes on with that.
        for round in 1_000..1_100u32 {
            let guess = if round % 3 == 0 { round * 100 } else { 0 };
            transits.see(&within(4, came(guess, 15)), ());
            passes([1, 2], round * 100, 10).iter().for_each(|passage| {
                transits.see(passage, ());
            });
        }
        assert_eq!(partners(&transits, [1, 2]), [Some(2), Some(1)]);
        assert_eq!(partners(&transits, [1, 4])[1], None);
    }

    #[test]
    fn a_pair_keeps_its_place_among_many() {
        let mut transits = of_host();
        for first in [0, 100] {
            passes([1, 2], first, 10).iter().for_each(|passage| {
                transits.see(passage, ());
            });
        }
        for netns in 10..1_000 {
            transits.see(&within(netns, left(netns, 10)), ());
            transits.see(&within(netns, came(netns + 5_000, 10)), ());
        }
        let kept: usize = transits.connections.iter_mut().map(|(_, alike)| alike.ends.len()).sum();
        assert_eq!(kept, 2 * ALIKE);
        assert_eq!(partners(&transits, [1, 2]), [Some(2), Some(1)]);
    }

    #[test]
    fn who_talks_to_itself_has_both_ends() {
        let mut transits = of_host();
        let [own, _] = ENDS.map(SocketAddr::from);
        let with_itself =
            |passage: Passage| Passage { ends: Ends { local: own, remote: own, ..passage.ends }, ..passage };
        assert_eq!(transits.see(&with_itself(left(0, 10)), ()), None);
        assert_eq!(transits.see(&with_itself(came(0, 12)), ()), Some(((), 2)));
    }

    #[test]
    fn so_many_wait() {
        let first = (0..200).map(|number| left(number * 100, i64::from(number)));
        let then = (0..200).map(|number| came(number * 100, 1_000 + i64::from(number)));
        let all: Vec<_> = first.chain(then).collect();
        assert_eq!(told(&all), [1_000; SENT]);
    }
}
