//! When packets passed the stages at which only their skb is known, by its address.
//!
//! An address is a packet only as long as its skb lives, and a packet may change its skb. So each way in which an skb comes to
//! be has an end or a hand-over here:
//!
//! - by a driver: its stamp overwrites whatever an earlier skb left under the address;
//! - by `skb_clone` in IP, which takes a clone where the skb has another user too (`skb_share_check` in `ip_rcv_core` and `ip6_rcv_core`; a
//!   packet socket bound to the device for that protocol): the stamps lie under the buffer's address then, which clones share
//!   ([`received`]);
//! - by a copy (`skb_copy_header`: `skb_copy`, `pskb_copy`, `skb_copy_expand`, generic XDP's `skb_pp_cow_data`): it gets the stamps of
//!   what it copies, or loses those that were left under its address ([`copied`]);
//! - by `skb_segment`, where NFQUEUE cuts a merged packet up: stamps from before count for none after it ([`segmented`]);
//! - by `skb_morph`, when fragments are put together: the last one's skb takes the first one's buffer ([`rebuffered`]).
//!
//! `kfree_skb` ends what is left. Other ends are unseen, and harmless by the above.
//!
//! A plain table, in which a place is found by a handful of instructions where a hash table takes a hundred. A stamp is one word, so that it
//! is written at once: the time, and which skb it is of. Each skb has two places, and takes the second if another's stamp is in
//! the first. Where both are taken the newer stamp stands, and the other one is recognised as not its own: unknown. Of 64
//! packets in flight at once one in a million meets that.
//!
//! Considered: a hash table (what this was), two words with address and time (no atomic way to write both on Linux 5.10), one
//! slot per CPU (packets change CPUs in the backlog, and softirqs interrupt tasks that send), one place for each (one packet in
//! 500 met another's in a burst through GRO).

use core::ptr;

use net_latency_common::tagged;

use crate::{
    bpf::{
        entry::{Global, Own},
        now,
    },
    kernel::{
        memory::{Memory, number},
        skb::Skb,
    },
};

/// Slots of the table, as a power of two.
const SLOT_BITS: u32 = 15;
/// Slots of the table.
const SLOTS: u32 = 1 << SLOT_BITS;

/// Stamps of the stages at which only a packet's skb is known. When full, the newer stamp stands: the other packet's line has a gap.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".bss.stamps")]
// SAFETY: words.
static SKB_STAMPS: Own<StampSlot, { SLOTS as usize }> = unsafe { Own::zeroed() };

/// Whether IP has received an skb that others had too: else no stamps are kept by buffers.
#[unsafe(no_mangle)]
// SAFETY: an integer.
static HAS_SHARED: Global<u64> = unsafe { Global::zeroed() };

/// When an skb that IP had received was cut into segments, ns; 0 if none was. Earlier stamps may be left under an address that one of the
/// segments has got.
#[unsafe(no_mangle)]
// SAFETY: an integer.
static SEGMENTED_AT: Global<u64> = unsafe { Global::zeroed() };

/// When an skb that TCP had let go was last cut into segments, ns. What IP output had stamped before under the address of a segment is
/// another skb's.
#[unsafe(no_mangle)]
// SAFETY: an integer.
static CUT_AT: Global<u64> = unsafe { Global::zeroed() };

/// Sets the address of a buffer apart from that of an skb: no machine has memory 2 TiB apart in one direct mapping's slab pages and
/// buffers alike.
const OF_BUFFER: u64 = 1 << 41;
/// Bits of an address that are always 0: an skb is aligned to 8 bytes, the second of a pair (`struct sk_buff_fclones`) to no more.
const ALIGNMENT_BITS: u32 = 3;
/// Bits above them that are the same for skbs in a row, which are 256 bytes apart or a multiple of it.
const STRIDE_BITS: u32 = 5;
/// Bits above the slot's that are compared. All in all an address is told from any other within 4 TiB.
const HIGH_BITS: u32 = 19;
/// What of a word says which skb it is of: these bits, and whether it is in the skb's second place.
const TAG_BITS: u32 = STRIDE_BITS + HIGH_BITS + 1;
/// Skbs that are near each other have the same tag, and one's second place is another's first: this tells their stamps apart.
const IN_SECOND: u64 = 1 << (TAG_BITS - 1);
/// A stamp as old as this, ns, is left from an skb that went another way.
const OLD: u64 = 1 << 27;
/// The stamps of the skbs that share a place; 0 for none.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct StampSlot {
    words: [u64; 3],
}

