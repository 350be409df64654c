//! The system calls of a run that traces. Any other ends it, with a sentence that names the call: a call that was forgotten here has to be
//! known, and the run must neither hang nor go on after a wrong result.

use std::{
    collections::BTreeMap,
    ffi::{c_int, c_long, c_uint, c_void},
    io::{self, Write as _},
    ptr,
};

use anyhow::{Context as _, Result};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::getpid,
    stdio::stderr,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Length, SeccompCmpOp as Is, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch, apply_filter_all_threads,
};

use super::Later;
use crate::kernel::arch;

/// What every run calls, whatever the arguments, besides [`arch::OLDER_CALLS`]. Those of threads and memory are of glibc and of musl.
const ALWAYS: &[c_long] = &[
    // Reading, writing, waiting.
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_recvfrom,
    libc::SYS_close,
    libc::SYS_fcntl,
    libc::SYS_lseek,
    libc::SYS_ppoll,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    // What lies where: /proc, /sys, the time zone.
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fstatfs,
    libc::SYS_getdents64,
    libc::SYS_readlinkat,
    libc::SYS_getcwd,
    // Memory, except that `PROTECTING` is looked at.
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    // Threads. The second filter answers clone3, so that it is clone that makes them.
    libc::SYS_clone3,
    libc::SYS_futex,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_rseq,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_setpriority,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // Signals. After SIGSTOP the kernel continues some waits by a call of its own.
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    // Time, which only some clocks have without a call.
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_nanosleep,
    // Others.
    libc::SYS_geteuid,
    libc::SYS_getrandom,
];
/// Calls whose third argument may not ask for memory to be executed.
const PROTECTING: [c_long; 2] = [libc::SYS_mmap, libc::SYS_mprotect];
/// To give a file its name when it is whole and on the disk, and to remove others.
const REPLACING: &[c_long] = &[libc::SYS_fsync, libc::SYS_renameat, libc::SYS_unlinkat];
/// To wait for a command, and to pass signals on to it, by the descriptor that is open.
const COMMANDING: &[c_long] = &[libc::SYS_pidfd_send_signal, libc::SYS_wait4, libc::SYS_waitid];
/// To answer scrapers on the socket that listens.
const ANSWERING: &[c_long] = &[
    libc::SYS_accept4,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
];

/// Commands of bpf(2) (`enum bpf_cmd`) that read and write what maps hold, and ask what an open object is. None loads,
/// attaches, makes, or opens by an id.
const BPF_COMMANDS: [u64; 6] = [
    1,  // BPF_MAP_LOOKUP_ELEM
    2,  // BPF_MAP_UPDATE_ELEM
    3,  // BPF_MAP_DELETE_ELEM
    4,  // BPF_MAP_GET_NEXT_KEY
    15, // BPF_OBJ_GET_INFO_BY_FD
    24, // BPF_MAP_LOOKUP_BATCH
];
/// `BPF_PROG_TEST_RUN`: runs a program that is open.
const BPF_RUN: u64 = 10;
/// `PERF_EVENT_IOC_DISABLE` (include/uapi/linux/perf_event.h): detaching, before Linux 5.15.
const PERF_EVENT_IOC_DISABLE: u64 = 0x2401;

/// Whether this kernel, and what this process runs in, can filter system calls, and end a call by a signal.
pub(super) fn can_be_filtered() -> bool {
    let action = libc::SECCOMP_RET_TRAP;
    // SAFETY: the call reads one action, and changes nothing.
    unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0, ptr::from_ref(&action)) == 0
    }
}

/// From now on all threads, and those that they make, can make no other calls than `later` needs. No process can be
/// started.
///
/// # Errors
/// If the kernel refuses, which it does not if calls [can be filtered](can_be_filtered).
pub(super) fn restrict(later: &Later<'_>) -> Result<()> {
    // SAFETY: the handler allocates nothing, takes no lock, and makes system calls only.
    unsafe { signal_hook_registry::register_sigaction(libc::SIGSYS, end) }.context("cannot handle SIGSYS")?;
    // The C library takes clone instead, whose flags can be looked at.
    let unknown = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    let without_clone3 = compile([(libc::SYS_clone3, vec![])], SeccompAction::Allow, unknown)?;
    let wanted = compile(rules(later), SeccompAction::Trap, SeccompAction::Allow)?;
    for filter in [without_clone3, wanted] {
        apply_filter_all_threads(&filter).context("cannot filter system calls")?;
    }
    Ok(())
}

fn compile(
    rules: impl IntoIterator<Item = (c_long, Vec<Conditions>)>,
    otherwise: SeccompAction,
    if_listed: SeccompAction,
) -> Result<BpfProgram> {
    let mut compiled = BTreeMap::new();
    for (call, alternatives) in rules {
        let alternatives = alternatives.into_iter().map(|conditions| {
            let conditions = conditions
                .into_iter()
                .map(|(argument, length, is, value)| SeccompCondition::new(argument, length, is, value));
            SeccompRule::new(conditions.collect::<Result<_, _>>()?)
        });
        compiled.insert(call, alternatives.collect::<Result<Vec<_>, _>>()?);
    }
    let architecture = TargetArch::try_from(std::env::consts::ARCH)?;
    Ok(SeccompFilter::new(compiled, otherwise, if_listed, architecture)?.try_into()?)
}

