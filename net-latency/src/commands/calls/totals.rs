//! Which functions were called how often and for how long, over the whole run, and the calls missing there.

use std::{io, time::Duration};

use net_latency_common::{CallCounter, CallCounters, CallRecord};
use serde::Serialize;

use super::{
    names::Functions,
    tree::{duration_ns, self_ns},
};
use crate::{
    accounting::{
        Human, Percentiles, Times, UNWRITTEN,
        object::{Head, Kind, View},
    },
    message::{counted, write_counts},
    output::write_footer,
    request::FooterFormat,
};

/// Figures of each function, by its number.
#[derive(Debug, Default)]
pub(super) struct Totals {
    functions: Vec<Option<Box<Figures>>>,
    pub(super) calls: u64,
}

#[derive(Debug)]
struct Figures {
    times: Times,
    self_ns: u64,
}

impl Totals {
    pub(super) fn add(&mut self, call: &CallRecord, functions: &Functions) {
        let Some(number) = functions.number(call.function) else { return };
        if self.functions.len() <= number {
            self.functions.resize_with(functions.len(), || None);
        }
        let new = || Box::new(Figures { times: Times::default(), self_ns: 0 });
        let figures = self.functions[number].get_or_insert_with(new);
        figures.times.add(duration_ns(call));
        figures.self_ns += self_ns(call);
        self.calls += 1;
    }

    /// The functions that were called, by their number, those that took the most time by themselves first.
    fn rows(&self) -> Vec<(usize, &Figures)> {
        let mut rows: Vec<_> =
            (0..).zip(&self.functions).filter_map(|(n, row)| Some((n, row.as_deref()?))).collect();
        rows.sort_by_key(|(number, row)| (std::cmp::Reverse(row.self_ns), *number));
        rows
    }

    /// Writes a row per function that was called.
    pub(super) fn write(&self, functions: &Functions, out: &mut impl io::Write) -> io::Result<()> {
        let rows = self.rows();
        if rows.is_empty() {
            return Ok(());
        }
        let name = |number: usize| functions.by_number(number).name.as_str();
        let width = rows.iter().map(|(number, _)| name(*number).len()).max().unwrap_or(0).max(8);
        writeln!(
            out,
            "  {:<width$}{:>10}{:>9}{:>9}{:>9}{:>11}",
            "function", "calls", "p50", "p99", "max", "self total"
        )?;
        for (number, row) in rows {
            let time = |ns: Option<u64>| Human(ns.unwrap_or(0)).to_string();
            writeln!(
                out,
                "  {:<width$}{:>10}{:>9}{:>9}{:>9}{:>11}",
                name(number),
                row.times.count(),
                time(row.times.quantile(500)),
                time(row.times.quantile(990)),
                time(row.times.max()),
                time(Some(row.self_ns)),
            )?;
        }
        Ok(())
    }
}

/// The summary at the end.
#[derive(Debug)]
pub(super) struct Footer<'a> {
    pub(super) totals: &'a Totals,
    pub(super) functions: &'a Functions,
    pub(super) elapsed: Duration,
    /// Outermost calls that were shown.
    pub(super) shown: u64,
    /// And those that were not slow enough.
    pub(super) fast: u64,
    pub(super) counters: CallCounters,
    /// Calls that had not returned.
    pub(super) under_way: u64,
    /// Calls that are in the figures and were not shown, because too many waited for their outermost one.
    pub(super) cut: u64,
    /// Lines that the reader of the output did not take.
    pub(super) unwritten: u64,
    /// How often the kernel skipped a program, if it counts that.
    pub(super) skipped: Option<u64>,
}

