//! What `net-latency journey` is asked for.

use std::{num::NonZeroU64, path::PathBuf, time::Duration};

use glob::Pattern;

use super::{
    filter::PacketFilter,
    format::{FooterFormat, JourneyFormat},
    tracing::TracingConfig,
};
use crate::clock::Zone;

/// Which packets to follow, and how to show their ways.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JourneyConfig {
    /// Which packets.
    pub filter: PacketFilter,
    /// Through which functions.
    pub functions: Functions,
    /// By what means.
    pub tracing: TracingConfig,
    /// Form of the output.
    pub format: JourneyFormat,
    /// File to write to; standard output if `None`.
    pub output: Option<PathBuf>,
    /// Whose time is shown.
    pub zone: Zone,
    /// Nothing on stderr but errors.
    pub quiet: bool,
    /// Form of the figures at the end.
    pub footer: FooterFormat,
    /// Time after which to stop.
    pub duration: Option<Duration>,
    /// Number of packets after which to stop.
    pub count: NonZeroU64,
}

/// What to trace beside what is needed to follow packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Functions {
    /// The usual set, and what these name.
    Default(Vec<Pattern>),
    /// All that take an skb.
    All,
}
