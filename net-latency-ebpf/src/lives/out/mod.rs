//! The way out: what becomes of a packet between its transport and its device, and all that sends. From net/ipv4/ip_output.c,
//! net/core/dev.c, net/core/skbuff.c and net/netfilter of Linux 6.1.
//!
//! A step is one stretch of a CPU's work. A packet that waits on its way (`arp_queue`, NFQUEUE) comes later, in any context; another one may
//! come to its device between two hooks of this one's way, as by another CPU.

mod check;
mod device;
mod found;
mod held;
mod multipath;
mod tcp;
mod truth;
mod udp;

use std::vec::Vec;

use net_latency_common::{IPPROTO_TCP, IPPROTO_UDP};

pub(super) use check::{check, check_all, expect_named};
pub(super) use device::check_sent;
use tcp::Sender;
pub(super) use truth::Out as Truth;
pub(super) use truth::Source;
use udp::Datagrams;

use super::{
    choice::Choice,
    truth::Hook,
    world::{Net, Skb, World, hook, note, skb as hooked},
};
use crate::bpf::host::{Machine, memory};

/// Something that happens on the way out. Numbers count modulo what there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Tcp(tcp::Step),
    Udp(udp::Step),
    /// What waits on its way goes on, in this context.
    Resume {
        which: u8,
        who: Who,
        way: Way,
    },
    /// A device is done with an skb.
    Free {
        which: u8,
        drops: bool,
    },
}

/// What has the CPU: one of the tasks that send, or a softirq.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    Task(u8),
    Softirq,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) fate: Fate,
    /// Whether that is behind IP's hook.
    pub(super) is_late: bool,
    /// Whether another CPU takes what waits longest on to its device meanwhile.
    pub(super) meets: bool,
    pub(super) then: Then,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Nothing special.
    Plain,
    /// It waits: for its neighbour's address (`neigh_event_send`), for a verdict (`nf_queue`).
    Waits,
    /// `kfree_skb`: netfilter, no neighbour.
    Dropped,
    /// It ends where no hook sees it: stolen (`NF_STOLEN`).
    Ends,
    /// `pskb_expand_head`: `skb_expand_head`, `skb_cow`.
    Expanded,
    /// A copy with the same socket goes on, and the skb is freed (`skb_copy_expand`, `skb_set_owner_w`, `consume_skb`).
    Copied,
    /// A copy is made, and the skb goes on.
    CopiedFor,
    /// `nfqnl_mangle`: a copy without a socket goes on, and the skb is freed by `kfree_skb`.
    Mangled,
    /// `nf_dup_ipv4`: a copy without a socket goes the same way first.
    Teed,
    /// A clone goes on (`skb_realloc_headroom` before Linux 5.15).
    Cloned,
    /// `skb_gso_segment` by `nf_queue`: its segments go on, each by itself.
    Segmented,
    /// IP's fragments go on, of which the first one has its skb (`ip_do_fragment` with a frag list).
    Fragmented,
    /// All of its fragments are new (`ip_frag_next`).
    Cut,
}

/// What becomes of it at its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// Its driver frees it.
    Freed,
    /// It stays in the device's queue.
    Kept,
    /// The device's queue drops it.
    Dropped,
    /// The device is a tunnel, and it comes to another one (`ip_tunnel_xmit`).
    Tunnelled,
    /// The device is the loopback (`loopback_xmit`).
    Loops,
}

const FATES: [Fate; 13] = [
    Fate::Plain,
    Fate::Waits,
    Fate::Dropped,
    Fate::Ends,
    Fate::Expanded,
    Fate::Copied,
    Fate::CopiedFor,
    Fate::Mangled,
    Fate::Teed,
    Fate::Cloned,
    Fate::Segmented,
    Fate::Fragmented,
    Fate::Cut,
];

const ENDS: [Then; 5] = [Then::Freed, Then::Kept, Then::Dropped, Then::Tunnelled, Then::Loops];

impl Who {
    pub(super) fn draw(choice: &mut Choice) -> Self {
        if choice.one_in(3) { Self::Softirq } else { Self::Task(choice.below(3) as u8) }
    }
}

impl Way {
    pub(super) const PLAIN: Self =
        Self { fate: Fate::Plain, is_late: false, meets: false, then: Then::Freed };

    pub(super) fn draw(choice: &mut Choice, favourite: Fate) -> Self {
        let fate = match choice.below(6) {
            0 => choice.of(&FATES),
            1 | 2 => favourite,
            _ => Fate::Plain,
        };
        let then = if choice.one_in(2) { Then::Freed } else { choice.of(&ENDS) };
        Self { fate, is_late: choice.one_in(2), meets: choice.one_in(8), then }
    }

