//! Whether the kernel may take the CPU from a task while it runs in the kernel.

use super::facts::{Facts, Live};

/// Where the mode can be changed while the kernel runs, it is shown here, in parentheses (`sched_dynamic_show`).
const MODE: &str = "/sys/kernel/debug/sched/preempt";
/// What the kernel was built for: `PREEMPT`, `PREEMPT_DYNAMIC` or `PREEMPT_RT` is part of it.
const VERSION: &str = "/proc/sys/kernel/version";

const REALTIME: &str = "PREEMPT_RT";

/// What the kernel tells of it, with the model's name as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Preemption {
    /// A task keeps its CPU until it gives it away.
    Never(String),
    /// Tasks are preempted within the kernel.
    Possible(String),
    /// It is chosen at boot, or not told to this user.
    Unknown,
}

impl Preemption {
    /// What `facts` say.
    #[must_use]
    pub fn of(facts: &impl Facts) -> Self {
        let version = facts.text(VERSION).unwrap_or_default();
        let mode = facts.text(MODE).unwrap_or_default();
        let mode = mode.split_once('(').and_then(|(_, rest)| rest.split_once(')')).map(|(mode, _)| mode);
        match mode {
            Some(mode) if version.contains(REALTIME) => Self::Possible(format!("{REALTIME}, {mode}")),
            Some(mode @ ("none" | "voluntary")) => Self::Never(mode.to_owned()),
            Some(mode) => Self::Possible(mode.to_owned()),
            None if version.contains(REALTIME) => Self::Possible(REALTIME.to_owned()),
            None if version.is_empty() || version.contains("PREEMPT_DYNAMIC") => Self::Unknown,
            None if version.contains("PREEMPT") => Self::Possible("full".to_owned()),
            None => Self::Never("none or voluntary".to_owned()),
        }
    }
}

/// Whether the running kernel may, as far as it tells; where it doesn't, it may.
#[must_use]
pub fn is_possible() -> bool {
    !matches!(Preemption::of(&Live), Preemption::Never(_))
}

/// Whether softirqs run in threads, which may be preempted (PREEMPT_RT).
#[must_use]
pub fn is_realtime() -> bool {
    Live.text(VERSION).is_ok_and(|version| version.contains(REALTIME))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::facts::recorded::Recorded;

    const DYNAMIC: &str = "#1 SMP PREEMPT_DYNAMIC Debian 6.12.117-1";

    fn of(mode: Option<&str>, version: &str) -> Preemption {
        let facts = Recorded::default().with(VERSION, version);
        Preemption::of(&match mode {
            Some(mode) => facts.with(MODE, mode),
            None => facts,
        })
    }

    #[test]
    fn the_mode_counts_where_it_is_known() {
        let never = |mode: &str| Preemption::Never(mode.to_owned());
        let possible = |mode: &str| Preemption::Possible(mode.to_owned());
        assert_eq!(of(Some("none (voluntary) full\n"), DYNAMIC), never("voluntary"));
        assert_eq!(of(Some("(none) voluntary full lazy\n"), DYNAMIC), never("none"));
        assert_eq!(of(Some("none voluntary (full)\n"), DYNAMIC), possible("full"));
        assert_eq!(of(Some("full (lazy)\n"), DYNAMIC), possible("lazy"));
        assert_eq!(
            of(Some("full (lazy)\n"), "#1 SMP PREEMPT_RT Debian 6.12.117-1"),
            possible("PREEMPT_RT, lazy")
        );
    }

    #[test]
    fn else_what_the_kernel_was_built_for() {
        assert_eq!(of(None, DYNAMIC), Preemption::Unknown);
        assert_eq!(
            of(None, "#1 SMP PREEMPT_RT Debian 6.12.117-1"),
            Preemption::Possible("PREEMPT_RT".to_owned())
        );
        assert_eq!(of(None, "#1 SMP Debian 5.10.244-1"), Preemption::Never("none or voluntary".to_owned()));
        assert_eq!(of(None, ""), Preemption::Unknown);
    }
}
