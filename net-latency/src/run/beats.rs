//! What all views' loops wait for: their end, records, and time.

use std::{future::pending, io, os::fd::OwnedFd, pin::Pin, time::Duration};

use anyhow::Context as _;
use tokio::{
    io::unix::AsyncFd,
    time::{Interval, Sleep, sleep},
};

use super::{
    ends::{Selected, Signals, readable},
    pace::{TICKS_PER_SECOND, ticks},
};
use crate::error::Failure;

/// What there is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beat {
    /// To end: a signal, the time, or the last of the processes and cgroups that were requested.
    Over,
    /// To read: the ring buffer is filling.
    Filled,
    /// A period has passed, and whether it is the last of [`TICKS_PER_SECOND`].
    Tick { is_second: bool },
}

/// What ends a run from outside.
pub(crate) type Enders<'a> = (&'a mut Signals, &'a mut Selected);

/// A view's beats.
pub(crate) struct Beats<'a> {
    enders: Option<Enders<'a>>,
    over: Option<Pin<Box<Sleep>>>,
    filling: Option<AsyncFd<OwnedFd>>,
    tick: Interval,
    ticks: u32,
}

impl<'a> Beats<'a> {
    /// Those of a run that lasts for `duration`, unless one of `enders` ends it; it reads the ring buffer that is given.
    ///
    /// # Errors
    /// If the ring buffer can't be waited for.
    pub(crate) fn new(
        enders: Option<Enders<'a>>,
        duration: Option<Duration>,
        ring: Option<io::Result<OwnedFd>>,
        period: Duration,
    ) -> Result<Self, Failure> {
        let filling = ring.map(|ring| ring.and_then(readable).context("cannot wait for the ring buffer"));
        let over = duration.map(|duration| Box::pin(sleep(duration)));
        Ok(Self { enders, over, filling: filling.transpose()?, tick: ticks(period), ticks: 0 })
    }

    /// The next one. Safe to call again after being dropped.
    ///
    /// # Errors
    /// If something can't be waited for.
    pub(crate) async fn next(&mut self) -> Result<Beat, Failure> {
        let Self { enders, over, filling, tick, ticks } = self;
        tokio::select! {
            biased;
            ended = ended(enders.as_mut()) => ended.map(|()| Beat::Over),
            () = passed(over.as_mut()) => Ok(Beat::Over),
            filled = fills(filling.as_ref()) => filled.map(|()| Beat::Filled),
            _ = tick.tick() => {
                *ticks = ticks.wrapping_add(1);
                Ok(Beat::Tick { is_second: ticks.is_multiple_of(TICKS_PER_SECOND) })
            }
        }
    }
}

async fn ended(enders: Option<&mut Enders<'_>>) -> Result<(), Failure> {
    let Some((signals, selected)) = enders else { return pending().await };
    tokio::select! {
        biased;
        () = signals.any() => Ok(()),
        ended = selected.all_gone() => ended,
    }
}

async fn passed(over: Option<&mut Pin<Box<Sleep>>>) {
    match over {
        Some(over) => over.await,
        None => pending().await,
    }
}

/// Returns when the ring buffer fills; never if there is none.
pub(crate) async fn fills(ring: Option<&AsyncFd<OwnedFd>>) -> Result<(), Failure> {
    let Some(ring) = ring else { return pending().await };
    ring.readable().await.context("cannot wait for the ring buffer")?.clear_ready();
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::run::pace::block_on;

    const PERIOD: Duration = Duration::from_millis(5);

    #[test]
    fn beats_come_in_order_of_what_matters() {
        let outcome = block_on(async {
            let (reader, mut writer) = io::pipe().context("a pipe")?;
            let lasts = Some(PERIOD * 60);
            let mut beats = Beats::new(None, lasts, Some(Ok(reader.into())), PERIOD)?;
            assert_eq!(beats.next().await?, Beat::Tick { is_second: false });
            writer.write_all(b"x").context("a byte")?;
            // Both are there: records go first, once for each time that they come.
            sleep(PERIOD * 2).await;
            assert_eq!(beats.next().await?, Beat::Filled);
            let mut seconds = Vec::new();
            for tick in 1..TICKS_PER_SECOND {
                let beat = beats.next().await?;
                assert!(matches!(beat, Beat::Tick { .. }), "{beat:?}");
                seconds.extend((beat == Beat::Tick { is_second: true }).then_some(tick));
            }
            assert_eq!(seconds, [TICKS_PER_SECOND - 1]);
            sleep(PERIOD * 60).await;
            assert_eq!(beats.next().await?, Beat::Over);
            Ok(())
        });
        assert!(outcome.is_ok());
    }
}
