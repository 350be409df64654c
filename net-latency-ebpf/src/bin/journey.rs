//! The programs of `net-latency journey`. Which of them are loaded, and to what they are attached, is decided by the
//! user side from what the running kernel has.

#![no_std]
#![no_main]
#![expect(
    missing_docs,
    unreachable_pub,
    reason = "the program macros generate public functions of their own"
)]

mod object;

use aya_ebpf::{
    EbpfContext as _,
    macros::{fentry, kprobe, raw_tracepoint},
    programs::{FEntryContext, ProbeContext, RawTracePointContext},
};
use net_latency_common::{AF_INET, AF_INET6, journey as common};
use net_latency_ebpf::{
    flow::processes,
    journey::{begin, context, heads, position, queue, schedule},
    kernel::{
        arch,
        memory::{Number, Probed},
        skb::Skb,
        socket::Socket,
        task::Thread,
    },
};

/// Argument `n` of a probed function; null if there is none, which every read survives.
#[inline(always)]
fn register(context: &ProbeContext, n: usize) -> *const u8 {
    context.arg(n).unwrap_or(core::ptr::null())
}

/// Where the function begins, or a few bytes behind that.
#[inline(always)]
fn address(context: &ProbeContext) -> u64 {
    // SAFETY: the context of a kprobe's program.
    unsafe { arch::address(context.regs) }
}

/// Declares a program for functions that have the skb at one position.
macro_rules! at_position {
    ($($name:ident $n:literal)+) => {$(
        #[kprobe]
        pub fn $name(context: ProbeContext) -> u32 {
            heads::seen(Skb::<Probed>::new(register(&context, $n)), address(&context));
            0
        }
    )+};
}
at_position!(journey_arg0 0 journey_arg1 1 journey_arg2 2 journey_arg3 3 journey_arg4 4);

