//! Where journeys begin: at the first place at which it can be told whether a packet is wanted.

use net_latency_common::{
    COMM_LEN, Direction, IPPROTO_TCP, IPPROTO_UDP,
    journey::{CONTEXT_PROCESS, JourneyRow, JourneyStart, ROW_WANTED, TALLY_BEGUN},
};

use super::{
    context,
    headers::{self, Headers},
    heads::{self, Head},
    row::{add, add_given, start},
    settings::given,
    tally::{self, HAS_SEQ, Known, is_any},
    untraced,
};
use crate::{
    bpf::{ANY, LruHashMap, cpu, map, now},
    flow::{
        addresses::{AddrPair, SPREAD, bytes},
        filter,
        settings::setting,
    },
    kernel::{memory::Memory, sequence::before, skb::Skb, socket::Socket, task::Task},
};

/// A write call on a TCP socket.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct TcpCall {
    at: u64,
    /// The function.
    place: u64,
    ids: u64,
    comm: [u64; COMM_LEN / 8],
    /// Number of the first byte that it writes.
    seq: u32,
    cpu: u32,
}

/// Write calls on TCP sockets that are wanted, by socket: of each the last.
#[map]
static TCP_CALLS: LruHashMap<u64, TcpCall> = LruHashMap::with_max_entries(4096, 0);

/// A write call on a UDP socket.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct UdpCall {
    at: u64,
    place: u64,
    socket: u64,
    /// When UDP had made a datagram of it, and where.
    made_at: u64,
    made_place: u64,
    skb: u64,
}

/// Write calls on UDP sockets, by thread: of each the last.
#[map]
static UDP_CALLS: LruHashMap<u64, UdpCall> = LruHashMap::with_max_entries(1024, 0);

/// A number for the two ends of a packet and its protocol. If another pair has the same, its packets may be left out.
#[inline(always)]
fn flow(headers: &Headers) -> u64 {
    let [a, b, c, d] = headers.addresses.addresses;
    let ports =
        u64::from(headers.source) << 32 | u64::from(headers.destination) << 8 | u64::from(headers.protocol);
    let mixed = a.wrapping_mul(SPREAD)
        ^ b.rotate_left(17)
        ^ c.wrapping_mul(SPREAD).rotate_left(29)
        ^ d.rotate_left(41);
    (mixed ^ ports).wrapping_mul(SPREAD) | 1
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
    if !tally::is_armed() {
        return None;
    }
    let id = new_id();
    if !tally::insert(id, &Known { seq, flow }) {
        return None;
    }
    tally::count(TALLY_BEGUN);
    Some(id)
}

/// `tcp_sendmsg_locked(sk, …)` or `do_tcp_sendpages(sk, …)`.
#[inline(always)]
pub fn tcp_called<M: Memory>(socket: Socket<M>, place: u64) {
    if given!(begin_out) == 0
        || !filter::protocol(IPPROTO_TCP)
        || !is_mark(socket.field_at(given!(sk_mark) as usize))
    {
        return;
    }
    if !filter::socket(socket, &socket.identity()) {
        return;
    }
    let address = socket.address();
    if !filter::current() || socket.has_pending_write() {
        // What comes is another task's, or any of several that write at the same time.
        let _ = TCP_CALLS.remove(&address);
        return;
    }
    let Some(tcp) = socket.tcp() else { return };
    let call = TcpCall {
        at: now(),
        place,
        ids: Task::current_ids(),
        comm: Task::current_name(),
        seq: tcp.write_seq(),
        cpu: cpu(),
    };
    let _ = TCP_CALLS.insert(&address, &call, ANY);
}

