//! TCP, both ways: what is kept of its sockets, segments and write calls, and what its hooks do with it.

mod connection;
pub mod receive;
mod segments;
mod steps;
pub mod transmit;
mod writes;
