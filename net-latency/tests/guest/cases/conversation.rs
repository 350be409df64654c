//! Conversations that are older than the tool.

use anyhow::Result;

use super::Case;
use crate::{
    net::{Path, Version},
    oracle,
    peers::Pair,
    tool::{Backend, Launch},
};

pub(crate) const CASES: &[Case] = &[("sockets_opened_before", sockets_opened_before)];

const ROUNDS: u32 = 500;
const LEN: u32 = 200;

/// An incident's connections are older than the tool.
fn sockets_opened_before(backend: Backend) -> Result<()> {
    for path in [Path::loopback(Version::V4)?, Path::veth(Version::V6)?] {
        let mut pair = Pair::connect(&path)?;
        pair.converse(10, LEN)?;
        let tool = Launch::new(backend).start()?;
        pair.converse(ROUNDS, LEN)?;
        let outcome = tool.stop()?;
        for conversation in oracle::check(&outcome, &[&pair])? {
            conversation.expect_rounds(&outcome, ROUNDS as usize, LEN)?;
        }
    }
    Ok(())
}
