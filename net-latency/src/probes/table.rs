//! The stage table: every hook as data. Names of programs are those in `net-latency-ebpf/src/bin/programs.rs`.

use net_latency_common::Direction;

use crate::{
    named::named,
    packet::event::{IpVersion, Protocol},
};

named! {
    /// The stage that a hook stamps.
    pub enum Stage {
        /// Driver (in), device queue (out).
        Drv "drv",
        /// IP.
        Ip "ip",
        /// No stage of its own: the packet is forwarded, and may come again to another namespace.
        Forward "forward",
        /// TCP.
        Tcp "tcp",
        /// UDP.
        Udp "udp",
        /// The application.
        App "app",
        /// No stage of its own: threads are woken and get a CPU.
        Cpu "cpu",
        /// No stage of its own: a packet waits on its way, and goes on in any context.
        Wait "wait",
        /// No stage of its own: an skb is made of another one, whose packet may go on with it.
        Copy "copy",
        /// No stage: a packet's or a socket's end, which frees its entry.
        End "end",
        /// No stage: processes begin and end.
        Process "process",
        /// No stage: connections begin and end.
        Connection "connection",
    }
}

named! {
    /// How the functions are hooked.
    pub enum Mechanism {
        /// BTF trampolines.
        Fentry "fentry",
        /// Kprobes.
        Kprobe "kprobe",
        /// Kprobes where a task that is preempted in a program would keep it from running for others, BTF trampolines
        /// elsewhere: for kernels that preempt tasks within the kernel.
        Mixed "fentry and kprobe",
    }
}

/// The programs of a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Programs {
    /// On the first function of the candidates that the kernel has.
    Function {
        /// Name of the fentry program.
        fentry: &'static str,
        /// Name of the kprobe program.
        kprobe: &'static str,
    },
    /// On the first tracepoint of the candidates that the kernel has.
    Tracepoint {
        /// Name of the program. It has BTF types, for which a tracepoint needs no trampoline, so that it serves both backends.
        btf: &'static str,
        /// Name of the kprobe program, and the functions that have the tracepoint at their very beginning.
        kprobe: Option<(&'static str, &'static [&'static str])>,
    },
    /// On every tracepoint of the candidates that the kernel has: one raw program serves both backends.
    AllTracepoints {
        /// Name of the program.
        raw: &'static str,
    },
}

/// A program, and what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// An fentry program.
    Fentry(&'static str),
    /// A kprobe program.
    Kprobe(&'static str),
    /// A program on a tracepoint.
    Tracepoint(&'static str),
}

impl Program {
    /// Its name in the object.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fentry(name) | Self::Kprobe(name) | Self::Tracepoint(name) => name,
        }
    }

    /// What it is, in one word.
    #[must_use]
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Fentry(_) => "fentry",
            Self::Kprobe(_) => "kprobe",
            Self::Tracepoint(_) => "tracepoint",
        }
    }
}

impl Programs {
    /// The program that `mechanism` uses; `is_preemptible`: on this kernel a task can be preempted in it unless
    /// it is a kprobe's.
    #[must_use]
    pub const fn of(self, mechanism: Mechanism, is_preemptible: bool) -> Program {
        match (self, mechanism, is_preemptible) {
            (Self::Function { fentry, .. }, Mechanism::Fentry, _)
            | (Self::Function { fentry, .. }, Mechanism::Mixed, false) => Program::Fentry(fentry),
            (Self::Function { kprobe, .. }, ..)
            | (
                Self::Tracepoint { kprobe: Some((kprobe, _)), .. },
                Mechanism::Kprobe | Mechanism::Mixed,
                true,
            ) => Program::Kprobe(kprobe),
            (Self::Tracepoint { btf: name, .. }, ..) | (Self::AllTracepoints { raw: name }, ..) => {
                Program::Tracepoint(name)
            }
        }
    }
}

/// The loss on a kernel that has none of a hook's candidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absence {
    /// The stage: this kernel can't be traced.
    Fatal,
    /// Nothing: newer kernels do without that function.
    Harmless,
}

