//! Both forms, with counts as the kernel side keeps them.

use std::{collections::HashMap, iter::empty, time::Duration};

use insta::assert_snapshot;
use net_latency_common::{
    BUCKETS, CellKey, ConnectionKey, GroupBy, NEVER, PART_COPY, PART_CPU, PART_DRIVER, PART_GAP, PART_NET,
    PART_QDISC, PART_WAIT, ROW_TOTAL, ROWS, TRAFFIC_OUT, TRAFFIC_UDP, UNKNOWN, Unknown, bounds, bucket, row,
    without_rest,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    group::Names,
    json as form,
    model::{Counts, groups, reasons, stages},
    page::Page,
    text,
};
use crate::{
    accounting::{
        Balance, Ledger, Losses,
        object::{Kind, Object, View, tests::valid},
    },
    clock::Zone,
    output::{schema, write_json},
    packet::event::fixtures::WALL_NS,
};

const SCHEMA: &str = include_str!("../../../../docs/hist.schema.json");

/// Packets of a group whose stages take so long, unknown where 0.
fn packets(group: u64, way: u32, times: [u64; 3], count: u64) -> Vec<(CellKey, u64)> {
    let cell = |ns: u64| if ns == 0 { UNKNOWN + Unknown::NoStamp as usize } else { bucket(ns) };
    let total = if times.contains(&0) { 0 } else { times.iter().sum() };
    let rows = times.into_iter().chain([total]).zip(0..);
    rows.map(|(ns, number)| {
        (CellKey { group: [group, 0], row: row(way, number), cell: cell(ns) as u32 }, count)
    })
    .collect()
}

fn sorted(parts: impl IntoIterator<Item = Vec<(CellKey, u64)>>) -> Counts {
    let mut counts: Counts = Vec::new();
    for (key, count) in parts.into_iter().flatten() {
        match counts.iter_mut().find(|(other, _)| *other == key) {
            Some((_, sum)) => *sum += count,
            None => counts.push((key, count)),
        }
    }
    counts.sort_by_key(|(key, _)| (key.group, key.row, key.cell));
    counts
}

fn page(by: GroupBy, counts: &Counts, top: usize) -> Page {
    let process = |[pid, _]: [u64; 2]| match pid {
        19550 => Some(*b"firefox\0\0\0\0\0\0\0\0\0"),
        20 => Some(*b"\x1b[2J,PID 1|\\x\xff\0\0"),
        _ => None,
    };
    let ends = ConnectionKey([0, ConnectionKey::V4, ConnectionKey::rest([443, 40_000], 5)]);
    let mut names = Names::new(by, &[], &process, None, HashMap::from([(77, ends)]));
    let groups = groups(counts, top).into_iter().map(|group| {
        let id = group.id;
        (group, names.identity(id))
    });
    Page {
        from_ns: WALL_NS,
        to_ns: WALL_NS + 10_000_000_000,
        zone: Zone::UTC,
        histogram: true,
        is_whole: true,
        uncounted: 0,
        by,
        groups: groups.collect(),
    }
}

fn by_stage() -> Page {
    let counts = sorted([
        packets(0, 0, [900, 2_000, 30_000], 1_000),
        packets(0, 0, [1_000, 2_500, 20_000_000], 3),
        packets(0, 0, [0, 0, 7], 2),
        packets(0, TRAFFIC_OUT, [3_000, 7_000, 2_000], 50),
        packets(0, TRAFFIC_UDP, [3_000, 7_000, 1 << 50], 1),
    ]);
    page(GroupBy::Stage, &counts, 10)
}

/// A page with parts: where a time is 0, it is [`Unknown`] for a reason.
fn fine() -> Page {
    let part = |way, part: usize, ns: u64, count| {
        let cell = if ns == 0 { UNKNOWN + Unknown::Unacknowledged as usize } else { bucket(ns) };
        (CellKey { group: [0; 2], row: row(way, ROWS + part as u32), cell: cell as u32 }, count)
    };
    let parts = vec![
        part(0, PART_GAP, 1, 1_000),
        part(0, PART_WAIT, 21_000, 1_000),
        part(0, PART_CPU, 5_000, 1_000),
        part(0, PART_COPY, 4_000, 1_000),
        part(TRAFFIC_OUT, PART_QDISC, 300, 50),
        part(TRAFFIC_OUT, PART_DRIVER, 4_000, 50),
        part(TRAFFIC_OUT, PART_NET, 40_000_000, 48),
        part(TRAFFIC_OUT, PART_NET, 0, 2),
        part(TRAFFIC_UDP, PART_WAIT, 9_000, 1),
    ];
    let counts = sorted([
        packets(0, 0, [900, 2_000, 30_000], 1_000),
        packets(0, TRAFFIC_OUT, [3_000, 7_000, 2_000], 50),
        packets(0, TRAFFIC_UDP, [3_000, 7_000, 9_000], 1),
        parts,
    ]);
    page(GroupBy::Stage, &counts, 10)
}

