//! Handing finished packets to the user side.

#[cfg(feature = "fine")]
use core::mem::offset_of;

use net_latency_common::{
    Counter, Direction, PARTS, PacketRecord, STAMP_APP, STAMP_DRV, STAMP_IP, STAMPS, Served, Unknown,
    hook_key, unknown_parts,
};
#[cfg(feature = "fine")]
use net_latency_common::{FineRecord, PART_FINISHED, between};
#[cfg(feature = "hist")]
use net_latency_common::{IPPROTO_UDP, STAMP_TRANSPORT, TRAFFIC_OUT, TRAFFIC_UDP};

#[cfg(feature = "hist")]
use super::histogram;
use super::{
    counters::{self, HookResult},
    sampling,
};
#[cfg(feature = "fine")]
use crate::flow::settings::setting;
use crate::{
    bpf::{self, AVAIL_DATA, NO_WAKEUP, RingBuf, map, now},
    flow::filter,
    skips,
};

/// Finished packets, until the user side takes them. Random sampling from three quarters on; losses are counted.
#[map]
static RECORDS: RingBuf = RingBuf::with_byte_size(4 << 20, 0);

/// What filters and counts need of a complete packet. Its record is made only if it is wanted.
#[derive(Clone, Copy)]
pub(crate) struct Finished<'a> {
    pub(crate) direction: Direction,
    pub(crate) protocol: u8,
    pub(crate) flags: u16,
    pub(crate) stamps: &'a [u64; STAMPS],
}

#[cfg(feature = "hist")]
impl Finished<'_> {
    /// The stamps in the order in which the packet crosses the stages.
    #[inline(always)]
    pub(super) fn stages(&self) -> [u64; STAMPS] {
        let [drv, ip] = [self.stamps[STAMP_DRV], self.stamps[STAMP_IP]];
        let [transport, app] = [self.stamps[STAMP_TRANSPORT], self.stamps[STAMP_APP]];
        match self.direction {
            Direction::In => [drv, ip, transport, app],
            Direction::Out => [app, transport, ip, drv],
        }
    }

    /// Which kind of traffic it is, by its `TRAFFIC_` bits.
    #[inline(always)]
    pub(super) fn traffic(&self) -> u32 {
        let out = if matches!(self.direction, Direction::Out) { TRAFFIC_OUT } else { 0 };
        out | if self.protocol == IPPROTO_UDP { TRAFFIC_UDP } else { 0 }
    }
}

/// Puts one record into the ring buffer, or counts the packet's times, unless a filter excludes a packet with these
/// stamps and this mark. `record` runs once there is room, so that it is built in place.
#[inline(always)]
pub(crate) fn emit(
    packet: &Finished<'_>,
    mark: impl FnOnce() -> u32,
    record: impl FnOnce() -> PacketRecord,
) -> HookResult {
    let parts = || unknown_parts(packet.direction, Unknown::NoStamp, now);
    emit_fine(packet, mark, record, parts, || true)
}

/// [`emit`] for a packet that has these parts, if requested. `is_its` says whether what the record and the packet are made of is still this
/// packet's, when both are made: where not, there is no line.
#[inline(always)]
pub(crate) fn emit_fine(
    packet: &Finished<'_>,
    mark: impl FnOnce() -> u32,
    record: impl FnOnce() -> PacketRecord,
    parts: impl FnOnce() -> [u64; PARTS],
    is_its: impl Fn() -> bool,
) -> HookResult {
    if !filter::packet(packet.direction, packet.stamps, mark) {
        return Err(filtered(packet.direction));
    }
    hand_over(packet, record, parts, || Served::NONE, is_its)
}

/// [`emit`] for a packet that goes out. With fine stages it is one that found no room to wait for them, for the reason `missing`; all but
/// its time has passed the filters then ([`filter::lasting`]).
#[inline(always)]
pub(crate) fn emit_sent(
    packet: &Finished<'_>,
    mark: impl FnOnce() -> u32,
    missing: Option<Unknown>,
    record: impl FnOnce() -> PacketRecord,
    served: impl FnOnce() -> Served,
    is_its: impl Fn() -> bool,
) -> HookResult {
    // Asked once: else the compiler makes all that follows twice.
    let (is_wanted, reason) = match missing {
        Some(reason) => (filter::is_slow_enough(packet.direction, packet.stamps), reason),
        None => (filter::packet(packet.direction, packet.stamps, mark), Unknown::NoStamp),
    };
    if !is_wanted {
        return Err(Counter::FilteredOut);
    }
    hand_over(packet, record, || unknown_parts(packet.direction, reason, now), served, is_its)
}

