//! What TCP does with what it receives, as far as hooks can tell, and what tasks read. From net/ipv4/tcp_input.c, tcp_ipv4.c and tcp.c of
//! Linux 6.1; what differs on the others of the matrix is said where it does.

use core::ops::Range;
use std::{collections::VecDeque, vec::Vec};

use net_latency_common::Counter;

use super::{
    flow::Flow,
    journeys::{About, FUNCTION},
    truth::{Hook, Read},
    udp_truth::Want,
    world::{Skb, World, hook, note, skb as hooked, sock},
};
use crate::{
    bpf::host::Machine,
    journey::queue,
    kernel::memory::{Number, Probed},
};

/// An skb on a queue of TCP's: its bytes by their positions, and which packet each piece came with (`tcp_try_coalesce` joins them).
#[derive(Clone, Debug)]
pub(super) struct Queued {
    skb: Skb,
    start: u64,
    end: u64,
    pieces: Vec<(u64, u64, usize)>,
}

/// A connection, this end of it.
pub(super) struct Connection {
    pub(super) flow: Flow,
    /// `struct tcp_sock`; 0 once it is closed.
    pub(super) sk: u64,
    pub(super) number: usize,
    first: u32,
    expected: u64,
    copied: u64,
    queue: VecDeque<Queued>,
    out_of_order: Vec<Queued>,
    backlog: VecDeque<Skb>,
    /// The task that has the socket's lock.
    pub(super) owner: Option<usize>,
    /// Whether a wanted task has read, and whether others have.
    is_used: bool,
    is_others: bool,
    /// The furthest that the other end has sent.
    pub(super) sent: u64,
    /// Whether it is a subflow, whose bytes MPTCP takes.
    pub(super) is_multipath: bool,
    /// `struct mptcp_sock` if that is followed; else 0.
    pub(super) whole: u64,
    /// Its queue, and up to where that was read.
    whole_queue: VecDeque<Queued>,
    whole_read: u64,
}

/// How a task reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// `tcp_recvmsg`.
    Copy,
    /// `tcp_recvmsg` with MSG_PEEK.
    Peek,
    /// `tcp_read_sock`: splice.
    Splice,
}

impl Connection {
    pub(super) fn new(world: &mut World, flow: Flow, number: usize) -> Self {
        let first = world.truth.connections[number].first;
        let sk = world.new_socket(&flow, first);
        Self {
            flow,
            sk,
            number,
            first,
            expected: 0,
            copied: 0,
            queue: VecDeque::new(),
            out_of_order: Vec::new(),
            backlog: VecDeque::new(),
            owner: None,
            sent: 0,
            is_used: false,
            is_others: false,
            is_multipath: false,
            whole: 0,
            whole_queue: VecDeque::new(),
            whole_read: 0,
        }
    }

    /// `tcp_collapse`, when memory is short: the skbs of the receive queue become one, and are freed where no hook sees that.
    pub(super) fn collapse(&mut self, world: &mut World) {
        let (Some(first), Some(last)) = (self.queue.front(), self.queue.back()) else { return };
        let (start, end) = (first.start, last.end);
        // docs/accuracy.md: if skbs have bytes in common, it is unknown which parts were put together.
        let starts = self.queue.iter().skip(1).map(|queued| queued.start);
        if self.queue.iter().zip(starts).any(|(queued, next)| queued.end != next) {
            return;
        }
        world.truth.connections[self.number].is_collapsed = true;
        let skb = world.collapsed(first.skb, self.seq(start), (end - start) as u32);
        let mut pieces = Vec::new();
        let mut at = start;
        for queued in core::mem::take(&mut self.queue) {
            for (from, to, packet) in queued.pieces {
                if to > at {
                    pieces.push((from.max(at), to, packet));
                    at = to;
                }
            }
            world.free(queued.skb);
        }
        self.queue.push_back(Queued { skb, start, end, pieces });
        self.update(world);
    }

    fn seq(&self, position: u64) -> u32 {
        self.first.wrapping_add(position as u32)
    }

