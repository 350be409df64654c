//! Connections that failed lately. The kernel side of connections is attached beside that of packets: a connection that was refused has
//! none.

use std::{collections::VecDeque, net::SocketAddr};

use net_latency_common::{COMM_LEN, ConnectionRecord};

use crate::{
    clock::{Clock, LazyClock},
    commands::connections::{
        fields::State,
        line::{duration_ns, outcome},
    },
    error::Failure,
    name::Name,
    packet::event::address,
    probes::connections::Told,
    request::{TopConfig, TracingConfig},
    run::connections::{Also, Tracing},
};

/// For how long one is shown, ns.
pub(super) const LATELY_NS: u64 = 10_000_000_000;
/// Most that are shown, the newest.
const MOST: usize = 1_024;

/// Those of the last ten seconds.
#[derive(Clone, Debug, Default)]
pub(super) struct Failed {
    /// In the order in which they were told.
    last: VecDeque<FailedConnection>,
}

/// One of them.
#[derive(Clone, Debug)]
pub(super) struct FailedConnection {
    /// When it was over, on the clock of the packets' stamps.
    at_ns: u64,
    pub(super) wall_ns: i64,
    /// 0 where the process is unknown.
    pub(super) pid: u32,
    pub(super) name: Option<Name<COMM_LEN>>,
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    pub(super) how: State,
    /// How long it had lasted, ns.
    pub(super) lasted_ns: Option<u64>,
}

impl Failed {
    /// Adds a connection that has ended, if it failed.
    pub(super) fn see(&mut self, record: &ConnectionRecord, clock: Clock) {
        let (how, _) = outcome(record);
        if !how.is_failure() {
            return;
        }
        if self.last.len() == MOST {
            self.last.pop_front();
        }
        self.last.push_back(FailedConnection {
            at_ns: record.at_ns,
            wall_ns: clock.to_utc_ns(record.at_ns),
            pid: record.pid,
            name: Name::of_kernel(&record.process),
            local: SocketAddr::new(address(&record.local, record.family), record.local_port),
            remote: SocketAddr::new(address(&record.remote, record.family), record.remote_port),
            how,
            lasted_ns: duration_ns(record),
        });
    }

    /// It is `now_ns`.
    pub(super) fn advance(&mut self, now_ns: u64) {
        self.last.retain(|one| one.at_ns.saturating_add(LATELY_NS) >= now_ns);
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &FailedConnection> {
        self.last.iter()
    }

    /// How many there are, in words; nothing if there are none.
    pub(super) fn count(&self) -> Option<String> {
        match self.last.len() {
            0 => None,
            MOST => Some(format!("{MOST} or more")),
            count => Some(count.to_string()),
        }
    }
}

/// What tells them.
pub(super) struct Watch(Tracing);

impl Watch {
    /// Attaches and begins; nothing where the filter leaves no connections.
    ///
    /// # Errors
    /// [`Failure::CannotTrace`] where this kernel can't.
    pub(super) fn start(config: &TopConfig, tracing: &TracingConfig) -> Result<Option<Self>, Failure> {
        let begun = Tracing::begin_beside(&config.filter, tracing.backend, Also::default(), config.quiet)?;
        Ok(begun.map(Self))
    }

    /// Reads what waits.
    ///
    /// # Errors
    /// If it can't be read.
    pub(super) fn read(&mut self, clock: &LazyClock, failed: &mut Failed) -> Result<(), Failure> {
        while let Some(told) = self.0.capture.oldest()? {
            if let Told::Connection(record) = told {
                failed.see(&record, **clock);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A connection to a port at which nothing listens, refused N ms after the start.
    pub(in crate::commands::top) fn refused(ms: u64) -> ConnectionRecord {
        let mut record = ConnectionRecord {
            at_ns: ms * 1_000_000,
            started_ns: ms * 1_000_000 - 340_000,
            pid: 77,
            process: *b"curl\0\0\0\0\0\0\0\0\0\0\0\0",
            family: 2,
            state: 2,
            error: libc::ECONNREFUSED as u32,
            segs_out: 1,
            local_port: 50_312,
            remote_port: 8_080,
            ..ConnectionRecord::default()
        };
        record.local[..4].copy_from_slice(&[192, 0, 2, 1]);
        record.remote[..4].copy_from_slice(&[192, 0, 2, 9]);
        record
    }

    #[test]
    fn only_failed_ones_are_kept_and_only_for_ten_seconds() {
        let mut failed = Failed::default();
        let clock = Clock::at(0);
        for ms in [1_000, 6_000] {
            failed.see(&refused(ms), clock);
            // One that was closed in order.
            failed.see(&ConnectionRecord { state: 9, error: 0, ..refused(ms) }, clock);
        }
        assert_eq!(failed.count().as_deref(), Some("2"));
        failed.advance(12_000_000_000);
        let left: Vec<_> = failed.all().map(|one| (one.at_ns, one.how.name(), one.lasted_ns)).collect();
        assert_eq!(left, [(6_000_000_000, "refused", Some(340_000))]);
        failed.advance(17_000_000_000);
        assert_eq!(failed.count(), None);
        for _ in 0..MOST + 9 {
            failed.see(&refused(20_000), clock);
        }
        assert_eq!((failed.all().count(), failed.count().as_deref()), (MOST, Some("1024 or more")));
    }
}
