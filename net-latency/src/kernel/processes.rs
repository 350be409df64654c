//! Facts about a process that only /proc has: its number in its own PID namespace, and the container that it is in.

use std::{
    collections::hash_map::Entry,
    fs::{self, File},
    io::Read as _,
    os::unix::fs::MetadataExt as _,
};

use net_latency_common::COMM_LEN;
use rustc_hash::FxHashMap;

use super::{
    containers::{CONTAINER_LOGS, POD_LOGS, Place, Pods, SHORT_LEN, short_id},
    lives::lived_at,
    netns::NAME_LEN,
};

/// Inode number of the initial PID namespace (`PROC_PID_INIT_INO` in include/linux/proc_ns.h).
const INITIAL: u64 = 0xefff_fffc;
/// Where the line of a process' status stands that has its ids in all namespaces, outermost first.
const LINE: &[u8] = b"NSpid:";
/// More than a status with such a line holds before it: the name and the groups can be long. Paths of cgroups are shorter.
pub(super) const LONGEST_STATUS: usize = 16 * 1024;

/// Whether /proc knows processes by the ids that the kernel side gives.
pub(super) fn proc_is_initial() -> bool {
    // A /proc that shows us with our namespace, and this being the initial one, is that one's: those of other namespaces don't show
    // us.
    fs::metadata("/proc/self/ns/pid").is_ok_and(|data| data.ino() == INITIAL)
}

/// This directory of /proc, of a process or a thread by its ids in the initial PID namespace, if it lives and did so at `wall_ns`.
pub(super) fn living(directory: String, wall_ns: i64) -> Option<String> {
    (proc_is_initial() && lived_at(&directory, wall_ns)).then_some(directory)
}

/// The known facts about a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    /// Its number in its innermost PID namespace.
    pub number: Option<u32>,
    /// The short id of its container; `None` on the host.
    pub container: Option<[u8; SHORT_LEN]>,
    /// Its pod, as NAMESPACE/NAME.
    pub pod: Option<Box<[u8]>>,
}

/// A cache of what /proc says. Only a process that still runs can be looked up. One that was started after a packet was complete has only
/// got the number since: nothing is known of the packet's process then.
#[derive(Debug)]
pub(crate) struct Processes {
    /// Whether /proc knows processes by the ids that the kernel side gives.
    usable: bool,
    /// With the name by which the process was looked up: another one may have the id.
    known: FxHashMap<u32, ([u8; COMM_LEN], Option<Process>)>,
    pods: Pods,
    /// They were read since the last refresh.
    pods_are_fresh: bool,
    /// Kept for its memory.
    text: Vec<u8>,
}

impl Processes {
    /// The process with this number in the initial PID namespace. It has this name, and lived at `wall_ns`.
    pub(crate) fn find(&mut self, pid: u32, name: [u8; COMM_LEN], wall_ns: i64) -> Option<&Process> {
        if !self.usable || pid == 0 {
            return None;
        }
        let Self { known, pods, pods_are_fresh, text, .. } = self;
        let mut new = || (name, look_up(pid, wall_ns, pods, pods_are_fresh, text));
        let process = match known.entry(pid) {
            Entry::Occupied(mut known) => {
                if known.get().0 != name {
                    known.insert(new());
                }
                known.into_mut()
            }
            Entry::Vacant(place) => place.insert(new()),
        };
        process.1.as_ref()
    }

    /// Forgets all processes: ids are used again.
    pub(crate) fn refresh(&mut self) {
        self.known.clear();
        self.pods_are_fresh = false;
    }
}

/// An empty cache.
impl Default for Processes {
    fn default() -> Self {
        Self {
            usable: proc_is_initial(),
            known: FxHashMap::default(),
            pods: Pods::default(),
            pods_are_fresh: false,
            text: Vec::new(),
        }
    }
}

fn look_up(
    pid: u32,
    wall_ns: i64,
    pods: &mut Pods,
    pods_are_fresh: &mut bool,
    text: &mut Vec<u8>,
) -> Option<Process> {
    if !lived_at(&format!("/proc/{pid}"), wall_ns) {
        return None;
    }
    // Whatever fails here, the process has gone or is none of ours to see.
    let number = read(&format!("/proc/{pid}/status"), text).and_then(innermost);
    let cgroups = read(&format!("/proc/{pid}/cgroup"), text).unwrap_or_default();
    let container = paths(cgroups).find_map(short_id);
    let place = paths(cgroups).find_map(|path| Place::of(str::from_utf8(path).ok()?));
    let pod = place.and_then(|place| {
        if pods.name(&place).is_none() && !*pods_are_fresh {
            // One that can't be read has no name.
            *pods = Pods::read(POD_LOGS.as_ref(), CONTAINER_LOGS.as_ref()).unwrap_or_default();
            *pods_are_fresh = true;
        }
        let name = pods.name(&place)?;
        let mut name = format!("{}/{}", name.namespace, name.pod).into_bytes();
        name.truncate(NAME_LEN);
        Some(name.into())
    });
    Some(Process { number, container, pod })
}

/// The text of a file of /proc, its beginning if it is long.
pub(super) fn read<'a>(path: &str, text: &'a mut Vec<u8>) -> Option<&'a [u8]> {
    text.clear();
    File::open(path).ok()?.take(LONGEST_STATUS as u64).read_to_end(text).ok()?;
    Some(text)
}

/// The paths in the text of `/proc/PID/cgroup`, one for each hierarchy.
pub(super) fn paths(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|&byte| byte == b'\n').filter_map(|line| line.splitn(3, |&byte| byte == b':').nth(2))
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
        let mut processes = Processes { usable: true, ..Processes::default() };
        let found = processes.find(own, NAME, i64::MAX).cloned();
        assert!(found.as_ref().is_some_and(|process| process.number.is_some()));
        let other = Process { number: Some(1_000_000), container: Some(*b"0123456789ab"), pod: None };
        processes.known.insert(own, (NAME, Some(other.clone())));
        assert_eq!(processes.find(own, NAME, i64::MAX), Some(&other));
        // Another one has had the number.
        assert_eq!(processes.find(own, OTHER, i64::MAX), found.as_ref());
        processes.refresh();
        assert_eq!(processes.find(own, NAME, i64::MAX), found.as_ref());
        processes.refresh();
        assert_eq!(processes.find(own, NAME, 0), None, "this process was not started in 1970");
    }

    #[test]
    fn unknown_is_none() {
        let mut processes = Processes { usable: true, ..Processes::default() };
        // More than any kernel allows (`PID_MAX_LIMIT`).
        assert_eq!(processes.find(u32::MAX, NAME, i64::MAX), None);
        assert_eq!(processes.find(0, NAME, i64::MAX), None);
        processes.usable = false;
        assert_eq!(processes.find(std::process::id(), NAME, i64::MAX), None);
    }

    #[test]
    fn paths_of_all_hierarchies_are_read() {
        let text = b"12:cpu,cpuacct:/docker/a:b\n1:name=systemd:/docker/a\n0::/system.slice/a.service\n";
        let found: Vec<&[u8]> = paths(text).collect();
        let expected: [&[u8]; 3] = [b"/docker/a:b", b"/docker/a", b"/system.slice/a.service"];
        assert_eq!(found, expected);
        assert_eq!(paths(b"").count(), 0);
    }
}
