//! Counts of times by row and cell, as the kernel side keeps them, and the histograms that scrapers get of a row.

use std::collections::BTreeMap;

use net_latency_common::{
    BUCKETS, CellKey, NEVER, ROW_TOTAL, ROWS, TRAFFIC_KINDS, UNKNOWN, UNKNOWNS, bounds,
};

use super::model::{Bucket, BucketSpan, Histogram};

const NS: f64 = 1e-9;
/// The edges of classic buckets, as powers of two in ns: from 0.26 us to 8.6 s.
const EDGES: std::ops::RangeInclusive<u32> = 8..=33;
/// Exponential buckets to each power of two, as a power of two: as many as the kernel side's.
const SCHEMA: i32 = 3;
/// The least that an exponential bucket holds, in s; the kernel's clock knows no shorter time than a thousand times this.
const ZERO_THRESHOLD: f64 = 1e-12;

/// Counts by row and cell. None is 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cells(BTreeMap<(u32, u32), u64>);

impl Cells {
    /// Adds to one cell.
    pub(crate) fn count(&mut self, row: u32, cell: u32, count: u64) {
        if count > 0 {
            *self.0.entry((row, cell)).or_default() += count;
        }
    }

    /// Adds what others count.
    pub(crate) fn add(&mut self, other: &Self) {
        other.iter().for_each(|(row, cell, count)| self.count(row, cell, count));
    }

    /// What was counted since `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let rest = |(&key, &count): (&(u32, u32), &u64)| {
            let count = count.saturating_sub(earlier.0.get(&key).copied().unwrap_or(0));
            (count > 0).then_some((key, count))
        };
        Self(self.0.iter().filter_map(rest).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Row, cell and count of each that is not 0, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, u32, u64)> {
        self.0.iter().map(|(&(row, cell), &count)| (row, cell, count))
    }

    /// The same as the kernel side has them, of one group that is all.
    pub(crate) fn counts(&self) -> Vec<(CellKey, u64)> {
        self.iter().map(|(row, cell, count)| (CellKey { group: [0; 2], row, cell }, count)).collect()
    }

    fn row(&self, row: u32) -> impl Iterator<Item = (usize, u64)> {
        self.0.range((row, 0)..(row + 1, 0)).map(|(&(_, cell), &count)| (cell as usize, count))
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
        let cells = (0..ROWS).flat_map(|row| self.row(net_latency_common::row(traffic, row)));
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
    (0..TRAFFIC_KINDS).flat_map(|traffic| (0..ROWS).map(move |row| (traffic, row)))
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

/// How many are 0, and the spans and counts of exponential buckets. The times of a bucket of the kernel side all go where its
/// middle is: a quantile is off by the width of a bucket of ours (9.1 %) and half of one of the kernel side's (6.7 %).
fn exponential(known: &[(usize, u64)]) -> (u64, Vec<BucketSpan>, Vec<i64>) {
    let mut zeroes = 0;
    let mut counts = BTreeMap::<i32, u64>::new();
    for &(bucket, count) in known {
        let seconds = middle(bucket) * NS;
        if seconds <= ZERO_THRESHOLD {
            zeroes += count;
        } else {
            // Bucket i ends at the power i / 2^SCHEMA of two, which is in it.
            let index = (seconds.log2() * f64::from(1 << SCHEMA)).ceil();
            *counts.entry(index as i32).or_default() += count;
        }
    }
    let (mut spans, mut deltas) = (Vec::<BucketSpan>::new(), Vec::new());
    let (mut next, mut before) = (0, 0);
    for (index, count) in counts {
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
    use net_latency_common::bucket;
    use proptest::prelude::*;

    use super::*;

    fn of(times: &[u64]) -> Cells {
        let mut cells = Cells::default();
        times.iter().for_each(|&ns| cells.count(0, bucket(ns) as u32, 1));
        cells
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
        cells.count(0, UNKNOWN as u32 + 2, 7);
        cells.count(0, NEVER as u32, 9);
        cells.count(1, UNKNOWN as u32, 3);
        assert_eq!(cells.histogram(0).expect("a time").sample_count, Some(1));
        cells.count(ROWS, UNKNOWN as u32, 100);
        assert_eq!(cells.unknown(0), [3, 0, 7, 0, 0, 0, 0, 0]);
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
