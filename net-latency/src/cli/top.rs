//! The options of `net-latency top`.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;

use super::{
    choice::{choice, first},
    footer::FooterArguments,
    packets::PacketArguments,
    tracing::TracingArguments,
};
use crate::{
    clock::Zone,
    error::Failure,
    request::{
        FooterFormat, ReplayConfig, SortBy, Speed, Stages, TopConfig, TopInput, top::parse_speed, values,
    },
};

/// Drawing more often shows nothing more.
const SHORTEST_DELAY: Duration = Duration::from_millis(100);
/// A tenth of it is the finest that the screen tells apart.
const SHORTEST_WINDOW: Duration = Duration::from_secs(1);

/// The options, as clap reads them.
#[derive(Debug, Args)]
pub(super) struct TopArguments {
    #[command(flatten)]
    packets: PacketArguments,

    /// Draw the screen every DURATION
    #[arg(short, long, value_parser = values::parse_duration, value_name = "DURATION", default_value = "1s", help_heading = "Screen")]
    delay: Duration,
    /// Rates and percentiles cover the packets of the last DURATION
    #[arg(short, long, value_parser = values::parse_duration, value_name = "DURATION", default_value = "10s", help_heading = "Screen")]
    window: Duration,
    /// What to sort by at first; the key s changes it
    #[arg(long, value_parser = choice::<SortBy>(), default_value = first::<SortBy>(), value_name = "COLUMN", help_heading = "Screen")]
    sort: SortBy,
    /// Stage detail
    #[arg(long, value_parser = choice::<Stages>(), default_value = first::<Stages>(), help_heading = "Screen")]
    stages: Stages,
    /// Show times in UTC instead of local time
    #[arg(long, help_heading = "Screen")]
    utc: bool,
    /// Show recordings, or logs in JSON or CSV format, also compressed with gzip or zstd, instead of this kernel's
    /// packets; - for standard input
    #[arg(long, value_name = "FILE", num_args = 1.., help_heading = "Replay",
          conflicts_with_all = ["backend", "buffer", "cgroups", "containers", "netns", "sample", "control", "stages"])]
    replay: Vec<PathBuf>,
    /// Replay N times faster than it was recorded: 10, 0.5; max: as fast as it can be read
    #[arg(long, value_name = "N", value_parser = parse_speed, default_value = "1", requires = "replay", help_heading = "Replay")]
    speed: Speed,

    #[command(flatten)]
    footer: FooterArguments,

    #[command(flatten)]
    tracing: TracingArguments,
}

impl TopArguments {
    /// Checks the options against this machine, whose processes `proc` shows.
    pub(super) fn resolve(self, proc: &Path) -> Result<TopConfig, Failure> {
        let (quiet, footer) = self.footer.resolve();
        if self.delay < SHORTEST_DELAY {
            return Err(Failure::Usage("--delay is too short; write 100ms or longer".to_owned()));
        }
        if self.window < SHORTEST_WINDOW {
            return Err(Failure::Usage("--window is too short; write 1s or longer".to_owned()));
        }
        let (filter, input) = if self.replay.is_empty() {
            (self.packets.resolve(proc)?, TopInput::Kernel(self.tracing.resolve(self.stages)))
        } else {
            if footer == FooterFormat::Json {
                return Err(Failure::Usage(
                    "--footer json tells about tracing; net-latency report --format json sums up a log"
                        .to_owned(),
                ));
            }
            let replay = ReplayConfig { files: self.replay, speed: self.speed };
            (self.packets.resolve_for_log(proc)?, TopInput::Logs(replay))
        };
        Ok(TopConfig {
            filter,
            input,
            delay: self.delay,
            window: self.window,
            sort: self.sort,
            zone: if self.utc { Zone::UTC } else { Zone::Local },
            quiet,
            footer,
        })
    }
}
