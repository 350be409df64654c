//! Random numbers that are the same for the same seed, on each machine (splitmix64).

/// A source of them.
#[derive(Clone, Debug)]
pub(super) struct Choice(u64);

impl Choice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    #[inline]
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below this one.
    #[inline]
    pub(super) fn below(&mut self, end: u32) -> u32 {
        (((self.next() >> 32) * u64::from(end)) >> 32) as u32
    }

    /// Whether what happens once in N times does.
    #[inline]
    pub(super) fn one_in(&mut self, times: u32) -> bool {
        self.below(times) == 0
    }

    /// One of these.
    #[inline]
    pub(super) fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u32) as usize]
    }
}
