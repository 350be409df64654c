//! In which context a CPU is: a task, a softirq or an interrupt; and what led to a softirq.

use aya_ebpf::{bindings::BPF_ANY, helpers::generated};
use net_latency_common::journey::{CONTEXT_HARDIRQ, CONTEXT_PROCESS, CONTEXT_SOFTIRQ, CONTEXT_UNKNOWN};

use super::{
    maps::{INTERRUPTS, SOFTIRQS},
    settings::given,
};
use crate::{
    Outcome,
    emit::cpu,
    memory::{Memory, Number, probe},
    now,
    skb::Skb,
};

/// The vectors that matter here (include/linux/interrupt.h): sending and receiving.
const NET_TX: u32 = 2;
const NET_RX: u32 = 3;

/// Softirqs of one CPU.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Softirqs {
    /// When this CPU last entered one.
    entered_at: u64,
    /// The raising of that one.
    raise: Raise,
    /// When `NET_TX` and `NET_RX` were raised here since they last ran: the first time, or the last time by an interrupt.
    pending: [Raise; 2],
    /// When `NET_RX` was last entered here, and when before that.
    received_at: [u64; 2],
    /// When the handler of an interrupt began that runs here; 0 if none does.
    handling_at: u64,
    /// The number of its interrupt.
    handling: u64,
}

/// When a softirq was raised.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct Raise {
    /// 0 where it can't be told.
    pub(super) at: u64,
    /// Not 0 if the handler of an interrupt did it.
    pub(super) by_handler: u64,
}

/// The interrupt whose handler last scheduled a driver's NAPI.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Interrupt {
    /// When the handler began; 0 if something else scheduled it last.
    pub(super) at: u64,
    /// Its number.
    pub(super) number: u32,
    /// Where.
    cpu: u32,
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

/// A handler of this interrupt begins on this CPU.
///
/// # Errors
/// Never.
#[inline(always)]
pub fn handling(interrupt: u32) -> Outcome {
    if let Some(softirqs) = SOFTIRQS.get_ptr_mut(0) {
        // SAFETY: index 0 of a per-CPU array is valid.
        unsafe {
            (*softirqs).handling_at = now();
            (*softirqs).handling = interrupt.into();
        }
    }
    Ok(())
}

/// It has ended.
///
/// # Errors
/// Never.
#[inline(always)]
pub fn handled() -> Outcome {
    if let Some(softirqs) = SOFTIRQS.get_ptr_mut(0) {
        // SAFETY: index 0 of a per-CPU array is valid.
        unsafe { (*softirqs).handling_at = 0 };
    }
    Ok(())
}

/// `__napi_schedule(napi)` or `__napi_schedule_irqoff(napi)`: what this driver has received is to be taken in a softirq.
///
/// # Errors
/// Never.
#[inline(always)]
pub fn scheduled<M: Memory>(napi: Number, _place: u64) -> Outcome {
    let Some(softirqs) = SOFTIRQS.get(0) else { return Ok(()) };
    let napi = (napi.address() as *const u8).wrapping_add(given!(napi_id) as usize);
    // SAFETY: any address survives.
    let id: u32 = unsafe { probe(napi) };
    let interrupt =
        Interrupt { at: softirqs.handling_at, number: softirqs.handling as u32, cpu: cpu().into() };
    // Nothing could be done about a failure: the row is absent.
    let _ = INTERRUPTS.insert(&id, &interrupt, BPF_ANY.into());
    Ok(())
}

/// A softirq is raised on this CPU.
///
/// # Errors
/// Never.
#[inline(always)]
pub fn raised(vector: u32) -> Outcome {
    let Some(softirqs) = SOFTIRQS.get_ptr_mut(0) else { return Ok(()) };
    // SAFETY: index 0 of a per-CPU array is valid.
    unsafe {
        let Some(raise) = pending(softirqs, vector) else { return Ok(()) };
        if (*raise).at == 0 || (*softirqs).handling_at != 0 {
            (*raise).at = now();
            (*raise).by_handler = (*softirqs).handling_at;
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
    let at = now();
    // SAFETY: index 0 of a per-CPU array is valid.
    unsafe {
        (*softirqs).entered_at = at;
        (*softirqs).raise.at = 0;
        if let Some(raise) = pending(softirqs, vector) {
            (*softirqs).raise.at = (*raise).at;
            (*softirqs).raise.by_handler = (*raise).by_handler;
            (*raise).at = 0;
        }
        if vector == NET_RX {
            (*softirqs).received_at[1] = (*softirqs).received_at[0];
            (*softirqs).received_at[0] = at;
        }
    }
    Ok(())
}

/// # Safety
/// `softirqs` is a CPU's element.
#[inline(always)]
unsafe fn pending(softirqs: *mut Softirqs, vector: u32) -> Option<*mut Raise> {
    // SAFETY: the caller's.
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
pub(super) fn softirq() -> (u64, Raise) {
    match SOFTIRQS.get(0) {
        Some(softirqs) => (softirqs.entered_at, softirqs.raise),
        None => (0, Raise::default()),
    }
}

/// The interrupt that led this CPU to take this skb from its driver: when its handler began, and its number. (0, 0) if
/// there is none: where the driver was looked after again without one, as under load.
#[inline(always)]
pub(super) fn interrupt<M: Memory>(skb: Skb<M>) -> (u64, u32) {
    let none = (0, 0);
    if given!(skb_napi_id) == 0 {
        return none;
    }
    let id: u32 = skb.field(given!(skb_napi_id) as usize);
    let (Some(interrupt), Some(softirqs)) = (INTERRUPTS.get_ptr(&id), SOFTIRQS.get(0)) else { return none };
    // SAFETY: an element that is never freed.
    let interrupt = unsafe { &*interrupt };
    // What scheduled it since would have been seen, unless the kernel skipped that.
    let is_new = interrupt.at > softirqs.received_at[1] && interrupt.cpu == u32::from(cpu());
    if is_new { (interrupt.at, interrupt.number) } else { none }
}
