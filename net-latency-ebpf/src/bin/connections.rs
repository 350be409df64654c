//! The programs of `net-latency connections`. Which of them are loaded, and to what they are attached, is decided by the user side from
//! what the running kernel has.

#![no_std]
#![no_main]
#![expect(
    missing_docs,
    unreachable_pub,
    reason = "the program macros generate public functions of their own"
)]

#[macro_use]
mod hooks;
mod object;

use aya_ebpf::{
    macros::{btf_tracepoint, fentry, kprobe, raw_tracepoint},
    programs::{BtfTracePointContext, FEntryContext, ProbeContext, RawTracePointContext},
};
use net_latency_ebpf::{
    connections::{self, Outcome, dropped, listeners},
    flow::processes,
    kernel::{
        connection::Request,
        memory::{Direct, Number, Probed},
        skb::Skb,
        socket::Socket,
        task::Thread,
    },
};

use self::hooks::register;

/// Every program ends here.
#[inline(always)]
fn end<C>(_: &C, outcome: Outcome) -> u32 {
    if let Err(counter) = outcome {
        connections::count(counter);
    }
    0
}

/// No test has these hooks skipped.
macro_rules! skip_if_told {
    ($module:ident::$logic:ident) => {};
}

on_tracepoint!(
    /// `inet_sock_set_state(sk, oldstate, newstate)`.
    btf_changed, connections::changed(Socket 0, Number 1, Number 2)
);
on_tracepoint!(
    /// The same, where the first is skipped.
    btf_changed_by_softirq, connections::changed_by_softirq(Socket 0, Number 1, Number 2)
);
on_tracepoint!(
    /// The same, of sockets that tasks hold: for kernels that preempt programs on tracepoints.
    btf_changed_by_task, connections::changed_by_task(Socket 0, Number 1, Number 2)
);
/// `inet_sk_state_store(sk, newstate)`, `inet_sk_set_state(sk, state)`, which have the tracepoint at their beginning.
#[kprobe]
pub fn kprobe_changed_by_task(context: ProbeContext) -> u32 {
    let new = Number::new(register(&context, 1));
    end(&context, connections::changes_by_task::<Probed>(Socket::new(register(&context, 0)), new))
}
on_tracepoint!(
    /// `tcp_probe(sk, skb)`: at the beginning of `tcp_rcv_established`.
    btf_received, connections::received(Socket 0, Skb 1)
);
on_function!(
    /// `tcp_rcv_state_process(sk, skb)`.
    fentry_received, kprobe_received, connections::received_otherwise(Socket 0, Skb 1)
);
on_function!(
    /// `tcp_sendmsg_locked(sk, msg, size)`.
    fentry_written, kprobe_written, connections::written(Socket 0)
);
on_function!(
    /// `do_tcp_sendpages(sk, page, offset, size, flags)`: sendfile and splice up to Linux 6.4.
    fentry_pages, kprobe_pages, connections::written(Socket 0)
);
on_function!(
    /// `security_sock_graft(sk, parent)`.
    fentry_accepted, kprobe_accepted, connections::accepted(Socket 0)
);
on_function!(
    /// `tcp_conn_request(rsk_ops, af_ops, sk, skb)`.
    fentry_requested, kprobe_requested, listeners::requested(Socket 2)
);
on_function!(
    /// `tcp_v4_syn_recv_sock(sk, skb, req, …)`.
    fentry_completed4, kprobe_completed4, listeners::completed(Socket 0, Skb 1, Request 2)
);
on_function!(
    /// `tcp_v6_syn_recv_sock(sk, skb, req, …)`.
    fentry_completed6, kprobe_completed6, listeners::completed_v6(Socket 0, Skb 1, Request 2)
);

/// `kfree_skb(skb, location)`, and since Linux 5.17 `reason`.
#[raw_tracepoint]
pub fn raw_thrown_away(context: RawTracePointContext) -> i32 {
    let reason: *const u8 = if dropped::has_reasons() { context.arg(2) } else { core::ptr::null() };
    let location: *const u8 = context.arg(1);
    dropped::dropped(Skb::<Probed>::new(context.arg(0)), location as u64, reason as u64 as u32);
    0
}

/// Attached to nothing: the user side runs it with the address of a socket (`BPF_PROG_TEST_RUN`, since Linux 5.10).
#[raw_tracepoint]
pub fn raw_asked_for(context: RawTracePointContext) -> i32 {
    end(&context, connections::asked_for(Socket::<Probed>::new(context.arg(0)))) as i32
}

/// `sched_process_fork(parent, child)`, of a wanted process.
#[raw_tracepoint]
pub fn raw_started(context: RawTracePointContext) -> i32 {
    // A child that finds no room is not followed: what it does is unknown then.
    let _ = processes::started::<Probed>(Thread::new(context.arg(1)));
    0
}

/// `sched_process_exit(task)`.
#[raw_tracepoint]
pub fn raw_exited(context: RawTracePointContext) -> i32 {
    processes::exited(Thread::<Probed>::new(context.arg(0)));
    0
}

/// `sched_process_free(task)`.
#[raw_tracepoint]
pub fn raw_freed(context: RawTracePointContext) -> i32 {
    processes::freed::<Probed>(Thread::new(context.arg(0)));
    0
}
