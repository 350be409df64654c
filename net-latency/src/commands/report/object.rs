//! The report as one JSON object. Unknown is `null`.

use std::collections::BTreeMap;
use std::hash::Hash;

use net_latency_common::Direction;
use serde::{Serialize, Serializer};

use super::findings::Report;
use super::table::{Entry, Others, Table};
use super::time::show;
use crate::accounting::{self as summary, Figures, Percentiles, Times, dominant, meaning, tcp::Tcp};
use crate::diagnosis::{Verdict, json};
use crate::escape::lossy;
use crate::output;
use crate::packet::event::{COLUMNS, FLAGS, Protocol};
use crate::packet::stages::columns;
use crate::packet::stages::dir;
use crate::request::ReportConfig;

const RFC3339: &str = "%Y-%m-%dT%H:%M:%S%.9f%:z";

/// Appends the object and a newline.
pub(super) fn write(report: &Report, config: &ReportConfig, out: &mut Vec<u8>) {
    output::write_json(&object(report, config), out);
}

#[derive(Serialize)]
struct Object<'a> {
    files: usize,
    packets: u64,
    filtered: u64,
    skipped_lines: u64,
    first_skipped: Option<SkippedLine<'a>>,
    unended_files: u64,
    damaged_files: &'a [String],
    first_ts: Option<String>,
    last_ts: Option<String>,
    flags: BTreeMap<&'static str, u64>,
    stages: Vec<Stage>,
    processes: Rows<'a>,
    connections: Rows<'a>,
    slowest: Vec<Slow>,
    timeline: Timeline,
    /// What makes it slow, as `diagnose` says it; `null` where that can't be judged.
    diagnosis: Option<Diagnosis>,
}

/// As `diagnose` writes it.
struct Diagnosis(Verdict);

impl Serialize for Diagnosis {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        json::object(&self.0).serialize(serializer)
    }
}

#[derive(Serialize)]
struct SkippedLine<'a> {
    file: &'a str,
    line: u64,
    reason: &'static str,
}

#[derive(Serialize)]
struct Stage {
    dir: &'static str,
    proto: &'static str,
    stage: String,
    count: u64,
    unknown: u64,
    min_ns: Option<u64>,
    p50_ns: Option<u64>,
    p90_ns: Option<u64>,
    p99_ns: Option<u64>,
    #[serde(rename = "p99.9_ns")]
    p999_ns: Option<u64>,
    max_ns: Option<u64>,
}

#[derive(Serialize)]
struct Rows<'a> {
    /// `null` if there are more than can be told apart.
    count: Option<usize>,
    top: Vec<Row<'a>>,
    others: OtherRows,
}

#[derive(Serialize)]
struct Row<'a> {
    #[serde(flatten)]
    connection: Option<Ends>,
    pid: Option<u32>,
    process: Option<&'a str>,
    /// Its `process`, for programs that don't know that key.
    comm: Option<&'a str>,
    packets: u64,
    /// Some of its packets may be among the others.
    incomplete: bool,
    bytes: u64,
    time_ns: u64,
    p50_ns: Option<u64>,
    p99_ns: Option<u64>,
    max_ns: Option<u64>,
    dominant: Option<Dominant>,
    /// `null` of UDP.
    tcp: Option<&'a Tcp>,
}

#[derive(Serialize)]
struct Ends {
    proto: &'static str,
    netns: Option<u32>,
    local: String,
    remote: String,
}

#[derive(Serialize)]
struct Dominant {
    dir: &'static str,
    stage: String,
    percent: u64,
}

#[derive(Serialize)]
struct OtherRows {
    packets: u64,
    time_ns: u64,
}

#[derive(Serialize)]
struct Slow {
    ts: Option<String>,
    dir: &'static str,
    proto: &'static str,
    pid: Option<u32>,
    process: Option<String>,
    comm: Option<String>,
    source: Option<String>,
    destination: Option<String>,
    #[serde(serialize_with = "as_map")]
    stages: [(String, Option<u64>); COLUMNS],
    total_ns: Option<u64>,
    dominant: Option<String>,
    hint: Option<&'static str>,
}

