//! The threads that live now: their names, and where they may run.

use std::{fs, io, ops::RangeInclusive, path::Path, process};

use net_latency_common::COMM_LEN;

use super::{lives::stat_field, processes::living};
use crate::request::glob::Glob;

/// Those of the globs that match no thread of another process now. The first thread of a process has the process's name.
///
/// # Errors
/// If /proc can't be read.
pub(crate) fn unmatched(globs: &[Glob]) -> io::Result<Vec<&Glob>> {
    unmatched_in(Path::new("/proc"), process::id(), globs)
}

fn unmatched_in<'a>(proc: &Path, own: u32, globs: &'a [Glob]) -> io::Result<Vec<&'a Glob>> {
    let mut unmatched: Vec<_> = globs.iter().collect();
    for process in fs::read_dir(proc)? {
        if unmatched.is_empty() {
            break;
        }
        let process = process?;
        let pid = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
        if pid.is_none_or(|pid| pid == own) {
            continue;
        }
        // Whatever fails from here on, the process or the thread has ended.
        let Ok(threads) = fs::read_dir(process.path().join("task")) else { continue };
        for thread in threads.flatten() {
            let Ok(name) = fs::read(thread.path().join("comm")) else { continue };
            let name = name.strip_suffix(b"\n").unwrap_or(&name);
            unmatched.retain(|glob| !glob.matches(name));
        }
    }
    Ok(unmatched)
}

/// A process that lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    /// Its name, ended by 0.
    pub(crate) name: [u8; COMM_LEN],
    /// Of its first thread, if that is scheduled so.
    pub(crate) realtime: Option<Realtime>,
}

/// A thread that gives no other its CPU of its own accord, and its priority, from 1 to 99.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Realtime {
    /// `SCHED_FIFO` or `SCHED_RR`.
    pub(crate) policy: &'static str,
    pub(crate) priority: u64,
}

impl Process {
    /// One that lives and did so at `wall_ns`, by its id in the initial PID namespace.
    pub(crate) fn of(pid: u32, wall_ns: i64) -> Option<Self> {
        let directory = living(format!("/proc/{pid}"), wall_ns)?;
        let directory = Path::new(&directory);
        let realtime = fs::read(directory.join("stat")).ok().and_then(|stat| Realtime::read(&stat));
        Some(Self { name: comm(directory)?, realtime })
    }
}

impl Realtime {
    /// By a line of a `stat`.
    fn read(stat: &[u8]) -> Option<Self> {
        const PRIORITY: usize = 40;
        const POLICY: usize = 41;
        const FIFO: u64 = 1;
        const RR: u64 = 2;
        let policy = match stat_field(stat, POLICY)? {
            FIFO => "SCHED_FIFO",
            RR => "SCHED_RR",
            _ => return None,
        };
        Some(Self { policy, priority: stat_field(stat, PRIORITY)? })
    }
}

/// The name, ended by 0, of the process or thread that has this directory of /proc.
pub(super) fn comm(directory: &Path) -> Option<[u8; COMM_LEN]> {
    let text = fs::read(directory.join("comm")).ok()?;
    let mut name = [0; COMM_LEN];
    let known = text.strip_suffix(b"\n").unwrap_or(&text);
    let len = known.len().min(COMM_LEN - 1);
    name[..len].copy_from_slice(&known[..len]);
    Some(name)
}

/// On which of the CPUs that are online a thread may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allowed {
    /// How many of them it may use.
    pub(crate) count: u32,
    /// The first of these.
    pub(crate) first: u32,
    pub(crate) online: u32,
}

impl Allowed {
    /// Where a thread may run that lives and did so at `wall_ns`, by its affinity and its cpuset, by its ids in the initial PID
    /// namespace.
    pub(crate) fn of(pid: u32, tid: u32, wall_ns: i64) -> Option<Self> {
        let directory = living(format!("/proc/{pid}/task/{tid}"), wall_ns)?;
        let status = fs::read_to_string(directory + "/status").ok()?;
        let online = fs::read_to_string("/sys/devices/system/cpu/online").ok()?;
        Self::read(&status, &online)
    }

