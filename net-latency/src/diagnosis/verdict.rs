//! The verdict: a function of what the [`Model`] knows, and of what was lost, and of nothing else.
//!
//! A stage is a service's cause if
//! - it is known of [`LEAST_PACKETS`] packets, so that one that was late by accident decides nothing;
//! - so many of them took the threshold or longer there that they are no accident ([`least_affected`]), which makes its p99 as
//!   long at least: a stage of 50 us is no cause, however large its share;
//! - it holds a quarter of all time ([`LEAST_SHARE`]) and more than any other such stage. The slowest few packets count for no
//!   more than the others in that ([`clipped_sum`]).
//!
//! The confidence is that of the weakest of three facts: how many packets are affected, how far the first cause leads the second,
//! and how many packets' times are unknown ([`confidence`]).

use net_latency_common::{Counter, Direction, Held};

use super::{
    cause::Cause,
    holders::HeldBy,
    model::{Item, Model, Processes, Service, Side, Windows},
    words,
};
use crate::{
    accounting::{Human, Losses, Times},
    packet::{event::Protocol, stages},
};

/// Packets of which a stage has to be known.
pub(super) const LEAST_PACKETS: u64 = 20;
/// Packets that have to be slow in a stage, whatever their share.
const LEAST_AFFECTED: u64 = 8;
/// The least share of a cause in the time of its service's packets, percent. Of less, something else is the larger part.
const LEAST_SHARE: u64 = 25;
/// Retransmissions, or drops in the device's queue, that make a cause: so many, and this percentage of the packets. Less than that is usual on the internet.
const LEAST_RESENT: u64 = 5;
const LEAST_RESENT_PERCENT: u64 = 1;
/// Datagrams and segments dropped at sockets that make a cause. Sockets that close drop some.
const LEAST_DROPPED: u64 = 10;
const LEAST_DROPPED_PERCENT: u64 = 1;
/// Processes that have to be slow at the same time: two are often the ends of one connection.
const LEAST_ALIKE: usize = 3;
/// Of the windows with packets, at most one in so many has a stall of the machine; what is slow more often has a cause.
const STALLS_ARE_RARE: usize = 5;

/// How sure a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Confidence {
    Low,
    Medium,
    High,
}

impl Confidence {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

/// One direction of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Who {
    pub(super) process: Option<Vec<u8>>,
    pub(super) processes: Processes,
    pub(super) port: u16,
    pub(super) protocol: Protocol,
    pub(super) direction: Direction,
}

impl Who {
    fn of(service: &Service, direction: Direction) -> Self {
        Self {
            process: service.name().map(<[u8]>::to_vec),
            processes: service.processes(),
            port: service.port,
            protocol: service.protocol,
            direction,
        }
    }
}

/// What is wrong, or takes most of the time.
#[derive(Clone, Debug)]
pub(super) struct Finding {
    /// Nobody for what is the whole machine's.
    pub(super) who: Option<Who>,
    pub(super) cause: Cause,
    /// The column, where it is the time of one.
    pub(super) stage: Option<&'static str>,
    /// Of the time of its packets, percent.
    pub(super) share: Option<u64>,
    /// Of the stage, ns.
    pub(super) p50_ns: Option<u64>,
    pub(super) p99_ns: Option<u64>,
    /// Those of which the stage is known, and those of them that took long there.
    pub(super) packets: u64,
    pub(super) affected: u64,
    pub(super) confidence: Confidence,
    pub(super) sentence: String,
    /// The same in a few words.
    pub(super) brief: &'static str,
    pub(super) evidence: Vec<String>,
    pub(super) cpu_held_by: Option<HeldBy>,
    pub(super) next: String,
    /// All of its time, ns: the larger comes first.
    weight: u128,
    /// Tells whether others are of the same process; 0 for what is the whole machine's.
    pub(super) pid: u32,
}

impl Finding {
    /// Whether something is wrong, and not only most of the time in the application.
    pub(super) fn is_fault(&self) -> bool {
        self.cause != Cause::Application
    }
}

