//! Every way in which an application takes or gives bytes: a line per segment, at the right moment.

use std::{
    fs,
    sync::atomic::{AtomicU64, Ordering},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

use super::{Check, Evidence, Scenario, Theme};
use crate::{
    cases::{harness::coalesced as appended, kernel_version},
    lines::{Dir, Line},
    net::{Path, Version, counter},
    oracle::{self, Conversation, expect_bytes, expect_stream},
    peers::{CHILD, CLIENT, Pair, Peer, SERVER},
    verdict::Skipped,
};

pub(crate) const THEME: Theme = Theme {
    name: "io",
    arguments: &[],
    scenarios: &[
        Scenario { name: "read", play: || taken("read") },
        Scenario { name: "recv", play: || taken("recv") },
        Scenario { name: "recv_truncated", play: || taken("recv-truncated") },
        Scenario { name: "recvmsg", play: || taken("recvmsg") },
        Scenario { name: "recvmmsg", play: || taken("recvmmsg") },
        Scenario { name: "splice_to_pipe", play: || taken("splice") },
        Scenario { name: "zerocopy_receive_of_small_segments", play: || taken("zerocopy") },
        Scenario { name: "io_uring_receive", play: || taken("ring") },
        Scenario { name: "io_uring_receive_by_worker", play: || taken("ring-worker") },
        Scenario { name: "zerocopy_receive_of_pages", play: mapped },
        Scenario { name: "recv_waits_for_all", play: taken_while_waiting },
        Scenario { name: "recv_peeks_first", play: peeked },
        Scenario { name: "read_in_parts", play: taken_in_parts },
        Scenario { name: "coalesced_read_at_once", play: || coalesced(20 * LEN, 0) },
        Scenario { name: "coalesced_read_one_by_one", play: || coalesced(LEN, LEN) },
        Scenario { name: "coalesced_read_across", play: || coalesced(LEN, LEN / 2) },
        Scenario { name: "send", play: || given("send") },
        Scenario { name: "sendmsg", play: || given("sendmsg") },
        Scenario { name: "writev", play: || given("writev") },
        Scenario { name: "sendfile", play: || given("sendfile") },
        Scenario { name: "splice_from_pipe", play: || given("splice") },
        Scenario { name: "send_zerocopy", play: || given("send-zerocopy") },
        Scenario { name: "io_uring_send", play: || given("ring") },
        Scenario { name: "io_uring_send_by_worker", play: || given("ring-worker") },
        Scenario { name: "writev_is_one_call", play: one_call },
        Scenario { name: "cork", play: corked },
        Scenario { name: "send_more", play: more },
        Scenario { name: "nagle", play: delayed_by_nagle },
        Scenario { name: "multipath_v4", play: || multipath(Version::V4, 1000, true, true) },
        Scenario { name: "multipath_v6", play: || multipath(Version::V6, 1000, true, true) },
        Scenario { name: "multipath_and_plain", play: || multipath(Version::V4, 100, true, false) },
        Scenario { name: "plain_and_multipath", play: || multipath(Version::V6, 100, false, true) },
        Scenario { name: "multipath_bulk", play: multipath_bulk },
        Scenario { name: "multipath_passed_on", play: multipath_passed_on },
        Scenario { name: "kernel_tls", play: encrypted },
        Scenario { name: "kernel_tls_held_back", play: encrypted_and_held_back },
    ],
};

/// The delay that is injected into a wait: longer than a busy machine takes the emulated CPU away, which may happen in any stage.
const PAUSE: Duration = Duration::from_millis(100);
/// How much of [`PAUSE`] a line shows at least: the clocks of sleeps and stamps may differ a little.
const PAUSED_NS: u64 = 99_900_000;
/// How long what waits for more is held back here: TCP itself does it for 200 ms at most.
const HELD_BACK: Duration = Duration::from_millis(40);
const HELD_BACK_NS: u64 = 39_900_000;

/// Stage of a line between TCP and the application, by direction.
const TCP_APP: usize = 2;
const APP_TCP: usize = 0;

const LEN: u32 = 200;

/// The lines of `pair`, of which the thread that gave or took is known by the ring that it served.
fn lines_of(evidence: &Evidence<'_>, pair: &Pair, worker: Option<Dir>) -> Result<Conversation> {
    let conversation = Conversation::check_by(evidence.outcome, &evidence.lines, pair, &|line| {
        let peer = oracle::sender_or_reader(pair, line);
        // `io_wq_worker` names its threads after the one that has the ring.
        let is_worker = worker == Some(line.dir);
        Some((peer.pid(), if is_worker { format!("iou-wrk-{}", peer.pid()) } else { peer.comm() }))
    })?;
    for line in conversation.requests_out.iter().chain(&conversation.requests_in) {
        let is_worker = worker == Some(line.dir);
        ensure!(
            (line.tid == line.pid) != is_worker,
            evidence.outcome.fault(
                if is_worker { "not a thread of its own" } else { "not the peer's only thread" },
                [line]
            )
        );
    }
    Ok(conversation)
}

/// All of `lines` show at least the pause in `stage`.
fn expect_pause<'a>(
    evidence: &Evidence<'_>,
    lines: impl IntoIterator<Item = &'a Line>,
    stage: usize,
) -> Result<()> {
    for line in lines {
        ensure!(
            line.stages[stage].is_some_and(|time| time >= PAUSED_NS),
            evidence.outcome.fault(format_args!("stage {stage} lacks the pause"), [line])
        );
    }
    Ok(())
}

