//! The judgement about one direction of a service: the cause, if there is one, in words and with its evidence.

use std::iter;

use net_latency_common::{Direction, Held};

use super::{
    cause::Cause,
    drops::{is_often_full, places},
    finding::{Confidence, Finding, Normal, OfAnswers, ServiceAnswers, Unsure, Who},
    holders::HeldBy,
    item::Item,
    listening::Queues,
    machine::Throttled,
    model::Model,
    opening::Opened,
    service::{LEAST_ANSWERS, LEAST_PACKETS, Processes, Service},
    side::Side,
    suspects::{
        LEAST_AFFECTED, Noise, Suspect, Suspects, clipped_sum, column, is_before_closed_window, is_resent,
        percent, worked,
    },
    windows::Windows,
    words,
};
use crate::accounting::Human;

/// Periods in which a quota has to hold a cgroup back.
const LEAST_THROTTLED: u64 = 5;
/// The least part of an answer that is a quota's, percent.
const LEAST_QUOTA: u128 = 10;

/// Percent of the time from which on a part that is not the cause is worth a word.
const LEAST_ELSEWHERE: u64 = 10;

/// The judgement about one direction of a service.
pub(super) enum Judgement {
    Found(Box<Finding>),
    Normal(Normal),
    Unsure(Unsure),
}

pub(super) struct Judge<'a> {
    model: &'a Model,
    noise: Noise,
    stalls: Windows,
    lost: u64,
}

impl<'a> Judge<'a> {
    pub(super) fn new(model: &'a Model, stalls: Windows, lost: u64) -> Self {
        let is_lossy = lost.saturating_mul(100) > model.packets.iter().sum();
        Self { model, noise: Noise::of(model, is_lossy), stalls, lost }
    }

    pub(super) fn noise(&self) -> &Noise {
        &self.noise
    }

    /// Nothing of one that had no packets.
    pub(super) fn side(&self, service: &Service, direction: Direction) -> Option<Judgement> {
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
        // With more, the known ones may be the smaller part.
        if side.unknown * 2 > side.packets {
            return unsure(who, words::unknown(side.unknown, side.packets));
        }
        let mut suspects = Suspects::of(service, direction, self.model, self.is_lossy());
        let mut remark = None;
        let (has_others, suspect) = loop {
            let worst = suspects.worst(side, &self.noise, service.pid, self.model.threshold_ns);
            let Some((has_others, suspect)) = worst else {
                if side.packets < LEAST_PACKETS && !suspects.is_of_answers {
                    return unsure(who, words::too_few(side.packets, LEAST_PACKETS));
                }
                return normal(who, remark.or_else(|| self.remark(side, direction)));
            };
            let Some(excuse) = self.excuse(service, side, suspect) else { break (has_others, suspect) };
            remark.get_or_insert(excuse);
            // Something else may be slow besides.
            suspects.all.retain(|other| other.item != suspect.item);
        };
        Some(Judgement::Found(Box::new(self.finding(service, who, &suspects, suspect, has_others))))
    }

    fn finding(
        &self,
        service: &Service,
        who: Who,
        suspects: &Suspects<'_>,
        suspect: Suspect<'_>,
        has_others: bool,
    ) -> Finding {
        let side = service.side(who.direction);
        let others = suspects.all.iter().filter(|other| other.item != suspect.item);
        let second = others.max_by_key(|other| other.sum).filter(|other| other.sum > 0);
        let share = percent(suspect.sum, suspects.whole);
        let quota = self.quota(service, suspect.item);
        let (cause, sentence) = match quota {
            Some(throttled) => (Cause::CpuQuota, words::quota(throttled)),
            None => self.cause(service, side, suspect, suspects, has_others),
        };
        let affected =
            if suspect.item == Item::Resend { side.sent_again_or_dropped() } else { suspect.affected };
        let mut confidence = if suspect.slow.is_some() {
            self.confidence_of_answers(service, suspect, share)
        } else {
            confidence(affected, suspect.sum, second.map_or(0, |other| other.sum), self.unknown(side))
        };
        if matches!(cause, Cause::PeerAnswer | Cause::SocketWait) {
            // Several can be to blame.
            confidence = confidence.min(Confidence::Medium);
        }
        let cpu_held_by = if suspect.item == Item::Cpu && quota.is_none() { self.holder(side) } else { None };
        let mut evidence = self.evidence(service, side, suspect, cpu_held_by.as_ref(), second, suspects);
        if let Some(throttled) = quota {
            evidence.insert(0, words::throttled(throttled));
        }
        let answers = suspect.slow.map(|slow| OfAnswers {
            count: suspect.times.count(),
            slow,
            mean_ns: service.answers.mean_ns(suspect.item),
            is_client: service.is_client,
        });
        Finding {
            cause,
            also: Vec::new(),
            stage: column(suspect.item, service.protocol),
            share: (suspect.times.count() > 0).then_some(share),
            p50_ns: suspect.times.quantile(500),
            p99_ns: suspect.times.quantile(990),
            packets: if suspect.item == Item::Resend { side.packets } else { suspect.times.count() },
            affected,
            confidence,
            sentence,
            brief: words::brief(cause, suspect.item),
            within: words::within(cause, suspect.item),
            evidence,
            cpu_held_by,
            next: match (quota, worked(service, self.model), service.processes().pid()) {
                (Some(throttled), ..) => words::next_of_quota(throttled),
                (None, Some(worked), Some(pid)) if cause == Cause::Application && worked.sleeps() => {
                    words::next_of_sleeper(pid, service.did.call().and_then(|call| str::from_utf8(call).ok()))
                }
                _ => words::next(cause, suspect.item, service),
            },
            answers,
            weight: suspect.sum,
            pid: service.pid,
            who: Some(who),
        }
    }

