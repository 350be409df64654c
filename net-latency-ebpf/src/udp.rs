//! UDP, both ways.
//!
//! In: every socket that a datagram is for gets an skb of its own on its queue (the packet's, a clone for
//! each further multicast receiver, or one of the segments of what GRO merged), and that skb is what the
//! receive call consumes. So a datagram is followed by its skb's address from the queue on.
//!
//! Out: the way from the write call to the device is synchronous and several threads may go it on one socket
//! at the same time, so that a datagram is followed by its thread. Where it waits, for its neighbour's address or for
//! a verdict, it goes on in any context, and is followed by its skb.

use net_latency_common::{
    Counter, DATAGRAM_SIZE, Direction, FLAG_GRO, IPPROTO_TCP, IPPROTO_UDP, PARTS, PacketRecord, Served,
    hook_key,
};

use crate::{
    bpf::{
        Array, LruHashMap, PerCpuArray, cpu,
        entry::{Field, Own},
        map, now,
    },
    drops,
    emit::{
        counters::{self, HookResult},
        ring::{self, Finished, emit_fine, emit_sent},
    },
    flow::{
        addresses::{AddrPair, SPREAD},
        filter,
        untraced::{self, Receiver},
    },
    kernel::{
        arch,
        memory::{Memory, Number, Probed, number},
        skb::Skb,
        socket::Socket,
        task::Task,
    },
    skb_stamps,
    skips::{self, entries},
    slots::{Entry, Found, Inserted, Slots, Table},
};
#[cfg(feature = "fine")]
use crate::{emit::ring::is_fine, leaving, readers, service};

/// The packet that `udp_rcv` works on, until its skb, or those made of it, are on their sockets' queues. That
/// is synchronous, with softirqs off on this CPU (on PREEMPT_RT since Linux 6.18 another may come between, 3253cb49cbad, and is
/// recognised as another).
#[repr(C)]
pub struct Receiving {
    skb: Field<u64>,
    drv: Field<u64>,
    ip: Field<u64>,
    transport: Field<u64>,
    /// For a packet that GRO merged: the task that this CPU runs. Where softirqs are preempted, a packet that comes between is in another.
    merged_in: Field<u64>,
    /// The ports of a packet that GRO merged, which the segments made of it have too; 0 for a plain datagram.
    merged_ports: Field<u32>,
    /// How many of these segments are not queued yet.
    merged_left: Field<u32>,
    /// Whether `drv` and `ip` are known.
    has_stamps: Field<u32>,
    reserved: u32,
}

impl Receiving {
    /// When the packet, of which this skb is, was at its driver, at IP and at UDP.
    #[inline(always)]
    fn stamps<M: Memory>(&self, skb: Skb<M>) -> (u64, u64, u64) {
        let transport = self.transport.get();
        if self.has_stamps.get() == 0 {
            self.take_stamps(skb, transport);
        }
        (self.drv.get(), self.ip.get(), transport)
    }

    /// Later skbs are not this packet, nor made of it.
    #[inline(always)]
    fn end(&self) {
        self.skb.set(0);
        self.merged_ports.set(0);
    }

    /// The skb with which the packet came is dropped, or not followed.
    #[inline(always)]
    fn end_skb<M: Memory>(&self, skb: Skb<M>) {
        self.skb.set(0);
        // If a merged skb has a list of its segments, the first of them is that skb (`skb_segment_list`), and the others go on.
        if self.merged_ports.get() != 0 && skb.gro_segments() > 1 {
            self.merged_ports.set(0);
        }
    }

    /// Whether this skb is a clone of the packet: another skb with its buffer. The packet itself is the last to be queued, after all clones
    /// (`__udp4_lib_mcast_deliver`), and so is there still.
    #[inline(always)]
    fn has_clone<M: Memory>(&self, skb: Skb<M>) -> bool {
        let packet = self.skb.get();
        packet != 0 && Skb::<Probed>::new(packet as *const u8).head() == skb.head()
    }

    /// An skb is dropped that was not queued, or is not followed: if it was a segment of a merged packet, one less is to come.
    #[inline(always)]
    fn end_segment<M: Memory>(&self, skb: Skb<M>) {
        let merged_ports = self.merged_ports.get();
        if merged_ports == 0 || merged_ports != skb.udp_header() as u32 {
            return;
        }
        let left = self.merged_left.get().wrapping_sub(1);
        self.merged_left.set(left);
        if left == 0 {
            self.end();
        }
    }

    #[inline(always)]
    fn take_stamps<M: Memory>(&self, skb: Skb<M>, transport: u64) {
        let (drv, ip) = skb_stamps::take_in(skb, self.skb.get(), transport);
        self.drv.set(drv);
        self.ip.set(ip);
        self.has_stamps.set(1);
    }
}

/// The packet that UDP works on, per CPU.
#[map]
static RECEIVING: PerCpuArray<Receiving> = PerCpuArray::with_max_entries(1, 0);

/// A datagram on the queue of a socket.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Datagram {
    drv: u64,
    ip: u64,
    transport: u64,
    /// Address of the socket.
    socket: u64,
    /// The UDP header.
    header: u64,
    ifindex: u32,
    segs: u16,
    flags: u16,
}

const _: () = assert!(size_of::<Datagram>() == DATAGRAM_SIZE, "the user side names the size");

