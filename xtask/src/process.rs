//! Running other programs so that a failure says which command it was and what to do.

use std::{
    io,
    process::{Command, Output, Stdio},
    time::Instant,
};

use anyhow::{Context as _, Result, bail};

/// Lines of a failed command's output that are worth showing.
const SHOWN_LINES: usize = 20;

/// The command as one would type it.
pub(crate) fn describe(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Runs a command, shows its output only if it fails, and returns its standard output.
pub(crate) fn quietly(command: &mut Command, remedy: &str) -> Result<String> {
    let output =
        command.stdin(Stdio::null()).output().map_err(|error| not_started(command, &error, remedy))?;
    if !output.status.success() {
        bail!("`{}` failed ({}):\n{}\n{remedy}", describe(command), output.status, last_lines(&output));
    }
    String::from_utf8(output.stdout).with_context(|| format!("`{}` printed no UTF-8", describe(command)))
}

/// Runs a command whose output the user should see as it comes.
pub(crate) fn loudly(command: &mut Command, remedy: &str) -> Result<()> {
    let status = command.status().map_err(|error| not_started(command, &error, remedy))?;
    if !status.success() {
        bail!("`{}` failed ({status}): {remedy}", describe(command));
    }
    Ok(())
}

/// Whether a command can be run and succeeds; its output is not of interest.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// A command that runs as root, through sudo where that is needed.
pub(crate) fn as_root(program: impl AsRef<std::ffi::OsStr>) -> Command {
    if rustix::process::geteuid().is_root() {
        Command::new(program)
    } else {
        let mut command = Command::new("sudo");
        command.arg(program);
        command
    }
}

/// Does a step that may take long, telling what it is and how long it took.
pub(crate) fn step<T>(what: &str, action: impl FnOnce() -> Result<T>) -> Result<T> {
    eprintln!("xtask: {what} …");
    let start = Instant::now();
    let result = action().with_context(|| format!("{what} failed"))?;
    eprintln!("xtask: {what}: done in {:.0} s", start.elapsed().as_secs_f64());
    Ok(result)
}

fn not_started(command: &Command, error: &io::Error, remedy: &str) -> anyhow::Error {
    anyhow::anyhow!("`{}` could not be started ({error}): {remedy}", describe(command))
}

fn last_lines(output: &Output) -> String {
    let text = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_names_command_output_and_remedy() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo broken >&2; exit 3"]);
        let message = quietly(&mut command, "mend it").unwrap_err().to_string();
        assert!(message.contains("`sh -c"), "{message}");
        assert!(message.contains("exit status: 3"), "{message}");
        assert!(message.contains("broken\nmend it"), "{message}");
    }

    #[test]
    fn missing_program_is_named() {
        let message =
            quietly(&mut Command::new("/nonexistent/program"), "install it").unwrap_err().to_string();
        assert!(message.contains("`/nonexistent/program` could not be started"), "{message}");
    }
}
