//! Each cause, and traffic that has none.

use super::*;

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
                finding.evidence.iter().any(|line| line.contains("only this one of ")),
                "{:?}",
                finding.evidence
            );
        }
    }
}

/// Nearly all take 0.6 to 1 ms, and one in twelve a little more than that.
#[test]
fn answers_that_scatter_around_the_threshold_are_no_fault() {
    let mut traffic = Traffic::default();
    let near = Times { service: 820 * US, ..USUAL };
    traffic.server(ORDERS, 300, near, near);
    traffic.server(BILLING, 300, USUAL, USUAL);
    let verdict = traffic.verdict();
    assert_eq!(told(&verdict), [], "{}", shown(&verdict));
    // One in three that takes twice as long is one.
    let mut traffic = Traffic::default();
    traffic.server(ORDERS, 300, near, Times { service: 2 * near.service, ..near });
    traffic.server(BILLING, 300, USUAL, USUAL);
    let verdict = traffic.verdict();
    assert_eq!(told(&verdict), [(Cause::Application, ORDERS.pid, Direction::Out)], "{}", shown(&verdict));
}

/// A process works for a while, between other waits that are as long; another one reads late, and nothing else is slow there.
#[test]
fn what_is_sure_comes_before_a_little_more_that_is_not() {
    for (late, first) in [(4 * MS, BILLING.pid), (2 * MS, ORDERS.pid)] {
        let busy = Times { service: 6 * MS, app_tcp: 5 * MS, ip_drv: 5 * MS, ..USUAL };
        let mut traffic = Traffic::default();
        traffic.server(ORDERS, 300, busy, busy);
        let slow = Times { wait: late, ..USUAL };
        traffic.server(BILLING, 300, slow, slow);
        traffic.server(SEARCH, 300, USUAL, USUAL);
        let verdict = traffic.verdict();
        let sure: Vec<_> = faults(&verdict).iter().map(|finding| (finding.pid, finding.confidence)).collect();
        let second = ORDERS.pid + BILLING.pid - first;
        let of = |pid| (pid, if pid == ORDERS.pid { Confidence::Medium } else { Confidence::High });
        assert_eq!(sure, [first, second].map(of), "{late} {}", shown(&verdict));
    }
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
                // How busy the CPUs were is unknown.
                assert_eq!((finding.cause, finding.confidence), (Cause::CpuShort, Confidence::Low));
                assert_eq!((finding.packets, finding.affected), (900, 300));
                continue;
            }
            assert_eq!(told(&verdict), ALL.map(|who| (cause, who.pid, direction)), "{}", shown(&verdict));
            let is_all = |line: &String| line.contains("all 3 processes have this");
            assert!(finding.evidence.iter().any(is_all), "{:?}", finding.evidence);
        }
    }
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
fn what_was_not_seen_is_not_blamed() {
    let few = |rounds| {
        let mut traffic = Traffic::default();
        let slow = Times { wait: 50 * MS, ..USUAL };
        traffic.server(ORDERS, rounds, slow, slow);
        traffic.verdict()
    };
    let verdict = few(9);
    assert!(verdict.findings.is_empty() && verdict.normal.is_empty(), "{}", shown(&verdict));
    assert_eq!(verdict.unsure[0].reason, "too few packets to judge: 9, and 20 are needed");
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

/// Why TCP held back what took long there, of N of ten.
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
        let told = format!("TCP held back 100 packets for that long: 80 by {}", held_name(held));
        assert!(finding.evidence.contains(&told), "{:?}", finding.evidence);
    }
    assert_snapshot!(Held::ALL.map(|held| held_back(held, 8).sentence).join("\n"));
    // Too few are none.
    assert!(held_back(Held::Nagle, 4).sentence.contains("is not known"));
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
    // Where packets are missing, it is unknown which answer belongs to which request.
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

/// Where only the server is on this machine, and a rule drops some of what comes for it.
#[test]
fn what_is_dropped_before_a_socket_is_told_unless_its_effects_are() {
    let drop = |port, count, reason: &str| Dropped {
        protocol: Protocol::Tcp,
        port,
        count,
        function: Some("nft_do_chain".to_owned()),
        reason: Some(reason.to_owned()),
    };
    let found = |traffic: &Traffic, drops: Vec<Dropped>| {
        let mut model = traffic.model();
        model.set_drops(drops);
        let verdict = judge(&model, None);
        let of = |finding: &&Finding| (finding.cause, finding.pid, finding.affected, finding.packets);
        let all: Vec<_> = faults(&verdict).iter().map(of).collect();
        (all, shown(&verdict))
    };
    let mut traffic = Traffic::default();
    traffic.server(ORDERS, 300, USUAL, USUAL);
    let netfilter = |count| vec![drop(ORDERS.port, count, "NETFILTER_DROP"), drop(53, 90, "NETFILTER_DROP")];
    let (all, text) = found(&traffic, netfilter(40));
    assert_eq!(all, [(Cause::PacketDrop, ORDERS.pid, 40, 640)], "{text}");
    let said = "orders, PID 101, tcp port 8001, in: packets are dropped before they get to a socket, 40 of 640 packets\n";
    assert!(text.starts_with(said), "{text}");
    assert!(
        text.contains("40 packets of tcp port 8001 were dropped in nft_do_chain, reason NETFILTER_DROP"),
        "{text}"
    );
    // Few, and what sockets drop, which is told by their own counts.
    assert_eq!(found(&traffic, netfilter(9)).0, []);
    assert_eq!(found(&traffic, vec![drop(ORDERS.port, 40, "SOCKET_RCVBUFF")]).0, []);
    // What TCP sends again has the places.
    let again = with_retransmissions(traffic, 0, 0);
    let (all, text) = found(&again, netfilter(40));
    assert_eq!(all.iter().map(|(cause, ..)| *cause).collect::<Vec<_>>(), [Cause::Retransmission], "{text}");
    assert!(text.contains("reason NETFILTER_DROP"), "{text}");
}

