//! Counters of CPU time: the machine's, processes', and what quotas of cgroups held back. They only grow: two samples tell what was between.

use std::{
    collections::HashMap,
    ffi::OsStr,
    fs,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use super::{mounts, processes::living};

/// Most threads of a process whose times are added up.
const THREADS: usize = 64;
/// Depth of nested cgroups: more than any machine has.
const DEEPEST: usize = 64;

/// CPU time of all CPUs, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ticks {
    pub(crate) busy: u64,
    pub(crate) all: u64,
}

impl Ticks {
    /// Now, if /proc/stat tells.
    pub(crate) fn read() -> Option<Self> {
        Self::of(&fs::read_to_string("/proc/stat").ok()?)
    }

    /// What was between.
    pub(crate) fn since(self, before: Self) -> Self {
        Self { busy: self.busy.wrapping_sub(before.busy), all: self.all.wrapping_sub(before.all) }
    }

    /// Of N.
    pub(crate) fn busy_of(self, whole: u64) -> Option<u64> {
        let part = u128::from(self.busy) * u128::from(whole);
        u64::try_from(part.checked_div(self.all.into())?).ok().map(|part| part.min(whole))
    }

    /// Guests' time is in the user's, the first two columns.
    fn of(stat: &str) -> Option<Self> {
        let words = stat.lines().find_map(|line| line.strip_prefix("cpu "))?.split_whitespace();
        let times: Vec<u64> = words.take(8).map(str::parse).collect::<Result<_, _>>().ok()?;
        let [_, _, _, idle, iowait, ..] = times.as_slice() else { return None };
        let all = times.iter().fold(0u64, |sum, time| sum.wrapping_add(*time));
        Some(Self { busy: all.wrapping_sub(*idle).wrapping_sub(*iowait), all })
    }
}

/// For how long some task has waited for a CPU, us, if this kernel counts it.
pub(crate) fn pressure_us() -> Option<u64> {
    pressure(&fs::read_to_string("/proc/pressure/cpu").ok()?)
}

fn pressure(text: &str) -> Option<u64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    some.split_whitespace().find_map(|word| word.strip_prefix("total="))?.parse().ok()
}

/// CPU time of the threads of a process, ns: on a CPU, and waiting for one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ran {
    pub(crate) on_ns: u64,
    pub(crate) waited_ns: u64,
}

impl Ran {
    /// The figures of a process that lives and did so at `wall_ns`, by its id in the initial PID namespace; nothing if it has too many
    /// threads, or this kernel does not count it.
    pub(crate) fn of(pid: u32, wall_ns: i64) -> Option<Self> {
        let directory = living(format!("/proc/{pid}"), wall_ns)?;
        let mut all = Self::default();
        for (number, thread) in fs::read_dir(directory + "/task").ok()?.flatten().enumerate() {
            if number == THREADS {
                return None;
            }
            // One that has ended meanwhile.
            let Ok(text) = fs::read_to_string(thread.path().join("schedstat")) else { continue };
            let ran = Self::read(&text)?;
            all.on_ns = all.on_ns.saturating_add(ran.on_ns);
            all.waited_ns = all.waited_ns.saturating_add(ran.waited_ns);
        }
        Some(all)
    }

    fn read(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace().map(str::parse);
        Some(Self { on_ns: words.next()?.ok()?, waited_ns: words.next()?.ok()? })
    }
}

/// How often and for how long a cgroup's quota has held its tasks back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Quota {
    pub(crate) periods: u64,
    pub(crate) ns: u64,
    /// The share of a CPU that it may use, percent.
    pub(crate) percent: Option<u64>,
}

impl Quota {
    /// The quota in a cgroup's directory; nothing if it has none.
    pub(crate) fn read(directory: &Path) -> Option<Self> {
        let read = |name: &str| fs::read_to_string(directory.join(name)).ok();
        let mut quota = Self::of(&read("cpu.stat")?)?;
        quota.percent = match read("cpu.max") {
            Some(text) => percent(text.split_whitespace()),
            None => {
                let (quota, period) = (read("cpu.cfs_quota_us")?, read("cpu.cfs_period_us")?);
                percent([quota.trim(), period.trim()].into_iter())
            }
        };
        quota.percent.map(|_| quota)
    }

    /// Both versions of cgroups have their own unit.
    fn of(stat: &str) -> Option<Self> {
        let value = |name: &str| -> Option<u64> {
            let line = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
            line.trim().parse().ok()
        };
        let ns =
            value("throttled_time").or_else(|| value("throttled_usec").map(|us| us.saturating_mul(1_000)))?;
        Some(Self { periods: value("nr_throttled")?, ns, percent: None })
    }
}

