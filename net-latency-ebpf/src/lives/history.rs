//! Histories: steps that are drawn, what each does, and how a history that shows a fault is made short.

use core::fmt::Write as _;
use std::{format, string::String, vec::Vec};

use net_latency_common::{
    Counter, Counters, Direction, FineRecord, GroupBy, Offsets, PARTS, PacketRecord, Served, hook_key,
};

use super::{
    choice::Choice,
    counted,
    flow::Flow,
    journeys::{self, About, FUNCTION},
    out::{self, Out},
    processes::{self, Filter, Processes},
    readers::{self, OfKernel},
    tcp_in::{Connection, Reading},
    truth::{Entry, Hook, Packet},
    udp_in::{self, Udp},
    wanted::{self, Wanted},
    world::{Kernel, Skb, World, hook, note, skb as hooked},
};
use crate::{
    bpf::host::{CPUS, Machine},
    emit::{counters, ring},
    journey::{begin, heads},
    kernel::memory::Probed,
    leaving::leaving_lines,
    skb_stamps::was_segmented,
    skips,
    tcp::{in_flight::waiting_lines, in_flight_packets as in_flight, shares, waiting_segments},
    udp::{sending, waiting_datagrams},
};

/// Something that happens. Numbers count modulo what there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A driver gives a segment to a CPU.
    Segment(Segment),
    /// What a CPU works on goes on.
    Go { cpu: u8, how: Fate },
    /// What waits somewhere goes on, on this CPU.
    Resume { cpu: u8, which: u8 },
    /// A task reads; it begins a call if it is in none.
    Read { task: u8, connection: u8, len: u8, how: Reading },
    /// A task ends its call.
    Unlock { connection: u8 },
    /// A socket is closed, or another one with the same ends is there.
    Close { connection: u8 },
    /// A packet socket lets an skb go: it was read, or is dropped.
    Let { which: u8, drops: bool },
    /// TCP makes room: what waits to be read becomes one skb.
    Collapse { connection: u8 },
    /// Of tasks.
    Process(processes::Step),
    /// Of UDP's.
    Datagram(udp_in::Step),
    /// A step of the scheduler.
    Scheduler(readers::Step),
    /// Time passes.
    Wait { ms: u8 },
    /// Something goes out.
    Out(out::Step),
}

/// A segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) cpu: u8,
    pub(super) connection: u8,
    /// It has the bytes of the segment N before this one; 0 for new bytes.
    pub(super) again: u8,
    /// It begins N times 5 bytes behind the end of the bytes sent before, or in front of it.
    pub(super) from: i8,
    /// It has N times 10 bytes.
    pub(super) len: u8,
    /// GRO has made it of N segments, if there are two or more.
    pub(super) segs: u8,
    /// The CPU takes it to TCP at once.
    pub(super) goes: bool,
    /// Its socket is found early (`tcp_v4_early_demux`).
    pub(super) is_found: bool,
    /// TCP can join it to the skb before it (`tcp_try_coalesce`).
    pub(super) joins: bool,
}

/// What becomes of an skb before its next place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Nothing special.
    Plain,
    /// It waits: in a CPU's backlog, for a verdict (NFQUEUE), for GRO.
    Waits,
    /// A packet socket of all protocols gets a clone (`packet_rcv`).
    Tapped,
    /// A packet socket that is bound to the device and its protocol shares it: IP goes on with a clone (`ip_rcv_core`).
    Shared,
    /// It is copied: `skb_pp_cow_data` for generic XDP, `skb_unshare`, `nfqnl_mangle`.
    Copied,
    /// It gets another buffer (`pskb_expand_head`).
    Expanded,
    /// It enters the stack again, as a VLAN's, a bridge's or after a redirect.
    Again,
    /// This machine forwards it, and gets it again in the other namespace.
    Forwarded,
    /// A bridge, a flowtable, IPVS or a redirect sends it on past IP, and this machine gets it again.
    SentOn,
    /// A bridge sends a clone of it on, by each port, and this machine gets that.
    Flooded,
    /// It is dropped (`kfree_skb`).
    Dropped,
    /// It ends where no hook sees it: stolen by netfilter, sent on by a driver.
    Ends,
}

const FATES: [Fate; 12] = [
    Fate::Plain,
    Fate::Waits,
    Fate::Tapped,
    Fate::Shared,
    Fate::Copied,
    Fate::Expanded,
    Fate::Again,
    Fate::Forwarded,
    Fate::SentOn,
    Fate::Flooded,
    Fate::Dropped,
    Fate::Ends,
];

/// Where an skb is on its way in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Device,
    Ip,
}

#[derive(Clone, Copy, Debug)]
struct Travelling {
    skb: Skb,
    place: Place,
}

