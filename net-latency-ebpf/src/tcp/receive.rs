//! In: TCP, application. Driver and IP come before ([`crate::ip`]).
//!
//! Up to TCP a packet is followed by the address of its skb ([`crate::skb_stamps`]), from TCP on by connection and sequence
//! number ([`super::segments`]).

use net_latency_common::{
    Counter, Direction, FLAG_COALESCED, FLAG_CONTROL, FLAG_GRO, IPPROTO_TCP, PARTS, PacketRecord, STAMPS,
};

#[cfg(feature = "fine")]
use super::in_flight;
use super::{
    connection::{self, Connection},
    segments::{self, Segment, SegmentKey, Waiting, Waits, segment_has_spilled},
    steps::{DONE, MISSED, MORE, RUN, batch, repeat},
    transmit,
};
use crate::{
    bpf::{cpu, now},
    emit::{
        counters::{self, HookResult},
        ring::{Finished, emit, emit_fine},
    },
    flow::{addresses::AddrPair, filter, settings::setting, untraced::FlowKey},
    ip,
    kernel::{
        memory::{Memory, Probed, number},
        sequence::before,
        skb::{Skb, TcpHeader},
        socket::{Identity, Socket},
        task::Task,
    },
    skb_stamps, udp,
};
#[cfg(feature = "fine")]
use crate::{
    emit::ring::is_fine,
    readers::{self, Reading, UNSEEN},
};

/// Beside the flags of a line in those of a segment: it came by a device that wasn't wanted. It is followed all
/// the same, since the next segment begins where it ends.
const UNWANTED: u16 = 1 << 15;

/// What TCP got.
struct Received {
    header: TcpHeader,
    pair: AddrPair,
    netns: u32,
    drv: u64,
    ip: u64,
    transport: u64,
    /// When it entered the stack last, if it did so more than once; else 0.
    last: u64,
    len: u32,
    ifindex: u32,
    mark: u32,
    segs: u16,
    flags: u16,
    /// Whether its device is wanted.
    is_wanted: bool,
}

/// TCP receives an skb (`tcp_v4_rcv`, `tcp_v6_rcv`), whose data starts at the TCP header.
#[inline(always)]
pub fn received<M: Memory>(skb: Skb<M>, family: u32) -> HookResult {
    let Some(headers) = skb.received_headers(family) else {
        return Ok(());
    };
    let (header, lengths, mark) = (headers.tcp, headers.lengths, headers.mark);
    let Some(len) = lengths.all.checked_sub(header.len) else {
        return Ok(());
    };
    if len == 0 && !filter::control() {
        skb_stamps::drop_in(skb.address());
        return Ok(());
    }
    if !filter::ports(header.source, header.destination) {
        return Err(Counter::RejectedIn);
    }
    // With a filter by process most packets go to others, and their time is not needed.
    let early = if filter::is_by_process() { 0 } else { now() };
    let known = headers.pair_v4;
    let pair = AddrPair::new(family, if known == 0 { skb.addresses(family) } else { [known, 0, 0, 0] });
    let (device, socket) = skb.owners();
    let (ifindex, netns) = Skb::<M>::device_at(device);
    if !filter::addresses(&pair) || !filter::netns(netns) {
        return Err(Counter::RejectedIn);
    }
    if filter::is_by_process() && len != 0 {
        let key = FlowKey::new(&pair, header.source, header.destination, netns);
        if key.is_untraced_at(header.seq.wrapping_add(len - 1)) {
            skb_stamps::drop_in(skb.address());
            return Err(Counter::RejectedIn);
        }
    }
    let transport = if filter::is_by_process() { now() } else { early };
    let (drv, ip) = skb_stamps::take_in(skb, skb.address(), transport);
    let (drv, last) = match ip::first_entry(skb, family, header.content, drv) {
        Some(first) => (first, drv),
        None => (drv, 0),
    };
    let merged = skb.gro_segments_of(lengths.paged);
    let (segs, flags) = if merged > 1 { (merged, FLAG_GRO) } else { (1, 0) };
    let is_wanted = filter::interface(skb);
    let received = Received {
        header,
        pair,
        netns,
        drv,
        ip,
        transport,
        last,
        len,
        ifindex,
        mark,
        segs,
        flags,
        is_wanted,
    };
    if len == 0 {
        return control(&received);
    }
    let flags = if received.is_wanted { received.flags } else { received.flags | UNWANTED };
    let address = number(skb.address());
    let key = |seq| SegmentKey::new(&received.pair, header.source, header.destination, received.netns, seq);
    let (seq, len) = match new_part(socket, &received) {
        Ok(part) => part,
        Err(counter) => {
            segments::came_for_nothing(&key(header.seq), address);
            return Err(counter);
        }
    };
    let Received { drv, ip, transport, last, ifindex, mark, segs, .. } = received;
    let waits = Waits { drv, ip, transport, last, len, ifindex, mark, segs, flags, skb: address };
    segments::store(header.seq, key(seq), waits)
}

