//! What waits in accept queues: connections whose first bytes are there before anybody has accepted them, and those that a full queue
//! throws away. Told by the kernel side of connections, which is attached beside that of packets.

use std::collections::HashMap;

use net_latency_common::{
    COMM_LEN, CONNECTION_SERVER, ConnectionRecord, Direction, DroppingSockets, ListenerRecord,
};

use super::{
    finding::Who,
    service::{Processes, Service},
};
use crate::packet::event::Protocol;

/// Most ports that have a place; of others nothing is known.
const PORTS: usize = 4_096;

/// The accept queues of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Queues {
    /// Connections that were accepted, and for how long bytes had waited in them by then, ns.
    pub(super) accepted: u64,
    pub(super) waited_ns: u64,
    /// Handshakes that a full queue has thrown away, and how many it has room for.
    pub(super) overflows: u64,
    pub(super) backlog: u32,
    /// The process that listens, or accepted last: number, and name that 0 ends.
    pub(super) pid: u32,
    pub(super) process: [u8; COMM_LEN],
}

impl Queues {
    /// Whether half of a wait of so long, ns, or more was spent here.
    pub(super) fn is_most_of(&self, wait_ns: u128) -> bool {
        u128::from(self.waited_ns) * 2 >= wait_ns
    }

    /// The service that listens at that port.
    pub(super) fn who(&self, port: u16) -> Who {
        let name = self.process.split(|byte| *byte == 0).next().filter(|name| !name.is_empty());
        Who {
            process: name.map(<[u8]>::to_vec),
            processes: if self.pid == 0 { Processes::Unknown } else { Processes::One(self.pid) },
            port,
            protocol: Protocol::Tcp,
            direction: Direction::In,
        }
    }
}

/// The queues at each port, by its network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Listening(HashMap<(u32, u16), Queues>);

impl Listening {
    /// Those of that service, if it listens.
    pub(super) fn of(&self, service: &Service) -> Option<&Queues> {
        self.0.get(&(service.netns, service.port)).filter(|_| service.listens(service.netns, service.port))
    }

    /// Those of these sockets, if they listen.
    pub(super) fn dropping(&self, sockets: DroppingSockets) -> Option<&Queues> {
        let DroppingSockets { netns, port, protocol, is_client } = sockets;
        self.0.get(&(netns, port)).filter(|_| Protocol::of(protocol) == Protocol::Tcp && is_client == 0)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (&(u32, u16), &Queues)> {
        self.0.iter()
    }

    fn entry(&mut self, netns: u32, port: u16) -> Option<&mut Queues> {
        let is_known = self.0.contains_key(&(netns, port));
        (is_known || self.0.len() < PORTS).then(|| self.0.entry((netns, port)).or_default())
    }

    /// Counts a connection, each once.
    pub(crate) fn connection(&mut self, record: &ConnectionRecord) {
        let ConnectionRecord { established_ns, accepted_ns, first_in_ns, netns, local_port, .. } = *record;
        let is_accepted = record.flags & CONNECTION_SERVER != 0 && established_ns > 0 && accepted_ns > 0;
        let Some(queues) = self.entry(netns, local_port).filter(|_| is_accepted) else { return };
        queues.accepted += 1;
        if record.bytes_in > 0 && first_in_ns > 0 {
            let waited_ns = accepted_ns.saturating_sub(first_in_ns.max(established_ns));
            queues.waited_ns = queues.waited_ns.saturating_add(waited_ns);
        }
    }

    /// Counts a listening socket, each once.
    pub(crate) fn listener(&mut self, record: &ListenerRecord) {
        let Some(queues) = self.entry(record.netns, record.port) else { return };
        queues.overflows += record.overflows;
        queues.backlog = queues.backlog.max(record.backlog);
        (queues.pid, queues.process) = (record.pid, record.process);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_time_in_which_bytes_were_there_counts() {
        let mut listening = Listening::default();
        // Established, first byte, accepted.
        let times =
            [(10, 30, 100), (10, 10, 10), (50, 20, 60), (10, 90, 40), (10, 0, 500), (0, 5, 90), (10, 30, 0)];
        for (established_ns, first_in_ns, accepted_ns) in times {
            let bytes_in = first_in_ns;
            let of = |flags, local_port| ConnectionRecord {
                established_ns,
                first_in_ns,
                accepted_ns,
                bytes_in,
                flags,
                local_port,
                netns: 4,
                ..ConnectionRecord::default()
            };
            listening.connection(&of(CONNECTION_SERVER, 80));
            listening.connection(&of(0, 81));
        }
        let queues = Queues { accepted: 5, waited_ns: 70 + 10, ..Queues::default() };
        assert_eq!(listening.0.get(&(4, 80)), Some(&queues));
        assert_eq!(listening.0.get(&(5, 80)), None);
        assert!(listening.all().all(|((_, port), queues)| *port == 80 || queues.accepted == 0));
    }

    #[test]
    fn sockets_at_one_port_are_summed_and_ports_are_bounded() {
        let mut listening = Listening::default();
        let of = |port, overflows, backlog| ListenerRecord {
            port,
            overflows,
            backlog,
            pid: 7,
            ..ListenerRecord::default()
        };
        for record in [of(80, 2, 5), of(80, 3, 4)] {
            listening.listener(&record);
        }
        assert_eq!(
            listening.0.get(&(0, 80)),
            Some(&Queues { overflows: 5, backlog: 5, pid: 7, ..Queues::default() })
        );
        (0..=u16::MAX).for_each(|port| listening.listener(&of(port, 1, 1)));
        assert_eq!(listening.all().count(), PORTS);
        assert_eq!(listening.0.get(&(0, 80)).map(|queues| queues.overflows), Some(6));
    }
}