/// Declares a program for a function, or several, that are more to us than a place on the way.
macro_rules! on_function {
    ($($(#[$doc:meta])* $name:ident: $module:ident::$logic:ident($($kind:ident $n:literal),+ $(; $extra:expr)?);)+) => {$(
        $(#[$doc])*
        #[kprobe]
        pub fn $name(context: ProbeContext) -> u32 {
            $module::$logic::<Probed>($($kind::new(register(&context, $n)),)+ $($extra,)? address(&context));
            0
        }
    )+};
}
on_function! {
    /// `tcp_sendmsg_locked(sk, …)` or `do_tcp_sendpages(sk, …)`.
    journey_tcp_called: begin::tcp_called(Socket 0);
    /// `__tcp_transmit_skb(sk, skb, …)`.
    journey_tcp_transmitted: begin::tcp_transmitted(Socket 0, Skb 1);
    /// `udp_sendmsg(sk, …)` or `udpv6_sendmsg(sk, …)`.
    journey_udp_called: begin::udp_called(Socket 0);
    /// `udp_send_skb(skb, …)` or `udp_v6_send_skb(skb, …)`.
    journey_udp_made: begin::udp_made(Skb 0);
    /// `ip_send_skb(net, skb)`.
    journey_udp4_sent: begin::udp_sent(Skb 1; AF_INET);
    /// `ip6_send_skb(skb)`.
    journey_udp6_sent: begin::udp_sent(Skb 0; AF_INET6);
    /// `skb_release_head_state(skb)`.
    journey_freed: heads::freed(Skb 0);
    /// `skb_copy_header(new, old)`.
    journey_copied: heads::copied(Skb 0, Skb 1);
    /// `pskb_expand_head(skb, …)`.
    journey_expanded: heads::expanded(Skb 0);
    /// `skb_gro_receive(holder, skb)`.
    journey_merged: heads::merged(Skb 0, Skb 1);
    /// `tcp_v4_do_rcv(sk, skb)`, `tcp_v6_do_rcv(sk, skb)` or `tcp_add_backlog(sk, skb)`.
    journey_tcp_received: queue::received(Socket 0, Skb 1);
    /// `__udp_enqueue_schedule_skb(sk, skb)`.
    journey_udp_enqueued: heads::enqueued(Skb 1);
    /// `__napi_schedule(napi)` or `__napi_schedule_irqoff(napi)`.
    journey_napi_scheduled: context::scheduled(Number 0);
    /// `skb_consume_udp(sk, skb, len)`.
    journey_udp_consumed: heads::consumed(Skb 1, Number 2);
}

/// Declares a program for a tracepoint.
macro_rules! on_tracepoint {
    ($($name:ident: $module:ident::$logic:ident($($kind:ident $n:literal),+ $(; $extra:expr)?);)+) => {$(
        #[raw_tracepoint]
        pub fn $name(context: RawTracePointContext) -> i32 {
            $module::$logic::<Probed>($($kind::new(context.arg($n)),)+ $($extra)?);
            0
        }
    )+};
}
on_tracepoint! {
    journey_netif_rx: begin::arrived(Skb 0; common::PLACE_NETIF_RX);
    journey_napi_gro_receive_entry: begin::arrived(Skb 0; common::PLACE_GRO_RECEIVE);
    journey_napi_gro_frags_entry: begin::arrived(Skb 0; common::PLACE_GRO_FRAGS);
    journey_netif_receive_skb_entry: begin::arrived(Skb 0; common::PLACE_RECEIVE_ENTRY);
    journey_netif_receive_skb_list_entry: begin::arrived(Skb 0; common::PLACE_RECEIVE_LIST);
    journey_netif_receive_skb: heads::seen(Skb 0; common::PLACE_RECEIVE);
    journey_qdisc_enqueue: heads::seen(Skb 2; common::PLACE_ENQUEUE);
    journey_qdisc_dequeue: heads::seen(Skb 3; common::PLACE_DEQUEUE);
    journey_consume_skb: heads::seen(Skb 0; common::PLACE_CONSUME);
    journey_skb_copy_datagram_iovec: queue::copying(Skb 0, Number 1);
    journey_tcp_rcv_space_adjust: queue::taken(Socket 0);
    journey_sched_waking: schedule::waking(Thread 0);
    journey_sched_switch: schedule::switched(Thread 2);
    journey_process_exited: processes::exited(Thread 0);
}

/// `kfree_skb(skb, location)`, and since Linux 5.17 `reason`.
#[raw_tracepoint]
pub fn journey_kfree_skb(context: RawTracePointContext) -> i32 {
    let reason: *const u8 = if heads::has_reasons() { context.arg(2) } else { core::ptr::null() };
    let location: *const u8 = context.arg(1);
    heads::dropped(Skb::<Probed>::new(context.arg(0)), location as u64, reason as u64 as u32);
    0
}

/// `irq_handler_entry(interrupt, action)`.
#[raw_tracepoint]
pub fn journey_irq_handler_entry(context: RawTracePointContext) -> i32 {
    context::handling(context.arg::<*const u8>(0) as u64 as u32);
    0
}

/// `irq_handler_exit(interrupt, action, result)`.
#[raw_tracepoint]
pub fn journey_irq_handler_exit(_: RawTracePointContext) -> i32 {
    context::handled();
    0
}

/// `softirq_raise(vector)`.
#[raw_tracepoint]
pub fn journey_softirq_raise(context: RawTracePointContext) -> i32 {
    context::raised(context.arg::<*const u8>(0) as u64 as u32);
    0
}

/// `softirq_entry(vector)`.
#[raw_tracepoint]
pub fn journey_softirq_entry(context: RawTracePointContext) -> i32 {
    context::entered(context.arg::<*const u8>(0) as u64 as u32);
    0
}

/// Declares a program for the one function that a slot is given.
macro_rules! slots {
    ($($name:ident $n:literal)+) => {$(
        #[fentry]
        pub fn $name(context: FEntryContext) -> u32 {
            heads::seen_in(context.as_ptr().cast(), position($n), common::PLACES + $n);
            0
        }
    )+};
}
slots! {
    slot_0 0 slot_1 1 slot_2 2 slot_3 3 slot_4 4 slot_5 5 slot_6 6 slot_7 7
    slot_8 8 slot_9 9 slot_10 10 slot_11 11 slot_12 12 slot_13 13 slot_14 14 slot_15 15
    slot_16 16 slot_17 17 slot_18 18 slot_19 19 slot_20 20 slot_21 21 slot_22 22 slot_23 23
    slot_24 24 slot_25 25 slot_26 26 slot_27 27 slot_28 28 slot_29 29 slot_30 30 slot_31 31
    slot_32 32 slot_33 33 slot_34 34 slot_35 35 slot_36 36 slot_37 37 slot_38 38 slot_39 39
    slot_40 40 slot_41 41 slot_42 42 slot_43 43 slot_44 44 slot_45 45 slot_46 46 slot_47 47
    slot_48 48 slot_49 49 slot_50 50 slot_51 51 slot_52 52 slot_53 53 slot_54 54 slot_55 55
    slot_56 56 slot_57 57 slot_58 58 slot_59 59 slot_60 60 slot_61 61 slot_62 62 slot_63 63
}
