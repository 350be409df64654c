//! Counting the times of finished packets where no record of each is wanted.

use net_latency_common::{
    AF_INET, Block, CELLS, COMM_LEN, CellKey, ConnectionKey, Counter, Direction, FLAG_CONTROL, FLAG_RETRANS,
    GroupBy, IPPROTO_TCP, NEVER, PacketRecord, ROW_TOTAL, STAMPS, Span, TRAFFIC_OUT, UNKNOWN, Unknown, cell,
    no_time, row, service_port, without_rest,
};
#[cfg(feature = "fine")]
use net_latency_common::{
    PART_COPY, PART_CPU, PART_DRIVER, PART_GAP, PART_NET, PART_QDISC, PART_WAIT, PARTS, ROWS, TRAFFIC_KINDS,
    TRAFFIC_UDP, part_time, unknown_part,
};

use super::{counters, ring::Finished};
use crate::{
    bpf::{Array, HashMap, NO_EXIST, PerCpuArray, PerCpuHashMap, cpu, entry::increment, map, now},
    flow::settings::setting,
    kernel::{memory::as_it_is, task::Task},
};

/// Counts of times by kind of traffic and stage. The user side makes room where it wants them. Never full.
#[map]
static TIMES: PerCpuArray<Block> = PerCpuArray::with_max_entries(1, 0);

/// Counts of times by group, kind of traffic and stage. The user side makes room where it wants them. When full, counted: per packet if its
/// total found no room, else per time.
#[map]
static GROUPS: PerCpuHashMap<CellKey, u64> = PerCpuHashMap::with_max_entries(1, 0);

/// Names of the processes that have counts, by group. When full, the process has a number only.
#[map]
static NAMES: HashMap<[u64; 2], [u64; COMM_LEN / 8]> = HashMap::with_max_entries(1, 0);

/// Connections that have counts, each with its number, which stands for them in the key of each count. When full, counted: packets of
/// further connections are not in the counts.
#[map]
static CONNECTION_IDS: HashMap<ConnectionKey, u64> = HashMap::with_max_entries(1, 0);

/// When packets are counted.
#[map]
static SPAN: Array<Span> = Array::with_max_entries(1, 0);

/// What became of a count.
const LOST: u32 = 0;
const COUNTED: u32 = 1;
/// Counted, as the first in its cell.
const FIRST: u32 = 2;
/// Not counted: the packet was finished while not every hook was attached.
const OUTSIDE: u32 = 3;

/// In the second word of a group by connection: it is one, and not what has none.
const IS_CONNECTION: u64 = 1;

/// In place of a time: there never was one.
const NEVER_TIME: u64 = no_time(NEVER);

/// Whether times are counted, and no records wanted.
#[inline(always)]
pub(crate) fn is_wanted() -> bool {
    setting!(histograms_by) != 0
}

/// Whether times are counted of all packets together.
#[inline(always)]
pub(crate) fn is_of_all() -> bool {
    setting!(histograms_by) == GroupBy::Stage as u32
}

/// Whose packet it is.
pub(crate) struct Whose {
    /// As [`CellKey::group`] has it.
    group: [u64; 2],
    process: [u64; 2],
}

/// Where a packet's times are counted: its group ([`CellKey::group`]), and its kind.
#[derive(Clone, Copy)]
#[cfg_attr(
    not(feature = "fine"),
    expect(dead_code, reason = "only a packet's parts are counted later, in the same place")
)]
pub(crate) struct Place {
    group: [u64; 2],
    traffic: u32,
    flags: u16,
}

/// Counts the times of a packet where times are not grouped, and says where it has.
#[inline(always)]
pub(crate) fn count_among_all(packet: &Finished<'_>) -> Result<Place, Counter> {
    let [first, second, third, last] = packet.stages();
    let (traffic, flags) = (packet.traffic(), packet.flags);
    match count_of_all(kind(traffic, flags), first, second, third, last) {
        COUNTED => Ok(Place { group: [0; 2], traffic, flags }),
        OUTSIDE => Err(Counter::Outside),
        _ => Err(Counter::HistogramFull),
    }
}

