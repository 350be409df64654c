//! Sent packets for which no ACK is waited for, until their driver is done with them: `--stages fine`. Datagrams, what TCP sends
//! again, control packets. And which packet each CPU's driver works on.
//!
//! From the device's queue to the driver an skb is in one CPU's hands at a time, so that its address tells it. GSO makes other skbs
//! of a datagram: such a one, and what finds no room, gets its line at once.

use net_latency_common::{
    FLAG_RETRANS, PacketRecord, SENT_AGAIN, SENT_DROPPED, STAMP_DRV, Sent, SentSlots, SentTimes, Served,
    Unknown, sent_flags, sent_parts,
};

use crate::{
    bpf::{Array, PerCpuArray, map, now},
    emit::{
        counters,
        ring::{emit_waiting, part_between},
    },
    kernel::{
        memory::{Memory, number},
        skb::Skb,
    },
    slots::{Places, Slots},
};

/// Pairs of slots, as a power of two.
const SLOT_BITS: u32 = 10;

/// Packets at their devices' queues, by the addresses of their skbs. Or, where `acked` is not 0, segments that wait for their ACKs and have
/// that key. When both slots of a key are taken, the line is there at once, its parts unknown (`no_room`).
#[map]
static LEAVING: Array<Slots<Sent>> = Array::with_max_entries(1 << SLOT_BITS, 0);

const LINES: Places<Sent, SLOT_BITS> = Places::new(&LEAVING);

const _: () = assert!(size_of::<Slots<Sent>>() == size_of::<SentSlots>(), "the user side reads what is left");

/// The packet that a CPU's driver works on. Drivers are synchronous, and one may call another's: a VLAN's calls that of the device below
/// it. On PREEMPT_RT another task may come between, and is recognised as another.
#[repr(C)]
pub(crate) struct Driving {
    /// Address of its skb; 0 for none.
    skb: u64,
    /// Key of the segment among those that wait for their ACKs, and its socket; 0 if the packet is in `line`.
    key: u64,
    socket: u64,
    line: Sent,
}

/// What each CPU's driver works on.
#[map]
static DRIVING: PerCpuArray<Driving> = PerCpuArray::with_max_entries(1, 0);

/// Whose packet a driver works on.
#[derive(Clone, Copy)]
pub(crate) enum Whose {
    /// A segment that waits for its ACK: its key and its socket.
    Segment(u64, u64),
    /// One of those that are kept here.
    Line,
}

#[inline(always)]
fn driving() -> Option<*mut Driving> {
    DRIVING.get_ptr_mut(0)
}

/// The line of a packet, which its driver had from `started` to `finished`, 0 if that is not known.
#[inline(always)]
fn finish(line: *const Sent, started: u64, finished: u64, state: u32) {
    let now = now();
    // SAFETY: an entry of a map, which its packet has to itself.
    let (packet, served) = unsafe { (&(*line).packet, &raw const (*line).served) };
    let again = if packet.flags & FLAG_RETRANS != 0 { SENT_AGAIN } else { 0 };
    let times = SentTimes { queued: packet.stamps[STAMP_DRV], started, finished, acked: 0 };
    // Only packets that are sent again have such a part at all.
    let unacked = Some(Unknown::NoStamp);
    let parts =
        sent_parts(times, state | again, unacked, now, |from, to, missing| part_between(from, to, missing));
    // SAFETY: as above.
    if let Err(counter) = unsafe { emit_waiting(packet, served, sent_flags(state), &parts) } {
        counters::one(counter);
    }
}

/// The line of the packet with this key is complete, before its driver had it.
///
/// A global function, which the verifier checks once by itself instead of wherever it is called.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn finish_queued(key: u64, state: u32) -> u32 {
    if let Some(line) = LINES.peek(key) {
        // SAFETY: an entry of a map, which its packet has to itself.
        if unsafe { (*line).acked } == 0 {
            finish(line, 0, 0, state);
        }
        LINES.forget(key);
    }
    0
}

