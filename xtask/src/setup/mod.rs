//! Installs what is missing. Everything here is quick when nothing is.

pub(crate) mod bpf_toolchain;
pub(crate) mod browser;
pub(crate) mod cargo_tool;
pub(crate) mod kernels;
pub(crate) mod programs;
pub(crate) mod qemu;
pub(crate) mod validator;
pub(crate) mod wireshark;

mod apt;
mod linker;
mod modules;
mod sources;
mod toolchain;

use std::thread;

use anyhow::{Context as _, Result};
use apt::Apt;
use kernels::{Kernel, Series};

/// What a task is about to do.
#[derive(Debug, Default)]
pub(crate) struct Needs {
    /// Build the tool.
    pub(crate) build: bool,
    /// Boot guests with these kernels.
    pub(crate) kernels: Vec<Series>,
    /// Look at pages.
    pub(crate) browser: bool,
    /// Check manifests.
    pub(crate) validator: bool,
    /// Read pcapng.
    pub(crate) wireshark: bool,
}

impl Needs {
    /// To build only.
    pub(crate) fn build() -> Self {
        Self { build: true, ..Self::default() }
    }

    /// To build, and to boot guests with these kernels.
    pub(crate) fn guests(kernels: Vec<Series>) -> Self {
        Self { build: true, kernels, ..Self::default() }
    }

    /// To run all tests, those of guests with these kernels.
    pub(crate) fn tests(kernels: Vec<Series>) -> Self {
        Self { browser: true, validator: true, wireshark: true, ..Self::guests(kernels) }
    }
}

/// Installs what is missing for these needs, and returns the kernels.
pub(crate) fn ensure(needs: &Needs) -> Result<Vec<Kernel>> {
    Ok(ensure_meanwhile(needs, || ())?.0)
}

/// The same; what is only for guests is fetched while `action` runs, which may build.
pub(crate) fn ensure_meanwhile<T>(needs: &Needs, action: impl FnOnce() -> T) -> Result<(Vec<Kernel>, T)> {
    let mut apt = Apt::default();
    let guests = !needs.kernels.is_empty();
    let mut packages = Vec::new();
    if needs.build {
        packages.extend(toolchain::missing_packages(&mut apt)?);
        packages.extend(linker::missing_packages());
    }
    if guests {
        packages.extend(qemu::missing_packages());
    }
    if needs.browser {
        packages.extend(browser::missing_packages(&mut apt)?);
    }
    if needs.validator {
        packages.extend(validator::missing_packages());
    }
    if needs.wireshark {
        packages.extend(wireshark::missing_packages());
    }
    apt.install(&packages)?;
    if needs.validator {
        validator::ensure()?;
    }
    // Building keeps the processors busy, the downloads keep the network busy.
    thread::scope(|scope| {
        let fetched = guests.then(|| {
            scope.spawn(move || {
                qemu::ensure_busybox(&mut apt)?;
                programs::ensure(programs::STRACE)?;
                programs::ensure(programs::WIREGUARD_TOOLS)?;
                programs::ensure(programs::PROMETHEUS)?;
                programs::ensure(programs::UMOCI)?;
                programs::ensure(programs::CRUN)?;
                for (package, _) in programs::TRACED {
                    programs::ensure(package)?;
                }
                kernels::ensure(&needs.kernels)
            })
        });
        if needs.build {
            toolchain::ensure()?;
            linker::ensure()?;
        }
        let result = action();
        let kernels =
            fetched.map_or(Ok(Vec::new()), |thread| thread.join().expect("fetching doesn't panic"))?;
        Ok((kernels, result))
    })
}

/// The one kernel that was asked for.
pub(crate) fn ensure_guest(kernel: Series) -> Result<Kernel> {
    let mut kernels = ensure(&Needs::guests(vec![kernel]))?;
    kernels.pop().context("setup found no kernel")
}
