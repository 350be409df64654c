//! Calls as JSON: an object a call, in the order of entries within each tree.

use net_latency_common::CallRecord;
use serde::Serialize;

use super::{
    names::{Functions, comm, context, is_by_task, pid, tid},
    tree::{Tree, duration_ns, is_within, self_ns},
};
use crate::{
    clock::{Clock, TimeStyle, TimeText, Zone},
    output::write_json,
};

#[derive(Debug, Serialize)]
struct Object<'a> {
    /// When it was entered.
    ts: &'a str,
    /// When it was entered, in ns of `CLOCK_MONOTONIC`.
    mono_ns: u64,
    function: &'a str,
    address: String,
    duration_ns: u64,
    self_ns: u64,
    depth: u32,
    /// The traced function that called it, where that is known.
    caller: Option<&'a str>,
    context: &'static str,
    pid: Option<u32>,
    tid: Option<u32>,
    comm: Option<String>,
    cpu: u32,
    exit_cpu: u32,
    /// A number that all calls within one outermost call share.
    tree: u64,
}

#[derive(Debug)]
pub(super) struct Json {
    time: TimeText,
    ts: Vec<u8>,
    trees: u64,
}

impl Json {
    pub(super) fn new(zone: Zone) -> Self {
        Self { time: TimeText::new(zone, TimeStyle::Rfc3339), ts: Vec::new(), trees: 0 }
    }

    /// Appends the objects of a tree.
    pub(super) fn write(&mut self, tree: &Tree, functions: &Functions, clock: Clock, out: &mut Vec<u8>) {
        self.trees += 1;
        let mut open: Vec<&CallRecord> = Vec::new();
        for call in &tree.calls {
            while open.pop_if(|last| !is_within(call, last)).is_some() {}
            let caller = open.last().filter(|last| last.depth + 1 == call.depth);
            self.ts.clear();
            self.time.write(clock.to_utc_ns(call.entry_ns), &mut self.ts);
            let start = functions.get(call.function).map_or(call.function, |function| function.address);
            let of_task = is_by_task(call);
            let object = Object {
                ts: str::from_utf8(&self.ts).expect("times are ASCII"),
                mono_ns: call.entry_ns,
                function: functions.name(call.function),
                address: format!("{start:#x}"),
                duration_ns: duration_ns(call),
                self_ns: self_ns(call),
                depth: call.depth,
                caller: caller.map(|caller| functions.name(caller.function)),
                context: context(call),
                pid: of_task.then(|| pid(call)),
                tid: of_task.then(|| tid(call)),
                comm: of_task.then(|| String::from_utf8_lossy(comm(call)).into_owned()),
                cpu: call.entry_cpu,
                exit_cpu: call.cpu,
                tree: self.trees,
            };
            write_json(&object, out);
            open.push(call);
        }
    }
}
