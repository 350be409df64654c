//! x86-64; and any machine on which tests run.

#[cfg(all(target_arch = "bpf", any(feature = "calls", feature = "journey")))]
use aya_ebpf::bindings::pt_regs;

use net_latency_common::PageBases;

#[cfg(target_arch = "bpf")]
use crate::bpf::entry;
use crate::kernel::memory::probe;

/// Whether memory may be read and written in another order than the code has: in tests it may.
pub const REORDERS: bool = cfg!(test);
/// Of `thread_info.status`: in a system call of 32 bits (`TS_COMPAT`).
#[cfg(feature = "fine")]
pub(crate) const OF_32_BITS: u32 = 1 << 1;
/// Whether a task has the preemption count, in place of a CPU.
#[cfg(any(feature = "calls", feature = "journey"))]
pub(crate) const COUNT_IS_IN_TASK: bool = false;

/// A function is entered.
#[cfg(feature = "calls")]
#[derive(Clone, Copy)]
pub struct Entry {
    /// Where on the kernel's stack its return address stands.
    pub(crate) slot: u64,
    /// Its kprobe's address.
    pub(crate) function: u64,
}

#[cfg(feature = "calls")]
impl Entry {
    /// # Safety
    /// The context of a kprobe's program.
    #[cfg(target_arch = "bpf")]
    #[inline(always)]
    #[must_use]
    pub unsafe fn new(registers: *const pt_regs) -> Self {
        // SAFETY: the caller's. A kprobe's program sees the address behind its breakpoint of one byte, however the kprobe came to be hit.
        unsafe { Self { slot: (*registers).rsp, function: (*registers).rip.wrapping_sub(1) } }
    }

    /// Tells of calls under way in this context, the innermost first, by where their return addresses stand, whether these are still
    /// those by which their returns will be seen: `is_known` tells an address.
    #[inline(always)]
    pub fn awaits(self, is_known: impl Fn(u64) -> bool) -> impl FnMut(u64) -> bool {
        // SAFETY: any bits are a number.
        move |slot| is_known(unsafe { probe(slot as *const u8) })
    }
}

#[cfg(all(target_arch = "bpf", feature = "calls"))]
impl super::Exit {
    /// Linux 5.10 does not tell the function (`bpf_get_func_ip`).
    ///
    /// # Safety
    /// The context of a kretprobe's program.
    #[inline(always)]
    #[must_use]
    pub unsafe fn new(registers: *const pt_regs) -> Self {
        // SAFETY: the caller's. The return has taken the address off the stack.
        unsafe { Self { slot: (*registers).rsp.wrapping_sub(8), function: None } }
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
    unsafe { (*registers).rip }
}

/// One of the bases, as the user side has told it.
#[inline(always)]
pub(crate) fn page_base(bases: &PageBases, base: u64) -> u64 {
    // SAFETY: any bits are a number.
    if bases.are_values == 1 { base } else { unsafe { probe(base as *const u8) } }
}

/// Bytes of a page.
#[inline(always)]
pub(crate) fn page_size(_bases: &PageBases) -> u64 {
    PageBases::PAGE
}

/// Returns the pointer; reads by it come after the read of the word that `loaded` gives.
#[cfg(target_arch = "bpf")]
#[inline(always)]
pub(crate) fn after<T>(pointer: *mut T, _loaded: impl FnOnce() -> u64) -> *mut T {
    pointer
}

/// All that was read and written before is so before what follows is. The word may be any in a map's entry, and stays as it is.
#[cfg(target_arch = "bpf")]
#[inline(always)]
pub(crate) fn in_order(_word: *mut u64) {}

/// [`in_order`] between reads alone: the compiler must not swap them.
#[cfg(target_arch = "bpf")]
#[inline(always)]
pub(crate) fn read_before(_word: *mut u64) {
    // SAFETY: no instruction.
    unsafe {
        core::arch::asm!("", options(nostack));
    }
}

/// Adds to a word in a map's entry, as [`entry::add`], after all that was read and written before, and before all that follows.
#[cfg(target_arch = "bpf")]
#[inline(always)]
pub(crate) fn add_in_order(word: *mut u64, more: u64) {
    entry::add(word, more);
}

/// Writes a word in a map's entry after all that was written before, and before all that follows.
#[cfg(target_arch = "bpf")]
#[inline(always)]
pub(crate) fn write_in_order(word: *mut u64, value: u64) {
    // SAFETY: aligned, mapped while a program runs, and writable. Volatile: neither left out nor moved.
    unsafe { word.write_volatile(value) };
}

/// Writes the word at an offset after all that was written before: to the compiler this may read any memory.
#[cfg(all(target_arch = "bpf", feature = "packets"))]
macro_rules! write_last {
    ($base:expr, $at:expr, $value:expr) => {
        core::arch::asm!(
            "*(u64 *)({0} + {at}) = {1}",
            in(reg) $base,
            in(reg) $value,
            at = const $at,
            options(nostack)
        )
    };
}
#[cfg(all(target_arch = "bpf", feature = "packets"))]
pub(crate) use write_last;
