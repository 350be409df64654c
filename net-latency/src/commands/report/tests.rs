//! The report as a whole, against the packets that the tool's own writers wrote.

use std::collections::BTreeMap;
use std::io::Cursor;
use std::time::Duration;

use insta::assert_snapshot;
use net_latency_common::{
    Direction, FLAG_CONTROL, FLAG_RETRANS, PacketRecord, STAMP_APP, STAMP_DRV, STAMP_IP, STAMP_TRANSPORT,
};
use proptest::prelude::*;
use proptest::sample::select;

use super::findings::Report;

use super::table::Owner;
use super::{html, object, text};
use crate::accounting::Ends;
use crate::clock::Zone;
use crate::output::{Options, Writer, header};
use crate::packet::event::fixtures::{WALL_NS, comm, incoming, outgoing, udp, v6};
use crate::packet::event::{Event, Protocol};
use crate::request::{Format, LogFilter, ReportConfig, ReportFormat, network};

const S: i64 = 1_000_000_000;

fn config() -> ReportConfig {
    ReportConfig {
        files: vec![],
        html: None,
        format: ReportFormat::Text,
        packets: None,
        interval: None,
        top: 3,
        quiet: true,
        filter: LogFilter::default(),
    }
}

fn line(record: &PacketRecord, wall_ns: i64, format: Format) -> Vec<u8> {
    let mut out = Vec::new();
    let options = Options { zone: Zone::UTC, details: false, colour: false };
    Writer::new(format, &options).write(&Event::new(record, wall_ns, Some(b"eth0")), &mut out);
    out
}

fn report_on(log: &[u8], config: &ReportConfig) -> Result<Report, String> {
    let mut report = Report::new(1, config);
    super::read("the log".to_owned(), Cursor::new(log), &config.filter, &mut report)
        .map_err(|failure| failure.to_string())?;
    report.finish();
    Ok(report)
}

fn shown(report: &Report, config: &ReportConfig) -> String {
    let mut out = Vec::new();
    text::write(report, config, &mut out).expect("memory can be written");
    String::from_utf8(out).expect("UTF-8")
}

/// A conversation of two processes, with whatever makes reading a log interesting.
fn some_log(pairs: u64) -> Vec<u8> {
    let mut log = Vec::new();
    for n in 0..pairs {
        let at = WALL_NS + n as i64 * S / 2;
        let mut received = incoming();
        received.stamps[STAMP_APP] += n * n * 1_000_000;
        log.extend(line(&received, at, Format::Json));
        log.extend(line(&outgoing(), at + 1_000_000, Format::Json));
    }
    let name = comm(b"<b>\x1b[2J&\"'");
    let mut waiting = PacketRecord { comm: name, process: name, pid: 7, tid: 7, ..v6(outgoing()) };
    waiting.stamps[STAMP_TRANSPORT] += 300_000_000;
    waiting.stamps[STAMP_IP] += 300_000_000;
    waiting.stamps[STAMP_DRV] += 300_000_000;
    log.extend(line(&PacketRecord { flags: FLAG_RETRANS, ..waiting }, WALL_NS + 9 * S, Format::Json));
    let mut unknown = PacketRecord { pid: 0, tid: 0, comm: [0; 16], process: [0; 16], ..udp(incoming()) };
    unknown.stamps[STAMP_IP] = 0;
    log.extend(b"not a line of ours\n");
    log.extend(header(Format::Csv, crate::request::Stages::Basic));
    log.extend(line(&unknown, WALL_NS + 10 * S, Format::Csv));
    log.extend(line(&incoming(), WALL_NS + 11 * S, Format::Csv));
    log.extend(b"2022-03-02T16:01:36.123456789+00:00,in,tcp,4,1");
    log
}

#[test]
fn an_interval_adds_a_row_for_each() {
    let interval = Some(Duration::from_secs(5));
    let config = ReportConfig { interval, ..config() };
    let text = shown(&report_on(&some_log(40), &config).expect("a log"), &config);
    let table: Vec<_> = text.lines().skip_while(|line| !line.contains("each 5 s")).take(7).collect();
    assert!(table.iter().all(|line| line.len() <= 80), "{text}");
    assert_snapshot!(table.join("\n"));
}

