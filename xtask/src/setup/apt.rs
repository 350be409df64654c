//! Packages of this system, and packages that are only unpacked.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use crate::{
    arch::Arch,
    paths,
    process::{as_root, quietly, step, succeeds},
    setup::sources::Mirrors,
};

/// How long another apt may have the lock of the lists: for that one apt doesn't wait itself, whatever `DPkg::Lock::Timeout` says.
const LISTS_PATIENCE: Duration = Duration::from_secs(300);
/// The release whose programs guests of another architecture have.
const OF_OTHERS: &str = "bookworm";
/// In its message then.
const LISTS_LOCK: &str = "Could not get lock /var/lib/apt/lists/lock";

/// Runs what needs the lists' lock, once another one has let it go.
fn when_lists_are_free<T>(patience: Duration, mut update: impl FnMut() -> Result<T>) -> Result<T> {
    const PAUSE: Duration = Duration::from_millis(500);
    let start = Instant::now();
    loop {
        match update() {
            Err(error) if format!("{error:#}").contains(LISTS_LOCK) && start.elapsed() < patience => {
                sleep(PAUSE);
            }
            result => return result,
        }
    }
}

/// The system's own apt.
#[derive(Debug, Default)]
pub(crate) struct Apt {
    updated: bool,
}

impl Apt {
    /// Whether this system has apt at all.
    pub(crate) fn exists() -> bool {
        succeeds(Command::new("apt-get").arg("--version"))
    }

    /// Whether a package is installed.
    pub(crate) fn is_installed(package: &str) -> bool {
        let query = Command::new("dpkg-query").args(["-W", "-f=${db:Status-Status}", package]).output();
        query.is_ok_and(|output| output.stdout == b"installed")
    }

    /// Whether a package could be installed.
    pub(crate) fn has(&mut self, package: &str) -> Result<bool> {
        self.update()?;
        Ok(succeeds(Command::new("apt-cache").args(["show", "--no-all-versions", package])))
    }

    /// Installs packages.
    pub(crate) fn install(&mut self, packages: &[&str]) -> Result<()> {
        if packages.is_empty() {
            return Ok(());
        }
        if !Self::exists() {
            bail!(
                "this system has no apt; install what these Debian packages hold by other means: {}",
                packages.join(", ")
            );
        }
        self.update()?;
        step(&format!("installing {}", packages.join(", ")), || {
            let mut command = as_root("env");
            command.args([
                "DEBIAN_FRONTEND=noninteractive",
                "apt-get",
                "-q",
                "-y",
                "-o",
                "DPkg::Lock::Timeout=300",
            ]);
            command.args(["install", "--no-install-recommends"]).args(packages);
            quietly(
                &mut command,
                &format!("install these packages by hand, then run again: {}", packages.join(" ")),
            )
        })?;
        Ok(())
    }

    /// A package and all those without which it does not work.
    pub(crate) fn with_dependencies(&mut self, package: &str) -> Result<Vec<String>> {
        self.update()?;
        dependencies(Command::new("apt-cache"), package)
    }

    /// Downloads packages of this system's sources into a directory and unpacks them there.
    pub(crate) fn unpack(&mut self, packages: &[String], directory: &Path) -> Result<()> {
        if !Self::exists() {
            bail!("this system has no apt to download {} with", packages.join(", "));
        }
        self.update()?;
        fresh(directory)?;
        let mut command = Command::new("apt-get");
        command.args(["-q", "-o", "APT::Sandbox::User=root", "download"]).args(packages);
        command.current_dir(directory);
        quietly(&mut command, "is the network reachable, and does apt-get update succeed?")?;
        extract(&debs(directory)?, directory)
    }

    fn update(&mut self) -> Result<()> {
        if !self.updated {
            step("refreshing the package lists", || {
                when_lists_are_free(LISTS_PATIENCE, || {
                    let mut command = as_root("env");
                    command.args(["LC_ALL=C", "apt-get", "-q", "update"]);
                    quietly(&mut command, "is the network reachable, and are the apt sources right?")
                })
            })?;
            self.updated = true;
        }
        Ok(())
    }
}

/// An apt with sources, lists and caches of its own: it sees all Debian releases and leaves the system alone.
#[derive(Debug)]
pub(crate) struct PrivateApt {
    directory: PathBuf,
    arch: Arch,
}

