//! Whether the owner of a number now is the one that had it then: numbers of processes and threads are used again.

use std::fs;

use rustix::{
    param::clock_ticks_per_second,
    time::{ClockId, Timespec, clock_gettime},
};

/// When it was started, in clock ticks ([`stat_field`]).
const START: usize = 22;

/// When the process or thread of this directory of /proc was started, ns since 1970, in steps of 10 ms: not later than it was.
fn started(directory: &str) -> Option<i64> {
    // Read in this order, what comes between makes it earlier.
    let wall = clock_gettime(ClockId::Realtime);
    let running = clock_gettime(ClockId::Boottime);
    let ns = |time: Timespec| time.tv_sec * 1_000_000_000 + time.tv_nsec;
    let ticks = stat_field(&fs::read(format!("{directory}/stat")).ok()?, START)?;
    let start =
        i64::try_from(u128::from(ticks) * 1_000_000_000 / u128::from(clock_ticks_per_second())).ok()?;
    Some(ns(wall) - (ns(running) - start))
}

/// A number in a line of a `stat` behind the name, by its place in proc_pid_stat(5). A name may have anything in it, parentheses too.
pub(super) fn stat_field(stat: &[u8], number: usize) -> Option<u64> {
    const FIRST_BEHIND_NAME: usize = 3;
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    let mut words = stat[end + 1..].split(|&byte| byte == b' ').filter(|word| !word.is_empty());
    str::from_utf8(words.nth(number.checked_sub(FIRST_BEHIND_NAME)?)?).ok()?.trim_end().parse().ok()
}

/// Whether the process or thread that has this directory of /proc lived at a time, ns since 1970. Else it is another one that has got the
/// number since.
pub(super) fn lived_at(directory: &str, wall_ns: i64) -> bool {
    started(directory).is_some_and(|start| start <= wall_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> i64 {
        let now = clock_gettime(ClockId::Realtime);
        now.tv_sec * 1_000_000_000 + now.tv_nsec
    }

    #[test]
    fn a_start_is_found_behind_any_name() {
        let behind = "S 1 7 7 0 -1 4194560 141 0 0 0 0 0 0 0 20 0 1 0 4711 2383872 0\n";
        for name in ["sh", "a b", ") S 1 2", "((", ""] {
            assert_eq!(stat_field(format!("7 ({name}) {behind}").as_bytes(), START), Some(4711), "{name}");
        }
        for other in ["", "7 (sh", "7 (sh) S 1", "7 (sh) S 1 7 7 0 -1 4194560 141 0 0 0 0 0 0 0 20 0 1 0 x 1"]
        {
            assert_eq!(stat_field(other.as_bytes(), START), None, "{other}");
        }
        let start = started("/proc/self").expect("this one lives");
        assert!(start <= now() && start > now() - 86_400_000_000_000);
        assert!(lived_at("/proc/self", now()) && !lived_at("/proc/self", start - 1_000_000_000));
    }
}
