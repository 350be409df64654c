//! Where records come from.

pub mod order;
pub mod ring;
