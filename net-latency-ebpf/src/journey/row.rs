//! Handing rows to the user side.

use net_latency_common::{
    COMM_LEN, INTERFACE_LEN,
    journey::{
        CONTEXT_PROCESS, CONTEXT_SOFTIRQ, JourneyRow, JourneyStart, ROW_RAISED_BY_INTERRUPT, ROW_WANTED,
        TALLY_LOST,
    },
};

use super::{context, headers, tally};
use crate::{
    bpf::{NO_WAKEUP, RingBuf, cpu, map, now},
    flow::{addresses::bytes, filter},
    kernel::{
        memory::{Memory, Probed, number},
        skb::Skb,
        task::Task,
    },
};

/// Rows, until the user side takes them. When full, counted per row.
#[map]
static ROWS: RingBuf = RingBuf::with_byte_size(1 << 20, 0);

/// Takes all there are.
#[cfg(test)]
pub(super) fn take() -> crate::bpf::host::Records {
    ROWS.take()
}

/// Adds the beginning of a journey.
#[inline(always)]
pub(super) fn start(start: &JourneyStart) {
    match ROWS.reserve::<JourneyStart>(0) {
        Some(mut entry) => {
            entry.write(*start);
            entry.submit(NO_WAKEUP);
        }
        None => tally::count(TALLY_LOST),
    }
}

/// Adds a row that is about an skb, here and now. The user side comes by a timer of its own.
#[inline(always)]
pub(super) fn add<M: Memory>(id: u64, skb: Skb<M>, place: u64, flags: u8, location: u64, reason: u32) {
    journey_add(id, number(skb.address()), place, u64::from(reason) << 32 | u64::from(flags), location);
}

/// A global function, which the verifier checks once by itself: what a row says has many forms, and each would be followed
/// by all that comes behind it. Hence a reason and flags in one number, `flags`, of which there are five at most.
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn journey_add(id: u64, skb: u64, place: u64, flags: u64, location: u64) -> u32 {
    let skb = Skb::<Probed>::new(skb as *const u8);
    let Some(mut entry) = ROWS.reserve::<JourneyRow>(0) else {
        tally::count(TALLY_LOST);
        return 0;
    };
    let (device, netns) = (skb.device_name(), skb.device().1);
    let (interrupt_at, interrupt) = context::interrupt(skb);
    entry.write(row(Row {
        id,
        at: now(),
        place,
        skb: skb.address(),
        flags: flags as u8,
        location,
        reason: (flags >> 32) as u32,
        device,
        netns,
        mark: skb.mark(),
        content: headers::content(skb),
        interrupt_at,
        interrupt,
    }));
    entry.submit(NO_WAKEUP);
    0
}

/// Adds a row, here and now or `at` an earlier time in this context, that is about a packet in no known skb. Global as
/// [`journey_add`] is.
#[inline(always)]
pub(super) fn add_bare(id: u64, at: u64, place: u64, flags: u8) {
    journey_add_bare(id, at, place, flags.into());
}

/// See [`add_bare`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn journey_add_bare(id: u64, at: u64, place: u64, flags: u32) -> u32 {
    let Some(mut entry) = ROWS.reserve::<JourneyRow>(0) else {
        tally::count(TALLY_LOST);
        return 0;
    };
    entry.write(row(Row {
        id,
        at,
        place,
        skb: 0,
        flags: flags as u8,
        location: 0,
        reason: 0,
        device: [0; INTERFACE_LEN / 8],
        netns: 0,
        mark: 0,
        content: 0,
        interrupt_at: 0,
        interrupt: 0,
    }));
    entry.submit(NO_WAKEUP);
    0
}

/// Adds a row of another time and context.
#[inline(always)]
pub(super) fn add_given(row: &JourneyRow) {
    match ROWS.reserve::<JourneyRow>(0) {
        Some(mut entry) => {
            entry.write(*row);
            entry.submit(NO_WAKEUP);
        }
        None => tally::count(TALLY_LOST),
    }
}

struct Row {
    id: u64,
    at: u64,
    place: u64,
    skb: u64,
    flags: u8,
    location: u64,
    reason: u32,
    device: [u64; INTERFACE_LEN / 8],
    netns: u32,
    mark: u32,
    content: u64,
    interrupt_at: u64,
    interrupt: u32,
}

#[inline(always)]
fn row(row: Row) -> JourneyRow {
    let context = context::current();
    let is_process = context == CONTEXT_PROCESS;
    let (softirq_at, raise) =
        if context == CONTEXT_SOFTIRQ { context::softirq() } else { (0, context::Raise::default()) };
    let task = if is_process { Task::current_ids() } else { 0 };
    let comm = if is_process { Task::current_name() } else { [0; COMM_LEN / 8] };
    let mut flags = row.flags;
    if is_process && filter::current() {
        flags |= ROW_WANTED;
    }
    if raise.by_handler != 0 {
        flags |= ROW_RAISED_BY_INTERRUPT;
    }
    JourneyRow {
        id: row.id,
        at: row.at,
        place: row.place,
        skb: row.skb,
        location: row.location,
        softirq_at,
        raised_at: raise.at,
        interrupt_at: row.interrupt_at,
        content: row.content,
        comm: bytes(comm),
        device: bytes(row.device),
        pid: (task >> 32) as u32,
        tid: task as u32,
        netns: row.netns,
        reason: row.reason,
        mark: row.mark,
        interrupt: row.interrupt,
        cpu: cpu() as u16,
        context,
        flags,
        reserved: 0,
    }
}

const _: () = assert!(COMM_LEN == 16 && INTERFACE_LEN == 16, "names are two words");
