//! Lines and footers of connections.

use insta::assert_snapshot;
use net_latency_common::{
    AF_INET, AF_INET6, CONNECTION_CLIENT, CONNECTION_LOCAL_FIRST, CONNECTION_OPEN, CONNECTION_PEER_FIRST,
    CONNECTION_SERVER, CONNECTION_UNSEEN, ConnectionRecord, ListenerRecord,
};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;
use crate::{
    output::{schema, tests::any_name},
    packet::event::fixtures::comm,
    written,
};

const STARTED: u64 = 1_000_000_000;

fn client() -> ConnectionRecord {
    ConnectionRecord {
        at_ns: STARTED + 1_234_567_890,
        started_ns: STARTED,
        established_ns: STARTED + 12_345_678,
        first_in_ns: STARTED + 32_000_000,
        first_out_ns: STARTED + 12_400_000,
        bytes_in: 123_456,
        bytes_out: 321,
        local: address_of([192, 0, 2, 10]),
        remote: address_of([198, 51, 100, 20]),
        comm: comm(b"Socket Thread"),
        process: comm(b"firefox"),
        pid: 19_550,
        tid: 19_561,
        netns: 4_026_531_840,
        segs_in: 90,
        segs_out: 12,
        retrans: 1,
        srtt: 96_000,
        min_rtt_us: 11_800,
        flags: CONNECTION_CLIENT | CONNECTION_PEER_FIRST,
        local_port: 51_324,
        remote_port: 443,
        family: AF_INET as u8,
        state: 9,
        ..ConnectionRecord::default()
    }
}

fn address_of(bytes: [u8; 4]) -> [u8; 16] {
    let mut address = [0; 16];
    address[..4].copy_from_slice(&bytes);
    address
}

/// A client, a server of IPv6 that is open, one that was refused, and one that is older than tracing.
fn records() -> [ConnectionRecord; 4] {
    let server = ConnectionRecord {
        accepted_ns: STARTED + 400_000_000,
        local: [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
        remote: [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2],
        family: AF_INET6 as u8,
        process: comm(b"nginx"),
        comm: comm(b"nginx"),
        pid: 812,
        tid: 812,
        local_port: 443,
        remote_port: 40_000,
        flags: CONNECTION_SERVER | CONNECTION_OPEN,
        state: 1,
        ..client()
    };
    let refused = ConnectionRecord {
        established_ns: 0,
        bytes_in: 0,
        bytes_out: 0,
        srtt: 0,
        min_rtt_us: u32::MAX,
        segs_in: 1,
        segs_out: 1,
        error: libc::ECONNREFUSED as u32,
        flags: CONNECTION_CLIENT,
        state: 2,
        ..client()
    };
    let unseen = ConnectionRecord {
        started_ns: 0,
        established_ns: 0,
        first_in_ns: 0,
        first_out_ns: 0,
        pid: 0,
        tid: 0,
        process: comm(b""),
        comm: comm(b""),
        flags: CONNECTION_UNSEEN | CONNECTION_LOCAL_FIRST,
        state: 5,
        ..client()
    };
    [client(), server, refused, unseen]
}

fn line_of(record: &ConnectionRecord) -> Line {
    line::line(record, Clock::at(1_700_000_000_000_000_000), &mut Names::default())
}

fn text(format: LineFormat, is_verbose: bool) -> String {
    let mut form = Form::new(format, is_verbose, Zone::UTC);
    let mut out = header(format).to_vec();
    for record in records() {
        form.write(&line_of(&record), &mut out);
    }
    String::from_utf8(out).expect("UTF-8")
}

#[test]
fn connections_in_each_form() {
    let forms = [
        (LineFormat::Text, false),
        (LineFormat::Text, true),
        (LineFormat::Json, false),
        (LineFormat::Csv, false),
    ];
    assert_snapshot!(forms.map(|(format, is_verbose)| text(format, is_verbose)).join("\n"));
}

#[test]
fn a_line_of_ipv4_fits_120_columns() {
    let widest = ConnectionRecord {
        local: address_of([192, 168, 100, 100]),
        remote: address_of([192, 168, 100, 100]),
        process: comm(b"fifteen_letters"),
        pid: 4_194_304,
        accepted_ns: STARTED + 999_000_000,
        bytes_in: 999_000,
        bytes_out: 999_000_000,
        flags: CONNECTION_SERVER | CONNECTION_PEER_FIRST,
        ..client()
    };
    let mut out = Vec::new();
    text::write(&line_of(&widest), false, &mut TimeText::new(Zone::UTC, TimeStyle::Calendar), &mut out);
    assert!(out.len() <= 121, "{}", String::from_utf8_lossy(&out));
}

#[test]
fn what_is_asked_for_is_shown_alone() {
    let config = |failed, slower| ConnectionsConfig {
        filter: Default::default(),
        input: ConnectionsInput::Logs(vec![]),
        failed,
        slower,
        interval: None,
        format: LineFormat::Text,
        output: None,
        zone: Zone::UTC,
        verbose: false,
        quiet: false,
        footer: FooterFormat::Text,
        duration: None,
        count: None,
    };
    let shown = |failed, ms: Option<u64>| {
        let config = config(failed, ms.map(Duration::from_millis));
        records().map(|record| is_wanted(&config, &line_of(&record)))
    };
    assert_eq!(shown(false, None), [true; 4]);
    assert_eq!(shown(true, None), [false, false, true, false]);
    // A handshake of 12.3 ms each, and one was accepted 388 ms later.
    assert_eq!(shown(false, Some(12)), [true, true, false, false]);
    assert_eq!(shown(false, Some(13)), [false, true, false, false]);
    assert_eq!(shown(true, Some(12)), [false; 4]);
}

fn totals() -> Totals {
    let mut totals = Totals::default();
    for record in records() {
        totals.add(&line_of(&record));
    }
    let listener = ListenerRecord {
        accepted: 7,
        process: comm(b"nginx"),
        pid: 812,
        netns: 4_026_531_840,
        waiting: 3,
        most_waiting: 129,
        backlog: 128,
        port: 443,
        family: AF_INET6 as u8,
        ..ListenerRecord::default()
    };
    // Two of a group, one of which was closed; and one that had no connection.
    totals.listener(&listener);
    let closed =
        ListenerRecord { socket: 1, accepted: 5, overflows: 20, drops: 21, is_closed: 1, ..listener };
    // It was asked about just before, and is one socket.
    totals.listener(&ListenerRecord { is_closed: 0, ..closed });
    totals.listener(&closed);
    totals.listener(&ListenerRecord { socket: 2, port: 80, accepted: 0, waiting: 0, ..listener });
    totals
}

fn footer(totals: &Totals) -> Footer<'_> {
    Footer {
        totals,
        elapsed: Some(Duration::from_millis(10_040)),
        shown: 4,
        filtered: 1,
        counters: [2, 3, 4],
        unwritten: 5,
        skipped: None,
    }
}

