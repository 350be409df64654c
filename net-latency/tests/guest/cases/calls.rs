//! Calls of functions: every one, with its true times, in the right place.

use std::{collections::BTreeMap, io::Read as _, time::Duration};

use anyhow::{Context as _, Result, ensure};
use net_latency::inside::preemption;
use nix::sys::signal::Signal;
use regex_lite::Regex;
use serde_json::Value;

use super::Case;
use crate::{
    arch::system_call,
    ftrace::{Tracing, is_interleaved},
    leftovers::Kernel,
    net::{Path, Version},
    peers::{CLIENT, Peer, SERVER},
    tool::{Backend, Launch, Outcome, Sink, Tool, run},
};

pub(crate) const CASES: &[Case] = &[
    ("calls_of_sockets_are_all_there", sockets),
    ("calls_show_where_a_wait_was", wait),
    ("calls_of_interrupts_are_their_own", interrupts),
    ("calls_agree_with_ftrace", witness),
    ("calls_as_text_end_by_count", text),
    ("calls_end_when_nobody_reads", closed),
    ("calls_refuse_what_cannot_be", refused),
];

/// The system calls of one round of a peer, and what closing calls.
const ROUND: [&str; 6] = [
    system_call!("socket"),
    system_call!("bind"),
    system_call!("getsockname"),
    system_call!("sendto"),
    system_call!("recvfrom"),
    "sock_close",
];

/// Linux 6.12 with PREEMPT_RT waits 0.7 s for each probe to go, with a lock held (`perf_event_detach_bpf_prog`).
pub(super) fn detaches_slowly() -> bool {
    preemption::is_realtime()
}

pub(super) fn start(backend: Backend, arguments: &[&str]) -> Result<Tool> {
    Launch::new(backend).view("calls").args(arguments).start()
}

/// The objects, of which each must be whole and agree with itself and those around it.
pub(super) fn calls(outcome: &Outcome) -> Result<Vec<Value>> {
    let calls = outcome.text()?.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>();
    let calls = calls.map_err(|error| outcome.fault(format_args!("not JSON: {error}"), []))?;
    let mut around: Vec<&Value> = Vec::new();
    let mut inner: BTreeMap<(u64, usize), u64> = BTreeMap::new();
    for call in &calls {
        let depth = usize::try_from(number(call, "depth")?)?;
        around.truncate(if around.first().is_some_and(|root| root["tree"] == call["tree"]) {
            depth
        } else {
            0
        });
        ensure!(around.len() == depth, outcome.fault(format_args!("nothing around {call}"), []));
        if let Some(caller) = around.last() {
            let end = |call: &Value| {
                Ok::<_, anyhow::Error>(number(call, "mono_ns")? + number(call, "duration_ns")?)
            };
            ensure!(
                call["caller"] == caller["function"],
                outcome.fault(format_args!("{call} in {caller}"), [])
            );
            ensure!(
                number(call, "mono_ns")? >= number(caller, "mono_ns")? && end(call)? <= end(caller)?,
                outcome.fault(format_args!("{call} is not within {caller}"), [])
            );
            ensure!(call["tid"] == caller["tid"], outcome.fault(format_args!("{call} in {caller}"), []));
            *inner.entry((number(caller, "mono_ns")?, depth - 1)).or_default() +=
                number(call, "duration_ns")?;
        } else {
            ensure!(call["caller"].is_null(), outcome.fault(format_args!("an outermost {call}"), []));
        }
        around.push(call);
    }
    for call in &calls {
        let key = (number(call, "mono_ns")?, usize::try_from(number(call, "depth")?)?);
        let inner = inner.get(&key).copied().unwrap_or(0);
        ensure!(
            number(call, "self_ns")? + inner == number(call, "duration_ns")?,
            outcome.fault(format_args!("{inner} ns of others in {call}"), [])
        );
    }
    Ok(calls)
}

pub(super) fn number(call: &Value, field: &str) -> Result<u64> {
    call[field].as_u64().with_context(|| format!("no {field} in {call}"))
}

/// Ends the tool, which must have lost nothing.
pub(super) fn stop(tool: Tool) -> Result<Outcome> {
    let outcome = tool.stop()?;
    ensure!(outcome.lost()? == 0, outcome.fault("calls were lost", []));
    Ok(outcome)
}

