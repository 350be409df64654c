//! What tasks send by UDP and by sockets that share its way. From net/ipv4/udp.c, raw.c and ip_output.c, and net/packet/af_packet.c of
//! Linux 6.1.

use std::vec::Vec;

use net_latency_common::{AF_INET, AF_INET6, IPPROTO_UDP};

use super::{
    super::{
        choice::Choice,
        flow::Flow,
        journeys::FUNCTION,
        truth::Hook,
        world::{Skb, World, hook, note, skb as hooked, sock, write_ip},
    },
    Fate, Out, Way, Who,
    truth::{Packet, Source},
};
use crate::{bpf::host::memory, journey::begin, kernel::memory::Probed};

const IPPROTO_ICMP: u8 = 1;
/// Bytes of one datagram of several that GSO makes one of.
const GSO_SIZE: u32 = 10;

/// What a task does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::lives) enum Step {
    /// `udp_sendmsg`, or `raw_sendmsg` of a raw socket. With MSG_MORE the datagram waits for more; a call that fails sends nothing.
    Send { task: u8, socket: u8, len: u8, more: bool, fails: bool, way: Way },
    /// `UDP_CORK` is taken away (`udp_push_pending_frames`).
    Uncork { task: u8, socket: u8, way: Way },
    /// A packet socket sends (`packet_snd`), by no hook of any transport.
    Packet { who: Who, way: Way },
    /// The kernel itself sends by a raw socket of its own (`icmp_reply`).
    Reply { way: Way },
    /// The socket is gone, and another one is there, of UDP or raw.
    Close { socket: u8 },
}

/// A corked datagram.
#[derive(Clone, Copy, Debug)]
struct Corked {
    len: u32,
    call: usize,
}

/// A socket that sends datagrams.
pub(super) struct Datagrams {
    flow: Flow,
    sk: u64,
    protocol: u8,
    corked: Option<Corked>,
    /// If datagrams come to it, too: the life of that socket; else 0.
    receives: usize,
}

impl Step {
    pub(super) fn draw(choice: &mut Choice, favourite: Fate) -> Self {
        let socket = if choice.one_in(2) { 0 } else { choice.below(4) as u8 };
        let task = if choice.one_in(2) { 0 } else { choice.below(3) as u8 };
        let way = Way::draw(choice, favourite);
        match choice.below(16) {
            0..=9 => Self::Send {
                task,
                socket,
                len: choice.below(5) as u8,
                more: choice.one_in(4),
                fails: choice.one_in(8),
                way,
            },
            10 | 11 => Self::Uncork { task, socket, way },
            12 => Self::Packet { who: Who::draw(choice), way },
            13 => Self::Reply { way },
            _ => Self::Close { socket },
        }
    }

    /// Steps that say less.
    pub(super) fn simpler(self) -> Vec<Self> {
        let mut all = Vec::new();
        match self {
            Self::Send { task, socket, len, more, fails, way } => {
                all.extend(way.simpler().map(|way| Self::Send { task, socket, len, more, fails, way }));
                all.push(Self::Send { task: 0, socket, len, more, fails, way });
                all.push(Self::Send { task, socket: 0, len, more, fails, way });
                all.push(Self::Send { task, socket, len: 1, more, fails, way });
                all.push(Self::Send { task, socket, len, more: false, fails, way });
                all.push(Self::Send { task, socket, len, more, fails: false, way });
            }
            Self::Uncork { task, socket, way } => {
                all.extend(way.simpler().map(|way| Self::Uncork { task, socket, way }));
                all.push(Self::Uncork { task: 0, socket, way });
            }
            Self::Packet { who, way } => all.extend(way.simpler().map(|way| Self::Packet { who, way })),
            Self::Reply { way } => all.extend(way.simpler().map(|way| Self::Reply { way })),
            Self::Close { .. } => {}
        }
        all
    }
}

fn flow(number: usize) -> Flow {
    Flow {
        is_v6: number == 1,
        addresses: [
            [10, 3, 0, number as u8 + 1, 4, 4, 4, 4, 9, 9, 9, 9, 5, 5, 5, 5],
            [10, 4, 0, 2, 7, 7, 7, 7, 1, 1, 1, 1, 3, 3, 3, 3],
        ],
        remote_port: 53,
        local_port: 60_000 + number as u16,
        net: number % 2,
    }
}

/// Two sockets of UDP, a raw one, one of UDP that is not connected, the kernel's own raw one, and a packet socket.
pub(super) fn sockets(world: &mut World) -> Vec<Datagrams> {
    const KINDS: [u8; 6] = [IPPROTO_UDP, IPPROTO_UDP, IPPROTO_ICMP, IPPROTO_UDP, IPPROTO_ICMP, 0];
    KINDS.iter().enumerate().map(|(number, protocol)| Datagrams::new(world, number, *protocol)).collect()
}

