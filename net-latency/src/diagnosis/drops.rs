//! Services whose sockets or accept queues drop what they get, or whose packets the kernel drops elsewhere.

use std::{cmp::Reverse, ptr};

use net_latency_common::{Counter, Direction};

use super::{
    awaited::Unanswered,
    cause::Cause,
    dropped::Dropped,
    finding::{Confidence, Finding, Who},
    item::Item,
    listening::Queues,
    model::Model,
    service::{Processes, Service},
    words,
};
use crate::{
    accounting::{Human, Losses},
    message::counted,
    packet::event::Protocol,
};

/// Datagrams and segments dropped at sockets that make a cause. Sockets that close drop some.
const LEAST_DROPPED: u64 = 10;
const LEAST_DROPPED_PERCENT: u64 = 1;
/// Handshakes that a full queue drops, likewise; and from how many on they are no accident.
const LEAST_OVERFLOWS: u64 = 5;
const MANY: u64 = 30;
/// TCP tries a handshake again after so long at the earliest, ns (`TCP_TIMEOUT_INIT`), and sends a segment again (`TCP_RTO_MIN`). Who waits
/// for what a datagram asks for waits longer than that.
const AGAIN_NS: u128 = 1_000_000_000;
const LOST_NS: u128 = 200_000_000;

/// The places where most packets of that service's port were dropped.
pub(super) fn places(model: &Model, service: &Service) -> Vec<String> {
    /// More are no help.
    const MOST: usize = 3;
    let is_its = |drop: &&Dropped| (drop.protocol, drop.port) == (service.protocol, service.port);
    let mut all: Vec<_> = model.drops.iter().filter(is_its).collect();
    all.sort_by_key(|drop| Reverse(drop.count));
    all.into_iter().take(MOST).map(words::dropped_in).collect()
}

/// Whether what that service asks for in vain is dropped at the sockets of who should answer, as one of these says.
pub(super) fn is_dropped_by_peer(service: &Service, found: &[Finding], model: &Model) -> bool {
    let Some(peer) = model.peer(service).map(|peer| Who::of(peer, Direction::In)) else { return false };
    let is_it = |finding: &Finding| {
        let is_its = finding.who.as_ref().is_some_and(|who| who.is_same(&peer));
        is_its && finding.cause == Cause::SocketDrop && finding.affected * 2 >= service.unanswered.datagrams
    };
    found.iter().any(is_it)
}

/// The services whose sockets drop much of what they get, and the machine for drops of unknown sockets.
pub(super) fn socket_drops(losses: &Losses, model: &Model) -> Vec<Finding> {
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
        // They are told by themselves.
        if model.listening.dropping(sockets).is_some_and(|queues| queues.overflows * 2 >= dropped) {
            continue;
        }
        let one = if let [service] = its.as_slice() { Some(*service) } else { None };
        let asks = |client: &&Service| {
            model.peer(client).is_some_and(|asked| one.is_some_and(|one| ptr::eq(asked, one)))
        };
        let mut in_vain = Unanswered::default();
        model.services.iter().filter(asks).for_each(|client| in_vain.join(&client.unanswered));
        let mut finding = drop_finding(dropped, seen);
        if in_vain.datagrams > 0 {
            let requests = counted(in_vain.datagrams, "request");
            let waited = Human(in_vain.waited_ns);
            finding
                .evidence
                .push(format!("{requests} had no answer; its clients waited {waited} for these in all"));
        }
        let (port, protocol, direction) = (sockets.port, Protocol::of(sockets.protocol), Direction::In);
        let nobody = Who { process: None, processes: Processes::Unknown, port, protocol, direction };
        let who = one.map_or(nobody, |service| Who::of(service, direction));
        let kind = if protocol == Protocol::Udp { 'u' } else { 't' };
        let end = if sockets.is_client == 0 { 's' } else { 'd' };
        found.push(Finding {
            who: Some(who),
            confidence: if one.is_some() { Confidence::High } else { Confidence::Medium },
            next: {
                let command = format!("ss -{kind}amnp '{end}port = :{port}'");
                one.map_or(command.clone(), |service| words::inside(service, &command))
            },
            pid: one.map_or(0, |service| service.pid),
            // Others may have been lost elsewhere.
            weight: u128::from(dropped) * LOST_NS
                + u128::from(in_vain.waited_ns) * u128::from(dropped.min(in_vain.datagrams))
                    / u128::from(in_vain.datagrams.max(1)),
            ..finding
        });
    }
    if is_much(left, all) {
        found.push(drop_finding(left, all));
    }
    found
}

