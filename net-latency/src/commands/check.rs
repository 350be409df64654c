//! `net-latency check`: whether and how this kernel can be traced, what is degraded, and what to do
//! about it. Everything is looked at, whatever fails.

use std::{io, io::Write, path::Path};

use aya::Ebpf;
use net_latency_common::Direction;
use serde_json::{Value, json};

use crate::{
    error::Failure,
    kernel::{
        self,
        facts::{Facts, Live},
        memory,
        prerequisites::{self, Check, Verdict},
    },
    probes::{
        attach::{self, Refused, Request},
        plan::{Choice, Plan, Scope},
        table::{Mechanism, Stage},
    },
    request::{Backend, CheckConfig, ReportFormat},
    run::notice::Notice,
};

/// What came of trying a way to hook.
enum Trial {
    Works {
        /// Whether the kernel counts calls of its programs that it skipped.
        counts_skipped: bool,
    },
    Fails(Refused),
}

/// All that is known.
struct Report {
    /// Kernel, needs, circumstances and trials, in the order in which they decide.
    checks: Vec<Check>,
    /// Hooks by stage, if there is BTF to look them up in.
    plan: Option<Plan>,
    /// Those of `connections`.
    connections: Vec<Choice>,
    /// How the stream would hook.
    mechanism: Option<Mechanism>,
}

/// Attaches everything for a moment by each way that was requested, so that what it prints is what happened,
/// and detaches it again.
///
/// # Errors
/// [`Failure::CannotTrace`] with the first reason, or a failure to write to standard output.
pub(crate) fn run(config: &CheckConfig) -> Result<(), Failure> {
    let mut report = Report::of(&Live);
    let btf = kernel::read_btf();
    match &btf {
        Ok(bytes) => report.note_btf(bytes),
        Err(failure) => report.checks.push(Check::failed("btf", failure)),
    }
    drop(btf);
    if let Some(plan) = report.plan.clone()
        && prerequisites::first_failure(&report.checks).is_none()
    {
        report.try_out(&plan, config);
    }
    let mut text = Vec::new();
    match config.format {
        ReportFormat::Text => report.write_text(&mut text).expect("a vector takes everything"),
        ReportFormat::Json => {
            text = report.to_json().to_string().into_bytes();
            text.push(b'\n');
        }
    }
    super::to_stdout(&text)?;
    match report.failure() {
        Some(check) => Err(check.failure()),
        None => Ok(()),
    }
}

fn mptcp(is_followed: bool) -> Check {
    if is_followed {
        let found = "followed; what is received by several subflows of one connection is not";
        Check::new("mptcp", Verdict::Ok, found)
    } else {
        let found =
            "this kernel's MPTCP is not followed: what is received has no line, what is sent no process";
        Check::new("mptcp", Verdict::Degraded, found)
    }
}

impl Report {
    /// What can be known without attaching.
    fn of(facts: &impl Facts) -> Self {
        let checks = [
            vec![prerequisites::kernel(facts)],
            prerequisites::needed(facts),
            prerequisites::circumstances(facts),
        ];
        Self { checks: checks.concat(), plan: None, connections: Vec::new(), mechanism: None }
    }

    fn note_btf(&mut self, btf: &[u8]) {
        let found = format!("{} bytes of type information", btf.len());
        self.checks.push(Check::new("btf", Verdict::Ok, found));
        match Plan::new(btf, Scope::default()) {
            Ok(plan) => {
                self.checks.push(Check::new("hooks", Verdict::Ok, "every stage has one"));
                self.checks.extend(plan.follows_mptcp().map(mptcp));
                self.plan = Some(plan);
            }
            Err(failure) => self.checks.push(Check::failed("hooks", &failure)),
        }
        match Plan::new(btf, Scope { connections: true, first_bytes: true, ..Scope::default() }) {
            Ok(plan) => self.connections = plan.choices,
            Err(failure) => {
                self.checks.push(Check::new("connections", Verdict::Degraded, failure.to_string()));
            }
        }
    }

    fn try_out(&mut self, plan: &Plan, config: &CheckConfig) {
        let buffer_bytes = config.tracing.buffer_bytes;
        let mut memory = None;
        let backend = config.tracing.backend;
        let trials: Vec<(Mechanism, Trial)> = attach::mechanisms(backend, plan.is_preemptible)
            .iter()
            .map(|&mechanism| {
                let request = Request { buffer_bytes, ..Request::default() };
                // Until the end of this trial, when everything is detached again.
                let _notice = Notice::new(format!("trying {} …", mechanism.name()), false);
                let trial = match attach::attach_by(plan, mechanism, &request) {
                    Ok((probes, maps)) => {
                        memory.get_or_insert_with(|| memory_of(&maps, buffer_bytes));
                        let counts_skipped = probes.missed().is_some();
                        Trial::Works { counts_skipped }
                    }
                    Err(refused) => Trial::Fails(refused),
                };
                (mechanism, trial)
            })
            .collect();
        self.note_trials(backend, &trials);
        self.checks.extend(memory);
    }

