//! Packets that are followed, by their buffers.
//!
//! Clones share the buffer (`skb->head`), and no other packet has it while one of them lives. The last one's death is
//! seen (`skb_release_head_state`), and so is the replacement of a buffer by another one (`pskb_expand_head`). The
//! user side checks ports and sequence number on top.

use net_latency_common::journey::{
    PLACE_COPY, PLACE_DROP, ROW_DROP, ROW_FREED, ROW_KEPT, ROW_QUEUED, ROW_READ,
};

use super::{
    row::add,
    schedule,
    settings::given,
    tally::{self, is_any},
    untraced,
};
use crate::bpf::{ANY, LruHashMap, map, now};
use crate::kernel::{
    memory::{Memory, Number, Probed, probe},
    offsets::offset,
    skb::Skb,
};

/// A buffer of a packet that is followed.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Head {
    /// The journey's id.
    pub(super) id: u64,
    /// The skb of TCP's send queue, which stays until the bytes are acknowledged; 0 if there is none.
    kept: u64,
    /// When the packet was put on a UDP socket's queue.
    queued_at: u64,
}

/// Buffers of packets that are followed, by their address.
#[map]
static HEADS: LruHashMap<u64, Head> = LruHashMap::with_max_entries(4096, 0);

/// Packets whose buffer is being replaced, by their skb's address.
#[map]
static MOVING: LruHashMap<u64, u64> = LruHashMap::with_max_entries(256, 0);

impl Head {
    /// A buffer of the journey with this id.
    #[inline(always)]
    pub(super) fn of(id: u64) -> Self {
        Self { id, kept: 0, queued_at: 0 }
    }

    /// A buffer of the journey with this id, which TCP's send queue has in this skb.
    #[inline(always)]
    pub(super) fn of_sender<M: Memory>(id: u64, skb: Skb<M>) -> Self {
        Self { id, kept: skb.address(), queued_at: 0 }
    }

    #[inline(always)]
    fn is_kept<M: Memory>(&self, skb: Skb<M>) -> bool {
        self.kept == skb.address()
    }
}

/// The journey of the packet in this skb, if it is followed.
#[inline(always)]
pub(super) fn find<M: Memory>(skb: Skb<M>) -> Option<Head> {
    let head = skb.head();
    let Some(found) = HEADS.get_ptr(&head) else { return moved(skb, head) };
    // SAFETY: an element that is never freed.
    let found = unsafe { *found };
    if tally::is_under_way(found.id) {
        return Some(found);
    }
    // The journey has ended.
    let _ = HEADS.remove(&head);
    None
}

/// The journey of a packet that has been given a new buffer since it was last seen.
#[inline(always)]
fn moved<M: Memory>(skb: Skb<M>, head: u64) -> Option<Head> {
    // SAFETY: an element that is never freed.
    let id = unsafe { *MOVING.get_ptr(&skb.address())? };
    let _ = MOVING.remove(&skb.address());
    if !tally::is_under_way(id) {
        return None;
    }
    follow(head, &Head::of(id));
    Some(Head::of(id))
}

/// From now on the content of this buffer belongs to the journey.
#[inline(always)]
pub(super) fn follow(head: u64, entry: &Head) {
    // An LRU map takes in everything; if not, the journey goes on unseen, which is no error of a row.
    let _ = HEADS.insert(&head, entry, ANY);
}

/// A function was given this skb, or a tracepoint.
#[inline(always)]
pub fn seen<M: Memory>(skb: Skb<M>, place: u64) {
    if is_any() {
        journey_seen(skb.address(), place);
    }
}

/// [`seen`] for a function whose arguments lie at `arguments`; `position` says which of them is the skb.
#[inline(always)]
pub fn seen_in(arguments: *const u8, position: u8, place: u64) {
    if is_any() {
        // As a number, whatever the verifier knows about its type.
        // SAFETY: a program's context; any address survives.
        journey_seen(unsafe { probe(arguments.wrapping_add(usize::from(position) * 8)) }, place);
    }
}

