//! Connections in columns, for people: a line fits 120 columns where addresses are those of IPv4.

use std::{
    io::{self, Write},
    net::IpAddr,
};

use super::fields::{ClosedBy, Line, Name, State};
use crate::{
    accounting::{Human, HumanBytes},
    clock::TimeText,
    escape::write_name,
    output,
};

/// Where the time of the day begins in a time of a calendar's style: `Wed Mar  2 16:01:36`.
const CLOCK: usize = 11;

/// The line above the columns.
pub(super) const HEADER: &str = "\
TIME     ROLE   PID     PROCESS         PORT  REMOTE                STATE       OPENED  ACCEPT  IN      OUT     LASTED\n";

/// Appends the line of a connection, with everything that JSON has if `is_verbose`.
pub(super) fn write(line: &Line, is_verbose: bool, time: &mut TimeText, out: &mut Vec<u8>) {
    output::Line::append(out, |text| {
        let mut row = Row { text, end: 0 };
        row.column(9, |text| text.put_slice(&time.whole_seconds(line.ts.0).as_bytes()[CLOCK..]));
        row.column(7, |text| text.put_slice(line.role.map_or("-", |role| role.name()).as_bytes()));
        row.column(8, |text| number(line.pid, text));
        row.name(16, line.process.as_ref().map(Name::bytes));
        row.column(6, |text| text.put_number(line.lport.into()));
        row.column(22, |text| end(line, text));
        row.column(12, |text| text.put_slice(how(line).as_bytes()));
        row.column(8, |text| long(line.handshake_ns, text));
        row.column(8, |text| long(line.accept_ns, text));
        row.column(8, |text| HumanBytes(line.bytes_in).put(|piece| text.put_slice(piece.as_bytes())));
        row.column(8, |text| HumanBytes(line.bytes_out).put(|piece| text.put_slice(piece.as_bytes())));
        long(line.duration_ns, row.text);
    });
    if is_verbose {
        rest(line, out);
    }
    out.push(b'\n');
}

/// A line whose columns begin where the header's do, unless what is in front is wider.
struct Row<'a, 'b> {
    text: &'a mut output::Line<'b>,
    /// Where the next column is to begin, in bytes.
    end: usize,
}

impl Row<'_, '_> {
    fn column(&mut self, width: usize, write: impl FnOnce(&mut output::Line<'_>)) {
        write(self.text);
        self.end += width;
        // One space at least.
        let missing = self.end.saturating_sub(self.text.len()).max(1);
        self.text.put_spaces(missing);
    }

    /// A column for a name, of which a character may take more than a byte.
    fn name(&mut self, width: usize, name: Option<&[u8]>) {
        if name.is_some_and(|name| name != b"-" && self.text.put_plain(name, b"\\,|")) {
            return self.column(width, |_| ());
        }
        let mut escaped = Vec::new();
        write_name(name, &mut escaped);
        // All is UTF-8: each character has one byte that continues none.
        self.end += escaped.iter().filter(|byte| **byte & 0xC0 == 0x80).count();
        self.column(width, |text| text.put_slice(&escaped));
    }
}

fn number(number: Option<u32>, text: &mut output::Line<'_>) {
    match number {
        Some(number) => text.put_number(number.into()),
        None => text.put_byte(b'-'),
    }
}

fn long(ns: Option<u64>, text: &mut output::Line<'_>) {
    match ns {
        Some(ns) => Human(ns).put(|piece| text.put_slice(piece.as_bytes())),
        None => text.put_byte(b'-'),
    }
}

fn end(line: &Line, text: &mut output::Line<'_>) {
    match line.raddr {
        IpAddr::V4(address) => text.put_address_v4(address),
        IpAddr::V6(address) => text.put_slice(format!("[{address}]").as_bytes()),
    }
    text.put_byte(b':');
    text.put_number(line.rport.into());
}

/// How it ended, and by whom.
fn how(line: &Line) -> &'static str {
    match (line.state, line.closed_by) {
        (State::Closed, Some(ClosedBy::Peer)) => "peer closed",
        (State::Reset, Some(ClosedBy::ResetByPeer)) => "peer reset",
        (state, _) => state.name(),
    }
}

/// What the columns have no room for.
fn rest(line: &Line, out: &mut Vec<u8>) {
    let time = |ns: Option<u64>, out: &mut Vec<u8>| match ns {
        Some(ns) => write!(out, "{}", Human(ns)),
        None => write!(out, "-"),
    };
    let mut put = |key: &str, write: &dyn Fn(&mut Vec<u8>) -> io::Result<()>| {
        write!(out, " | {key} ").and_then(|()| write(out)).expect("memory can be written");
    };
    put("local", &|out| write!(out, "{}", line.laddr));
    put("syn retrans", &|out| write!(out, "{}", line.syn_retrans));
    put("first in", &|out| time(line.first_in_ns, out));
    put("first out", &|out| time(line.first_out_ns, out));
    put("segs in", &|out| write!(out, "{}", line.segs_in));
    put("segs out", &|out| write!(out, "{}", line.segs_out));
    put("retrans", &|out| write!(out, "{}", line.retrans));
    put("rtt", &|out| time(line.rtt_ns, out));
    put("min rtt", &|out| time(line.min_rtt_ns, out));
    let name = |name: &Name, out: &mut Vec<u8>| {
        write_name(Some(name.bytes()), out);
        Ok(())
    };
    if let Some(netns) = &line.netns_name {
        put("netns", &|out| name(netns, out));
    }
    if let Some(container) = &line.container {
        put("container", &|out| name(container, out));
    }
    if line.comm != line.process
        && let Some(comm) = &line.comm
    {
        put("thread", &|out| name(comm, out));
    }
    for word in line.flags.words() {
        put(word, &|_| Ok(()));
    }
}
