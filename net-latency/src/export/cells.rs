//! Counts of times by row and cell, as the kernel side keeps them, and the histograms that scrapers get of a row.

use std::sync::LazyLock;

use itertools::{EitherOrBoth, Itertools as _, merge_join_by};
use net_latency_common::{
    BUCKETS, CellKey, FINE_ROWS, NEVER, ROW_TOTAL, TRAFFIC_KINDS, UNKNOWN, UNKNOWNS, bounds,
};

use super::model::{Bucket, BucketSpan, Histogram};

const NS: f64 = 1e-9;
/// The edges of classic buckets, as powers of two in ns: from 0.26 us to 8.6 s.
const EDGES: std::ops::RangeInclusive<u32> = 8..=33;
/// Exponential buckets to each power of two, as a power of two: as many as the kernel side's.
const SCHEMA: i32 = 3;
/// The least that an exponential bucket holds, in s; the kernel's clock knows no shorter time than a thousand times this.
const ZERO_THRESHOLD: f64 = 1e-12;

/// Counts by row and cell, in that order. None is 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cells(Vec<(Place, u64)>);

/// Row and cell.
type Place = (u32, u32);

impl Cells {
    /// Counts in the order of their rows and cells, none of which comes twice.
    pub(crate) fn of_sorted(counts: impl IntoIterator<Item = (u32, u32, u64)>) -> Self {
        let counts = counts.into_iter().filter(|(.., count)| *count > 0);
        let cells: Vec<_> = counts.map(|(row, cell, count)| ((row, cell), count)).collect();
        debug_assert!(cells.is_sorted_by(|(one, _), (next, _)| one < next), "each comes once, in order");
        Self(cells)
    }

    /// Adds what others count.
    pub(crate) fn add(&mut self, other: &Self) {
        if self.is_empty() {
            self.0.clone_from(&other.0);
        } else if !other.is_empty() {
            let pairs = merge_join_by(&self.0, &other.0, |(one, _), (other, _)| one.cmp(other));
            self.0 = pairs
                .map(|pair| match pair {
                    EitherOrBoth::Left(one) | EitherOrBoth::Right(one) => *one,
                    EitherOrBoth::Both((place, one), (_, other)) => (*place, one + other),
                })
                .collect();
        }
    }

    /// The counts since `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        if earlier.is_empty() {
            return self.clone();
        }
        let pairs = merge_join_by(&self.0, &earlier.0, |(one, _), (earlier, _)| one.cmp(earlier));
        let rest = pairs.filter_map(|pair| match pair {
            EitherOrBoth::Left(now) => Some(*now),
            EitherOrBoth::Right(_) => None,
            EitherOrBoth::Both((place, now), (_, before)) => Some((*place, now.saturating_sub(*before))),
        });
        Self(rest.filter(|(_, count)| *count > 0).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Row, cell and count of each that is not 0, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, u32, u64)> {
        self.0.iter().map(|&((row, cell), count)| (row, cell, count))
    }

    /// The counts as the kernel side has them, of one group that is all.
    pub(crate) fn counts(&self) -> Vec<(CellKey, u64)> {
        self.iter().map(|(row, cell, count)| (CellKey { group: [0; 2], row, cell }, count)).collect()
    }

    fn row(&self, row: u32) -> impl Iterator<Item = (usize, u64)> {
        let start = self.0.partition_point(|((earlier, _), _)| *earlier < row);
        let of_it = self.0[start..].iter().take_while(move |((its, _), _)| *its == row);
        of_it.map(|&((_, cell), count)| (cell as usize, count))
    }

    /// Packets of a kind of traffic: each is in one cell of the row of its total.
    pub(crate) fn packets(&self, traffic: u32) -> u64 {
        self.row(net_latency_common::row(traffic, ROW_TOTAL)).map(|(_, count)| count).sum()
    }

    /// Packets of all kinds.
    pub(crate) fn all_packets(&self) -> u64 {
        (0..TRAFFIC_KINDS).map(|traffic| self.packets(traffic)).sum()
    }

    /// How many times of stages, and of the way from the first to the last, are unknown for a kind of traffic, by reason.
    pub(crate) fn unknown(&self, traffic: u32) -> [u64; UNKNOWNS] {
        let mut reasons = [0; UNKNOWNS];
        let cells = (0..FINE_ROWS).flat_map(|row| self.row(net_latency_common::row(traffic, row)));
        for (cell, count) in cells.filter(|(cell, _)| (UNKNOWN..NEVER).contains(cell)) {
            reasons[cell - UNKNOWN] += count;
        }
        reasons
    }

    /// The known times of a row; `None` without any.
    pub(crate) fn histogram(&self, row: u32) -> Option<Histogram> {
        let known: Vec<_> = self.row(row).filter(|(cell, _)| *cell < BUCKETS).collect();
        if known.is_empty() {
            return None;
        }
        let sum = known.iter().map(|&(bucket, count)| middle(bucket) * count as f64).sum::<f64>();
        let (zero_count, positive_span, positive_delta) = exponential(&known);
        Some(Histogram {
            sample_count: Some(known.iter().map(|(_, count)| count).sum()),
            sample_sum: Some(sum * NS),
            bucket: classic(&known),
            schema: Some(SCHEMA),
            zero_threshold: Some(ZERO_THRESHOLD),
            zero_count: Some(zero_count),
            positive_span,
            positive_delta,
        })
    }
}

