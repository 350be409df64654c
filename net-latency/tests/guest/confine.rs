//! Runs a program as if on a machine, or for a user, that lacks something.
//!
//! A process of its own takes away what it is told and then becomes the program, so that nothing else
//! is affected.

use std::{
    env, fs, io,
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, bail};
use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
    sys::resource::{RLIM_INFINITY, Resource, setrlimit},
};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

use crate::net::set_up;

/// First argument of the process that confines itself.
pub(crate) const ROLE: &str = "confine";

/// A user without any capability.
pub(crate) const NOBODY: &str = "nobody";
/// [`NOBODY`] as root of a user namespace of its own.
pub(crate) const USER_NAMESPACE: &str = "user-namespace";
/// [`NOBODY`] as root of a user namespace and a network namespace, whose loopback is up.
pub(crate) const NETWORK_NAMESPACE: &str = "network-namespace";
/// Root without `CAP_SYS_ADMIN`, `CAP_PERFMON` and `CAP_BPF`.
pub(crate) const NO_CAPABILITIES: &str = "no-capabilities";
/// Root without `CAP_SYS_ADMIN` and `CAP_BPF`.
pub(crate) const NO_BPF: &str = "no-bpf";
/// Root without `CAP_SYS_ADMIN` and `CAP_PERFMON`.
pub(crate) const NO_PERFMON: &str = "no-perfmon";
/// A user with nothing but the capabilities that the service gives.
pub(crate) const ONLY_NEEDED: &str = "only-needed";
/// A kernel that does not show its type information.
pub(crate) const NO_BTF: &str = "no-btf";
/// A kernel without kprobes.
pub(crate) const NO_KPROBES: &str = "no-kprobes";

/// A system that does not show its processes.
pub(crate) const NO_PROC: &str = "no-proc";
/// Few open files.
pub(crate) const FEW_FILES: &str = "few-files";
/// Files that are no larger than a few lines.
pub(crate) const SMALL_FILES: &str = "small-files";
/// A disk that can't keep what is written to it.
pub(crate) const FAILING_DISK: &str = "failing-disk";

// Of linux/capability.h.
const CAP_SYS_ADMIN: libc::c_ulong = 21;
const CAP_SYSLOG: libc::c_ulong = 34;
const CAP_PERFMON: libc::c_ulong = 38;
const CAP_BPF: libc::c_ulong = 39;

const PARANOID: &str = "/proc/sys/kernel/perf_event_paranoid";

/// Above 2 Debian's kernels refuse kprobes to those that have CAP_PERFMON alone.
pub(crate) fn paranoid() -> Result<i32> {
    Ok(fs::read_to_string(PARANOID)?.trim().parse()?)
}

/// As long as it lives, CAP_PERFMON is enough for kprobes.
pub(crate) struct KprobesPermitted {
    before: i32,
}

impl KprobesPermitted {
    pub(crate) fn new() -> Result<Self> {
        let before = paranoid()?;
        fs::write(PARANOID, "2")?;
        Ok(Self { before })
    }
}

impl Drop for KprobesPermitted {
    fn drop(&mut self) {
        fs::write(PARANOID, self.before.to_string()).expect("the guest's root may set it");
    }
}

/// Mounted over what must not be seen.
const NOTHING: &str = "/tmp/net-latency-nothing";

/// `program`, to be run without what `kind` takes away.
pub(crate) fn command(kind: &str, program: &Path) -> Result<Command> {
    let mut command = Command::new(env::current_exe()?);
    command.arg(ROLE).arg(kind).arg(program);
    Ok(command)
}

/// The process that confines itself and becomes the program.
pub(crate) fn main() -> ExitCode {
    let Err(error) = confine();
    eprintln!("cannot confine: {error:#}");
    ExitCode::FAILURE
}

