//! Received segments that the application has not taken, by connection and sequence number: `tcp_try_coalesce` and friends
//! free the skb and keep its bytes.

use core::ptr;

use net_latency_common::{Counter, FLAG_AMBIGUOUS, IPPROTO_TCP, SEGMENT_SIZE, hook_key};

use super::steps::{BATCH, DONE, MORE, batch, repeat};
use crate::{
    bpf::{
        Array, LruHashMap, PerCpuArray,
        entry::{Field, Global, Own, add, add_to_half, increment},
        map,
    },
    drops,
    emit::counters::{self, HookResult},
    flow::{
        addresses::{AddrPair, SPREAD},
        settings::setting,
    },
    kernel::{
        memory::{Memory, number},
        sequence::before,
        skb::Skb,
    },
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
    pub(super) len: Field<u32>,
    /// The length of the longest copy.
    pub(super) longest: Field<u32>,
    pub(super) ifindex: u32,
    pub(super) mark: u32,
    pub(super) segs: u16,
    pub(super) flags: Field<u16>,
    /// The skb that brought it ([`short`]); 0 once another one has come that has its address.
    pub(super) skb: Field<u32>,
    /// Further copies that came, and that TCP is not known to have dropped. Counted, since their CPUs don't hold the entry: a reader would
    /// find it in use, and have no line. A count that reaches another entry, which has its place by then, makes that one ambiguous.
    pub(super) copies: Field<u32>,
    /// The skb of the last of these, likewise.
    pub(super) copy: Field<u32>,
}

/// The segment that TCP works on.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Examined {
    skb: u64,
    /// The number of its first byte here, which may be later than in its header.
    seq: u32,
    ports: u32,
}

/// The data of a segment when it begins to wait, beside its key.
pub(super) struct Waits {
    pub(super) drv: u64,
    pub(super) ip: u64,
    pub(super) transport: u64,
    pub(super) last: u64,
    pub(super) len: u32,
    pub(super) ifindex: u32,
    pub(super) mark: u32,
    pub(super) segs: u16,
    pub(super) flags: u16,
    pub(super) skb: u64,
}

/// Pairs of slots, as a power of two.
const SLOT_BITS: u32 = 13;

/// Received segments that the application has not taken yet, by a mixture of connection and position.
#[map]
static SEGMENT_SLOTS: Array<Slots<Segment>> = Array::with_max_entries(1 << SLOT_BITS, 0);

/// Segments that found no slot. Evicts: counted (stored − taken − still waiting).
#[map]
static SEGMENTS: LruHashMap<u64, Segment> = LruHashMap::with_max_entries(entries(20480), 0);

const WAITING: Table<Segment, SLOT_BITS> = Table::new(&SEGMENT_SLOTS, &SEGMENTS);

/// The segment that TCP got last on each CPU: the one that it drops, if it drops one at once.
#[map]
static EXAMINED: PerCpuArray<Examined> = PerCpuArray::with_max_entries(1, 0);

/// Whether of some segment only a part was kept: else what is kept of one that is dropped begins where its header says.
#[unsafe(no_mangle)]
// SAFETY: an integer.
static HAS_PARTS: Global<u64> = unsafe { Global::zeroed() };

/// How many segments of a connection wait, by a mixture of its ends; those that have the same share a count. What the map evicts stays
/// counted, until all of a connection is read or what shares its count. One connection has 8,192 segments at most; more are counted.
#[unsafe(no_mangle)]
// SAFETY: fields of integers.
static SHARES: Own<Field<u64>, { 1 << SHARE_BITS }> = unsafe { Own::zeroed() };

/// Counts of [`SHARES`], as a power of two.
const SHARE_BITS: u32 = 12;

/// Segments of one connection that wait at most: more than 8 MiB of full-sized ones, and half of the slots. A peer that sends single bytes
/// out of order would else take them all.
pub(super) const MOST_OF_ONE: i64 = if cfg!(feature = "skips") { 2048 } else { 8192 };