/// A packet without data is complete here: no process reads it, so none can be named.
#[inline(always)]
fn control(received: &Received) -> HookResult {
    counters::one(Counter::ControlIn);
    if !filter::unknown() || !received.is_wanted {
        return Err(Counter::FilteredIn);
    }
    let stamps = [received.drv, received.ip, received.transport, 0];
    let (direction, protocol, flags) = (Direction::In, IPPROTO_TCP, received.flags | FLAG_CONTROL);
    let packet = Finished { direction, protocol, flags, stamps: &stamps };
    emit(
        &packet,
        || received.mark,
        || {
            // Before all else is loaded, which a call would drive out of its registers.
            let cpu = cpu() as u16;
            let (saddr, daddr) = received.pair.of_record(direction);
            PacketRecord {
                stamps,
                other: received.last,
                saddr,
                daddr,
                len: received.len,
                seq: received.header.seq,
                ifindex: received.ifindex,
                netns: received.netns,
                mark: received.mark,
                sport: received.header.source,
                dport: received.header.destination,
                segs: received.segs,
                cpu,
                flags,
                direction: direction as u8,
                protocol,
                family: received.pair.family as u8,
                ..PacketRecord::default()
            }
        },
    )
}

/// What of a packet its socket has not accepted yet: from which number on, and how many bytes; nothing if it has all of it. The socket is
/// known here by early demux (`tcp_v4_early_demux` and its like).
#[inline(always)]
fn new_part<M: Memory>(socket: Socket<M>, received: &Received) -> Result<(u32, u32), Counter> {
    let header = &received.header;
    let (mut seq, mut len) = (header.seq, received.len);
    // With TPROXY or `bpf_sk_assign` it may be a listener, which expects nothing.
    if let Some(tcp) = socket.tcp()
        && !socket.is_listening()
    {
        let expected = tcp.rcv_nxt();
        let end = seq.wrapping_add(len);
        if !before(expected, end) {
            // If they wait still, then with the stamps of the copy that brought them.
            return Err(Counter::DuplicateIn);
        }
        // In the backlog others come before it, and only later is it known which of its bytes are new.
        if before(seq, expected) && !socket.owned_by_task() {
            seq = expected;
            len = end.wrapping_sub(expected);
        }
    }
    Ok((seq, len))
}

/// An skb is dropped (tracepoint `kfree_skb`).
#[inline(always)]
pub fn dropped<M: Memory>(skb: Skb<M>) -> HookResult {
    let had_stamps = skb_stamps::forget(number(skb.address()), skb.shared_head()) != 0;
    ip::dropped(skb.address());
    udp::dropped(skb)?;
    transmit::dropped(skb);
    // Its transport would have taken them.
    if had_stamps { Ok(()) } else { segments::dropped(skb) }
}

/// A receive call has moved the socket's `copied_seq` (or has peeked and left it).
#[inline(always)]
pub fn taken<M: Memory>(socket: Socket<M>) -> HookResult {
    let identity = socket.identity();
    if !filter::socket(socket, &identity) {
        return Ok(());
    }
    let is_others = filter::is_by_process() && !(socket.owned_by_task() && filter::current());
    if is_others && FlowKey::of_socket(socket, &identity).is_untraced() {
        return Ok(());
    }
    let connection = connection::find_or_new(socket, identity)?;
    let result = taken_of(socket, connection, is_others);
    connection.settle(number(socket.address()));
    result
}

#[inline(always)]
fn taken_of<M: Memory>(socket: Socket<M>, connection: &Connection, is_others: bool) -> HookResult {
    let Some(tcp) = socket.known_tcp() else { return Ok(()) };
    let copied = tcp.copied_seq();
    let mut until = copied;
    if filter::is_by_process() {
        if !is_others {
            connection.mark_traced();
        } else if connection.is_traced.get() == 0 {
            let is_quiet = || !socket.has_backlog() && !tcp.has_gap();
            let Some(followed) = connection.mark_untraced(copied, tcp.rcv_nxt(), is_quiet) else {
                return Ok(());
            };
            until = followed;
        }
    }
    learn_start(socket, connection, copied);
    #[cfg(feature = "fine")]
    if is_fine() && !is_others && before(connection.taken_until.get(), copied) {
        connection.read(socket.owned_by_task());
    }
    if !before(connection.read_next.get(), until) {
        if connection.reports_late.get() == 0
            && let Some(skb) = Skb::first_received(socket)
        {
            begin_buffer(connection, skb, connection.taken_until.get());
        }
        connection.taken_until.set(until);
        connection.reports_late.set(0);
        return Ok(());
    }
    // Without an owner this is a kernel consumer in softirq, and the task only what it interrupted.
    let task = if socket.owned_by_task() { filter::current_task() } else { Task::UNKNOWN };
    note_taker(connection, task);
    note_drops(socket, connection);
    let copied = connection.taken_until.get();
    connection.taken_until.set(until);
    if filter::task(&task) {
        learn_buffer(socket, connection, copied);
    }
    let result = walk(number(socket.address()), Some(socket), connection, || first_step(connection));
    connection.reports_late.set(0);
    result
}

