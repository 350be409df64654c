//! Every way to end: clean, with a footer and the right exit code, and nothing left in the kernel.

use std::{
    env,
    fs::{self, File},
    io::{BufRead as _, BufReader, Write as _},
    os::fd::OwnedFd,
    path::PathBuf,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    sys::signal::{Signal, kill},
    unistd::{Pid, pipe2},
};

use super::Case;
use crate::{
    confine,
    leftovers::Kernel,
    lines,
    net::{Path, Version},
    peers::Pair,
    process::{PATIENCE, until, wait},
    tool::{self, Backend, Launch, Outcome, Scratch, Sink, run},
};

pub(crate) const CASES: &[Case] = &[
    ("ends_by_sigint", |backend| by_signal(backend, Signal::SIGINT)),
    ("ends_by_sigterm", |backend| by_signal(backend, Signal::SIGTERM)),
    ("ends_by_sighup", by_sighup),
    ("ends_by_sighup_not_under_nohup", not_by_sighup_under_nohup),
    ("ends_by_sigkill", by_sigkill),
    ("ends_by_duration", by_duration),
    ("ends_by_count", by_count),
    ("ends_by_closed_pipe", by_closed_pipe),
    ("ends_by_full_disk", by_full_disk),
    ("ends_by_limit_of_files", by_limit_of_files),
    ("ends_though_nobody_reads_it", though_nobody_reads),
];

/// A file system of 64 KiB that the guest has for this.
const SMALL: &str = "/small";

fn connect() -> Result<Pair> {
    Pair::connect(&Path::loopback(Version::V4)?)
}

/// What every end but SIGKILL has in common.
fn expect_clean(outcome: &Outcome, code: i32, before: &Kernel) -> Result<()> {
    outcome.expect_code(code)?;
    outcome.lost().context("the footer")?;
    before.expect_restored().map_err(|error| outcome.fault(format_args!("{error:#}"), &[]))
}

/// That 50 rounds of the pair are shown.
fn expect_lines(outcome: &Outcome, pair: &Pair) -> Result<()> {
    let lines = outcome.lines()?;
    let own = lines.iter().filter(|line| pair.owns(line) && !line.is("retrans")).count();
    outcome.expect_all("lines", own.try_into()?, 50 * 4, &lines)
}

fn by_signal(backend: Backend, signal: Signal) -> Result<()> {
    let before = Kernel::now()?;
    let tool = Launch::new(backend).start()?;
    Kernel::now()?.expect_more_than(&before)?;
    let mut pair = connect()?;
    pair.converse(50, 200)?;
    tool.signal(signal)?;
    let outcome = tool.wait()?;
    expect_clean(&outcome, 0, &before)?;
    // Whatever was seen before the signal is written, not dropped with the buffer.
    expect_lines(&outcome, &pair)
}

/// Without a file to open anew, as when the terminal goes.
fn by_sighup(backend: Backend) -> Result<()> {
    let before = Kernel::now()?;
    let tool = Launch::new(backend).sink(Sink::Redirected(Scratch::new("lines"))).start()?;
    let mut pair = connect()?;
    pair.converse(50, 200)?;
    tool.signal(Signal::SIGHUP)?;
    let outcome = tool.wait()?;
    expect_clean(&outcome, 0, &before)?;
    expect_lines(&outcome, &pair)
}

fn not_by_sighup_under_nohup(backend: Backend) -> Result<()> {
    let launch = Launch::new(backend).sink(Sink::Redirected(Scratch::new("lines")));
    let mut tool = launch.ignoring_hangup().start()?;
    tool.signal(Signal::SIGHUP)?;
    let mut pair = connect()?;
    pair.converse(50, 200)?;
    ensure!(tool.is_running()?, "it ended by a signal that it was started to ignore");
    let outcome = tool.stop()?;
    expect_lines(&outcome, &pair)
}

fn by_sigkill(backend: Backend) -> Result<()> {
    let before = Kernel::now()?;
    let tool = Launch::new(backend).start()?;
    Kernel::now()?.expect_more_than(&before)?;
    connect()?.converse(50, 200)?;
    tool.signal(Signal::SIGKILL)?;
    tool.wait()?;
    before.expect_restored()
}

fn by_duration(backend: Backend) -> Result<()> {
    let before = Kernel::now()?;
    let tool = Launch::new(backend).args(&["--duration", "1s"]).start()?;
    expect_clean(&tool.wait()?, 0, &before)
}

fn by_count(backend: Backend) -> Result<()> {
    let before = Kernel::now()?;
    let tool = Launch::new(backend).args(&["--count", "10"]).start()?;
    connect()?.converse(50, 200)?;
    let outcome = tool.wait()?;
    expect_clean(&outcome, 0, &before)?;
    let lines = outcome.lines()?;
    ensure!(lines.len() == 10, outcome.fault(format_args!("{} lines, not 10", lines.len()), &lines));
    Ok(())
}

/// As with `| head -3`.
fn by_closed_pipe(backend: Backend) -> Result<()> {
    let before = Kernel::now()?;
    let mut tool = Launch::new(backend).sink(Sink::Pipe).start()?;
    let mut pipe = BufReader::new(tool.stdout()?);
    let mut pair = connect()?;
    pair.converse(10, 200)?;
    let mut text = String::new();
    for _ in 0..3 {
        ensure!(pipe.read_line(&mut text)? > 0, "the pipe ended after: {text}");
    }
    lines::parse(&text)?;
    drop(pipe);
    // It can notice only when there is something to write.
    until(PATIENCE, || {
        pair.converse(10, 200)?;
        Ok(!tool.is_running()?)
    })
    .context("the tool goes on although its pipe is closed")?;
    expect_clean(&tool.wait()?, 0, &before)
}

