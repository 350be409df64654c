//! `journey`: its programs run where those of a history's hooks do. Each row has to be about the packet that its journey began with, and
//! what is read has a row that says so.

use std::{collections::HashSet, format, string::String, vec::Vec};

use net_latency_common::{
    Direction, IPPROTO_TCP, IPPROTO_UDP,
    journey::{
        CONTEXT_PROCESS, JourneyRow, JourneyStart, PLACE_COPY, PLACE_SWITCH, PLACE_TAKEN, PLACE_WAKING,
        ROW_QUEUED, ROW_READ, ROW_UNWATCHED,
    },
};

use super::{
    truth::{Hook, Packet, Truth},
    world::World,
};
use crate::{
    bpf::host::{Machine, memory},
    journey::{queue::WAITING, testing},
};

/// A place at which no row has a meaning of its own: the address of a function.
pub(super) const FUNCTION: u64 = 0xffff_ffff_8100_0000;

/// What a program is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum About {
    /// A packet.
    Packet(usize),
    /// A packet that may come to a socket's queue.
    Queued(usize),
    /// That thread, which is woken.
    Woken(u32),
    /// That thread, which gets a CPU.
    Running(u32),
    /// What a call takes that reads.
    Call(usize),
    /// What is copied out of an skb that began with that packet: the bytes of a connection from the second number to the third.
    Bytes { connection: usize, start: u64, end: u64, first: usize },
}

/// The looks at the clock that a program took: those behind the first time, up to the second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Looks {
    from: u64,
    to: u64,
    about: About,
    /// Process and thread of the task.
    ids: u64,
}

impl World {
    /// Packets that arrive are followed from now on, or else those that go out: only how they begin.
    pub(super) fn begin_journeys(&mut self, goes_out: bool) {
        let dataref = self.offsets.skb_shared_info_dataref;
        Machine::with(|machine| {
            machine.journeys.dataref = dataref;
            (machine.journeys.begin_in, machine.journeys.begin_out) =
                (u32::from(!goes_out), u32::from(goes_out));
        });
        testing::arm();
        if goes_out {
            self.departures = Some(Departures::default());
        } else {
            self.journeys = Some(Vec::new());
        }
    }

    /// A call writes, which that hook has just seen.
    pub(super) fn journey_written(&mut self, call: usize, socket: u64, program: impl FnOnce()) {
        let Some(departures) = &mut self.departures else { return };
        let from = Machine::with(|machine| machine.clock);
        program();
        let to = Machine::with(|machine| machine.clock);
        let field = |at: u32| memory::read::<u32>(socket + u64::from(at));
        let is_told = self.truth.calls[call].hook != Hook::Written
            || field(self.offsets.tcp_sock_write_seq) != 0 && field(self.offsets.sock_sk_write_pending) == 0;
        departures.calls.push(Writing { call, socket, is_told, from, to });
    }

    /// A transport lets a packet of this socket go: a journey may begin with it, which ends at once. Of a corked one the call is not known.
    pub(super) fn journey_sent(
        &mut self,
        packet: usize,
        socket: u64,
        is_corked: bool,
        program: impl FnOnce(),
    ) {
        let Some(departures) = &mut self.departures else { return };
        let (from, ids) = Machine::with(|machine| (machine.clock, machine.ids));
        program();
        let (starts, rows) = testing::take();
        testing::end(&starts);
        let to = Machine::with(|machine| machine.clock);
        let calls = departures.calls.len();
        departures.sent.push(Departure { packet, socket, is_corked, ids, from, to, calls, starts, rows });
    }

    /// Runs a program of `journey`, if packets are followed.
    pub(super) fn journey(&mut self, about: About, program: impl FnOnce()) {
        let Some(looks) = &mut self.journeys else { return };
        let (from, ids) = Machine::with(|machine| (machine.clock, machine.ids));
        program();
        let to = Machine::with(|machine| machine.clock);
        looks.push(Looks { from, to, about, ids });
    }

    /// The same where the kernel may skip it, as [`World::call`] has it.
    pub(super) fn journey_at_kprobe(&mut self, about: About, program: impl FnOnce()) {
        if self.journeys.is_some() && !self.skips_kprobe() {
            self.journey(about, program);
        }
    }
}

