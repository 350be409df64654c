//! The CSV form (RFC 4180, lines end with a newline): JSON's fields in JSON's order, with the stages of both
//! protocols and directions as columns of their own. What is unknown, or not this packet's, is empty.
//!
//! A name (of a task or device) is one field of one line whatever its bytes are: invalid UTF-8 reads as U+FFFD as
//! in JSON; control and format characters, the backslash, and a first character that makes a spreadsheet
//! calculate are written in C's way as `\xNN`, byte by byte.

use std::{net::IpAddr, sync::LazyLock};

use net_latency_common::PacketRecord;

use super::{
    Options,
    fields::{self, FINE_FIELDS, Field, Form, STAGE_FIELDS},
    line::{Addresses, Line, Timestamps},
};
use crate::{
    escape::{escaped, is_printable_beyond_ascii},
    packet::{
        event::{Event, PARTS},
        stages::{FINE_STAGES, STAGES},
    },
};

/// The first line of a file.
pub(super) static HEADER: LazyLock<Vec<u8>> = LazyLock::new(|| header(None));
/// The first line of a file with fine stages.
pub(super) static FINE_HEADER: LazyLock<Vec<u8>> = LazyLock::new(|| header(Some(&[0; PARTS])));

fn header(parts: Option<&[u64; PARTS]>) -> Vec<u8> {
    let mut names = Names(Vec::new());
    // Which packet it is doesn't matter: all have the same columns.
    fields::write(&Event::new(&PacketRecord::default(), 0, None).with_parts(parts), &mut names);
    let mut header = names.0.join(",").into_bytes();
    header.push(b'\n');
    header
}

#[derive(Debug)]
pub(super) struct CsvWriter {
    time: Timestamps,
    addresses: Addresses,
}

impl CsvWriter {
    pub(super) fn new(options: &Options) -> Self {
        Self { time: Timestamps::new(options.zone), addresses: Addresses::new() }
    }

    pub(super) fn write(&mut self, event: &Event<'_>, out: &mut Vec<u8>) {
        let Self { time, addresses } = self;
        Line::append(out, |line| {
            fields::write(event, &mut Values { time, addresses, line });
            // In place of the comma behind the last value.
            line.take_back(1);
            line.put_byte(b'\n');
        });
    }
}

/// Writes values, each with a comma behind it.
struct Values<'a, 'line> {
    time: &'a mut Timestamps,
    addresses: &'a mut Addresses,
    line: &'a mut Line<'line>,
}

impl Form for Values<'_, '_> {
    #[inline(always)]
    fn time(&mut self, _: &Field, wall_ns: i64) {
        self.time.put(wall_ns, self.line);
        self.line.put_byte(b',');
    }

    #[inline(always)]
    fn word(&mut self, _: &Field, word: &'static str) {
        self.line.put_slice(word.as_bytes());
        self.line.put_byte(b',');
    }

    #[inline(always)]
    fn number(&mut self, _: &Field, number: Option<u64>) {
        if let Some(number) = number {
            self.line.put_number(number);
        }
        self.line.put_byte(b',');
    }

    #[inline(always)]
    fn number_of_some(&mut self, field: &Field, _: bool, number: Option<u64>) {
        self.number(field, number);
    }

    fn word_of_some(&mut self, field: &Field, _: bool, word: Option<&'static str>) {
        self.word(field, word.unwrap_or_default());
    }

    #[inline(always)]
    fn name(&mut self, _: &Field, name: Option<&[u8]>) {
        if let Some(name @ [first, ..]) = name {
            // Nearly all of them.
            if matches!(first, b'=' | b'+' | b'-' | b'@') || !self.line.put_plain(name, b"\",\\") {
                write_name(name, self.line);
            }
        }
        self.line.put_byte(b',');
    }

    fn name_of_some(&mut self, field: &Field, _: bool, name: Option<&[u8]>) {
        self.name(field, name);
    }

    #[inline(always)]
    fn address(&mut self, _: &Field, address: IpAddr) {
        self.line.put_address(address, self.addresses);
        self.line.put_byte(b',');
    }

    #[inline(always)]
    fn words(&mut self, _: &Field, words: impl Iterator<Item = &'static str>) {
        for (index, word) in words.enumerate() {
            if index > 0 {
                self.line.put_byte(b';');
            }
            self.line.put_slice(word.as_bytes());
        }
        self.line.put_byte(b',');
    }

    #[inline(always)]
    fn stages(&mut self, stages: impl Iterator<Item = (usize, Option<u64>)>) {
        self.columns(&STAGE_FIELDS, stages);
    }

    fn fine_stages(&mut self, stages: impl Iterator<Item = (usize, Option<u64>)>) {
        self.columns(&FINE_FIELDS, stages);
    }
}

