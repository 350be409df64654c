//! The forms in which scrapers take metrics, and which of them one asks for.

use std::fmt::Write as _;

use prost::Message as _;

use super::model::{LabelPair, Metric, MetricFamily, MetricType};

/// A form of exposition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Prometheus' text, version 0.0.4: the default.
    Text,
    /// OpenMetrics' text, version 1.0.0.
    OpenMetrics,
    /// Prometheus' protobuf, each family behind its length: the only form with native histograms.
    Protobuf,
}

impl Form {
    /// Its `Content-Type`.
    pub(crate) const fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
            }
        }
    }

    /// The one that the header `Accept` prefers, of equals the one that it names first. Where it names none of them, the
    /// plainest, as Prometheus' own libraries do.
    pub(crate) fn accepted(header: &str) -> Self {
        let mut best = (0.0, Self::Text);
        for range in header.split(',') {
            let mut parts = range.split(';').map(|part| part.trim().to_ascii_lowercase());
            let media = parts.next().unwrap_or_default();
            let parameters: Vec<_> = parts.collect();
            let parameter = |name: &str| {
                let pairs = parameters.iter().filter_map(|part| part.split_once('='));
                pairs
                    .map(|(key, value)| (key.trim(), value.trim_matches([' ', '"'])))
                    .find(|(key, _)| *key == name)
            };
            let is_absent_or = |name: &str, values: &[&str]| {
                parameter(name).is_none_or(|(_, value)| values.contains(&value))
            };
            let form = match media.as_str() {
                "application/vnd.google.protobuf"
                    if is_absent_or("proto", &["io.prometheus.client.metricfamily"])
                        && is_absent_or("encoding", &["delimited"]) =>
                {
                    Self::Protobuf
                }
                "application/openmetrics-text" if is_absent_or("version", &["0.0.1", "1.0.0"]) => {
                    Self::OpenMetrics
                }
                "text/plain" if is_absent_or("version", &["0.0.4"]) => Self::Text,
                "*/*" | "text/*" => Self::Text,
                _ => continue,
            };
            let quality = parameter("q").map_or(Some(1.0), |(_, value)| value.parse::<f64>().ok());
            if let Some(quality) = quality.filter(|quality| *quality > best.0) {
                best = (quality, form);
            }
        }
        best.1
    }

    /// The metrics in this form.
    pub(crate) fn encode(self, families: &[MetricFamily]) -> Vec<u8> {
        match self {
            Self::Text | Self::OpenMetrics => {
                let is_open = self == Self::OpenMetrics;
                let mut text = Text { is_open, edges: Vec::new(), out: String::new() };
                families.iter().for_each(|family| text.family(family));
                if text.is_open {
                    text.out += "# EOF\n";
                }
                text.out.into_bytes()
            }
            Self::Protobuf => {
                let mut out = Vec::new();
                for family in families {
                    family.encode_length_delimited(&mut out).expect("a vector takes everything");
                }
                out
            }
        }
    }
}

struct Text {
    /// By the rules of OpenMetrics.
    is_open: bool,
    /// Edges of buckets, and how they are written.
    edges: Vec<(f64, String)>,
    out: String,
}

impl Text {
    fn family(&mut self, family: &MetricFamily) {
        if family.metric.is_empty() {
            return;
        }
        let name = family.name();
        // OpenMetrics' counters are known without their ending.
        let known = match family.r#type() {
            MetricType::Counter if self.is_open => name.strip_suffix("_total").unwrap_or(name),
            _ => name,
        };
        let kind = match family.r#type() {
            MetricType::Counter => "counter",
            MetricType::Gauge => "gauge",
            MetricType::Histogram => "histogram",
        };
        let help = escaped(family.help(), self.is_open);
        self.out += &format!("# HELP {known} {help}\n# TYPE {known} {kind}\n");
        if self.is_open && known.ends_with("_seconds") {
            self.out += &format!("# UNIT {known} seconds\n");
        }
        for metric in &family.metric {
            self.metric(name, metric);
        }
    }

    fn metric(&mut self, name: &str, metric: &Metric) {
        let labels = rendered(&metric.label);
        if let Some(value) = metric.counter.as_ref().map(|counter| counter.value()) {
            self.sample(name, "", &labels, &number(value));
        }
        if let Some(value) = metric.gauge.as_ref().map(|gauge| gauge.value()) {
            self.sample(name, "", &labels, &number(value));
        }
        if let Some(histogram) = &metric.histogram {
            let (count, mut cumulative) = (histogram.sample_count().to_string(), itoa::Buffer::new());
            // Most lines of a scrape are these, and differ by their edge and their value alone.
            let separator = if labels.is_empty() { "" } else { "," };
            let start = format!("{name}_bucket{{{labels}{separator}le=\"");
            for (place, bucket) in histogram.bucket.iter().enumerate() {
                self.know_edge(place, bucket.upper_bound());
                self.bucket(&start, place, cumulative.format(bucket.cumulative_count()));
            }
            self.bucket(&start, usize::MAX, &count);
            self.sample(name, "_sum", &labels, &number(histogram.sample_sum()));
            self.sample(name, "_count", &labels, &count);
        }
    }

    /// All histograms have the same edges, so that each is written out once.
    fn know_edge(&mut self, place: usize, edge: f64) {
        if self.edges.get(place).is_none_or(|(known, _)| *known != edge) {
            self.edges.truncate(place);
            self.edges.push((edge, number(edge)));
        }
    }

    /// The line of a bucket, by the place of its edge; the last one has none, and is beyond all.
    fn bucket(&mut self, start: &str, place: usize, value: &str) {
        let Self { out, edges, .. } = self;
        *out += start;
        *out += edges.get(place).map_or("+Inf", |(_, text)| text.as_str());
        *out += "\"} ";
        *out += value;
        out.push('\n');
    }

    fn sample(&mut self, name: &str, ending: &str, labels: &str, value: &str) {
        let out = &mut self.out;
        *out += name;
        *out += ending;
        if !labels.is_empty() {
            out.push('{');
            *out += labels;
            out.push('}');
        }
        out.push(' ');
        *out += value;
        out.push('\n');
    }
}

