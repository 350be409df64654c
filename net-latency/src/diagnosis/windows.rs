//! Windows of time.

use std::array;

/// Most windows of time that are told apart. When there are more, they become twice as wide.
pub(super) const WINDOWS: usize = 1_024;
/// Words of a set of windows.
const WORDS: usize = WINDOWS / 64;

/// Windows of time, by number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Windows([u64; WORDS]);

impl Windows {
    pub(super) fn add(&mut self, window: usize) {
        self.0[window / 64] |= 1 << (window % 64);
    }

    pub(super) fn has(&self, window: usize) -> bool {
        self.0[window / 64] >> (window % 64) & 1 == 1
    }

    pub(super) fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = usize> {
        (0..WINDOWS).filter(|window| self.has(*window))
    }

    pub(super) fn of(windows: impl IntoIterator<Item = usize>) -> Self {
        let mut set = Self::default();
        windows.into_iter().for_each(|window| set.add(window));
        set
    }

    /// Those that both have.
    pub(super) fn common(&self, other: &Self) -> Self {
        Self(array::from_fn(|word| self.0[word] & other.0[word]))
    }

    /// Those that one of both has.
    pub(super) fn with(&self, other: &Self) -> Self {
        Self(array::from_fn(|word| self.0[word] | other.0[word]))
    }

    /// They, and those next to them.
    pub(super) fn with_neighbours(&self) -> Self {
        let near = |window: usize| window.saturating_sub(1)..=(window + 1).min(WINDOWS - 1);
        Self::of(self.all().flat_map(near))
    }

    /// Each two become one.
    pub(super) fn halve(&mut self) {
        *self = Self::of(self.all().map(|window| window / 2));
    }
}
