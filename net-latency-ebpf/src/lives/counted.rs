//! `hist`: a history runs twice, once for its lines and once for counts of times. The counts of the second have to agree with the lines of
//! the first, which are shown to be true. The times are computed anew here, independently.

use std::{collections::BTreeMap, format, string::String, vec::Vec};

use net_latency_common::{
    AF_INET, Counter, Counters, Direction, FLAG_CONTROL, FLAG_RETRANS, FineRecord, GroupBy, IPPROTO_UDP,
    NEVER, PacketRecord, ROW_TOTAL, ROWS, STAMP_APP, STAMP_DRV, STAMP_IP, STAMP_TRANSPORT, TRAFFIC_KINDS,
    TRAFFIC_OUT, TRAFFIC_UDP, UNKNOWN, UNKNOWNS, Unknown, bucket, row,
};

use crate::{bpf::host::Machine, emit::histogram};

/// From when on packets are counted: before all of them.
const START: u64 = 1;

/// By what packets are put together.
pub(super) const BY: [GroupBy; 6] =
    [GroupBy::Stage, GroupBy::Comm, GroupBy::Process, GroupBy::Port, GroupBy::Host, GroupBy::Interface];

/// Counts by group, row and cell.
type Counts = BTreeMap<([u64; 2], u32, u32), u64>;

/// Whether `hist` counts by this what the stream shows. `run` runs a history with large tables, with something done to the machine
/// before its first step.
pub(super) fn expect_same(
    by: GroupBy,
    is_fine: bool,
    run: impl Fn(&dyn Fn()) -> (Vec<FineRecord>, Counters),
) -> Result<(), String> {
    // For each kind of traffic, and its parts.
    let has_room = || Machine::with(|machine| machine.room = 2 * TRAFFIC_KINDS as usize);
    let (lines, shown) = run(&has_room);
    let (records, counters) = run(&|| {
        has_room();
        Machine::with(|machine| machine.settings.histograms_by = by as u32);
        histogram::begin(START);
    });
    let mut counted = Counts::new();
    for (key, count) in histogram::counted() {
        *counted.entry((key.group, key.row, key.cell)).or_default() += count;
    }
    let mut expected = Counts::new();
    for line in &lines {
        for (row, cell) in cells(line, is_fine) {
            *expected.entry((group(&line.packet, by), row, cell)).or_default() += 1;
        }
    }
    let only = |these: &Counts, others: &Counts| -> Counts {
        these
            .iter()
            .filter(|(key, count)| others.get(key) != Some(count))
            .map(|(key, count)| (*key, *count))
            .collect()
    };
    if counted != expected {
        return Err(format!(
            "{:?} are counted, not {:?}",
            only(&counted, &expected),
            only(&expected, &counted)
        ));
    }
    let differs = |counter: &Counter| counters.get(*counter) != shown.get(*counter);
    let other: Vec<Counter> = Counter::ALL.into_iter().filter(differs).collect();
    if !other.is_empty() || !records.is_empty() {
        return Err(format!("counted by {by:?}, {other:?} differ, and {} are recorded", records.len()));
    }
    Ok(())
}

/// In which rows and cells a packet counts.
fn cells(FineRecord { packet, parts, .. }: &FineRecord, is_fine: bool) -> Vec<(u32, u32)> {
    let is_out = packet.direction == Direction::Out as u8;
    let is_udp = packet.protocol == IPPROTO_UDP;
    let traffic = if is_out { TRAFFIC_OUT } else { 0 } | if is_udp { TRAFFIC_UDP } else { 0 };
    let mut order = [STAMP_DRV, STAMP_IP, STAMP_TRANSPORT, STAMP_APP];
    if is_out {
        order.reverse();
    }
    let stages = order.map(|stamp| packet.stamps[stamp]);
    let direction = if is_out { Direction::Out } else { Direction::In };
    let (is_control, is_resent) = (packet.flags & FLAG_CONTROL != 0, packet.flags & FLAG_RETRANS != 0);
    let mut cells = Vec::new();
    for (number, (from, to)) in [(0, 1), (1, 2), (2, 3), (0, 3)].into_iter().enumerate() {
        let number = number as u32;
        let is_known = stages[from] != 0 && stages[to] >= stages[from];
        let cell = match () {
            () if is_known && !is_resent => bucket(stages[to] - stages[from]),
            () if is_control => NEVER,
            () if is_resent => UNKNOWN + Unknown::SentBefore as usize,
            () => UNKNOWN + Unknown::of(direction, packet.flags, stages, from, to, START) as usize,
        };
        if cell != NEVER || number == ROW_TOTAL {
            cells.push((row(traffic, number), cell as u32));
        }
    }
    let has = match (is_out, is_udp) {
        (false, false) => 0..4,
        (false, true) => 1..4,
        (true, false) => 0..3,
        (true, true) => 0..2,
    };
    for part in has.filter(|_| is_fine) {
        let unknown = if is_resent { Some(Unknown::SentBefore as u64) } else { Some(u64::MAX - parts[part]) };
        let cell = match unknown.filter(|reason| *reason < UNKNOWNS as u64) {
            Some(_) if is_control => continue,
            Some(reason) => UNKNOWN + reason as usize,
            None => bucket(parts[part]),
        };
        cells.push((row(traffic, ROWS + part as u32), cell as u32));
    }
    cells
}

/// Whose packet it is.
fn group(packet: &PacketRecord, by: GroupBy) -> [u64; 2] {
    let words = |bytes: [u8; 16]| {
        let (first, last) = bytes.split_at(8);
        [first, last].map(|half| u64::from_ne_bytes(half.try_into().expect("eight bytes")))
    };
    // What stands behind the NUL is of no meaning.
    let name = |mut name: [u8; 16]| {
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        name[end..].fill(0);
        words(name)
    };
    let is_out = packet.direction == Direction::Out as u8;
    match by {
        GroupBy::Comm => name(packet.comm),
        GroupBy::Process => name(packet.process),
        // No ephemeral ports are known: each end is a server's.
        GroupBy::Port => [u64::from(if is_out { packet.sport } else { packet.dport }), 0],
        GroupBy::Host => {
            let mut address = if is_out { packet.daddr } else { packet.saddr };
            if u32::from(packet.family) == AF_INET {
                address.copy_within(0..4, 12);
                address[..10].fill(0);
                address[10..12].fill(0xff);
            }
            words(address)
        }
        GroupBy::Interface => [packet.ifindex.into(), packet.netns.into()],
        _ => [0; 2],
    }
}
