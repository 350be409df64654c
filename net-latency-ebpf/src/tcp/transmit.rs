//! Out: application, TCP, device queue. IP is in between ([`crate::ip`]).
//!
//! `__tcp_transmit_skb` is entered with the skb of the send queue and hands a clone of it down, on which TCP puts its header and lets it
//! go. From there to the device's queue the socket is nearly always locked, and its entry keeps the packet in flight, with the clone's
//! address; IP, which knows no socket, stamps the clone ([`crate::skb_stamps`]). Which write call a segment belongs to follows from
//! sequence numbers: calls and first transmissions both go through them in order.
//!
//! Considered: a hook on `__tcp_transmit_skb` too (what this was; all that it knows is still known where the checksum is made,
//! and by the header where IP is called).

use core::ptr;

use net_latency_common::{
    Counter, Direction, FLAG_CONTROL, FLAG_RETRANS, FLAG_WRITE_EVICTED, IPPROTO_TCP, PacketRecord, Served,
};

#[cfg(feature = "fine")]
use net_latency_common::{FLAG_RTO, SENT_UNQUEUED};

use super::{
    connection::{self, Author, Connection},
    steps::{DONE, MISSED, MORE, RUN, batch, repeat},
    writes::{RESENT, Resent, WRITES, Write, WriteKey},
};
#[cfg(feature = "fine")]
use super::{held, in_flight};
use crate::{
    bpf::{cpu, now},
    emit::{
        counters::{self, HookResult},
        ring::{self, Finished, emit_sent},
    },
    flow::{filter, settings::setting, untraced},
    ip,
    kernel::{
        arch,
        memory::{Memory, Number, number},
        sequence::before,
        skb::{Skb, TcpSent},
        socket::{Socket, TcpSocket},
        task::Task,
    },
    skb_stamps, udp,
};
#[cfg(feature = "fine")]
use crate::{
    emit::ring::is_fine,
    leaving::{self, Whose},
    readers,
};

/// N bytes of a call can be told from those before it: half of all sequence numbers. One that writes more is taken for one
/// that ends there.
pub(super) const MOST_WRITTEN: u32 = 1 << 30;

/// The application calls `tcp_sendmsg_locked` (or `do_tcp_sendpages`) with N bytes.
#[inline(always)]
pub fn written<M: Memory>(socket: Socket<M>, size: Number) -> HookResult {
    let identity = socket.identity();
    // The call may be one that connects.
    if !identity.is_unconnected() && !filter::socket(socket, &identity) {
        return Ok(());
    }
    let connection = connection::find_or_new(socket, identity)?;
    let result = written_to(socket, connection, size);
    connection.settle(number(socket.address()));
    #[cfg(feature = "fine")]
    readers::sends()?;
    result
}

#[inline(always)]
fn written_to<M: Memory>(socket: Socket<M>, connection: &Connection, size: Number) -> HookResult {
    if !notes_writer(connection) {
        return Ok(());
    }
    let at = now();
    let Some(tcp) = socket.known_tcp() else { return Ok(()) };
    let task = filter::current_task();
    let start = tcp.write_seq();
    #[cfg(feature = "fine")]
    if is_fine() {
        connection.fine.writes(start, at);
    }
    connection.user.set(task);
    let write = &connection.write;
    let is_last_through = connection.has_write.get() != 0 && write.is_through(start);
    // Another call goes on when this one waits: the owner of each byte is unknown.
    let is_alone = is_last_through || !socket.has_pending_write();
    let (at, task) = if is_alone { (at, task) } else { (0, Task::UNKNOWN) };
    let end = start.wrapping_add(size.at_most(MOST_WRITTEN));
    append_to_tcp((socket, tcp), connection, start, end, (at, task))
}

/// Whether the writer's bytes may be wanted. The owners of others need not be known, only that there are such bytes, should a wanted writer
/// come.
#[inline(always)]
pub(super) fn notes_writer(connection: &Connection) -> bool {
    if filter::is_by_process() {
        if filter::current() {
            connection.mark_traced();
        } else if connection.is_traced.get() == 0 {
            connection.several_writers.set(1);
            return false;
        }
    }
    true
}

