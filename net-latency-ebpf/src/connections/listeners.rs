//! Sockets that listen, and where a server's connection comes from.
//!
//! A handshake's last ACK makes the connection's socket within one call (`tcp_check_req`, or `tcp_get_cookie_sock`), on one CPU: what
//! the request knew (when its SYN was answered, which socket listens) stays in `ARRIVING` from `tcp_v4_syn_recv_sock`, at its beginning,
//! to `TCP_ESTABLISHED` at its end. The pair of ports shows that both are the same connection's. With TCP Fast Open the first of it
//! happens with the SYN, and the state changes with a later ACK; then it is kept by the socket's address.

use net_latency_common::{
    AF_INET, CONNECTION_COOKIE, CONNECTION_FAST_OPEN, CONNECTION_OVERFLOW, CONNECTION_SERVER,
    ConnectionCounter, ConnectionRecord, Direction, LISTENER_SIZE, ListenerRecord, MAX_LISTENERS,
};

use super::{CONNECTION_RECORDS, Connection, Outcome, count, is_wanted, keep, wakeup};
use crate::{
    bpf::{
        ANY, HashMap, LruHashMap, NO_EXIST, PerCpuArray,
        entry::{self, Field},
        map, now,
    },
    flow::{addresses::AddrPair, filter},
    kernel::{
        connection::Request,
        memory::{Memory, Probed},
        skb::Skb,
        socket::Socket,
        task::Task,
    },
};

/// Sockets that listen, by address, from `listen` or their first SYN to `close`. When full, counted: the queue is unknown.
#[map]
static LISTENERS: HashMap<u64, Listener> = HashMap::with_max_entries(MAX_LISTENERS, 0);

/// Requests whose last ACK was thrown away, by address: each is told once. Evicts: an overflow is told again.
#[map]
static OVERFLOWED: LruHashMap<u64, u64> = LruHashMap::with_max_entries(1024, 0);

/// What each CPU knows of the connection that comes to be.
#[map]
static ARRIVING: PerCpuArray<Arriving> = PerCpuArray::with_max_entries(1, 0);

#[repr(C)]
struct Arriving {
    /// The socket that listens, by address.
    listener: Field<u64>,
    started: Field<u64>,
    /// The socket whose handshake's last ACK has bytes with it.
    with_bytes: Field<u64>,
    /// `skc_portpair` of the request; 0 where there is none.
    ports: Field<u32>,
    flags: Field<u32>,
}

#[repr(C)]
struct Listener {
    /// The task that listens, or accepted last.
    task: Field<Task>,
    accepted: Field<u64>,
    overflows: Field<u64>,
    /// `sk_drops` when this began.
    dropped_before: Field<u32>,
    most_waiting: Field<u32>,
}

const _: () = assert!(size_of::<Listener>() == LISTENER_SIZE, "the user side reads entries of that size");

impl Listener {
    #[inline(always)]
    fn note_waiting(&self, waiting: u32) {
        if waiting > self.most_waiting.get() {
            self.most_waiting.set(waiting);
        }
    }
}

#[inline(always)]
fn arriving() -> Option<&'static Arriving> {
    let entry = ARRIVING.get_ptr(0)?;
    // SAFETY: index 0 of a per-CPU array is valid; what changes is a field.
    Some(unsafe { &*entry })
}

#[inline(always)]
fn find(listener: u64) -> Option<&'static Listener> {
    let entry = LISTENERS.get_ptr(&listener)?;
    // SAFETY: entries are preallocated and never unmapped while a program runs; what changes is a field.
    Some(unsafe { &*entry })
}

/// The listening socket's entry, which begins with this if there is none; counted if there is no room for it.
#[inline(always)]
fn find_or_begin<M: Memory>(socket: Socket<M>) -> Option<&'static Listener> {
    if let Some(listener) = find(socket.address()) {
        return Some(listener);
    }
    let begun = begin(socket, Task::UNKNOWN, NO_EXIST);
    // If another CPU was first, there is one as well.
    let listener = find(socket.address());
    if listener.is_none()
        && let Err(counter) = begun
    {
        count(counter);
    }
    listener
}

