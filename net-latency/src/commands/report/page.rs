//! The file that the page is written to: there as a whole, or as it was before.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process;

use anyhow::Context as _;

use crate::error::Failure;
use crate::source::log::input::LogPath;

/// Readable and writable for the owner, readable for the group: the page says who talks to whom.
const FILE_MODE: u32 = 0o640;

#[derive(Debug)]
pub(super) struct Page {
    path: PathBuf,
    /// In the same directory, to be renamed; `None` for what is no regular file, such as /dev/null.
    temporary: Option<PathBuf>,
}

impl Page {
    /// Finds out, before the logs are read, whether the page will have a place. It is none of the `logs`.
    pub(super) fn prepare(path: &Path, logs: &[LogPath]) -> Result<Self, Failure> {
        let refused = |why: &dyn std::fmt::Display| {
            Failure::Usage(format!("cannot write the page to {}: {why}", path.display()))
        };
        // Through a link: what it leads to is written, and the link stays.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let temporary = match fs::metadata(&path) {
            Ok(metadata) if metadata.is_dir() => {
                return Err(refused(&"it is a directory; name a file in it"));
            }
            Ok(metadata) => {
                let is_page = |log: &LogPath| match log {
                    LogPath::Stdin => false,
                    LogPath::File(log) => fs::metadata(log)
                        .is_ok_and(|log| (log.dev(), log.ino()) == (metadata.dev(), metadata.ino())),
                };
                if logs.iter().any(is_page) {
                    return Err(refused(&"it is one of the logs; name another file"));
                }
                metadata.is_file().then(|| temporary(&path))
            }
            Err(_) => Some(temporary(&path)),
        };
        let page = Self { path: path.clone(), temporary };
        if page.temporary.is_some() {
            page.create().map_err(|error| refused(&error))?;
            page.remove();
        }
        Ok(page)
    }

    /// Writes the page in place of what was there.
    pub(super) fn write(&self, text: &[u8]) -> Result<(), Failure> {
        let written = match &self.temporary {
            None => OpenOptions::new().write(true).open(&self.path).and_then(|mut file| file.write_all(text)),
            Some(temporary) => self
                .create()
                .and_then(|mut file| {
                    file.write_all(text)?;
                    file.sync_all()
                })
                .and_then(|()| fs::rename(temporary, &self.path))
                .inspect_err(|_| self.remove()),
        };
        Ok(written.with_context(|| format!("cannot write the page to {}", self.path.display()))?)
    }

    fn create(&self) -> io::Result<File> {
        let path = self.temporary.as_deref().unwrap_or(&self.path);
        OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(path)
    }

    fn remove(&self) {
        if let Some(temporary) = &self.temporary {
            // Nothing more can be done about a file that can't be removed.
            let _ = fs::remove_file(temporary);
        }
    }
}

/// A name beside it that nobody else uses.
fn temporary(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}", process::id()));
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_replaced_whole_and_leaves_nothing_beside() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let (path, link) = (directory.path().join("page.html"), directory.path().join("link"));
        std::os::unix::fs::symlink(&path, &link).expect("linked");
        fs::write(&path, "old").expect("written");
        let page = Page::prepare(&link, &[]).expect("fine");
        assert_eq!(fs::read(&path).expect("there"), b"old");
        page.write(b"new").expect("written");
        assert_eq!(fs::read(&path).expect("there"), b"new");
        assert!(link.is_symlink());
        assert_eq!(fs::read_dir(directory.path()).expect("there").count(), 2);
    }

    #[test]
    fn what_fails_leaves_the_old_page() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("page.html");
        let page = Page::prepare(&path, &[]).expect("fine");
        // In the way of the rename.
        fs::create_dir(&path).expect("made");
        assert!(page.write(b"new").is_err());
        assert_eq!(fs::read_dir(directory.path()).expect("there").count(), 1);
    }

    #[test]
    fn no_log_and_no_directory_is_overwritten() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let log = directory.path().join("log");
        fs::write(&log, "lines").expect("written");
        let refused = |path: &Path| {
            Page::prepare(path, &[LogPath::File(log.clone())]).expect_err("refused").to_string()
        };
        assert!(refused(&log).contains("one of the logs"));
        assert!(refused(directory.path()).contains("a directory"));
        assert!(refused(&directory.path().join("none/page")).contains("No such file"));
    }

    #[test]
    fn a_device_is_written_and_not_replaced() {
        let path = Path::new("/dev/null");
        let before = fs::metadata(path).expect("there").rdev();
        Page::prepare(path, &[]).expect("fine").write(b"page").expect("written");
        assert_eq!(fs::metadata(path).expect("there").rdev(), before);
    }
}
