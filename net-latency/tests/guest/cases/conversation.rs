//! Conversations of known size, over every path.

use anyhow::Result;

use super::Case;
use crate::{
    net::{Path, Version},
    oracle,
    peers::Pair,
    tool::{Backend, Launch},
};

pub(crate) const CASES: &[Case] = &[
    ("conversation_loopback_v4", |backend| conversation(backend, &Path::loopback(Version::V4)?)),
    ("conversation_loopback_v6", |backend| conversation(backend, &Path::loopback(Version::V6)?)),
    ("conversation_veth_v4", |backend| conversation(backend, &Path::veth(Version::V4)?)),
    ("conversation_veth_v6", |backend| conversation(backend, &Path::veth(Version::V6)?)),
    ("sockets_opened_before", sockets_opened_before),
];

const ROUNDS: u32 = 500;
const LEN: u32 = 200;

/// One line per data segment and direction, of the right process, with every stage.
fn conversation(backend: Backend, path: &Path) -> Result<()> {
    let tool = Launch::new(backend).start()?;
    let mut pair = Pair::connect(path)?;
    pair.converse(ROUNDS, LEN)?;
    pair.close()?;
    let outcome = tool.stop()?;
    for conversation in oracle::check(&outcome, &[&pair])? {
        conversation.expect_rounds(&outcome, ROUNDS as usize, LEN)?;
    }
    Ok(())
}

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
