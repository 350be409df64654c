//! The parsed request of `net-latency connections`.

use std::{num::NonZeroU64, path::PathBuf, time::Duration};

use super::{
    filter::PacketFilter,
    format::{FooterFormat, LineFormat},
    tracing::TracingConfig,
};
use crate::clock::Zone;

/// Which connections to show, how, and when to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionsConfig {
    /// Whose connections. What only packets have counts for nothing.
    pub filter: PacketFilter,
    /// Where they come from.
    pub input: ConnectionsInput,
    /// Only those that failed: to begin, or by a reset or a timeout.
    pub failed: bool,
    /// Only those whose handshake, or wait for `accept`, took at least this long.
    pub slower: Option<Duration>,
    /// Show open ones, and what listens, every so often.
    pub interval: Option<Duration>,
    /// Output format.
    pub format: LineFormat,
    /// File to append to; standard output if `None`.
    pub output: Option<PathBuf>,
    /// Time zone of the output.
    pub zone: Zone,
    /// Text: everything that JSON has.
    pub verbose: bool,
    /// Only errors go to standard error.
    pub quiet: bool,
    /// Form of the summary.
    pub footer: FooterFormat,
    /// Stop after this time.
    pub duration: Option<Duration>,
    /// Stop after this many lines.
    pub count: Option<NonZeroU64>,
}

/// Where connections come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionsInput {
    /// The running kernel.
    Kernel(TracingConfig),
    /// What was recorded with `--format json` or `csv`.
    Logs(Vec<PathBuf>),
}
