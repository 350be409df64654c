//! The way in: driver, IP, TCP, application.
//!
//! Up to TCP a packet is followed by the address of its skb ([`crate::passing`]): every hook by which an skb enters the
//! stack starts that address anew; a packet that enters again after it was forwarded is recognised by its
//! content. From TCP on it is followed by connection and sequence number, since
//! `tcp_try_coalesce` and friends free the skb and keep its bytes.

use core::ptr;

use aya_ebpf::bindings::BPF_NOEXIST;
use net_latency_common::{
    AF_INET, Counter, Direction, FLAG_AMBIGUOUS, FLAG_COALESCED, FLAG_CONTROL, FLAG_GRO, IPPROTO_TCP,
    PacketRecord, SEGMENT_SIZE, STAMPS,
};

use crate::{
    Outcome, before,
    connection::{self, Connection},
    count, datagram,
    emit::{addresses, cpu, emit},
    filter, foreign,
    maps::{EXAMINED, FORWARDED, HAS_FORWARDED, SEGMENTS},
    memory::{Memory, copy_words},
    now,
    passing::{self, Stage},
    skb::Skb,
    socket::{Ends, Socket},
    steps::{BATCH, DONE, MISSED, MORE, repeat},
    task::Task,
};

/// Lines that one run of a program gives at most, in batches: far more than an skb can absorb. What a call takes
/// beyond that (`tcp_read_sock` reports once for many skbs) keeps its time and comes with the next run.
const BATCHES_PER_RUN: u32 = 512 / BATCH;

/// Beside the flags of a line in those of a segment: it came by a device that wasn't asked for. It is followed all
/// the same, since the next segment begins where it ends.
const UNWANTED: u16 = 1 << 15;

/// A packet that this machine forwarded, and that may enter its stack again (another namespace's, on the way
/// to a container). Whether an skb that comes under this address is that packet, only its content can tell:
/// drivers free skbs where no hook sees it. So this stays when the address starts anew.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Forwarded {
    /// When it entered the stack for the first time.
    drv: u64,
    /// What of its content neither forwarding nor address translation changes: see `TcpHeader`. 0 for none.
    content: u64,
    /// Its hop limit before it was forwarded last. Sets the packet apart from a copy that TCP sends again.
    hops: u64,
}

/// A received segment by connection and position.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Place {
    /// Both addresses: an IPv4 pair itself, an IPv6 pair mixed into 64 bits.
    addresses: u64,
    remote_port: u16,
    local_port: u16,
    seq: u32,
    netns: u32,
    family: u32,
}

/// A received segment that the application has not taken.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Segment {
    /// Whose entry this is: the map's key is a mixture of it.
    place: Place,
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
}

/// A segment that TCP works on.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Examined {
    skb: u64,
    place: Place,
    /// As its header says; the place may begin later.
    seq: u32,
    /// What to do if TCP drops it.
    on_drop: OnDrop,
}

/// What the drop of a segment means for the entry of its place. The skb's address in the entry could not tell: a
/// copy may have the address that the first one had.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum OnDrop {
    /// Nothing, or nothing that is known.
    Keep = 0,
    /// The entry is this segment's.
    Forget = 1,
    /// This is the second copy: the first one is what waits.
    Trust = 2,
}

const _: () = assert!(size_of::<Segment>() == SEGMENT_SIZE, "the user side names the size");

impl Place {
    /// The place of a connection's segments, but for `seq`.
    #[inline(always)]
    fn of(connection: &Connection) -> Self {
        let identity = &connection.identity;
        Self::new(&connection.ends, identity.remote_port(), identity.local_port(), connection.netns)
    }

    #[inline(always)]
    fn new(ends: &Ends, remote_port: u16, local_port: u16, netns: u32) -> Self {
        Self { addresses: mix(ends), remote_port, local_port, seq: 0, netns, family: ends.family }
    }