#[test]
fn slow_packets_and_those_of_a_host_can_be_asked_for() {
    let log = some_log(40);
    let packets = |filter| {
        let config = ReportConfig { filter, ..config() };
        report_on(&log, &config).expect("a log").packets
    };
    let all = packets(LogFilter::default());
    let slower = |ms| packets(LogFilter { slower: Some(Duration::from_millis(ms)), ..LogFilter::default() });
    // The n-th incoming one took n squared ms longer, and the one that waited 300 ms.
    assert_eq!([slower(0), slower(100), slower(1_300), slower(2_000)], [all, 31, 3, 0]);
    let host = |text: &str| {
        let net = network::parse_net(text).expect("a network");
        packets(LogFilter { hosts: vec![net], ..LogFilter::default() })
    };
    let [v4, v6] = [host("0.0.0.0/0"), host("::/0")];
    assert_eq!((v4 + v6, v6, host("192.0.2.0/24")), (all, 1, v4));
    assert_eq!(host("203.0.113.0/24"), 0);
}

#[test]
fn the_summary_reads_as_told() {
    let config = config();
    let text = shown(&report_on(&some_log(40), &config).expect("a log"), &config);
    // A name that has to be escaped may be longer.
    let mut lines = text.lines().filter(|line| !line.contains('\\'));
    assert!(lines.all(|line| line.chars().count() <= 80), "{text}");
    assert_snapshot!(text);
}

#[test]
fn the_page_is_as_told() {
    let config = config();
    let page = html::page(&report_on(&some_log(4), &config).expect("a log"), &config);
    let (head, rest) = page.split_once("<style>").expect("a style");
    let (_, body) = rest.split_once("</style>").expect("its end");
    assert_snapshot!(format!("{head}{body}").replace(env!("CARGO_PKG_VERSION"), "VERSION"));
}

#[test]
fn the_object_is_as_told() {
    let config = config();
    let mut out = Vec::new();
    object::write(&report_on(&some_log(2), &config).expect("a log"), &config, &mut out);
    assert!(!out.strip_suffix(b"\n").expect("a line").iter().any(u8::is_ascii_control));
    let mut object: serde_json::Value = serde_json::from_slice(&out).expect("JSON");
    // Most of them are empty.
    object["timeline"]["slices"].as_array_mut().expect("an array").truncate(1);
    assert_snapshot!(serde_json::to_string_pretty(&object).expect("memory can be written"));
}

#[test]
fn a_log_without_packets_is_one() {
    let config = config();
    for log in [&b""[..], b"\n\n", header(Format::Csv, crate::request::Stages::Basic)] {
        let report = report_on(log, &config).expect("a log");
        assert_eq!(shown(&report, &config), "0 packets in 1 log\n");
        assert!(html::page(&report, &config).contains("<p>0 packets in 1 log</p>"));
    }
}

#[test]
fn what_is_no_log_is_refused_with_the_remedy() {
    let text = line(&incoming(), WALL_NS, Format::Text);
    let endless = "garbage\n".repeat(1_000_000);
    let mut csv_without_header = line(&incoming(), WALL_NS, Format::Csv);
    csv_without_header.extend(line(&incoming(), WALL_NS, Format::Csv));
    let logs: [&[u8]; 8] = [
        &text,
        b"\x7fELF\x02\x01",
        endless.as_bytes(),
        &csv_without_header,
        b"{}\n",
        b"{\"ts\":\n",
        b"[1,2]\n",
        &[b'x'; 1_000_000],
    ];
    let refused = logs.map(|log| report_on(log, &config()).expect_err("no log"));
    assert_snapshot!(refused.join("\n"));
}

#[test]
fn lines_that_cannot_be_read_are_counted_and_the_first_is_told() {
    let good = line(&incoming(), WALL_NS, Format::Json);
    let whole = String::from_utf8(good.clone()).expect("UTF-8");
    let wrong = [
        "{\"ts\":",
        "{\"a\":1}",
        "{\"ts\":7,\"dir\":\"in\",\"proto\":\"tcp\"}",
        "null",
        &whole.trim_end().replace("\"in\"", "\"up\""),
        &whole.trim_end().replace("2022-", "-"),
        &whole.trim_end().replace("19550", "-1"),
        &whole.trim_end().replace("192.0.2.7", "192.0.2"),
    ];
    for wrong in wrong {
        let log = [&good, wrong.as_bytes(), b"\n\r\n", &good].concat();
        let report = report_on(&log, &config()).expect("a log");
        assert_eq!((report.packets, report.log.skipped), (2, 1), "{wrong}");
        assert_eq!(report.log.first_skipped.expect("one").1, 2, "{wrong}");
    }
}

