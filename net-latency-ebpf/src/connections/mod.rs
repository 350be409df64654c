//! TCP connections from the first SYN to the end, and the sockets that listen for them.
//!
//! The kernel's own state machine tells when: the tracepoint `inet_sock_set_state` shows each change of a socket's state. What it can't
//! tell has a hook of its own: when a server's SYN came ([`listeners`]), when `accept` took a connection, and when its first byte came and
//! was written. All that the kernel counts itself (bytes, segments, round-trip times) is read once, at the end.
//!
//! A connection is known by its socket's address, from `TCP_SYN_SENT` (client) or `TCP_ESTABLISHED` (server) to `TCP_CLOSE`, which the
//! kernel passes before it frees a socket that was in either state: the entry goes then. With the server's entry goes the pair of
//! ports that its SYN had.
//!
//! Considered: the packets' records (a connection without packets, refused or unanswered, would be missing, and each packet would cost
//! a look-up); `inet_csk_accept`'s return (a kretprobe or a trampoline with the return value, which 5.10 has not for all, where the
//! socket's graft is a call of a function, in the same task a moment later).

pub mod dropped;
pub mod listeners;
#[cfg(test)]
mod tests;

use net_latency_common::{
    CONNECTION_CLIENT, CONNECTION_LOCAL_FIRST, CONNECTION_MPTCP, CONNECTION_OPEN, CONNECTION_PEER_FIRST,
    CONNECTION_RESET, CONNECTION_SERVER, CONNECTION_SIZE, CONNECTION_UNSEEN, ConnectionCounter,
    ConnectionCounters, ConnectionRecord, Direction, IPPROTO_TCP, MAX_CONNECTIONS,
};

use crate::{
    bpf::{
        AVAIL_DATA, FORCE_WAKEUP, HashMap, NO_EXIST, NO_WAKEUP, PerCpuArray, RingBuf,
        entry::{self, Field},
        map, now,
    },
    flow::{addresses::AddrPair, filter, settings::setting},
    kernel::{
        arch,
        memory::{Memory, Number},
        sequence::before,
        skb::Skb,
        socket::{Socket, TcpSocket},
        task::Task,
    },
};

/// How a program ended: nothing to say, or what to count.
pub type Outcome = Result<(), ConnectionCounter>;

/// States of `enum tcp_state` (include/net/tcp_states.h).
mod state {
    pub(super) const ESTABLISHED: u8 = 1;
    pub(super) const SYN_SENT: u8 = 2;
    pub(super) const SYN_RECV: u8 = 3;
    pub(super) const FIN_WAIT1: u8 = 4;
    pub(super) const FIN_WAIT2: u8 = 5;
    pub(super) const CLOSE: u8 = 7;
    pub(super) const CLOSE_WAIT: u8 = 8;
    pub(super) const LAST_ACK: u8 = 9;
    pub(super) const LISTEN: u8 = 10;
}

/// Values of `sk_protocol`.
const TCP: u16 = IPPROTO_TCP as u16;
const MPTCP: u16 = 262;

/// Connections and listening sockets as the user side gets them. When full, counted per record.
#[map]
static CONNECTION_RECORDS: RingBuf = RingBuf::with_byte_size(4 << 20, 0);

/// Connections that have not ended. None is evicted, or else a peer or program that opens many would make others' times unknown. What finds
/// no room is counted, and the line of such a connection says `start-unseen`.
#[map]
static OPEN_CONNECTIONS: HashMap<u64, Connection> = HashMap::with_max_entries(MAX_CONNECTIONS, 0);

/// The change of state that one program has noted, and the other is to leave alone.
#[map]
static NOTED: PerCpuArray<Noted> = PerCpuArray::with_max_entries(1, 0);

/// What became of connections, and what found no room.
#[map]
static CONNECTION_COUNTERS: PerCpuArray<ConnectionCounters> = PerCpuArray::with_max_entries(1, 0);

/// What the kernel does not keep itself. Unknown times are 0.
#[repr(C)]
struct Connection {
    task: Field<Task>,
    started: Field<u64>,
    established: Field<u64>,
    accepted: Field<u64>,
    first_in: Field<u64>,
    first_out: Field<u64>,
    /// The socket that listened for it, by address.
    listener: Field<u64>,
    syn_retrans: Field<u32>,
    flags: Field<u32>,
    /// `skc_portpair` of a server's connection, which tells whether this is still its socket; 0 where there is nothing to compare.
    ports: Field<u32>,
    reserved: u32,
}

/// A socket by its address, 0 for none, and its new state.
#[repr(C)]
struct Noted {
    socket: Field<u64>,
    state: Field<u64>,
}

