//! Figures of a bench: read, shown, kept, compared.

mod tables;

use std::{collections::BTreeMap, fs, io::ErrorKind, path::Path};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// What may be more without being a rise: a figure repeats within a few per mille.
const TOLERANCE: f64 = 0.03;
/// The mode that others are compared with.
const NOTHING: &str = "nothing";

/// One message's cost.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
struct Cost {
    /// Of the bench: a table for each.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    part: String,
    mode: String,
    load: String,
    /// Instructions per message, everything included. A nanosecond is one in such a guest.
    #[serde(rename = "ns")]
    instructions: u64,
    /// The part of those in the tracing process; older records don't tell.
    #[serde(rename = "own_ns", skip_serializing_if = "Option::is_none")]
    own: Option<u64>,
    /// Lines per message.
    lines: f64,
    /// The requested bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
}

/// A run of the tool beside its loads.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
struct Run {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    part: String,
    mode: String,
    /// What it is beside, if that is one load.
    #[serde(skip_serializing_if = "Option::is_none")]
    load: Option<String>,
    start_ms: u64,
    stop_ms: u64,
    resident_kib: u64,
    /// The kernel's, for maps; older records don't tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    maps_kib: Option<u64>,
    lost: u64,
    /// What it said went wrong.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    said: Vec<String>,
}

/// A mode that was not measured, and why.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
struct LeftOut {
    mode: String,
    #[serde(rename = "left_out")]
    why: String,
}

/// All of one kernel's, in the order in which they were measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Figures {
    costs: Vec<Cost>,
    runs: Vec<Run>,
    left_out: Vec<LeftOut>,
}

impl Figures {
    /// From what a guest prints.
    pub(super) fn parse(output: &str) -> Result<Self> {
        let values: Vec<Value> = output
            .lines()
            .filter(|line| line.starts_with('{'))
            .map(|line| serde_json::from_str(line).with_context(|| format!("no figure: {line}")))
            .collect::<Result<_>>()?;
        Self::of(&values)
    }

    fn of(values: &[Value]) -> Result<Self> {
        let mut figures = Self::default();
        for value in values {
            let Self { costs, runs, left_out } = &mut figures;
            let read = if value["left_out"].is_string() {
                LeftOut::deserialize(value).map(|one| left_out.push(one))
            } else if value.get("ns").is_some() {
                Cost::deserialize(value).map(|one| costs.push(one))
            } else {
                Run::deserialize(value).map(|one| runs.push(one))
            };
            read.with_context(|| format!("no figure: {value}"))?;
        }
        Ok(figures)
    }

    /// As they are put on record.
    fn to_values(&self) -> Vec<Value> {
        let costs = self.costs.iter().map(|cost| json!(cost));
        costs.chain(self.runs.iter().map(|run| json!(run))).collect()
    }

    /// The figures that are compared, by name: what a mode adds to each load, and where it writes lines, the user side's part of that.
    fn compared(&self) -> BTreeMap<String, i64> {
        let added = self.added().into_iter();
        let added = added.map(|(mode, load, instructions, _)| (format!("{load}, {mode}"), instructions));
        let writing = self.costs.iter().filter(|cost| cost.lines >= 1.0);
        let own = writing.filter_map(|cost| {
            let name = format!("{}, {}, its own process", cost.load, cost.mode);
            Some((name, cost.own?.cast_signed()))
        });
        added.chain(own).collect()
    }

    /// What a mode adds to each load: (mode, load, instructions, lines).
    fn added(&self) -> Vec<(&str, &str, i64, f64)> {
        let bare: BTreeMap<&str, u64> = self
            .costs
            .iter()
            .filter(|cost| cost.mode == NOTHING)
            .map(|cost| (cost.load.as_str(), cost.instructions))
            .collect();
        let others = self.costs.iter().filter(|cost| cost.mode != NOTHING);
        others
            .filter_map(|cost| {
                let bare = bare.get(cost.load.as_str())?;
                Some((
                    cost.mode.as_str(),
                    cost.load.as_str(),
                    cost.instructions.cast_signed() - bare.cast_signed(),
                    cost.lines,
                ))
            })
            .collect()
    }
}

/// A number with a comma after each three digits.
fn grouped(number: i64) -> String {
    let digits = number.unsigned_abs().to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if number < 0 { format!("-{text}") } else { text }
}

/// The figures that are committed, by kernel.
pub(super) struct Record(Map<String, Value>);

/// How figures stand to those on record.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Comparison {
    /// A line for each figure that is on record.
    pub(super) lines: Vec<String>,
    /// A line for each figure that is not.
    pub(super) new: Vec<String>,
    /// Those that have risen.
    pub(super) risen: Vec<String>,
}

