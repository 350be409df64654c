//! The footer's ledger: a place for every packet that the kernel side saw.

use std::{collections::HashMap, fs, os::unix::fs::MetadataExt as _};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;

use super::Case;
use crate::{
    footer::{Footer, Ledger},
    lines::{Dir, Proto},
    net::{Path, Version},
    peers::{CLIENT, Pair, Peer, SERVER},
    skips::{NO_SLOT, skipping},
    tool::{Backend, Launch, Outcome},
};

pub(crate) const CASES: &[Case] = &[
    ("ledger_of_a_pid", of_a_pid),
    ("ledger_of_lost_records", of_lost_records),
    ("ledger_of_drops", of_drops),
    ("ledger_of_closed_queues", of_closed_queues),
    ("ledger_of_intervals", of_intervals),
    ("ledger_of_a_part_of_a_conversation", of_a_part),
    ("ledger_of_full_tables", of_full_tables),
    ("ledger_of_inconsistent_records", of_inconsistent_records),
];

/// The ledger of a run that began before its traffic.
fn ledger(outcome: &Outcome) -> Result<Ledger> {
    let ledger = outcome.ledger()?;
    ensure!(ledger.from_before == 0, outcome.fault("not a whole run's ledger", []));
    Ok(ledger)
}

/// Fails unless each place has as many packets as expected, but for those whose hooks the kernel may have skipped.
fn expect(outcome: &Outcome, ledger: &Ledger, expected: &Ledger) -> Result<()> {
    let allowance = outcome.allowance();
    let figures = |ledger: &Ledger| ledger.places().into_iter().chain([ledger.seen]).collect::<Vec<_>>();
    let differences = figures(ledger).into_iter().zip(figures(expected)).map(|(a, b)| a.abs_diff(b));
    ensure!(
        differences.max() <= Some(allowance.most(expected.seen)),
        outcome.fault(format_args!("{ledger:?}, not {expected:?} (allowance: {allowance:?})"), [])
    );
    Ok(())
}

/// Of two processes one is wanted: the other's packets are seen and not shown. Unread packets wait.
fn of_a_pid(backend: Backend) -> Result<()> {
    let path = Path::veth(Version::V4)?.patient()?;
    let (near, far) = path.addresses();
    let mut pair = Pair::connect(&path)?;
    let tool = Launch::new(backend).args(&["--pid", &pair.client.pid().to_string()]).start()?;
    pair.converse(200, 300)?;
    for _ in 0..5 {
        pair.client.ask("write 100")?;
    }
    let port = pair.client.ask(&format!("udp bind {near}"))?;
    pair.server.ask(&format!("udp bind {far}"))?;
    pair.server.ask(&format!("udp send-to {near}:{port} 30 80"))?;
    pair.client.ask("udp receive 27")?;
    let outcome = tool.stop()?;
    let expected = Ledger {
        // Each round trip is four packets, each other segment and datagram is one out and one in.
        seen: 200 * 4 + 5 * 2 + 30 * 2,
        // The client's requests out and replies in, what it wrote besides, what it received.
        shown: 200 * 2 + 5 + 27,
        // What the server has not read is not followed any more, since only others use that end.
        filtered: 200 * 2 + 5 + 30,
        waiting: 3,
        ..Ledger::default()
    };
    let ledger = ledger(&outcome)?;
    expect(&outcome, &ledger, &expected)?;
    ensure!(outcome.lines()?.len() as u64 == ledger.shown, outcome.fault("not as many lines as shown", []));
    Ok(())
}

