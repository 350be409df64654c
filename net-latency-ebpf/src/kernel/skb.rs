//! Fields of `struct sk_buff` and the headers in its data.

use core::marker::PhantomData;

use net_latency_common::{AF_INET, AF_INET6, INTERFACE_LEN, IPPROTO_TCP, PageBases};

use super::{
    arch,
    memory::{Memory, Near, Room, number, probe},
    offsets::{At, offset},
    socket::Socket,
};
use crate::bpf::{Array, map, read_kernel_str};

/// Where the kernel keeps the addresses by which a page is found; zero until the user side knows.
#[map]
static PAGE_BASES: Array<PageBases> = Array::with_max_entries(1, 0);

/// A `struct sk_buff` in kernel memory.
#[derive(Clone, Copy)]
pub struct Skb<M> {
    pointer: *const u8,
    memory: PhantomData<M>,
}

/// What the TCP header of a received packet says.
#[derive(Clone, Copy)]
pub(crate) struct TcpHeader {
    /// Source port, host order.
    pub(crate) source: u16,
    /// Destination port, host order.
    pub(crate) destination: u16,
    /// Sequence number of the first payload byte (a SYN takes one number itself).
    pub(crate) seq: u32,
    /// Header length in bytes.
    pub(crate) len: u32,
    /// Sequence and acknowledgement number as they stand there: what routers and address translation leave
    /// alone, and no other packet of any connection has as well. 0 if there is no acknowledgement (a SYN).
    pub(crate) content: u64,
}

/// Bytes of an skb.
#[derive(Clone, Copy)]
pub(crate) struct Lengths {
    /// From `skb->data` on.
    pub(crate) all: u32,
    /// Those in pages.
    pub(crate) paged: u32,
}

/// What the headers of a received packet say.
pub(crate) struct ReceivedHeaders {
    pub(crate) tcp: TcpHeader,
    pub(crate) lengths: Lengths,
    /// Both addresses of IPv4, as [`Skb::addresses`] gives them, where one read gives all: without options it does. Else 0.
    pub(crate) pair_v4: u64,
    /// The skb's mark, which lies near where the headers are.
    pub(crate) mark: u32,
}

/// What TCP sends with an skb.
#[derive(Clone, Copy)]
pub(crate) struct TcpSent {
    /// Number of the first byte of payload.
    pub(crate) seq: u32,
    /// Bytes of payload.
    pub(crate) len: u32,
    /// The segments it will be on the wire; 0 or 1 for one.
    pub(crate) segs: u16,
}

/// Flags of a TCP header.
const FIN: u8 = 0x01;
const SYN: u8 = 0x02;

#[inline(always)]
fn content(seq: u32, ack: u32) -> u64 {
    if ack == 0 { 0 } else { u64::from(seq) | u64::from(ack) << 32 }
}

#[inline(always)]
fn tcp_header_at(address: *const u8) -> TcpHeader {
    // SAFETY: packet memory, any address survives; any bytes are valid.
    tcp_header_of(unsafe { probe(address) })
}

/// What the words of a TCP header say, as they lie in memory.
#[inline(always)]
fn tcp_header_of(words: [u32; 5]) -> TcpHeader {
    let content = content(words[1], words[2]);
    let [ports, seq, _, control, _] = words.map(u32::from_be);
    let syn = control >> 17 & 1;
    TcpHeader {
        source: (ports >> 16) as u16,
        destination: ports as u16,
        seq: seq.wrapping_add(syn),
        len: control >> 28 << 2,
        content,
    }
}

impl<M: Memory> Skb<M> {
    /// The skb that a hook got as an argument.
    #[inline(always)]
    #[must_use]
    pub fn new(pointer: *const u8) -> Self {
        Self { pointer, memory: PhantomData }
    }

    /// The first skb of a socket's receive queue.
    #[inline(always)]
    pub(crate) fn first_received(socket: Socket<M>) -> Option<Self> {
        if socket.received_skbs() == 0 {
            return None;
        }
        Some(Self::new(socket.field(offset!(sock_sk_receive_queue))))
    }

    /// The one behind it on its queue.
    #[inline(always)]
    pub(crate) fn next(self) -> Self {
        Self::new(self.field(offset!(sk_buff_next)))
    }

    /// Its address, which identifies it only while it lives.
    #[inline(always)]
    pub(crate) fn address(self) -> u64 {
        self.pointer as u64
    }

