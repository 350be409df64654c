//! Builds that go through cargo.

use std::{
    env, fs,
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};
use cargo_metadata::Message;
use object::read::elf::{ElfFile64, ProgramHeader as _};

use crate::{
    paths,
    process::{describe, loudly},
};

/// Static programs for guests and for users.
#[derive(Debug)]
pub(crate) struct Built {
    /// The tool.
    pub(crate) tool: PathBuf,
    /// xtask, as a guest's init.
    pub(crate) xtask: PathBuf,
}

/// A cargo command in the workspace.
pub(crate) fn cargo(subcommand: &str) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.arg(subcommand).current_dir(paths::workspace());
    command
}

/// A cargo command whose binaries need no shared library.
fn static_cargo(subcommand: &str) -> Command {
    let mut flags = env::var_os("RUSTFLAGS").unwrap_or_default();
    flags.push(" -Ctarget-feature=+crt-static");
    let mut command = cargo(subcommand);
    command.args(["--release", "--target", paths::TARGET]).env("RUSTFLAGS", flags);
    command
}

/// Builds the tool.
pub(crate) fn tool() -> Result<PathBuf> {
    loudly(static_cargo("build").args(["--package", "net-latency"]), REMEDY)?;
    Ok(release_binary("net-latency"))
}

/// Builds the tool and the guest's init.
pub(crate) fn for_guest() -> Result<Built> {
    // Not in one command with the tool, which would then be built anew for the features of xtask's dependencies.
    let tool = tool()?;
    loudly(static_cargo("build").args(["--package", "xtask"]), REMEDY)?;
    Ok(Built { tool, xtask: release_binary("xtask") })
}

/// Builds the test program that runs in guests.
pub(crate) fn guest_tests() -> Result<PathBuf> {
    let mut command = static_cargo("test");
    command.args(["--package", "net-latency", "--test", "guest", "--no-run"]);
    command.arg("--message-format=json-render-diagnostics").stderr(Stdio::inherit());
    let output = command.output().with_context(|| format!("can't start `{}`", describe(&command)))?;
    if !output.status.success() {
        bail!("`{}` failed ({}): {REMEDY}", describe(&command), output.status);
    }
    for message in Message::parse_stream(output.stdout.as_slice()) {
        if let Message::CompilerArtifact(artifact) = message?
            && artifact.target.name == "guest"
            && artifact.target.is_test()
            && let Some(executable) = artifact.executable
        {
            return Ok(executable.into_std_path_buf());
        }
    }
    bail!("`{}` built no test program", describe(&command))
}

/// Builds the tool for other machines, whose libc may be another.
pub(crate) fn tool_for_others() -> Result<PathBuf> {
    let built = tool()?;
    let bytes = fs::read(&built).with_context(|| format!("can't read {}", built.display()))?;
    if needs_interpreter(&bytes)? {
        bail!("{} is linked dynamically: it would not run on machines with another libc", built.display());
    }
    Ok(built)
}

const REMEDY: &str = "see the compiler's messages above";

fn release_binary(name: &str) -> PathBuf {
    let target =
        env::var_os("CARGO_TARGET_DIR").map_or_else(|| paths::workspace().join("target"), PathBuf::from);
    target.join(paths::TARGET).join("release").join(name)
}

/// Whether an ELF file asks for a dynamic linker.
fn needs_interpreter(bytes: &[u8]) -> Result<bool> {
    let elf: ElfFile64<'_> = ElfFile64::parse(bytes).context("that is no ELF file")?;
    let endian = elf.endian();
    Ok(elf.elf_program_headers().iter().any(|header| header.p_type(endian) == object::elf::PT_INTERP))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_is_linked_dynamically_or_not() {
        let program = fs::read(env::current_exe().unwrap()).unwrap();
        assert_eq!(needs_interpreter(&program).unwrap(), !cfg!(target_feature = "crt-static"));
    }

    #[test]
    fn what_is_no_elf_file_is_an_error() {
        assert!(needs_interpreter(b"#!/bin/sh\n").is_err());
    }
}
