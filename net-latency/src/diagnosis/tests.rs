//! Traffic that never was: services with one fault, with several, and with none, and what is said of them.

use std::time::Duration;

use insta::assert_snapshot;
use net_latency_common::{
    Counter, Direction, DroppingSockets, FLAG_DROPPED, FLAG_RETRANS, FLAG_RTO, FLAG_ZERO_WINDOW, Held,
    IPPROTO_TCP, PARTS, PacketRecord, STAMP_APP, STAMP_TRANSPORT, Unknown, unknown_part,
};
use proptest::prelude::*;
use serde_json::Value;

use super::{
    Headline, Model, Recent,
    cause::Cause,
    finding::{Confidence, Finding, Verdict},
    json, judge,
    machine::{Machine, Throttled},
    text, words,
};
use crate::{
    accounting::{Drops, Losses},
    clock::Zone,
    kernel::{cpus::Ran, tasks::Allowed},
    output::{Options, Writer, schema, tests::any_record},
    packet::event::{
        Event,
        fixtures::{WALL_NS, comm, outgoing, udp},
        held_name,
    },
    request::{Format, PacketFilter, ReplayConfig, Speed},
    source::{RecordSource as _, log::replay::Replay},
};

const SCHEMA: &str = include_str!("../../../docs/diagnose.schema.json");
const US: u64 = 1_000;
const MS: u64 = 1_000_000;
/// How long a fault holds packets up.
const STRENGTHS: [u64; 3] = [2 * MS, 10 * MS, 50 * MS];
/// Ports from which the kernel gives some out.
const EPHEMERAL: (u16, u16) = (32_768, 60_999);

/// Where a packet's time goes, ns.
#[derive(Clone, Copy)]
struct Times {
    drv_ip: u64,
    ip_tcp: u64,
    gap: u64,
    wait: u64,
    cpu: u64,
    copy: u64,
    service: u64,
    app_tcp: u64,
    tcp_ip: u64,
    ip_drv: u64,
    qdisc: u64,
    driver: u64,
    net: u64,
}

const USUAL: Times = Times {
    drv_ip: 20 * US,
    ip_tcp: 10 * US,
    gap: 0,
    wait: 8 * US,
    cpu: 50 * US,
    copy: 10 * US,
    service: 200 * US,
    app_tcp: 30 * US,
    tcp_ip: 5 * US,
    ip_drv: 6 * US,
    qdisc: 2 * US,
    driver: 5 * US,
    net: 150 * US,
};

/// A process and its port.
#[derive(Clone, Copy)]
struct Who {
    pid: u32,
    name: &'static str,
    port: u16,
}

const ORDERS: Who = Who { pid: 101, name: "orders", port: 8_001 };
const BILLING: Who = Who { pid: 102, name: "billing", port: 8_002 };
const SEARCH: Who = Who { pid: 103, name: "search", port: 8_003 };
const ALL: [Who; 3] = [ORDERS, BILLING, SEARCH];
/// Who has the CPUs that readers wait for.
const HOLDER: u32 = 150;

/// Packets, each with its parts and when its line was complete.
#[derive(Clone, Default)]
struct Traffic {
    packets: Vec<(i64, PacketRecord, [u64; PARTS])>,
    dice: u64,
    is_basic: bool,
}

impl Traffic {
    /// About so long: 75 % to 125 %.
    fn about(&mut self, ns: u64) -> u64 {
        self.dice = self.dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ns * (75 + (self.dice >> 33) % 51) / 100
    }

    fn varied(&mut self, times: Times) -> Times {
        Times {
            drv_ip: self.about(times.drv_ip),
            ip_tcp: self.about(times.ip_tcp),
            gap: self.about(times.gap),
            wait: self.about(times.wait),
            cpu: self.about(times.cpu),
            copy: self.about(times.copy),
            service: self.about(times.service),
            app_tcp: self.about(times.app_tcp),
            tcp_ip: self.about(times.tcp_ip),
            ip_drv: self.about(times.ip_drv),
            qdisc: self.about(times.qdisc),
            driver: self.about(times.driver),
            net: self.about(times.net),
        }
    }

    fn record(
        who: Who,
        remote: [u8; 4],
        [local_port, remote_port]: [u16; 2],
        direction: Direction,
    ) -> PacketRecord {
        let address = |[a, b, c, d]: [u8; 4]| {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&[a, b, c, d]);
            bytes
        };
        let (here, there) = (address([10, 0, 0, 1]), address(remote));
        let is_out = direction == Direction::Out;
        PacketRecord {
            saddr: if is_out { here } else { there },
            daddr: if is_out { there } else { here },
            sport: if is_out { local_port } else { remote_port },
            dport: if is_out { remote_port } else { local_port },
            comm: comm(b"worker"),
            process: comm(who.name.as_bytes()),
            pid: who.pid,
            tid: who.pid,
            len: 200,
            other: 0,
            direction: direction as u8,
            ..outgoing()
        }
    }

    /// A packet that comes to the driver at `at`; when the process has it.
    fn incoming(&mut self, record: PacketRecord, at: u64, times: Times) -> u64 {
        let Times { drv_ip, ip_tcp, gap, wait, cpu, copy, .. } = times;
        let ip = at + drv_ip;
        let tcp = ip + ip_tcp;
        let app = tcp + gap + wait + cpu + copy;
        let record = PacketRecord { stamps: [at, ip, tcp, app], rtt_or_holder: HOLDER, ..record };
        self.packets.push((wall(app), record, [gap, wait, cpu, copy]));
        app
    }

    /// A packet that is written at `at`; when its ACK comes.
    fn outgoing(&mut self, record: PacketRecord, at: u64, times: Times) -> u64 {
        let Times { app_tcp, tcp_ip, ip_drv, qdisc, driver, net, .. } = times;
        let tcp = at + app_tcp;
        let ip = tcp + tcp_ip;
        let queued = ip + ip_drv;
        let acked = queued + qdisc + net;
        let record = PacketRecord { stamps: [queued, ip, tcp, at], ..record };
        let finished = if self.is_basic { queued } else { acked };
        self.packets.push((wall(finished), record, [qdisc, driver, net, finished]));
        acked
    }

    /// A server that answers requests, one each 20 ms besides what they take: of each three, one has the times `slow`.
    fn server(&mut self, who: Who, rounds: u64, usual: Times, slow: Times) {
        let mut at = 1_000 * MS + u64::from(who.pid) * MS;
        for round in 0..rounds {
            let times = self.varied(if round % 3 == 0 { slow } else { usual });
            at = self.exchange(who, at, times) + 20 * MS;
        }
    }

    /// One request and its answer; when the answer's ACK comes.
    fn exchange(&mut self, who: Who, at: u64, times: Times) -> u64 {
        let ports = [who.port, 40_000 + who.pid as u16];
        let remote = [10, 0, 0, 9];
        let read = self.incoming(Self::record(who, remote, ports, Direction::In), at, times);
        self.outgoing(Self::record(who, remote, ports, Direction::Out), read + times.service, times)
    }

    /// A stream of full packets, one each millisecond.
    fn stream(&mut self, who: Who, packets: u64, usual: Times, slow: Times) {
        for number in 0..packets {
            let times = self.varied(if number % 3 == 0 { slow } else { usual });
            let record = Self::record(who, [10, 0, 0, 9], [who.port, 40_000 + who.port], Direction::Out);
            self.outgoing(PacketRecord { len: 1_448, ..record }, 1_000 * MS + number * MS, times);
        }
    }

    /// A client that asks a server at `remote`, which has each request for so long; the ACK comes with the answer.
    fn client(&mut self, who: Who, remote: [u8; 4], rounds: u64, answer: u64) {
        let mut at = 1_000 * MS;
        for _ in 0..rounds {
            let mut times = self.varied(USUAL);
            times.net = self.about(answer);
            let ports = [45_000, who.port];
            let record = Self::record(who, remote, ports, Direction::Out);
            let acked = self.outgoing(record, at, times);
            let record = Self::record(who, remote, ports, Direction::In);
            // TCP had the packet a little before it took its ACK.
            let came = acked - 15 * US - times.drv_ip - times.ip_tcp;
            // It thinks for a second now and then.
            at = self.incoming(record, came, times) + self.about(300 * MS);
        }
    }

    fn model(&self) -> Model {
        self.fill(Model::new(Duration::from_millis(1), EPHEMERAL))
    }

    fn fill(&self, mut model: Model) -> Model {
        self.feed(|event| model.record(event));
        model.finish();
        model
    }

    /// In order of completion.
    fn feed(&self, mut take: impl FnMut(&Event<'_>)) {
        let mut packets = self.packets.clone();
        packets.sort_by_key(|(wall, ..)| *wall);
        for (wall, record, parts) in &packets {
            let event = Event::new(record, *wall, Some(b"eth0"));
            take(&event.with_parts((!self.is_basic).then_some(parts)));
        }
    }

    fn verdict(&self) -> Verdict {
        judge(&self.model(), None)
    }
}

fn wall(ns: u64) -> i64 {
    WALL_NS + ns as i64
}

fn faults(verdict: &Verdict) -> Vec<&Finding> {
    verdict.findings.iter().collect()
}

/// Cause, process and direction of each fault, in a fixed order.
fn told(verdict: &Verdict) -> Vec<(Cause, u32, Direction)> {
    let of = |finding: &Finding| {
        let (cause, pid) = (finding.cause, finding.pid);
        let first = finding.who.as_ref().map(|who| (cause, pid, who.direction));
        let also =
            finding.also.iter().map(move |who| (cause, who.processes.pid().unwrap_or(0), who.direction));
        first.into_iter().chain(also).collect::<Vec<_>>()
    };
    let mut told: Vec<_> = verdict.findings.iter().flat_map(of).collect();
    told.sort_by_key(|(_, pid, direction)| (*pid, *direction as u8));
    told
}

fn shown(verdict: &Verdict) -> String {
    let mut out = Vec::new();
    text::write(verdict, true, &mut out);
    String::from_utf8(out).expect("UTF-8")
}

/// A fault as a test makes it: its cause, the direction that has it, and the time that it prolongs.
type Fault = (Cause, Direction, fn(&mut Times) -> &mut u64);

const FAULTS: [Fault; 10] = [
    (Cause::ReaderLate, Direction::In, |times| &mut times.wait),
    (Cause::ReaderLate, Direction::In, |times| &mut times.copy),
    (Cause::CpuWait, Direction::In, |times| &mut times.cpu),
    (Cause::MissingBytes, Direction::In, |times| &mut times.gap),
    (Cause::SoftirqLate, Direction::In, |times| &mut times.drv_ip),
    (Cause::SoftirqLate, Direction::In, |times| &mut times.ip_tcp),
    (Cause::TcpHeld, Direction::Out, |times| &mut times.app_tcp),
    (Cause::SoftirqLate, Direction::Out, |times| &mut times.tcp_ip),
    (Cause::SoftirqLate, Direction::Out, |times| &mut times.ip_drv),
    (Cause::Qdisc, Direction::Out, |times| &mut times.qdisc),
];

