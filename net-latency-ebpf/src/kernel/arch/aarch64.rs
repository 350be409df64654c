//! arm64.
//!
//! BPF's fetching atomic instructions keep all before them from all behind them: the kernel compiles them to LDADDAL and SWPAL, or to a
//! loop with STLXR and a barrier (`emit_lse_atomic`, `emit_ll_sc_atomic`), as it does its own `atomic_fetch_add` and `xchg`. It has them on
//! arm64 since Linux 5.18. Others keep nothing apart. An address that is computed from a word is used after that word was read.

#[cfg(all(target_arch = "bpf", any(feature = "calls", feature = "journey")))]
use aya_ebpf::bindings::pt_regs;
#[cfg(all(target_arch = "bpf", feature = "calls"))]
use aya_ebpf::helpers::generated::bpf_get_func_ip;

use net_latency_common::PageBases;

#[cfg(feature = "calls")]
use crate::kernel::memory::probe;

/// Whether memory may be read and written in another order than the code has.
pub const REORDERS: bool = true;
/// Of `thread_info.flags`: a process of 32 bits (`TIF_32BIT`).
#[cfg(feature = "fine")]
pub(crate) const OF_32_BITS: u32 = 1 << 22;
/// Whether a task has the preemption count (`thread_info.preempt_count`, arch/arm64/include/asm/thread_info.h), in place of a CPU.
#[cfg(any(feature = "calls", feature = "journey"))]
pub(crate) const COUNT_IS_IN_TASK: bool = true;

/// A function is entered.
#[cfg(feature = "calls")]
#[derive(Clone, Copy)]
pub struct Entry {
    /// The stack pointer. A function that calls another has lowered it, to keep its own return address there first.
    pub(crate) slot: u64,
    /// Its kprobe's address.
    pub(crate) function: u64,
    /// Its return address.
    link: u64,
    /// Of its caller: where that keeps its own caller's `frame`, and behind that its return address.
    frame: u64,
}

/// Frames that are gone along at most.
#[cfg(feature = "calls")]
const FRAMES: u32 = 24;

#[cfg(feature = "calls")]
impl Entry {
    /// # Safety
    /// The context of a kprobe's program.
    #[cfg(target_arch = "bpf")]
    #[inline(always)]
    #[must_use]
    pub unsafe fn new(registers: *const pt_regs) -> Self {
        // SAFETY: the caller's.
        unsafe {
            Self {
                slot: (*registers).sp,
                function: (*registers).pc,
                link: (*registers).regs[30],
                frame: (*registers).regs[29],
            }
        }
    }

    /// Tells of calls under way in this context, the innermost first, by the stack pointers with which they were entered, whether the
    /// return addresses that they keep are still those by which their returns will be seen: `is_known` tells an address. Where that
    /// can't be told, it is so.
    #[inline(always)]
    pub fn awaits(self, is_known: impl Fn(u64) -> bool) -> impl FnMut(u64) -> bool {
        move |slot| {
            // What has ended by jumping here returns where this call does.
            let address = if slot == self.slot { self.link } else { kept_return_address(slot, self.frame) };
            address == UNKNOWN || is_known(address)
        }
    }
}

/// In place of an address that can't be found.
#[cfg(feature = "calls")]
const UNKNOWN: u64 = u64::MAX;

/// The return address that a call under way keeps which was entered with that stack pointer, [`UNKNOWN`] if it can't be found, and 0 if
/// its frame is gone. `frame` is the innermost one.
///
/// A global function, which the verifier checks once by itself instead of for each call under way.
#[cfg(feature = "calls")]
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn kept_return_address(slot: u64, frame: u64) -> u64 {
    let mut frame = frame;
    let mut turn = 0;
    while turn < FRAMES {
        if frame >= slot {
            return 0;
        }
        let next = read_word(frame);
        if next >= slot {
            return without_signature(read_word(frame.wrapping_add(8)));
        }
        if next <= frame {
            // The end, or another stack.
            return UNKNOWN;
        }
        frame = next;
        turn += 1;
    }
    UNKNOWN
}

#[cfg(feature = "calls")]
#[inline(always)]
fn read_word(address: u64) -> u64 {
    // SAFETY: any bits are a number.
    unsafe { probe(address as *const u8) }
}

/// A kernel address without the bits in which it is signed (CONFIG_ARM64_PTR_AUTH_KERNEL): addresses have 48 bits, or 52, whose upper
/// ones are those of all of the kernel's code.
#[cfg(feature = "calls")]
#[inline(always)]
fn without_signature(address: u64) -> u64 {
    address | u64::MAX << 48
}

#[cfg(all(target_arch = "bpf", feature = "calls"))]
impl super::Exit {
    /// Since Linux 5.15 the kernel tells the function. Debian's 6.1 does not show where it has that itself, for it is built without
    /// CONFIG_KALLSYMS_ALL.
    ///
    /// # Safety
    /// The context of a kretprobe's program.
    #[inline(always)]
    #[must_use]
    pub unsafe fn new(registers: *const pt_regs) -> Self {
        // SAFETY: the caller's, and the helper takes it as it is.
        unsafe {
            Self { slot: (*registers).sp, function: Some(bpf_get_func_ip(registers.cast_mut().cast())) }
        }
    }
}

/// Where the function begins, or a few bytes behind that.
///
/// # Safety
/// The context of a kprobe's program.
#[cfg(all(target_arch = "bpf", feature = "journey"))]
#[inline(always)]
#[must_use]
pub unsafe fn address(registers: *const pt_regs) -> u64 {
    // SAFETY: the caller's.
    unsafe { (*registers).pc }
}

