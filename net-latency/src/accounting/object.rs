//! The footer for programs: one JSON object on one line, which docs/footer.schema.json describes.

use std::{net::IpAddr, time::Duration};

use net_latency_common::Direction;
use serde::{Serialize, Serializer, ser::SerializeMap as _};

use super::{
    Balance, Cost, Figures, Packet, Percentiles, Reasons, Summary, drops::DroppedAt, losses, tcp::Tcp,
    worst::culprit,
};
use crate::{
    clock::{Zone, rfc3339},
    escape::lossy,
    packet::{
        event::{COLUMNS, Protocol},
        stages::{dir, of_row, stages as stages_of},
    },
};

/// The time that figures are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// What came since the object before.
    Interval,
    /// The whole run, at its end.
    End,
}

/// What shows the packets, or the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum View {
    /// Lines.
    Stream,
    /// The live table.
    Top,
    /// Distributions.
    Hist,
    /// Metrics.
    Export,
    /// What makes services slow.
    Diagnose,
    /// Single packets.
    Journey,
    /// Calls of functions.
    Calls,
    /// TCP connections.
    Connections,
    /// The last minutes.
    Record,
}

/// What every object begins with.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Head {
    kind: Kind,
    view: View,
    elapsed_ns: u64,
}

impl Head {
    /// The head for figures of this time.
    #[must_use]
    pub(crate) fn new(kind: Kind, view: View, elapsed: Duration) -> Self {
        Self { kind, view, elapsed_ns: nanos(elapsed) }
    }
}

/// The stage fields of a packet, in the order in which it crosses them.
fn fields(direction: Direction, protocol: Protocol) -> [&'static str; COLUMNS] {
    stages_of(direction, protocol).map(|stage| stage.field)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The object of a view that shows packets.
#[derive(Debug, Serialize)]
pub(crate) struct Object {
    #[serde(flatten)]
    head: Head,
    packets_in: u64,
    packets_out: u64,
    seen: u64,
    from_before: u64,
    shown: u64,
    outside: u64,
    inconsistent: u64,
    filtered: u64,
    lost: u64,
    evicted: u64,
    dropped: u64,
    duplicates: u64,
    waiting: u64,
    in_flight: u64,
    counted_twice: u64,
    skipped_calls: Option<u64>,
    losses: Losses,
    drops: Vec<DroppedAt>,
    unknown_stages: Reasons,
    stages: Vec<Stage>,
    slowest: Vec<Slow>,
    /// `null` where connections are not looked at.
    tcp: Option<Tcp>,
    cost: Option<Expense>,
}

impl Object {
    /// From figures of one time; `slowest` are shown with times in `zone`.
    pub(crate) fn new<'a>(
        kind: Kind,
        view: View,
        balance: &Balance<'_>,
        stages: Vec<Stage>,
        slowest: impl Iterator<Item = Packet<'a>>,
        zone: Zone,
    ) -> Self {
        let Balance { packets: [packets_in, packets_out], elapsed, losses, ledger, cost } = *balance;
        let mut unknown_stages = Reasons::default();
        stages.iter().for_each(|stage| unknown_stages.add(&stage.unknown_stages.0));
        let nowhere = ledger.unaccounted();
        Self {
            head: Head::new(kind, view, elapsed),
            packets_in,
            packets_out,
            seen: ledger.seen,
            from_before: ledger.from_before,
            shown: ledger.shown,
            outside: ledger.outside,
            inconsistent: ledger.inconsistent,
            filtered: ledger.filtered,
            lost: ledger.lost,
            evicted: ledger.evicted,
            dropped: ledger.dropped,
            duplicates: ledger.duplicates,
            waiting: ledger.waiting,
            in_flight: u64::try_from(nowhere).unwrap_or(0),
            counted_twice: u64::try_from(-nowhere).unwrap_or(0),
            skipped_calls: losses.missed_probes,
            losses: Losses(*losses),
            drops: losses.drops.as_json(),
            unknown_stages,
            stages,
            slowest: slowest.map(|packet| Slow::new(&packet, zone)).collect(),
            tcp: None,
            cost: cost.map(Expense::new),
        }
    }

    /// For a view that has a summary of the packets it showed.
    pub(crate) fn of_summary(
        kind: Kind,
        view: View,
        balance: &Balance<'_>,
        summary: &Summary,
        zone: Zone,
    ) -> Self {
        let mut object = Self::new(kind, view, balance, stages(summary), summary.worst.packets(), zone);
        object.unknown_stages.add(&summary.table.unknown_answers);
        Self { tcp: summary.connections.as_ref().map(|connections| connections.tcp().clone()), ..object }
    }
}