/// A call comes behind those that are known: its first byte's number, the number behind its last, and when it was and whose.
/// `has_unknown`: if no call is known, whether bytes of one that was not seen may be sent again.
#[inline(always)]
pub(super) fn append<M: Memory>(
    socket: Socket<M>,
    connection: &Connection,
    start: u32,
    end: u32,
    (at, task): (u64, Task),
    is_all_sent: bool,
    has_unknown: impl FnOnce() -> bool,
) -> HookResult {
    let write = &connection.write;
    let last_end = connection.last_end.get();
    connection.last_end.set(end);
    if connection.has_write.get() == 0 || is_all_sent {
        // Nothing waits before these bytes, or nothing whose call was seen.
        if is_all_sent {
            connection.write_evicted.set(0);
        }
        let is_anothers = if connection.has_write.get() == 0 {
            // What waits for its ACK, and may be sent again, may be of a process that was not seen.
            has_unknown()
        } else {
            // Or a call between that was not seen.
            before(last_end, start) || write.task.get().pid() != task.pid()
        };
        if is_anothers {
            connection.several_writers.set(1);
        }
        write.set(at, task, end);
        connection.write_start.set(start);
        connection.last_write.set(start);
        connection.has_write.set(1);
        return Ok(());
    }
    if write.task.get().pid() != task.pid() {
        connection.several_writers.set(1);
    }
    let new = Write::new(at, task, end);
    if connection.last_write.get() == start {
        // The call before this one wrote nothing; this one takes its place.
        if connection.write_start.get() == start {
            if connection.transmission.is_in_flight() {
                // A packet that is sent again and waits on its way would be named after the new call.
                connection.transmission.author.set(Author::Unknown);
            }
            write.set(at, task, end);
            return Ok(());
        }
        return insert(socket, start, &new);
    }
    insert(socket, start, &new)?;
    let next = if write.has_next.get() == 0 {
        write.link(start)
    } else {
        let last = WriteKey::new(socket.address(), connection.last_write.get());
        let last = WRITES.get_ptr(&last).ok_or(Counter::StampLost)?;
        // SAFETY: entries stay mapped while a program runs; the socket's lock keeps others away.
        unsafe { (*last).link(start) }
    };
    connection.last_write.set(start);
    if next == start {
        return Ok(());
    }
    connection.several_writers.set(1);
    // In the same place, since the stack is short.
    new.set(0, Task::UNKNOWN, start);
    new.link(start);
    insert(socket, next, &new)
}

/// As [`append`], on TCP's own socket.
#[inline(always)]
pub(super) fn append_to_tcp<M: Memory>(
    (socket, tcp): (Socket<M>, TcpSocket<M>),
    connection: &Connection,
    start: u32,
    end: u32,
    call: (u64, Task),
) -> HookResult {
    // A packet still in flight belongs to the call before.
    let is_all_sent = tcp.snd_nxt() == start && !connection.transmission.is_in_flight();
    append(socket, connection, start, end, call, is_all_sent, || tcp.snd_una() != start)
}

#[inline(always)]
fn insert<M: Memory>(socket: Socket<M>, seq: u32, write: &Write) -> HookResult {
    let key = WriteKey::new(socket.address(), seq);
    WRITES.insert(&key, write, 0).map_err(|_| Counter::StampLost)
}

/// TCP lets a segment of its send queue go, or one it made itself: `tcp_v4_send_check`, `tcp_v6_send_check`, or where these are no
/// functions any more, IP's `__ip_queue_xmit` and `inet6_csk_xmit`. The header is written, and what TCP has sent for the first
/// time has not moved yet (`tcp_event_new_data_sent`). L2TP and SCTP come to IP by the same function.
#[inline(always)]
pub fn sent<M: Memory>(socket: Socket<M>, skb: Skb<M>) -> HookResult {
    let packet = if setting!(tcp_header_only) == 0 {
        skb.tcp_cb_sent()
    } else if socket.protocol() == u16::from(IPPROTO_TCP) {
        skb.tcp_header_sent()
    } else {
        return Ok(());
    };
    let (seq, len) = (packet.seq, packet.len);
    if len == 0 && !filter::control() {
        // It is not wanted. But as it is sent under the socket's lock, the packet before is not in flight any more; and without this it
        // would be taken for that one, should it have the same address.
        if !untraced::is_socket_untraced(socket) {
            forget_unfinished_of(socket);
        }
        return Ok(());
    }
    if untraced::is_socket_untraced(socket) {
        counters::both(Counter::SeenOut, Counter::FilteredOut);
        return Ok(());
    }
    let Some(connection) = wanted_connection(socket, seq, len)? else {
        // Likewise.
        forget_unfinished_of(socket);
        counters::one(Counter::SeenOut);
        return Err(Counter::FilteredOut);
    };
    let result = sent_by(socket, skb, connection, packet);
    connection.settle(number(socket.address()));
    result
}

