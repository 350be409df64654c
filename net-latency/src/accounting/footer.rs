//! What closes a run: counts, times, the slowest packets, and every kind of loss.

use std::{io, time::Duration};

use net_latency_common::Direction;

use super::{Summary, cost::Cost, human::Human, ledger::Ledger, losses::Losses};
use crate::clock::Zone;

/// The footer of a run.
#[derive(Clone, Copy, Debug)]
pub struct Footer<'a> {
    /// Its packets.
    pub summary: &'a Summary,
    /// How long it took.
    pub elapsed: Duration,
    /// What became no line.
    pub losses: &'a Losses,
    /// Where all packets are.
    pub ledger: &'a Ledger,
    /// What it has cost.
    pub cost: &'a Cost,
    /// Whose time is shown.
    pub zone: Zone,
}

impl Footer<'_> {
    /// Writes it.
    ///
    /// # Errors
    /// When `out` can't be written.
    pub fn write(&self, out: &mut impl io::Write) -> io::Result<()> {
        let Self { summary, elapsed, losses, ledger, cost, zone } = *self;
        let packets = [Direction::In, Direction::Out].map(|direction| summary.table.packets(direction));
        let balance = Balance { packets, elapsed, losses, ledger, cost };
        balance.write_counts(out)?;
        summary.write(zone, out)?;
        balance.write_places(out)
    }
}

/// What every footer says, whatever a view shows of the packets themselves.
#[derive(Clone, Copy, Debug)]
pub struct Balance<'a> {
    /// Packets that came in, and those that went out.
    pub packets: [u64; 2],
    /// How long the run took.
    pub elapsed: Duration,
    /// What is not shown.
    pub losses: &'a Losses,
    /// Where all packets are.
    pub ledger: &'a Ledger,
    /// What it has cost.
    pub cost: &'a Cost,
}

impl Balance<'_> {
    /// Writes how many packets there were, and how many were lost.
    ///
    /// # Errors
    /// When `out` can't be written.
    pub fn write_counts(&self, out: &mut impl io::Write) -> io::Result<()> {
        let [packets_in, packets_out] = self.packets;
        writeln!(
            out,
            "net-latency: {packets_in} packets in, {packets_out} out in {}; {} lost",
            Human(u64::try_from(self.elapsed.as_nanos()).unwrap_or(u64::MAX)),
            self.losses.lines()
        )
    }

    /// Writes where all packets are, what was lost, and what it has cost.
    ///
    /// # Errors
    /// When `out` can't be written.
    pub fn write_places(&self, out: &mut impl io::Write) -> io::Result<()> {
        write!(out, "  ")?;
        self.ledger.write(out)?;
        for loss in self.losses.kinds().filter(|loss| loss.count > 0) {
            writeln!(out, "  {} {}", loss.count, loss.meaning)?;
        }
        if self.losses.missed_probes.is_none() {
            writeln!(out, "  this kernel does not count skipped calls")?;
        }
        self.cost.write(self.elapsed, self.ledger.seen, out)
    }
}