/// Records with times that can't be are not shown, and the first ones are told. The object for tests makes them.
fn of_inconsistent_records(backend: Backend) -> Result<()> {
    const ROUNDS: u32 = 25;
    const TOLD: usize = 10;
    let mut pair = Pair::connect(&Path::private_loopback(Version::V4)?)?;
    let arguments = ["--debug", "--port", &pair.far.port().to_string()];
    let tool = Launch::new(backend).skipping().with_inconsistent_records().args(&arguments).start()?;
    pair.converse(ROUNDS, 100)?;
    skipping("ring::inconsistent", || pair.converse(ROUNDS, 100))?;
    pair.converse(ROUNDS, 100)?;
    let outcome = tool.stop()?;
    let packets = u64::from(ROUNDS) * 4;
    let expected =
        Ledger { seen: 3 * packets, shown: 2 * packets, inconsistent: packets, ..Ledger::default() };
    let ledger = ledger(&outcome)?;
    expect(&outcome, &ledger, &expected)?;
    let lines = outcome.lines()?;
    ensure!(lines.len() as u64 == ledger.shown, outcome.fault("not as many lines as shown", []));
    let footer = outcome.footer()?;
    let figures = footer.figure("packets_in")? + footer.figure("packets_out")?;
    ensure!(figures == ledger.shown, outcome.fault("they are in the figures", []));
    let told: Vec<_> = outcome.stderr.iter().filter(|line| line.contains("inconsistent record: ")).collect();
    let is_whole = |line: &&&String| line.contains(" ip 1 ") && line.contains(" tcp 127.0.0.1:");
    ensure!(
        told.len() == TOLD && told.iter().all(|line| is_whole(&line)),
        outcome.fault(format_args!("{} told: {told:?}", told.len()), [])
    );
    Ok(())
}

/// A reader that is held up loses records, and knows how many.
fn of_lost_records(backend: Backend) -> Result<()> {
    const ROUNDS: u32 = 1000;
    let path = Path::loopback(Version::V6)?;
    let mut pair = Pair::connect(&path)?;
    let tool = Launch::new(backend).args(&["--buffer", "64K"]).start()?;
    tool.signal(Signal::SIGSTOP)?;
    pair.converse(ROUNDS, 200)?;
    tool.signal(Signal::SIGCONT)?;
    let outcome = tool.stop()?;
    let ledger = ledger(&outcome)?;
    let (shown, lost) = (ledger.shown, ledger.lost);
    ensure!(lost > u64::from(ROUNDS), outcome.fault("hardly anything was lost, so this shows nothing", []));
    ensure!(shown > 100, outcome.fault("the buffer held nothing", []));
    outcome.expect_all("packets shown or lost", shown + lost, u64::from(ROUNDS) * 4, [])?;
    ensure!(outcome.lines()?.len() as u64 == shown, outcome.fault("not as many lines as shown", []));
    ensure!(outcome.lost()? == lost, outcome.fault("two figures of lost lines", []));
    Ok(())
}

/// Data for a socket that is gone, and datagrams for a full or a closed one, end as dropped or unread.
fn of_drops(backend: Backend) -> Result<()> {
    let path = Path::loopback(Version::V4)?;
    let tool = Launch::new(backend).start()?;
    let mut pair = Pair::connect(&path)?;
    pair.converse(10, 50)?;
    // Unread when its socket goes: the close answers with a RST.
    pair.client.ask("write 70")?;
    pair.server.ask("close")?;
    let (mut sender, mut receiver) = (Peer::spawn(CLIENT)?, Peer::spawn(SERVER)?);
    sender.ask("udp bind 127.0.0.1")?;
    let port = receiver.ask("udp bind 127.0.0.1")?;
    receiver.ask("udp receive-buffer 4096")?;
    sender.ask(&format!("udp send-to 127.0.0.1:{port} 60 1000"))?;
    let taken = receiver.ask("udp receive-all")?;
    ensure!(taken > 0 && taken < 60, "{taken} of 60 found room, so this shows nothing");
    sender.ask(&format!("udp send-to 127.0.0.1:{port} 2 10"))?;
    receiver.ask("udp close")?;
    let outcome = tool.stop()?;
    let expected = Ledger {
        seen: 40 + 2 + 62 * 2,
        shown: 40 + 1 + 62 + taken,
        dropped: 1 + 62 - taken,
        ..Ledger::default()
    };
    let mut ledger = outcome.ledger_but_for(2)?;
    let purged = std::mem::take(&mut ledger.waiting) + std::mem::take(&mut ledger.in_flight);
    ensure!(purged <= 2, outcome.fault("more waits than the closed socket had", []));
    ledger.dropped += purged;
    expect(&outcome, &ledger, &expected)
}

