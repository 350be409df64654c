//! Distributions to read: 80 columns wide, unless a number is larger than any that is likely.

use std::io::Write as _;

use net_latency_common::{Direction, GroupBy};

use super::{
    group::Identity,
    model::{Group, Row, Way, packets},
    page::Page,
};
use crate::{
    accounting::{Human, KernelTimes, PERCENTILES},
    clock::{TimeStyle, TimeText},
    message::counted,
    packet::{event::COLUMNS, stages::dir},
};

/// Characters of the longest bar.
const BAR: usize = 44;
/// Characters of a group's name in the table; a longer one has a line of its own.
const NAME: usize = 20;

/// Appends a page.
pub(super) fn write(page: &Page, out: &mut Vec<u8>) {
    write_head(page, out);
    if page.by == GroupBy::Stage {
        for (group, _) in &page.groups {
            write_stages(group, page.histogram, out);
        }
    } else if !page.groups.is_empty() {
        write_groups(&page.groups, page.histogram, out);
    }
    out.push(b'\n');
}

/// What the page is about.
fn write_head(page: &Page, out: &mut Vec<u8>) {
    let mut time = TimeText::new(page.zone, TimeStyle::Calendar);
    time.write(page.from_ns, out);
    out.extend_from_slice(b" to ");
    time.write(page.to_ns, out);
    let shown: Vec<_> = page.groups.iter().map(|(group, _)| group.clone()).collect();
    let [packets_in, packets_out] =
        [Direction::In, Direction::Out].map(|direction| packets(&shown, direction));
    let part = if page.is_whole { ", whole run" } else { "" };
    line(out, format_args!("{part}: {} in, {packets_out} out", counted(packets_in, "packet")));
    if page.uncounted > 0 {
        let uncounted = counted(page.uncounted, "packet");
        line(out, format_args!("Not in it: {uncounted} whose group found no room: more --buckets helps"));
    }
    if packets_in + packets_out > 0 {
        line(out, format_args!("Times are the upper ends of their buckets: at most 12.5 % too long"));
    }
}

/// A table of all stages and, if there is to be a `histogram`, their distributions.
fn write_stages(group: &Group, histogram: bool, out: &mut Vec<u8>) {
    out.push(b'\n');
    let is_any_unknown = group.ways.iter().flat_map(Way::rows).any(|row| row.times.unknown() > 0);
    write!(out, "{:17}{:>10}", "", "count").expect("memory can be written");
    for (_, name) in PERCENTILES {
        write!(out, "{name:>8}").expect("memory can be written");
    }
    line(out, format_args!("{:>8}{}", "max", if is_any_unknown { "  unknown" } else { "" }));
    for way in &group.ways {
        // The parts stand below the last column.
        let (whole, parts): (Vec<_>, Vec<_>) = way.rows().partition(|row| !row.is_part());
        let (columns, total) = whole.split_at(COLUMNS);
        for row in columns.iter().chain(&parts).chain(total) {
            let way_name = if row.number == 0 { way_name(way) } else { String::new() };
            let name = match way.direction {
                // Those of an incoming packet split the column above; an outgoing one's follow it.
                Direction::In if row.is_part() => format!("  {}", name_of(row)),
                _ => name_of(row).to_owned(),
            };
            let row = row.times;
            write!(out, "  {way_name:8}{name:7}{:>10}", row.count()).expect("memory can be written");
            for time in
                PERCENTILES.map(|(per_mille, _)| row.quantile(per_mille)).into_iter().chain([row.max()])
            {
                write!(out, "{:>8}", end(time)).expect("memory can be written");
            }
            if row.unknown() > 0 {
                write!(out, "{:>9}", row.unknown()).expect("memory can be written");
            }
            out.push(b'\n');
        }
    }
    for way in group.ways.iter().filter(|_| histogram) {
        for row in way.rows().filter(|row| row.times.count() > 0) {
            line(out, format_args!("\n{} {}", way_name(way), name_of(&row)));
            write_bars(row.times, out);
        }
    }
}

/// A table of all groups and, if there is to be a `histogram`, the distributions of their totals.
fn write_groups(groups: &[(Group, Identity)], histogram: bool, out: &mut Vec<u8>) {
    line(
        out,
        format_args!(
            "\n{:NAME$} {:7}{:>10}{:>8}{:>8}{:>8}{:>8}  mostly",
            "total", "", "count", "p50", "p90", "p99", "max"
        ),
    );
    for (group, identity) in groups {
        let name = name(identity);
        let is_long = name.chars().count() > NAME;
        if is_long {
            line(out, format_args!("{name}"));
        }
        for (number, way) in group.ways.iter().enumerate() {
            let total = way.total();
            let first = if number == 0 && !is_long { name.as_str() } else { "" };
            let [p50, p90, p99] = [500, 900, 990].map(|per_mille| end(total.quantile(per_mille)));
            let mostly = way.dominant().map_or("-", |stage| stage.column);
            line(
                out,
                format_args!(
                    "{first:NAME$} {:7}{:>10}{p50:>8}{p90:>8}{p99:>8}{:>8}  {mostly}",
                    way_name(way),
                    total.packets(),
                    end(total.max())
                ),
            );
        }
    }
    for (group, identity) in groups.iter().filter(|_| histogram) {
        for way in group.ways.iter().filter(|way| way.total().count() > 0) {
            line(out, format_args!("\n{}: {} total", name(identity), way_name(way)));
            write_bars(way.total(), out);
        }
    }
}

fn write_bars(times: &KernelTimes, out: &mut Vec<u8>) {
    let doublings = times.doublings();
    let most = doublings.iter().map(|(.., count)| *count).max().unwrap_or(0).max(1);
    for (start, end, count) in doublings {
        let range = match end {
            u64::MAX => format!("[{}, ...)", Human(start)),
            end => format!("[{}, {})", Human(start), Human(end)),
        };
        let len = u128::from(count) * BAR as u128 / u128::from(most);
        let bar = "@".repeat(usize::try_from(len).unwrap_or(BAR));
        line(out, format_args!("  {range:<19} {count:>10} |{bar:BAR$}|"));
    }
}

fn name_of(row: &Row<'_>) -> &'static str {
    row.stage.map_or("total", |stage| stage.column)
}

fn way_name(way: &Way) -> String {
    format!("{:3} {}", dir(way.direction), way.protocol.name())
}

fn name(identity: &Identity) -> String {
    let mut name = Vec::new();
    identity.write(&mut name);
    String::from_utf8_lossy(&name).into_owned()
}

/// Where a bucket ends.
fn end(ns: Option<u64>) -> String {
    match ns {
        None => "-".to_owned(),
        Some(u64::MAX) => "> 73 m".to_owned(),
        Some(ns) => Human(ns).to_string(),
    }
}

fn line(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    writeln!(out, "{text}").expect("memory can be written");
}
