//! From the model to the rows of a table: those that match, in order.

use std::{cmp::Ordering, collections::HashMap, net::SocketAddr};

use net_latency_common::Direction;

use super::{
    columns::Column,
    failed::FailedConnection,
    model::{ConnectionKey, Model, Packet, Protocols},
    place::Place,
    state::{RowKey, Sort, State},
    window::{ANSWER, FIRST_PART, Figures, RTT, TOTAL, TRANSIT, TREND},
};
use crate::{
    name::Name,
    packet::{
        event::Protocol,
        stages::{FINE_STAGES, split},
    },
};

/// A process or a connection.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) key: RowKey,
    /// The process's name, made harmless.
    pub(super) name: String,
    /// The connections of a process.
    pub(super) connections: usize,
    pub(super) protocols: Protocols,
    /// Packets a second by direction.
    pub(super) rates: [f64; 2],
    pub(super) figures: [Figures; 2],
    pub(super) trends: [[Option<u64>; TREND]; 2],
    /// Packets whose bytes TCP had sent before.
    pub(super) sent_again: u64,
}

impl Row {
    /// How long the packets of a second take together, ns: the median times the rate.
    pub(super) fn spent(&self, direction: Direction) -> Option<u64> {
        let p50 = self.figures[direction as usize].times[TOTAL]?.p50;
        // No more than u64::MAX, which no machine has packets for.
        Some((p50 as f64 * self.rates[direction as usize]) as u64)
    }

    /// Half of the smoothed round-trip times don't exceed this.
    pub(super) fn rtt(&self) -> Option<u64> {
        Some(self.figures[Direction::Out as usize].times[RTT]?.p50)
    }

    /// Half of the answers don't take longer: those that it gave as a server, or else those that it got.
    pub(super) fn answer(&self) -> Option<u64> {
        let [response, service] =
            [Direction::In, Direction::Out].map(|way| self.figures[way as usize].times[ANSWER]);
        Some(service.or(response)?.p50)
    }
}

/// The rows of the table that is shown.
#[derive(Clone, Debug)]
pub(super) enum Rows {
    Traffic(Vec<Row>),
    Packets(Vec<Packet>),
    /// With the name of each one's process, made harmless.
    Failed(Vec<(String, FailedConnection)>),
}

impl Rows {
    /// The rows that `state` asks for.
    pub(super) fn new(model: &Model, state: &State, is_ascii: bool) -> Self {
        let filter = Filter::new(&state.filter);
        match state.place {
            Place::Processes => Self::Traffic(processes(model, &filter, state.sort(), is_ascii)),
            Place::Connections(pid) => {
                Self::Traffic(connections(model, pid, &filter, state.sort(), is_ascii))
            }
            Place::Packets(key) => Self::Packets(packets(model, &key, state.shown, state.sort())),
            Place::Failed => Self::Failed(failed(model, &filter, state.sort(), is_ascii)),
        }
    }

    pub(super) fn keys(&self) -> Vec<RowKey> {
        match self {
            Self::Traffic(rows) => rows.iter().map(|row| row.key).collect(),
            Self::Packets(packets) => (0..packets.len()).map(RowKey::Passing).collect(),
            Self::Failed(failed) => (0..failed.len()).map(RowKey::Passing).collect(),
        }
    }
}

/// The process's name as the text form of lines has it, so that nothing in it acts on the terminal.
pub(super) fn name_of(model: &Model, pid: u32, is_ascii: bool) -> String {
    harmless(model.process(pid).and_then(|process| process.name()), is_ascii)
}

fn harmless(name: Option<&[u8]>, is_ascii: bool) -> String {
    plain(&crate::escape::harmless(name), is_ascii)
}

/// The text for a terminal that may have no characters beyond ASCII.
pub(super) fn plain(text: &str, is_ascii: bool) -> String {
    if !is_ascii || text.is_ascii() {
        return text.to_owned();
    }
    let escape =
        |byte: u8| if byte.is_ascii() { char::from(byte).to_string() } else { format!("\\x{byte:02x}") };
    text.bytes().map(escape).collect()
}

