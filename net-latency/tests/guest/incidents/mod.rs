//! Incidents in a system of services, and what `diagnose` says of them: one JSON object a line for each run.
//!
//! A client asks a gateway, which asks three services, one after the other. One of them has a fault, or all have it. Meant
//! for a guest whose clock counts instructions (`cargo xtask incidents`): nothing else takes time there, so that faults
//! of 2 ms can be told from what the machine does by itself.
//!
//! [`worlds`] draws such systems at random, with other load beside them.

mod system;
mod worlds;

use std::{
    fs,
    io::Write as _,
    ops::Range,
    process::{Command, ExitCode},
    thread::sleep,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use self::system::{Asks, Connections, Manner, Shape, System, Where, is_of};
use crate::{
    lines::Dir,
    tool::{self, Backend, Launch, Outcome, Scratch, Sink},
};

/// First argument of a run of all incidents.
pub(crate) const ROLE: &str = "incidents";

/// The fault that is made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    /// A service reads late.
    ReadsLate,
    /// Each request has a new connection, which it accepts late.
    AcceptsLate,
    /// A process with a higher priority takes its CPU.
    LosesCpu,
    /// A service sleeps over its answers.
    Works,
    /// It needs a CPU for them.
    Spins,
    /// It writes each answer by two calls, which Nagle's rule keeps apart.
    Halves,
    /// A rule of netfilter's has a program judge what it gets, which takes its time.
    Judges,
    /// Its device holds packets back.
    Queue,
    /// The way back to it takes long.
    Wire,
    /// Some of what it gets comes late.
    Reorder,
    /// The gateway reads its answers slowly.
    SlowReader,
    /// Each long answer has a new connection, whose congestion window is small, over a long way.
    SlowStart,
    /// Some of what it sends is lost.
    Loss,
    /// It leaves some requests without an answer.
    Forgets,
    /// Others send it more requests at once than its socket has room for.
    Overflows,
    /// The quota of its cgroup holds it back.
    Quota,
    /// Now and then one process takes the CPU from all others.
    Stalls,
    /// Nothing is wrong.
    Nothing,
}

/// An incident: the fault, where, how strong, and in which services.
#[derive(Clone, Debug)]
struct Incident {
    fault: Fault,
    place: Where,
    ms: u64,
    /// Services that have it.
    hit: Range<usize>,
    /// Requests; as many as usual if 0.
    rounds: u32,
    /// For how much of the time others use each processor, percent.
    load: u64,
    shape: Shape,
}

/// Services of a system, if nothing else is said, and at most.
const SERVICES: usize = 3;
const MOST_SERVICES: usize = 4;
/// Of each fault that lasts for a time of our choice.
const STRENGTHS: [u64; 3] = [2, 10, 50];

impl Fault {
    const ALL: [Self; 18] = [
        Self::ReadsLate,
        Self::AcceptsLate,
        Self::LosesCpu,
        Self::Works,
        Self::Spins,
        Self::Halves,
        Self::Judges,
        Self::Queue,
        Self::Wire,
        Self::Reorder,
        Self::SlowReader,
        Self::SlowStart,
        Self::Loss,
        Self::Forgets,
        Self::Overflows,
        Self::Quota,
        Self::Stalls,
        Self::Nothing,
    ];

    /// Whether that is the fault. A wait for ACKs over a long way may be called either.
    fn is(self, cause: &Value) -> bool {
        let is_expected = self.expected().is_some_and(|(expected, _)| cause == expected);
        is_expected || self == Self::SlowStart && cause == "network"
    }

