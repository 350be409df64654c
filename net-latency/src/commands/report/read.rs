//! Reads the logs, line by line, into what the report tells.

use std::io::Read;

use super::csv::{self, CsvReader};
use super::findings::Report;
use super::input::{self, Source};
use super::json;
use super::lines::{Line, Lines};
use super::packet::Fields;
use super::progress::Progress;
use super::time::TimeReader;
use crate::{error::Failure, request::LogFilter};

/// A file in whose first lines there is nothing of ours is not read to its end.
const PATIENCE: u64 = 1_000;
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Why a line was passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Skipped {
    NoJson,
    OtherJson,
    Text,
    NoCsv,
    Width,
    Value,
    Incomplete,
    TooLong,
}

impl Skipped {
    /// As the end of a sentence that begins with the place.
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::NoJson => "is not valid JSON",
            Self::OtherJson => "is not a packet's JSON, or has a value of the wrong type",
            Self::Text => "is of the text form",
            Self::NoCsv => "is neither JSON nor below a CSV header",
            Self::Width => "has more or fewer values than the CSV header",
            Self::Value => "has a value of the wrong type",
            Self::Incomplete => "lacks a readable ts, dir or proto",
            Self::TooLong => "is too long",
        }
    }
}

/// Reads one log to its end.
pub(super) fn read(
    source: &Source,
    filter: &LogFilter,
    progress: &Progress,
    report: &mut Report,
) -> Result<(), Failure> {
    read_lines(&source.name(), input::open(source, progress)?, filter, report)
}

/// Reads one unpacked log, which is called `name`, to its end.
pub(super) fn read_lines(
    name: &str,
    source: impl Read,
    filter: &LogFilter,
    report: &mut Report,
) -> Result<(), Failure> {
    LogFile::new(name, filter, report).read(source)
}

/// One log, while it is read.
struct LogFile<'a> {
    name: &'a str,
    filter: &'a LogFilter,
    report: &'a mut Report,
    csv: CsvReader,
    times: TimeReader,
    line: u64,
    first_skipped: Option<(u64, Skipped)>,
    skipped: u64,
    /// Lines that were read, CSV headers included.
    good: u64,
}

impl<'a> LogFile<'a> {
    fn new(name: &'a str, filter: &'a LogFilter, report: &'a mut Report) -> Self {
        Self {
            name,
            filter,
            report,
            csv: CsvReader::new(),
            times: TimeReader::default(),
            line: 0,
            first_skipped: None,
            skipped: 0,
            good: 0,
        }
    }

    fn read(&mut self, source: impl Read) -> Result<(), Failure> {
        let mut lines = Lines::new(source);
        loop {
            match lines.next() {
                Ok(Some(line)) => self.take(line),
                Ok(None) => break,
                // What came before the damage is as good as ever.
                Err(error) if self.good > 0 => {
                    self.report.log.damaged.push(format!("{}: {error}", self.name));
                    break;
                }
                Err(error) => return Err(Failure::Usage(format!("cannot read {}: {error}", self.name))),
            }
            if self.good == 0 && self.skipped >= PATIENCE {
                break;
            }
        }
        let log = &mut self.report.log;
        log.skipped += self.skipped;
        if let Some((line, skipped)) = self.first_skipped {
            if self.good == 0 {
                return Err(no_log(self.name, line, skipped));
            }
            log.first_skipped.get_or_insert_with(|| (self.name.to_owned(), line, skipped));
        }
        Ok(())
    }

    fn take(&mut self, line: Line<'_>) {
        self.line += 1;
        let outcome = match line {
            Line::Whole(line) => self.take_whole(line),
            Line::Unended(line) => self.take_unended(line),
            Line::TooLong => Err(Skipped::TooLong),
        };
        match outcome {
            Ok(()) => {}
            Err(skipped) => {
                self.skipped += 1;
                self.first_skipped.get_or_insert((self.line, skipped));
            }
        }
    }

    fn take_whole(&mut self, line: &[u8]) -> Result<(), Skipped> {
        let line = if self.line == 1 { line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line) } else { line };
        let line = line.trim_ascii();
        match line.first() {
            None => Ok(()),
            Some(b'{') => {
                let fields = json::read(line).map_err(|wrong| match wrong {
                    json::Wrong::Syntax => Skipped::NoJson,
                    json::Wrong::Content => Skipped::OtherJson,
                })?;
                add(fields, &mut self.times, self.filter, self.report)?;
                self.good += 1;
                Ok(())
            }
            Some(_) => {
                let row = self.csv.read(line).map_err(|wrong| match wrong {
                    csv::Wrong::NoHeader if is_text_form(line) => Skipped::Text,
                    csv::Wrong::NoHeader => Skipped::NoCsv,
                    csv::Wrong::Width => Skipped::Width,
                    csv::Wrong::Value => Skipped::Value,
                })?;
                if let Some(fields) = row {
                    add(fields, &mut self.times, self.filter, self.report)?;
                }
                self.good += 1;
                Ok(())
            }
        }
    }

    /// An object says where it ends; a row of values might have gone on.
    fn take_unended(&mut self, line: &[u8]) -> Result<(), Skipped> {
        let is_json = line.starts_with(b"{");
        if is_json && json::read(line).is_ok() {
            return self.take_whole(line);
        }
        if is_json || self.good > 0 {
            self.report.log.unended += 1;
            return Ok(());
        }
        self.take_whole(line)
    }
}

fn add(
    fields: Fields<'_>,
    times: &mut TimeReader,
    filter: &LogFilter,
    report: &mut Report,
) -> Result<(), Skipped> {
    let packet = fields.into_packet(times).ok_or(Skipped::Incomplete)?;
    report.log.lines += 1;
    if filter.matches(&packet) {
        report.add(&packet);
    }
    Ok(())
}

fn is_text_form(line: &[u8]) -> bool {
    [&b" |I| "[..], b" |O| "].iter().any(|mark| memchr::memmem::find(line, mark).is_some())
}

fn no_log(name: &str, line: u64, skipped: Skipped) -> Failure {
    let remedy = "record with --format json or --format csv";
    Failure::Usage(match skipped {
        Skipped::Text => format!("{name} is in the text form, from which no report can be made; {remedy}"),
        _ => format!("{name} is not a log of net-latency: its line {line} {}; {remedy}", skipped.reason()),
    })
}
