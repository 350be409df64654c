//! The JSON form: one object a line, its fields in a fixed order. What is unknown is `null`.
//!
//! Names (of tasks and devices) are strings whatever bytes they hold: invalid UTF-8 reads as U+FFFD, and
//! characters that could act on a terminal are written as `\uNNNN`, which parsers give back unchanged.

use std::fmt::{self, Display, Write as _};
use std::io;
use std::net::IpAddr;

use serde::ser::{Serialize, Serializer};
use serde_json::ser::Formatter;

use super::{
    Options,
    fields::{self, FINE_FIELDS, Field, Form, STAGE_FIELDS},
    line::{Addresses, Line, Piece, Timestamps},
};
use crate::escape::is_printable_beyond_ascii;
use crate::packet::event::Event;

#[derive(Debug)]
pub(super) struct JsonWriter {
    time: Timestamps,
    addresses: Addresses,
}

impl JsonWriter {
    pub(super) fn new(options: &Options) -> Self {
        Self { time: Timestamps::new(options.zone), addresses: Addresses::new() }
    }

    pub(super) fn write(&mut self, event: &Event<'_>, out: &mut Vec<u8>) {
        let Self { time, addresses } = self;
        Line::append(out, |line| {
            fields::write(event, &mut Object { time, addresses, line });
            // In place of the comma in front of the first field.
            line.begin_with(b'{');
            line.put(const { &Piece::<2>::new("}\n", "") });
        });
    }
}

/// Appends `value` as one line of JSON that does nothing on a terminal, whatever the strings in it are.
pub(crate) fn write_json(value: &impl Serialize, out: &mut Vec<u8>) {
    write_value(value, &mut *out);
    out.push(b'\n');
}

/// Appends a name as a string, in the form of names of packets' lines.
pub(crate) fn put_json_name(name: &[u8], out: &mut Vec<u8>) {
    write_value(&Name(name), out);
}

fn write_value(value: &impl Serialize, out: impl io::Write) {
    value
        .serialize(&mut serde_json::Serializer::with_formatter(out, TerminalSafe))
        .expect("memory can be written, and all keys are strings");
}

/// Writes fields and values, each with a comma in front.
struct Object<'a, 'line> {
    time: &'a mut Timestamps,
    addresses: &'a mut Addresses,
    line: &'a mut Line<'line>,
}

impl Object<'_, '_> {
    #[inline(always)]
    fn unknown(&mut self) {
        self.line.put(const { &Piece::<4>::new("null", "") });
    }
}

impl Form for Object<'_, '_> {
    #[inline(always)]
    fn time(&mut self, field: &Field, wall_ns: i64) {
        self.line.put(&field.key);
        self.line.put_byte(b'"');
        self.time.put(wall_ns, self.line);
        self.line.put_byte(b'"');
    }

    #[inline(always)]
    fn word(&mut self, field: &Field, word: &'static str) {
        self.line.put(&field.key);
        self.line.put_byte(b'"');
        self.line.put_slice(word.as_bytes());
        self.line.put_byte(b'"');
    }

    #[inline(always)]
    fn number(&mut self, field: &Field, number: Option<u64>) {
        self.line.put(&field.key);
        match number {
            Some(number) => self.line.put_number(number),
            None => self.unknown(),
        }
    }

    #[inline(always)]
    fn number_of_some(&mut self, field: &Field, has_one: bool, number: Option<u64>) {
        if has_one {
            self.number(field, number);
        }
    }

    fn word_of_some(&mut self, field: &Field, is_one: bool, word: Option<&'static str>) {
        match word {
            Some(word) => self.word(field, word),
            None if is_one => self.number(field, None),
            None => {}
        }
    }

    #[inline(always)]
    fn name(&mut self, field: &Field, name: Option<&[u8]>) {
        self.line.put(&field.key);
        let Some(name) = name else { return self.unknown() };
        self.line.put_byte(b'"');
        // Nearly all of them.
        if self.line.put_plain(name, b"\"\\") {
            self.line.put_byte(b'"');
        } else {
            self.line.take_back(1);
            write_value(&Name(name), &mut *self.line);
        }
    }

