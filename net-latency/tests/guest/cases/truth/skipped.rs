//! Lines where the kernel skips a hook, or evicts an entry just when a program reads it: times are unknown, and never another packet's. The
//! kernel does so when it likes; here it happens on purpose, by the object for tests.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};

use super::{Check, Evidence, Scenario, Theme, transmit::RTO_MS};
use crate::{
    lines::{Dir, Line, Proto},
    net::{Path, Version},
    peers::{CLIENT, Pair, Peer, SERVER},
    skips::{NO_SLOT, skipping},
};

pub(crate) const THEME: Theme = Theme {
    name: "skipped",
    arguments: &[],
    scenarios: &[
        // These first: of a socket whose end is skipped something stays, which the next one at its address has at once.
        Scenario { name: "evicted_segment", play: evicted_segment },
        Scenario { name: "evicted_connection", play: evicted_connection },
        Scenario { name: "evicted_write_call", play: evicted_write_call },
        Scenario { name: "evicted_datagram", play: evicted_datagram },
        Scenario { name: "evicted_send", play: evicted_send },
        Scenario { name: "write_call", play: write_call },
        Scenario { name: "write_call_of_another_socket", play: write_call_of_another_socket },
        Scenario { name: "read", play: read },
        Scenario { name: "driver_in", play: || stage_in("ip::arrived", &[0]) },
        Scenario { name: "ip_in", play: || stage_in("ip::received", &[0, 1]) },
        Scenario { name: "tcp_in", play: tcp_in },
        Scenario { name: "tcp_out", play: tcp_out },
        Scenario { name: "ip_out", play: ip_out },
        Scenario { name: "udp_write_call", play: udp_write_call },
        Scenario { name: "udp_in", play: udp_in },
        Scenario { name: "udp_in_after_merged", play: udp_in_after_merged },
        Scenario { name: "udp_driver_in", play: || udp_stage_in("ip::arrived", &[0]) },
        Scenario { name: "udp_ip_in", play: || udp_stage_in("ip::received", &[0, 1]) },
    ],
};

const LEN: u32 = 100;
/// Skbs and sockets get addresses that others had, if not at once.
const ROUNDS: u32 = 20;

/// One message of the client's, read by the server.
fn message(pair: &mut Pair) -> Result<()> {
    pair.client.ask(&format!("write {LEN}"))?;
    pair.server.ask(&format!("read {LEN} {LEN} 0"))?;
    Ok(())
}

/// The lines of a way, in the order of their bytes where they have numbers.
fn lines<'a>(evidence: &'a Evidence<'_>, dir: Dir, from: SocketAddr, to: SocketAddr) -> Vec<&'a Line> {
    let is_wanted = |line: &&Line| line.dir == dir && line.is_between(from, to) && !line.is("control");
    evidence.lines.iter().filter(is_wanted).collect()
}

/// Fails unless exactly these stages of the line are unknown.
fn expect_unknown(evidence: &Evidence<'_>, line: &Line, unknown: &[usize]) -> Result<()> {
    for (stage, time) in line.stages.iter().enumerate() {
        ensure!(
            time.is_none() == unknown.contains(&stage),
            evidence.outcome.fault(format_args!("stages {unknown:?} alone should be unknown"), [line])
        );
    }
    // Without IP's stamp two stages are unknown, and all of them together take as long.
    let is_total_known = !matches!(unknown, [0] | [2] | [0, 1, 2]);
    ensure!(
        line.total.is_some() == is_total_known,
        evidence.outcome.fault("the total goes from the first stamp to the last", [line])
    );
    Ok(())
}

/// Fails unless the line is this process's, or names none.
fn expect_task(evidence: &Evidence<'_>, line: &Line, pid: Option<u64>) -> Result<()> {
    let found = (line.pid.map(u64::from), line.tid.map(u64::from));
    let is_named = line.comm.is_some() && line.process.is_some();
    ensure!(
        found == (pid, pid) && is_named == pid.is_some(),
        evidence.outcome.fault(format_args!("not {pid:?}'s"), [line])
    );
    Ok(())
}

/// Fails unless the footer gives that reason at least so often, and a reason for each time that is unknown.
fn expect_reasons(evidence: &Evidence<'_>, reason: &str, times: u64) -> Result<()> {
    let footer = evidence.outcome.footer()?;
    let counted = footer.figure(&format!("unknown_stages.{reason}"))?;
    ensure!(counted >= times, evidence.outcome.fault(format_args!("{reason} {counted} times"), []));
    for stage in footer["stages"].as_array().context("the footer has no stages")? {
        let reasons = stage["unknown_stages"].as_object().context("no reasons")?;
        let sum: u64 = reasons.values().filter_map(serde_json::Value::as_u64).sum();
        ensure!(stage["unknown"] == sum, evidence.outcome.fault("unknown for no reason", []));
    }
    Ok(())
}