/// What nearly all programs share, apart from them: there are many, and each call of theirs while nothing is followed
/// ends before it.
///
/// A global function, which the verifier checks once by itself.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn journey_seen(skb: u64, place: u64) -> u32 {
    let skb = Skb::<Probed>::new(skb as *const u8);
    if let Some(head) = find(skb)
        && !head.is_kept(skb)
    {
        add(head.id, skb, place, 0, 0, 0);
    }
    0
}

/// `kfree_skb(skb, location[, reason])`.
#[inline(always)]
pub fn dropped<M: Memory>(skb: Skb<M>, location: u64, reason: u32) {
    if is_any()
        && let Some(head) = find(skb)
        && !head.is_kept(skb)
    {
        add(head.id, skb, PLACE_DROP, ROW_DROP, location, reason);
    }
}

/// Whether the kernel says why it drops packets.
#[inline(always)]
#[must_use]
pub fn has_reasons() -> bool {
    given!(has_reasons) != 0
}

/// `skb_release_head_state(skb)`: this skb dies.
#[inline(always)]
pub fn freed<M: Memory>(skb: Skb<M>, place: u64) {
    if !is_any() {
        return;
    }
    let Some(head) = find(skb) else { return };
    let kept = if head.is_kept(skb) { ROW_KEPT } else { 0 };
    add(head.id, skb, place, ROW_FREED | kept, 0, 0);
    if is_last(skb) {
        let _ = HEADS.remove(&skb.head());
    }
}

/// Whether no other skb has this one's buffer (`skb_shinfo(skb)->dataref`, whose lower half counts all).
#[inline(always)]
fn is_last<M: Memory>(skb: Skb<M>) -> bool {
    let end: u32 = skb.field(offset!(sk_buff_end));
    let count = skb.head() + u64::from(end) + u64::from(given!(dataref));
    // SAFETY: packet memory, any address survives; any bytes are valid.
    let count: u32 = unsafe { probe(count as *const u8) };
    count & 0xffff <= 1
}

/// `skb_copy_header(new, old)`: a copy with a buffer of its own.
#[inline(always)]
pub fn copied<M: Memory>(new: Skb<M>, old: Skb<M>, place: u64) {
    if is_any()
        && let Some(head) = find(old)
    {
        follow(new.head(), &Head::of(head.id));
        add(head.id, old, place, 0, 0, 0);
    }
}

/// `pskb_expand_head(skb, …)`: the skb gets another buffer, and the old one may be freed.
#[inline(always)]
pub fn expanded<M: Memory>(skb: Skb<M>, place: u64) {
    if is_any()
        && let Some(head) = find(skb)
    {
        if is_last(skb) {
            let _ = HEADS.remove(&skb.head());
        }
        if !head.is_kept(skb) {
            let _ = MOVING.insert(&skb.address(), &head.id, ANY);
            add(head.id, skb, place, 0, 0, 0);
        }
    }
}

/// `skb_gro_receive(holder, skb)`: the packet's bytes are appended to another packet's.
#[inline(always)]
pub fn merged<M: Memory>(holder: Skb<M>, skb: Skb<M>, place: u64) {
    if !is_any() {
        return;
    }
    if let Some(head) = find(skb) {
        add(head.id, skb, place, 0, 0, 0);
        if find(holder).is_none() {
            follow(holder.head(), &Head::of(head.id));
        }
    }
}

/// `__udp_enqueue_schedule_skb(sk, skb)`.
#[inline(always)]
pub fn enqueued<M: Memory>(skb: Skb<M>, place: u64) {
    if is_any()
        && let Some(head) = find(skb)
    {
        follow(skb.head(), &Head { queued_at: now(), ..head });
        add(head.id, skb, place, ROW_QUEUED, 0, 0);
    }
}

/// `skb_consume_udp(sk, skb, len)`: a receive call has copied the datagram, unless it only looked at it.
#[inline(always)]
pub fn consumed<M: Memory>(skb: Skb<M>, len: Number, place: u64) {
    if is_any()
        && let Some(head) = find(skb)
    {
        if len.signed() < 0 {
            add(head.id, skb, place, 0, 0, 0);
        } else {
            schedule::reader(head.id, head.queued_at);
            add(head.id, skb, place, ROW_READ, 0, 0);
            untraced::read_by_current(head.id);
        }
    }
}

