//! Whether this user may trace on this kernel, found out before anything is attached, and what will be
//! degraded. Each finding that is not well names its remedy where there is one.

use super::{
    facts::{Facts, Live},
    preemption::Preemption,
};
use crate::{error::Failure, named::named};

/// Capabilities by their numbers (include/uapi/linux/capability.h), the needed ones first.
const CAPABILITIES: [(&str, u32); 5] = [
    ("CAP_BPF", 39),
    ("CAP_PERFMON", 38),
    ("CAP_SYS_ADMIN", CAP_SYS_ADMIN),
    ("CAP_SYSLOG", 34),
    ("CAP_SYS_RESOURCE", CAP_SYS_RESOURCE),
];
/// How many of them are needed.
const NEEDED: usize = 2;
/// The one that includes those.
const CAP_SYS_ADMIN: u32 = 21;
const CAP_SYS_RESOURCE: u32 = 24;

/// What `/proc/self/ns/…` link to outside of any container (the kernel's `PROC_USER_INIT_INO`, `PROC_PID_INIT_INO`).
const INITIAL_USER_NAMESPACE: &str = "user:[4026531837]";
pub(crate) const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";

/// Where the kernel offers kprobes: its event source, or the file for older ways.
const KPROBES: [&str; 3] = [
    "/sys/bus/event_source/devices/kprobe",
    "/sys/kernel/tracing/kprobe_events",
    "/sys/kernel/debug/tracing/kprobe_events",
];

named! {
    /// What came of a check.
    pub(crate) enum Verdict {
        /// As it should be.
        Ok "ok",
        /// The tool works, but costs more or shows less than it could.
        Degraded "degraded",
        /// The tool can't work.
        No "no",
        /// This user may not know.
        Unknown "?",
    }
}

/// A check and what came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Check {
    /// The name of what was checked.
    pub name: &'static str,
    /// What came of it.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// What to do about it.
    pub remedy: Option<String>,
}

impl Check {
    /// A check with nothing to be done about it.
    #[must_use]
    pub(crate) fn new(name: &'static str, verdict: Verdict, found: impl Into<String>) -> Self {
        Self { name, verdict, found: found.into(), remedy: None }
    }

    /// With what to do.
    #[must_use]
    pub(crate) fn remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }

    /// What a failure has found.
    #[must_use]
    pub(crate) fn failed(name: &'static str, failure: &Failure) -> Self {
        match failure {
            Failure::CannotTrace { found, remedy } => {
                Self { remedy: remedy.clone(), ..Self::new(name, Verdict::No, found) }
            }
            other => Self::new(name, Verdict::No, other.to_string()),
        }
    }

    /// How a run ends for which this stands in the way.
    #[must_use]
    pub(crate) fn failure(&self) -> Failure {
        Failure::CannotTrace { found: self.found.clone(), remedy: self.remedy.clone() }
    }
}

/// Checks what nothing works without.
///
/// # Errors
/// [`Failure::CannotTrace`] with the remedy of the first that fails.
pub(crate) fn check() -> Result<(), Failure> {
    match first_failure(&needed(&Live)) {
        Some(failed) => Err(failed.failure()),
        None => Ok(()),
    }
}

/// The first check that forbids tracing.
#[must_use]
pub(crate) fn first_failure(checks: &[Check]) -> Option<&Check> {
    checks.iter().find(|check| check.verdict == Verdict::No)
}

