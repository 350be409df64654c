//! Loading the kernel side and attaching it, by fentry or by kprobe.

use std::{
    collections::HashMap,
    env,
    hash::{BuildHasher as _, RandomState},
    io, iter,
    num::NonZero,
    os::fd::{AsFd as _, OwnedFd},
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use aya::{
    Btf, Ebpf, EbpfLoader, Endianness,
    maps::{Array, Map, MapData, MapError},
    programs::{Program, ProgramError},
    sys::{Stats, enable_stats},
};
use net_latency_common::{
    CONNECTION_RECORDS_MAP, LEAVING_MAP, MPTCP_MAPS, OPEN_CONNECTIONS_MAP, PAGE_BASES_MAP, PageBases,
    READERS_MAP, RECORDS_MAP, SEGMENTS_MAP, SENT_MAP, WRITES_MAP,
};
use rustix::{
    io::Errno,
    process::{Resource, Rlimit, setpriority_process, setrlimit},
    thread::gettid,
};

use super::{
    attached::{Attached, release_memory},
    filters, histograms, patch,
    plan::{Choice, Plan},
    signals::Held,
    table::{CHANGED_BY_TASK, MADE_UP_FOR, Mechanism, Programs, TCP_IN_IP},
};
use crate::message::tell;
use crate::{
    clock::monotonic_ns,
    error::Failure,
    kernel::{facts::Live, pages, preemption, prerequisites},
    request::{Backend, Histograms, PacketFilter},
};

/// The kernel side as an object file, built by build.rs, for nearly every run.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/net-latency-bpf"));
/// The kernel side with counts of times.
static COUNTS_OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/net-latency-counts-bpf"));
/// The kernel side with filters by name and cgroup, control packets, fine stages and a log.
static FULL_OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/net-latency-full-bpf"));
/// What follows connections, and no packets.
static CONNECTIONS_OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/net-latency-connections-bpf"));

/// The full one, of which a test can have hooks skipped. A release has neither it nor the variable that asks for it.
#[cfg(all(debug_assertions, has_skipping_object))]
static SKIPPING_OBJECT: Option<&[u8]> =
    Some(aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/net-latency-skipping-bpf")));
#[cfg(not(all(debug_assertions, has_skipping_object)))]
static SKIPPING_OBJECT: Option<&[u8]> = None;
/// Set by tests that have hooks skipped.
const SKIPS: &str = "NET_LATENCY_SKIPS";

/// Bytes of the log's ring buffer while nothing is logged: the smallest there is.
const NO_LOG_BYTES: u32 = 4096;

/// Entries of maps that make room for those of fine stages: all of them together may take 18 MiB.
const SMALLER_WITH_FINE: [(&str, u32); 2] = [(SEGMENTS_MAP, 6144), (WRITES_MAP, 8192)];

/// What to load the kernel side with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Request {
    /// Which packets to show.
    pub filter: PacketFilter,
    /// Bytes of the ring buffer.
    pub buffer_bytes: u32,
    /// Level of the kernel side's log, 0 for none (`aya_log::Level` as a number).
    pub log_level: u8,
    /// Counts of times instead of records.
    pub histograms: Option<Histograms>,
    /// Records have fine stages.
    pub fine: bool,
    /// Connections in place of packets: N at a time.
    pub connections: Option<u32>,
    /// Of these, clients' have a record when they are established, too.
    pub tell_established: bool,
}

/// The attached kernel side. Dropping it detaches everything.
#[derive(Debug)]
pub(crate) struct Probes {
    attached: Attached,
    mechanism: Mechanism,
    /// The kernel measures its programs' time as long as this is open. Only --debug pays for it: about 50 instructions for each run of a
    /// program.
    _statistics: Option<OwnedFd>,
}

/// Attaches everything that `plan` names, by the first mechanism of `backend` that works. The second value has the maps, and
/// goes to [`Probes::release`]. On failure nothing stays attached.
///
/// # Errors
/// [`Failure::CannotTrace`] with what the kernel said.
pub(crate) fn attach(plan: &Plan, backend: Backend, request: &Request) -> Result<(Probes, Ebpf), Failure> {
    let mut reasons = Vec::new();
    for &mechanism in mechanisms(backend, plan.is_preemptible) {
        match attach_by(plan, mechanism, request) {
            Ok(attached) => {
                // Before the ring buffer is mapped, all of which counts at once: what loading took.
                release_memory();
                return Ok(attached);
            }
            Err(reason) => reasons.push((mechanism, reason)),
        }
    }
    Err(refusal(backend, &reasons))
}

/// The mechanisms that `backend` allows, best first, on a kernel that preempts tasks or not.
#[must_use]
pub(crate) const fn mechanisms(backend: Backend, is_preemptible: bool) -> &'static [Mechanism] {
    match backend {
        Backend::Auto if is_preemptible => &[Mechanism::Mixed, Mechanism::Fentry, Mechanism::Kprobe],
        Backend::Auto => &[Mechanism::Fentry, Mechanism::Kprobe],
        Backend::Fentry => &[Mechanism::Fentry],
        Backend::Kprobe => &[Mechanism::Kprobe],
    }
}