/// [`write_in_order`] of the word at an offset.
#[cfg(target_arch = "bpf")]
macro_rules! write_last {
    ($base:expr, $at:expr, $value:expr) => {
        core::arch::asm!(
            "{1} = xchg_64({0} + {at}, {1})",
            in(reg) $base,
            inout(reg) $value => _,
            at = const $at,
            options(nostack)
        )
    };
}
#[cfg(all(target_arch = "bpf", feature = "packets"))]
pub(crate) use write_last;

/// One of the bases, as the user side has told it.
#[inline(always)]
pub(crate) fn page_base(_bases: &PageBases, base: u64) -> u64 {
    base
}

/// Bytes of a page.
#[inline(always)]
pub(crate) fn page_size(bases: &PageBases) -> u64 {
    bases.are_values
}

/// Returns the pointer; reads by it come after the read of the word that `loaded` gives.
#[cfg(target_arch = "bpf")]
#[inline(always)]
pub(crate) fn after<T>(pointer: *mut T, loaded: impl FnOnce() -> u64) -> *mut T {
    let mut address = pointer;
    // SAFETY: adds 0, which the verifier knows and no processor does.
    unsafe {
        core::arch::asm!(
            "{nothing} &= 0",
            "{address} += {nothing}",
            nothing = inout(reg) loaded() => _,
            address = inout(reg) address,
            options(nostack)
        );
    }
    address
}

/// All that was read and written before is so before what follows is. The word may be any in a map's entry, and stays as it is.
#[cfg(target_arch = "bpf")]
#[inline(always)]
pub(crate) fn in_order(word: *mut u64) {
    add_in_order(word, 0);
}

/// [`in_order`] between reads alone.
#[cfg(target_arch = "bpf")]
#[inline(always)]
pub(crate) fn read_before(word: *mut u64) {
    in_order(word);
}

/// Adds to a word in a map's entry after all that was read and written before, and before all that follows.
#[cfg(target_arch = "bpf")]
#[inline(always)]
pub(crate) fn add_in_order(word: *mut u64, more: u64) {
    // SAFETY: aligned, and mapped while a program runs.
    unsafe {
        core::arch::asm!(
            "{more} = atomic_fetch_add((u64 *)({word} + 0), {more})",
            word = in(reg) word,
            more = inout(reg) more => _,
            options(nostack)
        );
    }
}

/// Writes a word in a map's entry after all that was read and written before, and before all that follows.
#[cfg(target_arch = "bpf")]
#[inline(always)]
pub(crate) fn write_in_order(word: *mut u64, value: u64) {
    // SAFETY: aligned, mapped while a program runs, and writable.
    unsafe { write_last!(word, 0, value) };
}

#[cfg(all(test, feature = "calls"))]
mod tests {
    use super::*;
    use crate::bpf::host::{Machine, memory};

    const TRAMPOLINE: u64 = 0xffff_8000_8001_2340;
    /// Signed, as in `paciasp`.
    const SIGNED: u64 = 0x5a5a_8000_8001_2340;
    const OTHER: u64 = 0xffff_8000_8055_5550;

    /// A stack with frames at these offsets, each with where the next is and its return address; and what a function finds that is
    /// entered with that stack pointer, and whose caller has the first frame.
    fn entered(slot: u64, frames: &[(u64, u64)]) -> (u64, Entry) {
        Machine::reset();
        let stack = memory::take(memory::slab(4096));
        for (place, (at, address)) in frames.iter().enumerate() {
            let next = frames.get(place + 1).map_or(0, |(next, _)| stack + next);
            memory::write(stack + at, [next, *address]);
        }
        (stack, Entry { slot: stack + slot, function: 0, link: OTHER, frame: stack + frames[0].0 })
    }

    #[test]
    fn a_call_returns_as_long_as_its_frame_says_so() {
        // A call that was entered at 160 has its frame at 128, one that was entered at 256 at 224, and what called that at 300.
        let (stack, entry) = entered(64, &[(64, OTHER), (128, SIGNED), (224, TRAMPOLINE), (304, OTHER)]);
        let mut awaits = entry.awaits(|address| address == TRAMPOLINE);
        assert!(awaits(stack + 160));
        assert!(awaits(stack + 256));
    }

    #[test]
    fn a_call_whose_frame_is_gone_has_ended_unseen() {
        // The function entered at 160 returned to one whose frame is at 176.
        let (stack, entry) = entered(144, &[(176, OTHER), (304, OTHER)]);
        assert!(!entry.awaits(|address| address == TRAMPOLINE)(stack + 160));
        // One that returns elsewhere, in the same place, with and without a frame of another call before it.
        for frames in [&[(128, OTHER), (304, OTHER)][..], &[(64, OTHER), (128, OTHER), (304, OTHER)]] {
            let (stack, entry) = entered(64, frames);
            assert!(!entry.awaits(|address| address == TRAMPOLINE)(stack + 160));
        }
    }

    #[test]
    fn what_jumps_to_a_function_returns_with_it() {
        let (stack, entry) = entered(64, &[(64, OTHER)]);
        assert!(!entry.awaits(|address| address == TRAMPOLINE)(stack + 64));
        let entry = Entry { link: TRAMPOLINE, ..entry };
        assert!(entry.awaits(|address| address == TRAMPOLINE)(stack + 64));
    }

    #[test]
    fn what_cannot_be_told_is_awaited() {
        let (stack, entry) = entered(64, &[(64, OTHER)]);
        assert!(entry.awaits(|_| false)(stack + 160), "the end of the frames");
    }
}