/// One hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hook {
    /// The way whose packets it sees; `None` for both.
    pub direction: Option<Direction>,
    /// The stage.
    pub stage: Stage,
    /// The only protocol whose packets it sees; `None` for both.
    pub protocol: Option<Protocol>,
    /// The only IP version whose packets it sees; `None` for both, as of an application's calls: IPv6 sockets may send
    /// IPv4 packets.
    pub version: Option<IpVersion>,
    /// Functions or tracepoints that serve, best first.
    pub candidates: &'static [&'static str],
    /// What runs there.
    pub programs: Programs,
    /// What its absence means.
    pub absence: Absence,
    /// The part of the function that GCC may cut off and call in its stead, so that the function itself is passed by. BTF does not
    /// have it: it takes a kprobe.
    pub part: Option<&'static str>,
}

impl Hook {
    /// Whether tasks run through this, and not softirqs alone: all that an application's calls bring about.
    #[must_use]
    pub fn is_in_tasks(&self) -> bool {
        self.direction == OUT || self.stage == Stage::App
    }

    const fn tcp(self) -> Self {
        Self { protocol: Some(Protocol::Tcp), ..self }
    }

    const fn udp(self) -> Self {
        Self { protocol: Some(Protocol::Udp), ..self }
    }

    const fn v4(self) -> Self {
        Self { version: Some(IpVersion::V4), ..self }
    }

    const fn v6(self) -> Self {
        Self { version: Some(IpVersion::V6), ..self }
    }
}

/// Functions of MPTCP. It is followed where the kernel has all of them; some kernels have no MPTCP.
pub(super) const MPTCP_IN: [&str; 3] =
    ["mptcp_data_ready", "mptcp_subflow_data_available", "mptcp_cleanup_rbuf"];
pub(super) const MPTCP_OUT: [&str; 3] = ["mptcp_sendmsg", "__mptcp_push_pending", "mptcp_sendmsg_frag"];
pub(super) const MPTCP_END: &str = "mptcp_destroy";

/// Where IP gets a packet of TCP, which has cleared its control block by then: instead of TCP's own functions, where these are
/// inlined (Linux 7.2).
pub(crate) const TCP_IN_IP: [&str; 2] = ["__ip_queue_xmit", "inet6_csk_xmit"];

const IN: Option<Direction> = Some(Direction::In);
const OUT: Option<Direction> = Some(Direction::Out);

const fn function(
    direction: Option<Direction>,
    stage: Stage,
    candidates: &'static [&'static str],
    fentry: &'static str,
    kprobe: &'static str,
) -> Hook {
    Hook {
        direction,
        stage,
        protocol: None,
        version: None,
        candidates,
        programs: Programs::Function { fentry, kprobe },
        absence: Absence::Fatal,
        part: None,
    }
}

/// A function that a kernel may do without.
const fn optional(
    direction: Option<Direction>,
    stage: Stage,
    candidates: &'static [&'static str],
    fentry: &'static str,
    kprobe: &'static str,
) -> Hook {
    Hook { absence: Absence::Harmless, ..function(direction, stage, candidates, fentry, kprobe) }
}

const fn tracepoint(
    direction: Option<Direction>,
    stage: Stage,
    candidates: &'static [&'static str],
    btf: &'static str,
) -> Hook {
    let programs = Programs::Tracepoint { btf, kprobe: None };
    Hook { programs, ..function(direction, stage, candidates, "", "") }
}

const fn all_tracepoints(
    direction: Option<Direction>,
    stage: Stage,
    candidates: &'static [&'static str],
    raw: &'static str,
) -> Hook {
    Hook { programs: Programs::AllTracepoints { raw }, ..function(direction, stage, candidates, "", "") }
}

