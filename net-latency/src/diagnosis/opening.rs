//! How long clients' connections take to open: told by the kernel side of connections, which is attached beside that of packets, as soon
//! as each is established.

use std::net::SocketAddr;

use net_latency_common::{CONNECTION_CLIENT, ConnectionRecord};

use crate::{
    accounting::Ends,
    clock::Clock,
    packet::event::{Protocol, address},
};

/// The handshake of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Handshake {
    /// From when its SYN left until the connection was established, ns since 1970; from when the process asked if the SYN was sent again.
    pub(super) from_ns: i64,
    pub(super) to_ns: i64,
    pub(super) is_sent_again: bool,
}

impl Handshake {
    /// That of a connection that has just been established; nothing of one that is a server's or of which too little is known.
    pub(super) fn of(record: &ConnectionRecord, clock: Clock) -> Option<(Ends, Self)> {
        let ConnectionRecord { started_ns, established_ns, family, netns, .. } = *record;
        let is_known =
            record.flags & CONNECTION_CLIENT != 0 && 0 < started_ns && started_ns <= established_ns;
        let ends = Ends {
            protocol: Protocol::Tcp,
            netns,
            local: SocketAddr::new(address(&record.local, family), record.local_port),
            remote: SocketAddr::new(address(&record.remote, family), record.remote_port),
        };
        let handshake = Self {
            from_ns: clock.to_utc_ns(started_ns),
            to_ns: clock.to_utc_ns(established_ns),
            is_sent_again: record.syn_retrans > 0,
        };
        is_known.then_some((ends, handshake))
    }

    /// What of it passed before a request was written then, ns: with Fast Open the request may be first.
    pub(super) fn before(&self, written_ns: i64) -> u64 {
        u64::try_from(self.to_ns.min(written_ns).saturating_sub(self.from_ns)).unwrap_or(0)
    }
}

/// The connections that a client has opened and sent a request on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Opened {
    pub(super) count: u64,
    pub(super) sum_ns: u64,
    /// Those whose SYN was sent again.
    pub(super) again: u64,
    pub(super) again_ns: u64,
}

impl Opened {
    pub(super) fn add(&mut self, handshake: &Handshake, ns: u64) {
        self.count += 1;
        self.sum_ns = self.sum_ns.saturating_add(ns);
        if handshake.is_sent_again {
            self.again += 1;
            self.again_ns = self.again_ns.saturating_add(ns);
        }
    }

    /// Adds another's.
    pub(super) fn join(&mut self, other: &Self) {
        self.count += other.count;
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        self.again += other.again;
        self.again_ns = self.again_ns.saturating_add(other.again_ns);
    }

    /// Whether half of their time or more is of those whose SYN was sent again.
    pub(super) fn are_sent_again(&self) -> bool {
        self.again > 0 && self.again_ns.saturating_mul(2) >= self.sum_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_clients_handshake_with_both_times_is_known() {
        let clock = Clock::at(1_000);
        let record = ConnectionRecord {
            started_ns: 10,
            established_ns: 50,
            flags: CONNECTION_CLIENT,
            syn_retrans: 1,
            local_port: 40_000,
            remote_port: 80,
            netns: 4,
            family: 2,
            ..ConnectionRecord::default()
        };
        let (ends, handshake) = Handshake::of(&record, clock).expect("known");
        assert_eq!((ends.netns, ends.local.port(), ends.remote.port()), (4, 40_000, 80));
        assert_eq!(handshake, Handshake { from_ns: 1_010, to_ns: 1_050, is_sent_again: true });
        assert_eq!([1_060, 1_030, 1_000].map(|written| handshake.before(written)), [40, 20, 0]);
        for unknown in [
            ConnectionRecord { flags: 0, ..record },
            ConnectionRecord { started_ns: 0, ..record },
            ConnectionRecord { established_ns: 0, ..record },
        ] {
            assert_eq!(Handshake::of(&unknown, clock), None);
        }
    }

    #[test]
    fn what_was_sent_again_is_told_by_its_time() {
        let (mut opened, mut other) = (Opened::default(), Opened::default());
        let of = |is_sent_again| Handshake { from_ns: 0, to_ns: 0, is_sent_again };
        opened.add(&of(false), 100);
        assert!(!opened.are_sent_again());
        other.add(&of(true), 90);
        opened.join(&other);
        assert_eq!(opened, Opened { count: 2, sum_ns: 190, again: 1, again_ns: 90 });
        assert!(!opened.are_sent_again());
        opened.add(&of(true), 10);
        assert!(opened.are_sent_again());
    }
}
