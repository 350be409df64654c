//! Metrics as scrapers know them: the messages of Prometheus' `io.prometheus.client` (client_model, metrics.proto),
//! as far as they are used here. The forms of text are written from the same messages.

use prost::{Enumeration, Message};

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub(crate) enum MetricType {
    /// It never falls, except to begin anew.
    Counter = 0,
    /// It rises and falls.
    Gauge = 1,
    /// A distribution.
    Histogram = 4,
}

/// A label of a metric.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct LabelPair {
    #[prost(string, optional, tag = "1")]
    pub(crate) name: Option<String>,
    #[prost(string, optional, tag = "2")]
    pub(crate) value: Option<String>,
}

/// The value of a gauge.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Gauge {
    #[prost(double, optional, tag = "1")]
    pub(crate) value: Option<f64>,
}

/// The value of a counter.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Counter {
    #[prost(double, optional, tag = "1")]
    pub(crate) value: Option<f64>,
}

/// A distribution twice: by classic buckets, and by exponential ones (a native histogram).
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Histogram {
    #[prost(uint64, optional, tag = "1")]
    pub(crate) sample_count: Option<u64>,
    #[prost(double, optional, tag = "2")]
    pub(crate) sample_sum: Option<f64>,
    /// Classic buckets but the last, which is all.
    #[prost(message, repeated, tag = "3")]
    pub(crate) bucket: Vec<Bucket>,
    /// There are 2 to the power of this many exponential buckets to each power of two.
    #[prost(sint32, optional, tag = "5")]
    pub(crate) schema: Option<i32>,
    /// A value up to this is in no exponential bucket.
    #[prost(double, optional, tag = "6")]
    pub(crate) zero_threshold: Option<f64>,
    #[prost(uint64, optional, tag = "7")]
    pub(crate) zero_count: Option<u64>,
    /// Which exponential buckets follow each other.
    #[prost(message, repeated, tag = "12")]
    pub(crate) positive_span: Vec<BucketSpan>,
    /// Their counts, each as its difference from the one before.
    #[prost(sint64, repeated, packed = "false", tag = "13")]
    pub(crate) positive_delta: Vec<i64>,
}

/// A classic bucket.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Bucket {
    /// The count of this bucket and all before it.
    #[prost(uint64, optional, tag = "1")]
    pub(crate) cumulative_count: Option<u64>,
    /// The longest time that is in it.
    #[prost(double, optional, tag = "2")]
    pub(crate) upper_bound: Option<f64>,
}

/// Exponential buckets without a gap.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct BucketSpan {
    /// Buckets between the end of the span before, or bucket 0, and the first of this one.
    #[prost(sint32, optional, tag = "1")]
    pub(crate) offset: Option<i32>,
    #[prost(uint32, optional, tag = "2")]
    pub(crate) length: Option<u32>,
}

/// One value, or one distribution, with its labels.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Metric {
    #[prost(message, repeated, tag = "1")]
    pub(crate) label: Vec<LabelPair>,
    #[prost(message, optional, tag = "2")]
    pub(crate) gauge: Option<Gauge>,
    #[prost(message, optional, tag = "3")]
    pub(crate) counter: Option<Counter>,
    #[prost(message, optional, tag = "7")]
    pub(crate) histogram: Option<Histogram>,
}

/// All metrics of one name.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct MetricFamily {
    #[prost(string, optional, tag = "1")]
    pub(crate) name: Option<String>,
    #[prost(string, optional, tag = "2")]
    pub(crate) help: Option<String>,
    #[prost(enumeration = "MetricType", optional, tag = "3")]
    pub(crate) r#type: Option<i32>,
    #[prost(message, repeated, tag = "4")]
    pub(crate) metric: Vec<Metric>,
}

/// Labels by name and value.
pub(crate) type Labels<'a> = &'a [(&'static str, &'a str)];

fn labels(labels: Labels<'_>) -> Vec<LabelPair> {
    let pair = |&(name, value): &(&str, &str)| LabelPair {
        name: Some(name.to_owned()),
        value: Some(value.to_owned()),
    };
    labels.iter().map(pair).collect()
}

impl MetricFamily {
    /// Without any metric.
    pub(crate) fn new(name: &str, kind: MetricType, help: &str) -> Self {
        Self {
            name: Some(name.to_owned()),
            help: Some(help.to_owned()),
            r#type: Some(kind as i32),
            metric: Vec::new(),
        }
    }

    /// With another value, of a counter or a gauge.
    pub(crate) fn with(mut self, of: Labels<'_>, value: f64) -> Self {
        self.add(of, value);
        self
    }

    /// Adds a value, of a counter or a gauge.
    pub(crate) fn add(&mut self, of: Labels<'_>, value: f64) {
        let mut metric = Metric { label: labels(of), ..Metric::default() };
        match self.r#type() {
            MetricType::Counter => metric.counter = Some(Counter { value: Some(value) }),
            MetricType::Gauge => metric.gauge = Some(Gauge { value: Some(value) }),
            MetricType::Histogram => panic!("a histogram is no single value"),
        }
        self.metric.push(metric);
    }

    /// Adds a distribution.
    pub(crate) fn add_histogram(&mut self, of: Labels<'_>, histogram: Histogram) {
        self.metric.push(Metric { label: labels(of), histogram: Some(histogram), ..Metric::default() });
    }
}
