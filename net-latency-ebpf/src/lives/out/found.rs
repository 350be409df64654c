//! The shortest histories that have shown a fault of what goes out, each red before its mend.

use std::vec::Vec;

use net_latency_common::PID_ALONE;

use super::{
    super::{
        found::GOES,
        history::{Fate as InFate, History, Segment, Step},
        processes::Filter,
        tcp_in::Reading,
        wanted::Wanted,
        world::Kernel,
    },
    Fate, Step as Out, Then, Way, Who,
    tcp::Step::{self as Tcp, Push, Resend, Write},
    udp::Step::{Close, Reply, Send, Uncork},
};
use crate::lives::udp_in::{
    Step::{Close as CloseReceiver, Comes, Take},
    Taking,
};

const WAITS: Way = Way { fate: Fate::Waits, ..Way::PLAIN };
const CUT: Way = Way { fate: Fate::Segmented, ..Way::PLAIN };
const SOFTIRQ: Way = Way::PLAIN;

fn tcp(step: Tcp) -> Step {
    Step::Out(Out::Tcp(step))
}

/// A task writes N times five bytes by a socket, which sends one skb.
fn write(task: u8, socket: u8, size: u8, way: Way) -> Step {
    tcp(Write { task, socket, size, copied: 12, waits: false, sends: 1, way })
}

fn send(task: u8, more: bool, way: Way) -> Step {
    Step::Out(Out::Udp(Send { task, socket: 0, len: 2, more, fails: false, way }))
}

fn resume(which: u8, who: Who, way: Way) -> Step {
    Step::Out(Out::Resume { which, who, way })
}

fn again(way: Way) -> Step {
    tcp(Resend { who: Who::Softirq, socket: 0, which: 0, cuts: false, joins: false, way })
}

fn holds(steps: &[Step]) {
    run(steps, 40, false);
}

/// With `--stages fine`, where whether a device can do GSO is drawn too.
fn holds_fine(steps: &[Step]) {
    run(steps, 400, true);
}

fn run(steps: &[Step], seeds: u64, fine: bool) {
    // The state before tracing, and the numbers at which streams begin, are drawn at random.
    for seed in 1..seeds {
        for is_direct in [false, true] {
            let plain = History::of(steps);
            let kernel = Kernel { is_direct, ..plain.kernel };
            History { kernel, seed, fine, control: fine, ..plain }.expect_true();
        }
    }
}

#[test]
fn what_was_written_before_tracing_is_not_of_who_writes_first() {
    let pushed = tcp(Push { who: Who::Softirq, socket: 0, sends: 1, cuts: false, way: SOFTIRQ });
    holds(&[
        tcp(Write { task: 0, socket: 0, size: 2, copied: 12, waits: false, sends: 0, way: SOFTIRQ }),
        pushed,
    ]);
}

#[test]
fn what_waits_when_its_socket_goes_is_counted() {
    holds(&[write(0, 2, 2, WAITS), tcp(Tcp::Close { socket: 2 })]);
    holds(&[write(0, 0, 2, WAITS), Step::Close { connection: 0 }]);
}

#[test]
fn a_corked_datagram_is_of_who_began_it() {
    // Two threads complete each other's.
    holds(&[
        send(0, true, SOFTIRQ),
        send(1, false, SOFTIRQ),
        send(1, true, SOFTIRQ),
        send(0, false, SOFTIRQ),
    ]);
}

#[test]
fn a_segment_of_an_earlier_transmission_is_not_this_ones() {
    holds(&[
        write(0, 2, 8, CUT),
        tcp(Resend { who: Who::Softirq, socket: 2, which: 0, cuts: false, joins: false, way: CUT }),
        resume(0, Who::Softirq, SOFTIRQ),
    ]);
    holds(&[write(0, 0, 8, CUT), again(CUT), resume(0, Who::Softirq, SOFTIRQ)]);
}

#[test]
fn a_segment_does_not_have_what_ip_stamped_under_its_address() {
    holds(&[
        write(0, 2, 10, CUT),
        resume(0, Who::Softirq, SOFTIRQ),
        write(0, 2, 1, Way { fate: Fate::Segmented, is_late: true, meets: true, then: Then::Freed }),
        resume(0, Who::Softirq, Way { meets: true, ..SOFTIRQ }),
        Step::Out(Out::Udp(Reply { way: Way { meets: true, ..SOFTIRQ } })),
    ]);
}

