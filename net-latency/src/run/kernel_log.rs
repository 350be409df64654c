//! What the kernel side logs (`--debug`), on stderr. The same message may come by the hundred: it is told once, and then
//! counted.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use aya::Ebpf;
use aya_log::EbpfLogger;
use log::{Log, Metadata, Record};

use crate::message::{counted, tell};

/// How often a message is told that comes again and again.
const EVERY: Duration = Duration::from_secs(1);

/// The kernel side's log.
pub(crate) struct KernelLog {
    reader: EbpfLogger<Messages>,
    messages: Messages,
}

impl KernelLog {
    /// The log of that kernel side.
    ///
    /// # Errors
    /// If it can't be read.
    pub(super) fn open(ebpf: &mut Ebpf) -> Result<Self> {
        let messages = Messages::default();
        let reader = EbpfLogger::init_with_logger(ebpf, messages.clone());
        Ok(Self { reader: reader.context("cannot read the kernel side's log")?, messages })
    }

    /// Tells what has come, except for repeated messages that were told of less than a second ago.
    pub(crate) fn read(&mut self) {
        self.reader.flush();
        say(&self.messages.lock().take(Some(Instant::now())));
    }

    /// Prints the rest.
    pub(crate) fn finish(&mut self) {
        self.reader.flush();
        say(&self.messages.lock().take(None));
    }
}

fn say(lines: &[String]) {
    for line in lines {
        tell(format_args!("kernel side: {line}"));
    }
}

/// Where the reader leaves messages.
#[derive(Clone, Debug, Default)]
struct Messages(Arc<Mutex<Kinds>>);

impl Messages {
    fn lock(&self) -> MutexGuard<'_, Kinds> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Log for Messages {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        self.lock().add(record.args().to_string());
    }

    fn flush(&self) {}
}

/// The messages that there have been: few different ones, since the kernel side puts no figures in them.
#[derive(Debug, Default)]
struct Kinds(BTreeMap<String, Kind>);

#[derive(Debug, Default)]
struct Kind {
    /// When it was told the last time.
    told: Option<Instant>,
    /// How often it has come since.
    count: u64,
}

impl Kinds {
    fn add(&mut self, message: String) {
        self.0.entry(message).or_default().count += 1;
    }

    /// The lines to tell now; at the end, without a time, of all that has come.
    fn take(&mut self, now: Option<Instant>) -> Vec<String> {
        let mut lines = Vec::new();
        for (message, kind) in self.0.iter_mut().filter(|(_, kind)| kind.count > 0) {
            let is_first = kind.told.is_none();
            if is_first {
                lines.push(message.clone());
                kind.count -= 1;
            }
            let is_due = match (kind.told, now) {
                (Some(told), Some(now)) => now.duration_since(told) >= EVERY,
                (None, Some(_)) => false,
                (_, None) => true,
            };
            if is_due && kind.count > 0 {
                lines.push(format!("{message} … {}", counted(kind.count, "more time")));
                kind.count = 0;
            }
            if is_first || is_due {
                kind.told = now;
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_messages_are_counted() {
        let mut kinds = Kinds::default();
        let start = Instant::now();
        let mut at = |ms: Option<u64>, messages: &[(&str, usize)]| {
            for (message, count) in messages {
                (0..*count).for_each(|_| kinds.add((*message).to_owned()));
            }
            kinds.take(ms.map(|ms| start + Duration::from_millis(ms)))
        };
        assert_eq!(at(Some(0), &[("map full", 300), ("unread", 1)]), ["map full", "unread"]);
        assert_eq!(at(Some(40), &[("map full", 100)]), [""; 0], "less than a second ago");
        assert_eq!(at(Some(1000), &[("map full", 1)]), ["map full … 400 more times"]);
        assert_eq!(at(Some(1040), &[("map full", 5)]), [""; 0]);
        assert_eq!(at(Some(9000), &[("unread", 1)]), ["map full … 5 more times", "unread … 1 more time"]);
        assert_eq!(at(Some(20_000), &[]), [""; 0]);
        let end = at(None, &[("map full", 2), ("new", 2)]);
        assert_eq!(end, ["map full … 2 more times", "new", "new … 1 more time"]);
    }
}