/// Why a mechanism doesn't work here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    /// The error and its causes, in one line.
    pub reason: String,
    /// What forbids it, where that is known.
    pub ban: Option<Ban>,
}

/// What keeps a user from tracing a kernel that could be traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ban {
    /// `EPERM` of any system call: lockdown, a seccomp filter or a security module.
    Policy,
    /// `EACCES` of perf_event_open: Debian's kernels ask for more than CAP_PERFMON where kernel.perf_event_paranoid is
    /// above 2, as it is by default.
    PerfEvents,
    /// `EMFILE` or `ENFILE`: each program, map and hook is a descriptor.
    Descriptors,
}

impl From<anyhow::Error> for Refused {
    fn from(error: anyhow::Error) -> Self {
        Self { reason: one_line(&error), ban: error.chain().find_map(ban) }
    }
}

/// What one error of a chain says of it. aya's transparent errors are no link of their own: what they hold is looked into.
fn ban(error: &(dyn std::error::Error + 'static)) -> Option<Ban> {
    let (call, error) = match (error.downcast_ref(), error.downcast_ref()) {
        (Some(ProgramError::SyscallError(error)), _) | (_, Some(MapError::SyscallError(error))) => {
            (error.call, &error.io_error)
        }
        (Some(ProgramError::IOError(error)), _) | (_, Some(MapError::IoError(error))) => ("", error),
        _ => ("", error.downcast_ref::<io::Error>()?),
    };
    match error.raw_os_error().map(Errno::from_raw_os_error)? {
        Errno::PERM => Some(Ban::Policy),
        Errno::ACCESS if call == "perf_event_open" => Some(Ban::PerfEvents),
        Errno::MFILE | Errno::NFILE => Some(Ban::Descriptors),
        _ => None,
    }
}

/// Attaches everything that `plan` names by that mechanism, as [`attach`] does.
///
/// # Errors
/// The reason.
pub(crate) fn attach_by(
    plan: &Plan,
    mechanism: Mechanism,
    request: &Request,
) -> Result<(Probes, Ebpf), Refused> {
    lift_memory_limit();
    let _held = Held::new();
    load_and_attach(plan, mechanism, request).map_err(Refused::from)
}

/// Before Linux 5.11 maps count against this limit. Where it can't be raised, loading says so.
pub(super) fn lift_memory_limit() {
    let _ = setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None });
}

/// That no mechanism of `backend` works: of the reasons the one that has a remedy of its own, else the last, which is that
/// of the mechanism that needs least.
#[must_use]
pub(crate) fn refusal(backend: Backend, refused: &[(Mechanism, Refused)]) -> Failure {
    let banned = |ban| refused.iter().find(|(_, refused)| refused.ban == Some(ban));
    let known = [Ban::Descriptors, Ban::Policy, Ban::PerfEvents].into_iter().find_map(banned);
    let told = known.or(refused.last());
    let remedy = match (told.and_then(|(_, refused)| refused.ban), backend) {
        (Some(Ban::Policy), _) => {
            "find out whether lockdown, a seccomp filter or a security module forbids it (`net-latency check` shows the first two)"
        }
        (Some(Ban::PerfEvents), _) => "use sudo, or sysctl kernel.perf_event_paranoid=2",
        (Some(Ban::Descriptors), _) => "allow it more open files: ulimit -n 1024",
        (None, Backend::Auto) => {
            "use a kernel with CONFIG_KPROBE_EVENTS=y or CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS=y"
        }
        (None, Backend::Fentry) => "try --backend kprobe",
        (None, Backend::Kprobe) => "try --backend fentry",
    };
    let found = told.map_or_else(
        || "cannot trace".to_owned(),
        |(mechanism, refused)| format!("cannot trace by {}: {}", mechanism.name(), refused.reason),
    );
    Failure::cannot_trace(found, remedy)
}

