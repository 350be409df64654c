//! What tasks write to TCP, and what TCP sends. From net/ipv4/tcp.c and tcp_output.c of Linux 6.1.

use std::{collections::VecDeque, vec, vec::Vec};

use net_latency_common::{FLAG_CONTROL, FLAG_RETRANS, FLAG_RTO, IPPROTO_TCP};

use super::{
    super::{
        choice::Choice,
        flow::Flow,
        journeys::FUNCTION,
        readers::is_fine,
        truth::{Call, Hook},
        world::{Skb, World, hook, note, skb as hooked, sock},
    },
    Fate, Out, Way, Who,
    held::{self, First, MSS},
    multipath::Whole,
    truth::{Packet, Source, Write},
};
use crate::{
    bpf::host::memory,
    journey::begin,
    kernel::memory::{Number, Probed},
};

/// Bytes of the most that one skb holds.
const SIZE_GOAL: u64 = 40;
/// Sizes of calls count in these.
const UNIT: u64 = 5;

const FIN: u8 = 1;
const SYN: u8 = 2;
/// `TCPCB_EVER_RETRANS`.
const EVER_RETRANS: u8 = 0x80;

/// What a task or TCP does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::lives) enum Step {
    /// A task calls `tcp_sendmsg_locked` (or `do_tcp_sendpages`). The call puts some of its bytes into the queue, and waits for memory or
    /// ends; then TCP sends skbs.
    Write { task: u8, socket: u8, size: u8, copied: u8, waits: bool, sends: u8, way: Way },
    /// A call that waits goes on in the same way.
    Continue { task: u8, copied: u8, waits: bool, sends: u8, way: Way },
    /// `tcp_write_xmit`: skbs that were not sent go, of the first of which only a part if `cuts`.
    Push { who: Who, socket: u8, sends: u8, cuts: bool, way: Way },
    /// `__tcp_retransmit_skb` of one of the skbs that were sent: cut before (`tcp_fragment`), or with the next one
    /// (`tcp_retrans_try_collapse`).
    Resend { who: Who, socket: u8, which: u8, cuts: bool, joins: bool, way: Way },
    /// An ACK, or a probe of the window (`tcp_xmit_probe_skb`).
    Control { who: Who, socket: u8, probes: bool, way: Way },
    /// An ACK comes for N bytes more.
    Ack { socket: u8, len: u8 },
    /// A socket connects: by a call that writes (TCP Fast Open), the SYN with N of its bytes; or by `connect`, if `size` is 0.
    Connect { task: u8, socket: u8, size: u8, copied: u8, waits: bool, way: Way },
    /// `tcp_send_fin`.
    Fin { task: u8, socket: u8, way: Way },
    /// The socket is gone, and another one is there later.
    Close { socket: u8 },
}

/// A call that waits in the kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct InCall {
    socket: usize,
    life: usize,
    left: u64,
    call: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Unconnected,
    Open,
    /// It has sent a FIN, or is about to.
    Finished,
}

/// An skb of the write queue or of the retransmission queue.
#[derive(Clone, Copy, Debug)]
struct Segment {
    skb: Skb,
    start: u64,
    end: u64,
    has_fin: bool,
    /// When TCP sent its first byte first; 0 for never. It is the time of that transmission, as the kernel noted it.
    first: u64,
    /// The packet that was sent last with it.
    packet: Option<usize>,
}

/// The sending end of a connection.
pub(super) struct Sender {
    flow: Flow,
    pub(super) sk: u64,
    /// The socket of MPTCP that is written to in its place, and has no other subflow.
    pub(super) whole: Option<Whole>,
    /// Which life of which socket it is, told from all others.
    pub(super) life: usize,
    /// Which connection of those that receive is its other half.
    pub(super) receives: Option<usize>,
    state: State,
    first: u32,
    pub(super) written: u64,
    /// `snd_nxt`, as a position.
    sent: u64,
    acked: u64,
    queue: VecDeque<Segment>,
    pub(super) users: Vec<u64>,
    has_resent: bool,
    /// Whether more than one call may have been at work at a time.
    pub(super) is_mixed: bool,
    /// Whether a call has written less than it was to.
    ended_short: bool,
    rtt: u32,
    dsacks: u32,
    clock: held::Clock,
    /// Whether the peer takes nothing.
    is_closed: bool,
}

impl Step {
    pub(super) fn draw(choice: &mut Choice, favourite: Fate) -> Self {
        let socket = if choice.one_in(2) { 0 } else { choice.below(4) as u8 };
        let way = Way::draw(choice, favourite);
        let task = if choice.one_in(2) { 0 } else { choice.below(3) as u8 };
        let who = Who::draw(choice);
        let size = if choice.one_in(8) { 0 } else { 1 + choice.below(12) as u8 };
        let copied = if choice.one_in(4) { choice.below(13) as u8 } else { 12 };
        let waits = choice.one_in(4);
        match choice.below(24) {
            0..=8 => {
                let sends = choice.of(&[0, 0, 1, 1, 1, 2, 3]);
                Self::Write { task, socket, size, copied, waits, sends, way }
            }
            9 => Self::Continue { task, copied, waits, sends: choice.below(3) as u8, way },
            10..=13 => Self::Push { who, socket, sends: choice.below(4) as u8, cuts: choice.one_in(4), way },
            14..=17 => Self::Resend {
                who,
                socket,
                which: choice.below(3) as u8,
                cuts: choice.one_in(4),
                joins: choice.one_in(8),
                way,
            },
            18 => Self::Control { who, socket, probes: choice.one_in(4), way },
            19 | 20 => Self::Ack { socket, len: choice.below(13) as u8 },
            21 => Self::Connect { task, socket, size: choice.below(13) as u8, copied, waits, way },
            22 => Self::Fin { task, socket, way },
            _ => Self::Close { socket },
        }
    }

