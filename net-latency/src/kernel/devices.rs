//! Names of network devices by index.

use rustc_hash::FxHashMap;

use super::netns;

/// Room for a device's name, the closing NUL included (`IF_NAMESIZE`).
const NAME_LEN: usize = libc::IF_NAMESIZE;

/// A cache of the names of the devices in this process's network namespace. Devices of other
/// namespaces can't be asked for from here and have no name.
#[derive(Debug)]
pub struct Devices {
    /// Inode number of our namespace.
    netns: Option<u32>,
    names: FxHashMap<u32, Option<Name>>,
    /// The index that was asked for last, and its name: most packets are on the device of the one before.
    last: Option<(u32, Option<Name>)>,
}

#[derive(Clone, Copy, Debug)]
struct Name {
    bytes: [u8; NAME_LEN],
    len: usize,
}

impl Devices {
    /// An empty cache.
    #[must_use]
    pub fn new() -> Self {
        Self { netns: netns::own(), names: FxHashMap::default(), last: None }
    }

    /// The name of the device with this index in the namespace with this inode number.
    pub fn name(&mut self, netns: u32, ifindex: u32) -> Option<&[u8]> {
        if Some(netns) != self.netns {
            return None;
        }
        if self.last.is_none_or(|(last, _)| last != ifindex) {
            let name = self.names.entry(ifindex).or_insert_with(|| look_up(ifindex));
            self.last = Some((ifindex, *name));
        }
        let (_, name) = self.last.as_ref()?;
        name.as_ref().map(|name| &name.bytes[..name.len])
    }

    /// Forgets all names: devices come, go and are renamed.
    pub fn refresh(&mut self) {
        self.names.clear();
        self.last = None;
    }
}

impl Default for Devices {
    fn default() -> Self {
        Self::new()
    }
}

fn look_up(ifindex: u32) -> Option<Name> {
    let mut bytes = [0; NAME_LEN];
    // SAFETY: the buffer has the room that the function asks for.
    let found = unsafe { libc::if_indextoname(ifindex, bytes.as_mut_ptr().cast()) };
    if found.is_null() {
        return None;
    }
    let len = bytes.iter().position(|&byte| byte == 0).unwrap_or(NAME_LEN);
    Some(Name { bytes, len })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_its_name_here_and_none_elsewhere() {
        let mut devices = Devices::new();
        let here = devices.netns.expect("/proc is mounted");
        // Linux registers loopback first in every namespace (`LOOPBACK_IFINDEX`).
        assert_eq!(devices.name(here, 1), Some(b"lo".as_slice()));
        assert_eq!(devices.name(here.wrapping_add(1), 1), None);
        assert_eq!(devices.name(here, u32::MAX), None);
    }
}
