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
use clap::ValueEnum as _;
use kernels::{Kernel, Series};

use crate::arch::Arch;

/// What a task is about to do.
#[derive(Debug, Default)]
pub(crate) struct Needs {
    /// Build the tool for these architectures.
    pub(crate) build: Vec<Arch>,
    /// Boot guests with these kernels.
    pub(crate) kernels: Vec<(Arch, Series)>,
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
        Self { build: vec![arch], ..Self::default() }
    }

    /// To build, and to boot guests with these kernels.
    pub(crate) fn guests(arch: Arch, kernels: impl IntoIterator<Item = Series>) -> Self {
        Self { kernels: kernels.into_iter().map(|series| (arch, series)).collect(), ..Self::build(arch) }
    }

    /// What tests on this machine take besides.
    pub(crate) fn with_tests_here(self) -> Self {
        Self { browser: true, python: true, wireshark: true, ..self }
    }
}

/// Installs what is missing for these needs, and returns the kernels.
pub(crate) fn ensure(needs: &Needs) -> Result<Vec<Kernel>> {
    Ok(ensure_meanwhile(needs, || ())?.0)
}

/// [`ensure`], which fetches files only for guests while `action` runs, which may build.
pub(crate) fn ensure_meanwhile<T>(needs: &Needs, action: impl FnOnce() -> T) -> Result<(Vec<Kernel>, T)> {
    let mut apt = Apt::default();
    let wanted = Arch::value_variants().iter().map(|&arch| {
        let of_it = needs.kernels.iter().filter(|(its, _)| *its == arch);
        (arch, of_it.map(|(_, series)| *series).collect::<Vec<_>>())
    });
    let wanted: Vec<_> = wanted.filter(|(_, series)| !series.is_empty()).collect();
    let mut packages = Vec::new();
    if !needs.build.is_empty() {
        packages.extend(toolchain::missing_packages(&mut apt)?);
        packages.extend(linker::missing_packages());
    }
    for &arch in &needs.build {
        packages.extend(toolchain::missing_packages_of(arch));
    }
    for (arch, _) in &wanted {
        packages.extend(qemu::missing_packages(*arch));
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
        let fetched = scope.spawn(|| {
            let mut kernels = Vec::new();
            for (arch, series) in &wanted {
                fetch_programs(*arch)?;
                kernels.extend(kernels::ensure(*arch, series)?);
            }
            Ok(kernels)
        });
        if !needs.build.is_empty() {
            toolchain::ensure()?;
            linker::ensure()?;
        }
        for &arch in &needs.build {
            toolchain::ensure_target(arch)?;
        }
        let result = action();
        let kernels: Result<_> = fetched.join().expect("fetching doesn't panic");
        Ok((kernels?, result))
    })
}

/// Fetches what guests of an architecture have besides the tool.
fn fetch_programs(arch: Arch) -> Result<()> {
    use programs::{CRUN, PROMETHEUS, STRACE, TRACED, UMOCI, WIREGUARD_TOOLS};
    let mut apt = Packages::of(arch);
    qemu::ensure_busybox(arch, &mut apt)?;
    let of_tests = TRACED.into_iter().map(|(package, _)| package);
    for package in [STRACE, WIREGUARD_TOOLS, PROMETHEUS, UMOCI, CRUN].into_iter().chain(of_tests) {
        programs::ensure(arch, package, &mut apt)?;
    }
    Ok(())
}

/// The one kernel that was requested.
pub(crate) fn ensure_guest(arch: Arch, kernel: Series) -> Result<Kernel> {
    let mut kernels = ensure(&Needs::guests(arch, [kernel]))?;
    kernels.pop().context("setup found no kernel")
}
