//! Connections and listening sockets as metrics. What a series counts never falls, and their number is bounded: listeners have series of
//! their own, first come, first served, and all others share one more.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use net_latency_common::{ConnectionCounter, ConnectionCounters, ListenerRecord, bucket};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    cells::Cells,
    families::{OTHER, counter},
    model::{MetricFamily, MetricType},
    names::{EPHEMERAL, UNKNOWN},
};
use crate::escape::bounded;

/// How long the series of one that listens no more stay, so that all scrapers get its last counts.
const KEPT: Duration = Duration::from_secs(300);
/// The role of this machine on a connection.
pub(crate) const ROLES: [&str; 3] = ["client", "server", UNKNOWN];
/// The labels of listeners.
const LABELS: [&str; 2] = ["port", "process"];

/// A connection that has ended, or failed to begin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    /// Of [`ROLES`], by number.
    pub(crate) role: usize,
    /// A word for how it ended.
    pub(crate) result: &'static str,
    /// How long the handshake took, ns, if that is known.
    pub(crate) handshake_ns: Option<u64>,
    /// How long it waited for `accept`, ns, likewise.
    pub(crate) accept_ns: Option<u64>,
}

/// Counts of times by bucket.
#[derive(Debug, Default)]
struct Times(BTreeMap<u32, u64>);

impl Times {
    fn add(&mut self, ns: Option<u64>) {
        if let Some(ns) = ns {
            *self.0.entry(bucket(ns) as u32).or_default() += 1;
        }
    }

    /// Adds them to a family, if there are any.
    fn write(&self, family: &mut MetricFamily, labels: &[(&'static str, &str)]) {
        let cells = Cells::of_sorted(self.0.iter().map(|(&bucket, &count)| (0, bucket, count)));
        if let Some(histogram) = cells.histogram(0) {
            family.add_histogram(labels, histogram);
        }
    }
}

/// What a listening socket has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    accepted: u64,
    overflows: u64,
    dropped: u64,
}

impl Counts {
    fn of(record: &ListenerRecord) -> Self {
        Self { accepted: record.accepted, overflows: record.overflows, dropped: record.drops }
    }

    /// The counts since; all of them where one is less, which is another socket's then.
    fn since(self, before: Self) -> Self {
        let since = |now: u64, before: u64| now.checked_sub(before);
        let counts = || {
            Some(Self {
                accepted: since(self.accepted, before.accepted)?,
                overflows: since(self.overflows, before.overflows)?,
                dropped: since(self.dropped, before.dropped)?,
            })
        };
        counts().unwrap_or(self)
    }
}

/// The listeners at a port, of one name.
#[derive(Debug)]
struct Group {
    counts: Counts,
    /// In the accept queues now, and at most in one of them so far.
    waiting: u64,
    most_waiting: u32,
    /// How many the largest of them has room for.
    backlog: u32,
    /// When one of them was there.
    seen: Instant,
}

impl Group {
    fn new(now: Instant) -> Self {
        Self { counts: Counts::default(), waiting: 0, most_waiting: 0, backlog: 0, seen: now }
    }

    fn add(&mut self, counted: Counts, record: &ListenerRecord, now: Instant) {
        self.counts.accepted += counted.accepted;
        self.counts.overflows += counted.overflows;
        self.counts.dropped += counted.dropped;
        self.most_waiting = self.most_waiting.max(record.most_waiting);
        self.seen = now;
        if record.is_closed == 0 {
            self.waiting += u64::from(record.waiting);
            self.backlog = self.backlog.max(record.backlog);
        }
    }
}

/// All of it.
#[derive(Debug)]
pub(crate) struct Connections {
    ended: BTreeMap<(usize, &'static str), u64>,
    /// By role: clients, servers.
    handshakes: [Times; 2],
    accepts: Times,
    /// Groups that may have series of their own.
    most: usize,
    ephemeral: (u16, u16),
    /// What the last record of each socket that listens has counted.
    sockets: FxHashMap<u64, Counts>,
    own: BTreeMap<[String; 2], Group>,
    /// All without series of their own, if there were any.
    others: Option<Group>,
}

impl Connections {
    /// Nothing counted. Connections may end in these ways; `most` listeners may have series of their own. Those at a port from
    /// `ephemeral.0` to `ephemeral.1` are one.
    pub(crate) fn new(
        most: usize,
        ephemeral: (u16, u16),
        results: impl Iterator<Item = &'static str> + Clone,
    ) -> Self {
        // A counter that begins with its first event has no rate then.
        let all = (0..ROLES.len()).flat_map(|role| results.clone().map(move |result| ((role, result), 0)));
        Self {
            ended: all.collect(),
            handshakes: Default::default(),
            accepts: Times::default(),
            most,
            ephemeral,
            sockets: FxHashMap::default(),
            own: BTreeMap::new(),
            others: None,
        }
    }

