//! Calls of functions as others see them: strace counts the same system calls, and the kernel's `function_graph` tracer has
//! the same calls in the same order within each other, as long.

use std::{collections::BTreeMap, fs, path::Path as File, process::Command};

use anyhow::{Context as _, Result, ensure};

use super::{
    Case,
    calls::{calls, detaches_slowly, number, start, stop},
};
use crate::{
    arch::system_call,
    ftrace::{self, CLOCK_NS, Tracing},
    net::{Path, Version},
    peers::{CLIENT, Pair, Peer},
    process::{PATIENCE, until},
    tool::{Backend, Outcome, Scratch},
};

pub(crate) const CASES: &[Case] = &[
    ("calls_of_sockets_are_those_of_strace", strace),
    ("calls_are_those_of_function_graph", function_graph),
];

/// The system calls that a program makes with sockets, and the functions that each of them calls once. Of the functions a
/// kernel has some.
const SYSTEM_CALLS: [(&str, &[&str]); 23] = [
    ("socket", &[system_call!("socket"), "__sys_socket"]),
    ("socketpair", &[system_call!("socketpair"), "__sys_socketpair"]),
    ("bind", &[system_call!("bind"), "__sys_bind"]),
    ("listen", &[system_call!("listen"), "__sys_listen"]),
    ("connect", &[system_call!("connect"), "__sys_connect"]),
    ("accept", &[system_call!("accept"), "__sys_accept4"]),
    ("accept4", &[system_call!("accept4"), "__sys_accept4"]),
    ("getsockname", &[system_call!("getsockname"), "__sys_getsockname"]),
    ("getpeername", &[system_call!("getpeername"), "__sys_getpeername"]),
    ("getsockopt", &[system_call!("getsockopt"), "__sys_getsockopt"]),
    ("setsockopt", &[system_call!("setsockopt"), "__sys_setsockopt"]),
    ("sendto", &[system_call!("sendto"), "__sys_sendto"]),
    ("recvfrom", &[system_call!("recvfrom"), "__sys_recvfrom"]),
    ("sendmsg", &[system_call!("sendmsg"), "__sys_sendmsg"]),
    ("recvmsg", &[system_call!("recvmsg"), "__sys_recvmsg"]),
    ("sendmmsg", &[system_call!("sendmmsg"), "__sys_sendmmsg"]),
    ("recvmmsg", &[system_call!("recvmmsg"), "__sys_recvmmsg"]),
    ("shutdown", &[system_call!("shutdown"), "__sys_shutdown"]),
    ("read", &["sock_read_iter"]),
    ("readv", &["sock_read_iter"]),
    ("write", &["sock_write_iter"]),
    ("writev", &["sock_write_iter"]),
    ("close", &["sock_close"]),
];
/// Those of files, which are of interest where the file is a socket.
const OF_FILES: [&str; 5] = ["read", "readv", "write", "writev", "close"];
/// Enough functions where each takes a second to detach.
const FEW: [&str; 10] = [
    system_call!("socket"),
    system_call!("bind"),
    system_call!("accept"),
    system_call!("accept4"),
    system_call!("getsockopt"),
    system_call!("sendto"),
    system_call!("recvmsg"),
    "sock_read_iter",
    "sock_write_iter",
    "sock_close",
];

