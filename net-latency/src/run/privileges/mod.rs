//! Once everything is attached, a run keeps only what its later calls need: then a fault in reading, formatting or writing is worth nothing
//! to an attacker who can bring it about. Capabilities, system calls, and files are restricted.

mod calls;
mod paths;

use std::{fmt, path::Path};

use anyhow::{Context as _, Result};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set, set_capabilities,
    set_no_new_privs,
};

use crate::{error::Failure, files::Place};

/// What a run goes on to do.
#[derive(Clone, Debug, Default)]
pub(crate) struct Later<'a> {
    /// Opens this file anew when it is asked to.
    pub(crate) output: Option<&'a Path>,
    /// Makes, renames and removes files beside this one.
    pub(crate) files: Option<&'a Path>,
    /// Looks up processes, devices, cgroups, pods and the like, and the time zone.
    pub(crate) reads_names: bool,
    /// Passes signals on to a command, which may have become another user.
    pub(crate) has_command: bool,
    /// Answers scrapers.
    pub(crate) answers: bool,
    /// Removes this socket at its end.
    pub(crate) socket: Option<&'a Path>,
    /// Draws on a terminal.
    pub(crate) draws: bool,
    /// Runs a program of the kernel side's that is open, to ask about a socket.
    pub(crate) runs_program: bool,
}

/// What a run can't do any more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Given {
    kept: CapabilitySet,
    calls: bool,
    files: bool,
}

/// Gives up all that isn't needed any more, and any way to get it back. `reads` tells whether the kernel side's maps can be
/// read as things are.
///
/// Threads that were made before keep their capabilities and files, and end by themselves. System calls are restricted for
/// all.
///
/// # Errors
/// If the kernel refuses, which it never should.
pub(crate) fn give_up(later: &Later<'_>, reads: impl Fn() -> bool) -> Result<Given, Failure> {
    let (kept, files) = give_up_in_this_thread(later, reads)?;
    let calls = calls::can_be_filtered();
    if calls {
        calls::restrict(later)?;
    }
    Ok(Given { kept, calls, files })
}

/// [`give_up`] for a thread that is made before everything is attached, except for system calls: those of all threads are restricted later.
///
/// # Errors
/// If the kernel refuses, which it never should.
pub(crate) fn give_up_in_this_thread(
    later: &Later<'_>,
    reads: impl Fn() -> bool,
) -> Result<(CapabilitySet, bool), Failure> {
    set_no_new_privs(true).context("cannot give up privileges")?;
    // Directories may take a capability to be found.
    let files = paths::restrict(later)?;
    Ok((give_up_capabilities(later, reads).context("cannot give up privileges")?, files))
}

/// Returns those that are kept.
fn give_up_capabilities(later: &Later<'_>, reads: impl Fn() -> bool) -> Result<CapabilitySet> {
    // No kernel with BTF lacks the ambient set (Linux 4.3).
    clear_ambient_capability_set()?;
    let own = capabilities(None)?.permitted;
    let with = |effective| CapabilitySets { effective, permitted: own, inheritable: CapabilitySet::empty() };
    set_capabilities(None, with(CapabilitySet::empty()))?;
    let mut kept = CapabilitySet::empty();
    if later.has_command {
        kept |= CapabilitySet::KILL;
    }
    if [later.output, later.files, later.socket].into_iter().flatten().any(|path| !can_be_written(path)) {
        // Another user's file or directory, which only root's privilege opens.
        kept |= CapabilitySet::DAC_OVERRIDE;
    }
    if !reads() {
        // Before Linux 5.19 each call of bpf(2) needs it where kernel.unprivileged_bpf_disabled is set.
        kept |= CapabilitySet::BPF;
    }
    let kept = kept & own;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets)?;
    Ok(kept)
}

/// Whether a file can be opened and replaced with the capabilities in effect.
fn can_be_written(path: &Path) -> bool {
    Place::find(path).is_ok_and(|place| place.is_writable())
}

impl fmt::Display for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.kept.iter_names().map(|(name, _)| format!("CAP_{name}")).collect();
        let kept =
            if names.is_empty() { "none kept".to_owned() } else { format!("{} kept", names.join(" and ")) };
        let restricted =
            |is_so| if is_so { "restricted" } else { "not restricted, which this kernel can't do" };
        write!(
            f,
            "capabilities: {kept}; system calls (seccomp): {}; files (Landlock): {}",
            restricted(self.calls),
            restricted(self.files)
        )
    }
}

#[cfg(test)]
mod tests {
    use std::{
        env,
        process::{Command, Output},
    };

    use super::*;

    /// Which part of a test a process does.
    pub(super) const PART: &str = "NET_LATENCY_TEST_PART";

    /// Has a test of that module done again, in part, by a process of its own: what that gives up stays its own affair.
    pub(super) fn again(module: &str, test: &str, part: &str) -> Output {
        let (_, module) = module.split_once("::").expect("a crate");
        let mut program = Command::new(env::current_exe().expect("known"));
        program.args([&format!("{module}::{test}"), "--exact", "--nocapture", "--test-threads=1"]);
        program.env(PART, part).output().expect("it can be run")
    }

    #[test]
    fn what_was_given_up_is_told() {
        let all = Given { kept: CapabilitySet::empty(), calls: true, files: true };
        assert_eq!(
            all.to_string(),
            "capabilities: none kept; system calls (seccomp): restricted; files (Landlock): restricted"
        );
        let less = Given { kept: CapabilitySet::BPF | CapabilitySet::KILL, calls: true, files: false };
        assert_eq!(
            less.to_string(),
            "capabilities: CAP_KILL and CAP_BPF kept; system calls (seccomp): restricted; files (Landlock): not \
             restricted, which this kernel can't do"
        );
    }
}
