//! Installs what boots and furnishes a guest, kernels aside.

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context as _, Result};

use super::apt::Packages;
use crate::{
    arch::Arch,
    paths,
    process::{step, succeeds},
};

/// The packages to install for the emulators.
pub(crate) fn missing_packages(arch: Arch) -> Vec<&'static str> {
    let emulators = std::iter::once(arch.machine()).chain(arch.emulator());
    let missing = emulators.filter(|(program, _)| !succeeds(Command::new(program).arg("--version")));
    missing.map(|(_, package)| package).collect()
}

/// The shell and small tools for the guest, in one static binary.
pub(crate) fn busybox(arch: Arch) -> PathBuf {
    paths::tools_of(arch).join("bin/busybox")
}

/// Fetches the static busybox if it isn't here. It is not installed: the system may have another one.
pub(crate) fn ensure_busybox(arch: Arch, apt: &mut Packages) -> Result<()> {
    let target = busybox(arch);
    if target.exists() {
        return Ok(());
    }
    step("fetching busybox for the guest", || {
        let unpacked = paths::tools_of(arch).join("busybox-static");
        apt.unpack(&["busybox-static".to_owned()], &unpacked)?;
        let binary = ["bin/busybox", "usr/bin/busybox"].map(|path| unpacked.join(path));
        let binary = binary.iter().find(|path| path.is_file()).context("busybox-static holds no busybox")?;
        fs::create_dir_all(paths::tools_of(arch).join("bin"))?;
        fs::rename(binary, &target)?;
        Ok(fs::remove_dir_all(&unpacked)?)
    })
}
