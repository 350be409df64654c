//! Slots of an array in front of a map that evicts: an entry in a slot is looked up in a handful of instructions. What finds no free slot
//! goes to the map, whose insertion, lookup and deletion cost some 1,300.
//!
//! Locks are not allowed here on Linux 5.10 (`bpf_spin_lock` is refused in tracing programs, fetching atomics came with 5.12), so a slot is
//! held by counting: each attempt adds one to `claims`, and has the slot only if no other attempt came between its look and its addition.
//! What was added is added to `releases` in the end. Both only grow, so that an attempt that fails leaves no trace. A slot is free while
//! they are equal, and has an entry, or is getting one, while they differ by one. The holder of a slot with an entry has added a second
//! claim. These additions keep all other reads and writes from crossing them. Where memory is read and written in any order ([`arch`]),
//! more does: an entry is read after its key, and the map is searched after the keys.
//!
//! Considered: a word that proves that an entry is whole (mixing ten words twice costs more than the claims), a slot of each CPU (the taker
//! of a packet doesn't know which CPU brought it), the map alone (as it was before), eviction within the array (packets that wait for long
//! are the interesting ones; a slot's entry moves to the map instead, once it is old and another wants the slot).

#[cfg(target_arch = "bpf")]
use core::mem;
use core::ptr;

use net_latency_common::{Counter, hook_key};

use crate::{
    bpf::{Array, LruHashMap, NO_EXIST},
    emit::counters,
    flow::addresses::SPREAD,
    kernel::{
        arch::{self, add_in_order},
        memory::is_nonzero,
    },
    skips,
};

/// An entry that is this old, ns, makes room for one that comes.
const OLD: u64 = 1_000_000_000;

/// What moves to the map once it is old.
pub(crate) trait Entry {
    /// When it came, ns of `CLOCK_MONOTONIC`, or about.
    fn came(&self) -> u64;

    /// There was another one with its key, which is gone. It is said here: had the finder to look at a value, the verifier would go through
    /// all that follows once for each.
    fn lost_twin(&self) {}
}

/// A slot. Its fields are read and written by pointer only: several CPUs do so at a time.
#[repr(C)]
struct Slot<T> {
    claims: u64,
    releases: u64,
    /// Whose entry it is; 0 while there is none that could be found.
    key: u64,
    entry: T,
}

/// The two slots that serve a key.
#[repr(C)]
pub(crate) struct Slots<T> {
    pair: [Slot<T>; 2],
    /// How many that belong here are in the map, at most: those that it evicted are among them.
    spilled: u64,
}

/// An entry, and where it is.
pub(crate) struct Found<T> {
    pub(crate) entry: *mut T,
    key: u64,
    spilled: *mut u64,
    /// The slot, which the finder alone holds; null if the entry is in the map.
    slot: *mut Slot<T>,
}

/// The array, with 2 to the power of `BITS` pairs, alone: an entry that finds no slot is not kept.
pub(crate) struct Places<T: 'static, const BITS: u32> {
    slots: &'static Array<Slots<T>>,
}

/// The array and the map.
pub(crate) struct Table<T: 'static, const BITS: u32> {
    places: Places<T, BITS>,
    map: &'static LruHashMap<u64, T>,
}

/// What became of an entry.
pub(crate) enum Inserted<T> {
    /// It is in.
    New,
    /// One with its key is there. It is not held, so that its taker is not blocked, and it may be another's by now.
    There(*mut T),
    /// There is no room.
    NoRoom,
}

impl<T> Found<T> {
    /// Its key, if it is in the map, which may evict it while it is read; 0 if it has a slot.
    #[inline(always)]
    pub(crate) fn spilled_key(&self) -> u64 {
        if self.slot.is_null() { self.key } else { 0 }
    }

    /// Whether the map may have evicted one with its key before it came: of those that belong to its slots there is, or was, another one.
    #[inline(always)]
    pub(crate) fn may_follow_evicted(&self) -> bool {
        Slot::<T>::load(self.spilled) > u64::from(self.slot.is_null())
    }
}

impl<T> Slot<T> {
    /// Reads a word of a map's entry, which stays mapped while a program runs.
    #[inline(always)]
    fn load(word: *const u64) -> u64 {
        arch::load(word)
    }