/// All segments of one connection that wait, in batches of batches.
pub(super) const BATCHES_OF_ALL: u32 = MOST_OF_ONE as u32 / (BATCH * BATCH);

const _: () = assert!(size_of::<Segment>() == SEGMENT_SIZE, "the user side names the size");

impl SegmentKey {
    #[inline(always)]
    pub(super) fn new(pair: &AddrPair, remote_port: u16, local_port: u16, netns: u32, seq: u32) -> Self {
        Self { addresses: pair.mixed(), remote_port, local_port, seq, netns, family: pair.family }
    }

    /// The key in [`SEGMENTS`] and the slots, of a quarter of the size: the kernel goes through a key once for each operation.
    /// Hardly two segments of a connection have the same. Without the namespace, which a dropped skb does not tell any more.
    #[inline(always)]
    pub(super) fn hash(&self) -> u64 {
        self.hash_by(setting!(seed))
    }

    /// With a secret seed: a sender that chooses its addresses and ports could otherwise find some that mix to those of another connection.
    #[inline(always)]
    fn hash_by(&self, seed: u64) -> u64 {
        // Another odd constant with bits all over.
        const SECOND: u64 = 0xc2b2_ae3d_27d4_eb4f;
        let mixed = (self.addresses ^ seed).wrapping_mul(SPREAD).rotate_left(32)
            ^ (u64::from(self.ports()) << 32 | u64::from(self.seq)).wrapping_mul(SECOND);
        // 0 is no segment's. Without a branch, as in `Slots::with_key`.
        mixed | 1
    }

    #[inline(always)]
    fn ports(&self) -> u32 {
        u32::from(self.remote_port) << 16 | u32::from(self.local_port)
    }

    /// The count of its connection.
    #[inline(always)]
    fn share(&self) -> *mut u64 {
        let mixed = (self.addresses ^ u64::from(self.ports()) << 16 ^ setting!(seed)).wrapping_mul(SPREAD);
        SHARES.at(mixed >> (u64::BITS - SHARE_BITS)).cast()
    }

    /// Whether both are the same in all that a dropped skb tells.
    #[inline(always)]
    fn is_but_for_netns(&self, other: &Self) -> bool {
        Self { netns: other.netns, ..*self } == *other
    }
}

impl Entry for Segment {
    #[inline(always)]
    fn came(&self) -> u64 {
        self.transport
    }

    #[inline(always)]
    fn lost_twin(&self) {
        self.make_ambiguous();
    }
}

impl Segment {
    /// The number behind its last byte.
    #[inline(always)]
    pub(super) fn end(&self) -> u32 {
        self.key.seq.wrapping_add(self.len.get())
    }

    /// If several copies came, the longest counts, unless another segment waits where the first one ends: then that may have come with it,
    /// too.
    #[inline(always)]
    pub(super) fn settle_len(&self) {
        if self.longest.get() == self.len.get() || !self.is_ambiguous() {
            return;
        }
        let next = SegmentKey { seq: self.end(), ..self.key };
        if doubt(next.hash(), self.longest.get().wrapping_sub(self.len.get())) == 0 {
            self.len.set(self.longest.get());
        }
    }

    /// No stamp is known to be its own.
    #[inline(always)]
    pub(super) fn make_ambiguous(&self) {
        self.flags.set(self.flags.get() | FLAG_AMBIGUOUS);
    }

    /// Whether the skb at this address, which lives, has brought it.
    #[inline(always)]
    pub(super) fn came_with(&self, skb: u64) -> bool {
        self.skb.get() == short(skb)
    }

    /// Whether no stamp is known to be its own: what comes from now on changes nothing.
    #[inline(always)]
    pub(super) fn is_ambiguous(&self) -> bool {
        self.flags.get() & FLAG_AMBIGUOUS != 0
    }
}

/// A segment that waits, which the finder alone holds, and hands back by [`remove`].
pub(super) struct Waiting(Found<Segment>);

