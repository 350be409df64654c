//! TCP, both ways: the state of its sockets, segments and write calls, and what its hooks do with it.

mod connection;
#[cfg(feature = "fine")]
pub mod held;
#[cfg(feature = "fine")]
mod holding;
#[cfg(feature = "fine")]
pub mod in_flight;
pub mod multipath;
pub mod receive;
mod segments;
mod steps;
pub mod transmit;
mod writes;

#[cfg(test)]
pub(crate) use connection::in_flight_packets;
#[cfg(test)]
pub(crate) use segments::{shares, waiting_segments};
#[cfg(test)]
pub(crate) use steps::BATCH as LINES_PER_RUN;
