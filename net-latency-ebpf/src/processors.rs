//! Who had each CPU, with `--stages fine`: for a thread that waited for one, the process that had it for most of that time.
//!
//! Every switch of any task looks here, and most have done so after one comparison: a task that had its CPU for less than 66 us is left
//! out. Of the others the last one of each magnitude is kept, so that those who have a CPU for a moment each put none out who had it for
//! long: behind a process that keeps a CPU busy several threads wait in line, and it is not the first of them that the others waited for.
//!
//! Considered: the task before alone (it is often such a one), the last that had it for long (for how long depends on who waits),
//! `sched_info` in the task (it knows of no other task).

use crate::{
    bpf::{PerCpuArray, entry::Field, map},
    kernel::{memory::Memory, task::Thread},
};

/// A turn of less than 2^16 ns is left out.
const SHORT_BITS: u32 = 16;
/// Magnitudes: twice as long each, the last one from 134 ms on.
const MAGNITUDES: usize = 12;

/// A process had the CPU.
#[repr(C)]
struct Turn {
    process: Field<u64>,
    /// Until then, and for how long, ns. Where it was interrupted for less than it had the CPU afterwards, that is one turn.
    until: Field<u64>,
    had: Field<u64>,
}

#[repr(C)]
struct Processor {
    /// The task that has it got it then.
    since: Field<u64>,
    turns: [Turn; MAGNITUDES],
}

/// Only a switch on this CPU looks there, and none is interrupted by another (`__schedule` disables interrupts).
#[map]
static PROCESSORS: PerCpuArray<Processor> = PerCpuArray::with_max_entries(1, 0);

/// A task loses this CPU now. For how long it had that, ns.
#[inline(always)]
pub(crate) fn loses<M: Memory>(task: Thread<M>, now: u64) -> u64 {
    let Some(processor) = PROCESSORS.get(0) else { return 0 };
    let since = processor.since.get();
    let had = now.saturating_sub(since);
    processor.since.set(now);
    if let Some(magnitude) = (had >> SHORT_BITS).checked_ilog2() {
        let last = processor.turns.get((magnitude as usize).min(MAGNITUDES - 1));
        let process = task.process().into();
        if let Some(turn) = last {
            let goes_on = turn.process.get() == process && since.saturating_sub(turn.until.get()) < had;
            turn.had.set(if goes_on { turn.had.get() + had } else { had });
            turn.process.set(process);
            turn.until.set(now);
        }
    }
    had
}

/// The process that had this CPU for most of the last `waited` ns, of which `before` had it for `had` at the end. 0 if it was idle, or if
/// no process had it for a quarter of that time.
#[inline(always)]
pub(crate) fn longest<M: Memory>(before: Thread<M>, had: u64, waited: u64, now: u64) -> u64 {
    if had >= waited / 2 {
        return before.process().into();
    }
    let (mut process, mut longest) = (0, waited / 4);
    let Some(processor) = PROCESSORS.get(0) else { return 0 };
    for turn in &processor.turns {
        let within = waited.saturating_sub(now.saturating_sub(turn.until.get())).min(turn.had.get());
        if within > longest {
            (process, longest) = (turn.process.get(), within);
        }
    }
    process
}

#[cfg(test)]
mod tests {
    use net_latency_common::Offsets;

    use super::*;
    use crate::{
        bpf::host::{Machine, memory},
        kernel::memory::Probed,
    };

    const US: u64 = 1_000;

    /// A process that is interrupted for less time than it has the CPU next has it in one turn.
    #[test]
    fn a_turn_goes_on_after_a_short_interruption() {
        for (gap, longest_of) in [(30, 7), (60, 7), (200, 8)] {
            Machine::reset();
            Machine::with(|machine| {
                machine.offsets = Offsets { task_struct_tgid: 8, ..Offsets::default() };
            });
            let tasks = memory::slab(64);
            let [seven, eight, last] = [7, 8, 9].map(|process: u32| {
                let task = memory::take(tasks);
                memory::write(task + 8, process);
                Thread::<Probed>::new(task as *const u8)
            });
            let begin = 1_000_000;
            loses(last, begin);
            let mut now = begin;
            // Short turns are left out. A quarter of the wait is longer than one of the others.
            let turns =
                [(seven, 100), (eight, gap), (seven, 100), (last, 60), (last, 60), (last, 60), (last, 60)];
            for (task, us) in turns {
                now += us * US;
                assert_eq!(loses(task, now), us * US);
            }
            assert_eq!(longest(last, 60 * US, now - begin, now), longest_of, "{gap}");
        }
    }
}
