//! Setup, build, run, test and package net-latency: `cargo xtask help`.
//!
//! Linked statically, the same program is the init of the guests that it boots.

mod bench;
mod build;
mod cli;
mod dist;
mod guest;
mod incidents;
mod mutants;
mod paths;
mod process;
mod run;
mod setup;
mod test;
mod vm;

use std::{fs, process::ExitCode};

use anyhow::{Context as _, Result};
use clap::Parser as _;
use cli::{Cli, DistArgs, Task};
use dist::Product;
use setup::{Needs, kernels::Series};

fn main() -> ExitCode {
    if guest::init::is_me() {
        guest::init::main();
    }
    let result = match Cli::parse().task {
        Task::Setup => setup::ensure(&Needs::tests(Series::MATRIX.to_vec())).map(|_| ExitCode::SUCCESS),
        Task::Build => build(build::tool),
        Task::Run(args) => run::run(args),
        Task::Test(args) => test::run(&args),
        Task::Vm(args) => vm::run(args),
        Task::Bench(args) => bench::run(&args),
        Task::Incidents(args) => incidents::run(&args),
        Task::Mutants(args) => mutants::run(&args),
        Task::Docs => bench::quotes::fill().map(|()| ExitCode::SUCCESS),
        Task::Dist(DistArgs { is_crate: true, check, .. }) => build(|| dist::crates(check)),
        Task::Dist(args) => build(|| dist::run(if args.deb { Product::Package } else { Product::Tool })),
        Task::Image => build(|| dist::run(Product::Image)),
        Task::Clean => clean().map(|()| ExitCode::SUCCESS),
        Task::GuestDemo { role } => guest::demo::run(role).map(|()| ExitCode::SUCCESS),
    };
    result.unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        ExitCode::FAILURE
    })
}

fn build(build: impl FnOnce() -> Result<std::path::PathBuf>) -> Result<ExitCode> {
    setup::ensure(&Needs::build())?;
    println!("{}", build()?.display());
    Ok(ExitCode::SUCCESS)
}

fn clean() -> Result<()> {
    for directory in
        [paths::tools(), paths::kernels(), paths::guest(), paths::crates(), paths::dist(), paths::mutants()]
    {
        if directory.exists() {
            fs::remove_dir_all(&directory)
                .with_context(|| format!("can't remove {}", directory.display()))?;
        }
    }
    Ok(())
}
