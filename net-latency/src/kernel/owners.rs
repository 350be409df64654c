//! The owner of a process, a name or a cgroup: a share of a table is a user's, not a process's, since a user may start many.

use std::{
    fs,
    hash::{BuildHasher as _, Hash},
    path::{Path, PathBuf},
};

use net_latency_common::COMM_LEN;
use rustc_hash::{FxBuildHasher, FxHashMap};

use super::{
    containers::{SHORT_LEN, short_id},
    lives::lived_at,
    processes::{LONGEST_STATUS, paths, proc_is_initial, read},
    tasks::comm,
};

/// Where a status has the user ids, the real one first.
const LINE: &[u8] = b"Uid:";
/// Above all user ids, what the others are.
const CONTAINER: u64 = 1 << 62;
const PROCESS: u64 = 1 << 61;
/// The owner of all that has ended: many processes that end soon share it.
const GONE: u64 = 1 << 60;
const ITSELF: u64 = 3 << 61;

/// The user of a process that has that id in the initial PID namespace, and lived at `wall_ns`. Root is told apart by container. Where that
/// can't be looked up, each process is its own owner.
pub(crate) fn of(pid: u32, wall_ns: i64) -> u64 {
    if !proc_is_initial() {
        return PROCESS | u64::from(pid);
    }
    if !lived_at(&format!("/proc/{pid}"), wall_ns) {
        return GONE;
    }
    of_living(pid, &mut Vec::with_capacity(LONGEST_STATUS))
}

fn of_living(pid: u32, text: &mut Vec<u8>) -> u64 {
    // Not the owner of its directory, which is root's if it may not be dumped.
    let Some(user) = read(&format!("/proc/{pid}/status"), text).and_then(user) else { return GONE };
    of_user(user, || {
        let cgroups = read(&format!("/proc/{pid}/cgroup"), text).unwrap_or_default();
        paths(cgroups).find_map(short_id)
    })
}

/// A user, or the container that root is in. Users other than root may have made cgroups that are named as a container's.
fn of_user(user: u32, container: impl FnOnce() -> Option<[u8; SHORT_LEN]>) -> u64 {
    match user {
        0 => container().map_or(0, |id| CONTAINER | FxBuildHasher.hash_one(id) >> 4),
        user => user.into(),
    }
}

/// The owner of a cgroup's directory, which that user may have made. Without one the cgroup has gone.
pub(crate) fn of_cgroup(path: &[u8], user: Option<u32>) -> u64 {
    user.map_or(GONE, |user| of_user(user, || short_id(path)))
}

/// Something that is behind itself.
pub(crate) fn itself(what: impl Hash) -> u64 {
    ITSELF | FxBuildHasher.hash_one(what) >> 4
}

/// The owners of names of processes or threads.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// `None` where several owners have one name.
    owners: FxHashMap<[u8; COMM_LEN], Option<u64>>,
}

impl Names {
    /// Those of all processes now, or `of_threads`. None where /proc is another PID namespace's.
    pub(crate) fn read(of_threads: bool) -> Self {
        let mut names = Self::default();
        if !proc_is_initial() {
            return names;
        }
        let mut text = Vec::with_capacity(LONGEST_STATUS);
        let entries = |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten();
        // Whatever fails from here on, the process or the thread has ended.
        for process in entries("/proc".into()) {
            let pid = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
            let Some(pid) = pid else { continue };
            let owner = of_living(pid, &mut text);
            let path = process.path();
            if of_threads {
                entries(path.join("task")).for_each(|thread| names.add(&thread.path(), owner));
            } else {
                names.add(&path, owner);
            }
        }
        names
    }

    fn add(&mut self, directory: &Path, owner: u64) {
        let Some(name) = comm(directory) else { return };
        let known = self.owners.entry(name).or_insert(Some(owner));
        *known = known.filter(|known| *known == owner);
    }

    /// The owner of a name. A name of several owners is its own owner, so that a process that takes another's name takes no share of
    /// theirs. A name out of use is [`GONE`].
    pub(crate) fn owner(&self, name: [u8; COMM_LEN]) -> u64 {
        self.owners.get(&name).map_or(GONE, |owner| owner.unwrap_or_else(|| itself(name)))
    }
}

/// The real user id of a status.
fn user(status: &[u8]) -> Option<u32> {
    let ids = status.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(LINE))?;
    str::from_utf8(ids).ok()?.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_user_is_on_a_line_of_its_own() {
        assert_eq!(user(b"Name:\tsh\nTgid:\t9\nUid:\t1000\t0\t0\t0\nGid:\t7\t7\t7\t7\n"), Some(1000));
        // A name can't begin a line: its newline is escaped.
        assert_eq!(user(b"Name:\tUid:\\nUid: 5\nUid:\t7\t7\t7\t7\n"), Some(7));
        assert_eq!(user(b"Name:\tsh\n"), None);
    }

    #[test]
    fn a_name_of_several_users_is_behind_itself() {
        let directory = tempfile::tempdir().expect("a directory");
        let name = |text: &[u8]| {
            let mut name = [0; COMM_LEN];
            name[..text.len()].copy_from_slice(text);
            name
        };
        let mut names = Names::default();
        for (text, owner) in [("nginx\n", 0), ("nginx\n", 7), ("nginx\n", 7), ("own\n", 7), ("own\n", 7)] {
            fs::write(directory.path().join("comm"), text).expect("written");
            names.add(directory.path(), owner);
        }
        let of = |text| names.owner(name(text));
        assert_eq!((of(b"nginx"), of(b"own"), of(b"other")), (itself(name(b"nginx")), 7, GONE));
    }

    #[test]
    fn a_cgroup_is_its_owners_and_roots_its_containers() {
        let container = [b"/docker/".to_vec(), b"ab".repeat(32)].concat();
        assert_eq!((of_cgroup(b"/a", Some(7)), of_cgroup(&container, Some(7))), (7, 7));
        assert_eq!((of_cgroup(b"/a", Some(0)), of_cgroup(b"/a", None)), (0, GONE));
        assert_eq!(of_cgroup(&container, Some(0)) & CONTAINER, CONTAINER);
    }

    #[test]
    fn processes_of_one_user_have_one_owner() {
        if !proc_is_initial() {
            return;
        }
        let own = std::process::id();
        let owner = of(own, i64::MAX);
        let mut child = Command::new("sleep").arg("600").stdout(Stdio::null()).spawn().expect("it starts");
        assert_eq!(of(child.id(), i64::MAX), owner);
        let mut name = [0; COMM_LEN];
        name[..5].copy_from_slice(b"sleep");
        let names = Names::read(false);
        // Other tests may have started some as well, and other users.
        assert!([owner, itself(name)].contains(&names.owner(name)), "{names:?}");
        assert_eq!(names.owner([b'?'; COMM_LEN]), GONE);
        child.kill().expect("a child");
        child.wait().expect("a child");
        // Neither number is in use: both have one owner.
        assert_eq!((of(child.id(), i64::MAX), of(u32::MAX, i64::MAX)), (GONE, GONE));
        assert_ne!(owner, GONE);
    }
}