    /// Steps that say less.
    pub(super) fn simpler(self) -> Vec<Self> {
        let with = |other: Way| match self {
            Self::Write { task, socket, size, copied, waits, sends, .. } => {
                Self::Write { task, socket, size, copied, waits, sends, way: other }
            }
            Self::Continue { task, copied, waits, sends, .. } => {
                Self::Continue { task, copied, waits, sends, way: other }
            }
            Self::Push { who, socket, sends, cuts, .. } => {
                Self::Push { who, socket, sends, cuts, way: other }
            }
            Self::Resend { who, socket, which, cuts, joins, .. } => {
                Self::Resend { who, socket, which, cuts, joins, way: other }
            }
            Self::Control { who, socket, probes, .. } => Self::Control { who, socket, probes, way: other },
            Self::Connect { task, socket, size, copied, waits, .. } => {
                Self::Connect { task, socket, size, copied, waits, way: other }
            }
            Self::Fin { task, socket, .. } => Self::Fin { task, socket, way: other },
            other => other,
        };
        let mut all = Vec::new();
        match self {
            Self::Write { task, socket, size, copied, waits, sends, way } => {
                all.extend(way.simpler().map(with));
                all.push(Self::Write { task: 0, socket, size, copied, waits, sends, way });
                all.push(Self::Write { task, socket: 0, size, copied, waits, sends, way });
                all.push(Self::Write { task, socket, size: size.min(2), copied, waits, sends, way });
                all.push(Self::Write { task, socket, size, copied: 12, waits, sends, way });
                all.push(Self::Write { task, socket, size, copied, waits: false, sends, way });
                all.push(Self::Write { task, socket, size, copied, waits, sends: sends.min(1), way });
                all.push(Self::Write { task, socket, size, copied, waits, sends: 0, way });
            }
            Self::Continue { task, copied, waits, sends, way } => {
                all.extend(way.simpler().map(with));
                all.push(Self::Continue { task, copied, waits: false, sends, way });
                all.push(Self::Continue { task, copied, waits, sends: 0, way });
            }
            Self::Push { who, socket, sends, cuts, way } => {
                all.extend(way.simpler().map(with));
                all.push(Self::Push { who: Who::Softirq, socket, sends, cuts, way });
                all.push(Self::Push { who, socket, sends: 1, cuts, way });
                all.push(Self::Push { who, socket, sends, cuts: false, way });
                all.push(Self::Push { who, socket: 0, sends, cuts, way });
            }
            Self::Resend { who, socket, which, cuts, joins, way } => {
                all.extend(way.simpler().map(with));
                all.push(Self::Resend { who: Who::Softirq, socket, which, cuts, joins, way });
                all.push(Self::Resend { who, socket, which: 0, cuts, joins, way });
                all.push(Self::Resend { who, socket, which, cuts: false, joins, way });
                all.push(Self::Resend { who, socket, which, cuts, joins: false, way });
                all.push(Self::Resend { who, socket: 0, which, cuts, joins, way });
            }
            Self::Control { who, socket, probes, way } => {
                all.extend(way.simpler().map(with));
                all.push(Self::Control { who: Who::Softirq, socket, probes, way });
                all.push(Self::Control { who, socket, probes: false, way });
            }
            Self::Connect { task, socket, size, copied, waits, way } => {
                all.extend(way.simpler().map(with));
                all.push(Self::Connect { task: 0, socket, size, copied, waits, way });
                all.push(Self::Connect { task, socket, size: 0, copied, waits, way });
                all.push(Self::Connect { task, socket, size, copied, waits: false, way });
            }
            Self::Fin { .. } => all.extend([Way::PLAIN].map(with)),
            Self::Ack { socket, .. } => all.push(Self::Ack { socket, len: 12 }),
            Self::Close { .. } => {}
        }
        all
    }
}

/// The other ends, by the socket's number.
fn flow(number: usize) -> Flow {
    Flow {
        is_v6: number == 1,
        addresses: [
            [10, 1, 0, number as u8 + 1, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7],
            [10, 2, 0, 2, 2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5],
        ],
        remote_port: 443,
        local_port: 50_000 + number as u16,
        net: number % 2,
    }
}

/// Senders: of two connections that receive as well, one that is open, and one that is not connected yet. Some of the first ones have
/// bytes that were written before tracing began.
pub(super) fn senders(world: &mut World, ends: [[u64; 2]; 2]) -> Vec<Sender> {
    let mut senders = Vec::new();
    for (number, [sk, whole]) in ends.into_iter().enumerate() {
        let of = &world.truth.connections[number];
        let mut flow = Flow {
            is_v6: number == 1,
            addresses: [of.remote, of.local],
            remote_port: of.remote_port,
            local_port: of.local_port,
            net: 0,
        };
        // What lines show has zeroes behind an IPv4 address.
        flow.net = world.nets.iter().position(|net| net.inode == of.netns).unwrap_or(0);
        let first = world.first_number();
        let sender = Sender::new(flow, sk, number, Some(number), State::Open, first);
        let whole = (whole != 0).then(|| Whole::new(world, whole));
        senders.push(Sender { whole, ..sender });
    }
    for number in 2..4 {
        let flow = flow(number);
        let state = if number == 2 { State::Open } else { State::Unconnected };
        let first = if number == 2 { world.first_number() } else { 0 };
        let sk = open(world, &flow, state);
        senders.push(Sender::new(flow, sk, number, None, state, first));
    }
    for sender in &mut senders {
        if sender.state == State::Open && world.choice.one_in(4) {
            sender.append(world, 20);
            sender.append(world, 30);
            let first = &mut sender.queue[0];
            first.first = 1_000;
            world.put(first.skb.address, world.offsets.sk_buff_skb_mstamp_ns, first.first);
            sender.sent = first.end;
        }
        sender.update(world);
    }
    senders
}

