//! UDP, both ways.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    thread::sleep,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};

use super::{Check, Evidence, Scenario, Theme};
use crate::{
    lines::{Dir, Line, Proto},
    net::{
        Hook, Path, Version, forget_rules, queue_port,
        verdicts::{Manner, Verdicts},
    },
    oracle::expect_datagrams,
    peers::{CLIENT, Peer, SERVER},
};

pub(crate) const THEME: Theme = Theme {
    name: "udp",
    arguments: &[],
    scenarios: &[
        Scenario { name: "echo_loopback_v4", play: || echo(&Path::loopback(Version::V4)?) },
        Scenario { name: "echo_loopback_v6", play: || echo(&Path::loopback(Version::V6)?) },
        Scenario { name: "echo_veth_v4", play: || echo(&Path::veth(Version::V4)?) },
        Scenario { name: "echo_veth_v6", play: || echo(&Path::veth(Version::V6)?) },
        Scenario { name: "connected", play: connected },
        Scenario { name: "several_in_one_call", play: several_in_one_call },
        Scenario { name: "slow_reader", play: slow_reader },
        Scenario { name: "peek", play: peek },
        Scenario { name: "empty", play: empty },
        Scenario { name: "corked_by_flag", play: || corked(false) },
        Scenario { name: "corked_by_option", play: || corked(true) },
        Scenario { name: "segmented_and_split", play: || segmented(false) },
        Scenario { name: "segmented_and_whole", play: || segmented(true) },
        Scenario { name: "fragmented", play: fragmented },
        Scenario { name: "waits_for_neighbour", play: waits_for_neighbour },
        Scenario { name: "waits_for_verdict", play: || waits_for_verdict(Hook::Out) },
        Scenario { name: "waits_for_verdict_behind_ip", play: || waits_for_verdict(Hook::PostRouting) },
        Scenario { name: "multicast", play: multicast },
        Scenario { name: "mapped_address", play: mapped_address },
        Scenario { name: "full_queue", play: full_queue },
        Scenario { name: "closed_unread", play: closed_unread },
    ],
};

/// A sender and a receiver, each with a socket.
struct Two {
    sender: Peer,
    receiver: Peer,
    from: SocketAddr,
    to: SocketAddr,
}

impl Two {
    fn new(path: &Path) -> Result<Self> {
        let (near, far) = path.addresses();
        let mut sender = path.near(|| Peer::spawn(CLIENT))?;
        let mut receiver = path.far(|| Peer::spawn(SERVER))?;
        let from = SocketAddr::new(near, sender.ask(&format!("udp bind {near}"))?.try_into()?);
        let to = SocketAddr::new(far, receiver.ask(&format!("udp bind {far}"))?.try_into()?);
        Ok(Self { sender, receiver, from, to })
    }

    /// With the sender's socket connected.
    fn connected(path: &Path) -> Result<Self> {
        let mut two = Self::new(path)?;
        two.sender.ask(&format!("udp connect {}", two.to))?;
        Ok(two)
    }

    fn out<'a>(&self, evidence: &'a Evidence<'_>) -> Vec<&'a Line> {
        way(evidence, Dir::Out, self.from, self.to)
    }

    fn taken<'a>(&self, evidence: &'a Evidence<'_>) -> Vec<&'a Line> {
        way(evidence, Dir::In, self.from, self.to)
    }

    /// `count` datagrams of `len` bytes sent, and as many taken.
    fn expect(&self, evidence: &Evidence<'_>, count: usize, len: u32) -> Result<()> {
        expect(evidence, "out", &self.out(evidence), &self.sender, count, len)?;
        expect(evidence, "in", &self.taken(evidence), &self.receiver, count, len)
    }
}

fn way<'a>(evidence: &'a Evidence<'_>, dir: Dir, from: SocketAddr, to: SocketAddr) -> Vec<&'a Line> {
    evidence.lines.iter().filter(|line| line.dir == dir && line.is_between(from, to)).collect()
}

fn expect(
    evidence: &Evidence<'_>,
    what: &str,
    lines: &[&Line],
    peer: &Peer,
    count: usize,
    len: u32,
) -> Result<()> {
    expect_datagrams(evidence.outcome, what, lines, peer, count, len)
}

