//! Structs of a kernel: which fields the hooks read, how large each is, and where it lies. In the order of Linux 6.1 or, so that nothing
//! rests on one order, in any other.

use std::vec::Vec;

use net_latency_common::Offsets;

use super::choice::Choice;

/// A field: the word that says where it lies, its size, and how it is aligned.
type Field = (fn(&mut Offsets) -> &mut u32, u32, u32);

macro_rules! fields {
    ($($field:ident: $size:literal),* $(,)?) => {
        [$((|offsets: &mut Offsets| &mut offsets.$field, $size, if $size % 8 == 0 { 8 } else { $size })),*]
    };
}

/// How long each struct is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sizes {
    pub(super) skb: u32,
    pub(super) shared: u32,
    pub(super) device: u32,
    pub(super) net: u32,
    pub(super) sock: u32,
    pub(super) task: u32,
    pub(super) signal: u32,
    pub(super) qdisc: u32,
    pub(super) qdisc_ops: u32,
}

/// Gives each field its place. Between them there may be others.
fn place(fields: &mut [Field], offsets: &mut Offsets, choice: &mut Choice, is_shuffled: bool) -> u32 {
    let mut at = 8;
    if is_shuffled {
        for last in (1..fields.len()).rev() {
            fields.swap(last, choice.below(last as u32 + 1) as usize);
        }
    }
    for (field, size, align) in fields {
        if is_shuffled {
            at += choice.below(3) * 8;
        }
        at = at.next_multiple_of(*align);
        *field(offsets) = at;
        at += *size;
    }
    at.next_multiple_of(8)
}

/// The structs of a kernel.
pub(super) fn draw(choice: &mut Choice, is_shuffled: bool) -> (Offsets, Sizes) {
    let mut offsets = Offsets::default();
    let mut of = |fields: &mut [Field]| place(fields, &mut offsets, choice, is_shuffled);
    let sizes = Sizes {
        skb: of(&mut fields! {
            sk_buff_next: 8, sk_buff_dev: 8, sk_buff_sk: 8, sk_buff_skb_mstamp_ns: 8, tcp_skb_cb_seq: 4, tcp_skb_cb_end_seq: 4,
            tcp_skb_cb_tcp_gso_segs: 2, tcp_skb_cb_tcp_flags: 1, tcp_skb_cb_sacked: 1, tcp_skb_cb_ack_seq: 4, sk_buff_len: 4,
            sk_buff_data_len: 4, sk_buff_mark: 4, sk_buff_protocol: 2, sk_buff_transport_header: 2, sk_buff_network_header: 2,
            sk_buff_end: 4, sk_buff_head: 8, sk_buff_data: 8, sk_buff_users: 4, sk_buff_cloned: 1, sk_buff_skb_iif: 4,
            mptcp_skb_cb_map_seq: 8,
        }),
        shared: of(
            &mut fields! { skb_shared_info_dataref: 4, skb_shared_info_nr_frags: 1, skb_shared_info_gso_segs: 2, skb_shared_info_frags: 16 },
        ),
        device: of(
            &mut fields! { net_device_ifindex: 4, net_device_name: 16, net_device_nd_net: 8, net_device_qdisc: 8 },
        ),
        net: of(&mut fields! { net_ns_inum: 4 }),
        sock: of(&mut fields! {
            sock_skc_addrpair: 8, sock_skc_portpair: 4, sock_skc_family: 2, sock_skc_state: 1, sock_skc_net: 8, sock_skc_v6_daddr: 16,
            sock_skc_v6_rcv_saddr: 16, sock_sk_lock_owned: 4, sock_sk_drops: 4, sock_sk_write_pending: 4, sock_sk_receive_queue: 24, sock_sk_backlog_len: 4,
            sock_sk_protocol: 2, tcp_sock_rcv_nxt: 4, tcp_sock_copied_seq: 4, tcp_sock_snd_nxt: 4, tcp_sock_snd_una: 4, tcp_sock_write_seq: 4,
            tcp_sock_out_of_order_queue: 8, tcp_sock_snd_wnd: 4, tcp_sock_icsk_retransmits: 1, tcp_sock_srtt_us: 4,
            tcp_sock_dsack_dups: 4, inet_sock_inet_sport: 2, udp_sock_pending: 4, sock_sk_write_queue: 24, sock_sk_tsq_flags: 8, sock_sk_pacing_status: 4,
            tcp_sock_packets_out: 4, tcp_sock_retrans_out: 4, tcp_sock_sacked_out: 4, tcp_sock_lost_out: 4, tcp_sock_snd_cwnd: 4,
            tcp_sock_snd_sml: 4, tcp_sock_nonagle: 1, tcp_sock_chrono_type: 1, tcp_sock_mss_cache: 4, tcp_sock_tcp_wstamp_ns: 8,
            tcp_sock_tcp_clock_cache: 8, mptcp_sock_write_seq: 8, mptcp_sock_snd_nxt: 8, mptcp_sock_ack_seq: 8,
            mptcp_sock_rcv_data_fin_seq: 8, mptcp_sock_receive_queue: 24, sock_sk_lock_slock: 4, tcp_sock_icsk_ulp_data: 8,
            mptcp_subflow_context_conn: 8, mptcp_subflow_context_map_seq: 8, mptcp_subflow_context_map_subflow_seq: 4,
            mptcp_subflow_context_ssn_offset: 4, mptcp_data_frag_data_seq: 8, mptcp_sendmsg_info_sent: 2,
        }),
        task: of(&mut fields! {
            task_struct_flags: 4, task_struct_pid: 4, task_struct_tgid: 4, task_struct_group_leader: 8, task_struct_signal: 8,
            task_struct_start_time: 8, task_struct_comm: 16,
        }),
        signal: of(&mut fields! { signal_struct_live: 4 }),
        qdisc: of(&mut fields! { qdisc_enqueue: 8, qdisc_ops: 8 }),
        qdisc_ops: of(&mut fields! { qdisc_ops_enqueue: 8 }),
    };
    // Where the bits of 4 and of 2 begin in their bytes.
    offsets.tcp_sock_nonagle_shift = choice.below(5);
    offsets.tcp_sock_chrono_type_shift = choice.below(7);
    (offsets, sizes)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_fields_of_a_struct_meet() {
        for seed in 1..100 {
            let mut choice = Choice::new(seed);
            let (offsets, sizes) = draw(&mut choice, seed % 2 == 0);
            let skb =
                [offsets.sk_buff_len, offsets.sk_buff_mark, offsets.sk_buff_head, offsets.sk_buff_users];
            assert_eq!(BTreeSet::from(skb).len(), 4);
            assert!(skb.iter().all(|at| *at < sizes.skb && at % 4 == 0), "{skb:?} of {}", sizes.skb);
            let used: Vec<u32> = [offsets.task_struct_pid, offsets.task_struct_tgid].into();
            assert_ne!(used[0], used[1]);
        }
    }
}
