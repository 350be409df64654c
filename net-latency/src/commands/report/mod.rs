//! `net-latency report`: sums up logs that were recorded before, or writes their packets in another form ([`convert`]).
//!
//! Data flows one way: packets of [`log`](crate::source::log)s → [`findings`] → [`text`], [`object`] or [`html`].

mod chart;
mod convert;
mod filter;
mod findings;
mod html;
mod object;
mod page;
mod progress;
mod table;
#[cfg(test)]
mod tests;
mod text;
mod time;
mod timeline;

use std::io::Read;
use std::path::Path;

use super::to_stdout;
use crate::error::Failure;
use crate::request::{LogFilter, ReportConfig, ReportFormat};
use crate::source::log::input::{self, LogPath};
use crate::source::log::read::LogReader;

use findings::Report;
use page::Page;
use progress::Progress;

/// Reads the logs, and writes the page and the summary.
///
/// # Errors
/// A usage failure for what can't be read or is no log, before anything is written; a failure while running if
/// a log ends in damage, behind the report on what could be read, or if the report can't be written.
pub(crate) fn run(config: &ReportConfig) -> Result<(), Failure> {
    let sources: Vec<_> = config.files.iter().map(|path| LogPath::new(path)).collect();
    let bytes = input::check(&sources)?;
    if let Some((format, path)) = &config.packets {
        return convert::write(&sources, &config.filter, *format, path);
    }
    let page_to_stdout = config.html.as_deref() == Some(Path::new("-"));
    let page = match &config.html {
        Some(path) if !page_to_stdout => Some(Page::prepare(path, &sources, "page")?),
        _ => None,
    };

    let mut report = Report::new(sources.len(), config);
    let progress = Progress::new(bytes, config.quiet);
    for source in &sources {
        let log = input::open(source, |bytes| progress.advance(bytes))?;
        read(source.name(), log, &config.filter, &mut report)?;
        // They come in any order.
        report.finish();
    }
    drop(progress);

    if let Some(page) = page {
        page.write(html::page(&report, config).as_bytes())?;
    }
    let mut out = Vec::new();
    if page_to_stdout {
        out.extend_from_slice(html::page(&report, config).as_bytes());
    } else {
        match config.format {
            ReportFormat::Text => text::write(&report, config, &mut out).expect("memory can be written"),
            ReportFormat::Json => object::write(&report, config, &mut out),
        }
    }
    to_stdout(&out)?;
    report.log.check_whole("report")
}

/// Reads one unpacked log, which is called `name`, to its end.
fn read(name: String, log: impl Read, filter: &LogFilter, report: &mut Report) -> Result<(), Failure> {
    let takes_all = filter.is_open();
    let mut reader = LogReader::new(name, "report", log);
    let mut tally = std::mem::take(&mut report.log);
    let mut outcome = Ok(Some(()));
    while let Ok(Some(())) = outcome {
        outcome = reader.next(&mut tally, |record| {
            let event = record.event();
            if takes_all || filter.matches(&event) {
                report.add(&event, record.offset_s);
            }
        });
    }
    report.log = tally;
    outcome.map(drop)
}