/// [`sent`] for a segment that may be wanted.
#[inline(always)]
fn sent_by<M: Memory>(
    socket: Socket<M>,
    skb: Skb<M>,
    connection: &Connection,
    packet: TcpSent,
) -> HookResult {
    let (seq, len) = (packet.seq, packet.len);
    let Some(tcp) = socket.known_tcp() else { return Ok(()) };
    forget_unfinished(connection);
    let mut result = Ok(());
    let mut flags = 0;
    let mut first = 0;
    let transport = now();
    let (app, author);
    if len == 0 {
        // The kernel makes it, on behalf of the last task that used the socket.
        flags |= FLAG_CONTROL;
        app = transport;
        author = Author::User;
        if socket.owned_by_task() {
            connection.user.set(filter::current_task());
        }
        connection.transmission.user.set(connection.user.get().ids);
    } else {
        if before(seq, tcp.snd_nxt()) {
            flags |= FLAG_RETRANS;
            connection.has_resent.set(1);
            if connection.resent_seq.get() == seq {
                first = connection.resent_first.get();
            }
            #[cfg(feature = "fine")]
            if is_fine() {
                let by_timer = tcp.resends_by_timer();
                flags |= if by_timer { FLAG_RTO } else { 0 };
                in_flight::sent_again(connection, seq, len, by_timer);
            }
        } else if has_passed(connection, seq) {
            result = advance(connection.address.get(), seq);
        }
        (app, author) = writer(connection, seq);
        if app == 0 && flags & FLAG_RETRANS == 0 {
            result = Err(Counter::UnmatchedOut);
            if connection.write_evicted.get() != 0 {
                flags |= FLAG_WRITE_EVICTED;
            }
        }
    }
    let is_wanted = match author {
        Author::Writer => filter::task(&connection.write.task.get()),
        Author::User => filter::task(&connection.user.get()),
        Author::Unknown => filter::unknown(),
    };
    counters::one(Counter::SeenOut);
    if !is_wanted {
        return Err(Counter::FilteredOut);
    }
    let transmission = &connection.transmission;
    transmission.app.set(app);
    transmission.transport.set(transport);
    transmission.first.set(first);
    transmission.seq.set(seq);
    transmission.len.set(len);
    transmission.segs.set(if packet.segs > 1 { packet.segs } else { 1 });
    transmission.flags.set(flags);
    #[cfg(feature = "fine")]
    if is_fine() {
        transmission.held.set(held::of_sent(connection, tcp, app, transport, flags) as u16);
        let is_first = flags & (FLAG_CONTROL | FLAG_RETRANS) == 0;
        connection.fine.sends(seq, len, is_first);
    }
    transmission.rtt.set(tcp.smoothed_rtt());
    // Nearly all connections have nothing to say here.
    let dsacks = if connection.has_resent.get() != 0 { (tcp.dsacks() as u16).wrapping_add(1) } else { 0 };
    transmission.dsacks.set(dsacks);
    transmission.author.set(author);
    arch::write_in_order(transmission.skb.address(), number(skb.address()));
    result
}

/// The packet in flight has not come to a device, and is not followed any more.
#[inline(always)]
fn forget_unfinished(connection: &Connection) {
    let transmission = &connection.transmission;
    if transmission.skb.get() != 0 {
        transmission.give_up();
        arch::write_in_order(transmission.skb.address(), 0);
        transmission.copy.set(0);
    }
}

/// [`forget_unfinished`] for a socket that sends something unwanted.
#[inline(always)]
fn forget_unfinished_of<M: Memory>(socket: Socket<M>) {
    if let Some(connection) = connection::find(socket) {
        forget_unfinished(connection);
    }
}

/// An skb is dropped: a later one with its address must not be taken for the packet in flight.
#[inline(always)]
pub(super) fn dropped<M: Memory>(skb: Skb<M>) {
    let socket = skb.socket();
    if socket.address() == 0 {
        return;
    }
    if let Some(connection) = connection::find(socket)
        && let Some(transport) = connection.transmission.of(number(skb.address()))
    {
        // It may have waited, so that the socket is not locked.
        connection.transmission.ended.set(transport);
        return counters::one(Counter::UnfinishedOut);
    }
    // One that came in has the other end's numbers.
    #[cfg(feature = "fine")]
    if is_fine() && !skb.has_entered() {
        let is_segment = socket.protocol() == u16::from(IPPROTO_TCP)
            && skb.tcp_payload_start().is_some_and(|seq| in_flight::dropped(number(socket.address()), seq));
        if !is_segment {
            leaving::dropped(skb);
        }
    }
}