    /// Ways that say less.
    pub(super) fn simpler(self) -> [Self; 4] {
        [
            Self { fate: Fate::Plain, ..self },
            Self { is_late: false, ..self },
            Self { meets: false, ..self },
            Self { then: Then::Freed, ..self },
        ]
    }
}

/// What many of a history's packets meet.
pub(super) fn favourite(choice: &mut Choice) -> Fate {
    choice.of(&FATES)
}

impl Step {
    pub(super) fn draw(choice: &mut Choice, favourite: Fate) -> Self {
        match choice.below(16) {
            0..=7 => Self::Tcp(tcp::Step::draw(choice, favourite)),
            8..=11 => Self::Udp(udp::Step::draw(choice, favourite)),
            12..=14 => {
                let which = if choice.one_in(2) { 0 } else { choice.below(8) as u8 };
                Self::Resume { which, who: Who::draw(choice), way: Way::draw(choice, favourite) }
            }
            _ => Self::Free { which: choice.below(8) as u8, drops: choice.one_in(3) },
        }
    }

    /// Steps that say less.
    pub(super) fn simpler(self) -> Vec<Self> {
        match self {
            Self::Tcp(step) => step.simpler().into_iter().map(Self::Tcp).collect(),
            Self::Udp(step) => step.simpler().into_iter().map(Self::Udp).collect(),
            Self::Resume { which, who, way } => {
                let mut all: Vec<_> =
                    way.simpler().map(|way| Self::Resume { which, who, way }).into_iter().collect();
                all.push(Self::Resume { which: 0, who, way });
                all.push(Self::Resume { which, who: Who::Softirq, way });
                all
            }
            Self::Free { which, drops } => {
                [Self::Free { which: 0, drops }, Self::Free { which, drops: false }].into()
            }
        }
    }
}

/// Where a packet is that was let go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Transport,
    Ip,
}

#[derive(Clone, Copy, Debug)]
struct Travelling {
    skb: Skb,
    place: Place,
}

/// All senders, and the packets on their way.
pub(super) struct Out {
    senders: Vec<Sender>,
    datagrams: Vec<Datagrams>,
    waiting: Vec<Travelling>,
    /// The skbs in a device's queue, and the calls by which they came there.
    kept: Vec<(Skb, usize)>,
    tunnel: Net,
    /// The tasks that send, by their numbers in the world.
    tasks: [usize; 3],
    /// Calls that wait in the kernel, one for each of these tasks at most.
    calls: [Option<tcp::InCall>; 3],
    /// The datagrams that threads have begun: their ids, and the call.
    begun: Vec<(u64, usize)>,
    pub(super) has_control: bool,
    pub(super) is_header_only: bool,
    /// Whether a datagram that waited may have ended where no hook sees it: a piece of another one may have its address, a limit likewise.
    is_stale: bool,
    /// The task that has the lock of a socket that both directions use.
    owners: [Option<usize>; 2],
}

/// Whether a hook in this context knows what this one has sent last: of a thread, its own.
fn is_known_here(source: Source) -> bool {
    match source {
        Source::Socket(_) => true,
        Source::Thread(ids) => Machine::with(|machine| machine.ids) == ids,
    }
}

/// Where the number of its first byte is in what TCP sends.
fn number_at(world: &World, skb: Skb) -> u64 {
    let transport: u16 = world.get(skb.address, world.offsets.sk_buff_transport_header);
    skb.head + u64::from(transport) + 4
}

fn seq(world: &World, skb: Skb) -> u32 {
    u32::from_be(memory::read(number_at(world, skb)))
}

/// The bytes of a piece begin so much later than those of what it is made of.
fn renumber(world: &World, piece: Skb, by: u32) {
    memory::write(number_at(world, piece), seq(world, piece).wrapping_add(by).to_be());
}

impl Out {
    /// Senders, the first two of which are ends of connections that receive: their sockets, and MPTCP's that they are subflows of, if any.
    pub(super) fn new(world: &mut World, ends: [[u64; 2]; 2]) -> Self {
        let tunnel = world.net(2);
        let tasks = [0, 1, world.second_thread()];
        let mut out = Self {
            senders: Vec::new(),
            datagrams: Vec::new(),
            waiting: Vec::new(),
            kept: Vec::new(),
            tunnel,
            tasks,
            calls: [None; 3],
            begun: Vec::new(),
            has_control: false,
            is_header_only: false,
            is_stale: false,
            owners: [None; 2],
        };
        out.senders = tcp::senders(world, ends);
        out.datagrams = udp::sockets(world);
        out
    }

