//! The truth: which packet passed which hook when, who read which bytes. And whether lines say that.

use std::{format, string::String, vec::Vec};

use net_latency_common::{
    Counter, Direction, FLAG_AMBIGUOUS, FLAG_COALESCED, FLAG_CONTROL, FLAG_GRO, IPPROTO_TCP, IPPROTO_UDP,
    PARTS, PacketRecord, STAMP_APP, STAMP_DRV, STAMP_IP, STAMP_TRANSPORT,
};

use crate::tcp::LINES_PER_RUN;

use super::{
    reader_truth::{Scheduled, What},
    udp_truth::{Datagram, Udp},
};

/// A hook, as far as a stamp tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hook {
    Arrived,
    Ip,
    Forwarded,
    Tcp,
    Taken,
    Udp,
    Consumed,
    /// A task writes to TCP or MPTCP, or begins a datagram; about a socket.
    Written,
    Begun,
    /// A transport lets a packet go; about one on its way out, as the next two.
    Sent,
    IpOut,
    Queued,
    Other,
}

/// A call of a hook: the looks at the clock that it took, and which packet or connection it was about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) hook: Hook,
    pub(super) about: usize,
    /// Behind the last look before it, up to its own last.
    pub(super) from: u64,
    pub(super) to: u64,
    /// Process and thread of the task, as `bpf_get_current_pid_tgid` gives them.
    pub(super) ids: u64,
    /// Whether the kernel skipped it.
    pub(super) is_skipped: bool,
    /// What it has counted.
    pub(super) result: Option<Counter>,
    /// Whether the filter wants that task, or there is none.
    pub(super) is_wanted: bool,
}

/// A packet that was received.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) connection: usize,
    /// The position of its first byte in the stream, and how many there are.
    pub(super) start: u64,
    pub(super) len: u32,
    pub(super) segs: u16,
    pub(super) mark: u32,
    /// Whether its socket is found early, and whether TCP can join it to the skb before it.
    pub(super) is_found: bool,
    pub(super) joins: bool,
    /// When it was forwarded, the call that did so last.
    pub(super) forwarded: Option<usize>,
    /// The call by which it has entered the stack first.
    pub(super) entered: Option<usize>,
    /// What is known of that.
    pub(super) entry: Entry,
    /// As which of all calls it came to TCP; 0 if it did not.
    pub(super) reached: usize,
    /// Whether it was not followed, since only others had used its connection.
    pub(super) is_untraced: bool,
    /// Where it came last.
    pub(super) ifindex: u32,
    /// When TCP has dropped it where a hook sees that: how many calls there were before.
    pub(super) dropped: Option<usize>,
    /// What UDP has of it. Else it is TCP's.
    pub(super) datagram: Option<Datagram>,
}

/// What has to be known of a packet's first entry into the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// It has entered once.
    Plain,
    /// IP has forwarded it, and nothing hides that it is the same.
    Forwarded,
    /// It was also, or only, sent on past IP: then it may count from a later entry than the first.
    SentOn,
    /// Something may hide it.
    Hidden,
}

/// Bytes that a task has read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Read {
    pub(super) connection: usize,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) packet: usize,
    pub(super) call: usize,
    /// The skbs were gone by then (`tcp_read_sock`).
    pub(super) is_late: bool,
    /// The bytes were not the first ones of their skb.
    pub(super) is_appended: bool,
}

/// A connection as lines show it.
#[derive(Clone, Debug)]
pub(super) struct Ends {
    pub(super) remote: [u8; 16],
    pub(super) local: [u8; 16],
    pub(super) remote_port: u16,
    pub(super) local_port: u16,
    pub(super) family: u8,
    pub(super) netns: u32,
    /// The number of the byte at position 0.
    pub(super) first: u32,
    /// Whether TCP has put its bytes into other skbs: which came with which is not known then.
    pub(super) is_collapsed: bool,
    /// Whether a read could not be noted: lines of its bytes come with the next one, if there is one.
    pub(super) has_unnoted: bool,
}

