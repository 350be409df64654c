//! All metrics, from the counts.

use net_latency_common::{Direction, ROW_TOTAL, TRAFFIC_KINDS, Unknown, row};

use super::{
    cells::{Cells, rows},
    groups::Groups,
    model::{MetricFamily, MetricType},
    names,
};
use crate::{
    accounting::{Ledger, Losses, reason_name},
    packet::{event::Protocol, stages},
    request::ExportBy,
};

/// The group of all that have no series of their own.
pub(super) const OTHER: &str = "other";
/// The column that is no stage but all of them.
const TOTAL: &str = "total";

/// A function or tracepoint that is hooked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hook {
    /// What it stamps.
    pub(crate) stage: &'static str,
    /// fentry, kprobe or tracepoint.
    pub(crate) mechanism: &'static str,
    /// Its name in the kernel.
    pub(crate) name: &'static str,
}

/// The counts at one moment.
pub(crate) struct Figures<'a> {
    pub(crate) by: ExportBy,
    pub(crate) groups: &'a Groups,
    /// The ledger of the run so far.
    pub(crate) ledger: Ledger,
    pub(crate) losses: &'a Losses,
    /// Calls that the kernel skipped; `None` where it doesn't count them.
    pub(crate) skipped: Option<u64>,
    pub(crate) hooks: &'a [Hook],
    /// Lines of slow packets that were written; `None` unless requested.
    pub(crate) slow_lines: Option<u64>,
}

impl Figures<'_> {
    /// All metrics but those of the process.
    pub(crate) fn families(&self) -> Vec<MetricFamily> {
        let mut families = vec![
            build(),
            self.hooks(),
            self.ledger(),
            self.losses(),
            self.overflow(),
            self.packets(),
            self.stages(),
            self.unknown(),
        ];
        if let Some(skipped) = self.skipped {
            let help = "Calls of hooks that the kernel skipped: their packets have gaps.";
            families.push(counter("net_latency_skipped_calls_total", help).with(&[], skipped as f64));
        }
        if let Some(lines) = self.slow_lines {
            let help = "Lines of packets slower than --slower, on standard output.";
            families.push(counter("net_latency_slow_lines_total", help).with(&[], lines as f64));
        }
        families
    }

    fn hooks(&self) -> MetricFamily {
        let help = "Functions and tracepoints that are hooked, by the stage that they stamp.";
        let mut family = MetricFamily::new("net_latency_hook_info", MetricType::Gauge, help);
        for Hook { stage, mechanism, name } in self.hooks {
            family.add(&[("stage", stage), ("mechanism", mechanism), ("hook", name)], 1.0);
        }
        family
    }

    fn ledger(&self) -> MetricFamily {
        let mut family = counter("net_latency_ledger_packets_total", "Packets by what became of them.");
        let Ledger { shown, filtered, lost, dropped, .. } = self.ledger;
        for (place, count) in [("shown", shown), ("filtered", filtered), ("lost", lost), ("dropped", dropped)]
        {
            family.add(&[("place", place)], count as f64);
        }
        family
    }

    fn losses(&self) -> MetricFamily {
        let mut family =
            counter("net_latency_losses_total", "What was lost, by the kinds that the footer names.");
        for loss in self.losses.kinds() {
            if let Some(name) = loss.name.filter(|name| !["unwritten", "not_kept"].contains(name)) {
                family.add(&[("kind", name)], loss.count as f64);
            }
        }
        family
    }

    fn overflow(&self) -> MetricFamily {
        let help = "Packets of groups beyond --series, which are in the group named other.";
        let packets = self.groups.others().all_packets();
        counter("net_latency_overflow_packets_total", help).with(&[], packets as f64)
    }

    fn packets(&self) -> MetricFamily {
        let mut family = counter("net_latency_packets_total", "Packets counted.");
        for traffic in 0..TRAFFIC_KINDS {
            let (direction, protocol) = stages::way(traffic);
            let labels = [("direction", stages::dir(direction)), ("protocol", protocol.name())];
            family.add(&labels, self.groups.all().packets(traffic) as f64);
        }
        family
    }

    fn stages(&self) -> MetricFamily {
        let help = "Time that packets spent between two stages in the kernel.";
        let mut family = MetricFamily::new("net_latency_stage_seconds", MetricType::Histogram, help);
        for (labels, cells) in self.groups.own() {
            let values: Vec<_> = labels.iter().map(String::as_str).collect();
            self.add_stages(&mut family, &values, cells);
        }
        let others = self.groups.others();
        if !others.is_empty() {
            self.add_stages(&mut family, &vec![OTHER; names::labels(self.by).len()], &others);
        }
        family
    }

    fn add_stages(&self, family: &mut MetricFamily, values: &[&str], cells: &Cells) {
        for (traffic, column) in rows() {
            let (direction, protocol) = stages::way(traffic);
            let Some(stage) = stage(direction, protocol, column) else { continue };
            let Some(histogram) = cells.histogram(row(traffic, column)) else { continue };
            let mut labels =
                vec![("direction", stages::dir(direction)), ("protocol", protocol.name()), ("stage", stage)];
            labels.extend(names::labels(self.by).iter().copied().zip(values.iter().copied()));
            family.add_histogram(&labels, histogram);
        }
    }

    fn unknown(&self) -> MetricFamily {
        let mut family = counter(
            "net_latency_unknown_times_total",
            "Stage times that are in no histogram, by the reason that they are unknown.",
        );
        let all = self.groups.all();
        for traffic in (0..TRAFFIC_KINDS).filter(|traffic| all.packets(*traffic) > 0) {
            let (direction, protocol) = stages::way(traffic);
            for (reason, count) in Unknown::ALL.into_iter().zip(all.unknown(traffic)) {
                let labels = [
                    ("direction", stages::dir(direction)),
                    ("protocol", protocol.name()),
                    ("reason", reason_name(reason)),
                ];
                family.add(&labels, count as f64);
            }
        }
        family
    }
}

