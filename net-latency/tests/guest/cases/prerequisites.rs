//! Users and kernels that can't trace: exit code 3 and one sentence that says what to do.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use nix::mount::{MsFlags, mount};

use super::Case;
use crate::{
    confine,
    leftovers::Kernel,
    tool::{Backend, run},
};

/// The one case that only kprobes can show.
pub(crate) const NO_KPROBES: &str = "no_kprobes";

pub(crate) const CASES: &[Case] = &[
    ("not_root", |backend| refused(Some(confine::NOBODY), backend, &["root", "sudo", "CAP_"])),
    ("no_capabilities", |backend| {
        refused(Some(confine::NO_CAPABILITIES), backend, &["CAP_BPF", "CAP_PERFMON"])
    }),
    ("no_cap_bpf", |backend| refused(Some(confine::NO_BPF), backend, &["CAP_BPF"])),
    ("no_cap_perfmon", |backend| refused(Some(confine::NO_PERFMON), backend, &["CAP_PERFMON"])),
    ("no_btf", |backend| refused(Some(confine::NO_BTF), backend, &["BTF"])),
    (NO_KPROBES, |backend| refused(Some(confine::NO_KPROBES), backend, &["kprobe"])),
];

/// Can't be undone, so it is the last of all.
pub(crate) const LOCKDOWN: (&str, fn() -> Result<()>) = ("lockdown", lockdown);

fn lockdown() -> Result<()> {
    let file = Path::new("/sys/kernel/security/lockdown");
    if !file.exists() {
        let none: Option<&str> = None;
        mount(Some("securityfs"), "/sys/kernel/security", Some("securityfs"), MsFlags::empty(), none)
            .context("mounting securityfs")?;
    }
    fs::write(file, "confidentiality").context("this kernel has no lockdown")?;
    for backend in Backend::tested() {
        // Without a look at what is left: lockdown hides the kernel's lists from this test too.
        expect_refusal(None, backend, &["lockdown", "locked down"])?;
    }
    Ok(())
}

/// The tool must refuse, as [`expect_refusal`] says, and leave nothing in the kernel.
fn refused(confinement: Option<&str>, backend: Backend, words: &[&str]) -> Result<()> {
    let before = Kernel::now()?;
    expect_refusal(confinement, backend, words)?;
    before.expect_restored()
}

/// The tool must end with 3 and one sentence that has one of `words`.
fn expect_refusal(confinement: Option<&str>, backend: Backend, words: &[&str]) -> Result<()> {
    let refusal = run(confinement, &["--backend", &backend.to_string(), "--duration", "1s"])?;
    let said = &refusal.stderr;
    ensure!(refusal.code == Some(3), "exit code {:?}, not 3; it said:\n{said}", refusal.code);
    ensure!(refusal.stdout.is_empty(), "lines from a tool that can't trace:\n{}", refusal.stdout);
    expect_sentence(said)?;
    ensure!(words.iter().any(|word| said.contains(word)), "none of {words:?} in: {said}");
    Ok(())
}

/// One line, and more than a word.
pub(crate) fn expect_sentence(said: &str) -> Result<()> {
    ensure!(said.lines().count() == 1 && said.len() > 10, "not exactly one sentence:\n{said}");
    Ok(())
}
