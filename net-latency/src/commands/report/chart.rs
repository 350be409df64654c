//! Latency over time as SVG: a chart of percentiles, and a heat map. Both have a logarithmic axis of latency.

use std::fmt::Write as _;

use net_latency_common::Direction;

use super::text::{Span, Time};
use super::time::show;
use super::timeline::{Slice, Timeline};
use crate::accounting::Human;
use crate::message::counted;
use crate::packet::stages::dir;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 44.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 24.0;
/// Rows of the heat map per doubling of the latency, and most of them altogether.
const MOST_ROWS: usize = 32;
/// Shades of the heat map.
const SHADES: usize = 8;

const S: i64 = 1_000_000_000;
/// Distances of the times under the chart.
const TICKS: [i64; 25] = [
    S / 1_000,
    S / 200,
    S / 100,
    S / 20,
    S / 10,
    S / 2,
    S,
    2 * S,
    5 * S,
    10 * S,
    15 * S,
    30 * S,
    60 * S,
    120 * S,
    300 * S,
    600 * S,
    900 * S,
    1_800 * S,
    3_600 * S,
    7_200 * S,
    21_600 * S,
    43_200 * S,
    86_400 * S,
    604_800 * S,
    2_592_000 * S,
];

/// One direction's part of a timeline, and its place on the paper.
pub(super) struct Chart<'a> {
    direction: Direction,
    offset_s: i32,
    slices: Vec<(i64, &'a Slice)>,
    width_ns: i64,
    /// Shortest and longest time shown, in powers of 2.
    low: f64,
    high: f64,
}

impl<'a> Chart<'a> {
    /// `None` where there is nothing to show.
    pub(super) fn new(timeline: &'a Timeline, direction: Direction, offset_s: i32) -> Option<Self> {
        let slices: Vec<_> = timeline.slices().collect();
        let shortest = slices
            .iter()
            .filter_map(|(_, slice)| slice.of(direction).buckets().next())
            .map(|(from, ..)| from)
            .min()?;
        let longest = slices.iter().filter_map(|(_, slice)| slice.of(direction).max()).max()?;
        let low = logarithm(shortest).floor();
        let high = logarithm(longest).ceil().max(low + 1.0);
        Some(Self { direction, offset_s, slices, width_ns: timeline.width_ns(), low, high })
    }