/// A socket, connected or not.
fn open(world: &mut World, flow: &Flow, state: State) -> u64 {
    const TCP_CLOSE: u8 = 7;
    let sk = world.new_socket(flow, 0);
    if state == State::Unconnected {
        world.put(sk, world.offsets.sock_skc_addrpair, 0_u64);
        world.put(sk, world.offsets.sock_skc_v6_daddr, [0_u8; 16]);
        world.put(sk, world.offsets.sock_skc_portpair, 0_u32);
        world.put(sk, world.offsets.sock_skc_state, TCP_CLOSE);
    }
    sk
}

impl Sender {
    fn new(flow: Flow, sk: u64, life: usize, receives: Option<usize>, state: State, first: u32) -> Self {
        Self {
            flow,
            sk,
            whole: None,
            life,
            receives,
            state,
            first,
            written: 0,
            sent: 0,
            acked: 0,
            queue: VecDeque::new(),
            users: Vec::new(),
            has_resent: false,
            is_mixed: false,
            ended_short: false,
            rtt: 0,
            dsacks: 0,
            clock: held::Clock::default(),
            is_closed: false,
        }
    }

    fn seq(&self, position: u64) -> u32 {
        self.first.wrapping_add(position as u32)
    }

    /// Shows what hooks read of the socket.
    pub(super) fn update(&self, world: &World) {
        let offsets = world.offsets;
        world.put(self.sk, offsets.tcp_sock_write_seq, self.seq(self.written));
        world.put(self.sk, offsets.tcp_sock_snd_nxt, self.seq(self.sent));
        world.put(self.sk, offsets.tcp_sock_snd_una, self.seq(self.acked));
        world.put(self.sk, offsets.tcp_sock_srtt_us, self.rtt);
        world.put(self.sk, offsets.tcp_sock_dsack_dups, self.dsacks);
        world.put(self.sk, offsets.tcp_sock_snd_wnd, if self.is_closed { 0_u32 } else { 100 });
    }

    /// `tcp_skb_entail`, `skb_add_data_nocache`: to the last skb that was not sent, as far as there is room in it.
    pub(super) fn append(&mut self, world: &mut World, len: u64) {
        let end = self.written + len;
        while self.written < end {
            let room = match self.queue.back() {
                Some(last) if last.start >= self.sent => SIZE_GOAL - (last.end - last.start).min(SIZE_GOAL),
                _ => 0,
            };
            if room == 0 {
                // The packet is that of the clone, when there is one.
                let skb = world.empty_skb(0);
                let (start, first) = (self.written, 0);
                self.queue.push_back(Segment { skb, start, end: start, has_fin: false, first, packet: None });
            }
            let more = if room == 0 { SIZE_GOAL } else { room }.min(end - self.written);
            self.written += more;
            if let Some(last) = self.queue.back_mut() {
                last.end = self.written;
            }
        }
    }

    /// The queue's first skb that was not sent (`tcp_send_head`).
    fn unsent(&self) -> Option<usize> {
        self.queue.iter().position(|segment| segment.start >= self.sent)
    }

    /// `tcp_fragment`, `tso_fragment`: the bytes behind the first `len` become an skb of their own.
    fn cut(&mut self, world: &mut World, index: usize, len: u64) {
        let old = self.queue[index];
        if len == 0 || len >= old.end - old.start {
            return;
        }
        let skb = world.empty_skb(0);
        let offsets = world.offsets;
        let sent_at: u64 = world.get(old.skb.address, offsets.sk_buff_skb_mstamp_ns);
        world.put(skb.address, offsets.sk_buff_skb_mstamp_ns, sent_at);
        let sacked: u8 = world.get(old.skb.address, offsets.tcp_skb_cb_sacked);
        world.put(skb.address, offsets.tcp_skb_cb_sacked, sacked);
        let at = old.start + len;
        self.queue[index].end = at;
        self.queue[index].has_fin = false;
        self.queue.insert(index + 1, Segment { skb, start: at, packet: None, ..old });
    }

    /// Writes what TCP's hooks read of an skb of the queue.
    fn describe(&self, world: &World, segment: &Segment) {
        let offsets = world.offsets;
        let skb = segment.skb.address;
        let len = (segment.end - segment.start) as u32;
        world.put(skb, offsets.tcp_skb_cb_seq, self.seq(segment.start));
        world.put(skb, offsets.tcp_skb_cb_end_seq, self.seq(segment.end + u64::from(segment.has_fin)));
        world.put(skb, offsets.tcp_skb_cb_tcp_flags, 0x10 | if segment.has_fin { FIN } else { 0 });
        world.put(skb, offsets.tcp_skb_cb_tcp_gso_segs, len.div_ceil(MSS).max(1) as u16);
        world.put(skb, offsets.sk_buff_len, len);
        world.put(skb, offsets.sk_buff_data_len, len);
        world.set_segs(segment.skb, len.div_ceil(MSS).max(1) as u16);
    }

    /// Frees skbs that are sent and acknowledged, or all.
    fn free_queue(&mut self, world: &mut World, until: u64) {
        while let Some(first) = self.queue.front()
            && first.end <= until
        {
            world.free(first.skb);
            self.queue.pop_front();
        }
    }
}

