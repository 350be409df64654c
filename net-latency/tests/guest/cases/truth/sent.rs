//! What follows the device's queue, with `--stages fine`: the queue itself, the driver, and the network until the ACK comes. Most of it
//! is traffic of other themes.

use std::{thread::sleep, time::Duration};

use anyhow::{Context as _, Result, ensure};

use super::{Check, Evidence, Scenario, Theme, netem, places, transmit, udp};
use crate::{
    lines::{DRIVER, Dir, Line, NET, Proto, QDISC},
    net::{Path, Version, counter},
    oracle::{self, Conversation, expect_bytes},
    peers::Pair,
    process::{PATIENCE, until},
};

pub(crate) const THEME: Theme = Theme {
    name: "sent",
    arguments: &["--stages", "fine"],
    scenarios: &[
        Scenario { name: "delayed_here", play: || delayed(Place::Here) },
        Scenario { name: "delayed_there", play: || delayed(Place::There) },
        Scenario { name: "datagrams_delayed_here", play: datagrams },
        Scenario { name: "shaped", play: shaped },
        Scenario { name: "lost", play: lost },
        Scenario { name: "unacknowledged", play: unacknowledged },
        Scenario { name: "round_trips_5_ms", play: || round_trips(Duration::from_millis(5)) },
        Scenario { name: "round_trips_20_ms", play: || round_trips(Duration::from_millis(20)) },
        Scenario { name: "round_trips_80_ms", play: || round_trips(Duration::from_millis(80)) },
        Scenario { name: "no_window", play: no_window },
        Scenario { name: "lost_in_bulk", play: lost_in_bulk },
        Scenario { name: "bulk", play: || known(netem::bulk(Version::V4)?) },
        Scenario {
            name: "super_segments",
            play: || known(transmit::super_segments(Path::veth(Version::V6)?, true)?),
        },
        Scenario { name: "clocked_by_acks", play: || known(transmit::clocked_by_acks()?) },
        Scenario { name: "paced_by_tcp", play: || known(transmit::paced_by_tcp()?) },
        Scenario { name: "bbr", play: || known(transmit::bbr()?) },
        Scenario { name: "fin_with_data", play: || known(transmit::fin_with_data()?) },
        Scenario { name: "fast_open", play: || known(transmit::fast_open(Version::V4, false)?) },
        Scenario { name: "doubled", play: || known(transmit::doubled(false)?) },
        Scenario { name: "loopback", play: || known(places::conversation(&Path::loopback(Version::V6)?)?) },
        Scenario { name: "vlan", play: || known(places::conversation(&Path::vlan(Version::V4)?)?) },
        Scenario { name: "bond", play: || known(places::conversation(&Path::bond(Version::V4)?)?) },
        Scenario { name: "gre", play: || known(places::conversation(&Path::gre(Version::V4)?)?) },
        Scenario { name: "vxlan", play: || known(places::conversation(&Path::vxlan(Version::V6)?)?) },
        Scenario { name: "wireguard", play: || known(places::wireguard(Version::V4)?) },
        Scenario { name: "datagrams", play: || known(udp::echo(&Path::veth(Version::V6)?)?) },
        Scenario { name: "fragmented", play: || known(udp::fragmented()?) },
    ],
};

/// Longer than a busy machine usually takes the emulated CPU away.
const DELAY: Duration = Duration::from_millis(40);

fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Outgoing packets with data that were sent for the first time.
fn first_sent<'a>(lines: impl IntoIterator<Item = &'a Line>) -> Vec<&'a Line> {
    lines
        .into_iter()
        .filter(|line| line.dir == Dir::Out && !line.is("retrans") && !line.is("control"))
        .collect()
}

/// Whether bytes of this segment were sent again.
fn is_sent_again(line: &Line, all: &[Line]) -> bool {
    all.iter().any(|again| again.dir == Dir::Out && again.is("retrans") && again.shares_bytes(line))
}

/// What follows the device's queue is known of every packet, but for what the kernel skipped, and for the ACK of bytes that were
/// sent twice, of which it must not be.
fn expect_known(evidence: &Evidence<'_>) -> Result<()> {
    let lines = first_sent(&evidence.lines);
    ensure!(!lines.is_empty(), "nothing was sent");
    let most = evidence.outcome.allowance().most(lines.len().try_into()?);
    let mut unknown = Vec::new();
    for &line in &lines {
        let is_again = is_sent_again(line, &evidence.lines);
        ensure!(
            !is_again || line.sent[NET].is_none(),
            evidence.outcome.fault("the ACK of a segment that was sent twice", [line])
        );
        let is_open = line.proto == Proto::Tcp && !is_again && line.sent[NET].is_none();
        let is_dropped = line.is("dropped");
        if is_open || !is_dropped && (line.sent[QDISC].is_none() || line.sent[DRIVER].is_none()) {
            unknown.push(line);
        }
    }
    ensure!(
        u64::try_from(unknown.len())? <= most,
        evidence.outcome.fault(format_args!("{} of {} unknown", unknown.len(), lines.len()), unknown)
    );
    Ok(())
}