#[test]
fn each_fault_of_one_service_is_found_there_and_nowhere_else() {
    for (cause, direction, time) in FAULTS {
        for strength in STRENGTHS {
            let mut slow = USUAL;
            *time(&mut slow) += strength;
            let mut traffic = Traffic::default();
            traffic.server(ORDERS, 300, USUAL, USUAL);
            traffic.server(BILLING, 300, USUAL, slow);
            traffic.server(SEARCH, 300, USUAL, USUAL);
            let verdict = traffic.verdict();
            assert_eq!(told(&verdict), [(cause, BILLING.pid, direction)], "{strength} {}", shown(&verdict));
            let finding = faults(&verdict)[0];
            // The shortest leads what the application takes by less.
            let least = if strength > 2 * MS { Confidence::High } else { Confidence::Medium };
            assert!(finding.confidence >= least, "{}", shown(&verdict));
            assert!(finding.p99_ns.is_some_and(|p99| p99 * 4 >= strength * 3), "{}", shown(&verdict));
            assert!(
                finding.evidence.iter().any(|line| line.contains("it is its own")),
                "{:?}",
                finding.evidence
            );
        }
    }
}

#[test]
fn who_had_the_cpu_is_named_and_whether_affinity_forces_it() {
    let mut traffic = Traffic::default();
    traffic.server(ORDERS, 300, USUAL, Times { cpu: 10 * MS, ..USUAL });
    let said = |model: &Model| faults(&judge(model, None))[0].evidence.join("\n");
    // Of a log nobody is asked.
    let mut model = traffic.model();
    let wait = "had that CPU until the reader got it: 100 % of the wait";
    assert!(said(&model).contains(&format!("\nPID {HOLDER} {wait}")), "{}", said(&model));
    let allowed = Allowed { count: 1, first: 3, online: 4 };
    let name = |pid, _| (pid == HOLDER).then(|| comm(b"ba\x1bckup"));
    model.ask(name, |pid, tid, _| ((pid, tid) == (ORDERS.pid, ORDERS.pid)).then_some(allowed));
    assert!(
        said(&model).contains(&format!("PID {HOLDER}, {wait}\naffinity forces it: ")),
        "{}",
        said(&model)
    );
    let text = shown(&judge(&model, None));
    assert!(text.contains("ba\\x1bckup, PID 150") && !text.contains('\x1b'), "{text}");
    // A service is known by its packets.
    traffic.server(Who { pid: HOLDER, ..SEARCH }, 30, USUAL, USUAL);
    let text = said(&traffic.model());
    assert!(text.contains(&format!("\nsearch, PID {HOLDER}, {wait}")), "{text}");
}

#[test]
fn a_thread_of_the_same_process_is_said_to_be() {
    let mut traffic = Traffic::default();
    traffic.server(Who { pid: HOLDER, ..ORDERS }, 300, USUAL, Times { cpu: 10 * MS, ..USUAL });
    let evidence = faults(&traffic.verdict())[0].evidence.join("\n");
    assert!(evidence.contains("\nanother thread of its own had that CPU"), "{evidence}");
}

#[test]
fn affinity_is_told_as_it_is() {
    let said = [(1, 1, 2), (2, 4, 8), (8, 0, 8), (1, 0, 1)]
        .map(|(count, first, online)| words::may_run(Allowed { count, first, online }));
    let expected = [
        "affinity forces it: of 2 CPUs its reader may use CPU 1 only",
        "affinity narrows it: of 8 CPUs its reader may use 2",
        "affinity does not force it: its reader may use all 8 CPUs",
        "affinity does not force it: this machine has no other CPU",
    ];
    assert_eq!(said, expected);
}

#[test]
fn a_fault_of_all_services_is_one_line() {
    for (cause, direction, time) in FAULTS {
        // What adds 0.7 ms to each answer of all may be the machine's noise.
        for strength in &STRENGTHS[1..] {
            let mut slow = USUAL;
            *time(&mut slow) += *strength;
            let mut traffic = Traffic::default();
            ALL.iter().for_each(|who| traffic.server(*who, 300, USUAL, slow));
            let verdict = traffic.verdict();
            let [finding] = faults(&verdict)[..] else { panic!("{}", shown(&verdict)) };
            if cause == Cause::CpuWait {
                // How busy the CPUs were nobody has said.
                assert_eq!((finding.cause, finding.confidence), (Cause::CpuShort, Confidence::Low));
                assert_eq!((finding.packets, finding.affected), (900, 300));
                continue;
            }
            assert_eq!(told(&verdict), ALL.map(|who| (cause, who.pid, direction)), "{}", shown(&verdict));
            let is_all = |line: &String| line.contains("all 3 have this");
            assert!(finding.evidence.iter().any(is_all), "{:?}", finding.evidence);
        }
    }
}

#[test]
fn a_slow_network_is_found_by_the_acks_of_full_packets() {
    for strength in STRENGTHS {
        let slow = Times { net: strength, ..USUAL };
        for is_of_all in [false, true] {
            let mut traffic = Traffic::default();
            for who in ALL {
                let times = if is_of_all || who.pid == BILLING.pid { slow } else { USUAL };
                traffic.stream(who, 600, times, times);
            }
            let verdict = traffic.verdict();
            let expected: Vec<_> = ALL
                .iter()
                .filter(|who| is_of_all || who.pid == BILLING.pid)
                .map(|who| (Cause::Network, who.pid, Direction::Out))
                .collect();
            assert_eq!(told(&verdict), expected, "{strength} {}", shown(&verdict));
        }
    }
}

#[test]
fn a_closed_window_is_the_peer_s() {
    for strength in STRENGTHS {
        let mut traffic = Traffic::default();
        traffic.server(ORDERS, 300, USUAL, Times { app_tcp: strength, ..USUAL });
        for (_, record, _) in &mut traffic.packets {
            let is_slow = record.stamps[2].abs_diff(record.stamps[3]) >= MS;
            if record.direction == Direction::Out as u8 && is_slow {
                record.flags |= FLAG_ZERO_WINDOW;
            }
        }
        let verdict = traffic.verdict();
        assert_eq!(told(&verdict), [(Cause::PeerWindow, ORDERS.pid, Direction::Out)], "{}", shown(&verdict));
    }
}

#[test]
fn a_peer_of_this_machine_whose_window_is_closed_is_named() {
    let (writer, reader) =
        (Who { pid: 1, name: "writer", port: 514 }, Who { pid: 2, name: "reader", port: 514 });
    let here = [10, 0, 0, 1];
    let mut traffic = Traffic::default();
    for round in 0..100 {
        let start = (1_000 + round * 100) * MS;
        let record = Traffic::record(writer, here, [45_000, 514], Direction::Out);
        let record = PacketRecord { flags: FLAG_ZERO_WINDOW, ..record };
        let acked = traffic.outgoing(record, start, Times { app_tcp: 20 * MS, ..USUAL });
        let record = Traffic::record(reader, here, [514, 45_000], Direction::In);
        traffic.incoming(record, acked, USUAL);
    }
    let verdict = traffic.verdict();
    let finding = faults(&verdict)[0];
    assert_eq!((finding.cause, finding.pid), (Cause::PeerWindow, 1), "{}", shown(&verdict));
    // Nothing was known of the reader before its first packet.
    let said = "a closed window held back 99 packets to reader, PID 2, on this machine";
    assert!(finding.evidence.iter().any(|line| line == said), "{:?}", finding.evidence);
}

/// Sends every tenth outgoing packet again.
fn with_retransmissions(mut traffic: Traffic, flags: u16, first_flags: u16) -> Traffic {
    let is_out = |record: &PacketRecord| record.direction == Direction::Out as u8;
    let mut again = Vec::new();
    let sent = traffic.packets.iter_mut().filter(|(_, record, _)| is_out(record));
    for (wall, record, parts) in sent.step_by(10) {
        record.flags |= first_flags;
        parts[2] = unknown_part(Unknown::SentAgain);
        let first = record.stamps[2];
        let stamps = record.stamps.map(|stamp| stamp + 200 * MS);
        let record = PacketRecord { stamps, other: first, flags: FLAG_RETRANS | flags, ..*record };
        again.push((*wall + 200_000_000, record, *parts));
    }
    traffic.packets.extend(again);
    traffic
}

#[test]
fn what_is_sent_again_is_counted_and_is_in_no_percentile() {
    let mut traffic = Traffic::default();
    traffic.server(ORDERS, 300, USUAL, USUAL);
    traffic.server(BILLING, 300, USUAL, USUAL);
    let traffic = with_retransmissions(traffic, FLAG_RTO, FLAG_RTO);
    let verdict = traffic.verdict();
    let expected = [ORDERS, BILLING].map(|who| (Cause::Retransmission, who.pid, Direction::Out));
    assert_eq!(told(&verdict), expected, "{}", shown(&verdict));
    let finding = faults(&verdict)[0];
    assert_eq!((finding.packets, finding.affected), (300, 30));
    assert_eq!(finding.p50_ns, Some(200 * MS));
    assert!(traffic.model().services[0].side(Direction::Out).total.max() < Some(MS));
    // What the device's queue drops is its fault.
    let mut traffic = Traffic::default();
    traffic.server(ORDERS, 300, USUAL, USUAL);
    let verdict = with_retransmissions(traffic, FLAG_RTO, FLAG_RTO | FLAG_DROPPED).verdict();
    assert_eq!(told(&verdict), [(Cause::Qdisc, ORDERS.pid, Direction::Out)]);
    assert_eq!(faults(&verdict)[0].next, "tc -s qdisc show dev eth0");
}

#[test]
fn datagrams_that_the_queue_drops_are_counted() {
    let mut traffic = Traffic::default();
    traffic.server(ORDERS, 300, USUAL, USUAL);
    let is_out = |record: &PacketRecord| record.direction == Direction::Out as u8;
    for (_, record, parts) in traffic.packets.iter_mut().filter(|(_, record, _)| is_out(record)).step_by(20) {
        record.flags |= FLAG_DROPPED;
        parts[..2].fill(unknown_part(Unknown::QueueDrop));
    }
    for (_, record, _) in &mut traffic.packets {
        *record = udp(*record);
    }
    let verdict = traffic.verdict();
    assert_eq!(told(&verdict), [(Cause::Qdisc, ORDERS.pid, Direction::Out)], "{}", shown(&verdict));
    assert_eq!(faults(&verdict)[0].affected, 15);
}

