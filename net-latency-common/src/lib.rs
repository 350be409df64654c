//! Everything that the kernel side and the user side of net-latency must agree on: the record of a
//! finished packet, the configuration that the user side writes into the programs before they are
//! loaded, and the names of counters, flags and maps.
//!
//! All types are `#[repr(C)]` without padding, so that a record is valid whatever bytes it holds.

#![no_std]

mod call;
mod config;
mod connection;
mod counter;
mod drops;
mod filter;
mod fine;
mod histogram;
pub mod journey;
pub mod offsets;
mod place;
mod record;
pub mod tagged;
mod unknown;

pub use call::{
    CALL_COUNTERS_MAP, CALL_SETTINGS_GLOBAL, CALLS_MAP, CallContext, CallCounter, CallCounters, CallFrame,
    CallRecord, CallSettings, CallStack, LEVEL_HARDIRQ, LEVEL_NMI, LEVEL_SOFTIRQ, LEVEL_TASK, MAX_DEPTH,
    ReturnedCall, STACKS_MAP,
};
pub use config::{PageBases, Settings};
pub use connection::{
    CONNECTION_CLIENT, CONNECTION_COOKIE, CONNECTION_COUNTERS_MAP, CONNECTION_FAST_OPEN,
    CONNECTION_LOCAL_FIRST, CONNECTION_MPTCP, CONNECTION_OPEN, CONNECTION_OVERFLOW, CONNECTION_PEER_FIRST,
    CONNECTION_RECORDS_MAP, CONNECTION_RESET, CONNECTION_SERVER, CONNECTION_SIZE, CONNECTION_UNSEEN,
    ConnectionCounter, ConnectionCounters, ConnectionRecord, LISTENER_SIZE, LISTENERS_MAP, ListenerRecord,
    MAX_CONNECTIONS, MAX_LISTENERS, OPEN_CONNECTIONS_MAP,
};
pub use counter::{Counter, Counters};
pub use drops::{DROP_PLACES_MAP, DropPlace, DroppingSockets, MAX_DROP_PLACES};
pub use filter::{
    Bank, GLOBS_PER_BANK, Host, INTERFACE_LEN, MAX_BANKS, MAX_CGROUPS, PID_ALONE, PID_WITH_CHILDREN,
    PIDS_IN_SET,
};
pub use fine::{
    FineRecord, Held, PART_COPY, PART_CPU, PART_DRIVER, PART_FINISHED, PART_GAP, PART_NET, PART_QDISC,
    PART_WAIT, PARTS, SENT_AGAIN, SENT_BY_TIMER, SENT_DROPPED, SENT_TAG_BITS, SENT_UNQUEUED, Sent, SentSlot,
    SentSlots, SentTimes, Served, between, part, sent_flags, sent_parts, sent_tag, sent_time, unknown_part,
    unknown_parts,
};
pub use histogram::{
    BUCKETS, Block, CELLS, CellKey, ConnectionKey, FINE_ROWS, GroupBy, NEVER, ROW_TOTAL, ROWS, Span,
    TRAFFIC_KINDS, TRAFFIC_OUT, TRAFFIC_UDP, UNKNOWN, bounds, bucket, cell, is_client, no_time, part_time,
    row, service_port, without_rest,
};
pub use offsets::Offsets;
pub use place::{Place, WORDS, words};
pub use record::{
    AF_INET, AF_INET6, COMM_LEN, Direction, ETH_P_IP, ETH_P_IPV6, FLAG_AMBIGUOUS, FLAG_COALESCED,
    FLAG_CONTROL, FLAG_DROPPED, FLAG_GRO, FLAG_RETRANS, FLAG_RTO, FLAG_WRITE_EVICTED, FLAG_ZERO_WINDOW,
    IPPROTO_TCP, IPPROTO_UDP, PacketRecord, RECORDING_VERSION, STAMP_APP, STAMP_DRV, STAMP_IP,
    STAMP_TRANSPORT, STAMPS,
};
pub use unknown::{UNKNOWNS, Unknown};

/// Name of the map of hooks that a test has skipped, by [`hook_key`]; in the object for tests alone.
pub const SKIPS_MAP: &str = "SKIPS";