/// The error and its causes, without those that have been said: some errors of aya end with their cause.
fn causes(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |said, cause| match said.as_str() {
        "" => cause,
        known if known.ends_with(&cause) => said,
        known => format!("{known}: {cause}"),
    })
}

/// The error and its causes in one line: of the verifier's log, which may have thousands, the verdict.
pub(super) fn one_line(error: &anyhow::Error) -> String {
    // The last ones for each function: Linux 7.3.
    const STATISTICS: [&str; 5] =
        ["processed ", "verification time", "stack depth", "mark_precise", "subprog "];
    let text = causes(error);
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with(':'));
    let first = lines.next().unwrap_or_default();
    // The log begins on that line: where a stack is too large, with the verdict.
    let (head, log) = first.split_once(" Verifier output:").unwrap_or((first, ""));
    let mut log = iter::once(log.trim()).chain(lines).filter(|line| !line.is_empty());
    match log.rfind(|line| !STATISTICS.iter().any(|word| line.starts_with(word))) {
        Some(verdict) => format!("{head} ({verdict})"),
        None => head.trim_end_matches('.').to_owned(),
    }
}

fn load_and_attach(plan: &Plan, mechanism: Mechanism, request: &Request) -> Result<(Probes, Ebpf)> {
    if plan.takes_kprobes(mechanism) {
        prerequisites::kprobes(&Live).map_err(|missing| anyhow::Error::msg(missing.found))?;
    }
    let mut settings = filters::settings(&request.filter, request.buffer_bytes);
    if let Some(Histograms { by, slower, .. }) = request.histograms {
        settings.histograms_by = by as u32;
        settings.record_slower_ns = filters::slower_ns(slower);
    }
    settings.tcp_header_only = u32::from(plan.has_target(&TCP_IN_IP));
    settings.tcp_drops_unseen = u32::from(!plan.shows_drops);
    settings.fine = u32::from(request.fine);
    settings.tell_established = u32::from(request.tell_established);
    settings.tasks_apart = u32::from(plan.choices.iter().any(|choice| choice.hook == CHANGED_BY_TASK));
    let is_realtime = preemption::is_realtime();
    settings.realtime = u32::from(is_realtime);
    settings.shows_drop_reasons = u32::from(!plan.drop_reasons.is_empty());
    settings.since = monotonic_ns();
    // The standard library's hashes have random keys.
    settings.seed = RandomState::new().hash_one(());
    let mut loader = EbpfLoader::new();
    loader
        // The object has no relocations against the kernel's types: offsets are written into it below.
        .btf(None)
        .override_global(aya_log::LEVEL, &request.log_level, false)
        .map_max_entries(RECORDS_MAP, request.buffer_bytes)
        .map_max_entries(CONNECTION_RECORDS_MAP, request.buffer_bytes);
    filters::size(&request.filter, &mut loader);
    if let Some(histograms) = request.histograms {
        histograms::size(histograms, &mut loader);
    }
    if request.log_level == 0 {
        loader.map_max_entries("AYA_LOGS", NO_LOG_BYTES);
    }
    let skipping = SKIPPING_OBJECT.filter(|_| env::var_os(SKIPS).is_some());
    let is_full = request.connections.is_none()
        && (skipping.is_some()
            || request.filter.control
            || filters::needs_names(&request.filter)
            || request.fine
            || request.log_level > 0);
    let object = match (skipping, request.histograms) {
        _ if request.connections.is_some() => CONNECTIONS_OBJECT,
        (Some(object), _) => object,
        _ if is_full => FULL_OBJECT,
        (None, Some(_)) => COUNTS_OBJECT,
        (None, None) => OBJECT,
    };
    if is_full && !request.fine {
        for map in [READERS_MAP, SENT_MAP, LEAVING_MAP] {
            loader.map_max_entries(map, 1);
        }
    }
    if plan.follows_mptcp() != Some(true) {
        for map in MPTCP_MAPS {
            loader.map_max_entries(map, 1);
        }
    }
    if request.fine {
        for (map, entries) in SMALLER_WITH_FINE {
            loader.map_max_entries(map, entries);
        }
    }
    if let Some(most) = request.connections {
        loader.map_max_entries(OPEN_CONNECTIONS_MAP, most);
    }
    let object = patch::patched(object, &plan.offsets, &settings)?;
    let mut ebpf = loader.load(&object).context("loading the programs")?;
    let mut probes = Probes {
        attached: Attached::default(),
        mechanism,
        // It takes CAP_SYS_ADMIN, beyond what tracing does: without it that time is not known.
        _statistics: (request.log_level > 0).then(|| enable_stats(Stats::RunTime).ok()).flatten(),
    };
    if request.connections.is_none() {
        tell_page_bases(&ebpf)?;
    }
    filters::fill(&request.filter, &mut ebpf)?;

    let types = Btf::parse(&plan.types, Endianness::default()).context("reading the kernel's BTF")?;
    // Everything is loaded before anything is attached, so that the stages start close together.
    load_all(&mut ebpf, &plan.choices, mechanism, &types)?;
    for choice in &plan.choices {
        probes.attach_part(&mut ebpf, choice);
    }
    for choice in plan.choices.iter().rev() {
        probes
            .attach(&mut ebpf, choice)
            .with_context(|| format!("attaching to {}", choice.found.join(", ")))?;
    }
    probes.attached.keep(&ebpf, if is_realtime { &[] } else { &MADE_UP_FOR })?;
    if !plan.takes_kprobes(mechanism) {
        probes.attached.watch_no_kprobes();
    } else if plan.counts_missed_kprobes {
        probes.attached.watch();
    }
    Ok((probes, ebpf))
}