/// What arguments have to be: which, how much of it, how it compares, and to what.
type Conditions = Vec<(u8, Length, Is, u64)>;

/// The calls, each with what its arguments may be, or with nothing if they may be anything.
fn rules(later: &Later<'_>) -> BTreeMap<c_long, Vec<Conditions>> {
    let word = |argument, is, value: u64| (argument, Length::Dword, is, value);
    let is_one_of = |argument, values: &[u64]| -> Vec<Conditions> {
        values.iter().map(|&value| vec![word(argument, Is::Eq, value)]).collect()
    };
    let bits = |argument, mask: c_int, value: c_int| {
        vec![word(argument, Is::MaskedEq(u64::from(mask.cast_unsigned())), u64::from(value.cast_unsigned()))]
    };
    let mut commands = BPF_COMMANDS.to_vec();
    if later.runs_program {
        commands.push(BPF_RUN);
    }
    let mut groups = vec![ALWAYS, arch::OLDER_CALLS];
    let mut ioctls = vec![libc::TCGETS, libc::TCGETS2, libc::TIOCGWINSZ, libc::SIOCGIFNAME];
    ioctls.push(PERF_EVENT_IOC_DISABLE);
    let writes = libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC;
    // To read.
    let mut opens = vec![(writes, libc::O_RDONLY)];
    if later.output.is_some() {
        // To take a line back that was written in part.
        groups.push(&[libc::SYS_ftruncate]);
    }
    if later.files.is_some() {
        groups.push(REPLACING);
    }
    if later.output.or(later.files).is_some() {
        opens = vec![(0, 0)];
    }
    if later.has_command {
        groups.push(COMMANDING);
    }
    if later.answers {
        groups.push(ANSWERING);
    }
    if later.socket.is_some() {
        groups.push(&[libc::SYS_unlinkat]);
    }
    if later.draws {
        ioctls.extend([libc::TCSETS, libc::TCSETS2]);
        // The terminal, where keys don't come from standard input.
        opens.push((libc::O_CREAT | libc::O_TRUNC, 0));
    }
    let mut rules: BTreeMap<_, _> = groups.into_iter().flatten().map(|&call| (call, Vec::new())).collect();
    for &(call, flags) in arch::OPENING_CALLS {
        rules.insert(call, opens.iter().map(|&(mask, value)| bits(flags, mask, value)).collect());
    }
    for call in PROTECTING {
        rules.insert(call, vec![bits(2, libc::PROT_EXEC, 0)]);
    }
    let this = u64::from(getpid().as_raw_nonzero().get().unsigned_abs());
    rules.extend([
        (libc::SYS_bpf, is_one_of(0, &commands)),
        (libc::SYS_ioctl, is_one_of(1, &ioctls)),
        // A thread, and nothing else.
        (libc::SYS_clone, vec![bits(0, libc::CLONE_THREAD, libc::CLONE_THREAD)]),
        (libc::SYS_prctl, is_one_of(0, &[libc::PR_SET_NAME as u64])),
        // A panic within a panic.
        (libc::SYS_tgkill, is_one_of(0, &[this])),
        // Names of devices are looked up on a socket that leads nowhere.
        (libc::SYS_socket, is_one_of(0, &[libc::AF_UNIX as u64])),
        // To whom a socket is connected.
        (libc::SYS_sendto, vec![vec![(4, Length::Qword, Is::Eq, 0)]]),
        // The limits of this process, to be read.
        (libc::SYS_prlimit64, vec![vec![word(0, Is::Eq, 0), (2, Length::Qword, Is::Eq, 0)]]),
    ]);
    rules
}

/// What SIGSYS brings (`_sigsys` in include/uapi/asm-generic/siginfo.h).
#[repr(C)]
struct Refusal {
    signal: c_int,
    error: c_int,
    code: c_int,
    address: *const c_void,
    call: c_int,
    architecture: c_uint,
}

/// Ends this process for a call that is not on the list. Where the C library has blocked signals meanwhile, the kernel ends
/// it by this one.
fn end(info: &libc::siginfo_t) {
    /// Why the signal came (include/uapi/asm-generic/siginfo.h).
    const SYS_SECCOMP: c_int = 1;

    if info.si_code == SYS_SECCOMP {
        // SAFETY: of this signal with this code the kernel says so much, and the whole is larger.
        let refusal = unsafe { ptr::from_ref(info).cast::<Refusal>().read() };
        let mut text = [0; 256];
        let mut room = &mut text[..];
        // It fits.
        let _ = writeln!(
            room,
            "net-latency: blocked unexpected system call {} of architecture {:#x} (docs/security.md): stopping; please \
             report this",
            refusal.call, refusal.architecture
        );
        let left = room.len();
        say(&text[..text.len() - left]);
    }
    // SAFETY: it ends the process, and runs nothing of it.
    unsafe { libc::_exit(1) }
}