/// A service that nothing is wrong with.
#[derive(Clone, Debug)]
pub(super) struct Normal {
    pub(super) who: Who,
    pub(super) packets: u64,
    /// Of the way from the first basic stage to the last, ns.
    pub(super) p50_ns: Option<u64>,
    pub(super) p99_ns: Option<u64>,
    /// What looks like a fault and is none.
    pub(super) remark: Option<String>,
}

/// A service that nothing can be said about.
#[derive(Clone, Debug)]
pub(super) struct Unsure {
    pub(super) who: Who,
    pub(super) packets: u64,
    pub(super) reason: String,
}

/// What all of this rests on.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) elapsed_ns: u64,
    pub(super) packets: [u64; 2],
    pub(super) control: u64,
    pub(super) services: usize,
    /// Packets of services that there was no room for.
    pub(super) refused: u64,
    /// Packets of connections that had been forgotten, since there are more than there is room for.
    pub(super) forgotten: u64,
    pub(super) is_fine: bool,
    pub(super) threshold_ns: u64,
    pub(super) window_ns: u64,
    /// Windows with packets, and those in which all services were slow at the same time, for a short time.
    pub(super) windows: usize,
    pub(super) stalls: usize,
    /// Lines that are missing; unknown of a log.
    pub(super) lost: Option<u64>,
}

impl Seen {
    /// In what nothing may be found without that telling about all: nothing where that is all, or nearly.
    pub(super) fn limits(&self) -> &'static str {
        let all: u64 = self.packets.iter().sum();
        if self.refused > 0 {
            " in the busiest services"
        } else if self.forgotten * 100 > all {
            " in the connections that there is room for"
        } else if self.lost.is_some_and(|lost| lost * 100 > all) {
            " in the packets that were seen"
        } else {
            ""
        }
    }
}

/// All that there is to say.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    pub(super) findings: Vec<Finding>,
    pub(super) normal: Vec<Normal>,
    pub(super) unsure: Vec<Unsure>,
    pub(super) seen: Seen,
}

/// What is to be said about one direction of a service.
enum Judgement {
    Found(Box<Finding>),
    Normal(Normal),
    Unsure(Unsure),
}

/// A time that may be the cause.
#[derive(Clone, Copy)]
struct Suspect<'a> {
    item: Item,
    times: &'a Times,
    sum: u128,
    affected: u64,
}

impl Suspect<'_> {
    /// The quantile that is the median of those that took long there, of a thousand.
    fn level(&self) -> u64 {
        1_000 - (self.affected.saturating_mul(500) / self.times.count().max(1)).min(999)
    }
}

/// Judges all that is known. `losses` are those of tracing, which a log does not have.
pub(crate) fn judge(model: &Model, losses: Option<&Losses>) -> Verdict {
    let lost = losses.map(Losses::lines);
    let all = model.services.iter().flat_map(|service| &service.sides);
    let active = all.clone().fold(Windows::default(), |sum, side| sum.with(&side.active));
    let stalls = stalls(model, &active);
    let judge = Judge { model, stalls, lost: lost.unwrap_or(0) };
    let (mut findings, mut normal, mut unsure) = (Vec::new(), Vec::new(), Vec::new());
    for service in &model.services {
        for direction in [Direction::In, Direction::Out] {
            match judge.side(service, direction) {
                Some(Judgement::Found(finding)) => findings.push(*finding),
                Some(Judgement::Normal(side)) => normal.push(side),
                Some(Judgement::Unsure(side)) => unsure.push(side),
                None => {}
            }
        }
    }
    compare(&mut findings, model);
    findings.extend(losses.map(|losses| socket_drops(losses, model)).unwrap_or_default());
    // What is wrong comes before what only takes its time.
    findings.sort_by_key(|finding| (finding.cause == Cause::Application, std::cmp::Reverse(finding.weight)));
    let (first, last) = model.span.unwrap_or_default();
    let seen = Seen {
        elapsed_ns: last.abs_diff(first),
        packets: model.packets,
        control: model.control,
        services: model.used(),
        refused: model.refused,
        forgotten: model.forgotten(),
        is_fine: model.has_parts,
        threshold_ns: model.threshold_ns,
        window_ns: model.window_ns,
        windows: active.count(),
        stalls: stalls.count(),
        lost,
    };
    Verdict { findings, normal, unsure, seen }
}

