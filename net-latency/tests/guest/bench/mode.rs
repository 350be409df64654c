//! What traces while that goes on.

use std::{
    fs,
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use net_latency::inside::memory;
use serde_json::{Value, json};

use super::{SETTLED, bpftrace::Bpftrace, connections::Other, floor::Floor, load::Load};
use crate::{
    cases::export::LISTEN,
    ftrace::Tracing,
    peers::Peer,
    tool::{Backend, Launch, Scratch, Sink, Tool},
};

/// What is traced, and by which tool.
#[derive(Clone, Copy)]
pub(super) enum Mode {
    Nothing,
    Stream(Backend),
    /// One process that does nothing.
    IdlePid,
    /// Packets slower than there are.
    Slower,
    /// Distributions alone, without a record per packet.
    Hist,
    /// Distributions alone, for metrics that are not scraped.
    Export,
    /// The stream with fine stages.
    Fine,
    /// A line per connection.
    Connections(Backend),
    /// The kernel's own function tracer on the same functions: raw events that are not read.
    Ftrace,
    /// Waiting for a packet to follow that never comes.
    Journey(Backend),
    /// Programs that do nothing, on all that the stream hooks.
    Floor(Backend),
    /// A script that shows the same stages of TCP.
    Bpftrace,
}

impl Mode {
    pub(super) const ALL: [Self; 16] = [
        Self::Nothing,
        Self::Stream(Backend::Fentry),
        Self::Stream(Backend::Kprobe),
        Self::IdlePid,
        Self::Slower,
        Self::Hist,
        Self::Export,
        Self::Fine,
        Self::Connections(Backend::Fentry),
        Self::Connections(Backend::Kprobe),
        Self::Ftrace,
        Self::Journey(Backend::Fentry),
        Self::Journey(Backend::Kprobe),
        Self::Floor(Backend::Fentry),
        Self::Floor(Backend::Kprobe),
        Self::Bpftrace,
    ];

    /// Those that are watched over.
    pub(super) const WATCHED: [Self; 5] = [
        Self::Nothing,
        Self::Stream(Backend::Fentry),
        Self::Stream(Backend::Kprobe),
        Self::IdlePid,
        Self::Hist,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Stream(Backend::Kprobe) => "stream, kprobe",
            Self::Stream(_) => "stream, fentry",
            Self::IdlePid => "--pid of an idle process, fentry",
            Self::Slower => "--slower 10s, fentry",
            Self::Hist => "hist, fentry",
            Self::Export => "export, fentry",
            Self::Fine => "--stages fine, fentry",
            Self::Connections(Backend::Kprobe) => "connections, kprobe",
            Self::Connections(_) => "connections, fentry",
            Self::Ftrace => "ftrace function, 8 functions",
            Self::Journey(Backend::Kprobe) => "journey waiting, kprobe",
            Self::Journey(_) => "journey waiting, fentry",
            Self::Floor(Backend::Kprobe) => "empty programs, kprobe",
            Self::Floor(_) => "empty programs, fentry",
            Self::Bpftrace => "bpftrace, the same stages",
        }
    }

    /// Whether the kernel runs BPF programs of ours.
    pub(super) fn has_programs(self) -> bool {
        !matches!(self, Self::Nothing | Self::Ftrace | Self::Bpftrace)
    }

    /// Whether it has something to say about a load.
    pub(super) fn sees(self, load: Load) -> bool {
        !matches!((self, load), (Self::Bpftrace, Load::Datagrams))
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

/// What traces, if anything does.
pub(super) enum Running {
    Nothing,
    Tool { tool: Tool, start: Duration, _idle: Option<Peer> },
    Ftrace { _tracing: Tracing },
    Floor { _floor: Floor },
    Bpftrace(Bpftrace),
    Other(Other),
}

impl Running {
    pub(super) fn start(mode: Mode) -> Result<Self> {
        let idle = matches!(mode, Mode::IdlePid).then(|| Peer::spawn(b"nl-idle")).transpose()?;
        let launch = match mode {
            Mode::Nothing => return Ok(Self::Nothing),
            Mode::Ftrace => {
                let mut tracing = Tracing::of_events(&[])?;
                tracing.set_functions(FUNCTIONS)?;
                return Ok(Self::Ftrace { _tracing: tracing });
            }
            Mode::Floor(backend) => return Ok(Self::Floor { _floor: Floor::attach(backend)? }),
            Mode::Bpftrace => return Ok(Self::Bpftrace(Bpftrace::start()?)),
            Mode::Stream(backend) => Launch::new(backend),
            Mode::IdlePid => {
                let pid = idle.as_ref().context("there is one")?.pid();
                Launch::new(Backend::Fentry).args(&["--pid", &pid.to_string()])
            }
            // The discard protocol's.
            Mode::Journey(backend) => Launch::new(backend).view("journey").args(&["--port", "9"]),
            Mode::Slower => Launch::new(Backend::Fentry).args(&["--slower", "10s"]),
            Mode::Fine => Launch::new(Backend::Fentry).args(&["--stages", "fine"]),
            Mode::Connections(backend) => Launch::new(backend).view("connections"),
            Mode::Hist => hist(),
            Mode::Export => export("none"),
        };
        Self::launch(launch, idle)
    }

    /// The tool.
    pub(super) fn launch(launch: Launch, idle: Option<Peer>) -> Result<Self> {
        let begin = Instant::now();
        let tool = launch.text().start()?;
        Ok(Self::Tool { tool, start: begin.elapsed(), _idle: idle })
    }

    /// The tool, if it is what traces.
    pub(super) fn tool(&self) -> Option<&Tool> {
        if let Self::Tool { tool, .. } = self { Some(tool) } else { None }
    }

    /// The process that traces.
    fn pid(&self) -> Option<u32> {
        match self {
            Self::Tool { tool, .. } => Some(tool.pid()),
            Self::Bpftrace(bpftrace) => Some(bpftrace.pid()),
            Self::Other(other) => Some(other.pid()),
            Self::Nothing | Self::Ftrace { .. } | Self::Floor { .. } => None,
        }
    }

    /// How long it has run on the processor.
    pub(super) fn busy(&self) -> Result<Duration> {
        let Some(pid) = self.pid() else { return Ok(Duration::ZERO) };
        let text = fs::read_to_string(format!("/proc/{pid}/schedstat"))?;
        let busy = text.split(' ').next().context("an empty schedstat")?;
        Ok(Duration::from_nanos(busy.parse()?))
    }

    /// Waits until what it has seen is written.
    pub(super) fn settle(&self) -> Result<()> {
        if let Self::Bpftrace(bpftrace) = self {
            return bpftrace.settle();
        }
        sleep(SETTLED);
        Ok(())
    }

    /// Lines written so far.
    pub(super) fn lines(&self) -> Result<u64> {
        let file = match self {
            Self::Tool { tool, .. } => tool.file()?,
            Self::Bpftrace(bpftrace) => bpftrace.file(),
            Self::Other(other) => other.file(),
            Self::Nothing | Self::Ftrace { .. } | Self::Floor { .. } => return Ok(0),
        };
        let text = fs::read(file)?;
        Ok(text.iter().filter(|byte| **byte == b'\n').count() as u64)
    }

    /// Ends it, and tells how long that and its start took, its memory, and what it lost; nothing of what has no process.
    pub(super) fn stop(self) -> Result<Option<Value>> {
        let Some(pid) = self.pid() else { return Ok(None) };
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let resident =
            status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
        let Some(resident) = resident else { bail!("no VmRSS in {status}") };
        let maps = memory::of(&Path::new("/proc").join(pid.to_string()))?.maps;
        let begin = Instant::now();
        let (start, lost, said) = match self {
            Self::Tool { tool, start, .. } => {
                let outcome = tool.stop()?;
                (start, outcome.lost()?, losses(&outcome.stderr))
            }
            Self::Bpftrace(bpftrace) => {
                let start = bpftrace.started_in();
                (start, bpftrace.stop()?, Vec::new())
            }
            Self::Other(other) => (Duration::ZERO, 0, other.stop()?),
            Self::Nothing | Self::Ftrace { .. } | Self::Floor { .. } => return Ok(None),
        };
        let milliseconds = |duration: Duration| u64::try_from(duration.as_millis());
        Ok(Some(json!({
            "start_ms": milliseconds(start)?,
            "stop_ms": milliseconds(begin.elapsed())?,
            "resident_kib": resident.parse::<u64>()?,
            "maps_kib": maps >> 10,
            "lost": lost,
            "said": said,
        })))
    }
}

/// Distributions over all packets.
pub(super) fn hist() -> Launch {
    Launch::new(Backend::Fentry).view("hist").sink(Sink::Redirected(Scratch::new("hist")))
}

/// Metrics of such groups.
pub(super) fn export(by: &str) -> Launch {
    let launch = Launch::new(Backend::Fentry).view("export").sink(Sink::Redirected(Scratch::new("export")));
    launch.args(&LISTEN).args(&["--by", by])
}

/// The lines of the footer that count what went wrong.
fn losses(said: &[String]) -> Vec<String> {
    let counts =
        |line: &&str| line.split(' ').next().is_some_and(|word| word != "0" && word.parse::<u64>().is_ok());
    let lines = said.iter().filter_map(|line| line.strip_prefix("  ")).filter(counts);
    lines.filter(|line| !line.contains(" packets seen")).map(str::to_owned).collect()
}
