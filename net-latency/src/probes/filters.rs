//! What the kernel side is told of the wanted packets.

use std::{fs::File, net::IpAddr, time::Duration};

use anyhow::{Context as _, Result};
use aya::{
    Ebpf, EbpfLoader, Pod,
    maps::{Array, CgroupArray, HashMap, LpmTrie, lpm_trie::Key},
};
use ipnet::IpNet;
use net_latency_common::{
    AF_INET, AF_INET6, CGROUPS_MAP, GLOBS_MAP, HOSTS_MAP, Host, INTERFACE_LEN, INTERFACES_MAP, NETNS_MAP,
    PID_ALONE, PID_WITH_CHILDREN, PIDS_IN_SET, PIDS_MAP, PORTS_MAP, Settings,
};

use crate::{
    kernel::ports,
    packet::event::IpVersion,
    request::{PacketFilter, glob},
};

/// Processes of a command that can run at the same time.
const FOLLOWED_PROCESSES: u32 = 16_384;

/// The least time in ns; 0 for none.
#[must_use]
pub(crate) fn slower_ns(slower: Option<Duration>) -> u64 {
    slower.map_or(0, |least| u64::try_from(least.as_nanos()).unwrap_or(u64::MAX))
}

/// The settings, beside the maps.
pub(super) fn settings(filter: &PacketFilter, buffer_bytes: u32) -> Settings {
    let is_on = u32::from;
    let filter_pid = match (filter.pids.as_slice(), filter.followed) {
        ([], None) => 0,
        // One that has no children to follow need not be looked for in a set.
        ([pid], None) => *pid,
        _ => PIDS_IN_SET,
    };
    let filter_comm = glob::banks(&filter.comms).len() as u32;
    let filter_cgroup = filter.cgroups.len() as u32;
    Settings {
        slower_ns: slower_ns(filter.slower),
        filter_task: is_on(filter_pid != 0 || filter_comm + filter_cgroup > 0),
        filter_pid,
        filter_comm,
        filter_cgroup,
        filter_port: is_on(!filter.ports.is_empty()),
        filter_host: is_on(!filter.hosts.is_empty()),
        filter_family: match filter.version {
            Some(IpVersion::V4) => AF_INET,
            Some(IpVersion::V6) => AF_INET6,
            None => 0,
        },
        filter_protocol: filter.protocol.map_or(0, |protocol| protocol.number().into()),
        filter_netns: is_on(!filter.netns.is_empty()),
        filter_interface: is_on(!filter.interfaces.is_empty()),
        filter_mark: filter.mark.map_or(0, |mark| mark.mask),
        mark: filter.mark.map_or(0, |mark| mark.value),
        sample_below: match filter.sample {
            // Of all 2^32 random numbers.
            Some(of) if of.get() > 1 => ((1u64 << u32::BITS) / u64::from(of.get())) as u32,
            _ => 0,
        },
        control: is_on(filter.control),
        // The rest is not of the filters.
        fine: 0,
        ephemeral_ports: ports::ephemeral_word(),
        wakeup_bytes: buffer_bytes / 4,
        histograms_by: 0,
        record_slower_ns: 0,
        since: 0,
        tcp_header_only: 0,
        tcp_drops_unseen: 0,
        tell_established: 0,
        tasks_apart: 0,
        realtime: 0,
        shows_drop_reasons: 0,
        seed: 0,
    }
}

/// Gives the sets the sizes that they need.
pub(super) fn size(filter: &PacketFilter, loader: &mut EbpfLoader<'_>) {
    let pids = if filter.followed.is_some() { FOLLOWED_PROCESSES } else { 0 } + filter.pids.len() as u32;
    for (map, entries) in [
        (PIDS_MAP, pids),
        (PORTS_MAP, filter.ports.len() as u32),
        (HOSTS_MAP, filter.hosts.len() as u32),
        (NETNS_MAP, filter.netns.len() as u32),
        (INTERFACES_MAP, filter.interfaces.len() as u32),
    ] {
        // There is no empty map.
        loader.map_max_entries(map, entries.max(1));
    }
}