#[test]
fn what_other_tools_add_does_no_harm() {
    let good = line(&incoming(), WALL_NS, Format::Json);
    let more = [&b"{\"new\":{\"a\":[1,\"\\u00e9\"]},"[..], &good[1..]].concat();
    let crlf = [&b"\xef\xbb\xbf"[..], &good[..good.len() - 1], b" \r\n"].concat();
    let unended = &good[..good.len() - 1];
    let few =
        b"{\"proto\":\"tcp\",\"ts\":\"2022-03-02T16:01:36Z\",\"dir\":\"in\",\"flags\":null,\"x\":1.5e3}\n";
    for log in [&more[..], &crlf, unended, few] {
        let report = report_on(log, &config()).expect("a log");
        assert_eq!((report.packets, report.log.skipped, report.log.unended), (1, 0, 0));
    }
}

#[test]
fn a_line_that_was_cut_off_is_counted_and_not_used() {
    let json = line(&incoming(), WALL_NS, Format::Json);
    let csv = line(&incoming(), WALL_NS, Format::Csv);
    // Without its newline a row may lack a digit.
    for cut in [&json[..json.len() - 2], &json[..1], &csv[..csv.len() - 1], &csv[..9]] {
        let log = [header(Format::Csv, crate::request::Stages::Basic), &csv, cut].concat();
        let report = report_on(&log, &config()).expect("a log");
        assert_eq!((report.packets, report.log.skipped, report.log.unended), (1, 0, 1));
    }
    let report = report_on(&json[..json.len() - 2], &config()).expect("a log that has just begun");
    assert_eq!((report.packets, report.log.unended), (0, 1));
}

#[test]
fn filters_keep_out_what_was_not_asked_for() {
    let count = |filter: LogFilter| {
        let config = ReportConfig { filter, ..config() };
        let report = report_on(&some_log(40), &config).expect("a log");
        assert_eq!(report.log.lines, 83);
        report.packets
    };
    assert_eq!(count(LogFilter { pids: vec![7, 8], ..LogFilter::default() }), 1);
    assert_eq!(
        count(LogFilter {
            comms: ["fire*", "<b>?*"].map(|glob| glob.parse().expect("a glob")).into(),
            ..LogFilter::default()
        }),
        82
    );
    assert_eq!(
        count(LogFilter { ports: vec![443], direction: Some(Direction::In), ..LogFilter::default() }),
        42
    );
    assert_eq!(count(LogFilter { ports: vec![80], ..LogFilter::default() }), 0);
}

#[test]
fn a_number_that_is_used_again_is_another_process() {
    let lines = [&b"second"[..], b"first", b"second"].map(|name| {
        let record = PacketRecord { comm: comm(name), process: comm(name), pid: 7, tid: 7, ..incoming() };
        line(&record, WALL_NS, Format::Json)
    });
    let report = report_on(&lines.concat(), &config()).expect("a log");
    let (rows, _) = report.processes.top(9);
    let told: Vec<_> = rows.iter().map(|(owner, row)| (owner.pid, row.name.as_deref(), row.lines)).collect();
    assert_eq!(told, [(Some(7), Some("second"), 2), (Some(7), Some("first"), 1)]);
}

#[test]
fn a_process_has_its_own_name_and_not_a_thread_s() {
    let names = |process: &[u8]| {
        let threads = [(&b"worker"[..], 8), (b"main", 7), (b"worker", 9)];
        let lines = threads.map(|(name, tid)| {
            let record = PacketRecord { comm: comm(name), process: comm(process), pid: 7, tid, ..incoming() };
            line(&record, WALL_NS, Format::Json)
        });
        let report = report_on(&lines.concat(), &config()).expect("a log");
        let (rows, _) = report.processes.top(1);
        assert_eq!(rows[0].1.lines, 3);
        rows[0].1.name.as_deref().map(str::to_owned)
    };
    assert_eq!(names(b"search").as_deref(), Some("search"));
    // A log that lacks it: the first thread has the process's name.
    assert_eq!(names(b"").as_deref(), Some("main"));
}