    /// The cause that is to be named, and the direction of the service that has it.
    fn expected(self) -> Option<(&'static str, Dir)> {
        Some(match self {
            Self::ReadsLate => ("reader-late", Dir::In),
            Self::AcceptsLate => ("accept-late", Dir::In),
            Self::LosesCpu => ("cpu-wait", Dir::In),
            Self::Works | Self::Spins => ("application", Dir::Out),
            Self::Halves => ("nagle", Dir::Out),
            Self::Judges => ("netfilter", Dir::In),
            Self::Queue => ("qdisc", Dir::Out),
            Self::Wire => ("network", Dir::Out),
            Self::Reorder => ("missing-bytes", Dir::In),
            Self::SlowReader => ("peer-window", Dir::Out),
            Self::SlowStart => ("congestion-window", Dir::Out),
            Self::Loss => ("retransmission", Dir::Out),
            Self::Forgets => ("unanswered", Dir::Out),
            Self::Overflows => ("socket-drop", Dir::In),
            Self::Quota => ("cpu-quota", Dir::Out),
            Self::Stalls | Self::Nothing => return None,
        })
    }

    /// What a recording says in its place, which has only packets: of quotas and queues the machine tells `diagnose`.
    fn recorded_as(self) -> Option<&'static str> {
        match self {
            Self::Quota => Some("application"),
            Self::AcceptsLate => Some("reader-late"),
            _ => None,
        }
    }

    /// Whether it lasts for as long as is wanted.
    fn has_strength(self) -> bool {
        !matches!(
            self,
            Self::Halves | Self::Loss | Self::Forgets | Self::Overflows | Self::Quota | Self::Nothing
        )
    }

    fn places(self) -> &'static [Where] {
        match self {
            // They are of a link.
            Self::Queue | Self::Wire | Self::Reorder | Self::SlowReader | Self::SlowStart | Self::Loss => {
                &[Where::Links]
            }
            // The host of the service alone.
            Self::Judges => &[Where::Links, Where::Bridges],
            _ => &[Where::OneHost, Where::Links, Where::Bridges],
        }
    }

    /// The usual system with it.
    fn shape(self) -> Shape {
        let (manner, connections) = (self.manners()[0], self.connections()[0]);
        Shape { services: SERVICES, gateways: 1, manner, connections, asks: Asks::One }
    }

    /// How services may take their requests, so that it shows.
    fn manners(self) -> &'static [Manner] {
        match self {
            Self::Forgets | Self::Overflows => &[Manner::Datagrams],
            // If several threads accept, the others are in their calls meanwhile.
            Self::AcceptsLate => {
                &[Manner::Alone, Manner::Polls, Manner::Threads, Manner::Forks, Manner::Shards]
            }
            // Datagrams have no acknowledgement, no connection, and no stream.
            Self::Halves | Self::Wire | Self::Reorder | Self::SlowReader | Self::SlowStart | Self::Loss => {
                Manner::OF_STREAMS
            }
            _ => &Manner::ALL,
        }
    }

    /// How the gateway may ask.
    fn connections(self) -> &'static [Connections] {
        match self {
            Self::AcceptsLate | Self::SlowStart => &[Connections::New],
            // Who accepts would be late as well, or the handshake; and of a new connection no ACK is delayed.
            Self::LosesCpu
            | Self::Halves
            | Self::Wire
            | Self::Reorder
            | Self::SlowReader
            | Self::Loss
            | Self::Quota => &[Connections::One, Connections::Several],
            _ => &[Connections::One, Connections::Several, Connections::New],
        }
    }

    /// Whether the gateway is on another machine, as far as the tool can see: else the fault is seen where it is made.
    fn hides_the_gateway(self) -> bool {
        matches!(self, Self::Wire | Self::Reorder | Self::SlowReader | Self::SlowStart | Self::Loss)
    }
}

impl Incident {
    fn all() -> impl Iterator<Item = Self> {
        let strengths = |fault: Fault| if fault.has_strength() { &STRENGTHS[..] } else { &[0] };
        let hits = |fault: Fault| if fault.expected().is_some() { &[1, SERVICES][..] } else { &[SERVICES] };
        Fault::ALL.into_iter().flat_map(move |fault| {
            let of_strength = move |place: Where| {
                let of = move |ms: u64| {
                    hits(fault).iter().map(move |hit| Self {
                        fault,
                        place,
                        ms,
                        hit: 0..*hit,
                        rounds: 0,
                        load: 0,
                        shape: fault.shape(),
                    })
                };
                strengths(fault).iter().flat_map(move |ms| of(*ms))
            };
            fault.places().iter().flat_map(move |place| of_strength(*place))
        })
    }

