//! The table: its header, and as many rows as fit.

use std::net::SocketAddr;

use net_latency_common::Direction;

use super::{
    columns::{Column, Placed, columns},
    failed::FailedConnection,
    model::{Packet, flow},
    paint::{Canvas, Ink},
    place::Place,
    rows::{Row, Rows, time_name},
    state::RowKey,
    units::{self, bar, heat},
    view::View,
    window::TOTAL,
};
use crate::{
    clock::{TimeStyle, TimeText},
    packet::{
        event::{Protocol, flag_names},
        stages::opposite,
    },
};

/// Draws it from line `y` to before line `bottom`.
pub(super) fn draw(view: &View<'_>, canvas: &mut Canvas<'_>, y: u16, bottom: u16) {
    let keys = view.rows.keys();
    let placed = columns(view.state.place, view.state.shown, canvas.width());
    let mut y = y;
    if view.state.place.is_traffic() {
        draw_directions(canvas, &placed, y);
        y += 1;
    }
    draw_header(view, canvas, &placed, y);
    y += 1;
    if y >= bottom {
        return;
    }
    if keys.is_empty() {
        canvas.put((0, y + 1), canvas.width(), &nothing(view), Ink::Plain);
        return;
    }
    let height = usize::from(bottom - y);
    let selected = view.state.position(&keys);
    // The selected row is in the middle, except near the ends.
    let first = selected.saturating_sub(height / 2).min(keys.len().saturating_sub(height));
    let mut time = TimeText::new(view.status.zone, TimeStyle::Rfc3339);
    for (line, index) in (y..bottom).zip(first..keys.len()) {
        for placed in &placed {
            match view.rows {
                Rows::Traffic(rows) => draw_cell(canvas, placed, line, &rows[index]),
                Rows::Packets(packets) => draw_packet_cell(canvas, placed, line, &packets[index], &mut time),
                Rows::Failed(failed) => draw_failed_cell(canvas, placed, line, &failed[index], &mut time),
            }
        }
        if index == selected {
            canvas.mark(line, Ink::Selected);
        }
    }
}

fn nothing(view: &View<'_>) -> String {
    if !view.state.filter.is_empty() {
        return format!("Nothing matches \"{}\"; / changes the filter.", view.state.filter);
    }
    match view.state.place {
        Place::Processes if view.status.traced.is_empty() => {
            "No packets yet; --control also shows those without data.".to_owned()
        }
        Place::Processes => format!("No packets yet with {}.", view.status.traced),
        Place::Connections(_) => "The connections of this process no longer have packets.".to_owned(),
        Place::Packets(_) => "No packets lately.".to_owned(),
        Place::Failed if !view.status.is_watching => {
            "Failed connections are shown only live, for TCP, both directions, all devices.".to_owned()
        }
        Place::Failed => "No connection has failed in the last ten seconds.".to_owned(),
    }
}

/// Says which columns are about which direction.
fn draw_directions(canvas: &mut Canvas<'_>, placed: &[Placed], y: u16) {
    for direction in [Direction::In, Direction::Out] {
        let own = |placed: &&Placed| {
            let towards = placed.column.towards(direction);
            towards == placed.column && placed.column.towards(opposite(direction)) != placed.column
        };
        let mut columns = placed.iter().filter(own);
        let Some(first) = columns.next() else { continue };
        let last = columns.next_back().unwrap_or(first);
        let width = last.x + last.width - first.x;
        let texts = match direction {
            Direction::In => ["time in, driver to application", "time in", "in"],
            Direction::Out => ["time out, application to driver", "time out", "out"],
        };
        let text = texts.into_iter().find(|text| text.len() <= usize::from(width)).unwrap_or_default();
        canvas.put((first.x, y), width, text, Ink::Weak);
    }
}

fn draw_header(view: &View<'_>, canvas: &mut Canvas<'_>, placed: &[Placed], y: u16) {
    let sort = view.state.sort();
    for placed in placed {
        let mut title = match (placed.column, view.state.place) {
            (Column::Stage(stage), Place::Packets(key)) => {
                let protocols = key.protocols();
                time_name(view.state.shown, protocols, stage).to_owned()
            }
            (column, _) => column.title().to_owned(),
        };
        let mut ink = Ink::Header;
        if placed.column == sort.by {
            ink = Ink::Sorted;
            if title.len() < usize::from(placed.width) {
                title.push(match (sort.is_ascending, view.look.is_ascii) {
                    (true, true) => '^',
                    (true, false) => '▲',
                    (false, true) => 'v',
                    (false, false) => '▼',
                });
            }
        }
        put(canvas, placed, y, &title, ink);
    }
}

fn put(canvas: &mut Canvas<'_>, placed: &Placed, y: u16, text: &str, ink: Ink) {
    if placed.column.is_left() {
        canvas.put((placed.x, y), placed.width, text, ink);
    } else {
        canvas.put_right(placed.x + placed.width, y, placed.width, text, ink);
    }
}

