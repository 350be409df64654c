//! What `net-latency top` is asked for.

use std::time::Duration;

use super::{filter::PacketFilter, format::FooterFormat, tracing::TracingConfig};
use crate::clock::Zone;

/// What to trace and how to show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopConfig {
    /// Which packets.
    pub filter: PacketFilter,
    /// By what means.
    pub tracing: TracingConfig,
    /// Time between two screens.
    pub delay: Duration,
    /// Time over which rates and percentiles are computed.
    pub window: Duration,
    /// Whose time the screen shows.
    pub zone: Zone,
    /// Nothing on stderr but errors.
    pub quiet: bool,
    /// Form of the figures at the end.
    pub footer: FooterFormat,
}