impl Entry for Datagram {
    #[inline(always)]
    fn came(&self) -> u64 {
        self.transport
    }
}

/// Pairs of slots, as a power of two.
const SLOT_BITS: u32 = 12;

/// Datagrams on the queues of sockets, by the address of their skb.
#[map]
static DATAGRAM_SLOTS: Array<Slots<Datagram>> = Array::with_max_entries(1 << SLOT_BITS, 0);

/// Datagrams that found no slot. Evicts: counted (stored − taken − still waiting).
#[map]
static DATAGRAMS: LruHashMap<u64, Datagram> = LruHashMap::with_max_entries(entries(10240), 0);

const WAITING: Table<Datagram, SLOT_BITS> = Table::new(&DATAGRAM_SLOTS, &DATAGRAMS);

/// How many datagrams wait on queues.
#[cfg(test)]
pub(crate) fn waiting_datagrams() -> crate::slots::Count {
    WAITING.count()
}

/// How far a thread's datagram has come.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum SendState {
    /// Nothing is in flight.
    Idle = 0,
    /// The thread called.
    Called = 1,
    /// UDP let the datagram go.
    Sent = 2,
}

/// The datagram that a thread is sending.
#[repr(C)]
pub struct Send {
    /// Address of the socket.
    socket: Field<u64>,
    skb: Field<u64>,
    /// Address of a copy of that; 0 for none.
    copy: Field<u64>,
    app: Field<u64>,
    transport: Field<u64>,
    addresses: Field<AddrPair>,
    /// Source and destination port in network order.
    ports: Field<u32>,
    len: Field<u32>,
    segs: Field<u32>,
    netns: Field<u32>,
    state: Field<SendState>,
    reserved: u32,
    /// The task that sends it, if `app` is known.
    task: Field<Task>,
    /// What that thread did for it, if it is an answer.
    #[cfg(feature = "fine")]
    served: Field<Served>,
}

/// What threads are sending by UDP, by process and thread id. Evicts: udp's first stage is unknown.
#[map]
static SENDS: LruHashMap<u64, Send> = LruHashMap::with_max_entries(2048, 0);

/// Slots of [`BEGUN`], as a power of two.
const BEGUN_BITS: u32 = 10;

/// When a thread last called to begin a datagram, by a hash of the socket's address. A thread that completes a corked one may have begun
/// another one on the same socket before, which some other thread has completed.
#[unsafe(no_mangle)]
// SAFETY: fields of integers.
static BEGUN: Own<Field<u64>, { 1 << BEGUN_BITS }> = unsafe { Own::zeroed() };

/// When a thread last called to begin a datagram on this socket, or on another one of its slot.
#[inline(always)]
fn begun<M: Memory>(socket: Socket<M>) -> &'static Field<u64> {
    // SAFETY: an entry of a table, mapped while a program runs; what changes is a field.
    unsafe { &*BEGUN.at(number(socket.address()).wrapping_mul(SPREAD) >> (u64::BITS - BEGUN_BITS)) }
}

/// What waits before its device, by the address of its skb: datagrams, and what else a socket has sent but by TCP, of which only
/// that is known. Evicts: a datagram that waits has no line, and stays in flight.
#[map]
static PARKED: LruHashMap<u64, Send> = LruHashMap::with_max_entries(512, 0);

/// Slots of [`PLACES`], as a power of two.
const PLACE_BITS: u32 = 10;
/// What a slot has where several wait. It is no skb's address.
const SEVERAL: u64 = 1;

/// Which skbs may wait, by a hash of their addresses: of most that nothing waits for, a look at the map is saved.
#[unsafe(no_mangle)]
// SAFETY: fields of integers.
static PLACES: Own<Field<u64>, { 1 << PLACE_BITS }> = unsafe { Own::zeroed() };

#[inline(always)]
fn place(skb: u64) -> &'static Field<u64> {
    // SAFETY: an entry of a table, mapped while a program runs; what changes is a field.
    unsafe { &*PLACES.at(skb.wrapping_mul(SPREAD) >> (u64::BITS - PLACE_BITS)) }
}

/// Whether the skb at this address may be one that waits.
#[inline(always)]
fn may_be_parked(skb: u64) -> bool {
    let there = place(skb).get();
    there == skb || there == SEVERAL
}

/// What waits with the skb at this address.
#[inline(always)]
fn parked(skb: u64) -> Option<&'static Send> {
    if !may_be_parked(skb) {
        return None;
    }
    let send = PARKED.get_ptr(skb)?;
    // SAFETY: entries are preallocated and never unmapped while a program runs. One that is evicted has another skb. What changes are fields.
    Some(unsafe { &*send })
}

/// Nothing waits any more with the skb at this address. 1 if a datagram did.
///
/// A global function, which the verifier checks once by itself instead of wherever it is called.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn unpark(skb: u64) -> u32 {
    let did = parked(skb).is_some_and(|parked| parked.state.get() == SendState::Sent);
    let place = place(skb);
    if place.get() == skb {
        place.set(0);
    }
    // If there is none, there is none.
    PARKED.remove(skb).map_or(0, |()| did.into())
}

