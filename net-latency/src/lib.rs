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
mod recording;
pub mod request;
pub mod run;
pub mod source;
#[cfg(test)]
mod written;

use std::process::ExitCode;

/// The whole program: reads the command line, does what it says, and gives the exit code.
#[must_use]
pub fn main() -> ExitCode {
    let outcome = cli::from_env().and_then(commands::run);
    let code = error::report(outcome);
    message::finish();
    code
}
