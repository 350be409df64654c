//! What an end of a connection waits for: answers to datagrams, and ACKs of what TCP's timer sends again.

use net_latency_common::Direction;

/// A datagram that had no answer for this long has none, ns, until one comes after all.
const PATIENCE_NS: i64 = 1_000_000_000;
/// As often TCP's timer has to send the same bytes, with nothing coming back.
pub(super) const LEAST_ROW: u32 = 3;
/// What one end of a connection, or of datagrams, waits for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Awaited {
    /// Datagrams sent and not answered yet, when the first and the last of them was sent, ns since 1970, and those given up.
    waiting: u64,
    first_ns: i64,
    last_ns: i64,
    given_up: u64,
    /// The bytes that TCP's timer has sent last, how often in a row, and for how long they have waited by now, ns.
    seq: u32,
    row: u32,
    dead_ns: u64,
}

/// What a client has waited for in vain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Unanswered {
    /// Datagrams, and how long it has waited for answers to them, ns.
    pub(super) datagrams: u64,
    pub(super) waited_ns: u64,
    /// Connections whose bytes had no ACK, and for how long that was so, ns.
    pub(super) connections: u64,
    pub(super) dead_ns: u64,
}

impl Unanswered {
    /// Adds another's.
    pub(super) fn join(&mut self, other: &Self) {
        self.datagrams += other.datagrams;
        self.waited_ns = self.waited_ns.saturating_add(other.waited_ns);
        self.connections += other.connections;
        self.dead_ns = self.dead_ns.saturating_add(other.dead_ns);
    }
}

impl Awaited {
    /// A client has sent a datagram, or got one.
    pub(super) fn see(&mut self, direction: Direction, at_ns: i64, sum: &mut Unanswered) {
        match direction {
            Direction::Out => {
                self.give_up(at_ns, sum);
                if self.waiting == 0 {
                    self.first_ns = at_ns;
                }
                self.waiting += 1;
                self.last_ns = at_ns;
            }
            Direction::In if self.waiting > 0 => self.waiting -= 1,
            // It came late.
            Direction::In if self.given_up > 0 => {
                self.given_up -= 1;
                sum.datagrams = sum.datagrams.saturating_sub(1);
            }
            Direction::In => {}
        }
    }

    /// Gives up at that time what has waited for too long then.
    pub(super) fn give_up(&mut self, now_ns: i64, sum: &mut Unanswered) {
        if self.waiting > 0 && now_ns.saturating_sub(self.last_ns) >= PATIENCE_NS {
            sum.datagrams += self.waiting;
            sum.waited_ns = sum.waited_ns.saturating_add(now_ns.abs_diff(self.first_ns));
            self.given_up += self.waiting;
            self.waiting = 0;
        }
    }

    /// TCP's timer has sent these bytes again, for the first time so long ago.
    pub(super) fn sent_again(&mut self, seq: u32, age_ns: u64, sum: &mut Unanswered) {
        if self.row == 0 || self.seq != seq {
            (self.seq, self.row, self.dead_ns) = (seq, 0, 0);
        }
        self.row += 1;
        if self.row >= LEAST_ROW {
            sum.connections += u64::from(self.row == LEAST_ROW);
            sum.dead_ns = sum.dead_ns.saturating_add(age_ns.saturating_sub(self.dead_ns));
            self.dead_ns = age_ns.max(self.dead_ns);
        }
    }

    /// Something has come back.
    pub(super) fn came(&mut self) {
        self.row = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    #[test]
    fn a_datagram_without_an_answer_is_given_up_after_a_second() {
        let (mut awaited, mut sum) = (Awaited::default(), Unanswered::default());
        // Two requests at once, as resolvers send them, of which one is answered.
        for (direction, ms) in [(Direction::Out, 0), (Direction::Out, 1), (Direction::In, 5)] {
            awaited.see(direction, ms * MS, &mut sum);
        }
        awaited.give_up(900 * MS, &mut sum);
        assert_eq!(sum, Unanswered::default());
        // It is sent again.
        awaited.see(Direction::Out, 5_001 * MS, &mut sum);
        let once = Unanswered { datagrams: 1, waited_ns: 5_001_000_000, ..Unanswered::default() };
        assert_eq!(sum, once);
        awaited.see(Direction::In, 5_010 * MS, &mut sum);
        awaited.give_up(60_000 * MS, &mut sum);
        assert_eq!(sum, once);
        // The first one came late, and the next without a request.
        awaited.see(Direction::In, 60_001 * MS, &mut sum);
        awaited.see(Direction::In, 60_002 * MS, &mut sum);
        assert_eq!(sum.datagrams, 0);
    }

    #[test]
    fn the_same_bytes_three_times_are_a_dead_connection() {
        let (mut awaited, mut sum) = (Awaited::default(), Unanswered::default());
        for (seq, age) in [(1, 200), (1, 600), (1_001, 200), (1_001, 600)] {
            awaited.sent_again(seq, age, &mut sum);
        }
        awaited.came();
        awaited.sent_again(1_001, 1_400, &mut sum);
        assert_eq!(sum, Unanswered::default());
        for age in [3_000, 6_200, 12_600] {
            awaited.sent_again(1_001, age, &mut sum);
        }
        assert_eq!((sum.connections, sum.dead_ns), (1, 12_600));
    }
}
