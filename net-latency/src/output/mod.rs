//! The forms in which events are shown, one file per form, and the place where the lines go.

mod csv;
mod fields;
mod json;
mod line;
mod pcapng;
#[cfg(test)]
pub(crate) mod schema;
mod sink;
mod text;

use std::{ffi::OsStr, io};

use serde::Serialize;

use crate::clock::Zone;
use crate::packet::event::Event;
use crate::request::{FooterFormat, Format, Stages};

pub(crate) use csv::put_csv_name;
pub(crate) use json::{put_json_name, write_json};
pub(crate) use line::Line;
pub(crate) use sink::{LONGEST_LINE, Sink, SinkError};

/// The line that begins a file, newline included; empty where a file needs none.
#[must_use]
pub fn header(format: Format, stages: Stages) -> &'static [u8] {
    match (format, stages) {
        (Format::Text | Format::Json | Format::Pcapng, _) => b"",
        (Format::Csv, Stages::Basic) => &csv::HEADER,
        (Format::Csv, Stages::Fine) => &csv::FINE_HEADER,
    }
}

/// Writes a footer in its form: by `text`, or as the JSON object that `object` makes.
///
/// # Errors
/// When `text` fails.
pub(crate) fn write_footer<T: Serialize>(
    form: FooterFormat,
    out: &mut Vec<u8>,
    text: impl FnOnce(&mut Vec<u8>) -> io::Result<()>,
    object: impl FnOnce() -> T,
) -> io::Result<()> {
    match form {
        FooterFormat::Text => text(out)?,
        FooterFormat::Json => write_json(&object(), out),
        FooterFormat::None => {}
    }
    Ok(())
}

/// Whether lines show what takes a look at more than the record: names of the device and the network namespace, a process'
/// number in its own PID namespace, and its container.
#[must_use]
pub(crate) fn shows_names(format: Format, details: bool) -> bool {
    details || format != Format::Text
}

/// What the forms can vary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Whose time the lines show.
    pub zone: Zone,
    /// Text: addresses, lengths, device and flags behind the PID. (The other forms always have them.)
    pub details: bool,
    /// Text: terminal colours.
    pub colour: bool,
}

/// Turns events into lines of one form.
#[derive(Debug)]
pub struct Writer(Form);

#[derive(Debug)]
enum Form {
    Text(text::TextWriter),
    Json(json::JsonWriter),
    Csv(csv::CsvWriter),
    Pcapng(pcapng::PcapngWriter),
}

impl Writer {
    /// A writer of lines in `format`.
    #[must_use]
    pub fn new(format: Format, options: &Options) -> Self {
        Self(match format {
            Format::Text => Form::Text(text::TextWriter::new(options)),
            Format::Json => Form::Json(json::JsonWriter::new(options)),
            Format::Csv => Form::Csv(csv::CsvWriter::new(options)),
            Format::Pcapng => Form::Pcapng(pcapng::PcapngWriter::default()),
        })
    }

    /// Begins a file, or goes on in one that others have begun: what [`header`] can't, which only empty files have.
    pub fn begin(&mut self, out: &mut Vec<u8>) {
        if let Form::Pcapng(writer) = &mut self.0 {
            writer.begin(out);
        }
    }

    /// Appends the line of `event`, its newline included, to `out`. Allocates nothing as long as `out`
    /// has room for [`LONGEST_LINE`].
    ///
    /// # Panics
    /// If the name of the event's device is longer than the kernel allows (15 bytes) by so much that the line has no room
    /// for it.
    pub fn write(&mut self, event: &Event<'_>, out: &mut Vec<u8>) {
        match &mut self.0 {
            Form::Text(writer) => writer.write(event, out),
            Form::Json(writer) => writer.write(event, out),
            Form::Csv(writer) => writer.write(event, out),
            Form::Pcapng(writer) => writer.write(event, out),
        }
    }
}

/// Whether lines get colours: on a terminal, unless `no_color` and `term` (the environment's `NO_COLOR`
/// and `TERM`) speak against it.
#[must_use]
pub(crate) fn colour_wanted(terminal: bool, no_color: Option<&OsStr>, term: Option<&OsStr>) -> bool {
    terminal && no_color.is_none_or(OsStr::is_empty) && term.is_none_or(|term| term != "dumb")
}

#[cfg(test)]
pub(crate) mod tests {
    use net_latency_common::PacketRecord;
    use proptest::prelude::*;