/// Losses by name.
#[derive(Debug)]
struct Losses(losses::Losses);

impl Serialize for Losses {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.kinds().filter_map(|loss| Some((loss.name?, loss.count))))
    }
}

/// The figures of each stage of each direction and protocol that has had a packet.
fn stages(summary: &Summary) -> Vec<Stage> {
    let ways = summary.table.ways().filter(|(_, _, way)| way.packets > 0);
    ways.flat_map(|(direction, protocol, way)| {
        let times = way.rows(direction, protocol);
        times.map(move |(row, times)| Stage::new(direction, protocol, row, &times.figures()))
    })
    .collect()
}

/// The times of one stage of one direction and protocol.
#[derive(Debug, Serialize)]
pub(crate) struct Stage {
    dir: &'static str,
    proto: &'static str,
    stage: &'static str,
    count: u64,
    min_ns: Option<u64>,
    #[serde(flatten)]
    percentiles: Percentiles,
    unknown: u64,
    unknown_stages: Reasons,
}

impl Stage {
    /// Row `row` is a column, or behind them the total, or behind that a part of the last column.
    #[must_use]
    pub(crate) fn new(direction: Direction, protocol: Protocol, row: usize, figures: &Figures) -> Self {
        let Figures { count, min_ns, percentiles, unknown, reasons } = *figures;
        Self {
            dir: dir(direction),
            proto: protocol.name(),
            stage: of_row(direction, protocol, row).map_or("total_ns", |stage| stage.field),
            count,
            min_ns,
            percentiles,
            unknown,
            unknown_stages: Reasons(reasons),
        }
    }
}

/// One of the slowest packets.
#[derive(Debug, Serialize)]
struct Slow {
    ts: Option<String>,
    dir: &'static str,
    proto: &'static str,
    pid: Option<u32>,
    process: Option<String>,
    comm: Option<String>,
    saddr: Option<IpAddr>,
    sport: Option<u16>,
    daddr: Option<IpAddr>,
    dport: Option<u16>,
    #[serde(flatten)]
    stages: StageTimes,
    total_ns: Option<u64>,
    /// The stage that took most of its time.
    mostly: Option<&'static str>,
}

impl Slow {
    fn new(packet: &Packet<'_>, zone: Zone) -> Self {
        let names = fields(packet.direction, packet.protocol);
        let [from, to] = packet.ends.map_or([None; 2], |ends| ends.map(Some));
        Self {
            ts: packet.wall_ns.map(|wall_ns| rfc3339(wall_ns, zone)),
            dir: dir(packet.direction),
            proto: packet.protocol.name(),
            pid: packet.pid,
            process: packet.process.map(lossy),
            comm: packet.comm.map(lossy),
            saddr: from.map(|end| end.ip()),
            sport: from.map(|end| end.port()),
            daddr: to.map(|end| end.ip()),
            dport: to.map(|end| end.port()),
            stages: StageTimes { names, times: packet.stages },
            total_ns: packet.total,
            mostly: culprit(packet).map(|(stage, _)| stage.field),
        }
    }
}

/// Fields of a packet's stages, as in its line.
#[derive(Debug)]
struct StageTimes {
    names: [&'static str; COLUMNS],
    times: [Option<u64>; COLUMNS],
}

impl Serialize for StageTimes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(COLUMNS))?;
        for (name, time) in self.names.iter().zip(self.times) {
            map.serialize_entry(name, &time)?;
        }
        map.end()
    }
}

