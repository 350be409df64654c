//! The state of each service: how its packets' times are distributed, how long it takes to answer, and when it was slow. Fed with events;
//! judges nothing, and looks up only the owners of processes.
//!
//! Its size is bounded: [`SERVICES`] services, [`CONNECTIONS`] connections, [`WINDOWS`] windows of time. Once it has seen the
//! services and the range of their times, an event takes no memory.

use std::{collections::HashMap, mem, ptr, time::Duration};

use net_latency_common::{
    COMM_LEN, ConnectionRecord, Direction, FLAG_DROPPED, FLAG_RETRANS, FLAG_RTO, FLAG_ZERO_WINDOW, Held,
    PART_COPY, PART_CPU, PART_DRIVER, PART_GAP, PART_NET, PART_QDISC, PART_WAIT, is_client, service_port,
};

use super::{
    answers::{Over, Way},
    connections::{Connections, Exchange, Half, Other, Pending},
    dropped::Dropped,
    item::Item,
    listening::Listening,
    machine::Machine,
    opening::Handshake,
    service::Service,
    side::{LONGEST_NS, Side},
    waits::Waits,
    windows::WINDOWS,
};
use crate::{
    accounting::{Challengers, DELAYED_ACK_NS, Ends, Holder, Packet, Places, exchanges::Role, whose_place},
    clock::Clock,
    kernel::tasks::{Allowed, Process},
    packet::event::{Event, Protocol},
};

/// Most services that have a place. Each has some 30 distributions, which take up to 18 KiB each and usually a fifth of that.
const SERVICES: usize = 128;
/// A window's width at first, ns: wide enough for a packet of each busy service, short enough to see a stall by itself.
const WINDOW_NS: u64 = 100_000_000;

/// Bytes from which on a packet counts as a full one: the receiver acknowledges every second of these at once. Smaller ones may
/// wait for its timer.
const FULL: u32 = 1_000;
/// What a client gets after a longer time is no answer any more, ns: few wait so long for one, and some only for news.
const LONGEST_ANSWER_NS: u64 = 10_000_000_000;
/// An answer of which nothing has come for this long is over, ns.
const IDLE_NS: i64 = 1_000_000_000;
/// Packets sent in a row, with nothing received, from which on a connection is in the middle of a stream. An answer of 64 KiB is
/// one or two, since GSO makes one of up to 45 segments.
const STREAM: u32 = 8;

/// Processes of one name at one port that have a place each: workers, of which one may be slow. Where there are more, such as a
/// server that forks for each connection, or clients that come and go, all of them have one. So have those that gave or got too
/// few answers to be judged by themselves.
const ALIKE: usize = 16;

/// Whose port it is: its number and protocol, the network namespace, and whether the process is a client of it. A proxy may serve
/// the port that it asks others for.
type Port = (u16, Protocol, u32, bool);

/// Whose a service is: number and name of the process, and the port. A number may be another's later.
type Key = (u32, [u8; COMM_LEN], Port);

/// Services that may be alike: processes of that name at that port.
type Kind = ([u8; COMM_LEN], Port);

/// All that is known.
#[derive(Clone, Debug)]
pub struct Model {
    /// From which time on a stage is slow, ns.
    pub(super) threshold_ns: u64,
    /// As [`service_port`] takes them.
    ephemeral: u32,
    pub(super) services: Vec<Service>,
    places: HashMap<Key, usize>,
    challengers: Challengers<Key>,
    /// The owner of a process that lived then.
    owners: fn(u32, i64) -> u64,
    /// The network namespace that commands are typed in, if it is known.
    own_netns: Option<u32>,
    /// The places of services that are alike; only one for several that share it.
    alike: HashMap<Kind, Vec<usize>>,
    connections: Connections,
    /// The handshakes of clients' connections that have sent no request yet.
    opening: Places<Ends, Option<Handshake>>,
    waits: Waits,
    /// When the first and the last packet were complete, ns since 1970.
    pub(super) span: Option<(i64, i64)>,
    pub(super) window_ns: u64,
    /// Packets in and out, those without data, and those for whose service there was no place, or no more.
    pub(super) packets: [u64; 2],
    pub(super) control: u64,
    pub(super) refused: u64,
    /// Whether a packet had fine stages.
    pub(super) has_parts: bool,
    /// What the machine says of its CPUs.
    pub(super) machine: Machine,
    /// Listening sockets.
    pub(super) listening: Listening,
    /// What the kernel has dropped.
    pub(super) drops: Vec<Dropped>,
}