/// An skb is made that is a copy of another one (`skb_copy_header`). If that is in flight, either may be what comes to the device.
#[inline(always)]
pub fn copied<M: Memory>(new: Skb<M>, old: Skb<M>) -> HookResult {
    let (copy, address) = (number(new.address()), number(old.address()));
    skb_stamps::copied(copy, address, old.shared_head());
    let socket = old.socket();
    if socket.address() == 0 {
        return Ok(());
    }
    match connection::find(socket) {
        Some(connection) => connection.transmission.has_copy(address, copy),
        None => udp::copied(copy, address),
    }
    Ok(())
}

/// An skb is cut into segments, which are skbs of their own (`skb_segment`). If that is in flight, the first of them comes to the device
/// in its stead: NFQUEUE's.
#[inline(always)]
pub fn segmented<M: Memory>(skb: Skb<M>) -> HookResult {
    let address = number(skb.address());
    // Under the address of what is sent from here there may be stamps of another skb, which had it before.
    if skb.has_entered() {
        skb_stamps::segmented(address, skb.shared_head());
    }
    let socket = skb.socket();
    if socket.address() == 0 {
        return Ok(());
    }
    if let Some(connection) = connection::find(socket) {
        skb_stamps::cut();
        connection.transmission.is_cut(address, skb.tcp_sent_at());
        #[cfg(feature = "fine")]
        leaving::unwrap(skb);
    } else {
        udp::segmented(skb);
    }
    Ok(())
}

/// TCP is about to send bytes again (`__tcp_retransmit_skb`), and the skb of its queue says when it sent them last.
#[inline(always)]
pub fn resending<M: Memory>(socket: Socket<M>, skb: Skb<M>) -> HookResult {
    if untraced::is_socket_untraced(socket) {
        return Ok(());
    }
    if let Some(connection) = connection::find(socket) {
        let seq = skb.tcp_cb_payload();
        connection.resent_first.set(first_send(socket, skb, seq));
        connection.resent_seq.set(seq);
        connection.settle(number(socket.address()));
    }
    Ok(())
}

/// The connection that sends this segment, unless the segment is known to be unwanted.
#[inline(always)]
fn wanted_connection<M: Memory>(
    socket: Socket<M>,
    seq: u32,
    len: u32,
) -> Result<Option<&'static Connection>, Counter> {
    let identity = socket.identity();
    if !filter::socket(socket, &identity) {
        return Ok(None);
    }
    let connection = match connection::find(socket) {
        // An earlier socket at that address may have left a writer that has nothing to do with these bytes.
        Some(connection) if connection.identity.get() == identity => connection,
        Some(connection) if is_first_of_call(socket, connection, len) => {
            connection.connected(socket, identity, seq);
            connection
        }
        // No task has used this socket since tracing began, so that no process can be named, but for a segment that a task has the kernel
        // make, by connecting.
        _ if filter::unknown() || len == 0 && socket.owned_by_task() && filter::current() => {
            connection::find_or_new(socket, identity)?
        }
        _ => return Ok(None),
    };
    let is_untraced = filter::is_by_process() && connection.is_traced.get() == 0 && len != 0;
    Ok(if is_untraced { None } else { Some(connection) })
}

/// When the bytes that TCP is about to send again were first sent; 0 if that isn't known.
#[inline(always)]
fn first_send<M: Memory>(socket: Socket<M>, skb: Skb<M>, seq: u32) -> u64 {
    let last = skb.tcp_sent_at();
    if !skb.tcp_cb_sent_again() {
        return last;
    }
    let Some(resent) = RESENT.get_ptr(&WriteKey::new(socket.address(), seq)) else { return 0 };
    // SAFETY: an entry stays mapped while a program runs, and the values are mere numbers. In this order: equal times show that these
    // are the same bytes, and neither an older life's of that address and number, nor another's that has evicted them meanwhile.
    let (first, last_sent) =
        unsafe { (arch::load(&raw const (*resent).first), arch::load(&raw const (*resent).last)) };
    // Where other CPUs see writes in another order, an entry that has got another's place shows by its key.
    let is_its = || {
        arch::in_order(resent.cast_mut().cast());
        RESENT.get_ptr(&WriteKey::new(socket.address(), seq)).is_some_and(|there| ptr::eq(there, resent))
    };
    if last_sent == last && (!arch::REORDERS || is_its()) { first } else { 0 }
}