/// A kernel, which filters, and steps.
#[derive(Clone, Debug)]
pub(super) struct History {
    pub(super) kernel: Kernel,
    pub(super) seed: u64,
    pub(super) is_shuffled: bool,
    /// Entries of hash tables, at most.
    pub(super) entries: usize,
    /// No entry finds a slot: all are a hash table's.
    pub(super) full: bool,
    pub(super) control: bool,
    /// One kprobe of N is skipped; none if it is 0.
    pub(super) skips: u32,
    pub(super) filter: Filter,
    /// `--stages fine`.
    pub(super) fine: bool,
    /// TCP's hook on the way out is IP's function (`tcp_header_only`).
    pub(super) header_only: bool,
    /// The connection of IPv6 is a subflow of MPTCP.
    pub(super) multipath: bool,
    /// Its times are counted too, by this.
    pub(super) counted_by: Option<GroupBy>,
    /// Packets are followed by `journey` too: those that arrive or, where some go out, these.
    pub(super) journeys: bool,
    /// Its lines are filtered too, by this.
    pub(super) wanted: Option<Wanted>,
    pub(super) steps: Vec<Step>,
}

impl History {
    /// One of these steps, of which nothing else is special.
    pub(super) fn of(steps: &[Step]) -> Self {
        Self {
            kernel: Kernel { shows_tcp_drops: true, is_direct: false, is_rt: false },
            seed: 1,
            is_shuffled: false,
            entries: usize::MAX,
            full: false,
            control: false,
            header_only: false,
            multipath: false,
            counted_by: None,
            journeys: false,
            wanted: None,
            skips: 0,
            filter: Filter::Off,
            fine: false,
            steps: steps.into(),
        }
    }

    /// Runs it, and tells it if it shows a fault.
    pub(super) fn expect_true(&self) {
        if let Err(fault) = self.run() {
            panic!("{fault}\n{}", self.tell());
        }
    }

    /// The history of this seed.
    pub(super) fn draw(seed: u64) -> Self {
        let mut choice = Choice::new(seed);
        let kernel = Kernel {
            shows_tcp_drops: !choice.one_in(4),
            is_direct: choice.one_in(2),
            is_rt: choice.one_in(4),
        };
        let filter = Filter::draw(&mut choice);
        // TCP alone, UDP alone, or both.
        let of_udp = [0, 0, 16, 24][choice.below(4) as usize];
        let count = 4 + choice.below(60);
        // Some histories have many of one kind.
        let favourite = choice.of(&FATES);
        let out_favourite = out::favourite(&mut choice);
        // In, out, or both. Tasks that send neither come nor go.
        let ways = choice.below(if filter == Filter::Off { 3 } else { 6 });
        let changing = if matches!(ways, 1 | 2) { Filter::Off } else { filter };
        let fine = choice.one_in(3);
        let step = |choice: &mut Choice| {
            if ways == 1 || ways == 2 && choice.one_in(2) {
                Step::Out(out::Step::draw(choice, out_favourite))
            } else {
                Step::draw(choice, favourite, of_udp, changing, fine)
            }
        };
        Self {
            kernel,
            seed,
            is_shuffled: choice.one_in(2),
            entries: if choice.one_in(8) { 2 + choice.below(14) as usize } else { usize::MAX },
            full: choice.one_in(8),
            control: choice.one_in(4),
            skips: if choice.one_in(8) { 2 + choice.below(8) } else { 0 },
            filter,
            fine,
            header_only: choice.one_in(4),
            multipath: choice.one_in(8),
            counted_by: if choice.one_in(8) { Some(choice.of(&counted::BY)) } else { None },
            journeys: choice.one_in(8),
            wanted: if choice.one_in(20) { Some(choice.of(&wanted::ALL)) } else { None },
            steps: (0..count).map(|_| step(&mut choice)).collect(),
        }
    }

    /// How many lines there are, if all that they show is true; else what isn't.
    pub(super) fn run(&self) -> Result<u64, String> {
        let run = || {
            let lines = Run::new(self, false).run(&self.steps).1?;
            // A small table has no room for some counts either, which are lost then; and more of it is free behind a filter.
            let roomy = || Self { entries: usize::MAX, ..self.clone() };
            if let Some(by) = self.counted_by {
                let roomy = roomy();
                counted::expect_same(by, self.fine, |before| roomy.lines(before))?;
            }
            if let Some(wanted) = self.wanted {
                // Which hooks are skipped is not the same the second time.
                let roomy = Self { skips: 0, ..roomy() };
                let has_processes = self.filter != Filter::Off;
                wanted::expect_same(wanted, has_processes, self.seed, |before| roomy.lines(before))?;
            }
            Ok(lines)
        };
        std::panic::catch_unwind(run).unwrap_or_else(|_| Err("panic".into()))
    }

    /// Its lines and counters, with `before` done to the machine before its first step.
    fn lines(&self, before: &dyn Fn()) -> (Vec<FineRecord>, Counters) {
        let mut run = Run::new(self, false);
        before();
        for step in &self.steps {
            run.step(*step);
        }
        let lines = if self.fine {
            ring::take_records()
        } else {
            let plain: Vec<PacketRecord> = ring::take_records();
            plain
                .into_iter()
                .map(|packet| FineRecord { packet, parts: [0; PARTS], served: Served::NONE })
                .collect()
        };
        (lines, counters::total())
    }

    /// What happens, line by line, and what of it is shown falsely.
    pub(super) fn tell(&self) -> String {
        let (log, result) = Run::new(self, true).run(&self.steps);
        let mut text = format!("{self:#?}\n");
        for line in log.unwrap_or_default() {
            let _ = writeln!(text, "{line}");
        }
        let _ = writeln!(text, "{result:?}");
        text
    }

