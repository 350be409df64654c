//! Gateways that open a connection for each request.

use net_latency_common::CONNECTION_CLIENT;

use super::*;
use crate::clock::Clock;

const EDGE: Who = Who { pid: 90, name: "edge", port: 8_080 };
const GATEWAY: Who = Who { pid: 100, name: "gateway", port: 8_000 };

/// What connections of a service, and its answers, take.
#[derive(Clone, Copy)]
struct Hop {
    to: Who,
    handshake: u64,
    /// One of N handshakes takes so long, and its SYN is sent again.
    again: Option<(u64, u64)>,
    /// There and back.
    wire: u64,
    /// Of the one that answers.
    qdisc: u64,
    service: u64,
}

impl Hop {
    fn to(to: Who) -> Self {
        Self { to, handshake: 100 * US, again: None, wire: 100 * US, qdisc: 2 * US, service: 200 * US }
    }

    /// The way there is slow.
    fn far(to: Who, ns: u64) -> Self {
        Self { handshake: ns, wire: ns, ..Self::to(to) }
    }

    /// What the other end sends is held back.
    fn held(to: Who, ns: u64) -> Self {
        Self { handshake: ns, qdisc: ns, ..Self::to(to) }
    }

    fn handshake(&self, round: u64) -> (u64, bool) {
        match self.again {
            Some((ns, one_in)) if round.is_multiple_of(one_in) => (ns, true),
            _ => (self.handshake, false),
        }
    }
}

/// Packets, and handshakes as the kernel side tells them.
#[derive(Default)]
struct World {
    traffic: Traffic,
    handshakes: Vec<ConnectionRecord>,
    next_port: u16,
}

impl World {
    /// Requests that come to the first of them, which asks the next one by a new connection, and so on.
    fn of(hops: &[Hop], rounds: u64) -> Self {
        let mut world = Self::default();
        let mut at = 1_000 * MS;
        for round in 0..rounds {
            let (first, ports) = (hops[0], [hops[0].to.port, 40_000]);
            let record = |direction| Traffic::record(first.to, [10, 0, 0, 9], ports, direction);
            let read = world.traffic.incoming(record(Direction::In), at, USUAL);
            let written = world.answer(hops, read, round);
            at = world.traffic.outgoing(record(Direction::Out), written, USUAL) + 5 * MS;
        }
        world
    }

    /// The first of them read a request then; when it writes the answer.
    fn answer(&mut self, hops: &[Hop], read: u64, round: u64) -> u64 {
        let [first, rest @ ..] = hops else { panic!("nobody") };
        let asks = read + first.service;
        rest.first().map_or(asks, |next| self.ask(first.to, next, rest, asks, round) + 50 * US)
    }

    /// `who` connects then, and asks; when it has read the answer.
    fn ask(&mut self, who: Who, hop: &Hop, hops: &[Hop], at: u64, round: u64) -> u64 {
        let here = [10, 0, 0, 1];
        let (near, far) = (41_000 + self.next_port, hop.to.port);
        self.next_port = (self.next_port + 1) % 10_000;
        let of_client = |direction| Traffic::record(who, here, [near, far], direction);
        let of_server = |direction| Traffic::record(hop.to, here, [far, near], direction);
        let (handshake, is_again) = hop.handshake(round);
        let PacketRecord { saddr, daddr, netns, family, .. } = of_client(Direction::Out);
        self.handshakes.push(ConnectionRecord {
            started_ns: at,
            established_ns: at + handshake,
            local: saddr,
            remote: daddr,
            local_port: near,
            remote_port: far,
            pid: who.pid,
            tid: who.pid,
            syn_retrans: u32::from(is_again),
            flags: CONNECTION_CLIENT,
            netns,
            family,
            ..ConnectionRecord::default()
        });
        let written = at + handshake + 10 * US;
        let until_left = USUAL.app_tcp + USUAL.tcp_ip + USUAL.ip_drv + USUAL.qdisc;
        let read =
            self.traffic.incoming(of_server(Direction::In), written + until_left + hop.wire / 2, USUAL);
        let answered = self.answer(hops, read, round);
        let times = Times { qdisc: hop.qdisc, ..USUAL };
        self.traffic.outgoing(of_server(Direction::Out), answered, times);
        let came = answered + until_left - USUAL.qdisc + hop.qdisc + hop.wire / 2;
        let acked = came + USUAL.drv_ip + USUAL.ip_tcp + 10 * US;
        let asks = Times { net: acked - written - until_left, ..USUAL };
        self.traffic.outgoing(of_client(Direction::Out), written, asks);
        self.traffic.incoming(of_client(Direction::In), came, USUAL)
    }

