//! Fuzzing with coverage: the tests `fuzz_…` of the user side, driven by LLVM's libFuzzer (net-latency/src/fuzz.rs).

use std::{
    fs::{self, File},
    num::NonZeroUsize,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    sync::Mutex,
    thread::{self, available_parallelism},
};

use anyhow::{Context as _, Result, bail};

use crate::{
    arch::Arch,
    build,
    cli::FuzzArgs,
    paths,
    process::quietly,
    setup::{self, Needs, apt::Apt},
};

/// Has compiler-rt, and libFuzzer with it.
const PACKAGE: &str = "libclang-rt-19-dev";
/// Where that puts libFuzzer, without a `main` of its own.
const LIBRARY: &str = "/usr/lib/llvm-19/lib/clang/19/lib/linux/libclang_rt.fuzzer_no_main-x86_64.a";
/// What a single try may take of time (s) and memory (MiB).
const BOUNDS: &str = "-timeout=60 -rss_limit_mb=4096";

/// Fuzzes each reader for as long, and says what came of it.
pub(crate) fn run(args: &FuzzArgs) -> Result<ExitCode> {
    setup::ensure(&Needs::build(Arch::default()))?;
    if !Path::new(LIBRARY).exists() {
        Apt::default().install(&[PACKAGE])?;
    }
    let program = build::for_fuzzing(LIBRARY)?;
    let list = quietly(Command::new(&program).args(["fuzz_", "--list"]), "")?;
    let mut tests: Vec<_> = list.lines().filter_map(|line| line.strip_suffix(": test")).collect();
    tests.retain(|test| args.filter.as_ref().is_none_or(|filter| test.contains(filter)));
    if tests.is_empty() {
        bail!("no reader has a test fuzz_… of that name; leave --filter out, or give a part of a name");
    }
    let at_a_time = available_parallelism().map_or(1, NonZeroUsize::get).min(tests.len());
    let waiting = Mutex::new(tests.into_iter());
    let next = || waiting.lock().ok()?.next();
    let is_good = thread::scope(|scope| {
        let workers: Vec<_> = (0..at_a_time)
            .map(|_| {
                scope.spawn(|| {
                    let mut is_good = true;
                    while let Some(test) = next() {
                        is_good &= fuzz(&program, test, args.seconds).unwrap_or_else(|error| {
                            eprintln!("xtask: {test}: {error:#}");
                            false
                        });
                    }
                    is_good
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap_or(false)).fold(true, |all, one| all & one)
    });
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Fuzzes one. Whether nothing was found.
fn fuzz(program: &Path, test: &str, seconds: u32) -> Result<bool> {
    let path: PathBuf = paths::fuzz().join(format!("{}.log", test.replace("::", "-")));
    let log = File::create(&path).with_context(|| format!("can't write {}", path.display()))?;
    let mut command = Command::new(program);
    command.args(["--exact", test, "--nocapture"]).current_dir(paths::workspace());
    command.env("NET_LATENCY_FUZZ_CORPUS", paths::fuzz());
    command.env("NET_LATENCY_FUZZ_OPTIONS", format!("-max_total_time={seconds} {BOUNDS}"));
    command.stdout(log.try_clone().context("no descriptor")?).stderr(log);
    let status = command.status().with_context(|| format!("can't start {}", program.display()))?;
    let text = fs::read_to_string(&path).with_context(|| format!("can't read {}", path.display()))?;
    // A test that returns was not fuzzed.
    let is_good = status.success() && text.contains("stat::number_of_executed_units");
    let result = if is_good { String::new() } else { format!(": FOUND something, see {}", path.display()) };
    println!("{test}: {}{result}", tell(&text));
    Ok(is_good)
}

/// What libFuzzer says at its end: how many inputs, what they reach, and how many of them it keeps.
fn tell(log: &str) -> String {
    let inputs = log.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
    let last = log.lines().rev().find(|line| line.contains(" cov: ")).unwrap_or_default();
    let word = |name| last.split_whitespace().skip_while(|word| *word != name).nth(1).unwrap_or("?");
    let kept = word("corp:").split('/').next().unwrap_or_default();
    format!("{} inputs, {} edges, {kept} kept", inputs.map_or("?", str::trim), word("cov:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_log_is_told() {
        let log = "#2\tINITED cov: 90 ft: 91 corp: 1/6b exec/s: 0 rss: 40Mb\n\
                   #4096\tpulse  cov: 412 ft: 1290 corp: 77/1431b lim: 21 exec/s: 2048 rss: 47Mb\n\
                   Done 5120 runs in 2 second(s)\nstat::number_of_executed_units: 5120\n";
        assert_eq!(tell(log), "5120 inputs, 412 edges, 77 kept");
        assert_eq!(tell("panicked"), "? inputs, ? edges, ? kept");
    }
}
