//! In which context a CPU is: a task, a softirq or an interrupt; and what led to a softirq.

use net_latency_common::journey::{CONTEXT_HARDIRQ, CONTEXT_PROCESS, CONTEXT_SOFTIRQ, CONTEXT_UNKNOWN};

use super::settings::given;
use crate::bpf::{ANY, LruHashMap, PerCpuArray, cpu, map, now};
use crate::kernel::{
    context::{self, CpuContext},
    memory::{Memory, Number, probe},
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

/// What this CPU's softirqs did last.
#[map]
static SOFTIRQS: PerCpuArray<Softirqs> = PerCpuArray::with_max_entries(1, 0);

/// Which interrupt last had a driver's packets taken, by NAPI id. Evicts: no row of the interrupt.
#[map]
static INTERRUPTS: LruHashMap<u32, Interrupt> = LruHashMap::with_max_entries(1024, 0);

/// The context of the CPU this runs on, a probe's breakpoint aside.
#[inline(always)]
pub(super) fn current() -> u8 {
    let preempt_count = given!(preempt_count);
    if preempt_count == 0 {
        return CONTEXT_UNKNOWN;
    }
    let count = context::without_breakpoint(context::preempt_count(given!(per_cpu_offset), preempt_count));
    match context::decode(count, || context::softirq_disable_cnt(given!(task_softirq))) {
        CpuContext::Task => CONTEXT_PROCESS,
        CpuContext::Softirq => CONTEXT_SOFTIRQ,
        CpuContext::Hardirq | CpuContext::Nmi => CONTEXT_HARDIRQ,
    }
}

/// A handler of this interrupt begins on this CPU.
#[inline(always)]
pub fn handling(interrupt: u32) {
    if let Some(softirqs) = SOFTIRQS.get_ptr_mut(0) {
        // SAFETY: index 0 of a per-CPU array is valid.
        unsafe {
            (*softirqs).handling_at = now();
            (*softirqs).handling = interrupt.into();
        }
    }
}

/// It has ended.
#[inline(always)]
pub fn handled() {
    if let Some(softirqs) = SOFTIRQS.get_ptr_mut(0) {
        // SAFETY: index 0 of a per-CPU array is valid.
        unsafe { (*softirqs).handling_at = 0 };
    }
}

/// `__napi_schedule(napi)` or `__napi_schedule_irqoff(napi)`: what this driver has received is to be taken in a softirq.
#[inline(always)]
pub fn scheduled<M: Memory>(napi: Number, _place: u64) {
    let Some(softirqs) = SOFTIRQS.get(0) else { return };
    let napi = (napi.address() as *const u8).wrapping_add(given!(napi_id) as usize);
    // SAFETY: any address survives.
    let id: u32 = unsafe { probe(napi) };
    let interrupt = Interrupt { at: softirqs.handling_at, number: softirqs.handling as u32, cpu: cpu() };
    // Nothing could be done about a failure: the row is absent.
    let _ = INTERRUPTS.insert(&id, &interrupt, ANY);
}

/// A softirq is raised on this CPU.
#[inline(always)]
pub fn raised(vector: u32) {
    let Some(softirqs) = SOFTIRQS.get_ptr_mut(0) else { return };
    // SAFETY: index 0 of a per-CPU array is valid.
    unsafe {
        let Some(raise) = pending(softirqs, vector) else { return };
        if (*raise).at == 0 || (*softirqs).handling_at != 0 {
            (*raise).at = now();
            (*raise).by_handler = (*softirqs).handling_at;
        }
    }
}

/// This CPU begins to run a softirq.
#[inline(always)]
pub fn entered(vector: u32) {
    let Some(softirqs) = SOFTIRQS.get_ptr_mut(0) else { return };
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
    let id: u32 = skb.field_at(given!(skb_napi_id) as usize);
    let (Some(interrupt), Some(softirqs)) = (INTERRUPTS.get_ptr(&id), SOFTIRQS.get(0)) else { return none };
    // SAFETY: an element that is never freed.
    let interrupt = unsafe { &*interrupt };
    // What scheduled it since would have been seen, unless the kernel skipped that.
    let is_new = interrupt.at > softirqs.received_at[1] && interrupt.cpu == cpu();
    if is_new { (interrupt.at, interrupt.number) } else { none }
}
