//! The report as tables to read, 80 columns wide.

use std::fmt::Display;
use std::io::{self, Write};

use chrono::FixedOffset;
use net_latency_common::Direction;

use super::findings::Report;
use super::table::{Entry, Others, Table};
use super::time::show;
use super::timeline::Slice;
use crate::accounting::{Ends, Human};
use crate::clock::Zone;
use crate::diagnosis::text::first_lines;
use crate::escape::Printable;
use crate::message::counted;
use crate::packet::event::FLAGS;
use crate::packet::stages::dir;
use crate::request::ReportConfig;

/// Columns of a screen.
const WIDTH: usize = 80;
/// Longest names that are shown as they are; they can be 15 bytes long, and longer where they had to be escaped.
const NAME_WIDTH: usize = 15;

pub(super) fn write(report: &Report, config: &ReportConfig, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{}", headline(report))?;
    if let Some(span) = span(report) {
        writeln!(out, "  {span}")?;
    }
    for note in notes(report, config) {
        writeln!(out, "  {note}")?;
    }
    if let Some(verdict) = report.verdict().filter(|_| report.packets > 0) {
        writeln!(out)?;
        for text in first_lines(&verdict) {
            write_wrapped(&text, out)?;
        }
    }
    if report.packets == 0 {
        return Ok(());
    }
    writeln!(out)?;
    report.stages.write(out)?;
    let slowest = [Direction::In, Direction::Out].map(|direction| slowest(report, direction));
    if slowest.iter().any(Option::is_some) {
        writeln!(out)?;
    }
    for line in slowest.into_iter().flatten() {
        writeln!(out, "  {line}")?;
    }
    if config.interval.is_some() {
        writeln!(out)?;
        write_timeline(report, out)?;
    }
    writeln!(out)?;
    write_processes(report, config.top, out)?;
    writeln!(out)?;
    write_connections(report, config.top, out)?;
    writeln!(out)?;
    let zone = FixedOffset::east_opt(report.offset_s).map_or(Zone::UTC, Zone::Fixed);
    report.worst.write(zone, out)
}

/// Writes a sentence in lines of that width.
fn write_wrapped(text: &str, out: &mut impl Write) -> io::Result<()> {
    let mut used = 0;
    for word in text.split(' ') {
        let len = word.chars().count();
        let is_first = used == 0;
        if !is_first && used + 1 + len > WIDTH {
            write!(out, "\n  {word}")?;
            used = 2 + len;
        } else {
            write!(out, "{}{word}", if is_first { "" } else { " " })?;
            used += len + usize::from(!is_first);
        }
    }
    writeln!(out)
}

/// What the report is about.
pub(super) fn headline(report: &Report) -> String {
    format!("{} in {}", counted(report.packets, "packet"), counted(report.log.files, "log"))
}

/// From when to when the packets are; `None` without any.
pub(super) fn span(report: &Report) -> Option<String> {
    let (first, last) = report.span?;
    let at = |wall_ns, format| show(wall_ns, report.offset_s, format);
    let end = at(last, if is_one_day(report) { "%T" } else { "%F %T" });
    let length = Span(last.abs_diff(first));
    Some(format!("{} to {end} {} ({length})", at(first, "%F %T"), at(first, "%:z")))
}

/// Whether the time of day says which packet is meant.
fn is_one_day(report: &Report) -> bool {
    let date = |wall_ns| show(wall_ns, report.offset_s, "%F");
    report.span.is_none_or(|(first, last)| date(first) == date(last))
}

/// What else there is to know about what was read.
pub(super) fn notes(report: &Report, config: &ReportConfig) -> Vec<String> {
    let log = &report.log;
    let mut notes = Vec::new();
    if !config.filter.is_open() {
        notes.push(format!("{} excluded by filters", counted(log.lines - report.packets, "packet")));
    }
    notes.extend(log.notes());
    let names = FLAGS.map(|(name, _)| name);
    let flags = report.flags.into_iter().zip(names).filter(|(count, _)| *count > 0);
    let flags: Vec<_> = flags.map(|(count, name)| format!("{count} {name}")).collect();
    if !flags.is_empty() {
        notes.push(format!("flags: {}", flags.join(", ")));
    }
    notes
}

