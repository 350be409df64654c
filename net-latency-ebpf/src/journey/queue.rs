//! Packets on the queues of TCP sockets, where their skbs may be merged and freed: by sequence number.

use net_latency_common::journey::{PLACE_COPY, PLACE_TAKEN, ROW_QUEUED, ROW_READ, ROW_UNWATCHED};

use super::{
    heads,
    row::{add, add_bare},
    schedule,
    tally::{self, HAS_SEQ, is_any},
    untraced,
};
use crate::{
    bpf::{ANY, LruHashMap, entry::Field, map, now},
    kernel::{
        memory::{Memory, Number},
        sequence::before,
        skb::Skb,
        socket::Socket,
    },
};

/// Packets of one socket that are followed at the same time.
pub(crate) const WAITING: usize = 4;

/// What waits on a socket's queue.
#[repr(C)]
pub struct Queue {
    /// Journeys; 0 where none is.
    ids: [Field<u64>; WAITING],
    /// When each was queued.
    queued_at: [Field<u64>; WAITING],
    /// When the copy to user space began that has its first byte; 0 if none has.
    copied_at: [Field<u64>; WAITING],
    /// The first byte of each.
    seqs: [Field<u32>; WAITING],
}

/// Packets that wait on the queues of TCP sockets, by socket. What finds no room is told at the end.
#[map]
static QUEUES: LruHashMap<u64, Queue> = LruHashMap::with_max_entries(1024, 0);

/// What waits on the queue of the socket at this address.
#[inline(always)]
fn queue_of(socket: u64) -> Option<&'static Queue> {
    let queue = QUEUES.get_ptr(&socket)?;
    // SAFETY: an element that is never freed, and what changes are fields.
    Some(unsafe { &*queue })
}

/// `tcp_v4_do_rcv(sk, skb)`, `tcp_v6_do_rcv(sk, skb)` or `tcp_add_backlog(sk, skb)`: TCP has found the socket.
#[inline(always)]
pub fn received<M: Memory>(socket: Socket<M>, skb: Skb<M>, place: u64) {
    if !is_any() {
        return;
    }
    let Some(head) = heads::find(skb) else { return };
    let known = tally::known(head.id).map_or(0, |known| known.seq);
    let seq = known as u32;
    let mut flags = 0;
    if known & HAS_SEQ != 0
        && let Some(tcp) = socket.tcp()
        && !before(seq, tcp.rcv_nxt())
    {
        flags = if watch(socket.address(), head.id, seq) { ROW_QUEUED } else { ROW_UNWATCHED };
    }
    add(head.id, skb, place, flags, 0, 0);
}

/// Remembers that the segment waits; false if too many do.
#[inline(always)]
fn watch(socket: u64, id: u64, seq: u32) -> bool {
    let Some(queue) = queue_of(socket) else {
        let queue = Queue {
            ids: [id, 0, 0, 0].map(Field::new),
            queued_at: [now(), 0, 0, 0].map(Field::new),
            copied_at: [0; WAITING].map(Field::new),
            seqs: [seq, 0, 0, 0].map(Field::new),
        };
        return QUEUES.insert(&socket, &queue, ANY).is_ok();
    };
    put(queue, 0, id, seq) || put(queue, 1, id, seq) || put(queue, 2, id, seq) || put(queue, 3, id, seq)
}

#[inline(always)]
fn put(queue: &Queue, place: usize, id: u64, seq: u32) -> bool {
    let there = queue.ids[place].get();
    if there == id {
        return true;
    }
    if there != 0 && tally::is_under_way(there) {
        return false;
    }
    queue.ids[place].set(id);
    queue.seqs[place].set(seq);
    queue.queued_at[place].set(now());
    queue.copied_at[place].set(0);
    true
}

/// `skb_copy_datagram_iovec(skb, len)`: N bytes are about to be copied to user space.
#[inline(always)]
pub fn copying<M: Memory>(skb: Skb<M>, len: Number) {
    if !is_any() {
        return;
    }
    let socket = skb.socket();
    let Some(queue) = queue_of(socket.address()) else {
        heads::copying(skb);
        return;
    };
    let Some(tcp) = socket.tcp() else { return };
    let (from, len) = (tcp.copied_seq(), len.signed().cast_unsigned());
    let mut place = 0;
    while place < WAITING {
        if queue.seqs[place].get().wrapping_sub(from) < len {
            queue.copied_at[place].set(now());
        }
        place += 1;
    }
}

/// `tcp_rcv_space_adjust(sk)`: a receive call has taken bytes from the socket.
#[inline(always)]
pub fn taken<M: Memory>(socket: Socket<M>) {
    if !is_any() {
        return;
    }
    let Some(queue) = queue_of(socket.address()) else { return };
    let Some(tcp) = socket.tcp() else { return };
    let read = tcp.copied_seq();
    take(queue, 0, read);
    take(queue, 1, read);
    take(queue, 2, read);
    take(queue, 3, read);
    if queue.ids[0].get() | queue.ids[1].get() | queue.ids[2].get() | queue.ids[3].get() == 0 {
        let _ = QUEUES.remove(&socket.address());
    }
}

#[inline(always)]
fn take(queue: &Queue, place: usize, read: u32) {
    let id = queue.ids[place].get();
    if id == 0 {
        return;
    }
    if !before(queue.seqs[place].get(), read) {
        // What was copied was only looked at (MSG_PEEK), maybe further on.
        queue.copied_at[place].set(0);
        return;
    }
    queue.ids[place].set(0);
    schedule::reader(id, queue.queued_at[place].get());
    let copied_at = queue.copied_at[place].get();
    if copied_at != 0 {
        add_bare(id, copied_at, PLACE_COPY, 0);
    }
    add_bare(id, now(), PLACE_TAKEN, ROW_READ);
    untraced::read_by_current(id);
}