impl Waiting {
    /// The segment.
    #[inline(always)]
    pub(super) fn segment(&self) -> &'static Segment {
        entry(&self.0)
    }

    /// Whether an earlier copy of it may have been evicted.
    #[inline(always)]
    pub(super) fn may_follow_evicted(&self) -> bool {
        self.0.may_follow_evicted()
    }

    /// The argument of [`segment_has_spilled`]; 0 if it can't be evicted.
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

/// If a segment with this hash waits, N bytes from its beginning on may have come with another one. Whether it does. Likewise.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn doubt(hash: u64, len: u32) -> u32 {
    let Some(there) = WAITING.peek(hash) else { return 0 };
    // SAFETY: as in `came_again`.
    let segment = unsafe { &*there };
    segment.make_ambiguous();
    if segment.longest.get() < len {
        segment.longest.set(len);
    }
    1
}

/// The segment that was found, to be read.
#[inline(always)]
fn entry(found: &Found<Segment>) -> &'static Segment {
    let segment = there(found);
    if segment.copies.get() != 0 {
        segment.make_ambiguous();
    }
    segment
}

/// The segment that was found. Which of its copies will be read may turn out later.
#[inline(always)]
fn there(found: &Found<Segment>) -> &'static Segment {
    // SAFETY: entries are preallocated and stay mapped while a program runs, and what changes are fields. A slot's is the
    // finder's alone; whose one of the map is by now, its key tells.
    unsafe { &*found.entry }
}

/// Segments of a connection that wait, about.
#[inline(always)]
fn shared(share: *mut u64) -> u64 {
    // SAFETY: an entry of a table, mapped while a program runs. Volatile: others write it.
    unsafe { ptr::read_volatile(share) }
}

/// All that the connection with this key has got is read: segments that are still counted were evicted.
#[inline(always)]
pub(super) fn settle_share(key: &SegmentKey) {
    // SAFETY: as in `shared`.
    unsafe { ptr::write_volatile(key.share(), 0) };
}

/// The segment with this key.
#[inline(always)]
pub(super) fn waiting(key: &SegmentKey) -> Option<Waiting> {
    checked(WAITING.find(key.hash())?, key)
}

/// The segment with this key, if it has a slot, and so can't be evicted.
#[inline(always)]
pub(super) fn waiting_in_slot(key: &SegmentKey) -> Option<Waiting> {
    checked(WAITING.find_in_slot(key.hash())?, key)
}

#[inline(always)]
fn checked(found: Found<Segment>, key: &SegmentKey) -> Option<Waiting> {
    if entry(&found).key == *key {
        return Some(Waiting(found));
    }
    // One in 2^63.
    Table::<Segment, SLOT_BITS>::keep(&found);
    None
}

/// The segment waits no longer.
#[inline(always)]
pub(super) fn remove(waiting: &Waiting) -> bool {
    let share = waiting.segment().key.share();
    let was_there = WAITING.remove(&waiting.0);
    if was_there {
        counters::one(Counter::Taken);
        add(share, u64::MAX);
    }
    was_there
}

