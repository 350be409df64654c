//! Full speed: everything is shown or counted as lost.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::Case;
use crate::{
    net::{Path, Version},
    peers::Pair,
    tool::{Backend, Launch},
};

pub(crate) const CASES: &[Case] = &[("full_speed", full_speed)];

fn full_speed(backend: Backend) -> Result<()> {
    const ROUNDS: u32 = 20_000;
    /// A request and a reply, each out and in.
    const PACKETS: u64 = ROUNDS as u64 * 4;

    let tool = Launch::new(backend).start()?;
    let mut pair = Pair::connect(&Path::loopback(Version::V4)?)?;
    pair.set_patience(Duration::from_secs(900));
    pair.converse(ROUNDS, 200)?;
    let outcome = tool.stop()?;
    let lines = outcome.lines()?;
    let shown = lines.iter().filter(|line| pair.owns(line) && line.len > 0 && !line.is("retrans")).count();
    let (shown, lost) = (u64::try_from(shown)?, outcome.lost()?);
    println!("{backend}::full_speed: {shown} of {PACKETS} packets shown, {lost} counted as lost");
    ensure!(
        shown + lost == PACKETS,
        outcome.fault(format_args!("{shown} shown and {lost} lost are not {PACKETS} packets"), &[])
    );
    Ok(())
}