    #[inline(always)]
    pub(crate) fn field<T: Copy>(self, at: impl At) -> T {
        // SAFETY: `pointer` is a live skb (the hook's argument), and such an offset is a field's, from BTF.
        unsafe { M::read(self.pointer, at) }
    }

    /// The field at this offset from BTF.
    #[cfg(feature = "journey")]
    #[inline(always)]
    pub(crate) fn field_at<T: Copy>(self, offset: usize) -> T {
        // SAFETY: as above.
        unsafe { M::read_at(self.pointer, offset) }
    }

    /// Bytes from `skb->data` on.
    #[inline(always)]
    pub(crate) fn len(self) -> u32 {
        self.field(offset!(sk_buff_len))
    }

    #[inline(always)]
    pub(crate) fn mark(self) -> u32 {
        self.field(offset!(sk_buff_mark))
    }

    /// Start of the buffer, which clones share.
    #[inline(always)]
    pub(crate) fn head(self) -> u64 {
        self.field(offset!(sk_buff_head))
    }

    /// Start of the buffer if clones share it or have shared it, of which this may be one (`skb->cloned`); else 0. An skb that has got
    /// another buffer since (`pskb_expand_head`, `skb_copy`) is no clone.
    #[inline(always)]
    pub(crate) fn shared_head(self) -> u64 {
        let bits = u32::from(self.field::<u8>(offset!(sk_buff_cloned)));
        if bits >> offset!(sk_buff_cloned_shift).value() & 1 == 0 { 0 } else { number(self.head()) }
    }

    /// Whether another skb on its way has these headers too (`skb_header_cloned`), of which either may be the clone. What TCP has sent shares
    /// no more than its payload with the skb that TCP keeps (`__skb_header_release`).
    #[inline(always)]
    pub(crate) fn shares_headers(self) -> bool {
        if self.shared_head() == 0 {
            return false;
        }
        // SAFETY: packet memory, any address survives.
        let references: u32 = unsafe { probe(offset!(skb_shared_info_dataref).of(self.shared_info())) };
        (references & 0xffff).wrapping_sub(references >> 16) != 1
    }

    /// Whether a single one has the skb (`skb_shared`).
    #[inline(always)]
    pub(crate) fn has_one_user(self) -> bool {
        self.field::<u32>(offset!(sk_buff_users)) == 1
    }

    /// Whether the skb is on a queue: `__skb_unlink` makes both its pointers null.
    #[inline(always)]
    pub(crate) fn is_queued(self) -> bool {
        self.field::<u64>(offset!(sk_buff_next)) != 0
    }

    /// `AF_INET` or `AF_INET6`, of a packet that IP has received.
    #[inline(always)]
    pub(crate) fn family(self) -> u32 {
        self.ip_family().unwrap_or(AF_INET6)
    }

    /// `AF_INET` or `AF_INET6` of any skb; nothing if it is not IP, or has a VLAN header in front.
    #[inline(always)]
    pub(crate) fn ip_family(self) -> Option<u32> {
        // ETH_P_IP and ETH_P_IPV6 in network order.
        const IP: u16 = 0x0800_u16.to_be();
        const IPV6: u16 = 0x86dd_u16.to_be();
        match self.field::<u16>(offset!(sk_buff_protocol)) {
            IP => Some(AF_INET),
            IPV6 => Some(AF_INET6),
            _ => None,
        }
    }

    /// Whether it has come by a device (`skb->skb_iif`, which `__netif_receive_skb_core` sets), and was not made here.
    #[inline(always)]
    pub(crate) fn has_entered(self) -> bool {
        self.field::<u32>(offset!(sk_buff_skb_iif)) != 0
    }

    /// The UDP header as it lies in memory: source port, destination port, length, checksum.
    #[inline(always)]
    pub(crate) fn udp_header(self) -> u64 {
        let start: u16 = self.field(offset!(sk_buff_transport_header));
        // SAFETY: packet memory, any address survives; any bytes are valid.
        unsafe { probe((self.head() as *const u8).wrapping_add(usize::from(start))) }
    }

    /// The socket that owns the skb; null if none.
    #[inline(always)]
    pub(crate) fn socket(self) -> Socket<M> {
        Socket::new(self.field(offset!(sk_buff_sk)))
    }

    /// Index of the device.
    #[inline(always)]
    pub(crate) fn ifindex(self) -> u32 {
        let device: *const u8 = self.field(offset!(sk_buff_dev));
        // SAFETY: a live skb holds its device; offsets from BTF.
        if device.is_null() { 0 } else { unsafe { M::read(device, offset!(net_device_ifindex)) } }
    }

