//! All that the kernel gives its programs: maps, the ring buffer, the clock, the current task, this CPU, random numbers, and its
//! memory. On the BPF target it is aya's ([`target`]). Elsewhere it is plain Rust with the same meaning ([`host`]), so that the logic
//! above runs on any machine, against a kernel that a test makes.
//!
//! No logic: all decisions about packets are made above.

pub(crate) mod entry;
#[cfg(not(target_arch = "bpf"))]
pub mod host;
#[cfg(target_arch = "bpf")]
mod target;

#[cfg(not(target_arch = "bpf"))]
pub(crate) use host::*;
#[cfg(target_arch = "bpf")]
pub use target::*;

/// `BPF_ANY` (include/uapi/linux/bpf.h, as those below): an entry is put in whether there is one or not.
pub const ANY: u64 = 0;
/// `BPF_NOEXIST`: only if there is none.
pub const NO_EXIST: u64 = 1;
/// `BPF_RB_NO_WAKEUP`: the ring buffer's reader is not woken.
pub const NO_WAKEUP: u64 = 1;
/// `BPF_RB_FORCE_WAKEUP`: it is.
pub const FORCE_WAKEUP: u64 = 2;
/// `BPF_RB_AVAIL_DATA`: a query for the bytes that wait for the ring buffer's reader.
pub const AVAIL_DATA: u64 = 0;