/// The windows in which every process with packets was slow in this machine's kernel, if they are few: a stall of the machine, its
/// host, or a neighbour.
fn stalls(model: &Model, active: &Windows) -> Windows {
    let is_stall = |window: &usize| {
        let mut slow: Vec<u32> = Vec::new();
        for service in &model.services {
            let has = |of: fn(&Side) -> &Windows| service.sides.iter().any(|side| of(side).has(*window));
            match (has(|side| &side.active), has(|side| &side.slow)) {
                (_, true) => slow.push(service.pid),
                (true, false) => return false,
                _ => {}
            }
        }
        slow.sort_unstable();
        slow.dedup();
        slow.len() >= LEAST_ALIKE
    };
    let stalls = Windows::of(active.all().filter(is_stall));
    if stalls.count() * STALLS_ARE_RARE <= active.count() { stalls } else { Windows::default() }
}

struct Judge<'a> {
    model: &'a Model,
    stalls: Windows,
    lost: u64,
}

impl Judge<'_> {
    /// Nothing of one that had no packets.
    fn side(&self, service: &Service, direction: Direction) -> Option<Judgement> {
        let side = service.side(direction);
        if side.packets + side.resent == 0 {
            return None;
        }
        let who = Who::of(service, direction);
        let normal = |who, remark| {
            let [p50_ns, p99_ns] = [500, 990].map(|per_mille| side.total.quantile(per_mille));
            Some(Judgement::Normal(Normal { who, packets: side.packets, p50_ns, p99_ns, remark }))
        };
        let unsure = |who, reason| Some(Judgement::Unsure(Unsure { who, packets: side.packets, reason }));
        // More than that, and what is known may be the smaller part.
        if side.unknown * 2 > side.packets {
            return unsure(who, words::unknown(side.unknown, side.packets));
        }
        let mut suspects = self.suspects(side, direction);
        let mut remark = None;
        let (sum, has_others, suspect) = loop {
            let sum: u128 = suspects.iter().map(|suspect| suspect.sum).sum();
            let Some((has_others, suspect)) = self.worst(side, &suspects, sum) else {
                if side.packets < LEAST_PACKETS {
                    return unsure(who, words::too_few(side.packets, LEAST_PACKETS));
                }
                return normal(who, remark.or_else(|| self.remark(side, direction)));
            };
            let Some(excuse) = self.excuse(service, side, suspect) else { break (sum, has_others, suspect) };
            remark.get_or_insert(excuse);
            // Something else may be slow besides.
            suspects.retain(|other| other.item != suspect.item);
        };
        let second = suspects.iter().filter(|other| other.item != suspect.item);
        let second = second.max_by_key(|other| other.sum).filter(|other| other.sum > 0);
        let (cause, sentence) = self.cause(service, side, suspect, &suspects, has_others);
        let affected =
            if suspect.item == Item::Resend { side.sent_again_or_dropped() } else { suspect.affected };
        let mut confidence =
            confidence(affected, suspect.sum, second.map_or(0, |other| other.sum), self.unknown(side));
        if cause == Cause::PeerAnswer {
            // Two can be to blame.
            confidence = confidence.min(Confidence::Medium);
        }
        let share = percent(suspect.sum, sum);
        let cpu_held_by = if suspect.item == Item::Cpu { self.holder(side) } else { None };
        let finding = Finding {
            cause,
            stage: column(suspect.item, service.protocol),
            share: (suspect.times.count() > 0).then_some(share),
            p50_ns: suspect.times.quantile(500),
            p99_ns: suspect.times.quantile(990),
            packets: if suspect.item == Item::Resend { side.packets } else { suspect.times.count() },
            affected,
            confidence,
            sentence,
            brief: words::brief(cause, suspect.item),
            evidence: self.evidence(service, side, suspect, cpu_held_by.as_ref(), second, sum),
            cpu_held_by,
            next: words::next(cause, suspect.item, service),
            weight: suspect.sum,
            pid: service.pid,
            who: Some(who),
        };
        Some(Judgement::Found(Box::new(finding)))
    }

    /// Who had the CPU that its readers waited for.
    fn holder(&self, side: &Side) -> Option<HeldBy> {
        let (holder, share) = side.holders.main()?;
        let is_its = |other: &&Service| other.processes() == Processes::One(holder.pid);
        let known = holder.name.as_ref().and_then(|name| name.split(|byte| *byte == 0).next());
        let known = known.filter(|name| !name.is_empty());
        let process = known.or_else(|| self.model.services.iter().find(is_its)?.name());
        Some(HeldBy { pid: holder.pid, process: process.map(<[u8]>::to_vec), share })
    }

    /// The times that its packets had.
    fn suspects<'a>(&self, side: &'a Side, direction: Direction) -> Vec<Suspect<'a>> {
        let suspect = |item: &Item| {
            let times = side.times(*item);
            let slow = times.buckets().filter(|(from, ..)| *from >= self.model.threshold_ns);
            let affected = slow.map(|(.., count)| count).sum();
            Suspect { item: *item, times, sum: clipped_sum(times), affected }
        };
        // Which packets follow each other is unknown where others are missing.
        let needs_all = |item: Item| matches!(item, Item::Service | Item::Answer);
        Item::of(direction)
            .iter()
            .filter(|item| !(needs_all(**item) && self.is_lossy()))
            .map(suspect)
            .filter(|suspect| suspect.times.count() > 0 || suspect.item == Item::Resend)
            .collect()
    }

    /// The cause of what is slow, and whether something else could be one too.
    fn worst<'a>(&self, side: &Side, suspects: &[Suspect<'a>], sum: u128) -> Option<(bool, Suspect<'a>)> {
        let is_resend = |suspect: &&Suspect<'a>| suspect.item == Item::Resend;
        let is_cause = |suspect: &&Suspect<'a>| {
            let known = suspect.times.count();
            !is_resend(suspect)
                && known >= LEAST_PACKETS
                && suspect.affected >= least_affected(known)
                && percent(suspect.sum, sum) >= LEAST_SHARE
        };
        let mut causes: Vec<_> = suspects.iter().filter(is_cause).copied().collect();
        causes.sort_by_key(|suspect| std::cmp::Reverse(suspect.sum));
        let again = side.sent_again_or_dropped();
        let is_resent = again >= LEAST_RESENT && again * 100 >= side.packets * LEAST_RESENT_PERCENT;
        let resend = suspects.iter().find(is_resend).copied().filter(|_| is_resent);
        match (causes.first().copied(), resend) {
            // What is lost makes TCP hold back what follows, and delays ACKs and answers.
            (Some(first), Some(resend)) => {
                let is_effect = matches!(first.item, Item::AppTransport | Item::Net | Item::Answer)
                    && !is_before_closed_window(side);
                Some((true, if is_effect || resend.sum > first.sum { resend } else { first }))
            }
            (None, Some(resend)) => Some((false, resend)),
            (first, None) => first.map(|first| (causes.len() > 1, first)),
        }
    }

    /// Why a time that is long is no fault.
    fn excuse(&self, service: &Service, side: &Side, suspect: Suspect<'_>) -> Option<String> {
        let is_local = !matches!(suspect.item, Item::Net | Item::Answer | Item::Service | Item::Resend);
        let slow = side.slow.count();
        let within = |windows: &Windows| side.slow.common(windows).count();
        // What a stall holds up may be complete in the window behind it only.
        if is_local
            && slow > 0
            && within(&self.stalls) * 2 >= slow
            && within(&self.stalls.with_neighbours()) * 10 >= slow * 9
        {
            return Some(words::stalled(self.stalls.count()));
        }
        let is_stream = suspect.item == Item::AppTransport
            && side.held_by_peer * 2 < side.held
            && side.held_in_stream * 5 >= side.held * 4;
        if is_stream {
            return Some(words::STREAM.to_owned());
        }
        if suspect.item == Item::Service {
            return self.asked(service, suspect).map(|asked| words::asks(asked, self.peer(asked)));
        }
        if !matches!(suspect.item, Item::Net | Item::Answer) {
            return None;
        }
        let peer = self.peer(service)?;
        let level = suspect.level();
        let least = suspect.times.quantile(level)? / 2;
        let turn = turnaround(peer, level).filter(|turn| *turn >= least);
        // It sends ACKs when it reads.
        let read = peer.side(Direction::In).total.quantile(level).filter(|read| *read >= least);
        let waits_for = turn.map(|turn| words::waits_for(peer, turn));
        waits_for.or_else(|| read.map(|read| words::is_read_late_by(peer, read)))
    }

    /// Whom this process asks for each second answer of its own or more often, where it waits for others for half of the time that
    /// its answers take it: the one for whom it waits most.
    fn asked(&self, service: &Service, answering: Suspect<'_>) -> Option<&Service> {
        let answers = |asked: &Service| clipped_sum(asked.side(Direction::Out).times(Item::Answer));
        let is_asked = |asked: &&Service| {
            let count = asked.side(Direction::Out).times(Item::Answer).count();
            asked.is_of_same(service) && count >= LEAST_PACKETS && count * 2 >= answering.times.count()
        };
        let all = self.model.services.iter().filter(is_asked);
        let waits: u128 = all.clone().map(answers).sum();
        all.max_by_key(|asked| answers(asked)).filter(|_| waits * 2 >= answering.sum)
    }

    fn peer(&self, service: &Service) -> Option<&Service> {
        service.peer().and_then(|peer| self.model.services.get(peer))
    }

    /// What it is, and in a sentence. `has_others` if something else could be it too.
    fn cause(
        &self,
        service: &Service,
        side: &Side,
        suspect: Suspect<'_>,
        suspects: &[Suspect<'_>],
        has_others: bool,
    ) -> (Cause, String) {
        let cause = Cause::of(suspect.item, service.protocol);
        let device = words::device(service);
        match suspect.item {
            Item::AppTransport if cause == Cause::TcpHeld => {
                let reason = side.main_reason();
                let cause = match reason {
                    _ if side.is_held_by_peer() => Cause::PeerWindow,
                    Some(Held::CongestionWindow) => Cause::CongestionWindow,
                    Some(Held::Nagle) => Cause::Nagle,
                    Some(Held::SmallQueue) => Cause::Qdisc,
                    _ => Cause::TcpHeld,
                };
                let told = reason.filter(|_| cause == Cause::TcpHeld).map(words::held);
                (cause, told.map_or_else(|| words::sentence(cause, suspect.item, &device), str::to_owned))
            }
            // Whoever has no room for more acknowledges when it reads.
            Item::Net if is_before_closed_window(side) => (Cause::PeerWindow, words::PEER_WINDOW.to_owned()),
            Item::Resend if side.dropped * 2 >= side.resent => (Cause::Qdisc, words::dropped(&device)),
            Item::Answer => match self.peer(service).and_then(|peer| turnaround(peer, suspect.level())) {
                Some(turn) => (Cause::Network, words::between(turn)),
                None => (cause, words::sentence(cause, suspect.item, &device)),
            },
            Item::Wait if self.is_busy(service, suspect) => {
                let service_time = service.side(Direction::Out).times(Item::Service).quantile(500);
                (Cause::Application, words::busy(service_time.unwrap_or(0)))
            }
            Item::Service => {
                let in_worst = service.side(Direction::In);
                let in_suspects = self.suspects(in_worst, Direction::In);
                let in_sum = in_suspects.iter().map(|other| other.sum).sum();
                let is_slow_elsewhere = has_others
                    || suspects.iter().any(|other| {
                        other.item != Item::Service && other.affected >= least_affected(other.times.count())
                    })
                    || self.worst(in_worst, &in_suspects, in_sum).is_some();
                (cause, words::application(is_slow_elsewhere))
            }
            _ => (cause, words::sentence(cause, suspect.item, &device)),
        }
    }

    fn evidence(
        &self,
        service: &Service,
        side: &Side,
        suspect: Suspect<'_>,
        holder: Option<&HeldBy>,
        second: Option<&Suspect<'_>>,
        sum: u128,
    ) -> Vec<String> {
        let mut evidence = Vec::new();
        let threshold = Human(self.model.threshold_ns);
        if suspect.item == Item::Resend {
            evidence.push(format!(
                "sent again: {} of {} packets, {} by the timer, {} dropped by the device's queue",
                side.resent, side.packets, side.by_timer, side.dropped
            ));
            if side.needless > 0 {
                evidence.push(words::needless(side.needless));
            }
        } else {
            let what = if suspect.item == Item::Service { "answers" } else { "packets" };
            let (slow, all) = (suspect.affected, suspect.times.count());
            evidence.push(format!("{slow} of {all} {what} took {threshold} or longer there"));
        }
        if !matches!(suspect.item, Item::Net | Item::Answer | Item::Service | Item::Resend) {
            evidence.push(format!(
                "slow in {} of {} windows of {}",
                side.slow.count(),
                side.active.count(),
                Human(self.model.window_ns)
            ));
        }
        if suspect.item == Item::AppTransport
            && let Some(reasons) = words::held_for(&side.held_for, side.held)
        {
            evidence.push(reasons);
        }
        if matches!(suspect.item, Item::AppTransport | Item::Net)
            && side.is_held_by_peer()
            && let Some((peer, count)) = side.for_peers.iter().max_by_key(|(_, count)| *count)
            && let Some(peer) = self.model.services.get(*peer)
        {
            evidence.push(words::does_not_read(peer, *count));
        }
        if suspect.item == Item::Cpu {
            if let Some(holder) = holder {
                let is_own = service.processes() == Processes::One(holder.pid);
                evidence.push(words::cpu_held_by(holder, is_own));
            }
            evidence.extend(side.holders.allowed().map(words::may_run));
        }
        if let Some(second) = second.filter(|second| percent(second.sum, sum) > 0) {
            let name = column(second.item, service.protocol).unwrap_or(words::name(second.item));
            evidence.push(format!("next is {name} with {} % of the time", percent(second.sum, sum)));
        }
        if suspect.item == Item::Net
            && let (Some(min), Some(max)) = (suspect.times.min(), suspect.times.quantile(990))
        {
            // A distance or a constant delay holds up each packet alike.
            let shape =
                if max < min.saturating_mul(2) { "nearly the same for all packets" } else { "it varies" };
            evidence.push(format!("{} at least: {shape}", Human(min)));
            if let Some(p50) = side.rtt.quantile(500) {
                evidence.push(format!("TCP's own round-trip time: p50 {}", Human(p50)));
            }
        }
        if side.delayed_acks > 0 {
            evidence.push(words::delayed_acks(side.delayed_acks));
        }
        if suspect.item == Item::Wait
            && let Some(time) = service.side(Direction::Out).times(Item::Service).quantile(500)
        {
            evidence.push(format!("from reading a request to writing the answer: p50 {}", Human(time)));
        }
        if side.unknown > 0 {
            evidence.push(words::unknown(side.unknown, side.packets));
        }
        if self.is_lossy() {
            evidence.push(format!("{} packets have no line: these numbers are of the others", self.lost));
        }
        evidence
    }

    /// Whether bytes wait for a process that is busy with other requests: answering one takes as long as those that wait usually
    /// do, or it answers for half of the time.
    fn is_busy(&self, service: &Service, wait: Suspect<'_>) -> bool {
        let answers = service.side(Direction::Out).times(Item::Service);
        let typical = answers.quantile(500).zip(wait.times.quantile(wait.level()));
        let elapsed = self.model.span.map_or(0, |(first, last)| last.abs_diff(first));
        answers.count() >= LEAST_PACKETS
            && (typical.is_some_and(|(answer, wait)| answer >= wait)
                || clipped_sum(answers) * 2 >= u128::from(elapsed))
    }

    /// Percent of its packets of which too little is known.
    fn unknown(&self, side: &Side) -> u64 {
        let unknown = percent(side.unknown.into(), side.packets.into());
        if self.is_lossy() { 100 } else { unknown }
    }

    /// Whether so many lines are missing, one in a hundred, that what is seen may be another traffic than there was.
    fn is_lossy(&self) -> bool {
        self.lost.saturating_mul(100) > self.model.packets.iter().sum()
    }

    /// What one might take for a fault.
    fn remark(&self, side: &Side, direction: Direction) -> Option<String> {
        if side.delayed_acks * 2 > side.packets {
            return Some(words::delayed_acks(side.delayed_acks));
        }
        (direction == Direction::Out && !self.model.has_parts).then(|| words::BASIC.to_owned())
    }
}

