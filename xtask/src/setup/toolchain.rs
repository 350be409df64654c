//! Installs the Rust toolchain that builds the kernel side.

use std::{env, path::Path, process::Command};

use anyhow::{Context as _, Result, bail};

use super::{
    apt::Apt,
    bpf_toolchain::{NIGHTLY, OVERRIDE, choose, debian_is_complete},
    linker::LLVM,
};
use crate::{
    arch::Arch,
    process::{quietly, step, succeeds},
};

/// Debian's compiler with the source of its library, which a stable rustup toolchain can't build `core` from.
const DEBIAN_PACKAGES: [&str; 2] = ["rustc-web", "rust-web-src"];

/// The packages to install, if Debian's compiler is what to use here.
pub(crate) fn missing_packages(apt: &mut Apt) -> Result<Vec<&'static str>> {
    if env::var_os(OVERRIDE).is_some() || debian_is_complete() || !Apt::exists() || nightly_is_complete() {
        return Ok(Vec::new());
    }
    for package in DEBIAN_PACKAGES {
        if !apt.has(package)? {
            return Ok(Vec::new());
        }
    }
    Ok(DEBIAN_PACKAGES.to_vec())
}

/// Installs the pinned nightly if that is what to use here, and checks that bpf-linker will understand it.
pub(crate) fn ensure() -> Result<()> {
    let toolchain = choose();
    if toolchain == NIGHTLY && !nightly_is_complete() {
        step(&format!("installing Rust {NIGHTLY}"), || {
            let mut command = Command::new("rustup");
            command.args([
                "toolchain",
                "install",
                NIGHTLY,
                "--profile",
                "minimal",
                "--component",
                "rust-src",
            ]);
            quietly(
                &mut command,
                &format!(
                    "is rustup installed and the network reachable? {OVERRIDE} can name another toolchain"
                ),
            )
        })?;
    }
    let remedy = format!("{OVERRIDE} must name a toolchain known to rustup, or the path of one");
    let version = quietly(
        Command::new("rustup").env("RUSTUP_LOG", "warn").args(["run", &toolchain, "rustc", "-vV"]),
        &remedy,
    )?;
    let llvm = llvm_major(&version)
        .with_context(|| format!("toolchain {toolchain} does not tell its LLVM version"))?;
    if llvm > LLVM {
        bail!(
            "toolchain {toolchain} has LLVM {llvm}, bpf-linker reads up to {LLVM}: set {OVERRIDE} to an older one"
        );
    }
    Ok(())
}

/// The packages to install for linking programs of an architecture.
pub(crate) fn missing_packages_of(arch: Arch) -> Vec<&'static str> {
    let Some(linker) = arch.linker() else { return Vec::new() };
    if succeeds(Command::new(linker).arg("--version")) {
        return Vec::new();
    }
    match arch {
        Arch::X86_64 => vec!["gcc-x86-64-linux-gnu", "libc6-dev-amd64-cross"],
        Arch::Arm64 => vec!["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"],
    }
}

/// Installs Rust's library for an architecture, for the toolchain that builds the workspace.
pub(crate) fn ensure_target(arch: Arch) -> Result<()> {
    let target = arch.target();
    let sysroot = quietly(Command::new("rustc").args(["--print", "sysroot"]), "is Rust installed?")?;
    if arch.is_here() || Path::new(sysroot.trim()).join("lib/rustlib").join(target).exists() {
        return Ok(());
    }
    step(&format!("installing Rust's library for {arch}"), || {
        let remedy = format!("is rustup installed and the network reachable? It installs {target}");
        quietly(Command::new("rustup").args(["target", "add", target]), &remedy)
    })?;
    Ok(())
}

fn nightly_is_complete() -> bool {
    let components =
        Command::new("rustup").args(["component", "list", "--installed", "--toolchain", NIGHTLY]).output();
    components.is_ok_and(|output| {
        output.status.success()
            && String::from_utf8_lossy(&output.stdout).lines().any(|line| line == "rust-src")
    }) && succeeds(Command::new("rustup").args(["run", NIGHTLY, "cargo", "--version"]))
}

fn llvm_major(version: &str) -> Option<u32> {
    let llvm = version.lines().find_map(|line| line.strip_prefix("LLVM version: "))?;
    llvm.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llvm_version_of_rustc() {
        let version = "rustc 1.96.0\nbinary: rustc\nhost: x86_64-unknown-linux-gnu\nLLVM version: 22.1.2\n";
        assert_eq!(llvm_major(version), Some(22));
        assert_eq!(llvm_major("rustc 1.96.0\n"), None);
    }
}
