//! The kernel's own tracer, ftrace: what it saw of the same functions and tracepoints, to compare with.
//!
//! Read as the ring buffer's pages, since the text form rounds its times to microseconds.

use std::{
    collections::HashMap,
    fs::{self, File, OpenOptions},
    io::{ErrorKind, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

const ROOT: &str = "/sys/kernel/tracing";
/// Per CPU; some thousands of packets fill a fraction of it.
const BUFFER_KB: &str = "16384";
/// Size of a page of the ring buffer.
const PAGE: usize = 4096;

/// What `function_graph` writes when a call begins, and when it ends.
const ENTRY: &str = "funcgraph_entry";
const EXIT: &str = "funcgraph_exit";

/// One entry of the trace.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// ns of `CLOCK_MONOTONIC`.
    pub(crate) at: u64,
    pub(crate) cpu: usize,
    /// The task that the CPU ran, which a softirq may have interrupted.
    pub(crate) task: u32,
    /// Whether it was a softirq's work.
    pub(crate) in_softirq: bool,
    /// The function or event.
    pub(crate) name: &'static str,
    /// Whether this is the end of the function's call.
    pub(crate) is_end: bool,
    /// The requested fields of an event, in that order.
    pub(crate) fields: Vec<u64>,
}

/// An event and those of its fields to keep.
pub(crate) struct Event {
    pub(crate) system: &'static str,
    pub(crate) name: &'static str,
    pub(crate) fields: &'static [&'static str],
}

/// Whether two tracers, each of which has its own clock's zero, can have stamped the same calls in this order: each of
/// `ours` lies between the calls before and after it as ftrace has them, whatever interrupts come between.
pub(crate) fn is_interleaved(ours: &[i64], theirs: &[i64]) -> bool {
    let (mut least, mut most) = (i64::MIN, i64::MAX);
    for (index, at) in ours.iter().enumerate() {
        if let Some(before) = index.checked_sub(1).and_then(|before| theirs.get(before)) {
            least = least.max(before - at);
        }
        if let Some(after) = theirs.get(index + 1) {
            most = most.min(after - at);
        }
    }
    ours.len() == theirs.len() && least <= most.saturating_add(CLOCK_NS)
}

/// The clock that both read in any context may step back by nanoseconds while it is adjusted
/// (`ktime_get_mono_fast_ns`).
pub(crate) const CLOCK_NS: i64 = 100;

