//! Calls as SystemTap's `thread_indent` shows them: a line per entry and return.

use std::{collections::HashMap, io::Write as _};

use net_latency_common::CallRecord;

use super::{
    graph::Options,
    names::{Functions, is_by_task, tid, write_caller},
    tree::{Step, Tree, self_ns, walk},
};

/// Threads whose last event is remembered.
const MOST: usize = 8192;

/// When each thread had its last event, in ns.
#[derive(Debug, Default)]
pub(super) struct Indent {
    last: HashMap<(u64, u32), u64>,
}

impl Indent {
    /// Appends the lines of a tree.
    pub(super) fn write(&mut self, tree: &Tree, functions: &Functions, options: Options, out: &mut Vec<u8>) {
        walk(&tree.calls, |step| match step {
            Step::Leaf(call) => {
                self.line(call, false, functions, options, out);
                self.line(call, true, functions, options, out);
            }
            Step::Enter(call) => self.line(call, false, functions, options, out),
            Step::Leave(call) => self.line(call, true, functions, options, out),
        });
        tree.write_cut(out);
    }

    fn line(
        &mut self,
        call: &CallRecord,
        is_return: bool,
        functions: &Functions,
        options: Options,
        out: &mut Vec<u8>,
    ) {
        let at = if is_return { call.exit_ns } else { call.entry_ns };
        if self.last.len() >= MOST {
            self.last.clear();
        }
        let last = self.last.insert((call.task, call.level), at);
        write!(out, "{:>6} ", at.saturating_sub(last.unwrap_or(at)) / 1000).expect("memory can be written");
        write_caller(call, out);
        if is_by_task(call) {
            write!(out, "({}):", tid(call)).expect("memory can be written");
        } else {
            write!(out, "(CPU {}):", call.cpu).expect("memory can be written");
        }
        let depth = call.depth as usize;
        write!(out, "{:depth$} {} ", "", if is_return { "<-" } else { "->" }).expect("memory can be written");
        functions.write(call.function, options.addresses, out);
        if is_return && options.self_time {
            write!(out, " (self {} us)", self_ns(call) / 1000).expect("memory can be written");
        }
        out.push(b'\n');
    }
}
