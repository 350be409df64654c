//! Running a command that is traced from its first packet: it exists before anything is attached, so that its
//! process id is known, and begins once everything is.

use std::{
    ffi::OsString,
    future::pending,
    io::{self, PipeWriter, Read as _, Write as _},
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::process::{CommandExt as _, ExitStatusExt as _},
    },
    process::{Child, Command, ExitStatus, id},
    sync::atomic::{AtomicBool, Ordering},
    thread::{self, JoinHandle},
};

use anyhow::{Context as _, Result, anyhow};
use rustix::process::{Pid, PidfdFlags, Signal as Number, pidfd_open, pidfd_send_signal};
use tokio::{
    io::unix::AsyncFd,
    signal::unix::{Signal, SignalKind, signal},
};

use crate::{
    error::{Failure, NOT_EXECUTABLE, NOT_FOUND},
    run::ends::readable,
};

/// A command that waits for its beginning. Dropped before that, it never was.
pub(crate) struct Stopped {
    name: OsString,
    pid: u32,
    /// Readable when it has ended.
    ends: AsyncFd<OwnedFd>,
    go: PipeWriter,
    /// Returns once the command's program runs, or can't.
    start: JoinHandle<io::Result<Child>>,
}

impl Stopped {
    /// Makes the process that will be the command.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn new(words: &[OsString]) -> Result<Self, Failure> {
        let (name, arguments) = words.split_first().context("a command needs a name")?;
        let (mut told, mut tell) = io::pipe().context("cannot make a pipe")?;
        let (mut wait, go) = io::pipe().context("cannot make a pipe")?;
        let inherited_go = go.as_raw_fd();
        let mut command = Command::new(name);
        command.args(arguments);
        // SAFETY: the new process calls only functions that are safe between fork and exec: close, getpid, write and read.
        unsafe {
            command.pre_exec(move || {
                // Else it would never see that the other end is closed.
                libc::close(inherited_go);
                tell.write_all(&id().to_ne_bytes())?;
                wait.read_exact(&mut [0])
            });
        }
        // It returns when the program is executed.
        let start = thread::Builder::new().spawn(move || command.spawn());
        let start = start.with_context(|| format!("cannot run {}: no thread can be made", name.display()))?;
        let mut pid = [0; 4];
        if told.read_exact(&mut pid).is_err() {
            let error = finished(start).map_or_else(|error| error, |_| anyhow!("it said nothing"));
            return Err(error.context(format!("cannot run {}", name.display())).into());
        }
        let pid = u32::from_ne_bytes(pid);
        let ends = watch(pid).context("cannot watch the command")?;
        Ok(Self { name: name.clone(), pid, ends, go, start })
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Lets it begin. The error is what a shell would say of it.
    pub(crate) fn begin(mut self, signals: Forwarded) -> Result<Running, Failure> {
        self.go.write_all(&[0]).context("cannot start the command")?;
        let child = finished(self.start).map_err(|error| {
            let not_found = error
                .downcast_ref::<io::Error>()
                .is_some_and(|error| error.kind() == io::ErrorKind::NotFound);
            Failure::Command {
                code: if not_found { NOT_FOUND } else { NOT_EXECUTABLE },
                sentence: format!("cannot run {}: {error}", self.name.display()),
            }
        })?;
        Ok(Running { child, ends: self.ends, signals })
    }
}

/// A descriptor that is readable once that child has ended; it must not have been waited for before.
fn watch(pid: u32) -> Result<AsyncFd<OwnedFd>> {
    let pid = Pid::from_raw(i32::try_from(pid)?).context("no process has this id")?;
    Ok(readable(pidfd_open(pid, PidfdFlags::empty())?)?)
}

fn finished(start: JoinHandle<io::Result<Child>>) -> Result<Child> {
    Ok(start.join().map_err(|_| anyhow!("a thread panicked"))??)
}

/// A command that has begun.
pub(crate) struct Running {
    child: Child,
    /// Readable when it has ended.
    ends: AsyncFd<OwnedFd>,
    signals: Forwarded,
}

impl Running {
    /// Returns when it has ended; meanwhile it gets the signals that are for it. Safe to call again after being
    /// dropped.
    pub(crate) async fn ended(&mut self) -> Result<ExitStatus> {
        loop {
            tokio::select! {
                biased;
                ready = self.ends.readable() => {
                    let _ready = ready.context("cannot wait for the command")?;
                    return self.child.wait().context("cannot wait for the command");
                }
                number = self.signals.next() => {
                    // It may have ended meanwhile.
                    let _ = pidfd_send_signal(self.ends.get_ref(), number);
                }
            }
        }
    }
}

/// Returns when `command` has ended, if there is one; else never.
pub(crate) async fn ended(command: &mut Option<Running>) -> Result<ExitStatus> {
    match command {
        Some(command) => command.ended().await,
        None => pending().await,
    }
}

/// The exit code that says how the command ended, as shells have it.
pub(crate) fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// Signals that are meant for the command when we get them.
const FORWARDED: [Number; 4] = [Number::INT, Number::TERM, Number::HUP, Number::QUIT];

/// Which of them a process has sent. Those of the terminal's keys the kernel sends, and to the command as well.
static SENT: [AtomicBool; FORWARDED.len()] = [const { AtomicBool::new(false) }; FORWARDED.len()];
/// Which of them have come, from whomever.
static CAME: [AtomicBool; FORWARDED.len()] = [const { AtomicBool::new(false) }; FORWARDED.len()];

/// The signals that come for the command.
pub(crate) struct Forwarded {
    signals: [Signal; FORWARDED.len()],
    /// SIGHUP is for us, since we write a log.
    keeps_hangup: bool,
}

impl Forwarded {
    /// Starts to listen; from now on they don't end this process.
    pub(crate) fn listen(keeps_hangup: bool) -> io::Result<Self> {
        for (place, number) in FORWARDED.into_iter().enumerate() {
            let note = move |info: &libc::siginfo_t| {
                // Positive codes are the kernel's (SI_KERNEL), 0 and negative ones those of kill and its like.
                SENT[place].fetch_or(info.si_code <= 0, Ordering::Relaxed);
                CAME[place].store(true, Ordering::Relaxed);
            };
            // SAFETY: it only stores to atomics. Registered before the listener, it has run when that one wakes us.
            unsafe { signal_hook_registry::register_sigaction(number.as_raw(), note) }?;
        }
        let [a, b, c, d] = FORWARDED.map(|number| signal(SignalKind::from_raw(number.as_raw())));
        Ok(Self { signals: [a?, b?, c?, d?], keeps_hangup })
    }

    /// One of them that has come by now.
    pub(crate) fn came(&self) -> Option<Number> {
        let mut signals = FORWARDED.into_iter().zip(&CAME);
        let (number, _) =
            signals.find(|(number, came)| came.load(Ordering::Relaxed) && self.is_for_it(*number))?;
        Some(number)
    }

    fn is_for_it(&self, number: Number) -> bool {
        number != Number::HUP || !self.keeps_hangup
    }

    /// The next one that is to be passed on.
    async fn next(&mut self) -> Number {
        loop {
            let [a, b, c, d] = &mut self.signals;
            let place = tokio::select! {
                _ = a.recv() => 0,
                _ = b.recv() => 1,
                _ = c.recv() => 2,
                _ = d.recv() => 3,
            };
            let number = FORWARDED[place];
            if SENT[place].swap(false, Ordering::Relaxed) && self.is_for_it(number) {
                return number;
            }
        }
    }
}
