//! What is written to a socket of MPTCP, and given to its subflow. From net/mptcp/protocol.c of Linux 6.1.

use std::vec::Vec;

use super::{
    super::{
        truth::Hook,
        world::{World, hook, note, sock},
    },
    Out,
    tcp::Sender,
    truth::Write,
};
use crate::kernel::memory::Number;

/// A socket of MPTCP, with one subflow. Positions are its own.
pub(super) struct Whole {
    pub(super) sk: u64,
    written: u64,
    /// `snd_nxt`: what its subflow has got.
    given: u64,
    /// `snd_una`: what the peer is known to have.
    acked: u64,
    /// Which call wrote what.
    writes: Vec<(u64, u64, usize)>,
    /// What its subflow got: from where to where, and where that ends there.
    gifts: Vec<[u64; 3]>,
}

impl Whole {
    pub(super) fn new(world: &World, sk: u64) -> Self {
        let whole = Self { sk, written: 0, given: 0, acked: 0, writes: Vec::new(), gifts: Vec::new() };
        whole.update(world);
        whole
    }

    /// The lower half soon begins anew.
    const fn seq(position: u64) -> u64 {
        0x34_ffff_ff80 + position
    }

    fn update(&self, world: &World) {
        world.put(self.sk, world.offsets.mptcp_sock_write_seq, Self::seq(self.written));
        world.put(self.sk, world.offsets.mptcp_sock_snd_nxt, Self::seq(self.given));
        world.put(self.sk, world.offsets.mptcp_sock_snd_una, Self::seq(self.acked));
    }

    /// `ack_update_msk`: the peer has all before this position of the subflow, and of what that got in pieces, whole ones.
    pub(super) fn acknowledge(&mut self, world: &World, until: u64) {
        for [from, to, end] in &self.gifts {
            if *end <= until && *from <= self.acked {
                self.acked = self.acked.max(*to);
            }
        }
        self.update(world);
    }

    /// That call has written so many bytes more.
    pub(super) fn write(&mut self, world: &mut World, len: u64, call: usize) {
        let start = self.written;
        self.written += len;
        self.writes.push((start, self.written, call));
        self.update(world);
        note!(world, "  call {call} writes {start} to {} of MPTCP's", self.written);
    }
}

impl Out {
    /// `__mptcp_push_pending`, or `__mptcp_subflow_push_pending` by a softirq.
    pub(super) fn push_whole(&mut self, world: &mut World, s: usize, is_softirq: bool) {
        let Some(whole) = &self.senders[s].whole else { return };
        let sk = whole.sk;
        if !is_softirq {
            hook!(world, Hook::Other, s, tcp::multipath::pushes(sock(sk)));
        }
        // `mptcp_subflow_active`: none gets any behind its FIN.
        let most = if self.senders[s].is_open() { 4 } else { 1 };
        for _ in 0..world.choice.below(most) {
            let Some(whole) = &self.senders[s].whole else { return };
            // `__mptcp_retrans` gives some again that the peer may not have.
            let from = if world.choice.one_in(16) {
                whole.acked + u64::from(world.choice.below((whole.given - whole.acked) as u32 + 1))
            } else {
                whole.given
            };
            let left = whole.written - from;
            let its = whole.writes.iter().find(|(_, end, _)| from < *end);
            let of_call = its.map_or(left, |(_, end, _)| end - from);
            let some = u64::from(world.choice.below(left as u32 + 1));
            let len = world.choice.of(&[left, of_call, some]);
            if len != 0 {
                self.senders[s].give(world, s, from, len);
            }
        }
    }
}

impl Sender {
    /// `mptcp_sendmsg_frag`: so many bytes of MPTCP's socket become this one's.
    fn give(&mut self, world: &mut World, s: usize, from: u64, len: u64) {
        let Some(whole) = &self.whole else { return };
        let (sk, offsets) = (whole.sk, world.offsets);
        // The fragment begins before them, with what a subflow has got. Both structs lie within the socket, here.
        let sent = world.choice.below(from as u32 + 1) as u16;
        world.put(sk, offsets.mptcp_data_frag_data_seq, Whole::seq(from - u64::from(sent)));
        world.put(sk, offsets.mptcp_sendmsg_info_sent, sent);
        let place = Number::new(sk as *const u8);
        let subflow = self.sk;
        hook!(world, Hook::Other, s, tcp::multipath::hands_on(sock(sk), sock(subflow), place, place));
        let start = self.written;
        self.append(world, len);
        self.update(world);
        let Some(whole) = &mut self.whole else { return };
        let mine = whole.writes.iter().filter(|(begin, end, _)| *begin < from + len && from < *end);
        let mut calls = 0;
        for (begin, end, call) in mine {
            calls += 1;
            let [to, until] = [*begin, *end].map(|at| start + at.clamp(from, from + len) - from);
            note!(world, "  {to} to {until} of {s} are of call {call}");
            world.truth.out.writes.push(Write { socket: self.life, start: to, end: until, call: *call });
            self.users.push(world.truth.calls[*call].ids);
        }
        // Only the first byte's call is looked for.
        self.is_mixed |= calls > 1 || from < whole.given;
        whole.given = whole.given.max(from + len);
        whole.gifts.push([from, from + len, start + len]);
        whole.update(world);
    }
}