/// The stretch of time with the highest 99th percentile.
fn slowest(report: &Report, direction: Direction) -> Option<String> {
    let p99 = |slice: &Slice| slice.of(direction).quantile(990);
    let slices = report.timeline.slices().filter(|(_, slice)| p99(slice).is_some());
    // The first of equals.
    let (start, slice) = slices.collect::<Vec<_>>().into_iter().rev().max_by_key(|(_, slice)| p99(slice))?;
    let times = slice.of(direction);
    let width = report.timeline.width_ns();
    let date = if is_one_day(report) { "" } else { "%b %-d " };
    let format = format!("{date}%T{}", if width < 1_000_000_000 { "%.3f" } else { "" });
    Some(format!(
        "slowest {} {}: {}, {}, p99 {}, max {}",
        Span(width.unsigned_abs()),
        dir(direction),
        show(start, report.offset_s, &format),
        counted(times.count(), "packet"),
        Time(times.quantile(990)),
        Time(times.max()),
    ))
}

/// A row for each stretch of time in which a packet was finished.
fn write_timeline(report: &Report, out: &mut impl Write) -> io::Result<()> {
    let width = report.timeline.width_ns();
    let format = match (width < 1_000_000_000, is_one_day(report)) {
        (true, _) => "%T%.3f",
        (false, true) => "%T",
        (false, false) => "%m-%d %T",
    };
    writeln!(out, "  total time, each {}:", Span(width.unsigned_abs()))?;
    write!(out, "  {:14}", "")?;
    for name in [Direction::In, Direction::Out].map(dir) {
        write!(out, "{name:>8}{:>8}{:>8}{:>8}", "p50", "p99", "max")?;
    }
    writeln!(out)?;
    for (start, slice) in report.timeline.slices() {
        let both = [Direction::In, Direction::Out].map(|direction| slice.of(direction));
        if both.iter().all(|times| times.count() == 0) {
            continue;
        }
        write!(out, "  {:14}", show(start, report.offset_s, format))?;
        for times in both {
            write!(out, "{:>8}", times.count())?;
            for time in [times.quantile(500), times.quantile(990), times.max()] {
                write!(out, "{:>8}", Time(time).to_string())?;
            }
        }
        writeln!(out)?;
    }
    Ok(())
}

fn write_processes(report: &Report, top: usize, out: &mut impl Write) -> io::Result<()> {
    let (rows, others) = report.processes.top(top);
    writeln!(out, "  {}:", heading("processes", rows.len(), &report.processes))?;
    writeln!(out, "      PID {:<NAME_WIDTH$}{:>11}{TIMES_HEAD}", "name", "packets")?;
    for (owner, entry) in rows {
        let pid = owner.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
        write!(out, "  {pid:>7} {:<NAME_WIDTH$}{:>11}", name(entry), packets(entry))?;
        write_times(entry, out)?;
        write_tcp(entry, out)?;
    }
    write_others(others, out)
}

fn write_connections(report: &Report, top: usize, out: &mut impl Write) -> io::Result<()> {
    let (rows, others) = report.connections.top(top);
    if rows.is_empty() && others.lines == 0 {
        return writeln!(out, "  connections: not in these logs");
    }
    writeln!(out, "  {}:", heading("connections", rows.len(), &report.connections))?;
    writeln!(out, "      {:<19}{:>11}{TIMES_HEAD}", "this machine > peer", "packets")?;
    for (connection, entry) in rows {
        write_ends(&connection, out)?;
        let pid = entry.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
        // Room for a name as long as the PID allows.
        write!(out, "      {:<19}{:>11}", cut(&format!("{pid} {}", name(entry)), 19), packets(entry))?;
        write_times(entry, out)?;
        write_tcp(entry, out)?;
    }
    write_others(others, out)
}

const TIMES_HEAD: &str = "     p50     p99     max  most time in";

fn write_times(entry: &Entry, out: &mut impl Write) -> io::Result<()> {
    let total = &entry.total;
    for time in [total.quantile(500), total.quantile(990), total.max()] {
        write!(out, "{:>8}", Time(time).to_string())?;
    }
    writeln!(out, "  {}", dominant(entry))
}

