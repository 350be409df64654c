//! The two ends of a connection or a datagram.

/// Addresses, ports and namespace of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    pub(super) is_v6: bool,
    /// Remote, then local.
    pub(super) addresses: [[u8; 16]; 2],
    pub(super) remote_port: u16,
    pub(super) local_port: u16,
    pub(super) net: usize,
}

/// An address as records have it.
pub(super) fn shown(address: [u8; 16], is_v6: bool) -> [u8; 16] {
    let mut shown = [0; 16];
    let len = if is_v6 { 16 } else { 4 };
    shown[..len].copy_from_slice(&address[..len]);
    shown
}