    fn model(&self) -> Model {
        let mut model = Model::new(Duration::from_millis(1), EPHEMERAL);
        let clock = Clock::at(WALL_NS);
        let mut handshakes: Vec<_> = self.handshakes.iter().collect();
        handshakes.sort_by_key(|record| record.established_ns);
        let mut handshakes = handshakes.into_iter().peekable();
        self.traffic.feed(|event| {
            let is_over = |record: &&ConnectionRecord| wall(record.established_ns) <= event.wall_ns();
            while let Some(record) = handshakes.next_if(is_over) {
                model.established(record, clock);
            }
            model.record(event);
        });
        model.finish();
        model
    }

    /// The same on the other end's machine is not seen.
    fn without(mut self, who: Who) -> Self {
        self.traffic.packets.retain(|(_, record, _)| record.pid != who.pid);
        self
    }

    fn verdict(&self) -> Verdict {
        let verdict = judge(&self.model(), None);
        for answers in &verdict.answers {
            let parts: u64 = answers.parts.iter().map(|(_, ns)| ns).sum();
            assert_eq!(parts, answers.sum_ns, "{}", shown(&verdict));
        }
        verdict
    }
}

#[test]
fn a_handshake_is_on_the_way_and_no_work_of_who_waits_for_it() {
    for strength in STRENGTHS {
        let world = World::of(&[Hop::to(GATEWAY), Hop::far(ORDERS, strength)], 100);
        let verdict = world.verdict();
        let network = [(Cause::Network, GATEWAY.pid, Direction::Out)];
        assert_eq!(told(&verdict), network, "{}", shown(&verdict));
        // A server elsewhere.
        let verdict = world.without(ORDERS).verdict();
        assert_eq!(told(&verdict), network, "{}", shown(&verdict));
    }
}

#[test]
fn what_is_slow_when_a_connection_opens_is_said() {
    let hop = Hop { handshake: 20 * MS, ..Hop::to(ORDERS) };
    let verdict = World::of(&[Hop::to(GATEWAY), hop], 100).verdict();
    let text = shown(&verdict);
    let finding = faults(&verdict)[0];
    assert_eq!(finding.cause, Cause::Network, "{text}");
    for line in [
        "gateway, PID 100, tcp port 8001: each answer that it gets takes 20.6 ms, 20.0 ms of it opening the connection\n",
        "connecting to orders, PID 101 takes this long, on the way there and back\n",
        "100 connections opened, in 20.0 ms on average\n",
        "next: sudo net-latency connections --port 8001\n",
    ] {
        assert!(text.contains(line), "{line}{text}");
    }
}

#[test]
fn without_records_of_connections_nothing_is_known_of_handshakes() {
    let mut world = World::of(&[Hop::to(GATEWAY), Hop::held(ORDERS, 20 * MS)], 100);
    world.handshakes.clear();
    let text = shown(&world.verdict());
    assert!(
        text.contains(" + the application 20.3 ms") && !text.contains("opening the connection"),
        "{text}"
    );
}

