//! What closes a run: counts, times, the slowest packets, and every kind of loss.

use std::{io, time::Duration};

use super::{
    Summary,
    balance::Balance,
    cost::Cost,
    ledger::Ledger,
    losses::Losses,
    object::{Kind, Object, View},
};
use crate::{clock::Zone, output::write_json, request::FooterFormat};

/// The footer of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Footer<'a> {
    /// Its packets, in and out.
    pub packets: [u64; 2],
    /// Their times, where they were summed up.
    pub summary: &'a Summary,
    /// How long it took.
    pub elapsed: Duration,
    /// What became no line.
    pub losses: &'a Losses,
    /// Where all packets are.
    pub ledger: &'a Ledger,
    /// What it has cost.
    pub cost: &'a Cost,
    /// What shows the packets.
    pub view: View,
    /// Whose time is shown.
    pub zone: Zone,
}

impl Footer<'_> {
    /// Writes it in this form.
    ///
    /// # Errors
    /// When `out` can't be written.
    pub(crate) fn write(&self, form: FooterFormat, out: &mut Vec<u8>) -> io::Result<()> {
        let Self { packets, summary, elapsed, losses, ledger, cost, view, zone } = *self;
        let balance = Balance { packets, elapsed, losses, ledger, cost: Some(cost) };
        match form {
            FooterFormat::None => Ok(()),
            FooterFormat::Json => {
                write_json(&Object::of_summary(Kind::End, view, &balance, summary, zone), out);
                Ok(())
            }
            FooterFormat::Text => {
                balance.write_counts(out)?;
                summary.write(zone, out)?;
                balance.write_places(out)
            }
        }
    }
}