/// The bytes of a call that was not seen are not those of the call before, which another process made.
fn write_call() -> Result<Check> {
    let mut pair = Pair::connect(&Path::loopback(Version::V4)?)?;
    let child = pair.client.ask(&format!("child write {LEN}"))?;
    pair.server.ask(&format!("read {LEN} {LEN} 0"))?;
    skipping("transmit::written", || message(&mut pair))?;
    message(&mut pair)?;
    Ok(Box::new(move |evidence| {
        let out = lines(evidence, Dir::Out, pair.near, pair.far);
        ensure!(out.len() == 3, evidence.outcome.fault("not three lines", out));
        expect_task(evidence, out[0], Some(child))?;
        expect_unknown(evidence, out[1], &[0])?;
        expect_task(evidence, out[1], None)?;
        expect_unknown(evidence, out[2], &[])?;
        expect_task(evidence, out[2], Some(pair.client.pid().into()))?;
        expect_reasons(evidence, "write_unseen", 1)
    }))
}

/// A socket whose end was not seen leaves nothing to the one that gets its address.
fn write_call_of_another_socket() -> Result<Check> {
    let path = Path::loopback(Version::V4)?;
    let mut pairs = Vec::new();
    for _ in 0..5 {
        let mut first = Pair::connect(&path)?;
        first.client.ask(&format!("child write {LEN}"))?;
        first.server.ask(&format!("read {LEN} {LEN} 0"))?;
        skipping("receive::closed", || first.close())?;
        let mut pair = Pair::connect(&path)?;
        skipping("transmit::written", || message(&mut pair))?;
        pairs.push(pair);
    }
    Ok(Box::new(move |evidence| {
        for pair in &pairs {
            for line in lines(evidence, Dir::Out, pair.near, pair.far) {
                expect_unknown(evidence, line, &[0])?;
                expect_task(evidence, line, None)?;
            }
        }
        expect_reasons(evidence, "write_unseen", 1)
    }))
}

/// Bytes that were read unseen have not the time, nor the reader, of the next read.
fn read() -> Result<Check> {
    let mut pair = Pair::connect(&Path::loopback(Version::V4)?)?;
    message(&mut pair)?;
    skipping("receive::taken", || message(&mut pair))?;
    pair.client.ask(&format!("write {LEN}"))?;
    let child = pair.server.ask(&format!("child read {LEN} {LEN} 0"))?;
    message(&mut pair)?;
    Ok(Box::new(move |evidence| {
        let into = lines(evidence, Dir::In, pair.near, pair.far);
        ensure!(into.len() == 4, evidence.outcome.fault("not four lines", into));
        let server = Some(u64::from(pair.server.pid()));
        for (line, (unknown, reader)) in
            into.into_iter().zip([(&[][..], server), (&[2], None), (&[], Some(child)), (&[], server)])
        {
            expect_unknown(evidence, line, unknown)?;
            expect_task(evidence, line, reader)?;
        }
        expect_reasons(evidence, "no_stamp", 1)
    }))
}

/// A stage below TCP has no stamp of an skb that had the address before, and never came to TCP's hook.
fn stage_in(hook: &str, unknown: &'static [usize]) -> Result<Check> {
    let path = Path::loopback(Version::V4)?;
    let mut first = Pair::connect(&path)?;
    skipping("receive::received", || first.converse(ROUNDS, LEN))?;
    let mut pair = Pair::connect(&path)?;
    skipping(hook, || pair.converse(ROUNDS, LEN))?;
    Ok(Box::new(move |evidence| {
        let requests = lines(evidence, Dir::In, pair.near, pair.far);
        let replies = lines(evidence, Dir::In, pair.far, pair.near);
        let all = requests.len() + replies.len();
        evidence.outcome.expect_all("in", all.try_into()?, (2 * ROUNDS).into(), requests.clone())?;
        for line in requests.into_iter().chain(replies) {
            expect_unknown(evidence, line, unknown)?;
        }
        expect_reasons(evidence, "no_stamp", ROUNDS.into())
    }))
}

