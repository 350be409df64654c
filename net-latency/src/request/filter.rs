//! Which packets are asked for.

use std::{num::NonZeroU32, path::PathBuf, time::Duration};

use net_latency_common::Direction;

use super::{
    glob::Glob,
    network::{Mark, Net},
};
use crate::packet::event::{IpVersion, Protocol};

/// Which packets to show: different conditions are combined with AND, the entries of a list with OR. An empty list and `None`
/// are no condition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PacketFilter {
    /// Processes (thread-group ids), each once.
    pub pids: Vec<u32>,
    /// A process to show, beside `pids`, with all those that it starts.
    pub followed: Option<u32>,
    /// Globs for the name of the thread that takes or wrote the bytes.
    pub comms: Vec<Glob>,
    /// Directories of cgroups (v2); a process in one or below it meets the condition.
    pub cgroups: Vec<PathBuf>,
    /// Ports at either end, each once.
    pub ports: Vec<u16>,
    /// Addresses and networks, at either end.
    pub hosts: Vec<Net>,
    /// Names of network devices, in any network namespace.
    pub interfaces: Vec<String>,
    /// Network namespaces, by inode number.
    pub netns: Vec<u32>,
    /// Only this protocol.
    pub protocol: Option<Protocol>,
    /// Only this IP version.
    pub version: Option<IpVersion>,
    /// Only this direction.
    pub direction: Option<Direction>,
    /// The firewall mark, in the bits of its mask.
    pub mark: Option<Mark>,
    /// The least time, in total or in one known stage.
    pub slower: Option<Duration>,
    /// One packet in this many, at random, of those that meet all other conditions.
    pub sample: Option<NonZeroU32>,
    /// Packets without application data too.
    pub control: bool,
}
