//! Segments of TCP that no TCP would send: overlapping ones, of which the kernel drops some. A dropped one lends nothing to those that are
//! read, neither times nor a length.
//!
//! A plan is a list of steps for a connection, 120 ms apart: segments by a raw socket, reads, and a thread that keeps the socket, so that
//! segments wait on its backlog. All plans of a scenario are played at a time. Each segment has bytes of its own, so that the bytes that
//! are read tell which segment brought them.

use std::{
    env, fs,
    net::{SocketAddr, SocketAddrV4},
    ops::Range,
    os::fd::{AsRawFd as _, OwnedFd},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use chrono::{DateTime, TimeDelta, Utc};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, sendto, socket,
};

use super::{Check, Evidence, Scenario, Theme};
use crate::{
    lines::{Dir, Line},
    net::{Path, Version, drop_from},
    peers::{
        CLIENT, Pair, Peer, SERVER,
        forge::{ACK, PSH, SYN, Segment, packet},
        traffic::Random,
    },
    tool::Scratch,
};

pub(crate) const THEME: Theme = Theme {
    name: "crafted",
    arguments: &[],
    scenarios: &[
        Scenario { name: "dropped_at_once", play: || fixed(false) },
        Scenario { name: "dropped_from_backlog", play: || fixed(true) },
        Scenario { name: "pruned", play: pruned },
        Scenario { name: "random_plans", play: random_plans },
    ],
};

/// A run of its own, for what fills the tables.
pub(crate) const FLOOD: Theme = Theme {
    name: "crafted_flood",
    arguments: &[],
    scenarios: &[Scenario { name: "of_another_connection", play: flood }],
};

/// Between two steps of a plan: longer than a busy machine usually takes the emulated CPU away.
const GAP: Duration = Duration::from_millis(120);
/// The mapping of monotonic stamps to wall-clock time may shift a little between two lines.
const CLOCK_ERROR: TimeDelta = TimeDelta::milliseconds(2);
/// What the real client writes first, so that there is a byte to look at.
const FIRST: u32 = 1;
/// Far behind what the receiver's window allows.
const BEYOND: u32 = 20_000_000;
/// How much older the timestamp of a segment is that PAWS refuses, ms or µs.
const AGE: u32 = 100_000_000;
/// The random traffic's seed is that of these plans too.
const SEED: &str = "NET_LATENCY_SOAK_SEED";

/// Why the kernel drops a segment with new bytes, if it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    /// `tcp_rcv_established`: neither ACK nor RST nor SYN.
    NoAck,
    /// `tcp_checksum_complete`.
    WrongChecksum,
    /// `tcp_ack`: for bytes that were never sent (`after(ack, tp->snd_nxt)`).
    AckOfUnsent,
    /// `tcp_paws_discard`.
    OldTimestamp,
    /// `tcp_validate_incoming`: a challenge ACK answers it.
    Syn,
    /// `tcp_sequence`.
    BeyondWindow,
}

/// All that the kernel drops.
const FLAWS: [Flaw; 6] =
    [Flaw::NoAck, Flaw::WrongChecksum, Flaw::AckOfUnsent, Flaw::OldTimestamp, Flaw::Syn, Flaw::BeyondWindow];

#[derive(Clone, Copy, Debug)]
enum Step {
    Send {
        offset: u32,
        len: u32,
        flaw: Flaw,
    },
    /// N segments of a byte, at each second place.
    Burst {
        offset: u32,
        count: u32,
    },
    Read(u32),
    Peek(u32),
    Hold,
    Release,
}

/// What a step did, and when.
#[derive(Clone, Debug)]
struct Done {
    step: Step,
    from: DateTime<Utc>,
    to: DateTime<Utc>,
    /// Bytes that were read.
    bytes: u32,
}

impl Done {
    /// Whether it sent a segment that TCP accepts, and that has all of these bytes.
    fn covers(&self, range: &Range<usize>) -> bool {
        match self.step {
            Step::Send { offset, len, flaw: Flaw::None } => {
                offset as usize <= range.start && range.end <= (offset + len) as usize
            }
            Step::Burst { offset, count } => {
                let (first, end) = (offset as usize, (offset + 2 * count) as usize);
                (first..end).contains(&range.start)
                    && (range.start - first).is_multiple_of(2)
                    && range.len() == 1
            }
            _ => false,
        }
    }
}

