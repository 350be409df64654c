//! What a run has seen: counts, percentiles, the slowest packets and every kind of loss.
//!
//! Everything here takes plain values ([`Packet`]), so that lines which are read back can be summed up like those that are written. Only
//! the needed ones are made of an event.

mod balance;
mod census;
mod challengers;
mod cost;
mod distribution;
mod drops;
mod ends;
pub(crate) mod exchanges;
mod footer;
mod human;
mod leader;
mod ledger;
mod losses;
pub(crate) mod object;
mod packet;
mod places;
mod table;
pub(crate) mod tcp;
pub(crate) mod transit;
mod unknown;
mod worst;

use std::io;

use net_latency_common::Direction;

use crate::{clock::Zone, packet::event::Event};

pub(crate) use balance::Balance;
pub(crate) use census::Census;
pub(crate) use challengers::{Challengers, Holder, whose_place};
pub(crate) use cost::Cost;
pub(crate) use distribution::{Buckets, Figures, KernelTimes, PERCENTILES, Percentiles, Times};
pub(crate) use drops::Drops;
pub(crate) use ends::Ends;
pub(crate) use footer::Footer;
pub(crate) use human::{Human, HumanBytes};
pub(crate) use leader::Leader;
pub(crate) use ledger::{Ledger, LeftOut};
pub use losses::Losses;
pub(crate) use losses::UNWRITTEN;
use packet::whole;
pub(crate) use packet::{DELAYED_ACK_NS, Packet};
pub(crate) use places::Places;
pub(crate) use table::Table;
pub(crate) use unknown::{Reasons, reason_name};
pub(crate) use worst::{Worst, dominant, meaning};

use tcp::Connections;

/// Accumulates packets. Its size does not depend on their number (about 300 KiB).
#[derive(Debug, Default)]
pub struct Summary {
    /// Times by stage.
    pub table: Table,
    /// The slowest packets.
    pub worst: Worst,
    /// Figures of connections beside the times of their packets, if requested: each packet's connection has to be looked up.
    connections: Option<Connections>,
    /// When every hook was attached, in ns of `CLOCK_MONOTONIC`.
    start: u64,
}

impl Summary {
    /// Nothing seen of a run in which every hook was attached at `start`, in ns of `CLOCK_MONOTONIC`.
    #[must_use]
    pub fn since(start: u64) -> Self {
        Self { start, ..Self::default() }
    }

    /// Nothing more will come.
    pub fn finish(&mut self) {
        if let Some(connections) = &mut self.connections {
            connections.finish();
        }
    }

    /// Adds the figures of connections, if there are any.
    #[must_use]
    pub fn with_connections(self, connections: Option<Connections>) -> Self {
        Self { connections, ..self }
    }

    /// Forgets everything and keeps the memory.
    pub fn clear(&mut self) {
        self.table.clear();
        self.worst.clear();
        if let Some(connections) = &mut self.connections {
            connections.clear();
        }
    }

    /// Counts a packet. Allocates nothing.
    pub fn record(&mut self, packet: &Packet<'_>) {
        self.table.record(packet);
        self.worst.record(packet);
    }

    /// Counts an event.
    #[inline(always)]
    pub fn record_event(&mut self, event: &Event<'_>) {
        if let Some(Err(reason)) = event.served() {
            self.table.unknown_answers[reason as usize] += 1;
        }
        // Nearly all: its times are known, and in the sums.
        let times = (event.stages(), event.total_ns());
        let ([Some(first), Some(second), Some(third)], Some(total)) = times else {
            return self.record_other(event);
        };
        if event.is_retransmission() {
            return self.record_other(event);
        }
        let way = self.table.way_mut(event.direction(), event.protocol());
        way.add([first, second, third, total]);
        let whole = if event.has_parts() { self.add_parts(event, total) } else { total };
        if self.worst.would_keep_rank(whole) {
            self.keep(event);
        }
    }

    /// Counts the parts of an event of which all else is counted; returns the time of all its stages.
    fn add_parts(&mut self, event: &Event<'_>, total: u64) -> u64 {
        let (direction, protocol, parts) = (event.direction(), event.protocol(), event.parts());
        if let Some(times) = &parts {
            self.table.way_mut(direction, protocol).add_parts(direction, protocol, times, |part| {
                (!event.is_control()).then(|| event.parts_unknown(self.start)[part])
            });
        }
        whole(total, direction, parts.as_ref())
    }

    #[cold]
    fn keep(&mut self, event: &Event<'_>) {
        self.worst.record(&Packet::of(event, self.start));
    }

