//! What a CPU is at: a task, a softirq, a hardirq or an NMI. Decoded from its preemption count
//! (include/linux/preempt.h), not from hooks, which may be missed.

use super::{arch, memory::probe};
use crate::bpf::{cpu, current_task};

/// What a CPU is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CpuContext {
    /// A task's own code, system calls and kernel threads.
    Task,
    Softirq,
    Hardirq,
    /// A non-maskable interrupt, or a breakpoint.
    Nmi,
}

/// The bits of a preemption count.
const SERVING_SOFTIRQ: u32 = 1 << 8;
const HARDIRQ: u32 = 1 << 16;
const HARDIRQS: u32 = 0xf << 16;
const NMIS: u32 = 0xf << 20;

/// What a preemption count says. `softirq_disable_cnt` is the task's count of that name, which PREEMPT_RT has, where
/// softirqs run in tasks; 0 elsewhere.
#[inline(always)]
pub(crate) fn decode(preempt_count: u32, softirq_disable_cnt: impl FnOnce() -> u32) -> CpuContext {
    if preempt_count & NMIS != 0 {
        CpuContext::Nmi
    } else if preempt_count & HARDIRQS != 0 {
        CpuContext::Hardirq
    } else if (preempt_count | softirq_disable_cnt()) & SERVING_SOFTIRQ != 0 {
        CpuContext::Softirq
    } else {
        CpuContext::Task
    }
}

/// The count as it was before the breakpoint of a probe, which counts as an NMI, and as an interrupt too (`nmi_enter`).
#[inline(always)]
pub(crate) fn without_breakpoint(preempt_count: u32) -> u32 {
    if preempt_count & NMIS == 0 { preempt_count } else { preempt_count.wrapping_sub(HARDIRQ) & !NMIS }
}

/// The value of this CPU's variable, which is at `variable` relative to where the CPU has its variables: `per_cpu_offset` is
/// the address of the array that says so (`__per_cpu_offset`).
#[inline(always)]
pub(crate) fn of_this_cpu<T: Copy>(per_cpu_offset: u64, variable: u64) -> T {
    let base = per_cpu_offset + u64::from(cpu()) * 8;
    // SAFETY: integers, of which any bits are one; any address survives.
    unsafe { probe::<T>(probe::<u64>(base as *const u8).wrapping_add(variable) as *const u8) }
}

/// The preemption count: `at` is where each CPU has it, or each task, by architecture.
#[inline(always)]
pub(crate) fn preempt_count(per_cpu_offset: u64, at: u64) -> u32 {
    if arch::COUNT_IS_IN_TASK {
        // SAFETY: the current task lives, and any bits are a number.
        unsafe { probe(current_task().wrapping_add(at as usize)) }
    } else {
        of_this_cpu(per_cpu_offset, at)
    }
}

/// `task_struct.softirq_disable_cnt` of the current task, by the field's offset; 0 where there is none.
#[inline(always)]
pub(crate) fn softirq_disable_cnt(offset: u32) -> u32 {
    if offset == 0 {
        return 0;
    }
    // SAFETY: the current task lives, and the offset is a field's, from BTF; any bits are a number.
    unsafe { probe(current_task().wrapping_add(offset as usize)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::host::{Machine, memory};

    fn is(count: u32, rt: u32) -> CpuContext {
        decode(count, || rt)
    }

    #[test]
    fn the_innermost_counts() {
        assert_eq!(is(0, 0), CpuContext::Task);
        // Preemption disabled, and softirqs disabled by a task (SOFTIRQ_DISABLE_OFFSET).
        assert_eq!(is(3 | 2 << 8, 0), CpuContext::Task);
        assert_eq!(is(1 << 8, 0), CpuContext::Softirq);
        assert_eq!(is(1 << 16 | 1 << 8, 0), CpuContext::Hardirq);
        assert_eq!(is(1 << 20 | 1 << 16, 0), CpuContext::Nmi);
    }

    #[test]
    fn preempt_rt_serves_softirqs_in_tasks() {
        assert_eq!(is(0, 2 << 8), CpuContext::Task);
        assert_eq!(is(0, 1 << 8), CpuContext::Softirq);
        assert_eq!(is(1 << 8, 1 << 8), CpuContext::Softirq);
        assert_eq!(is(1 << 16, 1 << 8), CpuContext::Hardirq);
    }

    #[test]
    fn a_breakpoint_is_not_what_it_interrupts() {
        let breakpoint = 1 << 20 | 1 << 16;
        assert_eq!(is(without_breakpoint(breakpoint), 0), CpuContext::Task);
        assert_eq!(is(without_breakpoint(breakpoint + (1 << 8)), 0), CpuContext::Softirq);
        assert_eq!(is(without_breakpoint(breakpoint + (1 << 16)), 0), CpuContext::Hardirq);
        assert_eq!(without_breakpoint(1 << 16), 1 << 16);
    }

    #[test]
    fn each_cpu_has_a_variable_of_its_own() {
        Machine::reset();
        let [offsets, variables] = [memory::slab(64), memory::slab(64)].map(memory::take);
        for cpu in 0..2_u64 {
            memory::write(offsets + cpu * 8, variables + cpu * 16 - 1_000);
            memory::write(variables + cpu * 16 + 8, 40 + cpu);
        }
        for cpu in 0..2 {
            Machine::with(|machine| machine.cpu = cpu);
            assert_eq!(of_this_cpu::<u64>(offsets, 1_008), 40 + cpu as u64);
        }
    }

    #[test]
    fn a_task_has_its_count_where_there_is_one() {
        Machine::reset();
        let task = memory::take(memory::slab(64));
        memory::write(task, [7_u32, 7, 9]);
        Machine::with(|machine| machine.task = task);
        assert_eq!((softirq_disable_cnt(0), softirq_disable_cnt(8)), (0, 9));
    }
}