/// The skb at this address is another one's now, or goes on in a way that is not followed: what waited with it is not followed any more.
#[inline(always)]
fn lose_sight(skb: u64) {
    if may_be_parked(skb) && unpark(skb) != 0 {
        counters::one(Counter::OvertakenOut);
    }
}

/// A thread that has sent nothing yet. An array of words: with fields that change, the map for it would be writable.
#[unsafe(no_mangle)]
static NO_SEND: [u64; size_of::<Send>() / 8] = [0; size_of::<Send>() / 8];

const _: () = assert!(size_of::<Send>().is_multiple_of(8), "what a thread sends is whole words");

impl Send {
    /// Whether this skb is the datagram, and UDP has let it go. The address may be another skb's: of another socket's, or of another
    /// protocol's, where the datagram died unseen.
    #[inline(always)]
    fn is_of<M: Memory>(&self, skb: Skb<M>) -> bool {
        let address = number(skb.address());
        self.state.get() == SendState::Sent
            && self.is_skb(address)
            && self.socket.get() == number(skb.socket().address())
    }

    /// Whether ports and length are the datagram's.
    #[inline(always)]
    fn has_header_of<M: Memory>(&self, skb: Skb<M>) -> bool {
        let header = skb.udp_header();
        header as u32 == self.ports.get() && payload(header) == self.len.get()
    }

    #[inline(always)]
    fn is_skb(&self, address: u64) -> bool {
        self.skb.get() == address || self.copy.get() == address
    }

    /// The thread goes on: what it was sending, if that has not come to its device, is not followed any more.
    #[inline(always)]
    fn end(&self) {
        if self.state.get() == SendState::Sent {
            counters::one(Counter::OvertakenOut);
        }
        self.state.set(SendState::Idle);
    }
}

/// An skb is made that is a copy of another one. If that is the datagram that the thread sends, either may be what comes to the device.
#[inline(always)]
pub(crate) fn copied(new: u64, old: u64) {
    lose_sight(new);
    let waiting = parked(old);
    if let Some(parked) = waiting {
        // Which of them goes on is not known. That the old one has waited still is.
        parked.end();
    }
    let Some(send) = current() else { return };
    if send.state.get() != SendState::Sent {
        return;
    }
    if send.is_skb(new) {
        // It ended where no hook saw it.
        send.end();
    } else if send.skb.get() == old && waiting.is_none() {
        send.copy.set(new);
    }
}

/// A datagram is cut into segments, which are not followed.
#[inline(always)]
pub(crate) fn segmented<M: Memory>(skb: Skb<M>) {
    lose_sight(number(skb.address()));
    if let Some(send) = current()
        && send.is_of(skb)
    {
        send.end();
    }
}

/// An skb waits on its way out and goes on in any context: for its neighbour's address (`__neigh_event_send`), for a verdict
/// (`nf_queue`). The first one's caller goes on at once where the address is only to be confirmed.
#[inline(always)]
pub fn waits<M: Memory>(skb: Skb<M>) -> HookResult {
    let socket = skb.socket();
    if socket.address() == 0 || socket.protocol() == u16::from(IPPROTO_TCP) {
        return Ok(());
    }
    let address = number(skb.address());
    if let Some(parked) = parked(address)
        && parked.is_of(skb)
    {
        // For the second time.
        return Ok(());
    }
    lose_sight(address);
    PARKED.insert(address, no_send(), 0).map_err(|_| Counter::StampLost)?;
    let place = place(address);
    place.set(if place.get() == 0 { address } else { SEVERAL });
    let Some(send) = current() else { return Ok(()) };
    let Some(parked) = parked(address) else { return Ok(()) };
    if !send.is_of(skb) {
        return Ok(());
    }
    // SAFETY: the entry is this skb's alone; all of what a thread sends is fields of words.
    unsafe { core::ptr::copy_nonoverlapping(&raw const *send, (&raw const *parked).cast_mut(), 1) };
    parked.skb.set(address);
    parked.copy.set(0);
    send.state.set(SendState::Idle);
    Ok(())
}

#[inline(always)]
fn no_send() -> &'static Send {
    // SAFETY: same size and alignment; all of it is integers and an enum that has a 0. Nothing writes to it.
    unsafe { &*(&raw const NO_SEND).cast() }
}

/// The two ports of a UDP header as it lies in memory, from network to host order.
#[inline(always)]
fn ports(word: u32) -> (u16, u16) {
    (u16::from_be(word as u16), u16::from_be((word >> 16) as u16))
}

/// Bytes behind a UDP header, as it says (`udp_send_skb`, `udp_v6_send_skb`: of what GSO cuts later, too).
#[inline(always)]
fn payload(header: u64) -> u32 {
    const HEADER: u32 = 8;
    u32::from(u16::from_be((header >> u32::BITS) as u16)).wrapping_sub(HEADER)
}

/// UDP receives an skb (`udp_rcv`, `udpv6_rcv`).
#[inline(always)]
pub fn received<M: Memory>(skb: Skb<M>) -> HookResult {
    let transport = now();
    let Some(receiving) = RECEIVING.get(0) else { return Ok(()) };
    let segments = skb.gro_segments();
    let is_merged = segments > 1;
    receiving.skb.set(skb.address());
    receiving.merged_ports.set(if is_merged { skb.udp_header() as u32 } else { 0 });
    if is_merged {
        receiving.merged_in.set(Task::current_ids());
    }
    receiving.merged_left.set(u32::from(segments));
    receiving.transport.set(transport);
    receiving.has_stamps.set(0);
    // With a filter by process most packets go to others, and their stamps are not needed. A merged skb is freed before its segments are
    // queued, so that its address may be another's by then.
    if is_merged || !filter::is_by_process() {
        receiving.take_stamps(skb, transport);
    }
    Ok(())
}

