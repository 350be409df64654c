//! The truth about threads that read: when each called, was woken and got a CPU. And whether a line's parts say that.

use std::{format, string::String, vec::Vec};

use net_latency_common::{
    IPPROTO_UDP, PART_COPY, PART_CPU, PART_GAP, PART_WAIT, PARTS, PacketRecord, STAMP_APP, STAMP_TRANSPORT,
    part,
};

use crate::bpf::host::{CPUS, Machine};

/// Places of threads that read (`crate::readers`).
pub(super) const READERS: u32 = 8192;

/// What happened to a thread.
#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    /// It is there, and needs a CPU.
    Born,
    /// It called to receive, or to send.
    Asked,
    Woken,
    /// It got a CPU. `holder` is the process that had that; 0 if none had it.
    Running {
        holder: u32,
    },
    /// Its number will be another one's.
    Exited,
}

/// It happened to this thread, was seen by that call, and at that time.
#[derive(Clone, Copy, Debug)]
struct Event {
    thread: u32,
    what: What,
    call: usize,
    at: u64,
}

/// All that happened to threads, in its order.
#[derive(Default)]
pub(super) struct Scheduled {
    events: Vec<Event>,
    /// What the kernel's threads took each CPU from: the process, and when.
    displaced: [Option<(u32, u64)>; CPUS],
}

impl Scheduled {
    /// Something has happened to a thread, which that call has just seen.
    pub(super) fn note(&mut self, thread: u32, what: What, call: usize) {
        let at = Machine::with(|machine| machine.clock);
        self.events.push(Event { thread, what, call, at });
    }

    /// A thread of the kernel's has taken a CPU from this process.
    pub(super) fn displaces(&mut self, cpu: usize, process: u32) {
        self.displaced[cpu] = Some((process, Machine::with(|machine| machine.clock)));
    }

    /// Whose the CPU was that a thread has just got from `before`: where that was the kernel's and had it for less than half of what the
    /// thread waited, the process' before that.
    pub(super) fn holder(&self, thread: u32, cpu: usize, is_of_kernel: bool, before: u32) -> u32 {
        let now = Machine::with(|machine| machine.clock);
        let needs_cpu =
            |event: &&Event| event.thread == thread && matches!(event.what, What::Born | What::Woken);
        let since = self.events.iter().rev().find(needs_cpu).map_or(0, |event| event.at);
        match self.displaced[cpu] {
            Some((process, at)) if is_of_kernel && now - at < (now - since) / 2 => process,
            _ => before,
        }
    }
}

/// When the reader of some bytes did what it did last before it took them; 0 for what it didn't do since it asked first.
#[derive(Default, Debug)]
struct Did {
    first_asked: u64,
    asked: u64,
    woken: u64,
    running: u64,
    holder: u32,
}

impl Scheduled {
    /// What a thread did before that call.
    fn did(&self, thread: u32, last: usize) -> Did {
        let mut did = Did::default();
        let before = |event: &&Event| event.thread == thread && event.call < last;
        for Event { what, at, .. } in self.events.iter().filter(before).copied() {
            match what {
                What::Born => {
                    did = Did { first_asked: at, asked: at, woken: at, ..Did::default() };
                }
                What::Asked if did.first_asked == 0 => {
                    did = Did { first_asked: at, asked: at, ..Did::default() };
                }
                What::Asked => did.asked = at,
                What::Woken if did.first_asked != 0 => did.woken = at,
                // Later switches belong to no wakeup, nor do those after the thread has shown that it is on a CPU.
                What::Running { holder } if did.woken > did.running && did.woken >= did.asked => {
                    (did.running, did.holder) = (at, holder);
                }
                What::Woken | What::Running { .. } => {}
                What::Exited => did = Did::default(),
            }
        }
        did
    }

    /// Whether another thread that called has its place among readers.
    fn has_rival(&self, thread: u32) -> bool {
        let is_rival = |of: u32| of != thread && of % READERS == thread % READERS;
        self.events.iter().any(|event| matches!(event.what, What::Asked) && is_rival(event.thread))
    }

    /// Whether a received packet's parts are what its reader did, which took it by that call. Between the times of `came` came the last
    /// byte of those before it, and of itself.
    pub(super) fn check(
        &self,
        line: &PacketRecord,
        parts: &[u64; PARTS],
        taken: usize,
        came: Option<(u64, u64)>,
    ) -> Result<(), String> {
        let known: Vec<u64> = parts.iter().filter_map(|value| part(*value).ok()).collect();
        let [transport, app] = [line.stamps[STAMP_TRANSPORT], line.stamps[STAMP_APP]];
        let did = self.did(line.tid, taken);
        // It has called, and what it did before that matters to none of this time.
        let is_known = did.asked != 0 && (did.woken != 0 || transport >= did.first_asked);
        let [gap, wait, cpu, copy] = match *known {
            // Of TCP it need not be known which bytes came with which segment.
            [] if line.protocol == IPPROTO_UDP && transport != 0 && is_known && !self.has_rival(line.tid) => {
                return Err(format!("no parts are known: {did:?}"));
            }
            [] => return Ok(()),
            [gap, wait, cpu, copy] => [gap, wait, cpu, copy],
            _ => return Err(format!("only some parts are known: {parts:?}")),
        };
        if transport == 0 || app == 0 || gap + wait + cpu + copy != app - transport {
            return Err(format!("parts {known:?} are not the time from {transport} to {app}"));
        }
        let readable = transport + gap;
        if line.protocol == IPPROTO_UDP {
            if gap != 0 {
                return Err("a datagram waited for what came before it".into());
            }
        } else if !came.is_some_and(|(from, to)| from < readable && readable <= to) {
            return Err(format!("could be read at {readable}, which was at {came:?}"));
        }
        if did.asked == 0 || did.woken == 0 && readable < did.first_asked {
            return Err(format!("parts {known:?} are known of a thread of which nothing is: {did:?}"));
        }
        // It needs a CPU from the later of both on, unless it has one.
        let needs = did.woken.max(readable);
        let waits_for_cpu = did.running > did.woken && did.running > readable;
        let on_cpu = if waits_for_cpu { did.running } else { needs };
        let copies = if waits_for_cpu {
            did.asked.max(did.running)
        } else if did.woken > readable && did.asked < did.woken {
            did.woken
        } else {
            did.asked.max(readable)
        };
        let mut expected = [0; PARTS];
        expected[PART_GAP] = gap;
        expected[PART_CPU] = on_cpu - needs;
        expected[PART_COPY] = app - copies;
        expected[PART_WAIT] = app - transport - gap - expected[PART_CPU] - expected[PART_COPY];
        if *parts != expected {
            return Err(format!("parts are {known:?}, not {expected:?}: {did:?}"));
        }
        if cpu != 0 && line.rtt_or_holder != did.holder {
            return Err(format!("process {} had the CPU, not {}", did.holder, line.rtt_or_holder));
        }
        Ok(())
    }
}