    /// Its device and its socket; either may be null.
    #[inline(always)]
    pub(crate) fn owners(self) -> (*const u8, Socket<M>) {
        let mut room = Room::<2>::uninit();
        // SAFETY: as in `field`.
        let fields = unsafe { Near::<M, _, 2>::new(&mut room, self.pointer, offset!(sk_buff_dev)) };
        (fields.field(offset!(sk_buff_dev)), Socket::new(fields.field(offset!(sk_buff_sk))))
    }

    /// Index of the device, and inode number of its network namespace.
    #[cfg(feature = "journey")]
    #[inline(always)]
    pub(crate) fn device(self) -> (u32, u32) {
        Self::device_at(self.field(offset!(sk_buff_dev)))
    }

    /// [`Self::device`], with the address of the skb's device at hand.
    #[inline(always)]
    pub(crate) fn device_at(device: *const u8) -> (u32, u32) {
        if device.is_null() {
            return (0, 0);
        }
        // SAFETY: a live skb holds its device; offsets from BTF.
        unsafe {
            let net: *const u8 = M::read(device, offset!(net_device_nd_net));
            (M::read(device, offset!(net_device_ifindex)), M::read(net, offset!(net_ns_inum)))
        }
    }

    /// Whether the device has no queue. Then its discipline is `noqueue`, which alone has a function to queue packets by and does
    /// not use it (`noqueue_init`); `mq`, which has one discipline for each of the card's queues, has none (`mq_qdisc_ops`).
    #[cfg(feature = "fine")]
    #[inline(always)]
    pub(crate) fn is_unqueued(self) -> bool {
        let device: *const u8 = self.field(offset!(sk_buff_dev));
        if device.is_null() {
            return false;
        }
        // SAFETY: a live skb holds its device, and that its discipline; offsets from BTF.
        unsafe {
            let qdisc: *const u8 = M::read(device, offset!(net_device_qdisc));
            if M::read::<u64>(qdisc, offset!(qdisc_enqueue)) != 0 {
                return false;
            }
            let ops: *const u8 = M::read(qdisc, offset!(qdisc_ops));
            M::read::<u64>(ops, offset!(qdisc_ops_enqueue)) != 0
        }
    }

    /// Name of the device, ended by NUL, all NUL behind; all NUL if there is none.
    #[inline(always)]
    pub(crate) fn device_name(self) -> [u64; INTERFACE_LEN / 8] {
        let device: *const u8 = self.field(offset!(sk_buff_dev));
        let mut name = [0; INTERFACE_LEN / 8];
        // SAFETY: the buffer is as long as said; any address survives. A name that is shorter than an earlier one
        // leaves that one's end behind it, which this helper doesn't copy.
        unsafe {
            read_kernel_str(
                name.as_mut_ptr().cast(),
                INTERFACE_LEN as u32,
                offset!(net_device_name).of(device),
            );
        }
        name
    }

    /// `TCP_SKB_CB(skb)->seq`: valid while TCP owns the skb.
    #[inline(always)]
    pub(crate) fn tcp_cb_seq(self) -> u32 {
        self.field(offset!(tcp_skb_cb_seq))
    }

    /// The number of the first byte of payload: a SYN takes the number before it (TCP Fast Open). Valid while TCP owns the skb.
    #[inline(always)]
    pub(crate) fn tcp_cb_payload(self) -> u32 {
        self.tcp_cb_seq().wrapping_add(u32::from(self.tcp_cb_flags() & SYN != 0))
    }

    /// `TCP_SKB_CB(skb)->tcp_flags`: 8 bits, or the lower 8 of 16 on newer kernels.
    #[inline(always)]
    fn tcp_cb_flags(self) -> u8 {
        self.field(offset!(tcp_skb_cb_tcp_flags))
    }

    /// Whether it is a SYN. Valid while TCP owns the skb.
    #[cfg(feature = "connections")]
    #[inline(always)]
    pub(crate) fn tcp_cb_has_syn(self) -> bool {
        self.tcp_cb_flags() & SYN != 0
    }

    /// Whether it is a reset. Valid while TCP owns the skb.
    #[cfg(feature = "connections")]
    #[inline(always)]
    pub(crate) fn tcp_cb_has_reset(self) -> bool {
        const RST: u8 = 0x04;
        self.tcp_cb_flags() & RST != 0
    }

