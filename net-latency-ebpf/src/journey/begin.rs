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
    let mix = |mixed: u64, word: u64| {
        let mixed = (mixed ^ word).wrapping_mul(SPREAD);
        mixed ^ mixed >> 32
    };
    mix(mix(mix(mix(mix(0, a), b), c), d), ports) | 1
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
    use std::vec::Vec;

    use net_latency_common::{AF_INET, AF_INET6, ETH_P_IP, INTERFACE_LEN, Offsets, Settings};

    use super::{super::testing, *};
    use crate::{
        bpf::host::{Machine, memory},
        kernel::memory::Probed,
    };

    const REMOTE: [u8; 4] = [192, 0, 2, 1];
    const LOCAL: [u8; 4] = [192, 0, 2, 2];
    const INODE: u32 = 4_026;
    const MARK: u32 = 0x15;

    fn host(address: [u8; 4]) -> [u8; 16] {
        let mut host = [0; 16];
        host[..4].copy_from_slice(&address);
        host
    }

    fn name(device: &[u8]) -> [u8; INTERFACE_LEN] {
        let mut name = [0; INTERFACE_LEN];
        name[..device.len()].copy_from_slice(device);
        name
    }

    /// A packet of IPv4 that arrives, from port 443 to 40,000, on eth0.
    fn packet(protocol: u8, len: u16) -> Skb<Probed> {
        const DEVICE: u64 = 128;
        const NET: u64 = 192;
        const SOCKET: u64 = 64;
        Machine::reset();
        let [skb, head] = [256, 128].map(|size| memory::take(memory::slab(size)));
        Machine::with(|machine| {
            machine.offsets = Offsets {
                sk_buff_head: 8,
                sk_buff_data: 16,
                sk_buff_dev: 24,
                sk_buff_mark: 32,
                sk_buff_len: 40,
                sk_buff_data_len: 44,
                sk_buff_protocol: 48,
                sk_buff_network_header: 52,
                sk_buff_sk: 56,
                sock_skc_net: 8,
                net_device_nd_net: 8,
                net_device_name: 16,
                net_ns_inum: 8,
                ..Offsets::default()
            };
            (machine.journeys.begin_in, machine.journeys.begin_out) = (1, 1);
        });
        testing::arm();
        let header = if protocol == IPPROTO_TCP { 20 } else { 8 };
        let whole = 20 + header + len;
        memory::write(skb + 8, [head, head, skb + DEVICE]);
        memory::write(skb + 32, MARK);
        memory::write(skb + 40, [u32::from(whole), 0]);
        memory::write(skb + 48, ETH_P_IP);
        memory::write(skb + 56, skb + SOCKET);
        memory::write(skb + SOCKET + 8, skb + NET);
        memory::write(skb + DEVICE + 8, skb + NET);
        memory::write(skb + DEVICE + 16, name(b"eth0"));
        memory::write(skb + NET + 8, INODE);
        memory::write(head, [0x45_u8, 0]);
        memory::write(head + 2, whole.to_be());
        memory::write(head + 9, protocol);
        memory::write(head + 12, [REMOTE, LOCAL]);
        memory::write(head + 20, [443_u16, 40_000].map(u16::to_be));
        if protocol == IPPROTO_TCP {
            memory::write(head + 32, [0x50_u8, 0x10]);
        } else {
            memory::write(head + 24, (8 + len).to_be());
        }
        Skb::new(skb as *const u8)
    }

    /// How many journeys begin with it.
    fn begun(skb: Skb<Probed>) -> usize {
        arrived(skb, 1);
        testing::take().0.len()
    }

    /// How many begin if it is one that this machine sends.
    fn sent(skb: Skb<Probed>) -> usize {
        udp_sent(skb, AF_INET, 1);
        testing::take().0.len()
    }

    #[test]
    fn two_cpus_begin_different_journeys_at_the_same_time() {
        // The second time is that of a machine that has been up for two months.
        for clock in [1_000, 1 << 52] {
            let begun = [1, 2].map(|cpu| {
                Machine::reset();
                Machine::with(|machine| (machine.cpu, machine.clock) = (cpu, clock));
                new_id()
            });
            assert_ne!(begun[0], begun[1]);
            assert_eq!([begun[0] >> 52, begun[1] >> 52], [1, 2], "{clock}");
        }
    }

    #[test]
    fn each_filter_alone_leaves_a_packet_out() {
        type Filter = (fn(&mut Settings), fn(), usize);
        let filters: [Filter; 12] = [
            (|_| (), || (), 1),
            (|settings| settings.filter_port = 1, || (), 0),
            (|settings| settings.filter_port = 1, || filter::want_port(443), 1),
            (|settings| settings.filter_host = 1, || (), 0),
            (|settings| settings.filter_host = 1, || filter::want_host(AF_INET as u8, host(LOCAL)), 1),
            (|settings| settings.filter_family = AF_INET6, || (), 0),
            (|settings| settings.filter_netns = 1, || (), 0),
            (|settings| settings.filter_netns = 1, || filter::want_netns(INODE), 1),
            (|settings| (settings.filter_mark, settings.mark) = (0xf, 4), || (), 0),
            (|settings| (settings.filter_mark, settings.mark) = (0xf, 5), || (), 1),
            (|settings| settings.sample_below = 1, || (), 0),
            (|settings| settings.sample_below = u32::MAX, || (), 1),
        ];
        // What is sent has no device yet.
        let of_devices: [Filter; 2] = [
            (|settings| settings.filter_interface = 1, || filter::want_interface(name(b"eth1")), 0),
            (|settings| settings.filter_interface = 1, || filter::want_interface(name(b"eth0")), 1),
        ];
        let found = |protocol, (change, want, _): Filter, begun: fn(Skb<Probed>) -> usize| {
            let skb = packet(protocol, 10);
            Machine::with(|machine| {
                change(&mut machine.settings);
                machine.random = 0x1234_5678_9abc_def1;
            });
            want();
            begun(skb)
        };
        for (number, filter) in filters.into_iter().chain(of_devices).enumerate() {
            assert_eq!(found(IPPROTO_TCP, filter, begun), filter.2, "{number} of TCP");
            assert_eq!(found(IPPROTO_UDP, filter, begun), filter.2, "{number} of UDP");
        }
        for (number, filter) in filters.into_iter().enumerate() {
            assert_eq!(found(IPPROTO_UDP, filter, sent), filter.2, "{number} of UDP that is sent");
        }
        assert_eq!(sent(packet(IPPROTO_TCP, 10)), 0, "no datagram");
    }

    /// A softirq sends what no call has written, as an answer to a ping.
    #[test]
    fn only_a_task_sends_datagrams() {
        const SERVING_SOFTIRQ: u32 = 1 << 8;
        for (count, begun) in [(0, 1), (SERVING_SOFTIRQ, 0)] {
            let skb = packet(IPPROTO_UDP, 10);
            let [cpus, variables] = [64, 64].map(|size| memory::take(memory::slab(size)));
            memory::write(cpus, variables - 1_000);
            memory::write(variables, count);
            Machine::with(|machine| {
                (machine.journeys.per_cpu_offset, machine.journeys.preempt_count) = (cpus, 1_000);
            });
            assert_eq!(sent(skb), begun, "{count}");
        }
    }

    /// One whose packets a task reads that isn't wanted begins none for a while.
    #[test]
    fn a_flow_that_others_read_begins_nothing_for_a_second() {
        const TASK: u32 = 7;
        for (wanted, count) in [(TASK, 1), (TASK + 1, 0)] {
            let skb = packet(IPPROTO_TCP, 10);
            Machine::with(|machine| {
                (machine.settings.filter_task, machine.settings.filter_pid) = (1, wanted);
                machine.ids = u64::from(TASK) << 32 | u64::from(TASK);
            });
            arrived(skb, 1);
            let (starts, _) = testing::take();
            untraced::read_by_current(starts[0].id);
            testing::end(&starts);
            assert_eq!(begun(skb), count, "{wanted}");
            Machine::with(|machine| machine.clock += 1_000_000_000);
            assert_eq!(begun(skb), 1 - count, "{wanted}");
        }
    }

    /// Two flows with one number would be taken for one: of what differs in one bit none has another's.
    #[test]
    fn flows_have_numbers_of_their_own() {
        let flow = |bit: usize| {
            let set = |word: u64, first: usize| match bit.checked_sub(first) {
                Some(bit) if bit < 64 => word ^ 1 << bit,
                _ => word,
            };
            let mixed = |word: u64| word.wrapping_mul(SPREAD);
            let addresses = [0, 1, 2, 3].map(|word| set(mixed(word + 1), word as usize * 64));
            let ports = set(443 << 16 | 40_000, 256);
            flow(&Headers {
                addresses: AddrPair::new(AF_INET6, addresses),
                source: (ports >> 16) as u16,
                destination: ports as u16,
                seq: 0,
                len: 0,
                protocol: IPPROTO_TCP,
            })
        };
        const BITS: usize = 256 + 32;
        // The last one differs in none.
        let mut numbers: Vec<_> = (0..=BITS).map(flow).collect();
        assert!(numbers.iter().all(|number| *number != 0), "0 is none");
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), BITS + 1);
    }

    /// Of TCP it is an acknowledgement, of UDP it is a datagram.
    #[test]
    fn what_has_no_payload_is_left_out_of_tcp() {
        for (protocol, len, control, count) in [
            (IPPROTO_TCP, 0, 0, 0),
            (IPPROTO_TCP, 0, 1, 1),
            (IPPROTO_TCP, 1, 0, 1),
            (IPPROTO_UDP, 0, 0, 1),
            (IPPROTO_UDP, 0, 1, 1),
        ] {
            let skb = packet(protocol, len);
            Machine::with(|machine| machine.settings.control = control);
            assert_eq!(begun(skb), count, "{protocol} {len} {control}");
        }
        for (wanted, count) in [(IPPROTO_UDP, 0), (IPPROTO_TCP, 1)] {
            let skb = packet(IPPROTO_TCP, 1);
            Machine::with(|machine| machine.settings.filter_protocol = wanted.into());
            assert_eq!(begun(skb), count, "{wanted}");
        }
    }

    #[test]
    fn a_packet_begins_one_journey_if_there_is_room_and_one_is_wanted() {
        let skb = packet(IPPROTO_TCP, 1);
        assert_eq!([begun(skb), begun(skb)], [1, 0]);
        let skb = packet(IPPROTO_TCP, 1);
        Machine::with(|machine| machine.journeys.begin_in = 0);
        assert_eq!(begun(skb), 0);
    }

    /// A call that does not count leaves nothing that a packet could be said to be of.
    #[test]
    fn calls_are_kept_of_who_is_wanted() {
        const SK_MARK: u64 = 8;
        type Change = fn(&mut Machine);
        let filters: [(Change, [bool; 2]); 9] = [
            (|_| (), [true, true]),
            (|machine| machine.journeys.begin_out = 0, [false, false]),
            (|machine| machine.settings.filter_protocol = IPPROTO_TCP.into(), [true, false]),
            (|machine| machine.settings.filter_protocol = IPPROTO_UDP.into(), [false, true]),
            (|machine| (machine.settings.filter_mark, machine.settings.mark) = (0xf, 4), [false, false]),
            (|machine| (machine.settings.filter_mark, machine.settings.mark) = (0xf, 5), [true, true]),
            (|machine| (machine.settings.filter_task, machine.settings.filter_pid) = (1, 8), [false, false]),
            (|machine| (machine.settings.filter_task, machine.settings.filter_pid) = (1, 7), [true, true]),
            // Of UDP its packet's ports tell.
            (|machine| machine.settings.filter_port = 1, [false, true]),
        ];
        for (number, (change, kept)) in filters.into_iter().enumerate() {
            Machine::reset();
            let [tcp, udp] = [64; 2].map(|size| memory::take(memory::slab(size)));
            Machine::with(|machine| {
                machine.offsets = Offsets {
                    sock_skc_state: 16,
                    sock_sk_protocol: 20,
                    sock_sk_write_pending: 24,
                    ..Offsets::default()
                };
                (machine.journeys.begin_out, machine.journeys.sk_mark) = (1, SK_MARK as u32);
                machine.ids = 7 << 32 | 7;
                change(machine);
            });
            memory::write(tcp + SK_MARK, MARK);
            memory::write(udp + SK_MARK, MARK);
            memory::write(tcp + 16, 1_u8);
            memory::write(tcp + 20, u16::from(IPPROTO_TCP));
            tcp_called(Socket::<Probed>::new(tcp as *const u8), 1);
            udp_called(Socket::<Probed>::new(udp as *const u8), 1);
            let is_kept =
                [TCP_CALLS.get_ptr(&tcp).is_some(), UDP_CALLS.get_ptr(&Task::current_ids()).is_some()];
            assert_eq!(is_kept, kept, "{number}");
        }
    }

    /// The first byte that comes with a SYN has the next number (`tcp_rcv_fastopen`).
    #[test]
    fn a_syn_has_a_number_which_is_no_bytes() {
        for (flags, seq) in [(0x10, 1_000), (0x02, 1_001)] {
            let skb = packet(IPPROTO_TCP, 5);
            memory::write(skb.head() + 24, 1_000_u32.to_be());
            memory::write(skb.head() + 33, flags as u8);
            arrived(skb, 1);
            let start = testing::take().0[0];
            assert_eq!((start.seq, start.len, start.sport, start.dport), (seq, 5, 443, 40_000), "{flags}");
            assert_eq!((start.saddr, start.daddr, start.mark), (host(REMOTE), host(LOCAL), MARK));
        }
    }

    #[test]
    fn fragments_and_what_is_cut_off_begin_nothing() {
        for (at, value) in [(6, 0x20_u8), (7, 1), (9, 1)] {
            let skb = packet(IPPROTO_UDP, 5);
            memory::write(skb.head() + at, value);
            assert_eq!(begun(skb), 0, "{at}");
        }
        for (protocol, least) in [(IPPROTO_TCP, 40), (IPPROTO_UDP, 28)] {
            for (linear, count) in [(least, 1), (least - 1, 0)] {
                let skb = packet(protocol, 20);
                let len: u32 = memory::read(skb.address() + 40);
                memory::write(skb.address() + 44, len - linear);
                assert_eq!(begun(skb), count, "{protocol} {linear}");
            }
        }
        let skb = packet(IPPROTO_UDP, 5);
        memory::write(skb.address() + 48, 1_u16);
        assert_eq!(begun(skb), 0, "neither IPv4 nor IPv6");
    }
}
