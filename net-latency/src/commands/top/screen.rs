//! The whole screen: the model and the user's choices, as text in its places. Pure.

use std::time::Duration;

use ratatui_core::buffer::Buffer;
use unicode_width::UnicodeWidthStr as _;

use super::{
    failed::LATELY_NS,
    help,
    paint::{Canvas, Ink},
    place::Place,
    rows::{name_of, plain},
    stages,
    state::State,
    table,
    view::{End, View},
    window::Traffic,
};
use crate::{
    diagnosis::Headline,
    message::{counted, fate_of},
    packet::stages::{dir, opposite},
};

/// Height from which the stages of the selected row have a place below the table.
const TALL: u16 = 32;
/// Height from which those of a connection have one above its packets.
const ROOM_FOR_STAGES: u16 = 19;
/// Height from which the verdict has a line: below, the table would have one row.
const ROOM_FOR_VERDICT: u16 = 8;
/// Lines about losses and missing data, at most.
const MOST_NOTES: usize = 3;
/// Height from which there is room for more than one of them.
const ROOM_FOR_NOTES: u16 = 12;
/// Below this there is nothing to see.
const LEAST: (u16, u16) = (20, 5);

/// Rows of the table that fit a screen of this height, whatever is lost or missing.
pub(super) fn page(state: &State, has_parts: bool, height: u16) -> usize {
    let headers = if state.place.is_traffic() { 2 } else { 1 };
    let others = 1 + verdict_height(height) + 1 + headers + stages_height(state, has_parts, height) + 1;
    usize::from(height.saturating_sub(others)).saturating_sub(notes_height(height))
}

fn verdict_height(height: u16) -> u16 {
    if height < ROOM_FOR_VERDICT { 0 } else { 1 }
}

/// Lines that losses and missing data may take.
fn notes_height(height: u16) -> usize {
    if height < ROOM_FOR_NOTES { 1 } else { MOST_NOTES }
}

fn stages_height(state: &State, has_parts: bool, height: u16) -> u16 {
    let least = match state.place {
        Place::Processes | Place::Connections(_) => TALL,
        Place::Packets(_) => ROOM_FOR_STAGES,
        Place::Failed => return 0,
    };
    if height >= least { stages::height(has_parts) + 1 } else { 0 }
}

/// Draws everything.
pub(super) fn draw(view: &View<'_>, buffer: &mut Buffer) {
    let canvas = &mut Canvas { buffer, look: view.look };
    let (width, height) = (canvas.width(), canvas.height());
    if width < LEAST.0 || height < LEAST.1 {
        canvas.put((0, 0), width, "terminal too small", Ink::Plain);
        return;
    }
    if view.state.is_help {
        help::draw(canvas);
    } else {
        let mut y = head(view, canvas);
        let is_inner = matches!(view.state.place, Place::Packets(_));
        let stages_height = stages_height(view.state, view.model.has_parts(), height);
        let mut bottom = height - 1;
        if stages_height > 0 && is_inner {
            stages::draw(view, canvas, y);
            y += stages_height;
        } else if stages_height > 0 {
            bottom -= stages_height;
            stages::draw(view, canvas, bottom + 1);
        }
        table::draw(view, canvas, y, bottom);
    }
    foot(view, canvas, height - 1);
}

/// The title lines; returns the next line.
fn head(view: &View<'_>, canvas: &mut Canvas<'_>) -> u16 {
    let width = canvas.width();
    let badge = match (view.status.end, view.state.is_frozen) {
        (Some(End::Processes), _) => " ENDED ",
        (Some(End::Log), _) => " END OF LOG ",
        (None, true) => " FROZEN ",
        (None, false) => "",
    };
    let badge_width = u16::try_from(badge.len()).unwrap_or(0);
    canvas.put((0, 0), width - badge_width, &title(view), Ink::Strong);
    canvas.put_right(width, 0, badge_width, badge, Ink::Notice);
    let mut y = 1;
    if verdict_height(canvas.height()) > 0 {
        let ink = if view.headline.is_fault { Ink::Alert } else { Ink::Plain };
        canvas.put((0, y), width, &verdict(view, width), ink);
        y += 1;
    }
    canvas.put((0, y), width, &setting(view), Ink::Weak);
    y += 1;
    let (text, ink) = notes(view);
    let most = notes_height(canvas.height());
    for line in wrapped(&text, width.into(), most) {
        canvas.put((0, y), width, &line, ink);
        y += 1;
    }
    y
}

