//! Where the lines go: standard output or a file, through a buffer of bounded size.

use std::{
    fmt::{self, Display},
    fs::File,
    io::{self, ErrorKind, IsTerminal as _, Write as _},
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::pcapng::Blocks;
use crate::{error::Failure, files::Place};

/// Bytes that the buffer holds before it has to be flushed.
const CAPACITY: usize = 64 * 1024;
/// No line of any form is longer, in bytes, with those copied beyond its end for a moment.
pub(crate) const LONGEST_LINE: usize = 2048 + 128;
/// A pipe that says it is writable takes this many bytes without blocking (`PIPE_BUF`).
const PIPE_CHUNK: usize = 4096;

/// Why lines can't be written any more.
#[derive(Debug)]
pub(crate) enum SinkError {
    /// The reader has closed its end. That is a clean end, not a failure.
    Closed,
    /// The write failed: disk full, device gone, …
    Failed {
        /// The file's name, or that it is standard output.
        name: String,
        /// What the system said.
        source: io::Error,
        /// Lines that were ready and are not in the file.
        lost_lines: usize,
    },
}

impl SinkError {
    /// Why a terminal gets no pcapng.
    pub(crate) const BINARY: &str =
        "pcapng can't be read on a terminal; write it to a file, -o FILE, or to a pipe, | wireshark -k -i -";
}

impl Display for SinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the reader of the output has closed it"),
            Self::Failed { name, source, lost_lines } => {
                write!(f, "cannot write to {name}: {source}; lines not written: {lost_lines}")
            }
        }
    }
}

impl std::error::Error for SinkError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        None // `Display` has said it already.
    }
}

/// The place where lines go. Lines are collected in [`Sink::buffer`] and written by [`Sink::flush`].
#[derive(Debug)]
pub(crate) struct Sink {
    file: File,
    name: String,
    kind: Kind,
    /// Begins each file that is empty.
    header: &'static [u8],
    buffer: Vec<u8>,
    /// Bytes of the header at the start of the buffer.
    header_left: usize,
    warning: Option<String>,
    /// The reader took nothing for as long as the last flush was to wait.
    stalled: bool,
    /// The file's name, if it was made for these lines and the run has not begun.
    made: Option<Place>,
    /// What it holds in place of lines, in pcapng.
    blocks: Option<Blocks>,
}

#[derive(Debug)]
enum Kind {
    /// Terminal, pipe, device: has a reader that may be slow.
    Stream { terminal: bool },
    /// A regular file that someone else opened (redirection).
    Redirected,
    /// A regular file of ours.
    Appended(Appended),
}

/// A regular file that is appended to.
#[derive(Debug)]
struct Appended {
    path: PathBuf,
    /// The length it has if no one else writes to it.
    len: u64,
}

impl Sink {
    /// Opens `output` for appending, created where it doesn't exist, or standard output for `None`. `header` begins
    /// it unless it is a file that holds something.
    ///
    /// # Errors
    /// A usage failure if the file can't be opened.
    pub(crate) fn open(output: Option<&Path>, header: &'static [u8]) -> Result<Self, Failure> {
        let (opened, name) = match output {
            None => {
                let stdout = io::stdout().as_fd().try_clone_to_owned();
                (stdout.map(|file| (file.into(), None)), "standard output".to_owned())
            }
            Some(path) => (open(path), path.display().to_string()),
        };
        let inspected = opened.and_then(|(file, made): (File, _)| {
            let metadata = file.metadata()?;
            let kind = match (metadata.is_file(), output) {
                (true, Some(path)) => Kind::Appended(Appended { path: path.to_owned(), len: metadata.len() }),
                (true, None) => Kind::Redirected,
                (false, _) => Kind::Stream { terminal: file.is_terminal() },
            };
            let is_begun = metadata.is_file() && metadata.len() > 0;
            Ok((file, made, kind, if is_begun { b"" } else { header }))
        });
        let (file, made, kind, begin) = inspected.map_err(|error| {
            let option = if output.is_some() { "--output: " } else { "" };
            // A missing directory's sentence has its own; the system's words have none.
            let has_remedy = error.kind() == ErrorKind::NotFound && error.get_ref().is_some();
            let remedy = if has_remedy { "" } else { "; choose a file that can be written" };
            Failure::Usage(format!("{option}cannot open {name}: {error}{remedy}"))
        })?;
        let mut buffer = Vec::with_capacity(CAPACITY);
        buffer.extend_from_slice(begin);
        Ok(Self {
            file,
            name,
            kind,
            header,
            header_left: begin.len(),
            buffer,
            warning: None,
            stalled: false,
            made,
            blocks: None,
        })
    }

