//! The text form: a line to read, and still safe to parse.
//!
//! Times are whole microseconds, rounded down. Names (of tasks and devices) can be chosen by any user, so whatever could act on a terminal,
//! end the line or be taken for another part of it is written in C's way as `\xNN`, byte by byte: control and format characters, invalid
//! UTF-8, the backslash itself, and the separators `,` and `|`. A name that is just `-` is `\x2d`, for `-` means unknown.

use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};

use net_latency_common::{COMM_LEN, Direction, PacketRecord, without_rest};

use super::{
    Options,
    line::{Line, Piece},
};
use crate::clock::{TimeStyle, TimeText};
use crate::escape::write_name;
use crate::packet::event::{COLUMNS, Event, PARTS, Protocol, held_name};
use crate::packet::stages::{FINE_STAGES, columns, split};

const DIM: &[u8] = b"\x1b[2m";
const BOLD: &[u8] = b"\x1b[1m";
const PLAIN: &[u8] = b"\x1b[0m";

/// Processes whose part of the line is kept. It stays the same from line to line, and takes as long to write as the rest.
const OWNERS: usize = 16;
/// Room for it: a name of 15 bytes, each escaped, and a number of ten digits between ". | Proc " and ", PID ", and a newline.
const OWNER_LEN: usize = 96;
/// Room for a column's name and a colon.
const PIECE_LEN: usize = 16;
/// Room for the time and what colours it.
const START_LEN: usize = 32;

#[derive(Debug)]
pub(super) struct TextWriter {
    time: TimeText,
    /// By the lowest bits of the process id.
    owners: Box<[Owner; OWNERS]>,
    /// What lines of the last second begin with.
    start: Piece<START_LEN>,
    details: bool,
    colour: bool,
}

/// What a line says of whose packet it is.
#[derive(Debug)]
struct Owner {
    pid: u32,
    /// Without what the kernel leaves behind the end of a name, which differs from packet to packet.
    process: [u64; COMM_LEN / 8],
    /// With the end of the line, unless details follow. Empty as long as there was none.
    text: Piece<OWNER_LEN>,
}

impl Owner {
    const NONE: Self = Self { pid: 0, process: [0; COMM_LEN / 8], text: Piece::EMPTY };

    /// Uses the end of `out` for a moment, since that allocates nothing.
    #[cold]
    fn render(&mut self, event: &Event<'_>, details: bool, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(b". | Proc ");
        write_name(event.process(), out);
        out.extend_from_slice(b", PID ");
        match event.pid() {
            Some(pid) => write_number(pid, out),
            None => out.push(b'-'),
        }
        if !details {
            out.push(b'\n');
        }
        let text = &out[start..];
        self.text.bytes[..text.len()].copy_from_slice(text);
        self.text.len = text.len();
        out.truncate(start);
    }
}

impl Line<'_> {
    #[inline(always)]
    fn put_columns<const COLOUR: bool>(&mut self, event: &Event<'_>) {
        let way = match (event.direction(), event.protocol()) {
            (Direction::In, Protocol::Tcp) => &TCP_IN,
            (Direction::Out, Protocol::Tcp) => &TCP_OUT,
            (Direction::In, Protocol::Udp) => &UDP_IN,
            (Direction::Out, Protocol::Udp) => &UDP_OUT,
        };
        let stages = event.stages();
        let longest = if COLOUR { longest(&stages) } else { None };
        // Written out, since a loop over it is not unrolled.
        if COLOUR {
            self.put(&way.arrow);
            self.put_column(&way.names[0], stages[0], longest == Some(0));
        } else {
            self.put(&way.start);
            self.put_time(stages[0]);
        }
        self.put_column(&way.names[1], stages[1], longest == Some(1));
        self.put_column(&way.names[2], stages[2], longest == Some(2));
        let parts = event.parts();
        if let Some(times) = &parts {
            self.put_parts(way, times);
        }
        // No other column follows.
        self.take_back(COMMA.len);
        if parts.is_some() && way.is_split {
            self.put_byte(b')');
        }
    }

    /// An incoming packet's parts in brackets, since they split its last column; an outgoing one's as further columns.
    #[inline]
    fn put_parts(&mut self, way: &Way, times: &[Option<u64>; PARTS]) {
        if way.is_split {
            self.take_back(COMMA.len);
            self.put(&BRACKET);
        }
        let mut put = |part: usize| {
            if let Some(name) = &way.parts[part] {
                self.put_column(name, times[part], false);
            }
        };
        // As above.
        put(0);
        put(1);
        put(2);
        put(3);
    }

    /// A column, and the gap to the next.
    #[inline(always)]
    fn put_column(&mut self, name: &Piece<PIECE_LEN>, stage: Option<u64>, is_bold: bool) {
        self.paint(is_bold, BOLD);
        self.put(name);
        self.put_time(stage);
        if is_bold {
            self.take_back(COMMA.len);
            self.put_slice(PLAIN);
            self.put(&COMMA);
        }
    }

    /// A column's time, and the gap to the next.
    #[inline(always)]
    fn put_time(&mut self, time: Option<u64>) {
        match time.map(|ns| ns / 1000) {
            Some(us) => {
                // Nearly all times of a packet.
                if let Some(short) = usize::try_from(us).ok().and_then(|us| SHORT_TIMES.get(us)) {
                    self.put(short);
                } else {
                    self.put_number(us);
                    self.put(&UNIT);
                }
            }
            None => self.put(&UNKNOWN),
        }
    }

    fn paint(&mut self, wanted: bool, code: &[u8]) {
        if wanted {
            self.put_slice(code);
        }
    }
}

