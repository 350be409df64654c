//! Containers, by the paths of their cgroups; and names of pods, from what every node of Kubernetes has on its disk: no
//! request to its API is needed, and no right to make one.

use std::{collections::HashMap, fs, io, path::Path};

use serde::Deserialize;

/// Where the kubelet keeps a directory for each pod, NAMESPACE_POD_UID, with one for each of its containers.
pub(crate) const POD_LOGS: &str = "/var/log/pods";
/// Where it keeps a link for each container, POD_NAMESPACE_CONTAINER-ID.log.
pub(crate) const CONTAINER_LOGS: &str = "/var/log/containers";

/// Where Docker keeps a directory for each container, by its id.
const DOCKER: &str = "/var/lib/docker/containers";
/// Where Podman has the list of root's containers.
const PODMAN: &str = "/var/lib/containers/storage/overlay-containers/containers.json";

/// Digits of a container's id.
const ID_LEN: usize = 64;
/// As many of them as people write.
pub(crate) const SHORT_LEN: usize = 12;

/// The short id of the container whose cgroup this is, or is in: of containers in each other, that of the host's. Not that of the process
/// that looks after one (`conmon`). A user who may make cgroups may name them as a container's.
pub(crate) fn short_id(path: &[u8]) -> Option<[u8; SHORT_LEN]> {
    let mut parts = path.split(|&byte| byte == b'/').filter_map(|part| str::from_utf8(part).ok());
    parts.find_map(container)?.as_bytes().first_chunk().copied()
}

/// The id of the container whose cgroup this is, on the host: none that is within another one.
pub(crate) fn id(path: &[u8]) -> Option<&str> {
    let end = path.iter().rposition(|&byte| byte == b'/')?;
    let (above, own) = path.split_at(end);
    container(str::from_utf8(&own[1..]).ok()?).filter(|_| short_id(above).is_none())
}

/// Ids and names of the host's containers, as far as Docker, Podman and the kubelet tell root.
pub(crate) fn names() -> Vec<(String, String)> {
    let mut names: Vec<_> = entries(DOCKER.as_ref())
        .unwrap_or_default()
        .into_iter()
        .filter_map(|id| {
            let text = fs::read(Path::new(DOCKER).join(&id).join("config.v2.json")).ok()?;
            Some((id, docker(&text)?))
        })
        .collect();
    names.extend(podman(&fs::read(PODMAN).unwrap_or_default()));
    names.extend(Pods::read(POD_LOGS.as_ref(), CONTAINER_LOGS.as_ref()).unwrap_or_default().containers);
    names
}

/// The name in Docker's description of a container.
fn docker(text: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Container {
        name: String,
    }
    let Container { name } = serde_json::from_slice(text).ok()?;
    Some(name.strip_prefix('/').unwrap_or(&name).to_owned())
}

/// Ids and names in Podman's list.
fn podman(text: &[u8]) -> Vec<(String, String)> {
    #[derive(Deserialize)]
    struct Container {
        id: String,
        #[serde(default)]
        names: Vec<String>,
    }
    let list: Vec<Container> = serde_json::from_slice(text).unwrap_or_default();
    list.into_iter()
        .flat_map(|Container { id, names }| names.into_iter().map(move |name| (id.clone(), name)))
        .collect()
}

/// Where in a pod a cgroup is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The pod's unique id.
    pub(crate) uid: String,
    /// The container's; `None` for processes of the pod that are in none.
    pub(crate) container: Option<String>,
}