fn by_pid() -> Page {
    let counts = sorted([
        packets(19550, 0, [900, 2_000, 30_000], 1_000),
        packets(19550, TRAFFIC_OUT, [3_000, 7_000, 2_000], 1_001),
        packets(20, 0, [1_000, 2_500, 20_000_000], 3),
        packets(0, TRAFFIC_OUT, [0, 2_500, 20_000], 7),
        packets(7, 0, [1_000, 2_500, 2_000], 4),
        packets(8, TRAFFIC_UDP, [1_000, 2_500, 2_000], 5),
    ]);
    page(GroupBy::Pid, &counts, 3)
}

fn text(page: &Page) -> String {
    let mut out = Vec::new();
    text::write(page, &mut out);
    let text = String::from_utf8(out).expect("printable");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    text
}

fn in_json(page: &Page) -> String {
    let mut out = Vec::new();
    form::write(page, &mut out);
    String::from_utf8(out).expect("JSON is UTF-8")
}

#[test]
fn stages_are_drawn_to_read() {
    assert_snapshot!(text(&by_stage()));
}

#[test]
fn parts_stand_below_what_they_split_or_follow() {
    assert_snapshot!(text(&Page { histogram: false, ..fine() }));
}

#[test]
fn groups_are_drawn_to_read() {
    assert_snapshot!(text(&by_pid()));
}

#[test]
fn a_table_alone_is_what_comes_before_the_histograms() {
    for page in [by_stage(), by_pid()] {
        let table = text(&Page { histogram: false, ..page.clone() });
        assert!(text(&page).starts_with(table.trim_end()) && !table.contains('@'), "{table}");
        assert_eq!(in_json(&Page { histogram: false, ..page.clone() }), in_json(&page));
    }
}

#[test]
fn nothing_counted_is_said() {
    let page = Page { is_whole: false, ..page(GroupBy::Pid, &Counts::new(), 10) };
    assert_snapshot!(text(&page));
    assert_snapshot!(in_json(&page));
}

