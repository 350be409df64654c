//! Answers, and the parts that their time is made of.
//!
//! At a server an answer takes from the arrival of its request's last packet until the driver has the answer's last one; at a client
//! from the write of its request's last packet until the answer's last one is read, and for the first one on a connection as long before
//! as the handshake took. That time is split along the way: [`Answer`] has each part once, and they add up to it.

use net_latency_common::{Direction, PART_COPY, PART_CPU, PART_DRIVER, PART_GAP, PART_QDISC, PART_WAIT};

use super::item::Item;
use crate::{
    accounting::{Packet, Times, exchanges::Role},
    packet::event::Event,
};

/// What takes longer is no answer any more, ns: few wait so long for one, and some only for news.
const LONGEST_NS: u64 = 10_000_000_000;
/// Times of a packet's way that are told apart.
const STEPS: usize = 7;
/// Requests of one connection that may wait for their answers.
const REQUESTS: usize = 4;

/// The way of a packet through this machine's kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    /// When it came to its driver, or was written, and when it was read, or its driver had it; ns since 1970.
    pub(super) from_ns: i64,
    pub(super) to_ns: i64,
    /// By the items of its direction ([`Way::items`]).
    steps: [u64; STEPS],
    /// The thread that read or wrote it, or 0.
    pub(super) tid: u32,
}

impl Way {
    /// Nothing if it is not known when it began.
    pub(super) fn of(event: &Event<'_>) -> Option<Self> {
        let packet = Packet::of_log(event);
        let from_ns = packet.begun_ns()?;
        let parts = event.parts();
        let part = |part: usize| parts.and_then(|parts| parts[part]).unwrap_or(0);
        let [first, second, third] = event.stages().map(Option::unwrap_or_default);
        let (to_ns, steps) = match event.direction() {
            Direction::In => {
                let split = [part(PART_GAP), part(PART_WAIT), part(PART_CPU), part(PART_COPY)];
                let is_split = parts.is_some_and(|parts| parts[PART_WAIT].is_some());
                let whole = if is_split { 0 } else { third };
                let [gap, wait, cpu, copy] = if is_split { split } else { [0; 4] };
                (event.wall_ns(), [first, second, whole, gap, wait, cpu, copy])
            }
            Direction::Out => {
                let (qdisc, driver) = (part(PART_QDISC), part(PART_DRIVER));
                let left_ns = packet.left_queue_ns()?;
                (left_ns.checked_add_unsigned(driver)?, [first, second, third, qdisc, driver, 0, 0])
            }
        };
        let way = Self { from_ns, to_ns, steps, tid: event.tid().unwrap_or(0) };
        // A log may say anything.
        let sum = steps.iter().try_fold(0u64, |sum, step| sum.checked_add(*step))?;
        (from_ns <= to_ns && sum <= to_ns.abs_diff(from_ns)).then_some(way)
    }

    fn items(direction: Direction) -> &'static [Item] {
        use Item::*;
        match direction {
            Direction::In => &[DrvIp, IpTransport, Socket, Gap, Wait, Cpu, Copy],
            Direction::Out => &[AppTransport, TransportIp, IpDrv, Qdisc, Driver],
        }
    }

    /// Until when TCP held it, of one that went out.
    fn held_until_ns(&self) -> i64 {
        self.from_ns.saturating_add_unsigned(self.steps[0])
    }

    /// A sent packet whose driver's call went on when the answer to it came already ends there.
    fn cut_at(mut self, ns: i64) -> Self {
        let over = self.to_ns.saturating_sub(ns).max(0).unsigned_abs();
        shorten(self.steps.iter_mut().rev(), over);
        self.to_ns = self.to_ns.min(ns).max(self.from_ns);
        self
    }

    /// What comes before `ns` is another one's.
    fn cut_before(mut self, ns: i64) -> Self {
        let begin = ns.clamp(self.from_ns, self.to_ns);
        shorten(self.steps.iter_mut(), begin.abs_diff(self.from_ns));
        self.from_ns = begin;
        self
    }
}

/// Takes that much from the steps, ns, from one after the other.
fn shorten<'a>(steps: impl Iterator<Item = &'a mut u64>, mut over: u64) {
    for step in steps {
        let cut = over.min(*step);
        (*step, over) = (*step - cut, over - cut);
    }
}

/// An answer that is over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    /// From when to when, ns since 1970.
    from_ns: i64,
    to_ns: i64,
    /// By [`Item`].
    parts: [u64; Item::COUNT],
}