#[test]
fn a_datagram_that_waited_is_not_another_threads() {
    holds(&[
        send(1, false, WAITS),
        resume(0, Who::Softirq, SOFTIRQ),
        send(0, false, WAITS),
        resume(0, Who::Task(1), SOFTIRQ),
    ]);
}

#[test]
fn a_copy_at_the_address_of_what_ended_unseen_is_not_that() {
    holds(&[
        write(0, 2, 2, SOFTIRQ),
        tcp(Tcp::Control { who: Who::Softirq, socket: 0, probes: false, way: WAITS }),
        write(0, 0, 2, Way { fate: Fate::Cloned, ..SOFTIRQ }),
        tcp(Resend {
            who: Who::Softirq,
            socket: 2,
            which: 0,
            cuts: false,
            joins: false,
            way: Way { fate: Fate::Copied, ..SOFTIRQ },
        }),
        resume(0, Who::Softirq, Way { fate: Fate::Copied, ..SOFTIRQ }),
    ]);
}

#[test]
fn what_is_sent_again_is_not_of_who_writes_while_it_waits() {
    holds(&[
        write(0, 2, 8, SOFTIRQ),
        tcp(Write { task: 0, socket: 2, size: 2, copied: 0, waits: false, sends: 0, way: SOFTIRQ }),
        tcp(Resend { who: Who::Softirq, socket: 2, which: 0, cuts: false, joins: false, way: WAITS }),
        tcp(Write { task: 1, socket: 2, size: 2, copied: 12, waits: false, sends: 0, way: SOFTIRQ }),
        resume(0, Who::Softirq, SOFTIRQ),
    ]);
}

#[test]
fn segments_of_another_one_are_not_what_ended_unseen() {
    holds(
        &[write(0, 0, 2, WAITS), again(Way { fate: Fate::Cloned, ..SOFTIRQ }), resume(0, Who::Softirq, CUT)]
            .into_iter()
            .chain([resume(0, Who::Softirq, SOFTIRQ); 2])
            .collect::<Vec<_>>(),
    );
}

#[test]
fn bytes_of_a_call_that_waits_are_not_the_next_ones() {
    let waits =
        |task, copied| tcp(Write { task, socket: 2, size: 4, copied, waits: true, sends: 1, way: SOFTIRQ });
    let goes_on = |task| tcp(Tcp::Continue { task, copied: 12, waits: false, sends: 1, way: SOFTIRQ });
    holds(&[waits(0, 1), waits(1, 0), goes_on(0), goes_on(1)]);
}

/// A control packet is dropped by its device's queue, and its skb lies where a datagram was that ended unseen: only that one's end was
/// noted. The next skb at the address, a segment that GSO made, lent the packet its driver's time.
#[test]
fn what_is_dropped_is_not_only_what_had_its_address_before() {
    holds_fine(&[
        tcp(Write { task: 0, socket: 0, size: 10, copied: 12, waits: false, sends: 0, way: Way::PLAIN }),
        tcp(Tcp::Ack { socket: 0, len: 12 }),
        write(0, 0, 2, Way { fate: Fate::Teed, ..Way::PLAIN }),
        tcp(Push { who: Who::Softirq, socket: 0, sends: 1, cuts: false, way: Way::PLAIN }),
        Step::Datagram(Comes { cpu: 0, target: 0, len: 1, segs: 0, kind: 0, goes: true }),
        Step::Out(Out::Udp(Close { socket: 1 })),
        Step::Datagram(Take { cpu: 0, task: 0, socket: 0, how: Taking::Unseen }),
        tcp(Tcp::Ack { socket: 0, len: 4 }),
        tcp(Tcp::Control {
            who: Who::Softirq,
            socket: 0,
            probes: false,
            way: Way { then: Then::Dropped, ..Way::PLAIN },
        }),
        tcp(Resend { who: Who::Softirq, socket: 0, which: 0, cuts: false, joins: true, way: Way::PLAIN }),
    ]);
}

