//! Installs bpf-linker, which turns rustc's bitcode into a BPF object.

use std::{path::PathBuf, process::Command};

use anyhow::Result;

use super::apt::Apt;
use crate::{
    paths,
    process::{quietly, step},
};

/// The LLVM that bpf-linker is built with; it reads bitcode of this version and of older ones.
pub(crate) const LLVM: u32 = 22;

const VERSION: &str = "0.13.0";

/// Needed to build bpf-linker, and at run time for the shared LLVM library.
const PACKAGES: [&str; 3] = ["llvm-22-dev", "libpolly-22-dev", "libzstd-dev"];

/// The packages to install before bpf-linker can be built.
pub(crate) fn missing_packages() -> Vec<&'static str> {
    if is_installed() {
        return Vec::new();
    }
    PACKAGES.into_iter().filter(|package| !Apt::is_installed(package)).collect()
}

/// Builds bpf-linker if it isn't here.
pub(crate) fn ensure() -> Result<()> {
    if is_installed() {
        return Ok(());
    }
    step(&format!("building bpf-linker {VERSION}"), || {
        let mut command = Command::new("cargo");
        // Its work is LLVM's, a library that is there already. What is not optimized is built in a third of the time and links as fast.
        command.args(["install", "bpf-linker", "--version", VERSION, "--locked", "--force", "--debug"]);
        command
            .args(["--no-default-features", "--features", &format!("llvm-{LLVM}"), "--root"])
            .arg(paths::tools());
        command.env("LLVM_PREFIX", format!("/usr/lib/llvm-{LLVM}"));
        quietly(&mut command, &format!("or put a bpf-linker {VERSION} built with LLVM {LLVM} into PATH"))
    })?;
    Ok(())
}

/// Where the build script looks too. It must also run: its LLVM library may have been removed since.
fn is_installed() -> bool {
    [paths::tools().join("bin/bpf-linker"), PathBuf::from("bpf-linker")].iter().any(|program| {
        let output = Command::new(program).arg("--version").output();
        output.is_ok_and(|output| {
            String::from_utf8_lossy(&output.stdout).trim() == format!("bpf-linker {VERSION}")
        })
    })
}