impl Answer {
    pub(super) fn total_ns(&self) -> u64 {
        self.to_ns.abs_diff(self.from_ns)
    }

    pub(super) fn ended_ns(&self) -> i64 {
        self.to_ns
    }

    fn add(&mut self, direction: Direction, way: &Way) {
        for (item, ns) in Way::items(direction).iter().zip(way.steps) {
            self.parts[*item as usize] += ns;
        }
    }

    /// What no part accounts for is a part too; nothing if they are more than the whole.
    fn complete(mut self) -> Option<Self> {
        let sum = self.parts.iter().try_fold(0u64, |sum, part| sum.checked_add(*part))?;
        self.parts[Item::Rest as usize] += self.total_ns().checked_sub(sum)?;
        (self.from_ns <= self.to_ns && self.total_ns() < LONGEST_NS).then_some(self)
    }

    /// At a client whose server had this request from `from_ns` to `to_ns`: the server's share, and that of the way between them.
    pub(super) fn split(&mut self, theirs: &Theirs) -> bool {
        let whole = self.parts[Item::Answer as usize];
        let had = theirs.to_ns.abs_diff(theirs.from_ns).min(whole);
        let is_its =
            self.from_ns <= theirs.from_ns && theirs.from_ns <= theirs.to_ns && theirs.from_ns <= self.to_ns;
        if is_its && whole > 0 {
            self.parts[Item::Answer as usize] = 0;
            self.parts[Item::Theirs as usize] = had;
            self.parts[Item::Wire as usize] = whole - had;
        }
        is_its
    }
}

/// When a server had a request: from its arrival to the answer's hand-over, ns since 1970.
#[derive(Clone, Copy, Debug)]
pub(super) struct Theirs {
    from_ns: i64,
    to_ns: i64,
}

/// The last packets of requests that have no whole answer yet, in the order in which they were read. Of those that are read before anything
/// is written, the last one gets the answer.
#[derive(Clone, Copy, Debug, Default)]
struct Requests([Option<Way>; REQUESTS]);

impl Requests {
    fn len(&self) -> usize {
        self.0.iter().flatten().count()
    }

    /// Where there is no room, the first one makes way.
    fn push(&mut self, request: Way) {
        if self.len() == REQUESTS {
            self.drop_first(1);
        }
        let len = self.len();
        self.0[len] = Some(request);
    }

    fn drop_first(&mut self, count: usize) {
        self.0[..count].fill(None);
        self.0.rotate_left(count);
    }

    /// The place of the last one that had been read then, ns since 1970.
    fn read_by(&self, ns: i64) -> Option<usize> {
        self.0.iter().rposition(|request| request.is_some_and(|request| request.to_ns <= ns))
    }
}

/// The packets of an answer so far.
#[derive(Clone, Copy, Debug)]
struct Packets {
    /// When its first one was written, or arrived, ns since 1970.
    first_ns: i64,
    last: Way,
    /// How long TCP held those before the last one.
    held_ns: u64,
    /// Until when it was looked at what TCP held.
    held_until_ns: i64,
    /// For so long the process waited for others' answers, ns: a server from its request to its last write, a client while this
    /// answer's last packet was there.
    asked_ns: u64,
}

/// How far one end of a connection is with requests and answers. They take turns, or several requests come before the first answer: the
/// server has then read the next ones when the ACK of an answer comes, with which its packet is complete.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Turns {
    role: Option<Role>,
    /// A client's last one only.
    requests: Requests,
    /// Of the first one.
    answer: Option<Packets>,
    /// Of a request or an answer it is not known when it came or left, or which belong together.
    is_unknown: bool,
    /// For a server: when it wrote its last answer, ns since 1970. Until then the next request waited for the one before.
    answered_ns: i64,
    /// How long a client's handshake took for the request, ns, if that is the first one on its connection.
    pub(super) connect_ns: u64,
    /// An answer of a client's whose server may still tell how long it had the request.
    pub(super) waiting: Option<Answer>,
    /// For a server: the last answer.
    pub(super) last: Option<Theirs>,
}

/// What a packet shows to be over.
#[derive(Clone, Copy, Debug)]
pub(super) enum Over {
    Answer(Answer),
    /// It can't be told when it began or ended, or it and others overlap.
    Unknown,
}