    /// The shortest history that still shows a fault.
    pub(super) fn shrink(&self) -> Self {
        let mut best = self.clone();
        let is_faulty = |history: &Self| history.run().is_err();
        loop {
            let before = best.steps.len();
            let mut size = best.steps.len().next_power_of_two();
            while size > 0 {
                let mut at = 0;
                while at < best.steps.len() {
                    let mut shorter = best.clone();
                    shorter.steps.drain(at..(at + size).min(best.steps.len()));
                    if is_faulty(&shorter) {
                        best = shorter;
                    } else {
                        at += size;
                    }
                }
                size /= 2;
            }
            let mut is_simpler = false;
            for at in 0..best.steps.len() {
                for simpler in best.steps[at].simpler() {
                    let mut other = best.clone();
                    other.steps[at] = simpler;
                    if is_faulty(&other) {
                        best = other;
                        is_simpler = true;
                    }
                }
            }
            for plainer in [
                Self { is_shuffled: false, ..best.clone() },
                Self { entries: usize::MAX, ..best.clone() },
                Self { full: false, ..best.clone() },
                Self { control: false, ..best.clone() },
                Self { skips: 0, ..best.clone() },
                Self { filter: Filter::Off, ..best.clone() },
                Self { fine: false, ..best.clone() },
                Self { header_only: false, ..best.clone() },
                Self { multipath: false, ..best.clone() },
                Self { counted_by: None, ..best.clone() },
                Self { wanted: None, ..best.clone() },
                Self { journeys: false, ..best.clone() },
            ] {
                if is_faulty(&plainer) {
                    best = plainer;
                }
            }
            if best.steps.len() == before && !is_simpler {
                return best;
            }
        }
    }
}

impl Step {
    /// Of 32 steps N of those that bring and take packets are UDP's.
    fn draw(choice: &mut Choice, favourite: Fate, of_udp: u32, filter: Filter, fine: bool) -> Self {
        if fine && choice.one_in(4) {
            return Self::Scheduler(readers::Step::draw(choice));
        }
        if filter != Filter::Off && choice.one_in(6) {
            return Self::Process(processes::Step::draw(choice));
        }
        let cpu = u8::from(choice.one_in(3));
        let connection = u8::from(choice.one_in(3));
        let kind = choice.below(32);
        let is_go = (9..=23).contains(&kind);
        if !is_go && choice.below(24) < of_udp {
            return Self::Datagram(udp_in::Step::draw(choice));
        }
        match kind {
            0..=8 => Self::Segment(Segment {
                cpu,
                connection,
                again: if choice.one_in(5) { 1 + choice.below(3) as u8 } else { 0 },
                from: if choice.one_in(5) { choice.below(13) as i8 - 6 } else { 0 },
                len: if choice.one_in(6) { 0 } else { 1 + choice.below(4) as u8 },
                segs: if choice.one_in(8) { choice.below(5) as u8 } else { 0 },
                goes: choice.one_in(2),
                is_found: choice.one_in(2),
                joins: !choice.one_in(3),
            }),
            9..=22 => {
                let how = match choice.below(4) {
                    0 => choice.of(&FATES),
                    1 => favourite,
                    _ => Fate::Plain,
                };
                Self::Go { cpu, how }
            }
            23 => Self::Resume { cpu, which: choice.below(8) as u8 },
            24..=27 => Self::Read {
                task: choice.below(4) as u8,
                connection,
                len: 1 + choice.below(40) as u8,
                how: choice.of(&[
                    Reading::Copy,
                    Reading::Copy,
                    Reading::Copy,
                    Reading::Peek,
                    Reading::Splice,
                ]),
            },
            28 | 29 => Self::Unlock { connection },
            30 => match choice.below(4) {
                0 => Self::Close { connection },
                1 => Self::Collapse { connection },
                _ => Self::Let { which: choice.below(8) as u8, drops: choice.one_in(2) },
            },
            _ => Self::Wait { ms: 1 << choice.below(8) as u8 },
        }
    }

    /// Steps that say less.
    fn simpler(self) -> Vec<Self> {
        match self {
            Self::Go { cpu, how } if how != Fate::Plain => [Self::Go { cpu, how: Fate::Plain }].into(),
            Self::Segment(segment) => [
                Segment { cpu: 0, ..segment },
                Segment { goes: true, ..segment },
                Segment { connection: 0, ..segment },
                Segment { from: 0, ..segment },
                Segment { again: 0, ..segment },
                Segment { len: 1, ..segment },
                Segment { segs: 0, ..segment },
                Segment { is_found: false, ..segment },
                Segment { joins: false, ..segment },
            ]
            .map(Self::Segment)
            .into_iter()
            .filter(|other| *other != self)
            .collect(),
            Self::Read { task, connection, len, how } => [
                Self::Read { task: 0, connection, len, how },
                Self::Read { task, connection, len: 40, how },
                Self::Read { task, connection, len, how: Reading::Copy },
            ]
            .into_iter()
            .filter(|other| *other != self)
            .collect(),
            Self::Process(step) => step.simpler().into_iter().map(Self::Process).collect(),
            Self::Scheduler(step) => step.simpler().into_iter().map(Self::Scheduler).collect(),
            Self::Datagram(step) => step.simpler().into_iter().map(Self::Datagram).collect(),
            Self::Out(step) => {
                step.simpler().into_iter().map(Self::Out).filter(|other| *other != self).collect()
            }
            _ => Vec::new(),
        }
    }

