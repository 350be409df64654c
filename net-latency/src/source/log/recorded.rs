//! The packets of a recording (`recording/file.rs`): what its columns hold, as the fields of a line.

use std::{borrow::Cow, io::Read, net::IpAddr};

use super::{
    fields::{Fields, InOrder, Values},
    record::LogRecord,
    time::Time,
};
use crate::{
    output::packed::WORDS,
    packet::stages::{FINE_STAGES, STAGES, Stage},
    recording::{
        block::{self, Rows},
        columns::{Role, fields},
        file::{Damage, Head, Reader},
    },
};

/// A recording while it is read.
#[derive(Debug)]
pub(super) struct Recorded<R> {
    reader: Reader<R>,
    rows: Option<Rows>,
    /// What it is of, in words.
    pub(super) told: String,
    offset_s: i32,
    /// What is expected of each of its columns.
    roles: Vec<Role>,
    places: Places,
}

/// Which of its columns a field is.
#[derive(Debug)]
struct Places {
    /// The time of a packet.
    time: Option<usize>,
    /// As they are declared, without the stages.
    fields: Vec<Option<usize>>,
    /// By their names.
    stages: Vec<(&'static str, Option<usize>)>,
}

impl Places {
    fn of(head: &Head) -> Self {
        let place = |field: &str| head.columns.iter().position(|column| column == field);
        let stages = STAGES.iter().chain(&FINE_STAGES).map(|stage| stage.field);
        Self {
            time: place("ts"),
            fields: fields().map(place).collect(),
            stages: stages.map(|stage| (stage, place(stage))).collect(),
        }
    }
}

impl<R: Read> Recorded<R> {
    /// Reads what it is of, from behind its mark.
    ///
    /// # Errors
    /// If that can't be read.
    pub(super) fn open(source: R) -> Result<Self, Damage> {
        let (reader, head) = Reader::open(source)?;
        Ok(Self {
            reader,
            rows: None,
            told: head.told(),
            offset_s: head.offset_s,
            roles: head.columns.iter().map(|column| Role::of(column)).collect(),
            places: Places::of(&head),
        })
    }

    /// The next packet; `None` at the end.
    ///
    /// # Errors
    /// If it can't be read, nor what follows.
    pub(super) fn next(&mut self) -> Result<Option<LogRecord<'_>>, Damage> {
        while self.rows.as_ref().is_none_or(Rows::is_empty) {
            self.rows = self.reader.next()?;
            if self.rows.is_none() {
                return Ok(None);
            }
        }
        let Self { rows: Some(rows), offset_s, roles, places, .. } = self else { return Ok(None) };
        let row = rows.next(roles).ok_or(Damage::Wrong)?;
        let rows = &*rows;
        let fields = Fields::read(&mut Line { row: &row, rows, places, turn: 0, column: 0 });
        let fields = fields.ok().filter(|fields| !fields.have_long_name()).ok_or(Damage::Wrong)?;
        let wall_ns = places.time.and_then(|time| row.get(time)).ok_or(Damage::Wrong)?.cast_signed();
        LogRecord::at(fields, Time { wall_ns, offset_s: *offset_s }).map(Some).ok_or(Damage::Wrong)
    }
}

/// A row as a line that has its fields in their order.
struct Line<'a, 'row> {
    row: &'row block::Values,
    rows: &'a Rows,
    places: &'row Places,
    /// How many fields have been asked for.
    turn: usize,
    /// The column of the last one.
    column: usize,
}

impl<'a> Line<'a, '_> {
    fn is_there(&mut self, column: Option<usize>) -> bool {
        let Some(column) = column else { return false };
        self.column = column;
        self.row.there >> column & 1 == 1
    }

    /// What the block has once, and this column.
    fn bytes(&self) -> Result<Option<&'a [u8]>, ()> {
        self.row.get(self.column).map(|number| self.rows.text(number).ok_or(())).transpose()
    }
}

impl<'a> Values<'a> for Line<'a, '_> {
    type Error = ();

    fn wrong(&self) {}

    fn number(&mut self, most: u64) -> Result<Option<u64>, ()> {
        match self.row.get(self.column) {
            Some(number) if number > most => Err(()),
            number => Ok(number),
        }
    }

