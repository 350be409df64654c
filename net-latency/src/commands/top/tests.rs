//! What the screen shows, and that nothing breaks it.

use std::{ops::ControlFlow, path::Path, time::Duration};

use insta::assert_snapshot;
use net_latency_common::{
    CONNECTION_OVERFLOW, ConnectionRecord, Counter, Direction, PacketRecord, STAMP_APP, STAMP_DRV,
};
use proptest::prelude::*;
use ratatui_core::{
    backend::TestBackend,
    buffer::Buffer,
    style::{Color, Modifier},
    terminal::Terminal,
};

use super::{
    columns,
    failed::tests::refused,
    input::action,
    keys::Key,
    model::Model,
    paint::Look,
    rows::Rows,
    screen,
    state::State,
    view::{End, Status, View},
};
use crate::{
    accounting::{Losses, Summary},
    clock::{Clock, Zone},
    diagnosis::{self, Recent},
    output::{Options, Writer, header, tests::any_record},
    packet::event::{
        Event, PARTS, completion_ns,
        fixtures::{WALL_NS, comm, incoming, outgoing, udp, v6},
    },
    request::{
        FooterFormat, Format, PacketFilter, ReplayConfig, SortBy, THRESHOLD, TopConfig, TopInput,
        top::parse_speed,
    },
    source::log::{
        read::{LogReader, Tally as LogTally},
        replay::Replay,
    },
};

const SECOND: u64 = 1_000_000_000;
const PLAIN: Look = Look { is_ascii: true, is_colour: false };
const RICH: Look = Look { is_ascii: false, is_colour: true };
const ENTER: Key = Key::Enter;

/// The table as the loop has it, without kernel and terminal.
struct Top {
    model: Model,
    recent: Recent,
    frozen: Option<(Model, Recent)>,
    state: State,
    status: Status,
    look: Look,
    size: (u16, u16),
}

impl Top {
    fn new(size: (u16, u16), look: Look) -> Self {
        Self {
            model: Model::new(0, Duration::from_secs(10)),
            recent: Recent::new(diagnosis::Model::new(THRESHOLD, (32_768, 60_999)), 0),
            frozen: None,
            state: State::new(Direction::In, SortBy::Time),
            status: Status {
                source: "fentry".to_owned(),
                traced: String::new(),
                elapsed: Duration::from_secs(62),
                window: Duration::from_secs(10),
                losses: Losses::default(),
                is_watching: true,
                unread: Vec::new(),
                end: None,
                zone: Zone::UTC,
            },
            look,
            size,
        }
    }

    fn advance(&mut self, now_ns: u64) {
        self.model.advance(now_ns);
        self.recent.advance(now_ns, &self.status.losses);
    }

    fn record(&mut self, event: &Event<'_>) {
        self.model.record(event);
        self.recent.record(event);
    }

    /// With an hour of an incident behind it: a database whose reads wait, a busy server, a name service.
    fn busy(size: (u16, u16), look: Look) -> Self {
        let mut top = Self::new(size, look);
        let slow = |ns: u64| {
            let record = incoming();
            let [drv, ip, tcp, _] = record.stamps;
            PacketRecord { stamps: [drv, ip, tcp, tcp + ns], ..record }
        };
        for second in 0..25 {
            top.advance(second * SECOND);
            for n in 0..20 {
                let wall_ns = WALL_NS + (second * SECOND + n * 10_000_000) as i64;
                let mut see = |record: PacketRecord| top.record(&Event::new(&record, wall_ns, None));
                let nginx = PacketRecord { pid: 812, tid: 812, process: comm(b"nginx"), ..incoming() };
                see(nginx);
                see(PacketRecord { sport: 50_000 + n as u16 % 3, ..nginx });
                see(PacketRecord { pid: 812, tid: 812, process: comm(b"nginx"), ..outgoing() });
                if n % 4 == 0 {
                    let wait = 400_000 + second * 700_000 + n * 90_000;
                    let postgres =
                        PacketRecord { pid: 1_444, tid: 1_444, process: comm(b"postgres"), ..slow(wait) };
                    see(v6(PacketRecord { dport: 5_432, sport: 40_112, ..postgres }));
                }
                if n % 10 == 0 && second < 20 {
                    let name =
                        PacketRecord { pid: 99, tid: 99, process: comm(b"systemd-resolve"), ..incoming() };
                    see(udp(PacketRecord { sport: 53, ..name }));
                    see(PacketRecord { sport: 853, ..name });
                }
                if n == 0 && second % 3 == 0 {
                    // Of unknown owner and beginning.
                    let mut unknown =
                        PacketRecord { pid: 0, tid: 0, comm: [0; 16], process: [0; 16], ..outgoing() };
                    unknown.stamps[STAMP_DRV] = 0;
                    see(unknown);
                    see(PacketRecord {
                        pid: 31_337,
                        tid: 31_337,
                        process: comm(b"\x1b[31mevil\xe7\x81\xab"),
                        ..slow(15_000_000)
                    });
                }
            }
        }
        top.advance(25 * SECOND - 1);
        top
    }

