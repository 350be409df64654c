//! Accept queues, handshakes and drops beside packets: the kernel side of connections is attached too.

use std::collections::HashMap;

use net_latency_common::{CONNECTION_OPEN, ConnectionRecord, ListenerRecord};

use crate::{
    diagnosis::{Dropped, Listening},
    error::Failure,
    probes::connections::{Told, Which},
    request::{DiagnoseConfig, TracingConfig},
    run::connections::{Also, Tracing, lost},
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
    /// Attaches and begins, unless the filter asks for what connections don't have.
    ///
    /// # Errors
    /// If this kernel can't.
    pub(super) fn start(config: &DiagnoseConfig, tracing: &TracingConfig) -> Result<Option<Self>, Failure> {
        let also = Also { first_bytes: true, established: true, drops: true };
        let begun = Tracing::begin_beside(&config.filter, tracing.backend, also, config.quiet)?;
        Ok(begun.map(|tracing| Self { tracing, known: Listening::default(), listeners: HashMap::new() }))
    }

    /// Reads what waits. `established` sees each client's connection that has been established.
    ///
    /// # Errors
    /// If it can't be read.
    pub(super) fn read(&mut self, mut established: impl FnMut(&ConnectionRecord)) -> Result<(), Failure> {
        while let Some(told) = self.tracing.capture.oldest()? {
            match told {
                Told::Connection(record) if record.flags & CONNECTION_OPEN != 0 => established(&record),
                told => self.know(told),
            }
        }
        Ok(())
    }

    fn know(&mut self, told: Told) {
        match told {
            Told::Connection(record) => self.known.connection(&record),
            Told::Listener(record) if record.is_closed != 0 => {
                self.listeners.remove(&record.socket);
                self.known.listener(&record);
            }
            Told::Listener(record) => drop(self.listeners.insert(record.socket, record)),
        }
    }

    /// What those tell that were asked about. What ends meanwhile would count twice.
    fn take_answers(&mut self) -> Result<(), Failure> {
        while let Some(told) = self.tracing.capture.oldest()? {
            match told {
                Told::Connection(record) if record.flags & CONNECTION_OPEN == 0 => {}
                told => self.know(told),
            }
        }
        Ok(())
    }

    /// The queues at the end, when all that waits was read, whether they are of all connections, and what was dropped.
    ///
    /// # Errors
    /// If open connections can't be looked up.
    pub(super) fn finish(mut self) -> Result<(Listening, bool, Vec<Dropped>), Failure> {
        for which in [Which::Connections, Which::Listeners] {
            for sockets in self.tracing.sockets(which) {
                self.tracing.ask(&sockets)?;
                self.take_answers()?;
            }
        }
        self.listeners.values().for_each(|record| self.known.listener(record));
        let is_whole = lost(&self.tracing.counters()?) == 0;
        Ok((self.known, is_whole, self.tracing.drops()))
    }
}
