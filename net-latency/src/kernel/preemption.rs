//! Whether the kernel may take the CPU from a task while it runs in the kernel.

use std::fs;

/// Where the mode can be changed while the kernel runs, it is shown here, in parentheses (`sched_dynamic_show`).
const MODE: &str = "/sys/kernel/debug/sched/preempt";
/// What the kernel was built for: `PREEMPT`, `PREEMPT_DYNAMIC` or `PREEMPT_RT` is part of it.
const VERSION: &str = "/proc/sys/kernel/version";

/// Whether it may, as far as the kernel tells; where it doesn't, it may.
#[must_use]
pub fn is_possible() -> bool {
    may_be(fs::read_to_string(MODE).ok().as_deref(), &fs::read_to_string(VERSION).unwrap_or_default())
}

fn may_be(mode: Option<&str>, version: &str) -> bool {
    match mode.and_then(|text| text.split_once('(')?.1.split_once(')')) {
        Some((mode, _)) => !matches!(mode, "none" | "voluntary"),
        None => version.is_empty() || version.contains("PREEMPT"),
    }
}

#[cfg(test)]
mod tests {
    use super::may_be;

    const DYNAMIC: &str = "#1 SMP PREEMPT_DYNAMIC Debian 6.12.117-1";

    #[test]
    fn the_mode_counts_where_it_is_known() {
        assert!(!may_be(Some("none (voluntary) full\n"), DYNAMIC));
        assert!(!may_be(Some("(none) voluntary full lazy\n"), DYNAMIC));
        assert!(may_be(Some("none voluntary (full)\n"), DYNAMIC));
        assert!(may_be(Some("full (lazy)\n"), DYNAMIC));
    }

    #[test]
    fn else_what_the_kernel_was_built_for() {
        assert!(may_be(None, DYNAMIC));
        assert!(may_be(None, "#1 SMP PREEMPT_RT Debian 6.12.117-1"));
        assert!(!may_be(None, "#1 SMP Debian 5.10.244-1"));
        assert!(may_be(None, ""));
    }
}
