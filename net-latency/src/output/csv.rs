//! The CSV form (RFC 4180, lines end with a newline): JSON's fields in JSON's order, with the stages of both
//! protocols and directions as columns of their own. What is unknown, or not this packet's, is empty.
//!
//! A name (of a task or device) is one field of one line whatever its bytes are: invalid UTF-8 reads as U+FFFD as
//! in JSON; control and format characters, the backslash, and a first character that makes a spreadsheet
//! calculate are written in C's way as `\xNN`, byte by byte.

use std::io::Write as _;

use net_latency_common::AF_INET6;

use super::{
    Options,
    fields::{STAGE_FIELDS, dir, stage_fields},
    is_printable_beyond_ascii,
    text::{write_escaped, write_number},
};
use crate::{
    clock::{TimeStyle, TimeText},
    packet::event::Event,
};

/// The first line of a file.
pub(super) const HEADER: &[u8] = b"ts,dir,proto,ipver,pid,tid,comm,saddr,sport,daddr,dport,len,seq,segs,\
    drv_ip_ns,ip_tcp_ns,tcp_app_ns,ip_udp_ns,udp_app_ns,app_tcp_ns,tcp_ip_ns,app_udp_ns,udp_ip_ns,ip_drv_ns,\
    total_ns,ifname,netns,mark,cpu,flags,first_send_age_ns,last_drv_ip_ns,ns_pid\n";

#[derive(Debug)]
pub(super) struct CsvWriter {
    time: TimeText,
}

impl CsvWriter {
    pub(super) fn new(options: &Options) -> Self {
        Self { time: TimeText::new(options.zone, TimeStyle::Rfc3339) }
    }

    pub(super) fn write(&mut self, event: &Event<'_>, out: &mut Vec<u8>) {
        let record = event.record();
        self.time.write(event.wall_ns(), out);
        for word in [dir(event.direction()), event.protocol().name()] {
            out.push(b',');
            out.extend_from_slice(word.as_bytes());
        }
        out.extend_from_slice(if record.family == AF_INET6 { b",6" } else { b",4" });
        number(event.pid(), out);
        number(event.tid(), out);
        name(event.comm(), out);
        for (address, port) in [(event.saddr(), record.sport), (event.daddr(), record.dport)] {
            write!(out, ",{address}").expect("memory can be written");
            number(Some(port), out);
        }
        number(Some(record.len), out);
        number(event.seq(), out);
        number(Some(record.segs), out);
        let own = stage_fields(event.direction(), event.protocol());
        for field in STAGE_FIELDS {
            let column = own.into_iter().position(|name| name == field);
            number(column.and_then(|column| event.stage(column)), out);
        }
        number(event.total_ns(), out);
        name(event.ifname(), out);
        number((record.netns != 0).then_some(record.netns), out);
        number(Some(record.mark), out);
        number(Some(record.cpu), out);
        for (index, flag) in event.flags().enumerate() {
            out.push(if index == 0 { b',' } else { b';' });
            out.extend_from_slice(flag.as_bytes());
        }
        if event.flags().next().is_none() {
            out.push(b',');
        }
        number(event.first_send_age_ns(), out);
        number(event.last_drv_ip_ns(), out);
        number(event.ns_pid(), out);
        out.push(b'\n');
    }
}

fn number(number: Option<impl itoa::Integer>, out: &mut Vec<u8>) {
    out.push(b',');
    if let Some(number) = number {
        write_number(number, out);
    }
}

/// See the head of this module.
fn name(name: Option<&[u8]>, out: &mut Vec<u8>) {
    out.push(b',');
    let name = name.unwrap_or_default();
    let quote = name.iter().any(|byte| matches!(byte, b',' | b'"'));
    if quote {
        out.push(b'"');
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
                '"' => out.extend_from_slice(b"\"\""),
                _ if plain => out.extend_from_slice(bytes),
                _ => write_escaped(bytes, out),
            }
        }
        if !chunk.invalid().is_empty() {
            out.extend_from_slice("\u{fffd}".as_bytes());
        }
        first = false;
    }
    if quote {
        out.push(b'"');
    }
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use net_latency_common::{
        Direction, FLAG_CONTROL, FLAG_GRO, FLAG_RETRANS, PacketRecord, STAMP_APP, STAMP_IP, STAMP_TRANSPORT,
    };
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;
    use crate::{
        clock::Zone,
        output::{
            LONGEST_LINE,
            json::JsonWriter,
            tests::{any_name, any_record},
        },
        packet::event::{
            Protocol,
            fixtures::{WALL_NS, comm, incoming, outgoing, udp, v6},
        },
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
        let head = str::from_utf8(HEADER).expect("ASCII").strip_suffix('\n').expect("a whole line");
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
        lines += &write(&Event::new(&incoming(), WALL_NS, None).with_ns_pid(Some(7)));
        assert_snapshot!(lines);
    }

    #[test]
    fn unknown_is_empty() {
        let mut record = incoming();
        record.stamps[STAMP_IP] = 0;
        record.stamps[STAMP_APP] = 0;
        record.comm = [0; 16];
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

    #[test]
    fn the_header_has_the_stages_and_every_packet_s_in_its_order() {
        let head = head();
        let first = head.iter().position(|field| *field == STAGE_FIELDS[0]).expect("a stage");
        assert_eq!(head[first..first + STAGE_FIELDS.len()], STAGE_FIELDS);
        for direction in [Direction::In, Direction::Out] {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                let own = stage_fields(direction, protocol);
                let places = own.map(|field| STAGE_FIELDS.iter().position(|name| *name == field));
                assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{own:?}");
            }
        }
    }

    proptest! {
        /// The same fields in the same order, with the same values.
        #[test]
        fn any_line_says_what_json_says(record in any_record(), ifname in any_name(), is_udp: bool, ns_pid: Option<u32>) {
            let record = if is_udp { udp(record) } else { record };
            let event = Event::new(&record, WALL_NS, Some(&ifname)).with_ns_pid(ns_pid);
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
                    Value::String(name) if matches!(field, "comm" | "ifname") => {
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
