//! No-op programs: what it costs at least to hook something (`cargo xtask bench`). No part of the tool.

#![no_std]
#![no_main]
#![expect(
    missing_docs,
    unreachable_pub,
    reason = "the program macros generate public functions of their own"
)]

mod object;

use aya_ebpf::{
    macros::{btf_tracepoint, fentry, kprobe, raw_tracepoint},
    programs::{BtfTracePointContext, FEntryContext, ProbeContext, RawTracePointContext},
};

#[fentry]
pub fn noop_fentry(_: FEntryContext) -> u32 {
    0
}

#[kprobe]
pub fn noop_kprobe(_: ProbeContext) -> u32 {
    0
}

#[btf_tracepoint]
pub fn noop_btf(_: BtfTracePointContext) -> i32 {
    0
}

#[raw_tracepoint]
pub fn noop_raw(_: RawTracePointContext) -> i32 {
    0
}
