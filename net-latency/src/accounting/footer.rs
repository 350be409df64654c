//! What closes a run: counts, times, the slowest packets, and every kind of loss.

use std::io;

use super::{
    Summary,
    balance::Balance,
    object::{Kind, Object, View},
};
use crate::{clock::Zone, output::write_footer, request::FooterFormat};

/// The footer of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Footer<'a> {
    /// Where its packets are, and what that has cost.
    pub balance: Balance<'a>,
    /// Their times, where they were summed up.
    pub summary: &'a Summary,
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
        let Self { balance, summary, view, zone } = *self;
        let text = |out: &mut Vec<u8>| {
            balance.write_counts(out)?;
            summary.write(zone, out)?;
            balance.write_places(out)
        };
        write_footer(form, out, text, || Object::of_summary(Kind::End, view, &balance, summary, zone))
    }
}
