//! Distributions that the kernel side counts itself: every packet once, with the right group and time.

use std::{fs, path::Path as FilePath};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::Case;
use crate::{
    leftovers::Kernel,
    net::{Path, Version},
    peers::{CLIENT, Pair, Peer, SERVER},
    process::{PATIENCE, until},
    tool::{Backend, Launch, Outcome, Scratch, Sink, Tool},
};

pub(crate) const CASES: &[Case] = &[
    ("hist_by_stage_counts_every_packet", by_stage),
    ("hist_counts_no_parts_of_control_packets", control),
    ("hist_by_pid_counts_each_process_packets", by_pid),
    ("hist_shows_where_a_pause_was", pause),
    ("hist_by_comm", |backend| by_other(backend, "comm")),
    ("hist_by_process_and_not_by_thread", by_process),
    ("hist_by_connection_has_both_ends", by_connection),
    ("hist_by_port", by_port),
    ("hist_by_host", |backend| by_other(backend, "host")),
    ("hist_by_interface", |backend| by_other(backend, "interface")),
    ("hist_by_cgroup", |backend| by_other(backend, "cgroup")),
    ("hist_filters_and_balances", filtered),
    ("hist_of_intervals_adds_up", intervals),
    ("hist_counts_datagrams", datagrams),
    ("hist_says_what_found_no_room", no_room),
    ("hist_as_text_ends_by_duration", text),
];

const ROUNDS: u32 = 150;
const LEN: u32 = 200;

fn start(backend: Backend, arguments: &[&str]) -> Result<Tool> {
    let sink = Sink::Redirected(Scratch::new("hist"));
    Launch::new(backend).view("hist").args(arguments).sink(sink).start()
}

/// The objects that were printed.
fn pages(outcome: &Outcome) -> Result<Vec<Value>> {
    let pages = outcome.text()?.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>();
    pages.map_err(|error| outcome.fault(format_args!("not JSON: {error}"), []))
}

/// The only page, which is the whole run's, with its invariants checked.
fn page(outcome: &Outcome) -> Result<Value> {
    let mut pages = pages(outcome)?;
    ensure!(pages.len() == 1, outcome.fault(format_args!("{} pages", pages.len()), []));
    let page = pages.remove(0);
    ensure!(page["part"] == "run", outcome.fault("not the whole run", []));
    check(&page).map_err(|error| outcome.fault(format_args!("{error:#}\n{page}"), []))?;
    let shown = outcome.ledger()?.shown;
    ensure!(page["packets"] == shown, outcome.fault(format_args!("{shown} shown, but {page}"), []));
    Ok(page)
}

fn rows(page: &Value) -> Result<&Vec<Value>> {
    page["histograms"].as_array().context("no histograms")
}

/// Counts agree with their buckets, and each way's rows with each other.
fn check(page: &Value) -> Result<()> {
    let mut packets = 0;
    for row in rows(page)? {
        let buckets = row["buckets"].as_array().context("no buckets")?;
        let sum: u64 = buckets.iter().filter_map(|bucket| bucket[2].as_u64()).sum();
        ensure!(row["count"] == sum, "{sum} in the buckets of {row}");
        let times = ["p50_ns", "p90_ns", "p99_ns", "p999_ns", "max_ns"].map(|name| row[name].as_u64());
        ensure!(times.is_sorted(), "percentiles out of order: {row}");
        if row["stage"] == "total_ns" {
            packets += sum + row["unknown"].as_u64().context("no number of unknown")?;
        }
    }
    ensure!(page["packets"] == packets, "{packets} packets in the totals");
    Ok(())
}

/// Count and unknown of the row of `stage`, of the groups that `is_group` accepts.
fn count(page: &Value, is_group: impl Fn(&Value) -> bool, dir: &str, stage: &str) -> Result<(u64, u64)> {
    let of = |row: &&Value| is_group(&row["group"]) && row["dir"] == dir && row["stage"] == stage;
    let number = |row: &Value, name: &str| row[name].as_u64().unwrap_or(0);
    let found = rows(page)?.iter().filter(of);
    Ok(found.fold((0, 0), |sum, row| (sum.0 + number(row, "count"), sum.1 + number(row, "unknown"))))
}