    /// A server whose reader waits for a CPU, and whose answers wait in a queue, with fine stages.
    fn fine(size: (u16, u16), look: Look) -> Self {
        let mut top = Self::new(size, look);
        for n in 0..40u64 {
            let wall_ns = WALL_NS + (n * 10_000_000) as i64;
            let mut see = |record: PacketRecord, parts: [u64; PARTS]| {
                let record = PacketRecord { pid: 812, tid: 812, process: comm(b"nginx"), ..record };
                top.record(&Event::new(&record, wall_ns, None).with_parts(Some(&parts)));
            };
            see(incoming(), [0, 20_000, 150_000 + n * 100, 19_500 - n * 100]);
            let acked_ns = completion_ns(&outgoing()) + n * 100_000 + 900_000;
            see(outgoing(), [n * 100_000, 4_000, 900_000, acked_ns]);
        }
        top.advance(SECOND - 1);
        top
    }

    fn shown(&self) -> (&Model, &Recent) {
        self.frozen.as_ref().map_or((&self.model, &self.recent), |(model, recent)| (model, recent))
    }

    fn press(&mut self, key: Key) -> ControlFlow<()> {
        let action = action(key, self.state.is_typing());
        let rows = Rows::new(self.shown().0, &self.state, self.look.is_ascii).keys();
        let placed = columns::columns(self.state.place, self.state.shown, self.size.0);
        let page = screen::page(&self.state, self.model.has_parts(), self.size.1);
        let flow = self.state.apply(action, &rows, &columns::sortable(&placed), page);
        match (self.state.is_frozen, &self.frozen) {
            (true, None) => self.frozen = Some((self.model.clone(), self.recent.clone())),
            (false, _) => self.frozen = None,
            _ => {}
        }
        flow
    }

    fn type_in(&mut self, text: &str) {
        for c in text.chars() {
            assert!(self.press(Key::Char(c)).is_continue());
        }
    }

    fn draw(&self) -> Buffer {
        let (model, recent) = self.shown();
        let rows = Rows::new(model, &self.state, self.look.is_ascii);
        let headline = &recent.clone().headline(Some(&self.status.losses));
        let (state, status) = (&self.state, &self.status);
        let view = View { model, headline, state, rows: &rows, status, look: self.look };
        let mut terminal = Terminal::new(TestBackend::new(self.size.0, self.size.1)).expect("memory");
        terminal.draw(|frame| screen::draw(&view, frame.buffer_mut())).expect("memory");
        terminal.backend().buffer().clone()
    }

    /// The characters of the screen.
    fn text(&self) -> String {
        lines(&self.draw())
    }
}

