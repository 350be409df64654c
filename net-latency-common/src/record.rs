//! The record of one finished packet, as it travels through the ring buffer.

/// Length of a task's `comm`, the closing NUL included (`TASK_COMM_LEN` in the kernel).
pub const COMM_LEN: usize = 16;

/// IP version 4, as in [`PacketRecord::family`].
pub const AF_INET: u32 = 2;
/// IP version 6, as in [`PacketRecord::family`].
pub const AF_INET6: u32 = 10;
/// What an skb of IP version 4 has as its protocol, in network order.
pub const ETH_P_IP: u16 = 0x0800_u16.to_be();
/// What one of IP version 6 has.
pub const ETH_P_IPV6: u16 = 0x86dd_u16.to_be();
/// TCP, as in [`PacketRecord::protocol`].
pub const IPPROTO_TCP: u8 = 6;
/// UDP, as in [`PacketRecord::protocol`].
pub const IPPROTO_UDP: u8 = 17;

/// Number of stages a packet crosses.
pub const STAMPS: usize = 4;
/// Index in [`PacketRecord::stamps`]: driver (in) or device queue (out).
pub const STAMP_DRV: usize = 0;
/// Index in [`PacketRecord::stamps`]: IP.
pub const STAMP_IP: usize = 1;
/// Index in [`PacketRecord::stamps`]: TCP (or UDP).
pub const STAMP_TRANSPORT: usize = 2;
/// Index in [`PacketRecord::stamps`]: the application.
pub const STAMP_APP: usize = 3;

/// The packet carries no application data: SYN, FIN, RST, pure ACK or probe.
pub const FLAG_CONTROL: u16 = 1 << 0;
/// The transport had sent these bytes before.
pub const FLAG_RETRANS: u16 = 1 << 1;
/// Received as several segments that GRO merged.
pub const FLAG_GRO: u16 = 1 << 2;
/// Several copies of the segment arrived before it was read, so that no stamp is known to be its own.
pub const FLAG_AMBIGUOUS: u16 = 1 << 3;
/// Received, and then appended to another segment's buffer, where it was when the application took it.
pub const FLAG_COALESCED: u16 = 1 << 4;
/// Sent, and the write call was known and then evicted from a full map. Tells why the first stage is unknown
/// ([`crate::Unknown`]), and has no name among a line's flags.
pub const FLAG_WRITE_EVICTED: u16 = 1 << 5;
/// Sent, and the peer's window was 0 at a time between the write call and the ACK (fine stages only).
pub const FLAG_ZERO_WINDOW: u16 = 1 << 6;
/// Sent again because the retransmission timer fired, or bytes of it were (fine stages only).
pub const FLAG_RTO: u16 = 1 << 7;
/// Sent, and dropped in the device's queue (fine stages only).
pub const FLAG_DROPPED: u16 = 1 << 8;

/// In which direction a packet goes, seen from this machine's applications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Direction {
    /// From a device to an application.
    In = 0,
    /// From an application to a device.
    Out = 1,
}

/// The version of recordings: they hold records as they are, so that with another layout of [`PacketRecord`] this is another number, and
/// with another way to pack them too (the user side's `recording/block.rs`). No other is read: no release has written one.
pub const RECORDING_VERSION: u32 = 3;

/// One finished packet. Unknown stamps, ids and names are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PacketRecord {
    /// When the packet crossed each stage, in ns of `CLOCK_MONOTONIC` (`bpf_ktime_get_ns`); index with
    /// the `STAMP_` constants; 0 where unknown.
    pub stamps: [u64; STAMPS],
    /// A stamp besides, 0 where there is none. Out, of a retransmission: when these bytes were first sent.
    /// In, of a packet that entered the stack more than once (host device, then container's): its last entry.
    pub other: u64,
    /// Source address of the packet in network order; an IPv4 address fills the first four bytes.
    pub saddr: [u8; 16],
    /// Destination address, in the form of `saddr`.
    pub daddr: [u8; 16],
    /// Name of the thread, as the kernel has it: any bytes, ended by NUL.
    pub comm: [u8; COMM_LEN],
    /// Name of its process, which is that of the thread group's leader, in the form of `comm`.
    pub process: [u8; COMM_LEN],
    /// Process (thread group) id in the initial PID namespace; 0 where unknown.
    pub pid: u32,
    /// Thread id in the initial PID namespace; 0 where unknown.
    pub tid: u32,
    /// Payload bytes.
    pub len: u32,
    /// TCP sequence number of the first payload byte; 0 for UDP.
    pub seq: u32,
    /// Index of the device, in the namespace of `netns`.
    pub ifindex: u32,
    /// Inode number of the network namespace.
    pub netns: u32,
    /// `skb->mark` at the last stage at which the packet was seen.
    pub mark: u32,
    /// Source port in host order.
    pub sport: u16,
    /// Destination port in host order.
    pub dport: u16,
    /// Number of segments that the packet holds (GRO, GSO); at least 1.
    pub segs: u16,
    /// CPU at the completion.
    pub cpu: u16,
    /// `FLAG_` bits.
    pub flags: u16,
    /// [`Direction`] as a number.
    pub direction: u8,
    /// [`IPPROTO_TCP`] or [`IPPROTO_UDP`].
    pub protocol: u8,
    /// [`AF_INET`] or [`AF_INET6`].
    pub family: u8,
    /// Sent by TCP, with fine stages: why it held these bytes back for half of their wait or more, a [`crate::Held`] as a number; 0 if it
    /// didn't, or the reason is unknown.
    pub held: u8,
    /// Sent by TCP, on a connection that has sent something again: one more than the segments that the peer has said to have got
    /// twice (`tcp_sock.dsack_dups`, its lower bits); else 0.
    pub dsacks: u16,
    /// Sent by TCP: the smoothed round-trip time then, in eighths of a microsecond (`tcp_sock.srtt_us`); 0 where there is none yet.
    /// Received, with fine stages: the process that had the CPU for most of the time in which the reader waited for it, if it did
    /// ([`crate::PART_CPU`]); 0 if the CPU was idle or the holder is unknown.
    pub rtt_or_holder: u32,
}

const _: () = assert!(size_of::<PacketRecord>() == 152, "records have no padding");

// SAFETY: `repr(C)`, no padding (asserted above), every bit pattern of every field is valid.
#[cfg(feature = "user")]
unsafe impl aya::Pod for PacketRecord {}
