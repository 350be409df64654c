//! The parsed request of `net-latency diagnose`.

use std::{path::PathBuf, time::Duration};

use super::{
    filter::PacketFilter,
    format::{FooterFormat, ReportFormat},
    tracing::TracingConfig,
};
use crate::clock::Zone;

/// From which time on a stage is slow, unless requested otherwise.
pub(crate) const THRESHOLD: Duration = Duration::from_millis(1);

/// What to judge, and how to say it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DiagnoseConfig {
    /// Which packets to judge.
    pub filter: PacketFilter,
    /// Where they come from.
    pub input: DiagnoseInput,
    /// From which time on a part of an answer is slow, or a stage where there are no answers.
    pub threshold: Duration,
    /// Whether everything is told, and not only what is slowest.
    pub is_all: bool,
    /// Form of the verdict: sentences, or a JSON object.
    pub format: ReportFormat,
    /// Time zone of the summary: that of this machine, or UTC.
    pub zone: Zone,
    /// Only errors go to standard error. The footer is then `FooterFormat::None`.
    pub quiet: bool,
    /// Form of the summary of what was traced, on standard error.
    pub footer: FooterFormat,
}

/// Where the packets come from that are judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DiagnoseInput {
    /// This kernel.
    Kernel {
        /// By what means to trace.
        tracing: TracingConfig,
        /// Judge this long after everything is attached.
        duration: Duration,
    },
    /// Recorded logs; `-` is standard input.
    Logs(Vec<PathBuf>),
}