/// A tunnel wraps a segment up, and the device below it cuts it into segments, which its address doesn't tell any more. What has that next
/// lent it the time of its driver, and until then it had that of the tunnel's.
#[test]
fn what_a_tunnel_has_wrapped_up_and_gso_cuts_up_is_not_followed() {
    holds_fine(&[
        write(0, 0, 4, Way::PLAIN),
        send(0, false, Way::PLAIN),
        send(0, false, Way::PLAIN),
        write(0, 1, 2, Way { then: Then::Kept, ..Way::PLAIN }),
        write(0, 0, 8, Way { then: Then::Tunnelled, ..Way::PLAIN }),
        Step::Out(Out::Free { which: 0, drops: false }),
        again(Way::PLAIN),
        tcp(Tcp::Ack { socket: 0, len: 12 }),
    ]);
}

/// TCP sends N skbs, and something stops it.
fn push(sends: u8) -> Step {
    tcp(Push { who: Who::Softirq, socket: 0, sends, cuts: false, way: SOFTIRQ })
}

/// All of what had no ACK had arrived or was lost: nothing seemed to wait for one. And what `TCP_NODELAY` makes go, though it was corked,
/// seemed to be held by that.
#[test]
fn what_nagle_holds_waits_for_an_ack() {
    let more = tcp(Write { task: 0, socket: 0, size: 1, copied: 12, waits: false, sends: 0, way: SOFTIRQ });
    let [wait, ack] = [Step::Wait { ms: 1 }, tcp(Tcp::Ack { socket: 0, len: 12 })];
    holds_fine(&[write(0, 0, 3, SOFTIRQ), more, wait, push(1), ack]);
}

/// The last segment of a stream goes at once, even if it is short, and seemed to be held by Nagle's algorithm where something else stopped
/// TCP.
#[test]
fn nagle_does_not_hold_what_has_a_fin() {
    let more = tcp(Write { task: 0, socket: 0, size: 1, copied: 12, waits: false, sends: 0, way: SOFTIRQ });
    let fin = tcp(Tcp::Fin { task: 0, socket: 0, way: SOFTIRQ });
    let [wait, ack] = [Step::Wait { ms: 1 }, tcp(Tcp::Ack { socket: 0, len: 12 })];
    holds_fine(&[write(0, 0, 3, SOFTIRQ), more, fin, push(0), wait, push(1), ack]);
}

/// Where the first process alone is wanted, with control packets and without.
fn holds_for_one(steps: &[Step]) {
    for seed in 1..200 {
        for control in [false, true] {
            History { seed, control, filter: Filter::One(0), ..History::of(steps) }.expect_true();
        }
    }
}

/// An unwanted process begins a datagram, and a wanted one, whose call before failed, completes it.
#[test]
fn what_others_have_begun_is_not_of_who_completes_it() {
    let fails =
        Step::Out(Out::Udp(Send { task: 2, socket: 0, len: 1, more: false, fails: true, way: SOFTIRQ }));
    holds_for_one(&[fails, send(1, true, SOFTIRQ), send(2, false, SOFTIRQ)]);
}

/// A connection's packet in flight has ended unseen, and what it sends next, which is unwanted, has the same address.
#[test]
fn what_nobody_asks_for_is_not_what_was_in_flight() {
    let cloned = Way { fate: Fate::Cloned, ..SOFTIRQ };
    let control = tcp(Tcp::Control {
        who: Who::Task(2),
        socket: 0,
        probes: false,
        way: Way { then: Then::Kept, ..cloned },
    });
    let push = tcp(Push { who: Who::Softirq, socket: 0, sends: 1, cuts: false, way: cloned });
    holds_for_one(&[control, send(0, false, cloned), push]);
}

/// An unwanted segment leaves its stamps under its skb's address, which a datagram gets that GSO cuts up. One that travels meanwhile, and is
/// wanted, lost its own.
#[test]
fn what_is_cut_up_on_its_way_out_says_nothing_of_what_comes_in() {
    let unwanted = Segment { connection: 1, ..GOES };
    let control = Segment { connection: 0, len: 0, goes: false, ..unwanted };
    let read = Step::Read { task: 0, connection: 1, len: 40, how: Reading::Copy };
    let goes = Step::Go { cpu: 0, how: InFate::Plain };
    let datagram =
        Step::Out(Out::Udp(Send { task: 0, socket: 0, len: 4, more: false, fails: false, way: SOFTIRQ }));
    let steps = [Step::Segment(unwanted), Step::Segment(control), read, datagram, goes, datagram, goes];
    for seed in 1..400 {
        let wanted = Some(Wanted::Family);
        History { seed, wanted, control: true, fine: true, ..History::of(&steps) }.expect_true();
    }
}

