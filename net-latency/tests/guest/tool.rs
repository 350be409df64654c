//! The tool under test, run as a user runs it.

use std::{
    env, fmt,
    fs::{self, File},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, ExitStatus, Stdio, id},
    sync::{
        LazyLock,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use chrono::{DateTime, Utc};
use net_latency::inside::preemption;
use nix::{
    sys::signal::{SigHandler, Signal, kill, signal},
    unistd::Pid,
};

use crate::{
    allowance::Allowance,
    confine,
    footer::{Footer, Ledger},
    lines::{Line, parse},
    process::{Lines, PATIENCE, until, wait},
    verdict::Fault,
};

/// Where the tool is, when not beside this test.
const PATH: &str = "NET_LATENCY";

/// Whether this line says that everything is attached, and by what; one that refuses says what tracing needs.
fn is_ready(line: &str) -> bool {
    line.starts_with("net-latency: tracing ") && line.contains(" by ")
}

/// How the tool hooks into the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    Auto,
    Fentry,
    Kprobe,
}

impl Backend {
    /// Those that people use on this kernel: where tasks are preempted in programs, `auto` takes both. Kprobes alone where functions have
    /// no trampolines (arm64 before Linux 6.4).
    pub(crate) fn tested() -> Vec<Self> {
        let usual = if preemption::is_possible() { Self::Auto } else { Self::Fentry };
        has_trampolines().then_some(usual).into_iter().chain([Self::Kprobe]).collect()
    }

    /// What the tool says it traces by: `auto` is tested only where it is both.
    pub(crate) fn mechanism(self) -> &'static str {
        match self {
            Self::Auto => "fentry and kprobe",
            Self::Fentry => "fentry",
            Self::Kprobe => "kprobe",
        }
    }
}

/// Whether ftrace can call what BPF makes of a program (CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS).
fn has_trampolines() -> bool {
    static HAS: LazyLock<bool> = LazyLock::new(|| {
        let symbols = fs::read_to_string("/proc/kallsyms").unwrap_or_default();
        symbols.lines().any(|line| line.ends_with(" register_ftrace_direct"))
    });
    *HAS
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Fentry => "fentry",
            Self::Kprobe => "kprobe",
        })
    }
}

/// A path under /tmp that is this run's alone and is removed with the value.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(env::temp_dir().join(format!("net-latency-test-{}-{number}-{name}", id())))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Not there when the tool never opened it; /tmp is the guest's, so nothing else matters.
        drop(fs::remove_file(&self.0));
    }
}

/// Where the tool's lines go.
pub(crate) enum Sink {
    /// `-o` and a file of this run.
    File(Scratch),
    /// `-o` and a file that the case chose.
    At(PathBuf),
    /// Standard output redirected to a file, as the shell does it.
    Redirected(Scratch),
    /// Standard output as a pipe that the case reads.
    Pipe,
}

/// What to run.
pub(crate) struct Launch {
    backend: Backend,
    view: Option<&'static str>,
    format: &'static str,
    arguments: Vec<String>,
    command: Vec<String>,
    sink: Sink,
    timezone: Option<&'static str>,
    ignores_hangup: bool,
    is_under_load: bool,
    can_skip: bool,
    may_be_inconsistent: bool,
    footer: &'static str,
}

impl Launch {
    pub(crate) fn new(backend: Backend) -> Self {
        let sink = Sink::File(Scratch::new("lines"));
        Self {
            backend,
            view: None,
            format: "json",
            arguments: Vec::new(),
            command: Vec::new(),
            sink,
            timezone: None,
            ignores_hangup: false,
            is_under_load: false,
            can_skip: false,
            may_be_inconsistent: false,
            footer: "json",
        }
    }

    pub(crate) fn args<S: ToString>(mut self, arguments: &[S]) -> Self {
        self.arguments.extend(arguments.iter().map(S::to_string));
        self
    }

    /// Another view than the stream. It has no `-o`, so that [`Sink::Redirected`] or [`Sink::Pipe`] is needed.
    pub(crate) fn view(mut self, view: &'static str) -> Self {
        self.view = Some(view);
        self
    }

