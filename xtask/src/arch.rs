//! The architectures that the tool is built for and guests have, and all that differs between them here.

use std::{path::Path, process::Command};

use clap::ValueEnum;

/// An architecture. What is built for either is built on a machine of the other one too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Arch {
    #[value(name = "x86-64")]
    X86_64,
    Arm64,
}

/// This machine's.
impl Default for Arch {
    fn default() -> Self {
        Self::OF_THIS_PROGRAM
    }
}

impl Arch {
    /// What this program is built for: on a developer's machine, or in a guest.
    pub(crate) const OF_THIS_PROGRAM: Self =
        if cfg!(target_arch = "aarch64") { Self::Arm64 } else { Self::X86_64 };

    /// Whether this machine runs its programs by itself.
    pub(crate) fn is_here(self) -> bool {
        self == Self::OF_THIS_PROGRAM
    }

    /// Those of guests that a test run of this one has: that of x86-64 has guests of arm64 too.
    pub(crate) fn of_guests(self) -> &'static [Self] {
        match self {
            Self::X86_64 => &[Self::X86_64, Self::Arm64],
            Self::Arm64 => &[Self::Arm64],
        }
    }

    /// Rust's name of the target.
    pub(crate) fn target(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64-unknown-linux-gnu",
            Self::Arm64 => "aarch64-unknown-linux-gnu",
        }
    }

    /// Debian's name, and that of container images.
    pub(crate) fn debian(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// GNU's name, which begins programs' names that work for it elsewhere, and is a folder of Debian's libraries.
    pub(crate) fn gnu(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64-linux-gnu",
            Self::Arm64 => "aarch64-linux-gnu",
        }
    }

    /// The suffix of folders for it.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Self::X86_64 => "",
            Self::Arm64 => "-arm64",
        }
    }

    /// The dynamic linker's place in a guest.
    pub(crate) fn dynamic_linker(self) -> &'static str {
        match self {
            Self::X86_64 => "lib64/ld-linux-x86-64.so.2",
            Self::Arm64 => "lib/ld-linux-aarch64.so.1",
        }
    }

    /// The emulator of a machine, and its package.
    pub(crate) fn machine(self) -> (&'static str, &'static str) {
        match self {
            Self::X86_64 => ("qemu-system-x86_64", "qemu-system-x86"),
            Self::Arm64 => ("qemu-system-aarch64", "qemu-system-arm"),
        }
    }

    /// A guest's serial ports: its console, and that for data.
    pub(crate) fn ports(self) -> [&'static str; 2] {
        match self {
            Self::X86_64 => ["ttyS0", "ttyS1"],
            Self::Arm64 => ["ttyAMA0", "ttyS0"],
        }
    }

    /// The linker of programs for it, if it is not this machine's own.
    pub(crate) fn linker(self) -> Option<String> {
        (!self.is_here()).then(|| format!("{}-gcc", self.gnu()))
    }

    /// A tool of binutils for its programs.
    pub(crate) fn binutils(self, tool: &str) -> String {
        if self.is_here() { tool.to_owned() } else { format!("{}-{tool}", self.gnu()) }
    }

    /// The emulator of single programs, if this machine takes one to run them, and its package.
    pub(crate) fn emulator(self) -> Option<(&'static str, &'static str)> {
        match self {
            _ if self.is_here() => None,
            Self::X86_64 => Some(("qemu-x86_64", "qemu-user")),
            Self::Arm64 => Some(("qemu-aarch64", "qemu-user")),
        }
    }

    /// A command that runs one of its programs.
    pub(crate) fn command(self, program: &Path) -> Command {
        match self.emulator() {
            None => Command::new(program),
            Some((emulator, _)) => {
                let mut command = Command::new(emulator);
                command.arg(program);
                command
            }
        }
    }
}

/// Named as on the command line.
impl std::fmt::Display for Arch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::X86_64 => "x86-64",
            Self::Arm64 => "arm64",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_command_line() {
        for arch in Arch::value_variants() {
            assert_eq!(Arch::from_str(&arch.to_string(), false), Ok(*arch));
        }
    }

    #[test]
    fn another_architectures_programs_are_emulated() {
        let command = |arch: Arch| arch.command(Path::new("/bin/true")).get_args().count();
        let counts = Arch::value_variants().iter().map(|arch| (arch.is_here(), command(*arch)));
        assert!(counts.into_iter().all(|(is_here, arguments)| is_here == (arguments == 0)));
    }
}