/// A datagram gets to a socket's queue, unless that is full (`__udp_enqueue_schedule_skb`). Its UDP header is
/// pulled. UDP-Lite, which is not followed, queues by the same function up to Linux 6.18.
#[inline(always)]
pub fn enqueued<M: Memory>(socket: Socket<M>, skb: Skb<M>) -> HookResult {
    if socket.protocol() != u16::from(IPPROTO_UDP) {
        return Ok(());
    }
    let Some(receiving) = RECEIVING.get(0) else { return Ok(()) };
    if filter::is_by_process() && Receiver::new(socket).is_untraced(receiving.transport.get()) {
        return reject(receiving, skb);
    }
    let header = skb.udp_header();
    if !is_wanted(socket, skb, header) {
        return reject(receiving, skb);
    }
    let merged_ports = receiving.merged_ports.get();
    let is_segment = merged_ports != 0 && merged_ports == header as u32;
    let is_packet = receiving.skb.get() == number(skb.address());
    // A merged skb is freed before its segments are queued: a packet that comes between may have its address.
    let is_between = merged_ports != 0 && receiving.merged_in.get() != Task::current_ids();
    let is_its = !is_between && (is_packet || is_segment || receiving.has_clone(skb));
    let (drv, ip, transport) = if is_its { receiving.stamps(skb) } else { (0, 0, 0) };
    let merged = skb.gro_segments();
    let (segs, flags) = if merged > 1 { (merged, FLAG_GRO) } else { (1, 0) };
    let left = receiving.merged_left.get();
    let is_last = !is_between && if is_segment { left <= u32::from(segs) } else { is_packet };
    if is_last {
        // The packet itself is the last to be queued, after all clones (`__udp4_lib_mcast_deliver`), or the last segment of it is:
        // what another life of its address, or another datagram of its ports, finds here is not its own, should the hook before
        // be skipped. Further sockets that get the same merged multicast by segments know no stamps.
        receiving.end();
    }
    if is_its {
        receiving.merged_left.set(left.wrapping_sub(u32::from(segs)));
    }
    let ifindex = skb.ifindex();
    let datagram = Datagram { drv, ip, transport, socket: socket.address(), header, ifindex, segs, flags };
    match WAITING.insert(number(skb.address()), || datagram) {
        Inserted::New => {
            counters::one(Counter::Stored);
            Ok(())
        }
        Inserted::There(_) => {
            // The address' last life ended unseen.
            let Some(found) = WAITING.find(number(skb.address())) else { return Err(Counter::MapFull) };
            // SAFETY: a slot's entry is the finder's alone. In the map it may be evicted, which the taker notices.
            unsafe { found.entry.write(datagram) };
            Table::<Datagram, SLOT_BITS>::keep(&found);
            counters::both(Counter::Stored, Counter::Taken);
            Err(Counter::DroppedIn)
        }
        Inserted::NoRoom => Err(Counter::MapFull),
    }
}

/// The addresses in the header of a datagram.
#[inline(always)]
fn addresses<M: Memory>(skb: Skb<M>, family: u32) -> AddrPair {
    AddrPair::new(family, skb.addresses(family))
}

/// Whether a received datagram is wanted, as far as its headers and its device tell.
#[inline(always)]
fn is_wanted<M: Memory>(socket: Socket<M>, skb: Skb<M>, header: u64) -> bool {
    let (source, destination) = ports(header as u32);
    if !filter::ports(source, destination) || !filter::interface(skb) || !filter::netns_of(socket) {
        return false;
    }
    !filter::needs_addresses() || filter::addresses(&addresses(skb, skb.family()))
}

/// An unwanted datagram; what an earlier life of its address left must not be taken for it.
#[inline(always)]
fn reject<M: Memory>(receiving: &Receiving, skb: Skb<M>) -> HookResult {
    let address = number(skb.address());
    if receiving.skb.get() == address {
        // The last of it: a clone of what came before it on this CPU (on PREEMPT_RT) may have its address next.
        receiving.end_skb(skb);
    } else {
        receiving.end_segment(skb);
    }
    if let Some(found) = WAITING.find(address) {
        forget(&found);
        counters::one(Counter::DroppedIn);
    }
    Err(Counter::RejectedIn)
}

