//! Installs what boots and furnishes a guest, kernels aside.

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context as _, Result};

use super::apt::Apt;
use crate::{
    paths,
    process::{step, succeeds},
};

/// The emulator.
pub(crate) const QEMU: &str = "qemu-system-x86_64";

/// The packages to install for the emulator.
pub(crate) fn missing_packages() -> Vec<&'static str> {
    if succeeds(Command::new(QEMU).arg("--version")) { Vec::new() } else { vec!["qemu-system-x86"] }
}

/// The shell and small tools for the guest, in one static binary.
pub(crate) fn busybox() -> PathBuf {
    paths::tools().join("bin/busybox")
}

/// Fetches the static busybox if it isn't here. It is not installed: the system may have another one.
pub(crate) fn ensure_busybox(apt: &mut Apt) -> Result<()> {
    if busybox().exists() {
        return Ok(());
    }
    step("fetching busybox for the guest", || {
        let unpacked = paths::tools().join("busybox-static");
        apt.unpack(&["busybox-static".to_owned()], &unpacked)?;
        let binary = ["bin/busybox", "usr/bin/busybox"].map(|path| unpacked.join(path));
        let binary = binary.iter().find(|path| path.is_file()).context("busybox-static holds no busybox")?;
        fs::create_dir_all(paths::tools().join("bin"))?;
        fs::rename(binary, busybox())?;
        Ok(fs::remove_dir_all(&unpacked)?)
    })
}
