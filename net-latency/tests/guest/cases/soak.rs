//! Mixed traffic for a while, and no impossible line: whatever the tool says of a packet has to be something that
//! can have happened to the connection that the packet belonged to.
//!
//! What the traffic is follows from a seed, which is printed; when it happens does not.

use std::{
    collections::{HashMap, HashSet},
    env, fmt, fs,
    io::Read as _,
    mem,
    net::SocketAddr,
    process::ChildStdout,
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context as _, Result, anyhow, ensure};

use super::Case;
use crate::{
    allowance::Allowance,
    lines::{Dir, Line, NET, Proto, QDISC, parse},
    net::{Path, Version},
    peers::{
        Peer,
        traffic::{Flow, Random},
    },
    process::until,
    tool::{Backend, Launch, Outcome, Scratch, Sink},
};

pub(crate) const CASES: &[Case] = &[("soak", soak)];

/// Seconds of traffic; 10 if it isn't set.
const SECONDS: &str = "NET_LATENCY_SOAK_SECONDS";
/// Repeats an earlier run's traffic.
const SEED: &str = "NET_LATENCY_SOAK_SEED";
/// After each round its lines are checked, so that no more of them have to be kept.
const ROUND: Duration = Duration::from_secs(10);
/// Connections that each client has at a time.
const THREADS: u32 = 3;
/// Both times are from this machine's clock; the tool's is mapped to it by a sample.
const CLOCK_NS: i64 = 1_000_000;
/// The tool shows its lines within 100 ms.
const QUIET: Duration = Duration::from_millis(300);
/// The most memory that the tool may use after all that traffic, beside the pages of its program (8 MiB; 13 for arm64, where that is not
/// optimized),
const RESIDENT_KB: u64 = 24 * 1024;
/// and at its peak, which is while it starts: 23 to 25 MiB were seen, most on Linux 7.3, whose types are the most.
const PEAK_KB: u64 = 28 * 1024;
/// The most bytes that one line has.
const LONGEST_LINE: u64 = 64 * 1024;
/// By kprobe one byte in this many may be missing at most.
const KPROBE_SHARE: u64 = 100;
/// Of N lines one may lack the parts of its time in the socket: 5 of 13,905 were seen (Linux 7.3), and 2 of 15,030 (5.10), whose
/// reader was not seen.
const UNSPLIT: usize = 1_000;
/// And N that were taken behind a segment that came twice: 15 behind 3 were seen (PREEMPT_RT).
const BEHIND: usize = 8;
/// That many bytes to one without a line, whatever was skipped: segments joined and cut anew when TCP sends them again out
/// of order can leave a piece that no line has.
const JOINED: u64 = 10_000;

fn soak(backend: Backend) -> Result<()> {
    let number = |name: &str| env::var(name).ok().map(|text| text.parse::<u64>()).transpose();
    let time = Duration::from_secs(number(SECONDS)?.unwrap_or(10));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let seed = number(SEED)?.unwrap_or(u64::from(now.subsec_nanos()));
    println!("{} s of mixed traffic, {SEED}={seed}", time.as_secs());

    let disturbed = Path::veth(Version::V6)?;
    disturbed.disturb()?;
    let mut stages = Vec::new();
    for path in [Path::private_loopback(Version::V4)?, Path::veth(Version::V4)?, disturbed] {
        stages.push(Stage::set(path)?);
    }
    let is_fine = backend != Backend::Kprobe;
    let mut launch = Launch::new(backend).sink(Sink::Pipe).under_load();
    if is_fine {
        // Every line's parts have to add up, to the nanosecond.
        launch = launch.args(&["--stages", "fine"]);
    }
    let mut tool = launch.start()?;
    let output = Output::follow(tool.stdout()?);
    let (mut random, start) = (Random::new(seed), Instant::now());
    let mut verdict = Verdict { is_fine, ..Verdict::default() };
    let mut left = time;
    while !left.is_zero() {
        let round = left.min(ROUND);
        left -= round;
        let mut flows = Vec::new();
        for stage in &mut stages {
            stage.begin(&mut random, round)?;
        }
        for stage in &stages {
            stage.finish(&mut flows)?;
        }
        let text = output.when_quiet()?;
        verdict.judge(flows, parse(&text)?);
        verdict.expect_possible()?;
    }
    let memory = |name| memory_kb(tool.pid(), name);
    // It is a file, or in memory as one.
    let program = memory("RssFile:")? + memory("RssShmem:")?;
    let (resident, peak) = (memory("VmRSS:")? - program, memory("VmHWM:")? - program);
    let outcome = tool.stop()?;
    let rest = output.end()?;
    // Twice, since flows are judged one round late.
    verdict.judge(Vec::new(), parse(&rest)?);
    verdict.judge(Vec::new(), Vec::new());
    println!(
        "{verdict:#?}\n{} s, the tool's memory {resident} KiB, at most {peak} KiB",
        start.elapsed().as_secs()
    );
    println!("{}", outcome.stderr.join("\n"));
    verdict.expect_possible()?;
    verdict.expect_complete(&outcome)?;
    let is_small = resident <= RESIDENT_KB && peak <= PEAK_KB;
    ensure!(is_small, outcome.fault(format_args!("the tool takes {resident} KiB, and took {peak} KiB"), []));
    Ok(())
}

