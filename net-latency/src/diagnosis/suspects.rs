//! Times that may be a cause, and which of them count.
//!
//! Where a service gives or gets answers ([`LEAST_ANSWERS`]), their parts are judged. A part counts if
//! - N answers have it for the threshold or longer that they are no accident ([`least_affected`]);
//! - it adds half the threshold or more to each answer, on average;
//! - it is a tenth of the answers' time or more ([`LEAST_OF_ANSWER`]);
//! - it is well above what other processes have alike, which is the noise of this machine ([`Noise`]).
//!
//! Else the stages of its packets are judged. A stage counts if it is known of [`LEAST_PACKETS`] packets, if as many are affected, and
//! if it holds a quarter of all their time ([`LEAST_SHARE`]). The slowest few count for no more than the others ([`clipped_sum`]).

use std::collections::BTreeMap;

use net_latency_common::Direction;

use super::{
    answers::Slow,
    item::Item,
    model::Model,
    service::{LEAST_ANSWERS, LEAST_PACKETS, Service},
    side::Side,
};
use crate::{
    accounting::Times,
    packet::{event::Protocol, stages},
};

/// The least share of a cause in the time of answers, percent.
const LEAST_OF_ANSWER: u64 = 10;
/// N times what others have alike is well above it.
const WELL_ABOVE: u128 = 4;
/// Percent of the time from which on CPUs are busy: then a time of [`BUSY_NS`] that a CPU is waited for is usual, or more
/// ([`Noise::others_before`]).
const BUSY_PERCENT: u64 = 50;
const BUSY_NS: u128 = 3_000_000;
/// Less than that is usual then, whatever others wait for, ns.
const LEAST_BUSY_NS: u128 = 1_000_000;
/// Then a process may work for so long on an answer, ns, and is not slow: it would be faster alone. From [`SHARED_PERCENT`] on that grows
/// from [`LEAST_BUSY_NS`].
const WORK_NS: u128 = 20_000_000;
const SHARED_PERCENT: u64 = 25;
/// From here on the load says no more about the others that wait.
const BUSIEST_PERCENT: u64 = 90;
/// The most that counts as noise if others have the same, ns: of times that grow with the load, and of all others.
const MOST_ALIKE_NS: u128 = 5_000_000;
const LEAST_ALIKE_NS: u128 = 250_000;
/// Percent of the time from which on there is too little CPU for all.
pub(super) const SHORT_PERCENT: u64 = 95;
/// Packets that have to be slow in a stage, whatever their share.
pub(super) const LEAST_AFFECTED: u64 = 8;
/// The least share of a cause in the time of its service's packets, percent. With less, something else is the larger part.
const LEAST_SHARE: u64 = 25;
/// Retransmissions, or drops in the device's queue, that make a cause: N, and this percentage of the packets. Less than that is usual on the internet.
pub(super) const LEAST_RESENT: u64 = 5;
pub(super) const LEAST_RESENT_PERCENT: u64 = 1;

/// A time that may be the cause.
#[derive(Clone, Copy)]
pub(super) struct Suspect<'a> {
    pub(super) item: Item,
    pub(super) times: &'a Times,
    pub(super) sum: u128,
    pub(super) affected: u64,
    /// What it adds to each packet or answer on average, ns.
    pub(super) mean: u128,
    /// Of answers: those in which it took long.
    pub(super) slow: Option<Slow>,
}

impl<'a> Suspect<'a> {
    fn of(item: Item, times: &'a Times, threshold_ns: u64) -> Self {
        let slow = times.buckets().filter(|(from, ..)| *from >= threshold_ns);
        let affected = slow.map(|(.., count)| count).sum();
        let sum = clipped_sum(times);
        Self { item, times, sum, affected, mean: sum / u128::from(times.count().max(1)), slow: None }
    }

    /// The quantile that is the median of those that took long there, of a thousand.
    pub(super) fn level(&self) -> u64 {
        1_000 - (self.affected.saturating_mul(500) / self.times.count().max(1)).min(999)
    }

    /// Whether the answers in which it took long have a quarter of its time or more. A few that are just beyond the threshold, of many
    /// just below, are no fault.
    fn is_of_slow_answers(&self) -> bool {
        self.slow.is_none_or(|slow| u128::from(slow.part_ns) * 4 >= self.sum)
    }

    /// For packets of which an answer has several: what they add to each of `answers`. Those that wait at the same time, one behind the
    /// other, add no more than one of them.
    fn of_each(self, answers: u64) -> Self {
        let one = self.times.quantile(self.level()).unwrap_or(0);
        Self { mean: u128::from(one).min(self.sum / u128::from(answers.max(1))), ..self }
    }
}

