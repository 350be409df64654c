//! The parsed request of `net-latency journey`.

use std::{num::NonZeroU64, path::PathBuf, time::Duration};

use glob::Pattern;

use super::{
    filter::PacketFilter,
    format::{FooterFormat, JourneyFormat},
    tracing::TracingConfig,
};
use crate::clock::Zone;

/// Which packets to follow, and how to show where they went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JourneyConfig {
    /// Which packets to pick. `slower` and names of devices are only known at a packet's end, when others are dropped again.
    pub filter: PacketFilter,
    /// Which of these to show.
    pub pick: Pick,
    /// The functions that have a row where a packet comes by.
    pub functions: Functions,
    /// How to hook into the kernel, and the size of the ring buffer.
    pub tracing: TracingConfig,
    /// Form of the output: tables, JSON objects, or trace events for a timeline.
    pub format: JourneyFormat,
    /// File to append to, or to overwrite with trace events; standard output if `None`.
    pub output: Option<PathBuf>,
    /// Time zone of the output: that of this machine, or UTC.
    pub zone: Zone,
    /// Only errors go to standard error. The footer is then `FooterFormat::None`.
    pub quiet: bool,
    /// Form of the summary at the end, on standard error.
    pub footer: FooterFormat,
    /// Stop this long after everything is attached.
    pub duration: Option<Duration>,
    /// Stop after this many packets.
    pub count: NonZeroU64,
}

/// Which of the packets that a filter admits are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pick {
    /// Those that come first.
    Any,
    /// Those that the kernel drops.
    Drops,
    /// Of some that come first, those whose time is nearest to the median.
    Typical,
}

/// What to trace beside what is needed to follow packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Functions {
    /// The usual set, and what these name.
    Default(Vec<Pattern>),
    /// All that take an skb.
    All,
}