impl Model {
    /// Nothing seen. A stage is slow from `threshold` on. The kernel gives out `ephemeral` ports to clients.
    #[must_use]
    pub fn new(threshold: Duration, ephemeral: (u16, u16)) -> Self {
        Self {
            threshold_ns: u64::try_from(threshold.as_nanos()).unwrap_or(u64::MAX),
            ephemeral: u32::from(ephemeral.0) | u32::from(ephemeral.1) << 16,
            services: Vec::new(),
            places: HashMap::new(),
            challengers: Challengers::new(),
            owners: |pid, _| pid.into(),
            own_netns: None,
            alike: HashMap::new(),
            connections: Connections::default(),
            opening: Places::new(),
            waits: Waits::default(),
            span: None,
            window_ns: WINDOW_NS,
            packets: [0; 2],
            control: 0,
            refused: 0,
            has_parts: false,
            machine: Machine::default(),
            listening: Listening::default(),
            drops: Vec::new(),
        }
    }

    /// Shares belong to the owner that `owners` gives for a process, by its number and when it lived; else to each process.
    #[must_use]
    pub(crate) fn with_owners(self, owners: fn(u32, i64) -> u64) -> Self {
        Self { owners, ..self }
    }

    /// Commands are typed in this network namespace.
    #[must_use]
    pub(crate) fn with_netns(self, own_netns: Option<u32>) -> Self {
        Self { own_netns, ..self }
    }

    /// Forgets all that it has seen.
    pub(super) fn clear(&mut self) {
        let Self { threshold_ns, ephemeral, owners, own_netns, .. } = *self;
        *self = Self { threshold_ns, ephemeral, owners, own_netns, ..Self::new(Duration::ZERO, (0, 0)) };
    }

    /// Adds a packet.
    pub fn record(&mut self, event: &Event<'_>) {
        self.packets[event.direction() as usize] += 1;
        self.has_parts |= event.parts().is_some();
        if event.is_control() {
            self.control += 1;
            return;
        }
        let window = self.window(event.wall_ns());
        let ends = Ends::of(event);
        let Some(place) = self.place(event, &ends) else {
            self.refused += 1;
            return;
        };
        let service = &mut self.services[place];
        if let Some(name) = name(event) {
            service.name = name;
        }
        service.remote = ends.remote.ip();
        if let Some(served) = event.served() {
            service.did.add(served.ok(), event.service_syscall());
        }
        let threshold = self.threshold_ns;
        let side = &mut service.sides[event.direction() as usize];
        side.active.add(window);
        if let Some(ns) = event.rtt_ns() {
            side.rtt.add(ns.min(LONGEST_NS));
        }
        let flags = event.record().flags;
        side.dropped += u64::from(flags & FLAG_DROPPED != 0);
        if flags & FLAG_RETRANS != 0 {
            side.resent += 1;
            side.by_timer += u64::from(flags & FLAG_RTO != 0);
            side.add(Item::Resend, event.first_send_age_ns());
            self.hear_dsacks(event, &ends, place);
            if flags & FLAG_RTO != 0
                && let Some((seq, age_ns)) = event.seq().zip(event.first_send_age_ns())
            {
                let Self { connections, services, threshold_ns, .. } = self;
                let owner = services[place].owner;
                let own = connections.find(&ends, owner, place, |half| settle(services, *threshold_ns, half));
                own.awaited.sent_again(seq, age_ns, &mut services[place].unanswered);
            }
            return;
        }
        side.packets += 1;
        let mut is_slow = false;
        let mut add = |side: &mut Side, item: Item, ns: Option<u64>| {
            side.add(item, ns);
            is_slow |= item.is_local() && ns.is_some_and(|ns| ns >= threshold);
        };
        let [first, second, third] = event.stages();
        if let Some(total) = event.total_ns() {
            side.total.add(total.min(LONGEST_NS));
        }
        let parts = event.parts();
        match event.direction() {
            Direction::In => {
                add(side, Item::DrvIp, first);
                add(side, Item::IpTransport, second);
                match parts.filter(|parts| parts[PART_WAIT].is_some()) {
                    Some(parts) => {
                        let all = [
                            (Item::Gap, PART_GAP),
                            (Item::Wait, PART_WAIT),
                            (Item::Cpu, PART_CPU),
                            (Item::Copy, PART_COPY),
                        ];
                        all.into_iter().for_each(|(item, part)| add(side, item, parts[part]));
                        if let Some(ns) = parts[PART_CPU].filter(|ns| *ns >= threshold) {
                            side.holders.add(
                                event.cpu_held_by(),
                                event.pid().zip(event.tid()),
                                ns,
                                event.wall_ns(),
                            );
                        }
                    }
                    None => {
                        add(side, Item::Socket, third);
                        side.unknown += u64::from(third.is_none());
                    }
                }
            }
            Direction::Out => {
                add(side, Item::AppTransport, first);
                add(side, Item::TransportIp, second);
                add(side, Item::IpDrv, third);
                if let Some(parts) = parts {
                    add(side, Item::Qdisc, parts[PART_QDISC]);
                    add(side, Item::Driver, parts[PART_DRIVER]);
                }
            }
        }
        if is_slow {
            side.slow.add(window);
        }
        if let (Direction::Out, Some(name)) = (event.direction(), event.ifname())
            && name.len() <= COMM_LEN
        {
            let mut bytes = [0; COMM_LEN];
            bytes[..name.len()].copy_from_slice(name);
            service.device = Some((bytes, name.len()));
        }
        self.hear_dsacks(event, &ends, place);
        self.follow(event, &ends, place);
        self.take_turns(event, &ends, place);
    }

