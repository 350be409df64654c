//! The owners of packets: threads, children, heirs, and processes that are gone.

use std::{thread::sleep, time::Duration};

use anyhow::{Context as _, Result, ensure};

use super::{Check, Evidence, Scenario, Theme, io::held_back};
use crate::{
    lines::{Dir, Line},
    net::{Path, Version},
    oracle::{self, Conversation, expect_bytes, expect_stream},
    peers::{CHILD, HEIR, Pair},
};

pub(crate) const THEME: Theme = Theme {
    name: "who",
    arguments: &[],
    scenarios: &[
        Scenario { name: "threads_in_turn", play: threads_in_turn },
        Scenario { name: "threads_at_once", play: threads_at_once },
        Scenario { name: "threads_with_names", play: threads_with_names },
        Scenario { name: "child_serves", play: || served_by("child", CHILD) },
        Scenario { name: "connection_passed_on", play: || served_by("pass", CHILD) },
        Scenario { name: "connection_inherited_by_exec", play: || served_by("heir", HEIR) },
        Scenario { name: "processes_in_turn", play: processes_in_turn },
        Scenario { name: "processes_in_turn_sent_later", play: sent_later },
        Scenario { name: "two_processes_in_one_segment", play: one_segment },
        Scenario { name: "two_processes_read_one_segment", play: one_segment_read },
        Scenario { name: "writer_that_has_ended", play: ended },
        Scenario { name: "waits_below_ip", play: waits_below_ip },
        Scenario { name: "pid_namespace", play: pid_namespace },
    ],
};

const LEN: u32 = 200;
const ROUNDS: u32 = 20;

/// Whether the server's side gave or took the packet.
fn is_servers(pair: &Pair, line: &Line) -> bool {
    pair.is_request(line) == (line.dir == Dir::In)
}

/// Fails unless `lines` are the tasks' in this order, each a PID and a thread id, one segment each.
fn expect_tasks(evidence: &Evidence<'_>, what: &str, lines: &[Line], tasks: &[(u64, u64)]) -> Result<()> {
    expect_stream(evidence.outcome, what, lines, tasks.len(), LEN)?;
    for (line, &(pid, tid)) in lines.iter().zip(tasks) {
        ensure!(
            (line.pid.map(u64::from), line.tid.map(u64::from)) == (Some(pid), Some(tid)),
            evidence.outcome.fault(format_args!("{what}: not process {pid}, thread {tid}"), [line])
        );
    }
    Ok(())
}

/// Two threads of each process write and read in turn.
fn threads_in_turn() -> Result<Check> {
    let mut pair = Pair::connect(&Path::loopback(Version::V4)?)?;
    let (client, server) = (u64::from(pair.client.pid()), u64::from(pair.server.pid()));
    let (mut written, mut read) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        written.push((client, pair.client.ask(&format!("thread write {LEN}"))?));
        read.push((server, pair.server.ask(&format!("thread read {LEN} {LEN} 0"))?));
        pair.client.ask(&format!("write {LEN}"))?;
        written.push((client, client));
        pair.server.ask(&format!("read {LEN} {LEN} 0"))?;
        read.push((server, server));
    }
    ensure!(written[0].1 != client && read[0].1 != server, "a thread is no thread");
    Ok(Box::new(move |evidence| {
        let conversation = Conversation::check(evidence.outcome, &evidence.lines, &pair)?;
        expect_tasks(evidence, "requests out", &conversation.requests_out, &written)?;
        expect_tasks(evidence, "requests in", &conversation.requests_in, &read)
    }))
}