    use super::*;
    use crate::packet::event::fixtures;

    /// Names as an ill-wisher would choose them: any bytes without NUL, often those that mean something.
    pub(crate) fn any_name() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![1..=255u8, proptest::sample::select(&b"\x1b\n\\x,|-\"' \x7f"[..]), 32..127u8,];
        let bytes = proptest::collection::vec(byte, 1..16);
        let text = proptest::collection::vec(any::<char>(), 1..16).prop_map(|chars| {
            let mut bytes = String::from_iter(chars).into_bytes();
            // As the kernel cuts it, in the middle of a character if need be.
            bytes.truncate(15);
            bytes.retain(|&byte| byte != 0);
            bytes
        });
        prop_oneof![bytes, text.prop_filter("not empty", |name| !name.is_empty())]
    }

    /// The name of a network namespace, and the id of a container.
    pub(crate) fn any_place() -> impl Strategy<Value = (Option<Vec<u8>>, Option<String>)> {
        (proptest::option::of(any_name()), proptest::option::of("[0-9a-f]{12}"))
    }

    /// Records with any content, also such as the kernel side never makes.
    pub(crate) fn any_record() -> impl Strategy<Value = PacketRecord> {
        let stamp = || prop_oneof![Just(0), 1..10_000_000u64, any::<u64>()];
        let ends = any::<([u8; 16], [u8; 16], u16, u16, bool)>();
        let numbers = any::<(u32, u32, u32, u32, u32, u32)>();
        (
            [stamp(), stamp(), stamp(), stamp()],
            (any_name(), any_name()),
            ends,
            numbers,
            any::<(u16, u16, u16, bool)>(),
        )
            .prop_map(
                |(
                    stamps,
                    (name, process),
                    (saddr, daddr, sport, dport, v6),
                    numbers,
                    (segs, cpu, flags, out),
                )| {
                    let (pid, tid, len, seq, netns, mark) = numbers;
                    PacketRecord {
                        stamps,
                        saddr,
                        daddr,
                        comm: fixtures::comm(&name),
                        process: fixtures::comm(&process),
                        pid,
                        tid,
                        len,
                        seq,
                        netns,
                        mark,
                        sport,
                        dport,
                        segs,
                        cpu,
                        flags,
                        direction: u8::from(out),
                        family: if v6 {
                            net_latency_common::AF_INET6 as u8
                        } else {
                            net_latency_common::AF_INET as u8
                        },
                        ..fixtures::incoming()
                    }
                },
            )
    }

    #[test]
    fn fine_stages_are_in_brackets_or_last() {
        use net_latency_common::{Held, PARTS, Unknown, unknown_part};

        const UNKNOWN: [u64; PARTS] = [unknown_part(Unknown::NoStamp); PARTS];

        let options = Options { zone: Zone::UTC, details: true, colour: false };
        let known = [0, 20_000, 150_000, 19_500];
        let records = [
            (fixtures::incoming(), known),
            (fixtures::incoming(), UNKNOWN),
            (fixtures::udp(fixtures::incoming()), known),
            (PacketRecord { rtt_or_holder: 4_711, ..fixtures::incoming() }, known),
            (fixtures::outgoing(), UNKNOWN),
            (PacketRecord { held: Held::Nagle as u8, ..fixtures::outgoing() }, known),
            (fixtures::udp(fixtures::outgoing()), known),
        ];
        let mut text = String::new();
        for format in [Format::Text, Format::Json, Format::Csv] {
            let mut out = header(format, Stages::Fine).to_vec();
            let mut writer = Writer::new(format, &options);
            for (record, parts) in &records {
                writer.write(&Event::new(record, fixtures::WALL_NS, None).with_parts(Some(parts)), &mut out);
            }
            text += &String::from_utf8(out).expect("UTF-8");
        }
        insta::assert_snapshot!(text);
    }

    #[test]
    fn colour_only_on_a_terminal_that_wants_it() {
        let set = |value: &'static str| Some(OsStr::new(value));
        assert!(colour_wanted(true, None, set("xterm")));
        assert!(colour_wanted(true, set(""), None));
        assert!(!colour_wanted(true, set("1"), set("xterm")));
        assert!(!colour_wanted(true, None, set("dumb")));
        assert!(!colour_wanted(false, None, set("xterm")));
    }
}