fn draw_cell(canvas: &mut Canvas<'_>, placed: &Placed, y: u16, row: &Row) {
    let time = |canvas: &mut Canvas<'_>, ns: Option<u64>| match ns {
        Some(ns) => put(canvas, placed, y, &units::time(ns), Ink::Heat(heat(ns))),
        None => put(canvas, placed, y, "-", Ink::Weak),
    };
    let total = |direction: Direction| row.figures[direction as usize].times[TOTAL];
    match placed.column {
        Column::Pid => match row.key {
            RowKey::Process(pid) if pid != 0 => put(canvas, placed, y, &pid.to_string(), Ink::Plain),
            _ => put(canvas, placed, y, "-", Ink::Weak),
        },
        Column::Name => put(canvas, placed, y, &row.name, Ink::Plain),
        Column::Connections => put(canvas, placed, y, &row.connections.to_string(), Ink::Plain),
        Column::Flow => {
            if let RowKey::Connection(key) = &row.key {
                let ends = (key.ends.local, key.ends.remote);
                put(canvas, placed, y, &flow_in(key.ends.protocol, ends, placed.width), Ink::Plain);
            }
        }
        Column::Rate(direction) => {
            put(canvas, placed, y, &units::rate(row.rates[direction as usize]), Ink::Plain);
        }
        Column::Spent(direction) => match row.spent(direction) {
            Some(ns) => put(canvas, placed, y, &units::time(ns), Ink::Plain),
            None => put(canvas, placed, y, "-", Ink::Weak),
        },
        Column::P50(direction) => time(canvas, total(direction).map(|spread| spread.p50)),
        Column::P99(direction) => time(canvas, total(direction).map(|spread| spread.p99)),
        Column::Max(direction) => time(canvas, total(direction).map(|spread| spread.max)),
        Column::Mostly(direction) => match row.figures[direction as usize].dominant {
            Some((stage, share)) => {
                let stage = time_name(direction, row.protocols, stage);
                put(canvas, placed, y, &format!("{stage:7} {share:>3}%"), Ink::Plain);
            }
            None => put(canvas, placed, y, "-", Ink::Weak),
        },
        Column::Rtt => time(canvas, row.rtt()),
        Column::Answer => time(canvas, row.answer()),
        Column::Again => put(canvas, placed, y, &row.sent_again.to_string(), Ink::Plain),
        Column::Trend(direction) => draw_trend(canvas, placed, y, &row.trends[direction as usize]),
        _ => {}
    }
}

/// The newest slices that fit, each as high as its longest time is, compared with the longest of them.
fn draw_trend(canvas: &mut Canvas<'_>, placed: &Placed, y: u16, trend: &[Option<u64>]) {
    let fitting = &trend[trend.len().saturating_sub(placed.width.into())..];
    let most = fitting.iter().flatten().copied().max().unwrap_or(0);
    let start = placed.x + placed.width - fitting.len() as u16;
    for (x, worst) in (start..).zip(fitting) {
        if let Some(worst) = worst {
            let bar = bar(*worst, most, canvas.look.is_ascii);
            canvas.put((x, y), 1, bar.encode_utf8(&mut [0; 4]), Ink::Heat(heat(*worst)));
        }
    }
}

/// Both ends of a connection, or as much of them as tells it from others.
fn flow_in(protocol: Protocol, (local, remote): (SocketAddr, SocketAddr), width: u16) -> String {
    let width = usize::from(width);
    let whole = flow(protocol, local, remote);
    if whole.len() <= width {
        return whole;
    }
    let brief = format!("{} :{} > {remote}", protocol.name(), local.port());
    if brief.len() <= width {
        return brief;
    }
    // The remote port is worth more than the end of its address.
    let end = format!("~:{}", remote.port());
    let start = width.saturating_sub(end.len());
    format!("{}{end}", brief.get(..start).unwrap_or_default())
}

/// When that was, with us.
fn of_day(wall_ns: i64, time: &mut TimeText) -> String {
    let mut text = Vec::new();
    time.write(wall_ns, &mut text);
    let text = String::from_utf8_lossy(&text);
    // Of date, T, time with ns and zone.
    text.split('T').nth(1).and_then(|rest| rest.get(..15)).unwrap_or_default().to_owned()
}

fn draw_failed_cell(
    canvas: &mut Canvas<'_>,
    placed: &Placed,
    y: u16,
    (name, failed): &(String, FailedConnection),
    time: &mut TimeText,
) {
    let FailedConnection { wall_ns, pid, local, remote, how, lasted_ns, .. } = failed;
    let text = match placed.column {
        Column::Time => of_day(*wall_ns, time),
        Column::Pid if *pid == 0 => "-".to_owned(),
        Column::Pid => pid.to_string(),
        Column::Name => name.clone(),
        Column::Flow => flow_in(Protocol::Tcp, (*local, *remote), placed.width),
        Column::Failed => how.name().to_owned(),
        Column::Lasted => lasted_ns.map_or_else(|| "-".to_owned(), units::time),
        _ => return,
    };
    put(canvas, placed, y, &text, Ink::Plain);
}

fn draw_packet_cell(canvas: &mut Canvas<'_>, placed: &Placed, y: u16, packet: &Packet, time: &mut TimeText) {
    let longest = packet.stages.iter().flatten().max();
    match placed.column {
        Column::Time => put(canvas, placed, y, &of_day(packet.wall_ns, time), Ink::Plain),
        Column::Len => put(canvas, placed, y, &packet.len.to_string(), Ink::Plain),
        Column::Stage(stage) => {
            let ns = packet.stages[stage];
            let ink = if ns.is_some() && ns.as_ref() == longest { Ink::Strong } else { Ink::Plain };
            put(canvas, placed, y, &ns.map_or_else(|| "-".to_owned(), units::time), ink);
        }
        Column::Total => match packet.total {
            Some(ns) => put(canvas, placed, y, &units::time(ns), Ink::Heat(heat(ns))),
            None => put(canvas, placed, y, "-", Ink::Weak),
        },
        Column::Thread => {
            let text = if packet.tid == 0 { "-".to_owned() } else { packet.tid.to_string() };
            put(canvas, placed, y, &text, Ink::Plain);
        }
        Column::Flags => {
            let names: Vec<_> = flag_names(packet.flags).collect();
            put(canvas, placed, y, &names.join(","), Ink::Plain);
        }
        _ => {}
    }
}