    /// The sink for blocks of pcapng, which are treated as lines.
    ///
    /// # Errors
    /// A usage failure for a terminal.
    pub(crate) fn for_blocks(mut self) -> Result<Self, Failure> {
        if self.is_terminal() {
            return Err(Failure::Usage(SinkError::BINARY.to_owned()));
        }
        self.blocks = Some(Blocks::default());
        Ok(self)
    }

    /// The run has begun: from now on the file stays, even if nothing is written. One that was made for these lines
    /// goes again if this is never called.
    pub(crate) fn begin(&mut self) {
        self.made = None;
    }

    /// [`Self::begin`] for a format that can't be appended to: empties a file of ours, which was left as it was until now.
    ///
    /// # Errors
    /// If it can't be emptied.
    pub(crate) fn begin_anew(&mut self) -> Result<(), SinkError> {
        self.begin();
        if let Kind::Appended(file) = &mut self.kind {
            self.file.set_len(0).map_err(|source| SinkError::Failed {
                name: self.name.clone(),
                source,
                lost_lines: 0,
            })?;
            file.len = 0;
            self.buffer.splice(..self.header_left, self.header.iter().copied());
            self.header_left = self.header.len();
        }
        Ok(())
    }

    /// The file that may be opened anew, if the lines go to one.
    #[must_use]
    pub(crate) fn reopened(&self) -> Option<&Path> {
        match &self.kind {
            Kind::Appended(file) => Some(&file.path),
            Kind::Redirected | Kind::Stream { .. } => None,
        }
    }

    /// Whether the lines go to a terminal.
    #[must_use]
    pub(crate) fn is_terminal(&self) -> bool {
        matches!(self.kind, Kind::Stream { terminal: true })
    }

    /// Where to append whole lines, while [`Sink::has_room`].
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    /// Whether one more line of any form fits. If not, flush before the next line; if the reader doesn't
    /// take the lines, leave the events where they are, so that what gets lost is counted there.
    #[must_use]
    pub(crate) fn has_room(&self) -> bool {
        self.buffer.len() + LONGEST_LINE <= CAPACITY
    }

    /// Whether the output is a pipe or socket without a reader. Without this a run that has nothing to write would not notice.
    #[must_use]
    pub(crate) fn reader_gone(&self) -> bool {
        if !matches!(self.kind, Kind::Stream { terminal: false }) {
            return false;
        }
        let mut poll = [PollFd::new(&self.file, PollFlags::empty())];
        let answered = rustix::event::poll(&mut poll, Some(&Timespec::default()));
        answered.is_ok() && poll[0].revents().contains(PollFlags::ERR)
    }

    /// Lines that wait in the buffer.
    #[must_use]
    pub(crate) fn waiting_lines(&self) -> u64 {
        match &self.blocks {
            Some(blocks) => blocks.left(&self.buffer, 0) as u64,
            None => count_lines(&self.buffer[self.header_left..]) as u64,
        }
    }

    /// What went wrong since the last call and is no reason to end.
    pub(crate) fn take_warning(&mut self) -> Option<String> {
        self.warning.take()
    }

