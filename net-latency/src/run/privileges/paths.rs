//! The files that a run opens while it traces, where the kernel has Landlock (Linux 5.13 and later).

use std::{
    env,
    ffi::OsStr,
    fs,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use landlock::{
    ABI, Access as _, AccessFs, BitFlags, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _, RulesetStatus,
    path_beneath_rules,
};

use super::Later;
use crate::kernel::{
    cgroups::unified_hierarchy,
    containers::{CONTAINER_LOGS, POD_LOGS},
};

/// The newest rights that were tried: all to files until Linux 6.10. Kernels before know fewer of them. Newer rights are about connections,
/// which no run can make.
const KNOWN: ABI = ABI::V5;

/// Where the tool reads: processes, devices, cgroups, interrupts, this process.
const KERNEL: [&str; 2] = ["/proc", "/sys"];
/// The time zone and where those are, which chrono reads anew when it has changed.
const TIME_ZONES: [&str; 5] =
    ["/etc/localtime", "/etc/timezone", "/usr/share/zoneinfo", "/share/zoneinfo", "/etc/zoneinfo"];
/// The terminal that keys come from where standard input is a log.
const TERMINAL: &str = "/dev/tty";

/// From now on this thread, and those that it makes, can open no other files than `later` needs; whether this kernel can
/// do that at all.
///
/// # Errors
/// If the kernel refuses.
pub(super) fn restrict(later: &Later<'_>) -> Result<bool> {
    let mut rules: Vec<(PathBuf, BitFlags<AccessFs>)> = Vec::new();
    let reading = AccessFs::ReadFile | AccessFs::ReadDir;
    if later.reads_names {
        let mounts = fs::read("/proc/self/mountinfo").unwrap_or_default();
        let all = KERNEL.into_iter().chain([POD_LOGS, CONTAINER_LOGS]).chain(TIME_ZONES).map(PathBuf::from);
        let all = all.chain(unified_hierarchy(&mounts)).chain(env::var_os("TZ").as_deref().and_then(zone));
        rules.extend(all.map(|path| (path, reading)));
    }
    let writing = AccessFs::WriteFile | AccessFs::Truncate;
    if let Some(output) = later.output {
        rules.push((output.to_owned(), writing));
        rules.extend(directory(output).map(|directory| (directory, writing | AccessFs::MakeReg)));
    }
    if let Some(files) = later.files {
        let replacing = writing | AccessFs::MakeReg | AccessFs::RemoveFile;
        rules.extend(directory(files).map(|directory| (directory, replacing)));
    }
    if let Some(socket) = later.socket {
        rules.extend(directory(socket).map(|directory| (directory, AccessFs::RemoveFile.into())));
    }
    if later.draws {
        rules.push((TERMINAL.into(), AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev));
    }
    let confine = || {
        let mut ruleset = Ruleset::default().handle_access(AccessFs::from_all(KNOWN))?.create()?;
        for (path, access) in rules {
            // A path that does not exist can't be opened.
            ruleset = ruleset.add_rules(path_beneath_rules([path], access))?;
        }
        ruleset.restrict_self()
    };
    let status = confine().context("cannot restrict files")?;
    Ok(status.ruleset != RulesetStatus::NotEnforced)
}

/// The file that the variable TZ names by its path, which may stand behind a colon.
fn zone(variable: &OsStr) -> Option<PathBuf> {
    let path = variable.as_bytes();
    let path = Path::new(OsStr::from_bytes(path.strip_prefix(b":").unwrap_or(path)));
    path.is_absolute().then(|| path.to_owned())
}

/// The directory in which a file of lines is, links followed.
fn directory(output: &Path) -> Option<PathBuf> {
    let by_file = output.canonicalize().ok().and_then(|file| Some(file.parent()?.to_owned()));
    // The file may have been renamed by now.
    by_file.or_else(|| Path::new(".").join(output).parent()?.canonicalize().ok())
}

#[cfg(test)]
mod tests {
    use std::{fs::OpenOptions, io::ErrorKind};

    use super::*;
    use crate::run::privileges::tests::{PART, again};

    #[test]
    fn files_elsewhere_are_not_opened() {
        const NAME: &str = "files_elsewhere_are_not_opened";
        if let Some(folder) = env::var_os(PART) {
            let [lines, elsewhere] = ["in/lines", "out/lines"].map(|name| Path::new(&folder).join(name));
            let later = Later { files: Some(&lines), reads_names: true, ..Later::default() };
            if !restrict(&later).expect("the kernel does not refuse") {
                println!("as it has to be: nothing is restricted");
                return;
            }
            // What a recorder does.
            fs::rename(&lines, lines.with_extension("1")).expect("beside it");
            fs::write(&lines, "new").expect("made");
            OpenOptions::new().write(true).open(&lines).and_then(|file| file.set_len(0)).expect("mended");
            fs::read_to_string("/proc/self/status").expect("of the kernel");
            fs::read_dir("/sys").expect("of the kernel");
            println!("{:?}", chrono::Local::now());
            let denied = |outcome: Result<(), std::io::Error>| {
                assert_eq!(outcome.expect_err("elsewhere").kind(), ErrorKind::PermissionDenied);
            };
            denied(fs::write(&elsewhere, ""));
            denied(fs::read("/etc/passwd").map(drop));
            denied(fs::rename(&lines, &elsewhere));
            denied(fs::read(lines.with_extension("1")).map(drop));
            println!("as it has to be");
            return;
        }
        let folder = tempfile::tempdir().expect("temporary directory");
        for name in ["in", "out"] {
            fs::create_dir(folder.path().join(name)).expect("made");
        }
        fs::write(folder.path().join("in/lines"), "old").expect("made");
        let output = again(module_path!(), NAME, folder.path().to_str().expect("UTF-8"));
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("as it has to be"), "{said}{}", String::from_utf8_lossy(&output.stderr));
    }

    #[test]
    fn a_file_of_lines_is_made_anew_and_none_is_removed() {
        const NAME: &str = "a_file_of_lines_is_made_anew_and_none_is_removed";
        if let Some(folder) = env::var_os(PART) {
            let [lines, other] = ["lines", "other"].map(|name| Path::new(&folder).join(name));
            let later = Later { output: Some(&lines), ..Later::default() };
            if restrict(&later).expect("the kernel does not refuse") {
                fs::write(&lines, "new").expect("made");
                for outcome in [fs::rename(&other, &lines), fs::remove_file(&other), fs::remove_file(&lines)]
                {
                    assert_eq!(outcome.expect_err("refused").kind(), ErrorKind::PermissionDenied);
                }
            }
            println!("as it has to be");
            return;
        }
        let folder = tempfile::tempdir().expect("temporary directory");
        fs::write(folder.path().join("other"), "").expect("made");
        let output = again(module_path!(), NAME, folder.path().to_str().expect("UTF-8"));
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("as it has to be"), "{said}{}", String::from_utf8_lossy(&output.stderr));
    }

    #[test]
    fn a_socket_is_removed_and_nothing_is_made() {
        const NAME: &str = "a_socket_is_removed_and_nothing_is_made";
        if let Some(folder) = env::var_os(PART) {
            let socket = Path::new(&folder).join("socket");
            let later = Later { socket: Some(&socket), answers: true, ..Later::default() };
            if restrict(&later).expect("the kernel does not refuse") {
                for error in [
                    fs::write(&socket, ""),
                    fs::write(socket.with_extension("new"), ""),
                    fs::remove_file("/tmp/x"),
                ] {
                    assert!(error.is_err());
                }
            }
            fs::remove_file(&socket).expect("removed");
            println!("as it has to be");
            return;
        }
        let folder = tempfile::tempdir().expect("temporary directory");
        let _socket = std::os::unix::net::UnixListener::bind(folder.path().join("socket")).expect("made");
        let output = again(module_path!(), NAME, folder.path().to_str().expect("UTF-8"));
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("as it has to be"), "{said}{}", String::from_utf8_lossy(&output.stderr));
        assert!(!folder.path().join("socket").exists());
    }

    #[test]
    fn a_zone_may_be_a_file() {
        let zones = ["Europe/Berlin", ":Europe/Berlin", "CET-1CEST", "", ":"].map(|name| zone(name.as_ref()));
        assert_eq!(zones, [const { None }; 5]);
        for name in ["/zones/Berlin", ":/zones/Berlin"] {
            assert_eq!(zone(name.as_ref()), Some("/zones/Berlin".into()));
        }
    }
}
