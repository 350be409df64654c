//! Every kind of loss, in words.

use net_latency_common::{Counter, Counters};

/// Packets that became no line, or a line with gaps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// What the kernel side counted, summed over all CPUs.
    pub counters: Counters,
    /// Received packets that newer ones pushed out of a full map before they were read.
    pub evicted_in: u64,
    /// Calls of hooks that the kernel skipped; `None` where it doesn't count them.
    pub missed_probes: Option<u64>,
    /// Lines with stamps that contradict each other.
    pub disordered: u64,
    /// Lines that the reader of the output did not take in time at the end.
    pub unwritten: u64,
}

/// One kind of loss, how often it happened, and what it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Times it happened.
    pub count: u64,
    /// Whether each time is a packet whose line is missing.
    pub is_lost_line: bool,
    /// What was lost and, where there is one, the remedy.
    pub meaning: &'static str,
}

impl Losses {
    /// All kinds, those that did not happen included.
    pub fn kinds(&self) -> impl Iterator<Item = Loss> {
        let counted = Counter::ALL.into_iter().filter_map(|counter| {
            let (is_lost_line, meaning) = describe(counter)?;
            Some(Loss { count: self.counters.get(counter), is_lost_line, meaning })
        });
        let evicted = Loss {
            count: self.evicted_in,
            is_lost_line: true,
            meaning: "received packets were pushed out by newer ones: unread for too long, or dropped unseen",
        };
        let missed = Loss {
            count: self.missed_probes.unwrap_or(0),
            is_lost_line: false,
            meaning: "calls of traced functions were skipped by the kernel: their packets have gaps or no line, or show the next call's time",
        };
        let disordered = Loss {
            count: self.disordered,
            is_lost_line: false,
            meaning: "lines had stamps that contradict each other: those stages are shown as unknown",
        };
        let unwritten = Loss {
            count: self.unwritten,
            is_lost_line: true,
            meaning: "lines were not taken by the reader of the output at the end",
        };
        counted.chain([evicted, missed, disordered, unwritten])
    }

    /// Lines that are missing: lines shown and these together are the finished packets.
    #[must_use]
    pub fn lines(&self) -> u64 {
        self.kinds().filter(|loss| loss.is_lost_line).map(|loss| loss.count).sum()
    }
}

/// Whether it costs a line each time, and its words; `None` for what is no loss.
fn describe(counter: Counter) -> Option<(bool, &'static str)> {
    let words = match counter {
        Counter::FilteredIn
        | Counter::FilteredOut
        | Counter::SeenOut
        | Counter::Stored
        | Counter::Taken
        | Counter::ControlIn
        | Counter::RejectedIn
        | Counter::Outside
        | Counter::Disordered => return None,
        Counter::Shed => (
            true,
            "packets were left out by chance, since more came than the output takes: a filter, or a faster output, helps",
        ),
        Counter::RingFull => {
            (true, "packets found the ring buffer full: a larger --buffer, or a filter, helps")
        }
        Counter::MapFull => (true, "packets found the table of packets in flight full: a filter helps"),
        Counter::SocketLost => {
            (false, "times the table of sockets was full: lines are missing or have gaps; a filter helps")
        }
        Counter::StampLost => {
            (false, "stages or write calls found their table full: lines have gaps; a filter helps")
        }
        Counter::UnmatchedIn => (
            false,
            "times an application took bytes whose packet was not seen: it came before the start, or was pushed out",
        ),
        Counter::DuplicateIn => {
            (false, "received segments brought nothing new: TCP had their bytes; no line of their own")
        }
        Counter::DroppedIn => (false, "received packets were dropped behind TCP or UDP: nobody took them"),
        Counter::UnreadIn => {
            (false, "received segments were not seen being read: their socket was closed first")
        }
        Counter::UnfinishedOut => (false, "sent packets never reached a device queue: dropped on the way"),
        Counter::UnmatchedOut => {
            (false, "sent packets whose write call was not seen: the first stage is unknown")
        }
        Counter::ProcessLost => {
            (false, "processes of the command found their table full: their packets are not shown")
        }
        Counter::HistogramFull => {
            (true, "packets found no room for a new bucket: more --buckets, or a filter, helps")
        }
        Counter::TimeLost => {
            (false, "times of a stage found no room for a new bucket: more --buckets, or a filter, helps")
        }
    };
    Some(words)
}