const _: () = assert!(size_of::<Connection>() == CONNECTION_SIZE, "the user side reads entries of that size");

impl Connection {
    #[inline(always)]
    fn new(flags: u32, task: Task) -> Self {
        Self {
            task: Field::new(task),
            started: Field::new(0),
            established: Field::new(0),
            accepted: Field::new(0),
            first_in: Field::new(0),
            first_out: Field::new(0),
            listener: Field::new(0),
            syn_retrans: Field::new(0),
            flags: Field::new(flags),
            ports: Field::new(0),
            reserved: 0,
        }
    }

    #[inline(always)]
    fn add(&self, flag: u32) {
        self.flags.set(self.flags.get() | flag);
    }

    #[inline(always)]
    fn has(&self, flag: u32) -> bool {
        self.flags.get() & flag != 0
    }
}

/// Adds one to this CPU's count.
#[inline(always)]
pub fn count(counter: ConnectionCounter) {
    if let Some(counters) = CONNECTION_COUNTERS.get_ptr_mut(0) {
        // SAFETY: index 0 of a per-CPU array is valid.
        entry::increment(unsafe { &raw mut (*counters)[counter as usize] });
    }
}

/// The connection of a socket.
#[inline(always)]
fn find<M: Memory>(socket: Socket<M>) -> Option<&'static Connection> {
    let entry = OPEN_CONNECTIONS.get_ptr(&socket.address())?;
    // SAFETY: entries are preallocated and never unmapped while a program runs; what changes is a field.
    Some(unsafe { &*entry })
}

/// A connection begins. One that finds no room is counted here, once.
#[inline(always)]
fn keep<M: Memory>(socket: Socket<M>, connection: &Connection) -> Outcome {
    OPEN_CONNECTIONS.insert(&socket.address(), connection, 0).map_err(|_| ConnectionCounter::TableFull)
}

/// Keeps a connection whose beginning was not seen: it is older than tracing, or was counted when it found no room.
#[inline(always)]
fn keep_unseen<M: Memory>(socket: Socket<M>, connection: &Connection) {
    // Without room its line lacks this too, and says that the beginning was not seen.
    let _ = OPEN_CONNECTIONS.insert(&socket.address(), connection, 0);
}

/// `inet_sock_set_state(sk, oldstate, newstate)`: a socket changes its state.
///
/// The kernel skips a program that runs on this CPU already (`prog->active` in `__bpf_trace_run`), as when a packet's softirq interrupts
/// what a task does to its socket. So two programs see each change that no task makes, and the first of them notes it. Who changes a
/// state has the socket's spin lock or holds the socket, so that both see the same, and no softirq interrupts another one. On PREEMPT_RT
/// none interrupts a program, and one may run between the two.
///
/// Considered: to look at the entry instead (a look-up more for each change, and at the end there is none).
#[inline(always)]
pub fn changed<M: Memory>(socket: Socket<M>, old: Number, new: Number) -> Outcome {
    let is_others = if socket.owned_by_task() {
        setting!(tasks_apart) != 0
    } else {
        setting!(realtime) == 0 && is_noted(socket, new)
    };
    if is_others { Ok(()) } else { change(socket, old, new) }
}

/// The same for the second program.
#[inline(always)]
pub fn changed_by_softirq<M: Memory>(socket: Socket<M>, old: Number, new: Number) -> Outcome {
    let is_others = setting!(realtime) != 0 || socket.owned_by_task() || is_noted(socket, new);
    if is_others { Ok(()) } else { change(socket, old, new) }
}

/// Whether one program has noted this change, or else this one does now.
#[inline(always)]
fn is_noted<M: Memory>(socket: Socket<M>, new: Number) -> bool {
    let Some(noted) = NOTED.get_ptr(0) else { return true };
    // SAFETY: index 0 of a per-CPU array is valid; what changes is a field.
    let noted = unsafe { &*noted };
    let state = new.signed() as u64;
    let is_noted = noted.socket.get() == socket.address() && noted.state.get() == state;
    noted.socket.set(if is_noted { 0 } else { socket.address() });
    noted.state.set(state);
    is_noted
}

/// The same for a third one, where a task can be preempted in the first, which is skipped for others until that task goes on.
#[inline(always)]
pub fn changed_by_task<M: Memory>(socket: Socket<M>, old: Number, new: Number) -> Outcome {
    if socket.owned_by_task() { change(socket, old, new) } else { Ok(()) }
}

/// The same, before the socket has its new state.
#[inline(always)]
pub fn changes_by_task<M: Memory>(socket: Socket<M>, new: Number) -> Outcome {
    changed_by_task(socket, Number::new(usize::from(socket.state()) as *const u8), new)
}

