//! Which packets are asked for.

use std::{num::NonZeroU32, path::PathBuf, time::Duration};

use net_latency_common::Direction;

use super::{
    glob::Glob,
    network::{Mark, Net},
};
use crate::packet::event::{IpVersion, Protocol};

/// Which packets to show: those that meet every condition. Of a list, one entry must fit; all do if it is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PacketFilter {
    /// Processes (thread-group ids), each once.
    pub pids: Vec<u32>,
    /// A process to show, beside `pids`, with all those that it starts.
    pub followed: Option<u32>,
    /// Names of tasks.
    pub comms: Vec<Glob>,
    /// Directories of cgroups.
    pub cgroups: Vec<PathBuf>,
    /// Ports, each once.
    pub ports: Vec<u16>,
    /// Addresses and networks.
    pub hosts: Vec<Net>,
    /// Names of devices.
    pub interfaces: Vec<String>,
    /// Network namespaces, by inode number.
    pub netns: Vec<u32>,
    /// The only protocol.
    pub protocol: Option<Protocol>,
    /// The only IP version.
    pub version: Option<IpVersion>,
    /// The only direction.
    pub direction: Option<Direction>,
    /// The mark.
    pub mark: Option<Mark>,
    /// The least time, of the whole way or one stage of it.
    pub slower: Option<Duration>,
    /// One packet of so many.
    pub sample: Option<NonZeroU32>,
    /// Packets without application data too.
    pub control: bool,
}