/// The text that was typed to search for.
struct Filter {
    text: String,
}

impl Filter {
    fn new(text: &str) -> Self {
        Self { text: text.to_lowercase() }
    }

    fn is_in(&self, text: &str) -> bool {
        text.to_lowercase().contains(&self.text)
    }

    fn is_process(&self, pid: u32, name: &str) -> bool {
        self.text.is_empty() || self.is_in(name) || pid.to_string().contains(&self.text)
    }

    fn is_connection(&self, ends: [SocketAddr; 2]) -> bool {
        // An address by any part of it, with or without its port.
        self.text.is_empty() || ends.iter().any(|end| self.is_in(&end.to_string()))
    }
}

fn processes(model: &Model, filter: &Filter, sort: Sort, is_ascii: bool) -> Vec<Row> {
    // Connections, and whether one of them matches.
    let mut of_process: HashMap<u32, (usize, bool)> = HashMap::new();
    for (key, _) in model.connections() {
        let (connections, matches) = of_process.entry(key.pid).or_default();
        *connections += 1;
        *matches = *matches || filter.is_connection([key.ends.local, key.ends.remote]);
    }
    let rows = model.processes().filter_map(|(pid, process)| {
        let name = name_of(model, pid, is_ascii);
        let (connections, matches) = of_process.get(&pid).copied().unwrap_or_default();
        (matches || filter.is_process(pid, &name)).then(|| Row {
            key: RowKey::Process(pid),
            name,
            connections,
            protocols: process.protocols,
            ..traffic(model, &process.traffic)
        })
    });
    sorted(rows.collect(), sort)
}

fn connections(model: &Model, pid: u32, filter: &Filter, sort: Sort, is_ascii: bool) -> Vec<Row> {
    let name = name_of(model, pid, is_ascii);
    let all = filter.is_process(pid, &name);
    let own = model.connections().filter(|(key, _)| {
        key.pid == pid && (all || filter.is_connection([key.ends.local, key.ends.remote]))
    });
    let rows = own.map(|(key, connection)| Row {
        key: RowKey::Connection(*key),
        name: String::new(),
        protocols: key.protocols(),
        ..traffic(model, &connection.traffic)
    });
    sorted(rows.collect(), sort)
}

fn traffic(model: &Model, traffic: &super::window::Traffic) -> Row {
    let now = model.now();
    let directions = [Direction::In, Direction::Out];
    Row {
        key: RowKey::Process(0),
        name: String::new(),
        connections: 0,
        protocols: Protocols::default(),
        rates: directions.map(|direction| traffic.packets(direction, now) as f64 / model.covered()),
        figures: directions.map(|direction| traffic.figures(direction, now)),
        trends: directions.map(|direction| traffic.trend(direction, now)),
        sent_again: traffic.sent_again(now),
    }
}

fn sorted(mut rows: Vec<Row>, sort: Sort) -> Vec<Row> {
    rows.sort_by(|a, b| {
        let order = compare(a, b, sort.by);
        let order = if sort.is_ascending { order } else { order.reverse() };
        // Equal ones keep their order from one screen to the next.
        order.then_with(|| identity(&a.key).cmp(&identity(&b.key)))
    });
    rows
}

fn identity(key: &RowKey) -> (u32, Option<ConnectionKey>, usize) {
    match key {
        RowKey::Process(pid) => (*pid, None, 0),
        RowKey::Connection(key) => (key.pid, Some(*key), 0),
        RowKey::Passing(position) => (0, None, *position),
    }
}

