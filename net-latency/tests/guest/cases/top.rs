//! The live table, on a terminal and with real traffic.

use std::{
    io::ErrorKind,
    net::{TcpListener, TcpStream},
};

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;

use super::Case;
use crate::{
    leftovers::Kernel,
    net::{Path, Version},
    peers::Pair,
    terminal::{Left, Terminal},
    tool::Backend,
};

pub(crate) const CASES: &[Case] = &[
    ("top_shows_processes_connections_and_packets", by_keys),
    ("top_shows_connections_that_failed", failed),
    ("top_ends_by_sigterm_and_bears_any_size", by_sigterm),
    ("top_ends_when_its_terminal_goes", by_hangup),
    ("top_refuses_a_dumb_terminal", dumb),
];

const USUAL: (u16, u16) = (24, 80);

fn start(backend: Backend, size: (u16, u16)) -> Result<Terminal> {
    let backend = backend.to_string();
    let arguments = ["top", "--backend", &backend, "--delay", "200ms", "--window", "60s"];
    Terminal::start(&arguments, "xterm-256color", size)
}

fn connect() -> Result<Pair> {
    Pair::connect(&Path::loopback(Version::V4)?)
}

/// Whether a line has all of these words.
fn has_line(screen: &str, words: &[&str]) -> bool {
    screen.lines().any(|line| words.iter().all(|word| line.split_whitespace().any(|other| other == *word)))
}

fn expect_footer(left: &Left) -> Result<()> {
    ensure!(left.status.code() == Some(0), "exit: {}\n{}", left.status, left.text);
    // Its end: the beginning has left the screen.
    ensure!(left.text.contains(" packets seen"), "no footer:\n{}", left.text);
    Ok(())
}

fn by_keys(backend: Backend) -> Result<()> {
    let before = Kernel::now()?;
    let mut pair = connect()?;
    let mut top = start(backend, USUAL)?;
    let (client, server) = (pair.client.pid().to_string(), pair.server.pid().to_string());
    let both =
        |screen: &str| has_line(screen, &[&client, "nl-client"]) && has_line(screen, &[&server, "nl-server"]);
    top.expect("both processes", both, || pair.converse(5, 200))?;
    Kernel::now()?.expect_more_than(&before)?;
    ensure!(
        top.text()?.lines().nth(2).is_some_and(|line| line.starts_with(backend.mechanism())),
        top.text()?
    );

    // A filter.
    let idle = || Ok(());
    top.press("/nothing-has-this-name")?;
    top.expect("no process", |screen| screen.contains("Nothing matches") && !both(screen), idle)?;
    top.press("\x1b")?;
    top.expect("both again", both, idle)?;
    top.press("/NL-SER\r")?;
    let one = |screen: &str| {
        has_line(screen, &[&server, "nl-server"]) && !has_line(screen, &[&client, "nl-client"])
    };
    top.expect("one process", one, idle)?;

    // Down to its connection, and to the packets of that.
    top.press("\r")?;
    let flow = format!("tcp :{} > {}", pair.far.port(), pair.near);
    top.expect("its connection", |screen| screen.contains(&flow), idle)?;
    ensure!(top.text()?.starts_with(&format!("nl-server, PID {server}: 1 ")), top.text()?);
    top.press("\r")?;
    let ends = format!("tcp {} > {}", pair.far, pair.near);
    let packets = |screen: &str| {
        screen.contains(&ends)
            && has_line(screen, &["TIME", "BYTES", "drv-ip", "ip-tcp", "tcp-app", "TOTAL▼"])
            && has_line(screen, &["200", &server])
    };
    top.expect("packets of 200 bytes", packets, idle)?;
    top.press("\t")?;
    let out = |screen: &str| {
        has_line(screen, &["app-tcp", "tcp-ip", "ip-drv"]) && has_line(screen, &["200", &server])
    };
    top.expect("packets that go out", out, idle)?;

    top.press(" ")?;
    top.expect("a sign that it is frozen", |screen| screen.contains("FROZEN"), idle)?;
    top.press("?")?;
    top.expect("help", |screen| screen.contains("Ctrl-C"), idle)?;
    top.press("x\x7f\x1b[A\x1b")?;
    top.expect("the processes", |screen| screen.starts_with("net-latency top: 1 of "), idle)?;
    top.press("q")?;
    expect_footer(&top.wait()?)?;
    before.expect_restored()
}

/// Of a process that has no packet with data.
fn failed(backend: Backend) -> Result<()> {
    let before = Kernel::now()?;
    let mut top = start(backend, USUAL)?;
    top.expect("a table", |screen| screen.contains("processes"), || Ok(()))?;
    // Once bound, never listened on.
    let closed = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let refuse = || {
        let refused = TcpStream::connect(closed);
        ensure!(refused.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused), "{closed} answers");
        Ok(())
    };
    top.expect("a count", |screen| screen.contains(" failed (f)"), refuse)?;
    top.press("f")?;
    let pid = std::process::id().to_string();
    let one = |screen: &str| has_line(screen, &[&pid, &closed.to_string(), "refused"]);
    top.expect("the connection", one, refuse)?;
    top.press("\x1b")?;
    top.expect("the processes", |screen| screen.contains("processes"), || Ok(()))?;
    top.press("q")?;
    expect_footer(&top.wait()?)?;
    before.expect_restored()
}

fn by_sigterm(backend: Backend) -> Result<()> {
    let before = Kernel::now()?;
    let mut pair = connect()?;
    let mut top = start(backend, (3, 10))?;
    top.expect("a word about the size", |screen| screen.contains("terminal"), || Ok(()))?;
    for (rows, columns) in [(200, 300), (1, 1), USUAL] {
        top.resize(rows, columns)?;
    }
    let server = pair.server.pid().to_string();
    top.expect("the server", |screen| has_line(screen, &[&server, "nl-server"]), || pair.converse(5, 200))?;
    top.signal(Signal::SIGTERM)?;
    expect_footer(&top.wait()?)?;
    before.expect_restored()
}

fn by_hangup(backend: Backend) -> Result<()> {
    let before = Kernel::now()?;
    let mut top = start(backend, USUAL)?;
    top.expect("a table", |screen| screen.contains("processes"), || Ok(()))?;
    let status = top.hang_up()?;
    ensure!(status.code() == Some(0), "exit: {status}");
    before.expect_restored()
}

fn dumb(backend: Backend) -> Result<()> {
    let backend = backend.to_string();
    let left = Terminal::start(&["top", "--backend", &backend], "dumb", USUAL)?.wait()?;
    ensure!(left.status.code() == Some(2), "exit: {}\n{}", left.status, left.text);
    ensure!(left.text.contains("type dumb"), left.text);
    Ok(())
}
