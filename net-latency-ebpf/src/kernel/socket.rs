//! Fields of `struct sock` and `struct tcp_sock`.

use core::marker::PhantomData;

use super::{
    memory::{Memory, Near, Room, number, probe},
    offsets::{At, Offset, offset},
};
#[cfg(feature = "fine")]
use super::{sequence::before, skb::Skb};

/// `TCP_CHRONO_RWND_LIMITED` and `TCP_CHRONO_SNDBUF_LIMITED` of `enum tcp_chrono`.
#[cfg(feature = "fine")]
pub(crate) const CHRONO_RWND_LIMITED: u32 = 2;
#[cfg(feature = "fine")]
pub(crate) const CHRONO_SNDBUF_LIMITED: u32 = 3;

/// A `struct sock` in kernel memory, or null.
#[derive(Clone, Copy)]
pub struct Socket<M> {
    pointer: *const u8,
    memory: PhantomData<M>,
}

/// A `struct tcp_sock`.
#[derive(Clone, Copy)]
pub(crate) struct TcpSocket<M> {
    pointer: *const u8,
    memory: PhantomData<M>,
}

/// What tells one life of a socket's address from another.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Identity {
    /// `skc_addrpair`: remote and local IPv4 address.
    addresses: u64,
    /// `skc_portpair`: remote port in network order, local one in host order.
    ports: u32,
    reserved: u32,
    /// Address of the network namespace, which is there as long as the socket.
    net: u64,
}

impl Identity {
    /// No socket's: each has a namespace.
    pub(crate) const NOBODY: Self = Self { addresses: 0, ports: 0, reserved: 0, net: 0 };

    #[inline(always)]
    pub(crate) fn remote_port(&self) -> u16 {
        u16::from_be(self.ports as u16)
    }

    /// Whether the socket has no other end yet.
    #[inline(always)]
    pub(crate) fn is_unconnected(&self) -> bool {
        self.ports as u16 == 0
    }

    #[inline(always)]
    pub(crate) fn local_port(&self) -> u16 {
        (self.ports >> 16) as u16
    }

    /// The same with this local port.
    #[inline(always)]
    pub(crate) fn of_port(self, local: u16) -> Self {
        Self { ports: self.ports & u32::from(u16::MAX) | u32::from(local) << 16, ..self }
    }
}

impl<M: Memory> Socket<M> {
    /// The socket that a hook got as an argument.
    #[inline(always)]
    #[must_use]
    pub fn new(pointer: *const u8) -> Self {
        Self { pointer, memory: PhantomData }
    }

    /// Its address.
    #[inline(always)]
    pub(crate) fn address(self) -> u64 {
        self.pointer as u64
    }

    #[inline(always)]
    pub(crate) fn field<T: Copy>(self, at: impl At) -> T {
        // SAFETY: `pointer` is a live socket (the hook's argument, or owner of a live skb), and such an
        // offset is a field's, from BTF.
        unsafe { M::read(self.pointer, at) }
    }

    /// The field at this offset from BTF.
    #[cfg(feature = "journey")]
    #[inline(always)]
    pub(crate) fn field_at<T: Copy>(self, offset: usize) -> T {
        // SAFETY: as above.
        unsafe { M::read_at(self.pointer, offset) }
    }

    #[inline(always)]
    pub(crate) fn identity(self) -> Identity {
        // `struct sock_common` up to and with `skc_net`.
        let mut room = Room::<7>::uninit();
        // SAFETY: as in `field`.
        let fields = unsafe { Near::<M, _, 7>::new(&mut room, self.pointer, offset!(sock_skc_addrpair)) };
        Identity {
            addresses: fields.field(offset!(sock_skc_addrpair)),
            ports: fields.field(offset!(sock_skc_portpair)),
            reserved: 0,
            net: fields.field(offset!(sock_skc_net)),
        }
    }

    /// Inode number of the network namespace.
    #[inline(always)]
    pub(crate) fn netns(self) -> u32 {
        let net: *const u8 = self.field(offset!(sock_skc_net));
        // SAFETY: a socket holds its namespace.
        unsafe { M::read(net, offset!(net_ns_inum)) }
    }