fn lines(buffer: &Buffer) -> String {
    let mut text = String::new();
    for y in 0..buffer.area.height {
        let mut x = 0;
        let mut line = String::new();
        while x < buffer.area.width {
            let symbol = buffer[(x, y)].symbol();
            line.push_str(symbol);
            x += unicode_width::UnicodeWidthStr::width(symbol).max(1) as u16;
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A letter for how each character looks, below the lines that have any.
fn looks(buffer: &Buffer) -> String {
    let mut text = String::new();
    for (line, y) in lines(buffer).lines().zip(0..) {
        text.push_str(line);
        let marks: String = (0..buffer.area.width)
            .map(|x| {
                let cell = &buffer[(x, y)];
                match (cell.fg, cell.modifier) {
                    (Color::Red, _) => 'R',
                    (Color::Yellow, modifier) if modifier.contains(Modifier::REVERSED) => 'Y',
                    (Color::Yellow, _) => 'y',
                    (Color::Cyan, _) => 'c',
                    (_, modifier) if modifier.contains(Modifier::REVERSED) => '#',
                    (_, modifier) if modifier.contains(Modifier::BOLD) => '*',
                    (_, modifier) if modifier.contains(Modifier::DIM) => '.',
                    _ => ' ',
                }
            })
            .collect();
        text.push('\n');
        if !marks.trim_end().is_empty() {
            text.push_str(marks.trim_end());
            text.push('\n');
        }
    }
    text
}

const USUAL: (u16, u16) = (80, 24);
const LARGE: (u16, u16) = (120, 40);
const SMALL: (u16, u16) = (40, 10);

#[test]
fn processes() {
    assert_snapshot!("processes_80x24", Top::busy(USUAL, PLAIN).text());
    assert_snapshot!("processes_120x40", Top::busy(LARGE, RICH).text());
    assert_snapshot!("processes_40x10", Top::busy(SMALL, PLAIN).text());
}

#[test]
fn fine_stages() {
    let mut top = Top::fine(LARGE, PLAIN);
    assert_snapshot!("fine_processes", top.text());
    assert!(top.press(Key::Enter).is_continue() && top.press(Key::Enter).is_continue());
    assert_snapshot!("fine_packets", top.text());
}

#[test]
fn the_verdict_tells_where_the_slow_packets_are() {
    let mut top = Top::new(USUAL, PLAIN);
    for n in 0..40u64 {
        let wall_ns = WALL_NS + (n * 10_000_000) as i64;
        let sent = PacketRecord { pid: 812, tid: 812, process: comm(b"nginx"), ..outgoing() };
        let sent = PacketRecord { sport: sent.dport, dport: sent.sport, ..sent };
        top.record(&Event::new(&sent, wall_ns, None).with_parts(Some(&[5_000_000, 4_000, 90_000, 77])));
    }
    let second_line = |top: &Top| top.text().lines().nth(1).expect("a line").to_owned();
    let told = "Slow: nginx, PID 812, out: packets wait in the device's queue";
    assert_eq!(second_line(&top), format!("{told}; Tab shows it"));
    assert!(top.press(Key::Tab).is_continue());
    assert_eq!(second_line(&top), format!("{told}, qdisc p50 5.00 ms"));
    assert!(top.press(Key::Tab).is_continue());
    // However narrow it is, and if there is no room for it, it takes none.
    top.size = (30, 8);
    assert_eq!(second_line(&top), "nginx: packets ~; Tab shows it");
    top.size = (80, 7);
    assert!(second_line(&top).starts_with("fentry, "));
    assert_eq!(top.text().lines().nth(4).map(|row| row.contains("812")), Some(true), "{}", top.text());
}

#[test]
fn a_page_is_what_fits_whatever_is_lost() {
    for height in 5..30 {
        let mut top = Top::busy((80, height), PLAIN);
        for pid in 2_000..2_200 {
            let record = PacketRecord { pid, tid: pid, ..incoming() };
            top.record(&Event::new(&record, WALL_NS, None));
        }
        top.status.unread = vec!["of this log something was not read".repeat(9)];
        let rows = top.text().lines().filter(|line| line.contains("us ") || line.contains("ms ")).count();
        let page = screen::page(&top.state, false, height);
        assert!(page <= rows, "{page} of {rows} rows at {height}:\n{}", top.text());
    }
}

#[test]
fn processes_in_colour_and_without() {
    let mut top = Top::busy(USUAL, RICH);
    let _ = top.press(Key::Down);
    assert_snapshot!("processes_colour", looks(&top.draw()));
    top.look = PLAIN;
    assert_snapshot!("processes_no_colour", looks(&top.draw()));
    let buffer = top.draw();
    assert!(buffer.content().iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
    assert!(buffer.content().iter().all(|cell| cell.symbol().is_ascii()), "plain ASCII");
}

#[test]
fn connections_and_packets() {
    for (name, size) in [("80x24", USUAL), ("120x40", LARGE), ("40x10", SMALL)] {
        let mut top = Top::busy(size, PLAIN);
        top.type_in("/nginx");
        let _ = (top.press(ENTER), top.press(ENTER));
        assert_snapshot!(format!("connections_{name}"), top.text());
        let _ = top.press(ENTER);
        assert_snapshot!(format!("packets_{name}"), top.text());
    }
}

#[test]
fn a_filter_by_name_address_and_port() {
    let mut top = Top::busy(USUAL, PLAIN);
    top.type_in("/NGI");
    assert_snapshot!("filter_prompt", top.text());
    let names = |filter: &str| {
        let mut top = Top::busy(USUAL, PLAIN);
        top.type_in(&format!("/{filter}"));
        match Rows::new(&top.model, &top.state, true) {
            Rows::Traffic(rows) => rows.into_iter().map(|row| row.name).collect::<Vec<_>>(),
            Rows::Packets(_) | Rows::Failed(_) => panic!("these are processes"),
        }
    };
    assert_eq!(names("1444"), ["postgres"]);
    assert_eq!(names(":853"), ["systemd-resolve"]);
    assert_eq!(names("2001:db8"), ["postgres"]);
    assert_eq!(names("[2001:db8::2]:5432"), ["postgres"]);
    assert_eq!(names("nothing"), [""; 0]);
}

#[test]
fn connections_that_failed() {
    let mut top = Top::busy(USUAL, PLAIN);
    let clock = Clock::at(WALL_NS);
    for ms in [24_000, 21_000] {
        top.model.failed.see(&refused(ms), clock);
    }
    let overflow = ConnectionRecord {
        flags: CONNECTION_OVERFLOW,
        process: *b"nginx\x1b[2J\0\0\0\0\0\0\0",
        pid: 0,
        started_ns: 0,
        ..refused(23_000)
    };
    top.model.failed.see(&overflow, clock);
    assert!(top.text().lines().next().is_some_and(|line| line.contains(", 3 failed (f)")), "{}", top.text());
    let _ = top.press(Key::Char('f'));
    assert_snapshot!("failed", top.text());
    top.type_in("/curl");
    assert!(top.text().contains("2 of 3 connections that failed"), "{}", top.text());
    let _ = top.press(ENTER);
    // One of them is too old by now.
    top.advance(32 * SECOND);
    assert!(top.text().contains("1 of 2 connections that failed"), "{}", top.text());
    top.status.is_watching = false;
    top.advance(60 * SECOND);
    let _ = top.press(Key::Escape);
    let _ = top.press(Key::Escape);
    let _ = top.press(Key::Char('f'));
    assert_snapshot!("failed_unwatched", top.text());
}

#[test]
fn nothing_to_show() {
    let mut top = Top::new(USUAL, PLAIN);
    assert_snapshot!("empty", top.text());
    top.status.traced = "--pid 7 --port 443".to_owned();
    assert!(top.text().contains("No packets yet with --pid 7 --port 443."));
    top.type_in("/xyz");
    assert!(top.text().contains("Nothing matches \"xyz\""));
}

#[test]
fn help() {
    let mut top = Top::busy(USUAL, PLAIN);
    top.type_in("?");
    assert_snapshot!("help", top.text());
    assert!(top.text().lines().all(|line| !line.contains('~')), "it fits 80 columns");
}

#[test]
fn a_frozen_screen_stands_still_and_says_so() {
    let mut top = Top::busy(USUAL, PLAIN);
    let before = top.text();
    top.type_in(" ");
    top.advance(27 * SECOND);
    top.record(&Event::new(&incoming(), WALL_NS, None));
    let frozen = top.text();
    assert_snapshot!("frozen", frozen);
    assert_eq!(
        frozen.lines().skip(1).take(10).collect::<Vec<_>>(),
        before.lines().skip(1).take(10).collect::<Vec<_>>()
    );
    // It can still be walked through.
    let _ = top.press(ENTER);
    assert!(top.text().contains("1 connection"));
    top.type_in(" ");
    let _ = top.press(Key::Escape);
    assert!(top.text().contains("19550"), "it goes on with what came meanwhile");
}

#[test]
fn losses_and_what_found_no_place_are_told() {
    let mut top = Top::busy((200, 24), RICH);
    top.status.losses.counters.values[Counter::RingFull as usize] = 17;
    top.status.losses.missed_probes = Some(3);
    for pid in 40_000..41_000 {
        top.record(&Event::new(&PacketRecord { pid, tid: pid, ..incoming() }, WALL_NS, None));
    }
    assert_snapshot!("losses", looks(&top.draw()).lines().take(6).collect::<Vec<_>>().join("\n"));
}

#[test]
fn the_end_of_the_processes_is_told() {
    let mut top = Top::busy(USUAL, PLAIN);
    top.status.end = Some(End::Processes);
    assert!(top.text().lines().next().expect("a line").ends_with(" ENDED"));
}

#[test]
fn sorting_by_any_column_and_back() {
    let mut top = Top::busy(LARGE, PLAIN);
    let order = |top: &Top| {
        Rows::new(&top.model, &top.state, true)
            .keys()
            .into_iter()
            .map(|key| match key {
                super::state::RowKey::Process(pid) => pid,
                other => panic!("{other:?}"),
            })
            .collect::<Vec<_>>()
    };
    let mut seen = Vec::new();
    for _ in 0..14 {
        seen.push((top.state.sort().by, order(&top)));
        top.type_in("s");
    }
    let by = |column| &seen.iter().find(|(by, _)| *by == column).expect("every column comes in turn").1;
    assert_eq!(by(columns::Column::Pid), &[0, 99, 812, 1444, 31_337]);
    let spent = &seen[0];
    assert_eq!(spent, &(columns::Column::Spent(Direction::In), vec![1444, 812, 31_337, 99, 0]));
    assert_eq!(by(columns::Column::Name), &[0, 31_337, 812, 1444, 99]);
    assert_eq!(by(columns::Column::Rate(Direction::In))[..2], [812, 1444]);
    assert_eq!(by(columns::Column::Max(Direction::In))[..2], [1444, 31_337]);
    assert_eq!(by(columns::Column::Max(Direction::Out))[0], 812);
    top.state = State::new(Direction::In, SortBy::P99);
    let slowest = order(&top);
    top.type_in("r");
    assert_eq!(order(&top).iter().rev().copied().collect::<Vec<_>>()[..2], slowest[..2]);
}

fn any_key() -> impl Strategy<Value = Key> {
    let named = vec![
        Key::Enter,
        Key::Enter,
        Key::Escape,
        Key::Backspace,
        Key::Tab,
        Key::Up,
        Key::Down,
        Key::Left,
        Key::Right,
        Key::PageUp,
        Key::PageDown,
        Key::Home,
        Key::End,
        Key::Control('c'),
        Key::Char('/'),
        Key::Char('s'),
        Key::Char('r'),
        Key::Char(' '),
        Key::Char('?'),
        Key::Char('q'),
    ];
    prop_oneof![proptest::sample::select(named), any::<char>().prop_map(Key::Char)]
}

proptest! {
    /// Any keys, any packets and any size: it is drawn, and nothing on it acts on the terminal.
    #[test]
    fn nothing_breaks_the_screen(
        width in prop_oneof![0..30u16, 30..300u16],
        height in prop_oneof![0..12u16, 12..100u16],
        records in proptest::collection::vec((any_record(), any::<i64>(), 0..5u64), 0..20),
        keys in proptest::collection::vec(any_key(), 0..20),
        is_ascii: bool,
        losses: u64,
    ) {
        let mut top = Top::new((width, height), Look { is_ascii, is_colour: !is_ascii });
        top.status.losses.evicted_in = losses;
        let mut now = 0;
        let mut keys = keys.into_iter();
        for (record, wall_ns, step) in records {
            now += step * SECOND / 2;
            top.advance(now);
            top.record(&Event::new(&record, wall_ns, None));
            if let Some(key) = keys.next() {
                let _ = top.press(key);
            }
            top.draw();
        }
        for key in keys {
            let _ = top.press(key);
            let buffer = top.draw();
            for cell in buffer.content() {
                prop_assert!(!cell.symbol().contains(char::is_control), "{:?}", cell.symbol());
            }
        }
    }
}

/// A log of both forms, with a line that is none.
fn some_log() -> Vec<u8> {
    let mut log = Vec::new();
    let options = Options { zone: Zone::UTC, details: false, colour: false };
    let mut json = Writer::new(Format::Json, &options);
    let mut csv = Writer::new(Format::Csv, &options);
    for n in 0..40 {
        let wall_ns = WALL_NS + n * 500_000_000;
        let mut slow = incoming();
        slow.stamps[STAMP_APP] += n.unsigned_abs() * 100_000;
        let nginx = PacketRecord { pid: 812, tid: 812, process: comm(b"nginx"), ..outgoing() };
        json.write(&Event::new(&slow, wall_ns, Some(b"eth0")), &mut log);
        json.write(&Event::new(&udp(nginx), wall_ns + 1_000_000, Some(b"lo")), &mut log);
    }
    log.extend(b"{\"no\":\"packet\"}\n");
    log.extend(header(Format::Csv, crate::request::Stages::Basic));
    let mut partial = v6(incoming());
    partial.stamps[STAMP_DRV] = 0;
    csv.write(&Event::new(&partial, WALL_NS + 20_000_000_000, None), &mut log);
    // Its writer was stopped.
    log.extend(b"2022-03-02T16:01:36.1+00:00,in,tcp,4,1");
    log
}

fn replay(files: &[&Path], speed: &str, filter: PacketFilter) -> TopConfig {
    TopConfig {
        filter,
        input: TopInput::Logs(ReplayConfig {
            files: files.iter().map(|file| file.to_path_buf()).collect(),
            speed: parse_speed(speed).expect("a speed"),
        }),
        delay: Duration::from_secs(1),
        window: Duration::from_secs(10),
        sort: SortBy::Time,
        zone: Zone::UTC,
        quiet: false,
        footer: FooterFormat::Text,
    }
}

/// The table as the loop has it, with a log as its source.
fn opened(config: &TopConfig) -> Result<super::Top<'_>, String> {
    let TopInput::Logs(logs) = &config.input else { panic!("these are logs") };
    let replay = Replay::open(logs, &config.filter).map_err(|failure| failure.to_string())?;
    Ok(super::Top::new(config, super::Feed::Log(Box::new(replay)), PLAIN))
}

/// The table at the end of the log.
fn played(config: &TopConfig) -> super::Top<'_> {
    let mut top = opened(config).expect("a log");
    while !top.is_over {
        top.drain().expect("it can be read");
        std::thread::sleep(Duration::from_millis(1));
    }
    top
}

/// The characters of its screen, without the place of the logs.
fn screen_of(top: &mut super::Top<'_>, size: (u16, u16)) -> String {
    top.refresh();
    let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).expect("memory");
    terminal.draw(|frame| top.paint(frame.buffer_mut())).expect("memory");
    lines(terminal.backend().buffer())
}

fn footer_of(top: &super::Top<'_>) -> String {
    let super::Feed::Log(replay) = &top.feed else { panic!("this is a log") };
    let mut out = Vec::new();
    super::write_replayed(
        replay,
        &top.summary,
        Some(top.elapsed()),
        ["shown", "played"],
        Zone::UTC,
        &mut out,
    )
    .expect("memory");
    String::from_utf8(out).expect("UTF-8")
}

/// A name that doesn't depend on where the temporary directory is.
fn named(text: &str, directory: &tempfile::TempDir) -> String {
    text.replace(directory.path().to_str().expect("UTF-8"), "DIR")
}

#[test]
fn a_replayed_log_is_drawn_and_its_end_is_told() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = directory.path().join("log");
    std::fs::write(&path, some_log()).expect("written");
    let config = replay(&[&path], "max", PacketFilter::default());
    let mut top = played(&config);
    assert_snapshot!("replayed", named(&screen_of(&mut top, (120, 24)), &directory));
    assert_snapshot!("replayed_footer", named(&footer_of(&top), &directory));
    // It stays as it is.
    let before = screen_of(&mut top, (120, 24));
    top.drain().expect("there is nothing more");
    assert_eq!(screen_of(&mut top, (120, 24)), before);
}

