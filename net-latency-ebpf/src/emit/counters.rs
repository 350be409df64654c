//! Counting what became no line.

use crate::bpf::{PerCpuArray, entry::increment, map};
use net_latency_common::{Counter, Counters};

/// Why packets became no line.
#[map]
static COUNTERS: PerCpuArray<Counters> = PerCpuArray::with_max_entries(1, 0);

/// How a hook ended: nothing to say, or why a packet became no line, or a poorer one.
pub type HookResult = Result<(), Counter>;

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
        Counter::UnfinishedOut => "dropped before a device's queue",
        Counter::NotFollowedIn => "read unseen",
        Counter::OvertakenOut => "sent, and not seen at a device's queue before the next one",
        Counter::UnmatchedOut => "sent without a matching write",
        Counter::FilteredIn | Counter::FilteredOut | Counter::RejectedIn => "filtered out",
        Counter::SeenOut => "sent",
        Counter::Stored => "packet waits",
        Counter::Taken => "packet taken",
        Counter::ControlIn => "control packet received",
        Counter::ProcessLost => "map full, process not followed",
        Counter::HistogramFull => "map full, packet not counted",
        Counter::TimeLost => "map full, time not counted",
        Counter::Outside => "finished while not every hook was attached",
        Counter::Spilled => "packet waits in a map that evicts",
        Counter::SpilledTaken => "packet taken from a map that evicts",
        Counter::SlowLost => "ring buffer full, slow packet counted only",
    }
}

/// What all CPUs have counted.
#[cfg(test)]
pub(crate) fn total() -> Counters {
    let mut total = Counters::default();
    for cpu in 0..crate::bpf::host::CPUS {
        crate::bpf::host::Machine::with(|machine| machine.cpu = cpu);
        if let Some(counters) = COUNTERS.get(0) {
            total.values.iter_mut().zip(counters.values).for_each(|(sum, more)| *sum += more);
        }
    }
    total
}