/// Whether tasks are wanted by their name or cgroup.
pub(super) fn needs_names(filter: &PacketFilter) -> bool {
    !filter.comms.is_empty() || !filter.cgroups.is_empty()
}

/// Fills the sets. A cgroup that has gone since the command line was read is an error.
pub(super) fn fill(filter: &PacketFilter, ebpf: &mut Ebpf) -> Result<()> {
    let alone = filter.pids.iter().map(|&pid| (pid, PID_ALONE));
    let followed = filter.followed.iter().map(|&pid| (pid, PID_WITH_CHILDREN));
    fill_set(ebpf, PIDS_MAP, alone.chain(followed))?;
    fill_set(ebpf, PORTS_MAP, filter.ports.iter().map(|&port| (u32::from(port), 1_u8)))?;
    fill_set(ebpf, NETNS_MAP, filter.netns.iter().map(|&inode| (inode, 1_u8)))?;
    fill_set(ebpf, INTERFACES_MAP, filter.interfaces.iter().map(|name| (interface(name), 1_u8)))?;

    let map = ebpf.map_mut(HOSTS_MAP).context("a map is missing")?;
    let mut hosts: LpmTrie<_, Host, u8> = LpmTrie::try_from(map)?;
    for net in &filter.hosts {
        hosts.insert(&host(net), 1, 0).context("telling the kernel side of an address")?;
    }
    if !needs_names(filter) {
        return Ok(());
    }
    let map = ebpf.map_mut(GLOBS_MAP).context("a map is missing")?;
    let mut globs = Array::try_from(map)?;
    for (index, bank) in (0..).zip(glob::banks(&filter.comms)) {
        globs.set(index, bank, 0).context("telling the kernel side of names")?;
    }
    let map = ebpf.map_mut(CGROUPS_MAP).context("a map is missing")?;
    let mut cgroups = CgroupArray::try_from(map)?;
    for (index, path) in (0..).zip(&filter.cgroups) {
        let asking = || format!("asking for cgroup {}", path.display());
        cgroups.set(index, File::open(path).with_context(asking)?, 0).with_context(asking)?;
    }
    Ok(())
}

fn fill_set<K: Pod, V: Pod>(
    ebpf: &mut Ebpf,
    name: &str,
    entries: impl Iterator<Item = (K, V)>,
) -> Result<()> {
    let map = ebpf.map_mut(name).context("a map is missing")?;
    let mut set: HashMap<_, K, V> = HashMap::try_from(map)?;
    for (key, value) in entries {
        set.insert(key, value, 0).with_context(|| format!("filling {name}"))?;
    }
    Ok(())
}

/// A device's name as the kernel has it. One that is too long is no device's.
fn interface(name: &str) -> [u64; INTERFACE_LEN / 8] {
    let mut bytes = [0; INTERFACE_LEN];
    for (to, from) in bytes.iter_mut().zip(name.bytes()) {
        *to = from;
    }
    let [a, b, c, d, e, f, g, h, rest @ ..] = bytes;
    [u64::from_ne_bytes([a, b, c, d, e, f, g, h]), u64::from_ne_bytes(rest)]
}

fn host(net: &IpNet) -> Key<Host> {
    let word = |bytes: [u8; 4]| u32::from_ne_bytes(bytes);
    let host = match net.addr() {
        IpAddr::V4(address) => Host { family: AF_INET, address: [word(address.octets()), 0, 0, 0] },
        IpAddr::V6(address) => {
            let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = address.octets();
            let words = [[a, b, c, d], [e, f, g, h], [i, j, k, l], [m, n, o, p]];
            Host { family: AF_INET6, address: words.map(word) }
        }
    };
    Key::new(Host::FAMILY_BITS + u32::from(net.prefix_len()), host)
}
