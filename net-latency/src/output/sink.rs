//! Where the lines go: standard output or a file, through a buffer of bounded size.

use std::fmt::{self, Display};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, IsTerminal as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::Failure;

/// Bytes that the buffer holds before it has to be flushed.
const CAPACITY: usize = 64 * 1024;
/// No line of any form is longer, in bytes.
pub const LONGEST_LINE: usize = 1024;
/// A pipe that says it is writable takes this many bytes without blocking (`PIPE_BUF`).
const PIPE_CHUNK: usize = 4096;
/// Readable and writable for the owner, readable for the group: the lines say who talks to whom.
const FILE_MODE: u32 = 0o640;

/// Why lines can't be written any more.
#[derive(Debug)]
pub enum SinkError {
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
pub struct Sink {
    file: File,
    name: String,
    kind: Kind,
    buffer: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Terminal, pipe, device: has a reader who may be slow.
    Stream { terminal: bool },
    /// A regular file that someone else opened (redirection).
    Redirected,
    /// A regular file of ours, appended to, and the length it has if nobody else writes to it.
    Appended { len: u64 },
}

impl Sink {
    /// Opens `output` for appending, created where it doesn't exist, or standard output for `None`.
    ///
    /// # Errors
    /// A usage failure if the file can't be opened.
    pub fn open(output: Option<&Path>) -> Result<Self, Failure> {
        let (opened, name) = match output {
            None => (io::stdout().as_fd().try_clone_to_owned().map(File::from), "standard output".to_owned()),
            Some(path) => (
                OpenOptions::new().append(true).create(true).mode(FILE_MODE).open(path),
                path.display().to_string(),
            ),
        };
        let inspected = opened.and_then(|file| {
            let metadata = file.metadata()?;
            let kind = match (metadata.is_file(), output) {
                (true, Some(_)) => Kind::Appended { len: metadata.len() },
                (true, None) => Kind::Redirected,
                (false, _) => Kind::Stream { terminal: file.is_terminal() },
            };
            Ok((file, kind))
        });
        match inspected {
            Ok((file, kind)) => Ok(Self { file, name, kind, buffer: Vec::with_capacity(CAPACITY) }),
            Err(error) => {
                Err(Failure::Usage(format!("cannot open {name}: {error}; choose a file that can be written")))
            }
        }
    }

    /// Whether the lines go to a terminal.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        self.kind == Kind::Stream { terminal: true }
    }

    /// Where to append whole lines, while [`Sink::has_room`].
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    /// Whether one more line of any form fits. If not, flush before the next line; if the reader doesn't
    /// take the lines, leave the events where they are, so that what gets lost is counted there.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.buffer.len() + LONGEST_LINE <= CAPACITY
    }

    /// Whether the output is a pipe or socket that nobody reads any more. Without this a run that has
    /// nothing to write would not notice.
    #[must_use]
    pub fn reader_gone(&self) -> bool {
        if self.kind != (Kind::Stream { terminal: false }) {
            return false;
        }
        let mut poll = [PollFd::new(&self.file, PollFlags::empty())];
        let answered = rustix::event::poll(&mut poll, Some(&Timespec::default()));
        answered.is_ok() && poll[0].revents().contains(PollFlags::ERR)
    }

    /// Writes what the buffer holds; `true` when it is empty. A reader that takes nothing for as long as
    /// `patience` stops nobody: then the rest stays in the buffer and the answer is `false`.
    ///
    /// # Errors
    /// When nothing can be written any more. The buffer is dropped then; a file of ours ends with a whole
    /// line, unless others write to it too.
    pub fn flush(&mut self, patience: Duration) -> Result<bool, SinkError> {
        let mut written = 0;
        let outcome = self.write_from(&mut written, patience);
        if let Kind::Appended { len } = &mut self.kind {
            *len += written as u64;
        }
        match outcome {
            Ok(done) => {
                self.buffer.drain(..written);
                Ok(done)
            }
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                self.buffer.clear();
                Err(SinkError::Closed)
            }
            Err(source) => {
                let whole = whole_lines(&self.buffer[..written]);
                let lost_lines = self.buffer[whole..].iter().filter(|&&byte| byte == b'\n').count();
                self.buffer.clear();
                let source = match self.mend(written - whole) {
                    Ok(()) => source,
                    Err(error) => io::Error::new(
                        source.kind(),
                        format!("{source} (and its last line stays torn: {error})"),
                    ),
                };
                Err(SinkError::Failed { name: self.name.clone(), source, lost_lines })
            }
        }
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
                    &rest[..rest.len().min(PIPE_CHUNK)]
                }
                Kind::Redirected | Kind::Appended { .. } => rest,
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
        if let Kind::Appended { len } = &mut self.kind
            && torn > 0
            && self.file.metadata()?.len() == *len
        {
            *len -= torn as u64;
            self.file.set_len(*len)?;
        }
        Ok(())
    }
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
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const PATIENCE: Duration = Duration::from_millis(1);

    fn stream(file: impl Into<std::os::fd::OwnedFd>) -> Sink {
        Sink {
            file: File::from(file.into()),
            name: "pipe".to_owned(),
            kind: Kind::Stream { terminal: false },
            buffer: Vec::new(),
        }
    }

    #[test]
    fn a_file_is_appended_to_and_created_unreadable_for_others() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("lines");
        for line in ["one\n", "two\n"] {
            let mut sink = Sink::open(Some(&path)).expect("can be opened");
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
        let failure = Sink::open(Some(Path::new("/nonexistent/lines"))).expect_err("no such directory");
        assert_eq!(failure.exit_code(), 2);
        assert!(failure.to_string().contains("/nonexistent/lines"), "{failure}");
    }

    #[test]
    fn a_full_device_is_a_failure_that_names_it_and_counts_the_lines() {
        let mut sink = Sink::open(Some(Path::new("/dev/full"))).expect("every Linux has it");
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
    fn a_torn_line_is_taken_off_a_file_of_ours() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("lines");
        fs::write(&path, "before\n").expect("writable");
        let mut sink = Sink::open(Some(&path)).expect("can be opened");
        sink.buffer().extend_from_slice(b"whole\nto");
        assert!(sink.flush(PATIENCE).expect("can be written"));
        sink.mend(2).expect("can be truncated");
        assert_eq!(fs::read_to_string(&path).expect("exists"), "before\nwhole\n");
    }

    #[test]
    fn what_others_wrote_is_left_alone() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("lines");
        let mut sink = Sink::open(Some(&path)).expect("can be opened");
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
}
