//! What `net-latency connections` needs: the records of connections and of listening sockets, and what the programs count.

use crate::COMM_LEN;

/// Name of the ring buffer that carries [`ConnectionRecord`]s and [`ListenerRecord`]s.
pub const CONNECTION_RECORDS_MAP: &str = "CONNECTION_RECORDS";
/// Name of the map of TCP connections that have not ended, by the address of their socket.
pub const OPEN_CONNECTIONS_MAP: &str = "OPEN_CONNECTIONS";
/// Name of the map of listening sockets, by address.
pub const LISTENERS_MAP: &str = "LISTENERS";
/// Name of the per-CPU array with one [`ConnectionCounters`] element.
pub const CONNECTION_COUNTERS_MAP: &str = "CONNECTION_COUNTERS";
/// Connections that are followed at a time.
pub const MAX_CONNECTIONS: u32 = 65_536;
/// Listening sockets likewise.
pub const MAX_LISTENERS: u32 = 4096;
/// Bytes of an entry of [`OPEN_CONNECTIONS_MAP`], of which the user side reads the keys only.
pub const CONNECTION_SIZE: usize = 104;
/// Bytes of an entry of [`LISTENERS_MAP`], of which the user side reads the keys only.
pub const LISTENER_SIZE: usize = 64;

/// This end opened the connection.
pub const CONNECTION_CLIENT: u32 = 1 << 0;
/// The other end did.
pub const CONNECTION_SERVER: u32 = 1 << 1;
/// Its beginning was not seen: it is older than tracing, or the table was full.
pub const CONNECTION_UNSEEN: u32 = 1 << 2;
/// This end was the first to say that it sends no more.
pub const CONNECTION_LOCAL_FIRST: u32 = 1 << 3;
/// The other end was.
pub const CONNECTION_PEER_FIRST: u32 = 1 << 4;
/// The other end sent a reset after this one had begun to close.
pub const CONNECTION_RESET: u32 = 1 << 5;
/// Nothing was kept of the SYN (SYN cookies), so that its time is unknown.
pub const CONNECTION_COOKIE: u32 = 1 << 6;
/// TCP Fast Open: the socket was there with the SYN.
pub const CONNECTION_FAST_OPEN: u32 = 1 << 7;
/// It goes on: the record says how it is.
pub const CONNECTION_OPEN: u32 = 1 << 8;
/// There is no connection: the handshake was complete, and the accept queue was full.
pub const CONNECTION_OVERFLOW: u32 = 1 << 9;

/// It is part of a connection of MPTCP.
pub const CONNECTION_MPTCP: u32 = 1 << 10;

/// A TCP connection: when it ends, and while it is open whenever the user side asks. Unknown times, ids and names are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ConnectionRecord {
    /// When this was written, in ns of `CLOCK_MONOTONIC`, as are all times here.
    pub at_ns: u64,
    /// Client: when its SYN left; when it asked (`TCP_SYN_SENT`) if it was sent again, or never answered. Server: when the SYN was answered (`snt_synack`, in whole us), or came (Fast Open).
    pub started_ns: u64,
    /// When the handshake was complete (`TCP_ESTABLISHED`).
    pub established_ns: u64,
    /// When `accept` took it.
    pub accepted_ns: u64,
    /// When the segment with the first byte came.
    pub first_in_ns: u64,
    /// When the call began that wrote the first byte.
    pub first_out_ns: u64,
    /// Payload bytes received in order.
    pub bytes_in: u64,
    /// Payload bytes sent, each once.
    pub bytes_out: u64,
    /// This end's address, in the form of [`crate::PacketRecord::saddr`].
    pub local: [u8; 16],
    /// The other end's.
    pub remote: [u8; 16],
    /// The thread that connected or accepted, as in [`crate::PacketRecord`].
    pub comm: [u8; COMM_LEN],
    /// Its process.
    pub process: [u8; COMM_LEN],
    /// Process id in the initial PID namespace.
    pub pid: u32,
    /// Thread id likewise.
    pub tid: u32,
    /// Inode number of the network namespace.
    pub netns: u32,
    /// `sk_mark`.
    pub mark: u32,
    /// Segments received (`tcp_sock.segs_in`).
    pub segs_in: u32,
    /// Segments sent (`tcp_sock.segs_out`).
    pub segs_out: u32,
    /// Segments sent again since the handshake.
    pub retrans: u32,
    /// SYNs (client) or answers to one (server) sent again.
    pub syn_retrans: u32,
    /// The smoothed round-trip time in eighths of a us (`tcp_sock.srtt_us`).
    pub srtt: u32,
    /// The least of the last minutes in us (`tcp_sock.rtt_min`).
    pub min_rtt_us: u32,
    /// `CONNECTION_` bits.
    pub flags: u32,
    /// `sk_err`, an errno.
    pub error: u32,
    /// This end's port in host order.
    pub local_port: u16,
    /// The other end's.
    pub remote_port: u16,
    /// [`crate::AF_INET`] or [`crate::AF_INET6`].
    pub family: u8,
    /// The state before the last one, or the present one if it is open: a number of `enum tcp_state`.
    pub state: u8,
    /// 0.
    pub reserved: u16,
}

const _: () = assert!(size_of::<ConnectionRecord>() == 184, "records have no padding");

/// A listening socket: when it is closed, and whenever the user side asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ListenerRecord {
    /// When this was written, in ns of `CLOCK_MONOTONIC`.
    pub at_ns: u64,
    /// The key of [`LISTENERS_MAP`], by which the records of one socket are known, until it is closed.
    pub socket: u64,
    /// Connections that `accept` took.
    pub accepted: u64,
    /// SYNs and last ACKs of handshakes that were thrown away since the accept queue was full.
    pub overflows: u64,
    /// Segments of handshakes that the socket dropped (`sk_drops`): these, last ACKs twice, and SYNs that came again.
    pub drops: u64,
    /// Its address, in the form of [`crate::PacketRecord::saddr`].
    pub address: [u8; 16],
    /// Name of the process that listens, or accepted last.
    pub process: [u8; COMM_LEN],
    /// Its id.
    pub pid: u32,
    /// Inode number of the network namespace.
    pub netns: u32,
    /// Connections in the accept queue.
    pub waiting: u32,
    /// The most that were there.
    pub most_waiting: u32,
    /// How many there may be.
    pub backlog: u32,
    /// The port in host order.
    pub port: u16,
    /// [`crate::AF_INET`] or [`crate::AF_INET6`].
    pub family: u8,
    /// 1 if it has been closed.
    pub is_closed: u8,
}

const _: () = assert!(size_of::<ListenerRecord>() == 96, "records have no padding");

/// What the programs of `net-latency connections` count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ConnectionCounter {
    /// Connections that found no room in the table.
    TableFull = 0,
    /// Listening sockets that found none in theirs.
    ListenersFull = 1,
    /// Records that found none in the ring buffer.
    RingFull = 2,
}

/// The counts, by [`ConnectionCounter`].
pub type ConnectionCounters = [u64; 3];
