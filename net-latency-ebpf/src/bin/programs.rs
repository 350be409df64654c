//! The programs: one thin wrapper per hook and backend. Which of them are loaded, and to what they are
//! attached, is decided by the user side from what the running kernel has.

#![expect(unreachable_pub, reason = "the program macros generate public functions of their own")]

#[path = "hooks.rs"]
#[macro_use]
mod hooks;

use aya_ebpf::{
    EbpfContext,
    macros::{btf_tracepoint, fentry, kprobe, raw_tracepoint},
    programs::{BtfTracePointContext, FEntryContext, ProbeContext, RawTracePointContext},
};
use net_latency_common::{AF_INET, AF_INET6, Counter};
use net_latency_ebpf::{
    emit::counters::{self, HookResult},
    flow::processes,
    ip,
    kernel::{
        memory::{Direct, Number, Probed},
        skb::Skb,
        socket::Socket,
        task::Thread,
    },
    tcp::{multipath, receive, transmit},
    udp,
};

use self::hooks::register;

/// Every program ends here: its result is counted, and logged if the kernel side's log was requested.
#[inline(always)]
fn end<C: EbpfContext>(context: &C, result: HookResult) -> u32 {
    if let Err(counter) = result {
        counters::one(counter);
        tell(context, counter);
    }
    0
}

#[cfg(feature = "log")]
#[inline(always)]
fn tell<C: EbpfContext>(context: &C, counter: Counter) {
    aya_log_ebpf::debug!(context, "{}", counters::name(counter));
}

#[cfg(not(feature = "log"))]
#[inline(always)]
fn tell<C: EbpfContext>(_: &C, _: Counter) {}

/// Ends a program whose hook a test has skipped. Only the object for tests has any of it.
macro_rules! skip_if_told {
    ($module:ident::$logic:ident) => {
        if net_latency_ebpf::skips::happens(
            const { net_latency_common::hook_key(concat!(stringify!($module), "::", stringify!($logic))) },
        ) {
            return 0;
        }
    };
}

/// An skb enters the stack. It reads no memory, so that one program serves any number of tracepoints.
#[raw_tracepoint]
pub fn raw_arrived(context: RawTracePointContext) -> i32 {
    skip_if_told!(ip::arrived);
    end(&context, ip::arrived::<Probed>(Skb::new(context.arg(0)))) as i32
}

on_function!(
    /// `ip_rcv_core(skb, net)` or `ip_rcv(skb, …)`.
    fentry_in_ip4, kprobe_in_ip4, ip::received(Skb 0)
);
on_function!(
    /// `ip6_rcv_core(skb, dev, net)` or `ipv6_rcv(skb, …)`.
    fentry_in_ip6, kprobe_in_ip6, ip::received(Skb 0)
);
on_function!(
    /// `ip_forward(skb)`.
    fentry_in_forward4, kprobe_in_forward4, ip::forwarded(Skb 0; AF_INET)
);
on_function!(
    /// `ip6_forward(skb)`.
    fentry_in_forward6, kprobe_in_forward6, ip::forwarded(Skb 0; AF_INET6)
);
on_tracepoint!(
    /// `net_dev_queue(skb)`, where only received packets are traced.
    btf_in_forward, ip::sent_on(Skb 0)
);
on_function!(
    /// `tcp_v4_rcv(skb)`.
    fentry_in_tcp4, kprobe_in_tcp4, receive::received(Skb 0; AF_INET)
);
on_function!(
    /// `tcp_v6_rcv(skb)`.
    fentry_in_tcp6, kprobe_in_tcp6, receive::received(Skb 0; AF_INET6)
);
/// `kfree_skb(skb, …)`: an skb is dropped, which is rare enough for one program to serve both backends.
#[raw_tracepoint]
pub fn raw_dropped(context: RawTracePointContext) -> i32 {
    skip_if_told!(receive::dropped);
    end(&context, receive::dropped::<Probed>(Skb::new(context.arg(0)))) as i32
}

