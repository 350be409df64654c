//! A log's lines, in memory that doesn't depend on its length nor on theirs.

use std::io::{self, Read};

use memchr::memchr;

/// Bytes held at a time.
const CAPACITY: usize = 256 << 10;
/// A line that is longer is none of ours: `output::LONGEST_LINE` is far less, and other tools may add to it.
const LONGEST: usize = 64 << 10;

/// N bytes in which no packet is are the end: a stream of blank lines, or a line without an end, would never be read.
const MOST: u64 = 256 << 20;

/// What stands between two newlines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line<'a> {
    /// A line without its newline.
    Whole(&'a [u8]),
    /// The last line, which no newline ends: its writer was stopped, or is about to go on.
    Unended(&'a [u8]),
    /// A line too long to be one of ours.
    TooLong,
}

/// The part that was not read as lines: bytes that were read ahead, and the rest.
pub(super) type Unread<R> = io::Chain<io::Cursor<Vec<u8>>, R>;

#[derive(Debug)]
pub(crate) struct Lines<R> {
    /// `None` once it is taken.
    source: Option<R>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Bytes since the last packet, and how many there may be.
    idle: u64,
    pub(super) most: u64,
}

impl<R: Read> Lines<R> {
    pub(crate) fn new(source: R) -> Self {
        Self { source: Some(source), buffer: vec![0; CAPACITY], start: 0, end: 0, idle: 0, most: MOST }
    }

    /// Whether the next bytes are these.
    pub(super) fn begin_with(&mut self, mark: &[u8]) -> io::Result<bool> {
        while self.end - self.start < mark.len() {
            if self.fill()? == 0 {
                return Ok(false);
            }
        }
        Ok(self.buffer[self.start..self.end].starts_with(mark))
    }

    /// All that is behind the mark.
    pub(super) fn take(&mut self, mark: &[u8]) -> Option<Unread<R>> {
        let ahead = self.buffer[self.start + mark.len()..self.end].to_vec();
        self.start = self.end;
        Some(io::Cursor::new(ahead).chain(self.source.take()?))
    }

    /// The line before was a packet.
    pub(crate) fn is_good(&mut self) {
        self.idle = 0;
    }

    /// The next line; `None` at the end.
    pub(crate) fn next(&mut self) -> io::Result<Option<Line<'_>>> {
        let mut searched = 0;
        let mut too_long = false;
        loop {
            let held = &self.buffer[self.start..self.end];
            if let Some(newline) = memchr(b'\n', &held[searched..]) {
                let from = self.start;
                let to = from + searched + newline;
                self.start = to + 1;
                let line = &self.buffer[from..to];
                let line = line.strip_suffix(b"\r").unwrap_or(line);
                let too_long = too_long || line.len() > LONGEST;
                return Ok(Some(if too_long { Line::TooLong } else { Line::Whole(line) }));
            }
            searched = held.len();
            if searched > LONGEST {
                too_long = true;
                self.start = self.end;
                searched = 0;
            }
            if self.fill()? == 0 {
                let from = std::mem::replace(&mut self.start, self.end);
                let rest = &self.buffer[from..self.end];
                return Ok(match (too_long, rest.is_empty()) {
                    (true, _) => Some(Line::TooLong),
                    (false, true) => None,
                    (false, false) => Some(Line::Unended(rest)),
                });
            }
        }
    }

    fn fill(&mut self) -> io::Result<usize> {
        if self.end == self.buffer.len() || self.start == self.end {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        loop {
            let Some(source) = &mut self.source else { return Ok(0) };
            match source.read(&mut self.buffer[self.end..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
                Ok(count) => {
                    self.idle += count as u64;
                    if self.idle > self.most {
                        let idle = self.most >> 20;
                        return Err(io::Error::other(format!("no packet in {idle} MiB")));
                    }
                    self.end += count;
                    return Ok(count);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Gives its bytes a few at a time.
    struct Drops<'a>(&'a [u8], usize);

    impl Read for Drops<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let count = self.1.min(self.0.len()).min(buffer.len());
            buffer[..count].copy_from_slice(&self.0[..count]);
            self.0 = &self.0[count..];
            Ok(count)
        }
    }

    fn read(text: &[u8], at_once: usize) -> Vec<String> {
        let mut lines = Lines::new(Drops(text, at_once));
        let mut found = Vec::new();
        while let Some(line) = lines.next().expect("memory can be read") {
            found.push(match line {
                Line::Whole(line) => String::from_utf8_lossy(line).into_owned(),
                Line::Unended(line) => format!("unended {}", String::from_utf8_lossy(line)),
                Line::TooLong => "too long".to_owned(),
            });
        }
        found
    }

    #[test]
    fn the_last_line_says_whether_it_was_ended() {
        assert_eq!(read(b"", 9), [""; 0]);
        assert_eq!(read(b"a\n\r\nb\r\n", 9), ["a", "", "b"]);
        assert_eq!(read(b"a\nb", 1), ["a", "unended b"]);
    }

    #[test]
    fn a_long_line_is_passed_over_whole() {
        let long = vec![b'x'; 3 * CAPACITY];
        let text = [b"a\n", &long[..], b"\nb\n", &long[..]].concat();
        for at_once in [1_000, CAPACITY, usize::MAX] {
            assert_eq!(read(&text, at_once), ["a", "too long", "b", "too long"], "{at_once}");
        }
        let longest = [&vec![b'y'; LONGEST][..], b"\n"].concat();
        assert_eq!(read(&longest.repeat(9), 7_777).len(), 9);
        assert!(read(&longest.repeat(9), 7_777).iter().all(|line| line.len() == LONGEST));
    }

    #[test]
    fn what_never_ends_is_given_up() {
        for byte in [b'x', b'\n'] {
            let mut lines = Lines { most: 4 << 20, ..Lines::new(io::repeat(byte)) };
            let given_up = loop {
                match lines.next() {
                    Ok(Some(_)) => {}
                    Ok(None) => panic!("it has no end"),
                    Err(error) => break error.to_string(),
                }
            };
            assert_eq!(given_up, "no packet in 4 MiB");
        }
        // As long as packets come it goes on.
        let mut lines = Lines { most: 1 << 20, ..Lines::new(io::repeat(b'\n')) };
        for _ in 0..3 << 20 {
            lines.next().expect("packets come").expect("a line");
            lines.is_good();
        }
    }

    proptest! {
        #[test]
        fn lines_do_not_depend_on_how_they_come(text in "[ab\n]{0,200}", at_once in 1..50usize) {
            let mut expected: Vec<String> = text.split('\n').map(str::to_owned).collect();
            match expected.pop() {
                Some(last) if !last.is_empty() => expected.push(format!("unended {last}")),
                _ => {}
            }
            prop_assert_eq!(read(text.as_bytes(), at_once), expected);
        }
    }
}