/// All rows: kind of traffic, and number of the row within it.
pub(crate) fn rows() -> impl Iterator<Item = (u32, u32)> {
    (0..TRAFFIC_KINDS).flat_map(|traffic| (0..FINE_ROWS).map(move |row| (traffic, row)))
}

/// The middle of a bucket's times in ns, by which its times are off by a sixteenth at most; the start of the last,
/// which has no end.
fn middle(bucket: usize) -> f64 {
    let (start, end) = bounds(bucket);
    if end == u64::MAX { start as f64 } else { (start + (end - 1)) as f64 / 2.0 }
}

/// Buckets whose edges the kernel side's buckets have as well, so that no count has to be moved. An edge is the longest time
/// that is within it, in whole ns: scrapers' buckets include it.
fn classic(known: &[(usize, u64)]) -> Vec<Bucket> {
    let mut known = known.iter().peekable();
    let mut cumulative = 0;
    EDGES
        .map(|power| {
            while let Some((_, count)) = known.next_if(|(bucket, _)| bounds(*bucket).1 <= 1 << power) {
                cumulative += count;
            }
            let longest = (1u64 << power) - 1;
            Bucket { cumulative_count: Some(cumulative), upper_bound: Some(longest as f64 / 1e9) }
        })
        .collect()
}

/// The exponential bucket where the times of each of the kernel side's buckets go; `None` for those that count as 0.
static INDEX: LazyLock<[Option<i32>; BUCKETS]> = LazyLock::new(|| {
    std::array::from_fn(|bucket| {
        let seconds = middle(bucket) * NS;
        // Bucket i ends at the power i / 2^SCHEMA of two, which is in it.
        (seconds > ZERO_THRESHOLD).then(|| (seconds.log2() * f64::from(1 << SCHEMA)).ceil() as i32)
    })
});

