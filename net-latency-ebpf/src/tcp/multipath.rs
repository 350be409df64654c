//! MPTCP: applications read and write a socket of its own, and bytes come and go by TCP's sockets, the subflows (docs/decisions/32).
//!
//! Both have a [`Connection`]. That of a subflow is plain TCP's, but for the writer. That of MPTCP's socket has the write calls, and how
//! far was read of the first subflow; it changes with that socket's lock alone.

use net_latency_common::Counter;

use super::{
    connection::{self, Connection},
    receive,
    steps::{DONE, MORE},
    transmit,
};
#[cfg(feature = "fine")]
use crate::readers;
use crate::{
    bpf::{HashMap, LruHashMap, entry::Field, map, now},
    emit::counters::{self, HookResult},
    flow::filter,
    kernel::{
        arch,
        memory::{Memory, Number, number},
        multipath,
        sequence::before,
        skb::Skb,
        socket::Socket,
        task::Task,
    },
    skips::entries,
};

/// A write call of a thread, of which some bytes are not claimed yet.
#[repr(C)]
struct Call {
    /// Address of the socket.
    socket: u64,
    /// When it began, ns.
    at: u64,
    /// The number of the next written byte then.
    from: u32,
    /// How many bytes it may still write.
    left: Field<u32>,
}

/// The bytes received for a socket of MPTCP. Work on a subflow writes it under that one's lock, and readers only look.
#[repr(C)]
struct Path {
    /// Address of the subflow.
    subflow: Field<u64>,
    /// How far MPTCP's numbers are from the subflow's.
    distance: u32,
    /// The number of the first byte that came since tracing began, by the subflow.
    first: u32,
    /// Up to this number of the subflow, skbs had bytes in common, so that it is unknown which of them were read.
    unsure_until: Field<u32>,
    /// Whether it is not followed any more.
    is_over: Field<u32>,
}

/// Write calls, by process and thread. Evicts: that call's bytes have no writer and no time.
#[map]
static WRITERS: LruHashMap<u64, Call> = LruHashMap::with_max_entries(entries(512), 0);

/// Sockets of MPTCP that receive, by address. When full: what others receive is counted as MPTCP's.
#[map]
static PATHS: HashMap<u64, Path> = HashMap::with_max_entries(entries(1024), 0);

#[inline(always)]
fn path_of(address: u64) -> Option<&'static Path> {
    // SAFETY: entries are preallocated and stay mapped while a program runs; it goes with its socket, which the hook's caller holds. What
    // changes are fields.
    PATHS.get_ptr(address).map(|path| unsafe { &*path })
}

impl Path {
    /// What a subflow receives next is the socket's, so far from its numbers.
    #[inline(always)]
    fn note<M: Memory>(&self, subflow: Socket<M>, distance: u32) {
        if self.subflow.get() != number(subflow.address()) || self.distance != distance {
            self.is_over.set(1);
        }
        if let Some(tcp) = subflow.known_tcp()
            && let Some(skb) = Skb::first_received(subflow)
            && before(skb.tcp_cb_seq(), tcp.copied_seq())
        {
            self.unsure_until.set(skb.tcp_cb_seq().wrapping_add(skb.len()));
        }
    }
}

/// A subflow has bytes for MPTCP's socket (`mptcp_data_ready`, with the subflow's lock), and the mapping of the first of them is known.
#[inline(always)]
pub fn ready<M: Memory>(socket: Socket<M>, subflow: Socket<M>) -> HookResult {
    let identity = subflow.identity();
    if identity.is_unconnected() || !filter::socket(subflow, &identity) {
        return Ok(());
    }
    if multipath::is_known() && is_followed(socket, subflow) {
        return Ok(());
    }
    receive::given(subflow, identity)
}

#[inline(always)]
fn is_followed<M: Memory>(socket: Socket<M>, subflow: Socket<M>) -> bool {
    let address = number(socket.address());
    let (_, distance) = subflow.multipath_mapping();
    if path_of(address).is_none() {
        let Some(tcp) = subflow.known_tcp() else { return false };
        let first = tcp.copied_seq();
        let path = Path {
            subflow: Field::new(number(subflow.address())),
            distance,
            first,
            unsure_until: Field::new(first),
            is_over: Field::new(0),
        };
        if PATHS.insert(address, &path, 0).is_err() {
            return false;
        }
    }
    let Some(path) = path_of(address) else { return false };
    path.note(subflow, distance);
    path.is_over.get() == 0 && socket.drops() == 0
}

