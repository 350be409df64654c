//! Journeys from rows, and their output.

use insta::assert_snapshot;
use net_latency_common::{
    AF_INET, Direction, IPPROTO_TCP, IPPROTO_UDP,
    journey::{
        CONTEXT_PROCESS, CONTEXT_SOFTIRQ, JourneyRow, JourneyStart, PLACE_COPY, PLACE_DROP,
        PLACE_GRO_RECEIVE, PLACE_NETIF_RX, PLACE_RECEIVE, PLACE_SWITCH, PLACE_TAKEN, PLACE_WAKING, ROW_DROP,
        ROW_FREED, ROW_KEPT, ROW_QUEUED, ROW_RAISED_BY_INTERRUPT, ROW_READ, ROW_UNWATCHED, ROW_WANTED,
    },
};
use proptest::prelude::*;
use serde_json::Value;

use super::{
    assemble::{Assembler, End, Wanted},
    json,
    model::{Context, Journey, Outcome},
    perfetto::{self, Events},
    summary::Summary,
    text,
    typical::{self, Sample},
};
use crate::{
    accounting::object::{Head, Kind, View, tests::valid},
    clock::{Clock, Zone},
    output::tests::any_name,
    probes::journey::{Names, Record},
    request::{FooterFormat, PacketFilter, Pick},
};

const ID: u64 = 7;
const SKB: u64 = 0xffff_8880_0000_1000;
const SECOND: u64 = 1_000_000_000;
const SENDMSG: u64 = 0xffff_ffff_8100_0000;
const TRANSMIT: u64 = 0xffff_ffff_8100_1000;
const QUEUE_XMIT: u64 = 0xffff_ffff_8100_2000;
const TCP_RCV: u64 = 0xffff_ffff_8100_3000;
const DO_RCV: u64 = 0xffff_ffff_8100_4000;
const RELEASE: u64 = 0xffff_ffff_8100_5000;

fn names() -> Names {
    Names::of(
        &[
            (SENDMSG, "tcp_sendmsg_locked"),
            (TRANSMIT, "__tcp_transmit_skb"),
            (QUEUE_XMIT, "__dev_queue_xmit"),
            (TCP_RCV, "tcp_v4_rcv"),
            (DO_RCV, "tcp_v4_do_rcv"),
            (RELEASE, "skb_release_head_state"),
        ],
        &[(9, "NETFILTER_DROP")],
    )
}

fn name(text: &[u8]) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..text.len()].copy_from_slice(text);
    bytes
}

fn beginning() -> JourneyStart {
    let address = |last| {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&[10, 77, 0, last]);
        bytes
    };
    JourneyStart {
        id: ID,
        saddr: address(1),
        daddr: address(2),
        seq: 1000,
        len: 200,
        mark: 0x2a,
        family: AF_INET,
        sport: 40_000,
        dport: 8080,
        protocol: IPPROTO_TCP,
        direction: 1,
        is_wanted: 1,
        reserved: 0,
    }
}

fn row(at: u64, place: u64) -> JourneyRow {
    JourneyRow {
        id: ID,
        at: SECOND + at,
        // kprobes are hit one byte behind the beginning.
        place: if place >= SENDMSG { place + 1 } else { place },
        skb: SKB,
        location: 0,
        softirq_at: 0,
        raised_at: 0,
        interrupt_at: 0,
        content: 0,
        comm: name(b"client"),
        device: [0; 16],
        pid: 11,
        tid: 12,
        netns: 0,
        reason: 0,
        mark: 0,
        cpu: 0,
        context: CONTEXT_PROCESS,
        flags: 0,
        interrupt: 0,
        reserved: 0,
    }
}

fn in_softirq(row: JourneyRow) -> JourneyRow {
    JourneyRow {
        context: CONTEXT_SOFTIRQ,
        comm: [0; 16],
        pid: 0,
        tid: 0,
        device: name(b"veth1"),
        netns: 5,
        ..row
    }
}

