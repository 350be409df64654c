//! Every way in which TCP sends: many segments at once, later, again, with a handshake, slowly.

use std::{collections::HashMap, fs, thread::sleep, time::Duration};

use anyhow::{Result, bail, ensure};

use super::{Check, Evidence, Scenario, Theme};
use crate::{
    lines::{Dir, Line},
    net::{Path, Version, counter, transparent_proxy},
    oracle::{self, Conversation, by_bytes, expect_bytes, expect_sum, median, segments},
    peers::{CLIENT, Pair, SERVER},
    process::{PATIENCE, until},
};

pub(crate) const THEME: Theme = Theme {
    name: "transmit",
    arguments: &[],
    scenarios: &[
        Scenario {
            name: "super_segments_loopback",
            play: || super_segments(Path::private_loopback(Version::V4)?, false),
        },
        Scenario { name: "super_segments_veth_v4", play: || super_segments(Path::veth(Version::V4)?, true) },
        Scenario { name: "super_segments_veth_v6", play: || super_segments(Path::veth(Version::V6)?, true) },
        Scenario { name: "clocked_by_acks", play: clocked_by_acks },
        Scenario { name: "paced_by_tcp", play: paced_by_tcp },
        Scenario { name: "paced_by_queue", play: paced_by_queue },
        Scenario { name: "bbr", play: bbr },
        Scenario { name: "shaped", play: shaped },
        Scenario { name: "timeout_v4", play: || timeout(Version::V4) },
        Scenario { name: "timeout_v6", play: || timeout(Version::V6) },
        Scenario { name: "fast_retransmit", play: fast_retransmit },
        Scenario { name: "tail_loss_probe", play: tail_loss_probe },
        Scenario { name: "lost_in_bulk", play: lost_in_bulk },
        Scenario { name: "doubled_unread", play: || doubled(true) },
        Scenario { name: "doubled_read", play: || doubled(false) },
        Scenario { name: "reordered", play: reordered },
        Scenario { name: "overlapping", play: overlapping },
        Scenario { name: "zero_window", play: zero_window },
        Scenario { name: "fin_with_data", play: fin_with_data },
        Scenario { name: "fast_open_sendto_v4", play: || fast_open(Version::V4, false) },
        Scenario { name: "fast_open_sendto_v6", play: || fast_open(Version::V6, false) },
        Scenario { name: "fast_open_refused", play: fast_open_refused },
        Scenario { name: "fast_open_connect_v4", play: || fast_open(Version::V4, true) },
        Scenario { name: "fast_open_connect_v6", play: || fast_open(Version::V6, true) },
        Scenario { name: "fast_open_proxied", play: fast_open_proxied },
    ],
};

/// The mapping of monotonic stamps to wall-clock time may shift a little between two lines.
const CLOCK_ERROR_NS: u64 = 200_000;
/// Shorter than Linux's own 200 ms, and longer than an acknowledgement is delayed.
pub(super) const RTO_MS: u32 = 60;

/// Writes `len` bytes in one call and reads them.
pub(super) fn transfer(pair: &mut Pair, len: u64) -> Result<()> {
    pair.server.tell(&format!("read {len} 65536 0"))?;
    pair.client.ask(&format!("write {len}"))?;
    pair.server.answer()?;
    Ok(())
}

/// Writes more than the peer takes before it reads, which it does once its window was closed.
pub(super) fn through_a_closed_window() -> Result<(Path, Pair)> {
    const LEN: u64 = 64 * 1024;
    let path = Path::veth(Version::V4)?.with_shortest_timeout(RTO_MS)?;
    let mut pair = Pair::prepare(&path, b"nl-client", b"nl-server")?;
    pair.server.ask("receive-buffer 4096")?;
    pair.open(&path)?;
    pair.client.ask("send-buffer 1048576")?;
    pair.client.ask(&format!("write {LEN}"))?;
    until(PATIENCE, || Ok(path.near(|| counter("netstat", "TcpExt", "TCPWinProbe"))? > 0))?;
    pair.server.ask(&format!("read {LEN} 65536 0"))?;
    Ok((path, pair))
}