    /// The key in [`SEGMENTS`], of a quarter of the size: the kernel goes through a key once for each operation. No two places of
    /// a connection have the same.
    #[inline(always)]
    fn key(&self) -> u64 {
        // Any odd constants with bits all over.
        const FIRST: u64 = 0x9e37_79b9_7f4a_7c15;
        const SECOND: u64 = 0xc2b2_ae3d_27d4_eb4f;
        let position =
            u64::from(self.remote_port) << 48 | u64::from(self.local_port) << 32 | u64::from(self.seq);
        (self.addresses ^ u64::from(self.netns) << 32).wrapping_mul(FIRST).rotate_left(32)
            ^ position.wrapping_mul(SECOND)
    }
}

/// Both addresses in one word, for keys.
#[inline(always)]
pub(crate) fn mix(ends: &Ends) -> u64 {
    // The 64-bit FNV prime; any odd constant with bits all over spreads as well.
    const PRIME: u64 = 0x0100_0000_01b3;
    let [a, b, c, d] = ends.addresses;
    if ends.family == AF_INET {
        return a;
    }
    let mut sum = a;
    for word in [b, c, d] {
        sum = (sum ^ (sum >> 29)).wrapping_mul(PRIME).wrapping_add(word);
    }
    sum
}

/// An skb enters the stack from its driver: its address starts a new life.
#[inline(always)]
pub fn arrived<M: Memory>(skb: Skb<M>) -> Outcome {
    passing::stamp(skb.address(), Stage::Arrived);
    Ok(())
}

/// IP receives an skb.
#[inline(always)]
pub fn at_ip<M: Memory>(skb: Skb<M>) -> Outcome {
    passing::stamp(skb.address(), Stage::IpIn);
    Ok(())
}

/// This machine forwards an skb (`ip_forward`, `ip6_forward`), which it may soon receive again.
#[inline(always)]
pub fn forwarded<M: Memory>(skb: Skb<M>, family: u32) -> Outcome {
    let Some(passing) = passing::of(skb.address()) else { return Ok(()) };
    let drv = passing.arrived(now());
    let content = skb.forwarded_content(family);
    let (_, hops) = skb.protocol_and_hops(family);
    if let Some(entry) = FORWARDED.get_ptr_mut(skb.address()) {
        // SAFETY: an skb is in one CPU's hands at a time.
        let before = unsafe { &mut *entry };
        let is_forwarded_again = before.content == content && before.hops == hops + 1;
        if !is_forwarded_again {
            before.drv = drv;
        }
        before.content = if before.drv == 0 { 0 } else { content };
        before.hops = hops;
        return Ok(());
    }
    if drv == 0 || content == 0 {
        return Ok(());
    }
    if let Some(has_forwarded) = HAS_FORWARDED.get_ptr_mut(0) {
        // SAFETY: index 0 of an array is valid, and all write the same.
        unsafe { *has_forwarded = 1 };
    }
    FORWARDED.insert(skb.address(), &Forwarded { drv, content, hops }, 0).map_err(|_| Counter::StampLost)
}

/// The stamps of an skb that its transport receives, which from now on belong to no packet: the last entry into the stack,
/// and IP.
#[inline(always)]
pub(crate) fn take_arrival<M: Memory>(skb: Skb<M>, now: u64) -> (u64, u64) {
    passing::of(skb.address()).map_or((0, 0), |passing| passing.take_in(now))
}

/// The same where nobody asks for them.
#[inline(always)]
fn drop_arrival<M: Memory>(skb: Skb<M>) {
    if let Some(passing) = passing::of(skb.address()) {
        passing.drop_in();
    }
}

/// When the packet with this content entered the stack for the first time, if it was forwarded since.
#[inline(always)]
fn first_entry<M: Memory>(skb: Skb<M>, family: u32, content: u64) -> Option<u64> {
    // SAFETY: index 0 of an array is valid.
    if content == 0 || HAS_FORWARDED.get_ptr(0).is_none_or(|is_so| unsafe { *is_so } == 0) {
        return None;
    }
    // SAFETY: as in `forwarded`.
    let forwarded = unsafe { &mut *FORWARDED.get_ptr_mut(skb.address())? };
    if forwarded.content != content {
        return None;
    }
    let (_, hops) = skb.protocol_and_hops(family);
    forwarded.content = 0;
    (forwarded.hops == hops + 1).then_some(forwarded.drv)
}

