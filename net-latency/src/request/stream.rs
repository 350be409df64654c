//! The parsed request of the stream.

use std::{ffi::OsString, num::NonZeroU64, path::PathBuf, time::Duration};

use super::{
    filter::PacketFilter,
    format::{FooterFormat, Format},
    tracing::TracingConfig,
};
use crate::clock::Zone;

/// What to trace, how to show it and when to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StreamConfig {
    /// A command to run and trace: the program, and its arguments.
    pub command: Option<Vec<OsString>>,
    /// Which packets have a line; the kernel side applies this. Its `followed` is set once `command` has a process id.
    pub filter: PacketFilter,
    /// How to hook into the kernel, and the size of the ring buffer.
    pub tracing: TracingConfig,
    /// Output format: text, JSON or CSV.
    pub format: Format,
    /// File to append lines to; standard output if `None`.
    pub output: Option<PathBuf>,
    /// Time zone of the lines and of the summary: that of this machine, or UTC.
    pub zone: Zone,
    /// Only errors go to standard error. The footer is then `FooterFormat::None`.
    pub quiet: bool,
    /// Form of the summary at the end and after each `interval`, on standard error.
    pub footer: FooterFormat,
    /// Text lines have all columns: addresses, lengths, flags and more. The other forms have them always.
    pub verbose: bool,
    /// What the kernel side logs goes to standard error, and the footer has its share of the cost.
    pub debug: bool,
    /// Stop this long after everything is attached; without it, only something else ends the run.
    pub duration: Option<Duration>,
    /// Time between two summaries on standard error; none before the end if `None`.
    pub interval: Option<Duration>,
    /// Stop after this many lines.
    pub count: Option<NonZeroU64>,
}
