//! x86-64.

use libc::c_long;

use crate::kernel::{
    btf::Btf,
    symbols::{CURRENT_KPROBE, PER_CPU_OFFSET},
};

/// The kernel's function of a system call.
macro_rules! system_call {
    ($name:literal) => {
        concat!("__x64_sys_", $name)
    };
}
pub(crate) use system_call;

/// Arguments that a BTF trampoline hands on at most, before and since Linux 6.6 (`arch_prepare_bpf_trampoline`, `MAX_BPF_FUNC_ARGS`).
pub(crate) const TRAMPOLINE_ARGUMENTS: [usize; 2] = [6, 12];

/// Functions that cost a system call and nothing else, to measure what a probe costs.
pub(crate) const CHEAP_CALLS: [&str; 3] =
    [system_call!("getppid"), "__do_sys_getppid", system_call!("getuid")];

/// Variables that [`preempt_count`] asks for: where CPUs have theirs, each CPU's own, or from Linux 6.2 to 6.14 a part of another.
pub(crate) const COUNT_VARIABLES: [&str; 3] = [PER_CPU_OFFSET, "__preempt_count", "pcpu_hot"];
/// Where CPUs have their variables, and the one that `calls` reads.
pub(crate) const CALL_VARIABLES: [&str; 2] = [PER_CPU_OFFSET, CURRENT_KPROBE];

/// Where the preemption count is: of each CPU, relative to where it has its variables. `variable` says where one is, 0 if there is
/// none. Nothing where the kernel does not show it.
pub(crate) fn preempt_count(btf: &Btf<'_>, variable: impl Fn(&str) -> u64) -> Option<u64> {
    let variables = COUNT_VARIABLES.map(|name| Some(variable(name)).filter(|&address| address != 0));
    let [Some(_), count, hot] = variables else { return None };
    count.or_else(|| Some(hot? + u64::from(btf.offset("pcpu_hot.preempt_count").ok()?)))
}

/// The kernel's code and data, its modules and fixed places are mapped from here on.
pub(crate) const TEXT: u64 = 0xffff_ffff_8000_0000;
/// What KASLR moves the array of all pages by (`PUD_SIZE`).
pub(crate) const PAGES_STEP: u64 = 1 << 30;

/// What tells the kernel side that it has got where pages are mapped, for pages of N bytes: there are no others.
pub(crate) fn values_of_pages(_page: usize) -> u64 {
    1
}

/// Bytes of a task's stack before Linux 5.15 (`THREAD_SIZE`), without KASAN.
pub(crate) const STACK: Option<u32> = Some(16 << 10);

/// The number of a system call among a task's registers, and the word that says whether it is one of 32 bits.
pub(crate) const CALL_NUMBER: &str = "pt_regs.orig_ax";
pub(crate) const OF_32_BITS: &str = "task_struct.thread_info.status";

/// System calls for which newer ones do, by any C library: these architectures have both.
pub(crate) const OLDER_CALLS: &[c_long] =
    &[libc::SYS_poll, libc::SYS_epoll_wait, libc::SYS_stat, libc::SYS_lstat, libc::SYS_readlink];
/// Those that open a file, and which of their arguments has the flags. musl calls the older one.
pub(crate) const OPENING_CALLS: &[(c_long, u8)] = &[(libc::SYS_openat, 2), (libc::SYS_open, 1)];
