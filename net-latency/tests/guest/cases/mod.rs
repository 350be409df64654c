//! The cases, one file per theme.

mod calls;
mod calls_witness;
mod check;
mod clock;
mod command;
mod conversation;
mod ends;
mod filters;
mod footer;
pub(crate) mod harness;
mod hist;
mod journey;
mod journey_witness;
mod ledger;
mod output;
pub(crate) mod prerequisites;
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

/// All cases that run once per backend.
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
        top::CASES,
        hist::CASES,
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
