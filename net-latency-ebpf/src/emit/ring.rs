//! Handing finished packets to the user side.

#[cfg(feature = "fine")]
use core::mem::offset_of;

use aya_ebpf::{
    bindings::{BPF_RB_AVAIL_DATA, BPF_RB_NO_WAKEUP},
    helpers::generated,
    macros::map,
    maps::RingBuf,
};
use net_latency_common::{
    Counter, Direction, PARTS, PacketRecord, STAMP_APP, STAMP_DRV, STAMPS, Unknown, unknown_part,
};
#[cfg(feature = "fine")]
use net_latency_common::{FineRecord, PART_FINISHED, between};

#[cfg(feature = "hist")]
use super::histogram;
use super::{
    counters::{self, HookResult},
    sampling,
};
use crate::flow::filter;
#[cfg(feature = "fine")]
use crate::{
    flow::settings::setting,
    kernel::{cpu::now, memory::copy_words},
};

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
    emit_fine(direction, stamps, mark, record, || unknown_parts(Unknown::NoStamp))
}

/// The same of a packet that has these parts, where they are asked for.
#[inline(always)]
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
    hand_over(direction, stamps, record, parts)
}

/// The same of one that goes out: where fine stages are asked for, one that found no room to wait for them, which is `missing`; all but
/// its time is asked for then ([`filter::lasting`]).
#[inline(always)]
pub(crate) fn emit_sent(
    stamps: &[u64; STAMPS],
    mark: u32,
    missing: Option<Unknown>,
    record: impl FnOnce() -> PacketRecord,
) -> HookResult {
    let is_wanted = match missing {
        Some(_) => filter::is_slow_enough(Direction::Out, stamps),
        None => filter::packet(Direction::Out, stamps, mark),
    };
    if !is_wanted {
        return Err(Counter::FilteredOut);
    }
    hand_over(Direction::Out, stamps, record, || unknown_parts(missing.unwrap_or(Unknown::NoStamp)))
}

/// Puts the record of a packet that is asked for into the ring buffer, or counts its times, or both if it is slow enough for that.
///
/// `record` stands here as seldom as can be: each time, the compiler keeps all that it is made of on the stack.
#[inline(always)]
#[cfg_attr(not(feature = "fine"), expect(unused_variables, reason = "nobody asks for parts"))]
fn hand_over(
    direction: Direction,
    stamps: &[u64; STAMPS],
    record: impl FnOnce() -> PacketRecord,
    parts: impl FnOnce() -> [u64; PARTS],
) -> HookResult {
    // Once for all that follows: a program has 512 bytes of stack.
    #[cfg(feature = "fine")]
    let parts = if is_fine() { parts() } else { [0; PARTS] };
    #[cfg(feature = "hist")]
    let (is_counted, is_recorded) =
        (histogram::is_wanted(), !histogram::is_wanted() || filter::is_recorded(direction, stamps));
    #[cfg(not(feature = "hist"))]
    let (is_counted, is_recorded) = (false, true);

    if is_recorded {
        let flags = if is_counted {
            // Nobody is woken: the reader comes by its timer, and what finds no room until then is counted only.
            u64::from(BPF_RB_NO_WAKEUP)
        } else {
            sampling::admit(stamps[STAMP_DRV] ^ stamps[STAMP_APP], || {
                RECORDS.query(u64::from(BPF_RB_AVAIL_DATA))
            })?
        };
        if let Some(entry) = reserve() {
            // SAFETY: room for a record, and for its parts where they are asked for; whose it is hands it back here.
            unsafe {
                entry.write(record());
                #[cfg(feature = "fine")]
                if is_fine() {
                    (&raw mut (*entry.cast::<FineRecord>()).parts).write(parts);
                }
                #[cfg(feature = "hist")]
                if is_counted {
                    let counted = histogram::count(direction, &*entry);
                    histogram::name(&mut *entry);
                    if counted.is_ok() {
                        generated::bpf_ringbuf_submit(entry.cast(), flags);
                    } else {
                        generated::bpf_ringbuf_discard(entry.cast(), flags);
                    }
                    return counted.map(|_| ());
                }
                generated::bpf_ringbuf_submit(entry.cast(), flags);
            }
            return Ok(());
        }
        if !is_counted {
            return Err(Counter::RingFull);
        }
        counters::one(Counter::SlowLost);
    }
    #[cfg(feature = "hist")]
    {
        // What is only counted goes its way as if there were no records.
        let _place = histogram::count(direction, &record())?;
        #[cfg(feature = "fine")]
        if is_fine() {
            histogram::count_parts(_place, &parts);
        }
    }
    Ok(())
}

/// Room for a record in the ring buffer, with its parts behind it where they are asked for, to be handed back.
#[inline(always)]
fn reserve() -> Option<*mut PacketRecord> {
    #[cfg(feature = "fine")]
    if is_fine() {
        const { assert!(offset_of!(FineRecord, packet) == 0) }
        return RECORDS.reserve::<FineRecord>(0).map(|mut entry| entry.as_mut_ptr().cast());
    }
    RECORDS.reserve::<PacketRecord>(0).map(|mut entry| entry.as_mut_ptr())
}

/// Parts that are all unknown for this reason, of a line that is complete now.
#[inline(always)]
fn unknown_parts(reason: Unknown) -> [u64; PARTS] {
    let unknown = unknown_part(reason);
    #[cfg(feature = "fine")]
    return [unknown, unknown, unknown, now()];
    #[cfg(not(feature = "fine"))]
    [unknown; PARTS]
}

/// Puts the record of an outgoing packet that has waited, with these parts and flags besides, into the ring buffer, or counts its
/// times, unless it took less time than is asked for. All else is asked for ([`filter::lasting`]).
///
/// # Safety
/// `packet` is a record in a map's entry, which is not written to meanwhile.
#[cfg(feature = "fine")]
#[inline(always)]
pub(crate) unsafe fn emit_waiting(
    packet: *const PacketRecord,
    flags: u16,
    parts: &[u64; PARTS],
) -> HookResult {
    // SAFETY: as the caller says.
    let stamps = unsafe { (*packet).stamps };
    if !filter::is_slow_enough(Direction::Out, &stamps) && !filter::has_slow_part(parts) {
        return Err(Counter::FilteredOut);
    }
    #[cfg(feature = "hist")]
    if histogram::is_wanted() {
        // SAFETY: as the caller says.
        let place = histogram::count(Direction::Out, unsafe { &*packet })?;
        histogram::count_parts(place, parts);
        return Ok(());
    }
    let how = sampling::admit(parts[PART_FINISHED], || RECORDS.query(u64::from(BPF_RB_AVAIL_DATA)))?;
    let mut entry = RECORDS.reserve::<FineRecord>(0).ok_or(Counter::RingFull)?;
    let record = entry.as_mut_ptr();
    // SAFETY: room for a record, and one as the caller says; all of it is words. How it copies: see `copy_words`.
    unsafe {
        copy_words(packet, &raw mut (*record).packet);
        (*record).packet.flags = (*packet).flags | flags;
        copy_words(parts, &raw mut (*record).parts);
    }
    entry.submit(how);
    Ok(())
}

/// [`between`] as a global function, which the verifier checks once by itself.
#[cfg(feature = "fine")]
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn part_between(from: u64, to: u64, missing: u64) -> u64 {
    between(from, to, missing)
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