#[test]
fn what_loss_holds_back_is_the_loss() {
    let mut traffic = Traffic::default();
    traffic.server(ORDERS, 300, USUAL, Times { app_tcp: 50 * MS, ..USUAL });
    let verdict = with_retransmissions(traffic, FLAG_RTO, FLAG_RTO).verdict();
    assert_eq!(told(&verdict), [(Cause::Retransmission, ORDERS.pid, Direction::Out)]);
}

#[test]
fn a_few_retransmissions_are_none() {
    let mut traffic = Traffic::default();
    traffic.server(ORDERS, 2_000, USUAL, USUAL);
    let again: Vec<_> = with_retransmissions(traffic.clone(), 0, 0).packets[4_000..4_012].to_vec();
    traffic.packets.extend(again);
    let verdict = traffic.verdict();
    assert_eq!(told(&verdict), []);
}

#[test]
fn a_fast_system_is_blamed_for_nothing() {
    // In a fast one too some stage has most of the time, and outliers come.
    for usual in [USUAL, Times { cpu: 400 * US, ..USUAL }, Times { wait: 700 * US, net: 800 * US, ..USUAL }] {
        let mut traffic = Traffic::default();
        ALL.iter().for_each(|who| traffic.server(*who, 300, usual, usual));
        for (number, who) in ALL.into_iter().enumerate() {
            for late in 0..3 {
                let at = (2_000 + 700 * late + 50 * number as u64) * MS;
                traffic.exchange(who, at, Times { wait: 900 * MS, cpu: 30 * MS, qdisc: 70 * MS, ..USUAL });
            }
        }
        let verdict = traffic.verdict();
        assert!(verdict.findings.is_empty(), "{}", shown(&verdict));
        assert_eq!((verdict.normal.len(), verdict.unsure.len()), (6, 0), "{}", shown(&verdict));
    }
}

#[test]
fn a_system_that_is_slow_in_user_space_only_has_applications_that_are() {
    for strength in STRENGTHS {
        let slow = Times { service: strength, ..USUAL };
        let mut traffic = Traffic::default();
        ALL.iter().for_each(|who| traffic.server(*who, 300, slow, slow));
        // Requests of many clients wait for a process that is busy.
        let busy = Times { wait: strength * 3 / 4, ..slow };
        let frontend = Who { pid: 104, name: "frontend", port: 8_004 };
        traffic.server(frontend, 300, busy, busy);
        let verdict = traffic.verdict();
        assert!(verdict.findings.iter().all(|finding| finding.cause == Cause::Application));
        // What all applications take alike is no fault of one, unless it is much.
        let services = verdict
            .findings
            .iter()
            .filter(|it| it.who.as_ref().is_some_and(|who| who.direction == Direction::Out));
        let told: Vec<_> = services.map(|finding| 1 + finding.also.len()).collect();
        assert_eq!(told, &[4][..usize::from(strength > 20 * MS)], "{}", shown(&verdict));
    }
    // What one takes is.
    let slow = Times { service: 5 * MS, ..USUAL };
    let mut traffic = Traffic::default();
    ALL.iter()
        .for_each(|who| traffic.server(*who, 300, USUAL, if who.pid == SEARCH.pid { slow } else { USUAL }));
    let verdict = traffic.verdict();
    assert_eq!(told(&verdict), [(Cause::Application, SEARCH.pid, Direction::Out)], "{}", shown(&verdict));
    let first = shown(&verdict);
    let first = first.lines().next().unwrap_or_default();
    assert!(first.starts_with("search, PID 103, tcp port 8003: 100 of 300 answers take 5."), "{first}");
    assert!(first.ends_with(" ms of it in the application"), "{first}");
}

#[test]
fn stalls_that_hit_all_alike_are_nobody_s() {
    let mut traffic = Traffic::default();
    let stalled = Times { cpu: 60 * MS, drv_ip: 20 * MS, qdisc: 30 * MS, ..USUAL };
    for who in ALL {
        for round in 0..1_000 {
            // Of each second, the first tenth.
            let times = traffic.varied(if round % 50 < 5 { stalled } else { USUAL });
            traffic.exchange(who, (1_000 + round * 20) * MS + u64::from(who.pid) * 10_000, times);
        }
    }
    let verdict = traffic.verdict();
    assert!(verdict.findings.is_empty(), "{}", shown(&verdict));
    assert!(verdict.seen.stalls >= 20 && verdict.seen.stalls * 5 <= verdict.seen.windows);
    // The same of one service is its own.
    let mut traffic = Traffic::default();
    for who in ALL {
        for round in 0..1_000 {
            let is_slow = round % 50 < 5 && who.pid == SEARCH.pid;
            let times = traffic.varied(if is_slow { Times { cpu: 60 * MS, ..USUAL } } else { USUAL });
            traffic.exchange(who, (1_000 + round * 20) * MS + u64::from(who.pid) * 10_000, times);
        }
    }
    let verdict = traffic.verdict();
    assert_eq!(told(&verdict), [(Cause::CpuWait, SEARCH.pid, Direction::In)], "{}", shown(&verdict));
}

#[test]
fn delayed_acks_are_not_the_network() {
    // The last packet of an exchange, whose ACK the peer's timer sends.
    let mut traffic = Traffic::default();
    let delayed = Times { net: 44 * MS, ..USUAL };
    let at = |round: u64| (1_000 + round * 100) * MS;
    for round in 0..300 {
        let mut times = traffic.varied(delayed);
        times.net = times.net.max(40 * MS);
        traffic.exchange(ORDERS, at(round), times);
    }
    let verdict = traffic.verdict();
    assert_eq!(told(&verdict), [], "{}", shown(&verdict));
    let remark = verdict.normal.iter().find_map(|side| side.remark.as_deref());
    assert!(remark.is_some_and(|remark| remark.starts_with("300 ACKs came")), "{}", shown(&verdict));
    // Small packets of which two wait for one ACK.
    let mut traffic = Traffic::default();
    for round in 0..300 {
        let record = Traffic::record(ORDERS, [10, 0, 0, 9], [8_001, 40_000], Direction::Out);
        for later in [0, MS] {
            traffic.outgoing(record, at(round) + later, Times { net: 41 * MS - later, ..USUAL });
        }
    }
    assert_eq!(told(&traffic.verdict()), []);
}

#[test]
fn a_request_that_comes_late_is_not_the_network_of_the_answer_before() {
    // A client asks the next time after 10 ms: its ACK comes with that.
    let mut traffic = Traffic::default();
    for round in 0..300 {
        let start = (1_000 + round * 10) * MS;
        let ports = [ORDERS.port, 40_000];
        let read =
            traffic.incoming(Traffic::record(ORDERS, [10, 0, 0, 9], ports, Direction::In), start, USUAL);
        let acked_ns = start + 10 * MS + USUAL.drv_ip + USUAL.ip_tcp + 10 * US;
        let queued = read + USUAL.service + USUAL.app_tcp + USUAL.tcp_ip + USUAL.ip_drv;
        let times = Times { net: acked_ns - queued - USUAL.qdisc, ..USUAL };
        let record = Traffic::record(ORDERS, [10, 0, 0, 9], ports, Direction::Out);
        traffic.outgoing(record, read + USUAL.service, times);
    }
    assert_eq!(told(&traffic.verdict()), []);
}

#[test]
fn a_late_answer_is_the_peer_s_or_the_wire_s() {
    let client = Who { pid: 200, name: "client", port: 5_432 };
    let mut traffic = Traffic::default();
    traffic.client(client, [192, 0, 2, 7], 300, 20 * MS);
    let verdict = traffic.verdict();
    assert_eq!(told(&verdict), [(Cause::PeerAnswer, 200, Direction::Out)], "{}", shown(&verdict));
    let finding = faults(&verdict)[0];
    assert_eq!((finding.confidence, finding.next.as_str()), (Confidence::Medium, "mtr -n 192.0.2.7"));
}

#[test]
fn an_answer_after_its_ack_is_late_all_the_same() {
    let client = Who { pid: 200, name: "client", port: 5_432 };
    // The ACK comes at once, or by the peer's timer, and the answer later.
    for net in [200 * US, 41 * MS] {
        for is_udp in [false, true] {
            let mut traffic = Traffic::default();
            for round in 0..100 {
                let start = (1_000 + round * 500) * MS;
                let record = Traffic::record(client, [192, 0, 2, 7], [45_000, 5_432], Direction::Out);
                traffic.outgoing(record, start, Times { net, ..USUAL });
                let record = Traffic::record(client, [192, 0, 2, 7], [45_000, 5_432], Direction::In);
                traffic.incoming(record, start + 100 * MS, USUAL);
            }
            let verdict = if is_udp { as_udp(traffic) } else { traffic.verdict() };
            assert_eq!(told(&verdict), [(Cause::PeerAnswer, 200, Direction::Out)], "{}", shown(&verdict));
        }
    }
    // What comes after a minute is news.
    let mut traffic = Traffic::default();
    for round in 0..100 {
        let start = (1_000 + round * 120_000) * MS;
        let record = Traffic::record(client, [192, 0, 2, 7], [45_000, 5_432], Direction::Out);
        traffic.outgoing(record, start, USUAL);
        let record = Traffic::record(client, [192, 0, 2, 7], [45_000, 5_432], Direction::In);
        traffic.incoming(record, start + 60_000 * MS, USUAL);
    }
    assert_eq!(told(&traffic.verdict()), []);
}

#[test]
fn acks_that_wait_for_a_reader_of_this_machine_are_its_and_not_the_network_s() {
    let (writer, reader) =
        (Who { pid: 1, name: "writer", port: 514 }, Who { pid: 2, name: "reader", port: 514 });
    let here = [10, 0, 0, 1];
    for late in [2 * MS, 10 * MS, 30 * MS] {
        let mut traffic = Traffic::default();
        for round in 0..300 {
            let start = (1_000 + round * 100) * MS;
            let wait = if round % 3 == 0 { late } else { 10 * US };
            let record = Traffic::record(reader, here, [514, 45_000], Direction::In);
            let read = traffic.incoming(record, start + 50 * US, Times { wait, ..USUAL });
            let record = Traffic::record(writer, here, [45_000, 514], Direction::Out);
            let sent = start + USUAL.app_tcp + USUAL.tcp_ip + USUAL.ip_drv + USUAL.qdisc;
            traffic.outgoing(record, start, Times { net: read + 10 * US - sent, ..USUAL });
        }
        let verdict = traffic.verdict();
        assert_eq!(told(&verdict), [(Cause::ReaderLate, 2, Direction::In)], "{}", shown(&verdict));
    }
}

/// A client and its server on one machine, which has each request for `service`; the wire takes `wire` in all.
fn both_ends(service: u64, wire: u64) -> Verdict {
    let mut traffic = Traffic::default();
    traffic.both_ends([CLIENT, SERVER], [1, 1], service, wire);
    traffic.verdict()
}

