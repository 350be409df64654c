//! Where control groups are.

use std::{
    ffi::OsString,
    fs,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::{ffi::OsStringExt as _, fs::MetadataExt as _},
    },
    path::{Path, PathBuf},
};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, open, openat, statat};

use super::mounts;

/// Depth of nested cgroups: more than any machine has.
const DEEPEST: usize = 64;

/// Where the unified hierarchy is mounted, from the text of `/proc/self/mountinfo`.
#[must_use]
pub(crate) fn unified_hierarchy(mounts: &[u8]) -> Option<PathBuf> {
    let unified = mounts::read(mounts).find(|mount| mount.kind == b"cgroup2")?;
    Some(OsString::from_vec(unified.place).into())
}

/// Takes a cgroup: its id, which is its inode number, its path below the root, and who owns its directory, if that is known.
pub(crate) type Take<'a> = &'a mut dyn FnMut(u64, &[u8], Option<u32>);

/// Hands on each cgroup of the hierarchy at `root`. Anybody who may make cgroups may make many, with long paths.
pub(crate) fn each(root: &Path, take: Take<'_>) {
    if let Ok(data) = fs::metadata(root) {
        take(data.ino(), b"/", Some(data.uid()));
    }
    if let Ok(directory) = open(root, DIRECTORY, Mode::empty()) {
        walk(directory, &mut Vec::new(), DEEPEST, take);
    }
}

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

/// Hands on the cgroups in `directory`, which is at `path` below the root. One that goes meanwhile is not found. Each is opened from
/// the one above it: from the root, deep ones would cost by their depth.
fn walk(directory: OwnedFd, path: &mut Vec<u8>, depth: usize, take: Take<'_>) {
    let Ok(entries) = Dir::read_from(directory.as_fd()) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if depth > 0 && entry.file_type() == FileType::Directory && ![c".", c".."].contains(&name) {
            let len = path.len();
            path.push(b'/');
            path.extend_from_slice(name.to_bytes());
            // Its own permissions don't matter to this.
            let owner = statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW).map(|status| status.st_uid);
            take(entry.ino(), path, owner.ok());
            if let Ok(below) = openat(&directory, name, DIRECTORY, Mode::empty()) {
                walk(below, path, depth - 1, take);
            }
            path.truncate(len);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, path::Path};

    use super::*;

    #[test]
    fn the_unified_hierarchy_is_found_wherever_it_is() {
        let hybrid = b"25 30 0:22 / /sys/fs/cgroup ro - tmpfs tmpfs ro\n\
             26 25 0:23 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw\n";
        assert_eq!(unified_hierarchy(hybrid).as_deref(), Some(Path::new("/sys/fs/cgroup/unified")));
        assert_eq!(unified_hierarchy(b"25 30 0:22 / /sys/fs/cgroup ro - cgroup cgroup rw,cpu\n"), None);
        assert_eq!(unified_hierarchy(b""), None);
    }

    #[test]
    fn any_path_may_be_mounted() {
        let mounts = b"24 30 0:21 / /mnt/\xff\xfe rw - tmpfs - rw\n26 25 0:23 / /a\\040b\xff rw - cgroup2 cgroup2 rw\n";
        let expected = PathBuf::from(OsString::from_vec(b"/a b\xff".to_vec()));
        assert_eq!(unified_hierarchy(mounts), Some(expected));
    }

    #[test]
    fn cgroups_are_found_by_inode_number() {
        let root = tempfile::tempdir().expect("a directory");
        let inner = root.path().join("a.slice/b.service");
        fs::create_dir_all(&inner).expect("a directory");
        fs::write(root.path().join("cgroup.procs"), "").expect("a file");
        let ino = |path: &Path| fs::metadata(path).expect("it is there").ino();
        let mut found = HashMap::new();
        let own = rustix::process::geteuid().as_raw();
        each(root.path(), &mut |id, path, owner| {
            assert_eq!(owner, Some(own));
            found.insert(id, path.to_vec());
        });
        assert_eq!(found.len(), 3);
        assert_eq!(found[&ino(root.path())], b"/");
        assert_eq!(found[&ino(&inner)], b"/a.slice/b.service");
    }
}
