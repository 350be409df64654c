//! What the screen shows: traffic by process, by connection, and the slowest packets of each connection. Fed with events; draws nothing,
//! and looks up only the owners of processes.
//!
//! Its size is bounded. The entry that is idle for longest makes way. Where none is, the one with fewest packets makes way for one with far
//! more, or for one of another owner than the one with most places. Packets without a place are counted, so that the figures of those shown
//! stay true.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
    net::SocketAddr,
    time::Duration,
};

use net_latency_common::{COMM_LEN, Direction};

use super::{
    failed::Failed,
    window::{SLICES, TREND, Traffic},
};
use crate::{
    accounting::{
        Challengers, Ends, Holder,
        tcp::{Conversation, Segment},
        transit::Transits,
        whose_place,
    },
    name::Name,
    packet::event::{COLUMNS, Event, Protocol},
};

/// Most processes that have a place.
const PROCESSES: usize = 512;
/// Most connections that have a place.
const CONNECTIONS: usize = 2_048;
/// Most entries of histograms: 8 bytes each.
const CELLS: usize = 1 << 20;
/// Packets kept of each slice and direction of a connection: its slowest.
const SLOWEST: usize = 4;

/// The traffic that is known.
#[derive(Clone, Debug)]
pub(super) struct Model {
    started_ns: u64,
    now_ns: u64,
    slice_ns: u64,
    /// Number of the current slice.
    now: u64,
    processes: Table<u32, Process>,
    connections: Table<ConnectionKey, Connection>,
    transits: Transits<ConnectionKey>,
    pub(super) failed: Failed,
    /// Whether a packet came with fine stages.
    has_parts: bool,
    /// Ports of clients, as [`Ends::role`] takes them, where requests and answers are followed.
    ephemeral: Option<u32>,
    /// The owner of a process, by its number and when it lived.
    owners: fn(u32, i64) -> u64,
}

/// The key of a connection: its process and its ends. Also for the packets between two UDP ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ConnectionKey {
    /// 0 where the process is unknown.
    pub(super) pid: u32,
    pub(super) ends: Ends,
}

/// A process, as one of its threads showed it.
#[derive(Clone, Debug)]
pub(super) struct Process {
    owner: u64,
    name: Option<Name<COMM_LEN>>,
    pub(super) protocols: Protocols,
    pub(super) traffic: Traffic,
}

impl Process {
    /// Its name as the kernel has it, of any bytes.
    pub(super) fn name(&self) -> Option<&[u8]> {
        self.name.as_ref().map(Name::bytes)
    }

    /// The newest name: it may change (exec). In a log that lacks it, the first thread's is the process's, and another's is better than none.
    fn see(&mut self, event: &Event<'_>) {
        let is_process = event.process().is_some() || event.pid() == event.tid();
        if (is_process || self.name.is_none())
            && let Some(name) = event.process().or(event.comm())
        {
            self.name = Some(Name::new(name));
        }
    }
}

/// A connection of a process.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    owner: u64,
    pub(super) traffic: Traffic,
    /// How far it is with what its packets show together.
    conversation: Conversation,
    /// By the number of their slice, which grows.
    slowest: VecDeque<(u64, Packet)>,
}

/// Which protocols were seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Protocols {
    pub(super) tcp: bool,
    pub(super) udp: bool,
}

/// One packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packet {
    pub(super) wall_ns: i64,
    pub(super) direction: Direction,
    pub(super) stages: [Option<u64>; COLUMNS],
    pub(super) total: Option<u64>,
    pub(super) len: u32,
    pub(super) tid: u32,
    /// As the kernel side set them.
    pub(super) flags: u16,
}