    /// Shows what hooks read of the socket.
    fn update(&self, world: &World) {
        let offsets = world.offsets;
        world.put(self.sk, offsets.tcp_sock_rcv_nxt, self.seq(self.expected));
        world.put(self.sk, offsets.tcp_sock_copied_seq, self.seq(self.copied));
        world.put(self.sk, offsets.tcp_sock_out_of_order_queue, u64::from(!self.out_of_order.is_empty()));
        world.put(self.sk, offsets.sock_sk_backlog_len, self.backlog.len() as u32);
        world.put(self.sk, offsets.sock_sk_lock_owned, u32::from(self.owner.is_some()));
        let queue = offsets.sock_sk_receive_queue;
        world.put(self.sk, queue, self.queue.front().map_or(0, |first| first.skb.address));
        world.put(self.sk, queue + 16, self.queue.len() as u32);
        for (skb, next) in self.queue.iter().zip(self.queue.iter().skip(1)) {
            world.put(skb.skb.address, offsets.sk_buff_next, next.skb.address);
        }
    }

    /// `tcp_v4_rcv` or `tcp_v6_rcv`, with `skb->data` on TCP's header.
    pub(super) fn receive(&mut self, world: &mut World, skb: Skb) {
        // `tcp_v4_early_demux`.
        if world.truth.packets[skb.packet].is_found && self.sk != 0 {
            world.put(skb.address, world.offsets.sk_buff_sk, self.sk);
        }
        let calls = world.truth.calls.len();
        let packet = &mut world.truth.packets[skb.packet];
        // What the hook knows to be old hides nothing.
        let is_old =
            packet.is_found && self.owner.is_none() && packet.start + u64::from(packet.len) <= self.expected;
        packet.reached = if is_old { 0 } else { calls };
        let family = if self.flow.is_v6 { net_latency_common::AF_INET6 } else { net_latency_common::AF_INET };
        let call = hook!(world, Hook::Tcp, skb.packet, tcp::receive::received(hooked(skb), family));
        let is_counted = world.truth.packets[skb.packet].len != 0 && !world.truth.calls[call].is_skipped;
        world.truth.received += u64::from(is_counted);
        if world.truth.calls[call].result == Some(Counter::RejectedIn) {
            // Only others have used the connection.
            world.truth.packets[skb.packet].is_untraced = true;
            world.truth.udp.want(self.is_others && !self.is_used, Want::Segment);
        }
        if self.sk == 0 {
            // No socket: a reset is sent.
            world.truth.drops(skb.packet);
            return world.drop(skb);
        }
        if self.owner.is_some() {
            // `tcp_add_backlog`. What follows the last one there is joined to it (since Linux 5.0); that is left to the queue here.
            self.follow(world, skb);
            self.backlog.push_back(skb);
            return self.update(world);
        }
        self.work_on(world, skb);
    }

    /// TCP drops an skb.
    fn drop(&self, world: &mut World, skb: Skb) {
        let drops = world.offsets.sock_sk_drops;
        world.put(self.sk, drops, world.get::<u32>(self.sk, drops) + 1);
        if world.kernel.shows_tcp_drops {
            world.truth.drops(skb.packet);
            world.drop(skb);
        } else {
            world.free(skb);
        }
    }

    /// `tcp_v4_do_rcv` and its like, `tcp_add_backlog`: a journey goes on there.
    fn follow(&self, world: &mut World, skb: Skb) {
        let program = || queue::received(sock::<Probed>(self.sk), hooked(skb), FUNCTION);
        world.journey(About::Queued(skb.packet), program);
    }

    /// `skb_copy_datagram_iovec`, of an skb that has its socket (`skb_set_owner_r`).
    fn follow_copy(&self, world: &mut World, skb: Skb, bytes: Range<u64>) {
        let owner = world.offsets.sk_buff_sk;
        let before = world.get::<u64>(skb.address, owner);
        world.put(skb.address, owner, self.sk);
        let Range { start, end } = bytes;
        let len = Number::new((end - start) as *const u8);
        let about = About::Bytes { connection: self.number, start, end, first: skb.packet };
        world.journey(about, || queue::copying(hooked::<Probed>(skb), len));
        world.put(skb.address, owner, before);
    }

    /// A call has taken bytes, if it moved `copied_seq`.
    fn follow_read(&self, world: &mut World, call: usize) {
        world.journey(About::Call(call), || queue::taken(sock::<Probed>(self.sk)));
    }

