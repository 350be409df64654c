//! Loading and attaching what follows single packets: programs of their own, in an object of their own.
//!
//! What begins, continues and ends a journey is hooked by kprobes and raw tracepoints. The functions in between, of
//! which there are many, have programs that do nothing but look whether anything is followed: by fentry where there are
//! slots for them, else by one kprobe program per position of the skb among the arguments.

mod functions;
mod hooks;
mod stage;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use aya::{
    Btf as Types, Ebpf, EbpfLoader, Endianness,
    maps::{Array, HashMap, MapData, RingBuf},
};
use net_latency_common::{
    Direction,
    journey::{
        FIRST_ADDRESS, JOURNEY_SETTINGS_GLOBAL, JOURNEYS_MAP, JourneySettings, PLACES, ROWS_MAP, SLOTS,
        TALLY_ARMED, TALLY_BEGUN, TALLY_ENDED, TALLY_LOST, TALLY_MAP,
    },
    offsets::{Group, Offsets},
};
use rustc_hash::FxHashSet;

use self::hooks::{EXITED, FUNCTIONS, OUTWARDS, TRACEPOINTS};
use super::{
    attach,
    attached::{Attached, release_memory},
    filters, patch,
    signals::Held,
    table::Mechanism,
};
use crate::{
    error::Failure,
    kernel::{
        arch,
        btf::{Btf, named, only_functions},
        facts::Live,
        layout, preemption, prerequisites,
        symbols::{self, PER_CPU_OFFSET, Symbols},
    },
    request::{Backend, Functions, PacketFilter},
};

pub(crate) use stage::Stage;

/// The programs as an object file, built by build.rs.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/net-latency-journey-bpf"));

/// Arguments of a function that may be the skb: there is a kprobe program for each position.
const POSITIONS: usize = 5;
/// Journeys under way at the same time.
const MOST: u32 = 64;
/// Attaching to functions that need not be traced ends after this.
const LONGEST: Duration = Duration::from_secs(60);
/// Where in a function a probe at its beginning can be: behind an `endbr64`, and behind the call that it replaces.
const WITHIN: u64 = 32;

/// What to follow.
#[derive(Clone, Debug)]
pub(crate) struct Request<'a> {
    /// Which packets.
    pub filter: &'a PacketFilter,
    /// Through which functions.
    pub functions: &'a Functions,
    /// By what means.
    pub backend: Backend,
    /// Bytes of the ring buffer.
    pub buffer_bytes: u32,
    /// Packets that are wanted, if each that begins is one of them.
    pub exactly: Option<u32>,
}

/// What this kernel has of what can be traced.
struct Plan {
    settings: JourneySettings,
    offsets: Offsets,
    /// Whether the kernel counts calls that a kprobe's program missed.
    counts_missed: bool,
    /// Functions that are only places on the way.
    places: Vec<Function>,
    /// By program.
    functions: Vec<(&'static str, &'static str)>,
    tracepoints: Vec<(&'static str, &'static str)>,
    names: Names,
}

/// A function that is given an skb.
struct Function {
    name: String,
    /// Which of its arguments that is.
    position: usize,
    /// Its id in the kernel's BTF.
    id: u32,
}

/// What places are called.
#[derive(Debug)]
pub(crate) struct Names {
    /// Functions, by address.
    addresses: Vec<(u64, String)>,
    slots: Vec<String>,
    /// The kernel's reasons for drops, by number.
    reasons: BTreeMap<u32, String>,
    /// Looks up what an interrupt's handlers are called.
    interrupt: fn(u32) -> Option<String>,
    /// Where functions are looked up that dropped a packet.
    symbols: Option<symbols::Opened>,
}