/// One line per datagram and direction, unconnected sockets.
pub(super) fn echo(path: &Path) -> Result<Check> {
    const ROUNDS: usize = 200;
    const LEN: u32 = 300;
    let mut two = Two::new(path)?;
    two.receiver.tell(&format!("udp echo {ROUNDS}"))?;
    two.sender.ask(&format!("udp request-to {} {ROUNDS} {LEN}", two.to))?;
    two.receiver.answer()?;
    Ok(Box::new(move |evidence| {
        two.expect(evidence, ROUNDS, LEN)?;
        let back = |dir| way(evidence, dir, two.to, two.from);
        expect(evidence, "back out", &back(Dir::Out), &two.receiver, ROUNDS, LEN)?;
        expect(evidence, "back in", &back(Dir::In), &two.sender, ROUNDS, LEN)?;
        let segments = evidence.lines.iter().filter(|line| line.proto == Proto::Udp && line.segs != 1);
        ensure!(segments.clone().next().is_none(), evidence.outcome.fault("merged, by whom?", segments));
        Ok(())
    }))
}

fn connected() -> Result<Check> {
    let mut two = Two::connected(&Path::veth(Version::V6)?)?;
    two.receiver.tell("udp receive 50")?;
    two.sender.ask("udp send 50 1200")?;
    two.receiver.answer()?;
    Ok(Box::new(move |evidence| two.expect(evidence, 50, 1200)))
}

/// sendmmsg and recvmmsg: each datagram has its line.
fn several_in_one_call() -> Result<Check> {
    let mut two = Two::connected(&Path::loopback(Version::V4)?)?;
    two.sender.ask("udp send-many 32 100")?;
    two.receiver.ask("udp receive-many 32")?;
    Ok(Box::new(move |evidence| two.expect(evidence, 32, 100)))
}

/// Longer than a busy machine takes the emulated CPU away, which may happen in any stage.
const PAUSE_MS: u64 = 100;
/// The clocks of the sleep and of the stamps may differ a little.
const PAUSE_NS: u64 = PAUSE_MS * 1_000_000 - 100_000;

/// The wait for the reader is udp-app's and no other stage's.
fn expect_wait(evidence: &Evidence<'_>, lines: &[&Line], stage: usize) -> Result<()> {
    for line in lines {
        for (index, time) in line.stages.iter().enumerate() {
            let is_long = time.is_some_and(|time| time >= PAUSE_NS);
            ensure!(
                is_long == (index == stage),
                evidence.outcome.fault(format_args!("the pause is not in stage {stage} alone"), [*line])
            );
        }
    }
    Ok(())
}

pub(super) fn slow_reader() -> Result<Check> {
    let mut two = Two::connected(&Path::loopback(Version::V6)?)?;
    two.sender.ask("udp send 5 64")?;
    two.receiver.ask(&format!("udp sleep {PAUSE_MS}"))?;
    two.receiver.ask("udp receive 5")?;
    Ok(Box::new(move |evidence| {
        two.expect(evidence, 5, 64)?;
        expect_wait(evidence, &two.taken(evidence), 2)
    }))
}

/// A reader that waits for the CPU that another process has.
pub(super) fn held_up_reader() -> Result<Check> {
    const ROUNDS: usize = 5;
    /// How long the other one keeps the CPU from then on.
    const AFTER: Duration = Duration::from_millis(50);
    let mut two = Two::connected(&Path::loopback(Version::V4)?)?;
    let mut hog = Peer::spawn(b"nl-hog")?;
    two.sender.ask("pin 0")?;
    two.receiver.ask("pin 1")?;
    for _ in 0..ROUNDS {
        let send = || two.sender.ask("udp send 1 200").map(drop);
        two.receiver.held_up("udp receive 1", Duration::from_millis(100), (&mut hog, AFTER), send)?;
    }
    Ok(Box::new(move |evidence| {
        two.expect(evidence, ROUNDS, 200)?;
        let taken = two.taken(evidence);
        let by_hog = taken.iter().filter(|line| line.cpu_held_by == Some(hog.pid())).count();
        ensure!(
            by_hog * 2 > ROUNDS,
            evidence.outcome.fault(format_args!("{by_hog} waited for PID {}", hog.pid()), taken)
        );
        Ok(())
    }))
}

