//! Where records come from.

pub(crate) mod log;
pub mod order;
pub mod ring;
