//! Connections' lives, in a kernel made of structs.

use core::mem::offset_of;
use std::vec::Vec;

use net_latency_common::{
    AF_INET, AF_INET6, CONNECTION_COOKIE, CONNECTION_FAST_OPEN, CONNECTION_OVERFLOW, ETH_P_IP, ETH_P_IPV6,
    IPPROTO_UDP, ListenerRecord, Offsets, Settings,
};

use super::*;
use crate::{
    bpf::host::{
        Machine, memory, of_type,
        order::{self, Barrier, explore, race},
    },
    kernel::{connection::Request, memory::Probed},
};

/// A `tcp_sock`, a request and an skb in one: each has its own fields.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Fields {
    /// `skc_daddr`, `skc_rcv_saddr`.
    addresses: u64,
    /// `skc_dport`, `skc_num`.
    ports: u32,
    /// Whether a task holds it.
    owned: u32,
    net: u64,
    flags: u64,
    bytes_received: u64,
    sent_last: u64,
    bytes_sent: u64,
    bytes_retrans: u64,
    answered_us: u64,
    error: u32,
    mark: u32,
    waiting: u32,
    most_waiting: u32,
    drops: u32,
    rcv_nxt: u32,
    write_seq: u32,
    snd_una: u32,
    segs_in: u32,
    segs_out: u32,
    resent: u32,
    is_mptcp: u32,
    first: u64,
    srtt: u32,
    least_rtt: u32,
    seq: u32,
    end_seq: u32,
    gso_segs: u16,
    tcp_flags: u8,
    state: u8,
    family: u16,
    protocol: u16,
    skb_protocol: u16,
    source_port: u16,
    skb_head: u64,
    skb_network: u16,
    rest: [u16; 3],
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Other {
    leader: u64,
    flags: u64,
    comm: [u8; 16],
    inode: u32,
    pad: u32,
}

const SERVER_PORT: u16 = 443;
const CLIENT_PORT: u16 = 40_000;
const PID: u32 = 700;

/// The machine, and what its sockets are made of.
struct Kernel {
    slab: usize,
    net: u64,
}

impl Kernel {
    fn new() -> Self {
        Machine::reset();
        let slab = memory::slab(size_of::<Fields>() as u64);
        let others = memory::slab(size_of::<Other>() as u64);
        let [net, task] = [memory::take(others), memory::take(others)];
        memory::write(net, Other { inode: 4_026, ..Other::default() });
        memory::write(
            task,
            Other { leader: task, comm: *b"nginx\0\0\0\0\0\0\0\0\0\0\0", ..Other::default() },
        );
        let at = |offset: usize| offset as u32;
        Machine::with(|machine| {
            machine.offsets = Offsets {
                sock_skc_addrpair: at(offset_of!(Fields, addresses)),
                sock_skc_portpair: at(offset_of!(Fields, ports)),
                sock_skc_net: at(offset_of!(Fields, net)),
                sock_skc_state: at(offset_of!(Fields, state)),
                sock_skc_family: at(offset_of!(Fields, family)),
                sock_sk_protocol: at(offset_of!(Fields, protocol)),
                sock_sk_lock_owned: at(offset_of!(Fields, owned)),
                sock_sk_drops: at(offset_of!(Fields, drops)),
                sock_skc_flags: at(offset_of!(Fields, flags)),
                sock_sk_err: at(offset_of!(Fields, error)),
                sock_sk_mark: at(offset_of!(Fields, mark)),
                sock_sk_ack_backlog: at(offset_of!(Fields, waiting)),
                sock_sk_max_ack_backlog: at(offset_of!(Fields, most_waiting)),
                inet_sock_inet_sport: at(offset_of!(Fields, source_port)),
                tcp_sock_bytes_received: at(offset_of!(Fields, bytes_received)),
                tcp_sock_tcp_wstamp_ns: at(offset_of!(Fields, sent_last)),
                tcp_sock_bytes_sent: at(offset_of!(Fields, bytes_sent)),
                tcp_sock_bytes_retrans: at(offset_of!(Fields, bytes_retrans)),
                tcp_sock_segs_in: at(offset_of!(Fields, segs_in)),
                tcp_sock_segs_out: at(offset_of!(Fields, segs_out)),
                tcp_sock_is_mptcp: at(offset_of!(Fields, is_mptcp)),
                mptcp_sock_first: at(offset_of!(Fields, first)),
                tcp_sock_total_retrans: at(offset_of!(Fields, resent)),
                tcp_sock_rtt_min: at(offset_of!(Fields, least_rtt)),
                tcp_sock_srtt_us: at(offset_of!(Fields, srtt)),
                tcp_sock_rcv_nxt: at(offset_of!(Fields, rcv_nxt)),
                tcp_sock_write_seq: at(offset_of!(Fields, write_seq)),
                tcp_sock_snd_una: at(offset_of!(Fields, snd_una)),
                tcp_request_sock_snt_synack: at(offset_of!(Fields, answered_us)),
                tcp_skb_cb_seq: at(offset_of!(Fields, seq)),
                tcp_skb_cb_end_seq: at(offset_of!(Fields, end_seq)),
                tcp_skb_cb_tcp_gso_segs: at(offset_of!(Fields, gso_segs)),
                tcp_skb_cb_tcp_flags: at(offset_of!(Fields, tcp_flags)),
                sk_buff_protocol: at(offset_of!(Fields, skb_protocol)),
                sk_buff_head: at(offset_of!(Fields, skb_head)),
                sk_buff_network_header: at(offset_of!(Fields, skb_network)),
                net_ns_inum: at(offset_of!(Other, inode)),
                task_struct_group_leader: at(offset_of!(Other, leader)),
                task_struct_flags: at(offset_of!(Other, flags)),
                task_struct_comm: at(offset_of!(Other, comm)),
                bpf_get_current_task_btf: 1,
                ..Offsets::default()
            };
            machine.ids = u64::from(PID) << 32 | u64::from(PID);
            machine.task = task;
            machine.settings.wakeup_bytes = 1 << 20;
            machine.clock = 1_000;
        });
        Self { slab, net }
    }

