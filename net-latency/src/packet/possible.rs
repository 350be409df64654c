//! Which times a packet can have had. A stamp from before tracing began, or from before that of an earlier stage, is another packet's or
//! none at all, and there is no part of a time that is not known. A record with such a time is refused and counted: a number that may be
//! wrong is not shown.

use std::net::SocketAddr;

use net_latency_common::{
    Direction, IPPROTO_UDP, PART_FINISHED, PART_GAP, PART_WAIT, PARTS, PacketRecord, STAMP_APP, STAMP_DRV,
    STAMP_IP, STAMP_TRANSPORT, Served, part,
};

use super::{
    event::{Event, completion_ns},
    stages::dir,
};

/// When a packet was finished of which every stamp is known, and can be its packet's ([`is_possible`]), as of nearly all: that is its last
/// one then. `None` says nothing of the others: so the view's loop has a few comparisons for each record, and a call for few.
#[must_use]
#[inline]
pub(crate) fn finished_in_order(record: &PacketRecord, since: u64) -> Option<u64> {
    // Where the first stamp is known, so are those behind it.
    let since = since.max(1);
    let [drv, ip] = [record.stamps[STAMP_DRV], record.stamps[STAMP_IP]];
    let [transport, app] = [record.stamps[STAMP_TRANSPORT], record.stamps[STAMP_APP]];
    if record.direction == Direction::In as u8 {
        let again = record.other;
        let is_entered_in_order = again == 0 || (again >= drv && ip >= again);
        (drv >= since && ip >= drv && is_entered_in_order && transport >= ip && app >= transport)
            .then_some(app)
    } else {
        (app >= since && transport >= app && ip >= transport && drv >= ip).then_some(drv)
    }
}

/// Whether all times of a record can be its packet's, of programs of which none ran before `since` (ns of `CLOCK_MONOTONIC`):
///
/// - No stamp is from before that, and of those that are known each is at least as late as those of the stages before it.
/// - An incoming packet's parts add up to its last stage, or all are unknown, as they are where that is.
/// - An outgoing one's take no longer than from then until its line was finished.
///
/// When TCP first sent what it sends again is not looked at: the kernel itself noted that, maybe long ago.
#[must_use]
#[inline(never)]
pub(crate) fn is_possible(record: &PacketRecord, parts: Option<&[u64; PARTS]>, since: u64) -> bool {
    let [drv, ip] = [record.stamps[STAMP_DRV], record.stamps[STAMP_IP]];
    let [transport, app] = [record.stamps[STAMP_TRANSPORT], record.stamps[STAMP_APP]];
    let follow = if record.direction == Direction::In as u8 {
        // Where it entered the stack more than once, the last entry comes before IP.
        follow_each_other([drv, record.other, ip, transport, app], since)
    } else {
        follow_each_other([app, transport, ip, drv], since)
    };
    follow && parts.is_none_or(|parts| are_possible(parts, record, completion_ns(record), since))
}

/// Whether parts can be those of a packet whose stamps can be its own, and that was finished at `completion_ns`.
#[must_use]
#[inline]
pub(crate) fn are_possible(
    parts: &[u64; PARTS],
    record: &PacketRecord,
    completion_ns: u64,
    since: u64,
) -> bool {
    if record.direction == Direction::In as u8 {
        split(parts, record.protocol, record.stamps[STAMP_TRANSPORT], record.stamps[STAMP_APP])
    } else {
        follow(parts, completion_ns, since)
    }
}

/// Whether the work for an answer, whose line was complete at `finished_ns`, can have been done since `since`.
#[inline]
pub(crate) fn could_serve(served: &Served, finished_ns: u64, since: u64) -> bool {
    match part(served.all) {
        Ok(all) => all <= finished_ns.saturating_sub(since) && served.on_cpu().is_some(),
        Err(_) => *served == Served { all: served.all, ..Served::NONE },
    }
}

/// Whether stamps, 0 for one that is not known, are in their order, and none is from before `since`.
#[inline]
fn follow_each_other<const N: usize>(stamps: [u64; N], since: u64) -> bool {
    let mut latest = since;
    let mut is_so = true;
    for stamp in stamps {
        is_so &= stamp == 0 || stamp >= latest;
        latest = latest.max(stamp);
    }
    is_so
}

/// Whether an incoming packet's parts are those of its last stage.
#[inline]
fn split(parts: &[u64; PARTS], protocol: u8, transport: u64, app: u64) -> bool {
    // A datagram has no gap.
    let first = if protocol == IPPROTO_UDP { PART_WAIT } else { PART_GAP };
    let mut parts = parts[first..].iter().map(|value| part(*value).ok());
    if transport == 0 || app == 0 {
        return parts.all(|time| time.is_none());
    }
    match parts.clone().try_fold(0u64, |sum, time| time.map(|time| sum.saturating_add(time))) {
        Some(sum) => sum == app - transport,
        None => parts.all(|time| time.is_none()),
    }
}

