//! The command line.

use std::{ffi::OsString, num::NonZeroUsize, path::PathBuf};

use clap::{Args, Parser, Subcommand};

use crate::{arch::Arch, guest::demo, run::DEFAULT_KERNEL, setup::kernels::Series};

/// Builds, runs, tests and packages net-latency, and installs what that takes.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) task: Task,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Task {
    /// Install everything that the other tasks need
    Setup,
    /// Build the tool
    Build(ArchArgs),
    /// Build the tool and run it as root, in a guest where this kernel can't be traced
    Run(RunArgs),
    /// Check format and lints, run tests on this machine and on a choice of kernels in guests
    Test(TestArgs),
    /// Boot a guest with the tool in it, for a command or a shell
    Vm(VmArgs),
    /// Measure what tracing costs, in instructions, and compare with the figures on record
    Bench(BenchArgs),
    /// Make faults in a system of services, and count how many `net-latency diagnose` names
    Incidents(IncidentsArgs),
    /// Change the kernel side in many small ways, one at a time, and name the changes that its unit tests don't notice
    Mutants(MutantsArgs),
    /// Try each reader of the user side with damaged input for long, led by which code it reaches (libFuzzer)
    Fuzz(FuzzArgs),
    /// Write the figures on record into the documents that quote them
    Docs,
    /// Build the static binary target/dist/net-latency, with symbols, manual page, completions, licences and checksums beside it
    Dist(DistArgs),
    /// Do what dist does, and make an image for container runtimes of the binary: target/dist/net-latency.oci.tar
    Image(ImageArgs),
    /// Remove what xtask keeps below target/
    Clean,
    /// Make TCP traffic; started by the guest's init
    #[command(hide = true)]
    GuestDemo {
        #[arg(value_enum)]
        role: demo::Role,
    },
}

/// For which architecture.
#[derive(Debug, Args)]
pub(crate) struct ArchArgs {
    /// For this architecture; the files for arm64 are in target/dist-arm64
    #[arg(long, value_enum, value_name = "ARCH", default_value_t)]
    pub(crate) arch: Arch,
}

/// For which architectures.
#[derive(Debug, Args)]
pub(crate) struct ImageArgs {
    /// For this architecture (repeatable: one image for all, left with the files of the first)
    #[arg(long, value_enum, value_name = "ARCH", default_values_t = [Arch::default()])]
    pub(crate) arch: Vec<Arch>,
}

#[derive(Debug, Args)]
pub(crate) struct DistArgs {
    #[command(flatten)]
    pub(crate) target: ArchArgs,
    /// Make a Debian package of it too
    #[arg(long)]
    pub(crate) deb: bool,
    /// Make packages for cargo install, which carry the kernel side's objects of all architectures
    #[arg(long = "crate", conflicts_with_all = ["deb", "arch"])]
    pub(crate) is_crate: bool,
    /// Install from them, without a BPF toolchain, and compare the objects
    #[arg(long, requires = "is_crate")]
    pub(crate) check: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Run in a guest with this kernel, even if this machine's kernel can be traced
    #[arg(long, value_name = "KERNEL", num_args = 0..=1, default_missing_value = DEFAULT_KERNEL, conflicts_with = "host")]
    pub(crate) vm: Option<Series>,
    /// Run on this machine's kernel or not at all
    #[arg(long)]
    pub(crate) host: bool,
    /// Arguments of net-latency
    #[arg(last = true)]
    pub(crate) args: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct TestArgs {
    /// Test on all kernels by both backends, measure the cost, and try new seeds for property tests
    #[arg(long)]
    pub(crate) all: bool,
    /// Test on this kernel only, by both backends (repeatable): a version like 6.1, or newest, or rt
    #[arg(long = "kernel", value_name = "KERNEL", conflicts_with = "all")]
    pub(crate) kernels: Vec<Series>,
    /// Test in guests of this architecture. Those of arm64 are emulated on other machines: without --kernel or --all the daily choice of
    /// tests on the newest kernel, and no tests on this machine
    #[arg(long, value_enum, value_name = "ARCH", default_value_t)]
    pub(crate) arch: Arch,
    /// Leave the guest tests out
    #[arg(long, conflicts_with_all = ["all", "kernels"])]
    pub(crate) no_guest: bool,
    /// Run only tests whose name contains this
    #[arg(long, value_name = "NAME")]
    pub(crate) filter: Option<String>,
    /// Run each guest test N times, to find what fails at times only
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..), conflicts_with = "no_guest")]
    pub(crate) repeat: u16,
    /// Let the random traffic last 10 minutes per kernel and backend
    #[arg(long, conflicts_with = "no_guest")]
    pub(crate) soak: bool,
}

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// Measure on this kernel only (repeatable)
    #[arg(long = "kernel", value_name = "KERNEL")]
    pub(crate) kernels: Vec<Series>,
    /// Measure in guests of this architecture
    #[arg(long, value_enum, value_name = "ARCH", default_value_t)]
    pub(crate) arch: Arch,
    /// Measure only what every test run checks
    #[arg(long)]
    pub(crate) short: bool,
    /// Measure only ways of tracing whose name contains this
    #[arg(long, value_name = "NAME", conflicts_with = "short")]
    pub(crate) mode: Option<String>,
    /// Show what each hook takes of them, by the kernel's own count of its programs' runs
    #[arg(long, requires = "mode")]
    pub(crate) hooks: bool,
    /// Measure how cost and memory grow with connections, with packets that wait and with filters
    #[arg(long, conflicts_with_all = ["short", "mode"])]
    pub(crate) scale: bool,
    /// Measure what the view of connections adds to each, beside tcplife, tcpconnlat and tcpstates; compare its times with those of
    /// packets; open more at once than it follows
    #[arg(long, conflicts_with_all = ["short", "mode", "scale", "save"])]
    pub(crate) connections: bool,
    /// Measure what the recorder takes beside the stream and hist; fill its memory for ten minutes, and write a file of all of it
    #[arg(long, conflicts_with_all = ["short", "mode", "scale", "save", "connections"])]
    pub(crate) recorder: bool,
    /// Put the figures on record instead of comparing
    #[arg(long, conflicts_with_all = ["short", "mode"])]
    pub(crate) save: bool,
}