    /// A client's connection has been established: its process waited for that. Comes before the packets of that connection.
    pub(crate) fn established(&mut self, record: &ConnectionRecord, clock: Clock) {
        let Some((ends, handshake)) = Handshake::of(record, clock) else { return };
        let Handshake { from_ns, to_ns, .. } = handshake;
        self.waits.add(record.pid, record.tid, (from_ns, to_ns));
        *self.opening.find(&ends, (record.pid.into(), 0), |_, _| ()) = Some(handshake);
    }

    /// What the peer has said of segments that it had twice.
    fn hear_dsacks(&mut self, event: &Event<'_>, ends: &Ends, place: usize) {
        let Some(count) = event.dsacks() else { return };
        let Self { connections, services, threshold_ns, .. } = self;
        let owner = services[place].owner;
        let own = connections.find(ends, owner, place, |half| settle(services, *threshold_ns, half));
        services[place].sides[Direction::Out as usize].needless += own.dsacks.tell(count);
    }

    /// What it has to do with the packets before it on its connection.
    fn follow(&mut self, event: &Event<'_>, ends: &Ends, place: usize) {
        let Self { connections, services, ephemeral, threshold_ns, .. } = self;
        let role = ends.role(Some(*ephemeral));
        let other = connections.other(ends, role, event);
        let owner = services[place].owner;
        let own = connections.find(ends, owner, place, |half| settle(services, *threshold_ns, half));
        own.service = Some(place);
        match other {
            Other::Here(other) if other != place => {
                services[place].peer.vote(Some(other));
                services[other].peer.vote(Some(place));
            }
            Other::Elsewhere => services[place].peer.vote(None),
            Other::Here(_) | Other::Unknown => {}
        }
        let (is_client, is_server) = (role == Some(Role::Client), role == Some(Role::Server));
        let out = &mut services[place].sides[Direction::Out as usize];
        let [first, _, third] = event.stages();
        match event.direction() {
            Direction::In => {
                own.row = 0;
                let read_ns = event.wall_ns();
                if let Some(pending) = own.pending.take() {
                    match third.map(|ns| before(read_ns, ns)) {
                        // Which of the two came first is unknown.
                        None => {}
                        Some(came_ns) if pending.is_acked_with(came_ns) && is_client => {
                            out.add(Item::Answer, pending.net_ns);
                        }
                        // The next request, whenever the client had one.
                        Some(came_ns) if pending.is_acked_with(came_ns) => {}
                        Some(came_ns) if came_ns > pending.acked_ns && is_client => {
                            let is_counted = acknowledged(out, &pending, true);
                            let waited = came_ns.abs_diff(pending.acked_ns);
                            let before = pending.net_ns.filter(|_| !is_counted).unwrap_or(0);
                            let answer = waited.saturating_add(before);
                            if answer < LONGEST_ANSWER_NS {
                                out.add(Item::Answer, Some(answer));
                            }
                        }
                        // It was there before; or what came with the ACK is read later, since bytes before it were missing.
                        Some(_) => own.pending = Some(pending),
                    }
                }
                if is_server {
                    own.exchange = Exchange::Asked(read_ns);
                }
            }
            Direction::Out => {
                own.row = own.row.saturating_add(1);
                let is_full = event.record().len >= FULL || event.record().segs > 1;
                if first.is_some_and(|ns| ns >= *threshold_ns) {
                    out.held += 1;
                    out.held_in_stream += u64::from(is_full && own.row >= STREAM);
                    out.held_by_peer += u64::from(event.record().flags & FLAG_ZERO_WINDOW != 0);
                    if let Some(held) = event.held() {
                        out.held_for[held as usize - 1] += 1;
                    }
                    let is_by_window = event.held() == Some(Held::ReceiveWindow)
                        || event.record().flags & FLAG_ZERO_WINDOW != 0;
                    if let (true, Other::Here(peer)) = (is_by_window, other) {
                        out.add_for_peer(peer, 1);
                    }
                }
                let parts = event.parts();
                let part = |part: usize| parts.and_then(|parts| parts[part]);
                let [driver, net] = [PART_DRIVER, PART_NET].map(part);
                let packet = Packet::of_log(event);
                let (queued_ns, written_ns) = (packet.last_stage_ns, packet.begun_ns());
                own.exchange = match (own.exchange, written_ns) {
                    (Exchange::Asked(read), Some(written)) if written >= read => {
                        out.add(Item::Service, Some(written.abs_diff(read)));
                        Exchange::Answered
                    }
                    // Written before the last one was read: no answer to it.
                    (Exchange::Asked(read), Some(_)) => Exchange::Asked(read),
                    _ => Exchange::Answered,
                };
                if let Some(pending) = own.pending.take() {
                    // If this one was sent before that ACK came, the peer had no reason to wait with it.
                    let is_last = queued_ns.is_none_or(|queued| queued >= pending.acked_ns);
                    acknowledged(out, &pending, is_last);
                }
                // Without fine stages, and of UDP, nothing is known but when it left.
                let is_known = parts.is_none() || net.is_some() || event.protocol() == Protocol::Udp;
                own.pending = is_known.then_some(Pending {
                    net_ns: net.map(|net| net.saturating_sub(driver.unwrap_or(0))),
                    acked_ns: packet.acked_ns().unwrap_or(event.wall_ns()),
                    is_full,
                    is_even: event.record().segs > 1 && event.record().segs.is_multiple_of(2),
                });
            }
        }
    }