/// Bytes of a call that was not seen, between those of two others, had the time and the writer of the first: MPTCP gives its subflow the
/// bytes of two calls at once, or the kernel skips the program of a call.
#[test]
fn what_an_unseen_call_wrote_is_not_of_the_one_before() {
    let written =
        |task, size| tcp(Write { task, socket: 1, size, copied: 12, waits: false, sends: 0, way: SOFTIRQ });
    let push = tcp(Push { who: Who::Softirq, socket: 1, sends: 1, cuts: false, way: SOFTIRQ });
    let steps = [written(0, 2), written(1, 10), written(0, 12), push, push, push];
    for seed in 1..400 {
        History { seed, multipath: true, ..History::of(&steps) }.expect_true();
        let plain = History::of(&steps);
        let kernel = Kernel { is_direct: false, ..plain.kernel };
        History { seed, kernel, skips: 2, ..plain }.expect_true();
    }
}

/// Bytes of a call that was not seen went out behind those of another process, which had the name of the rest when that was sent again.
#[test]
fn what_an_unseen_call_wrote_has_no_writer_when_it_is_sent_again() {
    let written =
        |task, sends| tcp(Write { task, socket: 0, size: 2, copied: 12, waits: false, sends, way: SOFTIRQ });
    let resent =
        |which, cuts| tcp(Resend { who: Who::Softirq, socket: 0, which, cuts, joins: false, way: SOFTIRQ });
    let sent = [written(0, 0), written(1, 1), resent(0, true)];
    // Or behind those of a call that the segment had bytes of, too.
    let behind = [written(0, 0), written(0, 0), written(1, 1), resent(0, true), resent(1, true)];
    for steps in [
        [&sent[..], &[resent(1, false)]].concat(),
        [&sent[..], &[written(0, 0), resent(1, false)]].concat(),
        [&behind[..], &[resent(2, false)]].concat(),
        [&behind[..], &[written(0, 0), resent(2, false)]].concat(),
    ] {
        for seed in 1..400 {
            let plain = History::of(&steps);
            let kernel = Kernel { is_direct: false, ..plain.kernel };
            History { seed, kernel, skips: 2, ..plain }.expect_true();
        }
    }
}

/// MPTCP gives its subflow bytes of a call that was not seen, and that all were given of, once more: they had the name of another process,
/// the first that was seen to write.
#[test]
fn what_mptcp_gives_again_is_not_of_who_writes_next() {
    let written =
        |task, sends| tcp(Write { task, socket: 1, size: 2, copied: 12, waits: false, sends, way: SOFTIRQ });
    let steps = [written(1, 1), written(0, 1)];
    for seed in 1..4_000 {
        let plain = History::of(&steps);
        let kernel = Kernel { is_direct: false, ..plain.kernel };
        History { seed, kernel, multipath: true, skips: 4, ..plain }.expect_true();
    }
}

/// `journey` said that an ACK had been written by the socket's last call.
#[test]
fn no_call_has_written_an_ack() {
    let ack = tcp(Tcp::Control { who: Who::Softirq, socket: 0, probes: false, way: SOFTIRQ });
    let steps = [write(0, 0, 2, SOFTIRQ), ack];
    for seed in 1..40 {
        History { seed, journeys: true, control: true, ..History::of(&steps) }.expect_true();
    }
}

/// Two tasks write at a time, of which one waits for room: `journey` said of its bytes that the other one had written them.
#[test]
fn who_wrote_bytes_of_two_calls_at_a_time_is_not_known() {
    let waits = tcp(Write { task: 0, socket: 0, size: 9, copied: 4, waits: true, sends: 0, way: SOFTIRQ });
    let goes_on = tcp(Tcp::Continue { task: 0, copied: 12, waits: false, sends: 1, way: SOFTIRQ });
    let steps = [waits, write(1, 0, 2, SOFTIRQ), goes_on];
    for seed in 1..40 {
        History { seed, journeys: true, ..History::of(&steps) }.expect_true();
    }
}

