//! Every kind of loss, in words.

use net_latency_common::{Counter, Counters};

use super::drops::Drops;

/// What became of lines that the reader of the output did not take in time at the end.
pub(crate) const UNWRITTEN: (&str, &str) = ("line", "not written at the end: the output was not read");

/// The name of the losses of which [`Losses::drops`] says whose they are.
pub(super) const DROPPED_AT_SOCKET: &str = "dropped_at_socket";

/// Packets that became no line, or a line with gaps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// What the kernel side counted, summed over all CPUs.
    pub counters: Counters,
    /// Whose sockets dropped packets; not all of those in the counter have a place there.
    pub drops: Drops,
    /// Received packets that newer ones evicted from a full map before they were read.
    pub evicted_in: u64,
    /// Calls of hooks that the kernel skipped; `None` where it doesn't count them.
    pub missed_probes: Option<u64>,
    /// Lines that the reader of the output did not take in time at the end.
    pub unwritten: u64,
    /// Packets that `record` did not keep: a recording that was being written used the memory.
    pub not_kept: u64,
    /// Slow packets that `export` counted, and wrote no line of: there were more than it was to write.
    pub slow_held_back: u64,
    /// Slow packets that `export` wrote no line of: the reader of the output took none.
    pub slow_unwritten: u64,
    /// Slow packets that `export` wrote no line of: their times can't be theirs ([`super::LeftOut::inconsistent`]).
    pub slow_inconsistent: u64,
}

/// One kind of loss, how often it happened, and what it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Its name among the `losses` in JSON, which is part of the interface; `None` for what has a field of its own.
    pub name: Option<&'static str>,
    /// Times it happened.
    pub count: u64,
    /// Whether each time is a packet whose line is missing.
    pub is_lost_line: bool,
    /// What was lost, what became of it and, where there is one, the remedy.
    pub meaning: (&'static str, &'static str),
}

impl Losses {
    /// All kinds, those that did not happen included.
    pub fn kinds(&self) -> impl Iterator<Item = Loss> {
        let counted = Counter::ALL.into_iter().filter_map(|counter| {
            let (name, is_lost_line, meaning) = describe(counter)?;
            Some(Loss { name: Some(name), count: self.counters.get(counter), is_lost_line, meaning })
        });
        let evicted = Loss {
            name: None,
            count: self.evicted_in,
            is_lost_line: true,
            meaning: ("received packet", "evicted from a full table: unread for too long, or dropped unseen"),
        };
        let missed = Loss {
            name: None,
            count: self.missed_probes.unwrap_or(0),
            is_lost_line: false,
            meaning: ("call", "of traced functions skipped by the kernel: packets have gaps or no line"),
        };
        let unwritten =
            Loss { name: Some("unwritten"), count: self.unwritten, is_lost_line: true, meaning: UNWRITTEN };
        let not_kept = Loss {
            name: Some("not_kept"),
            count: self.not_kept,
            is_lost_line: true,
            meaning: (
                "packet",
                "not kept: a recording that was being written used the memory; more --memory helps",
            ),
        };
        let held_back = Loss {
            name: Some("slow_held_back"),
            count: self.slow_held_back,
            is_lost_line: false,
            meaning: ("slow packet", "counted but not written: more than --slower-rate allows"),
        };
        let slow_unwritten = Loss {
            name: Some("slow_unwritten"),
            count: self.slow_unwritten,
            is_lost_line: false,
            meaning: ("slow packet", "counted but not written: the output was not read"),
        };
        let slow_inconsistent = Loss {
            name: Some("slow_inconsistent"),
            count: self.slow_inconsistent,
            is_lost_line: false,
            meaning: ("slow packet", "counted but not written: inconsistent times; please report this"),
        };
        counted.chain([evicted, missed, unwritten, not_kept, held_back, slow_unwritten, slow_inconsistent])
    }