    /// Address of the network namespace, which is there as long as the socket.
    #[inline(always)]
    pub(crate) fn net(self) -> u64 {
        number(self.field(offset!(sock_skc_net)))
    }

    /// The local port, host order.
    #[inline(always)]
    pub(crate) fn local_port(self) -> u16 {
        // Of `skc_portpair`; see `Identity`.
        (self.field::<u32>(offset!(sock_skc_portpair)) >> 16) as u16
    }

    /// `IPPROTO_…`, of a full socket.
    #[inline(always)]
    pub(crate) fn protocol(self) -> u16 {
        self.field(offset!(sock_sk_protocol))
    }

    /// Whether a corked datagram waits for more: `udp_sk(sk)->pending`, of a UDP socket.
    #[inline(always)]
    pub(crate) fn udp_pending(self) -> bool {
        // Past the end of `struct sock`, and there is no helper that gives the larger type of an IPv4 socket.
        // SAFETY: any address survives; any bytes are valid.
        unsafe { probe::<u32>(offset!(udp_sock_pending).of(self.pointer)) != 0 }
    }

    /// Whether a task holds the socket's lock. Then a hook that works on this socket runs on behalf of
    /// that task: a softirq that finds the socket owned leaves the work to the backlog
    /// (`sock_owned_by_user` in `tcp_v4_rcv` and in the timers).
    #[inline(always)]
    pub(crate) fn owned_by_task(self) -> bool {
        self.field::<u32>(offset!(sock_sk_lock_owned)) != 0
    }

    /// Skbs on its receive queue.
    #[inline(always)]
    pub(crate) fn received_skbs(self) -> u32 {
        // struct sk_buff_head: next, prev, qlen.
        const QLEN: usize = 16;
        self.field(offset!(sock_sk_receive_queue).behind::<QLEN>())
    }

    /// Whether skbs wait until the task that holds the socket's lock lets it go. `__release_sock` sets the length to 0 when it is
    /// through with all of them.
    #[inline(always)]
    pub(crate) fn has_backlog(self) -> bool {
        self.field::<u32>(offset!(sock_sk_backlog_len)) != 0
    }

    /// Whether TCP has sent all that was written.
    #[cfg(feature = "fine")]
    #[inline(always)]
    pub(crate) fn is_all_sent(self) -> bool {
        // struct sk_buff_head: next, prev, qlen.
        const QLEN: usize = 16;
        self.field::<u32>(offset!(sock_sk_write_queue).behind::<QLEN>()) == 0
    }

    /// The first skb that TCP has never sent (`tcp_send_head`).
    #[cfg(feature = "fine")]
    #[inline(always)]
    pub(crate) fn first_unsent(self) -> Option<Skb<M>> {
        if self.is_all_sent() { None } else { Some(Skb::new(self.field(offset!(sock_sk_write_queue)))) }
    }

    /// Whether this is the last skb that waits to be sent (`tcp_skb_is_last`).
    #[cfg(feature = "fine")]
    #[inline(always)]
    pub(crate) fn is_last(self, skb: Skb<M>) -> bool {
        const PREV: usize = 8;
        number(self.field(offset!(sock_sk_write_queue).behind::<PREV>())) == number(skb.address())
    }

    /// Whether enough of it waits in the device's queue (`TSQ_THROTTLED`, bit 0).
    #[cfg(feature = "fine")]
    #[inline(always)]
    pub(crate) fn is_throttled(self) -> bool {
        self.field::<u64>(offset!(sock_sk_tsq_flags)) & 1 != 0
    }

    /// Whether TCP itself paces it (`SK_PACING_NEEDED`), and not the device's queue.
    #[cfg(feature = "fine")]
    #[inline(always)]
    pub(crate) fn is_paced(self) -> bool {
        const SK_PACING_NEEDED: u32 = 1;
        self.field::<u32>(offset!(sock_sk_pacing_status)) == SK_PACING_NEEDED
    }

    /// How many skbs TCP has dropped of it, or about (`sk_drops_add`).
    #[inline(always)]
    pub(crate) fn drops(self) -> u32 {
        self.field(offset!(sock_sk_drops))
    }

