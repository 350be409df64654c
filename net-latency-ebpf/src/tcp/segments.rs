//! Received segments that the application has not taken, by connection and sequence number: `tcp_try_coalesce` and friends
//! free the skb and keep its bytes.

use aya_ebpf::{
    macros::map,
    maps::{Array, LruHashMap, PerCpuArray},
};
use net_latency_common::{Counter, FLAG_AMBIGUOUS, IPPROTO_TCP, SEGMENT_SIZE, hook_key};

use crate::{
    drops,
    emit::counters::{self, HookResult},
    entry::{Field, add},
    flow::addresses::{AddrPair, SPREAD},
    kernel::{memory::Memory, sequence::before, skb::Skb},
    skips::entries,
    slots::{Entry, Found, Inserted, Slots, Table},
};

/// A received segment by connection and position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct SegmentKey {
    /// Both addresses: an IPv4 pair itself, an IPv6 pair mixed into 64 bits.
    addresses: u64,
    pub(super) remote_port: u16,
    pub(super) local_port: u16,
    pub(super) seq: u32,
    pub(super) netns: u32,
    family: u32,
}

/// A received segment that the application has not taken.
#[repr(C)]
pub(crate) struct Segment {
    /// Whose entry this is: the map's key is a mixture of it.
    pub(super) key: SegmentKey,
    pub(super) drv: u64,
    pub(super) ip: u64,
    pub(super) transport: u64,
    /// When it entered the stack last, if it did so more than once; else 0.
    pub(super) last: u64,
    /// A further copy may be longer.
    pub(super) len: Field<u32>,
    pub(super) ifindex: u32,
    pub(super) mark: u32,
    pub(super) segs: u16,
    pub(super) flags: Field<u16>,
    /// Further copies that came, and that TCP is not known to have dropped. Counted, since their CPUs don't hold the entry: who reads
    /// would find it in use, and have no line. What is counted at another entry that has its place by then makes that ambiguous.
    pub(super) copies: Field<u64>,
}

/// The segment that TCP works on.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Examined {
    skb: u64,
    key: SegmentKey,
    /// As its header says; the key's may be later.
    seq: u32,
    /// What to do if TCP drops it.
    on_drop: OnDrop,
}

/// What the drop of a segment means for the entry with its key. The skb's address in the entry could not tell: a
/// copy may have the address that the first one had.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum OnDrop {
    /// Nothing, or nothing that is known.
    Keep = 0,
    /// The entry is this segment's.
    Forget = 1,
    /// This is a further copy: it is not what waits.
    Discount = 2,
}

/// Pairs of slots, as a power of two.
const SLOT_BITS: u32 = 13;

/// Received segments that the application has not taken yet, by a mixture of connection and position.
#[map]
static SEGMENT_SLOTS: Array<Slots<Segment>> = Array::with_max_entries(1 << SLOT_BITS, 0);

/// Those that found no slot.
#[map]
static SEGMENTS: LruHashMap<u64, Segment> = LruHashMap::with_max_entries(entries(20480), 0);

const WAITING: Table<Segment, SLOT_BITS> = Table::new(&SEGMENT_SLOTS, &SEGMENTS);

/// The segment that TCP got last on each CPU: the one that it drops, if it drops one at once.
#[map]
static EXAMINED: PerCpuArray<Examined> = PerCpuArray::with_max_entries(1, 0);

const _: () = assert!(size_of::<Segment>() == SEGMENT_SIZE, "the user side names the size");

impl SegmentKey {
    #[inline(always)]
    pub(super) fn new(pair: &AddrPair, remote_port: u16, local_port: u16, netns: u32, seq: u32) -> Self {
        Self { addresses: pair.mixed(), remote_port, local_port, seq, netns, family: pair.family }
    }

    /// The key in [`SEGMENTS`] and the slots, of a quarter of the size: the kernel goes through a key once for each operation.
    /// Hardly two segments of a connection have the same.
    #[inline(always)]
    pub(super) fn hash(&self) -> u64 {
        // Another odd constant with bits all over.
        const SECOND: u64 = 0xc2b2_ae3d_27d4_eb4f;
        let position =
            u64::from(self.remote_port) << 48 | u64::from(self.local_port) << 32 | u64::from(self.seq);
        let mixed = (self.addresses ^ u64::from(self.netns) << 32).wrapping_mul(SPREAD).rotate_left(32)
            ^ position.wrapping_mul(SECOND);
        // 0 is nobody's.
        if mixed == 0 { 1 } else { mixed }
    }
}