/// A hook in [`SKIPS_MAP`], by its logic's name in the kernel side: `transmit::written`.
#[must_use]
pub const fn hook_key(name: &str) -> u32 {
    // FNV-1a.
    let (mut hash, mut at) = (0x811c_9dc5_u32, 0);
    while at < name.len() {
        hash = (hash ^ name.as_bytes()[at] as u32).wrapping_mul(0x0100_0193);
        at += 1;
    }
    hash
}

/// Name of the ring buffer that carries [`PacketRecord`]s.
pub const RECORDS_MAP: &str = "RECORDS";
/// Name of the per-CPU array with one [`Counters`] element.
pub const COUNTERS_MAP: &str = "COUNTERS";
/// Name of the map of counts of dropped packets by [`DroppingSockets`].
pub const DROPS_MAP: &str = "DROPS";
/// Name of the set of process ids to show, with a `PID_` constant each; used when [`Settings::filter_pid`] is
/// [`PIDS_IN_SET`].
pub const PIDS_MAP: &str = "PIDS";
/// Name of the set of ports to show; used when [`Settings::filter_port`] is not 0.
pub const PORTS_MAP: &str = "PORTS";
/// Name of the array of [`Bank`]s that match names of tasks; [`Settings::filter_comm`] of them are used.
pub const GLOBS_MAP: &str = "GLOBS";
/// Name of the array of cgroups to show; [`Settings::filter_cgroup`] of them are used.
pub const CGROUPS_MAP: &str = "CGROUPS";
/// Name of the trie of [`Host`]s to show; used when [`Settings::filter_host`] is not 0.
pub const HOSTS_MAP: &str = "HOSTS";
/// Name of the set of network namespaces to show; used when [`Settings::filter_netns`] is not 0.
pub const NETNS_MAP: &str = "NETNS";
/// Name of the set of devices to show, by name; used when [`Settings::filter_interface`] is not 0.
pub const INTERFACES_MAP: &str = "INTERFACES";
/// Name of the array with one [`PageBases`] element.
pub const PAGE_BASES_MAP: &str = "PAGE_BASES";
/// Name of the map of received segments that the application has not taken.
pub const SEGMENTS_MAP: &str = "SEGMENTS";
/// Size in bytes of a value of [`SEGMENTS_MAP`], which the user side only counts.
pub const SEGMENT_SIZE: usize = 88;
/// Name of the map of write calls whose bytes wait behind other unsent bytes.
pub const WRITES_MAP: &str = "WRITES";
/// Name of the map of received datagrams that the application has not taken, by the address of their skb.
pub const DATAGRAMS_MAP: &str = "DATAGRAMS";
/// Size in bytes of a value of [`DATAGRAMS_MAP`], which the user side only counts.
pub const DATAGRAM_SIZE: usize = 48;
/// Name of the per-CPU array of distributions by direction, protocol and row; used with [`GroupBy::Stage`].
pub const TIMES_MAP: &str = "TIMES";
/// Name of the per-CPU hash of counts by [`CellKey`]; used with any other [`GroupBy`].
pub const GROUPS_MAP: &str = "GROUPS";
/// Name of the map of the names of processes; used with [`GroupBy::Pid`].
pub const NAMES_MAP: &str = "NAMES";
/// Name of the map of the numbers of connections by [`ConnectionKey`]; used with [`GroupBy::Connection`].
pub const CONNECTION_IDS_MAP: &str = "CONNECTION_IDS";
/// Name of the array with one [`Span`], outside of which no packet is counted.
pub const SPAN_MAP: &str = "SPAN";
/// Name of the array of threads that read, which only `--stages fine` uses.
pub const READERS_MAP: &str = "READERS";
/// Name of the array of [`SentSlots`]: sent segments that wait for their ACKs, which only `--stages fine` uses.
pub const SENT_MAP: &str = "SENT";
/// Name of the same array for what waits for its driver only.
pub const LEAVING_MAP: &str = "LEAVING";
/// Maps that only following MPTCP takes.
pub const MPTCP_MAPS: [&str; 2] = ["PATHS", "WRITERS"];
