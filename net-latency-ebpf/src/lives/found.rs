//! Faults that histories have shown, each as the shortest one that did.

use net_latency_common::{Counter, PID_ALONE};

use super::{
    history::{Fate, History, Segment, Step},
    processes::{self, Filter},
    tcp_in::Reading,
    world::Kernel,
};
use crate::{
    emit::counters,
    tcp::{shares, waiting_segments},
};

/// A segment that its CPU takes to TCP at once.
pub(super) const GOES: Segment = Segment {
    cpu: 0,
    connection: 0,
    again: 0,
    from: 0,
    len: 1,
    segs: 0,
    goes: true,
    is_found: false,
    joins: false,
};
/// One that stays where it is.
const STAYS: Segment = Segment { goes: false, ..GOES };

/// All steps that a history has, by both backends.
fn expect_true(steps: &[Step]) {
    for is_direct in [true, false] {
        let plain = History::of(steps);
        let kernel = Kernel { is_direct, ..plain.kernel };
        History { kernel, control: true, ..plain }.expect_true();
    }
}

fn read(len: u8, how: Reading) -> Step {
    Step::Read { task: 0, connection: 0, len, how }
}

/// A packet socket drops what it has of a packet, and IP goes on with a clone, which lies where a copied skb has left its stamps.
#[test]
fn a_packet_socket_drops_what_it_shares() {
    expect_true(&[
        Step::Segment(Segment { cpu: 1, ..STAYS }),
        Step::Segment(Segment { len: 0, ..STAYS }),
        Step::Go { cpu: 1, how: Fate::Copied },
        Step::Go { cpu: 0, how: Fate::Shared },
        Step::Let { which: 0, drops: true },
        Step::Go { cpu: 0, how: Fate::Plain },
    ]);
}

/// A packet socket shares a packet, and IP's clone, which lies where an skb ended unseen, is sent on past IP.
#[test]
fn what_ip_shared_is_sent_on() {
    expect_true(&[
        Step::Segment(Segment { len: 0, ..STAYS }),
        Step::Segment(Segment { cpu: 1, ..STAYS }),
        Step::Go { cpu: 1, how: Fate::Ends },
        Step::Go { cpu: 0, how: Fate::Shared },
        Step::Let { which: 0, drops: true },
        Step::Go { cpu: 0, how: Fate::SentOn },
        Step::Go { cpu: 0, how: Fate::Plain },
        Step::Go { cpu: 0, how: Fate::Plain },
    ]);
}

/// An skb gets a buffer that another packet had, which IP had received shared.
#[test]
fn another_buffer_has_what_is_left_of_another_packet() {
    expect_true(&[
        Step::Segment(Segment { cpu: 1, ..STAYS }),
        Step::Segment(Segment { len: 0, ..STAYS }),
        Step::Go { cpu: 0, how: Fate::Plain },
        Step::Go { cpu: 1, how: Fate::Shared },
        Step::Go { cpu: 1, how: Fate::Ends },
        Step::Segment(GOES),
        Step::Resume { cpu: 1, which: 0 },
        Step::Let { which: 0, drops: false },
        Step::Go { cpu: 1, how: Fate::Expanded },
    ]);
}

/// An skb begins with bytes that came before, and a later segment begins where these end.
#[test]
fn the_rest_of_an_skb_is_not_the_segment_that_begins_there() {
    for how in [Reading::Copy, Reading::Splice] {
        expect_true(&[
            Step::Segment(Segment { cpu: 1, ..STAYS }),
            Step::Segment(STAYS),
            Step::Go { cpu: 0, how: Fate::Plain },
            Step::Go { cpu: 1, how: Fate::Plain },
            Step::Go { cpu: 0, how: Fate::Plain },
            Step::Go { cpu: 1, how: Fate::Plain },
            Step::Segment(Segment { from: -3, len: 4, ..GOES }),
            Step::Segment(Segment { from: -5, len: 4, ..GOES }),
            read(40, how),
        ]);
        // The same where the first of them has been read.
        expect_true(&[
            Step::Segment(Segment { len: 3, ..GOES }),
            Step::Segment(Segment { cpu: 1, ..STAYS }),
            Step::Segment(Segment { from: -5, len: 2, ..STAYS }),
            read(40, Reading::Copy),
            Step::Go { cpu: 0, how: Fate::Plain },
            Step::Go { cpu: 1, how: Fate::Plain },
            Step::Go { cpu: 0, how: Fate::Plain },
            Step::Go { cpu: 1, how: Fate::Plain },
            Step::Unlock { connection: 0 },
            read(40, how),
        ]);
    }
}