/// `max`, or -1, is none.
fn percent<'a>(mut words: impl Iterator<Item = &'a str>) -> Option<u64> {
    let (quota, period): (u64, u64) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    quota.saturating_mul(100).checked_div(period)
}

/// Where cgroups are that have quotas.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hierarchies {
    /// Of version 1, with the controller of CPUs; of version 2.
    cpu: Option<PathBuf>,
    unified: Option<PathBuf>,
}

impl Hierarchies {
    pub(crate) fn find() -> Self {
        Self::of(&fs::read("/proc/self/mountinfo").unwrap_or_default())
    }

    fn of(text: &[u8]) -> Self {
        let mut found = Self::default();
        for mount in mounts::read(text) {
            let place = || Some(PathBuf::from(OsStr::from_bytes(&mount.place)));
            let is_cpu = || mount.options.split(|&byte| byte == b',').any(|option| option == b"cpu");
            match mount.kind.as_slice() {
                b"cgroup" if found.cpu.is_none() && is_cpu() => found.cpu = place(),
                b"cgroup2" if found.unified.is_none() => found.unified = place(),
                _ => {}
            }
        }
        found
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.cpu.is_none() && self.unified.is_none()
    }

    /// The cgroup of a process that lives and did so at `wall_ns`, and those above it.
    pub(crate) fn above(&self, pid: u32, wall_ns: i64) -> Vec<PathBuf> {
        let text = living(format!("/proc/{pid}"), wall_ns)
            .and_then(|directory| fs::read(directory + "/cgroup").ok());
        self.chain(&text.unwrap_or_default())
    }

    fn chain(&self, text: &[u8]) -> Vec<PathBuf> {
        let lines = || {
            text.split(|&byte| byte == b'\n').filter_map(|line| {
                let mut fields = line.splitn(3, |&byte| byte == b':').skip(1);
                Some((fields.next()?, fields.next()?))
            })
        };
        let has_cpu = |controllers: &[u8]| controllers.split(|&byte| byte == b',').any(|name| name == b"cpu");
        let of_cpu = lines().find(|(controllers, _)| has_cpu(controllers));
        let unified = lines().find(|(controllers, _)| controllers.is_empty());
        let found = of_cpu.zip(self.cpu.as_ref()).or(unified.zip(self.unified.as_ref()));
        let Some(((_, path), root)) = found else { return Vec::new() };
        // One that is outside of what this process sees has a path of `..`.
        let path = Path::new(OsStr::from_bytes(path.strip_prefix(b"/").unwrap_or(path)));
        if path.components().any(|part| !matches!(part, std::path::Component::Normal(_))) {
            return Vec::new();
        }
        let whole: PathBuf = root.join(path).components().collect();
        whole
            .ancestors()
            .take(DEEPEST)
            .take_while(|above| above.starts_with(root))
            .map(Path::to_owned)
            .collect()
    }
}

/// A sample of all of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    /// When, ns of the monotonic clock.
    pub(crate) at_ns: u64,
    pub(crate) ticks: Option<Ticks>,
    /// Packets by then, and the CPUs' time for each of them: in per mille of the time between the two looks around it.
    pub(crate) packets: u64,
    pub(crate) by_packets: Ticks,
    pub(crate) pressure_us: Option<u64>,
    pub(crate) ran: HashMap<u32, Ran>,
    pub(crate) quotas: HashMap<PathBuf, Quota>,
}

impl Sample {
    /// Takes the ticks until now, and the packets that were seen by now.
    pub(crate) fn count(&mut self, ticks: Option<Ticks>, packets: u64) {
        const WHOLE: u64 = 1_000;
        let passed = self.ticks.zip(ticks).map(|(before, now)| now.since(before));
        if passed.is_some_and(|passed| passed.all == 0) {
            // Less than a tick: the next look tells.
            return;
        }
        if let Some(busy) = passed.and_then(|passed| passed.busy_of(WHOLE)) {
            let came = packets.saturating_sub(self.packets);
            self.by_packets.busy = self.by_packets.busy.wrapping_add(busy.wrapping_mul(came));
            self.by_packets.all = self.by_packets.all.wrapping_add(WHOLE.wrapping_mul(came));
        }
        (self.ticks, self.packets) = (ticks, packets);
    }
}

#[cfg(test)]
mod tests {
    use super::{super::processes::proc_is_initial, *};

