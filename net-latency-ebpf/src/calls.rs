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

use aya_ebpf::{
    bindings::{BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP},
    helpers::generated,
    maps::{Array, LruHashMap, PerCpuArray, RingBuf},
    programs::{ProbeContext, RetProbeContext},
};
use net_latency_common::{
    CallCounter, CallCounters, CallRecord, CallSettings, Context, LEVEL_HARDIRQ, LEVEL_NMI, LEVEL_SOFTIRQ,
    LEVEL_TASK, MAX_DEPTH, Stack,
};

use crate::{config::setting, count, filter, memory::probe, now, task::Task};

/// How a program ended: nothing to say, or what to count.
pub type Outcome = Result<(), CallCounter>;

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

/// The maps. They are part of the object that has these programs alone: every object has all statics of this library.
#[derive(Clone, Copy)]
pub struct Maps {
    /// Finished calls, on their way to the user side.
    pub calls: &'static RingBuf,
    /// Calls under way.
    pub stacks: &'static LruHashMap<Context, Stack>,
    /// A stack without calls: it has no room on the kernel's.
    pub empty: &'static Array<Stack>,
    /// What was not shown, and why.
    pub counters: &'static PerCpuArray<CallCounters>,
}

/// Bits of the preemption count (include/linux/preempt.h).
const SERVING_SOFTIRQ: u32 = 1 << 8;
const HARDIRQ: u32 = 0xf << 16;
const NMI: u32 = 0xf << 20;

macro_rules! known {
    ($field:ident) => {
        $crate::config::constant(&CALL_SETTINGS.$field)
    };
}

impl Maps {
    /// Adds one to this CPU's count.
    #[inline(always)]
    pub fn count(&self, counter: CallCounter) {
        self.count_more(counter, 1);
    }

    #[inline(always)]
    fn count_more(&self, counter: CallCounter, more: u64) {
        if let Some(counters) = self.counters.get_ptr_mut(0) {
            // SAFETY: index 0 of a per-CPU array is valid.
            count::add(unsafe { &raw mut (*counters).values[counter as usize] }, more);
        }
    }

    /// Counts calls whose returns were not seen.
    #[inline(always)]
    fn count_dropped(&self, calls: u64) {
        if calls > 0 {
            self.count_more(CallCounter::NoReturn, calls);
        }
    }
}

/// A function is entered. `all`: whoever calls it.
#[inline(always)]
pub fn entered(maps: Maps, probe_context: &ProbeContext, all: bool) -> Outcome {
    let Some(context) = context(all) else { return Ok(()) };
    // SAFETY: the context of a kprobe's program.
    let (slot, function) =
        unsafe { ((*probe_context.regs).rsp, (*probe_context.regs).rip.wrapping_sub(PROBE_LEN)) };
    maps.count(CallCounter::Entered);
    let stack = match maps.stacks.get_ptr_mut(&context) {
        Some(stack) => stack,
        None => {
            let empty = maps.empty.get_ptr(0).ok_or(CallCounter::NoRoom)?;
            // SAFETY: index 0 of an array is valid, and nothing writes to it.
            maps.stacks.insert(&context, unsafe { &*empty }, 0).map_err(|_| CallCounter::NoRoom)?;
            maps.stacks.get_ptr_mut(&context).ok_or(CallCounter::NoRoom)?
        }
    };
    // SAFETY: the entry stays mapped while the program runs, and only this context writes to it.
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
    let is_expected = |slot: u64| {
        // SAFETY: any bits are a number.
        let address: u64 = unsafe { probe(slot as *const u8) };
        address == known!(trampoline) || known!(graph_return) != 0 && address == known!(graph_return)
    };
    dropped += stack.prune(slot, is_expected);
    maps.count_dropped(dropped);
    let frame = stack.push().ok_or(CallCounter::TooDeep)?;
    frame.slot = slot;
    frame.function = function;
    frame.children_ns = 0;
    frame.entry_cpu = u64::from(cpu());
    // Last, so that our own work is not part of the time.
    frame.entry_ns = now();
    Ok(())
}