impl Entry for Segment {
    #[inline(always)]
    fn came(&self) -> u64 {
        self.transport
    }
}

impl Segment {
    /// Whether no stamp is known to be its own: what comes from now on changes nothing.
    #[inline(always)]
    pub(super) fn is_ambiguous(&self) -> bool {
        self.flags.get() & FLAG_AMBIGUOUS != 0
    }
}

/// A segment that waits, which the finder has to himself, and hands back by [`remove`].
pub(super) struct Waiting(Found<Segment>);

impl Waiting {
    /// The segment.
    #[inline(always)]
    pub(super) fn segment(&self) -> &'static Segment {
        entry(&self.0)
    }

    /// What [`segment_has_spilled`] is asked for; 0 if it can't be evicted.
    #[inline(always)]
    pub(super) fn spilled_key(&self) -> u64 {
        self.0.spilled_key()
    }
}

/// Whether the segment with this hash, which had no slot, has not been evicted meanwhile.
///
/// A global function, which the verifier checks once by itself instead of wherever it is called; as its likes.
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn segment_has_spilled(hash: u64) -> u32 {
    WAITING.has_spilled(hash, const { hook_key("segments::evicted") }).into()
}

/// What was found.
#[inline(always)]
fn entry(found: &Found<Segment>) -> &'static Segment {
    // SAFETY: entries are preallocated and stay mapped while a program runs, and what changes are fields. A slot's is the
    // finder's alone; whose one of the map is by now, its key tells.
    let segment = unsafe { &*found.entry };
    if found.is_twin || segment.copies.get() != 0 {
        segment.flags.set(segment.flags.get() | FLAG_AMBIGUOUS);
    }
    segment
}

/// The segment with this key.
#[inline(always)]
pub(super) fn waiting(key: &SegmentKey) -> Option<Waiting> {
    checked(WAITING.find(key.hash())?, key)
}

/// The same, if it has a slot, and so can't be evicted.
#[inline(always)]
pub(super) fn waiting_in_slot(key: &SegmentKey) -> Option<Waiting> {
    checked(WAITING.find_in_slot(key.hash())?, key)
}

#[inline(always)]
fn checked(found: Found<Segment>, key: &SegmentKey) -> Option<Waiting> {
    if entry(&found).key == *key {
        return Some(Waiting(found));
    }
    // One in 2^64.
    Table::<Segment, SLOT_BITS>::keep(&found);
    None
}

/// The segment waits no longer.
#[inline(always)]
pub(super) fn remove(waiting: &Waiting) -> bool {
    let was_there = WAITING.remove(&waiting.0);
    if was_there {
        counters::one(Counter::Taken);
    }
    was_there
}

/// The segment waits without the bytes before `seq` from now on. False if it can't, or has no others.
#[inline(always)]
pub(super) fn trim(waiting: &Waiting, seq: u32) -> bool {
    let segment = waiting.segment();
    let end = segment.key.seq.wrapping_add(segment.len.get());
    let key = SegmentKey { seq, ..segment.key };
    let has_more = before(seq, end);
    let rest = |key| Segment {
        key,
        len: Field::new(end.wrapping_sub(seq)),
        flags: Field::new(segment.flags.get()),
        copies: Field::new(segment.copies.get()),
        ..*segment
    };
    // What may be evicted meanwhile stays as it is. What is there of the new key is another's, which has its own line.
    if !has_more
        || waiting.spilled_key() != 0
        || !matches!(WAITING.insert(key.hash(), || rest(key)), Inserted::New)
    {
        Table::<Segment, SLOT_BITS>::keep(&waiting.0);
        return false;
    }
    // It has not been taken, but is elsewhere.
    WAITING.remove(&waiting.0);
    true
}

/// The segment has no line, since what is known of its connection was evicted.
#[inline(always)]
pub(super) fn evict(waiting: &Waiting) {
    WAITING.evict(&waiting.0);
}

/// This CPU's TCP begins to work on another segment. What was there says nothing of it, even if its address is the same.
#[inline(always)]
pub(super) fn examine() -> Option<*mut Examined> {
    let examined = EXAMINED.get_ptr_mut(0)?;
    // SAFETY: index 0 of a per-CPU array is valid; what a task that runs between leaves here is checked before
    // use (see `dropped`).
    unsafe { (*examined).skb = 0 };
    Some(examined)
}

