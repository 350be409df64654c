//! Recordings: packets packed into [`block`]s, which follow each other in memory and in a [`file`]. A block is read by itself.

pub(crate) mod block;
pub(crate) mod file;
pub(crate) mod ring;
