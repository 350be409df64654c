//! Counting the times of finished packets where nobody wants a record of each.

use aya_ebpf::bindings::BPF_NOEXIST;
use net_latency_common::{
    AF_INET, BUCKETS, CELLS, CellKey, Counter, Direction, FLAG_CONTROL, GroupBy, IPPROTO_UDP, NEVER,
    PacketRecord, ROW_TOTAL, STAMP_APP, STAMP_DRV, STAMP_IP, STAMP_TRANSPORT, STAMPS, UNKNOWN, Unknown,
    WAY_OUT, WAY_UDP, bucket, row, without_rest,
};

use crate::{
    Outcome,
    config::setting,
    count::{self, increment},
    maps::{GROUPS, NAMES, SPAN, TIMES},
};

/// What became of a count.
const LOST: u32 = 0;
const COUNTED: u32 = 1;
/// Counted, in a cell that nobody was in before.
const FIRST: u32 = 2;

/// In place of a time: there never was one.
const NEVER_TIME: u64 = no_time(NEVER);

/// In place of a time: the packet has none, and is counted in this cell.
const fn no_time(cell: usize) -> u64 {
    u64::MAX - (CELLS - 1 - cell) as u64
}

/// Whether times are counted, and no records wanted.
#[inline(always)]
pub(crate) fn is_wanted() -> bool {
    setting!(histograms_by) != 0
}

/// Whether they are counted by cgroup.
#[inline(always)]
pub(crate) fn is_by_cgroup() -> bool {
    setting!(histograms_by) == GroupBy::Cgroup as u32
}

/// Counts the times of a finished packet.
#[inline(always)]
pub(crate) fn count(direction: Direction, packet: &PacketRecord) -> Outcome {
    let drv = packet.stamps[STAMP_DRV];
    let ip = packet.stamps[STAMP_IP];
    let transport = packet.stamps[STAMP_TRANSPORT];
    let app = packet.stamps[STAMP_APP];
    let (way, stages) = match direction {
        Direction::In => (0, [drv, ip, transport, app]),
        Direction::Out => (WAY_OUT, [app, transport, ip, drv]),
    };
    let way = if packet.protocol == IPPROTO_UDP { way | WAY_UDP } else { way };
    let [_, _, third, last] = stages;
    let Some(since) = valid_since(if last != 0 { last } else { third }) else {
        return Err(Counter::Outside);
    };
    let [start, end] = group(direction, packet);
    let total = between(direction, packet.flags, stages, 0, STAMPS - 1, since);
    match add(start, end, row(way, ROW_TOTAL), total) {
        // The packet shows nowhere.
        LOST => return Err(Counter::HistogramFull),
        FIRST if setting!(histograms_by) == GroupBy::Pid as u32 => {
            let name: [u64; 2] = words(packet.comm);
            // Where there is no room, the process has a number only.
            let _ = NAMES.insert(&packet.pid, &name, 0);
        }
        _ => {}
    }
    // Written out: each time is counted before the next is looked at, so that the verifier need not follow every combination
    // of reasons.
    let column = |number: usize, time: u64| {
        if time != NEVER_TIME && add(start, end, row(way, number as u32), time) == LOST {
            count::one(Counter::TimeLost);
        }
    };
    column(0, between(direction, packet.flags, stages, 0, 1, since));
    column(1, between(direction, packet.flags, stages, 1, 2, since));
    column(2, between(direction, packet.flags, stages, 2, 3, since));
    Ok(())
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
    if stages[from] != 0 && stages[to] >= stages[from] {
        return stages[to] - stages[from];
    }
    // What a packet without data lacks, it never had.
    if flags & FLAG_CONTROL != 0 {
        return NEVER_TIME;
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
    } else if by == GroupBy::Port as u32 {
        let port = match direction {
            Direction::In => packet.dport,
            Direction::Out => packet.sport,
        };
        [port.into(), 0]
    } else if by == GroupBy::Host as u32 {
        let host = words(match direction {
            Direction::In => packet.saddr,
            Direction::Out => packet.daddr,
        });
        // ::ffff:a.b.c.d
        if packet.family == AF_INET { [0, host[0] << 32 | 0xffff_0000] } else { host }
    } else if by == GroupBy::Interface as u32 {
        [packet.ifindex.into(), packet.netns.into()]
    } else if by == GroupBy::Cgroup as u32 {
        // See `Task`: it is where the name would be.
        [words(packet.comm)[0], 0]
    } else {
        [0; 2]
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
pub extern "C" fn add(start: u64, end: u64, row: u32, time: u64) -> u32 {
    // What has no time is in the cells behind the buckets.
    let cell = if time >= no_time(BUCKETS) { CELLS - 1 - (u64::MAX - time) as usize } else { bucket(time) };
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
