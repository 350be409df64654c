//! What calls look like, and that no return is ever taken for another call's.

use std::collections::{HashMap, HashSet};

use insta::assert_snapshot;
use net_latency_common::{CallCounters, CallFrame, CallRecord, CallStack, MAX_DEPTH};
use proptest::prelude::*;

use super::{graph::Options, indent::Indent, json::Json, names::Functions, totals::*, tree::*, *};
use serde_json::json;

use crate::accounting::object::tests::valid;
use crate::packet::event::fixtures::comm;
use crate::request::FooterFormat;

const NAMES: [&str; 4] = ["__sys_recvfrom", "sock_recvmsg", "tcp_recvmsg", "net_rx_action"];

fn functions() -> Functions {
    let function = |(number, name): (u64, &str)| Function {
        name: name.to_owned(),
        address: 0xffff_ffff_8100_0000 + number * 0x100,
    };
    Functions::new((0..).zip(NAMES).map(function).collect())
}

/// A call of the function with that number.
fn call(number: u64, depth: u32, entry_us: u64, exit_us: u64, children_us: u64) -> CallRecord {
    CallRecord {
        entry_ns: 5_000_000_000 + entry_us * 1000,
        exit_ns: 5_000_000_000 + exit_us * 1000 + 123,
        children_ns: children_us * 1000,
        // Behind an `endbr64`.
        function: 0xffff_ffff_8100_0000 + number * 0x100 + 4,
        task: 0xffff_8880_0000_1000,
        ids: 812 << 32 | 815,
        comm: comm(b"nc|\x1b[2J"),
        entry_cpu: 0,
        cpu: 1,
        depth,
        level: 0,
    }
}

/// A call that waits, with one within and what comes behind, a softirq, and one whose outermost call was lost.
fn trees() -> Vec<Tree> {
    let softirq = CallRecord { level: 1, ..call(3, 0, 20, 25, 0) };
    let records = [
        call(2, 2, 10, 40_010, 0),
        softirq,
        call(1, 1, 8, 40_020, 40_000),
        call(1, 1, 40_021, 40_036, 0),
        call(0, 0, 5, 40_040, 40_027),
        call(2, 2, 41_000, 41_001, 0),
        call(0, 0, 42_000, 43_500, 0),
        call(1, 1, 44_000, 2_000_000, 0),
    ];
    let mut trees = Trees::default();
    let mut complete = Vec::new();
    for record in records {
        trees.add(record, |tree| complete.push(tree));
    }
    trees.finish(|tree| complete.push(tree));
    assert_eq!(trees.cut, 0);
    complete
}

#[test]
fn graphs_are_drawn_as_by_ftrace() {
    let mut out = Vec::new();
    for options in [Options::default(), Options { addresses: true, self_time: true }] {
        graph::write_head(options, &mut out);
        trees().iter().for_each(|tree| graph::write(tree, &functions(), options, &mut out));
    }
    assert_snapshot!(String::from_utf8(out).expect("names are escaped"));
}

#[test]
fn lines_are_indented_as_by_systemtap() {
    let mut out = Vec::new();
    for options in [Options::default(), Options { addresses: true, self_time: true }] {
        let mut indent = Indent::default();
        trees().iter().for_each(|tree| indent.write(tree, &functions(), options, &mut out));
    }
    assert_snapshot!(String::from_utf8(out).expect("names are escaped"));
}

#[test]
fn objects_say_all_of_a_call() {
    let mut out = Vec::new();
    let mut json = Json::new(crate::clock::Zone::UTC);
    let text = |out: &[u8]| String::from_utf8(out.to_vec()).expect("names are escaped");
    trees().iter().for_each(|tree| json.write(tree, &functions(), Clock::sample(), &mut out));
    // The wall clock is this machine's.
    let lines = text(&out)
        .lines()
        .map(|line| format!("{}\n", &line[line.find("\"mono_ns\"").expect("a field")..]))
        .collect::<String>();
    assert_snapshot!(lines);
}

