//! Names of groups, as the values of their labels. None holds a process id, an address or an ephemeral port.

use std::{
    collections::hash_map::Entry,
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use net_latency_common::COMM_LEN;
use rustc_hash::FxHashMap;

use super::groups::{Id, Labels, Name, Naming};
use crate::{
    clock::cpu_of_thread,
    escape::bounded,
    kernel::{
        cgroups::{self, Take, unified_hierarchy},
        containers::{CONTAINER_LOGS, POD_LOGS, Place, Pods},
        devices::Devices,
        owners, ports,
    },
    message::tell,
    request::ExportBy,
};

/// Where the name is not known.
pub(super) const UNKNOWN: &str = "unknown";
/// Processes that are in no pod.
const HOST: &str = "host";
/// Ports that the kernel gives out.
pub(super) const EPHEMERAL: &str = "ephemeral";
/// Walks through the cgroups for which one that has gone keeps its name.
const KEPT_WALKS: u64 = 60;
/// Cgroups without counts, and cgroups that have gone, whose names are kept.
const KEPT_NAMES: usize = 16_384;
/// At most 1/N of a processor goes into walks: a user who may make cgroups may make many.
const PARTS: u32 = 20;
/// At most 1/N of a processor goes into looks at the owners of names: they are only needed where not all have series.
const OWNERS_PARTS: u32 = 100;

/// Names change hands no faster than this.
const LEAST_LOOK: Duration = Duration::from_secs(10);

/// Names of labels of groups.
pub(crate) const fn labels(by: ExportBy) -> &'static [&'static str] {
    match by {
        ExportBy::None => &[],
        ExportBy::Process => &["process"],
        ExportBy::Comm => &["comm"],
        ExportBy::Cgroup => &["cgroup"],
        ExportBy::Pod => &["namespace", "pod", "container"],
        ExportBy::Interface => &["interface"],
        ExportBy::Port => &["port"],
    }
}

/// Finds names.
pub(crate) struct Names {
    by: ExportBy,
    devices: Option<Devices>,
    /// The hierarchy of cgroups, if names come from there.
    hierarchy: Option<PathBuf>,
    cgroups: FxHashMap<u64, Cgroup>,
    walks: u64,
    /// When the last one ended, and the CPU time that it took.
    walked: Option<(Instant, Duration)>,
    pods: Pods,
    pods_failed: bool,
    ephemeral: (u16, u16),
    /// The owners of names of processes or threads; when they were looked up, and the CPU time that it took.
    owners: Option<(owners::Names, Instant, Duration)>,
}

#[derive(Debug)]
struct Cgroup {
    /// Unknown until a walk meets it.
    is: Option<Kept>,
    /// The walk that met it last, or after which it was looked up first.
    seen: u64,
    /// As [`owners::of_cgroup`] says; a pod's is its namespace.
    owner: u64,
}

impl Names {
    /// As they are now.
    pub(crate) fn new(by: ExportBy) -> Self {
        let is_by_cgroup = matches!(by, ExportBy::Cgroup | ExportBy::Pod);
        let mounts =
            if is_by_cgroup { fs::read("/proc/self/mountinfo").unwrap_or_default() } else { Vec::new() };
        let mut names = Self {
            by,
            devices: (by == ExportBy::Interface).then(Devices::default),
            hierarchy: unified_hierarchy(&mounts),
            cgroups: FxHashMap::default(),
            walks: 0,
            walked: None,
            pods: Pods::default(),
            pods_failed: false,
            ephemeral: ports::ephemeral(),
            owners: None,
        };
        names.refresh();
        names
    }

    /// Whether there is a hierarchy of cgroups, where names come from one.
    pub(crate) fn has_hierarchy(&self) -> bool {
        self.hierarchy.is_some()
    }

