//! Flows whose packets a task has read that is not wanted: they are not picked again for a while, or else packets of
//! others would take all places.

use super::tally;
use crate::{
    bpf::{ANY, LruHashMap, map, now},
    flow::filter,
};

/// When a packet between these ends was last read by an unwanted task. Evicts: one candidate more.
#[map]
static READ_BY_OTHERS: LruHashMap<u64, u64> = LruHashMap::with_max_entries(8192, 0);

/// How long packets between two ends are not picked after one was read by an unwanted task: a socket may
/// change hands.
const UNTRACED_NS: u64 = 1_000_000_000;

/// The current task reads the packet of this journey. If it is not wanted, neither are the next ones, for a while.
#[inline(always)]
pub(super) fn read_by_current(id: u64) {
    if !filter::is_by_task() || filter::current() {
        return;
    }
    let Some(known) = tally::known(id) else { return };
    if known.flow != 0 {
        // Nothing could be done about a failure: a candidate more.
        let _ = READ_BY_OTHERS.insert(&known.flow, &now(), ANY);
    }
}

/// Whether a task that is not traced read a packet of this flow a moment ago.
#[inline(always)]
pub(super) fn is_untraced(flow: u64) -> bool {
    match READ_BY_OTHERS.get_ptr(&flow) {
        // SAFETY: an element that is never freed.
        Some(at) => now().wrapping_sub(unsafe { *at }) < UNTRACED_NS,
        None => false,
    }
}
