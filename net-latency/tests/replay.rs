//! `net-latency top --replay` from outside: on a terminal, and what it refuses.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Output, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use net_latency::inside::Format;
use serde_json::Value;

mod logs;
#[expect(dead_code, reason = "guests do more with a terminal")]
#[path = "guest/terminal.rs"]
mod terminal;

/// What the terminal needs of the guest's helpers.
mod process {
    use std::{
        process::{Child, ExitStatus},
        thread,
        time::{Duration, Instant},
    };

    use anyhow::{Context as _, Result, bail};

    pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

    pub(crate) fn wait(child: &mut Child, patience: Duration) -> Result<ExitStatus> {
        let mut ended = None;
        until(patience, || {
            ended = child.try_wait()?;
            Ok(ended.is_some())
        })?;
        ended.context("a process ended without a status")
    }

    pub(crate) fn until(patience: Duration, mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
        let deadline = Instant::now() + patience;
        while !condition()? {
            if Instant::now() > deadline {
                bail!("still not so after {patience:?}");
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

mod tool {
    use std::path::Path;

    pub(crate) fn path() -> &'static Path {
        Path::new(env!("CARGO_BIN_EXE_net-latency"))
    }
}

const PACKETS: u64 = 3_000;
const MINUTE_NS: u64 = 60_000_000_000;

fn log(directory: &tempfile::TempDir) -> Result<PathBuf> {
    let path = directory.path().join("packets.json");
    let mut log = Vec::new();
    logs::write(PACKETS, MINUTE_NS, Format::Json, &mut log)?;
    fs::write(&path, log)?;
    Ok(path)
}

fn run(arguments: &[&str]) -> Result<Output> {
    let mut command = Command::new(tool::path());
    Ok(command.args(arguments).stdin(Stdio::null()).output()?)
}

#[test]
fn a_log_on_a_terminal_ends_with_the_report_s_counts() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let path = log(&directory)?;
    let path = path.to_str().context("UTF-8")?;
    let report: Value = serde_json::from_slice(&run(&["report", "--format", "json", path])?.stdout)?;
    ensure!(report["packets"] == PACKETS, "{report}");

    let arguments = ["top", "--replay", path, "--speed", "max", "--delay", "100ms"];
    let mut top = terminal::Terminal::start(&arguments, "xterm-256color", (40, 160))?;
    top.expect("the end", |screen| screen.contains(" END OF LOG "), || Ok(()))?;
    ensure!(top.text()?.contains(&format!("replay {path}, max, 59 s, ")), "{}", top.text()?);
    // Keys still work, and it stays until it is told to go.
    top.press("?")?;
    top.expect("help", |screen| screen.contains("Ctrl-C"), || Ok(()))?;
    top.press("xq")?;
    let left = top.wait()?;
    ensure!(left.status.code() == Some(0), "{}\n{}", left.status, left.text);
    let counts = format!("{PACKETS} lines read: {PACKETS} shown, 0 filtered");
    ensure!(left.text.contains(&counts), "{}", left.text);
    Ok(())
}

#[test]
fn what_makes_no_sense_with_a_log_is_a_usage_error() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let path = log(&directory)?;
    let path = path.to_str().context("UTF-8")?;
    let wrong: [&[&str]; 11] = [
        &["--replay"],
        &["--speed", "2"],
        &["--replay", path, "--speed", "0"],
        &["--replay", path, "--backend", "kprobe"],
        &["--replay", path, "--buffer", "4M"],
        &["--replay", path, "--cgroup", "/"],
        &["--replay", path, "--netns", "1"],
        &["--replay", path, "--sample", "1/2"],
        &["--replay", path, "--control"],
        &["--replay", path, "--footer", "json"],
        &["--replay", path, path],
    ];
    for arguments in wrong {
        let output = run(&[&["top"], arguments].concat())?;
        let said = String::from_utf8(output.stderr)?;
        ensure!(output.status.code() == Some(2), "{arguments:?}: {said}");
        let named =
            arguments.iter().rev().find(|argument| argument.starts_with("--")).context("an option")?;
        ensure!(said.contains(named) || said.contains("named twice"), "{arguments:?}: {said}");
    }
    Ok(())
}

#[test]
fn standard_input_needs_a_keyboard_elsewhere() -> Result<()> {
    let output =
        Command::new("setsid").arg("--wait").arg(tool::path()).args(["top", "--replay", "-"]).output()?;
    let said = String::from_utf8(output.stderr)?;
    ensure!(output.status.code() == Some(2), "{said}");
    ensure!(said.contains("/dev/tty") && said.contains("write the log to a file"), "{said}");
    Ok(())
}
