//! Installs programs of PyPI in a place of their own, apart from the system's Python: kubernetes-validate, which has the schemas of
//! Kubernetes' own objects, and what docs/after-the-incident.md has recipes for.

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context as _, Result};

use crate::{
    paths,
    process::{quietly, step, succeeds},
};

/// The first two numbers of kubernetes-validate are those of the Kubernetes whose schemas it takes.
const PACKAGES: [&str; 3] = ["kubernetes-validate==1.37.0", "pandas==2.3.3", "duckdb-cli==1.5.6"];
/// What makes the place.
const PYTHON: &str = "python3";

/// Tells tests where the programs are: they may not leave out what needs them.
pub(crate) const TOLD: &str = "NET_LATENCY_TEST_PYTHON";

/// The packages to install for it.
pub(crate) fn missing_packages() -> Vec<&'static str> {
    let has_venv = succeeds(Command::new(PYTHON).args(["-c", "import ensurepip, venv"]));
    if has_venv { Vec::new() } else { vec!["python3-venv"] }
}

fn directory() -> PathBuf {
    paths::tools().join("python")
}

/// The directory of the programs.
pub(crate) fn programs() -> PathBuf {
    directory().join("bin")
}

/// The directory of the programs, which are installed if they aren't there.
pub(crate) fn ensure() -> Result<PathBuf> {
    let (programs, list) = (programs(), directory().join("packages"));
    let wanted = PACKAGES.join("\n");
    // The system's Python may have gone since.
    let runs = succeeds(Command::new(programs.join("python")).arg("--version"));
    if runs && fs::read_to_string(&list).is_ok_and(|there| there == wanted) {
        return Ok(programs);
    }
    step(&format!("installing {}", PACKAGES.join(", ")), || {
        quietly(
            Command::new(PYTHON).args(["-m", "venv", "--clear"]).arg(directory()),
            "python3-venv is the package for that",
        )?;
        let mut install = Command::new(programs.join("pip"));
        install.args(["install", "--quiet", "--disable-pip-version-check"]);
        quietly(install.args(PACKAGES), "is the network reachable?")
    })?;
    fs::write(&list, wanted).with_context(|| format!("can't write {}", list.display()))?;
    Ok(programs)
}