impl Place {
    /// From a cgroup's path, by the systemd driver
    /// (`/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice/cri-containerd-ID.scope`, with `_` for `-`
    /// in the UID) or the cgroupfs driver (`/kubepods/burstable/podUID/ID`), below the root or the kubelet's own cgroup: who
    /// may make cgroups elsewhere has no pod. `None` for what is no pod's.
    pub(crate) fn of(path: &str) -> Option<Self> {
        // Seen from a container, the path begins with its way up.
        let mut parts = path.split('/').skip_while(|part| part.is_empty() || *part == "..").peekable();
        let kubelet = parts.next_if(|part| matches!(*part, "kubelet" | "kubelet.slice"));
        let mut pods = parts.next()?;
        if kubelet.is_some() {
            pods = pods.strip_prefix("kubelet-").unwrap_or(pods);
        }
        if pods != "kubepods" && !(pods.starts_with("kubepods") && pods.ends_with(".slice")) {
            return None;
        }
        // Seen from a container, it may be the pod's.
        let uid = uid(pods).or_else(|| parts.find_map(uid))?;
        Some(Self { uid, container: parts.next().and_then(container).map(str::to_owned) })
    }
}

fn uid(part: &str) -> Option<String> {
    let uid = match part.strip_suffix(".slice") {
        Some(slice) => slice.rsplit_once("-pod")?.1.replace('_', "-"),
        None => part.strip_prefix("pod")?.to_owned(),
    };
    // That of a static pod is a sum of 32 digits.
    let is_uid =
        matches!(uid.len(), 32 | 36) && uid.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit());
    is_uid.then_some(uid)
}

/// A container's id, of one part of its cgroup's path.
fn container(part: &str) -> Option<&str> {
    let part = part.strip_suffix(".scope").unwrap_or(part);
    let (runtime, id) = part.rsplit_once('-').unwrap_or(("", part));
    (is_container_id(id) && !runtime.ends_with("conmon")).then_some(id)
}

fn is_container_id(id: &str) -> bool {
    id.len() == ID_LEN && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[derive(Clone, Debug)]
struct Pod {
    namespace: String,
    name: String,
    /// Names of its containers, if there is only one.
    containers: Vec<String>,
}

/// The pods of this node.
#[derive(Debug, Default)]
pub(crate) struct Pods {
    by_uid: HashMap<String, Pod>,
    /// Names of containers by id.
    containers: HashMap<String, String>,
}

impl Pods {
    /// Those that are there now. A node without the directories has none.
    ///
    /// # Errors
    /// If a directory is there and can't be read.
    pub(crate) fn read(pod_logs: &Path, container_logs: &Path) -> io::Result<Self> {
        let mut pods = Self::default();
        for name in entries(pod_logs)? {
            let mut parts = name.split('_');
            let (Some(namespace), Some(pod), Some(uid), None) =
                (parts.next(), parts.next(), parts.next(), parts.next())
            else {
                continue;
            };
            let pod = Pod {
                namespace: namespace.to_owned(),
                name: pod.to_owned(),
                containers: entries(&pod_logs.join(&name))?,
            };
            pods.by_uid.insert(uid.to_owned(), pod);
        }
        for name in entries(container_logs)? {
            // Names of containers have no `_`, but they may have `-`.
            let container = name.strip_suffix(".log").and_then(|name| name.rsplit('_').next());
            if let Some((container, id)) = container.and_then(|name| name.rsplit_once('-'))
                && is_container_id(id)
            {
                pods.containers.insert(id.to_owned(), container.to_owned());
            }
        }
        Ok(pods)
    }

    /// What a place is called; `None` if its pod is not known yet.
    pub(crate) fn name(&self, place: &Place) -> Option<Name<'_>> {
        let Pod { namespace, name, containers } = self.by_uid.get(&place.uid)?;
        let container = match &place.container {
            // Processes of the pod beside its containers.
            None => Some(""),
            Some(id) => match (self.containers.get(id), &containers[..]) {
                (Some(name), _) => Some(&**name),
                (None, [only]) if self.containers.is_empty() => Some(&**only),
                _ => None,
            },
        };
        Some(Name { namespace, pod: name, container })
    }
}

/// What a place in a pod is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) pod: &'a str,
    /// Empty beside its containers; `None` if it is not known yet.
    pub(crate) container: Option<&'a str>,
}