/// An skb begins with bytes that were read before: its other ones are known, and not only that they came.
#[test]
fn the_rest_of_an_skb_whose_beginning_was_read_has_a_line() {
    let first =
        [Step::Segment(Segment { len: 3, ..GOES }), read(40, Reading::Copy), Step::Unlock { connection: 0 }];
    let again = [Step::Segment(Segment { from: -2, len: 4, ..GOES }), read(40, Reading::Copy)];
    expect_true(&[&first[..], &again].concat());
    let counted = counters::total();
    assert_eq!((counted.get(Counter::UnmatchedIn), counted.get(Counter::Taken)), (0, 2));
}

/// What follows a byte at which nothing was known to begin is a copy that TCP has not looked at yet.
#[test]
fn a_copy_that_waits_for_the_lock_was_not_read() {
    expect_true(&[
        Step::Segment(Segment { len: 2, ..GOES }),
        Step::Segment(Segment { joins: true, ..GOES }),
        Step::Segment(Segment { joins: true, ..GOES }),
        Step::Segment(Segment { from: -4, len: 3, joins: true, ..GOES }),
        Step::Segment(Segment { len: 4, joins: true, ..GOES }),
        read(15, Reading::Splice),
        Step::Segment(Segment { from: -3, ..GOES }),
        read(40, Reading::Copy),
    ]);
}

/// An skb that brought nothing is dropped, and lies where one lay whose bytes TCP has joined to others.
#[test]
fn an_skb_that_brought_nothing_is_not_the_one_before_it() {
    expect_true(&[
        Step::Segment(Segment { len: 3, ..GOES }),
        Step::Segment(Segment { len: 4, ..GOES }),
        Step::Segment(Segment { len: 3, joins: true, ..GOES }),
        Step::Segment(Segment { again: 2, is_found: true, ..GOES }),
        read(40, Reading::Copy),
    ]);
}

/// An skb that is read in part gets more bytes meanwhile.
#[test]
fn what_is_joined_to_an_skb_that_is_read_has_its_line() {
    expect_true(&[
        Step::Segment(GOES),
        read(1, Reading::Copy),
        Step::Unlock { connection: 0 },
        Step::Segment(Segment { joins: true, ..GOES }),
        read(40, Reading::Copy),
    ]);
    expect_true(&[
        Step::Segment(Segment { len: 4, ..GOES }),
        read(2, Reading::Copy),
        Step::Unlock { connection: 0 },
        Step::Segment(Segment { joins: true, ..GOES }),
        read(6, Reading::Copy),
        read(40, Reading::Copy),
    ]);
}

/// A copy that waits begins where an skb does that is read in part, and is not what that came with.
#[test]
fn the_rest_of_an_skb_is_no_copy_of_it() {
    expect_true(&[
        Step::Segment(GOES),
        Step::Segment(Segment { len: 2, ..GOES }),
        Step::Segment(Segment { from: -6, len: 4, ..GOES }),
        Step::Segment(GOES),
        read(6, Reading::Copy),
        Step::Segment(Segment { again: 2, ..GOES }),
        read(40, Reading::Copy),
    ]);
}

/// A packet socket drops what it has of an ACK, and that lies where an skb lay whose bytes TCP has joined to others.
#[test]
fn what_a_packet_socket_drops_is_no_segment() {
    expect_true(&[
        Step::Segment(GOES),
        Step::Segment(Segment { len: 0, ..STAYS }),
        Step::Segment(Segment { cpu: 1, joins: true, ..GOES }),
        Step::Go { cpu: 0, how: Fate::Tapped },
        Step::Let { which: 0, drops: true },
        read(40, Reading::Copy),
    ]);
}

/// Others read a segment; of a second one, that has its bytes too, they read a part, and then a process that is followed reads the rest. Its
/// line had all of the second one's bytes.
#[test]
fn what_others_have_read_a_part_of_is_not_followed() {
    let wanted = Filter::Set([PID_ALONE, 0, 0]);
    let reads = |task, len| Step::Read { task, connection: 0, len, how: Reading::Copy };
    let steps = [
        Step::Segment(GOES),
        Step::Segment(Segment { from: -3, len: 4, ..STAYS }),
        reads(1, 40),
        Step::Go { cpu: 0, how: Fate::Plain },
        Step::Go { cpu: 0, how: Fate::Plain },
        Step::Unlock { connection: 0 },
        reads(2, 3),
        Step::Unlock { connection: 0 },
        reads(0, 40),
    ];
    History { filter: wanted, ..History::of(&steps) }.expect_true();
}

