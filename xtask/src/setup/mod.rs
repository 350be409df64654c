//! Installs missing tools. Everything here is quick when none is missing.

pub(crate) mod bpf_toolchain;
pub(crate) mod browser;
pub(crate) mod cargo_tool;
pub(crate) mod kernels;
pub(crate) mod programs;
pub(crate) mod python;
pub(crate) mod qemu;
pub(crate) mod wireshark;

pub(crate) mod apt;
mod linker;
mod modules;
mod sources;
mod toolchain;

use std::thread;

use anyhow::{Context as _, Result};
use apt::{Apt, Packages};
use kernels::{Kernel, Series};

use crate::arch::Arch;

/// What a task is about to do.
#[derive(Debug, Default)]
pub(crate) struct Needs {
    /// For this architecture.
    pub(crate) arch: Arch,
    /// Build the tool.
    pub(crate) build: bool,
    /// Boot guests with these kernels.
    pub(crate) kernels: Vec<Series>,
    /// Look at pages.
    pub(crate) browser: bool,
    /// Check manifests, and look at logs by other programs.
    pub(crate) python: bool,
    /// Read pcapng.
    pub(crate) wireshark: bool,
}

impl Needs {
    /// To build only.
    pub(crate) fn build(arch: Arch) -> Self {
        Self { arch, build: true, ..Self::default() }
    }

    /// To build, and to boot guests with these kernels.
    pub(crate) fn guests(arch: Arch, kernels: Vec<Series>) -> Self {
        Self { kernels, ..Self::build(arch) }
    }

    /// To run all tests, those of guests with these kernels.
    pub(crate) fn tests(arch: Arch, kernels: Vec<Series>) -> Self {
        Self { browser: true, python: true, wireshark: true, ..Self::guests(arch, kernels) }
    }
}

/// Installs what is missing for these needs, and returns the kernels.
pub(crate) fn ensure(needs: &Needs) -> Result<Vec<Kernel>> {
    Ok(ensure_meanwhile(needs, || ())?.0)
}

/// [`ensure`], which fetches files only for guests while `action` runs, which may build.
pub(crate) fn ensure_meanwhile<T>(needs: &Needs, action: impl FnOnce() -> T) -> Result<(Vec<Kernel>, T)> {
    let mut apt = Apt::default();
    let guests = !needs.kernels.is_empty();
    let mut packages = Vec::new();
    if needs.build {
        packages.extend(toolchain::missing_packages(&mut apt)?);
        packages.extend(linker::missing_packages());
        packages.extend(toolchain::missing_packages_of(needs.arch));
    }
    if guests {
        packages.extend(qemu::missing_packages(needs.arch));
    }
    if needs.browser {
        packages.extend(browser::missing_packages(&mut apt)?);
    }
    if needs.python {
        packages.extend(python::missing_packages());
    }
    if needs.wireshark {
        packages.extend(wireshark::missing_packages());
    }
    apt.install(&packages)?;
    if needs.python {
        python::ensure()?;
    }
    // Building keeps the processors busy, the downloads keep the network busy.
    thread::scope(|scope| {
        let fetched = guests.then(|| {
            scope.spawn(move || {
                let arch = needs.arch;
                let mut apt = Packages::of(arch);
                qemu::ensure_busybox(arch, &mut apt)?;
                programs::ensure(arch, programs::STRACE, &mut apt)?;
                programs::ensure(arch, programs::WIREGUARD_TOOLS, &mut apt)?;
                programs::ensure(arch, programs::PROMETHEUS, &mut apt)?;
                programs::ensure(arch, programs::UMOCI, &mut apt)?;
                programs::ensure(arch, programs::CRUN, &mut apt)?;
                for (package, _) in programs::TRACED {
                    programs::ensure(arch, package, &mut apt)?;
                }
                kernels::ensure(arch, &needs.kernels)
            })
        });
        if needs.build {
            toolchain::ensure()?;
            toolchain::ensure_target(needs.arch)?;
            linker::ensure()?;
        }
        let result = action();
        let kernels =
            fetched.map_or(Ok(Vec::new()), |thread| thread.join().expect("fetching doesn't panic"))?;
        Ok((kernels, result))
    })
}

/// The one kernel that was requested.
pub(crate) fn ensure_guest(arch: Arch, kernel: Series) -> Result<Kernel> {
    let mut kernels = ensure(&Needs::guests(arch, vec![kernel]))?;
    kernels.pop().context("setup found no kernel")
}
