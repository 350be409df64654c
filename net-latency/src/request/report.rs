//! The parsed request of `net-latency report`.

use std::{path::PathBuf, time::Duration};

use ipnet::IpNet;
use net_latency_common::Direction;

use super::{
    format::{Format, ReportFormat},
    glob::Glob,
};

/// Which logs to sum up, and how to show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReportConfig {
    /// The logs, in JSON or CSV form, compressed or not; `-` is standard input.
    pub files: Vec<PathBuf>,
    /// Where the page goes, `-` for standard output; no page if `None`.
    pub html: Option<PathBuf>,
    /// Form of the summary on standard output: tables, or a JSON object.
    pub format: ReportFormat,
    /// The form in which the packets are written instead, and where to; `-` is standard output.
    pub packets: Option<(Format, PathBuf)>,
    /// Width of the periods that times are shown by, a table of which text shows then; as fine as the logs' span allows
    /// if `None`.
    pub interval: Option<Duration>,
    /// Rows of each table, and number of the slowest packets.
    pub top: usize,
    /// No progress bar on standard error.
    pub quiet: bool,
    /// Which of the logs' packets to sum up.
    pub filter: LogFilter,
}

/// Packets that meet every condition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogFilter {
    /// Process ids; all if empty.
    pub pids: Vec<u32>,
    /// Ports at either end; all if empty.
    pub ports: Vec<u16>,
    /// Globs for the thread's name, of which one has to match; all if empty.
    pub comms: Vec<Glob>,
    /// Networks of which one has an address at either end; all if empty.
    pub hosts: Vec<IpNet>,
    /// Only packets of this direction; both if `None`.
    pub direction: Option<Direction>,
    /// Only packets of which a stage or the total takes at least so long.
    pub slower: Option<Duration>,
}
