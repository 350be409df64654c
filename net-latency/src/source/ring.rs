//! From the kernel side's maps to typed records and counters.

use std::{
    io,
    ops::RangeInclusive,
    os::fd::{AsFd as _, OwnedFd},
    ptr::NonNull,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use aya::{
    Ebpf,
    maps::{Array, HashMap, Map, MapData, PerCpuArray},
};
use net_latency_common::{
    COMM_LEN, COUNTERS_MAP, Counters, DATAGRAM_SIZE, DATAGRAMS_MAP, DROPS_MAP, Direction, DroppingSockets,
    FLAG_RETRANS, FineRecord, LEAVING_MAP, PARTS, PacketRecord, RECORDS_MAP, SEGMENT_SIZE, SEGMENTS_MAP,
    SENT_AGAIN, SENT_MAP, STAMP_DRV, Sent, SentSlot, SentSlots, SentTimes, Served, Unknown, between,
    sent_flags, sent_parts, sent_time,
};

use super::{
    RecordSource,
    buffer::{Buffer, Position},
    order::Order,
};
use crate::{
    accounting::{Census, Drops, LeftOut},
    clock::{LazyClock, monotonic_ns},
    error::Failure,
    kernel::{
        devices::Devices,
        netns::Namespaces,
        processes::{Process, Processes},
    },
    message::tell,
    packet::{
        event::{Event, Found, completion_ns, finished_ns, is_slow, line_ns},
        possible,
    },
};

/// The maps that are read while tracing and, the last time, after everything is detached.
struct Maps {
    /// Finished packets.
    records: Buffer,
    /// Counters per CPU.
    counters: PerCpuArray<MapData, Counters>,
    /// Drop counts per socket.
    drops: HashMap<MapData, DroppingSockets, u64>,
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
    /// The remaining records, now that nothing is attached any more.
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
    FineRecord { packet, parts, served: sent.served }
}

/// Whether a packet took N ns, as a whole or in one stage; all did where N is 0.
fn takes(record: &FineRecord, slower_ns: u64) -> bool {
    slower_ns == 0 || is_slow(&record.packet, Some(&record.parts), Duration::from_nanos(slower_ns))
}

/// Records that are refused and told: of a fault there may be any number.
const TOLD: u64 = 10;
/// What seems to be finished so much later than it is read, ns, is not: nothing waits for it.
const FAR_NS: u64 = 60_000_000_000;

/// A finished packet's record, where it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'a> {
    /// What every run has.
    pub packet: &'a PacketRecord,
    /// Its fine stages, if requested, as [`FineRecord`] has them.
    pub parts: Option<&'a [u64; PARTS]>,
    /// Likewise, the work for an answer.
    pub served: Option<&'a Served>,
    /// When it was read, or a little before, in ns of `CLOCK_MONOTONIC`.
    pub read_ns: u64,
}

impl<'a> Record<'a> {
    /// When its line was complete.
    #[must_use]
    #[inline]
    pub(crate) fn finished_ns(&self) -> u64 {
        finished_ns(self.packet, self.parts)
    }

    fn of(FineRecord { packet, parts, served }: &'a FineRecord) -> Self {
        let served = (packet.direction == Direction::Out as u8).then_some(served);
        Self { packet, parts: Some(parts), served, read_ns: 0 }
    }
}

/// Where a record is.
#[derive(Clone, Copy, Debug)]
enum Place {
    Buffer(Position),
    /// Among those that were left.
    Left(usize),
}

/// Reads what the kernel side has to say.
pub(crate) struct Capture {
    maps: Maps,
    /// `None` if they may come as they were written.
    order: Option<Order<Place>>,
    /// Whether records have fine stages.
    is_fine: bool,
    /// When the record that comes next was read, or a little before.
    read_ns: u64,
    /// With fine stages, until everything is detached.
    unfinished: Option<Unfinished>,
    /// The records that remained then.
    left: Vec<FineRecord>,
    /// N of them are read.
    left_read: usize,
}

