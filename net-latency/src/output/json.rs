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
    fields::{self, Form},
    text::write_number,
};
use crate::clock::{TimeStyle, TimeText};
use crate::escape::is_printable_beyond_ascii;
use crate::packet::{
    event::Event,
    stages::{FINE_STAGES, STAGES},
};

#[derive(Debug)]
pub(super) struct JsonWriter {
    time: TimeText,
}

impl JsonWriter {
    pub(super) fn new(options: &Options) -> Self {
        Self { time: TimeText::new(options.zone, TimeStyle::Rfc3339) }
    }

    pub(super) fn write(&mut self, event: &Event<'_>, out: &mut Vec<u8>) {
        fields::write(event, &mut Object { time: &mut self.time, out: &mut *out, separator: b'{' });
        out.extend_from_slice(b"}\n");
    }
}

/// Appends `value` as one line of JSON that does nothing on a terminal, whatever the strings in it are.
pub(crate) fn write_json(value: &impl Serialize, out: &mut Vec<u8>) {
    write_value(value, out);
    out.push(b'\n');
}

fn write_value(value: &impl Serialize, out: &mut Vec<u8>) {
    value
        .serialize(&mut serde_json::Serializer::with_formatter(&mut *out, TerminalSafe))
        .expect("memory can be written, and all keys are strings");
}

/// Writes fields and values, and in front of each what separates it from the last.
struct Object<'a> {
    time: &'a mut TimeText,
    out: &'a mut Vec<u8>,
    separator: u8,
}

impl Object<'_> {
    fn key(&mut self, field: &'static str) {
        self.out.extend_from_slice(&[self.separator, b'"']);
        self.separator = b',';
        self.out.extend_from_slice(field.as_bytes());
        self.out.extend_from_slice(b"\":");
    }

    fn quoted(&mut self, text: &[u8]) {
        self.out.push(b'"');
        self.out.extend_from_slice(text);
        self.out.push(b'"');
    }
}

impl Form for Object<'_> {
    fn time(&mut self, field: &'static str, wall_ns: i64) {
        self.key(field);
        self.out.push(b'"');
        self.time.write(wall_ns, self.out);
        self.out.push(b'"');
    }

    fn word(&mut self, field: &'static str, word: &'static str) {
        self.key(field);
        self.quoted(word.as_bytes());
    }

    fn number(&mut self, field: &'static str, number: Option<u64>) {
        self.key(field);
        match number {
            Some(number) => write_number(number, self.out),
            None => self.out.extend_from_slice(b"null"),
        }
    }

    fn name(&mut self, field: &'static str, name: Option<&[u8]>) {
        self.key(field);
        match name {
            // Nearly all of them.
            Some(name)
                if name.iter().all(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\')) =>
            {
                self.quoted(name);
            }
            Some(name) => write_value(&Name(name), self.out),
            None => self.out.extend_from_slice(b"null"),
        }
    }

    fn address(&mut self, field: &'static str, address: IpAddr) {
        self.key(field);
        io::Write::write_fmt(self.out, format_args!("\"{address}\"")).expect("memory can be written");
    }

    fn words(&mut self, field: &'static str, words: impl Iterator<Item = &'static str>) {
        self.key(field);
        self.out.push(b'[');
        for (index, word) in words.enumerate() {
            if index > 0 {
                self.out.push(b',');
            }
            self.quoted(word.as_bytes());
        }
        self.out.push(b']');
    }

    fn stages(&mut self, stages: impl Iterator<Item = (usize, Option<u64>)>) {
        for (place, time) in stages {
            self.number(STAGES[place].field, time);
        }
    }

    fn fine_stages(&mut self, stages: impl Iterator<Item = (usize, Option<u64>)>) {
        for (place, time) in stages {
            self.number(FINE_STAGES[place].field, time);
        }
    }
}

/// Bytes of somebody's choice as a string.
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
    use crate::clock::Zone;
    use crate::output::tests::{any_name, any_record};
    use crate::packet::event::fixtures::{WALL_NS, comm, incoming, outgoing, udp, v6};
    use crate::packet::stages::stages;

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
    fn a_container_s_own_pid_is_last() {
        let mut out = Vec::new();
        let options = Options { zone: Zone::UTC, details: false, colour: false };
        let record = incoming();
        let event = Event::new(&record, WALL_NS, None).with_ns_pid(Some(7));
        JsonWriter::new(&options).write(&event, &mut out);
        let text = String::from_utf8(out).expect("JSON is UTF-8");
        assert!(text.ends_with(",\"ns_pid\":7}\n"), "{text}");
    }

    #[test]
    fn unknown_is_null() {
        let mut record = incoming();
        record.stamps[STAMP_IP] = 0;
        record.stamps[STAMP_APP] = 0;
        record.comm = [0; 16];
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
        fn any_line_parses_back(record in any_record(), ifname in any_name()) {
            let event = Event::new(&record, WALL_NS, Some(&ifname));
            let text = line(&record, Some(&ifname));
            prop_assert!(text.len() <= crate::output::LONGEST_LINE);
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
