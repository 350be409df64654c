//! Figures as tables in Markdown.

use std::fmt::Write as _;

use super::{Figures, LeftOut, NOTHING, Run, grouped};

impl Figures {
    /// All of them, part by part.
    pub(in crate::bench) fn table(&self) -> String {
        let parts = distinct(self.costs.iter().map(|cost| cost.part.as_str()));
        let tables = parts.into_iter().map(|part| {
            let title = if part.is_empty() { String::new() } else { format!("{part}:\n\n") };
            title + &self.of_part(part).tables_of_part()
        });
        let mut text = tables.collect::<Vec<_>>().join("\n");
        for LeftOut { mode, why } in &self.left_out {
            text += &format!("\n{mode} is left out: {why}\n");
        }
        text
    }

    fn of_part(&self, part: &str) -> Self {
        Self {
            costs: self.costs.iter().filter(|cost| cost.part == part).cloned().collect(),
            runs: self.runs.iter().filter(|run| run.part == part).cloned().collect(),
            left_out: Vec::new(),
        }
    }

    /// What the process takes for an answer, and how long that is.
    fn answers(&self) -> String {
        let forms = distinct(self.costs.iter().map(|cost| cost.mode.as_str()));
        let loads = distinct(self.costs.iter().map(|cost| cost.load.as_str()));
        grid("instructions, bytes", &forms, &loads, |form, load| {
            let cost = self.costs.iter().find(|cost| cost.mode == form && cost.load == load)?;
            let [instructions, bytes] = [cost.own?, cost.bytes?].map(|number| grouped(number.cast_signed()));
            Some(format!("{instructions} ({bytes} B)"))
        })
    }

    fn tables_of_part(&self) -> String {
        if self.costs.iter().any(|cost| cost.bytes.is_some()) {
            return self.answers();
        }
        let of =
            |mode: &str, load: &str| self.costs.iter().find(|cost| cost.mode == mode && cost.load == load);
        let loads = distinct(self.costs.iter().map(|cost| cost.load.as_str()));
        let modes =
            distinct(self.costs.iter().map(|cost| cost.mode.as_str()).filter(|mode| *mode != NOTHING));
        let added = self.added();
        let mut columns = vec!["bare"];
        columns.extend(&modes);
        let mut text = grid("instructions added", &columns, &loads, |mode, load| {
            if mode == "bare" {
                return of(NOTHING, load).map(|cost| grouped(cost.instructions.cast_signed()));
            }
            let (.., instructions, lines) = added.iter().find(|(m, l, ..)| *m == mode && *l == load)?;
            let lines = if *lines > 0.0 { format!(" ({lines:.1} lines)") } else { String::new() };
            Some(format!("{}{lines}", grouped(*instructions)))
        });
        let own = |mode: &str, load: &str| of(mode, load)?.own.filter(|own| *own > 0);
        let modes: Vec<_> =
            modes.into_iter().filter(|mode| loads.iter().any(|load| own(mode, load).is_some())).collect();
        if !modes.is_empty() {
            text += "\n";
            text += &grid("of these, its own process", &modes, &loads, |mode, load| {
                own(mode, load).map(|own| grouped(own.cast_signed()))
            });
        }
        text + &self.table_of_runs()
    }

    fn table_of_runs(&self) -> String {
        let mut text = String::new();
        if !self.runs.is_empty() {
            text += "\n| | start | stop | resident | kernel maps | lines lost |\n|---|--:|--:|--:|--:|--:|\n";
        }
        for run in &self.runs {
            let Run { start_ms, stop_ms, resident_kib, maps_kib, lost, .. } = run;
            let maps = maps_kib.map(|kib| format!("{kib} KiB")).unwrap_or_default();
            text += &format!(
                "| {} | {start_ms} ms | {stop_ms} ms | {resident_kib} KiB | {maps} | {lost} |\n",
                run.name()
            );
        }
        let mut separator = "\n";
        for run in self.runs.iter().filter(|run| !run.said.is_empty()) {
            text += &format!("{separator}- {}: {}\n", run.name(), run.said.join("; "));
            separator = "";
        }
        text
    }
}

impl Run {
    fn name(&self) -> String {
        let load = self.load.as_ref().map(|load| format!(", {load}")).unwrap_or_default();
        format!("{}{load}", self.mode)
    }
}

/// A table with a row for each load.
fn grid(head: &str, columns: &[&str], loads: &[&str], cell: impl Fn(&str, &str) -> Option<String>) -> String {
    let mut text = format!("| {head} | {} |\n|---|{}\n", columns.join(" | "), "--:|".repeat(columns.len()));
    for load in loads {
        write!(text, "| {load} |").expect("a string takes everything");
        for column in columns {
            write!(text, " {} |", cell(column, load).unwrap_or_default()).expect("a string takes everything");
        }
        text.push('\n');
    }
    text
}

fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut found = Vec::new();
    for name in names {
        if !found.contains(&name) {
            found.push(name);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_is_shown() {
        let output = r#"noise
{"mode":"nothing","load":"tcp","ns":30000,"lines":0.0}
{"mode":"stream","load":"tcp","ns":1042345,"own_ns":5000,"lines":4.0}
{"mode":"stream","start_ms":700,"stop_ms":90,"resident_kib":5200,"lost":0}
{"mode":"other","left_out":"there is none"}
{"part":"growth","mode":"nothing","load":"10 flows","ns":1,"own_ns":0,"lines":0.0}
{"part":"growth","mode":"stream","load":"10 flows","ns":3,"own_ns":0,"lines":4.0}
{"part":"growth","mode":"stream","load":"10 flows","start_ms":7,"stop_ms":9,"resident_kib":52,"maps_kib":11,"lost":3,"said":["3 x","4 y"]}
{"part":"scrapes","mode":"text","load":"64 groups","ns":9000,"own_ns":8000,"lines":0.0,"bytes":2200000}
"#;
        assert_eq!(
            Figures::parse(output).expect("figures").table(),
            "| instructions added | bare | stream |\n|---|--:|--:|\n| tcp | 30,000 | 1,012,345 (4.0 lines) |\n\n\
             | of these, its own process | stream |\n|---|--:|\n| tcp | 5,000 |\n\n\
             | | start | stop | resident | kernel maps | lines lost |\n|---|--:|--:|--:|--:|--:|\n\
             | stream | 700 ms | 90 ms | 5200 KiB |  | 0 |\n\n\
             growth:\n\n\
             | instructions added | bare | stream |\n|---|--:|--:|\n| 10 flows | 1 | 2 (4.0 lines) |\n\n\
             | | start | stop | resident | kernel maps | lines lost |\n|---|--:|--:|--:|--:|--:|\n\
             | stream, 10 flows | 7 ms | 9 ms | 52 KiB | 11 KiB | 3 |\n\n\
             - stream, 10 flows: 3 x; 4 y\n\n\
             scrapes:\n\n\
             | instructions, bytes | text |\n|---|--:|\n| 64 groups | 8,000 (2,200,000 B) |\n\n\
             other is left out: there is none\n"
        );
    }
}
