//! Datagrams that die before a device or a reader has them: they have no line, and lend nothing to the packet that gets their skb next.
//!
//! Each scenario lets some die and has the same thread send something else 100 ms later, on the same processor: the kernel's allocator
//! gives it the skb that was freed last. A time that is longer than sending and taking it took is then a dead datagram's.

use std::{
    fs,
    net::SocketAddr,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

use super::{Check, Evidence, Scenario, Theme};
use crate::{
    lines::{Dir, Line, Proto},
    net::{Path, Refused, Version, drop_sent},
    oracle::expect_datagrams,
    peers::{CLIENT, Peer, SERVER},
    skips::skipping,
    verdict::Skipped,
};

pub(crate) const THEME: Theme = Theme {
    name: "dropped",
    arguments: &[],
    scenarios: &[
        Scenario { name: "refused_then_ping_v4", play: || refused(Version::V4, "ping") },
        Scenario { name: "refused_then_ping_v6", play: || refused(Version::V6, "ping") },
        Scenario { name: "refused_then_ping_socket", play: || refused(Version::V4, "ping-socket") },
        Scenario { name: "refused_then_lite", play: || refused(Version::V4, "lite") },
        Scenario { name: "refused_then_raw", play: || refused(Version::V4, "raw") },
        Scenario { name: "refused_by_cgroup", play: refused_by_cgroup },
        Scenario { name: "without_neighbour", play: without_neighbour },
        Scenario { name: "kept_here", play: kept_here },
        Scenario { name: "lite_after_no_socket_v4", play: || lite(Version::V4, Death::NoSocket) },
        Scenario { name: "lite_after_no_socket_v6", play: || lite(Version::V6, Death::NoSocket) },
        Scenario { name: "lite_after_wrong_checksum", play: || lite(Version::V4, Death::WrongChecksum) },
        Scenario { name: "lite_after_full_queue", play: || lite(Version::V4, Death::FullQueue) },
        Scenario { name: "lite_after_socket_filter", play: || lite(Version::V4, Death::SocketFilter) },
    ],
};

/// Where nothing of TCP is hooked, its segments are unknown skbs.
pub(crate) const WITHOUT_TCP: Theme = Theme {
    name: "dropped_without_tcp",
    arguments: &["--proto", "udp"],
    scenarios: &[Scenario { name: "refused_then_reset", play: || refused(Version::V4, "reset") }],
};

/// Nor are those known of connections that a filter excludes.
pub(crate) const OF_PORT: Theme = Theme {
    name: "dropped_of_port",
    // `FROM`.
    arguments: &["--port", "47001"],
    scenarios: &[
        Scenario { name: "refused_then_reset", play: || refused(Version::V4, "reset") },
        Scenario { name: "refused_then_ping", play: || refused(Version::V4, "ping") },
    ],
};

/// With hooks that can be skipped, so that what dies does so unseen.
pub(crate) const UNSEEN: Theme = Theme {
    name: "dropped_unseen",
    arguments: &[],
    scenarios: &[
        Scenario { name: "datagram_after_no_socket", play: datagram_after_no_socket },
        Scenario { name: "taken_unseen_then_drop", play: taken_unseen_then_drop },
    ],
};

/// How many die where each takes [`GAP`].
const ROUNDS: u64 = 20;
/// Where it is about another way to die.
const FEW: u64 = 8;
const LEN: u32 = 60;
/// Between a datagram that dies and what follows.
const GAP: Duration = Duration::from_millis(100);
/// The port of the thread whose datagrams die.
const FROM: u16 = 47_001;
/// Where they go.
const DEAD: u16 = 47_002;
/// Nothing is there.
const CLOSED: u16 = 47_003;
/// Where a datagram that stays on this machine goes.
const GROUP: &str = "239.77.0.9";

/// Two ends of a link. Datagrams from here to one port die, those to another are taken.
struct Stage {
    path: Path,
    sender: Peer,
    receiver: Peer,
    from: SocketAddr,
    dead: SocketAddr,
    live: SocketAddr,
    /// How long the sending and taking of each that lived took.
    lives: Vec<Duration>,
}

impl Stage {
    fn new(version: Version) -> Result<Self> {
        let path = Path::veth(version)?;
        let (near, far) = path.addresses();
        let mut sender = path.near(|| Peer::spawn(CLIENT))?;
        let mut receiver = path.far(|| Peer::spawn(SERVER))?;
        // One processor, one allocator.
        sender.ask("pin 0")?;
        let live = SocketAddr::new(far, receiver.ask(&format!("udp bind {far}"))?.try_into()?);
        let (from, dead) = (SocketAddr::new(near, FROM), SocketAddr::new(far, DEAD));
        Ok(Self { path, sender, receiver, from, dead, live, lives: Vec::new() })
    }

    /// What follows each datagram that dies, if the kernel knows the protocol.
    fn then(&mut self, next: &str) -> Result<()> {
        let is_known = self.sender.ask(&format!("dying next {next}"))? == 1;
        ensure!(is_known, Skipped("this kernel doesn't know the protocol"));
        Ok(())
    }

    /// Opens the socket whose datagrams die.
    fn open(&mut self) -> Result<()> {
        self.sender.ask(&format!("udp bind {} {}", self.from.ip(), self.from.port()))?;
        Ok(())
    }

    /// Lets them die; `refused` says whether the calls fail.
    fn die(&mut self, rounds: u64, gap: Duration, refused: bool) -> Result<()> {
        let dead = self.dead;
        let failed = self.sender.ask(&format!("dying send {dead} {rounds} {LEN} {}", gap.as_millis()))?;
        let expected = if refused { rounds } else { 0 };
        ensure!(
            failed == expected,
            "{failed} of {rounds} calls were refused: the datagrams don't die as they should"
        );
        Ok(())
    }

    /// The next datagram of that thread that lives has its line.
    fn live(&mut self) -> Result<()> {
        let since = Instant::now();
        self.sender.ask(&format!("udp send-to {} 1 {LEN}", self.live))?;
        self.receiver.ask("udp receive 1")?;
        self.lives.push(since.elapsed());
        Ok(())
    }

    /// None of the dead has a line, the one that lives has a right one, and the ledger says where the dead are.
    fn expect(self, rounds: u64) -> Check {
        Box::new(move |evidence| {
            // Keeps the link until the lines are there.
            let _path = &self.path;
            let lines = out(evidence, self.from, self.dead);
            ensure!(
                lines.is_empty(),
                evidence.outcome.fault(
                    format_args!("{} lines of {rounds} datagrams that no device got", lines.len()),
                    lines
                )
            );
            let lines = out(evidence, self.from, self.live);
            expect_datagrams(evidence.outcome, "that live", &lines, &self.sender, self.lives.len(), LEN)?;
            expect_own_times(evidence, &lines, &self.lives)?;
            let dead = evidence.outcome.figure("losses.never_queued")?;
            ensure!(dead >= rounds, evidence.outcome.fault(format_args!("{dead} died on their way out"), []));
            let overtaken = evidence.outcome.figure("losses.overtaken")?;
            ensure!(
                overtaken <= evidence.outcome.allowance().most(rounds),
                evidence.outcome.fault(format_args!("{overtaken} ended where no hook saw it"), [])
            );
            evidence.outcome.ledger().map(drop)
        })
    }
}

/// Datagrams that went out.
fn out<'a>(evidence: &'a Evidence<'_>, from: SocketAddr, to: SocketAddr) -> Vec<&'a Line> {
    let is_its = |line: &&Line| line.dir == Dir::Out && line.proto == Proto::Udp && line.is_between(from, to);
    evidence.lines.iter().filter(is_its).collect()
}

/// What came in for `to`.
fn into<'a>(evidence: &'a Evidence<'_>, to: SocketAddr) -> Vec<&'a Line> {
    let is_its = |line: &&Line| line.dir == Dir::In && (line.daddr, line.dport) == (to.ip(), to.port());
    evidence.lines.iter().filter(is_its).collect()
}

/// No line has a time that only a datagram before it can have, which died [`GAP`] before: all of them took as long as whoever sent and
/// took them had to wait at most.
fn expect_own_times(evidence: &Evidence<'_>, lines: &[&Line], took: &[Duration]) -> Result<()> {
    let longest = took.iter().max().context("no datagram lived")?.as_nanos();
    let is_long = |line: &&&Line| {
        line.stages.iter().chain([&line.total]).flatten().any(|time| u128::from(*time) > longest)
    };
    let long: Vec<_> = lines.iter().filter(is_long).copied().collect();
    let what =
        || format!("{} of {} lines have the times of a datagram that died before", long.len(), lines.len());
    ensure!(long.is_empty(), evidence.outcome.fault(what(), long.clone()));
    Ok(())
}

/// Netfilter drops a sent packet (`nf_hook_slow`, `NF_DROP`), for which `ip_send_skb` hands the sender `EPERM`. The next packet has that
/// skb, a socket that is not TCP's, and never was in UDP's hook: an ICMP echo, a datagram of UDP-Lite, one that a program made by itself
/// (`raw_send_hdrinc`), or, where TCP isn't followed, the reset of a connection (`tcp_send_active_reset`).
fn refused(version: Version, next: &str) -> Result<Check> {
    let mut stage = Stage::new(version)?;
    let (near, far) = stage.path.addresses();
    let next = match next {
        "ping-socket" => {
            stage.path.near(|| Ok(fs::write("/proc/sys/net/ipv4/ping_group_range", "0 0")?))?;
            format!("{next} {far}")
        }
        "lite" => format!("{next} {}", SocketAddr::new(far, CLOSED)),
        "raw" => format!("{next} {} {}", SocketAddr::new(near, CLOSED), SocketAddr::new(far, CLOSED)),
        "reset" => {
            let port = stage.receiver.ask(&format!("listen {far}"))?;
            format!("{next} {} {ROUNDS}", SocketAddr::new(far, port.try_into()?))
        }
        _ => format!("{next} {far}"),
    };
    stage.then(&next)?;
    stage.open()?;
    stage.path.near(|| drop_sent(DEAD))?;
    stage.die(ROUNDS, GAP, true)?;
    stage.live()?;
    Ok(stage.expect(ROUNDS))
}

/// A cgroup's program drops it, behind netfilter and IP's hook (`ip_finish_output`): systemd's `IPAddressDeny=`.
fn refused_by_cgroup() -> Result<Check> {
    let mut stage = Stage::new(Version::V4)?;
    let far = stage.path.addresses().1;
    // Pings are still allowed, by a socket of the cgroup before.
    stage.then(&format!("ping {far}"))?;
    let cgroup = Refused::new("nl-refused")?;
    cgroup.take(stage.sender.pid())?;
    stage.open()?;
    stage.die(FEW, GAP, true)?;
    // A socket of a cgroup that may send: the process goes back, and its port is free again.
    fs::write("/sys/fs/cgroup/cgroup.procs", stage.sender.pid().to_string())?;
    stage.sender.ask("udp close")?;
    stage.open()?;
    stage.live()?;
    Ok(stage.expect(FEW))
}

/// Its neighbour doesn't answer: it waits below IP, and is dropped by a timer (`neigh_invalidate`, `arp_error_report`).
fn without_neighbour() -> Result<Check> {
    let mut stage = Stage::new(Version::V4)?;
    let near = stage.path.addresses().0;
    stage.then(&format!("ping {near}"))?;
    stage.open()?;
    // The neighbour is known before.
    stage.live()?;
    stage.path.lose_neighbour()?;
    stage.die(FEW, 2 * GAP, false)?;
    stage.path.tell_neighbour()?;
    stage.live()?;
    Ok(stage.expect(FEW))
}

/// A multicast datagram that may leave no machine (TTL 0), which is what `IP_MULTICAST_TTL` of 0 is for: `ip_mc_output` frees it.
fn kept_here() -> Result<Check> {
    let mut stage = Stage::new(Version::V4)?;
    let (near, far) = stage.path.addresses();
    stage.then(&format!("ping {far}"))?;
    stage.open()?;
    stage.sender.ask(&format!("dying keep-here {GROUP} {near}"))?;
    stage.dead = SocketAddr::new(GROUP.parse()?, DEAD);
    stage.die(FEW, GAP, false)?;
    stage.live()?;
    Ok(stage.expect(FEW))
}

/// Of what a datagram dies on arrival.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Death {
    /// `__udp4_lib_rcv` finds none.
    NoSocket,
    /// `__udp4_lib_rcv` finds a wrong checksum (`udp4_csum_init`).
    WrongChecksum,
    /// `__udp_enqueue_schedule_skb`.
    FullQueue,
    /// `udp_queue_rcv_one_skb`, by `SO_ATTACH_FILTER`.
    SocketFilter,
}

