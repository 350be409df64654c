//! What the machine says beside: CPUs, quotas, accept queues.

use super::*;

#[test]
fn who_had_the_cpu_is_named_and_whether_affinity_forces_it() {
    let mut traffic = Traffic::default();
    traffic.server(ORDERS, 300, USUAL, Times { cpu: 10 * MS, ..USUAL });
    let said = |model: &Model| faults(&judge(model, None))[0].evidence.join("\n");
    // For a log no process is looked up.
    let mut model = traffic.model();
    let wait = "had that CPU: 100 % of the wait";
    assert!(said(&model).contains(&format!("\nPID {HOLDER} {wait}")), "{}", said(&model));
    let allowed = Allowed { count: 1, first: 3, online: 4 };
    let realtime = Some(Realtime { policy: "SCHED_FIFO", priority: 98 });
    let process = |pid, _| (pid == HOLDER).then(|| Process { name: comm(b"ba\x1bckup"), realtime });
    model.ask(process, |pid, tid, _| ((pid, tid) == (ORDERS.pid, ORDERS.pid)).then_some(allowed));
    let realtime = "; it is real-time (SCHED_FIFO, priority 98), and gives its CPU to no other";
    assert!(
        said(&model).contains(&format!("PID {HOLDER}, {wait}{realtime}\nCPU affinity forces this wait: ")),
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
        "CPU affinity forces this wait: of 2 CPUs its reader may use CPU 1 only",
        "CPU affinity narrows the choice: of 8 CPUs its reader may use 2",
        "CPU affinity does not force this wait: its reader may use all 8 CPUs",
        "CPU affinity does not force this wait: this machine has no other CPU",
    ];
    assert_eq!(said, expected);
}

#[test]
fn stalls_that_hit_all_alike_are_nobody_s() {
    let mut traffic = Traffic::default();
    let stalled = Times { cpu: 60 * MS, drv_ip: 20 * MS, qdisc: 30 * MS, ..USUAL };
    for who in ALL {
        for round in 0..1_000 {
            // The first tenth of each second.
            let times = traffic.varied(if round % 50 < 5 { stalled } else { USUAL });
            traffic.exchange(who, (1_000 + round * 20) * MS + u64::from(who.pid) * 10_000, times);
        }
    }
    let verdict = traffic.verdict();
    assert!(verdict.findings.is_empty(), "{}", shown(&verdict));
    assert!(verdict.seen.stalls >= 20 && verdict.seen.stalls * 5 <= verdict.seen.windows);
    // If only one service has them, they are its own.
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

/// The CPUs were busy for `percent` of the time.
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
    let headline = &Headline::of(&verdict, SECOND).texts[0];
    assert!(headline.ends_with(&format!(", {} of 900 answers", finding.affected)), "{headline}");
    traffic.server(Who { pid: 104, name: "users", port: 8_004 }, 300, USUAL, Times { cpu: 60 * MS, ..USUAL });
    let mut model = traffic.model();
    // However busy they are: what the others wait is little beside it.
    for percent in [85, 98] {
        model.set_machine(busy(percent));
        let verdict = judge(&model, None);
        assert_eq!(told(&verdict), [(Cause::CpuWait, 104, Direction::In)], "{percent} {}", shown(&verdict));
        assert_eq!(faults(&verdict).len(), 1, "{percent} {}", shown(&verdict));
    }
}

#[test]
fn the_busier_the_cpus_the_longer_a_wait_for_one_is_usual() {
    let found = |ms: u64, percent: u64| {
        let late = Times { cpu: ms * MS, ..USUAL };
        let mut traffic = Traffic::default();
        traffic.server(ORDERS, 300, late, late);
        let mut model = traffic.model();
        model.set_machine(busy(percent));
        told(&judge(&model, None)).len()
    };
    let all = [(2, 40), (2, 60), (5, 60), (5, 85), (12, 85)];
    assert_eq!(all.map(|(ms, percent)| found(ms, percent)), [1, 0, 1, 0, 1]);
}

