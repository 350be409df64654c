//! The functions on a packet's way: which are traced, and where a packet is once it has come to one.

use super::stage::Stage;
use crate::request::Functions;

/// Whether a function that takes an skb is traced.
pub(super) fn wants(functions: &Functions, name: &str) -> bool {
    match functions {
        Functions::All => true,
        Functions::Default(more) => {
            USUAL.iter().any(|(usual, _)| *usual == name)
                || more.iter().any(|wildcard| wildcard.matches(name))
        }
    }
}

/// Functions that are traced unless told otherwise. Every packet of the machine costs as many calls as it comes to, so that those that
/// only ever follow another one of them are left out.
const USUAL: [(&str, Stage); 36] = [
    ("__ip_queue_xmit", Stage::IpOut),
    ("inet6_csk_xmit", Stage::IpOut),
    ("__ip_local_out", Stage::IpOut),
    ("ip_output", Stage::IpOut),
    ("ip_mc_output", Stage::IpOut),
    ("ip6_output", Stage::IpOut),
    ("ip_finish_output2", Stage::Neighbour),
    ("ip6_finish_output2", Stage::Neighbour),
    ("nf_hook_slow", Stage::Netfilter),
    ("ip_forward", Stage::Forward),
    ("ip6_forward", Stage::Forward),
    ("__dev_queue_xmit", Stage::Qdisc),
    ("sch_direct_xmit", Stage::Qdisc),
    ("__skb_gso_segment", Stage::Gso),
    ("skb_segment", Stage::Gso),
    ("dev_hard_start_xmit", Stage::Driver),
    ("veth_xmit", Stage::Driver),
    ("dev_gro_receive", Stage::Gro),
    ("ip_rcv_core", Stage::IpIn),
    ("ip6_rcv_core", Stage::IpIn),
    ("ip_local_deliver", Stage::IpIn),
    ("ip6_input", Stage::IpIn),
    ("ip_protocol_deliver_rcu", Stage::IpIn),
    ("ip6_protocol_deliver_rcu", Stage::IpIn),
    ("tcp_v4_rcv", Stage::TcpIn),
    ("tcp_v6_rcv", Stage::TcpIn),
    ("tcp_rcv_state_process", Stage::TcpIn),
    ("tcp_data_queue", Stage::TcpIn),
    ("tcp_queue_rcv", Stage::SocketQueue),
    ("udp_rcv", Stage::UdpIn),
    ("udpv6_rcv", Stage::UdpIn),
    ("udp_queue_rcv_one_skb", Stage::UdpIn),
    ("udpv6_queue_rcv_one_skb", Stage::UdpIn),
    ("napi_consume_skb", Stage::Same),
    ("ip_fragment", Stage::IpOut),
    ("ip_defrag", Stage::IpIn),
];

/// Where a packet is once it has come to this function, as far as that is known.
#[must_use]
pub(super) fn stage(name: &str) -> Stage {
    let special =
        super::hooks::FUNCTIONS.iter().flat_map(|hook| hook.targets).find(|(target, _)| *target == name);
    let usual = || USUAL.iter().find(|(usual, _)| *usual == name);
    special.or_else(usual).map_or(Stage::Same, |(_, stage)| *stage)
}

#[cfg(test)]
mod tests {
    use glob::Pattern;

    use super::*;

    #[test]
    fn the_usual_set_can_be_added_to() {
        let more = Functions::Default(vec![Pattern::new("nft_*").expect("a pattern")]);
        assert!(wants(&more, "tcp_v4_rcv") && wants(&more, "nft_do_chain") && !wants(&more, "tcp_ack"));
        assert!(wants(&Functions::All, "tcp_ack"));
    }

    #[test]
    fn no_function_is_there_twice() {
        let special = super::super::hooks::FUNCTIONS.iter().flat_map(|hook| hook.targets);
        let mut names: Vec<_> = USUAL.iter().chain(special).map(|(name, _)| *name).collect();
        names.sort_unstable();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
