//! The packets of one log, line by line, and why a line is none.

use std::io::{self, Read};

use anyhow::anyhow;

use super::{
    csv::CsvReader,
    fields::Fields,
    json,
    lines::{Line, Lines, Unread},
    record::LogRecord,
    recorded::Recorded,
    skipped::Skipped,
    time::TimeReader,
};
use crate::error::Failure;
use crate::message::counted;
use crate::recording::file::{Damage, MAGIC};

/// A file in whose first lines there is nothing of ours is not read to its end.
const PATIENCE: u64 = 1_000;
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// What was read of some logs, and what was not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Logs.
    pub(crate) files: usize,
    /// For logs that are recordings: of which machine, when and why.
    pub(crate) recordings: Vec<String>,
    /// Packets, those that a filter keeps out included.
    pub(crate) lines: u64,
    /// Lines that could not be read.
    pub(crate) skipped: u64,
    /// File, line and reason of the first of them.
    pub(crate) first_skipped: Option<(String, u64, Skipped)>,
    /// Files whose last line was cut off.
    pub(crate) unended: u64,
    /// Files that could not be read to their end, and why.
    pub(crate) damaged: Vec<String>,
}

impl Tally {
    /// What recordings are of; what was passed over, and why.
    pub(crate) fn notes(&self) -> Vec<String> {
        let mut notes = self.recordings.clone();
        if let Some((name, line, skipped)) = &self.first_skipped {
            let were = if self.skipped == 1 { "was" } else { "were" };
            notes.push(format!("{} {were} skipped", counted(self.skipped, "line")));
            notes.push(format!("the first of them: line {line} of {name} {}", skipped.reason()));
        }
        if self.unended > 0 {
            let end = if self.unended == 1 { "ends" } else { "end" };
            let logs = counted(self.unended, "log");
            notes.push(format!("{logs} {end} in the middle of a line, which is not counted"));
        }
        notes.extend(self.damaged.iter().map(|name| format!("could not be read to the end: {name}")));
        notes
    }

    /// A failure if a log ends in damage.
    ///
    /// # Errors
    /// Which logs, and that the `result` lacks what follows.
    pub(crate) fn check_whole(&self, result: &str) -> Result<(), Failure> {
        match self.damaged.as_slice() {
            [] => Ok(()),
            damaged => {
                let damaged = damaged.join(", ");
                Err(anyhow!("cannot read to the end: {damaged}; the {result} lacks what follows").into())
            }
        }
    }
}

/// One unpacked log, while it is read.
pub(crate) struct LogReader<R> {
    /// Its name in messages, and the purpose for which it is read.
    name: String,
    purpose: &'static str,
    lines: Lines<R>,
    parser: Parser,
    /// Once its first bytes say that it has no lines.
    recorded: Option<Recorded<Unread<R>>>,
    skipped: u64,
    first_skipped: Option<(u64, Skipped)>,
    is_over: bool,
    /// The line before was a packet.
    was_good: bool,
}

impl<R: Read> LogReader<R> {
    /// Nothing read yet of the log that is called `name`, of which a `purpose` is made (one word).
    pub(crate) fn new(name: String, purpose: &'static str, source: R) -> Self {
        Self {
            name,
            purpose,
            lines: Lines::new(source),
            parser: Parser::default(),
            recorded: None,
            skipped: 0,
            first_skipped: None,
            is_over: false,
            was_good: false,
        }
    }

    /// Hands the next packet to `take`; `None` at the end. What is passed over on the way is added to `tally`.
    ///
    /// # Errors
    /// A usage failure if it is no log of ours, or if nothing of it can be read.
    pub(crate) fn next<T>(
        &mut self,
        tally: &mut Tally,
        take: impl FnOnce(LogRecord<'_>) -> T,
    ) -> Result<Option<T>, Failure> {
        if std::mem::take(&mut self.was_good) {
            self.lines.is_good();
        }
        let is_unread = self.parser.line == 0 && self.recorded.is_none() && !self.is_over;
        if is_unread
            && self.lines.begin_with(MAGIC).map_err(|error| no_bytes(&self.name, &error))?
            && let Some(unread) = self.lines.take(MAGIC)
        {
            let recorded = Recorded::open(unread).map_err(|damage| unreadable(&self.name, &damage))?;
            tally.recordings.push(recorded.told.clone());
            self.recorded = Some(recorded);
        }
        if let Some(recorded) = &mut self.recorded {
            if self.is_over {
                return Ok(None);
            }
            match recorded.next() {
                Ok(Some(packet)) => {
                    tally.lines += 1;
                    self.parser.good += 1;
                    return Ok(Some(take(packet)));
                }
                Ok(None) => {}
                Err(damage) if self.parser.good > 0 => tally.damaged.push(format!("{}: {damage}", self.name)),
                Err(damage) => return Err(unreadable(&self.name, &damage)),
            }
            self.is_over = true;
            return Ok(None);
        }
        while !self.is_over {
            let line = match self.lines.next() {
                Ok(Some(line)) => line,
                Ok(None) => break,
                // What came before the damage is as good as ever.
                Err(error) if self.parser.good > 0 => {
                    tally.damaged.push(format!("{}: {error}", self.name));
                    break;
                }
                Err(error) => return Err(no_bytes(&self.name, &error)),
            };
            match self.parser.read(line, tally) {
                Ok(Some(packet)) => {
                    tally.lines += 1;
                    self.was_good = true;
                    return Ok(Some(take(packet)));
                }
                Ok(None) => {}
                Err(skipped) => {
                    self.skipped += 1;
                    self.first_skipped.get_or_insert((self.parser.line, skipped));
                }
            }
            if self.parser.good == 0 && self.skipped >= PATIENCE {
                break;
            }
        }
        self.end(tally)?;
        Ok(None)
    }

    /// Counts lines that were passed over, once.
    fn end(&mut self, tally: &mut Tally) -> Result<(), Failure> {
        self.is_over = true;
        tally.skipped += std::mem::take(&mut self.skipped);
        if let Some((line, skipped)) = self.first_skipped.take() {
            if self.parser.good == 0 {
                return Err(no_log(&self.name, self.purpose, line, skipped));
            }
            tally.first_skipped.get_or_insert_with(|| (self.name.clone(), line, skipped));
        }
        Ok(())
    }
}

/// A log of which nothing can be read.
fn no_bytes(name: &str, error: &io::Error) -> Failure {
    Failure::Usage(format!("cannot read {name}: {error}"))
}

/// A recording of which nothing can be read.
fn unreadable(name: &str, damage: &Damage) -> Failure {
    anyhow!("cannot read {name}: {damage}").into()
}

/// The state of a log after the lines before.
#[derive(Debug, Default)]
struct Parser {
    csv: CsvReader,
    times: TimeReader,
    /// Lines so far.
    line: u64,
    /// Those that were read, CSV headers included.
    good: u64,
}

impl Parser {
    /// The packet of a line; `None` for what has none by right: an empty line, a header, a last line that was cut off.
    #[inline(always)]
    fn read<'a>(&'a mut self, line: Line<'a>, tally: &mut Tally) -> Result<Option<LogRecord<'a>>, Skipped> {
        self.line += 1;
        match line {
            Line::Whole(line) => self.whole(line),
            Line::Unended(line) => self.unended(line, tally),
            Line::TooLong => Err(Skipped::TooLong),
        }
    }

