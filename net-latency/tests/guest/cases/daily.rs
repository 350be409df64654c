//! Which tests the daily run has, and on which of its kernels: 5.10 by kprobe, a usual one by fentry, the newest by default.
//!
//! What packets' lives are made of is shown by the simulator (`net-latency-ebpf/src/lives`). Guests show what it rests on: that each
//! object loads, that hooks fire with what it assumes, and that witnesses and real programs agree. That is different on each kernel. Of
//! everything else there is one test or two of each command, on one of them: they are to be done in minutes. The rest runs when the whole is
//! tested.

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
}

/// The tests. A truth theme is named as a whole.
const PLACES: &[(Kernels, &[&str])] = &[
    (
        Kernels::All,
        &[
            "check_names_every_hook",
            "ftrace_off",
            "kprobes_off",
            "lifetimes_of_connections_that_end",
            "no_btf",
            "no_cap_bpf",
            "no_cap_perfmon",
            "no_capabilities",
            "no_kprobes",
            "not_root",
            "truth::driver",
            "truth::fine",
            "truth::service",
            "truth::tcp",
            "truth::transmit",
            "truth::udp",
            "witness_veth_v6",
        ],
    ),
    (
        Kernels::One(Backend::Kprobe),
        &[
            "calls_agree_with_ftrace",
            "calls_refuse_what_cannot_be",
            "calls_show_where_a_wait_was",
            "journey_of_a_datagram_is_what_ftrace_sees",
            "journeys_of_marked_packets",
            "ledger_of_drops",
            "ledger_of_lost_records",
        ],
    ),
    (
        Kernels::One(Backend::Fentry),
        &[
            "check_goes_on_after_a_failure",
            "command_gets_signals",
            "command_that_cannot_run",
            "connections_have_the_kernels_round_trip_time",
            "diagnose_blames_nobody_in_a_healthy_system",
            "diagnose_finds_a_reader_that_sleeps",
            "ends_by_closed_pipe",
            "ends_by_sigterm",
            "export_counts_connections",
            "export_counts_every_packet",
            "export_refuses_what_cannot_be",
            "fault_of_input_and_output",
            "few_files",
            "footer_json_agrees_with_the_lines",
            "hist_by_stage_counts_every_packet",
            "hist_filters_and_balances",
            "journey_only_if_dropped",
            "ledger_of_a_pid",
            "lifetimes_of_connections_that_fail",
            "lifetimes_of_multipath",
            "lists_of_tests_name_tests",
            "no_proc",
            "only_skipped_calls_give_a_second_try",
            "pid",
            "pid_that_does_not_exist",
            "record_writes_for_slow_packets",
            "select_all_kinds_at_once",
            "text_form",
            "top_refuses_a_dumb_terminal",
            "top_shows_processes_connections_and_packets",
            "truth::io",
            "truth::who",
        ],
    ),
    (Kernels::One(Backend::Auto), &["ends_by_sigkill", "truth::programs"]),
];

/// What a guest of arm64 does not have of them: it says which part of a wait is how long, and takes two processors. Emulated on a busy
/// machine, these pause for half as long.
const NOT_ON_ARM64: &str = "truth::fine";

/// Whether this guest has a test by that backend, which a kernel of the daily run is known by.
pub(crate) fn has(name: &str, backend: Backend) -> bool {
    if env::var_os(DAILY).is_none_or(|value| value != "1") {
        return true;
    }
    if cfg!(target_arch = "aarch64") && name == NOT_ON_ARM64 {
        return false;
    }
    PLACES.iter().any(|(kernels, names)| {
        let is_here = match kernels {
            Kernels::All => true,
            Kernels::One(its) => *its == backend,
        };
        is_here && names.contains(&name)
    })
}

/// All names in the lists.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    PLACES.iter().flat_map(|(_, names)| *names).copied()
}
