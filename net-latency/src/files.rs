//! Files that the command line names, opened so that no other user decides which file that is: a run as root writes in directories that
//! others can write too, and reads what others may have put there.

use std::{
    collections::VecDeque,
    ffi::{OsStr, OsString},
    fs::{File, Metadata},
    io::{self, ErrorKind},
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::{
            ffi::{OsStrExt as _, OsStringExt as _},
            fs::{FileTypeExt as _, MetadataExt as _},
        },
    },
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{
        Access, AtFlags, CWD, Mode, OFlags, PROC_SUPER_MAGIC, Stat, accessat, fcntl_getfl, fcntl_setfl,
        fstatfs, fstatvfs, openat, readlinkat, renameat, statat, unlinkat,
    },
    io::Errno,
    process::geteuid,
};

/// Readable and writable for the owner, readable for the group: lines tell who talks to whom.
const MODE: Mode = Mode::from_raw_mode(0o640);
const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// As many links as the kernel follows (`MAXSYMLINKS`).
const MOST_LINKS: u32 = 40;
/// How often a file may appear and vanish again while it is opened.
const TRIES: u32 = 16;

/// A name in a directory, which stays that directory whatever happens to its path.
#[derive(Debug)]
pub(crate) struct Place {
    directory: File,
    name: OsString,
}

impl Place {
    /// Where `path` leads. A link is followed if it is root's or the user's own, so that no other user can redirect it.
    ///
    /// # Errors
    /// What the system says, or which link belongs to another user.
    pub(crate) fn find(path: &Path) -> io::Result<Self> {
        let begin = |name: &str| io::Result::Ok(File::from(openat(CWD, name, DIRECTORY, Mode::empty())?));
        let mut directory = begin(".")?;
        let mut left: VecDeque<OsString> = components(path);
        let mut links = 0;
        while let Some(name) = left.pop_front() {
            if name == "/" {
                directory = begin("/")?;
                continue;
            }
            let is_last = left.is_empty();
            // Links of procfs lead to what this process has open, not to a path.
            let link = if is_proc(&directory)? { None } else { link(&directory, &name)? };
            if let Some((target, owner)) = link {
                links += 1;
                if links > MOST_LINKS {
                    return Err(Errno::LOOP.into());
                }
                if !is_ours(owner) {
                    return Err(refused(format!(
                        "{} is a link of another user (uid {owner}), and only links of root and of your own are \
                         followed",
                        Path::new(&name).display()
                    )));
                }
                for part in components(Path::new(&target)).into_iter().rev() {
                    left.push_front(part);
                }
            } else if is_last && name != ".." && name != "." {
                return Ok(Self { directory, name });
            } else {
                directory = enter(&directory, &name)?;
            }
        }
        Err(if path.as_os_str().is_empty() { Errno::NOENT } else { Errno::ISDIR }.into())
    }