    /// The command to trace.
    pub(crate) fn command<S: ToString>(mut self, words: &[S]) -> Self {
        self.command = words.iter().map(S::to_string).collect();
        self
    }

    pub(crate) fn text(mut self) -> Self {
        self.format = "text";
        self
    }

    /// Another form, of a view that has it.
    pub(crate) fn form(mut self, format: &'static str) -> Self {
        self.format = format;
        self
    }

    pub(crate) fn csv(mut self) -> Self {
        self.format = "csv";
        self
    }

    pub(crate) fn sink(mut self, sink: Sink) -> Self {
        self.sink = sink;
        self
    }

    /// With the footer that people read, which has no figures for [`Outcome::footer`].
    pub(crate) fn text_footer(mut self) -> Self {
        self.footer = "text";
        self
    }

    /// There will be more tasks than CPUs, so that they preempt each other.
    pub(crate) fn under_load(mut self) -> Self {
        self.is_under_load = true;
        self
    }

    /// With the object of which hooks can be skipped (`cases/truth/skipped.rs`).
    pub(crate) fn skipping(mut self) -> Self {
        self.can_skip = true;
        self
    }

    /// Records with times that can't be are made on purpose: else each is a failure.
    pub(crate) fn with_inconsistent_records(mut self) -> Self {
        self.may_be_inconsistent = true;
        self
    }

    /// As `nohup` starts it.
    pub(crate) fn ignoring_hangup(mut self) -> Self {
        self.ignores_hangup = true;
        self
    }

    pub(crate) fn timezone(mut self, timezone: &'static str) -> Self {
        self.timezone = Some(timezone);
        self
    }

    /// Runs the tool and returns once it says that it traces.
    pub(crate) fn start(self) -> Result<Tool> {
        let mut command = Command::new(path());
        command.args(self.view);
        command.args(["--backend", &self.backend.to_string()]);
        if !matches!(self.view, Some("export" | "record")) {
            command.args(["--format", self.format]);
        }
        command.args(["--footer", self.footer]);
        command.args(&self.arguments).stdin(Stdio::null()).stderr(Stdio::piped());
        if let Some(timezone) = self.timezone {
            command.env("TZ", timezone);
        }
        if self.can_skip {
            command.env("NET_LATENCY_SKIPS", "1");
        }
        if self.ignores_hangup {
            // SAFETY: signal(2) is safe to call between fork and exec, and ignoring needs no handler.
            unsafe {
                command.pre_exec(|| Ok(signal(Signal::SIGHUP, SigHandler::SigIgn).map(|_| ())?));
            }
        }
        let file = match self.sink {
            Sink::File(scratch) => {
                command.arg("-o").arg(scratch.path()).stdout(Stdio::null());
                Some(scratch)
            }
            Sink::At(path) => {
                command.arg("-o").arg(&path).stdout(Stdio::null());
                Some(Scratch(path))
            }
            Sink::Redirected(scratch) => {
                command.stdout(File::create(scratch.path())?);
                Some(scratch)
            }
            Sink::Pipe => {
                command.stdout(Stdio::piped());
                None
            }
        };
        if !self.command.is_empty() {
            command.arg("--").args(&self.command);
        }
        let since = SystemTime::now();
        let mut child = command.spawn().with_context(|| format!("cannot run {}", path().display()))?;
        let stderr = Lines::follow(child.stderr.take().context("stderr is a pipe")?);
        let mut tool = Tool {
            child,
            backend: self.backend,
            is_under_load: self.is_under_load,
            has_figures: self.footer == "json",
            may_be_inconsistent: self.may_be_inconsistent,
            stderr,
            said: Vec::new(),
            file,
            since,
        };
        while let Some(line) = tool.stderr.next(PATIENCE).context("waiting until the tool traces")? {
            let ready = is_ready(&line);
            tool.said.push(line);
            if ready {
                return Ok(tool);
            }
        }
        bail!("the tool ended before it traced:\n{}", tool.said.join("\n"))
    }
}