/// What nothing works without.
#[must_use]
pub(crate) fn needed(facts: &impl Facts) -> Vec<Check> {
    [
        process_files(facts),
        user_namespace(facts),
        Some(privileges(facts)),
        Some(lockdown(facts)),
        ftrace(facts),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// What the tool works without, or with other numbers.
#[must_use]
pub(crate) fn circumstances(facts: &impl Facts) -> Vec<Check> {
    [pid_namespace(facts), seccomp(facts), settings(facts), other_protocols(facts)]
        .into_iter()
        .flatten()
        .chain([
            kprobes_offered(facts),
            jit(facts),
            locked_memory(facts),
            page_bases(facts),
            preemption(facts),
            given_up(facts),
        ])
        .collect()
}

/// The kernel's release and version.
#[must_use]
pub(crate) fn kernel(facts: &impl Facts) -> Check {
    let text = |path| facts.text(path).map(|text| text.trim_end().to_owned()).unwrap_or_default();
    let found = format!("{} {}", text("/proc/sys/kernel/osrelease"), text("/proc/sys/kernel/version"));
    Check::new("kernel", Verdict::Ok, found)
}

/// Whether functions can be hooked by kprobes; if not, the backend fentry has to do.
///
/// # Errors
/// A check that says why not.
pub(crate) fn kprobes(facts: &impl Facts) -> Result<(), Check> {
    const SWITCH: &str = "/sys/kernel/debug/kprobes/enabled";
    if !KPROBES.iter().any(|path| facts.exists(path)) {
        return Err(Check::new("kprobes", Verdict::Degraded, "this kernel has no kprobes")
            .remedy("use a kernel with CONFIG_KPROBE_EVENTS=y"));
    }
    // A kprobe would attach without an error, and never be hit (`kprobes_all_disarmed`).
    if facts.number(SWITCH) == Some(0) {
        return Err(Check::new(
            "kprobes",
            Verdict::Degraded,
            format!("kprobes are switched off ({SWITCH} = 0)"),
        )
        .remedy(format!("switch them on with echo 1 > {SWITCH}")));
    }
    Ok(())
}

/// Capabilities count in a user namespace only for what belongs to it, which no kernel does (`bpf_capable`).
/// What the kernel says of processes, this one too, is in /proc.
fn process_files(facts: &impl Facts) -> Option<Check> {
    let is_there = facts.text("/proc/self/status").is_ok();
    let missing = || {
        Check::new("procfs", Verdict::No, "cannot trace: /proc is not there")
            .remedy("mount it: mount -t proc proc /proc")
    };
    (!is_there).then(missing)
}

fn user_namespace(facts: &impl Facts) -> Option<Check> {
    let namespace = facts.link("/proc/self/ns/user")?;
    (namespace != INITIAL_USER_NAMESPACE).then(|| {
        Check::new(
            "user namespace",
            Verdict::No,
            "this is a user namespace, whose root may not trace the kernel",
        )
        .remedy("start net-latency on the host, or in a container that shares the host's (--userns=host)")
    })
}

fn effective(facts: &impl Facts) -> Option<u64> {
    let status = facts.text("/proc/self/status").ok()?;
    let value = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(value.trim(), 16).ok()
}

const fn has(effective: u64, capability: u32) -> bool {
    effective >> capability & 1 == 1
}

fn privileges(facts: &impl Facts) -> Check {
    // Where it can't be read, loading will tell.
    let Some(effective) = effective(facts) else {
        return Check::new("privileges", Verdict::Unknown, "/proc/self/status can't be read")
            .remedy("mount procfs on /proc");
    };
    // CAP_SYS_ADMIN includes the others (`bpf_capable`, `perfmon_capable`, Linux 5.8).
    let missing: Vec<&str> = CAPABILITIES[..NEEDED]
        .iter()
        .filter(|(_, number)| !has(effective, *number) && !has(effective, CAP_SYS_ADMIN))
        .map(|(name, _)| *name)
        .collect();
    if missing.is_empty() {
        let each = CAPABILITIES
            .map(|(name, number)| format!("{name} {}", if has(effective, number) { "yes" } else { "no" }));
        return Check::new("privileges", Verdict::Ok, each.join(", "));
    }
    let found = format!("tracing the kernel needs {}, which this user lacks", missing.join(" and "));
    Check::new("privileges", Verdict::No, found)
        .remedy("run it with sudo, or grant it with setcap cap_bpf,cap_perfmon+ep")
}

/// The current mode stands in brackets. At "confidentiality" the kernel refuses kprobes and
/// `bpf_probe_read_kernel` (`LOCKDOWN_KPROBES`, `LOCKDOWN_BPF_READ_KERNEL`); "integrity" allows both.
fn lockdown(facts: &impl Facts) -> Check {
    const PATH: &str = "/sys/kernel/security/lockdown";
    let text = facts.text(PATH).unwrap_or_default();
    let mode = text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(mode, _)| mode);
    match mode {
        Some("confidentiality") => Check::new(
            "lockdown",
            Verdict::No,
            "the kernel is locked down (confidentiality), which forbids programs to read its memory",
        )
        .remedy("boot with lockdown=integrity or lockdown=none to trace"),
        Some(mode) => Check::new("lockdown", Verdict::Ok, mode),
        // No lockdown, or securityfs isn't mounted: loading says whether it works.
        None => Check::new("lockdown", Verdict::Unknown, format!("{PATH} is not there"))
            .remedy("if this kernel has it, mount -t securityfs securityfs /sys/kernel/security shows it"),
    }
}

/// With this switched off the kernel attaches to functions without an error, by either backend, and
/// none is ever called (`ftrace_startup_enable`). Kernels without ftrace have no such file.
fn ftrace(facts: &impl Facts) -> Option<Check> {
    let is_off = facts.number("/proc/sys/kernel/ftrace_enabled")? == 0;
    Some(if is_off {
        Check::new(
            "ftrace",
            Verdict::No,
            "hooks on the kernel's functions are switched off (kernel.ftrace_enabled = 0)",
        )
        .remedy("switch them on with sysctl kernel.ftrace_enabled=1")
    } else {
        Check::new("ftrace", Verdict::Ok, "kernel.ftrace_enabled = 1")
    })
}

fn pid_namespace(facts: &impl Facts) -> Option<Check> {
    let namespace = facts.link("/proc/self/ns/pid")?;
    (namespace != INITIAL_PID_NAMESPACE).then(|| {
        Check::new("pid namespace", Verdict::Degraded, "not the initial PID namespace: --pid can't be used")
            .remedy("start net-latency on the host, or in a container that shares the host's (--pid=host)")
    })
}

fn seccomp(facts: &impl Facts) -> Option<Check> {
    let status = facts.text("/proc/self/status").ok()?;
    let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:"))?.trim().to_owned();
    (mode != "0").then(|| {
        Check::new("seccomp", Verdict::Degraded, "system calls are filtered, as in containers")
            .remedy("allow bpf and perf_event_open (--security-opt seccomp=unconfined)")
    })
}

/// Protocols of this kernel that carry a program's bytes and have no lines, with their sockets in this network
/// namespace where the kernel counts any.
fn other_protocols(facts: &impl Facts) -> Option<Check> {
    const NAMES: [(&str, &[&str]); 5] = [
        ("SMC", &["SMC", "SMC6"]),
        ("SCTP", &["SCTP", "SCTPv6"]),
        ("UDP-Lite", &["UDP-Lite", "UDPLITEv6"]),
        ("RDS", &["RDS"]),
        ("TIPC", &["TIPC"]),
    ];
    let table = facts.text("/proc/net/protocols").ok()?;
    // Columns of proto_seq_printf: name, bytes of a socket, sockets, …
    let rows: Vec<(&str, u64)> = table
        .lines()
        .filter_map(|line| {
            let mut columns = line.split_whitespace();
            Some((columns.next()?, columns.nth(1)?.parse().ok()?))
        })
        .collect();
    let (mut used, mut idle) = (Vec::new(), Vec::new());
    for (name, rows_of_it) in NAMES {
        let sockets = rows.iter().filter(|(row, _)| rows_of_it.contains(row)).map(|(_, sockets)| *sockets);
        match sockets.reduce(|sum, sockets| sum + sockets) {
            None => {}
            Some(0) => idle.push(name.to_owned()),
            Some(sockets) => used.push(format!("{name} (sockets: {sockets})")),
        }
    }
    let name = "other protocols";
    if !used.is_empty() {
        return Some(Check::new(
            name,
            Verdict::Degraded,
            format!("in use, and not followed: {}", used.join(", ")),
        ));
    }
    (!idle.is_empty())
        .then(|| Check::new(name, Verdict::Ok, format!("this kernel has {}: not followed", idle.join(", "))))
}

fn kprobes_offered(facts: &impl Facts) -> Check {
    match kprobes(facts) {
        Ok(()) => Check::new("kprobes", Verdict::Ok, "offered by the kernel"),
        Err(missing) => missing,
    }
}

fn jit(facts: &impl Facts) -> Check {
    const PATH: &str = "/proc/sys/net/core/bpf_jit_enable";
    match facts.number(PATH) {
        Some(0) => Check::new(
            "jit",
            Verdict::Degraded,
            "the kernel interprets BPF programs, which costs many times more",
        )
        .remedy("switch the JIT compiler on with sysctl net.core.bpf_jit_enable=1"),
        Some(_) => Check::new("jit", Verdict::Ok, "the kernel compiles BPF programs"),
        None => Check::new("jit", Verdict::Unknown, format!("{PATH} can't be read here")),
    }
}

fn locked_memory(facts: &impl Facts) -> Check {
    let name = "locked memory";
    if effective(facts).is_some_and(|effective| has(effective, CAP_SYS_RESOURCE)) {
        return Check::new(name, Verdict::Ok, "the limit can be raised");
    }
    let limits = facts.text("/proc/self/limits").unwrap_or_default();
    let limit = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    match limit.and_then(|rest| rest.split_whitespace().nth(1)) {
        Some("unlimited") => Check::new(name, Verdict::Ok, "unlimited"),
        Some(bytes) => {
            let found = format!("at most {bytes} bytes, against which maps count before Linux 5.11");
            Check::new(name, Verdict::Degraded, found).remedy("on such kernels ulimit -l unlimited, or sudo")
        }
        None => Check::new(name, Verdict::Unknown, "/proc/self/limits can't be read"),
    }
}

fn page_bases(facts: &impl Facts) -> Check {
    let name = "addresses";
    if facts.shows_page_bases() {
        return Check::new(name, Verdict::Ok, "the kernel shows where pages are mapped");
    }
    let found = "the kernel hides where pages are mapped: packets whose headers a driver left in pages are only counted";
    Check::new(name, Verdict::Degraded, found)
        .remedy("run it as root, or with CAP_SYSLOG and sysctl kernel.kptr_restrict=1 or 0")
}

fn preemption(facts: &impl Facts) -> Check {
    let name = "preemption";
    match Preemption::of(facts) {
        Preemption::Never(model) => Check::new(name, Verdict::Ok, model),
        Preemption::Possible(model) => {
            let found = format!(
                "{model}: the kernel skips programs on a CPU where one is preempted, and packets there have gaps, which the footer counts"
            );
            Check::new(name, Verdict::Degraded, found)
        }
        Preemption::Unknown => {
            Check::new(name, Verdict::Unknown, "chosen at boot; /sys/kernel/debug/sched/preempt would tell")
        }
    }
}

/// What a run can give up once it traces.
fn given_up(facts: &impl Facts) -> Check {
    let has = |path: &str, separator: char, name: &str| {
        facts.text(path).map(|list| list.trim_end().split(separator).any(|word| word == name))
    };
    let calls = match has("/proc/sys/kernel/seccomp/actions_avail", ' ', "trap") {
        Ok(true) => "system calls restricted (seccomp)",
        _ => "system calls not restricted (no seccomp)",
    };
    let files = match has("/sys/kernel/security/lsm", ',', "landlock") {
        Ok(true) => "files restricted (Landlock)",
        Ok(false) => "files not restricted (no Landlock)",
        Err(_) => "files restricted if the kernel has Landlock",
    };
    let found = format!("once tracing starts: capabilities given up, {calls}, {files}");
    Check::new("given up", Verdict::Ok, found)
}

/// Settings that matter to others than root, shown as they are.
fn settings(facts: &impl Facts) -> Option<Check> {
    let settings: Vec<String> = ["unprivileged_bpf_disabled", "perf_event_paranoid", "kptr_restrict"]
        .into_iter()
        .filter_map(|name| Some(format!("{name} = {}", facts.number(&format!("/proc/sys/kernel/{name}"))?)))
        .collect();
    (!settings.is_empty()).then(|| Check::new("settings", Verdict::Ok, settings.join(", ")))
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;
    use crate::kernel::facts::recorded::Recorded;

    const ALL: &str = "000001ffffffffff";

    fn with_capabilities(effective: u64) -> Recorded {
        Recorded::debian().replacing(&format!("CapEff:\t{ALL}"), &format!("CapEff:\t{effective:016x}"))
    }

    fn sentence(facts: &Recorded) -> Option<String> {
        first_failure(&needed(facts)).map(|check| check.failure().to_string())
    }

    /// The checks that are not well, one a line.
    fn complaints(facts: &Recorded) -> String {
        let all = [needed(facts), circumstances(facts)].concat();
        let complaints = all.iter().filter(|check| check.verdict != Verdict::Ok);
        complaints
            .map(|check| format!("{} {}: {}", check.verdict.name(), check.name, check.failure()))
            .collect::<Vec<_>>()
            .join("\n")
    }

    #[test]
    fn what_can_be_given_up_depends_on_the_kernel() {
        let found = |facts: Recorded| given_up(&facts).found;
        let old = Recorded::debian().with("/sys/kernel/security/lsm", "lockdown,yama,apparmor\n");
        let told = [
            found(Recorded::debian()),
            found(old.without("/proc/sys/kernel/seccomp")),
            found(Recorded::debian().without("/sys/kernel/security/lsm")),
        ];
        assert_snapshot!(told.join("\n"));
    }

    #[test]
    fn root_and_the_two_capabilities_suffice() {
        assert_eq!(sentence(&Recorded::debian()), None);
        assert_eq!(sentence(&with_capabilities(1 << 39 | 1 << 38)), None);
        assert_eq!(sentence(&with_capabilities(1 << CAP_SYS_ADMIN)), None);
    }

    #[test]
    fn what_is_missing_is_named() {
        let message = sentence(&with_capabilities(0)).expect("refused");
        assert!(message.contains("CAP_BPF and CAP_PERFMON") && message.contains("sudo"), "{message}");
        let message = sentence(&with_capabilities(1 << 39)).expect("refused");
        assert!(message.contains("needs CAP_PERFMON,"), "{message}");
    }

    #[test]
    fn only_confidentiality_forbids() {
        let locked = |text| sentence(&Recorded::debian().with("/sys/kernel/security/lockdown", text));
        assert_eq!(locked("none [integrity] confidentiality\n"), None);
        assert_eq!(locked(""), None);
        assert!(locked("none integrity [confidentiality]\n").expect("refused").contains("locked down"));
    }

    #[test]
    fn hooks_that_would_never_be_called_are_refused() {
        let facts = Recorded::debian().with("/proc/sys/kernel/ftrace_enabled", "0\n");
        assert!(sentence(&facts).expect("refused").contains("sysctl kernel.ftrace_enabled=1"));
        let off = Recorded::debian().with("/sys/kernel/debug/kprobes/enabled", "0\n");
        assert!(kprobes(&off).expect_err("off").failure().to_string().contains("switched off"));
        assert_eq!(kprobes(&Recorded::debian()), Ok(()));
        let none = Recorded::debian()
            .without("/sys/bus")
            .without("/sys/kernel/tracing")
            .without("/sys/kernel/debug");
        assert_eq!(kprobes(&none).expect_err("none").found, "this kernel has no kprobes");
    }

    #[test]
    fn root_on_a_plain_kernel_has_no_complaint() {
        assert_eq!(complaints(&Recorded::debian()), "");
    }

    #[test]
    fn protocols_that_are_not_followed_are_named() {
        const TABLE: &str = "/proc/net/protocols";
        let head = "protocol  size sockets  memory press maxhdr  slab module     cl co di ac io in de\n";
        let told = |rows: &[(&str, u64)]| {
            let rows: String = rows
                .iter()
                .map(|(name, sockets)| {
                    format!("{name:9} 1824 {sockets:6}       0   no       0   yes  kernel\n")
                })
                .collect();
            other_protocols(&Recorded::debian().with(TABLE, &format!("{head}{rows}")))
                .map(|check| (check.verdict, check.found))
        };
        assert_eq!(told(&[("TCP", 4), ("UDPv6", 1)]), None);
        let has = "this kernel has SCTP, UDP-Lite: not followed";
        assert_eq!(
            told(&[("SCTPv6", 0), ("UDPLITEv6", 0), ("TCP", 4), ("SCTP", 0), ("MPTCP", 9)]),
            Some((Verdict::Ok, has.to_owned()))
        );
        let uses = "in use, and not followed: SCTP (sockets: 3), TIPC (sockets: 7)";
        assert_eq!(
            told(&[("SCTP", 1), ("SCTPv6", 2), ("RDS", 0), ("TIPC", 7)]),
            Some((Verdict::Degraded, uses.to_owned()))
        );
    }

    #[test]
    fn every_complaint_says_what_to_do() {
        assert_snapshot!("realtime", complaints(&Recorded::realtime()));
        let container = Recorded::debian()
            .with("/proc/self/ns/user", "user:[4026532200]")
            .with("/proc/self/ns/pid", "pid:[4026532201]")
            .replacing("Seccomp:\t0", "Seccomp:\t2");
        assert_snapshot!("container", complaints(&container));
        let user = with_capabilities(0)
            .without("/sys/kernel/debug")
            .without("/sys/kernel/tracing")
            .without("/proc/sys/net")
            .hiding_page_bases();
        assert_snapshot!("user", complaints(&user));
        let strange = Recorded::debian()
            .with("/proc/sys/net/core/bpf_jit_enable", "0\n")
            .with("/sys/kernel/debug/kprobes/enabled", "0\n")
            .with("/sys/kernel/debug/sched/preempt", "none voluntary (full)\n")
            .with("/proc/sys/kernel/ftrace_enabled", "0\n")
            .with("/sys/kernel/security/lockdown", "none integrity [confidentiality]\n");
        assert_snapshot!("strange", complaints(&strange));
        assert_snapshot!("nothing", complaints(&Recorded::default()));
    }
}