impl Footer<'_> {
    /// Calls that were neither shown nor are in the figures, though they came.
    pub(super) fn lost(counters: &CallCounters) -> u64 {
        [CallCounter::RingFull, CallCounter::NoReturn, CallCounter::TooDeep, CallCounter::NoRoom]
            .into_iter()
            .map(|counter| counters.get(counter))
            .sum()
    }

    pub(super) fn write(&self, form: FooterFormat, out: &mut Vec<u8>) -> io::Result<()> {
        write_footer(form, out, |out| self.write_text(out), || Object::new(self))
    }

    fn write_text(&self, out: &mut impl io::Write) -> io::Result<()> {
        write!(
            out,
            "net-latency: {} in {:.1} s, {} lost; {} outermost shown",
            counted(self.totals.calls, "call"),
            self.elapsed.as_secs_f64(),
            Self::lost(&self.counters),
            self.shown
        )?;
        if self.fast > 0 {
            write!(out, ", {} faster than --slower", self.fast)?;
        }
        writeln!(out)?;
        self.totals.write(self.functions, out)?;
        let of = |counter| self.counters.get(counter);
        let fates = [
            (
                of(CallCounter::RingFull),
                ("call", "lost: the buffer was full; a larger --buffer, a filter or fewer functions help"),
            ),
            (
                of(CallCounter::NoReturn),
                (
                    "call",
                    "lost: no return was seen (the kernel had no room for more returns of that function, or the \
                     thread ended)",
                ),
            ),
            (of(CallCounter::TooDeep), ("call", "lost: nested too deeply")),
            (of(CallCounter::NoRoom), ("call", "lost: too many threads were in traced calls")),
            (
                of(CallCounter::NoEntry),
                ("return", "skipped: the call began before the start, or found no room"),
            ),
            (self.under_way, ("call", "without a return by the end")),
            (self.cut, ("call", "only in this table: too many waited for their outermost call to return")),
            (self.unwritten, UNWRITTEN),
            (self.skipped.unwrap_or(0), ("event", "skipped by the kernel: calls lack their entry or return")),
        ];
        write_counts(&fates, out)?;
        if self.skipped.is_none() {
            writeln!(out, "  this kernel does not count skipped calls")?;
        }
        Ok(())
    }
}

/// The totals for programs; docs/footer.schema.json describes them.
#[derive(Serialize)]
struct Object<'a> {
    #[serde(flatten)]
    head: Head,
    calls: u64,
    shown: u64,
    filtered: u64,
    lost: u64,
    in_flight: u64,
    skipped_calls: Option<u64>,
    losses: Lost,
    figures_only: u64,
    begun_before: u64,
    functions: Vec<Function<'a>>,
}

#[derive(Serialize)]
struct Lost {
    ring_full: u64,
    no_return: u64,
    too_deep: u64,
    stack_table_full: u64,
    unwritten: u64,
}

#[derive(Serialize)]
struct Function<'a> {
    function: &'a str,
    count: u64,
    min_ns: Option<u64>,
    #[serde(flatten)]
    percentiles: Percentiles,
    self_ns: u64,
}

impl<'a> Object<'a> {
    fn new(footer: &Footer<'a>) -> Self {
        let count = |counter| footer.counters.get(counter);
        let function = |(number, row): (usize, &Figures)| Function {
            function: &footer.functions.by_number(number).name,
            count: row.times.count(),
            min_ns: row.times.min(),
            percentiles: row.times.figures().percentiles,
            self_ns: row.self_ns,
        };
        Self {
            head: Head::new(Kind::End, View::Calls, footer.elapsed),
            calls: footer.totals.calls,
            shown: footer.shown,
            filtered: footer.fast,
            lost: Footer::lost(&footer.counters),
            in_flight: footer.under_way,
            skipped_calls: footer.skipped,
            losses: Lost {
                ring_full: count(CallCounter::RingFull),
                no_return: count(CallCounter::NoReturn),
                too_deep: count(CallCounter::TooDeep),
                stack_table_full: count(CallCounter::NoRoom),
                unwritten: footer.unwritten,
            },
            figures_only: footer.cut,
            begun_before: count(CallCounter::NoEntry),
            functions: footer.totals.rows().into_iter().map(function).collect(),
        }
    }
}