impl Turns {
    /// Takes the next packet of this end, and tells about the answer that is over, if one is. `asked` says for how long a thread of the
    /// process waited for others between two times; a request made at its last argument does not count.
    pub(super) fn see(
        &mut self,
        role: Role,
        direction: Direction,
        way: Option<Way>,
        asked: impl Fn(u32, (i64, i64), Option<i64>) -> u64,
    ) -> Option<Over> {
        self.role = Some(role);
        let is_request = (direction == Direction::In) == (role == Role::Server);
        let Some(way) = way else {
            let over = if is_request { self.finish() } else { None };
            self.is_unknown |= is_request || self.requests.len() > 0;
            (self.requests, self.answer) = (Requests::default(), None);
            return over;
        };
        if is_request {
            let is_next = role == Role::Client || [1, REQUESTS].contains(&self.requests.len());
            let over = if is_next { self.end(Some(&way)) } else { None };
            self.requests.push(way);
            return over;
        }
        let mut over = None;
        if role == Role::Server {
            // It is written when the request was read; a client's comes when it has left.
            let Some(place) = self.requests.read_by(way.from_ns) else {
                self.is_unknown |= self.requests.len() > 0;
                return None;
            };
            if place > 0 {
                let ended = usize::from(self.answer.is_some());
                over = self.end(None);
                self.requests.drop_first(place - ended);
            }
        }
        let Some(request) = self.requests.0[0] else { return over };
        let asked_ns = match (role, self.answer) {
            // Some requests came at once, and what it writes now is the answer to another one of them.
            (Role::Server, Some(Packets { last, asked_ns, .. })) if last.from_ns < way.from_ns => {
                asked_ns.saturating_add(asked(request.tid, (last.from_ns, way.from_ns), None))
            }
            (Role::Server, Some(Packets { asked_ns, .. })) => asked_ns,
            (Role::Server, None) => asked(request.tid, (request.to_ns, way.from_ns), None),
            (Role::Client, _) => asked(way.tid, (way.from_ns, way.to_ns), Some(request.from_ns)),
        };
        match &mut self.answer {
            Some(answer) => {
                answer.go_on(way);
                answer.asked_ns = asked_ns;
            }
            None => {
                let first_ns = way.from_ns;
                self.answer =
                    Some(Packets { first_ns, last: way, held_ns: 0, held_until_ns: first_ns, asked_ns });
            }
        }
        over
    }

    /// For how long a client has waited for the answer whose last packet this one is.
    pub(super) fn waited(&self) -> Option<(i64, i64)> {
        match (self.role, self.requests.0[0], self.answer) {
            (Some(Role::Client), Some(request), Some(answer)) => Some((request.from_ns, answer.last.to_ns)),
            _ => None,
        }
    }

    /// Whether a server had a request that came between these times, ns since 1970.
    pub(super) fn had_request(&self, (from_ns, to_ns): (i64, i64)) -> bool {
        let came = self.requests.0.iter().flatten().map(|request| request.from_ns);
        let all = came.chain(self.last.map(|last| last.from_ns));
        self.role == Some(Role::Server) && all.into_iter().any(|ns| (from_ns..=to_ns).contains(&ns))
    }

    /// Nothing more belongs to the answer, and no more answers come: none has for long.
    pub(super) fn finish(&mut self) -> Option<Over> {
        let over = self.end(None);
        self.requests = Requests::default();
        over
    }

    /// Nothing more belongs to the answer of the first request: it, or the `next` one, has an answer of its own.
    fn end(&mut self, next: Option<&Way>) -> Option<Over> {
        let role = self.role?;
        let connect_ns = std::mem::take(&mut self.connect_ns);
        let Some((request, answer)) = self.requests.0[0].zip(self.answer.take()) else {
            if role == Role::Client {
                self.requests = Requests::default();
            }
            return std::mem::take(&mut self.is_unknown).then_some(Over::Unknown);
        };
        self.requests.drop_first(1);
        let is_before = |next: &Way| match role {
            // It waited until the one before was answered.
            Role::Server => answer.last.from_ns <= next.to_ns,
            Role::Client => answer.last.to_ns <= next.from_ns,
        };
        if !next.is_none_or(is_before) {
            return Some(Over::Unknown);
        }
        let over = match role {
            Role::Server => answer.of_server(request.cut_before(self.answered_ns)),
            Role::Client => answer.of_client(request, connect_ns),
        };
        if role == Role::Server {
            self.answered_ns = answer.last.from_ns;
            self.last = over.map(|over| Theirs { from_ns: request.from_ns, to_ns: over.to_ns }).or(self.last);
        }
        Some(over.map_or(Over::Unknown, Over::Answer))
    }

