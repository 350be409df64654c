//! What tracing adds to a message's way, and what one gets for it: one JSON object a line for each figure.
//!
//! Meant for a guest whose clock counts instructions (`cargo xtask bench`): there a figure repeats within a few per
//! mille on any machine, and all that the one processor does counts, the tool's own user side too.

use std::{
    fs,
    process::ExitCode,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use serde_json::json;

use crate::{
    ftrace::Tracing,
    net::{Path, Version},
    peers::{CLIENT, Pair, Peer, SERVER},
    tool::{Backend, Launch, Scratch, Sink, Tool},
};

/// First argument of a bench.
pub(crate) const ROLE: &str = "bench";

/// Messages before those that count: caches, windows and buffers find their sizes.
const WARM_UP: u32 = 500;
/// Each time with new sockets, of which the cheapest counts: whose addresses and ports share the fewest places of hash
/// tables, and where the fewest interrupts came.
const TRIES: usize = 3;
/// What the tool needs to write what it has read: it reads every 40 ms, and holds the newest back once.
const SETTLED: Duration = Duration::from_millis(300);
const CONNECTIONS: u32 = 64;

/// What is sent to and fro.
#[derive(Clone, Copy)]
enum Load {
    /// A request of 200 bytes and its reply.
    RoundTrip,
    /// A write of 16 KiB.
    Bulk,
    /// A datagram of 200 bytes and its reply.
    Datagrams,
    /// A request and a reply on each of many connections in turn.
    Connections,
}

impl Load {
    const ALL: [Self; 4] = [Self::RoundTrip, Self::Bulk, Self::Datagrams, Self::Connections];

    fn name(self) -> &'static str {
        match self {
            Self::RoundTrip => "tcp round trip",
            Self::Bulk => "tcp 16 KiB write",
            Self::Datagrams => "udp round trip",
            Self::Connections => "64 connections",
        }
    }

    /// Messages that count.
    fn messages(self) -> u32 {
        match self {
            Self::RoundTrip | Self::Datagrams => 2000,
            Self::Bulk => 1000,
            Self::Connections => 30 * CONNECTIONS,
        }
    }
}

/// What is traced while that goes on.
#[derive(Clone, Copy)]
enum Mode {
    Nothing,
    Stream(Backend),
    /// One process that does nothing.
    IdlePid,
    /// Packets slower than there are.
    Slower,
    /// Distributions alone, without a record per packet.
    Hist,
    /// The kernel's own function tracer on the same functions: raw events that nobody reads.
    Ftrace,
    /// Waiting for a packet to follow that never comes.
    Journey(Backend),
}

impl Mode {
    const ALL: [Self; 9] = [
        Self::Nothing,
        Self::Stream(Backend::Fentry),
        Self::Stream(Backend::Kprobe),
        Self::IdlePid,
        Self::Slower,
        Self::Hist,
        Self::Ftrace,
        Self::Journey(Backend::Fentry),
        Self::Journey(Backend::Kprobe),
    ];

    const WAITING: [Self; 3] =
        [Self::Nothing, Self::Journey(Backend::Fentry), Self::Journey(Backend::Kprobe)];

    fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Stream(Backend::Kprobe) => "stream, kprobe",
            Self::Stream(_) => "stream, fentry",
            Self::IdlePid => "--pid of an idle process, fentry",
            Self::Slower => "--slower 10s, fentry",
            Self::Hist => "hist, fentry",
            Self::Ftrace => "ftrace function, 8 functions",
            Self::Journey(Backend::Kprobe) => "journey waiting, kprobe",
            Self::Journey(_) => "journey waiting, fentry",
        }
    }
}

/// Functions at which the stages can be seen, of each group the first that the kernel has.
const FUNCTIONS: &[&[&str]] = &[
    &["tcp_sendmsg_locked"],
    &["tcp_v4_send_check", "__ip_queue_xmit"],
    &["ip_output"],
    &["__dev_queue_xmit"],
    &["netif_rx", "__netif_rx", "netif_rx_internal"],
    &["ip_rcv_core"],
    &["tcp_v4_rcv"],
    &["tcp_rcv_space_adjust"],
];

