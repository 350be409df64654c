//! What leaves the kernel side: records, counts of times, counters.

pub mod counters;
#[cfg(feature = "hist")]
pub(crate) mod histogram;
pub(crate) mod ring;
mod sampling;