/// TCP receives an skb (`tcp_v4_rcv`, `tcp_v6_rcv`), whose data starts at the TCP header.
#[inline(always)]
pub fn at_transport<M: Memory>(skb: Skb<M>, family: u32) -> Outcome {
    let Some(examined) = EXAMINED.get_ptr_mut(0) else { return Ok(()) };
    // What was there says nothing of this packet, whose address may be the same.
    // SAFETY: index 0 of a per-CPU array is valid; what a task that runs between leaves here is checked before
    // use (see `dropped`).
    unsafe { (*examined).skb = 0 };
    let Some((header, known_addresses)) = skb.received_headers(family) else {
        return Ok(());
    };
    let Some(len) = skb.len().checked_sub(header.len) else {
        return Ok(());
    };
    if len == 0 && !filter::control() {
        drop_arrival(skb);
        return Ok(());
    }
    if !filter::ports(header.source, header.destination) {
        return Err(Counter::RejectedIn);
    }
    // Of most packets, which others get, the time is not asked for.
    let early = if filter::is_by_process() { 0 } else { now() };
    let addresses_of_both = known_addresses.unwrap_or_else(|| skb.addresses(family));
    let ends = Ends { family, reserved: 0, addresses: addresses_of_both };
    let (ifindex, netns) = skb.device();
    if !filter::ends(&ends) || !filter::netns(netns) {
        return Err(Counter::RejectedIn);
    }
    if filter::is_by_process() && len != 0 {
        let key = foreign::Key::new(&ends, header.source, header.destination, netns);
        if key.leaves_alone(header.seq) {
            drop_arrival(skb);
            return Err(Counter::RejectedIn);
        }
    }
    let transport = if filter::is_by_process() { now() } else { early };
    let (drv, ip) = take_arrival(skb, transport);
    let (drv, last) = match first_entry(skb, family, header.content) {
        Some(first) => (first, drv),
        None => (drv, 0),
    };
    let merged = skb.gro_segments();
    let (segs, flags) = if merged > 1 { (merged, FLAG_GRO) } else { (1, 0) };
    let mark = skb.mark();
    let is_wanted = filter::interface(skb);

    if len == 0 {
        count::one(Counter::ControlIn);
        // Nobody takes it, so that no process can be named.
        if !filter::unknown() || !is_wanted {
            return Err(Counter::FilteredIn);
        }
        let stamps = [drv, ip, transport, 0];
        return emit(Direction::In, &stamps, mark, || {
            let (saddr, daddr) = addresses(&ends, Direction::In);
            PacketRecord {
                stamps,
                other: last,
                saddr,
                daddr,
                comm: Task::UNKNOWN.comm(),
                pid: 0,
                tid: 0,
                len,
                seq: header.seq,
                ifindex,
                netns,
                mark,
                sport: header.source,
                dport: header.destination,
                segs,
                cpu: cpu(),
                flags: flags | FLAG_CONTROL,
                direction: Direction::In as u8,
                protocol: IPPROTO_TCP,
                family,
                reserved: 0,
            }
        });
    }

    let mut place = Place::new(&ends, header.source, header.destination, netns);
    place.seq = header.seq;
    let flags = if is_wanted { flags } else { flags | UNWANTED };
    let mut segment = Segment { place, drv, ip, transport, last, len, ifindex, mark, segs, flags };
    // The socket is known here by early demux (`tcp_v4_early_demux` and its like).
    if let Some(tcp) = skb.socket().tcp() {
        let expected = tcp.rcv_nxt();
        let end = header.seq.wrapping_add(len);
        if !before(expected, end) {
            // TCP has all its bytes; if they wait still, then with the stamps of the copy that brought them.
            return Err(Counter::DuplicateIn);
        }
        if before(header.seq, expected) {
            // TCP takes what is new of it.
            segment.place.seq = expected;
            segment.len = end.wrapping_sub(expected);
        }
    }
    // SAFETY: as above. How it copies: `copy_words`.
    unsafe {
        copy_words(&raw const segment.place, &raw mut (*examined).place);
        (*examined).skb = skb.address();
        (*examined).seq = header.seq;
        (*examined).on_drop = OnDrop::Keep;
    }
    let key = segment.place.key();
    if SEGMENTS.insert(key, &segment, u64::from(BPF_NOEXIST)).is_ok() {
        // SAFETY: as above.
        unsafe { (*examined).on_drop = OnDrop::Forget };
        count::one(Counter::Stored);
        return Ok(());
    }
    let Some(entry) = SEGMENTS.get_ptr_mut(key) else { return Err(Counter::MapFull) };
    // SAFETY: as below.
    if unsafe { (*entry).place } != segment.place {
        // One in 2^64.
        return Err(Counter::MapFull);
    }
    // A copy of a segment that waits, and TCP is not known to have accepted that: either may be read, unless
    // this one is dropped at once.
    // SAFETY: entries stay mapped while a program runs, and one CPU at a time has a connection's packets.
    unsafe {
        if (*entry).len < segment.len {
            // TCP has joined segments to send them again. The entry stands for either from now on.
            (*entry).len = segment.len;
        } else if (*entry).flags & FLAG_AMBIGUOUS == 0 {
            (*examined).on_drop = OnDrop::Trust;
        }
        (*entry).flags |= FLAG_AMBIGUOUS;
    }
    Err(Counter::DuplicateIn)
}

