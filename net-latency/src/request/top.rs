//! What `net-latency top` is asked for.

use std::time::Duration;

use super::{filter::PacketFilter, format::FooterFormat, tracing::TracingConfig};
use crate::clock::Zone;

/// What to trace and how to show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopConfig {
    /// Which packets to show; the kernel side applies this.
    pub filter: PacketFilter,
    /// How to hook into the kernel, and the size of the ring buffer.
    pub tracing: TracingConfig,
    /// Time between two screens.
    pub delay: Duration,
    /// Time over which rates and percentiles are computed.
    pub window: Duration,
    /// Time zone of the screen and of the summary: that of this machine, or UTC.
    pub zone: Zone,
    /// Only errors go to standard error. The footer is then `FooterFormat::None`.
    pub quiet: bool,
    /// Form of the summary at the end, on standard error.
    pub footer: FooterFormat,
}
