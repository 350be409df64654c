//! The times of every stage, by direction and protocol.

use std::io;

use net_latency_common::{Direction, UNKNOWNS, Unknown};

use super::{
    distribution::{Figures, PERCENTILES, Times},
    human::Human,
    packet::Packet,
    unknown::Reasons,
};
use crate::packet::event::{COLUMNS, PARTS, Protocol};
use crate::packet::stages::{dir, of_row, parts as parts_of, split};

/// The ways a packet can go, in the order in which they are shown. [`Table::way_mut`] knows it too.
const WAYS: [(Direction, Protocol); 4] = [
    (Direction::In, Protocol::Tcp),
    (Direction::Out, Protocol::Tcp),
    (Direction::In, Protocol::Udp),
    (Direction::Out, Protocol::Udp),
];

/// What one way has seen.
#[derive(Debug)]
pub struct Way {
    /// Packets, control packets included.
    pub packets: u64,
    /// Times of the columns in display order.
    pub columns: [Times; COLUMNS],
    /// Times from the first to the last stage.
    pub total: Times,
    /// Times of the parts; none without fine stages.
    pub parts: Option<Box<[Times; PARTS]>>,
}

impl Way {
    fn new() -> Self {
        Self {
            packets: 0,
            columns: std::array::from_fn(|_| Times::with_room()),
            total: Times::with_room(),
            parts: None,
        }
    }

    fn clear(&mut self) {
        self.packets = 0;
        self.columns.iter_mut().chain([&mut self.total]).for_each(Times::clear);
        self.parts.iter_mut().flat_map(|parts| parts.iter_mut()).for_each(Times::clear);
    }

    /// Each row that such packets have, with its number: the columns, the total, and the parts.
    pub fn rows(&self, direction: Direction, protocol: Protocol) -> impl Iterator<Item = (usize, &Times)> {
        let whole = self.columns.iter().chain([&self.total]).enumerate();
        let parts = self.parts.iter().flat_map(move |times| {
            parts_of(direction, protocol).map(|(part, _)| (FIRST_PART + part, &times[part]))
        });
        whole.chain(parts)
    }

    fn record(&mut self, packet: &Packet<'_>) {
        self.packets += 1;
        // What a control packet lacks, it never had.
        let reason = |reason| (!packet.is_control).then_some(reason);
        let rows = self.columns.iter_mut().chain([&mut self.total]).zip(packet.reasons);
        for ((times, why), time) in rows.zip(packet.stages.into_iter().chain([packet.total])) {
            add(times, time, || reason(why));
        }
        if let Some(parts) = &packet.parts {
            let reason = |part: usize| reason(packet.parts_reasons[part]);
            self.add_parts(packet.direction, packet.protocol, parts, reason);
        }
    }

    /// Counts a packet whose columns and total are these.
    #[inline]
    pub(super) fn add(&mut self, [first, second, third, total]: [u64; COLUMNS + 1]) {
        self.packets += 1;
        // Written out, since a loop over it is not unrolled.
        self.columns[0].add(first);
        self.columns[1].add(second);
        self.columns[2].add(third);
        self.total.add(total);
    }

    /// Counts its parts. `reason` is called for one that is unknown, as by [`add`].
    #[inline]
    pub(super) fn add_parts(
        &mut self,
        direction: Direction,
        protocol: Protocol,
        parts: &[Option<u64>; PARTS],
        reason: impl Fn(usize) -> Option<Option<Unknown>>,
    ) {
        let times = self.parts.get_or_insert_with(|| Box::new(std::array::from_fn(|_| Times::with_room())));
        let places = split(direction, protocol);
        let mut add = |part: usize| {
            if places[part].is_some() {
                add(&mut times[part], parts[part], || reason(part));
            }
        };
        // As above.
        add(0);
        add(1);
        add(2);
        add(3);
    }
}

/// Counts a time, or for what `reason` it is unknown, if that is known; nothing if there never was one.
#[inline]
fn add(times: &mut Times, ns: Option<u64>, reason: impl FnOnce() -> Option<Option<Unknown>>) {
    match ns {
        Some(ns) => times.add(ns),
        None => {
            if let Some(reason) = reason() {
                times.add_unknown(reason);
            }
        }
    }
}

/// The number of the first part's row, behind those of the columns and the total.
const FIRST_PART: usize = COLUMNS + 1;

/// The times of all packets. Its size does not depend on their number (about 300 KiB).
#[derive(Debug)]
pub struct Table {
    ways: [Way; WAYS.len()],
    /// Why it is unknown what was done for answers.
    pub(super) unknown_answers: [u64; UNKNOWNS],
}

