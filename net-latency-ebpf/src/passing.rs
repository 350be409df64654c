//! When packets passed the stages at which only their skb is known, by its address.
//!
//! A plain array, whose lookup is a handful of instructions where a hash table's are a hundred, and a stamp is one word, so
//! that it is written at once: the time, and which skb it is of. Another skb's stamp in the same place is recognised and is
//! as good as none. Two skbs share a place if they are a multiple of [`SLOTS`] × 256 bytes apart, 8 MiB, which takes
//! thousands on their way at the same time to happen now and then.
//!
//! Considered: a hash table (what this was), two words with address and time (no atomic way to write both on Linux 5.10), one
//! slot per CPU (packets change CPUs in the backlog, and softirqs interrupt tasks that send).

use core::ptr;

use crate::{maps::PASSINGS, now};

/// Slots of the array, as a power of two.
const SLOT_BITS: u32 = 15;
/// Slots of the array.
pub(crate) const SLOTS: u32 = 1 << SLOT_BITS;

/// Bits of an address that are always 0: an skb is aligned to 8 bytes, the second of a pair (`struct sk_buff_fclones`) to no more.
const ALIGNMENT_BITS: u32 = 3;
/// Bits above them that are the same for skbs in a row, which are 256 bytes apart or a multiple of it.
const STRIDE_BITS: u32 = 5;
/// Bits above the slot's that are compared. All in all an address is told from any other within 8 TiB.
const HIGH_BITS: u32 = 20;
/// What of a word says which skb it is of.
const TAG_BITS: u32 = STRIDE_BITS + HIGH_BITS;
/// The rest is the time's lowest bits: 9 minutes, in which a packet has got through or its skb a new life.
const TIME_BITS: u32 = u64::BITS - TAG_BITS;
/// The clock may go back by so much from one CPU to the next, ns (`ktime_get_mono_fast_ns`).
const JITTER: u64 = 1 << 20;

/// The stamps of the skbs that share a place; 0 for none.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Slot {
    words: [u64; 4],
    /// The sequence number that TCP's header had when TCP let the skb go, in place of a time.
    number: u64,
}

/// A stage that an skb passes.
#[derive(Clone, Copy)]
pub(crate) enum Stage {
    /// It enters the stack from its driver.
    Arrived = 0,
    /// IP receives it.
    IpIn = 1,
    /// TCP or UDP lets it go.
    TransportOut = 2,
    /// IP output.
    IpOut = 3,
}

/// The place of an skb's stamps.
#[derive(Clone, Copy)]
pub(crate) struct Passing {
    slot: *mut Slot,
    tag: u64,
}

/// The place for the skb at this address.
#[inline(always)]
pub(crate) fn of(skb: u64) -> Option<Passing> {
    let (slot, tag) = place(number(skb));
    Some(Passing { slot: PASSINGS.get_ptr_mut(slot)?, tag })
}

/// An address, which the verifier may know as a pointer, as a number to calculate with.
#[inline(always)]
fn number(address: u64) -> u64 {
    // The verifier lets those who may see addresses negate a pointer, and forgets that it was one (`check_alu_op`); all other
    // arithmetic with pointers to kernel structs it prohibits.
    #[cfg(target_arch = "bpf")]
    {
        let mut negated = address;
        // SAFETY: changes the register only.
        unsafe { core::arch::asm!("{0} = -{0}", inout(reg) negated, options(nomem, nostack, pure)) };
        negated.wrapping_neg()
    }
    #[cfg(not(target_arch = "bpf"))]
    address
}

/// Slot and tag of an address, which together tell it.
#[inline(always)]
fn place(skb: u64) -> (u32, u64) {
    let units = skb >> ALIGNMENT_BITS;
    let low = units & ((1 << STRIDE_BITS) - 1);
    let high = (units >> (STRIDE_BITS + SLOT_BITS)) & ((1 << HIGH_BITS) - 1);
    // So that the second of a pair is not in the place of another pair's first.
    let slot = (units >> STRIDE_BITS) ^ (low << (SLOT_BITS - STRIDE_BITS));
    (slot as u32 & (SLOTS - 1), high << STRIDE_BITS | low)
}

/// The word that says that the skb with this tag passed at that time.
#[inline(always)]
fn word(at: u64, tag: u64) -> u64 {
    at << TAG_BITS | tag
}

