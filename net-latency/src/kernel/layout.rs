//! Where the fields lie that the kernel side reads.

use net_latency_common::Offsets;

use super::{
    arch,
    btf::{Btf, BtfError},
};

/// The structs at which the paths below begin.
const STRUCTS: [&str; 22] = [
    "sk_buff",
    "skb_shared_info",
    "tcp_skb_cb",
    "net_device",
    "Qdisc",
    "Qdisc_ops",
    "net",
    "sock",
    "inet_sock",
    "tcp_sock",
    "tcp_request_sock",
    "mptcp_sock",
    "mptcp_subflow_context",
    "mptcp_skb_cb",
    "mptcp_data_frag",
    "mptcp_sendmsg_info",
    "minmax_sample",
    "udp_sock",
    "task_struct",
    "signal_struct",
    "pt_regs",
    "bpf_link_info",
];

/// The helper that gives programs the current task as one, by the function's name.
const CURRENT_TASK: &str = "bpf_get_current_task_btf";

/// The helper that gives the registers with which a task has come into the kernel, likewise.
const TASK_REGISTERS: &str = "bpf_task_pt_regs";

/// A function of kernels whose tasks have larger stacks (KASAN).
const LARGER_STACKS: &str = "kasan_report";

/// The names of the types and functions that this module looks at.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    STRUCTS.into_iter().chain([CURRENT_TASK, TASK_REGISTERS, LARGER_STACKS])
}

/// Fills each named field of [`Offsets`] from the path beside it.
macro_rules! offsets {
    ($btf:expr, $($field:ident: $path:literal,)+) => {
        Offsets { $($field: $btf.offset($path)?,)+ ..Offsets::default() }
    };
}

