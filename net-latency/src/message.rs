//! Messages on standard error. If it is closed, the run goes on. A reader that is slow, or reads nothing, gets what fits: the run doesn't
//! wait for it, since a run that waits can't be ended and stays attached.

use std::{
    fmt::{Display, Write as _},
    io::{self, Write},
    os::fd::AsFd,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

use crate::escape::Printable;

/// How long a message may keep us from our signals.
const PATIENCE: Duration = Duration::from_millis(20);
/// How long the end waits for a reader that takes nothing.
const LAST_PATIENCE: Duration = Duration::from_millis(250);
/// A pipe that says it is writable takes this many bytes without blocking (`PIPE_BUF`).
const CHUNK: usize = 4096;
/// Bytes that are kept for a slow reader.
const MOST: usize = 256 << 10;

static WAITING: Mutex<Waiting> = Mutex::new(Waiting { text: Vec::new(), dropped: 0 });

/// Writes a line under the tool's name. Nothing in it acts on a terminal, even if it quotes untrusted text.
pub(crate) fn tell(text: impl Display) {
    say(|out| {
        out.extend_from_slice(lines(&text.to_string()).as_bytes());
        Ok(())
    });
}

fn lines(text: &str) -> String {
    let mut lines = String::new();
    for (number, line) in text.lines().enumerate() {
        // Quoted text with a newline in it must not look like a line of ours.
        lines.push_str(if number == 0 { "net-latency: " } else { "  " });
        lines.extend([Printable(line).to_string().as_str(), "\n"]);
    }
    lines
}

/// How many there are of what has this name.
pub(crate) fn counted<N: Display + PartialEq + From<u8>>(count: N, what: &str) -> String {
    let plural = match what {
        _ if count == N::from(1) => "",
        _ if what.ends_with('s') => "es",
        _ => "s",
    };
    format!("{count} {what}{plural}")
}

/// How many there are of what has this name, and what became of it.
pub(crate) fn fate_of(count: u64, (what, fate): (&str, &str)) -> String {
    format!("{} {fate}", counted(count, what))
}

/// Writes a line for each of these that there are: how many, of what, and what became of it.
///
/// # Errors
/// When `out` can't be written.
pub(crate) fn write_counts(counts: &[(u64, (&str, &str))], out: &mut impl Write) -> io::Result<()> {
    for (count, meaning) in counts.iter().filter(|(count, _)| *count > 0) {
        writeln!(out, "  {}", fate_of(*count, *meaning))?;
    }
    Ok(())
}

/// Writes what `what` puts together.
pub(crate) fn say(what: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) {
    let mut text = Vec::new();
    if what(&mut text).is_ok() {
        let mut waiting = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.add(text);
        waiting.write(&io::stderr(), PATIENCE);
    }
}

/// Writes what still waits for a slow reader, as far as that one takes it.
pub(crate) fn finish() {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner).write(&io::stderr(), LAST_PATIENCE);
}

/// Text that is drawn on a terminal and soon drawn anew: a terminal that takes nothing now gets the next one.
pub(crate) struct Drawing;

impl Write for Drawing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let waiting = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.text.is_empty() && is_writable(io::stderr(), Duration::ZERO)? {
            rustix::io::write(io::stderr(), &bytes[..bytes.len().min(CHUNK)])?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Text that was not read yet.
struct Waiting {
    text: Vec<u8>,
    /// Messages that there was no room for.
    dropped: u64,
}

impl Waiting {
    fn add(&mut self, text: Vec<u8>) {
        if self.text.len() + text.len() > MOST {
            self.dropped += 1;
            return;
        }
        if self.dropped > 0 {
            let mut words = String::new();
            // Memory can be written.
            let dropped = counted(self.dropped, "message");
            let _ = writeln!(words, "net-latency: {dropped} dropped: standard error was not read");
            self.text.extend_from_slice(words.as_bytes());
            self.dropped = 0;
        }
        self.text.extend_from_slice(&text);
    }

    /// Writes as long as something is taken within `patience`.
    fn write(&mut self, to: &impl AsFd, patience: Duration) {
        let mut written = 0;
        while written < self.text.len() {
            let rest = &self.text[written..];
            let outcome = match is_writable(to, patience) {
                Ok(true) => rustix::io::write(to, &rest[..rest.len().min(CHUNK)]),
                Ok(false) => break,
                Err(error) => Err(error),
            };
            match outcome {
                Ok(count) => written += count,
                Err(Errno::INTR | Errno::AGAIN) => {}
                // Closed, or full: there is no reader to tell.
                Err(_) => written = self.text.len(),
            }
        }
        self.text.drain(..written);
    }
}

fn is_writable(to: impl AsFd, patience: Duration) -> Result<bool, Errno> {
    let timeout = Timespec { tv_sec: 0, tv_nsec: patience.subsec_nanos().into() };
    match poll(&mut [PollFd::new(&to, PollFlags::OUT)], Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        // A signal has come: its handler gets its turn.
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Read as _, time::Instant};

    use super::*;

    #[test]
    fn nothing_in_a_message_acts_on_a_terminal() {
        let said = lines("there are lo, \x1b]0;owned\x07 and \u{202e}é\nnet-latency: all is well\r");
        assert_eq!(
            said,
            "net-latency: there are lo, \\u{1b}]0;owned\\u{7} and \\u{202e}é\n  net-latency: all is well\\r\n"
        );
    }

    fn line(number: usize) -> Vec<u8> {
        format!("{number:>99}\n").into_bytes()
    }

    #[test]
    fn a_reader_who_takes_nothing_stops_nobody_and_gets_all_that_was_kept() {
        let (mut reader, writer) = io::pipe().expect("a pipe");
        let mut waiting = Waiting { text: Vec::new(), dropped: 0 };
        let began = Instant::now();
        // As many bytes as a pipe holds, as are kept, and some more.
        let count = ((64 << 10) + MOST) / 100 + 50;
        for number in 0..count {
            waiting.add(line(number));
            waiting.write(&writer, Duration::ZERO);
        }
        assert!(began.elapsed() < Duration::from_secs(5), "it waits for its reader");
        assert!(waiting.dropped > 0);
        let dropped = waiting.dropped;
        let read = std::thread::spawn(move || {
            let mut text = String::new();
            reader.read_to_string(&mut text).map(|_| text)
        });
        waiting.write(&writer, Duration::from_millis(999));
        waiting.add(line(count));
        waiting.write(&writer, Duration::from_millis(999));
        assert!(waiting.text.is_empty());
        drop(writer);
        let text = read.join().expect("a reader").expect("readable");
        let kept = count - usize::try_from(dropped).expect("few");
        let mut expected: Vec<u8> = (0..kept).flat_map(line).collect();
        expected.extend(
            format!("net-latency: {dropped} messages dropped: standard error was not read\n").into_bytes(),
        );
        expected.extend(line(count));
        assert!(text.as_bytes() == expected, "{} bytes, not {}", text.len(), expected.len());
    }

    #[test]
    fn a_reader_who_has_gone_gets_nothing() {
        let (reader, writer) = io::pipe().expect("a pipe");
        drop(reader);
        let mut waiting = Waiting { text: line(1), dropped: 0 };
        waiting.write(&writer, Duration::from_secs(0));
        assert!(waiting.text.is_empty());
    }
}