/// A connection and its plan.
struct Connection {
    number: usize,
    plan: Vec<Step>,
    ends: [SocketAddrV4; 2],
    /// The first byte that is crafted, and the number that acknowledges what the server has sent.
    start: u32,
    ack: u32,
    clock: u32,
    done: Vec<Done>,
    read: Scratch,
}

/// The two peers, and their connections over a link.
struct Table {
    path: Path,
    client: Peer,
    server: Peer,
    raw: OwnedFd,
    connections: Vec<Connection>,
}

impl Table {
    fn new(plans: Vec<Vec<Step>>) -> Result<Self> {
        Self::with_room(plans, None)
    }

    /// The table, where a socket keeps `room` bytes at most, if that is given.
    fn with_room(plans: Vec<Vec<Step>>, room: Option<u32>) -> Result<Self> {
        let path = Path::veth(Version::V4)?;
        let (near, far) = path.addresses();
        let mut client = path.near(|| Peer::spawn(CLIENT))?;
        let mut server = path.far(|| Peer::spawn(SERVER))?;
        let port = server.ask(&format!("listen {far}"))?.try_into()?;
        if let Some(room) = room {
            server.ask(&format!("receive-buffer {room}"))?;
        }
        client.ask(&format!("crafted connect {far} {port} {}", plans.len()))?;
        server.ask(&format!("crafted accept {}", plans.len()))?;
        let mut connections = Vec::new();
        for (number, plan) in plans.into_iter().enumerate() {
            let own = client.ask(&format!("crafted port {number}"))?.try_into()?;
            let ends = (SocketAddr::new(near, own), SocketAddr::new(far, port));
            let (SocketAddr::V4(from), SocketAddr::V4(to)) = ends else { bail!("IPv4 only") };
            let start = client.ask(&format!("crafted write {number} {FIRST}"))?.try_into()?;
            let ack = client.ask(&format!("crafted received {number}"))?.try_into()?;
            let clock = client.ask(&format!("crafted clock {number}"))?.try_into()?;
            let (done, read) = (Vec::new(), Scratch::new("bytes"));
            connections.push(Connection { number, plan, ends: [from, to], start, ack, clock, done, read });
        }
        // From now on the client's TCP hears nothing, and answers nothing.
        path.near(|| drop_from(port))?;
        let raw = path.near(|| {
            Ok(socket(AddressFamily::Inet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Raw)?)
        })?;
        Ok(Self { path, client, server, raw, connections })
    }

    /// Plays all plans, a step of each at a time.
    fn play(&mut self) -> Result<()> {
        let steps = self.connections.iter().map(|connection| connection.plan.len()).max().unwrap_or(0);
        for step in 0..steps {
            for number in 0..self.connections.len() {
                self.perform(number, step)?;
            }
            sleep(GAP);
        }
        Ok(())
    }

    fn perform(&mut self, number: usize, step: usize) -> Result<()> {
        let connection = &self.connections[number];
        let Some(step) = connection.plan.get(step).copied() else { return Ok(()) };
        let file = connection.read.path().display().to_string();
        let from = Utc::now();
        let mut bytes = 0;
        match step {
            Step::Send { offset, len, flaw } => self.send(number, offset, len, flaw)?,
            Step::Burst { offset, count } => {
                for place in 0..count {
                    self.send(number, offset + 2 * place, 1, Flaw::None)?;
                }
            }
            Step::Read(most) => {
                bytes = self.server.ask(&format!("crafted take {number} {most} {file}"))?.try_into()?;
            }
            Step::Peek(most) => drop(self.server.ask(&format!("crafted peek {number} {most}"))?),
            Step::Hold => drop(self.server.ask(&format!("crafted hold {number}"))?),
            Step::Release => drop(self.server.ask(&format!("crafted release {number}"))?),
        }
        self.connections[number].done.push(Done { step, from, to: Utc::now(), bytes });
        Ok(())
    }

    fn send(&self, number: usize, offset: u32, len: u32, flaw: Flaw) -> Result<()> {
        let connection = &self.connections[number];
        let packet = packet(connection.ends, &connection.segment(offset, len, flaw)?)?;
        let there = SockaddrIn::from(SocketAddrV4::new(*connection.ends[1].ip(), 0));
        let sent = sendto(self.raw.as_raw_fd(), &packet, &there, MsgFlags::empty())?;
        ensure!(sent == packet.len(), "only {sent} bytes");
        Ok(())
    }

    /// No line of any of these connections says what did not happen. Of all bytes that were read, those with a line.
    fn check(&self, evidence: &Evidence<'_>) -> Result<(u64, u64)> {
        let (mut shown, mut read) = (0, 0);
        for connection in &self.connections {
            let of = connection.check(evidence, &self.server)?;
            shown += of.0;
            read += of.1;
        }
        Ok((shown, read))
    }
}