#[test]
fn footers_tell_states_times_queues_and_losses() {
    let totals = totals();
    let mut out = Vec::new();
    footer(&totals).write(FooterFormat::Text, &mut out).expect("memory");
    footer(&totals).write(FooterFormat::Json, &mut out).expect("memory");
    let text = String::from_utf8(out).expect("UTF-8");
    assert_snapshot!(text);
}

#[test]
fn the_footer_is_as_described() {
    let described: Value =
        serde_json::from_str(include_str!("../../../../docs/footer.schema.json")).expect("JSON");
    let totals = totals();
    let mut out = Vec::new();
    footer(&totals).write(FooterFormat::Json, &mut out).expect("memory");
    let value: Value = serde_json::from_slice(&out).expect("JSON");
    assert_eq!(schema::check(&described, &value), Ok(()));
    for name in value.as_object().expect("an object").keys() {
        let mut wrong = value.clone();
        wrong.as_object_mut().expect("an object").remove(name);
        assert!(schema::check(&described, &wrong).is_err(), "without {name}");
    }
}

/// Any connection that the kernel side could tell of, and some that it could not.
fn any_record() -> impl Strategy<Value = ConnectionRecord> {
    let times = prop::array::uniform6(prop_oneof![Just(0), 1..10_000_000_000_u64]);
    let names = (any_name(), any_name());
    (times, names, any::<([u8; 16], [u8; 16], u16, u16, bool)>(), any::<[u32; 10]>(), any::<(u64, u64, u8)>())
        .prop_map(|(times, (thread, process), ends, numbers, (bytes_in, bytes_out, state))| {
            let [at_ns, started_ns, established_ns, accepted_ns, first_in_ns, first_out_ns] = times;
            let (local, remote, local_port, remote_port, is_v6) = ends;
            let [pid, tid, netns, mark, segs_in, segs_out, retrans, srtt, min_rtt_us, flags] = numbers;
            ConnectionRecord {
                at_ns,
                started_ns,
                established_ns,
                accepted_ns,
                first_in_ns,
                first_out_ns,
                bytes_in,
                bytes_out,
                local,
                remote,
                comm: comm(&thread),
                process: comm(&process),
                pid,
                tid,
                netns,
                mark,
                segs_in,
                segs_out,
                retrans,
                syn_retrans: retrans % 7,
                srtt,
                min_rtt_us,
                flags: flags & (CONNECTION_OPEN * 4 - 1),
                error: u32::from(state) % 3 * 52,
                local_port,
                remote_port,
                family: if is_v6 { AF_INET6 as u8 } else { AF_INET as u8 },
                state: state % 12,
                reserved: 0,
            }
        })
}

