//! The parsed request of `net-latency record`.

use std::{path::PathBuf, time::Duration};

use super::{export::Listen, filter::PacketFilter, format::FooterFormat, tracing::TracingConfig};
use crate::clock::Zone;

/// What to keep, how long, and when to write it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecordConfig {
    /// Which packets to keep; the kernel side applies this.
    pub filter: PacketFilter,
    /// How to hook into the kernel, the size of the ring buffer, and the stages.
    pub tracing: TracingConfig,
    /// Packets that are older than this go.
    pub last: Duration,
    /// Bytes that packets may take in memory.
    pub memory: usize,
    /// What a file is written for, besides SIGUSR1.
    pub triggers: Triggers,
    /// The directory of the files.
    pub directory: PathBuf,
    /// Files are written so far apart at least.
    pub every: Duration,
    /// Files that stay; the oldest goes when there is one more.
    pub keep: u32,
    /// Where to listen for who asks for a file by HTTP.
    pub listen: Option<Listen>,
    /// Names of this machine by which they may ask, besides its own.
    pub host_names: Vec<String>,
    /// Time zone of the summary.
    pub zone: Zone,
    /// Only errors go to standard error. The footer is then `FooterFormat::None`.
    pub quiet: bool,
    /// Form of the summary at the end, on standard error.
    pub footer: FooterFormat,
    /// Stop this long after everything is attached.
    pub duration: Option<Duration>,
}

/// What a file is written for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Triggers {
    /// A packet that took so long, in total or in one stage.
    pub slower: Option<Duration>,
    /// Packets dropped in the kernel within a second: N or more.
    pub drops: Option<u64>,
    /// TCP connections that failed within a second: N or more.
    pub failed: Option<u64>,
    /// A request by HTTP.
    pub http: bool,
}

/// One of them, as the command line has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trigger {
    /// See [`Triggers::slower`].
    Slower(Duration),
    /// See [`Triggers::drops`].
    Drops(u64),
    /// See [`Triggers::failed`].
    Failed(u64),
    /// SIGUSR1, which always is one.
    Signal,
    /// See [`Triggers::http`].
    Http,
}