impl Values<'_, '_> {
    /// A column for each of all stages, of which a packet has some.
    #[inline(always)]
    fn columns<const COUNT: usize>(
        &mut self,
        fields: &[Field; COUNT],
        stages: impl Iterator<Item = (usize, Option<u64>)>,
    ) {
        let mut times = [None; COUNT];
        for (place, time) in stages {
            times[place] = time;
        }
        for (field, time) in fields.iter().zip(times) {
            self.number(field, time);
        }
    }
}

/// The names of the columns.
struct Names(Vec<&'static str>);

impl Form for Names {
    fn time(&mut self, field: &Field, _: i64) {
        self.0.push(field.name);
    }

    fn word(&mut self, field: &Field, _: &'static str) {
        self.0.push(field.name);
    }

    fn number(&mut self, field: &Field, _: Option<u64>) {
        self.0.push(field.name);
    }

    fn number_of_some(&mut self, field: &Field, _: bool, _: Option<u64>) {
        self.0.push(field.name);
    }

    fn word_of_some(&mut self, field: &Field, _: bool, _: Option<&'static str>) {
        self.0.push(field.name);
    }

    fn name(&mut self, field: &Field, _: Option<&[u8]>) {
        self.0.push(field.name);
    }

    fn name_of_some(&mut self, field: &Field, _: bool, name: Option<&[u8]>) {
        self.name(field, name);
    }

    fn address(&mut self, field: &Field, _: IpAddr) {
        self.0.push(field.name);
    }

    fn words(&mut self, field: &Field, _: impl Iterator<Item = &'static str>) {
        self.0.push(field.name);
    }

    fn stages(&mut self, _: impl Iterator<Item = (usize, Option<u64>)>) {
        self.0.extend(STAGES.iter().map(|stage| stage.field));
    }

    fn fine_stages(&mut self, _: impl Iterator<Item = (usize, Option<u64>)>) {
        self.0.extend(FINE_STAGES.iter().map(|stage| stage.field));
    }
}

/// Appends a name as a value, in the form of names of packets' lines.
pub(crate) fn put_csv_name(name: &[u8], out: &mut Vec<u8>) {
    Line::append(out, |line| write_name(name, line));
}

/// See the head of this module.
#[cold]
fn write_name(name: &[u8], line: &mut Line<'_>) {
    let quote = name.iter().any(|byte| matches!(byte, b',' | b'"'));
    if quote {
        line.put_byte(b'"');
    }
    let mut first = true;
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            let plain = match c {
                '\\' => false,
                '=' | '+' | '-' | '@' => !first,
                ' '..='~' => true,
                _ => is_printable_beyond_ascii(c),
            };
            first = false;
            let mut bytes = [0; 4];
            let bytes = c.encode_utf8(&mut bytes).as_bytes();
            match c {
                '"' => line.put_slice(b"\"\""),
                _ if plain => line.put_slice(bytes),
                _ => bytes.iter().for_each(|byte| line.put_slice(&escaped(*byte))),
            }
        }
        if !chunk.invalid().is_empty() {
            line.put_slice("\u{fffd}".as_bytes());
        }
        first = false;
    }
    if quote {
        line.put_byte(b'"');
    }
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use net_latency_common::{
        FLAG_CONTROL, FLAG_GRO, FLAG_RETRANS, PacketRecord, STAMP_APP, STAMP_IP, STAMP_TRANSPORT,
    };
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;
    use crate::{
        clock::Zone,
        output::{
            LONGEST_LINE,
            json::JsonWriter,
            tests::{any_name, any_place, any_record},
        },
        packet::event::fixtures::{WALL_NS, comm, incoming, outgoing, udp, v6},
    };

    const OPTIONS: Options = Options { zone: Zone::UTC, details: false, colour: false };

    fn write(event: &Event<'_>) -> String {
        let mut out = Vec::new();
        CsvWriter::new(&OPTIONS).write(event, &mut out);
        String::from_utf8(out).expect("CSV is UTF-8")
    }

    fn line(record: &PacketRecord, ifname: Option<&[u8]>) -> String {
        write(&Event::new(record, WALL_NS, ifname))
    }

    fn head() -> Vec<&'static str> {
        let head = str::from_utf8(&HEADER).expect("ASCII").strip_suffix('\n').expect("a whole line");
        head.split(',').collect()
    }

    /// What a reader of CSV makes of a line: its only record's fields.
    fn read(line: &str) -> Vec<String> {
        let mut reader = csv::ReaderBuilder::new().has_headers(false).from_reader(line.as_bytes());
        let mut records = reader.records().map(|record| record.expect("valid CSV"));
        let record = records.next().expect("a record");
        assert_eq!(records.next(), None);
        record.iter().map(str::to_owned).collect()
    }

    /// The name that [`name`] has written.
    fn unescape(text: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut parts = text.split("\\x");
        bytes.extend_from_slice(parts.next().unwrap_or_default().as_bytes());
        for part in parts {
            let (hex, rest) = part.split_at(2);
            bytes.push(u8::from_str_radix(hex, 16).expect("two hexadecimal digits"));
            bytes.extend_from_slice(rest.as_bytes());
        }
        bytes
    }

    #[test]
    fn both_directions_and_protocols_have_their_columns() {
        let again = PacketRecord {
            other: outgoing().stamps[STAMP_TRANSPORT] - 700,
            flags: FLAG_RETRANS | FLAG_GRO,
            segs: 3,
            mark: 7,
            ..v6(outgoing())
        };
        let mut lines = String::from_utf8(HEADER.to_vec()).expect("ASCII");
        lines += &line(&incoming(), Some(b"eth0"));
        lines += &line(&again, Some(b"wlan0"));
        lines += &line(&udp(incoming()), None);
        lines += &line(&udp(outgoing()), None);
        lines += &write(
            &Event::new(&incoming(), WALL_NS, None)
                .with_ns_pid(Some(7))
                .with_place(Some(b"red"), Some(b"0123456789ab")),
        );
        assert_snapshot!(lines);
    }

    #[test]
    fn unknown_is_empty() {
        let mut record = incoming();
        record.stamps[STAMP_IP] = 0;
        record.stamps[STAMP_APP] = 0;
        (record.comm, record.process) = ([0; 16], [0; 16]);
        (record.pid, record.tid, record.netns) = (0, 0, 0);
        let partial = line(&record, None);
        record.flags = FLAG_CONTROL;
        assert_snapshot!(partial + &line(&record, None));
    }

    #[test]
    fn hostile_names_do_nothing() {
        let names: [&[u8]; 9] = [
            b"\x1b[2J\"\\\n\x7f,",
            b"\xc2\x9b\xe2\x80\xae\xff",
            "火狐 é".as_bytes(),
            b"=1+1",
            b"-x",
            b"@x|'",
            b"\"",
            b"a=b-c",
            b"\xff=1",
        ];
        let mut found = String::new();
        for name in names {
            let text = line(&PacketRecord { comm: comm(name), ..incoming() }, None);
            let (_, rest) = text.split_once("19550,19561,").expect("the fields before it");
            found += rest.split_once(",192.0.2.7").expect("the field after it").0;
            found.push('\n');
        }
        assert_snapshot!(found);
    }

    /// The names are part of the interface: they may become more, and never others.
    #[test]
    fn the_header_names_all_columns() {
        let stages = STAGES.map(|stage| stage.field).join(",");
        let expected = format!(
            "ts,dir,proto,ipver,pid,tid,comm,saddr,sport,daddr,dport,len,seq,segs,{stages},total_ns,ifname,netns,mark,cpu,\
             flags,first_send_age_ns,last_drv_ip_ns,ns_pid,process,rtt_ns,dsacks,netns_name,container"
        );
        assert_eq!(head().join(","), expected);
    }

    proptest! {
        /// CSV has JSON's fields in JSON's order, with the same values.
        #[test]
        fn any_line_says_what_json_says(record in any_record(), ifname in any_name(), is_udp: bool, ns_pid: Option<u32>, (netns_name, container) in any_place()) {
            let record = if is_udp { udp(record) } else { record };
            let place = (netns_name.as_deref(), container.as_deref().map(str::as_bytes));
            let event = Event::new(&record, WALL_NS, Some(&ifname)).with_ns_pid(ns_pid).with_place(place.0, place.1);
            let text = write(&event);
            prop_assert!(text.len() <= LONGEST_LINE);
            let body = text.strip_suffix('\n').expect("ends with a newline");
            prop_assert!(!body.chars().any(char::is_control));
            let fields = read(&text);
            let head = head();
            prop_assert_eq!(fields.len(), head.len());

            let mut json = Vec::new();
            JsonWriter::new(&OPTIONS).write(&event, &mut json);
            let json_text = String::from_utf8(json).expect("UTF-8");
            let value: Value = serde_json::from_str(&json_text).expect("valid JSON");
            let mut place = 0;
            let mut found = 0;
            for (field, text) in head.into_iter().zip(&fields) {
                let Some(expected) = value.get(field) else {
                    prop_assert_eq!(text, "", "{} is not this packet's", field);
                    continue;
                };
                let key = format!("\"{field}\":");
                let here = json_text.find(&key).expect("the field");
                prop_assert!(here > place, "{} is not in JSON's order", field);
                (place, found) = (here, found + 1);
                let same = match expected {
                    Value::Null => text.is_empty(),
                    Value::String(name) if matches!(field, "comm" | "process" | "ifname" | "netns_name") => {
                        unescape(text) == name.as_bytes()
                            && !text.starts_with(['=', '+', '-', '@'])
                    }
                    Value::String(string) => text == string,
                    Value::Array(flags) => {
                        let flags: Vec<_> = flags.iter().filter_map(Value::as_str).collect();
                        *text == flags.join(";")
                    }
                    number => text.parse().ok() == number.as_u64(),
                };
                prop_assert!(same, "{}: {:?} is not {}", field, text, expected);
            }
            prop_assert_eq!(found, value.as_object().map_or(0, serde_json::Map::len));
        }
    }
}
