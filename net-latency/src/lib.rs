//! net-latency: shows, live and per packet, where the time went between driver, IP, TCP and application.
//!
//! Data flows one way: hooks in the kernel → ring buffer → [`source`] → [`packet`] → [`commands`] → [`output`].

pub mod accounting;
pub mod cli;
pub mod clock;
pub mod commands;
pub mod diagnosis;
pub mod error;
mod escape;
mod export;
mod files;
#[cfg(test)]
mod fuzz;
pub mod kernel;
mod message;
pub mod output;
pub mod packet;
pub mod probes;
pub mod request;
pub mod run;
pub mod source;

use std::process::ExitCode;

use request::Config;

/// The whole program: reads the command line, does what it says, and gives the exit code.
#[must_use]
pub fn main() -> ExitCode {
    let outcome = cli::from_env().and_then(|config| match config {
        Config::Stream(config) => commands::stream::run(&config),
        Config::Calls(config) => commands::calls::run(&config).map(|()| ExitCode::SUCCESS),
        Config::Check(config) => commands::check::run(&config).map(|()| ExitCode::SUCCESS),
        Config::Diagnose(config) => commands::diagnose::run(&config).map(|()| ExitCode::SUCCESS),
        Config::Export(config) => commands::export::run(&config).map(|()| ExitCode::SUCCESS),
        Config::Hist(config) => commands::hist::run(&config).map(|()| ExitCode::SUCCESS),
        Config::Journey(config) => commands::journey::run(&config).map(|()| ExitCode::SUCCESS),
        Config::Print(text) => commands::to_stdout(&text).map(|()| ExitCode::SUCCESS),
        Config::Write { directory, files } => {
            commands::to_files(&directory, &files).map(|()| ExitCode::SUCCESS)
        }
        Config::Report(config) => commands::report::run(&config).map(|()| ExitCode::SUCCESS),
        Config::Top(config) => commands::top::run(&config).map(|()| ExitCode::SUCCESS),
    });
    let code = error::report(outcome);
    message::finish();
    code
}