    /// A socket of this end, which has this port.
    fn socket(&self, local: u16, remote: u16) -> Made {
        let made = Made(memory::take(self.slab));
        made.set(|fields| {
            *fields = Fields {
                addresses: u64::from_le_bytes([192, 0, 2, 1, 192, 0, 2, 2]),
                ports: u32::from(local) << 16 | u32::from(remote.to_be()),
                net: self.net,
                family: AF_INET as u16,
                protocol: u16::from(IPPROTO_TCP),
                source_port: local.to_be(),
                ..Fields::default()
            };
        });
        made
    }

    fn listener(&self) -> Made {
        let made = self.socket(SERVER_PORT, 0);
        made.set(|fields| fields.most_waiting = 2);
        made
    }
}

/// A struct of this kernel.
#[derive(Clone, Copy)]
struct Made(u64);

impl Made {
    fn set(self, change: impl FnOnce(&mut Fields)) {
        let mut fields: Fields = memory::read(self.0);
        change(&mut fields);
        memory::write(self.0, fields);
    }

    fn socket(self) -> Socket<Probed> {
        Socket::new(self.0 as *const u8)
    }

    fn skb(self) -> Skb<Probed> {
        Skb::new(self.0 as *const u8)
    }

    fn request(self) -> Request<Probed> {
        Request::new(self.0 as *const u8)
    }

    /// The kernel changes the socket's state, which it tells both programs.
    fn becomes(self, old: u8, new: u8) {
        self.becomes_before([true; 2], old, new);
    }

    /// The same, where it may skip one of them.
    fn becomes_before(self, programs: [bool; 2], old: u8, new: u8) {
        let number = |state: u8| Number::new(usize::from(state) as *const u8);
        let programs = [changed, changed_by_softirq].into_iter().zip(programs);
        for (program, _) in programs.filter(|(_, is_run)| *is_run) {
            program(self.socket(), number(old), number(new)).expect("room for all");
        }
        self.set(|fields| fields.state = new);
    }
}

fn at(ns: u64) {
    // The next look at the clock is later.
    Machine::with(|machine| machine.clock = ns - 1);
}

/// A segment from the other end: numbers, and flags of TCP.
fn segment(kernel: &Kernel, seq: u32, len: u32, flags: u8) -> Made {
    let skb = Made(memory::take(kernel.slab));
    let fin_or_syn = u32::from(flags & 1) + u32::from(flags >> 1 & 1);
    skb.set(|fields| {
        *fields = Fields { seq, end_seq: seq + len + fin_or_syn, tcp_flags: flags, ..Fields::default() };
    });
    skb
}

const ACK: u8 = 0x10;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;

fn taken() -> Vec<ConnectionRecord> {
    of_type(&CONNECTION_RECORDS.take())
}

fn counted(counter: ConnectionCounter) -> u64 {
    let counters = CONNECTION_COUNTERS.get_ptr_mut(0).expect("index 0");
    // SAFETY: index 0 of a per-CPU array is valid.
    unsafe { (*counters)[counter as usize] }
}

fn one() -> ConnectionRecord {
    let mut records = taken();
    assert_eq!(records.len(), 1, "{records:?}");
    records.pop().expect("one")
}

/// The last ACK of a handshake comes to a listening socket, which answered the SYN at that time, and makes a socket.
fn server(kernel: &Kernel, listener: Made, answered_us: u64, flags: u8) -> Made {
    let request = kernel.socket(SERVER_PORT, CLIENT_PORT);
    request.set(|fields| fields.answered_us = answered_us);
    let ack = segment(kernel, 100, 0, flags);
    listeners::completed(listener.socket(), ack.skb(), request.request()).expect("room");
    let child = kernel.socket(SERVER_PORT, CLIENT_PORT);
    child.becomes(state::LISTEN, state::SYN_RECV);
    memory::free(request.0);
    child
}

