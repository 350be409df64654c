//! Packets' ways as trace events, in the JSON array form of the Trace Event Format, whose closing bracket may be
//! missing: what a killed run leaves can be opened too.
//!
//! Each CPU is a process there, and each context on it a track. A place on the way is a slice until the next one; an
//! arrow leads from one to the next, so that a packet can be followed from track to track.

use std::collections::BTreeSet;

use serde::Serialize;

use super::model::{Context, Journey, Outcome};
use crate::{escape::lossy, output::write_json};

/// Begins the file.
pub(super) const HEADER: &[u8] = b"[\n";
/// A slice at the end of the way has some length, so that it can be seen.
const LAST_NS: u64 = 1_000;

/// Writes events; remembers which tracks have their names.
#[derive(Default)]
pub(super) struct Events {
    named: BTreeSet<(u32, Option<u32>)>,
    is_begun: bool,
    packets: u64,
}

#[derive(Serialize)]
struct Slice<'a> {
    ph: &'a str,
    name: &'a str,
    cat: &'a str,
    pid: u32,
    tid: u32,
    /// In microseconds.
    ts: f64,
    dur: f64,
    args: Arguments<'a>,
}

#[derive(Serialize)]
struct Arguments<'a> {
    packet: String,
    stage: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    process: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    irq: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<String>,
}

#[derive(Serialize)]
struct Arrow<'a> {
    ph: &'a str,
    name: &'a str,
    cat: &'a str,
    id: u64,
    pid: u32,
    tid: u32,
    ts: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    bp: Option<&'a str>,
}

#[derive(Serialize)]
struct Naming<'a> {
    ph: &'a str,
    name: &'a str,
    pid: u32,
    tid: u32,
    args: Name<'a>,
}

#[derive(Serialize)]
struct Name<'a> {
    name: &'a str,
}

impl Events {
    /// Appends a packet's way.
    pub(super) fn write(&mut self, journey: &Journey, out: &mut Vec<u8>) {
        self.packets += 1;
        let packet = format!(
            "{} {}:{} > {}:{}",
            journey.protocol.name(),
            journey.source.0,
            journey.source.1,
            journey.destination.0,
            journey.destination.1
        );
        let gaps = journey.gaps();
        let last = journey.rows.len() - 1;
        for (index, row) in journey.rows.iter().enumerate() {
            // Process 0 is the idle task there, which the views hide.
            let (pid, tid) = (u32::from(row.cpu) + 1, track(&row.context));
            self.name(pid, None, &format!("CPU {}", row.cpu), out);
            self.name(pid, Some(tid), row.context.kind(), out);
            let dur = journey.rows.get(index + 1).map_or(LAST_NS, |next| next.at - row.at);
            let stage = gaps.iter().find(|gap| gap.to == index + 1).map_or(row.stage, |gap| gap.stage);
            let ts = microseconds(row.at);
            let slice = Slice {
                ph: "X",
                name: &row.function,
                cat: "packet",
                pid,
                tid,
                ts,
                dur: microseconds(dur),
                args: Arguments {
                    packet: packet.clone(),
                    stage: stage.name(),
                    process: match &row.context {
                        Context::Process { comm, pid, .. } => Some(format!("{}/{pid}", lossy(comm))),
                        _ => None,
                    },
                    device: (!row.device.is_empty()).then(|| lossy(&row.device)),
                    irq: row.interrupt.as_deref(),
                    outcome: (index == last).then(|| outcome(&journey.outcome)),
                },
            };
            self.event(&slice, out);
            if last > 0 {
                let (ph, bp) = match index {
                    0 => ("s", None),
                    _ if index == last => ("f", Some("e")),
                    _ => ("t", None),
                };
                let arrow = Arrow { ph, name: "packet", cat: "packet", id: self.packets, pid, tid, ts, bp };
                self.event(&arrow, out);
            }
        }
    }

    /// Appends the end of the file.
    pub(super) fn finish(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"]\n");
    }

    fn name(&mut self, pid: u32, tid: Option<u32>, name: &str, out: &mut Vec<u8>) {
        if self.named.insert((pid, tid)) {
            let kind = if tid.is_some() { "thread_name" } else { "process_name" };
            self.event(&Naming { ph: "M", name: kind, pid, tid: tid.unwrap_or(0), args: Name { name } }, out);
        }
    }

    fn event(&mut self, event: &impl Serialize, out: &mut Vec<u8>) {
        if self.is_begun {
            // In front, so that the last one has none behind it.
            out.push(b',');
        }
        self.is_begun = true;
        write_json(event, out);
    }
}

fn track(context: &Context) -> u32 {
    match context {
        Context::Process { .. } => 1,
        Context::Softirq => 2,
        Context::Hardirq => 3,
        Context::Unknown => 4,
    }
}

fn outcome(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Read { comm, pid } => format!("read by {}/{pid}", lossy(comm)),
        Outcome::Dropped { function, reason } => format!(
            "dropped in {}, reason {}",
            function.as_deref().unwrap_or("unknown"),
            reason.as_deref().unwrap_or("unknown")
        ),
        other => other.kind().to_owned(),
    }
}

/// ns as microseconds: exact for the first 52 days after boot, and to some ns later.
fn microseconds(ns: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "see above")]
    let ns = ns as f64;
    ns / 1_000.0
}
