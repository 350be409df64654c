//! The tool on a terminal: a pseudo-terminal of ours, with what a user would see on it.

use std::{
    fs::File,
    io::{self, Read as _, Write as _},
    num::NonZero,
    os::{fd::OwnedFd, unix::process::CommandExt as _},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, MutexGuard},
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
    process::ioctl_tiocsctty,
    termios::{Winsize, tcsetwinsize},
};
use vt100::Parser;

use crate::{
    process::{PATIENCE, until, wait},
    tool,
};

/// The tool, whose controlling terminal is ours. Killed when dropped.
pub(crate) struct Terminal {
    child: Child,
    /// Our end.
    master: File,
    /// The tool's end, kept open so that its settings can be read when the tool has ended.
    slave: OwnedFd,
    before: Termios,
    screen: Arc<Mutex<Parser>>,
    reader: JoinHandle<()>,
}

/// What a run left on its terminal.
pub(crate) struct Left {
    pub(crate) status: ExitStatus,
    /// The lines of the ordinary screen.
    pub(crate) text: String,
}

impl Terminal {
    /// Runs the tool on a new terminal of so many lines and columns.
    pub(crate) fn start(arguments: &[&str], kind: &str, (rows, columns): (u16, u16)) -> Result<Self> {
        let size = nix::pty::Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(&size, None).context("openpty")?;
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
        let screen = Arc::new(Mutex::new(Parser::new(rows, columns, 0)));
        let master = File::from(pty.master);
        let mut source = master.try_clone()?;
        let sink = Arc::clone(&screen);
        let reader = thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The end is an error (EIO): nobody has the other end open any more.
            while let Ok(read @ 1..) = source.read(&mut bytes) {
                if let Ok(mut screen) = sink.lock() {
                    screen.process(&bytes[..read]);
                }
            }
        });
        Ok(Self { child, master, slave: pty.slave, before, screen, reader })
    }

    fn screen(&self) -> Result<MutexGuard<'_, Parser>> {
        self.screen.lock().map_err(|_| anyhow!("the terminal's parser panicked"))
    }

    /// What is on the screen now.
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
            if let Some(status) = self.child.try_wait()? {
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
        let [new_rows, new_columns] = [rows, columns].map(NonZero::new);
        let (new_rows, new_columns) = new_rows.zip(new_columns).context("a size is not 0")?;
        self.screen()?.screen_mut().set_size(new_rows, new_columns);
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.master, size).context("TIOCSWINSZ")
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill(Pid::from_raw(self.child.id().try_into()?), signal)?)
    }

    /// Waits for the tool's end, which must give the terminal back as it was.
    pub(crate) fn wait(mut self) -> Result<Left> {
        let status = wait(&mut self.child, PATIENCE).with_context(|| self.text().unwrap_or_default())?;
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
        let Self { mut child, master, slave, reader, .. } = self;
        drop(slave);
        drop(master);
        // The reader holds our end open until it has something to read or an end.
        kill(Pid::from_raw(child.id().try_into()?), Signal::SIGHUP).or_else(|error| match error {
            nix::errno::Errno::ESRCH => Ok(()),
            error => Err(io::Error::from(error)),
        })?;
        let status = wait(&mut child, PATIENCE);
        if status.is_err() {
            child.kill()?;
            child.wait()?;
        }
        reader.join().map_err(|_| anyhow!("the reader panicked"))?;
        status
    }
}
