//! Tells a terminal what the tool waits for, as soon as that takes long: no user should look at a blank screen.

use std::{
    io::{self, IsTerminal as _, Write},
    mem,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use crate::message::Drawing;

/// What takes less than this needs no word.
const PATIENCE: Duration = Duration::from_millis(500);
/// How often the words follow what happens.
const EVERY: Duration = Duration::from_millis(100);
const ERASE_LINE: &str = "\r\x1b[K";

/// Something that may take long. It is over when this is dropped, which takes the words away again.
pub(crate) struct Notice {
    text: Arc<Mutex<String>>,
    /// `None` if it is not to be shown.
    shown: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Notice {
    /// Tells a terminal on standard error, unless `is_quiet`. Logs and pipes are not told.
    pub(crate) fn new(text: impl Into<String>, is_quiet: bool) -> Self {
        let text = Arc::new(Mutex::new(text.into()));
        let is_told = !is_quiet && io::stderr().is_terminal();
        let shown = is_told.then(|| {
            let (over, is_over) = channel();
            let text = Arc::clone(&text);
            let show = move || show(&text, &is_over, [PATIENCE, EVERY], &mut Drawing);
            // Where no thread can be made there is no word.
            Some((over, thread::Builder::new().spawn(show).ok()?))
        });
        Self { text, shown: shown.flatten() }
    }

    /// From now on it is this.
    pub(crate) fn change(&self, text: impl FnOnce() -> String) {
        if self.shown.is_some() {
            *self.text.lock().unwrap_or_else(PoisonError::into_inner) = text();
        }
    }
}

impl Drop for Notice {
    fn drop(&mut self) {
        if let Some((over, thread)) = self.shown.take() {
            drop(over);
            // It doesn't panic, and there would be nothing left to do.
            let _ = thread.join();
        }
    }
}

/// Shows the text, the first time after the first of `waits` and then whenever it has changed after the second, until
/// the sender has gone.
fn show(text: &Mutex<String>, is_over: &Receiver<()>, waits: [Duration; 2], out: &mut impl Write) {
    let [mut wait, every] = waits;
    let mut shown = String::new();
    while is_over.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
        wait = every;
        let now = text.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if now != shown {
            // A closed stderr is no reason not to go on.
            let line = format!("{ERASE_LINE}net-latency: {now}");
            let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
            shown = now;
        }
    }
    if !mem::take(&mut shown).is_empty() {
        let _ = write!(out, "{ERASE_LINE}").and_then(|()| out.flush());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A terminal for a wait that is over once it has been shown a number of times.
    struct Screen {
        written: String,
        texts: Vec<&'static str>,
        text: Arc<Mutex<String>>,
        over: Option<Sender<()>>,
    }

    impl Write for Screen {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.written += std::str::from_utf8(bytes).expect("text");
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            match self.texts.pop() {
                Some(next) => *self.text.lock().expect("no holder of the lock panics") = next.to_owned(),
                None => drop(self.over.take()),
            }
            Ok(())
        }
    }

    #[test]
    fn what_takes_long_is_shown_as_it_changes_and_erased() {
        let (over, is_over) = channel();
        let text = Arc::new(Mutex::new("attaching 1 of 3".to_owned()));
        let mut screen = Screen {
            written: String::new(),
            texts: vec!["attaching 3 of 3", "attaching 2 of 3"],
            text: Arc::clone(&text),
            over: Some(over),
        };
        show(&text, &is_over, [Duration::from_millis(1); 2], &mut screen);
        let line = |number| format!("\r\x1b[Knet-latency: attaching {number} of 3");
        assert_eq!(screen.written, format!("{}{}{}\r\x1b[K", line(1), line(2), line(3)));
    }

    #[test]
    fn what_is_over_at_once_is_not_mentioned() {
        let (over, is_over) = channel();
        drop(over);
        let mut written = Vec::new();
        show(&Mutex::new("attaching".to_owned()), &is_over, [Duration::from_secs(60); 2], &mut written);
        assert_eq!(written, b"");
    }
}
