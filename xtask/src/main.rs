//! Setup, build, run, test and package net-latency: `cargo xtask help`.
//!
//! Linked statically, the same program is the init of the guests that it boots.

mod arch;
mod bench;
mod build;
mod cli;
mod dist;
mod fuzz;
mod guest;
mod incidents;
mod mutants;
mod paths;
mod process;
mod run;
mod setup;
mod test;
mod vm;

use std::process::ExitCode;

use anyhow::Result;
use arch::Arch;
use clap::{Parser as _, ValueEnum as _};
use cli::{Cli, DistArgs, Task};
use dist::Product;
use setup::{Needs, kernels::Series};

fn main() -> ExitCode {
    if guest::init::is_me() {
        guest::init::main();
    }
    let result = match Cli::parse().task {
        Task::Setup => {
            let of_each = |&arch: &Arch| Series::matrix(arch).iter().map(move |&series| (arch, series));
            let archs = Arch::default().of_guests();
            let kernels = archs.iter().flat_map(of_each).collect();
            let needs = Needs { build: archs.to_vec(), kernels, ..Needs::default() };
            setup::ensure(&needs.with_tests_here()).map(|_| ExitCode::SUCCESS)
        }
        Task::Build(args) => build(&[args.arch], || build::tool(args.arch)),
        Task::Run(args) => run::run(args),
        Task::Test(args) => test::run(&args),
        Task::Vm(args) => vm::run(args),
        Task::Bench(args) => bench::run(&args),
        Task::Incidents(args) => incidents::run(&args),
        Task::Mutants(args) => mutants::run(&args),
        Task::Fuzz(args) => fuzz::run(&args),
        Task::Docs => bench::quotes::fill().map(|()| ExitCode::SUCCESS),
        // Its packages have the objects of all architectures.
        Task::Dist(DistArgs { is_crate: true, check, .. }) => build(&[Arch::Arm64], || dist::crates(check)),
        Task::Dist(args) => {
            let product = if args.deb { Product::Package } else { Product::Tool };
            build(&[args.target.arch], || dist::run(product, args.target.arch))
        }
        Task::Image(args) => build(&args.arch, || dist::image(&args.arch)),
        Task::Clean => clean().map(|()| ExitCode::SUCCESS),
        Task::GuestDemo { role } => guest::demo::run(role).map(|()| ExitCode::SUCCESS),
    };
    result.unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        ExitCode::FAILURE
    })
}

fn build(archs: &[Arch], build: impl FnOnce() -> Result<std::path::PathBuf>) -> Result<ExitCode> {
    for &arch in archs {
        setup::ensure(&Needs::build(arch))?;
    }
    println!("{}", build()?.display());
    Ok(ExitCode::SUCCESS)
}

fn clean() -> Result<()> {
    let of_all = [paths::guest(), paths::crates(), paths::mutants(), paths::fuzz()];
    let of_each = Arch::value_variants()
        .iter()
        .flat_map(|&arch| [paths::tools_of(arch), paths::kernels(arch), paths::dist(arch)]);
    of_all.into_iter().chain(of_each).try_for_each(|directory| paths::remove(&directory))
}
