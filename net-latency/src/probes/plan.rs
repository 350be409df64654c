//! Which hooks to attach on the running kernel, and where.

use std::collections::BTreeMap;

use net_latency_common::{
    Direction,
    offsets::{Group, Offsets},
};

use super::table::{
    Absence, CHANGED_BY_TASK, CLOSE, CONNECTIONS, DROPS, EXIT, FINE, FIRST_BYTES, FORK, HOOKS, Hook,
    MPTCP_END, MPTCP_IN, MPTCP_OUT, Mechanism, PROCESSES, Program, Programs, SENT_ON,
};
use crate::{
    error::Failure,
    kernel::{
        arch,
        btf::{Btf, named},
        layout, preemption,
    },
    packet::event::{IpVersion, Protocol},
    request::PacketFilter,
};

/// A struct of the kernel's verifier.
const SUBPROGRAM: &str = "bpf_subprog_info";

/// Functions that tell why an skb is dropped: the first since Linux 6.11, the second from 5.19 on.
const REASONS: [&str; 2] = ["sk_skb_reason_drop", "kfree_skb_list_reason"];

/// Which packets there need be hooks for, and whether for more than packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// The only direction.
    pub direction: Option<Direction>,
    /// The only protocol.
    pub protocol: Option<Protocol>,
    /// The only IP version.
    pub version: Option<IpVersion>,
    /// Some processes are wanted by their numbers.
    pub pids: bool,
    /// Processes that others start are followed.
    pub processes: bool,
    /// Fine stages are wanted.
    pub fine: bool,
    /// Connections are, and no packets.
    pub connections: bool,
    /// Also when their first bytes came and went.
    pub first_bytes: bool,
    /// Also where packets are dropped.
    pub drops: bool,
}

impl Scope {
    /// What `filter` leaves.
    #[must_use]
    pub fn of(filter: &PacketFilter) -> Self {
        Self {
            direction: filter.direction,
            protocol: filter.protocol,
            version: filter.version,
            pids: !filter.pids.is_empty() || filter.followed.is_some(),
            processes: filter.followed.is_some(),
            fine: false,
            connections: false,
            first_bytes: false,
            drops: false,
        }
    }

    fn needs(&self, hook: &Hook) -> bool {
        fn fit<T: PartialEq>(wanted: Option<T>, hooks: Option<T>) -> bool {
            wanted.is_none() || hooks.is_none() || wanted == hooks
        }
        fit(self.direction, hook.direction)
            && fit(self.protocol, hook.protocol)
            && fit(self.version, hook.version)
    }
}

/// A hook and where it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The hook.
    pub hook: Hook,
    /// Functions or tracepoints that serve: those of its candidates that this kernel has.
    pub found: Vec<&'static str>,
    /// Whether a task can be preempted in a program here on this kernel, unless it is a kprobe's. The program is then
    /// skipped for all others on that CPU until the task goes on (`__bpf_prog_enter_recur`).
    pub is_preemptible: bool,
    /// Whether the function has more arguments than a BTF trampoline hands on: it takes a kprobe, whatever the mechanism.
    pub is_wide: bool,
}

impl Choice {
    /// The program by which `mechanism` hooks this.
    #[must_use]
    pub const fn program(&self, mechanism: Mechanism) -> Program {
        let mechanism = if self.is_wide { Mechanism::Kprobe } else { mechanism };
        self.hook.programs.of(mechanism, self.is_preemptible)
    }

    /// Functions or tracepoints to which that program is attached.
    #[must_use]
    pub fn targets(&self, mechanism: Mechanism) -> &[&'static str] {
        match (self.program(mechanism), self.hook.programs) {
            (Program::Kprobe(_), Programs::Tracepoint { kprobe: Some((_, functions)), .. }) => functions,
            _ => &self.found,
        }
    }
}