/// Whether the call that wrote to `socket` when it had no other end yet is still in progress, and the segment of `len` bytes is the first
/// that is sent of them: TCP Fast Open by `sendto`, which connects as well.
#[inline(always)]
fn is_first_of_call<M: Memory>(socket: Socket<M>, connection: &Connection, len: u32) -> bool {
    if !connection.identity.get().is_unconnected()
        || connection.has_write.get() == 0
        || !socket.owned_by_task()
        || connection.write.task.get().ids != Task::current_ids()
    {
        return false;
    }
    // `__tcp_transmit_skb` counts it between the checksum and IP.
    let counted = if setting!(tcp_header_only) == 0 { 0 } else { u64::from(len) };
    socket.known_tcp().is_some_and(|tcp| tcp.bytes_sent() == counted)
}

/// Whether the byte at `seq` is of a later write call than the cursor is at.
#[inline(always)]
fn has_passed(connection: &Connection, seq: u32) -> bool {
    connection.has_write.get() != 0
        && connection.write.has_next.get() != 0
        && !before(seq, connection.write.next.get())
}

/// Moves the cursor of the socket at `address` to the write call that holds `seq`.
#[inline(always)]
fn advance(address: u64, seq: u32) -> HookResult {
    match repeat(RUN, || advance_batch(address, seq)) {
        MISSED => Err(Counter::UnmatchedOut),
        _ => Ok(()),
    }
}

batch!(
    /// Steps along the write calls of the socket at `address`: those whose bytes went out with the segment before. If calls have 128
    /// bytes or more, a run is all that a segment of 64 KiB holds.
    advance_batch = advance_step(address: u64, seq: u32)
);

/// One step along the write calls of the socket at `address`, unless the cursor is at the one that holds `seq`.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn advance_step(address: u64, seq: u32) -> u32 {
    let Some(connection) = connection::at(address) else { return DONE };
    if !has_passed(connection, seq) {
        return DONE;
    }
    let start = connection.write.next.get();
    if !connection.write.become_next(&WriteKey::new(address, start)) {
        // Evicted. Nothing is known until a call finds all bytes sent.
        connection.has_write.set(0);
        connection.write_evicted.set(1);
        return MISSED;
    }
    connection.write_start.set(start);
    MORE
}

/// When, and by which task, the byte at `seq` was written. The cursor is where it was sent for the first time, which may be now.
#[inline(always)]
fn writer(connection: &Connection, seq: u32) -> (u64, Author) {
    if connection.has_write.get() == 0 {
        return (0, Author::Unknown);
    }
    let write = &connection.write;
    let is_before = before(seq, connection.write_start.get());
    let is_behind = !before(seq, write.next.get());
    if !before(seq, connection.last_end.get()) {
        // A call that was not seen, even one of a process that wrote nothing else. What is between two calls is known (`append`).
        connection.several_writers.set(1);
    }
    if !is_before && !is_behind {
        (write.at.get(), Author::Writer)
    } else if connection.several_writers.get() == 0 {
        // Another call, but there is only one process that calls.
        (0, Author::Writer)
    } else {
        (0, Author::Unknown)
    }
}

/// Moves the cursor of MPTCP's socket at `address` to the write call that holds `seq`. Where it stops short, nothing is known of the byte.
#[inline(always)]
pub(super) fn go_on_to(address: u64, seq: u32) {
    if let Some(connection) = connection::at(address)
        && has_passed(connection, seq)
    {
        let _ = advance(address, seq);
    }
}

/// When, and by which task, the byte at `seq` of MPTCP's socket was written, and how many bytes from there on are that call's.
#[inline(always)]
pub(super) fn written_at(connection: &Connection, seq: u32) -> (u64, Task, u32) {
    let task = connection.write.task.get();
    match writer(connection, seq) {
        (_, Author::Unknown | Author::User) => (0, Task::UNKNOWN, MOST_WRITTEN),
        (0, Author::Writer) => (0, task, MOST_WRITTEN),
        (at, Author::Writer) => (at, task, connection.write.next.get().wrapping_sub(seq)),
    }
}

/// The packet is handed to a device's queue (tracepoint `net_dev_queue`): its line is complete.
#[inline(always)]
pub fn queued<M: Memory>(skb: Skb<M>) -> HookResult {
    let socket = skb.socket();
    // It may still have the socket of this machine that sent it: a veth keeps that, and IP lets it go (`ip_rcv_core`).
    ip::sent_on(skb)?;
    if socket.address() == 0 || untraced::is_socket_untraced(socket) {
        return Ok(());
    }
    #[cfg(feature = "fine")]
    if is_fine() {
        leaving::before_queue(skb);
        let result = at_queue(skb, socket);
        leaving::after_queue(skb);
        return result;
    }
    at_queue(skb, socket)
}