#[test]
fn what_finds_no_room_is_counted_together() {
    // More connections than are told apart; the first takes by far the most time, the rest come once, then again.
    let mut report = Report::new(1, &config());
    let add = |report: &mut Report, number: u32, ns: u64| {
        let mut record = incoming();
        record.stamps[STAMP_APP] = record.stamps[STAMP_DRV] + ns;
        record.saddr[..4].copy_from_slice(&number.to_be_bytes());
        report.add(&Event::new(&record, WALL_NS, None), 0);
    };
    for turn in 0..2 {
        for number in 0..10_000 {
            add(&mut report, number, 300_000 + u64::from(number));
            add(&mut report, 12_345, 1_000_000 + turn);
        }
    }
    let (rows, others) = report.connections.top(1);
    assert_eq!(rows[0].1.lines, 20_000);
    assert!(!rows[0].1.is_rest);
    assert_eq!(rows[0].0.remote.ip().to_string(), "0.0.48.57");
    assert_eq!(others.lines, 20_000);
    assert_eq!(report.connections.count(), None);
    let (all, _) = report.connections.top(100_000);
    assert!(all.len() <= 2_048);
    // An entry that was let go, and has come again, says that there may be more.
    assert!(all.iter().skip(1).all(|(_, entry)| entry.is_rest || entry.lines == 2));
    assert!(all.iter().any(|(_, entry)| entry.is_rest));
}

/// The report's numbers, computed independently.
#[derive(Debug, Default, PartialEq)]
struct Naive {
    packets: u64,
    span: Option<(i64, i64)>,
    /// Times by direction, protocol and column; the last is the total.
    times: BTreeMap<(bool, Protocol, usize), Vec<u64>>,
    processes: BTreeMap<Owner, (u64, u64, u128)>,
    connections: BTreeMap<Ends, (u64, u64, u128)>,
}

