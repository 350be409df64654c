//! What the simulator has found in what readers did: the shortest history of each fault.

use super::{
    history::{History, Segment, Step},
    processes::Filter,
    readers::{From, Step::Displace, Step::Switch, Step::Wake},
    tcp_in::Reading,
    udp_in::{Step::Comes, Step::Take, Taking::Whole},
};

const fn comes(target: u8) -> Step {
    Step::Datagram(Comes { cpu: 0, target, len: 1, segs: 0, kind: 0, goes: true })
}

const fn take(task: u8, socket: u8) -> Step {
    Step::Datagram(Take { cpu: 0, task, socket, how: Whole })
}

/// The thread calls, and there is nothing to take.
const CALL: Step = take(0, 0);

fn run(steps: &[Step]) {
    History { fine: true, ..History::of(steps) }.expect_true();
}

/// What it did before it called first is not known. All its time was a wait for the call, and none for a CPU.
#[test]
fn who_calls_first_may_have_waited_for_a_cpu() {
    run(&[comes(0), take(0, 0)]);
}

/// A thread of the kernel's had the CPU for longer than half of the wait. Clocks' jitter was added to the wait, and the process before
/// that thread was named.
#[test]
fn a_thread_of_the_kernel_that_had_the_cpu_is_named() {
    let steps =
        [Displace { cpu: 0, task: 1 }, Wake { task: 0 }, Switch { cpu: 0, task: 0, from: From::Kernel }];
    let [displace, wake, switch] = steps.map(Step::Scheduler);
    run(&[CALL, comes(0), displace, wake, switch, take(0, 0)]);
}

/// Two waited for the CPU of a third: the second of them was told that the first had it, which had it for a moment.
#[test]
fn who_comes_between_for_a_moment_is_not_named() {
    let [wake, taken, switch] =
        [Wake { task: 0 }, Displace { cpu: 0, task: 1 }, Switch { cpu: 0, task: 0, from: From::Task(2) }]
            .map(Step::Scheduler);
    run(&[CALL, comes(0), wake, Step::Wait { ms: 30 }, taken, switch, take(0, 0)]);
}

/// A process and a thread of the kernel's had the CPU in turn, and then another process for a tenth of the time that a thread waited: that
/// one did not have the others' turns.
#[test]
fn turns_of_others_are_not_those_of_the_last() {
    let switch = |task, from| Step::Scheduler(Switch { cpu: 0, task, from });
    let displace = Step::Scheduler(Displace { cpu: 0, task: 1 });
    let long = Step::Wait { ms: 16 };
    let in_turn = [switch(1, From::Kernel), long, displace, long];
    let last = [switch(2, From::Kernel), Step::Wait { ms: 9 }, switch(0, From::Task(2)), take(0, 0)];
    let waits = [CALL, comes(0), Step::Scheduler(Wake { task: 0 })];
    run(&[&waits[..], &in_turn, &in_turn, &in_turn, &last].concat());
}

/// It was woken, went on without being off its CPU, called, and was preempted: that is no wait for the wakeup's CPU.
#[test]
fn who_has_called_was_on_a_cpu() {
    let [wake, switch] =
        [Wake { task: 0 }, Switch { cpu: 0, task: 0, from: From::Idle }].map(Step::Scheduler);
    run(&[CALL, wake, CALL, comes(0), switch, take(0, 0)]);
}

/// The rest of a segment is read whose beginning had come before, and nothing waits of it: those behind it could be read before it came,
/// as it seemed.
#[test]
fn what_comes_behind_bytes_that_are_not_followed_could_not_be_read_before() {
    let segment = |again, from, len, goes, is_found| {
        Step::Segment(Segment {
            cpu: 0,
            connection: 0,
            again,
            from,
            len,
            segs: 0,
            goes,
            is_found,
            joins: false,
        })
    };
    let read = |task| Step::Read { task, connection: 0, len: 40, how: Reading::Copy };
    let steps = [
        read(1),
        segment(0, 0, 1, true, false),
        Step::Unlock { connection: 0 },
        segment(0, -4, 4, false, false),
        segment(0, 0, 1, true, false),
        segment(2, 0, 1, true, true),
        read(0),
    ];
    for seed in 1..40 {
        History { seed, fine: true, filter: Filter::One(1), ..History::of(&steps) }.expect_true();
    }
}