/// The running tool. Killed when dropped.
pub(crate) struct Tool {
    child: Child,
    backend: Backend,
    is_under_load: bool,
    /// Its footer is for programs.
    has_figures: bool,
    may_be_inconsistent: bool,
    stderr: Lines,
    said: Vec<String>,
    file: Option<Scratch>,
    since: SystemTime,
}

impl Tool {
    /// Where its lines go.
    pub(crate) fn file(&self) -> Result<&Path> {
        Ok(self.file.as_ref().context("the lines go to a pipe")?.path())
    }

    /// Its standard output, with [`Sink::Pipe`].
    pub(crate) fn stdout(&mut self) -> Result<ChildStdout> {
        self.child.stdout.take().context("the lines go to a file")
    }

    /// What it has said so far.
    pub(crate) fn said(&self) -> &[String] {
        &self.said
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has not ended yet.
    pub(crate) fn is_running(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill(Pid::from_raw(self.child.id().try_into()?), signal)?)
    }

    /// Waits until what it has said is as wanted.
    pub(crate) fn expect_said(&mut self, what: &str, is_wanted: impl Fn(&[String]) -> bool) -> Result<()> {
        // Other lines may go on coming.
        let deadline = Instant::now() + PATIENCE;
        while !is_wanted(&self.said) {
            let line = self.stderr.next(deadline.saturating_duration_since(Instant::now()));
            let line = line.map_err(|error| anyhow!("{error:#}; it said:\n{}", self.said.join("\n")))?;
            self.said.push(line.with_context(|| format!("it ended before it said {what}"))?);
        }
        Ok(())
    }

    /// Waits until it has told what came in N more intervals.
    pub(crate) fn expect_more_reports(&mut self, count: usize) -> Result<()> {
        // What it has said and was not read yet is not among these.
        while let Ok(Some(line)) = self.stderr.next(Duration::ZERO) {
            self.said.push(line);
        }
        let reports = |said: &[String]| said.iter().filter(|line| is_report(line)).count();
        let wanted = reports(&self.said) + count;
        self.expect_said("what came in an interval", |said| reports(said) >= wanted)
    }

    /// Lines that its file has.
    pub(crate) fn written(&self) -> Result<usize> {
        Ok(fs::read(self.file()?)?.iter().filter(|byte| **byte == b'\n').count())
    }

    /// Waits until its file has at least N lines.
    pub(crate) fn expect_written(&self, lines: usize) -> Result<()> {
        until(PATIENCE, || Ok(self.written()? >= lines))
            .with_context(|| format!("no {lines} lines in its file"))
    }

    /// Ends it as Ctrl-C does; it must end well.
    pub(crate) fn stop(self) -> Result<Outcome> {
        self.signal(Signal::SIGINT)?;
        let has_figures = self.has_figures;
        let outcome = self.wait()?;
        outcome.expect_code(0)?;
        if has_figures {
            outcome.footer()?;
        }
        Ok(outcome)
    }

    /// Waits for it to end by itself.
    pub(crate) fn wait(mut self) -> Result<Outcome> {
        let status = wait(&mut self.child, PATIENCE)
            .map_err(|error| anyhow!("{error:#}; it said:\n{}", self.said.join("\n")))?;
        self.said.extend(self.stderr.rest()?);
        let data = match &self.file {
            Some(file) => fs::read(file.path()).context("reading the tool's lines")?,
            None => Vec::new(),
        };
        let span = (DateTime::from(self.since), DateTime::from(SystemTime::now()));
        let (backend, is_under_load) = (self.backend, self.is_under_load);
        let outcome = Outcome { status, backend, is_under_load, stderr: self.said.clone(), data, span };
        if !self.may_be_inconsistent {
            outcome.expect_consistent()?;
        }
        Ok(outcome)
    }
}

