//! The machine's figures of its CPUs while packets were collected: whether there were any left, what processes had of them, and which of
//! them a quota held back.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use crate::kernel::cpus::{Hierarchies, Quota, Ran, Sample, Ticks, pressure_us};

/// A tick of /proc/stat (`USER_HZ`, 100 on x86-64 and arm64), ns.
const TICK_NS: u64 = 10_000_000;

/// A quota of a cgroup held back its tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Throttled {
    /// The cgroup's directory.
    pub(super) path: PathBuf,
    /// Periods in which it did so, and for how long in all, ns.
    pub(super) periods: u64,
    pub(super) ns: u64,
    /// The share of a CPU that it may use, percent.
    pub(super) percent: u64,
}

/// Figures of the CPUs; none for a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Machine {
    /// For how much of the time around each packet the CPUs were not idle, percent: a burst in a quiet minute had busy ones.
    pub(super) busy_percent: Option<u64>,
    /// For how much of the time some task waited for a CPU, percent.
    pub(super) pressure_percent: Option<u64>,
    /// By process: what held it back for longest, of its cgroup and those above.
    pub(super) throttled: HashMap<u32, Throttled>,
    /// CPU time of processes.
    pub(super) ran: HashMap<u32, Ran>,
    /// That of all CPUs together, idle or not, ns.
    pub(super) capacity_ns: Option<u64>,
    /// What could not be read.
    pub(super) missing: Vec<&'static str>,
}

/// Reads counters of CPU time, of processes that are named, now and then.
#[derive(Clone, Debug)]
pub(crate) struct Sensors {
    hierarchies: Hierarchies,
    /// The cgroups of each process, from its own one up.
    cgroups: HashMap<u32, Vec<PathBuf>>,
    /// When each counter was read first, and last.
    first: Sample,
    last: Sample,
}

impl Sensors {
    /// Counts from now on, `at_ns` of the monotonic clock.
    pub(crate) fn start(at_ns: u64) -> Self {
        let mut sensors = Self {
            hierarchies: Hierarchies::find(),
            cgroups: HashMap::new(),
            first: Sample::default(),
            last: Sample::default(),
        };
        sensors.look_at_cpus(0);
        sensors.look(std::iter::empty(), at_ns);
        sensors
    }

    /// Looks how busy the CPUs are. `packets` were seen by now.
    pub(crate) fn look_at_cpus(&mut self, packets: u64) {
        self.last.count(Ticks::read(), packets);
    }

    /// Reads all the others `at_ns` of the monotonic clock; each process lived at a time, ns since 1970.
    pub(crate) fn look(&mut self, processes: impl Iterator<Item = (u32, i64)>, at_ns: u64) {
        let Self { hierarchies, cgroups, first, last } = self;
        last.at_ns = at_ns;
        last.pressure_us = pressure_us();
        for (pid, wall_ns) in processes {
            cgroups.entry(pid).or_insert_with(|| hierarchies.above(pid, wall_ns));
            if let Some(ran) = Ran::of(pid, wall_ns) {
                last.ran.insert(pid, ran);
                first.ran.entry(pid).or_insert(ran);
            }
        }
        for path in cgroups.values().flatten() {
            if let Some(quota) = Quota::read(path) {
                last.quotas.insert(path.clone(), quota);
                first.quotas.entry(path.clone()).or_insert(quota);
            }
        }
    }

    /// The last sample.
    pub(crate) fn mark(&self) -> Sample {
        self.last.clone()
    }

    /// The difference between `before` and the last look. A counter that was not read then counts from its first read.
    pub(crate) fn since(&self, before: &Sample) -> Machine {
        let Self { cgroups, first, last, hierarchies } = self;
        let ticks = before.ticks.zip(last.ticks).map(|(before, last)| last.since(before));
        let busy = last.by_packets.since(before.by_packets).busy_of(100);
        let elapsed_us = last.at_ns.saturating_sub(before.at_ns) / 1_000;
        let waited = before
            .pressure_us
            .zip(last.pressure_us)
            .map(|(before, last)| Ticks { busy: last.saturating_sub(before), all: elapsed_us });
        let throttled = |path: &PathBuf| {
            let last = last.quotas.get(path)?;
            let before = before.quotas.get(path).or_else(|| first.quotas.get(path))?;
            Some(Throttled {
                path: path.clone(),
                periods: last.periods.saturating_sub(before.periods),
                ns: last.ns.saturating_sub(before.ns),
                percent: last.percent?,
            })
        };
        let of_process = |(pid, paths): (&u32, &Vec<PathBuf>)| {
            let most = paths.iter().filter_map(throttled).max_by_key(|throttled| throttled.ns)?;
            (most.periods > 0).then_some((*pid, most))
        };
        let ran = |(pid, last): (&u32, &Ran)| {
            let before = before.ran.get(pid).or_else(|| first.ran.get(pid))?;
            // Threads may have ended since.
            let on_ns = last.on_ns.checked_sub(before.on_ns)?;
            Some((*pid, Ran { on_ns, waited_ns: last.waited_ns.checked_sub(before.waited_ns)? }))
        };
        let mut missing = Vec::new();
        if ticks.is_none() {
            missing.push("how busy the CPUs are (/proc/stat)");
        }
        if hierarchies.is_empty() {
            missing.push("CPU quotas (no control groups are mounted)");
        }
        Machine {
            busy_percent: busy.or_else(|| ticks?.busy_of(100)),
            pressure_percent: waited.and_then(|waited| waited.busy_of(100)),
            throttled: cgroups.iter().filter_map(of_process).collect(),
            ran: last.ran.iter().filter_map(ran).collect(),
            capacity_ns: ticks.map(|ticks| ticks.all.saturating_mul(TICK_NS)),
            missing,
        }
    }
}

