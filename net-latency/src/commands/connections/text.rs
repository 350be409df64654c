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
};

/// Where the time of the day begins in a time of a calendar's style: `Wed Mar  2 16:01:36`.
const CLOCK: usize = 11;

/// The line above the columns.
pub(super) const HEADER: &str = "\
TIME     ROLE   PID     PROCESS         PORT  REMOTE                STATE       OPENED  ACCEPT  IN      OUT     LASTED\n";

/// Appends the line of a connection, with everything that JSON has if `is_verbose`.
pub(super) fn write(line: &Line, is_verbose: bool, time: &mut TimeText, out: &mut Vec<u8>) {
    let mut row = Row { len: 0, width: 0, out };
    row.column(9, |out| out.write_all(&time.whole_seconds(line.ts.0).as_bytes()[CLOCK..]));
    row.column(7, |out| out.write_all(line.role.map_or("-", |role| role.word()).as_bytes()));
    row.column(8, |out| number(line.pid, out));
    row.column(16, |out| {
        write_name(line.process.as_ref().map(Name::bytes), out);
        Ok(())
    });
    row.column(6, |out| number(Some(line.lport), out));
    row.column(22, |out| end(line, out));
    row.column(12, |out| out.write_all(how(line).as_bytes()));
    row.column(8, |out| long(line.handshake_ns, out));
    row.column(8, |out| long(line.accept_ns, out));
    row.column(8, |out| write!(out, "{}", HumanBytes(line.bytes_in)));
    row.column(8, |out| write!(out, "{}", HumanBytes(line.bytes_out)));
    row.column(0, |out| long(line.duration_ns, out));
    if is_verbose {
        rest(line, row.out);
    }
    out.push(b'\n');
}

/// A line whose columns begin where the header's do, unless what is in front is wider.
struct Row<'a> {
    /// Characters so far.
    len: usize,
    /// Where the next column is to begin.
    width: usize,
    out: &'a mut Vec<u8>,
}

impl Row<'_> {
    fn column(&mut self, width: usize, write: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) {
        let start = self.out.len();
        write(self.out).expect("memory can be written");
        // Names are escaped, so that all is UTF-8: each character has one byte that continues none.
        self.len += self.out[start..].iter().filter(|byte| **byte & 0xC0 != 0x80).count();
        self.width += width;
        if width > 0 {
            // One space at least.
            let missing = self.width.saturating_sub(self.len).max(1);
            self.out.resize(self.out.len() + missing, b' ');
            self.len += missing;
        }
    }
}

fn number(number: Option<impl itoa::Integer>, out: &mut Vec<u8>) -> io::Result<()> {
    match number {
        Some(number) => out.write_all(itoa::Buffer::new().format(number).as_bytes()),
        None => out.write_all(b"-"),
    }
}

fn long(ns: Option<u64>, out: &mut Vec<u8>) -> io::Result<()> {
    match ns {
        Some(ns) => write!(out, "{}", Human(ns)),
        None => out.write_all(b"-"),
    }
}

fn end(line: &Line, out: &mut Vec<u8>) -> io::Result<()> {
    match line.raddr {
        IpAddr::V4(address) => {
            for (place, octet) in address.octets().into_iter().enumerate() {
                out.write_all(if place > 0 { b"." } else { b"" })?;
                number(Some(octet), out)?;
            }
        }
        IpAddr::V6(address) => write!(out, "[{address}]")?,
    }
    out.write_all(b":")?;
    number(Some(line.rport), out)
}

/// How it ended, and by whom.
fn how(line: &Line) -> &'static str {
    match (line.state, line.closed_by) {
        (State::Closed, Some(ClosedBy::Peer)) => "peer closed",
        (State::Reset, Some(ClosedBy::ResetByPeer)) => "peer reset",
        (state, _) => state.word(),
    }
}

/// What the columns have no room for.
fn rest(line: &Line, out: &mut Vec<u8>) {
    let mut put = |key: &str, write: &dyn Fn(&mut Vec<u8>) -> io::Result<()>| {
        write!(out, " | {key} ").and_then(|()| write(out)).expect("memory can be written");
    };
    put("local", &|out| write!(out, "{}", line.laddr));
    put("syn retrans", &|out| write!(out, "{}", line.syn_retrans));
    put("first in", &|out| long(line.first_in_ns, out));
    put("first out", &|out| long(line.first_out_ns, out));
    put("segs in", &|out| write!(out, "{}", line.segs_in));
    put("segs out", &|out| write!(out, "{}", line.segs_out));
    put("retrans", &|out| write!(out, "{}", line.retrans));
    put("rtt", &|out| long(line.rtt_ns, out));
    put("min rtt", &|out| long(line.min_rtt_ns, out));
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
