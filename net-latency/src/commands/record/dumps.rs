//! The files that recordings are written to: beside their names until they are whole, one at a time, and N of them.

use std::{
    ffi::{OsStr, OsString},
    fs,
    io::{self, BufWriter, Write as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow};
use chrono::{DateTime, Utc};
use tokio::sync::oneshot;

use crate::{
    error::Failure,
    files::Place,
    recording::{
        block::Block,
        file::{self, Head},
    },
};

/// What files of ours begin and end with.
const BEGIN: &str = "net-latency-";
const END: &str = ".nlr";
/// The end of one that is not whole.
const PART: &str = ".part";
/// Bytes written at once.
const CHUNK: usize = 1 << 20;
/// Room that a file system keeps: the smaller of its 20th part and this.
const SPARE: u64 = 1 << 30;

/// What came of a file: its name, packets and bytes, or why there is none.
pub(super) type Written = Result<Dumped, io::Error>;

/// A file that is whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Dumped {
    pub(super) name: String,
    pub(super) packets: u64,
    pub(super) bytes: u64,
    pub(super) time: Duration,
}

/// Why no file is written now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// There is no packet.
    Empty,
    /// One is being written.
    Busy,
    /// The last one was written a moment ago.
    Early,
}

/// The directory.
#[derive(Debug)]
pub(super) struct Dumps {
    /// Some name in it.
    place: Place,
    path: PathBuf,
    every: Duration,
    keep: usize,
    /// The files in it, the oldest first.
    names: Vec<OsString>,
    last: Option<Instant>,
    /// Is told when a file is whole, or is not to be.
    writing: Option<oneshot::Receiver<Written>>,
}

impl Dumps {
    /// Reads the directory, and removes leftovers of a run that was killed.
    ///
    /// # Errors
    /// A usage failure if there is no such directory, or it can't be written.
    pub(super) fn open(path: &Path, every: Duration, keep: u32) -> Result<Self, Failure> {
        let refused = |error: &dyn std::fmt::Display| {
            Failure::Usage(format!("cannot keep recordings in {}: {error}", path.display()))
        };
        let place = Place::find(&Self::name_in(path)).map_err(|error| refused(&error))?;
        if !place.is_writable() {
            return Err(refused(&"this user can't write there; choose another directory"));
        }
        let mut found = Vec::new();
        for entry in fs::read_dir(path).map_err(|error| refused(&error))? {
            let entry = entry.map_err(|error| refused(&error))?;
            let name = entry.file_name();
            let (Some(text), Ok(metadata)) = (name.to_str(), entry.metadata()) else { continue };
            if !metadata.is_file() || !text.trim_start_matches('.').starts_with(BEGIN) {
                continue;
            }
            if text.ends_with(PART) {
                place.beside(name).and_then(|left| left.remove()).map_err(|error| refused(&error))?;
            } else if text.ends_with(END) {
                found.push(((metadata.mtime(), metadata.mtime_nsec()), name));
            }
        }
        found.sort();
        let names = found.into_iter().map(|(_, name)| name).collect();
        let path = path.to_owned();
        Ok(Self { place, path, every, keep: keep as usize, names, last: None, writing: None })
    }

    /// A name in the directory, of no file.
    pub(super) fn name_in(path: &Path) -> PathBuf {
        path.join(format!("{BEGIN}new"))
    }

    /// Whether a file may be begun now.
    pub(super) fn check(&self) -> Result<(), Refused> {
        if self.writing.is_some() {
            return Err(Refused::Busy);
        }
        if self.last.is_some_and(|last| last.elapsed() < self.every) {
            return Err(Refused::Early);
        }
        Ok(())
    }

