//! Untrusted text, such as the name of a process, made harmless: nothing in it acts on a terminal, ends a line or separates fields.

use std::fmt::{self, Display, Write as _};

use sha2::{Digest as _, Sha256};

/// Writes a name so that nothing in it acts or separates: each byte of unprintable characters, and of `\`, `,` and `|`, as `\xNN`. `-` for
/// an unknown one.
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

/// A name as [`write_name`] has it.
pub(crate) fn harmless(name: Option<&[u8]>) -> String {
    let mut out = Vec::new();
    write_name(name, &mut out);
    lossy(&out)
}

/// A name as a string, whatever bytes it has.
pub(crate) fn lossy(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

/// Bytes of a name, in metrics, where `\` and `"` are two.
pub(crate) const LONGEST: usize = 128;
/// Those of the beginning of one that is too long, and of its end, which says more: a container's id has 64.
const BEGINNING: usize = 40;
const END: usize = 70;

/// A name of any length in at most [`LONGEST`] bytes, as [`write_name`] has it. A longer one is cut to its beginning and end, and between
/// them a number that tells it from all others: no name can be chosen that is shown as another one.
pub(crate) fn bounded(name: &[u8]) -> String {
    // A longer name won't fit.
    if let Some(whole) = (name.len() <= LONGEST).then(|| printable(name, LONGEST)).flatten() {
        return whole;
    }
    let parts = |most: usize| (0..=most.min(name.len())).rev();
    let beginning = parts(BEGINNING).find_map(|len| printable(&name[..len], BEGINNING));
    let end = parts(END).find_map(|len| printable(&name[name.len() - len..], END));
    let number = hash(name);
    format!("{}~{number:016x}~{}", beginning.unwrap_or_default(), end.unwrap_or_default())
}

/// The name as [`write_name`] has it, if that is no longer in metrics.
fn printable(name: &[u8], most: usize) -> Option<String> {
    let mut out = Vec::new();
    write_name(Some(name), &mut out);
    let doubled = out.iter().filter(|byte| matches!(byte, b'\\' | b'"')).count();
    (out.len() + doubled <= most).then(|| String::from_utf8_lossy(&out).into_owned())
}

/// A hash that is the same in each run, as series are.
fn hash(name: &[u8]) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&Sha256::digest(name)[..8]);
    u64::from_be_bytes(number)
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

/// Untrusted text, shown so that nothing in it acts on a terminal or ends the line.
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
    fn long_names_have_a_bound_and_stay_apart() {
        let pod = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0a1b2c3d_0a1b_0a1b_0a1b_0a1b2c3d4e5f.slice/";
        let id = "0123456789abcdef".repeat(4);
        let container = format!("{pod}cri-containerd-{id}.scope");
        let shown = bounded(container.as_bytes());
        assert!(shown.starts_with("/kubepods.slice/kubepods-burstable.slice~"), "{shown}");
        assert!(shown.ends_with(&format!("{id}.scope")), "{shown}");
        let deep = |middle: &str| {
            [b"/\x01\xff".repeat(4_000), middle.as_bytes().to_vec(), "\u{e9}".repeat(4_000).into_bytes()]
                .concat()
        };
        let names = [
            deep("a"),
            deep("b"),
            vec![1; 40],
            vec![2; 40],
            vec![b'\\'; 65],
            vec![b'"'; 65],
            vec![b'x'; 129],
        ];
        let mut all: Vec<_> = names.iter().map(|name| bounded(name)).collect();
        for shown in all.iter().chain([&shown]) {
            let in_metrics = shown.len() + shown.matches(['\\', '"']).count();
            assert!(
                in_metrics <= LONGEST && shown.chars().all(|c| c.is_ascii_graphic() || c == 'é'),
                "{shown}"
            );
        }
        all.sort();
        all.dedup();
        assert_eq!(all.len(), names.len());
        for name in ["", "nginx", "/system.slice/nginx.service", "a b", &"x".repeat(128)] {
            assert_eq!(bounded(name.as_bytes()), name);
        }
    }

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
