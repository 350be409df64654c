//! The options of `net-latency report`.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use ipnet::IpNet;
use net_latency_common::Direction;

use super::choice::{choice, first};
use crate::{
    error::Failure,
    request::{Format, LogFilter, ReportConfig, ReportFormat, glob::Glob, network, values},
};

/// Rows of a table unless told otherwise.
const DEFAULT_TOP: u16 = 10;
/// The finest that a log's timeline tells apart by itself.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(1);

/// The options, as clap reads them.
#[derive(Debug, Args)]
pub(super) struct ReportArguments {
    /// Recordings, and logs in JSON or CSV format, also compressed with gzip or zstd, in any order; - for standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Also write a page to open in a browser; - writes it to standard output instead of the summary
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    html: Option<PathBuf>,
    /// Format of the summary on standard output (text or json), or of the packets with -o
    #[arg(long, value_parser = choice::<Format>(), default_value = first::<Format>(), help_heading = "Output")]
    format: Format,
    /// Instead of summing up, write the packets in the form of --format to this file, which is replaced; - for
    /// standard output
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["html", "interval"], help_heading = "Output")]
    output: Option<PathBuf>,
    /// Add a table of every DURATION: 1s, 1m, 1h; longer where it would have more than 360 rows
    #[arg(long, value_name = "DURATION", value_parser = values::parse_duration, help_heading = "Output")]
    interval: Option<Duration>,
    /// Rows of each table, and number of slowest packets
    #[arg(long, value_name = "ROWS", value_parser = values::parse_rows, default_value_t = DEFAULT_TOP, help_heading = "Output")]
    top: u16,
    /// Only errors on standard error: no progress bar
    #[arg(short, long, help_heading = "Output")]
    quiet: bool,

    /// Only packets of this process (repeatable)
    #[arg(short, long = "pid", value_name = "PID", value_parser = values::parse_pid, help_heading = "Packets")]
    pids: Vec<u32>,
    /// Only packets of processes or threads whose name matches GLOB: 'nginx', 'ngin*' (repeatable)
    #[arg(long = "comm", value_name = "GLOB", help_heading = "Packets", value_parser = |text: &str| text.parse::<Glob>())]
    comms: Vec<Glob>,
    /// Only packets with this port at either end (repeatable)
    #[arg(long = "port", value_name = "PORT", value_parser = values::parse_port, help_heading = "Packets")]
    ports: Vec<u16>,
    /// Only packets with this address, or one of this network, at either end (repeatable)
    #[arg(long = "host", value_name = "ADDR|CIDR", value_parser = network::parse_net, help_heading = "Packets")]
    hosts: Vec<IpNet>,
    /// Only packets that came in, or only those that went out
    #[arg(long, value_parser = choice::<Direction>(), help_heading = "Packets")]
    direction: Option<Direction>,
    /// Only packets that took at least this long, in total or in one stage: 250us, 1ms
    #[arg(long, value_name = "DURATION", value_parser = values::parse_duration, help_heading = "Packets")]
    slower: Option<Duration>,
}

impl ReportArguments {
    pub(super) fn resolve(self) -> Result<ReportConfig, Failure> {
        if self.interval.is_some_and(|interval| interval < SHORTEST_INTERVAL) {
            return Err(Failure::Usage("--interval is too short; write 1ms or longer".to_owned()));
        }
        let format = match (self.format, &self.output) {
            (Format::Text, _) => ReportFormat::Text,
            (Format::Json, _) => ReportFormat::Json,
            // Not looked at.
            (Format::Csv | Format::Pcapng, Some(_)) => ReportFormat::Text,
            (Format::Csv | Format::Pcapng, None) => {
                return Err(Failure::Usage(
                    "--format csv and pcapng are for packets, not for a summary: add -o FILE, or choose text or json"
                        .to_owned(),
                ));
            }
        };
        Ok(ReportConfig {
            files: self.files,
            html: self.html,
            format,
            packets: self.output.map(|path| (self.format, path)),
            interval: self.interval,
            top: usize::from(self.top),
            quiet: self.quiet,
            // The processes may be those of another machine, or another day.
            filter: LogFilter {
                pids: self.pids,
                ports: self.ports,
                comms: self.comms,
                hosts: self.hosts,
                direction: self.direction,
                slower: self.slower,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser as _;
    use insta::assert_snapshot;
    use net_latency_common::Direction;

    use super::*;
    use crate::cli::{Arguments, Config, command};

    fn parse(arguments: &str) -> Result<Config, String> {
        let arguments = ["net-latency", "report"].into_iter().chain(arguments.split_whitespace());
        let arguments = Arguments::try_parse_from(arguments).map_err(|error| error.to_string())?;
        arguments.resolve(Path::new("/proc")).map_err(|failure| failure.to_string())
    }

    #[test]
    fn every_option_arrives() {
        let found = parse(
            "a - --html page --format json --top 5 -q -p 4194305 --comm fire* --port 80 --direction out \
             --host 10.0.0.0/8 --slower 5ms --interval 1m b.gz",
        );
        let expected = ReportConfig {
            files: ["a", "-", "b.gz"].map(PathBuf::from).to_vec(),
            html: Some(PathBuf::from("page")),
            format: ReportFormat::Json,
            packets: None,
            interval: Some(Duration::from_secs(60)),
            top: 5,
            quiet: true,
            // A process that can't be on this machine may have been on another.
            filter: LogFilter {
                pids: vec![4_194_305],
                ports: vec![80],
                comms: vec!["fire*".parse().expect("a glob")],
                hosts: vec!["10.0.0.0/8".parse().expect("a network")],
                direction: Some(Direction::Out),
                slower: Some(Duration::from_millis(5)),
            },
        };
        assert_eq!(found, Ok(Config::Report(expected)));
    }

    #[test]
    fn packets_go_to_a_file_in_any_form() {
        for (word, format) in
            [("text", Format::Text), ("json", Format::Json), ("csv", Format::Csv), ("pcapng", Format::Pcapng)]
        {
            let Ok(Config::Report(config)) = parse(&format!("a --format {word} -o b")) else {
                panic!("{word} is refused");
            };
            assert_eq!(config.packets, Some((format, PathBuf::from("b"))));
        }
    }

    #[test]
    fn help_fits_a_terminal() {
        let mut command = command().term_width(80);
        command.build();
        let report = command.find_subcommand_mut("report").expect("there");
        let help = report.clone().term_width(80).render_help().to_string();
        assert!(help.lines().all(|line| line.chars().count() <= 80), "{help}");
        assert_snapshot!(help);
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_the_remedy() {
        let wrong = [
            "",
            "a --top 0",
            "a --top 1001",
            "a --format csv",
            "a --format pcapng",
            "a -o b --html c",
            "a --duration 1s",
            "a --interval 1us",
            "a --host x",
        ];
        let said = wrong.map(|arguments| {
            let message = parse(arguments).expect_err("makes no sense");
            message.split("\n\nUsage:").next().unwrap_or_default().to_owned()
        });
        assert_snapshot!(said.join("\n\n"));
    }
}