/// The tool's memory by this name of /proc/PID/status.
fn memory_kb(pid: u32, name: &str) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let memory = status.lines().find_map(|line| line.strip_prefix(name)).context("no such line of status")?;
    Ok(memory.trim().trim_end_matches(" kB").parse()?)
}

/// The tool's lines as they come: read at once, so that its reader never is slow.
struct Output {
    text: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<Result<()>>,
}

impl Output {
    fn follow(mut pipe: ChildStdout) -> Self {
        let text = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&text);
        let reader = thread::spawn(move || {
            let mut buffer = vec![0; 1 << 16];
            loop {
                let read = pipe.read(&mut buffer)?;
                if read == 0 {
                    return Ok(());
                }
                shared.lock().map_err(|_| anyhow!("panicked"))?.extend_from_slice(&buffer[..read]);
            }
        });
        Self { text, reader }
    }

    /// All lines so far, once no more come.
    fn when_quiet(&self) -> Result<String> {
        let mut seen = usize::MAX;
        loop {
            thread::sleep(QUIET);
            let mut text = self.text.lock().map_err(|_| anyhow!("the reader panicked"))?;
            if text.len() == seen {
                return Ok(String::from_utf8(mem::take(&mut text))?);
            }
            seen = text.len();
        }
    }

    /// What came since, once the tool has ended.
    fn end(self) -> Result<String> {
        until(QUIET, || Ok(self.reader.is_finished()))?;
        self.reader.join().map_err(|_| anyhow!("the reader panicked"))??;
        let mut text = self.text.lock().map_err(|_| anyhow!("the reader panicked"))?;
        Ok(String::from_utf8(mem::take(&mut text))?)
    }
}

/// A path with servers, and clients of them.
struct Stage {
    servers: Vec<(Peer, SocketAddr)>,
    clients: Vec<(Peer, Scratch)>,
    /// Its namespaces live as long as it does.
    _path: Path,
}

impl Stage {
    fn set(path: Path) -> Result<Self> {
        let (mut servers, mut clients) = (Vec::new(), Vec::new());
        for name in [b"nl-server-a", b"nl-server-b"] {
            let mut server = path.far(|| Peer::spawn(name))?;
            let address = path.addresses().1;
            let port = server.ask(&format!("serve-traffic {address}"))?.try_into()?;
            servers.push((server, SocketAddr::new(address, port)));
        }
        for name in [b"nl-client-a", b"nl-client-b"] {
            clients.push((path.near(|| Peer::spawn(name))?, Scratch::new("flows")));
        }
        Ok(Self { servers, clients, _path: path })
    }

    fn begin(&mut self, random: &mut Random, time: Duration) -> Result<()> {
        let servers: Vec<_> = self.servers.iter().map(|(_, address)| address.to_string()).collect();
        for (client, log) in &mut self.clients {
            let (seed, log, time) = (random.next(), log.path().display(), time.as_millis());
            client.tell(&format!("play-traffic {seed} {time} {THREADS} {log} {}", servers.join(" ")))?;
        }
        Ok(())
    }

    fn finish(&self, flows: &mut Vec<Owned>) -> Result<()> {
        for (client, log) in &self.clients {
            client.answer()?;
            for flow in Flow::parse_log(&fs::read_to_string(log.path())?)? {
                let server = self.servers.iter().find(|(_, address)| *address == flow.far);
                let (server, _) = server.with_context(|| format!("{flow:?} has no server"))?;
                flows.push(Owned { flow, client: client.pid(), server: server.pid(), lines: Vec::new() });
            }
        }
        Ok(())
    }
}

/// Flows to be judged with what comes next.
#[derive(Default)]
struct Latest(Vec<Owned>);

impl fmt::Debug for Latest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} flows", self.0.len())
    }
}

impl Owned {
    /// No two have the same.
    fn key(&self) -> (SocketAddr, SocketAddr, i64) {
        (self.flow.near, self.flow.far, self.flow.opened)
    }
}

/// A connection, whose it was, and what the tool said of it.
struct Owned {
    flow: Flow,
    client: u32,
    server: u32,
    lines: Vec<Line>,
}