impl Model {
    /// Starts empty at `now_ns`; figures are those of the last `window`.
    pub(super) fn new(now_ns: u64, window: Duration) -> Self {
        let window_ns = u64::try_from(window.as_nanos()).unwrap_or(u64::MAX);
        Self {
            started_ns: now_ns,
            now_ns,
            slice_ns: (window_ns / SLICES).max(1),
            now: 0,
            processes: Table::new(PROCESSES),
            connections: Table::new(CONNECTIONS),
            transits: Transits::default(),
            failed: Failed::default(),
            has_parts: false,
            ephemeral: None,
            owners: |pid, _| pid.into(),
        }
    }

    /// Shares belong to the owner that `owners` gives for a process; else to each process.
    pub(super) fn with_owners(self, owners: fn(u32, i64) -> u64) -> Self {
        Self { owners, ..self }
    }

    /// Follows requests and answers too; the kernel gives out `ephemeral` ports to clients, as [`Ends::role`] takes them.
    pub(super) fn with_exchanges(self, ephemeral: Option<u32>) -> Self {
        Self { ephemeral, ..self }
    }

    /// Later records happen at `now_ns`.
    pub(super) fn advance(&mut self, now_ns: u64) {
        if now_ns <= self.now_ns {
            return;
        }
        self.now_ns = now_ns;
        self.failed.advance(now_ns);
        let now = (self.now_ns - self.started_ns) / self.slice_ns;
        if now > self.now {
            self.now = now;
            self.end_exchanges();
            self.processes.sweep(now);
            self.connections.sweep(now);
        }
    }

    /// Connections without a packet for a slice have no request soon.
    fn end_exchanges(&mut self) {
        for (key, connection) in &mut self.connections.entries {
            if connection.traffic.idle(self.now) == 0 {
                continue;
            }
            let news = connection.conversation.finish(key.ends.role(self.ephemeral));
            connection.traffic.hear(&news);
            if let Some(process) = self.processes.entries.get_mut(&key.pid) {
                process.traffic.hear(&news);
            }
        }
    }

    /// Adds a packet.
    pub(super) fn record(&mut self, event: &Event<'_>) {
        self.has_parts |= event.parts().is_some();
        let pid = event.record().pid;
        let now = self.now;
        self.begin_anew_if_other(pid, event);
        let is_room = self.processes.cells + self.connections.cells < CELLS;
        let (mut owner, owners) = (None, self.owners);
        let mut owner = || *owner.get_or_insert_with(|| owners(pid, event.wall_ns()));
        let mut process = self.processes.place(pid, now, is_room, &mut owner);
        if let Some(process) = &mut process {
            process.see(event);
            process.protocols.see(event.protocol());
            process.traffic.record(event, now);
        }
        let key = ConnectionKey::of(event);
        let of_process = process.as_ref().map(|process| process.owner);
        let owner = || of_process.unwrap_or_else(&mut owner);
        let Some(connection) = self.connections.place(key, now, is_room, owner) else { return };
        connection.traffic.record(event, now);
        connection.see(event, now);
        let Some(segment) = Segment::of(event) else { return };
        let news = connection.conversation.see(key.ends.role(self.ephemeral), &segment);
        connection.traffic.hear(&news);
        if let Some(process) = process {
            process.traffic.hear(&news);
        }
        if let Some((receiver, ns)) = segment.passage.and_then(|passage| self.transits.see(&passage, key)) {
            if let Some(connection) = self.connections.entries.get_mut(&receiver) {
                connection.traffic.add_transit(ns);
            }
            if let Some(process) = self.processes.entries.get_mut(&receiver.pid) {
                process.traffic.add_transit(ns);
            }
        }
    }

    /// A process with a known number but another name is another process, or has become another program: its figures begin anew.
    fn begin_anew_if_other(&mut self, pid: u32, event: &Event<'_>) {
        let (Some(known), Some(name)) = (self.processes.entries.get(&pid), event.process()) else { return };
        if pid != 0 && known.name() != Some(name) {
            self.processes.entries.remove(&pid);
            self.connections.entries.retain(|key, _| key.pid != pid);
        }
    }

    /// Whether there are fine stages to show.
    pub(super) fn has_parts(&self) -> bool {
        self.has_parts
    }

