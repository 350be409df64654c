//! What a program asks the CPU that it runs on.

use aya_ebpf::helpers::{bpf_get_smp_processor_id, bpf_ktime_get_ns};

/// Now, in ns of `CLOCK_MONOTONIC`.
#[inline(always)]
pub(crate) fn now() -> u64 {
    // SAFETY: the helper takes nothing and has no side effect.
    unsafe { bpf_ktime_get_ns() }
}

/// The CPU this runs on.
#[inline(always)]
pub(crate) fn cpu() -> u32 {
    // SAFETY: the helper takes nothing and has no side effect.
    unsafe { bpf_get_smp_processor_id() }
}
