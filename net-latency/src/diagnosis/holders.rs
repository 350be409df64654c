//! The processes that had the CPU that a reader waited for, and the CPUs on which that reader may run.

use crate::kernel::tasks::{Allowed, Process, Realtime};

/// Most processes that are told apart.
const MOST: usize = 16;

/// A process that had the CPU for most of a reader's wait.
#[derive(Clone, Debug)]
pub(super) struct Holder {
    pub(super) pid: u32,
    /// How long readers waited when it had the CPU for most of the time, ns.
    ns: u64,
    /// What it is, if it was looked up in time.
    pub(super) process: Option<Process>,
    is_asked: bool,
    /// When it was met first, ns since 1970: a process that was started later is another one with its number.
    met_ns: i64,
}

/// The process that readers waited for longest to get the CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HeldBy {
    pub(super) pid: u32,
    pub(super) process: Option<Vec<u8>>,
    pub(super) realtime: Option<Realtime>,
    /// Its share of the time that readers waited, percent.
    pub(super) share: u64,
}

/// A thread that waited for a CPU.
#[derive(Clone, Copy, Debug)]
struct Reader {
    pid: u32,
    tid: u32,
    met_ns: i64,
    /// Where it may run, if that was looked up in time.
    allowed: Option<Allowed>,
}

/// Those that one service's readers waited for, and the last of these readers.
#[derive(Clone, Debug, Default)]
pub(super) struct Holders {
    known: Vec<Holder>,
    /// For those that found no place.
    others_ns: u64,
    /// All that readers waited, unknown holders included.
    all_ns: u64,
    reader: Option<Reader>,
}

impl Holders {
    /// This thread has waited so long for the CPU that the process `holder` had, until `wall_ns` or a little earlier.
    pub(super) fn add(&mut self, holder: Option<u32>, reader: Option<(u32, u32)>, ns: u64, wall_ns: i64) {
        self.all_ns = self.all_ns.saturating_add(ns);
        if let Some(pid) = holder {
            self.add_to(pid, None, ns, wall_ns);
        }
        if let Some((pid, tid)) = reader
            && self.reader.is_none_or(|known| (known.pid, known.tid) != (pid, tid))
        {
            self.reader = Some(Reader { pid, tid, met_ns: wall_ns, allowed: None });
        }
    }

    fn add_to(&mut self, pid: u32, process: Option<Process>, ns: u64, met_ns: i64) {
        if let Some(known) = self.known.iter_mut().find(|known| known.pid == pid) {
            known.ns = known.ns.saturating_add(ns);
            known.process = known.process.or(process);
        } else if self.known.len() < MOST {
            self.known.push(Holder { pid, ns, process, is_asked: process.is_some(), met_ns });
        } else {
            self.others_ns = self.others_ns.saturating_add(ns);
        }
    }

    /// Adds another's.
    pub(super) fn join(&mut self, other: &Self) {
        self.all_ns = self.all_ns.saturating_add(other.all_ns);
        self.others_ns = self.others_ns.saturating_add(other.others_ns);
        for Holder { pid, ns, process, met_ns, .. } in &other.known {
            self.add_to(*pid, *process, *ns, *met_ns);
        }
        self.reader = other.reader.or(self.reader);
    }

    /// Looks up what is not known yet, once per process: of one that has ended nothing is known any more.
    pub(super) fn ask(
        &mut self,
        process: impl Fn(u32, i64) -> Option<Process>,
        allowed: impl Fn(u32, u32, i64) -> Option<Allowed>,
    ) {
        for holder in self.known.iter_mut().filter(|holder| !holder.is_asked) {
            (holder.process, holder.is_asked) = (process(holder.pid, holder.met_ns), true);
        }
        if let Some(reader) = &mut self.reader {
            reader.allowed = allowed(reader.pid, reader.tid, reader.met_ns).or(reader.allowed);
        }
    }

    /// The process for which readers waited longest, and percent of all that they waited; none if one that found no place may be it.
    pub(super) fn main(&self) -> Option<(&Holder, u64)> {
        let main = self.known.iter().max_by_key(|holder| holder.ns)?;
        let percent = u128::from(main.ns) * 100 / u128::from(self.all_ns.max(1));
        (main.ns > self.others_ns).then_some((main, u64::try_from(percent).unwrap_or(100)))
    }

    /// Where the last reader may run.
    pub(super) fn allowed(&self) -> Option<Allowed> {
        self.reader?.allowed
    }
}

#[cfg(test)]
mod tests {
    use net_latency_common::COMM_LEN;

    use super::*;

    #[test]
    fn who_was_waited_for_longest_is_the_main_one() {
        let mut holders = Holders::default();
        assert!(holders.main().is_none());
        for (pid, ns) in [(Some(7), 100), (Some(8), 300), (None, 100), (Some(8), 300), (Some(7), 200)] {
            holders.add(pid, Some((1, 2)), ns, 5);
        }
        let (main, share) = holders.main().expect("known");
        assert_eq!((main.pid, share), (8, 60));
        let mut both = Holders::default();
        both.add(Some(7), None, 9_000, 5);
        both.join(&holders);
        let (main, share) = both.main().expect("known");
        assert_eq!((main.pid, share), (7, 93));
    }

    #[test]
    fn one_of_those_without_a_place_may_be_the_main_one() {
        let mut holders = Holders::default();
        for pid in 1..=MOST as u32 {
            holders.add(Some(pid), None, 10, 5);
        }
        assert!(holders.main().is_some());
        holders.add(Some(100), None, 10, 5);
        assert!(holders.main().is_none());
    }

    #[test]
    fn each_is_asked_for_once_and_what_was_known_stays() {
        let mut holders = Holders::default();
        holders.add(Some(7), Some((1, 2)), 10, 5);
        let allowed = Allowed { count: 1, first: 3, online: 4 };
        let process = |letter| Process { name: [letter; COMM_LEN], realtime: None };
        holders.ask(|_, met| (met != 5).then_some(process(b'y')), |_, _, met| (met == 5).then_some(allowed));
        // Both have ended; the number of the first is another's by now.
        holders.ask(|_, _| Some(process(b'x')), |_, _, _| None);
        assert_eq!(holders.main().map(|(main, _)| main.process), Some(None));
        assert_eq!(holders.allowed(), Some(allowed));
        // Nothing is known of another reader.
        holders.add(Some(7), Some((1, 3)), 10, 6);
        assert_eq!(holders.allowed(), None);
    }
}
