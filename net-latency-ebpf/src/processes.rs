//! Following a command's processes: those that a followed one starts are followed too.

use core::marker::PhantomData;

use net_latency_common::{Counter, PID_WITH_CHILDREN};

use crate::{Outcome, config::offset, maps::PIDS, memory::Memory, task::Task};

/// A `struct task_struct` in kernel memory.
#[derive(Clone, Copy)]
pub struct Thread<M> {
    pointer: *const u8,
    memory: PhantomData<M>,
}

impl<M: Memory> Thread<M> {
    /// The task that a hook got as an argument.
    #[inline(always)]
    #[must_use]
    pub fn new(pointer: *const u8) -> Self {
        Self { pointer, memory: PhantomData }
    }

    #[inline(always)]
    fn process(self) -> u32 {
        // SAFETY: `pointer` is a live task (the hook's argument) and the offset is a field's, from BTF.
        unsafe { M::read(self.pointer, offset!(task_struct_tgid)) }
    }

    /// Its id.
    #[inline(always)]
    pub(crate) fn thread(self) -> u32 {
        // SAFETY: as above.
        unsafe { M::read(self.pointer, offset!(task_struct_pid)) }
    }
}

/// The current task has made another one (tracepoint `sched_process_fork`), which doesn't run yet.
#[inline(always)]
pub fn started<M: Memory>(child: Thread<M>) -> Outcome {
    let Some(entry) = PIDS.get_ptr(Task::current_pid()) else { return Ok(()) };
    // SAFETY: entries are preallocated and never unmapped while a program runs.
    if unsafe { *entry } != PID_WITH_CHILDREN {
        return Ok(());
    }
    // A thread of the same process finds itself there.
    PIDS.insert(&child.process(), &PID_WITH_CHILDREN, 0).map_err(|_| Counter::ProcessLost)
}

/// A task is gone for good (tracepoint `sched_process_free`): if it was a process, its id will be another one's.
/// It still had it when it closed its sockets.
#[inline(always)]
pub fn freed<M: Memory>(task: Thread<M>) -> Outcome {
    let process = task.process();
    if task.thread() != process {
        return Ok(());
    }
    let Some(entry) = PIDS.get_ptr(process) else { return Ok(()) };
    // SAFETY: as in `started`.
    if unsafe { *entry } == PID_WITH_CHILDREN {
        // It is there.
        let _ = PIDS.remove(&process);
    }
    Ok(())
}
