//! The whole test run.

mod guests;
mod manifests;
mod summary;

use std::{
    io::{BufRead as _, BufReader},
    path::PathBuf,
    process::{Command, ExitCode, Stdio},
    thread,
    time::{Instant, SystemTime},
};

use anyhow::{Context as _, Result};
use guests::{Choice, Programs};
use summary::Summary;

use crate::{
    arch::Arch,
    bench,
    build::{self, ALL_PROGRAMS, Built, WORKSPACE, cargo, quick_cargo},
    cli::TestArgs,
    dist,
    process::describe,
    setup::{self, Needs},
};

/// What property tests begin with. The recorded one is in .cargo/config.toml.
const SEED: &str = "PROPTEST_RNG_SEED";

/// How many histories of packets' lives the kernel side's simulator runs (net-latency-ebpf/src/lives): somewhat more than a minute of a processor.
const HISTORIES: (&str, &str) = ("NET_LATENCY_HISTORIES", "1000000");
/// How long each reader is tried with damaged input: there are some 15, and two processors (net-latency/src/fuzz.rs).
const FUZZING: (&str, &str) = ("NET_LATENCY_FUZZ_SECONDS", "4");

/// Runs the requested tests and prints the closing line.
pub(crate) fn run(args: &TestArgs) -> Result<ExitCode> {
    let mut summary = Summary::default();
    let choice = Choice::of(args);
    let needs = choice.needs();
    let start = Instant::now();
    thread::scope(|scope| {
        let mut beside = None;
        let prepared = setup::ensure_meanwhile(&needs, || {
            eprintln!("xtask: setup: {:.0} s", start.elapsed().as_secs_f64());
            let is_here = args.arch.is_here();
            let mut programs =
                if is_here { on_this_machine(args, &mut summary)? } else { Programs::default() };
            let others = choice.archs().filter(|arch| !arch.is_here());
            programs.tested.extend(others.filter_map(|arch| elsewhere(arch, &mut summary)));
            // They know no clock, and guests wait for a part of their time.
            beside = is_here.then(|| scope.spawn(|| beside_guests(args)));
            Some(programs)
        });
        match prepared {
            Ok((kernels, Some(programs))) => guests::run(&choice, &kernels, &programs, &mut summary),
            // Why there are no programs has been counted.
            Ok((_, None)) => {}
            Err(error) => summary.fail("setup", &format!("{error:#}")),
        }
        if let Some(beside) = beside {
            summary.add(beside.join().expect("what runs beside the guests doesn't panic"));
        }
    });
    summary.explain();
    println!("{summary}");
    Ok(if summary.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Builds all, checks format, and runs the user side's tests that need no guest. Returns what guests need.
fn on_this_machine(args: &TestArgs, summary: &mut Summary) -> Option<Programs> {
    check("format", cargo("fmt").args(["--all", "--check"]), summary);
    phase("figures in documents", summary, |_| bench::quotes::check());
    phase("manifests", summary, |_| manifests::check());
    let (built, tests) = phase("building", summary, |_| build::for_tests())?;
    let mut programs = Programs { tested: vec![(args.arch, built, tests)], released: None };
    unit_tests("tests on this machine", &[&WORKSPACE[..], &ALL_PROGRAMS].concat(), args, summary);
    if args.all {
        fuzz(summary);
        programs.released = of_users(summary);
        install(summary);
    }
    Some(programs)
}

/// Runs the kernel side's tests on this machine, and checks lints.
fn beside_guests(args: &TestArgs) -> Summary {
    const LINTS: [&str; 3] = ["--", "-D", "warnings"];
    const KERNEL_SIDE: [&str; 3] = ["--package", "net-latency-ebpf", "--lib"];
    let mut summary = Summary::default();
    unit_tests("tests of the kernel side", &KERNEL_SIDE, args, &mut summary);
    let mut lints = quick_cargo("clippy");
    check("lints", lints.args(WORKSPACE).arg("--all-targets").args(LINTS), &mut summary);
    let mut lints = quick_cargo("clippy");
    check("lints of the kernel side", lints.args(KERNEL_SIDE).args(LINTS), &mut summary);
    summary
}

/// Runs tests of these packages that need no guest, from a new seed if all is tested.
fn unit_tests(name: &str, packages: &[&str], args: &TestArgs, summary: &mut Summary) {
    let mut tests = quick_cargo("test");
    tests.args(packages).arg("--no-fail-fast").arg("--").args(&args.filter);
    tests.envs([setup::browser::REQUIRED, setup::wireshark::REQUIRED, HISTORIES]);
    tests.env(setup::python::TOLD, setup::python::programs());
    let seed = args.all.then(new_seed);
    if let Some(seed) = &seed {
        tests.env(SEED, seed);
    }
    let before = summary.failed();
    phase(name, summary, |summary| run_tests(name, &mut tests, summary));
    if let Some(seed) = seed
        && summary.failed() > before
    {
        summary.remark(&format!(
            "{name}: property tests began with {SEED}={seed}, which brings a failure of theirs again; \
             keep what it wrote to proptest-regressions"
        ));
    }
}

/// Builds what guests of another architecture need, which is all that is tested of it.
fn elsewhere(arch: Arch, summary: &mut Summary) -> Option<(Arch, Built, PathBuf)> {
    let built = phase(&format!("building for {arch}"), summary, |_| build::for_tests_elsewhere(arch));
    built.map(|(built, tests)| (arch, built, tests))
}

/// Tries readers with damaged input for longer than each run does.
fn fuzz(summary: &mut Summary) {
    let name = "fuzzing";
    let mut tests = quick_cargo("test");
    tests.args(WORKSPACE).args(["--lib", "--", "fuzz_", "--nocapture"]);
    tests.env(SEED, new_seed()).env(FUZZING.0, FUZZING.1);
    phase(name, summary, |summary| run_tests(name, &mut tests, summary));
}

/// Builds what users get, and counts its allocations. The quick build says little about either that or the cost.
fn of_users(summary: &mut Summary) -> Option<(Built, PathBuf)> {
    let released = phase("building as for users", summary, |_| {
        Ok((build::for_guest(Arch::default())?, build::guest_tests(Arch::default())?))
    })?;
    let name = "allocations as for users";
    phase(name, summary, |summary| run_tests(name, &mut build::allocations(), summary));
    Some(released)
}

/// Installs from the packages that carry the kernel side's objects.
fn install(summary: &mut Summary) {
    let done = phase("installing from the packages", summary, |_| {
        // The packages have the objects of all architectures.
        setup::ensure(&Needs::build(Arch::Arm64))?;
        dist::crates(true)
    });
    if done.is_some() {
        summary.pass();
    }
}

/// A new seed.
fn new_seed() -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    now.as_micros().to_string()
}

fn check(name: &str, command: &mut Command, summary: &mut Summary) {
    phase(name, summary, |_| crate::process::loudly(command, "see its messages above"));
}

/// Runs `cargo test`, passing its output on while reading its result lines.
fn run_tests(name: &str, command: &mut Command, summary: &mut Summary) -> Result<()> {
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("can't start `{}`", describe(command)))?;
    let stdout = child.stdout.take().context("cargo has no output")?;
    let mut output = String::new();
    for line in BufReader::new(stdout).lines() {
        let line = line?;
        println!("{line}");
        output += &line;
        output.push('\n');
    }
    // Without a code a signal ended it.
    let status = child.wait()?.code().unwrap_or(-1);
    summary.add_run(name, &output, status);
    Ok(())
}

/// Times a phase, and counts it if it fails.
fn phase<T>(name: &str, summary: &mut Summary, action: impl FnOnce(&mut Summary) -> Result<T>) -> Option<T> {
    let start = Instant::now();
    let result = action(summary);
    eprintln!("xtask: {name}: {:.0} s", start.elapsed().as_secs_f64());
    result.inspect_err(|error| summary.fail(name, &format!("{error:#}"))).ok()
}