impl PrivateApt {
    /// Sets it up in a directory and fetches the lists of these suites.
    pub(crate) fn new(directory: PathBuf, arch: Arch, suites: &[&str]) -> Result<Self> {
        if !Apt::exists() {
            bail!(
                "this system has no apt to download Debian's kernels with; use a Debian or Ubuntu machine or container"
            );
        }
        fresh(&directory)?;
        for part in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(directory.join(part))
                .context("can't create the directories of a private apt")?;
        }
        fs::write(directory.join("sources.list"), Mirrors::of_this_machine()?.list(arch, suites))?;
        let apt = Self { directory, arch };
        quietly(
            apt.command("apt-get").arg("update"),
            "is the network reachable, and does the mirror that apt uses carry all Debian releases?",
        )?;
        Ok(apt)
    }

    /// The names of packages that match a pattern.
    pub(crate) fn search(&self, pattern: &str) -> Result<Vec<String>> {
        let found = quietly(self.command("apt-cache").args(["search", "--names-only", pattern]), "")?;
        Ok(found.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect())
    }

    /// Downloads packages into a new directory and returns their files.
    pub(crate) fn download(&self, packages: &[String], directory: &Path) -> Result<Vec<PathBuf>> {
        fresh(directory)?;
        let mut command = self.command("apt-get");
        quietly(command.arg("download").args(packages).current_dir(directory), "is the network reachable?")?;
        debs(directory)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let mut option = |name: &str, value: &str| {
            command.arg("-o").arg(format!("{name}={value}"));
        };
        let inside = |part: &str| self.directory.join(part).display().to_string();
        option("Dir::Etc::sourcelist", &inside("sources.list"));
        option("Dir::Etc::sourceparts", "/dev/null");
        option("Dir::Etc::preferences", "/dev/null");
        option("Dir::Etc::preferencesparts", "/dev/null");
        option("Dir::State::Lists", &inside("lists"));
        option("Dir::Cache", &inside("cache"));
        option("APT::Architecture", self.arch.debian());
        option("APT::Architectures", self.arch.debian());
        option("Acquire::Languages", "none");
        option("APT::Sandbox::User", "root");
        command.arg("-q");
        command
    }
}

/// A package and all those without which it does not work, by an `apt-cache`.
fn dependencies(mut cache: Command, package: &str) -> Result<Vec<String>> {
    cache.args(["depends", "--recurse", "--no-recommends", "--no-suggests", "--no-conflicts"]);
    cache.args(["--no-breaks", "--no-replaces", "--no-enhances", package]);
    let tree = quietly(&mut cache, "")?;
    // What they depend on is indented and has an entry of its own; virtual packages are in angle brackets.
    let is_package = |line: &&str| line.starts_with(|first: char| first.is_ascii_alphanumeric());
    Ok(tree.lines().filter(is_package).map(str::to_owned).collect())
}

/// Where packages with programs for guests come from: from this system's sources, or from Debian if they are of another
/// architecture. Nothing is asked before it is needed.
#[derive(Debug)]
pub(crate) enum Packages {
    /// This system's.
    Ours(Apt),
    /// Another architecture's.
    Others(Arch, Option<PrivateApt>),
}

impl Packages {
    /// Those of an architecture.
    pub(crate) fn of(arch: Arch) -> Self {
        if arch.is_here() { Self::Ours(Apt::default()) } else { Self::Others(arch, None) }
    }

    /// Whether there is such a package.
    pub(crate) fn has(&mut self, package: &str) -> Result<bool> {
        match self {
            Self::Ours(apt) => Ok(Apt::exists() && apt.has(package)?),
            Self::Others(arch, apt) => {
                Ok(succeeds(others(*arch, apt)?.command("apt-cache").args(["show", package])))
            }
        }
    }

    /// A package and all those without which it does not work.
    pub(crate) fn with_dependencies(&mut self, package: &str) -> Result<Vec<String>> {
        match self {
            Self::Ours(apt) => apt.with_dependencies(package),
            Self::Others(arch, apt) => dependencies(others(*arch, apt)?.command("apt-cache"), package),
        }
    }

    /// Downloads packages into a directory and unpacks them there.
    pub(crate) fn unpack(&mut self, packages: &[String], directory: &Path) -> Result<()> {
        match self {
            Self::Ours(apt) => apt.unpack(packages, directory),
            Self::Others(arch, apt) => {
                extract(&others(*arch, apt)?.download(packages, directory)?, directory)
            }
        }
    }
}

/// The apt for another architecture, with its lists.
fn others(arch: Arch, apt: &mut Option<PrivateApt>) -> Result<&PrivateApt> {
    if apt.is_none() {
        let lists = paths::tools_of(arch).join("apt");
        *apt = Some(step(&format!("fetching Debian's list of packages of {arch}"), || {
            PrivateApt::new(lists, arch, &[OF_OTHERS])
        })?);
    }
    apt.as_ref().context("it is there now")
}

/// Unpacks packages without installing them.
pub(crate) fn extract(debs: &[PathBuf], directory: &Path) -> Result<()> {
    for deb in debs {
        quietly(Command::new("dpkg").arg("-x").arg(deb).arg(directory), "is there space left on this disk?")?;
    }
    Ok(())
}

fn debs(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).with_context(|| format!("can't list {}", directory.display()))?;
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    Ok(paths
        .into_iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .collect())
}

/// Makes an empty directory, whatever an interrupted run left there.
fn fresh(directory: &Path) -> Result<()> {
    paths::remove(directory)?;
    fs::create_dir_all(directory).with_context(|| format!("can't create {}", directory.display()))
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn another_apt_is_waited_for_and_nothing_else_is() {
        let locked =
            || anyhow!("`apt-get update` failed:\nE: {LISTS_LOCK}. It is held by process 7 (apt-get)");
        let update = |failures: u32, error: &dyn Fn() -> anyhow::Error, patience| {
            let mut tries = 0;
            let result = when_lists_are_free(patience, || {
                tries += 1;
                if tries > failures { Ok(()) } else { Err(error()) }
            });
            (result.is_ok(), tries)
        };
        assert_eq!(update(1, &locked, LISTS_PATIENCE), (true, 2));
        assert_eq!(update(1, &locked, Duration::ZERO), (false, 1));
        assert_eq!(update(1, &|| anyhow!("E: no network"), LISTS_PATIENCE), (false, 1));
    }
}