/// Tells the kernel side where pages are mapped, as soon as that is found: until then it can't read headers that a driver left in pages,
/// and counts their packets. A user who may not see the headers of the kernel's memory has to read the list of symbols, which takes as long
/// as loading the programs does, and few drivers leave headers there; so nothing waits for it, and where there is but one CPU it comes
/// after the start.
fn tell_page_bases(ebpf: &Ebpf) -> Result<()> {
    const LEAST_URGENT: i32 = 19;

    let Some(Map::Array(map)) = ebpf.map(PAGE_BASES_MAP) else { bail!("map {PAGE_BASES_MAP} is missing") };
    // The programs that are still to be loaded know the map by its first descriptor.
    let map = MapData::from_fd(map.fd().as_fd().try_clone_to_owned()?)?;
    let mut map = Array::<_, PageBases>::try_from(Map::Array(map))?;
    if let Some(bases) = pages::bases() {
        return Ok(map.set(0, bases, 0)?);
    }
    let look = thread::Builder::new().spawn(move || {
        // Without permission to lower its priority the start takes a little longer.
        let _ = setpriority_process(Some(gettid()), LEAST_URGENT);
        if let Some(bases) = pages::variables()
            && let Err(error) = map.set(0, bases, 0)
        {
            tell(format_args!("cannot tell where pages are mapped: {error}"));
        }
    });
    look.context("no thread can be made")?;
    Ok(())
}

impl Probes {
    /// How the functions are hooked.
    #[must_use]
    pub(crate) fn mechanism(&self) -> Mechanism {
        self.mechanism
    }

    /// Lets go of the loaded object, when all that is read has been taken from it, and gives memory back.
    pub(crate) fn release(&mut self, ebpf: Ebpf) {
        self.attached.release(ebpf);
        release_memory();
    }

    /// How often the kernel skipped one of the programs so far, because it or another was already running on that CPU; `None`
    /// where the kernel does not count that (before Linux 5.12, for kprobes before 6.7), or not for this user.
    #[must_use]
    pub(crate) fn missed(&self) -> Option<u64> {
        self.attached.missed()
    }

    /// The programs' CPU time so far, where the kernel measures it.
    #[must_use]
    pub(crate) fn time(&self) -> Option<Duration> {
        self.attached.time()
    }

    fn attach(&mut self, ebpf: &mut Ebpf, choice: &Choice) -> Result<()> {
        let program = program(ebpf, choice, self.mechanism)?;
        choice.targets(self.mechanism).iter().try_for_each(|target| self.attached.attach(program, target))
    }

    /// Few kernels have such a part, and where it can't be hooked, what its hook would tell is unknown, which is counted.
    fn attach_part(&mut self, ebpf: &mut Ebpf, choice: &Choice) {
        let (Some(part), Programs::Function { kprobe, .. }) = (choice.hook.part, choice.hook.programs) else {
            return;
        };
        let Some(program) = ebpf.program_mut(kprobe) else { return };
        let Program::KProbe(probe) = program else { return };
        if probe.fd().is_ok() || probe.load().is_ok() {
            let _ = self.attached.attach(program, part);
        }
    }
}

