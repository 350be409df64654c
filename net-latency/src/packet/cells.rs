//! Which times distributions tell apart: cells that grow with the time.

/// Cells per doubling, as a power of two: the middle of a cell is within 0.8 % of everything in it.
const FINENESS: u32 = 6;
const CELLS_PER_DOUBLING: u64 = 1 << FINENESS;

/// The cell of a time in ns. Times below 128 ns have one each; then 64 per doubling. (A library's histogram takes 60
/// instructions to find its own, a tenth of what there is to do for a line.)
#[inline]
pub(crate) const fn cell(ns: u64) -> usize {
    // The highest bit is set anyway, of which the count of zeroes would else need a test.
    let shift = (u64::BITS - (ns | CELLS_PER_DOUBLING).leading_zeros()) - (FINENESS + 1);
    // Less than 64 doublings of 64 cells, and 64 more.
    ((shift as u64) << FINENESS) as usize + (ns >> shift) as usize
}

/// The first and the last time of a cell, ns.
pub(crate) const fn bounds(cell: usize) -> (u64, u64) {
    let cell = cell as u64;
    let shift = (cell / CELLS_PER_DOUBLING).saturating_sub(1);
    let from = (cell - shift * CELLS_PER_DOUBLING) << shift;
    (from, from + ((1 << shift) - 1))
}

/// The time that stands for a cell's, ns.
pub(crate) const fn middle(cell: usize) -> u64 {
    let (from, to) = bounds(cell);
    from + (to - from) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_join_without_gaps() {
        let mut next = 0;
        for index in 0..=cell(u64::MAX) {
            let (from, to) = bounds(index);
            assert_eq!(from, next, "{index}");
            assert!(
                (cell(from), cell(to)) == (index, index) && to - from <= from / CELLS_PER_DOUBLING,
                "{index}"
            );
            next = to.wrapping_add(1);
        }
        assert_eq!(next, 0);
    }

    #[test]
    fn the_middle_is_within_eight_per_mille() {
        for number in 0..=cell(u64::MAX) {
            let (from, to) = bounds(number);
            assert!(to - middle(number) <= from / 125, "{number}");
        }
    }
}
