//! Which packets are traced, in the words of the command line.

use crate::{
    packet::{event::IpVersion, stages::dir},
    request::{PacketFilter, network::net_text},
};

/// The options that make this filter; empty if all packets with data are traced.
pub(super) fn options(filter: &PacketFilter) -> String {
    // Named one by one, so that no new one is forgotten here.
    let PacketFilter {
        pids,
        // Only the stream runs commands.
        followed: _,
        comms,
        cgroups,
        ports,
        hosts,
        interfaces,
        netns,
        protocol,
        version,
        direction,
        mark,
        slower,
        sample,
        control,
    } = filter;
    let mut options: Vec<String> = Vec::new();
    options.extend(pids.iter().map(|pid| format!("--pid {pid}")));
    options.extend(comms.iter().map(|comm| format!("--comm {comm}")));
    options.extend(cgroups.iter().map(|path| format!("--cgroup {}", path.display())));
    options.extend(ports.iter().map(|port| format!("--port {port}")));
    options.extend(hosts.iter().map(|host| format!("--host {}", net_text(host))));
    options.extend(interfaces.iter().map(|interface| format!("--interface {interface}")));
    options.extend(netns.iter().map(|inode| format!("--netns net:[{inode}]")));
    options.extend(protocol.map(|protocol| format!("--proto {}", protocol.name())));
    options.extend(version.map(|version| match version {
        IpVersion::V4 => "-4".to_owned(),
        IpVersion::V6 => "-6".to_owned(),
    }));
    options.extend(direction.map(|direction| format!("--direction {}", dir(direction))));
    options.extend(mark.map(|mark| format!("--mark {mark}")));
    options.extend(slower.map(|least| format!("--slower {least:?}")));
    options.extend(sample.map(|count| format!("--sample 1/{count}")));
    options.extend(control.then(|| "--control".to_owned()));
    options.join(" ")
}

#[cfg(test)]
mod tests {
    use std::{num::NonZeroU32, time::Duration};

    use net_latency_common::Direction;

    use super::*;
    use crate::{packet::event::Protocol, request::Mark};

    #[test]
    fn what_was_asked_for_reads_as_it_was_asked_for() {
        assert_eq!(options(&PacketFilter::default()), "");
        let filter = PacketFilter {
            pids: vec![1, 2],
            followed: None,
            comms: vec!["ngin*".parse().expect("a glob")],
            cgroups: vec!["/sys/fs/cgroup/a".into()],
            ports: vec![443],
            hosts: vec!["10.0.0.0/8".parse().expect("a network")],
            interfaces: vec!["eth0".to_owned()],
            netns: vec![4_026_531_840],
            protocol: Some(Protocol::Udp),
            version: Some(IpVersion::V6),
            direction: Some(Direction::Out),
            mark: Some(Mark { value: 0x10, mask: 0xf0 }),
            slower: Some(Duration::from_micros(1500)),
            sample: NonZeroU32::new(100),
            control: true,
        };
        assert_eq!(
            options(&filter),
            "--pid 1 --pid 2 --comm ngin* --cgroup /sys/fs/cgroup/a --port 443 --host 10.0.0.0/8 --interface eth0 \
             --netns net:[4026531840] --proto udp -6 --direction out --mark 0x10/0xf0 --slower 1.5ms \
             --sample 1/100 --control"
        );
    }
}
