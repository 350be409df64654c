//! The traffic of one process or connection over the last few slices of time: counts, percentiles, and a longer trend of its slowest
//! packets. Empty slices take no memory.

use std::{array, collections::VecDeque};

use net_latency_common::{Direction, PART_DRIVER, PART_NET};

use crate::accounting::{
    Buckets,
    exchanges::{Answers, Role, Unanswered},
    tcp::News,
};
use crate::packet::event::{COLUMNS, Event, PARTS};

/// Slices that make the window over which everything is computed.
pub(super) const SLICES: u64 = 10;
/// Slices that the trend goes back.
pub(super) const TREND: usize = 60;
/// The stages, the total behind them, the parts of fine stages behind that, and what connections show beside.
pub(super) const TIMES: usize = TRANSIT + 1;
/// Index of the total among the times.
pub(super) const TOTAL: usize = COLUMNS;
/// Index of the first part among the times.
pub(super) const FIRST_PART: usize = COLUMNS + 1;
/// Index of how long answers took: in, a client's response times; out, a server's service times.
pub(super) const ANSWER: usize = FIRST_PART + PARTS;
/// Index of the smoothed round-trip time of sent packets.
pub(super) const RTT: usize = ANSWER + 1;
/// Index of how long received packets took from their sender's device, where this host has that too.
pub(super) const TRANSIT: usize = RTT + 1;

/// Counts of a time, coarser than elsewhere, since each row has ten slices of eight of them: percentiles are right to
/// within 3 %.
type Counts = Buckets<4>;
/// Buckets that any time in ns falls into.
const BUCKETS: usize = Counts::bucket(u64::MAX) + 1;

/// Traffic over time.
#[derive(Clone, Debug)]
pub(super) struct Traffic {
    /// Those with packets, the newest last.
    slices: VecDeque<Slice>,
    /// Longest total of each slice in each direction, in ns, by slice number modulo its length; 0 without packets.
    trend: [[u64; TREND]; 2],
    /// Number of the newest slice with packets.
    newest: u64,
}

#[derive(Clone, Debug)]
struct Slice {
    number: u64,
    ways: [Way; 2],
    /// The histograms of all times in both directions, sorted; only those that are not 0.
    cells: Vec<Cell>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Way {
    packets: u64,
    /// Those of them whose bytes TCP had sent before.
    sent_again: u64,
    /// Segments that the peer had already.
    needless: u64,
    /// Exchanges whose time is known, and those that overlap others.
    answers: u64,
    interleaved: u64,
    sums: [u64; TIMES],
    maxima: [u64; TIMES],
}

/// How many packets fell into one bucket of one histogram.
#[derive(Clone, Copy, Debug)]
struct Cell {
    place: u32,
    count: u32,
}

/// What the window says about one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Figures {
    /// Packets.
    pub(super) packets: u64,
    /// By stage, and of the total; `None` where no packet had both its stamps.
    pub(super) times: [Option<Spread>; TIMES],
    /// The stage in which most of the time was spent, and its share in percent.
    pub(super) dominant: Option<(usize, u8)>,
}

/// How times are distributed, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Spread {
    pub(super) p50: u64,
    pub(super) p99: u64,
    /// Exact.
    pub(super) max: u64,
}

impl Traffic {
    pub(super) fn new(slice: u64) -> Self {
        Self { slices: VecDeque::new(), trend: [[0; TREND]; 2], newest: slice }
    }

    /// Adds a packet to slice `now`, which is never before the newest.
    pub(super) fn record(&mut self, event: &Event<'_>, now: u64) {
        if now - self.newest >= TREND as u64 {
            self.trend = [[0; TREND]; 2];
        }
        for passed in self.newest + 1..=now.min(self.newest + TREND as u64) {
            self.trend.iter_mut().for_each(|trend| trend[passed as usize % TREND] = 0);
        }
        self.newest = now;
        let slice = match self.slices.back() {
            Some(slice) if slice.number == now => self.slices.back_mut(),
            _ => {
                let mut slice = self.expire(now).unwrap_or_else(Slice::new);
                slice.number = now;
                self.slices.push_back(slice);
                self.slices.back_mut()
            }
        };
        let Some(slice) = slice else { return };
        let direction = event.direction() as usize;
        slice.record(direction, event);
        if event.is_retransmission() {
            return;
        }
        // A packet whose total is unknown still shows that there was one.
        let total = event.total_ns().unwrap_or(0).max(1);
        let trend = &mut self.trend[direction][now as usize % TREND];
        *trend = total.max(*trend);
    }