/// Threads of both have names of their own, among them a pool's that differ by their number, and both processes change
/// theirs meanwhile.
fn threads_with_names() -> Result<Check> {
    let mut pair = Pair::connect(&Path::loopback(Version::V4)?)?;
    let (mut written, mut read) = (Vec::new(), Vec::new());
    let who = |thread: &str, process: &str| (thread.to_owned(), process.to_owned());
    for (turn, [client, server]) in
        [[pair.client.comm(), pair.server.comm()], ["nl-gateway", "nl-search"].map(str::to_owned)]
            .into_iter()
            .enumerate()
    {
        if turn > 0 {
            pair.client.ask(&format!("rename {client}"))?;
            pair.server.ask(&format!("rename {server}"))?;
        }
        for thread in ["pool-1", "pool-2", "Thread-3(three)"] {
            pair.client.ask(&format!("named {thread} write {LEN}"))?;
            pair.server.ask(&format!("named {thread} read {LEN} {LEN} 0"))?;
            written.push(who(thread, &client));
            read.push(who(thread, &server));
        }
        pair.client.ask(&format!("write {LEN}"))?;
        pair.server.ask(&format!("read {LEN} {LEN} 0"))?;
        written.push(who(&client, &client));
        read.push(who(&server, &server));
    }
    Ok(Box::new(move |evidence| {
        // The names are checked below.
        let conversation = Conversation::check_by(evidence.outcome, &evidence.lines, &pair, &|line| {
            Some((oracle::sender_or_reader(&pair, line).pid(), line.comm.clone()?))
        })?;
        for (what, lines, names) in [
            ("requests out", &conversation.requests_out, &written),
            ("requests in", &conversation.requests_in, &read),
        ] {
            expect_stream(evidence.outcome, what, lines, names.len(), LEN)?;
            for (line, (thread, process)) in lines.iter().zip(names) {
                ensure!(
                    (line.comm.as_ref(), line.process.as_ref()) == (Some(thread), Some(process)),
                    evidence.outcome.fault(format_args!("{what}: not {thread} of {process}"), [line])
                );
            }
        }
        Ok(())
    }))
}

/// At both ends one thread writes while another one reads.
fn threads_at_once() -> Result<Check> {
    let mut pair = Pair::connect(&Path::loopback(Version::V4)?)?;
    let command = format!("duplex {ROUNDS} {LEN}");
    pair.server.tell(&command)?;
    let client_reader = pair.client.ask(&command)?;
    let server_reader = pair.server.answer()?;
    Ok(Box::new(move |evidence| {
        let conversation = Conversation::check(evidence.outcome, &evidence.lines, &pair)?;
        let (client, server) = (u64::from(pair.client.pid()), u64::from(pair.server.pid()));
        for (what, lines, tid) in [
            ("requests out", &conversation.requests_out, client),
            ("requests in", &conversation.requests_in, server_reader),
            ("replies out", &conversation.replies_out, server),
            ("replies in", &conversation.replies_in, client_reader),
        ] {
            expect_bytes(evidence.outcome, what, lines, u64::from(ROUNDS * LEN))?;
            let other = lines.iter().find(|line| line.tid.map(u64::from) != Some(tid));
            ensure!(
                other.is_none(),
                evidence.outcome.fault(format_args!("{what} not of thread {tid}"), other)
            );
        }
        Ok(())
    }))
}

/// The server's part is played by another process, to which its connection came in the way that `how` says.
fn served_by(how: &'static str, name: &'static str) -> Result<Check> {
    let mut pair = Pair::connect(&Path::loopback(Version::V4)?)?;
    pair.server.tell(&format!("{how} serve {ROUNDS} {LEN} 0"))?;
    pair.client.ask(&format!("request {ROUNDS} {LEN}"))?;
    let pid: u32 = pair.server.answer()?.try_into()?;
    ensure!(pid != pair.server.pid(), "the server served itself");
    Ok(Box::new(move |evidence| {
        let who = |line: &Line| {
            if is_servers(&pair, line) {
                (pid, name.to_owned())
            } else {
                (pair.client.pid(), pair.client.comm())
            }
        };
        let conversation =
            Conversation::check_by(evidence.outcome, &evidence.lines, &pair, &|line| Some(who(line)))?;
        conversation.expect_rounds(evidence.outcome, ROUNDS as usize, LEN)
    }))
}

/// Peers and their children use the connections in turn.
fn processes_in_turn() -> Result<Check> {
    let mut pair = Pair::connect(&Path::loopback(Version::V4)?)?;
    let (client, server) = (u64::from(pair.client.pid()), u64::from(pair.server.pid()));
    let (mut written, mut read) = (Vec::new(), Vec::new());
    for turn in 0..6 {
        // Both ends change, but not at the same time.
        let (writes, reads) = (format!("write {LEN}"), format!("read {LEN} {LEN} 0"));
        let writer = if turn % 2 == 0 {
            pair.client.ask(&writes)?;
            client
        } else {
            pair.client.ask(&format!("child {writes}"))?
        };
        let reader = if turn % 3 == 0 {
            pair.server.ask(&reads)?;
            server
        } else {
            pair.server.ask(&format!("child {reads}"))?
        };
        written.push((writer, writer));
        read.push((reader, reader));
    }
    Ok(Box::new(move |evidence| {
        let conversation = Conversation::check_by(evidence.outcome, &evidence.lines, &pair, &|line| {
            let peer = oracle::sender_or_reader(&pair, line);
            // Who it must be exactly is checked below.
            let pid = line.pid.unwrap_or_default();
            Some((pid, if pid == peer.pid() { peer.comm() } else { CHILD.to_owned() }))
        })?;
        expect_tasks(evidence, "requests out", &conversation.requests_out, &written)?;
        expect_tasks(evidence, "requests in", &conversation.requests_in, &read)
    }))
}

