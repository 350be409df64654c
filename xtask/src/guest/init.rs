//! The first process of a guest.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::{ffi::OsStrExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
};

use anyhow::{Context as _, Result};
use rustix::{
    mount::{MountFlags, mount},
    process::{Pid, WaitOptions, ioctl_tiocsctty, setsid, wait},
    system::{RebootCommand, finit_module, reboot, sethostname},
    termios::{OptionalActions, Winsize, tcdrain, tcgetattr, tcsetattr, tcsetwinsize},
};

use super::{
    console::Marker,
    demo::Role,
    image::{COMMAND, ENVIRONMENT, MODULES},
};
use crate::arch::Arch;

/// Names the port that the command's standard output goes to, if not the console.
pub(crate) const DATA_PORT: &str = "GUEST_DATA_PORT";
/// Set if TCP traffic shall be made while the command runs.
pub(crate) const DEMO: &str = "GUEST_DEMO";

const PATH: &str = "/bin";
/// What shells use for a command that could not be started.
const NOT_STARTED: u8 = 127;

/// File systems: type, where, options. Tracing wants most of them, tests fill up the small one.
const MOUNTS: [(&str, &str, &str); 12] = [
    ("proc", "/proc", ""),
    ("sysfs", "/sys", ""),
    ("devtmpfs", "/dev", ""),
    ("devpts", "/dev/pts", ""),
    ("tmpfs", "/tmp", "mode=1777"),
    ("tmpfs", "/run", "mode=755"),
    ("tmpfs", "/small", "size=64k"),
    ("tracefs", "/sys/kernel/tracing", ""),
    ("debugfs", "/sys/kernel/debug", ""),
    ("securityfs", "/sys/kernel/security", ""),
    ("bpf", "/sys/fs/bpf", ""),
    ("cgroup2", "/sys/fs/cgroup", ""),
];

/// Whether this process is a guest's init. In a container, too, a process may have the number 1.
pub(crate) fn is_me() -> bool {
    rustix::process::getpid() == Pid::INIT && env::args_os().next().is_some_and(|name| name == "/init")
}

/// Sets the guest up, runs its command, and switches it off.
pub(crate) fn main() -> ! {
    let status = match set_up().and_then(|()| run_command()) {
        Ok(status) => status,
        Err(error) => {
            eprintln!("guest: {error:#}");
            NOT_STARTED
        }
    };
    if let Err(error) = end(status) {
        eprintln!("guest: {error:#}");
    }
    // The kernel panics when its init ends, so QEMU ends in any case.
    std::process::exit(1)
}

fn console() -> PathBuf {
    let [console, _] = Arch::OF_THIS_PROGRAM.ports();
    Path::new("/dev").join(console)
}

fn set_up() -> Result<()> {
    for (kind, target, options) in MOUNTS {
        if kind == "devpts" {
            fs::create_dir_all(target)?;
        }
        let options = std::ffi::CString::new(options)?;
        mount(kind, target, kind, MountFlags::empty(), options.as_c_str())
            .with_context(|| format!("can't mount {kind} on {target}"))?;
    }
    let modules =
        fs::read_to_string(Path::new("/").join(MODULES)).context("can't read the list of modules")?;
    for module in modules.lines() {
        match finit_module(File::open(module)?, c"", 0) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error).with_context(|| format!("can't load {module}")),
        }
    }
    hurry_grace_periods()?;
    sethostname(b"guest")?;
    let loopback = Command::new("/bin/busybox").args(["ip", "link", "set", "lo", "up"]).status()?;
    anyhow::ensure!(loopback.success(), "can't bring the loopback interface up");
    Ok(())
}

/// Lets RCU's grace periods be short. Attaching and detaching wait for dozens of them, which is most of a test's
/// time, above all on PREEMPT_RT (`rcu_normal_after_boot`).
fn hurry_grace_periods() -> Result<()> {
    for (file, value) in [("rcu_normal", "0"), ("rcu_expedited", "1")] {
        fs::write(Path::new("/sys/kernel").join(file), value).with_context(|| format!("can't set {file}"))?;
    }
    Ok(())
}

