//! A command is traced from its first packet to its end, with all that it starts.

use std::{
    collections::HashSet,
    fs,
    io::Read as _,
    net::{Ipv4Addr, TcpListener},
    os::unix::fs::PermissionsExt as _,
    thread,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use nix::sys::signal::Signal;

use super::{Case, prerequisites::expect_sentence};
use crate::{
    leftovers::Kernel,
    lines::{Dir, Line},
    net::{Path, Version},
    peers::Pair,
    process::{PATIENCE, until},
    tool::{Backend, Launch, Scratch, run},
};

pub(crate) const CASES: &[Case] = &[
    ("command_with_children", with_children),
    ("command_gets_signals", gets_signals),
    ("command_that_becomes_another_user", that_becomes_another_user),
    ("command_that_cannot_run", cannot_run),
];

/// A shell starts processes that start processes that send; others send at the same time.
fn with_children(backend: Backend) -> Result<()> {
    const CONNECTIONS: usize = 3;
    let before = Kernel::now()?;
    let mut other = Pair::connect(&Path::loopback(Version::V4)?)?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    let server = thread::spawn(move || -> Result<String> {
        let mut all = String::new();
        for _ in 0..CONNECTIONS {
            listener.accept()?.0.read_to_string(&mut all)?;
        }
        Ok(all)
    });
    let script = format!("for i in 1 2 3; do (echo hello; sleep 0.2) | nc 127.0.0.1 {port}; done; exit 7");
    let tool = Launch::new(backend).args(&["--control"]).command(&["sh", "-c", &script]).start()?;
    other.converse(10, 200)?;
    let outcome = tool.wait()?;
    outcome.expect_code(7)?;
    before.expect_restored()?;
    let told = server.join().map_err(|_| anyhow!("the server panicked"))??;
    ensure!(told == "hello\n".repeat(CONNECTIONS), "the server got {told:?}");

    let lines = outcome.lines()?;
    let foreign = lines.iter().filter(|line| line.comm.as_deref() != Some("nc"));
    ensure!(foreign.clone().next().is_none(), outcome.fault("not the command's", foreign));
    let out: Vec<&Line> = lines.iter().filter(|line| line.dir == Dir::Out && line.dport == port).collect();
    let data: Vec<_> = out.iter().filter(|line| !line.is("control") && !line.is("retrans")).collect();
    ensure!(
        data.len() == CONNECTIONS && data.iter().all(|line| line.len == 6),
        outcome.fault("not one segment of 6 bytes for each connection", &lines)
    );
    let pids: HashSet<_> = data.iter().map(|line| line.pid).collect();
    ensure!(pids.len() == CONNECTIONS && !pids.contains(&None), outcome.fault("not a process each", &lines));
    for segment in data {
        // The handshake's first segment has the number before the first byte's; a SYN counts as one.
        let first = out.iter().filter(|line| line.sport == segment.sport).min_by_key(|line| line.ts);
        let first = first.with_context(|| outcome.fault("nothing", []))?;
        ensure!(
            first.is("control") && first.pid == segment.pid && first.seq == segment.seq,
            outcome.fault("not from its first packet on", &lines)
        );
        let control = out.iter().filter(|line| line.sport == segment.sport && line.is("control")).count();
        // SYN, ACK, FIN, and the ACK of the other's FIN unless it is delayed until the end.
        ensure!(control >= 3, outcome.fault("control segments are missing", &lines));
    }
    Ok(())
}

/// SIGTERM is for the command, whose end by another signal is then ours.
fn gets_signals(backend: Backend) -> Result<()> {
    let ready = Scratch::new("ready");
    let script = format!(
        "trap 'kill -9 $$' TERM; trap : INT HUP QUIT; touch {}; while :; do sleep 0.1; done",
        ready.path().display()
    );
    let mut tool = Launch::new(backend).command(&["sh", "-c", &script]).start()?;
    until(PATIENCE, || Ok(ready.path().exists()))?;
    for signal in [Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
        tool.signal(signal)?;
    }
    thread::sleep(std::time::Duration::from_millis(300));
    ensure!(tool.is_running()?, "it ended although its command goes on");
    tool.signal(Signal::SIGTERM)?;
    let outcome = tool.wait()?;
    outcome.expect_code(128 + 9)?;
    outcome.lost().context("the footer")?;
    Ok(())
}

/// What becomes another user, as `runuser` and `su` do, is traced from its first packet, without privilege, and gets
/// the signals that root gets.
fn that_becomes_another_user(backend: Backend) -> Result<()> {
    let before = Kernel::now()?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    let server = thread::spawn(move || -> Result<String> {
        let mut all = String::new();
        listener.accept()?.0.read_to_string(&mut all)?;
        Ok(all)
    });
    let seen = Scratch::new("seen");
    fs::write(seen.path(), "")?;
    fs::set_permissions(seen.path(), fs::Permissions::from_mode(0o666))?;
    let path = seen.path().to_str().context("UTF-8")?;
    let script = format!(
        "trap 'exit 5' TERM; cat /proc/self/status > {path}; (echo hello; sleep 0.2) | nc 127.0.0.1 {port}; \
         echo done >> {path}; while :; do sleep 0.1; done"
    );
    let tool = Launch::new(backend).command(&["su", "nobody", "-c", &script]).start()?;
    until(PATIENCE, || Ok(fs::read_to_string(path).is_ok_and(|text| text.ends_with("done\n"))))
        .context("the command does not get to its end")?;
    let text = fs::read_to_string(path)?;
    let field = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.map(str::trim).with_context(|| format!("no {name} in\n{text}"))
    };
    ensure!(field("Uid")? == "65534\t65534\t65534\t65534", "Uid is {:?}", field("Uid")?);
    for name in ["CapInh", "CapPrm", "CapEff", "CapAmb", "NoNewPrivs", "Seccomp"] {
        ensure!(field(name)?.bytes().all(|byte| byte == b'0'), "{name} is {}", field(name)?);
    }

    tool.signal(Signal::SIGTERM)?;
    let outcome = tool.wait()?;
    outcome.expect_code(5)?;
    before.expect_restored()?;
    let told = server.join().map_err(|_| anyhow!("the server panicked"))??;
    ensure!(told == "hello\n", "the server got {told:?}");
    let lines = outcome.lines()?;
    let sent = lines.iter().filter(|line| line.dir == Dir::Out && line.dport == port && !line.is("retrans"));
    ensure!(
        lines.iter().all(|line| line.comm.as_deref() == Some("nc")),
        outcome.fault("not the command's", &lines)
    );
    outcome.expect_all("segments of the command", sent.count().try_into()?, 1, &lines)
}

fn cannot_run(backend: Backend) -> Result<()> {
    let before = Kernel::now()?;
    let text = Scratch::new("text");
    fs::write(text.path(), "no program")?;
    fs::set_permissions(text.path(), fs::Permissions::from_mode(0o644))?;
    let text = text.path().to_str().context("UTF-8")?;
    for (name, code) in [("nl-no-such-command", 127), ("/nl-no-such-file", 127), (text, 126)] {
        let refusal = run(None, &["--backend", &backend.to_string(), "--", name, "argument"])?;
        let said = &refusal.stderr;
        ensure!(
            refusal.code == Some(code),
            "{name}: exit code {:?}, not {code}; it said:\n{said}",
            refusal.code
        );
        expect_sentence(said)?;
        ensure!(said.contains(name), "{name} is not named: {said}");
    }
    before.expect_restored()
}
