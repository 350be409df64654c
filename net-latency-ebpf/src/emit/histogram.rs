//! Counting the times of finished packets where nobody wants a record of each.

use aya_ebpf::{
    bindings::BPF_NOEXIST,
    macros::map,
    maps::{Array, HashMap, PerCpuArray, PerCpuHashMap},
};
use net_latency_common::{
    AF_INET, CELLS, COMM_LEN, CellKey, Counter, Direction, FLAG_CONTROL, FLAG_RETRANS, GroupBy, IPPROTO_UDP,
    NEVER, PacketRecord, ROW_TOTAL, STAMP_APP, STAMP_DRV, STAMP_IP, STAMP_TRANSPORT, STAMPS, Span,
    TRAFFIC_OUT, TRAFFIC_UDP, UNKNOWN, Unknown, cell, no_time, row, service_port, without_rest,
};
#[cfg(feature = "fine")]
use net_latency_common::{
    PART_COPY, PART_CPU, PART_DRIVER, PART_GAP, PART_NET, PART_QDISC, PART_WAIT, PARTS, ROWS, part_time,
    unknown_part,
};

use super::counters;
use crate::{entry::increment, flow::settings::setting, kernel::task::Task};

/// Counts of times by kind of traffic and stage. The user side makes room where it wants them.
#[map]
static TIMES: PerCpuArray<[u64; CELLS]> = PerCpuArray::with_max_entries(1, 0);

/// Counts of times by group, kind of traffic and stage. The user side makes room where it wants them.
#[map]
static GROUPS: PerCpuHashMap<CellKey, u64> = PerCpuHashMap::with_max_entries(1, 0);

/// Names of the processes that have counts.
#[map]
static NAMES: HashMap<u32, [u64; COMM_LEN / 8]> = HashMap::with_max_entries(1, 0);

/// When packets are counted.
#[map]
static SPAN: Array<Span> = Array::with_max_entries(1, 0);

/// What became of a count.
const LOST: u32 = 0;
const COUNTED: u32 = 1;
/// Counted, in a cell that nobody was in before.
const FIRST: u32 = 2;

/// In place of a time: there never was one.
const NEVER_TIME: u64 = no_time(NEVER);

/// Whether times are counted, and no records wanted.
#[inline(always)]
pub(crate) fn is_wanted() -> bool {
    setting!(histograms_by) != 0
}

/// Where a packet's times are counted: whose it is ([`CellKey::group`]), and which kind it is.
#[derive(Clone, Copy)]
#[cfg_attr(
    not(feature = "fine"),
    expect(dead_code, reason = "only a packet's parts are counted later, in the same place")
)]
pub(crate) struct Place {
    group: [u64; 2],
    traffic: u32,
    is_control: bool,
    /// Its times are counted as unknown: TCP had sent its bytes before.
    is_resent: bool,
}

/// Counts the times of a finished packet, and says where it has.
#[inline(always)]
pub(crate) fn count(direction: Direction, packet: &PacketRecord) -> Result<Place, Counter> {
    let drv = packet.stamps[STAMP_DRV];
    let ip = packet.stamps[STAMP_IP];
    let transport = packet.stamps[STAMP_TRANSPORT];
    let app = packet.stamps[STAMP_APP];
    let (traffic, stages) = match direction {
        Direction::In => (0, [drv, ip, transport, app]),
        Direction::Out => (TRAFFIC_OUT, [app, transport, ip, drv]),
    };
    let traffic = if packet.protocol == IPPROTO_UDP { traffic | TRAFFIC_UDP } else { traffic };
    let [_, _, third, last] = stages;
    let Some(since) = valid_since(if last != 0 { last } else { third }) else {
        return Err(Counter::Outside);
    };
    let [start, end] = group(direction, packet);
    let flags = packet.flags;
    let total = between(direction, flags, stages, 0, STAMPS - 1, since);
    match add(start, end, row(traffic, ROW_TOTAL), total) {
        // The packet shows nowhere.
        LOST => return Err(Counter::HistogramFull),
        FIRST if setting!(histograms_by) == GroupBy::Pid as u32 => {
            let name: [u64; 2] = words(packet.process);
            // Where there is no room, the process has a number only.
            // A copy: whose address a call gets is on the stack, and of a packet that would be all of it.
            let pid = packet.pid;
            let _ = NAMES.insert(&pid, &name, 0);
        }
        _ => {}
    }
    // Written out: each time is counted before the next is looked at, so that the verifier need not follow every combination
    // of reasons.
    let column = |number: usize, time: u64| {
        if time != NEVER_TIME && add(start, end, row(traffic, number as u32), time) == LOST {
            counters::one(Counter::TimeLost);
        }
    };
    column(0, between(direction, flags, stages, 0, 1, since));
    column(1, between(direction, flags, stages, 1, 2, since));
    column(2, between(direction, flags, stages, 2, 3, since));
    Ok(Place {
        group: [start, end],
        traffic,
        is_control: flags & FLAG_CONTROL != 0,
        is_resent: flags & FLAG_RETRANS != 0,
    })
}

