//! The verdict on a case, and when there is a second try.

use std::fmt;

use anyhow::{Error, Result};

/// A fault in a run of the tool.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) text: String,
    /// Calls that the kernel skipped in that run, as the tool's footer says; `None` where the kernel doesn't count them.
    pub(crate) skipped_calls: Option<u64>,
    /// By kprobe: how often an application took bytes whose packet no program had seen, as the footer says. All that is
    /// looked at began when everything was attached, so that a program was skipped, also where the kernel doesn't count.
    pub(crate) unseen: u64,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Fault {}

/// A case that this kernel has nothing for, and why: neither passed nor failed.
#[derive(Debug)]
pub(crate) struct Skipped(pub(crate) &'static str);

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Skipped {}

/// The verdict on a case: the first try's, unless the footer's counters say that the kernel skipped calls in it. What it
/// skipped explains nearly any fault, so the second try's counts then. There is no third one. What may be missing without
/// a second try is in [`crate::allowance`].
pub(crate) fn judge(name: &str, first: Result<()>, again: impl FnOnce() -> Result<()>) -> Result<()> {
    let Err(error) = first else { return Ok(()) };
    let Some(count) = skipped_calls(&error) else { return Err(error) };
    let reason = format!("{error:#}");
    let reason = reason.lines().next().unwrap_or_default();
    println!("second try: {name}: the kernel skipped {count} calls: {reason}");
    again()
}

/// How many calls the kernel skipped in the run at fault, if any: as it says, or at least.
pub(crate) fn skipped_calls(error: &Error) -> Option<u64> {
    let fault = error.downcast_ref::<Fault>()?;
    Some(fault.skipped_calls.unwrap_or(fault.unseen)).filter(|count| *count > 0)
}
