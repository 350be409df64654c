//! Which end of a connection a packet is of.

use std::net::SocketAddr;

use super::exchanges::Role;
use crate::packet::event::{Event, Protocol, local_and_remote};

/// One end of a connection, or of datagrams between two: what tells it from all others of this machine. Another network namespace may
/// have the same addresses and ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Ends {
    /// What carries the data.
    pub protocol: Protocol,
    /// Inode number of the network namespace; 0 where a log lacks it.
    pub netns: u32,
    /// This machine's end.
    pub local: SocketAddr,
    /// The other one.
    pub remote: SocketAddr,
}

impl Ends {
    /// The ends of a packet.
    #[must_use]
    pub(crate) fn of(event: &Event<'_>) -> Self {
        Self::between(event, event.ends())
    }

    /// The ends of a packet; `None` where a log's line lacks one.
    #[must_use]
    pub(crate) fn known(event: &Event<'_>) -> Option<Self> {
        event.known_ends().map(|ends| Self::between(event, ends))
    }

    /// The ends of a packet with this source and destination.
    fn between(event: &Event<'_>, ends: [SocketAddr; 2]) -> Self {
        let (local, remote) = local_and_remote(event.direction(), ends);
        Self { protocol: event.protocol(), netns: event.record().netns, local, remote }
    }

    /// Which end this machine has, as [`Role::of`] says; unknown without `ephemeral`.
    #[must_use]
    pub(crate) fn role(&self, ephemeral: Option<u32>) -> Option<Role> {
        Role::of(self.local.port(), self.remote.port(), ephemeral?)
    }

    /// The other end, if that is in the network namespace `netns`.
    #[must_use]
    pub(crate) fn opposite(&self, netns: u32) -> Self {
        Self { netns, local: self.remote, remote: self.local, ..*self }
    }

    /// Both addresses, the same for both ends, and whether the first is the local one.
    pub(super) fn pair(&self) -> ([SocketAddr; 2], bool) {
        let is_first = self.local <= self.remote;
        (if is_first { [self.local, self.remote] } else { [self.remote, self.local] }, is_first)
    }
}
