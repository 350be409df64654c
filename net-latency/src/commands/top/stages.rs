//! A small table of all stages: of the selected row, or of the connection whose packets are shown.

use net_latency_common::Direction;

use super::{
    model::Protocols,
    paint::{Canvas, Ink},
    place::Place,
    rows::time_name,
    units,
    view::View,
    window::{ANSWER, FIRST_PART, Figures, RTT, TOTAL, TRANSIT},
};
use crate::packet::event::{COLUMNS, PARTS, Protocol};
use crate::packet::stages::{dir, parts};

/// Lines that it takes, with fine stages or without.
pub(super) const fn height(has_parts: bool) -> u16 {
    1 + TOTAL as u16 + 1 + BESIDE + if has_parts { PARTS as u16 } else { 0 }
}
/// Of them those of answers, and of round trips or the way from the sender.
const BESIDE: u16 = 2;
/// Columns that each direction takes.
const WIDTH: u16 = 26;
const BETWEEN: u16 = 4;

/// Draws it from line `y`.
pub(super) fn draw(view: &View<'_>, canvas: &mut Canvas<'_>, y: u16) {
    let Some((protocols, figures)) = subject(view) else { return };
    let mut directions = [Direction::In, Direction::Out];
    if view.state.shown == Direction::Out {
        directions.reverse();
    }
    for (place, direction) in directions.into_iter().enumerate() {
        let x = place as u16 * (WIDTH + BETWEEN);
        // A table that is cut off says nothing.
        if x + WIDTH <= canvas.width() {
            let has_parts = view.model.has_parts();
            draw_direction(canvas, (x, y), direction, protocols, &figures[direction as usize], has_parts);
        }
    }
}

fn subject(view: &View<'_>) -> Option<(Protocols, [Figures; 2])> {
    let Place::Packets(key) = view.state.place else {
        return view.selected().map(|row| (row.protocols, row.figures));
    };
    let traffic = &view.model.connection(&key)?.traffic;
    let figures = [Direction::In, Direction::Out].map(|way| traffic.figures(way, view.model.now()));
    Some((key.protocols(), figures))
}

fn draw_direction(
    canvas: &mut Canvas<'_>,
    (x, y): (u16, u16),
    direction: Direction,
    protocols: Protocols,
    figures: &Figures,
    has_parts: bool,
) {
    canvas.put(
        (x, y),
        WIDTH,
        &format!("{:8}{:>6}{:>6}{:>6}", dir(direction), "P50", "P99", "MAX"),
        Ink::Header,
    );
    // What splits the last stage, or follows it, stands between that and the total.
    let parts = parts(direction, Protocol::Tcp).filter(|_| has_parts).map(|(part, _)| FIRST_PART + part);
    let beside = match direction {
        Direction::In => [ANSWER, TRANSIT],
        Direction::Out => [ANSWER, RTT],
    };
    let times = (0..COLUMNS).chain(parts).chain([TOTAL]).chain(beside);
    for (line, time) in times.enumerate() {
        let y = y + 1 + line as u16;
        let spread = figures.times[time];
        let is_dominant = figures.dominant.is_some_and(|(stage, _)| stage == time);
        let is_split = (FIRST_PART..ANSWER).contains(&time) && direction == Direction::In;
        let indent = if is_split { 1 } else { 0 };
        let name = time_name(direction, protocols, time);
        canvas.put((x + indent, y), 8 - indent, name, if is_dominant { Ink::Strong } else { Ink::Plain });
        let times = spread.map_or([None; 3], |spread| [spread.p50, spread.p99, spread.max].map(Some));
        for (place, ns) in times.into_iter().enumerate() {
            let right = x + 14 + 6 * place as u16;
            match ns {
                Some(ns) => canvas.put_right(right, y, 5, &units::time(ns), Ink::Heat(units::heat(ns))),
                None => canvas.put_right(right, y, 5, "-", Ink::Weak),
            }
        }
    }
}