    pub(super) fn step(&mut self, world: &mut World, step: Step) {
        match step {
            Step::Tcp(step) => self.step_tcp(world, step),
            Step::Udp(step) => self.step_udp(world, step),
            Step::Resume { which, who, way } => {
                if !self.waiting.is_empty() {
                    let next = self.waiting.remove(usize::from(which) % self.waiting.len());
                    // The pieces of a datagram are made unseen. One may have the address of another thread's datagram on the same socket
                    // that ended unseen, and come to the device in that thread: a limit in docs/accuracy.md.
                    let packet = &world.truth.out.packets[next.skb.packet];
                    let is_new =
                        packet.skb == 0 || matches!(way.fate, Fate::Cut | Fate::Fragmented | Fate::Cloned);
                    let is_udp = packet.protocol != IPPROTO_TCP;
                    // As may one that is not followed, since the filter does not want it.
                    let is_others = packet.app.is_some_and(|call| !world.truth.calls[call].is_wanted);
                    let is_limit = (is_new || is_others) && is_udp;
                    self.is_stale |= packet.is_parked && matches!(way.fate, Fate::Ends | Fate::Cut);
                    self.run_as(world, if is_limit { Who::Softirq } else { who });
                    self.travel(world, next, way);
                }
            }
            Step::Free { which, drops } => {
                self.run_as(world, Who::Softirq);
                if !self.kept.is_empty() {
                    let (skb, queued) = self.kept.remove(usize::from(which) % self.kept.len());
                    if drops {
                        self.drop(world, skb);
                    } else {
                        device::leave(world, skb);
                        self.drive(world, skb, queued);
                    }
                }
            }
        }
    }

    /// The number of a task in the world.
    pub(super) fn task(&self, number: u8) -> usize {
        self.tasks[usize::from(number) % self.tasks.len()]
    }

    /// This context has a CPU. Returns the ids of its task, if it is one.
    pub(super) fn run_as(&self, world: &World, who: Who) -> Option<u64> {
        let (cpu, task) = match who {
            Who::Task(number) => (0, Some(self.task(number))),
            Who::Softirq => (1, None),
        };
        Machine::with(|machine| machine.cpu = cpu);
        world.run_as(task);
        task.map(|task| world.tasks[task].ids)
    }

    /// A transport has let a packet go.
    pub(super) fn leave(&mut self, world: &mut World, skb: Skb, way: Way) {
        self.travel(world, Travelling { skb, place: Place::Transport }, way);
    }

    /// A packet socket has sent one.
    pub(super) fn leave_to_device(&mut self, world: &mut World, skb: Skb, then: Then) {
        self.reach_queue(world, skb, then);
    }

    fn travel(&mut self, world: &mut World, mut now: Travelling, way: Way) {
        loop {
            if way.is_late == (now.place == Place::Ip) {
                if way.meets {
                    self.meet(world);
                }
                if !self.meets_fate(world, &mut now, way) {
                    return;
                }
            }
            match now.place {
                Place::Transport => {
                    self.reach_ip(world, now.skb);
                    now.place = Place::Ip;
                }
                Place::Ip => return self.reach_queue(world, now.skb, way.then),
            }
        }
    }

    /// Another CPU takes on what waits longest.
    fn meet(&mut self, world: &mut World) {
        if self.waiting.is_empty() {
            return;
        }
        let before = Machine::with(|machine| (machine.cpu, machine.ids, machine.task));
        let next = self.waiting.remove(0);
        self.run_as(world, Who::Softirq);
        self.travel(world, next, Way::PLAIN);
        Machine::with(|machine| (machine.cpu, machine.ids, machine.task) = before);
    }