/// [`queued`] for an skb of a socket that is traced.
#[inline(always)]
fn at_queue<M: Memory>(skb: Skb<M>, socket: Socket<M>) -> HookResult {
    let known = match connection::find(socket) {
        Some(connection) => segment_at_queue(skb, socket, connection),
        None => datagram_at_queue(skb),
    };
    #[cfg(feature = "fine")]
    if known.is_none() && is_fine() {
        queued_again(skb);
    }
    known.unwrap_or(Ok(()))
}

/// [`queued`] for a connection's skb. Nothing if it is not the one in flight: another pass of an skb through a tunnel's device, or TCP's
/// hook was missed.
///
/// A function with a stack of its own, which is free again before the complete packet is handed over.
#[inline(never)]
fn segment_at_queue<M: Memory>(
    skb: Skb<M>,
    socket: Socket<M>,
    connection: &Connection,
) -> Option<HookResult> {
    let transmission = &connection.transmission;
    // Before all else that is read of it: TCP's hook takes it away first, and writes it last.
    let address = transmission.skb.get();
    let transport = transmission.of(number(skb.address())).or_else(|| first_segment(connection, skb))?;
    Some(finished(socket, connection, skb, address, transport))
}

/// [`queued`] for an skb of no connection: likewise a function with a stack of its own.
#[inline(never)]
fn datagram_at_queue<M: Memory>(skb: Skb<M>) -> Option<HookResult> {
    udp::queued(skb)
}

/// When TCP let the packet go of which this skb is the first segment, if that was cut on its way.
#[inline(always)]
fn first_segment<M: Memory>(connection: &Connection, skb: Skb<M>) -> Option<u64> {
    let transmission = &connection.transmission;
    if !transmission.was_cut() {
        return None;
    }
    // The same bytes may have been sent before, and those segments still be on their way.
    let transport = transmission.of(skb.tcp_sent_at())?;
    if skb.tcp_payload_start() != Some(transmission.seq.get()) {
        return None;
    }
    skb_stamps::forget_before_cut(number(skb.address()));
    Some(transport)
}

/// What TCP has in flight, with the skb at `address` or what came of that, is at its device's queue with `skb`.
#[inline(always)]
fn finished<M: Memory>(
    socket: Socket<M>,
    connection: &Connection,
    skb: Skb<M>,
    address: u64,
    transport: u64,
) -> HookResult {
    let transmission = &connection.transmission;
    transmission.ended.set(transport);
    let drv = now();
    let ip = skb_stamps::take_out(skb.address(), transport, drv);
    let first = transmission.first.get();
    if first != 0 {
        let key = WriteKey::new(socket.address(), transmission.seq.get());
        let resent = Resent { first, last: skb.tcp_sent_at() };
        if RESENT.insert(&key, &resent, 0).is_err() {
            counters::one(Counter::StampLost);
        }
    }
    if !filter::interface(skb) {
        return Err(Counter::FilteredOut);
    }
    let app = transmission.app.get();
    let stamps = [drv, ip, transport, app];
    let (direction, protocol) = (Direction::Out, IPPROTO_TCP);
    // Here, and not in the record: the places where that is made have no room for them.
    let ifindex = if ring::makes_records() { skb.ifindex() } else { 0 };
    let mark = skb.mark();
    let record = || {
        // Before all else is loaded, which a call would drive out of its registers.
        let cpu = cpu() as u16;
        let addresses = connection.addresses.get();
        let identity = connection.identity.get();
        let (saddr, daddr) = addresses.of_record(direction);
        let task = match transmission.author.get() {
            Author::Writer => connection.write.task.get(),
            Author::User if connection.user.get().ids == transmission.user.get() => connection.user.get(),
            Author::User | Author::Unknown => Task::UNKNOWN,
        };
        PacketRecord {
            stamps,
            other: first,
            saddr,
            daddr,
            comm: task.comm(),
            process: task.process(),
            pid: task.pid(),
            tid: if app == 0 { 0 } else { task.tid() },
            len: transmission.len.get(),
            seq: transmission.seq.get(),
            ifindex,
            netns: connection.netns.get(),
            mark,
            sport: identity.local_port(),
            dport: identity.remote_port(),
            segs: transmission.segs.get(),
            cpu,
            flags: transmission.flags.get(),
            direction: direction as u8,
            protocol,
            family: addresses.family as u8,
            held: transmission.held.get() as u8,
            dsacks: transmission.dsacks.get(),
            rtt_or_holder: transmission.rtt.get(),
        }
    };
    // If not, TCP has sent the next packet meanwhile, and some of this is that one's. If so, the connection's entry was not evicted either:
    // a new one has nothing in flight at first.
    let is_its = || {
        arch::read_before(transmission.skb.address());
        let is_known = !arch::REORDERS || connection.is_of(connection.address.get());
        is_known && address != 0 && transmission.skb.get() == address
    };
    let missing = None;
    #[cfg(feature = "fine")]
    let missing = if is_fine() {
        if !filter::lasting(|| mark) {
            return Err(Counter::FilteredOut);
        }
        let waits = if transmission.flags.get() & (FLAG_CONTROL | FLAG_RETRANS) != 0 {
            leaving::put(skb, record, || Served::NONE, is_its)
        } else if !is_its() {
            return Err(Counter::OvertakenOut);
        } else {
            in_flight::put(connection, transmission.seq.get(), transmission.len.get(), record)
        };
        match waits {
            Ok(()) => return Ok(()),
            Err(reason) => Some(reason),
        }
    } else {
        missing
    };
    let packet = Finished { direction, protocol, flags: transmission.flags.get(), stamps: &stamps };
    #[cfg(feature = "fine")]
    let served = || connection.fine.served(transmission.seq.get(), transmission.len.get());
    #[cfg(not(feature = "fine"))]
    let served = || Served::NONE;
    emit_sent(&packet, || mark, missing, record, served, is_its)
}