/// Nothing seen.
impl Default for Table {
    fn default() -> Self {
        Self { ways: WAYS.map(|_| Way::new()), unknown_answers: [0; UNKNOWNS] }
    }
}

impl Table {
    /// Forgets everything and keeps the memory.
    pub fn clear(&mut self) {
        self.ways.iter_mut().for_each(Way::clear);
        self.unknown_answers = [0; UNKNOWNS];
    }

    /// Counts a packet.
    pub fn record(&mut self, packet: &Packet<'_>) {
        self.way_mut(packet.direction, packet.protocol).record(packet);
    }

    /// What packets that go this way are counted in.
    #[inline]
    pub(super) fn way_mut(&mut self, direction: Direction, protocol: Protocol) -> &mut Way {
        let place = match (direction, protocol) {
            (Direction::In, Protocol::Tcp) => 0,
            (Direction::Out, Protocol::Tcp) => 1,
            (Direction::In, Protocol::Udp) => 2,
            (Direction::Out, Protocol::Udp) => 3,
        };
        &mut self.ways[place]
    }

    /// Each way with what it has seen.
    pub fn ways(&self) -> impl Iterator<Item = (Direction, Protocol, &Way)> {
        WAYS.into_iter().zip(&self.ways).map(|((direction, protocol), way)| (direction, protocol, way))
    }

    /// Packets of one direction.
    #[must_use]
    pub fn packets(&self, direction: Direction) -> u64 {
        self.ways().filter(|(this, ..)| *this == direction).map(|(_, _, way)| way.packets).sum()
    }

    /// Writes a head, a row for each column of each way that has seen a packet, and why times are unknown: nothing if
    /// there was no packet.
    /// 80 columns wide, unless a number is larger than any that is likely.
    ///
    /// # Errors
    /// When `out` can't be written.
    pub fn write(&self, out: &mut impl io::Write) -> io::Result<()> {
        let seen = || self.ways().filter(|(_, _, way)| way.packets > 0);
        if seen().next().is_none() {
            return Ok(());
        }
        let unknown = seen().any(|(direction, protocol, way)| {
            way.rows(direction, protocol).any(|(_, times)| times.unknown() > 0)
        });
        write!(out, "{:13}", "")?;
        write_head(unknown, out)?;
        for (direction, protocol, way) in seen() {
            // The parts stand below the last column.
            let (whole, parts): (Vec<_>, Vec<_>) =
                way.rows(direction, protocol).partition(|(row, _)| *row < FIRST_PART);
            let (columns, total) = whole.split_at(COLUMNS);
            for (row, times) in columns.iter().chain(&parts).chain(total) {
                let name = of_row(direction, protocol, *row).map_or("total", |stage| stage.column);
                // The parts of an incoming packet split the column above; an outgoing one's follow it.
                let indent = if *row >= FIRST_PART && direction == Direction::In { "  " } else { "" };
                let name = format!("{indent}{name}");
                write!(out, "  {:4}{name:7}", if *row == 0 { dir(direction) } else { "" })?;
                write_row(&times.figures(), out)?;
            }
        }
        self.reasons().write(out)
    }

    /// Why times are unknown, of all rows together, and of answers.
    pub(super) fn reasons(&self) -> Reasons {
        let mut reasons = Reasons(self.unknown_answers);
        let times = self.ways().flat_map(|(direction, protocol, way)| way.rows(direction, protocol));
        times.map(|(_, times)| times).for_each(|times| reasons.add(times.reasons()));
        reasons
    }
}

/// Writes the names of a row's parts: 58 columns, and 9 more if `unknown` is one of them.
fn write_head(unknown: bool, out: &mut impl io::Write) -> io::Result<()> {
    write!(out, "{:>10}{:>8}", "count", "min")?;
    for (_, name) in PERCENTILES {
        write!(out, "{name:>8}")?;
    }
    write!(out, "{:>8}", "max")?;
    if unknown {
        write!(out, "{:>9}", "unknown")?;
    }
    writeln!(out)
}

fn write_row(figures: &Figures, out: &mut impl io::Write) -> io::Result<()> {
    write!(out, "{:>10}", figures.count)?;
    for time in figures.times() {
        let time = time.map_or_else(|| "-".to_owned(), |ns| Human(ns).to_string());
        write!(out, "{time:>8}")?;
    }
    if figures.unknown > 0 {
        write!(out, "{:>9}", figures.unknown)?;
    }
    writeln!(out)
}