    fn read(status: &str, online: &str) -> Option<Self> {
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        let allowed = ranges(list)?;
        let online: Vec<u32> = ranges(online)?.into_iter().flatten().collect();
        // Those that a machine could have count as allowed too.
        let is_allowed = |cpu: &u32| allowed.iter().any(|range| range.contains(cpu));
        let mut both = online.iter().copied().filter(is_allowed);
        let first = both.next()?;
        Some(Self {
            count: u32::try_from(1 + both.count()).ok()?,
            first,
            online: u32::try_from(online.len()).ok()?,
        })
    }
}

/// A list of CPUs as the kernel writes it, such as `0-3,7`. No kernel has more than some thousand.
fn ranges(list: &str) -> Option<Vec<RangeInclusive<u32>>> {
    const MOST: u32 = 1 << 16;
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse().ok()?, last.parse().ok()?);
        (last < MOST).then_some(first..=last)
    };
    list.trim().split(',').map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::{super::processes::proc_is_initial, *};

    #[test]
    fn a_thread_may_use_some_of_the_cpus_that_are_online() {
        let read = |allowed: &str, online: &str| {
            let status = format!("Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t{allowed}\nMems:\t1\n");
            Allowed::read(&status, online).map(|allowed| (allowed.count, allowed.first, allowed.online))
        };
        assert_eq!(read("1", "0-1\n"), Some((1, 1, 2)));
        assert_eq!(read("0-127", "0-1\n"), Some((2, 0, 2)));
        assert_eq!(read("2-3,6", "0,2-3,6-7\n"), Some((3, 2, 5)));
        for (allowed, online) in [("", "0-1\n"), ("0-1", ""), ("4", "0-1"), ("0-4294967295", "0"), ("x", "0")]
        {
            assert_eq!(read(allowed, online), None, "{allowed:?} {online:?}");
        }
        if proc_is_initial() {
            // In 1970 this process was not started.
            let (later, before, own) = (i64::MAX, 0, process::id());
            let allowed = Allowed::of(own, own, later).expect("this one lives");
            assert!(allowed.count >= 1 && allowed.count <= allowed.online, "{allowed:?}");
            assert!(Process::of(own, later).is_some_and(|process| process.realtime.is_none()));
            assert_eq!((Allowed::of(own, own, before), Process::of(own, before)), (None, None));
        }
    }

    #[test]
    fn realtime_is_told_by_policy() {
        // Fields 3 to 39, then the priority and the policy, and a few of those behind.
        let read = |priority: u32, policy: u32| {
            let between = "1 ".repeat(36);
            Realtime::read(format!("7 (a) b) S {between}{priority} {policy} 0 0\n").as_bytes())
        };
        assert_eq!(read(98, 1), Some(Realtime { policy: "SCHED_FIFO", priority: 98 }));
        assert_eq!(read(1, 2), Some(Realtime { policy: "SCHED_RR", priority: 1 }));
        assert_eq!(read(0, 0), None);
        assert_eq!(Realtime::read(b"7 (a) S 1"), None);
    }

    #[test]
    fn globs_are_looked_for_among_all_threads_of_others() {
        let proc = tempfile::tempdir().expect("a folder");
        for (path, name) in
            [("7/task/7", "search"), ("7/task/8", "Thread-1 (one)"), ("9/task/9", "net-latency")]
        {
            let path = proc.path().join(path);
            fs::create_dir_all(&path).expect("a folder");
            fs::write(path.join("comm"), format!("{name}\n")).expect("a file");
        }
        fs::create_dir_all(proc.path().join("sys/task/1")).expect("a folder");
        let globs =
            ["sea*", "Thread-?*", "net*", "search?", "nobody"].map(|text| text.parse().expect("a glob"));
        let left: Vec<_> = unmatched_in(proc.path(), 9, &globs)
            .expect("readable")
            .into_iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(left, ["net*", "search?", "nobody"]);
        assert!(unmatched_in(&proc.path().join("none"), 9, &globs).is_err());
    }
}
