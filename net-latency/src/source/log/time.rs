//! Times of a log: RFC 3339 text to ns since 1970.

use chrono::DateTime;

/// Length of `2022-03-02T16:01:36`.
const TO_SECOND: usize = 19;
const NS_PER_SECOND: i64 = 1_000_000_000;

/// A point in time, and the distance from UTC of the clock that told it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Time {
    /// ns since 1970 in UTC.
    pub(crate) wall_ns: i64,
    /// East of Greenwich.
    pub(crate) offset_s: i32,
}

/// Reads times. Thousands of lines share their second, and reading a date costs much: the last one is kept.
#[derive(Debug, Default)]
pub(crate) struct TimeReader {
    head: Vec<u8>,
    tail: Vec<u8>,
    second_ns: i64,
    offset_s: i32,
}

impl TimeReader {
    /// `None` if `text` is no RFC 3339 time, or one further from 1970 than 292 years.
    pub(crate) fn read(&mut self, text: &str) -> Option<Time> {
        let bytes = text.as_bytes();
        let (head, rest) = bytes.split_at_checked(TO_SECOND)?;
        let (fraction_ns, tail) = match rest.strip_prefix(b".") {
            Some(rest) => read_fraction(rest)?,
            None => (0, rest),
        };
        if head != self.head || tail != self.tail {
            self.head.clear();
            let whole = [head, tail].concat();
            let time = DateTime::parse_from_rfc3339(std::str::from_utf8(&whole).ok()?).ok()?;
            self.second_ns = time.timestamp().checked_mul(NS_PER_SECOND)?;
            self.offset_s = time.offset().local_minus_utc();
            self.head.extend_from_slice(head);
            self.tail.clear();
            self.tail.extend_from_slice(tail);
        }
        let wall_ns = self.second_ns.checked_add(fraction_ns)?;
        Some(Time { wall_ns, offset_s: self.offset_s })
    }
}

/// The digits at the start as ns, and what follows them.
fn read_fraction(text: &[u8]) -> Option<(i64, &[u8])> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let mut ns = 0;
    for place in 0..9 {
        let digit = text[..digits].get(place).map_or(0, |digit| digit - b'0');
        ns = ns * 10 + i64::from(digit);
    }
    (digits > 0).then_some((ns, &text[digits..]))
}

#[cfg(test)]
mod tests {
    use chrono::FixedOffset;
    use proptest::prelude::*;

    use super::*;
    use crate::clock::{TimeStyle, TimeText, Zone};
    use crate::packet::event::fixtures::WALL_NS;

    fn read(text: &str) -> Option<(i64, i32)> {
        TimeReader::default().read(text).map(|time| (time.wall_ns, time.offset_s))
    }

    #[test]
    fn the_offset_and_every_digit_count() {
        assert_eq!(read("2022-03-02T16:01:36.123456789+00:00"), Some((WALL_NS, 0)));
        assert_eq!(read("2022-03-02T12:31:36.123456789-03:30"), Some((WALL_NS, -12_600)));
        assert_eq!(read("2022-03-02T16:01:36.5Z"), Some((1_646_236_896_500_000_000, 0)));
        assert_eq!(read("2022-03-02T16:01:36Z"), Some((1_646_236_896_000_000_000, 0)));
        assert_eq!(read("1969-12-31T23:59:59.999999999+00:00"), Some((-1, 0)));
    }

    #[test]
    fn what_is_no_time_is_none() {
        for text in [
            "",
            "2022-03-02",
            "2022-03-02T16:01:36",
            "2022-03-02T16:01:36.",
            "2022-03-02T16:01:36.+00:00",
            "2022-13-02T16:01:36.1+00:00",
            "2022-03-02T16:01:36.1+00:00x",
            "9999-03-02T16:01:36.1+00:00",
            "2022-03-02T16:01:3é.1+00:00",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn a_bad_time_does_not_stay() {
        let mut reader = TimeReader::default();
        let good = "2022-03-02T16:01:36.123456789+00:00";
        let far = "9999-03-02T16:01:36.1+00:00";
        assert!(reader.read(good).is_some());
        assert!(reader.read(far).is_none() && reader.read(far).is_none());
        assert_eq!(reader.read(good).map(|time| time.wall_ns), Some(WALL_NS));
    }

    proptest! {
        #[test]
        fn what_the_writer_writes_is_read_back(
            times in proptest::collection::vec((0..4_000_000_000_000_000_000i64, 0..3i64), 1..8), offset in -50_000..50_000i32,
        ) {
            let offset = offset / 60 * 60;
            let zone = Zone::Fixed(FixedOffset::east_opt(offset).expect("less than a day"));
            let mut writer = TimeText::new(zone, TimeStyle::Rfc3339);
            let mut reader = TimeReader::default();
            for (time, step) in times {
                for wall_ns in [time, time + step] {
                    let mut text = Vec::new();
                    writer.write(wall_ns, &mut text);
                    let text = String::from_utf8(text).expect("ASCII");
                    prop_assert_eq!(reader.read(&text), Some(Time { wall_ns, offset_s: offset }));
                }
            }
        }
    }
}
