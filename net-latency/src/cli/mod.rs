//! The command line: what clap reads, and what it means once checked against this machine.

mod argument_file;
mod calls;
mod check;
mod choice;
mod command;
mod completions;
mod connections;
mod diagnose;
mod export;
mod footer;
mod gone;
mod hist;
mod journey;
mod man;
mod packets;
mod places;
mod process;
mod record;
mod report;
mod top;
mod tracing;

use std::env;
use std::ffi::OsString;
use std::io::{self, Write as _};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use clap_complete::Shell;

use crate::clock::Zone;
use crate::error::Failure;
use crate::request::{Config, Format, Stages, StreamConfig, values};

use calls::CallsArguments;
use check::CheckArguments;
use choice::{choice, first};
use connections::ConnectionsArguments;
use diagnose::DiagnoseArguments;
use export::ExportArguments;
use footer::FooterArguments;
use hist::HistArguments;
use journey::JourneyArguments;
use packets::PacketArguments;
use record::RecordArguments;
use report::ReportArguments;
use top::TopArguments;
use tracing::TracingArguments;

const EXAMPLES: &str = "\
Examples:
  net-latency --pid 19550                  the packets of one process
  net-latency --port 443 --direction in    what comes in from, or for, port 443
  net-latency -p 19550 --format json -o packets.json --duration 10s
  net-latency report packets.json          sum up what was recorded
  net-latency diagnose                     why is it slow? in sentences
  net-latency top                          who is slow: a live table
  net-latency hist --by pid                distributions per process
  net-latency export --by process          metrics for Prometheus
  net-latency connections --failed         who can't connect, and why
  net-latency record --dump-on slower=50ms -o DIR   the last minutes, when it mattered
  net-latency calls --pid 19550            its calls of socket functions
  net-latency journey --port 443           one packet, function by function
  net-latency --slower 1ms -- curl URL     a command, and what it starts
  net-latency check                        can this kernel be traced?
  net-latency @FILE                        arguments from FILE, one a line

Exit codes:
  0  done (Ctrl-C and a closed pipe included)
  1  failed while running
  2  usage
  3  this kernel or user can't trace
  4  the output has no room left: a full disk, a quota
  With a command: its own, 128 + the signal that killed it, 126 not executable, 127 not found";

/// Shows, live and per packet, where the time went between driver, IP, TCP and application
// What comes later wins: the command line over a file of arguments named before.
#[derive(Debug, Parser)]
#[command(version, after_help = EXAMPLES, args_conflicts_with_subcommands = true, args_override_self = true)]
#[command(max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    view: Option<ViewArguments>,
    #[command(flatten)]
    stream: StreamArguments,
}

#[derive(Debug, Subcommand)]
enum ViewArguments {
    /// Show calls of kernel functions (sockets, TCP, any): how long each took, and what it called
    Calls(CallsArguments),
    /// Say whether this kernel can be traced, what is degraded, and what to do about it
    Check(CheckArguments),
    /// Print completions of commands and options for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Show TCP connections: how long they took to open, how they ended, who closed them
    Connections(ConnectionsArguments),
    /// Say what makes each service slow, how sure that is, and what to type next
    Diagnose(DiagnoseArguments),
    /// Count times in the kernel and keep metrics of them for a scraper such as Prometheus
    Export(ExportArguments),
    /// Count times in the kernel and print their distributions, without a line per packet
    Hist(HistArguments),
    /// Follow single packets through the kernel, function by function
    Journey(JourneyArguments),
    /// Print a manual page (net-latency man top | man -l -)
    Man {
        /// The subcommand; without it, the page of net-latency itself
        #[arg(value_name = "SUBCOMMAND")]
        subcommand: Option<String>,
        /// Write all pages into this directory
        #[arg(long, value_name = "DIR", conflicts_with = "subcommand")]
        all: Option<PathBuf>,
    },
    /// Keep the last minutes in memory, and write them to a file when something happens
    Record(RecordArguments),
    /// Sum up logs: recordings, and lines in JSON or CSV format
    Report(ReportArguments),
    /// Show which processes, connections and packets are slow, and where: a live table
    Top(TopArguments),
}

#[derive(Debug, Args)]
struct StreamArguments {
    #[command(flatten)]
    packets: PacketArguments,

