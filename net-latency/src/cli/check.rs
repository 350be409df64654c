//! The options of `net-latency check`.

use clap::Args;

use super::report::ReportFormat;
use super::tracing::{TracingArguments, TracingConfig};

/// The options, as clap reads them.
#[derive(Debug, Args)]
pub(super) struct CheckArguments {
    /// Form of the report
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    format: ReportFormat,
    #[command(flatten)]
    tracing: TracingArguments,
}

/// What to check, and how to say it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckConfig {
    /// By what means tracing is tried.
    pub tracing: TracingConfig,
    /// Form of the report.
    pub format: ReportFormat,
}

impl CheckArguments {
    pub(super) fn resolve(self) -> CheckConfig {
        CheckConfig { tracing: self.tracing.resolve(), format: self.format }
    }
}