/// The program of a hook that this mechanism uses.
fn program<'a>(ebpf: &'a mut Ebpf, choice: &Choice, mechanism: Mechanism) -> Result<&'a mut Program> {
    let name = choice.program(mechanism).name();
    ebpf.program_mut(name).with_context(|| missing(name))
}

/// Loads the programs of these hooks, on as many CPUs as there are: the verifier takes half of the start, and several programs at a time from
/// whoever may trace (`bpf_check` takes its lock for others only, since Linux 5.2). The error is that of the first one that can't be loaded.
fn load_all(ebpf: &mut Ebpf, choices: &[Choice], mechanism: Mechanism, types: &Btf) -> Result<()> {
    let mut programs: HashMap<_, _> = ebpf.programs_mut().collect();
    let named = choices.iter().map(|choice| {
        let name = choice.program(mechanism).name();
        Ok((programs.remove(name).with_context(|| missing(name))?, choice))
    });
    let left = Mutex::new(named.collect::<Result<Vec<_>>>()?.into_iter().enumerate());
    let failed = Mutex::new(None);
    let take = || {
        let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
        while let Some((number, (program, choice))) = next() {
            if let Err(error) = load(program, choice.found[0], types) {
                // All before it are being loaded by then.
                left.lock().unwrap_or_else(PoisonError::into_inner).by_ref().for_each(drop);
                let mut first = failed.lock().unwrap_or_else(PoisonError::into_inner);
                if first.as_ref().is_none_or(|(earlier, _)| number < *earlier) {
                    *first = Some((number, error.context(format!("loading {}", choice.found.join(", ")))));
                }
            }
        }
    };
    thread::scope(|scope| {
        // Where no thread can be made, this one loads them all.
        for _ in 1..thread::available_parallelism().map_or(1, NonZero::get) {
            let _ = thread::Builder::new().spawn_scoped(scope, take);
        }
        take();
    });
    failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), |(_, error)| Err(error))
}

fn missing(program: &str) -> String {
    format!("program {program} is missing")
}