impl Out {
    pub(super) fn step_tcp(&mut self, world: &mut World, step: Step) {
        match step {
            Step::Write { task, socket, size, copied, waits, sends, way } => {
                let s = usize::from(socket) % self.senders.len();
                let t = usize::from(task) % 3;
                if self.calls[t].is_some() || !self.lock(world, s, Who::Task(task)) {
                    return;
                }
                let size = u64::from(size) * UNIT;
                let call = self.written(world, s, size);
                let sender = &mut self.senders[s];
                if sender.state == State::Open {
                    // Another call waits, and may take the lock before this one is through.
                    let life = sender.life;
                    sender.is_mixed |=
                        sender.whole.is_none() && self.calls.iter().flatten().any(|call| call.life == life);
                    self.calls[t] = Some(InCall { socket: s, life, left: size, call });
                    self.go_on(world, t, copied, waits);
                    self.push(world, s, sends, false, way);
                } else {
                    // `EPIPE`.
                    sender.ended_short = true;
                }
                self.unlock(world, s);
            }
            Step::Continue { task, copied, waits, sends, way } => {
                let t = usize::from(task) % 3;
                let Some(call) = self.calls[t] else { return };
                if !self.lock(world, call.socket, Who::Task(task)) {
                    return;
                }
                if self.senders[call.socket].state == State::Open {
                    self.go_on(world, t, copied, waits);
                    self.push(world, call.socket, sends, false, way);
                } else {
                    self.calls[t] = None;
                    self.senders[call.socket].ended_short = true;
                }
                self.unlock(world, call.socket);
            }
            Step::Push { who, socket, sends, cuts, way } => {
                let s = usize::from(socket) % self.senders.len();
                if self.lock(world, s, who) {
                    self.push_whole(world, s, who == Who::Softirq);
                    self.push(world, s, sends, cuts, way);
                    self.unlock(world, s);
                }
            }
            Step::Resend { who, socket, which, cuts, joins, way } => {
                let s = usize::from(socket) % self.senders.len();
                if self.lock(world, s, who) {
                    self.resend(world, s, which, cuts, joins, way);
                    self.unlock(world, s);
                }
            }
            Step::Control { who, socket, probes, way } => {
                let s = usize::from(socket) % self.senders.len();
                if self.senders[s].state != State::Unconnected && self.lock(world, s, who) {
                    let sender = &self.senders[s];
                    let seq = if probes {
                        sender.seq(sender.acked).wrapping_sub(1)
                    } else {
                        sender.seq(sender.sent)
                    };
                    self.send_control(world, s, seq, 0x10, who, way);
                    self.unlock(world, s);
                }
            }
            Step::Ack { socket, len } => {
                let s = usize::from(socket) % self.senders.len();
                if self.lock(world, s, Who::Softirq) {
                    let (rtt, dsacks) = (world.choice.below(1000), world.choice.below(2));
                    let is_closed = world.choice.one_in(4);
                    let sender = &mut self.senders[s];
                    // Nothing behind a FIN.
                    let until = (sender.acked + u64::from(len) * UNIT).min(sender.sent).min(sender.written);
                    let (life, acked) = (sender.life, sender.acked);
                    // Packets sent before tracing began have arrived by now.
                    let before = sender.queue.iter().take_while(|segment| segment.packet.is_none());
                    let acked =
                        before.map(|segment| segment.end).max().unwrap_or(0).min(sender.sent).max(acked);
                    let until = self.acknowledgeable(world, life, acked, until);
                    self.acknowledge(world, s, until);
                    let sender = &mut self.senders[s];
                    sender.acked = until;
                    sender.free_queue(world, sender.acked);
                    // `tcp_trim_head`.
                    if let Some(first) = sender.queue.front_mut()
                        && first.start < sender.acked
                    {
                        first.start = sender.acked;
                    }
                    sender.rtt = rtt;
                    sender.dsacks += dsacks;
                    sender.is_closed = is_closed;
                    sender.update(world);
                    if let Some(whole) = &mut sender.whole {
                        whole.acknowledge(world, sender.acked);
                    }
                    world.put(sender.sk, world.offsets.tcp_sock_icsk_retransmits, 0_u8);
                    if is_fine() && world.choice.one_in(2) {
                        let is_all_sent = sender.first_unsent(world).is_none();
                        let of = [sender.sk, sender.life as u64];
                        held::has_room(world, s, of, &mut sender.clock, is_all_sent);
                    }
                    self.unlock(world, s);
                }
            }
            Step::Connect { task, socket, size, copied, waits, way } => {
                self.connect(world, [task, socket], [size, copied], waits, way);
            }
            Step::Fin { task, socket, way } => {
                let s = usize::from(socket) % self.senders.len();
                if self.senders[s].state == State::Open && self.lock(world, s, Who::Task(task)) {
                    self.finish(world, s, Who::Task(task), way);
                    self.unlock(world, s);
                }
            }
            Step::Close { socket } => {
                let s = usize::from(socket) % self.senders.len();
                if self.senders[s].receives.is_none() {
                    self.run_as(world, Who::Softirq);
                    self.close(world, s);
                }
            }
        }
    }

    /// This context gets the lock of a socket, if it can.
    fn lock(&mut self, world: &World, s: usize, who: Who) -> bool {
        let sender = &self.senders[s];
        if sender.sk == 0 {
            return false;
        }
        let owner = sender.receives.and_then(|number| self.owners[number]);
        if owner.is_some() && !matches!(who, Who::Task(task) if owner == Some(self.task(task))) {
            return false;
        }
        let is_task = self.run_as(world, who).is_some();
        world.put(sender.sk, world.offsets.sock_sk_lock_owned, u32::from(is_task));
        true
    }