/// The conversation, in which the client sent `len` bytes to the server, each shown once on both sides.
pub(super) fn sent_once(evidence: &Evidence<'_>, pair: &Pair, len: u64) -> Result<Conversation> {
    let conversation = Conversation::check(evidence.outcome, &evidence.lines, pair)?;
    for (what, lines) in [("out", &conversation.requests_out), ("in", &conversation.requests_in)] {
        let sorted: Vec<_> = by_bytes(lines).into_iter().cloned().collect();
        expect_bytes(evidence.outcome, what, &sorted, len)?;
    }
    Ok(conversation)
}

/// One line per skb, with as many segments as TCP counts. On loopback all may be single, being so large.
pub(super) fn super_segments(path: Path, several: bool) -> Result<Check> {
    const LEN: u64 = 2 * 1024 * 1024;
    let mut pair = Pair::connect(&path)?;
    transfer(&mut pair, LEN)?;
    let counted = pair.client.ask("data-segments-out")?;
    Ok(Box::new(move |evidence| {
        let conversation = sent_once(evidence, &pair, LEN)?;
        let (out, into) = (&conversation.requests_out, &conversation.requests_in);
        let fault = |what: String| evidence.outcome.fault(what, out);
        let once = counted - segments(conversation.retransmitted_requests());
        expect_sum(evidence.outcome, "segments out", out, |line| line.segs, once)?;
        ensure!(
            !several || out.iter().any(|line| line.segs > 1),
            fault("no super-segment, so this shows nothing".to_owned())
        );
        // Nothing on a link splits or merges them. The loopback device has split larger ones than 64 KiB.
        if several {
            let shapes: HashMap<_, _> = out.iter().map(|line| (line.seq, (line.len, line.segs))).collect();
            let other = into.iter().filter(|line| shapes.get(&line.seq) != Some(&(line.len, line.segs)));
            let found = into.len() - other.clone().count();
            evidence.outcome.expect_all(
                "packets in as out",
                found.try_into()?,
                into.len().try_into()?,
                other,
            )?;
        } else {
            expect_sum(evidence.outcome, "segments in", into, |line| line.segs, once)?;
        }
        ensure!(
            into.iter().all(|line| line.is("gro") == (line.segs > 1)),
            fault("gro is what is merged".to_owned())
        );
        Ok(())
    }))
}

/// What an arriving acknowledgement lets go is its writer's, and app-tcp has the wait.
pub(super) fn clocked_by_acks() -> Result<Check> {
    const LEN: u64 = 1024 * 1024;
    const DELAY: Duration = Duration::from_millis(10);
    let path = Path::veth(Version::V4)?;
    path.delay(DELAY)?;
    let mut pair = Pair::connect(&path)?;
    pair.client.ask("send-buffer 4194304")?;
    transfer(&mut pair, LEN)?;
    Ok(Box::new(move |evidence| {
        let conversation = sent_once(evidence, &pair, LEN)?;
        let lines = &conversation.requests_out;
        let delay = u64::try_from(DELAY.as_nanos())?;
        let waited = lines.iter().any(|line| line.stages[0].is_some_and(|wait| wait >= delay));
        ensure!(
            waited,
            evidence.outcome.fault("app-tcp does not show the wait for an acknowledgement", lines)
        );
        quick_below_tcp(evidence, lines, delay)
    }))
}

/// No packet took `limit` between TCP and the device's queue.
fn quick_below_tcp(evidence: &Evidence<'_>, lines: &[Line], limit: u64) -> Result<()> {
    for stage in [1, 2] {
        let typical = median(lines, stage);
        ensure!(
            typical < limit / 4,
            evidence.outcome.fault(format_args!("median of stage {stage} is {typical} ns"), lines)
        );
    }
    Ok(())
}

/// How long `len` bytes take at `rate` bytes per second, ns.
const fn duration_at(rate: u64, len: u64) -> u64 {
    len * 1_000_000_000 / rate
}

/// Without a queue that paces TCP waits itself, for a timer: app-tcp.
pub(super) fn paced_by_tcp() -> Result<Check> {
    const LEN: u64 = 400_000;
    const RATE: u64 = 2_000_000;
    let mut pair = Pair::connect(&Path::veth(Version::V4)?)?;
    pair.client.ask("send-buffer 4194304")?;
    pair.client.ask(&format!("pacing-rate {RATE}"))?;
    transfer(&mut pair, LEN)?;
    Ok(Box::new(move |evidence| {
        let conversation = sent_once(evidence, &pair, LEN)?;
        let lines = &conversation.requests_out;
        // The first ten segments go unpaced, and the last one leaves when those before it are through.
        let least = duration_at(RATE, LEN) / 2;
        let waited = lines.iter().filter_map(|line| line.stages[0]).max().unwrap_or(0);
        ensure!(
            waited >= least,
            evidence.outcome.fault(format_args!("at most {waited} ns in app-tcp"), lines)
        );
        quick_below_tcp(evidence, lines, least)
    }))
}

