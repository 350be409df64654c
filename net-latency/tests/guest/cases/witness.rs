//! A second witness: the kernel's own tracer stamps the same functions while the tool does, and both
//! have to agree, packet by packet. xtask gives these tests a guest whose clock counts instructions.

use std::{
    collections::{HashMap, HashSet},
    fmt,
};

use anyhow::{Context as _, Result, ensure};
use rustix::time::{ClockId, clock_gettime};

use super::Case;
use crate::{
    arch,
    ftrace::{self, CLOCK_NS, Entry, Event, Tracing, place},
    lines::{Dir, Line, Proto, stages},
    net::{Path, Version},
    oracle::{self, Conversation},
    peers::Pair,
    tool::{Backend, Launch, Outcome},
};

pub(crate) const CASES: &[Case] = &[
    ("witness_loopback_v4", |backend| witness(backend, &Path::loopback(Version::V4)?, FUNCTIONS_V4)),
    ("witness_veth_v6", |backend| witness(backend, &Path::veth(Version::V6)?, FUNCTIONS_V6)),
];

const ROUNDS: usize = 1000;
const LEN: u32 = 200;

/// What two probes at one place may lie apart in 90 % of all packets: what either costs, in instructions, which a nanosecond each is
/// where these tests run. Up to 2,600 were seen on x86-64, and on arm64, where a kprobe takes two exceptions, 3,300 of two of them.
/// That each of our stamps lies between two of ftrace's holds for all packets.
const PROBE_NS: i64 = 3_500;
/// What a line's time may be wrong by, since it is mapped to the wall clock by a sample.
const MAPPING_NS: i64 = 100_000;

/// The functions at which the tool stamps, of each group the first that the kernel has.
const FUNCTIONS_V4: &[&[&str]] =
    &[&[WRITE], &["tcp_v4_send_check", "__ip_queue_xmit"], &["ip_output"], &["ip_rcv_core"], &["tcp_v4_rcv"]];
const FUNCTIONS_V6: &[&[&str]] = &[
    &[WRITE],
    &["tcp_v6_send_check", "inet6_csk_xmit"],
    &["ip6_output"],
    &["ip6_rcv_core"],
    &["tcp_v6_rcv"],
];
const WRITE: &str = "tcp_sendmsg_locked";
/// A function, and the tracepoint in it.
const TAKE: &str = "tcp_rcv_space_adjust";

const EVENTS: &[Event] = &[
    Event { system: "net", name: "net_dev_queue", fields: &["skbaddr", "len"] },
    Event { system: "net", name: "netif_rx", fields: &["skbaddr", "len"] },
    // Between the backlog and IP: it says which skb the calls that follow on that CPU are about.
    Event { system: "net", name: "netif_receive_skb", fields: &["skbaddr"] },
    Event { system: "tcp", name: TAKE, fields: &["sport", "dport"] },
];

/// ftrace's stamps of one packet in the order of its stages.
type Stamps = [u64; 4];