    /// One way that works suffices.
    fn note_trials(&mut self, backend: Backend, trials: &[(Mechanism, Trial)]) {
        let works = |(mechanism, trial): &(Mechanism, Trial)| {
            matches!(trial, Trial::Works { .. }).then_some(*mechanism)
        };
        self.mechanism = trials.iter().find_map(works);
        let mut reasons = Vec::new();
        for (mechanism, trial) in trials {
            self.checks.push(match trial {
                Trial::Works { counts_skipped: true } => Check::new(
                    mechanism.name(),
                    Verdict::Ok,
                    "works; calls that the kernel skips are counted",
                ),
                Trial::Works { counts_skipped: false } => Check::new(
                    mechanism.name(),
                    Verdict::Degraded,
                    "works; this kernel does not count calls that it skips",
                )
                .remedy(match mechanism {
                    Mechanism::Fentry => "Linux 5.12 and later count them",
                    Mechanism::Kprobe | Mechanism::Mixed => {
                        "Linux 6.7 and later count them, for users with CAP_SYS_ADMIN"
                    }
                }),
                Trial::Fails(refused) => {
                    reasons.push((*mechanism, refused.clone()));
                    Check::new(mechanism.name(), Verdict::Degraded, format!("fails: {}", refused.reason))
                }
            });
        }
        if self.mechanism.is_none() {
            self.checks.push(Check::failed("backend", &attach::refusal(backend, &reasons)));
        }
    }

    fn failure(&self) -> Option<&Check> {
        prerequisites::first_failure(&self.checks)
    }

    /// The hooks that stamp a stage: direction, stage, by what, where.
    fn hooks(&self) -> impl Iterator<Item = (&'static str, &'static str, &'static str, &[&'static str])> {
        let choices = self.plan.iter().flat_map(|plan| &plan.choices).chain(&self.connections);
        choices.filter(|choice| choice.hook.stage != Stage::End).map(|choice| {
            let direction = match choice.hook.direction {
                Some(Direction::In) => "in",
                Some(Direction::Out) => "out",
                None => "",
            };
            // Where nothing could be tried, what would be preferred.
            let mechanism = self.mechanism.unwrap_or(Mechanism::Fentry);
            let means = choice.program(mechanism).kind();
            (direction, choice.hook.stage.name(), means, choice.targets(mechanism))
        })
    }

    fn write_text(&self, out: &mut impl Write) -> io::Result<()> {
        match (self.failure(), self.mechanism) {
            (None, Some(mechanism)) => {
                writeln!(out, "This kernel can be traced; backend: {}", mechanism.name())?;
            }
            _ => writeln!(out, "This kernel can't be traced by this user.")?,
        }
        for check in &self.checks {
            writeln!(out, "{:<10}{:<17}{}", check.verdict.name(), check.name, check.found)?;
            if let (Some(remedy), true) = (&check.remedy, check.verdict != Verdict::Ok) {
                writeln!(out, "{:<27}-> {remedy}", "")?;
            }
        }
        if self.plan.is_some() {
            writeln!(out, "\n{:<4}{:<11}{:<11}hook", "dir", "stage", "by")?;
        }
        for (direction, stage, means, targets) in self.hooks() {
            writeln!(out, "{direction:<4}{stage:<11}{means:<11}{}", targets.join(", "))?;
        }
        Ok(())
    }

    fn to_json(&self) -> Value {
        let checks: Vec<_> = self
            .checks
            .iter()
            .map(|check| {
                json!({
                    "name": check.name,
                    "verdict": check.verdict.name(),
                    "found": check.found,
                    "remedy": check.remedy,
                })
            })
            .collect();
        let hooks: Vec<_> = self
            .hooks()
            .map(|(direction, stage, means, targets)| {
                json!({ "dir": direction, "stage": stage, "by": means, "hooks": targets })
            })
            .collect();
        json!({
            "traceable": self.failure().is_none(),
            "backend": self.mechanism.map(Mechanism::name),
            "checks": checks,
            "hooks": hooks,
        })
    }
}

