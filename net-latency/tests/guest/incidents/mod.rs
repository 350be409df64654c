//! Incidents in a system of services, and what `diagnose` says of them: one JSON object a line for each run.
//!
//! A client asks a gateway, which asks three services, one after the other. One of them has a fault, or all have it. Meant
//! for a guest whose clock counts instructions (`cargo xtask incidents`): nothing else takes time there, so that faults
//! of 2 ms can be told from what the machine does by itself.

mod system;

use std::{io::Write as _, process::ExitCode, thread::sleep, time::Duration};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use self::system::{System, Where};
use crate::{
    lines::Dir,
    tool::{Backend, Launch, Scratch, Sink, Tool},
};

/// First argument of a run of all incidents.
pub(crate) const ROLE: &str = "incidents";

/// What is made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    /// A service reads late.
    ReadsLate,
    /// Somebody with a higher priority takes its CPU.
    LosesCpu,
    /// A service works on its answers.
    Works,
    /// It writes each answer by two calls, which Nagle's rule keeps apart.
    Halves,
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
    /// Now and then somebody takes the CPU from everybody.
    Stalls,
    /// Nothing is wrong.
    Nothing,
}

/// An incident: what is made, where, how strong, and in how many services.
#[derive(Clone, Copy, Debug)]
struct Incident {
    fault: Fault,
    place: Where,
    ms: u64,
    /// Services that have it.
    hit: usize,
}

/// Services of a system.
const SERVICES: usize = 3;
/// Of each fault that lasts for a time of our choice.
const STRENGTHS: [u64; 3] = [2, 10, 50];

impl Fault {
    const ALL: [Self; 12] = [
        Self::ReadsLate,
        Self::LosesCpu,
        Self::Works,
        Self::Halves,
        Self::Queue,
        Self::Wire,
        Self::Reorder,
        Self::SlowReader,
        Self::SlowStart,
        Self::Loss,
        Self::Stalls,
        Self::Nothing,
    ];

    /// Whether that is the fault. Whoever waits for ACKs over a long way is told so by either.
    fn is(self, cause: &Value) -> bool {
        let is_expected = self.expected().is_some_and(|(expected, _)| cause == expected);
        is_expected || self == Self::SlowStart && cause == "network"
    }

    /// The cause that is to be named, and the direction of the service that has it.
    fn expected(self) -> Option<(&'static str, Dir)> {
        Some(match self {
            Self::ReadsLate => ("reader-late", Dir::In),
            Self::LosesCpu => ("cpu-wait", Dir::In),
            Self::Works => ("application", Dir::Out),
            Self::Halves => ("nagle", Dir::Out),
            Self::Queue => ("qdisc", Dir::Out),
            Self::Wire => ("network", Dir::Out),
            Self::Reorder => ("missing-bytes", Dir::In),
            Self::SlowReader => ("peer-window", Dir::Out),
            Self::SlowStart => ("congestion-window", Dir::Out),
            Self::Loss => ("retransmission", Dir::Out),
            Self::Stalls | Self::Nothing => return None,
        })
    }

    /// Whether it lasts for as long as is wanted.
    fn has_strength(self) -> bool {
        !matches!(self, Self::Halves | Self::Loss | Self::Nothing)
    }

    fn places(self) -> &'static [Where] {
        match self {
            // They are of a link.
            Self::Queue | Self::Wire | Self::Reorder | Self::SlowReader | Self::SlowStart | Self::Loss => {
                &[Where::Links]
            }
            _ => &[Where::OneHost, Where::Links],
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
                let of =
                    move |ms: u64| hits(fault).iter().map(move |hit| Self { fault, place, ms, hit: *hit });
                strengths(fault).iter().flat_map(move |ms| of(*ms))
            };
            fault.places().iter().flat_map(move |place| of_strength(*place))
        })
    }

    /// Makes it, and says what was said.
    fn run(self) -> Result<Value> {
        let mut system = System::open(&self).context("the system")?;
        let tool = start(self.fault)?;
        system.play(&self).context("the incident")?;
        // ACKs that wait for the peer's timer have come by then.
        sleep(Duration::from_millis(300));
        let outcome = tool.stop()?;
        let verdict: Value = serde_json::from_str(outcome.text()?)
            .map_err(|error| outcome.fault(format_args!("not one JSON object: {error}"), []))?;
        let findings = verdict["findings"].as_array().context("no findings")?;
        let found = findings.iter().map(|finding| {
            let of = |name: &str| finding[name].clone();
            json!([of("process"), of("direction"), of("cause"), of("confidence"), of("share")])
        });
        let expected = self.fault.expected();
        let is_right = |finding: &Value, dir: Dir| {
            self.fault.is(&finding["cause"])
                && finding["direction"] == dir.to_string()
                && system.hit(&self).any(|pid| finding["pid"] == pid)
        };
        let judged = match (expected, findings.first()) {
            (Some((_, dir)), Some(first)) if is_right(first, dir) => "right",
            (Some(_), None) => "unsure",
            (None, None) => "right",
            _ => "wrong",
        };
        Ok(json!({
            "cause": expected.map_or("none", |(cause, _)| cause),
            "fault": format!("{:?}", self.fault),
            "place": format!("{:?}", self.place),
            "ms": self.ms,
            "hit": if self.hit == SERVICES { "all" } else { "one" },
            "judged": judged,
            "found": found.collect::<Vec<_>>(),
        }))
    }
}

fn start(fault: Fault) -> Result<Tool> {
    let sink = Sink::Redirected(Scratch::new("diagnose"));
    let mut launch =
        Launch::new(Backend::tested()[0]).view("diagnose").args(&["--duration", "10m"]).sink(sink);
    if fault.hides_the_gateway() {
        launch = launch.args(&["--comm", "svc-*"]);
    }
    launch.start()
}

/// Makes all, or those whose fault's name has that in it.
pub(crate) fn main(arguments: &[String]) -> ExitCode {
    let wanted = arguments.first().map_or("", String::as_str);
    for incident in Incident::all().filter(|incident| format!("{:?}", incident.fault).contains(wanted)) {
        let said = incident.run().and_then(|said| Ok(writeln!(std::io::stdout(), "{said}")?));
        if let Err(error) = said {
            eprintln!("incidents: {incident:?}: {error:#}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