/// What lies between the line out and the arrival, for each received packet: ns.
fn on_the_way(out: &[Line], into: &[Line]) -> Vec<i64> {
    let at = |line: &Line| line.ts.timestamp_nanos_opt().unwrap_or(0);
    let holder = |seq: u32| out.iter().find(|line| seq.wrapping_sub(line.seq) < line.len);
    let born = |line: &Line| at(line) - i64::try_from(line.total.unwrap_or(0)).unwrap_or(0);
    into.iter().filter_map(|line| Some(born(line) - at(holder(line.seq)?))).collect()
}

/// With the fair queue TCP hands packets over early, and the queue keeps them: in no column.
fn paced_by_queue() -> Result<Check> {
    const LEN: u64 = 400_000;
    const RATE: u64 = 2_000_000;
    let path = Path::veth(Version::V4)?;
    path.fair_queue()?;
    let mut pair = Pair::connect(&path)?;
    pair.client.ask("send-buffer 4194304")?;
    pair.client.ask(&format!("pacing-rate {RATE}"))?;
    transfer(&mut pair, LEN)?;
    Ok(Box::new(move |evidence| kept_by_queue(evidence, &pair, LEN, duration_at(RATE, LEN))))
}

/// A shaper keeps packets after the last stage out and before the first one in.
fn shaped() -> Result<Check> {
    const LEN: u64 = 200_000;
    const RATE: u32 = 1_000_000;
    let path = Path::veth(Version::V4)?;
    path.limit(RATE, 10_000)?;
    let mut pair = Pair::connect(&path)?;
    pair.client.ask("send-buffer 4194304")?;
    transfer(&mut pair, LEN)?;
    Ok(Box::new(move |evidence| kept_by_queue(evidence, &pair, LEN, duration_at(RATE.into(), LEN))))
}

/// All bytes went through a queue that let them out within `span` ns.
fn kept_by_queue(evidence: &Evidence<'_>, pair: &Pair, len: u64, span: u64) -> Result<()> {
    let conversation = sent_once(evidence, pair, len)?;
    let (out, into) = (&conversation.requests_out, &conversation.requests_in);
    let kept = on_the_way(out, into);
    ensure!(kept.len() == into.len(), evidence.outcome.fault("a packet in that no packet out holds", into));
    let (least, most) = (kept.iter().min().copied().unwrap_or(0), kept.iter().max().copied().unwrap_or(0));
    ensure!(
        least >= -i64::try_from(CLOCK_ERROR_NS)?,
        evidence.outcome.fault(format_args!("arrived {least} ns after it left"), into)
    );
    // What waits at a time depends on the limits that TCP sets itself (TSQ), so that this is a small part of it.
    ensure!(most >= 1_000_000, evidence.outcome.fault(format_args!("at most {most} ns in the queue"), into));
    let first = out.iter().map(|line| line.ts).min();
    let last = into.iter().map(|line| line.ts).max();
    let took = last.zip(first).and_then(|(last, first)| (last - first).num_nanoseconds()).unwrap_or(0);
    ensure!(
        u64::try_from(took)? >= span / 2,
        evidence.outcome.fault(format_args!("the rate limited nothing: {took} ns"), into)
    );
    quick_below_tcp(evidence, out, span / 4)?;
    for stage in [0, 1] {
        let typical = median(into, stage);
        ensure!(
            typical < span / 16,
            evidence.outcome.fault(format_args!("median of stage {stage} in is {typical} ns"), into)
        );
    }
    Ok(())
}

/// BBR, which paces by itself.
pub(super) fn bbr() -> Result<Check> {
    const LEN: u64 = 512 * 1024;
    let mut pair = Pair::connect(&Path::veth(Version::V4)?)?;
    pair.client.ask("congestion-control bbr")?;
    transfer(&mut pair, LEN)?;
    let counted = pair.client.ask("data-segments-out")?;
    Ok(Box::new(move |evidence| {
        let conversation = sent_once(evidence, &pair, LEN)?;
        let out = &conversation.requests_out;
        let once = counted - segments(conversation.retransmitted_requests());
        expect_sum(evidence.outcome, "segments out", out, |line| line.segs, once)
    }))
}

