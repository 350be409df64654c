//! What `net-latency check` is asked for.

use super::{format::ReportFormat, tracing::TracingConfig};

/// What to check, and how to say it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckConfig {
    /// By what means tracing is tried.
    pub tracing: TracingConfig,
    /// Form of the report.
    pub format: ReportFormat,
}