    /// Begins a file of these blocks, on a thread of its own. [`Self::written`] says what came of it.
    ///
    /// # Errors
    /// If there can't be a thread or a file, or the disk has no room.
    pub(super) fn begin(&mut self, head: Head, blocks: Vec<Arc<Block>>) -> Result<(), Failure> {
        // Also where it fails: what fails now fails again in a moment.
        self.last = Some(Instant::now());
        let needed: u64 = blocks.iter().map(|block| block.size() as u64).sum();
        check_room(&self.place, needed).map_err(|error| self.failed(error))?;
        let name = name(head.wall_ns, &self.names);
        let mut part = OsString::from(format!(".{}", process::id()));
        part.push(PART);
        let mut hidden = OsString::from(".");
        hidden.push(&name);
        hidden.push(&part);
        let (part, whole) = self
            .place
            .beside(hidden)
            .and_then(|part| Ok((part, self.place.beside(name.clone())?)))
            .map_err(|error| self.failed(error))?;
        let (sender, writing) = oneshot::channel();
        thread::Builder::new()
            .name("dump".to_owned())
            .spawn(move || {
                // The run may have ended meanwhile, but not before this has.
                let _ = sender.send(write(&head, blocks, &part, &whole));
            })
            .context("cannot start a thread")?;
        self.names.push(name);
        self.writing = Some(writing);
        Ok(())
    }

    /// What came of the file that was begun last; never if none was.
    pub(super) async fn written(&mut self) -> Written {
        let Some(writing) = &mut self.writing else { return std::future::pending().await };
        let written = writing.await.unwrap_or_else(|_| Err(io::Error::other("its thread has ended")));
        self.writing = None;
        if written.is_err() {
            self.names.pop();
        }
        written
    }

    /// Removes the oldest files of those that are too many.
    ///
    /// # Errors
    /// Which could not be removed. It is not tried again.
    pub(super) fn tidy(&mut self) -> Result<(), String> {
        let mut outcome = Ok(());
        while self.names.len() > self.keep {
            let oldest = self.names.remove(0);
            match self.place.beside(oldest.clone()).and_then(|oldest| oldest.remove()) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    outcome = Err(format!("cannot remove {}: {error}", self.shown(&oldest)));
                }
                _ => {}
            }
        }
        outcome
    }

    /// A file's name with that of the directory.
    pub(super) fn shown(&self, name: &OsStr) -> String {
        self.path().join(name).display().to_string()
    }

    /// Where the directory is by now.
    fn path(&self) -> PathBuf {
        self.place.directory().unwrap_or_else(|_| self.path.clone())
    }

    /// Why there is no file, and what to do about it.
    pub(super) fn failed(&self, error: io::Error) -> Failure {
        let kind = error.kind();
        let remedy = match kind {
            io::ErrorKind::NotFound => "; the directory was removed: create it, and start net-latency again",
            _ => "",
        };
        let context = format!("cannot write a recording into {}", self.path().display());
        Failure::of_output(kind, anyhow!("{error}{remedy}").context(context))
    }
}

/// The name of a file of that time. Where the clock was set back there may be one.
fn name(wall_ns: i64, names: &[OsString]) -> OsString {
    let time: DateTime<Utc> = DateTime::from_timestamp_nanos(wall_ns);
    let time = time.format("%Y%m%dT%H%M%S%.3fZ");
    let numbers = (1..).map(|number| format!("{BEGIN}{time}-{number}{END}"));
    let mut all = [format!("{BEGIN}{time}{END}")].into_iter().chain(numbers).map(OsString::from);
    all.find(|name| !names.contains(name)).expect("numbers have no end")
}

/// Whether N bytes, and a spare, fit.
fn check_room(place: &Place, needed: u64) -> io::Result<()> {
    let (free, all) = place.room()?;
    let spare = (all / 20).min(SPARE);
    if free < needed.saturating_add(spare) {
        return Err(io::Error::new(
            io::ErrorKind::StorageFull,
            format!(
                "the disk is nearly full: {} MiB are free, the recording needs {} MiB, and {} MiB have to stay free",
                free >> 20,
                needed.div_ceil(1 << 20),
                spare >> 20
            ),
        ));
    }
    Ok(())
}