/// What was read and written by calls that were seen, each by its number.
#[derive(Default)]
pub(super) struct Services {
    /// The last one that read from a socket, if none has written to it since.
    pub(super) asked: Vec<(Place, usize)>,
    pub(super) answers: Vec<Answer>,
}

/// The address of a socket of TCP, and 0, or of one of UDP, and its port. Another one of UDP that has both may be taken for it:
/// docs/fine-stages.md.
pub(super) type Place = (u64, u16);

/// A call that writes, and the one that read last before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    pub(super) read: usize,
    pub(super) written: usize,
}

/// All that was true.
#[derive(Default)]
pub(super) struct Truth {
    /// Whether a packet that was sent on past IP has had its skb freed unseen.
    pub(super) lost_sight: bool,
    pub(super) calls: Vec<Call>,
    pub(super) packets: Vec<Packet>,
    pub(super) connections: Vec<Ends>,
    pub(super) reads: Vec<Read>,
    /// Segments with data that TCP's hook got.
    pub(super) received: u64,
    /// Of these, those that MPTCP has taken for certain.
    pub(super) given: u64,
    pub(super) udp: Udp,
    /// Whether processes are filtered.
    pub(super) is_filtered: bool,
    /// Whether they are by their names.
    pub(super) is_by_name: bool,
    /// Whether segments find slots, and none goes to the map that evicts.
    pub(super) has_slots: bool,
    /// What threads did that may read.
    pub(super) scheduled: Scheduled,
    pub(super) services: Services,
    /// What went out.
    pub(super) out: super::out::Truth,
}

/// Whether some bytes came twice.
fn has_copies(came: &[&Packet]) -> bool {
    came.windows(2).any(|pair| pair[0].start + u64::from(pair[0].len) > pair[1].start)
}

impl Truth {
    /// The call that took this look at the clock.
    pub(super) fn call_at(&self, stamp: u64) -> Option<&Call> {
        let index = self.calls.partition_point(|call| call.to < stamp);
        self.calls.get(index).filter(|call| call.from < stamp)
    }

    /// Whether a stamp was taken by this hook, of this packet or connection.
    pub(super) fn expect(&self, what: &str, stamp: u64, hook: Hook, about: usize) -> Result<(), String> {
        match self.call_at(stamp) {
            Some(call) if call.hook == hook && call.about == about => Ok(()),
            other => Err(format!("{what} {stamp} is not of {hook:?} {about}, but of {other:?}")),
        }
    }

    /// Whether all that a line says is true.
    pub(super) fn check(
        &self,
        line: &PacketRecord,
        seen: &mut Vec<(usize, u64, u64)>,
        seen_udp: &mut Vec<usize>,
    ) -> Result<(), String> {
        if line.direction == Direction::In as u8 && line.protocol == IPPROTO_UDP {
            return self.check_udp_in(line, seen_udp);
        }
        if line.direction != Direction::In as u8 || line.protocol != IPPROTO_TCP {
            return Err("not of this kind".into());
        }
        self.check_tcp_in(line, seen)
    }

    /// The connection that a received segment is of.
    fn connection(&self, line: &PacketRecord) -> Option<usize> {
        self.connections.iter().position(|ends| {
            (ends.remote_port, ends.local_port) == (line.sport, line.dport)
                && (ends.remote, ends.local, ends.family) == (line.saddr, line.daddr, line.family)
                && ends.netns == line.netns
        })
    }

