//! Installs strace, which is a witness in guests: it counts system calls by another way than the tool does.

use std::{
    collections::BTreeSet,
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use crate::process::{quietly, succeeds};

/// The program, and the package.
pub(crate) const STRACE: &str = "strace";

/// The packages to install for it.
pub(crate) fn missing_packages() -> Vec<&'static str> {
    if succeeds(Command::new(STRACE).arg("--version")) { Vec::new() } else { vec![STRACE] }
}

/// Where it is, and the shared libraries that it needs, the program that loads them among them.
pub(crate) fn files() -> Result<(PathBuf, BTreeSet<PathBuf>)> {
    let places = env::var_os("PATH").unwrap_or_default();
    let program = env::split_paths(&places).map(|directory| directory.join(STRACE));
    let program = program.into_iter().find(|path| path.is_file()).context("strace is not in PATH")?;
    let libraries = quietly(Command::new("ldd").arg(&program), "ldd comes with the C library")?;
    Ok((program, paths(&libraries)))
}

/// The files that `ldd` names. What the kernel brings itself has no path.
fn paths(listed: &str) -> BTreeSet<PathBuf> {
    let path = |line: &str| {
        let words = line.split_whitespace().map(Path::new);
        words.into_iter().find(|word| word.is_absolute()).map(Path::to_owned)
    };
    listed.lines().filter_map(path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_and_their_loader() {
        let listed = "\tlinux-vdso.so.1 (0x00007ffd)\n\
                      \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f59)\n\
                      \t/lib64/ld-linux-x86-64.so.2 (0x00007f60)\n";
        let expected = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(paths(listed), expected.map(PathBuf::from).into());
    }

    #[test]
    fn a_static_program_has_none() {
        assert_eq!(paths("\tstatically linked\n"), BTreeSet::new());
    }
}
