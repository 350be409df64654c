//! What ends a run from outside: signals, and the end of the processes and cgroups that are traced.

use std::{
    fs::File,
    future::pending,
    io::{self, Read as _, Seek as _},
    mem::MaybeUninit,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    ptr,
    time::Duration,
};

use anyhow::Context as _;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, pidfd_open},
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    signal::unix::{Signal, SignalKind, signal},
    time::Interval,
};

use super::pace::ticks;
use crate::{error::Failure, message::tell, request::PacketFilter};

/// The signals that end a run.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// None if it is to be ignored, as `nohup` asks for.
    hangup: Option<Signal>,
}

impl Signals {
    /// Starts to listen; from now on they don't end the process by themselves, nor does `SIGXFSZ`.
    pub(crate) fn listen() -> io::Result<Self> {
        // A file larger than the limit is an error of the write then, and the run has its footer.
        drop(signal(SignalKind::from_raw(libc::SIGXFSZ))?);
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: if is_ignored(libc::SIGHUP)? { None } else { Some(signal(SignalKind::hangup())?) },
        })
    }

    /// Where SIGHUP `is_ours`, it is none of them from now on, even where it was to be ignored: it is up to the caller.
    pub(crate) fn take_hangup(&mut self, is_ours: bool) -> io::Result<Option<Signal>> {
        if !is_ours {
            return Ok(None);
        }
        self.hangup = None;
        signal(SignalKind::hangup()).map(Some)
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

/// How often cgroups are looked at: nothing tells when one is removed.
const LOOK: Duration = Duration::from_millis(500);

/// The processes and cgroups that were requested. A number or a path may be another's as soon as they are gone: so they are held from
/// before the start on, and when all processes have ended, or all cgroups are gone, nothing more can be shown, and the run ends.
pub(crate) struct Selected {
    /// Those that have not ended.
    running: Vec<(u32, AsyncFd<OwnedFd>)>,
    by_process: bool,
    /// Those that are there.
    cgroups: Vec<Cgroup>,
    by_cgroup: bool,
    look: Interval,
    is_quiet: bool,
}

/// A cgroup, by a file in it that all have.
struct Cgroup {
    path: PathBuf,
    file: File,
}

impl Selected {
    /// Holds those of `filter`. Unless `is_quiet`, stderr is told when a cgroup is gone.
    ///
    /// # Errors
    /// If one is gone since the command line was checked.
    pub(crate) fn hold(filter: &PacketFilter, is_quiet: bool) -> Result<Self, Failure> {
        let mut running = Vec::new();
        for &pid in &filter.pids {
            let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
            let opened =
                raw.context("no such process id").and_then(|raw| Ok(pidfd_open(raw, PidfdFlags::empty())?));
            match opened.and_then(|fd| Ok(readable(fd)?)) {
                Ok(fd) => running.push((pid, fd)),
                Err(error) => {
                    return Err(Failure::Usage(format!(
                        "cannot watch process {pid}: {error}; is it still running?"
                    )));
                }
            }
        }
        let cgroups = filter.cgroups.iter().map(|path| Cgroup::open(path)).collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            by_process: !running.is_empty(),
            running,
            by_cgroup: !cgroups.is_empty(),
            cgroups,
            look: ticks(LOOK),
            is_quiet,
        })
    }

    /// Everything is attached: a process that is gone by now may have gone unseen, and its number or path may belong to another.
    ///
    /// # Errors
    /// If one is gone.
    pub(crate) fn are_there(&mut self) -> Result<(), Failure> {
        for (pid, fd) in &self.running {
            let mut ended = [PollFd::new(fd.get_ref(), PollFlags::IN)];
            if poll(&mut ended, Some(&Timespec::default())).context("cannot watch a process")? > 0 {
                return Err(Failure::Usage(format!("process {pid} ended before it could be traced")));
            }
        }
        match self.cgroups.iter_mut().find_map(|cgroup| cgroup.is_gone().then_some(&cgroup.path)) {
            Some(path) => Err(Failure::Usage(format!(
                "cgroup {} was removed before it could be traced",
                path.display()
            ))),
            None => Ok(()),
        }
    }

    /// Returns when all processes have ended, or all cgroups are gone; never if none was requested. Safe to call again after being
    /// dropped.
    pub(crate) async fn all_gone(&mut self) -> Result<(), Failure> {
        let Self { running, by_process, cgroups, by_cgroup, look, is_quiet } = self;
        tokio::select! {
            ended = all_ended(running), if *by_process => ended,
            () = all_removed(cgroups, look, *is_quiet), if *by_cgroup => Ok(()),
            () = pending() => Ok(()),
        }
    }
}

async fn all_ended(running: &mut Vec<(u32, AsyncFd<OwnedFd>)>) -> Result<(), Failure> {
    while let Some((_, process)) = running.last() {
        let _ready = process.readable().await.context("cannot wait for the traced process")?;
        running.pop();
    }
    Ok(())
}

async fn all_removed(cgroups: &mut Vec<Cgroup>, look: &mut Interval, is_quiet: bool) {
    while !cgroups.is_empty() {
        look.tick().await;
        cgroups.retain_mut(|cgroup| {
            let is_gone = cgroup.is_gone();
            if is_gone && !is_quiet {
                tell(format_args!("cgroup {} is gone", cgroup.path.display()));
            }
            !is_gone
        });
    }
}

impl Cgroup {
    fn open(path: &Path) -> Result<Self, Failure> {
        let file = File::open(path.join("cgroup.controllers")).map_err(|error| {
            Failure::Usage(format!("cannot watch cgroup {}: {error}; is it still there?", path.display()))
        })?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Whether it was removed. The kernel then reads nothing of it to anybody (`kernfs_get_active`), whatever has its path.
    fn is_gone(&mut self) -> bool {
        let read = self.file.rewind().and_then(|()| self.file.read(&mut [0]));
        read.is_err_and(|error| error.raw_os_error() == Some(libc::ENODEV))
    }
}

/// Something to wait for until `fd` is readable.
pub(crate) fn readable(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the returned value owns the descriptor, and keeps it open and to itself.
    Ok(unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?)
}
