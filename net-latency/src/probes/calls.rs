//! Loading and attaching what follows calls of functions: an object of its own, so that the stream has nothing of it.

use std::{
    io,
    ops::RangeInclusive,
    os::fd::{AsFd as _, OwnedFd},
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};
use aya::{
    Ebpf, EbpfLoader,
    maps::{HashMap, MapData, PerCpuArray, RingBuf},
    programs::{KProbe, RawTracePoint},
};
use net_latency_common::{
    CALL_COUNTERS_MAP, CALL_SETTINGS_GLOBAL, CALLS_MAP, CallContext, CallCounters, CallRecord, CallSettings,
    CallStack, STACKS_MAP,
    offsets::{Group, Offsets},
};

use super::{attach, attached::Attached, filters, patch, signals::Held, table::Mechanism};
use crate::{
    error::Failure,
    kernel::{
        arch,
        btf::{Btf, named},
        functions::{Addresses, Function},
        layout,
        symbols::{CURRENT_KPROBE, PER_CPU_OFFSET},
    },
    request::{Backend, PacketFilter},
};

/// The kernel side of calls as an object file, built by build.rs.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/net-latency-calls-bpf"));

/// The programs in it: for wanted calls, and for those of all tasks.
const PROGRAMS: [&str; 4] = ["call_entry", "call_return", "any_entry", "any_return"];

/// The program that sees processes exit, if some are wanted, and its tracepoint.
const EXITED: [&str; 2] = ["call_exited", "sched_process_exit"];

/// Where kretprobes let a function return to, by kernel: since Linux 6.0, since 5.15, before.
const TRAMPOLINES: [&str; 3] = ["arch_rethook_trampoline", "__kretprobe_trampoline", "kretprobe_trampoline"];
/// Where ftrace's `function_graph` lets a function return to.
const GRAPH_RETURN: &str = "return_to_handler";

const TRIES: u32 = 5;
const ROUNDS: u32 = 400;

/// What following one call costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cost {
    /// In all, in ns.
    pub call_ns: u64,
    /// The part of it that the time of the call itself has, in ns.
    pub within_ns: u64,
}

/// The symbols that [`CallSettings`] needs.
pub(crate) fn symbols<'a>() -> impl Iterator<Item = &'a str> {
    let functions = TRAMPOLINES.into_iter().chain([GRAPH_RETURN]).chain(arch::CHEAP_CALLS);
    functions.chain(arch::CALL_VARIABLES).chain(arch::COUNT_VARIABLES)
}

/// What the kernel side is told of this kernel.
///
/// # Errors
/// [`Failure::CannotTrace`] if the kernel lacks something, or hides it.
pub(crate) fn settings(btf: &[u8], addresses: &Addresses) -> Result<CallSettings, Failure> {
    const STRUCTS: [&[u8]; 3] = [b"kprobe", b"pcpu_hot", b"task_struct"];
    let btf = Btf::parse(btf, |name| STRUCTS.contains(&name)).context("reading the kernel's BTF")?;
    let address = |name: &str| addresses.get(name).and_then(|found| found.first()).copied().unwrap_or(0);
    let missing = |what: &str, remedy: &str| {
        Failure::cannot_trace(format!("/proc/kallsyms does not show where {what} is"), remedy)
    };
    let trampoline = TRAMPOLINES.into_iter().map(address).find(|&address| address != 0).ok_or_else(|| {
        missing(TRAMPOLINES[0], "run net-latency as root, with sysctl kernel.kptr_restrict below 2")
    })?;
    // It shows functions, so that it hides nothing.
    let unlisted = |what: &str| missing(what, "use a kernel that is built with CONFIG_KALLSYMS_ALL");
    if let Some(name) = arch::CALL_VARIABLES.into_iter().find(|name| address(name) == 0) {
        return Err(unlisted(name));
    }
    Ok(CallSettings {
        trampoline,
        graph_return: address(GRAPH_RETURN),
        per_cpu_offset: address(PER_CPU_OFFSET),
        preempt_count: arch::preempt_count(&btf, address).ok_or_else(|| unlisted("the preemption count"))?,
        current_kprobe: address(CURRENT_KPROBE),
        kprobe_addr: btf.offset("kprobe.addr").context("reading the kernel's BTF")?,
        softirq_disable_cnt: btf.offset("task_struct.softirq_disable_cnt").unwrap_or(0),
    })
}

