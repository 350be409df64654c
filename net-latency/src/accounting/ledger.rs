//! Where all packets are.

use std::io;

use net_latency_common::Counter;

use super::census::Census;
use crate::message::counted;

/// Packets that have a record, and are not shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeftOut {
    /// Those finished while not every hook was attached, or when no more were wanted.
    pub outside: u64,
    /// Those with times that can't be theirs ([`crate::packet::possible`]).
    pub inconsistent: u64,
}

/// Where the packets of a run are: every one that TCP or UDP got or sent, or that was on its way when it began, is in
/// exactly one of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ledger {
    /// Received ones that waited, and those on their way, when this began.
    pub from_before: u64,
    /// All of them.
    pub seen: u64,
    /// Those that got a line.
    pub shown: u64,
    /// Those finished just before it began, or not shown any more.
    pub outside: u64,
    /// Those with times that can't be theirs: a fault of ours.
    pub inconsistent: u64,
    /// Those that a filter excluded: of processes and ends that were not wanted, and the like.
    pub filtered: u64,
    /// Those that are missing: ring buffer or map full, or not taken by the reader of the output.
    pub lost: u64,
    /// Received ones, among `lost`, that newer ones evicted from a full map.
    pub evicted: u64,
    /// Those that no process read or no device queue got: dropped, or unread when their socket went.
    pub dropped: u64,
    /// Received segments that brought no new byte.
    pub duplicates: u64,
    /// Received ones that still wait for an application.
    pub waiting: u64,
}

impl Ledger {
    /// From what the kernel side has counted since loading; the user side knows the rest.
    #[must_use]
    pub(crate) fn new(census: &Census, shown: u64, left_out: LeftOut, unwritten: u64) -> Self {
        let Census { before, after, waiting, .. } = census;
        let (waiting, evicted) = (*waiting, census.evicted());
        let sum = |counters: &[Counter]| counters.iter().map(|&counter| before.get(counter)).sum::<u64>();
        let came = [
            Counter::Stored,
            Counter::DuplicateIn,
            Counter::MapFull,
            Counter::ControlIn,
            Counter::RejectedIn,
            Counter::SeenOut,
        ];
        Self {
            from_before: 0,
            seen: came.map(|counter| after.get(counter)).into_iter().sum(),
            shown,
            outside: left_out.outside,
            inconsistent: left_out.inconsistent,
            filtered: sum(&[Counter::FilteredIn, Counter::FilteredOut, Counter::RejectedIn]),
            lost: sum(&[
                Counter::Shed,
                Counter::RingFull,
                Counter::MapFull,
                Counter::HistogramFull,
                Counter::OvertakenOut,
                Counter::NotFollowedIn,
            ]) + evicted
                + unwritten,
            evicted,
            dropped: sum(&[Counter::DroppedIn, Counter::UnreadIn, Counter::UnfinishedOut]),
            duplicates: sum(&[Counter::DuplicateIn]),
            waiting,
        }
    }

    /// The ledger of a whole run, from where packets were at its start and at its end; `early` is how many had been thrown away at its
    /// start.
    #[must_use]
    pub(crate) fn of_run(
        start: &Census,
        end: &Census,
        early: u64,
        shown: u64,
        left_out: LeftOut,
        unwritten: u64,
    ) -> Self {
        // The kernel side sorts out itself what it doesn't send.
        let at = |census: &Census, left_out: LeftOut| LeftOut {
            outside: early + left_out.outside + census.after.get(Counter::Outside),
            ..left_out
        };
        let from = Self::new(start, 0, at(start, LeftOut::default()), 0).while_running();
        let to = Self::new(end, shown, at(end, left_out), unwritten).while_running();
        let evicted = end.evicted().saturating_sub(start.evicted());
        let run = to.since(&from);
        Self { evicted, lost: run.lost + evicted, ..run }
    }

    /// While programs run, one may have taken a packet from the map and not counted it yet, which looks as if it had been evicted: until
    /// the end the two are not told apart, and neither has a place. And one may have given a packet's record and not taken it from the map
    /// yet: a packet that is shown does not wait.
    #[must_use]
    pub(crate) fn while_running(self) -> Self {
        let ledger = Self { lost: self.lost - self.evicted, evicted: 0, ..self };
        let twice = u64::try_from(-ledger.unaccounted()).unwrap_or(0);
        Self { waiting: ledger.waiting.saturating_sub(twice), ..ledger }
    }

    /// Those in none of the places: between two hooks when the last was detached, at most one for each socket
    /// and thread that sends; a packet of which the kernel skipped a hook; negative where one counts twice.
    #[must_use]
    pub(crate) fn unaccounted(&self) -> i128 {
        let Self { shown, outside, inconsistent, filtered, lost, dropped, duplicates, waiting, .. } = *self;
        let places = [shown, outside, inconsistent, filtered, lost, dropped, duplicates, waiting];
        i128::from(self.seen) + i128::from(self.from_before)
            - places.into_iter().map(i128::from).sum::<i128>()
    }