/// An skb is dropped (tracepoint `kfree_skb`): what it brought will not be taken.
///
/// Of TCP's drops this sees those that happen at once; where a socket was busy, its segments wait on its
/// backlog and other skbs are examined meanwhile. `tcp_drop` is silent before Linux 5.18.
#[inline(always)]
pub fn dropped<M: Memory>(skb: Skb<M>) -> Outcome {
    datagram::dropped(skb.address())?;
    let Some(examined) = EXAMINED.get_ptr(0) else { return Ok(()) };
    // SAFETY: index 0 of a per-CPU array is valid.
    let examined = unsafe { &*examined };
    if examined.skb != skb.address() {
        return Ok(());
    }
    // The address may have been another packet's since, whose drop says nothing.
    let header = skb.tcp_header_anywhere();
    let place = &examined.place;
    if header.seq != examined.seq
        || header.source != place.remote_port
        || header.destination != place.local_port
    {
        return Ok(());
    }
    match examined.on_drop {
        OnDrop::Keep => Ok(()),
        OnDrop::Forget if remove(place.key()) => Err(Counter::DroppedIn),
        OnDrop::Forget => Ok(()),
        OnDrop::Trust => {
            if let Some(entry) = SEGMENTS.get_ptr_mut(place.key()) {
                // SAFETY: as in `at_transport`.
                unsafe { (*entry).flags &= !FLAG_AMBIGUOUS };
            }
            Ok(())
        }
    }
}

/// A receive call has moved the socket's `copied_seq` (or has peeked and left it).
#[inline(always)]
pub fn taken<M: Memory>(socket: Socket<M>) -> Outcome {
    let identity = socket.identity();
    if !filter::socket(socket, &identity) {
        return Ok(());
    }
    let is_foreign = filter::is_by_process() && !(socket.owned_by_task() && filter::current());
    if is_foreign && foreign::Key::of_socket(socket, &identity).is_left_alone() {
        return Ok(());
    }
    let connection = connection::find_or_new(socket, identity)?;
    let Some(tcp) = socket.tcp() else { return Ok(()) };
    let copied = tcp.copied_seq();
    let mut until = copied;
    if filter::is_by_process() {
        if !is_foreign {
            foreign::welcome(connection);
        } else if connection.is_wanted == 0 {
            let is_quiet = || !socket.has_backlog() && !tcp.has_gap();
            let Some(followed) = foreign::shun(connection, copied, tcp.rcv_nxt(), is_quiet) else {
                return Ok(());
            };
            until = followed;
        }
    }
    learn_start(socket, connection, copied);
    if !before(connection.read_next, until) {
        return Ok(());
    }
    // Without an owner this is a kernel consumer in softirq, and the task only what it interrupted.
    let task = if socket.owned_by_task() { Task::current() } else { Task::UNKNOWN };
    if connection.is_late != 0 && connection.user.ids != task.ids {
        // The rest was another task's, who can't be named any more.
        connection.read_next = connection.late_until;
        connection.is_late = 0;
        count::one(Counter::UnmatchedIn);
    }
    connection.user = task;
    connection.taken_at = now();
    connection.taken_until = until;
    if filter::task(&connection.user) {
        learn_buffer(socket, connection);
    }
    walk(socket, connection)
}

