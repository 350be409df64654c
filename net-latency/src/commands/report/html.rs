//! The report as a page: one file that needs nothing else, no network and no script.

use std::fmt::{self, Display, Write as _};

use net_latency_common::Direction;

use super::chart::Chart;
use super::findings::Report;
use super::table::{Entry, Others};
use super::text::{Span, Time, dominant as dominant_of, heading, headline, notes, packets, printable, span};
use super::time::show;
use crate::accounting::{self as summary, HumanBytes, Times, dominant, meaning};
use crate::diagnosis::text::first_lines;
use crate::packet::stages::columns;
use crate::packet::stages::dir;
use crate::request::ReportConfig;

const STYLE: &str = include_str!("page.css");
/// Nothing is fetched from anywhere, nothing runs; styles are the page's own.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";
/// Width of a packet's bar.
const BAR: u64 = 1_000;

/// Untrusted text in a page: nothing in it is markup, and nothing acts.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '&' => f.write_str("&amp;"),
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '"' => f.write_str("&quot;"),
            '\'' => f.write_str("&#39;"),
            _ => f.write_char(c),
        })
    }
}

/// The whole page.
pub(super) fn page(report: &Report, config: &ReportConfig) -> String {
    let mut page = String::new();
    write_page(report, config, &mut page).expect("memory can be written");
    page
}