    /// Number of the current slice, for which figures of traffic are requested.
    pub(super) fn now(&self) -> u64 {
        self.now
    }

    /// The time that the window covers by now, in seconds.
    pub(super) fn covered(&self) -> f64 {
        let since_start = self.now_ns - self.started_ns;
        let full = (SLICES - 1).saturating_mul(self.slice_ns);
        let covered = since_start.min(full.saturating_add(since_start % self.slice_ns));
        // The first packets would seem to come at an infinite rate.
        Duration::from_nanos(covered).as_secs_f64().max(0.1)
    }

    pub(super) fn processes(&self) -> impl Iterator<Item = (u32, &Process)> {
        self.processes.entries.iter().map(|(pid, process)| (*pid, process))
    }

    pub(super) fn process(&self, pid: u32) -> Option<&Process> {
        self.processes.entries.get(&pid)
    }

    pub(super) fn connections(&self) -> impl Iterator<Item = (&ConnectionKey, &Connection)> {
        self.connections.entries.iter()
    }

    pub(super) fn connection(&self, key: &ConnectionKey) -> Option<&Connection> {
        self.connections.entries.get(key)
    }

    /// Packets of processes, and of connections, that found no place.
    pub(super) fn refused(&self) -> (u64, u64) {
        (self.processes.refused, self.connections.refused)
    }
}

impl ConnectionKey {
    fn of(event: &Event<'_>) -> Self {
        Self { pid: event.record().pid, ends: Ends::of(event) }
    }

    pub(super) fn protocols(&self) -> Protocols {
        let is_udp = self.ends.protocol == Protocol::Udp;
        Protocols { tcp: !is_udp, udp: is_udp }
    }

    /// Protocol and both ends.
    pub(super) fn text(&self) -> String {
        flow(self.ends.protocol, self.ends.local, self.ends.remote)
    }
}

/// Protocol and both ends, as text.
pub(super) fn flow(protocol: Protocol, local: SocketAddr, remote: SocketAddr) -> String {
    format!("{} {local} > {remote}", protocol.name())
}

impl Connection {
    fn see(&mut self, event: &Event<'_>, now: u64) {
        self.prune(now);
        // The slowest are first sends.
        if event.is_retransmission() {
            return;
        }
        let packet = Packet {
            wall_ns: event.wall_ns(),
            direction: event.direction(),
            stages: event.stages(),
            total: event.total_ns(),
            len: event.record().len,
            tid: event.record().tid,
            flags: event.record().flags,
        };
        let first = self.slowest.partition_point(|(slice, _)| *slice < now);
        let alike = |(_, kept): &&mut (u64, Packet)| kept.direction == packet.direction;
        if self.slowest.range_mut(first..).filter(alike).count() < SLOWEST {
            self.slowest.push_back((now, packet));
            return;
        }
        let fastest = self.slowest.range_mut(first..).filter(alike).min_by_key(|(_, kept)| kept.time());
        if let Some((_, fastest)) = fastest
            && fastest.time() < packet.time()
        {
            *fastest = packet;
        }
    }

    fn prune(&mut self, now: u64) {
        while self.slowest.front().is_some_and(|(slice, _)| slice + SLICES <= now) {
            self.slowest.pop_front();
        }
    }

    /// The slowest packets of each slice of the window that ends with slice `now`.
    pub(super) fn slowest(&self, now: u64) -> impl Iterator<Item = &Packet> {
        self.slowest.iter().filter(move |(slice, _)| slice + SLICES > now).map(|(_, packet)| packet)
    }
}

impl Packet {
    /// How slow it was, as far as is known.
    pub(super) fn time(&self) -> u64 {
        self.total.unwrap_or_else(|| self.stages.iter().flatten().fold(0, |sum, ns| sum.saturating_add(*ns)))
    }
}

impl Protocols {
    fn see(&mut self, protocol: Protocol) {
        match protocol {
            Protocol::Tcp => self.tcp = true,
            Protocol::Udp => self.udp = true,
        }
    }
}