#[inline(always)]
fn begin<M: Memory>(socket: Socket<M>, task: Task, how: u64) -> Outcome {
    let listener = Listener {
        task: Field::new(task),
        accepted: Field::new(0),
        overflows: Field::new(0),
        dropped_before: Field::new(socket.drops()),
        most_waiting: Field::new(0),
    };
    LISTENERS.insert(&socket.address(), &listener, how).map_err(|_| ConnectionCounter::ListenersFull)
}

/// `listen` was called.
#[inline(always)]
pub(super) fn began<M: Memory>(socket: Socket<M>) -> Outcome {
    begin(socket, Task::current(), ANY)
}

/// A listening socket is closed.
#[inline(always)]
pub(super) fn ended<M: Memory>(socket: Socket<M>) -> Outcome {
    let Some(listener) = find(socket.address()) else { return Ok(()) };
    let written = emit(socket, listener, true);
    let _ = LISTENERS.remove(&socket.address());
    written
}

/// `tcp_conn_request(rsk_ops, af_ops, sk, skb)`: a SYN came to a listening socket. It is thrown away if the accept queue is full.
#[inline(always)]
pub fn requested<M: Memory>(socket: Socket<M>) -> Outcome {
    overflows(socket, find_or_begin(socket));
    Ok(())
}

/// Whether the accept queue is full (`sk_acceptq_is_full` in include/net/sock.h), which is counted where the socket has an entry.
#[inline(always)]
fn overflows<M: Memory>(socket: Socket<M>, listener: Option<&Listener>) -> bool {
    let waiting = socket.waiting();
    let is_full = waiting > socket.most_waiting();
    if let Some(listener) = listener {
        listener.note_waiting(waiting);
        if is_full {
            entry::increment(listener.overflows.address());
        }
    }
    is_full
}

/// `tcp_v4_syn_recv_sock(sk, skb, req, …)`: a socket is to be made for a request. Not if the accept queue is full.
#[inline(always)]
pub fn completed<M: Memory>(socket: Socket<M>, skb: Skb<M>, request: Request<M>) -> Outcome {
    // Without an entry its queue is not known; its connections are.
    let listener = find_or_begin(socket);
    let answered = request.answered_ns();
    let fast = skb.tcp_cb_has_syn();
    let flags = match answered {
        _ if fast => CONNECTION_SERVER | CONNECTION_FAST_OPEN,
        0 => CONNECTION_SERVER | CONNECTION_COOKIE,
        _ => CONNECTION_SERVER,
    };
    let started = if fast { now() } else { answered };
    if overflows(socket, listener) {
        return overflowed(request.socket(), started, flags);
    }
    if let Some(arriving) = arriving() {
        arriving.listener.set(socket.address());
        arriving.started.set(started);
        arriving.with_bytes.set(0);
        arriving.flags.set(flags);
        arriving.ports.set(request.socket().ports());
    }
    Ok(())
}

/// `tcp_v6_syn_recv_sock(sk, skb, req, …)`, which leaves IPv4 to the other.
#[inline(always)]
pub fn completed_v6<M: Memory>(socket: Socket<M>, skb: Skb<M>, request: Request<M>) -> Outcome {
    if skb.family() == AF_INET { Ok(()) } else { completed(socket, skb, request) }
}

/// A listening socket was copied for a connection: with Fast Open that is all until a later ACK comes.
#[inline(always)]
pub(super) fn copied<M: Memory>(socket: Socket<M>) -> Outcome {
    let Some(arriving) = arriving() else { return Ok(()) };
    if arriving.ports.get() == 0 || arriving.flags.get() & CONNECTION_FAST_OPEN == 0 {
        return Ok(());
    }
    let connection = Connection::new(CONNECTION_SERVER, Task::UNKNOWN);
    take(arriving, &connection);
    keep(socket, &connection)
}

#[inline(always)]
fn take(arriving: &Arriving, connection: &Connection) {
    connection.flags.set(arriving.flags.get());
    connection.started.set(arriving.started.get());
    connection.listener.set(arriving.listener.get());
    connection.ports.set(arriving.ports.get());
    arriving.ports.set(0);
}