/// What became of all lines.
#[derive(Debug, Default)]
struct Verdict {
    /// Whether parts were requested.
    is_fine: bool,
    /// The flows of the last round: a line may still come.
    latest: Latest,
    flows: usize,
    lines: usize,
    retransmissions: usize,
    /// Two copies of a segment arrived, so that the line has no stamps.
    ambiguous: usize,
    /// Of the rest: a stage is unknown.
    partial: usize,
    /// Of the rest: what its time in the socket was is unknown.
    unsplit: usize,
    /// Sent for the first time, and when the ACK came is unknown.
    unacknowledged: usize,
    /// Of all: no process is named.
    nameless: usize,
    /// Payload bytes of both directions.
    bytes: u64,
    /// Those of them that are on no line of the way out, of the way in.
    missing_out: u64,
    missing_in: u64,
    /// Lines that can't be true, and why.
    rejected: Vec<String>,
}

impl Verdict {
    /// Takes the flows of a round and all lines that came with it, and judges the flows of the round before: a busy tool's
    /// last lines come in the next round.
    fn judge(&mut self, flows: Vec<Owned>, lines: Vec<Line>) {
        let mut by_ends: HashMap<_, Vec<Owned>> = HashMap::new();
        self.flows += flows.len();
        let before = mem::take(&mut self.latest.0);
        let is_due: HashSet<_> = before.iter().map(Owned::key).collect();
        for owned in before.into_iter().chain(flows) {
            by_ends.entry((owned.flow.near, owned.flow.far)).or_default().push(owned);
        }
        for line in lines {
            self.lines += 1;
            let (from, to) =
                (SocketAddr::new(line.saddr, line.sport), SocketAddr::new(line.daddr, line.dport));
            let at = line.ts.timestamp_nanos_opt().unwrap_or(0);
            let key = if by_ends.contains_key(&(from, to)) { (from, to) } else { (to, from) };
            // Ports are used again: it is the last connection that had begun by then.
            let begun = |owned: &&mut Owned| owned.flow.opened <= at + CLOCK_NS;
            let owned = by_ends
                .get_mut(&key)
                .and_then(|flows| flows.iter_mut().filter(begun).max_by_key(|owned| owned.flow.opened));
            match owned {
                Some(owned) => owned.lines.push(line),
                None => self.reject("of no connection", &line),
            }
        }
        for owned in by_ends.into_values().flatten() {
            if is_due.contains(&owned.key()) {
                self.judge_flow(&owned);
            } else {
                self.latest.0.push(owned);
            }
        }
    }

    fn reject(&mut self, why: &str, line: &Line) {
        self.rejected.push(format!("{why}: {}", line.raw));
    }

    fn judge_flow(&mut self, owned: &Owned) {
        for line in &owned.lines {
            self.judge_line(owned, line);
        }
        let requests =
            |line: &&Line| line.sport == owned.flow.near.port() && line.dport == owned.flow.far.port();
        let (sent, read) = (owned.flow.sent, owned.flow.read);
        self.judge_bytes(owned.lines.iter().filter(requests).collect(), sent);
        self.judge_bytes(owned.lines.iter().filter(|line| !requests(line)).collect(), read);
    }

    fn judge_line(&mut self, owned: &Owned, line: &Line) {
        let Owned { flow, client, server, .. } = owned;
        let (retrans, ambiguous) = (line.is("retrans"), line.is("ambiguous"));
        self.retransmissions += usize::from(retrans);
        self.ambiguous += usize::from(ambiguous);
        let is_request = line.sport == flow.near.port();
        let owner = if is_request == (line.dir == Dir::Out) { *client } else { *server };
        match line.pid {
            Some(pid) if pid != owner => self.reject(&format!("that end was process {owner}'s"), line),
            Some(_) => {}
            None => self.nameless += 1,
        }
        if line.proto != Proto::Tcp || line.is("control") || line.len == 0 || line.segs == 0 {
            self.reject("that was not sent", line);
        }
        let at = line.ts.timestamp_nanos_opt().unwrap_or(0);
        // With parts, the line of a packet that was sent has the time at which its ACK was worked on.
        let may_be_late = retrans || self.is_fine && line.dir == Dir::Out;
        if at > flow.closed + CLOCK_NS && !may_be_late {
            self.reject("after the connection's end", line);
        }
        // Each stage is at most the sum of those known, and so is what follows.
        let known: u64 = line.stages.iter().chain(&[line.sent[QDISC], line.sent[NET]]).flatten().sum();
        let life = u64::try_from(at - flow.opened + CLOCK_NS).unwrap_or(0);
        if known > life {
            self.reject(&format!("the connection was {life} ns old"), line);
        }
        let sum: Option<u64> = line.stages.iter().copied().sum();
        match (sum, line.total) {
            (Some(0), _) => self.reject("took no time", line),
            (Some(sum), total) if total != Some(sum) => self.reject("total is not the sum", line),
            (None, _) if ambiguous && known > 0 => self.reject("has stamps, though ambiguous", line),
            (None, _) if !ambiguous && !retrans => self.partial += 1,
            _ => {}
        }
        if self.is_fine {
            self.judge_parts(line);
        }
    }