/// Whether TCP often waits since the peer's window is closed. Then ACKs come when the peer reads, and TCP sends again to ask for them.
fn is_before_closed_window(side: &Side) -> bool {
    side.held >= LEAST_AFFECTED && side.is_held_by_peer()
}

/// How long a service has a request, from its driver to that of the answer, at this level (of a thousand), ns.
fn turnaround(service: &Service, level: u64) -> Option<u64> {
    let [incoming, outgoing] = [Direction::In, Direction::Out].map(|direction| service.side(direction));
    let answer = outgoing.times(Item::Service);
    if answer.count() < LEAST_AFFECTED {
        return None;
    }
    let known = [&incoming.total, answer, &outgoing.total].map(|times| times.quantile(level));
    let sum = known.into_iter().sum::<Option<u64>>()?;
    Some(sum.saturating_add(outgoing.times(Item::Qdisc).quantile(level).unwrap_or(0)))
}

/// Packets of so many that have to be slow: eight, and three in a hundred. Of a thousand or more, one in a hundred are no accident
/// any more, and make their p99.
fn least_affected(known: u64) -> u64 {
    let share = if known < 1_000 { (known * 3).div_ceil(100) } else { known / 100 };
    share.max(LEAST_AFFECTED)
}

/// All times together, ns, in which those beyond a high percentile count as much as that one: a packet that was late by accident
/// is then none of them. It is chosen so that what [`least_affected`] asks for is not cut off.
fn clipped_sum(times: &Times) -> u128 {
    let per_mille = match times.count() {
        ..100 => 950,
        100..1_000 => 980,
        _ => 995,
    };
    let Some(longest) = times.quantile(per_mille) else { return 0 };
    let time = |from: u64, to: u64| u128::from(u64::midpoint(from, to).min(longest));
    times.buckets().map(|(from, to, count)| time(from, to) * u128::from(count)).sum()
}

