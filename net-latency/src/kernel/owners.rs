//! Who is behind a process: a share of a table is a user's, not a process's, since a user may start many.

use std::hash::{BuildHasher as _, BuildHasherDefault};

use rustc_hash::FxHasher;

use super::{
    containers::short_id,
    lives::lived_at,
    processes::{LONGEST_STATUS, paths, proc_is_initial, read},
};

/// Where a status has the user ids, the real one first.
const LINE: &[u8] = b"Uid:";
/// Above all user ids, what the others are.
const CONTAINER: u64 = 1 << 62;
const PROCESS: u64 = 1 << 61;
/// Those of whom nothing is known any more: who starts many processes that end soon is one of them.
const GONE: u64 = 1 << 60;

/// The user of a process that has that id in the initial PID namespace, and lived at `wall_ns`. Root is told apart by container. Where
/// that can't be asked for, each process is by itself.
pub(crate) fn of(pid: u32, wall_ns: i64) -> u64 {
    if !proc_is_initial() {
        return PROCESS | u64::from(pid);
    }
    if !lived_at(&format!("/proc/{pid}"), wall_ns) {
        return GONE;
    }
    let mut text = Vec::with_capacity(LONGEST_STATUS);
    // Not the owner of its directory, which is root's if it may not be dumped.
    let user = read(&format!("/proc/{pid}/status"), &mut text).and_then(user);
    match user {
        None => GONE,
        // Who is no root may have made cgroups that are named as a container's.
        Some(user) if user > 0 => user.into(),
        Some(_) => {
            let cgroups = read(&format!("/proc/{pid}/cgroup"), &mut text).unwrap_or_default();
            let container = paths(cgroups).find_map(short_id);
            container.map_or(0, |id| CONTAINER | BuildHasherDefault::<FxHasher>::default().hash_one(id) >> 4)
        }
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
    fn processes_of_one_user_have_one_owner() {
        if !proc_is_initial() {
            return;
        }
        let own = std::process::id();
        let owner = of(own, i64::MAX);
        let mut child = Command::new("sleep").arg("600").stdout(Stdio::null()).spawn().expect("it starts");
        assert_eq!(of(child.id(), i64::MAX), owner);
        child.kill().expect("a child");
        child.wait().expect("a child");
        // Nobody has either number: both are one.
        assert_eq!((of(child.id(), i64::MAX), of(u32::MAX, i64::MAX)), (GONE, GONE));
        assert_ne!(owner, GONE);
    }
}