const STAGES_IN: [&str; 4] = ["drv_ip_ns", "ip_tcp_ns", "tcp_app_ns", "total_ns"];
const STAGES_OUT: [&str; 4] = ["app_tcp_ns", "tcp_ip_ns", "ip_drv_ns", "total_ns"];

/// That each of these rows has N known times, and no other.
fn expect(outcome: &Outcome, page: &Value, is_group: impl Fn(&Value) -> bool, each: u64) -> Result<()> {
    for (dir, stages) in [("in", STAGES_IN), ("out", STAGES_OUT)] {
        for stage in stages {
            let (known, unknown) = count(page, &is_group, dir, stage)?;
            outcome.expect_all(format_args!("times of {dir} {stage} in {page}"), known, each, [])?;
            outcome.expect_all("without unknown times", each.saturating_sub(unknown), each, [])?;
        }
    }
    Ok(())
}

fn by_stage(backend: Backend) -> Result<()> {
    let before = Kernel::now()?;
    let path = Path::private_loopback(Version::V4)?;
    let mut pair = Pair::prepare(&path, CLIENT, SERVER)?;
    let port = pair.far.port().to_string();
    let tool = start(backend, &["--port", &port])?;
    pair.open(&path)?;
    pair.converse(ROUNDS, LEN)?;
    let outcome = tool.stop()?;
    let page = page(&outcome)?;
    expect(&outcome, &page, Value::is_null, (ROUNDS * 2).into())?;
    before.expect_restored()
}

/// What no application reads has no time in a socket to split, be it counted among all or by port.
fn control(backend: Backend) -> Result<()> {
    let path = Path::private_loopback(Version::V4)?;
    for by in ["stage", "port"] {
        let mut pair = Pair::prepare(&path, CLIENT, SERVER)?;
        let port = pair.far.port().to_string();
        let tool = start(backend, &["--by", by, "--stages", "fine", "--control", "--port", &port])?;
        pair.open(&path)?;
        pair.converse(ROUNDS, LEN)?;
        let outcome = tool.stop()?;
        // Not all of its packets have a total.
        let page = pages(&outcome)?.pop().context("no page")?;
        let fault = |what: &str| outcome.fault(format_args!("{what}, by {by}: {page}"), []);
        let read = count(&page, |_| true, "in", "tcp_app_ns")?;
        outcome.expect_all("packets read", read.0, (ROUNDS * 2).into(), [])?;
        let taken = count(&page, |_| true, "in", "ip_tcp_ns")?;
        ensure!(taken.0 > read.0, fault("no control packet came"));
        for part in ["tcp_gap_ns", "tcp_wait_ns", "tcp_cpu_ns", "tcp_copy_ns"] {
            let (known, unknown) = count(&page, |_| true, "in", part)?;
            ensure!(known + unknown == read.0 + read.1, fault(&format!("{known} + {unknown} {part}")));
        }
    }
    Ok(())
}

/// Two processes, and each has all of its own packets and no other's.
fn by_pid(backend: Backend) -> Result<()> {
    let path = Path::private_loopback(Version::V6)?;
    let mut pair = Pair::prepare(&path, CLIENT, SERVER)?;
    let pids = [&pair.client, &pair.server].map(|peer| (peer.pid(), peer.comm()));
    let port = pair.far.port().to_string();
    let tool = start(backend, &["--by", "pid", "--port", &port])?;
    pair.open(&path)?;
    pair.converse(ROUNDS, LEN)?;
    let outcome = tool.stop()?;
    let page = page(&outcome)?;
    for (pid, comm) in pids {
        let is_named = |group: &Value| group["process"] == comm.as_str() && group["comm"] == comm.as_str();
        let is_its = |group: &Value| group["pid"] == pid && is_named(group);
        expect(&outcome, &page, is_its, ROUNDS.into())?;
    }
    let packets = page["packets"].as_u64().context("no number of packets")?;
    outcome.expect_all("packets of both", packets, (ROUNDS * 4).into(), [])
}

