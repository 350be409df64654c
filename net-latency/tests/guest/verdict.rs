//! The verdict on a case, and when there is a second try.

use std::fmt;

use anyhow::{Error, Result};

/// What is wrong with a run of the tool.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) text: String,
    /// Calls that the kernel skipped in that run, as the tool's footer says; `None` where the kernel doesn't count them.
    pub(crate) skipped_calls: Option<u64>,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Fault {}

/// The verdict on a case: the first try's, unless the kernel skipped calls in it and says so. What it skipped explains
/// nearly any fault, so the second try's counts then. There is no third one, and none on a kernel that doesn't count: what
/// may be missing there is in [`crate::allowance`].
pub(crate) fn judge(name: &str, first: Result<()>, again: impl FnOnce() -> Result<()>) -> Result<()> {
    let Err(error) = first else { return Ok(()) };
    let Some(count) = skipped_calls(&error) else { return Err(error) };
    let reason = format!("{error:#}");
    let reason = reason.lines().next().unwrap_or_default();
    println!("second try: {name}: the kernel skipped {count} calls: {reason}");
    again()
}

/// How many calls the kernel says that it skipped in the run at fault, if any.
pub(crate) fn skipped_calls(error: &Error) -> Option<u64> {
    error.downcast_ref::<Fault>()?.skipped_calls.filter(|count| *count > 0)
}
