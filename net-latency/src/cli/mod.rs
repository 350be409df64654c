//! The command line: what clap reads, and what it means once checked against this machine.

mod command;
mod network;
mod packets;
mod places;
mod process;
mod tracing;
mod values;

use std::ffi::OsString;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, CommandFactory as _, Parser, Subcommand};

use crate::clock::Zone;
use crate::error::Failure;
use crate::output::Format;

pub use network::{Mark, Net};
use packets::PacketArguments;
pub use packets::PacketFilter;
use tracing::TracingArguments;
pub use tracing::{Backend, TracingConfig};

const EXAMPLES: &str = "\
Examples:
  net-latency --pid 19550                  the packets of one process
  net-latency --port 443 --direction in    what comes in from, or for, port 443
  net-latency -p 19550 --format json -o packets.json --duration 10s
  net-latency --slower 1ms -- curl URL     a command, and what it starts
  net-latency check                        can this kernel be traced, and how

Exit codes:
  0  done (Ctrl-C and a closed pipe included)
  1  failed while running
  2  usage
  3  this kernel or user can't trace
  With a command: its own, 128 + the signal that killed it, 126 not executable, 127 not found";

/// Shows, live and per packet, where the time went between driver, IP, TCP and application
#[derive(Debug, Parser)]
#[command(version, after_help = EXAMPLES, args_conflicts_with_subcommands = true, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    view: Option<ViewArguments>,
    #[command(flatten)]
    stream: StreamArguments,
}

#[derive(Debug, Subcommand)]
enum ViewArguments {
    /// Show which hook serves each stage on this kernel, or why it can't be traced
    Check {
        /// How to hook into the kernel
        #[arg(long, value_enum, default_value_t)]
        backend: Backend,
    },
}

#[derive(Debug, Args)]
struct StreamArguments {
    #[command(flatten)]
    packets: PacketArguments,

    /// Form of the lines
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    format: Format,
    /// Append the lines to this file instead of writing them to standard output
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    output: Option<PathBuf>,
    /// Show times in UTC instead of local time
    #[arg(long, help_heading = "Output")]
    utc: bool,
    /// Tell on standard error where the packets are, each time this has passed: 1s, 10s, 1m
    #[arg(long, value_parser = values::parse_duration, value_name = "DURATION", help_heading = "Output")]
    interval: Option<Duration>,
    /// No messages on standard error but errors: no footer
    #[arg(short, long, help_heading = "Output")]
    quiet: bool,
    /// Addresses, lengths and flags on text lines, and diagnostics of the kernel side (-vv: more)
    #[arg(short, long, action = clap::ArgAction::Count, help_heading = "Output")]
    verbose: u8,

    /// Stop after this time: 250us, 1ms, 10s, 2m, 1h
    #[arg(long, value_parser = values::parse_duration, help_heading = "End")]
    duration: Option<Duration>,
    /// Stop after this many lines
    #[arg(short = 'n', long, value_name = "LINES", value_parser = values::parse_count, help_heading = "End")]
    count: Option<NonZeroU64>,

    #[command(flatten)]
    tracing: TracingArguments,

    /// Run this command, and trace it and the processes that it starts from their first packet, until it ends;
    /// its exit code is ours. It runs as this user (under sudo: root) and shares standard output with the
    /// lines unless they go to a file by -o
    #[arg(last = true, value_name = "COMMAND", help_heading = "Command")]
    command: Vec<OsString>,
}

/// What to do, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Config {
    /// Stream lines.
    Stream(Box<StreamConfig>),
    /// Say how this kernel can be traced.
    Check {
        /// The backend that was asked for.
        backend: Backend,
    },
}

/// What to trace, how to show it and when to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamConfig {
    /// A command to run and trace, and its arguments; none if empty.
    pub command: Vec<OsString>,
    /// Which packets.
    pub filter: PacketFilter,
    /// By what means.
    pub tracing: TracingConfig,
    /// Form of the lines.
    pub format: Format,
    /// File to append lines to; standard output if `None`.
    pub output: Option<PathBuf>,
    /// Whose time the lines show.
    pub zone: Zone,
    /// Nothing on stderr but errors.
    pub quiet: bool,
    /// 0: lines only; 1: details on text lines and the kernel side's diagnostics; 2 or more: debugging.
    pub verbosity: u8,
    /// Time after which to stop.
    pub duration: Option<Duration>,
    /// Time between two reports on standard error of where the packets are.
    pub interval: Option<Duration>,
    /// Number of lines after which to stop.
    pub count: Option<NonZeroU64>,
}

/// Reads and checks the command line of this process. Help, version and what clap itself finds wrong
/// are printed and end the process.
///
/// # Errors
/// A usage failure if what is asked for can't be on this machine.
pub fn from_env() -> Result<Config, Failure> {
    Arguments::parse().resolve(Path::new("/proc"))
}

/// The command line's definition, for what is generated from it.
#[must_use]
pub fn command() -> clap::Command {
    Arguments::command()
}