/// Less than half of `lines` show the pause in `stage`: a busy machine has pauses of its own.
fn expect_no_pause<'a>(
    evidence: &Evidence<'_>,
    lines: impl IntoIterator<Item = &'a Line>,
    stage: usize,
) -> Result<()> {
    let lines: Vec<_> = lines.into_iter().collect();
    let is_paused = |line: &&Line| line.stages[stage].is_none_or(|time| time >= PAUSED_NS);
    let paused: Vec<_> = lines.iter().copied().filter(is_paused).collect();
    ensure!(
        paused.len() * 2 < lines.len(),
        evidence.outcome.fault(format_args!("stage {stage} has the pause"), paused)
    );
    Ok(())
}

/// Segments that wait for a reader, which takes them with one kind of call.
pub(super) fn taken(way: &'static str) -> Result<Check> {
    const SEGMENTS: u32 = 5;
    let mut pair = Pair::connect(&Path::private_loopback(Version::V4)?)?;
    for _ in 0..SEGMENTS {
        pair.client.ask(&format!("write {LEN}"))?;
    }
    pair.server.ask(&format!("take {way} {} {}", SEGMENTS * LEN, PAUSE.as_millis()))?;
    Ok(Box::new(move |evidence| {
        let worker = (way == "ring-worker").then_some(Dir::In);
        let conversation = lines_of(evidence, &pair, worker)?;
        let (sent, taken) = (&conversation.requests_out, &conversation.requests_in);
        expect_stream(evidence.outcome, "requests out", sent, SEGMENTS as usize, LEN)?;
        expect_stream(evidence.outcome, "requests in", taken, SEGMENTS as usize, LEN)?;
        expect_pause(evidence, taken, TCP_APP)?;
        expect_no_pause(evidence, taken, 0)?;
        expect_no_pause(evidence, taken, 1)
    }))
}

/// Pages that the reader maps instead of copying are taken like others.
fn mapped() -> Result<Check> {
    const BYTES: u64 = 4 * 4096;
    let mut pair = Pair::connect(&Path::private_loopback(Version::V4)?)?;
    pair.client.ask(&format!("give send-zerocopy {BYTES}"))?;
    sleep(PAUSE);
    // The loopback device gives a receiver copies of a zero-copy sender's pages (`skb_orphan_frags_rx`): whole
    // pages that no other has, as few devices do.
    let mapped = pair.server.ask(&format!("map {BYTES}"))?;
    ensure!(mapped == BYTES, "only {mapped} of {BYTES} bytes were mapped, so this shows nothing");
    Ok(Box::new(move |evidence| {
        let conversation = lines_of(evidence, &pair, None)?;
        expect_bytes(evidence.outcome, "requests out", &conversation.requests_out, BYTES)?;
        expect_bytes(evidence.outcome, "requests in", &conversation.requests_in, BYTES)?;
        expect_pause(evidence, &conversation.requests_in, TCP_APP)
    }))
}

