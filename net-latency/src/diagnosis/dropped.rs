//! What the kernel drops.

use crate::packet::event::Protocol;

/// What the kernel has dropped in one place, of one service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Dropped {
    /// Of which protocol.
    pub(crate) protocol: Protocol,
    /// The service's port.
    pub(crate) port: u16,
    /// Packets.
    pub(crate) count: u64,
    /// The kernel's function, where its name is known.
    pub(crate) function: Option<String>,
    /// The kernel's reason, since Linux 5.17.
    pub(crate) reason: Option<String>,
}
