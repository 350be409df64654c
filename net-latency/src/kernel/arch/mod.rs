//! What differs from one architecture to another, a module for each, chosen here and nowhere else. The kernel side has its own
//! (`net-latency-ebpf/src/kernel/arch`).

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::*;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;