/// A stage that an skb passes.
#[derive(Clone, Copy)]
pub(crate) enum SkbStage {
    /// It enters the stack from its driver.
    Arrived = 0,
    /// IP receives it.
    IpIn = 1,
    /// IP output.
    IpOut = 2,
}

/// The places of an skb's stamps.
#[derive(Clone, Copy)]
pub(crate) struct SkbStamps {
    first: *mut StampSlot,
    /// Number of the second place, which is seldom needed.
    second: u32,
    tag: u64,
}

/// The places for the skb at this address.
#[inline(always)]
pub(crate) fn of(skb: u64) -> SkbStamps {
    let (slot, tag) = place(number(skb));
    SkbStamps { first: SKB_STAMPS.at(slot.into()), second: other(slot, tag), tag }
}

/// Slot, of which the lower bits count, and tag of an address, which together tell it.
#[inline(always)]
fn place(skb: u64) -> (u32, u64) {
    let units = skb >> ALIGNMENT_BITS;
    let low = units & ((1 << STRIDE_BITS) - 1);
    let high = (units >> (STRIDE_BITS + SLOT_BITS)) & ((1 << HIGH_BITS) - 1);
    // So that the second of a pair is not in the place of another pair's first.
    let slot = (units >> STRIDE_BITS) ^ (low << (SLOT_BITS - STRIDE_BITS));
    (slot as u32, high << STRIDE_BITS | low)
}

/// The second place of an skb. Those that share the first don't share it, unless they are 256 MiB apart.
#[inline(always)]
fn other(slot: u32, tag: u64) -> u32 {
    // An odd factor that spreads; never the first place again.
    slot ^ (tag as u32).wrapping_mul(0x9e37) ^ 0x2aaa
}

/// The word that says that the skb with this tag passed at that time.
#[inline(always)]
fn word(at: u64, tag: u64) -> u64 {
    tagged::word::<TAG_BITS>(at, tag)
}

/// Whether a word is of the skb with this tag.
#[inline(always)]
fn is_of(word: u64, tag: u64) -> bool {
    tagged::is_of::<TAG_BITS>(word, tag)
}

/// How long before `now` a word was written, ns, and a little more. The time's bits last for 9 minutes, in which a packet has got
/// through or its skb a new life.
#[inline(always)]
fn age(word: u64, now: u64) -> u64 {
    tagged::age::<TAG_BITS>(word, now)
}

/// Whether a word was written no later before `now` than another one with its tag.
#[inline(always)]
fn is_no_younger(word: u64, other: u64, now: u64) -> bool {
    tagged::is_no_younger::<TAG_BITS>(word, other, now)
}

/// The time in a word that was written not long before `now`.
#[inline(always)]
fn time(word: u64, now: u64) -> u64 {
    tagged::time::<TAG_BITS>(word, now)
}

impl StampSlot {
    #[inline(always)]
    fn read(slot: *mut Self, stage: SkbStage) -> u64 {
        // SAFETY: the table's entry, aligned, and mapped while a program runs; a stage is one of its words. Volatile: read once,
        // as a whole.
        unsafe { ptr::read_volatile((&raw const (*slot).words).cast::<u64>().add(stage as usize)) }
    }

    #[inline(always)]
    fn write(slot: *mut Self, stage: SkbStage, word: u64) {
        // SAFETY: as in `read`.
        unsafe { ptr::write_volatile((&raw mut (*slot).words).cast::<u64>().add(stage as usize), word) }
    }
}