/// All hooks, in the order in which a packet meets them, incoming first. They are attached from last to
/// first, so that no packet meets a late stage's hook without having met the early ones'.
pub(crate) const HOOKS: [Hook; 41] = [
    // Every way by which an skb enters the stack. `netif_rx` fires in `netif_rx_internal`, for all its
    // variants; the `_entry` ones only at the drivers' entry points, not again behind a backlog or GRO.
    all_tracepoints(
        IN,
        Stage::Drv,
        &[
            "netif_rx",
            "napi_gro_receive_entry",
            "napi_gro_frags_entry",
            "netif_receive_skb_entry",
            "netif_receive_skb_list_entry",
        ],
        "raw_arrived",
    ),
    // The core functions serve single packets and lists; `ip_rcv` sees single packets only.
    function(IN, Stage::Ip, &["ip_rcv_core", "ip_rcv"], "fentry_in_ip4", "kprobe_in_ip4").v4(),
    function(IN, Stage::Ip, &["ip6_rcv_core", "ipv6_rcv"], "fentry_in_ip6", "kprobe_in_ip6").v6(),
    // Without them a packet that is forwarded to a namespace of this machine counts from its last entry.
    optional(IN, Stage::Forward, &["ip_forward"], "fentry_in_forward4", "kprobe_in_forward4").v4(),
    optional(IN, Stage::Forward, &["ip6_forward"], "fentry_in_forward6", "kprobe_in_forward6").v6(),
    function(IN, Stage::Tcp, &["tcp_v4_rcv"], "fentry_in_tcp4", "kprobe_in_tcp4").tcp().v4(),
    function(IN, Stage::Tcp, &["tcp_v6_rcv"], "fentry_in_tcp6", "kprobe_in_tcp6").tcp().v6(),
    function(IN, Stage::Udp, &["udp_rcv"], "fentry_in_udp4", "kprobe_in_udp4").udp().v4(),
    function(IN, Stage::Udp, &["udpv6_rcv"], "fentry_in_udp6", "kprobe_in_udp6").udp().v6(),
    function(IN, Stage::Udp, &["__udp_enqueue_schedule_skb"], "fentry_in_udp_queue", "kprobe_in_udp_queue")
        .udp(),
    // The second one may be inlined where splice calls it; it only calls the first. Without either, a splice that is the first read of its
    // socket is lost.
    optional(IN, Stage::App, &["__tcp_read_sock", "tcp_read_sock"], "fentry_in_reading", "kprobe_in_reading")
        .tcp(),
    // Before Linux 6.0 TLS read by the function above.
    optional(IN, Stage::App, &["tcp_read_done"], "fentry_in_done", "kprobe_in_done").tcp(),
    // Without the first, what MPTCP has taken seems to wait.
    optional(IN, Stage::App, &[MPTCP_IN[0]], "fentry_in_ready", "kprobe_in_ready").tcp(),
    optional(IN, Stage::App, &[MPTCP_IN[1]], "fentry_in_moved", "kprobe_in_moved").tcp(),
    optional(IN, Stage::App, &[MPTCP_IN[2]], "fentry_in_read", "kprobe_in_read").tcp(),
    optional(None, Stage::End, &[MPTCP_END], "fentry_destroyed", "kprobe_destroyed").tcp(),
    Hook {
        programs: Programs::Tracepoint {
            btf: "btf_in_app",
            kprobe: Some(("kprobe_in_app", &["tcp_rcv_space_adjust"])),
        },
        ..tracepoint(IN, Stage::App, &["tcp_rcv_space_adjust"], "").tcp()
    },
    function(IN, Stage::App, &["skb_consume_udp"], "fentry_in_udp_app", "kprobe_in_udp_app").udp(),
    all_tracepoints(IN, Stage::End, &["kfree_skb"], "raw_dropped"),
    // Without these, an skb may show what an earlier one has left under its address.
    function(None, Stage::Copy, &["skb_copy_header"], "fentry_copied", "kprobe_copied"),
    function(None, Stage::Copy, &["skb_segment"], "fentry_segmented", "kprobe_segmented"),
    function(IN, Stage::Copy, &["skb_morph"], "fentry_morphed", "kprobe_morphed"),
    function(IN, Stage::Copy, &["pskb_expand_head"], "fentry_expanded", "kprobe_expanded"),
    function(OUT, Stage::App, &["tcp_sendmsg_locked"], "fentry_out_app", "kprobe_out_app").tcp(),
    // Since Linux 6.5 sendfile and splice come by `tcp_sendmsg_locked` too.
    optional(OUT, Stage::App, &["do_tcp_sendpages"], "fentry_out_pages", "kprobe_out_pages").tcp(),
    optional(OUT, Stage::App, &[MPTCP_OUT[0]], "fentry_out_calls", "kprobe_out_calls").tcp(),
    optional(OUT, Stage::App, &[MPTCP_OUT[1]], "fentry_out_pushes", "kprobe_out_pushes").tcp(),
    optional(OUT, Stage::App, &[MPTCP_OUT[2]], "fentry_out_hands_on", "kprobe_out_hands_on").tcp(),
    function(OUT, Stage::App, &["udp_sendmsg"], "fentry_out_udp4_app", "kprobe_out_udp4_app").udp(),
    function(OUT, Stage::App, &["udpv6_sendmsg"], "fentry_out_udp6_app", "kprobe_out_udp6_app").udp(),
    // Without it the age of packets that are sent again is unknown. Debian's Linux 6.1 has it in two parts.
    Hook {
        part: Some("__tcp_retransmit_skb.part.0"),
        ..optional(OUT, Stage::Tcp, &["__tcp_retransmit_skb"], "fentry_out_again", "kprobe_out_again").tcp()
    },
    function(OUT, Stage::Tcp, &["tcp_v4_send_check", TCP_IN_IP[0]], "fentry_out_tcp4", "kprobe_out_tcp4")
        .tcp()
        .v4(),
    function(OUT, Stage::Tcp, &["tcp_v6_send_check", TCP_IN_IP[1]], "fentry_out_tcp6", "kprobe_out_tcp6")
        .tcp()
        .v6(),
    function(OUT, Stage::Udp, &["ip_send_skb"], "fentry_out_udp4", "kprobe_out_udp4").udp().v4(),
    function(OUT, Stage::Udp, &["ip6_send_skb"], "fentry_out_udp6", "kprobe_out_udp6").udp().v6(),
    function(OUT, Stage::Ip, &["ip_output"], "fentry_out_ip4", "kprobe_out_ip4").v4(),
    function(OUT, Stage::Ip, &["ip_mc_output"], "fentry_out_ip4_multicast", "kprobe_out_ip4_multicast").v4(),
    function(OUT, Stage::Ip, &["ip6_output"], "fentry_out_ip6", "kprobe_out_ip6").v6(),
    // Without these, a datagram that waits has no line, unless it goes on in its own thread.
    optional(OUT, Stage::Wait, &["__neigh_event_send"], "fentry_out_neighbour", "kprobe_out_neighbour").udp(),
    optional(OUT, Stage::Wait, &["nf_queue"], "fentry_out_verdict", "kprobe_out_verdict").udp(),
    tracepoint(OUT, Stage::Drv, &["net_dev_queue"], "btf_out_drv"),
];