/// A datagram dies on arrival; 100 ms later one of UDP-Lite has its skb, which gets to a socket's queue by the function that UDP has
/// hooked, and by no other one.
fn lite(version: Version, death: Death) -> Result<Check> {
    let path = Path::private_loopback(version)?;
    let address = path.addresses().1;
    let mut peer = path.near(|| Peer::spawn(CLIENT))?;
    let mut other = path.near(|| Peer::spawn(SERVER))?;
    peer.ask("pin 0")?;
    let port = peer.ask(&format!("dying lite {address}"))?;
    ensure!(port != 0, Skipped("this kernel has no UDP-Lite"));
    let to = SocketAddr::new(address, port.try_into()?);
    let dead = match death {
        Death::NoSocket => CLOSED,
        Death::WrongChecksum | Death::FullQueue | Death::SocketFilter => {
            other.ask(&format!("udp bind {address}"))?.try_into()?
        }
    };
    let dead = SocketAddr::new(address, dead);
    match death {
        Death::FullQueue => {
            other.ask("udp receive-buffer 4096")?;
            peer.ask(&format!("udp bind {address}"))?;
            peer.ask(&format!("udp send-to {dead} 20 1000"))?;
        }
        Death::SocketFilter => drop(other.ask("udp refuse")?),
        Death::NoSocket | Death::WrongChecksum => {}
    }
    let what = match death {
        Death::WrongChecksum => "wrong-checksum",
        Death::NoSocket => "answered",
        Death::FullQueue | Death::SocketFilter => "plain",
    };
    let rounds = FEW;
    let took = peer.ask(&format!("dying arrive {dead} {what} {rounds} {}", GAP.as_millis()))?;
    Ok(Box::new(move |evidence| {
        let _ends = (&path, &peer, &other);
        let lines = into(evidence, to);
        ensure!(
            lines.len() <= usize::try_from(rounds)?,
            evidence.outcome.fault("more lines than datagrams", lines)
        );
        expect_own_times(evidence, &lines, &[Duration::from_nanos(took)])
    }))
}