/// A task takes bytes now; 0 if this is not a task's call.
#[inline(always)]
fn note_taker(connection: &Connection, task: Task) {
    if connection.is_late.get() != 0 && connection.user.get() != task {
        // The rest was another task's, or this one's when it had another name, which can't be told any more.
        connection.read_next.set(connection.late_until.get());
        connection.is_late.set(0);
        counters::one(Counter::UnmatchedIn);
    }
    connection.user.set(task);
    connection.taken_at.set(now());
    #[cfg(feature = "fine")]
    if is_fine() {
        let at = connection.taken_at.get();
        connection.fine.reading.set(if task.ids == 0 { Reading::default() } else { readers::current(at) });
    }
}

/// A task has taken all before `until` from a socket of MPTCP. Before `unsure_until` it is unknown which byte came with which skb. Returns
/// whether that is more than was taken before.
#[inline(always)]
pub(super) fn note_taken(connection: &Connection, until: u32, unsure_until: u32, task: Task) -> bool {
    let is_more = before(connection.read_next.get(), until);
    if is_more {
        note_taker(connection, task);
        let next = connection.read_next.get();
        // An earlier call may have taken some.
        connection.taken_from.set(if connection.reports_late.get() == 0 { next } else { until });
        connection.skb_start.set(next);
        connection.skb_end.set(next);
        connection.sure_until.set(if before(next, unsure_until) { next } else { until });
    }
    connection.taken_until.set(until);
    connection.reports_late.set(0);
    is_more
}

/// Bytes that were read from a socket of MPTCP get their lines.
#[inline(always)]
pub(super) fn walk_as_far(connection: &Connection) -> HookResult {
    walk(connection.address.get(), None::<Socket<Probed>>, connection, || first_step(connection))
}

/// What waits at the socket at `address` waits no longer: it will not be read, or by a reader that is not followed (`is_given`).
#[inline(always)]
pub(super) fn forget_waiting(address: u64, is_given: bool) {
    let is_given = u32::from(is_given);
    repeat(segments::BATCHES_OF_ALL, || drop_batches(address, is_given));
}

/// A time in units of 2^20 ns, about a millisecond.
#[inline(always)]
fn coarse(ns: u64) -> u32 {
    (ns >> 20) as u32
}

/// Where TCP drops segments unseen, what came before it was found to have dropped any may be one of these.
#[inline(always)]
fn note_drops<M: Memory>(socket: Socket<M>, connection: &Connection) {
    if setting!(tcp_drops_unseen) == 0 {
        return;
    }
    let drops = socket.drops();
    if drops != connection.drops.get() {
        connection.drops.set(drops);
        connection.unproven_until.set(coarse(connection.taken_at.get()));
    }
}

/// Whether a segment at which the walk is was dropped, though that was not seen. The bytes that are read are those of an skb, and no segment
/// reaches beyond its skb: one of several copies is cut to that, of which one may have been evicted (`follows_evicted`). A copy that is not
/// read, and brought nothing more, waits for the lock or is dropped.
///
/// A function with a stack of its own, which is free again before there is a line.
#[inline(never)]
fn was_dropped(connection: &Connection, segment: &Segment, follows_evicted: bool) -> bool {
    segment.settle_len();
    let (next, skb_end) = (connection.read_next.get(), connection.skb_end.get());
    let is_within = is_in_buffer(connection, next);
    let is_unproven =
        connection.drops.get() != 0 && !before(connection.unproven_until.get(), coarse(segment.transport));
    if follows_evicted {
        let socket = Socket::<Probed>::new(connection.address.get() as *const u8);
        if (!is_within || is_unproven || socket.has_backlog()) && !is_first_in_queue(socket, segment) {
            segment.make_ambiguous();
        }
    }
    if !is_within || !before(skb_end, segment.end()) {
        return false;
    }
    if !segment.is_ambiguous() && is_unproven {
        return true;
    }
    if segment.is_ambiguous() || follows_evicted {
        segment.make_ambiguous();
        segment.len.set(skb_end.wrapping_sub(next));
    }
    false
}

/// Whether the receive queue of a socket begins with this segment's skb.
#[inline(always)]
fn is_first_in_queue<M: Memory>(socket: Socket<M>, segment: &Segment) -> bool {
    Skb::first_received(socket)
        .is_some_and(|skb| segment.came_with(number(skb.address())) && skb.tcp_cb_seq() == segment.key.seq)
}

/// A kernel function is about to take bytes from a socket's queue (`__tcp_read_sock`, for splice and the like;
/// `tcp_read_done`, for TLS). It says so when it is done, and has freed the skbs by then that tell where a first read began.
#[inline(always)]
pub fn reading<M: Memory>(socket: Socket<M>) -> HookResult {
    let Some(tcp) = socket.known_tcp() else { return Ok(()) };
    let identity = socket.identity();
    if !filter::socket(socket, &identity) {
        return Ok(());
    }
    let connection = connection::find_or_new(socket, identity)?;
    if filter::is_by_process() && socket.owned_by_task() && filter::current() {
        connection.mark_traced();
    }
    if connection.is_untraced.get() == 0 {
        let copied = tcp.copied_seq();
        learn_start(socket, connection, copied);
        learn_queue(socket, connection, copied);
    }
    connection.reports_late.set(1);
    connection.settle(number(socket.address()));
    #[cfg(feature = "fine")]
    if is_fine() && socket.owned_by_task() {
        return readers::asks();
    }
    Ok(())
}

