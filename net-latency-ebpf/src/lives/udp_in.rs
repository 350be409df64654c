//! What UDP does with what it receives, as far as hooks can tell, and what tasks take. From net/ipv4/udp.c (`__udp4_lib_rcv`,
//! `__udp4_lib_mcast_deliver`, `udp_queue_rcv_skb`, `__udp_enqueue_schedule_skb`, `udp_recvmsg`, `udp_destruct_common`),
//! include/net/udp.h (`udp_rcv_segment`) and net/core/skbuff.c (`skb_segment`, `skb_segment_list`) of Linux 6.1; IPv6 does the same by
//! functions of its own.

use std::{collections::VecDeque, vec::Vec};

use net_latency_common::{Counter, IPPROTO_UDP};

use super::{
    choice::Choice,
    flow::Flow,
    history::Fate,
    journeys::{About, FUNCTION},
    truth::{Entry, Hook, Packet},
    udp_truth::{Datagram, Taken, Want},
    world::{Skb, World, hook, note, skb as hooked, sock},
};
use crate::{
    bpf::host::{CPUS, Machine, memory},
    journey::heads,
    kernel::memory::{Number, Probed},
};

/// Bytes of a UDP header.
const HEADER: u32 = 8;
const IPPROTO_UDPLITE: u8 = 136;
/// Datagrams that fit a socket's receive buffer.
const BUFFER: usize = 4;

/// A socket, and the senders to it.
struct Place {
    is_v6: bool,
    net: usize,
    port: u16,
    is_lite: bool,
    /// Whether it takes what GRO merged (`UDP_GRO`).
    takes_merged: bool,
}

impl Place {
    /// Its namespace and its port.
    fn key(&self) -> (usize, u16) {
        (self.net, self.port)
    }
}

const fn place(port: u16, net: usize) -> Place {
    Place { is_v6: false, net, port, is_lite: false, takes_merged: false }
}

/// The sockets that there may be. The fourth to sixth are of one multicast group.
const PLACES: [Place; 9] = [
    place(53, 0),
    Place { is_v6: true, ..place(53, 0) },
    place(53, 1),
    place(5353, 0),
    place(5353, 0),
    Place { takes_merged: true, ..place(5353, 0) },
    Place { is_lite: true, ..place(53, 0) },
    Place { is_v6: true, ..place(54, 0) },
    Place { takes_merged: true, ..place(55, 0) },
];

/// Where datagrams are sent: which sockets get them, and whether by IPv4, whatever the sockets are.
const TARGETS: [(&[usize], bool); 9] = [
    (&[0], true),
    (&[1], false),
    (&[2], true),
    (&[3, 4, 5], true),
    (&[6], true),
    // An IPv6 socket gets IPv4 too.
    (&[7], true),
    (&[7], false),
    (&[8], true),
    // No socket.
    (&[], true),
];

/// Something that happens to datagrams. Numbers count modulo what there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A driver gives a datagram to a CPU, which takes it to a socket at once or not. It has N times 10 bytes, and if GRO merged
    /// it, N segments of that. Its kind says the rest, bit by bit: port, checksum, list, mark.
    Comes { cpu: u8, target: u8, len: u8, segs: u8, kind: u8, goes: bool },
    /// A task takes the first datagram of a socket, on that CPU.
    Take { cpu: u8, task: u8, socket: u8, how: Taking },
    /// A task that looked at a datagram while others took it is done with that.
    Looked { cpu: u8 },
    /// A socket is closed; another one with its port is there at once, or not.
    Close { cpu: u8, socket: u8, again: bool },
}

/// How a task takes a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taking {
    /// All of it.
    Whole,
    /// All of it, and its skb is freed by `kfree_skb`.
    Dropped,
    /// Into no room at all.
    Empty,
    /// It only looks (MSG_PEEK).
    Peek,
    /// It looks, and is not through yet.
    BeginPeek,
    /// It has no room for it (`EFAULT`), or its checksum is wrong: dropped.
    Fails,
    /// By a function that is not hooked (`udp_read_skb`), or whose program the kernel skips.
    Unseen,
}

