//! The command line from outside: what a user gets for a mistake. Needs neither root nor a kernel that
//! can be traced, since all of it is found before anything is attached.

use std::process::{Command, Output, id};
use std::sync::mpsc;
use std::{fs, thread};

/// More than any kernel hands out (`PID_MAX_LIMIT` is 2^22).
const NOBODY: &str = "99999999";

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_net-latency")).args(arguments).output().expect("the tool starts")
}

/// Runs the tool, which must refuse with exit code 2 and nothing on stdout; what it says.
fn refused(arguments: &[&str]) -> String {
    let output = run(arguments);
    let said = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    said
}

#[test]
fn help_and_version_are_data() {
    for arguments in [["-h"], ["--help"], ["--version"]] {
        let output = run(&arguments);
        assert!(output.status.success(), "{arguments:?}");
        assert!(output.stderr.is_empty(), "{arguments:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("net-latency"), "{arguments:?}");
    }
}

#[test]
fn usage_errors_exit_2() {
    for arguments in
        [&["--frobnicate"][..], &["--duration", "10"], &["--port", "0"], &["--buffer", "3M"], &["-n", "0"]]
    {
        let said = refused(arguments);
        assert!(said.starts_with("error: "), "{said}");
    }
}

#[test]
fn a_pid_of_nobody_is_one_sentence() {
    for format in ["text", "json"] {
        let said = refused(&["--pid", NOBODY, "--format", format]);
        assert!(said.contains(&format!("no process with PID {NOBODY}; ")), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn one_wrong_pid_among_right_ones_is_found() {
    let own = id().to_string();
    assert!(refused(&["-p", &own, "-p", NOBODY]).contains(NOBODY));
}

#[test]
fn a_thread_id_leads_to_the_process() {
    let (tell, told) = mpsc::channel();
    let (stop, stopped) = mpsc::channel::<()>();
    let other = thread::spawn(move || {
        tell.send(fs::read_link("/proc/thread-self").expect("procfs")).expect("the test listens");
        // Stay alive until the test has asked about this thread.
        stopped.recv().expect_err("nothing is ever sent");
    });
    let link = told.recv().expect("the thread runs");
    let thread = link.file_name().and_then(|name| name.to_str()).expect("a thread id");
    let own = id().to_string();
    let said = refused(&["--pid", thread]);
    assert!(said.contains(&format!("use --pid {own}")), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    drop(stop);
    other.join().expect("the thread ends well");
}

#[test]
fn an_output_that_cannot_be_opened_is_named_before_anything_is_attached() {
    for path in ["/nonexistent/lines", "/proc"] {
        let said = refused(&["--output", path]);
        assert!(said.contains(path), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn a_failed_start_leaves_no_file() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = directory.path().join("lines");
    refused(&["--pid", NOBODY, "--output", path.to_str().expect("UTF-8")]);
    assert!(!path.exists());
}

#[test]
fn top_without_a_terminal_names_the_way_out() {
    let said = refused(&["top"]);
    assert!(said.contains("top needs a terminal") && said.contains("net-latency without top"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}
