//! Parts of a packet's way.

/// Where a packet is, between one place on its way and the next. What `--stages fine` shows too has the same name
/// there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// Where it was before.
    Same,
    TcpOut,
    UdpOut,
    IpOut,
    Neighbour,
    Netfilter,
    Forward,
    Qdisc,
    Gso,
    Driver,
    Backlog,
    Interrupt,
    Softirq,
    Gro,
    DeviceIn,
    IpIn,
    TcpIn,
    UdpIn,
    SocketBacklog,
    SocketQueue,
    Cpu,
    Reader,
    Copy,
}

impl Stage {
    /// Its name, as it is shown.
    #[must_use]
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Same => "unknown",
            Self::TcpOut => "tcp out",
            Self::UdpOut => "udp out",
            Self::IpOut => "ip out",
            Self::Neighbour => "neighbour",
            Self::Netfilter => "netfilter",
            Self::Forward => "forward",
            Self::Qdisc => "qdisc",
            Self::Gso => "gso",
            Self::Driver => "driver",
            Self::Backlog => "backlog",
            Self::Interrupt => "interrupt",
            Self::Softirq => "softirq",
            Self::Gro => "gro",
            Self::DeviceIn => "device in",
            Self::IpIn => "ip in",
            Self::TcpIn => "tcp in",
            Self::UdpIn => "udp in",
            Self::SocketBacklog => "socket backlog",
            Self::SocketQueue => "socket queue",
            Self::Cpu => "cpu",
            Self::Reader => "reader",
            Self::Copy => "copy",
        }
    }
}
