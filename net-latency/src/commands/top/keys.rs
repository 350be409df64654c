//! From the bytes that a terminal sends to keys.

/// A key that means something here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    /// A character that can be typed.
    Char(char),
    Enter,
    Escape,
    Backspace,
    Tab,
    Up,
    Down,
    Left,
    Right,
    PageUp,
    PageDown,
    Home,
    End,
    /// Ctrl and a lower-case letter.
    Control(char),
}

/// More bytes than any sequence that terminals send for a key.
const LONGEST: usize = 32;

/// Finds keys in a stream of bytes.
///
/// Sequences may come in pieces (ssh), and the Escape key is the beginning of all of them: an unfinished one waits until [`Decoder::pause`]
/// says that nothing came for a while.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    pending: Vec<u8>,
}

impl Decoder {
    /// The keys that `bytes` complete.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Vec<Key> {
        self.pending.extend_from_slice(bytes);
        let mut keys = Vec::new();
        let mut rest = &self.pending[..];
        while !rest.is_empty() {
            match first(rest) {
                Found::Key(key, len) => {
                    keys.push(key);
                    rest = &rest[len..];
                }
                Found::Nothing(len) => rest = &rest[len..],
                Found::Unfinished if rest.len() > LONGEST => rest = &[],
                Found::Unfinished => break,
            }
        }
        self.pending = rest.to_vec();
        keys
    }

    /// Nothing came for a while: a beginning without an end is the Escape key, or lost.
    pub(super) fn pause(&mut self) -> Option<Key> {
        let is_escape = self.pending == [ESCAPE];
        self.pending.clear();
        is_escape.then_some(Key::Escape)
    }
}

const ESCAPE: u8 = 0x1b;

enum Found {
    Key(Key, usize),
    /// N bytes without a meaning here.
    Nothing(usize),
    Unfinished,
}

/// What `bytes`, which are not empty, begin with.
fn first(bytes: &[u8]) -> Found {
    match bytes {
        [ESCAPE] | [ESCAPE, b'[' | b'O'] => Found::Unfinished,
        [ESCAPE, ESCAPE, ..] => Found::Key(Key::Escape, 1),
        [ESCAPE, b'[', rest @ ..] => control_sequence(rest),
        [ESCAPE, b'O', last, ..] => named(*last).map_or(Found::Nothing(3), |key| Found::Key(key, 3)),
        // Alt and a key.
        [ESCAPE, ..] => Found::Nothing(2),
        [b'\r' | b'\n', ..] => Found::Key(Key::Enter, 1),
        [b'\t', ..] => Found::Key(Key::Tab, 1),
        [0x7f | 0x08, ..] => Found::Key(Key::Backspace, 1),
        [control @ 1..=26, ..] => Found::Key(Key::Control((control - 1 + b'a').into()), 1),
        _ => character(bytes),
    }
}

/// What comes behind `ESC [`: parameters, then one byte that ends it.
fn control_sequence(rest: &[u8]) -> Found {
    let Some(len) = rest.iter().position(|byte| !(0x20..0x40).contains(byte)) else {
        return Found::Unfinished;
    };
    // Modifiers (`ESC [ 1 ; 5 A`) make no difference here.
    let number = rest[..len].split(|byte| *byte == b';').next();
    let key = match (rest[len], number) {
        (b'~', Some(b"1" | b"7")) => Some(Key::Home),
        (b'~', Some(b"4" | b"8")) => Some(Key::End),
        (b'~', Some(b"5")) => Some(Key::PageUp),
        (b'~', Some(b"6")) => Some(Key::PageDown),
        (last, _) => named(last),
    };
    key.map_or(Found::Nothing(len + 3), |key| Found::Key(key, len + 3))
}