/// What has a place in a [`Table`].
trait Entry {
    fn new(slice: u64, owner: u64) -> Self;
    fn owner(&self) -> u64;
    fn traffic(&mut self) -> &mut Traffic;
    /// Drops traffic that is out of the window.
    fn prune(&mut self, now: u64);
}

impl Entry for Process {
    fn new(slice: u64, owner: u64) -> Self {
        Self { owner, name: None, protocols: Protocols::default(), traffic: Traffic::new(slice) }
    }

    fn owner(&self) -> u64 {
        self.owner
    }

    fn traffic(&mut self) -> &mut Traffic {
        &mut self.traffic
    }

    fn prune(&mut self, now: u64) {
        self.traffic.prune(now);
    }
}

impl Entry for Connection {
    fn new(slice: u64, owner: u64) -> Self {
        let conversation = Conversation::default();
        Self { owner, traffic: Traffic::new(slice), conversation, slowest: VecDeque::new() }
    }

    fn owner(&self) -> u64 {
        self.owner
    }

    fn traffic(&mut self) -> &mut Traffic {
        &mut self.traffic
    }

    fn prune(&mut self, now: u64) {
        self.traffic.prune(now);
        Self::prune(self, now);
    }
}

/// As many entries as have a place.
#[derive(Clone, Debug)]
struct Table<K, V> {
    entries: HashMap<K, V>,
    capacity: usize,
    /// Packets that found no place.
    refused: u64,
    /// Entries of histograms at the last sweep.
    cells: usize,
    /// The slice in which all entries were found to be in use.
    full: Option<u64>,
    challengers: Challengers<K>,
}

impl<K: Copy + Eq + Hash, V: Entry> Table<K, V> {
    fn new(capacity: usize) -> Self {
        let challengers = Challengers::new();
        Self { entries: HashMap::new(), capacity, refused: 0, cells: 0, full: None, challengers }
    }

    /// The entry of `key`, new if there is a place for it: `owner` says whose. Without `is_room` there is only for known ones.
    fn place(&mut self, key: K, now: u64, is_room: bool, mut owner: impl FnMut() -> u64) -> Option<&mut V> {
        let has_place = self.entries.contains_key(&key)
            || is_room && self.make_way(now)
            || self.give_way(key, now, &mut owner);
        if !has_place {
            self.refused += 1;
            return None;
        }
        Some(self.entries.entry(key).or_insert_with(|| V::new(now, owner())))
    }

    /// Whether there is a place for one more, after removing what has not been seen for as long as the window.
    fn make_way(&mut self, now: u64) -> bool {
        // Looking through all for each of many newcomers would cost too much.
        if self.entries.len() >= self.capacity && self.full != Some(now) {
            let mut idle: Vec<_> =
                self.entries.iter_mut().map(|(key, entry)| (entry.traffic().idle(now), *key)).collect();
            idle.retain(|(idle, _)| *idle >= SLICES);
            // A quarter at once, so that the next ones find a place without another look.
            idle.sort_unstable_by_key(|(idle, _)| u64::MAX - idle);
            for (_, key) in idle.into_iter().take(self.capacity.div_ceil(4)) {
                self.entries.remove(&key);
            }
            self.full = (self.entries.len() >= self.capacity).then_some(now);
        }
        self.entries.len() < self.capacity
    }

    /// Whether another entry has made way for this one, which has had packets without a place.
    fn give_way(&mut self, key: K, now: u64, owner: impl FnOnce() -> u64) -> bool {
        let Some(packets) = self.challengers.count(key) else { return false };
        let holders = self.entries.iter_mut().map(|(key, entry)| {
            let traffic = entry.traffic();
            let packets = traffic.packets(Direction::In, now) + traffic.packets(Direction::Out, now);
            Holder { place: *key, owner: entry.owner(), packets }
        });
        let holders: Vec<_> = holders.collect();
        let wins = |least| Challengers::<K>::wins(packets, least);
        let Some(last) = whose_place(&holders, owner(), wins) else { return false };
        self.challengers.remove(&key);
        self.entries.remove(&last.place);
        self.refused += last.packets;
        true
    }

