//! Threads that read: when each called for bytes last, when it was woken, and when it was on a CPU again. With the time at which the bytes
//! could be read, that splits their wait in the socket: `--stages fine`.
//!
//! A plain array by the thread's id, since every wakeup and every switch of a task looks here. Each word says which thread it is of, so
//! that a thread that takes a place from another never meets that one's times. Two that read and share a place (their ids are a multiple of
//! 8192 apart) take it from each other: then the times are not known.
//!
//! Considered: a hash table (some 100 instructions for each switch of any task), task storage (Linux 5.11), `sched_info` in the task
//! (it adds up every wait for a CPU, not only that of the last wakeup).

use net_latency_common::{
    PART_COPY, PART_CPU, PART_GAP, PART_WAIT, PARTS, Served, Unknown, tagged, unknown_part,
};

use crate::{
    bpf::{Array, entry::Field, map, now},
    emit::counters::HookResult,
    flow::{filter, settings::setting},
    kernel::{
        memory::Memory,
        task::{Task, Thread},
    },
    processors,
};

/// Places, as a power of two.
const SLOT_BITS: u32 = 13;
/// The rest of a thread's id: there are 2^22 at most (`PID_MAX_LIMIT`).
const TAG_BITS: u32 = 22 - SLOT_BITS;

/// A thread that reads. Each word is a time with its tag, or 0.
#[repr(C)]
pub(crate) struct Reader {
    /// It called to receive, or to send; or it was born, and has not called yet.
    asked: Field<u64>,
    /// It was woken.
    woken: Field<u64>,
    /// It was on a CPU for the first time after that, or when it called first.
    running: Field<u64>,
    /// Which process had that CPU while it waited; in place of a time its id.
    holder: Field<u64>,
    /// It has got this place.
    since: Field<u64>,
    /// It was switched out, and has not got a CPU again.
    left: Field<u64>,
    /// For how long it was off its CPUs since it has this place, and asleep, while it had requests; in place of times, ns.
    off_cpu: Field<u64>,
    asleep: Field<u64>,
    /// How many requests it has read and not answered, or more: only then the next are kept.
    open: Field<u64>,
    /// It read the request that it serves.
    serves: Field<u64>,
    /// The system call in which it has slept longest since then, as [`CALL_BITS`] bits of it and the ns above.
    call: Field<u64>,
}

/// Bits of a system call's number and 1: there are 470 in Linux 7.3.
const CALL_BITS: u32 = 10;
/// A request that was read so long ago has no answer, ns.
const LONGEST_SERVICE: u64 = 10_000_000_000;

impl Reader {
    /// The id of that process; 0 if none had it, or the thread with this tag is another one.
    #[inline(always)]
    fn holder_of(&self, tag: u64) -> u64 {
        let holder = self.holder.get();
        if is_of(holder, tag) { holder >> TAG_BITS } else { 0 }
    }
}

/// Threads that read, by the lowest bits of their ids. When a slot is taken, the newer thread has it: the other one's parts are unknown.
#[map]
static READERS: Array<Reader> = Array::with_max_entries(1 << SLOT_BITS, 0);

/// Parts of which nothing is known.
pub(crate) const UNSEEN: [u64; PARTS] = [unknown_part(Unknown::ReaderUnseen); PARTS];

/// The times of the thread that reads, in ns; 0 if unknown.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Reading {
    /// It called.
    pub(crate) asked: u64,
    /// It was woken last.
    pub(crate) woken: u64,
    /// It was on a CPU for the first time after that, or after an earlier wakeup; or it called first, and what it did before is not known.
    pub(crate) running: u64,
    /// The id of the process that had that CPU while it waited; 0 if none had it.
    pub(crate) holder: u64,
}

/// The times of a thread that serves, at a moment at which it has a CPU.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Serving {
    /// When that is, ns.
    pub(crate) at: u64,
    /// For how long it had been off its CPUs by then, and asleep, ns, since a moment before.
    pub(crate) off_cpu: u64,
    pub(crate) asleep: u64,
}

/// Number and tag of a thread.
#[inline(always)]
fn place(thread: u32) -> (u32, u64) {
    (thread & ((1 << SLOT_BITS) - 1), u64::from(thread >> SLOT_BITS) & ((1 << TAG_BITS) - 1))
}

