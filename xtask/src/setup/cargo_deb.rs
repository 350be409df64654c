//! Installs cargo-deb, which makes Debian packages.

use std::process::Command;

use anyhow::Result;

use crate::{
    paths,
    process::{quietly, step},
};

const VERSION: &str = "3.8.0";

/// Builds cargo-deb if it isn't here.
pub(crate) fn ensure() -> Result<()> {
    let program = paths::tools().join("bin/cargo-deb");
    let output = Command::new(program).arg("--version").output();
    if output.is_ok_and(|output| is_version(&output.stdout)) {
        return Ok(());
    }
    step(&format!("building cargo-deb {VERSION}"), || {
        let mut command = Command::new("cargo");
        command.args(["install", "cargo-deb", "--version", VERSION, "--locked", "--force", "--root"]);
        quietly(command.arg(paths::tools()), "is the network reachable?")
    })?;
    Ok(())
}

fn is_version(printed: &[u8]) -> bool {
    String::from_utf8_lossy(printed).trim() == format!("cargo-deb {VERSION}")
}