/// Datagrams on the queues of sockets that are closed (`udp_destruct_common`) are their sockets' drops: of each port and namespace
/// exactly its own, though two namespaces have the same port.
fn of_closed_queues(backend: Backend) -> Result<()> {
    const PORT: u16 = 47_010;
    let unread: [u64; 2] = [7, 3];
    let mut tool = Launch::new(backend).args(&["--interval", "100ms"]).start()?;
    let mut places = Vec::new();
    for count in unread {
        let path = Path::private_loopback(Version::V4)?;
        let (mut sender, mut receiver) =
            (path.near(|| Peer::spawn(CLIENT))?, path.near(|| Peer::spawn(SERVER))?);
        sender.ask("udp bind 127.0.0.1")?;
        receiver.ask(&format!("udp bind 127.0.0.1 {PORT}"))?;
        sender.ask(&format!("udp send-to 127.0.0.1:{PORT} {} 90", count + 1))?;
        receiver.ask("udp receive 1")?;
        receiver.ask("udp close")?;
        places.push((fs::metadata(path.near_namespace())?.ino(), count, path));
    }
    // They are freed after a grace period.
    let dropped = |said: &[String]| -> u64 {
        let reports = said.iter().filter_map(|line| Footer::parse(line).ok().flatten());
        reports.filter_map(|report| report.figure("losses.dropped_at_socket").ok()).sum()
    };
    tool.expect_said("that they were dropped", |said| dropped(said) >= unread.iter().sum::<u64>())?;
    let outcome = tool.stop()?;
    let footer = outcome.footer()?;
    let drops = footer["drops"].as_array().context("no drops")?;
    let found: HashMap<_, _> = drops
        .iter()
        .map(|drop| ((drop["netns"].as_u64(), drop["port"].as_u64()), &drop["packets"]))
        .collect();
    for (netns, count, _path) in &places {
        let its = found.get(&(Some(*netns), Some(PORT.into())));
        ensure!(
            its.is_some_and(|packets| **packets == *count),
            outcome.fault(format_args!("{its:?} of {count} in namespace {netns}; all: {drops:?}"), [])
        );
    }
    ensure!(drops.len() == places.len(), outcome.fault(format_args!("others dropped too: {drops:?}"), []));
    outcome.ledger().map(drop)
}

/// The intervals' ledgers add up, each by itself and all together.
fn of_intervals(backend: Backend) -> Result<()> {
    const ROUNDS: u32 = 300;
    let path = Path::loopback(Version::V4)?;
    let mut tool = Launch::new(backend).args(&["--interval", "100ms"]).start()?;
    let mut pair = Pair::connect(&path)?;
    for _ in 0..3 {
        pair.converse(ROUNDS / 3, 100)?;
        // The first of these may have begun before.
        tool.expect_more_reports(2)?;
    }
    let outcome = tool.stop()?;
    let reports = outcome.reports()?.iter().map(Footer::ledger).collect::<Result<Vec<_>>>();
    let reports = reports.map_err(|error| outcome.fault(format_args!("{error:#}"), []))?;
    ensure!(reports.len() >= 3, outcome.fault("fewer reports than intervals", []));
    let sum = |figure: fn(&Ledger) -> u64| reports.iter().map(figure).sum::<u64>();
    let (seen, shown) = (sum(|report| report.seen), sum(|report| report.shown));
    let all = u64::from(ROUNDS) * 4;
    outcome.expect_all("packets seen in the intervals", seen, all, [])?;
    outcome.expect_all("packets shown in the intervals", shown, all, [])
}

