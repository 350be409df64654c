//! What a verdict comes to, in one line of a screen.

use net_latency_common::Direction;

use super::{
    cause::Cause,
    finding::{Confidence, Finding, Normal, OfAnswers, Unsure, Verdict, Who},
    service::LEAST_PACKETS,
    service::Processes,
    words,
};
use crate::{
    accounting::Human,
    escape::harmless,
    message::counted,
    packet::{event::Protocol, stages::dir},
};

/// Without a packet for so long, it is not too early to say anything, ns.
const EARLY_NS: u64 = 5_000_000_000;

/// One sentence in several lengths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Headline {
    /// The longest first. Names are as they are in lines, so that nothing in them acts on a terminal.
    pub(crate) texts: Vec<String>,
    /// Whether something is slow.
    pub(crate) is_fault: bool,
    /// The direction of the packets that are slow, where a column has that time.
    pub(crate) direction: Option<Direction>,
}

impl Headline {
    /// The first finding of this verdict on what came in the last `elapsed_ns`, or that there is none.
    pub(super) fn of(verdict: &Verdict, elapsed_ns: u64) -> Self {
        match verdict.findings.split_first() {
            Some((first, others)) => Self {
                texts: of_fault(first, others.len(), verdict.seen.threshold_ns),
                is_fault: true,
                direction: first.stage.and(first.who.as_ref()).map(|who| who.direction),
            },
            None if verdict.normal.is_empty() => Self::quiet(of_nothing(verdict, elapsed_ns)),
            None => Self::quiet(of_normal(verdict, elapsed_ns)),
        }
    }

    /// There is no verdict, for this reason.
    pub(crate) fn without(reason: &str) -> Self {
        Self::quiet(vec![reason.to_owned()])
    }

    /// Nothing is wrong.
    fn quiet(texts: Vec<String>) -> Self {
        Self { texts, ..Self::default() }
    }
}

/// `others`: faults besides.
fn of_fault(finding: &Finding, others: usize, threshold_ns: u64) -> Vec<String> {
    let slow = if finding.confidence == Confidence::Low { "Perhaps slow" } else { "Slow" };
    let others = match others {
        0 => String::new(),
        others => format!("; {others} more (diagnose)"),
    };
    let brief = finding.brief;
    let Some(who) = &finding.who else {
        let affected = affected(finding);
        return vec![
            format!("{}, {affected}{others}", finding.sentence),
            format!("{brief}, {affected}{others}"),
            brief.to_owned(),
        ]
        .into_iter()
        .map(|text| format!("This machine: {text}"))
        .collect();
    };
    if let Some(answers) = &finding.answers {
        let (name, said) = (name(who), said(answers, finding.within));
        let (confidence, port) = (finding.confidence.name(), who.port);
        let short = format!("{brief}, {}", Human(answers.told_ns().1));
        return vec![
            format!(
                "{slow}: {name}, {} port {port}: {said}, confidence {confidence}{others}",
                who.protocol.name()
            ),
            format!("{slow}: {name}, port {port}: {said}{others}"),
            format!("{slow}: {name}: {said}"),
            format!("{slow}: {name}: {short}{others}"),
            format!("{slow}: {name}: {short}"),
            format!("{}: {brief}", process(who)),
        ];
    }
    let Who { port, protocol, .. } = who;
    let (name, direction) = (name(who), dir(who.direction));
    let whole = format!("{name}, {} port {port}, {direction}", protocol.name());
    let stage = finding.stage.map(|stage| format!("{stage} ")).unwrap_or_default();
    let times = finding.p50_ns.zip(finding.p99_ns).filter(|_| !is_counted(finding));
    let (figure, all) = match times {
        None => {
            let affected = affected(finding);
            (affected.clone(), affected)
        }
        Some((p50, p99)) => {
            let all = format!("{stage}p50 {}, p99 {}", Human(p50), Human(p99));
            // Where fewer than half are slow, the median says nothing of them.
            let figure = if p50 >= threshold_ns { ("p50", p50) } else { ("p99", p99) };
            (format!("{stage}{} {}", figure.0, Human(figure.1)), all)
        }
    };
    let share = finding.share.filter(|_| times.is_some());
    let share = share.map(|share| format!(", {share} % of its time")).unwrap_or_default();
    let confidence = finding.confidence.name();
    vec![
        format!("{slow}: {whole}: {brief}, {all}{share}, confidence {confidence}{others}"),
        format!("{slow}: {whole}: {brief}, {all}{share}{others}"),
        format!("{slow}: {whole}: {brief}, {figure}{others}"),
        format!("{slow}: {name}, {direction}: {brief}, {figure}{others}"),
        format!("{slow}: {name}, {direction}: {brief}, {figure}"),
        format!("{slow}: {name}, {direction}: {brief}"),
        format!("{}: {brief}", process(who)),
    ]
}

/// How long answers take, and why.
fn said(answers: &OfAnswers, within: &str) -> String {
    let (total, part) = answers.told_ns();
    let (total, part) = (Human(total), Human(part));
    let gets = if answers.is_client { " that it gets" } else { "" };
    if answers.is_each() {
        format!("each answer{gets} takes {total}, {part} of it {within}")
    } else {
        let (slow, all) = (answers.slow.count, answers.count);
        format!("{slow} of {all} answers{gets} take {total}, {part} of it {within}")
    }
}