/// The loaded kernel side. Dropping it detaches everything.
pub(crate) struct CallProbes {
    ebpf: Ebpf,
    attached: Attached,
    /// To how many functions it is attached.
    functions: usize,
    counts_missed: bool,
}

/// The maps, which are read while tracing and, the last time, after everything is detached.
pub(crate) struct CallMaps {
    calls: RingBuf<MapData>,
    counters: PerCpuArray<MapData, CallCounters>,
    stacks: HashMap<MapData, CallContext, CallStack>,
}

impl CallProbes {
    /// Loads the programs.
    ///
    /// # Errors
    /// The reason, in one line.
    pub(crate) fn load(
        btf: &[u8],
        settings: &CallSettings,
        filter: &PacketFilter,
        buffer_bytes: u32,
    ) -> Result<Self, Failure> {
        attach::lift_memory_limit();
        let _held = Held::new();
        let types = Btf::parse(btf, named(layout::names())).context("reading the kernel's BTF")?;
        let offsets =
            layout::offsets(&types, Group::Tasks, Offsets::default()).context("reading the kernel's BTF")?;
        let counts_missed = layout::counts_missed_kprobes(&types);
        let mut loader = EbpfLoader::new();
        let shared = filters::settings(filter, buffer_bytes);
        loader
            .btf(None)
            .override_global(CALL_SETTINGS_GLOBAL, settings, true)
            .map_max_entries(CALLS_MAP, buffer_bytes);
        filters::size(filter, &mut loader);
        let load = || -> Result<Self> {
            let object = patch::patched(OBJECT, &offsets, &shared)?;
            let ebpf = loader.load(&object).context("loading the programs")?;
            let mut probes = Self { ebpf, attached: Attached::default(), functions: 0, counts_missed };
            filters::fill(filter, &mut probes.ebpf)?;
            for name in PROGRAMS {
                probes.program(name)?.load().with_context(|| format!("loading {name}"))?;
            }
            if !filter.pids.is_empty() {
                let [name, tracepoint] = EXITED;
                let program = probes.ebpf.program_mut(name).context("a program is missing")?;
                <&mut RawTracePoint>::try_from(&mut *program)?
                    .load()
                    .with_context(|| format!("loading {name}"))?;
                probes.attached.attach(program, tracepoint)?;
            }
            Ok(probes)
        };
        let mut load = load;
        load().map_err(|error| attach::refusal(Backend::Auto, &[(Mechanism::Kprobe, error.into())]))
    }

    fn program(&mut self, name: &str) -> Result<&mut KProbe> {
        let program = self.ebpf.program_mut(name).with_context(|| format!("program {name} is missing"))?;
        Ok(program.try_into()?)
    }

    /// Attaches to a function: to its return first, so that at the entry, where probes run in the opposite order, the
    /// return address is still what it was.
    ///
    /// # Errors
    /// The reason, in one line. Nothing of this function stays attached then.
    pub(crate) fn attach(&mut self, function: &Function) -> Result<(), String> {
        let _held = Held::new();
        let attach = |probes: &mut Self| -> Result<()> {
            let mut both = Attached::default();
            for name in ["call_return", "call_entry"] {
                let program = probes.ebpf.program_mut(name).context("a program is missing")?;
                both.attach(program, &function.name)?;
            }
            probes.attached.add(both);
            probes.functions += 1;
            Ok(())
        };
        attach(self).map_err(|error| attach::one_line(&error))
    }

    /// To how many it is attached.
    #[must_use]
    pub(crate) fn functions(&self) -> usize {
        self.functions
    }