impl SkbStamps {
    /// The skb passes this stage at that time.
    #[inline(always)]
    fn stamp(self, stage: SkbStage, at: u64) {
        let there = StampSlot::read(self.first, stage);
        if matches!(stage, SkbStage::IpIn) && there != 0 && is_of(there, self.tag) {
            self.forget_arrival_before(there, at);
        }
        let is_free = there == 0 || is_of(there, self.tag) || age(there, at) >= OLD;
        let (slot, tag) =
            if is_free { (self.first, self.tag) } else { (self.second(), self.tag | IN_SECOND) };
        StampSlot::write(slot, stage, word(at, tag));
    }

    #[inline(always)]
    fn second(self) -> *mut StampSlot {
        SKB_STAMPS.at(self.second.into())
    }

    /// IP receives the skb, and an earlier life of its address has left IP's stamp `there`: the driver's is that life's too if it
    /// is not newer.
    #[inline(always)]
    fn forget_arrival_before(self, there: u64, now: u64) {
        let arrived = StampSlot::read(self.first, SkbStage::Arrived);
        if is_of(arrived, self.tag) && is_no_younger(arrived, there, now) {
            StampSlot::write(self.first, SkbStage::Arrived, 0);
        }
    }

    /// The skb's stamp of this stage, which it has no longer; 0 where there is none.
    #[inline(always)]
    fn take(self, stage: SkbStage, now: u64) -> u64 {
        let mut at = 0;
        let there = StampSlot::read(self.first, stage);
        if is_of(there, self.tag) {
            at = time(there, now);
            StampSlot::write(self.first, stage, 0);
        }
        // There may be an older one, which must not be found next time.
        let second = self.second();
        let there = StampSlot::read(second, stage);
        if is_of(there, self.tag | IN_SECOND) {
            at = if at == 0 { time(there, now) } else { at };
            StampSlot::write(second, stage, 0);
        }
        at
    }

    /// When the skb entered the stack last, and when IP received it; its transport has it now.
    #[inline(always)]
    fn take_in(self, now: u64) -> (u64, u64) {
        let drv = self.take(SkbStage::Arrived, now);
        let ip = self.take(SkbStage::IpIn, now);
        // An older one is that of another life of the address, which ended before its transport, and the hook was missed
        // this time.
        (drv, if ip >= drv { ip } else { 0 })
    }

    /// The skb's stamp of this stage, which it keeps; 0 where there is none.
    #[inline(always)]
    fn seen(self, stage: SkbStage, now: u64) -> u64 {
        let there = StampSlot::read(self.first, stage);
        if is_of(there, self.tag) {
            return time(there, now);
        }
        let there = StampSlot::read(self.second(), stage);
        if is_of(there, self.tag | IN_SECOND) { time(there, now) } else { 0 }
    }

    /// What the driver and IP have stamped, likewise.
    #[inline(always)]
    fn seen_in(self, now: u64) -> (u64, u64) {
        (self.seen(SkbStage::Arrived, now), self.seen(SkbStage::IpIn, now))
    }

    /// The skb has no stamp of this stage any more.
    #[inline(always)]
    fn drop(self, stage: SkbStage) {
        if is_of(StampSlot::read(self.first, stage), self.tag) {
            StampSlot::write(self.first, stage, 0);
        }
        let second = self.second();
        if is_of(StampSlot::read(second, stage), self.tag | IN_SECOND) {
            StampSlot::write(second, stage, 0);
        }
    }

    /// The skb has no stamp of the driver or IP any more.
    #[inline(always)]
    fn drop_in(self) {
        self.drop(SkbStage::Arrived);
        self.drop(SkbStage::IpIn);
    }

    /// The skb has these stamps, 0 for none, and no others.
    #[inline(always)]
    fn set_in(self, (drv, ip): (u64, u64)) {
        self.drop_in();
        if drv != 0 {
            self.stamp(SkbStage::Arrived, drv);
        }
        if ip != 0 {
            self.stamp(SkbStage::IpIn, ip);
        }
    }