#[derive(Debug, Args)]
pub(crate) struct IncidentsArgs {
    /// Make them on this kernel only (repeatable)
    #[arg(long = "kernel", value_name = "KERNEL")]
    pub(crate) kernels: Vec<Series>,
    /// Make only those whose name contains this: a fault like Queue or LosesCpu
    #[arg(long, value_name = "NAME", conflicts_with = "save")]
    pub(crate) fault: Option<String>,
    /// Put the table on record: docs/incidents.md
    #[arg(long)]
    pub(crate) save: bool,
    /// Draw N systems at random instead: services, gateways, how they take requests and by which connections, load beside
    /// them; half of them in guests whose clock counts instructions
    #[arg(long, value_name = "N", conflicts_with_all = ["save", "fault"])]
    pub(crate) worlds: Option<usize>,
    /// Draw by this number: the same number draws the same systems
    #[arg(long, value_name = "S", default_value_t = 1, requires = "worlds")]
    pub(crate) seed: u64,
    /// Make only one, on two processors that other programs use for LOAD percent of the time, and print the verdict as text
    #[arg(long, num_args = 3, value_names = ["FAULT", "MS", "LOAD"], conflicts_with_all = ["save", "fault", "worlds"])]
    pub(crate) show: Vec<String>,
    /// Print its packets instead, in JSON with fine stages: `diagnose --replay` judges them again
    #[arg(long, requires = "show")]
    pub(crate) packets: bool,
    /// Make one of each fault while `record` runs too, and print what `diagnose` says live and of the recording
    #[arg(long, conflicts_with_all = ["save", "fault", "worlds", "show"])]
    pub(crate) recorded: bool,
}

#[derive(Debug, Args)]
pub(crate) struct FuzzArgs {
    /// Try each reader for N seconds
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) seconds: u32,
    /// Try only those whose test's name contains this
    #[arg(long, value_name = "NAME")]
    pub(crate) filter: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct MutantsArgs {
    /// Try only N changes, drawn at random
    #[arg(long, value_name = "N")]
    pub(crate) sample: Option<NonZeroUsize>,
    /// Draw by this number: the same number draws the same changes
    #[arg(long, value_name = "S", default_value_t = 1, requires = "sample")]
    pub(crate) seed: u64,
    /// Change only files that match this (repeatable), like net-latency-ebpf/src/tcp/*.rs
    #[arg(long = "file", value_name = "GLOB")]
    pub(crate) files: Vec<String>,
    /// Fail if fewer than PERCENT of the changes that compile are noticed
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u8).range(..=100))]
    pub(crate) at_least: u8,
}

#[derive(Debug, Args)]
pub(crate) struct VmArgs {
    /// The kernel: a version like 6.1, or newest, or rt
    pub(crate) kernel: Series,
    #[command(flatten)]
    pub(crate) target: ArchArgs,
    /// Put this file into the guest's /bin (repeatable)
    #[arg(long = "add", value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// End the guest after this many seconds
    #[arg(long, value_name = "SECONDS")]
    pub(crate) timeout: Option<u64>,
    /// What to run instead of a shell
    #[arg(last = true)]
    pub(crate) command: Vec<OsString>,
}
