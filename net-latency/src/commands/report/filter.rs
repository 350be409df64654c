//! Which of a log's packets the report is about.

use net_latency_common::Direction;

use super::packet::Packet;
use crate::request::glob::Glob;

/// Packets that meet every condition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Process ids; all if empty.
    pub pids: Vec<u32>,
    /// Ports at either end; all if empty.
    pub ports: Vec<u16>,
    /// Patterns for the task's name; all if empty.
    pub comms: Vec<Glob>,
    /// The only direction.
    pub direction: Option<Direction>,
}

impl Filter {
    /// Whether it lets anything through.
    pub(super) fn is_open(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn matches(&self, packet: &Packet<'_>) -> bool {
        let has_port =
            |port: &u16| packet.ends.is_some_and(|ends| ends.iter().any(|end| end.port() == *port));
        let has_name = |glob: &Glob| packet.comm.as_deref().is_some_and(|comm| glob.matches(comm.as_bytes()));
        (self.pids.is_empty() || packet.pid.is_some_and(|pid| self.pids.contains(&pid)))
            && (self.ports.is_empty() || self.ports.iter().any(has_port))
            && (self.comms.is_empty() || self.comms.iter().any(has_name))
            && self.direction.is_none_or(|direction| direction == packet.direction)
    }
}