/// What connections show beside the times of their packets.
fn write_tcp(entry: &Entry, out: &mut impl Write) -> io::Result<()> {
    let words = entry.tcp.words();
    let mut line = String::new();
    for part in words.split_inclusive("; ") {
        if !line.is_empty() && line.len() + part.trim_end().len() > 70 {
            writeln!(out, "          {}", line.trim_end())?;
            line.clear();
        }
        line.push_str(part);
    }
    if line.is_empty() { Ok(()) } else { writeln!(out, "          {line}") }
}

/// Long addresses of IPv6 need a line each.
fn write_ends(ends: &Ends, out: &mut impl Write) -> io::Result<()> {
    let Ends { protocol, netns: _, local, remote } = ends;
    let line = format!("  {} {local} > {remote}", protocol.name());
    if line.len() <= 80 {
        return writeln!(out, "{line}");
    }
    writeln!(out, "  {} {local} >\n      {remote}", protocol.name())
}

fn write_others(others: Others, out: &mut impl Write) -> io::Result<()> {
    match others.lines {
        0 => Ok(()),
        lines => writeln!(out, "      {:<19}{lines:>11}", "all others"),
    }
}

pub(super) fn heading<K: Copy + Eq + std::hash::Hash>(what: &str, shown: usize, table: &Table<K>) -> String {
    let all = match table.count() {
        Some(count) if count == shown => format!("{what}, "),
        Some(count) => format!("{what}: {shown} of {count}, "),
        None => format!("{what}: {shown} of many, "),
    };
    format!("{all}those with the most time in total first")
}

fn name(entry: &Entry) -> String {
    cut(&printable(entry.name.as_deref()), NAME_WIDTH)
}

/// A name that can be shown anywhere; `-` where it is unknown.
pub(super) fn printable(name: Option<&str>) -> String {
    name.map_or_else(|| "-".to_owned(), |name| Printable(name).to_string())
}

fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width - 1).chain(['…']).collect()
}

/// How many; `+` where some may be among the others.
pub(super) fn packets(entry: &Entry) -> String {
    format!("{}{}", entry.lines, if entry.is_rest { "+" } else { "" })
}

pub(super) fn dominant(entry: &Entry) -> String {
    match entry.dominant() {
        Some((direction, stage, percent)) => format!("{} {stage} {percent} %", dir(direction)),
        None => "-".to_owned(),
    }
}

/// A time; `-` where it is unknown.
pub(super) struct Time(pub(super) Option<u64>);

impl Display for Time {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(ns) => write!(f, "{}", Human(ns)),
            None => f.write_str("-"),
        }
    }
}

/// A stretch of time in whole units, as people say it.
pub(super) struct Span(pub(super) u64);

impl Display for Span {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let s = self.0 / 1_000_000_000;
        let part = |number: u64, unit| if number > 0 { format!(" {number} {unit}") } else { String::new() };
        match s {
            ..1 if self.0.is_multiple_of(1_000_000) => write!(f, "{} ms", self.0 / 1_000_000),
            ..1 => write!(f, "{}", Human(self.0)),
            1..60 if self.0.is_multiple_of(1_000_000_000) => write!(f, "{s} s"),
            1..60 => write!(f, "{}", Human(self.0)),
            60..3_600 => write!(f, "{} min{}", s / 60, part(s % 60, "s")),
            3_600..86_400 => write!(f, "{} h{}", s / 3_600, part(s % 3_600 / 60, "min")),
            _ => write!(f, "{} d{}", s / 86_400, part(s % 86_400 / 3_600, "h")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_read_as_people_say_them() {
        const S: u64 = 1_000_000_000;
        let read = [
            (0, "0 ms"),
            (5_000_000, "5 ms"),
            (1_234, "1.23 us"),
            (S, "1 s"),
            (S * 3 / 2, "1.50 s"),
            (300 * S, "5 min"),
            (301 * S, "5 min 1 s"),
            (3_661 * S, "1 h 1 min"),
            (90_000 * S, "1 d 1 h"),
        ];
        for (ns, text) in read {
            assert_eq!(Span(ns).to_string(), text);
        }
    }
}
