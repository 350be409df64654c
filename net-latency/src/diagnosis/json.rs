//! The verdict as one JSON object; docs/diagnose.schema.json describes it. Unknown is `null`.

use serde::Serialize;

use super::{
    model::Processes,
    verdict::{Finding, Normal, Seen, Unsure, Verdict, Who},
};
use crate::{output::write_json, packet::stages::dir};

/// Appends it, and a newline.
pub(crate) fn write(verdict: &Verdict, out: &mut Vec<u8>) {
    let Verdict { findings, normal, unsure, seen } = verdict;
    let object = Object {
        findings: findings.iter().map(FindingObject::from).collect(),
        normal: normal.iter().map(NormalObject::from).collect(),
        unsure: unsure.iter().map(UnsureObject::from).collect(),
        seen: SeenObject::from(seen),
    };
    write_json(&object, out);
}

#[derive(Serialize)]
struct Object<'a> {
    findings: Vec<FindingObject<'a>>,
    normal: Vec<NormalObject<'a>>,
    unsure: Vec<UnsureObject<'a>>,
    seen: SeenObject,
}

#[derive(Default, Serialize)]
struct WhoObject {
    process: Option<String>,
    pid: Option<u32>,
    port: Option<u16>,
    proto: Option<&'static str>,
    direction: Option<&'static str>,
}

impl From<&Who> for WhoObject {
    fn from(who: &Who) -> Self {
        Self {
            process: who.process.as_ref().map(|name| String::from_utf8_lossy(name).into_owned()),
            pid: match who.processes {
                Processes::One(pid) => Some(pid),
                Processes::Unknown | Processes::Several => None,
            },
            port: Some(who.port),
            proto: Some(who.protocol.name()),
            direction: Some(dir(who.direction)),
        }
    }
}

#[derive(Serialize)]
struct FindingObject<'a> {
    #[serde(flatten)]
    who: WhoObject,
    cause: &'static str,
    stage: Option<&'static str>,
    share: Option<u64>,
    p50_ns: Option<u64>,
    p99_ns: Option<u64>,
    packets: u64,
    affected: u64,
    confidence: &'static str,
    sentence: &'a str,
    evidence: &'a [String],
    cpu_held_by: Option<HeldByObject>,
    next: &'a str,
}

#[derive(Serialize)]
struct HeldByObject {
    process: Option<String>,
    pid: u32,
    share: u64,
}

impl<'a> From<&'a Finding> for FindingObject<'a> {
    fn from(finding: &'a Finding) -> Self {
        Self {
            who: finding.who.as_ref().map(WhoObject::from).unwrap_or_default(),
            cause: finding.cause.name(),
            stage: finding.stage,
            share: finding.share,
            p50_ns: finding.p50_ns,
            p99_ns: finding.p99_ns,
            packets: finding.packets,
            affected: finding.affected,
            confidence: finding.confidence.name(),
            sentence: &finding.sentence,
            evidence: &finding.evidence,
            cpu_held_by: finding.cpu_held_by.as_ref().map(|holder| HeldByObject {
                process: holder.process.as_ref().map(|name| String::from_utf8_lossy(name).into_owned()),
                pid: holder.pid,
                share: holder.share,
            }),
            next: &finding.next,
        }
    }
}

#[derive(Serialize)]
struct NormalObject<'a> {
    #[serde(flatten)]
    who: WhoObject,
    /// So that all directions of services can be asked for their cause.
    cause: &'static str,
    packets: u64,
    p50_ns: Option<u64>,
    p99_ns: Option<u64>,
    remark: Option<&'a str>,
}

impl<'a> From<&'a Normal> for NormalObject<'a> {
    fn from(side: &'a Normal) -> Self {
        let Normal { who, packets, p50_ns, p99_ns, remark } = side;
        let (packets, p50_ns, p99_ns) = (*packets, *p50_ns, *p99_ns);
        Self { who: who.into(), cause: "none", packets, p50_ns, p99_ns, remark: remark.as_deref() }
    }
}

#[derive(Serialize)]
struct UnsureObject<'a> {
    #[serde(flatten)]
    who: WhoObject,
    packets: u64,
    reason: &'a str,
}

impl<'a> From<&'a Unsure> for UnsureObject<'a> {
    fn from(side: &'a Unsure) -> Self {
        Self { who: (&side.who).into(), packets: side.packets, reason: &side.reason }
    }
}

#[derive(Serialize)]
struct SeenObject {
    elapsed_ns: u64,
    packets_in: u64,
    packets_out: u64,
    control: u64,
    services: usize,
    without_service: u64,
    without_connection: u64,
    stages: &'static str,
    threshold_ns: u64,
    window_ns: u64,
    windows: usize,
    stalled_windows: usize,
    lost: Option<u64>,
}

impl From<&Seen> for SeenObject {
    fn from(seen: &Seen) -> Self {
        let [packets_in, packets_out] = seen.packets;
        Self {
            elapsed_ns: seen.elapsed_ns,
            packets_in,
            packets_out,
            control: seen.control,
            services: seen.services,
            without_service: seen.refused,
            without_connection: seen.forgotten,
            stages: if seen.is_fine { "fine" } else { "basic" },
            threshold_ns: seen.threshold_ns,
            window_ns: seen.window_ns,
            windows: seen.windows,
            stalled_windows: seen.stalls,
            lost: seen.lost,
        }
    }
}