#[test]
fn a_servers_connection_is_told_whole() {
    let kernel = Kernel::new();
    let listener = kernel.listener();
    let child = server(&kernel, listener, 2, ACK);
    listener.set(|fields| fields.waiting = 1);
    at(5_000);
    child.becomes(state::SYN_RECV, state::ESTABLISHED);
    at(6_000);
    accepted(child.socket()).expect("room");
    child.set(|fields| (fields.rcv_nxt, fields.state) = (101, state::ESTABLISHED));
    // Only the next byte can be a first byte.
    for (now, seq, len) in [(7_000, 111, 10), (8_000, 101, 10), (9_000, 101, 0), (9_500, 90, 11)] {
        at(now);
        received(child.socket(), segment(&kernel, seq, len, ACK).skb()).expect("room");
    }
    child.set(|fields| (fields.bytes_received, fields.rcv_nxt) = (10, 111));
    at(10_000);
    received(child.socket(), segment(&kernel, 111, 10, ACK).skb()).expect("room");
    written(child.socket()).expect("room");
    child.set(|fields| (fields.write_seq, fields.bytes_sent, fields.bytes_retrans) = (50, 70, 20));
    at(11_000);
    written(child.socket()).expect("room");
    child.becomes(state::ESTABLISHED, state::CLOSE_WAIT);
    child.becomes(state::CLOSE_WAIT, state::LAST_ACK);
    // A FIN is counted as a byte, and the port is given back.
    child.set(|fields| {
        (fields.bytes_received, fields.flags, fields.resent) = (11, 1 << 1, 3);
        (fields.segs_in, fields.segs_out) = (8, 9);
        fields.ports &= 0xffff;
    });
    at(20_000);
    child.becomes(state::LAST_ACK, state::CLOSE);
    let record = one();
    assert_eq!(
        (record.started_ns, record.established_ns, record.accepted_ns, record.at_ns),
        (2_000, 5_000, 6_000, 20_000)
    );
    assert_eq!((record.first_in_ns, record.first_out_ns), (8_000, 10_000));
    assert_eq!((record.bytes_in, record.bytes_out, record.retrans, record.syn_retrans), (10, 50, 3, 0));
    assert_eq!((record.segs_in, record.segs_out), (8, 9));
    assert_eq!((record.local_port, record.remote_port, record.netns), (SERVER_PORT, CLIENT_PORT, 4_026));
    assert_eq!((record.local[..4].to_vec(), record.remote[0]), (std::vec![192, 0, 2, 2], 192));
    assert_eq!((record.pid, &record.process[..6]), (PID, &b"nginx\0"[..]));
    assert_eq!(record.flags, CONNECTION_SERVER | CONNECTION_PEER_FIRST);
    assert_eq!(record.state, state::LAST_ACK);
    // It is gone.
    child.becomes(state::CLOSE, state::CLOSE);
    assert_eq!(taken(), []);
}

/// Whoever closes a connection that was seen from its beginning has not thereby accepted it.
#[test]
fn what_was_not_accepted_has_no_process() {
    let kernel = Kernel::new();
    let child = server(&kernel, kernel.listener(), 2, ACK);
    child.becomes(state::SYN_RECV, state::ESTABLISHED);
    child.becomes(state::ESTABLISHED, state::FIN_WAIT1);
    child.becomes(state::FIN_WAIT1, state::CLOSE);
    let record = one();
    assert_eq!((record.flags, record.pid), (CONNECTION_SERVER | CONNECTION_LOCAL_FIRST, 0));
}

#[test]
fn a_change_that_one_program_misses_is_noted_once() {
    let kernel = Kernel::new();
    let listener = kernel.listener();
    for skipped in 0..3_u32.pow(4) {
        let child = server(&kernel, listener, 2, ACK);
        let mut old = state::SYN_RECV;
        for (change, new) in (0..).zip([state::ESTABLISHED, state::CLOSE_WAIT, state::LAST_ACK, state::CLOSE])
        {
            let skipped = skipped / 3_u32.pow(change) % 3;
            child.becomes_before([skipped != 1, skipped != 2], old, new);
            old = new;
        }
        let record = one();
        assert_eq!(record.flags, CONNECTION_SERVER | CONNECTION_PEER_FIRST, "{skipped}");
        assert!(record.established_ns > 0 && record.started_ns > 0, "{skipped}: {record:?}");
        // The next one has the same address.
        memory::free(child.0);
    }
}

#[test]
fn what_tasks_do_is_noted_once_where_they_have_a_program_of_their_own() {
    let kernel = Kernel::new();
    Machine::with(|machine| machine.settings.tasks_apart = 1);
    let client = kernel.socket(CLIENT_PORT, SERVER_PORT);
    let [asks, answered, closes] = [
        (state::CLOSE, state::SYN_SENT, 1),
        (state::SYN_SENT, state::ESTABLISHED, 0),
        (state::ESTABLISHED, state::CLOSE, 1),
    ];
    for (old, new, owned) in [asks, answered, closes] {
        client.set(|fields| (fields.owned, fields.state) = (owned, old));
        changes_by_task(client.socket(), Number::new(usize::from(new) as *const u8)).expect("room");
        client.becomes(old, new);
    }
    let record = one();
    assert_eq!((record.pid, record.flags), (PID, CONNECTION_CLIENT));
    assert!(record.established_ns > record.started_ns, "{record:?}");
}

#[test]
fn a_client_is_who_asked() {
    let kernel = Kernel::new();
    let client = kernel.socket(CLIENT_PORT, SERVER_PORT);
    client.set(|fields| fields.owned = 1);
    at(2_000);
    client.becomes(state::CLOSE, state::SYN_SENT);
    Machine::with(|machine| machine.ids = 5 << 32 | 5);
    client.set(|fields| fields.resent = 2);
    at(3_000);
    client.becomes(state::SYN_SENT, state::ESTABLISHED);
    client.becomes(state::ESTABLISHED, state::FIN_WAIT1);
    client.becomes(state::FIN_WAIT1, state::FIN_WAIT2);
    client.set(|fields| (fields.resent, fields.bytes_received) = (5, 12));
    client.becomes(state::FIN_WAIT2, state::CLOSE);
    let record = one();
    assert_eq!((record.pid, record.started_ns, record.established_ns), (PID, 2_000, 3_000));
    // No FIN has come that is one of them.
    assert_eq!((record.syn_retrans, record.retrans, record.bytes_in), (2, 3, 12));
    assert_eq!(record.flags, CONNECTION_CLIENT | CONNECTION_LOCAL_FIRST);
    // One that never gets an answer.
    client.becomes(state::CLOSE, state::SYN_SENT);
    client.set(|fields| (fields.error, fields.resent) = (110, 7));
    client.becomes(state::SYN_SENT, state::CLOSE);
    let record = one();
    assert_eq!((record.established_ns, record.syn_retrans, record.retrans, record.error), (0, 7, 0, 110));
}