    #[inline(always)]
    fn key(slot: *mut Self) -> u64 {
        // SAFETY: as in `load`.
        Self::load(unsafe { &raw const (*slot).key })
    }

    /// The entry of a slot whose key was read.
    #[inline(always)]
    fn entry(slot: *mut Self, key: u64) -> *mut T {
        // SAFETY: within a map's entry.
        unsafe { &raw mut (*arch::after(slot, || key)).entry }
    }

    #[inline(always)]
    fn set_key(slot: *mut Self, key: u64) {
        // SAFETY: as in `load`; the caller alone holds the slot.
        #[cfg(target_arch = "bpf")]
        unsafe {
            arch::write_last!(slot, mem::offset_of!(Self, key), key);
        }
        // SAFETY: as above.
        #[cfg(not(target_arch = "bpf"))]
        arch::write_in_order(unsafe { &raw mut (*slot).key }, key);
    }

    /// Takes a slot that is free, for an entry that comes; false if that fails. Tests have some entries find no slot.
    #[inline(always)]
    fn claim_free(slot: *mut Self) -> bool {
        !skips::happens(const { hook_key("slots::full") }) && Self::claim(slot, 0)
    }

    /// The claims on a slot.
    #[inline(always)]
    fn claims(slot: *mut Self) -> u64 {
        // SAFETY: as in `load`. In this order: claims made meanwhile show.
        unsafe {
            let claims = Self::load(&raw const (*slot).claims);
            claims.wrapping_sub(Self::load(&raw const (*slot).releases))
        }
    }

    /// Takes a slot that has `others` claims on it, for the caller alone; false if that fails.
    #[inline(always)]
    fn claim(slot: *mut Self, others: u64) -> bool {
        // SAFETY: as in `load`.
        let (claims, releases) = unsafe { (&raw mut (*slot).claims, &raw mut (*slot).releases) };
        // In this order: a claim after the first look makes the last one fail.
        let seen = Self::load(claims);
        if seen.wrapping_sub(Self::load(arch::after(releases, || seen))) != others {
            return false;
        }
        add_in_order(claims, 1);
        if Self::load(claims) == seen.wrapping_add(1) {
            return true;
        }
        add_in_order(releases, 1);
        false
    }

    /// Takes the slot that has the entry with this key, which is never 0.
    #[inline(always)]
    fn hold(slot: *mut Self, key: u64) -> bool {
        if Self::key(slot) != key || !Self::claim(slot, 1) {
            return false;
        }
        if Self::key(slot) == key {
            return true;
        }
        Self::release(slot, 1);
        false
    }

    #[inline(always)]
    fn release(slot: *mut Self, claims: u64) {
        // SAFETY: as in `load`.
        add_in_order(unsafe { &raw mut (*slot).releases }, claims);
    }

    /// The slot's entry was written: tests look at how others may see that.
    #[inline(always)]
    fn note_entry(_slot: *mut Self) {
        // SAFETY: within a map's entry.
        #[cfg(test)]
        crate::bpf::host::order::wrote(unsafe { &raw const (*_slot).entry });
    }

    /// Gives the slot an entry, which lookups find from now on.
    #[inline(always)]
    fn fill(slot: *mut Self, key: u64, entry: &T) {
        // SAFETY: the caller alone holds the slot; all of an entry is words, and those of a map's entry are writable.
        unsafe { ptr::copy_nonoverlapping(entry, &raw mut (*slot).entry, 1) };
        Self::note_entry(slot);
        Self::set_key(slot, key);
    }

    /// The entry is gone, and with it the caller's claim, and that of the one that brought it.
    #[inline(always)]
    fn clear(slot: *mut Self) {
        Self::set_key(slot, 0);
        Self::release(slot, 2);
    }
}

impl<T> Slots<T> {
    #[inline(always)]
    fn slot(slots: *mut Self, number: usize) -> *mut Slot<T> {
        // SAFETY: one of the two, in a map's entry.
        unsafe { (&raw mut (*slots).pair).cast::<Slot<T>>().add(number) }
    }