/// A look is no taking: one line, when the datagram is taken.
fn peek() -> Result<Check> {
    let mut two = Two::connected(&Path::loopback(Version::V4)?)?;
    two.sender.ask("udp send 1 700")?;
    ensure!(two.receiver.ask("udp peek")? == 700, "not what was sent");
    two.receiver.ask(&format!("udp sleep {PAUSE_MS}"))?;
    two.receiver.ask("udp peek")?;
    two.receiver.ask("udp receive 1")?;
    Ok(Box::new(move |evidence| {
        two.expect(evidence, 1, 700)?;
        expect_wait(evidence, &two.taken(evidence), 2)
    }))
}

/// A datagram without a byte is one all the same, and looking at it is no taking.
fn empty() -> Result<Check> {
    let mut two = Two::connected(&Path::loopback(Version::V4)?)?;
    two.sender.ask("udp send 3 0")?;
    two.receiver.ask("udp peek")?;
    two.receiver.ask(&format!("udp sleep {PAUSE_MS}"))?;
    two.receiver.ask("udp receive 3")?;
    Ok(Box::new(move |evidence| {
        two.expect(evidence, 3, 0)?;
        expect_wait(evidence, &two.taken(evidence), 2)
    }))
}

/// A corked datagram has the time of the call that began it.
fn corked(by_option: bool) -> Result<Check> {
    let mut two = Two::connected(&Path::veth(Version::V4)?)?;
    if by_option {
        two.sender.ask("udp cork 1")?;
        two.sender.ask("udp send 1 100")?;
        two.sender.ask(&format!("udp sleep {PAUSE_MS}"))?;
        two.sender.ask("udp send 1 60")?;
        two.sender.ask("udp cork 0")?;
    } else {
        two.sender.ask("udp send-more 100")?;
        two.sender.ask(&format!("udp sleep {PAUSE_MS}"))?;
        two.sender.ask("udp send 1 60")?;
    }
    two.receiver.ask("udp receive 1")?;
    // What follows has its own time again.
    two.sender.ask("udp send 1 160")?;
    two.receiver.ask("udp receive 1")?;
    Ok(Box::new(move |evidence| {
        two.expect(evidence, 2, 160)?;
        let lines = two.out(evidence);
        expect_wait(evidence, &lines[..1], 0)?;
        let late = lines[1].stages[0].is_some_and(|time| time >= PAUSE_NS);
        ensure!(!late, evidence.outcome.fault("the time of another datagram", lines));
        Ok(())
    }))
}

/// GSO: one line out for all segments; in, one for each, or one for what a socket takes merged.
fn segmented(whole: bool) -> Result<Check> {
    const SEGMENTS: u32 = 8;
    const LEN: u32 = 500;
    let mut two = Two::connected(&Path::loopback(Version::V4)?)?;
    if whole {
        two.receiver.ask("udp merge")?;
    }
    two.sender.ask(&format!("udp segment {LEN}"))?;
    two.sender.ask(&format!("udp send 3 {}", SEGMENTS * LEN))?;
    let datagrams: u32 =
        two.receiver.ask(&format!("udp receive-bytes {}", 3 * SEGMENTS * LEN))?.try_into()?;
    let is_whole = datagrams == 3;
    ensure!(is_whole || datagrams == 3 * SEGMENTS, "taken as {datagrams} datagrams");
    ensure!(whole || !is_whole, "a socket that did not ask for it got merged datagrams");
    if whole && !is_whole {
        // NETIF_F_GSO_UDP_L4 is one of loopback's features since Linux 5.11.
        println!("udp::segmented_and_whole: this kernel's loopback device splits what was segmented by GSO");
    }
    Ok(Box::new(move |evidence| {
        let (out, taken) = (two.out(evidence), two.taken(evidence));
        expect(evidence, "out", &out, &two.sender, 3, SEGMENTS * LEN)?;
        let segs = if is_whole { SEGMENTS } else { 1 };
        expect(evidence, "in", &taken, &two.receiver, datagrams as usize, LEN * segs)?;
        let other = out.iter().filter(|line| line.segs != SEGMENTS);
        let other = other.chain(taken.iter().filter(|line| line.segs != segs || line.is("gro") != is_whole));
        ensure!(other.clone().next().is_none(), evidence.outcome.fault("wrong segments", other.copied()));
        Ok(())
    }))
}