fn by_full_disk(backend: Backend) -> Result<()> {
    let before = Kernel::now()?;
    let file = PathBuf::from(SMALL).join(format!("{backend}.json"));
    let mut tool = Launch::new(backend).sink(Sink::At(file)).start()?;
    let mut pair = connect()?;
    until(PATIENCE, || {
        pair.converse(100, 200)?;
        Ok(!tool.is_running()?)
    })
    .context("the tool goes on although its disk is full")?;
    let outcome = tool.wait()?;
    expect_clean(&outcome, 4, &before)?;
    let said = outcome.stderr.join("\n").to_lowercase();
    ensure!(said.contains("no space") || said.contains("full"), outcome.fault("it does not say why", &[]));
    let lines = outcome.lines()?;
    ensure!(!lines.is_empty(), outcome.fault("nothing was written before the disk was full", &[]));
    Ok(())
}

/// A file may have no more than 4 KiB (`RLIMIT_FSIZE`), beyond which the kernel sends SIGXFSZ.
fn by_limit_of_files(backend: Backend) -> Result<()> {
    let before = Kernel::now()?;
    let file = env::temp_dir().join(format!("nl-limit-{backend}"));
    let path = file.to_str().context("a name of ASCII")?.to_owned();
    let backend = backend.to_string();
    let refusal = thread::scope(|scope| {
        let arguments = ["--backend", &backend, "--format", "json", "-o", &path, "--footer", "json"];
        let running = scope.spawn(move || run(Some(confine::SMALL_FILES), &arguments));
        let mut pair = connect()?;
        while !running.is_finished() {
            pair.converse(10, 200)?;
        }
        running.join().map_err(|_| anyhow!("a thread panicked"))?
    })?;
    ensure!(refusal.code == Some(4), "exit code {:?}, not 4; it said:\n{}", refusal.code, refusal.stderr);
    let has_footer = refusal.stderr.lines().any(|line| line.starts_with('{') && line.contains("\"lost\""));
    let says_why = refusal.stderr.contains("File too large");
    ensure!(has_footer && says_why, "without a footer, or a reason:\n{}", refusal.stderr);
    let written = fs::read_to_string(&file)?;
    fs::remove_file(&file)?;
    ensure!(written.lines().count() > 3 && written.ends_with('\n'), "not whole lines: {written}");
    before.expect_restored()
}

/// A full pipe, and its end that is not read.
fn full_pipe() -> Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = pipe2(OFlag::O_NONBLOCK)?;
    let mut file = File::from(writer);
    while file.write(&[b'x'; 4096]).is_ok() {}
    while file.write(b"x").is_ok() {}
    fcntl(&file, FcntlArg::F_SETFL(OFlag::empty()))?;
    Ok((reader, file.into()))
}

/// Standard output and standard error are pipes that are full already: what it says has nowhere to go, not even that it
/// traces. SIGTERM has to end it all the same, and nothing may stay attached.
fn though_nobody_reads(backend: Backend) -> Result<()> {
    /// Above what detaching takes on an emulated machine: with PREEMPT_RT a second for each of some thirty functions. A run that waits for
    /// a reader waits for ever.
    const SOON: Duration = Duration::from_secs(90);
    let views: [&[&str]; 5] = [
        &["--interval", "100ms"],
        &["hist", "--interval", "100ms"],
        &["diagnose", "--duration", "10m"],
        &["journey", "--port", "9"],
        &["calls", "tcp_sendmsg"],
    ];
    for view in views {
        let before = Kernel::now()?;
        let [(_out_reader, out), (_err_reader, err)] = [full_pipe()?, full_pipe()?];
        let mut command = Command::new(tool::path());
        command.args(view).stdin(Stdio::null()).stdout(out).stderr(err);
        if view[0] != "calls" {
            command.args(["--backend", &backend.to_string()]);
        }
        let mut child = command.spawn()?;
        drop(command);
        // Attached: what the kernel lists is more than before, and no more than a moment ago.
        let mut last = Kernel::now()?;
        until(PATIENCE, || {
            thread::sleep(Duration::from_secs(1));
            ensure!(child.try_wait()?.is_none(), "{view:?}: it has ended");
            let now = Kernel::now()?;
            let is_steady = now == last && now.expect_more_than(&before).is_ok();
            last = now;
            Ok(is_steady)
        })
        .with_context(|| format!("{view:?}: it does not attach"))?;
        connect()?.converse(50, 200)?;
        let asked = Instant::now();
        kill(Pid::from_raw(child.id().try_into()?), Signal::SIGTERM)?;
        let ended = wait(&mut child, SOON);
        if ended.is_err() {
            child.kill()?;
            child.wait()?;
        }
        let status = ended.with_context(|| format!("{view:?}"))?;
        println!("{view:?} ended after {:.1} s", asked.elapsed().as_secs_f64());
        ensure!(status.code() == Some(0), "{view:?}: {status}");
        before.expect_restored().with_context(|| format!("{view:?}"))?;
    }
    Ok(())
}