    /// The slot that has this key, if one has. Which of the two is found by arithmetic: a branch would have the verifier go through
    /// all that follows once for each.
    #[inline(always)]
    fn with_key(slots: *mut Self, key: u64) -> *mut Slot<T> {
        let is_first = is_nonzero(Slot::key(Self::slot(slots, 1)) ^ key);
        Self::slot(slots, 1 - is_first as usize)
    }

    /// A slot that is free, if one is. Likewise.
    #[inline(always)]
    fn free(slots: *mut Self) -> *mut Slot<T> {
        let is_second = is_nonzero(Slot::claims(Self::slot(slots, 0)));
        Self::slot(slots, is_second as usize)
    }

    #[inline(always)]
    fn spilled(slots: *mut Self) -> *mut u64 {
        // SAFETY: within a map's entry.
        unsafe { &raw mut (*slots).spilled }
    }

    /// Whether the map may have an entry that none of the slots had. An entry that moves there leaves the first of them.
    #[inline(always)]
    fn has_spilled(slots: *mut Self) -> bool {
        let spilled = arch::after(Self::spilled(slots), || Slot::key(Self::slot(slots, 0)));
        Slot::<T>::load(spilled) != 0
    }
}

impl<T, const BITS: u32> Places<T, BITS> {
    #[cfg(feature = "fine")]
    pub(crate) const fn new(slots: &'static Array<Slots<T>>) -> Self {
        Self { slots }
    }

    #[inline(always)]
    fn slots(&self, key: u64) -> Option<*mut Slots<T>> {
        self.slots.get_ptr_mut((key.wrapping_mul(SPREAD) >> (u64::BITS - BITS)) as u32)
    }
}

/// For entries of a kind of which one has a key, and whose coming and going others don't meet.
#[cfg(feature = "fine")]
impl<T, const BITS: u32> Places<T, BITS> {
    /// The entry with this key, if it is there.
    #[inline(always)]
    pub(crate) fn peek(&self, key: u64) -> Option<*mut T> {
        let slot = Slots::with_key(self.slots(key)?, key);
        let there = Slot::key(slot);
        if there == key { Some(Slot::entry(slot, there)) } else { None }
    }

    /// Puts an entry in, which `fill` writes, if there is room and none with its key. Not one of which `fill` says that what it was made of
    /// has changed meanwhile.
    #[inline(always)]
    pub(crate) fn put(&self, key: u64, fill: impl FnOnce(*mut T) -> bool) -> bool {
        let Some(slots) = self.slots(key) else { return false };
        let slot = Slots::free(slots);
        if Slot::key(Slots::with_key(slots, key)) == key || !Slot::claim(slot, 0) {
            return false;
        }
        // SAFETY: within a map's entry.
        let is_whole = fill(unsafe { &raw mut (*slot).entry });
        if is_whole {
            Slot::set_key(slot, key);
        } else {
            Slot::release(slot, 1);
        }
        is_whole
    }

    /// An entry is of no use any more.
    #[inline(always)]
    pub(crate) fn forget(&self, key: u64) {
        let Some(slots) = self.slots(key) else { return };
        let slot = Slots::with_key(slots, key);
        if Slot::hold(slot, key) {
            Slot::clear(slot);
        }
    }
}

impl<T, const BITS: u32> Table<T, BITS> {
    pub(crate) const fn new(slots: &'static Array<Slots<T>>, map: &'static LruHashMap<u64, T>) -> Self {
        Self { places: Places { slots }, map }
    }

    #[inline(always)]
    fn slots(&self, key: u64) -> Option<*mut Slots<T>> {
        self.places.slots(key)
    }

    /// The entry with this key, of a kind that nothing else reaches meanwhile (a lock of the kernel's sees to that), and that stays in its
    /// slot.
    #[inline(always)]
    pub(crate) fn peek(&self, key: u64) -> Option<*mut T> {
        self.peek_in(self.slots(key)?, key)
    }

    #[inline(always)]
    fn peek_in(&self, slots: *mut Slots<T>, key: u64) -> Option<*mut T> {
        let slot = Slots::with_key(slots, key);
        let there = Slot::key(slot);
        if there == key {
            return Some(Slot::entry(slot, there));
        }
        if Slots::has_spilled(slots) { self.map.get_ptr_mut(key) } else { None }
    }