/// One line for all fragments together.
pub(super) fn fragmented() -> Result<Check> {
    let path = Path::veth(Version::V4)?;
    let mut two = Two::connected(&path)?;
    two.sender.ask("udp send 4 8000")?;
    two.receiver.ask("udp receive 4")?;
    Ok(Box::new(move |evidence| {
        // Keeps the link until the lines are there.
        let _path = &path;
        two.expect(evidence, 4, 8000)
    }))
}

/// Datagrams wait below IP, while their thread sends the next one; the task that gets the neighbour's answer sends them.
fn waits_for_neighbour() -> Result<Check> {
    const COUNT: usize = 3;
    const LEN: u32 = 120;
    const WAIT: Duration = Duration::from_millis(300);
    let path = Path::veth(Version::V4)?;
    let mut two = Two::connected(&path)?;
    // So that there is something to forget.
    two.sender.ask(&format!("udp send 1 {LEN}"))?;
    two.receiver.ask("udp receive 1")?;
    path.forget_neighbour()?;
    two.sender.ask(&format!("udp send {COUNT} {LEN}"))?;
    sleep(WAIT);
    path.tell_neighbour()?;
    two.receiver.ask(&format!("udp receive {COUNT}"))?;
    Ok(Box::new(move |evidence| {
        let _path = &path;
        two.expect(evidence, 1 + COUNT, LEN)?;
        expect_long(evidence, &two.out(evidence)[1..], 2, WAIT)
    }))
}

/// Datagrams wait for a program's verdict, and go on in that.
fn waits_for_verdict(hook: Hook) -> Result<Check> {
    const QUEUE: u16 = 8;
    const COUNT: usize = 3;
    const LEN: u32 = 140;
    const WAIT: Duration = Duration::from_millis(150);
    let path = Path::veth(Version::V4)?;
    let mut two = Two::connected(&path)?;
    let manner = Manner { takes_whole: true, every: 1, delay: WAIT, grows_by: 0 };
    let verdicts = path.near(|| {
        let verdicts = Verdicts::start(QUEUE, manner)?;
        queue_port(hook, two.to.port(), QUEUE)?;
        Ok(verdicts)
    })?;
    two.sender.ask(&format!("udp send {COUNT} {LEN}"))?;
    two.receiver.ask(&format!("udp receive {COUNT}"))?;
    path.near(forget_rules)?;
    let judged = verdicts.finish()?;
    ensure!(judged == COUNT as u64, "{judged} datagrams were queued");
    Ok(Box::new(move |evidence| {
        let _path = &path;
        two.expect(evidence, COUNT, LEN)?;
        // Netfilter asks before IP's hook, or behind it.
        let stage = if matches!(hook, Hook::Out) { 1 } else { 2 };
        expect_long(evidence, &two.out(evidence), stage, WAIT)
    }))
}

/// This stage has taken so long, but for a tenth, and the others have not.
fn expect_long(evidence: &Evidence<'_>, lines: &[&Line], stage: usize, wait: Duration) -> Result<()> {
    let is_long = |time: &Option<u64>| time.is_some_and(|ns| u128::from(ns) >= wait.as_nanos() * 9 / 10);
    let is_right = |line: &&&Line| {
        line.stages.iter().enumerate().all(|(number, time)| is_long(time) == (number == stage))
    };
    let wrong: Vec<_> = lines.iter().filter(|line| !is_right(line)).copied().collect();
    ensure!(
        wrong.is_empty(),
        evidence.outcome.fault(format_args!("not {wait:?} in stage {stage} alone"), wrong)
    );
    Ok(())
}

