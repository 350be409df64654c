//! Processes that choose their CPU, and one that keeps it to itself.

use std::{io, os::fd::AsFd as _};

use anyhow::{Result, ensure};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};

/// Lets this process run on that CPU only.
pub(crate) fn pin(cpu: usize) -> Result<u64> {
    let mut set = CpuSet::new();
    set.set(cpu)?;
    sched_setaffinity(Pid::from_raw(0), &set)?;
    Ok(0)
}

/// Keeps that CPU from everybody else until the next command comes: a real-time task that never sleeps.
pub(super) fn hog(cpu: usize) -> Result<u64> {
    pin(cpu)?;
    first()?;
    let commands = io::stdin();
    let mut next = [PollFd::new(commands.as_fd(), PollFlags::POLLIN)];
    let ended = loop {
        match poll(&mut next, PollTimeout::ZERO) {
            Ok(0) => std::hint::spin_loop(),
            ended => break ended,
        }
    };
    schedule(libc::SCHED_OTHER, 0)?;
    ended?;
    Ok(0)
}

/// Whether that process's first thread runs before all others but real-time ones.
pub(crate) fn is_first(pid: u32) -> bool {
    // SAFETY: takes a number.
    unsafe { libc::sched_getscheduler(pid.cast_signed()) == libc::SCHED_FIFO }
}

/// Has this thread run before all others but real-time ones.
pub(crate) fn first() -> Result<()> {
    schedule(libc::SCHED_FIFO, 1)
}

/// Gives this thread that policy and priority.
pub(super) fn schedule(policy: libc::c_int, priority: libc::c_int) -> Result<()> {
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: the parameters are live and as long as the kernel takes them for.
    let result = unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) };
    ensure!(result == 0, io::Error::last_os_error());
    Ok(())
}