    /// What it has to do with requests and answers.
    fn take_turns(&mut self, event: &Event<'_>, ends: &Ends, place: usize) {
        let Some(role) = ends.role(Some(self.ephemeral)) else { return };
        let (pid, tid) = (event.record().pid, event.tid().unwrap_or(0));
        let Self { connections, waits, services, .. } = self;
        let Some(own) = connections.get_mut(ends) else { return };
        if event.protocol() == Protocol::Udp && role == Role::Client {
            own.awaited.see(event.direction(), event.wall_ns(), &mut services[place].unanswered);
        } else if event.direction() == Direction::In {
            own.awaited.came();
        }
        let asked = |tid, span, except_ns| waits.within(pid, tid, span, except_ns);
        let way = Way::of(event);
        let over = own.turns.see(role, event.direction(), way, asked);
        if (role, event.direction()) == (Role::Client, Direction::Out)
            && let Some(handshake) = self.opening.get_mut(ends).and_then(Option::take)
            && let Some(way) = way
        {
            own.turns.connect_ns = handshake.before(way.from_ns);
            services[place].opened.add(&handshake, own.turns.connect_ns);
        }
        if let Some(waited) = own.turns.waited().filter(|_| event.direction() == Direction::In) {
            waits.add(pid, tid, waited);
            if event.protocol() == Protocol::Udp {
                connections.answered(ends, waited);
            }
        }
        if let Some(over) = over {
            self.count_answer(ends, place, role, over);
        }
    }

