//! A packet's way as a table, with a linear scale of time beside it.

use std::{fmt::Write as _, io::Write as _};

use unicode_width::UnicodeWidthStr as _;

use super::model::{Context, Journey, Outcome, Row};
use crate::{
    accounting::Human,
    clock::{Clock, TimeStyle, TimeText, Zone},
    escape::harmless,
};

/// The scale is no narrower, whatever the terminal is.
const NARROWEST: usize = 16;
/// A time between two places is long if it is such a part of the whole.
const LONG: u64 = 10;
/// Characters of the columns before the functions: time, delta, CPU, context.
const TIME: usize = 11;
const CONTEXT: usize = 24;

/// Appends a packet's way, `columns` wide.
pub(super) fn write(journey: &Journey, clock: Clock, zone: Zone, columns: usize, out: &mut Vec<u8>) {
    let (first, _) = journey.span();
    let total = journey.total();
    TimeText::new(zone, TimeStyle::Calendar).write(clock.to_utc_ns(first), out);
    write_head(journey, total, out);

    let functions = widest(journey.rows.iter().map(|row| row.function.len()), "function");
    let devices = widest(journey.rows.iter().map(|row| device(row).width()), "device");
    let before = TIME + 1 + TIME + 5 + 2 + CONTEXT + 1 + functions + 1 + devices + 1;
    let scale = columns.saturating_sub(before + 2).max(NARROWEST);
    line(
        out,
        format_args!(
            "{:>TIME$} {:>TIME$} {:>4}  {:CONTEXT$} {:functions$} {:devices$} |{:<half$}{:>rest$}|",
            "us",
            "delta",
            "CPU",
            "context",
            "function",
            "device",
            "0",
            Human(total).to_string(),
            half = scale / 2,
            rest = scale - scale / 2,
        ),
    );
    let mut previous: Option<&Row> = None;
    for row in &journey.rows {
        let delta = previous.map_or_else(|| "-".to_owned(), |previous| microseconds(row.at, previous.at));
        let since = microseconds(row.at, first);
        let bar = bar(previous.map(|row| row.at), row.at, first, total, scale);
        let text = format!(
            "{since:>TIME$} {delta:>TIME$} {:>4}  {} {:functions$} {} |{bar}",
            row.cpu,
            padded(&context(&row.context), CONTEXT),
            row.function,
            padded(&device(row), devices),
        );
        line(out, format_args!("{}", text.trim_end()));
        previous = Some(row);
    }
    write_foot(journey, total, out);
    out.push(b'\n');
}

fn write_head(journey: &Journey, total: u64, out: &mut Vec<u8>) {
    let mut head = format!(
        " {} {} > {}, {} bytes",
        journey.protocol.name(),
        end(journey.source),
        end(journey.destination),
        journey.len
    );
    let mut also = |text: std::fmt::Arguments<'_>| head.write_fmt(text).expect("memory can be written");
    if let Some(seq) = journey.seq {
        also(format_args!(", seq {seq}"));
    }
    if journey.mark != 0 {
        also(format_args!(", mark {:#x}", journey.mark));
    }
    let total = Human(total);
    match &journey.outcome {
        Outcome::Read { comm, pid } => {
            also(format_args!(": read after {total} by {}, PID {pid}", harmless(Some(comm))));
        }
        Outcome::Dropped { function, reason } => {
            also(format_args!(": dropped after {total}"));
            if let Some(function) = function {
                also(format_args!(" in {function}"));
            }
            if let Some(reason) = reason {
                also(format_args!(", reason {reason}"));
            }
        }
        Outcome::Freed => also(format_args!(": freed after {total}")),
        Outcome::Waiting => also(format_args!(": not read yet, last seen after {total}")),
        Outcome::Lost => also(format_args!(": no end seen, last seen after {total}")),
    }
    line(out, format_args!("{head}"));
}

fn write_foot(journey: &Journey, total: u64, out: &mut Vec<u8>) {
    let stages: Vec<_> =
        journey.stages().iter().map(|(stage, ns)| format!("{} {}", stage.name(), Human(*ns))).collect();
    if !stages.is_empty() {
        line(out, format_args!("Stages: {}", stages.join(", ")));
    }
    if let Some(gap) = journey.longest() {
        let (from, to) = (&journey.rows[gap.to - 1].function, &journey.rows[gap.to].function);
        let (ns, total) = (Human(gap.ns), Human(total));
        line(out, format_args!("Longest: {ns} of {total} between {from} and {to}: {}", gap.stage.name()));
    }
}

/// Where the time went that ended here: dashes while it passed, equals signs if it was long.
fn bar(previous: Option<u64>, at: u64, first: u64, total: u64, width: usize) -> String {
    let column = |at: u64| {
        let since = u128::from(at.saturating_sub(first)) * (width as u128 - 1);
        usize::try_from(since / u128::from(total.max(1))).unwrap_or(0).min(width - 1)
    };
    if at < first {
        return "<".to_owned();
    }
    let from = previous.map_or(0, column);
    let is_long = previous.is_some_and(|previous| (at - previous.max(first)) * LONG >= total && total > 0);
    let fill = if is_long { "=" } else { "-" };
    let to = column(at);
    let start = if previous.is_some() { from } else { to };
    format!("{}{}*", " ".repeat(start), fill.repeat(to - start))
}

fn end((address, port): (std::net::IpAddr, u16)) -> String {
    std::net::SocketAddr::new(address, port).to_string()
}

fn context(context: &Context) -> String {
    match context {
        Context::Process { comm, pid, .. } => format!("{}/{pid}", harmless(Some(comm))),
        Context::Unknown => "-".to_owned(),
        Context::Softirq | Context::Hardirq => context.kind().to_owned(),
    }
}

/// The device, or whose interrupt it is.
fn device(row: &Row) -> String {
    harmless(Some(row.interrupt.as_ref().map_or(&row.device, |names| names.as_bytes())))
}

/// Microseconds between two times, with the digits of ns.
fn microseconds(at: u64, from: u64) -> String {
    let ns = at.abs_diff(from);
    let sign = if at < from { "-" } else { "" };
    format!("{sign}{}.{:03}", ns / 1_000, ns % 1_000)
}

fn padded(text: &str, width: usize) -> String {
    let short = text.width();
    format!("{text}{}", " ".repeat(width.saturating_sub(short)))
}

fn widest(lengths: impl Iterator<Item = usize>, head: &str) -> usize {
    lengths.max().unwrap_or(0).max(head.len())
}

fn line(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    writeln!(out, "{text}").expect("memory can be written");
}