/// TLS has taken bytes from a socket's queue (`tcp_read_done`), for a call that no hook sees.
#[inline(always)]
pub fn decrypting<M: Memory>(socket: Socket<M>) -> HookResult {
    let result = reading(socket);
    #[cfg(feature = "fine")]
    if is_fine() && socket.owned_by_task() {
        readers::asks_unseen();
    }
    result
}

/// At the first read of a socket that is seen: where its next segment starts.
#[inline(always)]
fn learn_start<M: Memory>(socket: Socket<M>, connection: &Connection, copied: u32) {
    if connection.read_known.get() == 0 {
        let start = first_unread(socket, copied);
        connection.read_next.set(start);
        connection.taken_until.set(start);
        connection.read_known.set(1);
    }
}

/// Which bytes are in the skb that is being read. A receive call reports each skb before it frees it, so that
/// this is the oldest one; where a caller reports later, it holds none of the bytes taken, and tells nothing. All before `copied` was
/// taken before.
#[inline(always)]
fn learn_buffer<M: Memory>(socket: Socket<M>, connection: &Connection, copied: u32) {
    if connection.reports_late.get() != 0 {
        connection.skb_end.set(connection.skb_start.get());
        return connection.taken_from.set(connection.read_next.get());
    }
    if let Some(skb) = Skb::first_received(socket) {
        begin_buffer(connection, skb, copied);
    } else {
        connection.skb_start.set(connection.taken_until.get());
        connection.skb_end.set(connection.taken_until.get());
    }
    connection.taken_from.set(connection.skb_start.get());
}

/// Whether the byte with this number is in the skb that is read, as far as its extent is known.
#[inline(always)]
fn is_in_buffer(connection: &Connection, seq: u32) -> bool {
    !before(seq, connection.skb_start.get()) && before(seq, connection.skb_end.get())
}

/// This skb is read, of which all before `copied` was read before.
#[inline(always)]
fn begin_buffer<M: Memory>(connection: &Connection, skb: Skb<M>, copied: u32) {
    let start = skb.tcp_cb_seq();
    let end = start.wrapping_add(skb.len());
    // What an earlier call left comes first.
    if connection.is_late.get() == 0 {
        // Else it is the one that was being read.
        if before(start, copied) && !before(copied, connection.sure_until.get()) {
            skip_read_part(connection, number(skb.address()), start, end);
        }
        connection.sure_until.set(end);
    }
    connection.skb_start.set(start);
    connection.skb_end.set(end);
}

/// The next bytes to read are in the skbs of the queue, which will be gone when the read is reported: notes how far they follow each other.
#[inline(always)]
fn learn_queue<M: Memory>(socket: Socket<M>, connection: &Connection, copied: u32) {
    /// Skbs that are looked at. Bytes in others count as ambiguous.
    const MOST: u32 = 8;
    let Some(mut skb) = Skb::first_received(socket) else { return };
    begin_buffer(connection, skb, copied);
    let mut end = connection.skb_end.get();
    let count = socket.received_skbs();
    let mut number = 1;
    while number < MOST && number < count {
        skb = skb.next();
        if skb.tcp_cb_seq() != end {
            break;
        }
        end = end.wrapping_add(skb.len());
        number += 1;
    }
    if connection.is_late.get() == 0 {
        connection.sure_until.set(end);
    }
}

/// An skb has bytes at its beginning that came before, and that were read with those: TCP reads the rest of it only. What waits under the
/// number of that rest is another segment, in which it came as well.
///
/// A function with a stack of its own: it is rare.
#[inline(never)]
fn skip_read_part(connection: &Connection, skb: u64, start: u32, end: u32) {
    if trim_next(connection.address.get(), skb, start) == MISSED {
        connection.read_next.set(end);
        #[cfg(feature = "fine")]
        connection.fine.unsure_until.set(now());
        counters::one(Counter::UnmatchedIn);
    }
}

/// The start of the oldest skb in the receive queue, if it lies before `copied`; else `copied`.
#[inline(always)]
fn first_unread<M: Memory>(socket: Socket<M>, copied: u32) -> u32 {
    match Skb::first_received(socket) {
        Some(skb) => {
            let seq = skb.tcp_cb_seq();
            if before(seq, copied) { seq } else { copied }
        }
        None => copied,
    }
}

