//! All maps. Every one is bounded and preallocated; those that follow packets and sockets evict what
//! was used least recently, so that what the kernel dropped unseen cannot fill them.

use aya_ebpf::{
    macros::map,
    maps::{Array, HashMap, LpmTrie, LruHashMap, PerCpuArray, RingBuf},
};
use net_latency_common::{Counters, Host, INTERFACE_LEN, PageBases};

use crate::{
    connection::{Connection, Resent, Write, WriteKey},
    datagram::{Datagram, Receiving, Send},
    foreign::{self, Flow},
    ingress::{Examined, Forwarded, Segment},
    passing::{SLOTS, Slot},
};

/// Finished packets, on their way to the user side.
#[map]
pub(crate) static RECORDS: RingBuf = RingBuf::with_byte_size(4 << 20, 0);

/// Whether more packets come than the reader takes, so that it gets a sample.
#[map]
pub(crate) static SHEDDING: Array<u64> = Array::with_max_entries(1, 0);

/// Stamps of the stages at which only a packet's skb is known.
#[map]
pub(crate) static PASSINGS: Array<Slot> = Array::with_max_entries(SLOTS, 0);

/// Packets that this machine forwarded, by the address of their skb.
#[map]
pub(crate) static FORWARDED: LruHashMap<u64, Forwarded> = LruHashMap::with_max_entries(4096, 0);

/// Whether this machine has forwarded a packet: else nobody need look for one.
#[map]
pub(crate) static HAS_FORWARDED: Array<u64> = Array::with_max_entries(1, 0);

/// Received segments that the application has not taken yet, by a mixture of connection and position.
#[map]
pub(crate) static SEGMENTS: LruHashMap<u64, Segment> = LruHashMap::with_max_entries(32768, 0);

/// The segment that TCP got last on each CPU: the one that it drops, if it drops one at once.
#[map]
pub(crate) static EXAMINED: PerCpuArray<Examined> = PerCpuArray::with_max_entries(1, 0);

/// The packet that UDP works on, per CPU.
#[map]
pub(crate) static RECEIVING: PerCpuArray<Receiving> = PerCpuArray::with_max_entries(1, 0);

/// Datagrams on the queues of sockets, by the address of their skb.
#[map]
pub(crate) static DATAGRAMS: LruHashMap<u64, Datagram> = LruHashMap::with_max_entries(16384, 0);

/// What threads are sending by UDP, by process and thread id.
#[map]
pub(crate) static SENDS: LruHashMap<u64, Send> = LruHashMap::with_max_entries(4096, 0);

/// TCP sockets in use, by address.
#[map]
pub(crate) static CONNECTIONS: LruHashMap<u64, Connection> = LruHashMap::with_max_entries(8192, 0);

/// Write calls whose bytes wait behind other unsent bytes.
#[map]
pub(crate) static WRITES: LruHashMap<WriteKey, Write> = LruHashMap::with_max_entries(16384, 0);

/// Segments that were sent more than once.
#[map]
pub(crate) static RESENT: LruHashMap<WriteKey, Resent> = LruHashMap::with_max_entries(4096, 0);

/// Connections that are left alone.
#[map]
pub(crate) static FOREIGN: Array<Flow> = Array::with_max_entries(foreign::SLOTS, 0);

/// Whether a process that was asked for has used a socket, by a hash of the socket's address.
#[map]
pub(crate) static WANTED: Array<u64> = Array::with_max_entries(foreign::SLOTS, 0);

/// Where the kernel keeps the addresses by which a page is found; zero until the user side knows.
#[map]
pub(crate) static PAGE_BASES: Array<PageBases> = Array::with_max_entries(1, 0);

/// Why packets became no line.
#[map]
pub(crate) static COUNTERS: PerCpuArray<Counters> = PerCpuArray::with_max_entries(1, 0);

/// Processes to show: alone, or with those that they start. The user side makes room for more of the latter.
#[map]
pub(crate) static PIDS: HashMap<u32, u8> = HashMap::with_max_entries(1024, 0);

/// Ports to show.
#[map]
pub(crate) static PORTS: HashMap<u32, u8> = HashMap::with_max_entries(1024, 0);

/// Addresses to show. A trie can't be preallocated; only the user side adds to it, before anything is attached.
#[map]
pub(crate) static HOSTS: LpmTrie<Host, u8> = LpmTrie::with_max_entries(1024, 0);

/// Network namespaces to show, by inode number.
#[map]
pub(crate) static NETNS: HashMap<u32, u8> = HashMap::with_max_entries(1024, 0);

/// Devices to show, by name.
#[map]
pub(crate) static INTERFACES: HashMap<[u64; INTERFACE_LEN / 8], u8> = HashMap::with_max_entries(1024, 0);

#[cfg(feature = "names")]
pub(crate) use tasks::*;

/// Tasks to show.
#[cfg(feature = "names")]
mod tasks {
    use aya_ebpf::{
        macros::map,
        maps::{Array, CgroupArray},
    };
    use net_latency_common::{Bank, MAX_BANKS, MAX_CGROUPS};

    /// Their names.
    #[map]
    pub(crate) static GLOBS: Array<Bank> = Array::with_max_entries(MAX_BANKS as u32, 0);

    /// Their cgroups.
    #[map]
    pub(crate) static CGROUPS: CgroupArray = CgroupArray::with_max_entries(MAX_CGROUPS, 0);
}

#[cfg(feature = "hist")]
pub(crate) use counts::*;

/// What counts of times take.
#[cfg(feature = "hist")]
mod counts {
    use aya_ebpf::{
        macros::map,
        maps::{Array, HashMap, PerCpuArray, PerCpuHashMap},
    };
    use net_latency_common::{CELLS, COMM_LEN, CellKey, Span};

    /// Counts of times by way and stage. The user side makes room where it wants them.
    #[map]
    pub(crate) static TIMES: PerCpuArray<[u64; CELLS]> = PerCpuArray::with_max_entries(1, 0);

    /// Counts of times by group, way and stage. The user side makes room where it wants them.
    #[map]
    pub(crate) static GROUPS: PerCpuHashMap<CellKey, u64> = PerCpuHashMap::with_max_entries(1, 0);

    /// Names of the processes that have counts.
    #[map]
    pub(crate) static NAMES: HashMap<u32, [u64; COMM_LEN / 8]> = HashMap::with_max_entries(1, 0);

    /// When packets are counted.
    #[map]
    pub(crate) static SPAN: Array<Span> = Array::with_max_entries(1, 0);
}