    /// Opens it for appending; creates it, and says so, if nothing is there. Writing may fail with
    /// [`ErrorKind::WouldBlock`] where a reader is slow.
    ///
    /// # Errors
    /// What the system says, or why the file there should not be written to.
    pub(crate) fn append(&self) -> io::Result<(File, bool)> {
        let flags = OFlags::WRONLY | OFlags::APPEND;
        for _ in 0..TRIES {
            match self.open(flags) {
                Ok(file) => {
                    self.check(&file.metadata()?)?;
                    return Ok((file, false));
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) if error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => {
                    return Err(self.unread().unwrap_or(error));
                }
                Err(error) => return Err(error),
            }
            match self.open(flags | OFlags::CREATE | OFlags::EXCL) {
                Ok(file) => return Ok((file, true)),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(refused("it is being created and removed all the time".to_owned()))
    }

    /// Opens an existing file that is not a regular one, to be written from here on.
    ///
    /// # Errors
    /// As for [`Self::append`].
    pub(crate) fn write(&self) -> io::Result<File> {
        let (file, _) = self.append()?;
        let flags = fcntl_getfl(&file)?;
        fcntl_setfl(&file, flags - OFlags::NONBLOCK)?;
        Ok(file)
    }

    /// Makes a file that was not there.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn create(&self) -> io::Result<File> {
        self.open(OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)
    }

    /// What it is; a link for a link that has come since it was found.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn status(&self) -> io::Result<Stat> {
        let follow = if is_proc(&self.directory)? { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
        Ok(statat(&self.directory, &self.name, follow)?)
    }

    /// Whether it is the name of `file`.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn names(&self, file: &File) -> io::Result<bool> {
        let ours = file.metadata()?;
        match self.status() {
            Ok(named) => Ok((named.st_dev, named.st_ino) == (ours.dev(), ours.ino())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether it is something that this process has open, as /dev/stdout is.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn is_descriptor(&self) -> io::Result<bool> {
        is_proc(&self.directory)
    }

    /// Whether it can be written as it is, and another put in its place.
    pub(crate) fn is_writable(&self) -> bool {
        let may = |name: &OsStr, access| accessat(&self.directory, name, access, AtFlags::EACCESS);
        let is_replaceable = may(OsStr::new("."), Access::WRITE_OK | Access::EXEC_OK).is_ok();
        is_replaceable && matches!(may(&self.name, Access::WRITE_OK), Ok(()) | Err(Errno::NOENT))
    }

    /// Bytes that are free for this user on its file system, and all of them.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn room(&self) -> io::Result<(u64, u64)> {
        let system = fstatvfs(&self.directory)?;
        let bytes = |blocks: u64| blocks.saturating_mul(system.f_frsize);
        Ok((bytes(system.f_bavail), bytes(system.f_blocks)))
    }

    /// Where its directory is by now, which may have been renamed; behind one that was removed stands ` (deleted)`.
    ///
    /// # Errors
    /// What the system says, if no /proc is there for example.
    pub(crate) fn directory(&self) -> io::Result<PathBuf> {
        std::fs::read_link(format!("/proc/self/fd/{}", self.directory.as_raw_fd()))
    }

    /// Another name in the same directory.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn beside(&self, name: OsString) -> io::Result<Self> {
        Ok(Self { directory: self.directory.try_clone()?, name })
    }

    /// The last part of its path.
    pub(crate) fn name(&self) -> &OsStr {
        &self.name
    }

    /// Gives it the other's name, in place of what had that.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn rename(&self, to: &Self) -> io::Result<()> {
        Ok(renameat(&self.directory, &self.name, &to.directory, &to.name)?)
    }

    /// Removes the name.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn remove(&self) -> io::Result<()> {
        Ok(unlinkat(&self.directory, &self.name, AtFlags::empty())?)
    }

    /// Never waits for anything, and never follows a link that was not there when the place was found.
    fn open(&self, flags: OFlags) -> io::Result<File> {
        let mut flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        if !is_proc(&self.directory)? {
            flags |= OFlags::NOFOLLOW;
        }
        Ok(openat(&self.directory, &self.name, flags, MODE)?.into())
    }

    /// Whether it is fit to be written: others may have put there what leads elsewhere, or what they can read.
    fn check(&self, file: &Metadata) -> io::Result<()> {
        let kind = file.file_type();
        // Only root can make devices.
        if kind.is_char_device() || is_proc(&self.directory)? {
            return Ok(());
        }
        if !kind.is_file() && !kind.is_fifo() {
            return Err(refused("it is neither a file nor a pipe".to_owned()));
        }
        let directory = self.directory.metadata()?;
        if !is_ours(file.uid()) && file.uid() != directory.uid() {
            return Err(refused(format!(
                "it belongs to another user (uid {}), who may have put it there",
                file.uid()
            )));
        }
        let is_shared = !is_ours(directory.uid()) || directory.mode() & 0o022 != 0;
        if is_shared && kind.is_file() && file.nlink() > 1 {
            return Err(refused(
                "it has several names (hard links), and others can write to its directory".to_owned(),
            ));
        }
        Ok(())
    }

    /// Why it can't be opened, if it is a FIFO.
    fn unread(&self) -> Option<io::Error> {
        let kind = rustix::fs::FileType::from_raw_mode(self.status().ok()?.st_mode);
        (kind == rustix::fs::FileType::Fifo)
            .then(|| refused("it is a FIFO without a reader; start its reader first".to_owned()))
    }
}

/// Whether a user is root or who runs this.
fn is_ours(uid: u32) -> bool {
    uid == 0 || uid == geteuid().as_raw()
}