#[inline(always)]
fn change<M: Memory>(socket: Socket<M>, old: Number, new: Number) -> Outcome {
    if socket.protocol() != TCP {
        return Ok(());
    }
    let (old, new) = (old.signed() as u8, new.signed() as u8);
    match new {
        state::SYN_SENT => asked(socket),
        state::ESTABLISHED => established(socket, old),
        // The state of the listening socket, whose copy this one is: it has no addresses yet.
        state::SYN_RECV if old == state::LISTEN => listeners::copied(socket),
        state::FIN_WAIT1 | state::CLOSE_WAIT | state::LAST_ACK => closing(socket, new),
        state::LISTEN => listeners::began(socket),
        state::CLOSE if old == state::LISTEN => listeners::ended(socket),
        state::CLOSE => ended(socket, old),
        _ => Ok(()),
    }
}

/// A client asks for a connection, in `connect` or in the first write call (Fast Open).
#[inline(always)]
fn asked<M: Memory>(socket: Socket<M>) -> Outcome {
    let Some(task) = filter::current_task_if_wanted() else { return Ok(()) };
    let connection = Connection::new(CONNECTION_CLIENT, task);
    connection.started.set(now());
    keep(socket, &connection)
}

#[inline(always)]
fn established<M: Memory>(socket: Socket<M>, old: u8) -> Outcome {
    let Some(tcp) = socket.known_tcp() else { return Ok(()) };
    let at = now();
    let syn_retrans = tcp.resent();
    let known = find(socket);
    if let Some(connection) = known
        && (connection.has(CONNECTION_CLIENT) || connection.ports.get() == socket.ports())
    {
        // The SYN left after the search for a port (`inet_hash_connect`), which is long where few are free. The first one's time is
        // gone when it is sent again.
        let sent = tcp.sent_last_ns();
        if old == state::SYN_SENT && syn_retrans == 0 && (connection.started.get()..at).contains(&sent) {
            connection.started.set(sent);
        }
        connection.established.set(at);
        connection.syn_retrans.set(syn_retrans);
        let is_told = setting!(tell_established) != 0 && old == state::SYN_SENT;
        return if is_told { emit(socket, connection, CONNECTION_OPEN) } else { Ok(()) };
    }
    // A client's that is not known is not wanted, or its task is unknown.
    if old != state::SYN_RECV {
        return Ok(());
    }
    if !is_wanted(socket, socket.local_port()) {
        return Ok(());
    }
    let connection = Connection::new(CONNECTION_SERVER, Task::UNKNOWN);
    listeners::arrived(socket, &connection, at);
    connection.established.set(at);
    connection.syn_retrans.set(syn_retrans);
    let is_early = |it: &&Connection| it.has(CONNECTION_UNSEEN) && it.accepted.get() != 0;
    let early = match known {
        Some(known) => Some(known).filter(is_early),
        None if OPEN_CONNECTIONS.insert(&socket.address(), &connection, NO_EXIST).is_ok() => return Ok(()),
        None => find(socket).filter(is_early),
    };
    if let Some(early) = early {
        let task = early.task.get();
        listeners::gave(connection.listener.get(), &task);
        if !filter::task(&task) {
            let _ = OPEN_CONNECTIONS.remove(&socket.address());
            return Ok(());
        }
        connection.task.set(task);
        connection.accepted.set(early.accepted.get());
    }
    keep(socket, &connection)
}

/// Either end has said that it sends no more.
#[inline(always)]
fn closing<M: Memory>(socket: Socket<M>, new: u8) -> Outcome {
    let first = match new {
        state::FIN_WAIT1 => CONNECTION_LOCAL_FIRST,
        state::CLOSE_WAIT => CONNECTION_PEER_FIRST,
        _ => 0,
    };
    let known = find(socket);
    if let Some(connection) = known {
        if !connection.has(CONNECTION_LOCAL_FIRST | CONNECTION_PEER_FIRST) {
            connection.add(first);
        }
        if !connection.has(CONNECTION_UNSEEN) || connection.task.get().ids != 0 {
            return Ok(());
        }
    }
    // `close` or `shutdown`, in a task that has the socket: one that the kernel closes later, in a thread of its own, has no task.
    let is_by_task = new != state::CLOSE_WAIT && !Task::current_is_of_kernel();
    let task = if is_by_task {
        let Some(task) = filter::current_task_if_wanted() else { return Ok(()) };
        task
    } else {
        Task::UNKNOWN
    };
    if let Some(connection) = known {
        connection.task.set(task);
        return Ok(());
    }
    if first == 0 && task.ids == 0 {
        return Ok(());
    }
    keep_unseen(socket, &Connection::new(CONNECTION_UNSEEN | first, task));
    Ok(())
}

