//! When processes waited for the answers of others.

use std::collections::{HashMap, VecDeque};

/// Most processes, and waits of each, that are known: those that were last.
const PROCESSES: usize = 128;
const WAITS: usize = 32;

/// A thread of a process waited for an answer.
#[derive(Clone, Copy, Debug)]
struct Wait {
    from_ns: i64,
    to_ns: i64,
    tid: u32,
}

/// The last waits of each process. Its size is bounded.
#[derive(Clone, Debug, Default)]
pub(super) struct Waits {
    known: HashMap<u32, VecDeque<Wait>>,
}

impl Waits {
    /// A thread of `pid` sent a request at `from_ns` and had the answer at `to_ns`, or more of it.
    pub(super) fn add(&mut self, pid: u32, tid: u32, (from_ns, to_ns): (i64, i64)) {
        if self.known.len() == PROCESSES && !self.known.contains_key(&pid) {
            let last = |waits: &VecDeque<Wait>| waits.back().map(|wait| wait.to_ns);
            let oldest =
                self.known.iter().min_by_key(|(pid, waits)| (last(waits), **pid)).map(|(pid, _)| *pid);
            self.known.retain(|pid, _| Some(*pid) != oldest);
        }
        let waits = self.known.entry(pid).or_insert_with(|| VecDeque::with_capacity(WAITS));
        if let Some(known) = waits.iter_mut().find(|wait| wait.from_ns == from_ns && wait.tid == tid) {
            known.to_ns = known.to_ns.max(to_ns);
            return;
        }
        if waits.len() == WAITS {
            waits.pop_front();
        }
        waits.push_back(Wait { from_ns, to_ns, tid });
    }

    /// For how long of that time it waited: that thread, or if that one sent no request then, any of its threads. A request at `except_ns`
    /// does not count.
    pub(super) fn within(
        &self,
        pid: u32,
        tid: u32,
        (from_ns, to_ns): (i64, i64),
        except_ns: Option<i64>,
    ) -> u64 {
        let Some(waits) = self.known.get(&pid) else { return 0 };
        let is_within =
            |wait: &&Wait| wait.from_ns < to_ns && wait.to_ns > from_ns && except_ns != Some(wait.from_ns);
        let is_own = waits.iter().filter(is_within).any(|wait| wait.tid == tid);
        let mut covered = 0u64;
        let mut at = from_ns;
        loop {
            // What of it begins first behind that point, or covers it.
            let next = waits
                .iter()
                .filter(is_within)
                .filter(|wait| (!is_own || wait.tid == tid) && wait.to_ns > at)
                .min_by_key(|wait| wait.from_ns);
            let Some(next) = next else { return covered };
            let (from, to) = (next.from_ns.max(at), next.to_ns.min(to_ns));
            if from >= to {
                return covered;
            }
            covered += to.abs_diff(from);
            at = to;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_that_overlap_count_once_and_only_within() {
        let mut waits = Waits::default();
        for (from, to) in [(10, 30), (20, 40), (60, 70), (25, 28), (90, 200)] {
            waits.add(7, 1, (from, to));
        }
        assert_eq!(waits.within(7, 1, (0, 100), None), 30 + 10 + 10);
        assert_eq!(waits.within(7, 1, (15, 35), None), 20);
        assert_eq!(waits.within(7, 1, (15, 35), Some(10)), 15);
        assert_eq!(waits.within(7, 1, (40, 60), None), 0);
        assert_eq!(waits.within(8, 1, (0, 100), None), 0);
        // More of the same answer.
        waits.add(7, 1, (60, 80));
        assert_eq!(waits.within(7, 1, (50, 90), None), 20);
    }

    #[test]
    fn the_thread_that_answers_counts_before_others() {
        let mut waits = Waits::default();
        waits.add(7, 1, (10, 20));
        waits.add(7, 2, (10, 90));
        assert_eq!(waits.within(7, 1, (0, 100), None), 10);
        assert_eq!(waits.within(7, 3, (0, 100), None), 80);
    }

    #[test]
    fn the_last_waits_are_kept() {
        let mut waits = Waits::default();
        for start in 0..2 * WAITS as i64 {
            waits.add(1, 1, (start * 10, start * 10 + 5));
        }
        assert_eq!(waits.within(1, 1, (0, i64::MAX), None), 5 * WAITS as u64);
        for pid in 2..2 * PROCESSES as u32 {
            waits.add(pid, 1, (0, 5));
        }
        assert_eq!(waits.known.len(), PROCESSES);
        assert_eq!(waits.within(2 * PROCESSES as u32 - 1, 1, (0, 9), None), 5);
    }
}
