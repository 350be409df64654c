//! The mounts, from the text of `/proc/self/mountinfo`: bytes, since a user's mount may have any path.

/// A mount.
pub(super) struct Mount {
    /// The part of the file system that it shows. For a namespace this is its kind and number, such as `net:[4026532239]`.
    pub(super) root: Vec<u8>,
    /// Where.
    pub(super) place: Vec<u8>,
    /// The name of the file system.
    pub(super) kind: Vec<u8>,
    /// Its own options, those of control groups of version 1 their controllers.
    pub(super) options: Vec<u8>,
}

/// All mounts of such a text.
pub(super) fn read(text: &[u8]) -> impl Iterator<Item = Mount> {
    text.split(|&byte| byte == b'\n').filter_map(|line| {
        // Optional fields stand before the hyphen, as many as there are.
        let fields: Vec<_> = line.split(|&byte| byte == b' ').collect();
        let hyphen = fields.iter().position(|field| *field == b"-")?;
        let field = |index: usize| fields.get(index).map(|field| unescaped(field));
        Some(Mount {
            root: field(3)?,
            place: field(4)?,
            kind: field(hyphen + 1)?,
            options: field(hyphen + 3).unwrap_or_default(),
        })
    })
}

/// A path as it is: mountinfo has blanks, tabs, newlines and backslashes as three octal digits behind a backslash
/// (`mangle` in fs/seq_file.c).
fn unescaped(path: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path;
    while let [first, others @ ..] = rest {
        rest = others;
        let octal = others
            .first_chunk::<3>()
            .filter(|digits| *first == b'\\' && digits.iter().all(|d| matches!(d, b'0'..=b'7')));
        bytes.push(match octal {
            Some(digits) => {
                rest = &others[3..];
                digits.iter().fold(0u8, |byte, digit| byte.wrapping_mul(8).wrapping_add(digit - b'0'))
            }
            None => *first,
        });
    }
    bytes
}
