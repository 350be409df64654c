//! What the kernel drops.

use crate::packet::event::Protocol;

/// Reasons for which it drops what belongs to no socket yet, or to none any more (include/net/dropreason-core.h of Linux 7.0). Not those of
/// what was for other machines, nor of queues of devices, which are told by themselves.
const REASONS: [&str; 20] = [
    "NETFILTER_DROP",
    "IP_CSUM",
    "IP_INHDR",
    "IP_RPFILTER",
    "IP_INADDRERRORS",
    "IP_INNOROUTES",
    "IP_OUTNOROUTES",
    "XFRM_POLICY",
    "IPV6DISABLED",
    "NEIGH_CREATEFAIL",
    "NEIGH_FAILED",
    "NEIGH_QUEUEFULL",
    "NEIGH_DEAD",
    "TC_INGRESS",
    "TC_EGRESS",
    "CPU_BACKLOG",
    "XDP",
    "SKB_GSO_SEG",
    "FULL_RING",
    "PKT_TOO_BIG",
];
/// Functions that do so where there is no reason: netfilter's verdict, a martian or a packet without a route, a full backlog, a neighbour
/// without an address (Linux 5.10).
const FUNCTIONS: [&str; 7] = [
    "nf_hook_slow",
    "nft_do_chain",
    "ip_rcv_finish_core",
    "ip_error",
    "enqueue_to_backlog",
    "arp_error_report",
    "__neigh_event_send",
];

/// What the kernel has dropped in one place, of one service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Dropped {
    /// Of which protocol.
    pub(crate) protocol: Protocol,
    /// The service's port.
    pub(crate) port: u16,
    /// Packets.
    pub(crate) count: u64,
    /// The kernel's function, where its name is known.
    pub(crate) function: Option<String>,
    /// The kernel's reason, since Linux 5.17.
    pub(crate) reason: Option<String>,
}

impl Dropped {
    /// Whether it is certain that no socket had them.
    pub(super) fn is_before_sockets(&self) -> bool {
        let is_among =
            |all: &[&str], name: &Option<String>| name.as_deref().is_some_and(|it| all.contains(&it));
        match self.reason.as_deref() {
            None | Some("NOT_SPECIFIED") => is_among(&FUNCTIONS, &self.function),
            Some(_) => is_among(&REASONS, &self.reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_socket_drops_is_not_dropped_before_it() {
        let is_before = |function: &str, reason: Option<&str>| {
            let [function, reason] = [Some(function), reason].map(|name| name.map(str::to_owned));
            Dropped { protocol: Protocol::Tcp, port: 80, count: 1, function, reason }.is_before_sockets()
        };
        assert!(is_before("nf_hook_slow", None) && is_before("ip_rcv_finish_core", Some("IP_RPFILTER")));
        assert!(is_before("nf_hook_slow", Some("NOT_SPECIFIED")));
        // A filter of a socket's, a closed port, another machine's packet, what came twice.
        let others = [
            ("nf_hook_slow", Some("SOCKET_FILTER")),
            ("tcp_v4_rcv", Some("NO_SOCKET")),
            ("ip_rcv_core", Some("OTHERHOST")),
            ("tcp_data_queue", Some("TCP_OLD_DATA")),
            ("tcp_v4_rcv", None),
        ];
        assert_eq!(others.map(|(function, reason)| is_before(function, reason)), [false; 5]);
    }
}
