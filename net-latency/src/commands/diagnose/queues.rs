//! Accept queues beside packets: the kernel side of connections is attached too.

use std::collections::HashMap;

use net_latency_common::{CONNECTION_OPEN, ListenerRecord};

use crate::{
    diagnosis::Listening,
    error::Failure,
    probes::connections::{Told, Which},
    request::{DiagnoseConfig, TracingConfig},
    run::connections::{Tracing, lost},
};

/// Their kernel side, and what it told.
pub(super) struct Queues {
    tracing: Tracing,
    /// Queues and connections that have ended.
    known: Listening,
    /// What the sockets that listen have told last.
    listeners: HashMap<u64, ListenerRecord>,
}

impl Queues {
    /// Attaches and begins, unless the filter asks for what connections don't have. Nothing, which is said, where this kernel can't.
    pub(super) fn start(config: &DiagnoseConfig, tracing: &TracingConfig) -> Option<Self> {
        let what = "accept queues are not looked at";
        let tracing = Tracing::begin_beside(&config.filter, tracing.backend, true, config.quiet, what)?;
        Some(Self { tracing, known: Listening::default(), listeners: HashMap::new() })
    }

    /// Reads what waits.
    ///
    /// # Errors
    /// If it can't be read.
    pub(super) fn read(&mut self) -> Result<(), Failure> {
        self.take(false)
    }

    fn take(&mut self, is_end: bool) -> Result<(), Failure> {
        while let Some(told) = self.tracing.capture.oldest()? {
            match told {
                // What ends while it is asked about for the last time would count twice.
                Told::Connection(record) if is_end == (record.flags & CONNECTION_OPEN != 0) => {
                    self.known.connection(&record);
                }
                Told::Connection(_) => {}
                Told::Listener(record) if record.is_closed != 0 => {
                    self.listeners.remove(&record.socket);
                    self.known.listener(&record);
                }
                Told::Listener(record) => drop(self.listeners.insert(record.socket, record)),
            }
        }
        Ok(())
    }

    /// The queues at the end, and whether they are of all connections.
    ///
    /// # Errors
    /// If open connections can't be looked up.
    pub(super) fn finish(mut self) -> Result<(Listening, bool), Failure> {
        self.take(false)?;
        for which in [Which::Connections, Which::Listeners] {
            for sockets in self.tracing.sockets(which) {
                self.tracing.ask(&sockets)?;
                self.take(true)?;
            }
        }
        self.listeners.values().for_each(|record| self.known.listener(record));
        let is_whole = lost(&self.tracing.counters()?) == 0;
        Ok((self.known, is_whole))
    }
}