#[inline(always)]
fn is_of(word: u64, tag: u64) -> bool {
    tagged::is_of::<TAG_BITS>(word, tag)
}

/// The place of a thread that has one, and its tag.
#[inline(always)]
fn known(thread: u32) -> Option<(&'static Reader, u64)> {
    let (slot, tag) = place(thread);
    let reader = READERS.get(slot)?;
    is_of(reader.since.get(), tag).then_some((reader, tag))
}

impl Reader {
    /// The thread with this tag gets this place now, given as its word.
    #[inline(always)]
    fn begin(&self, now: u64, tag: u64) {
        self.left.set(0);
        // No word is 0 that is a thread's.
        self.off_cpu.set(tagged::word::<TAG_BITS>(1, tag));
        self.asleep.set(tagged::word::<TAG_BITS>(1, tag));
        self.open.set(0);
        self.serves.set(0);
        self.since.set(now);
    }

    /// The thread with this tag gets a CPU again, of which `call` tells the system call. It was asleep if it was woken meanwhile.
    #[inline(always)]
    fn come_back(&self, now: u64, tag: u64, call: impl FnOnce() -> u64) {
        let left = self.left.get();
        if !is_of(left, tag) {
            return;
        }
        self.left.set(0);
        let left = tagged::time::<TAG_BITS>(left, now);
        let add = |word: &Field<u64>, ns: u64| {
            if is_of(word.get(), tag) {
                word.set(word.get().wrapping_add(ns << TAG_BITS));
            }
        };
        add(&self.off_cpu, now.saturating_sub(left));
        let woken = self.woken.get();
        if !is_of(woken, tag) {
            return;
        }
        let slept = tagged::time::<TAG_BITS>(woken, now).saturating_sub(left);
        if slept == 0 {
            return;
        }
        add(&self.asleep, slept);
        if self.serves.get() != 0 {
            self.slept_in(call(), slept);
        }
    }

    /// It slept for so long in a system call, 0 for none.
    #[inline(always)]
    fn slept_in(&self, call: u64, ns: u64) {
        let (before, of_before) = self.call();
        if call == before {
            self.call.set(self.call.get().wrapping_add(ns << CALL_BITS));
        } else if ns > of_before {
            self.call.set(ns << CALL_BITS | call);
        }
    }

    /// The times of the thread with this tag, which has a CPU, at that time.
    #[inline(always)]
    fn serving(&self, at: u64, tag: u64) -> Option<Serving> {
        let (off_cpu, asleep) = (self.off_cpu.get(), self.asleep.get());
        let is_its = is_of(off_cpu, tag) && is_of(asleep, tag);
        is_its.then_some(Serving { at, off_cpu: off_cpu >> TAG_BITS, asleep: asleep >> TAG_BITS })
    }

    /// The system call in which it has slept longest, and for how long.
    #[inline(always)]
    fn call(&self) -> (u64, u64) {
        let word = self.call.get();
        (word & ((1 << CALL_BITS) - 1), word >> CALL_BITS)
    }
}

/// The current thread has read a request at `at`. It no longer serves what it had read before on that socket, at `before`; 0 if it had read
/// nothing. Nothing if the thread was not seen before.
#[inline(always)]
pub(crate) fn serves(at: u64, before: u64) -> Option<Serving> {
    let (reader, tag) = known(Task::current_ids() as u32)?;
    // It has a CPU, whatever was seen.
    reader.left.set(0);
    // What it read before it had this place does not count.
    if before < tagged::time::<TAG_BITS>(reader.since.get(), at) {
        reader.open.set(reader.open.get() + 1);
    }
    let serves = reader.serves.get();
    // One at a time: the calls are those since then.
    if serves == 0
        || serves == tagged::word::<TAG_BITS>(before, tag)
        || tagged::age::<TAG_BITS>(serves, at) > LONGEST_SERVICE
    {
        reader.serves.set(tagged::word::<TAG_BITS>(at, tag));
        reader.call.set(0);
    }
    reader.serving(at, tag)
}

