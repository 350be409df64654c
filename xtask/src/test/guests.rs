//! The tests that need a kernel of their own.

use std::{
    collections::VecDeque,
    ffi::OsString,
    fmt,
    io::{self, Write as _},
    path::PathBuf,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;

use super::{
    phase,
    summary::{FailedTest, Summary},
};
use crate::{
    bench,
    build::{self, Built},
    cli::TestArgs,
    guest::qemu::{Outcome, captured, contents},
    setup::{kernels::Series, programs},
};

/// Guests beyond one per processor: some of a guest's time goes into sleeps and the kernel's grace periods.
const GUESTS_BEYOND: usize = 1;
/// Ends a guest that hangs. The tests take a few minutes under emulation, those on PREEMPT_RT three times as long.
const GUEST_LIMIT: Duration = Duration::from_secs(4500);
const TEST_PROGRAM: &str = "guest-tests";
/// Seconds of random traffic with `--soak`, once per backend, and what that adds to the limit: a while for checking
/// what came is included.
const SOAK: (&str, &str) = ("NET_LATENCY_SOAK_SECONDS", "600");
const SOAK_LIMIT: Duration = Duration::from_secs(3600);
/// Tells the tests that the guest has network cards.
const CARDS: (&str, &str) = ("NET_LATENCY_CARDS", "1");
/// With more failures than this something is broken, and nothing is tried again.
const MOST_TRIED_AGAIN: usize = 12;

/// What one guest tests. Two halves a kernel, so that the slowest kernel doesn't set the time of the whole.
const HALVES: [(&str, &[&str]); 2] =
    [("fentry or auto", &["kprobe::"]), ("kprobe", &["fentry::", "auto::", "harness::", "last::"])];

/// A guest's work.
#[derive(Clone)]
struct Job {
    kernel: Series,
    part: String,
    arguments: Vec<OsString>,
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kernel {}, {}", self.kernel, self.part)
    }
}

/// What every guest gets.
struct Material {
    built: Built,
    tests: PathBuf,
    soak: bool,
}

/// Runs the guest tests on `kernels`. What fails is tried once more, each test alone in a guest of its own, with nothing
/// else running: guests that are tested together disturb each other. What needed that is told at the end.
pub(super) fn run(args: &TestArgs, kernels: &[Series], summary: &mut Summary) {
    let built = phase("building for the guests", || Ok((build::for_guest()?, build::guest_tests()?)));
    let material = match built {
        Ok((built, tests)) => Material { built, tests, soak: args.soak },
        Err(error) => return summary.fail("building for the guests", &format!("{error:#}")),
    };
    let processors = thread::available_parallelism().map_or(1, Into::into);
    // A guest whose clock counts instructions doesn't mind others.
    let is_watched = args.filter.is_none() && kernels.iter().any(|kernel| *kernel == bench::watched());
    let (failures, cost) = thread::scope(|scope| {
        let cost = is_watched
            .then(|| scope.spawn(|| phase("the cost", || bench::watch(&material.built, &material.tests))));
        let failures = play_all(jobs(args, kernels), processors + GUESTS_BEYOND, &material, summary);
        (failures, cost.map(|cost| cost.join().expect("measuring doesn't panic")))
    });
    match cost {
        Some(Ok(())) => summary.pass(),
        Some(Err(error)) => summary.fail("the cost", &format!("{error:#}")),
        None => {}
    }
    if failures.len() > MOST_TRIED_AGAIN {
        for (job, test) in failures {
            summary.fail_test(&job.to_string(), test);
        }
        return;
    }
    for (job, test) in failures {
        let again = Job {
            part: test.name.clone(),
            arguments: vec!["--exact".into(), test.name.clone().into()],
            ..job.clone()
        };
        let before = summary.passed();
        let failed_again = play_all(vec![again], 1, &material, summary).pop();
        match failed_again {
            Some((_, test)) => summary.fail_test(&job.to_string(), test),
            None if summary.passed() > before => summary.passed_again(&job.to_string(), &test),
            // The guest died, or didn't know the test.
            None => summary.fail_test(&job.to_string(), test),
        }
    }
}

/// The slowest first: PREEMPT_RT, the last of the list, takes three times as long as the others.
fn jobs(args: &TestArgs, kernels: &[Series]) -> Vec<Job> {
    let halves = kernels.iter().rev().flat_map(|kernel| HALVES.map(|half| (*kernel, half)));
    let job = |(kernel, (part, skipped)): (Series, (&str, &[&str]))| {
        let skipped = skipped.iter().flat_map(|name| ["--skip".into(), OsString::from(name)]);
        let filter = args.filter.iter().map(OsString::from);
        Job { kernel, part: part.to_owned(), arguments: skipped.chain(filter).collect() }
    };
    halves.map(job).collect()
}

/// Plays all, some at a time, and returns the tests that failed.
fn play_all(
    jobs: Vec<Job>,
    at_a_time: usize,
    material: &Material,
    summary: &mut Summary,
) -> Vec<(Job, FailedTest)> {
    let queue = Mutex::new(VecDeque::from(jobs));
    let results = Mutex::new((summary, Vec::new()));
    thread::scope(|scope| {
        for _ in 0..at_a_time {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().expect("no holder of the lock panics").pop_front();
                    let Some(job) = next else { return };
                    eprintln!("xtask: {job}: testing …");
                    let start = Instant::now();
                    let result = play(&job, material);
                    let mut results = results.lock().expect("no holder of the lock panics");
                    let (summary, failures) = &mut *results;
                    let failed = report(&job, result, start.elapsed(), summary);
                    failures.extend(failed.into_iter().map(|test| (job.clone(), test)));
                }
            });
        }
    });
    results.into_inner().expect("no holder of the lock panics").1
}

fn play(job: &Job, material: &Material) -> Result<(Outcome, String)> {
    let mut command = vec![TEST_PROGRAM.into(), "--test-threads=1".into(), "--color=never".into()];
    command.extend(job.arguments.iter().cloned());
    let mut contents = contents(job.kernel, &material.built, command);
    contents.programs.push((TEST_PROGRAM.into(), material.tests.clone()));
    contents.files = programs::files(programs::STRACE)?;
    contents.has_cards = true;
    let mut limit = GUEST_LIMIT;
    let mut set = |(name, value): (&str, &str)| contents.environment.push((name.into(), value.into()));
    set(CARDS);
    if material.soak {
        set(SOAK);
        limit += SOAK_LIMIT;
    }
    captured(&contents, limit)
}

/// Prints a guest's output in one piece, each line with its kernel in front. Counts what passed and returns the tests
/// that failed.
fn report(
    job: &Job,
    result: Result<(Outcome, String)>,
    took: Duration,
    summary: &mut Summary,
) -> Vec<FailedTest> {
    let name = job.to_string();
    let mut failed = Vec::new();
    let mut text = String::new();
    match result {
        Ok((Outcome::Exited(status), output)) => {
            text += &output;
            failed = summary.add_guest(&name, &output, status.into());
        }
        Ok((Outcome::Died { reason, tail }, output)) => {
            text += &format!("{output}\nthe guest died: {reason}; its console's last lines:\n{tail}\n");
            summary.fail(&name, &format!("the guest died: {reason}; its console's last lines:\n{tail}"));
        }
        Err(error) => summary.fail(&name, &format!("{error:#}")),
    }
    let mut stdout = io::stdout().lock();
    for line in text.lines() {
        // Nobody is left to tell if standard output is closed; the exit code still counts.
        drop(writeln!(stdout, "{:>4} | {line}", job.kernel));
    }
    eprintln!("xtask: {name}: {:.0} s", took.as_secs_f64());
    failed
}