    /// Whether a FIN goes with it. Valid while TCP owns the skb.
    #[cfg(feature = "fine")]
    #[inline(always)]
    pub(crate) fn tcp_cb_has_fin(self) -> bool {
        self.tcp_cb_flags() & FIN != 0
    }

    /// What TCP sends with this skb, as its control block says; valid while TCP owns the skb, which a clone inherits until
    /// `__tcp_transmit_skb` hands it to IP.
    #[inline(always)]
    pub(crate) fn tcp_cb_sent(self) -> TcpSent {
        let mut room = Room::<2>::uninit();
        // SAFETY: as in `field`.
        let fields = unsafe { Near::<M, _, 2>::new(&mut room, self.pointer, offset!(tcp_skb_cb_seq)) };
        let flags: u8 = fields.field(offset!(tcp_skb_cb_tcp_flags));
        let [syn, fin] = [SYN, FIN].map(|flag| u32::from(flags & flag != 0));
        let start: u32 = fields.field(offset!(tcp_skb_cb_seq));
        let end: u32 = fields.field(offset!(tcp_skb_cb_end_seq));
        // `tcp_skb_pcount(skb)`.
        let segs: u16 = fields.field(offset!(tcp_skb_cb_tcp_gso_segs));
        TcpSent {
            seq: start.wrapping_add(syn),
            len: end.wrapping_sub(start).wrapping_sub(syn).wrapping_sub(fin),
            segs,
        }
    }

    /// [`Self::tcp_cb_sent`] by the header, to which `skb->data` points.
    #[inline(always)]
    pub(crate) fn tcp_header_sent(self) -> TcpSent {
        let header = self.tcp_header_anywhere();
        TcpSent { seq: header.seq, len: self.len().wrapping_sub(header.len), segs: self.gro_segments() }
    }

    /// The number up to which the peer has all bytes, as a received skb says: `TCP_SKB_CB(skb)->ack_seq`.
    #[cfg(feature = "fine")]
    #[inline(always)]
    pub(crate) fn tcp_cb_ack(self) -> u32 {
        self.field(offset!(tcp_skb_cb_ack_seq))
    }

    /// Whether TCP has sent this skb of its retransmission queue more than once: `TCPCB_EVER_RETRANS`, which
    /// `__tcp_retransmit_skb` sets once it has transmitted.
    #[inline(always)]
    pub(crate) fn tcp_cb_sent_again(self) -> bool {
        const EVER_RETRANS: u8 = 0x80;
        self.field::<u8>(offset!(tcp_skb_cb_sacked)) & EVER_RETRANS != 0
    }

    /// When TCP sent this skb last, in ns of `CLOCK_MONOTONIC`: `__tcp_transmit_skb` notes it before it makes
    /// the clone (`tcp_wstamp_ns`; with pacing the time for which TCP schedules the departure).
    #[inline(always)]
    pub(crate) fn tcp_sent_at(self) -> u64 {
        self.field(offset!(sk_buff_skb_mstamp_ns))
    }

    /// Segments that GRO merged into this received skb: `skb_shinfo(skb)->gso_segs`, 0 for a plain one. An skb in one piece is neither
    /// merged nor to be split (`skb_gro_receive`, `__ip_append_data`), so that most need no look.
    #[inline(always)]
    pub(crate) fn gro_segments(self) -> u16 {
        self.gro_segments_of(self.field(offset!(sk_buff_data_len)))
    }

    /// [`Self::gro_segments`] of an skb with N bytes in pages.
    #[inline(always)]
    pub(crate) fn gro_segments_of(self, paged: u32) -> u16 {
        if paged == 0 {
            return 0;
        }
        // SAFETY: packet memory, any address survives.
        unsafe { probe(offset!(skb_shared_info_gso_segs).of(self.shared_info())) }
    }

    /// `skb_shinfo(skb)`, behind the buffer.
    #[inline(always)]
    fn shared_info(self) -> *const u8 {
        let head: *const u8 = self.field(offset!(sk_buff_head));
        // `skb->end` is an offset on 64-bit kernels (NET_SKBUFF_DATA_USES_OFFSET).
        let end: u32 = self.field(offset!(sk_buff_end));
        head.wrapping_add(end as usize)
    }