on_function!(
    /// `skb_copy_header(new, old)`.
    fentry_copied, kprobe_copied, transmit::copied(Skb 0, Skb 1)
);
on_function!(
    /// `skb_segment(skb, features)`.
    fentry_segmented, kprobe_segmented, transmit::segmented(Skb 0)
);
on_function!(
    /// `skb_morph(skb, other)`.
    fentry_morphed, kprobe_morphed, ip::rebuffered(Skb 0)
);
on_function!(
    /// `pskb_expand_head(skb, …)`.
    fentry_expanded, kprobe_expanded, ip::rebuffered(Skb 0)
);
on_function!(
    /// `__tcp_read_sock(sk, …)` or `tcp_read_sock(sk, …)`: splice, and consumers within the kernel.
    fentry_in_reading, kprobe_in_reading, receive::reading(Socket 0)
);
on_function!(
    /// `tcp_read_done(sk, len)`: TLS, since Linux 6.0.
    fentry_in_done, kprobe_in_done, receive::decrypting(Socket 0)
);
on_function!(
    /// `mptcp_data_ready(sk, ssk)`.
    fentry_in_ready, kprobe_in_ready, multipath::ready(Socket 0, Socket 1)
);
on_function!(
    /// `mptcp_subflow_data_available(ssk)`.
    fentry_in_moved, kprobe_in_moved, multipath::moved(Socket 0)
);
on_function!(
    /// `mptcp_cleanup_rbuf(msk, …)`.
    fentry_in_read, kprobe_in_read, multipath::read(Socket 0)
);
on_function!(
    /// `mptcp_destroy(sk)`.
    fentry_destroyed, kprobe_destroyed, multipath::destroyed(Socket 0)
);
on_function!(
    /// `mptcp_sendmsg(sk, msg, len)`.
    fentry_out_calls, kprobe_out_calls, multipath::calls(Socket 0, Number 2)
);
on_function!(
    /// `__mptcp_push_pending(sk, flags)`.
    fentry_out_pushes, kprobe_out_pushes, multipath::pushes(Socket 0)
);
on_function!(
    /// `mptcp_sendmsg_frag(sk, ssk, dfrag, info)`.
    fentry_out_hands_on, kprobe_out_hands_on, multipath::hands_on(Socket 0, Socket 1, Number 2, Number 3)
);
on_tracepoint!(
    /// `tcp_rcv_space_adjust(sk)`: called after each piece that a receive call takes from the socket.
    btf_in_app, receive::taken(Socket 0)
);
/// `tcp_rcv_space_adjust(sk)`, which has the tracepoint at its beginning: for kernels that preempt programs on tracepoints.
#[kprobe]
pub fn kprobe_in_app(context: ProbeContext) -> u32 {
    skip_if_told!(receive::taken);
    end(&context, receive::taken::<Probed>(Socket::new(register(&context, 0))))
}
on_tracepoint!(
    /// `tcp_destroy_sock(sk)`.
    btf_closed, receive::closed(Socket 0)
);
on_function!(
    /// `tcp_sendmsg_locked(sk, msg, size)`.
    fentry_out_app, kprobe_out_app, transmit::written(Socket 0, Number 2)
);
on_function!(
    /// `do_tcp_sendpages(sk, page, offset, size, flags)`: sendfile and splice up to Linux 6.4.
    fentry_out_pages, kprobe_out_pages, transmit::written(Socket 0, Number 3)
);
on_function!(
    /// `__tcp_retransmit_skb(sk, skb, segs)`.
    fentry_out_again, kprobe_out_again, transmit::resending(Socket 0, Skb 1)
);
on_function!(
    /// `tcp_v4_send_check(sk, skb)` or `__ip_queue_xmit(sk, skb, …)`.
    fentry_out_tcp4, kprobe_out_tcp4, transmit::sent(Socket 0, Skb 1)
);
on_function!(
    /// `tcp_v6_send_check(sk, skb)` or `inet6_csk_xmit(sk, skb, …)`.
    fentry_out_tcp6, kprobe_out_tcp6, transmit::sent(Socket 0, Skb 1)
);
on_function!(
    /// `__neigh_event_send(neigh, skb, …)`.
    fentry_out_neighbour, kprobe_out_neighbour, udp::waits(Skb 1)
);
on_function!(
    /// `nf_queue(skb, state, index, verdict)`.
    fentry_out_verdict, kprobe_out_verdict, udp::waits(Skb 0)
);
on_function!(
    /// `udp_rcv(skb)`.
    fentry_in_udp4, kprobe_in_udp4, udp::received(Skb 0)
);
on_function!(
    /// `udpv6_rcv(skb)`.
    fentry_in_udp6, kprobe_in_udp6, udp::received(Skb 0)
);
on_function!(
    /// `__udp_enqueue_schedule_skb(sk, skb)`.
    fentry_in_udp_queue, kprobe_in_udp_queue, udp::enqueued(Socket 0, Skb 1)
);
on_function!(
    /// `skb_consume_udp(sk, skb, len)`.
    fentry_in_udp_app, kprobe_in_udp_app, udp::consumed(Socket 0, Skb 1, Number 2)
);
on_function!(
    /// `udp_sendmsg(sk, msg, len)`.
    fentry_out_udp4_app, kprobe_out_udp4_app, udp::written(Socket 0)
);
on_function!(
    /// `udpv6_sendmsg(sk, msg, len)`.
    fentry_out_udp6_app, kprobe_out_udp6_app, udp::written(Socket 0)
);
on_function!(
    /// `ip_send_skb(net, skb)`.
    fentry_out_udp4, kprobe_out_udp4, udp::sent(Skb 1; AF_INET)
);
on_function!(
    /// `ip6_send_skb(skb)`.
    fentry_out_udp6, kprobe_out_udp6, udp::sent(Skb 0; AF_INET6)
);
on_function!(
    /// `ip_output(net, sk, skb)`.
    fentry_out_ip4, kprobe_out_ip4, ip::sent(Skb 2)
);
on_function!(
    /// `ip_mc_output(net, sk, skb)`.
    fentry_out_ip4_multicast, kprobe_out_ip4_multicast, ip::sent(Skb 2)
);
on_function!(
    /// `ip6_output(net, sk, skb)`.
    fentry_out_ip6, kprobe_out_ip6, ip::sent(Skb 2)
);
on_tracepoint!(
    /// `net_dev_queue(skb)`.
    btf_out_drv, transmit::queued(Skb 0)
);

