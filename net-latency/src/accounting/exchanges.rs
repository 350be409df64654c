//! Requests and answers that take turns on a connection, as one of its ends sees them.
//!
//! A request is all packets of the client's without one of the server's in between; the answer is what follows in the other direction,
//! until the next request. That next request tells whether this was so: that no line is missing (sequence numbers), and that neither side
//! wrote before the other was through. So a time is known one exchange late, or at the end.

use std::collections::BTreeMap;

use net_latency_common::{Direction, service_port};
use serde::{Serialize, Serializer};

use super::{Figures, Packet, Percentiles, Times};
use crate::named::named;

/// Which end of a connection this machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It asks.
    Client,
    /// It answers.
    Server,
}

impl Role {
    /// By the ports, of which one only may be one that the kernel gives out; `ephemeral` as [`service_port`] takes it.
    #[must_use]
    pub const fn of(local: u16, remote: u16, ephemeral: u32) -> Option<Self> {
        if service_port(local, remote, ephemeral) != local {
            Some(Self::Client)
        } else if service_port(remote, local, ephemeral) != remote {
            Some(Self::Server)
        } else {
            None
        }
    }
}

named! {
    /// Why the time of an exchange is unknown.
    pub enum Unanswered {
        /// Requests and answers overlap: whose answer it is can't be told.
        Interleaved "interleaved",
        /// A packet of it has no line.
        MissingLine "missing_line",
        /// It is not known when a packet arrived, or was written.
        NoTime "no_time",
    }
}

/// How long an answer took, in ns: at the server its service time, at the client its response time.
pub(crate) type Outcome = Result<u64, Unanswered>;

/// What of a packet with data, sent for the first time, matters here. Times are ns since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    direction: Direction,
    /// The numbers of its first byte, and behind its last one; `None` for UDP.
    bytes: Option<(u32, u32)>,
    /// When it arrived, or was written.
    begun_ns: Option<i64>,
    /// When it was read, or was written.
    done_ns: Option<i64>,
}

impl Turn {
    /// The turn of a packet with `len` bytes, the first of which has the number `seq`.
    #[must_use]
    pub(crate) fn of(packet: &Packet<'_>, seq: Option<u32>, len: u32) -> Self {
        let begun_ns = packet.begun_ns();
        Self {
            direction: packet.direction,
            bytes: seq.map(|seq| (seq, seq.wrapping_add(len))),
            begun_ns,
            done_ns: match packet.direction {
                Direction::In => packet.wall_ns,
                Direction::Out => begun_ns,
            },
        }
    }

    /// Whether it begins where the bytes before it ended, as far as both are known.
    fn follows(&self, end: Option<u32>) -> bool {
        self.bytes.zip(end).is_none_or(|((first, _), end)| first == end)
    }

    fn end(&self) -> Option<u32> {
        self.bytes.map(|(_, end)| end)
    }
}

/// An answer so far.
#[derive(Clone, Copy, Debug)]
struct Answer {
    first: Turn,
    last: Turn,
    /// Whether its first byte was seen.
    is_whole: bool,
}

/// How far one end of a connection is with requests and answers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Exchanges {
    /// The last packet of the newest request.
    request: Option<Turn>,
    answer: Option<Answer>,
    /// Where the answer before that ended.
    answered_until: Option<u32>,
}

impl Exchanges {
    /// Takes the next packet of this end, and tells about the exchange that it shows to be over, if it does.
    pub(crate) fn see(&mut self, role: Role, turn: &Turn) -> Option<Outcome> {
        let is_request = (turn.direction == Direction::In) == (role == Role::Server);
        if is_request {
            let over = self.answer.take().zip(self.request);
            self.request = Some(*turn);
            let (answer, request) = over?;
            self.answered_until = answer.last.end();
            return Some(outcome(&request, &answer, Some(turn)));
        }
        if self.request.is_none() {
            // No request came, or it came before tracing began.
            self.answered_until = turn.end();
            return None;
        }
        match &mut self.answer {
            Some(answer) => answer.last = *turn,
            None => {
                let is_whole = turn.follows(self.answered_until);
                self.answer = Some(Answer { first: *turn, last: *turn, is_whole });
            }
        }
        None
    }

    /// Nothing more will come, or not for long: tells about the last exchange, which no further request confirms.
    pub(crate) fn finish(&mut self) -> Option<Outcome> {
        // A request that has no answer yet waits on.
        let answer = self.answer.take()?;
        let request = self.request.take()?;
        self.answered_until = answer.last.end();
        Some(outcome(&request, &answer, None))
    }
}

