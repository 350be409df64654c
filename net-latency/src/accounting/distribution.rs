//! How times are distributed: which of them are told apart, and what a percentile is. Everything that shows one counts
//! here.

use net_latency_common::{NEVER, UNKNOWN, UNKNOWNS, Unknown, bounds};
use serde::Serialize;

/// The percentiles that tables show, of a thousand, and their names.
pub(crate) const PERCENTILES: [(u64, &str); 4] = [(500, "p50"), (900, "p90"), (990, "p99"), (999, "p99.9")];

/// Parts of each power of two where the user side counts, as a power of two: the middle of a bucket is within 0.8 % of
/// everything in it.
const FINE: u32 = 6;
/// Parts of each power of two where the kernel side counts, likewise.
const KERNEL: u32 = 3;

/// Counts of times by bucket: a bucket for each ns below twice `1 << BITS`, then `1 << BITS` of them for each power of two,
/// as the kernel side has them. Memory goes from the first bucket that was counted to the last, 8 bytes for each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Buckets<const BITS: u32> {
    /// The bucket of the first of `counts`.
    first: usize,
    counts: Vec<u64>,
    count: u64,
}

impl<const BITS: u32> Buckets<BITS> {
    const PARTS: u64 = 1 << BITS;

    /// The bucket of a time in ns. (A library's histogram takes 60 instructions to find its own, a tenth of what there is to
    /// do for a line.)
    #[inline]
    #[must_use]
    pub(crate) const fn bucket(ns: u64) -> usize {
        // That bit is set anyway, or makes no difference; without it the count of zeroes would need a test.
        let shift = (u64::BITS - (ns | Self::PARTS).leading_zeros()) - (BITS + 1);
        ((shift as u64) << BITS) as usize + (ns >> shift) as usize
    }

    /// The first and the last time of a bucket, ns.
    #[must_use]
    pub(crate) const fn times(bucket: usize) -> (u64, u64) {
        let bucket = bucket as u64;
        let shift = (bucket / Self::PARTS).saturating_sub(1);
        let from = (bucket - shift * Self::PARTS) << shift;
        (from, from + ((1 << shift) - 1))
    }

    /// The time that stands for a bucket's, ns.
    #[must_use]
    pub(crate) const fn middle(bucket: usize) -> u64 {
        let (from, to) = Self::times(bucket);
        from + (to - from) / 2
    }

    /// Nothing counted, and room for times up to this: counting them allocates nothing.
    #[must_use]
    pub(crate) fn with_room(longest_ns: u64) -> Self {
        Self { counts: vec![0; Self::bucket(longest_ns) + 1], ..Self::default() }
    }

    /// Forgets all and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.counts.fill(0);
        self.count = 0;
    }

    /// Counts N in a bucket.
    #[inline]
    pub(crate) fn add(&mut self, bucket: usize, count: u64) {
        self.count += count;
        match self.counts.get_mut(bucket.wrapping_sub(self.first)) {
            Some(sum) => *sum += count,
            None => *self.reach(bucket) += count,
        }
    }

    /// Makes room for a bucket that is out of those so far.
    #[cold]
    fn reach(&mut self, bucket: usize) -> &mut u64 {
        if self.counts.is_empty() {
            self.first = bucket;
        }
        let before = self.first.saturating_sub(bucket);
        self.counts.splice(..0, std::iter::repeat_n(0, before));
        self.first -= before;
        let place = bucket - self.first;
        self.counts.resize(self.counts.len().max(place + 1), 0);
        &mut self.counts[place]
    }

    /// Adds what another one counts.
    pub(crate) fn merge(&mut self, other: &Self) {
        other.iter().for_each(|(bucket, count)| self.add(bucket, count));
    }

    /// All together.
    #[must_use]
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Which of all times, the shortest being the first, N of a thousand (500: half of them) do not exceed.
    #[must_use]
    pub(crate) fn rank(&self, per_mille: u64) -> u64 {
        let rank = (u128::from(self.count) * u128::from(per_mille)).div_ceil(1000).max(1);
        u64::try_from(rank).unwrap_or(u64::MAX)
    }

    /// The bucket of the time that N of a thousand do not exceed; `None` without any.
    #[must_use]
    pub(crate) fn quantile(&self, per_mille: u64) -> Option<usize> {
        let rank = self.rank(per_mille);
        let mut passed = 0;
        let place = self.counts.iter().position(|count| {
            passed += count;
            passed >= rank
        })?;
        Some(self.first + place)
    }

    /// Each bucket that is not empty, and its count, in order.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (usize, u64)> {
        let all = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        all.map(|(place, &count)| (self.first + place, count))
    }
}