impl Names {
    /// The function or tracepoint of a row, and where a packet is then.
    #[must_use]
    pub(crate) fn place(&self, place: u64) -> (String, Stage) {
        let name = match place {
            ..PLACES => {
                let hook = TRACEPOINTS.iter().find(|hook| hook.place == place);
                return hook.map_or_else(
                    || (format!("place {place}"), Stage::Same),
                    |hook| (hook.tracepoint.to_owned(), hook.stage),
                );
            }
            PLACES..FIRST_ADDRESS => self.slots.get((place - PLACES) as usize).cloned(),
            address => {
                let next = self.addresses.partition_point(|(start, _)| *start <= address);
                let found = next.checked_sub(1).map(|last| &self.addresses[last]);
                found.filter(|(start, _)| address - start < WITHIN).map(|(_, name)| name.clone())
            }
        };
        match name {
            Some(name) => {
                let stage = functions::stage(&name);
                (name, stage)
            }
            None => (format!("{place:#x}"), Stage::Same),
        }
    }

    /// The kernel's name of a reason for a drop, where it has one.
    #[must_use]
    pub(crate) fn reason(&self, reason: u32) -> Option<&str> {
        self.reasons.get(&reason).map(String::as_str)
    }

    /// The function that dropped a packet, where the kernel tells.
    #[must_use]
    pub(crate) fn function_at(&self, location: u64) -> Option<String> {
        if location == 0 { None } else { self.symbols.as_ref()?.function_at(location) }
    }

    /// What the handlers of an interrupt are called now: usually one, by its device.
    #[must_use]
    pub(crate) fn interrupt(&self, number: u32) -> String {
        (self.interrupt)(number).unwrap_or_else(|| format!("irq {number}"))
    }

    /// Names for tests.
    #[cfg(test)]
    pub(crate) fn of(addresses: &[(u64, &str)], reasons: &[(u32, &str)]) -> Self {
        Self {
            addresses: addresses.iter().map(|(address, name)| (*address, (*name).to_owned())).collect(),
            slots: Vec::new(),
            reasons: reasons.iter().map(|(reason, name)| (*reason, (*name).to_owned())).collect(),
            interrupt: |number| (number != 0).then(|| format!("card-input.{number}")),
            symbols: None,
        }
    }
}

/// The attached programs. Dropping it detaches everything.
pub(crate) struct Following {
    attached: Attached,
    rows: RingBuf<MapData>,
    journeys: HashMap<MapData, u64, [u64; 2]>,
    tally: Array<MapData, u64>,
    ended: u64,
    /// Whether this kernel counts the calls that kprobes' programs missed.
    counts_missed: bool,
    /// What places are called.
    pub names: Names,
    /// Functions that are traced.
    pub traced: usize,
    /// Functions that can't be.
    pub refused: Vec<String>,
    /// Functions to which there was no time to attach.
    pub skipped: usize,
    /// Whether some are traced by fentry.
    pub uses_fentry: bool,
}

/// Loads and attaches everything; `progress` is told how many functions of how many are done.
///
/// # Errors
/// [`Failure::CannotTrace`] with what the kernel said.
pub(crate) fn attach(
    btf: &[u8],
    request: &Request<'_>,
    progress: impl FnMut(usize, usize),
) -> Result<Following, Failure> {
    let plan = Plan::new(btf, request)?;
    prerequisites::kprobes(&Live).map_err(|missing| missing.failure())?;
    let _held = Held::new();
    let following = load(plan, request, progress)
        .map_err(|error| attach::refusal(Backend::Auto, &[(Mechanism::Kprobe, error.into())]))?;
    release_memory();
    Ok(following)
}

