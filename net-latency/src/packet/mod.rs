//! A packet as the user side knows it: the event, and the names of its stages.

pub mod event;
pub(crate) mod fields;
pub mod possible;
pub mod stages;
