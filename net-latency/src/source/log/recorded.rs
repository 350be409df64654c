//! The packets of a recording (`recording/file.rs`): the records that were packed, on the clock on the wall.

use std::{borrow::Cow, env::consts::ARCH, io::Read};

use net_latency_common::{
    AF_INET, AF_INET6, Direction, IPPROTO_TCP, IPPROTO_UDP, PART_FINISHED, PacketRecord, Served,
};

use super::record::LogRecord;
use crate::{
    kernel::netns::NAME_LEN,
    packet::{
        event::{Protocol, finished_ns},
        possible::{could_serve, is_possible},
    },
    recording::{
        block::{Row, Rows},
        file::{Damage, Reader},
    },
    source::order::Order,
};

/// A recording while it is read.
#[derive(Debug)]
pub(super) struct Recorded<R> {
    reader: Reader<R>,
    /// Of the block that is being read.
    rows: Option<Rows>,
    /// They were packed as the ring buffer had them.
    order: Order<Row>,
    /// The one that was read last.
    row: Option<Row>,
    /// Why no more are read.
    damage: Option<Damage>,
    /// What it is of, in words.
    pub(super) told: String,
    offset_s: i32,
    /// Whether it numbers system calls as this machine does.
    has_these_calls: bool,
}

impl<R: Read> Recorded<R> {
    /// Reads what it is of, from behind its mark.
    ///
    /// # Errors
    /// If that can't be read.
    pub(super) fn open(source: R) -> Result<Self, Damage> {
        let (reader, head) = Reader::open(source)?;
        let mut order = Order::default();
        order.release();
        Ok(Self {
            reader,
            rows: None,
            order,
            row: None,
            damage: None,
            told: head.told(),
            offset_s: head.offset_s,
            has_these_calls: head.arch == ARCH,
        })
    }

    /// The next packet, in order of completion; `None` at the end.
    ///
    /// # Errors
    /// If it can't be read, nor what follows.
    pub(super) fn next(&mut self) -> Result<Option<LogRecord<'_>>, Damage> {
        let Self { reader, rows, order, damage, .. } = self;
        if order.is_empty() {
            order.refill(u64::MAX, || {
                if damage.is_some() {
                    return Ok::<_, Damage>(None);
                }
                let row = next_row(reader, rows).unwrap_or_else(|found| {
                    *damage = Some(found);
                    None
                });
                Ok(row.map(|row| (finished_ns(&row.record, row.parts.as_ref()), row)))
            })?;
        }
        let Some(mut row) = order.take() else { return damage.take().map_or(Ok(None), Err) };
        if !self.has_these_calls {
            row.served.call = 0;
        }
        packet(self.row.insert(row), self.offset_s).map(Some).ok_or(Damage::Wrong)
    }
}

/// The next row as they were packed.
fn next_row(reader: &mut Reader<impl Read>, rows: &mut Option<Rows>) -> Result<Option<Row>, Damage> {
    while rows.as_ref().is_none_or(Rows::is_empty) {
        *rows = reader.next()?;
        if rows.is_none() {
            return Ok(None);
        }
    }
    rows.as_mut().and_then(Rows::next).map(Some).ok_or(Damage::Wrong)
}

/// The packet of a row; `None` if the kernel side makes no such record.
fn packet(row: &Row, offset_s: i32) -> Option<LogRecord<'_>> {
    let Row { mut record, mut parts, served, clock_ns, ref named } = *row;
    if !is_record(&record) || !is_possible(&record, parts.as_ref(), 0) {
        return None;
    }
    let finished_at = finished_ns(&record, parts.as_ref());
    if !could_serve(&served, finished_at, 0) {
        return None;
    }
    let wall_ns = i64::try_from(finished_at).ok()?.checked_add(clock_ns)?;
    // As a log's, its stamps are on the clock on the wall. 0 is unknown.
    let finished = parts.as_mut().filter(|_| record.direction != Direction::In as u8);
    let finished = finished.map(|parts| &mut parts[PART_FINISHED]);
    for stamp in record.stamps.iter_mut().chain([&mut record.other]).chain(finished) {
        if *stamp != 0 {
            *stamp = stamp.checked_add_signed(clock_ns).filter(|stamp| *stamp != 0)?;
        }
    }
    let [ifname, netns_name, container] = &named.texts;
    let texts = [ifname, netns_name, container].map(|text| text.as_deref().map(String::from_utf8_lossy));
    if texts.iter().flatten().any(|text| text.len() > NAME_LEN) {
        return None;
    }
    let [ifname, netns_name, container]: [Option<Cow<'_, str>>; 3] = texts;
    Some(LogRecord {
        record,
        wall_ns,
        offset_s,
        ifname,
        ns_pid: named.ns_pid,
        netns_name,
        container,
        has_seq: Protocol::of(record.protocol) == Protocol::Tcp,
        parts,
        served: (served != Served::NONE).then_some(served),
        syscall: None,
    })
}

