//! What a run has seen, as the footer that closes it: counts, percentiles and every kind of loss.

use std::fmt::{self, Display};
use std::io;
use std::time::Duration;

use hdrhistogram::Histogram;
use net_latency_common::{Counter, Counters, Direction};

use crate::event::{COLUMNS, Event, Protocol, columns};

/// Longest time that a histogram tells apart from longer ones, in ns: 1 h.
const LONGEST_NS: u64 = 3_600_000_000_000;
/// Percentiles are right to within 1 %; each further digit would take 8 times the memory.
const DIGITS: u8 = 2;

/// Packets that became no line, or a line with gaps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// What the kernel side counted, summed over all CPUs.
    pub counters: Counters,
    /// Received packets that newer ones pushed out of a full map before they were read.
    pub evicted_in: u64,
    /// Calls of hooks that the kernel skipped; `None` where it doesn't count them.
    pub missed_probes: Option<u64>,
    /// Lines with stamps that contradict each other.
    pub disordered: u64,
    /// Lines that the reader of the output did not take in time at the end.
    pub unwritten: u64,
}

/// One kind of loss, how often it happened, and what it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Times it happened.
    pub count: u64,
    /// Whether each time is a packet whose line is missing.
    pub is_lost_line: bool,
    /// What was lost and, where there is one, the remedy.
    pub meaning: &'static str,
}

impl Losses {
    /// All kinds, those that did not happen included.
    pub fn kinds(&self) -> impl Iterator<Item = Loss> {
        let counted = Counter::ALL.into_iter().filter_map(|counter| {
            let (is_lost_line, meaning) = describe(counter)?;
            Some(Loss { count: self.counters.get(counter), is_lost_line, meaning })
        });
        let evicted = Loss {
            count: self.evicted_in,
            is_lost_line: true,
            meaning: "received packets were pushed out by newer ones: unread for too long, or dropped unseen",
        };
        let missed = Loss {
            count: self.missed_probes.unwrap_or(0),
            is_lost_line: false,
            meaning: "calls of traced functions were skipped by the kernel: their packets have gaps or no line",
        };
        let disordered = Loss {
            count: self.disordered,
            is_lost_line: false,
            meaning: "lines had stamps that contradict each other: those stages are shown as unknown",
        };
        let unwritten = Loss {
            count: self.unwritten,
            is_lost_line: true,
            meaning: "lines were not taken by the reader of the output at the end",
        };
        counted.chain([evicted, missed, disordered, unwritten])
    }

    /// Lines that are missing: lines shown and these together are the finished packets.
    #[must_use]
    pub fn lines(&self) -> u64 {
        self.kinds().filter(|loss| loss.is_lost_line).map(|loss| loss.count).sum()
    }
}

/// Whether it costs a line each time, and its words; `None` for what is no loss.
fn describe(counter: Counter) -> Option<(bool, &'static str)> {
    let words = match counter {
        Counter::FilteredIn
        | Counter::FilteredOut
        | Counter::SeenOut
        | Counter::Stored
        | Counter::Taken
        | Counter::ControlIn
        | Counter::RejectedIn => return None,
        Counter::RingFull => {
            (true, "packets found the ring buffer full: a larger --buffer, or a filter, helps")
        }
        Counter::MapFull => (true, "packets found the table of packets in flight full: a filter helps"),
        Counter::SocketLost => {
            (false, "times the table of sockets was full: lines are missing or have gaps; a filter helps")
        }
        Counter::StampLost => {
            (false, "stages or write calls found their table full: lines have gaps; a filter helps")
        }
        Counter::UnmatchedIn => (
            false,
            "times an application took bytes whose packet was not seen (connections in progress at the start)",
        ),
        Counter::DuplicateIn => {
            (false, "received segments brought nothing new: TCP had their bytes; no line of their own")
        }
        Counter::DroppedIn => (false, "received packets were dropped behind TCP or UDP: nobody took them"),
        Counter::UnreadIn => (false, "received segments were never read: their socket was closed first"),
        Counter::UnfinishedOut => (false, "sent packets never reached a device queue: dropped on the way"),
        Counter::UnmatchedOut => {
            (false, "sent packets whose write call was not seen: the first stage is unknown")
        }
        Counter::ProcessLost => {
            (false, "processes of the command found their table full: their packets are not shown")
        }
    };
    Some(words)
}

