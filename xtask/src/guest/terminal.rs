//! This side's terminal while a guest uses it.

use std::io::{IsTerminal as _, Stdin, stdin, stdout};

use anyhow::{Context as _, Result};
use rustix::termios::{OptionalActions, OutputModes, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// Puts the terminal back as it was when dropped.
pub(crate) struct Raw {
    stdin: Stdin,
    before: Termios,
}

impl Raw {
    /// Hands every key to the guest, Ctrl-C included. `None` where there is no terminal.
    pub(crate) fn enter() -> Result<Option<Self>> {
        let stdin = stdin();
        if !stdin.is_terminal() {
            return Ok(None);
        }
        let before = tcgetattr(&stdin).context("can't read the terminal's settings")?;
        let mut raw = before.clone();
        raw.make_raw();
        // xtask's own lines end with a bare newline.
        raw.output_modes |= OutputModes::OPOST;
        tcsetattr(&stdin, OptionalActions::Now, &raw).context("can't change the terminal's settings")?;
        Ok(Some(Self { stdin, before }))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        if let Err(error) = tcsetattr(&self.stdin, OptionalActions::Now, &self.before) {
            eprintln!("xtask: can't restore the terminal ({error}): enter `reset`");
        }
    }
}

/// Rows and columns, if standard output is a terminal.
pub(crate) fn size() -> Option<(u16, u16)> {
    let stdout = stdout();
    let size = stdout.is_terminal().then(|| tcgetwinsize(&stdout).ok())??;
    Some((size.ws_row, size.ws_col))
}