    #[test]
    fn a_burst_in_a_quiet_minute_had_busy_cpus() {
        let at = |busy, all| Some(Ticks { busy, all });
        let mut sample = Sample::default();
        sample.count(at(1_000, 5_000), 0);
        // Idle, and no packets.
        sample.count(at(1_010, 6_000), 0);
        // Two looks within one tick.
        sample.count(at(1_010, 6_000), 30);
        sample.count(at(1_060, 6_100), 90);
        sample.count(at(1_150, 6_200), 100);
        sample.count(at(1_150, 9_000), 100);
        assert_eq!(sample.by_packets.busy_of(100), Some(54));
        assert_eq!(Ticks::default().busy_of(100), None);
    }

    #[test]
    fn busy_is_what_is_not_idle() {
        let stat = "cpu  10 1 20 300 40 5 6 7 8 9\ncpu0 1 2 3 4 5 6 7 8 9 10\nintr 5\n";
        assert_eq!(Ticks::of(stat), Some(Ticks { busy: 49, all: 389 }));
        assert_eq!(Ticks::of("cpu  1 2 3 4\n"), None);
        assert_eq!(Ticks::of("cpu0 1 2 3 4 5\n"), None);
    }

    #[test]
    fn pressure_is_that_of_some_task() {
        let text = "some avg10=1.00 avg60=0.10 avg300=0.00 total=4711\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        assert_eq!(pressure(text), Some(4_711));
        assert_eq!((pressure(""), pressure("full total=1\n")), (None, None));
    }

    #[test]
    fn quotas_of_both_versions_are_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("written");
        let read = || Quota::read(folder.path());
        assert_eq!(read(), None);
        write("cpu.stat", "usage_usec 9\nnr_periods 80\nnr_throttled 40\nthrottled_usec 3500000\n");
        assert_eq!(read(), None);
        write("cpu.max", "4000 100000\n");
        assert_eq!(read(), Some(Quota { periods: 40, ns: 3_500_000_000, percent: Some(4) }));
        write("cpu.max", "max 100000\n");
        assert_eq!(read(), None);
        fs::remove_file(folder.path().join("cpu.max")).expect("there");
        write("cpu.stat", "nr_periods 80\nnr_throttled 40\nthrottled_time 3500000000\n");
        write("cpu.cfs_period_us", "100000\n");
        write("cpu.cfs_quota_us", "150000\n");
        assert_eq!(read(), Some(Quota { periods: 40, ns: 3_500_000_000, percent: Some(150) }));
        write("cpu.cfs_quota_us", "-1\n");
        assert_eq!(read(), None);
    }

    #[test]
    fn a_process_is_below_all_cgroups_of_its_path() {
        let paths = |hierarchies: &Hierarchies, text: &[u8]| -> Vec<String> {
            hierarchies.chain(text).iter().map(|path| path.display().to_string()).collect()
        };
        let unified = Hierarchies::of(b"26 25 0:23 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n");
        let expected = ["/sys/fs/cgroup/a.slice/b", "/sys/fs/cgroup/a.slice", "/sys/fs/cgroup"];
        assert_eq!(paths(&unified, b"0::/a.slice/b\n"), expected);
        assert_eq!(paths(&unified, b"0::/\n"), ["/sys/fs/cgroup"]);
        assert_eq!(paths(&unified, b"0::/../b\n"), [""; 0]);
        let hybrid = Hierarchies::of(
            b"25 30 0:22 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
              26 30 0:23 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
              27 30 0:24 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
        );
        let text = b"5:memory:/m\n4:cpu,cpuacct:/c\n0::/u\n";
        assert_eq!(paths(&hybrid, text), ["/sys/fs/cgroup/cpu,cpuacct/c", "/sys/fs/cgroup/cpu,cpuacct"]);
        assert_eq!(
            paths(&hybrid, b"5:cpuset:/m\n0::/u\n"),
            ["/sys/fs/cgroup/unified/u", "/sys/fs/cgroup/unified"]
        );
        assert!(Hierarchies::of(b"").is_empty() && !hybrid.is_empty());
    }

    #[test]
    fn this_process_has_run() {
        if proc_is_initial() {
            let own = std::process::id();
            assert!(Ran::of(own, i64::MAX).is_none_or(|ran| ran.on_ns > 0));
            // In 1970 it was not started.
            assert_eq!((Ran::of(own, 0), Hierarchies::find().above(own, 0)), (None, Vec::new()));
        }
        assert_eq!(Ran::read("5 7 9\n"), Some(Ran { on_ns: 5, waited_ns: 7 }));
        assert_eq!((Ran::read("5\n"), Ran::read("")), (None, None));
    }
}