/// Where the packets of a run are: every one that TCP or UDP got or sent, from the first hook's attaching to
/// the last one's detaching, is in exactly one of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Received ones that waited, and those on their way, when this began; 0 for a whole run.
    pub from_before: u64,
    /// All of them.
    pub seen: u64,
    /// Those that got a line.
    pub shown: u64,
    /// Those finished while not all hooks were attached.
    pub outside: u64,
    /// Those that a filter excluded: of processes and ends that were not asked for, and the like.
    pub filtered: u64,
    /// Those whose line is missing: ring buffer or map full, or not taken by the reader of the output.
    pub lost: u64,
    /// Received ones, among `lost`, that newer ones pushed out of a full map.
    pub evicted: u64,
    /// Those that nobody took or no device queue got: dropped, duplicates, unread when their socket went.
    pub dropped: u64,
    /// Received ones that still wait for an application.
    pub waiting: u64,
}

impl Ledger {
    /// From the kernel side's counters since loading; the user side knows the rest.
    #[must_use]
    pub fn new(total: &Counters, shown: u64, outside: u64, unwritten: u64, waiting: u64) -> Self {
        let sum = |counters: &[Counter]| counters.iter().map(|&counter| total.get(counter)).sum::<u64>();
        let evicted = total.get(Counter::Stored).saturating_sub(total.get(Counter::Taken) + waiting);
        Self {
            from_before: 0,
            seen: sum(&[
                Counter::Stored,
                Counter::DuplicateIn,
                Counter::MapFull,
                Counter::ControlIn,
                Counter::RejectedIn,
                Counter::SeenOut,
            ]),
            shown,
            outside,
            filtered: sum(&[Counter::FilteredIn, Counter::FilteredOut, Counter::RejectedIn]),
            lost: sum(&[Counter::RingFull, Counter::MapFull]) + evicted + unwritten,
            evicted,
            dropped: sum(&[
                Counter::DuplicateIn,
                Counter::DroppedIn,
                Counter::UnreadIn,
                Counter::UnfinishedOut,
            ]),
            waiting,
        }
    }

    /// While programs run, one may have taken a packet from the map and not counted it yet, which looks as if it
    /// had been evicted: until the end the two are not told apart, and neither has a place.
    #[must_use]
    pub fn while_running(self) -> Self {
        Self { lost: self.lost - self.evicted, evicted: 0, ..self }
    }

    /// Those in none of the places: between two hooks when the last was detached, at most one for each socket
    /// and thread that sends; a packet of which the kernel skipped a hook; negative where one counts twice.
    #[must_use]
    pub fn unaccounted(&self) -> i128 {
        let places = [self.shown, self.outside, self.filtered, self.lost, self.dropped, self.waiting];
        i128::from(self.seen) + i128::from(self.from_before)
            - places.into_iter().map(i128::from).sum::<i128>()
    }

    /// What happened between `earlier` and this.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let on_their_way = u64::try_from(earlier.unaccounted()).unwrap_or(0);
        Self {
            from_before: earlier.waiting + on_their_way,
            seen: self.seen - earlier.seen,
            shown: self.shown - earlier.shown,
            outside: self.outside - earlier.outside,
            filtered: self.filtered - earlier.filtered,
            lost: self.lost.saturating_sub(earlier.lost),
            evicted: self.evicted.saturating_sub(earlier.evicted),
            dropped: self.dropped - earlier.dropped,
            waiting: self.waiting,
        }
    }

    /// Writes one line.
    ///
    /// # Errors
    /// When `out` can't be written.
    pub fn write(&self, out: &mut impl io::Write) -> io::Result<()> {
        write!(out, "{} packets seen", self.seen)?;
        if self.from_before > 0 {
            write!(out, " + {} from before", self.from_before)?;
        }
        write!(out, " = {} shown", self.shown)?;
        let rest = [
            (self.filtered, "of others"),
            (self.lost, "lost"),
            (self.dropped, "dropped or unread"),
            (self.waiting, "waiting"),
            (self.outside, "at start or end"),
        ];
        for (count, what) in rest.into_iter().filter(|(count, _)| *count > 0) {
            write!(out, " + {count} {what}")?;
        }
        match self.unaccounted() {
            0 => writeln!(out),
            count @ 1.. => writeln!(out, " + {count} on their way"),
            count => writeln!(out, " - {} counted twice", -count),
        }
    }
}