/// The last segment is acknowledged a little later (`TCP_DELACK_MAX` is 200 ms), and has its line then.
fn settle() {
    sleep(Duration::from_millis(300));
}

/// What `check` checks, and that all is known.
fn known(check: Check) -> Result<Check> {
    settle();
    Ok(Box::new(move |evidence| {
        check(evidence)?;
        expect_known(evidence)
    }))
}

/// Bytes that wait for the peer's window say so.
fn no_window() -> Result<Check> {
    let (_path, mut pair) = transmit::through_a_closed_window()?;
    pair.converse(2, 100)?;
    settle();
    Ok(Box::new(move |evidence| {
        let conversation = Conversation::check(evidence.outcome, &evidence.lines, &pair)?;
        expect_known(evidence)?;
        let out = &conversation.requests_out;
        let flagged = out.iter().filter(|line| line.is("zero-window")).count();
        ensure!(flagged > 0, evidence.outcome.fault("no line says that there was no window", out));
        // The first bytes went before the window closed, and the last ones when it was open.
        let ends = [out.first(), out.last()].into_iter().flatten();
        ensure!(
            !ends.clone().any(|line| line.is("zero-window")),
            evidence.outcome.fault("these had a window", ends)
        );
        Ok(())
    }))
}

/// Where packets are held up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In the sender's own queue.
    Here,
    /// On the way back.
    There,
}

/// Each of these has the delay in this part, and typically far less in all others.
fn expect_delay<'a>(
    evidence: &Evidence<'_>,
    lines: impl IntoIterator<Item = &'a Line>,
    part: usize,
) -> Result<()> {
    let lines: Vec<_> = lines.into_iter().collect();
    let median = |time: &dyn Fn(&Line) -> Option<u64>| {
        let mut times: Vec<_> = lines.iter().filter_map(|line| time(line)).collect();
        times.sort_unstable();
        times.get(times.len() / 2).copied()
    };
    let fault = |what: &str| evidence.outcome.fault(what, lines.clone());
    let short: Vec<_> =
        lines.iter().copied().filter(|line| line.sent[part].is_some_and(|time| time < ns(DELAY))).collect();
    ensure!(
        short.is_empty(),
        evidence.outcome.fault(format_args!("part {part} is shorter than the delay"), short)
    );
    let typical = median(&|line| line.sent[part]).context("no packet has this part")?;
    // Twice what the netem's timer and an emulated machine usually add.
    ensure!(typical < ns(DELAY) * 5 / 4, fault(&format!("part {part} is usually {typical} ns")));
    for other in [QDISC, DRIVER, NET].into_iter().filter(|other| *other != part) {
        let typical = median(&|line| line.sent[other]).unwrap_or(0);
        ensure!(typical < ns(DELAY) / 4, fault(&format!("part {other} is usually {typical} ns")));
    }
    for stage in 0..3 {
        let typical = median(&|line| line.stages[stage]).unwrap_or(0);
        ensure!(typical < ns(DELAY) / 4, fault(&format!("stage {stage} is usually {typical} ns")));
    }
    Ok(())
}

/// A delay shows where it is, and nowhere else.
fn delayed(place: Place) -> Result<Check> {
    const ROUNDS: u32 = 40;
    let path = Path::veth(Version::V4)?;
    let mut pair = Pair::connect(&path)?;
    match place {
        Place::Here => path.delay(DELAY)?,
        Place::There => path.delay_answers(DELAY)?,
    }
    pair.converse(ROUNDS, 200)?;
    settle();
    Ok(Box::new(move |evidence| {
        let conversation = Conversation::check(evidence.outcome, &evidence.lines, &pair)?;
        conversation.expect_rounds(evidence.outcome, ROUNDS as usize, 200)?;
        expect_known(evidence)?;
        let (here, there) = (&conversation.requests_out, &conversation.replies_out);
        match place {
            // The request waits in the queue; the answer is acknowledged by the next one, which does so too.
            Place::Here => expect_delay(evidence, here, QDISC),
            Place::There => {
                expect_delay(evidence, here, NET)?;
                expect_delay(evidence, there, QDISC)
            }
        }
    }))
}