    /// Counts an answer that is over, with what the other end tells of it, if that is on this machine.
    fn count_answer(&mut self, ends: &Ends, place: usize, role: Role, over: Over) {
        let Self { connections, services, threshold_ns, .. } = self;
        let Over::Answer(mut answer) = over else {
            services[place].answers.unknown += 1;
            return;
        };
        let partner = connections.partner(ends);
        match role {
            Role::Server => {
                services[place].answers.add(&answer, *threshold_ns);
                let last = connections.get_mut(ends).and_then(|own| own.turns.last);
                let client = partner.and_then(|partner| connections.get_mut(&partner));
                let Some((last, client)) = last.zip(client) else { return };
                if let Some(mut waiting) = client.turns.waiting
                    && let Some(service) = client.service
                    && waiting.split(&last)
                {
                    client.turns.waiting = None;
                    services[service].answers.add(&waiting, *threshold_ns);
                }
            }
            Role::Client => {
                let theirs = partner.and_then(|partner| connections.get_mut(&partner)?.turns.last);
                let is_split = theirs.is_some_and(|theirs| answer.split(&theirs));
                let Some(own) = connections.get_mut(ends) else { return };
                let before = own.turns.waiting.take();
                own.turns.waiting = Some(answer).filter(|_| !is_split && partner.is_some());
                let known = Some(answer).filter(|_| own.turns.waiting.is_none());
                for answer in before.iter().chain(&known) {
                    services[place].answers.add(answer, *threshold_ns);
                }
            }
        }
    }

    /// Counts the answers of which nothing has come since `before_ns`, ns since 1970.
    fn settle(&mut self, before_ns: i64) {
        let mut over = Vec::new();
        let Self { connections, services, span, ephemeral, .. } = self;
        connections.each_end(|ends, half| {
            if let Some((service, (_, last_ns))) = half.service.zip(*span) {
                half.awaited.give_up(last_ns, &mut services[service].unanswered);
            }
            if let Some((service, role)) = half.service.zip(ends.role(Some(*ephemeral)))
                && half.turns.is_open_since().is_some_and(|last_ns| last_ns < before_ns)
                && let Some(answer) = half.turns.finish()
            {
                over.push((*ends, service, role, answer));
            }
        });
        // What a server had a request for is known before its client asks for it.
        over.sort_by_key(|(_, _, role, _)| *role == Role::Client);
        for (ends, service, role, answer) in over {
            self.count_answer(&ends, service, role, answer);
        }
        let Self { connections, services, threshold_ns, .. } = self;
        connections.each(|half| {
            let waiting = half.turns.waiting.take_if(|answer| answer.ended_ns() < before_ns);
            if let Some((service, answer)) = half.service.zip(waiting) {
                services[service].answers.add(&answer, *threshold_ns);
            }
        });
    }

    /// Looks up what is not known yet: the process that had a CPU, and where a thread that waited for one may run.
    pub(crate) fn ask(
        &mut self,
        process: impl Fn(u32, i64) -> Option<Process>,
        allowed: impl Fn(u32, u32, i64) -> Option<Allowed>,
    ) {
        for side in self.services.iter_mut().flat_map(|service| &mut service.sides) {
            side.holders.ask(&process, &allowed);
        }
    }

    /// Counts the answers that seem to be over.
    pub(super) fn settle_idle(&mut self) {
        if let Some((_, last_ns)) = self.span {
            self.settle(last_ns.saturating_sub(IDLE_NS));
        }
    }

    /// Each process that is known, and when it lived, ns since 1970.
    pub(crate) fn processes(&self) -> impl Iterator<Item = (u32, i64)> {
        let one = |service: &Service| Some((service.processes().pid()?, service.met_ns));
        self.services.iter().filter(|service| service.is_used()).filter_map(one)
    }

    /// What the machine says of its CPUs.
    pub(crate) fn set_machine(&mut self, machine: Machine) {
        self.machine = machine;
    }

    /// What connections waited for.
    pub(crate) fn set_listening(&mut self, listening: Listening) {
        self.listening = listening;
    }