/// Gives the lines of all segments that start before `taken_until`; `first` takes the first step. `queue` is the socket whose queue has
/// what comes behind them, if that is known.
#[inline(always)]
fn walk<M: Memory>(
    address: u64,
    queue: Option<Socket<M>>,
    connection: &Connection,
    first: impl FnOnce() -> u32,
) -> HookResult {
    let until = connection.taken_until.get();
    let mut found = DONE;
    if before(connection.read_next.get(), until) {
        // Nearly always it is the only one.
        found = first();
        if found == MORE {
            found = repeat(if cfg!(test) { 1 } else { RUN }, || take_batch(address));
        }
    }
    let mut result = Ok(());
    if found == MISSED {
        let start = queue.map_or(until, |socket| first_unread(socket, until));
        // Not seen on arrival, or evicted: go on at the next skb, whose start is a segment's. The next read of this one need not begin
        // where a segment does.
        let is_within = connection.reports_late.get() == 0 && is_in_buffer(connection, until);
        let behind = if is_within { connection.skb_end.get() } else { until };
        connection.read_next.set(if before(connection.read_next.get(), start) { start } else { behind });
        if start == until && queue.is_some_and(|socket| is_all_read(socket, until)) {
            segments::settle_share(&next_key(connection));
        }
        #[cfg(feature = "fine")]
        connection.fine.unsure_until.set(connection.taken_at.get());
        result = Err(Counter::UnmatchedIn);
    }
    let next = connection.read_next.get();
    let is_behind = before(next, until);
    if is_behind && connection.is_late.get() != 0 && before(next, connection.late_until.get()) {
        // Not even the earlier rest is through; what this call took as well would get a wrong time.
        connection.read_next.set(until);
        connection.is_late.set(0);
        return Err(Counter::UnmatchedIn);
    }
    connection.is_late.set(u32::from(is_behind));
    if is_behind {
        connection.late_until.set(until);
        connection.late_at.set(connection.taken_at.get());
    }
    result
}

/// Whether all that a socket has got was read up to this number.
#[inline(always)]
fn is_all_read<M: Memory>(socket: Socket<M>, until: u32) -> bool {
    !socket.has_backlog() && socket.known_tcp().is_some_and(|tcp| tcp.rcv_nxt() == until && !tcp.has_gap())
}

/// The fine stages of a segment that was taken at `app`. One that was left from an earlier call has none: that call's reader is not known
/// any more.
#[cfg(feature = "fine")]
#[inline(always)]
fn parts(connection: &Connection, segment: &Segment, app: u64) -> [u64; PARTS] {
    let fine = &connection.fine;
    let complete = fine.complete_at.get();
    let readable = if complete > segment.transport { complete } else { segment.transport };
    if segment.is_ambiguous() || readable < fine.unsure_until.get() || app != connection.taken_at.get() {
        return UNSEEN;
    }
    fine.reading.get().parts(segment.transport, readable, app)
}

/// Which process had the CPU of the thread that took last before that got it. Says something where the thread waited for it.
#[cfg(feature = "fine")]
#[inline(always)]
fn holder(connection: &Connection) -> u32 {
    connection.fine.reading.get().holder as u32
}

#[cfg(not(feature = "fine"))]
#[inline(always)]
fn holder(_: &Connection) -> u32 {
    0
}

#[cfg(not(feature = "fine"))]
#[inline(always)]
fn parts(_: &Connection, _: &Segment, _: u64) -> [u64; PARTS] {
    [0; PARTS]
}

/// The walk is past a segment: those that follow could not be read before it came.
#[cfg(feature = "fine")]
#[inline(always)]
fn note_complete(connection: &Connection, segment: &Segment) {
    if !is_fine() {
        return;
    }
    let fine = &connection.fine;
    if segment.is_ambiguous() {
        fine.unsure_until.set(connection.taken_at.get());
    } else if segment.transport > fine.complete_at.get() {
        fine.complete_at.set(segment.transport);
    }
}

#[cfg(not(feature = "fine"))]
#[inline(always)]
fn note_complete(_: &Connection, _: &Segment) {}

batch!(
    /// Steps along the waiting segments of the socket at `address`. A run gives far more lines than an skb can absorb. What a call takes
    /// beyond that (`tcp_read_sock` reports once for many skbs) keeps its time and comes with the next run of the program.
    take_batch = take_step(address: u64)
);

/// One step along the waiting segments of the socket at `address`: the next one gets its line.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn take_step(address: u64) -> u32 {
    let Some(connection) = connection::at(address) else { return DONE };
    let Some(waiting) = segments::waiting(&next_key(connection)) else { return MISSED };
    let is_its = || {
        let spilled = waiting.spilled_key();
        (spilled == 0 || segment_has_spilled(spilled) != 0) && connection.is_of(address)
    };
    let found = step(connection, &waiting, is_its);
    if connection.is_of(address) {
        segments::remove(&waiting);
        return found;
    }
    segments::evict(&waiting);
    DONE
}

/// The first step of a walk, which has no need to find its connection. It leaves to others what may be evicted meanwhile.
///
/// A function with a stack of its own, which is free again before there are more steps.
#[inline(never)]
fn first_step(connection: &Connection) -> u32 {
    if connection.stays.get() == 0 {
        return MORE;
    }
    let Some(waiting) = segments::waiting_in_slot(&next_key(connection)) else { return MORE };
    let found = step(connection, &waiting, || true);
    segments::remove(&waiting);
    found
}

