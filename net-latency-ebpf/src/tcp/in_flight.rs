//! Sent segments until their ACKs come: `--stages fine`.
//!
//! Behind the device's queue a segment is known by its socket and the number of its first byte, which its header has: for GSO other skbs
//! are made of it, the first of which begins with that byte. The holder of the socket's lock puts segments in, goes along those that are
//! acknowledged, and takes them out. A device's hooks run beside that on any CPU, and so does a hook that finds the socket in use: they
//! write one word of an entry, a time with a tag that says which entry it belongs to.
//!
//! The entries of a socket are a chain: each has the number of the first byte of the next one. What found no room is not in it, and
//! got its line at once.
//!
//! Considered: the skb's address (GSO frees the skb, TCP's clones are freed before their ACK comes), a map that evicts (a
//! line that is evicted would be lost), a stamp for each skb at `tcp_v4_rcv` (a busy socket's backlog joins ACKs, so that one skb
//! stands for several).

use net_latency_common::{
    FLAG_ZERO_WINDOW, PacketRecord, SENT_AGAIN, SENT_BY_TIMER, SENT_DROPPED, SENT_TAG_BITS, SENT_UNQUEUED,
    STAMP_APP, STAMP_DRV, STAMP_TRANSPORT, Sent, SentSlots, SentTimes, Served, Unknown, sent_flags,
    sent_parts, sent_tag, sent_time, tagged,
};

use super::{
    connection::{self, Connection},
    steps::{DONE, MORE, RUN, batch, repeat},
};
use crate::{
    bpf::{Array, entry::Field, map, now},
    emit::{
        counters::{self, HookResult},
        ring::{emit_waiting, part_between},
    },
    flow::addresses::SPREAD,
    kernel::{memory::Memory, sequence::before, skb::Skb, socket::Socket},
    slots::{Places, Slots},
};

/// Pairs of slots, as a power of two.
const SLOT_BITS: u32 = 13;

/// A sent segment: [`Sent`] with fields that change.
#[repr(C)]
pub(crate) struct Waiting {
    packet: Field<PacketRecord>,
    served: Field<Served>,
    socket: Field<u64>,
    started: Field<u64>,
    finished: Field<u64>,
    acked: Field<u64>,
    next: Field<u32>,
    state: Field<u32>,
}

const _: () = assert!(size_of::<Waiting>() == size_of::<Sent>(), "the user side reads what is left");
const _: () =
    assert!(size_of::<Slots<Waiting>>() == size_of::<SentSlots>(), "the user side reads what is left");

/// Segments that wait for their ACKs. When both slots of a key are taken, the line is there at once, its parts unknown (`no_room`).
#[map]
static SENT: Array<Slots<Waiting>> = Array::with_max_entries(1 << SLOT_BITS, 0);

const LINES: Places<Waiting, SLOT_BITS> = Places::new(&SENT);

/// What a connection knows of its segments that wait.
#[repr(C)]
pub(super) struct InFlight {
    /// Whether there is one.
    any: Field<u32>,
    /// The first byte of the oldest one.
    oldest: Field<u32>,
    /// The first byte of the newest one, and the byte behind its last one.
    newest: Field<u32>,
    end: Field<u32>,
    /// The byte behind those that were acknowledged last, and when they were, ns; 0 if that is not known.
    acked_until: Field<u32>,
    /// The bytes that are sent again, how far the walk along the chain is, and the `SENT_` bits that it gives.
    again_from: Field<u32>,
    again_until: Field<u32>,
    again_cursor: Field<u32>,
    again_state: Field<u32>,
    acked_at: Field<u64>,
    /// When the peer's window was seen to be 0 last, ns.
    zero_window_at: Field<u64>,
    /// An ACK that came while the socket was in use: the byte behind those that it covers, when, and how far the walk is.
    backlog_until: Field<u32>,
    backlog_cursor: Field<u32>,
    backlog_at: Field<u64>,
}

/// The segment of the socket at this address that begins with this byte.
#[inline(always)]
fn key(socket: u64, seq: u32) -> u64 {
    // Another odd constant with bits all over.
    const SECOND: u64 = 0xc2b2_ae3d_27d4_eb4f;
    // 0 is no key. Without a branch, as in `Slots::with_key`.
    socket.wrapping_mul(SPREAD).rotate_left(32) ^ u64::from(seq).wrapping_mul(SECOND) | 1
}

#[inline(always)]
fn find(key: u64, socket: u64) -> Option<&'static Waiting> {
    let line = LINES.peek(key)?;
    // SAFETY: entries are preallocated and never unmapped while a program runs. What changes are fields; who may change which:
    // see the module's head.
    let line = unsafe { &*line };
    // Two segments have the same key once in 2^63.
    (line.socket.get() == socket).then_some(line)
}

