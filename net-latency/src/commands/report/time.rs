//! Times of a log as the report shows them.

use chrono::{DateTime, FixedOffset};

/// `wall_ns` on a clock `offset_s` east of Greenwich, in chrono's `format`.
pub(super) fn show(wall_ns: i64, offset_s: i32, format: &str) -> String {
    let utc = DateTime::from_timestamp_nanos(wall_ns);
    match FixedOffset::east_opt(offset_s) {
        Some(offset) => utc.with_timezone(&offset).format(format).to_string(),
        None => utc.format(format).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::event::fixtures::WALL_NS;

    #[test]
    fn times_are_shown_on_their_own_clock() {
        assert_eq!(show(WALL_NS, -12_600, "%F %T %:z"), "2022-03-02 12:31:36 -03:30");
    }
}
