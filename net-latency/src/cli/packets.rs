//! Which packets: the options that every view of packets shares.

use std::{
    num::NonZeroU32,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use ipnet::IpNet;
use net_latency_common::{Direction, MAX_CGROUPS};

use super::{choice::choice, places, process};
use crate::{
    error::Failure,
    packet::event::{IpVersion, Protocol},
    request::{
        Mark, PacketFilter,
        glob::{Glob, MAX_GLOBS},
        network, values,
    },
};

/// The options, as clap reads them.
#[derive(Debug, Args)]
#[command(next_help_heading = "Packets (different filters: AND; one given repeatedly: OR)")]
pub(super) struct PacketArguments {
    /// Only packets of this process (repeatable)
    #[arg(short, long = "pid", value_name = "PID", value_parser = values::parse_pid)]
    pids: Vec<u32>,
    /// Only packets of processes or threads whose name matches GLOB: 'nginx', 'ngin*' (repeatable)
    #[arg(long = "comm", value_name = "GLOB", value_parser = |text: &str| text.parse::<Glob>())]
    comms: Vec<Glob>,
    /// Only packets of processes in this cgroup or below: a systemd unit, a container (repeatable)
    #[arg(long = "cgroup", value_name = "PATH")]
    cgroups: Vec<PathBuf>,
    /// Only packets of processes in this container, by its name or the first digits of its id (repeatable)
    #[arg(long = "container", value_name = "NAME|ID", conflicts_with = "cgroups")]
    containers: Vec<String>,
    /// Only packets with this port at either end (repeatable)
    #[arg(long = "port", value_name = "PORT", value_parser = values::parse_port)]
    ports: Vec<u16>,
    /// Only packets with this address, or one of this network, at either end (repeatable)
    #[arg(long = "host", value_name = "ADDR|CIDR", value_parser = network::parse_net)]
    hosts: Vec<IpNet>,
    /// Only packets on the network device with this name (repeatable)
    #[arg(long = "interface", value_name = "NAME")]
    interfaces: Vec<String>,
    /// Only packets in the network namespace of this process, of this name or at this path (repeatable)
    #[arg(long = "netns", value_name = "PID|NAME|PATH")]
    netns: Vec<String>,
    /// Only packets of this protocol
    #[arg(long = "proto", value_parser = choice::<Protocol>())]
    protocol: Option<Protocol>,
    /// Only IPv4 packets
    #[arg(short = '4', long = "ipv4")]
    v4: bool,
    /// Only IPv6 packets
    #[arg(short = '6', long = "ipv6")]
    v6: bool,
    /// Only packets that come in, or only those that go out
    #[arg(long, value_parser = choice::<Direction>())]
    direction: Option<Direction>,
    /// Only packets with this firewall mark, in the bits of MASK: 7, 0x10/0xf0
    #[arg(long, value_name = "VALUE[/MASK]", value_parser = network::parse_mark)]
    mark: Option<Mark>,
    /// Only packets that took at least this long, in total or in one stage: 250us, 1ms
    #[arg(long, value_name = "DURATION", value_parser = values::parse_duration)]
    slower: Option<Duration>,
    /// Only one packet in N, at random: 1/100
    #[arg(long, value_name = "1/N", value_parser = network::parse_sample)]
    sample: Option<NonZeroU32>,
    /// Also packets without data: SYN, FIN, RST, pure ACKs and probes
    #[arg(long)]
    control: bool,
}

impl PacketArguments {
    /// Checks the options against this machine, whose processes `proc` shows.
    pub(super) fn resolve(self, proc: &Path) -> Result<PacketFilter, Failure> {
        process::check_pids(&self.pids, proc)?;
        places::check_interfaces(&self.interfaces, &self.netns, proc)?;
        self.resolve_for_log(proc)
    }

    /// Checks the options for packets that were recorded: perhaps on another machine, whose processes and devices are not
    /// known here.
    pub(super) fn resolve_for_log(self, proc: &Path) -> Result<PacketFilter, Failure> {
        at_most("--comm", self.comms.len(), MAX_GLOBS)?;
        at_most("--cgroup", self.cgroups.len(), MAX_CGROUPS as usize)?;
        let mut cgroups = places::cgroups(&self.cgroups, proc)?;
        cgroups.extend(places::containers(&self.containers, proc)?);
        if cgroups.len() > MAX_CGROUPS as usize {
            return Err(Failure::Usage(format!(
                "--container names {} containers here, and {MAX_CGROUPS} can be traced at most; give a cgroup that \
                 they are all in with --cgroup",
                cgroups.len()
            )));
        }
        let netns = places::namespaces(&self.netns, proc)?;
        Ok(PacketFilter {
            pids: unique(self.pids),
            followed: None,
            comms: unique(self.comms),
            cgroups: unique(cgroups),
            ports: unique(self.ports),
            hosts: unique(self.hosts),
            interfaces: unique(self.interfaces),
            netns: unique(netns),
            protocol: self.protocol,
            version: match (self.v4, self.v6) {
                (true, false) => Some(IpVersion::V4),
                (false, true) => Some(IpVersion::V6),
                _ => None,
            },
            direction: self.direction,
            mark: self.mark,
            slower: self.slower,
            sample: self.sample,
            control: self.control,
        })
    }
}

pub(super) fn at_most(option: &str, given: usize, most: usize) -> Result<(), Failure> {
    if given > most {
        return Err(Failure::Usage(format!(
            "{option} can be given {most} times at most, and was given {given} times"
        )));
    }
    Ok(())
}

pub(super) fn unique<T: Ord>(mut values: Vec<T>) -> Vec<T> {
    values.sort_unstable();
    values.dedup();
    values
}