/// A call that waits for more has taken the bytes there: tcp-app is each segment's own time, not the call's.
pub(super) fn taken_while_waiting() -> Result<Check> {
    const SEGMENTS: u32 = 3;
    let mut pair = Pair::connect(&Path::private_loopback(Version::V4)?)?;
    pair.server.tell(&format!("take recv-all {} 0", SEGMENTS * LEN))?;
    for _ in 0..SEGMENTS {
        sleep(PAUSE);
        pair.client.ask(&format!("write {LEN}"))?;
    }
    pair.server.answer()?;
    Ok(Box::new(move |evidence| {
        let conversation = lines_of(evidence, &pair, None)?;
        let taken = &conversation.requests_in;
        expect_stream(evidence.outcome, "requests in", taken, SEGMENTS as usize, LEN)?;
        expect_no_pause(evidence, taken, TCP_APP)
    }))
}

/// Looking at bytes does not take them.
fn peeked() -> Result<Check> {
    let mut pair = Pair::connect(&Path::private_loopback(Version::V4)?)?;
    pair.client.ask(&format!("write {LEN}"))?;
    pair.server.ask(&format!("peek {LEN}"))?;
    pair.server.ask(&format!("peek {LEN}"))?;
    pair.server.ask(&format!("take recv {LEN} {}", PAUSE.as_millis()))?;
    Ok(Box::new(move |evidence| {
        let conversation = lines_of(evidence, &pair, None)?;
        expect_stream(evidence.outcome, "requests in", &conversation.requests_in, 1, LEN)?;
        expect_pause(evidence, &conversation.requests_in, TCP_APP)
    }))
}

/// A segment is taken when its first byte is.
fn taken_in_parts() -> Result<Check> {
    const PARTS: u32 = 10;
    let mut pair = Pair::connect(&Path::private_loopback(Version::V4)?)?;
    let since = Instant::now();
    pair.client.ask(&format!("write {}", PARTS * LEN))?;
    pair.server.ask(&format!("take recv {LEN} 0"))?;
    let took = since.elapsed();
    pair.server.ask(&format!(
        "read {} {LEN} {}",
        (PARTS - 1) * LEN,
        (PAUSE / (PARTS - 1)).as_millis() + 1
    ))?;
    Ok(Box::new(move |evidence| {
        let conversation = lines_of(evidence, &pair, None)?;
        let taken = &conversation.requests_in;
        expect_stream(evidence.outcome, "requests in", taken, 1, PARTS * LEN)?;
        // The rest took as long again, and a pause.
        let is_of_first = taken[0].stages[TCP_APP].is_some_and(|time| u128::from(time) <= took.as_nanos());
        ensure!(
            is_of_first,
            evidence.outcome.fault(format_args!("its first byte was taken within {took:?}"), taken)
        );
        Ok(())
    }))
}