/// The sequence number of the first byte that the client sent.
fn first_seq(evidence: &Evidence<'_>, pair: &Pair) -> Result<u32> {
    let mut sent = evidence.lines.iter().filter(|line| line.dir == Dir::Out && pair.is_request(line));
    Ok(sent.next().with_context(|| evidence.outcome.fault("nothing sent", []))?.seq)
}

/// What TCP holds back and sends later is each the process' that wrote its first byte.
fn sent_later() -> Result<Check> {
    const PART: u32 = 30_000;
    let mut pair = held_back()?;
    pair.client.ask(&format!("write {PART}"))?;
    let child = u32::try_from(pair.client.ask(&format!("child write {PART}"))?)?;
    pair.client.ask(&format!("write {PART}"))?;
    pair.server.ask(&format!("take read {} 0", 3 * PART))?;
    Ok(Box::new(move |evidence| {
        let start = first_seq(evidence, &pair)?;
        let is_childs = |line: &Line| line.dir == Dir::Out && line.seq.wrapping_sub(start) / PART == 1;
        let conversation = Conversation::check_by(evidence.outcome, &evidence.lines, &pair, &|line| {
            let peer = oracle::sender_or_reader(&pair, line);
            Some(if is_childs(line) { (child, CHILD.to_owned()) } else { (peer.pid(), peer.comm()) })
        })?;
        let sent = &conversation.requests_out;
        expect_bytes(evidence.outcome, "requests out", sent, u64::from(3 * PART))?;
        let childs = sent.iter().filter(|line| is_childs(line)).count();
        ensure!(childs > 3, evidence.outcome.fault("the window did not limit anything", sent));
        Ok(())
    }))
}

/// A segment that waits below IP for its neighbour's address is its writer's, though another process writes meanwhile.
fn waits_below_ip() -> Result<Check> {
    const WAIT: Duration = Duration::from_millis(60);
    // The first one is not to be sent again while it waits: its line would be the second sending's.
    let path = Path::veth(Version::V4)?.patient()?;
    let mut pair = Pair::connect(&path)?;
    pair.converse(2, LEN)?;
    // Or else the server sends its last answer again, whose ACK would overtake the first one.
    pair.server.ask("acked")?;
    // What comes meanwhile waits for the first one's ACK.
    pair.client.ask("delay-small yes")?;
    path.forget_neighbour()?;
    pair.client.ask(&format!("write {LEN}"))?;
    let child = pair.client.ask(&format!("child write {LEN}"))?;
    sleep(WAIT);
    path.tell_neighbour()?;
    pair.server.ask(&format!("read {} {LEN} 0", 2 * LEN))?;
    Ok(Box::new(move |evidence| {
        let out: Vec<_> = evidence
            .lines
            .iter()
            .filter(|line| line.dir == Dir::Out && line.is_between(pair.near, pair.far))
            .skip(2)
            .filter(|line| !line.is("retrans"))
            .collect();
        ensure!(out.len() == 2, evidence.outcome.fault("not two lines", out));
        for (line, pid) in out.iter().zip([pair.client.pid().into(), child]) {
            ensure!(
                line.pid == u32::try_from(pid).ok(),
                evidence.outcome.fault(format_args!("not {pid}'s"), [*line])
            );
        }
        let (first, second) = (out[0], out[1]);
        let waited = |time: Option<u64>| time.is_some_and(|ns| u128::from(ns) >= WAIT.as_nanos() * 9 / 10);
        ensure!(
            waited(first.stages[2]) && !waited(first.stages[0]) && waited(second.stages[0]),
            evidence
                .outcome
                .fault("the wait is not below IP for the first, and before TCP for the second", out)
        );
        Ok(())
    }))
}