#[test]
fn the_end_sums_up_and_says_what_is_missing() {
    let functions = functions();
    let mut totals = Totals::default();
    trees().iter().flat_map(|tree| &tree.calls).for_each(|call| totals.add(call, &functions));
    let write = |form, counters: [u64; 6], rest: u64, skipped| {
        let footer = Footer {
            totals: &totals,
            functions: &functions,
            elapsed: Duration::from_millis(2500),
            shown: 3,
            fast: rest,
            counters: CallCounters { values: counters },
            under_way: rest,
            cut: rest,
            unwritten: rest,
            skipped,
        };
        let mut out = Vec::new();
        footer.write(form, &mut out).expect("memory can be written");
        String::from_utf8(out).expect("text")
    };
    let text = |counters, rest, skipped| write(FooterFormat::Text, counters, rest, skipped);
    assert_snapshot!(text([8, 0, 0, 0, 0, 0], 0, Some(0)) + &text([30, 2, 3, 4, 5, 6], 7, None));
    let object = write(FooterFormat::Json, [30, 2, 3, 4, 5, 6], 7, None);
    assert_eq!(valid(&object)["lost"], json!(16));
    assert_snapshot!("for_programs", object);
    let object = valid(&write(FooterFormat::Json, [0; 6], 0, Some(9)));
    assert_eq!((&object["lost"], &object["skipped_calls"]), (&json!(0), &json!(9)));
}

#[test]
fn the_start_says_what_a_probe_costs() {
    let say = |functions, refused, cost| {
        let mut out = Vec::new();
        tell_start(functions, refused, cost, &mut out).expect("memory can be written");
        String::from_utf8(out).expect("text")
    };
    let cost = Some(Cost { call_ns: 2_890, within_ns: 730 });
    assert_snapshot!(say(118, 2, cost) + &say(1, 0, None));
}

#[test]
fn a_tree_that_does_not_end_is_cut() {
    let mut trees = Trees::default();
    let mut found = None;
    for number in 0..5000 {
        trees.add(call(1, 1, number * 2 + 1, number * 2 + 2, 0), |_| panic!("not complete"));
    }
    trees.add(call(0, 0, 0, 20_000, 10_000), |tree| found = Some(tree));
    let tree = found.expect("complete");
    assert_eq!((tree.calls.len(), tree.cut, trees.cut), (4097, 904, 904));
}

/// What may happen in a context.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A function is entered; whether the kernel has room to see its return; how much of its stack is used.
    Call { function: u64, is_returning: bool, is_seen: bool, size: u64 },
    /// The innermost function ends by jumping to another.
    Jump { function: u64, is_returning: bool },
    /// It returns; whether the kernel says which.
    Return { is_named: bool },
    /// N functions are left at once, unseen.
    Escape(usize),
}

fn event() -> impl Strategy<Value = Event> {
    let call = (1..4u64, prop::bool::weighted(0.8), prop::bool::weighted(0.9), 0..3u64).prop_map(
        |(function, is_returning, is_seen, size)| Event::Call { function, is_returning, is_seen, size },
    );
    prop_oneof![
        8 => call,
        2 => (1..4u64, prop::bool::weighted(0.8)).prop_map(|(function, is_returning)| Event::Jump { function, is_returning }),
        8 => prop::bool::weighted(0.8).prop_map(|is_named| Event::Return { is_named }),
        1 => (1..4usize).prop_map(Event::Escape),
    ]
}

/// A call as it truly is.
#[derive(Clone, Copy, Debug)]
struct Truth {
    function: u64,
    entry_ns: u64,
    slot: u64,
    is_returning: bool,
    is_seen: bool,
}

const TOP: u64 = 0xffff_c900_0000_4000;

