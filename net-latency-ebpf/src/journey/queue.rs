//! Packets on the queues of TCP sockets, where their skbs may be merged and freed: by sequence number.

use aya_ebpf::bindings::BPF_ANY;
use net_latency_common::journey::{PLACE_COPY, PLACE_TAKEN, ROW_QUEUED, ROW_READ, ROW_UNWATCHED};

use super::{
    begin, heads,
    maps::{JOURNEYS, QUEUES},
    row::{add, add_bare, is_any},
    schedule,
};
use crate::{
    Outcome, before,
    memory::{Memory, Number},
    now,
    skb::Skb,
    socket::Socket,
};

/// Packets of one socket that are followed at the same time.
const WAITING: usize = 4;

/// What waits on a socket's queue.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Queue {
    /// Journeys; 0 where none is.
    ids: [u64; WAITING],
    /// When each was queued.
    queued_at: [u64; WAITING],
    /// When the copy to user space began that has its first byte; 0 if none has.
    copied_at: [u64; WAITING],
    /// The first byte of each.
    seqs: [u32; WAITING],
}

/// What a journey's entry says of a segment with payload: its first byte.
pub(super) const HAS_SEQ: u64 = 1 << 32;

/// `tcp_v4_do_rcv(sk, skb)`, `tcp_v6_do_rcv(sk, skb)` or `tcp_add_backlog(sk, skb)`: TCP has found the socket.
///
/// # Errors
/// Never.
#[inline(always)]
pub fn received<M: Memory>(socket: Socket<M>, skb: Skb<M>, place: u64) -> Outcome {
    if !is_any() {
        return Ok(());
    }
    let Some(head) = heads::find(skb) else { return Ok(()) };
    // SAFETY: an element that is never freed.
    let known = JOURNEYS.get_ptr(&head.id).map_or(0, |known| unsafe { (*known).seq });
    let seq = known as u32;
    let mut flags = 0;
    if known & HAS_SEQ != 0
        && let Some(tcp) = socket.tcp()
        && !before(seq, tcp.rcv_nxt())
    {
        flags = if watch(socket.address(), head.id, seq) { ROW_QUEUED } else { ROW_UNWATCHED };
    }
    add(head.id, skb, place, flags, 0, 0);
    Ok(())
}

/// Remembers that the segment waits; false if too many do.
#[inline(always)]
fn watch(socket: u64, id: u64, seq: u32) -> bool {
    let Some(queue) = QUEUES.get_ptr_mut(&socket) else {
        let queue = Queue {
            ids: [id, 0, 0, 0],
            queued_at: [now(), 0, 0, 0],
            copied_at: [0; WAITING],
            seqs: [seq, 0, 0, 0],
        };
        return QUEUES.insert(&socket, &queue, BPF_ANY.into()).is_ok();
    };
    // SAFETY: an element that is never freed.
    let queue = unsafe { &mut *queue };
    put(queue, 0, id, seq) || put(queue, 1, id, seq) || put(queue, 2, id, seq) || put(queue, 3, id, seq)
}

#[inline(always)]
fn put(queue: &mut Queue, place: usize, id: u64, seq: u32) -> bool {
    let there = queue.ids[place];
    if there == id {
        return true;
    }
    if there != 0 && JOURNEYS.get_ptr(&there).is_some() {
        return false;
    }
    queue.ids[place] = id;
    queue.seqs[place] = seq;
    queue.queued_at[place] = now();
    queue.copied_at[place] = 0;
    true
}

/// `skb_copy_datagram_iovec(skb, len)`: so many bytes are about to be copied to user space.
///
/// # Errors
/// Never.
#[inline(always)]
pub fn copying<M: Memory>(skb: Skb<M>, len: Number) -> Outcome {
    if !is_any() {
        return Ok(());
    }
    if !heads::is_watched(skb) {
        heads::copying(skb);
        return Ok(());
    }
    let socket = skb.socket();
    let Some(queue) = QUEUES.get_ptr_mut(&socket.address()) else { return Ok(()) };
    let Some(tcp) = socket.tcp() else { return Ok(()) };
    // SAFETY: an element that is never freed.
    let queue = unsafe { &mut *queue };
    let (from, len) = (tcp.copied_seq(), len.signed().cast_unsigned());
    let mut place = 0;
    while place < WAITING {
        if queue.seqs[place].wrapping_sub(from) < len {
            queue.copied_at[place] = now();
        }
        place += 1;
    }
    Ok(())
}

/// `tcp_rcv_space_adjust(sk)`: a receive call has taken bytes from the socket.
///
/// # Errors
/// Never.
#[inline(always)]
pub fn taken<M: Memory>(socket: Socket<M>) -> Outcome {
    if !is_any() {
        return Ok(());
    }
    let Some(queue) = QUEUES.get_ptr_mut(&socket.address()) else { return Ok(()) };
    let Some(tcp) = socket.tcp() else { return Ok(()) };
    // SAFETY: an element that is never freed.
    let queue = unsafe { &mut *queue };
    let read = tcp.copied_seq();
    take(queue, 0, read);
    take(queue, 1, read);
    take(queue, 2, read);
    take(queue, 3, read);
    if queue.ids[0] | queue.ids[1] | queue.ids[2] | queue.ids[3] == 0 {
        let _ = QUEUES.remove(&socket.address());
    }
    Ok(())
}

#[inline(always)]
fn take(queue: &mut Queue, place: usize, read: u32) {
    let id = queue.ids[place];
    if id == 0 || !before(queue.seqs[place], read) {
        return;
    }
    queue.ids[place] = 0;
    schedule::reader(id, queue.queued_at[place]);
    if queue.copied_at[place] != 0 {
        add_bare(id, queue.copied_at[place], PLACE_COPY, 0);
    }
    add_bare(id, now(), PLACE_TAKEN, ROW_READ);
    begin::read_by_current(id);
}