    /// What the kernel has dropped meanwhile.
    pub(crate) fn set_drops(&mut self, drops: Vec<Dropped>) {
        self.drops = drops;
    }

    /// Nothing more will come.
    pub(crate) fn finish(&mut self) {
        self.settle(i64::MAX);
        let Self { connections, services, threshold_ns, .. } = self;
        connections.each(|half| settle(services, *threshold_ns, half));
        for kind in self.alike.keys().copied().collect::<Vec<_>>() {
            self.join(&kind, |service| service.is_used() && !service.is_judged());
        }
    }

    /// The number of the window of this time. Times before the first are in the first one.
    fn window(&mut self, wall_ns: i64) -> usize {
        let (first, last) = self.span.get_or_insert((wall_ns, wall_ns));
        *last = wall_ns.max(*last);
        let passed = wall_ns.saturating_sub(*first).max(0).unsigned_abs();
        while passed / self.window_ns >= WINDOWS as u64 {
            self.window_ns *= 2;
            for side in self.services.iter_mut().flat_map(|service| &mut service.sides) {
                side.active.halve();
                side.slow.halve();
            }
        }
        // It is below `WINDOWS`.
        (passed / self.window_ns) as usize
    }

    /// The place of the service, if there is one.
    fn place(&mut self, event: &Event<'_>, ends: &Ends) -> Option<usize> {
        let (pid, protocol) = (event.record().pid, event.protocol());
        let (local, remote) = (ends.local.port(), ends.remote.port());
        let port = service_port(local, remote, self.ephemeral);
        let at = (port, protocol, ends.netns, is_client(local, remote, self.ephemeral));
        let key = (pid, event.process().map(padded).unwrap_or_default(), at);
        if let Some(place) = self.places.get(&key) {
            return Some(*place);
        }
        let kind = name(event).filter(|_| pid > 0).map(|name| (name, at));
        if let Some(kind) = kind {
            match self.alike.get(&kind).map(Vec::as_slice) {
                Some([place, ..]) if self.services[*place].is_of_several => return Some(*place),
                Some(places) if places.len() == ALIKE => return self.join(&kind, |_| true),
                _ => {}
            }
        }
        let is_full = self.services.len() == SERVICES;
        let (place, owner) = if is_full {
            self.give_way(key, event.wall_ns())?
        } else {
            (self.services.len(), (self.owners)(pid, event.wall_ns()))
        };
        self.places.insert(key, place);
        if let Some(kind) = kind {
            self.alike.entry(kind).or_default().push(place);
        }
        let service = Service::new(event, ends, port, owner, self.ephemeral, self.own_netns);
        if is_full {
            self.services[place] = service;
        } else {
            self.services.push(service);
        }
        Some(place)
    }

    /// The place of a service that makes way for this one, which has none, and this one's owner.
    fn give_way(&mut self, key: Key, wall_ns: i64) -> Option<(usize, u64)> {
        let packets = self.challengers.count(key)?;
        let owner = (self.owners)(key.0, wall_ns);
        let all = self.services.iter().enumerate();
        let holders: Vec<_> = all
            .map(|(place, service)| Holder { place, owner: service.owner, packets: service.packets() })
            .collect();
        let wins = |least| Challengers::<Key>::wins(packets, least);
        let Holder { place, packets: least, .. } = whose_place(&holders, owner, wins)?;
        self.challengers.remove(&key);
        self.refused += least;
        self.places.retain(|_, other| *other != place);
        self.alike.values_mut().for_each(|places| places.retain(|other| *other != place));
        self.alike.retain(|_, places| !places.is_empty());
        for service in &mut self.services {
            service.peer.rename(|peer| Some(peer).filter(|peer| *peer != Some(place)));
            service.sides.iter_mut().for_each(|side| side.for_peers.retain(|(peer, _)| *peer != place));
        }
        self.connections.each(|half| {
            if half.service == Some(place) {
                *half = Half::default();
            }
        });
        Some((place, owner))
    }