/// A segment that waits 15 ms in a qdisc, and for its reader.
fn read() -> Vec<JourneyRow> {
    let reader = JourneyRow { skb: 0, comm: name(b"\x1b[31mserver"), pid: 21, tid: 21, cpu: 1, ..row(0, 0) };
    let softirq = |row| {
        let late = JourneyRow { raised_at: SECOND + 15_203_000, softirq_at: SECOND + 15_204_000, ..row };
        in_softirq(late)
    };
    vec![
        JourneyRow { skb: 0, ..row(0, SENDMSG) },
        row(3_100, TRANSMIT),
        JourneyRow { skb: SKB + 256, device: name(b"veth0"), ..row(5_000, QUEUE_XMIT) },
        JourneyRow { skb: SKB + 256, device: name(b"veth1"), ..row(15_202_000, PLACE_NETIF_RX) },
        JourneyRow { skb: SKB + 256, ..softirq(row(15_206_500, PLACE_RECEIVE)) },
        JourneyRow { skb: SKB + 256, ..softirq(row(15_208_000, TCP_RCV)) },
        JourneyRow { skb: SKB + 256, flags: ROW_QUEUED, ..softirq(row(15_210_000, DO_RCV)) },
        in_softirq(JourneyRow { skb: 0, ..row(15_215_000, PLACE_WAKING) }),
        // Rows come in any order: the reader tells which was earlier.
        JourneyRow { flags: ROW_READ | ROW_WANTED, ..reader_at(reader, 15_400_000, PLACE_TAKEN) },
        reader_at(reader, 15_380_000, PLACE_COPY),
        reader_at(reader, 15_370_000, PLACE_SWITCH),
        JourneyRow { skb: SKB + 256, flags: ROW_FREED, ..row(15_401_000, RELEASE) },
    ]
}

fn reader_at(reader: JourneyRow, at: u64, place: u64) -> JourneyRow {
    JourneyRow { at: SECOND + at, place, ..reader }
}

fn assembled(
    start: JourneyStart,
    rows: &[JourneyRow],
    filter: &PacketFilter,
    pick: Pick,
) -> (Assembler, Vec<(u64, End)>) {
    let mut assembler = Assembler::new(Wanted::new(filter, pick));
    assembler.take(&Record::Start(start));
    for row in rows {
        assembler.take(&Record::Row(*row));
    }
    let last = rows.iter().map(|row| row.at).max().unwrap_or(0);
    let ended = assembler.ended(last + SECOND / 10, false, &names());
    (assembler, ended)
}

fn shown(start: JourneyStart, rows: &[JourneyRow]) -> Option<Journey> {
    match assembled(start, rows, &PacketFilter::default(), Pick::Any).1.pop() {
        Some((ID, End::Shown(journey))) => Some(*journey),
        _ => None,
    }
}

fn journey() -> Journey {
    shown(beginning(), &read()).expect("it has ended")
}

fn clock() -> Clock {
    Clock::at(1_646_236_896 * 1_000_000_000 - 1_000_000_000)
}

fn as_text(journey: &Journey, columns: usize) -> String {
    let mut out = Vec::new();
    text::write(journey, clock(), Zone::UTC, columns, &mut out);
    String::from_utf8(out).expect("UTF-8")
}

fn functions(journey: &Journey) -> Vec<&str> {
    journey.rows.iter().map(|row| row.function.as_str()).collect()
}

#[test]
fn a_packet_that_was_read() {
    assert_snapshot!(as_text(&journey(), 132));
}

#[test]
fn a_narrow_terminal() {
    let text = as_text(&journey(), 20);
    assert!(text.lines().any(|line| line.ends_with('*')), "{text}");
    assert_snapshot!(text);
}

