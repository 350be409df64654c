//! Calls as ftrace's function_graph shows them.

use std::io::Write as _;

use super::{
    names::{Functions, is_by_task, tid, write_caller},
    tree::{Step, Tree, duration_ns, self_ns, walk},
};

/// What stands before a duration, and the ns that it is longer than (kernel/trace/trace_output.c, `trace_find_mark`).
const MARKS: [(char, u64); 6] = [
    ('$', 1_000_000_000),
    ('@', 100_000_000),
    ('*', 10_000_000),
    ('#', 1_000_000),
    ('!', 100_000),
    ('+', 10_000),
];

/// Width of a duration, and of the caller before it.
const TIME_WIDTH: usize = 15;
const CALLER_WIDTH: usize = 23;

/// Columns beside names and durations.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Options {
    pub(super) addresses: bool,
    pub(super) self_time: bool,
}

/// Appends the names of the columns.
pub(super) fn write_head(options: Options, out: &mut Vec<u8>) {
    let own = if options.self_time { format!("{:>TIME_WIDTH$} | ", "SELF") } else { String::new() };
    writeln!(
        out,
        "# CPU {:>CALLER_WIDTH$} | {:<TIME_WIDTH$} | {own}FUNCTION CALLS",
        "TASK-TID", "    DURATION"
    )
    .expect("memory can be written");
}

/// Appends the lines of a tree.
pub(super) fn write(tree: &Tree, functions: &Functions, options: Options, out: &mut Vec<u8>) {
    let mut caller = Vec::new();
    walk(&tree.calls, |step| {
        let (call, is_timed) = match step {
            Step::Leaf(call) | Step::Leave(call) => (call, true),
            Step::Enter(call) => (call, false),
        };
        caller.clear();
        write_caller(call, &mut caller);
        if is_by_task(call) {
            write!(caller, "-{}", tid(call)).expect("memory can be written");
        }
        let caller = String::from_utf8_lossy(&caller);
        let cpu = if let Step::Enter(_) = step { call.entry_cpu } else { call.cpu };
        write!(out, "{cpu:>4}) {caller:>CALLER_WIDTH$} | ").expect("memory can be written");
        write_time(is_timed.then(|| duration_ns(call)), out);
        if options.self_time {
            write_time(is_timed.then(|| self_ns(call)), out);
        }
        let depth = call.depth as usize * 2;
        write!(out, "{:depth$}", "").expect("memory can be written");
        match step {
            Step::Leaf(call) => {
                functions.write(call.function, options.addresses, out);
                out.extend_from_slice(b"();");
            }
            Step::Enter(call) => {
                functions.write(call.function, options.addresses, out);
                out.extend_from_slice(b"() {");
            }
            Step::Leave(call) => {
                write!(out, "}} /* {} */", functions.name(call.function)).expect("memory can be written");
            }
        }
        out.push(b'\n');
    });
    tree.write_cut(out);
}

/// A column with a time, or without.
fn write_time(ns: Option<u64>, out: &mut Vec<u8>) {
    let text = ns.map_or_else(String::new, |ns| {
        let mark = MARKS.iter().find(|(_, least)| ns > *least).map_or(' ', |(mark, _)| *mark);
        format!("{mark} {:>6}.{:03} us", ns / 1000, ns % 1000)
    });
    write!(out, "{text:<TIME_WIDTH$} | ").expect("memory can be written");
}
