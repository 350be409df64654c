//! Fetches the tracers that the bench compares with. They are not installed: a guest gets copies.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use super::apt::Apt;
use crate::{
    paths,
    process::{quietly, step},
};

/// A package and the program in it.
const BPFTRACE: &str = "bpftrace";
/// Where Debian's packages have libraries, and the dynamic linker among them.
const LIBRARIES: [&str; 2] = ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"];
const LINKER: &str = "ld-linux-x86-64.so.2";

/// bpftrace and the libraries it needs, each file with its path in a guest.
pub(crate) fn bpftrace() -> Result<Vec<(String, PathBuf)>> {
    let directory = paths::tools().join(BPFTRACE);
    let program = directory.join("usr/bin").join(BPFTRACE);
    let stamp = directory.join("complete");
    if !stamp.exists() {
        fetch(&directory)?;
        fs::write(&stamp, "")?;
    }
    with_libraries(&directory, program)
}

fn fetch(directory: &Path) -> Result<()> {
    let mut apt = Apt::default();
    if !Apt::exists() || !apt.has(BPFTRACE)? {
        bail!("this system's apt knows no package {BPFTRACE}");
    }
    step("fetching bpftrace for the guest (60 MB)", || {
        let packages = apt.with_dependencies(BPFTRACE)?;
        apt.unpack(&packages, directory)
    })
}

/// A program of an unpacked tree and the libraries of that tree which it needs, as the tree's own dynamic linker says.
fn with_libraries(tree: &Path, program: PathBuf) -> Result<Vec<(String, PathBuf)>> {
    let directories = LIBRARIES.map(|directory| tree.join(directory));
    let linker = directories.iter().map(|directory| directory.join(LINKER)).find(|path| path.is_file());
    let linker = linker.context("the packages hold no dynamic linker")?;
    let path = directories.each_ref().map(|directory| directory.display().to_string()).join(":");
    let listed = quietly(
        Command::new(&linker).args(["--library-path", &path, "--list"]).arg(&program),
        "does this machine run x86-64 programs?",
    )?;
    let mut files = vec![(format!("lib64/{LINKER}"), linker)];
    files.extend(libraries(&listed)?);
    files.push((format!("bin/{BPFTRACE}"), program));
    Ok(files)
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
