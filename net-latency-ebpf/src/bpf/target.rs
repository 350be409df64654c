//! The kernel's own, by aya.

use aya_ebpf::helpers::{self, generated};
#[cfg(feature = "hist")]
pub use aya_ebpf::maps::PerCpuHashMap;
pub use aya_ebpf::{
    macros::map,
    maps::{Array, CgroupArray, HashMap, LpmTrie, LruHashMap, PerCpuArray, RingBuf, lpm_trie::Key},
};

/// Now, in ns of `CLOCK_MONOTONIC`.
#[inline(always)]
pub fn now() -> u64 {
    // SAFETY: the helper takes nothing and has no side effect.
    unsafe { helpers::bpf_ktime_get_ns() }
}

/// The CPU this runs on.
#[inline(always)]
pub fn cpu() -> u32 {
    // SAFETY: the helper takes nothing and has no side effect.
    unsafe { helpers::bpf_get_smp_processor_id() }
}

/// A random number.
#[inline(always)]
pub fn random() -> u32 {
    // SAFETY: the helper takes nothing.
    unsafe { helpers::bpf_get_prandom_u32() }
}

/// Process id of the current task in the upper half, thread id in the lower.
#[inline(always)]
pub fn current_ids() -> u64 {
    helpers::bpf_get_current_pid_tgid()
}

/// The current task, a `struct task_struct`.
#[inline(always)]
pub fn current_task() -> *const u8 {
    // SAFETY: the helper takes nothing.
    unsafe { generated::bpf_get_current_task() as *const u8 }
}

/// The current task, as a pointer that the verifier knows (Linux 5.11).
#[inline(always)]
pub fn current_task_known() -> *const u8 {
    // SAFETY: the helper takes nothing.
    unsafe { generated::bpf_get_current_task_btf().cast_const().cast() }
}

/// The registers that a task had when it entered the kernel last, a `struct pt_regs` that the verifier knows (Linux 5.15).
///
/// # Safety
/// The verifier knows it as a task.
#[cfg(feature = "fine")]
#[inline(always)]
pub unsafe fn task_registers(task: *const u8) -> *const u8 {
    // SAFETY: as the caller says.
    unsafe { generated::bpf_task_pt_regs(task.cast_mut().cast()) as *const u8 }
}

/// Writes the name of the current thread, ended by NUL.
///
/// # Safety
/// There are N bytes.
#[inline(always)]
pub unsafe fn read_current_comm(to: *mut u8, len: u32) {
    // SAFETY: as the caller says.
    unsafe { generated::bpf_get_current_comm(to.cast(), len) };
}

/// The id of the current task's cgroup. Tracing programs have it on Linux 5.10 and later.
#[inline(always)]
pub fn current_cgroup() -> u64 {
    // SAFETY: the helper takes nothing.
    unsafe { generated::bpf_get_current_cgroup_id() }
}

/// Copies bytes of the kernel's memory (`bpf_probe_read_kernel`, Linux 5.5); zeroes where it can't be read.
///
/// # Safety
/// `to` has room for `len` bytes. The address may be any.
#[inline(always)]
pub unsafe fn read_kernel(to: *mut u8, len: u32, from: *const u8) {
    // SAFETY: as the caller says.
    unsafe { generated::bpf_probe_read_kernel(to.cast(), len, from.cast()) };
}

/// Copies a string of the kernel's memory, up to the first NUL or `len` bytes.
///
/// # Safety
/// As for [`read_kernel`].
#[inline(always)]
pub unsafe fn read_kernel_str(to: *mut u8, len: u32, from: *const u8) {
    // SAFETY: as the caller says.
    unsafe { generated::bpf_probe_read_kernel_str(to.cast(), len, from.cast()) };
}

/// A `struct sock_common` as a `struct tcp_sock` that the verifier knows; null if it is none. Tracing programs may ask since Linux 5.9.
///
/// # Safety
/// It is a `struct sock_common`.
#[inline(always)]
pub unsafe fn tcp_sock(sk: *const u8) -> *const u8 {
    // SAFETY: the helper checks that `sk` is a full TCP socket.
    unsafe { generated::bpf_skc_to_tcp_sock(sk.cast_mut().cast()).cast_const().cast() }
}

/// Hands a reserved entry of a ring buffer to its reader.
///
/// # Safety
/// It was reserved, and not handed back yet.
#[inline(always)]
pub unsafe fn submit(entry: *mut u8, flags: u64) {
    // SAFETY: as the caller says.
    unsafe { generated::bpf_ringbuf_submit(entry.cast(), flags) };
}

/// Gives a reserved entry of a ring buffer back.
///
/// # Safety
/// Likewise.
#[inline(always)]
pub unsafe fn discard(entry: *mut u8, flags: u64) {
    // SAFETY: as the caller says.
    unsafe { generated::bpf_ringbuf_discard(entry.cast(), flags) };
}
