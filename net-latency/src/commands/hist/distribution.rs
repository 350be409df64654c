//! The counts of one row.

use net_latency_common::{BUCKETS, NEVER, UNKNOWN, UNKNOWNS, bounds};

/// Buckets of each power of two.
const PARTS: usize = 8;

/// How one time is distributed. Only what is not 0 takes room.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Distribution {
    /// Indices of buckets and their counts, in order.
    buckets: Vec<(usize, u64)>,
    /// By reason.
    unknown: [u64; UNKNOWNS],
    never: u64,
}

impl Distribution {
    /// From the cells of one row and their counts, in order.
    pub(super) fn of(cells: impl IntoIterator<Item = (u32, u64)>) -> Self {
        let mut distribution = Self::default();
        for (cell, count) in cells {
            match cell as usize {
                bucket @ ..UNKNOWN => distribution.buckets.push((bucket, count)),
                reason @ UNKNOWN..NEVER => distribution.unknown[reason - UNKNOWN] = count,
                _ => distribution.never = count,
            }
        }
        distribution
    }

    /// Known times.
    pub(super) fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }

    /// Packets whose time is unknown.
    pub(super) fn unknown(&self) -> u64 {
        self.unknown.iter().sum()
    }

    /// The same by reason.
    pub(super) fn reasons(&self) -> &[u64; UNKNOWNS] {
        &self.unknown
    }

    /// All packets, with those that never had such a time.
    pub(super) fn packets(&self) -> u64 {
        self.count() + self.unknown() + self.never
    }

    /// The end of the bucket that holds the time that this part of all (0.5: half of them) does not exceed. The time
    /// itself is shorter, by an eighth at most.
    pub(super) fn quantile(&self, per_mille: u64) -> Option<u64> {
        let all = self.count();
        let rank = (u128::from(all) * u128::from(per_mille)).div_ceil(1000).max(1);
        let mut passed = 0;
        self.buckets.iter().find_map(|&(bucket, count)| {
            passed += u128::from(count);
            (passed >= rank).then(|| bounds(bucket).1)
        })
    }

    /// The start of the first bucket that is not empty.
    pub(super) fn min(&self) -> Option<u64> {
        self.buckets.first().map(|&(bucket, _)| bounds(bucket).0)
    }

    /// The end of the last bucket that is not empty.
    pub(super) fn max(&self) -> Option<u64> {
        self.buckets.last().map(|&(bucket, _)| bounds(bucket).1)
    }

    /// All times together, each taken as the middle of its bucket.
    pub(super) fn sum(&self) -> u128 {
        let middle = |bucket| {
            let (start, end) = bounds(bucket);
            // The last has no end.
            if end == u64::MAX { u128::from(start) } else { u128::midpoint(start.into(), (end - 1).into()) }
        };
        self.buckets.iter().map(|&(bucket, count)| middle(bucket) * u128::from(count)).sum()
    }

    /// Each bucket that is not empty: where it begins, where it ends, and its count.
    pub(super) fn buckets(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        self.buckets.iter().map(|&(bucket, count)| {
            let (start, end) = bounds(bucket);
            (start, end, count)
        })
    }

    /// Each power of two from the first that is not empty to the last: where it begins, where it ends, and its count.
    pub(super) fn doublings(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        let number = |place: Option<&(usize, u64)>| place.map_or(0, |(bucket, _)| bucket / PARTS);
        let (first, last) = (number(self.buckets.first()), number(self.buckets.last()));
        let all = if self.buckets.is_empty() { 0..0 } else { first..last + 1 };
        all.map(|doubling| {
            let buckets = self.buckets.iter().filter(|(bucket, _)| bucket / PARTS == doubling);
            let last = (doubling * PARTS + PARTS - 1).min(BUCKETS - 1);
            (bounds(doubling * PARTS).0, bounds(last).1, buckets.map(|(_, count)| count).sum())
        })
    }

    /// Adds what another one counts.
    pub(super) fn add(&mut self, other: &Self) {
        self.unknown.iter_mut().zip(other.unknown).for_each(|(sum, count)| *sum += count);
        self.never += other.never;
        for &(bucket, count) in &other.buckets {
            match self.buckets.binary_search_by_key(&bucket, |(bucket, _)| *bucket) {
                Ok(place) => self.buckets[place].1 += count,
                Err(place) => self.buckets.insert(place, (bucket, count)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use net_latency_common::bucket;
    use proptest::prelude::*;

    use super::*;

    fn of(times: &[u64]) -> Distribution {
        let mut sum = Distribution::default();
        for &ns in times {
            sum.add(&Distribution::of([(bucket(ns) as u32, 1)]));
        }
        sum
    }

    #[test]
    fn nothing_has_no_times() {
        let nothing = Distribution::default();
        assert_eq!((nothing.count(), nothing.quantile(500), nothing.max()), (0, None, None));
        assert_eq!(nothing.doublings().count(), 0);
    }

    #[test]
    fn packets_without_a_time_are_counted_apart() {
        let cells = [(bucket(9) as u32, 2), (UNKNOWN as u32, 3), (NEVER as u32, 4)];
        let distribution = Distribution::of(cells);
        assert_eq!((distribution.count(), distribution.unknown(), distribution.packets()), (2, 3, 9));
    }

    #[test]
    fn doublings_have_no_gaps() {
        let doublings: Vec<_> = of(&[5, 16, 31, 100, u64::MAX]).doublings().collect();
        assert_eq!(doublings[..5], [(0, 8, 1), (8, 16, 0), (16, 32, 2), (32, 64, 0), (64, 128, 1)]);
        assert_eq!(doublings.last(), Some(&(1 << 42, u64::MAX, 1)));
        assert!(doublings.windows(2).all(|two| two[0].1 == two[1].0), "{doublings:?}");
    }

    proptest! {
        #[test]
        fn quantiles_are_an_eighth_too_long_at_most(mut all in proptest::collection::vec(1..1_000_000_000_000u64, 1..200)) {
            let distribution = of(&all);
            all.sort_unstable();
            prop_assert_eq!(distribution.count(), all.len() as u64);
            for per_mille in [1, 500, 900, 990, 999, 1000] {
                let exact = all[(all.len() * per_mille).div_ceil(1000) - 1];
                let shown = distribution.quantile(per_mille as u64).expect("not empty");
                prop_assert!(exact < shown && shown <= exact + (exact / 8).max(1), "{exact}: {shown}");
            }
            prop_assert_eq!(distribution.max(), distribution.quantile(1000));
            prop_assert_eq!(distribution.doublings().map(|(_, _, count)| count).sum::<u64>(), all.len() as u64);
        }
    }
}