/// What a row of a table or a footer says of one time of many packets.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Packets whose time is known.
    pub count: u64,
    /// The shortest time in ns; `None` if none is known.
    pub min_ns: Option<u64>,
    /// What most do not exceed.
    pub percentiles: Percentiles,
    /// Packets whose time is unknown.
    pub unknown: u64,
    /// Those whose reason is known, by its discriminant.
    pub reasons: [u64; UNKNOWNS],
}

impl Figures {
    /// The shortest time, the percentiles and the longest, as tables show them.
    #[must_use]
    pub fn times(&self) -> [Option<u64>; 6] {
        let Percentiles { p50_ns, p90_ns, p99_ns, p999_ns, max_ns } = self.percentiles;
        [self.min_ns, p50_ns, p90_ns, p99_ns, p999_ns, max_ns]
    }
}

/// What half, 90 %, 99 %, 99.9 % and all do not exceed, in ns; `None` if no time is known, or where there is no bound.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Percentiles {
    pub p50_ns: Option<u64>,
    pub p90_ns: Option<u64>,
    pub p99_ns: Option<u64>,
    pub p999_ns: Option<u64>,
    pub max_ns: Option<u64>,
}

impl Percentiles {
    fn new(quantile: impl Fn(u64) -> Option<u64>, max_ns: Option<u64>) -> Self {
        let [p50_ns, p90_ns, p99_ns, p999_ns] = PERCENTILES.map(|(per_mille, _)| quantile(per_mille));
        Self { p50_ns, p90_ns, p99_ns, p999_ns, max_ns }
    }
}

/// Times that were counted one by one, and packets that lack one: percentiles are right to within 1 %, the shortest and the
/// longest are exact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Times {
    buckets: Buckets<FINE>,
    min_ns: u64,
    max_ns: u64,
    unknown: u64,
    /// Those of `unknown` whose reason is known.
    reasons: [u64; UNKNOWNS],
}

impl Default for Times {
    fn default() -> Self {
        Self { buckets: Buckets::default(), min_ns: u64::MAX, max_ns: 0, unknown: 0, reasons: [0; UNKNOWNS] }
    }
}

impl Times {
    /// No times, and room for those up to 73 minutes (about 18 KiB): counting them allocates nothing.
    #[must_use]
    pub fn with_room() -> Self {
        Self { buckets: Buckets::with_room((1 << 42) - 1), ..Self::default() }
    }

    /// Forgets all times and keeps the memory.
    pub fn clear(&mut self) {
        self.buckets.clear();
        (self.min_ns, self.max_ns, self.unknown) = (u64::MAX, 0, 0);
        self.reasons.fill(0);
    }

    /// Counts a time.
    #[inline]
    pub fn add(&mut self, ns: u64) {
        self.buckets.add(Buckets::<FINE>::bucket(ns), 1);
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

    /// Adds what another one counts.
    pub fn merge(&mut self, other: &Self) {
        self.buckets.merge(&other.buckets);
        (self.min_ns, self.max_ns) = (self.min_ns.min(other.min_ns), self.max_ns.max(other.max_ns));
        self.unknown += other.unknown;
        add(&mut self.reasons, &other.reasons);
    }

    /// Known times.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.count()
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

    /// The shortest time; `None` without any.
    #[must_use]
    pub fn min(&self) -> Option<u64> {
        (self.count() > 0).then_some(self.min_ns)
    }

    /// The longest time; `None` without any.
    #[must_use]
    pub fn max(&self) -> Option<u64> {
        (self.count() > 0).then_some(self.max_ns)
    }

    /// The time that N of a thousand (500: half of them) do not exceed; `None` without any.
    #[must_use]
    pub fn quantile(&self, per_mille: u64) -> Option<u64> {
        // The last one is known exactly.
        if self.buckets.rank(per_mille) == self.count() {
            return self.max();
        }
        // The middle may lie beyond anything that was seen.
        let middle = Buckets::<FINE>::middle(self.buckets.quantile(per_mille)?);
        Some(middle.clamp(self.min_ns, self.max_ns))
    }

    /// All of it in a row.
    #[must_use]
    pub fn figures(&self) -> Figures {
        Figures {
            count: self.count(),
            min_ns: self.min(),
            percentiles: Percentiles::new(|per_mille| self.quantile(per_mille), self.max()),
            unknown: self.unknown,
            reasons: self.reasons,
        }
    }

    /// Each bucket that is not empty: its first time, its last, and its count.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        self.buckets.iter().map(|(bucket, count)| {
            let (from, to) = Buckets::<FINE>::times(bucket);
            (from, to, count)
        })
    }
}