    /// Whether there is something that goes on.
    fn meets_fate(&mut self, world: &mut World, now: &mut Travelling, way: Way) -> bool {
        let skb = now.skb;
        let protocol = world.truth.out.packets[skb.packet].protocol;
        let is_udp = protocol == IPPROTO_UDP;
        let is_datagram = protocol != IPPROTO_TCP;
        match way.fate {
            Fate::Plain => {}
            Fate::Waits => {
                self.park(world, skb);
                self.waiting.push(*now);
                return false;
            }
            Fate::Dropped => {
                self.drop(world, skb);
                return false;
            }
            Fate::Ends => {
                self.free(world, skb);
                return false;
            }
            Fate::Expanded => {
                hook!(world, Hook::Other, skb.packet, ip::rebuffered(hooked(skb)));
                world.rebuffer(&mut now.skb);
            }
            Fate::Copied => {
                now.skb = self.copy(world, skb, true);
                self.free(world, skb);
            }
            Fate::CopiedFor => {
                let copy = self.copy(world, skb, true);
                self.free(world, copy);
            }
            Fate::Mangled => {
                now.skb = self.copy(world, skb, false);
                self.drop(world, skb);
            }
            Fate::Teed => {
                let copy = self.copy(world, skb, false);
                self.travel(world, Travelling { skb: copy, ..*now }, Way { then: way.then, ..Way::PLAIN });
            }
            Fate::Cloned | Fate::Segmented | Fate::Fragmented | Fate::Cut if is_datagram && self.is_stale => {
            }
            // A clone that no hook sees, of a segment or of what others have overtaken, may have the address of another one that ended unseen:
            // the end of "Where an skb changes" in ARCHITECTURE.md.
            Fate::Cloned
                if world.truth.out.packets[skb.packet].segment == 0
                    && world.truth.out.is_newest(skb.packet) =>
            {
                now.skb = world.clone_skb(skb);
                world.truth.out.packets[skb.packet].stamped.retain(|other| *other != now.skb.address);
                self.own(world, now.skb, self.owner(world, skb));
                self.free(world, skb);
            }
            Fate::Segmented => return self.cut_up(world, now),
            Fate::Fragmented if is_udp && now.place == Place::Ip => {
                let rest = self.piece(world, skb);
                self.reach_queue(world, skb, way.then);
                self.reach_queue(world, rest, way.then);
                return false;
            }
            Fate::Cut if is_udp && now.place == Place::Ip => {
                for _ in 0..2 {
                    let piece = self.piece(world, skb);
                    self.reach_queue(world, piece, way.then);
                }
                self.free(world, skb);
                return false;
            }
            Fate::Cloned | Fate::Fragmented | Fate::Cut => {}
        }
        true
    }

    /// `__neigh_event_send`, `nf_queue`.
    fn park(&self, world: &mut World, skb: Skb) {
        hook!(world, Hook::Other, skb.packet, udp::waits(hooked(skb)));
        let is_followed = self.owner(world, skb) != 0 && self.is_followed(world, skb);
        let packet = &mut world.truth.out.packets[skb.packet];
        let source = packet.source;
        if is_followed && matches!(source, Source::Thread(_)) {
            packet.is_parked = true;
            (packet.skb, packet.copy) = (skb.address, 0);
            world.truth.out.goes_on(source, None);
        }
    }

    /// Whether a hook in this context knows this skb for what it follows.
    fn is_followed(&self, world: &World, skb: Skb) -> bool {
        let packet = &world.truth.out.packets[skb.packet];
        let is_its = [packet.skb, packet.copy, packet.segment].contains(&skb.address);
        let is_known = is_known_here(packet.source);
        packet.flies && is_its && (packet.is_parked || is_known && world.truth.out.is_newest(skb.packet))
    }

    /// A copy that `skb_copy_header` begins, with the same socket or with none.
    fn copy(&self, world: &mut World, skb: Skb, has_socket: bool) -> Skb {
        let copy = world.begin_copy(skb);
        hook!(world, Hook::Other, skb.packet, tcp::transmit::copied(hooked(copy), hooked(skb)));
        world.end_copy(copy, skb);
        world.put(copy.address, world.offsets.sk_buff_sk, 0_u64);
        let sk = self.owner(world, skb);
        if has_socket {
            self.own(world, copy, sk);
        }
        let packet = &mut world.truth.out.packets[skb.packet];
        packet.stamped.retain(|other| *other != copy.address);
        if packet.stamped.contains(&skb.address) {
            packet.stamped.push(copy.address);
        }
        let is_thread = is_known_here(packet.source);
        // A copy of a copy is not followed any more.
        let is_followed =
            skb.address == packet.skb || packet.protocol == IPPROTO_TCP && skb.address == packet.copy;
        if packet.is_parked {
            packet.is_parked = packet.skb != skb.address;
        } else if is_followed && sk != 0 && is_thread {
            packet.copy = copy.address;
        }
        copy
    }