const CLIENT: Who = Who { pid: 200, name: "client", port: 5_432 };
const SERVER: Who = Who { pid: 300, name: "postgres", port: 5_432 };

impl Traffic {
    /// A client and its server, which takes so long for an answer, each in a network namespace.
    fn both_ends(&mut self, [client, server]: [Who; 2], [near, far]: [u32; 2], service: u64, wire: u64) {
        let here = [10, 0, 0, 1];
        for round in 0..300 {
            let start = (1_000 + round * 150) * MS;
            let fast = USUAL;
            // Connections begin with numbers of their own.
            let seq = client.pid * 1_000_000 + round as u32 * 200;
            let record = |who: Who, netns, ports, direction| PacketRecord {
                netns,
                seq,
                ..Self::record(who, here, ports, direction)
            };
            let sent = start + fast.app_tcp + fast.tcp_ip + fast.ip_drv + fast.qdisc;
            let arrived = sent + wire / 2;
            let read =
                self.incoming(record(server, far, [server.port, 45_000], Direction::In), arrived, fast);
            let answer = record(server, far, [server.port, 45_000], Direction::Out);
            self.outgoing(answer, read + service, Times { net: 44 * MS, ..fast });
            let left = read + service + fast.app_tcp + fast.tcp_ip + fast.ip_drv + fast.qdisc;
            let came = left + wire / 2;
            self.incoming(record(client, near, [45_000, server.port], Direction::In), came, fast);
            let acked = came + fast.drv_ip + fast.ip_tcp + 10 * US;
            let request = record(client, near, [45_000, server.port], Direction::Out);
            self.outgoing(request, start, Times { net: acked - sent, ..fast });
        }
    }
}

#[test]
fn whoever_waits_for_a_service_of_this_machine_is_not_blamed() {
    for strength in STRENGTHS {
        let verdict = both_ends(strength, 100 * US);
        assert_eq!(told(&verdict), [(Cause::Application, SERVER.pid, Direction::Out)], "{}", shown(&verdict));
        let text = shown(&verdict);
        assert!(
            text.contains("client, PID 200, tcp port 5432, gets 300: ") && text.contains(" = at the server ")
        );
    }
    assert_eq!(told(&both_ends(100 * US, 100 * US)), []);
}

#[test]
fn ends_in_two_namespaces_are_put_together_if_they_show_the_same_numbers() {
    let mut traffic = Traffic::default();
    traffic.both_ends([CLIENT, SERVER], [1, 2], 50 * MS, 100 * US);
    let verdict = traffic.verdict();
    assert_eq!(told(&verdict), [(Cause::Application, SERVER.pid, Direction::Out)], "{}", shown(&verdict));
    assert!(shown(&verdict).contains(" = at the server "));
}

/// The server of the first client is on another host. Somebody has both ends of the same addresses in namespaces of their own.
#[test]
fn namespaces_with_the_same_addresses_hide_nobody() {
    let [other, pretender] = [CLIENT, SERVER].map(|who| Who { pid: who.pid + 1, ..who });
    let mut traffic = Traffic::default();
    traffic.both_ends([CLIENT, SERVER], [1, 2], 50 * MS, 100 * US);
    traffic.packets.retain(|(_, record, _)| record.netns == 1);
    let alone = traffic.verdict();
    assert_eq!(told(&alone), [(Cause::PeerAnswer, CLIENT.pid, Direction::Out)], "{}", shown(&alone));
    traffic.both_ends([other, pretender], [3, 4], 50 * MS, 100 * US);
    let verdict = traffic.verdict();
    let theirs = (Cause::Application, pretender.pid, Direction::Out);
    assert_eq!(told(&verdict), [told(&alone)[0], theirs], "{}", shown(&verdict));
}

#[test]
fn with_both_ends_here_a_slow_wire_is_known() {
    for strength in STRENGTHS {
        let verdict = both_ends(100 * US, strength);
        assert_eq!(told(&verdict), [(Cause::Network, 200, Direction::Out)], "{}", shown(&verdict));
        assert!(faults(&verdict)[0].sentence.contains("between it and postgres, PID 300, on this machine"));
    }
}

/// The answers of a server reach its clients on other hosts late. One client on this machine, which reads late, is not whom it waits for.
#[test]
fn one_client_of_many_is_not_whom_a_service_waits_for() {
    let far = Times { net: 20 * MS, ..USUAL };
    let faults_with = |here: u64| {
        let mut traffic = Traffic::default();
        for round in 0..300 {
            traffic.exchange(ORDERS, (1_000 + round * 60) * MS, far);
        }
        let late = Times { wait: 15 * MS, ..USUAL };
        let (near, ports) = ([10, 0, 0, 1], [ORDERS.port, 45_000]);
        for round in 0..here {
            let at = (1_010 + round * 60) * MS;
            traffic.outgoing(Traffic::record(ORDERS, near, ports, Direction::Out), at, far);
            let client = Who { pid: 200, name: "client", port: ORDERS.port };
            let record = Traffic::record(client, near, [ports[1], ports[0]], Direction::In);
            traffic.incoming(record, at + MS, late);
        }
        let verdict = traffic.verdict();
        (told(&verdict).contains(&(Cause::Network, ORDERS.pid, Direction::Out)), shown(&verdict))
    };
    for here in [0, 100] {
        let (is_told, shown) = faults_with(here);
        assert!(is_told, "{here} {shown}");
    }
}

#[test]
fn a_stream_that_tcp_holds_back_is_normal() {
    let mut traffic = Traffic::default();
    let held = Times { app_tcp: 30 * MS, ..USUAL };
    traffic.stream(ORDERS, 600, held, held);
    let verdict = traffic.verdict();
    assert_eq!(told(&verdict), [], "{}", shown(&verdict));
    assert!(verdict.normal[0].remark.as_deref().is_some_and(|remark| remark.contains("which is normal")));
    // What else is slow is found all the same.
    let mut traffic = Traffic::default();
    let far = Times { net: 10 * MS, ..held };
    traffic.stream(ORDERS, 600, far, far);
    let verdict = traffic.verdict();
    assert_eq!(told(&verdict), [(Cause::Network, ORDERS.pid, Direction::Out)], "{}", shown(&verdict));
}

#[test]
fn a_client_that_thinks_is_no_slow_application() {
    let client = Who { pid: 200, name: "client", port: 5_432 };
    let mut traffic = Traffic::default();
    traffic.client(client, [192, 0, 2, 7], 300, 200 * US);
    let verdict = traffic.verdict();
    assert!(verdict.findings.is_empty(), "{}", shown(&verdict));
}

#[test]
fn what_was_not_seen_is_not_blamed() {
    let few = |rounds| {
        let mut traffic = Traffic::default();
        let slow = Times { wait: 50 * MS, ..USUAL };
        traffic.server(ORDERS, rounds, slow, slow);
        traffic.verdict()
    };
    let verdict = few(9);
    assert!(verdict.findings.is_empty() && verdict.normal.is_empty(), "{}", shown(&verdict));
    assert_eq!(verdict.unsure[0].reason, "9 packets are too few to judge: it takes 20");
    assert_eq!(told(&few(10)), [(Cause::ReaderLate, ORDERS.pid, Direction::In)]);
    assert_eq!(faults(&few(10))[0].confidence, Confidence::Medium);
    assert_eq!(faults(&few(30))[0].confidence, Confidence::High);

    // Neither the column nor what it is split into.
    let mut traffic = Traffic::default();
    traffic.server(ORDERS, 300, USUAL, Times { drv_ip: 5 * MS, ..USUAL });
    for (_, record, parts) in &mut traffic.packets {
        if record.direction == Direction::In as u8 {
            record.stamps[2] = 0;
            *parts = [unknown_part(Unknown::NoStamp); PARTS];
        }
    }
    let verdict = traffic.verdict();
    assert_eq!(told(&verdict), [], "{}", shown(&verdict));
    assert!(verdict.unsure[0].reason.contains("unknown for 300 of 300 packets"));
}

#[test]
fn a_log_without_fine_stages_gives_a_coarser_verdict() {
    let mut traffic = Traffic { is_basic: true, ..Traffic::default() };
    traffic.server(ORDERS, 300, USUAL, Times { wait: 10 * MS, ..USUAL });
    traffic.server(BILLING, 300, USUAL, Times { app_tcp: 10 * MS, ..USUAL });
    let service = Times { service: 30 * MS, ..USUAL };
    traffic.server(SEARCH, 300, service, service);
    let verdict = traffic.verdict();
    let expected = [
        (Cause::SocketWait, 101, Direction::In),
        (Cause::TcpHeld, 102, Direction::Out),
        (Cause::Application, 103, Direction::Out),
    ];
    assert_eq!(told(&verdict), expected, "{}", shown(&verdict));
    // It adds most.
    let application = verdict.findings.first().expect("there are three");
    assert_eq!((application.cause, application.affected), (Cause::Application, 300));
    assert!(!verdict.seen.is_fine);
}

/// Why TCP held back what took long there, of so many of ten.
fn held_back(held: Held, of_ten: usize) -> Finding {
    let mut traffic = Traffic::default();
    traffic.server(ORDERS, 300, USUAL, Times { app_tcp: 30 * MS, ..USUAL });
    let is_long = |record: &PacketRecord| {
        record.direction == Direction::Out as u8
            && record.stamps[STAMP_TRANSPORT] - record.stamps[STAMP_APP] >= 10 * MS
    };
    let long = traffic.packets.iter_mut().map(|(_, record, _)| record).filter(|record| is_long(record));
    for (number, record) in long.enumerate() {
        record.held = if number % 10 < of_ten { held as u8 } else { 0 };
    }
    let mut verdict = traffic.verdict();
    assert_eq!(verdict.findings.len(), 1, "{}", shown(&verdict));
    verdict.findings.remove(0)
}

#[test]
fn what_tcp_holds_back_has_the_reason_that_tcp_had() {
    for held in Held::ALL {
        let finding = held_back(held, 8);
        let cause = match held {
            Held::ReceiveWindow => Cause::PeerWindow,
            Held::SmallQueue => Cause::Qdisc,
            Held::CongestionWindow => Cause::CongestionWindow,
            Held::Nagle => Cause::Nagle,
            Held::Cork | Held::Pacing | Held::SendBuffer => Cause::TcpHeld,
        };
        assert_eq!((finding.cause, finding.stage), (cause, Some("app-tcp")), "{}", finding.sentence);
        let told = format!("TCP held 100 packets so long: 80 by {}", held_name(held));
        assert!(finding.evidence.contains(&told), "{:?}", finding.evidence);
    }
    assert_snapshot!(Held::ALL.map(|held| held_back(held, 8).sentence).join("\n"));
    // Of too few it is none.
    assert!(held_back(Held::Nagle, 4).sentence.contains("is not known"));
}