    /// Removes what has been idle for as long as the trend shows, and gives back the memory of the rest.
    fn sweep(&mut self, now: u64) {
        self.cells = 0;
        if now.is_multiple_of(SLICES) {
            self.challengers.age();
        }
        self.entries.retain(|_, entry| {
            entry.prune(now);
            self.cells += entry.traffic().cells();
            entry.traffic().idle(now) < TREND as u64
        });
    }
}

#[cfg(test)]
pub(super) mod tests {
    use net_latency_common::PacketRecord;

    use super::{
        super::window::{ANSWER, RTT},
        *,
    };
    use crate::packet::event::fixtures::{comm, incoming, outgoing};

    const SECOND: u64 = 1_000_000_000;

    /// The connection of the fixtures.
    pub(in crate::commands::top) fn key() -> ConnectionKey {
        ConnectionKey::of(&Event::new(&incoming(), 0, None))
    }

    fn model() -> Model {
        Model::new(0, Duration::from_secs(10))
    }

    fn record(model: &mut Model, record: &PacketRecord) {
        model.record(&Event::new(record, 0, None));
    }

    #[test]
    fn both_directions_are_one_connection_of_one_process() {
        let mut model = model();
        record(&mut model, &incoming());
        record(&mut model, &outgoing());
        let connections: Vec<_> = model.connections().collect();
        assert_eq!(connections.len(), 1);
        let (key, connection) = connections[0];
        assert_eq!((key.ends.local.port(), key.ends.remote.port()), (51324, 443));
        assert_eq!(connection.traffic.packets(Direction::In, 0), 1);
        assert_eq!(connection.traffic.packets(Direction::Out, 0), 1);
        assert_eq!(connection.slowest(0).count(), 2);
        assert_eq!(model.processes().count(), 1);
        assert_eq!(model.process(19550).expect("known").traffic.packets(Direction::In, 0), 1);
    }

    #[test]
    fn a_process_has_its_newest_name() {
        let mut model = model();
        let name = |model: &Model| model.process(19550).expect("known").name().map(<[u8]>::to_vec);
        let of = |tid, thread: &[u8], process: &[u8]| PacketRecord {
            tid,
            comm: comm(thread),
            process: comm(process),
            ..incoming()
        };
        record(&mut model, &of(19561, b"worker-1", b"sh"));
        assert_eq!(name(&model).as_deref(), Some(&b"sh"[..]));
        record(&mut model, &of(19550, b"nginx", b"nginx"));
        record(&mut model, &of(19561, b"worker-1", b"nginx"));
        assert_eq!(name(&model).as_deref(), Some(&b"nginx"[..]));
    }

    #[test]
    fn in_an_old_log_a_process_has_the_name_of_its_first_thread() {
        let mut model = model();
        let name = |model: &Model| model.process(19550).expect("known").name().map(<[u8]>::to_vec);
        let of = |tid, name: &[u8]| PacketRecord { tid, comm: comm(name), process: [0; 16], ..incoming() };
        record(&mut model, &of(19561, b"worker-1"));
        record(&mut model, &of(19562, b"worker-2"));
        assert_eq!(name(&model).as_deref(), Some(&b"worker-1"[..]));
        record(&mut model, &of(19550, b"sh"));
        record(&mut model, &of(19561, b"worker-1"));
        record(&mut model, &of(19550, b""));
        assert_eq!(name(&model).as_deref(), Some(&b"sh"[..]));
        record(&mut model, &of(19550, b"nginx"));
        assert_eq!(name(&model).as_deref(), Some(&b"nginx"[..]));
    }

