//! What tracing costs, measured in guests whose clock counts instructions, and compared with what it did cost.

mod figures;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};

use self::figures::{Figures, Record};
use crate::{
    build::{self, Built},
    cli::BenchArgs,
    guest::qemu::{Outcome, captured, contents},
    paths,
    setup::{self, Needs, kernels::Series},
};

/// Ends a guest that hangs: a whole bench takes some ten minutes.
const LIMIT: Duration = Duration::from_secs(5400);
const PROGRAM: &str = "guest-tests";
/// The kernels of the published figures.
const KERNELS: [&str; 2] = ["6.1", "7.2"];
const WATCHED: &str = "6.1";

/// The kernel that is watched over.
pub(crate) fn watched() -> Series {
    known(WATCHED)
}

fn known(name: &str) -> Series {
    name.parse().expect("one of the known kernels")
}

/// Measures and prints; compares with the committed figures, or replaces them.
pub(crate) fn run(args: &BenchArgs) -> Result<ExitCode> {
    let kernels = match args.kernels.as_slice() {
        [] if args.short => vec![watched()],
        [] => KERNELS.map(known).into(),
        chosen => chosen.to_vec(),
    };
    setup::ensure(&Needs::guests(kernels.clone()))?;
    let (built, tests) = (build::for_guest()?, build::guest_tests()?);
    let mut record = Record::read(&record_path())?;
    let mut risen = Vec::new();
    for kernel in kernels {
        let figures = measure(kernel, args.short, &built, &tests)?;
        println!("Linux {kernel}\n\n{}", figures.table());
        if args.save {
            ensure!(!args.short, "--save needs the whole bench, without --short");
            record.replace(&kernel.to_string(), figures);
        } else {
            let compared = record.compare(&kernel.to_string(), &figures);
            for line in &compared.lines {
                println!("{line}");
            }
            risen.extend(compared.risen);
        }
    }
    if args.save {
        fs::write(record_path(), record.to_text()).context("can't write the figures")?;
    }
    if risen.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    bail!(
        "the cost has risen: {}; if it is worth it, `cargo xtask bench --save` keeps the new figures",
        risen.join("; ")
    )
}

/// Measures the watched figures; the error names those that have risen.
pub(crate) fn watch(built: &Built, tests: &Path) -> Result<()> {
    let figures = measure(watched(), true, built, tests)?;
    let compared = Record::read(&record_path())?.compare(WATCHED, &figures);
    println!("{}", figures.table());
    for line in &compared.lines {
        println!("{line}");
    }
    ensure!(!compared.lines.is_empty(), "no figures of {WATCHED} to compare with");
    ensure!(compared.risen.is_empty(), "{}", compared.risen.join("; "));
    Ok(())
}

fn record_path() -> PathBuf {
    paths::workspace().join("docs/performance.json")
}

fn measure(kernel: Series, is_short: bool, built: &Built, tests: &Path) -> Result<Figures> {
    let mut command = vec![PROGRAM.into(), "bench".into()];
    command.extend(is_short.then(|| "short".into()));
    let mut contents = contents(kernel, built, command);
    contents.programs.push((PROGRAM.into(), tests.to_owned()));
    contents.counts_instructions = true;
    match captured(&contents, LIMIT)? {
        (Outcome::Exited(0), output) => Figures::parse(&output),
        (Outcome::Exited(status), output) => bail!("the bench ended with {status}:\n{output}"),
        (Outcome::Died { reason, tail }, output) => {
            bail!("the guest died: {reason}; its console's last lines:\n{tail}\n{output}")
        }
    }
}