/// MPTCP looks for the next bytes of a subflow (`mptcp_subflow_data_available`, with the subflow's lock): it has taken what its last mapping
/// says.
#[inline(always)]
pub fn moved<M: Memory>(subflow: Socket<M>) -> HookResult {
    if multipath::is_known() {
        let (socket, distance) = subflow.multipath_mapping();
        if let Some(path) = path_of(socket)
            && path.subflow.get() == number(subflow.address())
        {
            path.note(subflow, distance);
        }
    }
    Ok(())
}

/// A receive call has read what it could, or waits for more (`mptcp_cleanup_rbuf`, with the lock of MPTCP's socket).
#[inline(always)]
pub fn read<M: Memory>(socket: Socket<M>) -> HookResult {
    if !multipath::is_known() || note_read(socket) != MORE {
        return Ok(());
    }
    let address = number(socket.address());
    let Some(connection) = connection::at(address) else { return Ok(()) };
    let result = receive::walk_as_far(connection);
    connection.settle(address);
    result
}

/// How far the application has read, of a socket that is followed. Whether that is farther than before.
///
/// A function with a stack of its own, which is free again before there are lines.
#[inline(never)]
fn note_read<M: Memory>(socket: Socket<M>) -> u32 {
    let address = number(socket.address());
    let Some(path) = path_of(address) else { return DONE };
    let identity = socket.identity();
    if !filter::socket(socket, &identity) {
        return DONE;
    }
    let read = socket.multipath_read(|| arch::in_order(path.subflow.address()));
    let connection = match connection::find_or_new(socket, identity) {
        Ok(connection) => connection,
        Err(counter) => {
            counters::one(counter);
            return DONE;
        }
    };
    learn_start(connection, path);
    // Behind the number: bytes that are read by then, and end this, were noted before they could be read.
    if path.is_over.get() != 0 || socket.drops() != 0 {
        path.is_over.set(1);
        receive::forget_waiting(address, true);
    } else if let Some(read) = read {
        let until = read.wrapping_sub(path.distance);
        let task = if socket.owned_by_task() { filter::current_task() } else { Task::UNKNOWN };
        if receive::note_taken(connection, until, path.unsure_until.get(), task) {
            return MORE;
        }
    } else {
        // Bytes of this read are only found at the next call, whose bytes they are not.
        connection.reports_late.set(1);
    }
    connection.settle(address);
    DONE
}

#[inline(always)]
fn learn_start(connection: &Connection, path: &Path) {
    if connection.read_known.get() == 0 {
        connection.read_next.set(path.first);
        connection.taken_until.set(path.first);
        connection.read_known.set(1);
    }
}

/// MPTCP's socket ends (`mptcp_destroy`): bytes that were read get their lines, the rest is counted.
#[inline(always)]
pub fn destroyed<M: Memory>(socket: Socket<M>) -> HookResult {
    let address = number(socket.address());
    let mut result = Ok(());
    if let Some(path) = path_of(address) {
        if has_late(socket, path) == MORE
            && let Some(connection) = connection::at(address)
        {
            result = receive::walk_as_far(connection);
        }
        receive::forget_waiting(address, path.is_over.get() != 0);
        // It is there, as was seen.
        let _ = PATHS.remove(address);
    }
    connection::remove(socket);
    result
}

/// Whether bytes that were read still have to get lines. After this the first byte to read is known, even for a socket without a reader.
///
/// A function with a stack of its own, as [`note_read`].
#[inline(never)]
fn has_late<M: Memory>(socket: Socket<M>, path: &Path) -> u32 {
    let known =
        connection::find(socket).map_or_else(|| connection::find_or_new(socket, socket.identity()), Ok);
    let Ok(connection) = known else { return DONE };
    learn_start(connection, path);
    if connection.is_late.get() == 0 { DONE } else { MORE }
}