/// The times of one direction of a service.
pub(super) struct Suspects<'a> {
    pub(super) all: Vec<Suspect<'a>>,
    /// What they are parts of, ns.
    pub(super) whole: u128,
    pub(super) is_of_answers: bool,
}

impl<'a> Suspects<'a> {
    /// `is_lossy`: lines are missing, so that it is unknown which packets follow each other.
    pub(super) fn of(service: &'a Service, direction: Direction, model: &Model, is_lossy: bool) -> Self {
        let side = service.side(direction);
        let of_packets = |item: &Item| Suspect::of(*item, side.times(*item), model.threshold_ns);
        let is_known = |suspect: &Suspect<'_>| suspect.times.count() > 0 || suspect.item == Item::Resend;
        let is_of_answers = !is_lossy && service.is_judged_by_answers();
        if !is_of_answers {
            let needs_all = |item: Item| matches!(item, Item::Service | Item::Answer);
            let items = Item::of(direction).iter().filter(|item| !(needs_all(**item) && is_lossy));
            let all: Vec<_> = items.map(of_packets).filter(is_known).collect();
            let whole = all.iter().map(|suspect| suspect.sum).sum();
            return Self { all, whole, is_of_answers };
        }
        let answers = &service.answers;
        let of_answers = |item: &Item| {
            let (times, slow) = (answers.part(*item), answers.slow(*item));
            Suspect {
                affected: slow.count,
                slow: Some(slow),
                ..Suspect::of(*item, times, model.threshold_ns)
            }
        };
        let mut all: Vec<_> = Item::of_answers(direction).iter().map(of_answers).collect();
        all.retain(|suspect| suspect.sum > 0);
        let mut whole = clipped_sum(&answers.total);
        // Bytes that are missing may be others than the last ones of a request.
        let of_all = of_packets(&Item::Gap).of_each(answers.count());
        let of_last = all.iter().find(|suspect| suspect.item == Item::Gap).map_or(0, |suspect| suspect.sum);
        if direction == Direction::In && of_all.sum > of_last * 2 {
            all.retain(|suspect| suspect.item != Item::Gap);
            whole += of_all.sum - of_last;
            all.push(of_all);
        }
        if direction == Direction::Out {
            // ACKs and retransmissions are in no answer. If the other end is a service here, the way to it is known by its answers.
            let of_acks = [Item::Net, Item::Resend].iter().map(of_packets).filter(is_known);
            let of_acks = of_acks.filter(|it| it.item == Item::Resend || service.peer().is_none());
            let of_acks: Vec<_> = of_acks.collect();
            whole += of_acks.iter().map(|suspect| suspect.sum).sum::<u128>();
            all.extend(of_acks);
        }
        Self { all, whole, is_of_answers }
    }

    pub(super) fn find(&self, item: Item) -> Option<&Suspect<'a>> {
        self.all.iter().find(|suspect| suspect.item == item)
    }

    /// The suspect that adds most, and whether something else could be the cause too.
    pub(super) fn worst(
        &self,
        side: &Side,
        noise: &Noise,
        pid: u32,
        threshold_ns: u64,
    ) -> Option<(bool, Suspect<'a>)> {
        let mut causes: Vec<_> =
            self.all.iter().filter(|it| self.counts(it, noise, pid, threshold_ns)).copied().collect();
        causes.sort_by_key(|suspect| std::cmp::Reverse(suspect.sum));
        let resend = self.find(Item::Resend).copied().filter(|_| is_resent(side));
        match (causes.first().copied(), resend) {
            // A lost segment makes TCP hold back those that follow, and delays ACKs and answers.
            (Some(first), Some(resend)) => {
                let is_effect = matches!(first.item, Item::AppTransport | Item::Net | Item::Answer)
                    && !is_before_closed_window(side);
                Some((true, if is_effect || resend.sum > first.sum { resend } else { first }))
            }
            (None, Some(resend)) => Some((false, resend)),
            (first, None) => first.map(|first| (causes.len() > 1, first)),
        }
    }

    /// Whether a suspect other than retransmissions may be a cause.
    fn counts(&self, suspect: &Suspect<'_>, noise: &Noise, pid: u32, threshold_ns: u64) -> bool {
        let known = suspect.times.count();
        let (least, least_share) = if suspect.slow.is_some() {
            (LEAST_ANSWERS, LEAST_OF_ANSWER)
        } else if self.is_of_answers {
            (LEAST_PACKETS, LEAST_OF_ANSWER)
        } else {
            (LEAST_PACKETS, LEAST_SHARE)
        };
        !matches!(suspect.item, Item::Resend | Item::Asked | Item::Theirs | Item::Rest)
            && known >= least
            && suspect.affected >= least_affected(known)
            && percent(suspect.sum, self.whole) >= least_share
            && suspect.is_of_slow_answers()
            && suspect.mean * 2 >= u128::from(threshold_ns)
            && noise.is_below(suspect, pid)
    }
}

