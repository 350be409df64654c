//! Handing finished packets to the user side.

use aya_ebpf::{bindings::BPF_RB_AVAIL_DATA, macros::map, maps::RingBuf};
#[cfg(feature = "fine")]
use net_latency_common::FineRecord;
use net_latency_common::{
    Counter, Direction, PARTS, PacketRecord, STAMP_APP, STAMP_DRV, STAMPS, UNKNOWN_PART,
};

#[cfg(feature = "hist")]
use super::histogram;
use super::{counters::HookResult, sampling};
use crate::flow::filter;
#[cfg(feature = "fine")]
use crate::flow::settings::setting;

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
    emit_fine(direction, stamps, mark, record, || [UNKNOWN_PART; PARTS])
}

/// The same of a packet that has these parts, where they are asked for.
#[inline(always)]
#[cfg_attr(not(feature = "fine"), expect(unused_variables, reason = "nobody asks for parts"))]
pub(crate) fn emit_fine(
    direction: Direction,
    stamps: &[u64; STAMPS],
    mark: u32,
    record: impl FnOnce() -> PacketRecord,
    parts: impl FnOnce() -> [u64; PARTS],
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
    #[cfg(feature = "fine")]
    if is_fine() {
        let parts = parts();
        let mut entry = RECORDS.reserve::<FineRecord>(0).ok_or(Counter::RingFull)?;
        entry.write(FineRecord { packet: record(), parts });
        entry.submit(flags);
        return Ok(());
    }
    let mut entry = RECORDS.reserve::<PacketRecord>(0).ok_or(Counter::RingFull)?;
    entry.write(record());
    entry.submit(flags);
    Ok(())
}

/// Whether fine stages are asked for.
#[cfg(feature = "fine")]
#[inline(always)]
pub(crate) fn is_fine() -> bool {
    setting!(fine) != 0
}

/// What counts a packet that is complete and that a filter excludes.
#[inline(always)]
fn filtered(direction: Direction) -> Counter {
    match direction {
        Direction::In => Counter::FilteredIn,
        Direction::Out => Counter::FilteredOut,
    }
}