/// Counts those parts of a packet that such a packet has, where its other times are.
#[cfg(feature = "fine")]
#[inline(always)]
pub(crate) fn count_parts(place: Place, parts: &[u64; PARTS]) {
    let Place { group: [start, end], traffic, is_control, is_resent } = place;
    let part = |part: usize| {
        let value = if is_resent { unknown_part(Unknown::SentBefore) } else { parts[part] };
        let time = part_time(value, is_control);
        if time != NEVER_TIME && add(start, end, row(traffic, ROWS + part as u32), time) == LOST {
            counters::one(Counter::TimeLost);
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

/// The time from one stage to another, or the cell of what has none.
#[inline(always)]
fn between(
    direction: Direction,
    flags: u16,
    stages: [u64; STAMPS],
    from: usize,
    to: usize,
    since: u64,
) -> u64 {
    // Of what TCP sends again, the first time says when it did, and not how long the host took.
    let is_resent = flags & FLAG_RETRANS != 0;
    if stages[from] != 0 && stages[to] >= stages[from] && !is_resent {
        return stages[to] - stages[from];
    }
    // What a packet without data lacks, it never had.
    if flags & FLAG_CONTROL != 0 {
        return NEVER_TIME;
    }
    if is_resent {
        return no_time(UNKNOWN + Unknown::SentBefore as usize);
    }
    no_time(UNKNOWN + Unknown::of(direction, flags, stages, from, to, since) as usize)
}

/// Since when every hook is attached, if every hook was attached at that time.
#[inline(always)]
fn valid_since(completion: u64) -> Option<u64> {
    let span = SPAN.get_ptr(0)?;
    // SAFETY: index 0 of an array is valid, and the user side changes whole words.
    let (start, end) = unsafe { ((*span).start, (*span).end) };
    (start != 0 && completion >= start && completion <= end).then_some(start)
}

/// Whose packet it is, as [`CellKey::group`] has it.
#[inline(always)]
fn group(direction: Direction, packet: &PacketRecord) -> [u64; 2] {
    let by = setting!(histograms_by);
    if by == GroupBy::Pid as u32 {
        [packet.pid.into(), 0]
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
    } else if by == GroupBy::Interface as u32 {
        [packet.ifindex.into(), packet.netns.into()]
    } else if by == GroupBy::Cgroup as u32 {
        // See `Task`: it is where the name would be.
        [words(packet.comm)[0], 0]
    } else {
        [0; 2]
    }
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

/// Adds one to the cell of `time` in a row, of the group in two words.
///
/// A global function, which the verifier checks once by itself instead of wherever it is called.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn add(start: u64, end: u64, row: u32, time: u64) -> u32 {
    let cell = cell(time);
    if setting!(histograms_by) == GroupBy::Stage as u32 {
        return match TIMES.get_ptr_mut(row) {
            Some(cells) if cell < CELLS => {
                // SAFETY: within the entry.
                increment(unsafe { cells.cast::<u64>().add(cell) });
                COUNTED
            }
            _ => LOST,
        };
    }
    let key = CellKey { group: [start, end], row, cell: cell as u32 };
    if let Some(cell) = GROUPS.get_ptr_mut(&key) {
        increment(cell);
        return COUNTED;
    }
    // It is there already if another CPU, or what interrupted this one, was here between.
    let _ = GROUPS.insert(&key, &0, BPF_NOEXIST.into());
    match GROUPS.get_ptr_mut(&key) {
        Some(cell) => {
            increment(cell);
            FIRST
        }
        None => LOST,
    }
}