/// The segment waits without the bytes before `seq` from now on. False if it can't, has no others, or did not come with this skb.
#[inline(always)]
pub(super) fn trim(waiting: &Waiting, skb: u64, seq: u32) -> bool {
    let segment = waiting.segment();
    segment.settle_len();
    let end = segment.end();
    let key = SegmentKey { seq, ..segment.key };
    let has_more = before(seq, end) && segment.came_with(skb);
    let rest = |key| Segment {
        key,
        len: Field::new(end.wrapping_sub(seq)),
        longest: Field::new(end.wrapping_sub(seq)),
        flags: Field::new(segment.flags.get()),
        skb: Field::new(segment.skb.get()),
        copies: Field::new(segment.copies.get()),
        copy: Field::new(segment.copy.get()),
        ..*segment
    };
    // An entry that may be evicted meanwhile stays as it is. An entry under the new key is another's, which has its own line.
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

/// The segment has no line, since its connection's entry was evicted.
#[inline(always)]
pub(super) fn evict(waiting: &Waiting) {
    add(waiting.segment().key.share(), u64::MAX);
    WAITING.evict(&waiting.0);
}

/// This CPU's TCP begins to work on another segment, which begins at `start`, whose skb has this address, and of which what begins with
/// this key is kept.
#[inline(always)]
fn examine(skb: u64, start: u32, key: &SegmentKey) {
    if start == key.seq && HAS_PARTS.get() == 0 {
        return;
    }
    // All write the same.
    HAS_PARTS.set(1);
    if let Some(examined) = EXAMINED.get_ptr_mut(0) {
        // SAFETY: index 0 of a per-CPU array is valid; what a task that runs between leaves here is another skb's.
        unsafe {
            (*examined).seq = key.seq;
            (*examined).ports = key.ports();
            (*examined).skb = skb;
        }
    }
}

/// A segment begins to wait, which begins at `start` by its header, has this key, and of which that is kept.
#[inline(always)]
pub(super) fn store(start: u32, key: SegmentKey, waits: Waits) -> HookResult {
    examine(waits.skb, start, &key);
    let share = key.share();
    // Fewer than none: segments that were evicted are no longer counted, but were read all the same.
    if shared(share) as i64 >= MOST_OF_ONE {
        return Err(Counter::MapFull);
    }
    let (skb, len) = (waits.skb, waits.len);
    let segment = || Segment {
        key,
        drv: waits.drv,
        ip: waits.ip,
        transport: waits.transport,
        last: waits.last,
        len: Field::new(len),
        longest: Field::new(len),
        ifindex: waits.ifindex,
        mark: waits.mark,
        segs: waits.segs,
        flags: Field::new(waits.flags),
        skb: Field::new(short(skb)),
        copies: Field::new(0),
        copy: Field::new(0),
    };
    match WAITING.insert(key.hash(), segment) {
        Inserted::New => {
            counters::one(Counter::Stored);
            increment(share);
            Ok(())
        }
        Inserted::NoRoom => Err(Counter::MapFull),
        // A copy of a segment that waits, and TCP is not known to have accepted that: either may be read, unless one of them is dropped.
        Inserted::There(there) => {
            came_again(there, skb, len);
            Err(Counter::DuplicateIn)
        }
    }
}

/// A copy has come of the segment that is in this entry, or was a moment ago; one in 2^63 is no copy.
#[inline(always)]
fn came_again(there: *mut Segment, skb: u64, len: u32) {
    // SAFETY: entries are preallocated and stay mapped while a program runs, and what changes are fields.
    let segment = unsafe { &*there };
    if segment.longest.get() < len {
        segment.longest.set(len);
    }
    disown(segment, skb);
    segment.copy.set(short(skb));
    count_copy(there, 1);
}

/// An skb's address in 32 bits, which tell it from any other within 32 GiB.
#[inline(always)]
fn short(skb: u64) -> u32 {
    (skb >> 3) as u32
}

/// An skb comes that has this address: if the segment's had it too, that one is gone.
#[inline(always)]
fn disown(segment: &Segment, skb: u64) {
    if segment.came_with(skb) {
        segment.skb.set(0);
    }
}

/// An skb comes, at this address, of which TCP has all bytes. If the segment with its key waits still, it came with an skb that is gone.
#[inline(always)]
pub(super) fn came_for_nothing(key: &SegmentKey, skb: u64) {
    // Otherwise, if the skb before had its address, that one's entry would be taken for its own.
    examine(skb, key.seq, key);
    if let Some(there) = WAITING.peek(key.hash()) {
        // SAFETY: as in `came_again`.
        disown(unsafe { &*there }, skb);
    }
}

/// Counts copies of the segment in this entry.
#[inline(always)]
fn count_copy(entry: *mut Segment, more: u32) {
    // SAFETY: entries are preallocated and stay mapped while a program runs, and a field is its value.
    add_to_half(unsafe { &raw mut (*entry).copies }.cast(), more);
}

/// What a dropped skb held.
#[repr(C)]
struct Dropped {
    /// The key to look up next.
    key: SegmentKey,
    /// The skb ([`short`]); 0 behind the first segment, which alone came with it.
    skb: u32,
    /// The number behind its last byte.
    until: u32,
}

/// What this CPU drops.
#[map]
static DROPPED: PerCpuArray<Dropped> = PerCpuArray::with_max_entries(1, 0);

/// The family of packet sockets (include/linux/socket.h).
const AF_PACKET: u32 = 17;

/// An skb is dropped: what it brought will not be taken. It may hold segments that TCP has joined to it, which are dropped with it.
///
/// Wherever that happens, its headers say which segment it is; and that it is this one, and no copy of it, its address.
/// `tcp_drop` is silent before Linux 5.18, and hooked there.
#[inline(always)]
pub(super) fn dropped<M: Memory>(skb: Skb<M>) -> HookResult {
    let header = skb.tcp_header_anywhere();
    // A segment that TCP sends is not one that it got, even if both are the same over loopback. Nor is a packet socket's copy of it.
    let socket = skb.socket();
    let is_others = || socket.family() == AF_PACKET || socket.local_port() == header.source;
    if socket.address() != 0 && is_others() {
        return Ok(());
    }
    let (Some(dropped), Some(examined)) = (DROPPED.get_ptr_mut(0), EXAMINED.get_ptr(0)) else {
        return Ok(());
    };
    let address = number(skb.address());
    let family = skb.family();
    let pair = AddrPair::new(family, skb.addresses(family));
    // SAFETY: index 0 of a per-CPU array is valid. The kernel runs no other program of this hook on this CPU meanwhile, but where it
    // preempts programs; then the entry that is found is checked all the same.
    unsafe {
        let key = SegmentKey::new(&pair, header.source, header.destination, 0, header.seq);
        let len = skb.tcp_payload(header.len);
        // Another CPU may have got a segment since with the same address.
        let is_within = (*examined).seq.wrapping_sub(header.seq) < len;
        let is_examined = (*examined).skb == address && (*examined).ports == key.ports() && is_within;
        (*dropped).key = SegmentKey { seq: if is_examined { (*examined).seq } else { header.seq }, ..key };
        (*dropped).skb = short(address);
        (*dropped).until = header.seq.wrapping_add(len);
    }
    if forget_step() == MORE {
        repeat(BATCHES_OF_ALL, || forget_batches());
    }
    Ok(())
}

batch!(
    /// Steps along the segments that one skb holds: all of a connection's at most. What `tcp_try_coalesce` joins is limited by the skb's
    /// pages, but small segments are copied into the room that its first part has.
    forget_batch = forget_step()
);
batch!(
    /// Batches of these steps.
    forget_batches = forget_batch()
);

/// One step along the segments that a dropped skb holds.
///
/// A global function, which the verifier checks once by itself instead of wherever it is called.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn forget_step() -> u32 {
    let Some(dropped) = DROPPED.get_ptr_mut(0) else { return DONE };
    // SAFETY: as in `dropped`.
    let dropped = unsafe { &mut *dropped };
    let Some(found) = WAITING.find(dropped.key.hash()) else { return DONE };
    let segment = there(&found);
    let waiting = Waiting(found);
    if !segment.key.is_but_for_netns(&dropped.key) {
        Table::<Segment, SLOT_BITS>::keep(&waiting.0);
        return DONE;
    }
    let is_first = dropped.skb != 0;
    if is_first && segment.skb.get() != dropped.skb {
        // The last copy, or a clone of another user, as a packet socket's.
        if segment.copy.get() == dropped.skb {
            segment.copy.set(0);
            count_copy(waiting.0.entry, u32::MAX);
        }
        Table::<Segment, SLOT_BITS>::keep(&waiting.0);
        return DONE;
    }
    let next = dropped.key.seq.wrapping_add(segment.len.get());
    if segment.copies.get() != 0 {
        // A copy is what waits, and its stamps are not known.
        segment.make_ambiguous();
        segment.skb.set(0);
        Table::<Segment, SLOT_BITS>::keep(&waiting.0);
    } else {
        let (netns, local, remote) = (segment.key.netns, segment.key.local_port, segment.key.remote_port);
        if remove(&waiting) {
            counters::one(drops::of(netns, IPPROTO_TCP, local, remote));
        }
    }
    dropped.key.seq = next;
    dropped.skb = 0;
    if before(next, dropped.until) { MORE } else { DONE }
}