    fn text(&mut self) -> Result<Option<Cow<'a, str>>, ()> {
        Ok(self.bytes()?.map(String::from_utf8_lossy))
    }

    fn address(&mut self) -> Result<Option<IpAddr>, ()> {
        let Some(bytes) = self.bytes()? else { return Ok(None) };
        let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
        let v6 = <[u8; 16]>::try_from(bytes).map(IpAddr::from);
        v4.or(v6).map(Some).map_err(drop)
    }

    fn words(&mut self, mut take: impl FnMut(&str)) -> Result<(), ()> {
        let words = self.bytes()?.unwrap_or_default().split(|byte| *byte == WORDS);
        words.for_each(|word| take(str::from_utf8(word).unwrap_or_default()));
        Ok(())
    }
}

impl<'a> InOrder<'a> for Line<'a, '_> {
    fn is_next(&mut self, key: &'static str) -> bool {
        debug_assert_eq!(
            key.get(2..key.len() - 2),
            fields().nth(self.turn),
            "fields are asked for in their order"
        );
        let column = self.places.fields[self.turn];
        self.turn += 1;
        // A line of a log has it in front of all.
        self.is_there(column) && !(column.is_some() && column == self.places.time)
    }

    fn is_stage_next(&mut self, stage: &Stage) -> bool {
        let place = self.places.stages.iter().find(|(name, _)| *name == stage.field);
        self.is_there(place.and_then(|(_, place)| *place))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use net_latency_common::{PacketRecord, Unknown, unknown_part};
    use proptest::prelude::*;

    use super::*;
    use crate::{
        clock::Zone,
        fuzz,
        output::{
            Options, Writer, packed,
            tests::{any_name, any_place, any_record},
        },
        packet::event::{
            Event, PARTS,
            fixtures::{WALL_NS, incoming, outgoing, udp, v6},
        },
        recording::{
            block::{Block, MOST_ROWS, Packer},
            file::{self, MAGIC},
        },
        request::Format,
        source::log::read::{LogReader, Tally},
    };

    fn blocks<'a>(events: impl IntoIterator<Item = Event<'a>>) -> Vec<Arc<Block>> {
        let mut packer = Packer::default();
        let mut blocks = Vec::new();
        for event in events {
            packed::pack(&event, &mut packer);
            if packer.is_full() {
                blocks.extend(packer.finish());
            }
        }
        blocks.extend(packer.finish());
        blocks.into_iter().map(Arc::new).collect()
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

    /// The same of JSON.
    fn json<'a>(events: impl IntoIterator<Item = Event<'a>>) -> Vec<u8> {
        let options = Options { zone: Zone::UTC, details: false, colour: false };
        let mut writer = Writer::new(Format::Json, &options);
        let mut out = Vec::new();
        events.into_iter().for_each(|event| writer.write(&event, &mut out));
        out
    }

    fn records() -> Vec<PacketRecord> {
        let all = [incoming(), outgoing(), udp(incoming()), udp(outgoing()), v6(incoming())];
        let many = (0..2_000_u32).map(|number| PacketRecord {
            seq: number.wrapping_mul(1448),
            sport: (number % 50) as u16,
            pid: number % 3,
            stamps: incoming().stamps.map(|stamp| stamp + u64::from(number) * 50_000),
            ..all[number as usize % all.len()]
        });
        many.collect()
    }