    /// Writes what the buffer holds; `true` when it is empty. If the reader takes nothing for as long as `patience`, the rest stays in the
    /// buffer and the answer is `false`.
    ///
    /// # Errors
    /// When nothing can be written any more. The buffer is dropped then; a file of ours ends with a whole
    /// line, unless others write to it too.
    pub(crate) fn flush(&mut self, patience: Duration) -> Result<bool, SinkError> {
        let done = self.write(patience)?;
        self.stalled = !done;
        Ok(done)
    }

    /// Whether the last flush gave up, since the reader took nothing.
    #[must_use]
    pub(crate) fn is_stalled(&self) -> bool {
        self.stalled
    }

    /// Writes what the buffer holds, and opens a file of ours anew by its name: it may have been renamed. Anything else stays open.
    ///
    /// # Errors
    /// As [`Sink::flush`].
    pub(crate) fn reopen(&mut self, patience: Duration) -> Result<(), SinkError> {
        self.write(patience)?;
        let Kind::Appended(old) = &self.kind else { return Ok(()) };
        let path = old.path.clone();
        let opened = open(&path).and_then(|(file, _)| {
            let metadata = file.metadata()?;
            if !metadata.is_file() {
                return Err(io::Error::other("it is no longer a regular file"));
            }
            Ok((file, metadata.len()))
        });
        match opened {
            Ok((file, len)) => {
                if len == 0 {
                    self.buffer.splice(..self.header_left, self.header.iter().copied());
                    self.header_left = self.header.len();
                }
                (self.file, self.kind) = (file, Kind::Appended(Appended { path, len }));
            }
            Err(error) => {
                self.warning = Some(format!(
                    "cannot begin a new file {}: {error}; still writing to the old one",
                    self.name
                ));
            }
        }
        Ok(())
    }

    /// Writes the buffer.
    fn write(&mut self, patience: Duration) -> Result<bool, SinkError> {
        let mut written = 0;
        let outcome = self.write_from(&mut written, patience);
        if let Kind::Appended(file) = &mut self.kind {
            file.len += written as u64;
        }
        match outcome {
            Ok(done) => {
                if let Some(blocks) = &mut self.blocks {
                    blocks.take(&self.buffer, written);
                }
                self.buffer.drain(..written);
                self.header_left = self.header_left.saturating_sub(written);
                Ok(done)
            }
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                self.drop_buffer();
                Err(SinkError::Closed)
            }
            Err(source) => {
                let (whole, lost_lines) = match &self.blocks {
                    Some(blocks) => (blocks.whole(&self.buffer, written), blocks.left(&self.buffer, written)),
                    None => {
                        let whole = whole_lines(&self.buffer[..written]);
                        (whole, count_lines(&self.buffer[whole.max(self.header_left)..]))
                    }
                };
                self.drop_buffer();
                let source = match self.mend(written - whole) {
                    Ok(()) => source,
                    Err(error) => io::Error::new(
                        source.kind(),
                        format!("{source} (and the last line written stays incomplete: {error})"),
                    ),
                };
                Err(SinkError::Failed { name: self.name.clone(), source, lost_lines })
            }
        }
    }

    fn drop_buffer(&mut self) {
        self.buffer.clear();
        self.header_left = 0;
    }

    fn write_from(&mut self, written: &mut usize, patience: Duration) -> io::Result<bool> {
        while let rest = &self.buffer[*written..]
            && !rest.is_empty()
        {
            let chunk = match self.kind {
                Kind::Stream { .. } => {
                    if !writable_within(&self.file, patience)? {
                        return Ok(false);
                    }
                    chunk(rest)
                }
                Kind::Redirected | Kind::Appended(_) => rest,
            };
            match self.file.write(chunk) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => *written += count,
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Takes the last `torn` bytes, the beginning of a line, off a file of ours, if they are its end.
    fn mend(&mut self, torn: usize) -> io::Result<()> {
        if let Kind::Appended(file) = &mut self.kind
            && torn > 0
            && self.file.metadata()?.len() == file.len
        {
            file.len -= torn as u64;
            self.file.set_len(file.len)?;
        }
        Ok(())
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        if let Some(made) = self.made.take()
            && self.file.metadata().is_ok_and(|file| file.len() == 0)
            && made.names(&self.file).is_ok_and(|ours| ours)
        {
            // Nothing more can be done about a file that can't be removed.
            let _ = made.remove();
        }
    }
}

/// Opens a file for appending; its name too, if it was made for that.
fn open(path: &Path) -> io::Result<(File, Option<Place>)> {
    let place = Place::find(path)?;
    let (file, is_new) = place.append()?;
    Ok((file, is_new.then_some(place)))
}

/// The bytes that are written to a reader at once: whole lines, so that the last one that a stalled reader gets is not torn. A pipe takes N
/// bytes all or not at all. A line longer than that comes in pieces.
fn chunk(rest: &[u8]) -> &[u8] {
    let most = &rest[..rest.len().min(PIPE_CHUNK)];
    match whole_lines(most) {
        0 => most,
        whole => &most[..whole],
    }
}

fn count_lines(bytes: &[u8]) -> usize {
    bytes.iter().filter(|&&byte| byte == b'\n').count()
}

/// Length of the whole lines at the start of `bytes`.
fn whole_lines(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |newline| newline + 1)
}