    /// Asks anew for what may have changed.
    pub(crate) fn refresh(&mut self) {
        self.devices.iter_mut().for_each(Devices::refresh);
        let is_due = self.walked.is_none_or(|(end, took)| end.elapsed() >= took * PARTS);
        if let Some(hierarchy) = self.hierarchy.clone().filter(|_| is_due) {
            let before = cpu_of_thread();
            self.walk(|take| cgroups::each(&hierarchy, take));
            self.walked = Some((Instant::now(), cpu_of_thread() - before));
        }
        if self.by == ExportBy::Pod {
            match Pods::read(POD_LOGS.as_ref(), CONTAINER_LOGS.as_ref()) {
                Ok(pods) => (self.pods, self.pods_failed) = (pods, false),
                Err(error) if !self.pods_failed => {
                    self.pods_failed = true;
                    tell(format_args!("cannot read names of pods in {POD_LOGS}: {error}"));
                }
                Err(_) => {}
            }
        }
    }

    /// Takes in the existing cgroups, which `each` hands on: those that were looked up, and as many others as there is room for. A user who
    /// may make cgroups may make many.
    pub(super) fn walk(&mut self, each: impl FnOnce(Take<'_>)) {
        self.walks += 1;
        let Self { by, cgroups, walks, .. } = self;
        each(&mut |id, path, user| {
            let owner = owners::of_cgroup(path, user);
            let is_room = cgroups.len() < KEPT_NAMES;
            let cgroup = match cgroups.entry(id) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(place) if is_room => place.insert(Cgroup { is: None, seen: 0, owner }),
                Entry::Vacant(_) => return,
            };
            cgroup.is.get_or_insert_with(|| Kept::of(*by, path));
            (cgroup.seen, cgroup.owner) = (*walks, owner);
        });
        let oldest = self.walks.saturating_sub(KEPT_WALKS);
        self.cgroups.retain(|_, cgroup| cgroup.seen > oldest);
        // They would go later by themselves. At such numbers only the newest names matter.
        let gone = self.cgroups.values().filter(|cgroup| cgroup.seen < self.walks).count();
        if gone > KEPT_NAMES {
            self.cgroups.retain(|_, cgroup| cgroup.seen == self.walks);
        }
    }

    fn owner_of_name(&mut self, id: Id) -> u64 {
        let is_old =
            |(_, end, took): &(_, Instant, Duration)| end.elapsed() >= (*took * OWNERS_PARTS).max(LEAST_LOOK);
        if self.owners.as_ref().is_none_or(is_old) {
            let before = cpu_of_thread();
            let names = owners::Names::read(self.by == ExportBy::Comm);
            self.owners = Some((names, Instant::now(), cpu_of_thread() - before));
        }
        let mut name = [0; COMM_LEN];
        name.copy_from_slice(&id.map(u64::to_ne_bytes).concat());
        self.owners.as_ref().map_or_else(|| owners::itself(id), |(names, ..)| names.owner(name))
    }

    fn cgroup(&mut self, id: u64) -> Name {
        let unknown = || Name::NotYet(vec![UNKNOWN.to_owned(); labels(self.by).len()]);
        // The next walk looks for it.
        let owner = owners::of_cgroup(b"", None);
        let cgroup = self.cgroups.entry(id).or_insert(Cgroup { is: None, seen: self.walks, owner });
        let Some(is) = &cgroup.is else {
            return if cgroup.seen == self.walks { Name::Soon } else { unknown() };
        };
        let place = match is {
            Kept::Path(label) => return Name::Known(vec![label.to_string()]),
            Kept::Host => return Name::Known(vec![HOST.to_owned(); 3]),
            Kept::Pod(place) => place,
        };
        let Some(name) = self.pods.name(place) else { return unknown() };
        let labels = |container: &str| {
            [name.namespace, name.pod, container].map(|name| bounded(name.as_bytes())).to_vec()
        };
        name.container.map_or_else(|| Name::NotYet(labels(UNKNOWN)), |known| Name::Known(labels(known)))
    }
}

