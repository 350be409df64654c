//! Whether network namespaces, interfaces and cgroups exist, and how the kernel side knows them.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs::{self, File, OpenOptions},
    io, mem,
    os::{
        fd::{AsFd as _, AsRawFd as _, BorrowedFd},
        unix::{
            ffi::OsStrExt as _,
            fs::{MetadataExt as _, OpenOptionsExt as _},
        },
    },
    path::{Path, PathBuf},
    thread,
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::{
    error::Failure,
    kernel::{
        cgroups::{self, unified_hierarchy},
        containers,
        netns::NAMED,
    },
};

/// The network namespaces that `asked` names by process id, name or path: their inode numbers.
pub(super) fn namespaces(asked: &[String], proc: &Path) -> Result<Vec<u32>, Failure> {
    asked.iter().map(|asked| namespace(asked, proc).map_err(Failure::Usage)).collect()
}

fn namespace(asked: &str, proc: &Path) -> Result<u32, String> {
    let form = "write the namespace's name as `ip netns` shows it, the PID of a process in it, or a path";
    let (_, path) = locate(asked, proc);
    let wrong = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound if path.starts_with(proc) => {
            format!("--netns {asked}: there is no process with this PID; {form}")
        }
        io::ErrorKind::NotFound => format!("--netns {asked}: there is no {}; {form}", path.display()),
        _ => format!("--netns {asked}: {error}; {form}"),
    };
    // Without waiting for anything: it may be a FIFO.
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path);
    let file = opened.map_err(wrong)?;
    if !is_network_namespace(&file) {
        return Err(format!("--netns {asked}: this is not a network namespace; {form}"));
    }
    let inode = file.metadata().map_err(wrong)?.ino();
    // Open to the end of the process: as long as the namespace is there, no other has its number.
    mem::forget(file);
    u32::try_from(inode).map_err(|_| format!("--netns {asked}: this is not a network namespace; {form}"))
}

/// The process, if `asked` is a number, and where the namespace is, which has a name if `asked` is no path.
fn locate(asked: &str, proc: &Path) -> (Option<u32>, PathBuf) {
    match asked.parse::<u32>() {
        Ok(pid) => (Some(pid), proc.join(pid.to_string()).join("ns/net")),
        Err(_) if asked.contains('/') => (None, PathBuf::from(asked)),
        Err(_) => (None, Path::new(NAMED).join(asked)),
    }
}

fn is_network_namespace(file: &File) -> bool {
    // Of linux/nsfs.h.
    const NS_GET_NSTYPE: libc::Ioctl = 0xb703;
    // SAFETY: this request takes no argument; a file that is no namespace refuses it.
    let kind = unsafe { libc::ioctl(file.as_raw_fd(), NS_GET_NSTYPE) };
    kind == libc::CLONE_NEWNET
}

/// Checks that each of `interfaces` is in one of the `asked` network namespaces, or in our own if there are none.
pub(super) fn check_interfaces(interfaces: &[String], asked: &[String], proc: &Path) -> Result<(), Failure> {
    if interfaces.is_empty() {
        return Ok(());
    }
    let mut known = BTreeSet::new();
    if asked.is_empty() {
        known.extend(names(fs::read_to_string(proc.join("self/net/dev"))));
    }
    for asked in asked {
        let text = match locate(asked, proc) {
            (Some(pid), _) => fs::read_to_string(proc.join(pid.to_string()).join("net/dev")),
            (None, path) => devices_inside(&path, proc),
        };
        let Ok(text) = text else {
            // A user who may not look inside may trace all the same.
            return Ok(());
        };
        known.extend(names(Ok(text)));
    }
    let Some(missing) = interfaces.iter().find(|name| !known.contains(*name)) else { return Ok(()) };
    let known = Vec::from_iter(known).join(", ");
    let hint = if asked.is_empty() { "; --netns names another network namespace" } else { "" };
    Err(Failure::Usage(format!("--interface {missing}: there is no such interface; there are {known}{hint}")))
}

/// The devices in the text of `/proc/PID/net/dev`.
fn names(text: io::Result<String>) -> Vec<String> {
    let text = text.unwrap_or_default();
    let name = |line: &str| Some(line.rsplit_once(':')?.0.trim().to_owned());
    text.lines().skip(2).filter_map(name).collect()
}

/// The text of `net/dev` in the namespace at `path`, into which only a thread of its own moves.
fn devices_inside(path: &Path, proc: &Path) -> io::Result<String> {
    let namespace = File::open(path)?;
    let look = |namespace: BorrowedFd<'_>| {
        move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))?;
        fs::read_to_string(proc.join("thread-self/net/dev"))
    };
    thread::scope(|scope| {
        let looking = thread::Builder::new().spawn_scoped(scope, || look(namespace.as_fd()))?;
        looking.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
    })
}

