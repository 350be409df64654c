//! What others can do to a run, and a run to the machine: all that can be shown without tracing.

use std::{
    fs,
    io::{ErrorKind, Write as _},
    os::{
        fd::OwnedFd,
        unix::{
            fs::{PermissionsExt as _, chown},
            process::CommandExt as _,
        },
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use net_latency::inside::Failure;
use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    sys::resource::{Resource, setrlimit},
    unistd::pipe2,
};
use tempfile::TempDir;

/// More than any kernel hands out (`PID_MAX_LIMIT` is 2^22).
const NO_PROCESS: &str = "99999999";
/// The user `nobody`, which has this number on every Linux.
const NOBODY: u32 = 65534;

fn is_root() -> bool {
    fs::metadata("/proc/self").map(|own| std::os::unix::fs::MetadataExt::uid(&own)).expect("procfs") == 0
}

fn tool() -> Command {
    Command::new(env!("CARGO_BIN_EXE_net-latency"))
}

/// Runs it. A copy that was just made can't be executed while another test's child, which is about to be something else,
/// still has it open for writing.
fn run(command: &mut Command) -> Output {
    loop {
        match command.output() {
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => sleep(Duration::from_millis(10)),
            output => return output.expect("it starts"),
        }
    }
}

/// The tool as a user without any privilege, wherever the tests run as root. It and the directory are that user's.
fn unprivileged() -> (TempDir, Command) {
    let directory = tempfile::tempdir().expect("temporary directory");
    if !is_root() {
        return (directory, tool());
    }
    let copy = directory.path().join("net-latency");
    fs::copy(env!("CARGO_BIN_EXE_net-latency"), &copy).expect("copied");
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("ours");
    chown(directory.path(), Some(NOBODY), Some(NOBODY)).expect("given away");
    let mut command = Command::new(copy);
    command.uid(NOBODY).gid(NOBODY).env_remove("HOME").env_remove("XDG_CONFIG_HOME");
    (directory, command)
}

fn said(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

fn contrib(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../contrib").join(path)
}

#[test]
fn the_packaged_service_records() {
    let named = format!("@{}", contrib("systemd/service.args").display());
    // All its arguments are right, but for a directory that is not there.
    let output = tool().args([&named, "--output", "/nonexistent/recordings"]).output().expect("it starts");
    let expected = "cannot keep recordings in /nonexistent/recordings: there is no such directory; create it";
    assert!(said(&output).contains(expected), "{}", said(&output));
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn the_packaged_service_does_not_restart_for_ever() {
    let unit = fs::read_to_string(contrib("systemd/net-latency.service")).expect("it is there");
    let (head, service) = unit.split_once("[Service]").expect("a section");
    let value = |section: &str, key: &str| {
        let line = section.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        line.unwrap_or_else(|| panic!("no {key}")).to_owned()
    };
    let minutes: u64 =
        value(head, "StartLimitIntervalSec").strip_suffix("min").expect("minutes").parse().expect("a number");
    let burst: u64 = value(head, "StartLimitBurst").parse().expect("a number");
    let seconds: u64 =
        value(service, "RestartSec").strip_suffix('s').expect("seconds").parse().expect("a number");
    assert!(burst * seconds < minutes * 60, "that limit is never reached");
    let never = value(service, "RestartPreventExitStatus");
    let never: Vec<u8> = never.split(' ').map(|code| code.parse().expect("a code")).collect();
    let full = Failure::of_output(ErrorKind::StorageFull, anyhow::anyhow!("full"));
    let failures = [Failure::Usage(String::new()), Failure::cannot_trace("", ""), full];
    assert_eq!(never, failures.map(|failure| failure.exit_code()));
    // SIGHUP and exit code 0 are a clean end for systemd.
    assert_eq!(value(service, "Restart"), "always");
}

#[test]
fn a_full_disk_has_an_exit_code_of_its_own() {
    for arguments in [&["--help"][..], &["--version"], &["man"], &["completions", "bash"]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("every Linux has it");
        let output = tool().args(arguments).stdout(full).output().expect("it starts");
        assert_eq!(output.status.code(), Some(4), "{arguments:?}: {}", said(&output));
        assert!(
            said(&output).contains("cannot write to standard output: No space left"),
            "{}",
            said(&output)
        );
    }
}

#[test]
fn what_fails_before_it_traces_leaves_the_output_as_it_was() {
    for arguments in
        [&[][..], &["journey"], &["journey", "--format", "perfetto"], &["calls"], &["connections"]]
    {
        for is_new in [false, true] {
            let (directory, mut command) = unprivileged();
            let file = directory.path().join("lines");
            if !is_new {
                fs::write(&file, "[\n]\n").expect("written");
                if is_root() {
                    chown(&file, Some(NOBODY), Some(NOBODY)).expect("given away");
                }
            }
            let output = run(command.args(arguments).arg("--output").arg(&file));
            assert_eq!(output.status.code(), Some(3), "{arguments:?}: {}", said(&output));
            let left = fs::read_to_string(&file).ok();
            assert_eq!(left.as_deref(), (!is_new).then_some("[\n]\n"), "{arguments:?}");
        }
    }
}

/// What else a command would trace does not say so too.
#[test]
fn who_may_not_trace_is_told_by_one_sentence() {
    for name in ["stream", "journey", "calls", "connections", "hist", "diagnose"] {
        let (_directory, mut command) = unprivileged();
        let output = run(command.args((name != "stream").then_some(name)));
        let said = said(&output);
        assert_eq!((output.status.code(), said.lines().count()), (Some(3), 1), "{name}: {said}");
    }
}

#[test]
fn where_no_thread_can_be_made_one_sentence_says_so() {
    let (_directory, mut command) = unprivileged();
    // SAFETY: setrlimit is safe to call between fork and exec.
    unsafe {
        command.pre_exec(|| Ok(setrlimit(Resource::RLIMIT_NPROC, 0, 0)?));
    }
    let output = run(command.args(["--", "true"]));
    let said = said(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.starts_with("net-latency: cannot run true: "), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

/// A full pipe, and its end that is not read.
fn full_pipe() -> (OwnedFd, OwnedFd) {
    let (reader, writer) = pipe2(OFlag::O_NONBLOCK).expect("a pipe");
    let mut file = fs::File::from(writer);
    while file.write(&[b'x'; 4096]).is_ok() {}
    while file.write(b"x").is_ok() {}
    fcntl(&file, FcntlArg::F_SETFL(OFlag::empty())).expect("a flag");
    (reader, file.into())
}

/// The end of a process that has to end; killed if it doesn't.
fn ends_within(child: &mut Child, patience: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + patience;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait().expect("a child") {
            return Some(status);
        }
        sleep(Duration::from_millis(10));
    }
    child.kill().expect("a child");
    child.wait().expect("a child");
    None
}

#[test]
fn nobody_waits_for_whoever_does_not_read_messages() {
    let (_reader, stderr) = full_pipe();
    let mut child =
        tool().args(["--pid", NO_PROCESS]).stderr(stderr).stdout(Stdio::null()).spawn().expect("it starts");
    let status = ends_within(&mut child, Duration::from_secs(10)).expect("it waits for its reader");
    assert_eq!(status.code(), Some(2));
}

#[test]
fn a_fifo_and_somebody_elses_link_are_refused_at_the_start() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = directory.path().join("lines");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("made");
    let refused = |path: &Path| {
        let mut child = tool().arg("--output").arg(path).stderr(Stdio::piped()).spawn().expect("it starts");
        let status = ends_within(&mut child, Duration::from_secs(10)).expect("it waits for a reader");
        assert_eq!(status.code(), Some(2));
        said(&child.wait_with_output().expect("it has ended"))
    };
    assert!(refused(&path).contains("it is a FIFO without a reader"), "{}", refused(&path));
    if is_root() {
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(directory.path().join("target"), &link).expect("linked");
        std::os::unix::fs::lchown(&link, Some(NOBODY), None).expect("given away");
        assert!(refused(&link).contains("a link of another user"), "{}", refused(&link));
        assert!(!directory.path().join("target").exists());
    }
}

#[test]
fn files_of_earlier_versions_are_not_read_and_this_is_said() {
    let home = tempfile::tempdir().expect("temporary directory");
    let folder = home.path().join(".config/net-latency");
    fs::create_dir_all(&folder).expect("made");
    let file = folder.join("config.toml");
    let run = |arguments: &[&str]| {
        let mut command = tool();
        command.env("HOME", home.path()).env_remove("XDG_CONFIG_HOME").args(arguments);
        said(&command.output().expect("it starts"))
    };
    let arguments = ["--pid", NO_PROCESS];
    let before = run(&arguments);
    fs::write(&file, "nonsense").expect("written");
    let after = run(&arguments);
    let (first, rest) = after.split_once('\n').expect("a line");
    assert!(first.starts_with(&format!("net-latency: {} is no longer read: ", file.display())), "{after}");
    assert_eq!(rest, before);
    assert_eq!(run(&["man"]), "");
}

#[test]
fn options_that_are_gone_say_what_to_use_instead() {
    for (argument, instead) in [
        ("--config=x", "net-latency @FILE"),
        ("--no-config", "name it as @FILE"),
        ("--user", "-- runuser -u NAME -- COMMAND"),
        ("--rotate-every=1h", "logrotate"),
    ] {
        for view in [None, Some("top")] {
            let output = tool().args(view).arg(argument).output().expect("it starts");
            let text = said(&output);
            assert_eq!((output.status.code(), text.lines().count()), (Some(2), 1), "{text}");
            assert!(text.contains(" is gone: ") && text.contains(instead), "{text}");
        }
    }
}

#[test]
fn what_others_call_something_acts_on_no_terminal() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let file = directory.path().join("\x1b]0;owned\x07");
    fs::write(&file, "\x1b[2J\n").expect("written");
    let output = tool().arg(format!("@{}", file.display())).output().expect("it starts");
    assert_eq!(output.status.code(), Some(2));
    let text = said(&output);
    assert!(!text.contains('\x1b') && text.contains("it has a control character"), "{text:?}");
}
