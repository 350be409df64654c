//! The manifests for Kubernetes, checked by a published validator with Kubernetes' own schemas.

use std::{fs, process::Command};

use anyhow::{Context as _, Result, ensure};

use crate::{paths, process::quietly, setup::python};

/// Manifests for programs beside Kubernetes, whose kinds it does not know: kustomize, and the Prometheus operator.
const OF_OTHERS: [&str; 2] = ["kustomization.yaml", "servicemonitor.yaml"];

/// Has all manifests checked; a field that the schemas don't have is an error.
pub(super) fn check() -> Result<()> {
    let directory = paths::workspace().join("contrib/kubernetes");
    let mut names = Vec::new();
    for entry in fs::read_dir(&directory).with_context(|| format!("can't read {}", directory.display()))? {
        let name = entry?.file_name().into_string().ok().context("a name that is no text")?;
        if name.ends_with(".yaml") && !OF_OTHERS.contains(&name.as_str()) {
            names.push(name);
        }
    }
    ensure!(!names.is_empty(), "there are no manifests");
    let mut validate = Command::new(python::ensure()?.join("kubernetes-validate"));
    validate.arg("--strict").args(&names).current_dir(&directory);
    let said = quietly(&mut validate, "see what it says above")?;
    // What it has no schema for is only a warning there.
    for name in &names {
        ensure!(said.contains(&format!("INFO {name} passed ")), "{name} was not checked: {said}");
    }
    Ok(())
}