/// Exactly the segments that TCP has appended to others say so, however they are read: after `first` bytes
/// as many at a time as are told.
fn coalesced(chunk: u32, first: u32) -> Result<Check> {
    const SEGMENTS: u32 = 20;
    let path = Path::private_loopback(Version::V4)?;
    let mut pair = Pair::connect(&path)?;
    for _ in 0..SEGMENTS {
        pair.client.ask(&format!("write {LEN}"))?;
    }
    let appended = path.far(appended)?;
    ensure!(appended > 0, "nothing was coalesced, so this shows nothing");
    pair.server.ask(&format!("take recv {first} 0"))?;
    pair.server.ask(&format!("read {} {chunk} 0", SEGMENTS * LEN - first))?;
    // All is read, so the next one has a buffer of its own.
    pair.converse(1, LEN)?;
    Ok(Box::new(move |evidence| {
        let conversation = lines_of(evidence, &pair, None)?;
        let taken = &conversation.requests_in;
        expect_stream(evidence.outcome, "requests in", taken, SEGMENTS as usize + 1, LEN)?;
        let flagged: Vec<_> = taken.iter().filter(|line| line.is("coalesced")).collect();
        ensure!(
            u64::try_from(flagged.len())? == appended,
            evidence.outcome.fault(format_args!("{} coalesced, not {appended}", flagged.len()), flagged)
        );
        for line in [&taken[0], &taken[SEGMENTS as usize]] {
            ensure!(!line.is("coalesced"), evidence.outcome.fault("nothing to be appended to", [line]));
        }
        Ok(())
    }))
}

/// Many segments that were written with one kind of call.
fn given(way: &'static str) -> Result<Check> {
    const BYTES: u64 = 200_000;
    let mut pair = Pair::connect(&Path::private_loopback(Version::V4)?)?;
    pair.server.tell(&format!("take read {BYTES} 0"))?;
    pair.client.ask(&format!("give {way} {BYTES}"))?;
    pair.server.answer()?;
    Ok(Box::new(move |evidence| {
        let worker = (way == "ring-worker").then_some(Dir::Out);
        let conversation = lines_of(evidence, &pair, worker)?;
        expect_bytes(evidence.outcome, "requests out", &conversation.requests_out, BYTES)?;
        expect_bytes(evidence.outcome, "requests in", &conversation.requests_in, BYTES)
    }))
}

/// A pair whose client can write much that TCP must hold back until the server reads.
pub(super) fn held_back() -> Result<Pair> {
    let path = Path::private_loopback(Version::V4)?;
    let mut pair = Pair::prepare(&path, CLIENT, SERVER)?;
    pair.server.ask("receive-buffer 4096")?;
    pair.open(&path)?;
    pair.client.ask("send-buffer 1048576")?;
    Ok(pair)
}

/// All segments of one call have the time of that call, whenever TCP sends them.
fn one_call() -> Result<Check> {
    const BYTES: u64 = 20_000;
    /// The mapping of monotonic stamps to wall-clock time may shift a little between two lines.
    const CLOCK_ERROR_NS: i64 = 100_000;
    let mut pair = held_back()?;
    pair.client.ask(&format!("give writev {BYTES}"))?;
    pair.server.ask(&format!("take read {BYTES} {}", PAUSE.as_millis()))?;
    Ok(Box::new(move |evidence| {
        let conversation = lines_of(evidence, &pair, None)?;
        let sent = &conversation.requests_out;
        expect_bytes(evidence.outcome, "requests out", sent, BYTES)?;
        let last = sent.last().context("no line")?;
        expect_pause(evidence, [last], APP_TCP)?;
        let called = |line: &Line| -> Result<i64> {
            let end = line.ts.timestamp_nanos_opt().context("ts")?;
            Ok(end - i64::try_from(line.total.context("total")?)?)
        };
        for line in sent {
            let between = called(line)? - called(last)?;
            ensure!(
                between.abs() <= CLOCK_ERROR_NS,
                evidence.outcome.fault(format_args!("calls {between} ns apart"), [line, last])
            );
        }
        Ok(())
    }))
}

/// A segment of two writes is the first one's, and waited since then.
fn expect_held_back(evidence: &Evidence<'_>, pair: &Pair) -> Result<()> {
    let conversation = lines_of(evidence, pair, None)?;
    let lines = &conversation.requests_out;
    expect_stream(evidence.outcome, "requests out", lines, 1, 2 * LEN)?;
    let waited = lines[0].stages[APP_TCP].is_some_and(|time| time >= HELD_BACK_NS);
    ensure!(waited, evidence.outcome.fault("app-tcp lacks the time that it was held back", lines));
    Ok(())
}

