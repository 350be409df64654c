//! Wanted processes. With a command, the processes that they start are wanted too.
//!
//! A number stands for a process as long as that lives, and is another's afterwards. So the exit of a process replaces its state by the
//! time when it was started, which no other of that number has: packets sent while the kernel closes its sockets still belong to it, and
//! those of a newcomer don't. The number is free before `sched_process_free` tells (`release_task`, and a grace period later), so that it
//! may be another child's of the command by then.
//!
//! Considered: to keep from the beginning when a process was started, and to compare that for each packet (two reads more for every call of
//! a wanted process); to take away the number at its exit (the last packets of a process would have no owner).

use net_latency_common::{Counter, PID_WITH_CHILDREN, PIDS_IN_SET};

use super::settings::setting;
use crate::{
    bpf::{
        HashMap,
        entry::{Field, Own},
        map,
    },
    kernel::{
        memory::Memory,
        task::{Task, Thread},
    },
};

/// Processes to show: alone, or with those that they start; of one that has exited, when it was started. The user side makes room for more
/// with children. When full: an error at the start; of a command's processes, counted.
#[map]
static PIDS: HashMap<u32, u64> = HashMap::with_max_entries(1024, 0);

/// When the only process to show was started, once it has exited; 0 before.
#[unsafe(no_mangle)]
// SAFETY: fields of integers.
static EXITED: Own<Field<u64>, 1> = unsafe { Own::zeroed() };

#[inline(always)]
fn only_exited() -> &'static Field<u64> {
    // SAFETY: an entry of a table, mapped while a program runs; what changes is a field.
    unsafe { &*EXITED.at(0) }
}

/// The state of a wanted process.
#[inline(always)]
fn state(process: u32) -> Option<&'static Field<u64>> {
    let entry = PIDS.get_ptr(process)?;
    // SAFETY: entries are preallocated and never unmapped while a program runs; a field has the layout of what it holds.
    Some(unsafe { &*entry.cast() })
}

/// A process is wanted.
#[cfg(test)]
pub(crate) fn want(process: u32, state: u64) {
    PIDS.insert(&process, &state, 0).expect("room for it");
}

/// Whether there is an entry for a process that had this number.
#[cfg(test)]
pub(crate) fn has_entry(process: u32) -> bool {
    state(process).is_some()
}

/// Whether a process has exited that has this state.
#[inline(always)]
fn has_exited(state: u64) -> bool {
    // No process has been started within the kernel's first two ns.
    state > PID_WITH_CHILDREN
}

/// Whether the process this CPU runs is wanted.
#[inline(always)]
pub(crate) fn current_is_wanted() -> bool {
    match setting!(filter_pid) {
        0 => true,
        PIDS_IN_SET => state(Task::current_pid()).is_some_and(|state| is_current(state.get())),
        pid => pid == Task::current_pid() && is_current(only_exited().get()),
    }
}

/// Whether the process this CPU runs is the one whose state is kept under its number.
#[inline(always)]
fn is_current(state: u64) -> bool {
    !has_exited(state) || current_was_started_at(state) != 0
}

/// Whether the process this CPU runs was started at that time.
///
/// A global function, which the verifier checks once by itself: only a process that exits, or one that has its number later, gets here.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn current_was_started_at(time: u64) -> u32 {
    u32::from(Task::current_start() == time)
}

/// The current task has made another one (tracepoint `sched_process_fork`), which doesn't run yet.
#[inline(always)]
pub fn started<M: Memory>(child: Thread<M>) -> Result<(), Counter> {
    let Some(state) = state(Task::current_pid()) else { return Ok(()) };
    if state.get() != PID_WITH_CHILDREN {
        return Ok(());
    }
    // A thread of the same process finds itself there, and a new process finds the former owner of its number.
    PIDS.insert(&child.process(), &PID_WITH_CHILDREN, 0).map_err(|_| Counter::ProcessLost)
}

/// The current task exits (tracepoint `sched_process_exit`), and its sockets are still open: if no other of its process is left, that one
/// has ended.
#[inline(always)]
pub fn exited<M: Memory>(task: Thread<M>) {
    let process = task.process();
    let state = match setting!(filter_pid) {
        0 => return,
        PIDS_IN_SET => match state(process) {
            Some(state) => state,
            None => return,
        },
        pid if pid == process => only_exited(),
        _ => return,
    };
    // Two of them may be here at the same time, and are of the same process.
    if !has_exited(state.get()) && task.is_last() {
        state.set(task.start());
    }
}

/// A task is gone for good (tracepoint `sched_process_free`): if it was a process, its number is unused, unless another child has it by
/// now.
#[inline(always)]
pub fn freed<M: Memory>(task: Thread<M>) {
    let process = task.process();
    if task.thread() != process {
        return;
    }
    if state(process).is_some_and(|state| has_exited(state.get()) && state.get() == task.start()) {
        // It is there.
        let _ = PIDS.remove(&process);
    }
}