    /// A new skb with a part of another one's bytes, and the same socket.
    fn piece(&self, world: &mut World, skb: Skb) -> Skb {
        let piece = world.begin_copy(skb);
        world.end_copy(piece, skb);
        world.truth.out.packets[skb.packet].stamped.retain(|other| *other != piece.address);
        self.own(world, piece, self.owner(world, skb));
        piece
    }

    /// `nf_queue` with GSO: the segments wait or go on, and the skb is gone.
    fn cut_up(&mut self, world: &mut World, now: &Travelling) -> bool {
        let skb = now.skb;
        let (segs, len, protocol) = {
            let packet = &world.truth.out.packets[skb.packet];
            (packet.segs, packet.len, packet.protocol)
        };
        // Skbs that were cut are not cut again.
        if world.segs(skb) < 2 {
            return true;
        }
        hook!(world, Hook::Other, skb.packet, tcp::transmit::segmented(hooked(skb)));
        let packet = &world.truth.out.packets[skb.packet];
        let is_followed = packet.skb == skb.address || packet.copy == skb.address;
        let is_tcp = protocol == IPPROTO_TCP;
        if is_tcp && self.owner(world, skb) != 0 && !(is_followed && world.truth.out.is_newest(skb.packet)) {
            // One of the segments may have the address of the newest, if that has ended unseen.
            let source = packet.source;
            world.truth.out.goes_on(source, None);
        }
        world.truth.out.packets[skb.packet].pieces = (1 << segs) - 1;
        let each = len.div_ceil(segs.into());
        let offsets = world.offsets;
        let all: u32 = world.get(skb.address, offsets.sk_buff_len);
        for number in 0..u32::from(segs) {
            let piece = self.piece(world, skb);
            let mine = each.min(len - (number * each).min(len));
            world.put(piece.address, offsets.sk_buff_len, all - len + mine);
            world.set_segs(piece, 0);
            if protocol == IPPROTO_TCP {
                renumber(world, piece, number * each);
                let packet = &mut world.truth.out.packets[skb.packet];
                let is_followed = skb.address == packet.skb || skb.address == packet.copy;
                if number == 0 && is_followed && self.owner(world, skb) != 0 {
                    let packet = &mut world.truth.out.packets[skb.packet];
                    (packet.copy, packet.segment) = (0, piece.address);
                }
            }
            self.waiting.push(Travelling { skb: piece, place: now.place });
        }
        self.free(world, skb);
        // None of a datagram's segments is followed, and only the first of TCP's.
        let packet = &mut world.truth.out.packets[skb.packet];
        (packet.skb, packet.copy) = (0, 0);
        false
    }

    /// IP output.
    fn reach_ip(&self, world: &mut World, skb: Skb) {
        let packet = &world.truth.out.packets[skb.packet];
        let net = world.nets.iter().find(|net| net.inode == packet.ends.netns).copied();
        world.put(skb.address, world.offsets.sk_buff_dev, net.map_or(0, |net| net.device));
        hook!(world, Hook::IpOut, skb.packet, ip::sent(hooked(skb)));
        world.truth.out.packets[skb.packet].stamped.push(skb.address);
    }

    /// The socket that an skb holds.
    fn owner(&self, world: &World, skb: Skb) -> u64 {
        world.get(skb.address, world.offsets.sk_buff_sk)
    }

    /// `skb_set_owner_w`.
    pub(super) fn own(&self, world: &mut World, skb: Skb, sk: u64) {
        world.put(skb.address, world.offsets.sk_buff_sk, sk);
        if sk != 0 {
            world.hold_socket(sk);
        }
    }

    /// Frees an skb where no hook sees it (`consume_skb`).
    pub(super) fn free(&self, world: &mut World, skb: Skb) {
        let sk = self.owner(world, skb);
        let packet = &mut world.truth.out.packets[skb.packet];
        packet.is_free(skb.address);
        note!(world, "  {:#x} of packet {} is free", skb.address, skb.packet);
        world.free(skb);
        if sk != 0 {
            world.free_socket(sk);
        }
    }

    /// `kfree_skb`.
    pub(super) fn drop(&self, world: &mut World, skb: Skb) {
        let sk = self.owner(world, skb);
        let is_followed = self.is_followed(world, skb);
        let packet = &mut world.truth.out.packets[skb.packet];
        if is_followed && skb.address != packet.segment && sk != 0 {
            packet.flies = false;
        }
        packet.is_free(skb.address);
        packet.is_dropped = true;
        note!(world, "  {:#x} of packet {} is dropped", skb.address, skb.packet);
        world.drop(skb);
        if sk != 0 {
            world.free_socket(sk);
        }
    }
}
