//! What ends a run from outside: signals, and the end of the processes that are traced.

use std::{future::pending, io, mem::MaybeUninit, os::fd::OwnedFd, ptr};

use anyhow::Context as _;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::{
    io::{Interest, unix::AsyncFd},
    signal::unix::{Signal, SignalKind, signal},
};

use crate::error::Failure;

/// The signals that end a run.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// None if it is to be ignored, as `nohup` asks for.
    hangup: Option<Signal>,
}

impl Signals {
    /// Starts to listen; from now on they don't end the process by themselves.
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: if is_ignored(libc::SIGHUP)? { None } else { Some(signal(SignalKind::hangup())?) },
        })
    }

    /// From now on SIGHUP is not one of them, even where it was to be ignored: it is up to the caller.
    pub(crate) fn take_hangup(&mut self) -> io::Result<Signal> {
        self.hangup = None;
        signal(SignalKind::hangup())
    }

    /// Returns when one has come.
    pub(crate) async fn any(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            () = next(self.hangup.as_mut()) => {}
        }
    }
}

/// Returns when the signal has come; never if there is none.
pub(crate) async fn next(signal: Option<&mut Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => pending().await,
    }
}

/// Whether this process was started with `signal` ignored.
fn is_ignored(signal: libc::c_int) -> io::Result<bool> {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: without a new action nothing changes; the current one is written to where there is room for it.
    if unsafe { libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has succeeded, so it is written.
    Ok(unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN)
}

/// The processes that were asked for: when the last has ended, so does the run.
pub(crate) struct Processes {
    running: Vec<AsyncFd<OwnedFd>>,
    any: bool,
}

impl Processes {
    /// Fails if one has ended since the command line was checked.
    pub(crate) fn watch(pids: &[u32]) -> Result<Self, Failure> {
        let mut running = Vec::new();
        for &pid in pids {
            let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
            let opened =
                raw.context("no such process id").and_then(|raw| Ok(pidfd_open(raw, PidfdFlags::empty())?));
            match opened.and_then(|fd| Ok(readable(fd)?)) {
                Ok(fd) => running.push(fd),
                Err(error) => {
                    return Err(Failure::Usage(format!(
                        "cannot watch process {pid}: {error}; is it still running?"
                    )));
                }
            }
        }
        Ok(Self { any: !running.is_empty(), running })
    }

    /// Returns when all have ended; never if none was asked for. Safe to call again after being dropped.
    pub(crate) async fn all_ended(&mut self) -> Result<(), Failure> {
        if !self.any {
            return pending().await;
        }
        while let Some(process) = self.running.last() {
            let _ready = process.readable().await.context("cannot wait for the traced process")?;
            self.running.pop();
        }
        Ok(())
    }
}

/// Something to wait for until `fd` is readable.
pub(crate) fn readable(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the descriptor is owned by what is returned, which keeps it open and gives it to nobody.
    Ok(unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?)
}
