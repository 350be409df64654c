//! Names of network namespaces, those of `ip netns`, which are mounts in /run/netns; and which processes are in them.

use std::{fs, io, os::unix::fs::MetadataExt as _};

use rustc_hash::FxHashMap;

use super::mounts;

/// Where `ip netns` has namespaces by their names.
pub(crate) const NAMED: &str = "/run/netns";
/// How names begin that the runtime of a pod has drawn (of containerd and CRI-O).
const DRAWN: &[u8] = b"cni-";
/// Longer names are cut: a line has room for this much, even if all of it is escaped.
pub(crate) const NAME_LEN: usize = 128;

/// Inode number of the namespace that this process is in.
pub(crate) fn own() -> Option<u32> {
    u32::try_from(fs::metadata("/proc/self/ns/net").ok()?.ino()).ok()
}

/// A cache of the names.
#[derive(Debug)]
pub(crate) struct Namespaces {
    own: Option<u32>,
    /// By inode number.
    names: FxHashMap<u32, Box<[u8]>>,
    is_fresh: bool,
}

impl Namespaces {
    /// The name of the namespace with this inode number. The name of a pod that owns it says more than a random one.
    pub(crate) fn name<'a>(&'a mut self, netns: u32, pod: Option<&'a [u8]>) -> Option<&'a [u8]> {
        if !self.is_fresh {
            self.names = read(&fs::read("/proc/self/mountinfo").unwrap_or_default());
            self.is_fresh = true;
        }
        let name = self.names.get(&netns).map(|name| &**name);
        name.filter(|name| pod.is_none() || !name.starts_with(DRAWN)).or(pod)
    }

    /// Whether it is the one that this process is in, as far as that is known.
    #[must_use]
    pub(crate) fn is_own(&self, netns: u32) -> bool {
        self.own.is_none_or(|own| own == netns)
    }

    /// Forgets all names: numbers are used again.
    pub(crate) fn refresh(&mut self) {
        self.is_fresh = false;
    }
}

/// An empty cache.
impl Default for Namespaces {
    fn default() -> Self {
        Self { own: own(), names: FxHashMap::default(), is_fresh: false }
    }
}

/// The network namespaces that there were, and how to tell later whether a process is in one of them. `/proc/PID/ns/net` tells it only to a
/// user that may trace the process.
#[derive(Debug, Default)]
pub(super) struct Members {
    known: FxHashMap<u32, Member>,
}

/// A process that was in a namespace.
#[derive(Clone, Copy, Debug)]
struct Member {
    pid: u32,
    /// Inode number of the `/proc/PID/net/dev` of all processes in there: each namespace has its own (`proc_net_ns_init`), and while
    /// it is there no other one has it.
    file: u64,
}

impl Members {
    /// The namespaces of all processes that may be looked at.
    pub(super) fn find() -> Self {
        let mut known = FxHashMap::default();
        for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let inode = |name: &str| Some(fs::metadata(format!("/proc/{pid}/{name}")).ok()?.ino());
            let netns = || u32::try_from(inode("ns/net")?).ok();
            // It may move meanwhile.
            if let (Some(before), Some(file)) = (netns(), inode("net/dev"))
                && netns() == Some(before)
            {
                known.entry(before).or_insert(Member { pid, file });
            }
        }
        Self { known }
    }

    /// What `read` finds in the `/proc/PID/net` of a process in this namespace: this one, if it is in there, or the first one known.
    pub(super) fn read<T>(&self, netns: u32, pid: u32, read: impl Fn(&str) -> io::Result<T>) -> Option<T> {
        let Member { pid: first, file } = *self.known.get(&netns)?;
        [pid, first].into_iter().find_map(|pid| {
            let net = format!("/proc/{pid}/net");
            let is_inside = || fs::metadata(format!("{net}/dev")).is_ok_and(|data| data.ino() == file);
            // It may move meanwhile.
            if !is_inside() {
                return None;
            }
            read(&net).ok().filter(|_| is_inside())
        })
    }
}

/// The names in the text of `/proc/self/mountinfo`; of one that has several, the first.
fn read(mounts: &[u8]) -> FxHashMap<u32, Box<[u8]>> {
    let mut names = FxHashMap::default();
    for mount in mounts::read(mounts) {
        let number = mount.root.strip_prefix(b"net:[").and_then(|rest| rest.strip_suffix(b"]"));
        let number = number.and_then(|digits| str::from_utf8(digits).ok()?.parse().ok());
        let name = mount.place.strip_prefix(NAMED.as_bytes()).and_then(|name| name.strip_prefix(b"/"));
        if let (Some(number), Some(name)) = (number, name)
            && mount.kind == b"nsfs"
        {
            names.entry(number).or_insert_with(|| name[..name.len().min(NAME_LEN)].into());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_mounts() {
        let mounts = b"27 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
            341 24 0:25 /netns /run/netns rw,nosuid shared:5 - tmpfs tmpfs rw\n\
            342 341 0:4 net:[4026532239] /run/netns/red rw shared:190 - nsfs nsfs rw\n\
            343 24 0:4 net:[4026532239] /run/netns/again rw shared:190 - nsfs nsfs rw\n\
            344 341 0:4 net:[4026532300] /run/netns/two\\040words rw - nsfs nsfs rw\n\
            345 24 0:4 net:[4026532400] /run/docker/netns/1234 rw - nsfs nsfs rw\n\
            346 24 0:4 mnt:[4026532401] /run/netns/mnt rw - nsfs nsfs rw\n\
            347 24 0:5 net:[4026532402] /run/netns/file rw - tmpfs tmpfs rw\n";
        let mut names: Vec<_> = read(mounts).into_iter().collect();
        names.sort_unstable();
        let expected: [(u32, &[u8]); 2] = [(4_026_532_239, b"red"), (4_026_532_300, b"two words")];
        assert_eq!(names, expected.map(|(number, name)| (number, name.into())));
    }

    #[test]
    fn a_pod_s_name_goes_before_one_that_was_drawn() {
        let mut namespaces = Namespaces { is_fresh: true, ..Namespaces::default() };
        namespaces.names.insert(7, (*b"cni-1b4d7a9e").into());
        namespaces.names.insert(8, (*b"red").into());
        let pod = Some(&b"shop/web"[..]);
        for (netns, pod, name) in [
            (7, None, Some(&b"cni-1b4d7a9e"[..])),
            (7, pod, pod),
            (8, pod, Some(b"red")),
            (9, pod, pod),
            (9, None, None),
        ] {
            assert_eq!(namespaces.name(netns, pod), name, "{netns} {pod:?}");
        }
    }

    #[test]
    fn long_names_are_cut() {
        let line = format!("1 1 0:4 net:[7] /run/netns/{} rw - nsfs nsfs rw\n", "x".repeat(255));
        assert_eq!(read(line.as_bytes())[&7].len(), NAME_LEN);
    }

    #[test]
    fn numbers_are_looked_up_again_after_a_refresh() {
        let mut namespaces = Namespaces::default();
        namespaces.names.insert(7, (*b"red").into());
        namespaces.is_fresh = true;
        assert_eq!(namespaces.name(7, None), Some(&b"red"[..]));
        namespaces.refresh();
        // No namespace has such a number.
        assert_eq!(namespaces.name(7, None), None);
        let own = namespaces.own.expect("/proc is mounted");
        assert!(namespaces.is_own(own) && !namespaces.is_own(own.wrapping_add(1)));
    }
}
