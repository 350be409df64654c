//! What `net-latency calls` is asked for.

use std::{num::NonZeroU64, path::PathBuf, time::Duration};

use glob::Pattern;

use super::{
    choice::Choice,
    filter::PacketFilter,
    format::{CallFormat, FooterFormat, Style},
    tracing::TracingConfig,
};
use crate::clock::Zone;

/// Which calls to trace, how to show them and when to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallsConfig {
    /// Patterns of names.
    pub functions: Vec<Pattern>,
    /// Lists of names.
    pub presets: Vec<Preset>,
    /// Whose calls.
    pub filter: PacketFilter,
    /// The least time of an outermost call.
    pub slower: Option<Duration>,
    /// How calls within each other are shown.
    pub style: Style,
    /// Form of the output.
    pub format: CallFormat,
    /// With addresses.
    pub addresses: bool,
    /// With the time of each call alone.
    pub self_time: bool,
    /// File to append to; standard output if `None`.
    pub output: Option<PathBuf>,
    /// Whose time is shown.
    pub zone: Zone,
    /// Nothing on stderr but errors.
    pub quiet: bool,
    /// Form of the figures at the end.
    pub footer: FooterFormat,
    /// With the names of what can't be traced.
    pub verbose: bool,
    /// Time after which to stop.
    pub duration: Option<Duration>,
    /// Outermost calls after which to stop.
    pub count: Option<NonZeroU64>,
    /// Size of the ring buffer.
    pub tracing: TracingConfig,
}

/// Functions that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Preset {
    /// All of net/socket.c: system calls of sockets, and what is between them and the protocols
    Socket,
    /// TCP from the system call to IP and back
    Tcp,
    /// UDP likewise
    Udp,
    /// IPv4 and IPv6
    Ip,
    /// Netlink
    Netlink,
    /// From the driver up to IP
    Rx,
    /// From IP down to the driver
    Tx,
}

impl Choice for Preset {
    const ALL: &'static [(Self, &'static str, &'static str)] = &[
        (
            Self::Socket,
            "socket",
            "All of net/socket.c: system calls of sockets, and what is between them and the protocols",
        ),
        (Self::Tcp, "tcp", "TCP from the system call to IP and back"),
        (Self::Udp, "udp", "UDP likewise"),
        (Self::Ip, "ip", "IPv4 and IPv6"),
        (Self::Netlink, "netlink", "Netlink"),
        (Self::Rx, "rx", "From the driver up to IP"),
        (Self::Tx, "tx", "From IP down to the driver"),
    ];
}
