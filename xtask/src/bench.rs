//! What tracing costs, measured in guests whose clock counts instructions, and compared with what it did cost.

mod figures;
pub(crate) mod quotes;

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};

use self::figures::{Figures, Record};
use crate::{
    arch::Arch,
    build::{self, Built},
    cli::BenchArgs,
    guest::{
        image::Processors,
        qemu::{MEBIBYTES, Outcome, captured, contents},
    },
    paths,
    setup::{
        self, Needs,
        kernels::{Kernel, Series},
        programs,
    },
};

/// Ends a guest that hangs: a whole bench takes some ten minutes.
const LIMIT: Duration = Duration::from_secs(5400);
const PROGRAM: &str = "guest-tests";
/// The mode that takes more than the tool and the tests.
const BPFTRACE: &str = "bpftrace, the same stages";

/// Others who show connections, a server and a client with many: packages and their programs.
const OF_CONNECTIONS: [(&str, &str); 5] = [
    ("libbpf-tools", "tcplife"),
    ("libbpf-tools", "tcpconnlat"),
    ("libbpf-tools", "tcpstates"),
    ("nginx", "nginx"),
    ("wrk", "wrk"),
];
/// Memory for a hundred thousand connections, and the lines of as many round trips.
const MANY_MEBIBYTES: u32 = 4096;

/// Measures and prints; compares with the committed figures, or replaces them.
pub(crate) fn run(args: &BenchArgs) -> Result<ExitCode> {
    let arch = args.arch;
    let kernels = match args.kernels.as_slice() {
        [] if args.short || arch == Arch::Arm64 => vec![watched(arch)],
        [] => vec![watched(arch), Series::Newest],
        chosen => chosen.to_vec(),
    };
    let kernels = setup::ensure(&Needs::guests(arch, kernels))?;
    let (built, tests) = (build::for_guest(arch)?, build::guest_tests(arch)?);
    if let Some(mode) = args.mode.as_deref().filter(|_| args.hooks) {
        for kernel in kernels {
            let words = ["hooks".into(), mode.into()];
            println!("Linux {kernel}\n\n{}", printed(&kernel, &words, MEBIBYTES, &[], &built, &tests)?);
        }
        return Ok(ExitCode::SUCCESS);
    }
    if args.connections || args.recorder {
        let (word, peers) =
            if args.connections { ("connections", of_connections(arch)) } else { ("recorder", Vec::new()) };
        for kernel in kernels {
            let printed = printed(&kernel, &[word.into()], MANY_MEBIBYTES, &peers, &built, &tests)?;
            println!("Linux {kernel}\n\n{printed}");
        }
        return Ok(ExitCode::SUCCESS);
    }
    let extent = Extent::of(args);
    let mut record = Record::read(&extent.record_path())?;
    let peers = extent.peers(arch);
    let mut risen = Vec::new();
    for kernel in kernels {
        let figures = measure(&kernel, &extent, &peers, &built, &tests)?;
        println!("Linux {kernel}\n\n{}", figures.table());
        if args.save {
            record.replace(&kernel.full_name(), figures);
            // Each kernel takes a quarter of an hour: what one has given is not lost should the next fail.
            fs::write(extent.record_path(), record.to_text()).context("can't write the figures")?;
            quotes::fill()?;
        } else {
            let compared = record.compare(&kernel.full_name(), &figures);
            if compared.lines.is_empty() {
                println!("no figures of Linux {kernel} are on record, so there is nothing to compare with");
            }
            for line in compared.lines.iter().chain(&compared.new) {
                println!("{line}");
            }
            // Those of the scale are of one try each, and differ by more than the tolerance for where hashes fall.
            if !matches!(extent, Extent::Scale) {
                risen.extend(compared.risen);
            }
        }
    }
    if risen.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    bail!(
        "the cost has risen: {}; if it is worth it, `cargo xtask bench --save` keeps the new figures",
        risen.join("; ")
    )
}

/// The kernel that is watched over. Before Linux 6.4 arm64 has kprobes alone.
pub(crate) fn watched(arch: Arch) -> Series {
    match arch {
        Arch::X86_64 => Series::Version(6, 1),
        Arch::Arm64 => Series::Newest,
    }
}