/// It needs little of a CPU, and waits for one longer than any other.
#[test]
fn what_no_other_has_nearly_as_long_is_not_usual_on_busy_cpus() {
    const USERS: Who = Who { pid: 104, name: "users", port: 8_004 };
    let late = Times { cpu: 3 * MS + MS / 2, ..USUAL };
    let found = |others: &[Who], theirs: u64, on_us: u64| {
        let mut traffic = Traffic::default();
        let times = Times { cpu: theirs, ..USUAL };
        others.iter().for_each(|who| traffic.server(*who, 100, times, times));
        traffic.server(BILLING, 100, late, late);
        let mut model = traffic.model();
        let ran = Ran { on_ns: on_us * 100 * US, waited_ns: 0 };
        model.set_machine(Machine { ran: [(BILLING.pid, ran)].into(), ..busy(85) });
        told(&judge(&model, None))
    };
    let three = [ORDERS, SEARCH, USERS];
    assert_eq!(found(&three, 50 * US, 10), [(Cause::CpuWait, BILLING.pid, Direction::In)]);
    assert_eq!(found(&three, MS, 10), [], "others wait too");
    assert_eq!(found(&three, 50 * US, 5_000), [], "who works for long has to share");
    assert_eq!(found(&three, 300 * US, 10).len(), 1);
    assert_eq!([50, 300].map(|us| found(&three[..2], us * US, 10).len()), [1, 0], "two may be lucky");
    assert_eq!(found(&three[..1], 50 * US, 10), [], "one says nothing");
}

