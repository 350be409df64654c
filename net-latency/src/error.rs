//! How a run fails, and the exit code that says so.

use std::fmt::{self, Display};
use std::io::ErrorKind;
use std::process::ExitCode;

use crate::message::tell;

/// Exit code of a command that is not there, as shells have it.
pub(crate) const NOT_FOUND: u8 = 127;
/// Exit code of a command that can't be executed, as shells have it.
pub(crate) const NOT_EXECUTABLE: u8 = 126;

/// Why a run ends without success. Each reads as one sentence that says what to do where that is known.
#[derive(Debug)]
pub enum Failure {
    /// The command line asks for something that can't be.
    Usage(String),
    /// This kernel, or this user on it, can't trace.
    CannotTrace {
        /// The obstacle.
        found: String,
        /// What to do about it.
        remedy: Option<String>,
    },
    /// The command to trace can't be run.
    Command {
        /// The exit code that shells use: [`NOT_FOUND`] or [`NOT_EXECUTABLE`].
        code: u8,
        /// Why.
        sentence: String,
    },
    /// There is no room for the output: a full disk, a quota, or a limit on the size of files.
    OutputFull(anyhow::Error),
    /// Something failed while running.
    Runtime(anyhow::Error),
}

impl Failure {
    /// That the output can't be written, for the reason that the system gave.
    #[must_use]
    pub fn of_output(reason: ErrorKind, error: anyhow::Error) -> Self {
        match reason {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
                Self::OutputFull(error)
            }
            _ => Self::Runtime(error),
        }
    }

    /// That tracing is not possible here, and what to do about it.
    #[must_use]
    pub fn cannot_trace(found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::CannotTrace { found: found.into(), remedy: Some(remedy.into()) }
    }

    /// The process's exit code: 1 while running, 2 usage, 3 this kernel or user can't trace, 4 the output is full, or a
    /// command's.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Runtime(_) => 1,
            Self::Usage(_) => 2,
            Self::CannotTrace { .. } => 3,
            Self::OutputFull(_) => 4,
            Self::Command { code, .. } => *code,
        }
    }
}

/// The process's exit code for how it went, after telling stderr about a failure.
#[must_use]
pub(crate) fn report(outcome: Result<ExitCode, Failure>) -> ExitCode {
    match outcome {
        Ok(code) => code,
        Err(failure) => {
            // Where stderr is closed the exit code has to do.
            tell(&failure);
            ExitCode::from(failure.exit_code())
        }
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(sentence) | Self::Command { sentence, .. } => f.write_str(sentence),
            Self::CannotTrace { found, remedy: Some(remedy) } => write!(f, "{found}; {remedy}"),
            Self::CannotTrace { found, remedy: None } => f.write_str(found),
            // `#`: the causes too, on the same line.
            Self::Runtime(error) | Self::OutputFull(error) => write!(f, "{error:#}"),
        }
    }
}

impl std::error::Error for Failure {}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Runtime(error)
    }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn exit_codes_are_those_of_the_interface() {
        assert_eq!(Failure::from(anyhow!("x")).exit_code(), 1);
        assert_eq!(Failure::Usage(String::new()).exit_code(), 2);
        assert_eq!(Failure::cannot_trace("", "").exit_code(), 3);
        assert_eq!(Failure::of_output(ErrorKind::StorageFull, anyhow!("x")).exit_code(), 4);
        assert_eq!(Failure::of_output(ErrorKind::PermissionDenied, anyhow!("x")).exit_code(), 1);
    }

    #[test]
    fn the_remedy_comes_last() {
        assert_eq!(
            Failure::cannot_trace("no BTF; none", "use another").to_string(),
            "no BTF; none; use another"
        );
        let failure = Failure::CannotTrace { found: "no BTF".to_owned(), remedy: None };
        assert_eq!(failure.to_string(), "no BTF");
    }

    #[test]
    fn causes_stay_on_the_line() {
        let failure = Failure::from(anyhow!("map full").context("cannot attach"));
        assert_eq!(failure.to_string(), "cannot attach: map full");
    }
}
