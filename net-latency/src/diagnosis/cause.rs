//! What may make a service slow.

use super::item::Item;
use crate::{named::named, packet::event::Protocol};

named! {
    /// What makes a service slow.
    pub(super) enum Cause {
        ReaderLate "reader-late",
        /// Connections wait for `accept`, or a full queue drops them.
        AcceptLate "accept-late",
        CpuWait "cpu-wait",
        MissingBytes "missing-bytes",
        /// In the socket, and why is not known.
        SocketWait "socket-wait",
        PeerWindow "peer-window",
        CongestionWindow "congestion-window",
        Nagle "nagle",
        /// For another reason, or one that is not known.
        TcpHeld "tcp-held",
        UdpHeld "udp-held",
        Qdisc "qdisc",
        Driver "driver",
        Network "network",
        /// An answer that came late, with the ACK: the wire, or the peer's application.
        PeerAnswer "peer-answer",
        SoftirqLate "softirq-late",
        /// Its rules, mostly: what takes long in IP.
        Netfilter "netfilter",
        /// Before they get to a socket.
        PacketDrop "packet-drop",
        SocketDrop "socket-drop",
        Retransmission "retransmission",
        Application "application",
        /// Of its cgroup, or of one above it.
        CpuQuota "cpu-quota",
        /// The whole machine's.
        CpuShort "cpu-short",
        /// Requests, or bytes.
        Unanswered "unanswered",
    }
}

impl Cause {
    /// That of what takes longest.
    pub(super) fn of(item: Item, protocol: Protocol) -> Self {
        match item {
            Item::DrvIp => Self::SoftirqLate,
            Item::IpTransport | Item::TransportIp | Item::IpDrv => Self::Netfilter,
            Item::Socket => Self::SocketWait,
            Item::Gap => Self::MissingBytes,
            Item::Wait | Item::Copy => Self::ReaderLate,
            Item::Cpu => Self::CpuWait,
            Item::AppTransport if protocol == Protocol::Udp => Self::UdpHeld,
            Item::AppTransport => Self::TcpHeld,
            Item::Qdisc => Self::Qdisc,
            Item::Driver => Self::Driver,
            Item::Net | Item::Wire | Item::Connect => Self::Network,
            Item::Answer | Item::Theirs | Item::Rest => Self::PeerAnswer,
            Item::Service | Item::Asked => Self::Application,
            Item::Resend => Self::Retransmission,
        }
    }
}
