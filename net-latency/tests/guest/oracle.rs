//! What holds for every set of lines, whatever the case.

use std::collections::HashSet;

use anyhow::{Result, ensure};

use crate::{
    lines::{Dir, Line, NET, Proto},
    peers::{Pair, Peer},
    tool::Outcome,
};

/// Checks each line of `pairs` and returns them, pair by pair, without retransmissions.
pub(crate) fn check(outcome: &Outcome, pairs: &[&Pair]) -> Result<Vec<Conversation>> {
    let lines = outcome.lines()?;
    pairs.iter().map(|pair| Conversation::check(outcome, &lines, pair)).collect()
}

/// The lines of one connection that carry data, retransmissions aside.
pub(crate) struct Conversation {
    pub(crate) requests_out: Vec<Line>,
    pub(crate) requests_in: Vec<Line>,
    pub(crate) replies_out: Vec<Line>,
    pub(crate) replies_in: Vec<Line>,
    /// Segments that TCP sent again.
    pub(crate) retransmissions: Vec<Line>,
}

impl Conversation {
    /// Checks each line of `pair` among `lines`; the two peers' processes alone write and read.
    pub(crate) fn check(outcome: &Outcome, lines: &[Line], pair: &Pair) -> Result<Self> {
        Self::check_by(outcome, lines, pair, &|line| Some(owner(pair, line)))
    }

    /// Like [`Self::check`]; `who` tells the process that a line with data must name, by PID and name, or
    /// that it must name none.
    pub(crate) fn check_by(
        outcome: &Outcome,
        lines: &[Line],
        pair: &Pair,
        who: &dyn Fn(&Line) -> Option<(u32, String)>,
    ) -> Result<Self> {
        Self::check_all(outcome, lines, pair, who, &|_| false)
    }

    /// Like [`Self::check`]; lines for which `may_be_unsure` holds may lack stages.
    pub(crate) fn check_unless(
        outcome: &Outcome,
        lines: &[Line],
        pair: &Pair,
        may_be_unsure: impl Fn(&Line) -> bool,
    ) -> Result<Self> {
        Self::check_all(outcome, lines, pair, &|line| Some(owner(pair, line)), &may_be_unsure)
    }