/// All offsets for the running kernel.
///
/// # Errors
/// [`BtfError::NoField`] names the first field that this kernel doesn't have.
pub(crate) fn offsets(btf: &Btf<'_>) -> Result<Offsets, BtfError> {
    let offsets = offsets! { btf,
        sk_buff_next: "sk_buff.next",
        sk_buff_sk: "sk_buff.sk",
        sk_buff_dev: "sk_buff.dev",
        sk_buff_len: "sk_buff.len",
        sk_buff_data_len: "sk_buff.data_len",
        sk_buff_head: "sk_buff.head",
        sk_buff_data: "sk_buff.data",
        sk_buff_end: "sk_buff.end",
        sk_buff_users: "sk_buff.users.refs.counter",
        sk_buff_mark: "sk_buff.mark",
        sk_buff_skb_iif: "sk_buff.skb_iif",
        sk_buff_skb_mstamp_ns: "sk_buff.skb_mstamp_ns",
        sk_buff_protocol: "sk_buff.protocol",
        sk_buff_network_header: "sk_buff.network_header",
        sk_buff_transport_header: "sk_buff.transport_header",
        skb_shared_info_dataref: "skb_shared_info.dataref.counter",
        skb_shared_info_nr_frags: "skb_shared_info.nr_frags",
        skb_shared_info_frags: "skb_shared_info.frags",
        skb_shared_info_gso_segs: "skb_shared_info.gso_segs",
        tcp_skb_cb_seq: "tcp_skb_cb.seq",
        tcp_skb_cb_end_seq: "tcp_skb_cb.end_seq",
        tcp_skb_cb_tcp_gso_segs: "tcp_skb_cb.tcp_gso_segs",
        tcp_skb_cb_tcp_flags: "tcp_skb_cb.tcp_flags",
        tcp_skb_cb_sacked: "tcp_skb_cb.sacked",
        tcp_skb_cb_ack_seq: "tcp_skb_cb.ack_seq",
        net_device_ifindex: "net_device.ifindex",
        net_device_name: "net_device.name",
        net_device_nd_net: "net_device.nd_net.net",
        net_device_qdisc: "net_device.qdisc",
        qdisc_enqueue: "Qdisc.enqueue",
        qdisc_ops: "Qdisc.ops",
        qdisc_ops_enqueue: "Qdisc_ops.enqueue",
        net_ns_inum: "net.ns.inum",
        sock_skc_family: "sock.__sk_common.skc_family",
        sock_skc_state: "sock.__sk_common.skc_state",
        sock_skc_addrpair: "sock.__sk_common.skc_addrpair",
        sock_skc_portpair: "sock.__sk_common.skc_portpair",
        sock_skc_net: "sock.__sk_common.skc_net.net",
        sock_skc_v6_daddr: "sock.__sk_common.skc_v6_daddr",
        sock_skc_v6_rcv_saddr: "sock.__sk_common.skc_v6_rcv_saddr",
        sock_sk_protocol: "sock.sk_protocol",
        sock_sk_lock_owned: "sock.sk_lock.owned",
        sock_sk_receive_queue: "sock.sk_receive_queue",
        sock_sk_backlog_len: "sock.sk_backlog.len",
        sock_sk_write_pending: "sock.sk_write_pending",
        tcp_sock_rcv_nxt: "tcp_sock.rcv_nxt",
        tcp_sock_out_of_order_queue: "tcp_sock.out_of_order_queue",
        tcp_sock_copied_seq: "tcp_sock.copied_seq",
        tcp_sock_snd_nxt: "tcp_sock.snd_nxt",
        tcp_sock_snd_una: "tcp_sock.snd_una",
        tcp_sock_write_seq: "tcp_sock.write_seq",
        tcp_sock_snd_wnd: "tcp_sock.snd_wnd",
        tcp_sock_icsk_retransmits: "tcp_sock.inet_conn.icsk_retransmits",
        tcp_sock_srtt_us: "tcp_sock.srtt_us",
        tcp_sock_dsack_dups: "tcp_sock.dsack_dups",
        inet_sock_inet_sport: "inet_sock.inet_sport",
        udp_sock_pending: "udp_sock.pending",
        task_struct_flags: "task_struct.flags",
        task_struct_pid: "task_struct.pid",
        task_struct_tgid: "task_struct.tgid",
        task_struct_group_leader: "task_struct.group_leader",
        task_struct_signal: "task_struct.signal",
        task_struct_start_time: "task_struct.start_time",
        task_struct_comm: "task_struct.comm",
        signal_struct_live: "signal_struct.live",
    };
    let control_block = btf.offset("sk_buff.cb")?;
    let cloned = btf.offset_in_bits("sk_buff.cloned")?;
    Ok(Offsets {
        sk_buff_cloned: cloned / u8::BITS,
        sk_buff_cloned_shift: cloned % u8::BITS,
        // Not requested where `kfree_skb` shows what TCP drops.
        sock_sk_drops: btf.offset("sock.sk_drops.counter").unwrap_or(0),
        tcp_skb_cb_seq: control_block + offsets.tcp_skb_cb_seq,
        tcp_skb_cb_end_seq: control_block + offsets.tcp_skb_cb_end_seq,
        tcp_skb_cb_tcp_gso_segs: control_block + offsets.tcp_skb_cb_tcp_gso_segs,
        tcp_skb_cb_tcp_flags: control_block + offsets.tcp_skb_cb_tcp_flags,
        tcp_skb_cb_sacked: control_block + offsets.tcp_skb_cb_sacked,
        tcp_skb_cb_ack_seq: control_block + offsets.tcp_skb_cb_ack_seq,
        bpf_get_current_task_btf: u32::from(btf.has_function(CURRENT_TASK)),
        ..offsets
    })
}

/// Adds the offsets that tell why TCP holds bytes back.
///
/// # Errors
/// As [`offsets`]: where a field is missing, that can't be told.
pub(crate) fn offsets_of_held(btf: &Btf<'_>, known: Offsets) -> Result<Offsets, BtfError> {
    held(known, |field| btf.offset(field), |field| btf.offset_in_bits(field))
}

