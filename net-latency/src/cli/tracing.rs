//! By what means to trace: the options that every view that traces shares.

use clap::Args;

use super::choice::{choice, first};
use crate::request::{Backend, Stages, TracingConfig, values};

/// The options, as clap reads them.
#[derive(Debug, Args)]
#[command(next_help_heading = "Tracing")]
pub(super) struct TracingArguments {
    /// How to hook into the kernel
    #[arg(long, value_parser = choice::<Backend>(), default_value = first::<Backend>())]
    backend: Backend,
    /// Size of the ring buffer between kernel and user side: 512K, 4M, …
    #[arg(long, value_name = "SIZE", value_parser = values::parse_buffer, default_value = "4M")]
    buffer: u32,
}

impl TracingArguments {
    pub(super) fn resolve(self, stages: Stages) -> TracingConfig {
        TracingConfig { backend: self.backend, buffer_bytes: self.buffer, stages }
    }
}