#[test]
fn what_found_no_room_is_said_first() {
    let page = Page { uncounted: 123_456, ..by_pid() };
    let text = text(&page);
    let second = text.lines().nth(1).expect("a second line");
    assert!(second.starts_with("Not in it: 123456 packets whose group found no room"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(in_json(&page).contains("\"uncounted\":123456,"), "{}", in_json(&page));
}

#[test]
fn control_packets_count_without_a_time() {
    let never = CellKey { group: [0; 2], row: row(0, ROW_TOTAL), cell: NEVER as u32 };
    let page = page(GroupBy::Stage, &vec![(never, 5)], 10);
    assert!(text(&page).contains(": 5 packets in, 0 out\n"), "{}", text(&page));
    assert!(in_json(&page).contains("\"packets\":5,"), "{}", in_json(&page));
}

#[test]
fn json_has_every_bucket() {
    assert_snapshot!("json_by_stage", in_json(&by_stage()));
    assert_snapshot!("json_by_pid", in_json(&by_pid()));
}

/// A page by each kind of group.
fn pages() -> Vec<Page> {
    let name = u64::from_ne_bytes(*b"curl\0\0\0\0");
    let by = [
        (GroupBy::Comm, name),
        (GroupBy::Port, 443),
        (GroupBy::Connection, 77),
        (GroupBy::Connection, 78),
        (GroupBy::Host, 1),
        (GroupBy::Interface, 5),
        (GroupBy::Cgroup, u64::MAX),
    ];
    let others = by.map(|(by, group)| page(by, &packets(group, TRAFFIC_OUT, [1, 2, 3], 4), 10));
    [by_stage(), by_pid(), fine()].into_iter().chain(others).collect()
}

#[test]
fn the_schema_describes_what_is_written() {
    let schema: Value = serde_json::from_str(SCHEMA).expect("the schema is JSON");
    for page in pages() {
        let text = in_json(&page);
        let value: Value = serde_json::from_str(&text).expect("valid JSON");
        schema::check(&schema, &value).unwrap_or_else(|error| panic!("{error}"));
        let histogram = &value["histograms"][0];
        let described = &schema["properties"]["histograms"]["items"];
        for (object, described) in [(&value, &schema), (histogram, described)] {
            let names =
                |value: &Value| value.as_object().map(|fields| fields.keys().cloned().collect::<Vec<_>>());
            assert_eq!(
                names(object),
                names(&described["properties"]),
                "fields that are not described, or not written"
            );
            for name in names(object).into_iter().flatten() {
                let mut wrong = object.clone();
                wrong[&name] = json!(-1);
                assert!(schema::check(described, &wrong).is_err(), "{name} of -1");
                wrong.as_object_mut().expect("an object").remove(&name);
                assert!(schema::check(described, &wrong).is_err(), "without {name}");
            }
        }
        let mut wrong = histogram.clone();
        wrong["group"] = json!({ "nobody": 1 });
        assert!(schema::check(described, &wrong).is_err(), "a group of another kind");
    }
}

proptest! {
    #[test]
    fn every_time_is_within_its_bucket(ns in prop_oneof![0..100u64, 0..u64::MAX, 0..1u64 << 43]) {
        let number = bucket(ns);
        prop_assert!(number < BUCKETS);
        let (start, end) = bounds(number);
        prop_assert!(start <= ns && ns < end, "{ns} in [{start}, {end})");
        if ns < 1 << 42 {
            prop_assert!(end - start <= (start / 8).max(1), "[{start}, {end}) is wide");
        }
    }

    #[test]
    fn a_longer_time_is_in_no_earlier_bucket(one in 0..1u64 << 43, other in 0..1u64 << 43) {
        prop_assert!(bucket(one.min(other)) <= bucket(one.max(other)));
    }

    #[test]
    fn what_is_behind_a_name_does_not_count(name in proptest::collection::vec(1..=255u8, 0..16), rest: [u8; 16]) {
        let words = |bytes: [u8; 16]| [0, 8].map(|at| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8")));
        let (mut clean, mut dirty) = ([0; 16], rest);
        clean[..name.len()].copy_from_slice(&name);
        dirty[..name.len()].copy_from_slice(&name);
        dirty[name.len()] = 0;
        prop_assert_eq!(without_rest(words(dirty)), words(clean));
    }
}

#[test]
fn buckets_follow_each_other() {
    assert_eq!(bounds(0), (0, 1));
    for number in 1..BUCKETS {
        let (start, end) = bounds(number);
        assert_eq!(bounds(number - 1).1, start);
        assert_eq!((bucket(start), bucket(end - 1)), (number, number));
    }
    assert_eq!(bounds(BUCKETS - 1), (1 << 42, u64::MAX));
}

#[test]
fn the_footer_has_every_unknown_time_with_its_reason() {
    let mut counts =
        sorted([packets(1, 0, [5, 0, 7], 2), packets(2, TRAFFIC_UDP | TRAFFIC_OUT, [1, 2, 3], 4)]);
    counts.push((
        CellKey {
            group: [3, 0],
            row: row(TRAFFIC_OUT, 0),
            cell: (UNKNOWN + Unknown::WriteUnseen as usize) as u32,
        },
        6,
    ));
    let all = groups(&counts, 0);
    let ledger = Ledger { seen: 12, shown: 12, ..Ledger::default() };
    let losses = Losses::default();
    let balance = Balance {
        packets: [2, 10],
        elapsed: Duration::from_secs(1),
        losses: &losses,
        ledger: &ledger,
        cost: None,
    };
    let mut out = Vec::new();
    let object = Object::new(Kind::End, View::Hist, &balance, stages(&all), empty(), Zone::UTC);
    write_json(&object, &mut out);
    let object = valid(&String::from_utf8(out).expect("JSON is UTF-8"));
    let unknown = &object["unknown_stages"];
    // One stage and the total of 2 packets, and one stage of 6.
    assert_eq!((&unknown["no_stamp"], &unknown["write_unseen"]), (&json!(4), &json!(6)));
    let mut text = Vec::new();
    reasons(&groups(&counts, usize::MAX)).write(&mut text).expect("memory can be written");
    let text = String::from_utf8(text).expect("ASCII");
    assert!(text.contains("  4 unknown, ") && text.contains("  6 unknown, "), "{text}");
}
