//! By what means to trace: the options that every view that traces shares.

use clap::{Args, ValueEnum};

use super::values;

/// The options, as clap reads them.
#[derive(Debug, Args)]
#[command(next_help_heading = "Tracing")]
pub(super) struct TracingArguments {
    /// How to hook into the kernel
    #[arg(long, value_enum, default_value_t)]
    backend: Backend,
    /// Size of the ring buffer between kernel and user side: 512K, 4M, …
    #[arg(long, value_name = "SIZE", value_parser = values::parse_buffer, default_value = "4M")]
    buffer: u32,
}

/// How to hook into the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// What sees most at the least cost on this kernel
    #[default]
    Auto,
    /// BTF trampolines
    Fentry,
    /// Breakpoints or ftrace
    Kprobe,
}

/// By what means to trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracingConfig {
    /// How to hook into the kernel.
    pub backend: Backend,
    /// Size of the ring buffer in bytes: a power of two, a multiple of the page size.
    pub buffer_bytes: u32,
}

impl TracingArguments {
    pub(super) fn resolve(self) -> TracingConfig {
        TracingConfig { backend: self.backend, buffer_bytes: self.buffer }
    }
}
