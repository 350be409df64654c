//! The parsed request of `net-latency hist`.

use std::time::Duration;

use net_latency_common::GroupBy;

use super::{
    filter::PacketFilter,
    format::{FooterFormat, ReportFormat},
    tracing::{Backend, Stages},
};
use crate::clock::Zone;

/// What to count, and how to show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HistConfig {
    /// Which packets to count; the kernel side applies this.
    pub filter: PacketFilter,
    /// How to hook into the kernel: fentry, kprobe, or what suits it.
    pub backend: Backend,
    /// What is counted, and how much room there is for it.
    pub histograms: Histograms,
    /// Number of groups to show, those with the longest p99 of the total; the rest share one more group.
    pub top: usize,
    /// Form of the output: tables, or a JSON object for each output.
    pub format: ReportFormat,
    /// Whether the tables have histograms below them, in text.
    pub histogram: bool,
    /// Time zone of the output: that of this machine, or UTC.
    pub zone: Zone,
    /// Time between two outputs, each of the counts since the one before; only the whole run if `None`.
    pub interval: Option<Duration>,
    /// Stop this long after everything is attached.
    pub duration: Option<Duration>,
    /// Only errors go to standard error. The footer is then `FooterFormat::None`.
    pub quiet: bool,
    /// Form of the summary at the end, on standard error.
    pub footer: FooterFormat,
}

/// Which counts to keep instead of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Histograms {
    /// What packets are grouped by, besides direction, protocol and stage.
    pub by: GroupBy,
    /// Room for this many buckets of all groups together. What finds no room is counted as lost.
    pub buckets: u32,
    /// Stage detail.
    pub stages: Stages,
    /// Packets that took so long, in total or in one known stage, have a record besides.
    pub slower: Option<Duration>,
}
