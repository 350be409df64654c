//! The cases, one file per theme.

mod calls;
mod calls_witness;
mod check;
mod clock;
mod command;
mod conversation;
mod ends;
mod export;
mod filters;
mod footer;
pub(crate) mod harness;
mod hist;
mod journey;
mod journey_witness;
mod ledger;
mod output;
pub(crate) mod prerequisites;
mod privileges;
mod race;
mod rotation;
mod selection;
mod soak;
mod summary;
mod top;
pub(crate) mod truth;
mod volume;
mod witness;

use anyhow::Result;

use crate::tool::Backend;

/// A case's name and what it does.
pub(crate) type Case = (&'static str, fn(Backend) -> Result<()>);

/// Cases of the user side: what they show is the same on every kernel and by every backend, so that a whole test run has
/// them once. All others depend on the kernel, be it only on its verifier.
const USER_SIDE: &[&[Case]] = &[output::CASES, rotation::CASES, top::CASES];
/// The same, of themes whose other cases depend on the kernel.
const OF_USER_SIDE: &[&str] = &[
    "check_goes_on_after_a_failure",
    "check_needs_no_root",
    "command_that_cannot_run",
    "ends_by_closed_pipe",
    "ends_by_count",
    "ends_by_duration",
    "ends_by_full_disk",
    "export_by_prometheus",
    "export_refuses_what_cannot_be",
    "footer_has_the_lines_figures",
    "footer_names_the_slowest",
    "footer_of_intervals",
    "hist_as_text_ends_by_duration",
    "pid_that_does_not_exist",
];

/// Whether a case is one of the user side.
pub(crate) fn is_of_user_side(name: &str) -> bool {
    let is_in_theme = USER_SIDE.iter().copied().flatten().any(|(known, _)| *known == name);
    is_in_theme || OF_USER_SIDE.contains(&name)
}

/// All cases.
pub(crate) fn all() -> impl Iterator<Item = Case> {
    [
        check::CASES,
        conversation::CASES,
        filters::CASES,
        selection::CASES,
        command::CASES,
        volume::CASES,
        ledger::CASES,
        witness::CASES,
        clock::CASES,
        soak::CASES,
        race::CASES,
        output::CASES,
        rotation::CASES,
        summary::CASES,
        footer::CASES,
        ends::CASES,
        privileges::CASES,
        top::CASES,
        hist::CASES,
        export::CASES,
        calls::CASES,
        calls_witness::CASES,
        journey::CASES,
        journey_witness::CASES,
        prerequisites::CASES,
    ]
    .into_iter()
    .flatten()
    .copied()
}

/// Whether a case means anything with that backend, and in this guest.
pub(crate) fn applies(name: &str, backend: Backend) -> bool {
    let is_of_kprobes = prerequisites::OF_KPROBES.contains(&name) || name.starts_with("calls_");
    let is_of_races = race::CASES.iter().any(|(race, _)| *race == name);
    (!is_of_kprobes || backend == Backend::Kprobe) && (!is_of_races || race::is_wanted())
}