    #[cold]
    fn record_other(&mut self, event: &Event<'_>) {
        let times = Packet::times_of(event, self.start);
        self.table.record(&times);
        if self.worst.would_keep(&times) {
            self.worst.record(&Packet::of(event, self.start));
        }
        if let Some(connections) = &mut self.connections {
            connections.record(event);
        }
    }

    /// Packets that came in, and those that went out.
    #[must_use]
    pub fn by_direction(&self) -> [u64; 2] {
        [Direction::In, Direction::Out].map(|direction| self.table.packets(direction))
    }

    /// Packets so far, all ways.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.table.ways().map(|(_, _, way)| way.packets).sum()
    }

    /// Writes the times of the stages and the slowest packets, whose times are shown in `zone`; nothing if no packet
    /// was seen.
    ///
    /// # Errors
    /// When `out` can't be written.
    pub fn write(&self, zone: Zone, out: &mut impl io::Write) -> io::Result<()> {
        self.table.write(out)?;
        self.worst.write(zone, out)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use insta::assert_snapshot;
    use net_latency_common::{
        Counter, Counters, DroppingSockets, FLAG_CONTROL, IPPROTO_UDP, PacketRecord, STAMP_APP, STAMP_DRV,
    };

    use super::object::View;
    use super::*;
    use crate::packet::event::{
        Event,
        fixtures::{WALL_NS, incoming, outgoing, udp},
    };
    use crate::request::FooterFormat;

    fn footer(summary: &Summary, losses: &Losses) -> String {
        let shown = summary.packets();
        let ledger = Ledger { seen: shown, shown, ..Ledger::default() };
        let mut out = Vec::new();
        let elapsed = Duration::from_millis(12_345);
        let cost = Cost { own: elapsed / 40, elapsed, resident_bytes: 19_000_000, programs: None };
        let packets = summary.by_direction();
        let balance = Balance { packets, elapsed, losses, ledger: &ledger, cost: Some(&cost) };
        let footer = Footer { balance, summary, view: View::Stream, zone: Zone::UTC };
        footer.write(FooterFormat::Text, &mut out).expect("memory can be written");
        String::from_utf8(out).expect("ASCII")
    }

    fn seen(records: &[PacketRecord]) -> Summary {
        let mut summary = Summary::default();
        for record in records {
            summary.record_event(&Event::new(record, WALL_NS, None));
        }
        summary
    }

    const NO_LOSS: Losses = Losses {
        drops: Drops::NONE,
        counters: Counters { values: [0; Counter::ALL.len()] },
        evicted_in: 0,
        missed_probes: Some(0),
        unwritten: 0,
        not_kept: 0,
        slow_held_back: 0,
        slow_unwritten: 0,
        slow_inconsistent: 0,
    };

    #[test]
    fn nothing_seen_is_one_line() {
        assert_snapshot!(footer(&Summary::default(), &NO_LOSS));
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
    fn cleared_is_as_new() {
        let text = |summary: &Summary| {
            let mut out = Vec::new();
            summary.write(Zone::UTC, &mut out).expect("memory can be written");
            String::from_utf8(out).expect("ASCII")
        };
        let mut summary = seen(&[incoming(), outgoing(), incoming()]);
        summary.clear();
        assert_eq!((summary.packets(), text(&summary)), (0, String::new()));
        let record = outgoing();
        summary.record_event(&Event::new(&record, WALL_NS, None));
        assert_eq!(text(&summary), text(&seen(&[record])));
    }

    #[test]
    fn both_protocols_have_their_rows() {
        let records = [incoming(), outgoing(), udp(incoming()), udp(outgoing())];
        assert_snapshot!(footer(&seen(&records), &NO_LOSS));
    }

    #[test]
    fn every_loss_is_named() {
        let values = std::array::from_fn(|index| index as u64 + 1);
        let client = DroppingSockets { netns: 5, port: 53, protocol: IPPROTO_UDP, is_client: 1 };
        let losses = Losses {
            drops: Drops::new([(client, 3)]),
            counters: Counters { values },
            evicted_in: 20,
            missed_probes: Some(30),
            unwritten: 40,
            not_kept: 45,
            slow_held_back: 50,
            slow_unwritten: 60,
            slow_inconsistent: 70,
        };
        assert_eq!(losses.lines(), 1 + 2 + 19 + 20 + 22 + 40 + 45);
        assert_snapshot!(footer(&seen(&[incoming()]), &losses));
        assert_snapshot!(footer(&Summary::default(), &Losses { missed_probes: None, ..NO_LOSS }));
    }
}