/// The segment at which the walk is gets its line; `is_its` says whether what that was made of has not been evicted.
#[inline(always)]
fn step(connection: &Connection, waiting: &Waiting, is_its: impl Fn() -> bool) -> u32 {
    let next = connection.read_next.get();
    let segment = waiting.segment();
    let is_of_earlier = connection.is_late.get() != 0 && before(next, connection.late_until.get());
    if !before(next, connection.sure_until.get()) {
        segment.make_ambiguous();
    }
    let follows_evicted = waiting.may_follow_evicted();
    let is_doubtful = follows_evicted || setting!(tcp_drops_unseen) != 0 || segment.is_ambiguous();
    if is_doubtful && was_dropped(connection, segment, follows_evicted) {
        counters::one(Counter::DroppedIn);
        return MISSED;
    }
    let is_unseen = !is_of_earlier && before(next, connection.taken_from.get());
    let task = if is_unseen { Task::UNKNOWN } else { connection.user.get() };
    if !filter::task(&task) || segment.flags.get() & UNWANTED != 0 {
        counters::one(Counter::FilteredIn);
    } else if is_unseen && segment.is_ambiguous() {
        // Neither which call took it is known, nor which copy that was.
        counters::one(Counter::NotFollowedIn);
    } else {
        let app = if is_of_earlier {
            connection.late_at.get()
        } else if is_unseen {
            0
        } else {
            connection.taken_at.get()
        };
        // A segment that doesn't start its buffer was appended to it.
        let is_appended = before(connection.skb_start.get(), next) && before(next, connection.skb_end.get());
        let flags = segment.flags.get() | if is_appended { FLAG_COALESCED } else { 0 };
        let stamps = stamps(segment, app);
        let packet = Finished { direction: Direction::In, protocol: IPPROTO_TCP, flags, stamps: &stamps };
        let record = || record(connection, segment, &packet, &task);
        let parts = || parts(connection, segment, app);
        if let Err(counter) = emit_fine(&packet, || segment.mark, record, parts, is_its) {
            counters::one(counter);
        }
    }
    note_complete(connection, segment);
    // Nearly always there is one segment, and a step that finds no more costs lookups.
    let end = segment.end();
    let is_last = !before(end, connection.taken_until.get());
    connection.read_next.set(end);
    if is_last { DONE } else { MORE }
}

/// The segment of the socket at `address` that begins at `start` and came with this skb is the next one without its first bytes, which came
/// again with the missing ones before them: TCP reads only the rest of it.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn trim_next(address: u64, skb: u64, start: u32) -> u32 {
    let Some(connection) = connection::at(address) else { return MISSED };
    let next = connection.read_next.get();
    if !before(start, next) {
        return MISSED;
    }
    let Some(waiting) = segments::waiting(&key_at(connection, start)) else { return MISSED };
    if segments::trim(&waiting, skb, next) { MORE } else { MISSED }
}

batch!(
    /// Steps along the segments of the socket at `address` that no application takes, or MPTCP does (`is_given` is 1).
    drop_batch = drop_step(address: u64, is_given: u32)
);
batch!(
    /// Batches of these steps.
    drop_batches = drop_batch(address: u64, is_given: u32)
);

/// One of these steps: the next segment is forgotten.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn drop_step(address: u64, is_given: u32) -> u32 {
    let Some(connection) = connection::at(address) else { return DONE };
    let Some(waiting) = segments::waiting(&next_key(connection)) else { return DONE };
    let segment = waiting.segment();
    segment.settle_len();
    connection.read_next.set(segment.end());
    segments::remove(&waiting);
    counters::one(if is_given == 0 { Counter::UnreadIn } else { Counter::NotFollowedIn });
    MORE
}

/// The key of the segment at which the walk along the waiting ones is. Only the holder of the socket's lock, which is the caller, takes it
/// out, but for a full map.
#[inline(always)]
fn next_key(connection: &Connection) -> SegmentKey {
    key_at(connection, connection.read_next.get())
}

/// What tells the segment that begins with this byte.
#[inline(always)]
fn key_at(connection: &Connection, seq: u32) -> SegmentKey {
    let identity = connection.identity.get();
    let (remote_port, local_port) = (identity.remote_port(), identity.local_port());
    SegmentKey::new(&connection.addresses.get(), remote_port, local_port, connection.netns.get(), seq)
}

/// The stamps of a segment that was taken at `app`, as far as they are known to be its own.
#[inline(always)]
fn stamps(segment: &Segment, app: u64) -> [u64; STAMPS] {
    if segment.is_ambiguous() { [0, 0, 0, app] } else { [segment.drv, segment.ip, segment.transport, app] }
}

