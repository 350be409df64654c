//! The programs of `net-latency calls`: each is attached to as many functions as are asked for.

#![no_std]
#![no_main]
#![expect(
    missing_docs,
    unreachable_pub,
    reason = "the program macros generate public functions of their own"
)]

mod object;

use aya_ebpf::{
    macros::{kprobe, kretprobe, map},
    maps::{Array, LruHashMap, PerCpuArray, RingBuf},
    programs::{ProbeContext, RetProbeContext},
};
use net_latency_common::{CallCounters, Context, Stack};
use net_latency_ebpf::calls::{self, Maps, Outcome};

#[map]
static CALLS: RingBuf = RingBuf::with_byte_size(4 << 20, 0);
#[map]
static STACKS: LruHashMap<Context, Stack> = LruHashMap::with_max_entries(4096, 0);
#[map]
static EMPTY: Array<Stack> = Array::with_max_entries(1, 0);
#[map]
static CALL_COUNTERS: PerCpuArray<CallCounters> = PerCpuArray::with_max_entries(1, 0);

const MAPS: Maps = Maps { calls: &CALLS, stacks: &STACKS, empty: &EMPTY, counters: &CALL_COUNTERS };

#[inline(always)]
fn end(outcome: Outcome) -> u32 {
    if let Err(counter) = outcome {
        MAPS.count(counter);
    }
    0
}

/// At the beginning of functions.
#[kprobe]
pub fn call_entry(context: ProbeContext) -> u32 {
    end(calls::entered(MAPS, &context, false))
}

/// Where they return to.
#[kretprobe]
pub fn call_return(context: RetProbeContext) -> u32 {
    end(calls::returned(MAPS, &context, false))
}

/// The same whoever calls, to measure what it costs.
#[kprobe]
pub fn any_entry(context: ProbeContext) -> u32 {
    end(calls::entered(MAPS, &context, true))
}

/// See above.
#[kretprobe]
pub fn any_return(context: RetProbeContext) -> u32 {
    end(calls::returned(MAPS, &context, true))
}
