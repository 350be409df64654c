//! Once everything is attached, a run keeps only what its later calls need: then a fault in reading, formatting or writing
//! is worth nothing to whoever can bring it about.

use std::path::Path;

use anyhow::Context as _;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set, set_capabilities,
    set_no_new_privs,
};

use crate::{error::Failure, files::Place};

/// What a run goes on to do that may need a privilege.
pub(crate) struct Later<'a> {
    /// Opens this file anew: when it is rotated, or asked to.
    pub(crate) output: Option<&'a Path>,
    /// Passes signals on to a command, which may have become another user.
    pub(crate) has_command: bool,
}

/// Gives up every capability that isn't needed any more, and any way to get one back. Threads that were made before keep
/// theirs: they end by themselves. `reads` tells whether the kernel side's maps can be read as things are.
///
/// # Errors
/// If the kernel refuses, which it never should.
pub(crate) fn give_up(later: &Later<'_>, reads: impl Fn() -> bool) -> Result<(), Failure> {
    let give_up = || {
        set_no_new_privs(true)?;
        // No kernel with BTF lacks the ambient set (Linux 4.3).
        clear_ambient_capability_set()?;
        let own = capabilities(None)?.permitted;
        let with =
            |effective| CapabilitySets { effective, permitted: own, inheritable: CapabilitySet::empty() };
        set_capabilities(None, with(CapabilitySet::empty()))?;
        let mut kept = CapabilitySet::empty();
        if later.has_command {
            kept |= CapabilitySet::KILL;
        }
        if later.output.is_some_and(|path| !can_be_written(path)) {
            // Somebody else's file or directory, which only root's privilege opens.
            kept |= CapabilitySet::DAC_OVERRIDE;
        }
        if !reads() {
            // Before Linux 5.19 each call of bpf(2) needs it where kernel.unprivileged_bpf_disabled is set.
            kept |= CapabilitySet::BPF;
        }
        let kept = kept & own;
        set_capabilities(
            None,
            CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() },
        )
    };
    Ok(give_up().context("cannot give up privileges")?)
}

/// Whether a file can be opened and replaced with the capabilities in effect.
fn can_be_written(path: &Path) -> bool {
    Place::find(path).is_ok_and(|place| place.is_writable())
}
