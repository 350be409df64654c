//! Names of groups, as the values of their labels. None holds a process id, an address or an ephemeral port.

use std::{collections::HashMap, fs, path::PathBuf};

use rustc_hash::FxHashMap;

use super::groups::{Id, Labels, Name, Naming};
use crate::{
    escape::write_name,
    kernel::{
        cgroups::{self, unified_hierarchy},
        containers::{CONTAINER_LOGS, POD_LOGS, Place, Pods},
        devices::Devices,
        ports,
    },
    message::tell,
    request::ExportBy,
};

/// What nobody knows.
const UNKNOWN: &str = "unknown";
/// Processes that are in no pod.
const HOST: &str = "host";
/// Ports that the kernel gives out.
const EPHEMERAL: &str = "ephemeral";
/// Walks through the cgroups for which one that has gone keeps its name.
const KEPT_WALKS: u64 = 60;
/// Cgroups that have gone whose names are kept.
const KEPT_NAMES: usize = 16_384;

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
    devices: Devices,
    /// The hierarchy of cgroups, if names come from there.
    hierarchy: Option<PathBuf>,
    cgroups: FxHashMap<u64, Cgroup>,
    walks: u64,
    pods: Pods,
    pods_failed: bool,
    ephemeral: (u16, u16),
}

#[derive(Debug)]
struct Cgroup {
    path: Vec<u8>,
    /// The walk that met it last.
    seen: u64,
}

impl Names {
    /// As they are now.
    pub(crate) fn new(by: ExportBy) -> Self {
        let is_by_cgroup = matches!(by, ExportBy::Cgroup | ExportBy::Pod);
        let mounts =
            if is_by_cgroup { fs::read("/proc/self/mountinfo").unwrap_or_default() } else { Vec::new() };
        let mut names = Self {
            by,
            devices: Devices::new(),
            hierarchy: unified_hierarchy(&mounts),
            cgroups: FxHashMap::default(),
            walks: 0,
            pods: Pods::default(),
            pods_failed: false,
            ephemeral: ports::ephemeral(),
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
        self.devices.refresh();
        if let Some(hierarchy) = &self.hierarchy {
            let now = cgroups::all(hierarchy);
            self.walked(now);
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

    fn walked(&mut self, now: HashMap<u64, Vec<u8>>) {
        self.walks += 1;
        for (id, path) in now {
            self.cgroups.insert(id, Cgroup { path, seen: self.walks });
        }
        let oldest = self.walks.saturating_sub(KEPT_WALKS);
        self.cgroups.retain(|_, cgroup| cgroup.seen > oldest);
        // They would go later by themselves: who starts so many has no names to lose but the newest.
        let gone = self.cgroups.values().filter(|cgroup| cgroup.seen < self.walks).count();
        if gone > KEPT_NAMES {
            self.cgroups.retain(|_, cgroup| cgroup.seen == self.walks);
        }
    }

    fn cgroup(&self, id: u64) -> Name {
        let unknown = || Name::NotYet(vec![UNKNOWN.to_owned(); labels(self.by).len()]);
        let Some(cgroup) = self.cgroups.get(&id) else { return unknown() };
        if self.by == ExportBy::Cgroup {
            return Name::Known(vec![printable(&cgroup.path)]);
        }
        let Some(place) = str::from_utf8(&cgroup.path).ok().and_then(Place::of) else {
            return Name::Known(vec![HOST.to_owned(); 3]);
        };
        let Some(name) = self.pods.name(&place) else { return unknown() };
        let labels = |container: &str| [name.namespace, name.pod, container].map(str::to_owned).to_vec();
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
                one(printable(bytes.split(|&byte| byte == 0).next().unwrap_or_default()))
            }
            ExportBy::Cgroup | ExportBy::Pod => self.cgroup(first),
            ExportBy::Interface => match self.devices.name(second as u32, first as u32, 0) {
                Some(name) => one(printable(name)),
                None => unknown(),
            },
            ExportBy::Port => {
                let (port, (low, high)) = (first as u16, self.ephemeral);
                one(if (low..=high).contains(&port) { EPHEMERAL.to_owned() } else { port.to_string() })
            }
        }
    }

    fn is_gone(&self, [first, _]: Id) -> bool {
        // Ids of cgroups are not used again. Without a hierarchy nothing is known of them.
        self.hierarchy.is_some()
            && first != 0
            && self.cgroups.get(&first).is_none_or(|cgroup| cgroup.seen < self.walks)
    }
}

/// A name of somebody's choice, in which nothing acts on a terminal.
fn printable(name: &[u8]) -> String {
    let mut out = Vec::new();
    write_name(Some(name), &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn devices_of_another_namespace_have_no_name() {
        let mut names = Names::new(ExportBy::Interface);
        assert_eq!(names.name([1, 7]), known(&[UNKNOWN]));
    }

    #[test]
    fn a_cgroup_that_has_gone_keeps_its_name_for_a_while() {
        let mut names = Names { hierarchy: Some("/nowhere".into()), ..Names::new(ExportBy::Cgroup) };
        let path = b"/system.slice/nginx.service".to_vec();
        names.walked(HashMap::from([(7, path)]));
        assert!(!names.is_gone([7, 0]));
        names.walked(HashMap::new());
        assert!(names.is_gone([7, 0]) && names.is_gone([8, 0]) && !names.is_gone([0, 0]));
        assert_eq!(names.name([7, 0]), known(&["/system.slice/nginx.service"]));
        for _ in 0..KEPT_WALKS {
            names.walked(HashMap::new());
        }
        assert_eq!(names.name([7, 0]), Name::NotYet(vec![UNKNOWN.to_owned()]));
    }

    #[test]
    fn who_is_in_no_pod_is_of_the_host() {
        let mut names = Names { hierarchy: Some("/nowhere".into()), ..Names::new(ExportBy::Pod) };
        names.walked(HashMap::from([(7, b"/system.slice/sshd.service".to_vec())]));
        assert_eq!(names.name([7, 0]), known(&[HOST; 3]));
    }

    #[test]
    fn many_short_lives_take_little_room() {
        let mut names = Names { hierarchy: Some("/nowhere".into()), ..Names::new(ExportBy::Cgroup) };
        for walk in 0..50u64 {
            names.walked((0..1_000).map(|id| (walk * 1_000 + id, b"/x".to_vec())).collect());
        }
        assert!(names.cgroups.len() <= KEPT_NAMES + 1_000, "{}", names.cgroups.len());
    }
}