/// The line of what this CPU's driver works on is complete; it was done at `finished`, 0 if that is not known. Likewise.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn finish_driven(finished: u64) -> u32 {
    if let Some(driving) = driving() {
        // SAFETY: a CPU's own entry.
        let line = unsafe { &raw const (*driving).line };
        // SAFETY: as above.
        let (started, state) = unsafe { ((*line).started, (*line).state) };
        finish(line, started, finished, state);
    }
    0
}

/// An skb gets to a device's queue. If an entry has its address, that was another skb, whose end was not seen.
#[inline(always)]
pub(crate) fn before_queue<M: Memory>(skb: Skb<M>) {
    let key = number(skb.address());
    if LINES.peek(key).is_some() {
        finish_queued(key, 0);
    }
}

/// An skb was [`put`] here, if it was one of those. What GSO makes of it has other addresses.
#[inline(always)]
pub(crate) fn after_queue<M: Memory>(skb: Skb<M>) {
    let key = number(skb.address());
    if let Some(line) = LINES.peek(key)
        // SAFETY: an entry of a map, which its packet has to itself.
        && unsafe { (*line).acked == 0 && (*line).packet.segs > 1 }
    {
        finish_queued(key, 0);
    }
}

/// A packet is at its device's queue, and all that `record` says of it is known; `is_its` says whether that was still its own when the
/// record is made. Nothing has its address: [`before_queue`].
///
/// # Errors
/// Why it can't wait here, if it can't.
#[inline(always)]
pub(crate) fn put<M: Memory>(
    skb: Skb<M>,
    record: impl Fn() -> PacketRecord,
    served: impl Fn() -> Served,
    is_its: impl Fn() -> bool,
) -> Result<(), Unknown> {
    let key = number(skb.address());
    let socket = number(skb.socket().address());
    let is_in = LINES.put(key, |line| {
        // SAFETY: the entry is the caller's alone until it has its key.
        unsafe {
            (&raw mut (*line).packet).write(record());
            (*line).served = served();
            (*line).socket = socket;
            (*line).acked = 0;
        }
        is_its()
    });
    if is_in { Ok(()) } else { Err(Unknown::NoRoom) }
}

/// A driver gets an skb whose header is no waiting segment's. Returns key and socket if it still is one, which a tunnel has wrapped up.
#[inline(always)]
pub(crate) fn started<M: Memory>(skb: Skb<M>, at: u64, state: u32) -> Option<(u64, u64)> {
    let key = number(skb.address());
    let line = LINES.peek(key)?;
    // SAFETY: an entry of a map, which its packet has to itself.
    let (socket, of) = unsafe { ((*line).socket, (*line).acked) };
    if socket != number(skb.socket().address()) {
        return None;
    }
    if of != 0 {
        LINES.forget(key);
        begin(skb.address(), Whose::Segment(of, socket));
        return Some((of, socket));
    }
    let driving = begin(skb.address(), Whose::Line)?;
    // SAFETY: a CPU's own entry; all of a line is words.
    unsafe {
        core::ptr::copy_nonoverlapping(line.cast_const(), &raw mut (*driving).line, 1);
        (*driving).line.started = at;
        (*driving).line.state = state;
    }
    LINES.forget(key);
    None
}

/// A segment that waits for its ACK is wrapped up, so that its header does not tell it any more: its skb's address does, to the next
/// driver.
#[inline(always)]
pub(crate) fn wrap<M: Memory>(skb: Skb<M>, key: u64, socket: u64) {
    LINES.put(number(skb.address()), |line| {
        // SAFETY: the entry is the caller's alone until it has its key.
        unsafe {
            (*line).socket = socket;
            (*line).acked = key;
        }
        true
    });
}

/// A wrapped-up skb is cut into segments, which are skbs of their own: which of them is the first is unknown.
#[inline(always)]
pub(crate) fn unwrap<M: Memory>(skb: Skb<M>) {
    let key = number(skb.address());
    if let Some(line) = LINES.peek(key)
        // SAFETY: an entry of a map, which its packet has to itself.
        && unsafe { (*line).acked } != 0
    {
        LINES.forget(key);
    }
}