/// A server's connection is established at that time: what its request knew.
#[inline(always)]
pub(super) fn arrived<M: Memory>(socket: Socket<M>, connection: &Connection, at: u64) {
    let Some(arriving) = arriving() else { return };
    if arriving.with_bytes.get() == socket.address() {
        connection.first_in.set(at);
    }
    let ports = socket.ports();
    connection.ports.set(ports);
    if arriving.ports.get() != ports {
        return;
    }
    take(arriving, connection);
    // The queue has it by now.
    if let Some(listener) = find(connection.listener.get()) {
        let waiting = Socket::<Probed>::new(connection.listener.get() as *const u8).waiting();
        listener.note_waiting(waiting);
    }
}

/// The handshake's last ACK has bytes with it, or they come with Fast Open.
#[inline(always)]
pub(super) fn came_with_bytes<M: Memory>(socket: Socket<M>) {
    if let Some(arriving) = arriving() {
        arriving.with_bytes.set(socket.address());
    }
}

/// `accept` has given a connection of this listening socket to a task.
#[inline(always)]
pub(super) fn gave(listener: u64, task: &Task) {
    if let Some(listener) = find(listener) {
        entry::increment(listener.accepted.address());
        listener.task.set(*task);
    }
}

/// The user side asks; whether it is one.
#[inline(always)]
pub(super) fn asked_for<M: Memory>(socket: Socket<M>) -> Result<bool, ConnectionCounter> {
    let Some(listener) = find(socket.address()) else { return Ok(false) };
    emit(socket, listener, false)?;
    Ok(true)
}

#[inline(always)]
fn emit<M: Memory>(socket: Socket<M>, listener: &Listener, is_closed: bool) -> Outcome {
    let task = listener.task.get();
    let Some(tcp) = socket.known_tcp() else { return Ok(()) };
    // At its end it has given its port back; this is the one that it had.
    let port = tcp.source_port();
    let pair = AddrPair::of_socket(socket);
    if !filter::ports(port, port) || !filter::netns_of(socket) {
        return Ok(());
    }
    let mut entry = CONNECTION_RECORDS.reserve::<ListenerRecord>(0).ok_or(ConnectionCounter::RingFull)?;
    entry.write(ListenerRecord {
        at_ns: now(),
        socket: socket.address(),
        accepted: listener.accepted.get(),
        overflows: listener.overflows.get(),
        drops: u64::from(socket.drops().wrapping_sub(listener.dropped_before.get())),
        address: pair.of_record(Direction::Out).0,
        process: task.process(),
        pid: task.pid(),
        netns: socket.netns(),
        waiting: if is_closed { 0 } else { socket.waiting() },
        most_waiting: listener.most_waiting.get(),
        backlog: socket.most_waiting(),
        port,
        family: socket.family() as u8,
        is_closed: u8::from(is_closed),
    });
    entry.submit(wakeup());
    Ok(())
}

/// The record of a connection that found the accept queue full, once for each request.
#[inline(always)]
fn overflowed<M: Memory>(request: Socket<M>, started: u64, flags: u32) -> Outcome {
    if !filter::unknown() || !is_wanted(request, request.local_port()) {
        return Ok(());
    }
    // Tells one request from another that had the address before.
    let content = u64::from(request.ports()) << 32 | started & u64::from(u32::MAX);
    // SAFETY: entries are preallocated and never unmapped while a program runs.
    if OVERFLOWED.get_ptr(&request.address()).is_some_and(|told| unsafe { *told } == content) {
        return Ok(());
    }
    // Where that fails it may be told again.
    let _ = OVERFLOWED.insert(&request.address(), &content, 0);
    let pair = AddrPair::of_socket(request);
    let (local, remote) = pair.of_record(Direction::Out);
    let mut entry = CONNECTION_RECORDS.reserve::<ConnectionRecord>(0).ok_or(ConnectionCounter::RingFull)?;
    entry.write(ConnectionRecord {
        at_ns: now(),
        started_ns: started,
        local,
        remote,
        netns: request.netns(),
        flags: flags | CONNECTION_OVERFLOW,
        local_port: request.local_port(),
        remote_port: request.identity().remote_port(),
        family: pair.family as u8,
        ..ConnectionRecord::default()
    });
    entry.submit(wakeup());
    Ok(())
}