/// Each receiver of a multicast datagram has its line.
fn multicast() -> Result<Check> {
    let group = Ipv4Addr::new(239, 77, 0, 1);
    let path = Path::loopback(Version::V4)?;
    let (mut sender, mut receivers) =
        (Peer::spawn(CLIENT)?, [Peer::spawn(b"nl-one")?, Peer::spawn(b"nl-two")?]);
    let from = sender.ask("udp bind 127.0.0.1")?;
    sender.ask("udp multicast-by-loopback")?;
    let port = receivers[0].ask("udp bind-shared 0.0.0.0 0")?;
    receivers[1].ask(&format!("udp bind-shared 0.0.0.0 {port}"))?;
    for receiver in &mut receivers {
        receiver.ask(&format!("udp join {group}"))?;
    }
    let to = SocketAddr::new(group.into(), port.try_into()?);
    sender.ask(&format!("udp send-to {to} 10 400"))?;
    for receiver in &mut receivers {
        receiver.ask("udp receive 10")?;
    }
    let from = SocketAddr::new(IpAddr::from(Ipv4Addr::LOCALHOST), from.try_into()?);
    Ok(Box::new(move |evidence| {
        let _path = &path;
        expect(evidence, "out", &way(evidence, Dir::Out, from, to), &sender, 10, 400)?;
        let taken = way(evidence, Dir::In, from, to);
        ensure!(taken.len() == 20, evidence.outcome.fault("not 20 taken", taken));
        for receiver in &receivers {
            let own: Vec<_> = taken.iter().filter(|line| line.pid == Some(receiver.pid())).copied().collect();
            expect(evidence, "in", &own, receiver, 10, 400)?;
        }
        Ok(())
    }))
}

/// IPv4 by an IPv6 socket is IPv4.
fn mapped_address() -> Result<Check> {
    let path = Path::loopback(Version::V4)?;
    let mut two = Two::new(&path)?;
    let from = two.sender.ask("udp bind ::ffff:127.0.0.1")?;
    two.from.set_port(from.try_into()?);
    two.sender.ask(&format!("udp send-to [::ffff:127.0.0.1]:{} 5 90", two.to.port()))?;
    two.receiver.ask("udp receive 5")?;
    Ok(Box::new(move |evidence| two.expect(evidence, 5, 90)))
}

/// What finds no room has no line, and is in the ledger.
fn full_queue() -> Result<Check> {
    let mut two = Two::connected(&Path::loopback(Version::V4)?)?;
    two.receiver.ask("udp receive-buffer 4096")?;
    two.sender.ask("udp send 100 1000")?;
    let taken: usize = two.receiver.ask("udp receive-all")?.try_into()?;
    ensure!(taken > 0 && taken < 100, "{taken} of 100 found room, so this shows nothing");
    Ok(Box::new(move |evidence| {
        expect(evidence, "out", &two.out(evidence), &two.sender, 100, 1000)?;
        expect(evidence, "in", &two.taken(evidence), &two.receiver, taken, 1000)?;
        let dropped = evidence.outcome.figure("losses.dropped_at_socket")?;
        ensure!(dropped >= 100 - taken as u64, evidence.outcome.fault("drops are missing", []));
        let footer = evidence.outcome.footer()?;
        let drops = footer["drops"].as_array().context("no drops")?;
        let its = drops.iter().find(|drop| drop["port"] == two.to.port()).context("not by its port")?;
        ensure!(
            its["proto"] == "udp" && its["end"] == "server" && its["packets"] == 100 - taken,
            evidence.outcome.fault(format_args!("its drops are {its}"), [])
        );
        Ok(())
    }))
}

/// What a socket's end leaves unread has no line and does not wait for ever.
fn closed_unread() -> Result<Check> {
    let mut two = Two::connected(&Path::loopback(Version::V4)?)?;
    two.sender.ask("udp send 7 333")?;
    two.receiver.ask("udp receive 2")?;
    two.receiver.ask("udp close")?;
    Ok(Box::new(move |evidence| {
        expect(evidence, "out", &two.out(evidence), &two.sender, 7, 333)?;
        expect(evidence, "in", &two.taken(evidence), &two.receiver, 2, 333)?;
        evidence.outcome.ledger_but_for(5).map(drop)
    }))
}
