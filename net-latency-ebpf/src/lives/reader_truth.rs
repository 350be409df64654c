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
    /// It has read, and so has a CPU.
    HasRead,
    Woken,
    /// It lost its CPU.
    Left,
    /// It got this CPU.
    Running {
        cpu: usize,
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
    /// Who had each CPU, one after the other.
    turns: [Vec<Turn>; CPUS],
}

/// A process, 0 if it is the idle task, had a CPU.
#[derive(Clone, Copy, Debug)]
struct Turn {
    process: u32,
    from: u64,
    until: u64,
}

impl Turn {
    fn within(&self, (from, until): (u64, u64)) -> u64 {
        self.until.min(until).saturating_sub(self.from.max(from))
    }
}

/// A thread waited for that CPU, from then on until then.
#[derive(Clone, Copy, Default, Debug)]
struct Waited {
    cpu: usize,
    time: (u64, u64),
}

impl Scheduled {
    /// Something has happened to a thread, which that call has just seen.
    pub(super) fn note(&mut self, thread: u32, what: What, call: usize) {
        let at = Machine::with(|machine| machine.clock);
        self.events.push(Event { thread, what, call, at });
    }

    /// A task with these ids has lost a CPU, as that call has just seen.
    pub(super) fn loses(&mut self, cpu: usize, ids: u64, call: usize) {
        self.note(ids as u32, What::Left, call);
        let process = (ids >> 32) as u32;
        let turns = &mut self.turns[cpu];
        let from = turns.last().map_or(0, |last| last.until);
        turns.push(Turn { process, from, until: Machine::with(|machine| machine.clock) });
    }

    /// Whether that process, 0 for none, had a CPU that a thread waited for. Who had it for an eighth of the time may be named, and who
    /// had it for three quarters at once has to be, but for turns that are too short to be kept.
    fn check_holder(&self, Waited { cpu, time }: Waited, told: u32) -> Result<(), String> {
        const KEPT: u64 = 1 << 16;
        let waited = time.1 - time.0;
        let turns = self.turns[cpu].iter().filter(|turn| turn.within(time) > 0);
        let of_told: u64 =
            turns.clone().filter(|turn| turn.process == told).map(|turn| turn.within(time)).sum();
        let is_kept = |turn: &&Turn| turn.until - turn.from >= KEPT || turn.until == time.1;
        let of_most = turns.clone().filter(is_kept).max_by_key(|turn| turn.within(time));
        let has_another =
            of_most.is_some_and(|turn| turn.process != told && turn.within(time) * 4 >= waited * 3);
        if told != 0 && of_told * 8 + 8 < waited || has_another {
            let turns: Vec<_> = turns.collect();
            return Err(format!("process {told} did not have the CPU in {time:?}: {turns:?}"));
        }
        Ok(())
    }
}

/// When the reader of some bytes did what it did last before it took them; 0 for what it didn't do since it asked first.
#[derive(Default, Debug)]
struct Did {
    first_asked: u64,
    asked: u64,
    woken: u64,
    running: u64,
    waited: Waited,
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
                What::Running { cpu } if did.woken > did.running && did.woken >= did.asked => {
                    (did.running, did.waited) = (at, Waited { cpu, time: (did.woken, at) });
                }
                What::Woken | What::Left | What::HasRead | What::Running { .. } => {}
                What::Exited => did = Did::default(),
            }
        }
        did
    }

    /// Whether a thread has called before that call, and was certainly seen all the time since.
    pub(super) fn is_seen(&self, thread: u32, from: usize) -> bool {
        let has_called = |event: &Event| event.call < from && matches!(event.what, What::Asked | What::Born);
        let mut its = self.events.iter().filter(|event| event.thread == thread);
        let has_exited = its.clone().any(|event| matches!(event.what, What::Exited));
        its.any(has_called) && !has_exited && !self.has_rival(thread)
    }

    /// For how long a thread was asleep, and then waited for a CPU, between two of its calls: one that shows that it has a CPU, and a later
    /// one. Nothing if it seems to have none then.
    pub(super) fn off_cpu(&self, thread: u32, from: usize, to: usize) -> Option<[u64; 2]> {
        let its =
            self.events.iter().filter(|event| event.thread == thread && event.call > from && event.call < to);
        let [mut asleep, mut waited] = [0; 2];
        let (mut left, mut woken) = (None, 0);
        for Event { what, at, .. } in its.copied() {
            match what {
                What::Left => (left, woken) = (Some(at), at),
                What::Woken => woken = at,
                What::Running { .. } => {
                    if let Some(left) = left.take() {
                        asleep += woken - left;
                        waited += at - woken;
                    }
                }
                What::HasRead => left = None,
                What::Born | What::Asked | What::Exited => {}
            }
        }
        left.is_none().then_some([asleep, waited])
    }

    /// Whether another thread that called, or was born first, has its place among readers.
    fn has_rival(&self, thread: u32) -> bool {
        let is_rival = |of: u32| of != thread && of % READERS == thread % READERS;
        let mut taking = self.events.iter().filter(|event| matches!(event.what, What::Asked | What::Born));
        taking.any(|event| is_rival(event.thread))
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
        if cpu != 0 { self.check_holder(did.waited, line.rtt_or_holder) } else { Ok(()) }
    }
}