    fn check_tcp_in(&self, line: &PacketRecord, seen: &mut Vec<(usize, u64, u64)>) -> Result<(), String> {
        let connection = self.connection(line).ok_or("of no connection")?;
        let first = self.connections[connection].first;
        if line.flags & FLAG_CONTROL != 0 {
            return self.check_control_in(line, connection);
        }
        let start = u64::from(line.seq.wrapping_sub(first));
        let end = start + u64::from(line.len);
        for (other, from, to) in &*seen {
            if *other == connection && *from < end && start < *to {
                return Err(format!("bytes {start} to {end} have two lines"));
            }
        }
        seen.push((connection, start, end));
        let [drv, ip] = [line.stamps[STAMP_DRV], line.stamps[STAMP_IP]];
        let [transport, app] = [line.stamps[STAMP_TRANSPORT], line.stamps[STAMP_APP]];
        let reads = self
            .reads
            .iter()
            .filter(|read| read.connection == connection && read.start < end && start < read.end);
        let mut of_first = None;
        for read in reads {
            if (read.start..read.end).contains(&start) {
                of_first = Some(read);
            }
            let is_known = drv | ip | transport != 0;
            let packet = &self.packets[read.packet];
            if packet.is_untraced {
                // docs/accuracy.md: a copy that comes while the first one waits untraced lends it its times.
                continue;
            }
            if is_known && (packet.start > start || packet.start + u64::from(packet.len) < end) {
                return Err(format!(
                    "bytes {start} to {end} are not all of packet {}: {packet:?}",
                    read.packet
                ));
            }
            for (what, stamp, hook) in
                [("drv", drv, Hook::Arrived), ("ip", ip, Hook::Ip), ("tcp", transport, Hook::Tcp)]
            {
                if stamp != 0 {
                    self.expect(what, stamp, hook, read.packet)?;
                }
            }
            if is_known {
                let expected = (packet.segs, packet.mark, packet.ifindex, packet.segs > 1);
                let shown = (line.segs, line.mark, line.ifindex, line.flags & FLAG_GRO != 0);
                if shown != expected {
                    return Err(format!("segs, mark, ifindex and GRO are {shown:?}, not {expected:?}"));
                }
            }
        }
        let read = of_first.ok_or_else(|| format!("byte {start} was not read"))?;
        let is_appended = line.flags & FLAG_COALESCED != 0;
        // By the time of a late line another skb is read.
        let is_told = !read.is_late && line.flags & FLAG_AMBIGUOUS == 0 && !self.has_late_lines(connection);
        if is_told && is_appended != read.is_appended {
            return Err(format!("byte {start} was appended: {}", read.is_appended));
        }
        let call = &self.calls[read.call];
        if app != 0 && !(call.from < app && app <= call.to) {
            return Err(format!("app {app} is not of {call:?}, but of {:?}", self.call_at(app)));
        }
        let ids = u64::from(line.pid) << 32 | u64::from(line.tid);
        if ids != 0 && ids != call.ids {
            return Err(format!("of task {ids:#x}, not {:#x}", call.ids));
        }
        if !call.is_wanted || self.is_filtered && ids == 0 {
            return Err(format!("of task {ids:#x}, which is not wanted: {call:?}"));
        }
        if app == 0 && ids != 0 {
            return Err("of a task, at no time".into());
        }
        if self.packets[read.packet].is_untraced { Ok(()) } else { self.check_entries(line, read.packet) }
    }

    /// A call that writes is seen, if there was room for what it writes.
    pub(super) fn sends(&mut self, call: usize) {
        let Call { result, is_skipped, .. } = self.calls[call];
        if result.is_none() && !is_skipped {
            self.asks(call);
        }
    }

    /// A call says that its thread has a CPU, if that is one of those that are followed.
    pub(super) fn asks(&mut self, call: usize) {
        let Call { ids, is_wanted, .. } = self.calls[call];
        if is_wanted {
            self.scheduled.note(ids as u32, What::Asked, call);
        }
    }