    /// The quota that held the process back for a part of each answer, if that is where such a time shows.
    fn quota(&self, service: &Service, item: Item) -> Option<&Throttled> {
        if !matches!(item, Item::Wait | Item::Cpu | Item::Copy | Item::Service | Item::Socket) {
            return None;
        }
        let throttled = self.model.machine.throttled.get(&service.processes().pid()?)?;
        let elapsed = self.model.span.map_or(0, |(first, last)| last.abs_diff(first));
        let whole = if service.is_judged_by_answers() { service.answers.sum_ns() } else { elapsed };
        let is_much = u128::from(throttled.ns) * 100 >= u128::from(whole.min(elapsed)) * LEAST_QUOTA;
        (throttled.periods >= LEAST_THROTTLED && is_much).then_some(throttled)
    }

    /// High is a promise: 30 answers or more have it, it is half of their time or more, and 10 % at most are unknown.
    fn confidence_of_answers(&self, service: &Service, suspect: Suspect<'_>, share: u64) -> Confidence {
        let answers = &service.answers;
        let is_known = answers.unknown * 10 <= answers.count() && !self.is_lossy();
        match suspect.affected {
            30.. if share >= 50 && is_known => Confidence::High,
            LEAST_ANSWERS.. if share >= 25 => Confidence::Medium,
            _ => Confidence::Low,
        }
    }

    /// The process that had the CPU that its readers waited for.
    fn holder(&self, side: &Side) -> Option<HeldBy> {
        let (holder, share) = side.holders.main()?;
        let is_its = |other: &&Service| other.processes() == Processes::One(holder.pid);
        let known = holder.process.as_ref().and_then(|process| process.name.split(|byte| *byte == 0).next());
        let known = known.filter(|name| !name.is_empty());
        let realtime = holder.process.and_then(|process| process.realtime);
        let process = known.or_else(|| self.model.services.iter().find(is_its)?.name());
        Some(HeldBy { pid: holder.pid, process: process.map(<[u8]>::to_vec), realtime, share })
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
        // A client that requests an answer and does not read it makes it slow; how fast a stream is to be is unknown.
        let is_by_peer =
            if suspect.slow.is_some() { side.is_held_by_peer() } else { side.held_by_peer * 2 >= side.held };
        let is_stream =
            suspect.item == Item::AppTransport && !is_by_peer && side.held_in_stream * 5 >= side.held * 4;
        if is_stream {
            return Some(words::STREAM.to_owned());
        }
        // What it waits for others is a part of its own in answers.
        if suspect.item == Item::Service && suspect.slow.is_none() {
            return self.asked(service, suspect).map(|asked| words::asks(asked, self.model.peer(asked)));
        }
        if suspect.item == Item::Connect {
            return self.slows_handshakes(service, suspect);
        }
        if suspect.item == Item::Wait && suspect.slow.is_some() && self.is_busy(service, suspect) {
            let [own, asked] = [Item::Service, Item::Asked].map(|item| service.answers.sum_of(item));
            let asked = if asked > own { self.most_asked(service) } else { None };
            return asked.map(|asked| words::asks(asked, self.model.peer(asked)));
        }
        if !matches!(suspect.item, Item::Net | Item::Answer) {
            return None;
        }
        let peer = self.model.peer(service)?;
        if suspect.item == Item::Answer && is_resent(peer.side(Direction::Out)) {
            return Some(words::sends_again(peer));
        }
        let level = suspect.level();
        let least = suspect.times.quantile(level)? / 2;
        let turn = turnaround(peer, level).filter(|turn| *turn >= least);
        // It sends ACKs when it reads.
        let read = peer.side(Direction::In).total.quantile(level).filter(|read| *read >= least);
        let waits_for = turn.map(|turn| words::waits_for(peer, turn));
        waits_for.or_else(|| read.map(|read| words::is_read_late_by(peer, read)))
    }