/// The memory that maps and programs take in the kernel while they live.
fn memory_of(_maps: &Ebpf, buffer_bytes: u32) -> Check {
    let name = "memory";
    let mebibytes = |bytes: u64| (bytes as f64) / f64::from(1 << 20);
    match memory::of(Path::new("/proc/self")) {
        Ok(memory) => Check::new(
            name,
            Verdict::Ok,
            format!(
                "{:.1} MiB of the kernel's: {:.1} for maps, {:.1} for the ring buffer (--buffer), {:.1} for programs",
                mebibytes(memory.maps + u64::from(buffer_bytes) + memory.programs),
                mebibytes(memory.maps),
                mebibytes(u64::from(buffer_bytes)),
                mebibytes(memory.programs)
            ),
        ),
        Err(error) => Check::new(name, Verdict::Unknown, format!("/proc/self/fdinfo can't be read: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use net_latency_common::Offsets;

    use super::*;
    use crate::{
        kernel::facts::recorded::Recorded,
        probes::table::{CLOSE, CONNECTIONS, FIRST_BYTES, HOOKS, Hook},
    };

    fn chosen(hooks: impl IntoIterator<Item = Hook>) -> Vec<Choice> {
        let choice = |hook: Hook| Choice {
            hook,
            found: hook.candidates[..1].to_vec(),
            is_preemptible: false,
            is_wide: false,
        };
        hooks.into_iter().map(choice).collect()
    }

    fn plan() -> Plan {
        Plan {
            choices: chosen(HOOKS.into_iter().chain([CLOSE])),
            offsets: Offsets::default(),
            types: Vec::new(),
            is_preemptible: false,
            counts_missed_kprobes: true,
            shows_drops: true,
            drop_reasons: Default::default(),
        }
    }

    fn report(facts: &Recorded, trials: &[(Mechanism, Trial)]) -> Report {
        let mut report = Report::of(facts);
        report.plan = Some(plan());
        report.connections = chosen(CONNECTIONS.into_iter().chain(FIRST_BYTES));
        report.note_trials(Backend::Auto, trials);
        report
    }

    fn text(report: &Report) -> String {
        let mut out = Vec::new();
        report.write_text(&mut out).expect("a vector takes everything");
        String::from_utf8(out).expect("the report is text")
    }

    fn fails() -> Trial {
        Trial::Fails(Refused { reason: "loading ip_rcv_core: Operation not permitted".to_owned(), ban: None })
    }

    const WORKS: Trial = Trial::Works { counts_skipped: true };

    #[test]
    fn a_kernel_that_serves_is_shown_with_its_hooks() {
        let trials =
            [(Mechanism::Fentry, WORKS), (Mechanism::Kprobe, Trial::Works { counts_skipped: false })];
        insta::assert_snapshot!(text(&report(&Recorded::debian(), &trials)));
    }

    #[test]
    fn everything_is_checked_and_the_first_failure_is_told() {
        let facts = Recorded::debian()
            .with("/proc/self/ns/user", "user:[4026532200]")
            .replacing("CapEff:\t000001ffffffffff", "CapEff:\t0000000000000000")
            .with("/proc/sys/kernel/ftrace_enabled", "0");
        let mut report = Report::of(&facts);
        let no_btf = Failure::cannot_trace("this kernel has no BTF", "another is needed");
        report.checks.push(Check::failed("btf", &no_btf));
        insta::assert_snapshot!(text(&report));
        assert_eq!(report.failure().map(|check| check.name), Some("user namespace"));
        assert_eq!(report.to_json()["traceable"], false);
        assert_eq!(report.to_json()["backend"], Value::Null);
    }

    #[test]
    fn one_way_that_works_suffices() {
        for trials in [
            [(Mechanism::Fentry, fails()), (Mechanism::Kprobe, WORKS)],
            [(Mechanism::Fentry, WORKS), (Mechanism::Kprobe, fails())],
        ] {
            let report = report(&Recorded::debian(), &trials);
            assert!(report.failure().is_none());
            assert!(
                ["fentry", "kprobe"]
                    .map(|name| text(&report).contains(&format!("degraded  {name}")))
                    .contains(&true)
            );
        }
        let report =
            report(&Recorded::debian(), &[(Mechanism::Fentry, fails()), (Mechanism::Kprobe, fails())]);
        let sentence = report.failure().expect("none works").failure().to_string();
        assert!(sentence.starts_with("cannot trace by kprobe: loading ip_rcv_core: Operation"), "{sentence}");
        assert_eq!(text(&report).matches("fails: loading ip_rcv_core").count(), 2, "each has its reason");
    }

    #[test]
    fn programs_read_the_same() {
        let json = report(&Recorded::debian(), &[(Mechanism::Kprobe, WORKS)]).to_json();
        assert_eq!((&json["traceable"], &json["backend"]), (&json!(true), &json!("kprobe")));
        let lockdown =
            json["checks"].as_array().expect("a list").iter().find(|check| check["name"] == "lockdown");
        let expected = json!({ "name": "lockdown", "verdict": "ok", "found": "none", "remedy": null });
        assert_eq!(lockdown, Some(&expected));
        let expected = json!({ "dir": "in", "stage": "ip", "by": "kprobe", "hooks": ["ip_rcv_core"] });
        assert!(json["hooks"].as_array().expect("a list").contains(&expected));
    }
}