impl Plan {
    fn new(data: &[u8], request: &Request<'_>) -> Result<Self, Failure> {
        let unreadable = |error| {
            Failure::cannot_trace(
                format!("this kernel's BTF type information does not suffice: {error}"),
                "please report the kernel's version",
            )
        };
        let btf = Btf::parse(data, named(names())).map_err(unreadable)?;
        let begins = |direction| u32::from(request.filter.direction.is_none_or(|only| only == direction));
        let (begin_out, begin_in) = (begins(Direction::Out), begins(Direction::In));
        let mut functions = Vec::new();
        for hook in FUNCTIONS.iter().filter(|hook| begin_out != 0 || !OUTWARDS.contains(&hook.program)) {
            let targets = hook.targets.iter().filter(|(target, _)| btf.has_function(target));
            let found = functions.len();
            functions.extend(targets.map(|(target, _)| (hook.program, *target)));
            if functions.len() == found && hook.is_needed {
                return Err(Failure::cannot_trace(
                    format!(
                        "this kernel has no function {}, without which packets can't be followed",
                        hook.targets[0].0
                    ),
                    "please report the kernel's version",
                ));
            }
        }
        let tracepoints = TRACEPOINTS
            .iter()
            .filter(|hook| btf.has_tracepoint(hook.tracepoint))
            .filter(|hook| hook.program != EXITED || !request.filter.pids.is_empty());
        let is_special = |name: &str| functions.iter().any(|(_, target)| *target == name);
        let mut places: Vec<_> = btf
            .functions_taking("sk_buff")
            .into_iter()
            .filter_map(|(name, position, id)| {
                Some(Function { name: std::str::from_utf8(name).ok()?.to_owned(), position, id })
            })
            .filter(|Function { name, .. }| functions::wants(request.functions, name) && !is_special(name))
            .collect();
        places.sort_unstable_by(|a, b| (&a.name, a.position, a.id).cmp(&(&b.name, b.position, b.id)));
        places.dedup_by(|a, b| a.name == b.name);

        // The kernel has 150,000 symbols.
        let special = functions.iter().map(|(_, target)| *target);
        let traced = special.chain(places.iter().map(|place| place.name.as_str())).map(str::as_bytes);
        let traced: FxHashSet<&[u8]> = traced.collect();
        let is_traced = |name: &[u8]| traced.contains(name);
        let symbols = Symbols::read(is_traced, &arch::COUNT_VARIABLES).map_err(|error| {
            Failure::cannot_trace(
                format!("cannot read the list of the kernel's functions: {error}"),
                "run net-latency as root",
            )
        })?;
        if symbols.functions.is_empty() {
            return Err(Failure::cannot_trace(
                "the kernel hides the addresses of its functions",
                "run net-latency as root, with sysctl kernel.kptr_restrict=1 or 0",
            ));
        }
        let reasons = btf.drop_reasons();
        let settings = JourneySettings {
            per_cpu_offset: symbols.variable(PER_CPU_OFFSET),
            preempt_count: arch::preempt_count(&btf, |name| symbols.variable(name)).unwrap_or(0),
            // PREEMPT_RT only.
            task_softirq: btf.offset("task_struct.softirq_disable_cnt").unwrap_or(0),
            dataref: btf.offset("skb_shared_info.dataref").map_err(unreadable)?,
            sk_mark: btf.offset("sock.sk_mark").map_err(unreadable)?,
            // Without CONFIG_NET_RX_BUSY_POLL there is none.
            skb_napi_id: btf.offset("sk_buff.napi_id").unwrap_or(0),
            napi_id: btf.offset("napi_struct.napi_id").unwrap_or(0),
            has_reasons: u32::from(!reasons.is_empty()),
            begin_out,
            begin_in,
            positions: [0; SLOTS],
        };
        Ok(Self {
            settings,
            offsets: layout::offsets(&btf, Group::Packets, Offsets::default()).map_err(unreadable)?,
            counts_missed: layout::counts_missed_kprobes(&btf),
            places,
            functions,
            tracepoints: tracepoints.map(|hook| (hook.program, hook.tracepoint)).collect(),
            names: Names {
                addresses: symbols.functions,
                slots: Vec::new(),
                reasons,
                interrupt: interrupt_name,
                symbols: symbols::Opened::new().ok(),
            },
        })
    }
}

