//! The options of `net-latency journey`.

use std::{
    num::NonZeroU64,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use glob::Pattern;

use super::{
    choice::{choice, first},
    footer::FooterArguments,
    packets::PacketArguments,
    tracing::TracingArguments,
};
use crate::{
    clock::Zone,
    error::Failure,
    request::{Backend, Functions, JourneyConfig, JourneyFormat, Pick, Stages, values},
};

/// The options, as clap reads them.
#[derive(Debug, Args)]
pub(super) struct JourneyArguments {
    #[command(flatten)]
    packets: PacketArguments,

    /// Show packets that the kernel drops, with place and reason. The process of incoming ones is not known
    #[arg(long, help_heading = "Packets")]
    drops: bool,
    /// Follow 100 packets, and show the one whose time is nearest to the median of its process and direction
    #[arg(long, conflicts_with_all = ["drops", "slower"], help_heading = "Packets")]
    typical: bool,

    /// Trace these functions too, of all that take an skb: 'tcp_*', 'nf_*' (repeatable)
    #[arg(long, value_name = "GLOB", value_parser = values::parse_pattern, help_heading = "Functions")]
    functions: Vec<Pattern>,
    /// Trace all functions that take an skb: attaching takes long, and every packet of this machine costs more
    #[arg(long, conflicts_with = "functions", help_heading = "Functions")]
    all: bool,

    /// Output format
    #[arg(long, value_parser = choice::<JourneyFormat>(), default_value = first::<JourneyFormat>(), help_heading = "Output")]
    format: JourneyFormat,
    /// Append to this file, not to standard output; with --format perfetto, overwrite it
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

impl JourneyArguments {
    /// Checks the options against this machine, whose processes `proc` shows.
    pub(super) fn resolve(self, proc: &Path) -> Result<JourneyConfig, Failure> {
        let (quiet, footer) = self.footer.resolve();
        let tracing = self.tracing.resolve(Stages::Basic);
        if tracing.backend == Backend::Fentry && (self.all || !self.functions.is_empty()) {
            return Err(Failure::Usage(
                "--backend fentry can't trace the functions of --all and --functions, of which there may be too many; \
                 leave it out"
                    .to_owned(),
            ));
        }
        Ok(JourneyConfig {
            filter: self.packets.resolve(proc)?,
            pick: match (self.drops, self.typical) {
                (true, _) => Pick::Drops,
                (_, true) => Pick::Typical,
                _ => Pick::Any,
            },
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