#[test]
fn what_all_processes_of_one_service_have_is_no_noise() {
    let late = Times { cpu: 7 * MS, ..USUAL };
    let found = |names: [&'static str; 4]| {
        let mut traffic = Traffic::default();
        traffic.server(ORDERS, 100, USUAL, USUAL);
        traffic.server(SEARCH, 100, USUAL, USUAL);
        for (pid, name) in (104..).zip(names) {
            traffic.server(Who { pid, name, port: 80 }, 100, late, late);
        }
        let mut model = traffic.model();
        model.set_machine(busy(60));
        faults(&judge(&model, None)).iter().map(|finding| finding.cause).collect::<Vec<_>>()
    };
    assert_eq!(found(["nginx"; 4]), [Cause::CpuWait]);
    assert_eq!(found(["users", "stock", "rates", "quotes"]), [], "most services have it");
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

/// Each answer takes that long, ns, of which so much on a CPU, waiting for one, and asleep.
#[test]
fn who_works_shares_its_cpu() {
    let found = |service: u64, [on, waited, asleep]: [u64; 3], percent: u64| {
        let slow = Times { service, ..USUAL };
        let served = Served::of(on + waited + asleep, waited + asleep, asleep, 0);
        let mut traffic = Traffic { served, ..Traffic::default() };
        traffic.server(ORDERS, 100, slow, slow);
        let mut model = traffic.model();
        model.set_machine(busy(percent));
        told(&judge(&model, None)).len()
    };
    for (service, expected) in [
        (900 * US, [1, 0, 0, 0, 0]),
        (3 * MS, [1, 1, 0, 0, 0]),
        (18 * MS, [1, 1, 1, 0, 0]),
        (50 * MS, [1; 5]),
    ] {
        let parts = [service - 100 * US, 100 * US, 0];
        assert_eq!([10, 26, 40, 49, 60].map(|percent| found(service, parts, percent)), expected, "{service}");
    }
    assert_eq!(found(18 * MS, [4 * MS, MS, 13 * MS], 60), 1, "it sleeps");
}

/// Its bytes wait until the process is there that reads them.
#[test]
fn who_forks_for_each_connection_works_before_it_reads() {
    let late = Times { wait: 9 * MS, ..USUAL };
    let mut traffic = Traffic::default();
    (201..240).for_each(|pid| traffic.server(Who { pid, name: "httpd", port: ORDERS.port }, 3, late, late));
    let found = |percent: u64, late_ns: u64| {
        let mut model = traffic.model();
        model.set_machine(busy(percent));
        model.set_listening(accepted(117, late_ns));
        told(&judge(&model, None)).into_iter().map(|(cause, ..)| cause).collect::<Vec<_>>()
    };
    assert_eq!(found(20, 0), [Cause::ReaderLate]);
    assert_eq!(found(60, MS), []);
    assert_eq!(found(60, 8 * MS), [Cause::AcceptLate]);
    // One process that reads late does not.
    let mut traffic = Traffic::default();
    traffic.server(ORDERS, 117, late, late);
    let mut model = traffic.model();
    model.set_machine(busy(60));
    assert_eq!(told(&judge(&model, None)), [(Cause::ReaderLate, ORDERS.pid, Direction::In)]);
}

/// A thread for each answer that needs a CPU for 50 ms, on CPUs that it or others use.
#[test]
fn who_makes_the_cpus_busy_has_no_excuse() {
    let slow = Times { service: 50 * MS, ..USUAL };
    let mut traffic = Traffic::default();
    traffic.server(ORDERS, 100, slow, slow);
    let found = |capacity_ms: u64| {
        let mut model = traffic.model();
        let ran = Ran { on_ns: 49 * 100 * MS, waited_ns: 0 };
        let capacity_ns = Some(capacity_ms * MS);
        model.set_machine(Machine { ran: [(ORDERS.pid, ran)].into(), capacity_ns, ..busy(90) });
        told(&judge(&model, None))
    };
    assert_eq!(found(10_000), [(Cause::Application, ORDERS.pid, Direction::Out)]);
    assert_eq!(found(12_000), []);
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
    // It shows in both directions.
    assert_eq!(finding.also, []);
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

/// `calls` shows the functions of sockets alone.
#[test]
fn a_call_that_is_not_of_sockets_is_looked_at_by_strace() {
    let calls = "sudo net-latency calls --pid 7 --slower 1ms";
    for (call, next) in [
        (None, calls),
        (Some("recvfrom"), calls),
        (Some("epoll_wait"), calls),
        (Some("clock_nanosleep"), "sudo strace -f -T -e trace=clock_nanosleep -p 7"),
        (Some("futex"), "sudo strace -f -T -e trace=futex -p 7"),
    ] {
        assert_eq!(words::next_of_sleeper(7, call), next);
    }
}

#[test]
fn what_threads_did_is_told_of_a_server_that_forks() {
    let slow = Times { service: 40 * MS, ..USUAL };
    let said = |all: u64, asleep: u64, waited: u64| {
        let served = Served { all: all * MS, asleep: asleep * MS, waited: waited * MS, call: 1 };
        let mut traffic = Traffic { served, ..Traffic::default() };
        (201..240).for_each(|pid| traffic.server(Who { pid, name: "httpd", port: 80 }, 3, slow, slow));
        let mut model = traffic.model();
        model.set_machine(busy(20));
        let mut verdict = judge(&model, None);
        assert_eq!(verdict.findings.len(), 1, "{}", shown(&verdict));
        let finding = verdict.findings.remove(0);
        let line = finding.evidence.iter().find(|line| line.contains("for each answer"));
        (finding.cause, line.cloned().unwrap_or_default())
    };
    let call = syscall_numbers::native::sys_call_name(0).expect("the first one's name");
    let (cause, line) = said(40, 37, 2);
    let its = "its thread is on a CPU for 1.00 ms, waits for one for 2.00 ms, and is asleep for 37.0 ms";
    assert!(line.contains(&format!("{its}, most of it in {call}")) && cause == Cause::Application, "{line}");
    // Those of which it is known may be the shorter ones.
    for (cause, line) in [said(40, 2, 1), said(4, 1, 0)] {
        assert!(line.starts_with("it works: ") && cause == Cause::Application, "{line}");
    }
    assert_eq!(said(40, 1, 37).0, Cause::CpuWait);
}

#[test]
fn what_threads_did_for_few_answers_is_not_told() {
    let slow = Times { service: 40 * MS, ..USUAL };
    let served = Served::unknown(Unknown::OtherThread);
    let mut traffic = Traffic { served, ..Traffic::default() };
    traffic.server(ORDERS, 100, slow, slow);
    let mut model = traffic.model();
    let ran = Ran { on_ns: 35 * 100 * MS, waited_ns: 0 };
    model.set_machine(Machine { ran: [(ORDERS.pid, ran)].into(), ..busy(20) });
    let verdict = judge(&model, None);
    let line = verdict.findings[0].evidence.iter().find(|line| line.contains("for each answer"));
    assert!(line.is_some_and(|line| line.contains("schedstat")), "{}", shown(&verdict));
}

/// N connections of that service were accepted, so long after their first bytes had come.
fn accepted(count: u64, late_ns: u64) -> Listening {
    let mut listening = Listening::default();
    for number in 1..=count {
        listening.connection(&ConnectionRecord {
            established_ns: number,
            first_in_ns: number,
            accepted_ns: number + late_ns,
            bytes_in: 1,
            flags: CONNECTION_SERVER,
            local_port: ORDERS.port,
            netns: outgoing().netns,
            ..ConnectionRecord::default()
        });
    }
    listening
}

fn overflowing(overflows: u64) -> ListenerRecord {
    ListenerRecord {
        overflows,
        backlog: 4,
        port: ORDERS.port,
        netns: outgoing().netns,
        process: comm(b"acceptor"),
        pid: 99,
        ..ListenerRecord::default()
    }
}

#[test]
fn who_accepts_late_is_told_from_who_reads_late() {
    let mut traffic = Traffic::default();
    let late = Times { wait: 30 * MS, ..USUAL };
    [ORDERS, BILLING].into_iter().for_each(|who| traffic.server(who, 60, late, late));
    let found = |listening| {
        let mut model = traffic.model();
        model.set_listening(listening);
        told(&judge(&model, None)).into_iter().map(|(cause, pid, _)| (cause, pid)).collect::<Vec<_>>()
    };
    let is_said = |cause| vec![(cause, ORDERS.pid), (Cause::ReaderLate, BILLING.pid)];
    assert_eq!(found(Listening::default()), is_said(Cause::ReaderLate));
    assert_eq!(found(accepted(60, 29 * MS)), is_said(Cause::AcceptLate));
    // Most of the wait was behind `accept`.
    assert_eq!(found(accepted(60, 10 * MS)), is_said(Cause::ReaderLate));
    let mut model = traffic.model();
    let mut listening = accepted(60, 29 * MS);
    listening.listener(&overflowing(7));
    model.set_listening(listening);
    let verdict = judge(&model, None);
    let all = faults(&verdict);
    let finding = all.iter().find(|finding| finding.cause == Cause::AcceptLate).expect("said");
    let evidence = finding.evidence.join("\n");
    let accepted = "60 connections were accepted, after their first bytes had waited 29.0 ms on average";
    assert!(evidence.contains(accepted), "{evidence}");
    assert!(evidence.contains("7 handshakes dropped by a full queue, which has room for 4"), "{evidence}");
    assert_eq!((finding.next.as_str(), verdict.findings.len()), ("ss -ltn 'sport = :8001'", 2));
}

#[test]
fn a_full_accept_queue_is_no_drop_of_a_socket() {
    let mut traffic = Traffic::default();
    traffic.server(ORDERS, 60, USUAL, USUAL);
    let sockets =
        DroppingSockets { netns: outgoing().netns, port: ORDERS.port, protocol: IPPROTO_TCP, is_client: 0 };
    let causes = |overflows: u64, dropped: u64| {
        let mut model = traffic.model();
        let mut listening = accepted(60, 0);
        listening.listener(&overflowing(overflows));
        model.set_listening(listening);
        let losses = dropped_at(&[(sockets, dropped)], dropped);
        told(&judge(&model, Some(&losses)))
            .into_iter()
            .map(|(cause, pid, _)| (cause, pid))
            .collect::<Vec<_>>()
    };
    assert_eq!(causes(40, 60), [(Cause::AcceptLate, ORDERS.pid)]);
    assert_eq!(causes(4, 60), [(Cause::SocketDrop, ORDERS.pid)]);
    assert_eq!(causes(4, 7), []);
    // For a port of which no packet was seen.
    let mut model = Traffic::default().model();
    let mut listening = Listening::default();
    listening.listener(&overflowing(5));
    model.set_listening(listening);
    let text = shown(&judge(&model, None));
    assert!(
        text.starts_with(
            "acceptor, PID 99, tcp port 8001, in: its accept queue is full, 5 of 5 handshakes\n"
        ),
        "{text}"
    );
}
