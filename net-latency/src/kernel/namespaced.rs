//! Process ids as containers know them: the numbers that processes have in their own PID namespaces.

use std::{
    collections::hash_map::Entry,
    fs::{self, File},
    io::Read as _,
    os::unix::fs::MetadataExt as _,
};

use net_latency_common::COMM_LEN;
use rustc_hash::FxHashMap;

use super::lives::lived_at;

/// Inode number of the initial PID namespace (`PROC_PID_INIT_INO` in include/linux/proc_ns.h).
const INITIAL: u64 = 0xefff_fffc;
/// Where the line of a process' status stands that has its ids in all namespaces, outermost first.
const LINE: &[u8] = b"NSpid:";
/// More than a status with such a line holds before it: the name and the groups can be long.
const STATUS_LEN: usize = 16 * 1024;

/// Whether /proc knows processes by the ids that the kernel side gives.
pub(super) fn proc_is_initial() -> bool {
    // A /proc that shows us with our namespace, and this being the initial one, is that one's: those of other namespaces don't show
    // us.
    fs::metadata("/proc/self/ns/pid").is_ok_and(|data| data.ino() == INITIAL)
}

/// A cache of what /proc says. Only a process that still runs can be asked for. One that was started later than a packet was complete
/// has only got the number since: the packet's has none that is known.
#[derive(Debug)]
pub struct NamespacedPids {
    /// Whether /proc knows processes by the ids that the kernel side gives.
    usable: bool,
    /// With the name of whose process it was asked for: another one may have the id.
    numbers: FxHashMap<u32, ([u8; COMM_LEN], Option<u32>)>,
    /// Kept for its memory.
    status: Vec<u8>,
}

impl NamespacedPids {
    /// An empty cache.
    #[must_use]
    pub fn new() -> Self {
        Self { usable: proc_is_initial(), numbers: FxHashMap::default(), status: Vec::new() }
    }

    /// The number that the process has in its innermost PID namespace; `pid` is the one in the initial namespace. It has this name, and
    /// lived at `wall_ns`.
    pub fn number(&mut self, pid: u32, name: [u8; COMM_LEN], wall_ns: i64) -> Option<u32> {
        if !self.usable || pid == 0 {
            return None;
        }
        let Self { numbers, status, .. } = self;
        let mut new = || (name, look_up(pid, wall_ns, status));
        match numbers.entry(pid) {
            Entry::Occupied(mut known) => {
                if known.get().0 != name {
                    known.insert(new());
                }
                known.get().1
            }
            Entry::Vacant(place) => place.insert(new()).1,
        }
    }

    /// Forgets all numbers: ids are used again.
    pub fn refresh(&mut self) {
        self.numbers.clear();
    }
}

impl Default for NamespacedPids {
    fn default() -> Self {
        Self::new()
    }
}

fn look_up(pid: u32, wall_ns: i64, status: &mut Vec<u8>) -> Option<u32> {
    status.clear();
    if !lived_at(&format!("/proc/{pid}"), wall_ns) {
        return None;
    }
    // Whatever fails here, the process has gone or is none of ours to see.
    let file = File::open(format!("/proc/{pid}/status")).ok()?;
    file.take(STATUS_LEN as u64).read_to_end(status).ok()?;
    innermost(status)
}

/// The last id on the line of a status that lists them.
pub(super) fn innermost(status: &[u8]) -> Option<u32> {
    let ids = status.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(LINE))?;
    std::str::from_utf8(ids).ok()?.split_ascii_whitespace().next_back()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_number_of_the_line() {
        assert_eq!(innermost(b"Name:\tsh\nNStgid:\t9\t8\nNSpid:\t900\t17\t3\nNSpgid:\t0\t0\n"), Some(3));
        assert_eq!(innermost(b"NSpid:\t900\n"), Some(900));
        assert_eq!(innermost(b"NSpid:\t\n"), None);
        assert_eq!(innermost(b"Name:\tsh\n"), None);
        // A kernel without PID namespaces has no such line; a name can't begin one, its newline is escaped.
        assert_eq!(innermost(b"Name:\tNSpid:\\nNSpid: 5\nPid:\t7\n"), None);
    }

    const NAME: [u8; COMM_LEN] = *b"server\0\0\0\0\0\0\0\0\0\0";
    const OTHER: [u8; COMM_LEN] = *b"other\0\0\0\0\0\0\0\0\0\0\0";

    #[test]
    fn processes_are_asked_once_and_again_after_a_refresh() {
        let own = std::process::id();
        let mut pids = NamespacedPids { usable: true, ..NamespacedPids::new() };
        let number = pids.number(own, NAME, i64::MAX);
        assert!(number.is_some());
        pids.numbers.insert(own, (NAME, Some(1_000_000)));
        assert_eq!(pids.number(own, NAME, i64::MAX), Some(1_000_000));
        // Another one has had the number.
        assert_eq!(pids.number(own, OTHER, i64::MAX), number);
        pids.refresh();
        assert_eq!(pids.number(own, NAME, i64::MAX), number);
        pids.refresh();
        assert_eq!(pids.number(own, NAME, 0), None, "this process was not started in 1970");
    }

    #[test]
    fn unknown_is_none() {
        let mut pids = NamespacedPids { usable: true, ..NamespacedPids::new() };
        // More than any kernel allows (`PID_MAX_LIMIT`).
        assert_eq!(pids.number(u32::MAX, NAME, i64::MAX), None);
        assert_eq!(pids.number(0, NAME, i64::MAX), None);
        pids.usable = false;
        assert_eq!(pids.number(std::process::id(), NAME, i64::MAX), None);
    }
}