    /// Whether a write call waits in the kernel, for room or for the connection (`sk_stream_wait_memory`, `inet_wait_for_connect`).
    #[inline(always)]
    pub(crate) fn has_pending_write(self) -> bool {
        self.field::<u32>(offset!(sock_sk_write_pending)) != 0
    }

    /// Whether it waits for connections, and is none itself.
    #[inline(always)]
    pub(crate) fn is_listening(self) -> bool {
        const TCP_LISTEN: u8 = 10;
        self.field::<u8>(offset!(sock_skc_state)) == TCP_LISTEN
    }

    /// `AF_INET` or `AF_INET6`, which may have an IPv4 address in it.
    #[inline(always)]
    pub(crate) fn family(self) -> u32 {
        u32::from(self.field::<u16>(offset!(sock_skc_family)))
    }

    /// Remote and local IPv4 address.
    #[inline(always)]
    pub(crate) fn pair_v4(self) -> u64 {
        self.field(offset!(sock_skc_addrpair))
    }

    /// Remote IPv6 address, in two words.
    #[inline(always)]
    pub(crate) fn remote_v6(self) -> [u64; 2] {
        self.address_v6(offset!(sock_skc_v6_daddr))
    }

    /// Local IPv6 address, in two words.
    #[inline(always)]
    pub(crate) fn local_v6(self) -> [u64; 2] {
        self.address_v6(offset!(sock_skc_v6_rcv_saddr))
    }

    #[inline(always)]
    fn address_v6<const FIELD: usize>(self, offset: Offset<FIELD>) -> [u64; 2] {
        [self.field(offset), self.field(offset.behind::<8>())]
    }

    /// The socket as a TCP socket, if it is a full one.
    #[inline(always)]
    pub(crate) fn tcp(self) -> Option<TcpSocket<M>> {
        if self.pointer.is_null() {
            return None;
        }
        // SAFETY: not null, and a socket.
        let pointer = unsafe { M::tcp_sock(self.pointer) };
        if pointer.is_null() { None } else { Some(TcpSocket { pointer, memory: PhantomData }) }
    }

    /// The socket of a hook on a function of TCP that has full sockets only, as a TCP socket.
    #[inline(always)]
    pub(crate) fn known_tcp(self) -> Option<TcpSocket<M>> {
        // SAFETY: the hook's argument is one.
        let pointer = unsafe { M::known_tcp_sock(self.pointer) };
        if pointer.is_null() { None } else { Some(TcpSocket { pointer, memory: PhantomData }) }
    }
}

impl<M: Memory> TcpSocket<M> {
    #[inline(always)]
    pub(crate) fn field<T: Copy>(self, at: impl At) -> T {
        // SAFETY: a live TCP socket, offsets from BTF.
        unsafe { M::read(self.pointer, at) }
    }

    /// The local port in host order, also when the socket has given it back (`inet_put_port`).
    #[inline(always)]
    pub(crate) fn source_port(self) -> u16 {
        u16::from_be(self.field(offset!(inet_sock_inet_sport)))
    }

    /// The next sequence number expected from the peer.
    #[inline(always)]
    pub(crate) fn rcv_nxt(self) -> u32 {
        self.field(offset!(tcp_sock_rcv_nxt))
    }

    /// Whether segments wait for one that comes before them.
    #[inline(always)]
    pub(crate) fn has_gap(self) -> bool {
        // The root of a tree: null if there are none.
        self.field::<u64>(offset!(tcp_sock_out_of_order_queue)) != 0
    }

    /// The first sequence number that the application has not taken.
    #[inline(always)]
    pub(crate) fn copied_seq(self) -> u32 {
        self.field(offset!(tcp_sock_copied_seq))
    }

    /// The first sequence number never sent.
    #[inline(always)]
    pub(crate) fn snd_nxt(self) -> u32 {
        self.field(offset!(tcp_sock_snd_nxt))
    }

    /// The sequence number that the next written byte gets.
    #[inline(always)]
    pub(crate) fn write_seq(self) -> u32 {
        self.field(offset!(tcp_sock_write_seq))
    }