/// The program counts its own system calls; two threads make them at the same time, which is as many as Linux 5.10
/// has room for the returns of, of one function, on two CPUs. Another process makes as many before.
fn sockets(backend: Backend) -> Result<()> {
    const THREADS: u64 = 2;
    const ROUNDS: u64 = 40;
    let before = Kernel::now()?;
    let _path = Path::loopback(Version::V4)?;
    let (mut peer, mut other) = (Peer::spawn(CLIENT)?, Peer::spawn(SERVER)?);
    let pid = peer.pid().to_string();
    let tool = if detaches_slowly() {
        println!("only some functions of --preset socket: this kernel detaches each for more than a second");
        start(backend, &[&["--pid", &pid][..], &ROUND].concat())?
    } else {
        start(backend, &["--pid", &pid, "--preset", "socket"])?
    };
    for one in [&mut other, &mut peer] {
        one.ask(&format!("socket-calls {THREADS} {ROUNDS}"))?;
    }
    let outcome = stop(tool)?;
    let calls = calls(&outcome)?;
    let stranger = calls.iter().find(|call| call["pid"] != peer.pid() || call["context"] != "task");
    ensure!(stranger.is_none(), outcome.fault(format_args!("not requested: {stranger:?}"), []));
    for function in ROUND {
        let mut by_thread: BTreeMap<u64, u64> = BTreeMap::new();
        for call in calls.iter().filter(|call| call["function"] == function) {
            *by_thread.entry(number(call, "tid")?).or_default() += 1;
        }
        let right = by_thread.len() as u64 == THREADS && by_thread.values().all(|count| *count == ROUNDS);
        ensure!(right, outcome.fault(format_args!("{function} by thread: {by_thread:?}"), []));
        // The figures at the end have the same.
        let footer = outcome.footer()?;
        let row = footer.function(function);
        ensure!(
            row.is_some_and(|row| row["count"] == THREADS * ROUNDS),
            outcome.fault(format_args!("{function}: {row:?} at the end"), [])
        );
    }
    before.expect_restored()
}

/// A datagram that comes late: each call around the wait took as long, the innermost by itself, and nothing else is shown.
fn wait(backend: Backend) -> Result<()> {
    const WAIT_NS: u64 = 250_000_000;
    // Innermost last.
    const FUNCTIONS: [&str; 3] = [system_call!("recvfrom"), "__sys_recvfrom", "udp_recvmsg"];
    let _path = Path::loopback(Version::V4)?;
    let mut peer = Peer::spawn(CLIENT)?;
    let pid = peer.pid().to_string();
    let tool = start(backend, &[&["--pid", &pid, "--slower", "150ms"][..], &FUNCTIONS].concat())?;
    peer.ask("socket-calls 1 20")?;
    peer.ask("late-datagram 250")?;
    let outcome = stop(tool)?;
    let calls = calls(&outcome)?;
    let found: Vec<_> = calls.iter().filter_map(|call| call["function"].as_str()).collect();
    ensure!(found == FUNCTIONS, outcome.fault(format_args!("not the one call that waited: {found:?}"), []));
    for (depth, call) in (0..).zip(&calls) {
        let (time, own) = (number(call, "duration_ns")?, number(call, "self_ns")?);
        ensure!(number(call, "depth")? == depth, outcome.fault(format_args!("{call}"), []));
        // The other thread's sleep begins a little before the wait does.
        ensure!(time > WAIT_NS * 9 / 10, outcome.fault(format_args!("too short: {call}"), []));
        let is_innermost = depth + 1 == FUNCTIONS.len() as u64;
        ensure!(
            (own > WAIT_NS / 2) == is_innermost,
            outcome.fault(format_args!("the wait is elsewhere: {call}"), [])
        );
    }
    let counted = (outcome.figure("shown")?, outcome.figure("filtered")?);
    ensure!(counted == (1, 20), outcome.fault(format_args!("{counted:?} shown and faster"), []));
    Ok(())
}

/// What a softirq calls while a task sends is not within the task's calls.
fn interrupts(backend: Backend) -> Result<()> {
    const ROUNDS: usize = 30;
    let _path = Path::private_loopback(Version::V4)?;
    let mut peer = Peer::spawn(CLIENT)?;
    let tool = start(backend, &["udp_sendmsg", "ip_send_skb", "udp_rcv", "__udp_enqueue_schedule_skb"])?;
    peer.ask(&format!("socket-calls 1 {ROUNDS}"))?;
    let outcome = stop(tool)?;
    let calls = calls(&outcome)?;
    let expected = [
        ("udp_sendmsg", "task", Value::Null),
        ("ip_send_skb", "task", "udp_sendmsg".into()),
        ("udp_rcv", "softirq", Value::Null),
        ("__udp_enqueue_schedule_skb", "softirq", "udp_rcv".into()),
    ];
    for (function, context, caller) in expected {
        let found: Vec<_> = calls.iter().filter(|call| call["function"] == function).collect();
        ensure!(found.len() == ROUNDS, outcome.fault(format_args!("{} of {function}", found.len()), []));
        let pid = if context == "task" { peer.pid().into() } else { Value::Null };
        let wrong = found
            .iter()
            .find(|call| call["context"] != context || call["caller"] != caller || call["pid"] != pid);
        ensure!(wrong.is_none(), outcome.fault(format_args!("not {context} in {caller}: {wrong:?}"), []));
    }
    Ok(())
}