#[test]
fn the_scale_is_linear_and_fits_the_columns() {
    let wide = as_text(&journey(), 160);
    let rows: Vec<_> = wide.lines().skip(2).take_while(|line| line.contains('|')).collect();
    assert!(rows.iter().all(|row| row.len() <= 160), "{wide}");
    let column = |row: &str| row.find('*').expect("a place") - row.find('|').expect("a scale") - 1;
    let scale = wide.lines().nth(1).expect("a head");
    let width = scale.rfind('|').expect("an end") - scale.find('|').expect("a beginning") - 1;
    for (row, place) in rows.iter().zip(&journey().rows) {
        let expected = (place.at - SECOND) as usize * (width - 1) / 15_400_000;
        assert_eq!(column(row), expected, "{row}");
    }
}

#[test]
fn an_object() {
    let mut out = Vec::new();
    json::write(&journey(), clock(), Zone::UTC, &mut out);
    assert_eq!(out.iter().filter(|byte| **byte == b'\n').count(), 1);
    let value: Value = serde_json::from_slice(&out).expect("JSON");
    assert_snapshot!(serde_json::to_string_pretty(&value).expect("it was read"));
}

fn events(journeys: &[Journey]) -> Value {
    let mut out = perfetto::HEADER.to_vec();
    let mut events = Events::default();
    for journey in journeys {
        events.write(journey, &mut out);
    }
    events.finish(&mut out);
    serde_json::from_slice(&out).expect("JSON")
}

#[test]
fn trace_events() {
    let value = events(&[journey()]);
    assert_snapshot!(serde_json::to_string_pretty(&value).expect("it was read"));
}

/// What the Trace Event Format asks of the phases that are used.
fn check_events(value: &Value) {
    let events = value.as_array().expect("an array");
    let mut arrows = Vec::new();
    for event in events {
        let text = |key: &str| event[key].as_str().unwrap_or_else(|| panic!("{key} of {event}"));
        let number = |key: &str| event[key].as_f64().unwrap_or_else(|| panic!("{key} of {event}"));
        assert!(!text("name").is_empty() && number("pid") >= 1.0 && number("tid") >= 0.0);
        match text("ph") {
            "M" => assert!(event["args"]["name"].is_string() && text("name").ends_with("_name")),
            "X" => assert!(number("ts") >= 0.0 && number("dur") >= 0.0 && event["args"].is_object()),
            phase @ ("s" | "t" | "f") => {
                arrows.push((event["id"].as_u64().expect("an id"), phase.to_owned()));
                // Flow events bind to the slice that encloses them on their track.
                assert!(events.iter().any(|slice| slice["ph"] == "X"
                    && ["pid", "tid", "ts"].iter().all(|key| slice[*key] == event[*key])));
            }
            other => panic!("phase {other}"),
        }
    }
    for (id, _) in &arrows {
        let phases: Vec<_> =
            arrows.iter().filter(|(other, _)| other == id).map(|(_, phase)| phase.as_str()).collect();
        assert_eq!((phases[0], phases[phases.len() - 1]), ("s", "f"), "{phases:?}");
        assert!(phases[1..phases.len() - 1].iter().all(|phase| *phase == "t"));
    }
}

#[test]
fn trace_events_keep_to_their_format() {
    check_events(&events(&[journey(), journey()]));
    assert_eq!(events(&[]), Value::Array(Vec::new()));
    let value = events(&[journey(), journey()]);
    let names = value.as_array().expect("an array").iter().filter(|event| event["ph"] == "M").count();
    // Two CPUs; on the first a process, an unknown context and softirqs.
    assert_eq!(names, 2 + 4, "each track is named once");
}

#[test]
fn the_longest_time_is_named_by_where_the_packet_was() {
    let journey = journey();
    let gap = journey.longest().expect("there is one");
    assert_eq!((gap.stage.name(), gap.ns), ("qdisc", 15_197_000));
    let sum: u64 = journey.stages().iter().map(|(_, ns)| ns).sum();
    assert_eq!(sum, journey.total());
    assert_eq!(journey.total(), 15_400_000);
}

#[test]
fn what_is_behind_the_reader_is_no_part_of_the_way() {
    assert_eq!(functions(&journey()).last(), Some(&"tcp_rcv_space_adjust"));
    assert_eq!(functions(&journey()).iter().filter(|name| **name == "softirq_entry").count(), 1);
}

