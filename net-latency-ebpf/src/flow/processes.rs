//! Processes that are asked for. Of a command, those that they start are asked for too.

use aya_ebpf::{macros::map, maps::HashMap};
use net_latency_common::{Counter, PID_WITH_CHILDREN, PIDS_IN_SET};

use super::settings::setting;
use crate::kernel::{
    memory::Memory,
    task::{Task, Thread},
};

/// Processes to show: alone, or with those that they start. The user side makes room for more of the latter.
#[map]
static PIDS: HashMap<u32, u8> = HashMap::with_max_entries(1024, 0);

/// Whether the process this CPU runs is asked for.
#[inline(always)]
pub(crate) fn current_is_wanted() -> bool {
    match setting!(filter_pid) {
        0 => true,
        PIDS_IN_SET => PIDS.get_ptr(Task::current_pid()).is_some(),
        pid => pid == Task::current_pid(),
    }
}

/// The current task has made another one (tracepoint `sched_process_fork`), which doesn't run yet.
#[inline(always)]
pub fn started<M: Memory>(child: Thread<M>) -> Result<(), Counter> {
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
pub fn freed<M: Memory>(task: Thread<M>) {
    let process = task.process();
    if task.thread() != process {
        return;
    }
    let Some(entry) = PIDS.get_ptr(process) else { return };
    // SAFETY: as in `started`.
    if unsafe { *entry } == PID_WITH_CHILDREN {
        // It is there.
        let _ = PIDS.remove(&process);
    }
}
