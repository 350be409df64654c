//! Running a command that is traced from its first packet: it exists before anything is attached, so that its
//! process id is known, and begins once everything is.

use std::{
    ffi::{CString, OsStr, OsString},
    future::pending,
    io::{self, PipeWriter, Read as _, Write as _},
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::{
            ffi::OsStrExt as _,
            process::{CommandExt as _, ExitStatusExt as _},
        },
    },
    process::{Child, Command, ExitStatus, id},
    sync::atomic::{AtomicBool, Ordering},
    thread::{self, JoinHandle},
};

use anyhow::{Context as _, Result, anyhow};
use rustix::{
    fs::{Access, access},
    process::{Gid, Pid, PidfdFlags, Signal as Number, Uid, pidfd_open, pidfd_send_signal},
    thread::{clear_ambient_capability_set, set_thread_groups, set_thread_res_gid, set_thread_res_uid},
};
use tokio::{
    io::unix::AsyncFd,
    signal::unix::{Signal, SignalKind, signal},
};

use crate::{
    error::{Failure, NOT_EXECUTABLE, NOT_FOUND},
    request::{CommandConfig, User},
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
    /// Makes the process that will be the command. It is the user's already that the command runs as.
    ///
    /// # Errors
    /// Among others if we may not start anything as that user, or that user may not execute the program.
    pub(crate) fn new(asked: &CommandConfig) -> Result<Self, Failure> {
        let (name, arguments) = asked.words.split_first().context("a command needs a name")?;
        let (mut told, mut tell) = io::pipe().context("cannot make a pipe")?;
        let (mut wait, go) = io::pipe().context("cannot make a pipe")?;
        let inherited_go = go.as_raw_fd();
        let mut command = Command::new(name);
        command.args(arguments);
        let other = asked.user.as_ref().map(|user| Other::new(user, asked)).transpose()?;
        if let Some(user) = &asked.user {
            command.env("HOME", &user.home).env("SHELL", &user.shell);
            command.env("USER", &user.name).env("LOGNAME", &user.name);
        }
        // SAFETY: the process that is made calls only what is safe between fork and exec: close, getpid, write, read, and
        // what `Other::be` does.
        unsafe {
            command.pre_exec(move || {
                // Else it would never see that the other end is closed.
                libc::close(inherited_go);
                if let Some(other) = &other {
                    other.be()?;
                }
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
            return Err(failure(name, asked.user.as_ref(), error));
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

/// Another user than we are, in a form that a process can become between fork and exec.
struct Other {
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
    /// What the command's program may be.
    files: Vec<CString>,
}

impl Other {
    fn new(user: &User, command: &CommandConfig) -> Result<Self> {
        let files = command.files.iter().map(|file| CString::new(file.as_os_str().as_bytes()));
        Ok(Self {
            uid: Uid::from_raw(user.uid),
            gid: Gid::from_raw(user.gid),
            groups: user.groups.iter().copied().map(Gid::from_raw).collect(),
            files: files.collect::<Result<_, _>>().context("a program's path has a null byte")?,
        })
    }

    /// Makes this process that user's, for good. Allocates nothing and takes no lock: it only makes system calls, each for
    /// this thread, which is the only one. The error is EACCES if the user may not execute the program.
    fn be(&self) -> io::Result<()> {
        // In this order: who is another user can't change groups any more.
        set_thread_groups(&self.groups)?;
        set_thread_res_gid(self.gid, self.gid, self.gid)?;
        set_thread_res_uid(self.uid, self.uid, self.uid)?;
        // The kernel leaves them to whoever was not root before.
        clear_ambient_capability_set()?;
        if self.files.iter().any(|file| access(file.as_c_str(), Access::EXEC_OK).is_ok()) {
            return Ok(());
        }
        Err(io::Error::from_raw_os_error(libc::EACCES))
    }
}

/// Why the process that would be the command was not made.
fn failure(name: &OsStr, user: Option<&User>, error: anyhow::Error) -> Failure {
    let number = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
    let name = name.display();
    match (user, number) {
        (Some(User { name: user, .. }), Some(libc::EPERM)) => Failure::cannot_trace(
            format!("cannot run {name} as user {user}: that takes root, or CAP_SETUID and CAP_SETGID"),
            "use sudo",
        ),
        (Some(User { name: user, .. }), Some(libc::EINVAL)) => Failure::cannot_trace(
            format!("cannot run {name} as user {user}: this user namespace has no such user or group"),
            "start net-latency on the host",
        ),
        (Some(User { name: user, .. }), Some(libc::EACCES)) => Failure::Command {
            code: NOT_EXECUTABLE,
            sentence: format!(
                "cannot run {name}: user {user} may not execute it, or not enter its directory"
            ),
        },
        _ => Failure::Runtime(error.context(format!("cannot run {name}"))),
    }
}

/// What is readable once that child, which nobody has waited for, has ended.
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
    /// SIGHUP is for us, who write a log.
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

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use rustix::process::geteuid;

    use super::*;

    fn asked(words: &[&str], user: Option<User>) -> CommandConfig {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        CommandConfig { files: vec![words[0].clone().into()], words, user }
    }

    fn user(uid: u32) -> User {
        let groups = vec![uid, uid + 1, uid + 7];
        User { name: format!("u{uid}"), uid, gid: uid, groups, home: "/".into(), shell: "/bin/sh".into() }
    }

    fn start(asked: &CommandConfig) -> Result<Running, Failure> {
        Stopped::new(asked)?.begin(Forwarded::listen(true).expect("signals"))
    }

    #[tokio::test]
    async fn a_command_is_another_users_before_it_begins() {
        let place = tempfile::tempdir().expect("temporary directory");
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o700)).expect("ours");
        let closed = place.path().join("program");
        fs::copy("/bin/true", &closed).expect("writable");
        let closed = asked(&[closed.to_str().expect("UTF-8")], Some(user(4321)));
        let script = r#"test "$HOME $SHELL $USER $LOGNAME" = "/ /bin/sh u4321 u4321" && test "$(id -G)" = "4321 4322 4328""#;
        let command = asked(&["/bin/sh", "-c", script], Some(user(4321)));
        if !geteuid().is_root() {
            let failure = Stopped::new(&command).err().expect("not allowed");
            assert_eq!(failure.exit_code(), 3, "{failure}");
            return;
        }
        let stopped = Stopped::new(&command).expect("allowed");
        let status = fs::read_to_string(format!("/proc/{}/status", stopped.pid())).expect("it is there");
        for line in
            ["Uid:\t4321\t4321\t4321\t4321", "Gid:\t4321\t4321\t4321\t4321", "Groups:\t4321 4322 4328"]
        {
            assert!(status.contains(line), "{line} is not in\n{status}");
        }
        drop(stopped);
        let mut running = start(&command).expect("it runs");
        assert_eq!(code(running.ended().await.expect("it ends")), 0);

        // Only root may enter that directory.
        let failure = Stopped::new(&closed).err().expect("not executable");
        assert_eq!(failure.exit_code(), NOT_EXECUTABLE);
        assert!(failure.to_string().contains("user u4321 may not execute it"), "{failure}");
        let own = CommandConfig { user: None, ..closed };
        assert_eq!(code(start(&own).expect("it runs").ended().await.expect("it ends")), 0);
    }

    #[test]
    fn why_it_cannot_be_another_users_is_one_sentence() {
        let told = |number, user: Option<&User>| {
            let failure = failure(OsStr::new("x"), user, io::Error::from_raw_os_error(number).into());
            format!("{}: {failure}", failure.exit_code())
        };
        let user = user(1);
        let all = [
            (libc::EPERM, Some(&user)),
            (libc::EINVAL, Some(&user)),
            (libc::EACCES, Some(&user)),
            (libc::ENOMEM, Some(&user)),
            (libc::EPERM, None),
        ];
        insta::assert_snapshot!(all.map(|(number, user)| told(number, user)).join("\n"));
    }
}