/// Hooks come and go one by one while packets pass: what met some of them only was not dropped.
fn of_a_part(backend: Backend) -> Result<()> {
    let mut pair = Pair::connect(&Path::loopback(Version::V4)?)?;
    pair.begin(u32::MAX, 200)?;
    let tool = Launch::new(backend).start()?;
    tool.expect_written(101)?;
    let outcome = tool.stop()?;
    pair.client.end()?;
    // Not that of a whole run: the traffic goes on.
    let ledger = outcome.open_ledger()?;
    ensure!(ledger.shown > 100, outcome.fault("hardly anything was shown, so this shows nothing", []));
    // What the kernel skipped may end in either.
    let skipped = outcome.skipped_calls().unwrap_or(outcome.allowance().most(ledger.seen));
    ensure!(
        ledger.dropped <= outcome.allowance().most(ledger.seen),
        outcome.fault("a conversation over loopback loses nothing", [])
    );
    // Of a conversation in turns one packet is between its hooks, another is finished while it is being counted.
    ensure!(ledger.in_flight <= 4 + skipped, outcome.fault("too many are nowhere", []));
    Ok(())
}

/// More connections, segments and datagrams than all tables take, whose maps have 256 entries each in the object for tests: each packet
/// is shown, or was evicted, or waits, and nothing that is shown is another's.
fn of_full_tables(backend: Backend) -> Result<()> {
    const CONNECTIONS: u32 = 300;
    const EACH: u32 = 4;
    const DATAGRAMS: u32 = 200;
    const ALL: u64 = 2 * (CONNECTIONS * EACH + 2 * DATAGRAMS) as u64;
    const LEN: u32 = 100;
    let (near, far) = Path::loopback(Version::V4)?.addresses();
    let (mut client, mut server) = (Peer::spawn(CLIENT)?, Peer::spawn(SERVER)?);
    let port = server.ask(&format!("listen {far}"))?;
    for peer in [&mut client, &mut server] {
        peer.ask(&format!("many room {CONNECTIONS}"))?;
    }
    server.tell(&format!("many accept {CONNECTIONS}"))?;
    client.ask(&format!("many connect {far} {port} {CONNECTIONS}"))?;
    server.answer()?;
    let mut receivers = [Peer::spawn(SERVER)?, Peer::spawn(SERVER)?];
    client.ask(&format!("udp bind {near}"))?;
    let tool = Launch::new(backend).skipping().start()?;
    skipping(NO_SLOT, || {
        client.ask(&format!("many write {CONNECTIONS} {EACH} {LEN}"))?;
        for receiver in &mut receivers {
            let port = receiver.ask(&format!("udp bind {far}"))?;
            client.ask(&format!("udp send-to {far}:{port} {DATAGRAMS} {LEN}"))?;
        }
        server.ask(&format!("many read {CONNECTIONS} {}", EACH * LEN))?;
        receivers
            .iter_mut()
            .try_for_each(|receiver| receiver.ask(&format!("udp receive {DATAGRAMS}")).map(drop))
    })?;
    let outcome = tool.stop()?;
    let ledger = outcome.ledger()?;
    outcome.expect_all("packets seen", ledger.seen, ALL, [])?;
    let evicted = outcome.footer()?.figure("evicted")?;
    ensure!(evicted > 500, outcome.fault(format_args!("{evicted} evicted"), []));
    ensure!(ledger.lost == evicted, outcome.fault("lost otherwise", []));
    let lines = outcome.lines()?;
    ensure!(lines.len() as u64 == ledger.shown, outcome.fault("not as many lines as shown", []));
    let is_tcp = |dir: Dir| lines.iter().filter(move |line| line.dir == dir && line.proto == Proto::Tcp);
    let sent: HashMap<_, _> = is_tcp(Dir::Out).map(|line| ((line.sport, line.seq), line.ts)).collect();
    for line in is_tcp(Dir::In) {
        let sent = sent.get(&(line.sport, line.seq)).context("received and not sent")?;
        let waited = line.stages[2].context("no time in TCP")?;
        let came = line.ts - chrono::TimeDelta::nanoseconds(waited.try_into()?);
        // The mapping of monotonic stamps to wall-clock time may shift a little between two lines.
        let is_later = came + chrono::TimeDelta::microseconds(200) >= *sent;
        ensure!(line.len == LEN && is_later, outcome.fault("not its own time", [line]));
    }
    Ok(())
}