    /// As [`Self::check_by`] and [`Self::check_unless`] together.
    pub(crate) fn check_all(
        outcome: &Outcome,
        lines: &[Line],
        pair: &Pair,
        who: &dyn Fn(&Line) -> Option<(u32, String)>,
        may_be_unsure: &dyn Fn(&Line) -> bool,
    ) -> Result<Self> {
        let own: Vec<&Line> = lines.iter().filter(|line| pair.owns(line)).collect();
        let mut seen = HashSet::new();
        let mut incomplete = Vec::new();
        let sent_again: HashSet<_> =
            own.iter().filter(|line| line.is("retrans")).map(|line| (line.sport, line.seq)).collect();
        for line in &own {
            let fault = |what: &str| outcome.fault(what, [*line]);
            let version = if pair.near.is_ipv4() { 4 } else { 6 };
            ensure!(line.ipver == version, fault("wrong IP version"));
            ensure!(line.proto == Proto::Tcp, fault("not TCP"));
            ensure!(line.netns.is_some(), fault("a socket without a network namespace"));
            ensure!(line.mark == 0, fault("a mark that was not set"));
            ensure!(line.ifname.as_deref() != Some(""), fault("a device without a name"));
            let is_sent_again = line.dir == Dir::Out && line.is("retrans");
            ensure!(
                line.first_send_age.is_none() || is_sent_again,
                fault("sent before, but no retransmission")
            );
            let may_enter_twice = pair.enters_twice && line.dir == Dir::In;
            ensure!(line.last_drv_ip.is_none() || may_enter_twice, fault("entered twice, where it can't"));
            ensure!(!line.is("coalesced") || line.dir == Dir::In, fault("appended on the way out"));
            ensure!(line.segs >= 1, fault("a packet of no segment"));
            ensure!(line.is("control") == (line.len == 0), fault("control is exactly what has no payload"));
            let (start, end) = outcome.span;
            ensure!(line.ts >= start && line.ts <= end, fault("time stamp outside the run"));
            let span = u64::try_from((end - start).num_nanoseconds().unwrap_or(i64::MAX))?;
            ensure!(line.total.is_none_or(|total| total <= span), fault("took longer than the run"));

            if line.is("control") {
                continue;
            }
            let (pid, comm) = who(line).unzip();
            let is_nameless = line.pid.is_none() && line.comm.is_none() && pid.is_some();
            ensure!(is_nameless || line.pid == pid, fault(&format!("not PID {pid:?}")));
            ensure!(is_nameless || line.comm == comm, fault(&format!("not named {comm:?}")));
            ensure!(is_process_named(line), fault("the first thread has the process's name"));
            // Of a segment that arrived twice no stamp is known to be its own.
            let came_twice = line.dir == Dir::In && sent_again.contains(&(line.sport, line.seq));
            let is_unsure = came_twice || may_be_unsure(line);
            let sum: Option<u64> = line.stages.iter().copied().sum();
            ensure!(sum.is_none() || line.total == sum, fault("total is not the sum of the stages"));
            // The call behind bytes that are sent again may be forgotten.
            let needed = usize::from(is_sent_again);
            if is_nameless || !is_unsure && line.stages[needed..].contains(&None) {
                incomplete.push(*line);
            } else if !is_unsure {
                ensure!(
                    line.last_drv_ip.is_some() == may_enter_twice,
                    fault("its last entry is to be known exactly where it has several")
                );
                ensure!(line.last_drv_ip <= line.stages[0], fault("entered last before it entered first"));
                ensure!(line.total != Some(0), fault("took no time at all"));
                ensure!(
                    line.tid.is_some() == (pid.is_some() && line.stages[0].is_some()),
                    fault("a thread is known exactly with its call")
                );
            }
            // With fine stages the first one's line may come last: it waits for the ACK.
            let is_twice = !line.is("retrans") && !seen.insert((line.dir, line.sport, line.seq));
            ensure!(!is_twice, fault("the same segment twice"));
        }
        ensure!(!own.is_empty(), outcome.fault("no line of this connection", lines));
        // Absent is never wrong; but it is to be rare. A packet whose write was not seen has no process either.
        let writes_unknown =
            incomplete.iter().filter(|line| line.dir == Dir::Out && line.stages[0].is_none()).count();
        let excused = outcome.writes_unseen(own.len()).min(writes_unknown);
        let known = own.len() - incomplete.len() + excused;
        ensure!(
            outcome.allowance().allows(known.try_into()?, own.len().try_into()?),
            outcome.fault("a stage or the process is unknown", incomplete)
        );
        let pick = |dir: Dir, request: bool| {
            let wanted = |line: &&&Line| {
                line.dir == dir
                    && pair.is_request(line) == request
                    && !line.is("control")
                    && !line.is("retrans")
            };
            own.iter().filter(wanted).map(|line| (**line).clone()).collect()
        };
        Ok(Self {
            requests_out: pick(Dir::Out, true),
            requests_in: pick(Dir::In, true),
            replies_out: pick(Dir::Out, false),
            replies_in: pick(Dir::In, false),
            retransmissions: own
                .iter()
                .filter(|line| line.is("retrans"))
                .map(|line| (*line).clone())
                .collect(),
        })
    }

    /// What the client sent again.
    pub(crate) fn retransmitted_requests(&self) -> impl Iterator<Item = &Line> {
        let client = self.requests_out.first().map(|line| line.sport);
        self.retransmissions.iter().filter(move |line| Some(line.sport) == client)
    }

