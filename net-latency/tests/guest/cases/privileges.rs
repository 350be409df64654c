//! What a run can still do once it traces: nothing that it doesn't need.

use std::{
    fs,
    os::unix::fs::{chown, symlink},
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;

use super::{Case, kernel_version};
use crate::{
    net::{Path, Version},
    peers::Pair,
    process::{PATIENCE, until},
    terminal::Terminal,
    tool::{Backend, Launch, Scratch, Sink},
};

pub(crate) const CASES: &[Case] = &[
    ("privileges_are_given_up", given_up),
    ("privileges_for_the_file_of_another_user", for_a_file_of_another),
    ("privileges_are_the_commands_own", of_a_command),
];

// Of linux/capability.h.
const CAP_DAC_OVERRIDE: u64 = 1 << 1;
const CAP_KILL: u64 = 1 << 5;
const CAP_BPF: u64 = 1 << 39;

/// What every run has left where the kernel wants a capability for reading maps.
fn for_maps() -> Result<u64> {
    // Since Linux 5.19 a process can read the maps that it has open. Where unprivileged bpf(2) is allowed it always could.
    let is_disabled = fs::read_to_string("/proc/sys/kernel/unprivileged_bpf_disabled")?.trim() != "0";
    Ok(if is_disabled && kernel_version()? < (5, 19) { CAP_BPF } else { 0 })
}

fn field(status: &str, field: &str) -> Result<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    Ok(u64::from_str_radix(value.with_context(|| format!("no {field}"))?.trim(), 16)?)
}

/// `SECCOMP_MODE_FILTER` of linux/seccomp.h.
const FILTERED: u64 = 2;

fn expect_privileges(pid: u32, what: &str, expected: u64) -> Result<()> {
    let capabilities = [("CapEff", expected), ("CapPrm", expected), ("CapInh", 0), ("CapAmb", 0)];
    for (field, expected) in capabilities.into_iter().chain([("NoNewPrivs", 1), ("Seccomp", FILTERED)]) {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let found = self::field(&status, field)?;
        ensure!(found == expected, "{what}: {field} is {found:x}, not {expected:x}");
    }
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let Ok(status) = fs::read_to_string(thread?.path().join("status")) else { continue };
        ensure!(field(&status, "Seccomp")? == FILTERED, "{what}: a thread may make any call:\n{status}");
    }
    // Threads have capabilities of their own. One that was begun before may still read the kernel's symbols.
    until(PATIENCE, || {
        for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
            let Ok(status) = fs::read_to_string(thread?.path().join("status")) else { continue };
            if field(&status, "CapEff")? & !expected != 0 {
                return Ok(false);
            }
        }
        Ok(true)
    })
    .with_context(|| format!("{what}: a thread keeps its capabilities"))
}

fn connect() -> Result<Pair> {
    Pair::connect(&Path::loopback(Version::V4)?)
}