/// [`offsets_of_held`], with functions that tell where a field is, in bytes and in bits.
fn held<E>(
    known: Offsets,
    offset: impl Fn(&str) -> Result<u32, E>,
    offset_in_bits: impl Fn(&str) -> Result<u32, E>,
) -> Result<Offsets, E> {
    let nagle = offset_in_bits("tcp_sock.nonagle")?;
    let chrono = offset_in_bits("tcp_sock.chrono_type")?;
    Ok(Offsets {
        sock_sk_write_queue: offset("sock.sk_write_queue")?,
        sock_sk_tsq_flags: offset("sock.sk_tsq_flags")?,
        sock_sk_pacing_status: offset("sock.sk_pacing_status")?,
        tcp_sock_packets_out: offset("tcp_sock.packets_out")?,
        tcp_sock_retrans_out: offset("tcp_sock.retrans_out")?,
        tcp_sock_sacked_out: offset("tcp_sock.sacked_out")?,
        tcp_sock_lost_out: offset("tcp_sock.lost_out")?,
        tcp_sock_snd_cwnd: offset("tcp_sock.snd_cwnd")?,
        tcp_sock_snd_sml: offset("tcp_sock.snd_sml")?,
        tcp_sock_nonagle: nagle / u8::BITS,
        tcp_sock_nonagle_shift: nagle % u8::BITS,
        tcp_sock_chrono_type: chrono / u8::BITS,
        tcp_sock_chrono_type_shift: chrono % u8::BITS,
        tcp_sock_mss_cache: offset("tcp_sock.mss_cache")?,
        tcp_sock_tcp_wstamp_ns: offset("tcp_sock.tcp_wstamp_ns")?,
        tcp_sock_tcp_clock_cache: offset("tcp_sock.tcp_clock_cache")?,
        ..known
    })
}

/// Adds the offsets that it takes to follow MPTCP. On a kernel that lacks one of them it is not followed.
///
/// # Errors
/// As [`offsets`].
pub(crate) fn offsets_of_mptcp(btf: &Btf<'_>, known: Offsets) -> Result<Offsets, BtfError> {
    // With PREEMPT_RT a spinlock is a mutex that has an owner.
    let slock = btf.offset("sock.sk_lock.slock.lock.owner").or_else(|_| btf.offset("sock.sk_lock.slock"))?;
    Ok(Offsets {
        mptcp_sock_write_seq: btf.offset("mptcp_sock.write_seq")?,
        mptcp_sock_snd_nxt: btf.offset("mptcp_sock.snd_nxt")?,
        mptcp_sock_ack_seq: btf.offset("mptcp_sock.ack_seq")?,
        mptcp_sock_rcv_data_fin_seq: btf.offset("mptcp_sock.rcv_data_fin_seq")?,
        mptcp_sock_receive_queue: btf.offset("mptcp_sock.receive_queue").unwrap_or(0),
        mptcp_subflow_context_conn: btf.offset("mptcp_subflow_context.conn")?,
        mptcp_subflow_context_map_seq: btf.offset("mptcp_subflow_context.map_seq")?,
        mptcp_subflow_context_map_subflow_seq: btf.offset("mptcp_subflow_context.map_subflow_seq")?,
        mptcp_subflow_context_ssn_offset: btf.offset("mptcp_subflow_context.ssn_offset")?,
        mptcp_skb_cb_map_seq: btf.offset("sk_buff.cb")? + btf.offset("mptcp_skb_cb.map_seq")?,
        mptcp_data_frag_data_seq: btf.offset("mptcp_data_frag.data_seq")?,
        // The first kernel with this struct (5.12) is the first whose functions have the arguments that the hooks expect.
        mptcp_sendmsg_info_sent: btf.offset("mptcp_sendmsg_info.sent")?,
        tcp_sock_icsk_ulp_data: btf.offset("tcp_sock.inet_conn.icsk_ulp_data")?,
        sock_sk_lock_slock: slock,
        ..known
    })
}

