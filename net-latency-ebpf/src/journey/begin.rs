//! Where journeys begin: at the first place at which it can be told whether a packet is asked for.

use aya_ebpf::bindings::{BPF_ANY, BPF_NOEXIST};
use net_latency_common::{
    COMM_LEN, Direction, IPPROTO_TCP, IPPROTO_UDP,
    journey::{CONTEXT_PROCESS, JourneyRow, JourneyStart, ROW_WANTED, TALLY_ARMED, TALLY_BEGUN},
};

use super::{
    context,
    headers::{self, Headers},
    heads::{self, Head},
    maps::{CALLS, HANDED, JOURNEYS, TALLY, UNWANTED},
    queue::HAS_SEQ,
    row::{add, add_given, bytes, is_any, start, tally},
    settings::given,
};
use crate::{
    Outcome, before,
    config::setting,
    emit::{addresses, cpu},
    filter,
    memory::Memory,
    now,
    skb::Skb,
    socket::{Ends, Socket},
    task::Task,
};

/// A write call on a TCP socket.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Call {
    at: u64,
    /// The function.
    place: u64,
    ids: u64,
    comm: [u64; COMM_LEN / 8],
    /// Number of the first byte that it writes.
    seq: u32,
    cpu: u32,
}

/// A write call on a UDP socket.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Handed {
    at: u64,
    place: u64,
    socket: u64,
    /// When UDP had made a datagram of it, and where.
    made_at: u64,
    made_place: u64,
    skb: u64,
}

/// What is kept of a journey.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Known {
    /// Number of the first byte of a segment with payload, with [`HAS_SEQ`].
    pub(super) seq: u64,
    /// The ends of a packet that came in; 0 of one that was sent here.
    flow: u64,
}

/// How long packets between two ends are left alone after one was read by a task that was not asked for: a socket may
/// change hands.
const UNWANTED_NS: u64 = 1_000_000_000;

/// The current task reads the packet of this journey. If it is not asked for, neither are the next ones, for a while:
/// else packets of others would take all places.
#[inline(always)]
pub(super) fn read_by_current(id: u64) {
    if !filter::is_by_task() || filter::current() {
        return;
    }
    let Some(known) = JOURNEYS.get_ptr(&id) else { return };
    // SAFETY: an element that is never freed.
    let flow = unsafe { (*known).flow };
    if flow != 0 {
        let _ = UNWANTED.insert(&flow, &now(), BPF_ANY.into());
    }
}

/// A number for the two ends of a packet and its protocol. If another pair has the same, its packets may be left out.
#[inline(always)]
fn flow(headers: &Headers) -> u64 {
    const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
    let [a, b, c, d] = headers.ends.addresses;
    let ports =
        u64::from(headers.source) << 32 | u64::from(headers.destination) << 8 | u64::from(headers.protocol);
    let mixed =
        a.wrapping_mul(MIX) ^ b.rotate_left(17) ^ c.wrapping_mul(MIX).rotate_left(29) ^ d.rotate_left(41);
    (mixed ^ ports).wrapping_mul(MIX) | 1
}

/// Whether a packet between these ends was read by somebody else a moment ago.
#[inline(always)]
fn is_unwanted(flow: u64) -> bool {
    match UNWANTED.get_ptr(&flow) {
        // SAFETY: an element that is never freed.
        Some(at) => now().wrapping_sub(unsafe { *at }) < UNWANTED_NS,
        None => false,
    }
}

/// A new journey's number, which no other has: no CPU begins two at the same time.
#[inline(always)]
fn new_id() -> u64 {
    const TIME: u64 = (1 << 52) - 1;
    now() & TIME | u64::from(cpu()) << 52
}

#[inline(always)]
fn is_mark(mark: u32) -> bool {
    setting!(filter_mark) == 0 || mark & setting!(filter_mark) == setting!(mark)
}

#[inline(always)]
fn is_drawn() -> bool {
    setting!(sample_below) == 0 || filter::is_sampled()
}

/// Takes a place for a journey, if there is one.
#[inline(always)]
fn begin(seq: u64, flow: u64) -> Option<u64> {
    if TALLY.get(TALLY_ARMED).is_none_or(|armed| *armed == 0) {
        return None;
    }
    let id = new_id();
    JOURNEYS.insert(&id, &Known { seq, flow }, BPF_NOEXIST.into()).ok()?;
    tally(TALLY_BEGUN);
    Some(id)
}