/// A receive call is done with a datagram (`skb_consume_udp`), which it has taken, or only looked at.
#[inline(always)]
pub fn consumed<M: Memory>(socket: Socket<M>, skb: Skb<M>, len: Number) -> HookResult {
    // `udp_recvmsg` makes the length negative for MSG_PEEK; an empty datagram that was only looked at is
    // still on the queue.
    if len.signed() < 0 || len.signed() == 0 && skb.is_queued() {
        return Ok(());
    }
    let header = skb.udp_header();
    let Some(found) = WAITING.find(number(skb.address())) else { return not_followed(socket, header) };
    // SAFETY: written before the skb was on the queue; only the task that takes the skb from there comes here.
    let datagram = unsafe { &*found.entry };
    if datagram.socket != socket.address() || datagram.header != header {
        // Another life of that address.
        Table::<Datagram, SLOT_BITS>::keep(&found);
        not_followed(socket, header)?;
        return Err(Counter::UnmatchedIn);
    }
    let outcome = if let Some(task) = filter::current_task_if_wanted() {
        if filter::is_by_process() {
            Receiver::new(socket).mark_traced();
        }
        let app = now();
        #[cfg(feature = "fine")]
        if is_fine() {
            begin_service(socket, header, app);
        }
        let stamps = [datagram.drv, datagram.ip, datagram.transport, app];
        let (direction, protocol, flags) = (Direction::In, IPPROTO_UDP, datagram.flags);
        let parts = || parts(datagram.transport, app);
        // Here, and not in the record: the two places where that is made have no room for it.
        let (pair, netns) = if ring::makes_records() {
            (addresses(skb, skb.family()), socket.netns())
        } else {
            (AddrPair::UNKNOWN, 0)
        };
        let mark = skb.mark();
        let record = || {
            // Before all else is loaded, which a call would drive out of its registers.
            let holder = holder();
            let cpu = cpu() as u16;
            let (sport, dport) = ports(header as u32);
            let (saddr, daddr) = pair.of_record(direction);
            PacketRecord {
                stamps,
                saddr,
                daddr,
                comm: task.comm(),
                process: task.process(),
                pid: task.pid(),
                tid: task.tid(),
                len: skb.len(),
                ifindex: datagram.ifindex,
                netns,
                mark,
                sport,
                dport,
                segs: datagram.segs,
                cpu,
                flags,
                direction: direction as u8,
                protocol,
                family: pair.family as u8,
                rtt_or_holder: holder,
                ..PacketRecord::default()
            }
        };
        let packet = Finished { direction, protocol, flags, stamps: &stamps };
        let is_its = || {
            let spilled = found.spilled_key();
            spilled == 0 || datagram_has_spilled(spilled) != 0
        };
        emit_fine(&packet, || mark, record, parts, is_its)
    } else {
        if filter::is_by_process() {
            Receiver::new(socket).mark_untraced(now());
        }
        Err(Counter::FilteredIn)
    };
    forget(&found);
    outcome
}

/// Whether the datagram with this key, which had no slot, has not been evicted meanwhile.
///
/// A global function, which the verifier checks once by itself instead of wherever it is called.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn datagram_has_spilled(key: u64) -> u32 {
    WAITING.has_spilled(key, const { hook_key("udp::datagram_evicted") }).into()
}

/// A receive call has taken a datagram with this header that was not followed.
///
/// A function with a stack of its own, which few calls take.
#[cfg_attr(not(feature = "fine"), expect(unused_variables, reason = "services are judged by fine stages"))]
#[inline(never)]
fn not_followed<M: Memory>(socket: Socket<M>, header: u64) -> HookResult {
    #[cfg(feature = "fine")]
    if is_fine() && filter::current() {
        begin_service(socket, header, now());
    }
    if filter::is_by_process() && filter::current() {
        let receiver = Receiver::new(socket);
        receiver.mark_traced();
        if receiver.was_untraced() {
            return Err(Counter::UnmatchedIn);
        }
    }
    Ok(())
}

/// The current thread has taken a datagram at `app` with this header: it may be a request.
#[cfg(feature = "fine")]
#[inline(always)]
fn begin_service<M: Memory>(socket: Socket<M>, header: u64, app: u64) {
    let (remote, local) = ports(header as u32);
    service::took_datagram(socket, app, local, remote);
}

/// The fine stages of a datagram that was taken at `app`.
#[cfg(feature = "fine")]
#[inline(always)]
fn parts(transport: u64, app: u64) -> [u64; PARTS] {
    readers::current(app).parts(transport, transport, app)
}

#[cfg(not(feature = "fine"))]
#[inline(always)]
fn parts(_: u64, _: u64) -> [u64; PARTS] {
    [0; PARTS]
}

/// The process that had the CPU for which the current thread waited, if that is needed.
#[cfg(feature = "fine")]
#[inline(always)]
fn holder() -> u32 {
    if is_fine() { readers::reader_holder() } else { 0 }
}

#[cfg(not(feature = "fine"))]
#[inline(always)]
fn holder() -> u32 {
    0
}

/// An skb is dropped: if it was a datagram that UDP works on, or on a queue, or on its way out, it has no further stage.
#[inline(always)]
pub(crate) fn dropped<M: Memory>(skb: Skb<M>) -> HookResult {
    if !filter::protocol(IPPROTO_UDP) {
        return Ok(());
    }
    let address = number(skb.address());
    if let Some(receiving) = RECEIVING.get(0)
        && receiving.skb.get() == address
    {
        receiving.end_skb(skb);
    }
    if let Some(parked) = parked(address)
        && parked.is_of(skb)
    {
        unpark(address);
        return Err(Counter::UnfinishedOut);
    }
    lose_sight(address);
    if let Some(send) = current()
        && send.is_of(skb)
    {
        send.state.set(SendState::Idle);
        return Err(Counter::UnfinishedOut);
    }
    let Some(found) = WAITING.find(address) else {
        if let Some(receiving) = RECEIVING.get(0) {
            receiving.end_segment(skb);
        }
        return Ok(());
    };
    // SAFETY: a slot's entry is the finder's alone; all of it is integers.
    let (socket, header) = unsafe { ((*found.entry).socket, (*found.entry).header) };
    forget(&found);
    if header != skb.udp_header() {
        // That was another life of the address, which ended unseen; whose, is not known any more. This skb may be anything else.
        counters::one(Counter::DroppedIn);
        return Ok(());
    }
    let (remote, local) = ports(header as u32);
    // The socket is there as a rule: it drops what is on its queue before it is freed. If it is not, the header of this skb is by chance
    // that of an earlier one, and the read survives any address.
    let netns = Socket::<Probed>::new(socket as *const u8).netns();
    Err(drops::of(netns, IPPROTO_UDP, local, remote))
}