pub(super) fn counter(name: &str, help: &str) -> MetricFamily {
    MetricFamily::new(name, MetricType::Counter, help)
}

fn build() -> MetricFamily {
    let family = MetricFamily::new("net_latency_build_info", MetricType::Gauge, "The exporter's version.");
    family.with(&[("version", env!("CARGO_PKG_VERSION"))], 1.0)
}

/// `None` for a part that such packets don't have.
fn stage(direction: Direction, protocol: Protocol, row: u32) -> Option<&'static str> {
    if row == ROW_TOTAL {
        return Some(TOTAL);
    }
    stages::of_row(direction, protocol, row as usize).map(|stage| stage.column)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, convert::Infallible, fs, path::Path, time::Instant};

    use insta::assert_snapshot;
    use net_latency_common::{CellKey, PART_CPU, ROWS, TRAFFIC_OUT, TRAFFIC_UDP, UNKNOWN, bucket};
    use regex_lite::Regex;

    use super::super::{
        connections,
        form::Form,
        groups::{Id, Name, Naming},
        process,
    };
    use super::*;
    use crate::request::choice::Choice as _;

    struct Pods;

    impl Naming for Pods {
        fn name(&mut self, [id, _]: Id) -> Name {
            Name::Known(vec!["shop".to_owned(), format!("web-{id}"), "nginx".to_owned()])
        }

        fn owner(&mut self, [id, _]: Id) -> u64 {
            id
        }

        fn is_gone(&self, _: Id) -> bool {
            false
        }
    }

    /// Groups, and what else is counted, that make every metric appear.
    fn families(by: ExportBy, naming: &mut impl Naming) -> Vec<MetricFamily> {
        let cell = |id, row, cell: usize, count| (CellKey { group: [id, 0], row, cell: cell as u32 }, count);
        let mut counts = [
            cell(1, row(0, 0), bucket(1_500), 3),
            cell(1, row(0, ROW_TOTAL), bucket(80_000), 3),
            cell(1, row(0, ROWS + PART_CPU as u32), bucket(60_000), 3),
            cell(1, row(TRAFFIC_OUT | TRAFFIC_UDP, 1), UNKNOWN + 1, 2),
            cell(1, row(TRAFFIC_OUT | TRAFFIC_UDP, ROW_TOTAL), bucket(4_000), 2),
            cell(2, row(0, ROW_TOTAL), bucket(9_000), 5),
        ];
        counts.sort_by_key(|(key, _)| (key.group, key.row, key.cell));
        let mut groups = Groups::new(1, usize::MAX);
        groups.look::<Infallible>(&counts, naming, Instant::now(), |_| Ok(true)).expect("nothing fails");
        let figures = Figures {
            by,
            groups: &groups,
            ledger: Ledger { shown: 10, filtered: 4, lost: 1, dropped: 2, ..Ledger::default() },
            losses: &Losses::default(),
            skipped: Some(7),
            hooks: &[Hook { stage: "tcp", mechanism: "fentry", name: "tcp_v4_rcv" }],
            slow_lines: Some(8),
        };
        let mut families = figures.families();
        families.extend(connections::tests::some().families(&[1, 2, 3], Some(4)));
        families
    }

    /// As much as one scrape may be with the usual number of series, and TCP alone.
    const MOST: usize = 4 << 20;

    /// A scrape while each cgroup of these paths has packets of TCP both ways.
    fn scrape(paths: &[Vec<u8>]) -> Vec<u8> {
        let mut names = names::Names::new(ExportBy::Cgroup);
        names.walk(|take| (1..).zip(paths).for_each(|(id, path)| take(id, path, Some(0))));
        let cells = |id| {
            let all = [0, TRAFFIC_OUT]
                .into_iter()
                .flat_map(|traffic| (0..ROWS).map(move |number| row(traffic, number)));
            let key = move |row| CellKey { group: [id, 0], row, cell: bucket(80_000) as u32 };
            let mut cells: Vec<_> = all.map(|row| (key(row), 1_000_000_007)).collect();
            cells.sort_by_key(|(key, _)| key.row);
            cells
        };
        let counts: Vec<_> = (1..=paths.len() as u64).flat_map(cells).collect();
        let mut groups = Groups::new(64, usize::MAX);
        groups.look::<Infallible>(&counts, &mut names, Instant::now(), |_| Ok(true)).expect("nothing fails");
        assert_eq!(groups.own().count(), paths.len().min(64));
        let figures = Figures {
            by: ExportBy::Cgroup,
            groups: &groups,
            ledger: Ledger::default(),
            losses: &Losses::default(),
            skipped: None,
            hooks: &[],
            slow_lines: None,
        };
        Form::Text.encode(&figures.families())
    }

    #[test]
    fn a_scrape_has_a_bound_whatever_the_names() {
        let below = |path: &[u8], name: &[u8]| [path, b"/", name].concat();
        let mut nested = vec![b"/user.slice".to_vec()];
        (0..70).for_each(|depth: usize| nested.push(below(&nested[depth], &[1; 230])));
        // What an honest host has.
        let usual: Vec<_> =
            (0..70).map(|id| format!("/system.slice/unit-{id}.service").into_bytes()).collect();
        let long = (0..9_000).map(|id| below(&nested[60], format!("{id:0>255}").as_bytes())).collect();
        let quotes = (0..70u8).map(|id| below(b"", &[&[b'\"'; 200][..], &[id]].concat())).collect();
        let usual = scrape(&usual).len();
        for paths in [nested, long, quotes] {
            let bytes = scrape(&paths).len();
            assert!(bytes <= MOST && bytes < usual * 2, "{bytes}, and usually {usual}");
        }
    }

    #[test]
    fn all_metrics_have_the_names_of_the_interface() {
        let text = String::from_utf8(Form::Text.encode(&families(ExportBy::Pod, &mut Pods))).expect("text");
        // The first and the last edge of each histogram.
        let is_inner =
            |line: &&str| !line.contains("_bucket{") || line.contains("2.55e-07") || line.contains("+Inf");
        assert_snapshot!(text.lines().filter(is_inner).collect::<Vec<_>>().join("\n"));
    }

    /// A file of the repository.
    fn file(path: &str) -> String {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    #[test]
    fn rules_dashboard_and_documents_name_no_metric_or_label_that_is_not_there() {
        let mut all = families(ExportBy::Pod, &mut Pods);
        all.extend(process::families(1.0).expect("/proc is mounted"));
        let names: BTreeSet<_> = all.iter().map(|family| family.name().to_owned()).collect();
        let of_prometheus = ["job", "instance", "le", "__name__"];
        let all_by = ExportBy::ALL.iter().flat_map(|(by, ..)| names::labels(*by));
        let of_metrics = all.iter().flat_map(|family| &family.metric).flat_map(|metric| &metric.label);
        let labels: BTreeSet<_> =
            of_metrics.map(|label| label.name()).chain(of_prometheus).chain(all_by.copied()).collect();
        let metric =
            Regex::new(r"\b(?:instance(?:_stage)?:)?((?:net_latency|process)_[a-z_]+)").expect("a pattern");
        let selector = Regex::new(r#"[{,]\s*([a-z_]+)\s*(?:=~|!~|!=|=)\s*\\?["']"#).expect("a pattern");
        let list = Regex::new(r"\bby \(([a-z_, ]+)\)").expect("a pattern");
        let mut mentioned = BTreeSet::new();
        for path in [
            "contrib/prometheus/net-latency.rules.yml",
            "contrib/prometheus/net-latency.test.yml",
            "contrib/grafana/net-latency.json",
            "docs/fleet.md",
        ] {
            let text = file(path);
            for found in metric.captures_iter(&text) {
                // Recorded series are made of ours.
                if found[0].contains(':') || found[1].ends_with('_') {
                    continue;
                }
                let name = ["_bucket", "_count", "_sum"].iter().find_map(|end| found[1].strip_suffix(end));
                let name = name.unwrap_or(&found[1]).to_owned();
                assert!(names.contains(&name), "{path}: there is no metric {}", &found[1]);
                mentioned.insert(name);
            }
            for found in selector.captures_iter(&text) {
                let label = &found[1];
                assert!(
                    labels.contains(label) || label.starts_with("var"),
                    "{path}: there is no label {label}"
                );
            }
            let lists = list.captures_iter(&text).flat_map(|found| {
                found[1].split(',').map(|label| label.trim().to_owned()).collect::<Vec<_>>()
            });
            for label in lists {
                let is_there = labels.contains(label.as_str());
                assert!(is_there, "{path}: there is no label {label} to group by");
            }
        }
        let unmentioned: Vec<_> = names
            .iter()
            .filter(|name| name.starts_with("net_latency") && !mentioned.contains(*name))
            .collect();
        assert!(unmentioned.is_empty(), "docs/fleet.md says nothing of {unmentioned:?}");
    }
}