    fn unlock(&self, world: &World, s: usize) {
        let sender = &self.senders[s];
        let owner = sender.receives.and_then(|number| self.owners[number]);
        world.put(sender.sk, world.offsets.sock_sk_lock_owned, u32::from(owner.is_some()));
    }

    /// `tcp_sendmsg_locked` or `mptcp_sendmsg` begins.
    fn written(&mut self, world: &mut World, s: usize, size: u64) -> usize {
        let Sender { sk, life, ended_short, .. } = self.senders[s];
        let pending = self.calls.iter().flatten().filter(|call| call.life == life).count();
        world.put(sk, world.offsets.sock_sk_write_pending, pending as u32);
        // docs/accuracy.md: what follows a call that has written less than it was to is taken for that one's, if its own is not seen.
        let skips = world.skips;
        world.skips = if pending != 0 || ended_short { 0 } else { skips };
        let whole = self.senders[s].whole.as_ref().map(|whole| whole.sk);
        let size = Number::new(size as *const u8);
        let call = match whole {
            Some(whole) => hook!(world, Hook::Written, s, tcp::multipath::calls(sock(whole), size)),
            None => hook!(world, Hook::Written, s, tcp::transmit::written(sock(sk), size)),
        };
        world.skips = skips;
        let Call { ids, is_skipped, .. } = world.truth.calls[call];
        world.truth.sends(call);
        if whole.is_none() {
            world.truth.begins_to_write((sk, 0), call);
            world.journey_written(call, sk, || begin::tcp_called(sock::<Probed>(sk), FUNCTION));
        }
        let sender = &mut self.senders[s];
        // MPTCP's is the subflow's when that gets some of its bytes.
        sender.users.extend((!is_skipped && whole.is_none()).then_some(ids));
        sender.is_mixed |= is_skipped;
        call
    }

    /// A call puts bytes into the queue, and ends if it is through, or does not wait.
    fn go_on(&mut self, world: &mut World, t: usize, copied: u8, waits: bool) {
        let Some(mut call) = self.calls[t].take() else { return };
        let sender = &mut self.senders[call.socket];
        let copied = call.left.min(u64::from(copied) * UNIT);
        if let Some(whole) = &mut sender.whole {
            whole.write(world, copied, call.call);
            self.push_whole(world, call.socket, false);
        } else {
            let start = sender.written;
            sender.append(world, copied);
            sender.update(world);
            note!(world, "  call {} writes {start} to {}", call.call, sender.written);
            world.truth.out.writes.push(Write {
                socket: call.life,
                start,
                end: sender.written,
                call: call.call,
            });
        }
        call.left -= copied;
        if waits && call.left != 0 {
            self.calls[t] = Some(call);
        } else {
            self.senders[call.socket].ended_short |= call.left != 0;
        }
    }

    /// `tcp_write_xmit`.
    fn push(&mut self, world: &mut World, s: usize, sends: u8, cuts: bool, way: Way) {
        let sender = &self.senders[s];
        if sender.unsent().is_none() {
            return;
        }
        self.send_unsent(world, s, sends, cuts, way);
        if is_fine() {
            let sender = &mut self.senders[s];
            let first = sender.first_unsent(world);
            let of = [sender.sk, sender.life as u64];
            held::stops(world, s, of, &mut sender.clock, first);
        }
    }

    /// What of it goes.
    fn send_unsent(&mut self, world: &mut World, s: usize, sends: u8, cuts: bool, way: Way) {
        let at = crate::bpf::host::now();
        for number in 0..sends {
            let sender = &mut self.senders[s];
            let Some(index) = sender.unsent() else { return };
            if cuts && number == 0 {
                sender.cut(world, index, u64::from(MSS));
            }
            let is_last = number + 1 == sends;
            self.transmit(world, s, index, at, if is_last { way } else { Way::PLAIN });
            // `tcp_event_new_data_sent`.
            let sender = &mut self.senders[s];
            let sent = sender.queue[index];
            sender.sent = sent.end + u64::from(sent.has_fin);
            sender.update(world);
        }
    }

    /// `__tcp_transmit_skb` of an skb of the queue.
    fn transmit(&mut self, world: &mut World, s: usize, index: usize, at: u64, way: Way) {
        let offsets = world.offsets;
        let sender = &mut self.senders[s];
        let is_again = sender.queue[index].start < sender.sent;
        let segment = &mut sender.queue[index];
        // `skb_set_delivery_time`.
        world.put(segment.skb.address, offsets.sk_buff_skb_mstamp_ns, at);
        if segment.first == 0 {
            segment.first = at;
        }
        let segment = *segment;
        sender.describe(world, &segment);
        let len = (segment.end - segment.start) as u32;
        let is_control = len == 0;
        let by_timer = is_fine() && world.get::<u8>(sender.sk, offsets.tcp_sock_icsk_retransmits) != 0;
        if is_again && !is_control {
            sender.has_resent = true;
        }
        let packet = Packet {
            len,
            segs: len.div_ceil(MSS).max(1) as u16,
            flags: match (is_control, is_again) {
                (true, _) => FLAG_CONTROL,
                (false, true) => FLAG_RETRANS | if by_timer { FLAG_RTO } else { 0 },
                (false, false) => 0,
            },
            first: segment.first,
            ..sender.packet(world, segment.start)
        };
        let has_app = !is_again && packet.app.is_some() && !sender.is_mixed && !world.truth.out.is_limited;
        let packet = Packet { has_app, ..packet };
        let number = self.add(world, packet);
        let old = Skb { packet: number, ..segment.skb };
        let sk = self.senders[s].sk;
        world.journey_sent(number, sk, false, || {
            begin::tcp_transmitted(sock::<Probed>(sk), hooked::<Probed>(old), FUNCTION);
        });
        let skb = if world.is_buffer_shared(old) && world.choice.one_in(2) {
            let copy = world.begin_copy(old);
            hook!(world, Hook::Other, number, tcp::transmit::copied(hooked(copy), hooked(old)));
            world.end_copy(copy, old);
            copy
        } else {
            world.clone_skb(old)
        };
        self.senders[s].queue[index].packet = Some(number);
        let seq = self.senders[s].seq(segment.start);
        self.let_go(world, s, skb, seq, way);
    }