#[test]
fn a_client_that_is_established_is_told_if_wanted() {
    let kernel = Kernel::new();
    for is_wanted in [false, true] {
        Machine::with(|machine| machine.settings.tell_established = is_wanted.into());
        let client = kernel.socket(CLIENT_PORT, SERVER_PORT);
        at(2_000);
        client.becomes(state::CLOSE, state::SYN_SENT);
        client.set(|fields| fields.resent = 1);
        at(3_000);
        client.becomes(state::SYN_SENT, state::ESTABLISHED);
        let told = taken();
        assert_eq!(told.len(), usize::from(is_wanted));
        for record in told {
            assert_eq!((record.started_ns, record.established_ns, record.syn_retrans), (2_000, 3_000, 1));
            assert_eq!((record.pid, record.flags), (PID, CONNECTION_CLIENT | CONNECTION_OPEN));
        }
        client.becomes(state::ESTABLISHED, state::CLOSE);
        assert_eq!(one().established_ns, 3_000);
    }
    // A server's is told when it ends.
    let child = server(&kernel, kernel.listener(), 2, ACK);
    child.becomes(state::SYN_RECV, state::ESTABLISHED);
    assert_eq!(taken(), []);
}

#[test]
fn a_clients_handshake_begins_when_its_syn_leaves() {
    let kernel = Kernel::new();
    // Sent later than the task asked; sent again; and a time that can't be.
    for (sent, resent, started) in
        [(2_500, 0, 2_500), (2_500, 1, 2_000), (1_500, 0, 2_000), (3_500, 0, 2_000)]
    {
        let client = kernel.socket(CLIENT_PORT, SERVER_PORT);
        at(2_000);
        client.becomes(state::CLOSE, state::SYN_SENT);
        client.set(|fields| (fields.sent_last, fields.resent) = (sent, resent));
        at(3_000);
        client.becomes(state::SYN_SENT, state::ESTABLISHED);
        client.becomes(state::ESTABLISHED, state::CLOSE);
        assert_eq!(one().started_ns, started);
    }
}

#[test]
fn what_a_request_knew_goes_to_its_own_socket() {
    let kernel = Kernel::new();
    let listener = kernel.listener();
    let child = server(&kernel, listener, 2, ACK);
    // The program was skipped for another one.
    let other = kernel.socket(SERVER_PORT, CLIENT_PORT + 1);
    other.becomes(state::SYN_RECV, state::ESTABLISHED);
    child.becomes(state::SYN_RECV, state::ESTABLISHED);
    for (socket, started) in [(other, 0), (child, 2_000)] {
        socket.becomes(state::ESTABLISHED, state::CLOSE);
        assert_eq!(one().started_ns, started);
    }
    // It is taken once.
    let again = kernel.socket(SERVER_PORT, CLIENT_PORT);
    again.becomes(state::SYN_RECV, state::ESTABLISHED);
    again.becomes(state::ESTABLISHED, state::CLOSE);
    assert_eq!(one().started_ns, 0);
}

#[test]
fn handshakes_of_other_kinds() {
    let kernel = Kernel::new();
    let listener = kernel.listener();
    let child = server(&kernel, listener, 0, ACK);
    // The last ACK has bytes with it.
    child.set(|fields| fields.state = state::SYN_RECV);
    received_otherwise(child.socket(), segment(&kernel, 101, 10, ACK).skb()).expect("room");
    at(3_000);
    child.becomes(state::SYN_RECV, state::ESTABLISHED);
    child.set(|fields| fields.bytes_received = 10);
    child.becomes(state::ESTABLISHED, state::CLOSE);
    let record = one();
    assert_eq!((record.started_ns, record.flags), (0, CONNECTION_SERVER | CONNECTION_COOKIE));
    assert_eq!(record.first_in_ns, 3_000);
    // Fast Open: the socket is there with the SYN, and is accepted before the last ACK comes.
    at(4_000);
    let child = server(&kernel, listener, 0, SYN);
    at(5_000);
    accepted(child.socket()).expect("room");
    let between = server(&kernel, listener, 4, ACK);
    at(6_000);
    child.becomes(state::SYN_RECV, state::ESTABLISHED);
    child.becomes(state::ESTABLISHED, state::CLOSE);
    let record = one();
    assert_eq!(record.flags, CONNECTION_SERVER | CONNECTION_FAST_OPEN);
    assert_eq!((record.started_ns, record.accepted_ns, record.established_ns), (4_000, 5_000, 6_000));
    between.becomes(state::SYN_RECV, state::CLOSE);
    assert_eq!(taken(), [], "it never was a connection");
}

#[test]
fn what_is_older_is_said_to_be() {
    let kernel = Kernel::new();
    let old = kernel.socket(CLIENT_PORT, SERVER_PORT);
    old.becomes(state::ESTABLISHED, state::FIN_WAIT1);
    old.becomes(state::FIN_WAIT1, state::FIN_WAIT2);
    old.becomes(state::FIN_WAIT2, state::CLOSE);
    let record = one();
    assert_eq!((record.flags, record.pid), (CONNECTION_UNSEEN | CONNECTION_LOCAL_FIRST, PID));
    // Closed by the other end first, and then by its own process.
    old.becomes(state::ESTABLISHED, state::CLOSE_WAIT);
    old.becomes(state::CLOSE_WAIT, state::LAST_ACK);
    old.becomes(state::LAST_ACK, state::CLOSE);
    let record = one();
    assert_eq!((record.flags, record.pid), (CONNECTION_UNSEEN | CONNECTION_PEER_FIRST, PID));
    // A reset comes in a softirq, and says of no process.
    old.becomes(state::ESTABLISHED, state::CLOSE);
    assert_eq!((one().pid, taken().len()), (0, 0));
    // For a client that was connecting before, it is only known that it is open.
    old.becomes(state::SYN_SENT, state::ESTABLISHED);
    old.becomes(state::ESTABLISHED, state::CLOSE);
    assert_eq!(one().flags, CONNECTION_UNSEEN);
}