/// The services of which much is dropped before it gets to a socket, unless `found` has its effects: with these the places are told.
pub(super) fn packet_drops(model: &Model, found: &[Finding]) -> Vec<Finding> {
    let mut told: Vec<(Protocol, u16)> = Vec::new();
    let is_effect = |finding: &&Finding| {
        matches!(finding.cause, Cause::Retransmission | Cause::Unanswered | Cause::Qdisc)
    };
    for finding in found.iter().filter(is_effect) {
        told.extend(finding.who.iter().chain(&finding.also).map(|who| (who.protocol, who.port)));
    }
    let mut all = Vec::new();
    // A service before its clients.
    let mut services: Vec<_> = model.services.iter().collect();
    services.sort_by_key(|service| service.is_client);
    for service in services {
        let of = (service.protocol, service.port);
        if told.contains(&of) {
            continue;
        }
        told.push(of);
        let is_its = |drop: &&Dropped| (drop.protocol, drop.port) == of && drop.is_before_sockets();
        let dropped: u64 = model.drops.iter().filter(is_its).map(|drop| drop.count).sum();
        let ends = model.services.iter().filter(|other| (other.protocol, other.port) == of);
        let seen: u64 = ends.flat_map(|end| &end.sides).map(|side| side.packets).sum();
        let seen = seen.saturating_add(dropped);
        if is_much(dropped, seen) {
            let cause = Cause::PacketDrop;
            all.push(Finding {
                who: Some(Who::of(service, Direction::In)),
                packets: seen,
                affected: dropped,
                confidence: if dropped >= MANY { Confidence::High } else { Confidence::Medium },
                evidence: places(model, service),
                next: words::next(cause, Item::Socket, service),
                weight: u128::from(dropped) * LOST_NS,
                pid: service.pid,
                ..words::finding(cause, Item::Socket)
            });
        }
    }
    all
}

fn is_much(dropped: u64, seen: u64) -> bool {
    dropped >= LEAST_DROPPED && dropped.saturating_mul(100) >= seen.saturating_mul(LEAST_DROPPED_PERCENT)
}

/// Whether it threw so many handshakes away that it matters.
pub(super) fn is_often_full(queues: &Queues) -> bool {
    queues.overflows >= LEAST_OVERFLOWS
        && queues.overflows.saturating_mul(100) >= queues.accepted.saturating_mul(LEAST_DROPPED_PERCENT)
}

/// The services whose accept queues were full, without those that `found` already names.
pub(super) fn overflows(model: &Model, found: &[Finding]) -> Vec<Finding> {
    let cause = Cause::AcceptLate;
    let overflow = |(&(netns, port), queues): (&(u32, u16), &Queues)| {
        let service = model.services.iter().find(|service| service.listens(netns, port));
        let pid = service.map_or(queues.pid, |service| service.pid);
        let is_known = |found: &Finding| found.cause == cause && found.pid == pid && pid > 0;
        (is_often_full(queues) && !found.iter().any(is_known)).then(|| Finding {
            who: Some(service.map_or_else(|| queues.who(port), |service| Who::of(service, Direction::In))),
            packets: queues.overflows + queues.accepted,
            affected: queues.overflows,
            confidence: if queues.overflows >= MANY { Confidence::High } else { Confidence::Medium },
            sentence: words::OVERFLOW.to_owned(),
            brief: "its accept queue is full",
            evidence: vec![words::overflowed(queues)],
            next: {
                let command = format!("ss -ltn 'sport = :{port}'");
                service.map_or(command.clone(), |service| words::inside(service, &command))
            },
            weight: u128::from(queues.overflows) * AGAIN_NS,
            pid,
            ..words::finding(cause, Item::Wait)
        })
    };
    let mut all: Vec<_> = model.listening.all().collect();
    all.sort_unstable_by_key(|(place, _)| **place);
    all.into_iter().filter_map(overflow).collect()
}

/// `dropped` of the packets seen were dropped, at an unknown socket.
fn drop_finding(dropped: u64, seen: u64) -> Finding {
    Finding {
        packets: seen,
        affected: dropped,
        evidence: vec![format!("{dropped} of {seen} packets were dropped after they reached TCP or UDP")],
        next: "nstat -az UdpRcvbufErrors TcpExtTCPBacklogDrop TcpExtTCPRcvQDrop".to_owned(),
        ..words::finding(Cause::SocketDrop, Item::Socket)
    }
}