/// Whether what all rows say is true; and, if all are there, whether none is missing that says that a packet was read, and each packet
/// that has arrived has begun a journey.
pub(super) fn check(world: &World, looks: &[Looks], is_whole: bool) -> Result<(), String> {
    /// As many find room.
    const MOST: usize = 64;
    let truth = &world.truth;
    let (starts, rows) = testing::take();
    let mut begun = Vec::new();
    for start in &starts {
        let mine: Vec<_> = rows.iter().filter(|row| row.id == start.id && !contradicts(row, start)).collect();
        let about = |row: &JourneyRow| -> Result<About, String> {
            place_of(looks, row).map(|index| looks[index].about).ok_or(format!("{row:?} is of no program"))
        };
        let first = mine.first().ok_or_else(|| format!("{start:?} has no row"))?;
        let About::Packet(packet) = about(first)? else {
            return Err(format!("{start:?} begins with a read"));
        };
        let its = &truth.packets[packet];
        begun.push(packet);
        expect_arrived(world, start, its, first.content)?;
        let has_copies = truth.has_copies_of(its.connection);
        for row in &mine {
            let is_true = match about(row)? {
                About::Packet(other) | About::Queued(other) => other == packet,
                About::Woken(_) => row.place == PLACE_WAKING,
                About::Running(_) => row.place == PLACE_SWITCH,
                About::Call(call) => truth.reads.iter().any(|read| {
                    let is_its = has_copies || read.packet == packet;
                    is_its && read.call == call && (read.start..read.end).contains(&its.start)
                }),
                About::Bytes { connection, start, end, first } => {
                    let has_first = connection == its.connection && (start..end).contains(&its.start);
                    row.place == PLACE_COPY && (has_first || first == packet)
                }
            };
            if !is_true {
                return Err(format!("journey of packet {packet} has {row:?} about {:?}", about(row)));
            }
        }
        let room = if start.protocol == IPPROTO_TCP { expect_room(&rows, &mine) } else { Ok(()) };
        room.and_then(|()| check_schedule(looks, &mine, packet, is_whole))
            .map_err(|wrong| format!("journey of packet {packet}: {wrong}"))?;
        let read = truth.reads.iter().find(|read| read.packet == packet && read.start == its.start);
        let is_copied = read.is_some_and(|read| !read.is_late);
        // What is cut goes on in skbs of its own.
        let is_taken = its.segs <= 1 && truth.udp.taken.iter().any(|taken| taken.packet == packet);
        let has_place = |place: u64| mine.iter().any(|row| row.place == place);
        let has_flag = |flag: u8| mine.iter().any(|row| row.flags & flag != 0);
        let is_told =
            has_flag(ROW_UNWATCHED) || has_place(PLACE_TAKEN) && (!is_copied || has_place(PLACE_COPY));
        if is_whole && start.protocol == IPPROTO_TCP && read.is_some() && !is_told && !has_copies {
            return Err(format!("not all says that packet {packet} was read: {mine:#?}"));
        }
        let is_told = has_flag(ROW_QUEUED) && has_flag(ROW_READ);
        if is_whole && start.protocol == IPPROTO_UDP && is_taken && !is_told {
            return Err(format!("not all says that datagram {packet} was taken: {mine:#?}"));
        }
    }
    let is_due = |packet: &Packet| {
        let is_tcp_or_udp = packet.datagram.as_ref().is_none_or(|datagram| datagram.protocol == IPPROTO_UDP);
        let is_shown = packet.datagram.is_some() || packet.len != 0 || shows_control();
        packet.entered.is_some() && is_tcp_or_udp && is_shown
    };
    let all = truth.packets.iter().enumerate().filter(|(_, packet)| is_due(packet));
    let missing = all.map(|(number, _)| number).find(|number| !begun.contains(number));
    match missing {
        Some(number) if is_whole && !truth.is_filtered && starts.len() < MOST => {
            Err(format!("no journey of packet {number} has begun"))
        }
        _ => Ok(()),
    }
}

/// Whether as many wait at the socket as are watched, if a row says that its packet is not.
fn expect_room(rows: &[JourneyRow], mine: &[&JourneyRow]) -> Result<(), String> {
    let Some(row) = mine.iter().find(|row| row.flags & ROW_UNWATCHED != 0) else { return Ok(()) };
    let is_before = |other: &&JourneyRow| {
        other.flags & ROW_QUEUED != 0 && other.at < row.at && other.content >> 32 == row.content >> 32
    };
    let watched: HashSet<_> = rows.iter().filter(is_before).map(|other| other.id).collect();
    if watched.len() < WAITING {
        Err(format!("only {watched:?} were watched before {row:?}"))
    } else {
        Ok(())
    }
}