#[test]
fn only_who_is_asked_for_has_lines() {
    let kernel = Kernel::new();
    Machine::with(|machine| (machine.settings.filter_task, machine.settings.filter_pid) = (1, PID + 1));
    let listener = kernel.listener();
    let live = |is_wanted: bool| {
        Machine::with(|machine| machine.ids = u64::from(PID + u32::from(is_wanted)) << 32);
        let child = server(&kernel, listener, 2, ACK);
        child.becomes(state::SYN_RECV, state::ESTABLISHED);
        accepted(child.socket()).expect("room");
        child.becomes(state::ESTABLISHED, state::CLOSE);
        let client = kernel.socket(CLIENT_PORT, SERVER_PORT);
        client.becomes(state::CLOSE, state::SYN_SENT);
        client.becomes(state::SYN_SENT, state::CLOSE);
        taken().len()
    };
    assert_eq!([live(false), live(true)], [0, 2]);
    // Nor one that no process has accepted.
    let child = server(&kernel, listener, 2, ACK);
    child.becomes(state::SYN_RECV, state::ESTABLISHED);
    child.becomes(state::ESTABLISHED, state::CLOSE);
    assert_eq!(taken(), []);
    // Nor one that its queue has no room for.
    turn_away(&kernel);
    assert_eq!(taken(), []);
}

/// A request finds the queue of a listening socket full.
fn turn_away(kernel: &Kernel) {
    let listener = kernel.listener();
    listener.set(|fields| fields.waiting = 3);
    let request = kernel.socket(SERVER_PORT, CLIENT_PORT);
    let ack = segment(kernel, 100, 0, ACK);
    listeners::completed(listener.socket(), ack.skb(), request.request()).expect("room");
}

#[test]
fn a_full_queue_is_counted_and_each_that_is_turned_away_told_once() {
    let kernel = Kernel::new();
    let listener = kernel.listener();
    listener.set(|fields| (fields.waiting, fields.drops) = (3, 7));
    let request = kernel.socket(SERVER_PORT, CLIENT_PORT);
    request.set(|fields| fields.answered_us = 9);
    let ack = segment(&kernel, 100, 0, ACK);
    for _ in 0..3 {
        listeners::requested(listener.socket()).expect("room");
        listeners::completed(listener.socket(), ack.skb(), request.request()).expect("room");
    }
    // It is not what the next connection comes from.
    let child = kernel.socket(SERVER_PORT, CLIENT_PORT);
    child.becomes(state::SYN_RECV, state::ESTABLISHED);
    child.becomes(state::ESTABLISHED, state::CLOSE);
    let records = taken();
    assert_eq!(records.len(), 2, "{records:?}");
    assert_eq!(records[0].flags, CONNECTION_SERVER | CONNECTION_OVERFLOW);
    assert_eq!((records[0].family, records[0].local[0]), (AF_INET as u8, 192));
    assert_eq!(
        (records[0].started_ns, records[0].remote_port, records[1].started_ns),
        (9_000, CLIENT_PORT, 0)
    );
    // Other requests at its address: of another time, of another port.
    request.set(|fields| fields.answered_us = 10);
    listeners::completed(listener.socket(), ack.skb(), request.request()).expect("room");
    let answered = u64::MAX >> 20;
    for port in [CLIENT_PORT, CLIENT_PORT + 1, CLIENT_PORT + 1] {
        request.set(|fields| {
            fields.answered_us = answered;
            fields.ports = u32::from(SERVER_PORT) << 16 | u32::from(port.to_be());
        });
        listeners::completed(listener.socket(), ack.skb(), request.request()).expect("room");
    }
    assert_eq!(taken().len(), 3);
    listener.set(|fields| fields.drops = 14);
    let record = ended_listener(listener);
    assert_eq!((record.overflows, record.drops, record.most_waiting, record.backlog), (10, 7, 3, 2));
    assert_eq!((record.port, record.is_closed, record.waiting), (SERVER_PORT, 1, 0));
}

#[test]
fn a_full_table_of_listening_sockets_costs_no_connection_its_times() {
    let kernel = Kernel::new();
    Machine::with(|machine| machine.entries = 2);
    for _ in 0..2 {
        kernel.listener().becomes(state::CLOSE, state::LISTEN);
    }
    let listener = kernel.listener();
    listeners::requested(listener.socket()).expect("nothing is said of it");
    let child = server(&kernel, listener, 2, ACK);
    at(5_000);
    child.becomes(state::SYN_RECV, state::ESTABLISHED);
    accepted(child.socket()).expect("room");
    child.becomes(state::ESTABLISHED, state::CLOSE);
    let record = one();
    assert_eq!((record.started_ns, record.established_ns), (2_000, 5_000));
    // One that is turned away is told as well.
    turn_away(&kernel);
    assert_eq!(one().flags & CONNECTION_OVERFLOW, CONNECTION_OVERFLOW);
    assert_eq!(counted(ConnectionCounter::ListenersFull), 3);
}

