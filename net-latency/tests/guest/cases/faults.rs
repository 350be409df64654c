//! File systems and terminals that fail while lines are written: the run goes on in the file that is open, or ends with a sentence, its
//! footer, and nothing left.

use std::{
    os::fd::OwnedFd,
    path::Path as FilePath,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    pty::openpty,
    sys::signal::Signal,
};

use super::{Case, reopened::Logs};
use crate::{
    footer::Footer,
    leftovers::Kernel,
    net::{Path, Version},
    peers::Pair,
    process::{Lines, PATIENCE, until, wait},
    tool::{self, Backend, Launch, Sink, run},
};

pub(crate) const CASES: &[Case] = &[
    ("fault_of_a_read_only_file_system", read_only),
    ("fault_of_a_terminal_that_is_gone", terminal_gone),
    ("fault_of_input_and_output", io_error),
];

const ROUNDS: u32 = 50;
const LEN: u32 = 200;

/// Something mounted somewhere, until this is dropped.
struct Mounted<'a>(&'a FilePath);

impl<'a> Mounted<'a> {
    fn read_only(at: &'a FilePath) -> Result<Self> {
        let none: Option<&str> = None;
        mount(Some("tmpfs"), at, Some("tmpfs"), MsFlags::MS_RDONLY, none).context("mounting a tmpfs")?;
        Ok(Self(at))
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = umount2(self.0, MntFlags::MNT_DETACH);
    }
}

fn connect() -> Result<Pair> {
    Pair::connect(&Path::loopback(Version::V4)?)
}

/// `EROFS`: at the start it is refused; where it comes later, the run goes on in the file that is open.
fn read_only(backend: Backend) -> Result<()> {
    let logs = Logs::new()?;
    let file = logs.file();
    let path = file.to_str().context("a name of ASCII")?;
    let covered = Mounted::read_only(logs.directory())?;
    let refusal = run(None, &["-o", path])?;
    let is_right = refusal.code == Some(2)
        && refusal.stderr.lines().count() == 1
        && refusal.stderr.contains("Read-only file system");
    ensure!(is_right, "{:?}: {}", refusal.code, refusal.stderr);
    drop(covered);

    let mut tool = Launch::new(backend).sink(Sink::At(file.clone())).start()?;
    let mut pair = connect()?;
    pair.converse(ROUNDS, LEN)?;
    let covered = Mounted::read_only(logs.directory())?;
    tool.signal(Signal::SIGHUP)?;
    // Landlock knows the directory that is covered now, and no other.
    let reasons = ["Read-only file system", "Permission denied"];
    tool.expect_said("why there is no new file", |said| {
        let is_told = |line: &String| {
            line.contains("still writing to the old one")
                && reasons.iter().any(|reason| line.contains(reason))
        };
        said.iter().any(is_told)
    })?;
    pair.converse(ROUNDS, LEN)?;
    drop(covered);
    let outcome = tool.stop()?;
    let own = outcome.lines()?.iter().filter(|line| pair.owns(line) && !line.is("retrans")).count();
    outcome.expect_all("lines", own.try_into()?, (2 * 4 * ROUNDS).into(), [])
}

/// That it ended with code 1, one sentence that says why, and its footer, and left nothing.
fn expect_failed(code: Option<i32>, said: &[String], before: &Kernel) -> Result<()> {
    let whole = said.join("\n");
    let sentences = said.iter().filter(|line| line.contains("Input/output error")).count();
    let has_footer = said.iter().any(|line| Footer::parse(line).is_ok_and(|footer| footer.is_some()));
    ensure!(code == Some(1) && sentences == 1 && has_footer, "exit code {code:?}; it said:\n{whole}");
    ensure!(whole.contains("lines not written: "), "lines are missing, and are not counted:\n{whole}");
    before.expect_restored()
}

/// `EIO` of a terminal whose other end has gone, as when a connection by ssh breaks and its signal is ignored.
fn terminal_gone(backend: Backend) -> Result<()> {
    let before = Kernel::now()?;
    let pty = openpty(None, None).context("openpty")?;
    let (master, slave): (OwnedFd, OwnedFd) = (pty.master, pty.slave);
    rustix::io::fcntl_setfd(&master, rustix::io::FdFlags::CLOEXEC)?;
    let mut command = Command::new(tool::path());
    command.args(["--backend", &backend.to_string(), "--footer", "json"]);
    let mut child = command.stdin(Stdio::null()).stdout(slave).stderr(Stdio::piped()).spawn()?;
    // With this process' own end of it.
    drop(command);
    let stderr = Lines::follow(child.stderr.take().context("a pipe")?);
    let mut said = Vec::new();
    while !said.iter().any(|line: &String| line.contains(" tracing ")) {
        said.push(stderr.next(PATIENCE)?.context("it ended before it traced")?);
    }
    drop(master);
    let mut pair = connect()?;
    until(PATIENCE, || {
        pair.converse(10, LEN)?;
        Ok(child.try_wait()?.is_some())
    })
    .context("it goes on although its terminal is gone")?;
    let status = wait(&mut child, PATIENCE)?;
    said.extend(stderr.rest()?);
    expect_failed(status.code(), &said, &before)
}

/// `EIO` of a file: the memory of a process takes nothing at its beginning.
fn io_error(backend: Backend) -> Result<()> {
    let before = Kernel::now()?;
    let launch = Launch::new(backend).sink(Sink::Pipe).args(&["-o", "/proc/self/mem"]);
    let mut tool = launch.start()?;
    let mut pair = connect()?;
    until(PATIENCE, || {
        pair.converse(10, LEN)?;
        Ok(!tool.is_running()?)
    })
    .context("it goes on although nothing can be written")?;
    let outcome = tool.wait()?;
    expect_failed(outcome.status.code(), &outcome.stderr, &before)
}
