//! Output formats, one type per set of forms that a view has.

use super::choice::Choice;

/// A form of the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// A line to read
    #[default]
    Text,
    /// A JSON object a line
    Json,
    /// A comma-separated record a line, with a header
    Csv,
    /// Headers, times and process of each packet, for Wireshark; no payload
    Pcapng,
}

impl Choice for Format {
    const ALL: &'static [(Self, &'static str, &'static str)] = &[
        (Self::Text, "text", "A line to read"),
        (Self::Json, "json", "A JSON object a line"),
        (Self::Csv, "csv", "A comma-separated record a line, with a header"),
        (Self::Pcapng, "pcapng", "Headers, times and process of each packet, for Wireshark; no payload"),
    ];
}

/// A form of lines that are no packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LineFormat {
    /// A line to read
    #[default]
    Text,
    /// A JSON object a line
    Json,
    /// A comma-separated record a line, with a header
    Csv,
}

impl Choice for LineFormat {
    const ALL: &'static [(Self, &'static str, &'static str)] = &[
        (Self::Text, "text", "A line to read"),
        (Self::Json, "json", "A JSON object a line"),
        (Self::Csv, "csv", "A comma-separated record a line, with a header"),
    ];
}

/// A form of the summary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ReportFormat {
    /// Tables to read
    #[default]
    Text,
    /// One JSON object
    Json,
}

impl Choice for ReportFormat {
    const ALL: &'static [(Self, &'static str, &'static str)] =
        &[(Self::Text, "text", "Tables to read"), (Self::Json, "json", "One JSON object")];
}

/// Form of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum CallFormat {
    /// To read
    #[default]
    Text,
    /// A JSON object a line, one per call
    Json,
}

impl Choice for CallFormat {
    const ALL: &'static [(Self, &'static str, &'static str)] =
        &[(Self::Text, "text", "To read"), (Self::Json, "json", "A JSON object a line, one per call")];
}

/// How calls within each other are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Style {
    /// Durations and braces, as ftrace's function_graph
    #[default]
    Graph,
    /// A line per entry and return with the us since the thread's last, as SystemTap's thread_indent
    Indent,
}

impl Choice for Style {
    const ALL: &'static [(Self, &'static str, &'static str)] = &[
        (Self::Graph, "graph", "Durations and braces, as ftrace's function_graph"),
        (
            Self::Indent,
            "indent",
            "A line per entry and return with the us since the thread's last, as SystemTap's thread_indent",
        ),
    ];
}

/// A form of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum JourneyFormat {
    /// A table to read for each packet
    #[default]
    Text,
    /// A JSON object a line for each packet
    Json,
    /// Trace events for ui.perfetto.dev and chrome://tracing
    Perfetto,
}

impl Choice for JourneyFormat {
    const ALL: &'static [(Self, &'static str, &'static str)] = &[
        (Self::Text, "text", "A table to read for each packet"),
        (Self::Json, "json", "A JSON object a line for each packet"),
        (Self::Perfetto, "perfetto", "Trace events for ui.perfetto.dev and chrome://tracing"),
    ];
}

/// Form of the figures at the end, on standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FooterFormat {
    /// To read
    #[default]
    Text,
    /// A JSON object on one line
    Json,
    /// No footer
    None,
}

impl Choice for FooterFormat {
    const ALL: &'static [(Self, &'static str, &'static str)] = &[
        (Self::Text, "text", "To read"),
        (Self::Json, "json", "A JSON object on one line, described by docs/footer.schema.json"),
        (Self::None, "none", "No footer"),
    ];
}
