//! Puts rows together to journeys, and decides when one has ended.

use std::time::Duration;

use net_latency_common::{
    COMM_LEN, Direction, IPPROTO_TCP,
    journey::{
        CONTEXT_HARDIRQ, CONTEXT_PROCESS, CONTEXT_SOFTIRQ, JourneyRow, JourneyStart, ROW_DROP, ROW_FREED,
        ROW_KEPT, ROW_QUEUED, ROW_RAISED_BY_INTERRUPT, ROW_READ, ROW_UNWATCHED, ROW_WANTED,
    },
};
use rustc_hash::{FxHashMap, FxHashSet};

use super::model::{Context, Journey, Outcome, Row, address};
use crate::{
    packet::event::Protocol,
    probes::journey::{Names, Record, Stage},
    request::{PacketFilter, Pick},
};

/// How long nothing more may have come of a packet that has ended.
const QUIET_NS: u64 = 50_000_000;
/// A packet of which nothing came for this long is given up.
const PATIENCE: Duration = Duration::from_secs(10);
/// Rows of one journey; what comes behind them is counted.
const MOST_ROWS: usize = 4096;

/// Filters of journeys that can only be checked when they have ended.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted {
    /// It must take this long.
    slower_ns: u64,
    /// One of these devices must be on it, if there are any.
    interfaces: Vec<Vec<u8>>,
    /// It must end in a drop.
    is_drop: bool,
}

impl Wanted {
    pub(super) fn new(filter: &PacketFilter, pick: Pick) -> Self {
        Self {
            is_drop: pick == Pick::Drops,
            slower_ns: filter.slower.map_or(0, |least| u64::try_from(least.as_nanos()).unwrap_or(u64::MAX)),
            interfaces: filter.interfaces.iter().map(|name| name.clone().into_bytes()).collect(),
        }
    }

    fn admits(&self, journey: &Journey) -> bool {
        journey.total() >= self.slower_ns
            && (!self.is_drop || matches!(journey.outcome, Outcome::Dropped { .. }))
            && (self.interfaces.is_empty()
                || journey.rows.iter().any(|row| self.interfaces.contains(&row.device)))
    }
}

/// A journey under way.
struct Open {
    start: JourneyStart,
    rows: Vec<JourneyRow>,
    /// Addresses of skbs that carry the packet.
    alive: FxHashSet<u64>,
    is_wanted: bool,
    is_queued: bool,
    is_unwatched: bool,
    read_at: u64,
    dropped: Option<(u64, u32)>,
    /// When something last came of it.
    last: u64,
}

/// What came of it.
pub(super) enum End {
    /// To be shown.
    Shown(Box<Journey>),
    /// Not what was requested.
    Other,
    /// It waited on a socket's queue with too many others to be seen there.
    Unwatched,
}

/// Journeys under way.
#[derive(Default)]
pub(super) struct Assembler {
    open: FxHashMap<u64, Open>,
    wanted: Wanted,
    /// Rows that were another packet's, whose buffer had been this one's.
    pub(super) foreign: u64,
    /// Rows beyond what a journey can have.
    pub(super) beyond: u64,
}

impl Assembler {
    pub(super) fn new(wanted: Wanted) -> Self {
        Self { wanted, ..Self::default() }
    }

    /// Takes in what the kernel side says.
    pub(super) fn take(&mut self, record: &Record) {
        match record {
            Record::Start(start) => {
                let open = Open {
                    start: *start,
                    rows: Vec::new(),
                    alive: FxHashSet::default(),
                    is_wanted: start.is_wanted != 0,
                    is_queued: false,
                    is_unwatched: false,
                    read_at: 0,
                    dropped: None,
                    last: 0,
                };
                self.open.insert(start.id, open);
            }
            Record::Row(row) => {
                // The row of a journey that was given up.
                let Some(open) = self.open.get_mut(&row.id) else { return };
                if is_foreign(&open.start, row.content) {
                    self.foreign += 1;
                } else if open.rows.len() >= MOST_ROWS {
                    self.beyond += 1;
                } else {
                    open.take(row);
                }
            }
        }
    }

    /// Those that have ended by `now`, or all of them; with their ids.
    pub(super) fn ended(&mut self, now: u64, are_all: bool, names: &Names) -> Vec<(u64, End)> {
        let mut ids: Vec<_> = self
            .open
            .iter()
            .filter(|(_, open)| are_all || open.has_ended(now))
            .map(|(id, open)| (open.rows.first().map_or(0, |row| row.at), *id))
            .collect();
        ids.sort_unstable();
        ids.into_iter()
            .filter_map(|(_, id)| {
                let open = self.open.remove(&id)?;
                Some((id, self.judge(open, names)))
            })
            .collect()
    }

    fn judge(&self, open: Open, names: &Names) -> End {
        if !open.is_wanted || open.rows.is_empty() {
            return End::Other;
        }
        if open.is_unwatched && open.read_at == 0 {
            return End::Unwatched;
        }
        let journey = open.into_journey(names);
        if self.wanted.admits(&journey) { End::Shown(Box::new(journey)) } else { End::Other }
    }
}

/// Whether what stands in the packet's place can't be this packet, or one that holds it.
fn is_foreign(start: &JourneyStart, content: u64) -> bool {
    /// No packet that GRO has put together is longer.
    const LONGEST: u32 = 1 << 20;
    if content == 0 {
        return false;
    }
    let [ports, second] = [(content >> 32) as u32, content as u32];
    let ours = u32::from(start.sport) << 16 | u32::from(start.dport);
    // Behind address translation ports may be others, but the sequence number is the same.
    if start.protocol == IPPROTO_TCP {
        let behind = start.seq.wrapping_sub(second);
        return ports != ours && behind > 1 || behind >= LONGEST;
    }
    // Length and checksum; GRO and fragments have other lengths.
    ports != ours && second >> 16 != start.len + 8
}

