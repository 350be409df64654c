//! When a file of lines is rotated.

use std::time::Duration;

/// When to begin a new file, and how many old ones stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rotation {
    /// Before the file would be larger than this, in bytes.
    pub size: Option<u64>,
    /// When this time has passed since the file was opened.
    pub every: Option<Duration>,
    /// Old files that stay; the oldest goes when there is one more.
    pub keep: u32,
}

impl Rotation {
    /// Whether there is a reason to begin a new file.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.size.is_some() || self.every.is_some()
    }
}