#[test]
fn a_drop_has_its_reason() {
    let mut rows = read()[..5].to_vec();
    rows.push(JourneyRow {
        skb: SKB + 256,
        flags: ROW_DROP,
        reason: 9,
        ..in_softirq(row(15_300_000, PLACE_DROP))
    });
    let journey = shown(beginning(), &rows).expect("it has ended");
    assert_eq!(
        journey.outcome,
        Outcome::Dropped { function: None, reason: Some("NETFILTER_DROP".to_owned()) }
    );
    assert_snapshot!(as_text(&journey, 132).lines().next().expect("a head"));
    let unknown = rows.pop().map(|row| JourneyRow { reason: 77, ..row }).expect("the drop");
    rows.push(unknown);
    let journey = shown(beginning(), &rows).expect("it has ended");
    assert_eq!(journey.outcome, Outcome::Dropped { function: None, reason: None });
}

#[test]
fn a_packet_that_leaves_ends_when_its_last_skb_does() {
    let mut rows = vec![row(0, TRANSMIT), JourneyRow { skb: SKB + 256, ..row(10, QUEUE_XMIT) }];
    rows.push(JourneyRow { skb: SKB + 256, flags: ROW_FREED, ..row(20, RELEASE) });
    assert!(shown(beginning(), &rows).is_none(), "the first skb lives");
    // For the send queue's skb only the function that transmits it is a place on the way.
    rows.push(JourneyRow { flags: ROW_FREED, ..row(30, RELEASE) });
    rows.push(JourneyRow { flags: ROW_FREED | ROW_KEPT, ..row(9_000_000, RELEASE) });
    let journey = shown(beginning(), &rows).expect("it has ended");
    assert_eq!((journey.outcome.clone(), journey.total()), (Outcome::Freed, 30));
}

#[test]
fn what_waits_goes_on_until_patience_ends() {
    let rows = &read()[..8];
    let (mut assembler, ended) = assembled(beginning(), rows, &PacketFilter::default(), Pick::Any);
    assert!(ended.is_empty());
    let Some((_, End::Shown(journey))) = assembler.ended(20 * SECOND, false, &names()).pop() else {
        panic!("not given up");
    };
    assert_eq!(journey.outcome, Outcome::Waiting);
}

#[test]
fn another_packets_row_is_left_out_and_counted() {
    let content = |seq: u32, port: u16| u64::from(port) << 48 | 8080 << 32 | u64::from(seq);
    let fits = [content(1000, 40_000), content(999, 1), content(800, 40_000), content(1000, 1)];
    let others = [content(1200, 40_000), content(1000u32.wrapping_sub(1 << 21), 40_000), content(5, 1)];
    for content in fits.into_iter().chain(others) {
        let mut rows = read();
        rows[2].content = content;
        let (assembler, ended) = assembled(beginning(), &rows, &PacketFilter::default(), Pick::Any);
        let is_foreign = others.contains(&content);
        assert_eq!(assembler.foreign, u64::from(is_foreign), "{content:x}");
        assert!(
            matches!(&ended[..], [(_, End::Shown(journey))] if journey.rows.len() == if is_foreign { 12 } else { 13 })
        );
    }
    let datagram = JourneyStart { protocol: IPPROTO_UDP, seq: 0, ..beginning() };
    for (content, count) in
        [(content(208 << 16 | 99, 40_000), 0), (content(208 << 16, 1), 0), (content(9 << 16, 1), 1)]
    {
        let mut rows = read();
        rows[2].content = content;
        assert_eq!(
            assembled(datagram, &rows, &PacketFilter::default(), Pick::Any).0.foreign,
            count,
            "{content:x}"
        );
    }
}