    /// When an skb that its transport let go at that time passed IP. For older stamps: see [`Self::take_in`].
    #[inline(always)]
    fn take_out(self, transport: u64, now: u64) -> u64 {
        let stamp = self.take(SkbStage::IpOut, now);
        if stamp >= transport { stamp } else { 0 }
    }
}

/// The places for the skbs that share this buffer.
#[inline(always)]
fn of_buffer(head: u64) -> SkbStamps {
    of(head ^ OF_BUFFER)
}

/// Whether stamps may lie under the address of a buffer, 0 for one that clones don't share.
#[inline(always)]
fn is_shared(head: u64) -> bool {
    HAS_SHARED.get() != 0 && head != 0
}

/// The later of two pairs of stamps.
///
/// Under the address of a clone there may be stamps of another packet, and so there may be under a buffer's. They are older: the packet
/// that left them under the clone's address had it before the clone was made, and that was after IP had stamped the buffer; and the one
/// that left them under the buffer's had that before this packet came, which IP has then stamped under its own address.
#[inline(always)]
fn later(one: (u64, u64), other: (u64, u64)) -> (u64, u64) {
    if last(other) > last(one) { other } else { one }
}

#[inline(always)]
fn last((drv, ip): (u64, u64)) -> u64 {
    if ip > drv { ip } else { drv }
}

/// The skb at this address passes a stage now.
#[inline(always)]
pub(crate) fn stamp(skb: u64, stage: SkbStage) {
    stamp_at(skb, stage, now());
}

/// The skb at this address passed a stage at that time.
#[inline(always)]
pub(crate) fn stamp_at(skb: u64, stage: SkbStage, at: u64) {
    of(skb).stamp(stage, at);
}

/// IP receives an skb.
#[inline(always)]
pub(crate) fn received<M: Memory>(skb: Skb<M>) {
    if skb.has_one_user() {
        stamp(skb.address(), SkbStage::IpIn);
    } else {
        received_shared(number(skb.address()), number(skb.head()));
    }
}

/// [`received`] for an skb with other users: IP goes on with a clone, which has another address and the same buffer.
///
/// A global function, which the verifier checks once by itself instead of wherever it is called; as those that follow.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn received_shared(skb: u64, head: u64) -> u32 {
    let now = now();
    let stamps = of(skb);
    let drv = stamps.take(SkbStage::Arrived, now);
    stamps.drop(SkbStage::IpIn);
    of_buffer(head).set_in((drv, now));
    // All write the same.
    HAS_SHARED.set(1);
    0
}

/// The stamps of an skb that its transport receives, which from now on belong to no packet: the last entry into the stack, and IP.
#[inline(always)]
pub(crate) fn take_in<M: Memory>(skb: Skb<M>, address: u64, now: u64) -> (u64, u64) {
    let mut stamps = of(address).take_in(now);
    if HAS_SHARED.get() != 0 {
        let head = skb.shared_head();
        let drv = take_shared(head, now, SkbStage::Arrived as u32);
        let shared = (drv, take_shared(head, now, SkbStage::IpIn as u32));
        stamps = later(stamps, shared);
    }
    if last(stamps) > SEGMENTED_AT.get() { stamps } else { (0, 0) }
}

/// Takes a stamp of the skbs that share a buffer: the driver's or, behind that, IP's.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn take_shared(head: u64, now: u64, stage: u32) -> u64 {
    if head == 0 {
        return 0;
    }
    let stamps = of_buffer(head);
    let is_driver = stage == SkbStage::Arrived as u32;
    stamps.take(if is_driver { SkbStage::Arrived } else { SkbStage::IpIn }, now)
}

/// When an skb entered the stack that this machine forwards: its stamps end here.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn take_forwarded(skb: u64, head: u64) -> u64 {
    take_all(skb, head, now()).0
}

/// Takes the stamps of an skb, whose buffer is at `head` if clones share that, wherever they lie.
#[inline(always)]
fn take_all(skb: u64, head: u64, now: u64) -> (u64, u64) {
    let own = of(skb).take_in(now);
    if is_shared(head) { later(own, of_buffer(head).take_in(now)) } else { own }
}