/// An skb goes to a device's queue again: its driver is a VLAN's or the like, and the device below it is the one that counts.
#[cfg(feature = "fine")]
#[inline(always)]
fn queued_again<M: Memory>(skb: Skb<M>) {
    if let Some((key, socket)) = leaving::queued_again(skb.address())
        && socket == number(skb.socket().address())
    {
        in_flight::queued_again(key, socket);
        if !in_flight::begins_with(key, socket, skb.tcp_header_anywhere().seq) {
            leaving::wrap(skb, key, socket);
        }
    }
}

/// A driver gets an skb (tracepoint `net_dev_start_xmit`), maybe the first of those that GSO made of a segment.
#[cfg(feature = "fine")]
#[inline(always)]
pub fn driven<M: Memory>(skb: Skb<M>) -> HookResult {
    let socket = skb.socket();
    if socket.address() == 0 || untraced::is_socket_untraced(socket) {
        return Ok(());
    }
    let at = now();
    let state = if skb.is_unqueued() { SENT_UNQUEUED } else { 0 };
    if socket.protocol() == u16::from(IPPROTO_TCP) {
        let socket = number(socket.address());
        if let Some(seq) = skb.tcp_payload_start()
            && let Some(key) = in_flight::started(socket, seq, at, state)
        {
            leaving::begin(skb.address(), Whose::Segment(key, socket));
            return Ok(());
        }
    }
    if let Some((key, socket)) = leaving::started(skb, at, state) {
        in_flight::started_again(key, socket, at, state);
    }
    Ok(())
}

/// A driver is done with an skb (tracepoint `net_dev_xmit`), which may be free.
#[cfg(feature = "fine")]
#[inline(always)]
pub fn left<M: Memory>(skb: Skb<M>) -> HookResult {
    let at = now();
    if let Some((key, socket)) = leaving::finished(skb.address(), at) {
        in_flight::finished(key, socket, at);
    }
    Ok(())
}

/// What hooks without the socket's lock see of what others write meanwhile.
#[cfg(test)]
mod tests {
    use net_latency_common::{Offsets, STAMP_TRANSPORT};

    use super::*;
    use crate::{
        bpf::host::{
            Machine, memory,
            order::{self, Barrier, explore, race},
        },
        kernel::memory::Probed,
    };

    /// A socket, and two skbs, the first of which was sent again.
    fn kernel() -> (Socket<Probed>, [Skb<Probed>; 2]) {
        let [socket, first, second] = [(); 3].map(|()| memory::take(memory::slab(64)));
        Machine::with(|machine| {
            machine.offsets = Offsets {
                sock_skc_state: 8,
                sock_sk_protocol: 16,
                sk_buff_skb_mstamp_ns: 8,
                tcp_skb_cb_sacked: 16,
                ..Offsets::default()
            };
        });
        memory::write(socket + 8, 1_u8);
        memory::write(socket + 16, u16::from(IPPROTO_TCP));
        memory::write(first + 8, 7_u64);
        memory::write(first + 16, 0x80_u8);
        (Socket::new(socket as *const u8), [first, second].map(|skb| Skb::new(skb as *const u8)))
    }