/// Counts the times of a packet in its group, and says where it has.
#[inline(always)]
pub(crate) fn count(packet: &Finished<'_>, whose: Whose) -> Result<Place, Counter> {
    let stages = packet.stages();
    let (traffic, flags) = (packet.traffic(), packet.flags);
    let [_, _, third, last] = stages;
    if !is_valid(third, last) {
        return Err(Counter::Outside);
    }
    let Whose { group: [start, end], process } = whose;
    match add(start, end, row(traffic, ROW_TOTAL), time(traffic, flags, stages, ROW_TOTAL)) {
        // The packet shows nowhere.
        LOST => return Err(Counter::HistogramFull),
        FIRST if setting!(histograms_by) == GroupBy::Pid as u32 => {
            let [name, rest] = process;
            name_process(start, end, name, rest);
        }
        _ => {}
    }
    // Written out: each time is counted before the next is looked at, so that the verifier need not follow every combination
    // of reasons.
    let column = |number: u32| {
        let time = time(traffic, flags, stages, number);
        if time != NEVER_TIME && add(start, end, row(traffic, number), time) == LOST {
            counters::one(Counter::TimeLost);
        }
    };
    column(0);
    column(1);
    column(2);
    Ok(Place { group: [start, end], traffic, flags })
}

/// Notes the name of a process that has counts. Where there is no room, it has a number only.
///
/// A global function: it is rare, and the callers have no stack for its key.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn name_process(pid: u64, start: u64, name: u64, rest: u64) -> u32 {
    NAMES.insert(&[pid, start], &[name, rest], 0).is_ok().into()
}

/// Traffic and flags of a packet in one argument.
#[inline(always)]
fn kind(traffic: u32, flags: u16) -> u64 {
    u64::from(traffic) | u64::from(flags) << 32
}

/// Counts a packet where times are not grouped: one entry has all rows of its kind. The stages are in the order in which it crosses them.
///
/// A global function, which the verifier checks once by itself instead of wherever it is called.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn count_of_all(kind: u64, first: u64, second: u64, third: u64, last: u64) -> u32 {
    let (traffic, flags) = (kind as u32, (kind >> 32) as u16);
    if !is_valid(third, last) {
        return OUTSIDE;
    }
    let Some(block) = TIMES.get_ptr_mut(traffic) else { return LOST };
    let time = |row: u32| time(traffic, flags, [first, second, third, last], row);
    add_in(block, ROW_TOTAL, time(ROW_TOTAL));
    let column = |row: u32| {
        let time = time(row);
        if time != NEVER_TIME {
            add_in(block, row, time);
        }
    };
    column(0);
    column(1);
    column(2);
    COUNTED
}

/// Adds one to the cell of `time` in a row of a block.
#[inline(always)]
fn add_in(block: *mut Block, row: u32, time: u64) {
    // All times have a cell. The verifier has to see it, and of this very number: the compiler would go from the entry's end.
    let cell = as_it_is(cell(time) as u64) as usize;
    if cell < CELLS {
        // SAFETY: within the entry, which stays mapped while a program runs.
        increment(unsafe { block.cast::<u64>().add(row as usize * CELLS + cell) });
    }
}

/// Counts those parts of a packet that such a packet has, where its other times are.
#[cfg(feature = "fine")]
#[inline(always)]
pub(crate) fn count_parts(place: Place, parts: &[u64; PARTS]) {
    let Place { group: [start, end], traffic, flags } = place;
    if is_of_all() {
        let [a, b, c, d] = *parts;
        count_parts_of_all(kind(traffic, flags), a, b, c, d);
        return;
    }
    each_part(traffic, flags, *parts, |part, time| {
        if add(start, end, row(traffic, ROWS + part as u32), time) == LOST {
            counters::one(Counter::TimeLost);
        }
    });
}

/// Counts the parts of a packet where times are not grouped.
///
/// A global function, as [`count_of_all`].
#[cfg(feature = "fine")]
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn count_parts_of_all(kind: u64, a: u64, b: u64, c: u64, d: u64) -> u32 {
    let (traffic, flags) = (kind as u32, (kind >> 32) as u16);
    let Some(block) = TIMES.get_ptr_mut(TRAFFIC_KINDS + traffic) else { return LOST };
    each_part(traffic, flags, [a, b, c, d], |part, time| add_in(block, part as u32, time));
    COUNTED
}

/// The parts that such a packet has, with their times.
#[cfg(feature = "fine")]
#[inline(always)]
fn each_part(traffic: u32, flags: u16, parts: [u64; PARTS], add: impl Fn(usize, u64)) {
    let part = |part: usize| {
        // TCP had sent its bytes before: its times are unknown.
        let is_resent = flags & FLAG_RETRANS != 0;
        let value = if is_resent { unknown_part(Unknown::SentBefore) } else { parts[part] };
        let time = part_time(value, flags & FLAG_CONTROL != 0);
        if time != NEVER_TIME {
            add(part, time);
        }
    };
    let is_udp = traffic & TRAFFIC_UDP != 0;
    if traffic & TRAFFIC_OUT == 0 {
        if !is_udp {
            part(PART_GAP);
        }
        part(PART_WAIT);
        part(PART_CPU);
        part(PART_COPY);
    } else {
        part(PART_QDISC);
        part(PART_DRIVER);
        if !is_udp {
            part(PART_NET);
        }
    }
}