impl Naming for Names {
    fn name(&mut self, [first, second]: Id) -> Name {
        let one = |name: String| Name::Known(vec![name]);
        let unknown = || Name::Known(vec![UNKNOWN.to_owned(); labels(self.by).len()]);
        match self.by {
            ExportBy::None => Name::Known(Labels::new()),
            _ if first == 0 && second == 0 => unknown(),
            ExportBy::Process | ExportBy::Comm => {
                let bytes = [first.to_ne_bytes(), second.to_ne_bytes()].concat();
                one(bounded(bytes.split(|&byte| byte == 0).next().unwrap_or_default()))
            }
            ExportBy::Cgroup | ExportBy::Pod => self.cgroup(first),
            ExportBy::Interface => {
                let devices = self.devices.as_mut();
                let name = devices.and_then(|devices| devices.name(second as u32, first as u32, 0));
                name.map_or_else(unknown, |name| one(bounded(name)))
            }
            ExportBy::Port => {
                let (port, (low, high)) = (first as u16, self.ephemeral);
                one(if (low..=high).contains(&port) { EPHEMERAL.to_owned() } else { port.to_string() })
            }
        }
    }

    fn owner(&mut self, id: Id) -> u64 {
        match self.by {
            ExportBy::Process | ExportBy::Comm => self.owner_of_name(id),
            ExportBy::Cgroup | ExportBy::Pod => {
                let Some(cgroup) = self.cgroups.get(&id[0]) else { return owners::of_cgroup(b"", None) };
                let Some(Kept::Pod(place)) = &cgroup.is else { return cgroup.owner };
                self.pods.name(place).map_or(cgroup.owner, |name| owners::itself(name.namespace))
            }
            // Only an administrator makes devices. Whose a port is may differ by address and namespace.
            ExportBy::None | ExportBy::Interface | ExportBy::Port => owners::itself(id),
        }
    }

    fn is_gone(&self, [first, _]: Id) -> bool {
        // Ids of cgroups are not used again. Without a hierarchy nothing is known of them.
        self.hierarchy.is_some()
            && first != 0
            && self.cgroups.get(&first).is_none_or(|cgroup| cgroup.seen < self.walks)
    }
}

/// The entry of a cgroup, whose path may be long.
#[derive(Debug)]
enum Kept {
    /// The label that it makes.
    Path(Box<str>),
    /// Where in a pod it is.
    Pod(Place),
    /// It is in none.
    Host,
}