/// Adds the offsets that tell the system call that a task is in.
///
/// # Errors
/// As [`offsets_of_held`].
pub(crate) fn offsets_of_calls(btf: &Btf<'_>, known: Offsets) -> Result<Offsets, BtfError> {
    let call = btf.offset(arch::CALL_NUMBER)?;
    let has_helper = btf.has_function(TASK_REGISTERS);
    // At the end of the stack (`task_pt_regs`). Kernels with the helper may have room behind them (`TOP_OF_KERNEL_STACK_PADDING` with
    // FRED, Linux 6.9).
    let size = arch::STACK.filter(|_| !btf.has_function(LARGER_STACKS));
    let registers = match size {
        _ if has_helper => 0,
        Some(size) => size.saturating_sub(btf.size("pt_regs")?),
        None => return Err(BtfError::NoField(TASK_REGISTERS.to_owned())),
    };
    Ok(Offsets {
        task_struct_of_32_bits: btf.offset(arch::OF_32_BITS)?,
        task_struct_stack: btf.offset("task_struct.stack")?,
        stack_registers: registers,
        pt_regs_call: call,
        bpf_task_pt_regs: u32::from(has_helper),
        ..known
    })
}

/// Adds the offsets that `net-latency connections` reads.
///
/// # Errors
/// As [`offsets`].
pub(crate) fn offsets_of_connections(btf: &Btf<'_>, known: Offsets) -> Result<Offsets, BtfError> {
    Ok(Offsets {
        sock_skc_flags: btf.offset("sock.__sk_common.skc_flags")?,
        sock_sk_err: btf.offset("sock.sk_err")?,
        sock_sk_mark: btf.offset("sock.sk_mark")?,
        sock_sk_ack_backlog: btf.offset("sock.sk_ack_backlog")?,
        sock_sk_max_ack_backlog: btf.offset("sock.sk_max_ack_backlog")?,
        tcp_sock_bytes_received: btf.offset("tcp_sock.bytes_received")?,
        tcp_sock_bytes_sent: btf.offset("tcp_sock.bytes_sent")?,
        tcp_sock_bytes_retrans: btf.offset("tcp_sock.bytes_retrans")?,
        tcp_sock_segs_in: btf.offset("tcp_sock.segs_in")?,
        tcp_sock_segs_out: btf.offset("tcp_sock.segs_out")?,
        tcp_sock_total_retrans: btf.offset("tcp_sock.total_retrans")?,
        // The value of its first sample.
        tcp_sock_rtt_min: btf.offset("tcp_sock.rtt_min")? + btf.offset("minmax_sample.v")?,
        tcp_sock_tcp_wstamp_ns: btf.offset("tcp_sock.tcp_wstamp_ns")?,
        tcp_request_sock_snt_synack: btf.offset("tcp_request_sock.snt_synack")?,
        // A kernel without MPTCP has none of its sockets.
        mptcp_sock_first: btf.offset("mptcp_sock.first").unwrap_or(0),
        tcp_sock_is_mptcp: btf.offset("tcp_sock.is_mptcp").unwrap_or(0),
        ..known
    })
}

/// Which offsets are known with [`offsets_of_held`] alone: the others' numbers are 0.
#[cfg(test)]
pub(crate) fn only_of_held() -> Offsets {
    let anywhere = |_: &str| Ok::<_, std::convert::Infallible>(u8::BITS + 1);
    let Ok(offsets) = held(Offsets::default(), anywhere, anywhere);
    offsets
}

/// What the kernel side needs to know a task and its process, and no other offset.
///
/// # Errors
/// As [`offsets`].
pub(crate) fn offsets_of_tasks(btf: &Btf<'_>) -> Result<Offsets, BtfError> {
    Ok(Offsets {
        task_struct_tgid: btf.offset("task_struct.tgid")?,
        task_struct_group_leader: btf.offset("task_struct.group_leader")?,
        task_struct_signal: btf.offset("task_struct.signal")?,
        task_struct_start_time: btf.offset("task_struct.start_time")?,
        task_struct_comm: btf.offset("task_struct.comm")?,
        signal_struct_live: btf.offset("signal_struct.live")?,
        ..Offsets::default()
    })
}

/// Whether the kernel counts the calls that a kprobe's program missed. It does so since Linux 6.7
/// (`bpf_prog_inc_misses_counters` in `trace_call_bpf`), which shows in BTF by the field that the same
/// series of changes gave to the links of kprobes.
#[must_use]
pub(crate) fn counts_missed_kprobes(btf: &Btf<'_>) -> bool {
    btf.offset("bpf_link_info.perf_event.kprobe.missed").is_ok()
}