#[inline(always)]
fn forget(found: &Found<Datagram>) {
    if WAITING.remove(found) {
        counters::one(Counter::Taken);
    }
}

/// What the current thread is sending.
#[inline(always)]
fn current() -> Option<&'static Send> {
    let send = SENDS.get_ptr(Task::current_ids())?;
    // SAFETY: entries are preallocated and never unmapped while a program runs. The entry is its thread's
    // alone; a softirq that interrupts it recognises no skb in it. What changes are fields.
    Some(unsafe { &*send })
}

#[inline(always)]
fn current_or_new() -> Result<&'static Send, Counter> {
    if let Some(send) = current() {
        return Ok(send);
    }
    SENDS.insert(Task::current_ids(), no_send(), 0).map_err(|_| Counter::StampLost)?;
    current().ok_or(Counter::StampLost)
}

/// The application calls `udp_sendmsg` or `udpv6_sendmsg`.
#[inline(always)]
pub fn written<M: Memory>(socket: Socket<M>) -> HookResult {
    if !filter::current() {
        // If a wanted task that has called before completes this datagram, it still is not that task's.
        if !untraced::is_socket_untraced(socket) && !socket.udp_pending() {
            begun(socket).set(0);
        }
        return Ok(());
    }
    // A call that adds to a corked datagram leaves it the time of the one that began it.
    if socket.udp_pending() {
        return Ok(());
    }
    if filter::is_by_process() {
        untraced::mark_socket_traced(number(socket.address()));
    }
    let send = current_or_new()?;
    send.end();
    send.socket.set(number(socket.address()));
    send.skb.set(0);
    send.copy.set(0);
    let app = now();
    send.app.set(app);
    begun(socket).set(app);
    send.task.set(filter::current_wanted_task());
    send.state.set(SendState::Called);
    #[cfg(feature = "fine")]
    {
        if is_fine() {
            send.served.set(service::sends_datagram(socket, app));
        }
        readers::sends()?;
    }
    Ok(())
}

/// UDP lets a datagram go: `ip_send_skb`, `ip6_send_skb`, which raw sockets and ICMP use too. Both headers are
/// written, and no netfilter hook has seen them yet.
#[inline(always)]
pub fn sent<M: Memory>(skb: Skb<M>, family: u32) -> HookResult {
    let socket = skb.socket();
    let is_udp = socket.address() != 0 && socket.protocol() == u16::from(IPPROTO_UDP);
    if is_udp && untraced::is_socket_untraced(socket) {
        // At the device's queue it is not looked at, so that nothing there is taken for it.
        counters::both(Counter::SeenOut, Counter::FilteredOut);
        return Ok(());
    }
    // Whatever waited with its address has ended where no hook saw it.
    lose_sight(number(skb.address()));
    if !is_udp {
        // What the thread sent before has ended where no hook sees it, if it has not come to its device.
        if let Some(send) = current() {
            send.end();
        }
        return Ok(());
    }
    if !filter::current() {
        // A thread that is never wanted has left nothing.
        if filter::current_may_change() {
            counters::one(Counter::SeenOut);
            return exclude();
        }
        counters::both(Counter::SeenOut, Counter::FilteredOut);
        return Ok(());
    }
    counters::one(Counter::SeenOut);
    let header = skb.udp_header();
    let (source, destination) = ports(header as u32);
    if !filter::ports(source, destination) || !filter::netns_of(socket) {
        return exclude();
    }
    let pair = addresses(skb, family);
    if !filter::addresses(&pair) {
        return exclude();
    }
    let send = current_or_new()?;
    let has_called = send.state.get() == SendState::Called && send.socket.get() == number(socket.address());
    // A datagram that was never corked is this thread's, even if others call meanwhile.
    let is_known = has_called && (begun(socket).get() == send.app.get() || !socket.udp_pending());
    send.end();
    if !is_known {
        // Another thread began this datagram, or it was begun before tracing: its owner is unknown.
        send.app.set(0);
        if !filter::unknown() {
            return Err(Counter::FilteredOut);
        }
    }
    send.socket.set(number(socket.address()));
    send.skb.set(number(skb.address()));
    send.copy.set(0);
    send.addresses.set(pair);
    send.ports.set(header as u32);
    send.len.set(payload(header));
    let segs = skb.gro_segments();
    send.segs.set(if segs > 1 { u32::from(segs) } else { 1 });
    send.netns.set(socket.netns());
    send.state.set(SendState::Sent);
    send.transport.set(now());
    if is_known { Ok(()) } else { Err(Counter::UnmatchedOut) }
}