impl Arguments {
    fn resolve(self, proc: &Path) -> Result<Config, Failure> {
        let stream = match self.view {
            Some(ViewArguments::Check { backend }) => return Ok(Config::Check { backend }),
            None => self.stream,
        };
        command::check(&stream.command, proc)?;
        Ok(Config::Stream(Box::new(StreamConfig {
            command: stream.command,
            filter: stream.packets.resolve(proc)?,
            tracing: stream.tracing.resolve(),
            format: stream.format,
            output: stream.output,
            zone: if stream.utc { Zone::UTC } else { Zone::Local },
            quiet: stream.quiet,
            verbosity: stream.verbose,
            interval: stream.interval,
            duration: stream.duration,
            count: stream.count,
        })))
    }
}

#[cfg(test)]
mod tests {
    use std::{net::Ipv4Addr, num::NonZeroU32};

    use insta::assert_snapshot;
    use net_latency_common::Direction;

    use crate::event::{IpVersion, Protocol};

    use super::*;

    fn parse(arguments: &[&str]) -> Result<Config, String> {
        let arguments = ["net-latency"].iter().chain(arguments);
        let arguments = Arguments::try_parse_from(arguments).map_err(|error| error.to_string())?;
        arguments.resolve(Path::new("/proc")).map_err(|failure| failure.to_string())
    }

    fn stream(arguments: &[&str]) -> StreamConfig {
        match parse(arguments) {
            Ok(Config::Stream(config)) => *config,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_definition_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn help_fits_a_terminal() {
        let help = command().term_width(80).render_help().to_string();
        assert!(help.lines().all(|line| line.chars().count() <= 80), "{help}");
        assert_snapshot!(help);
    }

    #[test]
    fn without_arguments_everything_is_shown() {
        assert_eq!(
            stream(&[]),
            StreamConfig {
                command: vec![],
                filter: PacketFilter::default(),
                tracing: TracingConfig { backend: Backend::Auto, buffer_bytes: 4 << 20 },
                format: Format::Text,
                output: None,
                zone: Zone::Local,
                quiet: false,
                verbosity: 0,
                interval: None,
                duration: None,
                count: None,
            }
        );
    }

    #[test]
    fn every_option_arrives() {
        let arguments = "--port 443 --port 80 --port 443 --direction out --control --comm a* --comm b \
                         --host 10.1.2.3/8 --interface lo --proto udp -4 --mark 0x10/0xf0 --slower 1ms --sample 1/100 --format json -o lines \
                         --utc -q -vv --interval 5s --duration 10s -n 3 --backend kprobe --buffer 512K -- sh -c exit";
        let config = stream(&arguments.split_whitespace().collect::<Vec<_>>());
        assert_eq!(
            config,
            StreamConfig {
                command: ["sh", "-c", "exit"].map(OsString::from).to_vec(),
                filter: PacketFilter {
                    comms: ["a*", "b"].map(|glob| glob.parse().expect("a glob")).to_vec(),
                    ports: vec![80, 443],
                    hosts: vec![Net { address: Ipv4Addr::new(10, 0, 0, 0).into(), prefix: 8 }],
                    interfaces: vec!["lo".to_owned()],
                    protocol: Some(Protocol::Udp),
                    version: Some(IpVersion::V4),
                    direction: Some(Direction::Out),
                    mark: Some(Mark { value: 0x10, mask: 0xf0 }),
                    slower: Some(Duration::from_millis(1)),
                    sample: NonZeroU32::new(100),
                    control: true,
                    ..PacketFilter::default()
                },
                tracing: TracingConfig { backend: Backend::Kprobe, buffer_bytes: 512 << 10 },
                format: Format::Json,
                output: Some(PathBuf::from("lines")),
                zone: Zone::UTC,
                quiet: true,
                verbosity: 2,
                interval: Some(Duration::from_secs(5)),
                duration: Some(Duration::from_secs(10)),
                count: NonZeroU64::new(3),
            }
        );
    }

    #[test]
    fn check_has_its_own_backend() {
        assert_eq!(parse(&["check"]), Ok(Config::Check { backend: Backend::Auto }));
        assert_eq!(parse(&["check", "--backend", "fentry"]), Ok(Config::Check { backend: Backend::Fentry }));
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_the_remedy() {
        let wrong: [&[&str]; 25] = [
            &["--pid", "0"],
            &["--pid", "firefox"],
            &["--port", "70000"],
            &["--direction", "up"],
            &["--comm", ""],
            &["--comm", "[abc"],
            &["--comm", "a-name-of-17-bytes"],
            &[
                "--comm=1", "--comm=2", "--comm=3", "--comm=4", "--comm=5", "--comm=6", "--comm=7",
                "--comm=8", "--comm=9",
            ],
            &["--host", "10.0.0.0/33"],
            &["--host", "::1/129"],
            &["--host", "localhost"],
            &["--proto", "icmp"],
            &["--mark", "ten"],
            &["--mark", "/0xff"],
            &["--mark", "0x11/0x10"],
            &["--slower", "1"],
            &["--sample", "0"],
            &["--sample", "1/0"],
            &["--netns", "99999999"],
            &["--netns", "/run/netns/nobody"],
            &["--duration", "10"],
            &["--count", "0"],
            &["--buffer", "3M"],
            &["--frobnicate"],
            &["--pid", "1", "check"],
        ];
        let mut messages = String::new();
        for arguments in wrong {
            let message = parse(arguments).expect_err("makes no sense");
            messages += message.split("\n\nUsage:").next().expect("a first part");
            messages += "\n\n";
        }
        assert_snapshot!(messages);
    }
}