    /// TCP's header is written, and the skb is IP's.
    fn let_go(&mut self, world: &mut World, s: usize, skb: Skb, seq: u32, way: Way) {
        const HEADERS: u16 = 92;
        const TCP_HEADER: u16 = 20;
        let offsets = world.offsets;
        let sender = &self.senders[s];
        let flags: u8 = world.get(skb.address, offsets.tcp_skb_cb_tcp_flags);
        let transport = HEADERS - TCP_HEADER;
        let tcp = skb.head + u64::from(transport);
        let ports = [sender.flow.local_port.to_be(), sender.flow.remote_port.to_be()];
        memory::write(tcp, ports);
        // A SYN's own number is the one before its first byte's.
        let syn = u32::from(flags & SYN != 0);
        let control = 5_u32 << 28 | u32::from(flags) << 16;
        memory::write(tcp + 4, [seq.wrapping_sub(syn).to_be(), 77_u32.to_be(), control.to_be(), 0]);
        let (sk, life, is_v6) = (sender.sk, sender.life, sender.flow.is_v6);
        let payload: u32 = world.get(skb.address, offsets.sk_buff_data_len);
        world.put(skb.address, offsets.sk_buff_len, payload + u32::from(TCP_HEADER));
        world.put(skb.address, offsets.sk_buff_data, tcp);
        world.put(skb.address, offsets.sk_buff_transport_header, transport);
        self.own(world, skb, sk);
        let number = skb.packet;
        let mark = world.choice.below(4);
        world.put(skb.address, offsets.sk_buff_mark, mark);
        {
            let packet = &mut world.truth.out.packets[number];
            packet.mark = mark;
            packet.skb = skb.address;
            let is_seen = packet.len != 0 || self.has_control;
            note!(world, "  packet {number}: {:?}", world.truth.out.packets[number]);
            world.truth.out.seen += u64::from(is_seen);
            world.truth.out.goes_on(Source::Socket(life), is_seen.then_some(number));
        }
        if self.is_header_only {
            // `__tcp_transmit_skb` has cleaned `skb->cb` up.
            let gone: [(u32, u32); 2] = [(offsets.tcp_skb_cb_seq, 0), (offsets.tcp_skb_cb_end_seq, 0)];
            for (field, value) in gone {
                world.put(skb.address, field, value);
            }
            world.put(skb.address, offsets.tcp_skb_cb_tcp_flags, 0_u8);
            world.put(skb.address, offsets.tcp_skb_cb_tcp_gso_segs, 0_u16);
        }
        // `__tcp_transmit_skb` counts them between the checksum and IP.
        let sent = world.get::<u64>(sk, offsets.tcp_sock_bytes_sent) + u64::from(payload);
        if self.is_header_only {
            world.put(sk, offsets.tcp_sock_bytes_sent, sent);
        }
        hook!(world, Hook::Sent, number, tcp::transmit::sent(sock(sk), hooked(skb)));
        world.put(sk, offsets.tcp_sock_bytes_sent, sent);
        // `ip_queue_xmit`, `ip6_xmit`.
        let header: u16 = if is_v6 { 40 } else { 20 };
        world.put(skb.address, offsets.sk_buff_network_header, transport - header);
        world.put(skb.address, offsets.sk_buff_data, tcp - u64::from(header));
        world.put(skb.address, offsets.sk_buff_len, payload + u32::from(TCP_HEADER + header));
        self.leave(world, skb, way);
    }

    fn add(&self, world: &mut World, packet: Packet) -> usize {
        world.truth.out.packets.push(packet);
        world.truth.out.packets.len() - 1
    }

    /// `__tcp_retransmit_skb`.
    fn resend(&mut self, world: &mut World, s: usize, which: u8, cuts: bool, joins: bool, way: Way) {
        let sender = &mut self.senders[s];
        let sent = sender.queue.iter().filter(|segment| segment.start < sender.sent).count();
        if sent == 0 {
            return;
        }
        let index = usize::from(which) % sent;
        let segment = sender.queue[index];
        // `tcp_update_skb_after_send`: a part that `tcp_fragment` cuts off has what the whole one had.
        sender.describe(world, &segment);
        let sk = sender.sk;
        hook!(world, Hook::Other, s, tcp::transmit::resending(sock(sk), hooked(segment.skb)));
        // `skb_still_in_host_queue`.
        if segment.packet.is_some_and(|packet| world.truth.out.packets[packet].is_alive) {
            return;
        }
        let sender = &mut self.senders[s];
        if cuts {
            sender.cut(world, index, u64::from(MSS));
        } else if joins && index + 1 < sent && !sender.queue[index].has_fin {
            sender.join(world, index);
        }
        // `tcp_retransmit_timer`.
        if world.choice.one_in(3) {
            let times = 1 + world.choice.below(3) as u8;
            world.put(sk, world.offsets.tcp_sock_icsk_retransmits, times);
        }
        let at = crate::bpf::host::now();
        self.transmit(world, s, index, at, way);
        let skb = self.senders[s].queue[index].skb.address;
        let sacked: u8 = world.get(skb, world.offsets.tcp_skb_cb_sacked);
        world.put(skb, world.offsets.tcp_skb_cb_sacked, sacked | EVER_RETRANS);
    }

