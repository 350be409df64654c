//! The functions on a packet's way: which are traced, and where a packet is once it has come to one.

use std::{fmt, str::FromStr};

use super::stage::Stage;

/// What to trace beside what is needed to follow packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Functions {
    /// The usual set, and what these name.
    Default(Vec<Wildcard>),
    /// All that take an skb.
    All,
}

impl Functions {
    /// Whether a function that takes an skb is traced.
    #[must_use]
    pub fn wants(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Default(more) => {
                USUAL.iter().any(|(usual, _)| *usual == name)
                    || more.iter().any(|wildcard| wildcard.matches(name))
            }
        }
    }
}

/// A pattern for names of functions: `*` stands for any characters, `?` for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wildcard(String);

impl Wildcard {
    /// Whether it matches a whole name.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let (pattern, name) = (self.0.as_bytes(), name.as_bytes());
        let (mut p, mut n) = (0, 0);
        // Where the last star stood, and what it has taken so far.
        let mut star = None;
        while n < name.len() {
            match pattern.get(p) {
                Some(b'*') => {
                    star = Some((p, n));
                    p += 1;
                }
                Some(&byte) if byte == b'?' || byte == name[n] => {
                    p += 1;
                    n += 1;
                }
                _ => match star {
                    Some((at, taken)) => {
                        star = Some((at, taken + 1));
                        p = at + 1;
                        n = taken + 1;
                    }
                    None => return false,
                },
            }
        }
        pattern[p..].iter().all(|byte| *byte == b'*')
    }
}

impl FromStr for Wildcard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_right = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '*' | '?');
        if text.is_empty() || !text.chars().all(is_right) {
            return Err("write a function's name, with * and ? where anything may stand: 'tcp_*'".to_owned());
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for Wildcard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
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
    ("dev_hard_start_xmit", Stage::DriverOut),
    ("veth_xmit", Stage::DriverOut),
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
    use proptest::prelude::*;

    use super::*;

    fn wildcard(text: &str) -> Wildcard {
        text.parse().expect("a pattern")
    }

    #[test]
    fn patterns_match_whole_names() {
        assert!(wildcard("tcp_*").matches("tcp_v4_rcv"));
        assert!(wildcard("*_rcv").matches("tcp_v4_rcv"));
        assert!(wildcard("tcp_v?_rcv").matches("tcp_v6_rcv"));
        assert!(wildcard("*a*b*").matches("xaxbx"));
        assert!(!wildcard("tcp").matches("tcp_v4_rcv"));
        assert!(!wildcard("tcp_v?").matches("tcp_v"));
        assert!(!wildcard("*a*b").matches("ab_"));
        for text in ["", "tcp rcv", "tcp;", "[a]"] {
            assert!(text.parse::<Wildcard>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_usual_set_can_be_added_to() {
        let more = Functions::Default(vec![wildcard("nft_*")]);
        assert!(more.wants("tcp_v4_rcv") && more.wants("nft_do_chain") && !more.wants("tcp_ack"));
        assert!(Functions::All.wants("tcp_ack"));
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

    proptest! {
        #[test]
        fn a_star_takes_anything(before in "[a-z_]{0,8}", middle in "[a-z_]{0,8}", after in "[a-z_]{0,8}") {
            let pattern = wildcard(&format!("{before}*{after}"));
            let name = format!("{before}{middle}{after}");
            prop_assert!(pattern.matches(&name));
        }
    }
}