#[test]
fn a_connection_that_finds_no_room_is_counted_once() {
    let kernel = Kernel::new();
    Machine::with(|machine| machine.entries = 2);
    for _ in 0..2 {
        kernel.socket(CLIENT_PORT, SERVER_PORT).becomes(state::CLOSE, state::SYN_SENT);
    }
    let child = kernel.socket(SERVER_PORT, CLIENT_PORT);
    let number = |state: u8| Number::new(usize::from(state) as *const u8);
    let begins = changed(child.socket(), number(state::SYN_RECV), number(state::ESTABLISHED));
    assert_eq!(begins, Err(ConnectionCounter::TableFull));
    // Later events are of no other connection.
    accepted(child.socket()).expect("it was counted");
    child.becomes(state::ESTABLISHED, state::CLOSE_WAIT);
    child.becomes(state::CLOSE_WAIT, state::LAST_ACK);
    child.becomes(state::LAST_ACK, state::CLOSE);
    assert_eq!(one().flags, CONNECTION_UNSEEN);
}

#[test]
fn a_socket_of_mptcp_is_accepted_for_its_first_subflow() {
    let kernel = Kernel::new();
    let listener = kernel.listener();
    let child = server(&kernel, listener, 2, ACK);
    child.set(|fields| fields.is_mptcp = 1);
    child.becomes(state::SYN_RECV, state::ESTABLISHED);
    let whole = kernel.socket(SERVER_PORT, CLIENT_PORT);
    whole.set(|fields| fields.protocol = MPTCP);
    whole.becomes(state::SYN_RECV, state::ESTABLISHED);
    accepted(whole.socket()).expect("one without subflows");
    whole.set(|fields| fields.first = child.0);
    at(6_000);
    accepted(whole.socket()).expect("room");
    whole.becomes(state::ESTABLISHED, state::CLOSE);
    child.becomes(state::ESTABLISHED, state::CLOSE);
    let record = one();
    assert_eq!((record.accepted_ns, record.pid), (6_000, PID));
    assert_eq!(record.flags, CONNECTION_SERVER | CONNECTION_MPTCP);
}

/// A subflow of MPTCP that is about to be established, the socket that it is of, and the one that listens.
fn subflow(kernel: &Kernel) -> [Made; 3] {
    let listener = kernel.listener();
    listener.becomes(state::CLOSE, state::LISTEN);
    let child = server(kernel, listener, 2, ACK);
    child.set(|fields| (fields.is_mptcp, fields.state) = (1, state::SYN_RECV));
    let whole = kernel.socket(SERVER_PORT, CLIENT_PORT);
    whole.set(|fields| (fields.protocol, fields.first) = (MPTCP, child.0));
    [child, whole, listener]
}

/// The record of a listening socket, which ends.
fn ended_listener(listener: Made) -> ListenerRecord {
    listener.becomes(state::LISTEN, state::CLOSE);
    told_listener()
}

fn told_listener() -> ListenerRecord {
    let words = CONNECTION_RECORDS.take().pop().expect("a record of the listening socket");
    assert_eq!(size_of_val(&words[..]), size_of::<ListenerRecord>());
    // SAFETY: a record of that size, of which any words are one.
    unsafe { words.as_ptr().cast::<ListenerRecord>().read() }
}

#[test]
fn a_subflow_of_mptcp_that_is_accepted_before_it_is_established_is_told_whole() {
    for wanted in [PID, PID + 1] {
        let kernel = Kernel::new();
        let [child, whole, listener] = subflow(&kernel);
        Machine::with(|machine| (machine.settings.filter_task, machine.settings.filter_pid) = (1, wanted));
        at(4_000);
        accepted(whole.socket()).expect("room");
        at(5_000);
        child.becomes(state::SYN_RECV, state::ESTABLISHED);
        child.becomes(state::ESTABLISHED, state::CLOSE);
        let told = taken();
        if wanted == PID {
            let [record] = &told[..] else { panic!("one: {told:?}") };
            assert_eq!((record.started_ns, record.established_ns, record.accepted_ns), (2_000, 5_000, 4_000));
            assert_eq!((record.pid, record.flags), (PID, CONNECTION_SERVER | CONNECTION_MPTCP));
        } else {
            assert!(told.is_empty(), "{told:?}");
        }
        assert_eq!(ended_listener(listener).accepted, 1);
    }
}

/// `mptcp_accept` has no lock of a subflow's, which another CPU establishes.
#[test]
fn who_accepts_a_subflow_of_mptcp_is_known_in_any_order() {
    explore(&[], || {
        let kernel = Kernel::new();
        let [child, whole, listener] = subflow(&kernel);
        OPEN_CONNECTIONS.share(&[child.0, whole.0], |_| ());
        let accept = move || accepted(whole.socket()).expect("room");
        race(accept, || child.becomes(state::SYN_RECV, state::ESTABLISHED));
        child.becomes(state::ESTABLISHED, state::CLOSE);
        let record = one();
        assert_eq!((record.started_ns, record.pid), (2_000, PID));
        assert_eq!(record.flags, CONNECTION_SERVER | CONNECTION_MPTCP);
        assert_ne!(record.accepted_ns, 0);
        assert_eq!(ended_listener(listener).accepted, 1);
    });
}