#[test]
fn only_what_is_asked_for_is_shown() {
    let filter = |change: fn(&mut PacketFilter)| {
        let mut filter = PacketFilter::default();
        change(&mut filter);
        filter
    };
    let is_shown = |start, rows: &[JourneyRow], filter: &PacketFilter| {
        let (_, ended) = assembled(start, rows, filter, Pick::Any);
        assert_eq!(ended.len(), 1);
        matches!(ended[0].1, End::Shown(_))
    };
    let any = PacketFilter::default();
    let slower =
        |ms| PacketFilter { slower: Some(std::time::Duration::from_millis(ms)), ..PacketFilter::default() };
    assert!(is_shown(beginning(), &read(), &slower(15)));
    assert!(!is_shown(beginning(), &read(), &slower(16)));
    assert!(is_shown(beginning(), &read(), &filter(|filter| filter.interfaces.push("veth1".to_owned()))));
    assert!(!is_shown(beginning(), &read(), &filter(|filter| filter.interfaces.push("eth0".to_owned()))));
    // Its owner may be known by its reader only.
    let unknown = JourneyStart { is_wanted: 0, ..beginning() };
    assert!(is_shown(unknown, &read(), &any));
    let mut rows = read();
    for row in &mut rows {
        row.flags &= !ROW_WANTED;
    }
    assert!(!is_shown(unknown, &rows, &any));
}

/// One that waits in the qdisc for `queued` ns, and for its reader for `late` ns more than usual.
fn waiting(queued: u64, late: u64) -> Journey {
    let usual = 15_197_000;
    let moved = |at: u64| if at > SECOND + 5_000 { at - usual + queued } else { at };
    let mut rows = read();
    for row in &mut rows {
        let late = if row.at >= SECOND + 15_370_000 { late } else { 0 };
        row.at = moved(row.at) + late;
        (row.raised_at, row.softirq_at) = (moved(row.raised_at), moved(row.softirq_at));
    }
    shown(beginning(), &rows).expect("it has ended")
}

fn summed_up(journeys: &[Journey]) -> (String, Value) {
    let mut summary = Summary::default();
    journeys.iter().for_each(|journey| summary.add(journey));
    let footer = super::footer::Footer {
        head: Head::new(Kind::End, View::Journey, std::time::Duration::from_secs(2)),
        shown: journeys.len() as u64,
        typical_of: None,
        typical_p50_ns: None,
        followed: journeys.len() as u64,
        filtered: 0,
        given_up: 0,
        lost: 0,
        rows_of_others: 0,
        rows_beyond: 0,
        skipped_calls: None,
        stages: summary.objects(),
    };
    let written = [FooterFormat::Text, FooterFormat::Json].map(|form| {
        let mut out = Vec::new();
        footer.write(form, &summary, "", &mut out).expect("memory can be written");
        String::from_utf8(out).expect("ASCII")
    });
    (written[0].clone(), valid(&written[1]))
}

#[test]
fn several_packets_are_summed_up_and_judged_together() {
    // The first one is unlike the others.
    let (text, object) = summed_up(&[
        waiting(200_000, 30_000_000),
        waiting(15_000_000, 0),
        waiting(12_000_000, 0),
        waiting(13_000_000, 100_000),
    ]);
    let qdisc = object["stages"].as_array().expect("stages").iter().find(|stage| stage["stage"] == "qdisc");
    let qdisc = qdisc.expect("it is there");
    assert_eq!(
        (&qdisc["packets"], &qdisc["longest_of"], &qdisc["max_ns"]),
        (&4.into(), &3.into(), &15_000_000.into())
    );
    // Most of them wait in one stage, and most time is in that of the first.
    let (other, _) =
        summed_up(&[waiting(200_000, 60_000_000), waiting(15_000_000, 0), waiting(12_000_000, 0)]);
    // One alone has said all of it.
    let (one, object) = summed_up(&[waiting(200_000, 0)]);
    assert_eq!(one.lines().count(), 1);
    assert_eq!(object["stages"][0]["packets"], 1);
    assert_eq!(summed_up(&[]).1["stages"], Value::Array(Vec::new()));
    assert_snapshot!(text + &other);
}

