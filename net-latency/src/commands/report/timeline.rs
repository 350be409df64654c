//! Latency over time: one slice per stretch of time, in a number that stays bounded whatever the span.

use std::{collections::VecDeque, time::Duration};

use net_latency_common::Direction;

use crate::accounting::Times;

/// Slices at most.
const MOST: usize = 360;

const MS: i64 = 1_000_000;
const S: i64 = 1_000 * MS;
const MIN: i64 = 60 * S;
const H: i64 = 60 * MIN;
const DAY: i64 = 24 * H;
/// Widths that people count in. Each is a multiple of the one before, so that slices can be joined.
const WIDTHS: [i64; 18] = [
    MS,
    5 * MS,
    10 * MS,
    50 * MS,
    100 * MS,
    500 * MS,
    S,
    5 * S,
    10 * S,
    30 * S,
    MIN,
    5 * MIN,
    10 * MIN,
    30 * MIN,
    H,
    6 * H,
    DAY,
    10 * DAY,
];

/// What finished in one stretch of time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Slice {
    pub(super) incoming: Times,
    pub(super) outgoing: Times,
}

impl Slice {
    pub(super) fn of(&self, direction: Direction) -> &Times {
        match direction {
            Direction::In => &self.incoming,
            Direction::Out => &self.outgoing,
        }
    }

    fn merge(&mut self, other: &Self) {
        self.incoming.merge(&other.incoming);
        self.outgoing.merge(&other.outgoing);
    }
}

/// Total times by when they were finished, whatever order they come in.
#[derive(Debug)]
pub(super) struct Timeline {
    /// Width of the narrowest slices in ns, if one was requested; else the first of [`WIDTHS`].
    narrowest: Option<i64>,
    /// How often they have been widened.
    step: usize,
    /// Number of the first slice, counted from 1970 in slices.
    first: i64,
    slices: VecDeque<Slice>,
}

impl Timeline {
    /// Nothing yet, in slices of this width, if there is one, as long as they are not too many.
    pub(super) fn new(width: Option<Duration>) -> Self {
        let narrowest = width.map(|width| i64::try_from(width.as_nanos()).unwrap_or(i64::MAX));
        Self { narrowest, step: 0, first: 0, slices: VecDeque::new() }
    }

    pub(super) fn add(&mut self, wall_ns: i64, direction: Direction, total_ns: u64) {
        let slice = self.slice(wall_ns);
        match direction {
            Direction::In => slice.incoming.add(total_ns),
            Direction::Out => slice.outgoing.add(total_ns),
        }
    }

    /// Width of a slice in ns.
    pub(super) fn width_ns(&self) -> i64 {
        width(self.narrowest, self.step)
    }

    /// All slices in order, empty ones included, each with the time at which it begins.
    pub(super) fn slices(&self) -> impl Iterator<Item = (i64, &Slice)> {
        let starts = (self.first..).map(|number| number.saturating_mul(self.width_ns()));
        starts.zip(&self.slices)
    }

    fn slice(&mut self, wall_ns: i64) -> &mut Slice {
        loop {
            let number = wall_ns.div_euclid(self.width_ns());
            if self.slices.is_empty() {
                self.first = number;
                self.slices.push_back(Slice::default());
            }
            let last = self.first + self.slices.len() as i64 - 1;
            if number.max(last) - number.min(self.first) >= MOST as i64 {
                self.widen();
                continue;
            }
            for _ in number..self.first {
                self.slices.push_front(Slice::default());
            }
            for _ in last..number {
                self.slices.push_back(Slice::default());
            }
            self.first = self.first.min(number);
            let place = usize::try_from(number - self.first).expect("the first has the least number");
            return &mut self.slices[place];
        }
    }

    fn widen(&mut self) {
        let old = self.width_ns();
        self.step += 1;
        let times = self.width_ns() / old;
        let first = self.first.div_euclid(times);
        let mut joined = VecDeque::<Slice>::new();
        for (number, slice) in (self.first..).zip(&self.slices) {
            let place = usize::try_from(number.div_euclid(times) - first).expect("they ascend");
            match joined.get_mut(place) {
                Some(into) => into.merge(slice),
                None => joined.push_back(slice.clone()),
            }
        }
        (self.first, self.slices) = (first, joined);
    }
}

/// Beyond [`WIDTHS`], and of a width that was requested, each step doubles the last.
fn width(narrowest: Option<i64>, step: usize) -> i64 {
    let doubled = |width: i64, times: usize| width.saturating_mul(1 << times.min(62));
    match (narrowest, WIDTHS.get(step)) {
        (Some(narrowest), _) => doubled(narrowest, step),
        (None, Some(width)) => *width,
        (None, None) => doubled(WIDTHS[WIDTHS.len() - 1], step + 1 - WIDTHS.len()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_width_holds_whole_ones_of_the_one_before() {
        for narrowest in [None, Some(7 * S)] {
            for step in 1..22 {
                let [one, next] = [step - 1, step].map(|step| width(narrowest, step));
                assert!(next > one && next % one == 0, "{step}");
            }
        }
    }

    #[test]
    fn the_longest_span_has_room() {
        for width in [None, Some(Duration::from_millis(1)), Some(Duration::MAX)] {
            let mut timeline = Timeline::new(width);
            for wall_ns in [i64::MAX, i64::MIN, 0] {
                timeline.add(wall_ns, Direction::In, 1);
            }
            assert!(timeline.slices().count() <= MOST);
            assert_eq!(timeline.slices().map(|(_, slice)| slice.incoming.count()).sum::<u64>(), 3);
        }
    }

    proptest! {
        #[test]
        fn every_time_is_in_its_slice_whatever_the_order(
            times in proptest::collection::vec((0..100_000_000_000i64, any::<bool>(), 0..1_000_000u64), 1..60),
            scale in 1..100_000i64,
            asked in proptest::option::of(1_000_000..100_000_000_000u64),
        ) {
            let asked = asked.map(Duration::from_nanos);
            let mut timeline = Timeline::new(asked);
            for &(at, out, ns) in &times {
                timeline.add(at * scale, if out { Direction::Out } else { Direction::In }, ns);
            }
            let width = timeline.width_ns();
            prop_assert!(timeline.slices().count() <= MOST);
            // As fine as the span allows.
            let (first, last) = (times.iter().map(|time| time.0 * scale).min(), times.iter().map(|time| time.0 * scale).max());
            let span = last.expect("one") - first.expect("one");
            let narrower = timeline.step.checked_sub(1).map(|step| super::width(timeline.narrowest, step));
            prop_assert!(narrower.is_none_or(|narrower| span >= narrower * (MOST as i64 - 1)));
            prop_assert_eq!(asked.filter(|_| narrower.is_none()).is_none_or(|asked| asked.as_nanos() == width as u128), true);
            for (start, slice) in timeline.slices() {
                let of = |out: bool| {
                    let mut expected = Times::default();
                    let here = times.iter().filter(|time| (start..start + width).contains(&(time.0 * scale)));
                    here.filter(|time| time.1 == out).for_each(|time| expected.add(time.2));
                    expected
                };
                prop_assert_eq!(&slice.incoming, &of(false));
                prop_assert_eq!(&slice.outgoing, &of(true));
            }
        }
    }
}