/// A kernel function is about to take bytes from a socket's queue (`__tcp_read_sock`, for splice and the like;
/// `tcp_read_done`, for TLS). It says so when it is done, and has freed the skbs by then that tell where a first read began.
#[inline(always)]
pub fn reading<M: Memory>(socket: Socket<M>) -> Outcome {
    let Some(tcp) = socket.tcp() else { return Ok(()) };
    let identity = socket.identity();
    if !filter::socket(socket, &identity) {
        return Ok(());
    }
    let connection = connection::find_or_new(socket, identity)?;
    if filter::is_by_process() && socket.owned_by_task() && filter::current() {
        foreign::welcome(connection);
    }
    if connection.is_left_alone == 0 {
        learn_start(socket, connection, tcp.copied_seq());
    }
    Ok(())
}

/// At the first read of a socket that is seen: where its next segment starts.
#[inline(always)]
fn learn_start<M: Memory>(socket: Socket<M>, connection: &mut Connection, copied: u32) {
    if connection.read_known == 0 {
        connection.read_next = first_unread(socket, copied);
        connection.read_known = 1;
    }
}

/// Which bytes are in the skb that is being read. A receive call reports each skb before it frees it, so that
/// this is the oldest one; where a caller reports later, it holds none of the bytes taken, and tells nothing.
#[inline(always)]
fn learn_buffer<M: Memory>(socket: Socket<M>, connection: &mut Connection) {
    let (start, len) = match socket.first_received() {
        Some(skb) => (skb.tcp_cb_seq(), skb.len()),
        None => (connection.taken_until, 0),
    };
    connection.buffer_start = start;
    connection.buffer_end = start.wrapping_add(len);
}

/// The start of the oldest skb in the receive queue, if it lies before `copied`; else `copied`.
#[inline(always)]
fn first_unread<M: Memory>(socket: Socket<M>, copied: u32) -> u32 {
    match socket.first_received() {
        Some(skb) => {
            let seq = skb.tcp_cb_seq();
            if before(seq, copied) { seq } else { copied }
        }
        None => copied,
    }
}

/// Gives the lines of all segments that start before `taken_until`.
#[inline(always)]
fn walk<M: Memory>(socket: Socket<M>, connection: &mut Connection) -> Outcome {
    let address = connection.address;
    let until = connection.taken_until;
    let mut found = DONE;
    if before(position(connection), until) {
        found = repeat(BATCHES_PER_RUN, || take_batch(address));
    }
    let mut outcome = Ok(());
    if found == MISSED {
        // Not seen on arrival, or evicted: go on at the next skb, whose start is a segment's.
        let start = first_unread(socket, until);
        connection.read_next = if before(position(connection), start) { start } else { until };
        outcome = Err(Counter::UnmatchedIn);
    }
    let next = position(connection);
    let is_behind = before(next, until);
    if is_behind && connection.is_late != 0 && before(next, connection.late_until) {
        // Not even the earlier rest is through; what this call took as well would get a wrong time.
        connection.read_next = until;
        connection.is_late = 0;
        return Err(Counter::UnmatchedIn);
    }
    connection.is_late = u32::from(is_behind);
    connection.late_until = until;
    connection.late_at = connection.taken_at;
    outcome
}

/// Where the walk along the waiting segments is. Volatile, since a step moves it.
#[inline(always)]
fn position(connection: &Connection) -> u32 {
    // SAFETY: a field of a reference.
    unsafe { ptr::read_volatile(&raw const connection.read_next) }
}

/// A batch of steps along the waiting segments of the socket at `address`.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn take_batch(address: u64) -> u32 {
    repeat(BATCH, || take_step(address))
}