/// The current thread begins to write at `at`, and has served since `from`: what it did meanwhile.
#[inline(always)]
pub(crate) fn served(from: Serving, at: u64) -> Served {
    let Some((reader, tag)) = known(Task::current_ids() as u32) else {
        return Served::unknown(Unknown::ReaderUnseen);
    };
    // A thread that has taken this place from another since, or from this one, has not been seen all the time.
    let is_its = tagged::time::<TAG_BITS>(reader.since.get(), at) <= from.at;
    let Some(to) = reader.serving(at, tag).filter(|_| is_its && reader.left.get() == 0) else {
        return Served::unknown(Unknown::ReaderUnseen);
    };
    reader.open.set(reader.open.get().saturating_sub(1));
    if at < from.at {
        return Served::unknown(Unknown::Contradictory);
    }
    let asleep = to.asleep.wrapping_sub(from.asleep);
    let mut call = 0;
    if reader.serves.get() == tagged::word::<TAG_BITS>(from.at, tag) {
        reader.serves.set(0);
        let (longest, ns) = reader.call();
        call = if ns >= asleep.div_ceil(2) { longest } else { 0 };
    }
    Served::of(at.wrapping_sub(from.at), to.off_cpu.wrapping_sub(from.off_cpu), asleep, call)
}

/// The current thread calls to receive from a socket (`tcp_recvmsg`, `udp_recvmsg`, `udpv6_recvmsg`), or the kernel is about to take
/// bytes from it on the thread's behalf (splice).
#[inline(always)]
pub fn asks() -> HookResult {
    if !filter::current() {
        return Ok(());
    }
    let (slot, tag) = place(Task::current_ids() as u32);
    let Some(reader) = READERS.get(slot) else { return Ok(()) };
    let now = tagged::word::<TAG_BITS>(now(), tag);
    if !is_of(reader.asked.get(), tag) {
        // Whether it was woken before is not known.
        reader.woken.set(0);
        reader.running.set(now);
        if !is_of(reader.since.get(), tag) {
            reader.begin(now, tag);
        }
    }
    reader.asked.set(now);
    Ok(())
}

/// The current thread calls to send: it has a CPU, as one that calls to receive. A client's thread does so before it waits for an answer.
#[inline(always)]
pub(crate) fn sends() -> HookResult {
    if setting!(fine) == 0 { Ok(()) } else { asks() }
}

/// The current thread reads in a way whose beginning no hook sees (TLS).
#[inline(always)]
pub(crate) fn asks_unseen() {
    if let Some((reader, _)) = known(Task::current_ids() as u32) {
        reader.asked.set(0);
    }
}

/// The current task has made a thread (tracepoint `sched_process_fork`), which needs a CPU from now on: all that it does is seen.
#[inline(always)]
pub fn born<M: Memory>(thread: Thread<M>) {
    if setting!(fine) == 0 {
        return;
    }
    let (slot, tag) = place(thread.thread());
    // Another thread's place stays as it is: most threads that are started read nothing.
    if let Some(reader) = READERS.get(slot)
        && reader.since.get() == 0
    {
        let now = tagged::word::<TAG_BITS>(now(), tag);
        reader.woken.set(now);
        reader.running.set(0);
        reader.begin(now, tag);
        reader.asked.set(now);
    }
}

/// A thread exits (tracepoint `sched_process_exit`): its id will be another one's, which has read nothing.
#[inline(always)]
pub fn exited<M: Memory>(thread: Thread<M>) {
    if setting!(fine) == 0 {
        return;
    }
    if let Some((reader, _)) = known(thread.thread()) {
        reader.asked.set(0);
        reader.holder.set(0);
        reader.since.set(0);
    }
}

/// A thread is woken (tracepoint `sched_waking`), which needs a CPU from now on.
#[inline(always)]
pub fn woken<M: Memory>(thread: Thread<M>) -> HookResult {
    if let Some((reader, tag)) = known(thread.thread()) {
        reader.woken.set(tagged::word::<TAG_BITS>(now(), tag));
    }
    Ok(())
}

