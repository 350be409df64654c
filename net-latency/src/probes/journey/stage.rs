//! Parts of a packet's way.

use crate::named::named;

named! {
    /// Where a packet is, between one place on its way and the next. What `--stages fine` shows too has the same name
    /// there.
    #[derive(PartialOrd, Ord)]
    pub(crate) enum Stage {
        /// Where it was before.
        Same "unknown",
        TcpOut "tcp out",
        UdpOut "udp out",
        IpOut "ip out",
        Neighbour "neighbour",
        Netfilter "netfilter",
        Forward "forward",
        Qdisc "qdisc",
        Gso "gso",
        Driver "driver",
        Backlog "backlog",
        Interrupt "interrupt",
        Softirq "softirq",
        Gro "gro",
        DeviceIn "device in",
        IpIn "ip in",
        TcpIn "tcp in",
        UdpIn "udp in",
        SocketBacklog "socket backlog",
        SocketQueue "socket queue",
        Cpu "cpu",
        Reader "reader",
        Copy "copy",
    }
}