impl Kept {
    fn of(by: ExportBy, path: &[u8]) -> Self {
        match str::from_utf8(path).ok().and_then(Place::of) {
            _ if by == ExportBy::Cgroup => Self::Path(bounded(path).into()),
            Some(place) => Self::Pod(place),
            None => Self::Host,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::escape::LONGEST;

    fn known(words: &[&str]) -> Name {
        Name::Known(words.iter().map(|word| (*word).to_owned()).collect())
    }

    #[test]
    fn names_are_harmless_and_few() {
        let comm = u64::from_ne_bytes(*b"a\nb\"\xff\0zz");
        assert_eq!(Names::new(ExportBy::Comm).name([comm, 0]), known(&["a\\x0ab\"\\xff"]));
        assert_eq!(Names::new(ExportBy::Process).name([0, 0]), known(&[UNKNOWN]));
        assert_eq!(Names::new(ExportBy::None).name([0, 0]), known(&[]));
        let mut ports = Names { ephemeral: (32768, 60999), ..Names::new(ExportBy::Port) };
        let shown = [443, 32767, 32768, 50000, 60999, 61000].map(|port| ports.name([port, 0]));
        let wanted = ["443", "32767", EPHEMERAL, EPHEMERAL, EPHEMERAL, "61000"];
        assert_eq!(shown, wanted.map(|word| known(&[word])));
    }

    #[test]
    fn no_label_is_long() {
        let deep = |last: &str| [b"/\x01".repeat(8_000), last.as_bytes().to_vec()].concat();
        let mut names = Names { hierarchy: Some("/nowhere".into()), ..Names::new(ExportBy::Cgroup) };
        names.walk(|take| {
            [(7, "a"), (8, "b")].into_iter().for_each(|(id, last)| take(id, &deep(last), Some(0)));
        });
        let [one, other] = [7, 8].map(|id| names.name([id, 0]));
        // They begin alike, and are told apart.
        assert_ne!(one, other);
        for name in [one, other] {
            let Name::Known(labels) = name else { panic!("{name:?}") };
            assert!(labels[0].len() <= LONGEST && labels[0].starts_with("/\\x01/"), "{labels:?}");
        }
    }

    #[test]
    fn among_many_cgroups_those_with_counts_have_names() {
        let mut names = Names { hierarchy: Some("/nowhere".into()), ..Names::new(ExportBy::Cgroup) };
        let many = |take: Take<'_>| (1..=100_000).for_each(|id| take(id, b"/x", Some(0)));
        names.walk(many);
        assert_eq!(names.cgroups.len(), KEPT_NAMES);
        // It is looked for by the next walk, and until then its counts wait.
        assert_eq!(names.name([90_000, 0]), Name::Soon);
        assert!(!names.is_gone([90_000, 0]));
        names.walk(many);
        assert_eq!(names.name([90_000, 0]), known(&["/x"]));
        assert!(!names.is_gone([90_000, 0]) && names.cgroups.len() <= KEPT_NAMES + 1);
        // One that no walk meets any more.
        assert_eq!(names.name([200_000, 0]), Name::Soon);
        names.walk(many);
        assert_eq!(names.name([200_000, 0]), Name::NotYet(vec![UNKNOWN.to_owned()]));
        assert!(names.is_gone([200_000, 0]));
    }

    #[test]
    fn devices_of_another_namespace_have_no_name() {
        let mut names = Names::new(ExportBy::Interface);
        assert_eq!(names.name([1, 7]), known(&[UNKNOWN]));
    }

    #[test]
    fn a_cgroup_that_has_gone_keeps_its_name_for_a_while() {
        let mut names = Names { hierarchy: Some("/nowhere".into()), ..Names::new(ExportBy::Cgroup) };
        let path = b"/system.slice/nginx.service".to_vec();
        names.walk(|take| take(7, &path, Some(0)));
        assert!(!names.is_gone([7, 0]));
        names.walk(|_| ());
        assert!(names.is_gone([7, 0]) && names.is_gone([8, 0]) && !names.is_gone([0, 0]));
        assert_eq!(names.name([7, 0]), known(&["/system.slice/nginx.service"]));
        for _ in 0..KEPT_WALKS {
            names.walk(|_| ());
        }
        assert_eq!(names.name([7, 0]), Name::Soon);
    }

    #[test]
    fn who_is_in_no_pod_is_of_the_host() {
        let mut names = Names { hierarchy: Some("/nowhere".into()), ..Names::new(ExportBy::Pod) };
        names.walk(|take| take(7, b"/system.slice/sshd.service", Some(0)));
        assert_eq!(names.name([7, 0]), known(&[HOST; 3]));
    }

    #[test]
    fn cgroups_of_one_user_have_one_owner_and_pods_their_namespace() {
        let mut names = Names { hierarchy: Some("/nowhere".into()), ..Names::new(ExportBy::Cgroup) };
        names.walk(|take| {
            [(7, 0), (8, 1000), (9, 1000)].into_iter().for_each(|(id, user)| take(id, b"/x", Some(user)));
        });
        let owners = [7, 8, 9].map(|id| names.owner([id, 0]));
        assert!(owners[0] != owners[1] && owners[1] == owners[2], "{owners:?}");
        let ports = [1, 2].map(|port| Names::new(ExportBy::Port).owner([port, 0]));
        assert_ne!(ports[0], ports[1]);
    }

    #[test]
    fn many_short_lives_take_little_room() {
        let mut names = Names { hierarchy: Some("/nowhere".into()), ..Names::new(ExportBy::Cgroup) };
        for walk in 0..50u64 {
            names.walk(|take| (0..1_000).for_each(|id| take(walk * 1_000 + id, b"/x", Some(0))));
        }
        assert!(names.cgroups.len() <= KEPT_NAMES + 1_000, "{}", names.cgroups.len());
    }
}
