//! The verdict: a function of the [`Model`] and the losses, and of nothing else.
//!
//! [`judge`](super::judge) finds what is slow in each direction of a service. Here they become a list: the one that adds most time
//! to all answers comes first, of which a doubtful one counts for less, and those that have the same cause are one.

use std::cmp::Reverse;

use net_latency_common::Direction;

use super::{
    answers::Answers,
    cause::Cause,
    drops::{overflows, packet_drops, socket_drops},
    finding::{Confidence, Finding, Seen, ServiceAnswers, Verdict, Who},
    item::Item,
    judge::{Judge, Judgement},
    model::Model,
    service::{LEAST_PACKETS, Service},
    side::Side,
    suspects::{Noise, SHORT_PERCENT, clipped_sum, column, percent},
    unanswered::unanswered,
    windows::Windows,
    words,
};
use crate::{accounting::Losses, packet::event::Protocol};

/// Processes that have to be slow at the same time: two are often the ends of one connection.
const LEAST_ALIKE: usize = 3;
/// Of the windows with packets, at most one in N has a stall of the machine; a service that is slow more often has a cause.
const STALLS_ARE_RARE: usize = 5;
/// How long each answer has to wait for a CPU on average, where it is unknown how busy CPUs are, ns.
const LONG_WAIT_NS: u128 = 2_000_000;
/// The least share of that in the time of all answers, percent.
const LEAST_SHORT: u64 = 10;
/// N times as much is not alike.
const NOT_ALIKE: u128 = 4;

/// Judges all that is known. `losses` are those of tracing, which a log does not have.
pub(crate) fn judge(model: &Model, losses: Option<&Losses>) -> Verdict {
    let lost = losses.map(Losses::lines);
    let all = model.services.iter().flat_map(|service| &service.sides);
    let active = all.clone().fold(Windows::default(), |sum, side| sum.with(&side.active));
    let stalls = stalls(model, &active);
    let judge = Judge::new(model, stalls, lost.unwrap_or(0));
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
    findings.sort_by_key(|finding| Reverse(finding.expected_ns()));
    let mut findings = joined(findings, model);
    findings.extend(losses.map(|losses| socket_drops(losses, model)).unwrap_or_default());
    findings.extend(overflows(model, &findings));
    if !judge.is_lossy() {
        findings.extend(unanswered(model, &findings));
    }
    findings.extend(packet_drops(model, &findings));
    findings.extend(cpu_short(model, judge.noise(), &findings));
    findings.sort_by_key(|finding| Reverse(finding.expected_ns()));
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
        cpu_busy_percent: model.machine.busy_percent,
        cpu_pressure_percent: model.machine.pressure_percent,
        missing: model.machine.missing.clone(),
    };
    let is_known = |service: &&Service| service.answers.count() + service.answers.unknown > 0;
    let answers = model.services.iter().filter(is_known).map(ServiceAnswers::of).collect();
    Verdict { findings, answers, normal, unsure, seen }
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

/// Those of several services that have the same cause, and about as much of it, become one.
fn joined(findings: Vec<Finding>, model: &Model) -> Vec<Finding> {
    let mean = |finding: &Finding| finding.weight / u128::from(finding.packets.max(1));
    let mut means: Vec<u128> = Vec::new();
    let mut joined: Vec<Finding> = Vec::new();
    for finding in findings {
        let mean = mean(&finding);
        let is_alike = |(first, of_first): &(&mut Finding, &u128)| {
            let direction = |finding: &Finding| finding.who.as_ref().map(|who| who.direction);
            let is_same = direction(first) == direction(&finding) || finding.cause == Cause::CpuQuota;
            let [less, more] = [mean.min(**of_first), mean.max(**of_first)];
            first.cause == finding.cause && is_same && less * NOT_ALIKE >= more
        };
        match joined.iter_mut().zip(&means).find(|pair| is_alike(pair)) {
            Some((first, _)) => {
                first.weight += finding.weight;
                // The other direction of a process says nothing new.
                let is_new = |who: &Who| !first.who.iter().chain(&first.also).any(|known| who.is_same(known));
                first.also.extend(finding.who.filter(is_new));
            }
            None => {
                means.push(mean);
                joined.push(finding);
            }
        }
    }
    for finding in &mut joined {
        compare(finding, model);
    }
    joined
}

/// Says whether others have it too.
fn compare(finding: &mut Finding, model: &Model) {
    let Some(who) = &finding.who else { return };
    let judged = |service: &&Service| service.side(who.direction).packets >= LEAST_PACKETS;
    let mut pids: Vec<_> = model
        .services
        .iter()
        .filter(judged)
        .map(|service| service.pid)
        .filter(|pid| *pid != finding.pid)
        .collect();
    pids.sort_unstable();
    pids.dedup();
    let others = pids.len();
    let own = |also: &&Who| !also.is_same(who);
    let alike = finding.also.iter().filter(own).count();
    if others == 0 || alike == 0 && finding.cause == Cause::Application {
        return;
    }
    finding.evidence.push(match alike {
        0 => format!("only this one of {} processes has this", others + 1),
        alike if alike >= others && alike + 1 >= LEAST_ALIKE => {
            format!("all {} processes have this: look at the machine first", alike + 1)
        }
        alike => format!("{} of {} processes have this", alike + 1, others + 1),
    });
}

/// The whole machine, if all processes wait for a CPU alike, and there is none left. Not if one service waits longer than all others
/// together: that has a cause of its own, for which the others may wait too.
fn cpu_short(model: &Model, noise: &Noise, findings: &[Finding]) -> Option<Finding> {
    let waits = noise.of_item(Item::Cpu);
    let busy = model.machine.busy_percent;
    let least = if busy.is_some() { u128::from(model.threshold_ns) } else { LONG_WAIT_NS };
    let long = waits.iter().filter(|wait| **wait >= least).count();
    let is_short = busy.is_none_or(|percent| percent >= SHORT_PERCENT);
    if !is_short || waits.len() < LEAST_ALIKE || long * 4 < waits.len() * 3 {
        return None;
    }
    let answers = || model.services.iter().filter(|it| it.is_judged_by_answers()).map(|it| &it.answers);
    let weight: u128 = answers().map(|answers| clipped_sum(answers.part(Item::Cpu))).sum();
    let whole: u128 = answers().map(|answers| clipped_sum(&answers.total)).sum();
    let slow = || answers().map(|answers| answers.slow(Item::Cpu));
    let share = percent(weight, whole);
    let is_of_one = |finding: &Finding| finding.cause == Cause::CpuWait && finding.weight * 2 >= weight;
    (share >= LEAST_SHORT && !findings.iter().any(is_of_one)).then(|| Finding {
        stage: column(Item::Cpu, Protocol::Tcp),
        share: Some(share),
        packets: answers().map(Answers::count).sum(),
        affected: slow().map(|slow| slow.count).sum(),
        confidence: if busy.is_some() { Confidence::High } else { Confidence::Low },
        evidence: words::cpu_short(&model.machine, long, waits.len()),
        next: "top -d 1".to_owned(),
        weight,
        ..words::finding(Cause::CpuShort, Item::Cpu)
    })
}