    /// A connection has ended.
    pub(crate) fn end(&mut self, ended: &Ended) {
        *self.ended.entry((ended.role, ended.result)).or_default() += 1;
        if let Some(handshakes) = self.handshakes.get_mut(ended.role) {
            handshakes.add(ended.handshake_ns);
        }
        self.accepts.add(ended.accept_ns);
    }

    /// All sockets that listen, which are `there`, are about to be told of. The records of those that were closed before have been.
    pub(crate) fn begin_look(&mut self, there: &FxHashSet<u64>) {
        // One that is neither has its last record lost.
        self.sockets.retain(|socket, _| there.contains(socket));
        for group in self.own.values_mut().chain(&mut self.others) {
            (group.waiting, group.backlog) = (0, 0);
        }
    }

    /// They have been.
    pub(crate) fn end_look(&mut self, now: Instant) {
        self.own.retain(|_, group| now - group.seen < KEPT);
    }

    /// How a socket is that listens, or was when it was closed.
    pub(crate) fn listener(&mut self, record: &ListenerRecord, now: Instant) {
        let told = Counts::of(record);
        let before = if record.is_closed == 0 {
            self.sockets.insert(record.socket, told)
        } else {
            self.sockets.remove(&record.socket)
        };
        let counted = told.since(before.unwrap_or_default());
        let labels = [self.port(record.port), process(record)];
        if let Some(group) = self.own.get_mut(&labels) {
            return group.add(counted, record, now);
        }
        // One without any connection has no series.
        if counted == Counts::default() && record.waiting == 0 {
            return;
        }
        let group = if self.own.len() < self.most {
            self.own.entry(labels).or_insert_with(|| Group::new(now))
        } else {
            self.others.get_or_insert_with(|| Group::new(now))
        };
        group.add(counted, record, now);
    }

    fn port(&self, port: u16) -> String {
        let (first, last) = self.ephemeral;
        if (first..=last).contains(&port) { EPHEMERAL.to_owned() } else { port.to_string() }
    }

    /// The metrics, with losses, and how often the kernel skipped a program if it counts that.
    pub(crate) fn families(&self, lost: &ConnectionCounters, skipped: Option<u64>) -> Vec<MetricFamily> {
        let mut families = vec![self.ended(), self.handshakes(), self.accepts(), losses(lost, skipped)];
        families.extend(self.listening());
        families
    }

    fn ended(&self) -> MetricFamily {
        let mut family =
            counter("net_latency_connections_total", "TCP connections that ended, or failed to begin.");
        for (&(role, result), &count) in &self.ended {
            family.add(&[("role", ROLES[role]), ("result", result)], count as f64);
        }
        family
    }

    fn handshakes(&self) -> MetricFamily {
        let help = "Handshakes of TCP connections that ended.";
        let mut family =
            MetricFamily::new("net_latency_connection_handshake_seconds", MetricType::Histogram, help);
        for (role, times) in ROLES.into_iter().zip(&self.handshakes) {
            times.write(&mut family, &[("role", role)]);
        }
        family
    }

    fn accepts(&self) -> MetricFamily {
        let help = "Time that TCP connections that ended had waited for accept.";
        let mut family =
            MetricFamily::new("net_latency_connection_accept_seconds", MetricType::Histogram, help);
        self.accepts.write(&mut family, &[]);
        family
    }

