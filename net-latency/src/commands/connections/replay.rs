//! Connections that were recorded with `--format json` or `csv`.

use std::{borrow::Cow, net::SocketAddr, path::PathBuf};

use serde_json::{Map, Value};

use super::{
    Form, fields,
    fields::{Line, Name},
    header, is_wanted,
    totals::{Footer, Totals},
};
use crate::{
    error::Failure,
    message::{counted, say, tell},
    output::Sink,
    request::{ConnectionsConfig, FooterFormat, PacketFilter},
    run::pace::{End, LAST_PATIENCE, flush_last},
    source::log::{
        csv::{Splitter, unescape},
        input::{self, LogPath},
        lines::{self, Lines},
    },
};

/// Shows the connections of these logs.
///
/// # Errors
/// A usage failure if one can't be read, or has no connections; a runtime failure if the output can't be written.
pub(super) fn run(config: &ConnectionsConfig, logs: &[PathBuf]) -> Result<(), Failure> {
    let logs: Vec<_> = logs.iter().map(|path| LogPath::new(path)).collect();
    input::check(&logs)?;
    let mut sink = Sink::open(config.output.as_deref(), header(config.format))?;
    let mut replay = Replay {
        form: Form::new(config.format, config.verbose, config.zone),
        totals: Totals::default(),
        shown: 0,
        filtered: 0,
        wrong: 0,
    };
    sink.begin();
    for log in &logs {
        match replay.read(config, log, &mut sink)? {
            Next::Log => {}
            Next::End => break,
            Next::Closed => return Ok(()),
        }
    }
    if flush_last(&mut sink)? == End::Closed {
        return Ok(());
    }
    if replay.wrong > 0 {
        let lines = counted(replay.wrong, "line");
        tell(format_args!("{lines} skipped: not connections recorded by net-latency"));
    }
    if config.footer != FooterFormat::None {
        let footer = Footer {
            totals: &replay.totals,
            elapsed: None,
            shown: replay.shown,
            filtered: replay.filtered,
            counters: Default::default(),
            unwritten: 0,
            skipped: Some(0),
        };
        say(|out| footer.write(config.footer, out));
    }
    Ok(())
}

/// How it goes on.
enum Next {
    Log,
    /// As many were shown as were requested.
    End,
    /// The output has no reader any more.
    Closed,
}

struct Replay {
    form: Form,
    totals: Totals,
    shown: u64,
    filtered: u64,
    wrong: u64,
}

impl Replay {
    fn read(&mut self, config: &ConnectionsConfig, log: &LogPath, sink: &mut Sink) -> Result<Next, Failure> {
        let cannot = |error| Failure::Usage(format!("cannot read {}: {error}", log.name()));
        let mut lines = Lines::new(input::open(log, |_| ())?);
        let mut rows = Rows::default();
        let (mut good, mut wrong) = (0_u64, 0_u64);
        loop {
            let line = match lines.next() {
                Ok(Some(line)) => line,
                Ok(None) => break,
                Err(error) if good > 0 => {
                    tell(format_args!("{}: {error}; everything before that is shown", log.name()));
                    break;
                }
                Err(error) => return Err(cannot(error)),
            };
            let read = match line {
                lines::Line::Whole(text) | lines::Line::Unended(text) => rows.read(text),
                lines::Line::TooLong => Some(Err("")),
            };
            match read {
                None => {}
                Some(Err(_)) => wrong += 1,
                Some(Ok(line)) => {
                    good += 1;
                    lines.is_good();
                    if !matches(&config.filter, &line) || !is_wanted(config, &line) {
                        self.filtered += 1;
                        continue;
                    }
                    self.totals.add(&line);
                    self.form.write(&line, sink.buffer());
                    self.shown += 1;
                    if config.count.is_some_and(|count| self.shown >= count.get()) {
                        return Ok(Next::End);
                    }
                    while !sink.has_room() {
                        match sink.flush(LAST_PATIENCE).map_err(End::of) {
                            Ok(_) => {}
                            Err(Ok(_)) => return Ok(Next::Closed),
                            Err(Err(failure)) => return Err(failure),
                        }
                    }
                }
            }
        }
        if good == 0 && wrong > 0 {
            return Err(Failure::Usage(format!(
                "{} has no connections: record them with `net-latency connections --format json`",
                log.name()
            )));
        }
        self.wrong += wrong;
        Ok(Next::Log)
    }
}

/// Whether the filters leave a connection, as the kernel side decides it while tracing.
fn matches(filter: &PacketFilter, line: &Line) -> bool {
    let names = [&line.comm, &line.process].into_iter().flatten().map(Name::bytes);
    let ends = [SocketAddr::new(line.laddr, line.lport), SocketAddr::new(line.raddr, line.rport)];
    filter.matches_ends(line.pid, names, ends, line.mark)
}

/// Reads the lines of one log.
#[derive(Default)]
pub(super) struct Rows {
    columns: Vec<String>,
    splitter: Splitter,
}

impl Rows {
    /// The connection on a line; `None` if it is a header, or blank.
    pub(super) fn read(&mut self, text: &[u8]) -> Option<Result<Line, &'static str>> {
        if text.iter().all(u8::is_ascii_whitespace) {
            return None;
        }
        if text.starts_with(b"{") {
            let object: Result<Map<String, Value>, _> = serde_json::from_slice(text);
            return Some(
                object.map_err(|_| "").and_then(|object| Line::read(|name| object.get(name).cloned())),
            );
        }
        self.splitter.split(text);
        let values: Vec<_> = self.splitter.values().map(text_of).collect();
        if fields::NAMES[..2].iter().all(|name| values.iter().any(|value| value == name)) {
            self.columns = values.into_iter().map(Cow::into_owned).collect();
            return None;
        }
        if values.len() != self.columns.len() {
            return Some(Err(""));
        }
        let value = |name: &'static str| {
            let place = self.columns.iter().position(|column| column == name)?;
            Some(Value::String(values[place].clone().into_owned()))
        };
        Some(Line::read(value))
    }
}

/// A value's text, with what had to be escaped in it.
fn text_of(value: &[u8]) -> Cow<'_, str> {
    match str::from_utf8(value) {
        Ok(text) if !text.contains('\\') => Cow::Borrowed(text),
        _ => unescape(value),
    }
}
