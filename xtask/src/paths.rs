//! Where things are: the workspace, and what xtask keeps below its `target/`.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use crate::arch::Arch;

/// The root of the workspace.
pub(crate) fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a member of the workspace")
}

/// A path below `target/` of the workspace.
fn below_target(path: &str) -> PathBuf {
    workspace().join("target").join(path)
}

/// A path below `target/` for files of an architecture.
fn of(arch: Arch, path: &str) -> PathBuf {
    below_target(&format!("{path}{}", arch.suffix()))
}

/// Programs of this machine, for building and testing, that are kept out of the system.
pub(crate) fn tools() -> PathBuf {
    below_target("tools")
}

/// Programs for guests of this architecture.
pub(crate) fn tools_of(arch: Arch) -> PathBuf {
    of(arch, "tools")
}

/// Kernels and their modules, one directory per series.
pub(crate) fn kernels(arch: Arch) -> PathBuf {
    of(arch, "kernels")
}

/// Initramfs images of running guests.
pub(crate) fn guest() -> PathBuf {
    below_target("guest")
}

/// Where packages for `cargo install` are made, and what they are checked with is built.
pub(crate) fn crates() -> PathBuf {
    below_target("crates")
}

/// The files for users.
pub(crate) fn dist(arch: Arch) -> PathBuf {
    of(arch, "dist")
}

/// What cargo-mutants leaves: its lists, and what each mutant's build and tests printed.
pub(crate) fn mutants() -> PathBuf {
    below_target("mutants")
}

/// Wrong verdicts on incidents.
pub(crate) fn incidents() -> PathBuf {
    below_target("incidents")
}

/// What fuzzing leaves: its build, the inputs that it keeps for each reader, and what it found.
pub(crate) fn fuzz() -> PathBuf {
    below_target("fuzz")
}

/// Removes a folder and all in it, if it is there.
pub(crate) fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.with_context(|| format!("can't remove {}", folder.display())),
    }
}
