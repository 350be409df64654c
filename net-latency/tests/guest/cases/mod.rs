//! The cases, one file per theme.

mod calls;
mod calls_witness;
mod check;
mod clock;
mod command;
mod connections;
mod container;
mod conversation;
pub(crate) mod daily;
mod diagnose;
mod disturbances;
mod ends;
pub(crate) mod export;
mod export_socket;
mod faults;
mod filters;
mod footer;
pub(crate) mod harness;
mod hist;
mod hostile;
mod journey;
mod journey_witness;
mod ledger;
mod lifetimes;
mod output;
pub(crate) mod prerequisites;
mod privileges;
mod race;
mod record;
mod reopened;
mod reused;
mod selection;
mod soak;
mod summary;
mod top;
pub(crate) mod truth;
mod volume;
mod witness;

use std::{env, fs};

use anyhow::{Context as _, Result};

use crate::tool::Backend;

/// A case's name and what it does.
pub(crate) type Case = (&'static str, fn(Backend) -> Result<()>);

/// Cases of the user side: what they show is the same on every kernel and by every backend, so that a whole test run has
/// them once. All others depend on the kernel, be it only on its verifier.
const USER_SIDE: &[&[Case]] = &[container::CASES, output::CASES, reopened::CASES, top::CASES];
/// Cases of the user side in themes whose other cases depend on the kernel.
const OF_USER_SIDE: &[&str] = &[
    "check_goes_on_after_a_failure",
    "check_needs_no_root",
    "command_that_cannot_run",
    "disturbed_by_a_stop",
    "ends_by_closed_pipe",
    "ends_by_count",
    "ends_by_duration",
    "ends_by_full_disk",
    "ends_by_limit_of_files",
    "ends_by_sighup",
    "ends_by_sighup_not_under_nohup",
    "ends_by_sigterm",
    "ends_though_nobody_reads_it",
    "export_by_prometheus",
    "export_goes_on_without_a_reader",
    "export_holds_back_slow_packets",
    "export_refuses_what_cannot_be",
    "footer_has_the_lines_figures",
    "footer_names_the_slowest",
    "footer_of_intervals",
    "hist_as_text_ends_by_duration",
    "pid_that_does_not_exist",
];

/// Cases of what comes behind the hooks: filters, counting, figures, privileges, and what happens to the tool. The kernel side has one body
/// of logic for that, for both backends.
const BEHIND_HOOKS: &[&[Case]] = &[
    clock::CASES,
    command::CASES,
    diagnose::CASES,
    disturbances::CASES,
    export::CASES,
    export_socket::CASES,
    faults::CASES,
    filters::CASES,
    footer::CASES,
    hist::CASES,
    hostile::CASES,
    privileges::CASES,
    record::CASES,
    reused::CASES,
    selection::CASES,
    summary::CASES,
];

/// Set in a guest that runs a share of the tests: `hooks`, `behind-hooks` or `times` for those, `but-times` for all others than `times`.
const SHARE: &str = "NET_LATENCY_TESTS";

/// A case and a theme for [`Share::Times`], besides the witness's cases.
const TIMES: &[&str] = &["check_names_every_hook", "truth::service"];

/// What a test takes of a guest.
#[derive(Clone, Copy, PartialEq)]
enum Share {
    /// It depends on how functions are hooked.
    Hooks,
    /// It is the same for each backend.
    BehindHooks,
    /// It holds times against others, or would exceed its own on a busy machine: the guest's clock is to count instructions.
    Times,
}

impl Share {
    /// Of a case, or of a theme (`truth::NAME`).
    fn of(name: &str, is_behind_hooks: bool) -> Self {
        if TIMES.contains(&name) || witness::CASES.iter().any(|(known, _)| *known == name) {
            Self::Times
        } else if is_behind_hooks {
            Self::BehindHooks
        } else {
            Self::Hooks
        }
    }

    /// Whether this guest runs its tests.
    fn is_here(self) -> bool {
        match env::var(SHARE).as_deref() {
            Ok("hooks") => self == Self::Hooks,
            Ok("behind-hooks") => self == Self::BehindHooks,
            Ok("times") => self == Self::Times,
            Ok("but-times") => self != Self::Times,
            _ => true,
        }
    }
}

/// The first two numbers of the kernel's version.
fn kernel_version() -> Result<(u32, u32)> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse().ok());
    numbers.next().zip(numbers.next()).with_context(|| format!("no version: {release}"))
}

/// Whether this guest plays a theme's scenarios.
pub(crate) fn is_played(theme: &str) -> bool {
    Share::of(theme, false).is_here()
}

/// Whether a case is one of the user side.
pub(crate) fn is_of_user_side(name: &str) -> bool {
    let is_in_theme = USER_SIDE.iter().copied().flatten().any(|(known, _)| *known == name);
    is_in_theme || OF_USER_SIDE.contains(&name)
}

/// All cases.
pub(crate) fn all() -> impl Iterator<Item = Case> {
    [
        check::CASES,
        connections::CASES,
        container::CASES,
        conversation::CASES,
        filters::CASES,
        selection::CASES,
        command::CASES,
        reused::CASES,
        volume::CASES,
        ledger::CASES,
        lifetimes::CASES,
        witness::CASES,
        clock::CASES,
        soak::CASES,
        race::CASES,
        record::CASES,
        output::CASES,
        reopened::CASES,
        summary::CASES,
        footer::CASES,
        ends::CASES,
        disturbances::CASES,
        faults::CASES,
        privileges::CASES,
        top::CASES,
        hist::CASES,
        diagnose::CASES,
        export::CASES,
        export_socket::CASES,
        hostile::CASES,
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

/// Names in this file's lists and in [`daily`]'s that no test has.
fn unknown_names() -> Vec<&'static str> {
    let themes: Vec<_> = truth::THEMES.iter().map(|theme| format!("truth::{}", theme.name)).collect();
    let is_known = |name: &str| {
        let of_harness = harness::CASES.iter().map(|(known, _)| *known);
        all().map(|(known, _)| known).chain(of_harness).any(|known| known == name)
            || themes.iter().any(|theme| theme == name)
    };
    daily::names()
        .chain([OF_USER_SIDE, TIMES].into_iter().flatten().copied())
        .filter(|name| !is_known(name))
        .collect()
}

/// Whether a case is one of what comes behind the hooks.
fn is_behind_hooks(name: &str) -> bool {
    BEHIND_HOOKS.iter().copied().flatten().any(|(known, _)| *known == name)
}

/// Whether a case means anything with that backend, and in this guest.
pub(crate) fn applies(name: &str, backend: Backend) -> bool {
    let is_in = |cases: &[Case]| cases.iter().any(|(known, _)| *known == name);
    let is_of_kprobes = prerequisites::OF_KPROBES.contains(&name) || name.starts_with("calls_");
    let is_behind_hooks = is_behind_hooks(name) && !is_of_kprobes;
    // Where softirqs are preempted, two may count at the same time.
    let is_behind_hooks = is_behind_hooks && !(backend == Backend::Auto && is_in(hist::CASES));
    (!is_of_kprobes || backend == Backend::Kprobe)
        && (!is_in(race::CASES) || race::is_wanted())
        && (name != conversation::BY_FENTRY_ALONE || backend == Backend::Auto)
        && Share::of(name, is_behind_hooks).is_here()
}