    /// Output format
    #[arg(long, value_parser = choice::<Format>(), default_value = first::<Format>(), help_heading = "Output")]
    format: Format,
    /// Append the lines to this file, not to standard output; SIGHUP reopens it by its name
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    output: Option<PathBuf>,
    /// Stage detail
    #[arg(long, value_parser = choice::<Stages>(), default_value = first::<Stages>(), help_heading = "Output")]
    stages: Stages,
    /// Show times in UTC instead of local time
    #[arg(long, help_heading = "Output")]
    utc: bool,
    /// Print the summary every DURATION on standard error: 1s, 10s, 1m
    #[arg(long, value_parser = values::parse_duration, value_name = "DURATION", help_heading = "Output")]
    interval: Option<Duration>,
    #[command(flatten)]
    footer: FooterArguments,
    /// More columns on text lines: addresses, lengths, flags, device and more
    #[arg(short, long, help_heading = "Output")]
    verbose: bool,
    /// Print the kernel side's log on standard error, and its share of the cost; not with --quiet
    #[arg(long, conflicts_with = "quiet", help_heading = "Output")]
    debug: bool,

    /// Stop after this time: 250us, 1ms, 10s, 2m, 1h
    #[arg(long, value_parser = values::parse_duration, help_heading = "End")]
    duration: Option<Duration>,
    /// Stop after this many lines
    #[arg(short = 'n', long, value_name = "LINES", value_parser = values::parse_count, help_heading = "End")]
    count: Option<NonZeroU64>,

    #[command(flatten)]
    tracing: TracingArguments,

    /// Start COMMAND paused, attach, then resume it: it and the processes that it starts are traced from their
    /// first packet until it ends. net-latency exits with its exit code. It runs as this user (under sudo: root; for another:
    /// -- runuser -u NAME -- COMMAND), and writes to the same standard output as the lines, unless -o is given
    #[arg(last = true, value_name = "COMMAND", help_heading = "Command")]
    command: Vec<OsString>,
}

/// Reads and checks the command line of this process, and the files of arguments that it names. Help, version and
/// what clap itself finds wrong are printed and end the process.
///
/// # Errors
/// A usage failure if what is wanted can't be on this machine, or a file of arguments is wrong.
pub(crate) fn from_env() -> Result<Config, Failure> {
    let named: Vec<_> = env::args_os().collect();
    let arguments = argument_file::expand(named.clone())?;
    gone::refuse_options(&arguments)?;
    let matches = command().try_get_matches_from(arguments).map_err(|error| print(&error))?;
    let arguments = Arguments::from_arg_matches(&matches).map_err(|error| print(&error))?;
    let config = arguments.resolve(Path::new("/proc"));
    if !matches!(config, Ok(Config::Print(_) | Config::Write { .. })) {
        gone::tell_of_files(&named);
    }
    config
}

/// Prints help, version, or what clap finds wrong, and ends the process; comes back if that can't be printed.
fn print(error: &clap::Error) -> Failure {
    match error.print().and_then(|()| io::stdout().flush()) {
        Err(failed) if failed.kind() != io::ErrorKind::BrokenPipe && !error.use_stderr() => {
            let reason = failed.kind();
            Failure::of_output(reason, anyhow::Error::new(failed).context("cannot write to standard output"))
        }
        _ => std::process::exit(error.exit_code()),
    }
}

/// The command line's definition, for what is generated from it.
#[must_use]
pub fn command() -> clap::Command {
    Arguments::command()
        .mut_subcommand("connections", connections::with_own_words)
        .mut_subcommand("export", export::with_own_words)
}

