//! What differs from one architecture to another.

/// The kernel's function of a system call.
#[cfg(target_arch = "x86_64")]
macro_rules! system_call {
    ($name:literal) => {
        concat!("__x64_sys_", $name)
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! system_call {
    ($name:literal) => {
        concat!("__arm64_sys_", $name)
    };
}
pub(crate) use system_call;

/// Whether a kprobe at the beginning of a function comes before ftrace's call there: it is a breakpoint on arm64, and a call of ftrace's
/// itself on x86-64 (CONFIG_KPROBES_ON_FTRACE).
pub(crate) const KPROBES_COME_FIRST: bool = cfg!(target_arch = "aarch64");

/// How libseccomp calls it.
pub(crate) const SECCOMP: &str =
    if cfg!(target_arch = "aarch64") { "SCMP_ARCH_AARCH64" } else { "SCMP_ARCH_X86_64" };