/// Times that the kernel side has counted by bucket, and packets that have none: one row of a kind of traffic. A time may be
/// shorter than the end of its bucket by an eighth at most.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KernelTimes {
    buckets: Buckets<KERNEL>,
    /// By reason.
    unknown: [u64; UNKNOWNS],
    never: u64,
}

impl KernelTimes {
    /// From the cells of one row and their counts ([`net_latency_common::CellKey`]).
    pub(crate) fn of(cells: impl IntoIterator<Item = (u32, u64)>) -> Self {
        let mut times = Self::default();
        for (cell, count) in cells {
            match cell as usize {
                bucket @ ..UNKNOWN => times.buckets.add(bucket, count),
                reason @ UNKNOWN..NEVER => times.unknown[reason - UNKNOWN] = count,
                _ => times.never = count,
            }
        }
        times
    }

    /// Known times.
    #[must_use]
    pub(crate) fn count(&self) -> u64 {
        self.buckets.count()
    }

    /// Packets whose time is unknown.
    #[must_use]
    pub(crate) fn unknown(&self) -> u64 {
        self.unknown.iter().sum()
    }

    /// Packets whose time is unknown, by reason.
    #[must_use]
    pub(crate) fn reasons(&self) -> &[u64; UNKNOWNS] {
        &self.unknown
    }

    /// All packets, with those that never had such a time.
    #[must_use]
    pub(crate) fn packets(&self) -> u64 {
        self.count() + self.unknown() + self.never
    }

    /// The end of the bucket that holds the time that N of a thousand (500: half of them) do not exceed: `u64::MAX`
    /// if it has none.
    #[must_use]
    pub(crate) fn quantile(&self, per_mille: u64) -> Option<u64> {
        self.buckets.quantile(per_mille).map(|bucket| bounds(bucket).1)
    }

    /// The start of the first bucket that is not empty.
    #[must_use]
    pub(crate) fn min(&self) -> Option<u64> {
        self.buckets().next().map(|(start, ..)| start)
    }

    /// The end of the last bucket that is not empty.
    #[must_use]
    pub(crate) fn max(&self) -> Option<u64> {
        self.buckets().next_back().map(|(_, end, _)| end)
    }

    /// All of it in a row; bounds of buckets stand for the times.
    #[must_use]
    pub(crate) fn figures(&self) -> Figures {
        // A time beyond all buckets has no end.
        let end = |ns: Option<u64>| ns.filter(|ns| *ns != u64::MAX);
        Figures {
            count: self.count(),
            min_ns: self.min(),
            percentiles: Percentiles::new(|per_mille| end(self.quantile(per_mille)), end(self.max())),
            unknown: self.unknown(),
            reasons: self.unknown,
        }
    }

    /// All times together, each taken as the middle of its bucket; as the start of the last one, which has no end.
    #[must_use]
    pub(crate) fn sum(&self) -> u128 {
        let middle = |start: u64, end| match end {
            u64::MAX => u128::from(start),
            _ => u128::midpoint(start.into(), (end - 1).into()),
        };
        self.buckets().map(|(start, end, count)| middle(start, end) * u128::from(count)).sum()
    }