impl Capture {
    /// Takes the maps out of the loaded object, which they outlive then: with fine stages also the remaining packets that took `slower_ns`
    /// at least. Records come in order of completion, unless they may come `as_written`.
    ///
    /// # Errors
    /// If one is not there: they were taken before.
    pub(crate) fn take(ebpf: &mut Ebpf, fine: Option<u64>, as_written: bool) -> Result<Self> {
        let mut take = |name: &'static str| ebpf.take_map(name).context(name);
        let size = if fine.is_some() { size_of::<FineRecord>() } else { size_of::<PacketRecord>() };
        let maps = Maps {
            records: map_buffer(&take(RECORDS_MAP)?, size).context(RECORDS_MAP)?,
            counters: take(COUNTERS_MAP)?.try_into()?,
            drops: take(DROPS_MAP)?.try_into()?,
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
        Ok(Self {
            maps,
            order: (!as_written).then(Order::default),
            is_fine: fine.is_some(),
            read_ns: 0,
            unfinished,
            left: Vec::new(),
            left_read: 0,
        })
    }

    /// A descriptor that becomes readable when the ring buffer fills faster than the timer reads it.
    ///
    /// # Errors
    /// If this process has no descriptor left.
    pub(crate) fn descriptor(&self) -> io::Result<OwnedFd> {
        self.maps.records.as_fd().try_clone_to_owned()
    }

    /// The next record; `None` if none waits, or only such as are so new that older ones may still come.
    ///
    /// # Errors
    /// If the record has another size than ours: the two sides don't belong together.
    #[inline(always)]
    pub(crate) fn read(&mut self) -> Result<Option<Record<'_>>> {
        if self.order.as_ref().is_some_and(Order::is_empty) {
            self.refill()?;
        }
        let place = match &mut self.order {
            Some(order) => order.take(),
            None => self.next_written()?,
        };
        Ok(place.map(|place| {
            let record = match place {
                Place::Buffer(position) => record(&self.maps.records, position, self.is_fine),
                Place::Left(index) => Record::of(&self.left[index]),
            };
            Record { read_ns: self.read_ns, ..record }
        }))
    }

    /// The next place as they were written.
    #[inline(always)]
    fn next_written(&mut self) -> Result<Option<Place>> {
        let buffer = &mut self.maps.records;
        if buffer.is_read() {
            buffer.release(buffer.next_position());
            self.read_ns = monotonic_ns();
        }
        next_place(buffer, &self.left, &mut self.left_read)
    }

    fn refill(&mut self) -> Result<()> {
        let Self { maps, order: Some(order), is_fine, read_ns, left, left_read, .. } = self else {
            return Ok(());
        };
        let buffer = &mut maps.records;
        let in_buffer = |place| if let Place::Buffer(position) = place { Some(position) } else { None };
        buffer.release(order.waiting().filter_map(in_buffer).min().unwrap_or(buffer.next_position()));
        let now = monotonic_ns();
        let far = now.saturating_add(FAR_NS);
        *read_ns = now;
        order.refill(now, || {
            let Some(place) = next_place(buffer, left, left_read)? else { return Ok(None) };
            let finished_ns = match place {
                Place::Buffer(position) => record(buffer, position, *is_fine).finished_ns(),
                Place::Left(index) => Record::of(&left[index]).finished_ns(),
            };
            Ok(Some((if finished_ns > far { 0 } else { finished_ns }, place)))
        })
    }

    /// Everything is detached: no more records will come, and what waits for more gets none.
    ///
    /// # Errors
    /// If the kernel refuses to show what waits.
    pub(crate) fn finish(&mut self) -> Result<()> {
        if let Some(order) = &mut self.order {
            order.release();
        }
        if let Some(unfinished) = self.unfinished.take() {
            self.left = unfinished.read()?;
        }
        Ok(())
    }

    /// The counters, summed over all CPUs.
    ///
    /// # Errors
    /// If the kernel refuses to show them.
    pub(crate) fn counters(&self) -> Result<Counters> {
        let per_cpu = self.maps.counters.get(&0, 0).context("reading the kernel side's counters")?;
        let mut sum = Counters::default();
        for counters in per_cpu.iter() {
            for (total, value) in sum.values.iter_mut().zip(counters.values) {
                *total += value;
            }
        }
        Ok(sum)
    }

    /// Whose sockets have dropped packets so far.
    ///
    /// # Errors
    /// If the kernel refuses to show it.
    pub(crate) fn drops(&self) -> Result<Drops> {
        let counts = self.maps.drops.iter().collect::<Result<Vec<_>, _>>();
        Ok(Drops::new(counts.context("reading whose sockets drop packets")?))
    }

    /// Counts where packets are, at a moment in which none moves, if there is one within a few tries: a packet that comes meanwhile looks
    /// as if it were between two hooks.
    ///
    /// # Errors
    /// If the kernel refuses to show its counters.
    pub(crate) fn census_at_rest(&self) -> Result<Census> {
        const TRIES: usize = 4;
        let mut census = self.census()?;
        for _ in 1..TRIES {
            if census.is_of_a_moment() {
                break;
            }
            census = self.census()?;
        }
        Ok(census)
    }