    /// `tcp_rcv_established`, `tcp_data_queue`.
    fn work_on(&mut self, world: &mut World, skb: Skb) {
        self.follow(world, skb);
        let offsets = world.offsets;
        let (start, len) = {
            let packet = &world.truth.packets[skb.packet];
            (packet.start, packet.len)
        };
        let end = start + u64::from(len);
        world.put(skb.address, offsets.tcp_skb_cb_seq, self.seq(start));
        world.put(skb.address, offsets.tcp_skb_cb_end_seq, self.seq(end));
        if len == 0 {
            // An ACK: freed once it is looked at.
            return world.free(skb);
        }
        const WINDOW: u64 = 4000;
        if end <= self.expected || start > self.copied + WINDOW {
            note!(world, "  TCP drops {start} to {end}");
            return self.drop(world, skb);
        }
        world.pull(skb, 20);
        let new = Queued { skb, start, end, pieces: [(start, end, skb.packet)].into() };
        let is_next = start == self.expected;
        if start > self.expected {
            self.queue_out_of_order(world, new);
        } else {
            self.append(world, new);
            self.take_from_out_of_order(world);
        }
        self.update(world);
        if self.is_multipath && start <= self.expected {
            hook!(world, Hook::Other, self.number, tcp::multipath::ready(sock(self.whole), sock(self.sk)));
            let reached = world.truth.packets[skb.packet].reached;
            let is_stored = world.truth.calls.get(reached).is_some_and(|call| call.result.is_none());
            world.truth.given += u64::from(self.whole == 0 && is_next && is_stored);
            // Else another has the lock of MPTCP's socket.
            if !world.choice.one_in(3) {
                self.give(world);
            }
        }
    }

    /// It is a subflow of a socket of MPTCP that is followed, which has no other.
    pub(super) fn be_followed(&mut self, world: &mut World) {
        let offsets = world.offsets;
        self.whole = world.new_socket(&self.flow, self.first);
        // What ties it to that lies within it, here.
        world.put(self.sk, offsets.tcp_sock_icsk_ulp_data, self.sk);
        world.put(self.sk, offsets.mptcp_subflow_context_conn, self.whole);
        world.put(self.sk, offsets.mptcp_subflow_context_map_seq, Self::whole_seq(7));
        world.put(self.sk, offsets.mptcp_subflow_context_map_subflow_seq, 7_u32);
        world.put(self.sk, offsets.mptcp_subflow_context_ssn_offset, self.first);
    }

    /// The number of a byte in MPTCP's socket. The lower half soon begins anew.
    const fn whole_seq(position: u64) -> u64 {
        0x12_ffff_ffc0 + position
    }

    /// MPTCP takes what there is (`__mptcp_move_skbs_from_subflow`).
    pub(super) fn give(&mut self, world: &mut World) {
        while let Some(mut queued) = self.queue.pop_front() {
            let start = queued.start.max(self.copied);
            self.copied = queued.end;
            self.update(world);
            if self.whole == 0 {
                world.free(queued.skb);
                continue;
            }
            queued.start = start;
            for piece in &mut queued.pieces {
                piece.0 = piece.0.max(start);
            }
            queued.pieces.retain(|(from, to, _)| from < to);
            world.put(queued.skb.address, world.offsets.mptcp_skb_cb_map_seq, Self::whole_seq(start));
            match self.whole_queue.back_mut() {
                // `mptcp_try_coalesce`.
                Some(last) if world.choice.one_in(2) => {
                    last.end = queued.end;
                    last.pieces.extend(queued.pieces);
                    world.free(queued.skb);
                }
                _ => self.whole_queue.push_back(queued),
            }
            self.update_whole(world);
            hook!(world, Hook::Other, self.number, tcp::multipath::moved(sock(self.sk)));
        }
        self.copied = self.expected;
        self.update(world);
    }

    /// Shows what hooks read of MPTCP's socket.
    fn update_whole(&self, world: &mut World) {
        let offsets = world.offsets;
        let end = self.whole_queue.back().map_or(self.whole_read, |last| last.end);
        world.put(self.whole, offsets.mptcp_sock_ack_seq, Self::whole_seq(end));
        // Up to Linux 6.14 some may be in the queue that only readers have.
        let has_two = Machine::with(|machine| machine.offsets.mptcp_sock_receive_queue != 0);
        let queues = if has_two && world.choice.one_in(2) {
            [offsets.sock_sk_receive_queue, offsets.mptcp_sock_receive_queue]
        } else {
            [offsets.mptcp_sock_receive_queue, offsets.sock_sk_receive_queue]
        };
        world.put(self.whole, queues[0] + 16, 0_u32);
        world.put(self.whole, queues[1], self.whole_queue.front().map_or(0, |first| first.skb.address));
        world.put(self.whole, queues[1] + 16, self.whole_queue.len() as u32);
    }

