//! When the reader of a packet was woken, and when it got a CPU.

use net_latency_common::{
    COMM_LEN,
    journey::{CONTEXT_PROCESS, JourneyRow, PLACE_SWITCH, PLACE_WAKING},
};

use super::{context, row::add_given, tally::is_any};
use crate::{
    bpf::{ANY, LruHashMap, cpu, map, now},
    flow::addresses::bytes,
    kernel::{
        memory::Memory,
        task::{Task, Thread},
    },
};

/// What the scheduler last did with a thread.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Scheduled {
    waking_at: u64,
    /// The task that woke it, if one did.
    waker: u64,
    waker_comm: [u64; COMM_LEN / 8],
    switch_at: u64,
    waking_cpu: u32,
    waking_context: u32,
    switch_cpu: u32,
    reserved: u32,
}

/// When threads were last woken and last given a CPU, while packets are followed.
#[map]
static SCHEDULED: LruHashMap<u32, Scheduled> = LruHashMap::with_max_entries(4096, 0);

/// `sched_waking(task)`.
#[inline(always)]
pub fn waking<M: Memory>(thread: Thread<M>) {
    if !is_any() {
        return;
    }
    let context = context::current();
    let is_process = context == CONTEXT_PROCESS;
    let scheduled = Scheduled {
        waking_at: now(),
        waker: if is_process { Task::current_ids() } else { 0 },
        waker_comm: if is_process { Task::current_name() } else { [0; COMM_LEN / 8] },
        switch_at: 0,
        waking_cpu: cpu(),
        waking_context: context.into(),
        switch_cpu: 0,
        reserved: 0,
    };
    // Nothing could be done about a failure: the row is absent.
    let _ = SCHEDULED.insert(&thread.thread(), &scheduled, ANY);
}

/// `sched_switch(preempt, previous, next)`.
#[inline(always)]
pub fn switched<M: Memory>(next: Thread<M>) {
    if !is_any() {
        return;
    }
    let tid = next.thread();
    // Only of those whose waking was seen: one that was preempted gets the CPU back, which is no part of a packet's way.
    if tid != 0
        && let Some(scheduled) = SCHEDULED.get_ptr_mut(tid)
    {
        // SAFETY: an element that is never freed.
        unsafe {
            if (*scheduled).switch_at == 0 {
                (*scheduled).switch_at = now();
                (*scheduled).switch_cpu = cpu();
            }
        }
    }
}

/// Adds what the scheduler did with the current thread, which reads a packet that has waited since `queued_at`, 0 if that is not known.
#[inline(always)]
pub(super) fn reader(id: u64, queued_at: u64) {
    let ids = Task::current_ids();
    let Some(found) = SCHEDULED.get_ptr(ids as u32) else { return };
    // SAFETY: an element that is never freed.
    let scheduled = unsafe { &*found };
    // Where it is not known since when, it may have been woken for anything.
    if queued_at == 0 || scheduled.waking_at < queued_at {
        return;
    }
    let mut row = JourneyRow {
        id,
        at: scheduled.waking_at,
        place: PLACE_WAKING,
        skb: 0,
        location: 0,
        softirq_at: 0,
        raised_at: 0,
        interrupt_at: 0,
        content: 0,
        comm: bytes(scheduled.waker_comm),
        device: [0; 16],
        pid: (scheduled.waker >> 32) as u32,
        tid: scheduled.waker as u32,
        netns: 0,
        reason: 0,
        mark: 0,
        interrupt: 0,
        cpu: scheduled.waking_cpu as u16,
        context: scheduled.waking_context as u8,
        flags: 0,
        reserved: 0,
    };
    add_given(&row);
    if scheduled.switch_at < scheduled.waking_at {
        return;
    }
    row.at = scheduled.switch_at;
    row.place = PLACE_SWITCH;
    row.cpu = scheduled.switch_cpu as u16;
    row.context = CONTEXT_PROCESS;
    row.pid = (ids >> 32) as u32;
    row.tid = ids as u32;
    row.comm = bytes(Task::current_name());
    add_given(&row);
}
