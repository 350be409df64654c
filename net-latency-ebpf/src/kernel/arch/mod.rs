//! What differs from one architecture to another, a module for each, chosen here and nowhere else: registers, what tells that a call
//! has yet to return, where the preemption count is, and order in memory.
//!
//! x86-64 swaps neither two reads nor two writes, so that what keeps them in order is no instruction there. arm64 swaps all that
//! depends on nothing before it.

#[cfg(any(bpf_target_arch = "aarch64", test))]
#[cfg_attr(
    not(bpf_target_arch = "aarch64"),
    expect(dead_code, unreachable_pub, reason = "tests look at the frames alone")
)]
mod aarch64;
#[cfg(not(bpf_target_arch = "aarch64"))]
mod x86_64;

#[cfg(bpf_target_arch = "aarch64")]
pub use aarch64::*;
#[cfg(not(bpf_target_arch = "aarch64"))]
pub use x86_64::*;

/// A function has returned.
#[cfg(feature = "calls")]
#[derive(Clone, Copy)]
pub struct Exit {
    /// As in its `Entry`.
    pub(crate) slot: u64,
    /// Its kprobe's address, if the kernel tells it.
    pub(crate) function: Option<u64>,
}

/// Reads a word in a map's entry, once.
#[cfg(target_arch = "bpf")]
#[inline(always)]
pub(crate) fn load(word: *const u64) -> u64 {
    // SAFETY: aligned, and mapped while a program runs. Volatile: neither read again nor moved past another such read.
    unsafe { word.read_volatile() }
}

#[cfg(not(target_arch = "bpf"))]
pub(crate) use crate::bpf::host::order::{add_in_order, after, in_order, load, read_before, write_in_order};
