//! Following calls of functions from entry to return, for `net-latency calls`.
//!
//! Each context has a stack of the calls under way in it. A context is a task and a level: what interrupts (softirq,
//! hardirq, NMI) is over before what it interrupted goes on, and on PREEMPT_RT softirqs run in tasks, so that both
//! together are one thread of control everywhere, which an id of a thread is not: idle CPUs share theirs.
//!
//! A call is known by the place of its return address on the kernel's stack, and by its function. Two calls under way
//! can't have the same (but for tail calls, which return in the order of a stack), so that a return never meets another
//! call's entry. Returns are missed where the kernel has no more room for them (`rp->nmissed`), or where there is none
//! (`do_exit`): such a call has been left for good when its context enters a function at or above that place, or when the
//! place no longer holds an address by which the kernel sees returns. Then it is dropped and counted.

use net_latency_common::{
    CallContext, CallCounter, CallCounters, CallRecord, CallSettings, CallStack, LEVEL_HARDIRQ, LEVEL_NMI,
    LEVEL_SOFTIRQ, LEVEL_TASK, MAX_DEPTH,
};

use crate::{
    bpf::entry,
    bpf::{
        AVAIL_DATA, Array, FORCE_WAKEUP, LruHashMap, NO_WAKEUP, PerCpuArray, RingBuf, cpu, current_task, map,
        now,
    },
    flow::{addresses::bytes, filter, settings::setting},
    kernel::{
        arch::{Entry, Exit},
        context::{self, CpuContext},
        globals::constant,
        memory::probe,
        task::Task,
    },
};

/// How a program ended: nothing to say, or what to count.
pub type CallResult = Result<(), CallCounter>;

/// What the user side knows of this kernel.
#[unsafe(no_mangle)]
pub static CALL_SETTINGS: CallSettings = CallSettings {
    trampoline: 0,
    graph_return: 0,
    per_cpu_offset: 0,
    preempt_count: 0,
    current_kprobe: 0,
    kprobe_addr: 0,
    softirq_disable_cnt: 0,
};

/// Finished calls, until the user side takes them. When full, counted per call.
#[map]
static CALLS: RingBuf = RingBuf::with_byte_size(4 << 20, 0);

/// Calls under way, by context.
#[map]
static STACKS: LruHashMap<CallContext, CallStack> = LruHashMap::with_max_entries(4096, 0);

/// A stack without calls: it has no room on the kernel's.
#[map]
static EMPTY: Array<CallStack> = Array::with_max_entries(1, 0);

/// Calls that were not shown, and why.
#[map]
static CALL_COUNTERS: PerCpuArray<CallCounters> = PerCpuArray::with_max_entries(1, 0);

macro_rules! known {
    ($field:ident) => {
        constant(&CALL_SETTINGS.$field)
    };
}

/// Adds one to this CPU's count.
#[inline(always)]
pub fn count(counter: CallCounter) {
    count_more(counter, 1);
}

#[inline(always)]
fn count_more(counter: CallCounter, more: u64) {
    if let Some(counters) = CALL_COUNTERS.get_ptr_mut(0) {
        // SAFETY: index 0 of a per-CPU array is valid.
        entry::add(unsafe { &raw mut (*counters).values[counter as usize] }, more);
    }
}

/// Counts calls whose returns were not seen.
#[inline(always)]
fn count_dropped(calls: u64) {
    if calls > 0 {
        count_more(CallCounter::NoReturn, calls);
    }
}

