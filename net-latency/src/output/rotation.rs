//! Rotation of a file of lines: FILE becomes FILE.1, which had become FILE.2, and so on.

use std::{
    ffi::OsString,
    fs::File,
    io::{self, ErrorKind},
    os::unix::fs::MetadataExt as _,
};

use crate::files::Place;

/// Whether `place` is the name of `file`.
pub(super) fn is_named(file: &File, place: &Place) -> io::Result<bool> {
    let ours = file.metadata()?;
    match place.status() {
        Ok(named) => Ok((named.st_dev, named.st_ino) == (ours.dev(), ours.ino())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Renames FILE to FILE.1 and, as far as that is necessary for it, those before it. Only FILE.`keep` is ever
/// replaced.
pub(super) fn shift(place: &Place, keep: u32) -> io::Result<()> {
    let numbered = |number: u32| {
        let mut name = OsString::from(place.name());
        if number > 0 {
            name.push(format!(".{number}"));
        }
        place.beside(name)
    };
    let keep = keep.max(1);
    let mut last = 1;
    while last < keep {
        match numbered(last)?.status() {
            Err(error) if error.kind() == ErrorKind::NotFound => break,
            // A dangling link is a name in use too.
            _ => last += 1,
        }
    }
    for number in (0..last).rev() {
        numbered(number)?.rename(&numbered(number + 1)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    fn place(path: &Path) -> Place {
        Place::find(path).expect("a place")
    }

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
            shift(&place(&path), 2).expect("can be renamed");
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
        shift(&place(&path), 3).expect("can be renamed");
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
        assert!(is_named(&file, &place(&path)).expect("readable"));
        fs::rename(&path, directory.path().join("other")).expect("can be renamed");
        assert!(!is_named(&file, &place(&path)).expect("readable"));
        fs::write(&path, "another's").expect("writable");
        assert!(!is_named(&file, &place(&path)).expect("readable"));
    }
}
