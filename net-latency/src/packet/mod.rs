//! A packet as the user side knows it: the event, the names of its stages, and how times are distributed.

pub(crate) mod cells;
pub mod event;
pub mod stages;
