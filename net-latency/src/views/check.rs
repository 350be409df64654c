//! `net-latency check`: which hook serves each stage, or why this kernel can't be traced.

use std::io::{self, Write};

use net_latency_common::Direction;

use crate::{
    cli::Backend,
    error::Failure,
    kernel::{self, prerequisites},
    probes::{
        attach::{self, Request},
        plan::{Plan, Scope},
        table::{Mechanism, Stage},
    },
};

/// Ring buffer of the trial: nothing is read from it.
const TRIAL_BUFFER_BYTES: u32 = 64 << 10;

/// Attaches everything for a moment, so that what it prints is what happened, and detaches it again.
///
/// # Errors
/// [`Failure::CannotTrace`] with the reason, or a failure to write to standard output.
pub fn run(backend: Backend) -> Result<(), Failure> {
    prerequisites::check()?;
    let btf = kernel::read_btf()?;
    let plan = Plan::new(&btf, Scope::default())?;
    let request = Request { buffer_bytes: TRIAL_BUFFER_BYTES, ..Request::default() };
    let mechanism = attach::attach(&plan, &btf, backend, &request)?.mechanism();
    // The other one is worth knowing when the preferred one gives trouble.
    let other = match (backend, mechanism) {
        (Backend::Auto, Mechanism::Fentry) => {
            Some(attach::attach(&plan, &btf, Backend::Kprobe, &request).map(drop))
        }
        _ => None,
    };
    let mut out = io::stdout().lock();
    match write_report(&plan, &kernel::release(), mechanism, other.as_ref(), &mut out) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::Runtime(anyhow::Error::new(error).context("cannot write to standard output")))
        }
        _ => Ok(()),
    }
}

fn write_report(
    plan: &Plan,
    release: &str,
    mechanism: Mechanism,
    other: Option<&Result<(), Failure>>,
    out: &mut impl Write,
) -> io::Result<()> {
    writeln!(out, "This kernel (Linux {release}) can be traced.")?;
    write!(out, "backend: {}", mechanism.name())?;
    match other {
        Some(Ok(())) => writeln!(out, "; {} works too", Mechanism::Kprobe.name())?,
        Some(Err(failure)) => writeln!(out, "; {} does not: {failure}", Mechanism::Kprobe.name())?,
        None => writeln!(out)?,
    }
    writeln!(out, "{:<4}{:<9}{:<11}hook", "dir", "stage", "by")?;
    for choice in plan.choices.iter().filter(|choice| choice.hook.stage != Stage::End) {
        let direction = match choice.hook.direction {
            Some(Direction::In) => "in",
            Some(Direction::Out) => "out",
            None => "",
        };
        writeln!(
            out,
            "{direction:<4}{:<9}{:<11}{}",
            choice.hook.stage.name(),
            choice.means(mechanism),
            choice.targets.join(", ")
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use net_latency_common::Offsets;

    use super::*;
    use crate::probes::{
        plan::Choice,
        table::{CLOSE, HOOKS},
    };

    fn report(mechanism: Mechanism, other: Option<Result<(), Failure>>) -> String {
        let choices = HOOKS
            .into_iter()
            .chain([CLOSE])
            .map(|hook| Choice { hook, targets: hook.candidates[..1].to_vec() })
            .collect();
        let plan = Plan { choices, offsets: Offsets::default(), counts_missed_kprobes: true };
        let mut out = Vec::new();
        write_report(&plan, "6.1.0-56-cloud-amd64", mechanism, other.as_ref(), &mut out)
            .expect("a vector takes everything");
        String::from_utf8(out).expect("the report is text")
    }

    #[test]
    fn every_stage_has_its_hook() {
        insta::assert_snapshot!(report(Mechanism::Fentry, Some(Ok(()))));
    }

    #[test]
    fn a_fallback_that_fails_says_why() {
        let failure = Failure::CannotTrace("this kernel has no kprobes".to_owned());
        let report = report(Mechanism::Fentry, Some(Err(failure)));
        assert_eq!(
            report.lines().nth(1),
            Some("backend: fentry; kprobe does not: this kernel has no kprobes")
        );
    }
}