/// A segment that TCP's hook did not see has no line, and no other one has its bytes.
fn tcp_in() -> Result<Check> {
    let mut pair = Pair::connect(&Path::loopback(Version::V4)?)?;
    message(&mut pair)?;
    pair.client.ask(&format!("write {LEN}"))?;
    skipping("receive::received", || pair.client.ask(&format!("write {LEN}")))?;
    pair.server.ask(&format!("read {} {LEN} 0", 2 * LEN))?;
    message(&mut pair)?;
    Ok(Box::new(move |evidence| {
        let into = lines(evidence, Dir::In, pair.near, pair.far);
        ensure!(into.len() == 3, evidence.outcome.fault("not three lines", into));
        for (line, place) in into.iter().zip([0, 1, 3]) {
            let is_there = line.seq.wrapping_sub(into[0].seq) == place * LEN && line.len == LEN;
            ensure!(is_there, evidence.outcome.fault("not these bytes", [*line]));
            expect_unknown(evidence, line, &[])?;
        }
        let unseen = evidence.outcome.figure("losses.packet_unseen")?;
        ensure!(unseen > 0, evidence.outcome.fault("it is not counted", []));
        Ok(())
    }))
}

/// A segment that the device's hook did not see has no line, nor one that TCP's did not see, and those behind them have their own
/// times.
fn tcp_out() -> Result<Check> {
    let mut pair = Pair::connect(&Path::loopback(Version::V4)?)?;
    for hook in ["transmit::queued", "transmit::sent"] {
        skipping(hook, || message(&mut pair))?;
        message(&mut pair)?;
    }
    Ok(Box::new(move |evidence| {
        let out = lines(evidence, Dir::Out, pair.near, pair.far);
        let into = lines(evidence, Dir::In, pair.near, pair.far);
        ensure!(into.len() == 4, evidence.outcome.fault("not four lines in", into));
        let sent: Vec<_> = out.iter().map(|line| line.seq).collect();
        ensure!(sent == [into[1].seq, into[3].seq], evidence.outcome.fault("not these lines out", out));
        for line in out {
            expect_unknown(evidence, line, &[])?;
        }
        let lost = evidence.outcome.figure("losses.overtaken")?;
        ensure!(lost > 0, evidence.outcome.fault("it is not counted", []));
        Ok(())
    }))
}

/// IP's stamp is not that of an skb that had the address before, and never came to the device's hook.
fn ip_out() -> Result<Check> {
    let path = Path::loopback(Version::V4)?;
    let mut pair = Pair::connect(&path)?;
    skipping("transmit::queued", || pair.converse(ROUNDS, LEN))?;
    let mut pair = Pair::connect(&path)?;
    skipping("ip::sent", || pair.converse(ROUNDS, LEN))?;
    Ok(Box::new(move |evidence| {
        let out = lines(evidence, Dir::Out, pair.near, pair.far);
        evidence.outcome.expect_all("out", out.len().try_into()?, ROUNDS.into(), out.clone())?;
        for line in out {
            expect_unknown(evidence, line, &[1, 2])?;
        }
        expect_reasons(evidence, "no_stamp", 2 * u64::from(ROUNDS))
    }))
}

/// A sender and a receiver of datagrams.
struct Sockets {
    sender: Peer,
    receiver: Peer,
    from: SocketAddr,
    to: SocketAddr,
}

impl Sockets {
    fn new() -> Result<Self> {
        let (near, far) = Path::loopback(Version::V4)?.addresses();
        let (mut sender, mut receiver) = (Peer::spawn(CLIENT)?, Peer::spawn(SERVER)?);
        let from = SocketAddr::new(near, sender.ask(&format!("udp bind {near}"))?.try_into()?);
        let to = SocketAddr::new(far, receiver.ask(&format!("udp bind {far}"))?.try_into()?);
        sender.ask(&format!("udp connect {to}"))?;
        Ok(Self { sender, receiver, from, to })
    }

    /// One after the other, so that they have the same skbs.
    fn datagrams(&mut self, count: u32) -> Result<()> {
        for _ in 0..count {
            self.sender.ask(&format!("udp send 1 {LEN}"))?;
            self.receiver.ask("udp receive 1")?;
        }
        Ok(())
    }

    fn lines<'a>(&self, evidence: &'a Evidence<'_>, dir: Dir) -> Vec<&'a Line> {
        let lines = lines(evidence, dir, self.from, self.to);
        lines.into_iter().filter(|line| line.proto == Proto::Udp).collect()
    }
}