    #[inline(always)]
    fn address(&mut self, field: &Field, address: IpAddr) {
        self.line.put(&field.key);
        self.line.put_byte(b'"');
        self.line.put_address(address, self.addresses);
        self.line.put_byte(b'"');
    }

    #[inline(always)]
    fn words(&mut self, field: &Field, words: impl Iterator<Item = &'static str>) {
        self.line.put(&field.key);
        self.line.put_byte(b'[');
        for (index, word) in words.enumerate() {
            self.line.put_slice(if index == 0 { b"\"" } else { b",\"" });
            self.line.put_slice(word.as_bytes());
            self.line.put_byte(b'"');
        }
        self.line.put_byte(b']');
    }

    #[inline(always)]
    fn stages(&mut self, stages: impl Iterator<Item = (usize, Option<u64>)>) {
        for (place, time) in stages {
            self.number(&STAGE_FIELDS[place], time);
        }
    }

    fn fine_stages(&mut self, stages: impl Iterator<Item = (usize, Option<u64>)>) {
        for (place, time) in stages {
            self.number(&FINE_FIELDS[place], time);
        }
    }
}

/// Any bytes that a user chose, as a string.
struct Name<'a>(&'a [u8]);

impl Serialize for Name<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(self.0) {
            Ok(name) => serializer.serialize_str(name),
            Err(_) => serializer.collect_str(self),
        }
    }
}

impl Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            f.write_str(chunk.valid())?;
            if !chunk.invalid().is_empty() {
                f.write_char(char::REPLACEMENT_CHARACTER)?;
            }
        }
        Ok(())
    }
}

/// Compact JSON that also escapes what JSON would let through to a terminal.
struct TerminalSafe;