    /// Counts where packets are. Takes a walk through the maps.
    ///
    /// # Errors
    /// If the kernel refuses to show its counters.
    pub(crate) fn census(&self) -> Result<Census> {
        let before = self.counters()?;
        let segments = self.maps.segments.keys().filter(Result::is_ok).count();
        let datagrams = self.maps.datagrams.keys().filter(Result::is_ok).count();
        let at_ns = monotonic_ns();
        let after = self.counters()?;
        Ok(Census::new(before, (segments + datagrams) as u64, at_ns, after))
    }
}

/// Names that take a look at more than the record. Made while privileges are there, it knows more of them.
#[derive(Default)]
pub(crate) struct Names {
    devices: Devices,
    processes: Processes,
    namespaces: Namespaces,
}

impl Names {
    /// The name of a network namespace that a process is in, which lived at `wall_ns`, and the container that it is in.
    pub(crate) fn of_process(
        &mut self,
        netns: u32,
        pid: u32,
        process: [u8; COMM_LEN],
        wall_ns: i64,
    ) -> (Option<&[u8]>, Option<&[u8]>) {
        let process = self.processes.find(pid, process, wall_ns);
        place(&mut self.namespaces, netns, process)
    }

    /// Looks up the names that belong to a packet that was finished at `wall_ns`.
    #[inline(always)]
    pub(crate) fn find(&mut self, packet: &PacketRecord, wall_ns: i64) -> Found<'_> {
        let process = self.processes.find(packet.pid, packet.process, wall_ns);
        let (netns_name, container) = place(&mut self.namespaces, packet.netns, process);
        Found {
            ifname: self.devices.name(packet.netns, packet.ifindex, packet.pid),
            ns_pid: process.and_then(|process| process.number),
            netns_name,
            container,
        }
    }

    /// Asks anew for what may have changed.
    pub(crate) fn refresh(&mut self) {
        self.devices.refresh();
        self.processes.refresh();
        self.namespaces.refresh();
    }
}

/// The name of a network namespace that this process is in, and the container that it is in.
#[inline(always)]
fn place<'a>(
    namespaces: &'a mut Namespaces,
    netns: u32,
    process: Option<&'a Process>,
) -> (Option<&'a [u8]>, Option<&'a [u8]>) {
    // The host's namespace, which some pods are in too, is not named after a pod.
    let is_elsewhere = !namespaces.is_own(netns);
    let pod = process.filter(|_| is_elsewhere).and_then(|process| process.pod.as_deref());
    let container = process.and_then(|process| process.container.as_ref()).map(|id| &id[..]);
    (namespaces.name(netns, pod), container)
}

/// The packets of the ring buffer.
pub(crate) struct Live<'a> {
    /// What reads it.
    pub capture: &'a mut Capture,
    /// Completions, in ns of `CLOCK_MONOTONIC`, that are valid.
    pub span: &'a RangeInclusive<u64>,
    /// No stamp is older, in ns of that clock.
    pub since: u64,
    /// Completions until then are in the ledger.
    pub counted_until: u64,
    /// Counts packets that are in the ledger and not handed out.
    pub left_out: &'a mut LeftOut,
    /// Whether a record that is refused is told.
    pub is_debugging: bool,
    /// What time it is.
    pub clock: &'a LazyClock,
    /// If names are wanted.
    pub names: Option<&'a mut Names>,
}

impl RecordSource for Live<'_> {
    fn now_ns(&self) -> u64 {
        monotonic_ns()
    }

    // All of it in the view's loop: what a call would have to be given takes as long as this.
    #[inline(always)]
    fn next<T>(&mut self, take: impl FnOnce(&Event<'_>) -> T) -> Result<Option<T>, Failure> {
        let Self { capture, span, since, counted_until, left_out, is_debugging, clock, names } = self;
        while let Some(record) = capture.read()? {
            let Record { packet, parts, served, read_ns } = record;
            // For nearly all packets the order of their stamps says at once which is the last, and that all are possible.
            let in_order = possible::finished_in_order(packet, *since);
            // Whether every hook met it, its own last stamp says, which may be long before its line is complete.
            let completion_ns = in_order.unwrap_or_else(|| completion_ns(packet));
            // The range's own `contains` also looks whether it was iterated over.
            if completion_ns < *span.start() || completion_ns > *span.end() {
                left_out.outside += u64::from(completion_ns <= *counted_until);
                continue;
            }
            let finished_ns = line_ns(completion_ns, packet, parts);
            let is_possible = match in_order {
                Some(last) => parts.is_none_or(|parts| possible::are_possible(parts, packet, last, *since)),
                None => possible::is_possible(packet, parts, *since),
            };
            let is_possible =
                is_possible && served.is_none_or(|served| possible::could_serve(served, finished_ns, *since));
            if !is_possible || (finished_ns > read_ns && finished_ns > monotonic_ns()) {
                refuse(packet, parts, *since, left_out, *is_debugging);
                continue;
            }
            let wall_ns = clock.to_utc_ns(finished_ns);
            let found = match names {
                Some(names) => names.find(packet, wall_ns),
                None => Found::default(),
            };
            let event = match in_order {
                Some(_) => Event::in_order(packet, wall_ns, found.ifname),
                None => Event::new(packet, wall_ns, found.ifname),
            };
            let event = event
                .with_ns_pid(found.ns_pid)
                .with_place(found.netns_name, found.container)
                .with_parts(parts)
                .with_served(served);
            return Ok(Some(take(&event)));
        }
        Ok(None)
    }
}

