//! Packets that a card's driver receives: by interrupt and NAPI, merged by GRO or not, handed up in lists.

use anyhow::{Result, ensure};

use super::{Check, Scenario, Theme};
use crate::{
    net::{Path, Version},
    oracle::{self, expect_bytes, expect_sum},
    peers::Pair,
};

pub(crate) const THEME: Theme = Theme {
    name: "driver",
    arguments: &[],
    scenarios: &[
        Scenario { name: "conversation_v4", play: || conversation(Version::V4) },
        Scenario { name: "conversation_v6", play: || conversation(Version::V6) },
        Scenario { name: "bulk_merged_v4", play: || bulk(Version::V4, true) },
        Scenario { name: "bulk_merged_v6", play: || bulk(Version::V6, true) },
        Scenario { name: "bulk_unmerged_v4", play: || bulk(Version::V4, false) },
        Scenario { name: "bulk_unmerged_v6", play: || bulk(Version::V6, false) },
    ],
};

const ROUNDS: u32 = 300;
const LEN: u32 = 200;
const BULK: u64 = 512 * 1024;

/// The segments of a conversation: each one skb, which the driver's stamp begins.
fn conversation(version: Version) -> Result<Check> {
    let path = Path::cards(version)?;
    let mut pair = Pair::connect(&path)?;
    pair.converse(ROUNDS, LEN)?;
    Ok(Box::new(move |evidence| {
        // With every stage, the driver's too.
        let conversation = oracle::Conversation::check(evidence.outcome, &evidence.lines, &pair)?;
        conversation.expect_rounds(evidence.outcome, ROUNDS as usize, LEN)
    }))
}

/// Bytes as fast as they go, which GRO merges if it may: a merged packet is one line that says of how many
/// segments it is, and all bytes and segments are there.
fn bulk(version: Version, merging: bool) -> Result<Check> {
    let path = Path::cards(version)?;
    path.set_merging(merging)?;
    let mut pair = Pair::connect(&path)?;
    pair.server.tell(&format!("read {BULK} 65536 0"))?;
    pair.client.ask(&format!("write {BULK}"))?;
    pair.server.answer()?;
    let segments = pair.client.ask("data-segments-out")?;
    path.set_merging(true)?;
    Ok(Box::new(move |evidence| {
        let outcome = evidence.outcome;
        let conversation = oracle::Conversation::check(outcome, &evidence.lines, &pair)?;
        let (sent, taken) = (&conversation.requests_out, &conversation.requests_in);
        expect_bytes(outcome, "requests out", sent, BULK)?;
        let unread = segments - oracle::segments(&conversation.retransmissions);
        expect_sum(outcome, "segments out", sent, |line| line.segs, unread)?;
        let merged: Vec<_> = taken.iter().filter(|line| line.segs > 1 || line.is("gro")).collect();
        println!(
            "{version:?}: {} lines in, {} of them merged, for {segments} segments",
            taken.len(),
            merged.len()
        );
        let other = merged.iter().find(|line| !(line.segs > 1 && line.is("gro")));
        ensure!(other.is_none(), outcome.fault("merged, but not both said so", other.copied()));
        expect_bytes(outcome, "requests in", taken, BULK)?;
        expect_sum(outcome, "segments in", taken, |line| line.segs, unread)?;
        ensure!(merging != merged.is_empty(), outcome.fault(format_args!("{} merged", merged.len()), taken));
        Ok(())
    }))
}