/// Retransmissions as the client's namespace counts them.
pub(super) fn resent(path: &Path) -> Result<u64> {
    path.near(|| counter("snmp", "Tcp", "RetransSegs"))
}

/// The client's flagged lines are what TCP counts, and each knows since when it was overdue.
fn expect_retransmissions(evidence: &Evidence<'_>, conversation: &Conversation, counted: u64) -> Result<()> {
    let again: Vec<&Line> = conversation.retransmitted_requests().collect();
    let all = conversation.requests_out.len() + again.len();
    let shown = segments(again.iter().copied());
    let missing = evidence.outcome.allowance().most(all.try_into()?);
    let longest = conversation.requests_out.iter().map(|line| u64::from(line.segs)).max().unwrap_or(0);
    ensure!(
        shown <= counted && counted - shown <= missing * longest,
        evidence.outcome.fault(format_args!("{shown} retransmissions, TCP counts {counted}"), again)
    );
    let left_tcp = |line: &Line| -> Result<i64> {
        let below = line.stages[1].unwrap_or(0) + line.stages[2].unwrap_or(0);
        Ok(line.ts.timestamp_nanos_opt().unwrap_or(0) - i64::try_from(below)?)
    };
    for line in again {
        let fault = |what: &str| evidence.outcome.fault(what, [line]);
        let first =
            conversation.requests_out.iter().find(|first| line.seq.wrapping_sub(first.seq) < first.len);
        let Some(first) = first else {
            ensure!(missing > 0, fault("sent again, but never for the first time"));
            continue;
        };
        let Some(age) = line.first_send_age else {
            // TCP splits and joins what it sends again, after which the kernel does not tell first from later.
            let is_whole = (first.seq, first.len) == (line.seq, line.len);
            ensure!(!is_whole, fault("the first send is unknown"));
            continue;
        };
        if first.is_fine {
            // Its line tells when its bytes were acknowledged, which may be after they were sent again.
            continue;
        }
        let since = u64::try_from(left_tcp(line)? - left_tcp(first)?)?;
        // TCP looks at the clock after the application's call and before it lets the segment go.
        let most = since + first.stages[0].unwrap_or(0) + CLOCK_ERROR_NS;
        ensure!(
            age + CLOCK_ERROR_NS >= since && age <= most,
            fault(&format!("first sent {since} to {most} ns ago, not {age}"))
        );
    }
    Ok(())
}

/// Segments that a timer sends again and again, each time later, until one comes through.
fn timeout(version: Version) -> Result<Check> {
    let path = Path::veth(version)?.with_shortest_timeout(RTO_MS)?;
    let mut pair = Pair::connect(&path)?;
    pair.converse(2, 100)?;
    path.lose()?;
    pair.client.ask("write 200")?;
    until(PATIENCE, || Ok(pair.client.ask("retransmissions")? >= 2))?;
    path.deliver()?;
    pair.server.ask("read 200 200 0")?;
    let counted = resent(&path)?;
    let timeouts = path.near(|| counter("netstat", "TcpExt", "TCPTimeouts"))?;
    ensure!(timeouts >= 3, "{timeouts} timeouts, so this shows nothing");
    Ok(Box::new(move |evidence| {
        let conversation = sent_once(evidence, &pair, 400)?;
        expect_retransmissions(evidence, &conversation, counted)?;
        let again: Vec<&Line> = conversation.retransmitted_requests().collect();
        ensure!(
            again.windows(2).all(|two| two[0].first_send_age < two[1].first_send_age),
            evidence.outcome.fault("the first send does not lie further back each time", again)
        );
        // One copy came through: its stamps are known, and none has the wait of the others, the last of which was sent
        // four times the shortest timeout before.
        let whole = conversation
            .requests_in
            .last()
            .is_some_and(|line| line.total.is_some_and(|total| total < 3 * u64::from(RTO_MS) * 1_000_000));
        ensure!(
            whole,
            evidence.outcome.fault("the copy that came has no time of its own", &conversation.requests_in)
        );
        Ok(())
    }))
}