    #[test]
    fn answers_and_round_trips_are_those_of_the_connection_and_of_its_process() {
        const US: u64 = 1_000;
        let mut model = model().with_exchanges(Some(32_768 | 60_999 << 16));
        // A request each 100 us, which is answered after 40 us and read 10 us later; the last one is confirmed by silence.
        for round in 1..=3u32 {
            let at = u64::from(round) * 100 * US;
            let (asked, answered) = (outgoing(), incoming());
            let asked = PacketRecord {
                stamps: [at + 3, at + 2, at + 1, at],
                seq: round * asked.len,
                rtt_or_holder: 8 * round,
                ..asked
            };
            let read = at + 50 * US;
            let answered = PacketRecord {
                stamps: [at + 40 * US, at + 41 * US, at + 42 * US, read],
                seq: round * answered.len,
                ..answered
            };
            model.record(&Event::new(&asked, (at + 3) as i64, None));
            model.record(&Event::new(&answered, read as i64, None));
        }
        let figures = |model: &Model, direction: Direction| {
            let connection = model.connection(&key()).expect("known");
            let process = model.process(19550).expect("known");
            [&connection.traffic, &process.traffic].map(|traffic| traffic.figures(direction, model.now()))
        };
        for figures in figures(&model, Direction::In) {
            assert_eq!(figures.times[ANSWER].map(|spread| spread.max), Some(40 * US));
        }
        model.advance(SECOND);
        for figures in figures(&model, Direction::In) {
            assert_eq!(figures.times[ANSWER].map(|spread| spread.max), Some(40 * US));
            assert_eq!(figures.dominant.map(|(stage, _)| stage), Some(2), "answers are no stage");
        }
        for figures in figures(&model, Direction::Out) {
            assert_eq!(figures.times[ANSWER], None, "it serves no request");
            let rtt = figures.times[RTT].expect("known");
            assert!((1_950..=2_050).contains(&rtt.p50) && rtt.max == 3_000, "{rtt:?}");
        }
    }

    #[test]
    fn the_slowest_packets_of_each_slice_are_kept() {
        let mut model = model();
        let slow = |ns| {
            let record = incoming();
            let [drv, ip, tcp, _] = record.stamps;
            PacketRecord { stamps: [drv, ip, tcp, tcp + ns], ..record }
        };
        for ns in [5, 9, 1, 7, 3, 8, 2, 9] {
            record(&mut model, &slow(ns * 1_000_000));
        }
        model.advance(SECOND);
        record(&mut model, &slow(1));
        let ms = |model: &Model| {
            let connection = model.connection(&key()).expect("known");
            let mut ms: Vec<_> =
                connection.slowest(model.now()).map(|packet| packet.time() / 1_000_000).collect();
            ms.sort_unstable();
            ms
        };
        assert_eq!(ms(&model), [0, 7, 8, 9, 9]);
        model.advance(10 * SECOND);
        assert_eq!(ms(&model), [0], "the first second is out of the window");
    }

    #[test]
    fn what_is_covered_grows_to_the_window() {
        let mut model = model();
        let mut covered = |ns| {
            model.advance(ns);
            model.covered()
        };
        assert_eq!(covered(0), 0.1);
        assert_eq!(covered(SECOND / 2), 0.5);
        assert_eq!(covered(9 * SECOND + SECOND / 2), 9.5);
        assert_eq!(covered(10 * SECOND), 9.0, "the first slice has gone, the new one begins");
        assert_eq!(covered(25 * SECOND + SECOND / 4), 9.25);
        assert_eq!(covered(SECOND), 9.25, "time does not go back");
    }