impl Formatter for TerminalSafe {
    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        if fragment.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            return writer.write_all(fragment.as_bytes());
        }
        let unsafe_here = |c: char| c == '\u{7f}' || (!c.is_ascii() && !is_printable_beyond_ascii(c));
        let mut rest = fragment;
        while let Some((index, c)) = rest.char_indices().find(|(_, c)| unsafe_here(*c)) {
            writer.write_all(&rest.as_bytes()[..index])?;
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
            rest = &rest[index + c.len_utf8()..];
        }
        writer.write_all(rest.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use net_latency_common::{FLAG_CONTROL, FLAG_GRO, FLAG_RETRANS, PacketRecord, STAMP_APP, STAMP_IP};
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;
    use crate::clock::{TimeStyle, TimeText, Zone};
    use crate::kernel::{containers::SHORT_LEN, netns::NAME_LEN};
    use crate::output::tests::{any_name, any_record};
    use crate::output::{LONGEST_LINE, Writer};
    use crate::packet::event::{
        PARTS,
        fixtures::{WALL_NS, comm, incoming, outgoing, udp, v6},
    };
    use crate::packet::stages::{FINE_STAGES, STAGES, stages};
    use crate::request::Format;

    /// JSON written by the standard library alone.
    struct Plain(String);

    impl Plain {
        fn put(&mut self, field: &Field, value: impl Display) {
            let separator = if self.0.is_empty() { '{' } else { ',' };
            write!(self.0, "{separator}\"{}\":{value}", field.name).expect("memory can be written");
        }
    }

    impl Form for Plain {
        fn time(&mut self, field: &Field, wall_ns: i64) {
            let mut out = Vec::new();
            TimeText::new(Zone::UTC, TimeStyle::Rfc3339).write(wall_ns, &mut out);
            self.put(field, format_args!("\"{}\"", String::from_utf8_lossy(&out)));
        }

        fn word(&mut self, field: &Field, word: &'static str) {
            self.put(field, format_args!("\"{word}\""));
        }

        fn number(&mut self, field: &Field, number: Option<u64>) {
            self.put(field, number.map_or("null".to_owned(), |number| number.to_string()));
        }

        fn number_of_some(&mut self, field: &Field, has_one: bool, number: Option<u64>) {
            if has_one {
                self.number(field, number);
            }
        }

        fn word_of_some(&mut self, field: &Field, is_one: bool, word: Option<&'static str>) {
            if is_one {
                self.put(field, Value::from(word));
            }
        }

        fn name(&mut self, field: &Field, name: Option<&[u8]>) {
            let mut out = Vec::new();
            write_value(&name.map(Name), &mut out);
            self.put(field, String::from_utf8_lossy(&out));
        }

        fn address(&mut self, field: &Field, address: IpAddr) {
            self.put(field, format_args!("\"{address}\""));
        }

        fn words(&mut self, field: &Field, words: impl Iterator<Item = &'static str>) {
            self.put(field, Value::from_iter(words));
        }

        fn stages(&mut self, stages: impl Iterator<Item = (usize, Option<u64>)>) {
            stages.for_each(|(place, time)| self.number(&Field::new(STAGES[place].field), time));
        }

        fn fine_stages(&mut self, stages: impl Iterator<Item = (usize, Option<u64>)>) {
            stages.for_each(|(place, time)| self.number(&Field::new(FINE_STAGES[place].field), time));
        }
    }

    #[test]
    fn the_longest_line_has_room() {
        let name = [1; 15];
        let packet = PacketRecord {
            stamps: [1, 1 << 63, u64::MAX - 1, u64::MAX],
            other: 2,
            comm: comm(&name),
            pid: u32::MAX,
            tid: u32::MAX,
            len: u32::MAX,
            seq: u32::MAX,
            netns: u32::MAX,
            mark: u32::MAX,
            sport: u16::MAX,
            dport: u16::MAX,
            segs: u16::MAX,
            cpu: u16::MAX,
            flags: u16::MAX,
            saddr: [0x88; 16],
            daddr: [0x88; 16],
            ..v6(incoming())
        };
        for options in [(false, false), (true, true)] {
            for format in [Format::Text, Format::Json, Format::Csv] {
                let options = Options { zone: Zone::UTC, details: options.0, colour: options.1 };
                let mut out = Vec::new();
                let event = Event::new(&packet, WALL_NS, Some(&name))
                    .with_ns_pid(Some(u32::MAX))
                    .with_place(Some(&[1; NAME_LEN]), Some(&[1; SHORT_LEN]))
                    .with_parts(Some(&[u64::MAX / 2; PARTS]));
                Writer::new(format, &options).write(&event, &mut out);
                // A number is written in steps of eight digits.
                assert!(out.len() + 24 <= LONGEST_LINE, "{}", out.len());
            }
        }
    }

    fn line(record: &PacketRecord, ifname: Option<&[u8]>) -> String {
        let mut out = Vec::new();
        let options = Options { zone: Zone::UTC, details: false, colour: true };
        JsonWriter::new(&options).write(&Event::new(record, WALL_NS, ifname), &mut out);
        String::from_utf8(out).expect("JSON is UTF-8")
    }

    #[test]
    fn both_directions_have_their_fields_in_order() {
        assert_snapshot!(line(&incoming(), Some(b"eth0")));
        assert_snapshot!(line(&udp(incoming()), None));
        assert_snapshot!(line(&udp(PacketRecord { other: 1_000_500, ..outgoing() }), None));
        let record = PacketRecord { flags: FLAG_RETRANS | FLAG_GRO, segs: 3, mark: 7, ..v6(outgoing()) };
        assert_snapshot!(line(&record, Some(b"wlan0")));
    }

    #[test]
    fn names_of_places_are_last() {
        let mut out = Vec::new();
        let options = Options { zone: Zone::UTC, details: false, colour: false };
        let record = incoming();
        let event = Event::new(&record, WALL_NS, None).with_place(Some(b"red"), Some(b"0123456789ab"));
        JsonWriter::new(&options).write(&event, &mut out);
        let text = String::from_utf8(out).expect("JSON is UTF-8");
        assert!(
            text.ends_with(
                ",\"process\":\"firefox\",\"netns_name\":\"red\",\"container\":\"0123456789ab\"}\n"
            ),
            "{text}"
        );
    }

    #[test]
    fn unknown_is_null() {
        let mut record = incoming();
        record.stamps[STAMP_IP] = 0;
        record.stamps[STAMP_APP] = 0;
        (record.comm, record.process) = ([0; 16], [0; 16]);
        record.pid = 0;
        record.tid = 0;
        record.netns = 0;
        assert_snapshot!(line(&record, None));
        record.flags = FLAG_CONTROL;
        assert!(line(&record, None).contains("\"flags\":[\"control\"],"));
    }

    #[test]
    fn hostile_names_are_valid_and_do_nothing() {
        let names: [&[u8]; 4] = [
            b"\x1b[2J\"\\\n\x7f",
            b"\xc2\x9b\xe2\x80\xae\xff",
            "火狐 é".as_bytes(),
            b"\xf3\xa0\x80\x81\xe2\x80",
        ];
        let mut found = String::new();
        for name in names {
            let text = line(&PacketRecord { comm: comm(name), ..incoming() }, None);
            let (_, rest) = text.split_once("\"comm\":").expect("field");
            found += rest.split_once(",\"saddr\"").expect("next field").0;
            found.push('\n');
            let value: Value = serde_json::from_str(&text).expect("valid JSON");
            assert_eq!(value["comm"], String::from_utf8_lossy(name).as_ref());
        }
        assert_snapshot!(found);
    }

    proptest! {
        #[test]
        fn any_line_is_byte_for_byte_what_the_standard_library_writes(
            records in proptest::collection::vec((any_record(), any_name(), any::<(i64, bool, Option<u32>)>()), 1..8),
        ) {
            let options = Options { zone: Zone::UTC, details: false, colour: false };
            // One writer, for it keeps texts from line to line.
            let mut writer = JsonWriter::new(&options);
            for (record, ifname, (wall_ns, is_udp, ns_pid)) in records {
                let record = if is_udp { udp(record) } else { record };
                let event = Event::new(&record, wall_ns, Some(&ifname)).with_ns_pid(ns_pid);
                let mut out = Vec::new();
                writer.write(&event, &mut out);
                let mut plain = Plain(String::new());
                fields::write(&event, &mut plain);
                prop_assert_eq!(String::from_utf8_lossy(&out), plain.0 + "}\n");
            }
        }

        #[test]
        fn any_line_parses_back(record in any_record(), ifname in any_name()) {
            let event = Event::new(&record, WALL_NS, Some(&ifname));
            let text = line(&record, Some(&ifname));
            prop_assert!(text.len() <= LONGEST_LINE);
            let body = text.strip_suffix('\n').expect("ends with a newline");
            prop_assert!(!body.chars().any(char::is_control));
            let value: Value = serde_json::from_str(body).expect("valid JSON");
            for (field, stage) in stages(event.direction(), event.protocol()).map(|stage| stage.field).into_iter().zip(event.stages()) {
                prop_assert_eq!(&value[field], &Value::from(stage));
            }
            prop_assert_eq!(&value["total_ns"], &Value::from(event.total_ns()));
            let comm = event.comm().map(String::from_utf8_lossy);
            prop_assert_eq!(&value["comm"], &Value::from(comm.map(String::from)));
            prop_assert_eq!(&value["ifname"], &Value::from(event.ifname().map(|name| String::from_utf8_lossy(name).into_owned())));
            prop_assert_eq!(&value["saddr"], &Value::from(event.saddr().to_string()));
            prop_assert_eq!(&value["seq"], &Value::from(record.seq));
            prop_assert_eq!(&value["pid"], &Value::from(event.pid()));
        }
    }
}
