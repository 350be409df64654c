//! What is said at the end.

use std::io::{self, Write as _};

use serde::Serialize;

use super::summary::{StageObject, Summary};
use crate::{accounting::object::Head, output::write_json, request::FooterFormat};

/// What became of the packets that were followed, as JSON has it; docs/footer.schema.json describes it.
#[derive(Debug, Serialize)]
pub(super) struct Footer {
    #[serde(flatten)]
    pub(super) head: Head,
    pub(super) shown: u64,
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
    /// Writes it; `is_slower` says whether only slow packets were asked for, and `summary` is of those that were shown.
    pub(super) fn write(
        &self,
        form: FooterFormat,
        summary: &Summary,
        is_slower: bool,
        out: &mut Vec<u8>,
    ) -> io::Result<()> {
        match form {
            FooterFormat::Text => self.write_text(summary, is_slower, out),
            FooterFormat::Json => {
                write_json(self, out);
                Ok(())
            }
            FooterFormat::None => Ok(()),
        }
    }

    fn write_text(&self, summary: &Summary, is_slower: bool, out: &mut Vec<u8>) -> io::Result<()> {
        let Self { shown, followed, lost, .. } = self;
        writeln!(out, "net-latency: {shown} packets shown, {followed} followed, {lost} rows lost")?;
        summary.write(out)?;
        let filtered = if is_slower {
            "packets were faster than --slower, or excluded by another filter"
        } else {
            "packets were followed and then excluded by a filter"
        };
        for (count, words) in [
            (self.filtered, filtered),
            (self.given_up, "packets were given up: more than 4 followed ones waited on one socket"),
            (self.rows_of_others, "rows skipped that were another packet's"),
            (self.rows_beyond, "rows skipped: a packet has 4096 at most"),
            (
                self.skipped_calls.unwrap_or(0),
                "calls of traced functions were skipped by the kernel: packets lack rows, or were not followed",
            ),
        ] {
            if count > 0 {
                writeln!(out, "  {count} {words}")?;
            }
        }
        Ok(())
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
        let write = |form, is_slower, rest: u64| {
            let footer = Footer {
                head: Head::new(Kind::End, View::Journey, Duration::from_millis(2500)),
                shown: 2,
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
            footer.write(form, &Summary::default(), is_slower, &mut out).expect("memory can be written");
            String::from_utf8(out).expect("ASCII")
        };
        let text = |is_slower, rest| write(FooterFormat::Text, is_slower, rest);
        assert_snapshot!(text(false, 0) + &text(false, 1) + &text(true, 1));
        assert_eq!(write(FooterFormat::None, true, 1), "");
        let object = write(FooterFormat::Json, true, 1);
        assert_eq!(valid(&object)["filtered"], 2641);
        assert_snapshot!("for_programs", object);
    }
}
