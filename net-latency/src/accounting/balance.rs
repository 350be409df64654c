//! Where all packets are, and what that has cost: what every footer says.

use std::{io, time::Duration};

use super::{
    cost::Cost,
    human::Human,
    ledger::Ledger,
    losses::{DROPPED_AT_SOCKET, Losses},
};
use crate::message::{counted, write_counts};

/// The content of every footer, whatever a view shows of the packets themselves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Balance<'a> {
    /// Packets that came in, and those that went out.
    pub packets: [u64; 2],
    /// How long the run took.
    pub elapsed: Duration,
    /// Packets that are not shown.
    pub losses: &'a Losses,
    /// Where all packets are.
    pub ledger: &'a Ledger,
    /// What it has cost, where that is known.
    pub cost: Option<&'a Cost>,
}

impl Balance<'_> {
    /// Writes how many packets there were, and how many were lost.
    ///
    /// # Errors
    /// When `out` can't be written.
    pub(crate) fn write_counts(&self, out: &mut impl io::Write) -> io::Result<()> {
        let [packets_in, packets_out] = self.packets;
        writeln!(
            out,
            "net-latency: {} in, {packets_out} out in {}; {} lost",
            counted(packets_in, "packet"),
            Human(u64::try_from(self.elapsed.as_nanos()).unwrap_or(u64::MAX)),
            self.losses.lines()
        )
    }

    /// Writes where all packets are, the losses, and the cost.
    ///
    /// # Errors
    /// When `out` can't be written.
    pub(crate) fn write_places(&self, out: &mut impl io::Write) -> io::Result<()> {
        write!(out, "  ")?;
        self.ledger.write(out)?;
        let inconsistent = self.ledger.inconsistent;
        if inconsistent > 0 {
            writeln!(
                out,
                "  {inconsistent} packets with inconsistent times were skipped: please report this \
                 (--debug has them)"
            )?;
        }
        for loss in self.losses.kinds().filter(|loss| loss.count > 0) {
            write_counts(&[(loss.count, loss.meaning)], out)?;
            if loss.name == Some(DROPPED_AT_SOCKET) {
                self.losses.drops.write(out)?;
            }
        }
        if self.losses.missed_probes.is_none() {
            writeln!(out, "  this kernel does not count skipped calls")?;
        }
        match self.cost {
            Some(cost) => cost.write(self.ledger.seen, out),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_inconsistent_has_a_sentence() {
        let text = |inconsistent| {
            let ledger = Ledger { seen: 5, shown: 5 - inconsistent, inconsistent, ..Ledger::default() };
            let losses = Losses { missed_probes: Some(0), ..Losses::default() };
            let balance = Balance {
                packets: [0; 2],
                elapsed: Duration::ZERO,
                losses: &losses,
                ledger: &ledger,
                cost: None,
            };
            let mut out = Vec::new();
            balance.write_places(&mut out).expect("memory can be written");
            String::from_utf8(out).expect("ASCII")
        };
        assert_eq!(text(0), "  5 packets seen = 5 shown\n");
        assert_eq!(
            text(2),
            "  5 packets seen = 3 shown + 2 with inconsistent times\n  \
             2 packets with inconsistent times were skipped: please report this (--debug has them)\n"
        );
    }
}