impl Record {
    /// Nothing if there is no such file.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => "{}".to_owned(),
            Err(error) => return Err(error).with_context(|| format!("can't read {}", path.display())),
        };
        let value: Value =
            serde_json::from_str(&text).with_context(|| format!("{} is no JSON", path.display()))?;
        Ok(Self(value.as_object().with_context(|| format!("{} is no object", path.display()))?.clone()))
    }

    pub(super) fn replace(&mut self, kernel: &str, figures: Figures) {
        self.0.insert(kernel.to_owned(), figures.to_values().into());
    }

    pub(super) fn to_text(&self) -> String {
        let kernels: Vec<String> = self
            .0
            .iter()
            .map(|(kernel, figures)| {
                let figures: Vec<String> =
                    figures.as_array().into_iter().flatten().map(|figure| format!("  {figure}")).collect();
                format!("{}: [\n{}\n]", json!(kernel), figures.join(",\n"))
            })
            .collect();
        format!("{{\n{}\n}}\n", kernels.join(",\n"))
    }

    /// The figures of a kernel, if there are some.
    fn figures(&self, kernel: &str) -> Option<Figures> {
        Figures::of(self.0.get(kernel)?.as_array()?).ok()
    }

    /// What a document quotes: the tables of a kernel, or one figure.
    pub(super) fn quote(&self, what: &str) -> Result<String> {
        let mut words = what.split("; ");
        let kernel = words.next().unwrap_or(what);
        let mut figures =
            self.figures(kernel).with_context(|| format!("no figures of Linux {kernel} are on record"))?;
        let (Some(mode), Some(load)) = (words.next(), words.next()) else {
            // The tool's footers are for the one who measures.
            figures.runs.iter_mut().for_each(|run| run.said.clear());
            return Ok(format!("\n\n{}\n", figures.table()));
        };
        let added = figures.added().into_iter().find(|(m, l, ..)| (*m, *l) == (mode, load));
        let (.., instructions, _) = added.with_context(|| format!("no such figure is on record: {what}"))?;
        Ok(grouped(instructions))
    }

    pub(super) fn compare(&self, kernel: &str, now: &Figures) -> Comparison {
        let recorded = self.figures(kernel).unwrap_or_default().compared();
        let now = now.compared();
        let mut comparison = Comparison::default();
        for (name, before) in &recorded {
            let Some(after) = now.get(name) else { continue };
            let change = (after - before) as f64 / (*before).max(1) as f64;
            let line =
                format!("{name}: {} → {} ({:+.1} %)", grouped(*before), grouped(*after), change * 100.0);
            if change > TOLERANCE {
                comparison.risen.push(line.clone());
            }
            comparison.lines.push(line);
        }
        for (name, instructions) in &now {
            if !recorded.contains_key(name) {
                comparison.new.push(format!("{name}: {} (new)", grouped(*instructions)));
            }
        }
        comparison
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(stream: u64) -> String {
        format!(
            "noise\n{{\"mode\":\"nothing\",\"load\":\"tcp\",\"ns\":30000,\"lines\":0.0}}\n\
             {{\"mode\":\"stream\",\"load\":\"tcp\",\"ns\":{stream},\"lines\":4.0}}\n\
             {{\"mode\":\"stream\",\"start_ms\":700,\"stop_ms\":90,\"resident_kib\":5200,\"lost\":0}}\n"
        )
    }

    #[test]
    fn a_rise_of_more_than_the_tolerance_is_told() {
        let mut record = Record(Map::new());
        record.replace("6.1", Figures::parse(&output(40_000)).expect("figures"));
        let record = Record(
            serde_json::from_str::<Value>(&record.to_text())
                .expect("JSON")
                .as_object()
                .expect("object")
                .clone(),
        );
        let compare = |stream| record.compare("6.1", &Figures::parse(&output(stream)).expect("figures"));
        assert!(compare(40_290).risen.is_empty() && compare(20_000).risen.is_empty());
        assert_eq!(compare(40_310).risen, ["tcp, stream: 10,000 → 10,310 (+3.1 %)"]);
        assert_eq!(record.compare("7.2", &Figures::default()), Comparison::default());
        // A figure that is not on record is told, and has not risen.
        let unknown = record.compare("7.2", &Figures::parse(&output(40_310)).expect("figures"));
        let new = vec!["tcp, stream: 10,310 (new)".to_owned()];
        assert_eq!(unknown, Comparison { new, ..Comparison::default() });
    }

    #[test]
    fn a_rise_of_the_user_sides_part_is_told() {
        let output = |own: u64| {
            format!(
                "{{\"mode\":\"nothing\",\"load\":\"tcp\",\"ns\":30000,\"own_ns\":0,\"lines\":0.0}}\n\
                 {{\"mode\":\"stream\",\"load\":\"tcp\",\"ns\":40000,\"own_ns\":{own},\"lines\":4.0}}\n"
            )
        };
        let mut record = Record(Map::new());
        record.replace("6.1", Figures::parse(&output(3_400)).expect("figures"));
        let compared = record.compare("6.1", &Figures::parse(&output(3_600)).expect("figures"));
        assert_eq!(compared.risen, ["tcp, stream, its own process: 3,400 → 3,600 (+5.9 %)"]);
        assert_eq!(compared.lines.len(), 2);
    }

    #[test]
    fn what_is_no_figure_is_an_error() {
        assert!(Figures::parse("{\"mode\":\"stream\",\"load\":\"tcp\"}").is_err());
        assert!(Figures::parse("{").is_err());
    }
}
