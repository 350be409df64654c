//! Where the kernel drops TCP's segments and datagrams, whoever's they are.

use net_latency_common::{
    DropPlace, ETH_P_IP, ETH_P_IPV6, IPPROTO_TCP, IPPROTO_UDP, MAX_DROP_PLACES, service_port,
};

use crate::{
    bpf::{HashMap, NO_EXIST, entry::increment, map},
    flow::settings::setting,
    kernel::{
        memory::{Memory, probe},
        offsets::offset,
        skb::Skb,
    },
};

/// Packets dropped. The user side puts the entry there for those that find no room.
#[map]
static DROP_PLACES: HashMap<DropPlace, u64> = HashMap::with_max_entries(MAX_DROP_PLACES, 0);

/// Whether the kernel has reasons.
#[inline(always)]
pub fn has_reasons() -> bool {
    setting!(shows_drop_reasons) != 0
}

/// `kfree_skb(skb, location[, reason])`.
#[inline(always)]
pub fn dropped<M: Memory>(skb: Skb<M>, location: u64, reason: u32) {
    let Some((protocol, [source, destination])) = ports(skb) else { return };
    let port = service_port(destination, source, setting!(ephemeral_ports));
    let place = DropPlace { location, reason, port, protocol, unused: 0 };
    if DROP_PLACES.get_ptr(&place).is_none() {
        // It is there already if another CPU, or what interrupted this one, was here between.
        let _ = DROP_PLACES.insert(&place, &0, NO_EXIST);
    }
    let count = DROP_PLACES.get_ptr_mut(&place).or_else(|| DROP_PLACES.get_ptr_mut(&DropPlace::default()));
    if let Some(count) = count {
        increment(count);
    }
}

/// `IPPROTO_TCP` or `IPPROTO_UDP`, and source and destination port, wherever on its way a packet of IP is. Nothing of a fragment behind
/// the first, and where IPv6 has other headers in between.
#[inline(always)]
fn ports<M: Memory>(skb: Skb<M>) -> Option<(u8, [u16; 2])> {
    let head: *const u8 = skb.field(offset!(sk_buff_head));
    let start: u16 = skb.field(offset!(sk_buff_network_header));
    let header = head.wrapping_add(start.into());
    // SAFETY: packet memory, any address survives; any bytes are valid.
    let words: [u32; 3] = unsafe { probe(header) };
    let [first, second, third] = words.map(u32::from_be);
    let (protocol, len) = match skb.field::<u16>(offset!(sk_buff_protocol)) {
        ETH_P_IP if second & 0x1fff == 0 => ((third >> 16) as u8, (first >> 24 & 0xf) << 2),
        ETH_P_IPV6 => ((second >> 8) as u8, 40),
        _ => return None,
    };
    if protocol != IPPROTO_TCP && protocol != IPPROTO_UDP {
        return None;
    }
    // SAFETY: as above.
    let ports: [u16; 2] = unsafe { probe(header.wrapping_add(len as usize)) };
    Some((protocol, ports.map(u16::from_be)))
}

/// What was dropped where.
#[cfg(test)]
pub(crate) fn all() -> std::vec::Vec<(DropPlace, u64)> {
    DROP_PLACES.all()
}

/// Makes the entry for those that find no room.
#[cfg(test)]
pub(crate) fn make_room() {
    DROP_PLACES.insert(&DropPlace::default(), &0, 0).expect("room for it");
}