    /// On which CPU it happens, if that is said.
    fn cpu(self) -> Option<u8> {
        match self {
            Self::Segment(Segment { cpu, .. }) | Self::Go { cpu, .. } | Self::Resume { cpu, .. } => Some(cpu),
            Self::Datagram(step) => Some(step.cpu()),
            _ => None,
        }
    }
}

struct Run {
    world: World,
    connections: Vec<Connection>,
    working: [Option<Travelling>; CPUS],
    waiting: Vec<Travelling>,
    /// What packet sockets have.
    tapped: Vec<Skb>,
    /// Whether no table is small.
    is_plain: bool,
    udp: Udp,
    processes: Processes,
    /// Whether nothing is evicted, nor finds no room.
    has_room: bool,
    /// Whether all entries are in small hash tables.
    evicts: bool,
    multipath: bool,
    out: Option<Out>,
    of_kernel: OfKernel,
    /// Whether no process comes, ends or becomes another program.
    names_stay: bool,
    /// The tasks that are asleep in a call on these connections.
    asleep: Vec<Option<usize>>,
}

impl Run {
    fn new(history: &History, tells: bool) -> Self {
        let mut world = World::new(history.kernel, history.seed, history.is_shuffled);
        let processes = Processes::new(&mut world, history.filter);
        world.truth.is_filtered = history.filter != Filter::Off;
        world.truth.is_by_name = matches!(history.filter, Filter::Named(_));
        Machine::with(|machine| {
            machine.entries = history.entries;
            machine.settings.control = u32::from(history.control);
            machine.settings.tcp_header_only = u32::from(history.header_only);
            machine.settings.fine = u32::from(history.fine);
        });
        world.skips = history.skips;
        world.truth.has_slots = !history.full;
        if history.full {
            skips::begin(hook_key("slots::full"));
        }
        if tells {
            world.log = Some(Vec::new());
        }
        let of_kernel = OfKernel::new(&world);
        let goes_out = history.steps.iter().any(|step| matches!(step, Step::Out(_)));
        if history.journeys {
            world.begin_journeys(goes_out);
        }
        let mut run = Self {
            world,
            connections: Vec::new(),
            working: [None; CPUS],
            waiting: Vec::new(),
            tapped: Vec::new(),
            is_plain: history.entries == usize::MAX && history.skips == 0,
            udp: Udp::default(),
            processes,
            has_room: history.entries == usize::MAX,
            evicts: history.full && history.entries != usize::MAX,
            multipath: history.multipath,
            out: None,
            of_kernel,
            names_stay: !history.steps.iter().any(|step| matches!(step, Step::Process(_))),
            asleep: Vec::new(),
        };
        for number in 0..2_u8 {
            run.connect(number);
        }
        if goes_out {
            let ends =
                [0, 1].map(|number: usize| [run.connections[number].sk, run.connections[number].whole]);
            // A packet in no slot does not wait for fine stages.
            run.world.truth.out.is_limited = history.entries != usize::MAX
                || history.fine && history.full
                || history.filter != Filter::Off;
            let mut out = Out::new(&mut run.world, ends);
            out.has_control = history.control;
            out.is_header_only = history.header_only;
            run.out = Some(out);
        }
        run
    }