/// Reads what the client has written, so that it becomes lines.
fn take_all(server: &mut Peer) -> Result<()> {
    server.ask(&format!("take read {} 0", 2 * LEN))?;
    Ok(())
}

fn corked() -> Result<Check> {
    let mut pair = Pair::connect(&Path::veth(Version::V4)?.patient()?)?;
    pair.client.ask("cork yes")?;
    pair.client.ask(&format!("write {LEN}"))?;
    sleep(HELD_BACK);
    pair.client.ask(&format!("write {LEN}"))?;
    pair.client.ask("cork no")?;
    take_all(&mut pair.server)?;
    Ok(Box::new(move |evidence| expect_held_back(evidence, &pair)))
}

fn more() -> Result<Check> {
    let mut pair = Pair::connect(&Path::veth(Version::V4)?.patient()?)?;
    pair.client.ask(&format!("give send-more {LEN}"))?;
    sleep(HELD_BACK);
    pair.client.ask(&format!("write {LEN}"))?;
    take_all(&mut pair.server)?;
    Ok(Box::new(move |evidence| expect_held_back(evidence, &pair)))
}

/// A small write that waits until the one before is acknowledged shows that wait.
fn delayed_by_nagle() -> Result<Check> {
    let path = Path::veth(Version::V4)?;
    // Longer than the pause, which the second write comes after the first at most.
    path.delay(2 * PAUSE)?;
    let mut pair = Pair::connect(&path)?;
    pair.client.ask("delay-small yes")?;
    pair.client.ask(&format!("write-each 2 {LEN}"))?;
    take_all(&mut pair.server)?;
    Ok(Box::new(move |evidence| {
        let conversation = lines_of(evidence, &pair, None)?;
        let sent = &conversation.requests_out;
        expect_stream(evidence.outcome, "requests out", sent, 2, LEN)?;
        expect_no_pause(evidence, &sent[..1], APP_TCP)?;
        expect_pause(evidence, &sent[1..], APP_TCP)
    }))
}

/// Whether the kernel encrypts for applications (TLS is a module, which the guest loads if there is one).
fn has_tls() -> Result<bool> {
    let protocols = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_ulp")?;
    Ok(protocols.split_ascii_whitespace().any(|protocol| protocol == "tls"))
}

/// Agrees on keys, on a kernel that has TLS.
fn encrypt(mut pair: Pair) -> Result<Pair> {
    ensure!(has_tls()?, Skipped("this kernel has no TLS"));
    pair.client.ask("encrypt client")?;
    pair.server.ask("encrypt server")?;
    Ok(pair)
}

/// What TLS 1.2 with AES-GCM adds to each record: header, nonce and tag.
const TLS_RECORD: u32 = 5 + 8 + 16;

/// With TLS in the kernel the lines are those of the records, which the application gives and takes.
fn encrypted() -> Result<Check> {
    const ROUNDS: u32 = 20;
    let mut pair = encrypt(Pair::connect(&Path::private_loopback(Version::V4)?)?)?;
    // The record waits for its reader, for whom the kernel decrypts it.
    pair.client.ask(&format!("write {LEN}"))?;
    pair.server.ask(&format!("take recv {LEN} {}", PAUSE.as_millis()))?;
    pair.converse(ROUNDS, LEN)?;
    Ok(Box::new(move |evidence| {
        let conversation = lines_of(evidence, &pair, None)?;
        expect_pause(evidence, &conversation.requests_in[..1], TCP_APP)?;
        let rounds = ROUNDS as usize;
        for (what, lines, count) in [
            ("requests out", &conversation.requests_out, 1 + rounds),
            ("requests in", &conversation.requests_in, 1 + rounds),
            ("replies out", &conversation.replies_out, rounds),
            ("replies in", &conversation.replies_in, rounds),
        ] {
            expect_stream(evidence.outcome, what, lines, count, LEN + TLS_RECORD)?;
        }
        Ok(())
    }))
}

