//! How far reading has come, told on standard error while it takes long.

use std::cell::Cell;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use crate::message::Drawing;

const WIDTH: usize = 30;
const PERIOD: Duration = Duration::from_millis(200);
/// Logs that are read in less time need no bar.
const PATIENCE: Duration = Duration::from_millis(600);
/// Looking at the clock for each chunk of a packed file would cost more than the chunk.
const STEP: u64 = 1 << 20;
const ERASE_LINE: &str = "\r\x1b[K";

/// A bar on a terminal, which disappears with its owner.
#[derive(Debug)]
pub(super) struct Progress {
    /// Bytes of all files; `None` shows nothing.
    total: Option<u64>,
    read: Cell<u64>,
    looked_at: Cell<u64>,
    next: Cell<Instant>,
    drawn: Cell<bool>,
}

impl Progress {
    /// A bar for `total` bytes, if standard error is a terminal and `quiet` does not forbid it.
    pub(super) fn new(total: u64, quiet: bool) -> Self {
        let shown = !quiet && total > 0 && io::stderr().is_terminal();
        Self {
            total: shown.then_some(total),
            read: Cell::new(0),
            looked_at: Cell::new(0),
            next: Cell::new(Instant::now() + PATIENCE),
            drawn: Cell::new(false),
        }
    }

    /// Counts bytes that were read.
    pub(super) fn advance(&self, bytes: usize) {
        let read = self.read.get() + bytes as u64;
        self.read.set(read);
        let Some(total) = self.total else { return };
        if read - self.looked_at.get() < STEP {
            return;
        }
        self.looked_at.set(read);
        let now = Instant::now();
        if now >= self.next.get() {
            self.next.set(now + PERIOD);
            self.drawn.set(true);
            // If the terminal has gone, there is no reader to tell.
            let _ = Drawing.write_all(format!("{ERASE_LINE}{}", bar(read, total)).as_bytes());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.drawn.get() {
            let _ = Drawing.write_all(ERASE_LINE.as_bytes());
        }
    }
}

/// A file may grow while it is read, and what comes from standard input has no size.
fn bar(read: u64, total: u64) -> String {
    let done = read.min(total);
    let part = |of: u64| u64::try_from(u128::from(done) * u128::from(of) / u128::from(total)).unwrap_or(of);
    let filled = usize::try_from(part(WIDTH as u64)).unwrap_or(WIDTH);
    format!("reading [{:<WIDTH$}] {:>3} % of {} MiB", "#".repeat(filled), part(100), total >> 20)
}

#[cfg(test)]
mod tests {
    use super::bar;

    #[test]
    fn the_bar_is_as_long_as_what_was_read() {
        assert_eq!(bar(0, 10 << 20), "reading [                              ]   0 % of 10 MiB");
        assert_eq!(bar(5 << 20, 10 << 20), "reading [###############               ]  50 % of 10 MiB");
        assert_eq!(bar(11 << 20, 10 << 20), "reading [##############################] 100 % of 10 MiB");
    }
}
