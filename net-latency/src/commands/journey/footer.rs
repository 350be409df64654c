//! The summary at the end.

use std::io::{self, Write as _};

use serde::Serialize;

use super::summary::{StageObject, Summary};
use crate::{
    accounting::{Human, object::Head},
    message::{counted, write_counts},
    output::write_footer,
    request::FooterFormat,
};

/// What became of the packets that were followed, as JSON has it; docs/footer.schema.json describes it.
#[derive(Debug, Serialize)]
pub(super) struct Footer {
    #[serde(flatten)]
    pub(super) head: Head,
    pub(super) shown: u64,
    /// Packets alike of which those shown are the typical ones; `None` if they were not chosen so.
    pub(super) typical_of: Option<u64>,
    /// The median of these.
    pub(super) typical_p50_ns: Option<u64>,
    pub(super) followed: u64,
    /// Followed packets that a filter excluded in the end.
    pub(super) filtered: u64,
    /// Packets that were given up since too many waited on their socket.
    pub(super) given_up: u64,
    /// Rows for which the ring buffer had no room.
    pub(super) lost: u64,
    /// Rows that were another packet's.
    pub(super) rows_of_others: u64,
    /// Rows beyond what a packet can have.
    pub(super) rows_beyond: u64,
    /// Calls of traced functions that the kernel skipped; `None` where it doesn't count them.
    pub(super) skipped_calls: Option<u64>,
    /// The stages of the packets that were shown.
    pub(super) stages: Vec<StageObject>,
}

impl Footer {
    /// Writes it; `filtered` says what became of those that a filter excluded, and `summary` is of those that were shown.
    pub(super) fn write(
        &self,
        form: FooterFormat,
        summary: &Summary,
        filtered: &str,
        out: &mut Vec<u8>,
    ) -> io::Result<()> {
        write_footer(form, out, |out| self.write_text(summary, filtered, out), || self)
    }

    fn write_text(&self, summary: &Summary, filtered: &str, out: &mut Vec<u8>) -> io::Result<()> {
        let Self { shown, followed, lost, .. } = self;
        let shown = counted(*shown, "packet");
        writeln!(out, "net-latency: {shown} shown, {followed} followed, {lost} rows lost")?;
        summary.write(out)?;
        if let (Some(of), Some(p50_ns)) = (self.typical_of, self.typical_p50_ns) {
            writeln!(out, "  typical: of {of} packets of that process and direction, p50 {}", Human(p50_ns))?;
        }
        let fates = [
            (self.filtered, ("packet", filtered)),
            (self.given_up, ("packet", "no longer followed: more than 4 followed ones waited on one socket")),
            (self.rows_of_others, ("row", "of another packet skipped")),
            (self.rows_beyond, ("row", "skipped: at most 4096 per packet")),
            (
                self.skipped_calls.unwrap_or(0),
                (
                    "call",
                    "of traced functions skipped by the kernel: packets lack rows, or were not followed",
                ),
            ),
        ];
        write_counts(&fates, out)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use insta::assert_snapshot;

    use super::*;
    use crate::accounting::object::{Kind, View, tests::valid};

    #[test]
    fn each_packet_and_row_that_is_not_shown_is_told() {
        let write = |form, filtered: &str, rest: u64| {
            let footer = Footer {
                head: Head::new(Kind::End, View::Journey, Duration::from_millis(2500)),
                shown: 2,
                typical_of: (rest > 0).then_some(57),
                typical_p50_ns: (rest > 0).then_some(212_000),
                followed: 2643,
                filtered: 2641 * rest,
                given_up: 3 * rest,
                lost: 4 * rest,
                rows_of_others: 5 * rest,
                rows_beyond: 6 * rest,
                skipped_calls: Some(7 * rest),
                stages: Summary::default().objects(),
            };
            let mut out = Vec::new();
            footer.write(form, &Summary::default(), filtered, &mut out).expect("memory can be written");
            String::from_utf8(out).expect("ASCII")
        };
        let text = |rest| write(FooterFormat::Text, "not dropped", rest);
        assert_snapshot!(text(0) + &text(1));
        assert_eq!(write(FooterFormat::None, "", 1), "");
        let object = write(FooterFormat::Json, "", 1);
        assert_eq!(valid(&object)["filtered"], 2641);
        assert_snapshot!("for_programs", object);
    }
}