    /// Each bucket that is not empty: where it begins, where it ends (`u64::MAX`: nowhere), and its count.
    pub(crate) fn buckets(&self) -> impl DoubleEndedIterator<Item = (u64, u64, u64)> {
        self.buckets.iter().map(|(bucket, count)| {
            let (start, end) = bounds(bucket);
            (start, end, count)
        })
    }

    /// Each power of two from the first that is not empty to the last: where it begins, where it ends, and its count.
    pub(crate) fn doublings(&self) -> Vec<(u64, u64, u64)> {
        const PARTS: usize = 1 << KERNEL;
        let mut doublings: Vec<(u64, u64, u64)> = Vec::new();
        let mut next = None;
        for (bucket, count) in self.buckets.iter() {
            let doubling = bucket / PARTS;
            for between in next.unwrap_or(doubling)..=doubling {
                let end = bounds(between * PARTS + PARTS - 1).1;
                doublings.push((bounds(between * PARTS).0, end, 0));
            }
            next = Some(doubling + 1);
            if let Some(last) = doublings.last_mut() {
                last.2 += count;
            }
        }
        doublings
    }

    /// Adds what another one counts.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.buckets.merge(&other.buckets);
        add(&mut self.unknown, &other.unknown);
        self.never += other.never;
    }
}

fn add(sums: &mut [u64; UNKNOWNS], counts: &[u64; UNKNOWNS]) {
    sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
}

#[cfg(test)]
mod tests {
    use net_latency_common::BUCKETS;
    use proptest::prelude::*;

    use super::*;

    fn of(all: &[u64]) -> Times {
        let mut times = Times::default();
        all.iter().for_each(|ns| times.add(*ns));
        times
    }

    fn of_kernel(all: &[u64]) -> KernelTimes {
        let mut sum = KernelTimes::default();
        let one = |ns: u64| KernelTimes::of([(net_latency_common::bucket(ns) as u32, 1)]);
        all.iter().for_each(|ns| sum.merge(&one(*ns)));
        sum
    }

    fn times() -> impl Strategy<Value = Vec<u64>> {
        let time = prop_oneof![0..200u64, 0..10_000_000_000u64, any::<u64>()];
        proptest::collection::vec(time, 1..200)
    }

    fn join_without_gaps<const BITS: u32>() {
        let mut next = 0;
        for bucket in 0..=Buckets::<BITS>::bucket(u64::MAX) {
            let (from, to) = Buckets::<BITS>::times(bucket);
            assert_eq!(from, next, "{bucket}");
            assert_eq!([from, to].map(Buckets::<BITS>::bucket), [bucket; 2]);
            assert!(to - from <= from >> BITS, "{bucket}");
            next = to.wrapping_add(1);
        }
        assert_eq!(next, 0);
    }

    #[test]
    fn buckets_join_without_gaps() {
        join_without_gaps::<FINE>();
        join_without_gaps::<4>();
        join_without_gaps::<KERNEL>();
    }

    #[test]
    fn the_middle_is_within_eight_per_mille() {
        for bucket in 0..=Buckets::<FINE>::bucket(u64::MAX) {
            let (from, to) = Buckets::<FINE>::times(bucket);
            assert!(to - Buckets::<FINE>::middle(bucket) <= from / 125, "{bucket}");
        }
    }

    #[test]
    fn the_kernel_side_has_the_same_buckets() {
        // Its last has no end.
        for bucket in 0..BUCKETS - 1 {
            let (from, to) = Buckets::<KERNEL>::times(bucket);
            assert_eq!(bounds(bucket), (from, to + 1));
            assert_eq!([from, to].map(net_latency_common::bucket), [bucket; 2]);
        }
    }

    #[test]
    fn nothing_has_no_percentiles() {
        assert_eq!((of(&[]).quantile(500), of(&[]).min(), of(&[]).max()), (None, None, None));
        assert_eq!((of(&[0]).quantile(500), of(&[0]).max()), (Some(0), Some(0)));
        let nothing = KernelTimes::default();
        assert_eq!(
            (nothing.count(), nothing.quantile(500), nothing.min(), nothing.max()),
            (0, None, None, None)
        );
        assert_eq!(nothing.doublings(), []);
    }