/// Plays events as the kernel side sees them: the calls that it finds, and the true ones by entry.
fn play(events: &[Event]) -> (Vec<CallRecord>, HashMap<u64, (Truth, u64)>, u64) {
    let frame = CallFrame { slot: 0, function: 0, entry_ns: 0, children_ns: 0, entry_cpu: 0 };
    let mut stack = CallStack { depth: 0, ids: 0, frames: [frame; MAX_DEPTH] };
    let mut under_way: Vec<Truth> = Vec::new();
    // Places on the kernel's stack that hold the address by which returns are seen.
    let mut expected: HashSet<u64> = HashSet::new();
    let (mut found, mut truth, mut lost, mut now) = (Vec::new(), HashMap::new(), 0, 0);
    let mut enter = |call: Truth, stack: &mut CallStack, expected: &mut HashSet<u64>| {
        if call.is_seen {
            lost += stack.prune(call.slot, |slot| expected.contains(&slot));
            match stack.push() {
                Some(frame) => {
                    *frame = CallFrame {
                        slot: call.slot,
                        function: call.function,
                        entry_ns: call.entry_ns,
                        children_ns: 0,
                        entry_cpu: 0,
                    };
                }
                None => lost += 1,
            }
        }
        if call.is_returning {
            expected.insert(call.slot);
        }
    };
    for event in events {
        now += 10;
        match *event {
            Event::Call { function, is_returning, is_seen, size } => {
                let slot = under_way.last().map_or(TOP, |last| last.slot) - 8 * (size + 1);
                // Calls overwrite what was there.
                expected.retain(|&place| place > slot);
                let call =
                    Truth { function, entry_ns: now, slot, is_returning: is_returning && is_seen, is_seen };
                enter(call, &mut stack, &mut expected);
                under_way.push(call);
            }
            Event::Jump { function, is_returning } => {
                let Some(last) = under_way.last().copied() else { continue };
                let call = Truth { function, entry_ns: now, slot: last.slot, is_returning, is_seen: true };
                enter(call, &mut stack, &mut expected);
                under_way.push(call);
            }
            Event::Return { is_named } => {
                let Some(slot) = under_way.last().map(|last| last.slot) else { continue };
                now += 1;
                // Those that jumped return together.
                while let Some(call) = under_way.pop_if(|call| call.slot == slot) {
                    truth.insert(call.entry_ns, (call, now));
                    let named = if is_named { call.function } else { 0 };
                    if call.is_returning
                        && let Some(left) = stack.pop(slot, named, now)
                    {
                        let frame = stack.frame(left.depth);
                        found.push(CallRecord {
                            entry_ns: frame.entry_ns,
                            exit_ns: now,
                            children_ns: frame.children_ns,
                            function: frame.function,
                            depth: left.depth as u32,
                            task: 0,
                            ids: 0,
                            comm: [0; 16],
                            entry_cpu: 0,
                            cpu: 0,
                            level: 0,
                        });
                    }
                }
                // The caller's code goes on, and what was below may be anything.
                expected.remove(&slot);
            }
            Event::Escape(count) => {
                for _ in 0..count {
                    let Some(slot) = under_way.last().map(|last| last.slot) else { break };
                    under_way.retain(|call| call.slot != slot);
                }
            }
        }
    }
    (found, truth, lost)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_return_is_taken_for_another_calls(events in prop::collection::vec(event(), 0..200)) {
        let (found, truth, _) = play(&events);
        for call in &found {
            let (true_call, exit_ns) = truth.get(&call.entry_ns).copied().expect("a call that has returned");
            prop_assert_eq!((call.function, call.exit_ns), (true_call.function, exit_ns));
            prop_assert!(call.children_ns <= duration_ns(call));
        }
    }

    #[test]
    fn without_losses_every_call_is_found(events in prop::collection::vec(event(), 0..100)) {
        let sees_all = |event: Event| match event {
            Event::Call { function, size, .. } => Event::Call { function, size, is_returning: true, is_seen: true },
            Event::Jump { function, .. } => Event::Jump { function, is_returning: true },
            Event::Escape(_) => Event::Return { is_named: true },
            Event::Return { .. } => event,
        };
        let mut depth = 0;
        let mut deepest = 0;
        for event in &events {
            depth = if matches!(event, Event::Call { .. } | Event::Jump { .. }) { depth + 1 } else { 0.max(depth - 1) };
            deepest = deepest.max(depth);
        }
        prop_assume!(deepest < MAX_DEPTH as i32);
        let events: Vec<_> = events.into_iter().map(sees_all).collect();
        let (found, truth, lost) = play(&events);
        prop_assert_eq!(lost, 0);
        prop_assert_eq!(found.len(), truth.len());
    }

    /// Each call is within those that are shown around it.
    #[test]
    fn trees_are_nested_as_calls_were(
        events in prop::collection::vec(event(), 0..200),
        lost in prop::collection::vec(prop::bool::weighted(0.1), 200),
    ) {
        let (found, ..) = play(&events);
        let kept: Vec<_> = found.into_iter().zip(&lost).filter(|(_, lost)| !**lost).map(|(call, _)| call).collect();
        let mut trees = Trees::default();
        let mut complete = Vec::new();
        for call in &kept {
            trees.add(*call, |tree| complete.push(tree));
        }
        trees.finish(|tree| complete.push(tree));
        let mut shown = Vec::new();
        for tree in &complete {
            let mut open: Vec<&CallRecord> = Vec::new();
            walk(&tree.calls, |step| match step {
                Step::Enter(call) | Step::Leaf(call) => {
                    if let Some(around) = open.last() {
                        assert!(around.entry_ns < call.entry_ns && call.exit_ns <= around.exit_ns, "{around:?} {call:?}");
                    }
                    shown.push(*call);
                    if let Step::Enter(_) = step {
                        open.push(call);
                    }
                }
                Step::Leave(call) => assert_eq!(open.pop(), Some(call)),
            });
        }
        // What jumped returned together.
        let (mut shown, mut kept) = (shown, kept);
        for calls in [&mut shown, &mut kept] {
            calls.sort_by_key(|call| (call.exit_ns, call.entry_ns));
        }
        prop_assert_eq!(shown, kept);
    }
}
