//! Verdicts on faults that are made: each is found where it is, and nothing else is blamed.

use std::{
    sync::atomic::{AtomicU16, Ordering},
    thread::sleep,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::Case;
use crate::{
    ftrace,
    net::{
        Hook, Path, Version, counter, drop_port, queue_port,
        verdicts::{Manner, Verdicts},
    },
    peers::{CLIENT, Pair, Peer, SERVER},
    tool::{Backend, Launch, Outcome, Scratch, Sink, Tool},
};

pub(crate) const CASES: &[Case] = &[
    ("diagnose_finds_a_reader_that_sleeps", reader_sleeps),
    ("diagnose_finds_a_listener_that_accepts_late", accepts_late),
    ("diagnose_finds_a_reader_without_a_cpu", reader_needs_a_cpu),
    ("diagnose_finds_the_senders_queue", senders_queue),
    ("diagnose_finds_the_queue_at_the_other_end", peers_queue),
    ("diagnose_finds_late_answers_of_who_is_not_seen", late_answers),
    ("diagnose_finds_the_network_by_acks", network),
    ("diagnose_finds_the_network_by_handshakes", handshakes),
    ("diagnose_finds_missing_bytes", missing_bytes),
    ("diagnose_finds_small_writes_that_wait", small_writes),
    ("diagnose_finds_a_slow_application", slow_application),
    ("diagnose_finds_a_socket_that_drops", socket_drops),
    ("diagnose_says_where_requests_are_dropped", requests_dropped),
    ("diagnose_finds_drops_before_a_socket", drops_before_a_socket),
    ("diagnose_finds_netfilter", netfilter),
    ("diagnose_blames_nobody_in_a_healthy_system", healthy),
    ("diagnose_ends_by_duration_as_text", text),
];

/// How long a fault lasts. A busy machine takes the emulated CPU away for tens of milliseconds, now and then.
const FAULT: Duration = Duration::from_millis(100);
/// Between what such a machine does by itself and a fault.
const THRESHOLD: &str = "30ms";
/// More than the least number of packets that are judged.
const ROUNDS: u32 = 30;

/// Two new peers without a connection yet, of which the server listens at a port outside the ephemeral range: that shows that it is a
/// server.
fn prepare(path: &Path) -> Result<Pair> {
    static NEXT: AtomicU16 = AtomicU16::new(7_100);
    let mut pair = Pair::prepare(path, CLIENT, SERVER)?;
    let port = NEXT.fetch_add(1, Ordering::Relaxed);
    pair.server.ask(&format!("listen {} {port}", pair.far.ip()))?;
    pair.far.set_port(port);
    Ok(pair)
}

fn connect(path: &Path) -> Result<Pair> {
    let mut pair = prepare(path)?;
    pair.open(path)?;
    Ok(pair)
}

fn start(backend: Backend, pair: &Pair, arguments: &[&str]) -> Result<Tool> {
    start_from(THRESHOLD, backend, pair, arguments)
}

fn start_from(threshold: &str, backend: Backend, pair: &Pair, arguments: &[&str]) -> Result<Tool> {
    start_at(pair.far.port(), threshold, backend, arguments)
}

fn start_at(port: u16, threshold: &str, backend: Backend, arguments: &[&str]) -> Result<Tool> {
    let port = port.to_string();
    let usual = ["--port", &port, "--threshold", threshold, "--duration", "10m"];
    let sink = Sink::Redirected(Scratch::new("diagnose"));
    Launch::new(backend).view("diagnose").args(&usual).args(arguments).sink(sink).start()
}

/// The verdict, and whether its counts are those of the summary.
fn verdict(outcome: &Outcome) -> Result<Value> {
    let verdict: Value = serde_json::from_str(outcome.text()?)
        .map_err(|error| outcome.fault(format_args!("not one JSON object: {error}"), []))?;
    let seen = &verdict["seen"];
    let packets = ["packets_in", "packets_out"].map(|name| seen[name].as_u64().unwrap_or(0));
    let shown = outcome.ledger()?.shown;
    ensure!(
        packets.iter().sum::<u64>() == shown,
        outcome.fault(format_args!("{shown} shown, but {verdict}"), [])
    );
    Ok(verdict)
}

/// Cause and direction of the findings about a process.
fn said_of(verdict: &Value, pid: u32) -> Result<Vec<(String, String)>> {
    let findings = verdict["findings"].as_array().context("no findings")?;
    let of = findings.iter().filter(|finding| finding["pid"] == pid);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok(of.map(|finding| (text(&finding["cause"]), text(&finding["direction"]))).collect())
}

/// That these are the faults of the client and of the server: no other, and none is missing.
fn expect(tool: Tool, pair: &Pair, client: &[(&str, &str)], server: &[(&str, &str)]) -> Result<Value> {
    // ACKs that wait for the peer's timer have come by then.
    sleep(Duration::from_millis(300));
    let outcome = tool.stop()?;
    let verdict = verdict(&outcome)?;
    for (pid, expected) in [(pair.client.pid(), client), (pair.server.pid(), server)] {
        let said = said_of(&verdict, pid)?;
        let said: Vec<_> =
            said.iter().map(|(cause, direction)| (cause.as_str(), direction.as_str())).collect();
        ensure!(
            said == expected,
            outcome.fault(format_args!("PID {pid}: {said:?}, not {expected:?}: {verdict}"), [])
        );
    }
    Ok(verdict)
}

fn reader_sleeps(backend: Backend) -> Result<()> {
    let mut pair = connect(&Path::loopback(Version::V4)?)?;
    let tool = start(backend, &pair, &[])?;
    // It sleeps before each request that it reads.
    pair.server.tell(&format!("serve {ROUNDS} 200 {}", FAULT.as_millis()))?;
    pair.client.ask(&format!("request {ROUNDS} 200"))?;
    pair.server.answer()?;
    let verdict = expect(tool, &pair, &[], &[("reader-late", "in")])?;
    ensure!(verdict["findings"][0]["stage"] == "wait", "another stage: {verdict}");
    Ok(())
}

fn accepts_late(backend: Backend) -> Result<()> {
    let mut pair = prepare(&Path::loopback(Version::V4)?)?;
    let tool = start(backend, &pair, &[])?;
    for _ in 0..ROUNDS {
        pair.client.ask(&format!("connect {} {}", pair.far.ip(), pair.far.port()))?;
        pair.client.tell("request 1 200")?;
        sleep(FAULT);
        pair.server.ask("accept")?;
        pair.server.ask("serve 1 200 0")?;
        pair.client.answer()?;
    }
    let verdict = expect(tool, &pair, &[], &[("accept-late", "in")])?;
    let evidence = verdict["findings"][0]["evidence"].to_string();
    ensure!(evidence.contains(&format!("{ROUNDS} connections were accepted, after")), "{evidence}");
    Ok(())
}

fn reader_needs_a_cpu(backend: Backend) -> Result<()> {
    let mut pair = connect(&Path::loopback(Version::V4)?)?;
    let mut hog = Peer::spawn(b"nl-hog")?;
    pair.client.ask("pin 0")?;
    pair.server.ask("pin 1")?;
    // It waits for that CPU as well, and comes first.
    let mut in_line = connect(&Path::loopback(Version::V4)?)?;
    in_line.client.ask("pin 1")?;
    let tool = start(backend, &pair, &[])?;
    for _ in 0..ROUNDS {
        let write = || {
            in_line.client.tell("write 200")?;
            pair.client.ask("write 200").map(drop)
        };
        pair.server.held_up("read 200 200 0", Duration::from_millis(50), (&mut hog, FAULT), write)?;
        in_line.client.answer()?;
    }
    let verdict = expect(tool, &pair, &[], &[("cpu-wait", "in")])?;
    let evidence = verdict["findings"][0]["evidence"].to_string();
    let holder = format!("nl-hog, PID {}, had that CPU: ", hog.pid());
    ensure!(evidence.contains(&holder), "{holder:?} is not said: {verdict}");
    let holder = &verdict["findings"][0]["cpu_held_by"];
    ensure!(holder["pid"] == hog.pid() && holder["process"] == "nl-hog", "{holder} is not it: {verdict}");
    ensure!(evidence.contains("its reader may use CPU 1 only"), "affinity is not named: {verdict}");
    Ok(())
}

fn senders_queue(backend: Backend) -> Result<()> {
    let path = Path::veth(Version::V4)?;
    let mut pair = connect(&path)?;
    path.delay(FAULT)?;
    let tool = start(backend, &pair, &[])?;
    pair.converse(ROUNDS, 200)?;
    expect(tool, &pair, &[("qdisc", "out")], &[]).map(drop)
}

/// The client waits for a server on this machine, which has the delay.
fn peers_queue(backend: Backend) -> Result<()> {
    let path = Path::veth(Version::V4)?;
    let mut pair = connect(&path)?;
    path.delay_answers(FAULT)?;
    let tool = start(backend, &pair, &[])?;
    pair.converse(ROUNDS, 200)?;
    expect(tool, &pair, &[], &[("qdisc", "out")]).map(drop)
}

/// The client waits for a server of which only the client's side is seen.
fn late_answers(backend: Backend) -> Result<()> {
    let path = Path::veth(Version::V4)?;
    let mut pair = connect(&path)?;
    path.delay_answers(FAULT)?;
    let client = pair.client.pid().to_string();
    let tool = start(backend, &pair, &["--pid", &client])?;
    pair.converse(ROUNDS, 200)?;
    let verdict = expect(tool, &pair, &[("peer-answer", "out")], &[])?;
    ensure!(verdict["findings"][0]["confidence"] != "high", "two can be to blame: {verdict}");
    Ok(())
}

/// Full packets, one after the other: nothing at the peer holds their ACKs back.
fn network(backend: Backend) -> Result<()> {
    const LEN: u32 = 2_000;
    const COUNT: u32 = 80;
    let path = Path::veth(Version::V4)?;
    let mut pair = connect(&path)?;
    path.delay_answers(FAULT)?;
    let tool = start(backend, &pair, &[])?;
    pair.server.tell(&format!("read {} 65536 0", LEN * COUNT))?;
    for _ in 0..COUNT {
        pair.client.ask(&format!("write {LEN}"))?;
        // No more than the first window takes in a round trip.
        sleep(FAULT / 4);
    }
    pair.server.answer()?;
    expect(tool, &pair, &[("network", "out")], &[]).map(drop)
}

/// Each request has a connection of its own, to a server that is not seen.
fn handshakes(backend: Backend) -> Result<()> {
    let path = Path::veth(Version::V4)?;
    let mut pair = prepare(&path)?;
    path.delay_answers(FAULT)?;
    let client = pair.client.pid().to_string();
    let tool = start(backend, &pair, &["--pid", &client])?;
    for _ in 0..ROUNDS {
        pair.client.ask(&format!("connect {} {}", pair.far.ip(), pair.far.port()))?;
        pair.client.tell("request 1 200")?;
        pair.server.ask("accept")?;
        pair.server.ask("serve 1 200 0")?;
        pair.client.answer()?;
    }
    let verdict = expect(tool, &pair, &[("network", "out")], &[])?;
    let answers = verdict["answers"].as_array().context("no answers")?;
    let gets = answers.iter().find(|answers| answers["role"] == "client").context("no client")?;
    let parts = gets["parts"].as_array().context("no parts")?;
    let sum = |parts: &[Value]| parts.iter().filter_map(|part| part["sum_ns"].as_u64()).sum::<u64>();
    let connect: Vec<_> = parts.iter().filter(|part| part["part"] == "connect").cloned().collect();
    let figure = |value: &Value| value.as_u64().unwrap_or(0);
    let (known, unknown) = (figure(&gets["count"]), figure(&gets["unknown"]));
    // Of a request that a busy machine sends again the answer's parts are unknown.
    let again = figure(&verdict["seen"]["packets_out"]).saturating_sub(ROUNDS.into());
    ensure!(
        known + unknown == u64::from(ROUNDS) && unknown <= again && known > 0,
        "{again} requests were sent again: {verdict}"
    );
    let least = u64::try_from(FAULT.as_nanos())? * known;
    ensure!(sum(&connect) >= least, "a handshake took less than {FAULT:?}: {verdict}");
    ensure!(gets["sum_ns"] == sum(parts), "the parts are more or less than the whole: {verdict}");
    Ok(())
}

fn missing_bytes(backend: Backend) -> Result<()> {
    /// Of N packets each: more would wait for the ACKs of those that are late, and overtake none.
    const BURSTS: u32 = 40;
    const BURST: u32 = 8;
    const LEN: u32 = 100;
    /// What TCP sends again may end a gap sooner.
    const SHORTER: &str = "10ms";
    let path = Path::veth(Version::V4)?.without_autocorking()?.without_guesses()?;
    let mut pair = connect(&path)?;
    path.reorder(FAULT)?;
    let server = pair.server.pid().to_string();
    let tool = start_from(SHORTER, backend, &pair, &["--pid", &server])?;
    pair.server.tell(&format!("read {} 4096 0", BURSTS * BURST * LEN))?;
    for _ in 0..BURSTS {
        // At once: a segment that is overtaken late, because a busy machine writes slowly, is not missing for long.
        pair.client.ask(&format!("write-each {BURST} {LEN}"))?;
        pair.client.ask("acked")?;
    }
    pair.server.answer()?;
    let queued = path.far(|| counter("netstat", "TcpExt", "TCPOFOQueue"))?;
    ensure!(queued >= 20, "{queued} came out of order, so this shows nothing");
    expect(tool, &pair, &[], &[("missing-bytes", "in")]).map(drop)
}

/// A request in two small writes: the second waits for the ACK of the first, which the server delays, for it expects the rest.
fn small_writes(backend: Backend) -> Result<()> {
    let mut pair = connect(&Path::veth(Version::V4)?)?;
    pair.client.ask("delay-small yes")?;
    let tool = start(backend, &pair, &[])?;
    // The first ACKs of a connection are not delayed.
    let rounds = 3 * ROUNDS;
    pair.server.tell(&format!("serve {rounds} 400 0"))?;
    for _ in 0..rounds {
        pair.client.ask("write-each 2 200")?;
        pair.client.ask("read 400 65536 0")?;
    }
    pair.server.answer()?;
    let verdict = expect(tool, &pair, &[("nagle", "out")], &[])?;
    let finding = &verdict["findings"][0];
    let said = format!("{} {}", finding["sentence"], finding["evidence"]);
    ensure!(said.contains("TCP_NODELAY") && said.contains(" by nagle"), "no word of why: {verdict}");
    Ok(())
}

/// What takes its time between reading and writing is no fault, and is told.
/// A queue that is full: the packets that find no room are those of the process that does not read.
fn socket_drops(backend: Backend) -> Result<()> {
    const SENT: u64 = 100;
    let (mut sender, mut receiver) = (Peer::spawn(CLIENT)?, Peer::spawn(SERVER)?);
    sender.ask("udp bind 127.0.0.1")?;
    let port = receiver.ask("udp bind 127.0.0.1")?;
    receiver.ask("udp receive-buffer 4096")?;
    let tool = start_at(u16::try_from(port)?, THRESHOLD, backend, &[])?;
    sender.ask(&format!("udp send-to 127.0.0.1:{port} {SENT} 1000"))?;
    // A softirq may be late.
    sleep(Duration::from_millis(200));
    let taken = receiver.ask("udp receive-all")?;
    ensure!(taken > 0 && taken < SENT, "{taken} of {SENT} found room, so this shows nothing");
    let outcome = tool.stop()?;
    let verdict = verdict(&outcome)?;
    let findings = verdict["findings"].as_array().context("no findings")?;
    let drops: Vec<_> = findings.iter().filter(|finding| finding["cause"] == "socket-drop").collect();
    let [drop] = drops.as_slice() else {
        return Err(outcome.fault(format_args!("not one finding: {verdict}"), []));
    };
    ensure!(
        drop["pid"] == receiver.pid() && drop["port"] == port && drop["affected"] == SENT - taken,
        outcome.fault(format_args!("{} dropped, but {drop}", SENT - taken), [])
    );
    Ok(())
}

/// A client and a server of datagrams at that port, each in a namespace.
fn prepare_datagrams(port: u16) -> Result<(Path, Peer, Peer)> {
    let path = Path::veth(Version::V4)?;
    let (near, far) = path.addresses();
    let mut client = path.near(|| Peer::spawn(CLIENT))?;
    let mut server = path.far(|| Peer::spawn(SERVER))?;
    server.ask(&format!("udp bind {far} {port}"))?;
    client.ask(&format!("udp bind {near}"))?;
    Ok((path, client, server))
}

/// A rule drops some requests, and the count is the rule's: those that were sent meanwhile.
fn requests_dropped(backend: Backend) -> Result<()> {
    const PORT: u16 = 7_053;
    const DROPPED: u64 = 4;
    let (path, mut client, mut server) = prepare_datagrams(PORT)?;
    let far = path.addresses().1;
    let tool = start_at(PORT, THRESHOLD, backend, &[])?;
    server.tell("udp echo 2")?;
    client.ask(&format!("udp request-to {far}:{PORT} 2 100"))?;
    server.answer()?;
    path.far(|| drop_port(PORT))?;
    for _ in 0..DROPPED {
        client.ask(&format!("udp send-to {far}:{PORT} 1 100"))?;
        // After a second it has no answer.
        sleep(Duration::from_millis(1_100));
    }
    let outcome = tool.stop()?;
    let verdict = verdict(&outcome)?;
    let said = said_of(&verdict, client.pid())?;
    ensure!(said == [("unanswered".to_owned(), "out".to_owned())], outcome.fault(&verdict, []));
    expect_place(&outcome, &verdict, PORT, DROPPED)
}

/// Only the server is seen, and a rule drops what comes for it.
fn drops_before_a_socket(backend: Backend) -> Result<()> {
    const PORT: u16 = 7_054;
    const DROPPED: u64 = 40;
    let (path, mut client, mut server) = prepare_datagrams(PORT)?;
    let far = path.addresses().1;
    let tool = start_at(PORT, THRESHOLD, backend, &["--pid", &server.pid().to_string()])?;
    server.tell("udp echo 2")?;
    client.ask(&format!("udp request-to {far}:{PORT} 2 100"))?;
    server.answer()?;
    path.far(|| drop_port(PORT))?;
    client.ask(&format!("udp send-to {far}:{PORT} {DROPPED} 100"))?;
    let outcome = tool.stop()?;
    let verdict = verdict(&outcome)?;
    let said = said_of(&verdict, server.pid())?;
    ensure!(said == [("packet-drop".to_owned(), "in".to_owned())], outcome.fault(&verdict, []));
    ensure!(verdict["findings"][0]["affected"] == DROPPED, outcome.fault(&verdict, []));
    expect_place(&outcome, &verdict, PORT, DROPPED)
}

/// A rule has a program judge each packet for the server, which takes its time.
fn netfilter(backend: Backend) -> Result<()> {
    const QUEUE: u16 = 9;
    // Each of their packets waits.
    const FEW: u32 = 15;
    let path = Path::veth(Version::V4)?;
    let mut pair = connect(&path)?;
    let manner = Manner { takes_whole: true, every: 1, delay: FAULT, grows_by: 0 };
    let verdicts = path.far(|| {
        let verdicts = Verdicts::start(QUEUE, manner)?;
        queue_port(Hook::In, pair.far.port(), QUEUE)?;
        Ok(verdicts)
    })?;
    let tool = start(backend, &pair, &[])?;
    pair.converse(FEW, 200)?;
    expect(tool, &pair, &[], &[("netfilter", "in")])?;
    ensure!(verdicts.finish()? >= FEW.into(), "fewer packets were judged than there were requests");
    Ok(())
}

/// That the first finding says where so many packets of that port were dropped by a rule.
fn expect_place(outcome: &Outcome, verdict: &Value, port: u16, dropped: u64) -> Result<()> {
    let evidence = verdict["findings"][0]["evidence"].as_array().context("no evidence")?;
    let start = format!("{dropped} packets of udp port {port} were dropped in n");
    let place = evidence.iter().filter_map(Value::as_str).find(|line| line.starts_with(&start));
    let place = place.with_context(|| outcome.fault(format_args!("not where: {verdict}"), []))?;
    // Linux 5.17 was the first with reasons, and 6.11 gave the function another name.
    let known = ftrace::known_functions()?;
    let has_reasons =
        ["kfree_skb_reason", "sk_skb_reason_drop"].iter().any(|name| known.iter().any(|it| it == name));
    let is_told = if has_reasons {
        place.ends_with(", reason NETFILTER_DROP")
    } else {
        ["in nf_hook_slow", "in nft_do_chain"].iter().any(|it| place.ends_with(it))
    };
    ensure!(is_told, outcome.fault(place, []));
    Ok(())
}

fn slow_application(backend: Backend) -> Result<()> {
    let mut pair = connect(&Path::loopback(Version::V4)?)?;
    let tool = start(backend, &pair, &[])?;
    for _ in 0..ROUNDS {
        pair.server.tell("read 200 200 0")?;
        pair.client.ask("write 200")?;
        pair.server.answer()?;
        pair.client.tell("read 200 200 0")?;
        pair.server.ask(&format!("write-after {} 200", FAULT.as_millis()))?;
        pair.client.answer()?;
    }
    let verdict = expect(tool, &pair, &[], &[("application", "out")])?;
    let answers = &verdict["findings"][0]["answers"];
    let [answer, part] = ["answer_ns", "part_ns"].map(|name| answers[name].as_u64().unwrap_or(0));
    let least = u64::try_from(FAULT.as_nanos())?;
    ensure!(least <= part && part <= answer, "each answer took {FAULT:?} at least: {verdict}");
    Ok(())
}

fn healthy(backend: Backend) -> Result<()> {
    let mut pair = connect(&Path::loopback(Version::V4)?)?;
    let tool = start(backend, &pair, &[])?;
    pair.converse(10 * ROUNDS, 200)?;
    // With pauses, in which ACKs come by the peer's timer.
    for _ in 0..ROUNDS {
        pair.converse(1, 200)?;
        sleep(Duration::from_millis(60));
    }
    let verdict = expect(tool, &pair, &[], &[])?;
    let normal = verdict["normal"].as_array().context("no list")?;
    let is_own = |side: &&Value| [pair.client.pid(), pair.server.pid()].iter().any(|pid| side["pid"] == *pid);
    ensure!(normal.iter().filter(is_own).count() == 4, "two directions of two processes: {verdict}");
    Ok(())
}

fn text(backend: Backend) -> Result<()> {
    let path = Path::loopback(Version::V4)?;
    let mut pair = prepare(&path)?;
    let port = pair.far.port().to_string();
    let sink = Sink::Redirected(Scratch::new("diagnose"));
    let arguments = ["--port", &port, "--threshold", "10s", "--duration", "3s", "--all"];
    let tool = Launch::new(backend).view("diagnose").text().args(&arguments).sink(sink).start()?;
    pair.open(&path)?;
    pair.converse(ROUNDS, 200)?;
    let outcome = tool.wait()?;
    outcome.expect_code(0)?;
    let said = outcome.text()?;
    let who = format!("PID {}, tcp port {port}, in: ", pair.server.pid());
    ensure!(
        said.starts_with("nothing is slow\n") && said.contains(&who),
        outcome.fault(format_args!("the verdict is:\n{said}"), [])
    );
    Ok(())
}