impl Waiting {
    #[inline(always)]
    fn seq(&self) -> u32 {
        // SAFETY: a field of the record, which is written before the entry can be found.
        unsafe { (*(&raw const self.packet).cast::<PacketRecord>()).seq }
    }

    /// The byte behind its last one.
    #[inline(always)]
    fn end(&self) -> u32 {
        // SAFETY: as above.
        self.seq().wrapping_add(unsafe { (*(&raw const self.packet).cast::<PacketRecord>()).len })
    }

    #[inline(always)]
    fn mark(&self, state: u32) {
        self.state.set(self.state.get() | state);
    }
}

/// [`sent_time`] as a global function.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn entry_time(word: u64, key: u64, now: u64) -> u64 {
    sent_time(word, key, now)
}

/// A segment is at its device's queue, and all that `record` says of it is known.
///
/// # Errors
/// [`Unknown::NoRoom`] if it can't wait.
#[inline(always)]
pub(super) fn put(
    connection: &Connection,
    seq: u32,
    len: u32,
    record: impl FnOnce() -> PacketRecord,
) -> Result<(), Unknown> {
    let socket = connection.address.get();
    let key = key(socket, seq);
    let end = seq.wrapping_add(len);
    let chain = &connection.fine.in_flight;
    // A connection that may be evicted would leave its segments here.
    let is_in = connection.stays.get() != 0
        && LINES.put(key, |line| {
            // SAFETY: the entry is the caller's alone until it has its key.
            unsafe { (&raw mut (*line).packet).cast::<PacketRecord>().write(record()) };
            // SAFETY: as above; what changes are fields.
            let line = unsafe { &*line };
            line.served.set(connection.fine.served(seq, len));
            line.socket.set(socket);
            line.started.set(0);
            line.finished.set(0);
            line.acked.set(0);
            line.next.set(end);
            line.state.set(0);
            true
        });
    if !is_in {
        return Err(Unknown::NoRoom);
    }
    if chain.any.get() == 0 {
        chain.any.set(1);
        chain.oldest.set(seq);
        chain.acked_until.set(seq);
    } else if chain.end.get() != seq
        && let Some(newest) = find(self::key(socket, chain.newest.get()), socket)
    {
        // A segment between them does not wait.
        newest.next.set(seq);
    }
    chain.newest.set(seq);
    chain.end.set(end);
    Ok(())
}

/// The driver gets an skb of this socket (tracepoint `net_dev_start_xmit`). The key of the segment that begins with it, if that waits.
#[inline(always)]
pub(super) fn started(socket: u64, seq: u32, at: u64, state: u32) -> Option<u64> {
    let key = key(socket, seq);
    let line = find(key, socket)?;
    if line.started.get() != 0 || line.state.get() & (SENT_AGAIN | SENT_DROPPED) != 0 {
        // The same bytes again.
        return None;
    }
    line.mark(state);
    line.started.set(tagged::word::<SENT_TAG_BITS>(at, sent_tag(key)));
    Some(key)
}

/// What the driver has got goes to another device's queue, which is below this one.
#[inline(always)]
pub(super) fn queued_again(key: u64, socket: u64) {
    if let Some(line) = find(key, socket) {
        line.state.set(line.state.get() & !SENT_UNQUEUED);
        line.started.set(0);
    }
}

/// Whether the segment with this key begins with this byte: of what a tunnel has wrapped up, the header seems to say otherwise.
#[inline(always)]
pub(super) fn begins_with(key: u64, socket: u64, seq: u32) -> bool {
    self::key(socket, seq) == key
}

/// The driver of the lower device gets what a tunnel has wrapped up.
#[inline(always)]
pub(super) fn started_again(key: u64, socket: u64, at: u64, state: u32) {
    if let Some(line) = find(key, socket) {
        line.state.set(line.state.get() & !SENT_UNQUEUED | state);
        line.started.set(tagged::word::<SENT_TAG_BITS>(at, sent_tag(key)));
    }
}

/// The driver is done with the first skb of a segment.
#[inline(always)]
pub(super) fn finished(key: u64, socket: u64, at: u64) {
    if let Some(line) = find(key, socket) {
        line.finished.set(tagged::word::<SENT_TAG_BITS>(at, sent_tag(key)));
    }
}

/// An skb of this socket is dropped. Whether it is a segment that waits, and that no driver has got.
#[inline(always)]
pub(super) fn dropped(socket: u64, seq: u32) -> bool {
    let Some(line) = find(key(socket, seq), socket) else { return false };
    let is_its = line.started.get() == 0 && line.state.get() & (SENT_AGAIN | SENT_DROPPED) == 0;
    if is_its {
        line.mark(SENT_DROPPED);
    }
    is_its
}

