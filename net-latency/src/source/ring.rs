//! From the kernel side's maps to typed records and counters.

use std::{
    io,
    ops::RangeInclusive,
    os::fd::{AsFd as _, OwnedFd},
    ptr,
};

use anyhow::{Context as _, Result, ensure};
use aya::{
    Ebpf,
    maps::{HashMap, MapData, PerCpuArray, RingBuf},
};
use net_latency_common::{
    COUNTERS_MAP, Counters, DATAGRAM_SIZE, DATAGRAMS_MAP, PacketRecord, RECORDS_MAP, SEGMENT_SIZE,
    SEGMENTS_MAP,
};

use super::{RecordSource, order::Order};
use crate::{
    accounting::Census,
    clock::{Clock, monotonic_ns},
    error::Failure,
    kernel::{devices::Devices, namespaced::NamespacedPids},
    packet::event::{Event, completion_ns},
};

/// The maps that are read while tracing and, the last time, after everything is detached.
struct Maps {
    /// Finished packets.
    records: RingBuf<MapData>,
    /// Counters per CPU.
    counters: PerCpuArray<MapData, Counters>,
    /// Received segments that wait and found no slot, by a mixture of connection and position.
    segments: HashMap<MapData, u64, [u8; SEGMENT_SIZE]>,
    /// Received datagrams that wait and found no slot, by the address of their skb.
    datagrams: HashMap<MapData, u64, [u8; DATAGRAM_SIZE]>,
}

/// Reads what the kernel side has to say.
pub struct Capture {
    maps: Maps,
    order: Order,
}

impl Capture {
    /// Takes the maps out of the loaded object, which they outlive then.
    ///
    /// # Errors
    /// If one is not there: they were taken before.
    pub fn take(ebpf: &mut Ebpf) -> Result<Self> {
        let mut take = |name: &'static str| ebpf.take_map(name).context(name);
        let maps = Maps {
            records: take(RECORDS_MAP)?.try_into()?,
            counters: take(COUNTERS_MAP)?.try_into()?,
            segments: take(SEGMENTS_MAP)?.try_into()?,
            datagrams: take(DATAGRAMS_MAP)?.try_into()?,
        };
        Ok(Self { maps, order: Order::new() })
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
        Ok(Census::new(before, (segments + datagrams) as u64, at_ns, after))
    }
}

/// Names that take a look at more than the record.
#[derive(Default)]
pub struct Names {
    devices: Devices,
    namespaced: NamespacedPids,
}

impl Names {
    /// Asks anew for what may have changed.
    pub fn refresh(&mut self) {
        self.devices.refresh();
        self.namespaced.refresh();
    }
}

/// The packets of the ring buffer.
pub struct Live<'a> {
    /// What reads it.
    pub capture: &'a mut Capture,
    /// Completions, in ns of `CLOCK_MONOTONIC`, that are valid.
    pub span: &'a RangeInclusive<u64>,
    /// Completions until then are in the ledger.
    pub counted_until: u64,
    /// Counts packets that are in the ledger and outside of the span.
    pub outside: &'a mut u64,
    /// What time it is.
    pub clock: Clock,
    /// Where names are asked for.
    pub names: Option<&'a mut Names>,
}

impl RecordSource for Live<'_> {
    fn now_ns(&self) -> u64 {
        monotonic_ns()
    }

    #[inline]
    fn next<T>(&mut self, take: impl FnOnce(&Event<'_>) -> T) -> Result<Option<T>, Failure> {
        let Self { capture, span, counted_until, outside, clock, names } = self;
        let mut take = Some(take);
        loop {
            let next = capture.next(|record| {
                let completion_ns = completion_ns(record);
                if !span.contains(&completion_ns) {
                    **outside += u64::from(completion_ns <= *counted_until);
                    return None;
                }
                let wall_ns = clock.to_utc_ns(completion_ns);
                let (ns_pid, device) = match names {
                    Some(Names { devices, namespaced }) => {
                        (namespaced.number(record.pid), devices.name(record.netns, record.ifindex))
                    }
                    None => (None, None),
                };
                let event = Event::new(record, wall_ns, device).with_ns_pid(ns_pid);
                take.take().map(|take| take(&event))
            })?;
            match next {
                Some(Some(taken)) => return Ok(Some(taken)),
                Some(None) => {}
                None => return Ok(None),
            }
        }
    }
}

/// Appends the oldest record in the ring buffer, if there is one.
fn read(ring: &mut RingBuf<MapData>, records: &mut Vec<PacketRecord>) -> Result<bool> {
    let Some(item) = ring.next() else { return Ok(false) };
    decode(&item, records)?;
    Ok(true)
}

/// Appends the record that these bytes are.
fn decode(bytes: &[u8], records: &mut Vec<PacketRecord>) -> Result<()> {
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
    Ok(())
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

#[cfg(test)]
mod tests {
    use std::slice;

    use super::*;
    use crate::{
        clock::Zone,
        fuzz,
        output::{LONGEST_LINE, Options, Writer},
        packet::event::fixtures::{incoming, outgoing, udp, v6},
        request::Format,
    };

    fn bytes(record: &PacketRecord) -> Vec<u8> {
        let start = ptr::from_ref(record).cast::<u8>();
        // SAFETY: the bytes of a record, of which none is padding, or the kernel side could not send it.
        unsafe { slice::from_raw_parts(start, size_of::<PacketRecord>()) }.to_vec()
    }

    #[test]
    fn fuzz_records() {
        let seeds = [incoming(), outgoing(), udp(incoming()), v6(outgoing())].map(|record| bytes(&record));
        fuzz::run("records", 400, seeds, &["\u{1b}[2J", "a,b|c", "-"], |bytes| {
            // As the ring buffer aligns them.
            let mut words = vec![0_u64; bytes.len().div_ceil(8)];
            // SAFETY: as many bytes as the words have, or fewer.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), words.as_mut_ptr().cast(), bytes.len()) };
            // SAFETY: the same bytes.
            let bytes = unsafe { slice::from_raw_parts(words.as_ptr().cast::<u8>(), bytes.len()) };
            let mut records = Vec::new();
            let decoded = decode(bytes, &mut records);
            assert_eq!(decoded.is_ok(), bytes.len() == size_of::<PacketRecord>());
            for record in records {
                let event =
                    Event::new(&record, i64::try_from(record.stamps[0]).unwrap_or(0), Some(&record.comm));
                for format in [Format::Text, Format::Json, Format::Csv] {
                    let mut line = Vec::new();
                    let options = Options { zone: Zone::UTC, details: true, colour: false };
                    Writer::new(format, &options).write(&event, &mut line);
                    assert!(line.len() <= LONGEST_LINE, "{} bytes", line.len());
                    let text = String::from_utf8(line).expect("UTF-8");
                    let (text, end) = text.split_at(text.len() - 1);
                    assert!(end == "\n" && !text.contains(char::is_control), "{text:?}");
                }
            }
        });
    }
}