/// A hole that later segments show, filled in a softirq by the peer's acknowledgement.
fn fast_retransmit() -> Result<Check> {
    let path = Path::veth(Version::V4)?;
    let mut pair = Pair::connect(&path)?;
    pair.converse(2, 100)?;
    path.lose()?;
    pair.client.ask("write 200")?;
    path.deliver()?;
    for _ in 0..5 {
        pair.client.ask("write 300")?;
    }
    pair.server.ask("read 1700 4096 0")?;
    let counted = resent(&path)?;
    Ok(Box::new(move |evidence| {
        let conversation = sent_once(evidence, &pair, 1900)?;
        ensure!(counted >= 1, evidence.outcome.fault("nothing was sent again, so this shows nothing", []));
        expect_retransmissions(evidence, &conversation, counted)
    }))
}

/// The last segment is lost: a probe repeats it.
fn tail_loss_probe() -> Result<Check> {
    let path = Path::veth(Version::V4)?.with_tail_loss_probes()?;
    let mut pair = Pair::connect(&path)?;
    pair.converse(5, 100)?;
    path.lose()?;
    pair.client.ask("write 200")?;
    pair.client.ask("write 300")?;
    until(PATIENCE, || Ok(path.near(|| counter("netstat", "TcpExt", "TCPLossProbes"))? >= 1))?;
    path.deliver()?;
    pair.server.ask("read 500 4096 0")?;
    let counted = resent(&path)?;
    Ok(Box::new(move |evidence| {
        let conversation = sent_once(evidence, &pair, 1000)?;
        expect_retransmissions(evidence, &conversation, counted)
    }))
}

/// A loss amid super-segments: parts of them are sent again.
fn lost_in_bulk() -> Result<Check> {
    const LEN: u64 = 300_000;
    let path = Path::veth(Version::V4)?.with_shortest_timeout(RTO_MS)?;
    let mut pair = Pair::connect(&path)?;
    pair.client.ask("send-buffer 4194304")?;
    transfer(&mut pair, LEN)?;
    path.lose()?;
    pair.client.ask(&format!("write {LEN}"))?;
    until(PATIENCE, || Ok(pair.client.ask("retransmissions")? >= 2))?;
    path.deliver()?;
    pair.server.ask(&format!("read {LEN} 65536 0"))?;
    let counted = resent(&path)?;
    Ok(Box::new(move |evidence| {
        let conversation = Conversation::check(evidence.outcome, &evidence.lines, &pair)?;
        for (what, lines) in
            [("bytes in", &conversation.requests_in), ("bytes out", &conversation.requests_out)]
        {
            expect_sum(evidence.outcome, what, lines, |line| line.len, 2 * LEN)?;
        }
        expect_retransmissions(evidence, &conversation, counted)
    }))
}

/// Every packet comes twice: the copy has no line, and takes nothing from the first.
pub(super) fn doubled(unread: bool) -> Result<Check> {
    // Many: the copy may come just when the first is being read.
    const COUNT: u32 = 100;
    let path = Path::veth(Version::V4)?;
    path.duplicate()?;
    let mut pair = Pair::connect(&path)?;
    if unread {
        for _ in 0..COUNT {
            pair.client.ask("write 200")?;
        }
        pair.server.ask(&format!("read {} 4096 0", COUNT * 200))?;
    } else {
        pair.converse(COUNT, 200)?;
    }
    let counted = resent(&path)?;
    Ok(Box::new(move |evidence| {
        // The second copy may come while the first waits for a reader who holds the socket: then TCP has
        // accepted neither, and no stamp is known to be that of the one it will take.
        let both_wait = |line: &Line| !unread && line.is("ambiguous");
        let conversation = Conversation::check_unless(evidence.outcome, &evidence.lines, &pair, both_wait)?;
        let unsure = conversation.requests_in.iter().filter(|line| both_wait(line));
        ensure!(
            unsure.clone().count() < COUNT as usize / 2,
            evidence.outcome.fault("most copies are taken for each other", unsure)
        );
        for lines in [&conversation.requests_out, &conversation.requests_in] {
            oracle::expect_stream(evidence.outcome, "requests", lines, COUNT as usize, 200)?;
        }
        expect_retransmissions(evidence, &conversation, counted)
    }))
}

