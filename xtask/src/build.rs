//! Builds that go through cargo.

use std::{
    env, fs,
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};
use cargo_metadata::{Artifact, Message};
use object::read::elf::{ElfFile64, ProgramHeader as _};

use crate::{
    arch::Arch,
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
fn static_cargo(subcommand: &str, profile: &str, arch: Arch) -> Command {
    let mut flags = env::var_os("RUSTFLAGS").unwrap_or_default();
    flags.push(" -Ctarget-feature=+crt-static");
    let mut command = cargo(subcommand);
    command.args(["--profile", profile, "--target", arch.target()]);
    if let Some(linker) = arch.linker() {
        let target = arch.target().to_uppercase().replace('-', "_");
        command.env(format!("CARGO_TARGET_{target}_LINKER"), linker);
    }
    if profile == RELEASE {
        // For the same bytes wherever it is built. Cargo's identifiers of packages don't depend on these flags.
        command.arg("--locked");
        for (place, name) in [(paths::workspace().to_owned(), "/net-latency"), (cargo_home(), "/cargo")] {
            flags.push(" --remap-path-prefix=");
            flags.push(place);
            flags.push(format!("={name}"));
        }
    }
    command.env("RUSTFLAGS", flags);
    command
}

/// Where cargo keeps the sources of packages.
fn cargo_home() -> PathBuf {
    let home = || PathBuf::from(env::var_os("HOME").unwrap_or_else(|| "/root".into())).join(".cargo");
    env::var_os("CARGO_HOME").map_or_else(home, PathBuf::from)
}

/// What users get.
const RELEASE: &str = "release";
/// The profile for tests only: quick to build.
const QUICK: &str = "quick";
/// Net-latency's kernel side can't be compiled for this machine but for its library.
pub(crate) const WORKSPACE: [&str; 3] = ["--workspace", "--exclude", "net-latency-ebpf"];

/// A cargo command of a test run. All of them have the same profile, target and flags, and all that build have the same
/// packages, whose dependencies have the same features then: nothing is built twice.
pub(crate) fn quick_cargo(subcommand: &str) -> Command {
    static_cargo(subcommand, QUICK, Arch::default())
}

/// What makes [`quick_cargo`] build all that a test run takes.
pub(crate) const ALL_PROGRAMS: [&str; 2] = ["--bins", "--tests"];

/// Builds the tool.
pub(crate) fn tool(arch: Arch) -> Result<PathBuf> {
    loudly(static_cargo("build", RELEASE, arch).args(["--package", "net-latency"]), REMEDY)?;
    Ok(release_binary("net-latency", arch))
}

/// Builds the tool and the guest's init.
pub(crate) fn for_guest(arch: Arch) -> Result<Built> {
    // Not in one command with the tool, which would then be built anew for the features of xtask's dependencies.
    let tool = tool(arch)?;
    loudly(static_cargo("build", RELEASE, arch).args(["--package", "xtask"]), REMEDY)?;
    Ok(Built { tool, xtask: release_binary("xtask", arch) })
}

/// Builds the test program that runs in guests, for the bench.
pub(crate) fn guest_tests(arch: Arch) -> Result<PathBuf> {
    let mut command = static_cargo("test", RELEASE, arch);
    command.args(["--package", "net-latency", "--test", "guest", "--no-run"]);
    programs(&mut command)?.find("guest", true)
}

/// The test that counts allocations, of the tool as users have it.
pub(crate) fn allocations() -> Command {
    let mut command = static_cargo("test", RELEASE, Arch::default());
    command.args(["--package", "net-latency", "--test", "allocations"]);
    command
}

/// Builds the unit tests of the user side with libFuzzer, and with what that needs to see which code an input reaches: what cargo-fuzz
/// does, without the parts of it that take a nightly compiler.
pub(crate) fn for_fuzzing(library: &str) -> Result<PathBuf> {
    const COVERAGE: &str = "--cfg fuzzing -Cpasses=sancov-module \
        -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
        -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares";
    let mut command = cargo("test");
    command.args([
        "--profile",
        QUICK,
        "--target",
        Arch::X86_64.target(),
        "--package",
        "net-latency",
        "--lib",
    ]);
    command.arg("--no-run").arg("--target-dir").arg(paths::fuzz().join("build"));
    command.env("RUSTFLAGS", format!("{COVERAGE} -Clink-arg={library} -Clink-arg=-lstdc++"));
    programs(&mut command)?.find("net_latency", true)
}

/// Builds all programs of a test run; returns those of guests: the tool, the init, and the test program.
pub(crate) fn for_tests() -> Result<(Built, PathBuf)> {
    guest_programs(quick_cargo("build").args(WORKSPACE).args(ALL_PROGRAMS))
}

/// Builds those of guests alone, for an architecture whose programs this machine doesn't run. They are not optimized: in the daily
/// run the build takes longer than the guests.
pub(crate) fn for_tests_elsewhere(arch: Arch) -> Result<(Built, PathBuf)> {
    let mut command = static_cargo("build", QUICK, arch);
    command.args(["--config", "profile.quick.opt-level=0"]);
    guest_programs(command.args([
        "--package",
        "net-latency",
        "--package",
        "xtask",
        "--bins",
        "--test",
        "guest",
    ]))
}

/// Runs a build, and returns the programs for guests.
fn guest_programs(command: &mut Command) -> Result<(Built, PathBuf)> {
    let built = programs(command)?;
    let guest = Built { tool: built.find("net-latency", false)?, xtask: built.find("xtask", false)? };
    Ok((guest, built.find("guest", true)?))
}

/// Builds the kernel side's objects for an architecture, which are the same in all profiles; returns their folder.
pub(crate) fn objects(arch: Arch) -> Result<PathBuf> {
    let messages = messages(static_cargo("check", QUICK, arch).args(["--package", "net-latency"]))?;
    let out = messages.into_iter().find_map(|message| match message {
        // Nothing else in the workspace has a build script.
        Message::BuildScriptExecuted(script) if script.package_id.repr.starts_with("path+") => {
            Some(script.out_dir)
        }
        _ => None,
    });
    Ok(out.context("cargo names no folder of the build script")?.into_std_path_buf())
}

/// What cargo has built.
struct Programs(Vec<Artifact>);

fn programs(command: &mut Command) -> Result<Programs> {
    let artifacts = messages(command)?.into_iter().filter_map(|message| match message {
        Message::CompilerArtifact(artifact) => Some(artifact),
        _ => None,
    });
    Ok(Programs(artifacts.collect()))
}

/// Runs a build, and returns what cargo says of it.
fn messages(command: &mut Command) -> Result<Vec<Message>> {
    command.arg("--message-format=json-render-diagnostics").stderr(Stdio::inherit());
    let output = command.output().with_context(|| format!("can't start `{}`", describe(command)))?;
    if !output.status.success() {
        bail!("`{}` failed ({}): {REMEDY}", describe(command), output.status);
    }
    Ok(Message::parse_stream(output.stdout.as_slice()).collect::<Result<_, _>>()?)
}

impl Programs {
    fn find(&self, name: &str, is_test: bool) -> Result<PathBuf> {
        let is_it = |artifact: &&Artifact| artifact.target.name == name && artifact.profile.test == is_test;
        let executable = |artifact: &Artifact| artifact.executable.clone();
        let found = self.0.iter().filter(is_it).find_map(executable);
        Ok(found.with_context(|| format!("cargo built no program {name}"))?.into_std_path_buf())
    }
}

/// Builds the tool for other machines, whose libc may be another.
pub(crate) fn tool_for_others(arch: Arch) -> Result<PathBuf> {
    let built = tool(arch)?;
    let bytes = fs::read(&built).with_context(|| format!("can't read {}", built.display()))?;
    if needs_interpreter(&bytes)? {
        bail!("{} is linked dynamically: it would not run on machines with another libc", built.display());
    }
    Ok(built)
}

const REMEDY: &str = "see the compiler's messages above";

fn release_binary(name: &str, arch: Arch) -> PathBuf {
    let target =
        env::var_os("CARGO_TARGET_DIR").map_or_else(|| paths::workspace().join("target"), PathBuf::from);
    target.join(arch.target()).join(RELEASE).join(name)
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
