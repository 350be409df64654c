//! Installs what is missing. Everything here is quick when nothing is.

pub(crate) mod bpf_toolchain;
pub(crate) mod browser;
pub(crate) mod kernels;
pub(crate) mod programs;
pub(crate) mod qemu;

mod apt;
mod linker;
mod modules;
mod sources;
mod toolchain;

use std::thread;

use anyhow::Result;
use apt::Apt;
use kernels::Series;

/// What a task is about to do.
#[derive(Debug, Default)]
pub(crate) struct Needs {
    /// Build the tool.
    pub(crate) build: bool,
    /// Boot guests with these kernels.
    pub(crate) kernels: Vec<Series>,
    /// Look at pages.
    pub(crate) browser: bool,
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
        Self { browser: true, ..Self::guests(kernels) }
    }
}

/// Installs what is missing for these needs.
pub(crate) fn ensure(needs: &Needs) -> Result<()> {
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
    apt.install(&packages)?;
    if needs.build {
        toolchain::ensure()?;
    }
    // Building the linker keeps the processors busy, the downloads keep the network busy.
    thread::scope(|scope| {
        let linker = needs.build.then(|| scope.spawn(linker::ensure));
        if guests {
            qemu::ensure_busybox(&mut apt)?;
            kernels::ensure(&needs.kernels)?;
            programs::ensure(programs::STRACE)?;
        }
        linker.map_or(Ok(()), |linker| linker.join().expect("installing the linker doesn't panic"))
    })
}