    /// Makes one service of those that are alike, if `is_one` holds for two or more; returns its place.
    fn join(&mut self, kind: &Kind, is_one: impl Fn(&Service) -> bool) -> Option<usize> {
        let mut alone = self.alike.get(kind)?.clone();
        let places: Vec<_> = alone.extract_if(.., |place| is_one(&self.services[*place])).collect();
        let [first, _, ..] = places[..] else { return None };
        for place in &places[1..] {
            let Service { sides, answers, did, opened, unanswered, .. } = &mut self.services[*place];
            let (sides, answers, did) = (mem::take(sides), mem::take(answers), mem::take(did));
            let (opened, unanswered) = (mem::take(opened), mem::take(unanswered));
            self.services[first].answers.join(&answers);
            self.services[first].did.join(&did);
            self.services[first].opened.join(&opened);
            self.services[first].unanswered.join(&unanswered);
            for (own, other) in self.services[first].sides.iter_mut().zip(&sides) {
                own.join(other);
            }
        }
        let moved = |place: &mut usize| {
            if places.contains(place) {
                *place = first;
            }
        };
        self.places.values_mut().for_each(moved);
        for service in &mut self.services {
            service.peer.rename(|mut peer| {
                peer.iter_mut().for_each(moved);
                Some(peer)
            });
        }
        let sides = self.services.iter_mut().flat_map(|service| &mut service.sides);
        sides.flat_map(|side| &mut side.for_peers).for_each(|(peer, _)| moved(peer));
        self.connections.each(|half| half.service.iter_mut().for_each(moved));
        self.services[first].is_of_several = true;
        alone.insert(0, first);
        self.alike.insert(*kind, alone);
        Some(first)
    }

    /// Packets of connections of which nothing was known any more, since there are more than there is room for.
    pub(super) fn forgotten(&self) -> u64 {
        self.connections.came_back()
    }

    /// The other end of a service, if that is on this machine.
    pub(super) fn peer(&self, service: &Service) -> Option<&Service> {
        service.peer().and_then(|peer| self.services.get(peer))
    }

    /// All of this machine that are the other end for most of their own packets, or of its: a server may be several processes.
    pub(super) fn other_ends<'a>(&'a self, service: &'a Service) -> impl Iterator<Item = &'a Service> {
        let is_peer = |of: &Service, other: &Service| self.peer(of).is_some_and(|peer| ptr::eq(peer, other));
        self.services.iter().filter(move |other| is_peer(service, other) || is_peer(other, service))
    }

    /// Services with packets.
    pub(super) fn used(&self) -> usize {
        self.services.iter().filter(|service| service.is_used()).count()
    }
}

/// The name of the process, or where that is unknown of the thread, ended by 0.
fn name(event: &Event<'_>) -> Option<[u8; COMM_LEN]> {
    event.process().or(event.comm()).map(padded)
}

fn padded(known: &[u8]) -> [u8; COMM_LEN] {
    let mut name = [0; COMM_LEN];
    name[..known.len()].copy_from_slice(known);
    name
}

/// N ns earlier.
fn before(wall_ns: i64, ns: u64) -> i64 {
    wall_ns.saturating_sub_unsigned(ns)
}

/// Nothing more will come of it.
fn settle(services: &mut [Service], threshold_ns: u64, half: &mut Half) {
    let Some(service) = half.service else { return };
    let service = &mut services[service];
    if let Some(pending) = half.pending.take() {
        acknowledged(&mut service.sides[Direction::Out as usize], &pending, true);
    }
    let waiting = half.turns.waiting.take();
    match half.turns.finish() {
        Some(Over::Answer(answer)) => service.answers.add(&answer, threshold_ns),
        Some(Over::Unknown) => service.answers.unknown += 1,
        None => {}
    }
    if let Some(answer) = waiting {
        service.answers.add(&answer, threshold_ns);
    }
}

/// Counts the way of a packet whose ACK came by itself, if it tells something, and whether it does. `is_last`: there was nothing
/// behind it, so that the peer may have waited for more, or for an answer to send the ACK with.
fn acknowledged(side: &mut Side, pending: &Pending, is_last: bool) -> bool {
    let Some(net_ns) = pending.net_ns else { return false };
    let is_awaited = if is_last { pending.is_even } else { pending.is_full };
    let is_delayed = DELAYED_ACK_NS.contains(&net_ns) && !is_awaited;
    if is_delayed {
        side.delayed_acks += 1;
    } else {
        side.add(Item::Net, Some(net_ns));
    }
    !is_delayed
}