/// `__tcp_transmit_skb(sk, skb, …)`.
#[inline(always)]
pub fn tcp_transmitted<M: Memory>(socket: Socket<M>, skb: Skb<M>, place: u64) {
    if is_any()
        && let Some(head) = heads::find(skb)
    {
        // The segment is sent again.
        add(head.id, skb, place, 0, 0, 0);
        return;
    }
    if given!(begin_out) == 0 || !filter::protocol(IPPROTO_TCP) {
        return;
    }
    let seq = skb.tcp_cb_seq();
    let call = TCP_CALLS.get_ptr(&socket.address());
    // SAFETY: an element that is never freed.
    let call = call.map(|call| unsafe { &*call }).filter(|call| !before(seq, call.seq));
    if call.is_none() && filter::is_by_task() {
        return;
    }
    let len = skb.len();
    let mark: u32 = socket.field_at(given!(sk_mark) as usize);
    if len == 0 && !filter::control() || !is_mark(mark) {
        return;
    }
    let identity = socket.identity();
    if !filter::socket(socket, &identity) || !is_drawn() {
        return;
    }
    let known = if len == 0 { 0 } else { HAS_SEQ | u64::from(seq) };
    let Some(id) = begin(known, 0) else { return };
    heads::follow(skb.head(), &Head::of_sender(id, skb));
    let pair = AddrPair::of_socket(socket);
    let (saddr, daddr) = pair.of_record(Direction::Out);
    start(&JourneyStart {
        id,
        saddr,
        daddr,
        seq,
        len,
        mark,
        family: pair.family,
        sport: identity.local_port(),
        dport: identity.remote_port(),
        protocol: IPPROTO_TCP,
        direction: Direction::Out as u8,
        is_wanted: 1,
        reserved: 0,
    });
    // What has no byte was written by no call.
    if let Some(call) = call
        && len != 0
    {
        add_call(id, call.at, call.place, call.ids, call.comm, call.cpu as u16);
    }
    add(id, skb, place, 0, 0, 0);
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
#[inline(always)]
pub fn udp_called<M: Memory>(socket: Socket<M>, place: u64) {
    if given!(begin_out) == 0
        || !filter::protocol(IPPROTO_UDP)
        || !is_mark(socket.field_at(given!(sk_mark) as usize))
        || !filter::current()
    {
        return;
    }
    let call = UdpCall { at: now(), place, socket: socket.address(), made_at: 0, made_place: 0, skb: 0 };
    let _ = UDP_CALLS.insert(&Task::current_ids(), &call, ANY);
}

/// `udp_send_skb(skb, …)` or `udp_v6_send_skb(skb, …)`: not all headers are written yet.
#[inline(always)]
pub fn udp_made<M: Memory>(skb: Skb<M>, place: u64) {
    if given!(begin_out) != 0
        && let Some(call) = UDP_CALLS.get_ptr_mut(&Task::current_ids())
    {
        // SAFETY: an element that is never freed.
        unsafe {
            (*call).made_at = now();
            (*call).made_place = place;
            (*call).skb = skb.address();
        }
    }
}

/// `ip_send_skb(net, skb)` or `ip6_send_skb(skb)`.
#[inline(always)]
pub fn udp_sent<M: Memory>(skb: Skb<M>, family: u32, place: u64) {
    if given!(begin_out) == 0 || !filter::protocol(IPPROTO_UDP) {
        return;
    }
    let ids = Task::current_ids();
    // SAFETY: an element that is never freed.
    let call = UDP_CALLS.get_ptr(&ids).map(|call| unsafe { *call });
    let socket = skb.socket();
    // Whoever sends a corked datagram need not have written it, and may have called for another one that was never sent.
    let call = call.filter(|call| call.socket == socket.address() && !socket.udp_pending());
    if call.is_none() && filter::is_by_task() || context::current() > CONTEXT_PROCESS {
        return;
    }
    let mark = skb.mark();
    let Some(headers) = headers::at_network(skb, family) else { return };
    if headers.protocol != IPPROTO_UDP
        || !is_mark(mark)
        || !filter::netns_of(socket)
        || !is_between(&headers)
        || !is_drawn()
    {
        return;
    }
    let Some(id) = begin(0, 0) else { return };
    heads::follow(skb.head(), &Head::of(id));
    start(&of_headers(id, &headers, mark, Direction::Out));
    if let Some(call) = call {
        let name = Task::current_name();
        add_call(id, call.at, call.place, ids, name, cpu() as u16);
        if call.skb == skb.address() {
            add_call(id, call.made_at, call.made_place, ids, name, cpu() as u16);
        }
    }
    add(id, skb, place, 0, 0, 0);
}

#[inline(always)]
fn is_between(headers: &Headers) -> bool {
    filter::ports(headers.source, headers.destination)
        && (!filter::needs_addresses() || filter::addresses(&headers.addresses))
}

/// An skb enters the stack.
#[inline(always)]
pub fn arrived<M: Memory>(skb: Skb<M>, place: u64) {
    if is_any()
        && let Some(head) = heads::find(skb)
    {
        add(head.id, skb, place, 0, 0, 0);
        return;
    }
    if given!(begin_in) == 0 {
        return;
    }
    let Some(headers) = headers::at_data(skb) else { return };
    if !filter::protocol(headers.protocol)
        || headers.len == 0 && !filter::control() && headers.protocol == IPPROTO_TCP
        || !is_between(&headers)
    {
        return;
    }
    let mark = skb.mark();
    if !is_mark(mark) || !filter::netns(skb.device().1) || !filter::interface(skb) || !is_drawn() {
        return;
    }
    let flow = if filter::is_by_task() { flow(&headers) } else { 0 };
    if flow != 0 && untraced::is_untraced(flow) {
        return;
    }
    let has_seq = headers.protocol == IPPROTO_TCP && headers.len != 0;
    let known = if has_seq { HAS_SEQ | u64::from(headers.seq) } else { 0 };
    let Some(id) = begin(known, flow) else { return };
    heads::follow(skb.head(), &Head::of(id));
    start(&of_headers(id, &headers, mark, Direction::In));
    add(id, skb, place, 0, 0, 0);
}

#[inline(always)]
fn of_headers(id: u64, headers: &Headers, mark: u32, direction: Direction) -> JourneyStart {
    // They stand in a packet's header as those of its other end, then this one's.
    let (saddr, daddr) = headers.addresses.of_record(Direction::In);
    JourneyStart {
        id,
        saddr,
        daddr,
        seq: headers.seq,
        len: headers.len,
        mark,
        family: headers.addresses.family,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::host::Machine;

    #[test]
    fn two_cpus_begin_different_journeys_at_the_same_time() {
        let begun = [1, 2].map(|cpu| {
            Machine::reset();
            Machine::with(|machine| machine.cpu = cpu);
            new_id()
        });
        assert_ne!(begun[0], begun[1]);
    }
}
