//! Putting calls together: a call is recorded when it returns, so after all that are within it.

use std::{collections::HashMap, io::Write as _};

use net_latency_common::CallRecord;

use crate::message::counted;

/// Calls of one tree that are kept. What an outermost call calls beyond is counted.
const MOST_OF_TREE: usize = 4096;
/// Calls that are kept of all trees that are not complete.
const MOST: usize = 65_536;

/// An outermost call and those within it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Tree {
    /// In the order of their entries.
    pub(super) calls: Vec<CallRecord>,
    /// Whether the outermost is there. It may have been lost.
    pub(super) has_root: bool,
    /// Calls that belong to it and are not kept.
    pub(super) cut: u64,
}

impl Tree {
    /// How long the outermost call took, if it is there.
    pub(super) fn duration_ns(&self) -> Option<u64> {
        self.calls.first().filter(|_| self.has_root).map(duration_ns)
    }

    /// Appends how many calls are not kept, if any.
    pub(super) fn write_cut(&self, out: &mut Vec<u8>) {
        if self.cut > 0 {
            writeln!(out, "# {} inside this one", counted(self.cut, "more call"))
                .expect("memory can be written");
        }
    }
}

/// How long a call took.
pub(super) fn duration_ns(call: &CallRecord) -> u64 {
    call.exit_ns.saturating_sub(call.entry_ns)
}

/// How long it took apart from its traced callees.
pub(super) fn self_ns(call: &CallRecord) -> u64 {
    duration_ns(call).saturating_sub(call.children_ns)
}

/// Incomplete trees, by context.
#[derive(Debug, Default)]
pub(super) struct Trees {
    waiting: HashMap<(u64, u32), Waiting>,
    held: usize,
    /// Calls that were let go because too many waited.
    pub(super) cut: u64,
}

#[derive(Debug, Default)]
struct Waiting {
    calls: Vec<CallRecord>,
    cut: u64,
}

impl Trees {
    /// Adds a call that has returned, after all those of its context that returned before, and hands on complete trees.
    pub(super) fn add(&mut self, call: CallRecord, mut complete: impl FnMut(Tree)) {
        let context = (call.task, call.level);
        if call.depth > 0 {
            self.make_room();
            let waiting = self.waiting.entry(context).or_default();
            if waiting.calls.len() < MOST_OF_TREE {
                waiting.calls.push(call);
                self.held += 1;
            } else {
                waiting.cut += 1;
                self.cut += 1;
            }
            return;
        }
        let Waiting { mut calls, cut } = self.waiting.remove(&context).unwrap_or_default();
        self.held -= calls.len();
        // Those whose outermost call was lost began before this one.
        let orphans: Vec<_> = calls.extract_if(.., |inner| inner.entry_ns < call.entry_ns).collect();
        if let Some(tree) = without_root(orphans) {
            complete(tree);
        }
        calls.push(call);
        complete(Tree { calls: in_order(calls), has_root: true, cut });
    }

    /// No more calls will come: hands on those within calls that have not returned.
    pub(super) fn finish(&mut self, mut complete: impl FnMut(Tree)) {
        let mut rest: Vec<_> =
            self.waiting.drain().filter_map(|(_, waiting)| without_root(waiting.calls)).collect();
        rest.sort_by_key(|tree| tree.calls[0].entry_ns);
        self.held = 0;
        rest.into_iter().for_each(&mut complete);
    }

    fn make_room(&mut self) {
        if self.held >= MOST {
            self.cut += self.held as u64;
            self.held = 0;
            self.waiting.clear();
        }
    }
}

fn without_root(calls: Vec<CallRecord>) -> Option<Tree> {
    (!calls.is_empty()).then(|| Tree { calls: in_order(calls), has_root: false, cut: 0 })
}

fn in_order(mut calls: Vec<CallRecord>) -> Vec<CallRecord> {
    calls.sort_by_key(|call| (call.entry_ns, call.depth));
    calls
}

/// A point in a walk through a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step<'a> {
    /// A call without any within it.
    Leaf(&'a CallRecord),
    /// A call with others.
    Enter(&'a CallRecord),
    /// Its end.
    Leave(&'a CallRecord),
}

/// Walks through calls in the order of their entries.
pub(super) fn walk<'a>(calls: &'a [CallRecord], mut step: impl FnMut(Step<'a>)) {
    let mut open: Vec<&CallRecord> = Vec::new();
    for (number, call) in calls.iter().enumerate() {
        while let Some(last) = open.pop_if(|last| !is_within(call, last)) {
            step(Step::Leave(last));
        }
        if calls.get(number + 1).is_some_and(|next| is_within(next, call)) {
            step(Step::Enter(call));
            open.push(call);
        } else {
            step(Step::Leaf(call));
        }
    }
    open.into_iter().rev().for_each(|call| step(Step::Leave(call)));
}

/// Whether the call `inner`, which began later, was made while `outer` was under way. The call between may have been lost.
pub(super) fn is_within(inner: &CallRecord, outer: &CallRecord) -> bool {
    inner.depth > outer.depth && inner.entry_ns < outer.exit_ns
}