/// A thread gets this CPU from another one (tracepoint `sched_switch`).
#[inline(always)]
pub fn switched<M: Memory>(before: Thread<M>, next: Thread<M>) -> HookResult {
    let now = now();
    let had = processors::loses(before, now);
    if let Some((reader, tag)) = known(before.thread())
        && reader.open.get() != 0
    {
        reader.left.set(tagged::word::<TAG_BITS>(now, tag));
    }
    if let Some((reader, tag)) = known(next.thread()) {
        reader.come_back(now, tag, || next.system_call());
        gets_cpu(reader, tag, (before, had), now);
    }
    Ok(())
}

/// A thread that reads gets this CPU from another one, which `had` it for so many ns, and may have been woken for it.
#[inline(always)]
fn gets_cpu<M: Memory>(reader: &Reader, tag: u64, (before, had): (Thread<M>, u64), now: u64) {
    let (asked, woken) = (reader.asked.get(), reader.woken.get());
    if !is_of(asked, tag) || !is_of(woken, tag) {
        return;
    }
    // A thread that was on a CPU since, or has called since, was preempted and not woken.
    let waited = tagged::age::<TAG_BITS>(woken, now);
    let running = reader.running.get();
    let is_before = |word| tagged::age::<TAG_BITS>(word, now) >= waited;
    if woken != running && is_before(running) && is_before(asked) {
        reader.running.set(tagged::word::<TAG_BITS>(now, tag));
        let holder = processors::longest(before, had, waited.saturating_sub(tagged::JITTER), now);
        reader.holder.set(tagged::word::<TAG_BITS>(holder, tag));
    }
}

/// The times of the current thread, which reads; `now` is about now.
#[inline(always)]
pub(crate) fn current(now: u64) -> Reading {
    let (slot, tag) = place(Task::current_ids() as u32);
    let Some(reader) = READERS.get(slot) else { return Reading::default() };
    let time = |word| if is_of(word, tag) { tagged::time::<TAG_BITS>(word, now) } else { 0 };
    Reading {
        asked: time(reader.asked.get()),
        woken: time(reader.woken.get()),
        running: time(reader.running.get()),
        holder: reader.holder_of(tag),
    }
}

/// The id of the process that had the CPU for which the current thread waited, which reads; 0 if none had it.
///
/// A global function: the program that reads a datagram has no room on the stack for more of [`Reading`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn reader_holder() -> u32 {
    let (slot, tag) = place(Task::current_ids() as u32);
    READERS.get(slot).map_or(0, |reader| reader.holder_of(tag) as u32)
}