fn named(last: u8) -> Option<Key> {
    Some(match last {
        b'A' => Key::Up,
        b'B' => Key::Down,
        b'C' => Key::Right,
        b'D' => Key::Left,
        b'H' => Key::Home,
        b'F' => Key::End,
        b'M' => Key::Enter,
        _ => return None,
    })
}

fn character(bytes: &[u8]) -> Found {
    let chunk = bytes.utf8_chunks().next();
    let (valid, invalid) = chunk.map_or(("", bytes), |chunk| (chunk.valid(), chunk.invalid()));
    match valid.chars().next() {
        Some(c) if c.is_control() => Found::Nothing(c.len_utf8()),
        Some(c) => Found::Key(Key::Char(c), c.len_utf8()),
        None if invalid.len() == bytes.len() && could_be_character(bytes) => Found::Unfinished,
        None => Found::Nothing(invalid.len().max(1)),
    }
}

/// Whether more bytes could make a character of these, which alone are invalid.
fn could_be_character(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn keys(bytes: &[u8]) -> Vec<Key> {
        Decoder::default().feed(bytes)
    }

    #[test]
    fn keys_of_the_usual_terminals() {
        use Key::{Backspace, Char, Control, Down, End, Enter, Home, Left, PageDown, PageUp, Right, Tab, Up};
        assert_eq!(keys(b"q/\xc3\xa9"), [Char('q'), Char('/'), Char('\u{e9}')]);
        assert_eq!(keys(b"\x1b[A\x1b[B\x1b[C\x1b[D\x1bOA\x1bOB"), [Up, Down, Right, Left, Up, Down]);
        assert_eq!(
            keys(b"\x1b[5~\x1b[6~\x1b[1~\x1b[4~\x1b[7~\x1b[8~"),
            [PageUp, PageDown, Home, End, Home, End]
        );
        assert_eq!(keys(b"\x1b[H\x1b[F\x1bOH\x1bOF\x1b[1;5A"), [Home, End, Home, End, Up]);
        assert_eq!(keys(b"\r\n\t\x7f\x08\x03"), [Enter, Enter, Tab, Backspace, Backspace, Control('c')]);
    }

    #[test]
    fn sequences_may_come_in_pieces() {
        let mut decoder = Decoder::default();
        for piece in [&b"\x1b"[..], b"[", b"1;", b"5"] {
            assert_eq!(decoder.feed(piece), []);
        }
        assert_eq!(decoder.feed(b"B\xe7\x81"), [Key::Down]);
        assert_eq!(decoder.feed(b"\xabx"), [Key::Char('火'), Key::Char('x')]);
    }

    #[test]
    fn a_lone_escape_is_the_key() {
        let mut decoder = Decoder::default();
        assert_eq!(decoder.feed(b"\x1b"), []);
        assert_eq!(decoder.pause(), Some(Key::Escape));
        assert_eq!(decoder.pause(), None);
        assert_eq!(decoder.feed(b"A"), [Key::Char('A')]);
        assert_eq!(decoder.feed(b"\x1b\x1b[A"), [Key::Escape, Key::Up]);
    }

    #[test]
    fn what_means_nothing_is_no_key() {
        assert_eq!(keys(b"\x1b[15~\x1b[<0;3;4m\x1bx\xff\x80\xc2\x85\0a"), [Key::Char('a')]);
        // An unfinished sequence is given up before it takes memory.
        assert_eq!(keys(&[b"\x1b[".as_slice(), &[b'1'; 100]].concat()), []);
    }

    proptest! {
        #[test]
        fn any_bytes_in_any_pieces_give_keys_without_control_characters(
            pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..8), 0..8)
        ) {
            let mut decoder = Decoder::default();
            let mut keys: Vec<Key> = pieces.iter().flat_map(|piece| decoder.feed(piece)).collect();
            keys.extend(decoder.pause());
            prop_assert!(keys.iter().all(|key| !matches!(key, Key::Char(c) if c.is_control())));
            prop_assert!(decoder.pending.is_empty());
        }
    }
}