/// How many are 0, and the spans and counts of exponential buckets. The times of a bucket of the kernel side all go where its
/// middle is: a quantile is off by the width of a bucket of ours (9.1 %) and half of one of the kernel side's (6.7 %).
fn exponential(known: &[(usize, u64)]) -> (u64, Vec<BucketSpan>, Vec<i64>) {
    let zeroes = known.iter().filter(|(bucket, _)| INDEX[*bucket].is_none()).map(|(_, count)| count).sum();
    let in_order = known.iter().filter_map(|&(bucket, count)| Some((INDEX[bucket]?, count)));
    let joined = in_order.coalesce(|(index, one), (next, other)| {
        if index == next { Ok((index, one + other)) } else { Err(((index, one), (next, other))) }
    });
    let (mut spans, mut deltas) = (Vec::<BucketSpan>::new(), Vec::new());
    let (mut next, mut before) = (0, 0);
    for (index, count) in joined {
        match spans.last_mut() {
            Some(BucketSpan { length: Some(length), .. }) if index == next => *length += 1,
            _ => spans.push(BucketSpan { offset: Some(index - next), length: Some(1) }),
        }
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        deltas.push(count - before);
        (next, before) = (index + 1, count);
    }
    (zeroes, spans, deltas)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use net_latency_common::{bucket, row};
    use proptest::prelude::*;

    use super::*;

    fn of(times: &[u64]) -> Cells {
        let mut cells = Cells::default();
        times.iter().for_each(|&ns| cells.add(&one(0, bucket(ns), 1)));
        cells
    }

    fn one(row: u32, cell: usize, count: u64) -> Cells {
        Cells::of_sorted([(row, cell as u32, count)])
    }

    /// Upper bounds in ns of exponential buckets, and their counts.
    fn decoded(histogram: &Histogram) -> Vec<(f64, u64)> {
        let mut found = Vec::new();
        let (mut index, mut count) = (0, 0);
        let mut deltas = histogram.positive_delta.iter();
        for span in &histogram.positive_span {
            index += span.offset.expect("an offset");
            for _ in 0..span.length.expect("a length") {
                count += deltas.next().expect("a count for each bucket");
                let bound = f64::from(index) / f64::from(1 << histogram.schema.expect("a schema"));
                found.push((bound.exp2() * 1e9, u64::try_from(count).expect("counts are not negative")));
                index += 1;
            }
        }
        assert_eq!(deltas.next(), None);
        found
    }

    #[test]
    fn a_time_at_an_edge_is_on_the_side_that_the_edge_says() {
        let histogram = of(&[1_023, 1_024, 1_025]).histogram(0).expect("not empty");
        let at = |ns: f64| {
            let bucket = histogram.bucket.iter().find(|bucket| bucket.upper_bound == Some(ns / 1e9));
            bucket.expect("an edge").cumulative_count
        };
        assert_eq!((at(511.0), at(1_023.0), at(2_047.0)), (Some(0), Some(1), Some(3)));
        assert_eq!(histogram.bucket.len(), 26);
    }

    #[test]
    fn unknown_times_are_in_no_histogram() {
        let mut cells = of(&[5]);
        for other in [one(0, UNKNOWN + 2, 7), one(0, NEVER, 9), one(1, UNKNOWN, 3)] {
            cells.add(&other);
        }
        assert_eq!(cells.histogram(0).expect("a time").sample_count, Some(1));
        cells.add(&one(row(1, 0), UNKNOWN, 100));
        assert_eq!(cells.unknown(0), [3, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(cells.histogram(1), None);
    }

    #[test]
    fn what_was_there_is_taken_away() {
        let (earlier, now) = (of(&[5, 100]), of(&[5, 100, 100, 7]));
        assert_eq!(now.since(&earlier), of(&[7, 100]));
        assert!(now.since(&now).is_empty());
    }

    #[test]
    fn zero_is_in_the_zero_bucket() {
        let histogram = of(&[0, 0, 1]).histogram(0).expect("not empty");
        assert_eq!(histogram.zero_count, Some(2));
        assert_eq!(decoded(&histogram).iter().map(|(_, count)| count).sum::<u64>(), 1);
    }

    proptest! {
        #[test]
        fn sums_and_differences_are_those_of_each_cell(
            one in proptest::collection::btree_map((0..4u32, 0..9u32), 1..9u64, 0..20),
            other in proptest::collection::btree_map((0..4u32, 0..9u32), 1..9u64, 0..20),
        ) {
            let cells = |of: &BTreeMap<(u32, u32), u64>| {
                Cells::of_sorted(of.iter().map(|(&(row, cell), &count)| (row, cell, count)))
            };
            let mut sum = cells(&one);
            sum.add(&cells(&other));
            let mut wanted = one.clone();
            other.iter().for_each(|(place, count)| *wanted.entry(*place).or_default() += count);
            prop_assert_eq!(&sum, &cells(&wanted));
            prop_assert_eq!(sum.since(&cells(&other)), cells(&one));
            prop_assert!(cells(&one).since(&sum).is_empty());
            for row in 0..4 {
                let of_row: u64 = sum.row(row).map(|(_, count)| count).sum();
                let wanted: u64 = wanted.range((row, 0)..(row + 1, 0)).map(|(_, count)| count).sum();
                prop_assert_eq!(of_row, wanted);
            }
        }

        #[test]
        fn quantiles_are_within_the_stated_error(mut times in proptest::collection::vec(1..8_000_000_000u64, 1..200)) {
            let histogram = of(&times).histogram(0).expect("not empty");
            times.sort_unstable();
            let count = times.len() as u64;
            prop_assert_eq!(histogram.sample_count, Some(count));
            // Classic buckets: the exact counts.
            for bucket in &histogram.bucket {
                let edge = (bucket.upper_bound.expect("an edge") * 1e9).round() as u64;
                let exact = times.iter().filter(|&&ns| ns <= edge).count() as u64;
                prop_assert_eq!(bucket.cumulative_count, Some(exact), "up to {}", edge);
            }
            // Exponential ones: the k-th time is in the k-th's bucket or one so near.
            let native = decoded(&histogram);
            prop_assert_eq!(native.iter().map(|(_, count)| count).sum::<u64>(), count);
            let mut exact = times.iter();
            for (end, count) in native {
                for &ns in exact.by_ref().take(count as usize) {
                    let start = end / 2f64.powf(0.125);
                    prop_assert!(ns as f64 <= end * 1.067 && ns as f64 >= start / 1.067, "{} in {}..{}", ns, start, end);
                }
            }
            let sum = times.iter().sum::<u64>() as f64;
            let told = histogram.sample_sum.expect("a sum") * 1e9;
            prop_assert!((told - sum).abs() <= sum / 16.0 + 1.0, "{} for {}", told, sum);
        }
    }
}
