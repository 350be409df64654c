//! Event time to wall-clock time, and its text.

use std::{cell::LazyCell, fmt::Write as _, time::Duration};

use chrono::{DateTime, FixedOffset, Local, NaiveDateTime, Offset as _, TimeZone as _};
use rustix::time::{ClockId, Timespec, clock_gettime};

use crate::escape::lossy;

const NS_PER_SECOND: i64 = 1_000_000_000;

/// Maps ns of `CLOCK_MONOTONIC` (`bpf_ktime_get_ns`) to ns since 1970 in UTC.
///
/// The distance between the two clocks changes when the system time is set or slewed, so a long run
/// samples anew from time to time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    offset_ns: i64,
}

/// The clock, read when it is first needed: where nothing comes, it is not read.
pub(crate) type LazyClock = LazyCell<Clock>;

impl Clock {
    /// Reads both clocks of this machine.
    #[must_use]
    pub fn sample() -> Self {
        let read = |id| nanoseconds(clock_gettime(id));
        Self::tightest((0..8).map(|_| {
            let before = read(ClockId::Monotonic);
            let utc = read(ClockId::Realtime);
            (before, utc, read(ClockId::Monotonic))
        }))
    }

    /// The least disturbed of some readings of (monotonic, realtime, monotonic): it says most precisely what time it was in the middle.
    fn tightest(readings: impl Iterator<Item = (i64, i64, i64)>) -> Self {
        let offset_ns = readings
            .min_by_key(|(before, _, after)| after - before)
            .map_or(0, |(before, utc, after)| utc - (before + (after - before) / 2));
        Self { offset_ns }
    }

    /// A clock that is this far from `CLOCK_MONOTONIC`, for tests and benches.
    #[must_use]
    pub const fn at(offset_ns: i64) -> Self {
        Self { offset_ns }
    }

    /// `mono` in ns of `CLOCK_MONOTONIC` as ns since 1970 in UTC.
    #[must_use]
    pub fn to_utc_ns(self, mono: u64) -> i64 {
        i64::try_from(mono).unwrap_or(i64::MAX).saturating_add(self.offset_ns)
    }
}

/// Now, in ns of `CLOCK_MONOTONIC`.
#[must_use]
pub(crate) fn monotonic_ns() -> u64 {
    u64::try_from(nanoseconds(clock_gettime(ClockId::Monotonic))).unwrap_or(0)
}

/// CPU time of this process so far.
#[must_use]
pub(crate) fn cpu_of_process() -> Duration {
    duration(clock_gettime(ClockId::ProcessCPUTime))
}

/// CPU time of this thread so far: unlike the time that passes, it says what work costs on a busy machine too.
#[must_use]
pub(crate) fn cpu_of_thread() -> Duration {
    duration(clock_gettime(ClockId::ThreadCPUTime))
}

fn duration(time: Timespec) -> Duration {
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn nanoseconds(time: Timespec) -> i64 {
    time.tv_sec * NS_PER_SECOND + time.tv_nsec
}

/// Whose clock on the wall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zone {
    /// This machine's time zone, daylight saving included.
    Local,
    /// A fixed distance from UTC.
    Fixed(FixedOffset),
}

impl Zone {
    /// Coordinated universal time.
    pub const UTC: Self = Self::Fixed(match FixedOffset::east_opt(0) {
        Some(offset) => offset,
        None => panic!("0 is in range"),
    });

    fn offset_at(self, utc: NaiveDateTime) -> FixedOffset {
        match self {
            Self::Local => Local.offset_from_utc_datetime(&utc).fix(),
            Self::Fixed(offset) => offset,
        }
    }
}

/// How a time reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimeStyle {
    /// `Wed Mar  2 16:01:36`
    Calendar,
    /// RFC 3339 with 9 digits and a numeric offset: `2022-03-02T16:01:36.123456789+00:00`
    Rfc3339,
}

/// Writes times of one style. Rendering a date costs more than the rest of a line, and thousands of
/// lines share their second, so the text of the last second is kept.
#[derive(Debug)]
pub(crate) struct TimeText {
    zone: Zone,
    style: TimeStyle,
    /// Start in ns since 1970 of the second that `head` and `tail` are of.
    second: Option<i64>,
    head: String,
    tail: String,
}

/// The text of `wall_ns`, in ns since 1970 in UTC, as RFC 3339 has it.
pub(crate) fn rfc3339(wall_ns: i64, zone: Zone) -> String {
    let mut text = Vec::new();
    TimeText::new(zone, TimeStyle::Rfc3339).write(wall_ns, &mut text);
    lossy(&text)
}

impl TimeText {
    /// A writer of times in `zone`.
    #[must_use]
    pub(crate) fn new(zone: Zone, style: TimeStyle) -> Self {
        Self { zone, style, second: None, head: String::new(), tail: String::new() }
    }

    /// Whether the text of `wall_ns` up to whole seconds is the same as the last.
    #[inline]
    pub(crate) fn is_kept(&self, wall_ns: i64) -> bool {
        self.second.is_some_and(|second| {
            // Without a division.
            wall_ns.checked_sub(second).is_some_and(|fraction| (0..NS_PER_SECOND).contains(&fraction))
        })
    }

    /// The text of `wall_ns`, in ns since 1970 in UTC, up to whole seconds: all of it in the style of a calendar.
    #[inline]
    pub(crate) fn whole_seconds(&mut self, wall_ns: i64) -> &str {
        if !self.is_kept(wall_ns) {
            self.render(wall_ns.saturating_sub(wall_ns.rem_euclid(NS_PER_SECOND)));
        }
        &self.head
    }