/// Whether it is of a kind that there is.
fn is_record(record: &PacketRecord) -> bool {
    record.direction <= Direction::Out as u8
        && [IPPROTO_TCP, IPPROTO_UDP].contains(&record.protocol)
        && [AF_INET, AF_INET6].contains(&record.family.into())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use net_latency_common::{PART_WAIT, PARTS, STAMP_APP, STAMP_TRANSPORT, Unknown, unknown_part};
    use proptest::prelude::*;

    use super::*;
    use crate::{
        clock::{Clock, Zone},
        fuzz,
        output::{
            Options, Writer,
            tests::{any_name, any_place, any_record},
        },
        packet::event::{
            Event, Found, completion_ns,
            fixtures::{WALL_NS, incoming, outgoing, udp, v6},
        },
        recording::{
            block::{Block, Packer},
            file::{self, Head, MAGIC},
        },
        request::Format,
        source::log::read::{LogReader, Tally},
    };

    /// Packets, packed.
    fn blocks(records: &[PacketRecord]) -> Vec<Arc<Block>> {
        let mut packer = Packer::default();
        packer.set_clock(Clock::at(WALL_NS));
        for record in records {
            packer.pack(record, None, None, || Found { ifname: Some(b"eth0"), ..Found::default() });
        }
        packer.finish().into_iter().map(Arc::new).collect()
    }

    fn recording(blocks: Vec<Arc<Block>>) -> Vec<u8> {
        let mut out = Vec::new();
        file::write(&Head::new(), blocks, &mut out).expect("memory can be written");
        out
    }

    /// All packets, and what could not be read.
    fn read(log: &[u8]) -> (Vec<LogRecord<'static>>, Tally) {
        let mut tally = Tally::default();
        let mut reader = LogReader::new("the log".to_owned(), "replay", log);
        let mut records = Vec::new();
        while let Some(record) = reader.next(&mut tally, |record| record.into_owned()).expect("a log") {
            records.push(record);
        }
        (records, tally)
    }

    fn line(event: &Event<'_>, format: Format) -> String {
        let mut out = Vec::new();
        Writer::new(format, &Options { zone: Zone::UTC, details: true, colour: false })
            .write(event, &mut out);
        String::from_utf8(out).expect("UTF-8")
    }

    fn records() -> Vec<PacketRecord> {
        let all = [incoming(), outgoing(), udp(incoming()), udp(outgoing()), v6(incoming())];
        let many = (0..2_000_u32).map(|number| PacketRecord {
            seq: number.wrapping_mul(1448),
            sport: (number % 50) as u16,
            pid: number % 3,
            stamps: all[number as usize % all.len()].stamps.map(|stamp| stamp + u64::from(number) * 50_000),
            ..all[number as usize % all.len()]
        });
        many.collect()
    }

    #[test]
    fn a_cut_recording_is_read_to_its_last_whole_block() {
        let records = records();
        let blocks: Vec<_> = records.chunks(500).flat_map(blocks).collect();
        let whole = recording(blocks);
        let (packets, tally) = read(&whole);
        assert_eq!((packets.len(), tally.damaged.len()), (2_000, 0));
        let mut seen = std::collections::BTreeSet::new();
        for len in (MAGIC.len()..whole.len()).step_by(7) {
            let mut tally = Tally::default();
            let mut reader = LogReader::new("the log".to_owned(), "replay", &whole[..len]);
            let outcome = loop {
                match reader.next(&mut tally, |_| ()) {
                    Ok(Some(())) => {}
                    outcome => break outcome,
                }
            };
            let said = match outcome {
                Ok(_) => tally.damaged.concat(),
                // Nothing before it was whole.
                Err(failure) => {
                    assert_eq!((tally.lines, failure.exit_code()), (0, 1));
                    failure.to_string()
                }
            };
            assert!(said.ends_with("the log: the recording is cut off"), "{len}: {said}");
            seen.insert(tally.lines);
        }
        assert_eq!(Vec::from_iter(seen), [0, 500, 1_000, 1_500, 2_000]);
    }

    /// Ring buffers have them as programs asked for room, on any CPU; a block may end between two that belong in another order.
    #[test]
    fn packets_are_read_in_order_of_completion() {
        let mut written = records();
        written.sort_by_key(completion_ns);
        let in_order: Vec<_> = written.iter().map(completion_ns).collect();
        for place in (0..written.len() - 40).step_by(97) {
            let late = written.remove(place);
            written.insert(place + 40, late);
        }
        let (packets, _) = read(&recording(written.chunks(499).flat_map(blocks).collect()));
        let read: Vec<_> = packets.iter().map(|packet| completion_ns(&packet.record)).collect();
        assert_eq!(read, in_order.iter().map(|at| at + WALL_NS.unsigned_abs()).collect::<Vec<_>>());
    }

    #[test]
    fn a_flipped_bit_is_found() {
        let records = records();
        let whole = recording(blocks(&records));
        for place in (MAGIC.len()..whole.len()).step_by(101) {
            let mut bytes = whole.clone();
            bytes[place] ^= 4;
            let mut tally = Tally::default();
            let mut reader = LogReader::new("the log".to_owned(), "replay", &bytes[..]);
            let outcome = loop {
                match reader.next(&mut tally, |_| ()) {
                    Ok(Some(())) => {}
                    outcome => break outcome,
                }
            };
            assert!(outcome.is_err() || !tally.damaged.is_empty(), "byte {place}");
        }
    }

    #[test]
    fn another_version_is_refused() {
        for version in [1, 2, 9] {
            let mut out = Vec::new();
            file::write(&Head { version, ..Head::new() }, [], &mut out).expect("memory can be written");
            let refused = Recorded::open(&out[MAGIC.len()..]).expect_err("refused").to_string();
            assert!(refused.contains(&format!("version {version}, ")), "{refused}");
        }
    }

    #[test]
    fn what_no_kernel_side_makes_is_refused() {
        let [whole, ..] = records()[..] else { panic!("there are some") };
        let [first, second, third, last] = whole.stamps;
        let wrong = [
            PacketRecord { direction: 2, ..whole },
            PacketRecord { protocol: 1, ..whole },
            PacketRecord { family: 0, ..whole },
            PacketRecord { stamps: [last, third, second, first], ..whole },
            PacketRecord { stamps: [u64::MAX; 4], ..whole },
        ];
        for record in wrong {
            let mut tally = Tally::default();
            let recording = recording(blocks(&[whole, record]));
            let mut reader = LogReader::new("the log".to_owned(), "replay", &recording[..]);
            assert!(reader.next(&mut tally, |_| ()).expect("it begins well").is_some());
            assert!(reader.next(&mut tally, |_| ()).expect("it has begun well").is_none(), "{record:?}");
            assert_eq!(tally.damaged, ["the log: the recording is damaged"]);
        }
    }

    #[test]
    fn fuzz_recordings() {
        let records = records();
        let seeds = [recording(blocks(&records[..50])), recording(Vec::new())];
        fuzz::run("recordings", 300, seeds, &["BLCK", "END."], |bytes| {
            let mut tally = Tally::default();
            let mut reader = LogReader::new("the log".to_owned(), "replay", bytes);
            while let Ok(Some(())) = reader.next(&mut tally, |_| ()) {}
        });
    }

    /// Checksums keep damage from these; a forger can write right ones.
    #[test]
    fn fuzz_blocks() {
        let records = records();
        let block = blocks(&records[..50]).remove(0);
        fuzz::run("blocks", 600, [block.bytes.to_vec()], &[], |bytes| {
            let block = Block { rows: u32::MAX, bytes: bytes.into() };
            let mut out = Vec::new();
            file::write(&Head::new(), [Arc::new(block)], &mut out).expect("memory can be written");
            let mut tally = Tally::default();
            let mut reader = LogReader::new("the log".to_owned(), "replay", &out[..]);
            while let Ok(Some(_)) = reader.next(&mut tally, |record| line(&record.event(), Format::Text)) {}
        });
    }

    /// Times that a packet can have.
    fn possible(record: PacketRecord, gaps: [u32; 4], is_fine: bool) -> (PacketRecord, Option<[u64; PARTS]>) {
        let at = |number: usize| 1 + gaps[..number].iter().map(|gap| u64::from(*gap)).sum::<u64>();
        let mut stamps = [1, 2, 3, 4].map(at);
        if record.direction == Direction::Out as u8 {
            stamps.reverse();
        }
        let mut parts = [unknown_part(Unknown::NoStamp); PARTS];
        if record.direction == Direction::Out as u8 {
            parts[0] = 1;
            parts[PART_FINISHED] = stamps[0] + 77;
        } else {
            // All of a datagram's; of a segment's none is known.
            if record.protocol == IPPROTO_UDP {
                parts = [0; PARTS];
                parts[PART_WAIT] = stamps[STAMP_APP] - stamps[STAMP_TRANSPORT];
            }
        }
        (PacketRecord { stamps, ..record }, is_fine.then_some(parts))
    }

    fn any_served([kind, asleep, waited, call]: [u32; 4]) -> Served {
        match kind % 3 {
            0 => Served::NONE,
            1 => Served::unknown(Unknown::OtherThread),
            _ => Served {
                all: 2_000,
                asleep: u64::from(asleep % 1_000),
                waited: u64::from(waited % 1_000),
                call: u64::from(call % 400),
            },
        }
    }

    proptest! {
        /// Whatever packets there are, of a recording each form says what it said of them at the time.
        #[test]
        fn what_was_said_is_said_again(
            packets in proptest::collection::vec((any_record(), any_name(), any_place(), any::<(u32, bool)>(), any::<[u32; 4]>()), 1..40),
            is_fine: bool,
        ) {
            let mut packer = Packer::default();
            let clock = Clock::at(WALL_NS);
            packer.set_clock(clock);
            let mut expected = Vec::new();
            for (record, name, (netns, container), (pid, is_udp), gaps) in &packets {
                let record = if *is_udp { udp(*record) } else { *record };
                let (record, parts) = possible(record, *gaps, is_fine);
                let found = Found {
                    ifname: Some(name),
                    ns_pid: Some(*pid).filter(|pid| *pid != 0),
                    netns_name: netns.as_deref(),
                    container: container.as_deref().map(str::as_bytes),
                };
                packer.forget_names();
                let served = parts.filter(|_| record.direction != Direction::In as u8).map(|_| any_served(*gaps));
                packer.pack(&record, parts.as_ref(), served.as_ref(), || found);
                let wall_ns = clock.to_utc_ns(finished_ns(&record, parts.as_ref()));
                let event = Event::new(&record, wall_ns, found.ifname)
                    .with_ns_pid(found.ns_pid)
                    .with_place(found.netns_name, found.container)
                    .with_parts(parts.as_ref())
                    .with_served(served.as_ref());
                let lines = [Format::Json, Format::Csv].map(|format| line(&event, format));
                expected.push((finished_ns(&record, parts.as_ref()), lines));
            }
            expected.sort_by_key(|(finished_ns, _)| *finished_ns);
            let expected: Vec<_> = expected.into_iter().map(|(_, lines)| lines).collect();
            let (packets, tally) = read(&recording(packer.finish().into_iter().map(Arc::new).collect()));
            let lines = packets.len() as u64;
            prop_assert_eq!(tally, Tally { lines, recordings: vec![Head::new().told()], ..Tally::default() });
            for packet in &packets {
                let shift = packet.wall_ns.abs_diff(WALL_NS);
                prop_assert!(completion_ns(&packet.record) >= WALL_NS.unsigned_abs() && shift > 0);
            }
            let again = packets.iter().map(|packet| [Format::Json, Format::Csv].map(|format| line(&packet.event(), format)));
            prop_assert_eq!(again.collect::<Vec<_>>(), expected);
        }
    }
}
