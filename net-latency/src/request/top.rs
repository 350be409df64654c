//! The parsed request of `net-latency top`.

use std::{fmt, num::NonZeroU64, path::PathBuf, time::Duration};

use super::{choice::choices, filter::PacketFilter, format::FooterFormat, tracing::TracingConfig};
use crate::clock::Zone;

/// What to trace and how to show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TopConfig {
    /// Which packets to show.
    pub filter: PacketFilter,
    /// Where they come from.
    pub input: TopInput,
    /// Time between two screens.
    pub delay: Duration,
    /// Time over which rates and percentiles are computed.
    pub window: Duration,
    /// What the tables of processes and connections are sorted by at first.
    pub sort: SortBy,
    /// Time zone of the screen and of the summary: that of this machine, or UTC.
    pub zone: Zone,
    /// Only errors go to standard error. The footer is then `FooterFormat::None`.
    pub quiet: bool,
    /// Form of the summary at the end, on standard error.
    pub footer: FooterFormat,
}

choices! {
    /// What a table can be sorted by. Times are those of the direction that is shown.
    pub(crate) enum SortBy {
        Time "time" "Time of a second's packets together: p50 times their rate",
        P99 "p99" "Time that 99 % of the packets do not exceed",
        P50 "p50" "Time that half of the packets do not exceed",
        Max "max" "Longest time",
        In "in" "Packets a second that come in",
        Out "out" "Packets a second that go out",
        Mostly "mostly" "Stage that takes most of the time",
        Pid "pid" "Process's number",
        Name "name" "Process's name",
        Connections "connections" "How many the process has",
    }
}

/// Where the packets come from that are shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TopInput {
    /// This kernel, traced by these means.
    Kernel(TracingConfig),
    /// Recorded logs.
    Logs(ReplayConfig),
}

/// Which logs to play back, and how fast.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReplayConfig {
    /// The logs; `-` is standard input.
    pub files: Vec<PathBuf>,
    /// How fast.
    pub speed: Speed,
}

/// How fast a log is played back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speed {
    /// N thousandths of the log's own pace.
    Thousandths(NonZeroU64),
    /// As fast as it can be read.
    Max,
}

impl fmt::Display for Speed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Max => f.write_str("max"),
            Self::Thousandths(thousandths) => {
                let (whole, rest) = (thousandths.get() / 1_000, thousandths.get() % 1_000);
                let digits = format!("{rest:03}");
                match digits.trim_end_matches('0') {
                    "" => write!(f, "{whole}x"),
                    digits => write!(f, "{whole}.{digits}x"),
                }
            }
        }
    }
}

/// A number with at most three digits behind the point, or `max`.
pub(crate) fn parse_speed(text: &str) -> Result<Speed, String> {
    let wrong = || {
        "write how many times faster than it was recorded, from 0.001 to 1000000, or max: 10, 0.5".to_owned()
    };
    if text == "max" {
        return Ok(Speed::Max);
    }
    let (whole, rest) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(rest) || whole.len() > 7 || rest.len() > 3 {
        return Err(wrong());
    }
    let thousandths: u64 = format!("{whole}{rest:0<3}").parse().map_err(|_| wrong())?;
    NonZeroU64::new(thousandths)
        .filter(|thousandths| thousandths.get() <= 1_000_000_000)
        .map(Speed::Thousandths)
        .ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_speed_reads_as_it_was_written() {
        for (text, shown) in [
            ("1", "1x"),
            ("10", "10x"),
            ("0.5", "0.5x"),
            ("2.250", "2.25x"),
            ("0.001", "0.001x"),
            ("1000000", "1000000x"),
            ("max", "max"),
        ] {
            assert_eq!(parse_speed(text).map(|speed| speed.to_string()), Ok(shown.to_owned()));
        }
        for text in
            ["", "0", "0.000", "-1", "+1", "1e3", "10x", ".5", "5.", "0.0001", "1000001", "MAX", "inf"]
        {
            assert!(parse_speed(text).is_err(), "{text}");
        }
    }
}