    /// What handshakes wait for that is told by itself: a full accept queue at the other end, or a stage that is slow for other packets on
    /// that way too.
    fn slows_handshakes(&self, service: &Service, handshakes: Suspect<'_>) -> Option<String> {
        let queues =
            self.model.other_ends(service).find_map(|peer| Some((peer, self.model.listening.of(peer)?)));
        if let Some((peer, queues)) = queues
            && is_often_full(queues)
            && service.opened.are_sent_again()
        {
            return Some(words::is_full(peer));
        }
        let level = handshakes.level();
        let least = handshakes.times.quantile(level)? / 2;
        let stages = |of| Item::of_the_way().map(move |(direction, item)| (of, direction, item));
        let all = iter::once(service).chain(self.model.other_ends(service)).flat_map(stages);
        let known = all.filter_map(|(of, direction, item)| {
            Some((of.side(direction).times(item).quantile(level)?, of, item))
        });
        let (_, of, item) = known.filter(|(ns, ..)| *ns >= least).max_by_key(|(ns, ..)| *ns)?;
        Some(words::same_way(of, item))
    }

    /// The service that this process calls for at least every second answer of its own, if it waits for others for half of the time that
    /// its answers take: the one for which it waits most.
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

    /// The service of others for whose answers this process waits most.
    fn most_asked(&self, service: &Service) -> Option<&Service> {
        let others = self.model.services.iter().filter(|other| other.is_of_same(service) && other.is_client);
        others.max_by_key(|other| other.answers.sum_ns()).filter(|other| other.answers.count() > 0)
    }

