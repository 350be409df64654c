//! Bounds on memory, whatever comes.

use super::*;

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
    assert!(text.starts_with("nothing is slow among the connections that fit the table\n"), "{text}");
    assert!(text.contains(" of connections that no longer fit the table"), "{text}");
    let Headline { texts, .. } = Headline::of(&verdict, 10_000_000_000);
    assert!(texts.iter().all(|text| text.contains("among the connections that fit the table")), "{texts:?}");
}

#[test]
fn what_is_not_judged_is_said_first() {
    let mut traffic = Traffic::default();
    for port in 1..=300 {
        traffic.exchange(Who { pid: 7, name: "many", port }, u64::from(port) * MS, USUAL);
    }
    let verdict = traffic.verdict();
    let text = shown(&verdict);
    assert!(
        text.starts_with("too few packets to say whether anything is slow among the busiest services\n"),
        "{text}"
    );
    assert!(text.contains("\n344 packets not judged: there are more services than fit the table"), "{text}");
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
    for pid in 500..508 {
        let times = Times { wait: if pid == 502 { 10 * MS } else { USUAL.wait }, ..USUAL };
        traffic.server(Who { pid, name: "worker", port: 80 }, 100, times, times);
    }
    // Whose answers are too few.
    for pid in 600..605 {
        traffic.server(Who { pid, name: "worker", port: 80 }, 2, USUAL, USUAL);
    }
    let verdict = traffic.verdict();
    assert_eq!(told(&verdict), [(Cause::ReaderLate, 502, Direction::In)], "{}", shown(&verdict));
    let mut answers: Vec<_> = verdict.answers.iter().map(|it| it.count).collect();
    answers.sort_unstable();
    assert_eq!(answers, [[10].as_slice(), &[100; 8]].concat());
}

#[test]
fn clients_and_servers_of_one_name_and_port_are_two() {
    // One program is both, and each of its processes lives for one request: of a proxy that asks for the port that it serves, or of
    // busybox as server and client.
    for processes in [1, 20] {
        let mut traffic = Traffic::default();
        for number in 0..60 {
            let pid = 200 + number % processes * 2;
            let server = Who { pid: pid as u32, name: "proxy", port: 8_080 };
            let client = Who { pid: server.pid + u32::from(processes > 1), ..server };
            let at = 1_000 * MS + number * 40 * MS;
            let times = Times { service: 20 * MS, ..USUAL };
            traffic.exchange(server, at, times);
            let out = Traffic::record(client, [10, 0, 0, 7], [45_000, 8_080], Direction::Out);
            let acked = traffic.outgoing(out, at + 5 * MS, USUAL);
            let answer = Traffic::record(client, [10, 0, 0, 7], [45_000, 8_080], Direction::In);
            traffic.incoming(answer, acked + MS / 10, USUAL);
        }
        let verdict = traffic.verdict();
        let [server] = faults(&verdict)[..] else { panic!("{}", shown(&verdict)) };
        assert_eq!((server.cause, server.packets), (Cause::Application, 60), "{}", shown(&verdict));
        let by_role = verdict.answers.iter().map(|it| (it.is_client, it.count));
        let mut by_role: Vec<_> = by_role.collect();
        by_role.sort_unstable();
        assert_eq!(by_role, [(false, 60), (true, 60)]);
    }
}
