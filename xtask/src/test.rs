//! The whole test run.

mod summary;

use std::{
    collections::VecDeque,
    io::{self, BufRead as _, BufReader, Write as _},
    process::{Command, ExitCode, Stdio},
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use summary::Summary;

use crate::{
    build::{self, Built, cargo},
    cli::TestArgs,
    guest::qemu::{Outcome, captured, contents},
    process::describe,
    setup::{self, Needs, kernels::Series},
};

/// Emulated guests keep a processor busy each.
const GUESTS_AT_A_TIME: usize = 2;
/// Ends a guest that hangs. The tests take a few minutes under emulation.
const GUEST_LIMIT: Duration = Duration::from_secs(3600);
const TEST_PROGRAM: &str = "guest-tests";
/// Seconds of random traffic with `--soak`, once per backend, and what that adds to the limit: a while for checking
/// what came is included.
const SOAK: (&str, &str) = ("NET_LATENCY_SOAK_SECONDS", "600");
const SOAK_LIMIT: Duration = Duration::from_secs(3600);
/// Tells the tests that the guest has network cards.
const CARDS: (&str, &str) = ("NET_LATENCY_CARDS", "1");

/// Runs everything and prints the closing line.
pub(crate) fn run(args: &TestArgs) -> Result<ExitCode> {
    let mut summary = Summary::default();
    let kernels = match (args.no_guest, args.kernels.as_slice()) {
        (true, _) => Vec::new(),
        (false, []) => Series::all(),
        (false, chosen) => chosen.to_vec(),
    };
    let ready = phase("setup", || setup::ensure(&Needs::guests(kernels.clone())));
    match ready {
        Ok(()) => {
            on_this_machine(args, &mut summary);
            if !kernels.is_empty() {
                in_guests(args, &kernels, &mut summary);
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

    let mut tests = cargo("test");
    tests.args(HOST).arg("--no-fail-fast").arg("--").args(&args.filter);
    let result = phase("tests on this machine", || run_tests(&mut tests, summary));
    if let Err(error) = result {
        summary.fail("tests on this machine", &format!("{error:#}"));
    }
}

fn check(name: &str, command: &mut Command, summary: &mut Summary) {
    let result = phase(name, || crate::process::loudly(command, "see its messages above"));
    if let Err(error) = result {
        summary.fail(name, &format!("{error:#}"));
    }
}

/// Runs `cargo test`, passing its output on while reading its result lines.
fn run_tests(command: &mut Command, summary: &mut Summary) -> Result<()> {
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
    summary.add_run("tests on this machine", &output, status);
    Ok(())
}

/// The tests that need a kernel of their own.
fn in_guests(args: &TestArgs, kernels: &[Series], summary: &mut Summary) {
    let built = phase("building for the guests", || Ok((build::for_guest()?, build::guest_tests()?)));
    let (built, tests) = match built {
        Ok(built) => built,
        Err(error) => return summary.fail("building for the guests", &format!("{error:#}")),
    };
    // The last of the list first: PREEMPT_RT, which takes three times as long as the others.
    let queue: Mutex<VecDeque<_>> = Mutex::new(kernels.iter().rev().copied().collect());
    let summary = Mutex::new(summary);
    thread::scope(|scope| {
        for _ in 0..GUESTS_AT_A_TIME {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().expect("no holder of the lock panics").pop_front();
                    let Some(kernel) = next else { return };
                    let start = Instant::now();
                    let result = in_guest(args, kernel, &built, &tests);
                    let mut summary = summary.lock().expect("no holder of the lock panics");
                    report(kernel, result, start.elapsed(), &mut summary);
                }
            });
        }
    });
}

fn in_guest(
    args: &TestArgs,
    kernel: Series,
    built: &Built,
    tests: &std::path::Path,
) -> Result<(Outcome, String)> {
    let mut command = vec![TEST_PROGRAM.into(), "--test-threads=1".into()];
    command.extend(args.filter.iter().map(Into::into));
    let mut contents = contents(kernel, built, command);
    contents.programs.push((TEST_PROGRAM.into(), tests.to_owned()));
    contents.has_cards = true;
    let mut limit = GUEST_LIMIT;
    let mut set = |(name, value): (&str, &str)| contents.environment.push((name.into(), value.into()));
    set(CARDS);
    if args.soak {
        set(SOAK);
        limit += SOAK_LIMIT;
    }
    eprintln!("xtask: kernel {kernel}: testing …");
    captured(&contents, limit)
}

/// Prints a guest's output in one piece, each line with its kernel in front.
fn report(kernel: Series, result: Result<(Outcome, String)>, took: Duration, summary: &mut Summary) {
    let name = format!("kernel {kernel}");
    let mut text = String::new();
    match result {
        Ok((Outcome::Exited(status), output)) => {
            text += &output;
            summary.add_run(&name, &output, status.into());
        }
        Ok((Outcome::Died { reason, tail }, output)) => {
            text += &format!("{output}\nthe guest died: {reason}; its console's last lines:\n{tail}\n");
            summary.add_counts(&output);
            summary.fail(&name, &format!("the guest died: {reason}"));
        }
        Err(error) => summary.fail(&name, &format!("{error:#}")),
    }
    let mut stdout = io::stdout().lock();
    for line in text.lines() {
        // Nobody is left to tell if standard output is closed; the exit code still counts.
        drop(writeln!(stdout, "{kernel:>4} | {line}"));
    }
    eprintln!("xtask: {name}: {:.0} s", took.as_secs_f64());
}

/// Times a phase.
fn phase<T>(name: &str, action: impl FnOnce() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    let result = action();
    eprintln!("xtask: {name}: {:.0} s", start.elapsed().as_secs_f64());
    result
}