/// When an skb that its transport let go at that time passed IP; it is with its device now.
#[inline(always)]
pub(crate) fn take_out(skb: u64, transport: u64, now: u64) -> u64 {
    of(skb).take_out(transport, now)
}

/// An skb that TCP has let go is about to be cut into segments.
#[inline(always)]
pub(crate) fn cut() {
    CUT_AT.set(now());
}

/// The skb at this address is one of those segments: if IP output stamped the address before, that was another skb.
///
/// A global function, like those above.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn forget_before_cut(skb: u64) -> u32 {
    let stamps = of(skb);
    if stamps.seen(SkbStage::IpOut, now()) <= CUT_AT.get() {
        stamps.drop(SkbStage::IpOut);
    }
    0
}

/// [`take_in`] where the stamps are of no use.
#[inline(always)]
pub(crate) fn drop_in(skb: u64) {
    of(skb).drop_in();
}

/// An skb is dropped, whose buffer is at `head` if clones share that: stamps under its address belong to no packet any more. 1 if it was
/// stamped on its way in, and so has not come to its transport.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn forget(skb: u64, head: u64) -> u32 {
    let now = now();
    of(skb).drop(SkbStage::IpOut);
    let own = last(of(skb).take_in(now));
    // A packet socket may drop what it has of a packet, while IP goes on with its clone.
    let is_stamped = own != 0 || is_shared(head) && last(of_buffer(head).seen_in(now)) != 0;
    u32::from(is_stamped)
}

/// An skb is made that is a copy of another one, whose buffer is at `head` if clones share that. Either may be what goes on.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn copied(new: u64, old: u64, head: u64) -> u32 {
    let now = now();
    let (new, old) = (of(new), of(old));
    let mut stamps = old.seen_in(now);
    if is_shared(head) {
        stamps = later(stamps, of_buffer(head).seen_in(now));
    }
    new.set_in(stamps);
    new.drop(SkbStage::IpOut);
    let out = old.seen(SkbStage::IpOut, now);
    if out != 0 {
        new.stamp(SkbStage::IpOut, out);
    }
    0
}

/// An skb, whose buffer is at `head` if clones share that, gets another buffer, and stays what it is.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn rebuffered(skb: u64, head: u64) -> u32 {
    if is_shared(head) {
        let now = now();
        of(skb).set_in(take_all(skb, head, now));
    }
    0
}

/// An skb, whose buffer is at `head` if clones share that, is cut into segments, which are skbs of their own. If IP had received it: see
/// [`SEGMENTED_AT`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn segmented(skb: u64, head: u64) -> u32 {
    let now = now();
    let (_, ip) = take_all(skb, head, now);
    if ip != 0 {
        // CPUs that write at the same time write about the same.
        SEGMENTED_AT.set(now);
    }
    0
}