impl Drop for Tool {
    fn drop(&mut self) {
        // Fails when it has ended, which is the normal case.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Whether that line is, or begins, the report on an interval.
pub(crate) fn is_report(line: &str) -> bool {
    let is_text = line.starts_with("net-latency: ")
        && [" packet seen", " packets seen"].iter().any(|words| line.contains(words));
    is_text || Footer::parse(line).is_ok_and(|footer| footer.is_some_and(|footer| !footer.is_end()))
}

/// How a run ended and what it left.
pub(crate) struct Outcome {
    pub(crate) status: ExitStatus,
    backend: Backend,
    is_under_load: bool,
    /// All lines of standard error.
    pub(crate) stderr: Vec<String>,
    /// All bytes of the output file.
    pub(crate) data: Vec<u8>,
    /// Wall-clock time before the start and after the end.
    pub(crate) span: (DateTime<Utc>, DateTime<Utc>),
}

impl Outcome {
    /// An error that shows the first of the lines at fault and what the tool said, and knows what the kernel skipped. Its first line,
    /// which is all that the end of a long log shows, says what the tool counted as missing.
    pub(crate) fn fault<'a>(
        &self,
        what: impl fmt::Display,
        lines: impl IntoIterator<Item = &'a Line>,
    ) -> anyhow::Error {
        let lines: Vec<_> = lines.into_iter().take(5).map(|line| line.raw.as_str()).collect();
        let missing = self.end().map(|footer| format!("; counted as missing: {}", footer.missing()));
        let text = format!(
            "{what}{}\nfirst lines concerned:\n{}\nexit: {}\nstderr:\n{}",
            missing.unwrap_or_default(),
            lines.join("\n"),
            self.status,
            self.stderr.join("\n")
        );
        let unseen = match self.backend {
            Backend::Kprobe => self.end().and_then(|footer| footer.figure("losses.packet_unseen").ok()),
            Backend::Auto | Backend::Fentry => None,
        };
        Fault { text, skipped_calls: self.skipped_calls(), unseen: unseen.unwrap_or(0) }.into()
    }

    /// The figures of the whole run, which every clean end shows.
    pub(crate) fn footer(&self) -> Result<Footer> {
        let footers = self.footers()?;
        let end = footers.into_iter().rev().find(Footer::is_end);
        end.ok_or_else(|| self.fault("no footer", []))
    }

    /// The figures of each interval.
    pub(crate) fn reports(&self) -> Result<Vec<Footer>> {
        Ok(self.footers()?.into_iter().filter(|footer| !footer.is_end()).collect())
    }

    /// The figures of each interval, and of the whole run.
    pub(crate) fn footers(&self) -> Result<Vec<Footer>> {
        self.stderr.iter().filter_map(|line| Footer::parse(line).transpose()).collect()
    }

    /// Fails if a packet had times that can't be its own. No call that the kernel skips explains that, so that there is no second try.
    fn expect_consistent(&self) -> Result<()> {
        const SENTENCE: &str = "with inconsistent times were skipped";
        let counted = self.footers()?.iter().map(Footer::inconsistent).sum::<u64>();
        let is_told = self.stderr.iter().any(|line| line.contains(SENTENCE));
        ensure!(
            counted == 0 && !is_told,
            "packets with times that can't be theirs; it said:\n{}",
            self.stderr.join("\n")
        );
        Ok(())
    }

    /// A figure of the footer, see [`Footer::figure`].
    pub(crate) fn figure(&self, path: &str) -> Result<u64> {
        self.footer()?.figure(path)
    }

    /// How many calls of traced functions the kernel skipped; `None` where it doesn't count them.
    pub(crate) fn skipped_calls(&self) -> Option<u64> {
        if let Some(footer) = self.end() {
            return footer.skipped_calls();
        }
        // The few cases that are about the text have nothing else.
        let words = " of traced functions skipped by the kernel";
        let count = |line: &String| line.split_once(words)?.0.split_whitespace().next()?.parse().ok();
        self.stderr.iter().rev().find_map(count)
    }

    /// The figures of the whole run, if it has got so far.
    fn end(&self) -> Option<Footer> {
        let footers = self.stderr.iter().rev().filter_map(|line| Footer::parse(line).ok().flatten());
        footers.into_iter().find(Footer::is_end)
    }

    /// Under load: of N lines those whose write call may be unknown, as the footer counts them; 1 in 1,000 at most. One of 125,000 was seen
    /// on processors that run at the same time (Linux 7.3), for an unknown reason.
    pub(crate) fn writes_unseen(&self, lines: usize) -> usize {
        let counted = if self.is_under_load { self.figure("unknown_stages.write_unseen").ok() } else { None };
        usize::try_from(counted.unwrap_or(0)).map_or(0, |counted| counted.min(1 + lines / 1_000))
    }

    /// What may be missing.
    pub(crate) fn allowance(&self) -> Allowance {
        let of = if self.is_under_load { Allowance::under_load } else { Allowance::of };
        of(self.backend, self.skipped_calls())
    }

    /// Fails unless `found` are all of `packets`, but for what may be missing.
    pub(crate) fn expect_all<'a>(
        &self,
        what: impl fmt::Display,
        found: u64,
        packets: u64,
        lines: impl IntoIterator<Item = &'a Line>,
    ) -> Result<()> {
        let allowance = self.allowance();
        ensure!(
            allowance.allows(found, packets),
            self.fault(format_args!("{found} {what}, not {packets} (allowance: {allowance:?})"), lines)
        );
        if found < packets {
            println!(
                "{}: {} of {packets} {what} are missing, which is allowed",
                self.backend,
                packets - found
            );
        }
        Ok(())
    }

