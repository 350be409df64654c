//! How the kernel's memory is read: nothing here knows what a packet is followed for.

pub mod arch;
#[cfg(feature = "connections")]
pub mod connection;
#[cfg(any(feature = "calls", feature = "journey"))]
pub(crate) mod context;
#[cfg(any(feature = "calls", feature = "journey"))]
pub(crate) mod globals;
pub mod memory;
#[cfg(feature = "packets")]
pub(crate) mod multipath;
pub mod offsets;
pub(crate) mod sequence;
pub mod skb;
pub mod socket;
pub mod task;
