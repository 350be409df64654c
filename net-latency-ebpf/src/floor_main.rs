//! Programs that do nothing: what it costs at least to hook something (`cargo xtask bench`). No part of the tool.

#![no_std]
#![no_main]
#![expect(
    missing_docs,
    unreachable_pub,
    reason = "the program macros generate public functions of their own"
)]

use aya_ebpf::{
    macros::{btf_tracepoint, fentry, kprobe, raw_tracepoint},
    programs::{BtfTracePointContext, FEntryContext, ProbeContext, RawTracePointContext},
};

#[fentry]
pub fn empty_fentry(_: FEntryContext) -> u32 {
    0
}

#[kprobe]
pub fn empty_kprobe(_: ProbeContext) -> u32 {
    0
}

#[btf_tracepoint]
pub fn empty_btf(_: BtfTracePointContext) -> i32 {
    0
}

#[raw_tracepoint]
pub fn empty_raw(_: RawTracePointContext) -> i32 {
    0
}

#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    // No program panics: the verifier refuses one that could come here, this being an endless loop.
    loop {}
}

/// The tracing helpers are for programs under a GPL-compatible licence.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
