//! Who has no place in a full table, and may take one: whoever comes first keeps its place only as long as it is used as much as those
//! that come later.

use std::{collections::HashMap, hash::Hash};

/// Those without a place whose packets are counted.
const MOST: usize = 64;
/// Packets from which on one of them may take a place.
const LEAST: u64 = 16;

/// Packets of those without a place. Where there is no room for one more, each loses one: so those with many stay (Misra and Gries).
#[derive(Clone, Debug)]
pub struct Challengers<K> {
    packets: HashMap<K, u64>,
}

impl<K: Copy + Eq + Hash> Challengers<K> {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self { packets: HashMap::with_capacity(MOST) }
    }

    /// Counts a packet of somebody without a place. How many it has had, where that may be enough: not for each packet, since all
    /// places are looked at then.
    pub fn count(&mut self, key: K) -> Option<u64> {
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

    /// Whether one with so many packets takes the place of one with so few: two that are alike don't take it from each other.
    #[must_use]
    pub const fn wins(packets: u64, least: u64) -> bool {
        packets > least.saturating_mul(2)
    }

    /// It has a place now.
    pub fn remove(&mut self, key: &K) {
        self.packets.remove(key);
    }

    /// Some time has passed: what was before counts half.
    pub fn age(&mut self) {
        self.packets.retain(|_, packets| {
            *packets /= 2;
            *packets > 0
        });
    }
}

impl<K: Copy + Eq + Hash> Default for Challengers<K> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
