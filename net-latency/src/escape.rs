//! Text of somebody's choice, such as the name of a process, made harmless: nothing in it acts on a terminal, ends a line or
//! separates fields.

use std::fmt::{self, Display, Write as _};

/// Writes a name so that nothing in it acts or separates: each byte of what is not
/// printable, and of `\`, `,` and `|`, as `\xNN`. `-` for an unknown one.
pub(crate) fn write_name(name: Option<&[u8]>, out: &mut Vec<u8>) {
    let Some(name) = name else {
        out.push(b'-');
        return;
    };
    if name == b"-" {
        write_escaped(name, out);
        return;
    }
    // Nearly all of them.
    if name.iter().all(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'\\' | b',' | b'|')) {
        out.extend_from_slice(name);
        return;
    }
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            let plain = match c {
                '\\' | ',' | '|' => false,
                ' '..='~' => true,
                _ => is_printable_beyond_ascii(c),
            };
            let mut bytes = [0; 4];
            let bytes = c.encode_utf8(&mut bytes).as_bytes();
            if plain {
                out.extend_from_slice(bytes);
            } else {
                write_escaped(bytes, out);
            }
        }
        write_escaped(chunk.invalid(), out);
    }
}

/// Each byte as `\xNN`.
pub(crate) fn write_escaped(bytes: &[u8], out: &mut Vec<u8>) {
    bytes.iter().for_each(|byte| out.extend_from_slice(&escaped(*byte)));
}

/// A byte as `\xNN`.
pub(crate) fn escaped(byte: u8) -> [u8; 4] {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    [b'\\', b'x', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]
}

/// Whether a character beyond ASCII can be shown as it is: no control, format (bidirectional overrides,
/// zero width, …), unassigned or private character, and no combining mark that would change its
/// neighbour. `char::escape_debug` has the tables.
pub(crate) fn is_printable_beyond_ascii(c: char) -> bool {
    c.escape_debug().eq([c])
}

/// Text of somebody's choice, shown so that nothing in it acts on a terminal or ends the line.
pub(crate) struct Printable<'a>(pub(crate) &'a str);

impl Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            ' '..='~' => f.write_char(c),
            _ if !c.is_ascii() && is_printable_beyond_ascii(c) => f.write_char(c),
            _ => write!(f, "{}", c.escape_default()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_act_are_not_printable() {
        for c in [
            '\u{9b}', '\u{85}', '\u{202e}', '\u{2066}', '\u{200b}', '\u{feff}', '\u{2028}', '\u{e000}',
            '\u{301}',
        ] {
            assert!(!is_printable_beyond_ascii(c), "{c:?}");
        }
        for c in ['é', '火', 'ß', 'Ж'] {
            assert!(is_printable_beyond_ascii(c), "{c:?}");
        }
    }
}