/// A function has returned.
#[inline(always)]
pub fn returned(maps: Maps, probe_context: &RetProbeContext, all: bool) -> Outcome {
    let exit_ns = now();
    let Some(context) = context(all) else { return Ok(()) };
    // SAFETY: the context of a kprobe's program. The return has taken the address off the stack.
    let slot = unsafe { (*probe_context.regs).rsp }.wrapping_sub(8);
    let function = probed_function();
    let stack = maps.stacks.get_ptr_mut(&context).ok_or(CallCounter::NoEntry)?;
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
    maps.count_dropped(left.dropped);
    let frame = stack.frame(left.depth);
    let mut entry = maps.calls.reserve::<CallRecord>(0).ok_or(CallCounter::RingFull)?;
    // SAFETY: the words of a name, whatever bytes they are.
    let comm = unsafe { core::mem::transmute::<[u64; 2], [u8; 16]>(Task::current_name()) };
    entry.write(CallRecord {
        entry_ns: frame.entry_ns,
        exit_ns,
        children_ns: frame.children_ns,
        function,
        task: context.task,
        ids,
        comm,
        entry_cpu: frame.entry_cpu as u32,
        cpu: cpu(),
        depth: left.depth as u32,
        level: context.level as u32,
    });
    // As for packets: the reader comes by a timer unless the buffer fills faster.
    let waiting = maps.calls.query(u64::from(BPF_RB_AVAIL_DATA));
    let flags =
        if waiting < u64::from(setting!(wakeup_bytes)) { BPF_RB_NO_WAKEUP } else { BPF_RB_FORCE_WAKEUP };
    entry.submit(u64::from(flags));
    Ok(())
}

/// A breakpoint's length: a kprobe's program sees the address behind it, however the kprobe came to be hit.
const PROBE_LEN: u64 = 1;

/// What runs here, if its calls are asked for. Those of an interrupt are nobody's.
#[inline(always)]
fn context(all: bool) -> Option<Context> {
    let is_by_task = !all && filter::is_by_task();
    if is_by_task && !filter::current() {
        return None;
    }
    // SAFETY: the helper takes nothing.
    let task = unsafe { generated::bpf_get_current_task() };
    let level = level(task);
    if is_by_task && level != LEVEL_TASK {
        return None;
    }
    Some(Context { task, level: u64::from(level) })
}

/// The value of this CPU's variable.
#[inline(always)]
fn variable<T: Copy>(address: u64) -> T {
    let base = known!(per_cpu_offset) + u64::from(cpu()) * 8;
    // SAFETY: integers, of which any bits are one.
    unsafe { probe::<T>(probe::<u64>(base as *const u8).wrapping_add(address) as *const u8) }
}

#[inline(always)]
fn level(task: u64) -> u8 {
    let count: u32 = variable(known!(preempt_count));
    if count & NMI != 0 {
        LEVEL_NMI
    } else if count & HARDIRQ != 0 {
        LEVEL_HARDIRQ
    } else if count & SERVING_SOFTIRQ != 0 {
        LEVEL_SOFTIRQ
    } else if known!(softirq_disable_cnt) != 0 {
        let field = task.wrapping_add(u64::from(known!(softirq_disable_cnt)));
        // SAFETY: any bits are a number.
        let count: u32 = unsafe { probe(field as *const u8) };
        if count & SERVING_SOFTIRQ != 0 { LEVEL_SOFTIRQ } else { LEVEL_TASK }
    } else {
        LEVEL_TASK
    }
}

/// Address of the function whose kprobe's or kretprobe's handler runs on this CPU. (`bpf_get_func_ip` looks there too, and
/// Linux 5.10 has none.)
#[inline(always)]
fn probed_function() -> u64 {
    let kprobe: u64 = variable(known!(current_kprobe));
    // SAFETY: any bits are a number.
    unsafe { probe(kprobe.wrapping_add(u64::from(known!(kprobe_addr))) as *const u8) }
}

/// The CPU this runs on.
#[inline(always)]
fn cpu() -> u32 {
    // SAFETY: the helper takes nothing.
    unsafe { generated::bpf_get_smp_processor_id() }
}
