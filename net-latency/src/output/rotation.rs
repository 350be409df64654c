//! Rotation of a file of lines: FILE becomes FILE.1, which had become FILE.2, and so on.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, ErrorKind},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

/// Whether `path` is the name of `file`.
pub(super) fn is_named(file: &File, path: &Path) -> io::Result<bool> {
    let ours = file.metadata()?;
    match fs::metadata(path) {
        Ok(named) => Ok((named.dev(), named.ino()) == (ours.dev(), ours.ino())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Renames FILE to FILE.1 and, as far as that is necessary for it, those before it. Only FILE.`keep` is ever
/// replaced.
pub(super) fn shift(path: &Path, keep: u32) -> io::Result<()> {
    let name = |number: u32| match number {
        0 => path.to_owned(),
        number => {
            let mut name = OsString::from(path);
            name.push(format!(".{number}"));
            PathBuf::from(name)
        }
    };
    let keep = keep.max(1);
    // `symlink_metadata`: a dangling link is a name in use too.
    let is_free = |number: &u32| matches!(fs::symlink_metadata(name(*number)), Err(error) if error.kind() == ErrorKind::NotFound);
    let last = (1..keep).find(is_free).unwrap_or(keep);
    for number in (0..last).rev() {
        fs::rename(name(number), name(number + 1))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contents(directory: &Path) -> Vec<(String, String)> {
        let mut files: Vec<_> = fs::read_dir(directory)
            .expect("a directory")
            .map(|entry| {
                let path = entry.expect("an entry").path();
                let name = path.file_name().expect("a name").to_string_lossy().into_owned();
                (name, fs::read_to_string(path).expect("readable"))
            })
            .collect();
        files.sort();
        files
    }

    fn expect(directory: &Path, files: &[(&str, &str)]) {
        let files: Vec<_> =
            files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        assert_eq!(contents(directory), files);
    }

    #[test]
    fn the_oldest_goes_when_there_are_enough() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("lines");
        for text in ["a", "b", "c", "d"] {
            fs::write(&path, text).expect("writable");
            shift(&path, 2).expect("can be renamed");
        }
        expect(directory.path(), &[("lines.1", "d"), ("lines.2", "c")]);
    }

    #[test]
    fn a_gap_is_filled_and_nothing_behind_it_touched() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("lines");
        for (name, text) in [("lines", "new"), ("lines.1", "one"), ("lines.3", "three"), ("lines.4", "four")]
        {
            fs::write(directory.path().join(name), text).expect("writable");
        }
        shift(&path, 3).expect("can be renamed");
        expect(
            directory.path(),
            &[("lines.1", "new"), ("lines.2", "one"), ("lines.3", "three"), ("lines.4", "four")],
        );
    }

    #[test]
    fn a_file_knows_its_name() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("lines");
        let file = File::create(&path).expect("can be created");
        assert!(is_named(&file, &path).expect("readable"));
        fs::rename(&path, directory.path().join("other")).expect("can be renamed");
        assert!(!is_named(&file, &path).expect("readable"));
        fs::write(&path, "another's").expect("writable");
        assert!(!is_named(&file, &path).expect("readable"));
    }
}