/// How many segments wait by the counts of connections; fewer than none where evicted ones were read all the same.
#[cfg(test)]
pub(crate) fn shares() -> i64 {
    SHARES.touched().map(|share| shared(share.cast()) as i64).sum()
}

/// Segments that wait.
#[cfg(test)]
pub(crate) fn waiting_segments() -> crate::slots::Count {
    WAITING.count()
}

#[cfg(test)]
mod tests {
    use net_latency_common::{AF_INET6, Offsets};

    use super::*;
    use crate::{
        bpf::host::{Machine, memory},
        kernel::memory::Probed,
    };

    fn key(seq: u32) -> SegmentKey {
        let pair = AddrPair::new(AF_INET6, [1, 2, 3, 4]);
        SegmentKey::new(&pair, 443, 51_000, 4_026_531_840, seq)
    }

    #[test]
    fn all_that_tells_a_segment_but_its_namespace_is_in_its_hash() {
        let key = key(1);
        let others = [
            SegmentKey { addresses: key.addresses ^ 1, ..key },
            SegmentKey { remote_port: 444, ..key },
            SegmentKey { local_port: 51_001, ..key },
            SegmentKey { seq: 2, ..key },
        ];
        for other in others {
            assert_ne!(other.hash(), key.hash(), "{other:?}");
            assert!(!other.is_but_for_netns(&key), "{other:?}");
        }
        let elsewhere = SegmentKey { netns: key.netns + 1, ..key };
        assert_eq!(elsewhere.hash(), key.hash());
        assert!(elsewhere != key && elsewhere.is_but_for_netns(&key));
    }