    /// p50, p99 and the maximum over time.
    pub(super) fn curves(&self) -> String {
        let mut svg = self.begin(&format!(
            "p50, p99 and maximum of the total time of packets {}, for each {}",
            dir(self.direction),
            Span(self.width_ns.unsigned_abs())
        ));
        self.grid(&mut svg);
        let mut labels = Vec::new();
        for (name, per_mille) in [("max", 1_000), ("p99", 990), ("p50", 500)] {
            let mut path = String::new();
            let mut pen_down = false;
            let mut last = TOP;
            for (place, (_, slice)) in self.slices.iter().enumerate() {
                let Some(ns) = slice.of(self.direction).quantile(per_mille) else {
                    pen_down = false;
                    continue;
                };
                let (x, y) = (self.x(place as f64 + 0.5), self.y(ns));
                // A point of its own shows as a dot: the ends of a line are round.
                let command = if pen_down { format!("L{x:.1} {y:.1}") } else { format!("M{x:.1} {y:.1}h0") };
                path += &command;
                pen_down = true;
                last = y;
            }
            write_svg(&mut svg, format_args!(r#"<path class="curve {name}" d="{path}"/>"#));
            labels.push((last, name));
        }
        for (y, name) in spread(labels) {
            let x = WIDTH - RIGHT + 6.0;
            write_svg(
                &mut svg,
                format_args!(r#"<text class="{name}" x="{x}" y="{:.1}">{name}</text>"#, y + 4.0),
            );
        }
        self.hovers(&mut svg);
        svg += "</svg>\n";
        svg
    }

    /// How many packets took how long, over time.
    pub(super) fn heat_map(&self) -> String {
        let mut svg = self.begin(&format!(
            "How many packets {} took how long in total, for each {}",
            dir(self.direction),
            Span(self.width_ns.unsigned_abs())
        ));
        let rows_per_doubling = if (self.high - self.low) * 2.0 <= MOST_ROWS as f64 { 2.0 } else { 1.0 };
        let rows = ((self.high - self.low) * rows_per_doubling) as usize;
        let row = |ns: u64| (((logarithm(ns) - self.low) * rows_per_doubling) as usize).min(rows - 1);
        let mut counts = vec![vec![0u64; rows]; self.slices.len()];
        for (counts, (_, slice)) in counts.iter_mut().zip(&self.slices) {
            for (from, to, count) in slice.of(self.direction).buckets() {
                counts[row(from + (to - from) / 2)] += count;
            }
        }
        let most = counts.iter().flatten().max().copied().unwrap_or(1);
        let mut paths = vec![String::new(); SHADES];
        // Each cell ends where its neighbour begins, to the last digit: no paper shows between them.
        let height = |row: usize| HEIGHT - BOTTOM - row as f64 * (HEIGHT - TOP - BOTTOM) / rows as f64;
        for (place, counts) in counts.iter().enumerate() {
            let (left, right) = (self.x(place as f64), self.x(place as f64 + 1.0));
            for (row, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
                let (top, bottom) = (height(row + 1), height(row));
                let path = &mut paths[shade(count, most)];
                write!(path, "M{left:.1} {top:.1}H{right:.1}V{bottom:.1}H{left:.1}z")
                    .expect("memory can be written");
            }
        }
        for (shade, path) in paths.iter().enumerate().filter(|(_, path)| !path.is_empty()) {
            let opacity = (shade as f64 + 1.0) / SHADES as f64;
            write_svg(&mut svg, format_args!(r#"<path class="heat" fill-opacity="{opacity}" d="{path}"/>"#));
        }
        self.grid(&mut svg);
        self.hovers(&mut svg);
        svg += "</svg>\n";
        svg
    }

    fn begin(&self, label: &str) -> String {
        format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{label}\">\n")
    }

    fn x(&self, slices: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * slices / self.slices.len() as f64
    }

    fn y(&self, ns: u64) -> f64 {
        let part = (logarithm(ns) - self.low) / (self.high - self.low);
        HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * part
    }

    /// Lines at powers of 10, and times under them.
    fn grid(&self, svg: &mut String) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        let powers = std::iter::successors(Some(1u64), |power| power.checked_mul(10));
        let shown = |power: &u64| (self.low..=self.high).contains(&logarithm(*power));
        let mut labels: Vec<u64> = powers.filter(shown).collect();
        if labels.len() < 2 {
            labels = (0..u64::BITS).map(|bit| 1 << bit).filter(shown).collect();
        }
        for ns in labels {
            let y = self.y(ns);
            write_svg(
                svg,
                format_args!(
                    r#"<path class="grid" d="M{LEFT} {y:.1}H{right}"/><text x="{}" y="{:.1}" text-anchor="end">{}</text>"#,
                    LEFT - 8.0,
                    y + 4.0,
                    round(ns)
                ),
            );
        }
        for (x, label) in self.ticks() {
            write_svg(
                svg,
                format_args!(
                    r#"<path class="grid" d="M{x:.1} {bottom}v5"/><text x="{x:.1}" y="{}" text-anchor="middle">{label}</text>"#,
                    HEIGHT - 6.0
                ),
            );
        }
        write_svg(svg, format_args!(r#"<path class="grid" d="M{LEFT} {TOP}V{bottom}H{right}"/>"#));
    }

    /// Round times on the logs' own clock, and where they are.
    fn ticks(&self) -> Vec<(f64, String)> {
        let Some((start, _)) = self.slices.first().copied() else { return Vec::new() };
        let span = self.width_ns.saturating_mul(self.slices.len() as i64);
        let step = TICKS.into_iter().find(|step| span / step <= 10).unwrap_or(span / 5);
        let format = match step {
            ..S => "%H:%M:%S%.3f",
            S..60_000_000_000 => "%H:%M:%S",
            60_000_000_000..86_400_000_000_000 => "%H:%M",
            _ => "%b %-d",
        };
        let offset = i64::from(self.offset_s) * S;
        // The first one at or behind the start.
        let behind = -(start.saturating_add(offset)).rem_euclid(step);
        let first = if behind == 0 { 0 } else { behind + step };
        let places = (0..16i64)
            .map(|number| first.saturating_add(step.saturating_mul(number)))
            .take_while(|place| *place <= span);
        places
            .map(|place| {
                let x = self.x(place as f64 / self.width_ns as f64);
                (x, show(start.saturating_add(place), self.offset_s, format))
            })
            .collect()
    }

    /// What shows when the pointer rests on a slice.
    fn hovers(&self, svg: &mut String) {
        let format = if self.width_ns < S { "%F %T%.3f" } else { "%F %T" };
        let (width, height) = (self.x(1.0) - self.x(0.0), HEIGHT - TOP - BOTTOM);
        for (place, (start, slice)) in self.slices.iter().enumerate() {
            let times = slice.of(self.direction);
            if times.count() == 0 {
                continue;
            }
            write_svg(
                svg,
                format_args!(
                    r#"<rect class="hover" x="{:.1}" y="{TOP}" width="{width:.1}" height="{height}"><title>{}: {}, p50 {}, p99 {}, max {}</title></rect>"#,
                    self.x(place as f64),
                    show(*start, self.offset_s, format),
                    counted(times.count(), "packet"),
                    Time(times.quantile(500)),
                    Time(times.quantile(990)),
                    Time(times.max()),
                ),
            );
        }
    }
}

fn write_svg(svg: &mut String, part: std::fmt::Arguments<'_>) {
    writeln!(svg, "{part}").expect("memory can be written");
}

fn logarithm(ns: u64) -> f64 {
    (ns.max(1) as f64).log2()
}

/// A few packets are to be seen beside very many: shades go by the logarithm.
fn shade(count: u64, most: u64) -> usize {
    let part = (count as f64 + 1.0).ln() / (most as f64 + 1.0).ln();
    ((part * SHADES as f64).ceil() as usize).clamp(1, SHADES) - 1
}

/// A power of 10 without the decimals that it doesn't need.
fn round(ns: u64) -> String {
    let units = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us"), (1, "ns")];
    let unit = units.into_iter().find(|(unit, _)| ns.is_multiple_of(*unit));
    match unit {
        Some((unit, name)) => format!("{} {name}", ns / unit),
        None => Human(ns).to_string(),
    }
}

/// Labels at their heights, far enough from each other to be read.
fn spread(mut labels: Vec<(f64, &str)>) -> Vec<(f64, &str)> {
    const GAP: f64 = 14.0;
    labels.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    for place in 1..labels.len() {
        labels[place].0 = labels[place].0.max(labels[place - 1].0 + GAP);
    }
    labels
}