/// Times of one column.
#[derive(Debug)]
struct Times {
    histogram: Histogram<u64>,
    /// Exact, as the histogram's own is not.
    max_ns: u64,
    /// Data packets whose time here is unknown.
    unknown: u64,
}

impl Times {
    fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, LONGEST_NS, DIGITS).expect("the bounds are valid");
        Self { histogram, max_ns: 0, unknown: 0 }
    }

    fn add(&mut self, ns: u64) {
        self.histogram.saturating_record(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// A histogram answers with the end of a bucket, which may lie beyond anything that was seen.
    fn quantile(&self, quantile: f64) -> u64 {
        self.histogram.value_at_quantile(quantile).min(self.max_ns)
    }
}

/// What one direction has seen.
#[derive(Debug)]
struct Side {
    packets: u64,
    columns: [Times; COLUMNS],
    total: Times,
}

impl Side {
    fn new() -> Self {
        Self { packets: 0, columns: std::array::from_fn(|_| Times::new()), total: Times::new() }
    }

    fn record(&mut self, event: &Event<'_>) {
        self.packets += 1;
        let times = self.columns.iter_mut().chain([&mut self.total]);
        for (times, ns) in times.zip(event.stages().into_iter().chain([event.total_ns()])) {
            match ns {
                Some(ns) => times.add(ns),
                // What a control packet lacks, it never had.
                None if event.is_control() => {}
                None => times.unknown += 1,
            }
        }
    }
}

/// Accumulates the packets of a run. Its size does not depend on their number (about 600 KiB).
#[derive(Debug)]
pub struct Summary {
    disordered: u64,
    sides: [(Direction, Protocol, Side); 4],
}

impl Default for Summary {
    fn default() -> Self {
        Self::new()
    }
}

impl Summary {
    /// A run that has seen nothing.
    #[must_use]
    pub fn new() -> Self {
        let ways = [
            (Direction::In, Protocol::Tcp),
            (Direction::Out, Protocol::Tcp),
            (Direction::In, Protocol::Udp),
            (Direction::Out, Protocol::Udp),
        ];
        Self { disordered: 0, sides: ways.map(|(direction, protocol)| (direction, protocol, Side::new())) }
    }

    /// Counts a packet that got its line.
    pub fn record(&mut self, event: &Event<'_>) {
        self.disordered += u64::from(event.is_disordered());
        let way = (event.direction(), event.protocol());
        for (direction, protocol, side) in &mut self.sides {
            if (*direction, *protocol) == way {
                side.record(event);
            }
        }
    }

    /// Packets so far, both directions.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.packets_of(Direction::In) + self.packets_of(Direction::Out)
    }

    /// Packets so far whose stamps contradict each other.
    #[must_use]
    pub fn disordered(&self) -> u64 {
        self.disordered
    }

    fn packets_of(&self, way: Direction) -> u64 {
        self.sides.iter().filter(|(direction, ..)| *direction == way).map(|(_, _, side)| side.packets).sum()
    }

    /// Writes the footer of a run that took `elapsed`.
    ///
    /// # Errors
    /// When `out` can't be written.
    pub fn write_footer(
        &self,
        elapsed: Duration,
        losses: &Losses,
        ledger: &Ledger,
        out: &mut impl io::Write,
    ) -> io::Result<()> {
        write!(
            out,
            "net-latency: {} packets in, {} out in {}; {} lost",
            self.packets_of(Direction::In),
            self.packets_of(Direction::Out),
            Human(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)),
            losses.lines()
        )?;
        if losses.missed_probes.is_none() {
            write!(out, " (this kernel does not count skipped calls)")?;
        }
        writeln!(out)?;
        if self.packets() > 0 {
            writeln!(out, "  {:13}{:>10}{:>10}{:>10}", "", "p50", "p99", "max")?;
        }
        for (direction, protocol, side) in &self.sides {
            write_side(*direction, *protocol, side, out)?;
        }
        write!(out, "  ")?;
        ledger.write(out)?;
        for loss in losses.kinds().filter(|loss| loss.count > 0) {
            writeln!(out, "  {} {}", loss.count, loss.meaning)?;
        }
        Ok(())
    }
}