impl Reading {
    /// The parts of the time from a packet's arrival in its transport to its reader, who took it at `app`. From `readable` on it
    /// could be read. All are unknown if one is.
    #[inline(always)]
    pub(crate) fn parts(&self, transport: u64, readable: u64, app: u64) -> [u64; PARTS] {
        let Self { asked, woken, running, .. } = *self;
        if asked == 0
            || asked > app
            || running > app
            || transport == 0
            || readable < transport
            || readable > app
            || woken == 0 && readable < running
        {
            return UNSEEN;
        }
        let needs_cpu = if woken > readable { woken } else { readable };
        // The reader is on a CPU, and asks, from `on_cpu` and `copies` on.
        let (cpu, on_cpu, copies);
        if woken != 0 && running >= needs_cpu {
            // It was woken for these bytes, or was waiting for a CPU anyway when they came.
            cpu = running - needs_cpu;
            on_cpu = running;
            copies = if asked > running { asked } else { running };
        } else {
            // It was on a CPU all the time: busy with something else, asking, or woken before it was asleep.
            cpu = 0;
            on_cpu = needs_cpu;
            copies = if woken > readable && asked <= woken {
                woken
            } else if asked > readable {
                asked
            } else {
                readable
            };
        }
        // Either the bytes waited for the wakeup and then for the call, or, by a thread that ran, for the call.
        let waits = copies.saturating_sub(on_cpu);
        let before = needs_cpu - readable;
        if copies > app {
            return UNSEEN;
        }
        let mut parts = UNSEEN;
        parts[PART_GAP] = readable - transport;
        parts[PART_WAIT] = before + waits;
        parts[PART_CPU] = cpu;
        parts[PART_COPY] = app - transport - parts[PART_GAP] - parts[PART_WAIT] - cpu;
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARRIVED: u64 = 1_000;
    const APP: u64 = 2_000;

    fn split(readable: u64, asked: u64, woken: u64, running: u64) -> [u64; PARTS] {
        Reading { asked, woken, running, holder: 0 }.parts(ARRIVED, readable, APP)
    }

    #[test]
    fn a_reader_who_is_asleep_in_its_call_waits_for_a_cpu() {
        // Gap, wait (for the wakeup), cpu, copy.
        assert_eq!(split(1_000, 500, 1_010, 1_700), [0, 10, 690, 300]);
        assert_eq!(split(1_400, 500, 1_410, 1_700), [400, 10, 290, 300]);
        // Woken by earlier bytes, and these came while it waited.
        assert_eq!(split(1_200, 500, 1_100, 1_700), [200, 0, 500, 300]);
    }

    #[test]
    fn a_reader_who_polls_asks_after_it_is_on_a_cpu() {
        assert_eq!(split(1_000, 1_900, 1_010, 1_700), [0, 210, 690, 100]);
    }

    #[test]
    fn a_reader_who_is_busy_lets_bytes_wait() {
        // It was never off its CPU since.
        assert_eq!(split(1_000, 1_900, 0, 900), [0, 900, 0, 100]);
        assert_eq!(split(1_000, 1_900, 100, 200), [0, 900, 0, 100]);
        // It asked already, and was copying what came before.
        assert_eq!(split(1_300, 900, 100, 200), [300, 0, 0, 700]);
    }

    #[test]
    fn a_reader_who_is_woken_before_it_sleeps_goes_on() {
        assert_eq!(split(1_000, 500, 1_100, 600), [0, 100, 0, 900]);
        assert_eq!(split(1_000, 1_500, 1_100, 600), [0, 500, 0, 500]);
    }

    #[test]
    fn parts_add_up_or_are_all_unknown() {
        let times = [0, 100, 900, 1_000, 1_300, 1_500, 1_900, 2_000, 2_100];
        for readable in times {
            for asked in times {
                for woken in times {
                    for running in times {
                        let parts = split(readable, asked, woken, running);
                        if parts != UNSEEN {
                            assert!(parts.iter().all(|&part| part <= 1_000), "{parts:?}");
                            assert_eq!(
                                parts.iter().sum::<u64>(),
                                APP - ARRIVED,
                                "{readable} {asked} {woken} {running}"
                            );
                        }
                    }
                }
            }
        }
        assert_eq!(split(1_000, 0, 1_100, 1_200), UNSEEN);
        // It called for the first time when the bytes were there: it may have waited for a CPU until then.
        assert_eq!(split(1_000, 1_900, 0, 1_001), UNSEEN);
        assert_eq!(split(2_100, 900, 0, 0), UNSEEN);
        // It was not taken, or when it came is not known.
        let reading = Reading { asked: 500, woken: 1_010, running: 1_700, holder: 0 };
        for (transport, readable, app) in [(ARRIVED, ARRIVED, 0), (0, ARRIVED, APP), (0, 0, 0)] {
            assert_eq!(reading.parts(transport, readable, app), UNSEEN);
        }
    }

    #[test]
    fn threads_are_told_apart() {
        assert_ne!(place(1), place(2));
        assert_eq!(place(5).0, place(5 + 8192).0);
        assert_ne!(place(5).1, place(5 + 8192).1);
        assert_ne!(place((1 << 22) - 1).1, place((1 << 22) - 1 - 8192).1);
    }

    #[test]
    fn times_that_meet_are_known() {
        // It called, got a CPU, or could read only when it took the bytes.
        assert_eq!(split(1_000, 2_000, 0, 900), [0, 1_000, 0, 0]);
        assert_eq!(split(1_000, 500, 1_010, 2_000), [0, 10, 990, 0]);
        assert_eq!(split(2_000, 900, 0, 900), [1_000, 0, 0, 0]);
        // It called first when they came.
        assert_eq!(split(1_000, 900, 0, 1_000), [0, 0, 0, 1_000]);
        // A clock further, and nothing is.
        for (readable, asked, running) in
            [(1_000, 2_001, 900), (1_000, 500, 2_001), (2_001, 900, 900), (999, 900, 900)]
        {
            assert_eq!(split(readable, asked, 0, running), UNSEEN, "{readable} {asked} {running}");
        }
    }
}
