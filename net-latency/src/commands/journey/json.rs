//! A packet's way as a JSON object a line.

use serde::Serialize;

use super::model::{Context, Journey, Outcome};
use crate::{
    clock::{Clock, Zone, rfc3339},
    escape::lossy,
    output::write_json,
};

#[derive(Serialize)]
struct Object<'a> {
    ts: String,
    proto: &'a str,
    dir: &'a str,
    saddr: String,
    sport: u16,
    daddr: String,
    dport: u16,
    len: u32,
    seq: Option<u32>,
    mark: u32,
    outcome: &'a str,
    pid: Option<u32>,
    comm: Option<String>,
    drop_function: Option<&'a str>,
    drop_reason: Option<&'a str>,
    total_ns: u64,
    rows: Vec<Place<'a>>,
    stages: Vec<Stage<'a>>,
    longest: Option<Longest<'a>>,
}

#[derive(Serialize)]
struct Place<'a> {
    since_ns: i64,
    delta_ns: Option<u64>,
    cpu: u16,
    context: &'a str,
    pid: Option<u32>,
    tid: Option<u32>,
    comm: Option<String>,
    function: &'a str,
    ifname: Option<String>,
    netns: Option<u32>,
    irq: Option<&'a str>,
}

#[derive(Serialize)]
struct Stage<'a> {
    stage: &'a str,
    ns: u64,
}

#[derive(Serialize)]
struct Longest<'a> {
    ns: u64,
    from: &'a str,
    to: &'a str,
    stage: &'a str,
}

/// Appends a packet's way as a line.
pub(super) fn write(journey: &Journey, clock: Clock, zone: Zone, out: &mut Vec<u8>) {
    let (first, _) = journey.span();
    let (pid, comm) = match &journey.outcome {
        Outcome::Read { comm, pid } => (Some(*pid), Some(lossy(comm))),
        _ => (None, None),
    };
    let (drop_function, drop_reason) = match &journey.outcome {
        Outcome::Dropped { function, reason } => (function.as_deref(), reason.as_deref()),
        _ => (None, None),
    };
    let mut previous = None;
    let rows = journey.rows.iter().map(|row| {
        let delta_ns = previous.replace(row.at).map(|previous| row.at - previous);
        let (pid, tid, comm) = match &row.context {
            Context::Process { comm, pid, tid } => (Some(*pid), Some(*tid), Some(lossy(comm))),
            _ => (None, None, None),
        };
        Place {
            since_ns: row.at.cast_signed() - first.cast_signed(),
            delta_ns,
            cpu: row.cpu,
            context: row.context.kind(),
            pid,
            tid,
            comm,
            function: &row.function,
            ifname: (!row.device.is_empty()).then(|| lossy(&row.device)),
            netns: (row.netns != 0).then_some(row.netns),
            irq: row.interrupt.as_deref(),
        }
    });
    let object = Object {
        ts: rfc3339(clock.to_utc_ns(first), zone),
        proto: journey.protocol.name(),
        dir: crate::packet::stages::dir(journey.direction),
        saddr: journey.source.0.to_string(),
        sport: journey.source.1,
        daddr: journey.destination.0.to_string(),
        dport: journey.destination.1,
        len: journey.len,
        seq: journey.seq,
        mark: journey.mark,
        outcome: journey.outcome.kind(),
        pid,
        comm,
        drop_function,
        drop_reason,
        total_ns: journey.total(),
        rows: rows.collect(),
        stages: journey.stages().into_iter().map(|(stage, ns)| Stage { stage: stage.name(), ns }).collect(),
        longest: journey.longest().map(|gap| Longest {
            ns: gap.ns,
            from: &journey.rows[gap.to - 1].function,
            to: &journey.rows[gap.to].function,
            stage: gap.stage.name(),
        }),
    };
    write_json(&object, out);
}
