//! Which packets are wanted.

use std::{net::SocketAddr, num::NonZeroU32, path::PathBuf, time::Duration};

use ipnet::IpNet;
use net_latency_common::Direction;

use super::{glob::Glob, network::Mark};
use crate::packet::event::{Event, IpVersion, Protocol};

/// Which packets to show: different conditions are combined with AND, the entries of a list with OR. An empty list and `None`
/// are no condition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PacketFilter {
    /// Processes (thread-group ids), each once.
    pub pids: Vec<u32>,
    /// A process to show, beside `pids`, with all those that it starts.
    pub followed: Option<u32>,
    /// Globs for the name of the thread that takes or wrote the bytes, or of its process.
    pub comms: Vec<Glob>,
    /// Directories of cgroups (v2); a process in one or below it meets the condition.
    pub cgroups: Vec<PathBuf>,
    /// Ports at either end, each once.
    pub ports: Vec<u16>,
    /// Addresses and networks, at either end.
    pub hosts: Vec<IpNet>,
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

impl PacketFilter {
    /// Whether it leaves only slow packets, or a sample: what is common, and what follows what, can't be told from these.
    pub(crate) fn is_only_some(&self) -> bool {
        self.slower.is_some() || self.sample.is_some()
    }

    /// Whether the recorded packet `event` is wanted, as the kernel side decides it while tracing. The command line
    /// refuses what a log can't answer.
    pub(crate) fn matches(&self, event: &Event<'_>) -> bool {
        // Named one by one, here and below, so that no new one is forgotten.
        let PacketFilter {
            pids: _,
            followed: _,
            comms: _,
            cgroups: _,
            ports: _,
            hosts: _,
            interfaces,
            netns: _,
            protocol,
            version: _,
            direction,
            mark: _,
            slower,
            sample: _,
            control: _,
        } = self;
        let record = event.record();
        let ends =
            [SocketAddr::new(event.saddr(), record.sport), SocketAddr::new(event.daddr(), record.dport)];
        self.matches_ends(event.pid(), event.comm().into_iter().chain(event.process()), ends, record.mark)
            && (interfaces.is_empty()
                || event.ifname().is_some_and(|name| interfaces.iter().any(|own| own.as_bytes() == name)))
            && protocol.is_none_or(|protocol| protocol == event.protocol())
            && direction.is_none_or(|direction| direction == event.direction())
            && slower.is_none_or(|least| event.is_slow(least))
    }

    /// Whether what a packet and a connection have in common is wanted: a process, names of it and of its thread, two ends, and a mark.
    pub(crate) fn matches_ends<'n>(
        &self,
        pid: Option<u32>,
        mut names: impl Iterator<Item = &'n [u8]>,
        ends: [SocketAddr; 2],
        mark: u32,
    ) -> bool {
        let PacketFilter { pids, comms, ports, hosts, version, mark: wanted, .. } = self;
        let is = |version: IpVersion| (version == IpVersion::V4) == ends[0].is_ipv4();
        (pids.is_empty() || pid.is_some_and(|pid| pids.contains(&pid)))
            && (comms.is_empty() || names.any(|name| comms.iter().any(|glob| glob.matches(name))))
            && (ports.is_empty() || ends.iter().any(|end| ports.contains(&end.port())))
            && (hosts.is_empty() || hosts.iter().any(|net| ends.iter().any(|end| net.contains(&end.ip()))))
            && version.is_none_or(is)
            && wanted.is_none_or(|wanted| mark & wanted.mask == wanted.value)
    }
}

#[cfg(test)]
mod tests {
    use net_latency_common::PacketRecord;

    use super::*;
    use crate::{
        packet::event::fixtures::{incoming, v6},
        request::network::parse_net,
    };

    #[test]
    fn each_filter_keeps_its_packets_and_no_others() {
        let open = PacketFilter::default;
        let host = |text: &str| PacketFilter { hosts: vec![parse_net(text).expect("a network")], ..open() };
        let slower = |us| PacketFilter { slower: Some(Duration::from_micros(us)), ..open() };
        let mark = |value, mask| PacketFilter { mark: Some(Mark { value, mask }), ..open() };
        let comm = |glob: &str| PacketFilter { comms: vec![glob.parse().expect("a glob")], ..open() };
        let record = PacketRecord { mark: 0x15, ..incoming() };
        let cases = [
            (open(), true),
            (PacketFilter { pids: vec![1, 19_550], ..open() }, true),
            (PacketFilter { pids: vec![19_561], ..open() }, false),
            (comm("fire*"), true),
            (comm("fire"), false),
            (comm("Socket*"), true),
            (PacketFilter { ports: vec![51_324], ..open() }, true),
            (PacketFilter { ports: vec![80], ..open() }, false),
            (host("192.0.2.0/24"), true),
            (host("198.51.100.20"), true),
            (host("192.0.3.0/24"), false),
            (host("0.0.0.0/0"), true),
            (host("::/0"), false),
            (PacketFilter { interfaces: vec!["lo".to_owned(), "eth0".to_owned()], ..open() }, true),
            (PacketFilter { interfaces: vec!["eth".to_owned()], ..open() }, false),
            (PacketFilter { protocol: Some(Protocol::Udp), ..open() }, false),
            (PacketFilter { version: Some(IpVersion::V4), ..open() }, true),
            (PacketFilter { version: Some(IpVersion::V6), ..open() }, false),
            (PacketFilter { direction: Some(Direction::Out), ..open() }, false),
            (mark(0x10, 0xf0), true),
            (mark(0x15, u32::MAX), true),
            (mark(0x10, u32::MAX), false),
            // Its total is 247.5 us.
            (slower(247), true),
            (slower(248), false),
            // Both have to fit.
            (PacketFilter { pids: vec![19_550], ports: vec![80], ..open() }, false),
        ];
        for (filter, expected) in cases {
            assert_eq!(filter.matches(&Event::new(&record, 0, Some(b"eth0"))), expected, "{filter:?}");
        }
        let record = v6(incoming());
        let event = Event::new(&record, 0, None);
        assert!(host("2001:db8::/32").matches(&event) && !host("2001:db9::/32").matches(&event));
        assert!(!PacketFilter { interfaces: vec!["eth0".to_owned()], ..open() }.matches(&event));
        // A stage may be slow where the total is unknown.
        let partial = PacketRecord { stamps: [0, 0, 1, 1_000_001], ..incoming() };
        assert!(slower(1_000).matches(&Event::new(&partial, 0, None)));
    }
}
