//! Whether a process id names a process.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use crate::error::Failure;
use crate::kernel::prerequisites::INITIAL_PID_NAMESPACE;

/// Checks that all `pids` are processes (thread groups), looking at `proc`, where procfs is mounted.
pub(super) fn check_pids(pids: &[u32], proc: &Path) -> Result<(), Failure> {
    for &pid in pids {
        check_pid(pid, proc)?;
    }
    if pids.is_empty() { Ok(()) } else { check_namespace("--pid", proc) }
}

/// Checks that process ids mean here what they mean to the kernel, as `what` needs it.
pub(super) fn check_namespace(what: &str, proc: &Path) -> Result<(), Failure> {
    // The kernel side knows processes by their ids in the initial namespace; inside another one the same number is another process.
    if let Ok(namespace) = fs::read_link(proc.join("self/ns/pid"))
        && namespace != Path::new(INITIAL_PID_NAMESPACE)
    {
        return Err(Failure::cannot_trace(
            format!(
                "{what} can't be used inside of a PID namespace, where process ids differ from the kernel's"
            ),
            "start net-latency on the host, or in a container that shares the host's (--pid=host)",
        ));
    }
    Ok(())
}

fn check_pid(pid: u32, proc: &Path) -> Result<(), Failure> {
    let status = match fs::read(proc.join(pid.to_string()).join("status")) {
        Ok(status) => status,
        Err(error) if error.kind() == ErrorKind::NotFound && proc.join("self").exists() => {
            return Err(Failure::Usage(format!("no process with PID {pid}; `ps -e` lists those that exist")));
        }
        // ESRCH: the process ended while its file was read.
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {
            return Err(Failure::Usage(format!("the process with PID {pid} has just ended")));
        }
        Err(error) => {
            return Err(Failure::Usage(format!(
                "cannot see whether PID {pid} is a process: {}: {error}; is procfs mounted there?",
                proc.display()
            )));
        }
    };
    match thread_group(&status) {
        Some(process) if process != pid => Err(Failure::Usage(format!(
            "{pid} is a thread of the process with PID {process}; use --pid {process}"
        ))),
        _ => Ok(()),
    }
}

/// The thread-group id in the text of `/proc/PID/status`. Bytes, since the name in it may be any.
fn thread_group(status: &[u8]) -> Option<u32> {
    let value = status.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"Tgid:"))?;
    str::from_utf8(value.trim_ascii()).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A procfs with process 10 "a", its thread 11, and us in the PID namespace `namespace`.
    fn proc(namespace: &str) -> tempfile::TempDir {
        let proc = tempfile::tempdir().expect("temporary directory");
        for (pid, status) in [("10", &b"Name:\ta\xff\nTgid:\t10\n"[..]), ("11", b"Name:\tb\nTgid:\t10\n")] {
            fs::create_dir(proc.path().join(pid)).expect("writable");
            fs::write(proc.path().join(pid).join("status"), status).expect("writable");
        }
        fs::create_dir_all(proc.path().join("self/ns")).expect("writable");
        std::os::unix::fs::symlink(namespace, proc.path().join("self/ns/pid")).expect("writable");
        proc
    }

    fn check(pids: &[u32], namespace: &str) -> Result<(), (u8, String)> {
        let failed = |failure: Failure| (failure.exit_code(), failure.to_string());
        check_pids(pids, proc(namespace).path()).map_err(failed)
    }

    fn refused(pids: &[u32], namespace: &str) -> (u8, String) {
        check(pids, namespace).expect_err("refused")
    }

    #[test]
    fn processes_are_accepted() {
        assert_eq!(check(&[10, 10], INITIAL_PID_NAMESPACE), Ok(()));
    }

    #[test]
    fn a_pid_of_nobody_is_named() {
        let (code, sentence) = refused(&[10, 999_999], INITIAL_PID_NAMESPACE);
        assert_eq!(code, 2);
        assert_eq!(sentence, "no process with PID 999999; `ps -e` lists those that exist");
    }

    #[test]
    fn a_thread_leads_to_its_process() {
        let (code, sentence) = refused(&[11], INITIAL_PID_NAMESPACE);
        assert_eq!(code, 2);
        assert_eq!(sentence, "11 is a thread of the process with PID 10; use --pid 10");
    }

    #[test]
    fn in_another_pid_namespace_ids_mean_somebody_else() {
        let (code, sentence) = refused(&[10], "pid:[4026532200]");
        assert_eq!(code, 3);
        assert!(sentence.contains("--pid=host"), "{sentence}");
        assert_eq!(check(&[], "pid:[4026532200]"), Ok(()));
    }

    #[test]
    fn without_procfs_nothing_is_claimed() {
        let empty = tempfile::tempdir().expect("temporary directory");
        let failure = check_pids(&[1], empty.path()).expect_err("unknown");
        assert!(failure.to_string().contains("is procfs mounted"), "{failure}");
    }
}