fn percent(part: u128, whole: u128) -> u64 {
    part.saturating_mul(100).checked_div(whole).and_then(|percent| u64::try_from(percent).ok()).unwrap_or(0)
}

/// High: 100 packets or more are affected, the cause has four times as much time as the next, and 10 % at most are unknown. Medium:
/// 30 packets, and half as much again. Else low.
fn confidence(affected: u64, first: u128, second: u128, unknown_percent: u64) -> Confidence {
    let by_packets = match affected {
        100.. => Confidence::High,
        30.. => Confidence::Medium,
        _ => Confidence::Low,
    };
    let by_lead = if first >= second.saturating_mul(4) {
        Confidence::High
    } else if first.saturating_mul(2) >= second.saturating_mul(3) {
        Confidence::Medium
    } else {
        Confidence::Low
    };
    let by_knowledge = if unknown_percent <= 10 { Confidence::High } else { Confidence::Low };
    by_packets.min(by_lead).min(by_knowledge)
}

/// Says of each finding whether others have it too.
fn compare(findings: &mut [Finding], model: &Model) {
    let same: Vec<Vec<u32>> = findings
        .iter()
        .map(|finding| {
            let alike = findings.iter().filter(|other| other.cause == finding.cause);
            let mut pids: Vec<_> = alike.filter(|other| other.who.is_some()).map(|other| other.pid).collect();
            pids.sort_unstable();
            pids.dedup();
            pids
        })
        .collect();
    for (finding, same) in findings.iter_mut().zip(same) {
        let Some(who) = &finding.who else { continue };
        if finding.cause == Cause::Application {
            continue;
        }
        let judged = |service: &&Service| service.side(who.direction).packets >= LEAST_PACKETS;
        let mut others: Vec<_> = model
            .services
            .iter()
            .filter(judged)
            .map(|service| service.pid)
            .filter(|pid| *pid != finding.pid)
            .collect();
        others.sort_unstable();
        others.dedup();
        if others.is_empty() {
            continue;
        }
        let alike = others.iter().filter(|pid| same.contains(pid)).count();
        finding.evidence.push(match alike {
            0 => format!("no other of {} processes has this: it is its own", others.len() + 1),
            alike if alike == others.len() && alike + 1 >= LEAST_ALIKE => {
                format!("all {} processes have this: look at the machine first", alike + 1)
            }
            alike => format!("{} of {} processes have this", alike + 1, others.len() + 1),
        });
    }
}