/// All that the kernel's BTF says about how to trace it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Hooks with their targets, in the order of [`HOOKS`].
    pub choices: Vec<Choice>,
    /// Field offsets.
    pub offsets: Offsets,
    /// What of the kernel's BTF it takes to load the programs.
    pub types: Vec<u8>,
    /// Whether this kernel preempts tasks within the kernel.
    pub is_preemptible: bool,
    /// Whether the tracepoint `kfree_skb` shows what TCP drops, as it does since Linux 5.18 (`tcp_drop_reason`).
    pub shows_drops: bool,
    /// The kernel's reasons for drops, by number, where drops are wanted; none before Linux 5.17.
    pub drop_reasons: BTreeMap<u32, String>,
    /// Whether the kernel counts calls that a kprobe's program missed.
    pub counts_missed_kprobes: bool,
}

impl Plan {
    /// Plans for what `scope` leaves, from the bytes of the kernel's BTF.
    ///
    /// # Errors
    /// [`Failure::CannotTrace`] names what this kernel lacks.
    pub fn new(btf: &[u8], scope: Scope) -> Result<Self, Failure> {
        let unreadable = |error| {
            Failure::cannot_trace(
                format!("this kernel's BTF type information does not suffice: {error}"),
                "please report the kernel's version",
            )
        };
        let btf = Btf::parse(btf, named(names())).map_err(unreadable)?;
        let has = |hook: &Hook, name: &str| match hook.programs {
            Programs::Function { .. } => btf.has_function(name),
            Programs::Tracepoint { .. } | Programs::AllTracepoints { .. } => btf.has_tracepoint(name),
        };
        let is_preemptible = preemption::is_possible();
        // Linux 7.0 was the first that did not disable preemption for programs of tracepoints itself. It has no mark in BTF; this one came
        // with 6.15, and in between a kprobe does no worse.
        let tracepoints = is_preemptible && btf.has_member(SUBPROGRAM, "might_sleep");
        let preempts = |hook: &Hook| {
            hook.is_in_tasks()
                && match hook.programs {
                    Programs::Function { .. } => is_preemptible,
                    Programs::Tracepoint { kprobe: Some((_, functions)), .. } => {
                        tracepoints && functions.iter().all(|function| btf.has_function(function))
                    }
                    Programs::Tracepoint { .. } | Programs::AllTracepoints { .. } => false,
                }
        };
        let counts_missed_kprobes = layout::counts_missed_kprobes(&btf);
        // Both came with Linux 6.7, or a version before.
        let most = arch::TRAMPOLINE_ARGUMENTS[usize::from(counts_missed_kprobes)];
        let is_wide = |target: &str| btf.parameters(target).is_some_and(|count| count > most);
        let choices = choose(scope, has, preempts, is_wide).map_err(|hook| {
            let (names, stage) = (hook.candidates.join(", "), hook.stage.name());
            Failure::cannot_trace(
                format!("this kernel has none of {names}, so that stage {stage} can't be seen"),
                "please report the kernel's version",
            )
        })?;
        let offsets = layout::offsets(&btf, Group::Packets, Offsets::default()).map_err(unreadable)?;
        // Where one of them is missing, that is all that is unknown.
        let offsets = if scope.fine {
            let offsets = layout::offsets(&btf, Group::Held, offsets).unwrap_or(offsets);
            layout::offsets(&btf, Group::Calls, offsets).unwrap_or(offsets)
        } else {
            offsets
        };
        let offsets = if scope.connections {
            layout::offsets(&btf, Group::Connections, offsets).map_err(unreadable)?
        } else {
            offsets
        };
        let shows_drops = REASONS.into_iter().any(|name| btf.has_function(name));
        let mut of_mptcp = MPTCP_IN.iter().chain(&MPTCP_OUT).chain([&MPTCP_END]);
        // Where TCP's drops are not seen, some of what a subflow has got may have been dropped.
        let offsets = if shows_drops && of_mptcp.all(|name| btf.has_function(name)) {
            layout::offsets(&btf, Group::Mptcp, offsets).unwrap_or(offsets)
        } else {
            offsets
        };
        let found = || choices.iter().flat_map(|choice| choice.found.iter().copied());
        Ok(Self {
            is_preemptible,
            // A target may be both: a tracepoint and the function it is in.
            types: btf.only(found(), found()),
            choices,
            offsets,
            shows_drops,
            drop_reasons: if scope.drops { btf.drop_reasons() } else { BTreeMap::new() },
            counts_missed_kprobes,
        })
    }
}