/// Records that TCP holds back are still their writer's.
fn encrypted_and_held_back() -> Result<Check> {
    const RECORDS: u32 = 10;
    const BYTES: u32 = 5_000;
    let mut pair = encrypt(held_back()?)?;
    for _ in 0..RECORDS {
        pair.client.ask(&format!("write {BYTES}"))?;
    }
    pair.server.ask(&format!("take read {} {}", RECORDS * BYTES, PAUSE.as_millis()))?;
    Ok(Box::new(move |evidence| {
        let conversation = Conversation::check_by(evidence.outcome, &evidence.lines, &pair, &|line| {
            let peer = oracle::sender_or_reader(&pair, line);
            // A record that the receive buffer can't hold is copied out of it as it comes (`tls_strp_read_copyin`):
            // in the softirq that brings it, and so by no task, or by a worker of the kernel, if a task holds
            // the socket then. Its bytes are taken, but not by the reader.
            let by_kernel =
                line.dir == Dir::In && line.comm.as_ref().is_none_or(|comm| comm.starts_with("kworker/"));
            if by_kernel { line.pid.zip(line.comm.clone()) } else { Some((peer.pid(), peer.comm())) }
        })?;
        let sum = u64::from(RECORDS * (BYTES + TLS_RECORD));
        expect_bytes(evidence.outcome, "requests out", &conversation.requests_out, sum)?;
        expect_bytes(evidence.outcome, "requests in", &conversation.requests_in, sum)
    }))
}

/// A connection whose client, or server, has a socket of MPTCP. Where only one has, it falls back to TCP.
fn multipath_pair(version: Version, client: bool, server: bool) -> Result<(Path, Pair)> {
    ensure!(fs::exists("/proc/sys/net/mptcp")?, Skipped("this kernel has no MPTCP"));
    let path = Path::private_loopback(version)?;
    let mut pair = Pair::prepare(&path, b"nl-client", b"nl-server")?;
    let listen = if server { "listen-multipath" } else { "listen" };
    let connect = if client { "connect-multipath" } else { "connect" };
    let address = pair.far.ip();
    pair.far.set_port(pair.server.ask(&format!("{listen} {address}"))?.try_into()?);
    let own = pair.client.ask(&format!("{connect} {address} {}", pair.far.port()))?;
    pair.near.set_port(own.try_into()?);
    pair.server.ask("accept")?;
    Ok((path, pair))
}

/// How often MPTCP itself sent bytes again in the scenarios of this run, or got some again. It does so if the reader is late by 0.2 s, as
/// on a machine that is too busy, and to ask whether a closed window has opened (a byte that the other end has, in `mptcp_sendmsg_frag`).
/// What comes after that is not followed (docs/accuracy.md).
static SENT_AGAIN: AtomicU64 = AtomicU64::new(0);

/// A scenario in whose namespace it did so is skipped.
fn expect_sent_once(path: &Path) -> Result<()> {
    let count = |name| path.near(|| counter("netstat", "MPTcpExt", name));
    let count = count("MPTCPRetrans")? + count("DuplicateData")?;
    SENT_AGAIN.fetch_add(count, Ordering::Relaxed);
    ensure!(count == 0, Skipped("MPTCP sent bytes again, after which it is not followed"));
    Ok(())
}

/// Round trips by MPTCP's own sockets have the lines of plain TCP's, and nothing of them seems to wait, or is counted as not followed.
fn multipath(version: Version, rounds: u32, client: bool, server: bool) -> Result<Check> {
    let (path, mut pair) = multipath_pair(version, client, server)?;
    pair.converse(rounds, LEN)?;
    expect_sent_once(&path)?;
    Ok(Box::new(move |evidence| {
        let conversation = check_multipath(evidence, &pair)?;
        conversation.expect_rounds(evidence.outcome, rounds as usize, LEN)?;
        expect_followed(evidence)
    }))
}