/// A thread lets another one's corked datagram go. `journey` said that it was of the call by which that thread had sent one before, or had
/// failed to.
#[test]
fn a_corked_datagram_is_not_of_an_earlier_call() {
    for fails in [false, true] {
        let before = Send { task: 1, socket: 0, len: 2, more: false, fails, way: SOFTIRQ };
        let uncork = Uncork { task: 1, socket: 0, way: SOFTIRQ };
        let [before, uncork] = [before, uncork].map(|step| Step::Out(Out::Udp(step)));
        let steps = [before, send(0, true, SOFTIRQ), uncork];
        for seed in 1..40 {
            History { seed, journeys: true, ..History::of(&steps) }.expect_true();
        }
    }
}

/// Something held the bytes of a connection that was evicted then. When it was known again, the peer's window was said to have held them for
/// all of the time.
#[test]
fn what_held_bytes_before_a_connection_was_known_is_not_the_peers_window() {
    let written = |socket, copied, waits, sends| {
        tcp(Write { task: 0, socket, size: 10, copied, waits, sends, way: SOFTIRQ })
    };
    let way = Way { then: Then::Dropped, ..Way::PLAIN };
    let goes_on = tcp(Tcp::Continue { task: 0, copied: 12, waits: false, sends: 1, way });
    let others = [1, 2].map(|socket| written(socket, 12, false, 0));
    let steps = [
        &[written(0, 12, false, 0)][..],
        &others,
        &[written(0, 0, true, 3), goes_on, written(0, 12, false, 1)],
    ]
    .concat();
    for seed in 1..4_000 {
        History { seed, fine: true, full: true, entries: 2, ..History::of(&steps) }.expect_true();
    }
}

/// What a thread did for a datagram began with one that it had read before, and not answered: the one that it answers was not followed. Or it
/// sent by another socket, which had the address of that one.
#[test]
fn a_thread_answers_what_it_has_read_last_from_that_socket() {
    const RECEIVES: u8 = 2;
    let comes = Step::Datagram(Comes { cpu: 0, target: RECEIVES, len: 1, segs: 0, kind: 0, goes: true });
    let take = Step::Datagram(Take { cpu: 0, task: 0, socket: RECEIVES, how: Taking::Whole });
    let close = Step::Datagram(CloseReceiver { cpu: 0, socket: RECEIVES, again: false });
    let sends = |socket| {
        Step::Out(Out::Udp(Send { task: 0, socket, len: 2, more: false, fails: false, way: SOFTIRQ }))
    };
    // Of two that wait there may be room for one.
    for (entries, steps) in [
        (1, &[comes, take, comes, comes, take, sends(3)][..]),
        (usize::MAX, &[sends(3), comes, sends(3), take, close, sends(3)]),
    ] {
        for seed in 1..200 {
            let full = entries != usize::MAX;
            History { seed, entries, full, fine: true, ..History::of(steps) }.expect_true();
        }
    }
}

/// A call connects and waits, another process's bytes are sent first, and the kernel skips the program of the next call of that thread.
#[test]
fn bytes_behind_others_are_not_of_the_call_that_connected() {
    let connects = Tcp::Connect { task: 0, socket: 3, size: 4, copied: 0, waits: true, way: SOFTIRQ };
    let goes_on = Tcp::Continue { task: 0, copied: 12, waits: false, sends: 0, way: SOFTIRQ };
    let others = Write { task: 2, socket: 3, size: 7, copied: 12, waits: false, sends: 3, way: SOFTIRQ };
    let steps = [tcp(connects), tcp(goes_on), tcp(others), write(0, 3, 2, SOFTIRQ)];
    let kernel = Kernel { is_direct: false, ..History::of(&[]).kernel };
    for seed in 1..400 {
        let filter = Filter::Set([PID_ALONE, 0, 0]);
        let header_only = seed % 2 == 0;
        History { seed, kernel, skips: 2, filter, header_only, ..History::of(&steps) }.expect_true();
    }
}

/// TCP drops a copy of a received segment, whose number, the other end's, is that of one that was sent: that was said to be dropped.
#[test]
fn a_received_segment_that_is_dropped_is_none_that_was_sent() {
    let came = Step::Segment(GOES);
    let again = Step::Segment(Segment { again: 1, is_found: true, ..GOES });
    let acked = tcp(Tcp::Ack { socket: 0, len: 12 });
    let sent = write(0, 0, 5, Way { then: Then::Tunnelled, ..Way::PLAIN });
    for seed in 1..4_000 {
        History { seed, fine: true, ..History::of(&[came, sent, again, acked]) }.expect_true();
    }
}