/// ftrace sees the same entries in the same order, each between the same others.
fn witness(backend: Backend) -> Result<()> {
    const FUNCTIONS: [&str; 4] = ["__sys_sendto", "udp_sendmsg", "__sys_recvfrom", "udp_recvmsg"];
    let _path = Path::loopback(Version::V4)?;
    let mut peer = Peer::spawn(CLIENT)?;
    // Else it may be moved between a function's beginning and what is attached there.
    peer.ask("pin 0")?;
    let pid = peer.pid().to_string();
    let tool = start(backend, &[&["--pid", &pid][..], &FUNCTIONS].concat())?;
    let mut tracing = Tracing::of_events(&[])?;
    tracing.set_functions(&FUNCTIONS.each_ref().map(std::slice::from_ref))?;
    peer.ask("socket-calls 1 50")?;
    let entries = tracing.stop()?;
    let outcome = stop(tool)?;
    let calls = calls(&outcome)?;
    let task = u32::try_from(number(calls.first().context("no calls")?, "tid")?)?;
    let seen: Vec<_> = entries.iter().filter(|entry| entry.task == task).collect();
    ensure!(seen.len() == 200, outcome.fault(format_args!("ftrace has {} entries", seen.len()), []));
    ensure!(calls.len() == seen.len(), outcome.fault(format_args!("{} calls", calls.len()), []));
    for (entry, call) in seen.iter().zip(&calls) {
        ensure!(
            call["function"] == entry.name && call["cpu"] == entry.cpu as u64,
            outcome.fault(format_args!("{entry:?} is not {call}"), [])
        );
    }
    let ours =
        calls.iter().map(|call| Ok(number(call, "mono_ns")?.cast_signed())).collect::<Result<Vec<_>>>()?;
    let theirs: Vec<_> = seen.iter().map(|entry| entry.at.cast_signed()).collect();
    ensure!(is_interleaved(&ours, &theirs), outcome.fault(format_args!("{ours:?} and {theirs:?}"), []));
    Ok(())
}

/// Both styles, which end by themselves after N calls.
fn text(backend: Backend) -> Result<()> {
    let _path = Path::loopback(Version::V4)?;
    let mut peer = Peer::spawn(CLIENT)?;
    let pid = peer.pid().to_string();
    let name = peer.comm();
    let graph = format!(r"^   \d\) +{name}-\d+ \|[ +!#*@$]");
    let indent = format!(r"^ *\d+ {name}\(\d+\): {{1,2}}(->|<-) __");
    for (style, form, lines) in [("graph", graph, 1 + 3 + 3), ("indent", indent, 4 + 4)] {
        let arguments = ["--pid", &pid, "-n", "2", "--style", style, system_call!("socket"), "__sys_socket"];
        let tool = Launch::new(backend).view("calls").text().args(&arguments).start()?;
        peer.ask("socket-calls 1 5")?;
        let outcome = tool.wait()?;
        outcome.expect_code(0)?;
        let text = outcome.text()?;
        let found: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        ensure!(
            text.lines().count() == lines,
            outcome.fault(format_args!("other lines than {lines}:\n{text}"), [])
        );
        let form = Regex::new(&form)?;
        ensure!(
            found.iter().all(|line| form.is_match(line)),
            outcome.fault(format_args!("in {style}:\n{text}"), [])
        );
    }
    Ok(())
}

/// A pipe that is closed ends it well, though nothing is to be written.
fn closed(backend: Backend) -> Result<()> {
    let before = Kernel::now()?;
    let _path = Path::loopback(Version::V4)?;
    let mut peer = Peer::spawn(CLIENT)?;
    let arguments = ["--pid", &peer.pid().to_string(), system_call!("socket")];
    let mut tool = Launch::new(backend).view("calls").args(&arguments).sink(Sink::Pipe).start()?;
    Kernel::now()?.expect_more_than(&before)?;
    let mut stdout = tool.stdout()?;
    peer.ask("socket-calls 1 1")?;
    ensure!(stdout.read(&mut [0; 1])? == 1, "nothing was shown");
    drop(stdout);
    let outcome = tool.wait()?;
    outcome.expect_code(0)?;
    // And so does the end of the process, and a signal while it waits.
    let tool = start(backend, &["--pid", &peer.pid().to_string(), system_call!("socket")])?;
    peer.end()?;
    tool.wait()?.expect_code(0)?;
    let tool = start(backend, &[system_call!("socket")])?;
    std::thread::sleep(Duration::from_millis(50));
    tool.signal(Signal::SIGTERM)?;
    tool.wait()?.expect_code(0)?;
    before.expect_restored()
}

fn refused(_: Backend) -> Result<()> {
    let asked = [
        (&["calls", "no_such_function*"][..], "this kernel has no function no_such_function*"),
        (&["calls", "*"], "can be traced at a time"),
        (&["calls", "a[b"], "is not a pattern"),
        (&["calls", "--backend", "fentry"], "leave out --backend fentry"),
        (&["calls", "--pid", "999999"], "no process with PID 999999"),
    ];
    for (arguments, words) in asked {
        let refusal = run(None, arguments)?;
        ensure!(
            refusal.code == Some(2) && refusal.stderr.lines().count() == 1 && refusal.stderr.contains(words),
            "{arguments:?}: {:?} {}",
            refusal.code,
            refusal.stderr
        );
        ensure!(refusal.stdout.is_empty(), "{}", refusal.stdout);
    }
    Ok(())
}
