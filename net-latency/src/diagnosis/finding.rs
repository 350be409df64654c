//! The verdict as plain values: findings, normal times, and the evidence.

use std::collections::BTreeMap;

use net_latency_common::Direction;
use serde::{Serialize, Serializer};

use super::{
    answers::Slow,
    cause::Cause,
    did::Did,
    holders::HeldBy,
    item::Item,
    service::{Processes, Service},
};
use crate::{named::named, packet::event::Protocol};

named! {
    /// How sure a finding is.
    #[derive(PartialOrd, Ord)]
    pub(super) enum Confidence {
        Low "low",
        Medium "medium",
        High "high",
    }
}

/// One direction of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Who {
    pub(super) process: Option<Vec<u8>>,
    pub(super) processes: Processes,
    pub(super) port: u16,
    pub(super) protocol: Protocol,
    pub(super) direction: Direction,
}

impl Who {
    /// Whether it is the same service, in either direction.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let Self { process, processes, port, protocol, .. } = self;
        (process, processes, port, protocol)
            == (&other.process, &other.processes, &other.port, &other.protocol)
    }

    pub(super) fn of(service: &Service, direction: Direction) -> Self {
        Self {
            process: service.name().map(<[u8]>::to_vec),
            processes: service.processes(),
            port: service.port,
            protocol: service.protocol,
            direction,
        }
    }
}

/// What makes a service slow.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Finding {
    /// `None` for a finding about the whole machine.
    #[serde(skip)]
    pub(super) who: Option<Who>,
    pub(super) cause: Cause,
    /// The column, where it is the time of one.
    pub(super) stage: Option<&'static str>,
    /// Its share of the time of its packets, percent.
    pub(super) share: Option<u64>,
    /// Of the stage, ns.
    pub(super) p50_ns: Option<u64>,
    pub(super) p99_ns: Option<u64>,
    /// Those of which the stage is known, and those of them that took long there.
    pub(super) packets: u64,
    pub(super) affected: u64,
    pub(super) confidence: Confidence,
    pub(super) sentence: String,
    /// The sentence in a few words.
    #[serde(skip)]
    pub(super) brief: &'static str,
    /// Where a part of an answer's time goes, as it stands behind that time.
    #[serde(skip)]
    pub(super) within: &'static str,
    pub(super) evidence: Vec<String>,
    pub(super) cpu_held_by: Option<HeldBy>,
    pub(super) next: String,
    /// Others that have the same.
    pub(super) also: Vec<Who>,
    /// What it means for answers, where those were judged.
    pub(super) answers: Option<OfAnswers>,
    /// All of its time, ns.
    #[serde(skip)]
    pub(super) weight: u128,
    /// Tells whether others are of the same process; 0 for a finding about the whole machine.
    #[serde(skip)]
    pub(super) pid: u32,
}

impl Finding {
    /// Its time by how likely it is the cause: a process that may have worked for long comes behind a wait that is certain and a little
    /// shorter.
    pub(super) fn expected_ns(&self) -> u128 {
        match self.confidence {
            Confidence::High => self.weight,
            Confidence::Medium => self.weight / 2,
            Confidence::Low => self.weight / 4,
        }
    }
}

/// How long the answers of a service take, and what of it is a finding's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OfAnswers {
    /// All of them.
    pub(super) count: u64,
    /// Those that took long where the finding says.
    pub(super) slow: Slow,
    /// What one takes of all, and how much of that is the finding's, ns: the mean.
    pub(super) mean_ns: (u64, u64),
    /// Whether the service gets them, and does not give them.
    pub(super) is_client: bool,
}

impl OfAnswers {
    /// Whether nearly each answer is slow there.
    pub(super) fn is_each(&self) -> bool {
        self.slow.count * 10 >= self.count * 9
    }

    /// What one takes of those that it is told about, and how much of that is the finding's, ns: the mean.
    pub(super) fn told_ns(&self) -> (u64, u64) {
        if self.is_each() { self.mean_ns } else { self.slow_ns() }
    }

    /// The same of a slow one.
    pub(super) fn slow_ns(&self) -> (u64, u64) {
        let count = self.slow.count.max(1);
        (self.slow.total_ns / count, self.slow.part_ns / count)
    }
}

/// A service that nothing is wrong with.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Normal {
    #[serde(skip)]
    pub(super) who: Who,
    pub(super) packets: u64,
    /// Of the way from the first basic stage to the last, ns.
    pub(super) p50_ns: Option<u64>,
    pub(super) p99_ns: Option<u64>,
    /// What looks like a fault and is none.
    pub(super) remark: Option<String>,
}

