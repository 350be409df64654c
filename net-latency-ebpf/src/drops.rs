//! Which sockets drop what they get.

use net_latency_common::{Counter, DroppingSockets};

use crate::{
    bpf::entry::increment,
    bpf::{HashMap, NO_EXIST, map},
    flow::settings::setting,
};

/// Received packets that were dropped after reaching TCP or UDP, by whose sockets did. What finds no room is in the counter of all alone.
#[map]
static DROPS: HashMap<DroppingSockets, u64> = HashMap::with_max_entries(1024, 0);

/// A packet that was followed is dropped, before `local` has read it. What that is counted as.
///
/// Drops are rare, or the machine's main trouble: an entry that all CPUs share serves.
#[inline(always)]
pub(crate) fn of(netns: u32, protocol: u8, local: u16, remote: u16) -> Counter {
    let sockets = DroppingSockets::new(netns, protocol, local, remote, setting!(ephemeral_ports));
    if DROPS.get_ptr_mut(&sockets).is_none() {
        // It is there already if another CPU, or what interrupted this one, was here between.
        let _ = DROPS.insert(&sockets, &0, NO_EXIST);
    }
    if let Some(count) = DROPS.get_ptr_mut(&sockets) {
        increment(count);
    }
    Counter::DroppedIn
}
