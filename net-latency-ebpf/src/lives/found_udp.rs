//! What the simulator has found in what UDP receives: the shortest history of each fault.

use net_latency_common::PID_ALONE;

use super::{
    history::{Fate, History, Step},
    processes::Filter,
    udp_in::{Step::Comes, Step::Take, Taking::Whole},
    world::Kernel,
};

const PLAIN: Kernel = Kernel { shows_tcp_drops: true, is_direct: false, is_rt: false };

/// Runs these steps several times: which programs are skipped is drawn anew.
fn run(kernel: Kernel, skips: u32, steps: &[Step]) {
    for seed in 1..200 {
        History { kernel, seed, skips, ..History::of(steps) }.expect_true();
    }
}

const fn comes(segs: u8) -> Step {
    comes_as(segs, 0)
}

const fn comes_as(segs: u8, kind: u8) -> Step {
    Step::Datagram(Comes { cpu: 0, target: 0, len: 1, segs, kind, goes: true })
}

const fn go(how: Fate) -> Step {
    Step::Go { cpu: 0, how }
}

const TAKE: Step = Step::Datagram(Take { cpu: 0, task: 0, socket: 0, how: Whole });

/// Where softirqs are preempted: behind the first of two merged packets of the same ports comes the second. The first one's segments
/// had the second one's times.
#[test]
fn segments_are_those_of_their_own_softirq() {
    let steps = [comes(3), comes(4), go(Fate::Waits), go(Fate::Plain), TAKE, TAKE];
    run(Kernel { is_rt: true, ..PLAIN }, 0, &steps);
}

/// Between merged packets and their segments comes an skb that has the merged one's address, and the program of `udp_rcv` is skipped for
/// it.
#[test]
fn what_comes_between_is_not_what_was_merged() {
    let steps = [comes(3), comes(0), TAKE];
    run(Kernel { is_rt: true, ..PLAIN }, 2, &steps);
}

/// The first segment of a list is the merged skb itself. Where the socket had no room for it, the others' time at UDP was not known.
#[test]
fn a_list_goes_on_without_its_first_segment() {
    run(PLAIN, 0, &[comes_as(2, 4), go(Fate::Ends), go(Fate::Plain), TAKE]);
}

/// A segment is dropped before its socket's queue, and then the program of `udp_rcv` is skipped for a datagram of the same ports. That had
/// the merged one's times.
#[test]
fn a_segment_that_is_dropped_was_the_last_one() {
    let steps = [comes(2), go(Fate::Plain), go(Fate::Dropped), comes(0), TAKE, TAKE];
    run(PLAIN, 2, &steps);
}

/// On PREEMPT_RT a datagram of others comes between a multicast one's two hooks, and is not followed. The clone that had its skb next had
/// its times.
#[test]
fn what_is_not_followed_leaves_nothing() {
    let to = |target, goes| Step::Datagram(Comes { cpu: 0, target, len: 1, segs: 0, kind: 0, goes });
    let take = |task, socket| Step::Datagram(Take { cpu: 0, task, socket, how: Whole });
    let steps = [
        to(0, true),
        take(1, 0),
        to(3, false),
        go(Fate::Plain),
        go(Fate::Plain),
        to(0, true),
        take(0, 0),
        go(Fate::Plain),
        take(0, 3),
    ];
    for seed in 1..200 {
        let kernel = Kernel { is_rt: true, ..PLAIN };
        History { kernel, seed, filter: Filter::Set([PID_ALONE, 0, 0]), ..History::of(&steps) }.expect_true();
    }
}

/// A merged datagram is not followed, and the kernel skips UDP's program for the next one, which has the first one's skb.
#[test]
fn what_was_merged_and_is_not_followed_leaves_nothing() {
    let to = |target, segs| Step::Datagram(Comes { cpu: 0, target, len: 1, segs, kind: 0, goes: true });
    let take = |task, socket| Step::Datagram(Take { cpu: 0, task, socket, how: Whole });
    let steps = [to(0, 0), to(0, 0), take(1, 0), to(0, 3), to(7, 0), take(0, 8)];
    for seed in 1..400 {
        History { seed, skips: 6, filter: Filter::Set([PID_ALONE, 0, 0]), ..History::of(&steps) }
            .expect_true();
    }
}
