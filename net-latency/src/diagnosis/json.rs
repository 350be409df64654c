//! The verdict as one JSON object; docs/diagnose.schema.json describes it. Unknown is `null`.

use serde::{Serialize, Serializer};

use super::{
    did::Did,
    finding::{Finding, Normal, OfAnswers, Seen, ServiceAnswers, Unsure, Verdict, Who},
    holders::HeldBy,
    item::Item,
    suspects::column,
};
use crate::{escape::lossy, output::write_json, packet::stages::dir};

/// Appends it, and a newline.
pub(crate) fn write(verdict: &Verdict, out: &mut Vec<u8>) {
    write_json(&object(verdict), out);
}

/// The verdict, as a part of something else.
pub(crate) fn object(verdict: &Verdict) -> impl Serialize + '_ {
    let Verdict { findings, answers, normal, unsure, seen } = verdict;
    let none = WhoObject::default;
    Object {
        findings: findings
            .iter()
            .map(|what| Of { who: what.who.as_ref().map_or_else(none, WhoObject::from), cause: None, what })
            .collect(),
        normal: normal.iter().map(|what| Of { who: (&what.who).into(), cause: Some("none"), what }).collect(),
        unsure: unsure.iter().map(|what| Of { who: (&what.who).into(), cause: None, what }).collect(),
        seen,
        answers: answers.iter().map(AnswersObject::from).collect(),
    }
}

#[derive(Serialize)]
struct Object<'a> {
    findings: Vec<Of<'a, Finding>>,
    normal: Vec<Of<'a, Normal>>,
    unsure: Vec<Of<'a, Unsure>>,
    seen: &'a Seen,
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
            process: who.process.as_deref().map(lossy),
            pid: who.processes.pid(),
            port: Some(who.port),
            proto: Some(who.protocol.name()),
            direction: Some(dir(who.direction)),
        }
    }
}

/// Something about one, with what it is.
#[derive(Serialize)]
struct Of<'a, T> {
    #[serde(flatten)]
    who: WhoObject,
    /// So that all directions of services have a cause.
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<&'static str>,
    #[serde(flatten)]
    what: &'a T,
}

impl Serialize for Who {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        WhoObject::from(self).serialize(serializer)
    }
}

/// What a finding means for answers.
impl Serialize for OfAnswers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Object {
            count: u64,
            slow: u64,
            answer_ns: u64,
            part_ns: u64,
        }
        let (answer_ns, part_ns) = self.slow_ns();
        Object { count: self.count, slow: self.slow.count, answer_ns, part_ns }.serialize(serializer)
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
            syscall: did.call().map(lossy),
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
            process: answers.process.as_deref().map(lossy),
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

impl Serialize for HeldBy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Object {
            process: Option<String>,
            pid: u32,
            share: u64,
        }
        Object { process: self.process.as_deref().map(lossy), pid: self.pid, share: self.share }
            .serialize(serializer)
    }
}
