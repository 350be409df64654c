//! Handing finished packets to the user side.

use net_latency_common::{AF_INET, Counter, Direction, PacketRecord, STAMP_APP, STAMP_DRV, STAMPS};

#[cfg(feature = "hist")]
use crate::histogram;
use crate::{Outcome, filter, maps::RECORDS, overload, socket::Ends};

/// Puts one record into the ring buffer, or counts the packet's times, unless a filter excludes a packet with these
/// stamps and this mark. `record` runs once there is room, so that it is built in place.
#[inline(always)]
pub(crate) fn emit(
    direction: Direction,
    stamps: &[u64; STAMPS],
    mark: u32,
    record: impl FnOnce() -> PacketRecord,
) -> Outcome {
    if !filter::packet(direction, stamps, mark) {
        return Err(filtered(direction));
    }
    #[cfg(feature = "hist")]
    if histogram::is_wanted() {
        return histogram::count(direction, &record());
    }
    let flags = overload::admit(stamps[STAMP_DRV] ^ stamps[STAMP_APP])?;
    let mut entry = RECORDS.reserve::<PacketRecord>(0).ok_or(Counter::RingFull)?;
    entry.write(record());
    entry.submit(flags);
    Ok(())
}

/// What counts a packet that is complete and that a filter excludes.
#[inline(always)]
pub(crate) fn filtered(direction: Direction) -> Counter {
    match direction {
        Direction::In => Counter::FilteredIn,
        Direction::Out => Counter::FilteredOut,
    }
}

/// Source and destination address of a packet between `ends`, as [`PacketRecord`] has them.
#[inline(always)]
pub(crate) fn addresses(ends: &Ends, direction: Direction) -> ([u8; 16], [u8; 16]) {
    let [a, b, c, d] = ends.addresses;
    let (remote, local) =
        if ends.family == AF_INET { ([a & 0xffff_ffff, 0], [a >> 32, 0]) } else { ([a, b], [c, d]) };
    let (remote, local) = (bytes(remote), bytes(local));
    match direction {
        Direction::In => (remote, local),
        Direction::Out => (local, remote),
    }
}

#[inline(always)]
fn bytes(words: [u64; 2]) -> [u8; 16] {
    // SAFETY: same size, and any bytes are valid.
    unsafe { core::mem::transmute(words) }
}

/// The CPU this runs on.
#[inline(always)]
pub(crate) fn cpu() -> u16 {
    // SAFETY: the helper takes nothing and has no side effect.
    unsafe { aya_ebpf::helpers::bpf_get_smp_processor_id() as u16 }
}
