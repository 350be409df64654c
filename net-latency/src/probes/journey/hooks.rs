//! Functions and tracepoints that are more than places on a packet's way, or are so in any case.

use net_latency_common::journey as places;

use super::stage::Stage;

/// A program for functions of which this kernel may have some.
pub(super) struct FunctionHook {
    pub(super) program: &'static str,
    pub(super) targets: &'static [(&'static str, Stage)],
    /// Without any of these no packet can be followed.
    pub(super) is_needed: bool,
}

/// A program for a tracepoint.
pub(super) struct TracepointHook {
    pub(super) program: &'static str,
    pub(super) tracepoint: &'static str,
    /// A `PLACE_` constant; 0 if it makes no row.
    pub(super) place: u64,
    pub(super) stage: Stage,
}

const fn function(program: &'static str, targets: &'static [(&'static str, Stage)]) -> FunctionHook {
    FunctionHook { program, targets, is_needed: false }
}

const fn needed(program: &'static str, targets: &'static [(&'static str, Stage)]) -> FunctionHook {
    FunctionHook { program, targets, is_needed: true }
}

const fn tracepoint(name: &'static str, program: &'static str, place: u64, stage: Stage) -> TracepointHook {
    TracepointHook { program, tracepoint: name, place, stage }
}

/// Those of functions.
pub(super) const FUNCTIONS: [FunctionHook; 14] = [
    needed("journey_freed", &[("skb_release_head_state", Stage::Same)]),
    needed("journey_expanded", &[("pskb_expand_head", Stage::Same)]),
    needed("journey_copied", &[("skb_copy_header", Stage::Same)]),
    function("journey_merged", &[("skb_gro_receive", Stage::Gro)]),
    needed(
        "journey_tcp_received",
        &[
            ("tcp_v4_do_rcv", Stage::TcpIn),
            ("tcp_v6_do_rcv", Stage::TcpIn),
            ("tcp_add_backlog", Stage::SocketBacklog),
        ],
    ),
    needed("journey_udp_enqueued", &[("__udp_enqueue_schedule_skb", Stage::SocketQueue)]),
    needed("journey_udp_consumed", &[("skb_consume_udp", Stage::Copy)]),
    needed("journey_tcp_transmitted", &[("__tcp_transmit_skb", Stage::TcpOut)]),
    needed(
        "journey_tcp_called",
        &[("tcp_sendmsg_locked", Stage::TcpOut), ("do_tcp_sendpages", Stage::TcpOut)],
    ),
    function(
        "journey_napi_scheduled",
        &[("__napi_schedule", Stage::Same), ("__napi_schedule_irqoff", Stage::Same)],
    ),
    function("journey_udp4_sent", &[("ip_send_skb", Stage::IpOut)]),
    function("journey_udp6_sent", &[("ip6_send_skb", Stage::IpOut)]),
    function("journey_udp_made", &[("udp_send_skb", Stage::UdpOut), ("udp_v6_send_skb", Stage::UdpOut)]),
    function("journey_udp_called", &[("udp_sendmsg", Stage::UdpOut), ("udpv6_sendmsg", Stage::UdpOut)]),
];

/// The program of `TRACEPOINTS` that only serves if processes are wanted.
pub(super) const EXITED: &str = "journey_process_exited";

/// Programs of `FUNCTIONS` that only serve packets which begin here.
pub(super) const OUTWARDS: [&str; 4] =
    ["journey_udp_called", "journey_udp_made", "journey_tcp_called", "journey_tcp_transmitted"];

/// Those of tracepoints.
pub(super) const TRACEPOINTS: [TracepointHook; 19] = [
    tracepoint("sched_process_exit", EXITED, 0, Stage::Same),
    tracepoint("irq_handler_entry", "journey_irq_handler_entry", 0, Stage::Same),
    tracepoint("irq_handler_exit", "journey_irq_handler_exit", 0, Stage::Same),
    tracepoint("softirq_raise", "journey_softirq_raise", 0, Stage::Same),
    tracepoint("softirq_entry", "journey_softirq_entry", 0, Stage::Same),
    tracepoint("sched_waking", "journey_sched_waking", places::PLACE_WAKING, Stage::Cpu),
    tracepoint("sched_switch", "journey_sched_switch", places::PLACE_SWITCH, Stage::Reader),
    tracepoint("kfree_skb", "journey_kfree_skb", places::PLACE_DROP, Stage::Same),
    tracepoint("consume_skb", "journey_consume_skb", places::PLACE_CONSUME, Stage::Same),
    tracepoint("tcp_rcv_space_adjust", "journey_tcp_rcv_space_adjust", places::PLACE_TAKEN, Stage::Copy),
    tracepoint("skb_copy_datagram_iovec", "journey_skb_copy_datagram_iovec", places::PLACE_COPY, Stage::Copy),
    tracepoint("qdisc_enqueue", "journey_qdisc_enqueue", places::PLACE_ENQUEUE, Stage::Qdisc),
    tracepoint("qdisc_dequeue", "journey_qdisc_dequeue", places::PLACE_DEQUEUE, Stage::Qdisc),
    tracepoint("netif_receive_skb", "journey_netif_receive_skb", places::PLACE_RECEIVE, Stage::DeviceIn),
    tracepoint("netif_rx", "journey_netif_rx", places::PLACE_NETIF_RX, Stage::Backlog),
    tracepoint(
        "napi_gro_receive_entry",
        "journey_napi_gro_receive_entry",
        places::PLACE_GRO_RECEIVE,
        Stage::Gro,
    ),
    tracepoint("napi_gro_frags_entry", "journey_napi_gro_frags_entry", places::PLACE_GRO_FRAGS, Stage::Gro),
    tracepoint(
        "netif_receive_skb_entry",
        "journey_netif_receive_skb_entry",
        places::PLACE_RECEIVE_ENTRY,
        Stage::DeviceIn,
    ),
    tracepoint(
        "netif_receive_skb_list_entry",
        "journey_netif_receive_skb_list_entry",
        places::PLACE_RECEIVE_LIST,
        Stage::DeviceIn,
    ),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use net_latency_common::journey::SLOTS;

    use super::*;
    use crate::probes::{
        journey::{OBJECT, POSITIONS},
        programs_in,
    };

    #[test]
    fn the_tables_and_the_object_have_the_same_programs() {
        let functions = FUNCTIONS.iter().map(|hook| hook.program.to_owned());
        let tracepoints = TRACEPOINTS.iter().map(|hook| hook.program.to_owned());
        // What serves any function, by the position of the skb among its arguments.
        let positions = (0..POSITIONS).map(|position| format!("journey_arg{position}"));
        let slots = (0..SLOTS).map(|slot| format!("slot_{slot}"));
        let named: BTreeSet<String> = functions.chain(tracepoints).chain(positions).chain(slots).collect();
        assert_eq!(programs_in(OBJECT), named);
        for program in OUTWARDS {
            assert!(named.contains(program), "{program}");
        }
    }
}
