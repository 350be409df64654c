//! The options of `net-latency journey`.

use std::{
    num::NonZeroU64,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, ValueEnum};
use glob::Pattern;

use super::{
    footer::FooterArguments,
    packets::{PacketArguments, PacketFilter},
    tracing::{Backend, TracingArguments, TracingConfig},
    values,
};
use crate::{clock::Zone, error::Failure, probes::journey::Functions, request::footer::FooterForm};

/// The options, as clap reads them.
#[derive(Debug, Args)]
pub(super) struct JourneyArguments {
    #[command(flatten)]
    packets: PacketArguments,

    /// Trace these functions too, of all that take an skb: 'tcp_*', 'nf_*' (repeatable)
    #[arg(long, value_name = "GLOB", value_parser = values::parse_pattern, help_heading = "Functions")]
    functions: Vec<Pattern>,
    /// Trace all functions that take an skb: attaching takes long, and every packet of the machine costs more
    #[arg(long, conflicts_with = "functions", help_heading = "Functions")]
    all: bool,

    /// Form of the output
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    format: JourneyFormat,
    /// Write to this file, not to standard output: append, or with --format perfetto begin it anew
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    output: Option<PathBuf>,
    /// Show times in UTC instead of local time
    #[arg(long, help_heading = "Output")]
    utc: bool,
    #[command(flatten)]
    footer: FooterArguments,

    /// Stop after this time: 250us, 1ms, 10s, 2m, 1h
    #[arg(long, value_parser = values::parse_duration, help_heading = "End")]
    duration: Option<Duration>,
    /// Stop after this many packets
    #[arg(short = 'n', long, value_name = "PACKETS", value_parser = values::parse_count, default_value = "1", help_heading = "End")]
    count: NonZeroU64,

    #[command(flatten)]
    tracing: TracingArguments,
}

/// A form of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum JourneyFormat {
    /// A table to read for each packet
    #[default]
    Text,
    /// A JSON object a line for each packet
    Json,
    /// Trace events for ui.perfetto.dev and chrome://tracing
    Perfetto,
}

/// Which packets to follow, and how to show their ways.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JourneyConfig {
    /// Which packets.
    pub filter: PacketFilter,
    /// Through which functions.
    pub functions: Functions,
    /// By what means.
    pub tracing: TracingConfig,
    /// Form of the output.
    pub format: JourneyFormat,
    /// File to write to; standard output if `None`.
    pub output: Option<PathBuf>,
    /// Whose time is shown.
    pub zone: Zone,
    /// Nothing on stderr but errors.
    pub quiet: bool,
    /// Form of the figures at the end.
    pub footer: FooterForm,
    /// Time after which to stop.
    pub duration: Option<Duration>,
    /// Number of packets after which to stop.
    pub count: NonZeroU64,
}

impl JourneyArguments {
    /// Checks the options against this machine, whose processes `proc` shows.
    pub(super) fn resolve(self, proc: &Path) -> Result<JourneyConfig, Failure> {
        let (quiet, footer) = self.footer.resolve();
        let tracing = self.tracing.resolve();
        if tracing.backend == Backend::Fentry && (self.all || !self.functions.is_empty()) {
            return Err(Failure::Usage(
                "--backend fentry can't attach to as many functions as --all or --functions may name; \
                 leave it out, or write --backend kprobe"
                    .to_owned(),
            ));
        }
        Ok(JourneyConfig {
            filter: self.packets.resolve(proc)?,
            functions: if self.all { Functions::All } else { Functions::Default(self.functions) },
            tracing,
            format: self.format,
            output: self.output,
            zone: if self.utc { Zone::UTC } else { Zone::Local },
            quiet,
            footer,
            duration: self.duration,
            count: self.count,
        })
    }
}