/// `tcp_sendmsg_locked(sk, …)` or `do_tcp_sendpages(sk, …)`.
///
/// # Errors
/// Never.
#[inline(always)]
pub fn tcp_called<M: Memory>(socket: Socket<M>, place: u64) -> Outcome {
    if given!(begin_out) == 0
        || !filter::protocol(IPPROTO_TCP)
        || !is_mark(socket.field(given!(sk_mark) as usize))
    {
        return Ok(());
    }
    if !filter::socket(socket, &socket.identity()) {
        return Ok(());
    }
    let address = socket.address();
    if !filter::current() {
        // What comes is somebody else's.
        let _ = CALLS.remove(&address);
        return Ok(());
    }
    let Some(tcp) = socket.tcp() else { return Ok(()) };
    let call = Call {
        at: now(),
        place,
        ids: Task::current_ids(),
        comm: Task::current_name(),
        seq: tcp.write_seq(),
        cpu: cpu().into(),
    };
    let _ = CALLS.insert(&address, &call, BPF_ANY.into());
    Ok(())
}

/// `__tcp_transmit_skb(sk, skb, …)`.
///
/// # Errors
/// Never.
#[inline(always)]
pub fn tcp_transmitted<M: Memory>(socket: Socket<M>, skb: Skb<M>, place: u64) -> Outcome {
    if is_any()
        && let Some(head) = heads::find(skb)
    {
        // The segment is sent again.
        add(head.id, skb, place, 0, 0, 0);
        return Ok(());
    }
    if given!(begin_out) == 0 || !filter::protocol(IPPROTO_TCP) {
        return Ok(());
    }
    let seq = skb.tcp_cb_seq();
    let call = CALLS.get_ptr(&socket.address());
    // SAFETY: an element that is never freed.
    let call = call.map(|call| unsafe { &*call }).filter(|call| !before(seq, call.seq));
    if call.is_none() && filter::is_by_task() {
        return Ok(());
    }
    let len = skb.len();
    let mark: u32 = socket.field(given!(sk_mark) as usize);
    if len == 0 && !filter::control() || !is_mark(mark) {
        return Ok(());
    }
    let identity = socket.identity();
    if !filter::socket(socket, &identity) || !is_drawn() {
        return Ok(());
    }
    let known = if len == 0 { 0 } else { HAS_SEQ | u64::from(seq) };
    let Some(id) = begin(known, 0) else { return Ok(()) };
    heads::follow(skb.head(), &Head::of_sender(id, skb));
    let ends = socket.ends();
    let (saddr, daddr) = addresses(&ends, Direction::Out);
    start(&JourneyStart {
        id,
        saddr,
        daddr,
        seq,
        len,
        mark,
        family: ends.family,
        sport: identity.local_port(),
        dport: identity.remote_port(),
        protocol: IPPROTO_TCP,
        direction: Direction::Out as u8,
        is_wanted: 1,
        reserved: 0,
    });
    if let Some(call) = call {
        add_call(id, call.at, call.place, call.ids, call.comm, call.cpu as u16);
    }
    add(id, skb, place, 0, 0, 0);
    Ok(())
}

#[inline(always)]
fn add_call(id: u64, at: u64, place: u64, ids: u64, comm: [u64; COMM_LEN / 8], cpu: u16) {
    add_given(&JourneyRow {
        id,
        at,
        place,
        skb: 0,
        location: 0,
        softirq_at: 0,
        raised_at: 0,
        interrupt_at: 0,
        content: 0,
        comm: bytes(comm),
        device: [0; 16],
        pid: (ids >> 32) as u32,
        tid: ids as u32,
        netns: 0,
        reason: 0,
        mark: 0,
        interrupt: 0,
        cpu,
        context: CONTEXT_PROCESS,
        flags: ROW_WANTED,
        reserved: 0,
    });
}

/// `udp_sendmsg(sk, …)` or `udpv6_sendmsg(sk, …)`.
///
/// # Errors
/// Never.
#[inline(always)]
pub fn udp_called<M: Memory>(socket: Socket<M>, place: u64) -> Outcome {
    if given!(begin_out) == 0
        || !filter::protocol(IPPROTO_UDP)
        || !is_mark(socket.field(given!(sk_mark) as usize))
        || !filter::current()
    {
        return Ok(());
    }
    let handed = Handed { at: now(), place, socket: socket.address(), made_at: 0, made_place: 0, skb: 0 };
    let _ = HANDED.insert(&Task::current_ids(), &handed, BPF_ANY.into());
    Ok(())
}

