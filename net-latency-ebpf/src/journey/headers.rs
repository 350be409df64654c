//! The headers of a packet, wherever its skb says that they are.

use net_latency_common::{AF_INET, AF_INET6, ETH_P_IP, ETH_P_IPV6, IPPROTO_TCP, IPPROTO_UDP};

use crate::{
    flow::addresses::AddrPair,
    kernel::{
        memory::{Memory, probe},
        offsets::offset,
        skb::Skb,
    },
};

/// What TCP, or UDP, and IP wrote in front of a packet's bytes.
pub(super) struct Headers {
    /// Source, then destination.
    pub(super) addresses: AddrPair,
    pub(super) source: u16,
    pub(super) destination: u16,
    /// Of TCP; 0 for UDP.
    pub(super) seq: u32,
    /// Payload bytes.
    pub(super) len: u32,
    pub(super) protocol: u8,
}

/// The headers of a packet whose `skb->data` stands on IP's, if it is TCP or UDP, no fragment, and its headers are in
/// the skb's own buffer.
#[inline(always)]
pub(super) fn at_data<M: Memory>(skb: Skb<M>) -> Option<Headers> {
    let protocol: u16 = skb.field(offset!(sk_buff_protocol));
    let family = match protocol {
        ETH_P_IP => AF_INET,
        ETH_P_IPV6 => AF_INET6,
        _ => return None,
    };
    let data: *const u8 = skb.field(offset!(sk_buff_data));
    let paged: u32 = skb.field(offset!(sk_buff_data_len));
    parse(data, family, skb.len().wrapping_sub(paged))
}

/// The headers of a packet that this machine's IP has written.
#[inline(always)]
pub(super) fn at_network<M: Memory>(skb: Skb<M>, family: u32) -> Option<Headers> {
    const ENOUGH: u32 = 128;
    let head: *const u8 = skb.field(offset!(sk_buff_head));
    let start: u16 = skb.field(offset!(sk_buff_network_header));
    parse(head.wrapping_add(start.into()), family, ENOUGH)
}

#[inline(always)]
fn parse(header: *const u8, family: u32, linear: u32) -> Option<Headers> {
    const TCP: u8 = IPPROTO_TCP;
    const UDP: u8 = IPPROTO_UDP;
    const V6_LEN: u32 = 40;
    const LEAST: u32 = 8;
    const TCP_LEAST: u32 = 20;
    const UDP_LEN: u32 = 8;
    let (addresses, protocol, ip_len, behind) = if family == AF_INET {
        // Version, header length, service, total length; id, fragment; hops, protocol, checksum; addresses.
        // SAFETY: packet memory, any address survives; any bytes are valid.
        let [first, fragment, third]: [u32; 3] = unsafe { probe(header) };
        // SAFETY: as above.
        let addresses: u64 = unsafe { probe(header.wrapping_add(12)) };
        if u32::from_be(fragment) & 0x3fff != 0 {
            return None;
        }
        let first = u32::from_be(first);
        let ip_len = (first >> 24 & 0xf) << 2;
        let pair = AddrPair::new(family, [addresses, 0, 0, 0]);
        (pair, (u32::from_be(third) >> 16) as u8, ip_len, (first & 0xffff).wrapping_sub(ip_len))
    } else {
        // Version and flow; payload length, next header, hops; addresses.
        // SAFETY: packet memory, any address survives; any bytes are valid.
        let [_, second]: [u32; 2] = unsafe { probe(header) };
        // SAFETY: as above.
        let addresses: [u64; 4] = unsafe { probe(header.wrapping_add(8)) };
        let second = u32::from_be(second);
        (AddrPair::new(family, addresses), (second >> 8) as u8, V6_LEN, second >> 16)
    };
    if linear < ip_len + LEAST {
        return None;
    }
    // SAFETY: packet memory, any address survives; any bytes are valid.
    let words: [u32; 4] = unsafe { probe(header.wrapping_add(ip_len as usize)) };
    let [ports, second, _, fourth] = words.map(u32::from_be);
    let (seq, len, room) = match protocol {
        TCP if linear >= ip_len + TCP_LEAST => {
            let header_len = fourth >> 28 << 2;
            (second.wrapping_add(fourth >> 17 & 1), behind.wrapping_sub(header_len), behind)
        }
        // IP's own length is written later than UDP's.
        UDP => (0, (second >> 16).wrapping_sub(UDP_LEN), second >> 16),
        _ => return None,
    };
    Some(Headers {
        addresses,
        source: (ports >> 16) as u16,
        destination: ports as u16,
        seq,
        // A length that the header has no room for is 0 there.
        len: if len > room { 0 } else { len },
        protocol,
    })
}

/// The first two words behind the IP header, where the skb says that one is; 0 if it is neither of TCP nor of UDP.
#[inline(always)]
pub(super) fn content<M: Memory>(skb: Skb<M>) -> u64 {
    let start: u16 = skb.field(offset!(sk_buff_network_header));
    let head: *const u8 = skb.field(offset!(sk_buff_head));
    if start == 0 || head.is_null() {
        return 0;
    }
    let header = head.wrapping_add(start.into());
    // SAFETY: packet memory, any address survives; any bytes are valid.
    let first: u8 = unsafe { probe(header) };
    let (protocol_at, len) = match first >> 4 {
        4 => (9, usize::from(first & 0xf) << 2),
        6 => (6, 40),
        _ => return 0,
    };
    // SAFETY: as above.
    let protocol: u8 = unsafe { probe(header.wrapping_add(protocol_at)) };
    if protocol != IPPROTO_TCP && protocol != IPPROTO_UDP {
        return 0;
    }
    // SAFETY: as above.
    let [ports, second]: [u32; 2] = unsafe { probe(header.wrapping_add(len)) };
    u64::from(u32::from_be(ports)) << 32 | u64::from(u32::from_be(second))
}