    /// Measures what following a call costs, on this thread and now; what it records is for `maps` to throw away.
    /// `None` if this kernel has no function that serves.
    ///
    /// # Errors
    /// If probes can't be attached or detached.
    pub(crate) fn measure(&mut self, addresses: &Addresses, maps: &mut CallMaps) -> Result<Option<Cost>> {
        let Some(name) =
            arch::CHEAP_CALLS.into_iter().find(|name| addresses.get(*name).is_some_and(|at| at.len() == 1))
        else {
            return Ok(None);
        };
        let is_other = name.ends_with("getuid");
        let round = || {
            let start = Instant::now();
            for _ in 0..ROUNDS {
                // SAFETY: neither takes anything nor fails.
                unsafe { libc::syscall(if is_other { libc::SYS_getuid } else { libc::SYS_getppid }) };
            }
            start.elapsed().as_nanos() as u64 / u64::from(ROUNDS)
        };
        let bare = (0..TRIES).map(|_| round()).min().unwrap_or(0);
        let link_return = self.program("any_return")?.attach(name, 0)?;
        let link_entry = self.program("any_entry")?.attach(name, 0)?;
        let mut probed = u64::MAX;
        let mut within = u64::MAX;
        let us = rustix::process::getpid().as_raw_nonzero().get() as u64;
        for _ in 0..TRIES {
            probed = probed.min(round());
            while let Some(record) = maps.oldest()? {
                if record.ids >> 32 == us {
                    within = within.min(record.exit_ns.saturating_sub(record.entry_ns));
                }
            }
        }
        self.program("any_entry")?.detach(link_entry)?;
        self.program("any_return")?.detach(link_return)?;
        ensure!(within < u64::MAX, "no call of {name} was seen");
        Ok(Some(Cost { call_ns: probed.saturating_sub(bare), within_ns: within }))
    }

    /// Takes the maps out, which outlive the programs then.
    ///
    /// # Errors
    /// If one is not there: they were taken before.
    pub(crate) fn take_maps(&mut self) -> Result<CallMaps> {
        let mut take = |name: &'static str| self.ebpf.take_map(name).context(name);
        Ok(CallMaps {
            calls: take(CALLS_MAP)?.try_into()?,
            counters: take(CALL_COUNTERS_MAP)?.try_into()?,
            stacks: take(STACKS_MAP)?.try_into()?,
        })
    }

    /// How often the kernel skipped one of the programs so far; `None` where it doesn't count that.
    #[must_use]
    pub(crate) fn missed(&self) -> Option<u64> {
        self.attached.missed()
    }

    /// Everything is attached: finds what counts skipped calls, while that is allowed.
    ///
    /// # Errors
    /// If this process has no descriptor left.
    pub(crate) fn watch(&mut self) -> Result<()> {
        self.attached.keep(&self.ebpf, &[])?;
        if self.counts_missed {
            self.attached.watch();
        }
        Ok(())
    }
}

impl CallMaps {
    /// The oldest record that waits.
    ///
    /// # Errors
    /// If it has another size than ours: the two sides don't belong together.
    pub(crate) fn oldest(&mut self) -> Result<Option<CallRecord>> {
        let Some(item) = self.calls.next() else { return Ok(None) };
        let bytes: &[u8] = &item;
        let record = bytes.as_ptr().cast::<CallRecord>();
        ensure!(
            bytes.len() == size_of::<CallRecord>() && record.is_aligned(),
            "the kernel side sent a record of {} bytes",
            bytes.len()
        );
        // SAFETY: as large and as aligned as a record, and every bit pattern is one.
        Ok(Some(unsafe { *record }))
    }

    /// A descriptor that becomes readable when the ring buffer fills faster than the timer reads it.
    ///
    /// # Errors
    /// If this process has no descriptor left.
    pub(crate) fn descriptor(&self) -> io::Result<OwnedFd> {
        self.calls.as_fd().try_clone_to_owned()
    }

    /// The counters, summed over all CPUs.
    ///
    /// # Errors
    /// If the kernel refuses to show them.
    pub(crate) fn counters(&self) -> Result<CallCounters> {
        let per_cpu = self.counters.get(&0, 0).context("reading the kernel side's counters")?;
        let mut sum = CallCounters::default();
        for counters in per_cpu.iter() {
            for (total, value) in sum.values.iter_mut().zip(counters.values) {
                *total += value;
            }
        }
        Ok(sum)
    }

    /// Calls that began in `span` and have not returned.
    #[must_use]
    pub(crate) fn under_way(&self, span: &RangeInclusive<u64>) -> u64 {
        let stacks = self.stacks.iter().filter_map(Result::ok);
        let began = |stack: &CallStack| {
            let depth = usize::try_from(stack.depth).unwrap_or(usize::MAX);
            stack.frames.iter().take(depth).filter(|frame| span.contains(&frame.entry_ns)).count()
        };
        stacks.map(|(_, stack)| began(&stack) as u64).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_object_has_these_programs() {
        let all = PROGRAMS.into_iter().chain([EXITED[0]]).map(str::to_owned).collect();
        assert_eq!(super::super::programs_in(OBJECT), all);
    }
}