    /// Puts an entry of that kind in, of which there is none, if there is room.
    #[inline(always)]
    pub(crate) fn put(&self, key: u64, entry: &T) {
        let Some(slots) = self.slots(key) else { return };
        let slot = Slots::free(slots);
        if Slot::claim_free(slot) {
            return Slot::fill(slot, key, entry);
        }
        add_in_order(Slots::spilled(slots), 1);
        // Where there is no room it isn't found.
        let _ = self.map.insert(key, entry, 0);
    }

    /// Whether the map has an entry with this key: earlier reads were of that entry then, and not of one that has got the place of an
    /// evicted one. (One that was evicted and has come again meanwhile stands for the same.) `when` is by what name a test has it evicted
    /// just now.
    #[inline(always)]
    pub(crate) fn has_spilled(&self, key: u64, when: u32) -> bool {
        skips::evict(when, self.map, &key);
        if arch::REORDERS
            && let Some(slots) = self.slots(key)
        {
            arch::in_order(Slots::spilled(slots));
        }
        self.map.get_ptr(key).is_some()
    }

    /// Whether the entry with this key has a slot, and so can't be evicted.
    #[inline(always)]
    pub(crate) fn has_slot(&self, key: u64) -> bool {
        self.slots(key).is_some_and(|slots| Slot::key(Slots::with_key(slots, key)) == key)
    }

    /// An entry of that kind is of no use any more. One that is not there, evicted meanwhile, is as good as removed.
    #[inline(always)]
    pub(crate) fn forget(&self, key: u64) {
        let Some(slots) = self.slots(key) else { return };
        let slot = Slots::with_key(slots, key);
        if Slot::hold(slot, key) {
            return Slot::clear(slot);
        }
        if Slots::has_spilled(slots) && self.map.remove(key).is_ok() {
            add_in_order(Slots::spilled(slots), u64::MAX);
        }
    }
}

impl<T: Entry, const BITS: u32> Table<T, BITS> {
    /// The entry with this key, which the caller alone has, and hands back by [`Self::keep`] or [`Self::remove`].
    #[inline(always)]
    pub(crate) fn find(&self, key: u64) -> Option<Found<T>> {
        let slots = self.slots(key)?;
        let found = self.find_among(slots, key);
        if found.is_some() {
            return found;
        }
        if !Slots::has_spilled(slots) {
            return None;
        }
        let entry = self.map.get_ptr_mut(key)?;
        Some(Found { entry, key, spilled: Slots::spilled(slots), slot: ptr::null_mut() })
    }

    /// [`Self::find`], for an entry in a slot only.
    #[inline(always)]
    pub(crate) fn find_in_slot(&self, key: u64) -> Option<Found<T>> {
        self.find_among(self.slots(key)?, key)
    }

    #[inline(always)]
    fn find_among(&self, slots: *mut Slots<T>, key: u64) -> Option<Found<T>> {
        let slot = Slots::with_key(slots, key);
        if !Slot::hold(slot, key) {
            return None;
        }
        // If both have it, it is the second.
        let first = Slots::slot(slots, 0);
        // SAFETY: within a map's entry.
        let entry = unsafe { &raw mut (*slot).entry };
        // Two CPUs may have put an entry with the same key in at the same moment: then neither is known to be the one that counts.
        if Slot::key(first) == key && slot != first && Slot::hold(first, key) {
            Slot::clear(first);
            counters::both(Counter::Taken, Counter::DroppedIn);
            // SAFETY: the slot is the caller's, and so is its entry.
            unsafe { (*entry).lost_twin() };
        }
        Some(Found { entry, key, spilled: Slots::spilled(slots), slot })
    }

    /// The found entry stays.
    #[inline(always)]
    pub(crate) fn keep(found: &Found<T>) {
        if !found.slot.is_null() {
            Slot::release(found.slot, 1);
        }
    }

    /// The found entry is gone. False if the map had evicted it meanwhile.
    #[inline(always)]
    pub(crate) fn remove(&self, found: &Found<T>) -> bool {
        if !found.slot.is_null() {
            Slot::clear(found.slot);
            return true;
        }
        let was_there = self.map.remove(found.key).is_ok();
        if was_there {
            add_in_order(found.spilled, u64::MAX);
            counters::one(Counter::SpilledTaken);
        }
        was_there
    }

