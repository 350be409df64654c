//! All wanted packets are shown, and nothing else.

use std::net::SocketAddr;

use anyhow::{Result, ensure};

use super::{Case, prerequisites::expect_sentence};
use crate::{
    leftovers::Kernel,
    lines::{Dir, Line},
    net::{Path, Version},
    oracle::{self, Conversation},
    peers::{CLIENT, Pair, Peer, SERVER},
    tool::{Backend, Launch, Outcome, run},
};

pub(crate) const CASES: &[Case] = &[
    ("pid", pid),
    ("two_pids", two_pids),
    ("pid_of_a_connection_of_two", pid_of_a_connection_of_two),
    ("pid_of_a_udp_socket_of_two", pid_of_a_udp_socket_of_two),
    ("pid_of_one_receiver_of_two", pid_of_one_receiver_of_two),
    ("pid_that_does_not_exist", pid_that_does_not_exist),
    ("port", port),
    ("direction", direction),
    ("control", control),
];

const ROUNDS: u32 = 500;
const LEN: u32 = 200;

/// Two pairs that talk at the same time, seen by a tool with the arguments that `choose` makes of them.
fn two_pairs(
    backend: Backend,
    choose: impl FnOnce(&Pair, &Pair) -> Vec<String>,
) -> Result<(Pair, Pair, Outcome, Vec<Line>)> {
    two_pairs_by(&Path::loopback(Version::V4)?, backend, choose)
}

/// The first of which has that path.
fn two_pairs_by(
    path: &Path,
    backend: Backend,
    choose: impl FnOnce(&Pair, &Pair) -> Vec<String>,
) -> Result<(Pair, Pair, Outcome, Vec<Line>)> {
    let (mut first, mut second) = (Pair::connect(path)?, Pair::connect(&Path::loopback(Version::V6)?)?);
    let tool = Launch::new(backend).args(&choose(&first, &second)).start()?;
    first.begin(ROUNDS, LEN)?;
    second.begin(ROUNDS, LEN)?;
    first.finish()?;
    second.finish()?;
    let outcome = tool.stop()?;
    let lines = outcome.lines()?;
    Ok((first, second, outcome, lines))
}

fn expect_only(outcome: &Outcome, lines: &[Line], wanted: impl Fn(&Line) -> bool) -> Result<()> {
    let other = lines.iter().filter(|line| !wanted(line));
    ensure!(other.clone().next().is_none(), outcome.fault("lines that were not requested", other));
    Ok(())
}

/// The client's share of a conversation: what it wrote and what it read.
fn expect_client(outcome: &Outcome, conversation: &Conversation) -> Result<()> {
    let Conversation { requests_out, replies_in, .. } = conversation;
    oracle::expect_stream(outcome, "requests out", requests_out, ROUNDS as usize, LEN)?;
    oracle::expect_stream(outcome, "replies in", replies_in, ROUNDS as usize, LEN)
}

fn pid(backend: Backend) -> Result<()> {
    let arguments = |first: &Pair, _: &Pair| vec!["--pid".to_owned(), first.client.pid().to_string()];
    let (first, _second, outcome, lines) = two_pairs(backend, arguments)?;
    expect_only(&outcome, &lines, |line| line.pid == Some(first.client.pid()))?;
    for conversation in oracle::check(&outcome, &[&first])? {
        expect_client(&outcome, &conversation)?;
    }
    Ok(())
}

fn two_pids(backend: Backend) -> Result<()> {
    let arguments = |first: &Pair, second: &Pair| {
        vec![format!("--pid={}", first.client.pid()), format!("--pid={}", second.client.pid())]
    };
    let (first, second, outcome, lines) = two_pairs(backend, arguments)?;
    let wanted = [Some(first.client.pid()), Some(second.client.pid())];
    expect_only(&outcome, &lines, |line| wanted.contains(&line.pid))?;
    for conversation in oracle::check(&outcome, &[&first, &second])? {
        expect_client(&outcome, &conversation)?;
    }
    Ok(())
}