/// Measures: with the argument `short` the loads and modes that are watched over, with `journey` those that wait for a
/// packet, else all.
pub(crate) fn main(argument: Option<&str>) -> ExitCode {
    let measured = match argument {
        Some("short") => measure(&SHORT, &Mode::ALL[..4]),
        Some("journey") => measure(&SHORT, &Mode::WAITING),
        _ => measure(&Load::ALL, &Mode::ALL),
    };
    match measured {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The loads that are watched over.
const SHORT: [Load; 2] = [Load::RoundTrip, Load::Datagrams];

fn measure(loads: &[Load], modes: &[Mode]) -> Result<()> {
    let mut places = vec![("loopback", Path::loopback(Version::V4)?)];
    if loads.len() > SHORT.len() {
        places.push(("veth", Path::veth(Version::V4)?));
    }
    for mode in modes {
        let tracing = Running::start(*mode)?;
        for (place, path) in &places {
            for load in loads {
                let mut tries = Vec::new();
                for _ in 0..TRIES {
                    tries.push(play(*load, path, &tracing)?);
                }
                let (ns, lines) = tries.into_iter().min().context("there are tries")?;
                let per_message = |count: u64| count as f64 / f64::from(load.messages());
                let figure = json!({
                    "mode": mode.name(),
                    "load": format!("{}, {place}", load.name()),
                    "ns": ns / u64::from(load.messages()),
                    "lines": per_message(lines),
                });
                println!("{figure}");
            }
        }
        tracing.stop(mode.name())?;
    }
    Ok(())
}

/// How long the messages of `load` take, ns, and how many lines there are of them.
fn play(load: Load, path: &Path, tracing: &Running) -> Result<(u64, u64)> {
    let mut ends = Ends::prepare(load, path)?;
    ends.play(WARM_UP)?;
    sleep(SETTLED);
    let lines = tracing.lines()?;
    let start = Instant::now();
    ends.play(load.messages())?;
    let elapsed = start.elapsed();
    // What the tool still does for these messages counts as well.
    let busy = tracing.busy()?;
    sleep(SETTLED);
    let elapsed = elapsed + (tracing.busy()? - busy);
    Ok((u64::try_from(elapsed.as_nanos())?, tracing.lines()? - lines))
}

/// What traces, if anything does.
enum Running {
    Nothing,
    Tool { tool: Tool, start: Duration, _idle: Option<Peer> },
    Ftrace { _tracing: Tracing },
}

impl Running {
    fn start(mode: Mode) -> Result<Self> {
        let idle = matches!(mode, Mode::IdlePid).then(|| Peer::spawn(b"nl-idle")).transpose()?;
        let launch = match mode {
            Mode::Nothing => return Ok(Self::Nothing),
            Mode::Ftrace => {
                let mut tracing = Tracing::of_events(&[])?;
                tracing.set_functions(FUNCTIONS)?;
                return Ok(Self::Ftrace { _tracing: tracing });
            }
            Mode::Stream(backend) => Launch::new(backend),
            Mode::IdlePid => {
                let pid = idle.as_ref().context("there is one")?.pid();
                Launch::new(Backend::Fentry).args(&["--pid", &pid.to_string()])
            }
            // The discard protocol's.
            Mode::Journey(backend) => Launch::new(backend).view("journey").args(&["--port", "9"]),
            Mode::Slower => Launch::new(Backend::Fentry).args(&["--slower", "10s"]),
            Mode::Hist => {
                Launch::new(Backend::Fentry).view("hist").sink(Sink::Redirected(Scratch::new("hist")))
            }
        };
        let begin = Instant::now();
        let tool = launch.text().start()?;
        Ok(Self::Tool { tool, start: begin.elapsed(), _idle: idle })
    }

    /// How long the tool has run on the processor.
    fn busy(&self) -> Result<Duration> {
        let Self::Tool { tool, .. } = self else { return Ok(Duration::ZERO) };
        let text = fs::read_to_string(format!("/proc/{}/schedstat", tool.pid()))?;
        let busy = text.split(' ').next().context("an empty schedstat")?;
        Ok(Duration::from_nanos(busy.parse()?))
    }

    /// Lines written so far.
    fn lines(&self) -> Result<u64> {
        let Self::Tool { tool, .. } = self else { return Ok(0) };
        let text = fs::read(tool.file()?)?;
        Ok(text.iter().filter(|byte| **byte == b'\n').count() as u64)
    }

    /// Ends it, and tells how long that and its start took, and its memory.
    fn stop(self, mode: &str) -> Result<()> {
        let Self::Tool { tool, start, .. } = self else { return Ok(()) };
        let status = fs::read_to_string(format!("/proc/{}/status", tool.pid()))?;
        let resident =
            status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
        let Some(resident) = resident else { bail!("no VmRSS in {status}") };
        let begin = Instant::now();
        let lost = tool.stop()?.lost()?;
        let milliseconds = |duration: Duration| u64::try_from(duration.as_millis());
        let figure = json!({
            "mode": mode,
            "start_ms": milliseconds(start)?,
            "stop_ms": milliseconds(begin.elapsed())?,
            "resident_kib": resident.parse::<u64>()?,
            "lost": lost,
        });
        println!("{figure}");
        Ok(())
    }
}

/// The two processes of a load, ready to begin.
struct Ends {
    load: Load,
    client: Peer,
    server: Peer,
    /// Where datagrams go.
    to: String,
}

impl Ends {
    fn prepare(load: Load, path: &Path) -> Result<Self> {
        match load {
            Load::RoundTrip | Load::Bulk => {
                let Pair { client, server, .. } = Pair::connect(path)?;
                Ok(Self { load, client, server, to: String::new() })
            }
            Load::Connections => {
                let Pair { mut client, mut server, far, .. } = Pair::prepare(path, CLIENT, SERVER)?;
                client.ask(&format!("many connect {} {} {CONNECTIONS}", far.ip(), far.port()))?;
                server.ask(&format!("many accept {CONNECTIONS}"))?;
                Ok(Self { load, client, server, to: String::new() })
            }
            Load::Datagrams => {
                let (near, far) = path.addresses();
                let mut client = path.near(|| Peer::spawn(CLIENT))?;
                let mut server = path.far(|| Peer::spawn(SERVER))?;
                client.ask(&format!("udp bind {near}"))?;
                let port = server.ask(&format!("udp bind {far}"))?;
                Ok(Self { load, client, server, to: format!("{far}:{port}") })
            }
        }
    }

    fn play(&mut self, messages: u32) -> Result<()> {
        let to = &self.to;
        let (serve, request) = match self.load {
            Load::RoundTrip => (format!("serve {messages} 200 0"), format!("request {messages} 200")),
            Load::Bulk => {
                let bytes = u64::from(messages) << 14;
                (format!("read {bytes} 65536 0"), format!("write-each {messages} {}", 1 << 14))
            }
            Load::Datagrams => {
                (format!("udp echo {messages}"), format!("udp request-to {to} {messages} 200"))
            }
            Load::Connections => {
                let rounds = messages / CONNECTIONS;
                (format!("many serve {rounds} 200"), format!("many request {rounds} 200"))
            }
        };
        self.server.tell(&serve)?;
        self.client.tell(&request)?;
        self.client.answer()?;
        self.server.answer()?;
        Ok(())
    }
}
