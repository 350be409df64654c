//! The file that the page, or the packets, are written to: there as a whole, or as it was before.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process;

use rustix::fs::FileType;

use crate::error::Failure;
use crate::files::Place;
use crate::source::log::input::LogPath;

#[derive(Debug)]
pub(super) struct Page {
    /// As it was given.
    name: String,
    /// What is written: "page".
    what: &'static str,
    place: Place,
    /// In the same directory, to be renamed; `None` if it is no regular file, such as /dev/null.
    temporary: Option<Place>,
}

impl Page {
    /// Finds out, before the logs are read, whether the page, or `what` it is, will have a place. It is none of the `logs`.
    pub(super) fn prepare(path: &Path, logs: &[LogPath], what: &'static str) -> Result<Self, Failure> {
        let refused = |why: &dyn std::fmt::Display| {
            Failure::Usage(format!("cannot write the {what} to {}: {why}", path.display()))
        };
        // Through a link of ours: what it leads to is written, and the link stays.
        let place = Place::find(path).map_err(|error| match error.kind() {
            ErrorKind::IsADirectory => refused(&"it is a directory; name a file in it"),
            _ => refused(&error),
        })?;
        let is_replaced = match place.status() {
            Ok(status) => {
                let kind = FileType::from_raw_mode(status.st_mode);
                if kind == FileType::Directory {
                    return Err(refused(&"it is a directory; name a file in it"));
                }
                let is_page = |log: &LogPath| match log {
                    LogPath::Stdin => false,
                    LogPath::File(log) => fs::metadata(log)
                        .is_ok_and(|log| (log.dev(), log.ino()) == (status.st_dev, status.st_ino)),
                };
                if logs.iter().any(is_page) {
                    return Err(refused(&"it is one of the logs; name another file"));
                }
                // A file that is reached through a descriptor, as by /dev/stdout, has no name there.
                kind == FileType::RegularFile && !place.is_descriptor().map_err(|error| refused(&error))?
            }
            Err(error) if error.kind() == ErrorKind::NotFound => true,
            Err(error) => return Err(refused(&error)),
        };
        let temporary = if is_replaced {
            let temporary = temporary(&place).map_err(|error| refused(&error))?;
            temporary.create().and_then(|_| temporary.remove()).map_err(|error| refused(&error))?;
            Some(temporary)
        } else {
            None
        };
        Ok(Self { name: path.display().to_string(), what, place, temporary })
    }

    /// Replaces the page by `text`.
    pub(super) fn write(&self, text: &[u8]) -> Result<(), Failure> {
        self.write_by(|file| file.write_all(text).map_err(|error| self.failed(error)))
    }

    /// Replaces the page by what `write` writes.
    pub(super) fn write_by<T>(
        &self,
        write: impl FnOnce(&mut File) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let failed = |error| self.failed(error);
        let Some(temporary) = &self.temporary else {
            return write(&mut self.place.write().map_err(failed)?);
        };
        let mut file = temporary.create().map_err(failed)?;
        let written = write(&mut file).and_then(|made| {
            file.sync_all().and_then(|()| temporary.rename(&self.place)).map_err(failed)?;
            Ok(made)
        });
        // Nothing more can be done about a file that can't be removed.
        written.inspect_err(|_| drop(temporary.remove()))
    }

    /// What it could not be written for.
    pub(super) fn failed(&self, error: io::Error) -> Failure {
        let reason = error.kind();
        let context = format!("cannot write the {} to {}", self.what, self.name);
        Failure::of_output(reason, anyhow::Error::new(error).context(context))
    }
}

/// An unused name beside it.
fn temporary(place: &Place) -> io::Result<Place> {
    let mut name = OsString::from(".");
    name.push(place.name());
    name.push(format!(".{}", process::id()));
    place.beside(name)
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
        let page = Page::prepare(&link, &[], "page").expect("fine");
        assert_eq!(fs::read(&path).expect("there"), b"old");
        page.write(b"new").expect("written");
        assert_eq!(fs::read(&path).expect("there"), b"new");
        assert!(link.is_symlink());
        assert_eq!(fs::read_dir(directory.path()).expect("there").count(), 2);
    }

    /// As root the test makes each link for another user; as any other user it can make none of others.
    #[test]
    fn a_link_of_somebody_else_replaces_nothing() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let directory = tempfile::tempdir().expect("temporary directory");
        let (target, link) = (directory.path().join("precious"), directory.path().join("page.html"));
        fs::write(&target, "old").expect("written");
        std::os::unix::fs::symlink(&target, &link).expect("linked");
        std::os::unix::fs::lchown(&link, Some(65534), None).expect("given away");
        let sentence = Page::prepare(&link, &[], "page").expect_err("refused").to_string();
        assert!(sentence.contains("a link of another user (uid 65534)"), "{sentence}");
        // One that comes after the look is replaced itself.
        fs::remove_file(&link).expect("removed");
        let page = Page::prepare(&link, &[], "page").expect("fine");
        std::os::unix::fs::symlink(&target, &link).expect("linked");
        page.write(b"new").expect("written");
        assert_eq!(fs::read(&target).expect("there"), b"old");
        assert_eq!(fs::read(&link).expect("there"), b"new");
        assert!(!link.is_symlink());
    }

    #[test]
    fn what_fails_leaves_the_old_page() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("page.html");
        let page = Page::prepare(&path, &[], "page").expect("fine");
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
            Page::prepare(path, &[LogPath::File(log.clone())], "page").expect_err("refused").to_string()
        };
        assert!(refused(&log).contains("one of the logs"));
        assert!(refused(directory.path()).contains("a directory"));
        assert!(
            refused(&directory.path().join("none/page")).ends_with(": there is no such directory; create it")
        );
    }

    #[test]
    fn a_device_is_written_and_not_replaced() {
        let path = Path::new("/dev/null");
        let before = fs::metadata(path).expect("there").rdev();
        Page::prepare(path, &[], "page").expect("fine").write(b"page").expect("written");
        assert_eq!(fs::metadata(path).expect("there").rdev(), before);
    }
}
