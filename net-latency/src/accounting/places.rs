//! A table of a fixed size, in which those entries that were used last stay.

use std::{
    hash::{BuildHasher as _, Hash, RandomState},
    ops::Range,
};

/// Sets of entries that compete for places.
const SETS: usize = 1_024;
/// Places of a set.
const WAYS: usize = 4;

#[derive(Clone, Debug)]
struct Place<K, V> {
    key: K,
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
        Self { hasher: RandomState::new(), places, clock: 0 }
    }

    /// The entry of `key`, new if there is none. Where its set is full, the one that was not used for longest makes way, after
    /// `settle` has seen it.
    pub fn find(&mut self, key: &K, settle: impl FnOnce(&K, &mut V)) -> &mut V {
        self.clock += 1;
        let set = self.set(key);
        let places = &mut self.places[set];
        let known = places.iter().position(|place| place.as_ref().is_some_and(|known| known.key == *key));
        // An empty place was never used.
        let oldest = || (0..WAYS).min_by_key(|way| places[*way].as_ref().map_or(0, |known| known.used));
        let way = known.or_else(oldest).unwrap_or(0);
        let place = &mut places[way];
        if known.is_none()
            && let Some(mut old) = place.take()
        {
            settle(&old.key, &mut old.value);
        }
        let entry = place.get_or_insert_with(|| Place { key: *key, used: 0, value: V::default() });
        entry.used = self.clock;
        &mut entry.value
    }

    /// The entry of `key`, if there is one. That is no use of it.
    pub fn get(&self, key: &K) -> Option<&V> {
        let mut places = self.places[self.set(key)].iter().flatten();
        places.find(|place| place.key == *key).map(|place| &place.value)
    }

    fn set(&self, key: &K) -> Range<usize> {
        let first = self.hasher.hash_one(key) as usize % SETS * WAYS;
        first..first + WAYS
    }

    /// Each entry.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        self.places.iter_mut().flatten().map(|place| (&place.key, &mut place.value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_used_for_longest_makes_way_and_is_settled() {
        let mut places = Places::new();
        let mut settled = 0;
        for key in 1..=60_000u32 {
            *places.find(&key, |old, value| {
                assert_eq!(old, value);
                settled += 1;
            }) = key;
        }
        let left = places.iter_mut().count();
        assert!(left <= Places::<u32, u32>::MOST);
        assert_eq!(settled, 60_000 - left);
        // The last one is still there.
        assert_eq!(*places.find(&60_000, |_, _| panic!("it is known")), 60_000);
        assert_eq!((places.get(&60_000), places.get(&60_001)), (Some(&60_000), None));
    }
}
