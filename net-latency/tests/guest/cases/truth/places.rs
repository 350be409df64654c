//! Where packets go: bridges, routers, devices upon devices, tunnels, address translation, other CPUs.

use std::{collections::HashSet, fs, net::Ipv4Addr, time::Duration};

use anyhow::{Context as _, Result, ensure};

use super::{Check, Scenario, Theme};
use crate::{
    lines::{Dir, Line},
    net::{Path, Version, counter, counter_v6, destination_nat, drop_port, forget_rules},
    oracle::{self, Conversation, bytes, expect_bytes, expect_sum, segments},
    peers::Pair,
    process::{PATIENCE, until},
    tool::Outcome,
    verdict::Skipped,
};

pub(crate) const THEME: Theme = Theme {
    name: "places",
    arguments: &[],
    scenarios: &[
        Scenario { name: "bridge_v4", play: || delayed_between(&Path::bridge(Version::V4)?) },
        Scenario { name: "bridge_v6", play: || delayed_between(&Path::bridge(Version::V6)?) },
        Scenario { name: "redirected_v4", play: || delayed_between(&Path::redirected(Version::V4)?) },
        Scenario { name: "redirected_v6", play: || delayed_between(&Path::redirected(Version::V6)?) },
        Scenario { name: "shortcut_v4", play: || shortcut(Version::V4) },
        Scenario { name: "shortcut_v6", play: || shortcut(Version::V6) },
        Scenario { name: "intermediate", play: intermediate },
        Scenario { name: "router_v4", play: || routers(Version::V4, 1) },
        Scenario { name: "router_v6", play: || routers(Version::V6, 1) },
        Scenario { name: "two_routers_v4", play: || routers(Version::V4, 2) },
        Scenario { name: "two_routers_v6", play: || routers(Version::V6, 2) },
        Scenario { name: "vlan_v4", play: || conversation(&Path::vlan(Version::V4)?) },
        Scenario { name: "vlan_v6", play: || conversation(&Path::vlan(Version::V6)?) },
        Scenario { name: "bond_v4", play: || conversation(&Path::bond(Version::V4)?) },
        Scenario { name: "gre_v4", play: || conversation(&Path::gre(Version::V4)?) },
        Scenario { name: "gre_v6", play: || conversation(&Path::gre(Version::V6)?) },
        Scenario { name: "vxlan_v4", play: || conversation(&Path::vxlan(Version::V4)?) },
        Scenario { name: "vxlan_v6", play: || conversation(&Path::vxlan(Version::V6)?) },
        Scenario { name: "wireguard_v4", play: || wireguard(Version::V4) },
        Scenario { name: "wireguard_v6", play: || wireguard(Version::V6) },
        Scenario { name: "mapped_loopback", play: || mapped(&Path::loopback(Version::V4)?) },
        Scenario { name: "mapped_veth", play: || mapped(&Path::veth(Version::V4)?) },
        Scenario { name: "other_cpu", play: other_cpu },
        Scenario { name: "merged", play: merged },
        Scenario { name: "translated", play: translated },
        Scenario { name: "dropped_by_filter", play: || dropped_by_filter(Path::veth(Version::V4)?) },
        Scenario {
            name: "forwarded_and_dropped",
            play: || dropped_by_filter(Path::routers(Version::V4, 1)?),
        },
    ],
};

const ROUNDS: u32 = 50;
const LEN: u32 = 200;
/// Connections through a tunnel.
const TUNNELLED: usize = 4;

/// One line per data segment and direction, of the right process, with every stage.
pub(super) fn conversation(path: &Path) -> Result<Check> {
    let mut pair = Pair::connect(path)?;
    pair.converse(ROUNDS, LEN)?;
    Ok(exact(pair))
}

