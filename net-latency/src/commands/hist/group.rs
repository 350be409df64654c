//! Names of groups.

use std::{
    collections::HashMap,
    fs,
    net::{IpAddr, Ipv6Addr, SocketAddr},
};

use net_latency_common::{COMM_LEN, ConnectionKey, GroupBy};

use super::model::Id;
use crate::{
    escape::{bounded, write_name},
    kernel::{
        cgroups::{self, unified_hierarchy},
        devices::Devices,
    },
};

/// Whose packets a group's are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Identity {
    /// All packets.
    All,
    /// Those of unknown processes.
    Unknown,
    /// Those of N groups.
    Others(usize),
    /// A process, and its name where known.
    Process(u32, Option<Vec<u8>>),
    /// The processes of that name.
    Named(Vec<u8>),
    /// The threads of that name.
    Comm(Vec<u8>),
    /// Those with that port of the server's.
    Port(u16),
    /// Those of one end of a connection.
    Connection { local: SocketAddr, remote: SocketAddr, netns: u32 },
    /// Those of another end.
    Host(IpAddr),
    /// Those on a device.
    Interface { name: Option<Vec<u8>>, index: u32, netns: u32 },
    /// The processes in a cgroup.
    Cgroup { path: Option<String>, id: u64 },
}

impl Identity {
    /// Appends it as people read it, on one line, whatever its name contains.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let text = match self {
            Self::All => "all".to_owned(),
            Self::Unknown => "unknown".to_owned(),
            Self::Others(1) => "1 other".to_owned(),
            Self::Others(groups) => format!("{groups} others"),
            Self::Process(pid, name) => {
                write_name(name.as_deref(), out);
                format!(", PID {pid}")
            }
            Self::Port(port) => format!("port {port}"),
            Self::Connection { local, remote, .. } => format!("{local} with {remote}"),
            Self::Host(host) => host.to_string(),
            Self::Named(name) | Self::Comm(name) | Self::Interface { name: Some(name), .. } => {
                write_name(Some(name), out);
                return;
            }
            Self::Cgroup { path: Some(path), .. } => path.clone(),
            Self::Interface { index, netns, .. } => format!("device {index} of net:[{netns}]"),
            Self::Cgroup { id, .. } => format!("cgroup {id}"),
        };
        out.extend_from_slice(text.as_bytes());
    }
}

/// Finds names.
pub(super) struct Names<'a> {
    by: GroupBy,
    process: &'a dyn Fn([u64; 2]) -> Option<[u8; COMM_LEN]>,
    devices: Option<&'a mut Devices>,
    connections: HashMap<u64, ConnectionKey>,
    /// Paths below the hierarchy's root of those that are wanted, by inode number, which is the id.
    cgroups: HashMap<u64, String>,
}

impl<'a> Names<'a> {
    /// As they are now, for `groups`.
    pub(super) fn new(
        by: GroupBy,
        groups: &[Id],
        process: &'a dyn Fn([u64; 2]) -> Option<[u8; COMM_LEN]>,
        devices: Option<&'a mut Devices>,
        connections: HashMap<u64, ConnectionKey>,
    ) -> Self {
        let mut cgroups = HashMap::new();
        if by == GroupBy::Cgroup {
            let mounts = fs::read("/proc/self/mountinfo").unwrap_or_default();
            let take = &mut |id, path: &[u8], _: Option<u32>| {
                if groups.iter().any(|group| matches!(group, Id::One([known, _]) if *known == id)) {
                    cgroups.insert(id, bounded(path));
                }
            };
            unified_hierarchy(&mounts).iter().for_each(|root| cgroups::each(root, take));
        }
        Self { by, process, devices, connections, cgroups }
    }

    /// The connection with that number.
    fn connection(&self, number: u64) -> Option<Identity> {
        let &ConnectionKey([first, second, rest]) = self.connections.get(&number)?;
        let address = |number| {
            let ConnectionKey([start, end, _]) = self.connections.get(&number)?;
            Some(host([*start, *end]))
        };
        let (local, remote) = if second == ConnectionKey::V4 {
            let address = |word: u64| IpAddr::from((word as u32).to_ne_bytes());
            (address(first), address(first >> 32))
        } else {
            (address(first)?, address(second)?)
        };
        let ([local_port, remote_port], netns) = ConnectionKey::ports_and_netns(rest);
        Some(Identity::Connection {
            local: SocketAddr::new(local, local_port),
            remote: SocketAddr::new(remote, remote_port),
            netns,
        })
    }

