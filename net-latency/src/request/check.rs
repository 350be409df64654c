//! The parsed request of `net-latency check`.

use super::{format::ReportFormat, tracing::TracingConfig};

/// What to check, and how to say it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CheckConfig {
    /// The backends to try (all, if it is `Auto`), and the size of the ring buffer that they get.
    pub tracing: TracingConfig,
    /// Form of the report: a table, or a JSON object.
    pub format: ReportFormat,
}
