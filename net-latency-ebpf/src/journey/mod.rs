//! `net-latency journey`: single packets, followed through every function that is given their skb.
//!
//! A packet that is followed is known by its buffer (`skb->head`), which clones share: [`heads`]. Which packets are wanted is decided where
//! they enter the stack and where applications hand them over ([`begin`]). On a TCP socket's queue an skb may be merged into another, so
//! that from there on a packet is its socket and sequence number ([`queue`]).

pub mod begin;
pub mod context;
mod headers;
pub mod heads;
pub mod queue;
mod row;
pub mod schedule;
mod settings;
mod tally;
#[cfg(test)]
pub(crate) mod testing;
mod untraced;

pub use settings::position;