#[test]
fn who_is_asked_about_is_told_as_long_as_it_is_there() {
    let kernel = Kernel::new();
    let client = kernel.socket(CLIENT_PORT, SERVER_PORT);
    asked_for(client.socket()).expect("room");
    assert_eq!(taken(), []);
    client.becomes(state::CLOSE, state::SYN_SENT);
    client.becomes(state::SYN_SENT, state::ESTABLISHED);
    for _ in 0..2 {
        asked_for(client.socket()).expect("room");
        let record = one();
        assert_eq!((record.flags, record.state), (CONNECTION_CLIENT | CONNECTION_OPEN, state::ESTABLISHED));
    }
    client.becomes(state::ESTABLISHED, state::CLOSE);
    assert_eq!(one().flags, CONNECTION_CLIENT);
    asked_for(client.socket()).expect("room");
    assert_eq!(taken(), []);
}

#[test]
fn a_listening_socket_is_told_as_often_as_one_asks() {
    let kernel = Kernel::new();
    let listener = kernel.listener();
    listener.becomes(state::CLOSE, state::LISTEN);
    for waiting in [1, 3, 2] {
        listener.set(|fields| fields.waiting = waiting);
        listeners::requested(listener.socket()).expect("room");
        asked_for(listener.socket()).expect("room");
        let record = told_listener();
        let its = (record.socket, record.waiting, record.is_closed, record.pid);
        assert_eq!(its, (listener.0, waiting, 0, PID));
        assert_eq!((record.most_waiting, record.overflows), if waiting == 1 { (1, 0) } else { (3, 1) });
    }
    // Which others have.
    for (port, netns, count) in [(0, 0, 1), (1, 0, 0), (0, 1, 0)] {
        Machine::with(|machine| {
            (machine.settings.filter_port, machine.settings.filter_netns) = (port, netns);
        });
        asked_for(listener.socket()).expect("room");
        assert_eq!(CONNECTION_RECORDS.take().len(), count, "{port} {netns}");
    }
}

/// `tcp_v6_syn_recv_sock` hands IPv4 to the other function, which has a program too.
#[test]
fn a_handshake_over_ipv4_at_a_socket_of_ipv6_is_noted_once() {
    let kernel = Kernel::new();
    let listener = kernel.listener();
    listener.set(|fields| fields.waiting = 3);
    for (protocol, turned_away) in [(ETH_P_IP, 0), (ETH_P_IPV6, 1)] {
        let request = kernel.socket(SERVER_PORT, CLIENT_PORT);
        let ack = segment(&kernel, 100, 0, ACK);
        ack.set(|fields| fields.skb_protocol = protocol);
        listeners::completed_v6(listener.socket(), ack.skb(), request.request()).expect("room");
        assert_eq!(taken().len(), turned_away, "{protocol:#x}");
    }
}

/// Other hooks see what comes to a socket that listens, or whose handshake is not answered.
#[test]
fn what_comes_before_there_is_a_connection_says_nothing_of_one() {
    let kernel = Kernel::new();
    for state in [state::LISTEN, state::SYN_SENT] {
        let client = kernel.socket(CLIENT_PORT, SERVER_PORT);
        client.becomes(state::CLOSE, state::SYN_SENT);
        client.set(|fields| fields.state = state);
        received_otherwise(client.socket(), segment(&kernel, 0, 5, ACK).skb()).expect("room");
        client.becomes(state::SYN_SENT, state::CLOSE);
        assert_eq!(one().first_in_ns, 0, "{state}");
    }
    // Nor does a datagram's socket.
    let other = kernel.socket(CLIENT_PORT, SERVER_PORT);
    other.set(|fields| (fields.protocol, fields.state) = (u16::from(IPPROTO_UDP), state::ESTABLISHED));
    accepted(other.socket()).expect("nothing");
    other.becomes(state::ESTABLISHED, state::CLOSE);
    assert_eq!(taken(), []);
}

#[test]
fn a_reset_that_came_while_closing_is_noted() {
    let kernel = Kernel::new();
    for (state, flags, noted) in [
        (state::FIN_WAIT1, ACK, 0),
        (state::FIN_WAIT1, RST, CONNECTION_RESET),
        (state::FIN_WAIT2, ACK, 0),
        (state::FIN_WAIT2, RST, CONNECTION_RESET),
        // That end has closed first, and the state that follows tells of the reset.
        (state::CLOSE_WAIT, RST, 0),
    ] {
        let client = kernel.socket(CLIENT_PORT, SERVER_PORT);
        client.becomes(state::CLOSE, state::SYN_SENT);
        client.becomes(state::SYN_SENT, state::ESTABLISHED);
        client.becomes(state::ESTABLISHED, state);
        received_otherwise(client.socket(), segment(&kernel, 1, 5, flags).skb()).expect("room");
        let connection = find(client.socket()).expect("there");
        assert_eq!(connection.flags.get() & CONNECTION_RESET, noted, "{state} {flags}");
        client.becomes(state, state::CLOSE);
        taken();
    }
}

/// A packet of that protocol between these ports, behind an IP header of that length. `is_rest`: its first bytes are another fragment's.
fn packet(version: u8, protocol: u8, [source, destination]: [u16; 2], len: usize, is_rest: bool) -> [u8; 64] {
    let mut bytes = [0xee; 64];
    let header = &mut bytes[16..];
    header[0] = version << 4 | if version == 4 { (len / 4) as u8 } else { 0 };
    header[if version == 4 { 9 } else { 6 }] = protocol;
    header[6..8].copy_from_slice(&if version == 6 { [protocol, 64] } else { [0x20 | u8::from(is_rest), 0] });
    header[len..len + 2].copy_from_slice(&source.to_be_bytes());
    header[len + 2..len + 4].copy_from_slice(&destination.to_be_bytes());
    bytes
}

