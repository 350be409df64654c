//! Devices that stand upon others, and routes.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Context as _, Result};
use nix::net::if_::if_nametoindex;

use super::{IFLA_INFO_DATA, IFLA_INFO_KIND, Request};

// Of linux/if_link.h, linux/if_tunnel.h and linux/rtnetlink.h, where libc has them not.
const IFLA_VLAN_ID: u16 = 1;
const IFLA_BOND_MODE: u16 = 1;
const BOND_MODE_ACTIVEBACKUP: u8 = 1;
const IFLA_BR_AGEING_TIME: u16 = 4;
const IFLA_GRE_LOCAL: u16 = 6;
const IFLA_GRE_REMOTE: u16 = 7;
const IFLA_VXLAN_ID: u16 = 1;
const IFLA_VXLAN_GROUP: u16 = 2;
const IFLA_VXLAN_LOCAL: u16 = 4;
const IFLA_VXLAN_PORT: u16 = 15;
const VXLAN_PORT: u16 = 4789;
const RTAX_LOCK: u16 = 1;
const RTAX_RTO_MIN: u16 = 13;

/// A kind of device that needs another one, or is made to have some.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind<'a> {
    Bridge,
    Bond,
    Vlan {
        below: &'a str,
    },
    Gre {
        local: Ipv4Addr,
        remote: Ipv4Addr,
    },
    Vxlan {
        local: Ipv4Addr,
        remote: Ipv4Addr,
    },
    Wireguard,
    /// Packets sent to it enter the stack again.
    Intermediate,
}

pub(super) fn create(name: &str, kind: Kind<'_>) -> Result<()> {
    let mut request = Request::new(libc::RTM_NEWLINK, libc::NLM_F_CREATE | libc::NLM_F_EXCL);
    request.link(0, 0);
    request.attribute(libc::IFLA_IFNAME, name.as_bytes());
    if let Kind::Vlan { below } = kind {
        request.attribute(libc::IFLA_LINK, &if_nametoindex(below)?.to_ne_bytes());
    }
    let kind_name = match kind {
        Kind::Bridge => "bridge",
        Kind::Bond => "bond",
        Kind::Vlan { .. } => "vlan",
        Kind::Gre { .. } => "gre",
        Kind::Vxlan { .. } => "vxlan",
        Kind::Wireguard => "wireguard",
        Kind::Intermediate => "ifb",
    };
    request.nested(libc::IFLA_LINKINFO, |request| {
        request.attribute(IFLA_INFO_KIND, kind_name.as_bytes());
        request.nested(IFLA_INFO_DATA, |request| match kind {
            Kind::Bridge | Kind::Wireguard | Kind::Intermediate => {}
            Kind::Bond => request.attribute(IFLA_BOND_MODE, &[BOND_MODE_ACTIVEBACKUP]),
            Kind::Vlan { .. } => request.attribute(IFLA_VLAN_ID, &7_u16.to_ne_bytes()),
            Kind::Gre { local, remote } => {
                request.attribute(IFLA_GRE_LOCAL, &local.octets());
                request.attribute(IFLA_GRE_REMOTE, &remote.octets());
            }
            Kind::Vxlan { local, remote } => {
                request.attribute(IFLA_VXLAN_ID, &7_u32.to_ne_bytes());
                request.attribute(IFLA_VXLAN_LOCAL, &local.octets());
                request.attribute(IFLA_VXLAN_GROUP, &remote.octets());
                request.attribute(IFLA_VXLAN_PORT, &VXLAN_PORT.to_be_bytes());
            }
        });
    });
    request.perform().with_context(|| format!("creating a device of kind {kind:?}"))
}

/// Makes a device a port of a bridge, or part of a bond.
pub(super) fn enslave(name: &str, master: &str) -> Result<()> {
    let mut request = Request::new(libc::RTM_NEWLINK, 0);
    request.link(if_nametoindex(name)?, 0);
    request.attribute(libc::IFLA_MASTER, &if_nametoindex(master)?.to_ne_bytes());
    request.perform().with_context(|| format!("giving {name} the master {master}"))
}