/// The packet goes through the tunnel's device and then, encrypted by another thread, through the link's, with the same skb: it has
/// one line, of the first.
pub(super) fn wireguard(version: Version) -> Result<Check> {
    let path = Path::wireguard(version)?.ok_or(Skipped("this kernel has no WireGuard"))?;
    let mut pairs = (0..TUNNELLED).map(|_| Pair::connect(&path)).collect::<Result<Vec<_>>>()?;
    // In turn, so that packets of one are under way through the tunnel while another sends.
    for _ in 0..ROUNDS {
        for pair in &mut pairs {
            pair.converse(1, LEN)?;
        }
    }
    Ok(Box::new(move |evidence| {
        for pair in &pairs {
            let conversation = Conversation::check(evidence.outcome, &evidence.lines, pair)?;
            conversation.expect_rounds(evidence.outcome, ROUNDS as usize, LEN)?;
        }
        Ok(())
    }))
}

fn exact(pair: Pair) -> Check {
    Box::new(move |evidence| {
        let conversation = Conversation::check(evidence.outcome, &evidence.lines, &pair)?;
        conversation.expect_rounds(evidence.outcome, ROUNDS as usize, LEN)
    })
}

/// The number of the calling thread's network namespace.
fn number_of_namespace() -> Result<u64> {
    let link = fs::read_link("/proc/thread-self/ns/net")?;
    let number = link.to_str().and_then(|link| link.strip_prefix("net:[")?.strip_suffix(']'));
    Ok(number.context("no number in the namespace's name")?.parse()?)
}

/// How long what lies between holds a packet that it sends on to the server.
const DELAY: Duration = Duration::from_millis(3);

/// How many packets IP has forwarded in the namespace next to the client's.
fn forwarded(path: &Path, version: Version) -> Result<u64> {
    path.between(|| match version {
        Version::V4 => counter("snmp", "Ip", "ForwDatagrams"),
        Version::V6 => counter_v6("Ip6OutForwDatagrams"),
    })
}

/// A forwarded packet has no line where it is forwarded. Its line counts from its first entry, on the router,
/// and tells how much of that was after the last.
fn routers(version: Version, count: u8) -> Result<Check> {
    let path = Path::routers(version, count)?;
    let check = delayed_between(&path)?;
    let forwarded = forwarded(&path, version)?;
    ensure!(forwarded >= u64::from(2 * ROUNDS), "only {forwarded} packets forwarded");
    Ok(check)
}

/// [`routers`] for packets that are sent on past IP, by netfilter's table of flows.
fn shortcut(version: Version) -> Result<Check> {
    let path = Path::routers(version, 1)?;
    path.cut_short()?;
    let check = delayed_between(&path)?;
    let forwarded = forwarded(&path, version)?;
    // Until each way has had a packet, the rule's own work, and ICMPv6.
    ensure!(forwarded < u64::from(ROUNDS), "{forwarded} packets forwarded by IP");
    Ok(check)
}

/// What comes is given to a device that holds it, and that gives it to the stack again (IFB).
fn intermediate() -> Result<Check> {
    let path = Path::veth(Version::V4)?;
    path.delay_received(DELAY)?;
    let mut pair = Pair::connect(&path)?;
    pair.enters_twice = true;
    pair.converse(ROUNDS, LEN)?;
    Ok(Box::new(move |evidence| {
        let conversation = Conversation::check(evidence.outcome, &evidence.lines, &pair)?;
        conversation.expect_rounds(evidence.outcome, ROUNDS as usize, LEN)?;
        expect_held(evidence.outcome, &conversation.requests_in)?;
        expect_held(evidence.outcome, &conversation.replies_in)
    }))
}

/// That each of these was held between its first entry and its last.
fn expect_held(outcome: &Outcome, lines: &[Line]) -> Result<()> {
    let between = |line: &Line| line.stages[0]?.checked_sub(line.last_drv_ip?);
    let held = u64::try_from(DELAY.as_nanos())?;
    let other = lines.iter().find(|line| between(line).is_none_or(|between| between < held));
    ensure!(other.is_none(), outcome.fault("not held between two entries", other));
    Ok(())
}