/// How long it took from the end of the request to the beginning of the answer; `next` is the request that followed.
fn outcome(request: &Turn, answer: &Answer, next: Option<&Turn>) -> Outcome {
    if !answer.is_whole || next.is_some_and(|next| !next.follows(request.end())) {
        return Err(Unanswered::MissingLine);
    }
    let (Some(asked), Some(answered)) = (request.done_ns, answer.first.begun_ns) else {
        return Err(Unanswered::NoTime);
    };
    if answered < asked {
        return Err(Unanswered::Interleaved);
    }
    if let Some(next) = next {
        let (Some(end), Some(next)) = (answer.last.done_ns, next.begun_ns) else {
            return Err(Unanswered::NoTime);
        };
        if next < end {
            return Err(Unanswered::Interleaved);
        }
    }
    Ok(answered.abs_diff(asked))
}

/// How long answers took.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answers {
    times: Times,
    /// Those that no further request has confirmed.
    last: Times,
    unknown: [u64; Unanswered::ALL.len()],
}

impl Answers {
    /// Counts one; `is_last`: no further request confirms it.
    pub(crate) fn add(&mut self, outcome: Outcome, is_last: bool) {
        match outcome {
            Ok(ns) if is_last => self.last.add(ns),
            Ok(ns) => self.times.add(ns),
            Err(why) => self.unknown[why as usize] += 1,
        }
    }

    /// Whether there was an exchange.
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.times.count() + self.last.count() + self.unknown.iter().sum::<u64>() == 0
    }

    /// The times that are known to be those of exchanges: none where more than one in a hundred overlaps another, and none that
    /// nothing confirms where more than one in a hundred lacks a line.
    #[must_use]
    pub(crate) fn times(&self) -> Times {
        let [interleaved, missing, _] = self.unknown;
        let all = self.times.count() + self.last.count();
        let mut times = Times::default();
        if Self::take_turns(interleaved, all) {
            times.merge(&self.times);
            if missing * 100 <= all {
                times.merge(&self.last);
            }
        }
        times
    }

    /// Whether requests and answers do so: of an exchange that overlaps another it is not always seen.
    #[must_use]
    pub(crate) const fn take_turns(interleaved: u64, others: u64) -> bool {
        interleaved * 100 <= others
    }

    /// Forgets all and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.times.clear();
        self.last.clear();
        self.unknown = Default::default();
    }

    /// Exchanges whose time is unknown, by the reason. Those that [`Self::times`] withholds are among them.
    fn unknown(&self, known: &Times) -> BTreeMap<&'static str, u64> {
        let withheld = self.times.count() + self.last.count() - known.count();
        let [interleaved, ..] = self.unknown;
        let why = if Self::take_turns(interleaved, self.times.count() + self.last.count()) {
            Unanswered::MissingLine
        } else {
            Unanswered::Interleaved
        };
        let count = |(reason, name): &(Unanswered, &'static str)| {
            let more = if *reason == why { withheld } else { 0 };
            (*name, self.unknown[*reason as usize] + more)
        };
        Unanswered::ALL.iter().map(count).collect()
    }
}

