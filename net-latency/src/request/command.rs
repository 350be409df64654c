//! A command to run and to trace, and whom it runs as.

use std::{ffi::OsString, path::PathBuf};

/// A command, found on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandConfig {
    /// The program, and its arguments.
    pub words: Vec<OsString>,
    /// The files that the program may be, in the order of PATH.
    pub files: Vec<PathBuf>,
    /// Whom it runs as; as whoever runs us if `None`.
    pub user: Option<User>,
}

/// A user of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The login name, or the number of somebody who has none.
    pub name: String,
    /// The user id; never -1, which means none to the kernel.
    pub uid: u32,
    /// The group id; never -1 either.
    pub gid: u32,
    /// All groups, `gid` included.
    pub groups: Vec<u32>,
    /// The home directory.
    pub home: OsString,
    /// The login shell.
    pub shell: OsString,
}