/// A packet that something sends on has no line there, and counts from its first entry.
fn delayed_between(path: &Path) -> Result<Check> {
    path.delay_between(DELAY)?;
    let mut pair = Pair::connect(path)?;
    pair.converse(ROUNDS, LEN)?;
    let ends = [path.near(number_of_namespace)?, path.far(number_of_namespace)?];
    Ok(Box::new(move |evidence| {
        let conversation = Conversation::check(evidence.outcome, &evidence.lines, &pair)?;
        conversation.expect_rounds(evidence.outcome, ROUNDS as usize, LEN)?;
        expect_held(evidence.outcome, &conversation.requests_in)?;
        let own = evidence.lines.iter().filter(|line| pair.owns(line));
        let elsewhere = own.filter(|line| line.netns.is_none_or(|netns| !ends.contains(&netns)));
        ensure!(
            elsewhere.clone().next().is_none(),
            evidence.outcome.fault("a line of what lies between", elsewhere)
        );
        Ok(())
    }))
}

/// IPv6 sockets that speak IPv4 show it.
fn mapped(path: &Path) -> Result<Check> {
    let mut pair = Pair::connect_mapped(path)?;
    pair.converse(ROUNDS, LEN)?;
    Ok(exact(pair))
}

/// How many packets CPUs were asked to receive for others (RPS).
fn steered() -> Result<u64> {
    const RECEIVED_RPS: usize = 9;
    let text = fs::read_to_string("/proc/net/softnet_stat")?;
    let counts = text.lines().map(|line| {
        let field =
            line.split_ascii_whitespace().nth(RECEIVED_RPS).context("softnet_stat has no such column")?;
        Ok(u64::from_str_radix(field, 16)?)
    });
    counts.sum()
}