fn write_page(report: &Report, config: &ReportConfig, page: &mut String) -> fmt::Result {
    writeln!(page, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">")?;
    writeln!(page, "<meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">")?;
    writeln!(page, "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">")?;
    writeln!(page, "<meta name=\"color-scheme\" content=\"light dark\">")?;
    writeln!(page, "<title>net-latency: {}</title>", Escaped(&headline(report)))?;
    writeln!(page, "<style>\n{STYLE}</style>\n</head>\n<body>\n<main>")?;
    writeln!(page, "<h1>net-latency report</h1>\n<p>{}</p>", Escaped(&headline(report)))?;
    if let Some(span) = span(report) {
        writeln!(page, "<p class=\"span\">{}</p>", Escaped(&span))?;
    }
    if let Some(verdict) = report.verdict().filter(|_| report.packets > 0) {
        writeln!(page, "<ul class=\"verdict\">")?;
        for text in first_lines(&verdict) {
            writeln!(page, "<li>{}</li>", Escaped(&text))?;
        }
        writeln!(page, "</ul>")?;
    }
    let notes = notes(report, config);
    if !notes.is_empty() {
        writeln!(page, "<ul class=\"notes\">")?;
        for note in notes {
            writeln!(page, "<li>{}</li>", Escaped(&note))?;
        }
        writeln!(page, "</ul>")?;
    }
    if report.packets > 0 {
        write_tiles(report, page)?;
        write_stages(report, page)?;
        write_charts(report, page)?;
        write_processes(report, config.top, page)?;
        write_connections(report, config.top, page)?;
        write_slowest(report, page)?;
    }
    writeln!(page, "</main>\n<footer>")?;
    writeln!(
        page,
        "<p>Percentiles are right to within 1 %. A log doesn't tell what was lost before it was written: the footer of \
         the run that recorded it does.</p>"
    )?;
    writeln!(page, "<p>net-latency {}</p>\n</footer>\n</body>\n</html>", env!("CARGO_PKG_VERSION"))
}

fn write_tiles(report: &Report, page: &mut String) -> fmt::Result {
    writeln!(page, "<dl class=\"tiles\">")?;
    let mut tile = |name: &str, value: &dyn Display| {
        writeln!(page, "<div><dt>{}</dt><dd>{}</dd></div>", Escaped(name), Escaped(&value.to_string()))
    };
    for (direction, protocol, way) in report.stages.ways().filter(|(_, _, way)| way.packets > 0) {
        let name = format!("{} {}", protocol.name(), dir(direction));
        tile(&format!("packets, {name}"), &way.packets)?;
        tile(&format!("p50, {name}"), &Time(way.total.quantile(500)))?;
        tile(&format!("p99, {name}"), &Time(way.total.quantile(990)))?;
        tile(&format!("longest, {name}"), &Time(way.total.max()))?;
    }
    writeln!(page, "</dl>")
}

fn write_stages(report: &Report, page: &mut String) -> fmt::Result {
    writeln!(page, "<h2>Stages</h2>\n<div class=\"scroll\">\n<table class=\"stages\">")?;
    writeln!(page, "<caption>Time that packets took from stage to stage</caption>\n<thead>\n<tr>")?;
    for (name, class) in [("direction", "left"), ("stage", "left"), ("count", "")]
        .into_iter()
        .chain(["min", "p50", "p90", "p99", "p99.9", "max", "unknown"].map(|name| (name, "")))
    {
        writeln!(page, "<th scope=\"col\" class=\"{class}\">{name}</th>")?;
    }
    writeln!(page, "</tr>\n</thead>\n<tbody>")?;
    for (direction, protocol, way) in report.stages.ways().filter(|(_, _, way)| way.packets > 0) {
        for (name, times) in columns(direction, protocol).into_iter().zip(&way.columns) {
            write_stage("", direction, name, times, page)?;
        }
        write_stage("total", direction, &format!("{} total", protocol.name()), &way.total, page)?;
    }
    writeln!(page, "</tbody>\n</table>\n</div>")
}

fn write_stage(
    class: &str,
    direction: Direction,
    name: &str,
    times: &Times,
    page: &mut String,
) -> fmt::Result {
    write!(page, "<tr class=\"{class}\"><td class=\"left\">{}</td>", dir(direction))?;
    write!(page, "<th scope=\"row\" class=\"left\">{name}</th><td>{}</td>", times.count())?;
    for time in times.figures().times() {
        write!(page, "<td>{}</td>", Time(time))?;
    }
    writeln!(page, "<td>{}</td></tr>", times.unknown())
}

fn write_charts(report: &Report, page: &mut String) -> fmt::Result {
    let charts = [Direction::In, Direction::Out].map(|direction| {
        Chart::new(&report.timeline, direction, report.offset_s).map(|chart| (direction, chart))
    });
    if charts.iter().all(Option::is_none) {
        return Ok(());
    }
    let width = Span(report.timeline.width_ns().unsigned_abs());
    writeln!(page, "<h2>Over time</h2>")?;
    writeln!(page, "<p class=\"dim\">Total time of all packets, TCP and UDP, finished in each {width}.</p>")?;
    for (direction, chart) in charts.into_iter().flatten() {
        let name = dir(direction);
        writeln!(page, "<h3>Packets {name}</h3>")?;
        for svg in [chart.curves(), chart.heat_map()] {
            writeln!(page, "<figure class=\"scroll\">\n{svg}</figure>")?;
        }
        writeln!(
            page,
            "<p class=\"dim\">The stronger the colour, the more packets {name} took that long.</p>"
        )?;
    }
    Ok(())
}

fn write_processes(report: &Report, top: usize, page: &mut String) -> fmt::Result {
    let (rows, others) = report.processes.top(top);
    writeln!(page, "<h2>Processes</h2>\n<div class=\"scroll\">\n<table class=\"processes\">")?;
    writeln!(page, "<caption>{}</caption>", heading("Processes", rows.len(), &report.processes))?;
    write_head(&["PID", "name"], page)?;
    for (owner, entry) in rows {
        let pid = owner.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
        write!(page, "<tr><th scope=\"row\" class=\"left\">{pid}</th>")?;
        write!(page, "<td class=\"left\"><code>{}</code></td>", Name(entry.name.as_deref()))?;
        write_row(entry, page)?;
    }
    write_others(2, others, page)
}

fn write_connections(report: &Report, top: usize, page: &mut String) -> fmt::Result {
    let (rows, others) = report.connections.top(top);
    if rows.is_empty() {
        return Ok(());
    }
    writeln!(page, "<h2>Connections</h2>\n<div class=\"scroll\">\n<table class=\"connections\">")?;
    writeln!(page, "<caption>{}</caption>", heading("Connections", rows.len(), &report.connections))?;
    write_head(&["this machine", "peer", "process"], page)?;
    for (connection, entry) in rows {
        let pid = entry.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
        write!(
            page,
            "<tr><th scope=\"row\" class=\"wrap\"><code>{} {}</code></th><td class=\"wrap\"><code>{}</code></td>",
            connection.protocol.name(),
            connection.local,
            connection.remote
        )?;
        write!(page, "<td class=\"left\">{pid} <code>{}</code></td>", Name(entry.name.as_deref()))?;
        write_row(entry, page)?;
    }
    write_others(3, others, page)
}

fn write_head(who: &[&str], page: &mut String) -> fmt::Result {
    writeln!(page, "<thead>\n<tr>")?;
    for name in who {
        writeln!(page, "<th scope=\"col\" class=\"left\">{name}</th>")?;
    }
    for name in ["packets", "bytes", "p50", "p99", "max"] {
        writeln!(page, "<th scope=\"col\">{name}</th>")?;
    }
    writeln!(page, "<th scope=\"col\" class=\"left\">most time in</th>")?;
    for name in ["rtt p50", "transit p50", "service p50", "response p50", "sent again", "needlessly"] {
        writeln!(page, "<th scope=\"col\">{name}</th>")?;
    }
    writeln!(page, "</tr>\n</thead>\n<tbody>")
}

fn write_row(entry: &Entry, page: &mut String) -> fmt::Result {
    write!(page, "<td>{}</td><td>{}</td>", packets(entry), HumanBytes(entry.bytes))?;
    let total = &entry.total;
    for time in [total.quantile(500), total.quantile(990), total.max()] {
        write!(page, "<td>{}</td>", Time(time))?;
    }
    write!(page, "<td class=\"left\">{}</td>", dominant_of(entry))?;
    for time in entry.tcp.medians() {
        write!(page, "<td>{}</td>", Time(time))?;
    }
    let (again, needless) = entry.tcp.sent_again();
    writeln!(page, "<td>{again}</td><td>{needless}</td></tr>")
}

fn write_others(before: usize, others: Others, page: &mut String) -> fmt::Result {
    if others.lines > 0 {
        write!(page, "<tr><th scope=\"row\" class=\"left\" colspan=\"{before}\">all others</th>")?;
        writeln!(page, "<td>{}</td><td colspan=\"11\"></td></tr>", others.lines)?;
    }
    writeln!(page, "</tbody>\n</table>\n</div>")
}

fn write_slowest(report: &Report, page: &mut String) -> fmt::Result {
    writeln!(page, "<h2>Slowest packets</h2>\n<ol class=\"slow\">")?;
    for packet in report.worst.packets() {
        write_packet(&packet, report.offset_s, page)?;
    }
    writeln!(page, "</ol>")
}

fn write_packet(packet: &summary::Packet<'_>, offset_s: i32, page: &mut String) -> fmt::Result {
    let names = columns(packet.direction, packet.protocol);
    let time = packet.wall_ns.map_or_else(|| "-".to_owned(), |ns| show(ns, offset_s, "%F %T%.6f"));
    let pid = packet.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
    let name = packet.name().map(String::from_utf8_lossy);
    write!(
        page,
        "<li><strong>{}</strong> {} at {time}, PID {pid} <code>{}</code>",
        Time(packet.total),
        dir(packet.direction),
        Name(name.as_deref())
    )?;
    if let Some([source, destination]) = packet.ends {
        write!(page, ", <code>{} {source} &gt; {destination}</code>", packet.protocol.name())?;
    }
    writeln!(page)?;
    write_bar(packet, &names, page)?;
    write!(page, "<div class=\"stages\">")?;
    for (place, (name, ns)) in names.iter().zip(packet.stages).enumerate() {
        write!(
            page,
            "<span><svg class=\"swatch\" viewBox=\"0 0 1 1\" aria-hidden=\"true\">\
             <rect class=\"s{place}\" width=\"1\" height=\"1\"/></svg>{name} {}</span>",
            Time(ns)
        )?;
    }
    writeln!(page, "</div>")?;
    if let Some((column, _)) = dominant(packet) {
        let (name, hint) = meaning(packet, column);
        writeln!(page, "<div class=\"dim\">{name}: {}</div>", Escaped(hint))?;
    }
    writeln!(page, "</li>")
}

/// The stages' parts of the total; unknown ones have a colour of their own. None where the total is unknown.
fn write_bar(packet: &summary::Packet<'_>, names: &[&str], page: &mut String) -> fmt::Result {
    let known: u128 = packet.stages.into_iter().flatten().map(u128::from).sum();
    let whole = u128::from(packet.total.unwrap_or(0)).max(known);
    if whole == 0 {
        return Ok(());
    }
    let part = |ns: u128| u64::try_from(ns * u128::from(BAR) / whole).unwrap_or(BAR);
    let label: Vec<_> =
        names.iter().zip(packet.stages).map(|(name, ns)| format!("{name} {}", Time(ns))).collect();
    write!(page, "<svg class=\"bar\" viewBox=\"0 0 {BAR} 14\" preserveAspectRatio=\"none\" role=\"img\" ")?;
    write!(page, "aria-label=\"{}\">", label.join(", "))?;
    let mut passed = 0;
    let known_parts = packet.stages.into_iter().enumerate().map(|(place, ns)| {
        let title = format!("{} {}", names[place], Time(ns));
        (format!("s{place}"), u128::from(ns.unwrap_or(0)), title)
    });
    for (class, ns, title) in known_parts.chain([("su".to_owned(), whole - known, "unknown".to_owned())]) {
        if ns > 0 {
            let x = part(passed);
            passed += ns;
            let width = part(passed) - x;
            write!(
                page,
                "<rect class=\"{class}\" x=\"{x}\" width=\"{width}\" height=\"14\"><title>{title}</title></rect>"
            )?;
        }
    }
    writeln!(page, "</svg>")
}

/// A task's name; `-` where it is unknown.
struct Name<'a>(Option<&'a str>);

impl Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Escaped(&printable(self.0)))
    }
}
