//! The distribution of a time, in a size that does not depend on the number of packets.

use std::io;

use net_latency_common::{UNKNOWNS, Unknown};

use super::human::Human;
use crate::packet::cells::{cell, middle};

/// Longest time that is told apart from longer ones, in ns: 73 minutes.
const LONGEST_NS: u64 = (1 << 42) - 1;
const CELLS: usize = cell(LONGEST_NS) + 1;

/// Which quantiles a row shows, of a thousand, and their names.
const QUANTILES: [(u64, &str); 4] = [(500, "p50"), (900, "p90"), (990, "p99"), (999, "p99.9")];

/// Times of one kind.
#[derive(Debug)]
pub struct Times {
    /// How many are in each cell.
    cells: Box<[u64; CELLS]>,
    count: u64,
    /// Exact, as a cell's times are not.
    min_ns: u64,
    max_ns: u64,
    unknown: u64,
    /// Those of `unknown` whose reason is known.
    reasons: [u64; UNKNOWNS],
}

impl Default for Times {
    fn default() -> Self {
        Self::new()
    }
}

impl Times {
    /// No times (about 18 KiB).
    #[must_use]
    pub fn new() -> Self {
        let cells = vec![0; CELLS].try_into().expect("as many as there are");
        Self { cells, count: 0, min_ns: u64::MAX, max_ns: 0, unknown: 0, reasons: [0; UNKNOWNS] }
    }

    /// Forgets all times and keeps the memory.
    pub fn clear(&mut self) {
        self.cells.fill(0);
        (self.count, self.min_ns, self.max_ns, self.unknown) = (0, u64::MAX, 0, 0);
        self.reasons.fill(0);
    }

    /// Counts a time.
    #[inline]
    pub fn add(&mut self, ns: u64) {
        match self.cells.get_mut(cell(ns)) {
            Some(count) => *count += 1,
            None => self.cells[CELLS - 1] += 1,
        }
        self.count += 1;
        // Branches, since they are hardly ever taken.
        if ns < self.min_ns {
            self.min_ns = ns;
        }
        if ns > self.max_ns {
            self.max_ns = ns;
        }
    }

    /// Counts a packet whose time is unknown. A log does not tell the reason.
    pub fn add_unknown(&mut self, reason: Option<Unknown>) {
        self.unknown += 1;
        if let Some(reason) = reason {
            self.reasons[reason as usize] += 1;
        }
    }

    /// Known times.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Packets whose time is unknown.
    #[must_use]
    pub fn unknown(&self) -> u64 {
        self.unknown
    }

    /// How many of them are unknown for each reason, by its discriminant.
    #[must_use]
    pub fn reasons(&self) -> &[u64; UNKNOWNS] {
        &self.reasons
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

    /// The time that so many of a thousand (500: half of them) do not exceed; `None` if none is known.
    #[must_use]
    pub fn quantile(&self, per_mille: u64) -> Option<u64> {
        let rank = (u128::from(self.count) * u128::from(per_mille)).div_ceil(1000).max(1);
        // The last one is known exactly.
        if rank == u128::from(self.count) {
            return self.max();
        }
        let mut passed = 0;
        let cell = self.cells.iter().position(|&count| {
            passed += u128::from(count);
            passed >= rank
        })?;
        // The middle may lie beyond anything that was seen.
        Some(middle(cell).clamp(self.min_ns, self.max_ns))
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
        assert_eq!(times.quantile(990), Some(1_000_001));
        times.add(u64::MAX);
        assert_eq!(times.max(), Some(u64::MAX));
        assert!(times.quantile(990) >= Some(LONGEST_NS / 100 * 99));
    }

    #[test]
    fn cleared_is_as_new() {
        let mut times = Times::new();
        times.add(7);
        times.add_unknown(Some(Unknown::NoStamp));
        times.clear();
        assert_eq!((times.count(), times.unknown(), times.min(), times.max()), (0, 0, None, None));
        assert_eq!(times.reasons(), &[0; UNKNOWNS]);
        assert_eq!(times.quantile(500), None);
        times.add(9);
        assert_eq!((times.min(), times.quantile(500), times.max()), (Some(9), Some(9), Some(9)));
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
            for per_mille in [500, 900, 990, 999] {
                let rank = (all.len() * per_mille).div_ceil(1000);
                let exact = all[rank - 1];
                let shown = times.quantile(per_mille as u64).expect("not empty");
                prop_assert!(shown.abs_diff(exact) <= exact / 100 + 1, "{per_mille}: {shown}, not {exact}");
            }
        }
    }
}