fn compare(a: &Row, b: &Row, by: Column) -> Ordering {
    let total = |row: &Row, direction: Direction| row.figures[direction as usize].times[TOTAL];
    let share = |row: &Row, direction: Direction| {
        row.figures[direction as usize].dominant.map(|(stage, share)| (stage, std::cmp::Reverse(share)))
    };
    match by {
        Column::Name => a.name.cmp(&b.name),
        Column::Connections => a.connections.cmp(&b.connections),
        Column::Rate(direction) => a.rates[direction as usize].total_cmp(&b.rates[direction as usize]),
        Column::Spent(way) => a.spent(way).cmp(&b.spent(way)),
        Column::P50(way) => {
            total(a, way).map(|spread| spread.p50).cmp(&total(b, way).map(|spread| spread.p50))
        }
        Column::P99(way) => {
            total(a, way).map(|spread| spread.p99).cmp(&total(b, way).map(|spread| spread.p99))
        }
        Column::Max(way) => {
            total(a, way).map(|spread| spread.max).cmp(&total(b, way).map(|spread| spread.max))
        }
        Column::Rtt => a.rtt().cmp(&b.rtt()),
        Column::Answer => a.answer().cmp(&b.answer()),
        Column::Again => a.sent_again.cmp(&b.sent_again),
        Column::Mostly(direction) => share(a, direction).cmp(&share(b, direction)),
        _ => identity(&a.key).cmp(&identity(&b.key)),
    }
}

fn packets(model: &Model, key: &ConnectionKey, shown: Direction, sort: Sort) -> Vec<Packet> {
    let Some(connection) = model.connection(key) else { return Vec::new() };
    let mut packets: Vec<_> =
        connection.slowest(model.now()).filter(|packet| packet.direction == shown).copied().collect();
    packets.sort_by(|a, b| {
        let order = match sort.by {
            Column::Len => a.len.cmp(&b.len),
            Column::Stage(stage) => a.stages[stage].cmp(&b.stages[stage]),
            Column::Total => a.time().cmp(&b.time()),
            Column::Thread => a.tid.cmp(&b.tid),
            Column::Flags => a.flags.cmp(&b.flags),
            _ => a.wall_ns.cmp(&b.wall_ns),
        };
        let order = if sort.is_ascending { order } else { order.reverse() };
        order.then(b.wall_ns.cmp(&a.wall_ns))
    });
    packets
}

fn failed(model: &Model, filter: &Filter, sort: Sort, is_ascii: bool) -> Vec<(String, FailedConnection)> {
    let named =
        model.failed.all().map(|one| (harmless(one.name.as_ref().map(Name::bytes), is_ascii), one.clone()));
    let mut all: Vec<_> = named
        .filter(|(name, one)| {
            filter.is_process(one.pid, name) || filter.is_connection([one.local, one.remote])
        })
        .collect();
    all.sort_by(|(a_name, a), (b_name, b)| {
        let order = match sort.by {
            Column::Pid => a.pid.cmp(&b.pid),
            Column::Name => a_name.cmp(b_name),
            Column::Flow => (a.remote, a.local).cmp(&(b.remote, b.local)),
            Column::Failed => a.how.name().cmp(b.how.name()),
            Column::Lasted => a.lasted_ns.cmp(&b.lasted_ns),
            _ => a.wall_ns.cmp(&b.wall_ns),
        };
        let order = if sort.is_ascending { order } else { order.reverse() };
        order.then(b.wall_ns.cmp(&a.wall_ns))
    });
    all
}

/// The short name of a time of traffic of these protocols.
pub(super) fn time_name(direction: Direction, protocols: Protocols, time: usize) -> &'static str {
    match time.checked_sub(FIRST_PART) {
        _ if time == RTT => "rtt",
        _ if time == TRANSIT => "transit",
        _ if time == ANSWER && direction == Direction::In => "response",
        _ if time == ANSWER => "service",
        None if time == TOTAL => "total",
        None => stage_names(direction, protocols)[time],
        // They are called the same in both.
        Some(part) => split(direction, Protocol::Tcp)[part].map_or("", |place| FINE_STAGES[place].column),
    }
}

/// Short names of the stages of traffic of these protocols, in display order.
fn stage_names(direction: Direction, protocols: Protocols) -> [&'static str; crate::packet::event::COLUMNS] {
    match (protocols.tcp, protocols.udp, direction) {
        (true, true, Direction::In) => ["drv-ip", "ip-*", "*-app"],
        (true, true, Direction::Out) => ["app-*", "*-ip", "ip-drv"],
        (_, true, _) => crate::packet::stages::columns(direction, Protocol::Udp),
        _ => crate::packet::stages::columns(direction, Protocol::Tcp),
    }
}
