//! `net-latency report`: sums up logs that were recorded before.
//!
//! Data flows one way: [`input`] (bytes) → [`lines`] → [`json`] or [`csv`] → [`packet`] → [`findings`] → [`text`],
//! [`object`] or [`html`].

mod chart;
mod csv;
mod distribution;
mod filter;
mod findings;
mod html;
mod input;
mod json;
mod lines;
mod object;
mod packet;
mod page;
mod progress;
mod read;
mod table;
#[cfg(test)]
mod tests;
mod text;
mod time;
mod timeline;

use std::io::{self, Write as _};
use std::path::Path;

use anyhow::anyhow;

use crate::error::Failure;
use crate::request::{ReportConfig, ReportFormat};

use findings::Report;
use input::Source;
use page::Page;
use progress::Progress;

/// Reads the logs, and writes the page and the summary.
///
/// # Errors
/// A usage failure for what can't be read or is no log, before anything is written; a failure while running if
/// a log ends in damage, behind the report on what could be read, or if the report can't be written.
pub fn run(config: &ReportConfig) -> Result<(), Failure> {
    let sources: Vec<_> = config.files.iter().map(|path| Source::new(path)).collect();
    let bytes = input::check(&sources)?;
    let page_to_stdout = config.html.as_deref() == Some(Path::new("-"));
    let page = match &config.html {
        Some(path) if !page_to_stdout => Some(Page::prepare(path, &sources)?),
        _ => None,
    };

    let mut report = Report::new(sources.len(), config.top);
    let progress = Progress::new(bytes, config.quiet);
    for source in &sources {
        read::read(source, &config.filter, &progress, &mut report)?;
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
    let mut stdout = io::stdout().lock();
    match stdout.write_all(&out).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            return Err(anyhow::Error::new(error).context("cannot write to standard output").into());
        }
        _ => {}
    }
    match report.log.damaged.as_slice() {
        [] => Ok(()),
        damaged => {
            Err(anyhow!("cannot read to the end: {}; the report lacks what follows", damaged.join(", "))
                .into())
        }
    }
}
