//! The terminal: taken over at the start, given back at any end, and written to without ever waiting for it.

use std::{
    cell::RefCell,
    env,
    ffi::OsStr,
    fs::{File, OpenOptions},
    io::{self, ErrorKind, IsTerminal as _, Write},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::fs::OpenOptionsExt as _,
    },
    panic,
    rc::Rc,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use anyhow::Context as _;
use ratatui_core::{
    buffer::Buffer,
    layout::Rect,
    terminal::{Terminal, TerminalOptions, Viewport},
};
use ratatui_crossterm::{
    CrosstermBackend,
    crossterm::{
        cursor::{Hide, Show},
        execute,
        terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode},
    },
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    termios::tcgetwinsize,
};

use super::paint::Look;
use crate::{error::Failure, output::colour_wanted};

/// What a terminal has that doesn't know its size (serial lines).
const USUAL_SIZE: (u16, u16) = (80, 24);
/// How long a terminal that takes nothing may keep us from ending.
const PATIENCE: Duration = Duration::from_secs(1);

/// Whether the terminal is ours, so that it is given back once, by the first that does.
static IS_OURS: AtomicBool = AtomicBool::new(false);

/// What keys come from: standard input or, where that is a log, the terminal that controls this process.
///
/// # Errors
/// A usage failure if there is no such terminal.
pub(super) fn keyboard(is_stdin_a_log: bool) -> Result<OwnedFd, Failure> {
    if !is_stdin_a_log {
        return Ok(io::stdin().as_fd().try_clone_to_owned().context("cannot wait for the keyboard")?);
    }
    let terminal = File::open("/dev/tty").map_err(|error| {
        Failure::Usage(format!(
            "cannot read the keyboard from /dev/tty ({error}), while the log comes from standard input; write the log to a file and name that"
        ))
    })?;
    Ok(terminal.into())
}

/// What the terminal can show.
///
/// # Errors
/// A usage failure if there is no terminal, or one that can't show a table.
pub(super) fn look(keyboard: &OwnedFd) -> Result<Look, Failure> {
    if !(keyboard.is_terminal() && io::stdout().is_terminal()) {
        return Err(Failure::Usage(
            "top needs a terminal as its input and output; net-latency without top writes lines to a pipe or a file"
                .to_owned(),
        ));
    }
    let term = env::var_os("TERM");
    if term.as_deref() == Some(OsStr::new("dumb")) {
        return Err(Failure::Usage(
            "top can't draw on a terminal of type dumb; set TERM to the terminal's type, or use net-latency without top"
                .to_owned(),
        ));
    }
    let is_colour = colour_wanted(true, env::var_os("NO_COLOR").as_deref(), term.as_deref());
    Ok(Look { is_ascii: !is_utf8(|name| env::var(name).ok()), is_colour })
}

/// Whether the locale's characters are UTF-8: the first of the variables that is set says so.
fn is_utf8(variable: impl Fn(&str) -> Option<String>) -> bool {
    let locale =
        ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(variable).find(|value| !value.is_empty());
    locale.is_some_and(|locale| {
        let locale = locale.to_ascii_lowercase();
        locale.contains("utf-8") || locale.contains("utf8")
    })
}

/// The terminal while it is ours. Given back when dropped, and before a panic is told.
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<Output>>,
    output: Output,
    size: (u16, u16),
}

impl Screen {
    /// Takes the terminal over.
    ///
    /// # Errors
    /// If it can't be written to.
    pub(super) fn enter() -> Result<Self, Failure> {
        let output = Output::open().context("cannot open the terminal")?;
        let size = size();
        let viewport = Viewport::Fixed(Rect::new(0, 0, size.0, size.1));
        let backend = CrosstermBackend::new(output.clone());
        let terminal = Terminal::with_options(backend, TerminalOptions { viewport })
            .context("cannot write to the terminal")?;
        give_back_on_panic();
        let mut screen = Self { terminal, output, size };
        screen.take().context("cannot set the terminal up")?;
        Ok(screen)
    }