    /// The first sequence number that is not acknowledged.
    #[inline(always)]
    pub(crate) fn snd_una(self) -> u32 {
        self.field(offset!(tcp_sock_snd_una))
    }

    /// Bytes sent, those sent again once more.
    #[inline(always)]
    pub(crate) fn bytes_sent(self) -> u64 {
        self.field(offset!(tcp_sock_bytes_sent))
    }

    /// The smoothed round-trip time, in eighths of a microsecond; 0 before the first ACK.
    #[inline(always)]
    pub(crate) fn smoothed_rtt(self) -> u32 {
        self.field(offset!(tcp_sock_srtt_us))
    }

    /// Segments that the peer has said to have got twice, which TCP had sent again.
    #[inline(always)]
    pub(crate) fn dsacks(self) -> u32 {
        self.field(offset!(tcp_sock_dsack_dups))
    }

    /// The peer's window in bytes: 0 while it takes none.
    #[cfg(feature = "fine")]
    #[inline(always)]
    pub(crate) fn snd_wnd(self) -> u32 {
        self.field(offset!(tcp_sock_snd_wnd))
    }

    /// Segments on their way (`tcp_packets_in_flight`), and those that there may be.
    #[cfg(feature = "fine")]
    #[inline(always)]
    pub(crate) fn congestion(self) -> (u32, u32) {
        let sent: u32 = self.field(offset!(tcp_sock_packets_out));
        let again: u32 = self.field(offset!(tcp_sock_retrans_out));
        let arrived: u32 = self.field(offset!(tcp_sock_sacked_out));
        let lost: u32 = self.field(offset!(tcp_sock_lost_out));
        let on_their_way = sent.wrapping_add(again).wrapping_sub(arrived).wrapping_sub(lost);
        (on_their_way, self.field(offset!(tcp_sock_snd_cwnd)))
    }

    /// Whether the rate at which it may send lets nothing go yet (`tcp_pacing_check`).
    #[cfg(feature = "fine")]
    #[inline(always)]
    pub(crate) fn is_ahead_of_its_rate(self) -> bool {
        let next: u64 = self.field(offset!(tcp_sock_tcp_wstamp_ns));
        next > self.field::<u64>(offset!(tcp_sock_tcp_clock_cache))
    }

    /// Bytes of a full segment.
    #[cfg(feature = "fine")]
    #[inline(always)]
    pub(crate) fn mss(self) -> u32 {
        self.field(offset!(tcp_sock_mss_cache))
    }

    /// `TCP_NAGLE_` bits.
    #[cfg(feature = "fine")]
    #[inline(always)]
    pub(crate) fn nagle(self) -> u8 {
        self.field::<u8>(offset!(tcp_sock_nonagle)) >> offset!(tcp_sock_nonagle_shift).value() & 0xf
    }

    /// Whether a segment that was not full has no ACK yet (`tcp_minshall_check`).
    #[cfg(feature = "fine")]
    #[inline(always)]
    pub(crate) fn has_small_in_flight(self) -> bool {
        let small: u32 = self.field(offset!(tcp_sock_snd_sml));
        before(self.snd_una(), small) && !before(self.snd_nxt(), small)
    }

    /// Whether the kernel's own clocks say that the peer's window holds bytes back (`TCP_CHRONO_RWND_LIMITED`).
    #[cfg(feature = "fine")]
    #[inline(always)]
    pub(crate) fn is_limited_by_peer(self) -> bool {
        let bits = u32::from(self.field::<u8>(offset!(tcp_sock_chrono_type)));
        bits >> offset!(tcp_sock_chrono_type_shift).value() & 3 == CHRONO_RWND_LIMITED
    }

    /// Whether the retransmission timer has fired and nothing was acknowledged since (`tcp_retransmit_timer`, `tcp_ack`).
    #[cfg(feature = "fine")]
    #[inline(always)]
    pub(crate) fn resends_by_timer(self) -> bool {
        self.field::<u8>(offset!(tcp_sock_icsk_retransmits)) != 0
    }
}
