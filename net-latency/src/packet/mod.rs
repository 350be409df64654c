//! A packet as the user side knows it: the event, and the names of its stages.

pub(crate) mod event;
pub(crate) mod fields;
pub(crate) mod possible;
pub(crate) mod stages;