    /// When its last packet was complete, ns since 1970, if an answer is not over.
    pub(super) fn is_open_since(&self) -> Option<i64> {
        self.answer.map(|answer| answer.last.to_ns)
    }
}

impl Packets {
    /// Another packet of the same answer. The time of its write is computed from the time when its ACK was processed, which may be a little
    /// late: the first one was written no later than it.
    fn go_on(&mut self, way: Way) {
        self.first_ns = self.first_ns.min(way.from_ns);
        let from = self.last.from_ns.max(self.held_until_ns);
        let until = self.last.held_until_ns().min(way.from_ns);
        self.held_ns += until.saturating_sub(from).max(0).unsigned_abs();
        self.held_until_ns = self.held_until_ns.max(until);
        self.last = way;
    }

    fn of_server(self, request: Way) -> Option<Answer> {
        let Self { first_ns, last, held_ns, asked_ns, .. } = self;
        let mut answer = Answer { from_ns: request.from_ns, to_ns: last.to_ns, parts: [0; Item::COUNT] };
        answer.add(Direction::In, &request);
        answer.add(Direction::Out, &last);
        let before = first_ns.checked_sub(request.to_ns).and_then(|ns| u64::try_from(ns).ok())?;
        // What the process wrote with pauses, and what TCP held of it meanwhile.
        let writing = u64::try_from(last.from_ns.checked_sub(first_ns)?).ok()?;
        let held = held_ns.min(writing);
        let own = before.checked_add(writing - held)?;
        let asked = asked_ns.min(own);
        answer.parts[Item::AppTransport as usize] += held;
        answer.parts[Item::Asked as usize] = asked;
        answer.parts[Item::Service as usize] = own - asked;
        answer.complete()
    }

    fn of_client(self, request: Way, connect_ns: u64) -> Option<Answer> {
        let Self { last, asked_ns, .. } = self;
        let request = request.cut_at(last.from_ns);
        let from_ns = request.from_ns.checked_sub_unsigned(connect_ns)?;
        let mut answer = Answer { from_ns, to_ns: last.to_ns, parts: [0; Item::COUNT] };
        answer.parts[Item::Connect as usize] = connect_ns;
        answer.add(Direction::Out, &request);
        answer.add(Direction::In, &last);
        let wait = &mut answer.parts[Item::Wait as usize];
        let asked = asked_ns.min(*wait);
        *wait -= asked;
        answer.parts[Item::Asked as usize] = asked;
        answer.parts[Item::Answer as usize] = u64::try_from(last.from_ns.checked_sub(request.to_ns)?).ok()?;
        answer.complete()
    }
}

/// Those answers in which a part took long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Slow {
    pub(super) count: u64,
    /// What that part took in them, and they in all, ns.
    pub(super) part_ns: u64,
    pub(super) total_ns: u64,
}

/// The answers of a service, or those that a client got.
#[derive(Clone, Debug, Default)]
pub(super) struct Answers {
    pub(super) total: Times,
    parts: [Times; Item::COUNT],
    /// All of them together, ns.
    sum_ns: u64,
    sums_ns: [u64; Item::COUNT],
    slow: [Slow; Item::COUNT],
    /// Answers whose time or parts can't be told.
    pub(super) unknown: u64,
}

impl Answers {
    /// Adds one; a part is long from `threshold_ns` on.
    pub(super) fn add(&mut self, answer: &Answer, threshold_ns: u64) {
        let total_ns = answer.total_ns();
        self.total.add(total_ns);
        self.sum_ns = self.sum_ns.saturating_add(total_ns);
        for (place, ns) in answer.parts.into_iter().enumerate() {
            self.parts[place].add(ns);
            self.sums_ns[place] = self.sums_ns[place].saturating_add(ns);
            if ns >= threshold_ns {
                let slow = &mut self.slow[place];
                slow.count += 1;
                slow.part_ns = slow.part_ns.saturating_add(ns);
                slow.total_ns = slow.total_ns.saturating_add(total_ns);
            }
        }
    }

