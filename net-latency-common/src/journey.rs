//! What the programs of `net-latency journey` and its user side must agree on: the rows of a packet's way.

use crate::COMM_LEN;

/// Name of the ring buffer that carries [`JourneyStart`]s and [`JourneyRow`]s, told apart by their sizes.
pub const ROWS_MAP: &str = "ROWS";
/// Name of the set of journeys under way, by id. The user side ends a journey by taking it out.
pub const JOURNEYS_MAP: &str = "JOURNEYS";
/// Name of the array that says how many journeys were [begun](TALLY_BEGUN) and [ended](TALLY_ENDED).
pub const TALLY_MAP: &str = "TALLY";
/// Index of the journeys that the kernel side has begun.
pub const TALLY_BEGUN: u32 = 0;
/// Index of the journeys that the user side has ended.
pub const TALLY_ENDED: u32 = 1;
/// Index of the rows for which the ring buffer had no room.
pub const TALLY_LOST: u32 = 2;
/// Not 0 while journeys may begin; the user side sets it once everything is attached.
pub const TALLY_ARMED: u32 = 3;
/// Elements of that array.
pub const TALLIES: u32 = 4;
/// Name of the [`JourneySettings`] global.
pub const JOURNEY_SETTINGS_GLOBAL: &str = "JOURNEY_SETTINGS";

/// Programs that a function each can be given by fentry.
pub const SLOTS: usize = 64;

/// What the programs are told before they are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct JourneySettings {
    /// Address of the kernel's array `__per_cpu_offset`; 0 where unknown.
    pub per_cpu_offset: u64,
    /// Where each CPU has its preemption count, less its offset, or each task, by architecture; 0 where unknown.
    pub preempt_count: u64,
    /// `task_struct.softirq_disable_cnt`, which PREEMPT_RT has; 0 if there is none.
    pub task_softirq: u32,
    /// `skb_shared_info.dataref`.
    pub dataref: u32,
    /// `sk_buff.mac_header` and the like need none; `sock.sk_mark`.
    pub sk_mark: u32,
    /// `sk_buff.napi_id`; 0 if there is none.
    pub skb_napi_id: u32,
    /// `napi_struct.napi_id`.
    pub napi_id: u32,
    /// Whether the tracepoint `kfree_skb` says why.
    pub has_reasons: u32,
    /// Whether journeys may begin where packets leave.
    pub begin_out: u32,
    /// Whether journeys may begin where packets arrive.
    pub begin_in: u32,
    /// Which argument of the function in each slot is the skb.
    pub positions: [u8; SLOTS],
}

impl JourneySettings {
    /// Nothing is known, and none begins.
    pub const NONE: Self = Self {
        per_cpu_offset: 0,
        preempt_count: 0,
        task_softirq: 0,
        dataref: 0,
        sk_mark: 0,
        skb_napi_id: 0,
        napi_id: 0,
        has_reasons: 0,
        begin_out: 0,
        begin_in: 0,
        positions: [0; SLOTS],
    };
}

/// A packet that is followed from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct JourneyStart {
    /// Its journey's.
    pub id: u64,
    /// Source address in network order; an IPv4 address fills the first four bytes.
    pub saddr: [u8; 16],
    /// Destination address, in the form of `saddr`.
    pub daddr: [u8; 16],
    /// TCP sequence number of the first payload byte; 0 for UDP.
    pub seq: u32,
    /// Payload bytes.
    pub len: u32,
    /// Mark of the packet, or of the socket that sends it.
    pub mark: u32,
    /// `AF_INET` or `AF_INET6`.
    pub family: u32,
    /// Source port in host order.
    pub sport: u16,
    /// Destination port in host order.
    pub dport: u16,
    /// `IPPROTO_TCP` or `IPPROTO_UDP`.
    pub protocol: u8,
    /// [`crate::Direction`] as a number: where the journey begins.
    pub direction: u8,
    /// Whether the task that wrote it is wanted.
    pub is_wanted: u8,
    /// Always 0.
    pub reserved: u8,
}