    /// Adds what the newest packet has told about its connection.
    pub(super) fn hear(&mut self, news: &News) {
        let Some(slice) = self.slices.back_mut() else { return };
        let [_, out] = &mut slice.ways;
        out.needless += news.needless;
        if let Some(ns) = news.rtt_ns {
            slice.add(Direction::Out as usize, RTT, ns);
        }
        let Some((role, outcome)) = news.answer else { return };
        let way = match role {
            Role::Client => Direction::In as usize,
            Role::Server => Direction::Out as usize,
        };
        match outcome {
            Ok(ns) => {
                slice.ways[way].answers += 1;
                slice.add(way, ANSWER, ns);
            }
            Err(Unanswered::Interleaved) => slice.ways[way].interleaved += 1,
            Err(_) => {}
        }
    }

    /// Adds how long one of the newest packets took from its sender's device.
    pub(super) fn add_transit(&mut self, ns: u64) {
        if let Some(slice) = self.slices.back_mut() {
            slice.add(Direction::In as usize, TRANSIT, ns);
        }
    }

    /// Drops slices that are out of the window.
    pub(super) fn prune(&mut self, now: u64) {
        drop(self.expire(now));
    }

    /// Drops slices that are out of the window; returns the memory of one, emptied.
    fn expire(&mut self, now: u64) -> Option<Slice> {
        let mut old = None;
        while self.slices.front().is_some_and(|slice| slice.number + SLICES <= now) {
            old = self.slices.pop_front();
        }
        old.map(Slice::emptied)
    }

    /// Slices since the last packet.
    pub(super) fn idle(&self, now: u64) -> u64 {
        now - self.newest
    }

    /// Entries of histograms that are kept.
    pub(super) fn cells(&self) -> usize {
        self.slices.iter().map(|slice| slice.cells.capacity()).sum()
    }

    /// Packets of the window that ends in slice `now`.
    pub(super) fn packets(&self, direction: Direction, now: u64) -> u64 {
        self.window(now).map(|slice| slice.ways[direction as usize].packets).sum()
    }

    /// Those of the window's packets whose bytes TCP had sent before: they are in no time.
    pub(super) fn sent_again(&self, now: u64) -> u64 {
        self.window(now).map(|slice| slice.ways[Direction::Out as usize].sent_again).sum()
    }

    /// Segments of the window that were sent again needlessly.
    pub(super) fn needless(&self, now: u64) -> u64 {
        self.window(now).map(|slice| slice.ways[Direction::Out as usize].needless).sum()
    }

    /// Whether requests and answers take turns: others may overlap too, and not show it.
    fn takes_turns(&self, way: usize, now: u64) -> bool {
        let sum = |count: fn(&Way) -> u64| self.window(now).map(|slice| count(&slice.ways[way])).sum::<u64>();
        Answers::take_turns(sum(|way| way.interleaved), sum(|way| way.answers))
    }

    fn window(&self, now: u64) -> impl Iterator<Item = &Slice> {
        self.slices.iter().filter(move |slice| slice.number + SLICES > now)
    }

    /// All about one direction in the window that ends in slice `now`.
    pub(super) fn figures(&self, direction: Direction, now: u64) -> Figures {
        let way = direction as usize;
        let mut sums = [0u64; TIMES];
        for slice in self.window(now) {
            for (sum, of_slice) in sums.iter_mut().zip(slice.ways[way].sums) {
                *sum = sum.saturating_add(of_slice);
            }
        }
        Figures {
            packets: self.packets(direction, now),
            times: array::from_fn(|time| {
                let is_known = time != ANSWER || self.takes_turns(way, now);
                is_known.then(|| self.spread(way, time, now))?
            }),
            dominant: dominant(&own(direction, sums)),
        }
    }

