//! Totals of a run's connections, and those missing there.

use std::{collections::BTreeMap, io, net::IpAddr, time::Duration};

use net_latency_common::{
    ConnectionCounter, ConnectionCounters, ListenerRecord, MAX_CONNECTIONS, MAX_LISTENERS,
};
use serde::Serialize;

use super::fields::{Line, Name, Role, State};
use crate::{
    accounting::{
        Human, Percentiles, Times, UNWRITTEN,
        object::{Head, Kind, View},
    },
    escape::write_name,
    message::{counted, write_counts},
    output::write_footer,
    packet::event::address,
    request::FooterFormat,
    run::connections::lost,
};

/// Which listening sockets are one row: those of a port, of whatever thread or process (`SO_REUSEPORT`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    netns: u32,
    port: u16,
    address: IpAddr,
}

impl Place {
    fn of(record: &ListenerRecord) -> Self {
        Self { netns: record.netns, port: record.port, address: address(&record.address, record.family) }
    }
}

/// Figures of a row.
#[derive(Clone, Copy, Debug, Default)]
struct Queue {
    pid: u32,
    process: Option<Name>,
    sockets: u32,
    accepted: u64,
    waiting: u64,
    most_waiting: u32,
    backlog: u32,
    overflows: u64,
    drops: u64,
}

impl Queue {
    fn add(&mut self, record: &ListenerRecord) {
        if record.pid != 0 {
            self.pid = record.pid;
            self.process = Name::of_kernel(&record.process);
        }
        self.sockets += 1;
        self.accepted += record.accepted;
        self.waiting += u64::from(record.waiting);
        self.most_waiting = self.most_waiting.max(record.most_waiting);
        self.backlog = self.backlog.max(record.backlog);
        self.overflows += record.overflows;
        self.drops += record.drops;
    }
}

/// The connections and the queues so far.
#[derive(Debug, Default)]
pub(super) struct Totals {
    states: BTreeMap<&'static str, u64>,
    /// By role: that of clients first.
    handshakes: [Times; 2],
    accepts: Times,
    /// Queues of sockets that have been closed.
    closed: BTreeMap<Place, Queue>,
    /// Those that are there, as they were last.
    open: BTreeMap<u64, ListenerRecord>,
}

impl Totals {
    /// A connection that has ended, or is open at the end.
    pub(super) fn add(&mut self, line: &Line) {
        *self.states.entry(line.state.name()).or_default() += 1;
        if let (Some(role), Some(ns)) = (line.role, line.handshake_ns) {
            self.handshakes[usize::from(role == Role::Server)].add(ns);
        }
        if let Some(ns) = line.accept_ns {
            self.accepts.add(ns);
        }
    }

    /// All listening sockets are about to be told anew.
    pub(super) fn forget_open(&mut self) {
        self.open.clear();
    }

    pub(super) fn listener(&mut self, record: &ListenerRecord) {
        if record.is_closed == 0 {
            self.open.insert(record.socket, *record);
            return;
        }
        self.open.remove(&record.socket);
        // Who listens at a port of its own each time, and gets nothing, takes no room.
        if record.accepted + record.overflows + record.drops > 0 {
            self.closed.entry(Place::of(record)).or_default().add(record);
        }
    }

    fn queues(&self) -> BTreeMap<Place, Queue> {
        let mut open = BTreeMap::<Place, Queue>::new();
        for record in self.open.values() {
            open.entry(Place::of(record)).or_default().add(record);
        }
        let mut all = self.closed.clone();
        for (place, queue) in open {
            let sum = all.entry(place).or_default();
            *sum = Queue {
                accepted: sum.accepted + queue.accepted,
                most_waiting: sum.most_waiting.max(queue.most_waiting),
                overflows: sum.overflows + queue.overflows,
                drops: sum.drops + queue.drops,
                ..queue
            };
        }
        // One without any connection says nothing.
        all.retain(|_, queue| queue.accepted + queue.overflows + queue.drops + queue.waiting > 0);
        all
    }

    fn connections(&self) -> u64 {
        self.states.values().sum()
    }
}

/// The summary at the end.
#[derive(Debug)]
pub(super) struct Footer<'a> {
    pub(super) totals: &'a Totals,
    /// How long was traced; `None` for logs.
    pub(super) elapsed: Option<Duration>,
    /// Lines.
    pub(super) shown: u64,
    /// Connections that `--failed` or `--slower` left out.
    pub(super) filtered: u64,
    pub(super) counters: ConnectionCounters,
    /// Lines that the reader of the output did not take.
    pub(super) unwritten: u64,
    /// How often the kernel skipped a program, if it counts that.
    pub(super) skipped: Option<u64>,
}