    /// What stands in front of the fraction of the second, and what behind it, in the style of RFC 3339.
    pub(crate) fn around_fraction(&mut self, wall_ns: i64) -> [&str; 2] {
        self.whole_seconds(wall_ns);
        [&self.head, &self.tail]
    }

    /// Appends the text of `wall_ns`, in ns since 1970 in UTC, to `out`.
    pub(crate) fn write(&mut self, wall_ns: i64, out: &mut Vec<u8>) {
        out.extend_from_slice(self.whole_seconds(wall_ns).as_bytes());
        if self.style == TimeStyle::Rfc3339 {
            let fraction = wall_ns.rem_euclid(NS_PER_SECOND);
            let mut digits = *b".000000000";
            let mut rest = fraction;
            for digit in digits[1..].iter_mut().rev() {
                *digit += u8::try_from(rest % 10).unwrap_or(0);
                rest /= 10;
            }
            out.extend_from_slice(&digits);
            out.extend_from_slice(self.tail.as_bytes());
        }
    }

    fn render(&mut self, second: i64) {
        let utc = DateTime::from_timestamp_nanos(second).naive_utc();
        let time = self.zone.offset_at(utc).from_utc_datetime(&utc);
        self.head.clear();
        self.tail.clear();
        let written = match self.style {
            TimeStyle::Calendar => write!(self.head, "{}", time.format("%a %b %e %H:%M:%S")),
            TimeStyle::Rfc3339 => write!(self.head, "{}", time.format("%Y-%m-%dT%H:%M:%S"))
                .and_then(|()| write!(self.tail, "{}", time.format("%:z"))),
        };
        written.expect("constant formats, written to memory");
        self.second = Some(second);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::event::fixtures::WALL_NS;

    fn text(zone: Zone, style: TimeStyle, times: &[i64]) -> Vec<String> {
        let mut writer = TimeText::new(zone, style);
        let write = |&time: &i64| {
            let mut out = Vec::new();
            writer.write(time, &mut out);
            String::from_utf8(out).expect("times are ASCII")
        };
        times.iter().map(write).collect()
    }

    #[test]
    fn the_tightest_reading_wins_and_its_middle_counts() {
        let readings = [(100, 5_000, 200), (300, 5_250, 310), (400, 5_400, 500)];
        let clock = Clock::tightest(readings.into_iter());
        assert_eq!(clock, Clock { offset_ns: 5_250 - 305 });
        assert_eq!(clock.to_utc_ns(1_000), 5_945);
    }

    #[test]
    fn this_machine_is_past_2020() {
        let now = nanoseconds(clock_gettime(ClockId::Monotonic));
        assert!(Clock::sample().to_utc_ns(now.unsigned_abs()) > 1_577_836_800 * NS_PER_SECOND);
    }

    #[test]
    fn a_thread_that_sleeps_takes_no_cpu_time() {
        const SLEEP: Duration = Duration::from_millis(50);
        let before = cpu_of_thread();
        std::thread::sleep(SLEEP);
        let after = cpu_of_thread();
        let took = after - before;
        assert!(took > Duration::ZERO && took < SLEEP / 2, "{took:?}");
        // Read later: what is read first is the smaller one in any case.
        assert!(cpu_of_process() >= after);
    }

    #[test]
    fn impossible_stamps_do_not_wrap() {
        assert_eq!(Clock { offset_ns: 1 }.to_utc_ns(u64::MAX), i64::MAX);
    }

    #[test]
    fn calendar_style_pads_the_day() {
        assert_eq!(text(Zone::UTC, TimeStyle::Calendar, &[WALL_NS]), ["Wed Mar  2 16:01:36"]);
    }

    #[test]
    fn rfc3339_style_has_nine_digits_and_a_numeric_offset() {
        assert_eq!(
            text(Zone::UTC, TimeStyle::Rfc3339, &[WALL_NS, 7]),
            ["2022-03-02T16:01:36.123456789+00:00", "1970-01-01T00:00:00.000000007+00:00"]
        );
        let newfoundland = FixedOffset::west_opt(3 * 3600 + 1800).expect("in range");
        assert_eq!(
            text(Zone::Fixed(newfoundland), TimeStyle::Rfc3339, &[WALL_NS]),
            ["2022-03-02T12:31:36.123456789-03:30"]
        );
    }

    #[test]
    fn the_kept_second_never_outlives_its_second() {
        let times = [WALL_NS, WALL_NS + 1, WALL_NS + NS_PER_SECOND, WALL_NS - 1, WALL_NS - NS_PER_SECOND];
        assert_eq!(
            text(Zone::UTC, TimeStyle::Rfc3339, &times),
            [
                "2022-03-02T16:01:36.123456789+00:00",
                "2022-03-02T16:01:36.123456790+00:00",
                "2022-03-02T16:01:37.123456789+00:00",
                "2022-03-02T16:01:36.123456788+00:00",
                "2022-03-02T16:01:35.123456789+00:00",
            ]
        );
    }

    #[test]
    fn any_time_can_be_written() {
        for zone in [Zone::Local, Zone::UTC] {
            assert_eq!(text(zone, TimeStyle::Rfc3339, &[i64::MIN, -1, i64::MAX]).len(), 3);
        }
    }
}