/// Those whose sockets drop what they get, if they drop much, and the machine where whose is not known.
fn socket_drops(losses: &Losses, model: &Model) -> Vec<Finding> {
    let is_much = |dropped: u64, seen: u64| {
        dropped >= LEAST_DROPPED && dropped.saturating_mul(100) >= seen.saturating_mul(LEAST_DROPPED_PERCENT)
    };
    let mut left = losses.counters.get(Counter::DroppedIn);
    let all = model.packets[Direction::In as usize].saturating_add(left);
    let mut found = Vec::new();
    for (sockets, dropped) in losses.drops.iter() {
        let its: Vec<_> = model.services.iter().filter(|service| service.has(sockets)).collect();
        let packets: u64 = its.iter().map(|service| service.side(Direction::In).packets).sum();
        let seen = packets.saturating_add(dropped);
        if !is_much(dropped, seen) {
            continue;
        }
        left = left.saturating_sub(dropped);
        let one = if let [service] = its.as_slice() { Some(*service) } else { None };
        let (port, protocol, direction) = (sockets.port, Protocol::of(sockets.protocol), Direction::In);
        let nobody = Who { process: None, processes: Processes::Unknown, port, protocol, direction };
        let who = one.map_or(nobody, |service| Who::of(service, direction));
        let kind = if protocol == Protocol::Udp { 'u' } else { 't' };
        let end = if sockets.is_client == 0 { 's' } else { 'd' };
        found.push(Finding {
            who: Some(who),
            confidence: if one.is_some() { Confidence::High } else { Confidence::Medium },
            next: format!("ss -{kind}amnp '{end}port = :{port}' (d in skmem: drops)"),
            pid: one.map_or(0, |service| service.pid),
            ..drop_finding(dropped, seen)
        });
    }
    if is_much(left, all) {
        found.push(drop_finding(left, all));
    }
    found
}

