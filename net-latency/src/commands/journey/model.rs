//! A packet's way, as it is shown.

use std::net::IpAddr;

use net_latency_common::journey::JourneyStart;

use crate::{packet::event::Protocol, probes::journey::Stage};

/// In what a CPU was when it came to a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Context {
    /// Not known.
    Unknown,
    /// A task, with its name and its process and thread ids.
    Process { comm: Vec<u8>, pid: u32, tid: u32 },
    /// A softirq.
    Softirq,
    /// A hardware interrupt.
    Hardirq,
}

impl Context {
    /// What it is, in a word.
    pub(super) const fn kind(&self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Process { .. } => "process",
            Self::Softirq => "softirq",
            Self::Hardirq => "hardirq",
        }
    }
}

/// A place on a packet's way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// ns of `CLOCK_MONOTONIC`.
    pub(super) at: u64,
    pub(super) cpu: u16,
    pub(super) context: Context,
    /// A function or a tracepoint.
    pub(super) function: String,
    /// Where the packet is from here on.
    pub(super) stage: Stage,
    /// The device's name; empty where there is none.
    pub(super) device: Vec<u8>,
    /// The device's network namespace; 0 where there is none.
    pub(super) netns: u32,
    /// The names of an interrupt's handlers.
    pub(super) interrupt: Option<String>,
    /// Whether the packet itself was there. Else it is what led to it.
    pub(super) is_own: bool,
}

/// How a packet's way ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// A process took it.
    Read { comm: Vec<u8>, pid: u32 },
    /// It was dropped, in this function and for that reason, where the kernel tells.
    Dropped { function: Option<String>, reason: Option<String> },
    /// Its last skb was freed.
    Freed,
    /// It waits on a socket's queue.
    Waiting,
    /// Nothing came of it any more.
    Lost,
}

impl Outcome {
    /// In a word.
    pub(super) const fn kind(&self) -> &'static str {
        match self {
            Self::Read { .. } => "read",
            Self::Dropped { .. } => "dropped",
            Self::Freed => "freed",
            Self::Waiting => "waiting",
            Self::Lost => "lost",
        }
    }
}

/// A packet's way. There is one place at least.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Journey {
    pub(super) id: u64,
    pub(super) protocol: Protocol,
    pub(super) source: (IpAddr, u16),
    pub(super) destination: (IpAddr, u16),
    /// Of TCP.
    pub(super) seq: Option<u32>,
    pub(super) len: u32,
    pub(super) mark: u32,
    pub(super) direction: net_latency_common::Direction,
    /// In the order of their times.
    pub(super) rows: Vec<Row>,
    pub(super) outcome: Outcome,
}

/// The longest time between two places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gap {
    /// Index of the row behind it.
    pub(super) to: usize,
    pub(super) ns: u64,
    pub(super) stage: Stage,
}

impl Journey {
    /// When the packet was first and last seen.
    pub(super) fn span(&self) -> (u64, u64) {
        let own = || self.rows.iter().filter(|row| row.is_own).map(|row| row.at);
        (own().min().unwrap_or(0), own().max().unwrap_or(0))
    }

    /// Time from the first place to the last.
    pub(super) fn total(&self) -> u64 {
        let (first, last) = self.span();
        last - first
    }

    /// What each pair of neighbouring places is: where the packet was between them, and how long.
    pub(super) fn gaps(&self) -> Vec<Gap> {
        let (first, _) = self.span();
        let mut stage = Stage::Same;
        let mut gaps = Vec::new();
        for (from, pair) in self.rows.windows(2).enumerate() {
            // A function that says nothing about it leaves the packet where it was.
            if pair[0].stage != Stage::Same {
                stage = pair[0].stage;
            }
            if pair[0].at >= first {
                gaps.push(Gap { to: from + 1, ns: pair[1].at - pair[0].at, stage });
            }
        }
        gaps
    }

    /// The longest of them.
    pub(super) fn longest(&self) -> Option<Gap> {
        self.gaps().into_iter().filter(|gap| gap.ns > 0).max_by_key(|gap| gap.ns)
    }

    /// Time in each stage, in the order in which the packet first came to it.
    pub(super) fn stages(&self) -> Vec<(Stage, u64)> {
        let mut stages: Vec<(Stage, u64)> = Vec::new();
        for gap in self.gaps() {
            match stages.iter_mut().find(|(stage, _)| *stage == gap.stage) {
                Some((_, ns)) => *ns += gap.ns,
                None => stages.push((gap.stage, gap.ns)),
            }
        }
        stages
    }
}

/// An address as the kernel side has it.
pub(super) fn address(start: &JourneyStart, bytes: [u8; 16]) -> IpAddr {
    if start.family == net_latency_common::AF_INET6 {
        bytes.into()
    } else {
        [bytes[0], bytes[1], bytes[2], bytes[3]].into()
    }
}