/// Labels as they stand between braces.
fn rendered(labels: &[LabelPair]) -> String {
    let mut text = String::new();
    for label in labels {
        let separator = if text.is_empty() { "" } else { "," };
        let _ = write!(text, "{separator}{}=\"{}\"", label.name(), escaped(label.value(), true));
    }
    text
}

/// Text in which nothing ends a line or, with `quotes`, a quoted string.
fn escaped(text: &str, quotes: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out += "\\\\",
            '\n' => out += "\\n",
            '"' if quotes => out += "\\\"",
            c => out.push(c),
        }
    }
    out
}

/// A number as Go writes it, so that an edge reads the same in every form (`strconv.FormatFloat(x, 'g', -1, 64)`).
fn number(value: f64) -> String {
    if value == 0.0 || (1e-4..1e21).contains(&value.abs()) || !value.is_finite() {
        return value.to_string();
    }
    let text = format!("{value:e}");
    match text.split_once('e') {
        Some((digits, power)) => {
            let (sign, power) = power.strip_prefix('-').map_or(('+', power), |power| ('-', power));
            format!("{digits}e{sign}{power:0>2}")
        }
        None => text,
    }
}

/// Reads what [`Form::Protobuf`] writes.
///
/// # Errors
/// If it is something else.
#[cfg(test)]
fn decode(mut bytes: &[u8]) -> Result<Vec<MetricFamily>, prost::DecodeError> {
    let mut families = Vec::new();
    while !bytes.is_empty() {
        families.push(MetricFamily::decode_length_delimited(&mut bytes)?);
    }
    Ok(families)
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use net_latency_common::bucket;
    use proptest::prelude::*;

    use super::super::cells::Cells;
    use super::*;

    fn families() -> Vec<MetricFamily> {
        let mut cells = Cells::default();
        for ns in [200, 900, 45_000, 20_000_000_000] {
            cells.add(&Cells::of_sorted([(0, bucket(ns) as u32, 2)]));
        }
        let mut times = MetricFamily::new("x_seconds", MetricType::Histogram, "Times \\ of\nstages.");
        times.add_histogram(
            &[("stage", "drv-ip"), ("comm", "a\"b\\c\nd")],
            cells.histogram(0).expect("times"),
        );
        vec![
            times,
            MetricFamily::new("x_packets_total", MetricType::Counter, "Packets.").with(&[], 12_345_678.0),
            MetricFamily::new("x_bytes", MetricType::Gauge, "Bytes.").with(&[("a", "b")], 0.000_001_5),
            MetricFamily::new("nothing_total", MetricType::Counter, "There is none."),
        ]
    }

    #[test]
    fn text_is_as_scrapers_read_it() {
        let text = |form: Form| String::from_utf8(form.encode(&families())).expect("text");
        assert_snapshot!(format!("{}\n{}", text(Form::Text), text(Form::OpenMetrics)));
    }

    #[test]
    fn protobuf_comes_back_as_it_went() {
        assert_eq!(decode(&Form::Protobuf.encode(&families())).expect("ours"), families());
    }

    #[test]
    fn numbers_are_as_go_writes_them() {
        let shown = [0.0, 1.0, 1e-4, 2.55e-7, 1.023e-6, 1.5e-10, 8.589934591, 1e21, 123456789.0].map(number);
        let wanted =
            ["0", "1", "0.0001", "2.55e-07", "1.023e-06", "1.5e-10", "8.589934591", "1e+21", "123456789"];
        assert_eq!(shown, wanted);
    }

    #[test]
    fn scrapers_get_what_they_prefer() {
        // What Prometheus 2.42 sends by default, and with native histograms.
        let usual = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                     text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        let native = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,\
                      application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        let later =
            "application/openmetrics-text;version=2.0.0, text/plain;version=1.0.0;q=0.9, text/plain ; q=0.2";
        assert_eq!(
            ["", "*/*", "text/html", usual, native, later, "application/openmetrics-text;q=0"]
                .map(Form::accepted),
            [Form::Text, Form::Text, Form::Text, Form::OpenMetrics, Form::Protobuf, Form::Text, Form::Text]
        );
    }

    proptest! {
        #[test]
        fn any_header_gets_an_answer(header in "[a-z/*;=,q0-9. \"]{0,80}") {
            let named = ["*", "text", "openmetrics", "protobuf"];
            let is_asked = named.iter().any(|word| header.contains(word));
            prop_assert!(is_asked || Form::accepted(&header) == Form::Text, "{}", header);
        }

        #[test]
        fn any_label_is_one_quoted_string(value in "\\PC*") {
            let family = MetricFamily::new("x", MetricType::Gauge, "X.").with(&[("l", &value)], 1.0);
            let text = String::from_utf8(Form::Text.encode(&[family])).expect("text");
            let line = text.lines().nth(2).expect("help, type, sample");
            let inner = line.strip_prefix("x{l=\"").and_then(|rest| rest.strip_suffix("\"} 1")).expect("a sample");
            let back = inner.replace("\\\\", "\u{0}").replace("\\n", "\n").replace("\\\"", "\"").replace('\u{0}', "\\");
            prop_assert_eq!(back, value);
        }
    }
}
