//! Where control groups are.

use std::{
    collections::HashMap,
    ffi::OsString,
    fs,
    os::unix::{
        ffi::{OsStrExt as _, OsStringExt as _},
        fs::{DirEntryExt as _, MetadataExt as _},
    },
    path::{Path, PathBuf},
};

use super::mounts;

/// Directories of cgroups below each other: more than anybody has.
const DEEPEST: usize = 64;

/// Where the unified hierarchy is mounted, from the text of `/proc/self/mountinfo`.
#[must_use]
pub fn unified_hierarchy(mounts: &[u8]) -> Option<PathBuf> {
    let unified = mounts::read(mounts).find(|mount| mount.kind == b"cgroup2")?;
    Some(OsString::from_vec(unified.place).into())
}

/// Paths below `root`, a hierarchy, of all its cgroups and of itself, by inode number, which is the id. One that comes or
/// goes meanwhile may be among them or not.
#[must_use]
pub fn all(root: &Path) -> HashMap<u64, Vec<u8>> {
    let mut found = HashMap::new();
    if let Ok(data) = fs::metadata(root) {
        found.insert(data.ino(), b"/".to_vec());
    }
    walk(root, &mut Vec::new(), DEEPEST, &mut found);
    found
}

/// Adds the cgroups in `directory`, which is at `path` below the root. One that goes meanwhile is not found.
fn walk(directory: &Path, path: &mut Vec<u8>, depth: usize, found: &mut HashMap<u64, Vec<u8>>) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        if depth > 0 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let len = path.len();
            path.push(b'/');
            path.extend_from_slice(entry.file_name().as_bytes());
            found.insert(entry.ino(), path.clone());
            walk(&entry.path(), path, depth - 1, found);
            path.truncate(len);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

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
        let found = all(root.path());
        assert_eq!(found.len(), 3);
        assert_eq!(found[&ino(root.path())], b"/");
        assert_eq!(found[&ino(&inner)], b"/a.slice/b.service");
    }
}