/// Tells standard error, unless that would take time.
fn say(text: &[u8]) {
    let takes = poll(&mut [PollFd::new(&stderr(), PollFlags::OUT)], Some(&Timespec::default()));
    if takes.is_ok_and(|ready| ready > 0) {
        // There is no other place to report to.
        let _: Result<usize, io::Error> = rustix::io::write(stderr(), text).map_err(Into::into);
    }
}

#[cfg(test)]
mod tests {
    use std::{env, fs, net::UdpSocket, os::unix::process::CommandExt as _, process::Command, thread};

    use super::*;
    use crate::run::privileges::tests::{PART, again};

    #[test]
    fn a_call_that_is_not_listed_ends_the_process_with_a_sentence() {
        let all = Later {
            output: Some("lines".as_ref()),
            has_command: true,
            answers: true,
            draws: true,
            ..Later::default()
        };
        let forbidden: [(&str, fn()); 6] = [
            // The C library's own blocks signals before, so that SIGSYS itself ends the process.
            ("fork", || {
                // SAFETY: the child would be a copy that ends.
                unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
            }),
            ("execute a program", || drop(Command::new("true").exec())),
            ("connect", || drop(UdpSocket::bind("127.0.0.1:0"))),
            ("execute memory", || {
                // SAFETY: new memory, which is not used yet.
                unsafe {
                    libc::mmap(
                        ptr::null_mut(),
                        4096,
                        libc::PROT_EXEC,
                        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                        -1,
                        0,
                    )
                };
            }),
            ("of another thread", || {
                let _ = thread::spawn(|| fs::hard_link("/nowhere", "/nowhere else")).join();
            }),
            ("signal", || {
                let _ = rustix::process::test_kill_process(getpid());
            }),
        ];
        if let Ok(part) = env::var(PART) {
            restrict(&all).expect("it can be filtered");
            let (_, call) = forbidden.iter().find(|(name, _)| *name == part).expect("one of them");
            call();
            println!("it goes on");
            return;
        }
        assert!(can_be_filtered());
        for (name, _) in forbidden {
            let output =
                again(module_path!(), "a_call_that_is_not_listed_ends_the_process_with_a_sentence", name);
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{name}: {:?} {said}", output.status);
            assert!(said.contains("blocked unexpected system call"), "{name}: {said}");
            assert!(!String::from_utf8_lossy(&output.stdout).contains("it goes on"), "{name}");
        }
    }

    #[test]
    fn what_is_listed_works() {
        if env::var(PART).is_ok() {
            restrict(&Later::default()).expect("it can be filtered");
            // Threads, memory, files to be read, names of devices, time zones, time, a panic.
            let large = thread::spawn(|| vec![1u8; 64 << 20].len()).join().expect("a thread");
            assert_eq!(large, 64 << 20);
            fs::read_to_string("/proc/self/status").expect("readable");
            fs::read_dir("/proc/self/fd").expect("readable").count();
            assert!(crate::kernel::devices::Devices::default().name(0, 1, 0).is_none());
            // SAFETY: the buffer has the room that the function asks for.
            let name = unsafe { libc::if_indextoname(1, [0; libc::IF_NAMESIZE].as_mut_ptr()) };
            assert!(!name.is_null());
            println!("{:?}", chrono::Local::now());
            thread::sleep(std::time::Duration::from_millis(1));
            thread::spawn(|| panic!("as it may be")).join().expect_err("a panic");
            println!("all of it worked");
            return;
        }
        let output = again(module_path!(), "what_is_listed_works", "all");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("all of it worked"), "{said}{}", String::from_utf8_lossy(&output.stderr));
    }

    #[test]
    fn files_are_written_only_where_lines_go_to_one() {
        let directory = env::temp_dir();
        let path = directory.join(format!("net-latency-test-{}", std::process::id()));
        if let Ok(part) = env::var(PART) {
            let output = (part == "lines").then_some(path.as_path());
            restrict(&Later { output, ..Later::default() }).expect("it can be filtered");
            fs::write(&path, "").expect("made");
            fs::hard_link(&path, "/nowhere").expect_err("it is neither renamed nor removed");
            return;
        }
        let name = "files_are_written_only_where_lines_go_to_one";
        for part in ["no lines", "lines"] {
            let said = String::from_utf8_lossy(&again(module_path!(), name, part).stderr).into_owned();
            let call = if part == "lines" { libc::SYS_linkat } else { libc::SYS_openat };
            assert!(said.contains(&format!("system call {call} of")), "{part}: {said}");
        }
    }
}
