//! What the tool says of a run with `--footer json` (docs/footer.schema.json), at its end and after each interval.

use std::{fmt, ops::Deref};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

/// The figures of a run, or of an interval of it.
#[derive(Debug)]
pub(crate) struct Footer(Value);

impl Deref for Footer {
    type Target = Value;

    fn deref(&self) -> &Value {
        &self.0
    }
}

impl fmt::Display for Footer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Footer {
    /// Those of a line of standard error, if it is one of them: no other line begins so.
    pub(crate) fn parse(line: &str) -> Result<Option<Self>> {
        if !line.starts_with('{') {
            return Ok(None);
        }
        let value = serde_json::from_str(line).with_context(|| format!("not JSON: {line}"))?;
        Ok(Some(Self(value)))
    }

    /// Whether they are of the whole run.
    pub(crate) fn is_end(&self) -> bool {
        self.0["kind"] == "end"
    }

    /// One of them, by its name, or by that of an object and one in it: `losses.ring_full`.
    pub(crate) fn figure(&self, path: &str) -> Result<u64> {
        let value = path.split('.').fold(&self.0, |value, name| &value[name]);
        value.as_u64().with_context(|| format!("no {path} in {}", self.0))
    }

    /// Calls that the kernel skipped; `None` where it doesn't count them.
    pub(crate) fn skipped_calls(&self) -> Option<u64> {
        self.0["skipped_calls"].as_u64()
    }

    /// Where packets without a line are, and what was lost or skipped, by its own account.
    pub(crate) fn missing(&self) -> String {
        const PLACES: [&str; 7] = [
            "dropped",
            "duplicates",
            "waiting",
            "inconsistent",
            "in_flight",
            "counted_twice",
            "skipped_calls",
        ];
        let losses = self.0["losses"].as_object().into_iter().flatten();
        let losses = losses.map(|(name, count)| (name.as_str(), count));
        let counts = PLACES.into_iter().map(|name| (name, &self.0[name])).chain(losses);
        let counted = counts.filter(|(_, count)| count.as_u64().is_some_and(|count| count > 0));
        let counted: Vec<_> = counted.map(|(name, count)| format!("{name} {count}")).collect();
        if counted.is_empty() { "nothing".to_owned() } else { counted.join(", ") }
    }

    /// Packets whose times can't be theirs, and which were left out: none of a run that shows packets.
    pub(crate) fn inconsistent(&self) -> u64 {
        let counts = [&self.0["inconsistent"], &self.0["losses"]["slow_inconsistent"]];
        counts.into_iter().filter_map(Value::as_u64).sum()
    }

    /// The entry of a function, by `calls`.
    pub(crate) fn function(&self, name: &str) -> Option<&Value> {
        self.0["functions"].as_array()?.iter().find(|function| function["function"] == name)
    }

    /// Where all packets are.
    pub(crate) fn ledger(&self) -> Result<Ledger> {
        let ledger = Ledger {
            seen: self.figure("seen")?,
            shown: self.figure("shown")?,
            filtered: self.figure("filtered")?,
            lost: self.figure("lost")?,
            dropped: self.figure("dropped")?,
            duplicates: self.figure("duplicates")?,
            waiting: self.figure("waiting")?,
            outside: self.figure("outside")?,
            inconsistent: self.figure("inconsistent")?,
            from_before: self.figure("from_before")?,
            in_flight: self.figure("in_flight")?,
            counted_twice: self.figure("counted_twice")?,
        };
        let Ledger { in_flight, counted_twice, .. } = ledger;
        let sum = ledger.places().into_iter().sum::<u64>() + in_flight;
        ensure!(
            ledger.seen + ledger.from_before + counted_twice == sum,
            "the ledger does not add up: {ledger:?}"
        );
        Ok(ledger)
    }
}

/// Where all packets of a run are.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) seen: u64,
    pub(crate) shown: u64,
    pub(crate) filtered: u64,
    pub(crate) lost: u64,
    pub(crate) dropped: u64,
    pub(crate) duplicates: u64,
    pub(crate) waiting: u64,
    pub(crate) outside: u64,
    pub(crate) inconsistent: u64,
    pub(crate) from_before: u64,
    pub(crate) in_flight: u64,
    pub(crate) counted_twice: u64,
}

impl Ledger {
    /// Those that have a place.
    pub(crate) fn places(&self) -> [u64; 8] {
        let Self { shown, filtered, lost, dropped, duplicates, waiting, outside, inconsistent, .. } = *self;
        [shown, filtered, lost, dropped, duplicates, waiting, outside, inconsistent]
    }

    /// By how many packets it does not close: those of which a hook was skipped, at the end of a run.
    pub(crate) fn open(&self) -> u64 {
        self.in_flight + self.counted_twice
    }
}
