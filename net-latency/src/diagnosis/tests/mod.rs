//! Made-up traffic: services with one fault, with several, and with none, and the verdicts about them.

mod bounds;
mod causes;
mod ends;
mod machine;
mod opening;
mod shown;

use std::time::Duration;

use insta::assert_snapshot;
use net_latency_common::{
    CONNECTION_SERVER, ConnectionRecord, Counter, Direction, DroppingSockets, FLAG_DROPPED, FLAG_RETRANS,
    FLAG_RTO, FLAG_ZERO_WINDOW, Held, IPPROTO_TCP, IPPROTO_UDP, ListenerRecord, PART_FINISHED, PARTS,
    PacketRecord, STAMP_APP, STAMP_TRANSPORT, Served, Unknown, unknown_part,
};
use proptest::prelude::*;
use serde_json::Value;

use super::{
    Headline, Model, Recent,
    cause::Cause,
    dropped::Dropped,
    finding::{Confidence, Finding, Verdict},
    item::Item,
    json, judge,
    listening::Listening,
    machine::{Machine, Throttled},
    text, words,
};
use crate::{
    accounting::{Drops, Losses},
    clock::Zone,
    kernel::{
        cpus::Ran,
        tasks::{Allowed, Process, Realtime},
    },
    output::{Options, Writer, schema, tests::any_record},
    packet::event::{
        Event, Protocol,
        fixtures::{WALL_NS, comm, outgoing, udp},
        held_name,
    },
    request::{Format, PacketFilter, ReplayConfig, Speed},
    source::{RecordSource as _, log::replay::Replay},
};

const SCHEMA: &str = include_str!("../../../../docs/diagnose.schema.json");

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

/// The process that has the CPUs that readers wait for.
const HOLDER: u32 = 150;

/// Packets, each with its parts and when its line was complete.
#[derive(Clone, Default)]
struct Traffic {
    packets: Vec<(i64, PacketRecord, [u64; PARTS])>,
    dice: u64,
    is_basic: bool,
    /// The work for each answer.
    served: Served,
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
            take(&event.with_parts((!self.is_basic).then_some(parts)).with_served(Some(&self.served)));
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
    (Cause::Netfilter, Direction::In, |times| &mut times.ip_tcp),
    (Cause::TcpHeld, Direction::Out, |times| &mut times.app_tcp),
    (Cause::Netfilter, Direction::Out, |times| &mut times.tcp_ip),
    (Cause::Netfilter, Direction::Out, |times| &mut times.ip_drv),
    (Cause::Qdisc, Direction::Out, |times| &mut times.qdisc),
];

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

/// So many packets were dropped, at these sockets and others.
fn dropped_at(sockets: &[(DroppingSockets, u64)], dropped: u64) -> Losses {
    let mut losses = Losses { drops: Drops::new(sockets.iter().copied()), ..Losses::default() };
    losses.counters.values[Counter::DroppedIn as usize] = dropped;
    losses
}

/// The verdict of this traffic as UDP.
fn as_udp(traffic: Traffic) -> Verdict {
    into_udp(traffic).verdict()
}

/// This traffic as UDP, which has no ACKs.
fn into_udp(mut traffic: Traffic) -> Traffic {
    for (wall, record, parts) in &mut traffic.packets {
        *record = udp(*record);
        if record.direction == Direction::Out as u8 {
            let after = parts[2] - parts[1];
            *wall -= after as i64;
            parts[PART_FINISHED] -= after;
            parts[2] = unknown_part(Unknown::NoStamp);
        }
    }
    traffic
}

const SECOND: u64 = 1_000 * MS;