impl Connection {
    /// The next segment of the plan, with bytes and a timestamp of its own.
    fn segment(&self, offset: u32, len: u32, flaw: Flaw) -> Result<Segment> {
        let step = u32::try_from(self.done.len())?;
        let far = if flaw == Flaw::BeyondWindow { BEYOND } else { 0 };
        // Newer with each.
        let timestamp = self.clock.wrapping_add(step);
        Ok(Segment {
            seq: self.start.wrapping_add(offset).wrapping_add(far),
            ack: if flaw == Flaw::AckOfUnsent { self.ack.wrapping_add(1_000) } else { self.ack },
            flags: match flaw {
                Flaw::NoAck => PSH,
                Flaw::Syn => PSH | ACK | SYN,
                _ => PSH | ACK,
            },
            timestamp: Some(if flaw == Flaw::OldTimestamp { timestamp.wrapping_sub(AGE) } else { timestamp }),
            len: len.try_into()?,
            fill: fill(self.done.len())?,
            has_right_checksum: flaw != Flaw::WrongChecksum,
        })
    }

    /// The bytes that were read, by the number of the step that brought each.
    fn brought(&self) -> Result<Vec<usize>> {
        let bytes = fs::read(self.read.path()).context("nothing was read")?;
        bytes.iter().skip(FIRST as usize).map(|byte| Ok(usize::from(*byte - fill(0)?))).collect()
    }

    fn check(&self, evidence: &Evidence<'_>, server: &Peer) -> Result<(u64, u64)> {
        let brought = self.brought()?;
        let [from, to] = self.ends.map(SocketAddr::V4);
        let is_its = |line: &&Line| {
            line.dir == Dir::In
                && !line.is("control")
                && line.is_between(from, to)
                && line.seq != self.start.wrapping_sub(FIRST)
        };
        let mut shown = vec![false; brought.len()];
        for line in evidence.lines.iter().filter(is_its) {
            let fault = |what: String| {
                let steps: Vec<_> =
                    self.done.iter().map(|done| format!("{:?} at {}", done.step, done.from)).collect();
                evidence.outcome.fault(format!("{what}\nplan {}:\n{}", self.number, steps.join("\n")), [line])
            };
            let first = (line.seq.wrapping_sub(self.start)) as usize;
            let range = first..first + line.len as usize;
            ensure!(line.len > 0, fault("no bytes".to_owned()));
            let Some(bytes) = brought.get(range.clone()) else {
                return Err(fault(format!("bytes {range:?}, but {} were read", brought.len())));
            };
            ensure!(line.pid == Some(server.pid()), fault(format!("not PID {}", server.pid())));
            ensure!(
                !shown[range.clone()].contains(&true),
                fault(format!("bytes of {range:?} are in two lines"))
            );
            shown[range.clone()].fill(true);
            self.expect_segment(line, &range, bytes).map_err(|error| fault(format!("{error:#}")))?;
        }
        let all = shown.iter().filter(|shown| **shown).count();
        Ok((all.try_into()?, brought.len().try_into()?))
    }

    /// The line's bytes are within a segment that was accepted, and brought one of them at least. Its times, as far as they are known,
    /// are that segment's.
    fn expect_segment(&self, line: &Line, range: &Range<usize>, bytes: &[usize]) -> Result<()> {
        let ts = line.ts.with_timezone(&Utc);
        self.expect_read(ts, range)?;
        let ago = |ns: u64| ts - TimeDelta::nanoseconds(ns.try_into().unwrap_or(i64::MAX));
        let came = [line.total.map(ago), line.stages[2].map(ago)];
        let is_of = |step: usize| {
            let done = &self.done[step];
            let next = self.done.get(step + 1).map_or(DateTime::<Utc>::MAX_UTC, |next| next.from);
            let is_its_time = |came: &DateTime<Utc>| *came >= done.from - CLOCK_ERROR && *came < next;
            done.covers(range) && bytes.contains(&step) && came.iter().flatten().all(is_its_time)
        };
        ensure!(
            (0..self.done.len()).any(is_of),
            "no segment that brought any of {range:?} has all of it and came at {:?}",
            came.iter().flatten().collect::<Vec<_>>()
        );
        Ok(())
    }

