//! The parsed request of `net-latency export`.

use std::{fmt, net::SocketAddr, path::PathBuf, time::Duration};

use net_latency_common::GroupBy;

use super::{
    choice::choices,
    filter::PacketFilter,
    format::FooterFormat,
    hist::Histograms,
    tracing::{Backend, Stages},
};

/// Which metrics to keep, and where scrapers find them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExportConfig {
    /// Which packets to count; the kernel side applies this. It has no `slower`: all of them are counted.
    pub filter: PacketFilter,
    /// How to hook into the kernel: fentry, kprobe, or what suits it.
    pub backend: Backend,
    /// What series are kept for, besides direction, protocol and stage.
    pub by: ExportBy,
    /// Room for this many buckets of all groups together. What finds no room is counted as lost.
    pub buckets: u32,
    /// Stage detail.
    pub stages: Stages,
    /// Groups that have series of their own; all others are one more.
    pub series: usize,
    /// Which of them have a line besides.
    pub slow: Option<SlowLines>,
    /// Connections and listening sockets have metrics too.
    pub connections: bool,
    /// Where to listen.
    pub listen: Listen,
    /// Names of this machine by which scrapers may ask, besides its own.
    pub host_names: Vec<String>,
    /// Stop this long after everything is attached.
    pub duration: Option<Duration>,
    /// Only errors go to standard error. The footer is then `FooterFormat::None`.
    pub quiet: bool,
    /// Form of the summary at the end, on standard error.
    pub footer: FooterFormat,
}

/// Where scrapers come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Listen {
    /// To an address and port of this machine.
    Port(SocketAddr),
    /// To a unix socket of that path.
    Unix(PathBuf),
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Port(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Lines of slow packets on standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlowLines {
    /// The least time, in total or in one known stage.
    pub least: Duration,
    /// N a second at most; as many at once.
    pub per_second: u16,
}

impl ExportConfig {
    /// What the kernel side counts.
    #[must_use]
    pub(crate) fn histograms(&self) -> Histograms {
        let by = match self.by {
            ExportBy::None => GroupBy::Stage,
            ExportBy::Process => GroupBy::Process,
            ExportBy::Comm => GroupBy::Comm,
            ExportBy::Cgroup | ExportBy::Pod => GroupBy::Cgroup,
            ExportBy::Interface => GroupBy::Interface,
            ExportBy::Port => GroupBy::Port,
        };
        Histograms {
            by,
            buckets: self.buckets,
            stages: self.stages,
            slower: self.slow.map(|slow| slow.least),
        }
    }
}

choices! {
    /// What series are kept for. No process and no other end: their number has no bound.
    pub(crate) enum ExportBy {
        None "none" "Nothing else",
        Process "process" "The process's name",
        Comm "comm" "The thread's name",
        Cgroup "cgroup" "The process's cgroup: a systemd unit, a container",
        Pod "pod" "The process's Kubernetes namespace, pod and container",
        Interface "interface" "The network device",
        Port "port" "The server's port; ephemeral ones together",
    }
}