impl Step {
    pub(super) fn draw(choice: &mut Choice) -> Self {
        let cpu = u8::from(choice.one_in(3));
        match choice.below(16) {
            0..=8 => Self::Comes {
                cpu,
                target: if choice.one_in(2) { choice.below(2) * 3 } else { choice.below(9) } as u8,
                len: if choice.one_in(4) { 0 } else { 1 + choice.below(3) as u8 },
                segs: if choice.one_in(4) { choice.below(5) as u8 } else { 0 },
                kind: choice.below(32) as u8,
                goes: choice.one_in(2),
            },
            9..=13 => Self::Take {
                cpu,
                task: choice.below(8) as u8,
                socket: if choice.one_in(2) { choice.below(2) * 3 } else { choice.below(9) } as u8,
                how: match choice.below(16) {
                    0 => Taking::Empty,
                    1 => Taking::Peek,
                    2 => Taking::BeginPeek,
                    3 => Taking::Fails,
                    4 => Taking::Unseen,
                    5 => Taking::Dropped,
                    _ => Taking::Whole,
                },
            },
            14 => Self::Looked { cpu },
            _ => Self::Close { cpu, socket: choice.below(9) as u8, again: choice.one_in(2) },
        }
    }

    /// Steps that say less.
    pub(super) fn simpler(self) -> Vec<Self> {
        match self {
            Self::Comes { cpu, target, len, segs, kind, goes } => [
                Self::Comes { cpu: 0, target, len, segs, kind, goes },
                Self::Comes { cpu, target: 0, len, segs, kind, goes },
                Self::Comes { cpu, target, len: 1, segs, kind, goes },
                Self::Comes { cpu, target, len, segs: 0, kind, goes },
                Self::Comes { cpu, target, len, segs, kind: 0, goes },
                Self::Comes { cpu, target, len, segs, kind, goes: true },
            ]
            .into_iter()
            .filter(|other| *other != self)
            .collect(),
            Self::Take { cpu, task, socket, how } => [
                Self::Take { cpu: 0, task, socket, how },
                Self::Take { cpu, task: 0, socket, how },
                Self::Take { cpu, task, socket: 0, how },
                Self::Take { cpu, task, socket, how: Taking::Whole },
            ]
            .into_iter()
            .filter(|other| *other != self)
            .collect(),
            Self::Looked { cpu } if cpu != 0 => [Self::Looked { cpu: 0 }].into(),
            Self::Close { cpu, socket, again } if (cpu, again) != (0, false) => {
                [Self::Close { cpu: 0, socket, again }, Self::Close { cpu, socket, again: false }].into()
            }
            _ => Vec::new(),
        }
    }

    /// On which CPU it happens.
    pub(super) fn cpu(self) -> u8 {
        match self {
            Self::Comes { cpu, .. }
            | Self::Take { cpu, .. }
            | Self::Looked { cpu }
            | Self::Close { cpu, .. } => cpu,
        }
    }
}

/// An skb on a socket's queue.
#[derive(Clone, Copy, Debug)]
struct Queued {
    skb: Skb,
    len: u32,
    segs: u16,
    /// Whether the hook of the queue has kept it.
    is_followed: bool,
    /// Whether its time at UDP has to be known.
    has_transport: bool,
}

/// A socket.
#[derive(Default)]
struct Sock {
    /// `struct udp_sock`; 0 while there is none.
    sk: u64,
    /// How many there have been.
    life: usize,
    /// It is closed, and freed once no CPU works on it any more (`SOCK_RCU_FREE`).
    is_closed: bool,
    queue: VecDeque<Queued>,
}

