//! Both ends of a connection, and which waits for which.

use super::*;

const CLIENT: Who = Who { pid: 200, name: "client", port: 5_432 };
const SERVER: Who = Who { pid: 300, name: "postgres", port: 5_432 };

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

/// Its second packet comes first, with the ACK, and is read last.
#[test]
fn a_request_whose_first_bytes_come_late_is_not_the_network_of_the_answer_before() {
    let mut traffic = Traffic::default();
    for round in 0..300 {
        let start = (1_000 + round * 25) * MS;
        let ports = [ORDERS.port, 40_000];
        let record = |direction| Traffic::record(ORDERS, [10, 0, 0, 9], ports, direction);
        traffic.incoming(record(Direction::In), start + 5 * MS, USUAL);
        let last = Times { gap: 5 * MS + 50 * US, ..USUAL };
        let read = traffic.incoming(record(Direction::In), start, last);
        let acked_ns = start + 25 * MS + USUAL.drv_ip + USUAL.ip_tcp + 10 * US;
        let queued = read + USUAL.service + USUAL.app_tcp + USUAL.tcp_ip + USUAL.ip_drv;
        let times = Times { net: acked_ns - queued - USUAL.qdisc, ..USUAL };
        traffic.outgoing(record(Direction::Out), read + USUAL.service, times);
    }
    let verdict = traffic.verdict();
    assert_eq!(told(&verdict), [(Cause::MissingBytes, ORDERS.pid, Direction::In)], "{}", shown(&verdict));
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

#[test]
fn whoever_waits_for_a_service_of_this_machine_is_not_blamed() {
    for strength in STRENGTHS {
        let verdict = both_ends(strength, 100 * US);
        assert_eq!(told(&verdict), [(Cause::Application, SERVER.pid, Direction::Out)], "{}", shown(&verdict));
        let text = shown(&verdict);
        assert!(
            text.contains("client, PID 200, tcp port 5432, 300 answers received: ")
                && text.contains(" = at the server ")
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

/// What a client in another namespace than the server sees of it, by an address that is translated on the way.
fn behind_another_address() -> Traffic {
    let apparent = comm(&[10, 99, 0, 1]);
    let mut traffic = Traffic::default();
    traffic.both_ends([CLIENT, SERVER], [1, 2], 50 * MS, 100 * US);
    for (_, record, _) in traffic.packets.iter_mut().filter(|(_, record, _)| record.pid == CLIENT.pid) {
        let is_out = record.direction == Direction::Out as u8;
        *(if is_out { &mut record.daddr } else { &mut record.saddr }) = apparent;
    }
    traffic
}

#[test]
fn ends_that_see_other_addresses_are_put_together_by_their_numbers() {
    let verdict = behind_another_address().verdict();
    assert_eq!(told(&verdict), [(Cause::Application, SERVER.pid, Direction::Out)], "{}", shown(&verdict));
    assert!(
        shown(&verdict).contains("client, PID 200, tcp port 5432, 300 answers received: "),
        "{}",
        shown(&verdict)
    );
    assert!(shown(&verdict).contains(" = at the server "), "{}", shown(&verdict));
}

/// The client has a new port for each request, as a resolver's clients do.
fn with_fresh_ports(mut traffic: Traffic) -> Traffic {
    for (_, record, _) in &mut traffic.packets {
        let port = 40_000 + record.seq % 1_000_000 / 200;
        let is_request = (record.pid == CLIENT.pid) == (record.direction == Direction::Out as u8);
        *(if is_request { &mut record.sport } else { &mut record.dport }) = port as u16;
    }
    traffic
}

#[test]
fn ends_of_datagrams_are_put_together_by_their_times() {
    let mut traffic = Traffic::default();
    traffic.both_ends([CLIENT, SERVER], [1, 2], 50 * MS, 100 * US);
    let fresh = with_fresh_ports(traffic.clone());
    for traffic in [traffic, fresh, behind_another_address()] {
        let verdict = as_udp(traffic);
        assert_eq!(told(&verdict), [(Cause::Application, SERVER.pid, Direction::Out)], "{}", shown(&verdict));
        assert!(shown(&verdict).contains(" = at the server "), "{}", shown(&verdict));
    }
}

/// An ACK that came while a task had the socket is taken in when that has run again. Its answer was written long before.
#[test]
fn what_waits_to_be_taken_in_has_not_made_its_answer_late() {
    let mut traffic = Traffic::default();
    traffic.both_ends([CLIENT, SERVER], [1, 2], 200 * US, 100 * US);
    let is_out = |record: &PacketRecord| record.direction == Direction::Out as u8;
    for (wall, _, parts) in traffic.packets.iter_mut().filter(|(_, record, _)| is_out(record)).step_by(3) {
        *wall += 60 * MS as i64;
        parts[PART_FINISHED] += 60 * MS;
    }
    let verdict = traffic.verdict();
    assert_eq!(told(&verdict), [], "{}", shown(&verdict));
}

/// One request of three is dropped at the server's socket: that its client waits in vain is no other fault.
#[test]
fn who_waits_for_what_a_socket_drops_is_not_to_blame() {
    let mut traffic = Traffic::default();
    traffic.both_ends([CLIENT, SERVER], [1, 2], 200 * US, 100 * US);
    let mut traffic = with_fresh_ports(traffic);
    let is_sent =
        |record: &PacketRecord| record.pid == CLIENT.pid && record.direction == Direction::Out as u8;
    traffic.packets.retain(|(_, record, _)| record.seq / 200 % 3 > 0 || is_sent(record));
    let model = into_udp(traffic).model();
    let said = |dropped| {
        let sockets = DroppingSockets { netns: 2, port: SERVER.port, protocol: IPPROTO_UDP, is_client: 0 };
        let losses = dropped_at(&[(sockets, dropped)], dropped);
        let verdict = judge(&model, Some(&losses));
        (told(&verdict), shown(&verdict))
    };
    let [drop, in_vain] =
        [(Cause::SocketDrop, SERVER.pid, Direction::In), (Cause::Unanswered, CLIENT.pid, Direction::Out)];
    let (found, text) = said(100);
    assert_eq!(found, [drop], "{text}");
    assert!(text.contains("its clients waited"), "{text}");
    // Most have another reason.
    let (found, text) = said(10);
    assert_eq!(found, [in_vain, drop], "{text}");
}

/// The server of the first client is on another host. An impostor has both ends of the same addresses in namespaces of its own.
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

/// The answers of a server reach its clients on other hosts late. It does not wait for the one client on this machine, which reads late.
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
fn a_client_that_thinks_is_no_slow_application() {
    let client = Who { pid: 200, name: "client", port: 5_432 };
    let mut traffic = Traffic::default();
    traffic.client(client, [192, 0, 2, 7], 300, 200 * US);
    let verdict = traffic.verdict();
    assert!(verdict.findings.is_empty(), "{}", shown(&verdict));
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

/// Of each answer's 18 ms the gateway waits for another's for 8, and has a CPU for 9.
#[test]
fn work_on_busy_cpus_is_usual_of_who_waits_for_others_too() {
    let backend = Times { service: 8 * MS, ..USUAL };
    let is_found = |on: u64, waited: u64, asleep: u64| {
        let mut traffic = gateway(100, backend, 10 * MS);
        traffic.served = Served::of((on + waited + asleep) * MS, (waited + asleep) * MS, asleep * MS, 0);
        let mut model = traffic.model();
        model.set_machine(Machine { busy_percent: Some(85), ..Machine::default() });
        let verdict = judge(&model, None);
        faults(&verdict).iter().any(|finding| finding.pid == 100)
    };
    assert!(!is_found(9, 7, 2));
    // It sleeps for longer than the others take.
    assert!(is_found(9, 0, 12));
    // Two requests wait for each other.
    assert!(!is_found(4, 2, 3));
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