/// What a process did for each of its answers, ns: how long it was on a CPU and waited for one; and how long it takes to answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Worked {
    pub(super) on_ns: u64,
    pub(super) waited_ns: u64,
    pub(super) service_ns: u64,
    /// What of that it does while it waits for no answer of others.
    own_ns: u64,
    /// Whether that is what the threads did that answered. Else it is what the whole process did.
    pub(super) is_of_answers: bool,
}

impl Worked {
    /// Whether it was on a CPU for most of the time.
    pub(super) fn is_most(self) -> bool {
        self.on_ns.saturating_mul(2) >= self.service_ns
    }

    /// Whether it was on a CPU for most of the time in which it waits for no answer of others, and slept no longer than these took.
    fn works(self) -> bool {
        let slept_ns = self.service_ns.saturating_sub(self.on_ns).saturating_sub(self.waited_ns);
        let others_ns = self.service_ns.saturating_sub(self.own_ns);
        self.is_most() || self.on_ns.saturating_mul(2) >= self.own_ns && slept_ns <= others_ns
    }

    /// Whether it neither was on a CPU nor waited for one for most of the time.
    pub(super) fn sleeps(self) -> bool {
        self.on_ns.saturating_add(self.waited_ns).saturating_mul(2) < self.service_ns
    }

    /// Whether it waited for a CPU for most of the time.
    pub(super) fn waits(self) -> bool {
        self.waited_ns.saturating_mul(2) >= self.service_ns
    }
}

/// What a service did for its answers, if it is known: by what its threads did that answered, or by what its process did in all, if that
/// has nothing else to answer.
pub(super) fn worked(service: &Service, model: &Model) -> Option<Worked> {
    if service.is_client || !service.is_judged_by_answers() {
        return None;
    }
    let count = service.answers.count();
    let did = &service.did;
    if did.known >= LEAST_ANSWERS && did.is_of_most() {
        let [on_ns, waited_ns, slept_ns] =
            [did.on_ns, did.waited_ns, did.slept_ns].map(|sum| sum / did.known);
        // Of those alone: the others may be longer ones.
        let service_ns = on_ns.saturating_add(waited_ns).saturating_add(slept_ns);
        // An answer takes longer than the work for it where its request waits behind others that came with it.
        let [own, asked] = [Item::Service, Item::Asked].map(|item| u128::from(service.answers.sum_of(item)));
        let share = u128::from(service_ns) * own / (own + asked).max(1);
        let own_ns = u64::try_from(share).unwrap_or(service_ns);
        return Some(Worked { on_ns, waited_ns, service_ns, own_ns, is_of_answers: true });
    }
    let ran = model.machine.ran.get(&service.processes().pid()?)?;
    let is_server =
        |other: &&Service| other.is_of_same(service) && !other.is_client && other.answers.count() > 0;
    if model.services.iter().filter(is_server).count() > 1 {
        return None;
    }
    let own_ns = service.answers.sum_of(Item::Service);
    let [on_ns, waited_ns, own_ns] = [ran.on_ns, ran.waited_ns, own_ns].map(|sum| sum / count);
    Some(Worked { on_ns, waited_ns, service_ns: own_ns, own_ns, is_of_answers: false })
}

/// Whether TCP sent so much again, or the device's queue dropped so much, that it matters. What the peer had already was late and not
/// lost.
pub(super) fn is_resent(side: &Side) -> bool {
    let again = side.sent_again_or_dropped();
    let lost = side.dropped.max(again.saturating_sub(side.needless));
    lost >= LEAST_RESENT && lost * 100 >= side.packets * LEAST_RESENT_PERCENT
}

/// Whether TCP often waits since the peer's window is closed. Then ACKs come when the peer reads, and TCP sends again to ask for them.
pub(super) fn is_before_closed_window(side: &Side) -> bool {
    side.held >= LEAST_AFFECTED && side.is_held_by_peer()
}