/// TCP sends these bytes again.
#[inline(always)]
pub(super) fn sent_again(connection: &Connection, seq: u32, len: u32, by_timer: bool) {
    let chain = &connection.fine.in_flight;
    if chain.any.get() == 0 {
        return;
    }
    chain.again_from.set(seq);
    chain.again_until.set(seq.wrapping_add(len));
    chain.again_state.set(if by_timer { SENT_AGAIN | SENT_BY_TIMER } else { SENT_AGAIN });
    chain.again_cursor.set(chain.oldest.get());
    let address = connection.address.get();
    repeat(RUN, || again_batch(address));
}

batch!(
    /// Steps along the segments of the socket at `address`, up to those that are sent again.
    again_batch = again_step(address: u64)
);

/// One step along the segments of the socket at `address`.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn again_step(address: u64) -> u32 {
    let Some(connection) = connection::at(address) else { return DONE };
    let chain = &connection.fine.in_flight;
    let seq = chain.again_cursor.get();
    let Some(line) = find(key(address, seq), address) else { return DONE };
    if !before(seq, chain.again_until.get()) {
        return DONE;
    }
    if before(chain.again_from.get(), line.end()) {
        line.mark(chain.again_state.get());
    }
    chain.again_cursor.set(line.next.get());
    if seq == chain.newest.get() { DONE } else { MORE }
}

/// TCP works on an ACK (`tcp_ack`): what it covers has its line.
#[inline(always)]
pub fn acked<M: Memory>(socket: Socket<M>, skb: Skb<M>) -> HookResult {
    let Some(connection) = connection::traced(socket) else { return Ok(()) };
    let chain = &connection.fine.in_flight;
    let Some(tcp) = socket.known_tcp() else { return Ok(()) };
    // Only what stays has segments here.
    if tcp.snd_wnd() == 0 && connection.stays.get() != 0 {
        // Until now: this ACK may change that.
        chain.zero_window_at.set(now());
    }
    let ack = skb.tcp_cb_ack();
    // What covers bytes that were never sent is not taken.
    if chain.any.get() == 0 || before(tcp.snd_nxt(), ack) || !before(chain.oldest.get(), ack) {
        return Ok(());
    }
    let address = connection.address.get();
    if before(chain.oldest.get(), chain.acked_until.get()) {
        // The last ACK covered more than one run gives lines to.
        finish(address, chain.acked_at.get());
    }
    chain.acked_until.set(ack);
    // The task that has the socket works on what came while it had it.
    chain.acked_at.set(if socket.owned_by_task() { 0 } else { now() });
    finish(address, chain.acked_at.get());
    Ok(())
}

/// In place of the time of an ACK: none is waited for any more.
const NO_ACK: u64 = u64::MAX;

/// No ACK will be known for the segments that wait: the socket, or its entry, is at its end.
#[inline(always)]
pub(super) fn give_up(connection: &Connection) {
    if connection.fine.in_flight.any.get() != 0 {
        finish(connection.address.get(), NO_ACK);
    }
}

/// Gives the segments of the socket at `address` their lines whose ACK came at that time, 0 if only their entries say when; all with
/// [`NO_ACK`].
#[inline(always)]
fn finish(address: u64, acked: u64) {
    // Nearly always there is one.
    if finish_step(address, acked) == MORE {
        repeat(RUN, || finish_batch(address, acked));
    }
}

batch!(
    /// Steps along the segments of the socket at `address`.
    finish_batch = finish_step(address: u64, acked: u64)
);

/// One step along the segments of the socket at `address`: the oldest one gets its line.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn finish_step(address: u64, acked: u64) -> u32 {
    let Some(connection) = connection::at(address) else { return DONE };
    let chain = &connection.fine.in_flight;
    let seq = chain.oldest.get();
    let key = key(address, seq);
    let Some(line) = find(key, address) else {
        chain.any.set(0);
        return DONE;
    };
    let until = if acked == NO_ACK { chain.end.get() } else { chain.acked_until.get() };
    if before(until, line.end()) {
        return DONE;
    }
    let next = line.next.get();
    let is_last = seq == chain.newest.get();

    let now = now();
    let state = line.state.get();
    let packet = (&raw const line.packet).cast::<PacketRecord>();
    let served = (&raw const line.served).cast::<Served>();
    // SAFETY: fields of the record, see `seq`.
    let stamps = unsafe { (*packet).stamps };
    let times = SentTimes {
        queued: stamps[STAMP_DRV],
        started: entry_time(line.started.get(), key, now),
        finished: entry_time(line.finished.get(), key, now),
        acked: if acked == 0 { entry_time(line.acked.get(), key, now) } else { acked },
    };
    let unacked = (acked == NO_ACK).then_some(Unknown::Unacknowledged);
    let parts = sent_parts(times, state, unacked, now, |from, to, missing| part_between(from, to, missing));
    let first = if stamps[STAMP_APP] == 0 { stamps[STAMP_TRANSPORT] } else { stamps[STAMP_APP] };
    let is_closed = chain.zero_window_at.get() >= first;
    let flags = sent_flags(state) | if is_closed { FLAG_ZERO_WINDOW } else { 0 };
    // SAFETY: the entry stays as it is until it is forgotten, which only this code does.
    if let Err(counter) = unsafe { emit_waiting(packet, served, flags, &parts) } {
        counters::one(counter);
    }
    LINES.forget(key);

    if is_last {
        chain.any.set(0);
        return DONE;
    }
    chain.oldest.set(next);
    if before(next, until) { MORE } else { DONE }
}

