//! What the user side writes into the programs before they are loaded: see [`crate::Place`].

/// Byte offsets of kernel struct fields, from the running kernel's BTF. `tcp_skb_cb` is in an skb's control block: these offsets are from
/// the skb's beginning. For a bit-field this is the byte that it begins in, and `_shift` the bit there. From `sock_sk_write_queue` on all
/// are 0 without fine stages, or this kernel lacks one; from `sock_skc_flags` on, where connections are not; from `mptcp_sock_write_seq`
/// on, where MPTCP is not followed. `bpf_get_current_task_btf` is no offset: 1 where programs can call that helper (Linux 5.11).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
#[expect(missing_docs, reason = "each field is named <struct>_<field> after the kernel's own names")]
pub struct Offsets {
    pub sk_buff_next: u32,
    pub sk_buff_sk: u32,
    pub sk_buff_dev: u32,
    pub sk_buff_len: u32,
    pub sk_buff_data_len: u32,
    pub sk_buff_head: u32,
    pub sk_buff_data: u32,
    pub sk_buff_end: u32,
    pub sk_buff_users: u32,
    pub sk_buff_skb_iif: u32,
    pub sk_buff_cloned: u32,
    pub sk_buff_cloned_shift: u32,
    pub sk_buff_mark: u32,
    pub sk_buff_skb_mstamp_ns: u32,
    pub sk_buff_protocol: u32,
    pub sk_buff_network_header: u32,
    pub sk_buff_transport_header: u32,
    pub skb_shared_info_dataref: u32,
    pub skb_shared_info_nr_frags: u32,
    pub skb_shared_info_frags: u32,
    pub skb_shared_info_gso_segs: u32,
    pub tcp_skb_cb_seq: u32,
    pub tcp_skb_cb_end_seq: u32,
    pub tcp_skb_cb_tcp_gso_segs: u32,
    pub tcp_skb_cb_tcp_flags: u32,
    pub tcp_skb_cb_sacked: u32,
    pub tcp_skb_cb_ack_seq: u32,
    pub net_device_ifindex: u32,
    pub net_device_name: u32,
    pub net_device_nd_net: u32,
    pub net_device_qdisc: u32,
    pub qdisc_enqueue: u32,
    pub qdisc_ops: u32,
    pub qdisc_ops_enqueue: u32,
    pub net_ns_inum: u32,
    pub sock_skc_family: u32,
    pub sock_skc_state: u32,
    pub sock_skc_addrpair: u32,
    pub sock_skc_portpair: u32,
    pub sock_skc_net: u32,
    pub sock_skc_v6_daddr: u32,
    pub sock_skc_v6_rcv_saddr: u32,
    pub sock_sk_protocol: u32,
    pub sock_sk_lock_owned: u32,
    pub sock_sk_receive_queue: u32,
    pub sock_sk_backlog_len: u32,
    pub sock_sk_drops: u32,
    pub sock_sk_write_pending: u32,
    pub tcp_sock_rcv_nxt: u32,
    pub tcp_sock_out_of_order_queue: u32,
    pub tcp_sock_copied_seq: u32,
    pub tcp_sock_snd_nxt: u32,
    pub tcp_sock_write_seq: u32,
    pub tcp_sock_snd_wnd: u32,
    pub tcp_sock_icsk_retransmits: u32,
    pub tcp_sock_srtt_us: u32,
    pub tcp_sock_dsack_dups: u32,
    pub inet_sock_inet_sport: u32,
    pub udp_sock_pending: u32,
    pub task_struct_flags: u32,
    pub task_struct_pid: u32,
    pub task_struct_tgid: u32,
    pub task_struct_group_leader: u32,
    pub task_struct_signal: u32,
    pub task_struct_start_time: u32,
    pub task_struct_comm: u32,
    pub signal_struct_live: u32,
    pub bpf_get_current_task_btf: u32,
    pub sock_sk_write_queue: u32,
    pub sock_sk_tsq_flags: u32,
    pub sock_sk_pacing_status: u32,
    pub tcp_sock_packets_out: u32,
    pub tcp_sock_retrans_out: u32,
    pub tcp_sock_sacked_out: u32,
    pub tcp_sock_lost_out: u32,
    pub tcp_sock_snd_cwnd: u32,
    pub tcp_sock_snd_una: u32,
    pub tcp_sock_snd_sml: u32,
    pub tcp_sock_nonagle: u32,
    pub tcp_sock_nonagle_shift: u32,
    pub tcp_sock_chrono_type: u32,
    pub tcp_sock_chrono_type_shift: u32,
    pub tcp_sock_mss_cache: u32,
    pub tcp_sock_tcp_wstamp_ns: u32,
    pub tcp_sock_tcp_clock_cache: u32,
    pub sock_skc_flags: u32,
    pub sock_sk_err: u32,
    pub sock_sk_mark: u32,
    pub sock_sk_ack_backlog: u32,
    pub sock_sk_max_ack_backlog: u32,
    pub tcp_sock_bytes_received: u32,
    pub tcp_sock_bytes_sent: u32,
    pub tcp_sock_bytes_retrans: u32,
    pub tcp_sock_segs_in: u32,
    pub tcp_sock_segs_out: u32,
    pub tcp_sock_total_retrans: u32,
    pub tcp_sock_rtt_min: u32,
    pub tcp_request_sock_snt_synack: u32,
    /// From here on what tells the system call that a task is in: all are 0 without fine stages, or this kernel lacks one. The word that
    /// says whether it is one of 32 bits.
    pub task_struct_of_32_bits: u32,
    pub task_struct_stack: u32,
    /// Where on a task's stack its `pt_regs` are.
    pub stack_registers: u32,
    /// The number of the system call.
    pub pt_regs_call: u32,
    /// No offset: 1 where programs can call that helper (Linux 5.15).
    pub bpf_task_pt_regs: u32,
    /// 0 on a kernel without MPTCP, as the next.
    pub mptcp_sock_first: u32,
    pub tcp_sock_is_mptcp: u32,
    pub mptcp_sock_write_seq: u32,
    pub mptcp_sock_snd_nxt: u32,
    pub mptcp_sock_ack_seq: u32,
    pub mptcp_sock_rcv_data_fin_seq: u32,
    /// 0 since Linux 6.15, when this queue went.
    pub mptcp_sock_receive_queue: u32,
    pub mptcp_subflow_context_conn: u32,
    pub mptcp_subflow_context_map_seq: u32,
    pub mptcp_subflow_context_map_subflow_seq: u32,
    pub mptcp_subflow_context_ssn_offset: u32,
    /// From the skb's beginning.
    pub mptcp_skb_cb_map_seq: u32,
    pub mptcp_data_frag_data_seq: u32,
    pub mptcp_sendmsg_info_sent: u32,
    pub tcp_sock_icsk_ulp_data: u32,
    /// Not 0 while the spinlock of the socket's lock is held.
    pub sock_sk_lock_slock: u32,
}

