//! The options of `net-latency connections`.

use std::{
    num::NonZeroU64,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, Command};

use super::{
    choice::{choice, first},
    footer::FooterArguments,
    packets::PacketArguments,
    tracing::TracingArguments,
};
use crate::{
    clock::Zone,
    error::Failure,
    request::{ConnectionsConfig, ConnectionsInput, LineFormat, PacketFilter, Stages, values},
};

/// Asking about all that is open more often would cost more than tracing.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);

/// What packets have and connections don't: the option, and what serves instead.
const OF_PACKETS: [(&str, &str); 5] = [
    ("interfaces", "use --host or --netns to choose a network"),
    ("protocol", "connections are always TCP"),
    ("direction", "connections have no direction, only a side that began them"),
    ("sample", "connections are counted whole, not by packet"),
    ("control", "connections are counted whole, not by packet"),
];

/// The options, as clap reads them.
#[derive(Debug, Args)]
pub(super) struct ConnectionsArguments {
    #[command(flatten)]
    packets: PacketArguments,
    /// Only connections that failed: refused, reset, timed out, turned away by a full queue
    #[arg(long, help_heading = "Output")]
    failed: bool,

    /// Output format
    #[arg(long, value_parser = choice::<LineFormat>(), default_value = first::<LineFormat>(), help_heading = "Output")]
    format: LineFormat,
    /// Append the lines to this file, not to standard output; SIGHUP reopens it by its name
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    output: Option<PathBuf>,
    /// Show times in UTC instead of local time
    #[arg(long, help_heading = "Output")]
    utc: bool,
    /// Show open connections every DURATION too: 1s, 10s, 1m
    #[arg(long, value_parser = values::parse_duration, value_name = "DURATION", help_heading = "Output")]
    interval: Option<Duration>,
    #[command(flatten)]
    footer: FooterArguments,
    /// More columns on text lines: this end's address, times of the first bytes, segments and more
    #[arg(short, long, help_heading = "Output")]
    verbose: bool,

    /// Stop after this time: 250us, 1ms, 10s, 2m, 1h
    #[arg(long, value_parser = values::parse_duration, help_heading = "End")]
    duration: Option<Duration>,
    /// Stop after this many lines
    #[arg(short = 'n', long, value_name = "LINES", value_parser = values::parse_count, help_heading = "End")]
    count: Option<NonZeroU64>,
    /// Show what was recorded in JSON or CSV format, also compressed with gzip or zstd, instead of this kernel's
    /// connections; - for standard input
    #[arg(long, value_name = "FILE", num_args = 1.., help_heading = "Replay",
          conflicts_with_all = ["backend", "buffer", "cgroups", "containers", "netns", "interval", "duration"])]
    replay: Vec<PathBuf>,

    #[command(flatten)]
    tracing: TracingArguments,
}

/// The options that it shares with views of packets, as they are meant here.
pub(super) fn with_own_words(command: Command) -> Command {
    const HEADING: &str = "Connections (different filters: AND; one given repeatedly: OR)";

    let command = command.mut_args(|argument| {
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        match help.strip_prefix("Only packets ") {
            Some(rest) => argument.help(format!("Only connections {rest}")).help_heading(HEADING),
            None => argument,
        }
    });
    let command = OF_PACKETS
        .into_iter()
        .fold(command, |command, (name, _)| command.mut_arg(name, |argument| argument.hide(true)));
    [
        ("v4", "Only IPv4"),
        ("v6", "Only IPv6"),
        (
            "slower",
            "Only connections whose handshake, or wait for accept, took at least this long: 250us, 1ms",
        ),
    ]
    .into_iter()
    .fold(command, |command, (name, help)| {
        command.mut_arg(name, |argument| argument.help(help).help_heading(HEADING))
    })
}

/// Refuses, for `view`, a filter by what only packets have.
pub(super) fn refuse_filters_of_packets(filter: &PacketFilter, view: &str) -> Result<(), Failure> {
    let given = [
        !filter.interfaces.is_empty(),
        filter.protocol.is_some(),
        filter.direction.is_some(),
        filter.sample.is_some(),
        filter.control,
    ];
    let Some((_, (name, instead))) = given.into_iter().zip(OF_PACKETS).find(|(is_given, _)| *is_given) else {
        return Ok(());
    };
    let option = match name {
        "interfaces" => "interface",
        "protocol" => "proto",
        name => name,
    };
    Err(Failure::Usage(format!("{view} can't be combined with --{option}: {instead}")))
}

impl ConnectionsArguments {
    /// Checks the options against this machine, whose processes `proc` shows.
    pub(super) fn resolve(self, proc: &Path) -> Result<ConnectionsConfig, Failure> {
        let (quiet, footer) = self.footer.resolve();
        if self.interval.is_some_and(|interval| interval < SHORTEST_INTERVAL) {
            return Err(Failure::Usage("--interval is too short; write 100ms or longer".to_owned()));
        }
        let (filter, input) = if self.replay.is_empty() {
            (self.packets.resolve(proc)?, ConnectionsInput::Kernel(self.tracing.resolve(Stages::Basic)))
        } else {
            (self.packets.resolve_for_log(proc)?, ConnectionsInput::Logs(self.replay))
        };
        refuse_filters_of_packets(&filter, "connections")?;
        Ok(ConnectionsConfig {
            slower: filter.slower,
            filter: PacketFilter { slower: None, ..filter },
            input,
            failed: self.failed,
            interval: self.interval,
            format: self.format,
            output: self.output,
            zone: if self.utc { Zone::UTC } else { Zone::Local },
            verbose: self.verbose,
            quiet,
            footer,
            duration: self.duration,
            count: self.count,
        })
    }
}