/// One place on a packet's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct JourneyRow {
    /// The journey's.
    pub id: u64,
    /// When, in ns of `CLOCK_MONOTONIC`.
    pub at: u64,
    /// Below [`PLACES`] a `PLACE_` constant; from there on below [`FIRST_ADDRESS`] a slot; else an address within the
    /// first bytes of a function.
    pub place: u64,
    /// The skb's address; 0 where the packet's bytes are in one that is not known.
    pub skb: u64,
    /// For a drop: the address in the kernel at which the packet was dropped.
    pub location: u64,
    /// In a softirq: when this CPU entered it, and when it was last raised there; 0 where unknown.
    pub softirq_at: u64,
    /// See `softirq_at`.
    pub raised_at: u64,
    /// In a softirq: when the handler of the interrupt began that had the driver's packets taken, this skb among them; 0 if
    /// none did, or that can't be told.
    pub interrupt_at: u64,
    /// The two words at the beginning of what stands where IP's header says that TCP's or UDP's begins; 0 if nothing does.
    pub content: u64,
    /// Name of the task, in a process' context.
    pub comm: [u8; COMM_LEN],
    /// Name of the device.
    pub device: [u8; 16],
    /// Process id in the initial namespace, in a process' context; else 0.
    pub pid: u32,
    /// Thread id, likewise.
    pub tid: u32,
    /// Inode number of the device's network namespace.
    pub netns: u32,
    /// The kernel's reason for a drop.
    pub reason: u32,
    /// `skb->mark`.
    pub mark: u32,
    /// Number of that interrupt.
    pub interrupt: u32,
    /// CPU.
    pub cpu: u16,
    /// A `CONTEXT_` constant.
    pub context: u8,
    /// `ROW_` bits.
    pub flags: u8,
    /// Always 0.
    pub reserved: u32,
}

/// The packet's bytes were handed to the application.
pub const ROW_READ: u8 = 1 << 0;
/// The packet was dropped.
pub const ROW_DROP: u8 = 1 << 1;
/// This skb is freed.
pub const ROW_FREED: u8 = 1 << 2;
/// The packet waits for the application, on a socket's queue.
pub const ROW_QUEUED: u8 = 1 << 3;
/// It waits there as one of too many, and will not be seen when it is read.
pub const ROW_UNWATCHED: u8 = 1 << 4;
/// The task in whose context this is belongs to those requested.
pub const ROW_WANTED: u8 = 1 << 5;
/// The send queue's skb: bytes that stay there until they are acknowledged.
pub const ROW_KEPT: u8 = 1 << 6;
/// The handler of an interrupt raised the softirq.
pub const ROW_RAISED_BY_INTERRUPT: u8 = 1 << 7;

/// It can't be told in which context the CPU was.
pub const CONTEXT_UNKNOWN: u8 = 0;
/// A task, on its own behalf.
pub const CONTEXT_PROCESS: u8 = 1;
/// A softirq.
pub const CONTEXT_SOFTIRQ: u8 = 2;
/// A hardware interrupt.
pub const CONTEXT_HARDIRQ: u8 = 3;

/// Tracepoint `netif_rx`.
pub const PLACE_NETIF_RX: u64 = 1;
/// Tracepoint `napi_gro_receive_entry`.
pub const PLACE_GRO_RECEIVE: u64 = 2;
/// Tracepoint `napi_gro_frags_entry`.
pub const PLACE_GRO_FRAGS: u64 = 3;
/// Tracepoint `netif_receive_skb_entry`.
pub const PLACE_RECEIVE_ENTRY: u64 = 4;
/// Tracepoint `netif_receive_skb_list_entry`.
pub const PLACE_RECEIVE_LIST: u64 = 5;
/// Tracepoint `netif_receive_skb`.
pub const PLACE_RECEIVE: u64 = 6;
/// Tracepoint `qdisc_enqueue`.
pub const PLACE_ENQUEUE: u64 = 9;
/// Tracepoint `qdisc_dequeue`.
pub const PLACE_DEQUEUE: u64 = 10;
/// Tracepoint `consume_skb`.
pub const PLACE_CONSUME: u64 = 11;
/// Tracepoint `kfree_skb`.
pub const PLACE_DROP: u64 = 12;
/// Tracepoint `skb_copy_datagram_iovec`.
pub const PLACE_COPY: u64 = 13;
/// Tracepoint `tcp_rcv_space_adjust`.
pub const PLACE_TAKEN: u64 = 14;
/// Tracepoint `sched_waking` of the reader.
pub const PLACE_WAKING: u64 = 15;
/// Tracepoint `sched_switch` to the reader.
pub const PLACE_SWITCH: u64 = 16;
/// The first number that is a slot's.
pub const PLACES: u64 = 64;
/// The first number that is an address.
pub const FIRST_ADDRESS: u64 = 4096;

const _: () = assert!(size_of::<JourneyStart>() == 64, "records have no padding");
const _: () = assert!(size_of::<JourneyRow>() == 136, "records have no padding");
const _: () = assert!(size_of::<JourneySettings>() == 48 + SLOTS, "settings have no padding");

// SAFETY: `repr(C)`, integers only, no padding (asserted above).
#[cfg(feature = "user")]
unsafe impl aya::Pod for JourneySettings {}
// SAFETY: as above.
#[cfg(feature = "user")]
unsafe impl aya::Pod for JourneyStart {}
// SAFETY: as above.
#[cfg(feature = "user")]
unsafe impl aya::Pod for JourneyRow {}