/// The program that looked at the clock for a row.
fn place_of(looks: &[Looks], row: &JourneyRow) -> Option<usize> {
    let index = looks.partition_point(|looks| looks.to < row.at);
    looks.get(index).is_some_and(|looks| looks.from < row.at).then_some(index)
}

/// Whether what rows say of a packet's readers is so: each was woken last, of what it read the packet by, behind the first time that the
/// packet came to its socket, and then got a CPU. If all rows are there, whether they say it of all that were woken when it waited.
fn check_schedule(
    looks: &[Looks],
    rows: &[&JourneyRow],
    packet: usize,
    is_whole: bool,
) -> Result<(), String> {
    let is_about = |about: About| move |index: &usize| looks[*index].about == about;
    let all = |place: u64| rows.iter().filter(move |row| row.place == place);
    let places = |place: u64| all(place).filter_map(|row| place_of(looks, row)).collect::<Vec<_>>();
    let [woken, running] = [PLACE_WAKING, PLACE_SWITCH].map(places);
    let (mut its_woken, mut its_running) = (Vec::new(), Vec::new());
    for row in rows.iter().filter(|row| row.flags & ROW_READ != 0) {
        let read = place_of(looks, row).ok_or("read by no program")?;
        let thread = looks[read].ids as u32;
        let mut queued = (0..read).filter(is_about(About::Queued(packet)));
        let Some(first) = queued.next() else { continue };
        let last = queued.next_back().unwrap_or(first);
        let Some(waking) = (first..read).rev().find(is_about(About::Woken(thread))) else { continue };
        let switch = (waking..read).find(is_about(About::Running(thread)));
        if is_whole
            && waking > last
            && (!woken.contains(&waking) || !switch.is_none_or(|it| running.contains(&it)))
        {
            return Err(format!("not all says that its reader was woken, {:?}: {rows:#?}", looks[waking]));
        }
        its_woken.push(waking);
        its_running.extend(switch);
    }
    let of_others = woken.iter().find(|it| !its_woken.contains(it));
    let of_others = of_others.or_else(|| running.iter().find(|it| !its_running.contains(it)));
    of_others.map_or(Ok(()), |index| Err(format!("{:?} is not its reader's: {rows:#?}", looks[*index])))
}

/// Whether a journey says what the packet that arrived had in its headers.
fn expect_arrived(world: &World, start: &JourneyStart, packet: &Packet, content: u64) -> Result<(), String> {
    let (ends, protocol, seq) = match &packet.datagram {
        Some(datagram) => (world.ends(&datagram.flow, 0), datagram.protocol, 0),
        None => {
            let ends = world.truth.connections[packet.connection].clone();
            let seq = ends.first.wrapping_add(packet.start as u32);
            (ends, IPPROTO_TCP, seq)
        }
    };
    let shown = (start.saddr, start.daddr, start.sport, start.dport, start.family, start.protocol);
    let its = (ends.remote, ends.local, ends.remote_port, ends.local_port, ends.family.into(), protocol);
    let of_bytes = (start.seq, start.len, start.mark) == (seq, packet.len, packet.mark);
    let is_wanted = u8::from(!world.truth.is_filtered);
    if shown != its || !of_bytes || (start.direction, start.is_wanted) != (Direction::In as u8, is_wanted) {
        return Err(format!("{start:?} of {packet:?}"));
    }
    let second = match &packet.datagram {
        Some(datagram) => (packet.len + 8) << 16 | u32::from(datagram.sum),
        None => seq,
    };
    let ports = u64::from(start.sport) << 16 | u64::from(start.dport);
    if content == ports << 32 | u64::from(second) {
        Ok(())
    } else {
        Err(format!("content {content:#x} of {packet:?}"))
    }
}

/// Whether packets without payload are wanted.
fn shows_control() -> bool {
    Machine::with(|machine| machine.settings.control) != 0
}

/// Whether a row has another packet's ports or number, as the user side sees too.
fn contradicts(row: &JourneyRow, start: &JourneyStart) -> bool {
    let ports = u64::from(start.sport) << 16 | u64::from(start.dport);
    let is_other = start.protocol == IPPROTO_TCP && start.len != 0 && row.content as u32 != start.seq;
    row.content != 0 && (row.content >> 32 != ports || is_other)
}