/// Of those that [`sockets`] makes, the one to which datagrams may come, and the last ones.
const SHARED: usize = 3;
const OF_KERNEL: usize = 4;
const PACKET: usize = 5;

impl Datagrams {
    fn new(world: &mut World, number: usize, protocol: u8) -> Self {
        let flow = flow(number);
        let sk = world.new_socket(&flow, 0);
        world.put(sk, world.offsets.sock_sk_protocol, u16::from(protocol));
        if number == SHARED {
            // Not connected: the packet alone says where to.
            world.put(sk, world.offsets.sock_skc_addrpair, 0_u64);
            world.put(sk, world.offsets.sock_skc_portpair, u32::from(flow.local_port) << 16);
        }
        Self { flow, sk, protocol, corked: None, receives: 0 }
    }
}

impl Out {
    /// A socket that receives, if it is open: its life, its address and its port. It sends too.
    pub(in crate::lives) fn meet_receiver(&mut self, world: &mut World, now: Option<(usize, u64, u16)>) {
        let life = now.map_or(0, |(life, ..)| life);
        if life == self.datagrams[SHARED].receives {
            return;
        }
        if self.datagrams[SHARED].receives != 0 {
            self.datagrams[SHARED] = Datagrams::new(world, SHARED, IPPROTO_UDP);
        }
        if let Some((receives, sk, local_port)) = now {
            let Datagrams { flow, sk: own, .. } = self.datagrams[SHARED];
            world.free_socket(own);
            let flow = Flow { local_port, ..flow };
            self.datagrams[SHARED] = Datagrams { flow, sk, protocol: IPPROTO_UDP, corked: None, receives };
        }
    }

    pub(super) fn step_udp(&mut self, world: &mut World, step: Step) {
        match step {
            Step::Send { task, socket, len, more, fails, way } => {
                if self.calls[usize::from(task) % 3].is_some() {
                    // It is in the kernel.
                    return;
                }
                let number = usize::from(socket) % OF_KERNEL;
                self.run_as(world, Who::Task(task));
                self.send(world, number, u32::from(len) * GSO_SIZE, more, fails, way);
            }
            Step::Uncork { task, socket, way } => {
                let number = usize::from(socket) % OF_KERNEL;
                if self.calls[usize::from(task) % 3].is_some() {
                    return;
                }
                self.run_as(world, Who::Task(task));
                if let Some(corked) = self.datagrams[number].corked {
                    self.datagram(world, number, corked.len, Some(corked.call), way);
                    self.uncorked(world, number);
                }
            }
            Step::Packet { who, way } => {
                self.run_as(world, who);
                self.send_packet(world, way);
            }
            Step::Reply { way } => {
                self.run_as(world, Who::Softirq);
                self.datagram(world, OF_KERNEL, GSO_SIZE, None, way);
            }
            Step::Close { socket } => {
                let number = usize::from(socket) % OF_KERNEL;
                if self.datagrams[number].receives != 0 {
                    return;
                }
                world.free_socket(self.datagrams[number].sk);
                let protocol = if world.choice.one_in(4) { IPPROTO_ICMP } else { IPPROTO_UDP };
                self.datagrams[number] = Datagrams::new(world, number, protocol);
            }
        }
    }

    /// The lower end of a call that sends: `udp_sendmsg`, `raw_sendmsg`.
    fn send(&mut self, world: &mut World, number: usize, len: u32, more: bool, fails: bool, way: Way) {
        let Datagrams { flow, sk, protocol, corked, .. } = self.datagrams[number];
        if protocol != IPPROTO_UDP {
            if !fails {
                self.datagram(world, number, len, None, way);
            }
            return;
        }
        let call = hook!(world, Hook::Begun, number, udp::written(sock(sk)));
        if corked.is_none() {
            world.truth.sends(call);
            world.truth.begins_to_write((sk, flow.local_port), call);
            // What the thread sent before is not followed any more.
            let ids = world.truth.calls[call].ids;
            world.truth.out.goes_on(Source::Thread(ids), None);
            self.begins(ids, Some(call));
        }
        world.journey_written(call, sk, || begin::udp_called(sock::<Probed>(sk), FUNCTION));
        if fails {
            // `udp_flush_pending_frames`, where the call would have added to a datagram.
            return self.uncorked(world, number);
        }
        let call = corked.map_or(call, |corked| corked.call);
        let len = corked.map_or(0, |corked| corked.len) + len;
        if more {
            self.datagrams[number].corked = Some(Corked { len, call });
            return world.put(sk, world.offsets.udp_sock_pending, AF_INET);
        }
        self.datagram(world, number, len, Some(call), way);
        self.uncorked(world, number);
    }