impl Plan {
    /// Whether `mechanism` hooks anything by a kprobe.
    #[must_use]
    pub fn takes_kprobes(&self, mechanism: Mechanism) -> bool {
        self.choices.iter().any(|choice| matches!(choice.program(mechanism), Program::Kprobe(_)))
    }

    /// Whether MPTCP is followed; nothing if this kernel has none.
    #[must_use]
    pub fn follows_mptcp(&self) -> Option<bool> {
        self.has_target(&MPTCP_IN).then_some(self.offsets.mptcp_sock_write_seq != 0)
    }

    /// Whether one of these functions is hooked.
    #[must_use]
    pub fn has_target(&self, names: &[&str]) -> bool {
        self.choices.iter().flat_map(|choice| &choice.found).any(|target| names.contains(target))
    }
}

/// Takes from the table what `has` confirms; the hook that can't be served is the error.
fn choose(
    scope: Scope,
    has: impl Fn(&Hook, &str) -> bool,
    preempts: impl Fn(&Hook) -> bool,
    is_wide: impl Fn(&str) -> bool,
) -> Result<Vec<Choice>, Hook> {
    let mut choices = Vec::new();
    let processes = match scope {
        Scope { processes: true, .. } => &PROCESSES[..],
        Scope { fine: true, .. } => &[FORK],
        _ => &[],
    };
    let exit = [EXIT].into_iter().filter(|_| scope.pids || scope.fine);
    let fine = FINE.into_iter().filter(|_| scope.fine);
    let sent_on = [SENT_ON].into_iter().filter(|_| scope.direction == Some(Direction::In));
    let of_packets = HOOKS.into_iter().chain(sent_on).chain(fine).chain([CLOSE]);
    let of_packets = of_packets.filter(|_| !scope.connections);
    for hook in CONNECTIONS
        .into_iter()
        .filter(|_| scope.connections)
        .chain([CHANGED_BY_TASK].into_iter().filter(|hook| scope.connections && preempts(hook)))
        .chain(FIRST_BYTES.into_iter().filter(|_| scope.first_bytes))
        .chain([DROPS].into_iter().filter(|_| scope.drops))
        .chain(of_packets)
        .chain(exit)
        .chain(processes.iter().copied())
    {
        if !scope.needs(&hook) {
            continue;
        }
        let mut found = hook.candidates.iter().copied().filter(|name| has(&hook, name));
        let found: Vec<_> = match hook.programs {
            Programs::AllTracepoints { .. } => found.collect(),
            _ => found.next().into_iter().collect(),
        };
        if !found.is_empty() {
            let is_preemptible = preempts(&hook);
            let is_wide = matches!(hook.programs, Programs::Function { .. }) && is_wide(found[0]);
            choices.push(Choice { hook, found, is_preemptible, is_wide });
        } else if hook.absence == Absence::Fatal {
            return Err(hook);
        }
    }
    Ok(choices)
}

