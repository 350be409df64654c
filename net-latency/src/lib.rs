//! net-latency: shows, live and per packet, where the time went between driver, IP, TCP and application.
//!
//! Data flows one way: hooks in the kernel → ring buffer → [`capture`] → [`event`] → [`views`] → [`output`].

pub mod capture;
mod cells;
pub mod cli;
pub mod clock;
mod command;
pub mod devices;
mod ends;
pub mod error;
pub mod event;
pub mod glob;
pub mod kernel;
pub mod kernel_log;
pub mod namespaced;
pub mod output;
pub mod probes;
pub mod summary;
pub mod tracer;
pub mod views;

use std::process::ExitCode;

use cli::Config;

/// The whole program: reads the command line, does what it says, and gives the exit code.
#[must_use]
pub fn main() -> ExitCode {
    let outcome = cli::from_env().and_then(|config| match config {
        Config::Stream(config) => views::stream::run(&config),
        Config::Calls(config) => views::calls::run(&config).map(|()| ExitCode::SUCCESS),
        Config::Check(config) => views::check::run(&config).map(|()| ExitCode::SUCCESS),
        Config::Completions { shell } => views::completions::run(shell).map(|()| ExitCode::SUCCESS),
        Config::Hist(config) => views::hist::run(&config).map(|()| ExitCode::SUCCESS),
        Config::Journey(config) => views::journey::run(&config).map(|()| ExitCode::SUCCESS),
        Config::Man => views::man::run().map(|()| ExitCode::SUCCESS),
        Config::Report(config) => views::report::run(&config).map(|()| ExitCode::SUCCESS),
        Config::Top(config) => views::top::run(&config).map(|()| ExitCode::SUCCESS),
    });
    error::report(outcome)
}