    /// That a time in the socket is as long as its parts is looked at wherever a line is read.
    fn judge_parts(&mut self, line: &Line) {
        let is_known = line.stages.iter().all(Option::is_some);
        match line.dir {
            Dir::In => self.unsplit += usize::from(is_known && line.fine.is_none()),
            Dir::Out => self.unacknowledged += usize::from(line.sent[NET].is_none() && !line.is("retrans")),
        }
    }

    /// Judges the bytes of one direction of a connection, `bytes` in all.
    fn judge_bytes(&mut self, lines: Vec<&Line>, bytes: u64) {
        self.bytes += bytes;
        let first_sent = |line: &&&Line| line.dir == Dir::Out && !line.is("retrans");
        let read = |line: &&&Line| line.dir == Dir::In;
        let Some(first) = lines.iter().find(first_sent).or_else(|| lines.iter().find(read)) else {
            self.missing_out += bytes;
            self.missing_in += bytes;
            return;
        };
        // Numbers wrap, distances within a connection don't.
        let start = |line: &Line| i64::from(line.seq.wrapping_sub(first.seq).cast_signed());
        let end = |line: &Line| start(line) + i64::from(line.len);
        let base = lines.iter().filter(|line| first_sent(line) || read(line)).map(|line| start(line)).min();
        let base = base.unwrap_or(0);
        let limit = base + i64::try_from(bytes).unwrap_or(i64::MAX);
        for line in &lines {
            if start(line) < base || end(line) > limit {
                self.reject(&format!("beyond the {bytes} bytes"), line);
            }
        }
        for dir in [Dir::Out, Dir::In] {
            let mut ranges: Vec<_> =
                lines.iter().filter(|line| line.dir == dir && !line.is("retrans")).collect();
            ranges.sort_by_key(|line| (start(line), end(line)));
            let (mut until, mut covered) = (base, 0);
            for line in ranges {
                if start(line) < until && !line.is("ambiguous") {
                    self.reject("bytes that had a line", line);
                }
                covered += (end(line) - start(line).max(until)).max(0);
                until = until.max(end(line));
            }
            let missing = bytes.saturating_sub(covered.unsigned_abs());
            match dir {
                Dir::Out => self.missing_out += missing,
                Dir::In => self.missing_in += missing,
            }
        }
    }

    /// No line is impossible. What the kernel skipped is no excuse, so the footer isn't part of the error.
    fn expect_possible(&self) -> Result<()> {
        let first: Vec<_> = self.rejected.iter().take(5).map(String::as_str).collect();
        ensure!(
            self.rejected.is_empty(),
            "{} impossible lines of {}:\n{}",
            self.rejected.len(),
            self.lines,
            first.join("\n")
        );
        Ok(())
    }

    /// All bytes are on a line with a name, as far as the tool doesn't say otherwise.
    fn expect_complete(&self, outcome: &Outcome) -> Result<()> {
        ensure!(self.flows > 50 && self.lines > 500, "hardly any traffic: {self:?}");
        ensure!(self.retransmissions > 0, "nothing was sent again, so nothing was lost: {self:?}");
        ensure!(outcome.lost()? == 0, outcome.fault("lines were lost", []));
        ensure!(
            self.unsplit <= self.lines / UNSPLIT + self.ambiguous * BEHIND,
            outcome.fault(format_args!("{} times are not split", self.unsplit), [])
        );
        let gaps = self.missing_out + self.missing_in;
        let holes = u64::try_from(self.partial + self.nameless)?;
        let (joined, lines) = (self.bytes / JOINED, u64::try_from(self.lines)?);
        let most = outcome.allowance().most(lines);
        println!("{gaps} bytes and {holes} holes are missing, {most} of {lines} lines may be");
        let by_kprobe = matches!(outcome.allowance(), Allowance::Share { .. });
        let limit = if by_kprobe { self.bytes / KPROBE_SHARE } else { u64::MAX };
        let most_bytes = limit.min(most * LONGEST_LINE);
        ensure!(
            self.missing_out <= most_bytes && self.missing_in <= most_bytes + joined && holes <= most,
            outcome.fault(format_args!("not complete: {self:?}"), [])
        );
        Ok(())
    }
}