/// The time of a row, or the cell of what has none. The stages are in the order in which the packet crosses them.
#[inline(always)]
fn time(traffic: u32, flags: u16, stages: [u64; STAMPS], row: u32) -> u64 {
    let [first, second, third, last] = stages;
    let (from, to) = match row {
        0 => (first, second),
        1 => (second, third),
        2 => (third, last),
        _ => (first, last),
    };
    // If TCP sends bytes again, the first time says when it did, and not how long the host took. An unknown stamp is 0, and none is older
    // than the programs.
    if from > setting!(since) && to >= from && flags & FLAG_RETRANS == 0 {
        return to - from;
    }
    no_time_of(kind(traffic, flags) | u64::from(row) << 8, first, second, third, last)
}

/// The cell of a row of a packet that has no time there. The number of the row is in the second byte of `kind`.
///
/// A global function: few have none.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn no_time_of(kind: u64, first: u64, second: u64, third: u64, last: u64) -> u64 {
    let flags = (kind >> 32) as u16;
    // What a packet without data lacks, it never had.
    if flags & FLAG_CONTROL != 0 {
        return NEVER_TIME;
    }
    if flags & FLAG_RETRANS != 0 {
        return no_time(UNKNOWN + Unknown::SentBefore as usize);
    }
    let direction = if kind as u32 & TRAFFIC_OUT == 0 { Direction::In } else { Direction::Out };
    let start = SPAN.get_ptr(0).map_or(0, |span| {
        // SAFETY: index 0 of an array is valid, and the user side changes whole words.
        unsafe { (*span).start }
    });
    let of = |from, to| Unknown::of(direction, flags, [first, second, third, last], from, to, start);
    let reason = match (kind >> 8) as u8 {
        0 => of(0, 1),
        1 => of(1, 2),
        2 => of(2, 3),
        _ => of(0, STAMPS - 1),
    };
    no_time(UNKNOWN + reason as usize)
}

/// Whether every hook was attached when a packet was finished that crossed its last two stages then; a control packet has no last
/// one.
#[inline(always)]
fn is_valid(third: u64, last: u64) -> bool {
    let completion = if last != 0 { last } else { third };
    SPAN.get_ptr(0).is_some_and(|span| {
        // SAFETY: index 0 of an array is valid, and the user side changes whole words.
        let (start, end) = unsafe { ((*span).start, (*span).end) };
        start != 0 && completion >= start && completion <= end
    })
}

/// Whose packet it is.
#[inline(always)]
pub(crate) fn whose(direction: Direction, packet: &PacketRecord) -> Whose {
    // Copies: whose address a call gets is on the stack, and of a packet that would be all of it.
    Whose { group: group(direction, packet), process: words(packet.process) }
}

#[inline(always)]
fn group(direction: Direction, packet: &PacketRecord) -> [u64; 2] {
    let by = setting!(histograms_by);
    if by == GroupBy::Pid as u32 {
        // See `Task`: it is where the name would be. A number alone may be that of several processes, one after the other.
        [packet.pid.into(), words(packet.comm)[0]]
    } else if by == GroupBy::Comm as u32 {
        without_rest(words(packet.comm))
    } else if by == GroupBy::Process as u32 {
        without_rest(words(packet.process))
    } else if by == GroupBy::Port as u32 {
        let [local, remote] = match direction {
            Direction::In => [packet.dport, packet.sport],
            Direction::Out => [packet.sport, packet.dport],
        };
        [service_port(local, remote, setting!(ephemeral_ports)).into(), 0]
    } else if by == GroupBy::Host as u32 {
        let host = words(match direction {
            Direction::In => packet.saddr,
            Direction::Out => packet.daddr,
        });
        // ::ffff:a.b.c.d
        if u32::from(packet.family) == AF_INET { [0, host[0] << 32 | 0xffff_0000] } else { host }
    } else if by == GroupBy::Connection as u32 && packet.protocol == IPPROTO_TCP {
        // Datagrams have none.
        [connection(direction, packet), IS_CONNECTION]
    } else if by == GroupBy::Interface as u32 {
        [packet.ifindex.into(), packet.netns.into()]
    } else if by == GroupBy::Cgroup as u32 {
        // See `Task`: it is where the name would be.
        [words(packet.comm)[0], 0]
    } else {
        [0; 2]
    }
}

