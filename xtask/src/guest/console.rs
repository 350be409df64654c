//! What a guest's console says: boot messages, then the command's output, then how it ended.
//!
//! Init marks the beginning and the end of the command's output with lines that no program prints.

use std::fmt;

/// Encloses a marker. A record separator is in no text.
const FENCE: u8 = 0x1e;
const STARTED: &str = "guest: command starts";
const ENDED: &str = "guest: command ended with status ";

/// No marker is longer; whatever is, was output after all.
const LONGEST_MARKER: usize = 64;
/// Bytes kept to be shown when a guest dies.
const TAIL: usize = 4096;

/// A line from init to the host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Marker {
    /// All is mounted and loaded; the command is next.
    Started,
    /// The command ended: its exit status, or 128 and the number of the signal that killed it.
    Ended(u8),
}

impl fmt::Display for Marker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fence = char::from(FENCE);
        match self {
            Self::Started => write!(f, "{fence}{STARTED}{fence}"),
            Self::Ended(status) => write!(f, "{fence}{ENDED}{status}{fence}"),
        }
    }
}

impl Marker {
    fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        if text == STARTED {
            return Some(Self::Started);
        }
        text.strip_prefix(ENDED)?.parse().ok().map(Self::Ended)
    }
}

/// Takes the console's bytes apart as they come.
#[derive(Debug, Default)]
pub(crate) struct Console {
    started: bool,
    ended: Option<u8>,
    /// Behind an opening fence.
    pending: Option<Vec<u8>>,
    /// The end of line that follows a marker is init's too.
    swallow_newline: bool,
    tail: Vec<u8>,
}

impl Console {
    /// Takes bytes from the console and returns those that are the command's output.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut output = Vec::with_capacity(bytes.len());
        for &byte in bytes {
            self.tail.push(byte);
            match &mut self.pending {
                Some(pending) if byte == FENCE => {
                    match Marker::parse(pending) {
                        Some(Marker::Started) => self.started = true,
                        Some(Marker::Ended(status)) => self.ended = Some(status),
                        None => self.give_up_marker(&mut output),
                    }
                    self.swallow_newline = true;
                    self.pending = None;
                }
                Some(pending) if pending.len() < LONGEST_MARKER => pending.push(byte),
                Some(_) => {
                    self.give_up_marker(&mut output);
                    self.pass(byte, &mut output);
                }
                None if byte == FENCE => self.pending = Some(Vec::new()),
                None if self.swallow_newline && byte == b'\r' => {}
                None if self.swallow_newline && byte == b'\n' => self.swallow_newline = false,
                None => self.pass(byte, &mut output),
            }
        }
        let excess = self.tail.len().saturating_sub(TAIL);
        self.tail.drain(..excess);
        output
    }

    /// Whether the command has been started.
    pub(crate) fn started(&self) -> bool {
        self.started
    }

    /// How the command ended, once it has.
    pub(crate) fn ended(&self) -> Option<u8> {
        self.ended
    }

    /// The last lines, boot messages included.
    pub(crate) fn tail(&self) -> String {
        String::from_utf8_lossy(&self.tail).replace('\r', "").trim().to_owned()
    }

    fn pass(&mut self, byte: u8, output: &mut Vec<u8>) {
        self.swallow_newline = false;
        if self.started && self.ended.is_none() {
            output.push(byte);
        }
    }

    fn give_up_marker(&mut self, output: &mut Vec<u8>) {
        for byte in self.pending.take().unwrap_or_default() {
            self.pass(byte, output);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_what_lies_between_the_markers() {
        let text = format!("boot\r\n{}\r\none\r\ntwo{}\r\npower off\r\n", Marker::Started, Marker::Ended(7));
        for chunk in [1, 3, 1000] {
            let mut console = Console::default();
            let output: Vec<u8> = text.as_bytes().chunks(chunk).flat_map(|part| console.feed(part)).collect();
            assert_eq!(String::from_utf8(output).unwrap(), "one\r\ntwo", "in chunks of {chunk}");
            assert!(console.started());
            assert_eq!(console.ended(), Some(7));
            assert!(console.tail().starts_with("boot\n"), "{:?}", console.tail());
        }
    }

    #[test]
    fn a_prompt_passes_at_once() {
        let mut console = Console::default();
        console.feed(Marker::Started.to_string().as_bytes());
        assert_eq!(console.feed(b"\r\n/ # "), b"/ # ");
        assert_eq!(console.ended(), None);
    }

    #[test]
    fn a_fence_in_the_output_is_no_marker() {
        let mut console = Console::default();
        console.feed(format!("{}\n", Marker::Started).as_bytes());
        let noise = [b"\x1e".as_slice(), &[b'x'; 100]].concat();
        assert_eq!(console.feed(&noise), [b'x'; 100]);
        assert_eq!(console.ended(), None);
    }

    #[test]
    fn the_tail_is_bounded() {
        let mut console = Console::default();
        for _ in 0..100 {
            console.feed(&[b'x'; 1000]);
        }
        assert_eq!(console.tail().len(), TAIL);
    }
}