/// What processes have alike, by item: the noise of this machine.
pub(super) struct Noise {
    known: Vec<Known>,
    busy_percent: Option<u64>,
    /// What each process did for its answers, in one of its services.
    worked: Vec<(u32, Worked)>,
    /// Whether those that were on a CPU for most of the time that they took to answer are what makes the CPUs busy: then that is no excuse
    /// for them.
    is_of_working: bool,
    /// Processes with more of their kind than have places, which accept in time: they fork for each connection, and its bytes wait for that.
    forking: Vec<u32>,
}

/// What an item takes on average in one service of a process, ns.
struct Known {
    pid: u32,
    /// The first of the processes that serve the same port under the same name: if all of these have it, that is no noise.
    first: u32,
    item: Item,
    mean: u128,
}

impl Noise {
    pub(super) fn of(model: &Model, is_lossy: bool) -> Self {
        let first_of = |pid: u32| {
            let mut serving = model.services.iter().filter(|service| !service.is_client);
            let own = serving.clone().find(|service| service.pid == pid)?;
            serving.find(|other| other.serves_as(own)).map(|other| other.pid)
        };
        let mut known = Vec::new();
        for service in &model.services {
            let pid = service.pid;
            let first = first_of(pid).unwrap_or(pid);
            for direction in [Direction::In, Direction::Out] {
                let suspects = Suspects::of(service, direction, model, is_lossy);
                let least = if suspects.is_of_answers { LEAST_ANSWERS } else { LEAST_PACKETS };
                // What a process lacks altogether it does not have alike.
                let of_answers = suspects.all.iter().filter(|it| it.times.count() >= least);
                known.extend(of_answers.map(|it| Known { pid, first, item: it.item, mean: it.mean }));
            }
        }
        let worked: Vec<_> =
            model.services.iter().filter_map(|service| Some((service, worked(service, model)?))).collect();
        let on_ns = |(service, worked): &(&Service, Worked)| {
            u128::from(worked.on_ns) * u128::from(service.answers.count())
        };
        let by_working: u128 = worked.iter().filter(|(_, worked)| worked.works()).map(on_ns).sum();
        let busy_percent = model.machine.busy_percent;
        let busy =
            model.machine.capacity_ns.zip(busy_percent).map(|(all, busy)| u128::from(all) * u128::from(busy));
        let is_of_working = busy.is_some_and(|busy| by_working * 200 >= busy);
        let worked = worked.into_iter().map(|(service, worked)| (service.pid, worked)).collect();
        let is_forking = |service: &&Service| {
            let wait_ns = service.answers.sum_of(Item::Wait).into();
            let queues = model.listening.of(service);
            service.is_of_several && !queues.is_some_and(|queues| queues.is_most_of(wait_ns))
        };
        let forking = model.services.iter().filter(is_forking).map(|service| service.pid).collect();
        Self { known, busy_percent, worked, is_of_working, forking }
    }

    /// The longest mean of all but one, in order; `of` says which are one.
    fn means(&self, item: Item, of: impl Fn(&Known) -> u32, but: u32) -> Vec<u128> {
        let mut most = BTreeMap::<u32, u128>::new();
        for known in self.known.iter().filter(|known| known.item == item && of(known) != but) {
            let longest = most.entry(of(known)).or_default();
            *longest = (*longest).max(known.mean);
        }
        let mut means: Vec<_> = most.into_values().collect();
        means.sort_unstable();
        means
    }

    /// Of processes other than that one and those like it.
    fn others(&self, item: Item, pid: u32) -> Vec<u128> {
        let first = self.known.iter().find(|known| known.pid == pid).map_or(pid, |known| known.first);
        self.means(item, |known| known.first, first)
    }

    /// Each process that waits for a CPU, with its mean. Which one 0 is, is unknown.
    pub(super) fn of_item(&self, item: Item) -> Vec<u128> {
        self.means(item, |known| known.pid, 0)
    }

    /// Whether that is so of a process in one of its services.
    fn did(&self, pid: u32, is: fn(Worked) -> bool) -> bool {
        self.worked.iter().any(|(of, worked)| *of == pid && is(*worked))
    }

    /// How many others that want the CPU come first, in hundredths: half of those that wait for it on average, which is the load by what
    /// is left of it (M/M/1), and one at least.
    fn others_before(&self) -> u128 {
        let load = self.busy_percent.unwrap_or(0).min(BUSIEST_PERCENT);
        u128::from((load * 50 / (100 - load)).max(100))
    }

