//! The kernel's fields that the programs read, each declared once: where BTF says that it lies, and how long it is. The user side looks
//! that up and writes it into the programs before they are loaded ([`crate::Place`]); the simulator makes structs of them.

use Group::{Calls, Connections, Held, Mptcp, Packets, Tasks};
use Location::{Apart, At, BitOf, ByteOf, Either, IfThere};

/// What fields are read for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the table says what each is")]
pub enum Group {
    Packets,
    Tasks,
    Held,
    Calls,
    Connections,
    Mptcp,
}

/// Where a field lies. A path is a struct, and in it a field, which may have fields: `struct.field.field`. Behind a `+` comes the path of
/// what begins there.
#[derive(Clone, Copy, Debug)]
pub enum Location {
    /// At the end of this path.
    At(&'static str),
    /// Likewise; 0 on kernels without it.
    IfThere(&'static str),
    /// At the end of the first of these that the kernel has.
    Either(&'static str, &'static str),
    /// In the byte in which this bit-field begins.
    ByteOf(&'static str),
    /// At the bit of that byte in which it begins.
    BitOf(&'static str),
    /// By another way: the user side's `kernel/layout.rs`.
    Apart,
}

impl Location {
    /// Its paths, `+` and all.
    pub fn paths(self) -> impl Iterator<Item = &'static str> {
        let paths = match self {
            At(path) | IfThere(path) | ByteOf(path) | BitOf(path) => [Some(path), None],
            Either(first, second) => [Some(first), Some(second)],
            Apart => [None, None],
        };
        paths.into_iter().flatten()
    }
}

/// A field of the kernel's.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// The offset that says where it lies.
    pub offset: fn(&mut Offsets) -> &mut u32,
    /// Its bytes, which only the simulator asks for; 0 of what is none.
    pub size: u32,
    /// Where it lies.
    pub location: Location,
    /// What it is read for.
    pub groups: &'static [Group],
}

impl Field {
    /// Those that are read for it.
    pub fn of(group: Group) -> impl Iterator<Item = &'static Self> {
        FIELDS.iter().filter(move |field| field.groups.contains(&group))
    }
}

macro_rules! fields {
    ($($groups:expr => { $($(#[$what:meta])* $field:ident: $size:literal, $location:expr;)+ })+) => {
        /// Byte offsets of the fields, each within its struct; for what is in an skb's control block, from the skb's beginning. 0 where
        /// its group is not read.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[repr(C)]
        #[expect(missing_docs, reason = "each field is named <struct>_<field> after the kernel's own names")]
        pub struct Offsets {
            $($($(#[$what])* pub $field: u32,)+)+
        }

        /// All fields.
        pub const FIELDS: &[Field] = &[
            $($(Field { offset: |offsets| &mut offsets.$field, size: $size, location: $location, groups: &$groups },)+)+
        ];
    };
}

fields! {
    // What follows packets, without fine stages too.
    [Packets] => {
        sk_buff_next: 8, At("sk_buff.next");
        sk_buff_sk: 8, At("sk_buff.sk");
        sk_buff_dev: 8, At("sk_buff.dev");
        sk_buff_len: 4, At("sk_buff.len");
        sk_buff_data_len: 4, At("sk_buff.data_len");
        sk_buff_head: 8, At("sk_buff.head");
        sk_buff_data: 8, At("sk_buff.data");
        sk_buff_end: 4, At("sk_buff.end");
        sk_buff_users: 4, At("sk_buff.users.refs.counter");
        sk_buff_skb_iif: 4, At("sk_buff.skb_iif");
        sk_buff_cloned: 1, ByteOf("sk_buff.cloned");
        sk_buff_cloned_shift: 0, BitOf("sk_buff.cloned");
        sk_buff_mark: 4, At("sk_buff.mark");
        sk_buff_skb_mstamp_ns: 8, At("sk_buff.skb_mstamp_ns");
        sk_buff_protocol: 2, At("sk_buff.protocol");
        sk_buff_network_header: 2, At("sk_buff.network_header");
        sk_buff_transport_header: 2, At("sk_buff.transport_header");
        skb_shared_info_dataref: 4, At("skb_shared_info.dataref.counter");
        skb_shared_info_nr_frags: 1, At("skb_shared_info.nr_frags");
        skb_shared_info_frags: 16, At("skb_shared_info.frags");
        skb_shared_info_gso_segs: 2, At("skb_shared_info.gso_segs");
        tcp_skb_cb_seq: 4, At("sk_buff.cb+tcp_skb_cb.seq");
        tcp_skb_cb_end_seq: 4, At("sk_buff.cb+tcp_skb_cb.end_seq");
        tcp_skb_cb_tcp_gso_segs: 2, At("sk_buff.cb+tcp_skb_cb.tcp_gso_segs");
        tcp_skb_cb_tcp_flags: 1, At("sk_buff.cb+tcp_skb_cb.tcp_flags");
        tcp_skb_cb_sacked: 1, At("sk_buff.cb+tcp_skb_cb.sacked");
        tcp_skb_cb_ack_seq: 4, At("sk_buff.cb+tcp_skb_cb.ack_seq");
        net_device_ifindex: 4, At("net_device.ifindex");
        net_device_name: 16, At("net_device.name");
        net_device_nd_net: 8, At("net_device.nd_net.net");
        net_device_qdisc: 8, At("net_device.qdisc");
        qdisc_enqueue: 8, At("Qdisc.enqueue");
        qdisc_ops: 8, At("Qdisc.ops");
        qdisc_ops_enqueue: 8, At("Qdisc_ops.enqueue");
        net_ns_inum: 4, At("net.ns.inum");
        sock_skc_family: 2, At("sock.__sk_common.skc_family");
        sock_skc_state: 1, At("sock.__sk_common.skc_state");
        sock_skc_addrpair: 8, At("sock.__sk_common.skc_addrpair");
        sock_skc_portpair: 4, At("sock.__sk_common.skc_portpair");
        sock_skc_net: 8, At("sock.__sk_common.skc_net.net");
        sock_skc_v6_daddr: 16, At("sock.__sk_common.skc_v6_daddr");
        sock_skc_v6_rcv_saddr: 16, At("sock.__sk_common.skc_v6_rcv_saddr");
        sock_sk_protocol: 2, At("sock.sk_protocol");
        sock_sk_lock_owned: 4, At("sock.sk_lock.owned");
        sock_sk_receive_queue: 24, At("sock.sk_receive_queue");
        sock_sk_backlog_len: 4, At("sock.sk_backlog.len");
        /// Not read where `kfree_skb` shows what TCP drops.
        sock_sk_drops: 4, IfThere("sock.sk_drops.counter");
        sock_sk_write_pending: 4, At("sock.sk_write_pending");
        tcp_sock_rcv_nxt: 4, At("tcp_sock.rcv_nxt");
        tcp_sock_out_of_order_queue: 8, At("tcp_sock.out_of_order_queue");
        tcp_sock_copied_seq: 4, At("tcp_sock.copied_seq");
        tcp_sock_snd_nxt: 4, At("tcp_sock.snd_nxt");
        tcp_sock_write_seq: 4, At("tcp_sock.write_seq");
        tcp_sock_snd_wnd: 4, At("tcp_sock.snd_wnd");
        tcp_sock_icsk_retransmits: 1, At("tcp_sock.inet_conn.icsk_retransmits");
        tcp_sock_srtt_us: 4, At("tcp_sock.srtt_us");
        tcp_sock_dsack_dups: 4, At("tcp_sock.dsack_dups");
        inet_sock_inet_sport: 2, At("inet_sock.inet_sport");
        udp_sock_pending: 4, At("udp_sock.pending");
        task_struct_flags: 4, At("task_struct.flags");
        task_struct_pid: 4, At("task_struct.pid");
        /// No offset: 1 where programs can call that helper (Linux 5.11).
        bpf_get_current_task_btf: 0, Apart;
        tcp_sock_snd_una: 4, At("tcp_sock.snd_una");
    }
    // What knows a task and its process; `net-latency calls` needs these alone.
    [Packets, Tasks] => {
        task_struct_tgid: 4, At("task_struct.tgid");
        task_struct_group_leader: 8, At("task_struct.group_leader");
        task_struct_signal: 8, At("task_struct.signal");
        task_struct_start_time: 8, At("task_struct.start_time");
        task_struct_comm: 16, At("task_struct.comm");
        signal_struct_live: 4, At("signal_struct.live");
    }
    // What tells why TCP holds bytes back. 0 if one is missing.
    [Held] => {
        sock_sk_write_queue: 24, At("sock.sk_write_queue");
        sock_sk_tsq_flags: 8, At("sock.sk_tsq_flags");
        sock_sk_pacing_status: 4, At("sock.sk_pacing_status");
        tcp_sock_packets_out: 4, At("tcp_sock.packets_out");
        tcp_sock_retrans_out: 4, At("tcp_sock.retrans_out");
        tcp_sock_sacked_out: 4, At("tcp_sock.sacked_out");
        tcp_sock_lost_out: 4, At("tcp_sock.lost_out");
        tcp_sock_snd_cwnd: 4, At("tcp_sock.snd_cwnd");
        tcp_sock_snd_sml: 4, At("tcp_sock.snd_sml");
        tcp_sock_nonagle: 1, ByteOf("tcp_sock.nonagle");
        tcp_sock_nonagle_shift: 0, BitOf("tcp_sock.nonagle");
        tcp_sock_chrono_type: 1, ByteOf("tcp_sock.chrono_type");
        tcp_sock_chrono_type_shift: 0, BitOf("tcp_sock.chrono_type");
        tcp_sock_mss_cache: 4, At("tcp_sock.mss_cache");
        tcp_sock_tcp_clock_cache: 8, At("tcp_sock.tcp_clock_cache");
    }
    [Packets, Connections] => {
        tcp_sock_bytes_sent: 8, At("tcp_sock.bytes_sent");
    }
    [Held, Connections] => {
        tcp_sock_tcp_wstamp_ns: 8, At("tcp_sock.tcp_wstamp_ns");
    }
    // What tells the system call that a task is in. 0 if one is missing.
    [Calls] => {
        /// The word that says whether it is one of 32 bits.
        task_struct_of_32_bits: 0, Apart;
        task_struct_stack: 8, At("task_struct.stack");
        /// Where on a task's stack its `pt_regs` are.
        stack_registers: 0, Apart;
        /// The number of the system call.
        pt_regs_call: 0, Apart;
        /// No offset: 1 where programs can call that helper (Linux 5.15).
        bpf_task_pt_regs: 0, Apart;
    }
    // What `net-latency connections` reads.
    [Connections] => {
        sock_skc_flags: 8, At("sock.__sk_common.skc_flags");
        sock_sk_err: 4, At("sock.sk_err");
        sock_sk_mark: 4, At("sock.sk_mark");
        sock_sk_ack_backlog: 4, At("sock.sk_ack_backlog");
        sock_sk_max_ack_backlog: 4, At("sock.sk_max_ack_backlog");
        tcp_sock_bytes_received: 8, At("tcp_sock.bytes_received");
        tcp_sock_bytes_retrans: 8, At("tcp_sock.bytes_retrans");
        tcp_sock_segs_in: 4, At("tcp_sock.segs_in");
        tcp_sock_segs_out: 4, At("tcp_sock.segs_out");
        tcp_sock_total_retrans: 4, At("tcp_sock.total_retrans");
        /// The value of its first sample.
        tcp_sock_rtt_min: 4, At("tcp_sock.rtt_min+minmax_sample.v");
        tcp_request_sock_snt_synack: 8, At("tcp_request_sock.snt_synack");
        /// Kernels without MPTCP have none of its sockets.
        mptcp_sock_first: 8, IfThere("mptcp_sock.first");
        tcp_sock_is_mptcp: 1, IfThere("tcp_sock.is_mptcp");
    }
    // What it takes to follow MPTCP, which is not followed if one is missing.
    [Mptcp] => {
        mptcp_sock_write_seq: 8, At("mptcp_sock.write_seq");
        mptcp_sock_snd_nxt: 8, At("mptcp_sock.snd_nxt");
        mptcp_sock_snd_una: 8, At("mptcp_sock.snd_una");
        mptcp_sock_ack_seq: 8, At("mptcp_sock.ack_seq");
        mptcp_sock_rcv_data_fin_seq: 8, At("mptcp_sock.rcv_data_fin_seq");
        /// This queue went with Linux 6.15.
        mptcp_sock_receive_queue: 24, IfThere("mptcp_sock.receive_queue");
        mptcp_subflow_context_conn: 8, At("mptcp_subflow_context.conn");
        mptcp_subflow_context_map_seq: 8, At("mptcp_subflow_context.map_seq");
        mptcp_subflow_context_map_subflow_seq: 4, At("mptcp_subflow_context.map_subflow_seq");
        mptcp_subflow_context_ssn_offset: 4, At("mptcp_subflow_context.ssn_offset");
        mptcp_skb_cb_map_seq: 8, At("sk_buff.cb+mptcp_skb_cb.map_seq");
        mptcp_data_frag_data_seq: 8, At("mptcp_data_frag.data_seq");
        /// The first kernel with this struct (5.12) is the first whose functions have the arguments that the hooks expect.
        mptcp_sendmsg_info_sent: 2, At("mptcp_sendmsg_info.sent");
        tcp_sock_icsk_ulp_data: 8, At("tcp_sock.inet_conn.icsk_ulp_data");
        /// Not 0 while the spinlock of the socket's lock is held; with PREEMPT_RT that is a mutex, which has an owner.
        sock_sk_lock_slock: 4, Either("sock.sk_lock.slock.lock.owner", "sock.sk_lock.slock");
    }
}