const BRACKET: Piece<2> = Piece::new(" ", "(");
const COMMA: Piece<2> = Piece::new("", ", ");
const UNIT: Piece<5> = Piece::new(" us", ", ");
const UNKNOWN: Piece<3> = Piece::new("-", ", ");

/// Columns' times below 1000 us, with what follows them.
static SHORT_TIMES: [Piece<8>; 1000] = short_times();

const fn short_times() -> [Piece<8>; 1000] {
    let mut times = [Piece::EMPTY; 1000];
    let mut us = 0;
    while us < times.len() {
        let digits = [b'0' + (us / 100) as u8, b'0' + (us / 10 % 10) as u8, b'0' + (us % 10) as u8];
        let (_, digits) = digits.split_at(match us {
            0..10 => 2,
            10..100 => 1,
            _ => 0,
        });
        times[us] = Piece::of([digits, &UNIT.bytes, b""]);
        us += 1;
    }
    times
}

/// What lines of a direction and a protocol have in common. Names have their colons.
struct Way {
    arrow: Piece<8>,
    names: [Piece<PIECE_LEN>; COLUMNS],
    /// The arrow and the first name.
    start: Piece<PIECE_LEN>,
    /// The names of the parts that such packets have, with fine stages.
    parts: [Option<Piece<PIECE_LEN>>; PARTS],
    /// Whether they split the last column.
    is_split: bool,
}

static TCP_IN: Way = Way::new(Direction::In, Protocol::Tcp);
static TCP_OUT: Way = Way::new(Direction::Out, Protocol::Tcp);
static UDP_IN: Way = Way::new(Direction::In, Protocol::Udp);
static UDP_OUT: Way = Way::new(Direction::Out, Protocol::Udp);

impl Way {
    const fn new(direction: Direction, protocol: Protocol) -> Self {
        let [first, second, third] = columns(direction, protocol);
        let (arrow, is_split) = match direction {
            Direction::In => (" |I| ", true),
            Direction::Out => (" |O| ", false),
        };
        let (places, mut parts, mut part) = (split(direction, protocol), [None; PARTS], 0);
        while part < PARTS {
            if let Some(place) = places[part] {
                let end = if is_split { " " } else { ": " };
                parts[part] = Some(Piece::new(FINE_STAGES[place].column, end));
            }
            part += 1;
        }
        Self {
            arrow: Piece::new(arrow, ""),
            names: [Piece::new(first, ": "), Piece::new(second, ": "), Piece::new(third, ": ")],
            start: Piece::of([arrow.as_bytes(), first.as_bytes(), b": "]),
            parts,
            is_split,
        }
    }
}