/// Packets that are read 100 ms late spent these in the socket: that process' last stage, and no other's.
fn pause(backend: Backend) -> Result<()> {
    /// Longer than a busy machine takes the emulated CPU away.
    const PAUSE_NS: u64 = 100_000_000;
    const LATE: u64 = 5;
    const FIRST: u32 = 1;
    let path = Path::private_loopback(Version::V4)?;
    let mut pair = Pair::prepare(&path, CLIENT, SERVER)?;
    let (client, server) = (pair.client.pid(), pair.server.pid());
    let port = pair.far.port().to_string();
    let tool = start(backend, &["--by", "pid", "--port", &port, "--stages", "fine"])?;
    pair.open(&path)?;
    // A thread's first call to read shows that it reads: how it waited until then is not known.
    pair.converse(FIRST, LEN)?;
    pair.client.tell(&format!("request {LATE} {LEN}"))?;
    // Before each request is read the server sleeps.
    pair.server.ask(&format!("serve {LATE} {LEN} 100"))?;
    pair.client.answer()?;
    // Before, the last answer is in flight, and counted nowhere.
    pair.server.ask("acked")?;
    let outcome = tool.stop()?;
    let page = page(&outcome)?;
    let late = |pid: u32, stage: &str| -> Result<u64> {
        let of = |row: &&Value| row["group"]["pid"] == pid && row["stage"] == stage;
        let buckets = rows(&page)?.iter().filter(of).flat_map(|row| row["buckets"].as_array()).flatten();
        // The sleep begins before the request comes, so that it may have waited a bit less.
        let late = buckets.filter(|bucket| bucket[0].as_u64().is_some_and(|start| start > PAUSE_NS / 2));
        Ok(late.filter_map(|bucket| bucket[2].as_u64()).sum())
    };
    for stage in ["tcp_app_ns", "tcp_wait_ns"] {
        let found = late(server, stage)?;
        let fault = format!("{found} requests were late in {stage}, not {LATE}\n{page}");
        ensure!(found == LATE, outcome.fault(fault, []));
    }
    // Each request was acknowledged with its answer at the latest.
    let fine = [
        (server, "in", "tcp_gap_ns"),
        (server, "in", "tcp_cpu_ns"),
        (server, "in", "tcp_copy_ns"),
        (client, "out", "qdisc_ns"),
        (client, "out", "driver_ns"),
        (client, "out", "net_ns"),
    ];
    for (pid, dir, stage) in fine {
        let (known, unknown) = count(&page, |group| group["pid"] == pid, dir, stage)?;
        let all = LATE + u64::from(FIRST);
        ensure!(known + unknown == all, outcome.fault(format_args!("{stage} of {pid}\n{page}"), []));
        outcome.expect_all(format_args!("times of {stage}"), known, LATE.max(known), [])?;
    }
    let rest = [
        (server, "drv_ip_ns"),
        (server, "ip_tcp_ns"),
        (server, "tcp_gap_ns"),
        (server, "tcp_cpu_ns"),
        (server, "tcp_copy_ns"),
        (client, "qdisc_ns"),
        (client, "driver_ns"),
        (server, "app_tcp_ns"),
        (client, "app_tcp_ns"),
        (client, "drv_ip_ns"),
    ];
    for (pid, stage) in rest {
        let found = late(pid, stage)?;
        ensure!(found == 0, outcome.fault(format_args!("{found} late in {stage} of {pid}\n{page}"), []));
    }
    Ok(())
}