/// The same of UDP, which has no ACKs.
fn as_udp(mut traffic: Traffic) -> Verdict {
    for (wall, record, parts) in &mut traffic.packets {
        *record = udp(*record);
        if record.direction == Direction::Out as u8 {
            *wall -= (parts[2] - parts[1]) as i64;
            parts[2] = unknown_part(Unknown::NoStamp);
        }
    }
    traffic.verdict()
}

#[test]
fn datagrams_are_judged_too() {
    for (cause, direction, time) in FAULTS {
        let mut slow = USUAL;
        *time(&mut slow) += 10 * MS;
        let mut traffic = Traffic::default();
        traffic.server(ORDERS, 300, USUAL, slow);
        let cause = if cause == Cause::TcpHeld { Cause::UdpHeld } else { cause };
        // Of UDP nothing is missing before a datagram.
        if cause != Cause::MissingBytes {
            let verdict = as_udp(traffic);
            assert_eq!(told(&verdict), [(cause, ORDERS.pid, direction)], "{}", shown(&verdict));
        }
    }
    let slow = Times { service: 10 * MS, ..USUAL };
    let mut traffic = Traffic::default();
    traffic.server(ORDERS, 300, slow, slow);
    assert_eq!(as_udp(traffic).findings[0].cause, Cause::Application);
}

#[test]
fn losses_lower_the_confidence_and_drops_at_sockets_are_a_cause() {
    let mut traffic = Traffic::default();
    traffic.server(ORDERS, 300, USUAL, Times { cpu: 10 * MS, ..USUAL });
    let model = traffic.model();
    let losses = |counter: Counter, count| {
        let mut losses = Losses::default();
        losses.counters.values[counter as usize] = count;
        losses
    };
    let verdict = judge(&model, Some(&losses(Counter::RingFull, 100)));
    assert_eq!(faults(&verdict)[0].confidence, Confidence::Low);
    assert_eq!(verdict.seen.lost, Some(100));
    let verdict = judge(&model, Some(&losses(Counter::RingFull, 1)));
    assert_eq!(faults(&verdict)[0].confidence, Confidence::High);
    // Where packets are missing, nobody knows which answer is that of which request.
    let slow = Times { service: 30 * MS, ..USUAL };
    let mut traffic = Traffic::default();
    traffic.server(ORDERS, 300, slow, slow);
    let model_of_application = traffic.model();
    let found = |losses| judge(&model_of_application, Some(losses)).findings.len();
    assert_eq!((found(&losses(Counter::Shed, 100)), found(&losses(Counter::Shed, 1))), (0, 1));
    let causes = |dropped| {
        let verdict = judge(&model, Some(&losses(Counter::DroppedIn, dropped)));
        verdict.findings.iter().map(|finding| finding.cause).collect::<Vec<_>>()
    };
    assert_eq!(causes(9), [Cause::CpuWait]);
    assert_eq!(causes(10), [Cause::CpuWait, Cause::SocketDrop]);
}

#[test]
fn drops_are_their_sockets() {
    let mut traffic = Traffic::default();
    traffic.server(ORDERS, 300, USUAL, USUAL);
    let model = traffic.model();
    let sockets =
        |port, is_client| DroppingSockets { netns: outgoing().netns, port, protocol: IPPROTO_TCP, is_client };
    let said = |drops: &[(DroppingSockets, u64)], dropped| {
        let mut losses = Losses { drops: Drops::new(drops.iter().copied()), ..Losses::default() };
        losses.counters.values[Counter::DroppedIn as usize] = dropped;
        let verdict = judge(&model, Some(&losses));
        let drops = verdict.findings.iter().filter(|finding| finding.cause == Cause::SocketDrop);
        drops
            .map(|finding| (finding.pid, finding.affected, finding.packets, finding.confidence))
            .collect::<Vec<_>>()
    };
    let own = (sockets(ORDERS.port, 0), 40);
    let unknown = |affected, packets| (0, affected, packets, Confidence::Medium);
    let known = (ORDERS.pid, 40, 340, Confidence::High);
    assert_eq!(said(&[own], 40), [known]);
    // The rest is somebody's who had no place.
    assert_eq!(said(&[own], 60), [known, unknown(20, 360)]);
    // Those of a port of which no packet has a line, and those of the other end.
    assert_eq!(said(&[(sockets(53, 0), 40)], 40), [unknown(40, 40)]);
    assert_eq!(said(&[(sockets(ORDERS.port, 1), 40)], 40), [unknown(40, 40)]);
    assert_eq!(said(&[(sockets(ORDERS.port, 0), 9)], 9), []);
}

#[test]
fn memory_is_bounded() {
    let mut traffic = Traffic::default();
    for port in 1..=300 {
        let who = Who { pid: u32::from(port), name: "many", port };
        traffic.exchange(who, u64::from(port) * MS, USUAL);
    }
    // A week later.
    traffic.exchange(Who { pid: 1, name: "many", port: 1 }, 7 * 86_400_000 * MS, USUAL);
    let verdict = traffic.verdict();
    assert_eq!((verdict.seen.services, verdict.seen.refused), (128, 2 * (300 - 128)));
    assert!(verdict.seen.windows <= 1_024 && verdict.seen.window_ns > 500_000 * MS);
}

#[test]
fn many_small_services_hide_no_large_one() {
    let mut traffic = Traffic::default();
    // As one who binds a port after the other for a packet each.
    for port in 1..=2_000 {
        traffic.exchange(Who { pid: 7, name: "many", port }, u64::from(port) * MS, USUAL);
    }
    traffic.server(ORDERS, 300, USUAL, Times { wait: 30 * MS, ..USUAL });
    let verdict = traffic.verdict();
    let first = verdict.findings.first().and_then(|finding| finding.who.as_ref()).map(|who| who.port);
    assert_eq!(first, Some(ORDERS.port), "{}", shown(&verdict));
    // All packets are somewhere.
    let judged: u64 = 2 * (2_000 + 300);
    assert_eq!(verdict.seen.packets.iter().sum::<u64>(), judged);
    assert!(verdict.seen.refused >= 2 * (2_000 - 128) && verdict.seen.services <= 128);
}

#[test]
fn one_process_with_many_busy_services_leaves_room_for_others() {
    let mut traffic = Traffic::default();
    // As many packets at each port as the other service has in all.
    for round in 0..300 {
        for port in 1..=160 {
            let who = Who { pid: 7, name: "many", port };
            traffic.exchange(who, (1_000 + round * 30) * MS + u64::from(port) * US, USUAL);
        }
    }
    traffic.server(ORDERS, 300, USUAL, Times { wait: 30 * MS, ..USUAL });
    let verdict = traffic.verdict();
    let first = verdict.findings.first().and_then(|finding| finding.who.as_ref()).map(|who| who.port);
    assert_eq!(first, Some(ORDERS.port), "{}", shown(&verdict));
}

#[test]
fn one_user_with_many_processes_leaves_room_for_others() {
    let mut traffic = Traffic::default();
    // 160 processes, each with a name of its own and one busy port.
    for round in 0..400 {
        for number in 0..160u16 {
            let name = Box::leak(format!("w{number}").into_boxed_str());
            let who = Who { pid: 1_000 + u32::from(number), name, port: 1_000 + number };
            traffic.exchange(who, (1_000 + round * 34) * MS + u64::from(number) * 100 * US, USUAL);
        }
    }
    // It has fewer packets than each of these.
    traffic.server(ORDERS, 150, USUAL, Times { wait: 30 * MS, ..USUAL });
    let model = Model::new(Duration::from_millis(1), EPHEMERAL);
    let first = |model: Model| {
        let verdict = judge(&traffic.fill(model), None);
        verdict.findings.first().and_then(|finding| finding.who.as_ref()).map(|who| who.port)
    };
    assert_eq!(first(model.clone()), None, "this test shows nothing");
    let user = |pid: u32, _: i64| if pid >= 1_000 { 65_534 } else { 0 };
    assert_eq!(first(model.with_owners(user)), Some(ORDERS.port));
}

#[test]
fn connections_that_were_forgotten_are_said_first() {
    let mut traffic = Traffic::default();
    // One process has more connections than there is room for, and uses one after the other.
    for packet in 0..20_000u64 {
        let ports = [8_001, 32_768 + (packet % 10_000) as u16];
        let record = Traffic::record(ORDERS, [10, 0, 0, 9], ports, Direction::In);
        traffic.incoming(record, 1_000 * MS + packet * MS, USUAL);
    }
    let verdict = traffic.verdict();
    assert!((5_000..=10_000).contains(&verdict.seen.forgotten), "{}", verdict.seen.forgotten);
    let text = shown(&verdict);
    assert!(text.starts_with("nothing is slow in the connections that there is room for\n"), "{text}");
    assert!(text.contains(" of connections that were forgotten"), "{text}");
    let Headline { texts, .. } = Headline::of(&verdict, 10_000_000_000);
    assert!(texts.iter().all(|text| text.contains("in the connections that there is room for")), "{texts:?}");
}

#[test]
fn what_is_not_judged_is_said_first() {
    let mut traffic = Traffic::default();
    for port in 1..=300 {
        traffic.exchange(Who { pid: 7, name: "many", port }, u64::from(port) * MS, USUAL);
    }
    let verdict = traffic.verdict();
    let text = shown(&verdict);
    assert!(text.starts_with("nothing is slow in the busiest services\n"), "{text}");
    assert!(text.contains("\n344 packets not judged, of more services than there is room for"), "{text}");
}

/// All that there may be to say.
fn everything() -> Verdict {
    let mut traffic = Traffic::default();
    traffic.server(ORDERS, 300, USUAL, Times { wait: 19 * MS, ..USUAL });
    traffic.server(Who { name: "\u{1b}[2J,x", ..BILLING }, 300, USUAL, Times { qdisc: 12 * MS, ..USUAL });
    let slow = Times { service: 30 * MS, ..USUAL };
    traffic.server(SEARCH, 300, slow, slow);
    traffic.server(Who { pid: 104, name: "rare", port: 8_004 }, 5, USUAL, USUAL);
    traffic.server(Who { pid: 0, name: "", port: 8_005 }, 100, USUAL, USUAL);
    let held = Times { app_tcp: 30 * MS, ..USUAL };
    traffic.stream(Who { pid: 105, name: "backup", port: 873 }, 600, held, held);
    traffic.client(Who { pid: 200, name: "client", port: 5_432 }, [192, 0, 2, 7], 60, 20 * MS);
    let mut losses = Losses::default();
    losses.counters.values[Counter::DroppedIn as usize] = 70;
    losses.counters.values[Counter::RingFull as usize] = 7;
    judge(&traffic.model(), Some(&losses))
}

#[test]
fn the_verdict_as_text() {
    let text = shown(&everything());
    assert!(!text.contains('\u{1b}'));
    assert_snapshot!(text);
    assert_snapshot!("nothing_seen", shown(&Traffic::default().verdict()));
}