/// [`delayed`] for datagrams, which have no ACKs.
fn datagrams() -> Result<Check> {
    let path = Path::veth(Version::V4)?;
    // So that no datagram has to wait for the neighbour's address.
    let pair = Pair::connect(&path)?;
    path.delay(DELAY)?;
    let check = udp::echo(&path)?;
    let (near, _) = path.addresses();
    settle();
    drop(pair);
    Ok(Box::new(move |evidence| {
        check(evidence)?;
        expect_known(evidence)?;
        let sent = first_sent(&evidence.lines)
            .into_iter()
            .filter(|line| line.proto == Proto::Udp && line.saddr == near);
        expect_delay(evidence, sent, QDISC)
    }))
}

/// A shaper's queue fills, and a packet in it waits for as long as those before it take.
fn shaped() -> Result<Check> {
    const LEN: u64 = 200_000;
    const RATE: u32 = 1_000_000;
    let path = Path::veth(Version::V4)?;
    path.limit(RATE, 10_000)?;
    let mut pair = Pair::connect(&path)?;
    pair.client.ask("send-buffer 4194304")?;
    transmit::transfer(&mut pair, LEN)?;
    settle();
    Ok(Box::new(move |evidence| {
        let conversation = transmit::sent_once(evidence, &pair, LEN)?;
        expect_known(evidence)?;
        let out = &conversation.requests_out;
        let longest = out.iter().filter_map(|line| line.sent[QDISC]).max().unwrap_or(0);
        // TCP leaves few segments at a time in a queue (TSQ), a millisecond's worth each.
        ensure!(
            longest >= 1_000_000,
            evidence.outcome.fault(format_args!("at most {longest} ns in the queue"), out)
        );
        // What one waits, none that follows gets through before: it is not counted twice.
        let slow = out
            .iter()
            .filter(|line| line.sent[DRIVER].is_some_and(|time| time * 4 > longest.max(40_000_000)));
        ensure!(slow.count() * 10 <= out.len(), evidence.outcome.fault("the queue shows in the driver", out));
        Ok(())
    }))
}

/// The line of a packet that the device's queue drops says so; no ACK is shown as its own, nor as that of the packet sent in its place.
fn lost() -> Result<Check> {
    let path = Path::veth(Version::V4)?.with_shortest_timeout(transmit::RTO_MS)?;
    let mut pair = Pair::connect(&path)?;
    pair.converse(2, 100)?;
    settle();
    path.lose()?;
    pair.client.ask("write 200")?;
    until(PATIENCE, || Ok(pair.client.ask("retransmissions")? >= 2))?;
    path.deliver()?;
    pair.server.ask("read 200 200 0")?;
    let timeouts = path.near(|| counter("netstat", "TcpExt", "TCPTimeouts"))?;
    settle();
    ensure!(timeouts >= 2, "{timeouts} timeouts, so this shows nothing");
    Ok(Box::new(move |evidence| {
        let conversation = Conversation::check(evidence.outcome, &evidence.lines, &pair)?;
        expect_known(evidence)?;
        let dropped: Vec<_> = conversation.requests_out.iter().filter(|line| line.is("dropped")).collect();
        let fault = |what: &str| evidence.outcome.fault(what, &conversation.requests_out);
        ensure!(dropped.len() == 1 && dropped[0].len == 200, fault("one first send is dropped"));
        ensure!(dropped[0].sent == [None; 3] && dropped[0].is("rto"), fault("what is dropped got nowhere"));
        let again: Vec<_> = conversation.retransmitted_requests().collect();
        let fault = |what: &str| evidence.outcome.fault(what, again.clone());
        ensure!(again.iter().all(|line| line.is("rto")), fault("the timer sent them"));
        ensure!(again.iter().all(|line| line.sent[NET].is_none()), fault("an ACK is not known to be theirs"));
        let (last, lost) = again.split_last().map_or((None, &again[..]), |(last, lost)| (Some(last), lost));
        ensure!(lost.iter().all(|line| line.is("dropped")), fault("all but the last were dropped"));
        let last = last.is_some_and(|line| {
            !line.is("dropped") && line.sent[QDISC].is_some() && line.sent[DRIVER].is_some()
        });
        ensure!(last, fault("the last one left"));
        Ok(())
    }))
}