fn as_map<S: Serializer>(pairs: &[(String, Option<u64>)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(pairs.iter().map(|(name, ns)| (name, ns)))
}

#[derive(Serialize)]
struct Timeline {
    width_ns: i64,
    slices: Vec<Slice>,
}

#[derive(Serialize)]
struct Slice {
    ts: String,
    #[serde(rename = "in")]
    incoming: Latency,
    out: Latency,
}

#[derive(Serialize)]
struct Latency {
    packets: u64,
    p50_ns: Option<u64>,
    p99_ns: Option<u64>,
    max_ns: Option<u64>,
}

fn object<'a>(report: &'a Report, config: &ReportConfig) -> Object<'a> {
    let log = &report.log;
    let ts = |wall_ns| show(wall_ns, report.offset_s, RFC3339);
    Object {
        files: log.files,
        packets: report.packets,
        filtered: log.lines - report.packets,
        skipped_lines: log.skipped,
        first_skipped: log.first_skipped.as_ref().map(|(file, line, skipped)| SkippedLine {
            file,
            line: *line,
            reason: skipped.reason(),
        }),
        unended_files: log.unended,
        damaged_files: &log.damaged,
        first_ts: report.span.map(|(first, _)| ts(first)),
        last_ts: report.span.map(|(_, last)| ts(last)),
        flags: FLAGS.into_iter().zip(report.flags).map(|((name, _), count)| (name, count)).collect(),
        stages: stages(report),
        processes: rows(&report.processes, config.top, |_| None),
        connections: rows(&report.connections, config.top, |connection| {
            Some(Ends {
                proto: connection.protocol.name(),
                netns: (connection.netns != 0).then_some(connection.netns),
                local: connection.local.to_string(),
                remote: connection.remote.to_string(),
            })
        }),
        slowest: report.worst.packets().map(|packet| slow(&packet, report.offset_s)).collect(),
        timeline: Timeline {
            width_ns: report.timeline.width_ns(),
            slices: report
                .timeline
                .slices()
                .map(|(start, slice)| Slice {
                    ts: ts(start),
                    incoming: latency(&slice.incoming),
                    out: latency(&slice.outgoing),
                })
                .collect(),
        },
        diagnosis: report.verdict().map(Diagnosis),
    }
}

/// The name of a stage's field in the logs, without its unit.
fn field(column: &str) -> String {
    column.replace('-', "_")
}

fn stages(report: &Report) -> Vec<Stage> {
    let seen = report.stages.ways().filter(|(_, _, way)| way.packets > 0);
    seen.flat_map(|(direction, protocol, way)| {
        let names = columns(direction, protocol).into_iter().chain(["total"]);
        let times = way.columns.iter().chain([&way.total]);
        names.zip(times).map(move |(name, times)| stage(direction, protocol, name, times))
    })
    .collect()
}

fn stage(direction: Direction, protocol: Protocol, name: &str, times: &Times) -> Stage {
    let Figures { count, min_ns, percentiles, unknown, .. } = times.figures();
    let Percentiles { p50_ns, p90_ns, p99_ns, p999_ns, max_ns } = percentiles;
    Stage {
        dir: dir(direction),
        proto: protocol.name(),
        stage: field(name),
        count,
        unknown,
        min_ns,
        p50_ns,
        p90_ns,
        p99_ns,
        p999_ns,
        max_ns,
    }
}

fn rows<'a, K: Copy + Ord + Hash>(
    table: &'a Table<K>,
    top: usize,
    ends: impl Fn(&K) -> Option<Ends>,
) -> Rows<'a> {
    let (rows, others) = table.top(top);
    let Others { lines, time_ns } = others;
    Rows {
        count: table.count(),
        top: rows.into_iter().map(|(key, entry)| row(ends(&key), entry)).collect(),
        others: OtherRows { packets: lines, time_ns: whole(time_ns) },
    }
}

fn row(connection: Option<Ends>, entry: &Entry) -> Row<'_> {
    let Latency { packets: _, p50_ns, p99_ns, max_ns } = latency(&entry.total);
    Row {
        connection,
        pid: entry.pid,
        process: entry.name.as_deref(),
        comm: entry.name.as_deref(),
        packets: entry.lines,
        incomplete: entry.is_rest,
        bytes: entry.bytes,
        time_ns: whole(entry.time_ns),
        p50_ns,
        p99_ns,
        max_ns,
        dominant: entry.dominant().map(|(direction, stage, percent)| Dominant {
            dir: dir(direction),
            stage: field(stage),
            percent,
        }),
        tcp: entry.tcp.seen(),
    }
}

fn whole(ns: u128) -> u64 {
    u64::try_from(ns).unwrap_or(u64::MAX)
}

fn latency(times: &Times) -> Latency {
    Latency {
        packets: times.count(),
        p50_ns: times.quantile(500),
        p99_ns: times.quantile(990),
        max_ns: times.max(),
    }
}

fn slow(packet: &summary::Packet<'_>, offset_s: i32) -> Slow {
    let stage = dominant(packet).map(|(column, _)| meaning(packet, column));
    let names = columns(packet.direction, packet.protocol);
    Slow {
        ts: packet.wall_ns.map(|wall_ns| show(wall_ns, offset_s, RFC3339)),
        dir: dir(packet.direction),
        proto: packet.protocol.name(),
        pid: packet.pid,
        process: packet.process.map(lossy),
        comm: packet.comm.map(lossy),
        source: packet.ends.map(|[source, _]| source.to_string()),
        destination: packet.ends.map(|[_, destination]| destination.to_string()),
        stages: std::array::from_fn(|column| (format!("{}_ns", field(names[column])), packet.stages[column])),
        total_ns: packet.total,
        dominant: stage.map(|(name, _)| field(name)),
        hint: stage.map(|(_, hint)| hint),
    }
}
