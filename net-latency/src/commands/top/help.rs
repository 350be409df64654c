//! The help screen.

use super::paint::{Canvas, Ink};

const TITLE: &str = "net-latency top: where packets spend their time, by process and connection";

/// Keys and what they do; an empty key goes on with the line before.
const LINES: &[(&str, &str)] = &[
    ("Up Down j k", "select a row; also PgUp, PgDn, Home, End"),
    ("Enter", "to a process's connections, to a connection's slowest packets"),
    ("Esc Backspace", "back; in the list of processes: clear the filter"),
    ("f", "failed connections of all processes in the last ten seconds"),
    ("/", "only what matches: part of a name, PID, address or port"),
    ("s S", "sort by the next column, by the one before; also > < Right Left"),
    ("r", "reverse the sort order"),
    ("Tab", "packets that come in, or those that go out"),
    ("Space p", "freeze or resume the screen; counting continues meanwhile"),
    ("? h", "this help"),
    ("q Ctrl-C", "quit, with a summary of the run"),
    ("second line", "what made packets slow in the last ten seconds (see diagnose)"),
    ("TIME/s", "P50 times packets a second: whose packets take most time in all"),
    ("P50 P99 MAX", "total time: half of the window's packets took less, 99 % did"),
    ("MOSTLY", "the stage that took most of that time, and its share"),
    ("TREND", "slowest packet of each tenth of a window, newest on the right;"),
    ("", "bar heights compare only within a row"),
    ("RTT ANSWER", "median round trip; of a server's answers, or of those to a client"),
    ("colours", "yellow from 1 ms, red from 10 ms"),
    ("stages", "in: drv, ip, tcp, app; out: app, tcp, ip, drv; udp for tcp;"),
    ("", "* where a process has both"),
];

/// Draws it.
pub(super) fn draw(canvas: &mut Canvas<'_>) {
    let width = canvas.width();
    canvas.put((0, 0), width, TITLE, Ink::Strong);
    let bottom = canvas.height() - 1;
    for (y, (key, meaning)) in (2..bottom).zip(LINES) {
        canvas.put((0, y), 14, key, Ink::Strong);
        canvas.put((15, y), width.saturating_sub(15), meaning, Ink::Plain);
    }
}