/// Puts the record of a wanted packet into the ring buffer, or counts its times, or both if it is slow enough for that.
///
/// `record` stands here as seldom as can be: each time, the compiler keeps all that it is made of on the stack.
#[inline(always)]
#[cfg_attr(not(feature = "fine"), expect(unused_variables, reason = "this object has no parts"))]
fn hand_over(
    packet: &Finished<'_>,
    record: impl FnOnce() -> PacketRecord,
    parts: impl FnOnce() -> [u64; PARTS],
    served: impl FnOnce() -> Served,
    is_its: impl Fn() -> bool,
) -> HookResult {
    // Once for all that follows: a program has 512 bytes of stack.
    #[cfg(feature = "fine")]
    let parts = if is_fine() { parts() } else { [0; PARTS] };
    #[cfg(feature = "hist")]
    let (is_counted, is_recorded) = (
        histogram::is_wanted(),
        !histogram::is_wanted() || filter::is_recorded(packet.direction, packet.stamps),
    );
    #[cfg(not(feature = "hist"))]
    let (is_counted, is_recorded) = (false, true);

    if is_recorded {
        let flags = if is_counted {
            // No wakeup: the reader comes by its timer, and what finds no room until then is counted only.
            NO_WAKEUP
        } else {
            sampling::admit(packet.stamps[STAMP_DRV] ^ packet.stamps[STAMP_APP], || {
                RECORDS.query(AVAIL_DATA)
            })?
        };
        if let Some(entry) = reserve() {
            // SAFETY: room for a record, and for its parts if requested; its owner hands it back here.
            unsafe {
                entry.write(record());
                if skips::happens(const { hook_key("ring::inconsistent") }) {
                    // Older than tracing.
                    (*entry).stamps[STAMP_IP] = 1;
                }
                #[cfg(feature = "fine")]
                if is_fine() && matches!(packet.direction, Direction::Out) {
                    (&raw mut (*entry.cast::<FineRecord>()).served).write(served());
                }
                if !is_its() {
                    bpf::discard(entry.cast(), flags);
                    return gone(packet.direction);
                }
                #[cfg(feature = "fine")]
                if is_fine() {
                    (&raw mut (*entry.cast::<FineRecord>()).parts).write(parts);
                }
                #[cfg(feature = "hist")]
                if is_counted {
                    let counted = if histogram::is_of_all() {
                        histogram::count_among_all(packet)
                    } else {
                        histogram::count(packet, histogram::whose(packet.direction, &*entry))
                    };
                    histogram::name(&mut *entry);
                    if counted.is_ok() {
                        bpf::submit(entry.cast(), flags);
                    } else {
                        bpf::discard(entry.cast(), flags);
                    }
                    return counted.map(|_| ());
                }
                bpf::submit(entry.cast(), flags);
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
        // A packet that is only counted goes on as if there were no records.
        let _place = if histogram::is_of_all() {
            if !is_its() {
                return gone(packet.direction);
            }
            histogram::count_among_all(packet)
        } else {
            let whose = histogram::whose(packet.direction, &record());
            if !is_its() {
                return gone(packet.direction);
            }
            histogram::count(packet, whose)
        }?;
        #[cfg(feature = "fine")]
        if is_fine() {
            histogram::count_parts(_place, &parts);
        }
    }
    Ok(())
}

/// Counts a packet that has no line, since the entry it was made of became another's meanwhile. One that came in was evicted, which is
/// computed from the contents of the maps.
#[inline(always)]
fn gone(direction: Direction) -> HookResult {
    match direction {
        Direction::In => Ok(()),
        Direction::Out => Err(Counter::OvertakenOut),
    }
}

/// Room for a record in the ring buffer, with its parts behind it if requested, to be handed back.
#[inline(always)]
fn reserve() -> Option<*mut PacketRecord> {
    #[cfg(feature = "fine")]
    if is_fine() {
        const { assert!(offset_of!(FineRecord, packet) == 0) }
        return RECORDS.reserve::<FineRecord>(0).map(|mut entry| entry.as_mut_ptr().cast());
    }
    RECORDS.reserve::<PacketRecord>(0).map(|mut entry| entry.as_mut_ptr())
}

/// Puts the record of an outgoing packet that has waited, with these parts and flags besides, into the ring buffer, or counts its
/// times, unless it took less time than is wanted. All else is wanted ([`filter::lasting`]).
///
/// # Safety
/// `packet` and `served` are in a map's entry, which is not written to meanwhile.
#[cfg(feature = "fine")]
#[inline(always)]
pub(crate) unsafe fn emit_waiting(
    packet: *const PacketRecord,
    served: *const Served,
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
        let packet = unsafe { &*packet };
        let (protocol, flags) = (packet.protocol, packet.flags);
        let finished = Finished { direction: Direction::Out, protocol, flags, stamps: &stamps };
        let place = if histogram::is_of_all() {
            histogram::count_among_all(&finished)
        } else {
            histogram::count(&finished, histogram::whose(Direction::Out, packet))
        }?;
        histogram::count_parts(place, parts);
        return Ok(());
    }
    let how = sampling::admit(parts[PART_FINISHED], || RECORDS.query(AVAIL_DATA))?;
    let mut entry = RECORDS.reserve::<FineRecord>(0).ok_or(Counter::RingFull)?;
    let record = entry.as_mut_ptr();
    // SAFETY: room for a record, and one as the caller says; all of it is words.
    unsafe {
        (*record).packet = *packet;
        (*record).packet.flags = (*packet).flags | flags;
        (*record).parts = *parts;
        (*record).served = *served;
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

/// Whether a packet may have a record, if only to name its owner.
#[inline(always)]
pub(crate) fn makes_records() -> bool {
    #[cfg(feature = "hist")]
    return !histogram::is_of_all() || filter::records_slow();
    #[cfg(not(feature = "hist"))]
    true
}

/// Whether there are fine stages.
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

/// Takes the records that programs have handed over, which are all of this type.
#[cfg(test)]
pub(crate) fn take_records<T: Copy>() -> std::vec::Vec<T> {
    let all = RECORDS.take();
    let records = bpf::host::of_type(&all);
    assert_eq!(records.len(), all.len(), "all of a record's size");
    records
}