/// A packet that a card's driver hands up, and that is dropped at once.
fn arriving(handled: u64, raised: u64) -> Journey {
    let led = |row: JourneyRow| JourneyRow {
        interrupt_at: SECOND + handled,
        interrupt: 27,
        flags: row.flags | ROW_RAISED_BY_INTERRUPT,
        raised_at: SECOND + raised,
        softirq_at: SECOND + 5_000,
        ..in_softirq(row)
    };
    let start = JourneyStart { direction: Direction::In as u8, ..beginning() };
    let dropped = JourneyRow { flags: ROW_DROP, ..row(11_500, PLACE_DROP) };
    shown(start, &[led(row(9_000, PLACE_GRO_RECEIVE)), led(row(11_000, TCP_RCV)), led(dropped)])
        .expect("it has ended")
}

#[test]
fn an_interrupt_and_the_softirq_that_it_raised_lead_to_a_packet() {
    let journey = arriving(1_000, 2_500);
    assert_snapshot!(as_text(&journey, 132));
    let mut out = Vec::new();
    json::write(&journey, clock(), Zone::UTC, &mut out);
    let value: Value = serde_json::from_slice(&out).expect("JSON");
    let first: Vec<_> = value["rows"].as_array().expect("rows")[..3]
        .iter()
        .map(|row| format!("{} {} {} {}", row["since_ns"], row["context"], row["function"], row["irq"]))
        .collect();
    let expected = [
        r#"-8000 "hardirq" "irq_handler_entry" "card-input.27""#,
        r#"-6500 "hardirq" "softirq_raise" null"#,
        r#"-4000 "softirq" "softirq_entry" null"#,
    ];
    assert_eq!(first, expected);
    // It is in the events too, on the track of the interrupts.
    let events = events(&[journey]);
    check_events(&events);
    let event = events.as_array().expect("events").iter().find(|event| event["name"] == "irq_handler_entry");
    let event = event.expect("the interrupt");
    assert_eq!((event["tid"].as_u64(), event["args"]["irq"].as_str()), (Some(3), Some("card-input.27")));
}

#[test]
fn an_interrupt_that_cannot_have_raised_the_softirq_is_left_out() {
    let names =
        |journey: &Journey| functions(journey).iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let way = ["softirq_raise", "softirq_entry", "napi_gro_receive_entry", "tcp_v4_rcv", "kfree_skb"];
    assert_eq!(names(&arriving(2_600, 2_500)), way);
    // Nor is there a softirq that was raised after it began.
    assert_eq!(names(&arriving(1_000, 5_100)), way[1..]);
}

#[test]
fn a_packet_among_too_many_on_a_socket_is_given_up() {
    let mut rows = read()[..7].to_vec();
    rows[6].flags = ROW_UNWATCHED;
    let (_, ended) = assembled(beginning(), &rows, &PacketFilter::default(), Pick::Any);
    assert!(matches!(ended[..], [(ID, End::Unwatched)]));
}

fn any_row() -> impl Strategy<Value = JourneyRow> {
    let place = proptest::sample::select(vec![
        SENDMSG,
        TRANSMIT,
        TCP_RCV,
        RELEASE,
        PLACE_DROP,
        PLACE_TAKEN,
        PLACE_WAKING,
        0,
        63,
        64,
        100,
        5_000,
        u64::MAX,
    ]);
    let times = (0..SECOND * 3, 0..SECOND * 3, 0..SECOND * 3, 0..SECOND * 3);
    (place, times, any_name(), any_name(), any::<(u8, u8, u16)>(), 0..4u64).prop_map(
        |(place, (at, softirq_at, raised_at, interrupt_at), comm, device, (flags, context, cpu), skb)| {
            let fixed = |text: &[u8]| name(&text[..text.len().min(15)]);
            JourneyRow {
                at,
                place,
                softirq_at,
                raised_at,
                interrupt_at,
                comm: fixed(&comm),
                device: fixed(&device),
                flags,
                context: context % 5,
                cpu,
                skb,
                ..row(0, 0)
            }
        },
    )
}

