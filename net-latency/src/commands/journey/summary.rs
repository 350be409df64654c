//! Where the time of several packets went, stage by stage.

use std::{
    collections::BTreeMap,
    fmt::Arguments,
    io::{self, Write},
};

use serde::Serialize;

use super::model::Journey;
use crate::{
    accounting::{Human, Times},
    probes::journey::Stage,
};

/// The times of all packets that were shown. Its size does not depend on their number.
#[derive(Debug, Default)]
pub(super) struct Summary {
    stages: BTreeMap<Stage, Part>,
    total: Times,
    total_ns: u128,
}

/// One stage of those packets that were in it.
#[derive(Debug, Default)]
struct Part {
    times: Times,
    sum_ns: u128,
    /// Packets that were in no other stage for longer.
    longest: u64,
}

impl Part {
    /// Its share of the time of all packets, percent.
    fn share(&self, total_ns: u128) -> u64 {
        let share = (self.sum_ns * 100 + total_ns / 2).checked_div(total_ns);
        share.and_then(|share| u64::try_from(share).ok()).unwrap_or(0)
    }
}

/// A stage as JSON has it.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct StageObject {
    stage: &'static str,
    packets: u64,
    p50_ns: Option<u64>,
    max_ns: Option<u64>,
    share: u64,
    longest_of: u64,
}

impl Summary {
    /// Adds a packet.
    pub(super) fn add(&mut self, journey: &Journey) {
        let stages = journey.stages();
        for (stage, ns) in &stages {
            let part = self.stages.entry(*stage).or_default();
            part.times.add(*ns);
            part.sum_ns += u128::from(*ns);
        }
        // The first of equals.
        let longest = stages.iter().rev().max_by_key(|(_, ns)| *ns).filter(|(_, ns)| *ns > 0);
        if let Some(part) = longest.and_then(|(stage, _)| self.stages.get_mut(stage)) {
            part.longest += 1;
        }
        self.total.add(journey.total());
        self.total_ns += u128::from(journey.total());
    }

    /// Each stage, in the order of a packet's way.
    pub(super) fn objects(&self) -> Vec<StageObject> {
        let object = |(stage, part): (&Stage, &Part)| StageObject {
            stage: stage.name(),
            packets: part.times.count(),
            p50_ns: part.times.quantile(500),
            max_ns: part.times.max(),
            share: part.share(self.total_ns),
            longest_of: part.longest,
        };
        self.stages.iter().map(object).collect()
    }

    /// Writes a table of them and what it comes to; nothing of a single packet, which has its own line of stages.
    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let packets = self.total.count();
        if packets < 2 {
            return Ok(());
        }
        writeln!(
            out,
            "  {:14} {:>7} {:>7} {:>7} {:>6} {:>10}",
            "stage", "packets", "p50", "max", "share", "longest of"
        )?;
        for (stage, part) in &self.stages {
            let share = part.share(self.total_ns);
            write_row(out, stage.name(), &part.times, format_args!(" {share:>4} % {:>10}", part.longest))?;
        }
        write_row(out, "total", &self.total, format_args!(""))?;
        let most = self.stages.iter().rev().max_by_key(|(_, part)| part.sum_ns);
        let often = self.stages.iter().rev().max_by_key(|(_, part)| (part.longest, part.sum_ns));
        if let (Some((most, part)), Some((often, usual))) = (most, often)
            && part.sum_ns > 0
        {
            write!(
                out,
                "  most time: {}, {} % of the time of all packets",
                most.name(),
                part.share(self.total_ns)
            )?;
            if most == often {
                writeln!(out, "; the longest stage in {} of {packets}", part.longest)?;
            } else {
                writeln!(
                    out,
                    ", but the longest stage in only {} of {packets}; {} in {}",
                    part.longest,
                    often.name(),
                    usual.longest
                )?;
            }
        }
        Ok(())
    }
}

fn write_row(out: &mut impl Write, name: &str, times: &Times, rest: Arguments<'_>) -> io::Result<()> {
    let [p50, max] = [times.quantile(500), times.max()].map(|ns| Human(ns.unwrap_or(0)).to_string());
    writeln!(out, "  {name:14} {:>7} {p50:>7} {max:>7}{rest}", times.count())
}