/// Has a bridge forget at once which address is behind which port, so that it sends everything to all of them.
pub(super) fn flood(bridge: &str) -> Result<()> {
    let mut request = Request::new(libc::RTM_NEWLINK, 0);
    request.link(if_nametoindex(bridge)?, 0);
    request.nested(libc::IFLA_LINKINFO, |request| {
        request.attribute(IFLA_INFO_KIND, b"bridge");
        request.nested(IFLA_INFO_DATA, |request| {
            request.attribute(IFLA_BR_AGEING_TIME, &0_u32.to_ne_bytes());
        });
    });
    request.perform().with_context(|| format!("having {bridge} forget"))
}

/// Lets a device send longer packets, or only shorter ones.
pub(super) fn set_mtu(device: &str, bytes: u32) -> Result<()> {
    let mut request = Request::new(libc::RTM_NEWLINK, 0);
    request.link(if_nametoindex(device)?, 0);
    request.attribute(libc::IFLA_MTU, &bytes.to_ne_bytes());
    request.perform().with_context(|| format!("giving {device} an MTU of {bytes}"))
}

/// Sends all that has no other route by `gateway`.
pub(super) fn default_route(gateway: IpAddr) -> Result<()> {
    let mut request = route(gateway.is_ipv6(), 0, libc::RT_SCOPE_UNIVERSE)?;
    request.attribute(libc::RTA_GATEWAY, &octets(gateway));
    request.perform().with_context(|| format!("a default route by {gateway}"))
}

/// Sends packets for `destination` by `gateway`.
pub(super) fn route_by(destination: IpAddr, gateway: IpAddr) -> Result<()> {
    let mut request = route(destination.is_ipv6(), whole(destination), libc::RT_SCOPE_UNIVERSE)?;
    request.attribute(libc::RTA_DST, &octets(destination));
    request.attribute(libc::RTA_GATEWAY, &octets(gateway));
    request.perform().with_context(|| format!("a route to {destination} by {gateway}"))
}

/// Forgets which device address `neighbour` has.
pub(super) fn forget_neighbour(neighbour: Ipv4Addr, device: &str) -> Result<()> {
    // Of linux/neighbour.h.
    const NDA_DST: u16 = 1;
    let mut request = Request::new(libc::RTM_DELNEIGH, 0);
    // struct ndmsg: family, padding, device, state, flags, type.
    request.put(&[u8::try_from(libc::AF_INET)?, 0, 0, 0]);
    request.put(&if_nametoindex(device)?.to_ne_bytes());
    request.put(&[0; 4]);
    request.attribute(NDA_DST, &neighbour.octets());
    request.perform().with_context(|| format!("forgetting {neighbour}"))
}

/// A route to `destination` on which retransmission timers run down in `rto_min_ms` at the earliest.
pub(super) fn impatient_route(
    destination: IpAddr,
    gateway: Option<IpAddr>,
    device: &str,
    rto_min_ms: u32,
) -> Result<()> {
    let scope = if gateway.is_some() { libc::RT_SCOPE_UNIVERSE } else { libc::RT_SCOPE_LINK };
    let mut request = route(destination.is_ipv6(), whole(destination), scope)?;
    request.attribute(libc::RTA_DST, &octets(destination));
    if let Some(gateway) = gateway {
        request.attribute(libc::RTA_GATEWAY, &octets(gateway));
    }
    request.attribute(libc::RTA_OIF, &if_nametoindex(device)?.to_ne_bytes());
    request.nested(libc::RTA_METRICS, |request| {
        request.attribute(RTAX_LOCK, &(1_u32 << RTAX_RTO_MIN).to_ne_bytes());
        request.attribute(RTAX_RTO_MIN, &rto_min_ms.to_ne_bytes());
    });
    request.perform().with_context(|| format!("a route to {destination}"))
}

/// The start of a request for a route.
fn route(is_v6: bool, len: u8, scope: u8) -> Result<Request> {
    let family = if is_v6 { libc::AF_INET6 } else { libc::AF_INET };
    let mut request = Request::new(libc::RTM_NEWROUTE, libc::NLM_F_CREATE | libc::NLM_F_EXCL);
    // struct rtmsg: family, lengths of destination and source, TOS, table, protocol, scope, type, flags.
    request.put(&[u8::try_from(family)?, len, 0, 0]);
    request.put(&[libc::RT_TABLE_MAIN, libc::RTPROT_BOOT, scope, libc::RTN_UNICAST]);
    request.put(&[0; 4]);
    Ok(request)
}

/// The length of the prefix that is a whole address.
fn whole(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}
