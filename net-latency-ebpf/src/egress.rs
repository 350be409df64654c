//! The way out: application, TCP, IP, device queue.
//!
//! `__tcp_transmit_skb` is entered with the skb of the send queue and hands a clone of it down. The hooks below know only the
//! clone: they note that it passed ([`crate::passing`]), whoever it is of. At the device's queue its socket, which is locked all
//! the way, tells what is on its way, the number in its header that it is that, and a stamp that is older than the
//! transmission, that a hook was missed. Which write call a segment belongs to follows
//! from sequence numbers: calls and first transmissions both go through them in order.

use net_latency_common::{
    Counter, Direction, FLAG_CONTROL, FLAG_RETRANS, FLAG_WRITE_EVICTED, IPPROTO_TCP, PacketRecord,
};

use crate::{
    Outcome, before,
    connection::{self, Author, Connection, Progress, Resent, Write, WriteKey},
    count, datagram,
    emit::{addresses, cpu, emit},
    filter, foreign,
    maps::{RESENT, WRITES},
    memory::{Memory, copy_words},
    now,
    passing::{self, Stage},
    skb::Skb,
    socket::Socket,
    steps::{BATCH, DONE, MISSED, MORE, repeat},
    task::Task,
};

/// Write calls that one transmission may step over, in batches: those whose bytes went out with the segment before.
const BATCHES_PER_RUN: u32 = 128 / BATCH;

/// The application calls `tcp_sendmsg_locked` (or `do_tcp_sendpages`).
#[inline(always)]
pub fn written<M: Memory>(socket: Socket<M>) -> Outcome {
    let identity = socket.identity();
    // The call may be one that connects.
    if !identity.is_unconnected() && !filter::socket(socket, &identity) {
        return Ok(());
    }
    let connection = connection::find_or_new(socket, identity)?;
    if filter::is_by_process() {
        if filter::current() {
            foreign::welcome(connection);
        } else if connection.is_wanted == 0 {
            // Whose these bytes are need not be known, only that others' are among them should one that was asked for come.
            connection.several_writers = 1;
            return Ok(());
        }
    }
    let at = now();
    let Some(tcp) = socket.tcp() else { return Ok(()) };
    let task = Task::current();
    let start = tcp.write_seq();
    connection.user = task;
    let write = Write { at, task, next: 0, has_next: 0 };

    let is_all_sent = tcp.snd_nxt() == start;
    if connection.has_write == 0 || is_all_sent {
        // Nothing waits before these bytes, or nothing whose call was seen.
        if is_all_sent {
            connection.write_evicted = 0;
        }
        if connection.has_write != 0 && connection.write.task.pid() != task.pid() {
            connection.several_writers = 1;
        }
        connection.write = write;
        connection.write_start = start;
        connection.last_write = start;
        connection.has_write = 1;
        return Ok(());
    }
    if connection.write.task.pid() != task.pid() {
        connection.several_writers = 1;
    }
    if connection.last_write == start {
        // The call before this one wrote nothing; this one takes its place.
        if connection.write_start == start {
            connection.write = write;
            return Ok(());
        }
        return insert(socket, start, &write);
    }
    insert(socket, start, &write)?;
    if connection.write.has_next == 0 {
        connection.write.next = start;
        connection.write.has_next = 1;
    } else {
        let last = WriteKey { socket: socket.address(), seq: connection.last_write, reserved: 0 };
        let last = WRITES.get_ptr_mut(&last).ok_or(Counter::StampLost)?;
        // SAFETY: the socket's lock keeps others away.
        unsafe {
            (*last).next = start;
            (*last).has_next = 1;
        }
    }
    connection.last_write = start;
    Ok(())
}

#[inline(always)]
fn insert<M: Memory>(socket: Socket<M>, seq: u32, write: &Write) -> Outcome {
    let key = WriteKey { socket: socket.address(), seq, reserved: 0 };
    WRITES.insert(&key, write, 0).map_err(|_| Counter::StampLost)
}