/// A segment whose ACK never comes has its line when its socket goes.
fn unacknowledged() -> Result<Check> {
    let path = Path::veth(Version::V4)?;
    let mut pair = Pair::connect(&path)?;
    pair.converse(2, 100)?;
    path.delay_answers(Duration::from_secs(3))?;
    pair.client.ask("write 300")?;
    pair.client.ask("reset")?;
    Ok(Box::new(move |evidence| {
        let sent: Vec<_> =
            evidence.lines.iter().filter(|line| pair.is_request(line) && line.dir == Dir::Out).collect();
        let fault = |what: &str| evidence.outcome.fault(what, sent.clone());
        expect_bytes(
            evidence.outcome,
            "requests out",
            &sent.iter().map(|&line| line.clone()).collect::<Vec<_>>(),
            500,
        )?;
        let Some((last, before)) = sent.split_last() else { return Err(fault("nothing was sent")) };
        ensure!(before.iter().all(|line| line.sent[NET].is_some()), fault("the others were acknowledged"));
        ensure!(last.sent[NET].is_none() && last.sent[QDISC].is_some(), fault("this one never was"));
        Ok(())
    }))
}

/// The time until each ACK comes, with the stages before it below TCP, is what the kernel took for the packet's round-trip time.
fn round_trips(delay: Duration) -> Result<Check> {
    const ROUNDS: u32 = 60;
    const LEAST_TOLERANCE_NS: u64 = 1_000_000;
    let path = Path::veth(Version::V4)?;
    path.delay_answers(delay)?;
    let mut pair = Pair::connect(&path)?;
    pair.converse(ROUNDS, 200)?;
    let smoothed = Duration::from_micros(pair.client.ask("round-trip")?);
    settle();
    Ok(Box::new(move |evidence| {
        let conversation = Conversation::check(evidence.outcome, &evidence.lines, &pair)?;
        expect_known(evidence)?;
        let lines = &conversation.requests_out;
        let below_tcp = |line: &Line| {
            let known = [line.stages[1], line.stages[2], line.sent[QDISC], line.sent[NET]];
            known.into_iter().sum::<Option<u64>>()
        };
        // The mean after each packet is the one before the next, and behind the last what the kernel says.
        let means = lines.iter().skip(1).map(|line| line.rtt).chain([Some(ns(smoothed))]);
        // `tcp_rtt_estimator`: an eighth of a mean is of the last packet.
        let kernels = lines.iter().zip(means).map(|(line, after)| Some(8 * after? - 7 * line.rtt?));
        let told = lines.iter().zip(kernels).filter_map(|(line, kernels)| Some((below_tcp(line)?, kernels?)));
        let is_near =
            |(ours, kernels): &(u64, u64)| ours.abs_diff(*kernels) <= (kernels / 20).max(LEAST_TOLERANCE_NS);
        let (near, far): (Vec<_>, Vec<_>) = told.partition(is_near);
        // A busy machine may take the CPU away between the kernel's look at the clock and the hook's.
        ensure!(
            far.len() <= near.len() / 4 && near.len() > ROUNDS as usize / 2,
            evidence.outcome.fault(format_args!("{far:?}, and as the kernel has it {near:?}"), lines)
        );
        Ok(())
    }))
}

/// A loss amid super-segments, parts of which are sent again.
fn lost_in_bulk() -> Result<Check> {
    const LEN: u64 = 300_000;
    let path = Path::veth(Version::V4)?.with_shortest_timeout(transmit::RTO_MS)?;
    let mut pair = Pair::connect(&path)?;
    pair.client.ask("send-buffer 4194304")?;
    transmit::transfer(&mut pair, LEN)?;
    path.lose()?;
    pair.client.ask(&format!("write {LEN}"))?;
    until(PATIENCE, || Ok(pair.client.ask("retransmissions")? >= 2))?;
    path.deliver()?;
    pair.server.ask(&format!("read {LEN} 65536 0"))?;
    let counted = transmit::resent(&path)?;
    settle();
    ensure!(counted >= 2, "{counted} sent again, so this shows nothing");
    Ok(Box::new(move |evidence| {
        let conversation = Conversation::check(evidence.outcome, &evidence.lines, &pair)?;
        let out = &conversation.requests_out;
        oracle::expect_sum(evidence.outcome, "bytes out", out, |line| line.len, 2 * LEN)?;
        expect_known(evidence)?;
        let dropped = out.iter().filter(|line| line.is("dropped")).count();
        ensure!(dropped > 0, evidence.outcome.fault("nothing is said to be dropped", out));
        Ok(())
    }))
}
