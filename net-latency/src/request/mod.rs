//! What is asked for, as plain types: neither the command line nor the kernel is known here.

use std::path::PathBuf;

pub mod calls;
pub mod check;
pub mod choice;
mod connections;
pub mod diagnose;
pub mod export;
pub mod filter;
pub mod format;
pub mod glob;
pub mod hist;
pub mod journey;
pub mod network;
mod record;
pub mod report;
pub mod stream;
pub mod top;
pub mod tracing;
pub(crate) mod values;

pub use calls::{CallsConfig, Preset};
pub use check::CheckConfig;
pub use connections::{ConnectionsConfig, ConnectionsInput};
pub use diagnose::{DiagnoseConfig, DiagnoseInput, THRESHOLD};
pub use export::{ExportBy, ExportConfig, Listen, SlowLines};
pub use filter::PacketFilter;
pub use format::{CallFormat, FooterFormat, Format, JourneyFormat, LineFormat, ReportFormat, Style};
pub use hist::{HistConfig, Histograms};
pub use journey::{Functions, JourneyConfig, Pick};
pub use network::Mark;
pub use record::{RecordConfig, Trigger, Triggers};
pub use report::{LogFilter, ReportConfig};
pub use stream::StreamConfig;
pub use top::{ReplayConfig, SortBy, Speed, TopConfig, TopInput};
pub use tracing::{Backend, Stages, TracingConfig};

/// What to do, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Config {
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
