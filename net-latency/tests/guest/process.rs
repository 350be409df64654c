//! Child processes whose output is followed line by line, every wait bounded.

use std::{
    io::{BufRead as _, BufReader, Read},
    process::{Child, Command, ExitStatus},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use nix::sched::{CloneFlags, unshare};

use crate::net::on_thread;

/// Long enough for anything that ends at all on an emulated machine: `check` took more than a minute beside four others, on
/// PREEMPT_RT, where each of its kprobes takes a second to go.
pub(crate) const PATIENCE: Duration = Duration::from_secs(240);

/// How often a condition without a notification is looked at again.
const POLL: Duration = Duration::from_millis(20);

/// The lines of a child's pipe, read by a thread of its own so that waiting can be bounded.
pub(crate) struct Lines(Receiver<String>);

impl Lines {
    /// Follows `pipe` to its end.
    pub(crate) fn follow(pipe: impl Read + Send + 'static) -> Self {
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(pipe).split(b'\n') {
                let Ok(line) = line else { break };
                if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    break;
                }
            }
        });
        Self(receiver)
    }

    /// The next line, or `None` when the pipe has ended.
    pub(crate) fn next(&self, patience: Duration) -> Result<Option<String>> {
        match self.0.recv_timeout(patience) {
            Ok(line) => Ok(Some(line)),
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => bail!("no line within {patience:?}"),
        }
    }

    /// All that remains, when the writer has ended.
    pub(crate) fn rest(&self) -> Result<Vec<String>> {
        let mut rest = Vec::new();
        while let Some(line) = self.next(PATIENCE)? {
            rest.push(line);
        }
        Ok(rest)
    }
}

/// Starts a process as the first of a new PID namespace.
pub(crate) fn spawn_isolated(command: &mut Command) -> Result<Child> {
    // It counts for children of the calling thread only, which can't have threads any more.
    on_thread(|| {
        unshare(CloneFlags::CLONE_NEWPID).context("unshare(CLONE_NEWPID)")?;
        Ok(command.spawn()?)
    })
}

/// Waits for the child's end.
pub(crate) fn wait(child: &mut Child, patience: Duration) -> Result<ExitStatus> {
    let mut ended = None;
    until(patience, || {
        ended = child.try_wait()?;
        Ok(ended.is_some())
    })
    .with_context(|| format!("process {} does not end", child.id()))?;
    ended.context("a process ended without a status")
}

/// Waits until `condition` holds.
pub(crate) fn until(patience: Duration, mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + patience;
    while !condition()? {
        if Instant::now() > deadline {
            bail!("still not so after {patience:?}");
        }
        thread::sleep(POLL);
    }
    Ok(())
}