/// A segment begins to wait, which has this key, so many bytes, this number in its header, and whose skb has this address. `examined`
/// is this CPU's entry, from [`examine`]; `segment` makes what is kept.
#[inline(always)]
pub(super) fn store(
    key: SegmentKey,
    len: u32,
    skb: u64,
    seq: u32,
    examined: *mut Examined,
    segment: impl Fn(SegmentKey) -> Segment,
) -> HookResult {
    // SAFETY: `examined` as in `examine`.
    unsafe {
        (*examined).key = key;
        (*examined).skb = skb;
        (*examined).seq = seq;
        (*examined).on_drop = OnDrop::Keep;
    }
    let hash = key.hash();
    match WAITING.insert(hash, || segment(key)) {
        Inserted::New => {
            // SAFETY: as above.
            unsafe { (*examined).on_drop = OnDrop::Forget };
            counters::one(Counter::Stored);
            Ok(())
        }
        Inserted::NoRoom => Err(Counter::MapFull),
        // A copy of a segment that waits, and TCP is not known to have accepted that: either may be read, unless this
        // one is dropped at once. One in 2^64 is no copy.
        Inserted::There(there) => {
            count_copy(there, 1);
            // SAFETY: entries are preallocated and stay mapped while a program runs.
            if unsafe { (*there).len.get() } < len {
                grow(hash, len);
            } else {
                // SAFETY: `examined` as in `examine`.
                unsafe { (*examined).on_drop = OnDrop::Discount };
            }
            Err(Counter::DuplicateIn)
        }
    }
}

/// Counts copies of the segment in this entry.
#[inline(always)]
fn count_copy(entry: *mut Segment, more: u64) {
    // SAFETY: entries are preallocated and stay mapped while a program runs, and a field is its value.
    add(unsafe { &raw mut (*entry).copies }.cast(), more);
}

/// TCP has joined segments to send them again: the entry stands for either from now on. Where it is just being read, what is new has
/// no line.
#[inline(never)]
fn grow(hash: u64, len: u32) {
    if let Some(found) = WAITING.find(hash) {
        entry(&found).len.set(len);
        Table::<Segment, SLOT_BITS>::keep(&found);
    }
}

/// An skb is dropped: what it brought will not be taken.
///
/// Of TCP's drops this sees those that happen at once; where a socket was busy, its segments wait on its
/// backlog and other skbs are examined meanwhile. `tcp_drop` is silent before Linux 5.18.
#[inline(always)]
pub(super) fn dropped<M: Memory>(skb: Skb<M>) -> HookResult {
    let Some(examined) = EXAMINED.get_ptr(0) else { return Ok(()) };
    // SAFETY: index 0 of a per-CPU array is valid, and its CPU's programs don't write to it while this one runs.
    let examined = unsafe { &*examined };
    if examined.skb != skb.address() {
        return Ok(());
    }
    // The address may have been another packet's since, whose drop says nothing.
    let header = skb.tcp_header_anywhere();
    let key = &examined.key;
    if header.seq != examined.seq || header.source != key.remote_port || header.destination != key.local_port
    {
        return Ok(());
    }
    match examined.on_drop {
        OnDrop::Keep => Ok(()),
        OnDrop::Forget => match waiting(key) {
            Some(waiting) if remove(&waiting) => {
                Err(drops::of(key.netns, IPPROTO_TCP, key.local_port, key.remote_port))
            }
            _ => Ok(()),
        },
        OnDrop::Discount => {
            if let Some(there) = WAITING.peek(key.hash()) {
                count_copy(there, 1_u64.wrapping_neg());
            }
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use net_latency_common::AF_INET6;

    use super::*;

    #[test]
    fn all_that_tells_a_segment_is_in_its_hash() {
        let pair = AddrPair::new(AF_INET6, [1, 2, 3, 4]);
        let key = SegmentKey::new(&pair, 443, 51_000, 4_026_531_840, 1);
        let others = [
            SegmentKey { addresses: key.addresses ^ 1, ..key },
            SegmentKey { remote_port: 444, ..key },
            SegmentKey { local_port: 51_001, ..key },
            SegmentKey { netns: key.netns + 1, ..key },
            SegmentKey { seq: 2, ..key },
        ];
        for other in others {
            assert_ne!(other.hash(), key.hash(), "{other:?}");
        }
    }

    #[test]
    fn segments_of_a_connection_never_meet() {
        extern crate std;
        let pair = AddrPair::new(AF_INET6, [1, 2, 3, 4]);
        let hashes: std::collections::HashSet<u64> =
            (0..100_000).map(|n| SegmentKey::new(&pair, 443, 51_000, 7, n * 1448).hash()).collect();
        assert_eq!(hashes.len(), 100_000);
    }
}