    /// Each of `lines` of requests that are all of `len` bytes with its number, from 0 on.
    pub(crate) fn requests_numbered<'a>(
        &self,
        lines: &'a [Line],
        len: u32,
    ) -> impl Iterator<Item = (usize, &'a Line)> + use<'a> {
        numbered([&self.requests_out, &self.requests_in], lines, len)
    }

    /// Each of `lines` of replies that are all of `len` bytes with its number, from 0 on.
    pub(crate) fn replies_numbered<'a>(
        &self,
        lines: &'a [Line],
        len: u32,
    ) -> impl Iterator<Item = (usize, &'a Line)> + use<'a> {
        numbered([&self.replies_out, &self.replies_in], lines, len)
    }

    /// Exactly `rounds` requests and replies, out and in, each one segment of `len` bytes, none missing.
    pub(crate) fn expect_rounds(&self, outcome: &Outcome, rounds: usize, len: u32) -> Result<()> {
        for (what, lines) in [
            ("requests out", &self.requests_out),
            ("requests in", &self.requests_in),
            ("replies out", &self.replies_out),
            ("replies in", &self.replies_in),
        ] {
            expect_stream(outcome, what, lines, rounds, len)?;
        }
        Ok(())
    }
}

/// Each of `lines` with its number among those of `both` ends, of which one has the first.
fn numbered<'a>(
    both: [&[Line]; 2],
    lines: &'a [Line],
    len: u32,
) -> impl Iterator<Item = (usize, &'a Line)> + use<'a> {
    let first = first_byte(both.iter().filter_map(|lines| lines.first()));
    lines.iter().map(move |line| ((line.seq.wrapping_sub(first) / len) as usize, line))
}

/// Segments that follow upon each other and hold `sum` bytes together, of which none is missing.
pub(crate) fn expect_bytes(outcome: &Outcome, what: &str, lines: &[Line], sum: u64) -> Result<()> {
    expect_sum(outcome, &format!("bytes of {what}"), lines, |line| line.len, sum)?;
    expect_order(outcome, what, lines)
}

/// That `lines` add up to `all` of something. What may be missing is lines like those that are there.
pub(crate) fn expect_sum(
    outcome: &Outcome,
    what: &str,
    lines: &[Line],
    of_line: impl Fn(&Line) -> u32,
    all: u64,
) -> Result<()> {
    let figures = || lines.iter().map(|line| u64::from(of_line(line)));
    let found: u64 = figures().sum();
    let missing = all.saturating_sub(found);
    let most = outcome.allowance().most_lines(lines.len().try_into()?, segments(lines));
    let allowed = most * figures().max().unwrap_or(0);
    ensure!(
        found <= all && missing <= allowed,
        outcome.fault(format_args!("{found} {what}, not {all}; {allowed} may be missing"), lines)
    );
    if missing > 0 {
        println!("{missing} of {all} {what} are missing, which is allowed");
    }
    Ok(())
}

/// Wire segments of all lines together.
pub(crate) fn segments<'a>(lines: impl IntoIterator<Item = &'a Line>) -> u64 {
    lines.into_iter().map(|line| u64::from(line.segs)).sum()
}

/// That each line begins where the one before ends, or behind a line that may be missing. With fine stages a line that found no
/// room to wait for its ACK comes before those that wait; its time on the wire is unknown then.
fn expect_order(outcome: &Outcome, what: &str, lines: &[Line]) -> Result<()> {
    let most = outcome.allowance().most_lines(lines.len().try_into()?, segments(lines));
    let did_not_wait = |line: &Line| line.is_fine && line.dir == Dir::Out && line.sent[NET].is_none();
    let waited: Vec<_> = lines.iter().filter(|line| !did_not_wait(line)).collect();
    for pair in waited.windows(2) {
        let fault = || outcome.fault(format_args!("{what} are not in order"), pair.iter().copied());
        ensure!(!is_before(pair[1].seq, pair[0].seq), fault());
    }
    let mut gaps = 0;
    for pair in by_bytes(lines).windows(2) {
        let end = pair[0].seq.wrapping_add(pair[0].len);
        gaps += u64::from(is_before(end, pair[1].seq));
        ensure!(
            !is_before(pair[1].seq, end) && gaps <= most,
            outcome.fault(format_args!("{what} do not follow upon each other"), pair.iter().copied())
        );
    }
    Ok(())
}

/// The lines of one connection by the bytes that they carry.
pub(crate) fn by_bytes(lines: &[Line]) -> Vec<&Line> {
    let first = first_byte(lines);
    let mut sorted: Vec<_> = lines.iter().collect();
    sorted.sort_by_key(|line| line.seq.wrapping_sub(first));
    sorted
}