/// What tracing has cost.
#[derive(Debug, Serialize)]
struct Expense {
    own_cpu_ns: u64,
    programs_cpu_ns: Option<u64>,
    resident_bytes: u64,
}

impl Expense {
    fn new(cost: &Cost) -> Self {
        Self {
            own_cpu_ns: nanos(cost.own),
            programs_cpu_ns: cost.programs.map(nanos),
            resident_bytes: cost.resident_bytes,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use net_latency_common::{
        Counter, Counters, DroppingSockets, FLAG_AMBIGUOUS, FLAG_CONTROL, FLAG_RETRANS, FLAG_WRITE_EVICTED,
        IPPROTO_TCP, IPPROTO_UDP, PacketRecord, STAMPS,
    };
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        accounting::{Drops, Footer, Ledger},
        output::{schema, tests::any_record},
        packet::event::{
            Event,
            fixtures::{WALL_NS, incoming, outgoing, udp},
        },
        request::FooterFormat,
    };

    const SCHEMA: &str = include_str!("../../../docs/footer.schema.json");

    /// The object in a footer's text, which must be one line that is as described.
    pub(crate) fn valid(text: &str) -> Value {
        let line = text.strip_suffix('\n').expect("ends with a newline");
        assert!(line.starts_with('{') && !line.contains('\n'), "{text}");
        let value: Value = serde_json::from_str(line).expect("valid JSON");
        assert_eq!(schema::check(&described(), &value), Ok(()), "{text}");
        value
    }

    fn described() -> Value {
        serde_json::from_str(SCHEMA).expect("the schema is JSON")
    }

    /// When tracing began, as far as the records' stamps go.
    const START: u64 = 1_010_000;

    fn footer(summary: &Summary, losses: &losses::Losses, ledger: &Ledger) -> String {
        let cost = Cost {
            own: Duration::from_millis(5),
            elapsed: Duration::from_secs(1),
            resident_bytes: 19_000_000,
            programs: None,
        };
        let elapsed = Duration::from_millis(12_345);
        let packets = summary.by_direction();
        let balance = Balance { packets, elapsed, losses, ledger, cost: Some(&cost) };
        let footer = Footer { balance, summary, view: View::Stream, zone: Zone::UTC };
        let mut out = Vec::new();
        footer.write(FooterFormat::Json, &mut out).expect("memory can be written");
        String::from_utf8(out).expect("JSON is UTF-8")
    }

    fn seen(records: &[PacketRecord]) -> Summary {
        let mut summary = Summary::since(START);
        for record in records {
            summary.record_event(&Event::new(record, WALL_NS, None));
        }
        summary
    }

    #[test]
    fn one_line_has_every_figure() {
        let mut again = outgoing();
        again.stamps = [2_000_000, 1_900_000, 1_800_000, 0];
        again.flags = FLAG_RETRANS;
        let summary = seen(&[incoming(), again, udp(outgoing())]);
        let sockets = DroppingSockets { netns: 5, port: 53, protocol: IPPROTO_UDP, is_client: 0 };
        let losses = losses::Losses {
            drops: Drops::new([(sockets, 6)]),
            counters: Counters { values: std::array::from_fn(|index| index as u64 + 1) },
            evicted_in: 20,
            missed_probes: Some(30),
            unwritten: 40,
            not_kept: 45,
            slow_held_back: 50,
            slow_unwritten: 60,
            slow_inconsistent: 70,
        };
        let ledger =
            Ledger { seen: 100, from_before: 7, shown: 3, outside: 3, inconsistent: 2, ..Ledger::default() };
        let text = footer(&summary, &losses, &ledger);
        assert_eq!(valid(&text)["in_flight"], json!(99));
        insta::assert_snapshot!(text);
    }

    #[test]
    fn nothing_seen_is_as_described() {
        let losses = losses::Losses { missed_probes: None, ..losses::Losses::default() };
        let twice = Ledger { seen: 3, shown: 5, ..Ledger::default() };
        let value = valid(&footer(&Summary::default(), &losses, &twice));
        assert_eq!((&value["in_flight"], &value["counted_twice"]), (&json!(0), &json!(2)));
        assert_eq!((&value["skipped_calls"], &value["stages"]), (&Value::Null, &json!([])));
    }

    #[test]
    fn what_is_not_as_described_is_found() {
        let summary = seen(&[incoming(), outgoing()]);
        let value = valid(&footer(&summary, &losses::Losses::default(), &Ledger::default()));
        let fields = value.as_object().expect("an object");
        for name in fields.keys() {
            let mut value = value.clone();
            value.as_object_mut().expect("an object").remove(name);
            assert!(schema::check(&described(), &value).is_err(), "without {name}");
            value[name] = json!(-1);
            assert!(schema::check(&described(), &value).is_err(), "{name} of -1");
        }
        for view in ["calls", "journey"] {
            let mut value = value.clone();
            value["view"] = json!(view);
            assert!(schema::check(&described(), &value).is_err(), "figures of {view}");
        }
    }

    proptest! {
        #[test]
        fn every_unknown_time_has_a_reason(
            records in proptest::collection::vec(
                (any_record(), any::<bool>(), any::<[u8; STAMPS]>(), 0..16u16),
                1..40,
            ),
        ) {
            let records: Vec<_> = records
                .into_iter()
                .map(|(record, is_udp, stamps, flags)| {
                    let bits = [FLAG_CONTROL, FLAG_RETRANS, FLAG_AMBIGUOUS, FLAG_WRITE_EVICTED];
                    PacketRecord {
                        protocol: if is_udp { IPPROTO_UDP } else { IPPROTO_TCP },
                        // Many are 0, some are before the start, some contradict others.
                        stamps: stamps.map(|stamp| u64::from(stamp / 32) * (START / 4)),
                        flags: (0..).zip(bits).map(|(n, bit)| if flags >> n & 1 == 1 { bit } else { 0 }).sum(),
                        ..record
                    }
                })
                .collect();
            let losses = losses::Losses::default();
            let value = valid(&footer(&seen(&records), &losses, &Ledger::default()));
            let sum = |reasons: &Value| -> u64 {
                reasons.as_object().expect("an object").values().filter_map(Value::as_u64).sum()
            };
            let stages = value["stages"].as_array().expect("an array");
            for stage in stages {
                prop_assert_eq!(Some(sum(&stage["unknown_stages"])), stage["unknown"].as_u64());
                // Counted apart, from the lines.
                let field = stage["stage"].as_str().expect("a name");
                let mut counts = [0u64; 2];
                for record in &records {
                    let event = Event::new(record, WALL_NS, None);
                    if dir(event.direction()) != stage["dir"] || event.protocol().name() != stage["proto"] {
                        continue;
                    }
                    let names = fields(event.direction(), event.protocol());
                    let time = match names.iter().position(|name| *name == field) {
                        Some(column) => event.stage(column),
                        None => event.total_ns(),
                    };
                    // The times are those of first sends.
                    match time.filter(|_| !event.is_retransmission()) {
                        Some(_) => counts[0] += 1,
                        None if event.is_control() => {}
                        None => counts[1] += 1,
                    }
                }
                prop_assert_eq!([stage["count"].as_u64(), stage["unknown"].as_u64()], counts.map(Some));
            }
            let unknown: u64 = stages.iter().filter_map(|stage| stage["unknown"].as_u64()).sum();
            prop_assert_eq!(sum(&value["unknown_stages"]), unknown);
        }

        #[test]
        fn any_losses_are_as_described(counts in any::<[u32; Counter::ALL.len()]>(), skipped: Option<u32>) {
            let losses = losses::Losses {
                counters: Counters { values: counts.map(u64::from) },
                missed_probes: skipped.map(u64::from),
                ..losses::Losses::default()
            };
            let value = valid(&footer(&seen(&[incoming()]), &losses, &Ledger::default()));
            prop_assert_eq!(&value["losses"]["ring_full"], &json!(counts[Counter::RingFull as usize]));
            prop_assert_eq!(&value["skipped_calls"], &json!(skipped));
        }
    }
}