#[test]
fn the_verdict_as_json_is_as_the_schema_has_it() {
    let described: Value = serde_json::from_str(SCHEMA).expect("the schema is JSON");
    let mut snapshot = String::new();
    let mut basic = Traffic { is_basic: true, ..Traffic::default() };
    basic.server(ORDERS, 30, USUAL, Times { wait: 19 * MS, ..USUAL });
    for verdict in [everything(), basic.verdict(), Traffic::default().verdict()] {
        let mut out = Vec::new();
        json::write(&verdict, &mut out);
        let value: Value = serde_json::from_slice(&out).expect("JSON");
        schema::check(&described, &value).unwrap_or_else(|error| panic!("{error}"));
        // Nothing that is not described.
        for (list, items) in ["findings", "normal", "unsure", "answers"].map(|list| (list, &value[list])) {
            let fields = described["properties"][list]["items"]["properties"].as_object().expect("fields");
            for item in items.as_array().expect("a list") {
                let names: Vec<_> = item.as_object().expect("an object").keys().collect();
                assert_eq!(names, fields.keys().collect::<Vec<_>>(), "{list}");
            }
        }
        let seen = described["properties"]["seen"]["properties"].as_object().expect("fields");
        let names = value["seen"].as_object().expect("an object").keys();
        assert_eq!(names.collect::<Vec<_>>(), seen.keys().collect::<Vec<_>>());
        for name in ["cause", "confidence", "sentence", "evidence", "next", "affected"] {
            if let Some(finding) = value["findings"].get(0) {
                let mut wrong = value.clone();
                wrong["findings"][0].as_object_mut().expect("an object").remove(name);
                assert!(schema::check(&described, &wrong).is_err(), "without {name} of {finding}");
            }
        }
        for service in value["answers"].as_array().expect("a list") {
            let parts = service["parts"].as_array().expect("a list").iter();
            let sum: u64 = parts.map(|part| part["sum_ns"].as_u64().expect("a number")).sum();
            assert_eq!(service["sum_ns"], sum, "{service}");
        }
        snapshot += &String::from_utf8(out).expect("UTF-8");
    }
    assert_snapshot!(snapshot);
}

#[test]
fn each_cause_is_in_the_schema_and_on_its_page() {
    let page = include_str!("../../../docs/diagnose.md");
    let described: Value = serde_json::from_str(SCHEMA).expect("the schema is JSON");
    let names = &described["properties"]["findings"]["items"]["properties"]["cause"]["enum"];
    let names: Vec<_> = names.as_array().expect("names").iter().filter_map(Value::as_str).collect();
    let all = Cause::ALL.map(Cause::name);
    assert_eq!(names, all);
    for name in all {
        assert!(page.contains(&format!("| `{name}` |")), "docs/diagnose.md says nothing of {name}");
    }
}

#[test]
fn our_own_next_commands_are_taken() {
    use super::{item::Item, words};

    let mut traffic = Traffic::default();
    traffic.server(ORDERS, 30, USUAL, USUAL);
    traffic.server(Who { pid: 0, ..BILLING }, 30, USUAL, USUAL);
    let model = traffic.model();
    let mut ours = 0;
    for service in &model.services {
        for cause in Cause::ALL {
            for item in [Item::Wait, Item::DrvIp, Item::IpTransport] {
                let next = words::next(cause, item, service);
                assert!(!next.is_empty());
                if let Some(line) = next.strip_prefix("sudo net-latency ") {
                    ours += 1;
                    let words = ["net-latency"].into_iter().chain(line.split(' '));
                    let taken = crate::cli::command().try_get_matches_from(words);
                    assert!(taken.is_ok(), "{next}: {taken:?}");
                }
            }
        }
    }
    assert!(ours > 0);
}

#[test]
fn a_device_of_somebody_s_choice_is_not_typed() {
    let mut traffic = Traffic::default();
    traffic.server(ORDERS, 300, USUAL, Times { qdisc: 5 * MS, ..USUAL });
    let mut model = Model::new(Duration::from_millis(1), EPHEMERAL);
    for (wall, record, parts) in &traffic.packets {
        model.record(&Event::new(record, *wall, Some(b"x;reboot")).with_parts(Some(parts)));
    }
    model.finish();
    let verdict = judge(&model, None);
    assert_eq!(faults(&verdict)[0].next, "tc -s qdisc");
    assert!(!shown(&verdict).contains("reboot"));
}

#[test]
fn a_log_gives_the_verdict_that_the_kernel_s_packets_gave() {
    let mut traffic = Traffic::default();
    traffic.server(ORDERS, 300, USUAL, Times { cpu: 10 * MS, ..USUAL });
    traffic.server(BILLING, 300, USUAL, Times { qdisc: 3 * MS, ..USUAL });
    let slow = Times { service: 30 * MS, ..USUAL };
    traffic.server(SEARCH, 300, slow, slow);
    let traffic = with_retransmissions(traffic, 0, 0);
    let options = Options { zone: Zone::UTC, details: false, colour: false };
    let directory = tempfile::tempdir().expect("temporary directory");
    for format in [Format::Json, Format::Csv] {
        let mut log = crate::output::header(format, crate::request::Stages::Fine).to_vec();
        let mut writer = Writer::new(format, &options);
        traffic.feed(|event| writer.write(event, &mut log));
        let path = directory.path().join("log");
        std::fs::write(&path, &log).expect("written");
        let config = ReplayConfig { files: vec![path], speed: Speed::Max };
        let mut replay = Replay::open(&config, &PacketFilter::default()).expect("a log");
        let mut model = Model::new(Duration::from_millis(1), EPHEMERAL);
        while !replay.is_over() {
            replay.next(|event| model.record(event)).expect("it can be read");
        }
        model.finish();
        assert_eq!(shown(&judge(&model, None)), shown(&traffic.verdict()), "{format:?}");
    }
}

const SECOND: u64 = 1_000 * MS;

/// In each of its lengths.
fn lengths(verdict: &Verdict) -> String {
    let headline = Headline::of(verdict, 8 * SECOND + 400 * MS);
    let who = headline.direction.map_or("-", crate::packet::stages::dir);
    format!(
        "{} {who}\n  {}\n",
        if headline.is_fault { "fault" } else { "quiet" },
        headline.texts.join("\n  ")
    )
}

#[test]
fn a_headline_for_each_verdict() {
    let mut said = String::new();
    for (_, direction, time) in FAULTS {
        let mut traffic = Traffic::default();
        let mut slow = USUAL;
        *time(&mut slow) = 19 * MS;
        traffic.server(ORDERS, 300, if direction == Direction::In { slow } else { USUAL }, slow);
        said += lengths(&traffic.verdict()).lines().take(4).collect::<Vec<_>>().join("\n").as_str();
        said.push('\n');
    }
    said += &lengths(&everything());
    let mut losses = Losses::default();
    losses.counters.values[Counter::DroppedIn as usize] = 70;
    let mut healthy = Traffic::default();
    ALL.into_iter().for_each(|who| healthy.server(who, 300, USUAL, USUAL));
    said += &lengths(&judge(&healthy.model(), Some(&losses)));
    said += &lengths(&healthy.verdict());
    said += &lengths(&Traffic { is_basic: true, ..healthy }.verdict());
    let mut answering = Traffic::default();
    let slow = Times { service: 30 * MS, ..USUAL };
    answering.server(SEARCH, 300, slow, slow);
    said += &lengths(&answering.verdict());
    let mut rare = Traffic::default();
    rare.server(ORDERS, 25, Times { wait: 19 * MS, ..USUAL }, Times { wait: 19 * MS, ..USUAL });
    said += &lengths(&rare.verdict());
    rare.packets.truncate(12);
    said += &lengths(&rare.verdict());
    said += &lengths(&Traffic::default().verdict());
    for (_, record, parts) in &mut answering.packets {
        record.stamps[2] = 0;
        *parts = [unknown_part(Unknown::NoStamp); PARTS];
    }
    answering.packets.retain(|(_, record, _)| record.direction == Direction::In as u8);
    said += &lengths(&answering.verdict());
    assert!(!said.chars().any(|c| c.is_control() && c != '\n'));
    assert_snapshot!(said);
}

#[test]
fn the_headline_is_about_the_last_seconds() {
    let mut traffic = Traffic::default();
    // 20 ms a round: slow for six seconds, then fast.
    let slow = Times { wait: 10 * MS, ..USUAL };
    traffic.server(ORDERS, 200, slow, slow);
    let end = traffic.packets.iter().map(|(wall, ..)| *wall).max().expect("packets") - WALL_NS;
    let mut after = Traffic::default();
    after.server(ORDERS, 700, USUAL, USUAL);
    let mut said = Vec::new();
    let mut recent = Recent::new(Model::new(Duration::from_millis(1), EPHEMERAL), 0);
    let mut see = |traffic: &Traffic, shift: i64| {
        traffic.feed(|event| {
            let now_ns = u64::try_from(event.wall_ns() - WALL_NS + shift).expect("after the start");
            let before = said.len() as u64;
            recent.advance(now_ns, &Losses::default());
            if now_ns / SECOND > before {
                said.push(recent.headline(None).is_fault);
            }
            recent.record(event);
        });
    };
    see(&traffic, 0);
    see(&after, end);
    let first = said.iter().position(|is_fault| *is_fault).expect("it is found");
    let last = said.iter().rposition(|is_fault| *is_fault).expect("it is found");
    let end = usize::try_from(end).expect("positive") / SECOND as usize;
    assert!(first <= 2, "{said:?}");
    // It is told while it lasts, and until it is ten seconds old.
    assert!(said[first..=last].iter().all(|is_fault| *is_fault), "{said:?}");
    assert!((end..=end + 10).contains(&last), "{said:?}, {end}");
    assert!(said.len() > last + 2, "{said:?}");
    // Nothing comes for long.
    recent.advance(1_000 * SECOND, &Losses::default());
    assert_eq!(
        recent.headline(None).texts[0],
        "Too early to say: no packets in the last 0 ms; it takes 20 of one service"
    );
    recent.advance(1_004 * SECOND, &Losses::default());
    recent.advance(1_009 * SECOND, &Losses::default());
    assert!(recent.headline(None).texts[0].starts_with("Too few packets to say: no packets in the last 9 s"));
}