proptest! {
    #[test]
    fn what_is_written_reads_back(record in any_record()) {
        let line = line_of(&record);
        let mut time = TimeText::new(Zone::UTC, TimeStyle::Rfc3339);
        let mut out = Vec::new();
        line.write_json(&mut time, &mut out);
        prop_assert!(!String::from_utf8_lossy(&out[..out.len() - 1]).contains(char::is_control));
        let object: Map<String, Value> = serde_json::from_slice(&out).expect("JSON");
        prop_assert_eq!(schema::check(&described(), &Value::Object(object.clone())), Ok(()));
        let read = Line::read(|name| object.get(name).cloned()).expect("a line");
        let mut again = Vec::new();
        read.write_json(&mut time, &mut again);
        prop_assert_eq!(&out, &again);
        prop_assert_eq!(read.flags.words().collect::<Vec<_>>(), line.flags.words().collect::<Vec<_>>());

        let mut row = Vec::new();
        read.write_csv(&mut time, &mut row);
        prop_assert!(!String::from_utf8_lossy(&row[..row.len() - 1]).contains(char::is_control));
        let mut rows = replay::Rows::default();
        prop_assert!(rows.read(header(LineFormat::Csv).trim_ascii_end()).is_none());
        let read = rows.read(row.trim_ascii_end()).expect("no header").expect("a line");
        let mut again = Vec::new();
        read.write_json(&mut time, &mut again);
        prop_assert_eq!(String::from_utf8_lossy(&out), String::from_utf8_lossy(&again));

        // And for people it is one line, whatever the names.
        let mut columns = Vec::new();
        text::write(&line, true, &mut TimeText::new(Zone::UTC, TimeStyle::Calendar), &mut columns);
        let columns = String::from_utf8(columns).expect("UTF-8");
        prop_assert!(!columns[..columns.len() - 1].contains(char::is_control), "{}", columns);
    }
}

#[test]
fn fuzz_logs_of_connections() {
    let seeds = [LineFormat::Json, LineFormat::Csv].map(|format| text(format, false).into_bytes());
    crate::fuzz::run("logs of connections", 400, seeds, &["null", "\"", ",", "{}", "1e9"], |bytes| {
        let mut rows = replay::Rows::default();
        for text in bytes.split(|&byte| byte == b'\n') {
            if let Some(Ok(line)) = rows.read(text) {
                text::write(&line, true, &mut TimeText::new(Zone::UTC, TimeStyle::Calendar), &mut Vec::new());
            }
        }
    });
}

fn described() -> Value {
    let properties: Map<String, Value> = fields::documents()
        .into_iter()
        .map(|(name, mut kind, what)| {
            kind["description"] = json!(what);
            (name.to_owned(), kind)
        })
        .collect();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A line of `net-latency connections --format json`",
        "description": "Times are in ns, and null where unknown. CSV has the same fields as columns. Fields may be added, and are never renamed.",
        "type": "object",
        "properties": properties,
        "required": fields::NAMES,
    })
}

#[test]
fn documents_have_the_fields_of_connections() {
    let rows: String =
        fields::documents().iter().map(|(name, _, what)| format!("| `{name}` | {what} |\n")).collect();
    let page = written::read("connections.md");
    written::agrees("connections.md", &written::with_table(&page, "| field | is |\n|---|---|\n", &rows));
    written::agrees(
        "connections.schema.json",
        &(serde_json::to_string_pretty(&described()).expect("JSON") + "\n"),
    );
}
