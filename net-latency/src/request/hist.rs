//! What `net-latency hist` is asked for.

use std::time::Duration;

use net_latency_common::GroupBy;

use super::{
    filter::PacketFilter,
    format::{FooterFormat, ReportFormat},
    tracing::Backend,
};
use crate::clock::Zone;

/// What to count, and how to show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistConfig {
    /// Which packets.
    pub filter: PacketFilter,
    /// How to hook into the kernel.
    pub backend: Backend,
    /// What is counted, and how much room there is for it.
    pub histograms: Histograms,
    /// Groups to show.
    pub top: usize,
    /// Form of the output.
    pub format: ReportFormat,
    /// Whose time is shown.
    pub zone: Zone,
    /// Time between two outputs.
    pub interval: Option<Duration>,
    /// Time after which to stop.
    pub duration: Option<Duration>,
    /// Nothing on stderr but errors.
    pub quiet: bool,
    /// Form of the figures at the end.
    pub footer: FooterFormat,
}

/// Which counts to keep instead of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Histograms {
    /// By what packets are grouped.
    pub by: GroupBy,
    /// Room for so many buckets of all groups, which matters where there are groups.
    pub buckets: u32,
}