    #[test]
    fn a_percentile_is_never_beyond_the_maximum() {
        assert_eq!(of(&[1_000_001]).quantile(990), Some(1_000_001));
        // All in a bucket whose middle is beyond them, then before them.
        assert_eq!(of(&[1_000_001; 2]).quantile(500), Some(1_000_001));
        assert_eq!(of(&[1_007_000; 2]).quantile(500), Some(1_007_000));
        assert_eq!(of(&[u64::MAX; 2]).quantile(500), Some(u64::MAX));
    }

    #[test]
    fn cleared_is_as_new() {
        let mut times = Times::with_room();
        times.add(7);
        times.add_unknown(Some(Unknown::NoStamp));
        times.clear();
        assert_eq!((times.count(), times.quantile(500), times.min(), times.max()), (0, None, None, None));
        assert_eq!((times.unknown(), times.reasons()), (0, &[0; UNKNOWNS]));
        times.add(9);
        assert_eq!((times.min(), times.quantile(500), times.max()), (Some(9), Some(9), Some(9)));
    }

    #[test]
    fn packets_without_a_time_are_counted_apart() {
        let cells = [(net_latency_common::bucket(9) as u32, 2), (UNKNOWN as u32, 3), (NEVER as u32, 4)];
        let times = KernelTimes::of(cells);
        assert_eq!((times.count(), times.unknown(), times.packets()), (2, 3, 9));
        assert_eq!((times.min(), times.max(), times.sum()), (Some(9), Some(10), 18));
    }

    #[test]
    fn doublings_have_no_gaps() {
        let doublings = of_kernel(&[5, 16, 31, 100, u64::MAX]).doublings();
        assert_eq!(doublings[..5], [(0, 8, 1), (8, 16, 0), (16, 32, 2), (32, 64, 0), (64, 128, 1)]);
        assert_eq!(doublings.last(), Some(&(1 << 42, u64::MAX, 1)));
        assert!(doublings.windows(2).all(|two| two[0].1 == two[1].0), "{doublings:?}");
    }

    proptest! {
        #[test]
        fn percentiles_are_right_to_one_percent(mut all in times()) {
            let times = of(&all);
            let mut with_room = Times::with_room();
            all.iter().for_each(|ns| with_room.add(*ns));
            all.sort_unstable();
            prop_assert_eq!((times.min(), times.max()), (all.first().copied(), all.last().copied()));
            for per_mille in [1, 500, 900, 990, 999, 1000] {
                let exact = all[(all.len() * per_mille).div_ceil(1000) - 1];
                let shown = times.quantile(per_mille as u64).expect("not empty");
                prop_assert!(shown.abs_diff(exact) <= exact / 100, "{}: {}, not {}", per_mille, shown, exact);
                prop_assert_eq!(with_room.quantile(per_mille as u64), Some(shown));
            }
        }

        #[test]
        fn merged_is_as_added_together(one in times(), other in times()) {
            let with_unknown = |all: &[u64], reasons: &[Option<Unknown>]| {
                let mut times = of(all);
                reasons.iter().for_each(|reason| times.add_unknown(*reason));
                times
            };
            let mut merged = with_unknown(&one, &[None, Some(Unknown::NoStamp)]);
            merged.merge(&with_unknown(&other, &[Some(Unknown::Ambiguous)]));
            let reasons = [None, Some(Unknown::NoStamp), Some(Unknown::Ambiguous)];
            prop_assert_eq!(merged, with_unknown(&[one, other].concat(), &reasons));
        }

        #[test]
        fn the_kernel_sides_are_an_eighth_too_long_at_most(
            mut all in proptest::collection::vec(1..1_000_000_000_000u64, 1..200),
        ) {
            let times = of_kernel(&all);
            all.sort_unstable();
            prop_assert_eq!(times.count(), all.len() as u64);
            for per_mille in [1, 500, 900, 990, 999, 1000] {
                let exact = all[(all.len() * per_mille).div_ceil(1000) - 1];
                let shown = times.quantile(per_mille as u64).expect("not empty");
                prop_assert!(exact < shown && shown <= exact + (exact / 8).max(1), "{exact}: {shown}");
            }
            prop_assert_eq!(times.max(), times.quantile(1000));
            prop_assert_eq!(times.doublings().iter().map(|(.., count)| count).sum::<u64>(), all.len() as u64);
        }
    }
}