/// The names of the handlers of an interrupt, with commas between.
fn interrupt_name(number: u32) -> Option<String> {
    let names = std::fs::read_to_string(format!("/sys/kernel/irq/{number}/actions")).ok()?;
    Some(names.trim_end().to_owned()).filter(|names| !names.is_empty())
}

/// The names that are looked up in the kernel's BTF.
fn names() -> impl Iterator<Item = &'static str> {
    let functions = FUNCTIONS.iter().flat_map(|hook| hook.targets).map(|(target, _)| *target);
    let tracepoints = TRACEPOINTS.iter().map(|hook| hook.tracepoint);
    layout::names().chain(["pcpu_hot", "napi_struct"]).chain(functions).chain(tracepoints)
}

fn load(mut plan: Plan, request: &Request<'_>, mut progress: impl FnMut(usize, usize)) -> Result<Following> {
    attach::lift_memory_limit();
    // A task that is preempted in a program keeps it from running for others (`__bpf_prog_enter_recur`), not in a kprobe's.
    let uses_fentry = match request.backend {
        Backend::Auto => !preemption::is_possible(),
        Backend::Fentry => true,
        Backend::Kprobe => false,
    };
    let slots = if uses_fentry { plan.places.len().min(SLOTS) } else { 0 };
    for (slot, Function { position, .. }) in plan.places.iter().take(slots).enumerate() {
        plan.settings.positions[slot] = u8::try_from(*position).unwrap_or(u8::MAX);
    }
    let settings = filters::settings(request.filter, request.buffer_bytes);
    let mut loader = EbpfLoader::new();
    loader
        // The object has no relocations against the kernel's types: offsets are written into it below.
        .btf(None)
        .override_global(JOURNEY_SETTINGS_GLOBAL, &plan.settings, true)
        .map_max_entries(ROWS_MAP, request.buffer_bytes)
        .map_max_entries(JOURNEYS_MAP, request.exactly.unwrap_or(MOST).clamp(1, MOST));
    filters::size(request.filter, &mut loader);
    let object = patch::patched(OBJECT, &plan.offsets, &settings)?;
    let mut ebpf = loader.load(&object).context("loading the programs")?;
    filters::fill(request.filter, &mut ebpf)?;
    let mut take = |name: &'static str| ebpf.take_map(name).context(name);
    let (rows, journeys, tally) = (take(ROWS_MAP)?, take(JOURNEYS_MAP)?, take(TALLY_MAP)?);
    let mut following = Following {
        attached: Attached::default(),
        rows: rows.try_into()?,
        journeys: journeys.try_into()?,
        tally: tally.try_into()?,
        ended: 0,
        counts_missed: plan.counts_missed,
        names: plan.names,
        traced: 0,
        refused: Vec::new(),
        skipped: 0,
        uses_fentry: false,
    };

    let all = plan.places.len() + plan.functions.len();
    let in_slots = plan.places.iter().take(slots).map(|place| (place.id, place.name.as_str()));
    let types =
        Types::parse(&only_functions(in_slots), Endianness::default()).context("reading the kernel's BTF")?;
    let start = Instant::now();
    for (number, Function { name, position, .. }) in plan.places.iter().enumerate() {
        progress(number, all);
        following.names.slots.push(name.clone());
        if start.elapsed() > LONGEST {
            following.skipped += 1;
        } else if number < slots
            && following.attach(&mut ebpf, &format!("slot_{number}"), name, &types).is_ok()
        {
            following.uses_fentry = true;
            following.traced += 1;
        } else if *position >= POSITIONS {
            following.refused.push(name.clone());
        } else {
            match following.attach(&mut ebpf, &format!("journey_arg{position}"), name, &types) {
                Ok(()) => following.traced += 1,
                Err(_) => following.refused.push(name.clone()),
            }
        }
    }
    following.names.slots.truncate(slots);
    for (program, tracepoint) in &plan.tracepoints {
        following
            .attach(&mut ebpf, program, tracepoint, &types)
            .with_context(|| format!("attaching to {tracepoint}"))?;
    }
    for (number, (program, name)) in plan.functions.iter().enumerate() {
        progress(plan.places.len() + number, all);
        following.attach(&mut ebpf, program, name, &types).with_context(|| format!("attaching to {name}"))?;
        following.traced += 1;
    }
    following.attached.keep(&ebpf, &[])?;
    following.attached.release(ebpf);
    progress(all, all);
    Ok(following)
}