#[test]
fn dropped_packets_are_counted_by_place_and_service() {
    let kernel = Kernel::new();
    Machine::with(|machine| {
        machine.settings.ephemeral_ports = 32_768 | 60_999 << 16;
        machine.entries = 4;
    });
    dropped::make_room();
    let memory = memory::take(memory::slab(64));
    let drop = |protocol: u16, bytes: [u8; 64], location: u64, reason: u32| {
        memory::write(memory, bytes);
        let skb = kernel.socket(0, 0);
        skb.set(|fields| (fields.skb_protocol, fields.skb_head, fields.skb_network) = (protocol, memory, 16));
        dropped::dropped(skb.skb(), location, reason);
    };
    let [there, back] = [[CLIENT_PORT, 53], [53, CLIENT_PORT]];
    // A query and an answer, whose header has options; and a segment of IPv6.
    drop(ETH_P_IP, packet(4, IPPROTO_UDP, there, 20, false), 7, 8);
    drop(ETH_P_IP, packet(4, IPPROTO_UDP, back, 24, false), 7, 8);
    drop(ETH_P_IPV6, packet(6, IPPROTO_TCP, [CLIENT_PORT, SERVER_PORT], 40, false), 9, 2);
    // Elsewhere, and for another reason.
    drop(ETH_P_IP, packet(4, IPPROTO_UDP, there, 20, false), 7, 3);
    // For these there is no room any more.
    drop(ETH_P_IP, packet(4, IPPROTO_UDP, there, 20, false), 11, 3);
    drop(ETH_P_IP, packet(4, IPPROTO_UDP, there, 20, false), 12, 3);
    // A later fragment has no ports, ICMP none either, and what is no packet of IP looks like one.
    drop(ETH_P_IP, packet(4, IPPROTO_UDP, there, 20, true), 7, 8);
    drop(ETH_P_IP, packet(4, 1, there, 20, false), 7, 8);
    drop(0, packet(4, IPPROTO_UDP, there, 20, false), 7, 8);
    Machine::with(|machine| machine.settings.shows_drop_reasons = 0);
    assert!(!dropped::has_reasons());
    Machine::with(|machine| machine.settings.shows_drop_reasons = 1);
    assert!(dropped::has_reasons());
    let mut all: Vec<_> = dropped::all()
        .into_iter()
        .map(|(place, count)| (place.location, place.reason, place.protocol, place.port, count))
        .collect();
    all.sort_unstable();
    let (tcp, udp) = (IPPROTO_TCP, IPPROTO_UDP);
    assert_eq!(all, [(0, 0, 0, 0, 2), (7, 3, udp, 53, 1), (7, 8, udp, 53, 2), (9, 2, tcp, SERVER_PORT, 1)]);
}

#[test]
fn each_filter_alone_leaves_a_connection_out() {
    let filters: [fn(&mut Settings); 5] = [
        |_| (),
        |settings| settings.filter_port = 1,
        |settings| settings.filter_netns = 1,
        |settings| settings.filter_family = AF_INET6,
        |settings| (settings.filter_mark, settings.mark) = (0xf, 5),
    ];
    let shown = filters.map(|filter| {
        let kernel = Kernel::new();
        Machine::with(|machine| filter(&mut machine.settings));
        let client = kernel.socket(CLIENT_PORT, SERVER_PORT);
        client.becomes(state::CLOSE, state::SYN_SENT);
        client.becomes(state::SYN_SENT, state::ESTABLISHED);
        client.becomes(state::ESTABLISHED, state::CLOSE);
        let whole = taken().len();
        turn_away(&kernel);
        [whole, taken().len()]
    });
    assert_eq!(shown, [[1; 2], [0; 2], [0; 2], [0; 2], [0; 2]]);
}

/// Another's entry gets the place of one that ends.
#[test]
fn one_that_ends_while_it_is_told_is_not_shown_with_anothers_times() {
    explore(&[(Barrier::InOrder, "another's")], || {
        let kernel = Kernel::new();
        let [first, second] = [CLIENT_PORT, CLIENT_PORT + 1].map(|port| kernel.socket(port, SERVER_PORT));
        OPEN_CONNECTIONS.share(&[first.0, second.0], |connection| {
            // SAFETY: an entry, of which numbers are 0.
            let connection = unsafe { &*connection };
            order::share(connection.started.address());
            order::share(connection.first_in.address());
        });
        let begin = |made: Made, at| {
            let connection = Connection::new(0, Task::UNKNOWN);
            connection.started.set(at);
            connection.first_in.set(at);
            assert!(keep(made.socket(), &connection).is_ok());
        };
        begin(first, 5);
        let connection = find(first.socket()).expect("there");
        let replace = move || {
            OPEN_CONNECTIONS.remove(first.0).expect("there");
            begin(second, 6);
        };
        let (_, told) = race(replace, || emit(first.socket(), connection, CONNECTION_OPEN));
        assert!(told.is_ok());
        assert!(taken().iter().all(|record| (record.started_ns, record.first_in_ns) == (5, 5)), "another's");
    });
}

/// Else the reader comes by a timer.
#[test]
fn the_reader_is_woken_where_much_waits() {
    const MUCH: usize = size_of::<ConnectionRecord>();
    Machine::reset();
    Machine::with(|machine| machine.settings.wakeup_bytes = MUCH as u32);
    assert_eq!(wakeup(), NO_WAKEUP);
    let mut entry = CONNECTION_RECORDS.reserve::<[u8; MUCH]>(0).expect("room for it");
    entry.write([0; MUCH]);
    entry.submit(NO_WAKEUP);
    assert_eq!(wakeup(), FORCE_WAKEUP);
}
