//! The distribution of a time, in a size that does not depend on the number of packets.

use std::io;

use hdrhistogram::Histogram;

use super::human::Human;

/// Longest time that a histogram tells apart from longer ones, in ns: 1 h.
const LONGEST_NS: u64 = 3_600_000_000_000;
/// Percentiles are right to within 1 %; each further digit would take 8 times the memory.
const DIGITS: u8 = 2;

/// Which quantiles a row shows, and their names.
const QUANTILES: [(f64, &str); 4] = [(0.5, "p50"), (0.9, "p90"), (0.99, "p99"), (0.999, "p99.9")];

/// Times of one kind.
#[derive(Debug)]
pub struct Times {
    histogram: Histogram<u64>,
    /// Exact, as the histogram's own are not.
    min_ns: u64,
    max_ns: u64,
    unknown: u64,
}

impl Default for Times {
    fn default() -> Self {
        Self::new()
    }
}

impl Times {
    /// No times (about 40 KiB).
    #[must_use]
    pub fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, LONGEST_NS, DIGITS).expect("the bounds are valid");
        Self { histogram, min_ns: u64::MAX, max_ns: 0, unknown: 0 }
    }

    /// Forgets all times and keeps the memory.
    pub fn clear(&mut self) {
        self.histogram.reset();
        (self.min_ns, self.max_ns, self.unknown) = (u64::MAX, 0, 0);
    }

    /// Counts a time.
    pub fn add(&mut self, ns: u64) {
        self.histogram.saturating_record(ns);
        self.min_ns = self.min_ns.min(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// Counts a packet whose time is unknown.
    pub fn add_unknown(&mut self) {
        self.unknown += 1;
    }

    /// Known times.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Packets whose time is unknown.
    #[must_use]
    pub fn unknown(&self) -> u64 {
        self.unknown
    }

    /// The shortest time; `None` if none is known.
    #[must_use]
    pub fn min(&self) -> Option<u64> {
        (self.count() > 0).then_some(self.min_ns)
    }

    /// The longest time; `None` if none is known.
    #[must_use]
    pub fn max(&self) -> Option<u64> {
        (self.count() > 0).then_some(self.max_ns)
    }

    /// The time that this part of all (0.5: half of them) does not exceed; `None` if none is known.
    #[must_use]
    pub fn quantile(&self, quantile: f64) -> Option<u64> {
        // A histogram answers with the end of a bucket, which may lie beyond anything that was seen.
        let bounded = |ns: u64| ns.clamp(self.min_ns, self.max_ns);
        (self.count() > 0).then(|| bounded(self.histogram.value_at_quantile(quantile)))
    }

    /// Writes the names of a row's parts: 58 columns, and 9 more if `unknown` is one of them.
    ///
    /// # Errors
    /// When `out` can't be written.
    pub fn write_head(unknown: bool, out: &mut impl io::Write) -> io::Result<()> {
        write!(out, "{:>10}{:>8}", "count", "min")?;
        for (_, name) in QUANTILES {
            write!(out, "{name:>8}")?;
        }
        write!(out, "{:>8}", "max")?;
        if unknown {
            write!(out, "{:>9}", "unknown")?;
        }
        writeln!(out)
    }

    /// Writes the row.
    ///
    /// # Errors
    /// When `out` can't be written.
    pub fn write_row(&self, out: &mut impl io::Write) -> io::Result<()> {
        write!(out, "{:>10}", self.count())?;
        let quantiles = QUANTILES.into_iter().map(|(quantile, _)| self.quantile(quantile));
        for time in [self.min()].into_iter().chain(quantiles).chain([self.max()]) {
            match time {
                Some(ns) => write!(out, "{:>8}", Human(ns).to_string())?,
                None => write!(out, "{:>8}", "-")?,
            }
        }
        if self.unknown > 0 {
            write!(out, "{:>9}", self.unknown)?;
        }
        writeln!(out)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_percentile_is_never_beyond_the_maximum() {
        let mut times = Times::new();
        times.add(1_000_001);
        assert_eq!(times.quantile(0.99), Some(1_000_001));
        times.add(u64::MAX);
        assert_eq!(times.max(), Some(u64::MAX));
        assert!(times.quantile(0.99) >= Some(LONGEST_NS));
    }

    #[test]
    fn cleared_is_as_new() {
        let mut times = Times::new();
        times.add(7);
        times.add_unknown();
        times.clear();
        assert_eq!((times.count(), times.unknown(), times.min(), times.max()), (0, 0, None, None));
        assert_eq!(times.quantile(0.5), None);
        times.add(9);
        assert_eq!((times.min(), times.quantile(0.5), times.max()), (Some(9), Some(9), Some(9)));
    }

    proptest! {
        #[test]
        fn quantiles_are_right_to_one_percent(mut all in proptest::collection::vec(0..10_000_000_000u64, 1..200)) {
            let mut times = Times::new();
            for &ns in &all {
                times.add(ns);
            }
            all.sort_unstable();
            prop_assert_eq!((times.min(), times.max()), (all.first().copied(), all.last().copied()));
            for (quantile, per_mille) in [(0.5, 500), (0.9, 900), (0.99, 990), (0.999, 999)] {
                let rank = (all.len() * per_mille).div_ceil(1000);
                let exact = all[rank - 1];
                let shown = times.quantile(quantile).expect("not empty");
                prop_assert!(shown.abs_diff(exact) <= exact / 100 + 1, "{quantile}: {shown}, not {exact}");
            }
        }
    }
}