/// The files of those programs. The guest leaves out missing ones, and says so.
fn of_connections(arch: Arch) -> Vec<(String, PathBuf)> {
    let mut files = Vec::new();
    for (package, name) in OF_CONNECTIONS {
        match programs::files_of(arch, package, name) {
            Ok(found) => files.extend(found),
            Err(error) => eprintln!("xtask: {name} is not available: {error:#}"),
        }
    }
    files.sort();
    files.dedup();
    files
}

/// How much is measured.
enum Extent {
    /// What is watched over.
    Short,
    /// Each way of tracing.
    Modes,
    /// Those whose name has this in it.
    Mode(String),
    /// How cost grows with what there is to trace.
    Scale,
}

impl Extent {
    fn of(args: &BenchArgs) -> Self {
        match &args.mode {
            Some(name) => Self::Mode(name.clone()),
            None if args.scale => Self::Scale,
            None if args.short => Self::Short,
            None => Self::Modes,
        }
    }

    /// What the guest's program is told.
    fn words(&self) -> Vec<OsString> {
        match self {
            Self::Short => vec!["short".into()],
            Self::Modes => Vec::new(),
            Self::Mode(name) => vec!["mode".into(), name.into()],
            Self::Scale => vec!["scale".into()],
        }
    }

    /// A guest's memory. Files take half of it at most, and bpftrace's libraries are large.
    fn mebibytes(&self) -> u32 {
        if matches!(self, Self::Scale) { MANY_MEBIBYTES } else { 2 * MEBIBYTES }
    }

    /// The figures on record.
    fn record_path(&self) -> PathBuf {
        let name = if matches!(self, Self::Scale) { "scale.json" } else { "performance.json" };
        paths::workspace().join("docs").join(name)
    }

    /// The files of other tracers that there are to compare with.
    fn peers(&self, arch: Arch) -> Vec<(String, PathBuf)> {
        let is_wanted = match self {
            Self::Short | Self::Scale => false,
            Self::Modes => true,
            Self::Mode(name) => BPFTRACE.contains(name.as_str()),
        };
        if !is_wanted {
            return Vec::new();
        }
        programs::files(arch, programs::BPFTRACE).unwrap_or_else(|error| {
            // The guest says so as well, below its figures.
            eprintln!("xtask: bpftrace is not available: {error:#}");
            Vec::new()
        })
    }
}

/// Measures the watched figures; the error names those that have risen.
pub(crate) fn watch(kernel: &Kernel, built: &Built, tests: &Path) -> Result<()> {
    let figures = measure(kernel, &Extent::Short, &[], built, tests)?;
    let compared = Record::read(&Extent::Short.record_path())?.compare(&kernel.full_name(), &figures);
    println!("{}", figures.table());
    for line in &compared.lines {
        println!("{line}");
    }
    ensure!(!compared.lines.is_empty(), "no figures of Linux {kernel} to compare with");
    ensure!(compared.risen.is_empty(), "{}", compared.risen.join("; "));
    Ok(())
}

fn measure(
    kernel: &Kernel,
    extent: &Extent,
    peers: &[(String, PathBuf)],
    built: &Built,
    tests: &Path,
) -> Result<Figures> {
    Figures::parse(&printed(kernel, &extent.words(), extent.mebibytes(), peers, built, tests)?)
}

/// What the guest's program prints when it is told these words.
fn printed(
    kernel: &Kernel,
    words: &[OsString],
    mebibytes: u32,
    peers: &[(String, PathBuf)],
    built: &Built,
    tests: &Path,
) -> Result<String> {
    let mut command = vec![PROGRAM.into(), "bench".into()];
    command.extend_from_slice(words);
    let mut contents = contents(kernel.clone(), built, command);
    contents.files = peers.to_vec();
    contents.mebibytes = mebibytes;
    contents.programs.push((PROGRAM.into(), tests.to_owned()));
    contents.processors = Processors::Counted;
    match captured(&contents, LIMIT)? {
        (Outcome::Exited(0), output) => Ok(output),
        (Outcome::Exited(status), output) => bail!("the bench ended with {status}:\n{output}"),
        (Outcome::Died { reason, tail }, output) => {
            bail!("the guest died: {reason}; its console's last lines:\n{tail}\n{output}")
        }
    }
}