    /// A segment without data that is in no queue.
    fn send_control(&mut self, world: &mut World, s: usize, seq: u32, flags: u8, who: Who, way: Way) {
        let users = match self.run_as(world, who) {
            Some(ids) => vec![ids],
            None => self.users(world, s),
        };
        let sender = &self.senders[s];
        let start = u64::from(seq.wrapping_sub(sender.first));
        let packet = Packet { flags: FLAG_CONTROL, users, ..sender.packet(world, start) };
        let number = self.add(world, packet);
        let skb = world.empty_skb(number);
        let offsets = world.offsets;
        world.put(skb.address, offsets.tcp_skb_cb_seq, seq.wrapping_sub(u32::from(flags & SYN != 0)));
        let numbers = u32::from(flags & (SYN | FIN) != 0);
        let end = seq.wrapping_sub(u32::from(flags & SYN != 0)).wrapping_add(numbers);
        world.put(skb.address, offsets.tcp_skb_cb_end_seq, end);
        world.put(skb.address, offsets.tcp_skb_cb_tcp_flags, flags);
        world.put(skb.address, offsets.tcp_skb_cb_tcp_gso_segs, 1_u16);
        let sk = self.senders[s].sk;
        world.journey_sent(number, sk, false, || {
            begin::tcp_transmitted(sock::<Probed>(sk), hooked::<Probed>(skb), FUNCTION);
        });
        self.let_go(world, s, skb, seq, way);
        if let Who::Task(task) = who {
            let ids = world.tasks[self.task(task)].ids;
            self.senders[s].users.push(ids);
        }
    }

    /// The tasks that may have used a socket last.
    fn users(&self, world: &World, s: usize) -> Vec<u64> {
        let sender = &self.senders[s];
        let mut users = sender.users.clone();
        let reads = |call: &&Call| call.hook == Hook::Taken && Some(call.about) == sender.receives;
        users.extend(world.truth.calls.iter().filter(reads).map(|call| call.ids));
        users
    }

    /// `tcp_v4_connect`, `tcp_connect`, maybe within a call that writes (`tcp_sendmsg_fastopen`).
    fn connect(
        &mut self,
        world: &mut World,
        [task, socket]: [u8; 2],
        [size, copied]: [u8; 2],
        waits: bool,
        way: Way,
    ) {
        const TCP_SYN_SENT: u8 = 2;
        let s = usize::from(socket) % self.senders.len();
        let t = usize::from(task) % 3;
        let is_free = self.calls[t].is_none();
        if self.senders[s].state != State::Unconnected || !is_free || !self.lock(world, s, Who::Task(task)) {
            return;
        }
        let size = u64::from(size) * UNIT;
        let call = if size == 0 { None } else { Some(self.written(world, s, size)) };
        let first = world.first_number();
        let sender = &mut self.senders[s];
        sender.first = first;
        sender.state = State::Open;
        let flow = sender.flow;
        let sk = sender.sk;
        // As a socket has them that is connected.
        let like = world.new_socket(&flow, 0);
        let offsets = world.offsets;
        world.put(sk, offsets.sock_skc_addrpair, world.get::<u64>(like, offsets.sock_skc_addrpair));
        world.put(sk, offsets.sock_skc_portpair, world.get::<u32>(like, offsets.sock_skc_portpair));
        world.put(sk, offsets.sock_skc_v6_daddr, world.get::<[u8; 16]>(like, offsets.sock_skc_v6_daddr));
        world.put(sk, offsets.sock_skc_state, TCP_SYN_SENT);
        world.free_socket(like);
        // `snd_nxt` is the SYN's number until that is sent, `write_seq` the one behind it.
        let sender = &mut self.senders[s];
        sender.update(world);
        world.put(sk, offsets.tcp_sock_snd_nxt, first.wrapping_sub(1));
        world.put(sk, offsets.tcp_sock_snd_una, first.wrapping_sub(1));
        world.put(sk, offsets.tcp_sock_bytes_sent, 0_u64);
        let data = (u64::from(copied) * UNIT).min(size).min(SIZE_GOAL);
        match call {
            Some(call) if data != 0 => {
                // `tcp_send_syn_data`.
                sender.append(world, data);
                let life = sender.life;
                world.truth.out.writes.push(Write { socket: life, start: 0, end: data, call });
                sender.update(world);
                world.put(sk, offsets.tcp_sock_snd_nxt, first.wrapping_sub(1));
                self.send_syn_data(world, s, way);
            }
            _ => self.send_control(world, s, first, SYN, Who::Task(task), way),
        }
        let sender = &mut self.senders[s];
        sender.sent = data;
        sender.update(world);
        if let Some(call) = call {
            let life = sender.life;
            sender.ended_short = !waits && data < size;
            if waits {
                // For the other end. That the first bytes are this call's shows if it sends them itself.
                sender.is_mixed |= data == 0;
                self.calls[t] = Some(InCall { socket: s, life, left: size - data, call });
            }
        }
        self.unlock(world, s);
    }

