//! A table of a fixed size, in which those entries that were used last stay.

use std::{
    hash::{BuildHasher as _, Hash},
    ops::Range,
};

use foldhash::quality::RandomState;

/// Sets of entries that compete for places.
const SETS: usize = 1_024;
/// Places of a set.
const WAYS: usize = 4;
/// An entry that was not used for so many looks is old: whoever is new takes its place.
const OLD: u64 = 16 * (SETS * WAYS) as u64;
/// Entries that made way, as far as they are known when they come again.
const GONE: usize = 4 * SETS * WAYS;

/// Whose an entry is: somebody's, and of theirs the number of one part.
type Owner = (u64, u64);

#[derive(Clone, Debug)]
struct Place<K, V> {
    key: K,
    owner: Owner,
    used: u64,
    value: V,
}

/// As many entries as have a place.
#[derive(Clone, Debug)]
pub struct Places<K, V> {
    hasher: RandomState,
    places: Vec<Option<Place<K, V>>>,
    /// Grows with each look.
    clock: u64,
    /// A part of the hashes of entries that made way, each at its place; no memory before one has.
    gone: Vec<u32>,
    back: u64,
}

impl<K: Copy + Eq + Hash, V: Default> Default for Places<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Copy + Eq + Hash, V: Default> Places<K, V> {
    /// Most entries that there are.
    pub const MOST: usize = SETS * WAYS;

    /// Nothing in it.
    #[must_use]
    pub fn new() -> Self {
        let places = std::iter::repeat_with(|| None).take(Self::MOST).collect();
        Self { hasher: RandomState::default(), places, clock: 0, gone: Vec::new(), back: 0 }
    }

    /// The entry of `key`, new if there is none. Where its set is full, the one that was not used for longest makes way, after
    /// `settle` has seen it: one that is old, else one of the same owner and part, else one of the same owner, so that who has many takes
    /// no place from others, else any.
    pub fn find(&mut self, key: &K, owner: Owner, settle: impl FnOnce(&K, &mut V)) -> &mut V {
        self.clock += 1;
        let hash = self.hasher.hash_one(key);
        let places = &mut self.places[set(hash)];
        let known = places.iter().position(|place| place.as_ref().is_some_and(|known| known.key == *key));
        let way = known.unwrap_or_else(|| {
            let oldest = |may_go: fn(Owner, Owner) -> bool| {
                let ways = places.iter().enumerate();
                let ways = ways.filter(|(_, place)| place.as_ref().is_none_or(|it| may_go(it.owner, owner)));
                // An empty place was never used.
                ways.map(|(way, place)| (place.as_ref().map_or(0, |known| known.used), way)).min()
            };
            let any = |_, _| true;
            let old = oldest(any).filter(|(used, _)| self.clock - used >= OLD || *used == 0);
            let of_owner =
                || oldest(|one, other| one == other).or_else(|| oldest(|one, other| one.0 == other.0));
            old.or_else(of_owner).or_else(|| oldest(any)).map_or(0, |(_, way)| way)
        });
        let place = &mut places[way];
        if known.is_none() {
            if let Some(mut old) = place.take() {
                settle(&old.key, &mut old.value);
                self.gone.resize(GONE, 0);
                let (at, mark) = mark(self.hasher.hash_one(old.key));
                self.gone[at] = mark;
            }
            let (at, mark) = mark(hash);
            if let Some(gone) = self.gone.get_mut(at).filter(|gone| **gone == mark) {
                *gone = 0;
                self.back += 1;
            }
        }
        let entry = place.get_or_insert_with(|| Place { key: *key, owner, used: 0, value: V::default() });
        entry.used = self.clock;
        &mut entry.value
    }

    /// The entry of `key`, if there is one. That is no use of it.
    pub fn get(&self, key: &K) -> Option<&V> {
        let mut places = self.places[set(self.hasher.hash_one(key))].iter().flatten();
        places.find(|place| place.key == *key).map(|place| &place.value)
    }

    /// The entry of `key`, if there is one, to change it. That is no use of it.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let mut places = self.places[set(self.hasher.hash_one(key))].iter_mut().flatten();
        places.find(|place| place.key == *key).map(|place| &mut place.value)
    }

    /// How often one came again that had made way: what was known of it is lost. Some are not noticed.
    #[must_use]
    pub fn came_back(&self) -> u64 {
        self.back
    }

    /// Each entry.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        self.places.iter_mut().flatten().map(|place| (&place.key, &mut place.value))
    }
}

fn set(hash: u64) -> Range<usize> {
    let first = hash as usize % SETS * WAYS;
    first..first + WAYS
}

/// Where among those that made way, and by what it is known there: not by the bits that name its set.
fn mark(hash: u64) -> (usize, u32) {
    (hash as usize % GONE, (hash >> 32) as u32 | 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_used_for_longest_makes_way_and_is_settled() {
        let mut places = Places::new();
        let mut settled = 0;
        for key in 1..=60_000u32 {
            *places.find(&key, (key.into(), 0), |old, value| {
                assert_eq!(old, value);
                settled += 1;
            }) = key;
        }
        let left = places.iter_mut().count();
        assert!(left <= Places::<u32, u32>::MOST);
        assert_eq!((settled, places.came_back()), (60_000 - left, 0));
        // The last one is still there.
        assert_eq!(*places.find(&60_000, (0, 0), |_, _| panic!("it is known")), 60_000);
        assert_eq!((places.get(&60_000), places.get(&60_001)), (Some(&60_000), None));
    }

    #[test]
    fn one_part_with_many_takes_no_place_of_another_part() {
        let mut places = Places::new();
        let busy = |places: &mut Places<u32, u32>, numbers: Range<u32>| {
            numbers.for_each(|number| *places.find(&(1_000 + number), (1, 1), |_, _| {}) = 8);
        };
        busy(&mut places, 0..20_000);
        (0..20).for_each(|key| *places.find(&key, (1, 0), |_, _| {}) = 7);
        // Two of these may have met.
        let left = |places: &Places<u32, u32>| (0..20).filter(|key| places.get(key) == Some(&7)).count();
        let before = left(&places);
        busy(&mut places, 20_000..40_000);
        assert!(left(&places) == before && before > 15, "{before}");
    }

    #[test]
    fn who_has_many_takes_no_place_of_others() {
        let mut places = Places::new();
        let mine: Vec<u32> = (0..20).collect();
        mine.iter().for_each(|key| *places.find(key, (1, 0), |_, _| {}) = 7);
        // Between two of my packets come 20,000 connections of somebody else's, of 500 processes.
        let of_other = |number: u32| (2, u64::from(number % 500));
        for round in 0..10 {
            (0..20_000).for_each(|other| *places.find(&(1_000 + other), of_other(other), |_, _| {}) = round);
            let left = mine.iter().filter(|key| *places.find(key, (1, 0), |_, _| {}) == 7).count();
            assert_eq!(left, mine.len(), "{round}");
        }
        assert!(places.came_back() > 10_000, "{}", places.came_back());
        // What is old keeps nobody out.
        (0..200_000).for_each(|other| *places.find(&(1_000 + other % 3_000), (2, 0), |_, _| {}) = 9);
        let before = places.came_back();
        (0..3_000).for_each(|other| *places.find(&(1_000 + other), (2, 0), |_, _| {}) = 9);
        let missing = places.came_back() - before;
        assert!(missing < 1_000, "{missing}");
    }
}