    /// The TCP header, if `skb->data` stands on it (as at `tcp_v4_rcv`) and it lies in one piece, with what lies near its place.
    #[inline(always)]
    pub(crate) fn received_headers(self, family: u32) -> Option<ReceivedHeaders> {
        const V4_LEN: u16 = 20;
        const TCP_LEN: u32 = 20;
        let mut room = Room::<12>::uninit();
        // Up to and with the head.
        // SAFETY: as in `field`.
        let fields = unsafe { Near::<M, _, 12>::new(&mut room, self.pointer, offset!(sk_buff_len)) };
        let lengths = Lengths {
            all: fields.field(offset!(sk_buff_len)),
            paged: fields.field(offset!(sk_buff_data_len)),
        };
        let mark = fields.field(offset!(sk_buff_mark));
        let transport: u16 = fields.field(offset!(sk_buff_transport_header));
        let linear = lengths.all.wrapping_sub(lengths.paged);
        if linear >= TCP_LEN {
            let head: *const u8 = fields.field(offset!(sk_buff_head));
            if family == AF_INET {
                let network: u16 = fields.field(offset!(sk_buff_network_header));
                if transport.wrapping_sub(network) == V4_LEN {
                    // SAFETY: packet memory, any address survives; any bytes are valid.
                    let words: [u32; 10] = unsafe { probe(head.wrapping_add(usize::from(network))) };
                    let [_, _, _, source, destination, a, b, c, d, e] = words;
                    let pair_v4 = u64::from(source) | u64::from(destination) << 32;
                    return Some(ReceivedHeaders {
                        tcp: tcp_header_of([a, b, c, d, e]),
                        lengths,
                        pair_v4,
                        mark,
                    });
                }
            }
            let tcp = tcp_header_at(head.wrapping_add(usize::from(transport)));
            return Some(ReceivedHeaders { tcp, lengths, pair_v4: 0, mark });
        }
        // The header is still in its page: some drivers leave all but the first headers there, and without GRO the transport is the first
        // to need them (`pskb_may_pull` in `tcp_v4_rcv`).
        if linear != 0 {
            return None;
        }
        let tcp = tcp_header_at(self.first_fragment(TCP_LEN)?);
        Some(ReceivedHeaders { tcp, lengths, pair_v4: 0, mark })
    }

    /// Where the first fragment's bytes are, if there are N and it is known where pages are mapped.
    #[inline(always)]
    fn first_fragment(self, min_len: u32) -> Option<*const u8> {
        let bases = PAGE_BASES.get(0)?;
        if bases.page_offset_base == 0 {
            return None;
        }
        let shared = self.shared_info();
        // SAFETY: the bases come from the kernel, and packet memory may be anything: any
        // address survives, and any bytes are valid.
        unsafe {
            let count: u8 = probe(offset!(skb_shared_info_nr_frags).of(shared));
            // `skb_frag_t`: page, length and offset, in one order in all of its forms (`bio_vec`, `skb_frag`).
            let [page, place]: [u64; 2] = probe(offset!(skb_shared_info_frags).of(shared));
            // Memory without a page (`net_iov`) has the lowest bit set.
            if count == 0 || (place as u32) < min_len || page & 1 != 0 {
                return None;
            }
            let (vmemmap, direct) =
                (arch::page_base(bases, bases.vmemmap_base), arch::page_base(bases, bases.page_offset_base));
            // `page_to_virt`.
            let number = page.wrapping_sub(vmemmap) / PageBases::PAGE_STRUCT;
            Some(direct.wrapping_add(number.wrapping_mul(arch::page_size(bases))).wrapping_add(place >> 32)
                as *const u8)
        }
    }

    /// What stands where a TCP header would, wherever `skb->data` stands.
    #[inline(always)]
    pub(crate) fn tcp_header_anywhere(self) -> TcpHeader {
        let head: *const u8 = self.field(offset!(sk_buff_head));
        let start: u16 = self.field(offset!(sk_buff_transport_header));
        tcp_header_at(head.wrapping_add(usize::from(start)))
    }

    /// The number of the first byte of payload, of a packet that TCP has sent and that has any. An ACK has the number of the next byte to
    /// be sent.
    #[inline(always)]
    pub(crate) fn tcp_payload_start(self) -> Option<u32> {
        let header = self.tcp_header_anywhere();
        (self.tcp_payload(header.len) as i32 > 0).then_some(header.seq)
    }

    /// Bytes behind a TCP header of that length, wherever `skb->data` stands.
    #[inline(always)]
    pub(crate) fn tcp_payload(self, header: u32) -> u32 {
        let start: u16 = self.field(offset!(sk_buff_transport_header));
        let (data, head) = (number(self.field(offset!(sk_buff_data))), number(self.head()));
        let end = data.wrapping_add(u64::from(self.len()));
        end.wrapping_sub(head).wrapping_sub(u64::from(start)).wrapping_sub(u64::from(header)) as u32
    }