fn run_command() -> Result<u8> {
    let words = nul_terminated(&fs::read(Path::new("/").join(COMMAND))?);
    let environment = nul_terminated(&fs::read(Path::new("/").join(ENVIRONMENT))?);
    let environment: Vec<_> = environment.iter().filter_map(|entry| split_variable(entry)).collect();
    let variable = |name: &str| environment.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);

    let console =
        OpenOptions::new().read(true).write(true).open(console()).context("can't open the console")?;
    let number = |name: &str| variable(name).and_then(OsStr::to_str).and_then(|text| text.parse().ok());
    if let (Some(ws_row), Some(ws_col)) = (number("LINES"), number("COLUMNS")) {
        tcsetwinsize(&console, Winsize { ws_row, ws_col, ws_xpixel: 0, ws_ypixel: 0 })?;
    }
    let data = variable(DATA_PORT).map(|port| open_data_port(&Path::new("/dev").join(port))).transpose()?;
    if variable(DEMO).is_some() {
        for role in Role::ALL {
            let mut demo = Command::new("/init");
            demo.args(["guest-demo", role.name()]).stdin(Stdio::null()).process_group(0);
            demo.spawn().context("can't start the demo traffic")?;
        }
    }

    let shell = [OsString::from("/bin/sh"), OsString::from("-i")];
    let (program, arguments) = if words.is_empty() { shell.split_first() } else { words.split_first() }
        .context("there is no command")?;
    let mut command = Command::new(program);
    command.args(arguments).current_dir("/root");
    command.env_clear().env("PATH", PATH).env("HOME", "/root").env("USER", "root").env("TERM", "linux");
    command.envs(environment.iter().filter(|(name, _)| *name != DATA_PORT && *name != DEMO).copied());
    command.stdin(console.try_clone()?).stderr(console.try_clone()?);
    command.stdout(if data.is_some() { Stdio::piped() } else { console.try_clone()?.into() });
    // Ctrl-C on the console is for the command and its children; it can't end the first process. That one leads
    // the session, since the end of a session's leader hangs its terminal up, which throws away the output that
    // the serial port hasn't sent yet (tty_ldisc_hangup).
    setsid().context("can't lead a session")?;
    ioctl_tiocsctty(&console).context("can't take the console as terminal")?;
    writeln!(&console, "{}", Marker::Started)?;
    // Children of this process look for programs where the command would.
    // SAFETY: no other thread runs yet that could read the environment.
    unsafe { env::set_var("PATH", PATH) };
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            eprintln!("guest: can't run {}: {error}", program.display());
            return Ok(NOT_STARTED);
        }
    };
    let copier = data.zip(child.stdout.take()).map(|(mut port, mut output)| {
        thread::spawn(move || -> Result<()> {
            io::copy(&mut output, &mut port)?;
            Ok(tcdrain(&port)?)
        })
    });
    let status = wait_for(i32::try_from(child.id())?)?;
    if let Some(copier) = copier {
        copier.join().expect("copying the output doesn't panic").context("can't write to the data port")?;
    }
    Ok(status)
}

/// Reaps every child, also those that others left to this process, until the command has ended.
fn wait_for(command: i32) -> Result<u8> {
    loop {
        let Some((pid, status)) = wait(WaitOptions::empty())? else { continue };
        if pid.as_raw_nonzero().get() != command {
            continue;
        }
        let signal = || status.terminating_signal().map(|signal| 128 + signal);
        return Ok(status
            .exit_status()
            .or_else(signal)
            .and_then(|status| u8::try_from(status).ok())
            .unwrap_or(u8::MAX));
    }
}

fn end(status: u8) -> Result<()> {
    let mut console = OpenOptions::new().write(true).open(console())?;
    writeln!(console, "{}", Marker::Ended(status))?;
    tcdrain(&console)?;
    rustix::fs::sync();
    reboot(RebootCommand::PowerOff).context("can't switch the guest off")
}

/// Opens a serial port as a mere pipe of bytes.
fn open_data_port(path: &Path) -> Result<File> {
    let port = OpenOptions::new()
        .write(true)
        .open(path)
        .with_context(|| format!("can't open {}", path.display()))?;
    let mut settings = tcgetattr(&port)?;
    settings.make_raw();
    tcsetattr(&port, OptionalActions::Now, &settings)?;
    Ok(port)
}

fn nul_terminated(bytes: &[u8]) -> Vec<OsString> {
    let mut words: Vec<_> =
        bytes.split(|byte| *byte == 0).map(|word| OsStr::from_bytes(word).to_owned()).collect();
    // Behind the last NUL is no word.
    words.pop();
    words
}

fn split_variable(entry: &OsStr) -> Option<(&OsStr, &OsStr)> {
    let bytes = entry.as_bytes();
    let at = bytes.iter().position(|byte| *byte == b'=')?;
    Some((OsStr::from_bytes(&bytes[..at]), OsStr::from_bytes(&bytes[at + 1..])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_end_with_nul_and_may_be_empty() {
        assert_eq!(nul_terminated(b"echo\0\0a b\0"), ["echo", "", "a b"]);
        assert!(nul_terminated(b"").is_empty());
    }

    #[test]
    fn values_may_hold_an_equals_sign() {
        let (name, value) = split_variable(OsStr::new("A=b=c")).unwrap();
        assert_eq!((name, value), (OsStr::new("A"), OsStr::new("b=c")));
        assert_eq!(split_variable(OsStr::new("none")), None);
    }
}
