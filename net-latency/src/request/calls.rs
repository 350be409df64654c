//! The parsed request of `net-latency calls`.

use std::{num::NonZeroU64, path::PathBuf, time::Duration};

use glob::Pattern;

use super::{
    choice::choices,
    filter::PacketFilter,
    format::{CallFormat, FooterFormat, Style},
    tracing::TracingConfig,
};
use crate::clock::Zone;

/// Which calls to trace, how to show them and when to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallsConfig {
    /// Globs for names of kernel functions; what they match is traced in addition to `presets`.
    pub functions: Vec<Pattern>,
    /// Lists of functions that belong together, as far as the running kernel has them.
    pub presets: Vec<Preset>,
    /// Processes, names of threads and cgroups whose calls to trace. No other field counts here.
    pub filter: PacketFilter,
    /// Show only outermost calls that took at least this long, with all calls inside them.
    pub slower: Option<Duration>,
    /// How nested calls are shown, in text.
    pub style: Style,
    /// Form of the output: text, or a JSON object per call.
    pub format: CallFormat,
    /// Text has the functions' addresses, too.
    pub addresses: bool,
    /// Text has each call's time without its traced callees, too.
    pub self_time: bool,
    /// File to append to; standard output if `None`.
    pub output: Option<PathBuf>,
    /// Time zone of the output: that of this machine, or UTC.
    pub zone: Zone,
    /// Only errors go to standard error. The footer is then `FooterFormat::None`.
    pub quiet: bool,
    /// Form of the summary at the end, on standard error.
    pub footer: FooterFormat,
    /// Standard error has the names of the functions that can't be traced, and why.
    pub verbose: bool,
    /// Stop this long after everything is attached.
    pub duration: Option<Duration>,
    /// Stop after this many outermost calls.
    pub count: Option<NonZeroU64>,
    /// The size of the ring buffer; functions are always hooked by kprobes.
    pub tracing: TracingConfig,
}

choices! {
    /// Functions that belong together.
    #[derive(PartialOrd, Ord)]
    pub(crate) enum Preset {
        Socket "socket" "All of net/socket.c: system calls of sockets, and what is between them and the protocols",
        Tcp "tcp" "TCP from the system call to IP and back",
        Udp "udp" "UDP likewise",
        Ip "ip" "IPv4 and IPv6",
        Netlink "netlink" "Netlink",
        Rx "rx" "From the driver up to IP",
        Tx "tx" "From IP down to the driver",
    }
}
