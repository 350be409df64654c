//! What is dropped: by whose sockets, and where in the kernel.

use crate::{is_client, service_port};

/// Name of the map of [`DropPlace`]s, each with its count.
pub const DROP_PLACES_MAP: &str = "DROP_PLACES";
/// As many of these.
pub const MAX_DROP_PLACES: u32 = 512;

/// Where the kernel drops packets (`kfree_skb`), and of which service they were. All zero: those that have no room for their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct DropPlace {
    /// Behind the call that drops them.
    pub location: u64,
    /// Of `enum skb_drop_reason`; 0 before Linux 5.17.
    pub reason: u32,
    /// The service's port ([`service_port`]).
    pub port: u16,
    /// `IPPROTO_TCP` or `IPPROTO_UDP`.
    pub protocol: u8,
    /// Zero.
    pub unused: u8,
}

// SAFETY: `repr(C)`, integers only, no padding (asserted below).
#[cfg(feature = "user")]
unsafe impl aya::Pod for DropPlace {}
const _: () = assert!(size_of::<DropPlace>() == 16, "keys have no padding");

/// Sockets whose drops are counted together: those of one end of a service, in one network namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct DroppingSockets {
    /// Inode number of the network namespace.
    pub netns: u32,
    /// The service's port ([`service_port`]).
    pub port: u16,
    /// `IPPROTO_TCP` or `IPPROTO_UDP`.
    pub protocol: u8,
    /// 1 if they are the clients', 0 if they are the service's own.
    pub is_client: u8,
}

impl DroppingSockets {
    /// Those with these ports. `ephemeral` is [`crate::Settings::ephemeral_ports`].
    #[inline(always)]
    #[must_use]
    pub const fn new(netns: u32, protocol: u8, local: u16, remote: u16, ephemeral: u32) -> Self {
        let port = service_port(local, remote, ephemeral);
        Self { netns, port, protocol, is_client: is_client(local, remote, ephemeral) as u8 }
    }
}

// SAFETY: `repr(C)`, integers only, no padding (asserted below).
#[cfg(feature = "user")]
unsafe impl aya::Pod for DroppingSockets {}
const _: () = assert!(size_of::<DroppingSockets>() == 8, "keys have no padding");