    #[test]
    fn who_crafts_a_segment_that_meets_another_has_to_know_the_seed() {
        const KNOWN: u64 = 0x5eed;
        let (victim, attacker) = (key(1), SegmentKey { addresses: 5, ..key(1) });
        // The attacker makes up for the difference between the mixed addresses by ports and number.
        let factor = 0xc2b2_ae3d_27d4_eb4f_u64;
        let inverse = (0..6).fold(factor, |x, _| x.wrapping_mul(2u64.wrapping_sub(factor.wrapping_mul(x))));
        assert_eq!(factor.wrapping_mul(inverse), 1);
        let of_addresses =
            |key: &SegmentKey, seed: u64| (key.addresses ^ seed).wrapping_mul(SPREAD).rotate_left(32);
        let place = (victim.hash_by(KNOWN) ^ of_addresses(&attacker, KNOWN)).wrapping_mul(inverse);
        let crafted = SegmentKey {
            remote_port: (place >> 48) as u16,
            local_port: (place >> 32) as u16,
            seq: place as u32,
            ..attacker
        };
        assert_eq!(crafted.hash_by(KNOWN), victim.hash_by(KNOWN));
        for seed in (1..10_000).map(|n: u64| KNOWN ^ n.wrapping_mul(SPREAD)) {
            assert_ne!(crafted.hash_by(seed), victim.hash_by(seed), "{seed:#x}");
        }
    }

    #[test]
    fn segments_of_a_connection_never_meet() {
        let pair = AddrPair::new(AF_INET6, [1, 2, 3, 4]);
        let hashes: std::collections::HashSet<u64> =
            (0..100_000).map(|n| SegmentKey::new(&pair, 443, 51_000, 7, n * 1448).hash()).collect();
        assert_eq!(hashes.len(), 100_000);
    }