fn witness(backend: Backend, path: &Path, functions: &[&[&'static str]]) -> Result<()> {
    // ftrace shall stamp first where it can, since it returns sooner. Of two probes on a tracepoint the older one
    // runs first (`func_add`), of two on a function the newer one (`add_ftrace_ops`), fentry's after all.
    let mut tracing = Tracing::of_events(EVENTS)?;
    let tool = Launch::new(backend).start()?;
    let mut functions = functions.to_vec();
    // At its beginning, before any tracepoint in it.
    let takes_by_kprobe = ftrace::kprobes()?.iter().any(|function| function == TAKE);
    functions.extend(takes_by_kprobe.then_some(&[TAKE] as &[&str]));
    tracing.set_functions(&functions)?;
    let mut pair = Pair::connect(path)?;
    pair.converse(ROUNDS.try_into()?, LEN)?;
    let entries = tracing.stop()?;
    let offset = clock_offset();
    let outcome = tool.stop()?;

    let testimony = Testimony::of(&entries);
    let order = |dir, stage| {
        let is_function = match (dir, stage) {
            (Dir::Out, 3) | (Dir::In, 0) => false,
            (Dir::In, 3) => takes_by_kprobe,
            _ => true,
        };
        match backend {
            Backend::Kprobe if arch::KPROBES_COME_FIRST && is_function => Order::First,
            Backend::Auto if arch::KPROBES_COME_FIRST && is_function => Order::Unknown,
            _ => Order::Second,
        }
    };
    for conversation in oracle::check(&outcome, &[&pair])? {
        conversation.expect_rounds(&outcome, ROUNDS, LEN)?;
        compare(&outcome, &conversation, &testimony, &pair, offset, order)?;
    }
    Ok(())
}

/// What `CLOCK_REALTIME` is ahead of `CLOCK_MONOTONIC`, ns.
fn clock_offset() -> i64 {
    let read = |clock| {
        let time = clock_gettime(clock);
        time.tv_sec * 1_000_000_000 + time.tv_nsec
    };
    let readings = (0..100).map(|_| {
        let (before, wall, after) =
            (read(ClockId::Monotonic), read(ClockId::Realtime), read(ClockId::Monotonic));
        (after - before, wall - (before + after) / 2)
    });
    readings.min().map_or(0, |(_, offset)| offset)
}

/// What ftrace saw of the conversation: the data packets that each task wrote and took.
#[derive(Default)]
struct Testimony {
    sent: HashMap<u32, Vec<Stamps>>,
    taken: HashMap<u32, Vec<Stamps>>,
}

impl Testimony {
    /// Puts the entries together to packets. One request is on its way, or one reply, never two of them: all entries between a write and a
    /// read are of one packet. Acknowledgements come between, but are smaller.
    fn of(entries: &[Entry]) -> Self {
        let mut testimony = Self::default();
        // A softirq may interrupt a task's transmission and send something of its own, of which we need not see all:
        // an ACK, or what IPv6 says to its neighbours.
        let mut transmissions: HashMap<_, Stamps> = HashMap::new();
        let mut written = HashMap::new();
        // What a call writes is sent once. Where the CPU was taken away for 0.2 s, TCP sends it again, by an skb that arrives too.
        let mut copies = HashSet::new();
        // A data packet on its way in: its skb and stamps, and where it is being received.
        let mut arriving: Option<(u64, Stamps)> = None;
        let mut receiver = None;
        for entry in entries {
            let at = entry.at;
            let place = place(entry.task, entry.cpu);
            let transmission = (place, entry.in_softirq);
            match (entry.name, entry.fields.as_slice()) {
                (WRITE, _) => {
                    written.insert(entry.task, at);
                }
                ("tcp_v4_send_check" | "__ip_queue_xmit" | "tcp_v6_send_check" | "inet6_csk_xmit", _) => {
                    let app = written.get(&entry.task).copied().unwrap_or(0);
                    transmissions.insert(transmission, [app, at, 0, 0]);
                }
                ("ip_output" | "ip6_output", _) => {
                    if let Some(stamps) = transmissions.get_mut(&transmission) {
                        stamps[2] = at;
                    }
                }
                ("net_dev_queue", [skb, len]) => {
                    if let Some([app, tcp, ip, _]) = transmissions.remove(&transmission)
                        && *len >= LEN.into()
                    {
                        if written.get(&entry.task) == Some(&app) {
                            written.remove(&entry.task);
                            testimony.sent.entry(entry.task).or_default().push([app, tcp, ip, at]);
                        } else {
                            copies.insert(*skb);
                        }
                    }
                }
                ("netif_rx", [skb, len]) if *len >= LEN.into() && !copies.remove(skb) => {
                    arriving = Some((*skb, [at, 0, 0, 0]));
                }
                ("netif_receive_skb", [skb]) => {
                    if arriving.is_some_and(|(arriving, _)| arriving == *skb) {
                        receiver = Some(place);
                    } else if receiver == Some(place) {
                        receiver = None;
                    }
                }
                ("ip_rcv_core" | "ip6_rcv_core", _) if receiver == Some(place) => {
                    if let Some((_, stamps)) = &mut arriving {
                        stamps[1] = at;
                    }
                }
                ("tcp_v4_rcv" | "tcp_v6_rcv", _) if receiver == Some(place) => {
                    if let Some((_, stamps)) = &mut arriving {
                        stamps[2] = at;
                    }
                    receiver = None;
                }
                (TAKE, _) => {
                    if let Some((_, [drv, ip, tcp, _])) = arriving.take() {
                        testimony.taken.entry(entry.task).or_default().push([drv, ip, tcp, at]);
                    }
                }
                _ => {}
            }
        }
        testimony
    }
}

/// Who stamps a stage first.
enum Order {
    /// The tool.
    First,
    /// ftrace.
    Second,
    /// The tool does by a kprobe, which it may have or not.
    Unknown,
}

/// Of every stage and every column: the tool's number less ftrace's.
fn compare(
    outcome: &Outcome,
    conversation: &Conversation,
    testimony: &Testimony,
    pair: &Pair,
    offset: i64,
    order: impl Fn(Dir, usize) -> Order,
) -> Result<()> {
    let (client, server) = (pair.client.pid(), pair.server.pid());
    let mut comparisons = Vec::new();
    let requests = |lines| conversation.requests_numbered(lines, LEN).collect::<Vec<_>>();
    let replies = |lines| conversation.replies_numbered(lines, LEN).collect::<Vec<_>>();
    for (what, lines, seen) in [
        ("requests out", requests(&conversation.requests_out), testimony.sent.get(&client)),
        ("requests in", requests(&conversation.requests_in), testimony.taken.get(&server)),
        ("replies out", replies(&conversation.replies_out), testimony.sent.get(&server)),
        ("replies in", replies(&conversation.replies_in), testimony.taken.get(&client)),
    ] {
        let seen = seen.with_context(|| outcome.fault(format_args!("ftrace saw no {what}"), []))?;
        let count = seen.len();
        ensure!(count == ROUNDS, outcome.fault(format_args!("ftrace saw {count} {what}"), []));
        for stamps in seen {
            ensure!(stamps.is_sorted() && stamps[0] > 0, "ftrace's stamps of {what} are wrong: {stamps:?}");
        }
        // What may be missing, or have a gap, is not compared; the oracle has counted it.
        let both: Vec<_> = lines
            .iter()
            .filter(|(_, line)| !line.stages.contains(&None))
            .map(|(number, line)| Ok((*line, seen.get(*number).context("a packet that ftrace has not")?)))
            .collect::<Result<_>>()?;
        for (line, stamps) in &both {
            ensure!(
                is_interleaved(line, stamps, offset, |stage| order(line.dir, stage))?,
                outcome.fault(format_args!("{what}: ftrace says {stamps:?} + {offset}"), [*line])
            );
        }
        let dir = both.first().context("no whole line")?.0.dir;
        for (column, name) in stages(dir, Proto::Tcp).into_iter().enumerate() {
            let mut differences = Vec::new();
            for (line, stamps) in &both {
                let ours = i64::try_from(line.stages[column].context("a stage is unknown")?)?;
                differences.push(ours - i64::try_from(stamps[column + 1] - stamps[column])?);
            }
            // The probes' costs don't cancel each other out where the tool comes first at one end, and ftrace at the other.
            let probes = match [column, column + 1].map(|stage| order(dir, stage)) {
                [Order::First, Order::First] | [Order::Second, Order::Second] => 1,
                _ => 2,
            };
            comparisons.push(Comparison::of(format!("{what}, {name}"), differences, probes));
        }
        let names = match dir {
            Dir::In => ["drv", "ip", "tcp", "app"],
            Dir::Out => ["app", "tcp", "ip", "drv"],
        };
        for (stage, name) in names.into_iter().enumerate() {
            let mut differences = Vec::new();
            for (line, stamps) in &both {
                differences.push(stamp(line, stage)? - offset - i64::try_from(stamps[stage])?);
            }
            comparisons.push(Comparison::of(format!("{what}, stamp {name}"), differences, 1));
        }
    }
    println!("tool less ftrace in ns: median, then size: p90, max");
    for comparison in &comparisons {
        println!("  {comparison}");
    }
    let disagreements: Vec<_> =
        comparisons.iter().filter(|comparison| !comparison.is_agreement()).map(ToString::to_string).collect();
    ensure!(
        disagreements.is_empty(),
        outcome.fault(format_args!("the tool and ftrace disagree: {disagreements:#?}"), [])
    );
    Ok(())
}

/// Whether each of a line's stamps was taken after ftrace's of the same stage and before ftrace's of the next one, or where ours comes
/// first, after the one before and before the same, as it must be, whatever interrupts come between.
fn is_interleaved(line: &Line, stamps: &Stamps, offset: i64, order: impl Fn(usize) -> Order) -> Result<bool> {
    // What may be added to the line's time so that it is so.
    let (mut least, mut most) = (-MAPPING_NS, MAPPING_NS);
    for stage in 0..4 {
        let ours = stamp(line, stage)? - offset;
        let (earlier, later) = match order(stage) {
            Order::First => (stage.checked_sub(1), stage),
            Order::Second => (Some(stage), stage + 1),
            Order::Unknown => (stage.checked_sub(1), stage + 1),
        };
        if let Some(earlier) = earlier {
            least = least.max(i64::try_from(stamps[earlier])? - ours);
        }
        if let Some(later) = stamps.get(later) {
            most = most.min(i64::try_from(*later)? - ours);
        }
    }
    Ok(least <= most + CLOCK_NS)
}

/// When a line's packet crossed a stage, ns since 1970: its time is that of the last one.
fn stamp(line: &Line, stage: usize) -> Result<i64> {
    let last = line.ts.timestamp_nanos_opt().context("ts")?;
    let later: Option<u64> = line.stages[stage..].iter().copied().sum();
    Ok(last - i64::try_from(later.context("a stage is unknown")?)?)
}

/// How far the tool and ftrace are apart in one number of every packet of a kind.
struct Comparison {
    what: String,
    median: i64,
    /// 90 % are not larger, whichever way they go.
    most: i64,
    largest: i64,
    /// How many probes' costs may be in it.
    probes: i64,
}

impl Comparison {
    fn of(what: String, mut differences: Vec<i64>, probes: i64) -> Self {
        let at = |sorted: &[i64], percent: usize| sorted[(sorted.len() - 1) * percent / 100];
        differences.sort_unstable();
        let median = at(&differences, 50);
        differences.iter_mut().for_each(|difference| *difference = difference.abs());
        differences.sort_unstable();
        Self { what, median, most: at(&differences, 90), largest: at(&differences, 100), probes }
    }

    /// Whether these can be two probes at one place.
    fn is_agreement(&self) -> bool {
        self.most <= PROBE_NS * self.probes
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}, {}, {}", self.what, self.median, self.most, self.largest)
    }
}
