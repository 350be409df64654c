//! Connections beside packets: their own kernel side is attached too, and what it tells becomes metrics.

use std::time::Instant;

use net_latency_common::{CONNECTION_OPEN, ConnectionRecord, MAX_CONNECTIONS};

use crate::{
    commands::connections::{
        fields::{Role, State},
        line,
    },
    error::Failure,
    export::{
        connections::{Connections, Ended},
        model::MetricFamily,
    },
    kernel::ports,
    probes::connections::{Told, Which},
    request::ExportConfig,
    run::connections::{Also, Tracing},
};

/// What the kernel side tells of connections.
pub(super) struct Followed {
    /// It.
    pub(super) tracing: Tracing,
    counted: Connections,
}

impl Followed {
    /// Attaches.
    ///
    /// # Errors
    /// [`Failure::CannotTrace`] with the remedy.
    pub(super) fn start(config: &ExportConfig) -> Result<Self, Failure> {
        let results = State::ALL.iter().map(|(_, word)| *word).filter(|word| *word != State::Open.name());
        Ok(Self {
            tracing: Tracing::start_beside(
                &config.filter,
                config.backend,
                MAX_CONNECTIONS,
                Also::default(),
                config.quiet,
            )?,
            counted: Connections::new(config.series, ports::ephemeral(), results),
        })
    }

    /// Reads what waits.
    ///
    /// # Errors
    /// If it can't be read.
    pub(super) fn read(&mut self) -> Result<(), Failure> {
        let now = Instant::now();
        while let Some(told) = self.tracing.capture.oldest()? {
            match told {
                Told::Connection(record) if record.flags & CONNECTION_OPEN == 0 => {
                    self.counted.end(&ended(&record));
                }
                Told::Connection(_) => {}
                Told::Listener(record) => self.counted.listener(&record, now),
            }
        }
        Ok(())
    }

    /// Asks all sockets that listen.
    ///
    /// # Errors
    /// If that can't be done, or read.
    pub(super) fn look(&mut self) -> Result<(), Failure> {
        let there = self.tracing.sockets(Which::Listeners);
        self.read()?;
        self.counted.begin_look(&there.iter().flatten().copied().collect());
        for sockets in there {
            self.tracing.ask(&sockets)?;
            self.read()?;
        }
        self.counted.end_look(Instant::now());
        Ok(())
    }

    /// The metrics.
    ///
    /// # Errors
    /// If the losses can't be read.
    pub(super) fn families(&self) -> Result<Vec<MetricFamily>, Failure> {
        Ok(self.counted.families(&self.tracing.counters()?, self.tracing.missed()))
    }
}

fn ended(record: &ConnectionRecord) -> Ended {
    let role = match line::role(record) {
        Some(Role::Client) => 0,
        Some(Role::Server) => 1,
        None => 2,
    };
    Ended {
        role,
        result: line::outcome(record).0.name(),
        handshake_ns: line::handshake_ns(record),
        accept_ns: line::accept_ns(record),
    }
}