/// The service, how long its answers take, and why.
pub(super) fn first_line(finding: &Finding) -> String {
    let perhaps = if finding.confidence == Confidence::Low { "perhaps " } else { "" };
    let brief = finding.brief;
    let Some(who) = &finding.who else {
        let share = finding.share.map(|share| format!(", {share} % of the time of all answers"));
        let packets = || format!(", {}", affected(finding));
        return format!("{perhaps}this machine: {brief}{}", share.unwrap_or_else(packets));
    };
    let also = match finding.also.len() {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    let name = format!("{}, {} port {}{also}", name(who), who.protocol.name(), who.port);
    if let Some(answers) = &finding.answers {
        return format!("{perhaps}{name}: {}", said(answers, finding.within));
    }
    let times = finding.p50_ns.zip(finding.p99_ns).filter(|_| !is_counted(finding));
    let figure = match times {
        Some((p50, p99)) => format!("p50 {}, p99 {}", Human(p50), Human(p99)),
        None => affected(finding),
    };
    format!("{perhaps}{name}, {}: {brief}, {figure}", dir(who.direction))
}

/// Other services with the same finding.
pub(super) fn also(finding: &Finding) -> Option<String> {
    let whom = |who: &Who| format!("{}, {} port {}", name(who), who.protocol.name(), who.port);
    let also: Vec<_> = finding.also.iter().map(whom).collect();
    (!also.is_empty()).then(|| also.join("; "))
}

/// How many have it.
fn affected(finding: &Finding) -> String {
    let is_udp = finding.who.as_ref().is_some_and(|who| who.protocol == Protocol::Udp);
    let what = match finding.cause {
        Cause::AcceptLate => "handshakes",
        Cause::CpuShort => "answers",
        Cause::Unanswered if is_udp => "requests",
        // How many connections there are is not known.
        Cause::Unanswered => return counted(finding.affected, "connection"),
        _ => "packets",
    };
    format!("{} of {} {what}", finding.affected, finding.packets)
}

/// It is about how many packets, and not about how long they take.
fn is_counted(finding: &Finding) -> bool {
    finding.stage.is_none() && matches!(finding.cause, Cause::Retransmission | Cause::Qdisc)
}

const NOTHING_SLOW: &str = "Nothing slow";

/// Services of which nothing is slow.
pub(super) fn judged(verdict: &Verdict) -> usize {
    let mut judged: Vec<&Who> = Vec::new();
    for Normal { who, .. } in &verdict.normal {
        // Both directions of one service.
        if !judged.iter().any(|known| known.is_same(who)) {
            judged.push(who);
        }
    }
    judged.len()
}

fn of_normal(verdict: &Verdict, elapsed_ns: u64) -> Vec<String> {
    let seen = &verdict.seen;
    let judged = judged(verdict);
    let others = seen.services.saturating_sub(judged);
    let others = match others {
        0 => String::new(),
        others => format!("; {others} more had too few packets"),
    };
    let limits = seen.limits();
    if !limits.is_empty() {
        let left_out = counted(seen.refused + seen.forgotten + seen.lost.unwrap_or(0), "packet");
        return vec![
            format!("{NOTHING_SLOW}{limits}; {left_out} not judged: a filter helps"),
            format!("{NOTHING_SLOW}{limits}"),
        ];
    }
    let services = counted(judged, "service");
    let packets = counted(seen.packets.iter().sum::<u64>(), "packet");
    let elapsed = seconds(elapsed_ns);
    if seen.stalls > 0 {
        let times = words::times(seen.stalls);
        return vec![
            format!(
                "{NOTHING_SLOW} by itself in the last {elapsed}; all services were slow at the same time ({times}): the machine or its host"
            ),
            format!("All were slow at the same time ({times}): the machine or its host"),
            format!("All slow at the same time ({times})"),
        ];
    }
    if seen.is_fine {
        return vec![
            format!("{NOTHING_SLOW} in the last {elapsed}: {packets} of {services}{others}"),
            format!("{NOTHING_SLOW} in the last {elapsed}: {services}{others}"),
            format!("{NOTHING_SLOW} in the last {elapsed}"),
            NOTHING_SLOW.to_owned(),
        ];
    }
    vec![
        format!("{NOTHING_SLOW} in the last {elapsed}: {packets} of {services}{others}; {}", words::BASIC),
        format!("{NOTHING_SLOW} in the last {elapsed}; {}", words::BASIC),
        format!("{NOTHING_SLOW}; --stages fine looks at queue, wire and peer too"),
        format!("{NOTHING_SLOW} in the basic stages"),
    ]
}

fn of_nothing(verdict: &Verdict, elapsed_ns: u64) -> Vec<String> {
    let least = LEAST_PACKETS;
    let elapsed = seconds(elapsed_ns);
    let known = verdict.unsure.iter().find(|unsure| unsure.packets >= least);
    if let Some(Unsure { who, reason, .. }) = known {
        return vec![
            format!("Can't tell: {}, {}: {reason}", name(who), dir(who.direction)),
            "Can't tell: too many times are unknown".to_owned(),
            "Can't tell: times unknown".to_owned(),
        ];
    }
    let packets = match verdict.seen.packets.iter().sum::<u64>() {
        0 => "no packets".to_owned(),
        count => counted(count, "packet"),
    };
    let what = if elapsed_ns < EARLY_NS { "Too early to say" } else { "Too few packets to say" };
    vec![
        format!("{what}: {packets} in the last {elapsed}; {least} from one service needed"),
        format!("{what}: {packets} in {elapsed}"),
        what.to_owned(),
    ]
}

fn name(who: &Who) -> String {
    match who.processes {
        Processes::One(pid) => format!("{}, PID {pid}", process(who)),
        Processes::Unknown | Processes::Several => process(who),
    }
}

fn process(who: &Who) -> String {
    if who.processes == Processes::Unknown {
        return "unknown process".to_owned();
    }
    harmless(who.process.as_deref())
}

fn seconds(ns: u64) -> String {
    match ns / 1_000_000_000 {
        0 => format!("{} ms", ns / 1_000_000),
        seconds => format!("{seconds} s"),
    }
}
