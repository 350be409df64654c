//! A table of a fixed size, in which those entries that were used last stay.

use std::{
    collections::HashMap,
    hash::{BuildHasher as _, Hash},
};

use foldhash::quality::RandomState;

/// Most entries that there are.
const MOST: usize = 4_096;
/// Entries that are compared when one has to make way. They lie far from each other, since neighbours came together and are alike.
const COMPARED: usize = 16;
/// How far they lie from each other.
const APART: usize = MOST / COMPARED;
/// An entry that was not used for N looks is old: a new one takes its place.
const OLD: u64 = 16 * MOST as u64;
/// Entries that made way, as far as they are known when they come again.
const GONE: usize = 4 * MOST;

/// The owner of an entry, and the number of one part of what it owns.
type Owner = (u64, u64);

#[derive(Clone, Debug)]
struct Place<K, V> {
    key: K,
    owner: Owner,
    used: u64,
    value: V,
}

/// As many entries as have a place. What it holds depends on what came in which order, and on nothing else.
#[derive(Clone, Debug)]
pub(crate) struct Places<K, V> {
    by_key: HashMap<K, usize, RandomState>,
    places: Vec<Place<K, V>>,
    /// The first of the entries that are compared next.
    next: usize,
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
    /// Nothing in it.
    #[must_use]
    pub(crate) fn new() -> Self {
        Self { by_key: HashMap::default(), places: Vec::new(), next: 0, clock: 0, gone: Vec::new(), back: 0 }
    }

    /// The entry of `key`, new if there is none. Where all places are taken, `settle` sees the one that makes way.
    pub(crate) fn find(&mut self, key: &K, owner: Owner, settle: impl FnOnce(&K, &mut V)) -> &mut V {
        self.clock += 1;
        let known = self.by_key.get(key).copied();
        let at = known.unwrap_or_else(|| self.place_for(*key, owner, settle));
        let place = &mut self.places[at];
        place.used = self.clock;
        &mut place.value
    }

    fn place_for(&mut self, key: K, owner: Owner, settle: impl FnOnce(&K, &mut V)) -> usize {
        let new = Place { key, owner, used: self.clock, value: V::default() };
        let at = if self.places.len() < MOST {
            self.places.push(new);
            self.places.len() - 1
        } else {
            let at = self.makes_way(owner);
            let mut old = std::mem::replace(&mut self.places[at], new);
            settle(&old.key, &mut old.value);
            self.by_key.remove(&old.key);
            self.gone.resize(GONE, 0);
            let (of_old, mark) = self.mark(&old.key);
            self.gone[of_old] = mark;
            at
        };
        let (of_new, mark) = self.mark(&key);
        if let Some(gone) = self.gone.get_mut(of_new).filter(|gone| **gone == mark) {
            *gone = 0;
            self.back += 1;
        }
        self.by_key.insert(key, at);
        at
    }

    /// The least recently used of a few entries: if it is old; else the one of the same owner and part; else of the same owner, so that an
    /// owner of many takes no place from others; else of all.
    fn makes_way(&mut self, owner: Owner) -> usize {
        let first = self.next;
        self.next = (first + 1) % APART;
        let oldest = |may_go: fn(Owner, Owner) -> bool| {
            let compared = (first..MOST).step_by(APART).map(|at| (self.places[at].used, at));
            compared.filter(|(_, at)| may_go(self.places[*at].owner, owner)).min()
        };
        let any = oldest(|_, _| true);
        any.filter(|(used, _)| self.clock - used >= OLD)
            .or_else(|| oldest(|one, other| one == other))
            .or_else(|| oldest(|one, other| one.0 == other.0))
            .or(any)
            .map_or(first, |(_, at)| at)
    }

    /// The entry of `key`, if there is one. That is no use of it.
    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.by_key.get(key).map(|at| &self.places[*at].value)
    }

    /// The entry of `key`, if there is one, to change it. That is no use of it.
    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.by_key.get(key).map(|at| &mut self.places[*at].value)
    }

    /// How often one came again that had made way: its former value is lost. Some are not noticed.
    #[must_use]
    pub(crate) fn came_back(&self) -> u64 {
        self.back
    }

    /// Each entry.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        self.places.iter_mut().map(|place| (&place.key, &mut place.value))
    }

    /// Where an entry that made way is known, and by what.
    fn mark(&self, key: &K) -> (usize, u32) {
        let hash = self.by_key.hasher().hash_one(key);
        (hash as usize % GONE, (hash >> 32) as u32 | 1)
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;

    #[test]
    fn all_are_kept_while_there_is_room() {
        let mut places = Places::new();
        for _ in 0..2 {
            (0..MOST)
                .for_each(|key| *places.find(&key, (0, 0), |_, _: &mut u32| panic!("there is room")) += 1);
        }
        assert!(places.iter_mut().all(|(_, count)| *count == 2));
    }

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
        assert_eq!((left, settled, places.came_back()), (MOST, 60_000 - MOST, 0));
        // The last one is still there.
        assert_eq!(*places.find(&60_000, (0, 0), |_, _| panic!("it is known")), 60_000);
        assert_eq!((places.get(&60_000), places.get(&60_001)), (Some(&60_000), None));
    }

    #[test]
    fn one_log_leaves_the_same_entries_each_time() {
        let kept = || {
            let mut places = Places::<u32, u32>::new();
            (0..20_000).for_each(|key| *places.find(&key, (u64::from(key % 7), 0), |_, _| {}) = key);
            places.iter_mut().map(|(key, _)| *key).collect::<Vec<_>>()
        };
        assert_eq!(kept(), kept());
    }

    #[test]
    fn one_part_with_many_takes_no_place_of_another_part() {
        let mut places = Places::new();
        let busy = |places: &mut Places<u32, u32>, numbers: Range<u32>| {
            numbers.for_each(|number| *places.find(&(1_000 + number), (1, 1), |_, _| {}) = 8);
        };
        busy(&mut places, 0..20_000);
        (0..20).for_each(|key| *places.find(&key, (1, 0), |_, _| {}) = 7);
        busy(&mut places, 20_000..40_000);
        assert!((0..20).all(|key| places.get(&key) == Some(&7)));
    }

    #[test]
    fn who_has_many_takes_no_place_of_others() {
        let mut places = Places::new();
        let mine: Vec<u32> = (0..20).collect();
        mine.iter().for_each(|key| *places.find(key, (1, 0), |_, _| {}) = 7);
        // Between two of my packets come 20,000 connections of another user, of 500 processes.
        let of_other = |number: u32| (2, u64::from(number % 500));
        for round in 0..10 {
            (0..20_000).for_each(|other| *places.find(&(1_000 + other), of_other(other), |_, _| {}) = round);
            let left = mine.iter().filter(|key| *places.find(key, (1, 0), |_, _| {}) == 7).count();
            assert_eq!(left, mine.len(), "{round}");
        }
        assert!(places.came_back() > 10_000, "{}", places.came_back());
        // Old entries keep no new one out.
        (0..200_000).for_each(|other| *places.find(&(1_000 + other % 3_000), (2, 0), |_, _| {}) = 9);
        let before = places.came_back();
        (0..3_000).for_each(|other| *places.find(&(1_000 + other), (2, 0), |_, _| {}) = 9);
        let missing = places.came_back() - before;
        assert!(missing < 1_000, "{missing}");
    }
}