/// A packet that UDP works on, on some CPU.
struct Delivery {
    /// The packet itself, unless it is on its last way.
    skb: Option<Skb>,
    /// The sockets that get it; the last one gets the packet itself.
    receivers: VecDeque<usize>,
    /// The remaining segments of a merged packet that was cut up for this socket.
    segments: VecDeque<Skb>,
    socket: usize,
    /// Whether the hook ran, and nothing came between.
    is_seen: bool,
    /// The ids of the task that it interrupts, or, where softirqs are preempted, of the thread that has it.
    thread: u64,
}

/// UDP.
#[derive(Default)]
pub(super) struct Udp {
    sockets: [Sock; PLACES.len()],
    delivering: [Vec<Delivery>; CPUS],
    /// Datagrams that tasks look at: who, at which socket, and which.
    looking: Vec<(usize, u64, Queued)>,
}

impl Udp {
    /// Whether a task looks at a datagram.
    pub(super) fn is_used_by(&self, task: usize) -> bool {
        self.looking.iter().any(|(other, ..)| *other == task)
    }

    /// The socket that sends, too, if it is open: its life, its address and its port.
    pub(super) fn sender(&self) -> Option<(usize, u64, u16)> {
        const NUMBER: usize = 2;
        let socket = &self.sockets[NUMBER];
        (socket.sk != 0 && !socket.is_closed).then_some((socket.life, socket.sk, PLACES[NUMBER].port))
    }

    fn is_delivering_to(&self, socket: usize) -> bool {
        self.delivering
            .iter()
            .flatten()
            .any(|delivery| delivery.socket == socket || delivery.receivers.contains(&socket))
    }

