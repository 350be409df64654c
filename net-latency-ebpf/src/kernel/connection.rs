//! What `net-latency connections` alone reads of sockets, and of the requests that precede a server's.

use super::{
    memory::{Memory, Probed, probe},
    offsets::{At as _, offset},
    socket::{Socket, TcpSocket},
};

/// A `struct tcp_request_sock`: a handshake that a server has answered.
#[derive(Clone, Copy)]
pub struct Request<M> {
    pointer: *const u8,
    socket: Socket<M>,
}

impl<M: Memory> Request<M> {
    /// The request that a hook got as an argument.
    #[inline(always)]
    #[must_use]
    pub fn new(pointer: *const u8) -> Self {
        Self { pointer, socket: Socket::new(pointer) }
    }

    /// Its addresses, ports and namespace, which lie where a socket's do (`struct sock_common`); a request has no other field of one.
    #[inline(always)]
    pub(crate) fn socket(self) -> Socket<M> {
        self.socket
    }

    /// When the SYN was answered for the first time, ns of `CLOCK_MONOTONIC`; 0 with SYN cookies, and before it was.
    #[inline(always)]
    pub(crate) fn answered_ns(self) -> u64 {
        // Past the end of the struct that the argument is known as. In us of that clock (`tcp_clock_us`, since Linux 4.20).
        // SAFETY: any address survives, and any bits are a number.
        let us: u64 = unsafe { probe(offset!(tcp_request_sock_snt_synack).of(self.pointer)) };
        us * 1000
    }
}

impl<M: Memory> Socket<M> {
    /// `sk_state`, a number of `enum tcp_state`.
    #[inline(always)]
    pub(crate) fn state(self) -> u8 {
        self.field(offset!(sock_skc_state))
    }

    /// `skc_portpair`: remote port in network order, local one in host order.
    #[inline(always)]
    pub(crate) fn ports(self) -> u32 {
        self.field(offset!(sock_skc_portpair))
    }

    /// `sk_err`.
    #[inline(always)]
    pub(crate) fn error(self) -> u32 {
        self.field(offset!(sock_sk_err))
    }

    /// `sk_mark`.
    #[inline(always)]
    pub(crate) fn mark(self) -> u32 {
        self.field(offset!(sock_sk_mark))
    }

    /// Whether a FIN has come (`SOCK_DONE`, set by `tcp_fin` alone).
    #[inline(always)]
    pub(crate) fn has_got_fin(self) -> bool {
        const SOCK_DONE: u64 = 1 << 1;
        self.field::<u64>(offset!(sock_skc_flags)) & SOCK_DONE != 0
    }

    /// The first of the TCP sockets of a socket of MPTCP (`mptcp_sock.first`).
    #[inline(always)]
    pub(crate) fn first_subflow(self) -> Option<Socket<Probed>> {
        let at = offset!(mptcp_sock_first);
        if at.value() == 0 {
            return None;
        }
        // Past the end of the struct that the argument is known as.
        // SAFETY: any address survives, and any bits are a number.
        let address: u64 = unsafe { probe(at.of(self.address() as *const u8)) };
        if address == 0 { None } else { Some(Socket::new(address as *const u8)) }
    }

    /// Connections in the accept queue (`sk_ack_backlog`), of a socket that listens.
    #[inline(always)]
    pub(crate) fn waiting(self) -> u32 {
        self.field(offset!(sock_sk_ack_backlog))
    }

    /// How many there may be (`sk_max_ack_backlog`): it is full with one more.
    #[inline(always)]
    pub(crate) fn most_waiting(self) -> u32 {
        self.field(offset!(sock_sk_max_ack_backlog))
    }
}

impl<M: Memory> TcpSocket<M> {
    /// Whether this is a subflow of MPTCP.
    #[inline(always)]
    pub(crate) fn is_of_mptcp(self) -> bool {
        let at = offset!(tcp_sock_is_mptcp);
        at.value() != 0 && self.field::<u8>(at) != 0
    }

    /// Bytes received in order, a FIN among them.
    #[inline(always)]
    pub(crate) fn bytes_received(self) -> u64 {
        self.field(offset!(tcp_sock_bytes_received))
    }

    /// When the segment left that was sent last, ns of `CLOCK_MONOTONIC` (`tcp_wstamp_ns`, set by `__tcp_transmit_skb`).
    #[inline(always)]
    pub(crate) fn sent_last_ns(self) -> u64 {
        self.field(offset!(tcp_sock_tcp_wstamp_ns))
    }

    /// Bytes sent again.
    #[inline(always)]
    pub(crate) fn bytes_resent(self) -> u64 {
        self.field(offset!(tcp_sock_bytes_retrans))
    }

    /// Segments received.
    #[inline(always)]
    pub(crate) fn segs_in(self) -> u32 {
        self.field(offset!(tcp_sock_segs_in))
    }

    /// Segments sent.
    #[inline(always)]
    pub(crate) fn segs_out(self) -> u32 {
        self.field(offset!(tcp_sock_segs_out))
    }

    /// Segments sent again, SYNs and answers to them among them.
    #[inline(always)]
    pub(crate) fn resent(self) -> u32 {
        self.field(offset!(tcp_sock_total_retrans))
    }

    /// The least round-trip time of the last minutes, us; `u32::MAX` where there is none.
    #[inline(always)]
    pub(crate) fn least_rtt(self) -> u32 {
        self.field(offset!(tcp_sock_rtt_min))
    }
}