    /// Whether an incoming packet's parts are what its reader did.
    pub(super) fn check_fine(&self, line: &PacketRecord, parts: &[u64; PARTS]) -> Result<(), String> {
        let came = self.connection(line).and_then(|connection| {
            let start = u64::from(line.seq.wrapping_sub(self.connections[connection].first));
            let before = |read: &&Read| read.connection == connection && read.start <= start;
            let is_untraced = |read: &Read| start < read.end && self.packets[read.packet].is_untraced;
            if self.reads.iter().filter(before).any(is_untraced) {
                // As in `check_tcp_in`: the times are those of a copy.
                return Some((0, u64::MAX));
            }
            let reached = self.reads.iter().filter(before).map(|read| self.packets[read.packet].reached);
            reached.max().map(|call| (self.calls[call].from, self.calls[call].to))
        });
        let taken = self.calls.partition_point(|call| call.to < line.stamps[STAMP_APP]);
        self.scheduled.check(line, parts, taken, came)
    }

    /// The segments with data that came of a connection, in the order of their bytes.
    fn came(&self, number: usize) -> Vec<&Packet> {
        let is_its = |packet: &&Packet| packet.connection == number && packet.reached != 0 && packet.len != 0;
        let mut came: Vec<_> = self.packets.iter().filter(is_its).collect();
        came.sort_by_key(|packet| packet.start);
        came
    }

    /// TCP drops a segment, and a hook sees that.
    pub(super) fn drops(&mut self, packet: usize) {
        let before = self.packets[packet].dropped.replace(self.calls.len());
        assert_eq!(before, None, "packet {packet} is dropped twice");
    }

    /// Whether some bytes came twice.
    pub(super) fn has_any_copies(&self) -> bool {
        (0..self.connections.len()).any(|number| self.has_copies_of(number))
    }

    /// Whether some bytes of a connection came twice.
    pub(super) fn has_copies_of(&self, connection: usize) -> bool {
        has_copies(&self.came(connection))
    }

    /// How many segments were dropped that waited to be read, of connections none of whose bytes came twice.
    pub(super) fn lost(&self) -> u64 {
        let waited = |packet: &&Packet| {
            let Packet { reached, connection, len, .. } = **packet;
            let call = self.calls.get(reached).filter(|_| reached != 0 && len != 0);
            call.is_some_and(|call| call.result.is_none()) && !self.has_copies_of(connection)
        };
        self.packets.iter().filter(|packet| packet.dropped.is_some()).filter(waited).count() as u64
    }

    /// Whether the times of a segment are known that came twice, where TCP was seen to drop one of both before the other was read.
    pub(super) fn expect_known(&self, lines: &[PacketRecord]) -> Result<(), String> {
        for line in lines.iter().filter(|line| line.flags & FLAG_AMBIGUOUS != 0) {
            let Some(connection) = self.connection(line) else { continue };
            let ends = &self.connections[connection];
            let start = u64::from(line.seq.wrapping_sub(ends.first));
            let end = start + u64::from(line.len);
            let mut came = self.came(connection);
            came.retain(|packet| packet.start < end && start < packet.start + u64::from(packet.len));
            let are_copies =
                came.len() == 2 && came.iter().all(|packet| packet.start == start && packet.len == line.len);
            let is_its = |read: &&Read| read.connection == connection && read.start == start && !read.is_late;
            let was_dropped =
                |call: usize| came.iter().any(|packet| packet.dropped.is_some_and(|before| before <= call));
            let is_known = self.reads.iter().find(is_its).is_some_and(|read| was_dropped(read.call));
            if are_copies && !ends.is_collapsed && is_known {
                return Err(format!("a copy was dropped, and the other's times are unknown: {line:?}"));
            }
        }
        Ok(())
    }

    /// Whether a call has taken more of this connection than one run has lines for: the rest has its lines later.
    fn has_late_lines(&self, connection: usize) -> bool {
        let reads = || self.reads.iter().filter(|read| read.connection == connection);
        reads().any(|read| reads().filter(|other| other.call == read.call).count() > LINES_PER_RUN as usize)
    }

