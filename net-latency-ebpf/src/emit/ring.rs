//! Handing finished packets to the user side.

use aya_ebpf::{bindings::BPF_RB_AVAIL_DATA, macros::map, maps::RingBuf};
use net_latency_common::{Counter, Direction, PacketRecord, STAMP_APP, STAMP_DRV, STAMPS};

#[cfg(feature = "hist")]
use super::histogram;
use super::{counters::HookResult, sampling};
use crate::flow::filter;

/// Finished packets, until the user side takes them.
#[map]
static RECORDS: RingBuf = RingBuf::with_byte_size(4 << 20, 0);

/// Puts one record into the ring buffer, or counts the packet's times, unless a filter excludes a packet with these
/// stamps and this mark. `record` runs once there is room, so that it is built in place.
#[inline(always)]
pub(crate) fn emit(
    direction: Direction,
    stamps: &[u64; STAMPS],
    mark: u32,
    record: impl FnOnce() -> PacketRecord,
) -> HookResult {
    if !filter::packet(direction, stamps, mark) {
        return Err(filtered(direction));
    }
    #[cfg(feature = "hist")]
    if histogram::is_wanted() {
        return histogram::count(direction, &record());
    }
    let flags = sampling::admit(stamps[STAMP_DRV] ^ stamps[STAMP_APP], || {
        RECORDS.query(u64::from(BPF_RB_AVAIL_DATA))
    })?;
    let mut entry = RECORDS.reserve::<PacketRecord>(0).ok_or(Counter::RingFull)?;
    entry.write(record());
    entry.submit(flags);
    Ok(())
}

/// What counts a packet that is complete and that a filter excludes.
#[inline(always)]
fn filtered(direction: Direction) -> Counter {
    match direction {
        Direction::In => Counter::FilteredIn,
        Direction::Out => Counter::FilteredOut,
    }
}