impl Following {
    /// Attaches a program, which it loads unless it is, to a function or a tracepoint.
    fn attach(&mut self, ebpf: &mut Ebpf, program: &str, target: &str, types: &Types) -> Result<()> {
        let program = ebpf.program_mut(program).context("a program is missing")?;
        if program.fd().is_err() {
            attach::load(program, target, types)?;
        }
        self.attached.attach(program, target)
    }

    /// From now on journeys may begin; or no more of them.
    ///
    /// # Errors
    /// If the kernel refuses to be told.
    pub(crate) fn arm(&mut self, is_on: bool) -> Result<()> {
        self.tally.set(TALLY_ARMED, u64::from(is_on), 0).context("telling the kernel side to begin")
    }

    /// Hands what has come to `take`, up to `most` records.
    ///
    /// # Errors
    /// If a record has a size that is none of ours.
    pub(crate) fn read(&mut self, most: usize, mut take: impl FnMut(Record)) -> Result<()> {
        for _ in 0..most {
            let Some(item) = self.rows.next() else { break };
            take(Record::of(&item)?);
        }
        Ok(())
    }

    /// Makes room for another journey. Nothing more comes of this one.
    ///
    /// # Errors
    /// If the kernel refuses to be told.
    pub(crate) fn end(&mut self, id: u64) -> Result<()> {
        self.journeys.remove(&id).context("ending a journey")?;
        self.ended += 1;
        self.tally.set(TALLY_ENDED, self.ended, 0).context("ending a journey")
    }

    /// How often the kernel skipped one of the programs so far; `None` where it doesn't count that (before Linux 6.7), or not
    /// for this user.
    #[must_use]
    pub(crate) fn missed(&self) -> Option<u64> {
        self.attached.missed()
    }

    /// Everything is attached: finds what counts skipped calls, while that is allowed.
    pub(crate) fn watch(&mut self) {
        if self.counts_missed {
            self.attached.watch();
        }
    }

    /// Journeys that were begun, and rows that were lost for lack of room.
    ///
    /// # Errors
    /// If the kernel refuses to show them.
    pub(crate) fn tallies(&self) -> Result<(u64, u64)> {
        let get = |index| self.tally.get(&index, 0).context("reading the kernel side's counts");
        Ok((get(TALLY_BEGUN)?, get(TALLY_LOST)?))
    }
}

/// What comes from the kernel side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// A journey begins.
    Start(net_latency_common::journey::JourneyStart),
    /// A place on a packet's way.
    Row(net_latency_common::journey::JourneyRow),
}

impl Record {
    fn of(bytes: &[u8]) -> Result<Self> {
        use net_latency_common::journey::{JourneyRow, JourneyStart};
        ensure!(
            bytes.as_ptr().cast::<JourneyRow>().is_aligned(),
            "a record of the kernel side is not aligned"
        );
        if bytes.len() == size_of::<JourneyStart>() {
            // SAFETY: as large and as aligned as one, and every bit pattern is one.
            return Ok(Self::Start(unsafe { *bytes.as_ptr().cast() }));
        }
        ensure!(
            bytes.len() == size_of::<JourneyRow>(),
            "the kernel side sent a record of {} bytes",
            bytes.len()
        );
        // SAFETY: as large and as aligned as one, and every bit pattern is one.
        Ok(Self::Row(unsafe { *bytes.as_ptr().cast() }))
    }
}
