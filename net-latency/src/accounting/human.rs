//! Times for people.

use std::fmt::{self, Display};

/// A time in ns, for people: three digits and a unit, rounded to the nearest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Human(pub u64);

impl Display for Human {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.0;
        // The bounds are where rounding to three digits reaches the next unit.
        let (unit, name) = match ns {
            ..1_000 => return write!(f, "{ns} ns"),
            1_000..999_500 => (1_000, "us"),
            999_500..999_500_000 => (1_000_000, "ms"),
            _ => (1_000_000_000, "s"),
        };
        // Whole numbers all the way: thousandths of the unit, then steps of the last digit shown.
        let thousandths = u128::from(ns) * 1_000 / unit;
        let (step, decimals) = match thousandths {
            ..9_995 => (10, 2),
            9_995..99_950 => (100, 1),
            _ => (1_000, 0),
        };
        let steps = (thousandths + step / 2) / step;
        let scale = 1_000 / step;
        write!(f, "{}", steps / scale)?;
        if decimals > 0 {
            write!(f, ".{:0decimals$}", steps % scale)?;
        }
        write!(f, " {name}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_read_three_digits() {
        let read = [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_000, "1.00 us"),
            (9_994, "9.99 us"),
            (9_995, "10.0 us"),
            (99_949, "99.9 us"),
            (99_950, "100 us"),
            (999_499, "999 us"),
            (999_500, "1.00 ms"),
            (12_345_678_901, "12.3 s"),
            (3_600_000_000_000, "3600 s"),
            (u64::MAX, "18446744074 s"),
        ];
        for (ns, text) in read {
            assert_eq!(Human(ns).to_string(), text, "{ns}");
        }
    }
}
