//! The truth about received datagrams: who took which, and what has to be known of them.

use std::{format, string::String, vec::Vec};

use net_latency_common::{Counter, FLAG_GRO, PacketRecord, STAMP_APP, STAMP_DRV, STAMP_IP, STAMP_TRANSPORT};

use crate::bpf::host::CPUS;

use super::{
    flow::{Flow, shown},
    truth::{Hook, Truth},
};

/// What only a datagram has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Datagram {
    pub(super) flow: Flow,
    pub(super) protocol: u8,
    pub(super) sum: u16,
    /// Whether GRO has left its segments the skbs that they are, in a list.
    pub(super) is_list: bool,
}

/// A datagram that a task has taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    pub(super) call: usize,
    pub(super) packet: usize,
    pub(super) len: u32,
    pub(super) segs: u16,
    pub(super) netns: u32,
    /// Whether the hook of the queue has kept it.
    pub(super) is_followed: bool,
    /// Whether its time at UDP has to be known.
    pub(super) has_transport: bool,
}

/// For so long, as a power of two, ns, a socket is untraced.
const EPOCH: u32 = 30;

/// What has to be counted.
#[derive(Clone, Copy, Debug)]
pub(super) enum Want {
    Queue,
    Drop,
    Segment,
}

/// The truth about UDP.
#[derive(Default)]
pub(super) struct Udp {
    pub(super) taken: Vec<Taken>,
    /// Calls of the queue's hook for sockets of UDP.
    pub(super) enqueued: u64,
    /// When `udp_rcv` had its last packet on each CPU.
    pub(super) received: [u64; CPUS],
    /// Sockets from which an unwanted task took, with their namespaces and ports, and when.
    others: Vec<(u64, (usize, u16), u64)>,
    /// Addresses of sockets from which a wanted task took.
    used: Vec<u64>,
    /// A packet that was not counted as it should be.
    missed: Option<Want>,
}

impl Udp {
    /// What becomes of a datagram that gets to a socket's queue.
    pub(super) fn judge_queue(&mut self, sk: u64, of: (usize, u16), cpu: usize, result: Option<Counter>) {
        // From such a socket nothing is followed until the second is over, unless a wanted task used it: docs/accuracy.md.
        let now = self.received[cpu] >> EPOCH;
        let is_others = self.others.contains(&(sk, of, now)) && !self.used.contains(&sk);
        let is_right = match result {
            None | Some(Counter::DroppedIn) => true,
            Some(Counter::RejectedIn) => is_others,
            Some(_) => false,
        };
        self.want(is_right, Want::Queue);
    }

    /// A task, wanted or not, has taken from a socket.
    pub(super) fn uses(&mut self, sk: u64, of: (usize, u16), at: u64, is_wanted: bool) {
        if is_wanted { self.used.push(sk) } else { self.others.push((sk, of, at >> EPOCH)) }
    }

    pub(super) fn want(&mut self, is_so: bool, what: Want) {
        if !is_so {
            self.missed.get_or_insert(what);
        }
    }
}

impl Truth {
    /// A task has taken a datagram.
    pub(super) fn took(&mut self, taken: Taken) {
        self.udp.taken.push(taken);
    }

    /// Whether all that a line of a received datagram says is true. `seen` has those with a line.
    pub(super) fn check_udp_in(&self, line: &PacketRecord, seen: &mut Vec<usize>) -> Result<(), String> {
        let app = line.stamps[STAMP_APP];
        let is_its = |taken: &&Taken| self.calls[taken.call].from < app && app <= self.calls[taken.call].to;
        let taken = self.udp.taken.iter().find(is_its).ok_or("taken at no time")?;
        if seen.contains(&taken.call) {
            return Err(format!("{taken:?} has two lines"));
        }
        seen.push(taken.call);
        let (packet, call) = (&self.packets[taken.packet], &self.calls[taken.call]);
        let Datagram { flow, .. } = packet.datagram.ok_or("of no datagram")?;
        let ids = u64::from(line.pid) << 32 | u64::from(line.tid);
        if !call.is_wanted {
            return Err(format!("of task {ids:#x}, which is not wanted"));
        }
        if ids != call.ids {
            return Err(format!("of task {ids:#x}, not {:#x}", call.ids));
        }
        let numbers = (taken.len, taken.segs, taken.segs > 1, packet.mark, packet.ifindex, taken.netns);
        let is_merged = line.flags & FLAG_GRO != 0;
        let said = (line.len, line.segs, is_merged, line.mark, line.ifindex, line.netns);
        if said != numbers {
            return Err(format!("len, segs, GRO, mark, ifindex and netns are {said:?}, not {numbers:?}"));
        }
        let family = if flow.is_v6 { net_latency_common::AF_INET6 } else { net_latency_common::AF_INET };
        let ends = flow.addresses.map(|address| shown(address, flow.is_v6));
        let ends = (ends, flow.remote_port, flow.local_port, family as u8);
        let said = ([line.saddr, line.daddr], line.sport, line.dport, line.family);
        if said != ends {
            return Err(format!("ends are {said:?}, not {ends:?}"));
        }
        let [drv, ip] = [line.stamps[STAMP_DRV], line.stamps[STAMP_IP]];
        let transport = line.stamps[STAMP_TRANSPORT];
        for (what, stamp, hook) in
            [("drv", drv, Hook::Arrived), ("ip", ip, Hook::Ip), ("udp", transport, Hook::Udp)]
        {
            if stamp != 0 {
                self.expect(what, stamp, hook, taken.packet)?;
                self.expect_last(what, stamp, hook, taken.packet)?;
            }
        }
        if transport == 0 && taken.has_transport {
            return Err("its time at UDP is not known".into());
        }
        if line.other != 0 || line.seq != 0 {
            return Err("a datagram with what only TCP has".into());
        }
        Ok(())
    }

    /// Whether a packet did not pass a hook once more after that.
    fn expect_last(&self, what: &str, stamp: u64, hook: Hook, about: usize) -> Result<(), String> {
        let later = self.calls.iter().rev().take_while(|call| call.from >= stamp);
        match later.filter(|call| call.hook == hook && call.about == about).last() {
            Some(call) => Err(format!("{what} {stamp} is not the last: {call:?}")),
            None => Ok(()),
        }
    }

    /// Whether each datagram that was followed and taken has a line or a counted reason. `seen` has those with a line.
    pub(super) fn check_all_udp_in(&self, seen: &[usize]) -> Result<(), String> {
        if let Some(what) = self.udp.missed {
            return Err(format!("{what:?} was not counted as it should"));
        }
        for taken in &self.udp.taken {
            let result = self.calls[taken.call].result;
            let has_line = seen.contains(&taken.call);
            let is_wanted = self.calls[taken.call].is_wanted;
            let is_right = match result {
                Some(Counter::FilteredIn) => taken.is_followed && !is_wanted,
                None => has_line == (taken.is_followed && is_wanted) && (is_wanted || !taken.is_followed),
                Some(_) => !has_line && !taken.is_followed,
            };
            if !is_right {
                return Err(format!("{taken:?} ended with {result:?}, line: {has_line}"));
            }
        }
        Ok(())
    }
}
