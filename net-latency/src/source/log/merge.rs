//! Several logs as one: the packets of all of them in order of completion, whatever order the logs are named in. So the
//! pieces of a rotated log follow each other, and logs of the same time mix.

use std::io::Read;

use super::{
    input::{self, LogPath},
    read::{LogReader, Tally},
    record::LogRecord,
};
use crate::error::Failure;

/// The packets of some logs.
pub(crate) struct Logs {
    /// Those that go on, and the next packet of each.
    logs: Vec<(LogReader<Box<dyn Read>>, LogRecord<'static>)>,
    tally: Tally,
}

impl Logs {
    /// Opens them all, and reads as far as the first packet of each.
    ///
    /// # Errors
    /// A usage failure for what can't be read or is no log.
    pub(crate) fn open(paths: &[LogPath]) -> Result<Self, Failure> {
        input::check(paths)?;
        let mut tally = Tally { files: paths.len(), ..Tally::default() };
        let mut logs = Vec::new();
        for path in paths {
            let mut reader = LogReader::new(path.name(), "replay", input::open(path, |_| ())?);
            if let Some(first) = reader.next(&mut tally, |record| record.into_owned())? {
                logs.push((reader, first));
            }
        }
        Ok(Self { logs, tally })
    }

    /// Whether the first packet of one of them has fine stages.
    pub(crate) fn have_parts(&self) -> bool {
        self.logs.iter().any(|(_, first)| first.event().has_parts())
    }

    /// The next packet of all; `None` at the end.
    ///
    /// # Errors
    /// As of [`LogReader::next`].
    pub(crate) fn next(&mut self) -> Result<Option<LogRecord<'static>>, Failure> {
        let places = 0..self.logs.len();
        let Some(place) = places.min_by_key(|place| self.logs[*place].1.wall_ns) else { return Ok(None) };
        let (reader, next) = &mut self.logs[place];
        match reader.next(&mut self.tally, |record| record.into_owned())? {
            Some(record) => Ok(Some(std::mem::replace(next, record))),
            None => Ok(Some(self.logs.remove(place).1)),
        }
    }

    /// What recordings among them are of.
    pub(crate) fn recordings(&self) -> &[String] {
        &self.tally.recordings
    }

    /// What was read so far, and what was not.
    pub(crate) fn into_tally(self) -> Tally {
        self.tally
    }
}
