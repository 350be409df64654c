//! The packets of logs in another form (`report FILE -o OUT`), the earliest first.

use std::{
    io::{self, IsTerminal as _, Write},
    path::Path,
};

use chrono::FixedOffset;

use super::page::Page;
use crate::{
    clock::Zone,
    error::Failure,
    output::{Options, SinkError, Writer, header},
    packet::event::PARTS,
    request::{Format, LogFilter, Stages},
    source::log::{input::LogPath, merge::Logs, read::Tally},
};

use net_latency_common::{Unknown, unknown_part};

/// Bytes that are written at once.
const ENOUGH: usize = 64 << 10;

/// Writes the packets of `sources` that the filter lets through to the file, or to standard output for `-`.
///
/// # Errors
/// A usage failure for what can't be read, is no log, or can't be written; a failure while running if the disk is full or a log ends in
/// damage, behind what could be read.
pub(super) fn write(
    sources: &[LogPath],
    filter: &LogFilter,
    format: Format,
    path: &Path,
) -> Result<(), Failure> {
    let tally =
        if path == "-" {
            let mut out = io::stdout().lock();
            if format == Format::Pcapng && out.is_terminal() {
                return Err(Failure::Usage(SinkError::BINARY.to_owned()));
            }
            convert(sources, filter, format, &mut |bytes| match out
                .write_all(bytes)
                .and_then(|()| out.flush())
            {
                Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::of_output(
                    error.kind(),
                    anyhow::Error::new(error).context("cannot write to standard output"),
                )),
                // A reader that has seen enough is no failure.
                result => Ok(result.is_ok()),
            })?
        } else {
            let file = Page::prepare(path, sources, "packets")?;
            file.write_by(|out| {
                convert(sources, filter, format, &mut |bytes| {
                    out.write_all(bytes).map(|()| true).map_err(|error| file.failed(error))
                })
            })?
        };
    tally.check_whole("copy")
}

/// Hands the lines to `put` until that wants no more; returns what was read.
fn convert(
    sources: &[LogPath],
    filter: &LogFilter,
    format: Format,
    put: &mut dyn FnMut(&[u8]) -> Result<bool, Failure>,
) -> Result<Tally, Failure> {
    let mut logs = Logs::open(sources)?;
    // CSV has one header, for the packets of all logs.
    let stages = if logs.have_parts() { Stages::Fine } else { Stages::Basic };
    let unknown = [unknown_part(Unknown::NoStamp); PARTS];
    let mut offset_s = 0;
    let mut writer = writer(format, offset_s);
    let mut out = header(format, stages).to_vec();
    writer.begin(&mut out);
    while let Some(record) = logs.next()? {
        if record.offset_s != offset_s && format != Format::Pcapng {
            offset_s = record.offset_s;
            writer = self::writer(format, offset_s);
        }
        let mut event = record.event();
        if !filter.matches(&event) {
            continue;
        }
        if format == Format::Csv && stages == Stages::Fine && !event.has_parts() {
            event = event.with_parts(Some(&unknown));
        }
        writer.write(&event, &mut out);
        if out.len() >= ENOUGH {
            if !put(&out)? {
                return Ok(Tally::default());
            }
            out.clear();
        }
    }
    put(&out)?;
    Ok(logs.into_tally())
}

/// Times are told as the log tells them.
fn writer(format: Format, offset_s: i32) -> Writer {
    let zone = FixedOffset::east_opt(offset_s).map_or(Zone::UTC, Zone::Fixed);
    Writer::new(format, &Options { zone, details: false, colour: false })
}
