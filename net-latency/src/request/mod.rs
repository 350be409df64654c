//! The parsed request, as plain types: neither the command line nor the kernel is known here.

use std::path::PathBuf;

pub(crate) mod calls;
pub(crate) mod check;
pub(crate) mod choice;
mod connections;
pub(crate) mod diagnose;
pub(crate) mod export;
pub(crate) mod filter;
pub(crate) mod format;
pub(crate) mod glob;
pub(crate) mod hist;
pub(crate) mod journey;
pub(crate) mod network;
mod record;
pub(crate) mod report;
pub(crate) mod stream;
pub(crate) mod top;
pub(crate) mod tracing;
pub(crate) mod values;

pub(crate) use calls::{CallsConfig, Preset};
pub(crate) use check::CheckConfig;
pub(crate) use connections::{ConnectionsConfig, ConnectionsInput};
pub(crate) use diagnose::{DiagnoseConfig, DiagnoseInput, THRESHOLD};
pub(crate) use export::{ExportBy, ExportConfig, Listen, SlowLines};
pub(crate) use filter::PacketFilter;
pub(crate) use format::{CallFormat, FooterFormat, Format, JourneyFormat, LineFormat, ReportFormat, Style};
pub(crate) use hist::{HistConfig, Histograms};
pub(crate) use journey::{Functions, JourneyConfig, Pick};
pub(crate) use network::Mark;
pub(crate) use record::{RecordConfig, Trigger, Triggers};
pub(crate) use report::{LogFilter, ReportConfig};
pub(crate) use stream::StreamConfig;
pub(crate) use top::{ReplayConfig, SortBy, Speed, TopConfig, TopInput};
pub(crate) use tracing::{Backend, Stages, TracingConfig};

/// What to do, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Config {
    /// Stream lines.
    Stream(Box<StreamConfig>),
    /// Show calls of functions.
    Calls(Box<CallsConfig>),
    /// Say how this kernel can be traced.
    Check(CheckConfig),
    /// Show connections.
    Connections(Box<ConnectionsConfig>),
    /// Say what makes services slow.
    Diagnose(Box<DiagnoseConfig>),
    /// Keep metrics for a scraper.
    Export(Box<ExportConfig>),
    /// Draw distributions.
    Hist(HistConfig),
    /// Follow single packets.
    Journey(Box<JourneyConfig>),
    /// Print this text: completions, the manual page.
    Print(Vec<u8>),
    /// Write these files, each a name and what is in it: the manual pages.
    Write {
        /// Where to; it is made if it is not there.
        directory: PathBuf,
        /// The files.
        files: Vec<(String, Vec<u8>)>,
    },
    /// Keep the last minutes.
    Record(Box<RecordConfig>),
    /// Sum up logs.
    Report(ReportConfig),
    /// Show a live table.
    Top(TopConfig),
}