    fn send_syn_data(&mut self, world: &mut World, s: usize, way: Way) {
        let at = crate::bpf::host::now();
        let offsets = world.offsets;
        let sender = &mut self.senders[s];
        let segment = &mut sender.queue[0];
        world.put(segment.skb.address, offsets.sk_buff_skb_mstamp_ns, at);
        segment.first = at;
        let segment = *segment;
        sender.describe(world, &segment);
        let len = segment.end as u32;
        let packet = Packet { len, segs: len.div_ceil(MSS) as u16, ..sender.packet(world, 0) };
        let number = self.add(world, packet);
        let old = Skb { packet: number, ..segment.skb };
        // `tcp_send_syn_data`: the SYN's number, until it is sent.
        world.put(old.address, offsets.tcp_skb_cb_seq, self.senders[s].seq(0).wrapping_sub(1));
        let sk = self.senders[s].sk;
        world.journey_sent(number, sk, false, || {
            begin::tcp_transmitted(sock::<Probed>(sk), hooked::<Probed>(old), FUNCTION);
        });
        let skb = world.clone_skb(old);
        let sender = &mut self.senders[s];
        sender.queue[0].packet = Some(number);
        world.put(skb.address, offsets.tcp_skb_cb_seq, sender.seq(0).wrapping_sub(1));
        world.put(skb.address, offsets.tcp_skb_cb_tcp_flags, SYN);
        let seq = sender.seq(0);
        self.let_go(world, s, skb, seq, way);
    }

    /// `tcp_send_fin`.
    fn finish(&mut self, world: &mut World, s: usize, who: Who, way: Way) {
        let sender = &mut self.senders[s];
        sender.state = State::Finished;
        if let Some(last) = sender.unsent().and_then(|_| sender.queue.back_mut()) {
            last.has_fin = true;
            return;
        }
        let seq = sender.seq(sender.sent);
        self.send_control(world, s, seq, FIN | 0x10, who, way);
        let sender = &mut self.senders[s];
        // Its number is a byte's that is never written.
        sender.sent = sender.written + 1;
        sender.update(world);
        world.put(sender.sk, world.offsets.tcp_sock_write_seq, sender.seq(sender.sent));
    }

    /// A socket, its life, and the number at a position.
    pub(super) fn acknowledged(&self, s: usize, until: u64) -> (u64, usize, u32) {
        let sender = &self.senders[s];
        (sender.sk, sender.life, sender.seq(until))
    }

    /// `tcp_v4_destroy_sock`, and another socket is there.
    fn close(&mut self, world: &mut World, s: usize) {
        let sender = &self.senders[s];
        let (sk, flow, life) = (sender.sk, sender.flow, sender.life);
        hook!(world, Hook::Other, s, tcp::receive::closed(sock(sk)));
        self.abandon(world, s);
        world.free_socket(sk);
        let state = if world.choice.one_in(2) { State::Open } else { State::Unconnected };
        let first = if state == State::Open { world.first_number() } else { 0 };
        let sk = open(world, &flow, state);
        // The next life has another number.
        self.senders[s] = Sender::new(flow, sk, life + self.senders.len(), None, state, first);
        self.senders[s].update(world);
    }

    /// What a socket had that is gone.
    fn abandon(&mut self, world: &mut World, s: usize) {
        let sender = &mut self.senders[s];
        let life = sender.life;
        sender.free_queue(world, u64::MAX);
        sender.sk = 0;
        sender.whole = None;
        world.truth.out.goes_on(Source::Socket(life), None);
        for call in &mut self.calls {
            if call.is_some_and(|call| call.life == life) {
                *call = None;
            }
        }
    }

    /// The connections that receive have these sockets now, 0 for one that is closed, and these tasks have their locks.
    pub(in crate::lives) fn meet_receivers(&mut self, world: &mut World, now: [(u64, Option<usize>); 2]) {
        for (number, (sk, owner)) in now.into_iter().enumerate() {
            self.owners[number] = owner;
            if sk == 0 && self.senders[number].sk != 0 {
                self.abandon(world, number);
            }
        }
    }
}

impl Sender {
    /// A packet that it sends, whose first byte has this position.
    fn packet(&self, world: &World, start: u64) -> Packet {
        let ends = world.ends(&self.flow, self.first);
        Packet {
            start,
            rtt: self.rtt,
            dsacks: if self.has_resent { self.dsacks as u16 + 1 } else { 0 },
            app: world.truth.out.writer(self.life, start),
            ..Packet::new(IPPROTO_TCP, ends, Source::Socket(self.life))
        }
    }

    /// Whether it is connected, and has sent no FIN.
    pub(super) fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// The queue's first skb that was not sent, as hooks find it.
    fn first_unsent(&self, world: &World) -> Option<First> {
        const PREV: u32 = 8;
        const QLEN: u32 = 16;
        let queue = world.offsets.sock_sk_write_queue;
        let unsent = self.unsent();
        let count = unsent.map_or(0, |index| self.queue.len() - index);
        world.put(self.sk, queue + QLEN, count as u32);
        let (first, last) = (self.queue[unsent?], self.queue.back()?);
        world.put(self.sk, queue, first.skb.address);
        world.put(self.sk, queue + PREV, last.skb.address);
        self.describe(world, &first);
        let (may_grow, has_unacked) = (count == 1 && !first.has_fin, self.acked != self.sent);
        Some(First { len: (first.end - first.start) as u32, may_grow, has_unacked })
    }

    /// `tcp_collapse_retrans`: the next skb's bytes become this one's.
    fn join(&mut self, world: &mut World, index: usize) {
        let Some(next) = self.queue.remove(index + 1) else { return };
        let offsets = world.offsets;
        let to = self.queue[index].skb.address;
        let [mine, its]: [u8; 2] =
            [to, next.skb.address].map(|skb| world.get(skb, offsets.tcp_skb_cb_sacked));
        world.put(to, offsets.tcp_skb_cb_sacked, mine | its & EVER_RETRANS);
        self.queue[index].end = next.end;
        self.queue[index].has_fin = next.has_fin;
        world.free(next.skb);
    }
}