/// A connection that another process has used for so long that it is left alone is followed again once the one that was asked
/// for uses it, and stays so.
fn pid_of_a_connection_of_two(backend: Backend) -> Result<()> {
    /// 100 KB: more than is followed before a connection is left alone.
    const LONG: u32 = 500;
    const SHORT: u32 = 20;
    let mut pair = Pair::connect(&Path::veth(Version::V4)?)?;
    let tool = Launch::new(backend).args(&["--pid", &pair.server.pid().to_string()]).start()?;
    for (server, rounds) in
        [("child serve", LONG), ("serve", SHORT), ("child serve", SHORT), ("serve", SHORT)]
    {
        pair.server.tell(&format!("{server} {rounds} {LEN} 0"))?;
        pair.client.ask(&format!("request {rounds} {LEN}"))?;
        pair.server.answer()?;
    }
    let outcome = tool.stop()?;
    let lines = outcome.lines()?;
    expect_only(&outcome, &lines, |line| line.pid == Some(pair.server.pid()))?;
    let count = |dir| lines.iter().filter(|line| line.dir == dir && line.len == LEN).count();
    ensure!(count(Dir::Out) == 2 * SHORT as usize, outcome.fault("not all replies are shown", &lines));
    // The first request came while only the other process was known to use the connection.
    let requests = count(Dir::In);
    let wanted = 2 * SHORT as usize - 1;
    ensure!(requests == wanted, outcome.fault(format_args!("{requests} requests, not {wanted}"), &lines));
    let partial = lines.iter().filter(|line| line.is("partial"));
    ensure!(partial.clone().next().is_none(), outcome.fault("stages are missing", partial));
    outcome.ledger().map(drop)
}

/// Datagrams taken by the wanted process, each with all of its stages, and none of others.
fn expect_received(outcome: &Outcome, receiver: &Peer, count: u64) -> Result<()> {
    let lines = outcome.lines()?;
    expect_only(outcome, &lines, |line| line.pid == Some(receiver.pid()) && line.dir == Dir::In)?;
    ensure!(
        lines.len() as u64 == count,
        outcome.fault(format_args!("{} datagrams, not {count}", lines.len()), &lines)
    );
    let partial = lines.iter().filter(|line| line.is("partial"));
    ensure!(partial.clone().next().is_none(), outcome.fault("stages are missing", partial));
    outcome.ledger().map(drop)
}

/// A socket of UDP from which another process reads is untraced for a second at most, and not any more once the one that was asked
/// for has read from it.
fn pid_of_a_udp_socket_of_two(backend: Backend) -> Result<()> {
    const FEW: u64 = 5;
    const MANY: u64 = 20;
    let path = Path::loopback(Version::V4)?;
    let (near, far) = path.addresses();
    let mut sender = path.near(|| Peer::spawn(CLIENT))?;
    let mut receiver = path.far(|| Peer::spawn(SERVER))?;
    sender.ask(&format!("udp bind {near}"))?;
    let to = SocketAddr::new(far, receiver.ask(&format!("udp bind {far}"))?.try_into()?);
    let tool = Launch::new(backend).args(&["--pid", &receiver.pid().to_string()]).start()?;
    for (who, count) in [("child ", FEW), ("", FEW), ("", MANY), ("child ", FEW), ("", MANY)] {
        sender.ask(&format!("udp send-to {to} {count} {LEN}"))?;
        receiver.ask(&format!("{who}udp receive {count}"))?;
    }
    let outcome = tool.stop()?;
    // Those that came while it was untraced are counted, one by one.
    let unseen = outcome.figure("losses.packet_unseen")?;
    ensure!(unseen <= FEW, outcome.fault(format_args!("{unseen} datagrams were not seen"), []));
    expect_received(&outcome, &receiver, FEW - unseen + 2 * MANY)
}

