//! The initramfs: a guest's whole file system.

use std::{
    ffi::OsString,
    io::{self, Write},
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use cpio::newc::{Builder, trailer};

use crate::{
    process::quietly,
    setup::{kernels::Kernel, qemu},
};

/// The command that init runs; each argument ends with NUL. Empty for a shell.
pub(crate) const COMMAND: &str = "etc/guest-command";
/// Variables for init and the command, `NAME=VALUE`, each ending with NUL.
pub(crate) const ENVIRONMENT: &str = "etc/guest-environment";
/// The modules to load, by path, in order, one a line.
pub(crate) const MODULES: &str = "etc/guest-modules";

/// Mount points and other directories that must be there from the start.
const DIRECTORIES: [&str; 13] =
    ["bin", "dev", "etc", "lib", "lib/modules", "lib64", "proc", "root", "run", "small", "sys", "tmp", "var"];

const DIRECTORY: u32 = 0o040_755;
const EXECUTABLE: u32 = 0o100_755;
const REGULAR: u32 = 0o100_644;
const SYMLINK: u32 = 0o120_777;

/// How a guest's processors run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Processors {
    /// Two, under emulation by turns.
    Two,
    /// Two, at the same time.
    Parallel,
    /// One; a nanosecond of its clock is one of its instructions.
    Counted,
}

/// What one boot is for.
#[derive(Debug)]
pub(crate) struct Contents {
    /// The kernel whose modules to bring.
    pub(crate) kernel: Kernel,
    /// xtask itself, linked statically: the guest's init.
    pub(crate) init: PathBuf,
    /// Programs for `/bin`, each with the name it gets there.
    pub(crate) programs: Vec<(String, PathBuf)>,
    /// Other files, each with the path it gets, in a directory that is there.
    pub(crate) files: Vec<(String, PathBuf)>,
    /// What to run; empty for a shell.
    pub(crate) command: Vec<OsString>,
    /// Variables to set.
    pub(crate) environment: Vec<(String, OsString)>,
    /// Whether there are two network cards.
    pub(crate) has_cards: bool,
    /// How its processors run.
    pub(crate) processors: Processors,
    /// Its memory.
    pub(crate) mebibytes: u32,
}

impl Contents {
    /// Writes the initramfs.
    pub(crate) fn write(&self, image: impl Write) -> Result<()> {
        let mut archive = Archive { image, inode: 0 };
        for directory in DIRECTORIES {
            archive.add(directory, DIRECTORY, b"")?;
        }
        archive.add(
            "etc/passwd",
            REGULAR,
            b"root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n",
        )?;
        archive.add("etc/group", REGULAR, b"root:x:0:\nusers:x:100:nobody\nnogroup:x:65534:\n")?;
        archive.add("etc/hosts", REGULAR, b"127.0.0.1 localhost\n::1 localhost\n")?;
        archive.add_file("init", EXECUTABLE, &self.init)?;
        self.add_modules(&mut archive)?;

        let arch = self.kernel.arch;
        let busybox = qemu::busybox(arch);
        archive.add_file("bin/busybox", EXECUTABLE, &busybox)?;
        let applets = quietly(arch.command(&busybox).arg("--list"), "")?;
        for applet in applets.lines().filter(|applet| *applet != "busybox") {
            archive.add(&format!("bin/{applet}"), SYMLINK, b"busybox")?;
        }
        for (name, file) in &self.programs {
            archive.add_file(&format!("bin/{name}"), EXECUTABLE, file)?;
        }
        for (path, file) in &self.files {
            archive.add_file(path, EXECUTABLE, file)?;
        }

        let command: Vec<u8> =
            self.command.iter().flat_map(|word| [word.as_bytes(), b"\0"].concat()).collect();
        archive.add(COMMAND, REGULAR, &command)?;
        let environment: Vec<u8> = self
            .environment
            .iter()
            .flat_map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes(), b"\0"].concat())
            .collect();
        archive.add(ENVIRONMENT, REGULAR, &environment)?;
        trailer(archive.image)?.flush()?;
        Ok(())
    }

    fn add_modules(&self, archive: &mut Archive<impl Write>) -> Result<()> {
        let mut list = String::new();
        for (name, file) in self.kernel.modules()? {
            let path = format!("lib/modules/{name}.ko");
            archive.add_file(&path, REGULAR, &file)?;
            list += &format!("/{path}\n");
        }
        archive.add(MODULES, REGULAR, list.as_bytes())
    }
}

struct Archive<W> {
    image: W,
    inode: u32,
}

impl<W: Write> Archive<W> {
    fn add(&mut self, path: &str, mode: u32, data: &[u8]) -> Result<()> {
        // Distinct numbers keep the kernel from taking two files for links to one.
        self.inode += 1;
        let size =
            u32::try_from(data.len()).with_context(|| format!("{path} is too large for an initramfs"))?;
        let mut entry = Builder::new(path).ino(self.inode).nlink(1).mode(mode).write(&mut self.image, size);
        io::copy(&mut &data[..], &mut entry)?;
        entry.finish()?;
        Ok(())
    }

    fn add_file(&mut self, path: &str, mode: u32, file: &Path) -> Result<()> {
        let data = std::fs::read(file).with_context(|| format!("can't read {}", file.display()))?;
        self.add(path, mode, &data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archive_reads_back() {
        let mut bytes = Vec::new();
        let mut archive = Archive { image: &mut bytes, inode: 0 };
        archive.add("bin", DIRECTORY, b"").unwrap();
        archive.add("bin/tool", EXECUTABLE, b"12345").unwrap();
        archive.add("bin/alias", SYMLINK, b"tool").unwrap();
        trailer(archive.image).unwrap();

        let mut rest = bytes.as_slice();
        let mut read = Vec::new();
        loop {
            let mut reader = cpio::newc::Reader::new(rest).unwrap();
            if reader.entry().is_trailer() {
                break;
            }
            let mut data = Vec::new();
            io::Read::read_to_end(&mut reader, &mut data).unwrap();
            let entry = reader.entry();
            read.push((entry.ino(), entry.name().to_owned(), entry.mode(), data));
            rest = reader.finish().unwrap();
        }
        assert_eq!(
            read,
            [
                (1, "bin".to_owned(), DIRECTORY, Vec::new()),
                (2, "bin/tool".to_owned(), EXECUTABLE, b"12345".to_vec()),
                (3, "bin/alias".to_owned(), SYMLINK, b"tool".to_vec()),
            ]
        );
    }
}