    fn spread(&self, way: usize, time: usize, now: u64) -> Option<Spread> {
        let mut counts = Counts::default();
        let mut max = 0;
        for slice in self.window(now) {
            max = max.max(slice.ways[way].maxima[time]);
            for cell in slice.histogram(way, time) {
                counts.add(cell.place as usize % (1 << BUCKET_BITS), cell.count.into());
            }
        }
        // The middle of a bucket may lie beyond anything that was seen.
        let quantile = |per_mille| Some(Counts::middle(counts.quantile(per_mille)?).min(max));
        Some(Spread { p50: quantile(500)?, p99: quantile(990)?, max })
    }

    /// The longest total of each of the last slices, the newest (`now`) last; `None` where there was no packet.
    pub(super) fn trend(&self, direction: Direction, now: u64) -> [Option<u64>; TREND] {
        array::from_fn(|place| {
            let number = (now + 1 + place as u64).checked_sub(TREND as u64)?;
            let worst = self.trend[direction as usize][number as usize % TREND];
            // Slices behind the newest are those of one round ago.
            (number <= self.newest && worst > 0).then_some(worst)
        })
    }
}

/// Bits of a cell's place that name the bucket; those above name the time, the highest the direction.
const BUCKET_BITS: u32 = 13;

impl Slice {
    fn new() -> Self {
        Self { number: 0, ways: [Way::default(); 2], cells: Vec::new() }
    }

    fn emptied(mut self) -> Self {
        self.cells.clear();
        Self { number: 0, ways: [Way::default(); 2], cells: self.cells }
    }

    fn record(&mut self, direction: usize, event: &Event<'_>) {
        let way = &mut self.ways[direction];
        way.packets += 1;
        // Percentiles are those of first sends.
        if event.is_retransmission() {
            way.sent_again += 1;
            return;
        }
        let parts = event.parts().unwrap_or_default();
        for (time, ns) in event.stages().into_iter().chain([event.total_ns()]).chain(parts).enumerate() {
            if let Some(ns) = ns {
                self.add(direction, time, ns);
            }
        }
    }

    fn add(&mut self, direction: usize, time: usize, ns: u64) {
        let way = &mut self.ways[direction];
        way.sums[time] = way.sums[time].saturating_add(ns);
        way.maxima[time] = way.maxima[time].max(ns);
        let place = first_place(direction, time) + Counts::bucket(ns) as u32;
        match self.cells.binary_search_by_key(&place, |cell| cell.place) {
            Ok(found) => self.cells[found].count = self.cells[found].count.saturating_add(1),
            Err(at) => self.cells.insert(at, Cell { place, count: 1 }),
        }
    }

    fn histogram(&self, way: usize, time: usize) -> &[Cell] {
        let first = first_place(way, time);
        let start = self.cells.partition_point(|cell| cell.place < first);
        let len = self.cells[start..].partition_point(|cell| cell.place < first + BUCKETS as u32);
        &self.cells[start..start + len]
    }
}

/// The place of the first bucket of a histogram.
fn first_place(way: usize, time: usize) -> u32 {
    ((way * TIMES + time) << BUCKET_BITS) as u32
}

const _: () = assert!(BUCKETS <= 1 << BUCKET_BITS);

/// The sums of times that are in no other of them: without the total, and without what parts tell more about.
fn own(direction: Direction, mut sums: [u64; TIMES]) -> [u64; TIMES] {
    sums[TOTAL] = 0;
    sums[ANSWER..].fill(0);
    match direction {
        Direction::In => {
            let parts = sums[FIRST_PART..].iter().fold(0, |sum: u64, part| sum.saturating_add(*part));
            sums[COLUMNS - 1] = sums[COLUMNS - 1].saturating_sub(parts);
        }
        // The way through the network begins with the driver's call.
        Direction::Out if sums[FIRST_PART + PART_NET] > 0 => sums[FIRST_PART + PART_DRIVER] = 0,
        Direction::Out => {}
    }
    sums
}