/// A program that strace and the tool follow at the same time: of each system call both have the same number, of those that
/// fail too.
fn strace(backend: Backend) -> Result<()> {
    let _path = Path::loopback(Version::V4)?;
    let file = Scratch::new("strace");
    let mut program = Command::new("strace");
    // As a grandchild: the process that is started is the one that is followed. With all threads, and what descriptors are.
    program.args(["-D", "-f", "-y", "-e", "trace=%network,read,readv,write,writev,close", "-o"]);
    program.arg(file.path());
    let mut peer = Peer::spawn_under(CLIENT, program)?;
    let pid = peer.pid().to_string();
    let all = &["--pid", &pid, "--preset", "socket"][..];
    let some = [&["--pid", &pid][..], &FEW].concat();
    let tool = start(backend, if detaches_slowly() { &some } else { all })?;
    peer.ask("socket-mix 2 5")?;
    let outcome = stop(tool)?;
    peer.end()?;
    let theirs = system_calls(file.path())?;
    let mut ours: BTreeMap<String, u64> = BTreeMap::new();
    for call in calls(&outcome)? {
        let function = call["function"].as_str().context("no function")?;
        *ours.entry(function.to_owned()).or_default() += 1;
    }

    let known = ftrace::known_functions()?;
    let is_known = |function: &str| known.iter().any(|name| name == function);
    let mut expected: BTreeMap<&str, u64> = BTreeMap::new();
    for (name, count) in &theirs {
        let found = SYSTEM_CALLS.iter().find(|(known, _)| known == name);
        let (_, functions) = found.with_context(|| format!("strace has {count} calls of {name}"))?;
        // Linux 7.2 has one function for both names.
        let is_shared = name == "getpeername" && !is_known("__sys_getpeername");
        let functions = functions.iter().chain(is_shared.then_some(&"__sys_getsockname"));
        for function in functions.filter(|function| is_known(function)) {
            *expected.entry(function).or_default() += count;
        }
    }
    if detaches_slowly() {
        expected.retain(|function, _| FEW.contains(function));
    }
    println!("strace: {theirs:?}");
    ensure!(expected.len() >= FEW.len(), outcome.fault(format_args!("only {expected:?}"), []));
    for (function, count) in &expected {
        ensure!(
            ours.get(*function) == Some(count),
            outcome
                .fault(format_args!("{function} {:?} times, not {count}: {ours:?}", ours.get(*function)), [])
        );
    }
    let other =
        ours.keys().find(|name| name.starts_with(system_call!("")) && !expected.contains_key(name.as_str()));
    ensure!(other.is_none(), outcome.fault(format_args!("strace has no {other:?}: {theirs:?}"), []));
    Ok(())
}

/// What strace wrote, once it has ended: the system calls with sockets, by name.
fn system_calls(file: &File) -> Result<BTreeMap<String, u64>> {
    let mut text = String::new();
    until(PATIENCE, || {
        text = fs::read_to_string(file)?;
        Ok(text.lines().last().is_some_and(|line| line.contains("+++ killed by SIGKILL +++")))
    })
    .with_context(|| format!("strace doesn't end:\n{text}"))?;
    let mut counts = BTreeMap::new();
    for line in text.lines() {
        // 123   read(3<socket:[4567]>, "abc"..., 8) = 3
        let (_, call) = line.split_once(' ').with_context(|| format!("no thread: {line}"))?;
        let Some((name, rest)) = call.trim_start().split_once('(') else { continue };
        if name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
            && (!OF_FILES.contains(&name) || is_socket(rest))
        {
            *counts.entry(name.to_owned()).or_default() += 1;
        }
    }
    Ok(counts)
}

/// Whether the first argument is a socket's descriptor.
fn is_socket(arguments: &str) -> bool {
    arguments.trim_start_matches(|digit: char| digit.is_ascii_digit()).starts_with("<socket:")
}

/// Calls within calls, of a task only, the outermost first.
const FUNCTIONS: [&str; 8] = [
    "__sys_recvfrom",
    "sock_recvmsg",
    "inet_recvmsg",
    "tcp_recvmsg",
    "sk_wait_data",
    "__sys_sendto",
    "inet_sendmsg",
    "tcp_sendmsg",
];
const ROUNDS: u32 = 40;
const LEN: u32 = 200;
/// What a call of the tracer may take itself, emulated, in the middle of all calls.
const TYPICAL_NS: i64 = 30_000;
/// What it may take in 90 % of all calls: an interrupt may come between, or the emulated CPU be taken away.
const RARE_NS: i64 = 300_000;

