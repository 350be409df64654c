//! A small table of all stages: of the selected row, or of the connection whose packets are shown.

use net_latency_common::Direction;

use super::{
    columns::name,
    model::Protocols,
    paint::{Canvas, Ink},
    rows::stage_names,
    screen::{View, selected},
    state::Place,
    units,
    window::{Figures, TIMES},
};
use crate::packet::event::COLUMNS;

/// Lines that it takes.
pub(super) const HEIGHT: u16 = 1 + TIMES as u16;
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
        // What is not whole says nothing.
        if x + WIDTH <= canvas.width() {
            draw_direction(canvas, (x, y), direction, protocols, &figures[direction as usize]);
        }
    }
}

fn subject(view: &View<'_>) -> Option<(Protocols, [Figures; 2])> {
    let Place::Packets(key) = view.state.place else {
        return selected(view).map(|row| (row.protocols, row.figures));
    };
    let traffic = &view.model.connection(&key)?.traffic;
    let figures = [Direction::In, Direction::Out].map(|way| traffic.figures(way, view.model.now()));
    Some((Protocols { tcp: !key.is_udp, udp: key.is_udp }, figures))
}

fn draw_direction(
    canvas: &mut Canvas<'_>,
    (x, y): (u16, u16),
    direction: Direction,
    protocols: Protocols,
    figures: &Figures,
) {
    canvas.put(
        (x, y),
        WIDTH,
        &format!("{:8}{:>6}{:>6}{:>6}", name(direction), "P50", "P99", "MAX"),
        Ink::Header,
    );
    let names = stage_names(direction, protocols).into_iter().chain(["total"]);
    for (time, (name, spread)) in names.zip(figures.times).enumerate() {
        let y = y + 1 + time as u16;
        let is_dominant = time < COLUMNS && figures.dominant.is_some_and(|(stage, _)| stage == time);
        canvas.put((x, y), 8, name, if is_dominant { Ink::Strong } else { Ink::Plain });
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