#[test]
fn a_replay_counts_what_the_report_counts() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let log = some_log();
    let path = directory.path().join("log");
    std::fs::write(&path, &log).expect("written");
    let mut tally = LogTally { files: 1, ..LogTally::default() };
    let mut expected = Summary::default();
    let mut reader = LogReader::new(path.display().to_string(), "report", log.as_slice());
    while reader
        .next(&mut tally, |packet| expected.record(&crate::accounting::Packet::of_log(&packet.event())))
        .expect("a log")
        .is_some()
    {}
    let text = |summary: &Summary| {
        let mut out = Vec::new();
        summary.write(Zone::UTC, &mut out).expect("memory can be written");
        String::from_utf8(out).expect("ASCII")
    };

    let config = replay(&[&path], "max", PacketFilter::default());
    let top = played(&config);
    assert_eq!((top.summary.packets(), tally.lines, tally.skipped, tally.unended), (81, 81, 1, 1));
    assert_eq!(text(&top.summary), text(&expected));
    let super::Feed::Log(played_back) = &top.feed else { panic!("this is a log") };
    assert_eq!(played_back.tally(), Some(&tally));

    let config = replay(&[&path], "max", PacketFilter { pids: vec![812], ..PacketFilter::default() });
    let top = played(&config);
    assert_eq!(top.summary.by_direction(), [0, 40]);
    assert!(footer_of(&top).contains("81 lines read: 40 shown, 41 filtered\n  1 line was skipped\n"));
}