/// `udp_send_skb(skb, …)` or `udp_v6_send_skb(skb, …)`: not all headers are written yet.
///
/// # Errors
/// Never.
#[inline(always)]
pub fn udp_made<M: Memory>(skb: Skb<M>, place: u64) -> Outcome {
    if given!(begin_out) != 0
        && let Some(handed) = HANDED.get_ptr_mut(&Task::current_ids())
    {
        // SAFETY: an element that is never freed.
        unsafe {
            (*handed).made_at = now();
            (*handed).made_place = place;
            (*handed).skb = skb.address();
        }
    }
    Ok(())
}

/// `ip_send_skb(net, skb)` or `ip6_send_skb(skb)`.
///
/// # Errors
/// Never.
#[inline(always)]
pub fn udp_sent<M: Memory>(skb: Skb<M>, family: u32, place: u64) -> Outcome {
    if given!(begin_out) == 0 || !filter::protocol(IPPROTO_UDP) {
        return Ok(());
    }
    let ids = Task::current_ids();
    let Some(handed) = HANDED.get_ptr(&ids) else { return Ok(()) };
    // SAFETY: an element that is never freed.
    let handed = unsafe { &*handed };
    let socket = skb.socket();
    if handed.socket != socket.address() || context::current() > CONTEXT_PROCESS {
        return Ok(());
    }
    let mark = skb.mark();
    let Some(headers) = headers::at_network(skb, family) else { return Ok(()) };
    if headers.protocol != IPPROTO_UDP
        || !is_mark(mark)
        || !filter::netns_of(socket)
        || !is_between(&headers)
        || !is_drawn()
    {
        return Ok(());
    }
    let Some(id) = begin(0, 0) else { return Ok(()) };
    heads::follow(skb.head(), &Head::of(id));
    start(&of_headers(id, &headers, mark, Direction::Out));
    let name = Task::current_name();
    add_call(id, handed.at, handed.place, ids, name, cpu());
    if handed.skb == skb.address() {
        add_call(id, handed.made_at, handed.made_place, ids, name, cpu());
    }
    add(id, skb, place, 0, 0, 0);
    Ok(())
}

#[inline(always)]
fn is_between(headers: &Headers) -> bool {
    filter::ports(headers.source, headers.destination)
        && (!filter::needs_ends() || filter::ends(&headers.ends))
}

/// An skb enters the stack.
///
/// # Errors
/// Never.
#[inline(always)]
pub fn arrived<M: Memory>(skb: Skb<M>, place: u64) -> Outcome {
    if is_any()
        && let Some(head) = heads::find(skb)
    {
        add(head.id, skb, place, 0, 0, 0);
        return Ok(());
    }
    if given!(begin_in) == 0 {
        return Ok(());
    }
    let Some(headers) = headers::at_data(skb) else { return Ok(()) };
    if !filter::protocol(headers.protocol)
        || headers.len == 0 && !filter::control() && headers.protocol == IPPROTO_TCP
        || !is_between(&headers)
    {
        return Ok(());
    }
    let mark = skb.mark();
    if !is_mark(mark) || !filter::netns(skb.device().1) || !filter::interface(skb) || !is_drawn() {
        return Ok(());
    }
    let flow = if filter::is_by_task() { flow(&headers) } else { 0 };
    if flow != 0 && is_unwanted(flow) {
        return Ok(());
    }
    let has_seq = headers.protocol == IPPROTO_TCP && headers.len != 0;
    let known = if has_seq { HAS_SEQ | u64::from(headers.seq) } else { 0 };
    let Some(id) = begin(known, flow) else { return Ok(()) };
    heads::follow(skb.head(), &Head::of(id));
    start(&of_headers(id, &headers, mark, Direction::In));
    add(id, skb, place, 0, 0, 0);
    Ok(())
}

#[inline(always)]
fn of_headers(id: u64, headers: &Headers, mark: u32, direction: Direction) -> JourneyStart {
    // They stand in a packet's header as those of its other end, then this one's.
    let (saddr, daddr) = ends(&headers.ends);
    JourneyStart {
        id,
        saddr,
        daddr,
        seq: headers.seq,
        len: headers.len,
        mark,
        family: headers.ends.family,
        sport: headers.source,
        dport: headers.destination,
        protocol: headers.protocol,
        direction: direction as u8,
        is_wanted: match direction {
            Direction::Out => 1,
            Direction::In => u8::from(!filter::is_by_task()),
        },
        reserved: 0,
    }
}

#[inline(always)]
fn ends(ends: &Ends) -> ([u8; 16], [u8; 16]) {
    addresses(ends, Direction::In)
}