/// The tracer's calls of a task are ours: the same functions in the same order, as deep within each other. Each of its intervals lies
/// around ours or within it, according to which tracer is called first; what one of them has more is what the other costs.
fn function_graph(backend: Backend) -> Result<()> {
    let path = Path::loopback(Version::V4)?;
    let mut pair = Pair::connect(&path)?;
    let pid = pair.server.pid().to_string();
    let tool = start(backend, &[&["--pid", &pid][..], &FUNCTIONS].concat())?;
    let tracing = Tracing::of_graph(&FUNCTIONS)?;
    pair.converse(ROUNDS, LEN)?;
    // Long enough for the server to be in its call by then, on a busy machine too.
    for ms in [60, 80, 100] {
        pair.server.tell(&format!("read {LEN} 4096 0"))?;
        pair.client.ask(&format!("write-after {ms} {LEN}"))?;
        pair.server.answer()?;
    }
    let entries = tracing.stop()?;
    let outcome = stop(tool)?;
    let ours = calls(&outcome)?;
    let theirs: Vec<_> =
        ftrace::calls(&entries).into_iter().filter(|call| call.task == pair.server.pid()).collect();
    ensure!(
        theirs.len() >= ROUNDS as usize * 7 && ours.len() == theirs.len(),
        outcome.fault(format_args!("{} calls, ftrace has {}", ours.len(), theirs.len()), [])
    );
    let cost = cost(&outcome)?;
    let (mut around, mut more, mut waits) = (0, Vec::new(), 0);
    for (call, their) in ours.iter().zip(&theirs) {
        ensure!(
            call["function"] == their.name && number(call, "depth")? == their.depth as u64,
            outcome.fault(format_args!("ftrace has {their:?} for {call}"), [])
        );
        let (begin, duration) =
            (number(call, "mono_ns")?.cast_signed(), number(call, "duration_ns")?.cast_signed());
        let left = their.left.with_context(|| format!("no end of {their:?}"))?.cast_signed();
        let (before, after) = (begin - their.entered.cast_signed(), left - (begin + duration));
        let is_around = before >= -CLOCK_NS && after >= -CLOCK_NS;
        let is_within = before <= CLOCK_NS && after <= CLOCK_NS;
        ensure!(is_around || is_within, outcome.fault(format_args!("{their:?} and {call} overlap"), []));
        around += usize::from(is_around);
        more.push((before + after).abs());
        waits += usize::from(their.name == "sk_wait_data" && duration > 15_000_000);
    }
    ensure!(
        around == 0 || around == ours.len(),
        outcome.fault(format_args!("ftrace's are around {around} of {}", ours.len()), [])
    );
    more.sort_unstable();
    let (middle, most) = (more[more.len() / 2], more[more.len() * 9 / 10]);
    let place = if around > 0 { "around" } else { "within" };
    println!(
        "{} calls, ftrace's {place} ours, apart by {middle} ns in the middle, {most} ns in 90 %, {:?} ns at most; a call costs {cost} ns",
        ours.len(),
        more.last()
    );
    ensure!(waits >= 3, outcome.fault(format_args!("{waits} waits of three"), []));
    ensure!(
        middle <= cost + TYPICAL_NS && most <= cost + RARE_NS,
        outcome.fault(format_args!("{middle} ns apart, {most} ns in 90 %, for a cost of {cost} ns"), [])
    );
    Ok(())
}

/// What a call takes more while it is traced, in ns, as the tool said.
fn cost(outcome: &Outcome) -> Result<i64> {
    let said = outcome.stderr.iter().find_map(|line| line.split_once("tracing adds "));
    let (_, rest) = said.context("the cost is not told")?;
    let number = rest.split(' ').next().unwrap_or_default();
    let us: f64 = number.parse().with_context(|| format!("{number:?} us"))?;
    Ok((us * 1000.0) as i64)
}
