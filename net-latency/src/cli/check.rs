//! The options of `net-latency check`.

use clap::Args;

use super::{
    choice::{choice, first},
    tracing::TracingArguments,
};
use crate::request::{CheckConfig, ReportFormat, Stages};

/// The options, as clap reads them.
#[derive(Debug, Args)]
pub(super) struct CheckArguments {
    /// Output format
    #[arg(long, value_parser = choice::<ReportFormat>(), default_value = first::<ReportFormat>(), help_heading = "Output")]
    format: ReportFormat,
    #[command(flatten)]
    tracing: TracingArguments,
}

impl CheckArguments {
    pub(super) fn resolve(self) -> CheckConfig {
        CheckConfig { tracing: self.tracing.resolve(Stages::Basic), format: self.format }
    }
}
