//! bpftrace with a script that shows the same stages, where the guest has it.

use std::{
    fs::{self, File},
    path::Path,
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use regex_lite::Regex;

use super::{
    SETTLED,
    load::{Ends, Load},
};
use crate::{
    net::{self, Version},
    process::{PATIENCE, wait},
    tool::Scratch,
};

/// Where `cargo xtask bench` puts it.
const PROGRAM: &str = "/bin/bpftrace";
const SCRIPT: &str = include_str!("stages.bt");
const PAGES: (&str, &str) = ("BPFTRACE_PERF_RB_PAGES", "1024");
/// Messages at a time to see by whether it traces yet: it doesn't say, and writes some dozens of lines at a time.
const SIGNS: u32 = 100;

/// Tracing. Killed when dropped.
pub(super) struct Bpftrace {
    child: Child,
    lines: Scratch,
    messages: Scratch,
    start: Duration,
    _script: Scratch,
}

impl Bpftrace {
    pub(super) fn start() -> Result<Self> {
        ensure!(Path::new(PROGRAM).exists(), "this guest has no {PROGRAM}");
        let [script, lines, messages] = ["stages.bt", "lines", "messages"].map(Scratch::new);
        fs::write(script.path(), SCRIPT)?;
        let mut command = Command::new(PROGRAM);
        // As the tool does it: not a write a line, and a buffer of 4 MiB.
        command.args(["-B", "full"]).env(PAGES.0, PAGES.1).arg(script.path()).stdin(Stdio::null());
        command.stdout(File::create(lines.path())?).stderr(File::create(messages.path())?);
        let begin = Instant::now();
        let child = command.spawn().with_context(|| format!("can't start {PROGRAM}"))?;
        let mut bpftrace = Self { child, lines, messages, start: Duration::ZERO, _script: script };
        bpftrace.wait_for_lines()?;
        bpftrace.start = begin.elapsed();
        Ok(bpftrace)
    }

    fn wait_for_lines(&mut self) -> Result<()> {
        let mut ends = Ends::prepare(Load::RoundTrip, &net::Path::loopback(Version::V4)?)?;
        let deadline = Instant::now() + PATIENCE;
        while fs::read(self.lines.path())?.is_empty() {
            if let Some(status) = self.child.try_wait()? {
                bail!("it ended ({status}): {}", self.message()?);
            }
            ensure!(Instant::now() < deadline, "no line within {PATIENCE:?}: {}", self.message()?);
            ends.play(SIGNS)?;
            sleep(Duration::from_millis(500));
        }
        Ok(())
    }

    /// What it says, in one line.
    fn message(&self) -> Result<String> {
        let text = fs::read(self.messages.path())?;
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).take(4).collect();
        Ok(lines.join("; "))
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn file(&self) -> &Path {
        self.lines.path()
    }

    pub(super) fn started_in(&self) -> Duration {
        self.start
    }

    /// Waits until it has written what it has been told; it may be far behind.
    pub(super) fn settle(&self) -> Result<()> {
        let mut before = 0;
        loop {
            sleep(SETTLED);
            let len = fs::metadata(self.file())?.len();
            if len == before {
                return Ok(());
            }
            before = len;
        }
    }

    /// Ends it as Ctrl-C does; how many lines it says it lost.
    pub(super) fn stop(mut self) -> Result<u64> {
        kill(Pid::from_raw(self.child.id().try_into()?), Signal::SIGINT)?;
        wait(&mut self.child, PATIENCE)?;
        let lost = Regex::new(r"Lost (\d+) events")?;
        let mut sum = 0;
        for file in [&self.lines, &self.messages] {
            let text = fs::read(file.path())?;
            for found in lost.captures_iter(&String::from_utf8_lossy(&text)) {
                sum += found[1].parse::<u64>()?;
            }
        }
        Ok(sum)
    }
}

impl Drop for Bpftrace {
    fn drop(&mut self) {
        // Fails when it has ended, which is the normal case.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
