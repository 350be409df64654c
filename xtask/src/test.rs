//! The whole test run.

mod guests;
mod summary;

use std::{
    io::{BufRead as _, BufReader},
    process::{Command, ExitCode, Stdio},
    time::Instant,
};

use anyhow::{Context as _, Result};
use summary::Summary;

use crate::{
    build::cargo,
    cli::TestArgs,
    process::describe,
    setup::{self, Needs, kernels::Series},
};

/// Runs everything and prints the closing line.
pub(crate) fn run(args: &TestArgs) -> Result<ExitCode> {
    let mut summary = Summary::default();
    let kernels = match (args.no_guest, args.kernels.as_slice()) {
        (true, _) => Vec::new(),
        (false, []) => Series::all(),
        (false, chosen) => chosen.to_vec(),
    };
    let ready = phase("setup", || setup::ensure(&Needs::tests(kernels.clone())));
    match ready {
        Ok(()) => {
            on_this_machine(args, &mut summary);
            if !kernels.is_empty() {
                guests::run(args, &kernels, &mut summary);
            }
        }
        Err(error) => summary.fail("setup", &format!("{error:#}")),
    }
    summary.explain();
    println!("{summary}");
    Ok(if summary.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Format, lints, unit tests.
fn on_this_machine(args: &TestArgs, summary: &mut Summary) {
    const LINTS: [&str; 3] = ["--", "-D", "warnings"];
    // The kernel side's programs can't be compiled for this machine, only its library can.
    const HOST: [&str; 3] = ["--workspace", "--exclude", "net-latency-ebpf"];

    let mut format = cargo("fmt");
    check("format", format.args(["--all", "--check"]), summary);
    let mut lints = cargo("clippy");
    check("lints", lints.args(HOST).arg("--all-targets").args(LINTS), summary);
    let mut kernel_lints = cargo("clippy");
    check(
        "lints of the kernel side",
        kernel_lints.args(["-p", "net-latency-ebpf", "--lib"]).args(LINTS),
        summary,
    );

    let (browser, required) = setup::browser::REQUIRED;
    for (name, packages) in [
        ("tests on this machine", &HOST[..]),
        ("tests of the kernel side", &["-p", "net-latency-ebpf", "--lib"]),
    ] {
        let mut tests = cargo("test");
        tests.args(packages).arg("--no-fail-fast").arg("--").args(&args.filter).env(browser, required);
        if let Err(error) = phase(name, || run_tests(name, &mut tests, summary)) {
            summary.fail(name, &format!("{error:#}"));
        }
    }
}

fn check(name: &str, command: &mut Command, summary: &mut Summary) {
    let result = phase(name, || crate::process::loudly(command, "see its messages above"));
    if let Err(error) = result {
        summary.fail(name, &format!("{error:#}"));
    }
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

/// Times a phase.
fn phase<T>(name: &str, action: impl FnOnce() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    let result = action();
    eprintln!("xtask: {name}: {:.0} s", start.elapsed().as_secs_f64());
    result
}
