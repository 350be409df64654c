//! Requests without an answer, and bytes without an ACK.

use net_latency_common::Direction;

use super::{
    awaited::{LEAST_ROW, Unanswered},
    cause::Cause,
    drops::{is_dropped_by_peer, places},
    finding::{Confidence, Finding, Who},
    item::Item,
    model::Model,
    service::Service,
    words,
};
use crate::{accounting::Human, message::counted, packet::event::Protocol};

/// Requests without an answer that make a cause: N, and this percentage of all.
const LEAST_UNANSWERED: u64 = 3;
const LEAST_UNANSWERED_PERCENT: u64 = 1;
/// From N on they are no accident.
const MANY: u64 = 10;

/// Those that wait in vain for much, unless `found` says why.
pub(super) fn unanswered(model: &Model, found: &[Finding]) -> Vec<Finding> {
    let all = |service| {
        let datagrams = datagrams(service).filter(|_| !is_dropped_by_peer(service, found, model));
        let told = [datagrams, connections(service)].into_iter().flatten();
        told.map(move |mut finding| {
            finding.evidence.extend(places(model, service));
            finding
        })
    };
    model.services.iter().flat_map(all).collect()
}

fn datagrams(service: &Service) -> Option<Finding> {
    let Unanswered { datagrams, waited_ns, .. } = service.unanswered;
    let sent = service.side(Direction::Out).packets;
    let is_much = datagrams >= LEAST_UNANSWERED && datagrams * 100 >= sent * LEAST_UNANSWERED_PERCENT;
    // Who never gets an answer may not expect any.
    let is_asking = service.protocol == Protocol::Udp && service.answers.count() > 0;
    (is_much && is_asking).then(|| Finding {
        packets: sent,
        affected: datagrams,
        confidence: if datagrams >= MANY { Confidence::High } else { Confidence::Medium },
        evidence: vec![
            format!("{datagrams} of {sent} requests had no answer within a second or more"),
            format!("it waited {} for these in all", Human(waited_ns)),
        ],
        weight: waited_ns.into(),
        ..finding(service)
    })
}

fn connections(service: &Service) -> Option<Finding> {
    let Unanswered { connections, dead_ns, .. } = service.unanswered;
    (connections > 0).then(|| Finding {
        packets: service.side(Direction::Out).packets,
        affected: connections,
        sentence: words::NO_ACK.to_owned(),
        evidence: vec![format!(
            "on {} TCP's timer sent the same bytes {LEAST_ROW} times or more, and nothing came back: {} in all",
            counted(connections, "connection"),
            Human(dead_ns)
        )],
        weight: dead_ns.into(),
        ..finding(service)
    })
}

fn finding(service: &Service) -> Finding {
    let (cause, item) = (Cause::Unanswered, Item::Resend);
    Finding {
        who: Some(Who::of(service, Direction::Out)),
        next: words::next(cause, item, service),
        pid: service.pid,
        ..words::finding(cause, item)
    }
}
