//! Lines of slow packets on standard output, beside the metrics. Counting and scrapers do not wait for their reader.

use std::time::{Duration, Instant};

use crate::{
    accounting::{LeftOut, Losses},
    clock::{Clock, LazyClock, Zone},
    error::Failure,
    message::tell,
    output::{Options, Sink, SinkError, Writer},
    request::{Format, SlowLines},
    run::{
        pace::{BATCH, LAST_PATIENCE},
        tracer::Tracer,
    },
    source::{RecordSource as _, ring::Names},
};

/// Writes them.
pub(super) struct Slow {
    /// `None` once it can't be written any more.
    sink: Option<Sink>,
    writer: Writer,
    names: Names,
    bucket: Bucket,
    /// Lines that the output took.
    written: u64,
    /// Packets that `--slower-rate` had no line for.
    held_back: u64,
    /// Packets whose line the output did not take.
    unwritten: u64,
    left_out: LeftOut,
}

impl Slow {
    /// Opens standard output.
    ///
    /// # Errors
    /// A usage failure if it can't be opened.
    pub(super) fn open(asked: &SlowLines) -> Result<Self, Failure> {
        // Hosts of a fleet are compared, wherever they are.
        let options = Options { zone: Zone::UTC, details: false, colour: false };
        Ok(Self {
            sink: Some(Sink::open(None, b"")?),
            writer: Writer::new(Format::Json, &options),
            names: Names::default(),
            bucket: Bucket::new(asked.per_second, Instant::now()),
            written: 0,
            held_back: 0,
            unwritten: 0,
            left_out: LeftOut::default(),
        })
    }

    /// Asks anew for names that may have changed.
    pub(super) fn refresh(&mut self) {
        self.names.refresh();
    }

    /// Lines that the output took.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Notes packets without a line.
    pub(super) fn note(&self, losses: &mut Losses) {
        losses.slow_held_back = self.held_back;
        losses.slow_unwritten = self.unwritten;
        losses.slow_inconsistent = self.left_out.inconsistent;
    }

    /// Writes the lines of the packets that wait, a batch at most; tells whether it got through. A reader that takes nothing for as long as
    /// `patience` keeps them in the ring buffer, and the kernel side counts what finds no room there.
    ///
    /// # Errors
    /// If the ring buffer can't be read.
    pub(super) fn read(&mut self, tracer: &mut Tracer, patience: Duration) -> Result<bool, Failure> {
        let (clock, now) = (LazyClock::new(Clock::sample), Instant::now());
        for _ in 0..BATCH {
            if self.sink.as_ref().is_some_and(|sink| !sink.has_room()) && !self.flush(patience) {
                return Ok(false);
            }
            // None is outside: the kernel side gives a record only to what it counts.
            let Self { sink, writer, names, bucket, held_back, unwritten, left_out, .. } = self;
            let next = tracer.records(&clock, Some(names), left_out).next(|event| match sink {
                _ if !bucket.takes(now) => *held_back += 1,
                Some(sink) => writer.write(event, sink.buffer()),
                None => *unwritten += 1,
            })?;
            if next.is_none() {
                return Ok(self.flush(patience));
            }
        }
        self.flush(patience);
        Ok(false)
    }

    /// Everything is detached: writes the rest, as far as its reader takes it.
    ///
    /// # Errors
    /// If the ring buffer can't be read.
    pub(super) fn finish(&mut self, tracer: &mut Tracer) -> Result<(), Failure> {
        while !self.read(tracer, LAST_PATIENCE)? {
            if let Some(sink) = self.sink.take_if(|sink| sink.is_stalled()) {
                self.unwritten += sink.waiting_lines();
            }
        }
        Ok(())
    }

    /// Gives the output what waits; whether it took all of it. One that can't be written any more is told once, and is no
    /// reason not to go on counting.
    fn flush(&mut self, patience: Duration) -> bool {
        let Some(sink) = &mut self.sink else { return true };
        let waiting = sink.waiting_lines();
        match sink.flush(patience) {
            Ok(is_done) => {
                self.written += waiting - sink.waiting_lines();
                is_done
            }
            Err(error) => {
                let lost = match &error {
                    SinkError::Closed => waiting,
                    SinkError::Failed { lost_lines, .. } => *lost_lines as u64,
                };
                self.written += waiting - lost;
                self.unwritten += lost;
                self.sink = None;
                tell(format_args!("{error}; slow packets are still counted, but no longer written"));
                true
            }
        }
    }
}

/// A token bucket that is full at the start and holds what comes in a second.
struct Bucket {
    /// Tokens that it holds at most, and that come in a second.
    size: f64,
    tokens: f64,
    at: Instant,
}

impl Bucket {
    fn new(per_second: u16, now: Instant) -> Self {
        let size = f64::from(per_second);
        Self { size, tokens: size, at: now }
    }

    /// Takes a token, if there is one.
    fn takes(&mut self, now: Instant) -> bool {
        let came = (now - self.at).as_secs_f64() * self.size;
        self.tokens = (self.tokens + came).min(self.size);
        self.at = now;
        let is_there = self.tokens >= 1.0;
        if is_there {
            self.tokens -= 1.0;
        }
        is_there
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bucket_holds_a_second_and_fills_as_time_goes() {
        let start = Instant::now();
        let mut bucket = Bucket::new(10, start);
        let mut taken = |after_ms| {
            let now = start + Duration::from_millis(after_ms);
            (0..100).filter(|_| bucket.takes(now)).count()
        };
        assert_eq!(taken(0), 10);
        assert_eq!(taken(0), 0);
        assert_eq!(taken(150), 1);
        // The half token is kept.
        assert_eq!(taken(250), 1);
        assert_eq!(taken(100_000), 10);
    }
}