    /// Fails unless the tool ended with `code`.
    pub(crate) fn expect_code(&self, code: i32) -> Result<()> {
        ensure!(self.status.code() == Some(code), self.fault(format_args!("exit code is not {code}"), []));
        Ok(())
    }

    /// How many lines are missing.
    pub(crate) fn lost(&self) -> Result<u64> {
        self.figure("lost")
    }

    /// The ledger of the whole run, which has a place for every packet that the kernel side saw.
    pub(crate) fn ledger(&self) -> Result<Ledger> {
        self.ledger_but_for(0)
    }

    /// [`Self::ledger`] where a socket was closed with `unread` packets: they are purged after a grace period (SOCK_RCU_FREE), which may be
    /// still to come, or they are counted just then.
    pub(crate) fn ledger_but_for(&self, unread: u64) -> Result<Ledger> {
        let ledger = self.open_ledger()?;
        let allowance = self.allowance();
        ensure!(
            ledger.open() <= allowance.most(ledger.seen) + unread,
            self.fault(format_args!("packets without a place (allowance: {allowance:?}): {ledger:?}"), [])
        );
        Ok(ledger)
    }

    /// The ledger, whether or not it closes.
    pub(crate) fn open_ledger(&self) -> Result<Ledger> {
        self.footer()?.ledger().map_err(|error| self.fault(format_args!("{error:#}"), []))
    }

    pub(crate) fn is_by_kprobe(&self) -> bool {
        self.backend == Backend::Kprobe
    }

    /// The output as text, which it must be.
    pub(crate) fn text(&self) -> Result<&str> {
        std::str::from_utf8(&self.data).context("the output is not UTF-8")
    }

    /// The output parsed as JSON lines, each of them whole.
    pub(crate) fn lines(&self) -> Result<Vec<Line>> {
        parse(self.text()?).map_err(|error| self.fault(format_args!("{error:#}"), []))
    }
}

/// What a run says that does not get as far as tracing.
pub(crate) struct Refusal {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs the tool to its end, which must come by itself, optionally confined.
pub(crate) fn run(confinement: Option<&str>, arguments: &[&str]) -> Result<Refusal> {
    let mut command = match confinement {
        Some(kind) => confine::command(kind, &path())?,
        None => Command::new(path()),
    };
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("cannot run {}", path().display()))?;
    let stdout = Lines::follow(child.stdout.take().context("stdout is a pipe")?);
    let stderr = Lines::follow(child.stderr.take().context("stderr is a pipe")?);
    let ended = wait(&mut child, PATIENCE);
    if ended.is_err() {
        child.kill()?;
        child.wait()?;
    }
    let (stdout, stderr) = (stdout.rest()?.join("\n"), stderr.rest()?.join("\n"));
    let status = ended.map_err(|error| anyhow!("{error:#}; it said:\n{stderr}"))?;
    Ok(Refusal { code: status.code(), stdout, stderr })
}

/// The tool's program.
pub(crate) fn path() -> PathBuf {
    env::var_os(PATH).map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_net-latency")), PathBuf::from)
}