    /// A driver has a datagram. Returns its skb, which is about to enter the stack.
    pub(super) fn comes(&mut self, world: &mut World, target: u8, len: u8, segs: u8, kind: u8) -> Skb {
        let number = usize::from(target) % TARGETS.len();
        let (receivers, is_v4) = TARGETS[number];
        for receiver in receivers {
            if self.sockets[*receiver].life == 0 {
                self.open(world, *receiver);
            }
        }
        let place = receivers.first().map_or(&PLACES[0], |first| &PLACES[*first]);
        let group = [224, 0, 0, 251, 3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8];
        let own = [10, 0, 0, 2, 3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8];
        let flow = Flow {
            is_v6: !is_v4,
            addresses: [
                [10, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
                if receivers.len() > 1 { group } else { own },
            ],
            remote_port: 5000 + u16::from(kind & 1),
            local_port: if receivers.is_empty() { 99 } else { place.port },
            net: place.net,
        };
        let segs = if segs > 1 && len != 0 && !place.is_lite { u16::from(segs) } else { 1 };
        let protocol = if place.is_lite { IPPROTO_UDPLITE } else { IPPROTO_UDP };
        // Many datagrams have the same bytes, and so the same checksum.
        let sum = u16::from(kind >> 1 & 1) + u16::from(protocol);
        let datagram = Datagram { flow, protocol, sum, is_list: kind >> 2 & 1 != 0 };
        let packet = Packet {
            connection: 0,
            start: 0,
            len: u32::from(len) * 10 * u32::from(segs),
            segs,
            mark: u32::from(kind >> 3),
            is_found: false,
            joins: false,
            forwarded: None,
            entered: None,
            entry: Entry::Plain,
            reached: 0,
            is_untraced: false,
            ifindex: world.nets[flow.net].ifindex,
            dropped: None,
            datagram: Some(datagram),
        };
        world.truth.packets.push(packet);
        new_skb(world, world.truth.packets.len() - 1, segs)
    }

    fn open(&mut self, world: &mut World, number: usize) {
        const TCP_CLOSE: u8 = 7;
        let place = &PLACES[number];
        let flow = Flow {
            is_v6: place.is_v6,
            addresses: [[0; 16]; 2],
            remote_port: 0,
            local_port: place.port,
            net: place.net,
        };
        let sk = world.new_socket(&flow, 0);
        let offsets = world.offsets;
        world.put(sk, offsets.sock_skc_state, TCP_CLOSE);
        let protocol = if place.is_lite { IPPROTO_UDPLITE } else { IPPROTO_UDP };
        world.put(sk, offsets.sock_sk_protocol, u16::from(protocol));
        note!(world, "  socket {number} is {sk:#x}");
        let life = self.sockets[number].life + 1;
        self.sockets[number] = Sock { sk, life, ..Sock::default() };
    }

    /// `udp_rcv` or `udpv6_rcv`, with `skb->data` on UDP's header.
    pub(super) fn receive(&mut self, world: &mut World, skb: Skb) {
        let cpu = Machine::with(|machine| machine.cpu);
        let Some(Datagram { flow, protocol, .. }) = world.truth.packets[skb.packet].datagram else { return };
        let mut is_seen = false;
        let thread = if world.kernel.is_rt {
            let is_free = |thread: &u64| self.delivering[cpu].iter().all(|other| other.thread != *thread);
            (20..).find(is_free).expect("a thread")
        } else {
            Machine::with(|machine| machine.ids)
        };
        run_softirq(thread);
        // `udplite_rcv` is not hooked.
        if protocol == IPPROTO_UDP {
            let call = hook!(world, Hook::Udp, skb.packet, udp::received(hooked(skb)));
            is_seen = !world.truth.calls[call].is_skipped;
            if is_seen {
                world.truth.udp.received[cpu] = world.truth.calls[call].to;
            }
        }
        for other in &mut self.delivering[cpu] {
            other.is_seen = false;
        }
        let sockets = &self.sockets;
        let is_of = |number: &usize| {
            let place = &PLACES[*number];
            let is_its = place.port == flow.local_port && place.net == flow.net;
            let takes = flow.is_v6 == place.is_v6 || place.is_v6 && place.port == 54;
            let is_open = sockets[*number].sk != 0 && !sockets[*number].is_closed;
            is_its && takes && is_open && place.is_lite == (protocol == IPPROTO_UDPLITE)
        };
        let receivers: VecDeque<usize> = (0..PLACES.len()).filter(is_of).collect();
        if receivers.is_empty() {
            // An ICMP error is sent.
            return world.drop(skb);
        }
        self.delivering[cpu].push(Delivery {
            skb: Some(skb),
            receivers,
            segments: VecDeque::new(),
            socket: usize::MAX,
            is_seen,
            thread,
        });
    }

    /// Softirqs on this CPU get to their end before anything else happens there.
    pub(super) fn finish(&mut self, world: &mut World, cpu: usize) {
        while !world.kernel.is_rt && self.goes_on(world, cpu, Fate::Plain) {}
    }

    /// The newest softirq of this CPU that works on a datagram goes on with one socket. False if there is none.
    pub(super) fn goes_on(&mut self, world: &mut World, cpu: usize, how: Fate) -> bool {
        let Some(mut delivery) = self.delivering[cpu].pop() else { return false };
        if how == Fate::Waits && world.kernel.is_rt {
            self.delivering[cpu].insert(0, delivery);
            return true;
        }
        run_softirq(delivery.thread);
        if let Some(segment) = delivery.segments.pop_front() {
            let socket = delivery.socket;
            let len = packet_of(world, segment).len / u32::from(packet_of(world, segment).segs);
            self.queue(world, socket, segment, (len, 1), how, delivery.is_seen && delivery.skb.is_none());
        } else if let Some(receiver) = delivery.receivers.pop_front() {
            delivery.socket = receiver;
            self.deliver(world, &mut delivery, how);
        }
        let is_done = delivery.receivers.is_empty() && delivery.segments.is_empty();
        if !is_done {
            self.delivering[cpu].push(delivery);
        }
        for number in 0..self.sockets.len() {
            self.free_closed(world, number);
        }
        true
    }

    /// A socket gets the packet: a clone, or at last the packet itself.
    fn deliver(&mut self, world: &mut World, delivery: &mut Delivery, how: Fate) {
        let Some(packet) = delivery.skb else { return };
        let skb = if delivery.receivers.is_empty() {
            delivery.skb = None;
            packet
        } else {
            world.clone_skb(packet)
        };
        let (len, segs) = (packet_of(world, skb).len, packet_of(world, skb).segs);
        if segs == 1 || PLACES[delivery.socket].takes_merged {
            return self.queue(world, delivery.socket, skb, (len, segs), how, delivery.is_seen);
        }
        // `udp_rcv_segment`.
        let is_list = packet_of(world, skb).datagram.is_some_and(|datagram| datagram.is_list);
        delivery.segments = if is_list && delivery.skb.is_none() && !is_multicast(packet_of(world, skb)) {
            in_list(world, skb)
        } else {
            segments(world, skb)
        };
    }

    /// `udp_queue_rcv_one_skb`.
    fn queue(
        &mut self,
        world: &mut World,
        number: usize,
        skb: Skb,
        (len, segs): (u32, u16),
        how: Fate,
        is_seen: bool,
    ) {
        let sk = self.sockets[number].sk;
        if how == Fate::Dropped {
            // `sk_filter`, or its checksum is wrong.
            return world.drop(skb);
        }
        world.pull(skb, HEADER);
        let packet = packet_of(world, skb).clone();
        let result = {
            let call = hook!(world, Hook::Other, skb.packet, udp::enqueued(sock(sk), hooked(skb)));
            world.truth.calls[call].result
        };
        let program = || heads::enqueued(hooked::<Probed>(skb), FUNCTION);
        world.journey_at_kprobe(About::Queued(skb.packet), program);
        let is_lite = PLACES[number].is_lite;
        let is_followed = !is_lite && matches!(result, None | Some(Counter::DroppedIn));
        if !is_lite {
            world.truth.udp.enqueued += 1;
            world.truth.udp.judge_queue(sk, PLACES[number].key(), cpu_of_hook(), result);
        }
        let queue = &mut self.sockets[number].queue;
        if how == Fate::Ends || queue.len() >= BUFFER {
            note!(world, "  no room at socket {number}");
            return drop_queued(world, skb, is_followed);
        }
        // `udp_set_dev_scratch` overwrites `skb->dev`.
        world.put(skb.address, world.offsets.sk_buff_dev, 0x0028_0000_0300_u64 | u64::from(len) << 32);
        world.put(skb.address, world.offsets.sk_buff_next, sk);
        // Behind the segments of a first socket others know no stamps: docs/accuracy.md.
        // Where softirqs are preempted, what comes between may end what this CPU knows of the packet.
        let is_seen = is_seen && !world.kernel.is_rt;
        let has_transport = is_seen && (packet.segs == 1 || !is_multicast(&packet));
        queue.push_back(Queued { skb, len, segs, is_followed, has_transport });
    }

    /// A task takes, or looks at, the first datagram of a socket (`udp_recvmsg`), unless there is none.
    pub(super) fn take(&mut self, world: &mut World, task: usize, number: usize, how: Taking) {
        let socket = &mut self.sockets[number];
        if socket.sk == 0 {
            return self.open(world, number);
        }
        if socket.is_closed {
            return;
        }
        let sk = socket.sk;
        let Some(first) = socket.queue.front().copied() else { return };
        let skb = first.skb;
        match how {
            Taking::Peek | Taking::BeginPeek => {
                world.users(skb, 1);
                // A task that looks at no bytes, while another takes them, can't be told from that one: docs/accuracy.md.
                if how == Taking::BeginPeek && first.len != 0 {
                    self.looking.push((task, sk, first));
                    return;
                }
                look(world, sk, first);
                return;
            }
            _ => {
                socket.queue.pop_front();
                // `__skb_unlink`.
                world.put(skb.address, world.offsets.sk_buff_next, 0_u64);
            }
        }
        match how {
            Taking::Fails => return drop_queued(world, skb, first.is_followed),
            Taking::Unseen => {
                return world.free(skb);
            }
            _ => {}
        }
        let len = if how == Taking::Empty { 0 } else { first.len as i32 };
        let call = hook!(
            world,
            Hook::Consumed,
            skb.packet,
            udp::consumed(
                sock(sk),
                hooked(skb),
                Number::new((0xbad_u64 << 32 | u64::from(len as u32)) as *const u8)
            )
        );
        follow_consumed(world, skb, len);
        world.truth.has_read((sk, PLACES[number].port), call);
        world.truth.udp.uses(
            sk,
            PLACES[number].key(),
            world.truth.calls[call].to,
            world.truth.calls[call].is_wanted,
        );
        if !PLACES[number].is_lite {
            let netns = world.nets[PLACES[number].net].inode;
            let (Queued { len, segs, is_followed, has_transport, .. }, packet) = (first, skb.packet);
            world.truth.took(Taken { call, packet, len, segs, netns, is_followed, has_transport });
        } else if let Some(counter) = world.truth.calls[call].result {
            note!(world, "  UDP-Lite: {counter:?}");
        }
        if how == Taking::Dropped { world.drop(skb) } else { world.free(skb) }
    }

    /// A task that looked at a datagram is done with it.
    pub(super) fn looked(&mut self, world: &mut World) {
        if let Some((task, sk, queued)) = self.looking.pop() {
            world.run_as(Some(task));
            look(world, sk, queued);
        }
    }

    /// `udp_lib_close`.
    pub(super) fn close(&mut self, world: &mut World, number: usize, again: bool) {
        let socket = &mut self.sockets[number];
        let is_used = self.looking.iter().any(|(_, sk, _)| *sk == socket.sk);
        if socket.sk == 0 || is_used {
            return;
        }
        socket.is_closed = true;
        if self.free_closed(world, number) && again {
            self.open(world, number);
        }
    }

    /// `udp_destruct_common`, once no CPU works on the socket any more.
    fn free_closed(&mut self, world: &mut World, number: usize) -> bool {
        if !self.sockets[number].is_closed || self.is_delivering_to(number) {
            return false;
        }
        let life = self.sockets[number].life;
        let closed = Sock { life, ..Sock::default() };
        let Sock { sk, queue, .. } = std::mem::replace(&mut self.sockets[number], closed);
        for queued in queue {
            world.put(queued.skb.address, world.offsets.sk_buff_next, 0_u64);
            drop_queued(world, queued.skb, queued.is_followed);
        }
        world.free_socket(sk);
        true
    }

    /// Sockets by their numbers.
    pub(super) fn number(socket: u8) -> usize {
        usize::from(socket) % PLACES.len()
    }
}

fn cpu_of_hook() -> usize {
    Machine::with(|machine| machine.cpu)
}

/// A softirq goes on: the current task is still what it was, or on PREEMPT_RT the softirq's thread.
fn run_softirq(thread: u64) {
    Machine::with(|machine| machine.ids = thread);
}

fn packet_of(world: &World, skb: Skb) -> &Packet {
    &world.truth.packets[skb.packet]
}

fn is_multicast(packet: &Packet) -> bool {
    packet.datagram.is_some_and(|datagram| datagram.flow.addresses[1][0] == 224)
}

/// `skb_consume_udp`: a journey may end there.
fn follow_consumed(world: &mut World, skb: Skb, len: i32) {
    let len = Number::new(u64::from(len as u32) as *const u8);
    world.journey(About::Packet(skb.packet), || heads::consumed(hooked::<Probed>(skb), len, FUNCTION));
}

/// A task that has looked at a datagram lets it go.
fn look(world: &mut World, sk: u64, queued: Queued) {
    let Queued { skb, len, .. } = queued;
    let len = (len as i32).wrapping_neg();
    hook!(
        world,
        Hook::Other,
        skb.packet,
        udp::consumed(sock(sk), hooked(skb), Number::new(u64::from(len as u32) as *const u8))
    );
    follow_consumed(world, skb, len);
    world.free(skb);
}

/// UDP drops an skb that its queue's hook has seen (`kfree_skb`). Where others have it too, no hook sees that.
fn drop_queued(world: &mut World, skb: Skb, is_followed: bool) {
    let is_seen = world.users(skb, 0) == 1;
    let from = world.truth.calls.len();
    world.drop(skb);
    if !is_followed || !is_seen {
        return;
    }
    let result = world.truth.calls[from].result;
    world.truth.udp.want(result == Some(Counter::DroppedIn), Want::Drop);
}

/// An skb of a datagram, or of one of the segments of one that was merged.
fn new_skb(world: &mut World, packet: usize, segs: u16) -> Skb {
    let (len, Datagram { flow, protocol, sum, .. }) = {
        let packet = &world.truth.packets[packet];
        (packet.len / u32::from(packet.segs) * u32::from(segs), packet.datagram.expect("a datagram"))
    };
    let skb = world.new_skb(packet, &flow, flow.net);
    let offsets = world.offsets;
    let network = skb.head + u64::from(world.get::<u16>(skb.address, offsets.sk_buff_network_header));
    memory::write(network + if flow.is_v6 { 6 } else { 9 }, protocol);
    let ip_len = world.ip_len(skb);
    let header = [flow.remote_port, flow.local_port, (len + HEADER) as u16, sum].map(u16::to_be);
    memory::write(network + u64::from(ip_len), header);
    world.put(skb.address, offsets.sk_buff_len, ip_len + HEADER + len);
    world.put(skb.address, offsets.sk_buff_data_len, if segs > 1 { len } else { 0 });
    let end: u32 = world.get(skb.address, offsets.sk_buff_end);
    world.put(skb.head + u64::from(end), offsets.skb_shared_info_gso_segs, if segs > 1 { segs } else { 0 });
    note!(
        world,
        "  packet {packet} of {len} bytes and {segs} segments: skb {:#x} head {:#x}",
        skb.address,
        skb.head
    );
    skb
}

/// `skb_segment`: new skbs, and the merged one is freed before they are queued.
fn segments(world: &mut World, skb: Skb) -> VecDeque<Skb> {
    hook!(world, Hook::Other, skb.packet, tcp::transmit::segmented(hooked(skb)));
    let count = packet_of(world, skb).segs;
    let device: u64 = world.get(skb.address, world.offsets.sk_buff_dev);
    let new = (0..count)
        .map(|_| {
            let segment = new_skb(world, skb.packet, 1);
            world.put(segment.address, world.offsets.sk_buff_dev, device);
            world.pull(segment, world.ip_len(segment));
            segment
        })
        .collect();
    world.free(skb);
    new
}

/// `skb_segment_list`: the merged one becomes the first, and the others, which hung on it, go their ways.
fn in_list(world: &mut World, skb: Skb) -> VecDeque<Skb> {
    let (count, len) = (packet_of(world, skb).segs, packet_of(world, skb).len);
    let offsets = world.offsets;
    let len = len / u32::from(count);
    let end: u32 = world.get(skb.address, offsets.sk_buff_end);
    world.put(skb.head + u64::from(end), offsets.skb_shared_info_gso_segs, 0_u16);
    world.put(skb.address, offsets.sk_buff_data_len, 0_u32);
    world.put(skb.address, offsets.sk_buff_len, HEADER + len);
    let mut all = VecDeque::from([skb]);
    for _ in 1..count {
        let segment = new_skb(world, skb.packet, 1);
        world.pull(segment, world.ip_len(segment));
        all.push_back(segment);
    }
    all
}