/// TCP transmits a segment of its send queue, or one it made itself (`__tcp_transmit_skb`).
#[inline(always)]
pub fn transmitted<M: Memory>(socket: Socket<M>, skb: Skb<M>) -> Outcome {
    // Headers come later: this is the payload.
    let len = skb.len();
    if len == 0 && !filter::control() {
        return Ok(());
    }
    if foreign::is_unwanted(socket) {
        count::both(Counter::SeenOut, Counter::FilteredOut);
        return Ok(());
    }
    let identity = socket.identity();
    if !filter::socket(socket, &identity) {
        count::one(Counter::SeenOut);
        return Err(Counter::FilteredOut);
    }
    let mut connection = match connection::find(socket) {
        // Another life of that address may have left a writer who has nothing to do with these bytes.
        Some(connection) if connection.identity == identity => connection,
        Some(connection) if is_first_of_call(socket, connection) => {
            connection.connected(socket, identity, sequence_number(skb));
            connection
        }
        // Nobody has used this socket since tracing began, so that no process can be named, but for a segment that a
        // task has the kernel make, by connecting.
        _ if filter::unknown() || len == 0 && socket.owned_by_task() && filter::current() => {
            connection::find_or_new(socket, identity)?
        }
        _ => {
            count::one(Counter::SeenOut);
            return Err(Counter::FilteredOut);
        }
    };
    if filter::is_by_process() && connection.is_wanted == 0 && len != 0 {
        count::one(Counter::SeenOut);
        return Err(Counter::FilteredOut);
    }
    let Some(tcp) = socket.tcp() else { return Ok(()) };
    if connection.transmit.progress != Progress::Idle {
        count::one(Counter::UnfinishedOut);
        connection.transmit.progress = Progress::Idle;
    }
    let seq = sequence_number(skb);
    let mut outcome = Ok(());
    let mut flags = 0;
    let mut first = 0;
    let began = now();
    let (app, author);
    if len == 0 {
        flags |= FLAG_CONTROL;
        app = began;
        author = Author::User;
        if socket.owned_by_task() {
            connection.user = Task::current();
        }
    } else {
        if before(seq, tcp.snd_nxt()) {
            flags |= FLAG_RETRANS;
            first = first_send(socket, skb, seq);
        } else if has_passed(connection, seq) {
            outcome = advance(connection.address, seq);
            connection = connection::find(socket).ok_or(Counter::SocketLost)?;
        }
        (app, author) = origin(connection, seq);
        if app == 0 && flags & FLAG_RETRANS == 0 {
            outcome = Err(Counter::UnmatchedOut);
            if connection.write_evicted != 0 {
                flags |= FLAG_WRITE_EVICTED;
            }
        }
    }
    let is_wanted = match author {
        Author::Writer => filter::task(&connection.write.task),
        Author::User => filter::task(&connection.user),
        Author::Unknown => filter::unknown(),
    };
    count::one(Counter::SeenOut);
    if !is_wanted {
        return Err(Counter::FilteredOut);
    }
    let transmit = &mut connection.transmit;
    transmit.app = app;
    transmit.began = began;
    transmit.first = first;
    transmit.seq = seq;
    transmit.header_seq = skb.tcp_cb_seq();
    transmit.len = len;
    let segs = skb.tcp_cb_segments();
    transmit.segs = if segs > 1 { segs } else { 1 };
    transmit.flags = flags;
    transmit.author = author;
    transmit.progress = Progress::Transmit;
    outcome
}

/// When the bytes that TCP is about to send again were first sent; 0 if that isn't known.
#[inline(always)]
fn first_send<M: Memory>(socket: Socket<M>, skb: Skb<M>, seq: u32) -> u64 {
    let last = skb.tcp_sent_at();
    if !skb.tcp_cb_sent_again() {
        return last;
    }
    let key = WriteKey { socket: socket.address(), seq, reserved: 0 };
    match RESENT.get_ptr(&key) {
        // SAFETY: the socket's lock keeps others away, and the values are mere numbers. Equal times show that
        // these are the same bytes, and not an older life's of that address and number.
        Some(resent) if unsafe { (*resent).last } == last => unsafe { (*resent).first },
        _ => 0,
    }
}

/// The number of the first byte of payload.
#[inline(always)]
fn sequence_number<M: Memory>(skb: Skb<M>) -> u32 {
    skb.tcp_cb_seq().wrapping_add(u32::from(skb.tcp_cb_syn()))
}

/// Whether the call that wrote to `socket` when it had no other end yet is still in progress, so that what is
/// sent are its first bytes: TCP Fast Open by `sendto`, which connects as well.
#[inline(always)]
fn is_first_of_call<M: Memory>(socket: Socket<M>, connection: &Connection) -> bool {
    connection.identity.is_unconnected()
        && connection.has_write != 0
        && socket.owned_by_task()
        && connection.write.task.ids == Task::current_ids()
}

/// Whether the byte at `seq` is of a later write call than the cursor is at.
#[inline(always)]
fn has_passed(connection: &Connection, seq: u32) -> bool {
    connection.has_write != 0 && connection.write.has_next != 0 && !before(seq, connection.write.next)
}

/// Moves the cursor of the socket at `address` to the write call that holds `seq`.
#[inline(always)]
fn advance(address: u64, seq: u32) -> Outcome {
    match repeat(BATCHES_PER_RUN, || advance_batch(address, seq)) {
        MISSED => Err(Counter::UnmatchedOut),
        _ => Ok(()),
    }
}

/// A batch of steps along the write calls of the socket at `address`.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn advance_batch(address: u64, seq: u32) -> u32 {
    repeat(BATCH, || advance_step(address, seq))
}

