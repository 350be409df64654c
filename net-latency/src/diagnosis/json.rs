//! The verdict as one JSON object; docs/diagnose.schema.json describes it. Unknown is `null`.

use serde::Serialize;

use super::{
    did::Did,
    finding::{Finding, Normal, OfAnswers, Seen, ServiceAnswers, Unsure, Verdict, Who},
    item::Item,
    suspects::column,
};
use crate::{output::write_json, packet::stages::dir};

/// Appends it, and a newline.
pub(crate) fn write(verdict: &Verdict, out: &mut Vec<u8>) {
    write_json(&object(verdict), out);
}

/// The verdict, as a part of something else.
pub(crate) fn object(verdict: &Verdict) -> impl Serialize + '_ {
    let Verdict { findings, answers, normal, unsure, seen } = verdict;
    Object {
        findings: findings.iter().map(FindingObject::from).collect(),
        normal: normal.iter().map(NormalObject::from).collect(),
        unsure: unsure.iter().map(UnsureObject::from).collect(),
        seen: SeenObject::from(seen),
        answers: answers.iter().map(AnswersObject::from).collect(),
    }
}

#[derive(Serialize)]
struct Object<'a> {
    findings: Vec<FindingObject<'a>>,
    normal: Vec<NormalObject<'a>>,
    unsure: Vec<UnsureObject<'a>>,
    seen: SeenObject<'a>,
    answers: Vec<AnswersObject>,
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
            process: name(who.process.as_deref()),
            pid: who.processes.pid(),
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
    also: Vec<WhoObject>,
    answers: Option<OfAnswersObject>,
}

/// What a finding means for answers.
#[derive(Serialize)]
struct OfAnswersObject {
    count: u64,
    slow: u64,
    answer_ns: u64,
    part_ns: u64,
}

impl From<&OfAnswers> for OfAnswersObject {
    fn from(answers: &OfAnswers) -> Self {
        let (answer_ns, part_ns) = answers.each_ns();
        Self { count: answers.count, slow: answers.slow.count, answer_ns, part_ns }
    }
}

#[derive(Serialize)]
struct AnswersObject {
    process: Option<String>,
    pid: Option<u32>,
    port: u16,
    proto: &'static str,
    role: &'static str,
    count: u64,
    unknown: u64,
    sum_ns: u64,
    parts: Vec<PartObject>,
    service: Option<DidObject>,
}

/// What threads did between reading a request and writing.
#[derive(Serialize)]
struct DidObject {
    known: u64,
    unknown: u64,
    cpu_ns: u64,
    wait_ns: u64,
    sleep_ns: u64,
    syscall: Option<String>,
}

impl From<&Did> for DidObject {
    fn from(did: &Did) -> Self {
        Self {
            known: did.known,
            unknown: did.unknown,
            cpu_ns: did.on_ns,
            wait_ns: did.waited_ns,
            sleep_ns: did.slept_ns,
            syscall: name(did.call()),
        }
    }
}

#[derive(Serialize)]
struct PartObject {
    part: &'static str,
    sum_ns: u64,
}

impl From<&ServiceAnswers> for AnswersObject {
    fn from(answers: &ServiceAnswers) -> Self {
        let part = |(item, sum_ns): &(Item, u64)| PartObject {
            part: column(*item, answers.protocol).unwrap_or(part_name(*item)),
            sum_ns: *sum_ns,
        };
        Self {
            process: name(answers.process.as_deref()),
            pid: answers.processes.pid(),
            port: answers.port,
            proto: answers.protocol.name(),
            role: if answers.is_client { "client" } else { "server" },
            count: answers.count,
            unknown: answers.unknown,
            sum_ns: answers.sum_ns,
            parts: answers.parts.iter().map(part).collect(),
            service: (answers.did.known + answers.did.unknown > 0).then(|| (&answers.did).into()),
        }
    }
}

/// That of a part that is no column.
fn part_name(item: Item) -> &'static str {
    match item {
        Item::Service => "service",
        Item::Asked => "asked",
        Item::Wire => "wire",
        Item::Connect => "connect",
        Item::Theirs => "server",
        Item::Answer => "wire-or-server",
        _ => "unknown",
    }
}

fn name(bytes: Option<&[u8]>) -> Option<String> {
    bytes.map(|name| String::from_utf8_lossy(name).into_owned())
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
                process: name(holder.process.as_deref()),
                pid: holder.pid,
                share: holder.share,
            }),
            next: &finding.next,
            also: finding.also.iter().map(WhoObject::from).collect(),
            answers: finding.answers.as_ref().map(OfAnswersObject::from),
        }
    }
}

#[derive(Serialize)]
struct NormalObject<'a> {
    #[serde(flatten)]
    who: WhoObject,
    /// So that all directions of services have a cause.
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
struct SeenObject<'a> {
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
    cpu_busy_percent: Option<u64>,
    cpu_pressure_percent: Option<u64>,
    missing: &'a [&'static str],
}

impl<'a> From<&'a Seen> for SeenObject<'a> {
    fn from(seen: &'a Seen) -> Self {
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
            cpu_busy_percent: seen.cpu_busy_percent,
            cpu_pressure_percent: seen.cpu_pressure_percent,
            missing: &seen.missing,
        }
    }
}