/// A datagram whose arrival at UDP no hook saw has not the stamps of one that died on arrival before it (`__udp4_lib_rcv`).
fn datagram_after_no_socket() -> Result<Check> {
    let path = Path::private_loopback(Version::V4)?;
    let address = path.addresses().1;
    let mut sender = path.near(|| Peer::spawn(CLIENT))?;
    let mut receiver = path.near(|| Peer::spawn(SERVER))?;
    sender.ask("pin 0")?;
    sender.ask(&format!("udp bind {address}"))?;
    let to = SocketAddr::new(address, receiver.ask(&format!("udp bind {address}"))?.try_into()?);
    let nowhere = SocketAddr::new(address, CLOSED);
    let mut took = Vec::new();
    for _ in 0..FEW {
        sender.ask(&format!("udp send-to {nowhere} 1 {LEN}"))?;
        // ICMP's answer was freed after it.
        sender.ask("dying keep-skb")?;
        sleep(GAP);
        skipping("udp::received", || {
            let since = Instant::now();
            sender.ask(&format!("udp send-to {to} 1 {LEN}"))?;
            receiver.ask("udp receive 1")?;
            took.push(since.elapsed());
            Ok(())
        })?;
    }
    Ok(Box::new(move |evidence| {
        let _ends = (&path, &sender);
        let lines = into(evidence, to);
        expect_datagrams_partly(evidence, &lines, &receiver, FEW)?;
        expect_own_times(evidence, &lines, &took)
    }))
}