/// The time in a word that was written not long before `now` with this tag; 0 if it is none.
#[inline(always)]
fn time(word: u64, tag: u64, now: u64) -> u64 {
    if word & ((1 << TAG_BITS) - 1) != tag || word == 0 {
        return 0;
    }
    let ahead = now + JITTER;
    ahead - (ahead.wrapping_sub(word >> TAG_BITS) & ((1 << TIME_BITS) - 1))
}

impl Passing {
    #[inline(always)]
    fn word(self, stage: Stage) -> *mut u64 {
        // SAFETY: the slot is an array's entry, and a stage is one of its words.
        unsafe { (&raw mut (*self.slot).words).cast::<u64>().add(stage as usize) }
    }

    #[inline(always)]
    fn read(self, stage: Stage) -> u64 {
        // SAFETY: aligned, and mapped while a program runs. Volatile: read once, as a whole.
        unsafe { ptr::read_volatile(self.word(stage)) }
    }

    #[inline(always)]
    fn write(self, stage: Stage, word: u64) {
        // SAFETY: as in `read`.
        unsafe { ptr::write_volatile(self.word(stage), word) }
    }

    /// The skb passes this stage at that time.
    #[inline(always)]
    pub(crate) fn stamp(self, stage: Stage, at: u64) {
        self.write(stage, word(at, self.tag));
    }

    /// Whether the skb has a stamp of this stage.
    #[inline(always)]
    pub(crate) fn has(self, stage: Stage) -> bool {
        let word = self.read(stage);
        word != 0 && word & ((1 << TAG_BITS) - 1) == self.tag
    }

    /// Forgets the skb's stamp of this stage.
    #[inline(always)]
    pub(crate) fn clear(self, stage: Stage) {
        if self.has(stage) {
            self.write(stage, 0);
        }
    }

    /// The skb's stamp of this stage; 0 where there is none.
    #[inline(always)]
    pub(crate) fn get(self, stage: Stage, now: u64) -> u64 {
        time(self.read(stage), self.tag, now)
    }

    /// TCP lets the skb go with this sequence number in its header.
    #[inline(always)]
    pub(crate) fn set_number(self, number: u32) {
        // SAFETY: as in `read`.
        unsafe { ptr::write_volatile(&raw mut (*self.slot).number, word(u64::from(number), self.tag)) }
    }

    /// Whether that was this number.
    #[inline(always)]
    pub(crate) fn has_number(self, number: u32) -> bool {
        // SAFETY: as in `read`.
        unsafe { ptr::read_volatile(&raw const (*self.slot).number) == word(u64::from(number), self.tag) }
    }

    /// The skb's stamp of this stage, which it has no longer; 0 where there is none.
    #[inline(always)]
    pub(crate) fn take(self, stage: Stage, now: u64) -> u64 {
        let at = self.get(stage, now);
        if at != 0 {
            self.write(stage, 0);
        }
        at
    }
}

impl Passing {
    /// When an skb that was sent since `began` passed transport and IP. An older stamp is that of another life of its address,
    /// which ended before the device, and the hook was missed this time.
    #[inline(always)]
    pub(crate) fn take_out(self, began: u64, now: u64) -> [u64; 2] {
        let since = |stamp| if stamp >= began { stamp } else { 0 };
        [since(self.take(Stage::TransportOut, now)), since(self.take(Stage::IpOut, now))]
    }
}

/// The skb at this address passes a stage now.
#[inline(always)]
pub(crate) fn stamp(skb: u64, stage: Stage) {
    if let Some(passing) = of(skb) {
        passing.stamp(stage, now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the direct mapping begins without KASLR, and a cache's slab in it.
    const SLAB: u64 = 0xffff_8881_0234_0000;

    #[test]
    fn slot_and_tag_tell_addresses_within_8_tib() {
        let units: Vec<u64> = (0..40).flat_map(|bit| [1 << bit, 3 << bit, 5 << bit]).collect();
        for unit in units {
            let unit = unit & ((1 << 40) - 1);
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

    #[test]
    fn a_stamp_is_what_it_was() {
        let (_, tag) = place(SLAB);
        for at in [1, 1 << 38, (1 << 39) - 1, 1 << 39, 12_345_678_901_234_567] {
            for later in [0, 1, 1_000_000, (1 << TIME_BITS) - 2 * JITTER] {
                assert_eq!(time(word(at, tag), tag, at + later), at, "{at} {later}");
            }
            // Another CPU's clock may be behind.
            assert_eq!(time(word(at + 1000, tag), tag, at), at + 1000);
            assert_eq!(time(word(at, tag), tag ^ 1, at), 0);
        }
        assert_eq!(time(0, 0, 5_000), 0);
    }
}