/// `sched_process_fork(parent, child)`, of a wanted process, and of a thread that may read: rare enough for one program to
/// serve both backends, as the next two.
#[raw_tracepoint]
pub fn raw_started(context: RawTracePointContext) -> i32 {
    #[cfg(feature = "fine")]
    net_latency_ebpf::readers::born(Thread::<Probed>::new(context.arg(1)));
    end(&context, processes::started::<Probed>(Thread::new(context.arg(1)))) as i32
}

/// `sched_process_exit(task)`: of a wanted process, and of a thread that reads.
#[raw_tracepoint]
pub fn raw_exited(context: RawTracePointContext) -> i32 {
    let task = Thread::<Probed>::new(context.arg(0));
    processes::exited(task);
    #[cfg(feature = "fine")]
    net_latency_ebpf::readers::exited(task);
    0
}

/// `sched_process_free(task)`.
#[raw_tracepoint]
pub fn raw_freed(context: RawTracePointContext) -> i32 {
    processes::freed::<Probed>(Thread::new(context.arg(0)));
    0
}

/// What only fine stages take.
#[cfg(feature = "fine")]
mod fine {
    use net_latency_ebpf::{
        readers,
        tcp::{held, in_flight},
    };

    use super::*;

    /// Declares the fentry and the kprobe form of a hook on a call to receive. What it is called with does not matter.
    macro_rules! on_call {
        ($(#[$doc:meta])* $fentry:ident, $kprobe:ident) => {
            $(#[$doc])*
            #[fentry]
            pub fn $fentry(context: FEntryContext) -> u32 {
                end(&context, readers::asks())
            }
            $(#[$doc])*
            #[kprobe]
            pub fn $kprobe(context: ProbeContext) -> u32 {
                end(&context, readers::asks())
            }
        };
    }

    on_call!(
        /// `tcp_recvmsg(sk, …)`.
        fentry_in_asks_tcp, kprobe_in_asks_tcp
    );
    on_call!(
        /// `tcp_zerocopy_receive(sk, …)`: by getsockopt.
        fentry_in_asks_zero, kprobe_in_asks_zero
    );
    on_call!(
        /// `mptcp_recvmsg(sk, …)`.
        fentry_in_asks_multipath, kprobe_in_asks_multipath
    );
    on_call!(
        /// `udp_recvmsg(sk, …)`.
        fentry_in_asks_udp4, kprobe_in_asks_udp4
    );
    on_call!(
        /// `udpv6_recvmsg(sk, …)`.
        fentry_in_asks_udp6, kprobe_in_asks_udp6
    );

    on_function!(
        /// `tcp_ack(sk, skb, flag)`.
        fentry_out_acked, kprobe_out_acked, in_flight::acked(Socket 0, Skb 1)
    );
    on_function!(
        /// `tcp_add_backlog(sk, skb, …)`.
        fentry_out_backlog, kprobe_out_backlog, in_flight::backlogged(Socket 0, Skb 1)
    );
    on_function!(
        /// `tcp_chrono_stop(sk, type)`.
        fentry_out_stopped, kprobe_out_stopped, held::stopped(Socket 0, Number 1)
    );
    on_tracepoint!(
        /// `net_dev_start_xmit(skb, dev)`.
        btf_out_driven, transmit::driven(Skb 0)
    );
    on_tracepoint!(
        /// `net_dev_xmit(skb, rc, dev, len)`.
        btf_out_left, transmit::left(Skb 0)
    );

    /// `sched_waking(p)`.
    #[btf_tracepoint]
    pub fn btf_woken(context: BtfTracePointContext) -> i32 {
        end(&context, readers::woken::<Direct>(Thread::new(context.arg(0)))) as i32
    }

    /// `sched_switch(preempt, prev, next, …)`.
    #[btf_tracepoint]
    pub fn btf_switched(context: BtfTracePointContext) -> i32 {
        end(&context, readers::switched::<Direct>(Thread::new(context.arg(1)), Thread::new(context.arg(2))))
            as i32
    }
}
