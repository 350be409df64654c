//! Records in the order in which their packets were finished.
//!
//! The ring buffer has them in the order in which the programs asked for room in it: one that another CPU, a softirq or a
//! preempting task was ahead of comes late. So what is read is sorted, and the newest held back until the next read.

use std::mem;

use net_latency_common::{FineRecord, PacketRecord};

use crate::packet::event::{completion_ns, finished_ns};

/// Records sorted at a time.
const ROOM: usize = 4096;
/// How long a record may take from its packet's last stamp to its place in the ring buffer, ns. What takes longer comes late.
const HOLD_NS: u64 = 1_000_000;

/// What has a time by which it is sorted.
pub trait Finished: Copy {
    /// When its packet was finished, as [`completion_ns`] or [`finished_ns`] has it.
    fn finished_ns(&self) -> u64;
}

impl Finished for PacketRecord {
    #[inline]
    fn finished_ns(&self) -> u64 {
        completion_ns(self)
    }
}

impl Finished for FineRecord {
    #[inline]
    fn finished_ns(&self) -> u64 {
        finished_ns(self)
    }
}

/// A sorted piece of the stream of records. Short keys are sorted, since a record is long to move.
pub struct Order<R> {
    /// As they were read. Never grows.
    records: Vec<R>,
    /// When each was finished and its place in `records`, in order.
    keys: Vec<(u64, usize)>,
    /// Empty between two calls: memory for what is held back.
    spare: Vec<R>,
    held: Vec<(u64, usize)>,
    /// The next to be taken, and the first that is held back: places in `keys`.
    next: usize,
    ready: usize,
    hold_ns: u64,
}

impl<R: Finished> Default for Order<R> {
    fn default() -> Self {
        Self::new()
    }
}

impl<R: Finished> Order<R> {
    /// Nothing read yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            records: Vec::with_capacity(ROOM),
            keys: Vec::with_capacity(ROOM),
            spare: Vec::new(),
            held: Vec::new(),
            next: 0,
            ready: 0,
            hold_ns: HOLD_NS,
        }
    }

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
    pub fn take(&mut self) -> Option<&R> {
        let (_, place) = self.keys[..self.ready].get(self.next)?;
        self.next += 1;
        Some(&self.records[*place])
    }

    /// When none is ready: reads more, until `read` has no more. `now_ns` is a time, of the clock of the stamps, before that.
    ///
    /// # Errors
    /// What `read` fails with.
    pub fn refill<E>(
        &mut self,
        now_ns: u64,
        mut read: impl FnMut(&mut Vec<R>) -> Result<bool, E>,
    ) -> Result<(), E> {
        self.keep_held_back();
        while self.records.len() < ROOM && read(&mut self.records)? {
            let place = self.keys.len();
            self.keys.push((self.records[place].finished_ns(), place));
            sift(&mut self.keys);
        }
        self.ready = if self.records.len() == ROOM {
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

    /// Forgets what has been taken; what was held back comes to the front.
    fn keep_held_back(&mut self) {
        self.spare.clear();
        for (place, key) in self.keys.drain(..).skip(self.next).enumerate() {
            self.spare.push(self.records[key.1]);
            self.held.push((key.0, place));
        }
        mem::swap(&mut self.records, &mut self.spare);
        mem::swap(&mut self.keys, &mut self.held);
        self.next = 0;
    }
}

/// Puts the last key where it belongs among those before it, which are in order. Few have to move: a record comes late
/// only if others were finished while a program took it to the ring buffer.
fn sift(keys: &mut [(u64, usize)]) {
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
    use crate::packet::event::fixtures;

    fn record(completion_ns: u64) -> PacketRecord {
        PacketRecord { stamps: [0, 0, 0, completion_ns], ..fixtures::incoming() }
    }

    /// Takes all that is ready after a refill with `waiting`.
    fn drain(
        order: &mut Order<PacketRecord>,
        now_ns: u64,
        waiting: &mut impl Iterator<Item = u64>,
    ) -> Vec<u64> {
        let mut taken = Vec::new();
        loop {
            let read = |records: &mut Vec<PacketRecord>| {
                let next = waiting.next().map(record);
                records.extend(next);
                Ok::<_, Infallible>(next.is_some())
            };
            order.refill(now_ns, read).unwrap();
            let before = taken.len();
            while let Some(record) = order.take() {
                taken.push(completion_ns(record));
            }
            if taken.len() == before {
                return taken;
            }
        }
    }

    #[test]
    fn the_newest_wait_for_those_that_come_late() {
        let mut order = Order::new();
        let now = 10 * HOLD_NS;
        let late = now - HOLD_NS / 2;
        assert_eq!(drain(&mut order, now, &mut [late + 1, 5, 3].into_iter()), [3, 5]);
        assert_eq!(drain(&mut order, now + HOLD_NS, &mut [late].into_iter()), [late, late + 1]);
    }

    #[test]
    fn nothing_is_held_back_at_the_end() {
        let mut order = Order::new();
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
            let mut order = Order::new();
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
