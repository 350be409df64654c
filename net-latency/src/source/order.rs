//! Records in the order in which their packets were finished.
//!
//! The ring buffer has them in the order in which the programs reserved room in it: one that another CPU, a softirq or a preempting task
//! overtook comes late. So records are sorted, and the newest held back until the next read.

use std::mem;

/// Records sorted at a time.
const ROOM: usize = 2048;
/// How long a record may take from its packet's last stamp to its place in the ring buffer, ns. What takes longer comes late.
const HOLD_NS: u64 = 1_000_000;

/// A sorted piece of the stream of records, each by its place `P`: they themselves stay where they are.
#[derive(Debug)]
pub struct Order<P> {
    /// When each was finished and its place, in order. Never grows.
    keys: Vec<(u64, P)>,
    /// The next to be taken, and the first that is held back.
    next: usize,
    ready: usize,
    hold_ns: u64,
}

/// Nothing read yet.
impl<P: Clone> Default for Order<P> {
    fn default() -> Self {
        Self { keys: Vec::with_capacity(ROOM), next: 0, ready: 0, hold_ns: HOLD_NS }
    }
}

impl<P: Clone> Order<P> {
    /// Nothing is written any more, so that nothing need be held back.
    pub fn release(&mut self) {
        self.hold_ns = 0;
    }

    /// Whether none is ready.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.next == self.ready
    }

    /// The next in order, if one is ready.
    #[inline]
    pub fn take(&mut self) -> Option<P> {
        let (_, place) = self.keys[..self.ready].get(self.next)?;
        self.next += 1;
        Some(place.clone())
    }

    /// Records that were read and not taken yet.
    pub fn waiting(&self) -> impl Iterator<Item = P> {
        self.keys[self.next..].iter().map(|(_, place)| place.clone())
    }

    /// When none is ready: reads more, until `read` has no more. It returns when a packet was finished, and its record's place.
    /// `now_ns` is a time, of the clock of the stamps, before that.
    ///
    /// # Errors
    /// What `read` fails with.
    #[inline]
    pub fn refill<E>(
        &mut self,
        now_ns: u64,
        mut read: impl FnMut() -> Result<Option<(u64, P)>, E>,
    ) -> Result<(), E> {
        self.keys.drain(..mem::take(&mut self.next));
        while self.keys.len() < ROOM
            && let Some(key) = read()?
        {
            self.keys.push(key);
            sift(&mut self.keys);
        }
        self.ready = if self.keys.len() == ROOM {
            // More are waiting, which are newer than most of these, whatever the time.
            ROOM / 2
        } else if self.hold_ns == 0 {
            self.keys.len()
        } else {
            let horizon = now_ns.saturating_sub(self.hold_ns);
            self.keys.partition_point(|(completion_ns, _)| *completion_ns <= horizon)
        };
        Ok(())
    }
}

/// Puts the last key where it belongs among those before it, which are in order. Few have to move: a record comes late
/// only if others were finished while a program took it to the ring buffer.
#[inline]
fn sift<P>(keys: &mut [(u64, P)]) {
    let mut place = keys.len() - 1;
    while place > 0 && keys[place - 1].0 > keys[place].0 {
        keys.swap(place - 1, place);
        place -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    /// Takes all that is ready after a refill with `waiting`.
    fn drain(order: &mut Order<u64>, now_ns: u64, waiting: &mut impl Iterator<Item = u64>) -> Vec<u64> {
        let mut taken = Vec::new();
        loop {
            order.refill(now_ns, || Ok::<_, Infallible>(waiting.next().map(|at| (at, at)))).unwrap();
            let before = taken.len();
            while let Some(at) = order.take() {
                taken.push(at);
            }
            if taken.len() == before {
                return taken;
            }
        }
    }

    #[test]
    fn the_newest_wait_for_those_that_come_late() {
        let mut order = Order::default();
        let now = 10 * HOLD_NS;
        let late = now - HOLD_NS / 2;
        assert_eq!(drain(&mut order, now, &mut [late + 1, 5, 3].into_iter()), [3, 5]);
        assert_eq!(drain(&mut order, now + HOLD_NS, &mut [late].into_iter()), [late, late + 1]);
    }

    #[test]
    fn nothing_is_held_back_at_the_end() {
        let mut order = Order::default();
        assert!(drain(&mut order, 0, &mut [2, 1].into_iter()).is_empty());
        order.release();
        assert_eq!(drain(&mut order, 0, &mut [3].into_iter()), [1, 2, 3]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 32, max_shrink_iters: 64, ..ProptestConfig::default() })]

        /// However they are read, all come, and in order as long as none is later than is held back, and half of the room
        /// suffices for those that are.
        #[test]
        fn all_come_in_order(
            steps in proptest::collection::vec((2 * HOLD_NS / ROOM as u64 + 1..2_000, 0..HOLD_NS), 1..12_000),
            pieces in proptest::collection::vec(1..6_000usize, 1..20),
        ) {
            // Times of completion, and when each got its place in the ring buffer.
            let mut at = 0;
            let mut written: Vec<(u64, u64)> = steps
                .iter()
                .map(|(step, delay)| {
                    at += step;
                    (at + delay, at)
                })
                .collect();
            written.sort_unstable();
            let mut order = Order::default();
            let mut taken = Vec::new();
            let mut rest = written.as_slice();
            for piece in pieces {
                let (now, later) = rest.split_at(piece.min(rest.len()));
                if let Some((now_ns, _)) = now.last() {
                    taken.extend(drain(&mut order, *now_ns, &mut now.iter().map(|(_, at)| *at)));
                }
                rest = later;
            }
            order.release();
            taken.extend(drain(&mut order, u64::MAX, &mut rest.iter().map(|(_, at)| *at)));
            let mut sorted: Vec<u64> = written.iter().map(|(_, at)| *at).collect();
            sorted.sort_unstable();
            let late = taken.windows(2).filter(|pair| pair[0] > pair[1]).count();
            taken.sort_unstable();
            prop_assert_eq!(taken, sorted);
            prop_assert_eq!(late, 0);
        }
    }
}