/// Whether an outgoing packet's parts fit between `since` and the end of its line, which is not before its last stamp.
#[inline]
fn follow(parts: &[u64; PARTS], last: u64, since: u64) -> bool {
    let finished = parts[PART_FINISHED];
    let longest = finished.wrapping_sub(since);
    let is_short = |value: &u64| *value <= longest || part(*value).is_err();
    part(finished).is_ok() && finished >= last.max(since) && parts[..PART_FINISHED].iter().all(is_short)
}

/// All that such a record says of times, and what tells its packet, in one line.
pub(crate) fn describe(record: &PacketRecord, parts: Option<&[u64; PARTS]>, since: u64) -> String {
    let event = Event::new(record, 0, None);
    let [source, destination]: [SocketAddr; 2] = event.ends();
    let flags: Vec<_> = event.flags().collect();
    let [drv, ip, transport, app] = record.stamps;
    let parts = parts.map_or_else(String::new, |parts| {
        let times =
            parts.map(|value| part(value).map_or_else(|reason| format!("{reason:?}"), |ns| ns.to_string()));
        format!("; parts {}", times.join(" "))
    });
    format!(
        "{} {} {source} > {destination} seq {} len {} flags {flags:?}; drv {drv} ip {ip} {} {transport} app {app} \
         other {}{parts}; tracing since {since}",
        dir(event.direction()),
        event.protocol().name(),
        record.seq,
        record.len,
        event.protocol().name(),
        record.other,
    )
}

#[cfg(test)]
mod tests {
    use net_latency_common::{Unknown, unknown_part, unknown_parts};
    use proptest::prelude::*;

    use super::*;
    use crate::packet::{
        event::{
            finished_ns,
            fixtures::{incoming, outgoing, udp},
        },
        stages,
    };

    /// Before the stamps of the fixtures.
    const SINCE: u64 = 900_000;
    const UNKNOWN: u64 = unknown_part(Unknown::ReaderUnseen);

    fn changed(mut record: PacketRecord, changes: &[(usize, u64)]) -> PacketRecord {
        for &(stamp, at) in changes {
            record.stamps[stamp] = at;
        }
        record
    }

    #[test]
    fn what_packets_have_is_possible() {
        for record in [incoming(), outgoing(), udp(incoming()), udp(outgoing())] {
            assert!(is_possible(&record, None, SINCE));
            for stamp in 0..record.stamps.len() {
                assert!(is_possible(&changed(record, &[(stamp, 0)]), None, SINCE), "without {stamp}");
            }
            assert!(is_possible(&changed(record, &[(0, 0), (1, 0), (2, 0), (3, 0)]), None, SINCE));
            // A clock has steps.
            let same = record.stamps[0];
            assert!(is_possible(&changed(record, &[(1, same), (2, same), (3, same)]), None, SINCE));
        }
    }

    #[test]
    fn stamps_out_of_order_are_not() {
        for stamp in 0..incoming().stamps.len() {
            let [record, out] = [incoming(), outgoing()];
            let is_first = stamp == STAMP_DRV;
            let other = if is_first { u64::MAX >> 1 } else { record.stamps[stamp - 1] - 1 };
            assert!(!is_possible(&changed(record, &[(stamp, other)]), None, 0), "{stamp} in");
            let is_last = stamp == STAMP_DRV;
            let other = if is_last { out.stamps[stamp + 1] - 1 } else { out.stamps[stamp - 1] + 1 };
            assert!(!is_possible(&changed(out, &[(stamp, other)]), None, 0), "{stamp} out");
        }
        // Also with unknown ones between them.
        let record = incoming();
        let before = record.stamps[STAMP_DRV] - 1;
        let far = changed(record, &[(STAMP_IP, 0), (STAMP_TRANSPORT, 0), (STAMP_APP, before)]);
        assert!(!is_possible(&far, None, 0));
    }

    #[test]
    fn stamps_from_before_tracing_are_not() {
        for record in [incoming(), outgoing()] {
            let first = *record.stamps.iter().min().expect("four");
            assert!(is_possible(&record, None, first));
            assert!(!is_possible(&record, None, first + 1));
        }
    }

    #[test]
    fn the_last_entry_is_between_the_first_and_ip() {
        let record = incoming();
        for (other, is_so) in
            [(0, true), (1_000_000, true), (1_023_999, true), (999_999, false), (1_024_000, false)]
        {
            let record = PacketRecord { other, ..record };
            assert_eq!(is_possible(&record, None, SINCE), is_so, "{other}");
        }
        // The kernel's own note of a first send is no stage.
        for other in [1, 5_000_000] {
            assert!(is_possible(&PacketRecord { other, ..outgoing() }, None, SINCE));
        }
    }

