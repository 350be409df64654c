//! Every packet on every path: scenarios of traffic, many under one run of the tool, each checked against
//! what it is known to have sent and read.

mod control;
mod copies;
mod crafted;
mod driver;
mod dropped;
mod fine;
mod held;
mod io;
mod netem;
mod places;
pub(crate) mod programs;
mod readers;
mod sent;
mod service;
mod skipped;
mod tcp;
mod transmit;
mod udp;
mod who;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use anyhow::{Context as _, Result, anyhow};
use chrono::{DateTime, Utc};

use crate::{
    lines::Line,
    tool::{Backend, Launch, Outcome},
};

/// What remains to be done once the tool has ended: comparing its lines with the truth.
pub(crate) type Check = Box<dyn FnOnce(&Evidence<'_>) -> Result<()> + Send>;

/// Some traffic: makes it, and says how to check its lines. The address pairs of other scenarios may be the
/// same, their time is not.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) play: fn() -> Result<Check>,
}

/// Scenarios that one run of the tool sees, one after the other.
pub(crate) struct Theme {
    pub(crate) name: &'static str,
    /// Arguments of the tool.
    pub(crate) arguments: &'static [&'static str],
    pub(crate) scenarios: &'static [Scenario],
}

pub(crate) const THEMES: &[Theme] = &[
    tcp::THEME,
    readers::THEME,
    netem::THEME,
    udp::THEME,
    driver::THEME,
    copies::THEME,
    copies::OUT,
    io::THEME,
    who::THEME,
    transmit::THEME,
    places::THEME,
    fine::THEME,
    sent::THEME,
    control::THEME,
    held::THEME,
    service::THEME,
    programs::THEME,
    skipped::THEME,
    dropped::THEME,
    dropped::WITHOUT_TCP,
    dropped::OF_PORT,
    dropped::UNSEEN,
    crafted::THEME,
    crafted::FLOOD,
];

/// Those that have hooks skipped.
const SKIPPING: [&str; 2] = [skipped::THEME.name, dropped::UNSEEN.name];

/// What the tool has shown of one scenario.
pub(crate) struct Evidence<'a> {
    pub(crate) outcome: &'a Outcome,
    /// The lines of packets that were finished while the scenario played.
    pub(crate) lines: Vec<Line>,
}

/// A theme under one backend, played when the first of its scenarios is wanted.
pub(crate) struct Session {
    backend: Backend,
    theme: &'static Theme,
    /// Names of the scenarios to play.
    wanted: Vec<&'static str>,
    played: Mutex<Option<Played>>,
}

struct Played {
    outcome: Arc<Outcome>,
    lines: Vec<Line>,
    scenarios: HashMap<&'static str, Result<Scene>>,
}

/// One scenario that was played.
struct Scene {
    span: (DateTime<Utc>, DateTime<Utc>),
    check: Check,
}

impl Session {
    pub(crate) fn new(backend: Backend, theme: &'static Theme, wanted: Vec<&'static str>) -> Self {
        Self { backend, theme, wanted, played: Mutex::new(None) }
    }

    /// The verdict on one scenario of the shared run.
    pub(crate) fn judge(&self, name: &'static str) -> Result<()> {
        let mut played = self.played.lock().map_err(|_| anyhow!("another scenario panicked"))?;
        if played.is_none() {
            *played = Some(play(self.backend, self.theme, &self.wanted)?);
        }
        played.as_mut().context("just played")?.judge(name)
    }

    /// The verdict on one scenario that has a run of its own.
    pub(crate) fn judge_alone(&self, name: &'static str) -> Result<()> {
        play(self.backend, self.theme, &[name])?.judge(name)
    }
}

impl Played {
    fn judge(&mut self, name: &'static str) -> Result<()> {
        let scene = self.scenarios.remove(name).context("judged before, or not played")??;
        let (start, end) = scene.span;
        let lines = self.lines.iter().filter(|line| line.ts >= start && line.ts <= end).cloned().collect();
        (scene.check)(&Evidence { outcome: &self.outcome, lines })
    }
}

fn play(backend: Backend, theme: &Theme, wanted: &[&str]) -> Result<Played> {
    let launch = Launch::new(backend).args(theme.arguments);
    let tool = if SKIPPING.contains(&theme.name) { launch.skipping() } else { launch }.start()?;
    let mut scenarios = HashMap::new();
    for scenario in theme.scenarios.iter().filter(|scenario| wanted.contains(&scenario.name)) {
        let start = Utc::now();
        let check = (scenario.play)();
        let span = (start, Utc::now());
        scenarios.insert(scenario.name, check.map(|check| Scene { span, check }));
    }
    let outcome = tool.stop()?;
    Ok(Played { lines: outcome.lines()?, outcome: Arc::new(outcome), scenarios })
}
