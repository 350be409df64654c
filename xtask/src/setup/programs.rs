//! Fetches third-party programs for guests: witnesses, and tools that the bench compares with. They are not installed: a guest gets copies,
//! with the libraries that they need, since all else there is linked statically.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

use super::apt::Packages;
use crate::{
    arch::Arch,
    paths,
    process::{quietly, step},
};

/// Counts system calls by another way than the tool does. Package and program have the same name.
pub(crate) const STRACE: &str = "strace";
/// Sets up tunnels; the package of [`WG`].
pub(crate) const WIREGUARD_TOOLS: &str = "wireguard-tools";
/// The program of that package.
pub(crate) const WG: &str = "wg";
/// Reads images of containers; the package has the program of that name.
pub(crate) const UMOCI: &str = "umoci";
/// Runs containers.
pub(crate) const CRUN: &str = "crun";
/// Another tracer.
pub(crate) const BPFTRACE: &str = "bpftrace";
/// Scrapes what the tool exports. The package has the program of that name, and [`PROMTOOL`].
pub(crate) const PROMETHEUS: &str = "prometheus";
/// Checks metrics and rules.
pub(crate) const PROMTOOL: &str = "promtool";
/// Servers and clients to be traced: packages, each with its programs.
pub(crate) const TRACED: [(&str, &[&str]); 5] = [
    ("nginx", &["nginx"]),
    ("curl", &["curl"]),
    ("redis-server", &["redis-server", "redis-benchmark"]),
    ("memcached", &["memcached"]),
    ("iperf3", &["iperf3"]),
];
/// What Prometheus needs of all that its package depends on: the rest is for its web pages and for installing it.
const OF_PROMETHEUS: [&str; 2] = [PROMETHEUS, "libc6"];
/// Where Debian's packages have programs.
const PROGRAMS: [&str; 2] = ["usr/bin", "usr/sbin"];
/// Where Debian's packages have libraries in a folder of their architecture's name, and the dynamic linker among them.
const LIBRARIES: [&str; 2] = ["lib", "usr/lib"];

/// A program of a package of that name and the libraries it needs, each file with its path in a guest.
pub(crate) fn files(arch: Arch, name: &str) -> Result<Vec<(String, PathBuf)>> {
    files_of(arch, name, name)
}

/// [`files`] of a program of another name than its package.
pub(crate) fn files_of(arch: Arch, package: &str, name: &str) -> Result<Vec<(String, PathBuf)>> {
    let tree = ensure(arch, package, &mut Packages::of(arch))?;
    let programs = PROGRAMS.map(|directory| tree.join(directory).join(name));
    let program = programs.into_iter().find(|path| path.is_file());
    let program = program.with_context(|| format!("the package {package} has no program {name}"))?;
    let directories = LIBRARIES.map(|directory| tree.join(directory).join(arch.gnu()));
    let linker_name = Path::new(arch.dynamic_linker()).file_name().context("the linker has no name")?;
    let linker = directories.iter().map(|directory| directory.join(linker_name)).find(|path| path.is_file());
    let linker = linker.context("the packages hold no dynamic linker")?;
    let path = directories.each_ref().map(|directory| directory.display().to_string()).join(":");
    let listed = quietly(
        arch.command(&linker).args(["--library-path", &path, "--list"]).arg(&program),
        &format!("does this machine run {arch} programs?"),
    )?;
    let mut files = vec![(arch.dynamic_linker().to_owned(), linker)];
    files.extend(libraries(&listed)?);
    files.push((format!("bin/{name}"), program));
    Ok(files)
}

/// The tree of a program's package and of those it depends on, fetched if it is not there.
pub(crate) fn ensure(arch: Arch, name: &str, apt: &mut Packages) -> Result<PathBuf> {
    let tree = paths::tools_of(arch).join(name);
    let stamp = tree.join("complete");
    if !stamp.exists() {
        if !apt.has(name)? {
            bail!("apt knows no package {name} of {arch}");
        }
        step(&format!("fetching {name} for guests"), || {
            let packages = match name {
                PROMETHEUS => OF_PROMETHEUS.map(str::to_owned).into(),
                _ => apt.with_dependencies(name)?,
            };
            apt.unpack(&packages, &tree)
        })?;
        fs::write(&stamp, "")?;
    }
    Ok(tree)
}

/// From lines like `libz.so.1 => /somewhere/libz.so.1 (0x00007f0000000000)`.
fn libraries(listed: &str) -> Result<Vec<(String, PathBuf)>> {
    let mut files = Vec::new();
    for line in listed.lines() {
        // The linker itself has a line like those, but with a path for a name; the kernel's library has no path.
        let Some((name, found)) = line.trim().split_once(" => ") else { continue };
        if name.contains('/') {
            continue;
        }
        let path = found.split(" (").next().unwrap_or(found);
        if !path.starts_with('/') {
            bail!("{name} is {found}");
        }
        files.push((format!("lib/{name}"), path.into()));
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_go_where_every_linker_looks() {
        let listed = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibz.so.1 => /t/lib/libz.so.1 (0x00007f16)\n\
                      \t/lib64/ld-linux-x86-64.so.2 => /t/ld-linux-x86-64.so.2 (0x00007f17)\n";
        assert_eq!(libraries(listed).unwrap(), [("lib/libz.so.1".into(), "/t/lib/libz.so.1".into())]);
        assert!(libraries("\tlibbcc_bpf.so.0 => not found\n").is_err());
    }
}