#[test]
fn a_queue_that_holds_handshakes_back_is_the_cause() {
    for strength in STRENGTHS {
        let qdisc = [(Cause::Qdisc, ORDERS.pid, Direction::Out)];
        for hops in [
            &[Hop::to(GATEWAY), Hop::held(ORDERS, strength)][..],
            &[Hop::to(EDGE), Hop::to(GATEWAY), Hop::held(ORDERS, strength)],
        ] {
            let mut world = World::of(hops, 100);
            let verdict = world.verdict();
            assert_eq!(told(&verdict), qdisc, "{}", shown(&verdict));
            // By several processes that share the port.
            let its = world.traffic.packets.iter_mut().filter(|(_, record, _)| record.pid == ORDERS.pid);
            for (_, record, _) in its {
                let client = record.sport.max(record.dport);
                record.pid += u32::from(client % 4) * 1_000;
            }
            let verdict = world.verdict();
            assert!(
                matches!(faults(&verdict)[..], [finding] if finding.cause == Cause::Qdisc),
                "{}",
                shown(&verdict)
            );
        }
    }
}

#[test]
fn of_two_gateways_in_a_row_the_one_that_waits_for_handshakes_is_named() {
    let verdict = World::of(&[Hop::to(EDGE), Hop::far(GATEWAY, 10 * MS), Hop::to(ORDERS)], 100).verdict();
    let network = (Cause::Network, EDGE.pid, Direction::Out);
    assert_eq!(told(&verdict), [network], "{}", shown(&verdict));
    // Both ways are slow.
    let verdict =
        World::of(&[Hop::to(EDGE), Hop::far(GATEWAY, 10 * MS), Hop::far(ORDERS, 10 * MS)], 100).verdict();
    let other = (Cause::Network, GATEWAY.pid, Direction::Out);
    assert_eq!(told(&verdict), [network, other], "{}", shown(&verdict));
}

#[test]
fn syns_that_are_lost_are_told_and_not_those_of_a_full_accept_queue() {
    let hop = Hop { again: Some((1_020 * MS, 5)), ..Hop::to(ORDERS) };
    let world = World::of(&[Hop::to(GATEWAY), hop], 100);
    let verdict = world.verdict();
    assert_eq!(told(&verdict), [(Cause::Retransmission, GATEWAY.pid, Direction::Out)], "{}", shown(&verdict));
    let text = shown(&verdict);
    assert!(text.contains("; SYNs of 20 were sent again\n"), "{text}");
    assert!(text.contains("20 of 100 answers that it gets take 1.02 s, 1.02 s of it opening"), "{text}");
    let mut model = world.model();
    let mut listening = Listening::default();
    listening.listener(&ListenerRecord {
        overflows: 20,
        backlog: 4,
        port: ORDERS.port,
        netns: outgoing().netns,
        pid: ORDERS.pid,
        process: comm(b"orders"),
        ..ListenerRecord::default()
    });
    model.set_listening(listening);
    let verdict = judge(&model, None);
    assert_eq!(told(&verdict), [(Cause::AcceptLate, ORDERS.pid, Direction::In)], "{}", shown(&verdict));
}

#[test]
fn work_beside_handshakes_is_the_gateways() {
    let hop = Hop { handshake: 3 * MS, ..Hop::to(ORDERS) };
    let gateway = Hop { service: 30 * MS, ..Hop::to(GATEWAY) };
    let verdict = World::of(&[gateway, hop], 100).verdict();
    let first = faults(&verdict)[0];
    assert_eq!((first.cause, first.pid), (Cause::Application, GATEWAY.pid), "{}", shown(&verdict));
}

#[test]
fn a_connection_that_is_kept_was_opened_once() {
    let mut world = World::of(&[Hop::to(GATEWAY), Hop::far(ORDERS, 20 * MS)], 100);
    // All by one connection, whose handshake was the first.
    for (_, record, _) in &mut world.traffic.packets {
        for port in [&mut record.sport, &mut record.dport] {
            *port = if (41_000..51_000).contains(port) { 41_000 } else { *port };
        }
    }
    world.handshakes.truncate(1);
    let verdict = world.verdict();
    let is_its = |answers: &&super::super::finding::ServiceAnswers| answers.is_client;
    let gets = verdict.answers.iter().find(is_its).expect("a client");
    let connect = gets.parts.iter().find(|(item, _)| *item == Item::Connect).map(|(_, ns)| *ns);
    assert_eq!((gets.count, connect), (100, Some(20 * MS)), "{}", shown(&verdict));
}
