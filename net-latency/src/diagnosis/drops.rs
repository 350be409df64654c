//! Who drops what it gets.

use net_latency_common::{Counter, Direction};

use super::{
    cause::Cause,
    finding::{Confidence, Finding, Who},
    item::Item,
    model::{Model, Processes},
    words,
};
use crate::{accounting::Losses, packet::event::Protocol};

/// Datagrams and segments dropped at sockets that make a cause. Sockets that close drop some.
const LEAST_DROPPED: u64 = 10;
const LEAST_DROPPED_PERCENT: u64 = 1;

/// Those whose sockets drop what they get, if they drop much, and the machine where whose is not known.
pub(super) fn socket_drops(losses: &Losses, model: &Model) -> Vec<Finding> {
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
            next: {
                let command = format!("ss -{kind}amnp '{end}port = :{port}'");
                one.map_or(command.clone(), |service| words::inside(service, &command))
            },
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
        also: Vec::new(),
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
        within: words::within(Cause::SocketDrop, Item::Socket),
        evidence: vec![format!("{dropped} of {seen} packets were dropped after they reached TCP or UDP")],
        cpu_held_by: None,
        next: "nstat -az UdpRcvbufErrors TcpExtTCPBacklogDrop TcpExtTCPRcvQDrop".to_owned(),
        answers: None,
        weight: 0,
        pid: 0,
    }
}
