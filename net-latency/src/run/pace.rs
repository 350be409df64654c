//! How a view's loop goes: how long it waits, and for what.

use std::{
    future::{Future, pending},
    time::Duration,
};

use anyhow::Context as _;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, interval_at};

use crate::{
    error::Failure,
    message::{counted, tell},
    output::{Sink, SinkError},
};

/// How often the ring buffer is read when it doesn't fill quickly. Lines show within 100 ms, though the newest are held
/// back until the next read.
pub(crate) const TICK: Duration = Duration::from_millis(40);
/// Ticks between looks at what changes slowly: losses, names of devices.
pub(crate) const TICKS_PER_SECOND: u32 = 25;
/// Records read before signals and keys get their turn.
pub(crate) const BATCH: usize = 16_384;
/// How long a reader of our output may take nothing before we go back to our signals.
pub(crate) const PATIENCE: Duration = Duration::from_millis(20);
/// How long at the very end, for the rest: a slow reader gets all of it, and one that takes nothing does not keep us. With the time for
/// standard error, and detaching, it is less than a second.
pub(crate) const LAST_PATIENCE: Duration = Duration::from_millis(500);

/// Runs a view to its end, on this thread.
pub(crate) fn block_on<T>(view: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(view)
}

/// Comes at once, and then every `period`; where one comes late, so do the next.
pub(crate) fn ticks(period: Duration) -> Interval {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Comes after each period, and leaves out those that have passed; never without one.
pub(crate) struct Every(Option<Interval>);

impl Every {
    pub(crate) fn new(period: Option<Duration>) -> Self {
        Self(period.map(|period| {
            let mut every = interval_at(Instant::now() + period, period);
            every.set_missed_tick_behavior(MissedTickBehavior::Skip);
            every
        }))
    }

    /// Safe to call again after being dropped.
    pub(crate) async fn next(&mut self) {
        match &mut self.0 {
            Some(every) => drop(every.tick().await),
            None => pending().await,
        }
    }
}

/// Why a run ends well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// A signal, the time or the number of lines requested, or the processes are over.
    Done,
    /// The output has no reader any more.
    Closed,
}

impl End {
    /// How a run ends whose output can't be written any more.
    pub(crate) fn of(error: SinkError) -> Result<Self, Failure> {
        match error {
            SinkError::Closed => Ok(Self::Closed),
            SinkError::Failed { ref source, .. } => {
                let reason = source.kind();
                Err(Failure::of_output(reason, error.into()))
            }
        }
    }
}

/// How a run ends, well or not: what stops a loop that reads and writes.
pub(crate) type Ended = Result<End, Failure>;

/// Writes what waits, as far as its reader takes it; whether that is all.
pub(crate) fn flush(sink: &mut Sink, patience: Duration) -> Result<bool, Ended> {
    let flushed = sink.flush(patience);
    warn(sink);
    flushed.map_err(End::of)
}

/// Opens the output anew, for log rotation.
pub(crate) fn reopen(sink: &mut Sink) -> Result<(), Ended> {
    let reopened = sink.reopen(PATIENCE);
    warn(sink);
    reopened.map_err(End::of)
}

/// Tells standard error, even a quiet one, that the output is not where it should be.
fn warn(sink: &mut Sink) {
    if let Some(warning) = sink.take_warning() {
        tell(warning);
    }
}

/// Writes the rest at the end, as far as its reader takes it, and says how many lines it did not take.
pub(crate) fn flush_last(sink: &mut Sink) -> Ended {
    match sink.flush(LAST_PATIENCE) {
        Ok(true) => Ok(End::Done),
        Ok(false) => {
            let lines = counted(sink.waiting_lines(), "line");
            tell(format_args!("{lines} not written: the output was not read"));
            Ok(End::Done)
        }
        Err(error) => End::of(error),
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    #[test]
    fn each_period_comes_after_its_time_and_none_without() {
        const PERIOD: Duration = Duration::from_millis(30);
        let outcome = block_on(async {
            assert!(timeout(PERIOD, Every::new(None).next()).await.is_err());
            let (begun, mut every) = (Instant::now(), Every::new(Some(PERIOD)));
            every.next().await;
            assert!(begun.elapsed() >= PERIOD);
            every.next().await;
            assert!(begun.elapsed() >= PERIOD * 2);
            Ok(())
        });
        assert!(outcome.is_ok());
    }
}