/// What splits the time that bytes wait in a socket, and what comes behind the device's queue, with fine stages.
pub(crate) const FINE: [Hook; 12] = [
    function(IN, Stage::App, &["tcp_recvmsg"], "fentry_in_asks_tcp", "kprobe_in_asks_tcp").tcp(),
    // Where it is inlined it is not hooked, and a thread that reads by it shows as one that asked at its last hooked call.
    optional(IN, Stage::App, &["tcp_zerocopy_receive"], "fentry_in_asks_zero", "kprobe_in_asks_zero").tcp(),
    optional(IN, Stage::App, &["mptcp_recvmsg"], "fentry_in_asks_multipath", "kprobe_in_asks_multipath")
        .tcp(),
    function(IN, Stage::App, &["udp_recvmsg"], "fentry_in_asks_udp4", "kprobe_in_asks_udp4").udp(),
    function(IN, Stage::App, &["udpv6_recvmsg"], "fentry_in_asks_udp6", "kprobe_in_asks_udp6").udp(),
    tracepoint(IN, Stage::Cpu, &["sched_waking"], "btf_woken"),
    tracepoint(IN, Stage::Cpu, &["sched_switch"], "btf_switched"),
    tracepoint(OUT, Stage::Drv, &["net_dev_start_xmit"], "btf_out_driven"),
    tracepoint(OUT, Stage::Drv, &["net_dev_xmit"], "btf_out_left"),
    function(OUT, Stage::Tcp, &["tcp_add_backlog"], "fentry_out_backlog", "kprobe_out_backlog").tcp(),
    function(OUT, Stage::Tcp, &["tcp_ack"], "fentry_out_acked", "kprobe_out_acked").tcp(),
    // At the end of `tcp_write_xmit`. Where it is inlined, why TCP holds bytes back is unknown, but for the peer's window.
    optional(OUT, Stage::Tcp, &["tcp_chrono_stop"], "fentry_out_stopped", "kprobe_out_stopped").tcp(),
];

