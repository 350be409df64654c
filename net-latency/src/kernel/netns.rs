//! Names of network namespaces: those of `ip netns`, which are mounts in /run/netns.

use std::{fs, os::unix::fs::MetadataExt as _};

use rustc_hash::FxHashMap;

use super::mounts;

/// Where names are.
const DIRECTORY: &[u8] = b"/run/netns/";
/// Longer names are cut: a line has room for so much, whatever it has to escape.
pub(crate) const NAME_LEN: usize = 128;

/// Inode number of the namespace that this process is in.
pub(super) fn own() -> Option<u32> {
    u32::try_from(fs::metadata("/proc/self/ns/net").ok()?.ino()).ok()
}

/// A cache of the names.
#[derive(Debug)]
pub struct Namespaces {
    own: Option<u32>,
    /// By inode number.
    names: FxHashMap<u32, Box<[u8]>>,
    is_fresh: bool,
}

impl Namespaces {
    /// An empty cache.
    #[must_use]
    pub fn new() -> Self {
        Self { own: own(), names: FxHashMap::default(), is_fresh: false }
    }

    /// The name of the namespace with this inode number.
    pub fn name(&mut self, netns: u32) -> Option<&[u8]> {
        if !self.is_fresh {
            self.names = read(&fs::read("/proc/self/mountinfo").unwrap_or_default());
            self.is_fresh = true;
        }
        self.names.get(&netns).map(|name| &**name)
    }

    /// Whether it is the one that this process is in, as far as that is known.
    #[must_use]
    pub fn is_own(&self, netns: u32) -> bool {
        self.own.is_none_or(|own| own == netns)
    }

    /// Forgets all names: numbers are used again.
    pub fn refresh(&mut self) {
        self.is_fresh = false;
    }
}

impl Default for Namespaces {
    fn default() -> Self {
        Self::new()
    }
}

/// The names in the text of `/proc/self/mountinfo`; of one that has several, the first.
fn read(mounts: &[u8]) -> FxHashMap<u32, Box<[u8]>> {
    let mut names = FxHashMap::default();
    for mount in mounts::read(mounts) {
        let number = mount.root.strip_prefix(b"net:[").and_then(|rest| rest.strip_suffix(b"]"));
        let number = number.and_then(|digits| str::from_utf8(digits).ok()?.parse().ok());
        if let (Some(number), Some(name)) = (number, mount.place.strip_prefix(DIRECTORY))
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
    fn long_names_are_cut() {
        let line = format!("1 1 0:4 net:[7] /run/netns/{} rw - nsfs nsfs rw\n", "x".repeat(255));
        assert_eq!(read(line.as_bytes())[&7].len(), NAME_LEN);
    }

    #[test]
    fn numbers_are_looked_up_again_after_a_refresh() {
        let mut namespaces = Namespaces::new();
        namespaces.names.insert(7, (*b"red").into());
        namespaces.is_fresh = true;
        assert_eq!(namespaces.name(7), Some(&b"red"[..]));
        namespaces.refresh();
        // No namespace has such a number.
        assert_eq!(namespaces.name(7), None);
        let own = namespaces.own.expect("/proc is mounted");
        assert!(namespaces.is_own(own) && !namespaces.is_own(own.wrapping_add(1)));
    }
}