impl TextWriter {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            time: TimeText::new(options.zone, TimeStyle::Calendar),
            owners: Box::new([const { Owner::NONE }; OWNERS]),
            start: Piece::EMPTY,
            details: options.details,
            colour: options.colour,
        }
    }

    pub(super) fn write(&mut self, event: &Event<'_>, out: &mut Vec<u8>) {
        let Self { time, owners, start, details, colour } = self;
        if !time.is_kept(event.wall_ns()) {
            let [before, after]: [&[u8]; 2] = if *colour { [DIM, PLAIN] } else { [b""; 2] };
            *start = Piece::of([before, time.whole_seconds(event.wall_ns()).as_bytes(), after]);
        }
        let PacketRecord { pid, process, .. } = *event.record();
        let process = without_rest(words(process));
        let owner = &mut owners[pid as usize % OWNERS];
        if owner.text.len == 0 || owner.pid != pid || owner.process != process {
            (owner.pid, owner.process) = (pid, process);
            owner.render(event, *details, out);
        }
        Line::append(out, |line| {
            line.put(start);
            if *colour {
                line.put_columns::<true>(event);
            } else {
                line.put_columns::<false>(event);
            }
            line.put(&owner.text);
        });
        if *details {
            write_details(event, out);
            out.push(b'\n');
        }
    }
}

fn words(name: [u8; COMM_LEN]) -> [u64; COMM_LEN / 8] {
    let (words, _) = name.as_chunks();
    [u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1])]
}

/// Index of the longest known column; the first of equals.
fn longest(stages: &[Option<u64>; COLUMNS]) -> Option<usize> {
    (0..COLUMNS).filter(|&column| stages[column].is_some()).rev().max_by_key(|&column| stages[column])
}

/// What JSON says and the line does not, in JSON's order. What few packets have is left out for the others.
fn write_details(event: &Event<'_>, out: &mut Vec<u8>) {
    let record = event.record();
    part(" | tid ", event.tid(), "", out);
    if event.comm() != event.process() {
        out.extend_from_slice(b" | thread ");
        write_name(event.comm(), out);
    }
    out.extend_from_slice(b" | flow ");
    write_end(event.saddr(), record.sport, out);
    out.extend_from_slice(b" > ");
    write_end(event.daddr(), record.dport, out);
    part(" | len ", Some(record.len), "", out);
    part(" | seq ", event.seq(), "", out);
    part(" | segs ", Some(record.segs), "", out);
    part(" | total ", event.total_ns().map(|ns| ns / 1000), " us", out);
    if event.total_ns().is_none() {
        out.extend_from_slice(b" | total -");
    }
    out.extend_from_slice(b" | dev ");
    write_name(event.ifname(), out);
    match event.netns_name() {
        None => part(" | netns ", (record.netns != 0).then_some(record.netns), "", out),
        name => named(b" | netns ", name, out),
    }
    part(" | mark ", (record.mark != 0).then_some(record.mark), "", out);
    part(" | cpu ", Some(record.cpu), "", out);
    for (index, flag) in event.flags().enumerate() {
        out.extend_from_slice(if index == 0 { b" | flags " } else { b"," });
        out.extend_from_slice(flag.as_bytes());
    }
    part(" | first-send-age ", event.first_send_age_ns().map(|ns| ns / 1000), " us", out);
    if let Some(held) = event.held() {
        out.extend_from_slice(b" | held ");
        out.extend_from_slice(held_name(held).as_bytes());
    }
    part(" | cpu-held-by ", event.cpu_held_by(), "", out);
    part(" | rtt ", event.rtt_ns().map(|ns| ns / 1000), " us", out);
    part(" | dsacks ", event.dsacks().filter(|count| *count > 0), "", out);
    part(" | last-drv-ip ", event.last_drv_ip_ns().map(|ns| ns / 1000), " us", out);
    part(" | ns-pid ", event.ns_pid().filter(|pid| Some(*pid) != event.pid()), "", out);
    named(b" | container ", event.container(), out);
    let us = |ns: Option<u64>| ns.map(|ns| ns / 1000);
    part(" | service ", us(event.service_ns()), " us", out);
    part(": cpu ", us(event.service_cpu_ns()), " us", out);
    part(", wait ", us(event.service_wait_ns()), " us", out);
    part(", sleep ", us(event.service_sleep_ns()), " us", out);
    named(b" in ", event.service_syscall(), out);
}

/// A name behind its key, if it is known.
fn named(key: &[u8], name: Option<&[u8]>, out: &mut Vec<u8>) {
    if name.is_some() {
        out.extend_from_slice(key);
        write_name(name, out);
    }
}

/// A number behind its key, if it is known.
fn part(key: &str, number: Option<impl itoa::Integer>, unit: &str, out: &mut Vec<u8>) {
    if let Some(number) = number {
        out.extend_from_slice(key.as_bytes());
        write_number(number, out);
        out.extend_from_slice(unit.as_bytes());
    }
}