#[test]
fn losses_count_from_when_the_packets_do() {
    let mut traffic = Traffic::default();
    let slow = Times { wait: 10 * MS, ..USUAL };
    traffic.server(ORDERS, 300, slow, slow);
    let mut losses = Losses::default();
    losses.counters.values[Counter::DroppedIn as usize] = 1_000;
    losses.counters.values[Counter::RingFull as usize] = 1_000;
    let mut recent = Recent::new(Model::new(Duration::from_millis(1), EPHEMERAL), 0);
    for now_ns in [0, 5 * SECOND, 10 * SECOND] {
        recent.advance(now_ns, &losses);
    }
    traffic.feed(|event| recent.record(event));
    let mut told = |losses: &Losses| recent.headline(Some(losses)).texts[0].clone();
    assert!(told(&losses).ends_with("confidence high"), "{}", told(&losses));
    losses.counters.values[Counter::RingFull as usize] = 1_100;
    assert!(told(&losses).starts_with("Perhaps slow: orders"), "{}", told(&losses));
    losses.counters.values[Counter::DroppedIn as usize] = 1_100;
    assert!(told(&losses).contains("1 more"), "{}", told(&losses));
}

/// Times of which some are no times.
fn any_parts() -> impl Strategy<Value = [u64; PARTS]> {
    let part = || prop_oneof![0..3_000_000u64, any::<u64>(), Just(unknown_part(Unknown::NoStamp))];
    [part(), part(), part(), part()]
}

proptest! {
    /// A log may say anything.
    #[test]
    fn whatever_comes_there_is_a_verdict(
        packets in proptest::collection::vec((any_record(), any_parts(), any::<i64>(), any::<bool>(), 0..3u16), 0..200),
        has_parts: bool,
    ) {
        let mut model = Model::new(Duration::from_millis(1), EPHEMERAL);
        for (record, parts, wall, is_udp, port) in packets {
            // Few services and connections, so that packets follow each other.
            let record = PacketRecord {
                saddr: [1; 16],
                daddr: [1; 16],
                sport: 80 + port,
                dport: 40_000 + port,
                pid: record.pid % 4,
                ..record
            };
            let record = if is_udp { udp(record) } else { record };
            let record = if port == 2 {
                PacketRecord { sport: record.dport, dport: record.sport, ..record }
            } else {
                record
            };
            model.record(&Event::new(&record, wall, Some(b"eth0")).with_parts(has_parts.then_some(&parts)));
        }
        model.finish();
        let verdict = judge(&model, None);
        let mut out = Vec::new();
        json::write(&verdict, &mut out);
        let value: Value = serde_json::from_slice(&out).expect("JSON");
        let described: Value = serde_json::from_str(SCHEMA).expect("the schema is JSON");
        prop_assert_eq!(schema::check(&described, &value), Ok(()));
        let text = shown(&verdict);
        prop_assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{}", text);
        let lengths = Headline::of(&verdict, 7 * SECOND).texts;
        prop_assert!(!lengths.is_empty() && !lengths.concat().contains(char::is_control), "{:?}", lengths);
        prop_assert!(verdict.findings.iter().all(|finding| finding.share.is_none_or(|share| share <= 100)));
    }
}

/// A gateway that has a request for as long as `asked` has it, and a little of its own.
fn gateway(rounds: u64, backend: Times, own: u64) -> Traffic {
    const GATEWAY: Who = Who { pid: 100, name: "gateway", port: 8_000 };
    let mut traffic = Traffic::default();
    let mut at = 1_000 * MS;
    for _ in 0..rounds {
        let [here, there] = [[10, 0, 0, 9], [10, 0, 0, 1]];
        let record = Traffic::record(GATEWAY, here, [GATEWAY.port, 40_000], Direction::In);
        let read = traffic.incoming(record, at, USUAL);
        // The backend's answer brings the ACK.
        let ports = [41_000, ORDERS.port];
        let asks = Times { net: backend.service + 300 * US, ..USUAL };
        let acked =
            traffic.outgoing(Traffic::record(GATEWAY, there, ports, Direction::Out), read + own, asks);
        let came = acked - 15 * US - USUAL.drv_ip - USUAL.ip_tcp;
        let answered = traffic.incoming(Traffic::record(GATEWAY, there, ports, Direction::In), came, USUAL);
        let backends = [ORDERS.port, 41_000];
        let asked = traffic.incoming(
            Traffic::record(ORDERS, there, backends, Direction::In),
            read + own + 60 * US,
            USUAL,
        );
        traffic.outgoing(
            Traffic::record(ORDERS, there, backends, Direction::Out),
            asked + backend.service,
            USUAL,
        );
        let record = Traffic::record(GATEWAY, here, [GATEWAY.port, 40_000], Direction::Out);
        at = traffic.outgoing(record, answered + 50 * US, USUAL) + 20 * MS;
    }
    traffic
}

#[test]
fn who_waits_for_others_is_not_blamed_for_its_answers() {
    for strength in STRENGTHS {
        let slow = Times { service: strength, ..USUAL };
        let applications = |traffic: Traffic| {
            let verdict = traffic.verdict();
            let is_its = |finding: &&Finding| finding.cause == Cause::Application;
            let found = verdict.findings.iter().filter(is_its);
            let pids: Vec<_> = found.map(|finding| finding.pid).collect();
            (pids, shown(&verdict))
        };
        let (pids, text) = applications(gateway(100, slow, 50 * US));
        assert_eq!(pids, [ORDERS.pid], "{text}");
        assert!(text.contains(" = waiting for others' answers "), "{text}");
        // What it does by itself is its own.
        let (pids, text) = applications(gateway(100, USUAL, strength));
        assert_eq!(pids, [100], "{text}");
    }
}

#[test]
fn acks_of_an_even_number_of_segments_wait_for_no_timer() {
    for (segments, is_network) in [(6, true), (5, false), (1, false)] {
        let mut traffic = Traffic::default();
        let times = Times { net: 50 * MS, ..USUAL };
        let mut at = 1_000 * MS;
        for _ in 0..100 {
            let record = Traffic::record(ORDERS, [10, 0, 0, 9], [ORDERS.port, 40_000], Direction::Out);
            let record = PacketRecord { len: 1_448 * u32::from(segments), segs: segments, ..record };
            at = traffic.outgoing(record, at, times) + 10 * MS;
        }
        let verdict = traffic.verdict();
        let expected = [(Cause::Network, ORDERS.pid, Direction::Out)];
        assert_eq!(told(&verdict), &expected[..usize::from(is_network)], "{segments}: {}", shown(&verdict));
    }
}

#[test]
fn what_a_closed_window_holds_back_is_no_effect_of_what_is_sent_again() {
    for held in [Held::ReceiveWindow, Held::CongestionWindow] {
        let mut traffic = Traffic::default();
        traffic.server(ORDERS, 200, USUAL, Times { app_tcp: 10 * MS, ..USUAL });
        for (number, (_, record, _)) in traffic.packets.iter_mut().enumerate() {
            if record.direction == Direction::Out as u8 {
                record.held = held as u8;
                if number % 20 == 1 {
                    record.flags |= FLAG_RETRANS;
                }
            }
        }
        let verdict = traffic.verdict();
        let cause = if held == Held::ReceiveWindow { Cause::PeerWindow } else { Cause::Retransmission };
        assert_eq!(told(&verdict), [(cause, ORDERS.pid, Direction::Out)], "{}", shown(&verdict));
    }
}