impl Footer<'_> {
    fn count(&self, counter: ConnectionCounter) -> u64 {
        self.counters[counter as usize]
    }

    pub(super) fn write(&self, form: FooterFormat, out: &mut Vec<u8>) -> io::Result<()> {
        write_footer(form, out, |out| self.write_text(out), || Object::new(self))
    }

    fn write_text(&self, out: &mut Vec<u8>) -> io::Result<()> {
        use io::Write as _;
        write!(out, "net-latency: {}", counted(self.totals.connections(), "connection"))?;
        if let Some(elapsed) = self.elapsed {
            write!(out, " in {:.1} s", elapsed.as_secs_f64())?;
        }
        for (number, (state, count)) in self.totals.states.iter().enumerate() {
            write!(out, "{} {count} {state}", if number == 0 { ":" } else { "," })?;
        }
        writeln!(out, "; {} lost", lost(&self.counters))?;
        for (name, times) in [
            ("handshake (client)", &self.totals.handshakes[0]),
            ("handshake (server)", &self.totals.handshakes[1]),
            ("accept", &self.totals.accepts),
        ] {
            if times.count() > 0 {
                let time = |ns: Option<u64>| Human(ns.unwrap_or(0)).to_string();
                writeln!(
                    out,
                    "  {name:<20}p50 {:<9}p99 {:<9}max {:<9}of {}",
                    time(times.quantile(500)),
                    time(times.quantile(990)),
                    time(times.max()),
                    times.count()
                )?;
            }
        }
        self.write_queues(out)?;
        if self.filtered > 0 {
            writeln!(out, "  {} excluded by --failed or --slower", counted(self.filtered, "connection"))?;
        }
        let connections = format!("without room in the table of {MAX_CONNECTIONS}; lines say start-unseen");
        let listeners =
            format!("a listening socket had no room in the table of {MAX_LISTENERS}: its queue is not known");
        let fates = [
            (self.count(ConnectionCounter::TableFull), ("connection", &*connections)),
            (self.count(ConnectionCounter::ListenersFull), ("time", &*listeners)),
            (
                self.count(ConnectionCounter::RingFull),
                ("line", "lost: the buffer was full; a larger --buffer or a filter helps"),
            ),
            (self.unwritten, UNWRITTEN),
            (
                self.skipped.unwrap_or(0),
                ("event", "skipped by the kernel: connections may lack times or lines"),
            ),
        ];
        write_counts(&fates, out)?;
        if self.skipped.is_none() {
            writeln!(out, "  this kernel does not count skipped events")?;
        }
        Ok(())
    }

    fn write_queues(&self, out: &mut Vec<u8>) -> io::Result<()> {
        use io::Write as _;
        let queues = self.totals.queues();
        if queues.is_empty() {
            return Ok(());
        }
        writeln!(
            out,
            "  {:<24}{:<24}{:>9}{:>9}{:>7}{:>9}{:>11}{:>9}",
            "listening", "process", "accepted", "waiting", "most", "backlog", "overflows", "dropped"
        )?;
        for (place, queue) in queues {
            let mut process = Vec::new();
            write_name(queue.process.as_ref().map(Name::bytes), &mut process);
            if queue.pid != 0 {
                write!(process, " {}", queue.pid)?;
            }
            let at = std::net::SocketAddr::new(place.address, place.port).to_string();
            writeln!(
                out,
                "  {at:<24}{:<24}{:>9}{:>9}{:>7}{:>9}{:>11}{:>9}",
                String::from_utf8_lossy(&process),
                queue.accepted,
                queue.waiting,
                queue.most_waiting,
                queue.backlog,
                queue.overflows,
                queue.drops
            )?;
        }
        Ok(())
    }
}

/// The totals for programs; docs/footer.schema.json describes them.
#[derive(Serialize)]
struct Object {
    #[serde(flatten)]
    head: Head,
    shown: u64,
    filtered: u64,
    lost: u64,
    in_flight: u64,
    skipped_calls: Option<u64>,
    losses: Lost,
    connections: BTreeMap<&'static str, u64>,
    handshake: Handshake,
    accept: Figures,
    listening: Vec<Listening>,
}

#[derive(Serialize)]
struct Lost {
    ring_full: u64,
    table_full: u64,
    listeners_full: u64,
    unwritten: u64,
}

#[derive(Serialize)]
struct Handshake {
    client: Figures,
    server: Figures,
}

#[derive(Serialize)]
struct Figures {
    count: u64,
    #[serde(flatten)]
    percentiles: Percentiles,
}

impl Figures {
    fn new(times: &Times) -> Self {
        Self { count: times.count(), percentiles: times.figures().percentiles }
    }
}

#[derive(Serialize)]
struct Listening {
    address: IpAddr,
    port: u16,
    netns: u32,
    pid: Option<u32>,
    process: Option<String>,
    sockets: u32,
    accepted: u64,
    waiting: u64,
    most_waiting: u32,
    backlog: u32,
    overflows: u64,
    dropped: u64,
}

impl Object {
    fn new(footer: &Footer<'_>) -> Self {
        let totals = footer.totals;
        let listening = totals.queues().into_iter().map(|(place, queue)| Listening {
            address: place.address,
            port: place.port,
            netns: place.netns,
            pid: (queue.pid != 0).then_some(queue.pid),
            process: queue.process.map(|name| String::from_utf8_lossy(name.bytes()).into_owned()),
            sockets: queue.sockets,
            accepted: queue.accepted,
            waiting: queue.waiting,
            most_waiting: queue.most_waiting,
            backlog: queue.backlog,
            overflows: queue.overflows,
            dropped: queue.drops,
        });
        Self {
            head: Head::new(Kind::End, View::Connections, footer.elapsed.unwrap_or_default()),
            shown: footer.shown,
            filtered: footer.filtered,
            lost: lost(&footer.counters),
            in_flight: totals.states.get(State::Open.name()).copied().unwrap_or(0),
            skipped_calls: footer.skipped,
            losses: Lost {
                ring_full: footer.count(ConnectionCounter::RingFull),
                table_full: footer.count(ConnectionCounter::TableFull),
                listeners_full: footer.count(ConnectionCounter::ListenersFull),
                unwritten: footer.unwritten,
            },
            connections: totals.states.clone(),
            handshake: Handshake {
                client: Figures::new(&totals.handshakes[0]),
                server: Figures::new(&totals.handshakes[1]),
            },
            accept: Figures::new(&totals.accepts),
            listening: listening.collect(),
        }
    }
}