proptest! {
    #[test]
    fn whatever_comes_adds_up_and_can_be_written(rows in proptest::collection::vec(any_row(), 1..40)) {
        let (mut assembler, mut ended) = assembled(beginning(), &rows, &PacketFilter::default(), Pick::Any);
        ended.extend(assembler.ended(0, true, &names()));
        prop_assert_eq!(ended.len(), 1);
        if let Some((_, End::Shown(journey))) = ended.pop() {
            prop_assert!(journey.rows.iter().map(|row| row.at).is_sorted());
            let sum: u64 = journey.stages().iter().map(|(_, ns)| ns).sum();
            prop_assert_eq!(sum, journey.total());
            let (_, object) = summed_up(&[(*journey).clone(), (*journey).clone()]);
            let of = |field: &str| {
                let stages = object["stages"].as_array().expect("stages");
                stages.iter().filter_map(|stage| stage[field].as_u64()).sum::<u64>()
            };
            prop_assert_eq!(of("longest_of"), if sum > 0 { 2 } else { 0 });
            prop_assert!(of("share") <= 100 + of("packets"));
            let text = as_text(&journey, 100);
            prop_assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{:?}", text);
            prop_assert_eq!(text.lines().filter(|line| line.ends_with(['*', '<'])).count() >= journey.rows.len(), true);
            let mut out = Vec::new();
            json::write(&journey, clock(), Zone::UTC, &mut out);
            let value: Value = serde_json::from_slice(&out).expect("JSON");
            prop_assert_eq!(value["rows"].as_array().map(Vec::len), Some(journey.rows.len()));
            check_events(&events(&[*journey]));
        }
    }
}

#[test]
fn of_those_that_are_dropped_none_is_shown_that_was_read() {
    let dropped = [row(0, SENDMSG), JourneyRow { flags: ROW_DROP, ..row(5_000, PLACE_DROP) }];
    for (rows, is_drop) in [(&read()[..], false), (&dropped, true)] {
        let (_, mut ended) = assembled(beginning(), rows, &PacketFilter::default(), Pick::Drops);
        assert_eq!(matches!(ended.pop(), Some((ID, End::Shown(_)))), is_drop);
    }
}

/// The journey of the process `pid`, which takes this long.
fn of(pid: u32, total_ns: u64) -> Journey {
    let mut journey = journey();
    let first = journey.rows[0].at;
    for row in &mut journey.rows {
        row.at = row.at.min(first);
        if let Context::Process { pid: known, .. } = &mut row.context {
            *known = pid;
        }
    }
    journey.rows.last_mut().expect("rows").at = first + total_ns;
    journey
}

#[test]
fn typical_packets_are_nearest_to_the_median_of_those_alike() {
    let mut sample = Sample::default();
    // Of 8 by one process, the median is 40; those of the other one are fewer, and slow.
    for total_ns in [10, 20, 30, 40, 42, 500, 600, 7_000] {
        assert!(!sample.add(of(11, total_ns)));
    }
    (0..7).for_each(|_| assert!(!sample.add(of(12, 9_000))));
    let typical = sample.choose(3).expect("there are some");
    let totals: Vec<_> = typical.journeys.iter().map(Journey::total).collect();
    assert_eq!((typical.of, typical.p50_ns, totals), (8, 40, vec![40, 42, 30]));
    assert!(Sample::default().choose(1).is_none());
}

#[test]
fn what_was_dropped_is_not_typical_and_enough_is_enough() {
    let mut sample = Sample::default();
    let lost = Journey { outcome: Outcome::Lost, ..of(11, 10) };
    assert!(!sample.add(lost.clone()));
    let is_full = (0..typical::MOST as u64).map(|ns| sample.add(of(11, 1_000 + ns))).collect::<Vec<_>>();
    assert_eq!(is_full.iter().filter(|is_full| **is_full).count(), 2);
    let typical = sample.choose(1).expect("there are some");
    assert_eq!((typical.of, typical.journeys.len()), (typical::MOST as u64 - 1, 1));
}