#[test]
fn processes_that_come_and_go_are_one_service() {
    let mut slow = USUAL;
    slow.wait += 10 * MS;
    let mut traffic = Traffic::default();
    let mut at = 1_000 * MS;
    // A server that forks for each request: none of them has enough to be judged.
    for pid in 500..600 {
        at = traffic.exchange(Who { pid, name: "httpd", port: 80 }, at, slow) + 20 * MS;
    }
    let (verdict, text) = (traffic.verdict(), shown(&traffic.verdict()));
    assert_eq!(told(&verdict), [(Cause::ReaderLate, 500, Direction::In)], "{text}");
    assert!(text.contains("1. httpd, several processes, tcp port 80, in: "), "{text}");
    assert!(text.contains("100 of 100 answers took"), "{text}");
    assert!(text.contains("in 1 service") || text.contains(", 1 service in"), "{text}");
    // There is no one process to look at.
    assert!(!text.contains(" -p 5") && !text.contains("PID"), "{text}");
    let mut object = Vec::new();
    json::write(&verdict, &mut object);
    let object: Value = serde_json::from_slice(&object).expect("JSON");
    assert_eq!(object["findings"][0]["pid"], Value::Null);
    assert_eq!(object["findings"][0]["process"], "httpd");
    let described: Value = serde_json::from_str(SCHEMA).expect("JSON");
    schema::check(&described, &object).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn a_few_processes_of_one_name_are_told_apart() {
    let mut traffic = Traffic::default();
    for pid in 500..504 {
        let times = Times { wait: if pid == 502 { 10 * MS } else { USUAL.wait }, ..USUAL };
        traffic.server(Who { pid, name: "worker", port: 80 }, 100, times, times);
    }
    let verdict = traffic.verdict();
    assert_eq!(told(&verdict), [(Cause::ReaderLate, 502, Direction::In)], "{}", shown(&verdict));
}

/// The CPUs were busy for so much of the time.
fn busy(percent: u64) -> Machine {
    Machine { busy_percent: Some(percent), ..Machine::default() }
}

#[test]
fn a_busy_system_is_not_slow() {
    // All wait for CPUs alike, and one a little longer.
    let long = Times { cpu: 2 * MS, drv_ip: MS, wait: MS, service: 4 * MS, ..USUAL };
    let longer = Times { cpu: 5 * MS, service: 12 * MS, ..long };
    let mut traffic = Traffic::default();
    traffic.server(ORDERS, 300, long, long);
    traffic.server(BILLING, 300, longer, longer);
    traffic.server(SEARCH, 300, long, long);
    let mut model = traffic.model();
    model.set_machine(busy(85));
    let verdict = judge(&model, None);
    assert!(verdict.findings.is_empty(), "{}", shown(&verdict));
    assert!(shown(&verdict).starts_with("nothing is slow\n"));
    // Where none are left, that is what is wrong; one that waits four times as long has a cause of its own.
    model.set_machine(busy(98));
    let verdict = judge(&model, None);
    let [finding] = faults(&verdict)[..] else { panic!("{}", shown(&verdict)) };
    assert_eq!((finding.cause, finding.confidence), (Cause::CpuShort, Confidence::High));
    assert!(finding.evidence.iter().any(|line| line.contains("busy for 98 %")), "{:?}", finding.evidence);
    traffic.server(Who { pid: 104, name: "users", port: 8_004 }, 300, USUAL, Times { cpu: 60 * MS, ..USUAL });
    let mut model = traffic.model();
    model.set_machine(busy(85));
    let verdict = judge(&model, None);
    assert_eq!(told(&verdict), [(Cause::CpuWait, 104, Direction::In)], "{}", shown(&verdict));
}

#[test]
fn sleep_is_no_noise_though_all_have_it_alike() {
    let slow = Times { service: 10 * MS, ..USUAL };
    let all = [ORDERS, BILLING, SEARCH];
    let mut traffic = Traffic::default();
    all.iter().for_each(|who| traffic.server(*who, 100, slow, slow));
    let found = |on_ms: u64| {
        let mut model = traffic.model();
        let ran = Ran { on_ns: on_ms * 100 * MS, waited_ns: 0 };
        let ran = all.iter().map(|who| (who.pid, ran)).collect();
        model.set_machine(Machine { ran, ..busy(85) });
        let verdict = judge(&model, None);
        faults(&verdict).iter().map(|finding| finding.cause).collect::<Vec<_>>()
    };
    assert!(found(1).contains(&Cause::Application), "{:?}", found(1));
    // On processors that others use too, work takes longer.
    assert_eq!(found(8), []);
}

#[test]
fn a_quota_is_named_before_what_it_looks_like() {
    let late = Times { wait: 30 * MS, cpu: 20 * MS, service: 40 * MS, ..USUAL };
    let mut traffic = Traffic::default();
    traffic.server(ORDERS, 100, USUAL, USUAL);
    traffic.server(BILLING, 100, late, late);
    let throttled = |ns: u64| {
        let path = "/sys/fs/cgroup/billing.slice".into();
        Machine {
            throttled: [(BILLING.pid, Throttled { path, periods: 80, ns, percent: 4 })].into(),
            ..busy(20)
        }
    };
    let mut model = traffic.model();
    model.set_machine(throttled(6_000 * MS));
    let verdict = judge(&model, None);
    let [finding] = faults(&verdict)[..] else { panic!("{}", shown(&verdict)) };
    assert_eq!((finding.cause, finding.pid), (Cause::CpuQuota, BILLING.pid), "{}", shown(&verdict));
    assert_eq!(finding.next, "cat /sys/fs/cgroup/billing.slice/cpu.stat");
    assert!(
        finding.evidence[0].starts_with("held back in 80 periods, 6.00 s in all: "),
        "{:?}",
        finding.evidence
    );
    assert!(finding.sentence.ends_with("it may use 4 % of a CPU"), "{}", finding.sentence);
    // One that was held back for a moment only has another cause.
    model.set_machine(throttled(100 * MS));
    let causes: Vec<_> = told(&judge(&model, None)).iter().map(|(cause, ..)| *cause).collect();
    assert!(!causes.is_empty() && !causes.contains(&Cause::CpuQuota), "{causes:?}");
}

#[test]
fn what_a_process_did_meanwhile_is_told() {
    let slow = Times { service: 40 * MS, ..USUAL };
    let mut traffic = Traffic::default();
    traffic.server(ORDERS, 100, slow, slow);
    let said = |on_ms: u64, waited_ms: u64| {
        let mut model = traffic.model();
        let ran = Ran { on_ns: on_ms * 100 * MS, waited_ns: waited_ms * 100 * MS };
        model.set_machine(Machine { ran: [(ORDERS.pid, ran)].into(), ..busy(20) });
        let mut verdict = judge(&model, None);
        assert_eq!(verdict.findings.len(), 1, "{}", shown(&verdict));
        let finding = verdict.findings.remove(0);
        let line = finding.evidence.iter().find(|line| line.contains("for each answer"));
        (finding.cause, line.cloned().unwrap_or_default(), finding.next)
    };
    let (cause, line, next) = said(2, 1);
    assert!(line.starts_with("it sleeps, or waits for something: ") && cause == Cause::Application, "{line}");
    assert_eq!(next, "sudo net-latency calls --pid 101 --slower 1ms");
    let (cause, line, next) = said(35, 1);
    assert!(line.starts_with("it works: ") && cause == Cause::Application, "{line}");
    assert_eq!(next, "sudo perf top -p 101");
    let (cause, line, _) = said(5, 33);
    assert!(line.contains("waits for one for 33.0 ms") && cause == Cause::CpuWait, "{line}");
}

#[test]
fn a_command_is_for_the_namespace_of_the_service() {
    let next = |name: Option<&[u8]>, container: Option<&[u8]>, remote: [u8; 4]| {
        let mut model = Model::new(Duration::from_millis(1), EPHEMERAL);
        let mut traffic = Traffic::default();
        traffic.client(Who { pid: 200, name: "client", port: 5_432 }, remote, 60, 20 * MS);
        let mut packets = traffic.packets.clone();
        packets.sort_by_key(|(wall, ..)| *wall);
        for (wall, record, parts) in &packets {
            let event = Event::new(record, *wall, Some(b"veth0")).with_place(name, container);
            model.record(&event.with_parts(Some(parts)));
        }
        model.finish();
        judge(&model, None).findings.remove(0).next
    };
    let sockets = "ss -tinm '( sport = :5432 or dport = :5432 )'";
    let far = [192, 0, 2, 7];
    assert_eq!(next(None, None, far), "mtr -n 192.0.2.7");
    assert_eq!(next(Some(b"back"), None, far), "sudo ip netns exec back mtr -n 192.0.2.7");
    assert_eq!(next(Some(b"x;reboot"), None, far), "mtr -n 192.0.2.7");
    assert_eq!(
        next(Some(b"shop/pod"), Some(b"0123456789ab"), far),
        "sudo nsenter -t 200 -n mtr -n 192.0.2.7"
    );
    // What a virtual device leads to by a private address is mostly this machine.
    assert_eq!(next(None, None, [10, 0, 0, 2]), sockets);
    assert_eq!(next(Some(b"back"), None, [10, 0, 0, 2]), format!("sudo ip netns exec back {sockets}"));
}

#[test]
fn only_the_first_causes_are_shown_unless_all_are_wanted() {
    let (all, verdict) = (shown(&everything()), everything());
    let mut out = Vec::new();
    text::write(&verdict, false, &mut out);
    let few = String::from_utf8(out).expect("UTF-8");
    let head: Vec<_> = few.lines().take_while(|line| !line.is_empty()).collect();
    assert_eq!(head.len(), 3, "{few}");
    assert!(
        few.contains("\n3. ") && !few.contains("\n4. ") && few.contains("\n2 causes more: --all\n"),
        "{few}"
    );
    assert!(
        !few.contains("Normal:") && !few.contains("Answers,") && all.contains("\nAnswers, on average:\n")
    );
    // What limits all of it is always said.
    assert!(few.contains("7 packets not seen"), "{few}");
}

#[test]
fn answers_of_connections_without_a_next_request_count_in_the_last_seconds() {
    let slow = Times { service: 30 * MS, ..USUAL };
    let mut traffic = Traffic::default();
    let mut at = 1_000 * MS;
    for round in 0..60u16 {
        let ports = [ORDERS.port, 40_000 + round];
        let read = traffic.incoming(Traffic::record(ORDERS, [10, 0, 0, 9], ports, Direction::In), at, slow);
        let record = Traffic::record(ORDERS, [10, 0, 0, 9], ports, Direction::Out);
        at = traffic.outgoing(record, read + slow.service, slow) + 20 * MS;
    }
    let mut recent = Recent::new(Model::new(Duration::from_millis(1), EPHEMERAL), 0);
    traffic.feed(|event| recent.record(event));
    recent.advance(4 * SECOND, &Losses::default());
    let told = recent.headline(None).texts[0].clone();
    assert!(told.starts_with("Slow: orders, PID 101, tcp port 8001: each answer takes 30."), "{told}");
}

#[test]
fn requests_without_an_answer_are_told() {
    let resolver = Who { pid: 200, name: "shop", port: 53 };
    // Of six queries one has no answer, and is sent again after five seconds.
    let traffic = |each: u64, is_answered: bool| {
        let (mut traffic, mut at) = (Traffic::default(), 1_000 * MS);
        for round in 0..60 {
            let ports = [45_000 + round as u16 % 7, 53];
            let remote = [10, 0, 0, 2];
            if round % each == 0 {
                traffic.outgoing(Traffic::record(resolver, remote, ports, Direction::Out), at, USUAL);
                at += 5_000 * MS;
            }
            traffic.outgoing(Traffic::record(resolver, remote, ports, Direction::Out), at, USUAL);
            if is_answered {
                traffic.incoming(Traffic::record(resolver, remote, ports, Direction::In), at + MS, USUAL);
            }
            at += 100 * MS;
        }
        traffic
    };
    let verdict = as_udp(traffic(6, true));
    assert_eq!(told(&verdict), [(Cause::Unanswered, 200, Direction::Out)], "{}", shown(&verdict));
    let finding = faults(&verdict)[0];
    assert_eq!((finding.packets, finding.affected, finding.confidence), (70, 10, Confidence::High));
    assert!(finding.evidence[1].starts_with("it waited 50."), "{:?}", finding.evidence);
    // Two of many are none, and who never gets an answer may not expect one.
    for (each, is_answered) in [(30, true), (6, false)] {
        let verdict = as_udp(traffic(each, is_answered));
        assert_eq!(told(&verdict), [], "{each} {}", shown(&verdict));
    }
}

#[test]
fn a_connection_whose_path_is_gone_is_told() {
    let mut traffic = Traffic::default();
    traffic.server(ORDERS, 100, USUAL, USUAL);
    let record = Traffic::record(BILLING, [10, 0, 0, 9], [8_002, 40_000], Direction::Out);
    let first = 1_500 * MS;
    for ms in [200, 600, 1_400, 3_000] {
        let at = first + ms * MS;
        traffic.outgoing(PacketRecord { flags: FLAG_RETRANS | FLAG_RTO, other: first, ..record }, at, USUAL);
    }
    let verdict = traffic.verdict();
    assert_eq!(told(&verdict), [(Cause::Unanswered, BILLING.pid, Direction::Out)], "{}", shown(&verdict));
    assert!(shown(&verdict).contains("on 1 connection TCP's timer sent the same bytes 3 times or more"));
}

#[test]
fn bytes_that_are_missing_before_the_last_ones_count_too() {
    // Of eight packets of a request the fourth is late, and those behind it wait for it; the last one is as late itself.
    let mut traffic = Traffic::default();
    let mut at = 1_000 * MS;
    for _ in 0..60 {
        let ports = [ORDERS.port, 40_000];
        let mut read = at;
        for part in 0..8u64 {
            let gap = if (4..7).contains(&part) { 10 * MS } else { 0 };
            let came = if part == 7 { at + 10 * MS } else { at + part * 20 * US };
            let record = Traffic::record(ORDERS, [10, 0, 0, 9], ports, Direction::In);
            read = traffic.incoming(record, came, Times { gap, ..USUAL }).max(read);
        }
        let record = Traffic::record(ORDERS, [10, 0, 0, 9], ports, Direction::Out);
        at = traffic.outgoing(record, read + 200 * US, USUAL) + 20 * MS;
    }
    let verdict = traffic.verdict();
    assert_eq!(told(&verdict), [(Cause::MissingBytes, ORDERS.pid, Direction::In)], "{}", shown(&verdict));
}
