//! Output formats, one type per set of forms that a view has.

use super::choice::choices;

choices! {
    /// A form of the data.
    pub enum Format {
        Text "text" "A line to read",
        Json "json" "A JSON object a line",
        Csv "csv" "A comma-separated record a line, with a header",
        Pcapng "pcapng" "Headers, times and process of each packet, for Wireshark; no payload",
    }
}

choices! {
    /// A form of lines that are no packets.
    pub(crate) enum LineFormat {
        Text "text" "A line to read",
        Json "json" "A JSON object a line",
        Csv "csv" "A comma-separated record a line, with a header",
    }
}

choices! {
    /// A form of the summary.
    pub(crate) enum ReportFormat {
        Text "text" "Tables to read",
        Json "json" "One JSON object",
    }
}

choices! {
    /// Form of the output.
    pub(crate) enum CallFormat {
        Text "text" "To read",
        Json "json" "A JSON object a line, one per call",
    }
}

choices! {
    /// How calls within each other are shown.
    pub(crate) enum Style {
        Graph "graph" "Durations and braces, as ftrace's function_graph",
        Indent "indent" "A line per entry and return with the us since the thread's last, as SystemTap's thread_indent",
    }
}

choices! {
    /// A form of the output.
    pub(crate) enum JourneyFormat {
        Text "text" "A table to read for each packet",
        Json "json" "A JSON object a line for each packet",
        Perfetto "perfetto" "Trace events for ui.perfetto.dev and chrome://tracing",
    }
}

choices! {
    /// Form of the figures at the end, on standard error.
    pub(crate) enum FooterFormat {
        Text "text" "To read",
        Json "json" "A JSON object on one line, described by docs/footer.schema.json",
        None "none" "No footer",
    }
}
