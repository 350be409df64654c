//! What closes a run: counts, times, the slowest packets, and every kind of loss.

use std::{io, time::Duration};

use net_latency_common::Direction;

use super::{Summary, human::Human, ledger::Ledger, losses::Losses};
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
    /// Whose time is shown.
    pub zone: Zone,
}

impl Footer<'_> {
    /// Writes it.
    ///
    /// # Errors
    /// When `out` can't be written.
    pub fn write(&self, out: &mut impl io::Write) -> io::Result<()> {
        let Self { summary, elapsed, losses, ledger, zone } = self;
        write!(
            out,
            "net-latency: {} packets in, {} out in {}; {} lost",
            summary.table.packets(Direction::In),
            summary.table.packets(Direction::Out),
            Human(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)),
            losses.lines()
        )?;
        if losses.missed_probes.is_none() {
            write!(out, " (this kernel does not count skipped calls)")?;
        }
        writeln!(out)?;
        summary.write(*zone, out)?;
        write!(out, "  ")?;
        ledger.write(out)?;
        for loss in losses.kinds().filter(|loss| loss.count > 0) {
            writeln!(out, "  {} {}", loss.count, loss.meaning)?;
        }
        Ok(())
    }
}