/// The thread lets an unwanted datagram go; one before it, that ended where no hook sees it, must not be
/// taken for it.
#[inline(always)]
fn exclude() -> HookResult {
    if let Some(send) = current() {
        send.end();
    }
    Err(Counter::FilteredOut)
}

/// An skb of a socket that is no known TCP socket is handed to a device's queue. If IP fragmented a datagram, this is the first fragment,
/// which has the datagram's skb. Nothing if the skb is not one on its way.
#[inline(always)]
pub(crate) fn queued<M: Memory>(skb: Skb<M>) -> Option<HookResult> {
    if !filter::protocol(IPPROTO_UDP) {
        return None;
    }
    let address = number(skb.address());
    let own = current().filter(|send| send.is_of(skb));
    let parked = parked(address);
    let send = if let Some(parked) = parked {
        // The thread that this interrupts, or that goes on with it, has sent another one with that address, which ended where no hook saw it.
        if let Some(own) = own {
            own.end();
        }
        // A piece of another datagram of this socket, of which nothing is seen being made, may have the address of one that waited and
        // ended likewise.
        if !parked.is_of(skb) || !parked.has_header_of(skb) {
            lose_sight(address);
            return None;
        }
        parked
    } else {
        own?
    };
    let result = finished(skb, send);
    lose_sight(number(skb.address()));
    Some(result)
}

/// The datagram that a thread is sending, or that has waited since, is at its device's queue.
#[inline(always)]
fn finished<M: Memory>(skb: Skb<M>, send: &Send) -> HookResult {
    send.state.set(SendState::Idle);
    let drv = now();
    let (transport, app) = (send.transport.get(), send.app.get());
    let ip = skb_stamps::take_out(skb.address(), transport, drv);
    if !filter::interface(skb) {
        return Err(Counter::FilteredOut);
    }
    let stamps = [drv, ip, transport, app];
    let (direction, protocol) = (Direction::Out, IPPROTO_UDP);
    let ifindex = if ring::makes_records() { skb.ifindex() } else { 0 };
    let mark = skb.mark();
    let record = || {
        let cpu = cpu() as u16;
        let task = if app == 0 { Task::UNKNOWN } else { send.task.get() };
        let pair = send.addresses.get();
        // They come from the packet's header: source, then destination, as of a received one.
        let (saddr, daddr) = pair.of_record(Direction::In);
        let (sport, dport) = ports(send.ports.get());
        PacketRecord {
            stamps,
            saddr,
            daddr,
            comm: task.comm(),
            process: task.process(),
            pid: task.pid(),
            tid: task.tid(),
            len: send.len.get(),
            ifindex,
            netns: send.netns.get(),
            mark,
            sport,
            dport,
            segs: send.segs.get() as u16,
            cpu,
            direction: direction as u8,
            protocol,
            family: pair.family as u8,
            ..PacketRecord::default()
        }
    };
    // Its thread alone writes its entry, unless that is evicted: then the next owner of its place has no skb at first.
    let is_its = || {
        if skips::happens(const { hook_key("udp::send_evicted") }) {
            send.skb.set(0);
        }
        arch::read_before(send.skb.address());
        // Where other CPUs see writes in another order, an entry that has got another's place shows by its key.
        let is_here = || {
            let is_it = |other: &Send| core::ptr::eq(other, send);
            current().is_some_and(is_it) || parked(number(skb.address())).is_some_and(is_it)
        };
        (!arch::REORDERS || is_here()) && send.is_skb(number(skb.address()))
    };
    #[cfg(feature = "fine")]
    let served = || if app == 0 { Served::NONE } else { send.served.get() };
    #[cfg(not(feature = "fine"))]
    let served = || Served::NONE;
    let missing = None;
    #[cfg(feature = "fine")]
    let missing = if is_fine() {
        if !filter::lasting(|| mark) {
            return Err(Counter::FilteredOut);
        }
        match leaving::put(skb, record, served, is_its) {
            Ok(()) => return Ok(()),
            Err(reason) => Some(reason),
        }
    } else {
        missing
    };
    let packet = Finished { direction, protocol, flags: 0, stamps: &stamps };
    emit_sent(&packet, || mark, missing, record, served, is_its)
}