/// Whether threads receive packets that one CPU hands to another, as on PREEMPT_RT since Linux 6.10 (`use_backlog_threads`). Other kernels
/// do so in a softirq that an interrupt brings about, which is counted.
fn has_backlog_threads() -> Result<bool> {
    for process in fs::read_dir("/proc")? {
        // Not every entry is a process, and a process may end meanwhile.
        let name = fs::read_to_string(process?.path().join("comm")).unwrap_or_default();
        if name.starts_with("backlog_napi/") {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A packet that is handed to another CPU between driver and IP keeps its stamps.
fn other_cpu() -> Result<Check> {
    let path = Path::veth(Version::V4)?;
    // Both CPUs, so that the flow's hash alone decides; many flows see both.
    path.steer("3")?;
    let before = steered()?;
    let mut pairs = Vec::new();
    for _ in 0..6 {
        let mut pair = Pair::connect(&path)?;
        pair.converse(ROUNDS, LEN)?;
        pairs.push(pair);
    }
    let steered = steered()? - before;
    if has_backlog_threads()? {
        println!(
            "this kernel hands packets to threads, and counts none of them: whether it did is not checked"
        );
    } else {
        ensure!(steered > 0, "no packet was handed to another CPU, so this shows nothing");
    }
    Ok(Box::new(move |evidence| {
        for pair in &pairs {
            let conversation = Conversation::check(evidence.outcome, &evidence.lines, pair)?;
            conversation.expect_rounds(evidence.outcome, ROUNDS as usize, LEN)?;
        }
        Ok(())
    }))
}

/// Segments that GRO merges are one line, with their number and all their bytes.
fn merged() -> Result<Check> {
    const BYTES: u64 = 512 * 1024;
    let path = Path::veth(Version::V4)?;
    let merges = path.merge()?;
    if !merges {
        println!("this kernel's veth has no GRO: every segment is expected to have a line");
    }
    let mut pair = Pair::connect(&path)?;
    pair.server.tell(&format!("read {BYTES} 65536 0"))?;
    pair.client.ask(&format!("write {BYTES}"))?;
    pair.server.answer()?;
    let counted = pair.client.ask("data-segments-out")?;
    let packets = path.packets_from_near()?;
    ensure!(packets >= counted, "{packets} packets on the link, so that merging them shows nothing");
    Ok(Box::new(move |evidence| {
        let conversation = Conversation::check(evidence.outcome, &evidence.lines, &pair)?;
        let (out, into) = (&conversation.requests_out, &conversation.requests_in);
        for (what, lines) in [("requests out", out), ("requests in", into)] {
            expect_bytes(evidence.outcome, what, lines, BYTES)?;
        }
        let once = counted - segments(conversation.retransmitted_requests());
        // Segments that were sent again had been received already, as nothing is lost here.
        for (what, lines) in [("segments out", out), ("segments in", into)] {
            expect_sum(evidence.outcome, what, lines, |line| line.segs, once)?;
        }
        ensure!(
            into.iter().all(|line| line.is("gro") == (line.segs > 1)),
            evidence.outcome.fault("gro is what is merged", into)
        );
        ensure!(
            into.iter().any(|line| line.segs > 1) == merges,
            evidence.outcome.fault(format_args!("segments are merged: not {merges}"), into)
        );
        Ok(())
    }))
}

/// Behind address translation each end shows the addresses that it sees itself.
fn translated() -> Result<Check> {
    const APPARENT: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
    let path = Path::routers(Version::V4, 1)?;
    let (near, far) = path.addresses();
    let std::net::IpAddr::V4(real) = far else { anyhow::bail!("not IPv4") };
    path.between(|| destination_nat(APPARENT, real))?;
    let mut pair = Pair::connect_by(&path, APPARENT.into())?;
    pair.converse(ROUNDS, LEN)?;
    Ok(Box::new(move |evidence| {
        let rounds = ROUNDS as usize;
        let apparent: std::net::IpAddr = APPARENT.into();
        let (client, server) = (pair.near, pair.far);
        let from = |dir: Dir, source: (std::net::IpAddr, u16), to: (std::net::IpAddr, u16)| -> Vec<Line> {
            let wanted = |line: &&Line| {
                line.dir == dir && (line.saddr, line.sport) == source && (line.daddr, line.dport) == to
            };
            evidence.lines.iter().filter(wanted).cloned().collect()
        };
        let client_end = (near, client.port());
        let cases = [
            ("requests out", &pair.client, from(Dir::Out, client_end, (apparent, server.port()))),
            ("requests in", &pair.server, from(Dir::In, client_end, (far, server.port()))),
            ("replies out", &pair.server, from(Dir::Out, (far, server.port()), client_end)),
            ("replies in", &pair.client, from(Dir::In, (apparent, server.port()), client_end)),
        ];
        for (what, peer, lines) in &cases {
            oracle::expect_stream(evidence.outcome, what, lines, rounds, LEN)?;
            let wrong = lines.iter().filter(|line| line.pid != Some(peer.pid()) || line.total.is_none());
            ensure!(wrong.clone().next().is_none(), evidence.outcome.fault("wrong process, or a gap", wrong));
            // Translation leaves a packet recognisable behind the router.
            let other = lines.iter().find(|line| line.last_drv_ip.is_some() != (line.dir == Dir::In));
            ensure!(other.is_none(), evidence.outcome.fault("its last entry is not known", other));
        }
        Ok(())
    }))
}

/// What a filter drops before TCP has no line; what comes through later has a line with its own times.
fn dropped_by_filter(path: Path) -> Result<Check> {
    let path = path.with_shortest_timeout(60)?;
    let mut pair = Pair::connect(&path)?;
    pair.converse(2, 100)?;
    let port = pair.far.port();
    path.far(|| drop_port(port))?;
    pair.client.ask("write 300")?;
    until(PATIENCE, || Ok(pair.client.ask("retransmissions")? >= 1))?;
    path.far(forget_rules)?;
    pair.server.ask("read 300 300 0")?;
    Ok(Box::new(move |evidence| {
        let conversation = Conversation::check(evidence.outcome, &evidence.lines, &pair)?;
        let into = &conversation.requests_in;
        ensure!(bytes(into) == 500, evidence.outcome.fault("not 500 bytes in", into));
        ensure!(
            !conversation.retransmissions.is_empty(),
            evidence.outcome.fault("nothing was sent again", into)
        );
        let line = into.last().context("no line")?;
        // The peer is reading as soon as the filter is gone, and the last copy that was dropped came 120 ms before.
        ensure!(
            line.total.is_some_and(|total| total < 110_000_000),
            evidence.outcome.fault("times of a dropped copy", [line])
        );
        let distinct: HashSet<_> = into.iter().map(|line| line.seq).collect();
        ensure!(distinct.len() == into.len(), evidence.outcome.fault("a segment twice", into));
        Ok(())
    }))
}
