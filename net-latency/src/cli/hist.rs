//! The options of `net-latency hist`.

use std::{path::Path, time::Duration};

use clap::{Args, ValueEnum};
use net_latency_common::GroupBy;

use super::{
    footer::FooterArguments,
    packets::{PacketArguments, PacketFilter},
    report::ReportFormat,
    tracing::Backend,
    values,
};
use crate::{clock::Zone, error::Failure, probes::histograms::Histograms, request::footer::FooterForm};

/// Groups that are shown unless told otherwise.
const DEFAULT_TOP: u16 = 10;
/// Reading the counts more often would cost more than keeping them.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);

/// The options, as clap reads them.
#[derive(Debug, Args)]
pub(super) struct HistArguments {
    #[command(flatten)]
    packets: PacketArguments,

    /// What to tell apart, beside directions, protocols and stages
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    by: ByArgument,
    /// Show so many groups, those with the longest p99 of the total; the rest is one group more
    #[arg(long, value_name = "GROUPS", value_parser = values::parse_rows, default_value_t = DEFAULT_TOP, help_heading = "Output")]
    top: u16,
    /// Form of the output
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    format: ReportFormat,
    /// Show times in UTC instead of local time
    #[arg(long, help_heading = "Output")]
    utc: bool,
    /// Each time this has passed, what came in that time: 1s, 10s, 1m; the end shows the whole run
    #[arg(long, value_parser = values::parse_duration, value_name = "DURATION", help_heading = "Output")]
    interval: Option<Duration>,
    #[command(flatten)]
    footer: FooterArguments,

    /// Stop after this time: 250us, 1ms, 10s, 2m, 1h
    #[arg(long, value_parser = values::parse_duration, help_heading = "End")]
    duration: Option<Duration>,

    /// How to hook into the kernel
    #[arg(long, value_enum, default_value_t, help_heading = "Tracing")]
    backend: Backend,
    /// Room for so many different buckets of all groups, in the kernel's memory: about 100 bytes each, and 8 per CPU
    #[arg(long, value_name = "COUNT", value_parser = values::parse_buckets, default_value = "32K", help_heading = "Tracing")]
    buckets: u32,
}

/// What packets are grouped by.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum ByArgument {
    /// Nothing else
    #[default]
    Stage,
    /// The process
    Pid,
    /// The name of the process' thread
    Comm,
    /// This end's port
    Port,
    /// The other end's address
    Host,
    /// The network device
    Interface,
    /// The process' cgroup: a systemd unit, a container
    Cgroup,
}

/// What to count, and how to show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistConfig {
    /// Which packets.
    pub filter: PacketFilter,
    /// How to hook into the kernel.
    pub backend: Backend,
    /// What is counted, and how much room there is for it.
    pub histograms: Histograms,
    /// Groups to show.
    pub top: usize,
    /// Form of the output.
    pub format: ReportFormat,
    /// Whose time is shown.
    pub zone: Zone,
    /// Time between two outputs.
    pub interval: Option<Duration>,
    /// Time after which to stop.
    pub duration: Option<Duration>,
    /// Nothing on stderr but errors.
    pub quiet: bool,
    /// Form of the figures at the end.
    pub footer: FooterForm,
}

impl HistArguments {
    /// Checks the options against this machine, whose processes `proc` shows.
    pub(super) fn resolve(self, proc: &Path) -> Result<HistConfig, Failure> {
        let (quiet, footer) = self.footer.resolve();
        if self.interval.is_some_and(|interval| interval < SHORTEST_INTERVAL) {
            return Err(Failure::Usage("--interval is too short: write 100ms or more".to_owned()));
        }
        Ok(HistConfig {
            filter: self.packets.resolve(proc)?,
            backend: self.backend,
            histograms: Histograms {
                by: match self.by {
                    ByArgument::Stage => GroupBy::Stage,
                    ByArgument::Pid => GroupBy::Pid,
                    ByArgument::Comm => GroupBy::Comm,
                    ByArgument::Port => GroupBy::Port,
                    ByArgument::Host => GroupBy::Host,
                    ByArgument::Interface => GroupBy::Interface,
                    ByArgument::Cgroup => GroupBy::Cgroup,
                },
                buckets: self.buckets,
            },
            top: self.top.into(),
            format: self.format,
            zone: if self.utc { Zone::UTC } else { Zone::Local },
            interval: self.interval,
            duration: self.duration,
            quiet,
            footer,
        })
    }
}