/// A record is not handed out, since its times can't be its packet's.
#[cold]
fn refuse(
    packet: &PacketRecord,
    parts: Option<&[u64; PARTS]>,
    since: u64,
    left_out: &mut LeftOut,
    is_told: bool,
) {
    left_out.inconsistent += 1;
    if is_told && left_out.inconsistent <= TOLD {
        let what = possible::describe(packet, parts, since);
        let rest = if left_out.inconsistent == TOLD { "\nthe next ones are only counted" } else { "" };
        tell(format_args!("inconsistent record: {what}{rest}"));
    }
}

/// The ring buffer of records of this size.
fn map_buffer(map: &Map, size: usize) -> Result<Buffer> {
    let Map::RingBuf(map) = map else { bail!("it is no ring buffer") };
    let bytes = map.info()?.max_entries() as usize;
    Ok(Buffer::map(map.fd().as_fd().try_clone_to_owned()?, bytes, size)?)
}

/// Where the next is that was not read yet: in the buffer, or behind all of it among those that were left.
#[inline]
fn next_place(buffer: &mut Buffer, left: &[FineRecord], left_read: &mut usize) -> Result<Option<Place>> {
    if let Some(position) = buffer.read()? {
        return Ok(Some(Place::Buffer(position)));
    }
    let index = *left_read;
    *left_read += usize::from(index < left.len());
    Ok((index < left.len()).then_some(Place::Left(index)))
}

/// A record of a buffer that has [`FineRecord`]s, or else [`PacketRecord`]s.
#[inline]
fn record(buffer: &Buffer, position: Position, is_fine: bool) -> Record<'_> {
    // SAFETY: the buffer has records aligned to 8, of the size that it was mapped with, and no one writes there before they are released,
    // for which it must be borrowed mutably.
    unsafe { record_at(buffer.record(position), is_fine) }
}

/// The record that begins there.
///
/// # Safety
/// There are as many bytes, aligned to 8, and no one writes there as long as it is used. Every bit pattern is a record.
#[inline]
unsafe fn record_at<'a>(start: NonNull<u8>, is_fine: bool) -> Record<'a> {
    // SAFETY: the caller keeps to it.
    unsafe {
        if is_fine {
            Record::of(start.cast().as_ref())
        } else {
            Record { packet: start.cast().as_ref(), parts: None, served: None, read_ns: 0 }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{ptr, slice};

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
            served: Served::NONE,
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
                let fine =
                    FineRecord { packet, parts: [1_000, u64::MAX - 1, 0, 1], served: Served::of(9, 5, 4, 1) };
                [bytes(&packet), bytes(&fine)]
            });
        fuzz::run("records", 400, seeds, &["\u{1b}[2J", "a,b|c", "-"], |bytes| {
            // As the ring buffer aligns them.
            let mut words = vec![0_u64; bytes.len().div_ceil(8)];
            // SAFETY: as many bytes as the words have, or fewer.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), words.as_mut_ptr().cast(), bytes.len()) };
            // SAFETY: the same bytes.
            let bytes = unsafe { slice::from_raw_parts(words.as_ptr().cast::<u8>(), bytes.len()) };
            let start = NonNull::from(bytes).cast::<u8>();
            let records = [
                // SAFETY: as large and as aligned as what it is taken for.
                (bytes.len() >= size_of::<PacketRecord>()).then(|| unsafe { record_at(start, false) }),
                // SAFETY: the same.
                (bytes.len() >= size_of::<FineRecord>()).then(|| unsafe { record_at(start, true) }),
            ];
            for Record { packet, parts, served, .. } in records.into_iter().flatten() {
                let wall_ns = i64::try_from(packet.stamps[0]).unwrap_or(0);
                let event =
                    Event::new(packet, wall_ns, Some(&packet.comm)).with_parts(parts).with_served(served);
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