/// Packets that overtake others: each byte is counted once, with the time of its own packet.
fn reordered() -> Result<Check> {
    const COUNT: u32 = 24;
    let path = Path::veth(Version::V4)?;
    let mut pair = Pair::connect(&path)?;
    // For longer than a busy machine takes to write what overtakes it.
    path.reorder(Duration::from_millis(100))?;
    let mut len = 0;
    for size in (0..COUNT).map(|number| 100 + number) {
        pair.client.ask(&format!("write {size}"))?;
        len += u64::from(size);
    }
    // All that is sent again has come.
    pair.client.ask("acked")?;
    pair.server.ask(&format!("read {len} 4096 0"))?;
    let counted = resent(&path)?;
    let queued = path.far(|| counter("netstat", "TcpExt", "TCPOFOQueue"))?;
    ensure!(queued > 0, "nothing came out of order, so this shows nothing");
    Ok(Box::new(move |evidence| {
        let conversation = sent_once(evidence, &pair, len)?;
        expect_retransmissions(evidence, &conversation, counted)
    }))
}

/// A segment whose first bytes came again with the missing ones before it: its line is that of its other bytes.
fn overlapping() -> Result<Check> {
    const FIRST: u32 = 150;
    const NEXT: u32 = 100;
    const LEN: u32 = 200;
    let mut pair = Pair::connect(&Path::private_loopback(Version::V4)?)?;
    pair.client.ask(&format!("forge {NEXT} {}", LEN - NEXT))?;
    pair.client.ask(&format!("forge 0 {FIRST}"))?;
    pair.server.ask(&format!("read {LEN} 4096 0"))?;
    Ok(Box::new(move |evidence| {
        let is_its = |line: &&Line| line.dir == Dir::In && line.is_between(pair.near, pair.far);
        let lines: Vec<_> = evidence.lines.iter().filter(is_its).collect();
        let [first, rest] = lines[..] else {
            bail!(evidence.outcome.fault("not two lines", lines));
        };
        let is_whole =
            first.len == FIRST && rest.len == LEN - FIRST && rest.seq.wrapping_sub(first.seq) == FIRST;
        ensure!(is_whole, evidence.outcome.fault("not these bytes", lines));
        for line in [first, rest] {
            let is_known = line.stages.iter().all(Option::is_some) && line.pid == Some(pair.server.pid());
            ensure!(is_known, evidence.outcome.fault("something is unknown", [line]));
        }
        // The rest came before.
        ensure!(rest.stages[2] > first.stages[2], evidence.outcome.fault("not its own time", [rest]));
        Ok(())
    }))
}

/// A full window, probes against it, and what the window lets go when it opens.
fn zero_window() -> Result<Check> {
    const LEN: u64 = 64 * 1024;
    let path = Path::veth(Version::V4)?.with_shortest_timeout(RTO_MS)?;
    let mut pair = Pair::prepare(&path, CLIENT, SERVER)?;
    pair.server.ask("receive-buffer 4096")?;
    pair.open(&path)?;
    pair.client.ask("send-buffer 1048576")?;
    pair.client.ask(&format!("write {LEN}"))?;
    until(PATIENCE, || Ok(path.near(|| counter("netstat", "TcpExt", "TCPWinProbe"))? > 0))?;
    pair.server.ask(&format!("read {LEN} 65536 0"))?;
    let counted = resent(&path)?;
    Ok(Box::new(move |evidence| {
        let conversation = sent_once(evidence, &pair, LEN)?;
        let lines = &conversation.requests_out;
        let wait = u64::from(RTO_MS) * 1_000_000;
        let waited = lines.iter().any(|line| line.stages[0].is_some_and(|waited| waited >= wait));
        ensure!(waited, evidence.outcome.fault("app-tcp does not show the wait for the window", lines));
        expect_retransmissions(evidence, &conversation, counted)
    }))
}

/// Data that waits for more leaves with the FIN: a data line like any other.
pub(super) fn fin_with_data() -> Result<Check> {
    let path = Path::veth(Version::V4)?;
    let mut pair = Pair::connect(&path)?;
    pair.client.ask("write-more 123")?;
    sleep(Duration::from_millis(20));
    pair.client.ask("close")?;
    pair.server.ask("read 123 4096 0")?;
    Ok(Box::new(move |evidence| {
        let conversation = sent_once(evidence, &pair, 123)?;
        let lines = &conversation.requests_out;
        ensure!(lines.len() == 1, evidence.outcome.fault("not one line", lines));
        let waited = lines[0].stages[0].is_some_and(|waited| waited >= 19_000_000);
        ensure!(waited, evidence.outcome.fault("app-tcp does not show the wait for the end", lines));
        Ok(())
    }))
}