/// One step along the waiting segments of the socket at `address`: the next one gets its line.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn take_step(address: u64) -> u32 {
    let Some(connection) = connection::at(address) else { return DONE };
    let next = connection.read_next;
    let Some((key, segment)) = next_waiting(connection) else { return MISSED };
    let task = &connection.user;
    if filter::task(task) && segment.flags & UNWANTED == 0 {
        let app = if connection.is_late != 0 && before(next, connection.late_until) {
            connection.late_at
        } else {
            connection.taken_at
        };
        // A segment that doesn't start its buffer was appended to it.
        let is_appended = before(connection.buffer_start, next) && before(next, connection.buffer_end);
        let flags = if is_appended { FLAG_COALESCED } else { 0 };
        let stamps = stamps(segment, app);
        let record = || received(&connection.ends, segment, stamps, flags, task);
        if let Err(counter) = emit(Direction::In, &stamps, segment.mark, record) {
            count::one(counter);
        }
    } else {
        count::one(Counter::FilteredIn);
    }
    // Nearly always there is one segment, and a step that finds no more costs lookups.
    let is_last = !before(next.wrapping_add(segment.len), connection.taken_until);
    connection.read_next = next.wrapping_add(segment.len);
    remove(key);
    if is_last { DONE } else { MORE }
}

/// A batch of steps along the segments of the socket at `address` that nobody took.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn drop_batch(address: u64) -> u32 {
    repeat(BATCH, || drop_step(address))
}

/// One step along the segments of the socket at `address` that nobody took: the next one is forgotten.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn drop_step(address: u64) -> u32 {
    let Some(connection) = connection::at(address) else { return DONE };
    let Some((key, segment)) = next_waiting(connection) else { return DONE };
    connection.read_next = segment.place.seq.wrapping_add(segment.len);
    remove(key);
    count::one(Counter::UnreadIn);
    MORE
}

/// The segment at which the walk along the waiting ones is, and its key.
#[inline(always)]
fn next_waiting(connection: &Connection) -> Option<(u64, &'static Segment)> {
    let mut place = Place::of(connection);
    place.seq = connection.read_next;
    let key = place.key();
    // SAFETY: the entry was written before the segment reached the socket, and only the holder of the
    // socket's lock removes it.
    let segment = unsafe { &*SEGMENTS.get_ptr(key)? };
    (segment.place == place).then_some((key, segment))
}

#[inline(always)]
fn remove(key: u64) -> bool {
    let was_there = SEGMENTS.remove(key).is_ok();
    if was_there {
        count::one(Counter::Taken);
    }
    was_there
}

/// The stamps of a segment that was taken at `app`, as far as they are known to be its own.
#[inline(always)]
fn stamps(segment: &Segment, app: u64) -> [u64; STAMPS] {
    if segment.flags & FLAG_AMBIGUOUS == 0 {
        [segment.drv, segment.ip, segment.transport, app]
    } else {
        [0, 0, 0, app]
    }
}

#[inline(always)]
fn received(ends: &Ends, segment: &Segment, stamps: [u64; STAMPS], flags: u16, task: &Task) -> PacketRecord {
    let (saddr, daddr) = addresses(ends, Direction::In);
    PacketRecord {
        stamps,
        other: if segment.flags & FLAG_AMBIGUOUS == 0 { segment.last } else { 0 },
        saddr,
        daddr,
        comm: task.comm(),
        pid: task.pid(),
        tid: task.tid(),
        len: segment.len,
        seq: segment.place.seq,
        ifindex: segment.ifindex,
        netns: segment.place.netns,
        mark: segment.mark,
        sport: segment.place.remote_port,
        dport: segment.place.local_port,
        segs: segment.segs,
        cpu: cpu(),
        flags: segment.flags | flags,
        direction: Direction::In as u8,
        protocol: IPPROTO_TCP,
        family: ends.family,
        reserved: 0,
    }
}

/// The kernel destroys a socket: what was taken gets its lines, the rest is counted.
#[inline(always)]
pub fn closed<M: Memory>(socket: Socket<M>) -> Outcome {
    let Some(connection) = connection::find(socket) else { return Ok(()) };
    let mut outcome = Ok(());
    if connection.is_late != 0 {
        outcome = walk(socket, connection);
    }
    if filter::is_by_process() && connection.is_wanted == 0 {
        foreign::Key::of(connection).forget();
    }
    if connection.read_known != 0 && connection.is_left_alone == 0 {
        let address = connection.address;
        repeat(BATCHES_PER_RUN, || drop_batch(address));
    }
    connection::remove(socket);
    outcome
}