    #[test]
    fn parts_in_are_all_of_the_last_stage_or_none() {
        // 189,500 ns.
        for (parts, is_so) in [
            ([0, 0, 0, 189_500], true),
            ([100_000, 80_000, 9_500, 0], true),
            ([UNKNOWN; PARTS], true),
            ([0, 0, 0, 189_499], false),
            ([UNKNOWN, 0, 0, 189_500], false),
            ([UNKNOWN, UNKNOWN, UNKNOWN, 189_500], false),
            ([u64::MAX >> 1, u64::MAX >> 1, 189_502, 0], false),
        ] {
            assert_eq!(is_possible(&incoming(), Some(&parts), SINCE), is_so, "{parts:?}");
        }
        let datagram = udp(incoming());
        assert!(is_possible(&datagram, Some(&[0, 0, 0, 189_500]), SINCE));
        assert!(!is_possible(&datagram, Some(&[9, 0, 0, 189_491]), SINCE));
    }

    #[test]
    fn there_is_no_part_without_a_whole() {
        for stamp in [STAMP_TRANSPORT, STAMP_APP] {
            let control = changed(incoming(), &[(stamp, 0)]);
            assert!(is_possible(
                &control,
                Some(&unknown_parts(Direction::In, Unknown::NoStamp, || 7)),
                SINCE
            ));
            // As control packets had once: the machine's uptime.
            assert!(!is_possible(&control, Some(&[UNKNOWN, UNKNOWN, UNKNOWN, 5_000_000]), SINCE));
            assert!(!is_possible(&control, Some(&[0; PARTS]), SINCE));
        }
    }

    #[test]
    fn parts_out_are_within_the_run() {
        // Its last stamp: 1,012,000.
        for (parts, is_so) in [
            ([0, 0, 0, 1_012_000], true),
            ([8_000, 2_000, 70_000, 1_090_000], true),
            ([UNKNOWN, UNKNOWN, UNKNOWN, 1_012_000], true),
            ([UNKNOWN, 112_001, 0, 1_012_000], false),
            ([0, 0, 0, 1_011_999], false),
            ([0, 0, 0, 0], false),
            ([0, 0, 0, UNKNOWN], false),
        ] {
            assert_eq!(is_possible(&outgoing(), Some(&parts), SINCE), is_so, "{parts:?}");
        }
    }

    #[test]
    fn one_line_describes_it() {
        let control = changed(incoming(), &[(STAMP_APP, 0)]);
        insta::assert_snapshot!(describe(&control, Some(&[UNKNOWN, UNKNOWN, UNKNOWN, 5_000]), SINCE));
    }

    /// Stamps of which many are unknown, in or out of order.
    fn any_stamps() -> impl Strategy<Value = [u64; 4]> {
        let stamp = || prop_oneof![Just(0), 1..50u64, 950_000..1_000_000u64, any::<u64>()];
        [stamp(), stamp(), stamp(), stamp()]
    }

    fn any_parts() -> impl Strategy<Value = [u64; PARTS]> {
        let value = || prop_oneof![Just(UNKNOWN), Just(0), 0..50_000u64, 900_000..1_100_000u64, any::<u64>()];
        [value(), value(), value(), value()]
    }

    proptest! {
        #[test]
        fn all_times_of_what_is_possible_are_within_the_run(
            stamps in any_stamps(), sorts: bool, other in any_stamps(), parts in any_parts(), adds_up: bool,
            is_out: bool, is_udp: bool, since in prop_oneof![Just(1), 900_000..1_000_000u64],
        ) {
            let mut stamps = stamps;
            if sorts {
                stamps.sort_unstable();
                if is_out {
                    stamps.reverse();
                }
            }
            let mut parts = parts;
            if adds_up && !is_out {
                parts = [0, 0, 0, stamps[STAMP_APP].wrapping_sub(stamps[STAMP_TRANSPORT])];
            }
            let record = if is_out { outgoing() } else { incoming() };
            let record = PacketRecord { stamps, other: other[0], ..record };
            let record = if is_udp { udp(record) } else { record };
            let in_order = finished_in_order(&record, since);
            let is_known = !stamps.contains(&0) && is_possible(&record, None, since);
            prop_assert_eq!(in_order, is_known.then(|| completion_ns(&record)));
            if is_possible(&record, Some(&parts), since) {
                let event = Event::new(&record, 0, None).with_parts(Some(&parts));
                let run = finished_ns(&record, Some(&parts)).saturating_sub(since);
                let (direction, protocol) = (event.direction(), event.protocol());
                let times = event.parts().expect("it has parts");
                let parts = stages::parts(direction, protocol).map(|(part, _)| times[part]);
                let shown = event.stages().into_iter().chain([event.total_ns(), event.last_drv_ip_ns()]);
                for ns in shown.chain(parts).flatten() {
                    prop_assert!(ns <= run, "{ns} of {run}");
                }
                // None is unknown because it would be negative.
                let known = |from: usize, to: usize| record.stamps[from] != 0 && record.stamps[to] != 0;
                prop_assert_eq!(event.total_ns().is_some(), known(STAMP_DRV, STAMP_APP));
                if !is_out && let [_, _, None] = event.stages() {
                    prop_assert_eq!(&times[PART_WAIT..], [None; 3]);
                }
            }
        }
    }
}