fn is_proc(directory: &File) -> io::Result<bool> {
    Ok(fstatfs(directory)?.f_type == PROC_SUPER_MAGIC)
}

/// The names that a path goes through; `/` where it begins anew.
fn components(path: &Path) -> VecDeque<OsString> {
    let mut names: VecDeque<_> = path
        .components()
        .filter(|part| *part != Component::CurDir)
        .map(|part| part.as_os_str().to_owned())
        .collect();
    if path.as_os_str().as_bytes().ends_with(b"/") {
        // What ends so is a directory.
        names.push_back(".".into());
    }
    names
}

/// A directory of `directory`. No link, except in procfs.
fn enter(directory: &File, name: &OsStr) -> io::Result<File> {
    let follow = if is_proc(directory)? { OFlags::empty() } else { OFlags::NOFOLLOW };
    match openat(directory, name, DIRECTORY | follow, Mode::empty()) {
        Ok(entered) => Ok(entered.into()),
        Err(Errno::NOENT) => {
            Err(io::Error::new(ErrorKind::NotFound, "there is no such directory; create it"))
        }
        Err(error) => Err(error.into()),
    }
}

/// Where a link leads, and its owner; `None` if it is no link, or not there.
fn link(directory: &File, name: &OsStr) -> io::Result<Option<(OsString, u32)>> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened: OwnedFd = match openat(directory, name, flags, Mode::empty()) {
        Ok(opened) => opened,
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let status = rustix::fs::fstat(&opened)?;
    if rustix::fs::FileType::from_raw_mode(status.st_mode) != rustix::fs::FileType::Symlink {
        return Ok(None);
    }
    // The target of the very link whose owner was checked.
    let target = readlinkat(&opened, "", Vec::new())?;
    Ok(Some((OsString::from_vec(target.into_bytes()), status.st_uid)))
}