/// Names of what is in a directory, none if it is not there. One that is no text is skipped.
fn entries(directory: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut names = Vec::new();
    for entry in entries {
        if let Ok(name) = entry?.file_name().into_string() {
            names.push(name);
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UID: &str = "1b4d7a9e-6c1f-4a58-9d7e-0f2c3b5a6d81";

    fn id(digit: char) -> String {
        digit.to_string().repeat(64)
    }

    fn place(path: &str) -> Option<(String, Option<char>)> {
        let Place { uid, container } = Place::of(path)?;
        Some((uid, container.map(|id| id.chars().next().expect("64 digits"))))
    }

    #[test]
    fn both_drivers_and_all_runtimes_are_read() {
        let systemd = UID.replace('-', "_");
        let (a, b) = (id('a'), id('b'));
        let slice = format!("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{systemd}.slice");
        let in_a = Some((UID.to_owned(), Some('a')));
        let alike = [
            format!("{slice}/cri-containerd-{a}.scope"),
            format!("{slice}/crio-{a}.scope"),
            format!("{slice}/crio-{a}.scope/container"),
            format!("{slice}/docker-{a}.scope/init.scope/{b}"),
            format!("/kubepods.slice/kubepods-pod{systemd}.slice/cri-containerd-{a}.scope"),
            format!(
                "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod{systemd}.slice/cri-containerd-{a}.scope"
            ),
            format!("/kubepods/burstable/pod{UID}/{a}"),
            format!("/kubepods/pod{UID}/{a}"),
            format!("/kubelet/kubepods/besteffort/pod{UID}/{a}/system.slice/nginx.service"),
            format!(
                "/../../../kubepods-besteffort.slice/kubepods-besteffort-pod{systemd}.slice/crio-{a}.scope"
            ),
            format!("/../../kubepods-besteffort-pod{systemd}.slice/crio-{a}.scope"),
        ];
        for path in alike {
            assert_eq!(place(&path), in_a, "{path}");
        }
        assert_eq!(place(&slice), Some((UID.to_owned(), None)));
        // A static pod.
        let sum = "0123456789abcdef".repeat(2);
        assert_eq!(place(&format!("/kubepods/burstable/pod{sum}/{a}")), Some((sum, Some('a'))));
        for no_pod in [
            "/",
            "/system.slice/nginx.service",
            "/kubepods.slice",
            "/kubepods/burstable",
            "/kubepods/burstable/podium/x",
            &format!("/user.slice/pod{UID}/{a}"),
            // Whose owners may make any cgroup below.
            &format!("/user.slice/user-1000.slice/user@1000.service{slice}/crio-{a}.scope"),
            &format!("/user.slice/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{systemd}.slice"),
            &format!("/docker/{b}/kubelet/kubepods/besteffort/pod{UID}/{a}"),
            &format!("/kubepods-x/pod{UID}/{a}"),
            &format!("/xkubepods/pod{UID}/{a}"),
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podnobody.slice/x",
        ] {
            assert_eq!(place(no_pod), None, "{no_pod}");
        }
    }

    #[test]
    fn a_cgroup_is_a_container_s_or_not() {
        let (a, b) = (id('a'), id('b'));
        for (path, is_its) in [
            (format!("/system.slice/docker-{a}.scope"), true),
            (format!("/system.slice/docker-{a}.scope/init.scope"), false),
            (format!("/docker/{b}/docker/{a}"), false),
            ("/".to_owned(), false),
            (String::new(), false),
        ] {
            assert_eq!(super::id(path.as_bytes()), is_its.then_some(&*a), "{path}");
        }
    }

    #[test]
    fn docker_and_podman_tell_names() {
        assert_eq!(docker(br#"{"ID":"ab","State":{"Name":"x"},"Name":"/web"}"#).as_deref(), Some("web"));
        assert_eq!(docker(b"{}"), None);
        let list = br#"[{"id":"ab","names":["web","front"],"image":"i"},{"id":"cd"}]"#;
        let pair = |name: &str| ("ab".to_owned(), name.to_owned());
        assert_eq!(podman(list), [pair("web"), pair("front")]);
        assert_eq!(podman(b""), []);
    }

    fn tree() -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a directory");
        for directory in [
            &format!("pods/shop_web-7d9f_{UID}/nginx"),
            &format!("pods/shop_web-7d9f_{UID}/side-car"),
            "pods/junk",
        ] {
            fs::create_dir_all(root.path().join(directory)).expect("a directory");
        }
        fs::create_dir(root.path().join("containers")).expect("a directory");
        let link = format!("containers/web-7d9f_shop_side-car-{}.log", id('a'));
        fs::write(root.path().join(link), "").expect("a file");
        root
    }

    fn read(root: &Path) -> Pods {
        Pods::read(&root.join("pods"), &root.join("containers")).expect("they can be read")
    }

    fn name<'a>(pods: &'a Pods, uid: &str, container: Option<char>) -> Option<Name<'a>> {
        pods.name(&Place { uid: uid.to_owned(), container: container.map(id) })
    }

    fn web(container: Option<&str>) -> Option<Name<'_>> {
        Some(Name { namespace: "shop", pod: "web-7d9f", container })
    }

    #[test]
    fn containers_have_short_ids() {
        let a = id('a');
        let short =
            |path: &str| short_id(path.as_bytes()).map(|id| String::from_utf8_lossy(&id).into_owned());
        for path in [
            format!("/system.slice/docker-{a}.scope"),
            format!("/docker/{a}"),
            format!("/docker/{a}/docker/{}", id('b')),
            format!("/machine.slice/libpod-{a}.scope/container"),
            format!("/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{a}.scope"),
            format!("/../cri-containerd-{a}.scope"),
            format!("/kubepods/burstable/pod{UID}/{a}"),
        ] {
            assert_eq!(short(&path).as_deref(), Some("aaaaaaaaaaaa"), "{path}");
        }
        for path in [
            "/",
            "/system.slice/nginx.service",
            &format!("/machine.slice/libpod-conmon-{a}.scope"),
            &format!("/docker/{}", &a[1..]),
            &format!("/docker/{a}a"),
        ] {
            assert_eq!(short(path), None, "{path}");
        }
    }

    #[test]
    fn pods_and_containers_have_their_names() {
        let root = tree();
        let pods = read(root.path());
        assert_eq!(name(&pods, UID, Some('a')), web(Some("side-car")));
        assert_eq!(name(&pods, UID, None), web(Some("")));
        // Not in the list yet, as a container that has just begun.
        assert_eq!(name(&pods, UID, Some('b')), web(None));
        assert_eq!(name(&pods, "another", Some('b')), None);
    }

    #[test]
    fn the_only_container_needs_no_list() {
        let root = tree();
        fs::remove_dir_all(root.path().join("containers")).expect("it is there");
        assert_eq!(name(&read(root.path()), UID, Some('c')), web(None));
        fs::remove_dir_all(root.path().join(format!("pods/shop_web-7d9f_{UID}/side-car")))
            .expect("it is there");
        assert_eq!(name(&read(root.path()), UID, Some('c')), web(Some("nginx")));
    }

    #[test]
    fn a_machine_without_pods_has_none() {
        let root = tempfile::tempdir().expect("a directory");
        assert_eq!(name(&read(root.path()), UID, None), None);
    }

    proptest! {
        #[test]
        fn any_path_is_read_without_a_fault(path in "(/(kubepods|pod)?[-a-f0-9_.]{0,40}(.slice|.scope)?){0,6}") {
            if let Some(place) = Place::of(&path) {
                prop_assert!(matches!(place.uid.len(), 32 | 36));
                prop_assert!(place.container.is_none_or(|id| id.len() == 64));
            }
        }

        #[test]
        fn every_uid_comes_back(uid in "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", container in "[0-9a-f]{64}") {
            let systemd = uid.replace('-', "_");
            let path = format!("/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{systemd}.slice/crio-{container}.scope");
            prop_assert_eq!(Place::of(&path), Some(Place { uid, container: Some(container) }));
        }
    }
}
