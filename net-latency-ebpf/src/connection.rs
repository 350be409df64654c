//! What is kept per TCP socket. Every hook that touches a connection runs under the socket's lock
//! (by a task, or in softirq while no task owns it), so that an entry needs no locking of its own; this
//! also holds where softirqs are preemptible (PREEMPT_RT), and where a per-CPU slot would not.

use crate::{
    maps::CONNECTIONS,
    memory::Memory,
    socket::{Ends, Identity, Socket},
    task::Task,
};
use net_latency_common::Counter;

/// A write call of a socket: `seq` is that of the first byte it wrote.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct WriteKey {
    /// Address of the socket.
    pub socket: u64,
    /// Sequence number of the first byte.
    pub seq: u32,
    /// Always 0.
    pub reserved: u32,
}

/// A write call.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Write {
    /// When the application called, ns.
    pub at: u64,
    /// Who called.
    pub task: Task,
    /// Where the following write call starts, if `has_next`.
    pub next: u32,
    /// Whether there was a following call.
    pub has_next: u32,
}

/// A segment that was sent again, by socket and the number of its first byte.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Resent {
    /// When it was first sent, ns.
    pub first: u64,
    /// When it was sent last: no other segment of this socket was sent then.
    pub last: u64,
}

/// Whether a packet is on its way from TCP to the device.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Progress {
    /// Nothing is on its way.
    Idle = 0,
    /// `__tcp_transmit_skb` was entered.
    Transmit = 1,
}

/// Whose bytes a sent packet holds.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Author {
    /// Not known.
    Unknown = 0,
    /// The task of `Connection::write`.
    Writer = 1,
    /// The last task that used the socket: kernel-made segments.
    User = 2,
}

/// The packet on its way from TCP to the device. There is one at most: the way is synchronous and the
/// socket locked.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Transmit {
    pub(crate) app: u64,
    /// When `__tcp_transmit_skb` was entered.
    pub(crate) began: u64,
    /// Of a retransmission: when these bytes were first sent, 0 where unknown.
    pub(crate) first: u64,
    pub(crate) seq: u32,
    /// What its header says: a SYN takes the number before that of its payload.
    pub(crate) header_seq: u32,
    pub(crate) len: u32,
    pub(crate) segs: u16,
    pub(crate) flags: u16,
    pub(crate) progress: Progress,
    pub(crate) author: Author,
}

/// One TCP socket.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Connection {
    /// Address of the socket, which is a mere number here: a global function takes no pointers.
    pub(crate) address: u64,
    pub(crate) identity: Identity,
    pub(crate) ends: Ends,
    /// Inode number of the network namespace.
    pub(crate) netns: u32,
    /// The last task that read or wrote.
    pub(crate) user: Task,
    /// The write call that holds the next bytes to be sent for the first time, if `has_write`.
    pub(crate) write: Write,
    /// Where it starts.
    pub(crate) write_start: u32,
    /// Where the newest write call starts.
    pub(crate) last_write: u32,
    pub(crate) has_write: u32,
    /// Whether a call was evicted whose bytes are not all sent.
    pub(crate) write_evicted: u32,
    /// Whether more than one process wrote to this socket.
    pub(crate) several_writers: u32,
    pub(crate) transmit: Transmit,
    /// Sequence number at which the next segment starts that has no line yet, if `read_known`.
    pub(crate) read_next: u32,
    pub(crate) read_known: u32,
    /// Everything before this number the application took at `taken_at` or, before `late_until`, at
    /// `late_at`: then one run of a program was not enough for all lines of that call.
    pub(crate) taken_until: u32,
    pub(crate) late_until: u32,
    pub(crate) taken_at: u64,
    pub(crate) late_at: u64,
    pub(crate) is_late: u32,
    /// The bytes of the buffer from which the application took last, by their sequence numbers.
    pub(crate) buffer_start: u32,
    pub(crate) buffer_end: u32,
    /// Whether a process that was asked for has used it.
    pub(crate) is_wanted: u32,
    /// Whether what it receives is left alone ([`crate::foreign`]).
    pub(crate) is_left_alone: u32,
}

/// A connection about which nothing is known. A global, because a program's stack has no room for it
/// beside all else.
#[unsafe(no_mangle)]
static BLANK: Connection = Connection {
    address: 0,
    identity: Identity::NONE,
    ends: Ends { family: 0, reserved: 0, addresses: [0; 4] },
    netns: 0,
    user: Task::UNKNOWN,
    write: Write { at: 0, task: Task::UNKNOWN, next: 0, has_next: 0 },
    write_start: 0,
    last_write: 0,
    has_write: 0,
    write_evicted: 0,
    several_writers: 0,
    transmit: Transmit {
        app: 0,
        began: 0,
        first: 0,
        seq: 0,
        header_seq: 0,
        len: 0,
        segs: 0,
        flags: 0,
        progress: Progress::Idle,
        author: Author::Unknown,
    },
    read_next: 0,
    read_known: 0,
    taken_until: 0,
    late_until: 0,
    taken_at: 0,
    late_at: 0,
    is_late: 0,
    buffer_start: 0,
    buffer_end: 0,
    is_wanted: 0,
    is_left_alone: 0,
};

impl Connection {
    /// The socket got its other end within the write call; that call's first byte has the number `seq`.
    #[inline(always)]
    pub(crate) fn connected<M: Memory>(&mut self, socket: Socket<M>, identity: Identity, seq: u32) {
        self.identity = identity;
        self.ends = socket.ends();
        self.write_start = seq;
        self.last_write = seq;
    }
}

/// The connection at the address of `socket`, whichever life of that address it belongs to.
#[inline(always)]
pub(crate) fn find<M: Memory>(socket: Socket<M>) -> Option<&'static mut Connection> {
    at(socket.address())
}

/// The connection of the socket at `address`.
#[inline(always)]
pub(crate) fn at(address: u64) -> Option<&'static mut Connection> {
    let connection = CONNECTIONS.get_ptr_mut(address)?;
    // SAFETY: entries are preallocated and never unmapped while a program runs; the socket's lock keeps
    // others away (see the module's head).
    Some(unsafe { &mut *connection })
}

/// The connection of the socket with this identity; an older life of its address is forgotten.
#[inline(always)]
pub(crate) fn find_or_new<M: Memory>(
    socket: Socket<M>,
    identity: Identity,
) -> Result<&'static mut Connection, Counter> {
    if let Some(connection) = find(socket)
        && connection.identity == identity
    {
        return Ok(connection);
    }
    CONNECTIONS.insert(socket.address(), &BLANK, 0).map_err(|_| Counter::SocketLost)?;
    let connection = find(socket).ok_or(Counter::SocketLost)?;
    connection.address = socket.address();
    connection.identity = identity;
    connection.ends = socket.ends();
    connection.netns = socket.netns();
    Ok(connection)
}

/// Forgets a socket that the kernel destroys.
#[inline(always)]
pub(crate) fn remove<M: Memory>(socket: Socket<M>) {
    // An entry that is not there, evicted meanwhile, is as good as removed.
    let _ = CONNECTIONS.remove(socket.address());
}