/// A service that nothing can be said about.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Unsure {
    #[serde(skip)]
    pub(super) who: Who,
    pub(super) packets: u64,
    pub(super) reason: String,
}

/// The answers of a service, or those that a client gets, and the parts that their time is made of.
#[derive(Clone, Debug)]
pub(super) struct ServiceAnswers {
    pub(super) process: Option<Vec<u8>>,
    pub(super) processes: Processes,
    pub(super) port: u16,
    pub(super) protocol: Protocol,
    pub(super) is_client: bool,
    pub(super) count: u64,
    /// Answers whose time or parts can't be told.
    pub(super) unknown: u64,
    /// Of all together, ns.
    pub(super) sum_ns: u64,
    /// They add up to that.
    pub(super) parts: Vec<(Item, u64)>,
    /// The work that was done for them.
    pub(super) did: Did,
}

impl ServiceAnswers {
    pub(super) fn of(service: &Service) -> Self {
        let answers = &service.answers;
        let items = [Direction::In, Direction::Out].into_iter().flat_map(Item::of_answers);
        let parts = items.map(|item| (*item, answers.sum_of(*item))).filter(|(_, sum)| *sum > 0);
        Self {
            process: service.name().map(<[u8]>::to_vec),
            processes: service.processes(),
            port: service.port,
            protocol: service.protocol,
            is_client: service.is_client,
            count: answers.count(),
            unknown: answers.unknown,
            sum_ns: answers.sum_ns(),
            parts: parts.collect(),
            did: service.did.clone(),
        }
    }

    /// What an answer takes on average, its parts of a hundredth or more, from the longest on, and the rest, ns.
    pub(super) fn mean(&self) -> (u64, Vec<(Item, u64)>, u64) {
        let count = self.count.max(1);
        let mut parts: Vec<_> = self.parts.clone();
        parts.retain(|(_, sum)| sum.saturating_mul(100) >= self.sum_ns);
        parts.sort_by_key(|(_, sum)| std::cmp::Reverse(*sum));
        let left = parts.iter().fold(self.sum_ns, |left, (_, sum)| left.saturating_sub(*sum));
        (
            self.sum_ns / count,
            parts.into_iter().map(|(item, sum)| (item, sum / count)).collect(),
            left / count,
        )
    }
}

/// What all of this rests on.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Seen {
    pub(super) elapsed_ns: u64,
    #[serde(flatten, serialize_with = "in_and_out")]
    pub(super) packets: [u64; 2],
    pub(super) control: u64,
    pub(super) services: usize,
    /// Packets of services that there was no room for.
    #[serde(rename = "without_service")]
    pub(super) refused: u64,
    /// Packets of connections that had been forgotten, since there are more than there is room for.
    #[serde(rename = "without_connection")]
    pub(super) forgotten: u64,
    #[serde(rename = "stages", serialize_with = "stages")]
    pub(super) is_fine: bool,
    pub(super) threshold_ns: u64,
    pub(super) window_ns: u64,
    /// Windows with packets, and those in which all services were slow at the same time, for a short time.
    pub(super) windows: usize,
    #[serde(rename = "stalled_windows")]
    pub(super) stalls: usize,
    /// Lines that are missing; unknown of a log.
    pub(super) lost: Option<u64>,
    /// For how much of the time CPUs were busy, and a task waited for one, percent; unknown of a log.
    pub(super) cpu_busy_percent: Option<u64>,
    pub(super) cpu_pressure_percent: Option<u64>,
    /// What this machine does not tell.
    pub(super) missing: Vec<&'static str>,
}

fn in_and_out<S: Serializer>(packets: &[u64; 2], serializer: S) -> Result<S::Ok, S::Error> {
    let [packets_in, packets_out] = packets;
    BTreeMap::from([("packets_in", packets_in), ("packets_out", packets_out)]).serialize(serializer)
}

fn stages<S: Serializer>(is_fine: &bool, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(if *is_fine { "fine" } else { "basic" })
}

impl Seen {
    /// Among what nothing may be found without that telling about all: nothing where that is all, or nearly.
    pub(super) fn limits(&self) -> &'static str {
        let all: u64 = self.packets.iter().sum();
        if self.refused > 0 {
            " among the busiest services"
        } else if self.forgotten * 100 > all {
            " among the connections that fit the table"
        } else if self.lost.is_some_and(|lost| lost * 100 > all) {
            " among the packets that were seen"
        } else {
            ""
        }
    }
}

/// All that there is to say.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    pub(super) findings: Vec<Finding>,
    pub(super) answers: Vec<ServiceAnswers>,
    pub(super) normal: Vec<Normal>,
    pub(super) unsure: Vec<Unsure>,
    pub(super) seen: Seen,
}