/// `skb_copy_datagram_iovec(skb, len)`, of a socket without another watcher.
#[inline(always)]
pub(super) fn copying<M: Memory>(skb: Skb<M>) {
    if let Some(head) = find(skb) {
        add(head.id, skb, PLACE_COPY, 0, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use net_latency_common::{
        Offsets,
        journey::{JourneySettings, TALLY_BEGUN},
    };

    use super::{super::testing, *};
    use crate::bpf::host::{Machine, memory};

    /// An skb of a buffer of its own.
    fn skb() -> Skb<Probed> {
        let [address, head] = [64, 64].map(|size| memory::take(memory::slab(size)));
        memory::write(address + 8, head);
        Skb::new(address as *const u8)
    }

    /// A journey begins with this buffer.
    fn begin(id: u64, skb: Skb<Probed>) {
        assert!(tally::insert(id, &tally::Known { seq: 0, flow: 0 }));
        tally::count(TALLY_BEGUN);
        follow(skb.head(), &Head::of(id));
    }

    fn id_of(skb: Skb<Probed>) -> Option<u64> {
        find(skb).map(|head| head.id)
    }

    fn reset() {
        Machine::reset();
        Machine::with(|machine| machine.offsets = Offsets { sk_buff_head: 8, ..Offsets::default() });
    }

    fn ids_of_rows() -> Vec<u64> {
        testing::take().1.iter().map(|row| row.id).collect()
    }

    /// What GRO appends to a packet goes on with that, unless that one is followed.
    #[test]
    fn a_merged_packet_goes_on_in_the_other_ones_buffer() {
        reset();
        let [holder, followed, skb, unknown] = [(); 4].map(|()| skb());
        merged(holder, skb, 1);
        assert_eq!((id_of(holder), ids_of_rows()), (None, [].into()), "nothing is followed");
        begin(1, skb);
        begin(2, followed);
        merged(holder, skb, 1);
        assert_eq!((id_of(holder), ids_of_rows()), (Some(1), [1].into()));
        merged(followed, skb, 1);
        assert_eq!((id_of(followed), ids_of_rows()), (Some(2), [1].into()));
        merged(followed, unknown, 1);
        assert_eq!((id_of(followed), ids_of_rows()), (Some(2), [].into()));
    }

    #[test]
    fn what_has_ended_is_not_followed() {
        reset();
        let [skb, moving] = [(); 2].map(|()| skb());
        begin(1, skb);
        begin(2, moving);
        expanded(moving, 1);
        memory::write(moving.address() + 8, moving.head() + 8);
        assert_eq!(ids_of_rows(), [2]);
        [1, 2].into_iter().for_each(tally::end);
        assert_eq!((id_of(skb), id_of(moving)), (None, None));
        assert!(HEADS.get_ptr(&skb.head()).is_none() && MOVING.get_ptr(&moving.address()).is_none());
        assert!(HEADS.get_ptr(&moving.head()).is_none());
    }

    #[test]
    fn the_skb_is_the_argument_that_is_said() {
        reset();
        let (skb, arguments) = (skb(), memory::take(memory::slab(64)));
        memory::write(arguments, [0, 0, skb.address()]);
        seen_in(arguments as *const u8, 2, 1);
        assert_eq!(ids_of_rows(), [], "nothing is followed");
        begin(1, skb);
        for (position, ids) in [(0, &[][..]), (1, &[]), (2, &[1])] {
            seen_in(arguments as *const u8, position, 1);
            assert_eq!(ids_of_rows(), ids, "{position}");
        }
    }

    #[test]
    fn whether_drops_have_reasons_is_what_the_user_side_says() {
        for (given, has) in [(0, false), (1, true)] {
            Machine::reset();
            Machine::with(|machine| {
                machine.journeys = JourneySettings { has_reasons: given, ..JourneySettings::NONE };
            });
            assert_eq!(has_reasons(), has);
        }
    }
}