    /// A task reads MPTCP's socket (`mptcp_recvmsg`).
    pub(super) fn read_whole(&mut self, world: &mut World, task: usize, len: u64, how: Reading) {
        world.run_as(Some(task));
        world.put(self.whole, world.offsets.sock_sk_lock_owned, 1_u32);
        if self.whole_queue.is_empty() {
            self.give(world);
        }
        let until = if how == Reading::Peek { self.whole_read } else { self.whole_read + len };
        let mut pieces = Vec::new();
        while self.whole_read < until
            && let Some(first) = self.whole_queue.front_mut()
        {
            let end = first.end.min(until);
            let mine = first
                .pieces
                .iter()
                .map(|(start, to, packet)| ((*start).max(self.whole_read), (*to).min(end), *packet));
            pieces.extend(mine.filter(|(start, to, _)| start < to));
            self.whole_read = end;
            if end == first.end {
                world.free(first.skb);
                self.whole_queue.pop_front();
            } else {
                world.put(first.skb.address, world.offsets.mptcp_skb_cb_map_seq, Self::whole_seq(end));
            }
        }
        self.update_whole(world);
        // A softirq may be adding to the queue (`mptcp_data_lock`), up to Linux 6.14.
        let spinlock = world.offsets.sock_sk_lock_slock;
        let is_adding = self.whole_queue.is_empty()
            && world.choice.one_in(4)
            && Machine::with(|machine| machine.offsets.mptcp_sock_receive_queue != 0);
        world.put(self.whole, spinlock, u32::from(is_adding));
        world.truth.connections[self.number].has_unnoted |= is_adding;
        let call = hook!(world, Hook::Taken, self.number, tcp::multipath::read(sock(self.whole)));
        world.put(self.whole, spinlock, 0_u32);
        self.note_reads(world, &pieces, call, None);
        world.put(self.whole, world.offsets.sock_sk_lock_owned, 0_u32);
    }

    /// `tcp_queue_rcv`: joined to the last one of the queue, if that ends where it begins and the pages allow it.
    fn append(&mut self, world: &mut World, new: Queued) {
        self.expected = new.end;
        if let Some(last) = self.queue.back_mut()
            && last.end == new.start
            && world.truth.packets[new.skb.packet].joins
        {
            return join(world, last, new);
        }
        self.queue.push_back(new);
    }

    /// `tcp_ofo_queue`: takes segments that are not out of order any more.
    fn take_from_out_of_order(&mut self, world: &mut World) {
        while let Some(first) = self.out_of_order.first()
            && first.start <= self.expected
        {
            let first = self.out_of_order.remove(0);
            if first.end <= self.expected {
                self.drop(world, first.skb);
            } else {
                self.append(world, first);
            }
        }
    }

    /// `tcp_data_queue_ofo`.
    fn queue_out_of_order(&mut self, world: &mut World, new: Queued) {
        if let Some(last) = self.out_of_order.last_mut()
            && last.end == new.start
            && world.truth.packets[new.skb.packet].joins
        {
            return join(world, last, new);
        }
        // Within another: the new one goes. What it covers goes instead.
        if self.out_of_order.iter().any(|other| other.start <= new.start && new.end <= other.end) {
            return self.drop(world, new.skb);
        }
        let mut index = 0;
        while index < self.out_of_order.len() {
            let other = &self.out_of_order[index];
            if new.start <= other.start && other.end <= new.end {
                let other = self.out_of_order.remove(index);
                self.drop(world, other.skb);
            } else {
                index += 1;
            }
        }
        let index = self.out_of_order.partition_point(|other| other.start < new.start);
        self.out_of_order.insert(index, new);
    }

    /// A task locks the socket for a call.
    pub(super) fn lock(&mut self, world: &World, task: usize) {
        self.owner = Some(task);
        self.update(world);
    }

    /// `release_sock`: what came meanwhile is worked on by the task.
    pub(super) fn unlock(&mut self, world: &mut World) {
        while let Some(skb) = self.backlog.pop_front() {
            self.work_on(world, skb);
            self.update(world);
        }
        self.owner = None;
        self.update(world);
    }