    /// The line was finished by the read that took its first byte.
    fn expect_read(&self, ts: DateTime<Utc>, range: &Range<usize>) -> Result<()> {
        let mut taken = 0;
        for done in self.done.iter().filter(|done| done.bytes > 0) {
            taken += done.bytes;
            if taken as usize > range.start + FIRST as usize {
                ensure!(
                    ts >= done.from - CLOCK_ERROR && ts <= done.to + CLOCK_ERROR,
                    "not the time of its read"
                );
                return Ok(());
            }
        }
        bail!("bytes that no call read")
    }
}

/// The bytes of a step's segment.
fn fill(step: usize) -> Result<u8> {
    Ok(u8::try_from(step)? + b'A')
}

const fn valid(offset: u32, len: u32) -> Step {
    Step::Send { offset, len, flaw: Flaw::None }
}

/// The dropped segment lies behind one that overlaps it and comes next; then comes the one that fills the hole. The one accepted last has
/// its line with its times. The other, whose first bytes came twice, at least has no time of another.
///
/// The kernel drops it in the softirq that brought it (`tcp_drop`, which has no tracepoint before Linux 5.18), or, where a thread
/// owns the socket, from the backlog (`tcp_add_backlog`, `__release_sock`), when other segments have been looked at since.
fn fixed(is_held: bool) -> Result<Check> {
    let plan = |flaw: Flaw| {
        let mut plan = vec![Step::Send { offset: 100, len: 100, flaw }, valid(50, 100), valid(0, 100)];
        if is_held {
            plan.insert(0, Step::Hold);
            plan.push(Step::Release);
        }
        plan.push(Step::Read(1_000));
        plan
    };
    let mut table = Table::new(FLAWS.map(plan).to_vec())?;
    table.play()?;
    Ok(Box::new(move |evidence| {
        let mut faults = Vec::new();
        for (connection, flaw) in table.connections.iter().zip(FLAWS) {
            let verdict = connection.check(evidence, &table.server).and_then(|(shown, read)| {
                ensure!(
                    read == 150,
                    "{read} bytes read, not 150: the kernel does otherwise than this test thinks"
                );
                ensure!(
                    shown >= 100,
                    evidence.outcome.fault(format_args!("{shown} of {read} bytes have a line"), [])
                );
                println!("{flaw:?}: {shown} of {read} bytes have a line");
                Ok(())
            });
            let beginning =
                |error: anyhow::Error| format!("{error:#}").lines().take(12).collect::<Vec<_>>().join("\n");
            faults.extend(verdict.err().map(|error| format!("{flaw:?}: {}", beginning(error))));
        }
        let _ends = (&table.path, &table.client);
        let what = || format!("{} of {} flaws:\n{}", faults.len(), FLAWS.len(), faults.join("\n"));
        ensure!(faults.is_empty(), evidence.outcome.fault(what(), []));
        Ok(())
    }))
}

/// What TCP had accepted is dropped later, for want of room in the socket's buffer (`tcp_prune_ofo_queue`, the highest numbers first),
/// while it gets other segments. Its bytes come again, cut otherwise.
fn pruned() -> Result<Check> {
    const ROOM: u32 = 4096;
    let plan = vec![
        valid(1_100, 100),
        // Each takes some 800 bytes of the room.
        Step::Burst { offset: 10, count: 30 },
        // Frees what it covers.
        valid(0, 1_000),
        Step::Read(2_000),
        valid(1_050, 100),
        valid(1_000, 100),
        Step::Read(2_000),
    ];
    let again = 4;
    let mut table = Table::with_room(vec![plan], Some(ROOM))?;
    table.play()?;
    Ok(Box::new(move |evidence| {
        let _ends = (&table.path, &table.client);
        let brought = table.connections[0].brought()?;
        ensure!(
            brought.len() == 1_150 && brought[1_100..].iter().all(|step| *step == again),
            "{} bytes were read, the last of them from step {:?}: the first segment was not pruned",
            brought.len(),
            brought.last()
        );
        let (shown, read) = table.check(evidence)?;
        println!("{shown} of {read} bytes have a line");
        ensure!(
            shown >= 1_100,
            evidence.outcome.fault(format_args!("{shown} of {read} bytes have a line"), [])
        );
        Ok(())
    }))
}