/// Where TCP drops unseen, a segment has all bytes of two others that wait out of order, and TCP keeps it in their place. The second one
/// had its own times.
#[test]
fn a_copy_may_stand_for_the_next_one_too() {
    let goes = Segment { cpu: 1, ..GOES };
    let steps = [
        Step::Segment(STAYS),
        Step::Segment(goes),
        Step::Segment(goes),
        Step::Segment(Segment { from: -4, len: 3, ..goes }),
        Step::Go { cpu: 0, how: Fate::Plain },
        Step::Go { cpu: 0, how: Fate::Plain },
        read(40, Reading::Copy),
    ];
    let plain = History::of(&steps);
    History { kernel: Kernel { shows_tcp_drops: false, ..plain.kernel }, ..plain }.expect_true();
}

/// Two routers of this machine.
#[test]
fn what_is_forwarded_twice_counts_from_its_first_entry() {
    let [plain, forwarded] = [Fate::Plain, Fate::Forwarded].map(|how| Step::Go { cpu: 0, how });
    expect_true(&[
        Step::Segment(STAYS),
        plain,
        forwarded,
        plain,
        forwarded,
        plain,
        plain,
        read(2, Reading::Copy),
    ]);
}

/// A CPU drops a segment that another one has got, whose skb has an address that the first one knows of a segment of another connection, which
/// was freed unseen. That one's number was looked for, and the segment that was dropped seemed to wait.
#[test]
fn what_a_cpu_got_last_is_not_what_has_its_address_now() {
    let goes = Segment { cpu: 1, ..GOES };
    // What a CPU got last is noted from when a segment has come in part before.
    let other = Segment { connection: 1, ..GOES };
    for control in [false, true] {
        let steps = [
            Step::Segment(STAYS),
            Step::Segment(other),
            Step::Segment(Segment { from: -1, len: 2, is_found: true, ..other }),
            Step::Read { task: 0, connection: 1, len: 40, how: Reading::Copy },
            Step::Segment(other),
            Step::Close { connection: 1 },
            Step::Segment(goes),
            Step::Go { cpu: 0, how: Fate::Plain },
            Step::Close { connection: 0 },
        ];
        History { control, ..History::of(&steps) }.expect_true();
    }
}

/// Evicted segments stay counted until all is read that has come: also while bytes before them are missing, or some wait for the task that
/// has the socket.
#[test]
fn what_was_evicted_is_counted_until_all_is_read() {
    let behind = Step::Segment(Segment { from: 1, ..GOES });
    let [all, some, more] = [read(40, Reading::Splice), read(2, Reading::Splice), Step::Segment(GOES)];
    for (steps, counted) in [
        (&[more, more, more, all][..], 0),
        (&[more, more, more, behind, all], 4),
        (&[more, more, more, some, more, all], 4),
    ] {
        let evicting = History { full: true, entries: 2, ..History::of(steps) };
        evicting.expect_true();
        assert_eq!(shares(), counted, "{steps:?}");
    }
}

/// MPTCP takes skbs that have bytes in common: what begins with bytes that came with another one before has no times.
#[test]
fn bytes_that_mptcp_got_twice_have_no_times() {
    let of_mptcp = |from, len| Step::Segment(Segment { connection: 1, from, len, ..GOES });
    let all = Step::Read { task: 0, connection: 1, len: 40, how: Reading::Copy };
    let steps = [of_mptcp(0, 4), of_mptcp(-6, 4), of_mptcp(-2, 2), all];
    for seed in 0..8 {
        History { multipath: true, seed, ..History::of(&steps) }.expect_true();
    }
}

/// While a softirq adds to MPTCP's queue, a read is not seen. Bytes that came twice had the time of the next one.
#[test]
fn what_came_twice_is_not_of_the_call_after_the_one_that_read_it() {
    let of_mptcp = |from, len| Step::Segment(Segment { connection: 1, from, len, ..GOES });
    let all = Step::Read { task: 0, connection: 1, len: 40, how: Reading::Copy };
    let steps = [of_mptcp(0, 1), of_mptcp(-2, 3), all, all];
    for seed in 0..64 {
        History { multipath: true, seed, ..History::of(&steps) }.expect_true();
    }
}

/// TCP drops a copy of what waits. Whoever found the segment for that took it for one of two that may be read, and its times were unknown.
#[test]
fn what_had_a_copy_that_was_dropped_keeps_its_times() {
    expect_true(&[Step::Segment(GOES), Step::Segment(Segment { again: 1, ..GOES }), read(1, Reading::Copy)]);
}

/// Nothing was known of a socket that no process had used, and what it had got seemed to wait when it was gone.
#[test]
fn a_socket_that_no_process_has_used_leaves_nothing() {
    expect_true(&[Step::Segment(GOES), Step::Segment(GOES), Step::Close { connection: 0 }]);
    assert_eq!((waiting_segments().count, counters::total().get(Counter::UnreadIn)), (0, 2));
}