    fn listening(&self) -> [MetricFamily; 6] {
        let gauge = |name, help| MetricFamily::new(name, MetricType::Gauge, help);
        let mut families = [
            counter("net_latency_listen_accepted_total", "Connections returned by accept."),
            counter("net_latency_listen_overflows_total", "Handshakes dropped by a full accept queue."),
            counter(
                "net_latency_listen_dropped_total",
                "Segments of handshakes that listening sockets dropped.",
            ),
            gauge("net_latency_listen_waiting", "Connections in the accept queue."),
            gauge("net_latency_listen_most_waiting", "Most connections in one accept queue so far."),
            gauge("net_latency_listen_backlog", "Connections that fit into the accept queue."),
        ];
        let others = self.others.as_ref().map(|group| ([OTHER; 2], group));
        let own = self.own.iter().map(|([port, process], group)| ([port.as_str(), process], group));
        for (values, group) in own.chain(others) {
            let labels: Vec<_> = LABELS.into_iter().zip(values).collect();
            let Group { counts, waiting, most_waiting, backlog, .. } = group;
            let values = [
                counts.accepted as f64,
                counts.overflows as f64,
                counts.dropped as f64,
                *waiting as f64,
                f64::from(*most_waiting),
                f64::from(*backlog),
            ];
            families.iter_mut().zip(values).for_each(|(family, value)| family.add(&labels, value));
        }
        families
    }
}

fn losses(lost: &ConnectionCounters, skipped: Option<u64>) -> MetricFamily {
    let help =
        "Connections whose beginning or end is not known, and listening sockets whose queue is not known.";
    let mut family = counter("net_latency_connection_losses_total", help);
    for (kind, counter) in [
        ("ring_full", ConnectionCounter::RingFull),
        ("table_full", ConnectionCounter::TableFull),
        ("listeners_full", ConnectionCounter::ListenersFull),
    ] {
        family.add(&[("kind", kind)], lost[counter as usize] as f64);
    }
    if let Some(skipped) = skipped {
        family.add(&[("kind", "skipped_calls")], skipped as f64);
    }
    family
}

fn process(record: &ListenerRecord) -> String {
    let end = record.process.iter().position(|&byte| byte == 0).unwrap_or(record.process.len());
    if end == 0 { UNKNOWN.to_owned() } else { bounded(&record.process[..end]) }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::export::form::Form;

    fn nginx(socket: u64, port: u16) -> ListenerRecord {
        ListenerRecord {
            socket,
            port,
            accepted: 5,
            overflows: 2,
            drops: 3,
            waiting: 1,
            most_waiting: 4,
            backlog: 8,
            process: *b"nginx\0\0\0\0\0\0\0\0\0\0\0",
            ..ListenerRecord::default()
        }
    }

    /// Some of everything.
    pub(in crate::export) fn some() -> Connections {
        let now = Instant::now();
        let mut connections = Connections::new(1, (32_768, 60_999), ["closed", "refused"].into_iter());
        connections.end(&Ended {
            role: 1,
            result: "closed",
            handshake_ns: Some(80_000),
            accept_ns: Some(3_000_000),
        });
        connections.end(&Ended { role: 0, result: "refused", handshake_ns: None, accept_ns: None });
        look(&mut connections, &[nginx(1, 443), nginx(2, 40_000)], now);
        connections
    }

    /// Port, process, accepted, waiting.
    fn shown(connections: &Connections) -> Vec<String> {
        let text = Form::Text.encode(&connections.families(&[0; 3], None));
        let text = String::from_utf8(text).expect("text");
        let is_shown = |line: &&str| {
            line.starts_with("net_latency_listen_accepted_total{")
                || line.starts_with("net_latency_listen_waiting{")
        };
        text.lines().filter(is_shown).map(|line| line.replace("net_latency_listen_", "")).collect()
    }

    fn look(connections: &mut Connections, records: &[ListenerRecord], now: Instant) {
        connections.begin_look(&records.iter().map(|record| record.socket).collect());
        records.iter().for_each(|record| connections.listener(record, now));
        connections.end_look(now);
    }

    #[test]
    fn counts_of_a_socket_are_its_groups_once() {
        let now = Instant::now();
        let mut connections = Connections::new(5, (32_768, 60_999), [].into_iter());
        // Two of a group, and one without any connection.
        let idle = ListenerRecord {
            socket: 3,
            port: 80,
            process: *b"idle\0\0\0\0\0\0\0\0\0\0\0\0",
            ..ListenerRecord::default()
        };
        look(&mut connections, &[nginx(1, 443), nginx(2, 443), idle], now);
        let [accepted, waiting] =
            ["accepted_total", "waiting"].map(|name| format!("{name}{{port=\"443\",process=\"nginx\"}} "));
        assert_eq!(shown(&connections), [format!("{accepted}10"), format!("{waiting}2")]);
        // Asked about again, and closed.
        let more = ListenerRecord { accepted: 9, ..nginx(1, 443) };
        look(&mut connections, &[more, nginx(2, 443)], now);
        assert_eq!(shown(&connections), [format!("{accepted}14"), format!("{waiting}2")]);
        let closed = ListenerRecord { accepted: 11, is_closed: 1, waiting: 0, ..more };
        connections.listener(&closed, now);
        look(&mut connections, &[nginx(2, 443)], now);
        assert_eq!(shown(&connections), [format!("{accepted}16"), format!("{waiting}1")]);
        // Another socket at an address, of which the first one's end was lost.
        look(&mut connections, &[ListenerRecord { accepted: 1, ..nginx(2, 443) }], now);
        assert_eq!(shown(&connections), [format!("{accepted}17"), format!("{waiting}1")]);
        look(&mut connections, &[], now);
        look(&mut connections, &[nginx(2, 443)], now);
        // If the answer about a listener is lost, it does not become another one later.
        connections.begin_look(&FxHashSet::from_iter([2]));
        look(&mut connections, &[nginx(2, 443)], now);
        assert_eq!(shown(&connections), [format!("{accepted}22"), format!("{waiting}1")]);
        look(&mut connections, &[], now + KEPT);
        assert_eq!(shown(&connections), [""; 0]);
    }

    #[test]
    fn beyond_the_cap_all_are_one_and_nothing_falls() {
        let now = Instant::now();
        let mut connections = Connections::new(1, (32_768, 60_999), [].into_iter());
        let all = [nginx(1, 443), nginx(2, 80), nginx(3, 40_000)];
        look(&mut connections, &all, now);
        let first = "accepted_total{port=\"443\",process=\"nginx\"} 5";
        let others = "accepted_total{port=\"other\",process=\"other\"} ";
        assert_eq!(shown(&connections)[..2], [first.to_owned(), format!("{others}10")]);
        // The first has gone, and another has its place: what it had stays where it was.
        connections.listener(&ListenerRecord { is_closed: 1, ..all[0] }, now);
        look(&mut connections, &all[1..], now + KEPT);
        let more = [ListenerRecord { accepted: 8, ..all[1] }, all[2]];
        look(&mut connections, &more, now + KEPT);
        let second = "accepted_total{port=\"80\",process=\"nginx\"} 3";
        assert_eq!(
            shown(&connections)[..2],
            [format!("{others}10"), second.to_owned()][..].iter().rev().cloned().collect::<Vec<_>>()
        );
    }

    #[test]
    fn no_label_has_an_ephemeral_port_or_what_a_terminal_obeys() {
        let now = Instant::now();
        let mut connections = Connections::new(5, (32_768, 60_999), [].into_iter());
        let named = |name: &[u8; 16]| ListenerRecord { process: *name, ..nginx(1, 32_768) };
        look(&mut connections, &[named(&[0; 16])], now);
        connections.listener(&ListenerRecord { socket: 2, ..named(b"\x1b[2Jx\0\0\0\0\0\0\0\0\0\0\0") }, now);
        let shown = shown(&connections).join("\n");
        assert!(
            shown.contains("port=\"ephemeral\",process=\"unknown\"") && !shown.contains('\x1b'),
            "{shown}"
        );
    }
}