impl Arguments {
    fn resolve(self, proc: &Path) -> Result<Config, Failure> {
        let stream = match self.view {
            Some(ViewArguments::Calls(calls)) => return Ok(Config::Calls(Box::new(calls.resolve(proc)?))),
            Some(ViewArguments::Check(check)) => return Ok(Config::Check(check.resolve())),
            Some(ViewArguments::Completions { shell }) => {
                return Ok(Config::Print(completions::script(shell)));
            }
            Some(ViewArguments::Connections(connections)) => {
                return Ok(Config::Connections(Box::new(connections.resolve(proc)?)));
            }
            Some(ViewArguments::Diagnose(diagnose)) => {
                return Ok(Config::Diagnose(Box::new(diagnose.resolve(proc)?)));
            }
            Some(ViewArguments::Export(export)) => {
                return Ok(Config::Export(Box::new(export.resolve(proc)?)));
            }
            Some(ViewArguments::Hist(hist)) => return Ok(Config::Hist(hist.resolve(proc)?)),
            Some(ViewArguments::Journey(journey)) => {
                return Ok(Config::Journey(Box::new(journey.resolve(proc)?)));
            }
            Some(ViewArguments::Man { all: Some(directory), .. }) => {
                return Ok(Config::Write { directory, files: man::pages(command()) });
            }
            Some(ViewArguments::Man { subcommand, .. }) => {
                let page = man::page_of(command(), subcommand.as_deref()).map_err(Failure::Usage)?;
                return Ok(Config::Print(page.into_bytes()));
            }
            Some(ViewArguments::Record(record)) => {
                return Ok(Config::Record(Box::new(record.resolve(proc)?)));
            }
            Some(ViewArguments::Report(report)) => return Ok(Config::Report(report.resolve()?)),
            Some(ViewArguments::Top(top)) => return Ok(Config::Top(top.resolve(proc)?)),
            None => self.stream,
        };
        let (quiet, footer) = stream.footer.resolve();
        Ok(Config::Stream(Box::new(StreamConfig {
            command: command::resolve(stream.command, proc)?,
            filter: stream.packets.resolve(proc)?,
            tracing: stream.tracing.resolve(stream.stages),
            format: stream.format,
            output: stream.output,
            zone: if stream.utc { Zone::UTC } else { Zone::Local },
            quiet,
            footer,
            verbose: stream.verbose,
            debug: stream.debug,
            interval: stream.interval,
            duration: stream.duration,
            count: stream.count,
        })))
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::{Ipv4Addr, Ipv6Addr},
        num::NonZeroU32,
    };

    use insta::assert_snapshot;
    use net_latency_common::{Direction, GroupBy};

    use crate::packet::event::{IpVersion, Protocol};
    use crate::request::{
        Backend, ExportBy, ExportConfig, FooterFormat, HistConfig, Histograms, Listen, Mark, PacketFilter,
        ReportFormat, SlowLines, SortBy, TopConfig, TopInput, TracingConfig,
    };

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

    const WORDS: &[&str] =
        &["\n", "--", "\n--pid\n", "\n--port=", "\n--format\ncsv", "\nhist\n", "\n--slower\n1ms", "\n-v"];

