//! Every kind of loss, in words.

use net_latency_common::{Counter, Counters};

use super::drops::Drops;

/// What became of lines that the reader of the output did not take in time at the end.
pub(crate) const UNWRITTEN: &str = "lines not written at the end: the output was not read";

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
    /// What was lost and, where there is one, the remedy.
    pub meaning: &'static str,
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
            meaning: "received packets were evicted from a full table: unread for too long, or dropped unseen",
        };
        let missed = Loss {
            name: None,
            count: self.missed_probes.unwrap_or(0),
            is_lost_line: false,
            meaning: "calls of traced functions were skipped by the kernel: their packets have gaps or no line",
        };
        let unwritten =
            Loss { name: Some("unwritten"), count: self.unwritten, is_lost_line: true, meaning: UNWRITTEN };
        let not_kept = Loss {
            name: Some("not_kept"),
            count: self.not_kept,
            is_lost_line: true,
            meaning: "packets not kept: a recording that was being written used the memory; more --memory helps",
        };
        let held_back = Loss {
            name: Some("slow_held_back"),
            count: self.slow_held_back,
            is_lost_line: false,
            meaning: "slow packets were counted but not written: more than --slower-rate allows",
        };
        let slow_unwritten = Loss {
            name: Some("slow_unwritten"),
            count: self.slow_unwritten,
            is_lost_line: false,
            meaning: "slow packets were counted but not written: the output was not read",
        };
        let slow_inconsistent = Loss {
            name: Some("slow_inconsistent"),
            count: self.slow_inconsistent,
            is_lost_line: false,
            meaning: "slow packets were counted but not written: their times are inconsistent; please report this",
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
fn describe(counter: Counter) -> Option<(&'static str, bool, &'static str)> {
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
            "packets were skipped at random, since more came than the output takes: a filter, or a faster output, helps",
        ),
        Counter::RingFull => {
            ("ring_full", true, "packets lost: the ring buffer was full; a larger --buffer or a filter helps")
        }
        Counter::MapFull => ("map_full", true, "packets lost: the table of packets in flight, or their connection's share of it, was full; a filter helps"),
        Counter::SocketLost => {
            ("socket_table_full", false, "times the table of sockets was full: lines are missing or have gaps; a filter helps")
        }
        Counter::StampLost => {
            ("stage_table_full", false, "stages or write calls not stored: their table was full, so lines have gaps; a filter helps")
        }
        Counter::UnmatchedIn => (
            "packet_unseen", false,
            "reads without a matching packet: it came before the start, or was evicted",
        ),
        Counter::DroppedIn => (DROPPED_AT_SOCKET, false, "received packets were dropped after reaching TCP or UDP (full or closed socket)"),
        Counter::UnreadIn => {
            ("unread_at_close", false, "received segments were unread when their socket closed")
        }
        Counter::UnfinishedOut => ("never_queued", false, "sent packets were dropped on the way to a device queue (netfilter, no route, no neighbour)"),
        Counter::OvertakenOut => (
            "overtaken", false,
            "sent packets have no line: they waited on the way to a device queue (ARP, NFQUEUE) while the next one was sent",
        ),
        Counter::NotFollowedIn => {
            ("mptcp", false, "received MPTCP packets have no line: the connection has several subflows, or this kernel's MPTCP is not followed")
        }
        Counter::ProcessLost => {
            ("process_table_full", false, "processes of COMMAND not followed: their table was full, so their packets are not shown")
        }
        Counter::HistogramFull => {
            ("bucket_table_full", true, "packets lost: there was no room for a new bucket; more --buckets or a filter helps")
        }
        Counter::TimeLost => {
            ("times_lost", false, "times of a stage lost: there was no room for a new bucket; more --buckets or a filter helps")
        }
        Counter::SlowLost => (
            "slow_ring_full", false,
            "slow packets were counted but not written: too many came at once, or the output is slow",
        ),
    };
    Some(words)
}
