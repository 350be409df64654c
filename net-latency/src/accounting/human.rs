//! Times and sizes for people.

use std::fmt::{self, Display};

/// A time in ns, for people: three digits and a unit, rounded to the nearest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Human(pub u64);

/// A number of bytes, for people: three digits and a unit of 1,000, rounded to the nearest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HumanBytes(pub u64);

impl Human {
    /// Hands its text on, in pieces.
    #[inline]
    pub(crate) fn put(self, put: impl FnMut(&str)) {
        three_digits(self.0, &[(1, " ns"), (1_000, " us"), (1_000_000, " ms"), (1_000_000_000, " s")], put);
    }
}

impl HumanBytes {
    /// Hands its text on, in pieces.
    #[inline]
    pub(crate) fn put(self, put: impl FnMut(&str)) {
        const KILO: u64 = 1_000;
        let units =
            [(1, " B"), (KILO, " kB"), (KILO.pow(2), " MB"), (KILO.pow(3), " GB"), (KILO.pow(4), " TB")];
        three_digits(self.0, &units, put);
    }
}

impl Display for Human {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut written = Ok(());
        self.put(|text| written = written.and_then(|()| f.write_str(text)));
        written
    }
}

impl Display for HumanBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut written = Ok(());
        self.put(|text| written = written.and_then(|()| f.write_str(text)));
        written
    }
}

/// Units are a thousand times the one before; the first is not divided.
#[inline]
fn three_digits(value: u64, units: &[(u64, &str)], mut put: impl FnMut(&str)) {
    // What rounds to a thousand has the next unit.
    let is_of = |&&(unit, _): &&(u64, &str)| value <= (unit * 1_999 - 1) / 2;
    let Some(&(unit, name)) = units.iter().find(is_of).or(units.last()) else { return };
    // Whole numbers all the way: thousandths of the unit, then steps of the last digit shown.
    let thousandths = value / unit * 1_000 + value % unit * 1_000 / unit;
    let (step, decimals) = match thousandths {
        _ if unit == 1 => (1_000, 0),
        ..9_995 => (10, 2),
        9_995..99_950 => (100, 1),
        _ => (1_000, 0),
    };
    let mut digits = itoa::Buffer::new();
    let digits = digits.format((thousandths + step / 2) / step);
    // With decimals there are three.
    let (whole, fraction) = digits.split_at(digits.len() - decimals);
    put(whole);
    if decimals > 0 {
        put(".");
        put(fraction);
    }
    put(name);
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
        let read = [
            (0, "0 B"),
            (999, "999 B"),
            (1_000, "1.00 kB"),
            (9_995, "10.0 kB"),
            (123_456, "123 kB"),
            (999_499, "999 kB"),
            (999_500, "1.00 MB"),
            (u64::MAX, "18446744 TB"),
        ];
        for (bytes, text) in read {
            assert_eq!(HumanBytes(bytes).to_string(), text, "{bytes}");
        }
    }
}
