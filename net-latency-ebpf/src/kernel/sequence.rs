//! TCP's sequence numbers, which wrap.

/// Whether sequence number `a` comes before `b` (`before()` in include/net/tcp.h).
#[inline(always)]
pub(crate) fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

#[cfg(test)]
mod tests {
    use super::before;

    #[test]
    fn sequence_numbers_wrap() {
        assert!(before(1, 2));
        assert!(!before(2, 2));
        assert!(!before(3, 2));
        assert!(before(u32::MAX, 5));
        assert!(!before(5, u32::MAX));
    }
}
