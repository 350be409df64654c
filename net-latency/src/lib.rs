//! net-latency: shows, live and per packet, where the time went between driver, IP, TCP and application.
//!
//! Data flows one way: hooks in the kernel → ring buffer → `source` → `packet` → `commands` → `output`.

mod accounting;
mod cli;
mod clock;
mod commands;
mod diagnosis;
mod error;
mod escape;
mod export;
mod files;
#[cfg(test)]
mod fuzz;
mod kernel;
mod message;
mod name;
mod named;
mod output;
mod packet;
mod probes;
mod recording;
mod request;
mod run;
mod source;
#[cfg(test)]
mod written;

use std::process::ExitCode;

/// What the package's own tests and benches use. It is no interface for others.
#[doc(hidden)]
pub mod inside {
    pub use crate::{
        accounting::{Losses, Summary},
        cli::command,
        clock::{Clock, Zone},
        diagnosis::{Model, Recent},
        error::Failure,
        kernel::{memory, preemption},
        output::{Options, Writer, header},
        packet::event::{Event, Found, PARTS, completion_ns},
        probes::{
            plan::{Plan, Scope},
            table::{Mechanism, Program, Programs},
        },
        recording::block::Packer,
        request::{format::Format, tracing::Stages},
        source::order::Order,
    };
}

/// The whole program: reads the command line, does what it says, and gives the exit code.
#[must_use]
pub fn main() -> ExitCode {
    let outcome = cli::from_env().and_then(commands::run);
    let code = error::report(outcome);
    message::finish();
    code
}
