//! The state of one direction of a service.

use net_latency_common::Held;

use super::{holders::Holders, item::Item, windows::Windows};
use crate::accounting::Times;

/// Longer times count as this, ns: 73 minutes. It bounds the size of a distribution.
pub(super) const LONGEST_NS: u64 = (1 << 42) - 1;
/// Most services of this machine that are told apart as those whose windows hold packets back.
const PEERS: usize = 8;

/// One direction of a service.
#[derive(Clone, Debug, Default)]
pub(super) struct Side {
    /// Packets with data that were sent for the first time, or received.
    pub(super) packets: u64,
    /// By [`Item`].
    pub(super) times: [Times; Item::COUNT],
    /// From the first of the basic stages to the last.
    pub(super) total: Times,
    /// Incoming packets whose time between TCP or UDP and the application is unknown.
    pub(super) unknown: u64,
    /// Packets that TCP sent again, and those of them that the timer sent.
    pub(super) resent: u64,
    pub(super) by_timer: u64,
    /// Packets that the device's queue dropped.
    pub(super) dropped: u64,
    /// Segments sent again that the peer had already, as it said.
    pub(super) needless: u64,
    /// The kernel's smoothed round-trip times.
    pub(super) rtt: Times,
    /// ACKs that may have waited for the peer's timer.
    pub(super) delayed_acks: u64,
    /// Packets that TCP held for long, those of them in a stream, and those before a closed window.
    pub(super) held: u64,
    pub(super) held_in_stream: u64,
    pub(super) held_by_peer: u64,
    /// Why TCP held them, where that is known, in the order of [`Held::ALL`].
    pub(super) held_for: [u64; Held::ALL.len()],
    /// Packets that the peer's window held back for long, by the services of this machine that they were for: as many as there is
    /// room for.
    pub(super) for_peers: Vec<(usize, u64)>,
    /// The processes that had the CPU while readers waited for it for long.
    pub(super) holders: Holders,
    /// Windows with packets, and those with one that took long in this machine's kernel.
    pub(super) active: Windows,
    pub(super) slow: Windows,
}

impl Side {
    pub(super) fn times(&self, item: Item) -> &Times {
        &self.times[item as usize]
    }

    /// Packets that TCP sent again, or that the device's queue dropped, whichever are more: most are both.
    pub(super) fn sent_again_or_dropped(&self) -> u64 {
        self.resent.max(self.dropped)
    }

    /// Why TCP held back half of what it held for long, or more.
    pub(super) fn main_reason(&self) -> Option<Held> {
        let is_main = |held: &Held| self.held_for[*held as usize - 1] * 2 >= self.held.max(1);
        Held::ALL.into_iter().find(is_main)
    }

    /// Whether the peer's window held back half of what TCP held for long, or more.
    pub(super) fn is_held_by_peer(&self) -> bool {
        self.main_reason() == Some(Held::ReceiveWindow) || self.held_by_peer * 2 >= self.held.max(1)
    }

    /// Adds another's.
    pub(super) fn join(&mut self, other: &Self) {
        let Self { packets, times, total, unknown, resent, by_timer, dropped, delayed_acks, .. } = other;
        for (own, times) in self.times.iter_mut().zip(times) {
            own.merge(times);
        }
        self.total.merge(total);
        self.packets += packets;
        self.unknown += unknown;
        self.resent += resent;
        self.by_timer += by_timer;
        self.dropped += dropped;
        self.delayed_acks += delayed_acks;
        self.needless += other.needless;
        self.rtt.merge(&other.rtt);
        self.holders.join(&other.holders);
        for (peer, count) in &other.for_peers {
            self.add_for_peer(*peer, *count);
        }
        let Self { held, held_in_stream, held_by_peer, held_for, active, slow, .. } = other;
        self.held += held;
        self.held_in_stream += held_in_stream;
        self.held_by_peer += held_by_peer;
        for (own, count) in self.held_for.iter_mut().zip(held_for) {
            *own += count;
        }
        self.active = self.active.with(active);
        self.slow = self.slow.with(slow);
    }

    /// The window of that service held N packets back.
    pub(super) fn add_for_peer(&mut self, peer: usize, count: u64) {
        if let Some((_, sum)) = self.for_peers.iter_mut().find(|(known, _)| *known == peer) {
            *sum += count;
        } else if self.for_peers.len() < PEERS {
            self.for_peers.push((peer, count));
        }
    }

    pub(super) fn add(&mut self, item: Item, ns: Option<u64>) {
        if let Some(ns) = ns {
            self.times[item as usize].add(ns.min(LONGEST_NS));
        }
    }
}