/// How many datagrams are in flight.
#[cfg(test)]
pub(crate) fn sending() -> u64 {
    let sent = |send: &*mut Send| {
        // SAFETY: entries, which no program writes to now.
        unsafe { (**send).state.get() == SendState::Sent }
    };
    SENDS.values().into_iter().chain(PARKED.values()).filter(sent).count() as u64
}

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

    /// If GRO merged with a list of segments, the first segment's skb is the merged one's, and goes alone. A merged skb with pages is the
    /// whole packet.
    #[test]
    fn segments_of_a_list_come_when_the_first_has_gone() {
        Machine::reset();
        let [address, head] = [64, 64].map(|size| memory::take(memory::slab(size)));
        let offsets = Offsets {
            sk_buff_head: 8,
            sk_buff_end: 16,
            sk_buff_data_len: 20,
            skb_shared_info_gso_segs: 4,
            ..Offsets::default()
        };
        Machine::with(|machine| machine.offsets = offsets);
        memory::write(address + 8, head);
        memory::write(address + 16, [0_u32, 100]);
        for (ports, segs, left) in [(5, 0, 5), (5, 1, 5), (5, 2, 0), (5, 3, 0), (0, 3, 0)] {
            memory::write(head + 4, segs as u16);
            // SAFETY: numbers only, for which 0 is a value.
            let receiving: Receiving = unsafe { core::mem::zeroed() };
            receiving.skb.set(address);
            receiving.merged_ports.set(ports);
            receiving.end_skb(Skb::<Probed>::new(address as *const u8));
            assert_eq!((receiving.skb.get(), receiving.merged_ports.get()), (0, left), "{segs} segments");
        }
    }

    /// Two that have the slots of a pair wait for long: one of them goes to the map, where it may be evicted, and not the one that comes.
    #[test]
    fn a_datagram_that_waits_for_long_makes_room() {
        Machine::reset();
        let came_at = |transport| {
            // SAFETY: numbers only, for which 0 is a value.
            Datagram { transport, ..unsafe { core::mem::zeroed() } }
        };
        let (long, keys) = (2_000_000_000, 1..);
        let pair = |key: &u64| key.wrapping_mul(SPREAD) >> (u64::BITS - SLOT_BITS);
        let mut of_a_pair = keys.filter(|key| pair(key) == 7);
        for transport in [1, 1, long] {
            let key = of_a_pair.next().expect("a key");
            assert!(matches!(WAITING.insert(key, || came_at(transport)), Inserted::New));
            assert!(WAITING.has_slot(key), "what came at {transport}");
        }
    }

    /// An skb at its address may be another datagram's of the same socket.
    #[test]
    fn a_datagram_is_told_by_ports_and_length() {
        Machine::reset();
        let [skb, head] = [64; 2].map(|size| memory::take(memory::slab(size)));
        Machine::with(|machine| machine.offsets = Offsets { sk_buff_head: 8, ..Offsets::default() });
        memory::write(skb + 8, head);
        let header = |source: u16, len: u16| [source, 53, len, 0].map(u16::to_be);
        memory::write(head, header(40_000, 20));
        let skb = Skb::<Probed>::new(skb as *const u8);
        // SAFETY: an entry, of which numbers and enums are 0.
        let send: Send = unsafe { core::mem::zeroed() };
        send.ports.set(skb.udp_header() as u32);
        send.len.set(12);
        for (source, len, is_its) in [(40_000, 20, true), (40_001, 20, false), (40_000, 21, false)] {
            memory::write(head, header(source, len));
            assert_eq!(send.has_header_of(skb), is_its, "{source} {len}");
        }
    }

    /// What comes to the device of a datagram that is cut is segments, and its own skb is freed.
    #[test]
    fn a_datagram_that_is_cut_is_not_followed() {
        Machine::reset();
        let [skb, other, socket] = [64; 3].map(|size| memory::take(memory::slab(size)));
        Machine::with(|machine| {
            machine.offsets = Offsets { sk_buff_sk: 8, ..Offsets::default() };
            machine.ids = 7 << 32 | 7;
        });
        for (cut, is_followed) in [(other, true), (skb, false)] {
            // SAFETY: an entry, of which numbers and enums are 0.
            let send: Send = unsafe { core::mem::zeroed() };
            send.skb.set(skb);
            send.socket.set(socket);
            send.state.set(SendState::Sent);
            SENDS.insert(Task::current_ids(), send, 0).expect("room for it");
            memory::write(cut + 8, socket);
            segmented(Skb::<Probed>::new(cut as *const u8));
            let send = current().expect("there");
            assert_eq!(send.state.get() == SendState::Sent, is_followed, "{cut:#x}");
        }
    }

    /// It comes to its device while another thread's entry gets its place.
    #[test]
    fn a_datagram_whose_entry_is_evicted_is_not_shown_with_anothers() {
        const THREAD: u64 = 7 << 32 | 7;
        const OTHER: u64 = 8 << 32 | 8;
        explore(&[(Barrier::ReadBefore, "another's")], || {
            Machine::with(|machine| {
                machine.offsets = Offsets { sk_buff_head: 8, ..Offsets::default() };
                machine.ids = THREAD;
            });
            let [skb, others] = [64, 64].map(|size| memory::take(memory::slab(size)));
            SENDS.share(&[THREAD, OTHER], |send| {
                // SAFETY: an entry, of which numbers and enums are 0.
                let send = unsafe { &*send };
                order::share(send.skb.address());
                order::share(send.transport.address());
            });
            let begin = |thread, skb, transport| {
                // SAFETY: as above.
                let send: Send = unsafe { core::mem::zeroed() };
                send.transport.set(transport);
                send.skb.set(skb);
                send.state.set(SendState::Sent);
                SENDS.insert(thread, send, 0).expect("room for it");
            };
            begin(THREAD, skb, 10);
            let send = current().expect("there");
            let evict = move || {
                SENDS.remove(THREAD).expect("there");
                begin(OTHER, others, 20);
            };
            let _ = race(evict, || finished(Skb::<Probed>::new(skb as *const u8), send));
            for record in ring::take_records::<PacketRecord>() {
                assert_eq!(record.stamps[STAMP_TRANSPORT], 10, "another's");
            }
        });
    }
}