#[inline(always)]
fn record(connection: &Connection, segment: &Segment, packet: &Finished<'_>, task: &Task) -> PacketRecord {
    // Before all else is loaded, which a call would drive out of its registers.
    let cpu = cpu() as u16;
    let addresses = connection.addresses.get();
    let (saddr, daddr) = addresses.of_record(packet.direction);
    PacketRecord {
        stamps: *packet.stamps,
        other: if segment.is_ambiguous() { 0 } else { segment.last },
        saddr,
        daddr,
        comm: task.comm(),
        process: task.process(),
        pid: task.pid(),
        tid: task.tid(),
        len: segment.len.get(),
        seq: segment.key.seq,
        ifindex: segment.ifindex,
        netns: segment.key.netns,
        mark: segment.mark,
        sport: segment.key.remote_port,
        dport: segment.key.local_port,
        segs: segment.segs,
        cpu,
        flags: packet.flags,
        direction: packet.direction as u8,
        protocol: packet.protocol,
        family: addresses.family as u8,
        rtt_or_holder: holder(connection),
        ..PacketRecord::default()
    }
}

/// A subflow has bytes for MPTCP, which are read at an unknown time: all that TCP has put in order is taken by that.
#[inline(always)]
pub(super) fn given<M: Memory>(socket: Socket<M>, identity: Identity) -> HookResult {
    let connection = connection::find_or_new(socket, identity)?;
    if let Some(tcp) = socket.known_tcp() {
        learn_start(socket, connection, tcp.copied_seq());
        forget_waiting(connection.address.get(), true);
        connection.read_next.set(tcp.rcv_nxt());
        connection.taken_until.set(tcp.rcv_nxt());
    }
    connection.settle(number(socket.address()));
    Ok(())
}

/// A socket is destroyed that has got bytes which no process has read: it has an entry, which says where they begin. It has none before
/// if no process has used it.
///
/// A function with a stack of its own, which is free again before they are walked along.
#[inline(never)]
fn begin_unread<M: Memory>(socket: Socket<M>) -> HookResult {
    let Some(tcp) = socket.known_tcp() else { return Ok(()) };
    let connection = match connection::find(socket) {
        Some(connection) => connection,
        None => {
            // The port was given back (`inet_put_port`).
            let identity = socket.identity().of_port(tcp.source_port());
            if !filter::socket(socket, &identity) {
                return Ok(());
            }
            connection::find_or_new(socket, identity)?
        }
    };
    learn_start(socket, connection, tcp.copied_seq());
    Ok(())
}

/// The kernel destroys a socket: bytes that were read get their lines, the rest is counted.
#[inline(always)]
pub fn closed<M: Memory>(socket: Socket<M>) -> HookResult {
    let Some(tcp) = socket.known_tcp() else { return Ok(()) };
    if tcp.copied_seq() != tcp.rcv_nxt() {
        begin_unread(socket)?;
    }
    let Some(connection) = connection::find(socket) else { return Ok(()) };
    let mut result = Ok(());
    if connection.is_late.get() != 0 {
        result = walk(number(socket.address()), Some(socket), connection, || MORE);
    }
    if filter::is_by_process() && connection.is_traced.get() == 0 {
        connection.flow_key().mark_traced();
    }
    #[cfg(feature = "fine")]
    in_flight::give_up(connection);
    // When a packet that waits for its neighbour's address goes on, nothing is known of it.
    connection.transmission.give_up();
    if connection.read_known.get() != 0 && connection.is_untraced.get() == 0 {
        let address = connection.address.get();
        forget_waiting(address, false);
    }
    connection::remove(socket);
    result
}

#[cfg(test)]
mod tests {
    use net_latency_common::Offsets;

    use super::*;
    use crate::{
        bpf::host::{Machine, memory},
        kernel::memory::Probed,
    };

