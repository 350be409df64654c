//! Where packets are on the kernel side.

use net_latency_common::{Counter, Counters};

/// Where packets are. While programs run this can't be seen at one moment: packets counted before the look at the maps had left, and those
/// counted after it had come.
pub(crate) struct Census {
    /// The counters before.
    pub before: Counters,
    /// Received packets that wait for an application.
    pub waiting: u64,
    /// Packets finished by then, in ns of `CLOCK_MONOTONIC`, are among the counters after.
    pub at_ns: u64,
    /// The counters after.
    pub after: Counters,
}

impl Census {
    /// What the counters say, between whose readings N packets were found in the maps that evict.
    #[must_use]
    pub(crate) fn new(before: Counters, spilled: u64, at_ns: u64, after: Counters) -> Self {
        let net = |came, left| after.get(came).saturating_sub(before.get(left));
        // A walk begins again where a packet that it has come to is taken away (`htab_map_get_next_key`).
        let spilled = spilled.min(net(Counter::Spilled, Counter::SpilledTaken));
        // Nothing is evicted from slots: what came and has not left is there.
        let in_slots = |counters: &Counters| {
            let all = counters.get(Counter::Stored).saturating_sub(counters.get(Counter::Spilled));
            all.saturating_sub(
                counters.get(Counter::Taken).saturating_sub(counters.get(Counter::SpilledTaken)),
            )
        };
        Self { before, waiting: in_slots(&after) + spilled, at_ns, after }
    }

    /// Whether no packet has moved while this was taken, so that it is of one moment.
    #[must_use]
    pub(crate) fn is_of_a_moment(&self) -> bool {
        self.before == self.after
    }

    /// Received packets that newer ones pushed out of a full map: at least N, and exactly if nothing moved
    /// meanwhile.
    #[must_use]
    pub(crate) fn evicted(&self) -> u64 {
        let moved = self.after.since(&self.before);
        let moved = moved.get(Counter::Stored) + moved.get(Counter::Taken);
        let known = self.after.get(Counter::Taken) + self.waiting + moved;
        self.after.get(Counter::Stored).saturating_sub(known)
    }
}
