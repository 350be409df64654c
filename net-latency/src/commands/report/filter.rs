//! Which of a log's packets the report is about.

use ipnet::IpNet;

use crate::request::{LogFilter, glob::Glob};
use crate::source::log::packet::Packet;

impl LogFilter {
    /// Whether it lets anything through.
    pub(super) fn is_open(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn matches(&self, packet: &Packet<'_>) -> bool {
        let has_port =
            |port: &u16| packet.ends.is_some_and(|ends| ends.iter().any(|end| end.port() == *port));
        let names = [packet.values.comm.as_deref(), packet.values.process.as_deref()];
        let has_name = |glob: &Glob| names.iter().flatten().any(|name| glob.matches(name.as_bytes()));
        let has_host =
            |net: &IpNet| packet.ends.is_some_and(|ends| ends.iter().any(|end| net.contains(&end.ip())));
        let mut times = packet.stages.into_iter().chain([packet.values.total_ns]).flatten();
        (self.pids.is_empty() || packet.values.pid.is_some_and(|pid| self.pids.contains(&pid)))
            && (self.ports.is_empty() || self.ports.iter().any(has_port))
            && (self.comms.is_empty() || self.comms.iter().any(has_name))
            && (self.hosts.is_empty() || self.hosts.iter().any(has_host))
            && self.slower.is_none_or(|least| times.any(|ns| u128::from(ns) >= least.as_nanos()))
            && self.direction.is_none_or(|direction| direction == packet.direction)
    }
}
