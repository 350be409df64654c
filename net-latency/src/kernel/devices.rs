//! Names of network devices by index.

use std::{collections::hash_map::Entry, fs};

use rustc_hash::{FxHashMap, FxHashSet};

use super::netns::{self, Members};

/// Room for a device's name, the closing NUL included (`IF_NAMESIZE`).
const NAME_LEN: usize = libc::IF_NAMESIZE;

/// A cache of the names of devices: of those in this process's network namespace, and of those in the others that were there when
/// it began, as long as a process in them is known.
#[derive(Debug)]
pub(crate) struct Devices {
    /// Inode number of our namespace.
    own: Option<u32>,
    members: Members,
    names: FxHashMap<u32, Option<Name>>,
    /// By the inode number of a namespace that is not ours, then by index.
    elsewhere: FxHashMap<u32, FxHashMap<u32, Name>>,
    /// Namespaces with a process that did not show their devices.
    failed: FxHashSet<(u32, u32)>,
    /// The namespace and index that were requested last, and the name: most packets are on the device of the one before.
    last: Option<((u32, u32), Name)>,
}

type Name = crate::name::Name<NAME_LEN>;

impl Devices {
    /// The name of the device with this index in the namespace with this inode number. The process, 0 for none, may be in it.
    pub(crate) fn name(&mut self, netns: u32, ifindex: u32, pid: u32) -> Option<&[u8]> {
        if self.last.is_none_or(|(last, _)| last != (netns, ifindex)) {
            let name = if Some(netns) == self.own {
                *self.names.entry(ifindex).or_insert_with(|| look_up(ifindex))
            } else {
                self.devices(netns, pid)?.get(&ifindex).copied()
            };
            self.last = Some(((netns, ifindex), name?));
        }
        let (_, name) = self.last.as_ref()?;
        Some(name.bytes())
    }

    /// The devices in a namespace that is not ours.
    fn devices(&mut self, netns: u32, pid: u32) -> Option<&FxHashMap<u32, Name>> {
        let Self { members, elsewhere, failed, .. } = self;
        match elsewhere.entry(netns) {
            Entry::Occupied(devices) => Some(devices.into_mut()),
            Entry::Vacant(_) if failed.contains(&(netns, pid)) => None,
            Entry::Vacant(place) => {
                let text = members.read(netns, pid, |net| fs::read(format!("{net}/igmp")));
                if text.is_none() {
                    failed.insert((netns, pid));
                }
                Some(place.insert(with_ipv4(&text?)))
            }
        }
    }

    /// Forgets all names: devices come, go and are renamed.
    pub(crate) fn refresh(&mut self) {
        self.names.clear();
        self.elsewhere.clear();
        self.failed.clear();
        self.last = None;
    }
}

/// An empty cache. Which namespaces there are it learns now: later, without privileges, the kernel does not tell.
impl Default for Devices {
    fn default() -> Self {
        Self {
            own: netns::own(),
            members: Members::find(),
            names: FxHashMap::default(),
            elsewhere: FxHashMap::default(),
            failed: FxHashSet::default(),
            last: None,
        }
    }
}

/// The devices in the text of `/proc/PID/net/igmp`: all that are up and have IPv4 (`igmp_mc_seq_show` in net/ipv4/igmp.c). Among the files
/// in /proc, this one has both their names and their indices.
fn with_ipv4(text: &[u8]) -> FxHashMap<u32, Name> {
    let device = |line: &[u8]| {
        // Lines of groups begin with a tabulator, that of headings with a word. A name has no colon.
        let (index, rest) = line.split_at_checked(line.iter().position(|&byte| byte == b'\t')?)?;
        let index = str::from_utf8(index).ok()?.parse().ok()?;
        let end = rest.iter().position(|&byte| byte == b':')?;
        Some((index, Name::new(rest[..end].trim_ascii())))
    };
    text.split(|&byte| byte == b'\n').filter_map(device).collect()
}

fn look_up(ifindex: u32) -> Option<Name> {
    let mut bytes = [0; NAME_LEN];
    // SAFETY: the buffer has the room that the function asks for.
    let found = unsafe { libc::if_indextoname(ifindex, bytes.as_mut_ptr().cast()) };
    if found.is_null() {
        return None;
    }
    Name::of_kernel(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_its_name_here_and_none_elsewhere() {
        let mut devices = Devices::default();
        let here = devices.own.expect("/proc is mounted");
        // Linux registers loopback first in every namespace (`LOOPBACK_IFINDEX`).
        assert_eq!(devices.name(here, 1, 0), Some(b"lo".as_slice()));
        // No namespace has such a number.
        assert_eq!(devices.name(7, 1, std::process::id()), None);
        assert_eq!(devices.name(here, u32::MAX, 0), None);
    }

    #[test]
    fn devices_of_others_are_those_that_a_process_in_there_sees() {
        let mut devices = Devices::default();
        let here = devices.own.take().expect("/proc is mounted");
        for pid in [0, u32::MAX, std::process::id()] {
            assert_eq!(devices.name(here, 1, pid), Some(b"lo".as_slice()));
            devices.refresh();
        }
    }

    #[test]
    fn names_and_indices_are_read() {
        let text = b"Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter\n\
            1\tlo        :     1      V3\n\t\t\t\t010000E0     1 0:00000000\t\t0\n\
            12\tveth-of-15-char:     2      V3\n\t\t\t\tFB0000E0     1 0:00000000\t\t0\n\
            3\t\xff.5       :     1      V2\n";
        let mut found: Vec<_> =
            with_ipv4(text).into_iter().map(|(index, name)| (index, name.bytes().to_vec())).collect();
        found.sort_unstable();
        let expected: [(u32, &[u8]); 3] = [(1, b"lo"), (3, b"\xff.5"), (12, b"veth-of-15-char")];
        assert_eq!(found, expected.map(|(index, name)| (index, name.to_vec())));
        assert!(with_ipv4(b"").is_empty());
    }
}