    fn connection() -> &'static Connection {
        Machine::reset();
        let socket = Socket::<Probed>::new(core::ptr::null());
        let Ok(connection) = connection::find_or_new(socket, socket.identity()) else {
            panic!("there is room")
        };
        connection
    }

    /// A read had more segments than one run of a program gives lines: the next call of the same task goes on with them.
    #[test]
    fn what_a_read_left_is_of_the_task_that_read_it() {
        let connection = connection();
        let [mut reader, mut other] = [Task::UNKNOWN; 2];
        (reader.ids, other.ids) = (7, 8);
        for (is_late, task, next, lost) in
            [(1, reader, 100, 0), (0, other, 100, 0), (1, other, 200, 1), (0, reader, 100, 0)]
        {
            connection.user.set(reader);
            connection.is_late.set(is_late);
            connection.read_next.set(100);
            connection.late_until.set(200);
            let before = counters::total().get(Counter::UnmatchedIn);
            note_taker(connection, task);
            let after = counters::total().get(Counter::UnmatchedIn);
            assert_eq!((connection.read_next.get(), after - before), (next, lost), "{is_late} {}", task.ids);
        }
    }

    /// What a socket has dropped says something only where that is not seen.
    #[test]
    fn what_came_before_drops_is_unproven_where_they_are_not_seen() {
        const AT: u64 = 50 << 20;
        for (drops_unseen, noted) in [(1, (3, 50)), (0, (0, 0))] {
            let connection = connection();
            let sock = memory::take(memory::slab(64));
            memory::write(sock + 8, 3_u32);
            Machine::with(|machine| {
                machine.offsets = Offsets { sock_sk_drops: 8, ..Offsets::default() };
                machine.settings.tcp_drops_unseen = drops_unseen;
            });
            connection.taken_at.set(AT);
            note_drops(Socket::<Probed>::new(sock as *const u8), connection);
            assert_eq!((connection.drops.get(), connection.unproven_until.get()), noted, "{drops_unseen}");
        }
    }

    /// The socket of this connection, with the lengths of its backlog at 32 and of its queue at 24, and the one skb there, with its number at 8.
    fn queue_of(connection: &Connection) -> (u64, u64) {
        let [sock, skb] = [(); 2].map(|()| memory::take(memory::slab(64)));
        Machine::with(|machine| {
            machine.offsets = Offsets {
                sock_sk_receive_queue: 8,
                sock_sk_backlog_len: 32,
                tcp_skb_cb_seq: 8,
                ..Offsets::default()
            };
        });
        connection.address.set(sock);
        memory::write(sock + 8, skb);
        memory::write(sock + 24, 1_u32);
        (sock, skb)
    }

    /// Where TCP drops unseen, a segment that reaches beyond its skb may have been dropped, and what is read there came after it: if the socket
    /// has dropped any since.
    #[test]
    fn what_reaches_beyond_its_skb_may_have_been_dropped() {
        const START: u32 = 1_000;
        const AT: u64 = 50 << 20;
        let connection = connection();
        let (_, skb) = queue_of(connection);
        connection.skb_start.set(START);
        connection.skb_end.set(START + 100);
        for (start, len, drops, until, was) in [
            (START, 101, 1, 50, true),
            (START, 101, 1, 51, true),
            (START, 101, 1, 49, false),
            (START, 101, 0, 50, false),
            (START, 100, 1, 50, false),
            (START + 99, 2, 1, 50, true),
            (START + 100, 2, 1, 50, false),
            (START - 1, 200, 1, 50, false),
        ] {
            connection.read_next.set(start);
            connection.drops.set(drops);
            connection.unproven_until.set(until);
            // SAFETY: numbers only, for which 0 is a value.
            let mut segment: Segment = unsafe { core::mem::zeroed() };
            (segment.key.seq, segment.transport) = (start, AT);
            segment.len.set(len);
            segment.longest.set(len);
            segment.skb.set((skb >> 3) as u32);
            memory::write(skb + 8, start);
            assert_eq!(was_dropped(connection, &segment, false), was, "{start} {len} {drops} {until}");
            assert_eq!((segment.len.get(), segment.is_ambiguous()), (len, false));
            // One of several copies, as one that may be, ends where its skb does.
            let is_cut = !was && (START..START + 100).contains(&start) && start + len > START + 100;
            let cut = if is_cut { START + 100 - start } else { len };
            assert_eq!(was_dropped(connection, &segment, true), was);
            assert_eq!((segment.len.get(), segment.is_ambiguous()), (cut, is_cut), "{start} {len}");
            segment.make_ambiguous();
            assert!(!was_dropped(connection, &segment, false));
            let is_cut = is_cut || was;
            assert_eq!(segment.len.get(), if is_cut { START + 100 - start } else { len }, "{start} {len}");
        }
    }

    /// Where a copy may have been evicted, the skb shows which one is read, while that is the first of the queue. Else a copy may wait for the
    /// lock, or have been dropped unseen.
    #[test]
    fn a_segment_that_follows_an_evicted_one_is_known_by_its_skb() {
        const START: u32 = 1_000;
        const LATER: u32 = 1_010;
        let connection = connection();
        let (sock, skb) = queue_of(connection);
        connection.read_next.set(START);
        connection.skb_start.set(START);
        for (waiting, first, came_with, skb_end, backlog, drops, is_known) in [
            (1_u32, START, skb, START, 0_u32, 0, true),
            (0, START, skb, START, 0, 0, false),
            (1, LATER, skb, START, 0, 0, false),
            (1, START, skb + 64, START, 0, 0, false),
            (1, START, skb, LATER, 1, 1, true),
            (1, LATER, skb, LATER, 0, 0, true),
            (1, LATER, skb, LATER, 1, 0, false),
            (1, LATER, skb, LATER, 0, 1, false),
        ] {
            connection.skb_end.set(skb_end);
            connection.drops.set(drops);
            memory::write(sock + 32, backlog);
            memory::write(sock + 24, waiting);
            memory::write(skb + 8, first);
            // SAFETY: as above.
            let mut segment: Segment = unsafe { core::mem::zeroed() };
            segment.key.seq = START;
            segment.skb.set((came_with >> 3) as u32);
            assert!(!was_dropped(connection, &segment, true));
            let case = (waiting, first, came_with, skb_end, backlog, drops);
            assert_eq!(segment.is_ambiguous(), !is_known, "{case:?}");
        }
    }
}