/// Whether stamps from before some time count for none.
#[cfg(test)]
pub(crate) fn was_segmented() -> bool {
    SEGMENTED_AT.get() != 0
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;
    use crate::bpf::host::Machine;

    /// Where the direct mapping begins without KASLR, and a cache's slab in it.
    const SLAB: u64 = 0xffff_8881_0234_0000;

    fn place(skb: u64) -> (u32, u64) {
        let (slot, tag) = super::place(skb);
        (slot & (SLOTS - 1), tag)
    }

    fn other(slot: u32, tag: u64) -> u32 {
        super::other(slot, tag) & (SLOTS - 1)
    }

    #[test]
    fn slot_and_tag_tell_addresses_within_4_tib() {
        let units: Vec<u64> = (0..40).flat_map(|bit| [1 << bit, 3 << bit, 5 << bit]).collect();
        for unit in units {
            let unit = unit & ((1 << 39) - 1);
            let other = SLAB ^ unit << ALIGNMENT_BITS;
            assert_eq!(place(SLAB) == place(other), unit == 0, "{unit:#x}");
        }
    }

    #[test]
    fn neighbours_do_not_share_a_slot() {
        let mut slots: Vec<u32> = (0..u64::from(SLOTS)).map(|n| place(SLAB + n * 256).0).collect();
        slots.sort_unstable();
        slots.dedup();
        assert_eq!(slots.len(), SLOTS as usize);
        // The second of a pair, behind an skb of 232 bytes.
        let pairs = (0..1024u64).map(|n| SLAB + n * 512);
        let mut slots: Vec<u32> = pairs.flat_map(|first| [place(first).0, place(first + 232).0]).collect();
        slots.sort_unstable();
        slots.dedup();
        assert_eq!(slots.len(), 2048);
    }

    /// They would be those of the next skb with its address, whose own hook was skipped.
    #[test]
    fn stamps_of_no_use_are_dropped() {
        for is_dropped in [false, true] {
            Machine::reset();
            let [drv, ip] = [SkbStage::Arrived, SkbStage::IpIn].map(|stage| {
                stamp(SLAB, stage);
                Machine::with(|machine| machine.clock)
            });
            if is_dropped {
                drop_in(SLAB);
            }
            let left = of(SLAB).take_in(now());
            assert_eq!(left, if is_dropped { (0, 0) } else { (drv, ip) });
        }
    }

    #[test]
    fn the_second_place_is_another() {
        for n in 0..100_000u64 {
            let (slot, tag) = place(SLAB + n * 232);
            assert_ne!(other(slot, tag), slot);
        }
        // Skbs that share the first place.
        let mut seconds: Vec<u32> = (0..16u64)
            .map(|n| {
                let (slot, tag) = place(SLAB + n * u64::from(SLOTS) * 256);
                assert_eq!(slot, place(SLAB).0);
                other(slot, tag)
            })
            .collect();
        seconds.sort_unstable();
        seconds.dedup();
        assert_eq!(seconds.len(), 16);
    }

    #[test]
    fn an_skb_in_anothers_second_place_is_not_that_one() {
        let (slot, tag) = place(SLAB);
        let neighbour = (0..1 << 15).map(|n| SLAB ^ n << 8).find(|&skb| place(skb).0 == other(slot, tag));
        let (first, same) = place(neighbour.expect("one in the same 8 MiB"));
        assert_eq!((first, same), (other(slot, tag), tag));
        assert!(!is_of(word(12_345, same), tag | IN_SECOND));
        assert!(!is_of(word(12_345, tag | IN_SECOND), same));
    }

    /// Where an skb's first place has another one's stamp, its own goes to the second, until the other's is old.
    #[test]
    fn of_two_with_one_place_each_has_its_own_stamps() {
        let stage = SkbStage::IpOut;
        let (one, two) = (SLAB, SLAB + u64::from(SLOTS) * 256);
        assert_eq!(place(one).0, place(two).0);
        let seen = |now| [one, two].map(|skb| of(skb).seen(stage, now));
        for ends in [0, 1] {
            Machine::reset();
            of(one).stamp(stage, START);
            of(two).stamp(stage, START + OLD / 2);
            let now = START + OLD;
            assert_eq!(seen(now), [START, START + OLD / 2]);
            if ends == 0 {
                assert_eq!(of(two).take(stage, now), START + OLD / 2);
            } else {
                of(two).drop(stage);
            }
            assert_eq!(seen(now), [START, 0]);
            of(two).stamp(stage, now);
            assert_eq!(seen(now + 1), [0, now], "the first one's is old");
        }
        // Its own later one is in the first place, which is free again.
        Machine::reset();
        of(one).stamp(stage, START);
        of(two).stamp(stage, START + 1);
        assert_eq!(of(one).take(stage, START + 2), START);
        of(two).stamp(stage, START + 3);
        assert_eq!(of(two).take(stage, START + 4), START + 3);
        assert_eq!(seen(START + 5), [0, 0], "nor is the earlier one found");
    }

    /// Some time after the machine's start, ns.
    const START: u64 = 1 << 40;
    /// The buffers of [`SLAB`]'s skbs.
    const BUFFERS: u64 = 0xffff_8881_0434_0000;

    #[test]
    fn the_later_of_two_pairs_is_the_packets_own() {
        // IP has stamped the buffer of a shared skb, and the clone has the address of a ping that never came to a transport.
        let (skb, clone, buffer) = (SLAB + 256, SLAB + 512, BUFFERS + 1024);
        of(clone).set_in((START, START + 10));
        of(skb).set_in((START + 100, 0));
        let drv = of(skb).take(SkbStage::Arrived, START + 110);
        of_buffer(buffer).set_in((drv, START + 110));
        let now = START + 120;
        let own = later(of(clone).take_in(now), of_buffer(buffer).take_in(now));
        assert_eq!(own, (START + 100, START + 110));
        assert_eq!(of(skb).take_in(now), (0, 0));
        // Later it is the buffer that has stamps of an earlier one.
        of_buffer(buffer).set_in((START + 200, START + 210));
        of(clone).set_in((START + 300, START + 310));
        let now = START + 320;
        let own = later(of(clone).take_in(now), of_buffer(buffer).take_in(now));
        assert_eq!(own, (START + 300, START + 310));
    }

    #[test]
    fn what_an_address_is_given_is_all_it_has() {
        let skb = SLAB + 1024;
        for stamps in [(START + 5, START + 6), (START + 7, 0), (0, 0)] {
            of(skb).set_in((START, START + 1));
            of(skb).stamp(SkbStage::IpOut, START + 2);
            of(skb).set_in(stamps);
            let now = START + 50;
            assert_eq!(of(skb).seen(SkbStage::IpOut, now), START + 2);
            assert_eq!(of(skb).seen(SkbStage::Arrived, now), stamps.0);
            assert_eq!(of(skb).take_in(now), stamps);
            assert_eq!(of(skb).take_in(now), (0, 0));
        }
    }

    #[test]
    fn a_stamp_of_ip_from_before_the_skb_came_is_none() {
        let skb = SLAB + 2048;
        of(skb).set_in((START, START + 1));
        // IP's hook is skipped for the packet that comes with this skb next.
        of(skb).stamp(SkbStage::Arrived, START + 100);
        assert_eq!(of(skb).take_in(START + 110), (START + 100, 0));
    }

    #[test]
    fn a_stamp_of_the_driver_from_before_ip_had_the_skb_last_is_none() {
        let skb = SLAB + 4096;
        of(skb).set_in((START, START + 1));
        // The driver's hook is skipped for the packet that comes with this skb next.
        of(skb).stamp(SkbStage::IpIn, START + 100);
        assert_eq!(of(skb).take_in(START + 110), (0, START + 100));
        // It isn't, and no hook was missed but that of the transport.
        of(skb).set_in((START, START + 1));
        of(skb).stamp(SkbStage::Arrived, START + 100);
        of(skb).stamp(SkbStage::IpIn, START + 101);
        assert_eq!(of(skb).take_in(START + 110), (START + 100, START + 101));
    }

    #[test]
    fn a_stamp_is_old_in_time() {
        let word = word(1 << 39, 7);
        assert!(age(word, (1 << 39) - 1000) < OLD && age(word, (1 << 39) + OLD / 2) < OLD);
        assert!(age(word, (1 << 39) + 2 * OLD) >= OLD);
    }

    /// A dropped skb has no stamps any more, however far it had come.
    #[test]
    fn an_skb_that_is_dropped_has_no_stamps() {
        Machine::reset();
        assert_eq!(forget(SLAB, 0), 0);
        for stage in [SkbStage::Arrived, SkbStage::IpIn] {
            stamp(SLAB, stage);
            assert_eq!((forget(SLAB, 0), forget(SLAB, 0)), (1, 0));
        }
        // On its way out it had not come to its transport.
        stamp(SLAB, SkbStage::IpOut);
        assert_eq!(forget(SLAB, 0), 0);
        assert_eq!(take_out(SLAB, 1, now()), 0);
    }
}
