//! Installs kubernetes-validate, which has the schemas of Kubernetes' own objects and checks manifests against them.

use std::{path::PathBuf, process::Command};

use anyhow::Result;

use crate::{
    paths,
    process::{quietly, step, succeeds},
};

/// The first two numbers are those of the Kubernetes whose schemas it takes.
const VERSION: &str = "1.37.0";
/// What makes it a place of its own, apart from the system's Python.
const PYTHON: &str = "python3";

/// The packages to install for it.
pub(crate) fn missing_packages() -> Vec<&'static str> {
    let has_venv = succeeds(Command::new(PYTHON).args(["-c", "import ensurepip, venv"]));
    if has_venv { Vec::new() } else { vec!["python3-venv"] }
}

/// Its program, installed if it isn't here.
pub(crate) fn ensure() -> Result<PathBuf> {
    let directory = paths::tools().join("kubernetes-validate");
    let program = directory.join("bin/kubernetes-validate");
    let output = Command::new(&program).arg("--version").output();
    if output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).trim().ends_with(VERSION)) {
        return Ok(program);
    }
    step(&format!("installing kubernetes-validate {VERSION}"), || {
        quietly(
            Command::new(PYTHON).args(["-m", "venv", "--clear"]).arg(&directory),
            "python3-venv is the package for that",
        )?;
        let mut install = Command::new(directory.join("bin/pip"));
        install.args(["install", "--quiet", "--disable-pip-version-check"]);
        quietly(install.arg(format!("kubernetes-validate=={VERSION}")), "is the network reachable?")
    })?;
    Ok(program)
}