    fn take(&mut self) -> io::Result<()> {
        IS_OURS.store(true, Ordering::SeqCst);
        enable_raw_mode()?;
        execute!(self.output, EnterAlternateScreen, Hide)
    }

    /// After the process was stopped: programs that ran meanwhile may have left their own settings.
    pub(super) fn retake(&mut self) -> io::Result<()> {
        disable_raw_mode()?;
        self.take()?;
        self.terminal.clear()
    }

    /// The height of the terminal.
    pub(super) fn height(&self) -> u16 {
        self.size.1
    }

    /// The width of the terminal.
    pub(super) fn width(&self) -> u16 {
        self.size.0
    }

    /// Gives the terminal back. Later output goes nowhere: the terminal may go at any moment, and ratatui, whose end shows the cursor
    /// again, prints a failure to standard error, which is the same terminal, and panics.
    fn give_back(&mut self) {
        if IS_OURS.swap(false, Ordering::SeqCst) {
            // A terminal that is gone needs nothing back.
            let _ =
                execute!(self.output, LeaveAlternateScreen, Show).and_then(|()| self.output.finish(PATIENCE));
            let _ = disable_raw_mode();
        }
        self.output.close();
    }

    /// Takes up the terminal's current size, and draws unless it still has to take the last frame.
    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut Buffer)) -> io::Result<()> {
        self.output.flush()?;
        if !self.output.is_idle() {
            return Ok(());
        }
        let now = size();
        if now != self.size {
            self.size = now;
            self.terminal.resize(Rect::new(0, 0, now.0, now.1))?;
        }
        self.terminal.draw(|frame| draw(frame.buffer_mut()))?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// A panic's message must come to a terminal that shows it.
fn give_back_on_panic() {
    let tell = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if IS_OURS.swap(false, Ordering::SeqCst) {
            let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
            let _ = disable_raw_mode();
        }
        tell(info);
    }));
}

fn size() -> (u16, u16) {
    match tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col, size.ws_row),
        _ => USUAL_SIZE,
    }
}

/// Writes what the terminal takes, and keeps the rest: a connection that hangs must not keep us from our signals.
#[derive(Clone)]
struct Output(Rc<RefCell<Outflow>>);

struct Outflow {
    file: File,
    pending: Vec<u8>,
    /// Writing has failed, which was told, or is over.
    is_closed: bool,
}

impl Output {
    fn open() -> io::Result<Self> {
        // Opened anew: not to wait is a property of the open file, and ours is also the shell's.
        let opened = OpenOptions::new()
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
            .open("/proc/self/fd/1");
        let file = match opened {
            Ok(file) => file,
            // The terminal may lie outside what this process can open (containers).
            Err(_) => io::stdout().as_fd().try_clone_to_owned()?.into(),
        };
        Ok(Self(Rc::new(RefCell::new(Outflow { file, pending: Vec::new(), is_closed: false }))))
    }

    /// Whether everything has been taken.
    fn is_idle(&self) -> bool {
        self.0.borrow().pending.is_empty()
    }

    /// Drops all output from now on.
    fn close(&self) {
        self.0.borrow_mut().is_closed = true;
    }