/// So many of those that were seen were dropped, by whom is not known.
fn drop_finding(dropped: u64, seen: u64) -> Finding {
    Finding {
        who: None,
        cause: Cause::SocketDrop,
        stage: None,
        share: None,
        p50_ns: None,
        p99_ns: None,
        packets: seen,
        affected: dropped,
        confidence: Confidence::Medium,
        sentence: words::SOCKET_DROP.to_owned(),
        brief: words::brief(Cause::SocketDrop, Item::Socket),
        evidence: vec![format!("{dropped} of {seen} packets were dropped after they reached TCP or UDP")],
        cpu_held_by: None,
        next: "nstat -az UdpRcvbufErrors TcpExtTCPBacklogDrop TcpExtTCPRcvQDrop".to_owned(),
        weight: 0,
        pid: 0,
    }
}

/// The column that has this time; none for one that is computed.
pub(super) fn column(item: Item, protocol: Protocol) -> Option<&'static str> {
    let basic = |direction, column: usize| Some(stages::columns(direction, protocol)[column]);
    let part = |direction, part: usize| {
        let place: usize = stages::split(direction, protocol)[part]?;
        Some(stages::FINE_STAGES[place].column)
    };
    match item {
        Item::DrvIp => basic(Direction::In, 0),
        Item::IpTransport => basic(Direction::In, 1),
        Item::Socket => basic(Direction::In, 2),
        Item::Gap => part(Direction::In, 0),
        Item::Wait => part(Direction::In, 1),
        Item::Cpu => part(Direction::In, 2),
        Item::Copy => part(Direction::In, 3),
        Item::AppTransport => basic(Direction::Out, 0),
        Item::TransportIp => basic(Direction::Out, 1),
        Item::IpDrv => basic(Direction::Out, 2),
        Item::Qdisc => part(Direction::Out, 0),
        Item::Driver => part(Direction::Out, 1),
        Item::Net => part(Direction::Out, 2),
        Item::Answer | Item::Service | Item::Resend => None,
    }
}