/// As many lines as datagrams, whose times may be unknown.
fn expect_datagrams_partly(evidence: &Evidence<'_>, lines: &[&Line], peer: &Peer, count: u64) -> Result<()> {
    let is_its = |line: &&&Line| line.len == LEN && line.pid == Some(peer.pid());
    let all = lines.iter().filter(is_its).count();
    ensure!(
        u64::try_from(all)? == count && lines.len() == all,
        evidence.outcome.fault(format_args!("{all} lines of {count} datagrams"), lines.iter().copied())
    );
    Ok(())
}

/// A datagram is read, and no hook sees it (`skb_consume_udp`): what waits under its skb's address is a dead entry. The next packet
/// with that address that the kernel drops (`kfree_skb`) is none of the first socket's, which is closed by then.
fn taken_unseen_then_drop() -> Result<Check> {
    let path = Path::private_loopback(Version::V4)?;
    let address = path.addresses().1;
    let mut sender = path.near(|| Peer::spawn(CLIENT))?;
    let mut receiver = path.near(|| Peer::spawn(SERVER))?;
    for peer in [&mut sender, &mut receiver] {
        peer.ask("pin 0")?;
    }
    sender.ask(&format!("udp bind {address}"))?;
    let nowhere = SocketAddr::new(address, CLOSED);
    let mut ports = Vec::new();
    for _ in 0..FEW {
        let port = receiver.ask(&format!("udp bind {address}"))?;
        let to = SocketAddr::new(address, port.try_into()?);
        skipping("udp::consumed", || {
            sender.ask(&format!("udp send-to {to} 1 {LEN}"))?;
            receiver.ask("udp receive 1")
        })?;
        receiver.ask("udp close")?;
        sender.ask(&format!("udp send-to {nowhere} 1 {LEN}"))?;
        ports.push(port);
    }
    Ok(Box::new(move |evidence| {
        let _ends = (&path, &sender, &receiver);
        let footer = evidence.outcome.footer()?;
        let drops = footer["drops"].as_array().map(Vec::as_slice).unwrap_or_default();
        let wrong = drops.iter().filter(|drop| ports.iter().any(|port| drop["port"] == *port)).count();
        ensure!(
            wrong == 0,
            evidence.outcome.fault(format_args!("{wrong} sockets dropped nothing, and are said to have"), [])
        );
        Ok(())
    }))
}