impl Machine {
    /// That is not known.
    pub(crate) fn miss(&mut self, what: &'static str) {
        self.missing.push(what);
    }
}

impl Throttled {
    /// Its directory, where it can stand on a command line.
    pub(super) fn plain_path(&self) -> Option<&str> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '@' | '/' | ':');
        Path::to_str(&self.path).filter(|path| path.chars().all(is_plain))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// N ms after the start: `busy` us of CPU time were used, `throttled` ns held back below, and `ran` ns run.
    fn sample(ms: u64, busy: u64, throttled: u64, ran: u64) -> Sample {
        let quota = |path: &str, ns, percent| (path.into(), Quota { periods: ns / 10, ns, percent });
        Sample {
            at_ns: ms * 1_000_000,
            ticks: Some(Ticks { busy, all: ms * 1_000 }),
            pressure_us: Some(busy / 2),
            ran: [(7, Ran { on_ns: ran, waited_ns: 2 * ran })].into(),
            quotas: [quota("/cg/a", throttled, Some(4)), quota("/cg", 50, Some(150))].into(),
            ..Sample::default()
        }
    }

    fn sensors(first: Sample, last: Sample) -> Sensors {
        let paths = ["/cg/a", "/cg"].map(PathBuf::from).to_vec();
        let cgroups = [(7, paths), (8, vec!["/other".into()])].into();
        Sensors { hierarchies: Hierarchies::default(), cgroups, first, last }
    }

    #[test]
    fn what_was_between_two_looks_counts() {
        let sensors = sensors(sample(500, 100_000, 20, 5), sample(2_000, 900_000, 420, 45));
        let machine = sensors.since(&sample(1_000, 150_000, 120, 25));
        assert_eq!((machine.busy_percent, machine.pressure_percent), (Some(75), Some(37)));
        let expected = Throttled { path: "/cg/a".into(), periods: 30, ns: 300, percent: 4 };
        assert_eq!(machine.throttled, [(7, expected)].into());
        assert_eq!(machine.ran, [(7, Ran { on_ns: 20, waited_ns: 40 })].into());
        assert_eq!(machine.capacity_ns, Some(10_000_000_000_000));
        assert_eq!(machine.missing, ["CPU quotas (no control groups are mounted)"]);
    }

    #[test]
    fn what_was_not_read_before_counts_from_when_it_was_first() {
        let sensors = sensors(sample(500, 100_000, 20, 5), sample(2_000, 900_000, 420, 45));
        let machine = sensors.since(&Sample::default());
        assert_eq!((machine.busy_percent, machine.pressure_percent), (None, None));
        assert_eq!(machine.throttled[&7].ns, 400);
        assert_eq!(machine.ran[&7].on_ns, 40);
        assert_eq!(machine.missing.len(), 2);
        // Threads that have ended take their times with them, and a quota that held nothing back is none.
        let sensors = self::sensors(sample(500, 1, 20, 50), sample(2_000, 2, 20, 45));
        let machine = sensors.since(&Sample::default());
        assert!(machine.throttled.is_empty() && machine.ran.is_empty(), "{machine:?}");
    }

    #[test]
    fn a_path_stands_on_a_command_line_if_it_is_plain() {
        let of = |path: &str| Throttled { path: path.into(), periods: 1, ns: 1, percent: 1 };
        assert_eq!(of("/sys/fs/cgroup/a.slice").plain_path(), Some("/sys/fs/cgroup/a.slice"));
        assert_eq!(of("/sys/fs/cgroup/a;reboot").plain_path(), None);
    }
}
