//! The tool on a terminal: a pseudo-terminal of ours, with what a user would see on it.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    num::NonZero,
    os::{fd::OwnedFd, unix::process::CommandExt as _},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use nix::{
    pty::openpty,
    sys::{
        signal::{Signal, kill},
        termios::{Termios, tcgetattr},
    },
    unistd::{Pid, setsid},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{FdFlags, fcntl_setfd},
    process::ioctl_tiocsctty,
    termios::{Winsize, tcsetwinsize},
};
use vt100::Parser;

use crate::{
    process::{PATIENCE, until, wait},
    tool,
};

/// The tool. Killed when dropped.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        // Fails when it has ended, which is the normal case.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// The tool on a terminal that is ours, and that controls it.
pub(crate) struct Terminal {
    program: Program,
    /// Our end.
    master: File,
    /// The tool's end, kept open so that its settings can be read when the tool has ended.
    slave: OwnedFd,
    before: Termios,
    screen: Arc<Mutex<Parser>>,
    reader: JoinHandle<()>,
    /// Tells the reader to leave our end.
    is_over: Arc<AtomicBool>,
}

/// What a run left on its terminal.
pub(crate) struct Left {
    pub(crate) status: ExitStatus,
    /// The lines of the ordinary screen.
    pub(crate) text: String,
}

impl Terminal {
    /// Runs the tool on a new terminal of N lines and columns.
    pub(crate) fn start(arguments: &[&str], kind: &str, (rows, columns): (u16, u16)) -> Result<Self> {
        let (parser_rows, parser_columns) = not_zero(rows, columns)?;
        let size = nix::pty::Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(&size, None).context("openpty")?;
        // As long as the tool had our end too, it could not be taken away.
        for end in [&pty.master, &pty.slave] {
            fcntl_setfd(end, FdFlags::CLOEXEC)?;
        }
        let before = tcgetattr(&pty.slave).context("tcgetattr")?;
        let end = || pty.slave.try_clone().map(Stdio::from);
        let mut command = Command::new(tool::path());
        command.args(arguments).env("TERM", kind).env("LANG", "C.UTF-8").env_remove("NO_COLOR");
        command.stdin(end()?).stdout(end()?).stderr(end()?);
        // SAFETY: only system calls that may be made between fork and exec, and no memory is allocated.
        unsafe {
            command.pre_exec(|| {
                setsid()?;
                Ok(ioctl_tiocsctty(rustix::stdio::stdin())?)
            });
        }
        let child = command.spawn().context("cannot run the tool on a terminal")?;
        let screen = Arc::new(Mutex::new(Parser::new(parser_rows, parser_columns, 0)));
        let master = File::from(pty.master);
        let is_over = Arc::new(AtomicBool::new(false));
        let reader = {
            let (screen, is_over, master) = (Arc::clone(&screen), Arc::clone(&is_over), master.try_clone()?);
            thread::spawn(move || read(master, &screen, &is_over))
        };
        let program = Program(child);
        Ok(Self { program, master, slave: pty.slave, before, screen, reader, is_over })
    }

    fn screen(&self) -> Result<MutexGuard<'_, Parser>> {
        self.screen.lock().map_err(|_| anyhow!("the terminal's parser panicked"))
    }

    /// The text on the screen now.
    pub(crate) fn text(&self) -> Result<String> {
        Ok(self.screen()?.screen().contents())
    }

    /// Whether it is the alternate screen, which programs take for themselves.
    pub(crate) fn is_taken(&self) -> Result<bool> {
        Ok(self.screen()?.screen().alternate_screen())
    }

    /// Waits for a screen that is as wanted, and does something meanwhile.
    pub(crate) fn expect(
        &mut self,
        what: &str,
        is_wanted: impl Fn(&str) -> bool,
        mut meanwhile: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        until(PATIENCE, || {
            meanwhile()?;
            let text = self.text()?;
            if let Some(status) = self.program.0.try_wait()? {
                return Err(anyhow!("the tool has ended: {status}"));
            }
            Ok(self.is_taken()? && is_wanted(&text))
        })
        .with_context(|| format!("no screen with {what}; the last one:\n{}", self.text().unwrap_or_default()))
    }

    /// Types.
    pub(crate) fn press(&mut self, keys: &str) -> Result<()> {
        Ok(self.master.write_all(keys.as_bytes())?)
    }

    /// Changes the size, which the kernel tells the tool.
    pub(crate) fn resize(&mut self, rows: u16, columns: u16) -> Result<()> {
        let (parser_rows, parser_columns) = not_zero(rows, columns)?;
        self.screen()?.screen_mut().set_size(parser_rows, parser_columns);
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.master, size).context("TIOCSWINSZ")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.program.0.id()
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill(Pid::from_raw(self.program.0.id().try_into()?), signal)?)
    }

    /// Waits for the tool's end, which must give the terminal back as it was.
    pub(crate) fn wait(mut self) -> Result<Left> {
        let status = wait(&mut self.program.0, PATIENCE).with_context(|| self.text().unwrap_or_default())?;
        let after = tcgetattr(&self.slave).context("tcgetattr")?;
        ensure!(after == self.before, "the terminal's settings are {after:?}, and were {:?}", self.before);
        drop(self.slave);
        self.reader.join().map_err(|_| anyhow!("the reader panicked"))?;
        let screen = self.screen.lock().map_err(|_| anyhow!("the terminal's parser panicked"))?;
        ensure!(!screen.screen().alternate_screen(), "the alternate screen is left on");
        ensure!(!screen.screen().hide_cursor(), "the cursor is left hidden");
        Ok(Left { status, text: screen.screen().contents() })
    }

    /// Takes the terminal away, as a connection does that breaks, and waits for the tool's end.
    pub(crate) fn hang_up(self) -> Result<ExitStatus> {
        let Self { mut program, master, slave, reader, is_over, .. } = self;
        is_over.store(true, Ordering::Relaxed);
        reader.join().map_err(|_| anyhow!("the reader panicked"))?;
        drop(slave);
        drop(master);
        wait(&mut program.0, PATIENCE)
    }
}

fn not_zero(rows: u16, columns: u16) -> Result<(NonZero<u16>, NonZero<u16>)> {
    NonZero::new(rows).zip(NonZero::new(columns)).context("a terminal has lines and columns")
}

/// Reads what the tool writes, to its end or until told to leave.
fn read(mut master: File, screen: &Mutex<Parser>, is_over: &AtomicBool) {
    const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    let mut bytes = [0; 4096];
    while !is_over.load(Ordering::Relaxed) {
        if let Ok(0) = poll(&mut [PollFd::new(&master, PollFlags::IN)], Some(&LOOK)) {
            continue;
        }
        // The end is an error (EIO): the other end is not open any more.
        let Ok(read @ 1..) = master.read(&mut bytes) else { return };
        if let Ok(mut screen) = screen.lock() {
            screen.process(&bytes[..read]);
        }
    }
}