    /// What `TcpHeader::content` is, of a packet that is about to be sent on, 0 if it is not TCP's; and its hop limit. `skb->data` is on IP's
    /// header, or on that of the link before it.
    #[inline(always)]
    pub(crate) fn content_and_hops(self, family: u32) -> (u64, u64) {
        let (protocol, hops) = self.protocol_and_hops(family);
        (if protocol == u64::from(IPPROTO_TCP) { self.tcp_content(family) } else { 0 }, hops)
    }

    #[inline(always)]
    fn tcp_content(self, family: u32) -> u64 {
        const TO_NUMBERS: u64 = 4;
        const TO_END: u64 = 12;
        const V6_LEN: u64 = 40;
        let network: u16 = self.field(offset!(sk_buff_network_header));
        let header = number(self.head()).wrapping_add(u64::from(network));
        let len = if family == AF_INET {
            // SAFETY: packet memory, any address survives; any bytes are valid.
            u64::from(unsafe { probe::<u8>(header as *const u8) } & 0xf) << 2
        } else {
            V6_LEN
        };
        // `skb->transport_header` is of use behind IP's hook only.
        let transport = header.wrapping_add(len);
        let linear = u64::from(self.len().wrapping_sub(self.field(offset!(sk_buff_data_len))));
        if number(self.field(offset!(sk_buff_data))).wrapping_add(linear) < transport.wrapping_add(TO_END) {
            return 0;
        }
        // SAFETY: likewise.
        let [seq, ack]: [u32; 2] = unsafe { probe(transport.wrapping_add(TO_NUMBERS) as *const u8) };
        content(seq, ack)
    }

    /// Protocol and hop limit in the IP header. A fragment has no protocol here, since it may lack TCP's header.
    #[inline(always)]
    pub(crate) fn protocol_and_hops(self, family: u32) -> (u64, u64) {
        const V4_FRAGMENT: usize = 4;
        /// More fragments, and the offset, as a little-endian load sees them.
        const V4_IS_FRAGMENT: u64 = 0xff3f_0000;
        let head: *const u8 = self.field(offset!(sk_buff_head));
        let start: u16 = self.field(offset!(sk_buff_network_header));
        let header = head.wrapping_add(usize::from(start));
        // SAFETY: packet memory, any address survives; any bytes are valid.
        unsafe {
            if family == AF_INET {
                // Identification, fragment, hops, protocol, checksum.
                let word: u64 = probe(header.wrapping_add(V4_FRAGMENT));
                let protocol = if word & V4_IS_FRAGMENT == 0 { word >> 40 & 0xff } else { 0 };
                (protocol, word >> 32 & 0xff)
            } else {
                // Version and flow, length, next header, hops.
                let word: u64 = probe(header);
                (word >> 48 & 0xff, word >> 56)
            }
        }
    }