    /// The identity of a group.
    pub(super) fn identity(&mut self, id: Id) -> Identity {
        let [first, second] = match id {
            Id::Others(groups) => return Identity::Others(groups),
            Id::One(words) => words,
        };
        let is_known = first != 0 || second != 0;
        match self.by {
            GroupBy::Stage => Identity::All,
            GroupBy::Port => Identity::Port(first as u16),
            GroupBy::Host => Identity::Host(host([first, second])),
            _ if !is_known => Identity::Unknown,
            GroupBy::Connection => self.connection(first).unwrap_or(Identity::Unknown),
            GroupBy::Pid => {
                // The second word tells it from others that had its number: when it was started.
                let name = (self.process)([first, second]).and_then(|name| until_nul(&name));
                Identity::Process(first as u32, name)
            }
            GroupBy::Process => until_nul(&bytes([first, second])).map_or(Identity::Unknown, Identity::Named),
            GroupBy::Comm => until_nul(&bytes([first, second])).map_or(Identity::Unknown, Identity::Comm),
            GroupBy::Interface => {
                let (index, netns) = (first as u32, second as u32);
                let devices = self.devices.as_mut();
                let name = devices.and_then(|devices| devices.name(netns, index, 0)).map(<[u8]>::to_vec);
                Identity::Interface { name, index, netns }
            }
            GroupBy::Cgroup => Identity::Cgroup { path: self.cgroups.get(&first).cloned(), id: first },
        }
    }
}

/// Two words as they lie in memory.
fn bytes([first, second]: [u64; 2]) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&first.to_ne_bytes());
    bytes[8..].copy_from_slice(&second.to_ne_bytes());
    bytes
}

fn host(words: [u64; 2]) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from(bytes(words))).to_canonical()
}

fn until_nul(name: &[u8]) -> Option<Vec<u8>> {
    let name = name.split(|&byte| byte == 0).next()?;
    (!name.is_empty()).then(|| name.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(by: GroupBy, words: [u64; 2]) -> String {
        let process = |group| (group == [7, 1]).then_some(*b"fire\nfox\0garbage");
        let mut out = Vec::new();
        let v4 = |a, b, c, d| u64::from(u32::from_ne_bytes([a, b, c, d]));
        let v6 = |last: u16| Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last).octets();
        let address = |last| {
            let [start, end] =
                [0, 8].map(|at| u64::from_ne_bytes(v6(last)[at..at + 8].try_into().expect("8 bytes")));
            ConnectionKey([start, end, ConnectionKey::ADDRESS])
        };
        let rest = ConnectionKey::rest([443, 40_000], 5);
        let connections = HashMap::from([
            (77, ConnectionKey([v4(192, 0, 2, 1) | v4(192, 0, 2, 7) << 32, ConnectionKey::V4, rest])),
            (79, address(1)),
            (81, address(2)),
            (83, ConnectionKey([79, 81, rest])),
            (85, ConnectionKey([79, 78, rest])),
        ]);
        Names::new(by, &[], &process, None, connections).identity(Id::One(words)).write(&mut out);
        String::from_utf8(out).expect("printable")
    }

    #[test]
    fn each_group_has_a_name() {
        let v4 = u64::from(u32::from_ne_bytes([192, 0, 2, 7])) << 32 | 0xffff_0000;
        let v6 = Ipv6Addr::LOCALHOST.octets();
        let [_, low] = [0, 8].map(|at| u64::from_ne_bytes(v6[at..at + 8].try_into().expect("8 bytes")));
        let name = u64::from_ne_bytes(*b"curl\0\0\0\0");
        let shown = [
            text(GroupBy::Stage, [0, 0]),
            text(GroupBy::Pid, [7, 1]),
            text(GroupBy::Pid, [7, 2]),
            text(GroupBy::Pid, [8, 0]),
            text(GroupBy::Pid, [0, 0]),
            text(GroupBy::Process, [name, 0]),
            text(GroupBy::Process, [0, 0]),
            text(GroupBy::Comm, [name, 0]),
            text(GroupBy::Comm, [0, 0]),
            text(GroupBy::Port, [443, 0]),
            text(GroupBy::Connection, [77, 0]),
            text(GroupBy::Connection, [83, 0]),
            text(GroupBy::Connection, [85, 0]),
            text(GroupBy::Connection, [78, 0]),
            text(GroupBy::Host, [0, v4]),
            text(GroupBy::Host, [0, low]),
            text(GroupBy::Interface, [5, 1]),
            text(GroupBy::Cgroup, [u64::MAX, 0]),
        ];
        insta::assert_snapshot!(shown.join("\n"));
    }
}