#[test]
fn logs_follow_each_other_whatever_order_they_are_named_in() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let log = some_log();
    let lines: Vec<&[u8]> = log.split_inclusive(|byte| *byte == b'\n').collect();
    let [late, early] = ["late", "early"].map(|name| directory.path().join(name));
    std::fs::write(&early, lines[..30].concat()).expect("written");
    std::fs::write(&late, lines[30..].concat()).expect("written");
    let config = replay(&[&late, &early], "max", PacketFilter::default());
    let mut top = played(&config);
    assert_eq!(top.elapsed(), Duration::from_secs(20));
    assert!(
        screen_of(&mut top, USUAL).lines().nth(2).expect("a line").starts_with("replay 2 logs, max, 20 s, ")
    );
    assert_eq!(top.summary.packets(), 81);
}

#[test]
fn a_log_has_its_own_pace() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = directory.path().join("log");
    std::fs::write(&path, some_log()).expect("written");
    // Its 20 seconds take 20,000 now: the second packet comes after one.
    let config = replay(&[&path], "0.001", PacketFilter::default());
    let mut top = opened(&config).expect("a log");
    top.drain().expect("it can be read");
    assert_eq!((top.summary.packets(), top.is_over), (1, false));
    assert!(footer_of(&top).contains("the log was not played to its end"));
    // And 20 ms now.
    let config = replay(&[&path], "1000", PacketFilter::default());
    let began = std::time::Instant::now();
    let top = played(&config);
    assert!(began.elapsed() >= Duration::from_millis(20));
    assert_eq!(top.summary.packets(), 81);
}