/// Each datagram has two receivers, of which one is wanted: what that gets is shown, though the other one's socket is untraced.
fn pid_of_one_receiver_of_two(backend: Backend) -> Result<()> {
    const GROUP: &str = "239.77.0.1";
    let (mut sender, mut receivers) =
        (Peer::spawn(CLIENT)?, [Peer::spawn(SERVER)?, Peer::spawn(b"nl-other")?]);
    sender.ask("udp bind 127.0.0.1")?;
    sender.ask("udp multicast-by-loopback")?;
    let port = receivers[0].ask("udp bind-shared 0.0.0.0 0")?;
    receivers[1].ask(&format!("udp bind-shared 0.0.0.0 {port}"))?;
    for receiver in &mut receivers {
        receiver.ask(&format!("udp join {GROUP}"))?;
    }
    let tool = Launch::new(backend).args(&["--pid", &receivers[0].pid().to_string()]).start()?;
    for _ in 0..10 {
        sender.ask(&format!("udp send-to {GROUP}:{port} 2 {LEN}"))?;
        for receiver in receivers.iter_mut().rev() {
            receiver.ask("udp receive 2")?;
        }
    }
    expect_received(&tool.stop()?, &receivers[0], 20)
}

/// Above the highest PID that any kernel gives, so it can't come to exist either.
const NO_PID: &str = "999999999";

fn pid_that_does_not_exist(backend: Backend) -> Result<()> {
    let before = Kernel::now()?;
    let refusal = run(None, &["--backend", &backend.to_string(), "--pid", NO_PID])?;
    ensure!(refusal.code == Some(2), "exit code {:?}, not 2; it said:\n{}", refusal.code, refusal.stderr);
    ensure!(refusal.stdout.is_empty(), "it printed:\n{}", refusal.stdout);
    expect_sentence(&refusal.stderr)?;
    ensure!(refusal.stderr.contains(NO_PID), "the PID is not named: {}", refusal.stderr);
    before.expect_restored()
}

fn port(backend: Backend) -> Result<()> {
    let arguments = |first: &Pair, _: &Pair| vec!["--port".to_owned(), first.far.port().to_string()];
    let (first, _second, outcome, lines) = two_pairs(backend, arguments)?;
    let port = first.far.port();
    expect_only(&outcome, &lines, |line| line.sport == port || line.dport == port)?;
    for conversation in oracle::check(&outcome, &[&first])? {
        conversation.expect_rounds(&outcome, ROUNDS as usize, LEN)?;
    }
    Ok(())
}

fn direction(backend: Backend) -> Result<()> {
    for (dir, name) in [(Dir::In, "in"), (Dir::Out, "out")] {
        let arguments = |_: &Pair, _: &Pair| vec!["--direction".to_owned(), name.to_owned()];
        // What has come counts from its first entry, whether or not what leaves is traced.
        let path = Path::bridge(Version::V4)?;
        let (first, second, outcome, lines) = two_pairs_by(&path, backend, arguments)?;
        expect_only(&outcome, &lines, |line| line.dir == dir)?;
        for conversation in oracle::check(&outcome, &[&first, &second])? {
            let shown = match dir {
                Dir::In => [&conversation.requests_in, &conversation.replies_in],
                Dir::Out => [&conversation.requests_out, &conversation.replies_out],
            };
            for lines in shown {
                oracle::expect_stream(&outcome, name, lines, ROUNDS as usize, LEN)?;
            }
        }
    }
    Ok(())
}

/// Segments without data have lines only when requested, and then say what they are.
fn control(backend: Backend) -> Result<()> {
    for asked in [false, true] {
        let arguments: &[&str] = if asked { &["--control"] } else { &[] };
        let tool = Launch::new(backend).args(arguments).start()?;
        let mut pair = Pair::connect(&Path::loopback(Version::V4)?)?;
        pair.converse(20, LEN)?;
        pair.close()?;
        let outcome = tool.stop()?;
        for conversation in oracle::check(&outcome, &[&pair])? {
            conversation.expect_rounds(&outcome, 20, LEN)?;
        }
        let lines = outcome.lines()?;
        let control = lines.iter().filter(|line| pair.owns(line) && line.is("control"));
        if !asked {
            ensure!(control.clone().next().is_none(), outcome.fault("control lines, not requested", control));
            continue;
        }
        let out = control.clone().filter(|line| line.dir == Dir::Out);
        // SYN, the handshake's ACK and FIN one way; SYN/ACK and FIN the other way.
        let near = out.clone().filter(|line| pair.is_request(line)).count();
        let far = out.filter(|line| pair.is_reply(line)).count();
        ensure!(
            near >= 3 && far >= 2,
            outcome.fault(format_args!("only {near} and {far} control lines out"), control)
        );
    }
    Ok(())
}