/// Writes a file beside its name, and gives it that when it is whole and on the disk.
fn write(head: &Head, blocks: Vec<Arc<Block>>, part: &Place, whole: &Place) -> Written {
    let begun = Instant::now();
    let packets = blocks.iter().map(|block| u64::from(block.rows)).sum();
    let written = part.create().and_then(|file| {
        let mut out = BufWriter::with_capacity(CHUNK, file);
        file::write(head, blocks, &mut out)?;
        out.flush()?;
        let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()?;
        let bytes = file.metadata()?.len();
        part.rename(whole)?;
        Ok(bytes)
    });
    // Nothing more can be done about a file that can't be removed.
    let bytes = written.inspect_err(|_| drop(part.remove()))?;
    let name = whole.name().to_string_lossy().into_owned();
    Ok(Dumped { name, packets, bytes, time: begun.elapsed() })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::{
        packet::event::{
            Found,
            fixtures::{WALL_NS, incoming},
        },
        recording::block::Packer,
    };

    fn blocks() -> Vec<Arc<Block>> {
        let mut packer = Packer::default();
        packer.pack(&incoming(), None, None, Found::default);
        packer.finish().into_iter().map(Arc::new).collect()
    }

    fn files(path: &Path) -> Vec<String> {
        let names = fs::read_dir(path).expect("there").map(|entry| entry.expect("there").file_name());
        let mut names: Vec<_> = names.map(|name| name.into_string().expect("UTF-8")).collect();
        names.sort();
        names
    }

    /// Writes a file of that time.
    fn dump(dumps: &mut Dumps, wall_ns: i64) -> Written {
        dumps.begin(Head { wall_ns, ..Head::new() }, blocks()).expect("there is room");
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(dumps.written())
    }

    #[test]
    fn so_many_stay_and_the_oldest_goes() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path();
        fs::write(path.join("somebody's"), "").expect("written");
        fs::write(path.join(".net-latency-1.nlr.7.part"), "of a run that was killed").expect("written");
        let mut dumps = Dumps::open(path, Duration::ZERO, 2).expect("a directory");
        assert_eq!(files(path), ["somebody's"]);
        // At one time, and with a clock that was set back.
        for wall_ns in [WALL_NS, WALL_NS, WALL_NS - 3_600_000_000_000] {
            let dumped = dump(&mut dumps, wall_ns).expect("written");
            assert_eq!(dumped.packets, 1);
            dumps.tidy().expect("removed");
        }
        let expected =
            ["net-latency-20220302T150136.123Z.nlr", "net-latency-20220302T160136.123Z-1.nlr", "somebody's"];
        assert_eq!(files(path), expected);
        let file = path.join(expected[0]);
        assert_eq!(fs::metadata(&file).expect("there").permissions().mode() & 0o137, 0);
        assert!(fs::read(&file).expect("there").starts_with(file::MAGIC));
        // The next run counts them by their age.
        let mut dumps = Dumps::open(path, Duration::ZERO, 2).expect("a directory");
        dump(&mut dumps, WALL_NS + 1_000_000_000).expect("written");
        dumps.tidy().expect("removed");
        assert_eq!(files(path)[1], "net-latency-20220302T160137.123Z.nlr");
    }

    #[test]
    fn one_at_a_time_and_not_too_often() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let mut dumps = Dumps::open(directory.path(), Duration::from_secs(3_600), 2).expect("a directory");
        assert_eq!(dumps.check(), Ok(()));
        dumps.begin(Head::new(), blocks()).expect("there is room");
        assert_eq!(dumps.check(), Err(Refused::Busy));
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(dumps.written()).expect("written");
        assert_eq!(dumps.check(), Err(Refused::Early));
    }

    #[test]
    fn what_fails_leaves_nothing() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("in");
        fs::create_dir(&path).expect("made");
        let mut dumps = Dumps::open(&path, Duration::ZERO, 2).expect("a directory");
        // In the way of the rename.
        fs::create_dir(path.join("net-latency-20220302T160136.123Z.nlr")).expect("made");
        dump(&mut dumps, WALL_NS).expect_err("in the way");
        assert_eq!(files(&path).len(), 1);
        assert!(check_room(&dumps.place, u64::MAX).expect_err("full").to_string().contains("nearly full"));
        fs::remove_dir_all(&path).expect("removed");
        dump(&mut dumps, WALL_NS).expect_err("the directory is gone");
        let sentence = Dumps::open(&path, Duration::ZERO, 2).expect_err("gone").to_string();
        assert!(sentence.contains("create it"), "{sentence}");
    }
}