/// Loads a program for a function or tracepoint of the kernel whose `types` these are.
pub(super) fn load(program: &mut Program, target: &str, types: &Btf) -> Result<()> {
    match program {
        Program::FEntry(program) => program.load(target, types)?,
        Program::BtfTracePoint(program) => program.load(target, types)?,
        Program::KProbe(program) => program.load()?,
        Program::RawTracePoint(program) => program.load()?,
        program => bail!("programs of type {:?} are not used here", program.prog_type()),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use anyhow::anyhow;
    use aya::{EbpfError, sys::SyscallError};

    use super::*;
    use crate::probes::{
        programs_in,
        table::{CLOSE, CONNECTIONS, DROPS, EXIT, FINE, FIRST_BYTES, HOOKS, Hook, PROCESSES, SENT_ON},
    };

    #[test]
    fn the_stage_table_and_the_objects_have_the_same_programs() {
        let named = |hooks: &[Hook]| {
            let programs = hooks.iter().flat_map(|hook| match hook.programs {
                Programs::Function { fentry, kprobe } => vec![fentry, kprobe],
                Programs::Tracepoint { btf, kprobe } => {
                    [btf].into_iter().chain(kprobe.map(|(program, _)| program)).collect()
                }
                Programs::AllTracepoints { raw } => vec![raw],
            });
            programs.map(str::to_owned).collect::<BTreeSet<String>>()
        };
        let mut all = named(&[&HOOKS[..], &[SENT_ON, CLOSE, EXIT], &PROCESSES].concat());
        assert_eq!(programs_in(OBJECT), all);
        assert_eq!(programs_in(COUNTS_OBJECT), all);
        all.extend(named(&FINE));
        assert_eq!(programs_in(FULL_OBJECT), all);
        let mut of_connections =
            named(&[&CONNECTIONS[..], &FIRST_BYTES, &[CHANGED_BY_TASK, DROPS, EXIT], &PROCESSES].concat());
        of_connections.insert(super::super::connections::ASKED_FOR.to_owned());
        assert_eq!(programs_in(CONNECTIONS_OBJECT), of_connections);
    }

    #[test]
    fn the_verifiers_verdict_is_taken_from_its_log() {
        let log = "the BPF_PROG_LOAD syscall returned Invalid argument (os error 22). Verifier output: 0: R1=ctx()\n\
                   ; if x {\n 12: (85) call 4\n\
                   R2 invalid mem access 'scalar'\n\
                   verification time 70 usec\nstack depth 8\n\
                   subprog 1 (count) insns_self 40 insns_total 52\n\
                   processed 13 insns (limit 1000000)\n: Invalid argument (os error 22)";
        let error = anyhow!("{log}").context("loading tcp_v4_rcv");
        assert_eq!(
            one_line(&error),
            "loading tcp_v4_rcv: the BPF_PROG_LOAD syscall returned Invalid argument (os error 22). \
             (R2 invalid mem access 'scalar')"
        );
        let log = "Permission denied. Verifier output: combined stack size of 5 calls is 544. Too large\n\
                   stack depth 72+24\nprocessed 13 insns (limit 1000000)\n: Permission denied";
        assert_eq!(
            one_line(&anyhow!("{log}")),
            "Permission denied. (combined stack size of 5 calls is 544. Too large)"
        );
    }

    #[test]
    fn an_error_without_a_log_stays_as_it_is() {
        assert_eq!(
            one_line(&anyhow!("Operation not permitted").context("loading")),
            "loading: Operation not permitted"
        );
    }

    #[test]
    fn no_cause_is_said_twice() {
        let error = MapError::CreateError { name: "X".to_owned(), io_error: of(Errno::PERM.raw_os_error()) };
        let error = anyhow::Error::new(EbpfError::from(error)).context("loading the programs");
        assert_eq!(
            one_line(&error),
            "loading the programs: map error: failed to create map `X`: Operation not permitted (os error 1)"
        );
    }

    #[test]
    fn a_refusal_is_one_cause_and_one_remedy() {
        let loading = |number| {
            let error = MapError::CreateError { name: "X".to_owned(), io_error: of(number) };
            (Mechanism::Fentry, Refused::from(anyhow::Error::new(error).context("loading tcp_v4_rcv")))
        };
        let syscall = |call, number| {
            let error = SyscallError { call, io_error: of(number) };
            (Mechanism::Kprobe, Refused::from(anyhow::Error::new(ProgramError::from(error))))
        };
        let perf = || syscall("perf_event_open", Errno::ACCESS.raw_os_error());
        let none = || (Mechanism::Kprobe, Refused::from(anyhow!("this kernel has no kprobes")));
        // What the kernel says where it can't attach: ENOTSUPP, which has no name on the user side.
        let unsupported = || loading(524);
        let refused = [
            (Backend::Auto, vec![unsupported(), none()]),
            (Backend::Auto, vec![loading(Errno::PERM.raw_os_error()), perf()]),
            (Backend::Auto, vec![unsupported(), perf()]),
            (Backend::Auto, vec![loading(Errno::MFILE.raw_os_error()), loading(Errno::MFILE.raw_os_error())]),
            (Backend::Fentry, vec![unsupported()]),
            (Backend::Kprobe, vec![none()]),
        ];
        let sentences = refused.map(|(backend, reasons)| refusal(backend, &reasons).to_string());
        insta::assert_snapshot!(sentences.join("\n"));
    }

    #[test]
    fn what_forbids_tracing_is_found_wherever_it_stands() {
        let [perm, access] = [Errno::PERM, Errno::ACCESS].map(|errno| errno.raw_os_error());
        let call = |call, number| SyscallError { call, io_error: of(number) };
        let found = |error: anyhow::Error| Refused::from(error.context("loading")).ban;
        assert_eq!(found(ProgramError::from(call("bpf_map_update_elem", perm)).into()), Some(Ban::Policy));
        assert_eq!(found(MapError::from(call("bpf_map_update_elem", perm)).into()), Some(Ban::Policy));
        assert_eq!(found(EbpfError::from(MapError::from(call("x", perm))).into()), Some(Ban::Policy));
        assert_eq!(found(ProgramError::from(of(perm)).into()), Some(Ban::Policy));
        assert_eq!(found(of(perm).into()), Some(Ban::Policy));
        assert_eq!(found(ProgramError::from(call("perf_event_open", access)).into()), Some(Ban::PerfEvents));
        assert_eq!(found(ProgramError::from(call("bpf_prog_load", access)).into()), None);
        assert_eq!(found(of(access).into()), None);
        assert_eq!(found(anyhow!("a name that says (os error 1)")), None);
    }

    fn of(number: i32) -> io::Error {
        io::Error::from_raw_os_error(number)
    }
}
