//! What the threads of a service did for its answers, between reading a request and writing: known with fine stages, where one thread
//! does both.

use net_latency_common::Served;

/// System calls that are told apart.
const CALLS: usize = 8;

/// That of all its answers together, ns.
#[derive(Clone, Debug, Default)]
pub(super) struct Did {
    /// Answers of which it is known, and of which it is not.
    pub(super) known: u64,
    pub(super) unknown: u64,
    pub(super) on_ns: u64,
    pub(super) waited_ns: u64,
    pub(super) slept_ns: u64,
    /// How much of that in which system call, by the one in which most of an answer's was.
    calls: Vec<(Box<[u8]>, u64)>,
}

impl Did {
    /// Adds the work for an answer, where that is known, which slept in that call.
    pub(super) fn add(&mut self, served: Option<&Served>, call: Option<&[u8]>) {
        let Some((served, on_ns)) = served.and_then(|served| Some((served, served.on_cpu()?))) else {
            self.unknown += 1;
            return;
        };
        self.known += 1;
        self.on_ns = self.on_ns.saturating_add(on_ns);
        self.waited_ns = self.waited_ns.saturating_add(served.waited);
        self.slept_ns = self.slept_ns.saturating_add(served.asleep);
        if let Some(call) = call {
            self.add_call(call, served.asleep);
        }
    }

    fn add_call(&mut self, call: &[u8], ns: u64) {
        if let Some((_, sum)) = self.calls.iter_mut().find(|(known, _)| **known == *call) {
            *sum = sum.saturating_add(ns);
        } else if self.calls.len() < CALLS {
            self.calls.push((call.into(), ns));
        }
    }

    /// Adds another's.
    pub(super) fn join(&mut self, other: &Self) {
        self.known += other.known;
        self.unknown += other.unknown;
        self.on_ns = self.on_ns.saturating_add(other.on_ns);
        self.waited_ns = self.waited_ns.saturating_add(other.waited_ns);
        self.slept_ns = self.slept_ns.saturating_add(other.slept_ns);
        other.calls.iter().for_each(|(call, ns)| self.add_call(call, *ns));
    }

    /// The system call in which they slept for half of that time or more.
    pub(super) fn call(&self) -> Option<&[u8]> {
        let (call, ns) = self.calls.iter().max_by_key(|(_, ns)| *ns)?;
        (*ns > 0 && ns.saturating_mul(2) >= self.slept_ns).then_some(call)
    }

    /// Whether that is known of most answers.
    pub(super) fn is_of_most(&self) -> bool {
        self.known > self.unknown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(all: u64, asleep: u64, waited: u64) -> Served {
        Served { all, asleep, waited, call: 0 }
    }

    #[test]
    fn the_call_that_is_told_has_half_of_all_sleep() {
        let mut did = Did::default();
        did.add(Some(&served(100, 60, 10)), Some(b"nanosleep"));
        did.add(Some(&served(100, 50, 0)), None);
        did.add(None, None);
        assert_eq!((did.known, did.unknown, did.on_ns, did.waited_ns, did.slept_ns), (2, 1, 80, 10, 110));
        assert_eq!(did.call(), Some(&b"nanosleep"[..]));
        let mut other = Did::default();
        other.add(Some(&served(20, 20, 0)), Some(b"futex"));
        did.join(&other);
        assert_eq!((did.known, did.slept_ns, did.call()), (3, 130, None));
        // What can't be its parts.
        did.add(Some(&served(20, 20, 1)), None);
        assert_eq!((did.known, did.unknown), (3, 2));
    }

    #[test]
    fn there_are_no_more_calls_than_have_room() {
        let mut did = Did::default();
        for number in 0..20 {
            did.add(Some(&served(9, 9, 0)), Some(&[number]));
        }
        assert_eq!((did.known, did.calls.len()), (20, CALLS));
    }
}