/// Tracing in progress, in an instance of its own, which is removed when dropped.
pub(crate) struct Tracing {
    directory: PathBuf,
    /// Of a trace in no instance: what files held before, to be put back.
    before: Option<Vec<(&'static str, String)>>,
    functions: Vec<(u64, &'static str)>,
    layouts: HashMap<u16, Layout>,
}

/// Where an event has the fields to keep: offset and size.
struct Layout {
    name: &'static str,
    fields: Vec<(usize, usize)>,
}

impl Tracing {
    /// Traces `events`.
    pub(crate) fn of_events(events: &[Event]) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let directory =
            Path::new(ROOT).join(format!("instances/net-latency-test-{}-{number}", process::id()));
        fs::create_dir(&directory).with_context(|| format!("creating {}", directory.display()))?;
        let mut tracing = Self { directory, before: None, functions: Vec::new(), layouts: HashMap::new() };
        tracing.prepare()?;
        for event in events {
            tracing.add_event(event)?;
        }
        tracing.set("tracing_on", "1")?;
        Ok(tracing)
    }

    /// Traces calls of these functions from beginning to end, by the tracer `function_graph`. Instances have had it since
    /// Linux 6.11 only, so this is the one outside of all instances, of which there can be one at a time.
    pub(crate) fn of_graph(functions: &[&'static str]) -> Result<Self> {
        let directory = PathBuf::from(ROOT);
        let mut before = Vec::new();
        for file in ["buffer_size_kb", "trace_clock"] {
            let value = fs::read_to_string(directory.join(file))?;
            // local [mono] global
            let chosen = value.split(['[', ']']).nth(1);
            // 7 (expanded: 1408)
            let first = value.split_whitespace().next();
            before.push((file, chosen.or(first).unwrap_or_default().to_owned()));
        }
        let mut tracing = Self {
            directory,
            before: Some(before),
            functions: addresses(functions)?,
            layouts: HashMap::new(),
        };
        tracing.prepare()?;
        for name in [ENTRY, EXIT] {
            tracing.add_layout(&Event { system: "ftrace", name, fields: &["func"] })?;
        }
        tracing.set("set_ftrace_filter", &functions.join("\n"))?;
        tracing.set("current_tracer", "function_graph")?;
        tracing.set("trace", "")?;
        tracing.set("tracing_on", "1")?;
        Ok(tracing)
    }

    fn prepare(&self) -> Result<()> {
        self.set("tracing_on", "0")?;
        self.set("trace_clock", "mono")?;
        self.set("buffer_size_kb", BUFFER_KB)
    }

    /// Traces calls of `functions` as well, of each group the first that this kernel has.
    pub(crate) fn set_functions(&mut self, functions: &[&[&'static str]]) -> Result<()> {
        let known = known_functions()?;
        let mut chosen = Vec::new();
        for group in functions {
            let found = group.iter().find(|name| known.iter().any(|known| known == *name));
            chosen.push(*found.with_context(|| format!("ftrace knows none of {group:?}"))?);
        }
        self.functions = addresses(&chosen)?;
        self.set("set_ftrace_filter", &chosen.join("\n"))?;
        self.set("current_tracer", "function")
    }

    fn set(&self, file: &str, value: &str) -> Result<()> {
        fs::write(self.directory.join(file), value).with_context(|| format!("writing {value:?} to {file}"))
    }

    fn add_event(&mut self, event: &Event) -> Result<()> {
        self.add_layout(event)?;
        self.set(&format!("events/{}/{}/enable", event.system, event.name), "1")
    }

    fn add_layout(&mut self, event: &Event) -> Result<()> {
        let relative = format!("events/{}/{}", event.system, event.name);
        let format = fs::read_to_string(self.directory.join(&relative).join("format"))?;
        let number = |text: Option<&str>| -> Result<usize> { Ok(text.context("no number")?.trim().parse()?) };
        let id = format.lines().find_map(|line| line.strip_prefix("ID: "));
        let mut fields = Vec::new();
        for name in event.fields {
            // field:void * skbaddr;	offset:8;	size:8;	signed:0;
            let ending = format!(" {name}");
            let line = format
                .lines()
                .find(|line| line.split(';').next().is_some_and(|declared| declared.ends_with(&ending)));
            let line = line.with_context(|| format!("{} has no {name}", event.name))?;
            let part = |key: &str| line.split(';').find_map(|part| part.trim().strip_prefix(key));
            fields.push((number(part("offset:"))?, number(part("size:"))?));
        }
        self.layouts.insert(number(id)?.try_into()?, Layout { name: event.name, fields });
        Ok(())
    }

    /// Ends it: all entries in the order of their time. Fails if one was lost.
    pub(crate) fn stop(self) -> Result<Vec<Entry>> {
        self.set("tracing_on", "0")?;
        let mut entries = Vec::new();
        for cpu in 0.. {
            let directory = self.directory.join(format!("per_cpu/cpu{cpu}"));
            if !directory.exists() {
                break;
            }
            let stats = fs::read_to_string(directory.join("stats"))?;
            for loss in ["overrun: ", "commit overrun: ", "dropped events: "] {
                let count = stats.lines().find_map(|line| line.strip_prefix(loss));
                ensure!(count == Some("0"), "ftrace lost entries on CPU {cpu}:\n{stats}");
            }
            let mut pages = OpenOptions::new()
                .read(true)
                .custom_flags(libc::O_NONBLOCK)
                .open(directory.join("trace_pipe_raw"))?;
            while let Some(page) = next_page(&mut pages)? {
                self.decode(cpu, &page, &mut entries)?;
            }
        }
        entries.sort_by_key(|entry| entry.at);
        Ok(entries)
    }

    /// The entries of one page of the ring buffer (include/linux/ring_buffer.h).
    fn decode(&self, cpu: usize, page: &[u8], entries: &mut Vec<Entry>) -> Result<()> {
        // Flags in the word that says how much of the page is filled.
        const MISSED: u64 = 1 << 31;
        const FILLED: u64 = (1 << 20) - 1;
        const HEADER: usize = 16;
        // Kinds of entries; smaller numbers are lengths in words.
        const PADDING: u32 = 29;
        const TIME_EXTEND: u32 = 30;
        const TIME_STAMP: u32 = 31;

        let mut at = long(page, 0)?;
        let filled = long(page, 8)?;
        ensure!(filled & MISSED == 0, "ftrace lost entries on CPU {cpu}");
        let end = HEADER + usize::try_from(filled & FILLED)?;
        let mut position = HEADER;
        while position < end {
            let head = word(page, position)?;
            let (kind, delta) = (head & 31, u64::from(head >> 5));
            position += 4;
            match kind {
                PADDING if delta == 0 => break,
                PADDING => {
                    at += delta;
                    position += usize::try_from(word(page, position)?)?;
                }
                TIME_EXTEND => {
                    at += delta + (u64::from(word(page, position)?) << 27);
                    position += 4;
                }
                TIME_STAMP => {
                    // The upper five bits don't fit and stay what they are.
                    at = at & !((1 << 59) - 1) | delta | u64::from(word(page, position)?) << 27;
                    position += 4;
                }
                _ => {
                    at += delta;
                    let len = if kind == 0 { word(page, position)? } else { kind * 4 };
                    let start = if kind == 0 { position + 4 } else { position };
                    position += usize::try_from(len)?;
                    let data = page.get(start..position).context("an entry goes beyond its page")?;
                    entries.extend(self.entry(at, cpu, data)?);
                }
            }
        }
        Ok(())
    }

    fn entry(&self, at: u64, cpu: usize, data: &[u8]) -> Result<Option<Entry>> {
        // struct trace_entry: type, flags, preempt count, pid. Behind it a function's address.
        const FUNCTION: u16 = 1;
        // Where in a function ftrace is called: behind an `endbr64` at most.
        const WITHIN: u64 = 16;
        // TRACE_FLAG_SOFTIRQ (include/linux/trace_events.h).
        const SOFTIRQ: u32 = 0x10;

        let (head, task) = (word(data, 0)?, word(data, 4)?);
        let kind = u16::try_from(head & 0xffff)?;
        let in_softirq = head >> 16 & SOFTIRQ != 0;
        let function = |address: u64| {
            let found = self.functions.iter().find(|(start, _)| (*start..*start + WITHIN).contains(&address));
            found.map(|(_, name)| *name)
        };
        let entry = |name, is_end, fields| Entry { at, cpu, task, in_softirq, name, is_end, fields };
        if kind == FUNCTION {
            let address = long(data, 8)?;
            let name = function(address).with_context(|| format!("no traced function at {address:#x}"))?;
            return Ok(Some(entry(name, false, Vec::new())));
        }
        let Some(layout) = self.layouts.get(&kind) else { return Ok(None) };
        let mut fields = Vec::new();
        for &(offset, size) in &layout.fields {
            fields.push(match size {
                2 => u64::from(word(data, offset & !3)? >> (offset % 4 * 8) & 0xffff),
                4 => word(data, offset)?.into(),
                8 => long(data, offset)?,
                _ => bail!("a field of {size} bytes"),
            });
        }
        Ok(match (layout.name, fields.as_slice()) {
            // On arm64 this tracer has functions besides, such as `irq_enter_rcu`.
            (ENTRY | EXIT, [address]) => {
                function(*address).map(|name| entry(name, layout.name == EXIT, Vec::new()))
            }
            _ => Some(entry(layout.name, false, fields)),
        })
    }
}

/// A call as `function_graph` saw it.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) name: &'static str,
    pub(crate) task: u32,
    pub(crate) cpu: usize,
    /// ns of `CLOCK_MONOTONIC`.
    pub(crate) entered: u64,
    /// ns of `CLOCK_MONOTONIC`, if the end was seen.
    pub(crate) left: Option<u64>,
    /// How many other calls it was made within.
    pub(crate) depth: usize,
}

impl Call {
    /// Whether `inner` was made within this call, or is this call.
    pub(crate) fn contains(&self, inner: &Self) -> bool {
        place(self.task, self.cpu) == place(inner.task, inner.cpu)
            && (self.entered..=self.left.unwrap_or(self.entered)).contains(&inner.entered)
    }
}

/// Where calls follow each other: in a task, whichever CPU it is on, since it may be moved even between a function's
/// beginning and what is attached there. Idle CPUs have the same task.
pub(crate) fn place(task: u32, cpu: usize) -> (u32, usize) {
    (task, if task == 0 { cpu } else { 0 })
}

/// Whether a journey's row is of this task, or, if it is an interrupt's and so has no task, of this CPU.
pub(crate) fn is_row_of(row: &Value, task: u32, cpu: usize) -> bool {
    if row["context"] == "process" { row["tid"] == task } else { row["cpu"] == cpu }
}

/// The calls in the order of their beginning. Those of a softirq are within those of the task that it interrupted.
pub(crate) fn calls(entries: &[Entry]) -> Vec<Call> {
    let mut calls: Vec<Call> = Vec::new();
    let mut open: HashMap<(u32, usize), Vec<usize>> = HashMap::new();
    for entry in entries {
        let around = open.entry(place(entry.task, entry.cpu)).or_default();
        if !entry.is_end {
            let Entry { at: entered, cpu, task, name, .. } = *entry;
            let depth = around.len();
            around.push(calls.len());
            calls.push(Call { name, task, cpu, entered, left: None, depth });
        } else if let Some(number) = around.pop_if(|number| calls[*number].name == entry.name) {
            calls[number].left = Some(entry.at);
        }
    }
    calls
}

/// The functions that ftrace can trace.
pub(crate) fn known_functions() -> Result<Vec<String>> {
    let known = fs::read_to_string(Path::new(ROOT).join("available_filter_functions"))?;
    Ok(known.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect())
}

/// Whether `function_graph` sees functions that have a BPF trampoline: before Linux 5.17 it takes them for calls by one
/// (`ftrace_find_rec_direct` in `function_graph_enter`).
pub(crate) fn graph_follows_trampolines() -> Result<bool> {
    let symbols = fs::read_to_string("/proc/kallsyms")?;
    Ok(symbols.lines().any(|line| line.split(' ').nth(2) == Some("ftrace_graph_func")))
}

/// The functions that have kprobes.
pub(crate) fn kprobes() -> Result<Vec<String>> {
    const KPROBES: &str = "/sys/kernel/debug/kprobes/list";
    let list = fs::read_to_string(KPROBES).context(KPROBES)?;
    // ffffffc0088c0e28  k  tcp_v4_rcv+0x0
    let function = |line: &str| Some(line.split_whitespace().nth(2)?.split_once("+0x")?.0.to_owned());
    list.lines().map(|line| function(line).with_context(|| format!("no function: {line:?}"))).collect()
}

/// The functions of which ftrace knows and to which something is attached now, by any program: a call of ftrace's, or a kprobe that is a
/// breakpoint. Their names live as long as the process.
pub(crate) fn attached_functions() -> Result<Vec<&'static str>> {
    let enabled = fs::read_to_string(Path::new(ROOT).join("enabled_functions"))?;
    let names = enabled.lines().filter(|line| !line.starts_with(char::is_whitespace));
    let mut attached: Vec<_> = names.filter_map(|line| line.split(' ').next()).map(str::to_owned).collect();
    let known = known_functions()?;
    attached.extend(kprobes()?.into_iter().filter(|function| known.contains(function)));
    attached.sort_unstable();
    attached.dedup();
    Ok(attached.into_iter().map(|name| &*name.leak()).collect())
}

impl Drop for Tracing {
    fn drop(&mut self) {
        // An instance whose tracer runs can't be removed; without either the guest's end cleans up.
        drop(self.set("current_tracer", "nop"));
        let Some(before) = &self.before else {
            drop(self.set("events/enable", "0"));
            drop(fs::remove_dir(&self.directory));
            return;
        };
        drop(self.set("set_ftrace_filter", ""));
        for (file, value) in before {
            drop(self.set(file, value));
        }
        drop(self.set("tracing_on", "1"));
    }
}

/// Where the functions start.
fn addresses(names: &[&'static str]) -> Result<Vec<(u64, &'static str)>> {
    let symbols = fs::read_to_string("/proc/kallsyms")?;
    let mut addresses = Vec::new();
    for symbol in symbols.lines() {
        let mut words = symbol.split_ascii_whitespace();
        let (Some(address), Some(_), Some(name)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        if let Some(name) = names.iter().find(|wanted| **wanted == name) {
            addresses.push((u64::from_str_radix(address, 16)?, *name));
        }
    }
    ensure!(addresses.len() >= names.len(), "kallsyms lacks one of {names:?}");
    Ok(addresses)
}

fn next_page(pages: &mut File) -> Result<Option<Vec<u8>>> {
    let mut page = vec![0; PAGE];
    match pages.read(&mut page) {
        Ok(0) => Ok(None),
        Ok(len) => {
            page.truncate(len);
            Ok(Some(page))
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error).context("reading ftrace's ring buffer"),
    }
}

fn word(data: &[u8], offset: usize) -> Result<u32> {
    let bytes = data.get(offset..offset + 4).context("ftrace's data is cut")?;
    Ok(u32::from_ne_bytes(bytes.try_into()?))
}

fn long(data: &[u8], offset: usize) -> Result<u64> {
    let bytes = data.get(offset..offset + 8).context("ftrace's data is cut")?;
    Ok(u64::from_ne_bytes(bytes.try_into()?))
}
