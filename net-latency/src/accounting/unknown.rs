//! Why times are unknown, in words and for programs.

use std::io;

use net_latency_common::{UNKNOWNS, Unknown};
use serde::{Serialize, Serializer};

/// How many times are unknown for each reason, by its discriminant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reasons(pub [u64; UNKNOWNS]);

impl Reasons {
    /// Adds what another one counts.
    pub(crate) fn add(&mut self, other: &[u64; UNKNOWNS]) {
        self.0.iter_mut().zip(other).for_each(|(sum, count)| *sum += count);
    }

    /// Writes a line for each reason that there is.
    ///
    /// # Errors
    /// When `out` can't be written.
    pub(crate) fn write(&self, out: &mut impl io::Write) -> io::Result<()> {
        for (reason, count) in Unknown::ALL.into_iter().zip(self.0).filter(|(_, count)| *count > 0) {
            writeln!(out, "  {count} unknown, {}", meaning(reason))?;
        }
        Ok(())
    }
}

/// An object with all reasons by name.
impl Serialize for Reasons {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(Unknown::ALL.map(reason_name).into_iter().zip(self.0))
    }
}

/// Its name in JSON and among labels, which is part of the interface.
#[must_use]
pub(crate) const fn reason_name(reason: Unknown) -> &'static str {
    match reason {
        Unknown::BeforeStart => "before_start",
        Unknown::NoStamp => "no_stamp",
        Unknown::Ambiguous => "ambiguous",
        Unknown::SentBefore => "retransmission",
        Unknown::WriteUnseen => "write_unseen",
        Unknown::WriteEvicted => "write_evicted",
        Unknown::Contradictory => "contradictory",
        Unknown::ReaderUnseen => "reader_unseen",
        Unknown::QueueDrop => "queue_drop",
        Unknown::SentAgain => "sent_again",
        Unknown::Unacknowledged => "unacknowledged",
        Unknown::NoRoom => "no_room",
        Unknown::OtherThread => "other_thread",
    }
}

fn meaning(reason: Unknown) -> &'static str {
    match reason {
        Unknown::BeforeStart => "the packet was in flight when tracing began",
        Unknown::NoStamp => "stamp missing: the kernel skipped a hook, or the skb was replaced",
        Unknown::Ambiguous => "several copies of the segment came before it was read",
        Unknown::SentBefore => "retransmission: only first transmissions have these times",
        Unknown::WriteUnseen => {
            "write call not seen: made before tracing or during another, skipped, or MPTCP"
        }
        Unknown::WriteEvicted => "write call evicted from a full table: a filter helps",
        Unknown::Contradictory => "stamps contradict each other: the kernel skipped a hook",
        Unknown::ReaderUnseen => {
            "the reader's call was not seen: its first read, or a read inside the kernel"
        }
        Unknown::QueueDrop => "the device's queue dropped the packet",
        Unknown::SentAgain => "its bytes were sent again, so no ACK can be matched to this packet",
        Unknown::Unacknowledged => "no ACK came before the connection, or tracing, ended",
        Unknown::NoRoom => "too many packets waited for ACKs or in queues: a filter helps",
        Unknown::OtherThread => "one thread read the request, and another answered it",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_its_words() {
        let mut out = Vec::new();
        Reasons(std::array::from_fn(|index| index as u64 + 1))
            .write(&mut out)
            .expect("memory can be written");
        let text = String::from_utf8(out).expect("ASCII");
        assert!(text.lines().all(|line| line.len() <= 90), "{text}");
        insta::assert_snapshot!(text);
    }
}