    /// By `sendto` with TCP Fast Open: the task that wrote has the socket, which had no other end.
    #[test]
    fn a_call_that_connects_too_is_the_one_in_progress() {
        const OWNED: u64 = 24;
        const PORTS: u64 = 32;
        const SENT: u64 = 40;
        const LEN: u32 = 100;
        const IDS: u64 = 7 << 32 | 7;
        Machine::reset();
        let (socket, _) = kernel();
        let connection = connection::find_or_new(socket, socket.identity());
        let Ok(connection) = connection else { panic!("there is room") };
        Machine::with(|machine| {
            machine.ids = IDS;
            machine.offsets.sock_sk_lock_owned = OWNED as u32;
            machine.offsets.sock_skc_portpair = PORTS as u32;
            machine.offsets.tcp_sock_bytes_sent = SENT as u32;
        });
        for (ports, has_write, owned, ids, sent, header_only, is_it) in [
            (0_u32, 1, 1_u32, IDS, 0, 0, true),
            (443, 1, 1, IDS, 0, 0, false),
            (0, 0, 1, IDS, 0, 0, false),
            (0, 1, 0, IDS, 0, 0, false),
            (0, 1, 1, 8 << 32 | 8, 0, 0, false),
            // Others' bytes were first.
            (0, 1, 1, IDS, LEN, 0, false),
            (0, 1, 1, IDS, LEN, 1, true),
            (0, 1, 1, IDS, LEN + 20, 1, false),
        ] {
            Machine::with(|machine| machine.settings.tcp_header_only = header_only);
            memory::write(number(socket.address()) + SENT, u64::from(sent));
            memory::write(number(socket.address()) + PORTS, ports);
            connection.identity.set(socket.identity());
            connection.has_write.set(has_write);
            let mut task = Task::UNKNOWN;
            task.ids = ids;
            connection.write.set(1, task, 100);
            memory::write(number(socket.address()) + OWNED, owned);
            let is_first = is_first_of_call(socket, connection, LEN);
            assert_eq!(is_first, is_it, "{ports} {has_write} {owned} {ids:#x} {sent} {header_only}");
        }
    }

    /// It comes to its device while TCP lets the next one go.
    #[test]
    fn a_packet_that_waited_is_not_shown_with_what_the_next_one_is() {
        let needs = [
            (Barrier::Write, "another's"),
            (Barrier::ReadBefore, "another's"),
            (Barrier::InOrder, "the next one's end"),
        ];
        explore(&needs, || {
            let (socket, [first, second]) = kernel();
            let connection = connection::find_or_new(socket, socket.identity());
            let Ok(connection) = connection else { panic!("there is room") };
            let send = move |skb, seq| {
                // Nobody knows who wrote it.
                let _ = sent_by(socket, skb, connection, TcpSent { seq, len: 10, segs: 1 });
            };
            send(first, 100);
            let transmission = &connection.transmission;
            let transport = transmission.transport.get();
            order::share(transmission.skb.address());
            order::share(transmission.transport.address());
            race(move || send(second, 110), || segment_at_queue(first, socket, connection));
            assert!(transmission.is_in_flight(), "the next one's end");
            for record in ring::take_records::<PacketRecord>() {
                assert_eq!((record.stamps[STAMP_TRANSPORT], record.seq), (transport, 100), "another's");
            }
        });
    }

    /// The map evicts what is known of it, and gives its memory to another's.
    #[test]
    fn what_was_sent_first_is_not_of_a_segment_that_evicts_it() {
        explore(&[(Barrier::InOrder, "another's")], || {
            let (socket, [skb, _]) = kernel();
            let [key, other] = [100, 200].map(|seq| WriteKey::new(socket.address(), seq));
            RESENT.share(&[key, other], |resent| order::share(resent));
            RESENT.insert(&key, &Resent { last: 7, first: 1 }, 0).expect("room for it");
            let evict = move || {
                RESENT.remove(&key).expect("there");
                RESENT.insert(&other, &Resent { last: 7, first: 2 }, 0).expect("room for it");
            };
            let (_, sent) = race(evict, || first_send(socket, skb, 100));
            assert!([0, 1].contains(&sent), "another's");
        });
    }
}