    fn events(records: &[PacketRecord]) -> impl Iterator<Item = Event<'_>> {
        records
            .iter()
            .zip(0..)
            .map(|(record, number)| Event::new(record, WALL_NS + number * 50_000, Some(b"eth0")))
    }

    #[test]
    fn a_cut_recording_is_read_to_its_last_whole_block() {
        let records = records();
        let blocks: Vec<_> = records.chunks(500).flat_map(|records| blocks(events(records))).collect();
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

    #[test]
    fn a_flipped_bit_is_found() {
        let records = records();
        let whole = recording(blocks(events(&records)));
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
    fn a_later_version_is_refused() {
        let head = Head { version: 9, ..Head::new() };
        let mut out = Vec::new();
        file::write(&head, [], &mut out).expect("memory can be written");
        let refused = Recorded::open(&out[MAGIC.len()..]).expect_err("refused").to_string();
        assert!(refused.contains("version 9") && refused.contains("newer"), "{refused}");
    }

    #[test]
    fn columns_may_be_more_fewer_and_in_another_order() {
        // As another version would have them: what this one knows keeps its name.
        let records = records();
        let mut head = Head::new();
        let renamed = head.columns.iter().position(|column| column == "mark").expect("a column");
        head.columns[renamed] = "of a later version".to_owned();
        let mut out = Vec::new();
        file::write(&head, blocks(events(&records)), &mut out).expect("memory can be written");
        let (packets, tally) = read(&out);
        assert_eq!((packets.len(), tally.damaged.len()), (2_000, 0));
        let expected = json(events(&records));
        let (expected, _) = read(&expected);
        // None of them has a mark.
        assert_eq!(packets, expected);
    }

    #[test]
    fn fuzz_recordings() {
        let records = records();
        let seeds = [recording(blocks(events(&records[..50]))), recording(Vec::new())];
        fuzz::run("recordings", 300, seeds, &["BLCK", "END."], |bytes| {
            let mut tally = Tally::default();
            let mut reader = LogReader::new("the log".to_owned(), "replay", bytes);
            while let Ok(Some(())) = reader.next(&mut tally, |_| ()) {}
        });
    }

    /// Checksums keep damage from these; somebody who makes one can write right ones.
    #[test]
    fn fuzz_blocks() {
        let records = records();
        let block = blocks(events(&records[..50])).remove(0);
        let plain = block::tests::plain(&block);
        fuzz::run("blocks", 600, [plain], &[], |bytes| {
            let block = block::tests::of_plain(bytes, MOST_ROWS as u32);
            let mut out = Vec::new();
            file::write(&Head::new(), [Arc::new(block)], &mut out).expect("memory can be written");
            let mut tally = Tally::default();
            let mut reader = LogReader::new("the log".to_owned(), "replay", &out[..]);
            let mut again = Vec::new();
            let options = Options { zone: Zone::UTC, details: true, colour: false };
            let mut writer = Writer::new(Format::Text, &options);
            while let Ok(Some(())) =
                reader.next(&mut tally, |record| writer.write(&record.event(), &mut again))
            {
                again.clear();
            }
        });
    }

    proptest! {
        /// Whatever packets there are, a recording says of them what JSON says.
        #[test]
        fn what_json_says_a_recording_says(
            records in proptest::collection::vec((any_record(), any_name(), any_place(), any::<(u32, bool, bool)>()), 1..40),
            // Those of a log are within 292 years of 1970.
            times in proptest::collection::vec(0..i64::MAX / 2, 40),
            parts in proptest::option::of((0..1_000_000_u64, 0..9_u64)),
        ) {
            let records: Vec<_> = records.into_iter().map(|(record, name, place, (pid, is_udp, is_same))| {
                let record = if is_udp { udp(record) } else { record };
                // As one end of a connection mostly is.
                let record = if is_same { PacketRecord { saddr: [7; 16], daddr: [9; 16], sport: 1, dport: 2, ..record } } else { record };
                (record, name, place, pid)
            }).collect();
            let unknown = unknown_part(Unknown::NoStamp);
            let parts: Option<[u64; PARTS]> = parts.map(|(one, other)| [one, other, unknown, other]);
            let events = || records.iter().zip(&times).map(|((record, name, (netns, container), pid), wall_ns)| {
                Event::new(record, *wall_ns, Some(name))
                    .with_ns_pid((*pid != 0).then_some(*pid))
                    .with_place(netns.as_deref(), container.as_deref().map(str::as_bytes))
                    .with_parts(parts.as_ref())
            });
            let (expected, _) = read(&json(events()));
            let (packets, tally) = read(&recording(blocks(events())));
            let recordings = vec![Head::new().told()];
            prop_assert_eq!(tally, Tally { lines: records.len() as u64, recordings, ..Tally::default() });
            prop_assert_eq!(packets, expected);
        }
    }
}
