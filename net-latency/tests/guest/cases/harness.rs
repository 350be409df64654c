//! The traffic is what the cases take it for: shown without the tool.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};

use crate::{
    allowance::Allowance,
    net::{Path, Version},
    peers::{CLIENT, Pair, SERVER},
    tool::Backend,
    verdict::{Fault, judge, skipped_calls},
};

/// A check's name and what it does.
type Check = (&'static str, fn() -> Result<()>);

pub(crate) const CASES: &[Check] = &[
    ("every_path_carries_a_conversation", every_path_carries_a_conversation),
    ("netem_delays", netem_delays),
    ("small_segments_coalesce", small_segments_coalesce),
    ("a_small_window_limits", a_small_window_limits),
    ("a_peer_has_its_name", a_peer_has_its_name),
    ("only_skipped_calls_give_a_second_try", only_skipped_calls_give_a_second_try),
    ("what_may_be_missing", what_may_be_missing),
    ("lists_of_tests_name_tests", lists_name_tests),
];

fn lists_name_tests() -> Result<()> {
    let unknown = super::unknown_names();
    ensure!(unknown.is_empty(), "no tests: {unknown:?}");
    Ok(())
}

fn only_skipped_calls_give_a_second_try() -> Result<()> {
    let fault =
        |skipped_calls, unseen| Err(Fault { text: "too few lines".to_owned(), skipped_calls, unseen }.into());
    for (counted, unseen, expected) in
        [(None, 0, None), (None, 2, Some(2)), (Some(0), 0, None), (Some(0), 2, None), (Some(3), 0, Some(3))]
    {
        // Deep inside, as cases return it.
        let fault: Result<()> = fault(counted, unseen);
        let fault = fault.context("the second pair").context("over veth");
        let found = fault.err().as_ref().and_then(skipped_calls);
        ensure!(found == expected, "{counted:?} skipped calls, {unseen} packets not seen: {found:?}");
    }
    let again = || bail!("a second try of what was no run of the tool");
    let verdict = judge("none", Err(anyhow!("no fault of a run")), again);
    ensure!(verdict.is_err_and(|error| error.to_string() == "no fault of a run"), "another verdict");
    Ok(())
}

fn what_may_be_missing() -> Result<()> {
    for backend in [Backend::Fentry, Backend::Auto] {
        for skipped_calls in [None, Some(0)] {
            let allowance = Allowance::of(backend, skipped_calls);
            ensure!(
                allowance.allows(2000, 2000) && !allowance.allows(1999, 2000),
                "not exact: {allowance:?}"
            );
        }
        let skipped = Allowance::of(backend, Some(7));
        ensure!(skipped.most(2000) == 7 && skipped.most(66) == 7, "not as many as were skipped: {skipped:?}");
        ensure!(skipped.most(20) == 0, "a handful of packets is complete");
        ensure!(skipped.most_lines(20, 330) == 5, "much traffic in few lines, of which most must be there");
    }
    ensure!(Allowance::under_load(Backend::Auto, Some(7)).most(2000) == 7, "not as many as were skipped");
    ensure!(
        Allowance::under_load(Backend::Fentry, None).most(2000) == 0,
        "nothing says that one was skipped"
    );
    let kprobe = |skipped_calls| Allowance::of(Backend::Kprobe, skipped_calls);
    ensure!(kprobe(None).most(20) == 0, "a handful of packets is complete");
    ensure!(kprobe(None).most(363) == 20, "a skipped call takes with it what TCP has joined to its segment");
    ensure!(kprobe(None).most(30_000) <= 100, "too many may be missing");
    ensure!(kprobe(Some(0)).most(30_000) == 0 && kprobe(Some(2)).most(30_000) == 2, "more than were skipped");
    ensure!(!kprobe(None).allows(2001, 2000), "a packet too many");
    Ok(())
}

fn every_path_carries_a_conversation() -> Result<()> {
    for version in [Version::V4, Version::V6] {
        for path in [Path::loopback(version)?, Path::veth(version)?] {
            let mut pair = Pair::connect(&path)?;
            pair.converse(100, 200)?;
            for (peer, what) in [(&mut pair.client, "requests"), (&mut pair.server, "replies")] {
                let sent = peer.ask("data-segments-out-once")?;
                ensure!(sent == 100, "{sent} segments of 100 {what}");
            }
            pair.close()?;
        }
    }
    Ok(())
}

fn netem_delays() -> Result<()> {
    let path = Path::veth(Version::V4)?;
    path.delay(Duration::from_millis(20))?;
    let mut pair = Pair::connect(&path)?;
    let start = Instant::now();
    pair.converse(10, 200)?;
    let taken = start.elapsed();
    ensure!(taken >= Duration::from_millis(200), "10 rounds with a delay of 20 ms took only {taken:?}");
    Ok(())
}

fn small_segments_coalesce() -> Result<()> {
    for version in [Version::V4, Version::V6] {
        for path in [Path::private_loopback(version)?, Path::veth(version)?] {
            let mut pair = Pair::connect(&path)?;
            let written = pair.client.ask("write-small 300")?;
            let sent = pair.client.ask("data-segments-out-once")?;
            ensure!(sent == 300, "{sent} segments of 300 writes");
            let merged = path.far(coalesced)?;
            ensure!(merged >= 150, "only {merged} of 300 segments coalesced");
            ensure!(pair.server.ask(&format!("read {written} 65536 0"))? == written, "not all was read");
        }
    }
    Ok(())
}

fn a_small_window_limits() -> Result<()> {
    for version in [Version::V4, Version::V6] {
        let path = Path::loopback(version)?;
        let mut pair = Pair::prepare(&path, CLIENT, SERVER)?;
        pair.server.ask("receive-buffer 4096")?;
        pair.open(&path)?;
        pair.client.ask("send-buffer 1048576")?;
        pair.client.ask("write 262144")?;
        let within = pair.client.ask("data-segments-out")?;
        pair.server.ask("read 262144 4096 20")?;
        let after = pair.client.ask("data-segments-out")?;
        ensure!(within * 4 < after, "{within} segments within the call, {after} in all");
    }
    Ok(())
}

fn a_peer_has_its_name() -> Result<()> {
    let name = b"\x1b[31m\"x\"\n,\t\x07|";
    let path = Path::loopback(Version::V4)?;
    let mut pair = Pair::prepare(&path, name, SERVER)?;
    // Both have answered something then, and so have named themselves.
    pair.open(&path)?;
    for (peer, name) in [(&pair.client, &name[..]), (&pair.server, SERVER)] {
        let comm = fs::read(format!("/proc/{}/comm", peer.pid()))?;
        ensure!(comm.strip_suffix(b"\n") == Some(name), "named {comm:?}, not {name:?}");
    }
    Ok(())
}

/// How many segments TCP has appended to another on a receive queue in the calling thread's namespace.
pub(crate) fn coalesced() -> Result<u64> {
    let counters = fs::read_to_string("/proc/thread-self/net/netstat")?;
    let mut lines = counters.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, values) = (lines.next().context("no TcpExt")?, lines.next().context("no TcpExt values")?);
    let position = names.split(' ').position(|name| name == "TCPRcvCoalesce").context("no TCPRcvCoalesce")?;
    Ok(values.split(' ').nth(position).context("fewer values than names")?.parse()?)
}