/// The slow services, as many as fit N columns, and where to find them.
fn verdict(view: &View<'_>, width: u16) -> String {
    let Headline { texts, is_fault, direction } = view.headline;
    let is_other = *is_fault && direction.is_some_and(|direction| direction != view.state.shown);
    let tab = if is_other { "; Tab shows it" } else { "" };
    let room = width.saturating_sub(tab.len() as u16);
    let texts: Vec<_> = texts.iter().map(|text| plain(text, view.look.is_ascii)).collect();
    let fitting = texts.iter().find(|text| text.width() <= usize::from(room)).or(texts.last());
    fitting.map_or_else(String::new, |text| view.look.fit(text, room)) + tab
}

/// The text on lines of N columns; the last of `most` has all the rest.
fn wrapped(text: &str, width: usize, most: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let count = lines.len();
        match lines.last_mut() {
            Some(line) if count == most || line.width() + 1 + word.width() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

fn title(view: &View<'_>) -> String {
    let model = view.model;
    let now = model.now();
    let counts = |traffic: &Traffic| [traffic.sent_again(now), traffic.needless(now)];
    let sum = |[again, needless]: [u64; 2], more: [u64; 2]| [again + more[0], needless + more[1]];
    let [again, needless] = match view.state.place {
        Place::Processes => model.processes().map(|(_, process)| counts(&process.traffic)).fold([0; 2], sum),
        Place::Connections(pid) => model.process(pid).map_or([0; 2], |process| counts(&process.traffic)),
        Place::Packets(key) => {
            model.connection(&key).map_or([0; 2], |connection| counts(&connection.traffic))
        }
        Place::Failed => [0; 2],
    };
    let subject = subject(view);
    // Their times are in no column.
    match (again, needless) {
        (0, 0) => subject,
        (_, 0) => format!("{subject}, {again} sent again"),
        _ => format!("{subject}, {again} sent again, {needless} needlessly"),
    }
}

/// What the table is about.
fn subject(view: &View<'_>) -> String {
    let model = view.model;
    let shown = view.rows.keys().len();
    match view.state.place {
        Place::Processes => {
            let all = model.processes().count();
            let connections = counted(model.connections().count(), "connection");
            let failed =
                model.failed.count().map(|count| format!(", {count} failed (f)")).unwrap_or_default();
            format!("net-latency top: {}, {connections}{failed}", part(shown, all, "process"))
        }
        Place::Connections(pid) => {
            let all = model.connections().filter(|(key, _)| key.pid == pid).count();
            format!("{}: {}", process_text(view, pid), part(shown, all, "connection"))
        }
        Place::Packets(key) => {
            format!("{}: {}", process_text(view, key.pid), key.text())
        }
        Place::Failed => {
            let all = model.failed.all().count();
            format!("net-latency top: {} that failed", part(shown, all, "connection"))
        }
    }
}

fn part(shown: usize, all: usize, what: &str) -> String {
    let all_of_them = counted(all, what);
    if shown == all { all_of_them } else { format!("{shown} of {all_of_them}") }
}

fn process_text(view: &View<'_>, pid: u32) -> String {
    match pid {
        0 => "unknown process".to_owned(),
        _ => format!("{}, PID {pid}", name_of(view.model, pid, view.look.is_ascii)),
    }
}

/// By what means, since when, over what, in which order.
fn setting(view: &View<'_>) -> String {
    let status = view.status;
    let mut text = format!("{}, {}, ", status.source, since(status.elapsed));
    if matches!(view.state.place, Place::Packets(_)) {
        text.push_str(&format!("slowest {}, ", dir(view.state.shown)));
    }
    let window = match view.state.place {
        Place::Failed => Duration::from_nanos(LATELY_NS),
        _ => status.window,
    };
    text.push_str(&format!("last {}", since(window)));
    let sort = view.state.sort();
    text.push_str(&format!(", sorted by {}", sort.by.long_title()));
    if !view.state.filter.is_empty() {
        text.push_str(&format!(", matching \"{}\"", view.state.filter));
    }
    if !status.traced.is_empty() {
        text.push_str(&format!(", {}", status.traced));
    }
    text
}

/// A duration for people.
fn since(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{} ms", duration.as_millis()),
        1..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        _ => format!("{} h {:02} min", seconds / 3600, seconds / 60 % 60),
    }
}

/// Notes about losses and missing data.
fn notes(view: &View<'_>) -> (String, Ink) {
    let mut notes = Vec::new();
    let mut kinds: Vec<_> = view.status.losses.kinds().filter(|loss| loss.count > 0).collect();
    kinds.sort_by_key(|loss| !loss.is_lost_line);
    let lost = view.status.losses.lines();
    if lost > 0 {
        notes.push(format!("{lost} LOST"));
    }
    let (processes, connections) = view.model.refused();
    for (packets, why) in [
        (processes, "this table has no room for more processes"),
        (connections, "their process's table has no room for more connections"),
    ] {
        if packets > 0 {
            notes.push(format!("{} not shown: {why}", counted(packets, "packet")));
        }
    }
    notes.extend(kinds.iter().map(|loss| fate_of(loss.count, loss.meaning)));
    notes.extend(view.status.unread.iter().cloned());
    let ink = if lost > 0 { Ink::Alert } else { Ink::Weak };
    (notes.join("; "), ink)
}

/// What can be done, or the filter that is typed.
fn foot(view: &View<'_>, canvas: &mut Canvas<'_>, y: u16) {
    let width = canvas.width();
    if view.state.is_typing() && !view.state.is_help {
        let x = canvas.put((0, y), width, "filter (name, PID, address or port): ", Ink::Strong);
        let x = canvas.put((x, y), width - x, &view.state.filter, Ink::Plain);
        canvas.put((x, y), 1, " ", Ink::Selected);
        return;
    }
    let turn = dir(opposite(view.state.shown));
    let back = if view.state.place == Place::Processes { "" } else { "back" };
    let freeze = if view.state.is_frozen { "resume" } else { "freeze" };
    let hints: &[(&str, &str)] = if view.state.is_help {
        &[("any key", "back"), ("q", "quit")]
    } else {
        &[
            ("q", "quit"),
            ("?", "help"),
            ("Esc", back),
            ("Enter", if view.state.place.is_traffic() { "open" } else { "" }),
            ("/", "filter"),
            ("Space", freeze),
            ("Tab", turn),
            ("s", "sort"),
            ("r", "reverse"),
            ("f", if view.state.place == Place::Failed { "" } else { "failed" }),
        ]
    };
    let mut x = 0;
    for (key, meaning) in hints.iter().filter(|(_, meaning)| !meaning.is_empty()) {
        let needed = u16::try_from(key.len() + 1 + meaning.len()).unwrap_or(u16::MAX);
        if needed > width.saturating_sub(x) {
            break;
        }
        x = canvas.put((x, y), width, key, Ink::Strong);
        x = canvas.put((x + 1, y), width, meaning, Ink::Plain) + 2;
    }
}

#[cfg(test)]
mod tests {
    use super::wrapped;

    #[test]
    fn a_note_goes_on_in_the_next_line_and_the_last_has_all_the_rest() {
        assert_eq!(wrapped("", 10, 3), [""; 0]);
        assert_eq!(wrapped("12 LOST; 3 more", 15, 3), ["12 LOST; 3 more"]);
        assert_eq!(wrapped("12 LOST; 3 more", 14, 3), ["12 LOST; 3", "more"]);
        assert_eq!(wrapped("one two three four five", 5, 3), ["one", "two", "three four five"]);
        assert_eq!(wrapped("unbreakable", 5, 3), ["unbreakable"]);
    }
}