/// Where pages are mapped, or on x86-64 the addresses of the variables that say so (arch/x86/mm/kaslr.c); 0 where unknown. On arm64 both
/// are where page 0 would be, which need not be memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PageBases {
    /// `page_offset_base`: where the direct mapping of all memory begins.
    pub page_offset_base: u64,
    /// `vmemmap_base`: where the array of all `struct page` begins.
    pub vmemmap_base: u64,
    /// On x86-64 1 if these are the values; else the variables' addresses. On arm64 the bytes of a page.
    pub are_values: u64,
}

impl PageBases {
    /// Bytes of a page of x86-64.
    pub const PAGE: u64 = 4096;
    /// `sizeof(struct page)`, the same in all kernels of the matrix.
    pub const PAGE_STRUCT: u64 = 64;
}

/// What to trace and show. A filter that is 0 is off. In words of 32 bits, as instructions name them ([`crate::Place`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, packed(4))]
pub struct Settings {
    /// Only packets that took N ns, as a whole or in one stage.
    pub slower_ns: u64,
    /// While times are counted: packets that took N ns, as a whole or in one stage, have a record besides. 0: none has.
    pub record_slower_ns: u64,
    /// When the programs were about to be loaded, in ns of `CLOCK_MONOTONIC`: no stamp of theirs is older.
    pub since: u64,
    /// A random number: a peer that may choose addresses must not know how they are mixed into a key.
    pub seed: u64,
    /// Changes of state of sockets that tasks hold have a program of their own: 1, or 0.
    pub tasks_apart: u32,
    /// Softirqs run in threads, which may be preempted and interrupt no program: 1, or 0.
    pub realtime: u32,
    /// A client's connection has a record as soon as it is established, too: 1, or 0.
    pub tell_established: u32,
    /// The kernel says why it drops a packet: 1, or 0.
    pub shows_drop_reasons: u32,
    /// Only packets of certain tasks: one of the following three is on.
    pub filter_task: u32,
    /// Only packets of this process; of those in the set of processes if it is [`PIDS_IN_SET`]; of any if it is 0.
    pub filter_pid: u32,
    /// Only tasks that one of N banks in the GLOBS map matches: the name of the thread, or of its process.
    pub filter_comm: u32,
    /// Only tasks in one of N cgroups in the CGROUPS map, or below.
    pub filter_cgroup: u32,
    /// Only packets with one end's port in the PORTS map.
    pub filter_port: u32,
    /// Only packets with one end's address in the HOSTS map.
    pub filter_host: u32,
    /// Only packets of this address family: `AF_INET` or `AF_INET6`.
    pub filter_family: u32,
    /// Only packets of this protocol: `IPPROTO_TCP` or `IPPROTO_UDP`.
    pub filter_protocol: u32,
    /// Only packets in the network namespaces in the NETNS map.
    pub filter_netns: u32,
    /// Only packets on the devices whose names are in the INTERFACES map.
    pub filter_interface: u32,
    /// Only packets whose mark is `mark` in these bits.
    pub filter_mark: u32,
    /// See `filter_mark`.
    pub mark: u32,
    /// Only packets for which a random number is below this.
    pub sample_below: u32,
    /// Packets without application data get lines too.
    pub control: u32,
    /// Bytes in the ring buffer above which the reader is woken at once instead of by its timer.
    pub wakeup_bytes: u32,
    /// 0: a record for each packet. Else a [`crate::GroupBy`]: counts of times instead.
    pub histograms_by: u32,
    /// TCP lets a packet go where its control block is gone already, and only its header tells.
    pub tcp_header_only: u32,
    /// Whether TCP drops skbs without a word (`tcp_drop` before Linux 5.18).
    pub tcp_drops_unseen: u32,
    /// [`crate::FineRecord`]s instead of [`crate::PacketRecord`]s.
    pub fine: u32,
    /// The ports that the kernel gives out: the first, and the last shifted by 16 bits.
    pub ephemeral_ports: u32,
}

const _: () = assert!(size_of::<Settings>() == 5 * 8 + 22 * 4, "settings have no padding");
// SAFETY: `repr(C)`, 64-bit integers only.
#[cfg(feature = "user")]
unsafe impl aya::Pod for PageBases {}
