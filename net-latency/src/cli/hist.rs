//! The options of `net-latency hist`.

use std::{path::Path, time::Duration};

use clap::Args;
use net_latency_common::GroupBy;

use super::{
    choice::{choice, first},
    footer::FooterArguments,
    packets::PacketArguments,
};
use crate::{
    clock::Zone,
    error::Failure,
    request::{Backend, HistConfig, Histograms, ReportFormat, Stages, values},
};

/// Groups that are shown unless told otherwise.
const DEFAULT_TOP: u16 = 10;
/// Reading the counts more often would cost more than keeping them.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);

/// The options, as clap reads them.
#[derive(Debug, Args)]
pub(super) struct HistArguments {
    #[command(flatten)]
    packets: PacketArguments,

    /// What to group by, besides direction, protocol and stage
    #[arg(long, value_parser = choice::<GroupBy>(), default_value = first::<GroupBy>(), help_heading = "Output")]
    by: GroupBy,
    /// Stage detail
    #[arg(long, value_parser = choice::<Stages>(), default_value = first::<Stages>(), help_heading = "Output")]
    stages: Stages,
    /// Number of groups to show, those with the longest p99 of the total; the rest share one more
    #[arg(long, value_name = "GROUPS", value_parser = values::parse_rows, default_value_t = DEFAULT_TOP, help_heading = "Output")]
    top: u16,
    /// Output format
    #[arg(long, value_parser = choice::<ReportFormat>(), default_value = first::<ReportFormat>(), help_heading = "Output")]
    format: ReportFormat,
    /// Only the tables, without a histogram for each row
    #[arg(long, help_heading = "Output")]
    no_histogram: bool,
    /// Show times in UTC instead of local time
    #[arg(long, help_heading = "Output")]
    utc: bool,
    /// Print the counts of every DURATION: 1s, 10s, 1m; the end shows the whole run
    #[arg(long, value_parser = values::parse_duration, value_name = "DURATION", help_heading = "Output")]
    interval: Option<Duration>,
    #[command(flatten)]
    footer: FooterArguments,

    /// Stop after this time: 250us, 1ms, 10s, 2m, 1h
    #[arg(long, value_parser = values::parse_duration, help_heading = "End")]
    duration: Option<Duration>,

    /// How to hook into the kernel
    #[arg(long, value_parser = choice::<Backend>(), default_value = first::<Backend>(), help_heading = "Tracing")]
    backend: Backend,
    /// Room for this many buckets in the kernel's memory: about 100 bytes each, and 8 per CPU
    #[arg(long, value_name = "COUNT", value_parser = values::parse_buckets, default_value = "32K", help_heading = "Tracing")]
    buckets: u32,
}

impl HistArguments {
    /// Checks the options against this machine, whose processes `proc` shows.
    pub(super) fn resolve(self, proc: &Path) -> Result<HistConfig, Failure> {
        let (quiet, footer) = self.footer.resolve();
        if self.interval.is_some_and(|interval| interval < SHORTEST_INTERVAL) {
            return Err(Failure::Usage("--interval is too short; write 100ms or longer".to_owned()));
        }
        Ok(HistConfig {
            filter: self.packets.resolve(proc)?,
            backend: self.backend,
            histograms: Histograms { by: self.by, buckets: self.buckets, stages: self.stages, slower: None },
            top: self.top.into(),
            format: self.format,
            histogram: !self.no_histogram,
            zone: if self.utc { Zone::UTC } else { Zone::Local },
            interval: self.interval,
            duration: self.duration,
            quiet,
            footer,
        })
    }
}