/// A datagram whose call was not seen has not the time of the call before.
fn udp_write_call() -> Result<Check> {
    let mut sockets = Sockets::new()?;
    sockets.datagrams(1)?;
    skipping("udp::written", || sockets.datagrams(1))?;
    sockets.datagrams(1)?;
    Ok(Box::new(move |evidence| {
        let out = sockets.lines(evidence, Dir::Out);
        ensure!(out.len() == 3, evidence.outcome.fault("not three lines", out));
        let sender = Some(u64::from(sockets.sender.pid()));
        for (line, (unknown, task)) in out.into_iter().zip([(&[][..], sender), (&[0], None), (&[], sender)]) {
            expect_unknown(evidence, line, unknown)?;
            expect_task(evidence, line, task)?;
        }
        expect_reasons(evidence, "write_unseen", 1)
    }))
}

/// Datagrams that UDP's hook did not see have not the stamps of the one before on that processor.
fn udp_in() -> Result<Check> {
    let mut sockets = Sockets::new()?;
    sockets.datagrams(1)?;
    skipping("udp::received", || sockets.datagrams(ROUNDS))?;
    sockets.datagrams(1)?;
    Ok(Box::new(move |evidence| {
        let into = sockets.lines(evidence, Dir::In);
        let all = ROUNDS as usize + 2;
        ensure!(into.len() == all, evidence.outcome.fault("lines are missing", into));
        for (number, line) in into.into_iter().enumerate() {
            let is_seen = number == 0 || number + 1 == all;
            expect_unknown(evidence, line, if is_seen { &[] } else { &[0, 1, 2] })?;
            expect_task(evidence, line, Some(sockets.receiver.pid().into()))?;
        }
        expect_reasons(evidence, "no_stamp", 3)
    }))
}

/// Nor have they those of one that GRO merged, by the same ports.
fn udp_in_after_merged() -> Result<Check> {
    const SEGMENTS: u32 = 8;
    let mut sockets = Sockets::new()?;
    sockets.sender.ask(&format!("udp segment {LEN}"))?;
    sockets.sender.ask(&format!("udp send 1 {}", SEGMENTS * LEN))?;
    sockets.receiver.ask(&format!("udp receive-bytes {}", SEGMENTS * LEN))?;
    sockets.sender.ask("udp segment 0")?;
    skipping("udp::received", || sockets.datagrams(ROUNDS))?;
    Ok(Box::new(move |evidence| {
        let into = sockets.lines(evidence, Dir::In);
        let all = (SEGMENTS + ROUNDS) as usize;
        ensure!(into.len() == all, evidence.outcome.fault("lines are missing", into));
        for (number, line) in into.into_iter().enumerate() {
            expect_unknown(evidence, line, if number < SEGMENTS as usize { &[] } else { &[0, 1, 2] })?;
        }
        expect_reasons(evidence, "no_stamp", 3)
    }))
}

/// A stage below UDP has no stamp of an skb that had the address before, and never came to UDP's hook.
fn udp_stage_in(hook: &str, unknown: &'static [usize]) -> Result<Check> {
    let mut first = Sockets::new()?;
    skipping("udp::received", || first.datagrams(ROUNDS))?;
    let mut sockets = Sockets::new()?;
    skipping(hook, || sockets.datagrams(ROUNDS))?;
    Ok(Box::new(move |evidence| {
        let into = sockets.lines(evidence, Dir::In);
        evidence.outcome.expect_all("in", into.len().try_into()?, ROUNDS.into(), into.clone())?;
        for line in into {
            expect_unknown(evidence, line, unknown)?;
        }
        expect_reasons(evidence, "no_stamp", ROUNDS.into())
    }))
}

/// Fails unless one received packet is counted as evicted, or one for each of the scenarios that have one.
fn expect_evicted(evidence: &Evidence<'_>) -> Result<()> {
    const SCENARIOS: u64 = 3;
    let evicted = evidence.outcome.footer()?.figure("evicted")?;
    let is_right = (1..=SCENARIOS).contains(&evicted);
    ensure!(is_right, evidence.outcome.fault(format_args!("{evicted} evicted"), []));
    Ok(())
}

/// Fails unless these are the lines of messages that have these numbers, with all times and with the reader.
fn expect_messages(evidence: &Evidence<'_>, pair: &Pair, numbers: &[u32]) -> Result<()> {
    let into = lines(evidence, Dir::In, pair.near, pair.far);
    let start = into.first().map_or(0, |line| line.seq);
    let found: Vec<_> = into.iter().map(|line| line.seq.wrapping_sub(start) / LEN).collect();
    ensure!(found == numbers, evidence.outcome.fault(format_args!("not {numbers:?}"), into));
    for line in into {
        expect_unknown(evidence, line, &[])?;
        expect_task(evidence, line, Some(pair.server.pid().into()))?;
    }
    Ok(())
}