/// This CPU's driver gets an skb.
#[inline(always)]
pub(crate) fn begin(skb: u64, whose: Whose) -> Option<*mut Driving> {
    let driving = driving()?;
    // SAFETY: a CPU's own entry.
    unsafe {
        if (*driving).skb != 0 && (*driving).key == 0 {
            // That one's end was not seen.
            finish_driven(0);
        }
        (*driving).skb = skb;
        ((*driving).key, (*driving).socket) = match whose {
            Whose::Segment(key, socket) => (key, socket),
            Whose::Line => (0, 0),
        };
    }
    Some(driving)
}

/// This CPU's driver is done with the skb at this address, which may be free. Returns its key and socket if it is a segment of TCP.
#[inline(always)]
pub(crate) fn finished(skb: u64, at: u64) -> Option<(u64, u64)> {
    match end(skb)? {
        (_, Whose::Line) => {
            finish_driven(at);
            None
        }
        (_, Whose::Segment(key, socket)) => Some((key, socket)),
    }
}

/// Takes what this CPU's driver works on, if it is this skb.
#[inline(always)]
fn end(skb: u64) -> Option<(*mut Driving, Whose)> {
    let driving = driving()?;
    // SAFETY: a CPU's own entry.
    unsafe {
        if (*driving).skb != skb {
            return None;
        }
        (*driving).skb = 0;
        let whose =
            if (*driving).key == 0 { Whose::Line } else { Whose::Segment((*driving).key, (*driving).socket) };
        Some((driving, whose))
    }
}

/// The skb on which this CPU's driver works goes to the queue of a device below it. Returns its key and socket if it is a segment of TCP.
#[inline(always)]
pub(crate) fn queued_again(skb: u64) -> Option<(u64, u64)> {
    match end(skb)? {
        (driving, Whose::Line) => {
            LINES.put(number(skb), |line| {
                // SAFETY: a CPU's own entry, and one that is the caller's alone; all of a line is words.
                unsafe { core::ptr::copy_nonoverlapping(&raw const (*driving).line, line, 1) };
                true
            });
            None
        }
        (_, Whose::Segment(key, socket)) => Some((key, socket)),
    }
}

/// An skb is dropped that is no segment's.
#[inline(always)]
pub(crate) fn dropped<M: Memory>(skb: Skb<M>) {
    let key = number(skb.address());
    let Some(line) = LINES.peek(key) else { return };
    // SAFETY: an entry of a map, which its packet has to itself.
    if unsafe { (*line).socket } == number(skb.socket().address()) {
        finish_queued(key, SENT_DROPPED);
    }
}

/// How many packets wait for their drivers.
#[cfg(test)]
pub(crate) fn leaving_lines() -> u64 {
    // SAFETY: entries, which no program writes to now.
    LINES.entries().filter(|line| unsafe { (**line).acked == 0 }).count() as u64
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use net_latency_common::{FineRecord, Offsets};

    use super::*;
    use crate::{
        bpf::host::{Machine, memory},
        emit::ring::take_records,
        kernel::memory::Probed,
    };

    /// Its end was not seen, and another skb that comes to a queue has its address.
    #[test]
    fn what_has_ended_unseen_has_its_line_before_the_next_one() {
        Machine::reset();
        Machine::with(|machine| {
            machine.settings.fine = 1;
            machine.offsets = Offsets { sk_buff_sk: 8, ..Offsets::default() };
        });
        let skb = Skb::<Probed>::new(memory::take(memory::slab(64)) as *const u8);
        for seq in 1..=3 {
            before_queue(skb);
            // SAFETY: numbers only, for which 0 is a value.
            let mut record: PacketRecord = unsafe { core::mem::zeroed() };
            record.seq = seq;
            let put = put(skb, || record, || Served::NONE, || true);
            assert!(put.is_ok());
            let lines: Vec<u32> = take_records().iter().map(|line: &FineRecord| line.packet.seq).collect();
            assert_eq!(lines, if seq == 1 { Vec::new() } else { [seq - 1].into() });
        }
    }
}
