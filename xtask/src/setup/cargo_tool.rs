//! Builds subcommands of cargo that not every task needs.

use std::{path::PathBuf, process::Command};

use anyhow::Result;

use crate::{
    paths,
    process::{quietly, step},
};

/// One of them, of the version that is known to do what we need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CargoTool {
    name: &'static str,
    version: &'static str,
    /// What makes it print name and version.
    ask: &'static [&'static str],
}

/// Makes Debian packages.
pub(crate) const DEB: CargoTool = CargoTool { name: "cargo-deb", version: "3.8.0", ask: &["--version"] };
/// Makes mutants and tests them.
pub(crate) const MUTANTS: CargoTool =
    CargoTool { name: "cargo-mutants", version: "27.1.0", ask: &["mutants", "--version"] };

impl CargoTool {
    /// Its program, built if it isn't here.
    pub(crate) fn ensure(self) -> Result<PathBuf> {
        let Self { name, version, ask } = self;
        let program = paths::tools().join("bin").join(name);
        let output = Command::new(&program).args(ask).output();
        if output.is_ok_and(|output| self.is_printed(&output.stdout)) {
            return Ok(program);
        }
        step(&format!("building {name} {version}"), || {
            let mut command = Command::new("cargo");
            command.args(["install", name, "--version", version, "--locked", "--force", "--root"]);
            quietly(command.arg(paths::tools()), "is the network reachable?")
        })?;
        Ok(program)
    }

    fn is_printed(self, output: &[u8]) -> bool {
        String::from_utf8_lossy(output).trim() == format!("{} {}", self.name, self.version)
    }
}
