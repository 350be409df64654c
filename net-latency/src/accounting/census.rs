//! What is where on the kernel side.

use net_latency_common::{Counter, Counters};

/// What is where. While programs run it can't be seen at one moment: what was counted before packets were looked for
/// had left, and what is counted after that had come.
pub struct Census {
    /// The counters before.
    pub before: Counters,
    /// Received packets that wait for an application.
    pub waiting: u64,
    /// What was finished by then, in ns of `CLOCK_MONOTONIC`, is among the counters after.
    pub at_ns: u64,
    /// The counters after.
    pub after: Counters,
}

impl Census {
    /// Received packets that newer ones pushed out of a full map: at least so many, and exactly if nothing moved
    /// meanwhile.
    #[must_use]
    pub fn evicted(&self) -> u64 {
        let moved = self.after.since(&self.before);
        let moved = moved.get(Counter::Stored) + moved.get(Counter::Taken);
        let known = self.after.get(Counter::Taken) + self.waiting + moved;
        self.after.get(Counter::Stored).saturating_sub(known)
    }
}
