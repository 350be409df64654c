//! Which packets: the options that every view of packets shares.

use std::path::Path;

use clap::{Args, ValueEnum};
use net_latency_common::Direction;

use super::{process, values};
use crate::error::Failure;

/// The options, as clap reads them.
#[derive(Debug, Args)]
#[command(next_help_heading = "Packets")]
pub(super) struct PacketArguments {
    /// Only packets of this process (repeatable)
    #[arg(short, long = "pid", value_name = "PID", value_parser = values::parse_pid)]
    pids: Vec<u32>,
    /// Only packets with this port at either end (repeatable)
    #[arg(long = "port", value_name = "PORT", value_parser = values::parse_port)]
    ports: Vec<u16>,
    /// Only packets that come in, or only those that go out
    #[arg(long, value_enum)]
    direction: Option<DirectionArgument>,
    /// Also packets without data: SYN, FIN, RST, pure ACKs and probes
    #[arg(long)]
    control: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum DirectionArgument {
    In,
    Out,
}

impl DirectionArgument {
    pub(super) fn direction(self) -> Direction {
        match self {
            Self::In => Direction::In,
            Self::Out => Direction::Out,
        }
    }
}

/// Which packets to show: those that meet every condition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PacketFilter {
    /// Processes (thread-group ids), each once; all if empty.
    pub pids: Vec<u32>,
    /// Ports, each once; all if empty.
    pub ports: Vec<u16>,
    /// The only direction.
    pub direction: Option<Direction>,
    /// Packets without application data too.
    pub control: bool,
}

impl PacketArguments {
    /// Checks the options against this machine, whose processes `proc` shows.
    pub(super) fn resolve(self, proc: &Path) -> Result<PacketFilter, Failure> {
        process::check_pids(&self.pids, proc)?;
        Ok(PacketFilter {
            pids: unique(self.pids),
            ports: unique(self.ports),
            direction: self.direction.map(DirectionArgument::direction),
            control: self.control,
        })
    }
}

fn unique<T: Ord>(mut values: Vec<T>) -> Vec<T> {
    values.sort_unstable();
    values.dedup();
    values
}