/// The lines of a connection of MPTCP's sockets are right; where reads and arrivals may meet, one in a hundred has no reader.
fn check_multipath(evidence: &Evidence<'_>, pair: &Pair) -> Result<Conversation> {
    let may_meet = kernel_version()? <= (6, 14);
    let is_unsure = |line: &Line| may_meet && is_read_as_more_comes(line);
    let who = |line: &Line| (!is_unsure(line)).then(|| oracle::owner(pair, line));
    let conversation = Conversation::check_all(evidence.outcome, &evidence.lines, pair, &who, &is_unsure)?;
    let unsure = evidence.lines.iter().filter(|line| is_unsure(line)).collect::<Vec<_>>();
    ensure!(
        unsure.len() * 100 <= evidence.lines.len(),
        evidence.outcome.fault(format_args!("{} have no reader", unsure.len()), unsure)
    );
    Ok(conversation)
}

/// Bytes that are read while a softirq adds to MPTCP's queue have no time and no reader (Linux up to 6.14). Of bytes that come one by one
/// that is seen on PREEMPT_RT, and where one of two processors is taken away meanwhile.
fn is_read_as_more_comes(line: &Line) -> bool {
    line.dir == Dir::In && line.stages[TCP_APP].is_none() && line.is("partial")
}

/// Some of many bytes wait in MPTCP's socket, at both ends. Each line has the one process that writes or reads there.
fn multipath_bulk() -> Result<Check> {
    const BYTES: u32 = 2_000_000;
    const CHUNK: u32 = 30_000;
    let (path, mut pair) = multipath_pair(Version::V4, true, true)?;
    pair.client.tell(&format!("write {BYTES}"))?;
    pair.server.ask(&format!("read {BYTES} {CHUNK} 1"))?;
    pair.client.answer()?;
    expect_sent_once(&path)?;
    Ok(Box::new(move |evidence| {
        let conversation = check_multipath(evidence, &pair)?;
        let sum = u64::from(BYTES);
        expect_bytes(evidence.outcome, "requests out", &conversation.requests_out, sum)?;
        expect_bytes(evidence.outcome, "requests in", &conversation.requests_in, sum)?;
        expect_followed(evidence)
    }))
}

/// Another process reads and writes MPTCP's socket, which it got as a message.
fn multipath_passed_on() -> Result<Check> {
    const ROUNDS: u32 = 20;
    let (path, mut pair) = multipath_pair(Version::V4, true, true)?;
    pair.server.tell(&format!("pass serve {ROUNDS} {LEN} 0"))?;
    pair.client.ask(&format!("request {ROUNDS} {LEN}"))?;
    let pid: u32 = pair.server.answer()?.try_into()?;
    ensure!(pid != pair.server.pid(), "the server served itself");
    expect_sent_once(&path)?;
    Ok(Box::new(move |evidence| {
        let conversation = Conversation::check_by(evidence.outcome, &evidence.lines, &pair, &|line| {
            let peer = oracle::sender_or_reader(&pair, line);
            let is_client = peer.pid() == pair.client.pid();
            Some(if is_client { (peer.pid(), peer.comm()) } else { (pid, CHILD.to_owned()) })
        })?;
        conversation.expect_rounds(evidence.outcome, ROUNDS as usize, LEN)?;
        expect_followed(evidence)
    }))
}

/// Nothing of MPTCP has no line for that reason, or waits: of all scenarios of this run, if it sent nothing again in one of them.
fn expect_followed(evidence: &Evidence<'_>) -> Result<()> {
    let again = SENT_AGAIN.load(Ordering::Relaxed);
    let (counted, waiting) = (evidence.outcome.figure("losses.mptcp")?, evidence.outcome.ledger()?.waiting);
    if (counted == 0 || again > 0) && waiting == 0 {
        return Ok(());
    }
    let all = evidence.outcome.lines()?;
    let came = |sent: &Line| {
        all.iter().any(|line| line.dir == Dir::In && line.seq == sent.seq && line.sport == sent.sport)
    };
    let missing = all.iter().filter(|line| line.dir == Dir::Out && !came(line));
    Err(evidence.outcome.fault(format_args!("{counted} packets of MPTCP, {waiting} wait"), missing))
}