/// An ACK comes to a socket that is in use (`tcp_add_backlog`), whose task works on it later. The socket's spinlock is held,
/// not its lock.
#[inline(always)]
pub fn backlogged<M: Memory>(socket: Socket<M>, skb: Skb<M>) -> HookResult {
    let Some(connection) = connection::traced(socket) else { return Ok(()) };
    let chain = &connection.fine.in_flight;
    if chain.any.get() == 0 {
        return Ok(());
    }
    let (oldest, newest) = (chain.oldest.get(), chain.newest.get());
    let ack = skb.tcp_cb_ack();
    if !before(oldest, ack) {
        return Ok(());
    }
    let cursor = chain.backlog_cursor.get();
    if before(cursor, oldest) || before(newest, cursor) {
        chain.backlog_cursor.set(oldest);
    }
    chain.backlog_until.set(ack);
    chain.backlog_at.set(now());
    let address = connection.address.get();
    repeat(RUN, || backlog_batch(address));
    Ok(())
}

batch!(
    /// Steps along the segments of the socket at `address` whose ACK has come.
    backlog_batch = backlog_step(address: u64)
);

/// One step along the segments of the socket at `address` whose ACK has come.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn backlog_step(address: u64) -> u32 {
    let Some(connection) = connection::at(address) else { return DONE };
    let chain = &connection.fine.in_flight;
    let seq = chain.backlog_cursor.get();
    let key = key(address, seq);
    let Some(line) = find(key, address) else {
        // Another's turn has taken it meanwhile.
        chain.backlog_cursor.set(chain.oldest.get());
        return DONE;
    };
    if before(chain.backlog_until.get(), line.end()) {
        return DONE;
    }
    let tag = sent_tag(key);
    if !tagged::is_of::<SENT_TAG_BITS>(line.acked.get(), tag) {
        line.acked.set(tagged::word::<SENT_TAG_BITS>(chain.backlog_at.get(), tag));
    }
    if seq == chain.newest.get() {
        return DONE;
    }
    chain.backlog_cursor.set(line.next.get());
    MORE
}

/// How many segments wait.
#[cfg(test)]
pub(crate) fn waiting_lines() -> u64 {
    LINES.entries().count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::host::Machine;

    #[test]
    fn segments_of_sockets_have_keys_of_their_own() {
        let keys: std::collections::HashSet<u64> = (0..64u64)
            .flat_map(|socket| {
                (0..2048u32).map(move |n| key(0xffff_8881_0234_0000 + socket * 2432, n * 1448))
            })
            .collect();
        assert_eq!(keys.len(), 64 * 2048);
    }

    /// What TCP has done with a segment meanwhile stays known.
    #[test]
    fn a_lower_device_tells_of_itself_only() {
        const SOCKET: u64 = 0xffff_8881_0234_0000;
        Machine::reset();
        let key = key(SOCKET, 7);
        assert!(LINES.put(key, |line| {
            // SAFETY: the entry is this test's.
            unsafe {
                (*line).socket.set(SOCKET);
                (*line).state.set(SENT_AGAIN | SENT_UNQUEUED);
            }
            true
        }));
        let state = || find(key, SOCKET).map(|line| line.state.get());
        started_again(key, SOCKET, 1, 0);
        assert_eq!(state(), Some(SENT_AGAIN));
        started_again(key, SOCKET, 2, SENT_UNQUEUED);
        assert_eq!(state(), Some(SENT_AGAIN | SENT_UNQUEUED));
    }

    #[test]
    fn what_is_kept_is_what_the_user_side_reads() {
        assert_eq!(core::mem::offset_of!(Waiting, state), core::mem::offset_of!(Sent, state));
        assert_eq!(core::mem::offset_of!(Waiting, started), core::mem::offset_of!(Sent, started));
    }
}
