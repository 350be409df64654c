//! Users and kernels that can't trace: exit code 3 and one sentence that says what to do.

use std::{fs, io::ErrorKind, path::Path};

use anyhow::{Context as _, Result, bail, ensure};
use nix::mount::{MsFlags, mount};

use super::Case;
use crate::{
    confine,
    leftovers::Kernel,
    tool::{Backend, run},
    verdict::Skipped,
};

/// The cases that only kprobes can show.
pub(crate) const OF_KPROBES: [&str; 2] = ["no_kprobes", "kprobes_off"];

pub(crate) const CASES: &[Case] = &[
    ("not_root", |backend| refused(Some(confine::NOBODY), backend, &["root", "sudo", "CAP_"])),
    ("no_capabilities", |backend| {
        refused(Some(confine::NO_CAPABILITIES), backend, &["CAP_BPF", "CAP_PERFMON"])
    }),
    ("no_cap_bpf", |backend| refused(Some(confine::NO_BPF), backend, &["CAP_BPF"])),
    ("no_cap_perfmon", |backend| refused(Some(confine::NO_PERFMON), backend, &["CAP_PERFMON"])),
    ("no_btf", |backend| refused(Some(confine::NO_BTF), backend, &["BTF"])),
    ("no_kprobes", |backend| refused(Some(confine::NO_KPROBES), backend, &["kprobe"])),
    ("no_proc", |backend| refused(Some(confine::NO_PROC), backend, &["mount -t proc proc /proc"])),
    ("few_files", |backend| refused(Some(confine::FEW_FILES), backend, &["ulimit -n"])),
    ("kprobes_off", |backend| switched_off("/sys/kernel/debug/kprobes/enabled", backend)),
    ("ftrace_off", |backend| switched_off("/proc/sys/kernel/ftrace_enabled", backend)),
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
        // Without a look at leftovers: lockdown hides the kernel's lists from this test too.
        expect_refusal(None, backend, &["lockdown", "locked down"])?;
    }
    Ok(())
}

/// With the switch off the kernel lets everything attach and calls nothing: a tool that traced would see an idle
/// machine, however busy it is.
fn switched_off(switch: &str, backend: Backend) -> Result<()> {
    let before = Kernel::now()?;
    match fs::write(switch, "0") {
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            bail!(Skipped("this kernel has no such switch"));
        }
        written => written.with_context(|| format!("switching off {switch}"))?,
    }
    let outcome = expect_refusal(None, backend, &["switched off"]);
    fs::write(switch, "1").with_context(|| format!("switching on {switch}"))?;
    outcome?;
    before.expect_restored()
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