/// Allows data in a SYN in the calling thread's namespace, as client and server, without cookies.
fn allow_fast_open() -> Result<()> {
    const WITHOUT_COOKIES: &str = "519";
    Ok(fs::write("/proc/sys/net/ipv4/tcp_fastopen", WITHOUT_COOKIES)?)
}

/// Data that would have gone in the SYN, but for a cookie that is missing.
fn fast_open_refused() -> Result<Check> {
    let path = Path::veth(Version::V4)?;
    let mut pair = Pair::prepare(&path, CLIENT, SERVER)?;
    let port = pair.client.ask(&format!("connect-with {} {} 321", pair.far.ip(), pair.far.port()))?;
    pair.near.set_port(port.try_into()?);
    pair.server.ask("accept")?;
    pair.server.ask("read 321 4096 0")?;
    pair.converse(3, 100)?;
    Ok(Box::new(move |evidence| {
        let conversation = sent_once(evidence, &pair, 621)?;
        ensure!(
            conversation.requests_out.first().is_some_and(|line| line.len == 321),
            evidence.outcome.fault("not the call's data", &conversation.requests_out)
        );
        Ok(())
    }))
}

/// Data in a SYN, and what follows.
pub(super) fn fast_open(version: Version, by_connect: bool) -> Result<Check> {
    let path = Path::veth(version)?;
    path.near(allow_fast_open)?;
    path.far(allow_fast_open)?;
    let mut pair = Pair::prepare(&path, CLIENT, SERVER)?;
    pair.server.ask("fast-queue")?;
    let port = if by_connect {
        let port = pair.client.ask(&format!("connect-later {} {}", pair.far.ip(), pair.far.port()))?;
        pair.client.ask("write 321")?;
        port
    } else {
        pair.client.ask(&format!("connect-with {} {} 321", pair.far.ip(), pair.far.port()))?
    };
    pair.near.set_port(port.try_into()?);
    pair.server.ask("accept")?;
    pair.server.ask("read 321 4096 0")?;
    pair.converse(3, 100)?;
    let with_data = path.far(|| counter("netstat", "TcpExt", "TCPFastOpenPassive"))?;
    ensure!(with_data == 1, "no data in the SYN, so this shows nothing");
    Ok(Box::new(move |evidence| {
        let conversation = sent_once(evidence, &pair, 621)?;
        for lines in [&conversation.requests_out, &conversation.requests_in] {
            ensure!(
                lines.first().is_some_and(|line| line.len == 321),
                evidence.outcome.fault("not the SYN's data", lines)
            );
        }
        for lines in [&conversation.replies_out, &conversation.replies_in] {
            oracle::expect_stream(evidence.outcome, "replies", lines, 3, 100)?;
        }
        Ok(())
    }))
}

/// Data in a SYN that a transparent proxy's rule has given to the listener, whose own numbers say nothing of it.
fn fast_open_proxied() -> Result<Check> {
    // Whether a number lies before the listener's, which is 0, is a matter of chance.
    const CONNECTIONS: usize = 8;
    let path = Path::veth(Version::V4)?;
    path.near(allow_fast_open)?;
    path.far(allow_fast_open)?;
    let mut pairs = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut pair = Pair::prepare(&path, CLIENT, SERVER)?;
        pair.server.ask("fast-queue")?;
        pair.server.ask("transparent")?;
        path.far(|| transparent_proxy(pair.far.port()))?;
        let port = pair.client.ask(&format!("connect-with {} {} 321", pair.far.ip(), pair.far.port()))?;
        pair.near.set_port(port.try_into()?);
        pair.server.ask("accept")?;
        pair.server.ask("read 321 4096 0")?;
        pair.converse(2, 100)?;
        pairs.push(pair);
    }
    let with_data = path.far(|| counter("netstat", "TcpExt", "TCPFastOpenPassive"))?;
    ensure!(with_data == CONNECTIONS as u64, "no data in some SYN, so this shows nothing");
    Ok(Box::new(move |evidence| {
        for pair in &pairs {
            let conversation = sent_once(evidence, pair, 521)?;
            let lines = &conversation.requests_in;
            let is_there = lines.first().is_some_and(|line| line.len == 321 && line.total.is_some());
            ensure!(is_there, evidence.outcome.fault("not the SYN's data", lines));
        }
        Ok(())
    }))
}