    /// Adds another's.
    pub(super) fn join(&mut self, other: &Self) {
        self.total.merge(&other.total);
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        self.unknown += other.unknown;
        for place in 0..Item::COUNT {
            self.parts[place].merge(&other.parts[place]);
            self.sums_ns[place] = self.sums_ns[place].saturating_add(other.sums_ns[place]);
            let (own, slow) = (&mut self.slow[place], other.slow[place]);
            own.count += slow.count;
            own.part_ns = own.part_ns.saturating_add(slow.part_ns);
            own.total_ns = own.total_ns.saturating_add(slow.total_ns);
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.total.count()
    }

    pub(super) fn part(&self, item: Item) -> &Times {
        &self.parts[item as usize]
    }

    pub(super) fn slow(&self, item: Item) -> Slow {
        self.slow[item as usize]
    }

    /// All answers together, and what that item takes of it, ns.
    pub(super) fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    pub(super) fn sum_of(&self, item: Item) -> u64 {
        self.sums_ns[item as usize]
    }

    /// What an answer takes on average, and a part of it.
    pub(super) fn mean_ns(&self, item: Item) -> (u64, u64) {
        let count = self.count().max(1);
        (self.sum_ns / count, self.sum_of(item) / count)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NONE: fn(u32, (i64, i64), Option<i64>) -> u64 = |_, _, _| 0;

    /// It took so long in each of its steps, and `rest` besides.
    fn way(from_ns: i64, steps: [u64; STEPS], rest: u64) -> Way {
        let to_ns = from_ns.saturating_add_unsigned(steps.iter().sum::<u64>() + rest);
        Way { from_ns, to_ns, steps, tid: 1 }
    }

    fn incoming(from_ns: i64) -> Way {
        way(from_ns, [1, 2, 0, 3, 4, 5, 6], 0)
    }

    fn outgoing(from_ns: i64, held: u64) -> Way {
        way(from_ns, [held, 20, 30, 40, 50, 0, 0], 0)
    }

    fn over(turns: &mut Turns) -> Answer {
        match turns.finish() {
            Some(Over::Answer(answer)) => answer,
            other => panic!("{other:?}"),
        }
    }

    fn part(answer: &Answer, item: Item) -> u64 {
        answer.parts[item as usize]
    }

    #[test]
    fn a_server_s_answer_has_its_request_s_way_in_and_its_own_way_out() {
        let mut turns = Turns::default();
        let asked = |tid, span, except| {
            assert_eq!((tid, span, except), (1, (1_021, 2_000), None));
            300
        };
        assert!(turns.see(Role::Server, Direction::In, Some(incoming(1_000)), asked).is_none());
        assert!(turns.see(Role::Server, Direction::Out, Some(outgoing(2_000, 10)), asked).is_none());
        let answer = over(&mut turns);
        assert_eq!(answer.total_ns(), 1_150);
        assert_eq!((part(&answer, Item::Gap), part(&answer, Item::Qdisc)), (3, 40));
        assert_eq!((part(&answer, Item::Service), part(&answer, Item::Asked)), (979 - 300, 300));
        assert_eq!(part(&answer, Item::Rest), 0);
        assert!(turns.finish().is_none());
    }

    #[test]
    fn what_tcp_holds_of_a_long_answer_is_no_time_of_the_application() {
        let mut turns = Turns::default();
        turns.see(Role::Server, Direction::In, Some(incoming(1_000)), NONE);
        // One call writes two packets, the second of which waits; then the process thinks, and writes a third.
        for (from, held) in [(2_000, 10), (2_000, 500), (2_900, 70)] {
            turns.see(Role::Server, Direction::Out, Some(outgoing(from, held)), NONE);
        }
        let answer = over(&mut turns);
        assert_eq!(part(&answer, Item::AppTransport), 500 + 70);
        assert_eq!(part(&answer, Item::Service), 979 + 400);
        assert_eq!(answer.total_ns(), 2_900 + 70 + 140 - 1_000);
    }

    #[test]
    fn between_answers_to_requests_that_came_at_once_it_may_wait_for_others_too() {
        let mut turns = Turns::default();
        turns.see(Role::Server, Direction::In, Some(incoming(1_000)), NONE);
        // It asks for each of them, and does little by itself.
        for (from, span) in [(2_000, (1_021, 2_000)), (3_000, (2_000, 3_000)), (4_000, (3_000, 4_000))] {
            turns.see(Role::Server, Direction::Out, Some(outgoing(from, 10)), |tid, asked, except| {
                assert_eq!((tid, asked, except), (1, span, None));
                900
            });
        }
        let answer = over(&mut turns);
        assert_eq!(
            (part(&answer, Item::Asked), part(&answer, Item::Service)),
            (2_700, 979 + 2 * (1_000 - 10) - 2_700)
        );
        assert_eq!(part(&answer, Item::AppTransport), 3 * 10);
    }

    #[test]
    fn a_request_that_waits_behind_another_one_begins_when_that_is_answered() {
        // All three are there at once. Each is read when the one before has been answered, which took 2,000.
        let read = [1_021, 3_021, 5_021].map(|at| way(1_000, [1, 2, 0, 3, at - 1_000 - 21, 5, 6], 4));
        let written = [3_000, 5_000, 7_000].map(|at| outgoing(at, 10));
        let mut answers = Vec::new();
        // Packets sent are complete with their ACKs: at once, or when the next requests have been read.
        for order in [[0, 3, 1, 4, 2, 5], [0, 1, 3, 2, 4, 5], [0, 1, 2, 3, 4, 5]] {
            let mut turns = Turns::default();
            for place in order {
                let (direction, way) = match place {
                    0..3 => (Direction::In, read[place]),
                    _ => (Direction::Out, written[place - 3]),
                };
                answers.extend(turns.see(Role::Server, direction, Some(way), NONE));
            }
            answers.extend(turns.finish());
        }
        assert_eq!(answers.len(), 9);
        for (number, over) in answers.into_iter().enumerate() {
            let Over::Answer(answer) = over else { panic!("the answer is known") };
            assert_eq!(part(&answer, Item::Service), 1_979, "{number}");
            // The first one waited for nothing else, the others from the write before until their read.
            assert!(part(&answer, Item::Wait) <= 10, "{number}");
            assert_eq!(answer.total_ns(), 2_150, "{number}");
        }
    }

    #[test]
    fn more_requests_at_once_than_there_is_room_for_are_unknown() {
        let mut turns = Turns::default();
        for number in 0..6 {
            let request = way(1_000, [1, 2, 0, 3, 4, 5, 6], number * 1_000);
            assert!(turns.see(Role::Server, Direction::In, Some(request), NONE).is_none());
        }
        // The answers to the first two, whose requests have made way.
        for at in [1_500, 2_500] {
            assert!(turns.see(Role::Server, Direction::Out, Some(outgoing(at, 10)), NONE).is_none());
        }
        assert!(turns.see(Role::Server, Direction::Out, Some(outgoing(3_500, 10)), NONE).is_none());
        let known = turns.see(Role::Server, Direction::Out, Some(outgoing(4_500, 10)), NONE);
        assert!(matches!(known, Some(Over::Answer(_))), "{known:?}");
        assert!(matches!(turns.finish(), Some(Over::Answer(_))));
        assert!(matches!(turns.finish(), Some(Over::Unknown)));
    }

    #[test]
    fn a_packet_that_seems_to_be_written_before_the_first_one_is_of_the_same_call() {
        let mut turns = Turns::default();
        turns.see(Role::Server, Direction::In, Some(incoming(1_000)), NONE);
        for (from, held) in [(2_000, 10), (1_700, 800)] {
            turns.see(Role::Server, Direction::Out, Some(outgoing(from, held)), NONE);
        }
        let answer = over(&mut turns);
        assert_eq!((part(&answer, Item::AppTransport), part(&answer, Item::Service)), (800, 1_700 - 1_021));
        assert_eq!(answer.total_ns(), 1_700 + 800 + 140 - 1_000);
    }

    #[test]
    fn a_client_s_answer_is_split_if_its_server_is_known() {
        let mut client = Turns::default();
        client.see(Role::Client, Direction::Out, Some(outgoing(500, 10)), NONE);
        client.see(Role::Client, Direction::In, Some(incoming(2_000)), |_, span, except| {
            assert_eq!((span, except), ((2_000, 2_021), Some(500)));
            3
        });
        assert_eq!(client.waited(), Some((500, 2_021)));
        let mut answer = over(&mut client);
        assert_eq!(part(&answer, Item::Answer), 2_000 - 650);
        // In between it waited for another service.
        assert_eq!((part(&answer, Item::Wait), part(&answer, Item::Asked)), (1, 3));
        // What the server had before is another request.
        assert!(!answer.split(&Theirs { from_ns: 400, to_ns: 450 }));
        assert!(answer.split(&Theirs { from_ns: 700, to_ns: 1_900 }));
        assert_eq!((part(&answer, Item::Theirs), part(&answer, Item::Wire)), (1_200, 150));
        assert_eq!(part(&answer, Item::Answer), 0);
    }

    #[test]
    fn what_overlaps_or_lacks_a_time_is_no_answer() {
        let mut turns = Turns::default();
        turns.see(Role::Server, Direction::In, Some(incoming(1_000)), NONE);
        turns.see(Role::Server, Direction::Out, Some(outgoing(2_000, 10)), NONE);
        // The next request was there before this was written.
        let over = turns.see(Role::Server, Direction::In, Some(incoming(1_500)), NONE);
        assert!(matches!(over, Some(Over::Unknown)), "{over:?}");
        turns.see(Role::Server, Direction::Out, None, NONE);
        assert!(matches!(turns.finish(), Some(Over::Unknown)));
        // A greeting is no answer, and a request without one none either.
        turns.see(Role::Server, Direction::Out, Some(outgoing(2_000, 10)), NONE);
        assert!(turns.finish().is_none());
        turns.see(Role::Server, Direction::In, Some(incoming(1_000)), NONE);
        assert!(turns.finish().is_none());
        // What comes after a minute is news.
        turns.see(Role::Client, Direction::Out, Some(outgoing(1_000, 10)), NONE);
        turns.see(Role::Client, Direction::In, Some(incoming(60_000_000_000)), NONE);
        assert!(matches!(turns.finish(), Some(Over::Unknown)));
    }

    #[test]
    fn a_driver_that_is_busy_with_a_request_when_its_answer_comes_has_it_until_then() {
        let mut turns = Turns::default();
        turns.see(Role::Client, Direction::Out, Some(outgoing(1_000, 10)), NONE);
        turns.see(Role::Client, Direction::In, Some(incoming(1_090)), NONE);
        let answer = over(&mut turns);
        assert_eq!((part(&answer, Item::Driver), part(&answer, Item::Qdisc)), (0, 30));
        assert_eq!((part(&answer, Item::Answer), answer.total_ns()), (0, 111));
    }

    prop_compose! {
        fn any_way()(from in 0..4_000_000_000i64, steps: [u32; STEPS], rest in 0..3_000_000u64) -> Way {
            way(from, steps.map(|step| u64::from(step % 50_000_000)), rest)
        }
    }

    proptest! {
        /// Whatever packets come, in whatever order.
        #[test]
        fn parts_add_up_to_the_whole(
            packets in proptest::collection::vec((any::<bool>(), proptest::option::weighted(0.9, any_way())), 0..60),
            is_server: bool,
            asked: u32,
            theirs in proptest::option::of((0..5_000_000_000i64, 0..5_000_000_000i64)),
        ) {
            let role = if is_server { Role::Server } else { Role::Client };
            let (mut turns, mut answers, mut at) = (Turns::default(), Answers::default(), 0);
            for (is_in, way) in packets {
                let direction = if is_in { Direction::In } else { Direction::Out };
                let items = Way::items(direction).len();
                // Mostly in order.
                let way = way.map(|mut way| {
                    way.steps[items..].fill(0);
                    at += way.from_ns % 7_000_000;
                    way.to_ns = way.to_ns - way.from_ns + at;
                    way.from_ns = at;
                    way
                });
                let over = turns.see(role, direction, way, |_, _, _| u64::from(asked));
                if let Some(Over::Answer(mut answer)) = over {
                    if let Some((from_ns, to_ns)) = theirs.filter(|_| role == Role::Client) {
                        answer.split(&Theirs { from_ns, to_ns });
                    }
                    prop_assert_eq!(answer.parts.iter().sum::<u64>(), answer.total_ns());
                    answers.add(&answer, 1_000_000);
                }
            }
            let mut twice = answers.clone();
            twice.join(&answers);
            for (answers, times) in [(&answers, 1), (&twice, 2)] {
                prop_assert_eq!(answers.sums_ns.iter().sum::<u64>(), answers.sum_ns);
                prop_assert_eq!(answers.count(), times * (answers.count() / times));
                for item in [Item::Service, Item::Wait, Item::Answer] {
                    prop_assert!(answers.slow(item).part_ns <= answers.sum_of(item));
                    prop_assert!(answers.slow(item).count <= answers.count());
                }
            }
        }
    }
}