fn write_number(number: impl itoa::Integer, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

fn write_end(address: IpAddr, port: u16, out: &mut Vec<u8>) {
    write!(out, "{}", SocketAddr::new(address, port)).expect("memory can be written");
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use net_latency_common::{
        FLAG_AMBIGUOUS, FLAG_CONTROL, FLAG_GRO, FLAG_RETRANS, PacketRecord, STAMP_APP, STAMP_IP,
    };
    use proptest::prelude::*;

    use super::*;
    use crate::clock::Zone;
    use crate::output::tests::{any_name, any_record};
    use crate::packet::event::fixtures::{WALL_NS, comm, incoming, outgoing, udp, v6};

    const PLAIN_LINE: Options = Options { zone: Zone::UTC, details: false, colour: false };
    const DETAILS: Options = Options { details: true, ..PLAIN_LINE };
    const COLOUR: Options = Options { colour: true, ..PLAIN_LINE };

    fn line_on(record: &PacketRecord, ifname: Option<&[u8]>, options: &Options) -> String {
        let mut out = Vec::new();
        TextWriter::new(options).write(&Event::new(record, WALL_NS, ifname), &mut out);
        String::from_utf8(out).expect("text is UTF-8 whatever the names are")
    }

    fn line(record: &PacketRecord, options: &Options) -> String {
        line_on(record, Some(b"eth0"), options)
    }

    #[test]
    fn both_directions_read_as_in_the_contract() {
        assert_eq!(
            line(&incoming(), &PLAIN_LINE),
            "Wed Mar  2 16:01:36 |I| drv-ip: 23 us, ip-tcp: 34 us, tcp-app: 189 us. | Proc firefox, PID 19550\n"
        );
        assert_eq!(
            line(&outgoing(), &PLAIN_LINE),
            "Wed Mar  2 16:01:36 |O| app-tcp: 3 us, tcp-ip: 7 us, ip-drv: 2 us. | Proc firefox, PID 19550\n"
        );
    }

    #[test]
    fn an_owner_is_another_by_number_or_name_alone() {
        let mut writer = TextWriter::new(&PLAIN_LINE);
        let mut owner = |record: &PacketRecord| {
            let mut out = Vec::new();
            writer.write(&Event::new(record, WALL_NS, None), &mut out);
            let text = String::from_utf8(out).expect("UTF-8");
            text.trim_end().rsplit_once("Proc ").expect("an owner").1.to_owned()
        };
        let mut record = incoming();
        assert_eq!(owner(&record), "firefox, PID 19550");
        // Bytes that the kernel left behind the name don't count.
        record.process[9] = b'x';
        assert_eq!(owner(&record), "firefox, PID 19550");
        record.pid += u32::try_from(OWNERS).expect("few");
        assert_eq!(owner(&record), "firefox, PID 19566");
        record.process = comm(b"firefoxes");
        assert_eq!(owner(&record), "firefoxes, PID 19566");
    }

    #[test]
    fn unknown_is_a_dash() {
        let mut record = incoming();
        record.stamps[STAMP_IP] = 0;
        assert_snapshot!(line(&record, &PLAIN_LINE));
        let mut record = outgoing();
        record.stamps[STAMP_APP] = 0;
        (record.comm, record.process) = ([0; 16], [0; 16]);
        record.pid = 0;
        assert_snapshot!(line_on(&record, None, &DETAILS));
    }

    #[test]
    fn details_follow_the_pid() {
        let mut record = outgoing();
        record.segs = 12;
        record.flags = FLAG_RETRANS | FLAG_GRO | FLAG_AMBIGUOUS;
        assert_snapshot!(line(&record, &DETAILS));
        assert_snapshot!(line(&v6(incoming()), &DETAILS));
        assert_snapshot!(line(&udp(incoming()), &DETAILS));
        assert_snapshot!(line(&udp(outgoing()), &PLAIN_LINE));
        let record = PacketRecord { mark: 7, flags: FLAG_RETRANS, other: 1_000_000, ..outgoing() };
        let mut out = Vec::new();
        let event = Event::new(&record, WALL_NS, None).with_ns_pid(Some(12));
        TextWriter::new(&DETAILS).write(&event, &mut out);
        let same = Event::new(&record, WALL_NS, None).with_ns_pid(event.pid());
        let mut without = Vec::new();
        TextWriter::new(&DETAILS).write(&same, &mut without);
        assert!(!String::from_utf8_lossy(&without).contains("ns-pid"));
        let again = PacketRecord { other: 1_020_000, ..incoming() };
        let place = Event::new(&again, WALL_NS, None).with_place(Some(b"a|b"), Some(b"0123456789ab"));
        TextWriter::new(&DETAILS).write(&place, &mut out);
        assert_snapshot!(String::from_utf8(out).expect("UTF-8"));
        let mut record = incoming();
        record.stamps[STAMP_APP] = 0;
        record.flags = FLAG_CONTROL;
        assert_snapshot!(line(&record, &DETAILS));
    }

    #[test]
    fn hostile_names_do_nothing() {
        let mut lines = String::new();
        for name in [
            &b"\x1b[2J\x1b]0;x\x07"[..],
            b"a\nWed |I| x",
            b"x, PID 1 | y",
            b"\"q' \\x1b `$(x)`",
            b"\xc2\x9b31m\xe2\x80\xae\xff\xe2\x80",
            "火狐 é".as_bytes(),
            b"-",
            b"Web Content",
        ] {
            let text = line_on(&PacketRecord { process: comm(name), ..incoming() }, None, &PLAIN_LINE);
            lines += text.split_once(" | ").expect("process").1;
        }
        assert_snapshot!(lines);
        assert_snapshot!(line_on(&incoming(), Some(b"e\x1b|x"), &DETAILS));
    }

    #[test]
    fn colour_marks_the_time_and_the_longest_column() {
        assert_snapshot!(line(&incoming(), &COLOUR).replace('\x1b', "ESC"));
        let unknown = PacketRecord { stamps: [0; 4], ..incoming() };
        assert_snapshot!(line(&unknown, &COLOUR).replace('\x1b', "ESC"));
    }

    #[test]
    fn the_first_of_equals_is_the_longest() {
        assert_eq!(longest(&[Some(5), Some(7), Some(7)]), Some(1));
        assert_eq!(longest(&[None, Some(0), None]), Some(1));
        assert_eq!(longest(&[None; 3]), None);
    }

    /// The name that [`write_name`] has written, as bytes.
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

    proptest! {
        #[test]
        fn any_name_is_printable_and_can_be_read_back(name in any_name()) {
            let mut out = Vec::new();
            write_name(Some(&name), &mut out);
            let text = String::from_utf8(out).expect("UTF-8");
            prop_assert!(!text.chars().any(|c| c.is_control() || matches!(c, ',' | '|')), "{text:?}");
            prop_assert!(text != "-");
            prop_assert_eq!(unescape(&text), name);
        }

        #[test]
        fn any_line_says_what_the_record_says(record in any_record(), ifname in any_name()) {
            let event = Event::new(&record, WALL_NS, Some(&ifname));
            let text = line_on(&record, Some(&ifname), &DETAILS);
            prop_assert!(text.len() <= crate::output::LONGEST_LINE);
            let body = text.strip_suffix('\n').expect("ends with a newline");
            prop_assert!(!body.chars().any(char::is_control));

            let mut parts = body.split(" | ");
            let columns_part = parts.next().expect("columns").split_once("| ").expect("direction").1;
            for ((column, name), part) in columns(event.direction(), event.protocol()).into_iter().enumerate()
                .zip(columns_part.trim_end_matches('.').split(", "))
            {
                let value = part.strip_prefix(name).and_then(|rest| rest.strip_prefix(": ")).expect("name");
                let expected = event.stage(column).map(|ns| ns / 1000);
                let read = value.strip_suffix(" us").map(|us| us.parse().expect("a number"));
                prop_assert_eq!(read, expected);
                prop_assert!(read.is_some() || value == "-");
            }
            let (proc, pid) = parts.next().expect("process").split_once(", PID ").expect("PID");
            let process = unescape(proc.strip_prefix("Proc ").expect("Proc"));
            prop_assert_eq!(&process, event.process().unwrap_or(b"-"));
            prop_assert_eq!(pid.parse().ok(), event.pid());
            let mut rest = parts.clone();
            let thread = rest.find_map(|part| part.strip_prefix("thread ")).map(unescape);
            prop_assert_eq!(thread.as_deref(), event.comm().filter(|comm| Some(*comm) != event.process()));
            let seq = format!("seq {}", record.seq);
            prop_assert!(parts.any(|part| part == seq));
        }
    }
}
