//! Counting what became no line.

use net_latency_common::Counter;

use crate::maps::COUNTERS;

/// Adds one to this CPU's `counter`.
#[inline(always)]
pub fn one(counter: Counter) {
    if let Some(counters) = COUNTERS.get_ptr_mut(0) {
        // SAFETY: index 0 of a per-CPU array is valid.
        increment(unsafe { &raw mut (*counters).values[counter as usize] });
    }
}

/// Adds one to two of this CPU's counters, which are looked up once.
#[inline(always)]
pub(crate) fn both(one: Counter, other: Counter) {
    if let Some(counters) = COUNTERS.get_ptr_mut(0) {
        // SAFETY: as above.
        unsafe {
            increment(&raw mut (*counters).values[one as usize]);
            increment(&raw mut (*counters).values[other as usize]);
        }
    }
}

/// Adds one to a count of this CPU, a word in a map's entry. In one instruction, since a softirq or another task may run
/// between a read and a write: a count that is lost would be a packet that is nowhere. The target has no atomics in
/// `core` that are stable.
#[inline(always)]
pub(crate) fn increment(count: *mut u64) {
    add(count, 1);
}

/// Adds `more`, in the same way.
#[inline(always)]
pub(crate) fn add(count: *mut u64, more: u64) {
    // SAFETY: aligned, and mapped while a program runs.
    #[cfg(target_arch = "bpf")]
    unsafe {
        core::arch::asm!("lock *(u64 *)({count} + 0) += {more}", count = in(reg) count, more = in(reg) more, options(nostack));
    }
    // Where this is only checked.
    // SAFETY: as above.
    #[cfg(not(target_arch = "bpf"))]
    unsafe {
        *count += more;
    }
}

/// What a counter is called in the kernel side's own log.
#[must_use]
pub const fn name(counter: Counter) -> &'static str {
    match counter {
        Counter::Shed => "not in the sample that an overloaded reader gets",
        Counter::RingFull => "ring buffer full",
        Counter::MapFull => "map full, packet not followed",
        Counter::SocketLost => "map full, socket not followed",
        Counter::StampLost => "map full, stage not stored",
        Counter::UnmatchedIn => "read without a matching segment",
        Counter::DuplicateIn => "segment arrived again",
        Counter::DroppedIn => "dropped before it was read",
        Counter::UnreadIn => "unread at close",
        Counter::UnfinishedOut => "sent but not queued to a device",
        Counter::UnmatchedOut => "sent without a matching write",
        Counter::FilteredIn | Counter::FilteredOut | Counter::RejectedIn => "not asked for",
        Counter::SeenOut => "sent",
        Counter::Stored => "packet waits",
        Counter::Taken => "packet taken",
        Counter::ControlIn => "control packet received",
        Counter::ProcessLost => "map full, process not followed",
        Counter::HistogramFull => "map full, packet not counted",
        Counter::TimeLost => "map full, time not counted",
        Counter::Outside => "finished while not every hook was attached",
    }
}