#[test]
fn drops_are_their_sockets() {
    let mut traffic = Traffic::default();
    traffic.server(ORDERS, 300, USUAL, USUAL);
    let model = traffic.model();
    let sockets =
        |port, is_client| DroppingSockets { netns: outgoing().netns, port, protocol: IPPROTO_TCP, is_client };
    let said = |drops: &[(DroppingSockets, u64)], dropped| {
        let losses = dropped_at(drops, dropped);
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
    // The rest belongs to a socket without a place.
    assert_eq!(said(&[own], 60), [known, unknown(20, 360)]);
    // Those of a port of which no packet has a line, and those of the other end.
    assert_eq!(said(&[(sockets(53, 0), 40)], 40), [unknown(40, 40)]);
    assert_eq!(said(&[(sockets(ORDERS.port, 1), 40)], 40), [unknown(40, 40)]);
    assert_eq!(said(&[(sockets(ORDERS.port, 0), 9)], 9), []);
}

#[test]
fn requests_without_an_answer_are_told() {
    let resolver = Who { pid: 200, name: "shop", port: 53 };
    // One query of six has no answer, and is sent again after five seconds.
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
    assert!(
        text::first_lines(&verdict)[0].ends_with("has no answer, 10 of 70 requests"),
        "{}",
        shown(&verdict)
    );
    // Where they were dropped, if that is known; other services' are not its.
    let drop = |port, count, reason: Option<&str>| Dropped {
        protocol: Protocol::Udp,
        port,
        count,
        function: Some("nft_do_chain".to_owned()),
        reason: reason.map(str::to_owned),
    };
    let mut model = into_udp(traffic(6, true)).model();
    model.set_drops(vec![drop(54, 5, None), drop(53, 1, None), drop(53, 9, Some("NETFILTER_DROP"))]);
    let verdict = judge(&model, None);
    assert_eq!(
        faults(&verdict)[0].evidence[2..],
        [
            "9 packets of udp port 53 were dropped in nft_do_chain, reason NETFILTER_DROP",
            "1 packet of udp port 53 was dropped in nft_do_chain"
        ]
    );
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
    assert!(text::first_lines(&verdict)[0].ends_with("has no answer, 1 connection"), "{}", shown(&verdict));
}

/// A service whose requests are eight packets each, of which those behind the fourth wait for `gap`, in each second request or in all.
fn in_parts(traffic: &mut Traffic, who: Who, late: std::ops::Range<u64>, each: u64) {
    let mut at = 1_000 * MS + u64::from(who.pid) * MS;
    for round in 0..60 {
        let ports = [who.port, 40_000];
        let mut read = at;
        for part in 0..8u64 {
            let is_late = round % each == 0 && late.contains(&part);
            let gap = if is_late { 10 * MS } else { 0 };
            let came = if part == 7 { at + 10 * MS } else { at + part * 20 * US };
            let record = Traffic::record(who, [10, 0, 0, 9], ports, Direction::In);
            read = traffic.incoming(record, came, Times { gap, ..USUAL }).max(read);
        }
        let record = Traffic::record(who, [10, 0, 0, 9], ports, Direction::Out);
        at = traffic.outgoing(record, read + 200 * US, USUAL) + 20 * MS;
    }
}

#[test]
fn bytes_that_are_missing_before_the_last_ones_count_too() {
    // The fourth of eight packets of a request is late, and those behind it wait for it; the last one is as late itself.
    let mut traffic = Traffic::default();
    in_parts(&mut traffic, ORDERS, 4..7, 1);
    let verdict = traffic.verdict();
    assert_eq!(told(&verdict), [(Cause::MissingBytes, ORDERS.pid, Direction::In)], "{}", shown(&verdict));
}

#[test]
fn services_that_miss_few_bytes_alike_are_no_noise_to_each_other() {
    let mut traffic = Traffic::default();
    ALL.into_iter().for_each(|who| in_parts(&mut traffic, who, 4..5, 2));
    let verdict = traffic.verdict();
    let expected = ALL.map(|who| (Cause::MissingBytes, who.pid, Direction::In));
    assert_eq!(told(&verdict), expected, "{}", shown(&verdict));
}

#[test]
fn long_answers_that_a_peer_does_not_take_are_its_and_no_stream() {
    let verdict = |held: Held| {
        let mut traffic = Traffic::default();
        let ports = [ORDERS.port, 40_000];
        let mut at = 1_000 * MS;
        for _ in 0..40 {
            let read =
                traffic.incoming(Traffic::record(ORDERS, [10, 0, 0, 9], ports, Direction::In), at, USUAL);
            for packet in 0..60 {
                let record = Traffic::record(ORDERS, [10, 0, 0, 9], ports, Direction::Out);
                let record = PacketRecord { len: 14_480, segs: 10, held: held as u8, ..record };
                let times = Times { app_tcp: packet * 20 * MS, ..USUAL };
                at = at.max(traffic.outgoing(record, read + 200 * US, times)) + MS;
            }
        }
        traffic.verdict()
    };
    let by_peer = verdict(Held::ReceiveWindow);
    assert_eq!(told(&by_peer), [(Cause::PeerWindow, ORDERS.pid, Direction::Out)], "{}", shown(&by_peer));
    assert!(shown(&by_peer).contains("each answer takes 1.18 s"), "{}", shown(&by_peer));
    let by_way = verdict(Held::CongestionWindow);
    assert_eq!(told(&by_way), [], "{}", shown(&by_way));
}
