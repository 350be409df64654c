//! Recordings: packets packed into [`block`]s, which follow each other in memory and in a [`file`].
//!
//! A block is read by itself: names, addresses and connections stand in it once. It has a [`columns`] for each field of a packet's
//! line, in which only what differs from what could be expected takes room.

pub(crate) mod block;
pub(crate) mod columns;
pub(crate) mod file;
pub(crate) mod ring;