/// What `net-latency connections` hooks, in place of [`HOOKS`]: no segment or write call of a connection that is open.
pub(crate) const CONNECTIONS: [Hook; 7] = [
    tracepoint(None, Stage::Connection, &["inet_sock_set_state"], "btf_changed"),
    tracepoint(None, Stage::Connection, &["inet_sock_set_state"], "btf_changed_by_softirq"),
    function(IN, Stage::Connection, &["tcp_rcv_state_process"], "fentry_received", "kprobe_received"),
    // A kernel without CONFIG_SECURITY_NETWORK has no such function: there the accepting task is unknown.
    optional(IN, Stage::App, &["security_sock_graft"], "fentry_accepted", "kprobe_accepted"),
    function(IN, Stage::Connection, &["tcp_conn_request"], "fentry_requested", "kprobe_requested"),
    function(IN, Stage::Connection, &["tcp_v4_syn_recv_sock"], "fentry_completed4", "kprobe_completed4").v4(),
    function(IN, Stage::Connection, &["tcp_v6_syn_recv_sock"], "fentry_completed6", "kprobe_completed6").v6(),
];

/// Takes over from the first of these what tasks do, where they can be preempted in its program.
pub(crate) const CHANGED_BY_TASK: Hook = Hook {
    programs: Programs::Tracepoint {
        btf: "btf_changed_by_task",
        kprobe: Some(("kprobe_changed_by_task", &["inet_sk_state_store", "inet_sk_set_state"])),
    },
    ..tracepoint(None, Stage::App, &["inet_sock_set_state"], "")
};

/// Programs of which the kernel may skip calls, and nothing is lost: it skips the first two for what softirqs do, and hardly both of them
/// at a time, and the last one only for what is not its.
pub(crate) const MADE_UP_FOR: [&str; 3] = ["btf_changed", "btf_changed_by_softirq", "kprobe_changed_by_task"];

/// The first bytes of connections, for which each segment and write call is met.
pub(crate) const FIRST_BYTES: [Hook; 3] = [
    tracepoint(IN, Stage::Connection, &["tcp_probe"], "btf_received"),
    function(OUT, Stage::App, &["tcp_sendmsg_locked"], "fentry_written", "kprobe_written"),
    optional(OUT, Stage::App, &["do_tcp_sendpages"], "fentry_pages", "kprobe_pages"),
];

/// Shows where packets are dropped, with connections.
pub(crate) const DROPS: Hook =
    Hook { stage: Stage::Connection, ..process(&["kfree_skb"], "raw_thrown_away") };

/// Shows packets that are sent on without IP, where the other way's hook on the same tracepoint, which does so too, is not needed.
pub(crate) const SENT_ON: Hook = Hook {
    absence: Absence::Harmless,
    ..tracepoint(IN, Stage::Forward, &["net_dev_queue"], "btf_in_forward").tcp()
};

/// Frees a socket's entry when the kernel destroys it.
pub(crate) const CLOSE: Hook = tracepoint(None, Stage::End, &["tcp_destroy_sock"], "btf_closed");

/// Ends the entry of a process or a thread by its number, which is another one's afterwards.
pub(crate) const EXIT: Hook = process(&["sched_process_exit"], "raw_exited");

/// Follow the processes that a command starts, until they are gone. With fine stages, the first one also shows threads
/// that may read.
pub(crate) const PROCESSES: [Hook; 2] = [FORK, process(&["sched_process_free"], "raw_freed")];
/// A process or a thread is made.
pub(crate) const FORK: Hook = process(&["sched_process_fork"], "raw_started");

const fn process(tracepoint: &'static [&'static str], raw: &'static str) -> Hook {
    all_tracepoints(None, Stage::Process, tracepoint, raw)
}