/// The other groups have names of their own, and all packets.
fn by_other(backend: Backend, by: &str) -> Result<()> {
    const FEW: u32 = 20;
    let path = Path::loopback(Version::V4)?;
    let mut pair = Pair::prepare(&path, CLIENT, SERVER)?;
    let port = pair.far.port().to_string();
    for (peer, cgroup) in [(&pair.client, "client"), (&pair.server, "server")] {
        let place = FilePath::new("/sys/fs/cgroup/nl-hist").join(cgroup);
        fs::create_dir_all(&place)?;
        fs::write(place.join("cgroup.procs"), peer.pid().to_string())?;
    }
    let tool = start(backend, &["--by", by, "--port", &port])?;
    pair.open(&path)?;
    pair.converse(FEW, LEN)?;
    let outcome = tool.stop()?;
    let page = page(&outcome)?;
    ensure!(page["by"] == by, outcome.fault("by another word", []));
    ensure!(page["packets"] == FEW * 4, outcome.fault(format_args!("others' packets: {page}"), []));
    let each = u64::from(FEW);
    match by {
        "comm" => {
            for peer in [&pair.client, &pair.server] {
                expect(&outcome, &page, |group| group["comm"] == peer.comm().as_str(), each)?;
            }
        }
        "host" => expect(&outcome, &page, |group| group["host"] == "127.0.0.1", each * 2)?,
        "interface" => {
            let is_loopback = |group: &Value| group["ifname"] == "lo" && group["ifindex"] == 1;
            expect(&outcome, &page, is_loopback, each * 2)?;
        }
        _ => {
            for cgroup in ["/nl-hist/client", "/nl-hist/server"] {
                let is_its = |group: &Value| group["cgroup"] == cgroup;
                expect(&outcome, &page, is_its, each)?;
            }
        }
    }
    Ok(())
}

/// Each end of a connection is one group, and two connections to one port are two.
fn by_connection(backend: Backend) -> Result<()> {
    const FEW: u32 = 10;
    for version in [Version::V4, Version::V6] {
        let path = Path::private_loopback(version)?;
        let (mut first, mut second) = (Pair::connect(&path)?, Pair::connect(&path)?);
        let ports = [&first, &second].map(|pair| pair.far.port().to_string());
        let tool = start(backend, &["--by", "connection", "--port", &ports[0], "--port", &ports[1]])?;
        first.converse(FEW, LEN)?;
        second.converse(2 * FEW, LEN)?;
        let outcome = tool.stop()?;
        let page = page(&outcome)?;
        ensure!(page["by"] == "connection", outcome.fault("by another word", []));
        ensure!(page["packets"] == FEW * 12, outcome.fault(format_args!("others' packets: {page}"), []));
        for (pair, packets) in [(&first, FEW), (&second, 2 * FEW)] {
            for (local, remote) in [(pair.near, pair.far), (pair.far, pair.near)] {
                let is_its = |group: &Value| {
                    group["local"] == local.to_string().as_str()
                        && group["remote"] == remote.to_string().as_str()
                };
                expect(&outcome, &page, is_its, packets.into())?;
            }
        }
    }
    Ok(())
}

/// A process is one group, whatever its threads are called.
fn by_process(backend: Backend) -> Result<()> {
    const FEW: u32 = 10;
    let path = Path::private_loopback(Version::V4)?;
    let mut pair = Pair::prepare(&path, CLIENT, SERVER)?;
    let port = pair.far.port().to_string();
    let tool = start(backend, &["--by", "process", "--port", &port])?;
    pair.open(&path)?;
    for thread in ["pool-1", "pool-2"] {
        pair.server.tell(&format!("named {thread} serve {FEW} {LEN} 0"))?;
        pair.client.ask(&format!("named {thread} request {FEW} {LEN}"))?;
        pair.server.answer()?;
    }
    let outcome = tool.stop()?;
    let page = page(&outcome)?;
    ensure!(page["by"] == "process", outcome.fault("by another word", []));
    ensure!(page["packets"] == FEW * 8, outcome.fault(format_args!("others' packets: {page}"), []));
    for peer in [&pair.client, &pair.server] {
        expect(&outcome, &page, |group| group["process"] == peer.comm().as_str(), u64::from(FEW) * 2)?;
    }
    Ok(())
}

