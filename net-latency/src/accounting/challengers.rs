//! Candidates for a place in a full table: an early one keeps its place only as long as it is used as much as those that come later.

use std::{collections::HashMap, hash::Hash};

use rustc_hash::FxHashMap;

/// How many keys without a place are counted: with more of them, one with few packets among very many is found.
const MOST: usize = 1_024;
/// Packets from which on one of them may take a place.
const LEAST: u64 = 16;

/// An owner has more than a share if it has more than one of N places.
const SHARES: usize = 4;

/// The holder of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder<P> {
    /// Which place.
    pub place: P,
    /// Its owner, which may have many.
    pub owner: u64,
    /// How much it is used.
    pub packets: u64,
}

/// Whose place a newcomer of `owner` takes, where all places are taken: the least used one of the owner with the most, if that is more than
/// a share and more than `owner` has; else the least used one of all, or of `owner`'s own if it has a share, if the newcomer `wins` over
/// its packets. So an owner of many takes no place of one with few.
pub(crate) fn whose_place<P: Copy>(
    holders: &[Holder<P>],
    owner: u64,
    wins: impl FnOnce(u64) -> bool,
) -> Option<Holder<P>> {
    let mut counts = FxHashMap::<u64, usize>::default();
    holders.iter().for_each(|holder| *counts.entry(holder.owner).or_default() += 1);
    let share = (holders.len() / SHARES).max(1);
    let own = counts.get(&owner).copied().unwrap_or_default();
    let greedy = counts.iter().max_by_key(|(owner, count)| (**count, **owner));
    let greedy = greedy.filter(|(_, count)| **count > share.max(own)).map(|(owner, _)| *owner);
    let has_share = own >= share;
    let may_go = |holder: &&Holder<P>| match greedy {
        Some(greedy) => holder.owner == greedy,
        None => !has_share || holder.owner == owner,
    };
    let least = holders.iter().filter(may_go).min_by_key(|holder| holder.packets)?;
    (greedy.is_some() || wins(least.packets)).then_some(*least)
}

/// Packets of those without a place. Where there is no room for one more, each loses one: so those with many stay (Misra and Gries).
#[derive(Clone, Debug)]
pub(crate) struct Challengers<K> {
    packets: HashMap<K, u64>,
}

impl<K: Copy + Eq + Hash> Challengers<K> {
    /// None yet.
    #[must_use]
    pub(crate) fn new() -> Self {
        Self { packets: HashMap::with_capacity(MOST) }
    }

    /// Counts a packet of a key without a place. Returns how many it has had, where that may be enough: not for each packet, since all
    /// places are looked at then.
    pub(crate) fn count(&mut self, key: K) -> Option<u64> {
        if self.packets.len() == MOST && !self.packets.contains_key(&key) {
            self.packets.retain(|_, packets| {
                *packets -= 1;
                *packets > 0
            });
            return None;
        }
        let packets = self.packets.entry(key).or_default();
        *packets += 1;
        (*packets >= LEAST && packets.is_power_of_two()).then_some(*packets)
    }

    /// Whether one with more packets takes the place of one with fewer: two that are alike don't take it from each other.
    #[must_use]
    pub(crate) const fn wins(packets: u64, least: u64) -> bool {
        packets > least.saturating_mul(2)
    }

    /// It has a place now.
    pub(crate) fn remove(&mut self, key: &K) {
        self.packets.remove(key);
    }

    /// Some time has passed: earlier packets count half.
    pub(crate) fn age(&mut self) {
        self.packets.retain(|_, packets| {
            *packets /= 2;
            *packets > 0
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Places of these owners, with N packets each.
    fn places(owners: &[(u64, u64)]) -> Vec<Holder<usize>> {
        let holders = owners.iter().enumerate();
        holders.map(|(place, &(owner, packets))| Holder { place, owner, packets }).collect()
    }

    fn taken(holders: &[Holder<usize>], owner: u64, packets: u64) -> Option<usize> {
        whose_place(holders, owner, |least| Challengers::<u32>::wins(packets, least)).map(|it| it.place)
    }

    #[test]
    fn who_has_few_takes_a_place_of_who_has_more_than_a_share_and_keeps_it() {
        let mut holders = places(&[(1, 90), (1, 40), (1, 60), (1, 70), (2, 3), (3, 5), (1, 80), (1, 50)]);
        // However few packets it has.
        assert_eq!(taken(&holders, 4, 1), Some(1));
        holders[1] = Holder { place: 1, owner: 4, packets: 1 };
        // The owner of most takes only its own.
        assert_eq!((taken(&holders, 1, 101), taken(&holders, 1, 100)), (Some(7), None));
        // Two users share what there is.
        let mut holders = places(&[(1, 90), (1, 40), (1, 60), (1, 70)]);
        (0..2).for_each(|_| {
            let place = taken(&holders, 2, 1).expect("there is one");
            holders[place].owner = 2;
        });
        assert_eq!(taken(&holders, 2, 200), Some(1));
        assert_eq!(holders.iter().filter(|holder| holder.owner == 2).count(), 2);
        assert_eq!(taken(&holders, 1, 1), None);
    }

    #[test]
    fn where_nobody_has_many_packets_decide() {
        let holders = places(&[(1, 9), (2, 4), (3, 6), (4, 7), (5, 8), (6, 9), (7, 9), (8, 9)]);
        assert_eq!((taken(&holders, 9, 8), taken(&holders, 9, 9)), (None, Some(1)));
        // All are of one: the busiest have a place.
        let holders = places(&[(1, 9), (1, 4)]);
        assert_eq!((taken(&holders, 1, 8), taken(&holders, 1, 9)), (None, Some(1)));
        assert_eq!(taken(&[], 1, 1), None);
    }

    #[test]
    fn who_has_many_is_found_among_many_who_have_few() {
        let mut challengers = Challengers::new();
        let mut told = Vec::new();
        for round in 0..10_000u32 {
            assert_eq!(challengers.count(1_000 + round), None);
            if round % 16 == 0 {
                told.extend(challengers.count(7));
            }
        }
        assert!(told.first() == Some(&LEAST) && told.last() > Some(&100), "{told:?}");
        assert!(challengers.packets.len() <= MOST);
        challengers.remove(&7);
        assert_eq!((0..100).filter_map(|_| challengers.count(8)).last(), Some(64));
        for _ in 0..8 {
            challengers.age();
        }
        assert!(challengers.packets.is_empty());
    }
}
