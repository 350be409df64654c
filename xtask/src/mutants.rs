//! Mutation testing of the kernel side: which changes to it make no test fail. `.cargo/mutants.toml` has what is changed and how it is
//! built; cargo-mutants does the rest.

use std::{
    fs, io,
    num::NonZeroUsize,
    ops::RangeInclusive,
    path::Path,
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use crate::{cli::MutantsArgs, paths, process::quietly, setup::cargo_tool};

/// The simulator's histories for each mutant: about ten seconds. A number and no time, so that a busy machine misses no more than a free
/// one (net-latency-ebpf/src/lives/mod.rs).
const HISTORIES: (&str, &str) = ("NET_LATENCY_HISTORIES", "130000");

/// What a mutant's tests may take, in seconds. It is only for those that never end, so it is far more than the others need.
const LIMIT: &str = "240";

/// A mutant as cargo-mutants lists it: its file, its place and the change are its name.
#[derive(Debug, Deserialize)]
struct Mutant {
    name: String,
    file: String,
    span: Span,
}

#[derive(Debug, Deserialize)]
struct Span {
    start: Position,
}

#[derive(Debug, Deserialize)]
struct Position {
    line: usize,
}

/// What became of all of them, as in outcomes.json.
#[derive(Debug, Deserialize)]
struct Outcomes {
    outcomes: Vec<Outcome>,
    total_mutants: usize,
    missed: usize,
    caught: usize,
    timeout: usize,
    unviable: usize,
}

#[derive(Debug, Deserialize)]
struct Outcome {
    scenario: Scenario,
    summary: String,
}

#[derive(Debug, Deserialize)]
enum Scenario {
    Baseline,
    Mutant(Mutant),
}

/// Tests mutants, and prints those that were missed.
pub(crate) fn run(args: &MutantsArgs) -> Result<ExitCode> {
    let program = cargo_tool::MUTANTS.ensure()?;
    let mut list = cargo_mutants(&program, args);
    let listed = quietly(list.args(["--list", "--json"]), "see .cargo/mutants.toml")?;
    let mutants: Vec<Mutant> = serde_json::from_str(&listed).context("cargo-mutants lists no mutants")?;
    let mut names = Vec::new();
    let mut left_out = String::new();
    for mutant in mutants {
        if is_compiled(&mutant)? {
            names.push(mutant.name);
        } else {
            left_out += &(mutant.name + "\n");
        }
    }
    let count = args.sample.map_or(names.len(), NonZeroUsize::get);
    for name in shuffled(names, args.seed).into_iter().skip(count) {
        left_out += &(name + "\n");
    }
    // It takes the others for caught before: regular expressions don't hold for all kinds of mutants (27.1.0).
    let output = paths::mutants().join("mutants.out");
    if output.exists() {
        fs::remove_dir_all(&output).with_context(|| format!("can't remove {}", output.display()))?;
    }
    fs::create_dir_all(&output)
        .and_then(|()| fs::write(output.join("previously_caught.txt"), left_out))
        .with_context(|| format!("can't write to {}", output.display()))?;
    let mut test = cargo_mutants(&program, args);
    test.args(["--iterate", "--timeout", LIMIT, "--output"])
        .arg(paths::mutants())
        .env(HISTORIES.0, HISTORIES.1);
    // What it says on the way is not the result.
    let status =
        test.stdout(io::stderr()).status().with_context(|| format!("can't start {}", program.display()))?;
    // 2: some were missed. 3: some took too long.
    if !matches!(status.code(), Some(0 | 2 | 3)) {
        bail!("cargo-mutants failed ({status}): see {}", output.display());
    }
    let path = output.join("outcomes.json");
    let outcomes = fs::read_to_string(&path).with_context(|| format!("can't read {}", path.display()))?;
    Ok(tell(&serde_json::from_str(&outcomes)?, args.at_least))
}

fn cargo_mutants(program: &Path, args: &MutantsArgs) -> Command {
    let mut command = Command::new(program);
    command.args(["mutants", "--package", "net-latency-ebpf", "--colors", "never"]);
    command.current_dir(paths::workspace());
    for file in &args.files {
        command.arg("--file").arg(file);
    }
    command
}

/// Whether a mutant is compiled for this machine. cargo-mutants takes all but tests for compiled.
fn is_compiled(mutant: &Mutant) -> Result<bool> {
    let source = fs::read_to_string(paths::workspace().join(&mutant.file));
    let others = for_others(&source.with_context(|| format!("can't read {}", mutant.file))?);
    Ok(!others.iter().any(|lines| lines.contains(&mutant.span.start.line)))
}

/// Lines of items and blocks that are not compiled for this machine, where all features are on. rustfmt has put the brace that ends one
/// right below the attribute before it.
fn for_others(source: &str) -> Vec<RangeInclusive<usize>> {
    const ATTRIBUTES: [&str; 2] = ["#[cfg(target_arch = \"bpf\")]", "#[cfg(not(feature"];
    let lines: Vec<_> =
        source.lines().map(|line| (line.len() - line.trim_start().len(), line.trim())).collect();
    let mut ranges = Vec::new();
    for (at, (indent, text)) in lines.iter().enumerate() {
        if ATTRIBUTES.iter().any(|attribute| text.starts_with(attribute)) {
            let is_last = |(other, text): &(usize, &str)| {
                let is_beside = other == indent && !text.starts_with("//");
                is_beside && (text.starts_with('}') || text.ends_with(';'))
                    || other < indent && !text.is_empty()
            };
            let rest = &lines[at + 1..];
            ranges.push(at + 2..=at + 2 + rest.iter().position(is_last).unwrap_or(rest.len()));
        }
    }
    ranges
}

/// An order by a seed, of which the first ones are a sample. Each has its place by its name, so that most of a sample stays after a small
/// change of the sources.
fn shuffled(mut names: Vec<String>, seed: u64) -> Vec<String> {
    names.sort_by_cached_key(|name| Sha256::digest(format!("{seed} {name}")));
    names
}

/// Prints the result. It is good if at least this part was caught, in per cent.
fn tell(all: &Outcomes, at_least: u8) -> ExitCode {
    for Outcome { scenario, summary } in &all.outcomes {
        if let Scenario::Mutant(Mutant { name, .. }) = scenario {
            match summary.as_str() {
                "MissedMutant" => println!("missed: {name}"),
                "Timeout" => println!("caught, for it took {LIMIT} s: {name}"),
                _ => {}
            }
        }
    }
    let caught = all.caught + all.timeout;
    println!(
        "{} mutants: {caught} caught, {} missed, {} unviable",
        all.total_mutants, all.missed, all.unviable
    );
    let is_enough = caught * 100 >= usize::from(at_least) * (caught + all.missed);
    if is_enough { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_sample_and_another_seed_another() {
        let draw = |names: &[String], seed| shuffled(names.to_vec(), seed)[..20].to_vec();
        let mut names: Vec<_> =
            (0..1000).map(|number| format!("file.rs:{number}:1: replace + with -")).collect();
        let first = draw(&names, 1);
        assert_ne!(first, names[..20]);
        assert_ne!(first, draw(&names, 2));
        names.reverse();
        assert_eq!(first, draw(&names, 1));
    }

    #[test]
    fn what_is_for_other_machines_is_left_out() {
        let source = r#"
#[cfg(target_arch = "bpf")]
impl A {
    fn a() {}
}
fn b() {
    #[cfg(not(feature = "fine"))]
    return 1;
    #[cfg(not(target_arch = "bpf"))]
    2
}
fn c() {
    #[cfg(target_arch = "bpf")]
    3
}
"#;
        let others = for_others(source);
        let lines =
            source.lines().enumerate().filter(|(at, _)| others.iter().any(|range| range.contains(&(at + 1))));
        let lines: Vec<_> = lines.map(|(_, line)| line.trim()).collect();
        assert_eq!(lines, ["impl A {", "fn a() {}", "}", "return 1;", "3", "}"]);
    }
}