    #[inline(always)]
    fn whole<'a>(&'a mut self, line: &'a [u8]) -> Result<Option<LogRecord<'a>>, Skipped> {
        let line = if self.line == 1 { line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line) } else { line };
        // Spaces at the end of a row are of the name that is its last value.
        let line = line.trim_ascii_start();
        let fields: Option<Fields<'_>> = match line.first() {
            None => return Ok(None),
            Some(b'{') => Some(json::read(line)?),
            Some(_) => self.csv.read(line).map_err(|skipped| match skipped {
                Skipped::NoCsv if is_text_form(line) => Skipped::Text,
                _ => skipped,
            })?,
        };
        let packet = match fields {
            Some(fields) if fields.have_long_name() => return Err(Skipped::LongName),
            Some(fields) => Some(LogRecord::of(fields, &mut self.times).ok_or(Skipped::Incomplete)?),
            None => None,
        };
        self.good += 1;
        Ok(packet)
    }

    /// An object says where it ends; a row of values might have gone on.
    #[cold]
    fn unended<'a>(
        &'a mut self,
        line: &'a [u8],
        tally: &mut Tally,
    ) -> Result<Option<LogRecord<'a>>, Skipped> {
        let is_json = line.starts_with(b"{");
        if is_json && json::read(line).is_ok() {
            return self.whole(line);
        }
        if is_json || self.good > 0 {
            tally.unended += 1;
            return Ok(None);
        }
        self.whole(line)
    }
}

fn is_text_form(line: &[u8]) -> bool {
    [&b" |I| "[..], b" |O| "].iter().any(|mark| memchr::memmem::find(line, mark).is_some())
}

fn no_log(name: &str, purpose: &str, line: u64, skipped: Skipped) -> Failure {
    let remedy = "record with --format json or --format csv, or by `net-latency record`";
    Failure::Usage(match skipped {
        Skipped::Text => format!("{name} is in text format, which can't be used for a {purpose}; {remedy}"),
        _ => format!("{name} is not a log of net-latency: its line {line} {}; {remedy}", skipped.reason()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        clock::Zone,
        fuzz,
        output::{Options, Writer, header},
        packet::event::{
            Event,
            fixtures::{WALL_NS, incoming, outgoing, udp, v6},
        },
        request::Format,
    };

    #[test]
    fn fuzz_logs() {
        let options = Options { zone: Zone::UTC, details: true, colour: false };
        let seeds = [Format::Json, Format::Csv, Format::Text].map(|format| {
            let mut log = header(format, crate::request::Stages::Basic).to_vec();
            for record in [incoming(), outgoing(), udp(incoming()), v6(outgoing())] {
                Writer::new(format, &options).write(&Event::new(&record, WALL_NS, Some(b"eth0")), &mut log);
            }
            log
        });
        fuzz::run("logs", 300, seeds, &["\n", "\r\n", "\u{feff}", "9999999999999999999"], |log| {
            let mut tally = Tally::default();
            let mut reader = LogReader::new("the log".to_owned(), "replay", log);
            let mut again = Vec::new();
            while let Ok(Some(record)) = reader.next(&mut tally, |record| record.into_owned()) {
                Writer::new(Format::Json, &options).write(&record.event(), &mut again);
            }
            // A record that was read can be written, and read again.
            let mut second = Tally::default();
            let mut reader = LogReader::new("the second log".to_owned(), "replay", &again[..]);
            while let Ok(Some(())) = reader.next(&mut second, |_| ()) {}
            assert_eq!((second.lines, second.skipped), (tally.lines, 0));
        });
    }
}
