//! In which context a CPU is: a task, a softirq or an interrupt.

use aya_ebpf::helpers::generated;
use net_latency_common::journey::{CONTEXT_HARDIRQ, CONTEXT_PROCESS, CONTEXT_SOFTIRQ, CONTEXT_UNKNOWN};

use super::{maps::SOFTIRQS, settings::given};
use crate::{Outcome, emit::cpu, memory::probe, now};

/// The vectors that matter here (include/linux/interrupt.h): sending and receiving.
const NET_TX: u32 = 2;
const NET_RX: u32 = 3;

/// Softirqs of one CPU.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Softirqs {
    /// When this CPU last entered one.
    pub(super) entered_at: u64,
    /// When that one was last raised here before; 0 where it can't be told.
    pub(super) raised_at: u64,
    /// When `NET_TX` and `NET_RX` were first raised here since they last ran.
    pending: [u64; 2],
}

/// The context of the CPU this runs on, as the kernel's `in_hardirq()` and its like have it
/// (include/linux/preempt.h).
#[inline(always)]
pub(super) fn current() -> u8 {
    const SOFTIRQ_SERVED: u32 = 1 << 8;
    const HARDIRQ: u32 = 1 << 16;
    const HARDIRQS: u32 = 0xf << 16;
    const NMIS: u32 = 0xf << 20;
    let (offsets, counts) = (given!(per_cpu_offset), given!(preempt_count));
    if offsets == 0 || counts == 0 {
        return CONTEXT_UNKNOWN;
    }
    // SAFETY: addresses of the kernel's variables; any address survives.
    let mut count: u32 = unsafe {
        let offset: u64 = probe((offsets + u64::from(cpu()) * 8) as *const u8);
        probe(counts.wrapping_add(offset) as *const u8)
    };
    if count & NMIS != 0 {
        // A probe that is a breakpoint counts as one, and as an interrupt too (`nmi_enter`).
        count = count.wrapping_sub(HARDIRQ);
    }
    if given!(task_softirq) != 0 {
        // SAFETY: the current task lives; offset from BTF.
        count |= unsafe {
            let task = generated::bpf_get_current_task() as *const u8;
            probe::<u32>(task.wrapping_add(given!(task_softirq) as usize))
        } & SOFTIRQ_SERVED;
    }
    if count & HARDIRQS != 0 {
        CONTEXT_HARDIRQ
    } else if count & SOFTIRQ_SERVED != 0 {
        CONTEXT_SOFTIRQ
    } else {
        CONTEXT_PROCESS
    }
}

/// A softirq is raised on this CPU.
///
/// # Errors
/// Never.
#[inline(always)]
pub fn raised(vector: u32) -> Outcome {
    if let Some(place) = pending(vector) {
        // SAFETY: points into this CPU's element.
        unsafe {
            if *place == 0 {
                *place = now();
            }
        }
    }
    Ok(())
}

/// This CPU begins to run a softirq.
///
/// # Errors
/// Never.
#[inline(always)]
pub fn entered(vector: u32) -> Outcome {
    let Some(softirqs) = SOFTIRQS.get_ptr_mut(0) else { return Ok(()) };
    let raised_at = match pending(vector) {
        // SAFETY: points into this CPU's element.
        Some(place) => unsafe { core::mem::take(&mut *place) },
        None => 0,
    };
    // SAFETY: index 0 of a per-CPU array is valid.
    unsafe {
        (*softirqs).entered_at = now();
        (*softirqs).raised_at = raised_at;
    }
    Ok(())
}

#[inline(always)]
fn pending(vector: u32) -> Option<*mut u64> {
    let softirqs = SOFTIRQS.get_ptr_mut(0)?;
    // SAFETY: index 0 of a per-CPU array is valid.
    unsafe {
        match vector {
            NET_TX => Some(&raw mut (*softirqs).pending[0]),
            NET_RX => Some(&raw mut (*softirqs).pending[1]),
            _ => None,
        }
    }
}

/// When this CPU entered its softirq, and when that was raised.
#[inline(always)]
pub(super) fn softirq() -> (u64, u64) {
    match SOFTIRQS.get(0) {
        Some(softirqs) => (softirqs.entered_at, softirqs.raised_at),
        None => (0, 0),
    }
}
