//! From the kernel side's maps to typed records and counters.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
    ptr,
};

use anyhow::{Context as _, Result, ensure};
use aya::maps::{MapData, RingBuf};
use net_latency_common::{Counter, Counters, PacketRecord};

use super::order::Order;
use crate::{clock::monotonic_ns, probes::attach::Maps};

/// Reads what the kernel side has to say.
pub struct Capture {
    maps: Maps,
    order: Order,
}

impl Capture {
    /// Reads from `maps`.
    #[must_use]
    pub fn new(maps: Maps) -> Self {
        Self { maps, order: Order::new() }
    }

    /// A descriptor that becomes readable when the ring buffer fills faster than the timer reads it.
    ///
    /// # Errors
    /// If this process has no descriptor left.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        self.maps.records.as_fd().try_clone_to_owned()
    }

    /// Hands the next record to `take`, in order of completion; `None` if none waits, or only such as are so new that
    /// older ones may still come.
    ///
    /// # Errors
    /// If the record has another size than ours: the two sides don't belong together.
    pub fn next<T>(&mut self, take: impl FnOnce(&PacketRecord) -> T) -> Result<Option<T>> {
        let Self { maps, order } = self;
        if order.is_empty() {
            order.refill(monotonic_ns(), |records| read(&mut maps.records, records))?;
        }
        Ok(order.take().map(take))
    }

    /// Everything is detached: no more records will come.
    pub fn finish(&mut self) {
        self.order.release();
    }

    /// The counters, summed over all CPUs.
    ///
    /// # Errors
    /// If the kernel refuses to show them.
    pub fn counters(&self) -> Result<Counters> {
        let per_cpu = self.maps.counters.get(&0, 0).context("reading the kernel side's counters")?;
        let mut sum = Counters::default();
        for counters in per_cpu.iter() {
            for (total, value) in sum.values.iter_mut().zip(counters.values) {
                *total += value;
            }
        }
        Ok(sum)
    }

    /// Counts what is where. Takes a walk through the maps.
    ///
    /// # Errors
    /// If the kernel refuses to show its counters.
    pub fn census(&self) -> Result<Census> {
        let before = self.counters()?;
        let segments = self.maps.segments.keys().filter(Result::is_ok).count();
        let datagrams = self.maps.datagrams.keys().filter(Result::is_ok).count();
        let at_ns = monotonic_ns();
        let after = self.counters()?;
        // A walk begins again where a packet that it has come to is taken away (`htab_map_get_next_key`).
        let most = after.get(Counter::Stored).saturating_sub(before.get(Counter::Taken));
        Ok(Census { before, waiting: most.min((segments + datagrams) as u64), at_ns, after })
    }
}

/// What is where. While programs run it can't be seen at one moment: what was counted before packets were looked for
/// had left, and what is counted after that had come.
pub struct Census {
    /// The counters before.
    pub before: Counters,
    /// Received packets that wait for an application.
    pub waiting: u64,
    /// What was finished by then, in ns of `CLOCK_MONOTONIC`, is among the counters after.
    pub at_ns: u64,
    /// The counters after.
    pub after: Counters,
}

impl Census {
    /// Received packets that newer ones pushed out of a full map: at least so many, and exactly if nothing moved
    /// meanwhile.
    #[must_use]
    pub fn evicted(&self) -> u64 {
        let moved = self.after.since(&self.before);
        let moved = moved.get(Counter::Stored) + moved.get(Counter::Taken);
        let known = self.after.get(Counter::Taken) + self.waiting + moved;
        self.after.get(Counter::Stored).saturating_sub(known)
    }
}

/// Appends the oldest record in the ring buffer, if there is one.
fn read(ring: &mut RingBuf<MapData>, records: &mut Vec<PacketRecord>) -> Result<bool> {
    let Some(item) = ring.next() else { return Ok(false) };
    let bytes: &[u8] = &item;
    let record = bytes.as_ptr().cast::<PacketRecord>();
    ensure!(
        bytes.len() == size_of::<PacketRecord>() && record.is_aligned(),
        "the kernel side sent a record of {} bytes",
        bytes.len()
    );
    records.reserve(1);
    // SAFETY: as large and as aligned as a record, and every bit pattern is one; there is room for one more.
    unsafe {
        copy(record, records.as_mut_ptr().add(records.len()));
        records.set_len(records.len() + 1);
    }
    Ok(true)
}

/// Copies a record in two parts: the compiler has a function called for more than 128 bytes, which takes three times as long.
///
/// # Safety
/// `from` is a record, and there is room for one at `to`.
unsafe fn copy(from: *const PacketRecord, to: *mut PacketRecord) {
    const PART: usize = 64;
    let (from, to) = (from.cast::<u8>(), to.cast::<u8>());
    // SAFETY: the parts of a record.
    unsafe {
        ptr::copy_nonoverlapping(from, to, PART);
        ptr::copy_nonoverlapping(from.add(PART), to.add(PART), size_of::<PacketRecord>() - PART);
    }
}