    /// The call by which a thread began its datagram, which is forgotten when it begins or sends another one.
    fn begins(&mut self, ids: u64, call: Option<usize>) {
        self.begun.retain(|(other, _)| *other != ids);
        self.begun.extend(call.map(|call| (ids, call)));
    }

    /// No datagram waits for more.
    fn uncorked(&mut self, world: &World, number: usize) {
        let socket = &mut self.datagrams[number];
        socket.corked = None;
        world.put(socket.sk, world.offsets.udp_sock_pending, 0_u32);
    }

    /// `ip_send_skb`, `ip6_send_skb` of a datagram of UDP, by this call.
    fn datagram(&mut self, world: &mut World, number: usize, len: u32, call: Option<usize>, way: Way) {
        let Datagrams { flow, sk, protocol, .. } = self.datagrams[number];
        let ids = crate::bpf::host::Machine::with(|machine| machine.ids);
        let is_udp = protocol == IPPROTO_UDP;
        let packet = self.new_packet(world, &flow, protocol, ids, len, call);
        world.truth.out.packets[packet].has_app =
            !world.truth.out.is_limited && call.is_some_and(|call| self.begun.contains(&(ids, call)));
        self.begins(ids, None);
        let skb = self.new_datagram(world, packet, &flow, protocol, len);
        self.own(world, skb, sk);
        world.truth.out.packets[packet].skb = skb.address;
        note!(world, "  packet {packet}: {:?}", world.truth.out.packets[packet]);
        world.truth.out.seen += u64::from(is_udp);
        // A thread that goes on with another protocol has ended its datagram.
        world.truth.out.goes_on(Source::Thread(ids), is_udp.then_some(packet));
        let family = if flow.is_v6 { AF_INET6 } else { AF_INET };
        let is_corked = is_udp && world.get::<u32>(sk, world.offsets.udp_sock_pending) != 0;
        world.journey_sent(packet, sk, is_corked, || {
            if is_udp {
                begin::udp_made(hooked::<Probed>(skb), FUNCTION);
            }
            begin::udp_sent(hooked::<Probed>(skb), family, FUNCTION);
        });
        hook!(world, Hook::Sent, packet, udp::sent(hooked(skb), family));
        self.leave(world, skb, way);
    }

    /// A packet socket's.
    fn send_packet(&mut self, world: &mut World, way: Way) {
        let Datagrams { flow, sk, protocol, .. } = self.datagrams[PACKET];
        let packet = self.new_packet(world, &flow, protocol, 0, GSO_SIZE, None);
        let skb = self.new_datagram(world, packet, &flow, protocol, GSO_SIZE);
        self.own(world, skb, sk);
        world.put(skb.address, world.offsets.sk_buff_dev, world.nets[flow.net].device);
        self.leave_to_device(world, skb, way.then);
    }

    fn new_packet(
        &self,
        world: &mut World,
        flow: &Flow,
        protocol: u8,
        ids: u64,
        len: u32,
        call: Option<usize>,
    ) -> usize {
        let packet = Packet {
            len,
            segs: len.div_ceil(GSO_SIZE).max(1) as u16,
            mark: world.choice.below(4),
            app: call,
            flies: protocol == IPPROTO_UDP,
            ..Packet::new(protocol, world.ends(flow, 0), Source::Thread(ids))
        };
        world.truth.out.packets.push(packet);
        world.truth.out.packets.len() - 1
    }

    fn new_datagram(&self, world: &mut World, packet: usize, flow: &Flow, protocol: u8, len: u32) -> Skb {
        const NETWORK: u16 = 32;
        const HEADER: u32 = 8;
        let skb = world.empty_skb(packet);
        let offsets = world.offsets;
        let network = skb.head + u64::from(NETWORK);
        let [remote, local] = flow.addresses;
        let header = write_ip(network, protocol, flow.is_v6, [local, remote]);
        let transport = network + u64::from(header);
        memory::write(transport, [flow.local_port.to_be(), flow.remote_port.to_be()]);
        memory::write(transport + 4, [((len + HEADER) as u16).to_be(), packet as u16]);
        let truth = &world.truth.out.packets[packet];
        let (segs, mark) = (truth.segs, truth.mark);
        world.put(skb.address, offsets.sk_buff_mark, mark);
        world.put(skb.address, offsets.sk_buff_network_header, NETWORK);
        world.put(skb.address, offsets.sk_buff_transport_header, NETWORK + header);
        world.put(skb.address, offsets.sk_buff_data, network);
        world.put(skb.address, offsets.sk_buff_len, len + HEADER + u32::from(header));
        // What lies in one piece is not split.
        world.put(skb.address, offsets.sk_buff_data_len, if segs > 1 { len } else { 0 });
        world.set_segs(skb, if segs > 1 { segs } else { 0 });
        skb
    }
}