/// A segment that is evicted while its line is made has none.
fn evicted_segment() -> Result<Check> {
    let mut pair = Pair::connect(&Path::loopback(Version::V4)?)?;
    message(&mut pair)?;
    skipping(NO_SLOT, || pair.client.ask(&format!("write {LEN}")))?;
    skipping("segments::evicted", || pair.server.ask(&format!("read {LEN} {LEN} 0")))?;
    // What waits in the map and stays there has its line.
    skipping(NO_SLOT, || message(&mut pair))?;
    message(&mut pair)?;
    Ok(Box::new(move |evidence| {
        expect_messages(evidence, &pair, &[0, 2, 3])?;
        expect_evicted(evidence)
    }))
}

/// A connection's entry is evicted while a line is made of it, or while a call is noted in it. It begins anew.
fn evicted_connection() -> Result<Check> {
    let mut pair = Pair::connect(&Path::loopback(Version::V4)?)?;
    skipping(NO_SLOT, || message(&mut pair))?;
    pair.client.ask(&format!("write {LEN}"))?;
    skipping("connection::evicted", || pair.server.ask(&format!("read {LEN} {LEN} 0")))?;
    message(&mut pair)?;
    skipping("connection::evicted", || message(&mut pair))?;
    message(&mut pair)?;
    Ok(Box::new(move |evidence| {
        expect_messages(evidence, &pair, &[0, 2, 3, 4])?;
        expect_evicted(evidence)?;
        let out = lines(evidence, Dir::Out, pair.near, pair.far);
        ensure!(out.len() == 5, evidence.outcome.fault("not five lines", out));
        for (number, line) in out.into_iter().enumerate() {
            let is_unknown = number == 3;
            expect_unknown(evidence, line, if is_unknown { &[0] } else { &[] })?;
            expect_task(evidence, line, (!is_unknown).then(|| pair.client.pid().into()))?;
        }
        expect_reasons(evidence, "write_unseen", 1)
    }))
}

/// The bytes of a call that is evicted while the first of them are sent have no process.
fn evicted_write_call() -> Result<Check> {
    const CALL: u32 = 16_384;
    const CALLS: u32 = 4;
    let path = Path::veth(Version::V4)?.with_shortest_timeout(RTO_MS)?;
    let mut pair = Pair::prepare(&path, CLIENT, SERVER)?;
    pair.server.ask("receive-buffer 4096")?;
    pair.open(&path)?;
    pair.client.ask("send-buffer 1048576")?;
    for _ in 0..CALLS {
        pair.client.ask(&format!("write {CALL}"))?;
    }
    skipping("writes::evicted", || pair.server.ask(&format!("read {} 65536 0", CALL * CALLS)))?;
    Ok(Box::new(move |evidence| {
        let out = lines(evidence, Dir::Out, pair.near, pair.far);
        let first = out.first().context("no lines")?.seq;
        let client = u64::from(pair.client.pid());
        for line in out {
            let is_of_first = line.seq.wrapping_sub(first) < CALL;
            expect_task(evidence, line, is_of_first.then_some(client))?;
            ensure!(line.stages[0].is_some() == is_of_first, evidence.outcome.fault("whose time?", [line]));
        }
        expect_reasons(evidence, "write_evicted", 1)
    }))
}

/// A datagram that is evicted while its line is made has none.
fn evicted_datagram() -> Result<Check> {
    let mut sockets = Sockets::new()?;
    sockets.datagrams(1)?;
    skipping(NO_SLOT, || sockets.sender.ask(&format!("udp send 1 {LEN}")))?;
    skipping("udp::datagram_evicted", || sockets.receiver.ask("udp receive 1"))?;
    skipping(NO_SLOT, || sockets.datagrams(1))?;
    Ok(Box::new(move |evidence| {
        let into = sockets.lines(evidence, Dir::In);
        ensure!(into.len() == 2, evidence.outcome.fault("not two lines", into));
        for line in into {
            expect_unknown(evidence, line, &[])?;
        }
        expect_evicted(evidence)
    }))
}

/// Nor has one whose sender is forgotten just then.
fn evicted_send() -> Result<Check> {
    let mut sockets = Sockets::new()?;
    sockets.datagrams(1)?;
    skipping("udp::send_evicted", || sockets.datagrams(1))?;
    sockets.datagrams(1)?;
    Ok(Box::new(move |evidence| {
        let out = sockets.lines(evidence, Dir::Out);
        ensure!(out.len() == 2, evidence.outcome.fault("not two lines", out));
        for line in out {
            expect_unknown(evidence, line, &[])?;
        }
        let lost = evidence.outcome.figure("losses.overtaken")?;
        ensure!(lost > 0, evidence.outcome.fault("it is not counted", []));
        Ok(())
    }))
}