/// Plans that a seed repeats: segments at random within a small window, some with flaws, reads, looks, and a socket that is held.
fn random_plans() -> Result<Check> {
    const PLANS: usize = 20;
    let seed = match env::var(SEED) {
        Ok(seed) => seed.parse()?,
        Err(_) => Utc::now().timestamp_subsec_nanos().into(),
    };
    println!("{PLANS} plans, {SEED}={seed}");
    let mut random = Random::new(seed);
    let mut table = Table::new((0..PLANS).map(|_| random_plan(&mut random)).collect())?;
    let start = Instant::now();
    table.play()?;
    println!("played in {} ms", start.elapsed().as_millis());
    Ok(Box::new(move |evidence| {
        let _ends = (&table.path, &table.client);
        let (shown, read) = table.check(evidence)?;
        println!("{shown} of {read} bytes that were read have a line");
        ensure!(
            shown * 2 > read,
            evidence.outcome.fault(format_args!("{shown} of {read} bytes have a line"), [])
        );
        Ok(())
    }))
}

/// One-byte segments behind a hole that is never filled, in one connection: `tcp_data_queue_ofo` keeps them all, so that more wait than
/// there is room for. Another connection's segments, which wait for a slow reader meanwhile, have their lines all the same. When the
/// first one's socket is closed (`tcp_destroy_sock`), nothing waits any more.
fn flood() -> Result<Check> {
    const SEGMENTS: u32 = 62_000;
    const WRITES: u32 = 200;
    /// From then on an entry that waits may have to make room.
    const SLOW: Duration = Duration::from_millis(1_200);
    let mut table = Table::new(vec![Vec::new()])?;
    let other = Path::private_loopback(Version::V4)?;
    let mut pair = Pair::connect(&other)?;
    let bytes = pair.client.ask(&format!("write-small {WRITES}"))?;
    sleep(SLOW);
    let start = Instant::now();
    for offset in 1..=SEGMENTS {
        table.send(0, offset, 1, Flaw::None)?;
    }
    println!("{SEGMENTS} segments in {} ms", start.elapsed().as_millis());
    pair.server.ask(&format!("read {bytes} 65536 0"))?;
    table.server.ask("crafted close 0")?;
    Ok(Box::new(move |evidence| {
        let _ends = (&table.path, &table.client, &other);
        let of = |dir: Dir| {
            // What a busy machine makes TCP send again is no line more.
            let is_its = move |line: &&Line| line.dir == dir && !line.is("control") && !line.is("retrans");
            evidence.lines.iter().filter(is_its).filter(|line| pair.is_request(line)).collect::<Vec<_>>()
        };
        let (out, into) = (of(Dir::Out), of(Dir::In));
        ensure!(
            into.len() * 100 >= out.len() * 99 && out.len() as u32 == WRITES,
            evidence.outcome.fault(format_args!("{} lines in, {} lines out", into.len(), out.len()), into)
        );
        let ledger = evidence.outcome.ledger()?;
        ensure!(
            ledger.waiting <= evidence.outcome.allowance().most(ledger.seen),
            evidence.outcome.fault(format_args!("{} wait, though nothing is open", ledger.waiting), [])
        );
        Ok(())
    }))
}

fn random_plan(random: &mut Random) -> Vec<Step> {
    const WINDOW: usize = 600;
    const LONGEST: usize = 200;
    const STEPS: usize = 12;
    let mut number = |from: usize, end: usize| (from + random.below(end - from)) as u32;
    let mut plan = Vec::new();
    let mut is_held = false;
    for _ in 0..STEPS {
        plan.push(match number(0, 20) {
            0..10 => {
                let offset = number(0, WINDOW - 1);
                valid(offset, number(1, LONGEST.min(WINDOW - offset as usize) + 1))
            }
            10..15 => Step::Send {
                offset: number(0, WINDOW),
                len: number(1, LONGEST),
                flaw: FLAWS[number(0, FLAWS.len()) as usize],
            },
            // A reader would wait for who holds the socket.
            15 | 16 if !is_held => Step::Read(number(1, WINDOW)),
            17 if !is_held => Step::Peek(number(1, WINDOW)),
            15..18 => Step::Send { offset: number(0, WINDOW), len: number(1, LONGEST), flaw: Flaw::NoAck },
            _ => {
                is_held = !is_held;
                if is_held { Step::Hold } else { Step::Release }
            }
        });
    }
    if is_held {
        plan.push(Step::Release);
    }
    // What fills all holes: in one piece, or two.
    let cut = number(1, WINDOW);
    if number(0, 2) == 0 {
        plan.extend([valid(cut, WINDOW as u32 - cut), valid(0, cut)]);
    } else {
        plan.push(valid(0, WINDOW as u32));
    }
    plan.extend([Step::Read(number(1, WINDOW)), Step::Read(2 * WINDOW as u32)]);
    plan
}