/// A segment that two processes have written is the first one's.
fn one_segment() -> Result<Check> {
    let mut pair = Pair::connect(&Path::veth(Version::V4)?.patient()?)?;
    pair.client.ask("cork yes")?;
    let child = pair.client.ask(&format!("child write {}", LEN / 2))?;
    pair.client.ask(&format!("write {}", LEN / 2))?;
    pair.client.ask("cork no")?;
    pair.server.ask(&format!("take read {LEN} 0"))?;
    pair.client.ask("cork yes")?;
    pair.client.ask(&format!("write {}", LEN / 2))?;
    pair.client.ask(&format!("child write {}", LEN / 2))?;
    pair.client.ask("cork no")?;
    pair.server.ask(&format!("take read {LEN} 0"))?;
    Ok(Box::new(move |evidence| {
        let start = first_seq(evidence, &pair)?;
        let conversation =
            check_with_child(evidence, &pair, child, &|line| line.dir == Dir::Out && line.seq == start)?;
        let client = u64::from(pair.client.pid());
        let tasks = [(child, child), (client, client)];
        expect_tasks(evidence, "requests out", &conversation.requests_out, &tasks)
    }))
}

/// Checks all lines of `pair`; those for which `is_childs` holds are a child's.
fn check_with_child(
    evidence: &Evidence<'_>,
    pair: &Pair,
    child: u64,
    is_childs: &dyn Fn(&Line) -> bool,
) -> Result<Conversation> {
    Conversation::check_by(evidence.outcome, &evidence.lines, pair, &|line| {
        let peer = oracle::sender_or_reader(pair, line);
        Some(if is_childs(line) {
            (u32::try_from(child).unwrap_or_default(), CHILD.to_owned())
        } else {
            (peer.pid(), peer.comm())
        })
    })
}

/// A segment that two processes have read is the first one's; the second one's begins with the next.
fn one_segment_read() -> Result<Check> {
    let mut pair = Pair::connect(&Path::private_loopback(Version::V4)?)?;
    pair.client.ask(&format!("write {LEN}"))?;
    pair.client.ask(&format!("write {LEN}"))?;
    let child = pair.server.ask(&format!("child take recv {} 0", LEN / 2))?;
    pair.server.ask(&format!("take recv {} 0", LEN + LEN / 2))?;
    Ok(Box::new(move |evidence| {
        let start = first_seq(evidence, &pair)?;
        let conversation =
            check_with_child(evidence, &pair, child, &|line| line.dir == Dir::In && line.seq == start)?;
        let server = u64::from(pair.server.pid());
        let tasks = [(child, child), (server, server)];
        expect_tasks(evidence, "requests in", &conversation.requests_in, &tasks)
    }))
}

/// A packet sent after its writer has ended still names it.
fn ended() -> Result<Check> {
    const BYTES: u64 = 50_000;
    let mut pair = held_back()?;
    pair.client.ask(&format!("write {BYTES}"))?;
    let within = pair.client.ask("data-segments-out")?;
    pair.client.end()?;
    pair.server.ask(&format!("take read {BYTES} 0"))?;
    Ok(Box::new(move |evidence| {
        let conversation = Conversation::check(evidence.outcome, &evidence.lines, &pair)?;
        let sent = &conversation.requests_out;
        expect_bytes(evidence.outcome, "requests out", sent, BYTES)?;
        expect_bytes(evidence.outcome, "requests in", &conversation.requests_in, BYTES)?;
        let later = sent.len() - usize::try_from(within)?.min(sent.len());
        ensure!(later > 3, evidence.outcome.fault("all was sent in the writer's life", sent));
        Ok(())
    }))
}

/// `pid` is the host's number of a process, `ns_pid` its own.
fn pid_namespace() -> Result<Check> {
    let mut pair = Pair::connect_isolated(&Path::loopback(Version::V4)?)?;
    pair.converse(ROUNDS, LEN)?;
    Ok(Box::new(move |evidence| {
        let conversation = Conversation::check(evidence.outcome, &evidence.lines, &pair)?;
        conversation.expect_rounds(evidence.outcome, ROUNDS as usize, LEN)?;
        for line in evidence.lines.iter().filter(|line| pair.owns(line)) {
            // The first process of a PID namespace has the number 1 there.
            let own = if is_servers(&pair, line) { 1 } else { pair.client.pid() };
            ensure!(
                line.ns_pid == Some(own),
                evidence.outcome.fault(format_args!("not {own} in its own namespace"), [line])
            );
        }
        Ok(())
    }))
}
