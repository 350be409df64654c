//! What `net-latency report` is asked for.

use std::path::PathBuf;

use net_latency_common::Direction;

use super::{format::ReportFormat, glob::Glob};

/// Which logs to sum up, and how to show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportConfig {
    /// The logs; `-` is standard input.
    pub files: Vec<PathBuf>,
    /// Where the page goes, `-` for standard output; no page if `None`.
    pub html: Option<PathBuf>,
    /// Form of the summary.
    pub format: ReportFormat,
    /// Rows of each table.
    pub top: usize,
    /// No progress bar.
    pub quiet: bool,
    /// Which packets.
    pub filter: LogFilter,
}

/// Packets that meet every condition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogFilter {
    /// Process ids; all if empty.
    pub pids: Vec<u32>,
    /// Ports at either end; all if empty.
    pub ports: Vec<u16>,
    /// Patterns for the task's name; all if empty.
    pub comms: Vec<Glob>,
    /// The only direction.
    pub direction: Option<Direction>,
}
