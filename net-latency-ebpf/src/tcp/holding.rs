//! What a connection keeps of why TCP holds bytes back ([`super::held`]).

use crate::bpf::entry::Field;
/// Why TCP holds back what it has, and since when; and for how long it did so for another reason before.
#[repr(C)]
pub(super) struct Holding {
    /// A [`Held`] as a number; 0 for none, or an unknown one.
    pub(super) reason: Field<u32>,
    pub(super) before: Field<u32>,
    pub(super) since: Field<u64>,
    pub(super) before_since: Field<u64>,
    pub(super) before_until: Field<u64>,
}

impl Holding {
    /// Whether TCP has stopped since the connection has been traced. What had stopped it before may have held its bytes until then.
    #[inline(always)]
    pub(super) fn is_known(&self) -> bool {
        self.since.get() != 0
    }

    /// Since when it is that, until `now`. A short time of something else in between counts: that reason has half of all at least.
    #[inline(always)]
    pub(super) fn start(&self, reason: u32, now: u64) -> u64 {
        let (since, until) = (self.since.get(), self.before_until.get());
        let is_short = since.wrapping_sub(until) < now.wrapping_sub(since);
        if self.before.get() == reason && is_short { self.before_since.get() } else { since }
    }

    /// Until `now` it was that.
    #[inline(always)]
    pub(super) fn end(&self, reason: u32, now: u64) {
        let start = self.start(reason, now);
        let until = self.before_until.get();
        let longest = until.wrapping_sub(self.before_since.get());
        // What ended longer ago than it lasted is half of no wait that lasts until now.
        let is_kept = now.wrapping_sub(start) < longest && now.wrapping_sub(until) < longest;
        if reason != 0 && !is_kept {
            self.before.set(reason);
            self.before_since.set(start);
            self.before_until.set(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REASON: u32 = 3;
    const OTHER: u32 = 4;

    /// Before it was that reason from 40 to 90.
    fn held() -> Holding {
        // SAFETY: numbers only, for which 0 is a value.
        let holding: Holding = unsafe { core::mem::zeroed() };
        holding.before.set(REASON);
        holding.before_since.set(40);
        holding.before_until.set(90);
        holding
    }

    #[test]
    fn a_short_time_of_something_else_counts() {
        let (reason, other) = (REASON, OTHER);
        let holding = held();
        holding.since.set(100);
        // Until now it has been that again for less than the time in between, as long, and longer.
        for (now, since) in [(105, 100), (110, 100), (111, 40)] {
            assert_eq!(holding.start(reason, now), since, "{now}");
            assert_eq!(holding.start(other, now), 100);
        }
    }

    #[test]
    fn the_longer_one_is_kept_while_it_may_be_half_of_a_wait() {
        let before = (REASON, 40, 90);
        for (reason, since, now, kept) in [
            // Shorter than that one by a little, and as long.
            (OTHER, 90, 139, before),
            (OTHER, 90, 140, (OTHER, 90, 140)),
            // Short, and that one ended less long ago than it lasted, and as long ago.
            (OTHER, 130, 139, before),
            (OTHER, 130, 140, (OTHER, 130, 140)),
            // The same again, which goes on.
            (REASON, 100, 115, (REASON, 40, 115)),
            // Nothing holds no bytes back.
            (0, 90, 300, before),
        ] {
            let holding = held();
            holding.since.set(since);
            holding.end(reason, now);
            let left = (holding.before.get(), holding.before_since.get(), holding.before_until.get());
            assert_eq!(left, kept, "{reason} from {since} to {now}");
        }
    }
}