    /// The found entry is gone, and counts as if the map had evicted it.
    #[inline(always)]
    pub(crate) fn evict(&self, found: &Found<T>) {
        if !found.slot.is_null() {
            Slot::clear(found.slot);
            return counters::one(Counter::Spilled);
        }
        if self.map.remove(found.key).is_ok() {
            add_in_order(found.spilled, u64::MAX);
        }
    }

    /// Puts an entry in, which `entry` makes in its place, unless there is one with its key.
    #[inline(always)]
    pub(crate) fn insert(&self, key: u64, entry: impl Fn() -> T) -> Inserted<T> {
        let Some(slots) = self.slots(key) else { return Inserted::NoRoom };
        if let Some(there) = self.peek_in(slots, key) {
            return Inserted::There(there);
        }
        let slot = Slots::free(slots);
        if Slot::claim_free(slot) {
            // SAFETY: the slot is the caller's, and within a map's entry.
            unsafe { (&raw mut (*slot).entry).write(entry()) };
            Slot::note_entry(slot);
            Slot::set_key(slot, key);
            return Inserted::New;
        }
        if spill(slots, self.map, key, &entry()) == SPILLED { Inserted::New } else { Inserted::NoRoom }
    }
}

/// What became of an entry that found no slot.
const SPILLED: u32 = 0;
const NOT_SPILLED: u32 = 1;

/// Both slots are taken: an old entry goes to the map, or the new one. Rare, and so a function by itself.
#[inline(never)]
fn spill<T: Entry + 'static>(slots: *mut Slots<T>, map: &LruHashMap<u64, T>, key: u64, entry: &T) -> u32 {
    let spilled = Slots::spilled(slots);
    let slot = Slots::slot(slots, 0);
    let there = Slot::key(slot);
    // SAFETY: within a map's entry; the time that is read may be another entry's by now, and is checked again.
    let is_old = |slot: *mut Slot<T>| unsafe { (*slot).entry.came() + OLD < entry.came() };
    // Before it is in the map, so that lookups go there.
    add_in_order(spilled, 1);
    if there != 0 && is_old(slot) && Slot::hold(slot, there) {
        // SAFETY: the slot is the caller's, and so is its entry.
        let old = unsafe { &(*slot).entry };
        let has_moved = map.insert(there, old, 0).is_ok();
        if has_moved {
            counters::one(Counter::Spilled);
            Slot::set_key(slot, 0);
            Slot::fill(slot, key, entry);
        }
        // The claim that came with the old entry is now the new one's.
        Slot::release(slot, 1);
        if has_moved {
            return SPILLED;
        }
    }
    if map.insert(key, entry, NO_EXIST).is_ok() {
        counters::one(Counter::Spilled);
        return SPILLED;
    }
    add_in_order(spilled, u64::MAX);
    NOT_SPILLED
}

/// How many entries there are.
#[cfg(test)]
pub(crate) struct Count {
    pub(crate) count: u64,
    is_full: bool,
}

#[cfg(test)]
impl Count {
    /// Whether the map may have evicted some.
    pub(crate) fn evicts(&self) -> bool {
        self.is_full
    }
}

#[cfg(test)]
impl<T: 'static, const BITS: u32> Places<T, BITS> {
    /// All entries in slots.
    pub(crate) fn entries(&self) -> impl Iterator<Item = *mut T> {
        let slots = self.slots.touched().into_iter().flat_map(|slots| [0, 1].map(|n| Slots::slot(slots, n)));
        // SAFETY: within a map's entry.
        slots.filter(|slot| Slot::key(*slot) != 0).map(|slot| unsafe { &raw mut (*slot).entry })
    }
}

