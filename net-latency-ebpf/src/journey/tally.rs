//! Which journeys are under way, and how many.

use crate::bpf::{Array, HashMap, NO_EXIST, entry::increment, map};
use net_latency_common::journey::{TALLIES, TALLY_ARMED, TALLY_BEGUN, TALLY_ENDED};

/// What is kept of a journey.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Known {
    /// Number of the first byte of a segment with payload, with [`HAS_SEQ`].
    pub(super) seq: u64,
    /// The flow of a packet that came in; 0 of one that was sent here.
    pub(super) flow: u64,
}

/// What a journey's entry says of a segment with payload: its first byte.
pub(super) const HAS_SEQ: u64 = 1 << 32;

/// Journeys under way, by id. No more begin than find room; the user side takes out those that have ended. When full, no packet is picked.
#[map]
static JOURNEYS: HashMap<u64, Known> = HashMap::with_max_entries(64, 0);

/// How many journeys were begun, and how many were ended by the user side.
#[map]
static TALLY: Array<u64> = Array::with_max_entries(TALLIES, 0);

/// Whether any packet is followed. Everything asks this first.
#[inline(always)]
pub(super) fn is_any() -> bool {
    match (TALLY.get(TALLY_BEGUN), TALLY.get(TALLY_ENDED)) {
        (Some(begun), Some(ended)) => begun != ended,
        _ => false,
    }
}

/// Whether journeys may begin.
#[inline(always)]
pub(super) fn is_armed() -> bool {
    TALLY.get(TALLY_ARMED).is_some_and(|armed| *armed != 0)
}

/// Adds one to a count.
#[inline(always)]
pub(super) fn count(index: u32) {
    if let Some(count) = TALLY.get_ptr_mut(index) {
        increment(count);
    }
}

/// A journey begins, if there is room.
#[inline(always)]
pub(super) fn insert(id: u64, known: &Known) -> bool {
    JOURNEYS.insert(&id, known, NO_EXIST).is_ok()
}

/// It ends, as the user side would say.
#[cfg(test)]
pub(super) fn end(id: u64) {
    let _ = JOURNEYS.remove(&id);
    count(TALLY_ENDED);
}

/// Whether this journey has not ended.
#[inline(always)]
pub(super) fn is_under_way(id: u64) -> bool {
    JOURNEYS.get_ptr(&id).is_some()
}

/// What is kept of a journey.
#[inline(always)]
pub(super) fn known(id: u64) -> Option<Known> {
    // SAFETY: an element that is never freed.
    JOURNEYS.get_ptr(&id).map(|known| unsafe { *known })
}