impl Open {
    fn take(&mut self, row: &JourneyRow) {
        if row.flags & ROW_KEPT != 0 {
            // What TCP keeps until it is acknowledged is not on its way.
            return;
        }
        self.last = self.last.max(row.at);
        if row.skb != 0 {
            if row.flags & ROW_FREED != 0 {
                self.alive.remove(&row.skb);
            } else {
                self.alive.insert(row.skb);
            }
        }
        if row.flags & ROW_READ != 0 {
            self.read_at = row.at;
            self.is_wanted |= row.flags & ROW_WANTED != 0;
        }
        self.is_queued |= row.flags & ROW_QUEUED != 0;
        self.is_unwatched |= row.flags & ROW_UNWATCHED != 0;
        if row.flags & ROW_DROP != 0 {
            self.dropped = Some((row.location, row.reason));
        }
        self.rows.push(*row);
    }

    fn has_ended(&self, now: u64) -> bool {
        let quiet = now.saturating_sub(self.last);
        if self.rows.is_empty() {
            return false;
        }
        let is_over = self.read_at != 0
            || self.dropped.is_some()
            || self.is_unwatched
            || self.alive.is_empty() && !self.is_queued;
        is_over && quiet > QUIET_NS || Duration::from_nanos(quiet) > PATIENCE
    }

    fn into_journey(mut self, names: &Names) -> Journey {
        self.rows.sort_by_key(|row| row.at);
        let outcome = self.outcome(names);
        let mut rows = Vec::new();
        let mut seen = FxHashSet::default();
        let mut previous = None;
        for row in &self.rows {
            for earlier in before(row, previous, names) {
                if seen.insert((earlier.cpu, earlier.at)) {
                    rows.push(earlier);
                }
            }
            previous = Some(row.at);
            let (function, stage) = names.place(row.place);
            rows.push(Row {
                at: row.at,
                cpu: row.cpu,
                context: context(row),
                function,
                stage,
                device: text(&row.device),
                netns: row.netns,
                interrupt: None,
                is_own: true,
            });
            if row.flags & ROW_READ != 0 {
                // An skb that is freed after the read is no part of the way.
                break;
            }
        }
        let start = &self.start;
        let is_tcp = start.protocol == IPPROTO_TCP;
        Journey {
            id: start.id,
            protocol: Protocol::of(start.protocol),
            source: (address(start, start.saddr), start.sport),
            destination: (address(start, start.daddr), start.dport),
            seq: is_tcp.then_some(start.seq),
            len: start.len,
            mark: self.rows.iter().rev().map(|row| row.mark).find(|mark| *mark != 0).unwrap_or(start.mark),
            direction: if start.direction == Direction::In as u8 { Direction::In } else { Direction::Out },
            rows,
            outcome,
        }
    }

    fn outcome(&self, names: &Names) -> Outcome {
        if let Some(read) = self.rows.iter().find(|row| row.flags & ROW_READ != 0) {
            return Outcome::Read { comm: text(&read.comm), pid: read.pid };
        }
        if let Some((location, reason)) = self.dropped {
            return Outcome::Dropped {
                function: names.function_at(location),
                reason: names.reason(reason).map(str::to_owned),
            };
        }
        if self.is_queued {
            Outcome::Waiting
        } else if self.alive.is_empty() {
            Outcome::Freed
        } else {
            Outcome::Lost
        }
    }
}

/// What the CPU did between the place before and this one, in order to come here: a softirq, its raising, and the
/// interrupt whose handler had the driver's packets taken there.
fn before(row: &JourneyRow, previous: Option<u64>, names: &Names) -> impl Iterator<Item = Row> {
    let place = |at: u64, function: &str, context, stage| Row {
        at,
        cpu: row.cpu,
        context,
        function: function.to_owned(),
        stage,
        device: Vec::new(),
        netns: 0,
        interrupt: None,
        is_own: previous.is_some(),
    };
    // For the packet's first place it can't be told whether the softirq began on its behalf.
    let earliest = previous.unwrap_or(0);
    let earlier = |at: u64, later: u64| Some(at).filter(|at| *at > earliest && *at <= later);
    let entered = earlier(row.softirq_at, row.at).filter(|_| row.context == CONTEXT_SOFTIRQ);
    let raised = entered.and_then(|entered| earlier(row.raised_at, entered));
    // Who raises it otherwise isn't known.
    let raiser = if row.flags & ROW_RAISED_BY_INTERRUPT == 0 { Context::Unknown } else { Context::Hardirq };
    let handled =
        raised.and_then(|raised| earlier(row.interrupt_at, raised)).filter(|_| raiser == Context::Hardirq);
    let handled = handled.map(|at| Row {
        interrupt: Some(names.interrupt(row.interrupt)),
        ..place(at, "irq_handler_entry", Context::Hardirq, Stage::Interrupt)
    });
    let raised = raised.map(|at| place(at, "softirq_raise", raiser, Stage::Softirq));
    let entered = entered.map(|at| place(at, "softirq_entry", Context::Softirq, Stage::Softirq));
    handled.into_iter().chain(raised).chain(entered)
}

fn context(row: &JourneyRow) -> Context {
    match row.context {
        CONTEXT_PROCESS => Context::Process { comm: text(&row.comm), pid: row.pid, tid: row.tid },
        CONTEXT_SOFTIRQ => Context::Softirq,
        CONTEXT_HARDIRQ => Context::Hardirq,
        _ => Context::Unknown,
    }
}

/// Up to the NUL that ends it.
fn text(name: &[u8; COMM_LEN]) -> Vec<u8> {
    name.split(|&byte| byte == 0).next().unwrap_or_default().to_vec()
}