#[cfg(test)]
impl<T: 'static, const BITS: u32> Table<T, BITS> {
    /// All entries.
    pub(crate) fn entries(&self) -> std::vec::Vec<*mut T> {
        let mut all = self.map.values();
        all.extend(self.places.entries());
        all
    }

    pub(crate) fn count(&self) -> Count {
        let (spilled, most) = self.map.count();
        Count { count: self.places.entries().count() as u64 + spilled, is_full: spilled >= most }
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, collections::HashMap, vec::Vec};

    use super::*;
    use crate::bpf::Machine;

    /// Two pairs: entries meet in nearly each step.
    const BITS: u32 = 1;
    const KEYS: u64 = 12;

    #[repr(C)]
    struct Thing {
        came: u64,
        value: u64,
    }

    impl Entry for Thing {
        fn came(&self) -> u64 {
            arch::load(&raw const self.came)
        }

        fn lost_twin(&self) {
            TWINS.set(TWINS.get() + 1);
        }
    }

    std::thread_local! {
        /// Twins that this thread has found.
        static TWINS: Cell<u64> = const { Cell::new(0) };
    }

    static SLOTS: Array<Slots<Thing>> = Array::with_max_entries(1 << BITS, 0);
    static MAP: LruHashMap<u64, Thing> = LruHashMap::with_max_entries(64, 0);
    const TABLE: Table<Thing, BITS> = Table::new(&SLOTS, &MAP);
    static ALONE: Array<Slots<Thing>> = Array::with_max_entries(1 << BITS, 0);
    const PLACES: Places<Thing, BITS> = Places::new(&ALONE);

    /// Numbers drawn by a generator of which only the upper bits are of use.
    fn random(seed: &mut u64, end: u64) -> u64 {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (*seed >> 33) % end
    }

    fn value(entry: *mut Thing) -> u64 {
        // SAFETY: in a map of this thread's machine.
        unsafe { (*entry).value }
    }

    /// What each pair of slots says of the map is true, and no slot has more claims than it should.
    fn expect_whole(expected: &HashMap<u64, u64>) {
        let mut held: Vec<_> = TABLE.entries().into_iter().map(value).collect();
        let mut values: Vec<_> = expected.values().copied().collect();
        held.sort_unstable();
        values.sort_unstable();
        assert_eq!(held, values, "lost or twice");
        for pair in 0..1 << BITS {
            let slots = SLOTS.get_ptr_mut(pair).expect("a pair");
            let is_here = |key: &&u64| TABLE.slots(**key) == Some(slots) && !TABLE.has_slot(**key);
            let spilled = expected.keys().filter(is_here).count() as u64;
            assert_eq!(Slot::<Thing>::load(Slots::spilled(slots)), spilled, "in the map");
            for slot in [0, 1].map(|number| Slots::slot(slots, number)) {
                assert_eq!(Slot::claims(slot), u64::from(Slot::key(slot) != 0), "claims");
            }
        }
    }

    #[test]
    fn a_table_has_what_was_put_in_and_not_taken() {
        for mut seed in 0..200 {
            Machine::reset();
            let mut expected = HashMap::new();
            let mut now = 1;
            for number in 0..200 {
                now += random(&mut seed, OLD / 2);
                let key = 1 + random(&mut seed, KEYS);
                let thing = || Thing { came: now, value: number };
                match random(&mut seed, 7) {
                    0 => match TABLE.insert(key, thing) {
                        Inserted::New => assert_eq!(expected.insert(key, number), None),
                        Inserted::There(there) => assert_eq!(Some(&value(there)), expected.get(&key)),
                        Inserted::NoRoom => panic!("there is room"),
                    },
                    1 if !expected.contains_key(&key) => {
                        TABLE.put(key, &thing());
                        expected.insert(key, number);
                    }
                    2 => {
                        TABLE.forget(key);
                        expected.remove(&key);
                    }
                    3 => assert_eq!(TABLE.peek(key).map(value), expected.get(&key).copied()),
                    way => {
                        let found = TABLE.find(key);
                        assert_eq!(
                            found.as_ref().map(|found| value(found.entry)),
                            expected.get(&key).copied()
                        );
                        let Some(found) = found else { continue };
                        assert!(TWINS.get() == 0 && (found.spilled_key() == 0) == TABLE.has_slot(key));
                        match way {
                            5 => assert!(TABLE.remove(&found)),
                            6 => TABLE.evict(&found),
                            _ => Table::<Thing, BITS>::keep(&found),
                        }
                        if way > 4 {
                            expected.remove(&key);
                        }
                    }
                }
                expect_whole(&expected);
            }
        }
    }

    /// An old entry makes room for a new one, and is found in the map from then on.
    #[test]
    fn only_what_is_old_moves_to_the_map() {
        for (age, moves) in [(OLD, false), (OLD + 1, true)] {
            Machine::reset();
            let same_pair: Vec<u64> =
                (1..100).filter(|key| TABLE.slots(*key) == TABLE.slots(1)).take(3).collect();
            for (key, came) in same_pair.iter().zip([1, 1, 1 + age]) {
                assert!(matches!(TABLE.insert(*key, || Thing { came, value: *key }), Inserted::New));
            }
            let has_slot = [0, 1, 2].map(|number| TABLE.has_slot(same_pair[number]));
            assert_eq!(has_slot, [!moves, true, moves], "{age} ns");
            expect_whole(&same_pair.iter().map(|key| (*key, *key)).collect());
        }
    }

    /// While a slot is held, others neither find its entry nor take it away.
    #[test]
    fn what_is_held_stays() {
        Machine::reset();
        assert!(matches!(TABLE.insert(1, || Thing { came: 1, value: 7 }), Inserted::New));
        let found = TABLE.find(1).expect("there");
        assert!(TABLE.find(1).is_none() && TABLE.find_in_slot(1).is_none());
        TABLE.forget(1);
        assert_eq!(TABLE.peek(1).map(value), Some(7));
        Table::<Thing, BITS>::keep(&found);
        assert!(TABLE.find_in_slot(1).is_some());
    }

    #[test]
    fn places_keep_what_is_whole_and_has_room() {
        Machine::reset();
        let put = |key, is_whole| {
            PLACES.put(key, |entry| {
                // SAFETY: the place of an entry in a map of this thread's machine.
                unsafe { entry.write(Thing { came: 1, value: key }) };
                is_whole
            })
        };
        let same_pair: Vec<u64> =
            (1..100).filter(|key| PLACES.slots(*key) == PLACES.slots(1)).take(3).collect();
        let [first, second, third] = same_pair[..] else { panic!("three keys of a pair") };
        assert!(!put(first, false) && PLACES.peek(first).is_none(), "it was not whole");
        assert!(put(first, true) && !put(first, true), "there already");
        assert!(put(second, true) && !put(third, true), "no room");
        assert_eq!(
            [first, second, third].map(|key| PLACES.peek(key).map(value)),
            [Some(first), Some(second), None]
        );
        PLACES.forget(third);
        PLACES.forget(first);
        assert!(PLACES.peek(first).is_none() && PLACES.peek(second).is_some());
        assert!(put(third, true), "room again");
    }

    /// What CPUs see of slots that others use meanwhile.
    mod in_any_order {
        use super::*;
        use crate::bpf::host::order::{self, Barrier, explore, race};

        /// Four keys of one pair of slots, which is shared, and so is the map for them.
        fn keys() -> [u64; 4] {
            let slots = TABLE.slots(1).expect("a pair");
            let mut keys = (1..).filter(|key| TABLE.slots(*key) == Some(slots));
            let keys = [(); 4].map(|()| keys.next().expect("a key"));
            order::share(slots);
            MAP.share(&keys, |thing| order::share(thing));
            keys
        }

        fn thing(key: u64) -> Thing {
            Thing { came: key, value: key }
        }

        fn insert(key: u64, age: u64) -> bool {
            matches!(TABLE.insert(key, || Thing { came: key + age, value: key }), Inserted::New)
        }

        /// Whether that is what was put in with this key.
        fn is_of(entry: *mut Thing, key: u64) -> bool {
            let Thing { came, value } = order::load(entry);
            (came % OLD, value) == (key, key)
        }

        /// Takes what has the key out, if it is there. How many: its twin, too.
        fn take(key: u64) -> u64 {
            TWINS.set(0);
            let Some(found) = TABLE.find(key) else { return 0 };
            let is_its = is_of(found.entry, key);
            let was_evicted = found.spilled_key() != 0 && !TABLE.has_spilled(key, 0);
            let taken = u64::from(!was_evicted && TABLE.remove(&found));
            assert!(taken == 0 || is_its, "another's entry");
            taken + TWINS.get()
        }

        /// What is left, and nothing else.
        fn expect_left(keys: &[u64]) {
            expect_whole(&keys.iter().map(|key| (*key, *key)).collect());
        }

        #[test]
        fn an_entry_is_read_as_it_was_put() {
            explore(&[(Barrier::Write, "not whole"), (Barrier::After, "not whole")], || {
                let [key, ..] = keys();
                race(
                    move || insert(key, 0),
                    || {
                        assert!(TABLE.peek(key).is_none_or(|entry| is_of(entry, key)), "not whole");
                    },
                );
                expect_left(&[key]);
            });
        }

        #[test]
        fn an_entry_is_taken_once() {
            explore(&[], || {
                let [key, ..] = keys();
                insert(key, 0);
                let (there, here) = race(move || take(key), || take(key));
                assert!(there + here < 2, "taken twice");
                expect_left(&[key][(there + here) as usize..]);
            });
        }

        #[test]
        fn an_entry_is_changed_as_a_whole() {
            explore(&[(Barrier::Add, "not whole")], || {
                let [key, other, ..] = keys();
                insert(key, 0);
                let change = move || {
                    let Some(found) = TABLE.find(key) else { return };
                    // SAFETY: in a map of this thread's machine.
                    unsafe { found.entry.write(thing(other)) };
                    order::wrote(found.entry);
                    Table::<Thing, BITS>::keep(&found);
                };
                race(change, || {
                    let Some(found) = TABLE.find(key) else { return };
                    assert!(is_of(found.entry, key) || is_of(found.entry, other), "not whole");
                    Table::<Thing, BITS>::keep(&found);
                });
            });
        }

        #[test]
        fn who_takes_a_slots_new_entry_has_that() {
            explore(&[(Barrier::Write, "another's entry")], || {
                let [key, other, third, _] = keys();
                insert(key, 0);
                insert(third, 0);
                let replace = move || (take(key), insert(other, 0));
                let ((there, came), (here, gone)) = race(replace, || (take(key), take(other)));
                let mut left = Vec::from([third]);
                left.extend((there + here == 0).then_some(key));
                left.extend((came && gone == 0).then_some(other));
                expect_left(&left);
            });
        }

        /// An old entry moves to the map.
        #[test]
        fn what_moves_to_the_map_is_always_found() {
            explore(&[(Barrier::Write, "nowhere"), (Barrier::After, "nowhere")], || {
                let [old, second, new, _] = keys();
                insert(old, 0);
                insert(second, 0);
                race(
                    move || insert(new, 2 * OLD),
                    || {
                        assert!(TABLE.peek(old).is_some(), "nowhere");
                    },
                );
                expect_left(&[old, second, new]);
            });
        }

        #[test]
        fn what_moves_to_the_map_is_taken_once() {
            explore(&[(Barrier::Add, "lost or twice")], || {
                let [old, second, new, _] = keys();
                insert(old, 0);
                insert(second, 0);
                let (_, taken) = race(move || insert(new, 2 * OLD), || take(old));
                expect_left(&[old, second, new][taken as usize..]);
            });
        }

        /// The map evicts an entry while it is read, and gives its memory to another.
        #[test]
        fn an_entry_that_is_still_there_was_read_as_it_is() {
            explore(&[(Barrier::InOrder, "another's entry")], || {
                let [first, second, third, other] = keys();
                for key in [first, second, third] {
                    insert(key, 0);
                }
                let evict = move || {
                    MAP.remove(third).expect("there");
                    MAP.insert(other, thing(other), 0).expect("room for it");
                };
                race(evict, || {
                    let is_its = TABLE.peek(third).is_none_or(|entry| is_of(entry, third));
                    assert!(is_its || !TABLE.has_spilled(third, 0), "another's entry");
                });
            });
        }

        #[test]
        fn of_two_that_come_at_once_each_is_counted_once() {
            explore(&[], || {
                let [key, ..] = keys();
                let (there, here) = race(move || insert(key, 0), || insert(key, 0));
                // One may have been too late for a slot, and be in the map.
                assert_eq!(u64::from(there) + u64::from(here), take(key) + take(key), "lost or twice");
                expect_left(&[]);
            });
        }
    }
}
