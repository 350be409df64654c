//! The options of `net-latency top`.

use std::{path::Path, time::Duration};

use clap::Args;

use super::{footer::FooterArguments, packets::PacketArguments, tracing::TracingArguments};
use crate::{
    clock::Zone,
    error::Failure,
    request::{TopConfig, values},
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
    /// Show times in UTC instead of local time
    #[arg(long, help_heading = "Screen")]
    utc: bool,
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
        Ok(TopConfig {
            filter: self.packets.resolve(proc)?,
            tracing: self.tracing.resolve(),
            delay: self.delay,
            window: self.window,
            zone: if self.utc { Zone::UTC } else { Zone::Local },
            quiet,
            footer,
        })
    }
}