/// A client counts for the server's port. Of two ephemeral ports it is unknown which is the server's.
fn by_port(backend: Backend) -> Result<()> {
    const FEW: u32 = 10;
    const SERVICE: u16 = 8_077;
    let path = Path::loopback(Version::V4)?;
    let mut pair = Pair::prepare(&path, CLIENT, SERVER)?;
    let (mut client, mut server) = (Peer::spawn(CLIENT)?, Peer::spawn(SERVER)?);
    server.ask(&format!("listen 127.0.0.1 {SERVICE}"))?;
    let (service, port) = (SERVICE.to_string(), pair.far.port().to_string());
    let tool = start(backend, &["--by", "port", "--port", &service, "--port", &port])?;
    pair.open(&path)?;
    pair.converse(FEW, LEN)?;
    client.ask(&format!("connect 127.0.0.1 {SERVICE}"))?;
    server.ask("accept")?;
    server.tell(&format!("serve {FEW} {LEN} 0"))?;
    client.ask(&format!("request {FEW} {LEN}"))?;
    server.answer()?;
    let outcome = tool.stop()?;
    let page = page(&outcome)?;
    ensure!(page["packets"] == FEW * 8, outcome.fault(format_args!("others' packets: {page}"), []));
    for (port, packets) in [(pair.near.port(), FEW), (pair.far.port(), FEW), (SERVICE, 2 * FEW)] {
        expect(&outcome, &page, |group| group["port"] == port, packets.into())?;
    }
    Ok(())
}

/// A filter holds, and what it excludes has its place in the ledger.
fn filtered(backend: Backend) -> Result<()> {
    let path = Path::private_loopback(Version::V4)?;
    let (mut first, mut second) = (Pair::connect(&path)?, Pair::connect(&path)?);
    let pid = first.client.pid();
    let tool = start(backend, &["--by", "pid", "--pid", &pid.to_string()])?;
    first.converse(50, LEN)?;
    second.converse(30, LEN)?;
    let outcome = tool.stop()?;
    let page = page(&outcome)?;
    expect(&outcome, &page, |group| group["pid"] == pid, 50)?;
    let ledger = outcome.ledger()?;
    for (what, found, packets) in [
        ("packets seen", ledger.seen, 80 * 4),
        ("packets shown", ledger.shown, 100),
        ("packets filtered", ledger.filtered, 80 * 4 - 100),
        ("packets that are either", ledger.shown + ledger.filtered, 80 * 4),
    ] {
        outcome.expect_all(what, found, packets, [])?;
    }
    Ok(())
}

/// Intervals hold what came in them, and together all of it.
fn intervals(backend: Backend) -> Result<()> {
    let path = Path::private_loopback(Version::V4)?;
    let mut pair = Pair::prepare(&path, CLIENT, SERVER)?;
    let port = pair.far.port().to_string();
    let tool = start(backend, &["--by", "comm", "--interval", "150ms", "--port", &port])?;
    pair.open(&path)?;
    let pages_so_far = || Ok::<_, anyhow::Error>(fs::read_to_string(tool.file()?)?.lines().count());
    for _ in 0..3 {
        pair.converse(20, LEN)?;
        // The first page from now on may be of an interval that began before.
        let wanted = pages_so_far()? + 2;
        until(PATIENCE, || Ok(pages_so_far()? >= wanted))?;
    }
    let outcome = tool.stop()?;
    let pages = pages(&outcome)?;
    let (whole, intervals) = pages.split_last().context("nothing was printed")?;
    check(whole)?;
    let packets = whole["packets"].as_u64().context("no number of packets")?;
    ensure!(whole["part"] == "run", outcome.fault(format_args!("{whole}"), []));
    outcome.expect_all("packets", packets, 20 * 3 * 4, [])?;
    ensure!(outcome.ledger()?.shown == packets, outcome.fault("the ledger has others", []));
    ensure!(
        intervals.len() >= 3 && intervals.iter().all(|page| page["part"] == "interval"),
        outcome.fault(format_args!("{} intervals", intervals.len()), [])
    );
    let sum: u64 = intervals.iter().filter_map(|page| page["packets"].as_u64()).sum();
    ensure!(sum == packets, outcome.fault(format_args!("{sum} packets in the intervals"), []));
    let busy = intervals.iter().filter(|page| page["packets"] != 0).count();
    ensure!(busy >= 2, outcome.fault("all in one interval, so this shows nothing", []));
    Ok(())
}