/// The directories of the cgroups that `asked` names by path.
pub(super) fn cgroups(asked: &[PathBuf], proc: &Path) -> Result<Vec<PathBuf>, Failure> {
    if asked.is_empty() {
        return Ok(Vec::new());
    }
    let root = hierarchy("--cgroup", proc)?;
    asked.iter().map(|asked| cgroup(asked, &root)).collect()
}

/// The directory of all cgroups, which `option` needs.
fn hierarchy(option: &str, proc: &Path) -> Result<PathBuf, Failure> {
    let mounts = fs::read(proc.join("self/mountinfo")).unwrap_or_default();
    unified_hierarchy(&mounts).ok_or_else(|| {
        Failure::Usage(format!(
            "{option} needs the unified hierarchy (cgroup v2), which is not mounted here; \
             `mount -t cgroup2 none /sys/fs/cgroup` mounts it"
        ))
    })
}

/// The directories of the cgroups of the containers that `asked` names.
pub(super) fn containers(asked: &[String], proc: &Path) -> Result<Vec<PathBuf>, Failure> {
    if asked.is_empty() {
        return Ok(Vec::new());
    }
    let root = hierarchy("--container", proc)?;
    let mut cgroups = BTreeSet::new();
    cgroups::each(&root, &mut |_, path, _| {
        if containers::id(path).is_some() {
            cgroups.insert(path.to_vec());
        }
    });
    let names = containers::names();
    let mut found = Vec::new();
    for asked in asked {
        let paths = container(asked, cgroups.iter().map(Vec::as_slice), &names)?;
        let below = |path: &[u8]| root.join(OsStr::from_bytes(path.strip_prefix(b"/").unwrap_or(path)));
        found.extend(paths.into_iter().map(below));
    }
    Ok(found)
}

/// Those of `cgroups` that are a container's of this name, or the one whose id begins so; `names` are those of ids.
fn container<'a>(
    asked: &str,
    cgroups: impl Iterator<Item = &'a [u8]>,
    names: &[(String, String)],
) -> Result<Vec<&'a [u8]>, Failure> {
    let all: Vec<_> = cgroups.filter_map(|path| Some((containers::id(path)?, path))).collect();
    let is_named = |id: &str| names.iter().any(|(known, name)| known == id && name == asked);
    let pick = |is_asked: &dyn Fn(&str) -> bool| {
        let picked = all.iter().copied().filter(|(id, _)| is_asked(id));
        picked.collect::<BTreeSet<_>>()
    };
    let mut found = pick(&is_named);
    if found.is_empty() {
        found = pick(&|id| !asked.is_empty() && id.starts_with(asked));
        if found.iter().map(|(id, _)| id).collect::<BTreeSet<_>>().len() > 1 {
            return Err(Failure::Usage(format!(
                "--container {asked}: the ids of several containers begin with this; write more digits"
            )));
        }
    }
    if found.is_empty() {
        return Err(Failure::Usage(format!(
            "--container {asked}: no running container has this name or id; write one that `docker ps`, \
             `podman ps` or `crictl ps` shows, or give the container's cgroup with --cgroup"
        )));
    }
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

