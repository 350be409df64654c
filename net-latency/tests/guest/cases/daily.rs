//! Which tests the daily run has, and on which of its kernels: 5.10 by kprobe, a usual one by fentry, the newest by default.
//!
//! What packets' lives are made of is shown by the simulator (`net-latency-ebpf/src/lives`). Guests show what it rests on: that each
//! object loads, that hooks fire with what it assumes, and that witnesses and real programs agree. That is different on each kernel. All
//! else runs on one of them, or only when the whole is tested.

use std::env;

use crate::tool::Backend;

/// Set to 1 in the daily run's guests. Without it, a guest has all tests.
const DAILY: &str = "NET_LATENCY_DAILY";

/// Which kernels of the daily run have a test.
#[derive(Clone, Copy)]
enum Kernels {
    All,
    /// One, which the backend stands for.
    One(Backend),
    None,
}

/// Tests that are not on the usual kernel alone. A truth theme is named as a whole.
const PLACES: &[(Kernels, &[&str])] = &[
    (
        Kernels::All,
        &[
            "check_names_every_hook",
            "ftrace_off",
            "kprobes_off",
            "lifetimes_of_a_full_queue",
            "lifetimes_of_connections_that_end",
            "lifetimes_of_other_handshakes",
            "memory_of_fine_stages",
            "no_btf",
            "no_cap_bpf",
            "no_cap_perfmon",
            "no_capabilities",
            "no_kprobes",
            "not_root",
            "truth::driver",
            "truth::fine",
            "truth::programs",
            "truth::service",
            "truth::tcp",
            "truth::transmit",
            "truth::udp",
            "truth::who",
            "witness_veth_v6",
        ],
    ),
    (
        Kernels::One(Backend::Kprobe),
        &[
            "calls_agree_with_ftrace",
            "calls_are_those_of_function_graph",
            "calls_as_text_end_by_count",
            "calls_end_when_nobody_reads",
            "calls_of_interrupts_are_their_own",
            "calls_of_sockets_are_those_of_strace",
            "calls_refuse_what_cannot_be",
            "calls_show_where_a_wait_was",
            "full_speed",
            "journey_of_a_datagram_is_what_ftrace_sees",
            "journeys_of_marked_packets",
            "ledger_of_drops",
            "ledger_of_full_tables",
            "ledger_of_inconsistent_records",
            "ledger_of_lost_records",
            "truth::crafted",
            "truth::dropped",
        ],
    ),
    (
        Kernels::One(Backend::Auto),
        &[
            "by_fentry_alone",
            "check_knows_this_kernel",
            "ends_by_sigint",
            "ends_by_sigkill",
            "journey_of_a_segment_is_what_function_graph_sees",
            "ledger_of_closed_queues",
            "ledger_of_intervals",
            "lossy",
            "overload",
            "soak",
            "truth::control",
            "truth::held",
            "truth::netem",
            "truth::places",
            "truth::sent",
        ],
    ),
    (
        Kernels::None,
        &[
            "calls_of_sockets_are_all_there",
            "clock_slew",
            "diagnose_ends_by_duration_as_text",
            "diagnose_finds_a_reader_without_a_cpu",
            "diagnose_finds_a_slow_application",
            "diagnose_finds_a_socket_that_drops",
            "diagnose_finds_late_answers_of_who_is_not_seen",
            "diagnose_finds_small_writes_that_wait",
            "diagnose_finds_the_network_by_acks",
            "diagnose_finds_the_queue_at_the_other_end",
            "diagnose_finds_the_senders_queue",
            "direction",
            "disturbed_by_oom",
            "ends_by_sighup_not_under_nohup",
            "ends_though_nobody_reads_it",
            "export_goes_on_beside_bad_scrapers",
            "export_writes_slow_packets",
            "footer_json_of_hist",
            "footer_json_of_hist_intervals",
            "footer_json_of_intervals",
            "hist_as_text_ends_by_duration",
            "hist_by_cgroup",
            "hist_by_comm",
            "hist_by_host",
            "hist_by_interface",
            "hist_by_port",
            "hist_by_process_and_not_by_thread",
            "hist_counts_datagrams",
            "hist_counts_no_parts_of_control_packets",
            "hist_says_what_found_no_room",
            "hist_shows_where_a_pause_was",
            "hostile_comm_in_json",
            "hostile_names_of_cgroups",
            "hostile_names_take_no_series",
            "hostile_scrapers_keep_nobody_out",
            "hostile_starts_leave_nothing",
            "journey_as_trace_events",
            "journey_ends_without_a_packet",
            "journey_of_a_segment_over_ipv6_loopback",
            "journey_only_if_slow",
            "pid_of_a_connection_of_two",
            "pid_of_a_udp_socket_of_two",
            "pid_of_one_receiver_of_two",
            "port",
            "reused_cgroup_path_is_another_cgroup",
            "reused_pid_of_one_of_two_in_hist",
            "reused_pid_of_others_has_a_row_of_its_own",
            "reused_pid_of_the_only_one",
            "reused_pid_of_the_only_one_in_hist",
            "reused_pid_of_the_only_one_in_journey",
            "reopened_with_header",
            "select_cgroup",
            "select_hosts",
            "select_interface_and_protocol",
            "select_mark",
            "select_names",
            "select_names_of_threads_and_processes",
            "select_namespaces_and_version",
            "select_sample",
            "time_is_local_or_utc",
            "top_ends_by_sigterm_and_bears_any_size",
            "truth::crafted_flood",
            "truth::dropped_of_port",
            "truth::dropped_unseen",
            "truth::dropped_without_tcp",
            "truth::readers",
            "truth::skipped",
            "two_pids",
            "witness_loopback_v4",
        ],
    ),
];

/// Where all tests are that no list names.
const USUAL: Kernels = Kernels::One(Backend::Fentry);

/// Whether this guest has a test by that backend, which a kernel of the daily run is known by.
pub(crate) fn has(name: &str, backend: Backend) -> bool {
    if env::var_os(DAILY).is_none_or(|value| value != "1") {
        return true;
    }
    let place = PLACES.iter().find(|(_, names)| names.contains(&name));
    match place.map_or(USUAL, |(kernels, _)| *kernels) {
        Kernels::All => true,
        Kernels::One(its) => its == backend,
        Kernels::None => false,
    }
}

/// All names in the lists.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    PLACES.iter().flat_map(|(_, names)| *names).copied()
}