fn dominant(sums: &[u64]) -> Option<(usize, u8)> {
    let all: u128 = sums.iter().copied().map(u128::from).sum();
    // The first of equals.
    let (stage, most) = sums.iter().enumerate().rev().max_by_key(|(_, sum)| **sum)?;
    let share = (u128::from(*most) * 100 + all / 2).checked_div(all)?;
    Some((stage, u8::try_from(share).ok()?))
}

#[cfg(test)]
mod tests {
    use net_latency_common::{FLAG_RETRANS, PacketRecord, STAMP_DRV};
    use proptest::prelude::*;

    use super::*;
    use crate::packet::event::fixtures::{incoming, outgoing};

    /// An incoming packet that takes `ns` in its last stage and 3 ns before.
    fn taking(ns: u64) -> PacketRecord {
        PacketRecord { stamps: [1_000, 1_001, 1_003, 1_003 + ns], ..incoming() }
    }

    fn record(traffic: &mut Traffic, record: &PacketRecord, slice: u64) {
        traffic.record(&Event::new(record, 0, None), slice);
    }

    #[test]
    fn parts_take_the_place_of_what_they_split() {
        let mut traffic = Traffic::new(0);
        let into = taking(1_000);
        let parts = [100, 700, 150, 50];
        traffic.record(&Event::new(&into, 0, None).with_parts(Some(&parts)), 0);
        let figures = traffic.figures(Direction::In, 0);
        assert_eq!(figures.times[FIRST_PART + 1].map(|spread| spread.max), Some(700));
        // 3 ns before, and nothing that no part has.
        assert_eq!(figures.dominant, Some((FIRST_PART + 1, 70)));
        // The last stage of a second packet is not split: most is there.
        traffic.record(&Event::new(&into, 0, None), 0);
        assert_eq!(traffic.figures(Direction::In, 0).dominant, Some((2, 50)));

        // Of 12 us in the columns, 3 in the queue, and 20 from the driver's call on, of which that took 5.
        traffic.record(&Event::new(&outgoing(), 0, None).with_parts(Some(&[3_000, 5_000, 20_000, 1])), 0);
        let figures = traffic.figures(Direction::Out, 0);
        assert_eq!(figures.dominant, Some((FIRST_PART + PART_NET, 57)));
        assert_eq!(figures.times[FIRST_PART + PARTS - 1], None);
    }

    #[test]
    fn percentiles_are_those_of_the_packets() {
        let mut traffic = Traffic::new(0);
        for n in 1..=1000u64 {
            record(&mut traffic, &taking(n * 1_000), n / 200);
        }
        let figures = traffic.figures(Direction::In, 5);
        assert_eq!(figures.packets, 1000);
        let app = figures.times[2].expect("known");
        assert!((485_000..=515_000).contains(&app.p50), "{app:?}");
        assert!((960_000..=1_000_000).contains(&app.p99), "{app:?}");
        assert_eq!(app.max, 1_000_000);
        assert_eq!(figures.times[0], Some(Spread { p50: 1, p99: 1, max: 1 }));
        assert_eq!(figures.times[1], Some(Spread { p50: 2, p99: 2, max: 2 }));
        assert_eq!(figures.times[TOTAL].expect("known").max, 1_000_003);
        assert_eq!(figures.dominant, Some((2, 100)));
        assert_eq!(traffic.figures(Direction::Out, 5), Figures::default());
    }

    #[test]
    fn both_directions_have_their_own() {
        let mut traffic = Traffic::new(0);
        record(&mut traffic, &taking(5_000), 0);
        record(&mut traffic, &outgoing(), 0);
        assert_eq!(traffic.figures(Direction::In, 0).dominant, Some((2, 100)));
        let out = traffic.figures(Direction::Out, 0);
        assert_eq!((out.packets, out.dominant), (1, Some((1, 58))), "7 of 12 us");
    }