    /// Of a segment TCP may have kept a part, whose number is known if it is the one that this CPU has worked on.
    #[test]
    fn what_is_dropped_begins_where_it_was_kept_if_it_is_the_last_one() {
        const OTHER: u32 = 1_300;
        const HEADER: u32 = 20;
        const PAYLOAD: u32 = 100;
        const SEQ: u32 = 1_000;
        Machine::reset();
        let [address, head] = [64, 64].map(|size| memory::take(memory::slab(size)));
        let offsets = Offsets {
            sk_buff_head: 8,
            sk_buff_data: 16,
            sk_buff_len: 24,
            sk_buff_transport_header: 28,
            sk_buff_sk: 32,
            ..Offsets::default()
        };
        Machine::with(|machine| machine.offsets = offsets);
        memory::write(address + 8, [head, head]);
        memory::write(address + 24, [HEADER + PAYLOAD, 0]);
        memory::write(head, [443_u16, 51_000].map(u16::to_be));
        memory::write(head + 4, [SEQ.to_be(), 0, ((HEADER / 4) << 28).to_be()]);
        let ports = SegmentKey { seq: SEQ, ..key(SEQ) }.ports();
        let examined = EXAMINED.get_ptr_mut(0).expect("a place");
        for (skb, ports, kept, begins) in [
            (address, ports, SEQ + 40, SEQ + 40),
            (address, ports, SEQ + PAYLOAD - 1, SEQ + PAYLOAD - 1),
            (address, ports, SEQ + PAYLOAD, SEQ),
            (address, ports, SEQ - 1, SEQ),
            (address, OTHER, SEQ + 40, SEQ),
            (address + 64, ports, SEQ + 40, SEQ),
        ] {
            // SAFETY: an entry of this thread's table, which nothing else refers to.
            unsafe { examined.write(Examined { skb, seq: kept, ports }) };
            dropped(Skb::<Probed>::new(address as *const u8)).expect("it is counted");
            let at = DROPPED.get_ptr(0).expect("a place");
            // SAFETY: likewise.
            let (seq, until) = unsafe { ((*at).key.seq, (*at).until) };
            assert_eq!((seq, until), (begins, SEQ + PAYLOAD), "{skb:#x} {ports} {kept}");
        }
    }

    #[test]
    fn the_longest_copy_counts_unless_a_segment_waits_where_the_first_one_ends() {
        let came = |seq: u32, len: u32| {
            let waits = Waits {
                drv: 1,
                ip: 2,
                transport: 3,
                last: 0,
                len,
                ifindex: 1,
                mark: 0,
                segs: 1,
                flags: 0,
                skb: 0x1000 + u64::from(len),
            };
            store(seq, key(seq), waits)
        };
        let read = |seq: u32| {
            let waiting = waiting(&key(seq)).expect("it waits");
            let segment = waiting.segment();
            segment.settle_len();
            let read = (segment.len.get(), segment.longest.get(), segment.is_ambiguous());
            remove(&waiting);
            read
        };
        Machine::reset();
        assert_eq!(
            [came(1, 100), came(1, 250), came(1, 200)],
            [Ok(()), Err(Counter::DuplicateIn), Err(Counter::DuplicateIn)]
        );
        assert_eq!(read(1), (250, 250, true));
        Machine::reset();
        assert_eq!([came(1, 100), came(101, 50), came(1, 250)], [Ok(()), Ok(()), Err(Counter::DuplicateIn)]);
        assert_eq!(read(1), (100, 250, true));
        // It may have come with the longer copy of the one before.
        assert_eq!(read(101), (150, 150, true));
    }

    /// Else one that has many segments waiting takes another one's room.
    #[test]
    fn connections_seldom_share_a_count() {
        Machine::reset();
        Machine::with(|machine| machine.settings.seed = 0x0f0f_0f0f_0f0f_0f0f);
        let shares: std::collections::HashSet<usize> =
            (0..256).map(|remote_port| SegmentKey { remote_port, ..key(1) }.share().addr()).collect();
        assert!(shares.len() > 200, "256 connections have {} counts", shares.len());
    }
}