/// What journeys were begun with packets that go out.
#[derive(Default)]
pub(super) struct Departures {
    calls: Vec<Writing>,
    sent: Vec<Departure>,
}

/// A call that writes, and the looks at the clock of `journey`'s program: behind the first time, up to the second.
struct Writing {
    call: usize,
    socket: u64,
    /// A call that connects begins before the socket has its numbers, and of those that write at the same time none is known.
    is_told: bool,
    from: u64,
    to: u64,
}

/// A packet whose transport lets it go.
struct Departure {
    packet: usize,
    socket: u64,
    is_corked: bool,
    /// Process and thread of the task.
    ids: u64,
    from: u64,
    to: u64,
    /// How many calls there were before.
    calls: usize,
    starts: Vec<JourneyStart>,
    rows: Vec<JourneyRow>,
}

impl Departures {
    /// Whether each packet that is wanted begins a journey, and what that says is true.
    pub(super) fn check(&self, truth: &Truth) -> Result<(), String> {
        self.sent.iter().try_for_each(|departure| {
            let wrong =
                |what| format!("journey of packet {}, sent {}: {what}", departure.packet, departure.to);
            self.check_one(truth, departure).map_err(wrong)
        })
    }

    fn check_one(&self, truth: &Truth, departure: &Departure) -> Result<(), String> {
        let Departure { starts, rows, .. } = departure;
        let packet = &truth.out.packets[departure.packet];
        let is_tcp = packet.protocol == IPPROTO_TCP;
        let is_wanted =
            if is_tcp { packet.len != 0 || shows_control() } else { packet.protocol == IPPROTO_UDP };
        let start = match starts[..] {
            [start] => start,
            [] if truth.is_filtered || !is_wanted => return Ok(()),
            _ => return Err(format!("{} have begun", starts.len())),
        };
        let ends = &packet.ends;
        let shown = (start.saddr, start.daddr, start.sport, start.dport, start.family, start.protocol);
        let family = ends.family.into();
        let its = (ends.local, ends.remote, ends.local_port, ends.remote_port, family, packet.protocol);
        let seq = if is_tcp { ends.first.wrapping_add(packet.start as u32) } else { 0 };
        // Bytes that came with a SYN have its number (`tcp_send_syn_data`).
        let is_syn = is_tcp && packet.start == 0 && start.seq == seq.wrapping_sub(1);
        let of_bytes = packet.len != 0 && (start.seq != seq && !is_syn || start.len != packet.len);
        let mark = if is_tcp { 0 } else { packet.mark };
        let is_its = (start.direction, start.is_wanted, start.mark) == (Direction::Out as u8, 1, mark);
        if shown != its || of_bytes || !is_its {
            return Err(format!("{start:?} of {packet:?}"));
        }
        // A datagram's is the last one of its thread.
        let before = &self.calls[..departure.calls];
        let is_last = |writing: &&Writing| {
            let is_of_thread = is_tcp || truth.calls[writing.call].ids == departure.ids;
            writing.socket == departure.socket && is_of_thread
        };
        let last = before.iter().rev().find(is_last).filter(|writing| writing.is_told);
        let may_lack = departure.is_corked || packet.len == 0 && is_tcp || truth.out.is_limited;
        let needs_call = !may_lack && last.is_some_and(|writing| packet.app == Some(writing.call));
        let mut calls = 0;
        for row in rows {
            let is_here = departure.from < row.at && row.at <= departure.to;
            let Some(call) = before.iter().find(|writing| writing.from < row.at && row.at <= writing.to)
            else {
                if is_here && (row.skb != 0 || !is_tcp && row.context == CONTEXT_PROCESS) {
                    continue;
                }
                return Err(format!("{row:?} is of no program"));
            };
            calls += 1;
            let call = call.call;
            let its = &truth.calls[call];
            let writes = packet.app == Some(call) && (is_tcp || its.ids == departure.ids);
            if !writes || (row.pid, row.tid) != ((its.ids >> 32) as u32, its.ids as u32) {
                return Err(format!("{row:?} is of call {call}, {its:?}, not {:?}", packet.app));
            }
        }
        let is_own = rows.last().is_some_and(|row| row.skb != 0 && row.id == start.id);
        if !is_own || calls > 1 || needs_call && calls == 0 {
            return Err(format!("begins with {rows:?}"));
        }
        Ok(())
    }
}