/// Where the first bytes of a connection begin that any of these has.
fn first_byte<'a>(lines: impl IntoIterator<Item = &'a Line>) -> u32 {
    let starts = lines.into_iter().map(|line| line.seq);
    starts.reduce(|a, b| if is_before(b, a) { b } else { a }).unwrap_or(0)
}

/// Whether one byte of a connection comes before another.
fn is_before(seq: u32, other: u32) -> bool {
    seq.wrapping_sub(other).cast_signed() < 0
}

/// Exactly `count` segments of `len` bytes that follow upon each other.
pub(crate) fn expect_stream(
    outcome: &Outcome,
    what: &str,
    lines: &[Line],
    count: usize,
    len: u32,
) -> Result<()> {
    outcome.expect_all(what, lines.len().try_into()?, count.try_into()?, lines)?;
    let other = lines.iter().filter(|line| line.len != len);
    ensure!(other.clone().next().is_none(), outcome.fault(format_args!("{what} not of {len} bytes"), other));
    expect_order(outcome, what, lines)
}

/// `count` whole and possible lines of datagrams of `len` bytes, all of `peer`.
pub(crate) fn expect_datagrams(
    outcome: &Outcome,
    what: &str,
    lines: &[&Line],
    peer: &Peer,
    count: usize,
    len: u32,
) -> Result<()> {
    let mut whole = 0;
    for line in lines.iter().copied() {
        let fault = |what: &str| outcome.fault(what, [line]);
        ensure!(line.proto == Proto::Udp, fault("not UDP"));
        ensure!(line.ipver == if line.saddr.is_ipv4() { 4 } else { 6 }, fault("wrong IP version"));
        ensure!(line.pid == Some(peer.pid()), fault(&format!("not PID {}", peer.pid())));
        ensure!(line.tid == Some(peer.pid()), fault("not the thread"));
        ensure!(line.comm.as_deref() == Some(&*peer.comm()), fault(&format!("not {:?}", peer.comm())));
        ensure!(line.process == line.comm, fault("a process with the name of another thread"));
        ensure!(line.len == len, fault(&format!("not of {len} bytes")));
        ensure!(!line.is("control"), fault("flags of other packets"));
        let [Some(first), Some(second), Some(third)] = line.stages else { continue };
        ensure!(line.total == Some(first + second + third), fault("total is not the sum of the stages"));
        ensure!(line.total.is_some_and(|total| total > 0), fault("took no time at all"));
        ensure!(!line.is("partial"), fault("partial, though every stage is known"));
        whole += 1;
    }
    let all = || lines.iter().copied();
    outcome.expect_all(format_args!("whole datagrams {what}"), whole, count.try_into()?, all())?;
    ensure!(lines.len() <= count, outcome.fault("more lines than datagrams", all()));
    Ok(())
}

/// Whether the process has a name where the thread has one, and the same if that is its first.
fn is_process_named(line: &Line) -> bool {
    let is_first = line.tid.is_some() && line.tid == line.pid;
    if is_first { line.process == line.comm } else { line.process.is_some() == line.comm.is_some() }
}

/// The process whose bytes these are, by PID and name.
pub(crate) fn owner(pair: &Pair, line: &Line) -> (u32, String) {
    let peer = sender_or_reader(pair, line);
    (peer.pid(), peer.comm())
}

/// The end whose process a line must name: the writer of the bytes, or their reader.
pub(crate) fn sender_or_reader<'a>(pair: &'a Pair, line: &Line) -> &'a Peer {
    if pair.is_request(line) == (line.dir == Dir::Out) { &pair.client } else { &pair.server }
}

/// Payload bytes of all lines together.
pub(crate) fn bytes(lines: &[Line]) -> u64 {
    lines.iter().map(|line| u64::from(line.len)).sum()
}

/// The middle value of one stage.
pub(crate) fn median(lines: &[Line], stage: usize) -> u64 {
    let mut values: Vec<_> = lines.iter().filter_map(|line| line.stages[stage]).collect();
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}