/// Waits until `file` takes bytes (or reports an error when written to).
fn writable_within(file: &File, patience: Duration) -> io::Result<bool> {
    let deadline = Instant::now() + patience;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(file, PollFlags::OUT)], Some(&timeout)) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Read as _;
    use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};

    use proptest::prelude::*;

    use super::*;

    const PATIENCE: Duration = Duration::from_millis(1);

    fn stream(file: impl Into<std::os::fd::OwnedFd>) -> Sink {
        Sink {
            file: File::from(file.into()),
            name: "pipe".to_owned(),
            blocks: None,
            kind: Kind::Stream { terminal: false },
            header: b"",
            header_left: 0,
            buffer: Vec::new(),
            warning: None,
            stalled: false,
            made: None,
        }
    }

    fn append(path: &Path) -> Result<Sink, Failure> {
        let mut sink = Sink::open(Some(path), b"")?;
        sink.begin();
        Ok(sink)
    }

    #[test]
    fn a_file_is_appended_to_and_created_unreadable_for_others() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("lines");
        for line in ["one\n", "two\n"] {
            let mut sink = append(&path).expect("can be opened");
            assert!(!sink.is_terminal());
            sink.buffer().extend_from_slice(line.as_bytes());
            assert!(sink.flush(PATIENCE).expect("can be written"));
            assert!(sink.buffer().is_empty());
        }
        assert_eq!(fs::read_to_string(&path).expect("exists"), "one\ntwo\n");
        let mode = fs::metadata(&path).expect("exists").permissions().mode();
        assert_eq!(mode & 0o137, 0, "mode {mode:o}");
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_named() {
        let failure = Sink::open(Some(Path::new("/nonexistent/lines")), b"").expect_err("no such directory");
        assert_eq!(failure.exit_code(), 2);
        let text = failure.to_string();
        assert_eq!(text, "--output: cannot open /nonexistent/lines: there is no such directory; create it");
        let failure = Sink::open(Some(Path::new("/proc/self/fd/99999")), b"").expect_err("not open");
        let text = failure.to_string();
        assert!(text.ends_with("; choose a file that can be written"), "{text}");
    }

    #[test]
    fn a_full_device_is_a_failure_that_names_it_and_counts_the_lines() {
        let mut sink = Sink::open(Some(Path::new("/dev/full")), b"").expect("every Linux has it");
        sink.buffer().extend_from_slice(b"one\ntwo\n");
        let error = sink.flush(PATIENCE).expect_err("full");
        assert!(
            matches!(&error, SinkError::Failed { lost_lines: 2, source, .. }
            if source.kind() == ErrorKind::StorageFull),
            "{error:?}"
        );
        assert!(error.to_string().contains("/dev/full"), "{error}");
        assert!(sink.buffer().is_empty());
    }

    #[test]
    fn an_error_of_the_device_is_a_failure_that_counts_the_lines() {
        // The memory of a process takes nothing at its beginning: EIO.
        let mut sink = Sink::open(Some(Path::new("/proc/self/mem")), b"").expect("procfs");
        sink.buffer().extend_from_slice(b"one\ntwo\n");
        let error = sink.flush(PATIENCE).expect_err("it takes nothing");
        let SinkError::Failed { source, lost_lines, .. } = &error else { panic!("{error}") };
        assert_eq!((source.raw_os_error(), *lost_lines), (Some(libc::EIO), 2));
    }

    #[test]
    fn a_closed_pipe_is_told_apart() {
        let (reader, writer) = io::pipe().expect("pipe");
        drop(reader);
        let mut sink = stream(writer);
        sink.buffer().extend_from_slice(b"one\n");
        assert!(matches!(sink.flush(PATIENCE), Err(SinkError::Closed)));
    }

    #[test]
    fn a_slow_reader_blocks_nobody_and_loses_nothing() {
        let (mut reader, writer) = io::pipe().expect("pipe");
        let mut sink = stream(writer);
        let lines: Vec<u8> = (0..100_000).flat_map(|n| format!("{n}\n").into_bytes()).collect();
        sink.buffer().extend_from_slice(&lines);
        assert!(!sink.flush(PATIENCE).expect("pipe is open"));
        assert!(!sink.has_room());
        let read = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            reader.read_to_end(&mut bytes).map(|_| bytes)
        });
        assert!(sink.flush(Duration::from_secs(60)).expect("pipe is open"));
        drop(sink);
        assert!(read.join().expect("reader").expect("readable") == lines);
    }

    #[test]
    fn a_reader_who_stalls_gets_whole_lines() {
        let (mut reader, writer) = io::pipe().expect("pipe");
        let mut sink = stream(writer);
        let line = [b'x'; 99];
        while sink.buffer.len() < 100_000 {
            sink.buffer().extend_from_slice(&line);
            sink.buffer().push(b'\n');
        }
        assert!(!sink.flush(PATIENCE).expect("pipe is open"));
        // The run ends here.
        drop(sink);
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).expect("readable");
        assert!(bytes.ends_with(b"x\n") && bytes.len() % 100 == 0, "{} bytes", bytes.len());
        // A line longer than a pipe takes at once comes too.
        let (_reader, writer) = io::pipe().expect("pipe");
        let mut sink = stream(writer);
        sink.buffer().extend_from_slice(&[b'x'; 10_000]);
        sink.buffer().push(b'\n');
        assert!(sink.flush(PATIENCE).expect("pipe is open"));
    }

    #[test]
    fn a_torn_line_is_taken_off_a_file_of_ours() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("lines");
        fs::write(&path, "before\n").expect("writable");
        let mut sink = append(&path).expect("can be opened");
        sink.buffer().extend_from_slice(b"whole\nto");
        assert!(sink.flush(PATIENCE).expect("can be written"));
        sink.mend(2).expect("can be truncated");
        assert_eq!(fs::read_to_string(&path).expect("exists"), "before\nwhole\n");
    }

    #[test]
    fn what_others_wrote_is_left_alone() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("lines");
        let mut sink = append(&path).expect("can be opened");
        sink.buffer().extend_from_slice(b"to");
        assert!(sink.flush(PATIENCE).expect("can be written"));
        fs::write(&path, "to, and others\n").expect("writable");
        sink.mend(2).expect("nothing to do");
        assert_eq!(fs::read_to_string(&path).expect("exists"), "to, and others\n");
    }

    #[test]
    fn whole_lines_end_with_the_last_newline() {
        assert_eq!(whole_lines(b"a\nb\nc"), 4);
        assert_eq!(whole_lines(b"abc"), 0);
        assert_eq!(whole_lines(b""), 0);
    }

    const HEADER: &[u8] = b"a,header\n";

    fn with_header(path: &Path) -> Sink {
        let mut sink = Sink::open(Some(path), HEADER).expect("can be opened");
        sink.begin();
        sink
    }

    fn read(path: &Path) -> String {
        fs::read_to_string(path).expect("exists")
    }

    /// All files, the oldest first.
    fn files(path: &Path) -> Vec<String> {
        let name = |number: usize| PathBuf::from(format!("{}.{number}", path.display()));
        let count = (1..).take_while(|&number| name(number).exists()).count();
        (1..=count).rev().map(|number| read(&name(number))).chain([read(path)]).collect()
    }

    fn put(sink: &mut Sink, lines: &str) {
        sink.buffer().extend_from_slice(lines.as_bytes());
        assert!(sink.flush(PATIENCE).expect("can be written"));
        assert_eq!(sink.take_warning(), None);
    }

    #[test]
    fn a_header_begins_empty_files_only() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("lines");
        for line in ["one\n", "two\n"] {
            let mut sink = with_header(&path);
            assert_eq!(sink.waiting_lines(), 0);
            sink.buffer().extend_from_slice(line.as_bytes());
            assert_eq!(sink.waiting_lines(), 1);
            put(&mut sink, "");
        }
        assert_eq!(read(&path), "a,header\none\ntwo\n");
    }

    #[test]
    fn a_lost_header_is_no_lost_line() {
        let mut sink = Sink::open(Some(Path::new("/dev/full")), HEADER).expect("exists");
        sink.buffer().extend_from_slice(b"one\ntwo\n");
        let error = sink.flush(PATIENCE).expect_err("full");
        assert!(matches!(error, SinkError::Failed { lost_lines: 2, .. }), "{error:?}");
    }

    #[test]
    fn a_file_that_was_renamed_is_left_with_whole_lines() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("lines");
        let mut sink = with_header(&path);
        put(&mut sink, "one\n");
        fs::rename(&path, directory.path().join("lines.1")).expect("can be renamed");
        sink.buffer().extend_from_slice(b"two\n");
        sink.reopen(PATIENCE).expect("can be opened");
        put(&mut sink, "three\n");
        // It was not renamed this time.
        sink.reopen(PATIENCE).expect("can be opened");
        put(&mut sink, "four\n");
        assert_eq!(files(&path), ["a,header\none\ntwo\n", "a,header\nthree\nfour\n"]);
        let mode = fs::metadata(&path).expect("exists").permissions().mode();
        assert_eq!(mode & 0o137, 0, "mode {mode:o}");
    }

    #[test]
    fn a_pipe_stays_open() {
        let (mut reader, writer) = io::pipe().expect("pipe");
        let mut sink = stream(writer);
        sink.buffer().extend_from_slice(b"one\n");
        sink.reopen(PATIENCE).expect("nothing to do");
        sink.buffer().extend_from_slice(b"two\n");
        assert!(sink.flush(PATIENCE).expect("pipe is open"));
        drop(sink);
        let mut text = String::new();
        reader.read_to_string(&mut text).expect("readable");
        assert_eq!(text, "one\ntwo\n");
    }

    #[test]
    fn a_run_that_never_began_leaves_everything_as_it_was() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("lines");
        let open = || Sink::open(Some(&path), HEADER).expect("can be opened");
        drop(open());
        assert!(!path.exists(), "made, and left behind");
        open().begin();
        assert!(path.exists(), "a run without lines has a file");
        drop(open());
        assert!(path.exists(), "made by another run");
        fs::write(&path, "of an earlier run\n").expect("writable");
        drop(open());
        assert_eq!(read(&path), "of an earlier run\n");
    }

    #[test]
    fn what_begins_anew_does_so_when_the_run_begins() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("lines");
        fs::write(&path, "of an earlier run\n").expect("writable");
        let mut sink = Sink::open(Some(&path), HEADER).expect("can be opened");
        assert_eq!(read(&path), "of an earlier run\n");
        sink.begin_anew().expect("can be emptied");
        put(&mut sink, "one\n");
        assert_eq!(read(&path), "a,header\none\n");
        // What can't be emptied is written as it is.
        Sink::open(Some(Path::new("/dev/null")), HEADER)
            .expect("a device")
            .begin_anew()
            .expect("nothing to do");
    }

    /// What a user who can write to the directory may put in the place of our file, and what is said of it.
    #[test]
    fn what_others_put_in_its_place_is_left_and_the_old_file_goes_on() {
        type Put = fn(&Path);
        let fifo: Put = |path| {
            nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).expect("made");
        };
        // A reader makes that the FIFO can be opened.
        let read_fifo: Put = |path| {
            nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).expect("made");
            std::mem::forget(
                File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).expect("read"),
            );
        };
        let directory: Put = |path| fs::create_dir(path).expect("made");
        let link: Put = |path| {
            std::os::unix::fs::symlink(path.with_file_name("target"), path).expect("linked");
            std::os::unix::fs::lchown(path, Some(65534), None).expect("given away");
        };
        let foreign: Put = |path| {
            fs::write(path, "").expect("written");
            std::os::unix::fs::chown(path, Some(65534), None).expect("given away");
        };
        let mut puts = vec![
            (fifo, "without a reader"),
            (read_fifo, "no longer a regular file"),
            (directory, "Is a directory"),
        ];
        if rustix::process::geteuid().is_root() {
            puts.extend([(link, "a link of another user"), (foreign, "belongs to another user")]);
        }
        for (take_place, said) in puts {
            let directory = tempfile::tempdir().expect("temporary directory");
            let path = directory.path().join("lines");
            let mut sink = with_header(&path);
            put(&mut sink, "1111\n2222\n");
            fs::rename(&path, directory.path().join("moved")).expect("renamed");
            take_place(&path);
            let began = Instant::now();
            sink.reopen(PATIENCE).expect("the old one goes on");
            sink.buffer().extend_from_slice(b"3333\n");
            assert!(sink.flush(PATIENCE).expect("the old one can be written"));
            assert!(began.elapsed() < Duration::from_secs(5), "{said}: it waits for a reader");
            let warning = sink.take_warning().expect("a warning");
            assert!(warning.contains(said), "{said}: {warning}");
            assert!(
                warning.contains("lines") && warning.contains("still writing to the old one"),
                "{warning}"
            );
            let moved = read(&directory.path().join("moved"));
            assert_eq!(moved, "a,header\n1111\n2222\n3333\n", "{said}");
            assert!(!directory.path().join("target").exists(), "{said}");
        }
    }

    proptest! {
        /// Whatever is written, however it is cut into flushes, and whenever the file is renamed: all lines, in order, whole, each file
        /// with its header.
        #[test]
        fn nothing_is_lost_or_torn(
            lens in proptest::collection::vec(proptest::collection::vec(0..30usize, 0..6), 1..12),
            hangups in proptest::collection::vec(any::<bool>(), 12),
        ) {
            let directory = tempfile::tempdir().expect("temporary directory");
            let path = directory.path().join("lines");
            let mut sink = with_header(&path);
            let mut all = String::new();
            let mut found = String::new();
            let mut take = || {
                let text = read(&path);
                found += text.strip_prefix("a,header\n").expect("a header");
            };
            for (lens, hangup) in lens.iter().zip(hangups) {
                let lines: String = lens.iter().map(|&len| "x".repeat(len) + "\n").collect();
                all += &lines;
                put(&mut sink, &lines);
                if hangup {
                    take();
                    fs::remove_file(&path).expect("it is moved away");
                    sink.reopen(PATIENCE).expect("can be opened");
                    put(&mut sink, "");
                }
            }
            take();
            prop_assert_eq!(found, all);
        }
    }
}