    /// A word a line.
    #[test]
    fn fuzz_command_lines() {
        let seeds = [
            "--port\n443,80\n--host\n192.0.2.0/24\n--slower\n1ms\n-v",
            "hist\n--by\ncomm\n--interval\n10s\n--buckets\n4096",
            "top\n--sort\ntotal\n--comm\na*",
            "diagnose\n--duration\n5s\n--threshold\n1ms",
            "journey\n--count\n9\n--format\njson\n--port\n1-9",
            "export\n--listen\n127.0.0.1:9823\n--by\npod\n--series\n64",
            "report\na.json\n--interval\n1m\n--html\nb.html",
            "calls\ntcp_*\n--style\ngraph",
            "-o\nx\n--slower\n1ms\n--\nsh\n-c\nx",
        ];
        crate::fuzz::run("command lines", 150, seeds.map(Vec::from), WORDS, |bytes| {
            use std::os::unix::ffi::OsStrExt as _;
            let words = bytes.split(|&byte| byte == b'\n').map(std::ffi::OsStr::from_bytes);
            let words = ["net-latency".as_ref()].into_iter().chain(words);
            if let Ok(arguments) = Arguments::try_parse_from(words)
                && let Err(failure) = arguments.resolve(Path::new("/nowhere"))
            {
                assert_ne!(failure.exit_code(), 0);
            }
        });
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
                command: None,
                filter: PacketFilter::default(),
                tracing: TracingConfig {
                    backend: Backend::Auto,
                    buffer_bytes: 4 << 20,
                    stages: Stages::Basic
                },
                format: Format::Text,
                output: None,
                zone: Zone::Local,
                quiet: false,
                footer: FooterFormat::Text,
                verbose: false,
                debug: false,
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
                         --utc -q -v -v --interval 5s --duration 10s -n 3 --backend kprobe --buffer 512K -- /bin/sh -c exit";
        let config = stream(&arguments.split_whitespace().collect::<Vec<_>>());
        assert_eq!(
            config,
            StreamConfig {
                command: Some(["/bin/sh", "-c", "exit"].map(OsString::from).to_vec()),
                filter: PacketFilter {
                    comms: ["a*", "b"].map(|glob| glob.parse().expect("a glob")).to_vec(),
                    ports: vec![80, 443],
                    hosts: vec!["10.0.0.0/8".parse().expect("a network")],
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
                tracing: TracingConfig {
                    backend: Backend::Kprobe,
                    buffer_bytes: 512 << 10,
                    stages: Stages::Basic
                },
                format: Format::Json,
                output: Some(PathBuf::from("lines")),
                zone: Zone::UTC,
                quiet: true,
                footer: FooterFormat::None,
                verbose: true,
                debug: false,
                interval: Some(Duration::from_secs(5)),
                duration: Some(Duration::from_secs(10)),
                count: NonZeroU64::new(3),
            }
        );
    }

    #[test]
    fn check_has_its_own_options() {
        let check = |arguments: &[&str]| match parse(arguments) {
            Ok(Config::Check(config)) => (config.tracing.backend, config.tracing.buffer_bytes, config.format),
            other => panic!("{other:?}"),
        };
        assert_eq!(check(&["check"]), (Backend::Auto, 4 << 20, ReportFormat::Text));
        let arguments = ["check", "--backend", "fentry", "--buffer", "512K", "--format", "json"];
        assert_eq!(check(&arguments), (Backend::Fentry, 512 << 10, ReportFormat::Json));
    }

    #[test]
    fn hist_has_its_own_options_and_those_of_packets() {
        let hist = |arguments: &[&str]| match parse(&[&["hist"], arguments].concat()) {
            Ok(Config::Hist(config)) => config,
            other => panic!("{other:?}"),
        };
        let usual = HistConfig {
            filter: PacketFilter::default(),
            backend: Backend::Auto,
            histograms: Histograms {
                by: GroupBy::Stage,
                buckets: 32 << 10,
                stages: Stages::Basic,
                slower: None,
            },
            top: 10,
            format: ReportFormat::Text,
            histogram: true,
            zone: Zone::Local,
            interval: None,
            duration: None,
            quiet: false,
            footer: FooterFormat::Text,
        };
        assert_eq!(hist(&[]), usual);
        let arguments = "--port 443 --by cgroup --top 3 --format json --utc --interval 1s -q --duration 1m \
                         --backend kprobe --buckets 4096 --no-histogram --stages fine";
        let config = hist(&arguments.split_whitespace().collect::<Vec<_>>());
        assert_eq!(
            config,
            HistConfig {
                filter: PacketFilter { ports: vec![443], ..PacketFilter::default() },
                backend: Backend::Kprobe,
                histograms: Histograms {
                    by: GroupBy::Cgroup,
                    buckets: 4096,
                    stages: Stages::Fine,
                    slower: None
                },
                top: 3,
                format: ReportFormat::Json,
                histogram: false,
                zone: Zone::UTC,
                interval: Some(Duration::from_secs(1)),
                duration: Some(Duration::from_secs(60)),
                quiet: true,
                footer: FooterFormat::None,
            }
        );
    }

    #[test]
    fn slow_packets_of_export_have_no_fine_stages() {
        let fine = |more: &[&str]| parse(&[&["export", "--stages", "fine"], more].concat());
        assert!(matches!(fine(&[]), Ok(Config::Export(config)) if config.stages == Stages::Fine));
        assert!(matches!(fine(&["--slower", "10ms"]), Err(text) if text.contains("--stages fine")));
    }

    #[test]
    fn export_has_its_own_options_and_those_of_packets() {
        let export = |arguments: &[&str]| match parse(&[&["export"], arguments].concat()) {
            Ok(Config::Export(config)) => *config,
            other => panic!("{other:?}"),
        };
        let usual = ExportConfig {
            filter: PacketFilter::default(),
            backend: Backend::Auto,
            by: ExportBy::None,
            buckets: 32 << 10,
            stages: Stages::Basic,
            series: 64,
            slow: None,
            connections: false,
            listen: Listen::Port((Ipv4Addr::LOCALHOST, 9823).into()),
            host_names: vec![],
            duration: None,
            quiet: false,
            footer: FooterFormat::Text,
        };
        assert_eq!(export(&[]), usual);
        let arguments = "--port 443 --by pod --series 7 --listen [::]:80 -q --duration 1m --backend kprobe --buckets 4096 \
                         --slower 10ms --slower-rate 7 --host-name node-7.example --connections";
        let config = export(&arguments.split_whitespace().collect::<Vec<_>>());
        let (by, least) = (GroupBy::Cgroup, Duration::from_millis(10));
        let histograms = Histograms { by, buckets: 4096, stages: Stages::Basic, slower: Some(least) };
        assert_eq!(config.histograms(), histograms);
        assert_eq!(
            config,
            ExportConfig {
                filter: PacketFilter { ports: vec![443], ..PacketFilter::default() },
                backend: Backend::Kprobe,
                by: ExportBy::Pod,
                buckets: 4096,
                stages: Stages::Basic,
                series: 7,
                slow: Some(SlowLines { least, per_second: 7 }),
                connections: true,
                listen: Listen::Port((Ipv6Addr::UNSPECIFIED, 80).into()),
                host_names: vec!["node-7.example".to_owned()],
                duration: Some(Duration::from_secs(60)),
                quiet: true,
                footer: FooterFormat::None,
            }
        );
        let unix = export(&["--listen", "unix:run/x"]).listen;
        assert_eq!((&unix, unix.to_string().as_str()), (&Listen::Unix("run/x".into()), "unix:run/x"));
    }

    #[test]
    fn export_help_fits_a_terminal() {
        let mut command = command().term_width(80);
        command.build();
        let help = command.find_subcommand_mut("export").expect("the view").render_help().to_string();
        assert!(help.lines().all(|line| line.chars().count() <= 80), "{help}");
        assert_snapshot!(help);
    }

    #[test]
    fn hist_help_fits_a_terminal() {
        let mut command = command().term_width(80);
        command.build();
        let help = command.find_subcommand_mut("hist").expect("the view").render_help().to_string();
        assert!(help.lines().all(|line| line.chars().count() <= 80), "{help}");
        assert_snapshot!(help);
    }

    #[test]
    fn top_has_its_own_options_and_those_of_packets_and_tracing() {
        let top = |arguments: &[&str]| match parse(&[&["top"], arguments].concat()) {
            Ok(Config::Top(config)) => config,
            other => panic!("{other:?}"),
        };
        let usual = TopConfig {
            filter: PacketFilter::default(),
            input: TopInput::Kernel(TracingConfig {
                backend: Backend::Auto,
                buffer_bytes: 4 << 20,
                stages: Stages::Basic,
            }),
            delay: Duration::from_secs(1),
            window: Duration::from_secs(10),
            sort: SortBy::Time,
            zone: Zone::Local,
            quiet: false,
            footer: FooterFormat::Text,
        };
        assert_eq!(top(&[]), usual);
        let arguments = "--port 443 --backend kprobe --delay 500ms --window 1m --sort max --utc -q";
        let config = top(&arguments.split_whitespace().collect::<Vec<_>>());
        assert_eq!(
            config,
            TopConfig {
                filter: PacketFilter { ports: vec![443], ..PacketFilter::default() },
                input: TopInput::Kernel(TracingConfig {
                    backend: Backend::Kprobe,
                    buffer_bytes: 4 << 20,
                    stages: Stages::Basic
                }),
                delay: Duration::from_millis(500),
                window: Duration::from_secs(60),
                sort: SortBy::Max,
                zone: Zone::UTC,
                quiet: true,
                footer: FooterFormat::None,
            }
        );
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_the_remedy() {
        let too_long = format!("unix:/{}", "x".repeat(107));
        let wrong: [&[&str]; 44] = [
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
            &["--netns", "nobody"],
            &["--container", "nobody", "--cgroup", "/"],
            &["--duration", "10"],
            &["--count", "0"],
            &["--buffer", "3M"],
            &["--interval", "0s"],
            &["--format", "xml"],
            &["--frobnicate"],
            &["--pid", "1", "check"],
            &["top", "--delay", "1ms"],
            &["top", "--window", "500ms"],
            &["hist", "--by", "moon"],
            &["hist", "--top", "0"],
            &["hist", "--interval", "1ms"],
            &["hist", "--buckets", "100"],
            &["export", "--by", "pid"],
            &["export", "--listen", "localhost"],
            &["export", "--listen", "127.0.0.1:99999"],
            &["export", "--listen", "unix:"],
            &["export", "--listen", &too_long],
            &["export", "--series", "0"],
            &["export", "--slower-rate", "5"],
            &["export", "--slower", "1ms", "--slower-rate", "0"],
            &["export", "--connections", "--proto", "udp"],
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
