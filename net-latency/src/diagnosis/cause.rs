//! What may make a service slow.

use super::item::Item;
use crate::packet::event::Protocol;

/// What makes a service slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    ReaderLate,
    /// Connections wait for `accept`, or a full queue throws them away.
    AcceptLate,
    CpuWait,
    MissingBytes,
    /// In the socket, and why is not known.
    SocketWait,
    PeerWindow,
    CongestionWindow,
    Nagle,
    /// For another reason, or one that is not known.
    TcpHeld,
    UdpHeld,
    Qdisc,
    Driver,
    Network,
    /// An answer that came late, with the ACK: the wire, or the peer's application.
    PeerAnswer,
    SoftirqLate,
    SocketDrop,
    Retransmission,
    Application,
    /// Of its cgroup, or of one above it.
    CpuQuota,
    /// The whole machine's.
    CpuShort,
    /// Requests, or bytes.
    Unanswered,
}

impl Cause {
    /// All of them.
    #[cfg(test)]
    pub(super) const ALL: [Self; 21] = [
        Self::ReaderLate,
        Self::AcceptLate,
        Self::CpuWait,
        Self::MissingBytes,
        Self::SocketWait,
        Self::PeerWindow,
        Self::CongestionWindow,
        Self::Nagle,
        Self::TcpHeld,
        Self::UdpHeld,
        Self::Qdisc,
        Self::Driver,
        Self::Network,
        Self::PeerAnswer,
        Self::SoftirqLate,
        Self::SocketDrop,
        Self::Retransmission,
        Self::Application,
        Self::CpuQuota,
        Self::CpuShort,
        Self::Unanswered,
    ];

    /// Its name in JSON.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::ReaderLate => "reader-late",
            Self::AcceptLate => "accept-late",
            Self::CpuWait => "cpu-wait",
            Self::MissingBytes => "missing-bytes",
            Self::SocketWait => "socket-wait",
            Self::PeerWindow => "peer-window",
            Self::CongestionWindow => "congestion-window",
            Self::Nagle => "nagle",
            Self::TcpHeld => "tcp-held",
            Self::UdpHeld => "udp-held",
            Self::Qdisc => "qdisc",
            Self::Driver => "driver",
            Self::Network => "network",
            Self::PeerAnswer => "peer-answer",
            Self::SoftirqLate => "softirq-late",
            Self::SocketDrop => "socket-drop",
            Self::Retransmission => "retransmission",
            Self::Application => "application",
            Self::CpuQuota => "cpu-quota",
            Self::CpuShort => "cpu-short",
            Self::Unanswered => "unanswered",
        }
    }

    /// That of what takes longest.
    pub(super) fn of(item: Item, protocol: Protocol) -> Self {
        match item {
            Item::DrvIp | Item::IpTransport | Item::TransportIp | Item::IpDrv => Self::SoftirqLate,
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
