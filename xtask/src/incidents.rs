//! What `diagnose` says of incidents that are made, in guests whose clock counts instructions.

use std::{
    collections::BTreeMap, ffi::OsString, fmt::Write as _, fs, path::PathBuf, process::ExitCode, thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;

use crate::{
    arch::Arch,
    build::{self, Built},
    cli::IncidentsArgs,
    guest::{
        image::Processors,
        qemu::{Outcome, captured, contents},
    },
    paths,
    setup::{
        self, Needs,
        kernels::{Kernel, Series},
    },
};

/// Ends a guest that hangs.
const LIMIT: Duration = Duration::from_secs(7200);
const PROGRAM: &str = "guest-tests";
const KERNELS: [Series; 2] = [Series::Version(6, 1), Series::Newest];
/// Faults from this on, in ms, are to be named.
const PLAIN_MS: u64 = 10;
/// Of N in a hundred.
const WANTED: usize = 95;

/// A run, as the guest's program prints it.
#[derive(Debug, Deserialize)]
struct Run {
    /// The right answer.
    cause: String,
    fault: String,
    place: String,
    ms: u64,
    hit: String,
    /// For how much of the time others use the processors, percent.
    load: u64,
    /// Which service calls which, and how.
    shape: String,
    judged: Judged,
    /// Whether the right one is among the first two.
    is_among_two: bool,
    /// Whether the first one is said with high confidence.
    is_promised: bool,
    found: serde_json::Value,
    /// All that was said, of one that is not right.
    verdict: Option<serde_json::Value>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Judged {
    Right,
    Wrong,
    Unsure,
}

impl Run {
    /// Whether it is one that has to be right.
    fn is_plain(&self) -> bool {
        self.ms == 0 || self.ms >= PLAIN_MS
    }
}

/// Makes them, prints each verdict and a table, and puts the table on record if requested.
pub(crate) fn run(args: &IncidentsArgs) -> Result<ExitCode> {
    let kernels = if args.kernels.is_empty() { KERNELS.into() } else { args.kernels.clone() };
    let kernels = setup::ensure(&Needs::guests(Arch::default(), kernels))?;
    let programs = build::for_tests()?;
    if !args.show.is_empty() {
        let what = if args.packets { "packets" } else { "show" };
        let wanted: Vec<_> = [what.to_owned()].into_iter().chain(args.show.iter().cloned()).collect();
        for kernel in &kernels {
            println!("{}", output(kernel, &wanted, Processors::Two, &programs)?);
        }
        return Ok(ExitCode::SUCCESS);
    }
    if args.recorded {
        for kernel in &kernels {
            println!("{}", output(kernel, &["recorded".to_owned()], Processors::Counted, &programs)?);
        }
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(count) = args.worlds {
        return worlds(&kernels, count, args.seed, &programs);
    }
    // Clocks that count instructions don't mind other guests.
    let results: Vec<_> = thread::scope(|scope| {
        let (wanted, programs) = (args.fault.as_slice(), &programs);
        let run = |kernel| scope.spawn(move || runs(kernel, wanted, Processors::Counted, programs));
        let running: Vec<_> = kernels.iter().map(run).collect();
        running.into_iter().map(|run| run.join().expect("a guest's thread doesn't panic")).collect()
    });
    let mut text = String::new();
    let mut is_good = true;
    for (kernel, runs) in kernels.iter().zip(results) {
        let runs = runs?;
        tell_of(&runs, "")?;
        let table = table(&runs);
        println!("Linux {kernel}\n\n{table}");
        write!(text, "\nLinux {kernel}:\n\n{table}")?;
        is_good &= is_enough(&runs);
    }
    if args.save {
        let page = include_str!("incidents.md").to_owned() + &text;
        fs::write(paths::workspace().join("docs/incidents.md"), page).context("can't write the table")?;
    }
    ensure!(
        is_good,
        "fewer than {WANTED} % of the faults of {PLAIN_MS} ms are named, or a healthy system is blamed"
    );
    Ok(ExitCode::SUCCESS)
}

/// Tells of those that are not right, and puts on record all that was said of them.
fn tell_of(runs: &[Run], whose: &str) -> Result<()> {
    for run in runs.iter().filter(|run| run.judged != Judged::Right) {
        let Run { cause, fault, place, ms, hit, load, shape, judged, found, verdict, .. } = run;
        let what = format!("{fault}, {place}, {ms} ms, {hit}, load {load} %{whose}");
        println!("{judged:?}: {what}, {shape}: {found}, not {cause}");
        if let Some(verdict) = verdict {
            let directory = paths::incidents();
            fs::create_dir_all(&directory)?;
            fs::write(directory.join(format!("{what}.json")), format!("{verdict:#}\n"))?;
        }
    }
    Ok(())
}

/// Draws systems, has half of them in guests of each kind, and prints how often the first finding is the right one.
fn worlds(kernels: &[Kernel], count: usize, seed: u64, programs: &(Built, PathBuf)) -> Result<ExitCode> {
    let drawn = |seed: u64, count: usize| ["worlds".to_owned(), count.to_string(), seed.to_string()];
    for kernel in kernels {
        let half = count / 2;
        let halves =
            [(Processors::Counted, drawn(seed, half)), (Processors::Two, drawn(!seed, count - half))];
        let results: Vec<_> = thread::scope(|scope| {
            let run = |(processors, wanted): (Processors, [String; 3])| {
                scope.spawn(move || runs(kernel, &wanted, processors, programs))
            };
            let running: Vec<_> = halves.into_iter().map(run).collect();
            running.into_iter().map(|run| run.join().expect("a guest's thread doesn't panic")).collect()
        });
        let mut all = Vec::new();
        for (name, runs) in ["clock counts", "two processors"].into_iter().zip(results) {
            let runs = runs?;
            tell_of(&runs, &format!(", {name}"))?;
            all.extend(runs);
        }
        println!("Linux {kernel}, seed {seed}\n\n{}", table_of_worlds(&all));
    }
    Ok(ExitCode::SUCCESS)
}

/// A row for each cause, and all of them.
fn table_of_worlds(runs: &[Run]) -> String {
    let mut rows = BTreeMap::<&str, [usize; 4]>::new();
    for run in runs {
        for name in [run.cause.as_str(), "all"] {
            let [count, right, among_two, broken] = rows.entry(name).or_default();
            let is_right = run.judged == Judged::Right;
            *count += 1;
            *right += usize::from(is_right);
            *among_two += usize::from(is_right || run.is_among_two);
            *broken += usize::from(!is_right && run.is_promised);
        }
    }
    let mut text =
        "| fault | systems | first | among two | high and wrong |\n|---|--:|--:|--:|--:|\n".to_owned();
    for (cause, counts) in rows {
        text += &format!("| `{cause}` |{}\n", counts.map(|count| format!(" {count} |")).concat());
    }
    text
}

fn runs(
    kernel: &Kernel,
    wanted: &[String],
    processors: Processors,
    programs: &(Built, PathBuf),
) -> Result<Vec<Run>> {
    let output = output(kernel, wanted, processors, programs)?;
    let lines = output.lines().filter(|line| line.starts_with('{'));
    lines.map(|line| serde_json::from_str(line).with_context(|| line.to_owned())).collect()
}

/// What the guest's program prints.
fn output(
    kernel: &Kernel,
    wanted: &[String],
    processors: Processors,
    (built, tests): &(Built, PathBuf),
) -> Result<String> {
    let mut command: Vec<OsString> = vec![PROGRAM.into(), "incidents".into()];
    command.extend(wanted.iter().map(Into::into));
    let mut contents = contents(kernel.clone(), built, command);
    contents.programs.push((PROGRAM.into(), tests.clone()));
    contents.processors = processors;
    match captured(&contents, LIMIT)? {
        (Outcome::Exited(0), output) => Ok(output),
        (Outcome::Exited(status), output) => bail!("the guest's program ended with {status}:\n{output}"),
        (Outcome::Died { reason, tail }, output) => {
            bail!("the guest died: {reason}; its console's last lines:\n{tail}\n{output}")
        }
    }
}

/// A row for each cause.
fn table(runs: &[Run]) -> String {
    let mut rows = BTreeMap::<&str, [[usize; 3]; 2]>::new();
    for run in runs {
        let counts = &mut rows.entry(&run.cause).or_default()[usize::from(run.is_plain())];
        counts[run.judged as usize] += 1;
    }
    let mut text =
        "| fault | 10 ms and more: right | wrong | unsure | 2 ms: right | wrong | unsure |\n".to_owned();
    text += "|---|--:|--:|--:|--:|--:|--:|\n";
    for (cause, [weak, plain]) in rows {
        let cells = plain.iter().chain(&weak).map(|count| format!(" {count} |"));
        text += &format!("| `{cause}` |{}\n", cells.collect::<String>());
    }
    text
}

/// Whether the plain ones are right, and no healthy system is blamed.
fn is_enough(runs: &[Run]) -> bool {
    let is_right = |run: &&Run| run.judged == Judged::Right;
    let (healthy, faults): (Vec<_>, Vec<_>) =
        runs.iter().filter(|run| run.is_plain()).partition(|run| run.cause == "none");
    let named = faults.iter().copied().filter(is_right).count();
    named * 100 >= faults.len() * WANTED && healthy.iter().all(is_right)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(cause: &str, ms: u64, judged: Judged) -> Run {
        let text = String::new;
        Run {
            cause: cause.into(),
            fault: text(),
            place: text(),
            ms,
            hit: text(),
            load: 0,
            shape: text(),
            judged,
            is_among_two: judged == Judged::Right,
            is_promised: true,
            found: Default::default(),
            verdict: None,
        }
    }

    #[test]
    fn weak_faults_may_be_missed_and_healthy_systems_may_not_be_blamed() {
        let mut runs: Vec<_> = (0..19).map(|_| run("qdisc", 10, Judged::Right)).collect();
        runs.push(run("qdisc", 50, Judged::Unsure));
        runs.push(run("qdisc", 2, Judged::Wrong));
        assert!(is_enough(&runs));
        assert!(table(&runs).ends_with("| `qdisc` | 19 | 0 | 1 | 0 | 1 | 0 |\n"), "{}", table(&runs));
        runs.push(run("none", 0, Judged::Wrong));
        assert!(!is_enough(&runs));
        runs.pop();
        runs.push(run("qdisc", 10, Judged::Wrong));
        assert!(!is_enough(&runs));
        let table = table_of_worlds(&runs);
        assert!(table.contains("\n| `qdisc` | 22 | 19 | 19 | 3 |\n"), "{table}");
    }
}