fn confine() -> Result<std::convert::Infallible> {
    let mut arguments = env::args_os().skip(2);
    let kind = arguments.next().context("no kind")?;
    let mut command = Command::new(arguments.next().context("no program")?);
    command.args(arguments);
    match kind.to_str().context("kind")? {
        NOBODY => {
            command.uid(65534).gid(65534);
        }
        USER_NAMESPACE => become_root_of(CloneFlags::CLONE_NEWUSER)?,
        NETWORK_NAMESPACE => {
            become_root_of(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET)?;
            set_up("lo")?;
        }
        ONLY_NEEDED => {
            // As the service has it: before Linux 5.11 maps count against this.
            setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY)?;
            become_nobody_with(&[CAP_BPF, CAP_PERFMON, CAP_SYSLOG])?;
        }
        NO_CAPABILITIES => drop_capabilities(&[CAP_SYS_ADMIN, CAP_PERFMON, CAP_BPF])?,
        NO_BPF => drop_capabilities(&[CAP_SYS_ADMIN, CAP_BPF])?,
        NO_PERFMON => drop_capabilities(&[CAP_SYS_ADMIN, CAP_PERFMON])?,
        NO_BTF => hide(&["/sys/kernel/btf"])?,
        NO_KPROBES => {
            hide(&["/sys/kernel/tracing", "/sys/kernel/debug", "/sys/bus/event_source/devices/kprobe"])?;
        }
        NO_PROC => hide(&["/proc"])?,
        FEW_FILES => setrlimit(Resource::RLIMIT_NOFILE, 16, 16)?,
        SMALL_FILES => setrlimit(Resource::RLIMIT_FSIZE, 4096, 4096)?,
        FAILING_DISK => fail(libc::SYS_fsync, libc::EIO)?,
        _ => bail!("unknown kind"),
    }
    Err(command.exec()).context("exec")
}

/// Root's capabilities after exec are those left in the bounding set.
fn drop_capabilities(capabilities: &[libc::c_ulong]) -> Result<()> {
    for capability in capabilities {
        // SAFETY: this prctl takes numbers only.
        let result = unsafe { libc::prctl(libc::PR_CAPBSET_DROP, *capability, 0, 0, 0) };
        if result != 0 {
            return Err(io::Error::last_os_error()).context("PR_CAPBSET_DROP");
        }
    }
    Ok(())
}

fn become_nobody() -> Result<()> {
    // SAFETY: these take numbers only.
    let results = unsafe { [libc::setgid(65534), libc::setuid(65534)] };
    for result in results {
        nix::errno::Errno::result(result).context("becoming the user nobody")?;
    }
    Ok(())
}

/// What `unshare --map-root-user` does for a user without privileges.
fn become_root_of(namespaces: CloneFlags) -> Result<()> {
    become_nobody()?;
    // A process that has changed its user may not write its own maps without this.
    nix::sys::prctl::set_dumpable(true)?;
    unshare(namespaces).context("unshare")?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", "0 65534 1").context("uid_map")?;
    fs::write("/proc/self/gid_map", "0 65534 1").context("gid_map")?;
    Ok(())
}

/// What systemd does for `User=` and `AmbientCapabilities=`.
fn become_nobody_with(capabilities: &[libc::c_ulong]) -> Result<()> {
    // Of linux/capability.h.
    const VERSION_3: u32 = 0x2008_0522;
    let set = capabilities.iter().fold(0u64, |set, capability| set | 1 << capability);
    let halves = [set as u32, (set >> 32) as u32];
    // The effective, the permitted and the inheritable ones of each half.
    let data = halves.map(|half| [half; 3]);
    let header = [VERSION_3, 0];
    // SAFETY: this prctl takes numbers only.
    let result = unsafe { libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0) };
    nix::errno::Errno::result(result).context("PR_SET_KEEPCAPS")?;
    become_nobody()?;
    // SAFETY: both are as long as version 3 says, and live until the call returns.
    let result = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), data.as_ptr()) };
    nix::errno::Errno::result(result).context("capset")?;
    for capability in capabilities {
        // SAFETY: this prctl takes numbers only.
        let result =
            unsafe { libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE, *capability, 0, 0) };
        nix::errno::Errno::result(result).context("PR_CAP_AMBIENT_RAISE")?;
    }
    Ok(())
}

/// This system call fails with that from now on.
fn fail(call: libc::c_long, error: i32) -> Result<()> {
    let error = SeccompAction::Errno(error.unsigned_abs());
    let architecture = env::consts::ARCH.try_into()?;
    let filter = SeccompFilter::new([(call, vec![])].into(), SeccompAction::Allow, error, architecture)?;
    let filter: BpfProgram = filter.try_into()?;
    seccompiler::apply_filter(&filter).context("seccomp")
}

/// Covers each of the directories by an empty one, for this process and what it becomes.
fn hide(directories: &[&str]) -> Result<()> {
    let none: Option<&str> = None;
    unshare(CloneFlags::CLONE_NEWNS).context("unshare(CLONE_NEWNS)")?;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).context("making mounts private")?;
    fs::create_dir_all(NOTHING)?;
    for directory in directories.iter().filter(|directory| Path::new(directory).exists()) {
        mount(Some(NOTHING), *directory, none, MsFlags::MS_BIND, none)
            .with_context(|| format!("hiding {directory}"))?;
    }
    Ok(())
}