/// TCP copies small segments into the room behind an skb's headers (`skb_try_coalesce`), so that no number of pages limits how many it holds:
/// none waits when it is dropped, out of order, nor when a socket is closed.
#[test]
fn a_socket_that_ends_leaves_none_of_many_small_segments() {
    for from in [0, 1] {
        let first = [Step::Segment(GOES), read(1, Reading::Copy), Step::Unlock { connection: 0 }];
        let behind = Step::Segment(Segment { from, ..GOES });
        let many = std::vec![Step::Segment(Segment { joins: true, ..GOES }); 600];
        let close = Step::Close { connection: 0 };
        let steps: std::vec::Vec<_> = first.into_iter().chain([behind]).chain(many).chain([close]).collect();
        expect_true(&steps);
        assert_eq!(waiting_segments().count, 0, "{from}");
    }
}

/// A process looks at two skbs (MSG_PEEK) before it takes all by another way. The time at which it looked at the second one seemed to be that
/// at which the first one's bytes were copied.
#[test]
fn what_was_only_looked_at_was_not_copied() {
    let steps =
        [Step::Segment(GOES), Step::Segment(GOES), read(40, Reading::Peek), read(40, Reading::Splice)];
    History { journeys: true, ..History::of(&steps) }.expect_true();
}

/// Bytes come again, with more behind them, and what came first was evicted. It is read from an skb that is shorter than its copy.
#[test]
fn a_copy_of_what_was_evicted_is_not_what_is_read() {
    let of_its = |from, len| Step::Segment(Segment { connection: 1, from, len, ..GOES });
    let read = Step::Read { task: 0, connection: 1, len: 40, how: Reading::Copy };
    let others = std::vec![Step::Segment(GOES); 4];
    let again = [of_its(-6, 3), Step::Unlock { connection: 1 }, read];
    let steps: std::vec::Vec<_> = [read, of_its(0, 1)].into_iter().chain(others).chain(again).collect();
    for fine in [false, true] {
        History { entries: 4, full: true, fine, ..History::of(&steps) }.expect_true();
    }
}

/// The first segment was not seen, and is read by an unwanted process: where the skb ends of which that reads was not known, and what it
/// read next had the time of a wanted one.
#[test]
fn what_others_read_after_a_miss_is_not_of_who_reads_next() {
    let read = |task, len, how| Step::Read { task, connection: 0, len, how };
    let comes = |len, joins| Step::Segment(Segment { len, joins, ..GOES });
    let unlock = Step::Unlock { connection: 0 };
    let come = [comes(1, false), comes(2, false), read(0, 40, Reading::Peek), comes(4, true), unlock];
    let steps = [&come[..], &[read(0, 12, Reading::Copy), unlock, read(1, 40, Reading::Copy)]].concat();
    for seed in 1..4_000 {
        let plain = History::of(&steps);
        let kernel = Kernel { is_direct: false, ..plain.kernel };
        History { seed, kernel, skips: 6, filter: Filter::One(1), ..plain }.expect_true();
    }
}

/// What came first was evicted, and a copy of it waits for the lock while the first one is read: that had the copy's times, with none of its
/// bytes beyond the skb that is read.
#[test]
fn a_copy_in_the_backlog_is_not_what_is_read() {
    let comes = |connection, again| Step::Segment(Segment { connection, again, ..GOES });
    let how = [Reading::Peek, Reading::Copy];
    let [looks, reads] = how.map(|how| Step::Read { task: 0, connection: 0, len: 40, how });
    let steps = [comes(0, 0), looks, comes(1, 0), comes(0, 0), comes(0, 2), reads];
    for seed in 1..400 {
        History { seed, full: true, entries: 2, ..History::of(&steps) }.expect_true();
    }
}

/// A call took more than a run has lines for, and then its thread got a name that is wanted: the rest had lines with that name.
#[test]
fn what_a_thread_took_by_another_name_is_not_shown() {
    let comes = |len| Step::Segment(Segment { len, ..GOES });
    let read = |len, how| Step::Read { task: 0, connection: 0, len, how };
    let renamed = Step::Process(processes::Step::Rename { task: 0, digit: 2 });
    let came = [4, 2, 2, 3, 1].map(comes);
    let steps = [&came[..], &[read(23, Reading::Splice), renamed, read(40, Reading::Copy)]].concat();
    for seed in 1..40 {
        History { seed, full: true, filter: Filter::Named(2), ..History::of(&steps) }.expect_true();
    }
}
