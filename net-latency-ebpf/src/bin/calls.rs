//! The programs of `net-latency calls`: each is attached to as many functions as are wanted.

#![no_std]
#![no_main]
#![expect(
    missing_docs,
    unreachable_pub,
    reason = "the program macros generate public functions of their own"
)]

mod object;

use aya_ebpf::{
    macros::{kprobe, kretprobe, raw_tracepoint},
    programs::{ProbeContext, RawTracePointContext, RetProbeContext},
};
use net_latency_ebpf::{
    calls::{self, CallResult},
    flow::processes,
    kernel::{
        arch::{Entry, Exit},
        memory::Probed,
        task::Thread,
    },
};

#[inline(always)]
fn end(result: CallResult) -> u32 {
    if let Err(counter) = result {
        calls::count(counter);
    }
    0
}

#[inline(always)]
fn entry(context: &ProbeContext) -> Entry {
    // SAFETY: the context of a kprobe's program.
    unsafe { Entry::new(context.regs) }
}

#[inline(always)]
fn exit(context: &RetProbeContext) -> Exit {
    // SAFETY: that of a kretprobe's.
    unsafe { Exit::new(context.regs) }
}

/// At the beginning of functions.
#[kprobe]
pub fn call_entry(context: ProbeContext) -> u32 {
    end(calls::entered(|| entry(&context), false))
}

/// Where they return to.
#[kretprobe]
pub fn call_return(context: RetProbeContext) -> u32 {
    end(calls::returned(|| exit(&context), false))
}

/// [`call_entry`] for calls of any task, to measure its cost.
#[kprobe]
pub fn any_entry(context: ProbeContext) -> u32 {
    end(calls::entered(|| entry(&context), true))
}

/// See above.
#[kretprobe]
pub fn any_return(context: RetProbeContext) -> u32 {
    end(calls::returned(|| exit(&context), true))
}

/// `sched_process_exit(task)`.
#[raw_tracepoint]
pub fn call_exited(context: RawTracePointContext) -> i32 {
    processes::exited(Thread::<Probed>::new(context.arg(0)));
    0
}
