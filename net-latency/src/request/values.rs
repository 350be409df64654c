//! Values with units: durations and sizes; and names with wildcards.

use std::{num::NonZeroU64, str::FromStr, time::Duration};

use glob::Pattern;

/// Units of durations in ns, the longest first.
const UNITS: [(&str, u64); 5] =
    [("h", 3_600_000_000_000), ("m", 60_000_000_000), ("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)];

/// Largest ring buffer, in bytes. Its memory is allocated at once and can't be swapped out.
const MAX_BUFFER: u32 = 1 << 30;

/// Fewest buckets that are worth the name, and the most that there can be: their memory is allocated at once.
const MIN_BUCKETS: u32 = 1 << 10;
/// See [`MIN_BUCKETS`].
const MAX_BUCKETS: u32 = 1 << 20;

/// Least memory for packets: what they wait in until they are packed takes up to half of it.
const MIN_MEMORY: u64 = 8 << 20;

/// Most files that are kept.
const MAX_FILES: u32 = 999;

/// A whole number and a unit: `250us`, `1ms`, `10s`, `2m`, `1h`. Not 0.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text);
    let wrong = || "write a whole number and a unit: 250us, 1ms, 10s, 2m or 1h".to_owned();
    let (_, unit_ns) = UNITS.into_iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
    let number: u64 = parse_digits(number).ok_or_else(wrong)?;
    match number.checked_mul(unit_ns) {
        Some(0) => Err("it must be longer than 0".to_owned()),
        Some(ns) => Ok(Duration::from_nanos(ns)),
        None => Err("it is longer than the 584 years that can be measured".to_owned()),
    }
}

/// A size in bytes for the ring buffer, with K, M or G for powers of 1024.
pub(crate) fn parse_buffer(text: &str) -> Result<u32, String> {
    let bytes = parse_size(text)
        .ok_or_else(|| "write a whole number of bytes, or one with K, M or G: 512K, 4M or 16M".to_owned())?;
    let page = u32::try_from(rustix::param::page_size()).unwrap_or(MAX_BUFFER);
    u32::try_from(bytes)
        .ok()
        .filter(|bytes| bytes.is_power_of_two() && (page..=MAX_BUFFER).contains(bytes))
        .ok_or_else(|| {
            format!("it must be a power of two from {}K to 1G, such as 512K, 4M or 16M", page >> 10)
        })
}

/// A number of buckets, with K or M for powers of 1024.
pub(crate) fn parse_buckets(text: &str) -> Result<u32, String> {
    parse_size(text)
        .and_then(|buckets| u32::try_from(buckets).ok())
        .filter(|buckets| (MIN_BUCKETS..=MAX_BUCKETS).contains(buckets))
        .ok_or_else(|| "write a whole number from 1K to 1M, such as 4096, 32K or 256K".to_owned())
}

/// A size in bytes for packets in memory, with K, M or G for powers of 1024.
pub(crate) fn parse_memory(text: &str) -> Result<usize, String> {
    parse_size(text)
        .filter(|bytes| *bytes >= MIN_MEMORY)
        .and_then(|bytes| usize::try_from(bytes).ok())
        .ok_or_else(|| format!("write {}M or more, such as 64M or 1G", MIN_MEMORY >> 20))
}

/// A number of files.
pub(crate) fn parse_files(text: &str) -> Result<u32, String> {
    positive(text)
        .filter(|number| *number <= MAX_FILES)
        .ok_or_else(|| format!("write a whole number from 1 to {MAX_FILES}"))
}

/// Bytes. Too many for a `u64` are as many as it holds.
fn parse_size(text: &str) -> Option<u64> {
    let (number, unit) = split(text);
    let shift = match unit {
        "" => 0,
        "K" | "k" => 10,
        "M" | "m" => 20,
        "G" | "g" => 30,
        _ => return None,
    };
    Some(parse_digits(number)?.saturating_mul(1 << shift))
}

/// A process id.
pub(crate) fn parse_pid(text: &str) -> Result<u32, String> {
    positive(text).ok_or_else(|| "write a process id, such as 19550; `pidof NAME` finds one".to_owned())
}

/// A port, in host order.
pub(crate) fn parse_port(text: &str) -> Result<u16, String> {
    positive(text).ok_or_else(|| "write a port from 1 to 65535".to_owned())
}

/// A number of lines.
pub(crate) fn parse_count(text: &str) -> Result<NonZeroU64, String> {
    text.parse().map_err(|_| "write a whole number, 1 or more".to_owned())
}

/// A number of rows of a table.
pub(crate) fn parse_rows(text: &str) -> Result<u16, String> {
    positive(text)
        .filter(|rows| *rows <= 1_000)
        .ok_or_else(|| "write a whole number from 1 to 1000".to_owned())
}

/// A number of lines a second.
pub(crate) fn parse_rate(text: &str) -> Result<u16, String> {
    positive(text)
        .filter(|lines| *lines <= 10_000)
        .ok_or_else(|| "write a whole number of lines from 1 to 10000".to_owned())
}

fn positive<T: FromStr + Default + PartialEq>(text: &str) -> Option<T> {
    text.parse().ok().filter(|number| *number != T::default())
}

fn split(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

/// `None` for no digits and for too many.
fn parse_digits(digits: &str) -> Option<u64> {
    digits.parse().ok()
}

/// A name of functions, or a pattern of such.
pub(crate) fn parse_pattern(text: &str) -> Result<Pattern, String> {
    let is_right = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
    Pattern::new(text)
        .ok()
        .filter(|_| is_right)
        .ok_or_else(|| "write a name, or one with *, ?, [abc]: tcp_sendmsg, '__sys_*'".to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        fuzz,
        request::{
            glob::Glob,
            network::{net_text, parse_mark, parse_net, parse_sample},
            top::parse_speed,
        },
    };

    #[test]
    fn fuzz_values() {
        let seeds =
            ["250us", "100M", "192.0.2.0/24", "2001:db8::/32", "0x10/0xff", "1/8", "1.5", "4294967295"];
        fuzz::run(
            "values",
            1_000,
            seeds.map(Vec::from),
            &["0x", "/", "::", "18446744073709551615"],
            |bytes| {
                let text = String::from_utf8_lossy(bytes);
                if let Ok(net) = parse_net(&text) {
                    assert_eq!(parse_net(&net_text(&net)), Ok(net));
                }
                let _ = (parse_duration(&text), parse_buffer(&text), parse_buckets(&text));
                let _ = (parse_files(&text), parse_pid(&text), parse_port(&text), parse_count(&text));
                let _ = (parse_rows(&text), parse_pattern(&text), parse_mark(&text), parse_sample(&text));
                let _ = (parse_speed(&text), text.parse::<Glob>());
            },
        );
    }

    /// The shortest text that [`parse_duration`] reads as `ns`, a multiple of 1 us.
    fn write_duration(ns: u64) -> String {
        let (name, unit) =
            UNITS.into_iter().find(|(_, unit)| ns.is_multiple_of(*unit)).expect("a multiple of 1 us");
        format!("{}{name}", ns / unit)
    }

    #[test]
    fn durations_read_as_in_the_contract() {
        let read = |text| parse_duration(text).map(|duration| duration.as_micros());
        assert_eq!(read("250us"), Ok(250));
        assert_eq!(read("1ms"), Ok(1_000));
        assert_eq!(read("10s"), Ok(10_000_000));
        assert_eq!(read("2m"), Ok(120_000_000));
        assert_eq!(read("1h"), Ok(3_600_000_000));
    }

    #[test]
    fn other_durations_are_refused() {
        for text in ["", "10", "s", "1 s", "-1s", "+1s", "1.5s", "1S", "1sec", "0s", "1h30m", "١s"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
        assert!(parse_duration("99999999999999h").expect_err("too long").contains("584 years"));
    }

    #[test]
    fn buffers_are_powers_of_two_of_whole_pages() {
        assert_eq!(parse_buffer("512K"), Ok(512 << 10));
        assert_eq!(parse_buffer("4M"), Ok(4 << 20));
        assert_eq!(parse_buffer("16m"), Ok(16 << 20));
        assert_eq!(parse_buffer("1G"), Ok(1 << 30));
        assert_eq!(parse_buffer("1048576"), Ok(1 << 20));
        for text in ["", "K", "0", "3M", "2K", "1", "2G", "4MB", "-4M", "99999999999999999G", "4 M"] {
            assert!(parse_buffer(text).is_err(), "{text}");
        }
    }

    #[test]
    fn some_files_are_kept() {
        assert_eq!((parse_files("1"), parse_files("999")), (Ok(1), Ok(999)));
        for text in ["", "0", "1000", "-1", "many"] {
            assert!(parse_files(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn durations_are_read_as_they_are_written(us in 1..u64::MAX / 1_000) {
            let ns = us * 1_000;
            prop_assert_eq!(parse_duration(&write_duration(ns)), Ok(Duration::from_nanos(ns)));
        }

        #[test]
        fn every_unit_multiplies(number in 1..1_000_000u64, unit in 0..UNITS.len()) {
            let (name, ns) = UNITS[unit];
            prop_assert_eq!(parse_duration(&format!("{number}{name}")), Ok(Duration::from_nanos(number * ns)));
        }

        #[test]
        fn no_text_panics(text in ".*") {
            let _unused = (parse_duration(&text), parse_buffer(&text), parse_files(&text));
        }
    }
}