/// A thread calls to write N bytes (`mptcp_sendmsg`, without a lock).
#[inline(always)]
pub fn calls<M: Memory>(socket: Socket<M>, size: Number) -> HookResult {
    if !multipath::is_known() {
        return Ok(());
    }
    let call = Call {
        socket: number(socket.address()),
        at: now(),
        from: socket.multipath_write_seq(),
        left: Field::new(size.at_most(transmit::MOST_WRITTEN)),
    };
    WRITERS.insert(Task::current_ids(), &call, 0).map_err(|_| Counter::StampLost)?;
    #[cfg(feature = "fine")]
    readers::sends()?;
    Ok(())
}

/// MPTCP's socket hands on written bytes (`__mptcp_push_pending`, with its lock): new ones are the current thread's, since a writer comes
/// here before it releases the lock.
#[inline(always)]
pub fn pushes<M: Memory>(socket: Socket<M>) -> HookResult {
    let identity = socket.identity();
    if !multipath::is_known() || identity.is_unconnected() || !filter::socket(socket, &identity) {
        return Ok(());
    }
    let connection = connection::find_or_new(socket, identity)?;
    let result = pushed(socket, connection);
    connection.settle(number(socket.address()));
    result
}

#[inline(always)]
fn pushed<M: Memory>(socket: Socket<M>, connection: &Connection) -> HookResult {
    let end = socket.multipath_write_seq();
    // SAFETY: entries are preallocated and stay mapped while a program runs, and this one is the current thread's; what changes is a field.
    let call = WRITERS.get_ptr(Task::current_ids()).map(|call| unsafe { &*call });
    let call = call.filter(|call| call.socket == number(socket.address()));
    let start = match call {
        _ if connection.written_known.get() != 0 => connection.written_until.get(),
        Some(call) => call.from,
        None => end,
    };
    connection.written_known.set(1);
    connection.written_until.set(end);
    let len = end.wrapping_sub(start);
    if len == 0 {
        return Ok(());
    }
    if !transmit::notes_writer(connection) {
        return Ok(());
    }
    let (at, task) = match call {
        Some(call) if len <= call.left.get() => {
            call.left.set(call.left.get().wrapping_sub(len));
            (call.at, filter::current_task())
        }
        // By a call whose program was skipped, or one that began before tracing did.
        _ => (0, Task::UNKNOWN),
    };
    let next = socket.multipath_snd_nxt();
    transmit::append(socket, connection, start, end, (at, task), next == start, || {
        socket.multipath_snd_una() != start
    })
}

/// MPTCP's socket gives a subflow bytes of a fragment (`mptcp_sendmsg_frag`, with both locks).
#[inline(always)]
pub fn hands_on<M: Memory>(
    socket: Socket<M>,
    subflow: Socket<M>,
    fragment: Number,
    info: Number,
) -> HookResult {
    if !multipath::is_known() {
        return Ok(());
    }
    let identity = subflow.identity();
    if !filter::socket(subflow, &identity) {
        return Ok(());
    }
    // A new one may end a packet in flight at its address, which takes a deep stack.
    connection::find_or_new(subflow, identity)?;
    let byte = multipath::next_sent(fragment, info);
    transmit::go_on_to(number(socket.address()), byte);
    hand_on(socket, subflow, byte);
    Ok(())
}

/// A function with a stack of its own, beside those of what comes before.
#[inline(never)]
fn hand_on<M: Memory>(socket: Socket<M>, subflow: Socket<M>, byte: u32) {
    let (Some(whole), Some(connection)) = (connection::find(socket), connection::find(subflow)) else {
        return;
    };
    if whole.identity.get() != socket.identity() {
        return;
    }
    if let Err(counter) = handed_on(subflow, connection, whole, byte) {
        counters::one(counter);
    }
    connection.settle(number(subflow.address()));
    whole.settle(number(socket.address()));
}

#[inline(always)]
fn handed_on<M: Memory>(
    subflow: Socket<M>,
    connection: &Connection,
    whole: &Connection,
    byte: u32,
) -> HookResult {
    if filter::is_by_process() {
        if whole.is_traced.get() == 0 {
            connection.several_writers.set(1);
            return Ok(());
        }
        connection.mark_traced();
    }
    let Some(tcp) = subflow.known_tcp() else { return Ok(()) };
    let start = tcp.write_seq();
    let (at, task, len) = transmit::written_at(whole, byte);
    if whole.write_evicted.get() != 0 {
        connection.write_evicted.set(1);
    }
    connection.user.set(task);
    transmit::append_to_tcp((subflow, tcp), connection, start, start.wrapping_add(len), (at, task))
}
