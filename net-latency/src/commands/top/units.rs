//! Times, rates and trends in few characters.

/// A time in ns in five characters at most: two digits at least, and a unit.
pub(super) fn time(ns: u64) -> String {
    const UNITS: [(u64, &str); 5] =
        [(1, "ns"), (1_000, "us"), (1_000_000, "ms"), (1_000_000_000, "s"), (3_600_000_000_000, "h")];
    let mut text = String::new();
    for (unit, name) in UNITS {
        let tenths = (u128::from(ns) * 10 + u128::from(unit) / 2) / u128::from(unit);
        text = if unit > 1 && tenths < 100 {
            format!("{}.{}{name}", tenths / 10, tenths % 10)
        } else {
            format!("{}{name}", (u128::from(ns) + u128::from(unit) / 2) / u128::from(unit))
        };
        if text.len() <= 5 {
            return text;
        }
    }
    // No packet waits for a year.
    text.replace_range(.., ">1y");
    text
}

/// Packets a second in five characters at most.
pub(super) fn rate(per_second: f64) -> String {
    match per_second {
        ..0.05 => "0".to_owned(),
        0.05..9.95 => format!("{per_second:.1}"),
        9.95..99_999.5 => format!("{per_second:.0}"),
        99_999.5..999_500.0 => format!("{:.0}k", per_second / 1e3),
        999_500.0..99_950_000.0 => format!("{:.1}M", per_second / 1e6),
        99_950_000.0..9_999_500_000.0 => format!("{:.0}M", per_second / 1e6),
        // No machine does that.
        _ => ">10G".to_owned(),
    }
}

/// How slow a time is, for its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heat {
    /// Below 1 ms.
    None,
    /// From 1 ms.
    Warm,
    /// From 10 ms.
    Hot,
}

pub(super) fn heat(ns: u64) -> Heat {
    match ns {
        ..1_000_000 => Heat::None,
        1_000_000..10_000_000 => Heat::Warm,
        _ => Heat::Hot,
    }
}

/// The bar for `value` where `most` is the highest there is.
pub(super) fn bar(value: u64, most: u64, is_ascii: bool) -> char {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    const ASCII: [char; 8] = ['.', ':', '-', '=', '+', '*', '#', '@'];
    let bars = if is_ascii { ASCII } else { BARS };
    let level = (u128::from(value) * 8).div_ceil(u128::from(most.max(1))).clamp(1, 8);
    bars[level as usize - 1]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn times_are_short() {
        let read = [
            (0, "0ns"),
            (999, "999ns"),
            (1_000, "1.0us"),
            (9_949, "9.9us"),
            (9_950, "10us"),
            (23_999, "24us"),
            (999_499, "999us"),
            (999_500, "1.0ms"),
            (189_500_000, "190ms"),
            (2_000_000_000, "2.0s"),
            (9_999_000_000_000, "9999s"),
            (36_000_000_000_000, "10h"),
            (u64::MAX, ">1y"),
        ];
        for (ns, text) in read {
            assert_eq!(time(ns), text, "{ns}");
        }
    }

    #[test]
    fn rates_are_short() {
        let read = [
            (0.0, "0"),
            (0.1, "0.1"),
            (9.94, "9.9"),
            (9.96, "10"),
            (99_999.4, "99999"),
            (123_456.0, "123k"),
            (999_499.0, "999k"),
            (999_500.0, "1.0M"),
            (1.25e6, "1.2M"),
            (99_949_999.0, "99.9M"),
            (99_950_000.0, "100M"),
            (999_965_335.0, "1000M"),
            (9_999_499_999.0, "9999M"),
            (f64::MAX, ">10G"),
        ];
        for (per_second, text) in read {
            assert_eq!(rate(per_second), text, "{per_second}");
        }
    }

    #[test]
    fn bars_rise_with_the_value() {
        let bars = |is_ascii| (0..=8).map(|value| bar(value, 8, is_ascii)).collect::<String>();
        assert_eq!(bars(false), "▁▁▂▃▄▅▆▇█");
        assert_eq!(bars(true), "..:-=+*#@");
        assert_eq!(bar(u64::MAX, u64::MAX, true), '@');
        assert_eq!(bar(0, 0, true), '.');
    }

    proptest! {
        #[test]
        fn everything_fits_its_column(ns: u64, per_second in 0.0..1e11f64) {
            prop_assert!(time(ns).len() <= 5, "{}", time(ns));
            prop_assert!(rate(per_second).len() <= 5, "{}", rate(per_second));
        }
    }
}