    /// The losses between `earlier` and this.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let skipped = |now: u64| now.saturating_sub(earlier.missed_probes.unwrap_or(0));
        Self {
            counters: self.counters.since(&earlier.counters),
            drops: self.drops.since(&earlier.drops),
            evicted_in: self.evicted_in.saturating_sub(earlier.evicted_in),
            missed_probes: self.missed_probes.map(skipped),
            unwritten: self.unwritten.saturating_sub(earlier.unwritten),
            not_kept: self.not_kept.saturating_sub(earlier.not_kept),
            slow_held_back: self.slow_held_back.saturating_sub(earlier.slow_held_back),
            slow_unwritten: self.slow_unwritten.saturating_sub(earlier.slow_unwritten),
            slow_inconsistent: self.slow_inconsistent.saturating_sub(earlier.slow_inconsistent),
        }
    }

    /// Lines that are missing: lines shown and these together are the finished packets.
    #[must_use]
    pub fn lines(&self) -> u64 {
        self.kinds().filter(|loss| loss.is_lost_line).map(|loss| loss.count).sum()
    }
}

/// Its name, whether it costs a line each time, and its words; `None` if it is no loss.
fn describe(counter: Counter) -> Option<(&'static str, bool, (&'static str, &'static str))> {
    let words = match counter {
        Counter::FilteredIn
        | Counter::FilteredOut
        | Counter::SeenOut
        | Counter::Stored
        | Counter::Taken
        | Counter::Spilled
        | Counter::SpilledTaken
        | Counter::ControlIn
        | Counter::RejectedIn
        | Counter::Outside
        // Each of these has its place elsewhere: in the ledger, and among the reasons of unknown times.
        | Counter::DuplicateIn
        | Counter::UnmatchedOut => return None,
        Counter::Shed => (
            "skipped_at_random", true,
            ("packet", "skipped at random, since more came than the output takes: a filter, or a faster output, helps"),
        ),
        Counter::RingFull => {
            ("ring_full", true, ("packet", "lost: the ring buffer was full; a larger --buffer or a filter helps"))
        }
        Counter::MapFull => ("map_full", true, ("packet", "lost: the table of packets in flight, or their connection's share of it, was full; a filter helps")),
        Counter::SocketLost => {
            ("socket_table_full", false, ("time", "the table of sockets was full: lines are missing or have gaps; a filter helps"))
        }
        Counter::StampLost => {
            ("stage_table_full", false, ("time", "of a stage or write call not stored: a table was full, so lines have gaps; a filter helps"))
        }
        Counter::UnmatchedIn => (
            "packet_unseen", false,
            ("read", "without a matching packet: it came before the start, or was evicted"),
        ),
        Counter::DroppedIn => (DROPPED_AT_SOCKET, false, ("received packet", "dropped after reaching TCP or UDP (full or closed socket)")),
        Counter::UnreadIn => {
            ("unread_at_close", false, ("received segment", "unread when the socket closed"))
        }
        Counter::UnfinishedOut => ("never_queued", false, ("sent packet", "dropped on the way to a device queue (netfilter, no route, no neighbour)")),
        Counter::OvertakenOut => (
            "overtaken", false,
            ("sent packet", "without a line: overtaken by the next on the way to a device queue (ARP, NFQUEUE)"),
        ),
        Counter::NotFollowedIn => {
            ("mptcp", false, ("received packet", "without a line: read unseen (MPTCP by several subflows or not followed, or a skipped call)"))
        }
        Counter::ProcessLost => {
            ("process_table_full", false, ("process", "of COMMAND not followed: the table of processes was full, so packets are not shown"))
        }
        Counter::HistogramFull => {
            ("bucket_table_full", true, ("packet", "lost: there was no room for a new bucket; more --buckets or a filter helps"))
        }
        Counter::TimeLost => {
            ("times_lost", false, ("time", "of a stage lost: there was no room for a new bucket; more --buckets or a filter helps"))
        }
        Counter::SlowLost => (
            "slow_ring_full", false,
            ("slow packet", "counted but not written: too many came at once, or the output is slow"),
        ),
    };
    Some(words)
}
