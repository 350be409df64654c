//! Where finished packets come from: the [ring buffer](ring), or recorded [logs](log). A view can't tell them apart.

mod buffer;
pub(crate) mod log;
pub(crate) mod order;
pub(crate) mod ring;

use crate::{error::Failure, packet::event::Event};

/// Finished packets in order of completion, each with what only the user side knows: wall-clock time and, where they are
/// requested, the device's name and the process' number in its own PID namespace.
pub(crate) trait RecordSource {
    /// How far it has come, in ns on the clock of its records' stamps. Never goes back.
    fn now_ns(&self) -> u64;

    /// Hands the next packet to `take`; `None` if none is ready.
    ///
    /// # Errors
    /// If the source can't be read.
    fn next<T>(&mut self, take: impl FnOnce(&Event<'_>) -> T) -> Result<Option<T>, Failure>;
}