    /// Writes the rest, as long as the terminal takes something within `patience`.
    fn finish(&mut self, patience: Duration) -> io::Result<()> {
        let timeout = Timespec::try_from(patience).map_err(io::Error::other)?;
        loop {
            self.flush()?;
            if self.is_idle() {
                return Ok(());
            }
            let outflow = self.0.borrow();
            if poll(&mut [PollFd::new(&outflow.file, PollFlags::OUT)], Some(&timeout))? == 0 {
                return Err(ErrorKind::TimedOut.into());
            }
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().pending.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    /// Writes as much as the terminal takes now. Tells once that it has gone.
    fn flush(&mut self) -> io::Result<()> {
        let Outflow { file, pending, is_closed } = &mut *self.0.borrow_mut();
        if *is_closed {
            pending.clear();
            return Ok(());
        }
        let mut written = 0;
        let outcome = loop {
            if written == pending.len() {
                break Ok(());
            }
            match file.write(&pending[written..]) {
                Ok(0) => break Err(ErrorKind::WriteZero.into()),
                Ok(count) => written += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        pending.drain(..written);
        *is_closed = outcome.is_err();
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_locale_variable_that_is_set_counts() {
        let is_utf8 = |set: &[(&str, &str)]| {
            is_utf8(|name| set.iter().find(|(own, _)| *own == name).map(|(_, value)| (*value).to_owned()))
        };
        assert!(is_utf8(&[("LANG", "en_US.UTF-8")]));
        assert!(is_utf8(&[("LC_ALL", ""), ("LC_CTYPE", "C.utf8"), ("LANG", "C")]));
        assert!(!is_utf8(&[("LC_ALL", "C"), ("LANG", "en_US.UTF-8")]));
        assert!(!is_utf8(&[("LANG", "de_DE.ISO-8859-1")]));
        assert!(!is_utf8(&[]));
    }

    #[test]
    fn a_terminal_that_takes_nothing_does_not_stop_us() {
        let (reader, writer) = nix::unistd::pipe2(nix::fcntl::OFlag::O_NONBLOCK).expect("a pipe");
        let outflow = Outflow { file: writer.into(), pending: Vec::new(), is_closed: false };
        let mut output = Output(Rc::new(RefCell::new(outflow)));
        // More than a pipe holds.
        let bytes: Vec<u8> = (0..200_000_u32).map(|n| n as u8).collect();
        output.write_all(&bytes).expect("kept");
        output.flush().expect("as much as is taken");
        assert!(!output.is_idle());
        assert_eq!(
            output.finish(Duration::from_millis(1)).expect_err("it has no reader").kind(),
            ErrorKind::TimedOut
        );
        let mut got = Vec::new();
        while !output.is_idle() {
            let mut buffer = [0; 65_536];
            let read = rustix::io::read(&reader, &mut buffer).expect("there is something");
            got.extend_from_slice(&buffer[..read]);
            output.flush().expect("as much as is taken");
        }
        let rest = bytes.len() - got.len();
        let mut buffer = vec![0; rest + 1];
        let read = rustix::io::read(&reader, &mut buffer).expect("there is something");
        got.extend_from_slice(&buffer[..read]);
        assert_eq!(got, bytes);
    }
    #[test]
    fn a_terminal_that_has_gone_is_told_of_once() {
        let (reader, writer) = nix::unistd::pipe().expect("a pipe");
        let outflow = Outflow { file: writer.into(), pending: Vec::new(), is_closed: false };
        let mut output = Output(Rc::new(RefCell::new(outflow)));
        drop(reader);
        output.write_all(b"frame").expect("kept");
        assert_eq!(output.flush().expect_err("it has no reader").kind(), ErrorKind::BrokenPipe);
        output.write_all(b"end").expect("dropped");
        output.flush().expect("told before");
        assert!(output.is_idle());
    }

    #[test]
    fn a_terminal_that_goes_after_it_was_given_back_is_no_failure() {
        let (reader, writer) = nix::unistd::pipe().expect("a pipe");
        let outflow = Outflow { file: writer.into(), pending: Vec::new(), is_closed: false };
        let output = Output(Rc::new(RefCell::new(outflow)));
        let viewport = Viewport::Fixed(Rect::new(0, 0, 80, 24));
        let backend = CrosstermBackend::new(output.clone());
        let terminal = Terminal::with_options(backend, TerminalOptions { viewport }).expect("it is there");
        let mut screen = Screen { terminal, output, size: (80, 24) };
        // Hides the cursor, so that ratatui's end shows it again.
        screen.terminal.draw(|_| ()).expect("it is there");
        IS_OURS.store(true, Ordering::SeqCst);
        screen.give_back();
        let mut given = [0; 4096];
        let length = rustix::io::read(&reader, &mut given).expect("there is something");
        assert!(String::from_utf8_lossy(&given[..length]).ends_with("\x1b[?1049l\x1b[?25h"));
        drop(reader);
        // As ratatui's end does it, which panics ("failed printing to stderr") if it can't tell of a failure.
        screen.terminal.show_cursor().expect("nothing is written to a terminal that was given back");
    }
}