impl Naive {
    fn of(events: &[Event<'_>]) -> Self {
        let mut naive = Self::default();
        for event in events {
            naive.packets += 1;
            let at = event.wall_ns();
            let (first, last) = naive.span.unwrap_or((at, at));
            naive.span = Some((first.min(at), last.max(at)));
            let is_first = !event.is_retransmission();
            let total = event.total_ns().filter(|_| is_first);
            let stages = event.stages().map(|ns| ns.filter(|_| is_first));
            for (column, ns) in stages.into_iter().chain([total]).enumerate() {
                let key = (event.direction() == Direction::Out, event.protocol(), column);
                naive.times.entry(key).or_default().extend(ns);
            }
            let process = naive.processes.entry(Owner::of(event)).or_default();
            let connection = Ends::known(event).expect("both ends are known");
            let connection = naive.connections.entry(connection).or_default();
            for (lines, bytes, time) in [process, connection] {
                *lines += 1;
                *bytes += u64::from(event.len());
                *time += u128::from(total.unwrap_or(0));
            }
        }
        naive
    }
}

/// Records as traffic has them: few processes and connections, stamps in order.
fn likely_record() -> impl Strategy<Value = PacketRecord> {
    let numbers = (0..4u32, 0..3u32, 0..5u16, 0..1_500u32);
    let times = [0..50_000_000u64, 0..5_000_000, 0..100_000];
    let kind = (any::<bool>(), any::<bool>(), any::<bool>(), select(&[0, FLAG_CONTROL, FLAG_RETRANS][..]));
    (numbers, times, kind, 0..9usize).prop_map(|((pid, tid, port, len), times, kind, missing)| {
        let (out, is_udp, is_v6, flags) = kind;
        let mut record = if out { outgoing() } else { incoming() };
        if is_udp {
            record = udp(record);
        }
        if is_v6 {
            record = v6(record);
        }
        let mut stamps = [1; 4];
        for (place, time) in times.into_iter().enumerate() {
            stamps[place + 1] = stamps[place] + time;
        }
        if let Some(stamp) = stamps.get_mut(missing) {
            *stamp = 0;
        }
        if out {
            stamps.reverse();
        }
        let tid = if pid == 0 { 0 } else { pid + tid };
        PacketRecord { stamps, pid, tid, len, flags, dport: record.dport + port, ..record }
    })
}

proptest! {
    #[test]
    fn the_numbers_are_those_of_a_naive_reckoning(
        records in proptest::collection::vec((likely_record(), 0..100_000_000_000i64, any::<bool>()), 1..120),
    ) {
        let mut log = header(Format::Csv, crate::request::Stages::Basic).to_vec();
        let mut events = Vec::new();
        for (record, at, csv) in &records {
            log.extend(line(record, WALL_NS + at, if *csv { Format::Csv } else { Format::Json }));
            events.push(Event::new(record, WALL_NS + at, None));
        }
        let naive = Naive::of(&events);
        let report = report_on(&log, &config()).expect("a log");

        prop_assert_eq!((report.packets, report.span), (naive.packets, naive.span));
        for (direction, protocol, way) in report.stages.ways() {
            for (column, times) in way.columns.iter().chain([&way.total]).enumerate() {
                let key = (direction == Direction::Out, protocol, column);
                let mut exact = naive.times.get(&key).cloned().unwrap_or_default();
                exact.sort_unstable();
                prop_assert_eq!(times.count(), exact.len() as u64);
                prop_assert_eq!((times.min(), times.max()), (exact.first().copied(), exact.last().copied()));
                if let Some(shown) = times.quantile(990) {
                    let p99 = exact[(exact.len() * 99).div_ceil(100) - 1];
                    prop_assert!(shown.abs_diff(p99) <= p99 / 100 + 1, "{}, not {}", shown, p99);
                }
            }
        }
        let (processes, others) = report.processes.top(1_000);
        prop_assert_eq!(others.lines, 0);
        let found: BTreeMap<_, _> =
            processes.iter().map(|(owner, row)| (*owner, (row.lines, row.bytes, row.time_ns))).collect();
        prop_assert_eq!(&found, &naive.processes);
        prop_assert!(processes.is_sorted_by_key(|(_, row)| std::cmp::Reverse(row.time_ns)));
        let (connections, _) = report.connections.top(1_000);
        let found: BTreeMap<_, _> =
            connections.iter().map(|(key, row)| (*key, (row.lines, row.bytes, row.time_ns))).collect();
        prop_assert_eq!(&found, &naive.connections);
        let in_time: u64 = report.timeline.slices().map(|(_, slice)| slice.incoming.count() + slice.outgoing.count()).sum();
        prop_assert_eq!(in_time, events.iter().filter(|event| {
            event.total_ns().is_some() && !event.is_retransmission()
        }).count() as u64);
    }

    #[test]
    fn no_log_panics(log in proptest::collection::vec(prop_oneof![
        any::<u8>(), select(&b"{}[]\",:\n\\n1tsdirpoc"[..])
    ], 0..400)) {
        let config = config();
        for log in [log.clone(), [header(Format::Csv, crate::request::Stages::Basic), &log].concat()] {
            if let Ok(report) = report_on(&log, &config) {
                let _unused = (shown(&report, &config), html::page(&report, &config));
            }
        }
    }

    #[test]
    fn any_times_can_be_drawn(packets in proptest::collection::vec((any::<i64>(), any::<u64>(), any::<bool>()), 1..20)) {
        let mut report = Report::new(1, &config());
        for (wall_ns, ns, out) in packets {
            let mut record = if out { outgoing() } else { incoming() };
            // The first two and the last.
            let (start, end) = if out { (STAMP_APP, STAMP_DRV) } else { (STAMP_DRV, STAMP_APP) };
            record.stamps = [ns.max(1); 4];
            record.stamps[start] = 1;
            record.stamps[end] = ns.saturating_add(1);
            record.stamps[STAMP_IP] = 0;
            report.add(&Event::new(&record, wall_ns, None), 0);
        }
        let page = html::page(&report, &config());
        prop_assert!(!page.contains("NaN") && !page.contains("inf"));
    }
}