/// The names that are looked up in the kernel's BTF.
fn names() -> impl Iterator<Item = &'static str> {
    let hooks = HOOKS.into_iter().chain(FINE).chain([CLOSE, EXIT]).chain(PROCESSES);
    let hooks = hooks.chain(CONNECTIONS).chain(FIRST_BYTES).chain([CHANGED_BY_TASK, DROPS]);
    layout::names().chain([SUBPROGRAM]).chain(REASONS).chain(hooks.flat_map(|hook| {
        let functions: &[_] = match hook.programs {
            Programs::Tracepoint { kprobe: Some((_, functions)), .. } => functions,
            _ => &[],
        };
        hook.candidates.iter().chain(functions).copied()
    }))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Functions that some kernels of the matrix lack, as recorded on each.
    const LACKING: [(&str, &[&str]); 4] = [
        ("5.10", &["__tcp_read_sock", "tcp_read_done"]),
        ("6.1", &[]),
        ("6.12", &["do_tcp_sendpages"]),
        ("7.2", &["do_tcp_sendpages", "tcp_v4_send_check", "tcp_v6_send_check"]),
    ];

    fn chosen(scope: Scope, lacking: &[&str]) -> Result<Vec<Choice>, Hook> {
        choose(scope, |_, name| !lacking.contains(&name), |_| false, |_| false)
    }

    fn list(choices: &[Choice]) -> String {
        let line = |choice: &Choice| format!("{} {}", choice.hook.stage.name(), choice.found.join(" "));
        choices.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn every_kernel_of_the_matrix_is_served() {
        for (kernel, lacking) in LACKING {
            let choices = chosen(Scope::default(), lacking);
            let choices = choices.unwrap_or_else(|hook| panic!("{kernel} lacks {hook:?}"));
            insta::assert_snapshot!(format!("hooks_{kernel}"), list(&choices));
        }
    }

    #[test]
    fn a_stage_without_a_hook_is_an_error() {
        assert_eq!(chosen(Scope::default(), &["tcp_v4_rcv"]).unwrap_err().candidates, ["tcp_v4_rcv"]);
    }

    #[test]
    fn what_tasks_run_through_is_a_kprobe_where_they_are_preempted() {
        let of_connections = Scope { connections: true, first_bytes: true, ..Scope::default() };
        let choices = [Scope::default(), of_connections]
            .into_iter()
            .flat_map(|scope| choose(scope, |_, _| true, Hook::is_in_tasks, |_| false).unwrap());
        let programs: Vec<_> = choices
            .map(|choice| {
                let (targets, program) = (choice.targets(Mechanism::Mixed), choice.program(Mechanism::Mixed));
                format!("{} {}", targets.join(" "), program.kind())
            })
            .collect();
        insta::assert_snapshot!(programs.join("\n"));
    }

    #[test]
    fn one_direction_leaves_the_other_alone() {
        for (direction, other) in [(Direction::In, Direction::Out), (Direction::Out, Direction::In)] {
            let scope = Scope { direction: Some(direction), ..Scope::default() };
            let choices = chosen(scope, &[]).unwrap();
            assert!(choices.iter().all(|choice| choice.hook.direction != Some(other)));
            assert!(choices.iter().any(|choice| choice.hook == CLOSE));
        }
    }

    #[test]
    fn a_protocol_or_a_version_needs_its_own_hooks_only() {
        let tcp = Scope { protocol: Some(Protocol::Tcp), ..Scope::default() };
        let udp6 = Scope {
            protocol: Some(Protocol::Udp),
            version: Some(IpVersion::V6),
            pids: true,
            processes: true,
            ..Scope::default()
        };
        insta::assert_snapshot!("hooks_tcp", list(&chosen(tcp, &[]).unwrap()));
        insta::assert_snapshot!("hooks_udp_v6", list(&chosen(udp6, &[]).unwrap()));
    }

    #[test]
    fn no_program_stands_twice_in_the_table() {
        let mut seen = HashSet::new();
        for hook in HOOKS.into_iter().chain(FINE).chain([CLOSE, EXIT]).chain(PROCESSES) {
            let programs: HashSet<_> =
                [(Mechanism::Fentry, false), (Mechanism::Kprobe, false), (Mechanism::Kprobe, true)]
                    .map(|(mechanism, is_preemptible)| hook.programs.of(mechanism, is_preemptible).name())
                    .into();
            for program in programs {
                assert!(seen.insert(program), "{program}");
            }
        }
    }
}
