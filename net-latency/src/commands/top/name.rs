//! Names of processes.

use net_latency_common::COMM_LEN;

use crate::packet::event::Event;

/// The name of a process, of any bytes, or nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Name {
    bytes: [u8; COMM_LEN],
    len: usize,
}

impl Name {
    /// As the kernel has it.
    pub(super) fn of_task(bytes: &[u8; COMM_LEN]) -> Self {
        Self { bytes: *bytes, len: bytes.iter().position(|byte| *byte == 0).unwrap_or(COMM_LEN) }
    }

    /// The newest name of the process: it may change (exec). In a log that lacks it, the first thread's is the process's, and
    /// another's is better than none.
    pub(super) fn see(&mut self, event: &Event<'_>) {
        let is_process = event.process().is_some() || event.pid() == event.tid();
        if self.len > 0 && !is_process {
            return;
        }
        if let Some(name) = event.process().or(event.comm()) {
            self.bytes[..name.len()].copy_from_slice(name);
            self.len = name.len();
        }
    }

    pub(super) fn bytes(&self) -> Option<&[u8]> {
        (self.len > 0).then(|| &self.bytes[..self.len])
    }
}