/// One step along the write calls of the socket at `address`, unless the cursor is at the one that holds `seq`.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn advance_step(address: u64, seq: u32) -> u32 {
    let Some(connection) = connection::at(address) else { return DONE };
    if !has_passed(connection, seq) {
        return DONE;
    }
    let key = WriteKey { socket: address, seq: connection.write.next, reserved: 0 };
    let Some(next) = WRITES.get_ptr(&key) else {
        // Evicted. Nothing is known until a call finds all bytes sent.
        connection.has_write = 0;
        connection.write_evicted = 1;
        return MISSED;
    };
    // SAFETY: the socket's lock keeps others away.
    unsafe { copy_words(next, &raw mut connection.write) };
    connection.write_start = key.seq;
    // It is there: found above.
    let _ = WRITES.remove(&key);
    MORE
}

/// When, and by whom, the byte at `seq` was written.
#[inline(always)]
fn origin(connection: &Connection, seq: u32) -> (u64, Author) {
    if connection.has_write == 0 {
        return (0, Author::Unknown);
    }
    let write = &connection.write;
    let is_before = before(seq, connection.write_start);
    let is_behind = write.has_next != 0 && !before(seq, write.next);
    if !is_before && !is_behind {
        (write.at, Author::Writer)
    } else if connection.several_writers == 0 {
        // Another call, but there is only one process that calls.
        (0, Author::Writer)
    } else {
        (0, Author::Unknown)
    }
}

/// TCP lets a packet go: the first hook that sees the clone. Its sequence number is read here, since netfilter may change it
/// further down (`nf_ct_seq_adjust`).
#[inline(always)]
pub fn at_transport<M: Memory>(socket: Socket<M>, skb: Skb<M>) -> Outcome {
    if foreign::is_unwanted(socket) {
        return Ok(());
    }
    if let Some(passing) = passing::of(skb.address()) {
        passing.stamp_sent(now(), skb.tcp_header_seq());
    }
    Ok(())
}

/// IP output (`ip_output`, `ip6_output`). A tunnel's second pass with the same skb comes when the line is complete: that was at
/// the tunnel's device.
#[inline(always)]
pub fn at_ip<M: Memory>(skb: Skb<M>) -> Outcome {
    if filter::is_by_process() && foreign::is_unwanted(skb.socket()) {
        return Ok(());
    }
    passing::stamp(skb.address(), Stage::IpOut);
    Ok(())
}

/// The packet is handed to a device's queue (tracepoint `net_dev_queue`): its line is complete.
#[inline(always)]
pub fn queued<M: Memory>(skb: Skb<M>) -> Outcome {
    let socket = skb.socket();
    if socket.address() == 0 || foreign::is_unwanted(socket) {
        return Ok(());
    }
    let Some(connection) = connection::find(socket) else { return datagram::queued(skb) };
    let transmit = &mut connection.transmit;
    if transmit.progress == Progress::Idle {
        return Ok(());
    }
    let Some(passing) = passing::of(skb.address()) else { return Ok(()) };
    if !passing.was_sent_with(transmit.header_seq) {
        // Not what is on its way, or TCP's hook was missed.
        return Ok(());
    }
    transmit.progress = Progress::Idle;
    let drv = now();
    let (transport, ip) = passing.take_out(transmit.began, drv);
    if transmit.first != 0 {
        let key = WriteKey { socket: socket.address(), seq: transmit.seq, reserved: 0 };
        let resent = Resent { first: transmit.first, last: skb.tcp_sent_at() };
        if RESENT.insert(&key, &resent, 0).is_err() {
            count::one(Counter::StampLost);
        }
    }
    let ends = &connection.ends;
    let (ifindex, _) = skb.device();
    let mark = skb.mark();
    let identity = &connection.identity;
    let transmit = &connection.transmit;
    if !filter::interface(skb) {
        return Err(Counter::FilteredOut);
    }
    let stamps = [drv, ip, transport, transmit.app];
    emit(Direction::Out, &stamps, mark, || {
        let (saddr, daddr) = addresses(ends, Direction::Out);
        let task = match transmit.author {
            Author::Writer => connection.write.task,
            Author::User => connection.user,
            Author::Unknown => Task::UNKNOWN,
        };
        PacketRecord {
            stamps,
            other: transmit.first,
            saddr,
            daddr,
            comm: task.comm(),
            pid: task.pid(),
            tid: if transmit.app == 0 { 0 } else { task.tid() },
            len: transmit.len,
            seq: transmit.seq,
            ifindex,
            netns: connection.netns,
            mark,
            sport: identity.local_port(),
            dport: identity.remote_port(),
            segs: transmit.segs,
            cpu: cpu(),
            flags: transmit.flags,
            direction: Direction::Out as u8,
            protocol: IPPROTO_TCP,
            family: ends.family,
            reserved: 0,
        }
    })
}
