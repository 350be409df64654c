//! Processors that run our programs at the same time: many packets of both protocols at once, each line checked.
//!
//! In other guests the emulator runs both processors in turn. Here each has a thread of its own, so that races show, and
//! so does a fault of the emulator: it may execute a breakpoint that the other processor has just patched away. Code is
//! patched while the tool attaches and detaches, and nothing may happen then: the traffic begins later and ends before.

use std::{env, net::SocketAddr, time::Duration};

use anyhow::{Result, ensure};

use super::Case;
use crate::{
    lines::{Dir, Line},
    net::{Path, Version},
    oracle::{Conversation, expect_bytes, expect_datagrams},
    peers::{CLIENT, Pair, Peer, SERVER},
    tool::{Backend, Launch, Outcome},
};

pub(crate) const CASES: &[Case] = &[("race", race)];

/// Set to 1 in a guest whose processors run at the same time.
const RACE: &str = "NET_LATENCY_RACE";

/// Whether this is such a guest.
pub(crate) fn is_wanted() -> bool {
    env::var_os(RACE).is_some_and(|value| value == "1")
}

/// Packets that there are at least, each of which is one line.
const PACKETS: u64 = 100_000;
/// Of each conversation by TCP, and by UDP. Each round is four packets.
const ROUNDS: u32 = 8_000;
const DATAGRAMS: usize = 4_000;
/// Writes that don't wait for each other, so that segments are joined.
const WRITES: u32 = 8_000;
const LEN: u32 = 200;
const PATIENCE: Duration = Duration::from_secs(600);

/// What goes on at the same time over one path, each end a process.
struct Street {
    conversation: Pair,
    stream: Pair,
    sender: Peer,
    receiver: Peer,
    from: SocketAddr,
    to: SocketAddr,
    _path: Path,
}

impl Street {
    fn open(path: Path) -> Result<Self> {
        let (near, far) = path.addresses();
        let (mut conversation, mut stream) = (Pair::connect(&path)?, Pair::connect(&path)?);
        let mut sender = path.near(|| Peer::spawn(CLIENT))?;
        let mut receiver = path.far(|| Peer::spawn(SERVER))?;
        let from = SocketAddr::new(near, sender.ask(&format!("udp bind {near}"))?.try_into()?);
        let to = SocketAddr::new(far, receiver.ask(&format!("udp bind {far}"))?.try_into()?);
        for pair in [&mut conversation, &mut stream] {
            pair.set_patience(PATIENCE);
        }
        for peer in [&mut sender, &mut receiver] {
            peer.set_patience(PATIENCE);
        }
        Ok(Self { conversation, stream, sender, receiver, from, to, _path: path })
    }

    fn begin(&mut self) -> Result<()> {
        self.conversation.begin(ROUNDS, LEN)?;
        self.stream.server.tell(&format!("read {} 4096 0", WRITES * LEN))?;
        self.stream.client.tell(&format!("write-each {WRITES} {LEN}"))?;
        self.receiver.tell(&format!("udp echo {DATAGRAMS}"))?;
        self.sender.tell(&format!("udp request-to {} {DATAGRAMS} {LEN}", self.to))
    }

    fn finish(&self) -> Result<()> {
        self.conversation.finish()?;
        for peer in [&self.stream.client, &self.stream.server, &self.sender, &self.receiver] {
            peer.answer()?;
        }
        Ok(())
    }

    /// Checks all lines of what went on here.
    fn check(&self, outcome: &Outcome, lines: &[Line]) -> Result<()> {
        let conversation = Conversation::check(outcome, lines, &self.conversation)?;
        conversation.expect_rounds(outcome, ROUNDS as usize, LEN)?;

        let stream = Conversation::check(outcome, lines, &self.stream)?;
        let sum = u64::from(WRITES * LEN);
        expect_bytes(outcome, "the stream out", &stream.requests_out, sum)?;
        expect_bytes(outcome, "the stream in", &stream.requests_in, sum)?;

        for (what, dir, from, to, peer) in [
            ("there, out", Dir::Out, self.from, self.to, &self.sender),
            ("there, in", Dir::In, self.from, self.to, &self.receiver),
            ("back, out", Dir::Out, self.to, self.from, &self.receiver),
            ("back, in", Dir::In, self.to, self.from, &self.sender),
        ] {
            let own: Vec<_> =
                lines.iter().filter(|line| line.dir == dir && line.is_between(from, to)).collect();
            expect_datagrams(outcome, what, &own, peer, DATAGRAMS, LEN)?;
        }
        Ok(())
    }
}

fn race(backend: Backend) -> Result<()> {
    // Room for all records, however late the tool comes for them.
    let mut launch = Launch::new(backend).args(&["--buffer", "32M"]).under_load();
    if backend != Backend::Kprobe {
        // Every line's parts have to add up, to the nanosecond.
        launch = launch.args(&["--stages", "fine"]);
    }
    let tool = launch.start()?;
    let mut streets = Vec::new();
    for path in [Path::private_loopback(Version::V4)?, Path::veth(Version::V6)?] {
        streets.push(Street::open(path)?);
    }
    for street in &mut streets {
        street.begin()?;
    }
    for street in &streets {
        street.finish()?;
    }
    let outcome = tool.stop()?;
    let lines = outcome.lines()?;
    println!("{backend}::race: {} lines, skipped calls: {:?}", lines.len(), outcome.skipped_calls());
    for street in &streets {
        street.check(&outcome, &lines)?;
    }
    ensure!(outcome.lost()? == 0, outcome.fault("lines were lost", []));
    ensure!(lines.len() as u64 >= PACKETS, outcome.fault("fewer packets than there were to be", []));
    outcome.ledger().map(drop)
}