    /// What happened between `earlier` and this.
    #[must_use]
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let in_flight = u64::try_from(earlier.unaccounted()).unwrap_or(0);
        Self {
            from_before: earlier.waiting + in_flight,
            seen: self.seen - earlier.seen,
            shown: self.shown - earlier.shown,
            outside: self.outside - earlier.outside,
            inconsistent: self.inconsistent - earlier.inconsistent,
            filtered: self.filtered - earlier.filtered,
            lost: self.lost.saturating_sub(earlier.lost),
            evicted: self.evicted.saturating_sub(earlier.evicted),
            dropped: self.dropped - earlier.dropped,
            duplicates: self.duplicates - earlier.duplicates,
            waiting: self.waiting,
        }
    }

    /// Writes one line, of what can have a line: packets from before tracing was complete, or after it ended, are of use to no reader.
    ///
    /// # Errors
    /// When `out` can't be written.
    pub(crate) fn write(&self, out: &mut impl io::Write) -> io::Result<()> {
        write!(out, "{} seen", counted(self.seen.saturating_sub(self.outside), "packet"))?;
        if self.from_before > 0 {
            write!(out, " + {} from before", self.from_before)?;
        }
        write!(out, " = {} shown", self.shown)?;
        let rest = [
            (self.filtered, "filtered"),
            (self.lost, "lost"),
            (self.dropped, "dropped or unread"),
            (self.duplicates, "duplicate segments received (needless retransmissions)"),
            (self.waiting, "waiting"),
            (self.inconsistent, "with inconsistent times"),
        ];
        for (count, what) in rest.into_iter().filter(|(count, _)| *count > 0) {
            write!(out, " + {count} {what}")?;
        }
        match self.unaccounted() {
            0 => writeln!(out),
            count @ 1.. => writeln!(out, " + {count} in flight"),
            count => writeln!(out, " - {} counted twice", -count),
        }
    }
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use net_latency_common::Counters;

    use super::*;

    #[test]
    fn every_packet_is_in_one_place() {
        let mut counters = Counters::default();
        let mut count = |counter: Counter, n| counters.values[counter as usize] = n;
        count(Counter::Stored, 1000);
        count(Counter::Taken, 900);
        count(Counter::DuplicateIn, 5);
        count(Counter::ControlIn, 3);
        count(Counter::SeenOut, 500);
        count(Counter::FilteredIn, 200);
        count(Counter::FilteredOut, 100);
        count(Counter::RejectedIn, 50);
        count(Counter::RingFull, 4);
        count(Counter::Shed, 3);
        count(Counter::MapFull, 2);
        count(Counter::HistogramFull, 8);
        count(Counter::DroppedIn, 10);
        count(Counter::UnreadIn, 20);
        count(Counter::UnfinishedOut, 4);
        // In: 1000 stored = 900 taken (200 of others, 30 dropped or unread, the rest with a record) + 60 + 40.
        let records = 900 - 200 - 30 - 7 - 8 + 3 + 500 - 100 - 4;
        let census = Census { before: counters, waiting: 60, at_ns: 0, after: counters };
        let left_out = LeftOut { outside: 8, inconsistent: 3 };
        let ledger = Ledger::new(&census, records - 11 - 6, left_out, 6);
        assert_eq!(ledger.unaccounted(), 0, "{ledger:?}");
        assert_eq!((ledger.seen, ledger.lost, ledger.dropped), (1560, 7 + 2 + 8 + 40 + 6, 34));
        let text = |ledger: &Ledger| {
            let mut out = Vec::new();
            ledger.write(&mut out).expect("memory can be written");
            String::from_utf8(out).expect("ASCII")
        };
        let short = Ledger { shown: ledger.shown - 1, ..ledger };
        let twice = Ledger { shown: ledger.shown + 1, ..ledger };
        let later = Ledger { seen: ledger.seen + 10, shown: ledger.shown + 15, waiting: 55, ..ledger };
        assert_eq!(later.since(&ledger).unaccounted(), 0);
        // Packets on their way are from before, and have arrived.
        let arrived = Ledger { shown: ledger.shown, ..ledger };
        assert_eq!(arrived.since(&short).unaccounted(), 0);
        // One that arrived while packets were looked for, and one that was taken by an unwanted process.
        let mut after = counters;
        after.values[Counter::Stored as usize] += 1;
        after.values[Counter::Taken as usize] += 1;
        after.values[Counter::FilteredIn as usize] += 1;
        let moving = Ledger::new(&Census { after, ..census }, records - 11 - 6, left_out, 6);
        assert_eq!(moving.while_running().unaccounted(), 41);
        // One whose record has come, while it still waits.
        let early = Ledger { shown: ledger.shown + 42, ..ledger }.while_running();
        assert_eq!((early.waiting, early.unaccounted()), (58, 0));
        assert_snapshot!([ledger, short, twice, later.since(&ledger)].map(|ledger| text(&ledger)).concat());
    }

    #[test]
    fn what_met_some_hooks_only_is_no_part_of_a_run() {
        let census = |stored: u64, taken: u64, unfinished: u64, outside: u64, waiting: u64| {
            let mut counters = Counters::default();
            for (counter, n) in [
                (Counter::Stored, stored),
                (Counter::Taken, taken),
                (Counter::SeenOut, unfinished),
                (Counter::UnfinishedOut, unfinished),
                (Counter::Outside, outside),
            ] {
                counters.values[counter as usize] = n;
            }
            Census { before: counters, waiting, at_ns: 0, after: counters }
        };
        // 40 came before the start, of which 3 wait; 100 in the run, of which 7 wait and 5 were evicted.
        let (start, end) = (census(40, 37, 20, 2, 3), census(140, 128, 20, 4, 7));
        let ledger = Ledger::of_run(&start, &end, 34, 86, LeftOut { outside: 2, inconsistent: 1 }, 0);
        assert_eq!((ledger.seen, ledger.dropped), (100, 0));
        assert_eq!((ledger.outside, ledger.inconsistent), (2 + 2, 1));
        assert_eq!((ledger.from_before, ledger.waiting, ledger.evicted, ledger.lost), (3 + 1, 7, 5, 5));
        assert_eq!(ledger.unaccounted(), 1);
        // Nothing is known of packets that move while they are counted.
        let before = Counters { values: end.before.values.map(|count| count.saturating_sub(2)) };
        assert_eq!((Census { before, ..end }).evicted(), 5 - 2 - 2);
    }
}