    fn connect(&mut self, number: u8) {
        let world = &mut self.world;
        let is_v6 = number == 1;
        let flow = Flow {
            is_v6,
            addresses: [
                [10, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
                [10, 0, 0, 2, 3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8],
            ],
            remote_port: 40_000 + u16::from(number),
            local_port: 80,
            net: 0,
        };
        let first = world.first_number();
        let ends = world.ends(&flow, first);
        world.truth.connections.push(ends);
        let number = world.truth.connections.len() - 1;
        let mut connection = Connection::new(world, flow, number);
        connection.is_multipath = self.multipath && is_v6;
        if connection.is_multipath && Machine::with(|machine| machine.offsets.mptcp_sock_write_seq != 0) {
            connection.be_followed(world);
        }
        self.connections.push(connection);
        self.asleep.push(None);
    }

    fn run(mut self, steps: &[Step]) -> (Option<Vec<String>>, Result<u64, String>) {
        for step in steps {
            note!(self.world, "{step:?}");
            self.step(*step);
        }
        let result = self.check().and_then(|lines| {
            let World { journeys, departures, truth, .. } = &self.world;
            // What MPTCP takes, it says by other functions.
            let is_whole = self.is_plain && !self.multipath;
            journeys.iter().try_for_each(|looks| journeys::check(&self.world, looks, is_whole))?;
            departures.iter().try_for_each(|departures| departures.check(truth))?;
            self.check_end().map(|()| lines)
        });
        (self.world.log.take(), result)
    }

    fn on(&self, cpu: u8) -> usize {
        let cpu = usize::from(cpu) % CPUS;
        Machine::with(|machine| machine.cpu = cpu);
        self.world.run_as(None);
        cpu
    }

    fn step(&mut self, step: Step) {
        if !matches!(step, Step::Go { .. } | Step::Wait { .. }) {
            let cpu = step.cpu().map_or_else(|| Machine::with(|machine| machine.cpu), |cpu| self.on(cpu));
            self.udp.finish(&mut self.world, cpu);
        }
        if let Step::Out(_) = step {
            // Packets go out by several CPUs.
            for cpu in 0..CPUS {
                self.on(cpu as u8);
                self.udp.finish(&mut self.world, cpu);
            }
        }
        match step {
            Step::Segment(segment) => {
                self.segment(segment);
                if segment.goes {
                    let cpu = segment.cpu;
                    self.step(Step::Go { cpu, how: Fate::Plain });
                    self.step(Step::Go { cpu, how: Fate::Plain });
                }
            }
            Step::Go { cpu, how } => {
                let cpu = self.on(cpu);
                let is_busy = self.world.kernel.is_rt && self.working[cpu].is_some();
                if !is_busy && self.udp.goes_on(&mut self.world, cpu, how) {
                    return;
                }
                if let Some(travelling) = self.working[cpu].take() {
                    self.working[cpu] = self.go(travelling, how);
                }
            }
            Step::Resume { cpu, which } => {
                let cpu = self.on(cpu);
                if !self.waiting.is_empty() {
                    let next = self.waiting.remove(usize::from(which) % self.waiting.len());
                    self.waiting.extend(self.working[cpu].replace(next));
                }
            }
            Step::Read { task, connection, len, how } => {
                let number = usize::from(connection) % self.connections.len();
                let connection = &mut self.connections[number];
                if connection.sk == 0 {
                    return;
                }
                if connection.whole != 0 {
                    let task = self.processes.running(task);
                    readers::ask(&mut self.world, task);
                    return connection.read_whole(&mut self.world, task, u64::from(len) * 5, how);
                }
                if connection.is_multipath {
                    return connection.give(&mut self.world);
                }
                if connection.owner.is_none() {
                    let task = self.asleep[number].take().unwrap_or_else(|| {
                        let task = self.processes.running(task);
                        readers::ask(&mut self.world, task);
                        task
                    });
                    connection.lock(&self.world, task);
                }
                if connection.readable() != 0 {
                    connection.read(&mut self.world, u64::from(len) * 5, how);
                }
            }
            Step::Unlock { connection } => {
                let number = usize::from(connection) % self.connections.len();
                let connection = &mut self.connections[number];
                if connection.owner.is_some() && connection.sk != 0 {
                    self.world.run_as(connection.owner);
                    // `sk_wait_data`, or the end of the call.
                    self.asleep[number] = connection.owner.filter(|_| self.world.choice.one_in(2));
                    connection.unlock(&mut self.world);
                }
            }
            Step::Close { connection } => {
                let number = usize::from(connection) % self.connections.len();
                if self.connections[number].sk != 0 {
                    self.world.run_as(self.connections[number].owner.or(Some(self.processes.running(0))));
                    self.asleep[number] = None;
                    self.connections[number].close(&mut self.world);
                }
            }
            Step::Collapse { connection } => {
                let number = usize::from(connection) % self.connections.len();
                let connection = &mut self.connections[number];
                if connection.sk != 0 {
                    connection.collapse(&mut self.world);
                }
            }
            Step::Let { which, drops } => {
                if !self.tapped.is_empty() {
                    let skb = self.tapped.remove(usize::from(which) % self.tapped.len());
                    if drops { self.world.drop(skb) } else { self.world.free(skb) }
                }
            }
            Step::Process(step) => {
                let (connections, udp, asleep) = (&self.connections, &self.udp, &self.asleep);
                let is_busy = |task| {
                    connections.iter().any(|connection| connection.owner == Some(task))
                        || udp.is_used_by(task)
                        || asleep.contains(&Some(task))
                };
                self.processes.step(&mut self.world, step, is_busy);
            }
            Step::Scheduler(step) => self.of_kernel.step(&mut self.world, step, &self.processes),
            Step::Datagram(step) => self.datagram(step),
            Step::Out(step) => {
                if let Some(out) = &mut self.out {
                    let now = [0, 1]
                        .map(|number: usize| (self.connections[number].sk, self.connections[number].owner));
                    out.meet_receivers(&mut self.world, now);
                    out.meet_receiver(&mut self.world, self.udp.sender());
                    out.step(&mut self.world, step);
                }
            }
            Step::Wait { ms } => Machine::with(|machine| machine.clock += u64::from(ms) * 1_000_000),
        }
    }

    /// A driver has a segment, and gives it to the stack.
    fn segment(&mut self, segment: Segment) {
        let Segment { cpu, connection, len, segs, is_found, joins, .. } = segment;
        // docs/accuracy.md: a copy of a segment that was skipped may stand for it. And so may a copy of a packet that was sent on past IP
        // and ended unseen.
        let is_told_apart = self.world.skips == 0 && !self.world.truth.lost_sight;
        let (again, from) = if is_told_apart { (segment.again, segment.from) } else { (0, 0) };
        let cpu = self.on(cpu);
        let number = usize::from(connection) % self.connections.len();
        let connection = &mut self.connections[number];
        let mut before =
            self.world.truth.packets.iter().rev().filter(|packet| packet.connection == connection.number);
        let (start, len) = match usize::from(again).checked_sub(1).and_then(|again| before.nth(again)) {
            Some(packet) => (packet.start, packet.len),
            None => (connection.sent.saturating_add_signed(i64::from(from) * 5), u32::from(len) * 10),
        };
        connection.sent = connection.sent.max(start + u64::from(len));
        let net = connection.flow.net;
        let flow = connection.flow;
        let mark = self.world.truth.packets.len() as u32 % 4;
        self.world.truth.packets.push(Packet {
            connection: connection.number,
            start,
            len,
            segs: if segs > 1 && len != 0 { segs.into() } else { 1 },
            mark,
            is_found,
            joins,
            reached: 0,
            is_untraced: false,
            forwarded: None,
            entered: None,
            entry: Entry::Plain,
            ifindex: self.world.nets[net].ifindex,
            dropped: None,
            datagram: None,
        });
        let packet = self.world.truth.packets.len() - 1;
        let skb = self.world.new_skb(packet, &flow, net);
        note!(
            self.world,
            "  packet {packet}: {start} to {}, skb {:#x} head {:#x}",
            start + u64::from(len),
            skb.address,
            skb.head
        );
        self.enter(skb);
        // What the CPU worked on before waits until later.
        self.waiting.extend(self.working[cpu].replace(Travelling { skb, place: Place::Device }));
    }

    /// Something happens to UDP.
    fn datagram(&mut self, step: udp_in::Step) {
        let cpu = self.on(step.cpu());
        match step {
            udp_in::Step::Comes { target, len, segs, kind, goes, .. } => {
                let skb = self.udp.comes(&mut self.world, target, len, segs, kind);
                self.enter(skb);
                self.waiting.extend(self.working[cpu].replace(Travelling { skb, place: Place::Device }));
                if goes {
                    for _ in 0..3 {
                        self.step(Step::Go { cpu: step.cpu(), how: Fate::Plain });
                    }
                }
            }
            udp_in::Step::Take { task, socket, how, .. } => {
                let task = self.processes.running(task);
                readers::ask(&mut self.world, task);
                self.udp.take(&mut self.world, task, Udp::number(socket), how);
            }
            udp_in::Step::Looked { .. } => self.udp.looked(&mut self.world),
            udp_in::Step::Close { socket, again, .. } => {
                self.udp.close(&mut self.world, Udp::number(socket), again);
            }
        }
    }

    /// It enters the stack (`netif_receive_skb`, `netif_rx`, `napi_gro_receive`).
    fn enter(&mut self, skb: Skb) {
        let program = || begin::arrived(hooked::<Probed>(skb), FUNCTION);
        self.world.journey(About::Packet(skb.packet), program);
        let call = hook!(self.world, Hook::Arrived, skb.packet, ip::arrived(hooked(skb)));
        self.world.truth.packets[skb.packet].entered.get_or_insert(call);
        // `__netif_receive_skb_core`.
        self.world.put(skb.address, self.world.offsets.sk_buff_skb_iif, 1_u32);
    }

    /// The fate of a packet before it comes to its transport.
    fn meets(&mut self, packet: usize, fate: Fate) {
        let truth = &mut self.world.truth;
        let packet = &mut truth.packets[packet];
        truth.lost_sight |= packet.forwarded.is_some()
            && matches!(fate, Fate::Copied | Fate::Shared | Fate::Flooded | Fate::Ends);
        packet.entry = match (packet.entry, fate) {
            (_, Fate::Copied | Fate::Shared | Fate::Flooded | Fate::Tapped | Fate::Again) => Entry::Hidden,
            (Entry::Plain, Fate::Forwarded) => Entry::Forwarded,
            (Entry::Plain | Entry::Forwarded, Fate::SentOn) => Entry::SentOn,
            (entry, _) => entry,
        };
    }

    /// An skb gets to its next place, unless something else becomes of it.
    fn go(&mut self, mut now: Travelling, how: Fate) -> Option<Travelling> {
        let skb = now.skb;
        // Only IP forwards.
        let how = if how == Fate::Forwarded && now.place == Place::Device { Fate::Plain } else { how };
        self.meets(skb.packet, how);
        match how {
            Fate::Waits => {
                self.waiting.push(now);
                return None;
            }
            Fate::Dropped => {
                self.world.drop(skb);
                return None;
            }
            Fate::Ends => {
                self.world.free(skb);
                return None;
            }
            Fate::Copied => {
                let copy = self.world.begin_copy(skb);
                hook!(self.world, Hook::Other, skb.packet, tcp::transmit::copied(hooked(copy), hooked(skb)));
                let program = || heads::copied(hooked::<Probed>(copy), hooked::<Probed>(skb), FUNCTION);
                self.world.journey(About::Packet(skb.packet), program);
                self.world.end_copy(copy, skb);
                self.world.free(skb);
                now.skb = copy;
            }
            Fate::Expanded => {
                hook!(self.world, Hook::Other, skb.packet, ip::rebuffered(hooked(skb)));
                let program = || heads::expanded(hooked::<Probed>(skb), FUNCTION);
                self.world.journey(About::Packet(skb.packet), program);
                self.world.rebuffer(&mut now.skb);
            }
            Fate::Again if now.place == Place::Device => self.enter(skb),
            Fate::Tapped if now.place == Place::Device => {
                let clone = self.world.clone_skb(skb);
                self.world.give_to_packet_socket(clone);
                self.tapped.push(clone);
            }
            Fate::Forwarded => return Some(self.forward(now)),
            Fate::SentOn => return Some(self.send_on(skb)),
            Fate::Flooded => {
                // `br_flood` has the skb until the last port gets it.
                let clone = self.world.clone_skb(skb);
                let now = self.send_on(clone);
                self.world.free(skb);
                return Some(now);
            }
            _ => {}
        }
        match now.place {
            Place::Device => Some(self.reach_ip(now.skb, how == Fate::Shared)),
            Place::Ip => {
                self.reach_transport(now.skb);
                None
            }
        }
    }

    /// A function gets it, which `journey` follows.
    fn follow(&mut self, skb: Skb) {
        self.world.journey(About::Packet(skb.packet), || heads::seen(hooked::<Probed>(skb), FUNCTION));
    }

    /// `ip_rcv_core`.
    fn reach_ip(&mut self, skb: Skb, is_shared: bool) -> Travelling {
        // docs/accuracy.md: an skb that is shared there, if that hook is skipped, may have another packet's times.
        let skips = self.world.skips;
        if is_shared {
            self.world.users(skb, 1);
            self.world.skips = 0;
        }
        hook!(self.world, Hook::Ip, skb.packet, ip::received(hooked(skb)));
        self.follow(skb);
        self.world.skips = skips;
        // `skb_orphan`: a veth leaves the sender's socket.
        self.world.put(skb.address, self.world.offsets.sk_buff_sk, 0_u64);
        if !is_shared {
            return Travelling { skb, place: Place::Ip };
        }
        // `skb_share_check`.
        let clone = self.world.clone_skb(skb);
        self.world.users(skb, -1);
        self.world.give_to_packet_socket(skb);
        self.tapped.push(skb);
        Travelling { skb: clone, place: Place::Ip }
    }

    /// `ip_forward`, and the same skb enters the stack of another namespace (veth).
    fn forward(&mut self, mut now: Travelling) -> Travelling {
        const HOPS: [u64; 2] = [8, 7];
        let connection = self.world.truth.packets[now.skb.packet].connection;
        let flow = self.connections.iter().find(|other| other.number == connection).map(|other| other.flow);
        let datagram = self.world.truth.packets[now.skb.packet].datagram.map(|datagram| datagram.flow);
        let is_v6 = datagram.or(flow).is_some_and(|flow| flow.is_v6);
        let family = if is_v6 { net_latency_common::AF_INET6 } else { net_latency_common::AF_INET };
        let call = hook!(self.world, Hook::Forwarded, now.skb.packet, ip::forwarded(hooked(now.skb), family));
        self.world.truth.packets[now.skb.packet].forwarded = Some(call);
        let network: u16 = self.world.get(now.skb.address, self.world.offsets.sk_buff_network_header);
        let hops = now.skb.head + u64::from(network) + HOPS[usize::from(is_v6)];
        crate::bpf::host::memory::write(hops, crate::bpf::host::memory::read::<u8>(hops) - 1);
        self.enter(now.skb);
        now.place = Place::Device;
        now
    }

    /// `br_forward`, `nf_flow_offload_ip_hook`, `ip_vs_nat_xmit`, `tcf_mirred_act`: the same skb comes to a device's queue, and enters the stack
    /// of another namespace (veth), or this one again (IFB).
    fn send_on(&mut self, skb: Skb) -> Travelling {
        const LINK: u32 = 14;
        let Offsets { sk_buff_data, sk_buff_len, .. } = self.world.offsets;
        let (data, len): (u64, u32) =
            (self.world.get(skb.address, sk_buff_data), self.world.get(skb.address, sk_buff_len));
        self.world.put(skb.address, sk_buff_data, data - u64::from(LINK));
        self.world.put(skb.address, sk_buff_len, len + LINK);
        let call = hook!(self.world, Hook::Other, skb.packet, tcp::transmit::queued(hooked(skb)));
        self.world.put(skb.address, sk_buff_data, data);
        self.world.put(skb.address, sk_buff_len, len);
        self.world.truth.packets[skb.packet].forwarded = Some(call);
        self.enter(skb);
        Travelling { skb, place: Place::Device }
    }

    /// `ip_local_deliver`.
    fn reach_transport(&mut self, skb: Skb) {
        let bytes = self.world.ip_len(skb);
        self.world.pull(skb, bytes);
        self.follow(skb);
        if self.world.truth.packets[skb.packet].datagram.is_some() {
            return self.udp.receive(&mut self.world, skb);
        }
        let connection = self.world.truth.packets[skb.packet].connection;
        let index = self.connections.iter().position(|other| other.number == connection);
        self.connections[index.expect("a connection")].receive(&mut self.world, skb);
    }

    /// Whether lines and counters agree with the truth.
    fn check(&mut self) -> Result<u64, String> {
        let lines: Vec<PacketRecord> = if readers::is_fine() {
            let lines: Vec<FineRecord> = ring::take_records();
            for line in &lines {
                let result = if line.packet.direction == Direction::In as u8 {
                    self.world.truth.check_fine(&line.packet, &line.parts)
                } else {
                    let is_whole = self.is_plain && !self.world.truth.is_filtered;
                    out::check_sent(&self.world, &line.packet, &line.parts)
                        .and_then(|()| self.world.truth.check_served(line, is_whole))
                };
                result.map_err(|fault| format!("{fault}: {line:?}"))?;
            }
            lines.into_iter().map(|line| line.packet).collect()
        } else {
            ring::take_records()
        };
        let (sent, lines): (Vec<_>, Vec<_>) =
            lines.into_iter().partition(|line| line.direction == Direction::Out as u8);
        let (mut seen, mut seen_udp) = (Vec::new(), Vec::new());
        for line in &lines {
            note!(self.world, "line: {line:?}");
            self.world
                .truth
                .check(line, &mut seen, &mut seen_udp)
                .map_err(|fault| format!("{fault}: {line:?}"))?;
            if self.names_stay {
                out::expect_named(&self.world, line).map_err(|fault| format!("{fault}: {line:?}"))?;
            }
        }
        // A filter by process ignores what only others have used.
        if self.is_plain && (!self.world.truth.is_filtered || self.world.truth.is_by_name) && !was_segmented()
        {
            self.world.truth.expect_all(&lines)?;
            self.world.truth.expect_known(&lines)?;
        }
        let counted = counters::total();
        let (given, want) = (counted.get(Counter::NotFollowedIn), self.world.truth.given);
        if self.is_plain && !self.world.truth.is_filtered && given < want {
            return Err(format!("MPTCP has taken {want}, and {given} are counted: {counted:?}"));
        }
        for line in &sent {
            note!(self.world, "line: {line:?}");
            out::check(&mut self.world, line).map_err(|fault| format!("{fault}: {line:?}"))?;
        }
        out::check_all(&self.world, &counted, in_flight() + sending() + waiting_lines() + leaving_lines())?;
        let get = |counter| counted.get(counter);
        let shown = lines.len() as u64;
        let came = get(Counter::Stored)
            + get(Counter::RejectedIn)
            + get(Counter::DuplicateIn)
            + get(Counter::MapFull);
        let got = self.world.truth.received + self.world.truth.udp.enqueued;
        if came != got {
            return Err(format!("TCP and UDP got {got}, and {came} are counted: {counted:?}"));
        }
        let taken = shown
            + get(Counter::DroppedIn)
            + get(Counter::UnreadIn)
            + get(Counter::NotFollowedIn)
            + get(Counter::FilteredIn)
            + get(Counter::RingFull);
        // What has no data is never stored.
        let ended = get(Counter::Taken) + get(Counter::ControlIn);
        if taken != ended {
            return Err(format!("{ended} were taken, and {taken} are counted: {counted:?}"));
        }
        let (segments, datagrams) = (waiting_segments(), waiting_datagrams());
        // Where all is read that has come, remaining segments count as evicted.
        let is_exact = self.has_room && get(Counter::UnmatchedIn) == 0;
        if is_exact && shares() != segments.count as i64 {
            return Err(format!("{} segments wait, and {} are counted", segments.count, shares()));
        }
        let (lost, dropped) = (self.world.truth.lost(), get(Counter::DroppedIn));
        if self.is_plain && !self.world.truth.is_filtered && dropped < lost {
            return Err(format!("TCP has dropped {lost}, and {dropped} are counted: {counted:?}"));
        }
        let left = get(Counter::Stored) - get(Counter::Taken);
        let evicted = segments.evicts() || datagrams.evicts() || self.evicts;
        let waiting = segments.count + datagrams.count;
        if left != waiting && !(evicted && left > waiting) {
            return Err(format!("{left} should wait, and {waiting} do: {counted:?}"));
        }
        if !evicted && self.has_room {
            self.world.truth.check_all_udp_in(&seen_udp)?;
        }
        Ok((lines.len() + sent.len()) as u64)
    }

    /// Whether nothing waits when all sockets are closed.
    fn check_end(&mut self) -> Result<(), String> {
        // Segments are found one behind the other.
        let gaps = [Counter::UnmatchedIn, Counter::RejectedIn];
        if !self.is_plain || gaps.iter().any(|gap| counters::total().get(*gap) != 0) {
            return Ok(());
        }
        for connection in &mut self.connections {
            connection.close(&mut self.world);
        }
        let waiting = waiting_segments().count;
        // What begins within another segment may never be read by itself.
        if waiting != 0 && !self.world.truth.has_any_copies() {
            return Err(format!("{waiting} segments wait for sockets that are closed"));
        }
        Ok(())
    }
}
