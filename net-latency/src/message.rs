//! Messages on standard error, each in one piece. Whoever closed it doesn't want to know, which is no reason not to go on.

use std::{
    fmt::Display,
    io::{self, Write as _},
};

/// Writes a line that says whose it is.
pub(crate) fn tell(text: impl Display) {
    say(|out| writeln!(out, "net-latency: {text}"));
}

/// Writes what `what` puts together.
pub(crate) fn say(what: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) {
    let mut text = Vec::new();
    let _ = what(&mut text).and_then(|()| io::stderr().write_all(&text));
}