/// The number of a connection, or 0 if there is no room for it.
#[inline(always)]
fn connection(direction: Direction, packet: &PacketRecord) -> u64 {
    let is_in = matches!(direction, Direction::In);
    let [local, remote] = if is_in { [packet.daddr, packet.saddr] } else { [packet.saddr, packet.daddr] };
    let ([local, local_rest], [remote, remote_rest]) = (words(local), words(remote));
    let ports = if is_in { [packet.dport, packet.sport] } else { [packet.sport, packet.dport] };
    let rest = ConnectionKey::rest(ports, packet.netns);
    if u32::from(packet.family) == AF_INET {
        return number(local & u64::from(u32::MAX) | remote << 32, ConnectionKey::V4, rest);
    }
    let local = number(local, local_rest, ConnectionKey::ADDRESS);
    let remote = number(remote, remote_rest, ConnectionKey::ADDRESS);
    if local == 0 || remote == 0 { 0 } else { number(local, remote, rest) }
}

/// The unique number of a [`ConnectionKey`], made of the time and CPU of its first lookup; 0 if there is no room for it.
///
/// A global function, which the verifier checks once by itself instead of wherever it is called. IPv6 takes three calls: both ends in
/// one key would be 16 bytes of stack more, which 5.10 does not have where kprobes finish a segment.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn number(first: u64, second: u64, third: u64) -> u64 {
    /// As many bits as CPUs take.
    const CPU_BITS: u32 = 12;
    let key = ConnectionKey([first, second, third]);
    if let Some(number) = CONNECTION_IDS.get_ptr(&key) {
        // SAFETY: an entry, which is written once, before it is in the map, and never deleted.
        return unsafe { *number };
    }
    let new = now() << CPU_BITS | u64::from(cpu()) & ((1 << CPU_BITS) - 1);
    // It is there already if another CPU, or what interrupted this one, was here between.
    let _ = CONNECTION_IDS.insert(&key, &new, NO_EXIST);
    // SAFETY: as above.
    CONNECTION_IDS.get_ptr(&key).map_or(0, |number| unsafe { *number })
}

/// Gives a record the name of its thread, where times are counted by cgroup and the record has a cgroup's id in place of a name:
/// known where that thread itself brings its packet this far, which is not so of what TCP sends later.
#[inline(always)]
pub(crate) fn name(packet: &mut PacketRecord) {
    if setting!(histograms_by) == GroupBy::Cgroup as u32 {
        let is_own = packet.tid != 0 && Task::current_ids() as u32 == packet.tid;
        packet.comm = if is_own { Task::current().comm() } else { Task::UNKNOWN.comm() };
    }
}

#[inline(always)]
fn words(bytes: [u8; 16]) -> [u64; 2] {
    // SAFETY: same size, and any bytes are valid.
    unsafe { core::mem::transmute(bytes) }
}

/// Adds one to the cell of `time` in a row, of the group in two words. That a connection has no number is looked at here: where
/// kprobes finish a segment, 5.10 has no stack for it.
///
/// A global function, which the verifier checks once by itself instead of wherever it is called.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn add(start: u64, end: u64, row: u32, time: u64) -> u32 {
    if setting!(histograms_by) == GroupBy::Connection as u32 && start == 0 && end == IS_CONNECTION {
        // There was no room for one more connection.
        return LOST;
    }
    let cell = cell(time);
    let key = CellKey { group: [start, end], row, cell: cell as u32 };
    if let Some(cell) = GROUPS.get_ptr_mut(&key) {
        increment(cell);
        return COUNTED;
    }
    // It is there already if another CPU, or what interrupted this one, was here between.
    let _ = GROUPS.insert(&key, &0, NO_EXIST);
    match GROUPS.get_ptr_mut(&key) {
        Some(cell) => {
            increment(cell);
            FIRST
        }
        None => LOST,
    }
}

/// Has packets counted from now on that are finished at `start` or later.
#[cfg(test)]
pub(crate) fn begin(start: u64) {
    let span = SPAN.get_ptr_mut(0).expect("it has one entry");
    // SAFETY: in a map of this thread's machine.
    unsafe { span.write(Span { start, end: u64::MAX }) }
}

/// All that is counted: by group, row and cell.
#[cfg(test)]
pub(crate) fn counted() -> std::vec::Vec<(CellKey, u64)> {
    let of_groups = GROUPS.all().into_iter().map(|(key, counts)| (key, counts.iter().sum()));
    let mut all: std::vec::Vec<_> = of_groups.filter(|(_, count)| *count > 0).collect();
    for (block, entry) in TIMES.touched() {
        // SAFETY: in a map of this thread's machine.
        for (number, cells) in unsafe { (*entry).iter().enumerate() } {
            let number = number as u32 + if block < TRAFFIC_KINDS { 0 } else { ROWS };
            let row = row(block % TRAFFIC_KINDS, number);
            let key = |cell| CellKey { group: [0; 2], row, cell };
            let used = cells.iter().enumerate().filter(|(_, count)| **count > 0);
            all.extend(used.map(|(cell, count)| (key(cell as u32), *count)));
        }
    }
    all
}
