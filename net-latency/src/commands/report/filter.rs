//! Which of a log's packets the report is about.

use ipnet::IpNet;

use crate::packet::event::Event;
use crate::request::{LogFilter, glob::Glob};

impl LogFilter {
    /// Whether it lets anything through.
    pub(super) fn is_open(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn matches(&self, event: &Event<'_>) -> bool {
        let ends = event.known_ends();
        let has_port = |port: &u16| ends.is_some_and(|ends| ends.iter().any(|end| end.port() == *port));
        let names = [event.comm(), event.process()];
        let has_name = |glob: &Glob| names.iter().flatten().any(|name| glob.matches(name));
        let has_host = |net: &IpNet| ends.is_some_and(|ends| ends.iter().any(|end| net.contains(&end.ip())));
        let mut times = event.stages().into_iter().chain([event.total_ns()]).flatten();
        (self.pids.is_empty() || event.pid().is_some_and(|pid| self.pids.contains(&pid)))
            && (self.ports.is_empty() || self.ports.iter().any(has_port))
            && (self.comms.is_empty() || self.comms.iter().any(has_name))
            && (self.hosts.is_empty() || self.hosts.iter().any(has_host))
            && self.slower.is_none_or(|least| times.any(|ns| u128::from(ns) >= least.as_nanos()))
            && self.direction.is_none_or(|direction| direction == event.direction())
    }
}