fn write_side(
    direction: Direction,
    protocol: Protocol,
    side: &Side,
    out: &mut impl io::Write,
) -> io::Result<()> {
    if side.packets == 0 {
        return Ok(());
    }
    let name = match direction {
        Direction::In => "in",
        Direction::Out => "out",
    };
    let columns = columns(direction, protocol).into_iter().zip(&side.columns).chain([("total", &side.total)]);
    for (row, (column, times)) in columns.enumerate() {
        write!(out, "  {:4}{column:9}", if row == 0 { name } else { "" })?;
        if times.histogram.is_empty() {
            write!(out, "{:>10}{:>10}{:>10}", "-", "-", "-")?;
        } else {
            for ns in [times.quantile(0.5), times.quantile(0.99), times.max_ns] {
                write!(out, "{:>10}", Human(ns).to_string())?;
            }
        }
        if times.unknown > 0 {
            write!(out, "  unknown for {}", times.unknown)?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// A time in ns, for people: three digits and a unit, rounded to the nearest.
struct Human(u64);

impl Display for Human {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.0;
        // The bounds are where rounding to three digits reaches the next unit.
        let (unit, name) = match ns {
            ..1_000 => return write!(f, "{ns} ns"),
            1_000..999_500 => (1_000, "us"),
            999_500..999_500_000 => (1_000_000, "ms"),
            _ => (1_000_000_000, "s"),
        };
        // Whole numbers all the way: thousandths of the unit, then steps of the last digit shown.
        let thousandths = u128::from(ns) * 1_000 / unit;
        let (step, decimals) = match thousandths {
            ..9_995 => (10, 2),
            9_995..99_950 => (100, 1),
            _ => (1_000, 0),
        };
        let steps = (thousandths + step / 2) / step;
        let scale = 1_000 / step;
        write!(f, "{}", steps / scale)?;
        if decimals > 0 {
            write!(f, ".{:0decimals$}", steps % scale)?;
        }
        write!(f, " {name}")
    }
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use net_latency_common::{FLAG_CONTROL, PacketRecord, STAMP_APP, STAMP_DRV};

    use super::*;
    use crate::event::fixtures::{incoming, outgoing};

    fn footer(summary: &Summary, losses: &Losses) -> String {
        let shown = summary.packets();
        let ledger = Ledger { seen: shown, shown, ..Ledger::default() };
        let mut out = Vec::new();
        summary
            .write_footer(Duration::from_millis(12_345), losses, &ledger, &mut out)
            .expect("memory can be written");
        String::from_utf8(out).expect("ASCII")
    }

    fn seen(records: &[PacketRecord]) -> Summary {
        let mut summary = Summary::new();
        for record in records {
            summary.record(&Event::new(record, 0, None));
        }
        summary
    }

    const NO_LOSS: Losses = Losses {
        counters: Counters { values: [0; Counter::ALL.len()] },
        evicted_in: 0,
        missed_probes: Some(0),
        disordered: 0,
        unwritten: 0,
    };

    #[test]
    fn nothing_seen_is_one_line() {
        assert_snapshot!(footer(&Summary::new(), &NO_LOSS));
    }

    #[test]
    fn both_directions_have_percentiles() {
        let mut records = vec![outgoing()];
        for n in 1..=1000 {
            let base = incoming();
            let [drv, ip, tcp, app] = base.stamps;
            records
                .push(PacketRecord { stamps: [drv, ip + n, tcp + n * 1_000, app + n * n * 1_000], ..base });
        }
        assert_snapshot!(footer(&seen(&records), &NO_LOSS));
    }

    #[test]
    fn unknown_times_are_counted_but_not_those_that_never_were() {
        let mut partial = outgoing();
        partial.stamps[STAMP_APP] = 0;
        let mut drv_missing = incoming();
        drv_missing.stamps[STAMP_DRV] = 0;
        let mut control = incoming();
        control.stamps[STAMP_APP] = 0;
        control.flags = FLAG_CONTROL;
        assert_snapshot!(footer(&seen(&[partial, drv_missing, control]), &NO_LOSS));
    }

    #[test]
    fn every_loss_is_named() {
        let values = std::array::from_fn(|index| index as u64 + 1);
        let losses = Losses {
            counters: Counters { values },
            evicted_in: 20,
            missed_probes: Some(30),
            disordered: 35,
            unwritten: 40,
        };
        assert_eq!(losses.lines(), 1 + 2 + 20 + 40);
        assert_snapshot!(footer(&seen(&[incoming()]), &losses));
        assert_snapshot!(footer(&Summary::new(), &Losses { missed_probes: None, ..NO_LOSS }));
    }

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
        count(Counter::RingFull, 7);
        count(Counter::MapFull, 2);
        count(Counter::DroppedIn, 10);
        count(Counter::UnreadIn, 20);
        count(Counter::UnfinishedOut, 4);
        // In: 1000 stored = 900 taken (200 of others, 30 dropped or unread, the rest with a record) + 60 + 40.
        let records = 900 - 200 - 30 - 7 + 3 + 500 - 100 - 4;
        let ledger = Ledger::new(&counters, records - 11 - 6, 11, 6, 60);
        assert_eq!(ledger.unaccounted(), 0, "{ledger:?}");
        assert_eq!((ledger.seen, ledger.lost, ledger.dropped), (1510, 7 + 2 + 40 + 6, 39));
        let text = |ledger: &Ledger| {
            let mut out = Vec::new();
            ledger.write(&mut out).expect("memory can be written");
            String::from_utf8(out).expect("ASCII")
        };
        let short = Ledger { shown: ledger.shown - 1, ..ledger };
        let twice = Ledger { shown: ledger.shown + 1, ..ledger };
        let later = Ledger { seen: ledger.seen + 10, shown: ledger.shown + 15, waiting: 55, ..ledger };
        assert_eq!(later.since(&ledger).unaccounted(), 0);
        // What was on its way is from before, and has arrived.
        let arrived = Ledger { shown: ledger.shown, ..ledger };
        assert_eq!(arrived.since(&short).unaccounted(), 0);
        assert_snapshot!([ledger, short, twice, later.since(&ledger)].map(|ledger| text(&ledger)).concat());
    }

    #[test]
    fn a_percentile_is_never_beyond_the_maximum() {
        let mut times = Times::new();
        times.add(1_000_001);
        assert_eq!(times.quantile(0.99), 1_000_001);
        times.add(u64::MAX);
        assert_eq!(times.max_ns, u64::MAX);
        assert!(times.quantile(0.99) >= LONGEST_NS);
    }

    #[test]
    fn people_read_three_digits() {
        let read = [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_000, "1.00 us"),
            (9_994, "9.99 us"),
            (9_995, "10.0 us"),
            (99_949, "99.9 us"),
            (99_950, "100 us"),
            (999_499, "999 us"),
            (999_500, "1.00 ms"),
            (12_345_678_901, "12.3 s"),
            (3_600_000_000_000, "3600 s"),
            (u64::MAX, "18446744074 s"),
        ];
        for (ns, text) in read {
            assert_eq!(Human(ns).to_string(), text, "{ns}");
        }
    }
}
