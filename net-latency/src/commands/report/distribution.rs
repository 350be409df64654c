//! A distribution of times that is small enough to be kept by the thousand.

use crate::packet::cells::{bounds, cell, middle};

/// Counts by cells that grow with the time. Memory goes as far as the longest time: 4 KiB to 1 ms, 7 KiB to 10 s.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Distribution {
    cells: Vec<u32>,
    count: u64,
    /// Exact.
    max_ns: u64,
}

impl Distribution {
    pub(super) fn add(&mut self, ns: u64) {
        let cell = cell(ns);
        if cell >= self.cells.len() {
            self.cells.resize(cell + 1, 0);
        }
        self.cells[cell] = self.cells[cell].saturating_add(1);
        self.count += 1;
        self.max_ns = self.max_ns.max(ns);
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.cells.resize(self.cells.len().max(other.cells.len()), 0);
        for (cell, more) in self.cells.iter_mut().zip(&other.cells) {
            *cell = cell.saturating_add(*more);
        }
        self.count += other.count;
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// The longest time; `None` without any.
    pub(super) fn max(&self) -> Option<u64> {
        (self.count > 0).then_some(self.max_ns)
    }

    /// The time that `per_mille` of all do not exceed, to within 1 %; `None` without any.
    pub(super) fn quantile(&self, per_mille: u64) -> Option<u64> {
        let rank = (u128::from(self.count) * u128::from(per_mille)).div_ceil(1000);
        // The last one is known exactly.
        if rank == u128::from(self.count) {
            return self.max();
        }
        let mut passed = 0;
        for (cell, &count) in self.cells.iter().enumerate() {
            passed += u128::from(count);
            if passed >= rank {
                return Some(middle(cell).min(self.max_ns));
            }
        }
        None
    }

    /// Cells that hold anything: first and last time of each, and how many.
    pub(super) fn cells(&self) -> impl Iterator<Item = (u64, u64, u32)> {
        let filled = self.cells.iter().enumerate().filter(|(_, count)| **count > 0);
        filled.map(|(cell, count)| {
            let (from, to) = bounds(cell);
            (from, to, *count)
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(times: &[u64]) -> Distribution {
        let mut distribution = Distribution::default();
        for &ns in times {
            distribution.add(ns);
        }
        distribution
    }

    #[test]
    fn nothing_has_no_percentiles() {
        assert_eq!((of(&[]).quantile(500), of(&[]).max()), (None, None));
        assert_eq!((of(&[0]).quantile(500), of(&[0]).max()), (Some(0), Some(0)));
    }

    fn times() -> impl Strategy<Value = Vec<u64>> {
        let time = prop_oneof![0..200u64, 0..10_000_000u64, any::<u64>()];
        proptest::collection::vec(time, 1..200)
    }

    proptest! {
        #[test]
        fn percentiles_are_right_to_one_percent(mut all in times()) {
            let distribution = of(&all);
            all.sort_unstable();
            prop_assert_eq!(distribution.max(), all.last().copied());
            for per_mille in [1, 500, 900, 990, 999, 1000] {
                let exact = all[(all.len() * per_mille).div_ceil(1000) - 1];
                let shown = distribution.quantile(per_mille as u64).expect("not empty");
                prop_assert!(shown.abs_diff(exact) <= exact / 100, "{}: {}, not {}", per_mille, shown, exact);
            }
        }

        #[test]
        fn merged_is_as_added_together(one in times(), other in times()) {
            let mut merged = of(&one);
            merged.merge(&of(&other));
            prop_assert_eq!(merged, of(&[one, other].concat()));
        }
    }
}