/// Its times, and how many are unknown for which reason.
impl Serialize for Answers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Object {
            count: u64,
            min_ns: Option<u64>,
            #[serde(flatten)]
            percentiles: Percentiles,
            unknown: BTreeMap<&'static str, u64>,
        }
        let times = self.times();
        let Figures { count, min_ns, percentiles, .. } = times.figures();
        Object { count, min_ns, percentiles, unknown: self.unknown(&times) }.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A packet of 100 bytes: when it was begun and done, in us, and the place of its first byte.
    fn turn(direction: Direction, begun_us: i64, done_us: i64, seq: u32) -> Turn {
        let ns = |us: i64| Some(us * 1_000);
        let done_ns = if direction == Direction::In { ns(done_us) } else { ns(begun_us) };
        Turn { direction, bytes: Some((seq, seq.wrapping_add(100))), begun_ns: ns(begun_us), done_ns }
    }

    fn arrives(arrived_us: i64, read_us: i64, seq: u32) -> Turn {
        turn(Direction::In, arrived_us, read_us, seq)
    }

    fn leaves(written_us: i64, seq: u32) -> Turn {
        turn(Direction::Out, written_us, written_us, seq)
    }

    fn seen(role: Role, turns: &[Turn]) -> Vec<Outcome> {
        let mut exchanges = Exchanges::default();
        let mut outcomes: Vec<_> = turns.iter().filter_map(|turn| exchanges.see(role, turn)).collect();
        outcomes.extend(exchanges.finish());
        outcomes
    }

    #[test]
    fn who_serves_is_known_by_its_port() {
        let range = 32_768 | 60_999 << 16;
        let roles = [(443, 51_324), (51_324, 443), (40_000, 50_000), (8_080, 443), (80, 80)];
        let roles = roles.map(|(local, remote)| Role::of(local, remote, range));
        assert_eq!(roles, [Some(Role::Server), Some(Role::Client), None, None, None]);
    }

    #[test]
    fn a_service_time_is_from_the_last_read_to_the_first_write() {
        let turns = [
            arrives(10, 20, 0),
            arrives(15, 30, 100),
            leaves(80, 1_000),
            leaves(95, 1_100),
            arrives(200, 210, 200),
            leaves(213, 1_200),
        ];
        assert_eq!(seen(Role::Server, &turns), [Ok(50_000), Ok(3_000)]);
    }

    #[test]
    fn a_response_time_is_from_the_last_write_to_the_first_arrival() {
        let turns = [
            leaves(10, 0),
            leaves(12, 100),
            arrives(40, 70, 1_000),
            arrives(41, 75, 1_100),
            leaves(80, 200),
            arrives(90, 91, 1_200),
        ];
        assert_eq!(seen(Role::Client, &turns), [Ok(28_000), Ok(10_000)]);
    }

    #[test]
    fn a_greeting_and_an_upload_are_no_exchange() {
        assert_eq!(seen(Role::Server, &[leaves(1, 0), leaves(2, 100)]), []);
        assert_eq!(seen(Role::Client, &[leaves(1, 0), leaves(2, 100)]), []);
        // What follows the greeting is one.
        let turns = [leaves(1, 0), arrives(5, 6, 0), leaves(9, 100)];
        assert_eq!(seen(Role::Server, &turns), [Ok(3_000)]);
    }

    #[test]
    fn what_overlaps_has_no_time() {
        // The next request arrived before the answer was written, and was read behind that.
        let turns = [arrives(10, 20, 0), leaves(50, 0), arrives(30, 60, 100), leaves(70, 100)];
        assert_eq!(seen(Role::Server, &turns), [Err(Unanswered::Interleaved), Ok(10_000)]);
        // The client wrote before it had read all.
        let turns = [leaves(10, 0), arrives(20, 50, 0), leaves(40, 100), arrives(60, 61, 100)];
        assert_eq!(seen(Role::Client, &turns), [Err(Unanswered::Interleaved), Ok(20_000)]);
        // The answer was written before the request was read.
        assert_eq!(seen(Role::Server, &[arrives(10, 20, 0), leaves(15, 0)]), [Err(Unanswered::Interleaved)]);
    }

    #[test]
    fn a_line_that_is_missing_makes_no_time() {
        let [first, answer, next] = [arrives(10, 20, 0), leaves(50, 0), arrives(100, 110, 100)];
        // A request without a line, and the beginning of an answer.
        let turns = [first, answer, arrives(200, 210, 200), leaves(220, 100)];
        assert_eq!(seen(Role::Server, &turns), [Err(Unanswered::MissingLine), Ok(10_000)]);
        let turns = [first, answer, next, leaves(130, 200)];
        assert_eq!(seen(Role::Server, &turns), [Ok(30_000), Err(Unanswered::MissingLine)]);
        // Numbers begin anew behind the last one.
        let turns = [arrives(10, 20, u32::MAX - 49), leaves(50, 0), arrives(100, 110, 50), leaves(120, 100)];
        assert_eq!(seen(Role::Server, &turns), [Ok(30_000), Ok(10_000)]);
    }

    #[test]
    fn a_time_that_is_unknown_makes_none() {
        let unknown = Turn { begun_ns: None, done_ns: None, ..leaves(0, 0) };
        assert_eq!(seen(Role::Server, &[arrives(10, 20, 0), unknown]), [Err(Unanswered::NoTime)]);
    }

    #[test]
    fn times_are_withheld_where_requests_overlap_or_lines_are_missing() {
        let mut answers = Answers::default();
        for ns in 1..=100 {
            answers.add(Ok(ns), false);
        }
        answers.add(Ok(500), true);
        answers.add(Err(Unanswered::Interleaved), false);
        assert_eq!((answers.times().count(), answers.times().max()), (101, Some(500)));
        for _ in 0..2 {
            answers.add(Err(Unanswered::MissingLine), false);
        }
        assert_eq!((answers.times().count(), answers.times().max()), (100, Some(100)));
        let unknown = |answers: &Answers| Vec::from_iter(answers.unknown(&answers.times()).into_values());
        assert_eq!(unknown(&answers), [1, 3, 0]);
        answers.add(Err(Unanswered::Interleaved), false);
        assert_eq!(answers.times().count(), 0);
        assert_eq!(unknown(&answers), [103, 2, 0]);
        answers.clear();
        assert!(answers.is_empty());
    }
}
