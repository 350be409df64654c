//! The journey's maps, all bounded and preallocated.

use aya_ebpf::{
    macros::map,
    maps::{Array, HashMap, LruHashMap, PerCpuArray, RingBuf},
};
use net_latency_common::journey::TALLIES;

use super::{
    begin::{Call, Handed, Known},
    context::{Interrupt, Softirqs},
    heads::Head,
    queue::Queue,
    schedule::Scheduled,
};

/// Rows, on their way to the user side.
#[map]
pub(super) static ROWS: RingBuf = RingBuf::with_byte_size(1 << 20, 0);

/// Journeys under way, by id. No more begin than find room; the user side takes out those that have ended.
#[map]
pub(super) static JOURNEYS: HashMap<u64, Known> = HashMap::with_max_entries(64, 0);

/// How many journeys were begun, and how many were ended by the user side.
#[map]
pub(super) static TALLY: Array<u64> = Array::with_max_entries(TALLIES, 0);

/// Buffers of packets that are followed, by their address.
#[map]
pub(super) static HEADS: LruHashMap<u64, Head> = LruHashMap::with_max_entries(4096, 0);

/// Packets whose buffer is being replaced, by their skb's address.
#[map]
pub(super) static MOVING: LruHashMap<u64, u64> = LruHashMap::with_max_entries(256, 0);

/// Write calls on TCP sockets that are asked for, by socket: of each the last.
#[map]
pub(super) static CALLS: LruHashMap<u64, Call> = LruHashMap::with_max_entries(4096, 0);

/// Write calls on UDP sockets, by thread: of each the last.
#[map]
pub(super) static HANDED: LruHashMap<u64, Handed> = LruHashMap::with_max_entries(1024, 0);

/// When a packet between these ends was last read by a task that was not asked for.
#[map]
pub(super) static UNWANTED: LruHashMap<u64, u64> = LruHashMap::with_max_entries(8192, 0);

/// Packets that wait on the queues of TCP sockets, by socket.
#[map]
pub(super) static QUEUES: LruHashMap<u64, Queue> = LruHashMap::with_max_entries(1024, 0);

/// When threads were last woken and last given a CPU, while packets are followed.
#[map]
pub(super) static SCHEDULED: LruHashMap<u32, Scheduled> = LruHashMap::with_max_entries(4096, 0);

/// What this CPU's softirqs did last.
#[map]
pub(super) static SOFTIRQS: PerCpuArray<Softirqs> = PerCpuArray::with_max_entries(1, 0);

/// Which interrupt last had a driver's packets taken, by NAPI id.
#[map]
pub(super) static INTERRUPTS: LruHashMap<u32, Interrupt> = LruHashMap::with_max_entries(1024, 0);
