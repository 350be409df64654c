//! Packets without data, with `--stages fine --control`: no application reads them, so that there is no time in the socket to split.

use anyhow::{Result, ensure};

use super::{Check, Scenario, Theme};
use crate::{
    lines::{Dir, NET, Proto},
    net::{Path, Version},
    oracle::Conversation,
    peers::Pair,
};

pub(crate) const THEME: Theme = Theme {
    name: "control",
    arguments: &["--stages", "fine", "--control"],
    scenarios: &[
        Scenario { name: "loopback", play: || conversation(&Path::loopback(Version::V4)?) },
        Scenario { name: "veth", play: || conversation(&Path::veth(Version::V6)?) },
    ],
};

/// A connection that is opened, used and closed: where the whole is not known no part is, and what has no bytes is not acknowledged.
fn conversation(path: &Path) -> Result<Check> {
    const ROUNDS: u32 = 20;
    const LEN: u32 = 100;
    let mut pair = Pair::connect(path)?;
    pair.converse(ROUNDS, LEN)?;
    pair.close()?;
    Ok(Box::new(move |evidence| {
        let conversation = Conversation::check(evidence.outcome, &evidence.lines, &pair)?;
        conversation.expect_rounds(evidence.outcome, ROUNDS as usize, LEN)?;
        let own = evidence.lines.iter().filter(|line| line.proto == Proto::Tcp && pair.owns(line));
        let mut control = [0; 2];
        for line in own {
            let fault = |what: &str| evidence.outcome.fault(what, [line]);
            ensure!(line.is_fine, fault("without fine stages"));
            ensure!(line.fine.is_none() || line.stages[2].is_some(), fault("parts of nothing"));
            if line.is("control") {
                ensure!(line.dir == Dir::Out || line.stages[2].is_none(), fault("read, without a byte"));
                ensure!(line.sent[NET].is_none(), fault("acknowledged, without a byte"));
                control[usize::from(line.dir == Dir::Out)] += 1;
            }
        }
        // A handshake has one from each end at least, and so has the end of a connection.
        ensure!(
            control.iter().all(|count| *count >= 2),
            evidence.outcome.fault(format_args!("{control:?} control packets in and out"), &evidence.lines)
        );
        Ok(())
    }))
}