#[inline(always)]
fn ended<M: Memory>(socket: Socket<M>, old: u8) -> Outcome {
    if old == state::CLOSE {
        return Ok(());
    }
    let Some(connection) = find(socket) else {
        return match old {
            // A client's is another task's then, and a server's socket that was not established never had a task.
            state::SYN_SENT | state::SYN_RECV => Ok(()),
            _ => emit(socket, &Connection::new(CONNECTION_UNSEEN, Task::UNKNOWN), u32::from(old)),
        };
    };
    let written = emit(socket, connection, u32::from(old));
    // A socket is closed once, so that nothing else has removed it.
    let _ = OPEN_CONNECTIONS.remove(&socket.address());
    written
}

/// `security_sock_graft(sk, parent)`: `accept` gives a socket to its caller.
#[inline(always)]
pub fn accepted<M: Memory>(socket: Socket<M>) -> Outcome {
    match socket.protocol() {
        TCP => accepted_tcp(socket),
        MPTCP => socket.first_subflow().map_or(Ok(()), accepted_tcp),
        _ => Ok(()),
    }
}

#[inline(always)]
fn accepted_tcp<M: Memory>(socket: Socket<M>) -> Outcome {
    let at = now();
    let task = filter::current_task();
    let is_wanted = filter::task(&task);
    let connection = match find(socket) {
        Some(connection) => connection,
        None => {
            let state = socket.state();
            // A subflow of MPTCP may be accepted, under the lock of MPTCP's socket, before it is established.
            let is_early = state == state::SYN_RECV;
            if !is_early && (!is_wanted || state == state::CLOSE) {
                return Ok(());
            }
            let connection = Connection::new(CONNECTION_SERVER | CONNECTION_UNSEEN, task);
            if is_early {
                connection.accepted.set(at);
            }
            let is_first = OPEN_CONNECTIONS.insert(&socket.address(), &connection, NO_EXIST).is_ok();
            // Without room its line lacks this too, and says that the beginning was not seen.
            let (false, Some(connection)) = (is_first, find(socket)) else { return Ok(()) };
            connection
        }
    };
    listeners::gave(connection.listener.get(), &task);
    if !is_wanted {
        let _ = OPEN_CONNECTIONS.remove(&socket.address());
        return Ok(());
    }
    if connection.accepted.get() == 0 {
        connection.task.set(task);
        connection.accepted.set(at);
    }
    Ok(())
}

/// `tcp_probe(sk, skb)`: a segment came, in state `TCP_ESTABLISHED`.
#[inline(always)]
pub fn received<M: Memory>(socket: Socket<M>, skb: Skb<M>) -> Outcome {
    let Some(tcp) = socket.known_tcp() else { return Ok(()) };
    if tcp.bytes_received() == 0
        && has_first_byte(tcp, skb)
        && let Some(connection) = find(socket)
    {
        // Until it is accepted, another segment may be the one that was.
        connection.first_in.set(now());
    }
    Ok(())
}

/// `tcp_rcv_state_process(sk, skb)`: the same in the other states.
#[inline(always)]
pub fn received_otherwise<M: Memory>(socket: Socket<M>, skb: Skb<M>) -> Outcome {
    let state = socket.state();
    if state == state::LISTEN || state == state::SYN_SENT {
        return Ok(());
    }
    if state == state::SYN_RECV {
        if skb.tcp_cb_sent().len > 0 {
            listeners::came_with_bytes(socket);
        }
        return Ok(());
    }
    if state == state::FIN_WAIT1 || state == state::FIN_WAIT2 {
        let has_reset = skb.tcp_cb_has_reset();
        if has_reset && let Some(connection) = find(socket) {
            connection.add(CONNECTION_RESET);
        }
    }
    received(socket, skb)
}

/// Whether the byte that this end waits for is in this segment.
#[inline(always)]
fn has_first_byte<M: Memory>(tcp: TcpSocket<M>, skb: Skb<M>) -> bool {
    let segment = skb.tcp_cb_sent();
    let expected = tcp.rcv_nxt();
    segment.len > 0
        && !before(expected, segment.seq)
        && before(expected, segment.seq.wrapping_add(segment.len))
}