    /// Makes it, and returns the verdict.
    fn run(&self) -> Result<Value> {
        let outcome = self.play(launch(self.fault))?;
        let verdict: Value = serde_json::from_str(outcome.text()?)
            .map_err(|error| outcome.fault(format_args!("not one JSON object: {error}"), []))?;
        let findings = verdict["findings"].as_array().context("no findings")?;
        let found = findings.iter().map(|finding| {
            let of = |name: &str| finding[name].clone();
            json!([of("process"), of("direction"), of("cause"), of("confidence"), of("share")])
        });
        let expected = self.fault.expected();
        let is_right = |finding: &&Value| {
            let Some((_, dir)) = expected else { return false };
            // A quota shows wherever the process needs a CPU.
            let is_there = self.fault == Fault::Quota || finding["direction"] == dir.to_string();
            let is_its = self.hit.clone().any(|number| is_of(finding, number, self.fault));
            is_there && self.fault.is(&finding["cause"]) && is_its
        };
        let judged = match (expected, findings.first()) {
            (None, None) => "right",
            (Some(_), None) => "unsure",
            (_, Some(first)) if is_right(&first) => "right",
            _ => "wrong",
        };
        let promised = findings.first().filter(|first| first["confidence"] == "high");
        Ok(json!({
            "cause": expected.map_or("none", |(cause, _)| cause),
            "fault": format!("{:?}", self.fault),
            "place": format!("{:?}", self.place),
            "ms": self.ms,
            "hit": if self.hit.len() == self.shape.services { "all" } else { "one" },
            "load": self.load,
            "shape": format!("{:?}", self.shape),
            "judged": judged,
            "is_among_two": findings.iter().take(2).any(|finding| is_right(&finding)),
            "is_promised": promised.is_some(),
            "found": found.collect::<Vec<_>>(),
            "verdict": (judged != "right").then_some(&verdict),
        }))
    }

    /// Makes it while that runs.
    fn play(&self, launch: Launch) -> Result<Outcome> {
        let mut system = System::open(self).context("the system")?;
        let tool = launch.start()?;
        system.play(self).context("the incident")?;
        // ACKs that wait for the peer's timer have come by then.
        sleep(Duration::from_millis(300));
        tool.stop()
    }

    /// Makes it while the recorder runs too, and says whether the same is found in the recording of these minutes.
    fn run_recorded(&self) -> Result<Value> {
        let directory = TempDir::new()?;
        let path = directory.path().display().to_string();
        let record = only_services(self.fault, Launch::new(Backend::tested()[0]).view("record"));
        let sink = Sink::Redirected(Scratch::new("record"));
        let mut recorder = record.args(&["--stages", "fine", "-o", &path]).sink(sink).start()?;
        let outcome = self.play(launch(self.fault))?;
        recorder.signal(Signal::SIGUSR1)?;
        recorder.expect_said("the file", |said| said.iter().any(|line| line.contains(".nlr: ")))?;
        recorder.stop()?;
        let file = fs::read_dir(directory.path())?.next().context("no file")??.path();
        let replayed = Command::new(tool::path())
            .args(["diagnose", "--format", "json", "--footer", "none", "--replay"])
            .arg(file)
            .output()?;
        let found = |verdict: &[u8]| -> Result<Vec<Value>> {
            let verdict: Value = serde_json::from_slice(verdict)?;
            let findings = verdict["findings"].as_array().context("no findings")?;
            let of = |finding: &Value| ["process", "direction", "cause"].map(|name| finding[name].clone());
            Ok(findings.iter().map(|finding| json!(of(finding))).collect())
        };
        let (live, recorded) = (found(outcome.text()?.as_bytes())?, found(&replayed.stdout)?);
        let is_as_expected = match (self.fault.recorded_as(), live.first(), recorded.first()) {
            (Some(cause), Some(live), Some(recorded)) => live[0] == recorded[0] && recorded[2] == cause,
            (_, live, recorded) => live == recorded,
        };
        Ok(json!({
            "fault": format!("{:?}", self.fault),
            "is_as_expected": is_as_expected,
            "are_all_the_same": live == recorded,
            "live": live,
            "recorded": recorded,
        }))
    }