    #[test]
    fn the_window_moves_and_takes_what_was_slow_with_it() {
        let mut traffic = Traffic::new(7);
        record(&mut traffic, &taking(1_000_000), 7);
        record(&mut traffic, &taking(1_000), 8);
        let max =
            |traffic: &Traffic, now| traffic.figures(Direction::In, now).times[TOTAL].map(|total| total.max);
        assert_eq!(max(&traffic, 8), Some(1_000_003));
        assert_eq!(max(&traffic, 6 + SLICES), Some(1_000_003));
        assert_eq!(max(&traffic, 7 + SLICES), Some(1_003));
        assert_eq!(max(&traffic, 8 + SLICES), None);
        assert_eq!(traffic.packets(Direction::In, 7 + SLICES), 1);
        // The same when the next packet reuses the old slice.
        record(&mut traffic, &taking(2_000), 7 + SLICES);
        assert_eq!(max(&traffic, 7 + SLICES), Some(2_003));
        assert_eq!(traffic.slices.len(), 2);
        assert_eq!(traffic.idle(9 + SLICES), 2);
    }

    #[test]
    fn an_unknown_stage_is_in_no_percentile() {
        let mut traffic = Traffic::new(0);
        let mut partial = taking(1_000);
        partial.stamps[STAMP_DRV] = 0;
        record(&mut traffic, &partial, 0);
        let figures = traffic.figures(Direction::In, 0);
        assert_eq!((figures.packets, figures.times[0], figures.times[TOTAL]), (1, None, None));
        assert_eq!(figures.times[2].expect("known").max, 1_000);
        assert_eq!(traffic.trend(Direction::In, 0)[TREND - 1], Some(1), "there was a packet");
    }

    #[test]
    fn what_is_sent_again_is_counted_and_is_in_no_time() {
        let mut traffic = Traffic::new(0);
        let first = outgoing();
        let stamps = [first.stamps[0] + 9_000_000, first.stamps[1], first.stamps[2], first.stamps[3]];
        record(&mut traffic, &first, 0);
        let once = traffic.figures(Direction::Out, 0);
        record(&mut traffic, &PacketRecord { stamps, flags: FLAG_RETRANS, ..first }, 1);
        let both = traffic.figures(Direction::Out, 1);
        assert_eq!(both, Figures { packets: 2, ..once });
        assert_eq!([0, 1, SLICES].map(|now| traffic.sent_again(now)), [1, 1, 1]);
        assert_eq!(traffic.sent_again(1 + SLICES), 0);
        assert_eq!(traffic.trend(Direction::Out, 1)[TREND - 1], None, "no first send");
    }

    #[test]
    fn the_trend_has_a_place_for_each_slice() {
        let mut traffic = Traffic::new(3);
        record(&mut traffic, &taking(10_000), 3);
        record(&mut traffic, &taking(20_000), 3);
        record(&mut traffic, &taking(5_000), 5);
        let mut expected = [None; TREND];
        expected[TREND - 4..].copy_from_slice(&[Some(20_003), None, Some(5_003), None]);
        assert_eq!(traffic.trend(Direction::In, 6), expected);
        // Long after, nothing of it is left, before and after a new packet.
        let later = 6 + 3 * TREND as u64;
        assert_eq!(traffic.trend(Direction::In, later), [None; TREND]);
        record(&mut traffic, &taking(1_000), later);
        expected = [None; TREND];
        expected[TREND - 1] = Some(1_003);
        assert_eq!(traffic.trend(Direction::In, later), expected);
        assert_eq!(traffic.trend(Direction::Out, later), [None; TREND]);
    }

    proptest! {
        #[test]
        fn the_trend_is_what_a_list_would_say(steps in proptest::collection::vec((0..80u64, 1..1_000_000u64), 1..20)) {
            let mut traffic = Traffic::new(0);
            let mut list = Vec::new();
            let mut now = 0;
            for (step, ns) in steps {
                now += step;
                record(&mut traffic, &taking(ns), now);
                list.resize(now as usize + 1, None);
                let last = list.last_mut().expect("just made");
                *last = (*last).max(Some(ns + 3));
            }
            let mut expected = vec![None; TREND];
            expected.extend(list);
            prop_assert_eq!(&traffic.trend(Direction::In, now)[..], &expected[expected.len() - TREND..]);
        }
    }
}