    /// Whether all reads are known of connections none of whose bytes came twice, where nothing hides them.
    pub(super) fn expect_all(&self, lines: &[PacketRecord]) -> Result<(), String> {
        // Where it is known which packet it was.
        let lacks = |line: &&PacketRecord| {
            let is_known = line.protocol == IPPROTO_UDP && line.stamps[STAMP_TRANSPORT] != 0;
            is_known && line.stamps.contains(&0)
        };
        if let Some(line) = lines.iter().find(lacks) {
            return Err(format!("not all of a datagram is known: {line:?}"));
        }
        for (number, ends) in self.connections.iter().enumerate() {
            if ends.is_collapsed || ends.has_unnoted {
                continue;
            }
            let came = self.came(number);
            if has_copies(&came) {
                continue;
            }
            let is_in_order = came.is_sorted_by_key(|packet| packet.reached);
            let reads = || self.reads.iter().filter(|read| read.connection == number);
            // What others have read a part of is not followed, nor what was joined to that.
            let is_others = reads().any(|read| !self.calls[read.call].is_wanted);
            if is_others || self.has_late_lines(number) {
                continue;
            }
            // What came out of order may count as doubtful where skbs are gone; and so may what has no slot (docs/accuracy.md).
            let may_lack = (!is_in_order || !self.has_slots) && reads().any(|read| read.is_late);
            for read in reads() {
                let packet = &self.packets[read.packet];
                let seq = ends.first.wrapping_add(packet.start as u32);
                let line = lines.iter().find(|line| {
                    line.seq == seq
                        && line.dport == ends.local_port
                        && line.sport == ends.remote_port
                        && line.len != 0
                });
                let Some(line) = line else {
                    return Err(format!("packet {} was read, and has no line", read.packet));
                };
                if line.len != packet.len || line.pid == 0 || line.stamps.contains(&0) && !may_lack {
                    return Err(format!("not all of packet {} is known: {line:?}", read.packet));
                }
                let is_again = matches!(packet.entry, Entry::Forwarded | Entry::SentOn);
                let first = packet.entered.map(|call| self.calls[call].to);
                if is_again && line.other == 0
                    || packet.entry == Entry::Forwarded && Some(line.stamps[STAMP_DRV]) != first
                {
                    return Err(format!("packet {} had entered before: {line:?}", read.packet));
                }
            }
        }
        Ok(())
    }

    /// The first entry of a packet that was forwarded, and the last one.
    fn check_entries(&self, line: &PacketRecord, packet: usize) -> Result<(), String> {
        let [drv, last] = [line.stamps[STAMP_DRV], line.other];
        if last != 0 {
            self.expect("last", last, Hook::Arrived, packet)?;
            let forwarded = self.packets[packet].forwarded.ok_or("entered twice, and was not forwarded")?;
            if drv > self.calls[forwarded].from || last < self.calls[forwarded].to {
                return Err(format!(
                    "entered {drv} and {last}, and was forwarded at {}",
                    self.calls[forwarded].to
                ));
            }
        }
        Ok(())
    }

    fn check_control_in(&self, line: &PacketRecord, connection: usize) -> Result<(), String> {
        if line.stamps[STAMP_APP] != 0 || line.pid != 0 || line.tid != 0 || line.len != 0 {
            return Err("a control packet that was read".into());
        }
        let call = self
            .call_at(line.stamps[STAMP_TRANSPORT])
            .filter(|call| call.hook == Hook::Tcp)
            .ok_or("not of TCP")?;
        let packet = &self.packets[call.about];
        if packet.connection != connection || packet.len != 0 {
            return Err(format!("of another packet: {packet:?}"));
        }
        for (what, stamp, hook) in
            [("drv", line.stamps[STAMP_DRV], Hook::Arrived), ("ip", line.stamps[STAMP_IP], Hook::Ip)]
        {
            if stamp != 0 {
                self.expect(what, stamp, hook, call.about)?;
            }
        }
        self.check_entries(line, call.about)
    }
}