    /// For how long a process may work on an answer, ns.
    fn usual_work(&self) -> u128 {
        const BUSIER: u128 = (BUSY_PERCENT - SHARED_PERCENT) as u128;
        match self.busy_percent.unwrap_or(0) {
            BUSY_PERCENT.. => WORK_NS * self.others_before() / 100,
            percent @ SHARED_PERCENT.. => {
                LEAST_BUSY_NS + (WORK_NS - LEAST_BUSY_NS) * u128::from(percent - SHARED_PERCENT) / BUSIER
            }
            _ => 0,
        }
    }

    /// Whether that is well above it.
    fn is_below(&self, suspect: &Suspect<'_>, pid: u32) -> bool {
        let item = suspect.item;
        let others = self.others(item, pid);
        let median = others.get(others.len().saturating_sub(1) / 2).copied().unwrap_or(0);
        let is_busy = self.busy_percent.is_some_and(|percent| percent >= BUSY_PERCENT);
        let may_be_short = self.busy_percent.is_none_or(|percent| percent >= SHORT_PERCENT);
        let alike = match item {
            // That may be all that is wrong, and is told by itself.
            Item::Cpu if may_be_short && others.len() >= 2 => median,
            Item::Service if !self.did(pid, Worked::sleeps) => median.min(MOST_ALIKE_NS),
            Item::Wait if is_busy => median.min(MOST_ALIKE_NS),
            item if item.is_of_cpu() && is_busy => median.min(MOST_ALIKE_NS),
            _ => median.min(LEAST_ALIKE_NS),
        };
        let busier = |ns: u128| ns * self.others_before() / 100;
        let works_less = |(_, worked): &(u32, Worked)| u128::from(worked.on_ns) < suspect.mean;
        let usual = match item {
            // It has to share its CPU.
            Item::Service if self.did(pid, Worked::works) => {
                if self.is_of_working {
                    0
                } else {
                    self.usual_work()
                }
            }
            Item::Wait if self.forking.contains(&pid) => self.usual_work(),
            _ if !is_busy => 0,
            Item::Service if self.did(pid, Worked::sleeps) => BUSY_NS,
            Item::Service => busier(BUSY_NS),
            // It needs a CPU for less than that, and no other has to wait nearly as long for one, however busy they are.
            item if (item == Item::Wait || item.is_of_cpu())
                && self.worked.iter().find(|(of, _)| *of == pid).is_some_and(works_less) =>
            {
                busier(BUSY_NS).min(most_of(&others).unwrap_or(u128::MAX))
            }
            item if item == Item::Wait || item.is_of_cpu() => busier(BUSY_NS),
            _ => 0,
        };
        suspect.mean >= (alike * WELL_ABOVE).max(usual)
    }
}

/// What is well above the waits of others, in order, ns. Two of them may have been lucky, and one says nothing.
fn most_of(others: &[u128]) -> Option<u128> {
    let most = match others {
        [] | [_] => return None,
        [_, most] => most * WELL_ABOVE * WELL_ABOVE,
        [.., most] => most * WELL_ABOVE,
    };
    Some(most.max(LEAST_BUSY_NS))
}

/// Packets of N that have to be slow: eight, and three in a hundred. Of a thousand or more, one in a hundred are no accident
/// any more, and make their p99.
pub(super) fn least_affected(known: u64) -> u64 {
    let share = if known < 1_000 { (known * 3).div_ceil(100) } else { known / 100 };
    share.max(LEAST_AFFECTED)
}

/// All times together, ns, in which those beyond a high percentile count as much as that one: a packet that was late by accident
/// is then none of them. It is chosen so that what [`least_affected`] asks for is not cut off.
pub(super) fn clipped_sum(times: &Times) -> u128 {
    let per_mille = match times.count() {
        ..100 => 950,
        100..1_000 => 980,
        _ => 995,
    };
    let Some(longest) = times.quantile(per_mille) else { return 0 };
    let time = |from: u64, to: u64| u128::from(u64::midpoint(from, to).min(longest));
    times.buckets().map(|(from, to, count)| time(from, to) * u128::from(count)).sum()
}

pub(super) fn percent(part: u128, whole: u128) -> u64 {
    part.saturating_mul(100).checked_div(whole).and_then(|percent| u64::try_from(percent).ok()).unwrap_or(0)
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
        Item::Answer
        | Item::Service
        | Item::Resend
        | Item::Asked
        | Item::Wire
        | Item::Connect
        | Item::Theirs
        | Item::Rest => None,
    }
}
