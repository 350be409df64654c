//! From the kernel side's maps to typed records and counters.

use std::{
    io,
    ops::RangeInclusive,
    os::fd::{AsFd as _, OwnedFd},
    ptr, vec,
};

use anyhow::{Context as _, Result, ensure};
use aya::{
    Ebpf,
    maps::{Array, HashMap, MapData, PerCpuArray, RingBuf},
};
use net_latency_common::{
    COUNTERS_MAP, Counters, DATAGRAM_SIZE, DATAGRAMS_MAP, FLAG_RETRANS, FineRecord, LEAVING_MAP, PARTS,
    PacketRecord, RECORDS_MAP, SEGMENT_SIZE, SEGMENTS_MAP, SENT_AGAIN, SENT_MAP, STAMP_DRV, Sent, SentSlot,
    SentSlots, SentTimes, Unknown, between, sent_flags, sent_parts, sent_time,
};

use super::{RecordSource, order::Order};
use crate::{
    accounting::Census,
    clock::{Clock, monotonic_ns},
    error::Failure,
    kernel::{devices::Devices, namespaced::NamespacedPids},
    packet::event::{Event, completion_ns, finished_ns},
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

/// Sent packets whose lines wait for more ([`Sent`]).
struct Unfinished {
    /// For their ACKs.
    sent: Array<MapData, SentSlots>,
    /// For their drivers.
    leaving: Array<MapData, SentSlots>,
    /// Only packets that took so long, in ns.
    slower_ns: u64,
}

impl Unfinished {
    /// What is there now that nothing is attached any more.
    fn read(self) -> Result<Vec<FineRecord>> {
        let now = monotonic_ns();
        let mut records = Vec::new();
        for (map, is_tagged) in [(self.sent, true), (self.leaving, false)] {
            for slots in map.iter() {
                let slots = slots.context("reading what waits for ACKs")?;
                // What a tunnel has wrapped up is in the other map too.
                let is_line = |slot: &&SentSlot| slot.key != 0 && (is_tagged || slot.sent.acked == 0);
                let used = slots.pair.iter().filter(is_line);
                records.extend(used.map(|slot| left(&slot.sent, is_tagged.then_some(slot.key), now)));
            }
        }
        records.retain(|record| takes(record, self.slower_ns));
        Ok(records)
    }
}

/// The line of a packet that got no further; its times are tagged if it has a `key`.
fn left(sent: &Sent, key: Option<u64>, now: u64) -> FineRecord {
    let time = |word| key.map_or(0, |key| sent_time(word, key, now));
    let mut packet = sent.packet;
    packet.flags |= sent_flags(sent.state);
    let again = if packet.flags & FLAG_RETRANS == 0 { 0 } else { SENT_AGAIN };
    let times = SentTimes {
        queued: packet.stamps[STAMP_DRV],
        started: time(sent.started),
        finished: time(sent.finished),
        acked: 0,
    };
    let parts = sent_parts(times, sent.state | again, Some(Unknown::Unacknowledged), now, between);
    FineRecord { packet, parts }
}

/// Whether a packet took so many ns, as a whole or in one stage.
fn takes(record: &FineRecord, slower_ns: u64) -> bool {
    let event = Event::new(&record.packet, 0, None).with_parts(Some(&record.parts));
    let parts = event.parts().into_iter().flatten();
    let mut times = event.stages().into_iter().chain([event.total_ns()]).chain(parts).flatten();
    slower_ns == 0 || times.any(|time| time >= slower_ns)
}

/// Reads what the kernel side has to say.
pub struct Capture {
    maps: Maps,
    order: Order<FineRecord>,
    /// With fine stages, until everything is detached.
    unfinished: Option<Unfinished>,
    /// What was left then.
    left: vec::IntoIter<FineRecord>,
}

impl Capture {
    /// Takes the maps out of the loaded object, which they outlive then: with fine stages also what is left of packets that
    /// took `slower_ns` at least.
    ///
    /// # Errors
    /// If one is not there: they were taken before.
    pub fn take(ebpf: &mut Ebpf, fine: Option<u64>) -> Result<Self> {
        let mut take = |name: &'static str| ebpf.take_map(name).context(name);
        let maps = Maps {
            records: take(RECORDS_MAP)?.try_into()?,
            counters: take(COUNTERS_MAP)?.try_into()?,
            segments: take(SEGMENTS_MAP)?.try_into()?,
            datagrams: take(DATAGRAMS_MAP)?.try_into()?,
        };
        let unfinished = match fine {
            Some(slower_ns) => Some(Unfinished {
                sent: take(SENT_MAP)?.try_into()?,
                leaving: take(LEAVING_MAP)?.try_into()?,
                slower_ns,
            }),
            None => None,
        };
        Ok(Self { maps, order: Order::new(), unfinished, left: Vec::new().into_iter() })
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
    pub fn next<T>(&mut self, take: impl FnOnce(&FineRecord) -> T) -> Result<Option<T>> {
        let Self { maps, order, left, .. } = self;
        if order.is_empty() {
            order.refill(monotonic_ns(), |records| {
                let is_read = read(&mut maps.records, records)?;
                let rest = if is_read { None } else { left.next() };
                let is_rest = rest.is_some();
                records.extend(rest);
                Ok::<_, anyhow::Error>(is_read || is_rest)
            })?;
        }
        Ok(order.take().map(take))
    }

    /// Everything is detached: no more records will come, and what waits for more gets none.
    ///
    /// # Errors
    /// If the kernel refuses to show what waits.
    pub fn finish(&mut self) -> Result<()> {
        self.order.release();
        if let Some(unfinished) = self.unfinished.take() {
            self.left = unfinished.read()?.into_iter();
        }
        Ok(())
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
    /// Whether records have fine stages.
    pub is_fine: bool,
}

impl RecordSource for Live<'_> {
    fn now_ns(&self) -> u64 {
        monotonic_ns()
    }

    #[inline]
    fn next<T>(&mut self, take: impl FnOnce(&Event<'_>) -> T) -> Result<Option<T>, Failure> {
        let Self { capture, span, counted_until, outside, clock, names, is_fine } = self;
        let mut take = Some(take);
        loop {
            let next = capture.next(|fine| {
                let FineRecord { packet: record, parts } = fine;
                // Whether every hook met it, its own last stamp says, which may be long before its line is complete.
                let completion_ns = completion_ns(record);
                if !span.contains(&completion_ns) {
                    **outside += u64::from(completion_ns <= *counted_until);
                    return None;
                }
                let wall_ns = clock.to_utc_ns(finished_ns(fine));
                let (ns_pid, device) = match names {
                    Some(Names { devices, namespaced }) => {
                        (namespaced.number(record.pid), devices.name(record.netns, record.ifindex))
                    }
                    None => (None, None),
                };
                let event = Event::new(record, wall_ns, device)
                    .with_ns_pid(ns_pid)
                    .with_parts(is_fine.then_some(parts));
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
fn read(ring: &mut RingBuf<MapData>, records: &mut Vec<FineRecord>) -> Result<bool> {
    let Some(item) = ring.next() else { return Ok(false) };
    decode(&item, records)?;
    Ok(true)
}

/// Appends the record that these bytes are.
fn decode(bytes: &[u8], records: &mut Vec<FineRecord>) -> Result<()> {
    let is_fine = bytes.len() == size_of::<FineRecord>();
    let record = bytes.as_ptr().cast::<PacketRecord>();
    ensure!(
        (is_fine || bytes.len() == size_of::<PacketRecord>()) && record.is_aligned(),
        "the kernel side sent a record of {} bytes",
        bytes.len()
    );
    records.reserve(1);
    // SAFETY: as large and as aligned as what it is taken for, of which every bit pattern is one; there is room for one more.
    unsafe {
        let to = records.as_mut_ptr().add(records.len());
        copy(record, &raw mut (*to).packet);
        (*to).parts = if is_fine { record.cast::<FineRecord>().read().parts } else { [0; PARTS] };
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

    use net_latency_common::{SENT_BY_TIMER, SENT_TAG_BITS, part, sent_tag, tagged};

    use super::*;
    use crate::{
        clock::Zone,
        fuzz,
        output::{LONGEST_LINE, Options, Writer},
        packet::event::fixtures::{incoming, outgoing, udp, v6},
        request::Format,
    };

    #[test]
    fn what_waits_at_the_end_has_a_line() {
        const NOW: u64 = 1_000_000_000;
        const KEY: u64 = 0x1234_5678_9abc_def0;
        let queued = NOW - 1_000_000;
        let mut packet = outgoing();
        packet.stamps = [queued, queued - 10, queued - 20, queued - 30];
        let word = |at| tagged::word::<SENT_TAG_BITS>(at, sent_tag(KEY));
        let sent = Sent {
            packet,
            socket: 1,
            started: word(queued + 100),
            finished: word(queued + 150),
            acked: 0,
            next: 0,
            state: 0,
        };
        let parts = |sent: &Sent, key| left(sent, key, NOW).parts.map(part);
        let open = Err(Unknown::Unacknowledged);
        assert_eq!(parts(&sent, Some(KEY)), [Ok(100), Ok(50), open, Ok(NOW)]);
        // Times of another entry, and none at all.
        let missing = Err(Unknown::NoStamp);
        assert_eq!(parts(&sent, Some(KEY + 1)), [missing, missing, open, Ok(NOW)]);
        assert_eq!(parts(&sent, None), [missing, missing, open, Ok(NOW)]);
        let again = Sent { state: SENT_AGAIN | SENT_BY_TIMER, ..sent };
        assert_eq!(parts(&again, Some(KEY))[2], Err(Unknown::SentAgain));
        let event = left(&again, Some(KEY), NOW);
        assert!(Event::new(&event.packet, 0, None).flags().any(|flag| flag == "rto"));
        // Its columns take 30 ns.
        let slower = |ns| takes(&left(&sent, Some(KEY), NOW), ns);
        assert!(slower(0) && slower(100) && !slower(101));
    }

    fn bytes<R>(record: &R) -> Vec<u8> {
        let start = ptr::from_ref(record).cast::<u8>();
        // SAFETY: the bytes of a record, of which none is padding, or the kernel side could not send it.
        unsafe { slice::from_raw_parts(start, size_of::<R>()) }.to_vec()
    }

    #[test]
    fn fuzz_records() {
        let seeds =
            [incoming(), outgoing(), udp(incoming()), v6(outgoing())].into_iter().flat_map(|packet| {
                [bytes(&packet), bytes(&FineRecord { packet, parts: [1_000, u64::MAX - 1, 0, 1] })]
            });
        fuzz::run("records", 400, seeds, &["\u{1b}[2J", "a,b|c", "-"], |bytes| {
            // As the ring buffer aligns them.
            let mut words = vec![0_u64; bytes.len().div_ceil(8)];
            // SAFETY: as many bytes as the words have, or fewer.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), words.as_mut_ptr().cast(), bytes.len()) };
            // SAFETY: the same bytes.
            let bytes = unsafe { slice::from_raw_parts(words.as_ptr().cast::<u8>(), bytes.len()) };
            let mut records = Vec::new();
            let decoded = decode(bytes, &mut records);
            let sizes = [size_of::<PacketRecord>(), size_of::<FineRecord>()];
            assert_eq!(decoded.is_ok(), sizes.contains(&bytes.len()));
            for FineRecord { packet: record, parts } in records {
                let wall_ns = i64::try_from(record.stamps[0]).unwrap_or(0);
                let event = Event::new(&record, wall_ns, Some(&record.comm)).with_parts(Some(&parts));
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