    #[test]
    fn the_idle_make_way_and_the_busy_do_not() {
        let mut model = model();
        let of = |pid, port| PacketRecord { pid, tid: pid, dport: port, ..incoming() };
        for pid in 1..=PROCESSES as u32 {
            record(&mut model, &of(pid, 1));
        }
        record(&mut model, &of(100_000, 1));
        assert_eq!((model.processes().count(), model.refused()), (PROCESSES, (1, 0)));
        model.advance(5 * SECOND);
        record(&mut model, &of(1, 1));
        // None has been idle for the whole window.
        record(&mut model, &of(100_000, 1));
        assert_eq!(model.refused(), (2, 0));
        model.advance(12 * SECOND);
        record(&mut model, &of(100_000, 1));
        assert_eq!(model.refused(), (2, 0));
        assert!(model.process(100_000).is_some() && model.process(1).is_some());
        assert!(model.processes().count() <= PROCESSES);
        assert!(model.connections().count() <= CONNECTIONS);
    }

    #[test]
    fn who_has_many_packets_has_a_place_among_many_processes_that_have_few() {
        let mut model = model();
        let of = |pid| PacketRecord { pid, tid: pid, dport: 1, ..incoming() };
        // All of them go on, so that none is idle.
        for second in 0..30 {
            (1..=2 * PROCESSES as u32).for_each(|pid| record(&mut model, &of(pid)));
            (0..40).for_each(|_| record(&mut model, &of(100_000)));
            model.advance(second * SECOND);
        }
        assert!(model.process(100_000).is_some() && model.processes().count() <= PROCESSES);
        let (processes, _) = model.refused();
        assert!(processes > 0);
        // Processes with as many packets as each other stay.
        let stay = (1..=2 * PROCESSES as u32).filter(|pid| model.process(*pid).is_some()).count();
        assert!(stay >= PROCESSES - 2, "{stay}");
    }

    #[test]
    fn one_user_with_many_busy_processes_leaves_room_for_others() {
        let mut model = model().with_owners(|pid, _| u64::from(pid < 10_000));
        let of = |pid| PacketRecord { pid, tid: pid, dport: 1, ..incoming() };
        let mine = |round: u32| PacketRecord { sport: 1_000 + (round % 10) as u16, ..of(100_000) };
        for second in 0..30 {
            for pid in 1..=2 * CONNECTIONS as u32 {
                (0..12).for_each(|_| record(&mut model, &of(pid)));
            }
            (0..200).for_each(|round| record(&mut model, &mine(round)));
            model.advance(second * SECOND);
        }
        assert!(model.process(100_000).is_some());
        let connections = model.connections().filter(|(key, _)| key.pid == 100_000).count();
        assert_eq!(connections, 10);
        assert_eq!((model.processes().count(), model.connections().count()), (PROCESSES, CONNECTIONS));
    }

    #[test]
    fn what_has_long_been_idle_goes() {
        let mut model = model();
        record(&mut model, &incoming());
        model.advance(59 * SECOND);
        assert_eq!((model.processes().count(), model.connections().count()), (1, 1));
        model.advance(60 * SECOND);
        assert_eq!((model.processes().count(), model.connections().count()), (0, 0));
    }

    #[test]
    fn who_gets_the_number_of_another_process_begins_anew() {
        let mut model = model();
        for (name, dport) in [(&b"first"[..], 1), (b"first", 2), (b"second", 3)] {
            record(&mut model, &PacketRecord { process: comm(name), dport, ..incoming() });
        }
        let names: Vec<_> = model.processes().map(|(_, process)| process.name()).collect();
        assert_eq!(names, [Some(&b"second"[..])]);
        let ports: Vec<_> = model.connections().map(|(key, _)| key.ends.local.port()).collect();
        assert_eq!(ports, [3]);
    }

    #[test]
    fn a_full_memory_has_no_place_for_newcomers_until_it_is_swept() {
        let mut model = model();
        record(&mut model, &incoming());
        model.connections.cells = CELLS;
        record(&mut model, &PacketRecord { pid: 7, ..incoming() });
        record(&mut model, &incoming());
        assert_eq!(model.refused(), (1, 1));
        model.advance(SECOND);
        record(&mut model, &PacketRecord { pid: 7, ..incoming() });
        assert_eq!(model.refused(), (1, 1));
        assert_eq!(model.processes().count(), 2);
    }
}