    /// Makes it, and prints the verdict as text.
    fn show(&self) -> Result<()> {
        let outcome = self.play(launch(self.fault).text())?;
        println!("{self:?}:\n{}", outcome.text()?);
        Ok(())
    }

    /// Makes it until this is ended, for who looks for the fault.
    fn hold(mut self) -> Result<()> {
        self.rounds = u32::MAX;
        let mut system = System::open(&self).context("the system")?;
        loop {
            system.play(&self).context("the incident")?;
        }
    }

    /// Makes it, and prints its packets.
    fn print_packets(&self) -> Result<()> {
        let launch = Launch::new(Backend::tested()[0]).args(&["--stages", "fine"]);
        let outcome = self.play(only_services(self.fault, launch))?;
        println!("{}", outcome.text()?);
        Ok(())
    }
}

fn launch(fault: Fault) -> Launch {
    let sink = Sink::Redirected(Scratch::new("diagnose"));
    let launch = Launch::new(Backend::tested()[0]).view("diagnose").args(&["--duration", "10m"]).sink(sink);
    only_services(fault, launch)
}

fn only_services(fault: Fault, launch: Launch) -> Launch {
    if fault.hides_the_gateway() { launch.args(&["--comm", "svc-*"]) } else { launch }
}

/// One of each fault: the verdicts live and on the recording.
fn recorded() -> Result<()> {
    let mut others = Vec::new();
    // No recording has what sockets drop.
    for fault in Fault::ALL.into_iter().filter(|fault| *fault != Fault::Overflows) {
        let ms = if fault.has_strength() { STRENGTHS[2] } else { 0 };
        let incident = Incident {
            fault,
            place: fault.places()[0],
            ms,
            hit: 0..1,
            rounds: 0,
            load: 0,
            shape: fault.shape(),
        };
        let said = incident.run_recorded().with_context(|| format!("{incident:?}"))?;
        writeln!(std::io::stdout(), "{said}")?;
        if said["is_as_expected"] != true {
            others.push(fault);
        }
    }
    ensure!(others.is_empty(), "another verdict of the recording: {others:?}");
    Ok(())
}

/// Makes all, or those whose fault's name has that in it; `worlds N SEED` draws as many; `show WORLD…` prints the text that a person sees
/// in one, by its fault, ms and load, and `packets WORLD…` its packets; `hold N SEED` makes the last of N drawn ones for as long as it runs;
/// `recorded` makes one of each, in a recording too.
pub(crate) fn main(arguments: &[String]) -> ExitCode {
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let done = match arguments.as_slice() {
        ["worlds", count, seed] => worlds::drawn(count, seed).and_then(|drawn| judge(drawn.into_iter())),
        ["show", fault, ms, load] => worlds::of(fault, ms, load).and_then(|world| world.show()),
        ["hold", count, seed] => {
            worlds::drawn(count, seed).and_then(|mut drawn| drawn.pop().context("no world")?.hold())
        }
        ["recorded"] => recorded(),
        ["packets", fault, ms, load] => worlds::of(fault, ms, load).and_then(|world| world.print_packets()),
        [] => judge(Incident::all()),
        [wanted, ..] => {
            judge(Incident::all().filter(|incident| format!("{:?}", incident.fault).contains(wanted)))
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("incidents: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn judge(incidents: impl Iterator<Item = Incident>) -> Result<()> {
    for incident in incidents {
        let said = incident.run().with_context(|| format!("{incident:?}"))?;
        writeln!(std::io::stdout(), "{said}")?;
    }
    Ok(())
}
