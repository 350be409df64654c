//! What the screen shows, all of it: the parts of the screen take from here.

use std::time::Duration;

use super::{
    model::Model,
    paint::Look,
    rows::{Row, Rows},
    state::State,
};
use crate::{accounting::Losses, clock::Zone, diagnosis::Headline};

/// Notes about the run.
#[derive(Clone, Debug)]
pub(super) struct Status {
    /// Where the packets come from: how the kernel is hooked, or which log is played back, and how fast.
    pub(super) source: String,
    /// Which packets are traced, as options; empty if all.
    pub(super) traced: String,
    pub(super) elapsed: Duration,
    pub(super) window: Duration,
    pub(super) losses: Losses,
    /// Whether connections that fail are told.
    pub(super) is_watching: bool,
    /// The parts of a log that were not read.
    pub(super) unread: Vec<String>,
    /// Why no more packets come.
    pub(super) end: Option<End>,
    pub(super) zone: Zone,
}

/// Why no more packets come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// All processes that were requested have ended.
    Processes,
    /// The log has been played back.
    Log,
}

/// All that is on the screen.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) model: &'a Model,
    pub(super) headline: &'a Headline,
    pub(super) state: &'a State,
    pub(super) rows: &'a Rows,
    pub(super) status: &'a Status,
    pub(super) look: Look,
}

impl<'a> View<'a> {
    /// The row that is selected, if it is a process or a connection.
    pub(super) fn selected(&self) -> Option<&'a Row> {
        match self.rows {
            Rows::Traffic(rows) => rows.get(self.state.position(&self.rows.keys())),
            Rows::Packets(_) | Rows::Failed(_) => None,
        }
    }
}
