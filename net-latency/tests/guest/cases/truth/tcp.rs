//! TCP over the plain paths.

use super::{Check, Scenario, Theme};
use crate::{
    net::{Path, Version},
    oracle,
    peers::Pair,
};
use anyhow::Result;

pub(crate) const THEME: Theme = Theme {
    name: "tcp",
    arguments: &[],
    scenarios: &[
        Scenario { name: "conversation_loopback_v4", play: || conversation(&Path::loopback(Version::V4)?) },
        Scenario { name: "conversation_loopback_v6", play: || conversation(&Path::loopback(Version::V6)?) },
        Scenario { name: "conversation_veth_v4", play: || conversation(&Path::veth(Version::V4)?) },
        Scenario { name: "conversation_veth_v6", play: || conversation(&Path::veth(Version::V6)?) },
    ],
};

const ROUNDS: u32 = 500;
const LEN: u32 = 200;

/// One line per data segment and direction, of the right process, with every stage.
fn conversation(path: &Path) -> Result<Check> {
    let mut pair = Pair::connect(path)?;
    pair.converse(ROUNDS, LEN)?;
    Ok(Box::new(move |evidence| {
        let conversation = oracle::Conversation::check(evidence.outcome, &evidence.lines, &pair)?;
        conversation.expect_rounds(evidence.outcome, ROUNDS as usize, LEN)
    }))
}