#[test]
fn what_cannot_be_replayed_is_said_in_a_sentence() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let options = Options { zone: Zone::UTC, details: false, colour: false };
    let mut text = Vec::new();
    Writer::new(Format::Text, &options).write(&Event::new(&incoming(), WALL_NS, None), &mut text);
    let header_and_half =
        [header(Format::Csv, crate::request::Stages::Basic), &b"2022-03-02T16:01:36.1+00:00,in,tcp"[..]]
            .concat();
    let logs = [
        ("text", text.as_slice()),
        ("empty", b""),
        ("header", header(Format::Csv, crate::request::Stages::Basic)),
        ("torn", b"{\"ts\":\"2022-03-02T16:01:36.1+00:00\",\"di"),
        ("torn.csv", header_and_half.as_slice()),
        ("other", b"{\"level\":\"info\"}\n"),
    ];
    let mut said = String::new();
    for (name, log) in logs {
        let path = directory.path().join(name);
        std::fs::write(&path, log).expect("written");
        let config = replay(&[&path], "max", PacketFilter::default());
        said += &opened(&config).err().expect("no log");
        said.push('\n');
    }
    let missing = directory.path().join("missing");
    said += &opened(&replay(&[&missing], "max", PacketFilter::default())).err().expect("no log");
    assert_snapshot!(named(&said, &directory));
}
