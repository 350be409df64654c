//! The options of `net-latency report`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::packets::DirectionArgument;
use super::values;
use crate::views::report::Filter;

/// Rows of a table unless told otherwise.
const DEFAULT_TOP: u16 = 10;

/// The options, as clap reads them.
#[derive(Debug, Args)]
pub(super) struct ReportArguments {
    /// Logs in the forms json or csv, also packed by gzip or zstd, in any order; - for standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Also write a page to open in a browser; - writes it to standard output instead of the summary
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    html: Option<PathBuf>,
    /// Form of the summary on standard output
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    format: ReportFormat,
    /// Rows of each table, and slowest packets
    #[arg(long, value_name = "ROWS", value_parser = values::parse_rows, default_value_t = DEFAULT_TOP, help_heading = "Output")]
    top: u16,
    /// No messages on standard error but errors: no progress bar
    #[arg(short, long, help_heading = "Output")]
    quiet: bool,

    /// Only packets of this process (repeatable)
    #[arg(short, long = "pid", value_name = "PID", value_parser = values::parse_pid, help_heading = "Packets")]
    pids: Vec<u32>,
    /// Only packets of tasks with this name; * and ? are wildcards (repeatable)
    #[arg(long = "comm", value_name = "GLOB", help_heading = "Packets")]
    comms: Vec<String>,
    /// Only packets with this port at either end (repeatable)
    #[arg(long = "port", value_name = "PORT", value_parser = values::parse_port, help_heading = "Packets")]
    ports: Vec<u16>,
    /// Only packets that came in, or only those that went out
    #[arg(long, value_enum, help_heading = "Packets")]
    direction: Option<DirectionArgument>,
}

/// A form of the summary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    /// Tables to read
    #[default]
    Text,
    /// One JSON object
    Json,
}

/// Which logs to sum up, and how to show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportConfig {
    /// The logs; `-` is standard input.
    pub files: Vec<PathBuf>,
    /// Where the page goes, `-` for standard output; no page if `None`.
    pub html: Option<PathBuf>,
    /// Form of the summary.
    pub format: ReportFormat,
    /// Rows of each table.
    pub top: usize,
    /// No progress bar.
    pub quiet: bool,
    /// Which packets.
    pub filter: Filter,
}

impl ReportArguments {
    pub(super) fn resolve(self) -> ReportConfig {
        ReportConfig {
            files: self.files,
            html: self.html,
            format: self.format,
            top: usize::from(self.top),
            quiet: self.quiet,
            // Whose processes they were: not of this machine, perhaps, nor of today.
            filter: Filter {
                pids: self.pids,
                ports: self.ports,
                comms: self.comms,
                direction: self.direction.map(DirectionArgument::direction),
            },
        }
    }
}
