//! A time and its owner in one word, so that both are written at once: the lowest `TAG_BITS` bits are a tag, which with the word's place in
//! its array says whose, and the rest are the time's lowest bits. 0 is no time.

/// The clock may go back by so much from one CPU to the next, ns (`ktime_get_mono_fast_ns`).
pub const JITTER: u64 = 1 << 20;

/// The word that says that what has this tag was seen at that time.
#[inline(always)]
#[must_use]
pub const fn word<const TAG_BITS: u32>(at: u64, tag: u64) -> u64 {
    at << TAG_BITS | tag
}

/// Whether a word is of what has this tag.
#[inline(always)]
#[must_use]
pub const fn is_of<const TAG_BITS: u32>(word: u64, tag: u64) -> bool {
    word & ((1 << TAG_BITS) - 1) == tag && word != 0
}

/// How long before `now` a word was written, ns, and [`JITTER`] more.
#[inline(always)]
#[must_use]
pub const fn age<const TAG_BITS: u32>(word: u64, now: u64) -> u64 {
    (now + JITTER).wrapping_sub(word >> TAG_BITS) & ((1 << (u64::BITS - TAG_BITS)) - 1)
}

/// Whether the [`age`] of a word is no less than that of another one with the same tag.
#[inline(always)]
#[must_use]
pub const fn is_no_younger<const TAG_BITS: u32>(word: u64, other: u64, now: u64) -> bool {
    let now = (now + JITTER) << TAG_BITS;
    now.wrapping_sub(word) >= now.wrapping_sub(other)
}

/// The time in a word that was written not long before `now`.
#[inline(always)]
#[must_use]
pub const fn time<const TAG_BITS: u32>(word: u64, now: u64) -> u64 {
    now + JITTER - age::<TAG_BITS>(word, now)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn a_time_is_what_it_was<const TAG_BITS: u32>(tag: u64) {
        let longest = (1 << (u64::BITS - TAG_BITS)) - 2 * JITTER;
        for at in [1, 1 << 38, (1 << 39) - 1, 1 << 39, 12_345_678_901_234_567] {
            let word = word::<TAG_BITS>(at, tag);
            assert!(is_of::<TAG_BITS>(word, tag) && !is_of::<TAG_BITS>(word, tag ^ 1), "{at}");
            for later in [0, 1, 1_000_000, longest] {
                assert_eq!(time::<TAG_BITS>(word, at + later), at, "{at} {later}");
            }
            // Another CPU's clock may be behind.
            assert_eq!(time::<TAG_BITS>(word, at.saturating_sub(1000)), at);
        }
        assert!(!is_of::<TAG_BITS>(0, 0));
    }

    #[test]
    fn of_two_words_with_one_tag_the_older_one_is_no_younger() {
        const NOW: u64 = 1 << 42 | 12_345;
        for (one, two) in
            [(0, 0), (0, 1), (5, 1_000_000), (1 << 20, 1 << 37), (1 << 37, (1 << 39) - (1 << 22))]
        {
            let [one, two] = [one, two].map(|ago| word::<25>(NOW - ago, 0x1ff_ffff));
            assert!(is_no_younger::<25>(two, one, NOW), "{one:x} {two:x}");
            assert_eq!(is_no_younger::<25>(one, two, NOW), one == two, "{one:x} {two:x}");
        }
    }

    #[test]
    fn a_time_is_what_it_was_with_few_bits_and_with_many() {
        a_time_is_what_it_was::<9>(0x1ff);
        a_time_is_what_it_was::<9>(0);
        a_time_is_what_it_was::<25>(0x123_4567);
    }
}
