//! Where control groups are.

use std::{ffi::OsString, os::unix::ffi::OsStringExt as _, path::PathBuf};

/// Where the unified hierarchy is mounted, from what `/proc/self/mountinfo` has: bytes, since anybody's mount may have
/// any path.
#[must_use]
pub fn unified_hierarchy(mounts: &[u8]) -> Option<PathBuf> {
    mounts.split(|&byte| byte == b'\n').find_map(|line| {
        // Optional fields stand before the hyphen, as many as there are.
        let fields: Vec<_> = line.split(|&byte| byte == b' ').collect();
        let hyphen = fields.iter().position(|field| *field == b"-")?;
        let is_unified = fields.get(hyphen + 1) == Some(&&b"cgroup2"[..]);
        is_unified.then(|| fields.get(4).map(|place| PathBuf::from(OsString::from_vec(unescaped(place)))))?
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_unified_hierarchy_is_found_wherever_it_is() {
        let hybrid = b"25 30 0:22 / /sys/fs/cgroup ro - tmpfs tmpfs ro\n\
             26 25 0:23 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw\n";
        assert_eq!(unified_hierarchy(hybrid).as_deref(), Some(Path::new("/sys/fs/cgroup/unified")));
        assert_eq!(unified_hierarchy(b"25 30 0:22 / /sys/fs/cgroup ro - cgroup cgroup rw,cpu\n"), None);
        assert_eq!(unified_hierarchy(b""), None);
    }

    #[test]
    fn any_path_may_be_mounted() {
        let mounts = b"24 30 0:21 / /mnt/\xff\xfe rw - tmpfs - rw\n26 25 0:23 / /a\\040b\xff rw - cgroup2 cgroup2 rw\n";
        let expected = PathBuf::from(OsString::from_vec(b"/a b\xff".to_vec()));
        assert_eq!(unified_hierarchy(mounts), Some(expected));
    }
}