fn cgroup(asked: &Path, root: &Path) -> Result<PathBuf, Failure> {
    // As it is in the file system, or as /proc/PID/cgroup has it.
    let below = asked.strip_prefix("/").unwrap_or(asked);
    let places = [Some(asked.to_owned()).filter(|asked| asked.is_absolute()), Some(root.join(below))];
    // Every cgroup of the unified hierarchy has that file, and none of the older ones.
    let found = places.into_iter().flatten().find(|place| place.join("cgroup.controllers").exists());
    found.ok_or_else(|| {
        Failure::Usage(format!(
            "--cgroup {}: there is no such cgroup; write its path below {}, as `cat /proc/PID/cgroup` shows it \
             for a process (after 0::)",
            asked.display(),
            root.display()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "/proc/self/ns/net";

    #[test]
    fn a_namespace_by_process_and_by_path_is_the_same() {
        let proc = Path::new("/proc");
        let inode = u32::try_from(fs::metadata(OWN).expect("procfs").ino()).expect("32 bits");
        let asked = [std::process::id().to_string(), OWN.to_owned()];
        assert_eq!(namespaces(&asked, proc).expect("both exist"), [inode, inode]);
    }

    fn refused<T: std::fmt::Debug>(outcome: Result<T, Failure>) -> String {
        let failure = outcome.expect_err("refused");
        assert_eq!(failure.exit_code(), 2);
        failure.to_string()
    }

    #[test]
    fn what_is_no_namespace_is_refused() {
        let proc = Path::new("/proc");
        let ask = |asked: &str| refused(namespaces(&[asked.to_owned()], proc));
        let directory = tempfile::tempdir().expect("temporary directory");
        let fifo = directory.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).expect("made");
        assert!(ask(fifo.to_str().expect("UTF-8")).contains("this is not a network namespace"));
        let sentences = [
            "99999999",
            "/run/netns/nobody",
            "nobody",
            "../nobody",
            "/proc/self/ns/uts",
            "/proc/self/status",
            "/proc",
        ]
        .map(ask);
        insta::assert_snapshot!(sentences.join("\n"));
    }

    #[test]
    fn interfaces_are_looked_for_where_they_are_asked_for() {
        let proc = tempfile::tempdir().expect("temporary directory");
        for (process, devices) in [("self", &["lo", "eth0"][..]), ("7", &["lo", "eth0.5"])] {
            fs::create_dir_all(proc.path().join(process).join("net")).expect("writable");
            let lines: String = devices.iter().map(|name| format!("{name:>6}: 0 0\n")).collect();
            fs::write(proc.path().join(process).join("net/dev"), format!("Inter-|\n face |\n{lines}"))
                .expect("writable");
        }
        let check = |interfaces: &[&str], asked: &[&str]| {
            let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
            check_interfaces(&owned(interfaces), &owned(asked), proc.path())
        };
        assert!(check(&["lo", "eth0"], &[]).is_ok());
        assert!(check(&["eth0.5"], &["7"]).is_ok());
        // A namespace that can't be looked into is no reason to refuse.
        assert!(check(&["eth1"], &["8"]).is_ok());
        insta::assert_snapshot!(
            [refused(check(&["lo", "eth1"], &[])), refused(check(&["eth0"], &["7"]))].join("\n")
        );
    }

    #[test]
    fn own_devices_are_seen_from_inside_a_namespace() {
        match devices_inside(Path::new(OWN), Path::new("/proc")) {
            Ok(text) => assert!(names(Ok(text)).contains(&"lo".to_owned())),
            // Not root.
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::PermissionDenied),
        }
    }

    #[test]
    fn a_container_has_names_and_an_id() {
        let [a, b, c] = ["a", "ab", "c"].map(|begin| format!("{begin:0<64}"));
        let paths = [
            format!("/system.slice/docker-{a}.scope"),
            format!("/system.slice/docker-{a}.scope/init"),
            format!("/machine.slice/libpod-{b}.scope"),
            format!("/machine.slice/libpod-{c}.scope"),
            "/system.slice/cafe.service".to_owned(),
        ];
        let names = [(&a, "web"), (&b, "db"), (&c, "db"), (&c, "a0")];
        let names = names.map(|(id, name)| (id.clone(), name.to_owned()));
        let find = |asked: &str| container(asked, paths.iter().map(String::as_bytes), &names);
        let places = |asked: &str| {
            let found = find(asked).expect("found");
            found
                .into_iter()
                .map(|path| paths.iter().position(|known| known.as_bytes() == path))
                .collect::<Option<Vec<_>>>()
        };
        for (asked, expected) in
            [("web", vec![0]), ("db", vec![2, 3]), ("ab", vec![2]), (&a[..12], vec![0]), ("a0", vec![3])]
        {
            assert_eq!(places(asked), Some(expected), "{asked}");
        }
        let sentences = ["a", "cafe", ""].map(|asked| refused(find(asked)));
        insta::assert_snapshot!(sentences.join("\n"));
    }

    #[test]
    fn a_cgroup_may_be_written_in_three_ways() {
        let root = tempfile::tempdir().expect("temporary directory");
        let unit = root.path().join("system.slice/ssh.service");
        fs::create_dir_all(&unit).expect("writable");
        fs::write(unit.join("cgroup.controllers"), "").expect("writable");
        for asked in
            [unit.as_path(), Path::new("/system.slice/ssh.service"), Path::new("system.slice/ssh.service")]
        {
            assert_eq!(cgroup(asked, root.path()).expect("exists"), unit, "{}", asked.display());
        }
        let sentence = refused(cgroup(Path::new("system.slice"), root.path()));
        insta::assert_snapshot!(sentence.replace(root.path().to_str().expect("UTF-8"), "/sys/fs/cgroup"));
    }
}