fn datagrams(backend: Backend) -> Result<()> {
    let (mut sender, mut receiver) = (Peer::spawn(CLIENT)?, Peer::spawn(SERVER)?);
    sender.ask("udp bind 127.0.0.1")?;
    let port = receiver.ask("udp bind 127.0.0.1")?;
    let tool = start(backend, &["--by", "pid", "--port", &port.to_string()])?;
    sender.ask(&format!("udp send-to 127.0.0.1:{port} 30 80"))?;
    receiver.ask("udp receive 30")?;
    let outcome = tool.stop()?;
    let page = page(&outcome)?;
    let ends = [
        (receiver.pid(), "in", ["drv_ip_ns", "ip_udp_ns", "udp_app_ns", "total_ns"]),
        (sender.pid(), "out", ["app_udp_ns", "udp_ip_ns", "ip_drv_ns", "total_ns"]),
    ];
    for (pid, dir, stages) in ends {
        for stage in stages {
            let found = count(&page, |group| group["pid"] == pid, dir, stage)?;
            ensure!(found == (30, 0), outcome.fault(format_args!("{dir} {stage}: {found:?}\n{page}"), []));
        }
    }
    ensure!(page["packets"] == 60, outcome.fault(format_args!("others' packets: {page}"), []));
    Ok(())
}

/// More groups than there is room for: what found none is counted as lost.
fn no_room(backend: Backend) -> Result<()> {
    const PORTS: u64 = 400;
    let (mut sender, mut receiver) = (Peer::spawn(CLIENT)?, Peer::spawn(SERVER)?);
    let port = receiver.ask("udp bind 127.0.0.1")?;
    let arguments = ["--by", "port", "--buckets", "1K", "--direction", "out", "--proto", "udp"];
    let tool = start(backend, &[&arguments[..], &["--port", &port.to_string()]].concat())?;
    for _ in 0..PORTS {
        sender.ask("udp bind 127.0.0.1")?;
        sender.ask(&format!("udp send-to 127.0.0.1:{port} 1 10"))?;
    }
    let outcome = tool.stop()?;
    let page = page(&outcome)?;
    let lost = outcome.lost()?;
    let shown = page["packets"].as_u64().context("no number of packets")?;
    ensure!(lost > 0 && shown > 0, outcome.fault("all or nothing found room, so this shows nothing", []));
    outcome.expect_all("packets shown or lost", shown + lost, PORTS, [])?;
    ensure!(outcome.figure("losses.bucket_table_full")? == lost, outcome.fault("lost otherwise", []));
    ensure!(page["uncounted"] == lost, outcome.fault(format_args!("{lost} lost, but {page}"), []));
    // The ten slowest, and the rest together.
    let others = rows(&page)?.iter().find_map(|row| row["group"]["others"].as_u64());
    ensure!(others.is_some_and(|others| others > 100), outcome.fault(format_args!("{others:?} others"), []));
    Ok(())
}

fn text(backend: Backend) -> Result<()> {
    let before = Kernel::now()?;
    let path = Path::loopback(Version::V4)?;
    let mut pair = Pair::connect(&path)?;
    let sink = Sink::Redirected(Scratch::new("hist"));
    let arguments = ["--duration", "1s", "--by", "pid"];
    let tool = Launch::new(backend).view("hist").text().args(&arguments).sink(sink).start()?;
    pair.converse(20, LEN)?;
    let outcome = tool.wait()?;
    outcome.expect_code(0)?;
    let text = outcome.text()?;
    for peer in [&pair.client, &pair.server] {
        let name = format!("{}, PID {}", peer.comm(), peer.pid());
        ensure!(text.contains(&name), outcome.fault(format_args!("no {name:?} in\n{text}"), []));
    }
    ensure!(text.contains(", whole run: ") && text.contains("@@@@|"), outcome.fault(text, []));
    ensure!(text.lines().all(|line| line.chars().count() <= 80), outcome.fault(text, []));
    // A signal ends it as well.
    let tool = start(backend, &["--interval", "10s"])?;
    tool.signal(Signal::SIGTERM)?;
    let outcome = tool.wait()?;
    outcome.expect_code(0)?;
    ensure!(pages(&outcome)?.len() == 1, outcome.fault("not one page", []));
    before.expect_restored()
}
