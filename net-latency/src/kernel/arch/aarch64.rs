//! arm64.

use libc::c_long;

use crate::kernel::btf::Btf;

/// The kernel's function of a system call.
macro_rules! system_call {
    ($name:literal) => {
        concat!("__arm64_sys_", $name)
    };
}
pub(crate) use system_call;

/// Arguments that a BTF trampoline hands on at most: all that registers have (`arch_prepare_bpf_trampoline`).
pub(crate) const TRAMPOLINE_ARGUMENTS: [usize; 2] = [8, 8];

/// Functions that cost a system call and nothing else, to measure what a probe costs.
pub(crate) const CHEAP_CALLS: [&str; 3] =
    [system_call!("getppid"), "__do_sys_getppid", system_call!("getuid")];

/// Variables that [`preempt_count`] asks for.
pub(crate) const COUNT_VARIABLES: [&str; 0] = [];
/// Where CPUs have their variables, and the one that `calls` reads: here the kernel tells what is in it.
pub(crate) const CALL_VARIABLES: [&str; 0] = [];

/// Where each task has its preemption count. Nothing where the kernel does not tell.
pub(crate) fn preempt_count(btf: &Btf<'_>, _variable: impl Fn(&str) -> u64) -> Option<u64> {
    btf.offset("task_struct.thread_info.preempt_count").ok().map(u64::from)
}

/// The array of all pages may end here.
pub(crate) const TEXT: u64 = u64::MAX;
/// What KASLR moves the array of all pages by, at least: by what pages of 16 KiB have of 32 MiB (`ARM64_MEMSTART_ALIGN`).
pub(crate) const PAGES_STEP: u64 = 1 << 17;

/// What tells the kernel side that it has got where pages are mapped, for pages of N bytes.
pub(crate) fn values_of_pages(page: usize) -> u64 {
    page as u64
}

/// Bytes of a task's stack before Linux 5.15: they depend on the size of pages.
pub(crate) const STACK: Option<u32> = None;

/// The number of a system call among a task's registers, and the word that says whether it is one of 32 bits.
pub(crate) const CALL_NUMBER: &str = "pt_regs.syscallno";
pub(crate) const OF_32_BITS: &str = "task_struct.thread_info.flags";

/// System calls for which newer ones do, by any C library: there are none here.
pub(crate) const OLDER_CALLS: &[c_long] = &[];
/// Those that open a file, and which of their arguments has the flags.
pub(crate) const OPENING_CALLS: &[(c_long, u8)] = &[(libc::SYS_openat, 2)];
