//! What people and programs read.

use super::*;

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
    let page = include_str!("../../../../docs/diagnose.md");
    let described: Value = serde_json::from_str(SCHEMA).expect("the schema is JSON");
    let names = &described["properties"]["findings"]["items"]["properties"]["cause"]["enum"];
    let names: Vec<_> = names.as_array().expect("names").iter().filter_map(Value::as_str).collect();
    let all: Vec<_> = Cause::ALL.iter().map(|(_, name)| *name).collect();
    assert_eq!(names, all);
    for name in all {
        assert!(page.contains(&format!("| `{name}` |")), "docs/diagnose.md says nothing of {name}");
    }
}

#[test]
fn our_own_next_commands_are_taken() {
    use crate::diagnosis::{item::Item, words};

    let mut traffic = Traffic::default();
    traffic.server(ORDERS, 30, USUAL, USUAL);
    traffic.server(Who { pid: 0, ..BILLING }, 30, USUAL, USUAL);
    let model = traffic.model();
    let mut ours = 0;
    for service in &model.services {
        for (cause, _) in Cause::ALL {
            for item in [Item::Wait, Item::DrvIp, Item::IpTransport] {
                let next = words::next(*cause, item, service);
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

/// Commands that need no root, and end by themselves. The rest, and those not installed, are not run.
#[test]
fn next_commands_of_others_work() {
    use crate::diagnosis::{item::Item, words};

    let mut traffic = Traffic::default();
    traffic.server(ORDERS, 30, USUAL, USUAL);
    let model = traffic.model();
    let mut commands: Vec<_> =
        Cause::ALL.iter().map(|(cause, _)| words::next(*cause, Item::Wait, &model.services[0])).collect();
    let mut losses = Losses::default();
    losses.counters.values[Counter::DroppedIn as usize] = 70;
    commands.push(judge(&model, Some(&losses)).findings[0].next.clone());
    commands.sort();
    commands.dedup();
    for command in commands {
        let program = command.split(' ').next().expect("a program");
        if !["ss", "nstat", "tc", "ip"].contains(&program) {
            continue;
        }
        // That device is on every machine.
        let command = command.replace("eth0", "lo");
        let ran = std::process::Command::new("sh").args(["-c", &command]).output().expect("a shell");
        let said = String::from_utf8_lossy(&ran.stderr);
        // What a shell says of a program that is not there.
        if ran.status.code() == Some(127) {
            eprintln!("not run: {command}: {said}");
            continue;
        }
        assert!(ran.status.success() && said.is_empty(), "{command}: {}: {said}", ran.status);
    }
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
        "Too early to say: no packets in the last 0 ms; 20 from one service needed"
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

#[test]
fn a_command_is_for_the_namespace_of_the_service() {
    let said = |name: Option<&[u8]>, container: Option<&[u8]>, remote: [u8; 4], is_elsewhere: bool| {
        let mut traffic = Traffic::default();
        traffic.client(Who { pid: 200, name: "client", port: 5_432 }, remote, 60, 20 * MS);
        let mut packets = traffic.packets.clone();
        packets.sort_by_key(|(wall, ..)| *wall);
        let own = packets[0].1.netns + u32::from(is_elsewhere);
        let mut model = Model::new(Duration::from_millis(1), EPHEMERAL).with_netns(Some(own));
        for (wall, record, parts) in &packets {
            let event = Event::new(record, *wall, Some(b"veth0")).with_place(name, container);
            model.record(&event.with_parts(Some(parts)));
        }
        model.finish();
        judge(&model, None).findings.remove(0).next
    };
    let next = |name: Option<&[u8]>, container: Option<&[u8]>, remote| said(name, container, remote, false);
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
    // One without a name is entered by its process, unless it is ours.
    assert_eq!(said(None, None, [10, 0, 0, 2], true), format!("sudo nsenter -t 200 -n {sockets}"));
    assert_eq!(said(Some(b"back"), None, far, true), "sudo ip netns exec back mtr -n 192.0.2.7");
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
fn what_each_answer_takes_is_the_mean_of_all() {
    let slow = Times { service: 40 * MS, ..USUAL };
    let mut traffic = Traffic::default();
    for (count, times) in [(95, slow), (5, USUAL)] {
        traffic.server(ORDERS, count, times, times);
    }
    let said = shown(&judge(&traffic.model(), None));
    let after =
        |what: &str| said.split(what).nth(1).and_then(|rest| rest.split([',', '=']).next().map(str::trim));
    let each = after("each answer takes ");
    assert!(each.is_some() && each == after("an answer on average: "), "{said}");
}