    /// Source and destination address as they stand in the IP header, an IPv4 pair in `[0]`.
    #[inline(always)]
    pub(crate) fn addresses(self, family: u32) -> [u64; 4] {
        const V4_SOURCE: usize = 12;
        const V6_SOURCE: usize = 8;
        let head: *const u8 = self.field(offset!(sk_buff_head));
        let start: u16 = self.field(offset!(sk_buff_network_header));
        let header = head.wrapping_add(usize::from(start));
        // SAFETY: packet memory, any address survives; any bytes are valid.
        unsafe {
            if family == AF_INET {
                [probe(header.wrapping_add(V4_SOURCE)), 0, 0, 0]
            } else {
                debug_assert!(family == AF_INET6);
                probe(header.wrapping_add(V6_SOURCE))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use net_latency_common::Offsets;

    use super::*;
    use crate::{
        bpf::host::{Machine, memory},
        kernel::memory::Probed,
    };

    /// Where an acknowledgement or a number differs, so does the packet. Without an acknowledgement nothing tells.
    #[test]
    fn packets_of_a_connection_are_told_by_both_numbers() {
        assert_eq!(content(1, 0), 0);
        let all = [content(1, 2), content(1, 3), content(2, 2), content(1, 1 << 31)];
        let distinct: std::collections::HashSet<_> = all.into_iter().collect();
        assert_eq!(distinct.len(), all.len());
    }

    /// Behind the linear part there may be anything.
    #[test]
    fn a_packet_that_is_sent_on_is_told_by_headers_that_are_there() {
        const NETWORK: u64 = 8;
        Machine::reset();
        let [address, head] = [64, 128].map(|size| memory::take(memory::slab(size)));
        let offsets = Offsets {
            sk_buff_head: 8,
            sk_buff_data: 16,
            sk_buff_len: 24,
            sk_buff_data_len: 28,
            sk_buff_network_header: 32,
            ..Offsets::default()
        };
        Machine::with(|machine| machine.offsets = offsets);
        memory::write(address + 8, [head, head + NETWORK]);
        memory::write(address + 32, NETWORK as u16);
        let numbers = [1_000, 7].map(u32::to_be);
        for (family, len) in [(AF_INET, 24), (AF_INET6, 40)] {
            memory::clear(head, 128);
            let (hops_at, protocol_at) = if family == AF_INET { (8, 9) } else { (7, 6) };
            memory::write(head + NETWORK, if family == AF_INET { 0x46_u8 } else { 0x60 });
            memory::write(head + NETWORK + hops_at, 9_u8);
            memory::write(head + NETWORK + protocol_at, IPPROTO_TCP);
            memory::write(head + NETWORK + len + 4, numbers);
            let its = content(numbers[0], numbers[1]);
            let skb = Skb::<Probed>::new(address as *const u8);
            for (linear, paged, content) in
                [(len + 12, 0, its), (len + 13, 8, its), (len + 11, 1, 0), (len, 20, 0), (0, len + 20, 0)]
            {
                memory::write(address + 24, [(linear + paged) as u32, paged as u32]);
                assert_eq!(
                    skb.content_and_hops(family),
                    (content, 9),
                    "{family}: {linear} and {paged} bytes"
                );
            }
            memory::write(head + NETWORK + protocol_at, IPPROTO_TCP ^ 1);
            memory::write(address + 24, [100_u32, 0]);
            assert_eq!(skb.content_and_hops(family), (0, 9), "{family}: another protocol");
        }
    }

    /// An ACK has the number of a byte that comes later.
    #[test]
    fn what_has_no_payload_begins_nowhere() {
        const HEADER: u32 = 20;
        Machine::reset();
        let [address, head] = [64, 64].map(|size| memory::take(memory::slab(size)));
        let offsets = Offsets {
            sk_buff_head: 8,
            sk_buff_data: 16,
            sk_buff_len: 24,
            sk_buff_transport_header: 28,
            ..Offsets::default()
        };
        Machine::with(|machine| machine.offsets = offsets);
        memory::write(address + 8, [head, head]);
        memory::write(address + 28, 0_u16);
        memory::write(head, [0, 1_000_u32.to_be(), 0, ((HEADER / 4) << 28).to_be()]);
        let skb = Skb::<Probed>::new(address as *const u8);
        for (len, start) in [(0, None), (1, Some(1_000))] {
            memory::write(address + 24, HEADER + len);
            assert_eq!(skb.tcp_payload_start(), start, "{len} bytes");
        }
    }

    /// A SYN and a FIN have a number each, which is no byte's.
    #[test]
    fn numbers_of_what_tcp_sends_are_those_of_bytes() {
        Machine::reset();
        let address = memory::take(memory::slab(64));
        let offsets = Offsets {
            tcp_skb_cb_seq: 8,
            tcp_skb_cb_end_seq: 12,
            tcp_skb_cb_tcp_flags: 16,
            tcp_skb_cb_tcp_gso_segs: 18,
            ..Offsets::default()
        };
        Machine::with(|machine| machine.offsets = offsets);
        let skb = Skb::<Probed>::new(address as *const u8);
        for (flags, seq, len) in [(0, 1_000, 50), (SYN, 1_001, 49), (FIN, 1_000, 49), (SYN | FIN, 1_001, 48)]
        {
            memory::write(address + 8, [1_000_u32, 1_050]);
            memory::write(address + 16, 0x10 | flags);
            memory::write(address + 18, 3_u16);
            let sent = skb.tcp_cb_sent();
            assert_eq!((sent.seq, sent.len, sent.segs), (seq, len, 3), "{flags}");
            assert_eq!((skb.tcp_cb_payload(), skb.tcp_cb_seq()), (seq, 1_000), "{flags}");
            assert_eq!(skb.tcp_cb_has_fin(), flags & FIN != 0);
        }
    }

    /// Behind an IP header without options all is read at once.
    #[test]
    fn headers_are_found_behind_options_of_ip() {
        const LEN: u32 = 20 + 40;
        for (options, pair_v4) in [(0, 0x0200_000a_0100_000a), (4, 0)] {
            Machine::reset();
            let [address, head] = [128, 128].map(|size| memory::take(memory::slab(size)));
            let offsets = Offsets {
                sk_buff_head: 8,
                sk_buff_transport_header: 16,
                sk_buff_network_header: 18,
                sk_buff_mark: 24,
                sk_buff_len: 32,
                sk_buff_data_len: 36,
                ..Offsets::default()
            };
            Machine::with(|machine| machine.offsets = offsets);
            memory::write(address + 8, head);
            memory::write(address + 16, [8 + 20 + options, 8_u16]);
            memory::write(address + 24, 5_u32);
            memory::write(address + 32, [LEN, 0]);
            memory::write(head + 8 + 12, [[10_u8, 0, 0, 1], [10, 0, 0, 2]]);
            let words = [443 << 16 | 50_000, 1_000, 7, 6 << 28, 0_u32];
            memory::write(head + 8 + 20 + u64::from(options), words.map(u32::to_be));
            let found = Skb::<Probed>::new(address as *const u8).received_headers(AF_INET).expect("there");
            let ReceivedHeaders { tcp, lengths, pair_v4: pair, mark } = found;
            assert_eq!(
                (tcp.source, tcp.destination, tcp.seq, tcp.len),
                (443, 50_000, 1_000, 24),
                "{options}"
            );
            assert_eq!((lengths.all, lengths.paged, pair, mark), (LEN, 0, pair_v4, 5), "{options}");
        }
    }

    /// A driver has left all of a packet in a page. Where pages are mapped is known, or where that stands.
    #[test]
    fn headers_in_a_page_are_found_if_they_are_there() {
        const VMEMMAP: u64 = 0xffff_ea00_0000_0000;
        const OFFSET: u64 = 40;
        Machine::reset();
        let [address, head, page, places] = [128, 128, 128, 64].map(|size| memory::take(memory::slab(size)));
        let offsets = Offsets {
            sk_buff_head: 8,
            sk_buff_end: 16,
            sk_buff_mark: 24,
            sk_buff_len: 32,
            sk_buff_data_len: 36,
            skb_shared_info_nr_frags: 2,
            skb_shared_info_frags: 8,
            ..Offsets::default()
        };
        Machine::with(|machine| machine.offsets = offsets);
        memory::write(address + 8, head);
        memory::write(address + 16, 32_u32);
        memory::write(address + 24, 5_u32);
        memory::write(address + 32, [60_u32, 60]);
        let words = [443 << 16 | 50_000, 1_000, 7, 6 << 28, 0_u32];
        memory::write(page + OFFSET, words.map(u32::to_be));
        // The third page.
        let direct = page - 3 * PageBases::PAGE;
        memory::write(places, [direct, VMEMMAP]);
        let of_page = VMEMMAP + 3 * PageBases::PAGE_STRUCT;
        let values = PageBases { page_offset_base: direct, vmemmap_base: VMEMMAP, are_values: 1 };
        let addresses = PageBases { page_offset_base: places, vmemmap_base: places + 8, are_values: 0 };
        for (bases, count, of_page, len, is_there) in [
            (values, 1_u8, of_page, 20, true),
            (addresses, 2, of_page, 60, true),
            (values, 1, of_page, 19, false),
            (values, 0, of_page, 20, false),
            (values, 1, of_page | 1, 20, false),
            (PageBases::default(), 1, of_page, 20, false),
        ] {
            let place = PAGE_BASES.get_ptr_mut(0).expect("a place");
            // SAFETY: an entry of this thread's table, which nothing else refers to.
            unsafe { place.write(bases) };
            memory::write(head + 32 + 2, count);
            memory::write(head + 32 + 8, [of_page, OFFSET << 32 | len]);
            let found = Skb::<Probed>::new(address as *const u8).received_headers(AF_INET);
            let of = found.map(|ReceivedHeaders { tcp, lengths, pair_v4, mark }| {
                (tcp.source, tcp.destination, tcp.seq, tcp.len, lengths.all, lengths.paged, pair_v4, mark)
            });
            assert_eq!(
                of,
                is_there.then_some((443, 50_000, 1_000, 24, 60, 60, 0, 5)),
                "{bases:?} {count} {len}"
            );
        }
    }
}