/// A function is entered. `all`: by any task, wanted or not.
#[inline(always)]
pub fn entered(entry: impl FnOnce() -> Entry, all: bool) -> CallResult {
    let Some(context) = context(all) else { return Ok(()) };
    let entry = entry();
    count(CallCounter::Entered);
    let stack = match STACKS.get_ptr_mut(&context) {
        Some(stack) => stack,
        None => {
            let empty = EMPTY.get_ptr(0).ok_or(CallCounter::NoRoom)?;
            // SAFETY: index 0 of an array is valid, and nothing writes to it.
            STACKS.insert(&context, unsafe { &*empty }, 0).map_err(|_| CallCounter::NoRoom)?;
            STACKS.get_ptr_mut(&context).ok_or(CallCounter::NoRoom)?
        }
    };
    // SAFETY: the entry stays mapped while the program runs, and only this context has it, which is in one program at a time:
    // what interrupts it is another context.
    let stack = unsafe { &mut *stack };
    let ids = Task::current_ids();
    let mut dropped = 0;
    if stack.ids != ids {
        stack.ids = ids;
        // The other task's.
        dropped = stack.depth;
        stack.depth = 0;
    }
    // `function_graph` keeps the address that it replaces, so that the return is seen all the same.
    let is_known = |address: u64| {
        address == known!(trampoline) || known!(graph_return) != 0 && address == known!(graph_return)
    };
    dropped += stack.prune(entry.slot, entry.awaits(is_known));
    count_dropped(dropped);
    let frame = stack.push().ok_or(CallCounter::TooDeep)?;
    frame.slot = entry.slot;
    frame.function = entry.function;
    frame.children_ns = 0;
    frame.entry_cpu = u64::from(cpu());
    // Last, so that our own work is not part of the time.
    frame.entry_ns = now();
    Ok(())
}

/// A function has returned.
#[inline(always)]
pub fn returned(exit: impl FnOnce() -> Exit, all: bool) -> CallResult {
    let exit_ns = now();
    let Some(context) = context(all) else { return Ok(()) };
    let Exit { slot, function } = exit();
    let function = function.unwrap_or_else(probed_function);
    let stack = STACKS.get_ptr_mut(&context).ok_or(CallCounter::NoEntry)?;
    // SAFETY: as in `entered`.
    let stack = unsafe { &mut *stack };
    let ids = Task::current_ids();
    if stack.ids != ids {
        return Err(CallCounter::NoEntry);
    }
    let Some(left) = stack.pop(slot, function, exit_ns) else {
        // Where there was no room for it, its entry has been counted.
        return if stack.depth >= MAX_DEPTH as u64 { Ok(()) } else { Err(CallCounter::NoEntry) };
    };
    count_dropped(left.dropped);
    let frame = stack.frame(left.depth);
    let mut entry = CALLS.reserve::<CallRecord>(0).ok_or(CallCounter::RingFull)?;
    entry.write(CallRecord {
        entry_ns: frame.entry_ns,
        exit_ns,
        children_ns: frame.children_ns,
        function: frame.function,
        task: context.task,
        ids,
        comm: bytes(Task::current_name()),
        entry_cpu: frame.entry_cpu as u32,
        cpu: cpu(),
        depth: left.depth as u32,
        level: context.level as u32,
    });
    // As for packets: the reader comes by a timer unless the buffer fills faster.
    let waiting = CALLS.query(AVAIL_DATA);
    let flags = if waiting < u64::from(setting!(wakeup_bytes)) { NO_WAKEUP } else { FORCE_WAKEUP };
    entry.submit(flags);
    Ok(())
}

/// What runs here, if its calls are wanted. Those of an interrupt belong to no task.
#[inline(always)]
fn context(all: bool) -> Option<CallContext> {
    let is_by_task = !all && filter::is_by_task();
    if is_by_task && !filter::current() {
        return None;
    }
    let task = current_task() as u64;
    let level = level();
    if is_by_task && level != LEVEL_TASK {
        return None;
    }
    Some(CallContext { task, level: u64::from(level) })
}

#[inline(always)]
fn level() -> u8 {
    let count = context::preempt_count(known!(per_cpu_offset), known!(preempt_count));
    match context::decode(count, || context::softirq_disable_cnt(known!(softirq_disable_cnt))) {
        CpuContext::Task => LEVEL_TASK,
        CpuContext::Softirq => LEVEL_SOFTIRQ,
        CpuContext::Hardirq => LEVEL_HARDIRQ,
        CpuContext::Nmi => LEVEL_NMI,
    }
}

/// Address of the function whose kprobe's or kretprobe's handler runs on this CPU.
#[inline(always)]
fn probed_function() -> u64 {
    let kprobe: u64 = context::of_this_cpu(known!(per_cpu_offset), known!(current_kprobe));
    // SAFETY: any bits are a number.
    unsafe { probe(kprobe.wrapping_add(u64::from(known!(kprobe_addr))) as *const u8) }
}