/// Every view, and then it goes on to do all that it does: counters, names, SIGHUP, detaching.
fn given_up(backend: Backend) -> Result<()> {
    let maps = for_maps()?;
    let folder = Scratch::new("lines");
    fs::create_dir(folder.path())?;
    let [file, moved, link] = ["file", "moved", "link"].map(|name| folder.path().join(name));
    symlink(&file, &link)?;
    let launch = Launch::new(backend).args(&["--interval", "200ms", "-v", "--debug"]);
    let mut tool = launch.sink(Sink::At(link.clone())).start()?;
    expect_privileges(tool.pid(), "stream", maps)?;
    let has_landlock = fs::read_to_string("/sys/kernel/security/lsm")?.contains("landlock");
    let told = [
        if maps == 0 { "capabilities: none kept" } else { "capabilities: CAP_BPF kept" },
        "system calls (seccomp): restricted",
        if has_landlock { "files (Landlock): restricted" } else { "files (Landlock): not restricted" },
    ];
    let said = tool.said().join("\n");
    ensure!(told.iter().all(|words| said.contains(words)), "{told:?} is not all of:\n{said}");
    let mut pair = connect()?;
    pair.converse(20, 200)?;
    tool.expect_written(40)?;
    fs::rename(&file, &moved)?;
    tool.signal(Signal::SIGHUP)?;
    until(PATIENCE, || Ok(file.exists())).context("no new file after SIGHUP")?;
    pair.converse(20, 200)?;
    tool.expect_written(40)?;
    // It writes where it did at its start, and nowhere else.
    if has_landlock {
        let elsewhere = Scratch::new("elsewhere");
        let other = elsewhere.path();
        fs::remove_file(&link)?;
        symlink(other, &link)?;
        tool.signal(Signal::SIGHUP)?;
        tool.expect_more_reports(3)?;
        let is_told = tool.said().iter().any(|line| line.contains("still writing to the old one"));
        ensure!(is_told && !other.exists(), "it writes in another folder:\n{}", tool.said().join("\n"));
        fs::remove_file(&link)?;
        symlink(&file, &link)?;
    }
    let outcome = tool.stop()?;
    let lines = outcome.lines()?;
    let own = lines.iter().filter(|line| pair.owns(line) && !line.is("retrans")).count();
    fs::remove_dir_all(folder.path())?;
    ensure!(own >= 40, "{own} lines in the new file");
    // As before: what the kernel counts is counted.
    outcome.ledger()?;

    let views = [
        ("hist", &["--by", "interface"][..]),
        ("diagnose", &["--duration", "10m"]),
        ("journey", &["--count", "9"]),
        ("export", &["--listen", "127.0.0.1:0"]),
        ("calls", &["tcp_sendmsg"]),
        ("connections", &["--interval", "100ms"]),
        ("record", &["-o", "/tmp"]),
    ];
    // The last hooks by kprobe only.
    let views = views.into_iter().filter(|(view, _)| *view != "calls" || backend == Backend::Kprobe);
    for (view, arguments) in views {
        let launch = Launch::new(backend).view(view).args(arguments);
        let tool = launch.sink(Sink::Redirected(Scratch::new(view))).start()?;
        expect_privileges(tool.pid(), view, maps)?;
        connect()?.converse(5, 200)?;
        tool.stop()?;
    }
    let arguments = ["top", "--backend", &backend.to_string(), "--delay", "200ms"];
    let mut top = Terminal::start(&arguments, "xterm-256color", (24, 80))?;
    let mut pair = connect()?;
    top.expect("the client", |screen| screen.contains("nl-client"), || pair.converse(5, 200))?;
    expect_privileges(top.pid(), "top", maps)?;
    top.press("q")?;
    let left = top.wait()?;
    ensure!(left.status.code() == Some(0), "exit: {}\n{}", left.status, left.text);
    Ok(())
}

/// Root writes where others can't, and goes on to after SIGHUP.
fn for_a_file_of_another(backend: Backend) -> Result<()> {
    let folder = Scratch::new("folder");
    fs::create_dir(folder.path())?;
    chown(folder.path(), Some(65534), None)?;
    let file = folder.path().join("lines");
    let tool = Launch::new(backend).sink(Sink::At(file.clone())).start()?;
    expect_privileges(tool.pid(), "a folder of another user", for_maps()? | CAP_DAC_OVERRIDE)?;
    fs::remove_file(&file)?;
    tool.signal(Signal::SIGHUP)?;
    until(PATIENCE, || Ok(file.exists())).context("no new file after SIGHUP")?;
    tool.stop()?;
    fs::remove_dir_all(folder.path())?;
    Ok(())
}

/// A command runs as it would without us, and gets its signals.
fn of_a_command(backend: Backend) -> Result<()> {
    let own = fs::read_to_string("/proc/self/status")?;
    let of = |status: &str| -> Vec<String> {
        let is_meant =
            |line: &&str| ["Cap", "NoNewPrivs", "Seccomp"].iter().any(|field| line.starts_with(field));
        status.lines().filter(is_meant).map(str::to_owned).collect()
    };
    let seen = Scratch::new("status");
    let words =
        ["sh", "-c", "cat /proc/self/status > $0; exec sleep 600", seen.path().to_str().context("UTF-8")?];
    let tool = Launch::new(backend).command(&words).start()?;
    expect_privileges(tool.pid(), "with a command", for_maps()? | CAP_KILL)?;
    until(PATIENCE, || Ok(fs::read_to_string(seen.path()).is_ok_and(|text| text.contains("NoNewPrivs"))))
        .context("the command does not run")?;
    tool.signal(Signal::SIGTERM)?;
    let outcome = tool.wait()?;
    outcome.expect_code(128 + Signal::SIGTERM as i32)?;
    let command = fs::read_to_string(seen.path())?;
    ensure!(of(&command) == of(&own), "the command has {:?}, not {:?}", of(&command), of(&own));
    Ok(())
}