/// `tcp_sendmsg_locked(sk, …)` or `do_tcp_sendpages(sk, …)`: a task writes.
#[inline(always)]
pub fn written<M: Memory>(socket: Socket<M>) -> Outcome {
    let Some(tcp) = socket.known_tcp() else { return Ok(()) };
    if tcp.bytes_sent() == 0
        && tcp.write_seq() == tcp.snd_una()
        && let Some(connection) = find(socket)
    {
        // Until a call has written something, another one may be the first.
        connection.first_out.set(now());
    }
    Ok(())
}

/// The user side asks how a socket is whose address it has from one of the two tables.
#[inline(always)]
pub fn asked_for<M: Memory>(socket: Socket<M>) -> Outcome {
    if listeners::asked_for(socket)? {
        return Ok(());
    }
    match find(socket) {
        Some(connection) => emit(socket, connection, CONNECTION_OPEN),
        None => Ok(()),
    }
}

/// Whether filters leave a connection, its process aside.
#[inline(always)]
fn is_wanted<M: Memory>(socket: Socket<M>, local_port: u16) -> bool {
    filter::ports(socket.identity().remote_port(), local_port)
        && filter::netns_of(socket)
        && (!filter::needs_addresses() || filter::addresses(&AddrPair::of_socket(socket)))
        && filter::has_mark(|| socket.mark())
}

/// Writes a record: of a connection in the state it was in, or of one that is open ([`CONNECTION_OPEN`]); of one that has just been
/// established that is still `SYN_SENT`.
#[inline(always)]
fn emit<M: Memory>(socket: Socket<M>, connection: &Connection, old: u32) -> Outcome {
    let Some(tcp) = socket.known_tcp() else { return Ok(()) };
    // At its end a socket may have given its port back; this is the one that it had.
    let local_port = tcp.source_port();
    let task = connection.task.get();
    let is_whose = if task.ids == 0 { filter::unknown() } else { filter::task(&task) };
    if !is_whose || !is_wanted(socket, local_port) {
        return Ok(());
    }
    let is_open = old == CONNECTION_OPEN;
    let (started, established) = (connection.started.get(), connection.established.get());
    let state = if is_open { socket.state() } else { old as u8 };
    let pair = AddrPair::of_socket(socket);
    let (local, remote) = pair.of_record(Direction::Out);
    // A FIN takes a number too.
    let fins = u64::from(socket.has_got_fin());
    let syn_retrans = if established == 0 { tcp.resent() } else { connection.syn_retrans.get() };
    let mut entry = CONNECTION_RECORDS.reserve::<ConnectionRecord>(0).ok_or(ConnectionCounter::RingFull)?;
    entry.write(ConnectionRecord {
        at_ns: now(),
        started_ns: started,
        established_ns: established,
        accepted_ns: connection.accepted.get(),
        first_in_ns: connection.first_in.get(),
        first_out_ns: connection.first_out.get(),
        bytes_in: tcp.bytes_received().saturating_sub(fins),
        bytes_out: tcp.bytes_sent().wrapping_sub(tcp.bytes_resent()),
        local,
        remote,
        comm: task.comm(),
        process: task.process(),
        pid: task.pid(),
        tid: task.tid(),
        netns: socket.netns(),
        mark: socket.mark(),
        segs_in: tcp.segs_in(),
        segs_out: tcp.segs_out(),
        retrans: tcp.resent().wrapping_sub(syn_retrans),
        syn_retrans,
        srtt: tcp.smoothed_rtt(),
        min_rtt_us: tcp.least_rtt(),
        flags: connection.flags.get()
            | whether(CONNECTION_OPEN, is_open)
            | whether(CONNECTION_MPTCP, tcp.is_of_mptcp()),
        error: socket.error(),
        local_port,
        remote_port: socket.identity().remote_port(),
        family: pair.family as u8,
        state,
        reserved: 0,
    });
    // An open one may be closed meanwhile, and its socket another's, of which the start may be as unknown (SYN cookies).
    arch::in_order(connection.started.address());
    let is_same = |it: &Connection| {
        it.started.get() == started && (established == 0 || it.established.get() == established)
    };
    let is_its = !is_open || find(socket).is_some_and(is_same);
    if is_its {
        entry.submit(wakeup());
    } else {
        entry.discard(NO_WAKEUP);
    }
    Ok(())
}

#[inline(always)]
const fn whether(flag: u32, is_so: bool) -> u32 {
    if is_so { flag } else { 0 }
}

/// As for packets: the reader comes by a timer unless the buffer fills faster.
#[inline(always)]
fn wakeup() -> u64 {
    let waiting = CONNECTION_RECORDS.query(AVAIL_DATA);
    if waiting < u64::from(setting!(wakeup_bytes)) { NO_WAKEUP } else { FORCE_WAKEUP }
}