fn refused(why: String) -> io::Error {
    io::Error::new(ErrorKind::PermissionDenied, why)
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        io::{Read as _, Write as _},
        os::unix::fs::{OpenOptionsExt as _, chown, lchown, symlink},
        path::PathBuf,
    };

    use nix::{sys::stat::Mode as Permissions, unistd::mkfifo};
    use tempfile::TempDir;

    use super::*;

    /// The user `nobody`, which has this number on every Linux.
    const NOBODY: u32 = 65534;

    fn scratch() -> (TempDir, PathBuf) {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("lines");
        (directory, path)
    }

    fn append(path: &Path) -> io::Result<(File, bool)> {
        Place::find(path)?.append()
    }

    fn sentence(path: &Path) -> String {
        append(path).expect_err("refused").to_string()
    }

    /// Whether this test can make files of another user: only root can give them away.
    fn can_give_away() -> bool {
        geteuid().is_root()
    }

    #[test]
    fn a_place_knows_its_file() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("lines");
        let place = || Place::find(&path).expect("a place");
        let file = File::create(&path).expect("can be created");
        assert!(place().names(&file).expect("readable"));
        fs::rename(&path, directory.path().join("other")).expect("can be renamed");
        assert!(!place().names(&file).expect("readable"));
        fs::write(&path, "another's").expect("writable");
        assert!(!place().names(&file).expect("readable"));
    }

    #[test]
    fn what_is_not_there_is_made_once() {
        let (_directory, path) = scratch();
        let (mut file, is_new) = append(&path).expect("fine");
        assert!(is_new);
        file.write_all(b"one\n").expect("written");
        let (mut file, is_new) = append(&path).expect("fine");
        assert!(!is_new);
        file.write_all(b"two\n").expect("written");
        assert_eq!(fs::read(&path).expect("there"), b"one\ntwo\n");
        assert_eq!(fs::metadata(&path).expect("there").mode() & 0o137, 0);
    }

    #[test]
    fn links_of_our_own_are_followed_wherever_they_stand() {
        let (directory, path) = scratch();
        let real = directory.path().join("real");
        fs::create_dir(&real).expect("made");
        // An absolute link to a directory, a relative one in it, and the file itself is made by the way.
        symlink(&real, directory.path().join("way")).expect("linked");
        symlink("../lines", real.join("link")).expect("linked");
        append(&directory.path().join("way/link")).expect("followed");
        assert!(path.is_file() && real.join("link").is_symlink());
        symlink("loop", directory.path().join("loop")).expect("linked");
        let error = append(&directory.path().join("loop")).expect_err("endless");
        assert_eq!(error.raw_os_error(), Some(libc::ELOOP));
    }

    #[test]
    fn links_of_others_are_not_followed() {
        if !can_give_away() {
            return;
        }
        let (directory, path) = scratch();
        fs::write(&path, "old").expect("written");
        let link = directory.path().join("link");
        symlink(&path, &link).expect("linked");
        lchown(&link, Some(NOBODY), None).expect("given away");
        assert!(
            sentence(&link).contains("link is a link of another user (uid 65534)"),
            "{}",
            sentence(&link)
        );
        let inner = directory.path().join("inner");
        symlink(directory.path(), &inner).expect("linked");
        lchown(&inner, Some(NOBODY), None).expect("given away");
        assert!(sentence(&inner.join("lines")).contains("inner is a link of another user"));
        assert_eq!(fs::read(&path).expect("there"), b"old");
    }

    #[test]
    fn a_link_that_comes_after_the_look_is_not_followed() {
        let (directory, path) = scratch();
        let place = Place::find(&path).expect("a place");
        let target = directory.path().join("target");
        symlink(&target, &path).expect("linked");
        assert_eq!(place.append().expect_err("a link").raw_os_error(), Some(libc::ELOOP));
        assert!(!target.exists());
    }

    #[test]
    fn files_of_others_are_not_written_where_they_may_have_put_them() {
        if !can_give_away() {
            return;
        }
        let (directory, path) = scratch();
        fs::write(&path, "").expect("written");
        chown(&path, Some(NOBODY), None).expect("given away");
        assert!(sentence(&path).contains("belongs to another user (uid 65534)"), "{}", sentence(&path));
        // In its owner's directory that file is fine.
        chown(directory.path(), Some(NOBODY), None).expect("given away");
        append(&path).expect("fine");
        // But not under a second name: the other may be anywhere.
        fs::hard_link(&path, directory.path().join("other")).expect("linked");
        assert!(sentence(&path).contains("several names"), "{}", sentence(&path));
    }

    #[test]
    fn a_fifo_without_a_reader_does_not_stop_us() {
        let (_directory, path) = scratch();
        mkfifo(&path, Permissions::S_IRWXU).expect("made");
        assert!(sentence(&path).contains("a FIFO without a reader"), "{}", sentence(&path));
        let mut options = File::options();
        let mut reader = options.read(true).custom_flags(libc::O_NONBLOCK).open(&path).expect("fine");
        let (mut writer, _) = append(&path).expect("it has a reader");
        writer.write_all(b"one\n").expect("written");
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).expect("readable");
        assert_eq!(text, "one\n");
    }

    #[test]
    fn devices_and_what_is_open_go_on_working() {
        append(Path::new("/dev/null")).expect("a device");
        let (_directory, path) = scratch();
        let open = File::create(&path).expect("made");
        let number = open.as_raw_fd();
        let (mut file, is_new) = append(Path::new(&format!("/dev/fd/{number}"))).expect("open");
        assert!(!is_new);
        file.write_all(b"one\n").expect("written");
        assert_eq!(fs::read(&path).expect("there"), b"one\n");
        let (mut reader, writer) = io::pipe().expect("a pipe");
        let number = writer.as_raw_fd();
        append(Path::new(&format!("/proc/self/fd/{number}")))
            .expect("open")
            .0
            .write_all(b"x")
            .expect("written");
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).expect("readable");
        assert_eq!(text, "x");
    }

    #[test]
    fn what_is_no_file_is_named() {
        let (directory, path) = scratch();
        let _socket = std::os::unix::net::UnixListener::bind(&path).expect("bound");
        assert!(append(&path).is_err());
        for wrong in
            [directory.path().to_owned(), directory.path().join("."), directory.path().join("lines/x")]
        {
            assert!(append(&wrong).is_err(), "{}", wrong.display());
        }
        assert_eq!(append(Path::new("")).expect_err("nothing").kind(), ErrorKind::NotFound);
    }
}