    /// What it is, and in a sentence. `has_others` if something else could be it too.
    fn cause(
        &self,
        service: &Service,
        side: &Side,
        suspect: Suspect<'_>,
        suspects: &Suspects<'_>,
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
            // A peer without room for more acknowledges when it reads.
            Item::Net if is_before_closed_window(side) => (Cause::PeerWindow, words::PEER_WINDOW.to_owned()),
            Item::Resend if side.dropped * 2 >= side.resent => (Cause::Qdisc, words::dropped(&device)),
            Item::Answer if suspect.slow.is_some() && self.is_network(service, side, suspect) => {
                (Cause::Network, words::sentence(Cause::Network, suspect.item, &device))
            }
            Item::Answer => match self.model.peer(service).and_then(|peer| turnaround(peer, suspect.level()))
            {
                Some(turn) => (Cause::Network, words::between(turn)),
                None => (cause, words::sentence(cause, suspect.item, &device)),
            },
            Item::Wait if self.is_busy(service, suspect) => {
                (Cause::Application, words::busy(self.served(service).unwrap_or(0)))
            }
            Item::Wait if self.queues(service, suspect).is_some() => {
                (Cause::AcceptLate, words::sentence(Cause::AcceptLate, suspect.item, &device))
            }
            Item::Service => {
                let is_much = |other: &&Suspect<'_>| {
                    !matches!(other.item, Item::Service | Item::Resend)
                        && percent(other.sum, suspects.whole) >= LEAST_ELSEWHERE
                };
                let incoming = Suspects::of(service, Direction::In, self.model, self.is_lossy());
                let is_slow_before = incoming.is_of_answers
                    && incoming.all.iter().any(|it| percent(it.sum, incoming.whole) >= LEAST_ELSEWHERE);
                let is_slow_elsewhere =
                    has_others || suspects.all.iter().any(|other| is_much(&other)) || is_slow_before;
                match worked(service, self.model) {
                    Some(worked) if worked.waits() => (Cause::CpuWait, words::CPU_IN_SERVICE.to_owned()),
                    _ => (cause, words::application(is_slow_elsewhere)),
                }
            }
            Item::Connect if service.opened.are_sent_again() => {
                (Cause::Retransmission, words::sentence(Cause::Retransmission, suspect.item, &device))
            }
            Item::Connect => (cause, words::connects(service, self.model.peer(service))),
            Item::Wire => (cause, words::between_ends(self.model.peer(service))),
            _ => (cause, words::sentence(cause, suspect.item, &device)),
        }
    }

    /// The accept queues in which half of that wait was spent, or more.
    fn queues(&self, service: &Service, wait: Suspect<'_>) -> Option<&Queues> {
        let whole = wait.slow.map_or(wait.sum, |_| service.answers.sum_of(Item::Wait).into());
        let queues = self.model.listening.of(service)?;
        (wait.item == Item::Wait && queues.is_most_of(whole)).then_some(queues)
    }

    /// Whether ACKs that nothing held back, or handshakes, take half of the time that the answers take, or more.
    fn is_network(&self, service: &Service, side: &Side, suspect: Suspect<'_>) -> bool {
        let acks = side.times(Item::Net);
        let [ack, answer] = [acks, suspect.times].map(|times| times.quantile(500).unwrap_or(0));
        let Opened { count, sum_ns, .. } = service.opened;
        let handshake = if service.opened.are_sent_again() { 0 } else { sum_ns / count.max(1) };
        let is_half = |known: u64, ns: u64| known >= LEAST_AFFECTED && ns.saturating_mul(2) >= answer;
        is_half(acks.count(), ack) || is_half(count, handshake)
    }

    /// How long half of the answers take the process at most, ns.
    fn served(&self, service: &Service) -> Option<u64> {
        if service.is_judged_by_answers() {
            let [own, asked] =
                [Item::Service, Item::Asked].map(|item| service.answers.part(item).quantile(500));
            return Some(own?.saturating_add(asked.unwrap_or(0)));
        }
        service.side(Direction::Out).times(Item::Service).quantile(500)
    }

    fn evidence(
        &self,
        service: &Service,
        side: &Side,
        suspect: Suspect<'_>,
        holder: Option<&HeldBy>,
        second: Option<&Suspect<'_>>,
        suspects: &Suspects<'_>,
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
            evidence.extend(places(self.model, service));
        } else {
            let is_of_answers = suspect.item == Item::Service || suspect.slow.is_some();
            let what = if is_of_answers { "answers" } else { "packets" };
            if suspect.slow.is_some() {
                let parts = words::parts(&ServiceAnswers::of(service));
                evidence.push(format!("an answer on average: {parts}"));
            }
            let (slow, all) = (suspect.affected, suspect.times.count());
            evidence.push(format!("{slow} of {all} {what} took {threshold} or longer there"));
        }
        if suspect.item.is_local() && suspect.slow.is_none() {
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
        if suspect.item == Item::Service
            && let Some(worked) = worked(service, self.model)
        {
            evidence.push(words::worked(worked, &service.did));
        }
        if suspect.item == Item::Connect {
            evidence.push(words::opened(service.opened));
        }
        if suspect.item == Item::Cpu {
            if let Some(holder) = holder {
                let is_own = service.processes() == Processes::One(holder.pid);
                evidence.push(words::cpu_held_by(holder, is_own));
            }
            evidence.extend(side.holders.allowed().map(words::may_run));
        }
        if let Some(second) = second.filter(|second| percent(second.sum, suspects.whole) > 0)
            && suspect.slow.is_none()
        {
            let name = column(second.item, service.protocol).unwrap_or(words::name(second.item));
            let share = percent(second.sum, suspects.whole);
            evidence.push(format!("second is {name}, with {share} % of the time"));
        }
        if suspect.item == Item::Net
            && let (Some(min), Some(max)) = (suspect.times.min(), suspect.times.quantile(990))
        {
            // A distance or a constant delay holds up each packet alike.
            let shape = if max < min.saturating_mul(2) {
                "nearly the same for all packets"
            } else {
                "varies between packets"
            };
            evidence.push(format!("at least {}: {shape}", Human(min)));
            if let Some(p50) = side.rtt.quantile(500) {
                evidence.push(format!("TCP's own round-trip time: p50 {}", Human(p50)));
            }
        }
        // They are in no part of an answer.
        if side.delayed_acks > 0 && suspect.slow.is_none() {
            evidence.push(words::delayed_acks(side.delayed_acks));
        }
        if let Some(queues) = self.queues(service, suspect) {
            evidence.push(words::accepted_late(queues));
            evidence.extend((queues.overflows > 0).then(|| words::overflowed(queues)));
        }
        if suspect.item == Item::Wait
            && let Some(time) = self.served(service)
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
        let elapsed = self.model.span.map_or(0, |(first, last)| last.abs_diff(first));
        let (count, whole) = if service.is_judged_by_answers() {
            let answers = &service.answers;
            let whole = answers.sum_of(Item::Service).saturating_add(answers.sum_of(Item::Asked));
            (if service.is_client { 0 } else { answers.count() }, u128::from(whole))
        } else {
            let answers = service.side(Direction::Out).times(Item::Service);
            (answers.count(), clipped_sum(answers))
        };
        let typical = self.served(service).zip(wait.times.quantile(wait.level()));
        count >= LEAST_ANSWERS
            && (typical.is_some_and(|(answer, wait)| answer >= wait) || whole * 2 >= u128::from(elapsed))
    }

    /// Percent of its packets of which too little is known.
    fn unknown(&self, side: &Side) -> u64 {
        let unknown = percent(side.unknown.into(), side.packets.into());
        if self.is_lossy() { 100 } else { unknown }
    }

    /// Whether so much of the lines is missing, one in a hundred, that the traffic seen may differ from the real one.
    pub(super) fn is_lossy(&self) -> bool {
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