    /// The task that has the lock takes bytes, or looks at them.
    pub(super) fn read(&mut self, world: &mut World, len: u64, how: Reading) {
        let task = self.owner;
        world.run_as(task);
        if world.wants_current() {
            self.is_used = true;
        } else {
            self.is_others = true;
        }
        if how == Reading::Splice {
            let call = hook!(world, Hook::Other, self.number, tcp::receive::reading(sock(self.sk)));
            world.truth.asks(call);
        }
        let until = self.copied + len;
        let mut at = self.copied;
        let mut pieces = Vec::new();
        let mut index = 0;
        while at < until
            && let Some(first) = self.queue.get(index)
        {
            let end = first.end.min(until);
            let mine: Vec<_> = first
                .pieces
                .iter()
                .map(|(start, to, packet)| ((*start).max(at), (*to).min(end), *packet))
                .filter(|(start, to, _)| start < to)
                .collect();
            let (is_through, begins, skb) = (end == first.end, first.start, first.skb);
            if how != Reading::Splice {
                self.follow_copy(world, skb, at..end);
            }
            at = end;
            match how {
                Reading::Peek => {
                    index += 1;
                    let call = hook!(world, Hook::Taken, self.number, tcp::receive::taken(sock(self.sk)));
                    self.follow_read(world, call);
                }
                Reading::Copy => {
                    self.copied = at;
                    self.update(world);
                    let call = hook!(world, Hook::Taken, self.number, tcp::receive::taken(sock(self.sk)));
                    self.note_reads(world, &mine, call, Some(begins));
                    self.follow_read(world, call);
                    if is_through {
                        self.eat(world);
                    }
                }
                Reading::Splice => {
                    pieces.extend(mine);
                    if is_through {
                        self.eat(world);
                    }
                }
            }
        }
        if how == Reading::Splice && !pieces.is_empty() {
            self.copied = at;
            self.update(world);
            let call = hook!(world, Hook::Taken, self.number, tcp::receive::taken(sock(self.sk)));
            self.note_reads(world, &pieces, call, None);
            self.follow_read(world, call);
        }
        self.update(world);
    }

    /// `begins` is where their skb begins, if that is there.
    fn note_reads(&self, world: &mut World, pieces: &[(u64, u64, usize)], call: usize, begins: Option<u64>) {
        world.truth.has_read((self.sk, 0), call);
        for (start, end, packet) in pieces {
            note!(world, "  read {start} to {end} of packet {packet}");
            world.truth.reads.push(Read {
                connection: self.number,
                start: *start,
                end: *end,
                packet: *packet,
                call,
                is_late: begins.is_none(),
                is_appended: begins.is_some_and(|begins| begins < *start),
            });
        }
    }

    /// `tcp_eat_recv_skb`.
    fn eat(&mut self, world: &mut World) {
        if let Some(first) = self.queue.pop_front() {
            world.free(first.skb);
        }
        self.update(world);
    }

    /// Bytes that can be read.
    pub(super) fn readable(&self) -> u64 {
        self.expected - self.copied
    }

    /// `tcp_close`, and the end of the socket.
    pub(super) fn close(&mut self, world: &mut World) {
        if self.sk == 0 {
            return;
        }
        // `__tcp_close` locks it, frees unread skbs, and works on the backlog (`release_sock`).
        for queued in std::mem::take(&mut self.queue) {
            world.free(queued.skb);
        }
        self.unlock(world);
        for queued in std::mem::take(&mut self.queue) {
            world.free(queued.skb);
        }
        self.update(world);
        // `tcp_set_state`: it has no port of its own any more (`inet_put_port`).
        world.put(self.sk, world.offsets.sock_skc_portpair, u32::from(self.flow.remote_port.to_be()));
        hook!(world, Hook::Other, self.number, tcp::receive::closed(sock(self.sk)));
        // `tcp_v4_destroy_sock`.
        for queued in std::mem::take(&mut self.out_of_order) {
            world.truth.drops(queued.skb.packet);
            world.drop(queued.skb);
        }
        world.free_socket(self.sk);
        self.sk = 0;
        if self.whole != 0 {
            for queued in std::mem::take(&mut self.whole_queue) {
                world.free(queued.skb);
            }
            hook!(world, Hook::Other, self.number, tcp::multipath::destroyed(sock(self.whole)));
            world.free_socket(self.whole);
            self.whole = 0;
        }
    }
}

/// `tcp_try_coalesce`: an skb's bytes become another's, and it is freed where no hook sees that (`kfree_skb_partial`).
fn join(world: &mut World, last: &mut Queued, new: Queued) {
    let len = world.offsets.sk_buff_len;
    let more = (new.end - new.start) as u32;
    world.put(last.skb.address, len, world.get::<u32>(last.skb.address, len) + more);
    world.put(
        last.skb.address,
        world.offsets.tcp_skb_cb_end_seq,
        world.get::<u32>(new.skb.address, world.offsets.tcp_skb_cb_end_seq),
    );
    last.end = new.end;
    last.pieces.extend(new.pieces);
    world.free(new.skb);
}
